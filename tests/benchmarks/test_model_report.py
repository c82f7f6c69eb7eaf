"""The report on whole models: what rows say comes into tables and plots, and broken rows are one sentence."""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report import model_pages, model_plots, model_rows, model_tables
from tvm_sparse.errors import UsageError

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts" / "models" / "report.py"


def make_row(**fields: Any) -> dict[str, Any]:
    """ResNet-50, exact: 100 us for torch's 400 in float32, 200 in TF32 and 150 in fp16."""
    layers = [
        {"layer": "conv1", "schedule": "folded_cuda:async", "time_us": 30.0},
        {"layer": "conv2", "schedule": "data_cuda", "time_us": None},
        {"kernel": "conv<1>_kernel", "number": 2.0, "us": 31.0},
    ]
    row = {
        **{"model": "resnet50", "batch": 1, "density": 0.1, "pattern": "unstructured", "dtype": "float32"},
        **{"ours_us": 100.0, "torch_fp32_us": 400.0, "torch_tf32_us": 200.0, "torch_fp16_us": 150.0},
        **{"torch_compile_fp32_us": None, "torch_compile_tf32_us": None, "torch_compile_fp16_us": None},
        **{"compile_s": 20.0, "cached_compile_s": 5.0},
        **{"sum_of_log_us": 72.0, "kernels_in_model_us": 96.0, "max_relative_error": 2.5e-6, "ours_exact": True},
        **{"ours_3xtf32": 0, "memory_bytes": None, "rivals": [], "layers": layers},
    }
    return {**row, **fields}


ROWS = [
    make_row(),
    make_row(ours_us=80.0, ours_exact=False, max_relative_error=4e-4),
    # Of another run, with times of torch of its own.
    make_row(
        ours_us=50, ours_exact=False, dtype="float16", torch_fp16_us=125.0, sum_of_log_us=None, memory_bytes=3 << 20
    ),
    make_row(batch=64, ours_us=12345.6, torch_compile_tf32_us=160.0, torch_fp16_us=None),
    make_row(pattern="slice64c"),
    make_row(density=0.05, model="vgg16"),
    make_row(density=0.05),
]


def written(folder: Path, rows: Any, name: str = "rows.json") -> Path:
    path = folder / name
    path.write_text(json.dumps({"rows": rows}))
    return path


@pytest.fixture
def networks(tmp_path: Path) -> list[model_rows.Network]:
    return model_rows.load([written(tmp_path, ROWS)])


def columns(table: Any, row: int) -> dict[str, str]:
    """Header -> cell of a row."""
    return dict(zip(table.header, table.rows[row], strict=True))


def test_networks_are_in_order(networks: list[model_rows.Network]) -> None:
    """Unstructured ones first, by density, models as in the file, batches."""
    assert [(each.pattern, each.density, each.model, each.batch) for each in networks] == [
        ("unstructured", 0.05, "resnet50", 1),
        ("unstructured", 0.05, "vgg16", 1),
        ("unstructured", 0.1, "resnet50", 1),
        ("unstructured", 0.1, "resnet50", 64),
        ("slice64c", 0.1, "resnet50", 1),
    ]
    assert [list(each.rows) for each in networks][1:4] == [["exact"], ["exact", "TF32 allowed", "float16"], ["exact"]]
    assert list(model_rows.sections(networks)) == [
        "density 0.05, unstructured",
        "density 0.1, unstructured",
        "density 0.1, slice64c",
    ]


def test_times_and_ratios(networks: list[model_rows.Network]) -> None:
    """Each ratio is of the row's own times; what is not measured is a dash, or no column."""
    found = {table.title: table for table in model_tables.tables(networks)}
    table = found["Density 0.1, unstructured"]
    first, second = columns(table, 0), columns(table, 1)
    assert first["ours, exact"] == "100" and first["ours, TF32 allowed"] == "80" and first["ours, float16"] == "50"
    assert (first["torch float32"], first["TF32"], first["fp16"]) == ("400", "200", "150")
    assert first["exact against TF32 and fp16"] == "**2.00x**, 1.50x"
    assert first["TF32 allowed against TF32 and fp16"] == "**2.50x**, 1.88x"
    assert first["float16 against fp16"] == "**2.50x**"
    assert first["torch.compile TF32"] == "-" and second["torch.compile TF32"] == "160"
    # Five digits stay as they are. The fastest of torch counts, here what it compiled.
    assert second["ours, exact"] == "12346" and second["fp16"] == "-"
    assert second["exact against TF32 and fp16"] == "**0.01x**, -"
    assert "ours, bfloat16" not in table.header
    assert "torch.compile TF32" not in found["Density 0.05, unstructured"].header


def test_kernels_compiling_and_memory(networks: list[model_rows.Network]) -> None:
    found = {table.title: table for table in model_tables.tables(networks)}
    table = found["Density 0.1, unstructured: kernels, compiling and memory"]
    assert [row[2] for row in table.rows] == ["exact", "TF32 allowed", "float16", "exact"]
    exact, half = columns(table, 0), columns(table, 2)
    assert exact["largest error"] == "2.5e-06" and columns(table, 1)["largest error"] == "4.0e-04"
    assert (exact["in the log, us"], exact["in the model, us"], exact["log over model"]) == ("72", "96", "0.75")
    assert (exact["compile, s"], exact["again, s"]) == ("20.0", "5.0")
    assert (half["in the log, us"], half["log over model"]) == ("-", "-")
    assert (exact["memory, MiB"], half["memory, MiB"]) == ("-", "3")
    assert "memory, MiB" not in found["Density 0.1, slice64c: kernels, compiling and memory"].header


