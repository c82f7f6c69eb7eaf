// folded_cuda:multistage-4x8-pixels1 of n1c3h4w8-k2r3s3-st1x1-p1.1.1.1-d1x1-g1-br for {'kind': 'cuda', 'arch': 'sm_90', 'host': {'kind': 'llvm', 'mcpu': 'x86-64-v3'}}
// filters 2, rows 4, images 1, channels 1, pipeline_stages 3, order straight, blocks_per_sm 1, dependent_launch at_exit
extern "C" __global__ void __launch_bounds__(32) main_kernel(float* __restrict__ bias_ptr, float* __restrict__ out_ptr, float* __restrict__ x_ptr) {
  tvm_sparse_grid_dependency_wait();
  float conv_local_ptr_at_0, conv_local_ptr_at_1;
  extern __shared__ __align__(64) float pack_shared_dyn_ptr[];
  uint to = tvm_sparse_shared_address((&(pack_shared_dyn_ptr[(((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) >> 2) * 24) + ((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) & 3) * 4))])));
  int start = ((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) < 24) ? (((((1 <= (((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) >> 2)) && ((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) >> 2) < 5)) && (1 <= (((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) & 3))) && ((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) & 3) < 3)) ? ((((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) >> 2) * 8) + ((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) & 3) * 4)) + -12) : 0) : 0);
  bool inside = ((((1 <= (((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) >> 2)) && ((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) >> 2) < 5)) && (1 <= (((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) & 3))) && ((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) & 3) < 3));
  bool guard = (((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) < 24);
  if (guard) {
    tvm_sparse_cp_async_16((to + ((uint)0)), (&(x_ptr[start])), inside);
  }
  tvm_builtin_ptx_cp_async_commit_group_async_commit_group();
  if (guard) {
    tvm_sparse_cp_async_16((to + ((uint)576)), (&(x_ptr[(start + 32)])), inside);
  }
  tvm_builtin_ptx_cp_async_commit_group_async_commit_group();
  conv_local_ptr_at_0 = 0x0p+0f/*0.000000e+00*/;
  conv_local_ptr_at_1 = 0x0p+0f/*0.000000e+00*/;
  tvm_builtin_ptx_cp_async_wait_group_async_wait_group_1();
  __syncthreads();
  if (guard) {
    tvm_sparse_cp_async_16((to + ((uint)1152)), (&(x_ptr[(start + 64)])), inside);
  }
  tvm_builtin_ptx_cp_async_commit_group_async_commit_group();
  int x_base = ((((int)threadIdx.y) * 24) + ((int)threadIdx.x));
  float acc = conv_local_ptr_at_0;
  float x = pack_shared_dyn_ptr[(x_base + 4)];
  float acc_1 = (acc + (x * 0x1p+1f/*2.000000e+00*/));
  conv_local_ptr_at_0 = acc_1;
  tvm_builtin_ptx_cp_async_wait_group_async_wait_group_1();
  __syncthreads();
  int x_base_1 = ((((int)threadIdx.y) * 24) + ((int)threadIdx.x));
  float acc_2 = conv_local_ptr_at_1;
  float acc_3 = conv_local_ptr_at_0;
  float x_1 = pack_shared_dyn_ptr[(x_base_1 + 171)];
  float acc_4 = (acc_2 + (x_1 * -0x1.4p+2f/*-5.000000e+00*/));
  float x_2 = pack_shared_dyn_ptr[(x_base_1 + 172)];
  float acc_5 = (acc_3 + (x_2 * -0x1.8p+1f/*-3.000000e+00*/));
  conv_local_ptr_at_1 = acc_4;
  conv_local_ptr_at_0 = acc_5;
  tvm_builtin_ptx_cp_async_wait_group_async_wait_group_0();
  __syncthreads();
  int x_base_2 = ((((int)threadIdx.y) * 24) + ((int)threadIdx.x));
  float acc_6 = conv_local_ptr_at_1;
  float acc_7 = conv_local_ptr_at_0;
  float x_3 = pack_shared_dyn_ptr[(x_base_2 + 340)];
  float acc_8 = (acc_6 + (x_3 * 0x1.8p+2f/*6.000000e+00*/));
  float x_4 = pack_shared_dyn_ptr[(x_base_2 + 341)];
  float acc_9 = (acc_7 + (x_4 * 0x1p+2f/*4.000000e+00*/));
  conv_local_ptr_at_1 = acc_8;
  conv_local_ptr_at_0 = acc_9;
  float condval;
  if ((conv_local_ptr_at_0 + bias_ptr[0]) < 0x0p+0f/*0.000000e+00*/) {
    condval = 0x0p+0f/*0.000000e+00*/;
  } else {
    condval = (conv_local_ptr_at_0 + bias_ptr[0]);
  }
  out_ptr[((((int)threadIdx.y) * 8) + ((int)threadIdx.x))] = condval;
  float condval_1;
  if ((conv_local_ptr_at_1 + bias_ptr[1]) < 0x0p+0f/*0.000000e+00*/) {
    condval_1 = 0x0p+0f/*0.000000e+00*/;
  } else {
    condval_1 = (conv_local_ptr_at_1 + bias_ptr[1]);
  }
  out_ptr[(((((int)threadIdx.y) * 8) + ((int)threadIdx.x)) + 32)] = condval_1;
}
