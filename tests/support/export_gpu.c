/* Calls an exported model for a GPU in all ways: export_gpu MODEL.plan INPUT... > OUTPUTS
 * Compares with the first call, and says what differs. It runs on `fake_cuda.c`, to which the host's memory is the GPU's. */
#include "tvm_sparse.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 8 };

int cuCtxPushCurrent_v2(void *context);
int cuCtxPopCurrent_v2(void **context);
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

static void call_on_gpu(void *stream) {
  must(tvm_sparse_run_on(context, inputs, outputs, stream));
  compare("on the GPU");
  must(tvm_sparse_run_on(context, inputs, NULL, stream));
  for (int i = 0; i < tvm_sparse_output_count(model); i++)
    memcpy(outputs[i], tvm_sparse_result(context, i), tvm_sparse_output(model, i)->size_bytes);
  compare("in place");
}

/* As another library captures calls of ours. */
static void capture(void *stream) {
  void *graph, *executable, *popped;
  cuCtxPushCurrent_v2((void *)0xC0);
  cuStreamBeginCapture_v2(stream, 2);
  int failed = tvm_sparse_run_on(context, inputs, outputs, stream);
  if (failed) fprintf(stderr, "captured: %s\n", tvm_sparse_error());
  if (!cuStreamEndCapture(stream, &graph)) {
    cuGraphInstantiateWithFlags(&executable, graph, 0);
    cuGraphLaunch(executable, stream);
    cuGraphDestroy(graph);
    cuGraphExecDestroy(executable);
    if (!failed) compare("captured");
  }
  cuCtxPopCurrent_v2(&popped);
}

int main(int argc, char **argv) {
  void *stream, *popped;
  model = tvm_sparse_load(argv[1]);
  context = model ? tvm_sparse_context_new(model, 0) : NULL;
  must(!context);
  for (int i = 0; i < argc - 2; i++) {
    size_t size = tvm_sparse_input(model, i)->size_bytes;
    FILE *file = fopen(argv[2 + i], "rb");
    inputs[i] = malloc(size);
    if (!file || fread((void *)inputs[i], 1, size, file) != size) return 2;
    fclose(file);
  }
  for (int i = 0; i < tvm_sparse_output_count(model); i++) {
    size_t size = tvm_sparse_output(model, i)->size_bytes;
    outputs[i] = calloc(1, size);
    expected[i] = malloc(size);
  }
  cuCtxPushCurrent_v2((void *)0xC0);
  cuStreamCreate(&stream, 1);
  cuCtxPopCurrent_v2(&popped);
  capture(stream);
  must(tvm_sparse_run(context, inputs, expected));
  for (int i = 0; i < tvm_sparse_output_count(model); i++)
    fwrite(tvm_sparse_result(context, i), 1, tvm_sparse_output(model, i)->size_bytes, stdout);
  for (int i = 0; i < 3; i++) {
    must(tvm_sparse_run(context, inputs, outputs));
    compare("from the host");
  }
  /* More addresses than there are graphs. */
  void *moved[MOST];
  for (int i = 0; i < MOST; i++) {
    size_t size = tvm_sparse_input(model, 0)->size_bytes;
    moved[i] = (void *)inputs[0];
    inputs[0] = memcpy(malloc(size), inputs[0], size);
    call_on_gpu(i % 2 ? stream : NULL);
  }
  for (int i = 0; i < MOST; i++) free(moved[i]);
  capture(stream);
  cuCtxPushCurrent_v2((void *)0xC0);
  cuStreamDestroy_v2(stream);
  cuCtxPopCurrent_v2(&popped);
  for (int i = 0; i < argc - 2; i++) free((void *)inputs[i]);
  for (int i = 0; i < tvm_sparse_output_count(model); i++) {
    free(outputs[i]);
    free(expected[i]);
  }
  tvm_sparse_context_free(context);
  tvm_sparse_free(model);
  return 0;
}
