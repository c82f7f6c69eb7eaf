// folded_cuda:multistage-16x16-pixels1-across of n1c1h16w32-k1r3s3-st1x1-p1.1.1.1-d1x1-g1 for {'kind': 'cuda', 'arch': 'sm_90', 'host': {'kind': 'llvm', 'mcpu': 'x86-64-v3'}}
// filters 1, rows 8, images 1, channels 1, pipeline_stages 3, order straight, blocks_per_sm 1, dependent_launch at_exit
extern "C" __global__ void __launch_bounds__(128) main_kernel(float* __restrict__ out_ptr, float* __restrict__ x_ptr) {
  tvm_sparse_grid_dependency_wait();
  float conv_local_ptr_at_0;
  extern __shared__ __align__(64) float pack_shared_dyn_ptr[];
  uint to = tvm_sparse_shared_address((&(pack_shared_dyn_ptr[(((((((((int)threadIdx.z) * 8) + ((int)threadIdx.y)) * 16) + ((int)threadIdx.x)) / 6) * 48) + ((((((((int)threadIdx.z) * 8) + ((int)threadIdx.y)) * 16) + ((int)threadIdx.x)) % 6) * 4))])));
  int start = ((((((((int)threadIdx.z) * 8) + ((int)threadIdx.y)) * 16) + ((int)threadIdx.x)) < 60) ? (((((1 <= (((((int)blockIdx.x) >> 1) * 8) + (((((((int)threadIdx.z) * 8) + ((int)threadIdx.y)) * 16) + ((int)threadIdx.x)) / 6))) && ((((((int)blockIdx.x) >> 1) * 8) + (((((((int)threadIdx.z) * 8) + ((int)threadIdx.y)) * 16) + ((int)threadIdx.x)) / 6)) < 17)) && (1 <= (((((int)blockIdx.x) & 1) * 4) + (((((((int)threadIdx.z) * 8) + ((int)threadIdx.y)) * 16) + ((int)threadIdx.x)) % 6)))) && ((((((int)blockIdx.x) & 1) * 4) + (((((((int)threadIdx.z) * 8) + ((int)threadIdx.y)) * 16) + ((int)threadIdx.x)) % 6)) < 9)) ? ((((((((int)blockIdx.x) >> 1) * 256) + ((((((((int)threadIdx.z) * 8) + ((int)threadIdx.y)) * 16) + ((int)threadIdx.x)) / 6) * 32)) + ((((int)blockIdx.x) & 1) * 16)) + ((((((((int)threadIdx.z) * 8) + ((int)threadIdx.y)) * 16) + ((int)threadIdx.x)) % 6) * 4)) - 36) : 0) : 0);
  bool inside = ((((1 <= (((((int)blockIdx.x) >> 1) * 8) + (((((((int)threadIdx.z) * 8) + ((int)threadIdx.y)) * 16) + ((int)threadIdx.x)) / 6))) && ((((((int)blockIdx.x) >> 1) * 8) + (((((((int)threadIdx.z) * 8) + ((int)threadIdx.y)) * 16) + ((int)threadIdx.x)) / 6)) < 17)) && (1 <= (((((int)blockIdx.x) & 1) * 4) + (((((((int)threadIdx.z) * 8) + ((int)threadIdx.y)) * 16) + ((int)threadIdx.x)) % 6)))) && ((((((int)blockIdx.x) & 1) * 4) + (((((((int)threadIdx.z) * 8) + ((int)threadIdx.y)) * 16) + ((int)threadIdx.x)) % 6)) < 9));
  bool guard = (((((((int)threadIdx.z) * 8) + ((int)threadIdx.y)) * 16) + ((int)threadIdx.x)) < 60);
  if (guard) {
    tvm_sparse_cp_async_16((to + ((uint)0)), (&(x_ptr[start])), inside);
  }
  tvm_builtin_ptx_cp_async_commit_group_async_commit_group();
  conv_local_ptr_at_0 = 0x0p+0f/*0.000000e+00*/;
  tvm_builtin_ptx_cp_async_wait_group_async_wait_group_0();
  __syncthreads();
  int x_base = ((((int)threadIdx.y) * 48) + ((int)threadIdx.x));
  float acc = conv_local_ptr_at_0;
  float x = pack_shared_dyn_ptr[(x_base + 4)];
  float acc_1 = (acc + (x * 0x1p+1f/*2.000000e+00*/));
  float x_1 = pack_shared_dyn_ptr[(x_base + 5)];
  float acc_2 = (acc_1 + (x_1 * -0x1.8p+1f/*-3.000000e+00*/));
  float x_2 = pack_shared_dyn_ptr[(x_base + 52)];
  float acc_3 = (acc_2 + (x_2 * 0x1p+2f/*4.000000e+00*/));
  float x_3 = pack_shared_dyn_ptr[(x_base + 53)];
  float acc_4 = (acc_3 + (x_3 * -0x1.4p+2f/*-5.000000e+00*/));
  float x_4 = pack_shared_dyn_ptr[(x_base + 100)];
  float acc_5 = (acc_4 + (x_4 * 0x1.8p+2f/*6.000000e+00*/));
  conv_local_ptr_at_0 = acc_5;
  out_ptr[(((((((int)blockIdx.x) >> 1) * 256) + (((int)threadIdx.y) * 32)) + ((((int)blockIdx.x) & 1) * 16)) + ((int)threadIdx.x))] = conv_local_ptr_at_0;
}
