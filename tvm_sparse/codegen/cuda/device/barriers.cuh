// Barriers in shared memory (`mbarrier`).

namespace tvm_sparse {

#ifndef TVM_SPARSE_EMULATED
// A barrier in shared memory, which any may wait for, in turns of two parities, until so many have arrived.
DEVICE void begin_barrier(unsigned long long* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
DEVICE void arrive(unsigned long long* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}
DEVICE bool is_past(unsigned long long* barrier, int parity) {
  int found;
  asm volatile(
      "{.reg .pred done; mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2; selp.b32 %0, 1, 0, done;}"
      : "=r"(found)
      : "r"(shared_address(barrier)), "r"(parity)
      : "memory");
  return found;
}
DEVICE void wait_at(unsigned long long* barrier, int parity) {
  asm volatile(
      "{.reg .pred done; AGAIN: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1; @!done bra AGAIN;}" ::"r"(
          shared_address(barrier)),
      "r"(parity)
      : "memory");
}
#endif

}  // namespace tvm_sparse
