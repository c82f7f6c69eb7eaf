// Blocks of a cluster: they wait for each other, and read and write each other's shared memory.

#ifndef TVM_SPARSE_EMULATED
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// All threads of a cluster's blocks, none of which reads what another has written before.
__device__ __forceinline__ void leave_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  cluster_wait();
}
// The address of `pointer`'s counterpart in another block of the cluster; a store to such an address.
__device__ __forceinline__ unsigned remote_address(const void* pointer, int rank) {
  unsigned remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared_address(pointer)), "r"(rank));
  return remote;
}
__device__ __forceinline__ void remote_store(unsigned address, float value) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}
// A number in the shared memory of a cluster's other block, where this one has it at `pointer`.
__device__ __forceinline__ float remote_load(const float* pointer, int rank) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(remote_address(pointer, rank)) : "memory");
  return value;
}
#endif

// All threads of a cluster's blocks.
__device__ __forceinline__ void cluster_sync() { cluster_arrive(), cluster_wait(); }
