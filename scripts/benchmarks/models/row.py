"""What is measured for a row of a network, and the row; needs no torch."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

PRECISIONS = ("fp32", "tf32", "fp16")
NCHW, NHWC = "nchw", "nhwc"
GRAPH, EAGER = "graph", "eager"
# Of `torch.compile`, what is quickly built first; both make graphs of their own.
MODES = ("reduce-overhead", "max-autotune")
# How ours is compiled, by name: the options of `tvm_sparse.compile`.
VARIANTS: dict[str, dict[str, Any]] = {
    "exact": {},
    "tf32": {"allow_tf32": True},
    "float16": {"dtype": "float16"},
    "bfloat16": {"dtype": "bfloat16"},
}
# Ways and precision -> field of a row, ``torch_..._us``.
FIELDS: dict[tuple[Sequence[str], str], str] = {
    **{((GRAPH,), each): each for each in PRECISIONS},
    **{(MODES, each): f"compile_{each}" for each in PRECISIONS},
    ((EAGER,), "tf32"): "eager_tf32",
}


@dataclass(frozen=True)
class Way:
    """How torch runs a network: ``graph``, ``eager`` or a mode of `torch.compile`; a precision and a layout."""

    how: str
    precision: str
    layout: str

    @property
    def name(self) -> str:
        """Of it alone."""
        return f"{self.how} {self.precision} {self.layout}"

    @property
    def is_compiled(self) -> bool:
        """Whether it is `torch.compile`'s."""
        return self.how in MODES

    @property
    def is_quick(self) -> bool:
        """Whether `torch.compile` times no candidates for it."""
        return self.how == MODES[0]


def ways(modes: Sequence[str], precisions: Sequence[str]) -> list[Way]:
    """All of them in these precisions, what is quickly built first; `modes` are those of `torch.compile`."""
    graphs = [Way(GRAPH, precision, layout) for layout in (NCHW, NHWC) for precision in precisions]
    eager = [Way(EAGER, "tf32", layout) for layout in (NCHW, NHWC)]
    return [*graphs, *eager, *(Way(mode, each, NHWC) for mode in modes for each in precisions)]


@dataclass(frozen=True)
class Case:
    """A network whose zeros are of `pattern`, with a row for each of `variants`, all timed in the same turns.

    Attributes
    ----------
    image
        Height and width of images; None: the network's own.
    log
        That kernels are taken from; None: the user's and the shipped ones.
    ways
        Of torch.
    side_by_side
        Whether others are built meanwhile: what building takes then says little, and memory nothing.
    again
        Whether ours is compiled a second time, which says what the kernels that a first time leaves save.
    until_s
        On the monotonic clock: nothing of torch's is compiled after that.
    """

    model: str
    batch: int
    density: float
    pattern: str = "unstructured"
    image: int | None = None
    target: str = "cuda"
    log: Path | None = None
    variants: Sequence[str] = ("exact",)
    ways: Sequence[Way] = ()
    side_by_side: bool = False
    again: bool = True
    until_s: float = float("inf")

    @property
    def name(self) -> str:
        """As messages name it."""
        return f"{self.model}, batch {self.batch}, density {self.density:g}"


@dataclass(frozen=True)
class Rival:
    """A way of torch: microseconds of a call, or why there are none; seconds until it could be called; its error.

    `max_relative_error` is that of the row: from float64, as a share of the largest output.
    """

    way: Way
    time_us: float | None = None
    build_s: float | None = None
    max_relative_error: float | None = None
    failure: str = ""

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self.way) | {key: value for key, value in asdict(self).items() if key != "way"}


def fastest_us(rivals: Sequence[Rival]) -> dict[str, float | None]:
    """The fields ``torch_..._us`` of a row: the fastest of CUDA graphs, and of what is compiled, by precision."""
    found = {}
    for (hows, precision), field in FIELDS.items():
        times_us = [each.time_us for each in rivals if each.way.how in hows and each.way.precision == precision]
        found[f"torch_{field}_us"] = min((each for each in times_us if each is not None), default=None)
    return found


@dataclass(frozen=True)
class Row:
    """Times of one call in microseconds, medians over rounds.

    `pattern` is that of the zeros, `dtype` that of our tensors. Of torch each field has the fastest of a CUDA graph in
    two layouts, or of the modes of `torch.compile`; `rivals` has all, also those that failed. `sum_of_log_us` adds up
    what the decisions' records say, `kernels_in_model_us` what the profiler says of the model's kernels.
    `max_relative_error` is ours, from float64, as a share of the largest output. `ours_exact`: no TF32.
    """

    model: str
    batch: int
    density: float
    pattern: str
    dtype: str
    ours_us: float
    torch_us: Mapping[str, float | None]
    compile_s: float
    cached_compile_s: float | None
    sum_of_log_us: float | None
    kernels_in_model_us: float
    max_relative_error: float
    ours_exact: bool
    ours_3xtf32: int
    memory_bytes: int | None
    rivals: Sequence[Rival]
    layers: Sequence[Mapping[str, Any]]

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        fields = asdict(self) | {"rivals": [each.to_json() for each in self.rivals]}
        return {key: value for name, each in fields.items() for key, value in _flat(name, each).items()}


def _flat(name: str, value: Any) -> dict[str, Any]:
    return dict(value) if name == "torch_us" else {name: value}
