/* A node of a graph that a model computes. */
#ifndef TVM_SPARSE_ORT_NODE_H
#define TVM_SPARSE_ORT_NODE_H

#include "ort_abi.h"
#include "tvm_sparse.h"

/* The first line of plans whose first dimensions count samples. */
#define NODE_BATCHES "batches"

/* `plans` has the names of plan files, one a line, seen from the folder of `model_path`: one for each variant, of one
 * size the smallest batch first. NULL, and `tvm_sparse_error`, where one cannot be loaded. */
OrtNodeComputeInfo *node_new(const OrtApi *api, const char *model_path, const char *plans, int threads);
/* NULL is allowed. */
void node_free(OrtNodeComputeInfo *info);

#endif
