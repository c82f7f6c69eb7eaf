// dense_cuda:async-4x8-pixels1 of n1c2h4w8-k2r3s3-st1x1-p1.1.1.1-d1x1-g1 for {'kind': 'cuda', 'arch': 'sm_90', 'host': {'kind': 'llvm', 'mcpu': 'x86-64-v3'}}
// by default
extern "C" __global__ void __launch_bounds__(32) main_kernel(float* __restrict__ out_ptr, float* __restrict__ weight_ptr, float* __restrict__ x_ptr) {
  tvm_sparse_grid_dependency_wait();
  extern __shared__ __align__(64) uchar buf_dyn_shmem_ptr[];
  float conv_local_ptr_at_0, conv_local_ptr_at_1;
  conv_local_ptr_at_0 = 0x0p+0f/*0.000000e+00*/;
  conv_local_ptr_at_1 = 0x0p+0f/*0.000000e+00*/;
  for (int ax0_ax1_ax2_ax3_ax4_fused_0 = 0; ax0_ax1_ax2_ax3_ax4_fused_0 < 2; ++ax0_ax1_ax2_ax3_ax4_fused_0) {
    if (((ax0_ax1_ax2_ax3_ax4_fused_0 * 2) + (((int)threadIdx.y) >> 1)) < 3) {
      ptx_cp_async_legacy_pred_cg_16_4_4(buf_dyn_shmem_ptr, (112 + ((((((ax0_ax1_ax2_ax3_ax4_fused_0 * 4) + ((int)threadIdx.y)) / 3) * 144) + (((((ax0_ax1_ax2_ax3_ax4_fused_0 * 8) + (((int)threadIdx.y) * 2)) + (((int)threadIdx.x) >> 2)) % 6) * 24)) + ((((int)threadIdx.x) & 3) * 4))), x_ptr, (((((((ax0_ax1_ax2_ax3_ax4_fused_0 * 4) + ((int)threadIdx.y)) / 3) * 32) + (((((ax0_ax1_ax2_ax3_ax4_fused_0 * 8) + (((int)threadIdx.y) * 2)) + (((int)threadIdx.x) >> 2)) % 6) * 8)) + ((((int)threadIdx.x) & 3) * 4)) - 12), ((((1 <= ((((ax0_ax1_ax2_ax3_ax4_fused_0 * 8) + (((int)threadIdx.y) * 2)) + (((int)threadIdx.x) >> 2)) % 6)) && (((((ax0_ax1_ax2_ax3_ax4_fused_0 * 8) + (((int)threadIdx.y) * 2)) + (((int)threadIdx.x) >> 2)) % 6) < 5)) && (1 <= (((int)threadIdx.x) & 3))) && ((((int)threadIdx.x) & 3) < 3)));
    }
  }
  for (int ax0_ax1_ax2_ax3_fused_0 = 0; ax0_ax1_ax2_ax3_fused_0 < 2; ++ax0_ax1_ax2_ax3_fused_0) {
    if ((((ax0_ax1_ax2_ax3_fused_0 * 8) + (((int)threadIdx.y) * 2)) + (((int)threadIdx.x) >> 2)) < 9) {
      ptx_cp_async_legacy_ca_4_4_4(buf_dyn_shmem_ptr, ((((((ax0_ax1_ax2_ax3_fused_0 * 32) + (((int)threadIdx.y) * 8)) + ((int)threadIdx.x)) % 18) * 2) + ((((ax0_ax1_ax2_ax3_fused_0 * 16) + (((int)threadIdx.y) * 4)) + (((int)threadIdx.x) >> 1)) / 9)), weight_ptr, (((ax0_ax1_ax2_ax3_fused_0 * 32) + (((int)threadIdx.y) * 8)) + ((int)threadIdx.x)));
    }
  }
  tvm_builtin_ptx_cp_async_commit_group_async_commit_group();
  tvm_builtin_ptx_cp_async_wait_group_async_wait_group_0();
  __syncthreads();
  for (int c_1 = 0; c_1 < 2; ++c_1) {
    for (int r = 0; r < 3; ++r) {
      for (int s = 0; s < 3; ++s) {
        conv_local_ptr_at_0 = (conv_local_ptr_at_0 + (((float*)buf_dyn_shmem_ptr)[(((((((c_1 * 144) + (((int)threadIdx.y) * 24)) + (r * 24)) + s) + ((int)threadIdx.x)) + 3) + 112)] * ((float*)buf_dyn_shmem_ptr)[(((c_1 * 18) + (r * 6)) + (s * 2))]));
        conv_local_ptr_at_1 = (conv_local_ptr_at_1 + (((float*)buf_dyn_shmem_ptr)[(((((((c_1 * 144) + (((int)threadIdx.y) * 24)) + (r * 24)) + s) + ((int)threadIdx.x)) + 3) + 112)] * ((float*)buf_dyn_shmem_ptr)[((((c_1 * 18) + (r * 6)) + (s * 2)) + 1)]));
      }
    }
  }
  out_ptr[((((int)threadIdx.y) * 8) + ((int)threadIdx.x))] = conv_local_ptr_at_0;
  out_ptr[(((((int)threadIdx.y) * 8) + ((int)threadIdx.x)) + 32)] = conv_local_ptr_at_1;
}
