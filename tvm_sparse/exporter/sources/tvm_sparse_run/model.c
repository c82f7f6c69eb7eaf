/* Models: a plan and its library, checked and opened. */
#define _GNU_SOURCE
#include "gpu.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* The file, mapped; NULL, and an error, where it cannot be read or is empty. */
static const char *map(const char *path, size_t *size_bytes) {
  struct stat status;
  int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file < 0 || fstat(file, &status) < 0) {
    fail("%s: cannot be read (%s)", path, strerror(errno));
    if (file >= 0) close(file);
    return NULL;
  }
  *size_bytes = (size_t)status.st_size;
  bool is_file = S_ISREG(status.st_mode) && status.st_size;
  void *found = is_file ? mmap(NULL, *size_bytes, PROT_READ, MAP_PRIVATE, file, 0) : MAP_FAILED;
  close(file);
  return found == MAP_FAILED ? fail("%s: cannot be read (it is empty, or no file)", path) : found;
}

/* Where the library of the plan at `path` is: beside it. */
static char *library_path(const tvm_sparse_model *model, const char *path) {
  const char *slash = strrchr(path, '/');
  size_t folder = slash ? (size_t)(slash - path) + 1 : 0;
  char *found = malloc(folder + strlen(model->library_name) + 3);
  if (!found) return fail("there is no memory for the model");
  sprintf(found, "%.*s%s", (int)folder, path, model->library_name);
  /* Without a folder the system would look for it elsewhere. */
  if (!folder) sprintf(found, "./%s", model->library_name);
  return found;
}

static bool is_exported(const tvm_sparse_model *model, const char *path) {
  unsigned char found[SHA256_BYTES];
  size_t size_bytes;
  const char *content = map(path, &size_bytes);
  if (!content) return false;
  bool same = size_bytes == model->library_bytes;
  if (same) sha256(content, size_bytes, found);
  munmap((void *)content, size_bytes);
  if (same && !memcmp(found, model->library_sha256, sizeof found)) return true;
  return fail("%s: is not the file that was exported, its size or its SHA-256 differs; export the model again", path);
}

/* Compiled code finds the function that takes its errors by name, also where a plug-in holds this library. */
static void show_error_function(void) {
  Dl_info here;
  if (!dladdr((void *)show_error_function, &here) || !here.dli_fname) return;
  void *self = dlopen(here.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
  if (self) dlclose(self);
}

static bool find_kernel(tvm_sparse_model *model, Step *step, const char *path) {
  char symbol[1024];
  snprintf(symbol, sizeof symbol, "__tvm_ffi_%s", step->name);
  *(void **)&step->kernel = dlsym(model->library, symbol);
  return step->kernel || fail("%s: lacks the kernel %s", path, step->name);
}

/* Whether constants lie within so many bytes. */
static bool has_constants(const tvm_sparse_model *model, const char *path, uint64_t size_bytes) {
  bool is_within = true;
  for (uint32_t i = 0; i < model->step_count; i++)
    for (uint32_t j = 0; j < model->steps[i].count; j++) {
      const Argument *argument = &model->steps[i].arguments[j];
      if (argument->kind == KIND_TENSOR && argument->base == IN_CONSTANTS)
        is_within &= lies_within(argument, size_bytes);
    }
  for (uint32_t i = 0; i < model->output_count; i++) {
    const Argument *place = &model->outputs[i].place;
    if (place->base == IN_CONSTANTS) is_within &= lies_within(place, size_bytes);
  }
  return is_within || fail("%s: a constant lies outside of it", path);
}

/* Takes what the library has for the model, on a GPU that of this number. */
static bool take_library(tvm_sparse_model *model, const char *path, int gpu) {
  uint64_t size_bytes;
  const char *data = dlsym(model->library, "__tvm_ffi__library_bin");
  if (!data) return fail("%s: is no library of a model", path);
  memcpy(&size_bytes, data, sizeof size_bytes);
  data += sizeof size_bytes;
  model->constants = data;
  if (!has_constants(model, path, model->gpu ? model->gpu->constant_bytes : size_bytes)) return false;
  for (uint32_t i = 0; i < model->step_count; i++)
    if (!find_kernel(model, &model->steps[i], path)) return false;
  provide_functions(model->library);
  return !model->gpu || gpu_open(model, gpu, path, data, size_bytes);
}

static bool open_library(tvm_sparse_model *model, const char *plan_path, int gpu) {
  char *path = library_path(model, plan_path);
  if (path && is_exported(model, path)) {
    show_error_function();
    model->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!model->library) fail("%s: cannot be loaded (%s)", path, dlerror());
  }
  bool is_open = model->library && take_library(model, path, gpu);
  free(path);
  return is_open;
}

tvm_sparse_model *tvm_sparse_load(const char *plan_path) { return tvm_sparse_load_on(plan_path, 0); }

tvm_sparse_model *tvm_sparse_load_on(const char *plan_path, int gpu) {
  tvm_sparse_model *model = calloc(1, sizeof *model);
  if (!model) return fail("there is no memory for the model");
  size_t size_bytes;
  const char *plan = map(plan_path, &size_bytes);
  char *copy = plan ? allocate(model, size_bytes, 1) : NULL;
  if (copy) memcpy(copy, plan, size_bytes);
  if (plan) munmap((void *)plan, size_bytes);
  if (copy && read_plan(model, plan_path, copy, size_bytes) && open_library(model, plan_path, gpu))
    return model;
  tvm_sparse_free(model);
  return NULL;
}

void tvm_sparse_free(tvm_sparse_model *model) {
  if (!model) return;
  if (model->gpu) gpu_close(model->gpu);
  if (model->library) dlclose(model->library);
  free_all(model);
  free(model);
}

int tvm_sparse_input_count(const tvm_sparse_model *model) { return (int)model->input_count; }

int tvm_sparse_output_count(const tvm_sparse_model *model) { return (int)model->output_count; }

const tvm_sparse_tensor *tvm_sparse_input(const tvm_sparse_model *model, int index) {
  return index >= 0 && index < tvm_sparse_input_count(model) ? &model->inputs[index].tensor : NULL;
}

const tvm_sparse_tensor *tvm_sparse_output(const tvm_sparse_model *model, int index) {
  return index >= 0 && index < tvm_sparse_output_count(model) ? &model->outputs[index].tensor : NULL;
}
