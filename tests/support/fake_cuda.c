/* NVIDIA's driver on memory of the host, for exported models without a GPU.
 *
 * What comes to a stream is done at once, or kept by the graph that the stream is captured into, which does of what may
 * come next what was captured last. Kernels are functions of
 * the libraries that FAKE_CUDA_KERNELS lists, which `cuda_emulator` made of their source; without them nothing is computed.
 * New memory holds NaN. FAKE_CUDA_FAIL names a function that fails, with out of memory, and FAKE_CUDA_SM the architecture.
 * Wrong use ends the process: handles that do not live, no context, a stream that waits for the default one. At the end
 * of the process FAKE_CUDA_LOG gets a line for each function that was called, and how many handles still live. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OUT_OF_MEMORY = 2, NO_DEVICE = 100, MAX_HANDLES = 4096, MAX_ARGUMENTS = 256, CONTEXT = 0xC0 };
enum { MEMORY = 'm', HOST = 'h', MODULE = 'c', STREAM = 's', EVENT = 'e', GRAPH = 'g', EXECUTABLE = 'x' };
typedef struct {
  unsigned grid[3], block[3], shared_bytes;
  void *stream;
  struct { int id, zero; union { unsigned cluster[3]; char bytes[64]; } value; } *attributes;
  unsigned attribute_count;
} Config;
typedef void (*Kernel)(void **arguments, const unsigned *grid, const unsigned *block, unsigned cluster);
/* A launch, or a copy where there is no kernel. */
typedef struct Work {
  struct Work *next, **after;
  size_t after_count;
  int is_done;
  Kernel kernel;
  unsigned grid[3], block[3], cluster, count;
  uint64_t values[MAX_ARGUMENTS];
} Work;
/* Of a stream that is captured, `ends` is what the next work runs after. */
typedef struct { int kind; void *address; Work *first, **last, **ends; size_t end_count; int is_capturing; } Handle;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Handle handles[MAX_HANDLES];
static struct { const char *name; long count; } calls[64];
static _Thread_local int depth, mode;

static void wrong(const char *what, const char *call) {
  fprintf(stderr, "fake_cuda: %s in %s\n", what, call);
  abort();
}
static int enter(const char *call, int needs_context) {
  if (needs_context && !depth) wrong("no context", call);
  pthread_mutex_lock(&lock);
  int i = 0;
  while (calls[i].name && strcmp(calls[i].name, call)) i++;
  calls[i].name = call;
  calls[i].count++;
  pthread_mutex_unlock(&lock);
  const char *failing = getenv("FAKE_CUDA_FAIL");
  return failing && !strcmp(failing, call) ? OUT_OF_MEMORY : 0;
}
#define BEGIN if (enter(__func__, 1)) return OUT_OF_MEMORY
__attribute__((destructor)) static void report(void) {
  FILE *file = getenv("FAKE_CUDA_LOG") ? fopen(getenv("FAKE_CUDA_LOG"), "w") : NULL;
  long alive = 0;
  if (!file) return;
  for (int i = 0; calls[i].name; i++) fprintf(file, "%s %ld\n", calls[i].name, calls[i].count);
  for (int i = 0; i < MAX_HANDLES; i++) alive += handles[i].kind != 0;
  fprintf(file, "alive %ld\n", alive);
  fclose(file);
}

static Handle *add(int kind, void *address) {
  pthread_mutex_lock(&lock);
  Handle *each = handles;
  while (each < handles + MAX_HANDLES && each->kind) each++;
  if (each == handles + MAX_HANDLES) wrong("too many handles", "add");
  *each = (Handle){kind, address, NULL, NULL, NULL, 0, 0};
  each->last = &each->first;
  pthread_mutex_unlock(&lock);
  return each;
}
static Handle *alive(void *handle, int kind, const char *call) {
  Handle *each = handle;
  if (each < handles || each >= handles + MAX_HANDLES || each->kind != kind) wrong("a dead handle", call);
  return each;
}
static Handle *memory_at(void *address, int kind, const char *call) {
  pthread_mutex_lock(&lock);
  Handle *each = handles;
  while (each < handles + MAX_HANDLES && (each->kind != kind || each->address != address)) each++;
  pthread_mutex_unlock(&lock);
  if (each == handles + MAX_HANDLES) wrong("memory that is not there", call);
  return each;
}
static void drop(Handle *handle) {
  pthread_mutex_lock(&lock);
  handle->kind = 0;
  pthread_mutex_unlock(&lock);
}
static int new_memory(int kind, void **address, size_t size) {
  if (!size) wrong("no bytes", "an allocation");
  *address = size > 1 << 30 ? NULL : aligned_alloc(256, (size + 255) / 256 * 256);
  if (!*address) return OUT_OF_MEMORY;
  memset(*address, 255, (size + 255) / 256 * 256);
  add(kind, *address);
  return 0;
}
static int free_memory(int kind, void *address, const char *call) {
  drop(memory_at(address, kind, call));
  free(address);
  return 0;
}

