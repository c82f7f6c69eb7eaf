/* Models on a GPU: code and constants that are loaded, and the functions by which compiled code launches kernels. */
#include "gpu.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Numbers of the driver's API. */
enum { CAPABILITY_MAJOR = 75, CAPABILITY_MINOR = 76, DYNAMIC_SHARED_BYTES = 8, NON_PORTABLE_CLUSTER = 14 };
enum { COOPERATIVE = 2, CLUSTER_DIMENSION = 4, STREAM_SERIALIZATION = 6 };
/* What a kernel has without being told: shared memory and blocks in a cluster. */
enum { PLAIN_SHARED_BYTES = 48 << 10, PLAIN_CLUSTER = 8, SPARE_BYTES = 256 };
enum { KIND_TEXT = 8 };

static _Thread_local Launching *current;

void gpu_launching(Launching *launching) { current = launching; }

bool gpu_enter(const Gpu *gpu, Entry *entry) {
  if (!CALL(&gpu->driver, cuCtxPushCurrent_v2, gpu->context)) return false;
  entry->mode = RELAXED_CAPTURE;
  gpu->driver.cuThreadExchangeStreamCaptureMode(&entry->mode);
  return true;
}

void gpu_leave(const Gpu *gpu, Entry *entry) {
  gpu_launching(NULL);
  gpu->driver.cuThreadExchangeStreamCaptureMode(&entry->mode);
  gpu->driver.cuCtxPopCurrent_v2(&entry->context);
}

static bool fits_gpu(const Gpu *gpu, const char *path) {
  int major = 0, minor = 0;
  if (!CALL(&gpu->driver, cuDeviceGetAttribute, &major, CAPABILITY_MAJOR, gpu->device) ||
      !CALL(&gpu->driver, cuDeviceGetAttribute, &minor, CAPABILITY_MINOR, gpu->device))
    return false;
  char found[32];
  size_t size = (size_t)snprintf(found, sizeof found, "sm_%d%d", major, minor);
  /* Behind the number may be a letter: that code uses what this architecture alone has. */
  bool fits = !strncmp(gpu->arch, found, size) && !gpu->arch[size + strspn(gpu->arch + size, "af")];
  const char *text = "%s: does not fit this machine: it was built for %s, and this GPU is %s; compile the model here";
  return fits || fail(text, path, gpu->arch, found);
}

static bool load_code(Gpu *gpu, const char *data) {
  for (uint32_t i = 0; i < gpu->module_count; i++)
    if (!CALL(&gpu->driver, cuModuleLoadData, &gpu->modules[i].module, data + gpu->modules[i].offset)) return false;
  for (uint32_t i = 0; i < gpu->kernel_count; i++) {
    GpuKernel *kernel = &gpu->kernels[i];
    if (!CALL(&gpu->driver, cuModuleGetFunction, &kernel->function, gpu->modules[kernel->module].module, kernel->name))
      return false;
  }
  return true;
}

static bool load_constants(tvm_sparse_model *model, const char *data) {
  Gpu *gpu = model->gpu;
  if (!CALL(&gpu->driver, cuMemAlloc_v2, &gpu->memory, gpu->constant_bytes + SPARE_BYTES)) return false;
  for (uint32_t i = 0; i < gpu->constant_count; i++) {
    const GpuConstant *each = &gpu->constants[i];
    if (each->size_bytes &&
        !CALL(&gpu->driver, cuMemcpyHtoD_v2, gpu->memory + each->to, data + each->from, each->size_bytes))
      return false;
  }
  model->constants = (const char *)(uintptr_t)gpu->memory;
  /* Streams of contexts do not wait for the default one, on which constants were copied. */
  return CALL(&gpu->driver, cuStreamSynchronize, NULL);
}

static bool lies_in(uint64_t offset, uint64_t size_bytes, uint64_t room) {
  return offset <= room && size_bytes <= room - offset;
}

