/* Branches of a model side by side, in a CUDA graph. */
#ifndef TVM_SPARSE_BRANCHES_H
#define TVM_SPARSE_BRANCHES_H

#include "gpu.h"

/* Calls all kernels while `stream` is captured; each runs after those alone that the plan says. */
bool record_branches(tvm_sparse_context *context, const Driver *driver, void *stream);

#endif
