/* cuDNN's functions that tvm_sparse.cudnn calls, on memory of the host, for tests without a GPU.
 *
 * Work is done at once. Calls are noted with their numbers. What cuDNN refuses is refused as far as it is known, the
 * workspace that a convolution asks for is overwritten with NaN, and tests can make a function fail. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BAD_PARAM = 2000, NOT_SUPPORTED = 3000 };
enum { PRECOMP = 1, RELU = 1, CLIPPED_RELU = 3, IDENTITY = 5, TENSOR_OP_MATH = 1, FMA_MATH = 3 };
enum { FLOAT = 0, HALF = 2, BFLOAT16 = 9 };
/* Tensors (N, C, D, H, W), filters (K, C / groups, T, R, S); maps are volumes of depth 1. */
typedef struct { int is_set, type, shape[5], strides[5]; } Tensor;
typedef struct { int is_set, type, nhwc, shape[5]; } Filters;
typedef struct { int padding[3], stride[3], dilation[3], mode, math, groups; } Convolution;
typedef struct { int mode, propagates_nan; float most; } Activation;
typedef struct { void* stream; int in_use; } Handle;

static char notes[1 << 16], failing[64], last_error[256];
static int fail_status, created;
static size_t wanted_bytes;

const char* fake_notes(void) { return notes; }
int fake_created(void) { return created; }
void fake_reset(void) { notes[0] = failing[0] = last_error[0] = 0; fail_status = 0; wanted_bytes = 0; }
void fake_fail(const char* name, int status) { snprintf(failing, sizeof failing, "%s", name); fail_status = status; }
void fake_want_workspace(size_t bytes) { wanted_bytes = bytes; }

static void note(const char* format, const char* name, const void* stream) {
  size_t end = strlen(notes);
  snprintf(notes + end, sizeof notes - end, format, name, (unsigned long)stream);
}
static int refuse(int status, const char* why) {
  snprintf(last_error, sizeof last_error, "%s", why);
  return status;
}
#define BEGIN(handle) \
  note("%s %lu\n", __func__ + 5, (handle)->stream); \
  if (!strcmp(failing, __func__)) return refuse(fail_status, "as the test\n wanted"); \
  if (__sync_fetch_and_add(&(handle)->in_use, 1)) return refuse(BAD_PARAM, "two threads use the handle")
#define END(handle) return __sync_fetch_and_sub(&(handle)->in_use, 1), 0
#define NEW(type) *(void**)made = calloc(1, sizeof(type)); ++created; return 0

size_t cudnnGetVersion(void) { return 91900; }
const char* cudnnGetErrorString(int status) {
  return status == NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED" : status == BAD_PARAM ? "CUDNN_STATUS_BAD_PARAM" : "OTHER";
}
void cudnnGetLastErrorString(char* text, size_t size) { snprintf(text, size, "%s", last_error); }
int cudnnCreate(void** made) {
  if (!strcmp(failing, __func__)) return refuse(fail_status, "");
  NEW(Handle);
}
int cudnnSetStream(Handle* handle, void* stream) { handle->stream = stream; return 0; }
int cudnnCreateTensorDescriptor(void** made) { NEW(Tensor); }
int cudnnCreateFilterDescriptor(void** made) { NEW(Filters); }
int cudnnCreateConvolutionDescriptor(void** made) { NEW(Convolution); }
int cudnnCreateActivationDescriptor(void** made) { NEW(Activation); }
int cudnnDestroy(void* made) { free(made); --created; return 0; }
int cudnnDestroyTensorDescriptor(void* made) { return cudnnDestroy(made); }
int cudnnDestroyFilterDescriptor(void* made) { return cudnnDestroy(made); }
int cudnnDestroyConvolutionDescriptor(void* made) { return cudnnDestroy(made); }
int cudnnDestroyActivationDescriptor(void* made) { return cudnnDestroy(made); }

