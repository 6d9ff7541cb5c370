/// Drawing indices: randperm, multinomial.
#pragma once

#include <situ/ops/random.hpp>
#include <situ/ops/reduce.hpp>
#include <situ/ops/scan.hpp>
#include <situ/ops/searchsorted.hpp>
#include <situ/ops/sort.hpp>

namespace situ::inline SITU_ABI {

/// The integers 0 .. n-1 in a random order: every order is as likely as another, but for a chance of n^2 / 2^65 that two keys are equal.
///
///     randperm(10)   randperm(10, generator, Cuda<0>{})
///
/// Dtype     int64 unless another type is written.
/// Device    the same permutation on every device; enqueued, not waited for.
/// Throws    ShapeError when n is negative, or n - 1 is beyond an integer type or float16.
/// Cost      that of argsort of n random keys of 64 bits.
template <element T = int64_t, device D = Cpu>
Tensor<T, D> randperm(int64_t n, Generator& generator, D = {}) {
  if (n < 0) detail::fail<ShapeError>("randperm: ", n, " elements were asked for; 0 or more are possible");
  detail::check_holds<T>(0, n - 1, "randperm");
  detail::Draw const draw(generator);
  auto const keys = detail::random_tensor<D>({n}, detail::whole_numbers<int64_t>{draw.stream, INT64_MIN, UINT64_MAX}, "randperm");
  if constexpr (std::is_same_v<T, int64_t>) return argsort(keys);
  else return Tensor<T, D>(cast<T>(argsort(keys)));
}
template <element T = int64_t, device D = Cpu>
Tensor<T, D> randperm(int64_t n, D device = {}) {
  return randperm<T>(n, detail::default_generator(), device);
}

/// Draws a row again after each draw, or not.
struct with_replacement_t {};
inline constexpr with_replacement_t with_replacement{};

namespace detail {

inline void check_multinomial(Shape const& shape, int64_t n, bool replaces) {
  if (shape.rank() != 1 && shape.rank() != 2) fail<ShapeError>("multinomial: the weights have shape ", shape, "; one or two axes are needed");
  int64_t const k = shape.back();
  if (n < 1) fail<ShapeError>("multinomial: ", n, " samples were asked for; at least 1 is needed");
  if (k == 0) fail<ShapeError>("multinomial: the weights have shape ", shape, ": there is nothing to draw from");
  if (!replaces && n > k) fail<ShapeError>("multinomial: ", n, n == 1 ? " sample of " : " samples of ", k, " cannot be drawn without replacement; pass with_replacement");
}

/// Looks at weights that the host can read; to look at others would mean to wait.
template <class D, class E>
void check_weights(E const& weights) {
  if constexpr (host_device<D>) {
    if (weights.size() == 0) return;
    auto const worst = min(where(isfinite(cast<double>(weights)), cast<double>(weights), -std::numeric_limits<double>::infinity())).item();
    if (worst < 0) fail<ShapeError>("multinomial: a weight is negative, infinite or no number; weights are 0 or more");
    if (!all(sum(cast<double>(weights), -1) > 0).item()) fail<ShapeError>("multinomial: all weights of a row are 0; there is nothing to draw from");
  }
}

}  // namespace detail

/// Indices drawn in proportion to weights, each at most once.
///
/// An exponential race: the n largest of log(u_k) / w_k, u uniform in (0, 1], in that order, which is that of log(w_k) - log(-log(u_k)); so the
/// first is drawn in proportion to the weights, the second in proportion to those that are left, and so on (Efraimidis & Spirakis 2006,
/// doi:10.1016/j.ipl.2005.11.003).
///
/// Shape     [k] gives [n], [m, k] gives [m, n]: row by row.
/// Dtype     weights of any type, computed in double; int64 out. They need not add up to 1.
/// Device    runs where the weights live; enqueued, not waited for.
/// Throws    ShapeError for other shapes, n < 1 and n > k; on the host for a negative, infinite or NaN weight and a row of zeros.
/// Special   a weight of 0 is drawn only after all others. On a device, where nobody looks, negative and NaN weights count as 0.
template <class E>
  requires expression<E>
auto multinomial(E const& weights, int64_t n, Generator& generator) {
  detail::check_multinomial(weights.shape(), n, false);
  using D = detail::result_device_t<device_of<E>>;
  detail::check_weights<D>(weights);
  detail::Draw const draw(generator);
  auto const u = detail::random_tensor<D>(weights.shape(), detail::uniform_numbers<double>{draw.stream}, "multinomial");
  return topk(where(weights > 0, log(cast<double>(weights)) - log(-log(1.0 - u)), -std::numeric_limits<double>::infinity()), n, -1).indices;
}
template <class E>
  requires expression<E>
auto multinomial(E const& weights, int64_t n) {
  return multinomial(weights, n, detail::default_generator());
}

/// Indices drawn in proportion to weights, each as often as chance has it: by binary search among the running sums. Weights must not be
/// negative; those of 0 are never drawn. All else as without replacement, but n may exceed k.
/// Special   on a device, where nobody looks, weights that are all 0, or of which one is infinite or NaN, say nothing of how likely each is: what is drawn is some index in [0, k).
template <class E>
  requires expression<E>
auto multinomial(E const& weights, int64_t n, with_replacement_t, Generator& generator) {
  detail::check_multinomial(weights.shape(), n, true);
  using D = detail::result_device_t<device_of<E>>;
  detail::check_weights<D>(weights);
  auto const sums = cumsum(cast<double>(weights) / max(cast<double>(weights), -1, keepdim), -1);  // so scaled they are neither infinite nor subnormal
  int64_t const last = sums.size(-1) - 1;
  auto const total = sums.slice(-1, last, end());
  Shape shape = weights.shape();
  shape[shape.rank() - 1] = n;
  detail::Draw const draw(generator);
  auto const u = detail::random_tensor<D>(shape, detail::uniform_numbers<double>{draw.stream}, "multinomial");
  // The last index is drawn where no sum before it is larger.
  return searchsorted(sums.slice(-1, 0, last), minimum(u * total, total * (1.0 - 2.220446049250313e-16)), right);
}
template <class E>
  requires expression<E>
auto multinomial(E const& weights, int64_t n, with_replacement_t) {
  return multinomial(weights, n, with_replacement, detail::default_generator());
}

}  // namespace situ::inline SITU_ABI
