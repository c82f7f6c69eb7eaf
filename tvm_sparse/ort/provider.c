/* An execution provider of ONNX Runtime: nodes EPContext that `tvm_sparse.ort.export` wrote, run by tvm_sparse_run. */
#include "node.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES = 4096 };
#define EXPORTED __attribute__((visibility("default")))
#define NAME "tvm_sparse"

typedef struct {
  OrtEpFactory interface;
  const OrtApi *api;
} Factory;
typedef struct {
  OrtEp interface;
  const OrtApi *api;
  int threads;
  char context_path[TEXT_BYTES];
} Provider;

static const char *provider_name(const OrtEp *self) {
  (void)self;
  return NAME;
}

/* An attribute that is text, cut where it is too long; empty where there is none. */
static void read_text(const OrtApi *api, const OrtNode *node, const char *name, char text[TEXT_BYTES]) {
  const OrtAttribute *attribute = NULL;
  size_t size = 0;
  OrtStatus *status = ort_attribute(api, node, name, &attribute);
  text[0] = 0;
  if (!status && attribute)
    status = ort_read_attribute(api, attribute, ORT_STRING_ATTRIBUTE, text, TEXT_BYTES - 1, &size);
  text[status || size >= TEXT_BYTES ? 0 : size] = 0;
  if (status) ort_release_status(api, status);
}

static bool is_ours(const OrtApi *api, const OrtNode *node) {
  const char *name = "";
  char source[TEXT_BYTES];
  OrtStatus *status = ort_operator(api, node, &name);
  if (status) ort_release_status(api, status);
  read_text(api, node, "source", source);
  return !strcmp(name, "EPContext") && !strcmp(source, NAME);
}

static OrtStatus *get_capability(OrtEp *self, const OrtGraph *graph, OrtEpGraphSupportInfo *support) {
  const OrtApi *api = ((Provider *)self)->api;
  size_t count = 0;
  OrtStatus *status = ort_node_count(api, graph, &count);
  const OrtNode **nodes = calloc(count + 1, sizeof *nodes);
  if (!nodes) return ort_status(api, NAME ": there is no memory for the graph");
  if (!status) status = ort_nodes(api, graph, nodes, count);
  for (size_t i = 0; i < count && !status; i++) {
    OrtNodeFusionOptions options = {ORT_API_VERSION, true};
    if (is_ours(api, nodes[i])) status = ort_ep_api(api)->fuse(support, &nodes[i], 1, &options);
  }
  free(nodes);
  return status;
}

static OrtStatus *compile_node(Provider *self, const OrtGraph *graph, OrtNodeComputeInfo **info) {
  const OrtNode *node;
  const char *path = "";
  char plans[TEXT_BYTES];
  OrtStatus *status = ort_nodes(self->api, graph, &node, 1);
  if (!status) status = ort_model_path(self->api, graph, &path);
  if (status) return status;
  read_text(self->api, node, "ep_cache_context", plans);
  /* A model that was read from memory has no path; where it would be says the session. */
  *info = node_new(self->api, *self->context_path ? self->context_path : path, plans, self->threads);
  return *info ? NULL : ort_status(self->api, tvm_sparse_error());
}

static void release_infos(OrtEp *self, OrtNodeComputeInfo **infos, size_t count) {
  (void)self;
  for (size_t i = 0; i < count; i++) node_free(infos[i]);
}

static OrtStatus *compile(OrtEp *self, const OrtGraph **graphs, const OrtNode **fused, size_t count,
                          OrtNodeComputeInfo **infos, OrtNode **contexts) {
  (void)fused, (void)contexts;
  OrtStatus *status = NULL;
  for (size_t i = 0; i < count && !status; i++) status = compile_node((Provider *)self, graphs[i], &infos[i]);
  return status;
}

static const char *factory_name(const OrtEpFactory *self) {
  (void)self;
  return NAME;
}

static const char *vendor(const OrtEpFactory *self) {
  (void)self;
  return "tvm-sparse";
}

static uint32_t vendor_id(const OrtEpFactory *self) {
  (void)self;
  return 0;
}

