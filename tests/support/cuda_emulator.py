"""Run generated CUDA kernels on the CPU, to check their numerics without a GPU.

The source is compiled as C++. Threads of a block are fibres that run one after the other up to the next barrier, and
asynchronous copies happen at once: wrong indices and missing elements show, data races do not. The blocks of a cluster
run at the same time, each with its own shared memory.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import native_library
import numpy as np
import tvm
import tvm_ffi
from random_convolutions import Case
from tvm.ir.instrument import pass_instrument
from tvm.target import Target

from tvm_sparse.codegen import lowering
from tvm_sparse.conv import reference
from tvm_sparse.scheduling.kernel import Kernel

# Threads of a block and blocks of a cluster at most.
MAX_THREADS, MAX_CLUSTER = 1024, 8
# Bytes of the largest block's shared memory and of a fibre's stack.
SHARED, STACK = 232448, 65536
# The C library's headers are enough: C++'s own <math.h> takes as long to compile as a kernel.
FLAGS = ("-O1", "-ffp-contract=off", "-nostdinc++")
# Of 16-bit types, as bits.
HALF_TYPES = Path(__file__).with_name("half_types.h").read_text()
PRELUDE = f"""
// Where it is set, it takes a jump to another stack for a mistake.
#undef _FORTIFY_SOURCE
{HALF_TYPES}
#define CUDART_INF_F __builtin_inff()
#define CUDART_NAN_F __builtin_nanf("")
#include <setjmp.h>
#include <ucontext.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#define __restrict__ __restrict
#define __forceinline__ inline
#define __device__
#define tvm_sparse_region_begin()
#define tvm_sparse_region_end()
#define tvm_sparse_grid_dependency_wait()
#define tvm_sparse_launch_dependents()
#define tvm_sparse_prefetch_code(region, bytes)
#define __syncthreads() yield()
typedef unsigned char uchar;
struct int2 {{ int x, y; }};
struct int4 {{ int x, y, z, w; }};
struct longlong2 {{ int64_t x, y; }};
struct float2 {{ float x, y; }};
struct float3 {{ float x, y, z; }};
struct float4 {{ float x, y, z, w; }};
static inline int2 make_int2(int x, int y) {{ return {{x, y}}; }}
static inline int4 make_int4(int x, int y, int z, int w) {{ return {{x, y, z, w}}; }}
static inline longlong2 make_longlong2(int64_t x, int64_t y) {{ return {{x, y}}; }}
static inline float2 make_float2(float x, float y) {{ return {{x, y}}; }}
static inline float3 make_float3(float x, float y, float z) {{ return {{x, y, z}}; }}
static inline float4 make_float4(float x, float y, float z, float w) {{ return {{x, y, z, w}}; }}
static inline float max(float a, float b) {{ return a > b ? a : b; }}
static inline float min(float a, float b) {{ return a < b ? a : b; }}
static inline int64_t max(int64_t a, int64_t b) {{ return a > b ? a : b; }}
static inline int64_t min(int64_t a, int64_t b) {{ return a < b ? a : b; }}
static inline int max(int a, int b) {{ return a > b ? a : b; }}
static inline int min(int a, int b) {{ return a < b ? a : b; }}
static struct {{ int x, y, z; }} threadIdx, blockIdx;
alignas(64) static unsigned char shared_memory[{MAX_CLUSTER}][{SHARED}];
// A fibre begins by its context and goes on by a jump: contexts cost a system call each time, jumps none.
static ucontext_t fibres[{MAX_THREADS} * {MAX_CLUSTER}];
static jmp_buf places[{MAX_THREADS} * {MAX_CLUSTER}], scheduler;
static bool known[{MAX_THREADS} * {MAX_CLUSTER}], begun[{MAX_THREADS} * {MAX_CLUSTER}];
static int current, rank, arrived;
static int awaited[{MAX_THREADS} * {MAX_CLUSTER}];
static bool finished[{MAX_THREADS} * {MAX_CLUSTER}];
static void tvm_sparse_cluster_arrive() {{ ++arrived; }}
static float tvm_sparse_cluster_load(const float* base, int other, int offset) {{
    return ((const float*)((const char*)base + (long)(other - rank) * {SHARED}))[offset];
}}
static void copy(int bytes, void* to, long to_byte, void* from, long from_byte, bool inside) {{
    if (inside) memcpy((char*)to + to_byte, (char*)from + from_byte, bytes);
    else memset((char*)to + to_byte, 0, bytes);
}}
__attribute__((noinline)) static void yield() {{
    if (!_setjmp(places[current])) _longjmp(scheduler, 1);
}}
__attribute__((noinline)) static void go_on() {{
    if (_setjmp(scheduler)) return;
    if (begun[current]) _longjmp(places[current], 1);
    begun[current] = true;
    setcontext(&fibres[current]);
}}
static void run_grid(void (*body)(), const int* grid, const int* block, int cluster) {{
    int threads = block[0] * block[1] * block[2], all = threads * cluster;
    static char* stacks = (char*)malloc((long){MAX_THREADS} * {MAX_CLUSTER} * {STACK});
    for (int z = 0; z < grid[2]; z += cluster) for (int y = 0; y < grid[1]; ++y) for (int x = 0; x < grid[0]; ++x) {{
        memset(shared_memory, 255, {SHARED} * cluster);  // NaN
        arrived = 0;
        for (int i = 0; i < all; ++i) {{
            finished[i] = begun[i] = false;
            awaited[i] = 0;
            if (!known[i]) getcontext(&fibres[i]);
            known[i] = true;
            fibres[i].uc_stack = {{stacks + (long)i * {STACK}, 0, {STACK}}};
            fibres[i].uc_link = nullptr;
            makecontext(&fibres[i], body, 0);
        }}
        for (bool running = true; running;) {{
            running = false;
            for (int i = 0; i < all; ++i) {{
                // A thread at the cluster's barrier goes on when all have arrived as often as it waits.
                if (finished[i] || awaited[i] * all > arrived) {{ running = running || !finished[i]; continue; }}
                current = i;
                rank = i / threads;
                int t = i % threads;
                blockIdx = {{x, y, z + rank}};
                threadIdx = {{t % block[0], t / block[0] % block[1], t / (block[0] * block[1])}};
                go_on();
                running = running || !finished[i];
            }}
        }}
    }}
}}
static void tvm_sparse_cluster_wait() {{ ++awaited[current]; __syncthreads(); }}
// All threads of a block shuffle at the same time: one after the other they show their values, then they look.
typedef unsigned int uint;
struct ushort2 {{ ushort x, y; }};
struct ushort4 {{ ushort x, y, z, w; }};
static float shown[{MAX_THREADS} * {MAX_CLUSTER}];
static uint __activemask() {{ return 0xffffffff; }}
static float shuffle(float value, int from) {{
    shown[current] = value;
    __syncthreads();
    float found = shown[from];
    __syncthreads();
    return found;
}}
static float __shfl_down_sync(uint, float value, int by, int) {{
    return shuffle(value, current % 32 + by < 32 ? current + by : current);
}}
static float __shfl_xor_sync(uint, float value, int by, int) {{ return shuffle(value, current ^ by); }}
// Two numbers of 16 bits in one of 32, as `half_sums` has them.
static half half_of(uint pair, int which) {{ half found; found.bits = pair >> 16 * which; return found; }}
static uint tvm_sparse_pair(const half* first) {{
    if ((size_t)first % 4) abort();
    uint pair; memcpy(&pair, first, 4); return pair;
}}
static uint tvm_sparse_between(uint before, uint after) {{ return before >> 16 | after << 16; }}
static uint bits_of(float value) {{ uint bits; memcpy(&bits, &value, 4); return bits; }}
static float tvm_sparse_multiply_add(uint x, uint w, float sum) {{
    uint y = 0;
    // Exact in float64: products of two halves have 22 bits.
    for (int i = 0; i < 2; ++i)
        y |= (uint)to_half((double)half_of(x, i) * (double)half_of(w, i) + (double)half_of(bits_of(sum), i)) << 16 * i;
    float bits; memcpy(&bits, &y, 4); return bits;
}}
static float tvm_sparse_product(uint x, uint w) {{ return tvm_sparse_multiply_add(x, w, 0); }}
static float tvm_sparse_add_sum(float total, float sum) {{
    return tvm_sparse_multiply_add(bits_of(total), 0x3c003c00, sum);
}}
static float2 tvm_sparse_outputs(float total, float sum) {{
    uint t = bits_of(total), s = bits_of(sum);
    return {{(float)half_of(t, 0) + (float)half_of(s, 0), (float)half_of(t, 1) + (float)half_of(s, 1)}};
}}
static float __shfl_sync(uint, float value, int lane, int) {{ return shuffle(value, current / 32 * 32 + lane % 32); }}
"""


@dataclass(frozen=True)
class Launch:
    """One kernel launch: the kernel's name, its grid and its block, both (x, y, z).

    `cluster` are the blocks of a cluster along z, `shared` the bytes of dynamic shared memory.
    """

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: int = 1
    shared: int = 0


@pass_instrument
class _Launches:
    """Notes the launches of the module that is being lowered."""

    def run_after_pass(self, module: tvm.IRModule, info: tvm.transform.PassInfo) -> None:
        if info.name != "tirx.SplitHostDevice":
            return
        self.found: list[Launch] = []
        tags = {
            name.name_hint: [str(tag) for tag in func.attrs["tirx.kernel_launch_params"]]
            for name, func in module.functions.items()
            if "tirx.kernel_launch_params" in func.attrs
        }

        def visit(call: tvm.ir.Call) -> None:
            name = call.args[0].value if call.args and isinstance(call.args[0], tvm.ir.StringImm) else None
            if name in tags:
                extents = dict(zip(tags[name], call.args[-len(tags[name]) :], strict=True))
                grid, block = (
                    tuple(int(extents.get(f"{kind}.{axis}", 1)) for axis in "xyz") for kind in ("blockIdx", "threadIdx")
                )
                others = (int(extents.get(tag, 0)) for tag in ("clusterCtaIdx.z", "tirx.use_dyn_shared_memory"))
                cluster, shared = others
                self.found.append(Launch(name, grid, block, max(cluster, 1), shared))

        for name, func in module.functions.items():
            if name.name_hint not in tags:
                tvm_ffi.structural_walk(func.body, (tvm.ir.Call, visit))


def build_source(func: tvm.tirx.PrimFunc, target: Target) -> tuple[str, list[Launch]]:
    """The CUDA source of a scheduled function, and its launches in order."""
    launches = _Launches()
    with tvm.transform.PassContext(instruments=[launches]):
        module = lowering.build(func, target)
    return module.imports[0].inspect_source(), launches.found


def kernels(source: str) -> str:
    """The part of a CUDA source behind TVM's own preamble."""
    return source[source.index('extern "C" __global__') :]


