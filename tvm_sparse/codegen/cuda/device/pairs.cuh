// Two numbers that tensor cores multiply, in a register, and what all lanes of a warp have.

namespace tvm_sparse {

#ifndef TVM_SPARSE_EMULATED
#ifdef TVM_SPARSE_BFLOAT16
#define TYPES "f32.bf16.bf16"
#define PAIR "bf16x2"
#else
#define TYPES "f32.f16.f16"
#define PAIR "f16x2"
#endif
// The first in the lower half; the smaller and the larger of two of these, NaN where one is; and of two numbers.
DEVICE unsigned as_pair(float first, float second) {
  unsigned both;
  asm("cvt.rn." PAIR ".f32 %0, %1, %2;" : "=r"(both) : "f"(second), "f"(first));
  return both;
}
DEVICE unsigned smaller(unsigned one, unsigned other) {
  asm("min.NaN." PAIR " %0, %0, %1;" : "+r"(one) : "r"(other));
  return one;
}
DEVICE unsigned larger(unsigned one, unsigned other) {
  asm("max.NaN." PAIR " %0, %0, %1;" : "+r"(one) : "r"(other));
  return one;
}
DEVICE float smaller(float one, float other) {
  asm("min.NaN.f32 %0, %0, %1;" : "+f"(one) : "f"(other));
  return one;
}
DEVICE float larger(float one, float other) {
  asm("max.NaN.f32 %0, %0, %1;" : "+f"(one) : "f"(other));
  return one;
}
DEVICE float part_of(unsigned pair, int which) {
#ifdef TVM_SPARSE_BFLOAT16
  return BITS_AS_FLOAT(which ? pair & 0xffff0000u : pair << 16);
#else
  float value;
  asm("{.reg .b16 part; cvt.u16.u32 part, %1; cvt.f32.f16 %0, part;}" : "=f"(value) : "r"(pair >> 16 * which));
  return value;
#endif
}
// What all lanes have, so that the compiler knows.
DEVICE int same_of_all(int value) { return __shfl_sync(0xffffffffu, value, 0); }
#endif

}  // namespace tvm_sparse
