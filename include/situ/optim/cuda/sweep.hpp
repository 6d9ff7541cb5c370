/// A GPU's sweeps: a block takes a chunk, a thread 16 bytes of the widest operand at a time.
#pragma once

#include <situ/optim/sweep.hpp>

#if defined(__CUDACC__)

#include <situ/device/cuda/device.hpp>
#include <situ/expr/cuda/evaluate.hpp>
#include <situ/ops/cuda/teams.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cuda {

/// N neighbours of each operand in registers; lane j is a cell.
template <class T, int N>
struct HeldSpan {
  using C = compute_t<T>;
  Lanes<T, N> p, g;
  Lanes<C, N> states[sweep_states], master;

  template <class X>
  SITU_DEVICE __forceinline__ static void load(Lanes<X, N>& lanes, void const* data, int64_t first, int count, bool whole) {
    if (!data) return;
    X const* const from = static_cast<X const*>(data) + first;
    if (whole) lanes.load(from);
    else lanes.load_each(from, 1, count);
  }
  template <class X>
  SITU_DEVICE __forceinline__ static void store(Lanes<X, N> const& lanes, void* data, int64_t first, int count, bool whole) {
    if (!data) return;
    X* const to = static_cast<X*>(data) + first;
    if (whole) lanes.store(to);
    else lanes.store_each(to, 1, count);
  }
  SITU_DEVICE __forceinline__ void load(Span const& span, int64_t first, int count, bool whole) {
    load(p, span.data[sweep_parameter], first, count, whole);
    load(g, span.data[sweep_gradient], first, count, whole);
#pragma unroll
    for (int k = 0; k < sweep_states; ++k) load(states[k], span.data[sweep_state + k], first, count, whole);
    if constexpr (!std::is_same_v<T, C>) load(master, span.data[sweep_master], first, count, whole);
  }
  SITU_DEVICE __forceinline__ void store(Span const& span, int64_t first, int count, bool whole) const {
    store(p, span.data[sweep_parameter], first, count, whole);
#pragma unroll
    for (int k = 0; k < sweep_states; ++k) store(states[k], span.data[sweep_state + k], first, count, whole);
    if constexpr (!std::is_same_v<T, C>) store(master, span.data[sweep_master], first, count, whole);
  }
};

/// Sets lane j, whatever it was.
template <class X, int N>
SITU_DEVICE __forceinline__ void set_lane(Lanes<X, N>& lanes, int j, word_of<X> bits) {
  if constexpr (sizeof(X) == 2) lanes.words[j / 2] &= j % 2 ? 0xffffu : 0xffff0000u;
  lanes.insert(j, bits);
}

template <class T, int N>
struct LaneCell {
  using C = compute_t<T>;
  using number = C;
  HeldSpan<T, N>& held;
  int j;
  bool has_master;
  SITU_DEVICE __forceinline__ C parameter() const {
    if constexpr (!std::is_same_v<T, C>) {
      if (has_master) return from_word<C>(held.master.bits(j));
    }
    return from_word<T>(held.p.bits(j));
  }
  SITU_DEVICE __forceinline__ C gradient() const { return from_word<T>(held.g.bits(j)); }
  SITU_DEVICE __forceinline__ C state(int k) const { return from_word<C>(held.states[k].bits(j)); }
  SITU_DEVICE __forceinline__ void set_parameter(C x) const {
    set_lane<T, N>(held.p, j, to_word<T>(x));
    if constexpr (!std::is_same_v<T, C>) set_lane<C, N>(held.master, j, to_word<C>(x));
  }
  SITU_DEVICE __forceinline__ void set_state(int k, C x) const { set_lane<C, N>(held.states[k], j, to_word<C>(x)); }
};

/// The tensor that a chunk belongs to, and the number of its first chunk.
SITU_DEVICE __forceinline__ int span_of(Spans const& spans, int64_t chunk, int64_t& begin) {
  int low = 0, high = spans.count - 1;
#pragma unroll 1
  while (low < high) {
    int const middle = (low + high) / 2;
    if (spans.all[middle].end > chunk) high = middle;
    else low = middle + 1;
  }
  begin = low > 0 ? spans.all[low - 1].end : 0;
  return low;
}

template <class Rule>
__global__ void __launch_bounds__(block_threads) sweep_kernel(const __grid_constant__ Sweep<Rule> sweep) {
  using T = typename Rule::element;
  constexpr int N = 16 / static_cast<int>(sizeof(compute_t<T>)), rounds = static_cast<int>(sweep_chunk) / (block_threads * N);
  static_assert(rounds * block_threads * N == sweep_chunk);
  Rule rule = sweep.rule;
  if constexpr (requires { rule.begin(); }) {
    if (!rule.begin()) return;
  }
  int64_t begin;
  Span const& span = sweep.spans.all[span_of(sweep.spans, blockIdx.x, begin)];
  int64_t first = (static_cast<int64_t>(blockIdx.x) - begin) * sweep_chunk + static_cast<int>(threadIdx.x) * N;
#pragma unroll 1
  for (int r = 0; r < rounds; ++r, first += block_threads * N) {
    int64_t const left = span.size - first;
    if (left <= 0) return;
    int const count = left < N ? static_cast<int>(left) : N;
    bool const whole = sweep.spans.vectors && count == N;
    HeldSpan<T, N> held;
    held.load(span, first, count, whole);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      LaneCell<T, N> const cell{held, j, span.data[sweep_master] != nullptr};
      rule(cell);
    }
    held.store(span, first, count, whole);
  }
}

