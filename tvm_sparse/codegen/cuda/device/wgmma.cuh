// Products of warpgroups (`wgmma`), which read B, or A too, from shared memory.

namespace tvm_sparse {

#ifndef TVM_SPARSE_EMULATED
// Operands of a product: so many sums of a thread.
#define NUMBERS_32                                                                                            \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, " \
  "%23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NUMBERS_48 NUMBERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define NUMBERS_64 NUMBERS_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NUMBERS_72 NUMBERS_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define NUMBERS_96                                                                                    \
  NUMBERS_72                                                                                          \
  ", %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, " \
  "%91, %92, %93, %94, %95"
#define SUMS_8(i)                                                                                               \
  "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3]), "+f"(sums[i + 4]), "+f"(sums[i + 5]), \
      "+f"(sums[i + 6]), "+f"(sums[i + 7])
#define SUMS_32 SUMS_8(0), SUMS_8(8), SUMS_8(16), SUMS_8(24)
#define SUMS_48 SUMS_32, SUMS_8(32), SUMS_8(40)
#define SUMS_64 SUMS_48, SUMS_8(48), SUMS_8(56)
#define SUMS_72 SUMS_64, SUMS_8(64)
#define SUMS_96 SUMS_72, SUMS_8(72), SUMS_8(80), SUMS_8(88)
// A in registers and B in shared memory, as operands behind so many sums.
#define A_AND_B_32 "{%32, %33, %34, %35}, %36"
#define A_AND_B_48 "{%48, %49, %50, %51}, %52"
#define A_AND_B_64 "{%64, %65, %66, %67}, %68"
#define A_AND_B_72 "{%72, %73, %74, %75}, %76"
#define IN_REGISTERS(a) "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])
// 64 rows of A times some columns of B, added to so many sums of a thread.
#define WGMMA(KIND, SUMS, OPERANDS, ...) \
  asm volatile("wgmma.mma_async" KIND " {" NUMBERS_##SUMS "}, " OPERANDS ";" : SUMS_##SUMS : __VA_ARGS__)
DEVICE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until all groups of products but the last LEFT are complete.
template <int LEFT> DEVICE void wait_for_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
// What is computed by here, so that it is not moved between products, which then would wait for each other.
DEVICE void computed(unsigned& value) { asm volatile("" : "+r"(value)::"memory"); }
DEVICE void computed(float& value) { asm volatile("" : "+f"(value)::"memory"); }
// What was written to shared memory is there for tensor cores.
DEVICE void show_tensor_cores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
#endif

// Where tensor cores find 16-byte rows of B: 8 columns side by side are 128 bytes, and groups of 16 bytes' worth of
// positions are `pitch` apart (PTX ISA, "Matrix descriptor", no swizzling). The lower half counts 16 bytes, so what is
// further is found by adding to it. In an address, bits from 24 on say which block of a cluster it is of.
DEVICE unsigned lower_half(unsigned at, unsigned pitch) { return (at & 0x3ffff) >> 4 | pitch >> 4 << 16; }
DEVICE unsigned long long descriptor(unsigned lower) { return lower | 128ull >> 4 << 32; }

}  // namespace tvm_sparse