bool gpu_open(tvm_sparse_model *model, int number, const char *path, const char *data, uint64_t size_bytes) {
  Gpu *gpu = model->gpu;
  bool is_whole = true;
  for (uint32_t i = 0; i < gpu->module_count; i++)
    is_whole &= lies_in(gpu->modules[i].offset, gpu->modules[i].size_bytes, size_bytes);
  for (uint32_t i = 0; i < gpu->constant_count; i++)
    is_whole &= lies_in(gpu->constants[i].from, gpu->constants[i].size_bytes, size_bytes);
  if (!is_whole) return fail("%s: code or a constant lies outside of it", path);
  if (!driver_open(&gpu->driver)) return false;
  if (!CALL(&gpu->driver, cuInit, 0) || !CALL(&gpu->driver, cuDeviceGet, &gpu->device, number)) return false;
  if (!fits_gpu(gpu, path) || !CALL(&gpu->driver, cuDevicePrimaryCtxRetain, &gpu->context, gpu->device)) return false;
  gpu->process = getpid();
  Entry entry;
  if (!gpu_enter(gpu, &entry)) return false;
  bool is_open = load_code(gpu, data) && load_constants(model, data) && (!gpu->work_count || cudnn_open(gpu));
  gpu_leave(gpu, &entry);
  return is_open;
}

void gpu_close(Gpu *gpu) {
  /* A child of the process that loaded it has no GPU. */
  Entry entry;
  if (!gpu->context || gpu->process != getpid() || !gpu_enter(gpu, &entry)) return;
  for (uint32_t i = 0; i < gpu->module_count; i++)
    if (gpu->modules[i].module) gpu->driver.cuModuleUnload(gpu->modules[i].module);
  if (gpu->memory) gpu->driver.cuMemFree_v2(gpu->memory);
  gpu_leave(gpu, &entry);
  gpu->driver.cuDevicePrimaryCtxRelease_v2(gpu->device);
}

/* What compiled code returns for an error, when it has been said. */
static int raised(const char *text) {
  TVMFFIErrorSetRaisedFromCStrParts("launch", &text, 1);
  return -1;
}

/* TVMFFIHandleInitOnce; several threads may do it, and find the same. */
static int init_once(_Atomic(void *) *handle, int (*init)(void **)) {
  void *found = atomic_load(handle);
  if (found) return 0;
  int failed = init(&found);
  if (!failed) atomic_store(handle, found);
  return failed;
}

/* TVMFFIEnvModLookupFromImports: the name itself, because the library keeps what it finds for all models that are
 * loaded from its file, each with kernels of its own. */
static int look_up(void *library, const char *name, void **function) {
  (void)library;
  *function = (void *)name;
  return 0;
}

static int by_name(const void *name, const void *kernel) { return strcmp(name, ((const GpuKernel *)kernel)->name); }

