/* Runs models that `tvm-sparse export` wrote: with libc and POSIX threads, without Python and without TVM.
 *
 * A model for an NVIDIA GPU needs `libcuda.so.1`, which comes with NVIDIA's driver, and where cuDNN computes a layer
 * `libcudnn.so.9`. Both are loaded with the first such model; nothing is linked, and no header of CUDA is needed.
 *
 * A model is shared by all threads and never changes. A context is what one call at a time needs beside it: memory for
 * intermediate results, and threads. Threads that call at the same time have a context each.
 *
 * Functions that can fail return NULL, or a number other than 0; `tvm_sparse_error` then says why, in a sentence. */
#ifndef TVM_SPARSE_H
#define TVM_SPARSE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#ifndef TVM_SPARSE_API
#define TVM_SPARSE_API __attribute__((visibility("default")))
#endif

typedef struct tvm_sparse_model tvm_sparse_model;
typedef struct tvm_sparse_context tvm_sparse_context;

/* An input or output. Its elements lie one after the other, the last dimension's together. */
typedef struct {
  const char *name;
  const char *type; /* "float32", "int64", ... */
  int rank;
  const int64_t *shape;
  size_t size_bytes;
} tvm_sparse_tensor;

/* The model of a `.plan` file, whose library lies beside it. Both are checked: that they are whole, of this version,
 * and for this processor. They are code: load what you trust. */
TVM_SPARSE_API tvm_sparse_model *tvm_sparse_load(const char *plan_path);
/* The same, and a model for a GPU on that of this number; `tvm_sparse_load` takes the first, 0. */
TVM_SPARSE_API tvm_sparse_model *tvm_sparse_load_on(const char *plan_path, int gpu);
/* Its contexts must have been freed. NULL is allowed. */
TVM_SPARSE_API void tvm_sparse_free(tvm_sparse_model *model);

TVM_SPARSE_API int tvm_sparse_input_count(const tvm_sparse_model *model);
TVM_SPARSE_API int tvm_sparse_output_count(const tvm_sparse_model *model);
/* NULL where there are not as many. */
TVM_SPARSE_API const tvm_sparse_tensor *tvm_sparse_input(const tvm_sparse_model *model, int index);
TVM_SPARSE_API const tvm_sparse_tensor *tvm_sparse_output(const tvm_sparse_model *model, int index);

/* `threads` with the caller's own; 0: as many as the model was compiled for, or as the process has cores where these
 * are fewer. The others wait for calls until the context is freed. After a fork the child makes contexts of its own.
 * On a GPU there is one thread, a context has a stream and memory there, and a child loads the model anew. */
TVM_SPARSE_API tvm_sparse_context *tvm_sparse_context_new(const tvm_sparse_model *model, int threads);
/* NULL is allowed. */
TVM_SPARSE_API void tvm_sparse_context_free(tvm_sparse_context *context);
TVM_SPARSE_API int tvm_sparse_context_threads(const tvm_sparse_context *context);

/* Run the model. `inputs` has an address for each input, `outputs` one for each output, all of so many bytes as the
 * tensor says. Inputs that are aligned to 64 bytes are read in place, others are copied. An output whose address is
 * NULL, or all where `outputs` is, are not copied; see `tvm_sparse_result`. */
TVM_SPARSE_API int tvm_sparse_run(tvm_sparse_context *context, const void *const *inputs, void *const *outputs);
/* The same for a model on a GPU, with inputs and outputs that lie there, put on `stream`: a CUstream or cudaStream_t of
 * this GPU, NULL for the default one. It returns at once, unless the model checks indices, which waits for the stream.
 * Calls of one context take turns on the GPU, whatever their streams. The first call, and the first for each of four
 * sets of input addresses, launches kernels one by one and records a graph, which later ones launch; other inputs, and
 * those that are not aligned to 64 bytes, are copied on the GPU. A stream that is being captured gets the kernels themselves, after a first call without; launch
 * that graph while no other call of the context runs. */
TVM_SPARSE_API int tvm_sparse_run_on(tvm_sparse_context *context, const void *const *inputs, void *const *outputs,
                                     void *stream);
/* An output of the last call, on the GPU after `tvm_sparse_run_on`, valid until the next one; NULL where there was none, or there are not as many. */
TVM_SPARSE_API const void *tvm_sparse_result(const tvm_sparse_context *context, int index);

/* Why the last call of the calling thread that failed did; empty where none has. */
TVM_SPARSE_API const char *tvm_sparse_error(void);

#ifdef __cplusplus
}
#endif
#endif
