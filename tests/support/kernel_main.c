/* Calls a kernel that was built for another processor: the tensors of the file argv[1], their values behind it.
 *
 * In the file: how many tensors; of each its dimensions' number, its type's code and bits, its dimensions (all 64 bits),
 * its values. The last tensor's values are written to the file argv[2].
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <tvm/ffi/c_api.h>

#define MOST 16

typedef struct {
  void* sync_handle;
  int32_t num_task;
} Group;
typedef int (*Task)(int, Group*, void*);

int __tvm_ffi_main(void*, const TVMFFIAny*, int32_t, TVMFFIAny*);

static int launch(Task task, void* data, int count) {
  Group group = {NULL, 1};
  return task(0, &group, data);
}

static void* allocate(int type, int id, uint64_t size, int code, int bits) {
  return aligned_alloc(64, (size + 63) / 64 * 64);
}

static int release(int type, int id, void* memory) {
  free(memory);
  return 0;
}

/* What kernels call of TVM's runtime. */
int (*__TVMBackendParallelLaunch)(Task, void*, int) = launch;
void* (*__TVMBackendAllocWorkspace)(int, int, uint64_t, int, int) = allocate;
int (*__TVMBackendFreeWorkspace)(int, int, void*) = release;

void TVMFFIErrorSetRaisedFromCStrParts(const char* kind, const char** parts, int32_t count) {
  for (int32_t i = 0; i < count; ++i) fputs(parts[i], stderr);
}

static void expect(size_t found, size_t expected) {
  if (found != expected) {
    fputs("a file is cut short\n", stderr);
    exit(2);
  }
}

static size_t read_tensor(FILE* file, DLTensor* tensor) {
  int64_t head[3];
  expect(fread(head, 8, 3, file), 3);
  memset(tensor, 0, sizeof *tensor);
  tensor->ndim = (int32_t)head[0];
  tensor->dtype = (DLDataType){(uint8_t)head[1], (uint8_t)head[2], 1};
  tensor->device = (DLDevice){kDLCPU, 0};
  tensor->shape = calloc(head[0], 8);
  expect(fread(tensor->shape, 8, head[0], file), head[0]);
  size_t bytes = head[2] / 8;
  for (int i = 0; i < tensor->ndim; ++i) bytes *= tensor->shape[i];
  tensor->strides = calloc(head[0], 8);
  for (int64_t i = tensor->ndim, step = 1; i-- > 0; step *= tensor->shape[i]) tensor->strides[i] = step;
  tensor->data = allocate(0, 0, bytes, 0, 0);
  expect(fread(tensor->data, 1, bytes, file), bytes);
  return bytes;
}

int main(int argc, char** argv) {
  int64_t count;
  size_t bytes = 0;
  DLTensor tensors[MOST];
  TVMFFIAny arguments[MOST], result;
  FILE* in = fopen(argv[1], "rb");
  expect(fread(&count, 8, 1, in), 1);
  memset(arguments, 0, sizeof arguments);
  memset(&result, 0, sizeof result);
  for (int i = 0; i < count; ++i) {
    bytes = read_tensor(in, &tensors[i]);
    arguments[i].type_index = kTVMFFIDLTensorPtr;
    arguments[i].v_ptr = &tensors[i];
  }
  if (__tvm_ffi_main(NULL, arguments, (int32_t)count, &result)) return 1;
  FILE* out = fopen(argv[2], "wb");
  expect(fwrite(tensors[count - 1].data, 1, bytes, out), bytes);
  return fclose(out);
}
