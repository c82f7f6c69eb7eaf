/* cuDNN's graphs of a convolution and what is added to it, for `fake_cudnn.c`; cuDNN 9's reference has the numbers. */
#include <stdint.h>

enum { POINTWISE = 0, CONVOLUTION = 1, CONFIG = 3, HEURISTICS = 4, PLAN = 5, CONVOLVE = 10, COMPUTE = 13, GRAPH = 15 };
enum { PACK = 16, TENSOR = 17, MAX_ATTRIBUTES = 16 };
/* The second suggestion is an FFT. */
enum { ENGINE = 2, SUGGESTIONS = 4, FOURIER = 1, IS_FOURIER = 3 };
typedef struct { int name; int64_t count, values[8]; } Attribute;
typedef struct { int kind, is_final, count, rank; Attribute attributes[MAX_ATTRIBUTES]; } Descriptor;

static int last_rank = -1;
/* Which of its suggestions computed last. */
int fake_rank(void) { return last_rank; }

static int new_descriptor(void** made) { NEW(Descriptor); }
int cudnnBackendCreateDescriptor(int kind, Descriptor** made) {
  new_descriptor((void**)made);
  (*made)->kind = kind;
  return 0;
}
int cudnnBackendDestroyDescriptor(void* made) { return cudnnDestroy(made); }
static Attribute* attribute_of(const Descriptor* d, int name) {
  for (int i = 0; i < d->count; ++i) if (d->attributes[i].name == name) return (Attribute*)&d->attributes[i];
  return NULL;
}
static int64_t value_of(const Descriptor* d, int name) { return attribute_of(d, name) ? attribute_of(d, name)->values[0] : 0; }
static const Descriptor* descriptor_of(const Descriptor* d, int name) { return (const Descriptor*)(uintptr_t)value_of(d, name); }
int cudnnBackendSetAttribute(Descriptor* d, int name, int type, int64_t count, const void* values) {
  if (d->is_final) return refuse(BAD_PARAM, "is final already");
  if (d->count == MAX_ATTRIBUTES || count > 8 || attribute_of(d, name)) return refuse(BAD_PARAM, "too many attributes");
  Attribute* made = &d->attributes[d->count++];
  *made = (Attribute){name, count};
  /* Handles, integers, addresses and descriptors have 64 bits, truths 8, all others 32. */
  int size = type == 0 || type == 3 || type == 6 || type == 15 ? 8 : type == 2 ? 1 : 4;
  for (int i = 0; i < count; ++i) memcpy(&made->values[i], (const char*)values + i * size, size);
  return 0;
}
int cudnnBackendFinalize(Descriptor* d) {
  static const int NEEDED[][3] = {{POINTWISE, 0, 1}, {CONVOLUTION, 100, 106}, {HEURISTICS, 200, 201}, {PLAN, 400, 401},
                                  {CONVOLVE, 702, 705}, {COMPUTE, 750, 753}, {GRAPH, 800, 801}, {PACK, 1000, 1003},
                                  {TENSOR, 901, 906}};
  if (!strcmp(failing, __func__)) return refuse(fail_status, "as the test\n wanted");
  for (size_t i = 0; i < sizeof NEEDED / sizeof *NEEDED; ++i)
    if (NEEDED[i][0] == d->kind && !(attribute_of(d, NEEDED[i][1]) && attribute_of(d, NEEDED[i][2])))
      return refuse(BAD_PARAM, "an attribute is missing");
  for (int i = 0; i < d->count; ++i) {
    int name = d->attributes[i].name, refers = name == 201 || name == 401 || name == 801 || name > 701 && name < 754;
    for (int j = 0; refers && j < d->attributes[i].count; ++j) {
      const Descriptor* other = (const Descriptor*)(uintptr_t)d->attributes[i].values[j];
      if (!other->is_final) return refuse(BAD_PARAM, "a part is not final");
    }
  }
  d->is_final = 1;
  return 0;
}
int cudnnBackendGetAttribute(const Descriptor* d, int name, int type, int64_t most, int64_t* count, void* values) {
  if (!d->is_final) return refuse(BAD_PARAM, "is not final");
  if (d->kind == CONFIG && name == 300) {
    *count = 1;
    Descriptor* engine = *(Descriptor**)values;
    *engine = (Descriptor){ENGINE, 1, 0, d->rank};
    return 0;
  }
  if (d->kind == ENGINE && name == 1303) {
    *count = d->rank == FOURIER;
    *(int*)values = IS_FOURIER;
    return 0;
  }
  if (d->kind == PLAN && name == 402) {
    *count = 1;
    *(int64_t*)values = wanted_bytes ? wanted_bytes : 4096;
    return 0;
  }
  if (d->kind != HEURISTICS || name != 202) return refuse(NOT_SUPPORTED, "unknown attribute");
  *count = SUGGESTIONS;
  for (int rank = 0; rank < most && rank < SUGGESTIONS; ++rank) {
    Descriptor* config = ((Descriptor**)values)[rank];
    if (config->kind != CONFIG) return refuse(BAD_PARAM, "no room for a suggestion");
    *config = (Descriptor){CONFIG, 1, 1, rank, {{801, 1, {value_of(d, 201)}}}};
  }
  return 0;
}

