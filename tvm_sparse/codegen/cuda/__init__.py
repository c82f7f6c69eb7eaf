"""TIR and source of CUDA kernels.

In: k-tile loops and CUDA source. Out: multistage pipelines, cluster reductions, cubins.
"""
