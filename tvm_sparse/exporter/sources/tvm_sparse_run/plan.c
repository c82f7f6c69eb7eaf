/* Reads a plan; `exporter/plan_file.py` of tvm-sparse writes it and says what is in it. */
#define _GNU_SOURCE
#include "gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>

enum { VERSION = 3, HEADER_BYTES = 56, MAX_RANK = 64 };

/* Shape, strides of elements that lie one after the other, and size. */
static void take_shape(Reader *in, Argument *argument) {
  DlTensor *tensor = &argument->tensor;
  tensor->rank = (int32_t)take_u32(in);
  if (tensor->rank < 0 || tensor->rank > MAX_RANK) {
    damaged(in, "a tensor has too many dimensions");
    tensor->rank = 0;
  }
  tensor->shape = allocate(in->model, 2 * (uint64_t)tensor->rank, sizeof *tensor->shape);
  if (!tensor->shape) {
    damaged(in, "there is no memory for it");
    tensor->rank = 0;
  }
  tensor->strides = tensor->shape + tensor->rank;
  uint64_t elements = 1;
  for (int i = 0; i < tensor->rank; i++) tensor->shape[i] = (int64_t)take_u64(in);
  for (int i = tensor->rank - 1; i >= 0; i--) {
    tensor->strides[i] = (int64_t)elements;
    if (tensor->shape[i] < 0 || __builtin_mul_overflow(elements, (uint64_t)tensor->shape[i], &elements) ||
        elements >> 56)
      damaged(in, "a tensor is too large");
  }
  argument->size_bytes = elements * ((tensor->type.bits + 7) / 8);
}

bool lies_within(const Argument *argument, uint64_t size_bytes) {
  return argument->offset <= size_bytes && argument->size_bytes <= size_bytes - argument->offset;
}

static void take_tensor(Reader *in, Argument *argument) {
  const tvm_sparse_model *model = in->model;
  argument->kind = KIND_TENSOR;
  argument->base = take_u32(in);
  argument->input = take_u32(in);
  argument->offset = take_u64(in);
  take(in, &argument->tensor.type, sizeof argument->tensor.type);
  argument->tensor.device_type = model->gpu ? DEVICE_CUDA : DEVICE_CPU;
  take_shape(in, argument);
  uint64_t room = UINT64_MAX; /* constants: known when the library is open */
  if (argument->base == IN_WORKSPACE) room = model->workspace_bytes;
  bool is_input = argument->base == IN_INPUT && argument->input < model->input_count;
  if (is_input) room = model->inputs[argument->input].tensor.size_bytes;
  if ((argument->base == IN_INPUT && !is_input) || argument->base >= BASES || !lies_within(argument, room))
    damaged(in, "a tensor lies outside of its memory");
}

static const char *type_name(Type type) {
  static const struct {
    Type type;
    const char *name;
  } NAMES[] = {{{0, 8, 1}, "int8"},     {{0, 16, 1}, "int16"},   {{0, 32, 1}, "int32"},   {{0, 64, 1}, "int64"},
               {{1, 8, 1}, "uint8"},    {{1, 16, 1}, "uint16"},  {{1, 32, 1}, "uint32"},  {{1, 64, 1}, "uint64"},
               {{2, 16, 1}, "float16"}, {{2, 32, 1}, "float32"}, {{2, 64, 1}, "float64"}, {{4, 16, 1}, "bfloat16"},
               {{6, 8, 1}, "bool"}};
  for (size_t i = 0; i < sizeof NAMES / sizeof *NAMES; i++)
    if (!memcmp(&NAMES[i].type, &type, sizeof type)) return NAMES[i].name;
  return NULL;
}

static void take_named(Reader *in, Named *named) {
  const DlTensor *tensor = &named->place.tensor;
  const char *name = take_text(in);
  take_tensor(in, &named->place);
  named->tensor =
      (tvm_sparse_tensor){name, type_name(tensor->type), tensor->rank, tensor->shape, named->place.size_bytes};
  if (!named->tensor.type) damaged(in, "a tensor has an unknown type");
}

static void take_inputs(Reader *in) {
  tvm_sparse_model *model = in->model;
  uint32_t count;
  model->inputs = take_list(in, &count, sizeof *model->inputs);
  for (uint32_t i = 0; i < count; i++) {
    /* An input's size is known when it has been read. */
    model->input_count = i + 1;
    model->inputs[i].tensor.size_bytes = SIZE_MAX;
    take_named(in, &model->inputs[i]);
  }
}

static void take_outputs(Reader *in) {
  tvm_sparse_model *model = in->model;
  model->outputs = take_list(in, &model->output_count, sizeof *model->outputs);
  for (uint32_t i = 0; i < model->output_count; i++) take_named(in, &model->outputs[i]);
}

static void take_checks(Reader *in) {
  tvm_sparse_model *model = in->model;
  uint64_t values = 0;
  model->checks = take_list(in, &model->check_count, sizeof *model->checks);
  for (uint32_t i = 0; i < model->check_count; i++) {
    Check *check = &model->checks[i];
    check->where = take_text(in);
    check->ranges = take_list(in, &check->count, 2 * sizeof *check->ranges);
    for (uint64_t j = 0; j < 2 * (uint64_t)check->count; j++) check->ranges[j] = (int64_t)take_u64(in);
    values += 2 * (uint64_t)check->count;
  }
  model->bounds = take_list(in, &model->bounds_count, sizeof *model->bounds);
  for (uint32_t i = 0; i < model->bounds_count; i++) take_tensor(in, &model->bounds[i]);
  bool fits = model->bounds_count == !!values;
  if (fits && values) fits = model->bounds->size_bytes == 8 * values && model->bounds->base == IN_WORKSPACE;
  if (!fits) damaged(in, "its checks of indices do not fit");
}

