// error: conversion_would_lose_values__use_cast<float, int(32_t|32_t)?>
// error(g++): conversion_would_lose_values__use_cast<float, int>
// error(clang): conversion_would_lose_values__use_cast<float, int>
// error(nvcc): conversion_would_lose_values__use_cast<float, (signed )?(int|int32_t|std::int32_t)>
#include <situ/tensor.hpp>

void misuse(situ::Tensor<float>& a) {
#ifdef SITU_EXPECT_ERROR
  situ::Tensor<std::int32_t> i = a * 2;
#else
  situ::Tensor<std::int32_t> i = situ::cast<std::int32_t>(a * 2);
#endif
  (void)i;
}