static const char *provider_version(const OrtEpFactory *self) {
  (void)self;
  return TVM_SPARSE_VERSION;
}

static OrtStatus *get_devices(OrtEpFactory *self, const OrtHardwareDevice *const *devices, size_t count,
                              OrtEpDevice **found, size_t room, size_t *found_count) {
  const OrtApi *api = ((Factory *)self)->api;
  OrtStatus *status = NULL;
  *found_count = 0;
  for (size_t i = 0; i < count && *found_count < room && !status; i++) {
    if (ort_device_type(api, devices[i]) != ORT_CPU) continue;
    status = ort_ep_api(api)->create_device(self, devices[i], NULL, NULL, &found[*found_count]);
    if (!status) ++*found_count;
  }
  return status;
}

/* A setting of the session; empty where it has none. */
static void read_option(const OrtApi *api, const OrtSessionOptions *options, const char *key, char value[TEXT_BYTES]) {
  size_t size = TEXT_BYTES;
  OrtStatus *status = ort_option(api, options, key, value, &size);
  if (!status) return;
  value[0] = 0;
  ort_release_status(api, status);
}

static OrtStatus *create_ep(OrtEpFactory *self, const OrtHardwareDevice *const *devices,
                            const OrtKeyValuePairs *const *metadata, size_t count, const OrtSessionOptions *options,
                            const OrtLogger *logger, OrtEp **ep) {
  (void)devices, (void)metadata, (void)count, (void)logger;
  const OrtApi *api = ((Factory *)self)->api;
  Provider *provider = calloc(1, sizeof *provider);
  if (!provider) return ort_status(api, NAME ": there is no memory for the provider");
  provider->interface = (OrtEp){.version = ORT_API_VERSION,
                                .name = provider_name,
                                .get_capability = get_capability,
                                .compile = compile,
                                .release_compute_infos = release_infos};
  provider->api = api;
  char threads[TEXT_BYTES];
  read_option(api, options, "ep." NAME ".threads", threads);
  read_option(api, options, "ep.context_file_path", provider->context_path);
  provider->threads = atoi(threads);
  *ep = &provider->interface;
  return NULL;
}

static void release_ep(OrtEpFactory *self, OrtEp *ep) {
  (void)self;
  free(ep);
}

static OrtStatus *no_data_transfer(OrtEpFactory *self, OrtDataTransferImpl **transfer) {
  (void)self;
  *transfer = NULL;
  return NULL;
}

static bool is_stream_aware(const OrtEpFactory *self) {
  (void)self;
  return false;
}

EXPORTED OrtStatus *CreateEpFactories(const char *name, const OrtApiBase *base, const OrtLogger *logger,
                                      OrtEpFactory **factories, size_t room, size_t *count);
OrtStatus *CreateEpFactories(const char *name, const OrtApiBase *base, const OrtLogger *logger,
                             OrtEpFactory **factories, size_t room, size_t *count) {
  (void)name, (void)logger;
  const OrtApi *api = base->get_api(ORT_API_VERSION);
  if (!api) return ort_status(base->get_api(1), NAME ": needs ONNX Runtime 1.23 or newer");
  Factory *factory = room ? calloc(1, sizeof *factory) : NULL;
  if (!factory) return ort_status(api, NAME ": there is no memory for the provider");
  /* ONNX Runtime calls the last two without looking whether they are there. */
  factory->interface = (OrtEpFactory){.version = ORT_API_VERSION,
                                      .name = factory_name,
                                      .vendor = vendor,
                                      .get_devices = get_devices,
                                      .create_ep = create_ep,
                                      .release_ep = release_ep,
                                      .vendor_id = vendor_id,
                                      .provider_version = provider_version,
                                      .create_data_transfer = no_data_transfer,
                                      .is_stream_aware = is_stream_aware};
  factory->api = api;
  factories[0] = &factory->interface;
  *count = 1;
  return NULL;
}

EXPORTED OrtStatus *ReleaseEpFactory(OrtEpFactory *factory);
OrtStatus *ReleaseEpFactory(OrtEpFactory *factory) {
  free(factory);
  return NULL;
}
