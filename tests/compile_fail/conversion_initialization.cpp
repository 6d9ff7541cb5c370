// error: conversion_across_devices_is_explicit__use_to<(situ::)?([a-z0-9_]+::)?Cuda<(\(int\))?0?>, (situ::)?([a-z0-9_]+::)?Cpu ?>
#include <situ/tensor.hpp>

void misuse(situ::Tensor<float>& a) {
#ifdef SITU_EXPECT_ERROR
  situ::Tensor<float, situ::Cuda<0>> g = a;
#else
  situ::Tensor<float> g = a;
#endif
  (void)g;
}
