// error: conversion_would_lose_values__use_cast<float, (int|signed int|(std::)?int32_t)>
#include <situ/tensor.hpp>

void misuse(situ::Tensor<float>& a) {
#ifdef SITU_EXPECT_ERROR
  situ::Tensor<std::int32_t> i = a * 2;
#else
  situ::Tensor<std::int32_t> i = situ::cast<std::int32_t>(a * 2);
#endif
  (void)i;
}
