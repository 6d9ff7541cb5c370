// A file of the host and one of nvcc that work on the same tensors of a device: what each of them offers to the other.
#pragma once

#include <situ/device/cuda/device.hpp>
#include <situ/device/emulated/device.hpp>
#include <situ/tensor/tensor.hpp>

#include <string>
#include <vector>

#define SITU_EXPORT __attribute__((visibility("default")))

template <class D>
using Matrix = situ::Tensor<float, D>;

// What a host compiler can do with SITU_WITH_CUDA: hold, move, transfer, print, save.
#define SITU_BY_HOST(D)                                                                       \
  SITU_EXPORT Matrix<D> sent_by_host(std::vector<float> const& values, long rows, D);         \
  SITU_EXPORT Matrix<D> sent_through_pinned_memory(std::vector<float> const& values, long rows, D); \
  SITU_EXPORT std::vector<float> fetched_by_host(Matrix<D> const& x);                         \
  SITU_EXPORT std::string printed_by_host(Matrix<D> const& x);                                \
  SITU_EXPORT std::vector<float> saved_by_host(Matrix<D> const& x, std::string const& path);  \
  SITU_EXPORT long memory_seen_by_host(D);                                                    \
  SITU_EXPORT void* stream_seen_by_host(D);                                                   \
  SITU_EXPORT Matrix<D> computed_on_another_stream(Matrix<D> const& x);
// What needs nvcc, where the device is a GPU: evaluate. It sees the same memory, streams and errors.
#define SITU_BY_NVCC(D)                                          \
  SITU_EXPORT Matrix<D> computed_by_nvcc(Matrix<D> const& x);    \
  SITU_EXPORT Matrix<D> made_by_nvcc(long rows, long columns, D); \
  SITU_EXPORT long memory_seen_by_nvcc(D);                       \
  SITU_EXPORT void* stream_seen_by_nvcc(D);

SITU_BY_HOST(situ::Emulated<0>)
SITU_BY_HOST(situ::Cuda<0>)
SITU_BY_NVCC(situ::Emulated<0>)
SITU_BY_NVCC(situ::Cuda<0>)
