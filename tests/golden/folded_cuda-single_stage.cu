// folded_cuda:single-8x4-pixels1 of n1c2h64w64-k1r61s61-st1x1-p0.0.0.0-d1x1-g1 for {'kind': 'cuda', 'arch': 'sm_90', 'host': {'kind': 'llvm', 'mcpu': 'x86-64-v3'}}
// by default
extern "C" __global__ void __launch_bounds__(32, 3) main_kernel(float* __restrict__ out_ptr, float* __restrict__ x_ptr) {
  tvm_sparse_grid_dependency_wait();
  float conv_local_ptr_at_0;
  extern __shared__ __align__(64) float pack_shared_dyn_ptr[];
  conv_local_ptr_at_0 = 0x0p+0f/*0.000000e+00*/;
  for (int ax0_ax1_ax2_ax3_ax4_fused_0 = 0; ax0_ax1_ax2_ax3_ax4_fused_0 < 68; ++ax0_ax1_ax2_ax3_ax4_fused_0) {
    float4 condval;
    if ((ax0_ax1_ax2_ax3_ax4_fused_0 % 34) < 32) {
      condval = *(float4*)(x_ptr + (((((ax0_ax1_ax2_ax3_ax4_fused_0 / 34) * 4096) + ((ax0_ax1_ax2_ax3_ax4_fused_0 % 34) * 128)) + (((int)threadIdx.y) * 16)) + (((int)threadIdx.x) * 4)));
    } else {
      condval = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
    }
    *(float4*)(pack_shared_dyn_ptr + ((((ax0_ax1_ax2_ax3_ax4_fused_0 * 136) + ((((int)threadIdx.y) >> 2) * 68)) + ((((int)threadIdx.y) & 3) * 16)) + (((int)threadIdx.x) * 4))) = condval;
  }
  __syncthreads();
  int x_base = ((((int)threadIdx.y) * 68) + ((int)threadIdx.x));
  float acc = conv_local_ptr_at_0;
  float x = pack_shared_dyn_ptr[(x_base + 1)];
  float acc_1 = (acc + (x * 0x1p+1f/*2.000000e+00*/));
  float x_1 = pack_shared_dyn_ptr[(x_base + 2070)];
  float acc_2 = (acc_1 + (x_1 * -0x1.8p+1f/*-3.000000e+00*/));
  float x_2 = pack_shared_dyn_ptr[(x_base + 4140)];
  float acc_3 = (acc_2 + (x_2 * 0x1p+2f/*4.000000e+00*/));
  float x_3 = pack_shared_dyn_ptr[(x_base + 6693)];
  float acc_4 = (acc_3 + (x_3 * -0x1.4p+2f/*-5.000000e+00*/));
  float x_4 = pack_shared_dyn_ptr[(x_base + 8763)];
  float acc_5 = (acc_4 + (x_4 * 0x1.8p+2f/*6.000000e+00*/));
  conv_local_ptr_at_0 = acc_5;
  if (((int)threadIdx.y) < 4) {
    out_ptr[((((int)threadIdx.y) * 4) + ((int)threadIdx.x))] = conv_local_ptr_at_0;
  }
}
