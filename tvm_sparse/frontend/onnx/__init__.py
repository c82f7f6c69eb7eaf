"""ONNX files: what is checked, folded and rewritten before TVM imports a model.

In: an .onnx file. Out: a Relax module, every constant in it.
"""
