"""Bias and residual of a separately compiled function: read once, ahead of the writes."""

import re
import shutil
import subprocess

import pytest

from tvm_sparse.codegen.cuda.read_once import DEFINITION, READ, read_once

CODE = """  if (thread < 7) {
    float value;
    if ((acc_0 + bias[(tile * 2)]) < 0.0f) {
      value = 0.0f;
    } else {
      value = (acc_0 + bias[(tile * 2)]);
    }
    out[index[0]] = value;
  }
  out[1] = (bias[(tile * 2)] + bias[at[1]]);
"""
READ_ONCE = f"""  if (thread < 7) {{
    float value;
float bias_read_2 = {READ}(&bias[(tile * 2)]);
    if ((acc_0 + bias_read_2) < 0.0f) {{
      value = 0.0f;
    }} else {{
      value = (acc_0 + bias_read_2);
    }}
    out[index[0]] = value;
  }}
float bias_read_10 = {READ}(&bias[(tile * 2)]);
float bias_read_11 = {READ}(&bias[at[1]]);
  out[1] = (bias_read_10 + bias_read_11);
"""


def test_each_element_is_read_once_in_each_scope() -> None:
    """Not behind an ``else``, where the line before has no place for it, but before the ``if``."""
    assert read_once(CODE, "float", "bias") == READ_ONCE


@pytest.mark.parametrize("use", ["if (i < n && bias[i] < 0.0f) {}", "v = (i < n) ? bias[i] : 0.0f;"])
def test_what_an_expression_guards_is_read_where_it_is(use: str) -> None:
    assert read_once(f"{use}\n", "float", "bias") == f"{use}\n"


@pytest.mark.parametrize("use", ["bias[0] = 1.0f;", "copy(&(bias[4]));", "copy(&bias[4]);", "copy(bias);"])
def test_what_is_written_or_passed_on_stays(use: str) -> None:
    assert read_once(f"{CODE}{use}\n", "float", "bias") == f"{CODE}{use}\n"
    assert read_once(CODE, "float", "out") == CODE


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc on PATH to compile CUDA code")
def test_reads_stand_in_no_order_with_writes(tmp_path) -> None:
    """They are reads of what is never written, ``.nc``, and a ReLU between them makes no branch."""
    both = "((float)in[{0}] + (float)x[{0}])"
    step = f"if ({both} < 0) {{{{ v = 0; }}}} else {{{{ v = {both}; }}}}\nout[{{0}}] = v;\n"
    body = "".join(step.format(i) for i in range(9))
    for kind in ("float", "__half"):
        code = read_once(read_once(body, kind, "in"), kind, "x")
        head = f"#include <cuda_fp16.h>\n{DEFINITION}\n__device__ void f({kind}* out, {kind}* in, {kind}* x)"
        source = tmp_path / "unit.cu"
        source.write_text(f"{head} {{ float v; {code} }}\n")
        command = ["nvcc", "-arch=sm_90", "-rdc=true", "-ptx", "-o", str(tmp_path / "unit.ptx"), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        ptx = (tmp_path / "unit.ptx").read_text()
        assert ptx.count("ld.global.nc.b32" if kind == "float" else "ld.global.nc.b16") == 18
        # Half's conversions are assembly, which no compiler moves.
        assert kind != "float" or not re.search(r"\bbra\b", ptx)
