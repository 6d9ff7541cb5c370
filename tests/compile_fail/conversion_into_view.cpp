// error: conversion_across_devices_is_explicit__use_to<(situ::)?([a-z0-9_]+::)?Cpu, (situ::)?([a-z0-9_]+::)?Emulated<(\(int\))?0?> ?>
#include <situ/tensor.hpp>

void misuse(situ::Tensor<float, situ::Cpu>& a, situ::Tensor<float, situ::Emulated<0>>& b) {
#ifdef SITU_EXPECT_ERROR
  a[0] = b;
#else
  a[0] = a[1], (void)b;
#endif
}
