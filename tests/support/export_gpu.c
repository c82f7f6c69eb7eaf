/* Calls an exported model for a GPU in all ways: export_gpu MODEL.plan INPUT... > OUTPUTS
 * Compares with the first call, and says what differs. It runs on a GPU, and on `fake_cuda.c`. */
#include "tvm_sparse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 8 };

int cuInit(unsigned flags);
int cuDeviceGet(int *device, int number);
int cuDevicePrimaryCtxRetain(void **context, int device);
int cuDevicePrimaryCtxRelease_v2(int device);
int cuCtxPushCurrent_v2(void *context);
int cuCtxPopCurrent_v2(void **context);
int cuMemAlloc_v2(uint64_t *address, size_t size_bytes);
int cuMemFree_v2(uint64_t address);
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size_bytes);
int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t size_bytes, void *stream);
int cuStreamSynchronize(void *stream);
int cuStreamCreate(void **stream, unsigned flags);
int cuStreamDestroy_v2(void *stream);
int cuStreamBeginCapture_v2(void *stream, int mode);
int cuStreamEndCapture(void *stream, void **graph);
int cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags);
int cuGraphLaunch(void *executable, void *stream);
int cuGraphDestroy(void *graph);
int cuGraphExecDestroy(void *executable);

static tvm_sparse_model *model;
static tvm_sparse_context *context;
static const void *inputs[MOST];
static void *outputs[MOST], *expected[MOST];
/* The same on the GPU. */
static uint64_t their_inputs[MOST], their_outputs[MOST];

static void must(int failed) {
  if (!failed) return;
  fprintf(stderr, "%s\n", tvm_sparse_error());
  exit(1);
}

static void compare(const char *what) {
  for (int i = 0; i < tvm_sparse_output_count(model); i++) {
    size_t size = tvm_sparse_output(model, i)->size_bytes;
    if (memcmp(outputs[i], expected[i], size)) fprintf(stderr, "%s: output %d differs\n", what, i);
    memset(outputs[i], 0, size);
  }
}

/* The driver may return before the copy has been done, for which other streams do not wait. */
static void copy_there(uint64_t to, const void *from, size_t size_bytes) {
  cuMemcpyHtoD_v2(to, from, size_bytes);
  cuStreamSynchronize(NULL);
}

/* Compares what lies on the GPU at these addresses, and overwrites it: the next call has to write it again. The cuDNN for
 * tests is in no graph, so that there the results of the last call must be left. */
static void compare_there(const char *what, const uint64_t *from, void *stream) {
  for (int i = 0; i < tvm_sparse_output_count(model); i++)
    cuMemcpyDtoHAsync_v2(outputs[i], from[i], tvm_sparse_output(model, i)->size_bytes, stream);
  cuStreamSynchronize(stream);
  compare(what);
  for (int i = 0; getenv("OVERWRITE") && i < tvm_sparse_output_count(model); i++)
    copy_there(from[i], outputs[i], tvm_sparse_output(model, i)->size_bytes);
}

static void capture(void *stream);

static void call_on_gpu(void *stream) {
  uint64_t in_place[MOST];
  must(tvm_sparse_run_on(context, (const void *const *)their_inputs, (void *const *)their_outputs, stream));
  compare_there("on the GPU", their_outputs, stream);
  must(tvm_sparse_run_on(context, (const void *const *)their_inputs, NULL, stream));
  for (int i = 0; i < tvm_sparse_output_count(model); i++)
    in_place[i] = (uint64_t)(uintptr_t)tvm_sparse_result(context, i);
  compare_there("in place", in_place, stream);
}

/* Kernels cannot read vectors at such an address; `capture` and the GPU's next work would show it. */
static void call_unaligned(void *stream) {
  size_t size = tvm_sparse_input(model, 0)->size_bytes;
  uint64_t aligned = their_inputs[0], room;
  cuMemAlloc_v2(&room, size + 4);
  copy_there(room + 4, inputs[0], size);
  their_inputs[0] = room + 4;
  call_on_gpu(stream);
  capture(stream);
  their_inputs[0] = aligned;
  cuMemFree_v2(room);
}

/* As another library captures calls of ours. */
static void capture(void *stream) {
  void *graph, *executable;
  cuStreamBeginCapture_v2(stream, 2);
  int failed = tvm_sparse_run_on(context, (const void *const *)their_inputs, (void *const *)their_outputs, stream);
  if (failed) fprintf(stderr, "captured: %s\n", tvm_sparse_error());
  if (!cuStreamEndCapture(stream, &graph)) {
    cuGraphInstantiateWithFlags(&executable, graph, 0);
    cuGraphLaunch(executable, stream);
    if (!failed) compare_there("captured", their_outputs, stream);
    cuStreamSynchronize(stream);
    cuGraphDestroy(graph);
    cuGraphExecDestroy(executable);
  }
}

int main(int argc, char **argv) {
  void *gpu, *stream, *popped;
  int device;
  model = tvm_sparse_load(argv[1]);
  context = model ? tvm_sparse_context_new(model, 0) : NULL;
  must(!context);
  if (cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&gpu, device) || cuCtxPushCurrent_v2(gpu))
    return 3;
  for (int i = 0; i < argc - 2; i++) {
    size_t size = tvm_sparse_input(model, i)->size_bytes;
    FILE *file = fopen(argv[2 + i], "rb");
    inputs[i] = malloc(size);
    if (!file || fread((void *)inputs[i], 1, size, file) != size) return 2;
    fclose(file);
    cuMemAlloc_v2(&their_inputs[i], size);
    copy_there(their_inputs[i], inputs[i], size);
  }
  for (int i = 0; i < tvm_sparse_output_count(model); i++) {
    size_t size = tvm_sparse_output(model, i)->size_bytes;
    outputs[i] = calloc(1, size);
    expected[i] = malloc(size);
    cuMemAlloc_v2(&their_outputs[i], size);
  }
  cuStreamCreate(&stream, 1);
  capture(stream);
  must(tvm_sparse_run(context, inputs, expected));
  for (int i = 0; i < tvm_sparse_output_count(model); i++)
    fwrite(tvm_sparse_result(context, i), 1, tvm_sparse_output(model, i)->size_bytes, stdout);
  for (int i = 0; i < 3; i++) {
    must(tvm_sparse_run(context, inputs, outputs));
    compare("from the host");
  }
  /* More addresses than there are graphs. */
  uint64_t moved[MOST];
  for (int i = 0; i < MOST; i++) {
    size_t size = tvm_sparse_input(model, 0)->size_bytes;
    moved[i] = their_inputs[0];
    cuMemAlloc_v2(&their_inputs[0], size);
    copy_there(their_inputs[0], inputs[0], size);
    call_on_gpu(i % 2 ? stream : NULL);
  }
  capture(stream);
  call_unaligned(stream);
  for (int i = 0; i < MOST; i++) cuMemFree_v2(moved[i]);
  cuStreamDestroy_v2(stream);
  for (int i = 0; i < argc - 2; i++) {
    free((void *)inputs[i]);
    cuMemFree_v2(their_inputs[i]);
  }
  for (int i = 0; i < tvm_sparse_output_count(model); i++) {
    free(outputs[i]);
    free(expected[i]);
    cuMemFree_v2(their_outputs[i]);
  }
  tvm_sparse_context_free(context);
  tvm_sparse_free(model);
  cuCtxPopCurrent_v2(&popped);
  cuDevicePrimaryCtxRelease_v2(device);
  return 0;
}
