/// Inputs for gradients of rows: normal numbers, and the same numbers in several layouts.
#pragma once

#include <vector>

#include <situ/autograd/variable.hpp>
#include <situ/ops/random.hpp>

namespace situ_test {

inline situ::Tensor<double> numbers(situ::Shape const& shape, uint64_t seed = 1) {
  situ::Generator generator(seed);
  return situ::randn<double>(shape, generator);
}

/// x as a leaf: contiguous, transposed, every other column, flipped.
inline std::vector<situ::Variable<double>> layouts(situ::Tensor<double> const& x) {
  std::vector<situ::Variable<double>> result;
  result.emplace_back(x.clone());
  result.emplace_back(x.transpose(0, -1).clone().transpose(0, -1));
  situ::Shape wide = x.shape();
  wide[x.rank() - 1] *= 2;
  auto every_other = situ::zeros<double>(wide).slice(-1, 0, situ::end(), 2);
  every_other.assign(x);
  result.emplace_back(every_other);
  result.emplace_back(x.flip(0).clone().flip(0));
  return result;
}

}  // namespace situ_test
