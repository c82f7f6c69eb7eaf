// folded_cuda:multistage-4x16-pixels1x2 of n1c1h4w16-k1r3s3-st1x1-p1.1.1.1-d1x1-g1 for {'kind': 'cuda', 'arch': 'sm_90', 'host': {'kind': 'llvm', 'mcpu': 'x86-64-v3'}}
// filters 1, rows 4, images 1, channels 1, pipeline_stages 3, order straight, blocks_per_sm 1, dependent_launch at_exit
extern "C" __global__ void __launch_bounds__(32) main_kernel(float* __restrict__ out_ptr, float* __restrict__ x_ptr) {
  tvm_sparse_grid_dependency_wait();
  float conv_local_ptr_at_0, conv_local_ptr_at_1;
  extern __shared__ __align__(64) float pack_shared_dyn_ptr[];
  uint to = tvm_sparse_shared_address((&(pack_shared_dyn_ptr[(((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) / 6) * 48) + ((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) % 6) * 4))])));
  int start = (((((1 <= (((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) / 6)) && ((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) / 6) < 5)) && (1 <= (((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) % 6))) && ((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) % 6) < 5)) ? ((((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) / 6) * 16) + ((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) % 6) * 4)) - 20) : 0);
  bool inside = ((((1 <= (((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) / 6)) && ((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) / 6) < 5)) && (1 <= (((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) % 6))) && ((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) % 6) < 5));
  uint to_1 = tvm_sparse_shared_address((&(pack_shared_dyn_ptr[((((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) + 32) / 6) * 48) + (((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) + 32) % 6) * 4))])));
  int start_1 = (((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) + 32) < 36) ? (((((1 <= ((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) + 32) / 6)) && (((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) + 32) / 6) < 5)) && (1 <= ((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) + 32) % 6))) && (((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) + 32) % 6) < 5)) ? (((((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) + 32) / 6) * 16) + (((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) + 32) % 6) * 4)) - 20) : 0) : 0);
  bool inside_1 = ((((1 <= ((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) + 32) / 6)) && (((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) + 32) / 6) < 5)) && (1 <= ((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) + 32) % 6))) && (((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) + 32) % 6) < 5));
  bool guard = ((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) + 32) < 36);
  tvm_sparse_cp_async_16((to + ((uint)0)), (&(x_ptr[start])), inside);
  if (guard) {
    tvm_sparse_cp_async_16((to_1 + ((uint)0)), (&(x_ptr[start_1])), inside_1);
  }
  tvm_builtin_ptx_cp_async_commit_group_async_commit_group();
  conv_local_ptr_at_0 = 0x0p+0f/*0.000000e+00*/;
  conv_local_ptr_at_1 = 0x0p+0f/*0.000000e+00*/;
  tvm_builtin_ptx_cp_async_wait_group_async_wait_group_0();
  __syncthreads();
  int x_base = ((((int)threadIdx.y) * 48) + (((int)threadIdx.x) * 2));
  float acc = conv_local_ptr_at_0;
  float acc_1 = conv_local_ptr_at_1;
  float x = pack_shared_dyn_ptr[(x_base + 4)];
  float acc_2 = (acc + (x * 0x1p+1f/*2.000000e+00*/));
  float x_1 = pack_shared_dyn_ptr[(x_base + 5)];
  float acc_3 = (acc_1 + (x_1 * 0x1p+1f/*2.000000e+00*/));
  float acc_4 = (acc_2 + (x_1 * -0x1.8p+1f/*-3.000000e+00*/));
  float x_2 = pack_shared_dyn_ptr[(x_base + 6)];
  float acc_5 = (acc_3 + (x_2 * -0x1.8p+1f/*-3.000000e+00*/));
  float x_3 = pack_shared_dyn_ptr[(x_base + 52)];
  float acc_6 = (acc_4 + (x_3 * 0x1p+2f/*4.000000e+00*/));
  float x_4 = pack_shared_dyn_ptr[(x_base + 53)];
  float acc_7 = (acc_5 + (x_4 * 0x1p+2f/*4.000000e+00*/));
  float acc_8 = (acc_6 + (x_4 * -0x1.4p+2f/*-5.000000e+00*/));
  float x_5 = pack_shared_dyn_ptr[(x_base + 54)];
  float acc_9 = (acc_7 + (x_5 * -0x1.4p+2f/*-5.000000e+00*/));
  float x_6 = pack_shared_dyn_ptr[(x_base + 100)];
  float acc_10 = (acc_8 + (x_6 * 0x1.8p+2f/*6.000000e+00*/));
  float x_7 = pack_shared_dyn_ptr[(x_base + 101)];
  float acc_11 = (acc_9 + (x_7 * 0x1.8p+2f/*6.000000e+00*/));
  conv_local_ptr_at_0 = acc_10;
  conv_local_ptr_at_1 = acc_11;
  out_ptr[((((int)threadIdx.y) * 16) + (((int)threadIdx.x) * 2))] = conv_local_ptr_at_0;
  out_ptr[(((((int)threadIdx.y) * 16) + (((int)threadIdx.x) * 2)) + 1)] = conv_local_ptr_at_1;
}
