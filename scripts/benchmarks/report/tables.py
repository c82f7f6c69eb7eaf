"""Tables of the report on Table 2, from a `results.Document` of one GPU."""

from collections.abc import Iterable, Sequence

from benchmarks.comparison import CUDNN_FP32, CUDNN_TF32, EXACT, against, best, crossing, median_us, pick, roof
from benchmarks.report import cold_code
from benchmarks.report.cells import BASELINES, NOTHING, Table, median, time, verdict
from benchmarks.report.details import failures, memory, predictions
from benchmarks.report.search_curves import equal_trials
from benchmarks.results import OURS, Case, Contender, Device, Document, Kind
from tvm_sparse.conv.dtypes import FLOAT32
from tvm_sparse.measure.quartiles import Quartiles

# What the table of all methods shows, in this order.
METHODS = (
    "cudnn-fp32",
    "cudnn-tf32",
    "cudnn-fp16",
    "im2col-cublas-fp32",
    "im2col-cublas-tf32",
    "im2col-cusparse",
    "escort",
    "escort-prepadded",
    *(f"half-{cut}-{precision}" for precision in ("fp32", "tf32") for cut in ("channels", "filters", "both")),
)


def cases_at(cases: Iterable[Case], density: float) -> dict[tuple[int, int], Case]:
    """For each operator and batch the case with most methods at a density."""
    cases = [case for case in cases if density in case.densities]
    timed = (None, density)
    return pick(cases, lambda case: len({c.family for c in case.contenders if c.final and c.density in timed}))


def sweeps(document: Document) -> dict[tuple[int, int], Case]:
    """For each operator and batch the case with most densities of our kernel, two at least."""
    cases = [case for case in document.cases if len(own_densities(case)) > 1]
    return pick(cases, lambda case: len(own_densities(case)))


def by_batch(cases: dict[tuple[int, int], Case]) -> dict[int, list[Case]]:
    """The cases of each batch, the largest first."""
    batches = sorted({batch for _, batch in cases}, reverse=True)
    return {batch: [case for case in cases.values() if case.batch == batch] for batch in batches}


def own_densities(case: Case) -> list[float]:
    """At which our kernel was timed, descending."""
    return [density for density in case.densities if best(case, [OURS], density) is not None]


def tables(document: Document, density: float) -> list[Table]:
    """All tables, in the order of the report."""
    device = document.runs[0].device
    at = cases_at(document.cases, density)
    with_cold_code = [case for case in document.cases if any(each.cold_code_us for each in case.contenders)]
    return [
        *(_verdicts(cases, density, device, number == 0) for number, cases in enumerate(by_batch(at).values())),
        *_cold_code(cases_at(with_cold_code, density), density),
        _methods(at, density),
        _warm(at, density),
        _densities(document),
        memory(at, density),
        equal_trials(document),
        predictions(document, density),
        failures(document),
    ]


def _cold_code(cases: dict[tuple[int, int], Case], density: float) -> list[Table]:
    """None where nothing was timed so."""
    if not cases:
        return []
    methods = _methods(cases, density, "cold_code")
    return [cold_code.verdicts(cases, density), cold_code.layouts(cases, density), methods]


def _verdicts(cases: Sequence[Case], density: float, device: Device, is_first: bool) -> Table:
    note = (
        f"Density {density:g}; inputs and outputs rotate, so that none is in the L2 cache. Median microseconds with "
        "quartiles; ratios are medians over rounds, verdicts those of three quarters of the rounds. TF32 allowed: the "
        f"better of float32 and TF32, torch's default. {_types(cases[0].dtype)} Roof: least time of "
        "the non-zeros' operations or the compulsory bytes. Kernels: folded_cuda, tuned for these weights unless said."
    )
    rows = []
    for case in cases:
        own = best(case, [OURS], density)
        cells = []
        for families in BASELINES.values():
            found = against(case, density, families)
            cells.append(verdict(found, name=found.baseline.family if found and families is EXACT else ""))
        kernel = own.detail.removeprefix("folded_cuda:") if own else NOTHING
        kernel = kernel.removesuffix(", tuned for these weights")
        rows.append((str(case.operator), time(own), *cells, _roof(case, own, density, device), kernel))
    header = ("op", "ours", *BASELINES, "roof", "kernel")
    return Table(f"Batch {cases[0].batch}", note if is_first else "As above.", header, tuple(rows))