/* The sizes that a launch says, by their letter, and its attributes; false where there are too few arguments. */
static bool take_launch(const GpuKernel *kernel, const Any *values, const Any *end, LaunchConfig *config,
                        int64_t cluster[3]) {
  int64_t sizes[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
  for (const char *letter = kernel->launch; *letter; letter++) {
    LaunchAttribute *attribute = &config->attributes[config->attribute_count];
    if (*letter == 'e' || *letter == 'c') {
      attribute->id = *letter == 'e' ? STREAM_SERIALIZATION : COOPERATIVE;
      attribute->value.is_on = 1;
      config->attribute_count++;
      continue;
    }
    if (values == end) return false;
    int64_t value = values++->value.integer;
    if (*letter == 's') config->shared_bytes = (unsigned)value;
    else if (value > 0) sizes[*letter - '0'] = value;
  }
  for (int i = 0; i < 3; i++) {
    config->grid[i] = (unsigned)sizes[i];
    config->block[i] = (unsigned)sizes[3 + i];
    cluster[i] = sizes[6 + i];
  }
  if (!strpbrk(kernel->launch, "678")) return true;
  LaunchAttribute *attribute = &config->attributes[config->attribute_count++];
  attribute->id = CLUSTER_DIMENSION;
  for (int i = 0; i < 3; i++) attribute->value.cluster[i] = (unsigned)cluster[i];
  return true;
}

static int launch(const GpuKernel *kernel, const Any *values, int32_t count) {
  const Driver *driver = &current->gpu->driver;
  size_t arguments = strlen(kernel->arguments);
  if ((int32_t)arguments > count) return raised("a kernel has too few arguments");
  void *addresses[MAX_ARGUMENTS];
  union {
    int32_t integer;
    float real;
  } small[MAX_ARGUMENTS];
  for (size_t i = 0; i < arguments; i++) {
    char letter = kernel->arguments[i];
    addresses[i] = letter == 'i' || letter == 'f' ? (void *)&small[i] : (void *)&values[i].value;
    if (letter == 'i') small[i].integer = (int32_t)values[i].value.integer;
    if (letter == 'f') small[i].real = (float)values[i].value.real;
  }
  LaunchAttribute attributes[MAX_LAUNCH + 1] = {{0}};
  LaunchConfig config = {.stream = current->stream, .attributes = attributes};
  int64_t cluster[3];
  if (!take_launch(kernel, values + arguments, values + count, &config, cluster))
    return raised("a launch has too few arguments");
  bool is_done = true;
  if (config.shared_bytes >= PLAIN_SHARED_BYTES)
    is_done = CALL(driver, cuFuncSetAttribute, kernel->function, DYNAMIC_SHARED_BYTES, (int)config.shared_bytes);
  if (is_done && cluster[0] * cluster[1] * cluster[2] > PLAIN_CLUSTER)
    is_done = CALL(driver, cuFuncSetAttribute, kernel->function, NON_PORTABLE_CLUSTER, 1);
  is_done = is_done && CALL(driver, cuLaunchKernelEx, &config, kernel->function, addresses, NULL);
  return is_done ? 0 : raised(tvm_sparse_error());
}

/* Arrays, and last a text that says what is to be done with them. */
static int call_cudnn(const Any *values, int32_t count) {
  uint64_t addresses[MAX_ARGUMENTS];
  if (count < 1 || count > MAX_ARGUMENTS || values[count - 1].kind != KIND_TEXT)
    return raised("cuDNN is called in an unknown way");
  for (int32_t i = 0; i < count - 1; i++) {
    const DlTensor *array = values[i].value.pointer;
    addresses[i] = (uint64_t)(uintptr_t)array->data + array->offset;
  }
  const char *text = values[count - 1].value.pointer;
  bool is_done = cudnn_run(current->gpu, current->cudnn, text, addresses, (uint32_t)count - 1, current->stream);
  return is_done ? 0 : raised(tvm_sparse_error());
}

/* TVMFFIFunctionCall. */
static int call(void *function, const Any *values, int32_t count, Any *result) {
  const char *name = function;
  if (result) *result = (Any){0};
  if (!current) return raised("a kernel of a model for a CPU calls a function");
  const Gpu *gpu = current->gpu;
  const GpuKernel *kernel = bsearch(name, gpu->kernels, gpu->kernel_count, sizeof *kernel, by_name);
  if (kernel) return launch(kernel, values, count);
  /* The context is the thread's already. */
  if (!strcmp(name, "__tvm_set_device")) return 0;
  if (!strncmp(name, "tvm_sparse.cudnn_", sizeof "tvm_sparse.cudnn_" - 1)) return call_cudnn(values, count);
  return raised(name);
}

const Function GPU_FUNCTIONS[] = {{"__TVMFFIHandleInitOnce", (void *)init_once},
                                  {"__TVMFFIEnvModLookupFromImports", (void *)look_up},
                                  {"__TVMFFIFunctionCall", (void *)call},
                                  {NULL, NULL}};
