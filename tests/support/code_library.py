"""A library whose function ``main`` is as much straight-line code as asked for, to be timed in place of a kernel."""

import subprocess

# In TVM's calling convention; it returns where its code is.
SOURCE = """
#include <stdint.h>
typedef struct {{ int32_t type; uint32_t zero; int64_t value; }} Any;
int __tvm_ffi_main(void* self, Any* arguments, int32_t count, Any* result) {{
  __asm__ volatile(".rept {instructions}\\n movaps %%xmm0, %%xmm1\\n .endr\\n" ::: "xmm1");
  result->type = 1;
  result->zero = 0;
  result->value = (int64_t)(intptr_t)&__tvm_ffi_main;
  return 0;
}}
"""


def write_library(path, code_bytes):
    """Compile the library, for x86-64; gives its path as text."""
    source = path.with_suffix(".c")
    source.write_text(SOURCE.format(instructions=code_bytes // 3))
    subprocess.run(["gcc", "-O1", "-shared", "-fPIC", source, "-o", path], check=True)
    return str(path)
