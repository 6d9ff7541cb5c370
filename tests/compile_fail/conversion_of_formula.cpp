// error: conversion_across_devices_is_explicit__use_to<(situ::)?([a-z0-9_]+::)?Cpu, (situ::)?([a-z0-9_]+::)?Emulated<(\(int\))?0?> ?>
#include <situ/tensor.hpp>

void misuse(situ::Tensor<float, situ::Emulated<0>>& a) {
#ifdef SITU_EXPECT_ERROR
  situ::Tensor<float> c = a * 2;
#else
  situ::Tensor<float> c{a * 2};
#endif
  (void)c;
}
