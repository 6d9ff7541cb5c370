// error: conversion_across_devices_is_explicit__use_to<(situ::)?([a-z0-9_]+::)?Cuda<(\(int\))?0?>, (situ::)?([a-z0-9_]+::)?Cpu ?>
#include <situ/tensor.hpp>

void misuse(situ::Tensor<float, situ::Cpu>& a, void (*f)(situ::Tensor<float, situ::Cuda<0>> const&), void (*g)(situ::Tensor<float> const&)) {
#ifdef SITU_EXPECT_ERROR
  f(a), (void)g;
#else
  g(a), (void)f;
#endif
}
