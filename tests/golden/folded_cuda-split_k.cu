// folded_cuda:split2-npq32 of n1c4h4w8-k2r1s1-st1x1-p0.0.0.0-d1x1-g1-b for {'kind': 'cuda', 'arch': 'sm_90', 'host': {'kind': 'llvm', 'mcpu': 'x86-64-v3'}}
// filters 2, channels 1, pipeline_stages 3, blocks_per_sm 1, dependent_launch at_exit
extern "C" __global__ void __launch_bounds__(32) main_kernel(float* __restrict__ bias_ptr, float* __restrict__ out_ptr, float* __restrict__ x_ptr) {
  tvm_sparse_grid_dependency_wait();
  extern __shared__ __align__(64) uchar buf_dyn_shmem_ptr[];
  float total_local_ptr_at_0;
  float conv_local_ptr_at_0, conv_local_ptr_at_1;
  uint to = tvm_sparse_shared_address((&(((float*)buf_dyn_shmem_ptr)[(((((int)threadIdx.x) >> 1) * 8) + ((((int)threadIdx.x) & 1) * 4))])));
  int start = ((((int)threadIdx.x) < 8) ? (((((int)blockIdx.z) * 64) + ((((int)threadIdx.x) >> 1) * 8)) + ((((int)threadIdx.x) & 1) * 4)) : 0);
  bool guard = (((int)threadIdx.x) < 8);
  if (guard) {
    tvm_sparse_cp_async_16((to + ((uint)0)), (&(x_ptr[start])), (bool)1);
  }
  tvm_builtin_ptx_cp_async_commit_group_async_commit_group();
  if (guard) {
    tvm_sparse_cp_async_16((to + ((uint)128)), (&(x_ptr[(start + 32)])), (bool)1);
  }
  tvm_builtin_ptx_cp_async_commit_group_async_commit_group();
  if (((int)blockIdx.z) < 1) {
    conv_local_ptr_at_0 = 0x0p+0f/*0.000000e+00*/;
    conv_local_ptr_at_1 = 0x0p+0f/*0.000000e+00*/;
    tvm_builtin_ptx_cp_async_wait_group_async_wait_group_1();
    __syncthreads();
    int x_base = ((int)threadIdx.x);
    float acc = conv_local_ptr_at_1;
    float x = ((float*)buf_dyn_shmem_ptr)[x_base];
    float acc_1 = (acc + (x * -0x1.4p+2f/*-5.000000e+00*/));
    conv_local_ptr_at_1 = acc_1;
    tvm_builtin_ptx_cp_async_wait_group_async_wait_group_0();
    __syncthreads();
    int x_base_1 = (((int)threadIdx.x) + 32);
    float acc_2 = conv_local_ptr_at_0;
    float x_1 = ((float*)buf_dyn_shmem_ptr)[x_base_1];
    float acc_3 = (acc_2 + (x_1 * 0x1p+1f/*2.000000e+00*/));
    conv_local_ptr_at_0 = acc_3;
    ((float*)buf_dyn_shmem_ptr)[(((int)threadIdx.x) + 64)] = conv_local_ptr_at_0;
    ((float*)buf_dyn_shmem_ptr)[((((int)threadIdx.x) + 32) + 64)] = conv_local_ptr_at_1;
  } else {
    conv_local_ptr_at_0 = 0x0p+0f/*0.000000e+00*/;
    conv_local_ptr_at_1 = 0x0p+0f/*0.000000e+00*/;
    tvm_builtin_ptx_cp_async_wait_group_async_wait_group_1();
    __syncthreads();
    int x_base_2 = ((int)threadIdx.x);
    float acc_4 = conv_local_ptr_at_0;
    float acc_5 = conv_local_ptr_at_1;
    float x_2 = ((float*)buf_dyn_shmem_ptr)[x_base_2];
    float acc_6 = (acc_4 + (x_2 * -0x1.8p+1f/*-3.000000e+00*/));
    float acc_7 = (acc_5 + (x_2 * 0x1.8p+2f/*6.000000e+00*/));
    conv_local_ptr_at_0 = acc_6;
    conv_local_ptr_at_1 = acc_7;
    tvm_builtin_ptx_cp_async_wait_group_async_wait_group_0();
    __syncthreads();
    int x_base_3 = (((int)threadIdx.x) + 32);
    float acc_8 = conv_local_ptr_at_0;
    float x_3 = ((float*)buf_dyn_shmem_ptr)[x_base_3];
    float acc_9 = (acc_8 + (x_3 * 0x1p+2f/*4.000000e+00*/));
    conv_local_ptr_at_0 = acc_9;
    ((float*)buf_dyn_shmem_ptr)[(((int)threadIdx.x) + 64)] = conv_local_ptr_at_0;
    ((float*)buf_dyn_shmem_ptr)[((((int)threadIdx.x) + 32) + 64)] = conv_local_ptr_at_1;
  }
  tvm_sparse_cluster_arrive();
  tvm_sparse_cluster_wait();
  total_local_ptr_at_0 = (tvm_sparse_cluster_load((&(((float*)buf_dyn_shmem_ptr)[(((((int)blockIdx.z) * 32) + ((int)threadIdx.x)) + 64)])), 0, 0) + tvm_sparse_cluster_load((&(((float*)buf_dyn_shmem_ptr)[(((((int)blockIdx.z) * 32) + ((int)threadIdx.x)) + 64)])), 1, 0));
  tvm_sparse_cluster_arrive();
  out_ptr[((((int)blockIdx.z) * 32) + ((int)threadIdx.x))] = (total_local_ptr_at_0 + bias_ptr[((int)blockIdx.z)]);
  tvm_sparse_cluster_wait();
}
