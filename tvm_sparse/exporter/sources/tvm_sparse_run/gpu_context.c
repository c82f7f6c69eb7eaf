/* Contexts on a GPU: memory, a stream, and graphs of the model's kernels that are recorded once and launched again. */
#include "gpu_context.h"
#include "branches.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Sets of input addresses that get a graph of their own: that of the context's own inputs, and some of the caller's. */
enum { RECORDINGS = 5, SPARE_BYTES = 256 };
/* Numbers of the driver's API. */
enum { NON_BLOCKING = 1, WITHOUT_TIME = 2, PORTABLE = 1 };

typedef struct {
  uint64_t *inputs; /* NULL: none yet */
  void *graph;
} Recording;
struct GpuContext {
  Gpu *gpu;
  void *stream;
  /* Happens when the last call has run: its memory is that of the next one. */
  void *done;
  uint64_t memory;
  uint64_t *inputs;
  /* Outputs, and what index checks have found, in the host's memory. */
  void **results, *bounds;
  Recording recordings[RECORDINGS];
  CudnnState cudnn;
  bool has_run, is_recordable, is_on_host;
};

/* Memory on the GPU, and of the host for what comes back; what there is when it fails is freed with the context. */
static bool allocate_all(tvm_sparse_context *context, GpuContext *own) {
  const tvm_sparse_model *model = context->model;
  const Driver *driver = &own->gpu->driver;
  bool is_done = CALL(driver, cuStreamCreate, &own->stream, NON_BLOCKING);
  is_done = is_done && CALL(driver, cuEventCreate, &own->done, WITHOUT_TIME);
  is_done = is_done && CALL(driver, cuMemAlloc_v2, &own->memory, model->workspace_bytes + SPARE_BYTES);
  context->workspace = (char *)(uintptr_t)own->memory;
  for (uint32_t i = 0; is_done && i < model->input_count; i++)
    is_done = CALL(driver, cuMemAlloc_v2, &own->inputs[i], model->inputs[i].tensor.size_bytes + SPARE_BYTES);
  for (uint32_t i = 0; is_done && i < model->output_count; i++)
    is_done = CALL(driver, cuMemHostAlloc, &own->results[i], model->outputs[i].tensor.size_bytes + 1, PORTABLE);
  if (is_done && model->bounds_count)
    is_done = CALL(driver, cuMemHostAlloc, &own->bounds, model->bounds->size_bytes, PORTABLE);
  return is_done;
}

bool gpu_context_new(tvm_sparse_context *context) {
  const tvm_sparse_model *model = context->model;
  GpuContext *own = calloc(1, sizeof *own);
  if (!own) return fail("there is no memory for a context");
  own->gpu = model->gpu;
  own->is_recordable = true;
  own->inputs = calloc(model->input_count + 1, sizeof *own->inputs);
  own->results = calloc(model->output_count + 1, sizeof *own->results);
  Entry entry;
  context->gpu = own;
  bool is_whole = own->inputs && own->results;
  if (!is_whole) fail("there is no memory for a context");
  if (is_whole && model->gpu->process != getpid())
    is_whole = fail("the model was loaded before a fork, which CUDA does not survive; load it in this process");
  if (is_whole && (is_whole = gpu_enter(own->gpu, &entry))) {
    is_whole = allocate_all(context, own);
    gpu_leave(own->gpu, &entry);
  }
  return is_whole;
}

static void free_on_gpu(const tvm_sparse_context *context, GpuContext *own) {
  const tvm_sparse_model *model = context->model;
  const Driver *driver = &own->gpu->driver;
  /* Work on the caller's streams may not have run yet. */
  if (own->done) driver->cuEventSynchronize(own->done);
  for (int i = 0; i < RECORDINGS; i++)
    if (own->recordings[i].graph) driver->cuGraphExecDestroy(own->recordings[i].graph);
  cudnn_close(own->gpu, &own->cudnn);
  for (uint32_t i = 0; i < model->input_count; i++)
    if (own->inputs[i]) driver->cuMemFree_v2(own->inputs[i]);
  for (uint32_t i = 0; i < model->output_count; i++)
    if (own->results[i]) driver->cuMemFreeHost(own->results[i]);
  if (own->bounds) driver->cuMemFreeHost(own->bounds);
  if (own->memory) driver->cuMemFree_v2(own->memory);
  if (own->done) driver->cuEventDestroy_v2(own->done);
  if (own->stream) driver->cuStreamDestroy_v2(own->stream);
}

