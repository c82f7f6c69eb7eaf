// csr_cuda:pixels2 of n1c2h4w8-k2r3s3-st1x1-p1.1.1.1-d1x1-g1 for {'kind': 'cuda', 'arch': 'sm_90', 'host': {'kind': 'llvm', 'mcpu': 'x86-64-v3'}}
// by default
extern "C" __global__ void __launch_bounds__(256) main_kernel(float* __restrict__ packed_ptr, float* __restrict__ x_ptr) {
  tvm_sparse_grid_dependency_wait();
  if (((int)threadIdx.x) < 120) {
    float condval;
    if ((((10 <= (((int)threadIdx.x) % 60)) && ((((int)threadIdx.x) % 60) < 50)) && (1 <= (((int)threadIdx.x) % 10))) && ((((int)threadIdx.x) % 10) < 9)) {
      condval = x_ptr[(((((((int)threadIdx.x) / 60) * 32) + (((((int)threadIdx.x) % 60) / 10) * 8)) + (((int)threadIdx.x) % 10)) - 9)];
    } else {
      condval = 0x0p+0f/*0.000000e+00*/;
    }
    packed_ptr[((int)threadIdx.x)] = condval;
  }
}

extern "C" __global__ void __launch_bounds__(128) main_kernel_1(int* __restrict__ offsets_ptr, float* __restrict__ packed_ptr, int* __restrict__ rows_ptr, float* __restrict__ values_ptr, float* __restrict__ y_ptr) {
  tvm_sparse_grid_dependency_wait();
  float acc_ptr_at_0, acc_ptr_at_1;
  if (((int)threadIdx.x) < 16) {
    acc_ptr_at_0 = 0x0p+0f/*0.000000e+00*/;
    acc_ptr_at_1 = 0x0p+0f/*0.000000e+00*/;
    for (int v = 0; v < (rows_ptr[(((int)threadIdx.y) + 1)] - rows_ptr[((int)threadIdx.y)]); ++v) {
      acc_ptr_at_0 = (acc_ptr_at_0 + (values_ptr[(v + rows_ptr[((int)threadIdx.y)])] * packed_ptr[((((((int)threadIdx.x) >> 3) * 20) + offsets_ptr[(v + rows_ptr[((int)threadIdx.y)])]) + (((int)threadIdx.x) & 7))]));
      acc_ptr_at_1 = (acc_ptr_at_1 + (values_ptr[(v + rows_ptr[((int)threadIdx.y)])] * packed_ptr[(((((((int)threadIdx.x) >> 3) * 20) + offsets_ptr[(v + rows_ptr[((int)threadIdx.y)])]) + (((int)threadIdx.x) & 7)) + 10)]));
    }
    y_ptr[(((((int)threadIdx.y) * 32) + ((((int)threadIdx.x) >> 3) * 16)) + (((int)threadIdx.x) & 7))] = acc_ptr_at_0;
    y_ptr[((((((int)threadIdx.y) * 32) + ((((int)threadIdx.x) >> 3) * 16)) + (((int)threadIdx.x) & 7)) + 8)] = acc_ptr_at_1;
  }
}