struct PartsJoined {
  double p;
  SITU_DEVICE double operator()(double a, double b) const { return joined_parts(a, b, p); }
};

template <class T>
__global__ void __launch_bounds__(block_threads) norm_parts_kernel(const __grid_constant__ NormParts<T> work) {
  using C = compute_t<T>;
  constexpr int N = 16 / static_cast<int>(sizeof(C)), rounds = static_cast<int>(sweep_chunk) / (block_threads * N);
  int64_t begin;
  Span const& span = work.spans.all[span_of(work.spans, blockIdx.x, begin)];
  int64_t const first = (static_cast<int64_t>(blockIdx.x) - begin) * sweep_chunk + static_cast<int>(threadIdx.x) * N;
  T const* const data = static_cast<T const*>(span.data[sweep_parameter]);
  Lanes<T, N> lanes[rounds];
#pragma unroll
  for (int r = 0; r < rounds; ++r) {
    int64_t const at = first + r * (block_threads * N), left = span.size - at;
    if (left >= N && work.spans.vectors) lanes[r].load(data + at);
    else lanes[r].load_each(data + at, 1, left >= N ? N : left > 0 ? static_cast<int>(left) : 0);
  }
  double total = 0;
  if (work.p == 2) {
    C sum = 0;
#pragma unroll
    for (int k = 0; k < rounds * N; ++k) {
      C const x = from_word<T>(lanes[k / N].bits(k % N));
      sum += x * x;
    }
    total = static_cast<double>(sum);
  } else {
#pragma unroll 1
    for (int r = 0; r < rounds; ++r) {
#pragma unroll
      for (int j = 0; j < N; ++j) {
        double const x = math::abs(static_cast<double>(from_word<T>(lanes[r].bits(j))));
        total = joined_parts(total, work.p == 1 || work.p >= greatest_norm ? x : x == 0 ? 0. : ::pow(x, work.p), work.p);
      }
    }
  }
  total = join_team<false>(Teams{block_threads, true}, total, PartsJoined{work.p});
  if (threadIdx.x == 0) work.parts[blockIdx.x] = total;
}

template <class T>
__global__ void __launch_bounds__(block_threads) norms_joined_kernel(const __grid_constant__ NormsJoined<T> work) {
  double total = 0;
#pragma unroll 1
  for (int64_t k = threadIdx.x; k < work.count; k += block_threads) total = joined_parts(total, work.parts[k], work.p);
  total = join_team<false>(Teams{block_threads, true}, total, PartsJoined{work.p});
  if (threadIdx.x == 0) write_norm(work, total);
}

}  // namespace detail::cuda

namespace detail {
inline namespace SITU_ABI_COMPILER {

template <class D, class Rule>
void launch_sweep(cuda_kernels, Sweep<Rule> const& sweep) {
  cuda::launch(device_traits<D>::ordinal, sweep.operation, cuda::sweep_kernel<Rule>, dim3(static_cast<unsigned>(sweep.spans.chunks())), cuda::block_threads, sweep);
}
template <class D, class T>
void launch_sweep(cuda_kernels, NormParts<T> const& work) {
  cuda::launch(device_traits<D>::ordinal, work.operation, cuda::norm_parts_kernel<T>, dim3(static_cast<unsigned>(work.spans.chunks())), cuda::block_threads, work);
}
template <class D, class T>
void launch_sweep(cuda_kernels, NormsJoined<T> const& work) {
  cuda::launch(device_traits<D>::ordinal, work.operation, cuda::norms_joined_kernel<T>, dim3(1), cuda::block_threads, work);
}

}  // namespace SITU_ABI_COMPILER
}  // namespace detail
}  // namespace situ::inline SITU_ABI

#else

#include <situ/expr/evaluate.hpp>

namespace situ::inline SITU_ABI {
namespace detail {
inline namespace SITU_ABI_COMPILER {
template <class D, class Work>
void launch_sweep(cuda_kernels, Work const&) {
  static_assert(compiled_by_nvcc<Work>, "situ: optimizing_on_Cuda_needs_nvcc: this file is not compiled by nvcc; name it .cu, or move the model to the host");
}
}  // namespace SITU_ABI_COMPILER
}  // namespace detail
}  // namespace situ::inline SITU_ABI

#endif
