/* Numbers, text and lists of a plan. */
#include "reader.h"

#include <string.h>

void damaged(Reader *in, const char *damage) {
  if (!in->damage) in->damage = damage;
  in->at = in->end;
}

void take(Reader *in, void *value, size_t size) {
  memset(value, 0, size);
  if ((size_t)(in->end - in->at) < size) {
    damaged(in, "it ends too early");
    return;
  }
  memcpy(value, in->at, size);
  in->at += size;
}

uint32_t take_u32(Reader *in) {
  uint32_t value;
  take(in, &value, sizeof value);
  return value;
}

uint64_t take_u64(Reader *in) {
  uint64_t value;
  take(in, &value, sizeof value);
  return value;
}

const char *take_text(Reader *in) {
  uint64_t size = take_u32(in);
  const char *text = in->at;
  if ((uint64_t)(in->end - text) <= size || text[size]) {
    damaged(in, "a text does not end");
    return "";
  }
  in->at += size + 1;
  return text;
}

void *take_list(Reader *in, uint32_t *count, size_t size) {
  *count = take_u32(in);
  if (*count > (size_t)(in->end - in->at) / 4) damaged(in, "a list does not end");
  if (in->damage) *count = 0;
  void *items = allocate(in->model, *count, size);
  if (!items) {
    damaged(in, "there is no memory for it");
    *count = 0;
  }
  return items;
}
