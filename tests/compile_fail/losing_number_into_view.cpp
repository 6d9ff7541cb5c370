// error: conversion_would_lose_values__use_cast<double, (int|signed int|(std::)?int32_t)>
#include <situ/tensor.hpp>

void misuse(situ::Tensor<int>& a) {
#ifdef SITU_EXPECT_ERROR
  a[0] = 2.5;
#else
  a[0] = 2;
#endif
}
