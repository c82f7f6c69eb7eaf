// folded_cuda:multistage-4x16-pixels1 of n1c2h4w16-k1r3s3-st1x1-p1.1.1.1-d1x1-g1-b-float16 for {'kind': 'cuda', 'arch': 'sm_90', 'host': {'kind': 'llvm', 'mcpu': 'x86-64-v3'}}
// filters 1, rows 4, images 1, channels 1, pipeline_stages 3, order straight, blocks_per_sm 1, dependent_launch at_exit
extern "C" __global__ void __launch_bounds__(64) main_kernel(half* __restrict__ bias_ptr, half* __restrict__ out_ptr, half* __restrict__ x_ptr) {
  tvm_sparse_grid_dependency_wait();
  float conv_local_ptr_at_0;
  extern __shared__ __align__(64) half pack_shared_dyn_ptr[];
  uint to = tvm_sparse_shared_address((&(pack_shared_dyn_ptr[(((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 16) + ((int)threadIdx.x)) >> 2) * 48) + ((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 16) + ((int)threadIdx.x)) & 3) * 8))])));
  int start = ((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 16) + ((int)threadIdx.x)) < 24) ? (((((1 <= (((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 16) + ((int)threadIdx.x)) >> 2)) && ((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 16) + ((int)threadIdx.x)) >> 2) < 5)) && (1 <= (((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 16) + ((int)threadIdx.x)) & 3))) && ((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 16) + ((int)threadIdx.x)) & 3) < 3)) ? ((((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 16) + ((int)threadIdx.x)) >> 2) * 16) + ((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 16) + ((int)threadIdx.x)) & 3) * 8)) + -24) : 0) : 0);
  bool inside = ((((1 <= (((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 16) + ((int)threadIdx.x)) >> 2)) && ((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 16) + ((int)threadIdx.x)) >> 2) < 5)) && (1 <= (((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 16) + ((int)threadIdx.x)) & 3))) && ((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 16) + ((int)threadIdx.x)) & 3) < 3));
  bool guard = (((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 16) + ((int)threadIdx.x)) < 24);
  if (guard) {
    tvm_sparse_cp_async_16((to + ((uint)0)), (&(x_ptr[start])), inside);
  }
  tvm_builtin_ptx_cp_async_commit_group_async_commit_group();
  if (guard) {
    tvm_sparse_cp_async_16((to + ((uint)576)), (&(x_ptr[(start + 64)])), inside);
  }
  tvm_builtin_ptx_cp_async_commit_group_async_commit_group();
  conv_local_ptr_at_0 = 0x0p+0f/*0.000000e+00*/;
  tvm_builtin_ptx_cp_async_wait_group_async_wait_group_1();
  __syncthreads();
  int x_base = ((((int)threadIdx.y) * 48) + ((int)threadIdx.x));
  float acc = conv_local_ptr_at_0;
  float x = ((float)pack_shared_dyn_ptr[(x_base + 8)]);
  float acc_1 = (acc + (x * 0x1p+1f/*2.000000e+00*/));
  float x_1 = ((float)pack_shared_dyn_ptr[(x_base + 56)]);
  float acc_2 = (acc_1 + (x_1 * -0x1.8p+1f/*-3.000000e+00*/));
  float x_2 = ((float)pack_shared_dyn_ptr[(x_base + 105)]);
  float acc_3 = (acc_2 + (x_2 * 0x1p+2f/*4.000000e+00*/));
  conv_local_ptr_at_0 = acc_3;
  tvm_builtin_ptx_cp_async_wait_group_async_wait_group_0();
  __syncthreads();
  int x_base_1 = ((((int)threadIdx.y) * 48) + ((int)threadIdx.x));
  float acc_4 = conv_local_ptr_at_0;
  float x_3 = ((float)pack_shared_dyn_ptr[(x_base_1 + 343)]);
  float acc_5 = (acc_4 + (x_3 * -0x1.4p+2f/*-5.000000e+00*/));
  float x_4 = ((float)pack_shared_dyn_ptr[(x_base_1 + 392)]);
  float acc_6 = (acc_5 + (x_4 * 0x1.8p+2f/*6.000000e+00*/));
  conv_local_ptr_at_0 = acc_6;
  out_ptr[((((int)threadIdx.y) * 16) + ((int)threadIdx.x))] = ((half)(conv_local_ptr_at_0 + ((float)bias_ptr[0])));
}