static void run(const Work *work) {
  void *arguments[MAX_ARGUMENTS];
  for (unsigned i = 0; i < work->count; i++) arguments[i] = (void *)&work->values[i];
  if (work->kernel) work->kernel(arguments, work->grid, work->block, work->cluster);
  else if (work->values[2]) memcpy((void *)work->values[0], (void *)work->values[1], work->values[2]);
}
static void set_ends(Handle *handle, Work **ends, size_t count) {
  handle->ends = memcpy(malloc(count * sizeof *ends + 1), ends, count * sizeof *ends);
  handle->end_count = count;
}
/* Default streams have no handle. */
static int put(void *stream, const Work *work, const char *call) {
  Handle *handle = stream ? alive(stream, STREAM, call) : NULL;
  if (!handle || !handle->is_capturing) return run(work), 0;
  Work *kept = malloc(sizeof *kept);
  *kept = *work;
  kept->next = NULL;
  kept->after = handle->ends;
  kept->after_count = handle->end_count;
  *handle->last = kept;
  handle->last = &kept->next;
  set_ends(handle, &kept, 1);
  return 0;
}
static int copy(uint64_t to, uint64_t from, size_t size, void *stream, const char *call) {
  return put(stream, &(Work){.values = {to, from, size}, .count = 3}, call);
}

int cuInit(unsigned flags) { return getenv("FAKE_CUDA_NONE") ? NO_DEVICE : enter(__func__, 0) + (int)flags; }
int cuGetErrorName(int code, const char **name) {
  *name = code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : code == NO_DEVICE ? "CUDA_ERROR_NO_DEVICE" : "OTHER";
  return 0;
}
int cuDeviceGet(int *device, int number) { *device = number; return number ? 101 : enter(__func__, 0); }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
  int sm = getenv("FAKE_CUDA_SM") ? atoi(getenv("FAKE_CUDA_SM")) : 90;
  *value = attribute == 75 ? sm / 10 : sm % 10;
  return enter(__func__, 0) + device;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)CONTEXT; return enter(__func__, 0) + device; }
