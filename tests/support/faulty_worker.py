"""A worker whose kernels misbehave, to be run in place of `tvm_sparse.measure.worker_main`.

A candidate's schedule says what it does: ``build exits``, ``run hangs``; any other builds and runs well. The schedules
of a real search are told what to do by the environment variable FAULTS, JSON from schedule names to such texts. No
kernel is built, and neither TVM nor NumPy is imported, so a worker starts at once; only where FAULTY_REAL is set are
good ones real.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from tvm_sparse.measure.serve import constants_path, serve

FAULTS = json.loads(os.environ.get("FAULTS", "{}"))
IS_REAL = "FAULTY_REAL" in os.environ
# Where the worker will write its answers.
ANSWERS = os.dup(1)
# What an earlier candidate has left in this process.
poison = []
# What was timed in it.
timed = []
# Writes to an address that no kernel may write to.
PTX = b"""
.version 6.0
.target sm_50
.address_size 64
.visible .entry poison() { .reg .b64 a; mov.u64 a, 8; st.global.u64 [a], a; ret; }
"""


def misbehave(how):
    """Do what `how` says, if anything; what does not end the process returns."""
    name, _, argument = how.partition("=")
    if name in FAULT_FUNCTIONS:
        FAULT_FUNCTIONS[name](*[argument] if argument else [])


def die(number):
    os.kill(os.getpid(), number)


def exit_with_words():
    print("the last words", file=sys.stderr, flush=True)
    os._exit(7)


def hang():
    time.sleep(600)


def fail(error):
    raise error


def flood():
    for descriptor in (1, 2):
        for _ in range(3000):
            os.write(descriptor, b"garbage\xff" * 8192)


def answer(data, forever=False, end=lambda: None):
    os.write(ANSWERS, data)
    while forever:
        os.write(ANSWERS, data)
    end()


def close_pipes():
    os.close(ANSWERS)
    os.close(ANSWERS + 1)
    hang()


def let_compiler_allocate():
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\nimport faulty_worker"
    subprocess.run([sys.executable, "-c", f"{code}\nfaulty_worker.allocate()"], check=True)


def leave_compiler(note):
    compiler = subprocess.Popen(["sleep", "600"])
    Path(note).write_text(str(compiler.pid))
    hang()


def poison_process():
    poison.append("CUDA: an illegal memory access was encountered")
    raise RuntimeError(poison[0])


def allocate():
    """Use 10 GB of memory, a little at a time, and live on."""
    kept = []
    for _ in range(640):
        kept.append(b"x" * (1 << 24))
        time.sleep(0.002)
    time.sleep(600)


def poison_gpu():
    """Make every later use of the GPU by this process fail: an illegal access in the context that TVM uses too."""
    cuda = ctypes.CDLL("libcuda.so.1")
    context, module, function = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_void_p()
    for status in (
        cuda.cuInit(0),
        cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0),
        cuda.cuCtxSetCurrent(context),
        cuda.cuModuleLoadData(ctypes.byref(module), PTX),
        cuda.cuModuleGetFunction(ctypes.byref(function), module, b"poison"),
        cuda.cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, None, None),
    ):
        assert status == 0, status
    status = cuda.cuCtxSynchronize()
    raise RuntimeError(f"CUDA error {status} in cuCtxSynchronize")


def real(request):
    """What the worker that this one stands for answers."""
    from tvm_sparse.measure import worker_main

    return worker_main.ACTIONS[request["action"]](request)


def build(request):
    """Misbehave, or write the schedule's name as the library."""
    schedule = request["schedule"]
    schedule = FAULTS.get(schedule.partition(":")[0], schedule)
    if schedule.startswith("build "):
        misbehave(schedule.removeprefix("build "))
    if IS_REAL and not schedule.startswith(("build ", "run ")):
        return real(request)
    for path in (request["library"], constants_path(request["library"])):
        Path(path).write_text(schedule)
    return {}


def run(request):
    """Misbehave as the library says, or report an error in bounds and times of 10 us and 20 us for the baseline."""
    if IS_REAL and not Path(request["library"]).read_bytes().startswith((b"build ", b"run ")):
        return real(request)
    if poison:
        raise RuntimeError(poison[0])
    how = Path(request["library"]).read_text().removeprefix("run ")
    misbehave(how)
    error = {"is wrong": 3.5, "writes nothing": float("inf"), "is undefined": float("nan")}.get(how, 0.25)
    if error > 1:
        poison.append("a heap that the wrong kernel has overwritten")
    repeats = request["repeats"] if error <= 1 else 0
    dense_times_us = [20.0] * repeats if request["baseline"] else []
    time_us = 0.1 if how == "is too fast" or (how == "is too fast once" and not timed.count(how)) else 10.0
    timed.append(how)
    answer = {"error": error, "times_us": [time_us] * repeats, "dense_times_us": dense_times_us}
    if request["cold"]:
        answer |= {"cold_times_us": answer["times_us"], "dense_cold_times_us": dense_times_us}
    return answer


FAULT_FUNCTIONS = {
    "SIGKILL": lambda: die(signal.SIGKILL),
    "SIGSEGV": lambda: die(signal.SIGSEGV),
    "exits": exit_with_words,
    "hangs": hang,
    "raises": lambda: fail(RuntimeError("out of registers")),
    "crashes": lambda: fail(AssertionError("not an error that the worker expects")),
    "prints": lambda: print('{"failure": "this is not an answer"}', flush=True),
    "floods": flood,
    "answers nonsense": lambda: answer(b"nonsense\xff\n"),
    "answers a number": lambda: answer(b"3\n"),
    "answers without end": lambda: answer(b"x" * 65536, forever=True),
    "answers half": lambda: answer(b'{"times_us": [1', end=hang),
    "closes its pipes": close_pipes,
    "allocates 10 GB": allocate,
    "lets a compiler allocate 10 GB": let_compiler_allocate,
    "leaves a compiler": leave_compiler,
    "poisons the process": poison_process,
    "poisons the GPU": poison_gpu,
}


if __name__ == "__main__":
    serve({"build": build, "run": run, "lower": real, "replay": real})
