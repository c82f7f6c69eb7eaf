"""What the CUDA schedule spaces share, and a package for each kind of kernel.

In: a convolution, its zeros and a GPU. Out: spaces of tiles, their decisions, and estimated times.

`folded` has weights as instructions. `data`, `linear`, `linear_tensor`, `planes`, `positions` and `quads` have weights
as data, each for a kernel of codegen/cuda that is written by hand: `tiling` says how a convolution is cut, `geometry`
in which numbers the kernel is told, `packing` how its weights lie, `space` which tilings a search has. What all of
these share is in `tiling_space`, `library_call`, `kernel_numbers` and `map_size`. The other files serve kernels that
TVM compiles.
"""
