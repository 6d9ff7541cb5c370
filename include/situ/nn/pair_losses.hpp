/// Losses of pairs of elements: mse_loss, l1_loss, smooth_l1_loss, binary_cross_entropy_with_logits, kl_div.
///
/// Shape     x and y alike, of any shape; the result is [] or, for reduction::none, their shape. Nothing is broadcast: that is a mistake more often
///           than not, and expand() says it aloud.
/// Dtype     x floating; y is taken in the type of x, which must hold its values (cast it else). 16-bit floats are computed in float; sums are in double.
/// Device    runs where x lives; enqueued, not waited for.
/// Throws    ShapeError where shapes differ.
/// Special   the mean of nothing is NaN.
/// Cost      one pass over x and y in each direction, one launch (two for many elements). A formula in the place of x or y is a part of that
///           pass for mse_loss and l1_loss, else it is evaluated first.
/// Gradient  of x and of y; each is made only where it is wanted.
#pragma once

#include <situ/autograd/operands.hpp>
#include <situ/nn/cpu/pair_losses.hpp>
#include <situ/tensor/factories.hpp>
#if defined(__CUDACC__)
#include <situ/nn/cuda/pair_losses.hpp>
#endif

namespace situ::inline SITU_ABI {

/// The options of mse_loss and l1_loss.
struct loss_options {
  situ::reduction reduction = situ::reduction::mean;
};
struct smooth_l1_options {
  situ::reduction reduction = situ::reduction::mean;
  double beta = 1;  ///< where the parabola ends; 0: nowhere
};
struct kl_div_options {
  situ::reduction reduction = situ::reduction::mean;
  bool log_target = false;  ///< the target holds logarithms, too
};
template <element T, device D>
struct binary_cross_entropy_options {
  Tensor<T, D> weight = {};  ///< of each loss; broadcasts to the shape of x
  situ::reduction reduction = situ::reduction::mean;
  Tensor<T, D> pos_weight = {};  ///< of the positive share of each target; broadcasts, too
};

namespace detail {

#if !defined(__CUDACC__)
inline namespace SITU_ABI_COMPILER {
template <class D, class Kind, class P>
void launch_pair_loss(cuda_kernels, P const&) {
  static_assert(compiled_by_nvcc<P>, "situ: losses_on_Cuda_need_nvcc: this file is not compiled by nvcc; name it .cu, or move the tensors to the host");
}
template <class D, class Kind, class P, class T>
void launch_pair_gradient(cuda_kernels, P const&, T const*, T*, T*) {
  static_assert(compiled_by_nvcc<P>, "situ: losses_on_Cuda_need_nvcc: this file is not compiled by nvcc; name it .cu, or move the tensors to the host");
}
}  // namespace SITU_ABI_COMPILER
#endif

SITU_NOINLINE inline void check_pair_shapes(Shape const& x, Shape const& y, char const* who) {
  if (SITU_LIKELY(x == y)) return;
  fail<ShapeError>(who, ": shapes ", x, " and ", y, " differ; a loss broadcasts nothing: expand() or reshape() one of them");
}

SITU_NOINLINE inline void check_pair_factor(Shape const& factor, Shape const& x, char const* what, char const* who) {
  bool fits = factor.rank() <= x.rank();
  for (int k = 1; fits && k <= factor.rank(); ++k) fits = factor[factor.rank() - k] == 1 || factor[factor.rank() - k] == x[x.rank() - k];
  if (!fits) fail<ShapeError>(who, ": a ", what, " of shape ", factor, " does not broadcast to inputs of shape ", x);
}

/// A loss of pairs: what its kernels need, and its gradients.
template <class Kind, class T, class D, class DX, class DY>
struct PairLoss {
  using twice = on_lanes;
  SavedConstant<T, D> a, b;  // of the shape of x, or empty
  double parameter;
  reduction how;
  Saved<T, DX> x;
  Saved<T, DY> y;

