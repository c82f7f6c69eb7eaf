"""ONNX nodes as others that TVM reads right.

In: an `onnx.ModelProto`. Out: the same network in other nodes.
"""
