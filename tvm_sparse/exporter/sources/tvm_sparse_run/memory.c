/* What went wrong, as text of the calling thread, and the memory of models. */
#include "internal.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct Block {
  struct Block *next;
  max_align_t content[];
} Block;

static _Thread_local char error_text[1024];

void *fail(const char *format, ...) {
  va_list values;
  va_start(values, format);
  vsnprintf(error_text, sizeof error_text, format, values);
  va_end(values);
  return NULL;
}

const char *tvm_sparse_error(void) { return error_text; }

void *allocate(tvm_sparse_model *model, uint64_t count, size_t size) {
  uint64_t bytes;
  Block *block = NULL;
  if (!__builtin_mul_overflow(count, size, &bytes) && bytes < SIZE_MAX / 2) block = calloc(1, sizeof *block + bytes);
  if (!block) return fail("there is no memory for the model");
  block->next = model->blocks;
  model->blocks = block;
  return block->content;
}

void free_all(tvm_sparse_model *model) {
  for (Block *block = model->blocks, *next; block; block = next) {
    next = block->next;
    free(block);
  }
}
