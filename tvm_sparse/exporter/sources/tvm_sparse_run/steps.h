/* What a call works with, and its kernels one after the other. */
#ifndef TVM_SPARSE_STEPS_H
#define TVM_SPARSE_STEPS_H

#include "internal.h"

#include <stdatomic.h>
#include <sys/types.h>

typedef struct GpuContext GpuContext;

struct tvm_sparse_context {
  const tvm_sparse_model *model;
  GpuContext *gpu; /* NULL: on a CPU */
  Crew *crew;
  int threads;
  pid_t process;
  atomic_flag is_busy;
  bool has_results;
  char *workspace;
  /* Addresses of this call's inputs, and copies of those that were not aligned. */
  const char **inputs;
  char **copies;
  /* Arguments of all steps, one after the other, and the tensors that they point to. */
  Any *arguments;
  DlTensor *tensors;
};

/* Where a tensor is, on the GPU of a model for one. */
char *address_of(const tvm_sparse_context *context, const Argument *argument);
/* Calls the kernel of a step. */
bool run_step(tvm_sparse_context *context, uint32_t number);
/* Calls all, one after the other. */
bool run_steps(tvm_sparse_context *context);
/* Whether the indices that were `found` are in their ranges. */
bool are_in_range(const tvm_sparse_model *model, const int64_t *found);

#endif
