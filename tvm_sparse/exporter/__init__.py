"""The step to programs without Python.

In: an artifact. Out: a plan, a library of kernels, and the C library that runs them.
"""

from pathlib import Path

# What every export has: the C library, a program and licences.
SOURCES = Path(__file__).with_name("sources")
