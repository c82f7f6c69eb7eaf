// Float32 numbers as sums of two that tensor cores multiply, a high part and what it misses, the low part.
//
// TF32 and bfloat16: `high * high` in TF32, the corrections `low * all + high * low` in bfloat16, whose rounding is
// that much smaller. 3xFP16: both parts are float16 numbers, and low parts are not multiplied with each other (Ootomo &
// Yokota, Recovering single precision accuracy from Tensor Cores, 2022). An input's low part is stored LOW times as
// large, so that it has a float16 number's range of its own.

namespace tvm_sparse {

#ifndef TVM_SPARSE_EMULATED
// Two numbers as bfloat16, the first in the lower half.
DEVICE unsigned as_bfloat16(float first, float second) {
  unsigned both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  return both;
}
// The same as float16, and what they are then.
DEVICE unsigned as_half(float first, float second) {
  unsigned both;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  return both;
}
DEVICE float2 of_halves(unsigned both) {
  float2 values;
  asm("{.reg .b16 first, second; mov.b32 {first, second}, %2; cvt.f32.f16 %0, first; cvt.f32.f16 %1, second;}"
      : "=f"(values.x), "=f"(values.y)
      : "r"(both));
  return values;
}
#endif

// The bits of a float32 number that TF32 keeps, and what it cuts off.
constexpr unsigned HIGH = 0xffffe000u;
DEVICE float low_part(float value) { return value - BITS_AS_FLOAT(FLOAT_AS_BITS(value) & HIGH); }
// As the two columns of corrections of a product: of an input all of it and its low part, of a weight its low and its
// high part, which these stand against.
DEVICE unsigned input_corrections(float value) { return as_bfloat16(value, low_part(value)); }
DEVICE unsigned weight_corrections(float value) {
  return as_bfloat16(low_part(value), BITS_AS_FLOAT(FLOAT_AS_BITS(value) & HIGH));
}

// How much larger a low part in float16 is stored.
inline constexpr float LOW = 2048.f;
// Both parts in float16 of two inputs.
struct Halves {
  unsigned high, low;

  DEVICE Halves(float first, float second) : high(as_half(first, second)) {
    const float2 kept = of_halves(high);
    low = as_half((first - kept.x) * LOW, (second - kept.y) * LOW);
  }
};

}  // namespace tvm_sparse
