#pragma once
#ifdef SITU_LINK_SINGLE_HEADER
#include <situ/situ.hpp>
#else
#include <situ/tensor.hpp>
#endif

#include "parts.hpp"

#include <span>

static std::vector<float> compute(const std::vector<float>& values) {
  const situ::Tensor<float> x{std::span<const float>(values), {values.size()}};
  const situ::Tensor<float> y = tanh(x * 2.0f + 1.0f);
  std::vector<float> result = y.to_vector();
  const situ::Tensor<float> square = y * y;
  float squares = 0.0f;
  for (const float each : square.to_vector()) squares += each;
  result.push_back(squares);
  return result;
}
