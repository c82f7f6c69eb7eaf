/* What of ONNX Runtime's C interface the provider uses, declared anew: its headers are in no package.
 *
 * The interface is append-only: functions keep their place in the table. Places are those of version 23, which begins
 * with ONNX Runtime 1.23; newer releases have the same. */
#ifndef TVM_SPARSE_ORT_ABI_H
#define TVM_SPARSE_ORT_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ORT_API_VERSION = 23, ORT_FAIL = 1, ORT_STRING_ATTRIBUTE = 5, ORT_CPU = 0 };

typedef struct OrtStatus OrtStatus;
typedef struct OrtValue OrtValue;
typedef struct OrtTensorInfo OrtTensorInfo;
typedef struct OrtNode OrtNode;
typedef struct OrtGraph OrtGraph;
typedef struct OrtAttribute OrtAttribute;
typedef struct OrtSessionOptions OrtSessionOptions;
typedef struct OrtLogger OrtLogger;
typedef struct OrtHardwareDevice OrtHardwareDevice;
typedef struct OrtKeyValuePairs OrtKeyValuePairs;
typedef struct OrtEpDevice OrtEpDevice;
typedef struct OrtEpGraphSupportInfo OrtEpGraphSupportInfo;
typedef struct OrtNodeComputeContext OrtNodeComputeContext;
typedef struct OrtKernelContext OrtKernelContext;
typedef struct OrtDataTransferImpl OrtDataTransferImpl;

typedef struct {
  void (*functions[362])(void);
} OrtApi;
typedef struct {
  const OrtApi *(*get_api)(uint32_t version);
  const char *(*version)(void);
} OrtApiBase;

/* A function of the table, called: CALL(api, place, types of arguments)(arguments). All but a few return a status. */
#define CALL(api, place, ...) ((OrtStatus * (*)(__VA_ARGS__))(api)->functions[place])

static inline OrtStatus *ort_status(const OrtApi *api, const char *text) {
  return CALL(api, 0, int, const char *)(ORT_FAIL, text);
}
static inline OrtStatus *ort_data(const OrtApi *api, const OrtValue *value, void **data) {
  return CALL(api, 51, const OrtValue *, void **)(value, data);
}
static inline OrtStatus *ort_element_type(const OrtApi *api, const OrtTensorInfo *info, int *type) {
  return CALL(api, 60, const OrtTensorInfo *, int *)(info, type);
}
static inline OrtStatus *ort_rank(const OrtApi *api, const OrtTensorInfo *info, size_t *rank) {
  return CALL(api, 61, const OrtTensorInfo *, size_t *)(info, rank);
}
static inline OrtStatus *ort_shape(const OrtApi *api, const OrtTensorInfo *info, int64_t *shape, size_t rank) {
  return CALL(api, 62, const OrtTensorInfo *, int64_t *, size_t)(info, shape, rank);
}
static inline OrtStatus *ort_tensor_info(const OrtApi *api, const OrtValue *value, OrtTensorInfo **info) {
  return CALL(api, 65, const OrtValue *, OrtTensorInfo **)(value, info);
}
static inline OrtStatus *ort_input(const OrtApi *api, const OrtKernelContext *call, size_t index,
                                   const OrtValue **value) {
  return CALL(api, 90, const OrtKernelContext *, size_t, const OrtValue **)(call, index, value);
}
static inline OrtStatus *ort_output(const OrtApi *api, OrtKernelContext *call, size_t index, const int64_t *shape,
                                    size_t rank, OrtValue **value) {
  return CALL(api, 91, OrtKernelContext *, size_t, const int64_t *, size_t, OrtValue **)(call, index, shape, rank,
                                                                                         value);
}
static inline void ort_release_status(const OrtApi *api, OrtStatus *status) {
  ((void (*)(OrtStatus *))api->functions[93])(status);
}
static inline void ort_release_info(const OrtApi *api, OrtTensorInfo *info) {
  ((void (*)(OrtTensorInfo *))api->functions[99])(info);
}
static inline OrtStatus *ort_option(const OrtApi *api, const OrtSessionOptions *options, const char *key, char *value,
                                    size_t *size) {
  return CALL(api, 238, const OrtSessionOptions *, const char *, char *, size_t *)(options, key, value, size);
}
static inline OrtStatus *ort_read_attribute(const OrtApi *api, const OrtAttribute *attribute, int type, void *data,
                                            size_t size, size_t *needed) {
  return CALL(api, 272, const OrtAttribute *, int, void *, size_t, size_t *)(attribute, type, data, size, needed);
}
static inline int ort_device_type(const OrtApi *api, const OrtHardwareDevice *device) {
  return ((int (*)(const OrtHardwareDevice *))api->functions[307])(device);
}
static inline OrtStatus *ort_model_path(const OrtApi *api, const OrtGraph *graph, const char **path) {
  return CALL(api, 334, const OrtGraph *, const char **)(graph, path);
}
static inline OrtStatus *ort_node_count(const OrtApi *api, const OrtGraph *graph, size_t *count) {
  return CALL(api, 344, const OrtGraph *, size_t *)(graph, count);
}
static inline OrtStatus *ort_nodes(const OrtApi *api, const OrtGraph *graph, const OrtNode **nodes, size_t count) {
  return CALL(api, 345, const OrtGraph *, const OrtNode **, size_t)(graph, nodes, count);
}
static inline OrtStatus *ort_operator(const OrtApi *api, const OrtNode *node, const char **name) {
  return CALL(api, 350, const OrtNode *, const char **)(node, name);
}
static inline OrtStatus *ort_attribute(const OrtApi *api, const OrtNode *node, const char *name,
                                       const OrtAttribute **attribute) {
  return CALL(api, 361, const OrtNode *, const char *, const OrtAttribute **)(node, name, attribute);
}

