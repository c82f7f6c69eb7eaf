/* Models of a node: loaded, and their contexts lent, each to one call at a time. */
#include "variant.h"

#include "internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

tvm_sparse_model *variant_load(const char *model_path, const char *name, size_t size) {
  char path[8192];
  const char *slash = *name == '/' ? NULL : strrchr(model_path, '/');
  int folder = slash ? (int)(slash - model_path) + 1 : 0;
  if (!size) return fail("the node says no plan; export the model again");
  if ((size_t)folder + size >= sizeof path) return fail("the path of the model is too long");
  snprintf(path, sizeof path, "%.*s%.*s", folder, model_path, (int)size, name);
  return tvm_sparse_load(path);
}

void variant_free(Variant *variant) {
  for (Borrowed *idle = variant->idle, *next; idle; idle = next) {
    next = idle->next;
    tvm_sparse_context_free(idle->context);
    free(idle);
  }
  tvm_sparse_context_free(variant->whole);
  tvm_sparse_free(variant->model);
}

static void end_whole(Share *share) {
  pthread_mutex_lock(&share->lock);
  share->is_whole_taken = false;
  pthread_mutex_unlock(&share->lock);
}

Borrowed *borrow(Share *share, Variant *variant) {
  Borrowed *found = NULL;
  pthread_mutex_lock(&share->lock);
  bool is_whole = !share->is_whole_taken;
  share->is_whole_taken = true;
  if (!is_whole && variant->idle) {
    found = variant->idle;
    variant->idle = found->next;
  }
  pthread_mutex_unlock(&share->lock);
  if (!found) found = calloc(1, sizeof *found);
  if (found && is_whole) {
    found->is_whole = true;
    if (!variant->whole) variant->whole = tvm_sparse_context_new(variant->model, share->threads);
    found->context = variant->whole;
  } else if (found && !found->context) {
    found->context = tvm_sparse_context_new(variant->model, 1);
  }
  if (found && found->context) return found;
  if (!found) fail("there is no memory for a call");
  free(found);
  if (is_whole) end_whole(share);
  return NULL;
}

void give_back(Share *share, Variant *variant, Borrowed *borrowed) {
  if (borrowed->is_whole) {
    free(borrowed);
    end_whole(share);
    return;
  }
  pthread_mutex_lock(&share->lock);
  borrowed->next = variant->idle;
  variant->idle = borrowed;
  pthread_mutex_unlock(&share->lock);
}
