"""Compile the libraries of kernels and note those whose sums are registers, in registers.json.

    python tests/codegen/record_registers.py

Needs nvcc on PATH. To compile them all takes two minutes, so `test_kernel_library.py` compiles none again that the same
nvcc has compiled; it fails where a library's source has changed since.
"""

import hashlib
import json
import re
import subprocess
from pathlib import Path

from tvm.target import Target

from tvm_sparse.codegen.cuda import kernel_library
from tvm_sparse.codegen.cuda.cubin import function_bytes, sections
from tvm_sparse.codegen.cuda.nvcc import cuda_compiler
from tvm_sparse.schedules import FAMILIES

RECORD = Path(__file__).with_name("registers.json")
TARGET = Target({"kind": "cuda", "arch": "sm_90"})
# By their names.
LIBRARIES = {library.name: library for family in FAMILIES for library in family.libraries}
# Bytes of one address, which a kernel may keep on its stack.
ADDRESS = 8
# An attribute of a function in a cubin: its stack frame, a symbol and bytes.
FRAME = re.compile(rb"\x04\x11\x08\x00.{4}(.{4})", re.DOTALL)


def recorded() -> dict[str, str]:
    """What was compiled: `source_hash` by library, and ``nvcc``."""
    found: dict[str, str] = json.loads(RECORD.read_text())
    return found


def source_hash(name: str) -> str:
    """Of what nvcc is given for a library, comments apart."""
    code = re.sub(r"//.*", "", kernel_library.source(LIBRARIES[name]))
    return hashlib.sha256(f"{arch(name)}\n{code}".encode()).hexdigest()[:16]


def nvcc_version() -> str:
    """The last line but one of ``nvcc --version``."""
    said = subprocess.run(["nvcc", "--version"], capture_output=True, text=True, check=True).stdout
    return next(line for line in said.splitlines() if "release" in line)


def arch(name: str) -> str:
    """The architecture that a library is compiled for."""
    return kernel_library._arch(LIBRARIES[name], TARGET)


def check(name: str) -> None:
    """Compile a library with the options of users' kernels: sums on the stack make a kernel several times slower."""
    with cuda_compiler(TARGET):
        code = kernel_library._compiled(kernel_library.source(LIBRARIES[name]), arch(name))
    assert function_bytes(code).keys() == set(LIBRARIES[name].names)
    frames = [int.from_bytes(each, "little") for each in FRAME.findall(sections(code)[".nv.info"])]
    assert len(frames) == len(LIBRARIES[name].kernels) and max(frames) <= ADDRESS, f"{name}: {frames}"


def main() -> None:
    found = {"nvcc": nvcc_version()}
    for name in LIBRARIES:
        check(name)
        found[name] = source_hash(name)
    RECORD.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
