"""What kernels share whose warpgroups multiply (codegen/cuda/device/wgmma.cuh), as plain code."""

from cuda_emulator import MAX_CLUSTER, MAX_THREADS

WARPGROUPS = f"""
#include <stdio.h>
// As a GPU's, with the block's number in its cluster.
static unsigned shared_address(const void* to) {{
  return (const unsigned char*)to - shared_memory[rank] + (rank << 24);
}}
static void read_early(unsigned (&to)[4], const int4* from) {{ memcpy(to, from, 16); }}
template <typename T> static void computed(T&) {{}}
static void show_tensor_cores() {{}}
static void prefetch(const void*) {{}}
static int arrivals[{MAX_CLUSTER}][16], rounds[{MAX_CLUSTER}][16];
// In which round a thread was last at a barrier: at no barrier of a GPU may it be twice in one.
static int came[{MAX_CLUSTER}][16][{MAX_THREADS}];
static void barrier_arrive(int barrier, int threads) {{
  int& own = came[rank][barrier][current % blockDim.x];
  if (own == rounds[rank][barrier] + 1) fprintf(stderr, "a thread comes twice to barrier %d\\n", barrier), abort();
  own = rounds[rank][barrier] + 1;
  if (++arrivals[rank][barrier] == threads) arrivals[rank][barrier] = 0, rounds[rank][barrier]++;
}}
static void barrier_sync(int barrier, int threads) {{
  const int round = rounds[rank][barrier];
  barrier_arrive(barrier, threads);
  while (rounds[rank][barrier] == round) yield();
}}
static void begin_products() {{}}
static const unsigned char* at(unsigned long long b, int chunk, int column) {{
  return shared_memory[rank] + ((b & 0x3fff) << 4) + chunk * ((b >> 16 & 0x3fff) << 4) +
         column / 8 * ((b >> 32 & 0x3fff) << 4) + column % 8 * 16;
}}
static void leave_cluster() {{ cluster_arrive(), cluster_wait(); }}
"""
