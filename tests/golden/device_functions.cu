#define tvm_sparse_jump_table_case(index) case index: {
#define tvm_sparse_jump_table_end() }
#define tvm_sparse_jump_table_enter(index) switch (index) {
#define tvm_sparse_jump_table_leave(condition) } if (condition) break
__forceinline__ __device__ float tvm_sparse_cluster_load(const float* base, int rank, int offset) {
  unsigned int address = __cvta_generic_to_shared(base), remote;
  float value;
  __asm__("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
  __asm__ __volatile__("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(remote + 4 * offset));
  return value;
}
__forceinline__ __device__ unsigned int tvm_builtin_cluster_ctaid_z() {
  unsigned int ctaid;
  asm volatile("mov.u32 %0, %%cluster_ctaid.z;" : "=r"(ctaid) :);
  return ctaid;
}
__forceinline__ __device__ unsigned int tvm_sparse_shared_address(const void* pointer) {
  return (unsigned int)__cvta_generic_to_shared(pointer);
}
__forceinline__ __device__ void ptx_cp_async_legacy_ca_4_4_4(void* dst, int dst_off, void* src, int src_off) {
  uint8_t* dst_p = (uint8_t*)dst + dst_off * 4;
  uint8_t* src_p = (uint8_t*)src + src_off * 4;
  unsigned int dst_addr = __cvta_generic_to_shared(dst_p);
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;"
    :: "r"(dst_addr), "l"(src_p), "n"(4));
}
__forceinline__ __device__ void ptx_cp_async_legacy_pred_cg_16_4_4(void* dst, int dst_off, void* src, int src_off, int predicate) {
  uint8_t* dst_p = (uint8_t*)dst + dst_off * 4;
  uint8_t* src_p = (uint8_t*)src + src_off * 4;
  unsigned int dst_addr = __cvta_generic_to_shared(dst_p);
  __asm__ __volatile__(
    "{\n"
    " .reg .pred p;\n"
    " setp.eq.u32 p, %3, 1;\n"
    " @p cp.async.cg.shared.global [%0], [%1], %2;\n"
    " @!p st.shared.v4.u32 [%0], {%4, %4, %4, %4};\n"
    "}\n"
    :: "r"(dst_addr), "l"(src_p), "n"(16), "r"(predicate), "r"(0)
  );
}
__forceinline__ __device__ void tvm_builtin_ptx_cp_async_commit_group_async_commit_group() {
  asm volatile("cp.async.commit_group;" :  : );
}
__forceinline__ __device__ void tvm_builtin_ptx_cp_async_wait_group_async_wait_group_0() {
  asm volatile("cp.async.wait_group 0;" :  :  : "memory");
}
__forceinline__ __device__ void tvm_builtin_ptx_cp_async_wait_group_async_wait_group_1() {
  asm volatile("cp.async.wait_group 1;" :  :  : "memory");
}
__forceinline__ __device__ void tvm_sparse_cluster_arrive() {
  __asm__ __volatile__("barrier.cluster.arrive.aligned;" ::: "memory");
}
__forceinline__ __device__ void tvm_sparse_cluster_wait() {
  __asm__ __volatile__("barrier.cluster.wait.aligned;" ::: "memory");
}
__forceinline__ __device__ void tvm_sparse_cp_async_16(unsigned int to, const void* from, bool inside) {
  __asm__ __volatile__("{.reg .pred outside; setp.eq.u32 outside, %2, 0;"
                       " cp.async.cg.shared.global [%0], [%1], 16, outside;}"
                       :: "r"(to), "l"(from), "r"((unsigned int)inside) : "memory");
}
__forceinline__ __device__ void tvm_sparse_cp_async_8(unsigned int to, const void* from, bool inside) {
  __asm__ __volatile__("{.reg .pred outside; setp.eq.u32 outside, %2, 0;"
                       " cp.async.ca.shared.global [%0], [%1], 8, outside;}"
                       :: "r"(to), "l"(from), "r"((unsigned int)inside) : "memory");
}
__forceinline__ __device__ void tvm_sparse_grid_dependency_wait() {
  __asm__ __volatile__("griddepcontrol.wait;" ::: "memory");
}
__forceinline__ __device__ void tvm_sparse_launch_dependents() {
  __asm__ __volatile__("griddepcontrol.launch_dependents;" ::: "memory");
}
