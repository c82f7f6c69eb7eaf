// What follows the sum.

namespace tvm_sparse {

template <typename Geometry> DEVICE float with_relu(const Geometry& g, float value) {
  if (!g.relu) return value;
  // A plain maximum would give 0 for NaN.
  const float most = BITS_AS_FLOAT(g.relu_max), positive = value < 0.f ? 0.f : value;
  return positive > most ? most : positive;
}

}  // namespace tvm_sparse
