/* A context's part on a GPU. */
#ifndef TVM_SPARSE_GPU_CONTEXT_H
#define TVM_SPARSE_GPU_CONTEXT_H

#include "steps.h"

/* Memory, stream and graphs on the GPU; false, and an error, where they cannot be made. Sets `context->workspace`. */
bool gpu_context_new(tvm_sparse_context *context);
void gpu_context_free(tvm_sparse_context *context);
/* A call with inputs and outputs in the host's memory, and one on the GPU, put on the caller's `stream`. */
bool gpu_run(tvm_sparse_context *context, const void *const *inputs, void *const *outputs, void *stream);
bool gpu_run_on(tvm_sparse_context *context, const void *const *inputs, void *const *outputs, void *stream);
const void *gpu_result(const tvm_sparse_context *context, int index);

#endif
