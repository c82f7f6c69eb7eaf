"""Tables of the report on Table 2 with cold code: ratios to cuDNN and the best exact baseline, beside warm code's."""

import math
from collections.abc import Sequence

from benchmarks.baselines import cudnn
from benchmarks.comparison import Comparison, against, best
from benchmarks.report.cells import BASELINES, NOTHING, Table, median, time, verdict
from benchmarks.results import OURS, Case, Contender
from tvm_sparse.measure.timing import speedup

Cases = dict[tuple[int, int], Case]
# Label -> family and variant.
LAYOUTS = {
    f"{label} {layout}": (f"cudnn-{precision}", layout)
    for label, precision in (("float32", "fp32"), ("TF32", "tf32"), ("float16", "fp16"))
    for layout in cudnn.LAYOUTS
}


def verdicts(cases: Cases, density: float) -> Table:
    """Ours against the best of each precision, with cold and with warm code."""
    note = (
        f"Density {density:g}. Data as above, and cold code: ahead of each call runs a kernel whose 512 KB of code "
        "displace all other from the instruction caches of the multiprocessors; its own time is taken off. In brackets "
        "ratios with warm code, as above. The best variants of both may differ; that with cold code is said. Last come "
        "geometric means of the ratios."
    )
    rows, ratios = [], dict[tuple[int, str], list[tuple[float, float]]]()
    for (operator, batch), case in cases.items():
        own, warm = best(case, [OURS], density, "cold_code"), best(case, [OURS], density)
        cells = [f"{time(own, 'cold_code')}, warm {median(warm)}"]
        for name, families in BASELINES.items():
            pair = against(case, density, families, "cold_code"), against(case, density, families)
            cells.append(_both(*pair))
            if pair[0] is not None and pair[1] is not None:
                ratios.setdefault((batch, name), []).append((pair[0].ratio.median, pair[1].ratio.median))
        rows.append((str(operator), str(batch), *cells))
    for batch in sorted({batch for _, batch in cases}):
        means = (_means(ratios.get((batch, name), [])) for name in BASELINES)
        rows.append(("all", str(batch), NOTHING, *means))
    return Table("Cold code", note, ("op", "batch", "ours", *BASELINES), tuple(rows))


def _both(cold: Comparison | None, warm: Comparison | None) -> str:
    """The comparison with cold code, and the ratio with warm code in brackets."""
    if cold is None or warm is None:
        return NOTHING
    name = f"{cold.baseline.family.removeprefix('cudnn-')} {cold.baseline.variant}".rstrip()
    return f"{verdict(cold, 'cold_code', name)} ({warm.ratio.median:.2f}x)"


def _means(ratios: Sequence[tuple[float, float]]) -> str:
    """Geometric means of ratios with cold and with warm code."""
    if not ratios:
        return NOTHING
    cold, warm = (math.exp(math.fsum(map(math.log, each)) / len(each)) for each in zip(*ratios, strict=True))
    return f"**{cold:.2f}x** ({warm:.2f}x)"


def layouts(cases: Cases, density: float) -> Table:
    """Ours against each layout of cuDNN."""
    note = (
        f"Density {density:g}. Median microseconds of cuDNN in each layout with cold code, and how many times faster "
        "ours is. -: not timed so, as with warm code it took over 1.1 times as long as the other layout, or "
        "was not timed."
    )
    rows = []
    for (operator, batch), case in cases.items():
        own = best(case, [OURS], density, "cold_code")
        variants = {(each.family, each.variant): each for each in case.contenders if each.final and each.cold_code_us}
        cells = (_ratio(own, variants.get(key)) for key in LAYOUTS.values())
        rows.append((str(operator), str(batch), median(own, "cold_code"), *cells))
    return Table("Cold code, each layout of cuDNN", note, ("op", "batch", "ours", *LAYOUTS), tuple(rows))


def _ratio(own: Contender | None, baseline: Contender | None) -> str:
    if own is None or baseline is None:
        return NOTHING
    ratio = speedup(own.cold_code_us, baseline.cold_code_us).median
    return f"{median(baseline, 'cold_code')} ({ratio:.2f}x)"
