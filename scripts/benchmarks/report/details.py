"""Tables of the report on Table 2 beside the times: memory, predictions and what failed."""

import math

from benchmarks.comparison import CUDNN_TF32, best, median_us, non_zeros
from benchmarks.report.cells import NOTHING, Table, kib
from benchmarks.results import OURS, Case, Document
from tvm_sparse.scheduling.cuda.cudnn_time import cudnn_us
from tvm_sparse.target.gpu import capability_of, card


def memory(cases: dict[tuple[int, int], Case], density: float) -> Table:
    """Code and weight bytes of our kernels."""
    note = (
        f"Density {density:g}. Bytes of GPU code made for the weight, and of any weight arrays beside it, against the "
        "dense weight and compressed sparse rows with 32-bit indices (8 bytes a non-zero, 4 a filter)."
    )
    rows: dict[int, dict[str, str]] = {}
    for (operator, batch), case in sorted(cases.items(), reverse=True):
        own = best(case, [OURS], density)
        if own is None or own.density is None:
            continue
        row = rows.setdefault(operator, {})
        row["dense"] = kib(4 * math.prod(case.spec.weight_shape))
        row["sparse rows"] = kib(8 * non_zeros(case, density) + 4 * (case.spec.k + 1))
        row[f"code, batch {batch}"] = NOTHING if own.code_bytes is None else kib(own.code_bytes)
        if own.weight_bytes:
            row[f"arrays, batch {batch}"] = kib(own.weight_bytes)
    header = list(dict.fromkeys(name for row in rows.values() for name in row))
    cells = tuple((str(each), *(rows[each].get(name, NOTHING) for name in header)) for each in sorted(rows))
    return Table("Memory", note, ("op", *header), cells)


def predictions(document: Document, shown: float) -> Table:
    """Predicted times and their ratio at density `shown`, and how often the winner is predicted."""
    device = document.runs[0].device
    gpu = card(capability_of(device.arch), device.name)
    rows: dict[tuple[int, int], tuple[str, ...]] = {}
    right: dict[tuple[int, int, float], bool] = {}
    for case, density in [(each, density) for each in document.cases for density in each.densities]:
        own, baseline = best(case, [OURS], density), best(case, CUDNN_TF32, density)
        key = (case.operator, case.batch, density)
        if own is None or baseline is None or own.predicted_us is None or key in right:
            continue
        predicted = (own.predicted_us, cudnn_us(case.spec, gpu))
        ratios = (predicted[1] / predicted[0], median_us(baseline) / median_us(own))
        right[key] = (ratios[0] > 1) == (ratios[1] > 1)
        if density == shown:
            rows[key[:2]] = (*(f"{each:.4g}" for each in predicted), *(f"{each:.2f}x" for each in ratios))
    here, all_ = sum(right[operator, batch, shown] for operator, batch in rows), sum(right.values())
    note = (
        f"Density {shown:g}. What `inspect --target cuda` predicts from the pattern alone, for the best of the default "
        f"decisions, and the ratio of measured medians, cold, of tuned kernels. The winner is predicted in {here} of "
        f"{len(rows)} cases, in {all_} of {len(right)} over all densities."
    )
    header = ("op", "batch", "ours, us", "cuDNN with TF32, us", "ratio", "measured ratio")
    return Table("Prediction", note, header, tuple((*map(str, key), *rows[key]) for key in sorted(rows)))


def failures(document: Document) -> Table:
    """What was not timed: one row for all cases and methods of which the same is said."""
    note = "Contenders without times, and the cause; cases are operator/batch."
    same: dict[tuple[str, str], tuple[dict[str, None], dict[str, None]]] = {}
    for case, each in [(where, each) for where in document.cases for each in where.contenders]:
        if each.status != "ok":
            cases, families = same.setdefault((each.status, " ".join(each.cause.split())[-200:]), ({}, {}))
            cases[f"{case.operator}/{case.batch}"] = families[each.family] = None
    rows = tuple((" ".join(cases), " ".join(families), *key) for key, (cases, families) in same.items())
    return Table("Not timed", note, ("cases", "contender", "status", "cause"), rows, detail=True)