def run_emulated(case: Case, kernel: Kernel, target: Target, shape: tuple[int, ...] | None = None) -> np.ndarray:
    """A kernel's output, of another `shape` than the convolution's; elements that it does not write are NaN."""
    source, launches = build_source(kernel.func, target)
    arguments = reference.random_arguments(case.spec, case.seed, case.integers)
    epilogue = [arguments[name] for name in ("bias", "residual") if name in arguments]
    y = np.full(shape or case.spec.output_shape, np.nan, case.spec.dtype)
    names = [parameter.name for parameter in kernel.func.params]
    values = (arguments["x"], *kernel.constants, *epilogue, y)
    emulate(source, launches, dict(zip(names, values, strict=True)))
    return y


def emulate(source: str, launches: Sequence[Launch], arguments: dict[str, np.ndarray]) -> None:
    """Run `launches` of `source` on `arguments`, by parameter name; other parameters are scratch memory."""
    for launch in launches:
        fits = math.prod(launch.block) <= MAX_THREADS and max(launch.grid[1:]) <= 65535
        if not fits or launch.cluster > MAX_CLUSTER or launch.grid[2] % launch.cluster:
            raise ValueError(f"no GPU can launch {launch}")
    code, parameters = _translate(source, launches)
    loaded = ctypes.CDLL(str(native_library.build(code, *FLAGS)))
    others = {name for names in parameters for name in names} - arguments.keys()
    memory = arguments | {name: np.full(1 << 22, np.nan, np.float32) for name in others}
    for number, names in enumerate(parameters):
        getattr(loaded, f"launch_{number}")(*(memory[name].ctypes.data_as(ctypes.c_void_p) for name in names))


