"""The version, for those that must not import the face of the package."""

__version__ = "0.1.0"
