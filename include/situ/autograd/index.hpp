/// Picking elements of what records: gather, take, index_select, scatter, scatter_add, masked_select, masked_fill. Shapes, types and errors are
/// those of ops/index.hpp and ops/select.hpp. Indices and masks are tensors.
///
/// Gradient  elements picked get the gradients of their copies, added in an order that shapes and indices alone decide: the same result for any
///           number of threads, and from run to run.
/// Cost      of the gradients: one tensor of x's shape, and a pass over those of the copies. Only indices and masks are kept.
#pragma once

#include <situ/autograd/arrange.hpp>
#include <situ/autograd/cpu/index.hpp>
#include <situ/autograd/operands.hpp>
#include <situ/ops/index.hpp>
#include <situ/ops/select.hpp>

namespace situ::inline SITU_ABI {

// Defined below, and used by the gradients of gradients.
template <class X, class Ix>
  requires(differentiable<X> && detail::index_expression<Ix> && on_same_device<X, Ix>)
auto gather(X const& x, int64_t axis, Ix const& index);
template <class X, class Ix, class S>
  requires((differentiable<X> || differentiable<S>) && (any_formula<S> || number<S>) && any_formula<X> && detail::index_expression<Ix> &&
           on_same_device<X, Ix> && on_same_device<X, S>)
auto scatter(X const& x, int64_t axis, Ix const& index, S const& src);
template <class X, class Ix, class S>
  requires((differentiable<X> || differentiable<S>) && (any_formula<S> || number<S>) && any_formula<X> && detail::index_expression<Ix> &&
           on_same_device<X, Ix> && on_same_device<X, S>)
auto scatter_add(X const& x, int64_t axis, Ix const& index, S const& src);

namespace detail {

template <class E>
auto saved_constant(E const& e) {
  Tensor<value_of<E>, result_device_t<device_of<E>>> const value = evaluated(e);
  return SavedConstant<value_of<E>, result_device_t<device_of<E>>>(value);
}

/// A zero of any shape.
template <class G>
auto zeros_seen_as(G const&, Shape const& shape) {
  auto const zero = zeros<value_of<G>>(Shape::filled(shape.rank(), 1), device_of<G>{});
  return zero.expand(shape);
}

/// g added at the places of `index` along an axis, to zeros.
template <class G, class Ix>
auto added_at(G const& g, Shape const& shape, int64_t axis, Ix const& index) {
  return scatter_add(zeros_seen_as(g, shape), axis, index, g);
}
template <class G, class Ix>
auto slices_scattered(G const& g, Shape const& shape, int axis, Ix const& index) {
  Shape slices = Shape::filled(shape.rank(), 1);
  slices[axis] = index.size();
  return added_at(g, shape, axis, std::as_const(index).reshape(slices).expand(g.shape()));
}
/// The opposite of index_select: slices of g added to those of zeros.
template <class G, class Ix>
auto slices_added_at(G const& g, Shape const& shape, int axis, Ix const& index) {
  using T = value_of<G>;
  if constexpr (!is_recorded<G> && std::is_same_v<T, compute_t<T>> && std::is_same_v<typename device_traits<device_of<G>>::kernels, cpu_kernels>) {
    return added_slices(g, shape, axis, index);
  } else {
    return slices_scattered(g, shape, axis, index);
  }
}

/// Adds what was gathered to a source that has an element for each index, or more.
template <class G, class Ix>
void add_gathered(G const& gathered, Ix const& into) {
  if (into.shape() == gathered.shape()) return into.add(gathered);
  if (into.shape().rank() == 0) return into.add(gathered.reshape({}));
  if (gathered.rank() == 0) return add_gathered(gathered.reshape({1}), into);
  into.add_part([shape = Shape(gathered.shape())](auto const& x) {
    auto part = std::as_const(x).slice(0, 0, shape[0]);
    for (int k = 1; k < shape.rank(); ++k) part = std::as_const(part).slice(k, 0, shape[k]);
    return part;
  }, gathered);
}

}  // namespace detail

/// Elements of x picked along one axis. Gradient: scatter_add(zeros, axis, index, g).
template <class X, class Ix>
  requires(differentiable<X> && detail::index_expression<Ix> && on_same_device<X, Ix>)
auto gather(X const& x, int64_t axis, Ix const& index) {
  auto const saved = detail::saved_constant(index);
  return detail::record_on<false>("Gather", gather(detail::values_of(x), axis, saved.tensor()), x,
                                  detail::linear([shape = Shape(x.shape()), axis, saved](auto const& g) { return detail::added_at(g, shape, axis, saved.tensor()); }));
}
template <class X, class Ix, class Error = detail::recorded_apart_t<X, Ix>>
  requires detail::strange_recorded_operands<X, Ix>
void gather(X const&, int64_t, Ix const&) = delete;

/// Elements of x by their number in row-major order. Gradient: each is added to its element's.
template <class X, class Ix>
  requires(differentiable<X> && detail::index_expression<Ix> && on_same_device<X, Ix>)
auto take(X const& x, Ix const& index) {
  auto const saved = detail::saved_constant(index);
  return detail::record_on<false>("Take", take(detail::values_of(x), saved.tensor()), x, detail::linear([shape = Shape(x.shape()), saved](auto const& g) {
                                    return detail::added_at(g.reshape({-1}), detail::product(shape), 0, saved.tensor().reshape({-1})).reshape(shape);
                                  }));
}
template <class X, class Ix, class Error = detail::recorded_apart_t<X, Ix>>
  requires detail::strange_recorded_operands<X, Ix>
void take(X const&, Ix const&) = delete;
template <class X, class Ix, class Error = detail::recorded_apart_t<X, Ix>>
  requires detail::strange_recorded_operands<X, Ix>
void take(X const&, Ix const&, int64_t) = delete;

/// Whole slices of x along one axis. Gradient: for each j, g.select(axis, j) is added to slice index(j).
template <class X, class Ix>
  requires(differentiable<X> && detail::index_expression<Ix> && on_same_device<X, Ix>)
auto index_select(X const& x, int64_t axis, Ix const& index) {
  auto const saved = detail::saved_constant(index);
  int const k = detail::line_axis(axis, x.shape(), "index_select");
  return detail::record_on<false>("IndexSelect", index_select(detail::values_of(x), axis, saved.tensor()), x,
                                  detail::linear([shape = Shape(x.shape()), k, saved](auto const& g) {
                                    using G = std::remove_cvref_t<decltype(g)>;
                                    return shape.rank() == 0 ? G(g) : G(detail::slices_added_at(g, shape, k, saved.tensor()));  // a number's only slice
                                  }));
}
template <class X, class Ix, class Error = detail::recorded_apart_t<X, Ix>>
  requires detail::strange_recorded_operands<X, Ix>
void index_select(X const&, int64_t, Ix const&) = delete;

/// Index j of an axis `counts[j]` times in a row. Gradient: the sum over the repetitions.
template <class X>
  requires differentiable<X>
auto repeat(X const& x, std::vector<int64_t> const& counts, int64_t axis) {
  using D = detail::result_device_t<device_of<X>>;
  auto value = repeat(detail::values_of(x), counts, axis);
  int const k = detail::checked_axis(axis, x.rank(), x.shape(), "repeat");
  std::vector<int64_t> indices;
  for (std::size_t j = 0; j < counts.size(); ++j) indices.insert(indices.end(), static_cast<std::size_t>(counts[j]), static_cast<int64_t>(j));
  return detail::record_on<false>("RepeatInterleave", std::move(value), x, detail::linear([shape = Shape(x.shape()), k, index = Tensor<int64_t, D>(indices)](auto const& g) {
                                    return detail::slices_added_at(g, shape, k, index);
                                  }));
}

/// A copy of x with elements replaced by those of src, or by a number. Gradient of x: g with 0 at those places; of src: gather(g, axis, index),
/// also for what a later element for the same place has replaced, as in PyTorch.
template <class X, class Ix, class S>
  requires((differentiable<X> || differentiable<S>) && (any_formula<S> || number<S>) && any_formula<X> && detail::index_expression<Ix> &&
           on_same_device<X, Ix> && on_same_device<X, S>)
auto scatter(X const& x, int64_t axis, Ix const& index, S const& src) {
  using T = value_of<X>;
  auto const saved = detail::saved_constant(index);
  auto const to_x = [axis, saved](auto const& g, auto const& into) {
    if (into.needed()) into.add(scatter(g, axis, saved.tensor(), 0));
  };
  if constexpr (!any_formula<S>) {
    return detail::record_on<false>("Scatter", scatter(detail::values_of(x), axis, saved.tensor(), src), x,
                                    detail::linear([axis, saved](auto const& g) { return scatter(g, axis, saved.tensor(), 0); }));
  } else {
    auto const from = detail::operation_input<T>(src);
    auto const base = detail::operation_input<T>(x);
    return detail::record("Scatter", scatter(base.value(), axis, saved.tensor(), from.value()),
                          detail::twice([axis, saved, to_x](auto const& g, auto const& into, auto const& into_src) {
                            to_x(g, into);
                            if (into_src.needed()) detail::add_gathered(gather(g, axis, saved.tensor()), into_src);
                          }),
                          base, from);
  }
}
template <class X, class Ix, class S, class Error = detail::recorded_apart_t<X, Ix, S>>
  requires detail::strange_recorded_operands<X, Ix, S>
void scatter(X const&, int64_t, Ix const&, S const&) = delete;
template <class X, class Ix, number S, class Error = detail::recorded_apart_t<X, Ix>>
  requires detail::strange_recorded_operands<X, Ix>
void scatter(X const&, int64_t, Ix const&, S) = delete;

/// As scatter, but elements are added to those of x. Gradient of x: g; of src: gather(g, axis, index).
template <class X, class Ix, class S>
  requires((differentiable<X> || differentiable<S>) && (any_formula<S> || number<S>) && any_formula<X> && detail::index_expression<Ix> &&
           on_same_device<X, Ix> && on_same_device<X, S>)
auto scatter_add(X const& x, int64_t axis, Ix const& index, S const& src) {
  using T = value_of<X>;
  auto const saved = detail::saved_constant(index);
  if constexpr (!any_formula<S>) {
    return detail::record_on<false>("ScatterAdd", scatter_add(detail::values_of(x), axis, saved.tensor(), src), x, detail::gradient_itself{});
  } else {
    auto const from = detail::operation_input<T>(src);
    auto const base = detail::operation_input<T>(x);
    return detail::record("ScatterAdd", scatter_add(base.value(), axis, saved.tensor(), from.value()),
                          detail::twice([axis, saved](auto const& g, auto const& into, auto const& into_src) {
                            if (into.needed()) into.add(g);
                            if (into_src.needed()) detail::add_gathered(gather(g, axis, saved.tensor()), into_src);
                          }),
                          base, from);
  }
}
template <class X, class Ix, class S, class Error = detail::recorded_apart_t<X, Ix, S>>
  requires detail::strange_recorded_operands<X, Ix, S>
void scatter_add(X const&, int64_t, Ix const&, S const&) = delete;
template <class X, class Ix, number S, class Error = detail::recorded_apart_t<X, Ix>>
  requires detail::strange_recorded_operands<X, Ix>
void scatter_add(X const&, int64_t, Ix const&, S) = delete;

/// x with `value` where the mask is true. A formula. Gradient: g where the mask is false, 0 elsewhere.
template <class X, class M, class V>
  requires(differentiable<X> && expression<M> && std::is_same_v<value_of<M>, bool> && number<V> && on_same_device<X, M> &&
           implicitly_converts_to<weak_t<value_of<X>, typename detail::canonical<V>::type>, value_of<X>>)
auto masked_fill(X const& x, M const& mask, V value) {
  using T = value_of<X>;
  return detail::make_map(functions::where{}, mask, detail::Constant<T>{detail::convert_scalar<compute_t<T>>(detail::convert_scalar<T>(value))}, x);
}
template <class X, class M, class V, class Error = detail::recorded_apart_t<X, M>>
  requires detail::strange_recorded_operands<X, M>
void masked_fill(X const&, M const&, V) = delete;

/// The elements of x where the mask is true. Gradient: g's elements in their places, 0 elsewhere.
template <class X, class M>
  requires(differentiable<X> && expression<M> && std::is_same_v<value_of<M>, bool> && on_same_device<X, M>)
auto masked_select(X const& x, M const& mask) {
  using D = detail::result_device_t<device_of<X>>;
  Shape const whole = detail::broadcast(x.shape(), mask.shape(), "masked_select");
  auto const saved = detail::saved_constant(detail::packed_mask<D>(mask, whole));
  return detail::record_on<false>("MaskedSelect", masked_select(detail::values_of(x), saved.tensor()), x,
                                  detail::linear([shape = Shape(x.shape()), whole, saved](auto const& g) {
                                    auto const places = nonzero(saved.tensor().reshape({-1})).reshape({-1});
                                    using G = std::remove_cvref_t<decltype(g)>;
                                    G const spread = G(scatter(detail::zeros_seen_as(g, detail::product(whole)), 0, places, g)).reshape(whole);
                                    return G(detail::summed_to(spread, shape));
                                  }));
}
template <class X, class M, class Error = detail::recorded_apart_t<X, M>>
  requires detail::strange_recorded_operands<X, M>
void masked_select(X const&, M const&) = delete;

}  // namespace situ::inline SITU_ABI