def _translate(source: str, launches: Sequence[Launch]) -> tuple[str, list[list[str]]]:
    """C++ with a function ``launch_<i>`` for each launch, and the names of their parameters."""
    body = _translated_body(source)
    code = [PRELUDE, *_copies(source), *_templates(source), body]
    parameters = []
    for number, launch in enumerate(launches):
        declared = re.search(rf"static void {launch.kernel}\(([^)]*)\)", body).group(1).replace("__restrict__", "")
        names = [each.split()[-1] for each in declared.split(",")]
        parameters.append([name.removesuffix("_ptr") for name in names])
        globals_ = "".join(f"static {each}_{number};" for each in declared.split(","))
        passed = ", ".join(f"{name}_{number}" for name in names)
        assigned = " ".join(f"{name}_{number} = {name};" for name in names)
        grid, block = (str(list(each))[1:-1] for each in (launch.grid, launch.block))
        code.append(
            f"{globals_}\nstatic void body_{number}() {{ {launch.kernel}({passed}); finished[current] = true; "
            f"__syncthreads(); }}\n"
            f'extern "C" void launch_{number}({declared}) {{ {assigned} '
            f"int grid[] = {{{grid}}}, block[] = {{{block}}}; "
            f"run_grid(body_{number}, grid, block, {launch.cluster}); }}\n"
        )
    return "\n".join(code), parameters


