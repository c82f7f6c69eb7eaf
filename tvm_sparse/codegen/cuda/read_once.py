"""Reads of CUDA source that nothing written in it can change, as variables: each read once, ahead of its use.

A kernel's pointers say that what they point to is their own (``__restrict__``), and compilers read ahead of writes. A
device function has its pointers from elsewhere, so each read of bias or residual waits for the write of the output
before it: 64 or 128 of them one after the other took as long as all of the arithmetic.
"""

import re

# The function that a read becomes a call of, and its definition.
READ = "tvm_sparse_read"
DEFINITION = f"""
template <typename T> __device__ __forceinline__ T {READ}(const T* at) {{
  T value;
  if constexpr (sizeof(T) == 4)
    asm("ld.global.nc.b32 %0, [%1];" : "=r"(reinterpret_cast<unsigned&>(value)) : "l"(at));
  else
    asm("ld.global.nc.b16 %0, [%1];" : "=h"(reinterpret_cast<unsigned short&>(value)) : "l"(at));
  return value;
}}
"""
# A condition inside of an expression.
_GUARD = re.compile(r"\?|&&|\|\|")


def read_once(code: str, kind: str, name: str) -> str:
    """`code` with the elements of `name`, each a `kind`, in variables; `code` itself where it does anything else to it.

    A variable is declared before the line that reads it first, and is seen as far as braces let it. Lines with a
    condition inside stay as they are: what it guards may lie behind the array's end.
    """
    uses = len(re.findall(rf"\b{name}\b", code))
    if uses != len(re.findall(rf"\b{name}\[", code)) or re.search(rf"^\s*{name}\[|&\(?{name}\[", code, re.MULTILINE):
        return code
    lines: list[str] = []
    # Of each open brace: element -> variable.
    scopes: list[dict[str, str]] = [{}]
    for before in code.splitlines(keepends=True):
        line = before
        for element in [] if _GUARD.search(before) else _elements(before, name):
            known = next((scope[element] for scope in reversed(scopes) if element in scope), None)
            if known is None:
                if line.lstrip().startswith("}"):
                    continue
                known = scopes[-1][element] = f"{name}_read_{len(lines)}"
                lines.append(f"{kind} {known} = {READ}(&{element});\n")
            line = line.replace(element, known)
        for brace in re.findall("[{}]", line):
            if brace == "{":
                scopes.append({})
            elif len(scopes) > 1:
                scopes.pop()
        lines.append(line)
    return "".join(lines)


def _elements(line: str, name: str) -> list[str]:
    """The elements of `name` in a line, as they are written, each once."""
    found = []
    for start in re.finditer(rf"\b{name}\[", line):
        depth, end = 1, start.end()
        while depth:
            depth += {"[": 1, "]": -1}.get(line[end], 0)
            end += 1
        found.append(line[start.start() : end])
    return list(dict.fromkeys(found))
