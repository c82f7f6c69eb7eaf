"""What the CUDA schedule spaces share, and a package for each kind of kernel.

In: a convolution, its zeros and a GPU. Out: spaces of tiles, their decisions, and estimated times.

`folded` has weights as instructions. `data`, `linear`, `linear_tensor`, `plane`, `quad` and `slice` have them as data,
each for kernels in CUDA C++ of its name (codegen/cuda): `tiling` says how a convolution is cut, `kernels` what they are
called with and which library holds them, `packing` how weights lie, `space` which tilings a search has. What all of
these share is in `library`. The other files serve kernels that TVM compiles.
"""
