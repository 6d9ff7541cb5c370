// error: conversion_would_lose_values__use_cast<double, float>
#include <situ/tensor.hpp>

void misuse(situ::Tensor<float>& a, situ::Tensor<double>& b) {
#ifdef SITU_EXPECT_ERROR
  a = b;
#else
  b = a;
#endif
}