void gpu_context_free(tvm_sparse_context *context) {
  GpuContext *own = context->gpu;
  Entry entry;
  /* A child of the process that made it has no GPU. */
  if (own->inputs && own->results && context->process == getpid() && own->gpu->process == getpid() &&
      gpu_enter(own->gpu, &entry)) {
    free_on_gpu(context, own);
    gpu_leave(own->gpu, &entry);
  }
  for (int i = 0; i < RECORDINGS; i++) free(own->recordings[i].inputs);
  free(own->inputs);
  free(own->results);
  free(own);
}

/* Puts all kernels on a stream, or records them there with branches side by side. */
static bool launch_all(tvm_sparse_context *context, void *stream, bool is_recording) {
  GpuContext *own = context->gpu;
  Launching launching = {own->gpu, &own->cudnn, stream};
  gpu_launching(&launching);
  if (is_recording && context->model->ends.count) return record_branches(context, &own->gpu->driver, stream);
  return run_steps(context);
}

/* Records what `launch_all` does. Where that cannot be done, calls go on without. */
static void record(tvm_sparse_context *context, Recording *recording) {
  GpuContext *own = context->gpu;
  const Driver *driver = &own->gpu->driver;
  void *graph = NULL;
  own->is_recordable = !driver->cuStreamBeginCapture_v2(own->stream, RELAXED_CAPTURE);
  if (!own->is_recordable) return;
  bool is_done = launch_all(context, own->stream, true);
  is_done = !driver->cuStreamEndCapture(own->stream, &graph) && is_done && graph;
  own->is_recordable = is_done && !driver->cuGraphInstantiateWithFlags(&recording->graph, graph, 0);
  if (graph) driver->cuGraphDestroy(graph);
}

/* The graph for inputs at these addresses, recorded or not; NULL: all that there may be are for others. */
static Recording *recording_for(const tvm_sparse_context *context, const uint64_t *inputs) {
  GpuContext *own = context->gpu;
  size_t size = context->model->input_count * sizeof *inputs;
  for (int i = inputs == own->inputs ? 0 : 1; i < RECORDINGS; i++) {
    Recording *each = &own->recordings[i];
    if (each->inputs && !memcmp(each->inputs, inputs, size)) return each;
    if (each->inputs) continue;
    each->inputs = malloc(size + 1);
    return each->inputs ? memcpy(each->inputs, inputs, size), each : NULL;
  }
  return NULL;
}

/* Kernels read vectors, and a GPU refuses all further work after one that is not aligned. */
static bool are_aligned(const tvm_sparse_model *model, const uint64_t *inputs) {
  bool are = true;
  for (uint32_t i = 0; i < model->input_count; i++) are = are && inputs[i] % ALIGNMENT == 0;
  return are;
}

/* The model's kernels on a stream, for inputs on the GPU. */
static bool compute(tvm_sparse_context *context, const uint64_t *inputs, void *stream, bool is_capturing) {
  const tvm_sparse_model *model = context->model;
  GpuContext *own = context->gpu;
  bool is_recording = own->is_recordable && !is_capturing, is_read_in_place = are_aligned(model, inputs);
  Recording *recording = is_recording && is_read_in_place ? recording_for(context, inputs) : NULL;
  if (!is_read_in_place || (is_recording && !recording)) {
    for (uint32_t i = 0; i < model->input_count; i++) {
      size_t size = model->inputs[i].tensor.size_bytes;
      if (size && !CALL(&own->gpu->driver, cuMemcpyDtoDAsync_v2, own->inputs[i], inputs[i], size, stream)) return false;
    }
    inputs = own->inputs;
    recording = is_recording ? recording_for(context, inputs) : NULL;
  }
  for (uint32_t i = 0; i < model->input_count; i++) context->inputs[i] = (const char *)(uintptr_t)inputs[i];
  if (recording && recording->graph) return CALL(&own->gpu->driver, cuGraphLaunch, recording->graph, stream);
  bool is_done = launch_all(context, stream, false);
  own->has_run |= is_done;
  if (is_done && recording) record(context, recording);
  return is_done;
}

static bool has_addresses(const tvm_sparse_context *context, const void *const *inputs) {
  const tvm_sparse_model *model = context->model;
  for (uint32_t i = 0; i < model->input_count; i++)
    if (!inputs || !inputs[i]) return fail("input %s: its address is NULL", model->inputs[i].tensor.name);
  return true;
}

/* Waits for a stream, and looks at the indices that inputs say. */
static bool check(const tvm_sparse_context *context, void *stream) {
  const tvm_sparse_model *model = context->model;
  const GpuContext *own = context->gpu;
  const Driver *driver = &own->gpu->driver;
  if (model->bounds_count) {
    uint64_t from = (uint64_t)(uintptr_t)address_of(context, model->bounds);
    if (!CALL(driver, cuMemcpyDtoHAsync_v2, own->bounds, from, model->bounds->size_bytes, stream)) return false;
  }
  if (!CALL(driver, cuStreamSynchronize, stream)) return false;
  return !model->bounds_count || are_in_range(model, own->bounds);
}

