"""Schedule spaces, one a file."""
