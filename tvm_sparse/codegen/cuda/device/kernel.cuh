// What every kernel with weights as data begins with: its tensors, its integers, shared memory.
//
// Tests define TVM_SPARSE_EMULATED and, in their own way, all that these files leave out then: they run on a CPU.

#define DEVICE __device__ __forceinline__
#define UNROLL _Pragma("unroll")

#ifndef TVM_SPARSE_EMULATED
#ifdef TVM_SPARSE_BFLOAT16
#include <cuda_bf16.h>
#elif defined(TVM_SPARSE_HALF)
#include <cuda_fp16.h>
#endif
#endif

namespace tvm_sparse {

#ifndef TVM_SPARSE_EMULATED
// What tensors are made of.
#ifdef TVM_SPARSE_BFLOAT16
typedef __nv_bfloat16 Element;
DEVICE float widened(Element value) { return __bfloat162float(value); }
DEVICE Element narrowed(float value) { return __float2bfloat16_rn(value); }
#elif defined(TVM_SPARSE_HALF)
typedef __half Element;
DEVICE float widened(Element value) { return __half2float(value); }
DEVICE Element narrowed(float value) { return __float2half_rn(value); }
#else
typedef float Element;
DEVICE float widened(Element value) { return value; }
DEVICE Element narrowed(float value) { return value; }
#endif
DEVICE unsigned shared_address(const void* pointer) { return __cvta_generic_to_shared(pointer); }
// The same value, though the compiler cannot know: what follows from it is computed again instead of kept in registers.
DEVICE int computed_anew(int value) {
  asm volatile("" : "+r"(value));
  return value;
}
#define SHARED_MEMORY extern __shared__ __align__(16) float shared[]
#define BITS_AS_FLOAT __int_as_float
#define FLOAT_AS_BITS __float_as_uint
#endif

// A divisor, and the number with which a multiplication divides by it, 2^32 / divisor + 1
// (scheduling/cuda/library/parameters.py, `multiplier`).
struct FastDivmod {
  int divisor, multiplier;

  DEVICE operator int() const { return divisor; }
  // Exact for n * divisor < 2^32.
  DEVICE unsigned divide(unsigned n) const { return divisor == 1 ? n : __umulhi(n, (unsigned)multiplier); }
  // For any n, of which `divide` may be one too large.
  DEVICE unsigned quotient(unsigned n) const {
    const unsigned found = divide(n);
    return found - (found * divisor > n);
  }
};

// A kernel's integers, as its family declares them in Python: `Geometry`, and FIELDS, which lists them.
#include "parameters.cuh"
#define PARAMETER(name) , int name
#define PASSED(name) name,

#ifndef KERNEL
// A kernel that calls a function, for blocks of THREADS, so many of them a multiprocessor; Python lists those of a family.
#define KERNEL(NAME, BLOCKS, ...)                                                               \
  extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)                                 \
      NAME(const Element* x, const int4* weights, const Element* bias, const Element* residual, \
           Element* y FIELDS(PARAMETER)) {                                                      \
    const Geometry g = {FIELDS(PASSED)};                                                        \
    __VA_ARGS__(g, x, weights, bias, residual, y);                                              \
  }
#endif

}  // namespace tvm_sparse
