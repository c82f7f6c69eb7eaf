"""What computes each layer, chosen and kept: the plan of a model.

In: layers, a log, estimates. Out: a `Plan`: one `Decision` a layer, with its reason.
"""
