"""Reading models.

In: a model file or module. Out: a Relax module and its layers (`ConvLayer`: name, spec, weight, pattern).
"""
