/* Calls of a node: a variant is chosen by the inputs' shapes, and a context found that no other call has. */
#include "node.h"

#include "internal.h"
#include "variant.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_VARIANTS = 64, MAX_DIMENSIONS = 64 };

typedef struct {
  OrtNodeComputeInfo interface;
  const OrtApi *api;
  Share share;
  /* Whether the first dimension of all inputs and outputs counts samples, of which a call may have any number. */
  bool has_batches;
  int count;
  /* Of one size the smallest batch first. */
  Variant variants[MAX_VARIANTS];
} Node;
typedef struct {
  int64_t sizes[MAX_DIMENSIONS];
  size_t rank;
  int type;
} Shape;
/* Addresses of tensors: of the whole call, and of the samples that run together. */
typedef struct {
  Node *node;
  int inputs, outputs;
  int64_t samples;
  Shape *shapes;
  const void **from, **in;
  void **to, **out;
} Call;

static OrtStatus *error(const Node *node) { return ort_status(node->api, tvm_sparse_error()); }

/* What ONNX calls an element type. */
static int onnx_type(const char *name) {
  static const char *const NAMES[] = {"",       "float32", "uint8",     "int8", "uint16",  "int16",
                                      "int32",  "int64",   "",          "bool", "float16", "float64",
                                      "uint32", "uint64",  "complex64", "",     "bfloat16"};
  for (int i = 0; i < (int)(sizeof NAMES / sizeof *NAMES); i++)
    if (!strcmp(NAMES[i], name)) return i;
  return 0;
}

/* Whether input `index` has the shape that `variant` was compiled for, but for the number of samples. */
static bool fits_one(const Call *call, const Variant *variant, int index) {
  const Shape *shape = &call->shapes[index];
  const tvm_sparse_tensor *tensor = tvm_sparse_input(variant->model, index);
  bool is_open = call->node->has_batches;
  if (shape->rank != (size_t)tensor->rank || shape->type != onnx_type(tensor->type)) return false;
  for (size_t i = is_open; i < shape->rank; i++)
    if (shape->sizes[i] != tensor->shape[i]) return false;
  return !is_open || (call->samples && shape->sizes[0] == call->samples);
}

static bool fits(const Call *call, const Variant *variant) {
  for (int i = 0; i < call->inputs; i++)
    if (!fits_one(call, variant, i)) return false;
  return true;
}

/* Of the inputs' size the smallest batch that holds so many samples, or the largest; NULL where there is no such size. */
static Variant *choose(const Call *call, int64_t samples) {
  Variant *best = NULL;
  for (int i = 0; i < call->node->count && (!best || best->samples < samples); i++)
    if (fits(call, &call->node->variants[i])) best = &call->node->variants[i];
  return best;
}

/* Says which input fits no variant; where each fits one, they do not fit together. */
static void refuse(const Call *call) {
  int index = 0;
  for (; index < call->inputs - 1; index++) {
    bool fits_any = false;
    for (int i = 0; i < call->node->count; i++) fits_any |= fits_one(call, &call->node->variants[i], index);
    if (!fits_any) break;
  }
  const char *name = tvm_sparse_input(call->node->variants->model, index)->name;
  fail("input %s: has another shape or element type than the model was compiled for", name);
}

static OrtStatus *take_input(Call *call, const OrtKernelContext *kernel, int index) {
  const OrtApi *api = call->node->api;
  Shape *shape = &call->shapes[index];
  const OrtValue *value = NULL;
  OrtTensorInfo *info = NULL;
  OrtStatus *status = ort_input(api, kernel, (size_t)index, &value);
  if (!status && !value) {
    fail("input %s: is missing", tvm_sparse_input(call->node->variants->model, index)->name);
    return error(call->node);
  }
  if (!status) status = ort_data(api, value, (void **)&call->from[index]);
  if (!status) status = ort_tensor_info(api, value, &info);
  if (!status) status = ort_rank(api, info, &shape->rank);
  if (!status && shape->rank <= MAX_DIMENSIONS) status = ort_shape(api, info, shape->sizes, shape->rank);
  if (!status) status = ort_element_type(api, info, &shape->type);
  if (info) ort_release_info(api, info);
  if (!index && call->node->has_batches) call->samples = shape->rank ? shape->sizes[0] : 0;
  return status;
}

static OrtStatus *make_output(Call *call, OrtKernelContext *kernel, const Variant *variant, int index) {
  const tvm_sparse_tensor *tensor = tvm_sparse_output(variant->model, index);
  int64_t shape[MAX_DIMENSIONS];
  OrtValue *value = NULL;
  memcpy(shape, tensor->shape, (size_t)tensor->rank * sizeof *shape);
  if (call->node->has_batches) shape[0] = call->samples;
  OrtStatus *status = ort_output(call->node->api, kernel, (size_t)index, shape, (size_t)tensor->rank, &value);
  return status ? status : ort_data(call->node->api, value, &call->to[index]);
}

/* Inputs of `count` samples behind the first `done`; where the batch has more, copies with zeros behind them. */
static bool take_samples(Call *call, const Variant *variant, int64_t done, int64_t count) {
  bool is_padded = count < variant->samples, is_done = true;
  for (int i = 0; i < call->inputs; i++) {
    size_t size = tvm_sparse_input(variant->model, i)->size_bytes, sample = size / (size_t)variant->samples;
    const char *from = (const char *)call->from[i] + (size_t)done * sample;
    call->in[i] = is_padded ? calloc(size + 1, 1) : from;
    if (!call->in[i]) is_done = false;
    if (is_padded && call->in[i]) memcpy((void *)call->in[i], from, (size_t)count * sample);
  }
  for (int i = 0; i < call->outputs; i++) {
    size_t sample = tvm_sparse_output(variant->model, i)->size_bytes / (size_t)variant->samples;
    call->out[i] = is_padded ? NULL : (char *)call->to[i] + (size_t)done * sample;
  }
  return is_done || fail("there is no memory for a batch");
}

