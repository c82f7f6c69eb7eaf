// generated_cuda of n1c2h4w8-k2r3s3-st1x1-p1.1.1.1-d1x1-g1-br for {'kind': 'cuda', 'arch': 'sm_90', 'host': {'kind': 'llvm', 'mcpu': 'x86-64-v3'}}
// by default
extern "C" __global__ void __launch_bounds__(32) main_kernel(float* __restrict__ bias_ptr, float* __restrict__ out_ptr, float* __restrict__ x_ptr) {
  tvm_sparse_grid_dependency_wait();
  float conv_local_ptr_at_0, conv_local_ptr_at_1;
  __shared__ alignas(64) float pack_shared_ptr[120];
  conv_local_ptr_at_0 = 0x0p+0f/*0.000000e+00*/;
  conv_local_ptr_at_1 = 0x0p+0f/*0.000000e+00*/;
  for (int ax0_ax1_ax2_ax3_fused_0 = 0; ax0_ax1_ax2_ax3_fused_0 < 4; ++ax0_ax1_ax2_ax3_fused_0) {
    if (((ax0_ax1_ax2_ax3_fused_0 * 4) + (((int)threadIdx.x) >> 3)) < 15) {
      float condval;
      if ((((5 <= (((ax0_ax1_ax2_ax3_fused_0 * 16) + (((int)threadIdx.x) >> 1)) % 30)) && ((((ax0_ax1_ax2_ax3_fused_0 * 32) + ((int)threadIdx.x)) % 60) < 50)) && (1 <= (((ax0_ax1_ax2_ax3_fused_0 * 32) + ((int)threadIdx.x)) % 10))) && ((((ax0_ax1_ax2_ax3_fused_0 * 32) + ((int)threadIdx.x)) % 10) < 9)) {
        condval = x_ptr[(((((((ax0_ax1_ax2_ax3_fused_0 * 8) + (((int)threadIdx.x) >> 2)) / 15) * 32) + (((((ax0_ax1_ax2_ax3_fused_0 * 16) + (((int)threadIdx.x) >> 1)) % 30) / 5) * 8)) + (((ax0_ax1_ax2_ax3_fused_0 * 32) + ((int)threadIdx.x)) % 10)) - 9)];
      } else {
        condval = 0x0p+0f/*0.000000e+00*/;
      }
      pack_shared_ptr[((ax0_ax1_ax2_ax3_fused_0 * 32) + ((int)threadIdx.x))] = condval;
    }
  }
  __syncthreads();
  int x_base = (((((int)threadIdx.x) >> 3) * 10) + (((int)threadIdx.x) & 7));
  float acc = conv_local_ptr_at_0;
  float x = pack_shared_ptr[(x_base + 1)];
  float acc_1 = (acc + (x * 0x1p+1f/*2.000000e+00*/));
  float x_1 = pack_shared_ptr[(x_base + 60)];
  float acc_2 = (acc_1 + (x_1 * -0x1.8p+1f/*-3.000000e+00*/));
  float x_2 = pack_shared_ptr[(x_base + 82)];
  float acc_3 = (acc_2 + (x_2 * 0x1p+2f/*4.000000e+00*/));
  conv_local_ptr_at_0 = acc_3;
  int x_base_1 = (((((int)threadIdx.x) >> 3) * 10) + (((int)threadIdx.x) & 7));
  float acc_4 = conv_local_ptr_at_1;
  float x_3 = pack_shared_ptr[(x_base_1 + 21)];
  float acc_5 = (acc_4 + (x_3 * -0x1.4p+2f/*-5.000000e+00*/));
  float x_4 = pack_shared_ptr[(x_base_1 + 81)];
  float acc_6 = (acc_5 + (x_4 * 0x1.8p+2f/*6.000000e+00*/));
  conv_local_ptr_at_1 = acc_6;
  float condval_1;
  if ((conv_local_ptr_at_0 + bias_ptr[0]) < 0x0p+0f/*0.000000e+00*/) {
    condval_1 = 0x0p+0f/*0.000000e+00*/;
  } else {
    condval_1 = (conv_local_ptr_at_0 + bias_ptr[0]);
  }
  out_ptr[((int)threadIdx.x)] = condval_1;
  float condval_2;
  if ((conv_local_ptr_at_1 + bias_ptr[1]) < 0x0p+0f/*0.000000e+00*/) {
    condval_2 = 0x0p+0f/*0.000000e+00*/;
  } else {
    condval_2 = (conv_local_ptr_at_1 + bias_ptr[1]);
  }
  out_ptr[(((int)threadIdx.x) + 32)] = condval_2;
}
