/// Reductions over all axes or chosen ones, fused with the expression that they reduce.
///
///     sum(x)   sum(x, 0)   sum(square(a - b), {0, 1}, keepdim)
///
/// Shape     over all axes: []; over chosen ones: the shape without them, or with extent 1 there under `keepdim`. Negative axes
///           count from the end. An empty list of axes reduces nothing, as in NumPy and the array API: sum(x, {}) has the shape and the
///           values of x. (PyTorch takes an empty list for all axes: that is sum(x).)
/// Device    runs where x lives; enqueued, not waited for.
/// Throws    AxisError when x has no such axis; ShapeError when one is named twice, or an extremum of nothing is asked for.
/// Special   NaN in, NaN out; argmin and argmax give the place of the first NaN.
/// Cost      reads every input once; one launch, or two when few outputs are reduced from many elements. Results are the same
///           from run to run, and for any number of threads.
/// Options   are named, and stand before keepdim: var(x, 0, {.correction = 0}, keepdim), norm(x, {.p = 1}).
#pragma once

#include <situ/ops/cpu/reduce.hpp>
#include <situ/tensor/tensor.hpp>
#if defined(__CUDACC__)
#include <situ/ops/cuda/reduce.hpp>
#endif

namespace situ::inline SITU_ABI {

/// Keeps reduced axes with extent 1: sum(x, 0, keepdim).
struct keepdim_t {
  struct made {};
  explicit constexpr keepdim_t(made) {}  // not from {} or {0}, which are axes
};
inline constexpr keepdim_t keepdim{keepdim_t::made{}};

namespace detail {

#if !defined(__CUDACC__)
inline namespace SITU_ABI_COMPILER {
template <class D, bool, class P>
void launch_reduce(cuda_kernels, P const&) {
  static_assert(compiled_by_nvcc<P>, "situ: reducing_on_Cuda_needs_nvcc: this file is not compiled by nvcc; name it .cu, or move the tensor to the host");
}
}  // namespace SITU_ABI_COMPILER
#endif

/// The axes as a set of bits, none for a shape without axes. Throws ShapeError.
inline unsigned axis_bits(Shape const& axes, Shape const& shape, char const* who) {
  unsigned bits = 0;
  for (int64_t axis : axes) {
    unsigned const bit = 1u << line_axis(axis, shape, who);
    if (bits & bit) fail<ShapeError>(who, ": axis ", axis, " appears twice in ", axes);
    bits |= bit;
  }
  return shape.rank() == 0 ? 0 : bits;
}

/// The shape that is left of `source` when the axes whose bit is set in `reduced` are.
SITU_NOINLINE inline Shape reduced_shape(Shape const& source, unsigned reduced, bool keep, char const* who, bool empty_is_defined) {
  Shape shape;
  bool nothing = false;
  for (int k = 0; k < source.rank(); ++k) {
    bool const gone = reduced >> k & 1u;
    nothing = nothing || (gone && source[k] == 0);
    if (!gone) shape.push_back(source[k]);
    else if (keep) shape.push_back(1);
  }
  if (nothing && !empty_is_defined) {  // nor where there is no result to hold it, as in NumPy and PyTorch
    fail<ShapeError>(who, ": shape ", source, " has no elements along the reduced axes: the extremum of nothing is not defined");
  }
  return shape;
}

/// All axes, known as such when a reduction is compiled.
struct AllAxes {
  unsigned bits;
  constexpr operator unsigned() const { return bits; }
};
inline AllAxes all_axes(Shape const& shape) { return {(1u << shape.rank()) - 1u}; }

/// The CPU's reductions of formulas of so many tensors: a formula's own are its kernels alone.
template <class D, class Bound>
SITU_NOINLINE auto reduce_bound(typename Bound::Code const& code, void* tree, Body* const* bodies, Shape const& shape, unsigned reduced, bool keep, double parameter) {
  using R = typename Bound::reducer;
  cpu::ReduceKernel<Bound> kernel;
  auto& bound = kernel.bound;
  auto result = bind_reduction<D, R>(bound, bodies, shape, reduced, keep, parameter);
  bound.code = &code;
  bound.formula = code.formula;
  __builtin_memcpy(bound.tree, tree, sizeof bound.tree);
  if (bound.outputs > 0) cpu::launch_reduction<D>(kernel, bound, code.grain);
  return result;
}

/// Makes the result of a reduction over the axes whose bit is set in `reduced`, and binds a program of any device to it and to its inputs.
template <class D, class R, int Operands>
SITU_NOINLINE auto bind_reduction(ReducePlaces<Operands>& program, Body* const* bodies, Shape const& shape, unsigned reduced, bool keep, double parameter) {
  auto result = Tensor<typename R::result, D>::uninitialized(reduced_shape(shape, reduced, keep, R::name, R::empty_is_defined), R::name);
  program.where.data[0] = result.data();
  Layout const* layouts[Operands];
  for (int o = 1; o < Operands; ++o) {
    Body const* const body = bodies[o - 1];
    program.where.data[o] = body ? body->first : nullptr;
    layouts[o] = body ? &body->layout : &empty_layout;
  }
  ReductionPlaces places{program.where.sizes, &program.where.strides[0][0]};
  places.bind(layouts, Operands, shape, reduced, requires { R::order_matters; });
  program.where.rank = places.rank;
  program.where.contiguous = false;
  program.kept_rank = places.kept_rank;
  program.outputs = places.outputs;
  program.count = places.count;
  program.parameter = parameter;
  return result;
}

/// Axes: unsigned, a set of bits, or AllAxes.
template <class Reducer, class E, class Axes>
auto reduce(E const& e, Axes reduced, bool keep, [[maybe_unused]] double parameter = 0) {
  using D = result_device_t<device_of<E>>;
  using Kernels = typename device_traits<D>::kernels;
  using Tree = tree_of<E>;
  constexpr bool whole = std::is_same_v<Axes, AllAxes>;
  constexpr int leaves = leaf_count<E>;
  if constexpr (std::is_same_v<Kernels, cpu_kernels> && !reducers::centred<Reducer>) {
    using Bound = cpu::BoundReduction<Reducer, leaves, cpu::tree_bytes<Tree>, whole>;
    TreeBytesOf<Tree> tree(lower<0>(e));
    LeafBodies<leaves> bodies;
    collect_bodies(e, bodies);
    return reduce_bound<D, Bound>(cpu::reduce_code<Bound, Tree>, &tree, bodies.of, e.shape(), reduced, keep, parameter);
  } else {
    ReduceProgram<Reducer, Tree, leaves> program(lower<0>(e));
    LeafBodies<leaves> bodies;
    collect_bodies(e, bodies);
    auto result = bind_reduction<D, Reducer>(program, bodies.of, e.shape(), reduced, keep, parameter);
    launch_reduce<D, whole>(Kernels{}, program);
    return result;
  }
}

/// x in a floating type: x itself when it has one.
template <class E>
decltype(auto) as_floating(E const& e) {
  if constexpr (floating<value_of<E>>) return (e);
  else return cast<float>(e);
}

/// x as truth values: what is not 0. NaN is not 0.
template <class E>
decltype(auto) as_truth(E const& e) {
  if constexpr (std::is_same_v<value_of<E>, bool>) return (e);
  else return e != 0;
}

/// The first member of options: no number becomes it, so that {0} and {0, 1} are axes.
struct options_have_names {
  struct made {};
  explicit constexpr options_have_names(made) {}
};

}  // namespace detail

// What PyTorch's users would write: axes without braces, and a truth for keepdim.
#define SITU_REDUCTION_MISUSED(NAME)                                                                                       \
  template <class E, std::integral Ix, std::integral J, std::integral... Is,                                               \
            class Error = error::axes_stand_in_braces__as_in_permute_of_braces_1_0<Ix>>                                    \
    requires((expression<E> || differentiable<E>) && !std::is_same_v<J, bool>)                                             \
  void NAME(E const&, Ix, J, Is...) = delete;                                                                              \
  template <class E, std::same_as<bool> B, class Error = error::keepdim_is_a_tag__as_in_sum_of_x_and_0_and_keepdim<B>>     \
    requires(expression<E> || differentiable<E>)                                                                           \
  void NAME(E const&, B) = delete;                                                                                         \
  template <class E, std::same_as<bool> B, class Error = error::keepdim_is_a_tag__as_in_sum_of_x_and_0_and_keepdim<B>>     \
    requires(expression<E> || differentiable<E>)                                                                           \
  void NAME(E const&, Shape const&, B) = delete;

// NAME(x), NAME(x, keepdim), NAME(x, axes), NAME(x, axes, keepdim): REDUCER of INPUT, which is made of x.
#define SITU_REDUCTION(NAME, REDUCER, INPUT)                                                            \
  template <class E>                                                                                    \
    requires expression<E>                                                                              \
  auto NAME(E const& x) {                                                                               \
    return detail::reduce<reducers::REDUCER>(INPUT, detail::all_axes(x.shape()), false);                \
  }                                                                                                     \
  template <class E>                                                                                    \
    requires expression<E>                                                                              \
  auto NAME(E const& x, keepdim_t) {                                                                    \
    return detail::reduce<reducers::REDUCER>(INPUT, detail::all_axes(x.shape()), true);                 \
  }                                                                                                     \
  template <class E>                                                                                    \
    requires expression<E>                                                                              \
  auto NAME(E const& x, Shape const& axes) {                                                            \
    return detail::reduce<reducers::REDUCER>(INPUT, detail::axis_bits(axes, x.shape(), #NAME), false);  \
  }                                                                                                     \
  template <class E>                                                                                    \
    requires expression<E>                                                                              \
  auto NAME(E const& x, Shape const& axes, keepdim_t) {                                                 \
    return detail::reduce<reducers::REDUCER>(INPUT, detail::axis_bits(axes, x.shape(), #NAME), true);   \
  }                                                                                                     \
  SITU_REDUCTION_MISUSED(NAME)

/// Σ x. Integers and bools give int64; 16-bit floats are summed in float. The sum of nothing is 0.
SITU_REDUCTION(sum, sum<value_of<E>>, x)
/// Σ x / n. Integers give float. The mean of nothing is NaN.
SITU_REDUCTION(mean, mean<value_of<E>>, x)
/// Π x. Integers and bools give int64; floats are multiplied in double. The product of nothing is 1. Parts of x are multiplied first: where the product of
/// one leaves the range of double, the result is infinite, 0 or (beside a 0) NaN, whatever the other parts are.
SITU_REDUCTION(prod, prod<value_of<E>>, x)
/// The smallest element.
SITU_REDUCTION(min, min<value_of<E>>, x)
/// The largest element.
SITU_REDUCTION(max, max<value_of<E>>, x)

// And two operands, of which NumPy and std take the larger or smaller.
template <class E, class X, class Error = error::max_and_min_reduce_one_tensor__use_maximum_or_minimum_for_two_operands<X>>
  requires((expression<E> || differentiable<E>) && (expression<X> || differentiable<X> || std::floating_point<X>))
void max(E const&, X const&) = delete;
template <class E, class X, class Error = error::max_and_min_reduce_one_tensor__use_maximum_or_minimum_for_two_operands<X>>
  requires((expression<E> || differentiable<E>) && (expression<X> || differentiable<X> || std::floating_point<X>))
void min(E const&, X const&) = delete;

/// The index of the first smallest element along the reduced axes, in row-major order; int64.
SITU_REDUCTION(argmin, argmin<value_of<E>>, x)
/// The index of the first largest element along the reduced axes, in row-major order; int64.
SITU_REDUCTION(argmax, argmax<value_of<E>>, x)
/// Whether any element is not 0; bool. NaN is not 0. Of nothing: false.
SITU_REDUCTION(any, any_of<std::remove_cvref_t<decltype(detail::as_truth(x))>>, detail::as_truth(x))
/// Whether all elements are not 0; bool. NaN is not 0. Of nothing: true.
SITU_REDUCTION(all, all_of<std::remove_cvref_t<decltype(detail::as_truth(x))>>, detail::as_truth(x))
/// How many elements are not 0; int64. NaN is not 0.
SITU_REDUCTION(count_nonzero, count_true, detail::as_truth(x))
/// log Σ exp(x), without overflow: m + log Σ exp(x − m), m the largest of a few thousand elements at a time. Integers give float.
///
/// Special   -inf where all elements are -inf, and of nothing; inf where one is inf; NaN where one is NaN.
/// Gradient  exp(x − y).
SITU_REDUCTION(logsumexp, logsumexp<floating_t<value_of<E>>>, detail::as_floating(x))
/// The Euclidean norm, sqrt(Σ x²). Integers give float. Other norms: norm(x, axes, {.p = 1}).
SITU_REDUCTION(norm, root_of_sum<floating_t<value_of<E>>>, square(detail::as_floating(x)))
#undef SITU_REDUCTION

// NAME(x), NAME(x, axes), both also with options by name, and with keepdim as the last argument.
// Options stand in a template parameter, so that {} stays a list of no axes.
#define SITU_REDUCTION_FORM(NAME, CALL, PARAMETERS, AXES, KEEP, OPTIONS, TYPE) \
  template <class E, class Options = TYPE>                                      \
    requires(expression<E> && std::is_same_v<Options, TYPE>)                    \
  auto NAME PARAMETERS {                                                        \
    return detail::CALL(x, AXES, KEEP, OPTIONS);                                \
  }
#define SITU_REDUCTION_UNNAMED(NAME, CALL, TYPE)                                                                                     \
  SITU_REDUCTION_MISUSED(NAME)                                                                                                       \
  SITU_REDUCTION_FORM(NAME, CALL, (E const& x), detail::all_axes(x.shape()), false, TYPE{}, TYPE)                                    \
  SITU_REDUCTION_FORM(NAME, CALL, (E const& x, keepdim_t), detail::all_axes(x.shape()), true, TYPE{}, TYPE)                          \
  SITU_REDUCTION_FORM(NAME, CALL, (E const& x, Shape const& axes), detail::axis_bits(axes, x.shape(), #NAME), false, TYPE{}, TYPE)   \
  SITU_REDUCTION_FORM(NAME, CALL, (E const& x, Shape const& axes, keepdim_t), detail::axis_bits(axes, x.shape(), #NAME), true, TYPE{}, TYPE)
#define SITU_REDUCTION_NAMED(NAME, CALL, TYPE)                                                                                                               \
  SITU_REDUCTION_FORM(NAME, CALL, (E const& x, Options const& options), detail::all_axes(x.shape()), false, options, TYPE)                                   \
  SITU_REDUCTION_FORM(NAME, CALL, (E const& x, Options const& options, keepdim_t), detail::all_axes(x.shape()), true, options, TYPE)                         \
  SITU_REDUCTION_FORM(NAME, CALL, (E const& x, Shape const& axes, Options const& options), detail::axis_bits(axes, x.shape(), #NAME), false, options, TYPE)  \
  SITU_REDUCTION_FORM(NAME, CALL, (E const& x, Shape const& axes, Options const& options, keepdim_t), detail::axis_bits(axes, x.shape(), #NAME), true, options, TYPE)

/// What var and stddev may be told: var(x, 0, {.correction = 0}).
struct var_options {
  detail::options_have_names named{detail::options_have_names::made{}};
  double correction = 1;  ///< the sum of squares is divided by n - correction
};

/// What norm may be told: norm(x, 0, {.p = 1}).
struct norm_options {
  detail::options_have_names named{detail::options_have_names::made{}};
  double p = 2;  ///< any number; inf: the largest magnitude, -inf: the smallest one, 0: how many elements are not 0
};

namespace detail {

template <class E, class Axes>
auto variance_of(E const& e, Axes axes, bool keep, var_options const& options) {
  return reduce<reducers::variance<value_of<E>>>(e, axes, keep, options.correction);
}
template <class E, class Axes>
auto deviation_of(E const& e, Axes axes, bool keep, var_options const& options) {
  return reduce<reducers::deviation<value_of<E>>>(e, axes, keep, options.correction);
}

}  // namespace detail

namespace functions {

/// |x|^p; x^0 is whether x is not 0, as norms take it.
struct norm_term {
  static constexpr char const* name = "norm";
  static constexpr int cost = 80;
  template <class... Ts>
  using types = detail::arithmetic<Ts...>;
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static X value(X const& x, X const& p) {
    using T = detail::lane_value_t<X>;
    X const size = math::abs(x), zero(T(0)), one(T(1));
    T which;  // the same for all lanes
    if constexpr (detail::is_pack<X>) which = p[0];
    else which = p;
    if (which == T(1)) return size;
    return which == T(0) ? select(size == zero, zero, one) : math::pow(size, p);
  }
};

}  // namespace functions

namespace detail {

template <class E, class Axes>
auto p_norm_of(E const& e, Axes axes, bool keep, norm_options const& options) {
  using T = floating_t<value_of<E>>;
  auto const& x = as_floating(e);
  double const p = options.p;
  if (math::isinf(p)) {
    double const sign = p > 0 ? 1 : -1;
    return reduce<reducers::extreme_magnitude<T>>(abs(x) * static_cast<compute_t<T>>(sign), axes, keep, sign);
  }
  if (p == 2) return reduce<reducers::root_of_sum<T>>(square(x), axes, keep);
  // The power is a number of the computing type, so that |x|^p is rounded once.
  return reduce<reducers::root_of_powers<T>>(make_map(functions::norm_term{}, x, Constant<T>{static_cast<compute_t<T>>(p)}), axes, keep, p);
}

}  // namespace detail

/// Σ (x − mean)² / (n − correction); the correction is 1 unless it is given, as in var(x, 0, {.correction = 0}). Integers give float.
///
/// Special   inf where n is no more than the correction and the elements differ, NaN where they do not; NaN where one element is NaN or
///           infinite.
/// Cost      reads x once. The error is that of a sum of squares around the mean: a large mean does not cancel.
/// Gradient  2 (x − mean) / (n − correction).
/// Source    Chan, Golub and LeVeque 1979, for joining parts.
SITU_REDUCTION_UNNAMED(var, variance_of, var_options)
SITU_REDUCTION_NAMED(var, variance_of, var_options)
/// sqrt(var(x)): the standard deviation, with the same options.
SITU_REDUCTION_UNNAMED(stddev, deviation_of, var_options)
SITU_REDUCTION_NAMED(stddev, deviation_of, var_options)
/// (Σ |x|^p)^(1/p), for any p: norm(x, {.p = 3}), norm(x, 0, {.p = 1}, keepdim). inf, -inf: the largest, the smallest magnitude, which of
/// nothing is refused with ShapeError; 0: how many elements are not 0. Integers give float.
SITU_REDUCTION_NAMED(norm, p_norm_of, norm_options)
template <class E, std::floating_point P, class... As, class Error = error::the_order_of_a_norm_is_named__as_in_norm_of_x_and_p_1_in_braces<P>>
  requires(expression<E> || differentiable<E>)
void norm(E const&, P, As const&...) = delete;
#undef SITU_REDUCTION_NAMED
#undef SITU_REDUCTION_UNNAMED
#undef SITU_REDUCTION_FORM
#undef SITU_REDUCTION_MISUSED

}  // namespace situ::inline SITU_ABI
