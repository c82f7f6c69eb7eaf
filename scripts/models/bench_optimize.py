"""How long `tvm-sparse optimize` takes without any log of this machine, and how fast the model is then.

python scripts/models/bench_optimize.py resnet18 --minutes 0,3 -o optimize.json

Each time begins in an empty folder of its own for logs and kernels. Sides run in turns with the same threads, all that
this process may use; outputs are compared first (`tvm-sparse bench`). Nothing else should run meanwhile.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import onnx

from benchmarks.networks import MODELS, Options
from tvm_sparse.schedules.lookup import family_of
from tvm_sparse.target.cpu import available_cores, cpu_name


def command(home: str, *words: str) -> str:
    """What a command of tvm-sparse prints to standard output, with `home` for its logs and kernels."""
    environment = {**os.environ, "TVM_SPARSE_HOME": home}
    whole = [sys.executable, "-m", "tvm_sparse", *words]
    return subprocess.run(whole, cwd=home, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout


def case(model: Path, minutes: str) -> dict[str, Any]:
    """Seconds that optimising takes, all included, and the model against dense kernels and ONNX Runtime."""
    with tempfile.TemporaryDirectory() as home:
        start_s = time.monotonic()
        found = json.loads(command(home, "optimize", str(model), "-o", "out.sparse", "--minutes", minutes, "--json"))
        taken_s = time.monotonic() - start_s
        rows = json.loads(command(home, "bench", str(model), "--json"))["times"]
    times = {row["name"]: {"time_us": row["time_us"]["median"], "speedup": row["speedup"]} for row in rows}
    sparse = sum(not family_of(row["schedule"]).is_dense for row in found["layers"])
    layers = {"layers": len(found["layers"]), "sparse_layers": sparse}
    return {"minutes": float(minutes), "seconds": taken_s, "trials": found["trials"], **layers, "times": times}


def main() -> None:
    """Print and write what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--density", type=float, default=0.1)
    parser.add_argument("--minutes", default="0,3", help="with commas between them (default: %(default)s)")
    parser.add_argument("-o", "--output", type=Path, required=True, help="JSON file to write")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, f"{arguments.model}.onnx")
        onnx.save(MODELS[arguments.model](Options(density=arguments.density)), path)
        cases = []
        for minutes in arguments.minutes.split(","):
            cases.append(case(path, minutes))
            print(json.dumps(cases[-1]), flush=True)
    machine = {"cpu": cpu_name(), "threads": available_cores()}
    result = {"model": arguments.model, "density": arguments.density, **machine, "cases": cases}
    arguments.output.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
