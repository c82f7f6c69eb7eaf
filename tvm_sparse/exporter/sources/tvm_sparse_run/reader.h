/* What reads a plan, piece by piece. */
#ifndef TVM_SPARSE_READER_H
#define TVM_SPARSE_READER_H

#include "internal.h"

/* Where the next number is; `damage` says what was wrong first, and then zeros are read. */
typedef struct {
  tvm_sparse_model *model;
  const char *at, *end, *damage;
} Reader;

void damaged(Reader *in, const char *damage);
void take(Reader *in, void *value, size_t size);
uint32_t take_u32(Reader *in);
uint64_t take_u64(Reader *in);
const char *take_text(Reader *in);
/* The items of a list, whose number comes first: each has four bytes at least. */
void *take_list(Reader *in, uint32_t *count, size_t size);

#endif
