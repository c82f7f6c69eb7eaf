/* Runs the model once: main [MODEL.plan [INPUT ...]] > OUTPUTS. Files hold bare elements; inputs without one are zero. */
#include "tvm_sparse.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
  tvm_sparse_model *model = tvm_sparse_load(argc > 1 ? argv[1] : "model.plan");
  tvm_sparse_context *context = model ? tvm_sparse_context_new(model, 0) : NULL;
  if (!context) return fprintf(stderr, "%s\n", tvm_sparse_error()), 1;
  if (argc > tvm_sparse_input_count(model) + 2)
    return fprintf(stderr, "%d inputs; allowed: %d\n", argc - 2, tvm_sparse_input_count(model)), 1;
  const void **inputs = calloc((size_t)tvm_sparse_input_count(model) + 1, sizeof *inputs);
  for (int i = 0; i < tvm_sparse_input_count(model); i++) {
    size_t size = tvm_sparse_input(model, i)->size_bytes;
    void *input = calloc(1, size + 1);
    FILE *file = i + 2 < argc ? fopen(argv[i + 2], "rb") : NULL;
    if (i + 2 < argc && (!file || fread(input, 1, size + 1, file) != size))
      return fprintf(stderr, "%s: cannot be read, or is not of %zu bytes\n", argv[i + 2], size), 1;
    if (file) fclose(file);
    inputs[i] = input;
  }
  if (tvm_sparse_run(context, inputs, NULL)) return fprintf(stderr, "%s\n", tvm_sparse_error()), 1;
  for (int i = 0; i < tvm_sparse_output_count(model); i++)
    fwrite(tvm_sparse_result(context, i), 1, tvm_sparse_output(model, i)->size_bytes, stdout);
  for (int i = 0; i < tvm_sparse_input_count(model); i++) free((void *)inputs[i]);
  free(inputs);
  tvm_sparse_context_free(context);
  tvm_sparse_free(model);
  return 0;
}