  PairProgram<T> program(Tensor<T, DX> const& xs, Tensor<T, DY> const& ys) const {
    PairProgram<T> p{};
    p.x = xs.data(), p.y = ys.data();
    p.a = a.tensor().body() ? a.tensor().data() : nullptr;
    p.b = b.tensor().body() ? b.tensor().data() : nullptr;
    p.count = xs.size(), p.parameter = parameter, p.how = how;
    p.divisor = loss_divisor(how, static_cast<double>(p.count), xs.rank() > 0 ? static_cast<double>(xs.shape()[0]) : 1.0);
    return p;
  }
  Tensor<T, D> value(Tensor<T, DX> const& given_x, Tensor<T, DY> const& given_y) const {
    check_pair_shapes(given_x.shape(), given_y.shape(), Kind::name);
    auto result = Tensor<T, D>::uninitialized(how == reduction::none ? given_x.shape() : Shape{}, Kind::name);
    if (result.size() == 0) return result;
    auto const xs = given_x.contiguous();
    auto const ys = given_y.contiguous();
    PairProgram<T> p = program(xs, ys);
    p.losses = result.data();
    launch_pair_loss<D, Kind>(typename device_traits<D>::kernels{}, p);
    return result;
  }
  template <class IntoX, class IntoY>
  void operator()(Tensor<T, D> const& g, IntoX const& into_x, IntoY const& into_y) const {
    bool const wants_x = into_x.needed(), wants_y = into_y.needed();
    if (!wants_x && !wants_y) return;
    auto const xs = x.tensor().contiguous();
    auto const ys = y.tensor().contiguous();
    Tensor<T, D> dx, dy;
    if (wants_x) dx = Tensor<T, D>::uninitialized(xs.shape(), Kind::name);
    if (wants_y) dy = Tensor<T, D>::uninitialized(xs.shape(), Kind::name);
    if (xs.size() > 0) {
      Tensor<T, D> const slopes = g.contiguous();
      launch_pair_gradient<D, Kind>(typename device_traits<D>::kernels{}, program(xs, ys), slopes.data(), wants_x ? dx.data() : nullptr, wants_y ? dy.data() : nullptr);
    }
    if (wants_x) into_x.add(dx);
    if (wants_y) into_y.add(dy);
  }
  /// With history.
  template <class G, class IntoX, class IntoY>
    requires has_history<G>
  [[gnu::cold]] SITU_NOINLINE void operator()(G const& g, IntoX const& into_x, IntoY const& into_y) const {
    using C = compute_t<T>;
    using L = Lane<C, D>;
    auto const factor = [](SavedConstant<T, D> const& given, double number) { return given.tensor().body() ? lane_of<C>(given.tensor()) : L(static_cast<C>(number)); };
    PairProgram<T> const p = program(x.tensor(), y.tensor());
    L const xs = L::of(x.variable()), ys = L::of(y.variable()), slope = lane_of<C>(g) * L(static_cast<C>(1 / p.divisor));
    L dx(C(0)), dy(C(0));
    Kind::slopes(xs, ys, factor(a, parameter), factor(b, 1), dx, dy);
    if (into_x.needed()) add_lane<G>(dx * slope, xs.shape(), into_x);
    if (into_y.needed()) add_lane<G>(dy * slope, xs.shape(), into_y);
  }
};

template <class X, class Y>
concept loss_pair = any_formula<X> && floating<value_of<X>> && any_formula<Y> && on_same_device<X, Y>;
template <class X, class Y>
concept pair_apart = any_formula<X> && any_formula<Y> && !on_same_device<X, Y>;

template <class Kind, class X, class Y, class T = value_of<X>, class D = result_device_t<device_of<X>>>
auto pair_loss(X const& given_x, Y const& given_y, reduction how, double parameter = 1, Tensor<T, D> const& a = {}, Tensor<T, D> const& b = {}) {
  auto const x = operation_input<T>(given_x);
  auto const y = operation_input<T>(given_y);
  auto const expanded = [&](Tensor<T, D> const& t, char const* what) {
    if (!t.body()) return t;
    check_pair_factor(t.shape(), x.shape(), what, Kind::name);
    return t.expand(x.shape()).contiguous();
  };
  PairLoss<Kind, T, D, device_of<decltype(x)>, device_of<decltype(y)>> loss{SavedConstant<T, D>(expanded(a, "weight")), SavedConstant<T, D>(expanded(b, "pos_weight")), parameter, how, {}, {}};
  Tensor<T, D> value = loss.value(x.value(), y.value());
  if constexpr (differentiable<X> || differentiable<Y>) {
    if (!is_recording(x, y)) return Variable<T, D>(std::move(value), false);
    loss.x = saved_input(x), loss.y = saved_input(y);
    return record(Kind::node, std::move(value), std::move(loss), x, y);
  } else {
    return value;
  }
}

/// Whether an operand stands in memory already.
template <class E>
inline constexpr bool is_stored = false;
template <class T, class D>
inline constexpr bool is_stored<Tensor<T, D>> = true;
template <class T, class D>
inline constexpr bool is_stored<Variable<T, D>> = true;
/// Formulas whose loss is a formula, too: one pass reads what both are made of.
template <class X, class Y>
concept fused_pair = !(is_stored<X> && is_stored<Y>) && std::is_same_v<value_of<X>, value_of<Y>> && std::is_same_v<compute_t<value_of<X>>, value_of<X>>;

template <class E>
auto reduced_loss(E const& losses, reduction how) {
  using Result = std::conditional_t<differentiable<E>, Variable<value_of<E>, result_device_t<device_of<E>>>, Tensor<value_of<E>, result_device_t<device_of<E>>>>;
  if (how == reduction::none) return Result(losses);
  if (how == reduction::mean) return Result(mean(losses));
  if (how == reduction::sum || losses.rank() == 0) return Result(sum(losses));
  return Result(sum(losses) / static_cast<value_of<E>>(losses.shape()[0]));
}

}  // namespace detail

/// The squared error (x - y)². Gradient: 2 g (x - y).
template <class X, class Y>
  requires detail::loss_pair<X, Y>
auto mse_loss(X const& x, Y const& y, loss_options const& options = {}) {
  if constexpr (detail::fused_pair<X, Y>) {
    detail::check_pair_shapes(x.shape(), y.shape(), "mse_loss");
    return detail::reduced_loss(square(x - y), options.reduction);
  } else {
    return detail::pair_loss<detail::losses::mse>(x, y, options.reduction);
  }
}
/// The absolute error |x - y|. Gradient: g sign(x - y).
template <class X, class Y>
  requires detail::loss_pair<X, Y>
auto l1_loss(X const& x, Y const& y, loss_options const& options = {}) {
  if constexpr (detail::fused_pair<X, Y>) {
    detail::check_pair_shapes(x.shape(), y.shape(), "l1_loss");
    return detail::reduced_loss(abs(x - y), options.reduction);
  } else {
    return detail::pair_loss<detail::losses::l1>(x, y, options.reduction);
  }
}
/// The squared error near 0, the absolute one from beta on, joined smoothly:
///
///     d = x - y:   d² / (2 beta) for |d| < beta,   |d| - beta / 2 from there on
template <class X, class Y>
  requires detail::loss_pair<X, Y>
auto smooth_l1_loss(X const& x, Y const& y, smooth_l1_options const& options = {}) {
  if (!(options.beta >= 0)) detail::fail<ShapeError>("smooth_l1_loss: beta is ", options.beta, "; it must be 0 or more");
  return detail::pair_loss<detail::losses::smooth_l1>(x, y, options.reduction, options.beta);
}
/// smooth_l1_loss.
template <class X, class Y>
  requires detail::loss_pair<X, Y>
auto smooth_l1(X const& x, Y const& y, smooth_l1_options const& options = {}) {
  return smooth_l1_loss(x, y, options);
}
/// The cross entropy of two classes, from scores x and probabilities y of the positive one, without overflow:
///
///     loss = w ((1 - y) x + (1 + (p - 1) y) log(1 + exp(-x)))       w = weight, p = pos_weight
///
/// Gradient: g w ((p y + 1 - y) sigmoid(x) - p y).
template <class X, class Y>
  requires detail::loss_pair<X, Y>
auto binary_cross_entropy_with_logits(X const& x, Y const& y, binary_cross_entropy_options<value_of<X>, detail::result_device_t<device_of<X>>> const& options = {}) {
  return detail::pair_loss<detail::losses::bce_with_logits>(x, y, options.reduction, 1.0, options.weight, options.pos_weight);
}
/// How far the distribution whose logarithms are x is from the target y:
///
///     loss = y (log y - x),   with log_target exp(y) (y - x)
///
/// Note that the mean is over all elements, as PyTorch's default is: batchmean is the divergence.
template <class X, class Y>
  requires detail::loss_pair<X, Y>
auto kl_div(X const& x, Y const& y, kl_div_options const& options = {}) {
  if (options.log_target) return detail::pair_loss<detail::losses::kl_div_log>(x, y, options.reduction);
  return detail::pair_loss<detail::losses::kl_div>(x, y, options.reduction);
}

#define SITU_LOSS_APART(NAME, OPTIONS)                                          \
  template <class X, class Y, class Error = detail::different_devices_of<X, Y>> \
    requires detail::pair_apart<X, Y>                                           \
  void NAME(X const&, Y const&, OPTIONS const& = {}) = delete;
SITU_LOSS_APART(mse_loss, loss_options)
SITU_LOSS_APART(l1_loss, loss_options)
SITU_LOSS_APART(smooth_l1_loss, smooth_l1_options)
SITU_LOSS_APART(smooth_l1, smooth_l1_options)
SITU_LOSS_APART(kl_div, kl_div_options)
#undef SITU_LOSS_APART
template <class X, class Y, class Error = detail::different_devices_of<X, Y>>
  requires detail::pair_apart<X, Y>
void binary_cross_entropy_with_logits(X const&, Y const&, binary_cross_entropy_options<value_of<X>, detail::result_device_t<device_of<X>>> const& = {}) = delete;

namespace nn {
using situ::binary_cross_entropy_with_logits;
using situ::kl_div;
using situ::l1_loss;
using situ::mse_loss;
using situ::reduction;
using situ::smooth_l1;
using situ::smooth_l1_loss;
}  // namespace nn
}  // namespace situ::inline SITU_ABI
