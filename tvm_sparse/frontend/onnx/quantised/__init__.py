"""Networks in eight bits as float32 networks of the same integers.

In: an `onnx.ModelProto` of any quantised form. Out: its layers on integers in float32, with the scales behind them.
"""
