// Blocks of a cluster: they wait for each other, and read and write each other's shared memory.

namespace tvm_sparse {

#ifndef TVM_SPARSE_EMULATED
DEVICE void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
DEVICE void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// All threads of a cluster's blocks, none of which reads what another has written before.
DEVICE void leave_cluster() {
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  cluster_wait();
}
// The address of `pointer`'s counterpart in another block of the cluster; a store to such an address.
DEVICE unsigned remote_address(const void* pointer, int rank) {
  unsigned remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared_address(pointer)), "r"(rank));
  return remote;
}
DEVICE void remote_store(unsigned address, float value) {
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(address), "f"(value) : "memory");
}
// A number in the shared memory of a cluster's other block, where this one has it at `pointer`.
DEVICE float remote_load(const float* pointer, int rank) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(remote_address(pointer, rank)) : "memory");
  return value;
}
#endif

// All threads of a cluster's blocks.
DEVICE void cluster_sync() { cluster_arrive(), cluster_wait(); }

// A number of one of so many blocks that have it, each at its `pointer`.
DEVICE float load_of(const float* pointer, int rank, int blocks) {
  return blocks > 1 ? remote_load(pointer, rank) : *pointer;
}

}  // namespace tvm_sparse
