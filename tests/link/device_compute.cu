#include "device_parts.hpp"

#include <situ/device/query.hpp>
#include <situ/device/stream.hpp>
#include <situ/tensor.hpp>

using namespace situ;

#define SITU_DEFINE_BY_NVCC(D)                                                                     \
  Matrix<D> computed_by_nvcc(Matrix<D> const& x) { return tanh(x * 2 + 1); }                       \
  Matrix<D> made_by_nvcc(long rows, long columns, D device) { return arange(rows * columns, device).view({rows, columns}); } \
  long memory_seen_by_nvcc(D device) { return static_cast<long>(gpu::memory_allocated(device)); }  \
  void* stream_seen_by_nvcc(D) { return Stream<D>::current().native(); }

SITU_DEFINE_BY_NVCC(situ::Emulated<0>)
SITU_DEFINE_BY_NVCC(situ::Cuda<0>)
