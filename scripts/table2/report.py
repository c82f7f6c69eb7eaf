"""Make the report on Table 2 from what `bench_gpu.py` measured; needs no GPU.

    python scripts/table2/report.py table2.json.xz sweep.json.xz --name table2-h200
    python scripts/table2/report.py table2.json.xz --tuning XGBoost=tuned.jsonl --tuning random=random.jsonl --name new

Several results of one GPU become one report: tables at one density come from the case with most methods, those over
densities from the case with most densities, and no ratio is taken across cases. ``--tuning LABEL=LOG`` adds how a
search went, from a tuning log that holds all its trials. Writes ``<name>.md``, ``<name>.html`` (one self-contained file
with plots; needs matplotlib and jinja2, extra ``report``) and ``<name>.json.xz``, from which alone the same report is
made again. Warm times and what could not be timed are on the page alone.
"""

import argparse
from pathlib import Path

import command_line

from benchmarks.report.pages import load, write


def main() -> None:
    """Write the report that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=Path, nargs="+", help="files of bench_gpu.py, or of an earlier report")
    parser.add_argument("--tuning", action="append", default=[], metavar="LABEL=LOG", help="a search; may be repeated")
    parser.add_argument("--density", type=float, default=0.1, help="of the tables at one density (default: 0.1)")
    parser.add_argument("--name", required=True, help="of the files to write, such as table2-h200")
    parser.add_argument(
        "--results", type=Path, default=command_line.RESULTS, help="folder to write to (default: docs/results)"
    )
    parser.add_argument("--no-html", action="store_true", help="write Markdown and JSON only")
    options = parser.parse_args()
    document = load(options.measured, options.tuning)
    for path in write(document, options.density, options.results, options.name, not options.no_html):
        print(f"written: {path}")


if __name__ == "__main__":
    command_line.end_as(main)
