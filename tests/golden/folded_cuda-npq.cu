// folded_cuda:npq32 of n2c1h6w6-k2r3s3-st1x1-p1.1.1.1-d1x1-g1 for {'kind': 'cuda', 'arch': 'sm_90', 'host': {'kind': 'llvm', 'mcpu': 'x86-64-v3'}}
// filters 2, channels 1, pipeline_stages 3, order straight, blocks_per_sm 1, dependent_launch last_k_tile
extern "C" __global__ void __launch_bounds__(32) main_kernel(float* __restrict__ out_ptr, float* __restrict__ x_ptr) {
  tvm_sparse_grid_dependency_wait();
  float conv_local_ptr_at_0, conv_local_ptr_at_1;
  extern __shared__ __align__(64) float pack_shared_dyn_ptr[];
  uint to = tvm_sparse_shared_address((&(pack_shared_dyn_ptr[(((((int)threadIdx.x) / 5) * 38) + ((((int)threadIdx.x) % 5) * 2))])));
  int start = (((((((((((int)blockIdx.x) * 32) / 36) + (((((((int)blockIdx.x) * 32) % 36) / 6) + (((int)threadIdx.x) / 5)) >> 3)) < 2) && (1 <= (((((((int)blockIdx.x) * 32) % 36) / 6) + (((int)threadIdx.x) / 5)) & 7))) && ((((((((int)blockIdx.x) * 32) % 36) / 6) + (((int)threadIdx.x) / 5)) & 7) < 7)) && (1 <= (((int)threadIdx.x) % 5))) && ((((int)threadIdx.x) % 5) < 4)) ? (((((((((int)blockIdx.x) * 32) / 36) * 36) + ((((((((int)blockIdx.x) * 32) % 36) / 6) + (((int)threadIdx.x) / 5)) >> 3) * 36)) + ((((((((int)blockIdx.x) * 32) % 36) / 6) + (((int)threadIdx.x) / 5)) & 7) * 6)) + ((((int)threadIdx.x) % 5) * 2)) - 8) : 0);
  bool inside = ((((((((((int)blockIdx.x) * 32) / 36) + (((((((int)blockIdx.x) * 32) % 36) / 6) + (((int)threadIdx.x) / 5)) >> 3)) < 2) && (1 <= (((((((int)blockIdx.x) * 32) % 36) / 6) + (((int)threadIdx.x) / 5)) & 7))) && ((((((((int)blockIdx.x) * 32) % 36) / 6) + (((int)threadIdx.x) / 5)) & 7) < 7)) && (1 <= (((int)threadIdx.x) % 5))) && ((((int)threadIdx.x) % 5) < 4));
  uint to_1 = tvm_sparse_shared_address((&(pack_shared_dyn_ptr[((((((int)threadIdx.x) + 32) / 5) * 38) + (((((int)threadIdx.x) + 32) % 5) * 2))])));
  int start_1 = (((((int)threadIdx.x) + 32) < 50) ? (((((((((((int)blockIdx.x) * 32) / 36) + (((((((int)blockIdx.x) * 32) % 36) / 6) + ((((int)threadIdx.x) + 32) / 5)) >> 3)) < 2) && (1 <= (((((((int)blockIdx.x) * 32) % 36) / 6) + ((((int)threadIdx.x) + 32) / 5)) & 7))) && ((((((((int)blockIdx.x) * 32) % 36) / 6) + ((((int)threadIdx.x) + 32) / 5)) & 7) < 7)) && (1 <= ((((int)threadIdx.x) + 32) % 5))) && (((((int)threadIdx.x) + 32) % 5) < 4)) ? (((((((((int)blockIdx.x) * 32) / 36) * 36) + ((((((((int)blockIdx.x) * 32) % 36) / 6) + ((((int)threadIdx.x) + 32) / 5)) >> 3) * 36)) + ((((((((int)blockIdx.x) * 32) % 36) / 6) + ((((int)threadIdx.x) + 32) / 5)) & 7) * 6)) + (((((int)threadIdx.x) + 32) % 5) * 2)) - 8) : 0) : 0);
  bool inside_1 = ((((((((((int)blockIdx.x) * 32) / 36) + (((((((int)blockIdx.x) * 32) % 36) / 6) + ((((int)threadIdx.x) + 32) / 5)) >> 3)) < 2) && (1 <= (((((((int)blockIdx.x) * 32) % 36) / 6) + ((((int)threadIdx.x) + 32) / 5)) & 7))) && ((((((((int)blockIdx.x) * 32) % 36) / 6) + ((((int)threadIdx.x) + 32) / 5)) & 7) < 7)) && (1 <= ((((int)threadIdx.x) + 32) % 5))) && (((((int)threadIdx.x) + 32) % 5) < 4));
  bool guard = ((((int)threadIdx.x) + 32) < 50);
  tvm_sparse_cp_async_8((to + ((uint)0)), (&(x_ptr[start])), inside);
  if (guard) {
    tvm_sparse_cp_async_8((to_1 + ((uint)0)), (&(x_ptr[start_1])), inside_1);
  }
  tvm_builtin_ptx_cp_async_commit_group_async_commit_group();
  conv_local_ptr_at_0 = 0x0p+0f/*0.000000e+00*/;
  conv_local_ptr_at_1 = 0x0p+0f/*0.000000e+00*/;
  tvm_builtin_ptx_cp_async_wait_group_async_wait_group_0();
  __syncthreads();
  tvm_sparse_launch_dependents();
  int x_base = ((min(max((((((((((int)blockIdx.x) * 8) + (((int)threadIdx.x) >> 2)) / 9) * 8) + ((((((int)blockIdx.x) * 16) + (((int)threadIdx.x) >> 1)) % 18) / 3)) - (((((int)blockIdx.x) * 32) % 36) / 6)) - (((((int)blockIdx.x) * 32) / 36) * 8)), 0), 7) * 38) + (((((int)blockIdx.x) * 32) + ((int)threadIdx.x)) % 6));
  float acc = conv_local_ptr_at_0;
  float acc_1 = conv_local_ptr_at_1;
  float x = pack_shared_dyn_ptr[(x_base + 2)];
  float acc_2 = (acc + (x * 0x1p+1f/*2.000000e+00*/));
  float x_1 = pack_shared_dyn_ptr[(x_base + 39)];
  float acc_3 = (acc_1 + (x_1 * -0x1.4p+2f/*-5.000000e+00*/));
  float x_2 = pack_shared_dyn_ptr[(x_base + 40)];
  float acc_4 = (acc_2 + (x_2 * -0x1.8p+1f/*-3.000000e+00*/));
  float x_3 = pack_shared_dyn_ptr[(x_base + 78)];
  float acc_5 = (acc_3 + (x_3 * 0x1.8p+2f/*6.000000e+00*/));
  float x_4 = pack_shared_dyn_ptr[(x_base + 79)];
  float acc_6 = (acc_4 + (x_4 * 0x1p+2f/*4.000000e+00*/));
  conv_local_ptr_at_0 = acc_6;
  conv_local_ptr_at_1 = acc_5;
  if (((((int)blockIdx.x) * 4) + (((int)threadIdx.x) >> 3)) < 9) {
    out_ptr[(((((((int)blockIdx.x) * 8) + (((int)threadIdx.x) >> 2)) / 9) * 72) + (((((int)blockIdx.x) * 32) + ((int)threadIdx.x)) % 36))] = conv_local_ptr_at_0;
  }
  if (((((int)blockIdx.x) * 4) + (((int)threadIdx.x) >> 3)) < 9) {
    out_ptr[((((((((int)blockIdx.x) * 8) + (((int)threadIdx.x) >> 2)) / 9) * 72) + (((((int)blockIdx.x) * 32) + ((int)threadIdx.x)) % 36)) + 36)] = conv_local_ptr_at_1;
  }
}
