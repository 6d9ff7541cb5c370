// error: conversion_would_lose_values__use_cast<float, (int|signed int|(std::)?int32_t)>
#include <situ/tensor.hpp>

void misuse(situ::Tensor<int>& a, situ::Tensor<float>& b) {
#ifdef SITU_EXPECT_ERROR
  a += b;
#else
  b += a;
#endif
}