def _translated_body(source: str) -> str:
    # A block of one thread has no bounds.
    body = re.sub(r'extern "C" __global__ void(?: __launch_bounds__\([\d, ]+\))?', "static void", kernels(source))
    body = re.sub(r"extern __shared__ __align__\(\d+\) (\w+) (\w+)\[\];", r"\1* \2 = (\1*)shared_memory[rank];", body)
    return _static_arrays(body)


def kernel_library(source: str) -> Path:
    """The kernels of a CUDA source as `fake_cuda.c` calls them: ``launch_<name>``, of ``arguments_<name>``."""
    body = _translated_body(source)
    code = [PRELUDE, *_copies(source), *_templates(source), body]
    for name, declared in set(re.findall(r"static void (\w+)\(([^)]*)\) \{", body[body.index("static void") :])):
        taken = [each.replace("__restrict__", "") for each in declared.split(",")]
        if not all(each.rsplit(maxsplit=1)[-1].isidentifier() for each in taken):
            continue
        stored = "".join(f"static {each.strip()}_{name};\n" for each in taken)
        names = [each.split()[-1] for each in taken]
        assigned = "".join(
            f"memcpy(&{each}_{name}, values[{number}], sizeof {each}_{name});\n" for number, each in enumerate(names)
        )
        passed = ", ".join(f"{each}_{name}" for each in names)
        code.append(
            f"{stored}static void body_{name}() {{ {name}({passed}); finished[current] = true; __syncthreads(); }}\n"
            f'extern "C" unsigned arguments_{name} = {len(taken)};\n'
            f'extern "C" void launch_{name}(void** values, const int* grid, const int* block, int cluster) {{\n'
            f"{assigned}run_grid(body_{name}, grid, block, cluster); }}\n"
        )
    return native_library.build("\n".join(code), *FLAGS, "-w")


def _static_arrays(body: str) -> str:
    """Static shared arrays at the end of the block's shared memory, one before the other."""
    end = SHARED

    def place(found: re.Match[str]) -> str:
        nonlocal end
        kind, name, length = found.groups()
        end -= -(-8 * int(length) // 64) * 64
        return f"{kind}* {name} = ({kind}*)(shared_memory[rank] + {end});"

    return re.sub(r"__shared__ alignas\(64\) (\w+) (\w+)\[(\d+)\];", place, body)


def _templates(source: str) -> list[str]:
    """Our functions for vectors of any type, which are plain C++."""
    return re.findall(r"^template <typename V>.*?^}$", source, re.MULTILINE | re.DOTALL)


def _copies(source: str) -> list[str]:
    """Helpers for ``cp.async``, TVM's and ours, as plain copies.

    The names of TVM's end in the bytes copied and the sizes of the offsets' units.
    """
    defined = []
    for name, predicate, count, to, from_ in set(
        re.findall(r"\b(ptx_cp_async\w*?(_pred)?_c[ag]_(\d+)_(\d+)_(\d+))\(", source)
    ):
        inside = ", int inside" if predicate else ""
        defined.append(
            f"static void {name}(void* to, long a, void* from, long b{inside}) "
            f"{{ copy({count}, to, a * {to}, from, b * {from_}, {'inside' if predicate else 'true'}); }}"
        )
    for name, count in set(re.findall(r"\b(tvm_sparse_cp_async_(\d+))\(", source)):
        defined.append(
            f"static void {name}(unsigned to, const void* from, bool inside) "
            f"{{ copy({count}, (unsigned char*)shared_memory + to, 0, (void*)from, 0, inside); }}"
        )
    if "tvm_sparse_copy_2(" in source:
        defined.append(
            "static void tvm_sparse_copy_2(unsigned to, const void* from, bool inside) "
            "{ copy(2, (unsigned char*)shared_memory + to, 0, (void*)from, 0, inside); }"
        )
    address = "(unsigned)((const unsigned char*)pointer - (unsigned char*)shared_memory)"
    defined.append(f"static unsigned tvm_sparse_shared_address(const void* pointer) {{ return {address}; }}")
    defined += re.findall(r"^#define tvm_sparse_.*$", source, re.MULTILINE)
    for name in set(re.findall(r"\btvm_builtin_ptx_cp_async_\w+", source)):
        defined.append(f"static void {name}() {{}}")
    return defined
