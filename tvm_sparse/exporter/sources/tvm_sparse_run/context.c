/* Contexts: the memory and the threads of one call at a time. */
#define _GNU_SOURCE
#include "gpu_context.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_THREADS = 1024 };

static void *aligned_memory(uint64_t size_bytes) {
  if (size_bytes > SIZE_MAX / 2) return NULL;
  return aligned_alloc(ALIGNMENT, (size_bytes + ALIGNMENT) / ALIGNMENT * ALIGNMENT);
}

/* Fills in all arguments, but the addresses of inputs. */
static void bind(tvm_sparse_context *context) {
  Any *any = context->arguments;
  DlTensor *tensor = context->tensors;
  for (uint32_t i = 0; i < context->model->step_count; i++) {
    const Step *step = &context->model->steps[i];
    for (uint32_t j = 0; j < step->count; j++, any++, tensor++) {
      const Argument *argument = &step->arguments[j];
      any->kind = argument->kind;
      if (argument->kind == KIND_INTEGER) any->value.integer = argument->integer;
      if (argument->kind == KIND_REAL) any->value.real = argument->real;
      if (argument->kind != KIND_TENSOR) continue;
      *tensor = argument->tensor;
      if (argument->base != IN_INPUT) tensor->data = address_of(context, argument);
      any->value.pointer = tensor;
    }
  }
}

static int cores(void) {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) ? MAX_THREADS : CPU_COUNT(&set);
}

static bool make_workspace(tvm_sparse_context *context) {
  const tvm_sparse_model *model = context->model;
  if (model->gpu) return gpu_context_new(context);
  context->workspace = aligned_memory(model->workspace_bytes);
  const char *text = "there is no memory for a context of %llu bytes";
  return context->workspace || fail(text, (unsigned long long)model->workspace_bytes);
}

tvm_sparse_context *tvm_sparse_context_new(const tvm_sparse_model *model, int threads) {
  if (threads < 0 || threads > MAX_THREADS) return fail("threads: found %d; allowed: 0 to %d", threads, MAX_THREADS);
  if (model->gpu) threads = 1;
  if (!threads) {
    int wanted = model->threads && model->threads < MAX_THREADS ? (int)model->threads : 1, available = cores();
    threads = wanted < available ? wanted : available;
  }
  tvm_sparse_context *context = calloc(1, sizeof *context);
  if (!context) return fail("there is no memory for a context");
  size_t arguments = 1, inputs = model->input_count + 1;
  for (uint32_t i = 0; i < model->step_count; i++) arguments += model->steps[i].count;
  context->model = model;
  context->threads = threads;
  context->process = getpid();
  atomic_flag_clear(&context->is_busy);
  context->inputs = calloc(inputs, sizeof *context->inputs);
  context->copies = calloc(inputs, sizeof *context->copies);
  context->arguments = calloc(arguments, sizeof *context->arguments);
  context->tensors = calloc(arguments, sizeof *context->tensors);
  bool is_whole = context->inputs && context->copies && context->arguments && context->tensors;
  if (!is_whole) fail("there is no memory for a context");
  if (is_whole && make_workspace(context)) context->crew = crew_new(threads);
  if (!context->crew) {
    tvm_sparse_context_free(context);
    return NULL;
  }
  bind(context);
  return context;
}

void tvm_sparse_context_free(tvm_sparse_context *context) {
  if (!context) return;
  if (context->crew) crew_free(context->crew, context->process != getpid());
  for (uint32_t i = 0; context->copies && i < context->model->input_count; i++) free(context->copies[i]);
  if (context->gpu) gpu_context_free(context);
  else free(context->workspace);
  free(context->inputs);
  free(context->copies);
  free(context->arguments);
  free(context->tensors);
  free(context);
}

int tvm_sparse_context_threads(const tvm_sparse_context *context) { return context->threads; }

static bool take_inputs(tvm_sparse_context *context, const void *const *inputs) {
  const tvm_sparse_model *model = context->model;
  for (uint32_t i = 0; i < model->input_count; i++) {
    const tvm_sparse_tensor *input = &model->inputs[i].tensor;
    if (!inputs || !inputs[i]) return fail("input %s: its address is NULL", input->name);
    context->inputs[i] = inputs[i];
    if ((uintptr_t)inputs[i] % ALIGNMENT == 0) continue;
    if (!context->copies[i]) context->copies[i] = aligned_memory(input->size_bytes);
    if (!context->copies[i]) return fail("input %s: there is no memory for an aligned copy", input->name);
    context->inputs[i] = memcpy(context->copies[i], inputs[i], input->size_bytes);
  }
  return true;
}

static bool run_on_cpu(tvm_sparse_context *context, const void *const *inputs, void *const *outputs, void *stream) {
  const tvm_sparse_model *model = context->model;
  (void)stream;
  if (!take_inputs(context, inputs) || !run_steps(context)) return false;
  if (model->bounds_count && !are_in_range(model, (const int64_t *)address_of(context, model->bounds))) return false;
  for (uint32_t i = 0; outputs && i < model->output_count; i++) {
    const Argument *place = &model->outputs[i].place;
    if (outputs[i]) memcpy(outputs[i], address_of(context, place), place->size_bytes);
  }
  return true;
}

typedef bool (*Run)(tvm_sparse_context *, const void *const *inputs, void *const *outputs, void *stream);

/* One call at a time. */
static int call(tvm_sparse_context *context, Run run, const void *const *inputs, void *const *outputs, void *stream) {
  if (context->process != getpid()) return fail("the context is of a parent process; make one in this process"), -1;
  if (atomic_flag_test_and_set(&context->is_busy))
    return fail("another thread runs this context; make one for each"), -1;
  crew_enter(context->crew);
  context->has_results = false;
  context->has_results = run(context, inputs, outputs, stream);
  bool is_done = context->has_results;
  crew_enter(NULL);
  atomic_flag_clear(&context->is_busy);
  return is_done ? 0 : -1;
}

int tvm_sparse_run(tvm_sparse_context *context, const void *const *inputs, void *const *outputs) {
  return call(context, context->gpu ? gpu_run : run_on_cpu, inputs, outputs, NULL);
}

int tvm_sparse_run_on(tvm_sparse_context *context, const void *const *inputs, void *const *outputs, void *stream) {
  if (!context->gpu) return fail("the model is for a CPU; call tvm_sparse_run"), -1;
  return call(context, gpu_run_on, inputs, outputs, stream);
}

const void *tvm_sparse_result(const tvm_sparse_context *context, int index) {
  if (!context->has_results || !tvm_sparse_output(context->model, index)) return NULL;
  return context->gpu ? gpu_result(context, index) : address_of(context, &context->model->outputs[index].place);
}
