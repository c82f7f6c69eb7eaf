"""Whether a model pays: timed beside its dense twin, ONNX Runtime and torch.compile, or predicted from its layers.

In: a compiled model and what it was made of, or a plan. Out: a `Verdict`.
"""