static bool run_from_host(tvm_sparse_context *context, const void *const *inputs, void *const *outputs) {
  const tvm_sparse_model *model = context->model;
  GpuContext *own = context->gpu;
  const Driver *driver = &own->gpu->driver;
  void *stream = own->stream;
  if (!CALL(driver, cuStreamWaitEvent, stream, own->done, 0)) return false;
  for (uint32_t i = 0; i < model->input_count; i++) {
    size_t size = model->inputs[i].tensor.size_bytes;
    if (size && !CALL(driver, cuMemcpyHtoDAsync_v2, own->inputs[i], inputs[i], size, stream)) return false;
  }
  if (!compute(context, own->inputs, stream, false)) return false;
  for (uint32_t i = 0; i < model->output_count; i++) {
    const Argument *place = &model->outputs[i].place;
    uint64_t from = (uint64_t)(uintptr_t)address_of(context, place);
    if (place->size_bytes && !CALL(driver, cuMemcpyDtoHAsync_v2, own->results[i], from, place->size_bytes, stream))
      return false;
  }
  if (!check(context, stream)) return false;
  for (uint32_t i = 0; outputs && i < model->output_count; i++)
    if (outputs[i]) memcpy(outputs[i], own->results[i], model->outputs[i].place.size_bytes);
  return true;
}

bool gpu_run(tvm_sparse_context *context, const void *const *inputs, void *const *outputs, void *stream) {
  GpuContext *own = context->gpu;
  Entry entry;
  (void)stream;
  own->is_on_host = true;
  if (!has_addresses(context, inputs) || !gpu_enter(own->gpu, &entry)) return false;
  bool is_done = run_from_host(context, inputs, outputs);
  /* Inputs and outputs are the caller's again, whatever happened. */
  if (!is_done) own->gpu->driver.cuStreamSynchronize(own->stream);
  gpu_leave(own->gpu, &entry);
  return is_done;
}

static bool run_from_gpu(tvm_sparse_context *context, const void *const *inputs, void *const *outputs, void *stream,
                         bool is_capturing) {
  const tvm_sparse_model *model = context->model;
  const Driver *driver = &context->gpu->gpu->driver;
  uint64_t *addresses = malloc(model->input_count * sizeof *addresses + 1);
  if (!addresses) return fail("there is no memory for a call");
  for (uint32_t i = 0; i < model->input_count; i++) addresses[i] = (uint64_t)(uintptr_t)inputs[i];
  bool is_done = compute(context, addresses, stream, is_capturing);
  free(addresses);
  for (uint32_t i = 0; is_done && outputs && i < model->output_count; i++) {
    const Argument *place = &model->outputs[i].place;
    uint64_t to = (uint64_t)(uintptr_t)outputs[i], from = (uint64_t)(uintptr_t)address_of(context, place);
    if (to && place->size_bytes) is_done = CALL(driver, cuMemcpyDtoDAsync_v2, to, from, place->size_bytes, stream);
  }
  return is_done && (!model->bounds_count || check(context, stream));
}

bool gpu_run_on(tvm_sparse_context *context, const void *const *inputs, void *const *outputs, void *stream) {
  GpuContext *own = context->gpu;
  const Driver *driver = &own->gpu->driver;
  Entry entry;
  int is_capturing = 0;
  own->is_on_host = false;
  if (!has_addresses(context, inputs) || !gpu_enter(own->gpu, &entry)) return false;
  /* Nothing captures the default stream. */
  bool is_done = !stream || CALL(driver, cuStreamIsCapturing, stream, &is_capturing);
  if (is_done && is_capturing && (!own->has_run || context->model->bounds_count))
    is_done = fail("a first call, and a model that checks indices, cannot go into a CUDA graph");
  if (is_done && !is_capturing) is_done = CALL(driver, cuStreamWaitEvent, stream, own->done, 0);
  is_done = is_done && run_from_gpu(context, inputs, outputs, stream, is_capturing);
  /* Also what was put there before something failed is to end first. */
  if (!is_capturing) driver->cuEventRecord(own->done, stream);
  gpu_leave(own->gpu, &entry);
  return is_done;
}

const void *gpu_result(const tvm_sparse_context *context, int index) {
  const GpuContext *own = context->gpu;
  return own->is_on_host ? own->results[index] : address_of(context, &context->model->outputs[index].place);
}
