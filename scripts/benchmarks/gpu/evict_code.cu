// Kernels that displace all other code from a GPU's instruction caches: straight lines of multiply-adds on registers.
//
// A multiprocessor of compute capability 9.0 has up to 128 KB of such caches, and what lies behind them holds about
// 150 KB a group of multiprocessors (docs/lab/cuda-folded.md). A kernel has four lines of 128 KB, 512 KB in all, and
// every multiprocessor goes through all of it once: a block has a warp a line, side by side, so that several misses are
// under way at a time, and one in each quarter of the multiprocessor, whose small caches are displaced too.
//
// There are two kernels, to be run in turns: a cache that does not strictly drop what is oldest keeps some of a
// kernel's own code until the kernel runs again, unless twice as much went through.

constexpr int LINES = 4, PAIRS = 4096, CACHE_LINE_BYTES = 128;
// Of a line's machine code, 16 bytes an instruction.
constexpr int LINE_BYTES = 2 * PAIRS * 16;

// Each instruction needs the result of the one before it, so none can be left out.
template <int NUMBER>
__device__ __noinline__ float line(float a, float b) {
#pragma unroll
    for (int i = 0; i < PAIRS; ++i) {
        a = fmaf(b, NUMBER + 0.25f, a);
        b = fmaf(a, NUMBER + 0.75f, b);
    }
    return a + b;
}

// Asks for all of the line's code to be in the L2 cache before it is executed. Data of the call ahead may have displaced
// it, and a multiprocessor fetches one cache line after the other from memory; that would count as the call's time.
template <int NUMBER>
__device__ float prefetched_line(float start) {
    const char* code = (const char*)line<NUMBER>;
    const int first = (blockIdx.x * 32 + threadIdx.x % 32) * CACHE_LINE_BYTES;
    for (int at = first; at < LINE_BYTES; at += gridDim.x * 32 * CACHE_LINE_BYTES)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(code + at));
    return line<NUMBER>(start, start);
}

// `start` is 0, which the compiler does not know; so all sums are 0, and nothing is stored.
template <int TURN>
__global__ void __launch_bounds__(32 * LINES) evict_code(float start, float* sink) {
    float sum = 0;
    switch (threadIdx.x / 32) {
        case 0: sum = prefetched_line<4 * TURN>(start); break;
        case 1: sum = prefetched_line<4 * TURN + 1>(start); break;
        case 2: sum = prefetched_line<4 * TURN + 2>(start); break;
        case 3: sum = prefetched_line<4 * TURN + 3>(start); break;
    }
    if (sum != 0) *sink = sum;
}

// One of the two kernels, on so many blocks: an idle GPU places one on each of as many multiprocessors. Returns a
// cudaError_t.
extern "C" int evict_code_launch(int turn, int blocks, void* stream) {
    auto kernel = turn % 2 ? evict_code<1> : evict_code<0>;
    kernel<<<blocks, 32 * LINES, 0, (cudaStream_t)stream>>>(0.0f, nullptr);
    return (int)cudaGetLastError();
}
