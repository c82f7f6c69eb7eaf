"""Files and folders that this package writes, and who else may change them.

In: paths, bytes. Out: files and folders that are whole at every moment; the user's own folders; or OSError.
"""
