/* Calls of a node: shapes are checked, batches chosen, and a context found that no other call has. */
#include "node.h"

#include "internal.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_BATCHES = 64, MAX_DIMENSIONS = 64 };

/* A context for a call: that with all threads, or one with one thread, which the next call may take. */
typedef struct Borrowed {
  struct Borrowed *next;
  tvm_sparse_context *context;
  bool is_whole;
} Borrowed;
typedef struct {
  tvm_sparse_model *model;
  int64_t samples;
  /* With all threads: of the call that met no other. */
  tvm_sparse_context *whole;
  Borrowed *idle;
} Batch;
typedef struct {
  OrtNodeComputeInfo interface;
  const OrtApi *api;
  int threads;
  pthread_mutex_t lock;
  bool is_whole_taken;
  int count;
  Batch batches[MAX_BATCHES];
} Node;
/* Addresses of tensors: of the whole call, and of the samples that run together. */
typedef struct {
  Node *node;
  int inputs, outputs;
  int64_t samples;
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

/* Whether a shape is that of `tensor`; of a node with several batches but for the first dimension. */
static bool fits(const Node *node, const tvm_sparse_tensor *tensor, const int64_t *shape, size_t rank, int type) {
  bool is_open = node->count > 1;
  if (rank != (size_t)tensor->rank || type != onnx_type(tensor->type)) return false;
  for (size_t i = is_open; i < rank; i++)
    if (shape[i] != tensor->shape[i]) return false;
  return true;
}

static OrtStatus *take_input(Call *call, const OrtKernelContext *kernel, int index) {
  const OrtApi *api = call->node->api;
  const tvm_sparse_tensor *tensor = tvm_sparse_input(call->node->batches->model, index);
  const OrtValue *value = NULL;
  OrtTensorInfo *info = NULL;
  int64_t shape[MAX_DIMENSIONS] = {0};
  size_t rank = 0;
  int type = 0;
  OrtStatus *status = ort_input(api, kernel, (size_t)index, &value);
  if (!status && !value) return fail("input %s: is missing", tensor->name), error(call->node);
  if (!status) status = ort_data(api, value, (void **)&call->from[index]);
  if (!status) status = ort_tensor_info(api, value, &info);
  if (!status) status = ort_rank(api, info, &rank);
  if (!status && rank <= MAX_DIMENSIONS) status = ort_shape(api, info, shape, rank);
  if (!status) status = ort_element_type(api, info, &type);
  if (info) ort_release_info(api, info);
  if (status) return status;
  int64_t samples = call->node->count > 1 ? shape[0] : 1;
  if (!index) call->samples = samples;
  if (!fits(call->node, tensor, shape, rank, type) || samples != call->samples || !samples) {
    fail("input %s: has another shape or element type than the model was compiled for", tensor->name);
    return error(call->node);
  }
  return NULL;
}

static OrtStatus *make_output(Call *call, OrtKernelContext *kernel, int index) {
  const tvm_sparse_tensor *tensor = tvm_sparse_output(call->node->batches->model, index);
  int64_t shape[MAX_DIMENSIONS];
  OrtValue *value = NULL;
  memcpy(shape, tensor->shape, (size_t)tensor->rank * sizeof *shape);
  if (call->node->count > 1) shape[0] = call->samples;
  OrtStatus *status = ort_output(call->node->api, kernel, (size_t)index, shape, (size_t)tensor->rank, &value);
  return status ? status : ort_data(call->node->api, value, &call->to[index]);
}

/* The smallest batch that holds so many samples, or the largest. */
static Batch *choose(Node *node, int64_t samples) {
  int i = 0;
  while (i < node->count - 1 && node->batches[i].samples < samples) i++;
  return &node->batches[i];
}

static void end_whole(Node *node) {
  pthread_mutex_lock(&node->lock);
  node->is_whole_taken = false;
  pthread_mutex_unlock(&node->lock);
}

/* A context for one call: with all threads, or with one where another call has those. */
static Borrowed *borrow(Node *node, Batch *batch) {
  Borrowed *found = NULL;
  pthread_mutex_lock(&node->lock);
  bool is_whole = !node->is_whole_taken;
  node->is_whole_taken = true;
  if (!is_whole && batch->idle) {
    found = batch->idle;
    batch->idle = found->next;
  }
  pthread_mutex_unlock(&node->lock);
  if (!found) found = calloc(1, sizeof *found);
  if (found && is_whole) {
    found->is_whole = true;
    if (!batch->whole) batch->whole = tvm_sparse_context_new(batch->model, node->threads);
    found->context = batch->whole;
  } else if (found && !found->context) {
    found->context = tvm_sparse_context_new(batch->model, 1);
  }
  if (found && found->context) return found;
  if (!found) fail("there is no memory for a call");
  free(found);
  if (is_whole) end_whole(node);
  return NULL;
}

static void give_back(Node *node, Batch *batch, Borrowed *borrowed) {
  if (borrowed->is_whole) {
    free(borrowed);
    end_whole(node);
    return;
  }
  pthread_mutex_lock(&node->lock);
  borrowed->next = batch->idle;
  batch->idle = borrowed;
  pthread_mutex_unlock(&node->lock);
}

/* Inputs of `count` samples behind the first `done`; where the batch has more, copies with zeros behind them. */
static bool take_samples(Call *call, const Batch *batch, int64_t done, int64_t count) {
  bool is_padded = count < batch->samples, is_done = true;
  for (int i = 0; i < call->inputs; i++) {
    size_t size = tvm_sparse_input(batch->model, i)->size_bytes, sample = size / (size_t)batch->samples;
    const char *from = (const char *)call->from[i] + (size_t)done * sample;
    call->in[i] = is_padded ? calloc(size + 1, 1) : from;
    if (!call->in[i]) is_done = false;
    if (is_padded && call->in[i]) memcpy((void *)call->in[i], from, (size_t)count * sample);
  }
  for (int i = 0; i < call->outputs; i++) {
    size_t sample = tvm_sparse_output(batch->model, i)->size_bytes / (size_t)batch->samples;
    call->out[i] = is_padded ? NULL : (char *)call->to[i] + (size_t)done * sample;
  }
  return is_done || fail("there is no memory for a batch");
}

static bool run_batch(Call *call, Batch *batch, int64_t done, int64_t count) {
  bool is_padded = count < batch->samples;
  bool is_done = take_samples(call, batch, done, count);
  Borrowed *borrowed = is_done ? borrow(call->node, batch) : NULL;
  is_done = borrowed && !tvm_sparse_run(borrowed->context, call->in, call->out);
  for (int i = 0; is_done && is_padded && i < call->outputs; i++) {
    size_t sample = tvm_sparse_output(batch->model, i)->size_bytes / (size_t)batch->samples;
    char *to = (char *)call->to[i] + (size_t)done * sample;
    memcpy(to, tvm_sparse_result(borrowed->context, i), (size_t)count * sample);
  }
  if (borrowed) give_back(call->node, batch, borrowed);
  for (int i = 0; is_padded && i < call->inputs; i++) free((void *)call->in[i]);
  return is_done;
}

static OrtStatus *compute(OrtNodeComputeInfo *info, void *state, OrtKernelContext *kernel) {
  (void)state;
  Node *node = (Node *)info;
  const tvm_sparse_model *model = node->batches->model;
  Call call = {.node = node, .inputs = tvm_sparse_input_count(model), .outputs = tvm_sparse_output_count(model)};
  call.samples = 1;
  call.from = calloc(2 * (size_t)(call.inputs + call.outputs) + 1, sizeof *call.from);
  if (!call.from) return fail("there is no memory for a call"), error(node);
  call.in = call.from + call.inputs;
  call.to = (void **)(call.in + call.inputs);
  call.out = call.to + call.outputs;
  OrtStatus *status = NULL;
  for (int i = 0; i < call.inputs && !status; i++) status = take_input(&call, kernel, i);
  for (int i = 0; i < call.outputs && !status; i++) status = make_output(&call, kernel, i);
  for (int64_t done = 0; done < call.samples && !status;) {
    Batch *batch = choose(node, call.samples - done);
    int64_t left = call.samples - done, count = left < batch->samples ? left : batch->samples;
    if (!run_batch(&call, batch, done, count)) status = error(node);
    done += count;
  }
  free(call.from);
  return status;
}

static OrtStatus *create_state(OrtNodeComputeInfo *info, OrtNodeComputeContext *context, void **state) {
  (void)context;
  *state = info;
  return NULL;
}

static void release_state(OrtNodeComputeInfo *info, void *state) { (void)info, (void)state; }

/* The model whose plan is called so, of `size` letters, in the folder of `model_path`. */
static tvm_sparse_model *load(const char *model_path, const char *name, size_t size) {
  char path[8192];
  const char *slash = *name == '/' ? NULL : strrchr(model_path, '/');
  int folder = slash ? (int)(slash - model_path) + 1 : 0;
  if (!size) return fail("the node says no plan; export the model again");
  if ((size_t)folder + size >= sizeof path) return fail("the path of the model is too long");
  snprintf(path, sizeof path, "%.*s%.*s", folder, model_path, (int)size, name);
  return tvm_sparse_load(path);
}

OrtNodeComputeInfo *node_new(const OrtApi *api, const char *model_path, const char *plans, int threads) {
  Node *node = calloc(1, sizeof *node);
  if (!node) return fail("there is no memory for the node");
  node->interface = (OrtNodeComputeInfo){ORT_API_VERSION, create_state, compute, release_state};
  node->api = api;
  node->threads = threads;
  pthread_mutex_init(&node->lock, NULL);
  for (const char *name = plans; node->count < MAX_BATCHES; name++) {
    size_t size = strcspn(name, "\n");
    Batch *batch = &node->batches[node->count];
    batch->model = load(model_path, name, size);
    if (!batch->model) return node_free(&node->interface), NULL;
    node->count++;
    name += size;
    if (!*name) break;
  }
  for (int i = 0; i < node->count; i++) {
    const tvm_sparse_tensor *input = tvm_sparse_input(node->batches[i].model, 0);
    node->batches[i].samples = node->count > 1 && input && input->rank && input->shape[0] > 0 ? input->shape[0] : 1;
  }
  return &node->interface;
}

void node_free(OrtNodeComputeInfo *info) {
  Node *node = (Node *)info;
  if (!node) return;
  for (int i = 0; i < node->count; i++) {
    Batch *batch = &node->batches[i];
    for (Borrowed *idle = batch->idle, *next; idle; idle = next) {
      next = idle->next;
      tvm_sparse_context_free(idle->context);
      free(idle);
    }
    tvm_sparse_context_free(batch->whole);
    tvm_sparse_free(batch->model);
  }
  pthread_mutex_destroy(&node->lock);
  free(node);
}
