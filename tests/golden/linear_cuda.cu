// linear_cuda of n2c8h1w1-k4r1s1-st1x1-p0.0.0.0-d1x1-g1-br for {'kind': 'cuda', 'arch': 'sm_90', 'host': {'kind': 'llvm', 'mcpu': 'x86-64-v3'}}
// filters 2
extern "C" __global__ void __launch_bounds__(64) main_kernel(float* __restrict__ bias_ptr, ushort* __restrict__ offsets_ptr, int* __restrict__ rows_ptr, float* __restrict__ values_ptr, float* __restrict__ x_ptr, float* __restrict__ y_ptr) {
  tvm_sparse_grid_dependency_wait();
  extern __shared__ __align__(64) float staged_ptr[];
  float sums_ptr_at_0, sums_ptr_at_1;
  alignas(64) float weight_ptr[4];
  alignas(64) ushort place_ptr[4];
  int at_ptr_at_0, at_ptr_at_1, at_ptr_at_2, at_ptr_at_3;
  alignas(64) float partial_ptr[2];
  float red_buf0_ptr_at_0;
  for (int ax1 = 0; ax1 < 2; ++ax1) {
    if (((((int)threadIdx.y) * 32) + ((int)threadIdx.x)) < 3) {
      float4 condval;
      if (((((int)threadIdx.y) * 16) + (((int)threadIdx.x) >> 1)) < 1) {
        condval = *(float4*)(x_ptr + (((((int)threadIdx.y) * 128) + (ax1 * 8)) + (((int)threadIdx.x) * 4)));
      } else {
        condval = make_float4(0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/, 0x0p+0f/*0.000000e+00*/);
      }
      *(float4*)(staged_ptr + (((((int)threadIdx.y) * 128) + (ax1 * 12)) + (((int)threadIdx.x) * 4))) = condval;
    }
  }
  sums_ptr_at_0 = 0x0p+0f/*0.000000e+00*/;
  sums_ptr_at_1 = 0x0p+0f/*0.000000e+00*/;
  __syncthreads();
  for (int v = 0; v < (((rows_ptr[(((((int)blockIdx.x) * 2) + ((int)threadIdx.y)) + 1)] + 31) - rows_ptr[((((int)blockIdx.x) * 2) + ((int)threadIdx.y))]) >> 5); ++v) {
    *(float4*)(weight_ptr + 0) = *(float4*)(values_ptr + (min((((v * 32) + rows_ptr[((((int)blockIdx.x) * 2) + ((int)threadIdx.y))]) + ((int)threadIdx.x)), (rows_ptr[(((((int)blockIdx.x) * 2) + ((int)threadIdx.y)) + 1)] - 1)) * 4));
    *(ushort4*)(place_ptr + 0) = *(ushort4*)(offsets_ptr + (min((((v * 32) + rows_ptr[((((int)blockIdx.x) * 2) + ((int)threadIdx.y))]) + ((int)threadIdx.x)), (rows_ptr[(((((int)blockIdx.x) * 2) + ((int)threadIdx.y)) + 1)] - 1)) * 4));
    int condval_1;
    if ((((v * 32) + rows_ptr[((((int)blockIdx.x) * 2) + ((int)threadIdx.y))]) + ((int)threadIdx.x)) < rows_ptr[(((((int)blockIdx.x) * 2) + ((int)threadIdx.y)) + 1)]) {
      condval_1 = ((int)place_ptr[0]);
    } else {
      condval_1 = 8;
    }
    at_ptr_at_0 = condval_1;
    sums_ptr_at_0 = (sums_ptr_at_0 + (weight_ptr[0] * staged_ptr[at_ptr_at_0]));
    sums_ptr_at_1 = (sums_ptr_at_1 + (weight_ptr[0] * staged_ptr[(at_ptr_at_0 + 12)]));
    int condval_2;
    if ((((v * 32) + rows_ptr[((((int)blockIdx.x) * 2) + ((int)threadIdx.y))]) + ((int)threadIdx.x)) < rows_ptr[(((((int)blockIdx.x) * 2) + ((int)threadIdx.y)) + 1)]) {
      condval_2 = ((int)place_ptr[1]);
    } else {
      condval_2 = 8;
    }
    at_ptr_at_1 = condval_2;
    sums_ptr_at_0 = (sums_ptr_at_0 + (weight_ptr[1] * staged_ptr[at_ptr_at_1]));
    sums_ptr_at_1 = (sums_ptr_at_1 + (weight_ptr[1] * staged_ptr[(at_ptr_at_1 + 12)]));
    int condval_3;
    if ((((v * 32) + rows_ptr[((((int)blockIdx.x) * 2) + ((int)threadIdx.y))]) + ((int)threadIdx.x)) < rows_ptr[(((((int)blockIdx.x) * 2) + ((int)threadIdx.y)) + 1)]) {
      condval_3 = ((int)place_ptr[2]);
    } else {
      condval_3 = 8;
    }
    at_ptr_at_2 = condval_3;
    sums_ptr_at_0 = (sums_ptr_at_0 + (weight_ptr[2] * staged_ptr[at_ptr_at_2]));
    sums_ptr_at_1 = (sums_ptr_at_1 + (weight_ptr[2] * staged_ptr[(at_ptr_at_2 + 12)]));
    int condval_4;
    if ((((v * 32) + rows_ptr[((((int)blockIdx.x) * 2) + ((int)threadIdx.y))]) + ((int)threadIdx.x)) < rows_ptr[(((((int)blockIdx.x) * 2) + ((int)threadIdx.y)) + 1)]) {
      condval_4 = ((int)place_ptr[3]);
    } else {
      condval_4 = 8;
    }
    at_ptr_at_3 = condval_4;
    sums_ptr_at_0 = (sums_ptr_at_0 + (weight_ptr[3] * staged_ptr[at_ptr_at_3]));
    sums_ptr_at_1 = (sums_ptr_at_1 + (weight_ptr[3] * staged_ptr[(at_ptr_at_3 + 12)]));
  }
  partial_ptr[0] = sums_ptr_at_0;
  partial_ptr[1] = sums_ptr_at_1;
  for (int v_1 = 0; v_1 < 2; ++v_1) {
    float t0_ptr_at_0;
    alignas(64) uint mask_ptr[1];
    red_buf0_ptr_at_0 = partial_ptr[v_1];
    mask_ptr[0] = __activemask();
    t0_ptr_at_0 = __shfl_down_sync(mask_ptr[0], red_buf0_ptr_at_0, 16, 32);
    red_buf0_ptr_at_0 = (red_buf0_ptr_at_0 + t0_ptr_at_0);
    t0_ptr_at_0 = __shfl_down_sync(mask_ptr[0], red_buf0_ptr_at_0, 8, 32);
    red_buf0_ptr_at_0 = (red_buf0_ptr_at_0 + t0_ptr_at_0);
    t0_ptr_at_0 = __shfl_down_sync(mask_ptr[0], red_buf0_ptr_at_0, 4, 32);
    red_buf0_ptr_at_0 = (red_buf0_ptr_at_0 + t0_ptr_at_0);
    t0_ptr_at_0 = __shfl_down_sync(mask_ptr[0], red_buf0_ptr_at_0, 2, 32);
    red_buf0_ptr_at_0 = (red_buf0_ptr_at_0 + t0_ptr_at_0);
    t0_ptr_at_0 = __shfl_down_sync(mask_ptr[0], red_buf0_ptr_at_0, 1, 32);
    red_buf0_ptr_at_0 = (red_buf0_ptr_at_0 + t0_ptr_at_0);
    red_buf0_ptr_at_0 = __shfl_sync(mask_ptr[0], red_buf0_ptr_at_0, (32 * ((int)threadIdx.y)), 32);
    red_buf0_ptr_at_0 = red_buf0_ptr_at_0;
    if (((int)threadIdx.x) == 0) {
      float condval_5;
      if ((red_buf0_ptr_at_0 + bias_ptr[((((int)blockIdx.x) * 2) + ((int)threadIdx.y))]) < 0x0p+0f/*0.000000e+00*/) {
        condval_5 = 0x0p+0f/*0.000000e+00*/;
      } else {
        condval_5 = (red_buf0_ptr_at_0 + bias_ptr[((((int)blockIdx.x) * 2) + ((int)threadIdx.y))]);
      }
      y_ptr[(((v_1 * 4) + (((int)blockIdx.x) * 2)) + ((int)threadIdx.y))] = condval_5;
    }
  }
}