static Tensor tensor_of(const Descriptor* d) {
  int64_t *s = attribute_of(d, 902)->values, *t = attribute_of(d, 903)->values;
  return (Tensor){1, (int)value_of(d, 901), {s[0], s[1], 1, s[2], s[3]}, {t[0], t[1], 0, t[2], t[3]}};
}
static void* array_of(const Descriptor* d, const Descriptor* pack) {
  const Attribute *names = attribute_of(pack, 1000), *arrays = attribute_of(pack, 1001);
  for (int i = 0; i < names->count; ++i)
    if (names->values[i] == value_of(d, 906)) return (void*)(uintptr_t)arrays->values[i];
  return NULL;
}
static int execute(const Descriptor* graph, const Descriptor* pack) {
  const Attribute* operations = attribute_of(graph, 801);
  const Descriptor *first = (const Descriptor*)(uintptr_t)operations->values[0], *result = descriptor_of(first, 705);
  const Descriptor *v = descriptor_of(first, 702), *w = descriptor_of(first, 703), *x = descriptor_of(first, 704);
  Tensor input = tensor_of(x), weight = tensor_of(w), output = tensor_of(result);
  Convolution convolution = {.mode = 1, .math = input.type == FLOAT ? 0 : TENSOR_OP_MATH};
  convolution.stride[0] = convolution.dilation[0] = 1;
  for (int i = 0; i < 2; ++i) {
    if (attribute_of(v, 104)->values[i] != attribute_of(v, 105)->values[i]) return refuse(NOT_SUPPORTED, "padding");
    convolution.dilation[1 + i] = attribute_of(v, 102)->values[i];
    convolution.stride[1 + i] = attribute_of(v, 103)->values[i];
    convolution.padding[1 + i] = attribute_of(v, 104)->values[i];
  }
  convolution.groups = input.shape[1] / weight.shape[1];
  Filters filters = {1, weight.type, 1};
  memcpy(filters.shape, weight.shape, sizeof filters.shape);
  long elements = 1;
  for (int i = 0; i < 5; ++i) elements *= output.shape[i];
  if (weight.shape[1] > 1 && weight.strides[1] != 1) return refuse(NOT_SUPPORTED, "only channels last");
  float* out = malloc(elements * sizeof(float));
  size_t bytes = wanted_bytes ? wanted_bytes : 4096;
  Tensor same = output;
  same.type = input.type;
  int status = convolve(&input, array_of(x, pack), &filters, array_of(w, pack), &convolution, PRECOMP,
                        (float*)(uintptr_t)value_of(pack, 1003), bytes, &same, out);
  for (int step = 1; !status && step < operations->count; ++step) {
    const Descriptor *each = (const Descriptor*)(uintptr_t)operations->values[step], *b = descriptor_of(each, 752);
    int mode = (int)value_of(descriptor_of(each, 750), 0);
    if (descriptor_of(each, 751) != result || !value_of(result, 907)) status = refuse(BAD_PARAM, "a chain is broken");
    if ((mode != 0 && mode != 100) || !mode == !b) status = refuse(NOT_SUPPORTED, "pointwise");
    result = descriptor_of(each, 753);
    Tensor t = output, added = b ? tensor_of(b) : output;
    const int* s = added.shape;
    if (!status) EACH(&t) {
      long i = at(&t, n, c, d, h, w);
      float more = b ? load(added.type, array_of(b, pack), at(&added, n % s[0], c % s[1], 0, h % s[3], w % s[4])) : 0;
      out[i] = mode ? out[i] < 0 ? 0 : out[i] : out[i] + more;
    }
  }
  if (!status && value_of(result, 907)) status = refuse(BAD_PARAM, "the result is not written");
  void* y = array_of(result, pack);
  if (!status) for (long i = 0; i < elements; ++i) store((int)value_of(result, 901), y, i, out[i]);
  free(out);
  return status;
}
int cudnnBackendExecute(Handle* handle, const Descriptor* plan, const Descriptor* pack) {
  BEGIN(handle);
  const Descriptor* config = descriptor_of(plan, 401);
  if (value_of(plan, 400) != (int64_t)(uintptr_t)handle || !pack->is_final) return refuse(BAD_PARAM, "of another handle");
  last_rank = config->rank;
  int status = execute(descriptor_of(config, 801), pack);
  __sync_fetch_and_sub(&handle->in_use, 1);
  return status;
}
