"""Pruning to patterns whose zeros a machine can skip.

In: a torch model or one of its layers. Out: the same with masks of `torch.nn.utils.prune`, and what they lose and gain.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvm_sparse.prune.fine_tuning import cubic as cubic
    from tvm_sparse.prune.fine_tuning import fine_tune as fine_tune
    from tvm_sparse.prune.fine_tuning import one_shot as one_shot
    from tvm_sparse.prune.global_pruning import global_ as global_
    from tvm_sparse.prune.methods import channels as channels
    from tvm_sparse.prune.methods import filters as filters
    from tvm_sparse.prune.methods import pattern as pattern
    from tvm_sparse.prune.methods import tile_slices as tile_slices
    from tvm_sparse.prune.methods import two_four as two_four
    from tvm_sparse.prune.methods import unstructured as unstructured
    from tvm_sparse.prune.methods import vector as vector
    from tvm_sparse.prune.reporting import report as report
    from tvm_sparse.prune.saliency import magnitude as magnitude
    from tvm_sparse.prune.saliency import taylor as taylor

# Public name -> the module that defines it: torch is loaded by the first that needs it.
_EXPORTS = {
    **dict.fromkeys(
        ("channels", "filters", "pattern", "tile_slices", "two_four", "unstructured", "vector"),
        "tvm_sparse.prune.methods",
    ),
    "cubic": "tvm_sparse.prune.fine_tuning",
    "fine_tune": "tvm_sparse.prune.fine_tuning",
    "global_": "tvm_sparse.prune.global_pruning",
    "magnitude": "tvm_sparse.prune.saliency",
    "one_shot": "tvm_sparse.prune.fine_tuning",
    "report": "tvm_sparse.prune.reporting",
    "taylor": "tvm_sparse.prune.saliency",
}
__all__ = list(_EXPORTS)


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'tvm_sparse.prune' has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
