// Escort's direct sparse convolution (Chen 2018, arXiv 1802.10280), written anew from its description.
//
// Weights are compressed sparse rows, one row a filter, whose column indices are stretched: the distance, in the padded
// input, of a tap's element from the output pixel's. A block computes one filter on one tile of output pixels, 16 x 16
// in the paper. It stages the filter's (value, distance) pairs in shared memory, which all its threads then read alike;
// inputs come through the read-only cache, neighbours for neighbouring threads. A thread keeps ROWS x IMAGES sums, so
// that a staged pair serves several of them (the paper's batch kernel keeps two images).
//
// The padded input is one-sided: what lies right of a row is the next row's left padding, what lies below a channel is
// the next channel's upper padding. Its zeros are written once, only the interior is copied at each call.

#ifndef LAUNCH
#define LAUNCH(kernel, grid, block, stream, ...) kernel<<<grid, block, 0, stream>>>(__VA_ARGS__)
#endif

// Keeps an address in its registers; ptxas would make it anew, of four instructions, at each use.
#ifdef __CUDA_ARCH__
#define HOLD(pointer) asm("" : "+l"(pointer))
#else
#define HOLD(pointer)
#endif

// In elements; `pitch` is the distance of rows of the padded input, `plane` of its channels.
struct Geometry {
    int images, channels, height, width;
    int filters, out_height, out_width;
    int stride_height, stride_width;
    int top, left, pitch, plane;
};

// Value, as the bits of a float, and stretched distance.
typedef int2 Tap;

// Taps staged at a time: 8 KB, as published.
constexpr int STAGE = 1024;

template <int TILE_WIDTH, int TILE_HEIGHT, int ROWS, int IMAGES>
__global__ void __launch_bounds__(TILE_WIDTH * TILE_HEIGHT)
    convolve(const float* __restrict__ padded, const Tap* __restrict__ taps, const int* __restrict__ rows,
             float* __restrict__ y, Geometry g, int filters_first) {
    __shared__ Tap staged[STAGE];
    constexpr int BLOCK_THREADS = TILE_WIDTH * TILE_HEIGHT;
    const int thread = threadIdx.y * TILE_WIDTH + threadIdx.x;
    const int filter = filters_first ? blockIdx.x : blockIdx.y;
    const int tile = filters_first ? blockIdx.y : blockIdx.x;
    const int tiles_across = (g.out_width + TILE_WIDTH - 1) / TILE_WIDTH;
    const int column = tile % tiles_across * TILE_WIDTH + threadIdx.x;
    const int first_row = (tile / tiles_across * TILE_HEIGHT + threadIdx.y) * ROWS;
    const int first_image = blockIdx.z * IMAGES;

    // Threads outside the output compute a pixel inside again and do not store it.
    const float* source[IMAGES][ROWS];
    float sum[IMAGES][ROWS];
    for (int m = 0; m < IMAGES; ++m) {
        const int image = min(first_image + m, g.images - 1);
        for (int i = 0; i < ROWS; ++i) {
            const int row = min(first_row + i, g.out_height - 1);
            source[m][i] = padded + image * g.channels * g.plane + row * g.stride_height * g.pitch +
                           min(column, g.out_width - 1) * g.stride_width;
            HOLD(source[m][i]);
            sum[m][i] = 0.0f;
        }
    }

    const int end = rows[filter + 1];
    for (int begin = rows[filter]; begin < end; begin += STAGE) {
        const int count = min(end - begin, STAGE);
#pragma unroll 1
        for (int i = thread; i < count; i += BLOCK_THREADS) staged[i] = taps[begin + i];
        __syncthreads();
#pragma unroll 4
        for (int i = 0; i < count; ++i) {
            const Tap tap = staged[i];
            for (int m = 0; m < IMAGES; ++m)
                for (int r = 0; r < ROWS; ++r)
                    sum[m][r] = fmaf(__int_as_float(tap.x), __ldg(source[m][r] + tap.y), sum[m][r]);
        }
        __syncthreads();
    }

    if (column >= g.out_width) return;
    for (int m = 0; m < IMAGES; ++m)
        for (int i = 0; i < ROWS; ++i)
            if (first_image + m < g.images && first_row + i < g.out_height)
                y[(((first_image + m) * g.filters + filter) * g.out_height + first_row + i) * g.out_width + column] =
                    sum[m][i];
}

__global__ void copy_interior(const float* __restrict__ x, float* __restrict__ padded, int size, Geometry g) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < size; i += gridDim.x * blockDim.x) {
        const int row = i / g.width, channel = row / g.height;
        padded[channel * g.plane + (row - channel * g.height + g.top) * g.pitch + i - row * g.width + g.left] = x[i];
    }
}

template <int TILE_WIDTH, int TILE_HEIGHT, int ROWS, int IMAGES>
static void launch(const float* padded, const Tap* taps, const int* rows, float* y, const Geometry& g,
                   int filters_first, cudaStream_t stream) {
    const int across = (g.out_width + TILE_WIDTH - 1) / TILE_WIDTH;
    const int down = (g.out_height + TILE_HEIGHT * ROWS - 1) / (TILE_HEIGHT * ROWS);
    const int groups = (g.images + IMAGES - 1) / IMAGES;
    const dim3 grid = filters_first ? dim3(g.filters, across * down, groups) : dim3(across * down, g.filters, groups);
    auto kernel = convolve<TILE_WIDTH, TILE_HEIGHT, ROWS, IMAGES>;
    LAUNCH(kernel, grid, dim3(TILE_WIDTH, TILE_HEIGHT, 1), stream, padded, taps, rows, y, g, filters_first);
}

// Both return a cudaError_t; -1 where `shape` (tile width, tile height, rows, images) is none that was compiled.
extern "C" int escort_convolve(const float* padded, const void* taps, const int* rows, float* y,
                               const Geometry* geometry, const int* shape, int filters_first, void* stream) {
#define SHAPE(TILE_WIDTH, TILE_HEIGHT, ROWS, IMAGES)                                                                   \
    if (shape[0] == TILE_WIDTH && shape[1] == TILE_HEIGHT && shape[2] == ROWS && shape[3] == IMAGES) {                 \
        launch<TILE_WIDTH, TILE_HEIGHT, ROWS, IMAGES>(padded, (const Tap*)taps, rows, y, *geometry, filters_first,     \
                                                      (cudaStream_t)stream);                                           \
        return (int)cudaGetLastError();                                                                                \
    }
    SHAPE(16, 16, 1, 1)
    SHAPE(16, 16, 1, 2)
    SHAPE(16, 16, 1, 4)
    SHAPE(16, 16, 4, 1)
    SHAPE(32, 8, 1, 1)
    SHAPE(32, 8, 1, 4)
    SHAPE(32, 4, 4, 1)
    SHAPE(32, 4, 4, 2)
    SHAPE(8, 8, 1, 1)
    SHAPE(8, 8, 1, 4)
    SHAPE(8, 8, 1, 8)
#undef SHAPE
    return -1;
}

extern "C" int escort_copy_interior(const float* x, float* padded, const Geometry* geometry, void* stream) {
    const Geometry g = *geometry;
    const int size = g.images * g.channels * g.height * g.width, threads = 256, most_blocks = 65536;
    const int blocks = (size + threads - 1) / threads;
    const dim3 grid(blocks < most_blocks ? blocks : most_blocks, 1, 1);
    LAUNCH(copy_interior, grid, dim3(threads, 1, 1), (cudaStream_t)stream, x, padded, size, g);
    return (int)cudaGetLastError();
}
