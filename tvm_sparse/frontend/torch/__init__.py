"""Torch modules and .pt2 files: what is checked before TVM imports a program.

In: a module, a program or a file. Out: a Relax module, every constant in it.
"""
