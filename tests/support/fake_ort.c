/* What the provider sees of ONNX Runtime, so that it can run under sanitizers: fake_ort MODEL.onnx PLANS SAMPLES...
 * For each number of samples 16 threads call a node of one input and one output, float32, many times each; prints how
 * many calls gave another result than one of a node alone. */
#include "ort_abi.h"
#include "tvm_sparse.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 16, CALLS = 100, FLOAT = 1 };

struct OrtStatus {
  char text[512];
};
struct OrtValue {
  float *data;
  int64_t shape[8];
  size_t rank;
};
struct OrtKernelContext {
  OrtValue input, output;
};
struct OrtAttribute {
  const char *text;
};

OrtStatus *CreateEpFactories(const char *, const OrtApiBase *, const OrtLogger *, OrtEpFactory **, size_t, size_t *);
OrtStatus *ReleaseEpFactory(OrtEpFactory *);

static const char *model_path, *plans;
static OrtNodeComputeInfo *node, *alone;
static OrtKernelContext first;
static atomic_int wrong;

static OrtStatus *create_status(int code, const char *text) {
  OrtStatus *status = calloc(1, sizeof *status);
  snprintf(status->text, sizeof status->text, "%d %s", code, text);
  return status;
}
static OrtStatus *get_data(const OrtValue *value, void **data) { return *data = value->data, NULL; }
static OrtStatus *get_type(const OrtValue *value, int *type) { return (void)value, *type = FLOAT, NULL; }
static OrtStatus *get_rank(const OrtValue *value, size_t *rank) { return *rank = value->rank, NULL; }
static OrtStatus *get_shape(const OrtValue *value, int64_t *shape, size_t rank) {
  return memcpy(shape, value->shape, rank * sizeof *shape), NULL;
}
static OrtStatus *get_info(const OrtValue *value, const OrtValue **info) { return *info = value, NULL; }
static OrtStatus *get_input(const OrtKernelContext *call, size_t index, const OrtValue **value) {
  return (void)index, *value = &call->input, NULL;
}
static OrtStatus *get_output(OrtKernelContext *call, size_t index, const int64_t *shape, size_t rank,
                             OrtValue **value) {
  OrtValue *output = &call->output;
  size_t elements = 1;
  (void)index;
  memcpy(output->shape, shape, rank * sizeof *shape);
  output->rank = rank;
  for (size_t i = 0; i < rank; i++) elements *= (size_t)shape[i];
  output->data = calloc(elements, sizeof *output->data);
  return *value = output, NULL;
}
static void release(void *object) { (void)object; }
static void release_status(OrtStatus *status) { free(status); }
static OrtStatus *get_option(const void *options, const char *key, char *value, size_t *size) {
  (void)options;
  if (strcmp(key, "ep.tvm_sparse.threads")) return create_status(1, "no such option");
  return snprintf(value, *size, "3"), NULL;
}
static OrtStatus *read_attribute(const OrtAttribute *attribute, int type, void *data, size_t size, size_t *needed) {
  *needed = strlen(attribute->text);
  if (type != ORT_STRING_ATTRIBUTE || *needed > size) return create_status(1, "no room");
  return memcpy(data, attribute->text, *needed), NULL;
}
static int device_type(const void *device) { return (void)device, ORT_CPU; }
static OrtStatus *get_path(const void *graph, const char **path) { return (void)graph, *path = model_path, NULL; }
static OrtStatus *get_count(const void *graph, size_t *count) { return (void)graph, *count = 1, NULL; }
static OrtStatus *get_nodes(const void *graph, const OrtNode **nodes, size_t count) {
  return (void)count, *nodes = graph, NULL;
}
static OrtStatus *get_operator(const OrtNode *each, const char **name) { return (void)each, *name = "EPContext", NULL; }
static OrtStatus *get_attribute(const OrtNode *each, const char *name, const OrtAttribute **attribute) {
  static OrtAttribute source = {"tvm_sparse"}, context;
  (void)each;
  context.text = plans;
  *attribute = strcmp(name, "source") ? &context : &source;
  return NULL;
}
static OrtStatus *create_device(OrtEpFactory *factory, const OrtHardwareDevice *device, const OrtKeyValuePairs *a,
                                const OrtKeyValuePairs *b, OrtEpDevice **found) {
  return (void)factory, (void)device, (void)a, (void)b, *found = NULL, NULL;
}
static OrtStatus *fuse(OrtEpGraphSupportInfo *info, const OrtNode *const *nodes, size_t n,
                       const OrtNodeFusionOptions *o) {
  return (void)nodes, (void)o, ++*(size_t *)info, n == 1 ? NULL : create_status(1, "not one node");
}
static const OrtEpApi EP_API = {create_device, NULL, fuse};
static const OrtEpApi *ep_api(void) { return &EP_API; }