/* Numbers of steps below `limit`. */
static Steps take_numbers(Reader *in, uint32_t limit) {
  Steps steps;
  steps.numbers = take_list(in, &steps.count, sizeof *steps.numbers);
  for (uint32_t i = 0; i < steps.count; i++)
    if ((steps.numbers[i] = take_u32(in)) >= limit) damaged(in, "a step runs after a later one");
  return steps;
}

static void take_steps(Reader *in) {
  tvm_sparse_model *model = in->model;
  uint64_t first = 0;
  model->steps = take_list(in, &model->step_count, sizeof *model->steps);
  for (uint32_t i = 0; i < model->step_count; i++) {
    Step *step = &model->steps[i];
    step->name = take_text(in);
    step->arguments = take_list(in, &step->count, sizeof *step->arguments);
    step->first = first;
    first += step->count;
    for (uint32_t j = 0; j < step->count; j++) {
      Argument *argument = &step->arguments[j];
      argument->kind = (int)take_u32(in);
      if (argument->kind == KIND_TENSOR) take_tensor(in, argument);
      else if (argument->kind == KIND_INTEGER) argument->integer = (int64_t)take_u64(in);
      else if (argument->kind == KIND_REAL) take(in, &argument->real, sizeof argument->real);
      else damaged(in, "an argument has an unknown kind");
    }
    step->after = take_numbers(in, i);
  }
  model->ends = take_numbers(in, model->step_count);
}

#define CPUINFO "/proc/cpuinfo"

/* Whether `line` of /proc/cpuinfo has the flag, which is written without points and underscores. */
static bool shows(const char *line, const char *flag) {
  for (const char *at = line; *at;) {
    const char *wanted = flag;
    while (*at == ' ' || *at == '\t' || *at == '\n' || *at == ':') at++;
    for (; *at && *at != ' ' && *at != '\n'; at++) {
      if (*at == '_' || *at == '.') continue;
      wanted = *wanted == *at ? wanted + 1 : "\n";
    }
    if (!*wanted) return true;
  }
  return false;
}

static char *flags_line(void) {
  FILE *file = fopen(CPUINFO, "re");
  char *line = NULL;
  size_t size = 0;
  bool found = false;
  while (file && !found && getline(&line, &size, file) > 0)
    found = !strncmp(line, "flags", 5) || !strncmp(line, "Features", 8);
  if (file) fclose(file);
  if (found) return line;
  free(line);
  return NULL;
}

static bool fits_machine(Reader *in, const char *path) {
  struct utsname system;
  const char *architecture = take_text(in), *processor = take_text(in);
  if (!in->damage && !uname(&system) && strcmp(architecture, system.machine))
    return fail("%s: does not fit this machine: it was built for %s, and this is %s", path, architecture,
                system.machine);
  char *line = flags_line();
  const char *lacking = NULL;
  for (uint32_t count = take_u32(in); count && !in->damage; count--) {
    const char *flag = take_text(in);
    if (!lacking && !shows(line ? line : "", flag)) lacking = flag;
  }
  bool is_known = line;
  free(line);
  if (!lacking || in->damage) return true;
  if (!is_known) return fail("%s: does not say what this processor has, and %s needs it; mount /proc", CPUINFO, path);
  const char *text =
      "%s: does not fit this machine: it was built for %s, and this processor lacks %s; compile the model here";
  return fail(text, path, processor, lacking);
}

bool read_plan(tvm_sparse_model *model, const char *path, const char *plan, size_t size_bytes) {
  unsigned char found[SHA256_BYTES];
  Reader in = {model, plan + 8, plan + size_bytes, NULL};
  if (size_bytes < HEADER_BYTES || memcmp(plan, "TVMSPLAN", 8))
    return fail("%s: is no plan of tvm-sparse export", path);
  uint32_t version = take_u32(&in);
  if (version != VERSION) {
    const char *text = "%s: is of another version, found %u; allowed: %d; use the C library that was exported with it";
    return fail(text, path, version, VERSION);
  }
  take_u32(&in);
  sha256(plan + HEADER_BYTES, size_bytes - HEADER_BYTES, found);
  if (take_u64(&in) != size_bytes || memcmp(in.at, found, sizeof found))
    return fail("%s: is damaged (its size or its SHA-256 differs); export the model again", path);
  in.at = plan + HEADER_BYTES;
  model->library_name = take_text(&in);
  model->library_bytes = take_u64(&in);
  model->library_sha256 = (const unsigned char *)in.at;
  take(&in, found, sizeof found);
  if (!fits_machine(&in, path)) return false;
  const char *arch = take_text(&in);
  if (*arch && !(model->gpu = allocate(model, 1, sizeof *model->gpu))) return false;
  if (*arch) model->gpu->arch = arch;
  model->threads = take_u32(&in);
  model->workspace_bytes = take_u64(&in);
  take_inputs(&in);
  take_outputs(&in);
  take_checks(&in);
  take_steps(&in);
  if (model->gpu) take_gpu(&in);
  if (in.at != in.end) damaged(&in, "it does not end where it should");
  if (in.damage) return fail("%s: is damaged (%s); export the model again", path, in.damage);
  return true;
}