def test_the_last_of_equal_rows_counts(tmp_path: Path) -> None:
    paths = [written(tmp_path, ROWS[:2], "a.json"), written(tmp_path, [make_row(ours_us=25.0)], "b.json")]
    (network,) = model_rows.load(paths)
    assert [row["ours_us"] for row in network.rows.values()] == [25.0, 80.0]


def test_the_plots(monkeypatch: pytest.MonkeyPatch, networks: list[model_rows.Network]) -> None:
    drawn = []
    monkeypatch.setattr(model_plots, "speed_bars", lambda groups, speeds, *_: drawn.append((groups, speeds)) or "")
    titles = [title for title, _ in model_plots.plots(networks)]
    assert titles[1:] == [
        f"Speed against torch's fastest in TF32, density 0.1, {each}" for each in ("unstructured", "slice64c")
    ]
    groups, speeds = drawn[1]
    assert groups == ["resnet50\nbatch 1", "resnet50\nbatch 64"]
    # Of each label the bars at batch 1 and 64.
    assert {label: pytest.approx(bars, nan_ok=True) for label, bars in speeds.items()} == {
        "ours, exact float32": [2.0, 160 / 12345.6],
        "ours, TF32 allowed": [2.5, float("nan")],
        "torch, CUDA graph, TF32": [1.0, 160 / 200],
        "torch's fastest in fp16": [200 / 150, float("nan")],
    }


def test_the_pages(tmp_path: Path) -> None:
    """Markdown has the tables; HTML has them, a plot for each pattern and density, and every row's layers."""
    path = written(tmp_path, ROWS)
    first, again = (model_pages.write([path], tmp_path / each, "new", True) for each in ("first", "again"))
    assert [each.read_bytes() for each in first] == [each.read_bytes() for each in again]
    text, page = (each.read_text() for each in first)
    assert f"    python scripts/models/report.py {path} --name new\n" in text
    assert text.count("\n## ") == 7 == page.count("<h2>D")
    assert "conv1" not in text
    assert page.count("<svg") == 3 and page.count("<details>") == 2 * len(ROWS)
    assert "<summary>resnet50, batch 1, density 0.1, unstructured, float16: layers</summary>" in page
    assert '<td class="">conv&lt;1&gt;_kernel</td>' in page
    # A label without bars is not in the legend.
    plots = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert ["ours, TF32 allowed" in each for each in plots] == [False, True, False]
    # Self-contained: addresses are only the names of XML's and of metadata's vocabularies.
    assert not re.search(r"<script|<link|<img|(src|href)=.?https?:|url\(.?https?:", page)


def test_the_page_in_docs_is_made_again_from_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    (page,) = model_pages.write([Path("docs/results/models-h200.json")], tmp_path, "models-h200", False)
    assert page.read_text() == Path("docs/results", page.name).read_text()
    assert list(tmp_path.iterdir()) == [page]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda row: row.pop("torch_tf32_us"), "row 2 lacks torch_tf32_us"),
        (lambda row: row.update(ours_us="fast"), "ours_us of row 2 is of another type, found str; allowed: a number"),
        (lambda row: row.update(ours_us=None), "found NoneType; allowed: a number"),
        (lambda row: row.update(batch=True), "found bool; allowed: a whole number"),
        (lambda row: row.update(dtype="int8"), "dtype of row 2 is unknown, found int8; allowed: float32, float16"),
        (lambda row: row["layers"].append(3), "an entry of layers of row 2 is no object"),
        (lambda row: row["layers"][2].pop("us"), "an entry of layers of row 2 lacks us"),
        (lambda row: row["layers"][0].pop("time_us"), "an entry of layers of row 2 lacks time_us"),
    ],
)
def test_a_broken_row_is_one_sentence(tmp_path: Path, change: Any, said: str) -> None:
    broken = make_row()
    change(broken)
    with pytest.raises(UsageError, match=rf"rows\.json: .*{re.escape(said)}"):
        model_rows.load([written(tmp_path, [make_row(), broken])])


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"rows": []}', '{"rows": {}}', '{"rows": [1]}', "\xff"])
def test_a_file_without_rows_is_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(UsageError, match=r"rows\.json: .*bench_gpu\.py"):
        model_rows.load([path])


def test_the_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It writes where it is told to, and what it cannot read is one sentence and an exit code."""
    found = tmp_path / "found"
    codes = []
    for path in (written(tmp_path, ROWS), tmp_path / "missing.json"):
        monkeypatch.setattr(
            sys, "argv", [str(SCRIPT), str(path), "--name", "new", "--results", str(found), "--no-html"]
        )
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(SCRIPT), run_name="__main__")
        codes.append(end.value.code)
    said = capsys.readouterr()
    assert codes == [0, 2]
    assert said.out == f"written: {found / 'new.md'}\n" and [each.name for each in found.iterdir()] == ["new.md"]
    assert len(said.err.splitlines()) == 1 and "missing.json: cannot be read" in said.err


def test_a_report_needs_no_torch(tmp_path: Path) -> None:
    """Rows are read as plain mappings, not by the module that measures."""
    words = [str(SCRIPT), str(written(tmp_path, ROWS)), "--name", "new", "--results", str(tmp_path), "--no-html"]
    without = "import runpy, sys; sys.modules['torch'] = None; runpy.run_path(sys.argv[0], run_name='__main__')"
    code = f"import sys; sys.argv = sys.argv[1:]; {without}"
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "new.md").is_file()
