/// Reductions of Variables and of formulas with Variables: fused forward, and fused with the formula's own gradient backward.
///
///     sum(x)   mean(square(a - b), 0)   max(x, {0, 1}, keepdim)   var(x, 0, {.correction = 0})   norm(x, {.p = 1})
///
/// Shapes, types, options and errors are those of ops/reduce.hpp. What has no gradient gives a Tensor: any, all, argmin, argmax, count_nonzero.
/// Gradient  by formulas of the result's gradient g, spread over the input's shape, of the input x and of the result y: each is one kernel
///           together with the formula that was reduced. What is reduced first, as the mean for var, costs a pass over x. Only x, where it
///           is read, and y are kept.
#pragma once

#include <situ/autograd/writes.hpp>
#include <situ/ops/reduce.hpp>
#include <situ/ops/scan.hpp>

namespace situ::inline SITU_ABI {
namespace functions {

/// sign(x) |x|^(p-1): p |x|^(p-1) sign(x) is the derivative of |x|^p. 0 at 0, whatever p.
struct norm_slope {
  static constexpr char const* name = "norm_slope";
  static constexpr int cost = 80;
  template <class... Ts>
  using types = detail::arithmetic<Ts...>;
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static X value(X const& x, X const& p) {
    using T = detail::lane_value_t<X>;
    X const zero(T(0));
    T which;  // the same for all lanes
    if constexpr (detail::is_pack<X>) which = p[0];
    else which = p;
    if (which == T(2)) return x;
    if (which == T(1)) return math::sign(x);
    if (which == T(0)) return zero;
    return select(x == zero, zero, math::sign(x) * math::pow(math::abs(x), X(which - T(1))));
  }
};

}  // namespace functions

namespace detail {

/// A reduction's result, or its gradient, seen over the shape that was reduced: reduced axes repeat.
template <class G>
auto spread(G const& g, Shape const& whole, unsigned axes) {
  Shape with_ones = whole;
  for (int k = 0; k < whole.rank(); ++k) {
    if (axes >> k & 1u) with_ones[k] = 1;
  }
  return g.reshape(with_ones).expand(whole);
}

/// The number of elements that each result is made of.
inline int64_t reduced_count(Shape const& whole, unsigned axes) {
  int64_t count = 1;
  for (int k = 0; k < whole.rank(); ++k) {
    if (axes >> k & 1u) count *= whole[k];
  }
  return count;
}

// The gradients: seeds of record_on. twice() says the same of Lanes, for second derivatives.

/// Elements of T as they are computed with.
template <class T, class E>
auto as_computed(E const& e) {
  if constexpr (std::is_same_v<value_of<E>, compute_t<T>>) return e;
  else return cast<compute_t<T>>(e);
}
/// What was computed in compute_t<T>, as elements of T.
template <class T, class E>
auto as_elements(E const& e) {
  if constexpr (std::is_same_v<value_of<E>, T>) return e;
  else return cast<T>(e);
}

/// The axes that were reduced.
struct ReducedAxes {
  Shape whole;
  unsigned axes;
  template <class G>
  auto over(G const& g) const {
    return spread(g, whole, axes);
  }
  double count() const { return static_cast<double>(reduced_count(whole, axes)); }
  /// The reduced axes.
  Shape list() const {
    Shape result;
    for (int k = 0; k < whole.rank(); ++k) {
      if (axes >> k & 1u) result.push_back(k);
    }
    return result;
  }
  /// How many are true up to each element of its reduction.
  template <class D>
  Tensor<int64_t, D> counted(Tensor<bool, D> const& truth) const {
    Shape order;
    for (int k = 0; k < whole.rank(); ++k) {
      if (!(axes >> k & 1u)) order.push_back(k);
    }
    for (int64_t axis : list()) order.push_back(axis);
    int64_t const length = reduced_count(whole, axes);
    auto const turned = truth.permute(order);
    return cumsum(turned.reshape({length == 0 ? 0 : truth.size() / length, length}), 1).reshape(turned.shape()).permute(inverse_permutation(order));
  }
};

struct sum_gradient : ReducedAxes {
  template <class G, class X>
  auto operator()(G const& g, X const&) const {
    return over(g);
  }
  template <class L>
  L twice(L const& g, L const&, L const&) const {
    return over(g);
  }
};

struct mean_gradient : ReducedAxes {
  template <class G, class X>
  auto operator()(G const& g, X const&) const {
    return over(g) * (1.0 / count());
  }
  template <class L>
  L twice(L const& g, L const&, L const&) const {
    return over(g * L(static_cast<lane_value_t<L>>(1.0 / count())));
  }
};

/// Where x is what was found, NaN included: there x is NaN only where y is.
template <class X, class Y>
auto is_found(X const& x, Y const& y) {
  return (x == y) || isnan(x);
}
/// x as the extremum was rounded, which a formula of 16-bit floats is not.
template <class T, class D, class X>
decltype(auto) rounded(X const& x) {
  if constexpr (sizeof(T) == 2 && !std::is_same_v<X, Tensor<T, D>>) return Tensor<T, D>(x);
  else return (x);
}
/// The extremum of what was computed anew, where that is, and what each has of it. Lanes are computed a function at a time, and may differ from the fused
/// kernel's result in their last bits.
template <bool Largest, class C, class D>
struct FoundAnew {
  Tensor<bool, D> found;
  Tensor<C, D> share;
  FoundAnew(Tensor<C, D> const& values, unsigned axes, Shape const& reduced)
      : found(is_found(values, reduce<std::conditional_t<Largest, reducers::max<C>, reducers::min<C>>>(values, axes, true))),
        share(Tensor<C, D>(1 / cast<C>(reduce<reducers::count_true>(found, axes, true))).reshape(reduced)) {}
};
/// g where x is the extremum, shared evenly among equals.
template <class T, class D, bool Largest>
struct extremum_gradient : ReducedAxes {
  Saved<T, D> y;
  template <class X>
  Tensor<compute_t<T>, D> share(X const& x) const {
    auto const count = reduce<reducers::count_true>(is_found(x, over(y.tensor())), axes, true);
    return Tensor<compute_t<T>, D>(1 / cast<compute_t<T>>(count)).reshape(y.tensor().shape());
  }
  template <class G, class X>
  auto operator()(G const& g, X const& x_) const {
    decltype(auto) x = rounded<T, D>(x_);
    return where(is_found(x, over(y.tensor())), over(Tensor<T, D>(as_elements<T>(g * share(x)))), 0);
  }
  template <class L>
  L twice(L const& g, L const& x, L const&) const {
    using C = lane_value_t<L>;
    FoundAnew<Largest, C, D> const anew(x.tensor(), axes, y.tensor().shape());
    return select(LaneMask<D>(anew.found), over(g * L(Variable<C, D>(anew.share, false))), L(C(0)));
  }
};
template <class T, class D>
using max_gradient = extremum_gradient<T, D, true>;
template <class T, class D>
using min_gradient = extremum_gradient<T, D, false>;

/// y / x; where one element of a product is 0 its gradient is the product of the others, and where several are all of them are 0.
template <class T, class D>
struct prod_gradient : ReducedAxes {
  Saved<T, D> y;
  template <class X>
  Tensor<T, D> of_zeros(Tensor<T, D> const& product, X const& x) const {
    if constexpr (std::is_same_v<D, Cpu>) {  // elsewhere looking would mean to wait
      if (!any(product == 0).item()) return product;
    }
    auto const zeros_in_it = reduce<reducers::count_true>(x == 0, axes, true).reshape(product.shape());
    auto const of_others = reduce<reducers::prod<T>>(where(x == 0, 1, x), axes, true).reshape(product.shape());
    return Tensor<T, D>(where(zeros_in_it == 1, of_others, 0));
  }
  template <class G, class X>
  auto operator()(G const& g, X const& x) const {
    auto const& product = y.tensor();
    return where(x == 0, over(Tensor<T, D>(g * of_zeros(product, x))), over(Tensor<T, D>(g * product)) / x);
  }
  /// By a 0 the gradient is the product of the others, which the first two of a product depend on in ways that y / x does not tell; by later ones it is 0.
  template <class L>
  L twice(L const& g, L const& x, L const& product) const {
    if constexpr (std::is_same_v<D, Cpu>) {
      if (!any(x.tensor() == 0).item()) return over(g * product) / x;
    }
    L const zero(lane_value_t<L>(0)), one(lane_value_t<L>(1));
    Tensor<bool, D> const zeros(x.tensor() == 0);
    Tensor<int64_t, D> const number = counted(zeros);
    auto const without = [&](int64_t which) { return LaneMask<D>(Tensor<bool, D>(zeros && number == which)); };
    auto const others = [&](LaneMask<D> const& one_zero) { return over(L(Variable<lane_value_t<L>, D>(prod(select(one_zero, one, x).variable(), list(), keepdim)))); };
    LaneMask<D> const first = without(1), second = without(2), is_zero(zeros);
    return over(g) * select(first, others(first), select(second, others(second), select(is_zero, zero, over(product) / select(is_zero, one, x))));
  }
  Saved<T, D> const& result() const { return y; }
};

/// 2 (x - mean) / (n - correction).
template <class T>
struct var_gradient : ReducedAxes {
  double correction;
  double factor() const { return 2.0 / (count() - correction); }
  /// x less its mean, which is not rounded to 16 bits.
  template <class X>
  auto deviation_of(X const& x) const {
    using C = compute_t<T>;
    if constexpr (std::is_same_v<C, T>) return x - over(reduce<reducers::mean<T>>(x, axes, true));
    else return x - over(reduce<reducers::mean<C>>(cast<C>(x), axes, true));
  }
  template <class G, class X>
  auto operator()(G const& g, X const& x) const {
    return as_elements<T>(deviation_of(x) * over(g) * factor());
  }
  template <class L>
  static L centred(L const& x, ReducedAxes const& reduced) {
    using C = lane_value_t<L>;
    return x - reduced.over(x.summed(reduced.axes) * L(static_cast<C>(1 / reduced.count())));
  }
  template <class L>
  L twice(L const& g, L const& x, L const&) const {
    return centred(x, *this) * over(g * L(static_cast<lane_value_t<L>>(factor())));
  }
};
/// The same over 2 y; 0 where y is 0.
template <class T, class D>
struct stddev_gradient : var_gradient<T> {
  Saved<T, D> y;
  template <class G, class X>
  auto operator()(G const& g, X const& x) const {
    auto const deviation = as_computed<T>(y.tensor());
    Tensor<compute_t<T>, D> const scale(where(deviation == 0, 0, as_computed<T>(g) / deviation * (0.5 * this->factor())));
    return as_elements<T>(this->deviation_of(x) * this->over(scale));
  }
  template <class L>
  L twice(L const& g, L const& x, L const& deviation) const {
    using C = lane_value_t<L>;
    L const zero(C(0)), scale = g / deviation * L(static_cast<C>(0.5 * this->factor()));
    return var_gradient<T>::centred(x, *this) * this->over(select(deviation == zero, zero, scale));
  }
  Saved<T, D> const& result() const { return y; }
};

/// exp(x - y); 0 where all elements are -inf.
template <class T, class D>
struct logsumexp_gradient : ReducedAxes {
  Saved<T, D> y;
  template <class G, class X>
  auto operator()(G const& g, X const& x) const {
    auto const& shift = y.tensor();
    return exp(x - over(Tensor<T, D>(where(shift == -__builtin_huge_val(), 0, shift)))) * over(g);
  }
  template <class L>
  L twice(L const& g, L const& x, L const& shift) const {
    using C = lane_value_t<L>;
    L const none(static_cast<C>(-__builtin_huge_val()));
    return exp(x - over(select(shift == none, L(C(0)), shift))) * over(g);
  }
  Saved<T, D> const& result() const { return y; }
};

/// x / y, of the Euclidean norm; 0 where y is 0.
template <class T, class D>
struct euclid_gradient : ReducedAxes {
  Saved<T, D> y;
  template <class G, class X>
  auto operator()(G const& g, X const& x) const {
    auto const size = as_computed<T>(y.tensor());
    return as_elements<T>(x * over(Tensor<compute_t<T>, D>(where(size == 0, 0, as_computed<T>(g) / size))));
  }
  template <class L>
  L twice(L const& g, L const& x, L const& size) const {
    L const zero(lane_value_t<L>(0));
    return x * over(select(size == zero, zero, g / size));
  }
  Saved<T, D> const& result() const { return y; }
};
/// sign(x) (|x| / y)^(p-1); 0 where x or y is 0, and for p = 0.
template <class T, class D>
struct p_norm_gradient : ReducedAxes {
  Saved<T, D> y;
  double p;
  template <class G, class X>
  auto operator()(G const& g, X const& x) const {
    using C = compute_t<T>;
    auto const size = as_computed<T>(y.tensor());
    Tensor<C, D> const scale(where(size == 0, 0, as_computed<T>(g) * pow(size, 1 - p)));
    return as_elements<T>(make_map(functions::norm_slope{}, x, Constant<T>{static_cast<C>(p)}) * over(scale));
  }
  template <class L>
  L twice(L const& g, L const& x, L const& size) const {
    using C = lane_value_t<L>;
    L const zero(C(0)), one(C(1)), power(static_cast<C>(p - 1));
    if (p == 0) return over(g) * (x - x);
    L const scale = p == 1 ? g : select(size == zero, zero, g * pow(select(size == zero, one, size), -power));
    L const slope = p == 2 ? x : p == 1 ? sign(x) : select(x == zero, zero, sign(x) * pow(select(x == zero, one, abs(x)), power));
    return slope * over(scale);
  }
  Saved<T, D> const& result() const { return y; }
};
/// sign(x) where |x| is the extremum, shared evenly among equals: p = inf and -inf.
template <class T, class D, bool Largest>
struct extreme_norm_gradient : ReducedAxes {
  Saved<T, D> y;
  template <class G, class X>
  auto operator()(G const& g, X const& x_) const {
    decltype(auto) x = rounded<T, D>(x_);
    auto const& size = y.tensor();
    auto const count = reduce<reducers::count_true>(is_found(abs(x), over(size)), axes, true);
    Tensor<T, D> const share(as_elements<T>(g / cast<compute_t<T>>(count.reshape(size.shape()))));
    return where(is_found(abs(x), over(size)), sign(x) * over(share), 0);
  }
  template <class L>
  L twice(L const& g, L const& x, L const&) const {
    using C = lane_value_t<L>;
    FoundAnew<Largest, C, D> const anew(Tensor<C, D>(abs(x.tensor())), axes, y.tensor().shape());
    return select(LaneMask<D>(anew.found), sign(x) * over(g * L(Variable<C, D>(anew.share, false))), L(C(0)));
  }
};
template <class T, class D>
using largest_norm_gradient = extreme_norm_gradient<T, D, true>;
template <class T, class D>
using smallest_norm_gradient = extreme_norm_gradient<T, D, false>;

template <class E, class Axes>
auto recorded_sum(E const& x, Axes axes, bool keep) {
  return record_on<false>("Sum", reduce<reducers::sum<value_of<E>>>(x, axes, keep), x, sum_gradient{{x.shape(), axes}});
}
template <class E, class Axes>
auto recorded_mean(E const& x, Axes axes, bool keep) {
  return record_on<false>("Mean", reduce<reducers::mean<value_of<E>>>(x, axes, keep), x, mean_gradient{{x.shape(), axes}});
}
/// A reduction whose gradient reads x and the result.
template <template <class, class> class Gradient, class E, class T, class D>
auto recorded_with_result(char const* name, Tensor<T, D> const& y, E const& x, unsigned axes) {
  return record_on<true>(name, y, x, Gradient<T, D>{{x.shape(), axes}, Saved<T, D>(y)});
}
template <class E, class Axes>
auto recorded_max(E const& x, Axes axes, bool keep) {
  return recorded_with_result<max_gradient>("Max", reduce<reducers::max<value_of<E>>>(x, axes, keep), x, axes);
}
template <class E, class Axes>
auto recorded_min(E const& x, Axes axes, bool keep) {
  return recorded_with_result<min_gradient>("Min", reduce<reducers::min<value_of<E>>>(x, axes, keep), x, axes);
}
template <class E, class Axes>
auto recorded_prod(E const& x, Axes axes, bool keep) {
  return recorded_with_result<prod_gradient>("Prod", reduce<reducers::prod<value_of<E>>>(x, axes, keep), x, axes);
}
template <class E, class Axes>
auto recorded_logsumexp(E const& x, Axes axes, bool keep) {
  return recorded_with_result<logsumexp_gradient>("Logsumexp", reduce<reducers::logsumexp<value_of<E>>>(x, axes, keep), x, axes);
}
template <class E, class Axes>
auto recorded_norm(E const& x, Axes axes, bool keep) {
  return recorded_with_result<euclid_gradient>("Norm", reduce<reducers::root_of_sum<value_of<E>>>(square(values_of(x)), axes, keep), x, axes);
}
template <class E, class Axes>
auto recorded_p_norm(E const& x, Axes axes, bool keep, norm_options const& options) {
  using T = value_of<E>;
  using D = result_device_t<device_of<E>>;
  auto const y = p_norm_of(values_of(x), axes, keep, options);
  if (math::isinf(options.p) && options.p > 0) return recorded_with_result<largest_norm_gradient>("Norm", y, x, axes);
  if (math::isinf(options.p)) return recorded_with_result<smallest_norm_gradient>("Norm", y, x, axes);
  return record_on<true>("Norm", y, x, p_norm_gradient<T, D>{{x.shape(), axes}, Saved<T, D>(y), options.p});
}
template <class E, class Axes>
auto recorded_var(E const& x, Axes axes, bool keep, var_options const& options) {
  return record_on<true>("Var", variance_of(x, axes, keep, options), x, var_gradient<value_of<E>>{{x.shape(), axes}, options.correction});
}
template <class E, class Axes>
auto recorded_stddev(E const& x, Axes axes, bool keep, var_options const& options) {
  using T = value_of<E>;
  using D = result_device_t<device_of<E>>;
  auto const y = deviation_of(x, axes, keep, options);
  return record_on<true>("Std", y, x, stddev_gradient<T, D>{{{x.shape(), axes}, options.correction}, Saved<T, D>(y)});
}

}  // namespace detail

// NAME(x), NAME(x, keepdim), NAME(x, axes), NAME(x, axes, keepdim) for what records: CALL(x, axes as bits, keep). A temporary is let go.
#define SITU_RECORDED_REDUCTION(NAME, CALL)                                   \
  template <class E>                                                          \
    requires differentiable<E>                                                \
  auto NAME(E&& x) {                                                          \
    detail::LetGo<E> const after{x};                                          \
    return detail::CALL(x, detail::all_axes(x.shape()), false);               \
  }                                                                           \
  template <class E>                                                          \
    requires differentiable<E>                                                \
  auto NAME(E&& x, keepdim_t) {                                               \
    detail::LetGo<E> const after{x};                                          \
    return detail::CALL(x, detail::all_axes(x.shape()), true);                \
  }                                                                           \
  template <class E>                                                          \
    requires differentiable<E>                                                \
  auto NAME(E&& x, Shape const& axes) {                                       \
    detail::LetGo<E> const after{x};                                          \
    return detail::CALL(x, detail::axis_bits(axes, x.shape(), #NAME), false); \
  }                                                                           \
  template <class E>                                                          \
    requires differentiable<E>                                                \
  auto NAME(E&& x, Shape const& axes, keepdim_t) {                            \
    detail::LetGo<E> const after{x};                                          \
    return detail::CALL(x, detail::axis_bits(axes, x.shape(), #NAME), true);  \
  }

/// Σ x. Gradient: g, everywhere.
SITU_RECORDED_REDUCTION(sum, recorded_sum)
/// Σ x / n. Gradient: g / n, everywhere.
SITU_RECORDED_REDUCTION(mean, recorded_mean)
/// Π x. Gradient: g y / x, and at a single 0 g times the product of the others; 0 elsewhere beside one 0, and everywhere beside two. Its
/// third derivatives hold where at most two elements of a product are 0.
SITU_RECORDED_REDUCTION(prod, recorded_prod)
/// The largest, the smallest element. Gradient: g, shared evenly among the elements that are equal to it (as PyTorch's amax, amin and
/// max() do; its max(dim) gives all of it to one of them); among the NaN where there are some.
SITU_RECORDED_REDUCTION(max, recorded_max)
SITU_RECORDED_REDUCTION(min, recorded_min)
/// log Σ exp(x). Gradient: g exp(x − y), which is g softmax(x); 0 where all elements are -inf.
SITU_RECORDED_REDUCTION(logsumexp, recorded_logsumexp)
/// sqrt(Σ x²). Gradient: g x / y; 0 where y is 0.
SITU_RECORDED_REDUCTION(norm, recorded_norm)
#undef SITU_RECORDED_REDUCTION

// Constants: NAME(x), NAME(x, keepdim), NAME(x, axes), NAME(x, axes, keepdim) of the values.
#define SITU_CONSTANT_REDUCTION(NAME)                \
  template <class E, class... Args>                  \
    requires differentiable<E>                       \
  auto NAME(E const& x, Args const&... args) {       \
    return NAME(detail::values_of(x), args...);      \
  }                                                  \
  template <class E, class... Args>                  \
    requires differentiable<E>                       \
  auto NAME(E const& x, Shape const& axes, Args const&... args) { \
    return NAME(detail::values_of(x), axes, args...); \
  }
/// Of values: Tensors, without gradients.
SITU_CONSTANT_REDUCTION(any)
SITU_CONSTANT_REDUCTION(all)
SITU_CONSTANT_REDUCTION(argmin)
SITU_CONSTANT_REDUCTION(argmax)
SITU_CONSTANT_REDUCTION(count_nonzero)
#undef SITU_CONSTANT_REDUCTION

// As SITU_REDUCTION_NAMED and SITU_REDUCTION_UNNAMED of ops/reduce.hpp.
#define SITU_RECORDED_FORM(NAME, CALL, PARAMETERS, AXES, KEEP, OPTIONS, TYPE) \
  template <class E, class Options = TYPE>                                    \
    requires(differentiable<E> && std::is_same_v<Options, TYPE>)              \
  auto NAME PARAMETERS {                                                      \
    return detail::CALL(x, AXES, KEEP, OPTIONS);                              \
  }
#define SITU_RECORDED_UNNAMED(NAME, CALL, TYPE)                                                                                       \
  SITU_RECORDED_FORM(NAME, CALL, (E const& x), detail::all_axes(x.shape()), false, TYPE{}, TYPE)                                      \
  SITU_RECORDED_FORM(NAME, CALL, (E const& x, keepdim_t), detail::all_axes(x.shape()), true, TYPE{}, TYPE)                            \
  SITU_RECORDED_FORM(NAME, CALL, (E const& x, Shape const& axes), detail::axis_bits(axes, x.shape(), #NAME), false, TYPE{}, TYPE)     \
  SITU_RECORDED_FORM(NAME, CALL, (E const& x, Shape const& axes, keepdim_t), detail::axis_bits(axes, x.shape(), #NAME), true, TYPE{}, TYPE)
#define SITU_RECORDED_NAMED(NAME, CALL, TYPE)                                                                                                               \
  SITU_RECORDED_FORM(NAME, CALL, (E const& x, Options const& options), detail::all_axes(x.shape()), false, options, TYPE)                                   \
  SITU_RECORDED_FORM(NAME, CALL, (E const& x, Options const& options, keepdim_t), detail::all_axes(x.shape()), true, options, TYPE)                         \
  SITU_RECORDED_FORM(NAME, CALL, (E const& x, Shape const& axes, Options const& options), detail::axis_bits(axes, x.shape(), #NAME), false, options, TYPE)  \
  SITU_RECORDED_FORM(NAME, CALL, (E const& x, Shape const& axes, Options const& options, keepdim_t), detail::axis_bits(axes, x.shape(), #NAME), true, options, TYPE)

/// Σ (x − mean)² / (n − correction). Gradient: 2 g (x − mean) / (n − correction).
SITU_RECORDED_UNNAMED(var, recorded_var, var_options)
SITU_RECORDED_NAMED(var, recorded_var, var_options)
/// sqrt(var(x)). Gradient: g (x − mean) / (y (n − correction)); 0 where y is 0.
SITU_RECORDED_UNNAMED(stddev, recorded_stddev, var_options)
SITU_RECORDED_NAMED(stddev, recorded_stddev, var_options)
/// (Σ |x|^p)^(1/p). Gradient: g sign(x) (|x| / y)^(p-1); 0 where x or y is 0, and for p = 0. For p = inf and -inf: g sign(x) where |x| is y,
/// shared evenly among equals.
SITU_RECORDED_NAMED(norm, recorded_p_norm, norm_options)
#undef SITU_RECORDED_NAMED
#undef SITU_RECORDED_UNNAMED
#undef SITU_RECORDED_FORM

}  // namespace situ::inline SITU_ABI
