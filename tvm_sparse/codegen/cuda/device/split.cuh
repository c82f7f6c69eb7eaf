// Float32 numbers as sums of two that tensor cores multiply, a high part and what it misses, the low part.
//
// TF32 and bfloat16: `high * high` in TF32, the corrections `low * all + high * low` in bfloat16, whose rounding is that
// much smaller.
// 3xFP16: both parts are float16 numbers, and low parts are not multiplied with each other (Ootomo & Yokota, Recovering
// single precision accuracy from Tensor Cores, 2022). An input's low part is stored LOW times as large, so that it has a
// float16 number's range of its own.

#ifndef TVM_SPARSE_EMULATED
// Two numbers as bfloat16, the first in the lower half.
__device__ __forceinline__ unsigned as_bfloat16(float first, float second) {
  unsigned both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  return both;
}
#endif

// The bits of a float32 number that TF32 keeps, and what it cuts off.
constexpr unsigned HIGH = 0xffffe000u;
__device__ __forceinline__ float low_part(float value) { return value - BITS_AS_FLOAT(FLOAT_AS_BITS(value) & HIGH); }
// How much larger a low part in float16 is stored.
inline constexpr float LOW = 2048.f;
