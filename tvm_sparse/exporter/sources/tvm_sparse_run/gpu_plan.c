/* Reads what a plan says of a GPU. */
#include "gpu.h"

#include <string.h>

static void take_constants(Reader *in, Gpu *gpu) {
  gpu->constant_bytes = take_u64(in);
  gpu->constants = take_list(in, &gpu->constant_count, sizeof *gpu->constants);
  for (uint32_t i = 0; i < gpu->constant_count; i++) {
    GpuConstant *each = &gpu->constants[i];
    take(in, each, sizeof *each);
    if (each->to > gpu->constant_bytes || each->size_bytes > gpu->constant_bytes - each->to)
      damaged(in, "a constant lies outside of their memory");
  }
}

static void take_kernels(Reader *in, Gpu *gpu) {
  gpu->modules = take_list(in, &gpu->module_count, sizeof *gpu->modules);
  for (uint32_t i = 0; i < gpu->module_count; i++) {
    gpu->modules[i].offset = take_u64(in);
    gpu->modules[i].size_bytes = take_u64(in);
  }
  gpu->kernels = take_list(in, &gpu->kernel_count, sizeof *gpu->kernels);
  for (uint32_t i = 0; i < gpu->kernel_count; i++) {
    GpuKernel *kernel = &gpu->kernels[i];
    kernel->name = take_text(in);
    kernel->module = take_u32(in);
    kernel->arguments = take_text(in);
    kernel->launch = take_text(in);
    bool is_known = strspn(kernel->arguments, "pifd") == strlen(kernel->arguments);
    is_known = is_known && strspn(kernel->launch, "012345678sec") == strlen(kernel->launch);
    bool fits = strlen(kernel->arguments) <= MAX_ARGUMENTS && strlen(kernel->launch) <= MAX_LAUNCH;
    if (kernel->module >= gpu->module_count || !is_known || !fits) damaged(in, "a kernel is launched in an unknown way");
  }
}

static CudnnCall *take_calls(Reader *in, const CudnnWork *work, uint32_t *count) {
  CudnnCall *calls = take_list(in, count, sizeof *calls);
  for (uint32_t i = 0; i < *count; i++) {
    calls[i].name = take_text(in);
    calls[i].arguments = take_list(in, &calls[i].count, sizeof *calls[i].arguments);
    bool is_known = calls[i].count <= MAX_CUDNN_ARGUMENTS;
    for (uint32_t j = 0; j < calls[i].count; j++) {
      CudnnArgument *argument = &calls[i].arguments[j];
      take(in, argument, sizeof *argument);
      is_known &= argument->kind < CUDNN_KINDS;
      bool is_in_array = j > 0 && argument[-1].kind >= CUDNN_INTEGERS;
      is_known &= argument->kind != CUDNN_INTEGER || is_in_array;
      is_known &= argument->kind != CUDNN_ARRAY || argument->index < work->array_count;
      is_known &= argument->kind != CUDNN_DESCRIPTOR || argument->index < work->descriptor_count;
    }
    if (!is_known) damaged(in, "cuDNN is called in an unknown way");
  }
  return calls;
}

static void take_works(Reader *in, Gpu *gpu) {
  gpu->works = take_list(in, &gpu->work_count, sizeof *gpu->works);
  for (uint32_t i = 0; i < gpu->work_count; i++) {
    CudnnWork *work = &gpu->works[i];
    work->text = take_text(in);
    work->array_count = take_u32(in);
    work->descriptors = take_list(in, &work->descriptor_count, sizeof *work->descriptors);
    for (uint32_t j = 0; j < work->descriptor_count; j++) work->descriptors[j] = take_text(in);
    work->setup = take_calls(in, work, &work->setup_count);
    work->calls = take_calls(in, work, &work->call_count);
  }
}

void take_gpu(Reader *in) {
  Gpu *gpu = in->model->gpu;
  take_constants(in, gpu);
  take_kernels(in, gpu);
  take_works(in, gpu);
}
