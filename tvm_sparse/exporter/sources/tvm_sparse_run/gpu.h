/* Models for an NVIDIA GPU: what their plans say, and what the driver and cuDNN hold of them.
 *
 * Neither CUDA's headers nor its toolkit are needed. `libcuda.so.1`, which comes with NVIDIA's driver, is loaded with
 * the first such model, and so is `libcudnn.so.9` where a layer is computed by cuDNN. */
#ifndef TVM_SPARSE_GPU_H
#define TVM_SPARSE_GPU_H

#include "reader.h"
#include "steps.h"

/* CUlaunchAttribute and CUlaunchConfig of the driver's API. */
typedef struct {
  int id, zero;
  union {
    unsigned cluster[3];
    int is_on;
    char bytes[64];
  } value;
} LaunchAttribute;
typedef struct {
  unsigned grid[3], block[3], shared_bytes;
  void *stream;
  LaunchAttribute *attributes;
  unsigned attribute_count;
} LaunchConfig;

/* The driver's functions that are called, as its API reference names them; addresses on the GPU are numbers. */
#define DRIVER_FUNCTIONS(X) \
  X(cuInit, (unsigned flags)) \
  X(cuGetErrorName, (int code, const char **name)) \
  X(cuDeviceGet, (int *device, int number)) \
  X(cuDeviceGetAttribute, (int *value, int attribute, int device)) \
  X(cuDevicePrimaryCtxRetain, (void **context, int device)) \
  X(cuDevicePrimaryCtxRelease_v2, (int device)) \
  X(cuCtxPushCurrent_v2, (void *context)) \
  X(cuCtxPopCurrent_v2, (void **context)) \
  X(cuThreadExchangeStreamCaptureMode, (int *mode)) \
  X(cuModuleLoadData, (void **module, const void *code)) \
  X(cuModuleUnload, (void *module)) \
  X(cuModuleGetFunction, (void **function, void *module, const char *name)) \
  X(cuFuncSetAttribute, (void *function, int attribute, int value)) \
  X(cuLaunchKernelEx, (const LaunchConfig *config, void *function, void **arguments, void **extra)) \
  X(cuMemAlloc_v2, (uint64_t * address, size_t size_bytes)) \
  X(cuMemFree_v2, (uint64_t address)) \
  X(cuMemHostAlloc, (void **memory, size_t size_bytes, unsigned flags)) \
  X(cuMemFreeHost, (void *memory)) \
  X(cuMemcpyHtoD_v2, (uint64_t to, const void *from, size_t size_bytes)) \
  X(cuMemcpyHtoDAsync_v2, (uint64_t to, const void *from, size_t size_bytes, void *stream)) \
  X(cuMemcpyDtoHAsync_v2, (void *to, uint64_t from, size_t size_bytes, void *stream)) \
  X(cuMemcpyDtoDAsync_v2, (uint64_t to, uint64_t from, size_t size_bytes, void *stream)) \
  X(cuStreamCreate, (void **stream, unsigned flags)) \
  X(cuStreamDestroy_v2, (void *stream)) \
  X(cuStreamSynchronize, (void *stream)) \
  X(cuStreamWaitEvent, (void *stream, void *event, unsigned flags)) \
  X(cuStreamIsCapturing, (void *stream, int *status)) \
  X(cuStreamGetCaptureInfo_v3, (void *stream, int *status, uint64_t *id, void **graph, void *const **nodes, \
                                const void **edges, size_t *count)) \
  X(cuStreamUpdateCaptureDependencies_v2, (void *stream, void **nodes, const void *edges, size_t count, unsigned how)) \
  X(cuStreamBeginCapture_v2, (void *stream, int mode)) \
  X(cuStreamEndCapture, (void *stream, void **graph)) \
  X(cuGraphInstantiateWithFlags, (void **executable, void *graph, unsigned long long flags)) \
  X(cuGraphDestroy, (void *graph)) \
  X(cuGraphLaunch, (void *executable, void *stream)) \
  X(cuGraphExecDestroy, (void *executable)) \
  X(cuEventCreate, (void **event, unsigned flags)) \
  X(cuEventDestroy_v2, (void *event)) \
  X(cuEventRecord, (void *event, void *stream)) \
  X(cuEventSynchronize, (void *event))

typedef struct {
#define POINTER(name, arguments) int(*name) arguments;
  DRIVER_FUNCTIONS(POINTER)
#undef POINTER
} Driver;

