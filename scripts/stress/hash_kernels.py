"""Hash the generated source of every kernel of the shipped logs, but for names: a refactoring changes none.

    python scripts/stress/hash_kernels.py -o kernel-sources.txt
    python scripts/stress/hash_kernels.py --check docs/results/kernel-sources.txt

Needs no GPU. A record's kernel is built with a random weight of the record's structure and density. CUDA source and
LLVM's intermediate code are hashed with each name replaced by the number of its first appearance.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
from importlib import resources
from multiprocessing import Pool
from pathlib import Path

from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.target.cpu import available_cores

# Numbers, and names: in LLVM's code those of values, functions and metadata, among which are addresses.
_TOKEN = re.compile(r'"0x[0-9a-f]+|0x[0-9a-fA-F.]+(?:p[+-]?\d+)?\w*|\d[\w.]*|[%@]?[A-Za-z_$][\w$.]*|[%@]"[^"]*"')


def without_names(source: str, is_llvm: bool) -> str:
    """`source` with each name replaced by the number of its first appearance; keywords of CUDA are names too."""
    numbers: dict[str, int] = {}

    def number(token: re.Match[str]) -> str:
        text = token[0]
        if text[0].isdigit() or (is_llvm and text[0] not in '%@"'):
            return text
        return f"{text[0] if is_llvm else ''}n{numbers.setdefault(text, len(numbers))}"

    return _TOKEN.sub(number, source)


def line_of(job: tuple[str, str]) -> str:
    """The hash of a record's kernel, and which record of which log that is."""
    from tvm_sparse.codegen import lowering
    from tvm_sparse.conv.random_weights import weight_like
    from tvm_sparse.schedules import make_kernel
    from tvm_sparse.target.resolve import resolve_target

    log, record = job[0], TuningRecord.from_line(job[1])
    target = resolve_target(record.target)
    weight = weight_like(record.spec, record.pattern)
    module = lowering.build(make_kernel(record.schedule, record.spec, weight, target, record.chosen).func, target)
    is_llvm = target.kind.name == "llvm"
    sources = [module.inspect_source("ll")] if is_llvm else [each.inspect_source() for each in module.imports]
    digest = hashlib.sha256(without_names("\n".join(sources), is_llvm).encode()).hexdigest()[:16]
    weight_digest = record.pattern.value_digest[:8]
    return f"{digest} {log} {record.spec.key} {weight_digest} {record.schedule} {record.timestamp} {record.times_us[0]}"


def lines() -> list[str]:
    """One line a record, sorted by what follows the hash."""
    folder = Path(str(resources.files("tvm_sparse.tuning_logs")))
    paths = sorted(path for path in folder.rglob("*.jsonl*"))
    jobs = [(str(path.relative_to(folder)), record.to_line()) for path in paths for record in TuningLog(path).records]
    with Pool(available_cores(), maxtasksperchild=20) as pool:
        return sorted(pool.imap_unordered(line_of, jobs), key=lambda line: line.partition(" ")[2])


def main() -> int:
    """Write the hashes, or compare them with a file of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="file to write")
    parser.add_argument("--check", type=Path, metavar="FILE", help="compare with an earlier output")
    arguments = parser.parse_args()
    found = lines()
    if arguments.output:
        arguments.output.write_text("\n".join(found) + "\n")
    if arguments.check is None:
        return 0
    before = {line for line in arguments.check.read_text().splitlines() if not line.startswith("#")}
    changed = sorted(before ^ set(found), key=lambda line: line.partition(" ")[2])
    print("\n".join([*changed, f"{len(before & set(found))} of {len(before | set(found))} kernels are the same"]))
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
