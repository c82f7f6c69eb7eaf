// What fills shared memory ahead of its use: copies, launches that overlap, and warpgroups with roles of their own.

namespace tvm_sparse {

#ifndef TVM_SPARSE_EMULATED
// An asynchronous copy of BYTES to shared memory; zeros where not `inside`.
template <int BYTES> DEVICE void copy(void* to, const void* from, bool inside) {
  int bytes = inside ? BYTES : 0;
  if constexpr (BYTES == 16)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %3, %2;" ::"r"(shared_address(to)), "l"(from), "r"(bytes),
                 "n"(BYTES)
                 : "memory");
}
DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Until all groups of copies but the last LEFT are complete.
template <int LEFT = 0> DEVICE void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}
// A read of 4 or 8 bytes of what nobody writes meanwhile, whose 128 bytes come to the level-2 cache at once: memory
// delivers 64 at a time, and where neighbours ask for theirs a little later it would deliver them again.
template <int BYTES> DEVICE void read_line(void* to, const void* from) {
  unsigned* words = (unsigned*)to;
  if constexpr (BYTES == 8)
    asm("ld.global.nc.L2::128B.v2.b32 {%0, %1}, [%2];" : "=r"(words[0]), "=r"(words[1]) : "l"(from));
  else
    asm("ld.global.nc.L2::128B.b32 %0, [%1];" : "=r"(words[0]) : "l"(from));
}
// 16 bytes on their way to registers from here on, however much later they are needed.
DEVICE void read_early(unsigned (&to)[4], const int4* from) {
  asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "l"(from));
}
// What will be read comes to the level-2 cache meanwhile, 32 bytes.
DEVICE void prefetch(const void* at) { asm volatile("prefetch.global.L2 [%0];" ::"l"(at)); }
// Programmatic dependent launch: the kernel before this one is complete; the next one may start.
DEVICE void wait_for_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
DEVICE void launch_next() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
// A barrier of some of a block's threads: `sync` waits for `threads` to come, `arrive` does not wait itself.
DEVICE void barrier_sync(int barrier, int threads) {
  asm volatile("barrier.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
DEVICE void barrier_arrive(int barrier, int threads) {
  asm volatile("barrier.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
// A warpgroup's registers a thread, fewer or more than it began with.
template <int COUNT> DEVICE void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT)); }
template <int COUNT> DEVICE void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }
#endif

// Named barriers that a block has.
inline constexpr int BARRIERS = 16;
constexpr int largest_of(int one, int other) { return one > other ? one : other; }

// A block whose warpgroups have roles: of so many each, consumers multiply what producers write to shared memory. A
// producer's thread has so many registers; both together have those of two threads that were launched.
template <int CONSUMER_GROUPS, int PRODUCER_GROUPS, int REGISTERS> struct Roles {
  static constexpr int CONSUMING = 128 * CONSUMER_GROUPS, PRODUCING = 128 * PRODUCER_GROUPS;
  static constexpr int THREADS = CONSUMING + PRODUCING, OTHERS = 2 * 65536 / THREADS - REGISTERS;
  static_assert(CONSUMER_GROUPS == PRODUCER_GROUPS, "one side takes what the other gives");
  static_assert(REGISTERS % 8 == 0 && OTHERS % 8 == 0 && REGISTERS >= 24 && OTHERS <= 256, "as setmaxnreg counts");

  static DEVICE void become_producer() { give_registers<REGISTERS>(); }
  static DEVICE void become_consumer() { take_registers<OTHERS>(); }
};

}  // namespace tvm_sparse
