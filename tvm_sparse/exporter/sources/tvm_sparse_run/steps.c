/* The kernels of a model, one after the other, and the ranges of the indices that they have met. */
#include "steps.h"

char *address_of(const tvm_sparse_context *context, const Argument *argument) {
  if (argument->base == IN_WORKSPACE) return context->workspace + argument->offset;
  if (argument->base == IN_CONSTANTS) return (char *)context->model->constants + argument->offset;
  return (char *)context->inputs[argument->input] + argument->offset;
}

bool run_step(tvm_sparse_context *context, uint32_t number) {
  const Step *step = &context->model->steps[number];
  DlTensor *tensor = context->tensors + step->first;
  for (uint32_t i = 0; i < step->count; i++) {
    const Argument *argument = &step->arguments[i];
    if (argument->kind == KIND_TENSOR && argument->base == IN_INPUT) tensor[i].data = address_of(context, argument);
  }
  Any nothing = {0};
  if (step->kernel(NULL, context->arguments + step->first, (int32_t)step->count, &nothing))
    return fail("kernel %s failed: %s", step->name, crew_error());
  return true;
}

bool run_steps(tvm_sparse_context *context) {
  bool is_done = true;
  for (uint32_t i = 0; is_done && i < context->model->step_count; i++) is_done = run_step(context, i);
  return is_done;
}

/* Code has clamped indices that were not, so that nothing else was read. */
bool are_in_range(const tvm_sparse_model *model, const int64_t *found) {
  for (uint32_t i = 0; i < model->check_count; i++) {
    const Check *check = &model->checks[i];
    for (uint32_t j = 0; j < check->count; j++) {
      int64_t low = check->ranges[2 * j], high = check->ranges[2 * j + 1], least = found[j],
              most = found[check->count + j];
      if (low <= least && least <= most && most <= high) continue;
      const char *text =
          "%s: an index is out of range, found %lld; allowed: %lld to %lld; look at the inputs that it comes from";
      return fail(text, check->where, (long long)(least < low ? least : most), (long long)low, (long long)high);
    }
    found += 2 * check->count;
  }
  return true;
}
