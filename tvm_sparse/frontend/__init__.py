"""Reading models.

In: a model file or module. Out: a Relax module and its convolutions (`ConvLayer`: name, spec, weight, pattern).
"""
