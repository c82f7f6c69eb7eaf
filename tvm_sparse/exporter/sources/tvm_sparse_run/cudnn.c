/* cuDNN's part of a model: descriptors that are made once, and calls, as the plan lists them. */
#define _GNU_SOURCE
#include "gpu.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY "libcudnn.so.9"
/* Its functions take up to 18 numbers and addresses, and one a floating-point number. On 64-bit Linux these travel in
 * registers of their own, and what a function does not take disturbs nothing, so all are called alike. */
typedef uint64_t Word;
typedef int (*Call)(double, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word,
                    Word, Word);

static void *find(void *library, const char *name) {
  void *function = dlsym(library, name);
  return function ? function : fail(LIBRARY ": lacks %s; install cuDNN 9", name);
}

static bool find_all(void *library, CudnnCall *calls, uint32_t count) {
  for (uint32_t i = 0; i < count; i++)
    if (!(calls[i].function = find(library, calls[i].name))) return false;
  return true;
}

bool cudnn_open(Gpu *gpu) {
  gpu->cudnn = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  const char *text = "%s: cannot be loaded, and the model calls cuDNN (%s); install cuDNN 9, put its folder into "
                     "LD_LIBRARY_PATH, or compile the model without it";
  if (!gpu->cudnn) return fail(text, LIBRARY, dlerror());
  bool is_whole = true;
  for (uint32_t i = 0; is_whole && i < gpu->work_count; i++) {
    CudnnWork *work = &gpu->works[i];
    is_whole = find_all(gpu->cudnn, work->setup, work->setup_count);
    is_whole = is_whole && find_all(gpu->cudnn, work->calls, work->call_count);
  }
  /* What is found stays: it is never unloaded. */
  dlclose(gpu->cudnn);
  return is_whole;
}

static bool succeeded(const Gpu *gpu, int status, const char *name) {
  const char *(*text)(int);
  if (!status) return true;
  *(void **)&text = dlsym(gpu->cudnn, "cudnnGetErrorString");
  return fail("cuDNN: %s failed (%s); compile the model here, or without cuDNN", name, text ? text(status) : "unknown");
}

/* Calls `function` for a handle or descriptor at `handle`. */
static bool call_for(const Gpu *gpu, const char *name, void *handle) {
  int (*function)(void *);
  *(void **)&function = find(gpu->cudnn, name);
  return function && succeeded(gpu, function(handle), name);
}

static bool do_call(const Gpu *gpu, const CudnnState *state, const CudnnWork *work, const CudnnCall *call,
                    const uint64_t *addresses) {
  static const float ONE = 1, ZERO = 0;
  Word words[MAX_CUDNN_ARGUMENTS] = {0};
  int integers[MAX_CUDNN_ARGUMENTS];
  double real = 0;
  size_t needed_bytes = 0;
  uint64_t limit = UINT64_MAX;
  uint32_t count = 0;
  for (uint32_t i = 0; i < call->count; i++) {
    const CudnnArgument *argument = &call->arguments[i];
    Word word = argument->value;
    switch (argument->kind) {
      case CUDNN_HANDLE: word = (Word)(uintptr_t)state->handle; break;
      case CUDNN_DESCRIPTOR:
        word = (Word)(uintptr_t)state->descriptors[work - gpu->works][argument->index];
        break;
      case CUDNN_ARRAY: word += addresses[argument->index]; break;
      case CUDNN_ONE: word = (Word)(uintptr_t)&ONE; break;
      case CUDNN_ZERO: word = (Word)(uintptr_t)&ZERO; break;
      case CUDNN_LIMIT:
        limit = word;
        word = (Word)(uintptr_t)&needed_bytes;
        break;
      case CUDNN_INTEGERS: word = (Word)(uintptr_t)&integers[i]; break;
      case CUDNN_INTEGER: integers[i - 1] = (int)word; continue;
      case CUDNN_REAL: memcpy(&real, &word, sizeof real); continue;
    }
    words[count++] = word;
  }
  const Word *w = words;
  Call function = (Call)call->function;
  int status = function(real, w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7], w[8], w[9], w[10], w[11], w[12], w[13],
                        w[14], w[15], w[16], w[17]);
  if (!succeeded(gpu, status, call->name)) return false;
  const char *text = "cuDNN: %s says %zu bytes; allowed: up to %llu; compile the model here, or without cuDNN";
  return needed_bytes <= limit || fail(text, call->name, needed_bytes, (unsigned long long)limit);
}

static void forget(const Gpu *gpu, CudnnState *state, size_t number) {
  const CudnnWork *work = &gpu->works[number];
  void **made = state->descriptors[number];
  char name[128];
  for (uint32_t i = 0; made && i < work->descriptor_count && made[i]; i++) {
    snprintf(name, sizeof name, "cudnnDestroy%sDescriptor", work->descriptors[i]);
    call_for(gpu, name, made[i]);
  }
  free(made);
  state->descriptors[number] = NULL;
}

/* The descriptors of a work, made and set. */
static bool set_up(const Gpu *gpu, CudnnState *state, const CudnnWork *work) {
  size_t number = (size_t)(work - gpu->works);
  if (!state->handle && !call_for(gpu, "cudnnCreate", &state->handle)) return false;
  if (!state->descriptors) state->descriptors = calloc(gpu->work_count, sizeof *state->descriptors);
  void **made = state->descriptors ? calloc(work->descriptor_count + 1, sizeof *made) : NULL;
  if (!made) return fail("there is no memory for cuDNN's descriptors");
  state->descriptors[number] = made;
  char name[128];
  for (uint32_t i = 0; i < work->descriptor_count; i++) {
    snprintf(name, sizeof name, "cudnnCreate%sDescriptor", work->descriptors[i]);
    if (!call_for(gpu, name, &made[i])) return false;
  }
  for (uint32_t i = 0; i < work->setup_count; i++)
    if (!do_call(gpu, state, work, &work->setup[i], NULL)) return false;
  return true;
}

static bool set_stream(const Gpu *gpu, const CudnnState *state, void *stream) {
  static const char NAME[] = "cudnnSetStream";
  int (*function)(void *, void *);
  *(void **)&function = find(gpu->cudnn, NAME);
  return function && succeeded(gpu, function(state->handle, stream), NAME);
}

bool cudnn_run(const Gpu *gpu, CudnnState *state, const char *text, const uint64_t *addresses, uint32_t count,
               void *stream) {
  const CudnnWork *work = gpu->works, *end = work + gpu->work_count;
  while (work < end && strcmp(work->text, text)) work++;
  if (work == end || work->array_count != count) return fail("cuDNN: the plan does not say what to do for %s", text);
  bool is_set_up = state->descriptors && state->descriptors[work - gpu->works];
  if (!is_set_up && !set_up(gpu, state, work)) {
    if (state->descriptors) forget(gpu, state, (size_t)(work - gpu->works));
    return false;
  }
  if (!set_stream(gpu, state, stream)) return false;
  for (uint32_t i = 0; i < work->call_count; i++)
    if (!do_call(gpu, state, work, &work->calls[i], addresses)) return false;
  return true;
}

void cudnn_close(const Gpu *gpu, CudnnState *state) {
  for (uint32_t i = 0; state->descriptors && i < gpu->work_count; i++) forget(gpu, state, i);
  free(state->descriptors);
  if (state->handle) call_for(gpu, "cudnnDestroy", state->handle);
}
