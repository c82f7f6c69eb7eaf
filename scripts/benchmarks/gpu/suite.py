"""All cases of a benchmark on a GPU: kernels are built, cases timed in turn, results written as they come."""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from dataclasses import replace
from importlib import metadata
from itertools import product
from pathlib import Path

from benchmarks.baselines import escort_kernels
from benchmarks.comparison import CUDNN_FP16, CUDNN_FP32, CUDNN_TF32, EXACT, against, best, median_us
from benchmarks.gpu import code_evictor
from benchmarks.gpu.case import Broken, bench_case
from benchmarks.gpu.contenders import Kernels, Settings
from benchmarks.gpu.isolated_process import Runner
from benchmarks.gpu.kernels import built, wanted
from benchmarks.results import OURS, Case, Device, Document, Kind, Run
from tvm_sparse.errors import BuildError
from tvm_sparse.files.temporary import TemporaryFolder
from tvm_sparse.logs.record import utc_now
from tvm_sparse.logs.tuning_log import NO_FILE, TuningLog
from tvm_sparse.target.fingerprint import fingerprint_of
from tvm_sparse.target.gpu_driver import gpu_property
from tvm_sparse.target.resolve import resolve_target

_BAD = ("failed", "wrong")


def run_cases(
    cases: Sequence[tuple[int, int]],
    kernels: dict[tuple[int, int], Kernels],
    settings: Settings,
    options: argparse.Namespace,
    runner: Runner,
) -> Iterator[Case]:
    """Every case as it is done. A contender that breaks the process is left out from then on."""
    skipped: dict[str, str] = {}
    for operator, batch in cases:
        where, ours = f"operator {operator}, batch {batch}", kernels.get((operator, batch), [])
        while True:
            if time.monotonic() > options.deadline:
                print(f"stopped after {options.seconds:g} s, before {where}", flush=True)
                return
            Path(settings.progress).write_text("")
            try:
                yield runner.call(bench_case, operator, batch, options.density, ours, settings, skipped)
                break
            except Broken as broken:
                name, cause = broken.contender, broken.cause
            except BrokenProcessPool:
                name, cause = Path(settings.progress).read_text(), "the process died"
            except RuntimeError as error:
                name, cause = "", str(error)[-1000:]
            runner.close()
            print(f"{where}: {name or 'nobody known'} broke the process: {cause}", flush=True)
            if not name or name in skipped:
                break
            skipped[name] = f"left out after it broke the process of {where}: {cause}"


def line(case: Case) -> str:
    """What a case found, in one line a density."""
    lines = []
    for density in case.densities:
        lines.append(f"op {case.operator} b{case.batch} d{density}: {_found(case, density, 'cold')}")
        if best(case, [OURS], density, "cold_code"):
            lines.append(f"    with cold code: {_found(case, density, 'cold_code')}")
    lines.append(f"    {case.seconds:g} s")
    lines += [f"    {each.name}: {each.status}, {each.cause[-200:]}" for each in case.contenders if each.status in _BAD]
    return "\n".join(lines)


def _found(case: Case, density: float, kind: Kind) -> str:
    """Our time at a density, and ratios to baselines."""
    own = best(case, [OURS], density, kind)
    text = f"{median_us(own, kind):.4g} us ({own.detail})" if own else "no kernel of ours"
    for label, families in (("fp32", CUDNN_FP32), ("TF32", CUDNN_TF32), ("exact", EXACT), ("fp16", CUDNN_FP16)):
        found = against(case, density, families, kind)
        if found is not None:
            text += f"; {label} {found.ratio.median:.2f}x {found.verdict}"
            text += f" ({found.baseline.family})" if label == "exact" else ""
    return text


