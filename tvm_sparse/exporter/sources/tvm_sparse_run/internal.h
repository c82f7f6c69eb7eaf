/* What the files of the library share. */
#ifndef TVM_SPARSE_INTERNAL_H
#define TVM_SPARSE_INTERNAL_H

#include "tvm_sparse.h"

#include <stdbool.h>

enum { ALIGNMENT = 64, SHA256_BYTES = 32 };

/* How compiled code takes tensors and calls: DLPack's DLTensor, and TVMFFIAny and TVMFFISafeCallType of tvm_ffi. */
typedef struct {
  uint8_t code, bits;
  uint16_t lanes;
} Type;
typedef struct {
  void *data;
  int32_t device_type, device_id;
  int32_t rank;
  Type type;
  int64_t *shape, *strides;
  uint64_t offset;
} DlTensor;
typedef struct {
  int32_t kind, zero;
  union {
    int64_t integer;
    double real;
    void *pointer;
  } value;
} Any;
typedef int (*Kernel)(void *self, const Any *arguments, int32_t count, Any *result);
enum { KIND_INTEGER = 1, KIND_REAL = 3, KIND_TENSOR = 7, DEVICE_CPU = 1, DEVICE_CUDA = 2 };

/* What a tensor lies in. */
enum { IN_WORKSPACE, IN_CONSTANTS, IN_INPUT, BASES };

typedef struct {
  int kind;
  uint32_t base, input;
  uint64_t offset, size_bytes;
  DlTensor tensor; /* without data */
  int64_t integer;
  double real;
} Argument;
/* An input or output, and where it is. */
typedef struct {
  tvm_sparse_tensor tensor;
  Argument place;
} Named;
typedef struct {
  uint32_t count, *numbers;
} Steps;
/* `first` of all arguments is its own first. Where branches run side by side it runs after the steps that it says, or,
 * if these are none, after the one before it. */
typedef struct {
  const char *name;
  Kernel kernel;
  uint32_t count;
  uint64_t first;
  Argument *arguments;
  Steps after;
} Step;
/* Which places of a tensor an operator may be told to read or write, for each coordinate: lowest, highest. */
typedef struct {
  const char *where;
  uint32_t count;
  int64_t *ranges;
} Check;

typedef struct Gpu Gpu;

struct tvm_sparse_model {
  struct Block *blocks; /* what all else here points into */
  Gpu *gpu;             /* NULL: for a CPU */
  void *library;
  const char *constants;
  const char *library_name;
  uint64_t library_bytes;
  const unsigned char *library_sha256;
  uint32_t threads;
  uint64_t workspace_bytes;
  uint32_t input_count, output_count, bounds_count, check_count, step_count;
  Named *inputs, *outputs;
  Argument *bounds;
  Check *checks;
  Step *steps;
  Steps ends; /* after which none runs; none: all run in a row */
};

/* Sets what `tvm_sparse_error` says; returns NULL, for callers to return. */
void *fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Zeros that are freed with the model; NULL, and an error, where there is no memory. */
void *allocate(tvm_sparse_model *model, uint64_t count, size_t size);
/* All that `allocate` gave. */
void free_all(tvm_sparse_model *model);
/* Reads the plan into `model`; false, and an error, where it is damaged or not for this machine. */
bool read_plan(tvm_sparse_model *model, const char *path, const char *plan, size_t size_bytes);
/* Whether a tensor lies within so many bytes of its base. */
bool lies_within(const Argument *argument, uint64_t size_bytes);

void sha256(const void *data, size_t size_bytes, unsigned char digest[SHA256_BYTES]);

/* Threads that share the work of one kernel at a time; the first is the caller. */
typedef struct Crew Crew;
Crew *crew_new(int threads);
/* Of a parent process there are no threads that could be waited for. */
void crew_free(Crew *crew, bool is_of_parent);
/* From now on kernels that the calling thread runs share their work among `crew`; NULL ends that. */
void crew_enter(Crew *crew);
/* What the kernel said that has failed in the calling thread, or for it, since then. */
const char *crew_error(void);
/* A function that compiled code calls through a pointer in its library; lists end with NULL. */
typedef struct {
  const char *name;
  void *function;
} Function;
extern const Function GPU_FUNCTIONS[];
/* Gives compiled code the functions that it calls. */
void provide_functions(void *library);
/* Compiled code calls it by this name before it returns an error. */
__attribute__((visibility("default"))) void TVMFFIErrorSetRaisedFromCStrParts(const char *kind, const char **parts,
                                                                              int32_t count);

#endif