def _types(dtype: str) -> str:
    """What ours and others compute in."""
    if dtype == FLOAT32:
        return "Ours and the exact baselines are float32."
    return f"Ours reads and writes {dtype}; the exact baselines are float32."


def _roof(case: Case, own: Contender | None, density: float, device: Device) -> str:
    least = roof(case, density, device)
    if own is None or least is None:
        return NOTHING
    bound = "compute" if least.compute_us > least.memory_us else "memory"
    return f"{100 * least.time_us / median_us(own):.0f}% ({bound})"


def _methods(cases: dict[tuple[int, int], Case], density: float, kind: Kind = "cold") -> Table:
    title, what = ("Every method", "cold") if kind == "cold" else ("Cold code, every method", "cold data and code")
    note = (
        f"Median microseconds of each method's best variant, density {density:g}, {what}. What ends in tf32 or fp16 is "
        "not exact. half-*: dense cuDNN with half the channels, filters, or both: a smaller convolution. "
        "escort-prepadded is not charged for padding its input."
    )
    own = sorted({c.family for case in cases.values() for c in case.contenders if c.family.startswith(OURS)})
    shown = [*own, *(name for name in METHODS if any(best(case, [name], density, kind) for case in cases.values()))]
    rows = [(*key, *(median(best(case, [name], density, kind), kind) for name in shown)) for key, case in _named(cases)]
    return Table(title, note, ("op", "batch", *shown), tuple(rows))


def _named(cases: dict[tuple[int, int], Case]) -> list[tuple[tuple[str, str], Case]]:
    """Each case with the first two cells of its row."""
    return [((str(operator), str(batch)), case) for (operator, batch), case in cases.items()]


def _warm(cases: dict[tuple[int, int], Case], density: float) -> Table:
    note = "The same input and output again and again, in the L2 cache, where both fit its half; cold beside it."
    rows = []
    for key, case in _named(cases):
        found = [best(case, each, density) for each in ([OURS], CUDNN_FP32, CUDNN_TF32)]
        if all(each is not None and each.warm_us for each in found):
            cells = (f"{Quartiles.of(each.warm_us).median:.4g} ({median(each)} cold)" for each in found if each)
            rows.append((*key, *cells))
    header = ("op", "batch", "ours", "cuDNN float32", "cuDNN, TF32 allowed")
    return Table("Warm cache", note, header, tuple(rows), detail=True)


def _densities(document: Document) -> Table:
    note = (
        "Median microseconds of ours by density, and how many times faster than cuDNN with TF32 allowed. Up to: the "
        "density up to which ours is faster, of all densities measured, interpolated with both axes logarithmic; a "
        "network must be at least so sparse for the layer to gain."
    )
    cases = sweeps(document)
    shown = sorted({density for case in cases.values() for density in own_densities(case)}, reverse=True)
    rows = []
    for key, case in _named(cases):
        cells = []
        for density in shown:
            found = against(case, density, CUDNN_TF32)
            ratio = "" if found is None else f" ({found.ratio.median:.2f}x)"
            cells.append(median(best(case, [OURS], density)) + ratio)
        for families in (CUDNN_FP32, CUDNN_TF32):
            cells += [median(best(case, families)), _crossing(document, case, families)]
        rows.append((*key, *cells))
    header = ("op", "batch", *(f"{density:g}" for density in shown))
    return Table("Density", note, (*header, "cuDNN float32", "up to", "cuDNN, TF32 allowed", "up to"), tuple(rows))


def _crossing(document: Document, like: Case, families: Sequence[str]) -> str:
    """The density up to which ours beats the best of `families`, of all cases of one operator and batch."""
    cases = [case for case in document.cases if case.spec == like.spec]
    found = [(density, against(case, density, families)) for case in cases for density in own_densities(case)]
    word, density = crossing((density, each.ratio.median) for density, each in found if each is not None)
    texts = {"below": f"{density:.2g}", "always": f"over {density}"} if density is not None else {}
    return texts.get(word, word)
