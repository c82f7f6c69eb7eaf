// What the kernels with weights as data share: copies to shared memory, dependent launches, divisions.
//
// The other files of a build may define the first of these in their own way (tests run the kernels on a CPU).

#ifndef TVM_SPARSE_DATA_PRIMITIVES
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
// An asynchronous copy of BYTES to shared memory; zeros where not `inside`.
template <int BYTES>
__device__ __forceinline__ void copy(void* to, const void* from, bool inside) {
  int bytes = inside ? BYTES : 0;
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes),
                 "n"(BYTES)
                 : "memory");
}
// A read of 4 or 8 bytes of what nobody writes meanwhile, whose 128 bytes come to the level-2 cache at once: memory
// delivers 64 at a time, and where neighbours ask for theirs a little later it would deliver them again.
template <int BYTES>
__device__ __forceinline__ void read_line(void* to, const void* from) {
  unsigned* words = (unsigned*)to;
  if constexpr (BYTES == 8)
    asm("ld.global.nc.L2::128B.v2.b32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "l"(from));
  else
    asm("ld.global.nc.L2::128B.b32 %0, [%1];" : "=r"(words[0]) : "l"(from));
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until all groups of copies but the last LEFT are complete.
template <int LEFT = 0>
__device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}
// Programmatic dependent launch: the kernel before this one is complete; the next one may start.
__device__ __forceinline__ void wait_for_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
__device__ __forceinline__ void launch_next() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// The address of `pointer`'s counterpart in another block of the cluster, and a store to such an address.
__device__ __forceinline__ unsigned remote_address(const void* pointer, int rank) {
  unsigned remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared_address(pointer)), "r"(rank));
  return remote;
}
__device__ __forceinline__ void remote_store(unsigned address, float value) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}
// Two numbers as bfloat16, the first in the lower half.
__device__ __forceinline__ unsigned as_bfloat16(float first, float second) {
  unsigned both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  return both;
}
// The same value, though the compiler cannot know: what follows from it is computed again instead of kept in registers.
__device__ __forceinline__ int computed_anew(int value) {
  asm volatile("" : "+r"(value));
  return value;
}
#define SHARED_MEMORY extern __shared__ __align__(16) float shared[]
#define BITS_AS_FLOAT __int_as_float
#define FLOAT_AS_BITS __float_as_uint
#endif

// All threads of a cluster's blocks.
__device__ __forceinline__ void meet_cluster() { cluster_arrive(), cluster_wait(); }

// The bits of a float32 number that TF32 keeps, and what it cuts off.
constexpr unsigned HIGH = 0xffffe000u;
__device__ __forceinline__ float low_part(float value) { return value - BITS_AS_FLOAT(FLOAT_AS_BITS(value) & HIGH); }

// A divisor d comes with m = 2^32 / d + 1, which is exact for n * d < 2^32.
__device__ __forceinline__ unsigned divide(unsigned n, int d, int m) { return d == 1 ? n : __umulhi(n, (unsigned)m); }

// The same for any n, of which that may be one too large.
__device__ __forceinline__ unsigned quotient(unsigned n, int d, int m) {
  const unsigned found = divide(n, d, m);
  return found - (found * d > n);
}

template <typename Geometry>
__device__ __forceinline__ float with_relu(const Geometry& g, float value) {
  if (!g.relu) return value;
  // A plain maximum would give 0 for NaN.
  const float most = BITS_AS_FLOAT(g.relu_max), positive = value < 0.f ? 0.f : value;
  return positive > most ? most : positive;
}

// Kernels of each type have names of their own (scheduling/cuda/library/kernel_numbers.py, OF_TYPE).
#ifdef TVM_SPARSE_BFLOAT16
#define OF_TYPE(name) name##_bfloat16
#elif defined(TVM_SPARSE_HALF)
#define OF_TYPE(name) name##_half
#else
#define OF_TYPE(name) name
#endif

#define DECLARED(name) int name;
#define PARAMETER(name) , int name
#define PASSED(name) name,
