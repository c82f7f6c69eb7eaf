"""Hash the generated source of every kernel of the shipped logs, but for names: a refactoring changes none.

    python scripts/stress/hash_kernels.py -o kernel-sources.txt
    python scripts/stress/hash_kernels.py --check docs/results/kernel-sources.txt

Needs no GPU. A record's kernel is built with a random weight of the record's structure and density. CUDA source and
LLVM's intermediate code are hashed with each name replaced by the number of its first appearance. A line is the
checksum of a record's line, and the hash.
"""

import argparse
import hashlib
import json
import re
import sys
from importlib import resources
from multiprocessing import Pool
from pathlib import Path

from tvm_sparse.codegen.kernel_stages import stages
from tvm_sparse.conv.random_weights import weight_like
from tvm_sparse.conv.sparsity import SparsityPattern
from tvm_sparse.logs.record import TuningRecord
from tvm_sparse.logs.record_codec import CHECKSUM
from tvm_sparse.logs.tuning_log import TuningLog
from tvm_sparse.schedules.lookup import find_space
from tvm_sparse.scheduling.kernel import apply_decisions
from tvm_sparse.target.cpu import available_cores
from tvm_sparse.target.resolve import resolve_target

# Numbers, and names: in LLVM's code those of values, functions and metadata, among which are addresses.
_TOKEN = re.compile(r'"0x[0-9a-f]+|0x[0-9a-fA-F.]+(?:p[+-]?\d+)?\w*|\d[\w.]*|[%@]?[A-Za-z_$][\w$.]*|[%@]"[^"]*"')
# A function or macro that kernels use; TVM sorts them by name.
_HELPER = re.compile(
    r"^(?:__forceinline__ __device__ [^{;]*?\b(?P<function>\w+)\([^)]*\) \{\n.*?^\}\n"
    r"|#define (?P<macro>tvm_sparse_\w+)(?:[^\n]*\\\n)*[^\n]*\n)",
    re.MULTILINE | re.DOTALL,
)


def without_names(source: str, is_llvm: bool = False) -> str:
    """`source` with each name replaced by the number of its first appearance; keywords of CUDA are names too."""
    numbers: dict[str, int] = {}

    def number(token: re.Match[str]) -> str:
        text = token[0]
        if text[0].isdigit() or (is_llvm and text[0] not in '%@"'):
            return text
        return f"{text[0] if is_llvm else ''}n{numbers.setdefault(text, len(numbers))}"

    return _TOKEN.sub(number, source)


def cuda_without_names(source: str) -> str:
    """CUDA source whose helpers come sorted, each called by the hash of what it does, and no other name is left."""
    helpers = {}
    for found in _HELPER.finditer(source):
        name = found["function"] or found["macro"]
        text = without_names(re.sub(rf"\b{name}\b", "itself", found[0]))
        # Begins like a number, so that it is not taken for a name.
        helpers[name] = f"0{hashlib.sha256(text.encode()).hexdigest()[:16]}"
    rest = re.sub(r"\w+", lambda word: helpers.get(word[0], word[0]), _HELPER.sub("", source))
    # Between helpers there may be an empty line.
    return "\n".join(sorted(helpers.values())) + without_names(re.sub(r"\n+", "\n", rest))


def line_of(line: str) -> str:
    """The checksum of a record's line, and the hash of its kernel."""
    record = TuningRecord.from_line(line)
    target, weight = resolve_target(record.target), weight_like(record.spec, record.pattern)
    space = find_space(record.schedule, record.spec, SparsityPattern.of(weight), target)
    kernel = apply_decisions(space, weight, record.chosen)
    kind = target.kind.name
    source = stages(space, kernel, target)[kind]()
    source = without_names(source, is_llvm=True) if kind == "llvm" else cuda_without_names(source)
    return f"{json.loads(line)[CHECKSUM]} {hashlib.sha256(source.encode()).hexdigest()[:16]}"


def lines(checksums: set[str] | None = None) -> list[str]:
    """One line a record that has code of its own, sorted; with `checksums` of these records alone."""
    folder = Path(str(resources.files("tvm_sparse.tuning_logs")))
    records = [record for path in folder.rglob("*.jsonl*") for record in TuningLog(path).records]
    # Large ones first, so that no core waits for one of them alone.
    large_first = sorted(records, key=lambda record: -record.pattern.nnz)
    jobs = [record.to_line() for record in large_first if record.family.is_compiled]
    if checksums is not None:
        jobs = [line for line in jobs if json.loads(line)[CHECKSUM] in checksums]
    with Pool(available_cores(), maxtasksperchild=20) as pool:
        return sorted(pool.imap_unordered(line_of, jobs))


def main() -> int:
    """Write the hashes, or compare them with a file of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, help="file to write")
    parser.add_argument("--check", type=Path, metavar="FILE", help="compare with an earlier output")
    arguments = parser.parse_args()
    if arguments.check is None:
        found = lines()
    else:
        before = {line for line in arguments.check.read_text().splitlines() if not line.startswith("#")}
        # Later records are no matter of the file's; of those that ship no longer nothing is known.
        found = lines({line.split()[0] for line in before})
    if arguments.output:
        arguments.output.write_text("\n".join(found) + "\n")
    if arguments.check is None:
        return 0
    changed = sorted(set(found) - before)
    same = f"{len(found) - len(changed)} of {len(found)} kernels are the same"
    print("\n".join([*changed, f"{same}, {len(before) - len(found)} records ship no longer"]))
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
