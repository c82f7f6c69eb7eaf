// folded_cuda:multistage-4x8-pixels1 of n1c2h4w8-k2r3s3-st1x1-p1.1.1.1-d1x1-g1 for {'kind': 'cuda', 'arch': 'sm_90', 'host': {'kind': 'llvm', 'mcpu': 'x86-64-v3'}}
// filters 1, rows 4, images 1, channels 1, pipeline_stages 3, order straight, blocks_per_sm 1, dependent_launch at_once
extern "C" __global__ void __launch_bounds__(32) main_kernel(float* __restrict__ out_ptr, float* __restrict__ x_ptr) {
  tvm_sparse_grid_dependency_wait();
  float conv_local_ptr_at_0;
  extern __shared__ __align__(64) float pack_shared_dyn_ptr[];
  tvm_sparse_launch_dependents();
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
  if (((int)blockIdx.y) < 1) {
    conv_local_ptr_at_0 = 0x0p+0f/*0.000000e+00*/;
    tvm_builtin_ptx_cp_async_wait_group_async_wait_group_1();
    __syncthreads();
    int x_base = ((((int)threadIdx.y) * 24) + ((int)threadIdx.x));
    float acc = conv_local_ptr_at_0;
    float x = pack_shared_dyn_ptr[(x_base + 4)];
    float acc_1 = (acc + (x * 0x1p+1f/*2.000000e+00*/));
    conv_local_ptr_at_0 = acc_1;
    tvm_builtin_ptx_cp_async_wait_group_async_wait_group_0();
    __syncthreads();
    int x_base_1 = ((((int)threadIdx.y) * 24) + ((int)threadIdx.x));
    float acc_2 = conv_local_ptr_at_0;
    float x_1 = pack_shared_dyn_ptr[(x_base_1 + 147)];
    float acc_3 = (acc_2 + (x_1 * -0x1.8p+1f/*-3.000000e+00*/));
    float x_2 = pack_shared_dyn_ptr[(x_base_1 + 197)];
    float acc_4 = (acc_3 + (x_2 * 0x1p+2f/*4.000000e+00*/));
    conv_local_ptr_at_0 = acc_4;
    out_ptr[(((0 * 32) + (((int)threadIdx.y) * 8)) + ((int)threadIdx.x))] = conv_local_ptr_at_0;
  } else {
    conv_local_ptr_at_0 = 0x0p+0f/*0.000000e+00*/;
    tvm_builtin_ptx_cp_async_wait_group_async_wait_group_1();
    __syncthreads();
    int x_base_2 = ((((int)threadIdx.y) * 24) + ((int)threadIdx.x));
    float acc_5 = conv_local_ptr_at_0;
    float x_3 = pack_shared_dyn_ptr[(x_base_2 + 52)];
    float acc_6 = (acc_5 + (x_3 * -0x1.4p+2f/*-5.000000e+00*/));
    conv_local_ptr_at_0 = acc_6;
    tvm_builtin_ptx_cp_async_wait_group_async_wait_group_0();
    __syncthreads();
    int x_base_3 = ((((int)threadIdx.y) * 24) + ((int)threadIdx.x));
    float acc_7 = conv_local_ptr_at_0;
    float x_4 = pack_shared_dyn_ptr[(x_base_3 + 196)];
    float acc_8 = (acc_7 + (x_4 * 0x1.8p+2f/*6.000000e+00*/));
    conv_local_ptr_at_0 = acc_8;
    out_ptr[(((1 * 32) + (((int)threadIdx.y) * 8)) + ((int)threadIdx.x))] = conv_local_ptr_at_0;
  }
}