typedef struct {
  uint32_t version;
  bool drop_constant_initializers;
} OrtNodeFusionOptions;
typedef struct OrtEpFactory OrtEpFactory;
typedef struct OrtEp OrtEp;
typedef struct OrtNodeComputeInfo OrtNodeComputeInfo;
typedef struct {
  OrtStatus *(*create_device)(OrtEpFactory *, const OrtHardwareDevice *, const OrtKeyValuePairs *,
                              const OrtKeyValuePairs *, OrtEpDevice **);
  void *release_device;
  OrtStatus *(*fuse)(OrtEpGraphSupportInfo *, const OrtNode *const *, size_t, const OrtNodeFusionOptions *);
} OrtEpApi;

static inline const OrtEpApi *ort_ep_api(const OrtApi *api) {
  return ((const OrtEpApi *(*)(void))api->functions[317])();
}

/* What the provider implements; what is NULL it leaves to ONNX Runtime. */
struct OrtNodeComputeInfo {
  uint32_t version;
  OrtStatus *(*create_state)(OrtNodeComputeInfo *, OrtNodeComputeContext *, void **);
  OrtStatus *(*compute)(OrtNodeComputeInfo *, void *, OrtKernelContext *);
  void (*release_state)(OrtNodeComputeInfo *, void *);
};
struct OrtEp {
  uint32_t version;
  const char *(*name)(const OrtEp *);
  OrtStatus *(*get_capability)(OrtEp *, const OrtGraph *, OrtEpGraphSupportInfo *);
  OrtStatus *(*compile)(OrtEp *, const OrtGraph **, const OrtNode **, size_t, OrtNodeComputeInfo **, OrtNode **);
  void (*release_compute_infos)(OrtEp *, OrtNodeComputeInfo **, size_t);
  void *others[8];
};
struct OrtEpFactory {
  uint32_t version;
  const char *(*name)(const OrtEpFactory *);
  const char *(*vendor)(const OrtEpFactory *);
  OrtStatus *(*get_devices)(OrtEpFactory *, const OrtHardwareDevice *const *, size_t, OrtEpDevice **, size_t, size_t *);
  OrtStatus *(*create_ep)(OrtEpFactory *, const OrtHardwareDevice *const *, const OrtKeyValuePairs *const *, size_t,
                          const OrtSessionOptions *, const OrtLogger *, OrtEp **);
  void (*release_ep)(OrtEpFactory *, OrtEp *);
  uint32_t (*vendor_id)(const OrtEpFactory *);
  const char *(*provider_version)(const OrtEpFactory *);
  void *validate, *create_allocator, *release_allocator;
  OrtStatus *(*create_data_transfer)(OrtEpFactory *, OrtDataTransferImpl **);
  bool (*is_stream_aware)(const OrtEpFactory *);
  void *create_stream;
};

#endif
