// folded_cuda:warp-rows32 of n8c2h1w36-k2r1s1-st1x1-p0.0.0.0-d1x1-g1-a for {'kind': 'cuda', 'arch': 'sm_90', 'host': {'kind': 'llvm', 'mcpu': 'x86-64-v3'}}
// filters 2, channels 1, pipeline_stages 3, order straight, blocks_per_sm 1, dependent_launch last_k_tile
extern "C" __global__ void __launch_bounds__(32) main_kernel(float* __restrict__ out_ptr, float* __restrict__ residual_ptr, float* __restrict__ x_ptr) {
  tvm_sparse_grid_dependency_wait();
  float conv_local_ptr_at_0, conv_local_ptr_at_1;
  extern __shared__ __align__(64) float pack_shared_dyn_ptr[];
  uint to = tvm_sparse_shared_address((&(pack_shared_dyn_ptr[(((int)threadIdx.x) * 4)])));
  int start = ((((int)threadIdx.x) < 8) ? ((((((((int)blockIdx.x) * 32) / 36) + ((((int)threadIdx.x) + ((((int)blockIdx.x) * 8) % 9)) / 9)) < 8) && (0 <= ((((int)threadIdx.x) <= ((((((((int)blockIdx.x) * 8) + 7) / 9) * 9) + (((((((int)blockIdx.x) * 32) + 31) % 36) - ((((int)blockIdx.x) * 32) % 36)) >> 2)) - (((((int)blockIdx.x) * 32) / 36) * 9))) ? ((((int)threadIdx.x) + ((((int)blockIdx.x) * 8) % 9)) % 9) : -1))) ? (((((((int)blockIdx.x) * 32) / 36) * 72) + (((((int)threadIdx.x) + ((((int)blockIdx.x) * 8) % 9)) / 9) * 72)) + (((((int)threadIdx.x) <= ((((((((int)blockIdx.x) * 8) + 7) / 9) * 9) + (((((((int)blockIdx.x) * 32) + 31) % 36) - ((((int)blockIdx.x) * 32) % 36)) >> 2)) - (((((int)blockIdx.x) * 32) / 36) * 9))) ? ((((int)threadIdx.x) + ((((int)blockIdx.x) * 8) % 9)) % 9) : -1) * 4)) : 0) : 0);
  bool inside = (((((((int)blockIdx.x) * 32) / 36) + ((((int)threadIdx.x) + ((((int)blockIdx.x) * 8) % 9)) / 9)) < 8) && (0 <= ((((int)threadIdx.x) <= ((((((((int)blockIdx.x) * 8) + 7) / 9) * 9) + (((((((int)blockIdx.x) * 32) + 31) % 36) - ((((int)blockIdx.x) * 32) % 36)) >> 2)) - (((((int)blockIdx.x) * 32) / 36) * 9))) ? ((((int)threadIdx.x) + ((((int)blockIdx.x) * 8) % 9)) % 9) : -1)));
  bool guard = (((int)threadIdx.x) < 8);
  if (guard) {
    tvm_sparse_cp_async_16((to + ((uint)0)), (&(x_ptr[start])), inside);
  }
  tvm_builtin_ptx_cp_async_commit_group_async_commit_group();
  if (guard) {
    tvm_sparse_cp_async_16((to + ((uint)128)), (&(x_ptr[(start + 36)])), inside);
  }
  tvm_builtin_ptx_cp_async_commit_group_async_commit_group();
  conv_local_ptr_at_0 = 0x0p+0f/*0.000000e+00*/;
  conv_local_ptr_at_1 = 0x0p+0f/*0.000000e+00*/;
  tvm_builtin_ptx_cp_async_wait_group_async_wait_group_1();
  __syncthreads();
  int x_base = ((int)threadIdx.x);
  float acc = conv_local_ptr_at_1;
  float x = pack_shared_dyn_ptr[x_base];
  float acc_1 = (acc + (x * 0x1p+2f/*4.000000e+00*/));
  conv_local_ptr_at_1 = acc_1;
  tvm_builtin_ptx_cp_async_wait_group_async_wait_group_0();
  __syncthreads();
  tvm_sparse_launch_dependents();
  int x_base_1 = (((int)threadIdx.x) + 32);
  float acc_2 = conv_local_ptr_at_0;
  float x_1 = pack_shared_dyn_ptr[x_base_1];
  float acc_3 = (acc_2 + (x_1 * -0x1.8p+1f/*-3.000000e+00*/));
  conv_local_ptr_at_0 = acc_3;
  out_ptr[(((((((int)blockIdx.x) * 8) + (((int)threadIdx.x) >> 2)) / 9) * 72) + (((((int)blockIdx.x) * 32) + ((int)threadIdx.x)) % 36))] = (conv_local_ptr_at_0 + residual_ptr[(((((((int)blockIdx.x) * 8) + (((int)threadIdx.x) >> 2)) / 9) * 72) + (((((int)blockIdx.x) * 32) + ((int)threadIdx.x)) % 36))]);
  out_ptr[((((((((int)blockIdx.x) * 8) + (((int)threadIdx.x) >> 2)) / 9) * 72) + (((((int)blockIdx.x) * 32) + ((int)threadIdx.x)) % 36)) + 36)] = (conv_local_ptr_at_1 + residual_ptr[((((((((int)blockIdx.x) * 8) + (((int)threadIdx.x) >> 2)) / 9) * 72) + (((((int)blockIdx.x) * 32) + ((int)threadIdx.x)) % 36)) + 36)]);
}
