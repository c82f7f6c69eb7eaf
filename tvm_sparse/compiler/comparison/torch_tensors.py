"""Arrays as torch tensors, and back."""

from typing import Any

import numpy as np

from tvm_sparse.conv.dtypes import BFLOAT16, FLOAT32


def tensor_of(array: np.ndarray) -> Any:
    """A torch tensor of the values of `array`, and of its type."""
    import torch

    if array.dtype.name == BFLOAT16:
        return torch.from_numpy(array.astype(FLOAT32)).bfloat16()
    return torch.from_numpy(np.ascontiguousarray(array).reshape(array.shape))


def array_of(tensor: Any) -> np.ndarray:
    """The values of a torch tensor, in its type."""
    name = str(tensor.dtype).removeprefix("torch.")
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    return tensor.float().numpy().astype(BFLOAT16) if name == BFLOAT16 else tensor.numpy()
