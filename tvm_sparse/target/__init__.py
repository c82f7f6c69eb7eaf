"""Targets and machines.

In: text or JSON. Out: a TVM target, the fingerprint of a machine, and every fact about a CPU or GPU.
"""