static int is_known(int type) { return type == FLOAT || type == HALF || type == BFLOAT16; }
/* Element `i` of an array of a type, as a float. */
static float load(int type, const void* array, long i) {
  if (type == FLOAT) return ((const float*)array)[i];
  if (type == HALF) return ((const _Float16*)array)[i];
  unsigned bits = (unsigned)((const unsigned short*)array)[i] << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
/* Rounds to nearest. */
static void store(int type, void* array, long i, float value) {
  if (type == FLOAT) ((float*)array)[i] = value;
  else if (type == HALF) ((_Float16*)array)[i] = value;
  else {
    unsigned bits;
    memcpy(&bits, &value, 4);
    bits = value != value ? 0x7fc00000u : bits + 0x7fff + ((bits >> 16) & 1);
    ((unsigned short*)array)[i] = bits >> 16;
  }
}

int cudnnSetTensor4dDescriptorEx(Tensor* t, int type, int n, int c, int h, int w, int sn, int sc, int sh, int sw) {
  if (!is_known(type) || n < 1 || c < 1 || h < 1 || w < 1) return refuse(BAD_PARAM, "tensor");
  *t = (Tensor){1, type, {n, c, 1, h, w}, {sn, sc, 0, sh, sw}};
  return 0;
}
int cudnnSetTensorNdDescriptor(Tensor* t, int type, int axes, const int* shape, const int* strides) {
  if (!is_known(type) || axes != 5) return refuse(BAD_PARAM, "tensor");
  *t = (Tensor){1, type};
  memcpy(t->shape, shape, sizeof t->shape);
  memcpy(t->strides, strides, sizeof t->strides);
  return 0;
}
int cudnnSetFilter4dDescriptor(Filters* f, int type, int format, int k, int c, int r, int s) {
  if (!is_known(type) || format < 0 || format > 1) return refuse(BAD_PARAM, "filters");
  *f = (Filters){1, type, format, {k, c, 1, r, s}};
  return 0;
}
int cudnnSetFilterNdDescriptor(Filters* f, int type, int format, int axes, const int* shape) {
  if (!is_known(type) || format < 0 || format > 1 || axes != 5) return refuse(BAD_PARAM, "filters");
  *f = (Filters){1, type, format};
  memcpy(f->shape, shape, sizeof f->shape);
  return 0;
}
int cudnnSetConvolution2dDescriptor(Convolution* v, int ph, int pw, int sh, int sw, int dh, int dw, int mode, int type) {
  if (mode != 1 || type) return refuse(BAD_PARAM, "convolution");
  *v = (Convolution){{0, ph, pw}, {1, sh, sw}, {1, dh, dw}, mode, 0, 1};
  return 0;
}
int cudnnSetConvolutionNdDescriptor(
    Convolution* v, int axes, const int* padding, const int* stride, const int* dilation, int mode, int type) {
  if (mode != 1 || type || axes != 3) return refuse(BAD_PARAM, "convolution");
  *v = (Convolution){{0}, {0}, {0}, mode, 0, 1};
  memcpy(v->padding, padding, sizeof v->padding);
  memcpy(v->stride, stride, sizeof v->stride);
  memcpy(v->dilation, dilation, sizeof v->dilation);
  return 0;
}
int cudnnSetConvolutionMathType(Convolution* v, int math) { v->math = math; return 0; }
int cudnnSetConvolutionGroupCount(Convolution* v, int groups) { v->groups = groups; return 0; }
int cudnnSetActivationDescriptor(Activation* a, int mode, int nan_option, double coefficient) {
  if ((coefficient != 0) != (mode == CLIPPED_RELU)) return refuse(BAD_PARAM, "activation");
  *a = (Activation){mode, nan_option, coefficient};
  return 0;
}

static long at(const Tensor* t, int n, int c, int d, int h, int w) {
  const int* s = t->strides;
  return (long)n * s[0] + (long)c * s[1] + (long)d * s[2] + (long)h * s[3] + (long)w * s[4];
}
#define EACH(t) \
  for (int n = 0; n < (t)->shape[0]; ++n) for (int c = 0; c < (t)->shape[1]; ++c) \
    for (int d = 0; d < (t)->shape[2]; ++d) \
      for (int h = 0; h < (t)->shape[3]; ++h) for (int w = 0; w < (t)->shape[4]; ++w)

int cudnnSetTensor(Handle* handle, const Tensor* t, void* y, const void* value) {
  BEGIN(handle);
  EACH(t) store(t->type, y, at(t, n, c, d, h, w), load(t->type, value, 0));
  END(handle);
}
int cudnnTransformTensor(
    Handle* handle, const float* alpha, const Tensor* from, const void* x, const float* beta, const Tensor* to, void* y) {
  BEGIN(handle);
  if (from->type != to->type) return refuse(BAD_PARAM, "types differ");
  if (memcmp(from->shape, to->shape, sizeof from->shape)) return refuse(BAD_PARAM, "shapes differ");
  if (*alpha != 1 || *beta != 0) return refuse(BAD_PARAM, "no plain copy");
  EACH(to) store(to->type, y, at(to, n, c, d, h, w), load(from->type, x, at(from, n, c, d, h, w)));
  END(handle);
}
int cudnnAddTensor(
    Handle* handle, const float* alpha, const Tensor* a, const void* x, const float* beta, const Tensor* t, void* y) {
  BEGIN(handle);
  if (a->type != t->type) return refuse(BAD_PARAM, "types differ");
  const int* s = a->shape;
  for (int i = 0; i < 5; ++i) if (s[i] != 1 && s[i] != t->shape[i]) return refuse(BAD_PARAM, "does not broadcast");
  EACH(t) {
    long i = at(t, n, c, d, h, w);
    float added = load(a->type, x, at(a, n % s[0], c % s[1], d % s[2], h % s[3], w % s[4]));
    store(t->type, y, i, *alpha * added + *beta * load(t->type, y, i));
  }
  END(handle);
}
static float relu(float value) { return value < 0 ? 0 : value; }
int cudnnActivationForward(Handle* handle, const Activation* a, const float* alpha, const Tensor* from, const void* x,
                           const float* beta, const Tensor* to, void* y) {
  BEGIN(handle);
  if (a->mode == IDENTITY || !a->propagates_nan || *alpha != 1 || *beta != 0) return refuse(BAD_PARAM, "activation");
  EACH(to) {
    float value = relu(load(from->type, x, at(from, n, c, d, h, w)));
    store(to->type, y, at(to, n, c, d, h, w), a->mode == CLIPPED_RELU && value > a->most ? a->most : value);
  }
  END(handle);
}

int cudnnGetConvolutionForwardWorkspaceSize(
    Handle* handle, const Tensor* x, const Filters* f, const Convolution* v, const Tensor* y, int algorithm, size_t* size) {
  note("%s%.0lu\n", "GetConvolutionForwardWorkspaceSize", 0);
  int padded_channels = x->shape[1] == f->shape[1] * v->groups, filters = y->shape[1] == f->shape[0];
  if (!padded_channels || !filters || x->shape[0] != y->shape[0]) return refuse(BAD_PARAM, "channels");
  for (int i = 0; i < 3; ++i) {
    int reach = x->shape[2 + i] + 2 * v->padding[i] - v->dilation[i] * (f->shape[2 + i] - 1) - 1;
    if (reach < 0 || reach / v->stride[i] + 1 != y->shape[2 + i]) return refuse(BAD_PARAM, "output size");
  }
  *size = wanted_bytes ? wanted_bytes : algorithm ? 4096 : 0;
  return 0;
}
/* A float with the 10 bits behind the point that TF32 has, by truncation. */
static float tf32(float value) {
  unsigned bits;
  memcpy(&bits, &value, 4);
  bits &= 0xffffe000u;
  memcpy(&value, &bits, 4);
  return value;
}
static int convolve(const Tensor* x, const void* px, const Filters* f, const void* pw, const Convolution* v,
                    int algorithm, float* workspace, size_t bytes, const Tensor* y, float* py) {
  size_t needed = wanted_bytes ? wanted_bytes : algorithm ? 4096 : 0;
  if (bytes < needed || (needed && !workspace)) return refuse(BAD_PARAM, "workspace");
  memset(workspace, 0xff, bytes);
  /* Both must be dense in the layout of the filters. */
  const Tensor* tensors[] = {x, y};
  for (int i = 0; i < 2; ++i) {
    const int* s = tensors[i]->shape;
    int map = s[3] * s[4], nchw[] = {s[1] * s[2] * map, s[2] * map, map, s[4], 1};
    int nhwc[] = {s[1] * s[2] * map, 1, map * s[1], s[4] * s[1], s[1]};
    const int* dense = f->nhwc ? nhwc : nchw;
    for (int j = 0; j < 5; ++j)
      if (tensors[i]->strides[j] != dense[j] && (j != 2 || s[2] > 1)) return refuse(NOT_SUPPORTED, "layouts differ");
  }
  if (f->type != x->type || y->type != x->type) return refuse(BAD_PARAM, "types differ");
  if (x->type != FLOAT && v->math != TENSOR_OP_MATH) return refuse(NOT_SUPPORTED, "math of another type");
  if (v->math != FMA_MATH && algorithm != PRECOMP) return refuse(NOT_SUPPORTED, "no tensor cores");
  const int* g = f->shape;
  EACH(y) {
    double sum = 0;
    int first = c / (g[0] / v->groups) * g[1];
    for (int i = 0; i < g[1]; ++i) for (int t = 0; t < g[2]; ++t)
      for (int r = 0; r < g[3]; ++r) for (int s = 0; s < g[4]; ++s) {
      int depth = d * v->stride[0] + t * v->dilation[0] - v->padding[0];
      int row = h * v->stride[1] + r * v->dilation[1] - v->padding[1];
      int column = w * v->stride[2] + s * v->dilation[2] - v->padding[2];
      if (depth < 0 || depth >= x->shape[2] || row < 0 || row >= x->shape[3] || column < 0 || column >= x->shape[4])
        continue;
      long tap = ((long)t * g[3] + r) * g[4] + s, taps = (long)g[2] * g[3] * g[4];
      long place = f->nhwc ? (c * taps + tap) * g[1] + i : ((long)c * g[1] + i) * taps + tap;
      float a = load(x->type, px, at(x, n, first + i, depth, row, column)), b = load(f->type, pw, place);
      sum += v->math == FMA_MATH || x->type != FLOAT ? (double)a * b : (double)tf32(a) * tf32(b);
    }
    py[at(y, n, c, d, h, w)] = (float)sum;
  }
  return 0;
}
int cudnnConvolutionForward(Handle* handle, const float* alpha, const Tensor* x, const void* px, const Filters* f,
                            const void* pw, const Convolution* v, int algorithm, void* workspace, size_t bytes,
                            const float* beta, const Tensor* y, void* py) {
  BEGIN(handle);
  if (*alpha != 1 || *beta != 0) return refuse(BAD_PARAM, "scaled");
  long elements = 1;
  for (int i = 0; i < 5; ++i) elements *= y->shape[i];
  float* out = malloc(elements * sizeof(float));
  int status = convolve(x, px, f, pw, v, algorithm, workspace, bytes, y, out);
  if (!status) for (long i = 0; i < elements; ++i) store(y->type, py, i, out[i]);
  free(out);
  __sync_fetch_and_sub(&handle->in_use, 1);
  return status;
}
int cudnnConvolutionBiasActivationForward(
    Handle* handle, const float* alpha, const Tensor* x, const void* px, const Filters* f, const void* pw,
    const Convolution* v, int algorithm, void* workspace, size_t bytes, const float* alpha2, const Tensor* z,
    const void* pz, const Tensor* b, const void* pb, const Activation* a, const Tensor* y, void* py) {
  BEGIN(handle);
  int status = 0;
  if (a->mode == IDENTITY && algorithm != PRECOMP) status = refuse(NOT_SUPPORTED, "identity needs precomp");
  if (a->mode == RELU && !a->propagates_nan) status = refuse(BAD_PARAM, "loses NaN");
  if (*alpha != 1 || memcmp(z, y, sizeof *z)) status = refuse(BAD_PARAM, "z and y differ");
  if (b->shape[1] != y->shape[1] || b->type != y->type || !pb) status = refuse(BAD_PARAM, "bias");
  /* An output of its own shows where the residual was overwritten. */
  long elements = 1;
  for (int i = 0; i < 5; ++i) elements *= y->shape[i];
  float* out = malloc(elements * sizeof(float));
  if (!status) status = convolve(x, px, f, pw, v, algorithm, workspace, bytes, y, out);
  if (!status) EACH(y) {
    long i = at(y, n, c, d, h, w);
    float value = out[i] + load(b->type, pb, at(b, 0, c, 0, 0, 0)) + (*alpha2 != 0 ? *alpha2 * load(z->type, pz, i) : 0);
    store(y->type, py, i, a->mode == RELU ? relu(value) : value);
  }
  free(out);
  __sync_fetch_and_sub(&handle->in_use, 1);
  return status;
}
#include "fake_cudnn_graph.c"