/* Loads the driver; false, and an error, where there is none. */
bool driver_open(Driver *driver);
/* Whether a call succeeded; else an error that names it. */
bool driver_succeeded(const Driver *driver, int code, const char *call);
#define CALL(driver, name, ...) driver_succeeded(driver, (driver)->name(__VA_ARGS__), #name)

/* Code, in the data of the library. */
typedef struct {
  uint64_t offset, size_bytes;
  void *module;
} GpuModule;
/* One letter for each argument: a pointer or number of 64 bits (p), of 32 bits (i), a float (f) or double (d). Then one
 * for what else a launch says: x, y and z of blocks (0 1 2), threads (3 4 5) and clusters (6 7 8), bytes of shared
 * memory (s), that it may begin before the last one has ended (e), that all its blocks run at once (c). */
typedef struct {
  const char *name, *arguments, *launch;
  uint32_t module;
  void *function;
} GpuKernel;
typedef struct {
  uint64_t from, to, size_bytes;
} GpuConstant;

/* A call of cuDNN: an argument is a number, the handle, a descriptor by its number, so many bytes into one of the
 * arrays, a floating-point number, a factor 1 or 0, where the call writes a number of bytes that has this limit, or where
 * integers are, each of which follows as one of these arguments that is no more than that. */
enum { CUDNN_NUMBER, CUDNN_HANDLE, CUDNN_DESCRIPTOR, CUDNN_ARRAY, CUDNN_REAL, CUDNN_ONE, CUDNN_ZERO, CUDNN_LIMIT,
       CUDNN_INTEGERS, CUDNN_INTEGER, CUDNN_KINDS };
/* Kernels that are written for all layers take dozens of numbers. */
enum { MAX_ARGUMENTS = 1024, MAX_LAUNCH = 12, MAX_CUDNN_ARGUMENTS = 18 };
typedef struct {
  uint32_t kind, index;
  uint64_t value;
} CudnnArgument;
typedef struct {
  const char *name;
  uint32_t count;
  CudnnArgument *arguments;
  void *function;
} CudnnCall;
/* What compiled code asks cuDNN for by a text: descriptors that are made and set once, and calls. */
typedef struct {
  const char *text;
  uint32_t array_count, descriptor_count, setup_count, call_count;
  const char **descriptors;
  CudnnCall *setup, *calls;
} CudnnWork;

struct Gpu {
  const char *arch;
  uint64_t constant_bytes;
  uint32_t constant_count, module_count, kernel_count, work_count;
  GpuConstant *constants;
  GpuModule *modules;
  GpuKernel *kernels; /* sorted by their names */
  CudnnWork *works;
  Driver driver;
  int device;
  void *context;
  uint64_t memory;
  pid_t process;
  void *cudnn;
};

/* cuDNN's handle and the descriptors of each work, of one context; made by its first call. */
typedef struct {
  void *handle;
  void ***descriptors;
} CudnnState;

/* Reads what a plan says of a GPU into `model->gpu`. */
void take_gpu(Reader *in);
/* Loads code and constants of a model, whose library has `data` of so many bytes, onto a GPU, and cuDNN. */
bool gpu_open(tvm_sparse_model *model, int number, const char *path, const char *data, uint64_t size_bytes);
void gpu_close(Gpu *gpu);

bool cudnn_open(Gpu *gpu);
/* Does the work that `text` says for arrays at `addresses`; false, and an error that compiled code raises. */
bool cudnn_run(const Gpu *gpu, CudnnState *state, const char *text, const uint64_t *addresses, uint32_t count,
               void *stream);
void cudnn_close(const Gpu *gpu, CudnnState *state);

/* Makes the GPU's context the calling thread's; `gpu_leave` gives back what was. Another thread that records a graph
 * would by default forbid this one to allocate and to load code. */
typedef struct {
  int mode;
  void *context;
} Entry;
enum { RELAXED_CAPTURE = 2 };
bool gpu_enter(const Gpu *gpu, Entry *entry);
void gpu_leave(const Gpu *gpu, Entry *entry);

/* What the kernels that the calling thread launches belong to; NULL ends that. */
typedef struct {
  const Gpu *gpu;
  CudnnState *cudnn;
  void *stream;
} Launching;
void gpu_launching(Launching *launching);

#endif
