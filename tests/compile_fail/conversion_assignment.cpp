// error: conversion_across_devices_is_explicit__use_to<(situ::)?([a-z0-9_]+::)?Cuda<(\(int\))?0?>, (situ::)?([a-z0-9_]+::)?Cpu ?>
#include <situ/tensor.hpp>

void misuse(situ::Tensor<float, situ::Cpu>& a, situ::Tensor<float, situ::Cuda<0>>& b) {
#ifdef SITU_EXPECT_ERROR
  b = a;
#else
  b = b, (void)a;
#endif
}
