/* One of the models of a node, and the contexts that its calls take in turns. */
#ifndef TVM_SPARSE_ORT_VARIANT_H
#define TVM_SPARSE_ORT_VARIANT_H

#include "tvm_sparse.h"

#include <pthread.h>
#include <stdbool.h>

/* What the variants of a node share: of its calls one at a time has all threads. */
typedef struct {
  int threads;
  pthread_mutex_t lock;
  bool is_whole_taken;
} Share;
/* A context for a call: that with all threads, or one with one thread, which the next call may take. */
typedef struct Borrowed {
  struct Borrowed *next;
  tvm_sparse_context *context;
  bool is_whole;
} Borrowed;
typedef struct {
  tvm_sparse_model *model;
  int64_t samples;
  /* With all threads: of the call that met no other. */
  tvm_sparse_context *whole;
  Borrowed *idle;
} Variant;

/* The model whose plan is called so, of `size` letters, in the folder of `model_path`; NULL: see `tvm_sparse_error`. */
tvm_sparse_model *variant_load(const char *model_path, const char *name, size_t size);
void variant_free(Variant *variant);
/* A context for one call: with all threads, or with one where another call has those; NULL: see `tvm_sparse_error`. */
Borrowed *borrow(Share *share, Variant *variant);
void give_back(Share *share, Variant *variant, Borrowed *borrowed);

#endif
