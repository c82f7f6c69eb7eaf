"""Libraries of others that compiled code calls, by the names that artifacts list them with."""

from collections.abc import Mapping

from tvm_sparse.cudnn import library, packed_function
from tvm_sparse.errors import ArtifactError

CUDNN = "cudnn"


def provide(libraries: Mapping[str, str]) -> None:
    """Give TVM the functions through which code calls `libraries`; none of them is loaded before it is called."""
    if CUDNN in libraries:
        packed_function.register()


def require(directory: str, libraries: Mapping[str, str]) -> None:
    """Raise ArtifactError where this machine lacks one of `libraries`, name -> version that the model was made with."""
    for name, version in libraries.items():
        if name != CUDNN:
            raise ArtifactError(
                directory, "calls a library that this tvm-sparse does not know", name, CUDNN, "upgrade tvm-sparse"
            )
        if library.find() is None:
            problem = f"calls cuDNN 9, which was not found here (it was made with {version})"
            hint = "pip install nvidia-cudnn-cu13, or compile the model here"
            raise ArtifactError(directory, problem, hint=hint)
