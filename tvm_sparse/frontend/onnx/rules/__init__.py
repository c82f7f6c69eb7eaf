"""Which ONNX operators are imported, and in which forms.

In: an `onnx.ModelProto`. Out: nothing, or ModelError.
"""
