// Products of a warp (`mma`), whose operands are all in registers.

namespace tvm_sparse {

#ifndef TVM_SPARSE_EMULATED
// 16 rows of A times 8 columns of B.
#ifdef TVM_SPARSE_BFLOAT16
#define KIND "m16n8k16.row.col.f32.bf16.bf16.f32"
#elif defined(TVM_SPARSE_HALF)
#define KIND "m16n8k16.row.col.f32.f16.f16.f32"
#else
#define KIND "m16n8k8.row.col.f32.tf32.tf32.f32"
#endif
#define PRODUCT(NAME, KIND)                                                                         \
  DEVICE void NAME(float (&sum)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {             \
    asm("mma.sync.aligned." KIND " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                                    \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                            \
  }
PRODUCT(multiply_add, KIND)
PRODUCT(add_corrections, "m16n8k16.row.col.f32.bf16.bf16.f32")
#endif

}  // namespace tvm_sparse
