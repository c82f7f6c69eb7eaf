// folded_cuda:multistage-4x8-pixels1 of n1c3h4w8-k1r3s3-st1x1-p1.1.1.1-d1x1-g1 for {'kind': 'cuda', 'arch': 'sm_90', 'host': {'kind': 'llvm', 'mcpu': 'x86-64-v3'}}
// filters 1, rows 4, images 1, channels 1, pipeline_stages 3, order rotated, blocks_per_sm 1, dependent_launch last_k_tile
extern "C" __global__ void __launch_bounds__(32) main_kernel(float* __restrict__ out_ptr, float* __restrict__ x_ptr) {
  tvm_sparse_grid_dependency_wait();
  float conv_local_ptr_at_0;
  extern __shared__ __align__(64) float pack_shared_dyn_ptr[];
  int fill_ptr_at_0;
  int read_ptr_at_0;
  int left_ptr_at_0;
  int later_ptr_at_0;
  int entry_ptr_at_0;
  uint to = tvm_sparse_shared_address((&(pack_shared_dyn_ptr[(((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) >> 2) * 24) + ((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) & 3) * 4))])));
  int start = ((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) < 24) ? (((((1 <= (((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) >> 2)) && ((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) >> 2) < 5)) && (1 <= (((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) & 3))) && ((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) & 3) < 3)) ? ((((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) >> 2) * 8) + ((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) & 3) * 4)) + -12) : 0) : 0);
  bool inside = ((((1 <= (((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) >> 2)) && ((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) >> 2) < 5)) && (1 <= (((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) & 3))) && ((((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) & 3) < 3));
  bool guard = (((((((int)threadIdx.z) * 4) + ((int)threadIdx.y)) * 8) + ((int)threadIdx.x)) < 24);
  int first = (((int)blockIdx.x) % 3);
  if (guard) {
    tvm_sparse_cp_async_16((to + ((uint)0)), (&(x_ptr[(start + ((first % 3) * 32))])), inside);
  }
  tvm_builtin_ptx_cp_async_commit_group_async_commit_group();
  if (guard) {
    tvm_sparse_cp_async_16((to + ((uint)576)), (&(x_ptr[(start + (((first + 1) % 3) * 32))])), inside);
  }
  tvm_builtin_ptx_cp_async_commit_group_async_commit_group();
  fill_ptr_at_0 = 288;
  read_ptr_at_0 = 0;
  left_ptr_at_0 = 3;
  later_ptr_at_0 = ((first + 2) % 3);
  entry_ptr_at_0 = first;
  conv_local_ptr_at_0 = 0x0p+0f/*0.000000e+00*/;
  for (int turn = 0; turn < 2; ++turn) {
    tvm_sparse_jump_table_enter(((left_ptr_at_0 > 0) ? entry_ptr_at_0 : 3));
    tvm_sparse_jump_table_case(0);
    tvm_builtin_ptx_cp_async_wait_group_async_wait_group_1();
    __syncthreads();
    if (left_ptr_at_0 > 2) {
      if (guard) {
        tvm_sparse_cp_async_16((to + ((uint)(fill_ptr_at_0 * 4))), (&(x_ptr[(start + (later_ptr_at_0 * 32))])), inside);
      }
      tvm_builtin_ptx_cp_async_commit_group_async_commit_group();
      fill_ptr_at_0 = ((fill_ptr_at_0 < 288) ? (fill_ptr_at_0 + 144) : 0);
      later_ptr_at_0 = ((later_ptr_at_0 < 2) ? (later_ptr_at_0 + 1) : 0);
    } else {
      tvm_builtin_ptx_cp_async_commit_group_async_commit_group();
    }
    int x_base = (((((int)threadIdx.y) * 24) + ((int)threadIdx.x)) + read_ptr_at_0);
    float acc = conv_local_ptr_at_0;
    float x = pack_shared_dyn_ptr[(x_base + 4)];
    float acc_1 = (acc + (x * 0x1p+1f/*2.000000e+00*/));
    float x_1 = pack_shared_dyn_ptr[(x_base + 52)];
    float acc_2 = (acc_1 + (x_1 * -0x1.8p+1f/*-3.000000e+00*/));
    conv_local_ptr_at_0 = acc_2;
    read_ptr_at_0 = ((read_ptr_at_0 < 288) ? (read_ptr_at_0 + 144) : 0);
    left_ptr_at_0 = (left_ptr_at_0 - 1);
    tvm_sparse_jump_table_leave((left_ptr_at_0 < 1));
    tvm_sparse_jump_table_case(1);
    tvm_builtin_ptx_cp_async_wait_group_async_wait_group_1();
    __syncthreads();
    if (left_ptr_at_0 > 2) {
      if (guard) {
        tvm_sparse_cp_async_16((to + ((uint)(fill_ptr_at_0 * 4))), (&(x_ptr[(start + (later_ptr_at_0 * 32))])), inside);
      }
      tvm_builtin_ptx_cp_async_commit_group_async_commit_group();
      fill_ptr_at_0 = ((fill_ptr_at_0 < 288) ? (fill_ptr_at_0 + 144) : 0);
      later_ptr_at_0 = ((later_ptr_at_0 < 2) ? (later_ptr_at_0 + 1) : 0);
    } else {
      tvm_builtin_ptx_cp_async_commit_group_async_commit_group();
    }
    int x_base_1 = (((((int)threadIdx.y) * 24) + ((int)threadIdx.x)) + read_ptr_at_0);
    float acc_3 = conv_local_ptr_at_0;
    float x_2 = pack_shared_dyn_ptr[(x_base_1 + 28)];
    float acc_4 = (acc_3 + (x_2 * 0x1p+2f/*4.000000e+00*/));
    conv_local_ptr_at_0 = acc_4;
    read_ptr_at_0 = ((read_ptr_at_0 < 288) ? (read_ptr_at_0 + 144) : 0);
    left_ptr_at_0 = (left_ptr_at_0 - 1);
    tvm_sparse_jump_table_leave((left_ptr_at_0 < 1));
    tvm_sparse_jump_table_case(2);
    tvm_builtin_ptx_cp_async_wait_group_async_wait_group_1();
    __syncthreads();
    if (left_ptr_at_0 > 2) {
      if (guard) {
        tvm_sparse_cp_async_16((to + ((uint)(fill_ptr_at_0 * 4))), (&(x_ptr[(start + (later_ptr_at_0 * 32))])), inside);
      }
      tvm_builtin_ptx_cp_async_commit_group_async_commit_group();
      fill_ptr_at_0 = ((fill_ptr_at_0 < 288) ? (fill_ptr_at_0 + 144) : 0);
      later_ptr_at_0 = ((later_ptr_at_0 < 2) ? (later_ptr_at_0 + 1) : 0);
    } else {
      tvm_builtin_ptx_cp_async_commit_group_async_commit_group();
    }
    int x_base_2 = (((((int)threadIdx.y) * 24) + ((int)threadIdx.x)) + read_ptr_at_0);
    float acc_5 = conv_local_ptr_at_0;
    float x_3 = pack_shared_dyn_ptr[(x_base_2 + 4)];
    float acc_6 = (acc_5 + (x_3 * -0x1.4p+2f/*-5.000000e+00*/));
    float x_4 = pack_shared_dyn_ptr[(x_base_2 + 52)];
    float acc_7 = (acc_6 + (x_4 * 0x1.8p+2f/*6.000000e+00*/));
    conv_local_ptr_at_0 = acc_7;
    read_ptr_at_0 = ((read_ptr_at_0 < 288) ? (read_ptr_at_0 + 144) : 0);
    left_ptr_at_0 = (left_ptr_at_0 - 1);
    tvm_sparse_jump_table_leave((left_ptr_at_0 < 1));
    tvm_sparse_jump_table_end();
    entry_ptr_at_0 = 0;
  }
  tvm_sparse_launch_dependents();
  out_ptr[((((int)threadIdx.y) * 8) + ((int)threadIdx.x))] = conv_local_ptr_at_0;
}
