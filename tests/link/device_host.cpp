#include "device_parts.hpp"

#include <situ/device/query.hpp>
#include <situ/device/stream.hpp>
#include <situ/io/npy.hpp>
#include <situ/tensor.hpp>

#include <span>

namespace {

using namespace situ;

template <class D>
Matrix<D> sent(std::vector<float> const& values, long rows, bool pinned) {
  Tensor<float> const x{std::span<float const>(values), {rows, static_cast<long>(values.size()) / rows}};
  if (pinned) return pin(x).to_async(D{});
  Matrix<D> moved = x.to(D{});
  Matrix<D> const shared = moved;  // a handle
  return shared.use_count() == 2 ? std::move(moved) : Matrix<D>{};
}

template <class D>
std::vector<float> saved(Matrix<D> const& x, std::string const& path) {
  io::save_npy(path, x);
  return io::load_npy<float>(path).to_vector();
}

template <class D>
Matrix<D> elsewhere(Matrix<D> const& x) {
  Stream<D> const stream;
  StreamGuard const guard{stream};
  return computed_by_nvcc(x);
}

}  // namespace

#define SITU_DEFINE_BY_HOST(D)                                                                                                       \
  Matrix<D> sent_by_host(std::vector<float> const& values, long rows, D) { return sent<D>(values, rows, false); }                    \
  Matrix<D> sent_through_pinned_memory(std::vector<float> const& values, long rows, D) { return sent<D>(values, rows, true); }       \
  std::vector<float> fetched_by_host(Matrix<D> const& x) { return x.cpu().to_vector(); }                                             \
  std::string printed_by_host(Matrix<D> const& x) { return to_string(x); }                                                           \
  std::vector<float> saved_by_host(Matrix<D> const& x, std::string const& path) { return saved(x, path); }                           \
  long memory_seen_by_host(D device) { return static_cast<long>(gpu::memory_allocated(device)); }                                    \
  void* stream_seen_by_host(D) { return Stream<D>::current().native(); }                                                             \
  Matrix<D> computed_on_another_stream(Matrix<D> const& x) { return elsewhere(x); }

SITU_DEFINE_BY_HOST(situ::Emulated<0>)
SITU_DEFINE_BY_HOST(situ::Cuda<0>)