static bool run_batch(Call *call, Variant *variant, int64_t done, int64_t count) {
  bool is_padded = count < variant->samples;
  bool is_done = take_samples(call, variant, done, count);
  Borrowed *borrowed = is_done ? borrow(&call->node->share, variant) : NULL;
  is_done = borrowed && !tvm_sparse_run(borrowed->context, call->in, call->out);
  for (int i = 0; is_done && is_padded && i < call->outputs; i++) {
    size_t sample = tvm_sparse_output(variant->model, i)->size_bytes / (size_t)variant->samples;
    char *to = (char *)call->to[i] + (size_t)done * sample;
    memcpy(to, tvm_sparse_result(borrowed->context, i), (size_t)count * sample);
  }
  if (borrowed) give_back(&call->node->share, variant, borrowed);
  for (int i = 0; is_padded && i < call->inputs; i++) free((void *)call->in[i]);
  return is_done;
}

static OrtStatus *run_all(Call *call, OrtKernelContext *kernel) {
  OrtStatus *status = NULL;
  for (int i = 0; i < call->inputs && !status; i++) status = take_input(call, kernel, i);
  const Variant *any = status ? NULL : choose(call, call->samples);
  if (!status && !any) return refuse(call), error(call->node);
  for (int i = 0; i < call->outputs && !status; i++) status = make_output(call, kernel, any, i);
  for (int64_t done = 0; done < call->samples && !status;) {
    Variant *variant = choose(call, call->samples - done);
    int64_t left = call->samples - done, count = left < variant->samples ? left : variant->samples;
    if (!run_batch(call, variant, done, count)) status = error(call->node);
    done += count;
  }
  return status;
}

static OrtStatus *compute(OrtNodeComputeInfo *info, void *state, OrtKernelContext *kernel) {
  (void)state;
  Node *node = (Node *)info;
  const tvm_sparse_model *model = node->variants->model;
  Call call = {.node = node, .inputs = tvm_sparse_input_count(model), .outputs = tvm_sparse_output_count(model)};
  call.samples = 1;
  call.shapes = calloc((size_t)call.inputs + 1, sizeof *call.shapes);
  call.from = calloc(2 * (size_t)(call.inputs + call.outputs) + 1, sizeof *call.from);
  OrtStatus *status = NULL;
  if (call.from && call.shapes) {
    call.in = call.from + call.inputs;
    call.to = (void **)(call.in + call.inputs);
    call.out = call.to + call.outputs;
    status = run_all(&call, kernel);
  } else {
    fail("there is no memory for a call");
    status = error(node);
  }
  free(call.shapes);
  free(call.from);
  return status;
}

static OrtStatus *create_state(OrtNodeComputeInfo *info, OrtNodeComputeContext *context, void **state) {
  (void)context;
  *state = info;
  return NULL;
}

static void release_state(OrtNodeComputeInfo *info, void *state) { (void)info, (void)state; }

/* Whether the model is loaded, and has as many inputs and outputs as the others. */
static bool add_variant(Node *node, const char *model_path, const char *name, size_t size) {
  if (node->count == MAX_VARIANTS) return fail("the node says more than %d plans; export fewer", MAX_VARIANTS);
  Variant *variant = &node->variants[node->count];
  variant->model = variant_load(model_path, name, size);
  if (!variant->model) return false;
  node->count++;
  const tvm_sparse_tensor *input = tvm_sparse_input(variant->model, 0);
  variant->samples = node->has_batches && input && input->rank && input->shape[0] > 0 ? input->shape[0] : 1;
  const tvm_sparse_model *first = node->variants->model, *own = variant->model;
  bool fits = tvm_sparse_input_count(first) == tvm_sparse_input_count(own);
  fits = fits && tvm_sparse_output_count(first) == tvm_sparse_output_count(own);
  return fits || fail("its plans are of several models; export the model again");
}

OrtNodeComputeInfo *node_new(const OrtApi *api, const char *model_path, const char *plans, int threads) {
  static const char BATCHES[] = NODE_BATCHES "\n";
  Node *node = calloc(1, sizeof *node);
  if (!node) return fail("there is no memory for the node");
  node->interface = (OrtNodeComputeInfo){ORT_API_VERSION, create_state, compute, release_state};
  node->api = api;
  node->share.threads = threads;
  node->has_batches = !strncmp(plans, BATCHES, sizeof BATCHES - 1);
  if (node->has_batches) plans += sizeof BATCHES - 1;
  pthread_mutex_init(&node->share.lock, NULL);
  for (const char *name = plans;; name++) {
    size_t size = strcspn(name, "\n");
    if (!add_variant(node, model_path, name, size)) return node_free(&node->interface), NULL;
    name += size;
    if (!*name) break;
  }
  return &node->interface;
}

void node_free(OrtNodeComputeInfo *info) {
  Node *node = (Node *)info;
  if (!node) return;
  for (int i = 0; i < node->count; i++) variant_free(&node->variants[i]);
  pthread_mutex_destroy(&node->share.lock);
  free(node);
}
