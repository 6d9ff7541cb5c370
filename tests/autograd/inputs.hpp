/// Inputs for gradients: normal numbers.
#pragma once

#include <situ/autograd/variable.hpp>
#include <situ/ops/random.hpp>

namespace situ_test {

inline situ::Tensor<double> numbers(situ::Shape const& shape, uint64_t seed = 1) {
  situ::Generator generator(seed);
  return situ::randn<double>(shape, generator);
}

}  // namespace situ_test
