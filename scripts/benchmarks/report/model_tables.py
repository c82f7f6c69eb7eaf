"""Tables of the report on whole models."""

import statistics
from collections.abc import Sequence
from itertools import compress

from benchmarks.report.cells import NOTHING, Table
from benchmarks.report.model_rows import WAYS, Network, Row, ratio, sections, speed

# Of torch, the label of a column -> field of a row, ``torch_..._us``.
TORCH = {
    **{"torch float32": "fp32", "TF32": "tf32", "fp16": "fp16"},
    **{
        "torch.compile float32": "compile_fp32",
        "torch.compile TF32": "compile_tf32",
        "torch.compile fp16": "compile_fp16",
    },
}
# Way -> precisions of torch that it is compared with; the first ratio is that of like with like.
AGAINST = {"exact": ("tf32", "fp16"), "TF32 allowed": ("tf32", "fp16"), "float16": ("fp16",), "bfloat16": ("fp16",)}


def tables(networks: Sequence[Network]) -> list[Table]:
    """All in short; then two tables for each pattern and density: times, and what stands behind them."""
    found = [_in_short(networks)]
    for title, shown in sections(networks).items():
        is_first = len(found) == 1
        found += [_times(title, shown, is_first), _behind(title, shown, is_first)]
    return found


def details(networks: Sequence[Network]) -> list[Table]:
    """Layers and kernels of every row."""
    return [
        table
        for each in networks
        for way, row in each.rows.items()
        for table in _layers(f"{each.model}, batch {each.batch}, density {each.density:g}, {each.pattern}, {way}", row)
    ]


def _in_short(networks: Sequence[Network]) -> Table:
    note = (
        "How many times as fast ours is as the fastest of torch in the precision that ours is compared with first: the "
        "geometric mean, the least, and of how many networks."
    )
    rows = []
    for title, shown in sections(networks).items():
        for batch in sorted({each.batch for each in shown}):
            by_way = [
                [speed(each.rows[way], AGAINST[way][0]) for each in shown if each.batch == batch and way in each.rows]
                for way in WAYS
            ]
            rows.append((_title(title), str(batch), *(_mean([each for each in found if each]) for found in by_way)))
    return _measured(Table("In short", note, ("networks", "batch", *(f"ours, {way}" for way in WAYS)), tuple(rows)))


def _mean(ratios: Sequence[float]) -> str:
    if not ratios:
        return NOTHING
    return f"**{statistics.geometric_mean(ratios):.2f}x**, {min(ratios):.2f}x, {len(ratios)}"


def _times(title: str, networks: Sequence[Network], is_first: bool) -> Table:
    note = (
        "Microseconds of a call, medians over rounds, and how many times as fast ours is as the fastest of torch in a "
        "precision: a CUDA graph, or what torch.compile made. Ratios are of times of one row; where ours was timed in "
        "several runs, torch's times are those beside the leftmost of ours. -: not measured. Columns without any time "
        "are left out."
    )
    compared = [f"{way} against {' and '.join(map(_title_of, precisions))}" for way, precisions in AGAINST.items()]
    header = ("model", "batch", *(f"ours, {way}" for way in WAYS), *TORCH, *compared)
    rows = []
    for each in networks:
        ours = (_us(each.rows[way]["ours_us"]) if way in each.rows else NOTHING for way in WAYS)
        torch = (_us(each.first[f"torch_{kind}_us"]) for kind in TORCH.values())
        ratios = (_ratios(each.rows[way], kinds) if way in each.rows else NOTHING for way, kinds in AGAINST.items())
        rows.append((each.model, str(each.batch), *ours, *torch, *ratios))
    return _measured(Table(_title(title), note if is_first else "As above.", header, tuple(rows)))


def _ratios(row: Row, precisions: Sequence[str]) -> str:
    """The ratio to the fastest in each of `precisions`, the first one bold."""
    first, *others = (_times_as_fast(speed(row, each)) for each in precisions)
    return ", ".join([first if first == NOTHING else f"**{first}**", *others])


def _behind(title: str, networks: Sequence[Network], is_first: bool) -> Table:
    note = (
        "Largest error: from float64, as a share of the largest output. In the log: the times of the layers' kernels "
        "in the tuning log, added up, if it has them all. In the model: all kernels by the profiler, also those of "
        "operators that are not tuned, such as pooling. Compile: seconds; kernels that earlier runs and the network's "
        "rows above built are there already. Again: its own as well. Memory: what the model and its first call took of "
        "the GPU. Rows without it were measured side by side: their seconds were taken while others were compiled."
    )
    header = ("model", "batch", "ours", "largest error", "in the log, us", "in the model, us", "log over model")
    rows = [
        (each.model, str(each.batch), way, *_kernels(row), *_compiling(row))
        for each in networks
        for way, row in each.rows.items()
    ]
    table = Table(
        f"{_title(title)}: kernels, compiling and memory",
        note if is_first else "As above.",
        (*header, "compile, s", "again, s", "memory, MiB"),
        tuple(rows),
    )
    return _measured(table)


def _kernels(row: Row) -> tuple[str, ...]:
    logged, in_model = row["sum_of_log_us"], row["kernels_in_model_us"]
    share = ratio(logged, in_model)
    return (
        f"{row['max_relative_error']:.1e}",
        _us(logged),
        _us(in_model),
        NOTHING if share is None else f"{share:.2f}",
    )


def _compiling(row: Row) -> tuple[str, ...]:
    memory, again = row["memory_bytes"], row["cached_compile_s"]
    return (
        f"{row['compile_s']:.1f}",
        NOTHING if again is None else f"{again:.1f}",
        NOTHING if memory is None else f"{memory / 2**20:.0f}",
    )


def _layers(title: str, row: Row) -> list[Table]:
    decided = [each for each in row["layers"] if "kernel" not in each]
    kernels = [each for each in row["layers"] if "kernel" in each]
    return [
        Table(
            f"{title}: layers",
            "What was chosen for each layer, and its time in the tuning log; -: it has none, the time was predicted.",
            ("layer", "schedule", "us"),
            tuple((each["layer"], each["schedule"], _us(each["time_us"])) for each in decided),
        ),
        Table(
            f"{title}: kernels",
            "By the profiler: how often a kernel runs in a call, and its microseconds of all these times together.",
            ("kernel", "times", "us"),
            tuple((each["kernel"], f"{each['number']:g}", _us(each["us"])) for each in kernels),
        ),
    ]


def _title_of(precision: str) -> str:
    return precision.replace("tf32", "TF32")


def _title(section: str) -> str:
    return section[0].upper() + section[1:]


def _us(time_us: float | None) -> str:
    """Four digits, or all those ahead of the point."""
    if not time_us:
        return NOTHING
    return f"{time_us:.0f}" if time_us >= 1000 else f"{time_us:.4g}"


def _times_as_fast(found: float | None) -> str:
    return NOTHING if found is None else f"{found:.2f}x"


def _measured(table: Table) -> Table:
    """The table without the columns in which nothing was measured."""
    keep = [any(cell != NOTHING for cell in column) for column in zip(*table.rows, strict=True)]
    rows = tuple(tuple(compress(row, keep)) for row in table.rows)
    return Table(table.title, table.note, tuple(compress(table.header, keep)), rows, table.detail)