int cuDevicePrimaryCtxRelease_v2(int device) { return enter(__func__, 0) + device; }
int cuCtxPushCurrent_v2(void *context) {
  if (context != (void *)CONTEXT) wrong("another context", __func__);
  depth++;
  return enter(__func__, 1);
}
int cuCtxPopCurrent_v2(void **context) { BEGIN; *context = (void *)CONTEXT; depth--; return 0; }
int cuThreadExchangeStreamCaptureMode(int *other) { BEGIN; int now = mode; mode = *other; *other = now; return 0; }
int cuModuleLoadData(void **module, const void *code) { BEGIN; *module = add(MODULE, (void *)code); return 0; }
int cuModuleUnload(void *module) { BEGIN; drop(alive(module, MODULE, __func__)); return 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
  BEGIN;
  alive(module, MODULE, __func__);
  /* Functions are their names. */
  *function = (void *)name;
  return 0;
}
int cuFuncSetAttribute(void *function, int attribute, int value) {
  BEGIN;
  if (!function || (attribute != 8 && attribute != 14) || value < 1) wrong("an unknown attribute", __func__);
  return 0;
}
static void *in_libraries(const char *prefix, const char *name) {
  char symbol[512], paths[4096];
  snprintf(symbol, sizeof symbol, "%s%s", prefix, name);
  snprintf(paths, sizeof paths, "%s", getenv("FAKE_CUDA_KERNELS"));
  for (char *rest, *path = strtok_r(paths, ":", &rest); path; path = strtok_r(NULL, ":", &rest)) {
    void *library = dlopen(path, RTLD_NOW), *found = library ? dlsym(library, symbol) : NULL;
    if (!library) wrong(dlerror(), __func__);
    if (found) return found;
  }
  wrong(name, "no kernel is called so");
  return NULL;
}
int cuLaunchKernelEx(const Config *config, void *function, void **arguments, void **extra) {
  BEGIN;
  if (mode != 2 || extra) wrong("another thread's capture would forbid it", __func__);
  Work work = {.cluster = 1, .count = 0};
  for (unsigned i = 0; i < config->attribute_count; i++)
    if (config->attributes[i].id == 4) work.cluster = config->attributes[i].value.cluster[2];
  memcpy(work.grid, config->grid, sizeof work.grid);
  memcpy(work.block, config->block, sizeof work.block);
  if (getenv("FAKE_CUDA_KERNELS")) {
    *(void **)&work.kernel = in_libraries("launch_", function);
    work.count = *(unsigned *)in_libraries("arguments_", function);
  }
  for (unsigned i = 0; i < work.count; i++) memcpy(&work.values[i], arguments[i], sizeof *work.values);
  return put(config->stream, &work, __func__);
}
int cuMemAlloc_v2(uint64_t *address, size_t size) { BEGIN; return new_memory(MEMORY, (void **)address, size); }
int cuMemFree_v2(uint64_t address) { BEGIN; return free_memory(MEMORY, (void *)address, __func__); }
int cuMemHostAlloc(void **address, size_t size, unsigned flags) { BEGIN; return flags == 1 ? new_memory(HOST, address, size) : 1; }
int cuMemFreeHost(void *address) { BEGIN; return free_memory(HOST, address, __func__); }
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t n) { BEGIN; return copy(to, (uint64_t)from, n, NULL, __func__); }
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t n, void *stream) {
  BEGIN;
  return copy(to, (uint64_t)from, n, stream, __func__);
}
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t n, void *stream) {
  BEGIN;
  return copy((uint64_t)to, from, n, stream, __func__);
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t n, void *stream) {
  BEGIN;
  return copy(to, from, n, stream, __func__);
}
int cuStreamCreate(void **stream, unsigned flags) {
  BEGIN;
  if (flags != 1) wrong("a stream that waits for the default one", __func__);
  *stream = add(STREAM, NULL);
  return 0;
}
int cuStreamDestroy_v2(void *stream) { BEGIN; drop(alive(stream, STREAM, __func__)); return 0; }
int cuStreamSynchronize(void *stream) { BEGIN; return stream && alive(stream, STREAM, __func__)->is_capturing ? 900 : 0; }
int cuStreamWaitEvent(void *stream, void *event, unsigned flags) {
  BEGIN;
  if (stream) alive(stream, STREAM, __func__);
  alive(event, EVENT, __func__);
  return (int)flags;
}
int cuStreamIsCapturing(void *stream, int *status) { BEGIN; *status = alive(stream, STREAM, __func__)->is_capturing; return 0; }
int cuStreamBeginCapture_v2(void *stream, int how) {
  BEGIN;
  if (how != 2) wrong("a capture that forbids others to allocate", __func__);
  alive(stream, STREAM, __func__)->is_capturing = 1;
  return 0;
}
int cuStreamGetCaptureInfo_v3(void *stream, int *status, uint64_t *id, void **graph, Work ***nodes, void **edges,
                              size_t *count) {
  BEGIN;
  Handle *handle = alive(stream, STREAM, __func__);
  if (!handle->is_capturing || id || graph) wrong("nothing is captured", __func__);
  *status = handle->is_capturing;
  *nodes = handle->ends;
  *edges = NULL;
  *count = handle->end_count;
  return 0;
}
int cuStreamUpdateCaptureDependencies_v2(void *stream, Work **nodes, void *edges, size_t count, unsigned how) {
  BEGIN;
  Handle *handle = alive(stream, STREAM, __func__);
  if (!handle->is_capturing || edges || how != 1) wrong("dependencies that cannot be set", __func__);
  free(handle->ends);
  set_ends(handle, nodes, count);
  return 0;
}
static Work *taken(Handle *handle) {
  Work *work = handle->first;
  handle->first = NULL;
  handle->last = &handle->first;
  return work;
}
int cuStreamEndCapture(void *stream, void **graph) {
  alive(stream, STREAM, __func__)->is_capturing = 0;
  BEGIN;
  Handle *handle = alive(stream, STREAM, __func__), *made = add(GRAPH, NULL);
  made->first = taken(handle);
  free(handle->ends);
  handle->ends = NULL;
  handle->end_count = 0;
  *graph = made;
  return 0;
}
int cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags) {
  BEGIN;
  Handle *made = add(EXECUTABLE, NULL);
  made->first = taken(alive(graph, GRAPH, __func__));
  *executable = made;
  return (int)flags;
}
static int free_graph(Handle *handle) {
  for (Work *work = handle->first, *next; work; work = next) next = work->next, free(work->after), free(work);
  drop(handle);
  return 0;
}
int cuGraphDestroy(void *graph) { BEGIN; return free_graph(alive(graph, GRAPH, __func__)); }
int cuGraphExecDestroy(void *executable) { BEGIN; return free_graph(alive(executable, EXECUTABLE, __func__)); }
int cuGraphLaunch(void *executable, void *stream) {
  BEGIN;
  Work *first = alive(executable, EXECUTABLE, __func__)->first, *next;
  for (Work *work = first; work; work = work->next) work->is_done = 0;
  do {
    next = NULL;
    for (Work *work = first; work; work = work->next) {
      size_t ready = work->is_done ? 0 : 1;
      for (size_t i = 0; i < work->after_count; i++) ready &= work->after[i]->is_done;
      if (ready) next = work;
    }
    if (next) put(stream, next, __func__), next->is_done = 1;
  } while (next);
  return 0;
}
int cuEventCreate(void **event, unsigned flags) { BEGIN; *event = add(EVENT, NULL); return flags == 2 ? 0 : 1; }
int cuEventDestroy_v2(void *event) { BEGIN; drop(alive(event, EVENT, __func__)); return 0; }
int cuEventRecord(void *event, void *stream) {
  BEGIN;
  if (stream) alive(stream, STREAM, __func__);
  alive(event, EVENT, __func__);
  return 0;
}
int cuEventSynchronize(void *event) { BEGIN; alive(event, EVENT, __func__); return 0; }
