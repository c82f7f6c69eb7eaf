/* Many threads call one model, each with a context of its own: threads MODEL.plan CALLS WORKERS INPUT...
 * Prints how many calls gave another result than the first. */
#include "tvm_sparse.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 16 };

static const char *plan_path;
static int calls, workers;
static tvm_sparse_model *model;
static const void *inputs[16];
static void *expected;
static size_t size_bytes;
static atomic_int wrong;

static void fail(void) {
  fprintf(stderr, "%s\n", tvm_sparse_error());
  exit(1);
}

static void call(tvm_sparse_context *context, void *result) {
  void *outputs[16] = {result};
  if (tvm_sparse_run(context, inputs, outputs)) fail();
}

/* Every other thread loads the model once more, and frees it. */
static void *work(void *number) {
  tvm_sparse_model *own = (size_t)number % 2 ? tvm_sparse_load(plan_path) : model;
  tvm_sparse_context *context = own ? tvm_sparse_context_new(own, workers) : NULL;
  if (!context) fail();
  void *result = malloc(size_bytes);
  for (int i = 0; i < calls; i++) {
    memset(result, 0, size_bytes);
    call(context, result);
    if (memcmp(result, expected, size_bytes)) atomic_fetch_add(&wrong, 1);
  }
  free(result);
  tvm_sparse_context_free(context);
  if (own != model) tvm_sparse_free(own);
  return NULL;
}

int main(int argc, char **argv) {
  plan_path = argv[1];
  calls = atoi(argv[2]);
  workers = atoi(argv[3]);
  model = tvm_sparse_load(plan_path);
  tvm_sparse_context *first = model ? tvm_sparse_context_new(model, 1) : NULL;
  if (!first || argc != 4 + tvm_sparse_input_count(model)) fail();
  for (int i = 0; i < argc - 4; i++) {
    size_t size = tvm_sparse_input(model, i)->size_bytes;
    void *input = malloc(size);
    FILE *file = fopen(argv[4 + i], "rb");
    if (!file || fread(input, 1, size, file) != size) return 1;
    fclose(file);
    inputs[i] = input;
  }
  size_bytes = tvm_sparse_output(model, 0)->size_bytes;
  expected = malloc(size_bytes);
  call(first, expected);
  pthread_t threads[THREADS];
  for (size_t i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, (void *)i);
  for (size_t i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  printf("%d\n", wrong);
  for (int i = 0; i < argc - 4; i++) free((void *)inputs[i]);
  free(expected);
  tvm_sparse_context_free(first);
  tvm_sparse_free(model);
  return 0;
}
