"""ONNX graphs: their nodes, constants, and what is known before they run.

In: an `onnx.ModelProto`. Out: the same, with nodes computed that need no input.
"""