def bench(options: argparse.Namespace, command: str) -> int:
    """Build, measure and write what `options` (those of ``bench_gpu.py``) ask for; 5 where a contender was wrong."""
    target = resolve_target(options.target)
    on_gpu, arch = target.kind.name == "cuda", fingerprint_of(target)["arch"]
    if on_gpu and fingerprint_of(target)["device"] == "unknown":
        raise BuildError("bench_gpu.py", "nvidia-smi finds no GPU", hint="--target llvm tries it without one")
    log = TuningLog(NO_FILE, *options.log)
    cases = list(product(options.operators, options.batch))
    kernels = [
        each
        for case in cases
        for each in wanted(case, options.density, options.seed, options.schedules, log, target, options.dtype)
    ]
    started, done = time.monotonic(), list[Case]()
    with TemporaryFolder() as folder, closing(Runner()) as runner, ThreadPoolExecutor(2) as aside:
        # While kernels are built, so are the libraries, and the process for the GPU imports what it needs.
        settings_then = aside.submit(_settings, options, Path(folder), arch if on_gpu else "")
        machine = aside.submit(runner.call, versions_and_device, arch, on_gpu)
        with built(kernels, target, options.workers, options.timeout) as by_case:
            print(f"{len(kernels)} kernels built in {time.monotonic() - started:.0f} s", flush=True)
            (versions, device), settings = machine.result(), settings_then.result()
            run = Run(
                command=command, started=utc_now(), device=device, versions=versions, rounds=options.rounds, cases=()
            )
            for case in run_cases(cases, by_case, settings, options, runner):
                print(line(case), flush=True)
                done.append(case)
                Document(runs=(replace(run, cases=tuple(done)),)).save(options.output)
    print(f"{len(done)} of {len(cases)} cases in {time.monotonic() - started:.0f} s: {options.output}")
    bad = any(each.status in _BAD for case in done for each in case.contenders)
    return 5 if bad or len(done) < len(cases) else 0


def _settings(options: argparse.Namespace, folder: Path, arch: str) -> Settings:
    """What `options` say, and the libraries for a GPU, built in `folder`; without `arch` there is no GPU."""
    return Settings(
        baselines=tuple(options.baselines),
        rounds=options.rounds,
        seconds=options.case_seconds,
        seed=options.seed,
        escort_library=_escort(folder, arch, options.baselines),
        progress=str(folder / "progress"),
        on_gpu=bool(arch),
        cold_code=options.cold_code,
        dtype=options.dtype,
        evictor_library=code_evictor.build(folder, arch) if arch and options.cold_code else None,
    )


def _escort(folder: Path, arch: str, prefixes: Sequence[str]) -> Path | None:
    """Escort's library for a GPU, or None where it is not wanted or fails: the others are still worth timing."""
    if not arch or not any("escort".startswith(prefix) or prefix.startswith("escort") for prefix in prefixes):
        return None
    try:
        return escort_kernels.build(folder, arch)
    except BuildError as error:
        print(error, file=sys.stderr)
        return None


def versions_and_device(arch: str, on_gpu: bool) -> tuple[dict[str, str], Device]:
    """What is installed and the GPU, as torch and the driver's tool say; called in the process that holds the GPU."""
    import torch

    versions = {"apache-tvm": metadata.version("apache-tvm"), "torch": torch.__version__}
    if not on_gpu:
        return versions, Device(name="CPU", arch=arch)
    if not torch.cuda.is_available():
        raise BuildError("bench_gpu.py", "torch finds no GPU", hint="--target llvm tries it without one")
    versions |= {"CUDA": str(torch.version.cuda), "cuDNN": str(torch.backends.cudnn.version())}
    properties = torch.cuda.get_device_properties(0)
    clock_mhz, _, _ = (gpu_property("clocks.max.sm") or "").partition(" ")
    return versions, Device(
        name=properties.name,
        arch=arch,
        multiprocessors=properties.multi_processor_count,
        clock_mhz=float(clock_mhz) if clock_mhz.replace(".", "").isdigit() else 0,
        l2_bytes=getattr(properties, "L2_cache_size", 0),
        driver=gpu_property("driver_version") or "",
    )
