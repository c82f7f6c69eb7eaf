"""Make the report on whole models from what `bench_gpu.py` measured; needs no GPU and no torch.

    python scripts/models/report.py docs/results/models-h200.json --name models-h200

Several files of one GPU become one report: of rows of the same network, batch, density, pattern and precision the last
counts. Writes ``<name>.md`` and ``<name>.html``, one self-contained file with plots, and with the layers and kernels
of every row (needs matplotlib and jinja2, extra ``report``).
"""

import argparse
import sys
from pathlib import Path

from benchmarks.report.model_pages import write
from benchmarks.report.model_rows import rows_of
from benchmarks.report.row_file import RowFile
from tvm_sparse.errors import TvmSparseError

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


def main() -> int:
    """Write the report that the command line asks for; errors of the user are one sentence."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("measured", type=Path, nargs="+", metavar="FILE", help="of bench_gpu.py")
    parser.add_argument("--name", required=True, help="of the files to write, such as models-h200")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder to write to (default: docs/results)")
    parser.add_argument("--no-html", action="store_true", help="write Markdown only")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="write the rows of all files to this one, too")
    options = parser.parse_args()
    try:
        if options.rows is not None:
            RowFile(options.rows).add(row for path in options.measured for row in rows_of(path))
        for path in write(options.measured, options.results, options.name, not options.no_html):
            print(f"written: {path}")
    except TvmSparseError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
