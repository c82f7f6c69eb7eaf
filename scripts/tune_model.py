"""Tune one of the random models of `make_models`, or a model file, into a log; run it again to continue.

    python scripts/tune_model.py resnet50 --density 0.1 --trials 32 -o tuning_logs/znver5/resnet50.jsonl
    python scripts/tune_model.py my.onnx -o my.jsonl

For files this does what ``tvm-sparse tune`` does; that command has more options.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import make_models
import onnx

from tvm_sparse import session
from tvm_sparse.display import Progress, progress_console
from tvm_sparse.errors import TvmSparseError
from tvm_sparse.tuner import TuneOptions


def main() -> int:
    """Tune what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help=f"{', '.join(make_models.MODELS)}, or the path of an .onnx or .pt2 file")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="LOG", help="log to write or continue")
    parser.add_argument("--target", help="llvm, cuda or JSON (default: llvm, all cores)")
    parser.add_argument("--trials", type=int, default=32, help="candidates a layer (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of weights and search (default: %(default)s)")
    parser.add_argument("--density", type=float, default=0.1, help="of a random model (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=1, help="of a random model (default: %(default)s)")
    parser.add_argument("--image", type=int, default=224, help="pixels along a side (default: %(default)s)")
    arguments = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        source = Path(arguments.model)
        if arguments.model in make_models.MODELS:
            options = make_models.Options(arguments.density, arguments.batch, arguments.image, seed=arguments.seed)
            source = Path(folder) / f"{arguments.model}.onnx"
            onnx.save(make_models.MODELS[arguments.model](options), source)
        try:
            session.tune(
                source,
                None,
                arguments.target,
                arguments.output,
                arguments.trials,
                options=TuneOptions(seed=arguments.seed),
                progress=Progress(progress_console()),
            )
        except TvmSparseError as error:
            print(error, file=sys.stderr)
            return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
