"""The back end of `torch.compile`.

In: a graph that TorchDynamo captured, and options. Out: a function that runs it, compiled here or left to eager.
"""
