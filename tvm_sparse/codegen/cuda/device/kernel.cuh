// What every kernel with weights as data begins with: its tensors, its integers, shared memory.
//
// Tests define TVM_SPARSE_EMULATED and, in their own way, all that these files leave out then: they run on a CPU.

#ifndef TVM_SPARSE_EMULATED
// What tensors are made of.
#ifdef TVM_SPARSE_BFLOAT16
#include <cuda_bf16.h>
typedef __nv_bfloat16 Element;
__device__ __forceinline__ float widened(Element value) { return __bfloat162float(value); }
__device__ __forceinline__ Element narrowed(float value) { return __float2bfloat16_rn(value); }
#elif defined(TVM_SPARSE_HALF)
#include <cuda_fp16.h>
typedef __half Element;
__device__ __forceinline__ float widened(Element value) { return __half2float(value); }
__device__ __forceinline__ Element narrowed(float value) { return __float2half_rn(value); }
#else
typedef float Element;
__device__ __forceinline__ float widened(Element value) { return value; }
__device__ __forceinline__ Element narrowed(float value) { return value; }
#endif
__device__ __forceinline__ unsigned shared_address(const void* pointer) { return __cvta_generic_to_shared(pointer); }
// The same value, though the compiler cannot know: what follows from it is computed again instead of kept in registers.
__device__ __forceinline__ int computed_anew(int value) {
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

  __device__ __forceinline__ operator int() const { return divisor; }
  // Exact for n * divisor < 2^32.
  __device__ __forceinline__ unsigned divide(unsigned n) const {
    return divisor == 1 ? n : __umulhi(n, (unsigned)multiplier);
  }
  // For any n, of which `divide` may be one too large.
  __device__ __forceinline__ unsigned quotient(unsigned n) const {
    const unsigned found = divide(n);
    return found - (found * divisor > n);
  }
};

// A kernel's integers, as its family declares them in Python: `Geometry`, and FIELDS, which lists them.
#include "parameters.cuh"
#define PARAMETER(name) , int name
#define PASSED(name) name,

// Kernels of each type have names of their own (scheduling/cuda/library/kernel_library.py, OF_TYPE).
#ifdef TVM_SPARSE_BFLOAT16
#define OF_TYPE(name) name##_bfloat16
#elif defined(TVM_SPARSE_HALF)
#define OF_TYPE(name) name##_half
#else
#define OF_TYPE(name) name
#endif

#ifndef KERNEL
// A kernel for blocks of so many threads, of which so many share a multiprocessor, that calls a function.
#define KERNEL(THREADS, BLOCKS, NAME, ...)                                                                     \
  extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) OF_TYPE(NAME)(                                 \
      const Element* x, const int4* weights, const Element* bias, const Element* residual, Element* y FIELDS(PARAMETER)) { \
    const Geometry g = {FIELDS(PASSED)};                                                                       \
    __VA_ARGS__(g, x, weights, bias, residual, y);                                                             \
  }
#endif
