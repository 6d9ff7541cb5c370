/// Inputs for gradients: leaves of double of a shape, in every layout that memory knows.
#pragma once

#include <cmath>
#include <vector>

#include <situ/autograd.hpp>
#include <situ/autograd/gradcheck.hpp>
#include <situ/device/emulated/device.hpp>

namespace situ_test {

using V = situ::Variable<double>;

/// Numbers between -1 and 1 that look random.
template <class T = double, class D = situ::Cpu>
situ::Tensor<T, D> sample(situ::Shape const& shape, unsigned seed = 1) {
  std::vector<T> values;
  unsigned state = seed * 2654435761u + 12345;
  for (int64_t i = 0; i < situ::detail::product(shape); ++i) {
    state = state * 1664525u + 1013904223u;
    values.push_back(static_cast<T>(static_cast<double>((state >> 8) % 20001u) / 10000 - 1));
  }
  return situ::Tensor<T>(values, shape).to(D{});
}

enum class layout { contiguous, transposed, sliced, flipped, broadcast };
inline constexpr layout all_layouts[] = {layout::contiguous, layout::transposed, layout::sliced, layout::flipped, layout::broadcast};

/// A leaf of this shape, in a layout; shapes without axes are contiguous.
template <class T = double, class D = situ::Cpu>
situ::Variable<T, D> leaf(situ::Shape const& shape, layout how = layout::contiguous, unsigned seed = 1) {
  using situ::Shape;
  int const rank = shape.rank();
  if (rank == 0 || how == layout::contiguous) return situ::Variable<T, D>(sample<T, D>(shape, seed));
  if (how == layout::flipped) return situ::Variable<T, D>(sample<T, D>(shape, seed).flip(rank - 1));
  Shape other = shape;
  if (how == layout::sliced) {
    other[rank - 1] = 2 * shape[rank - 1] + 1;
    return situ::Variable<T, D>(sample<T, D>(other, seed).slice(rank - 1, 1, 2 * shape[rank - 1] + 1, 2));
  }
  if (how == layout::broadcast) {
    other[0] = 1;
    return situ::Variable<T, D>(sample<T, D>(other, seed).expand(shape));
  }
  std::swap(other[0], other[rank - 1]);
  return situ::Variable<T, D>(sample<T, D>(other, seed).transpose(0, rank - 1));
}

/// Numbers of a leaf, between low and high, that finite differences do not carry over a kink: none is closer than 0.005 to a multiple of 0.1.
inline V within(V const& leaf, double low, double high) {
  auto values = leaf.value().to_vector();
  for (double& x : values) {
    x = low + (high - low) * (x + 1) / 2;
    double const tenths = x * 10, fraction = tenths - std::floor(tenths);
    x = (std::floor(tenths) + (fraction < 0.05 ? 0.05 : fraction > 0.95 ? 0.95 : fraction)) / 10;
  }
  return V(situ::detail::laid_out_as(leaf.value(), values));
}


}  // namespace situ_test