static OrtApi API;
static const OrtApi *get_api(uint32_t version) { return version <= ORT_API_VERSION ? &API : NULL; }

static void fill_table(void) {
  const struct {
    int place;
    void *function;
  } TABLE[] = {{0, create_status}, {51, get_data},        {60, get_type},      {61, get_rank},       {62, get_shape},
               {65, get_info},     {90, get_input},       {91, get_output},    {93, release_status}, {99, release},
               {238, get_option},  {272, read_attribute}, {307, device_type},  {317, ep_api},        {334, get_path},
               {344, get_count},   {345, get_nodes},      {350, get_operator}, {361, get_attribute}};
  for (size_t i = 0; i < sizeof TABLE / sizeof *TABLE; i++)
    *(void **)&API.functions[TABLE[i].place] = TABLE[i].function;
}

static void require(OrtStatus *status) {
  if (!status) return;
  fprintf(stderr, "%s\n", status->text);
  exit(1);
}

static void *work(void *unused) {
  for (int i = 0; i < CALLS; i++) {
    OrtKernelContext call = {.input = first.input};
    size_t bytes = sizeof *call.output.data;
    require(node->compute(node, node, &call));
    for (size_t j = 0; j < call.output.rank; j++) bytes *= (size_t)call.output.shape[j];
    if (memcmp(call.output.data, first.output.data, bytes)) atomic_fetch_add(&wrong, 1);
    free(call.output.data);
  }
  return unused;
}

static void run(int64_t samples) {
  size_t elements = 1;
  first.input.shape[0] = samples;
  for (size_t i = 0; i < first.input.rank; i++) elements *= (size_t)first.input.shape[i];
  first.input.data = calloc(elements, sizeof *first.input.data);
  for (size_t i = 0; i < elements; i++) first.input.data[i] = (float)(i % 17) - 8;
  require(alone->compute(alone, alone, &first));
  pthread_t threads[THREADS];
  for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, work, NULL);
  for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
  free(first.input.data);
  free(first.output.data);
}

int main(int argc, char **argv) {
  const OrtApiBase base = {get_api, NULL};
  const OrtGraph *graph = (const OrtGraph *)argv;
  const OrtHardwareDevice *devices[1] = {NULL};
  OrtEpFactory *factory;
  OrtEpDevice *found[1];
  OrtEp *ep;
  size_t count = 0, fused = 0;
  model_path = argv[1];
  plans = argv[2];
  fill_table();
  require(CreateEpFactories("any", &base, NULL, &factory, 1, &count));
  require(factory->get_devices(factory, devices, 1, found, 1, &count));
  require(factory->create_ep(factory, devices, NULL, 1, NULL, NULL, &ep));
  require(ep->get_capability(ep, graph, (OrtEpGraphSupportInfo *)&fused));
  OrtStatus *status = ep->compile(ep, &graph, NULL, 1, &node, NULL);
  if (!status && fused == 1 && count == 1) {
    require(ep->compile(ep, &graph, NULL, 1, &alone, NULL));
    /* Shapes are those of the networks that tests export. */
    const int64_t shape[] = {1, 4, 9, 9};
    first.input.rank = 4;
    memcpy(first.input.shape, shape, sizeof shape);
    for (int i = 3; i < argc; i++) run(atoi(argv[i]));
    printf("%d\n", wrong);
    ep->release_compute_infos(ep, &node, 1);
    ep->release_compute_infos(ep, &alone, 1);
  } else if (status) {
    fprintf(stderr, "%s\n", status->text);
    free(status);
  }
  factory->release_ep(factory, ep);
  ReleaseEpFactory(factory);
  return !!status;
}
