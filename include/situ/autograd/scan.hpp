/// Running sums and products of what records: cumsum, cumprod. Shapes, types and errors are those of ops/scan.hpp.
#pragma once

#include <situ/autograd/arrange.hpp>
#include <situ/autograd/operands.hpp>
#include <situ/ops/scan.hpp>

namespace situ::inline SITU_ABI {

// Defined below, and used by the gradients of gradients.
template <class E>
  requires differentiable<E>
auto cumsum(E const& x, int64_t axis);
template <class E>
  requires differentiable<E>
auto cumprod(E const& x, int64_t axis);

namespace detail {

/// Running sums from the end.
template <class G>
auto cumsum_from_end(G const& g, int axis) {
  return cumsum(g.flip(axis), axis).flip(axis);
}

/// Σ g_k y_k over k ≥ i, by x_i. From the first 0 of a line on all y are 0: there its gradient is made of products without it, and that of what
/// comes later is 0.
template <class T, class D>
struct CumprodRule {
  using twice = void;
  Saved<T, D> x, y;
  int axis;

  template <class G, class Ix>
  void operator()(G const& g, Ix const& into) const {
    if (!into.needed()) return;
    if constexpr (is_recorded<G>) {
      using C = compute_t<T>;
      using L = Lane<C, D>;
      L const seed = lane_of<C>(g), values = lane_of<C>(x.variable()), zero(C(0)), one(C(1));
      auto const from_end = [&](L const& products) { return L(Variable<C, D>(cumsum_from_end((seed * products).variable(), axis))); };
      L const sums = from_end(lane_of<C>(own_result(y, g, into)));
      Tensor<bool, D> const zeros(x.tensor() == 0);
      if constexpr (std::is_same_v<D, Cpu>) {
        if (!any(zeros).item()) return add_lane<G>(sums / values, into.shape(), into);
      }
      // By the first two zeros the gradient is made of products without them, on which the other one has an influence; by later ones it is 0.
      Tensor<int64_t, D> const number = cumsum(zeros, axis);
      auto const which = [&](int64_t n) { return LaneMask<D>(Tensor<bool, D>(zeros && number == n)); };
      auto const without = [&](LaneMask<D> const& mask) { return from_end(L(Variable<C, D>(cumprod(select(mask, one, values).variable(), axis)))); };
      LaneMask<D> const first = which(1), second = which(2), is_zero(zeros);
      add_lane<G>(select(first, without(first), select(second, without(second), select(is_zero, zero, sums / select(is_zero, one, values)))), into.shape(), into);
    } else {
      auto const& values = x.tensor();
      auto const sums = cumsum_from_end(Tensor<T, D>(g * y.tensor()), axis);
      if constexpr (std::is_same_v<D, Cpu>) {  // elsewhere looking would mean to wait
        if (!any(values == 0).item()) return into.add(sums / values);
      }
      auto const first = Tensor<bool, D>((values == 0) && (cumsum(values == 0, axis) == 1));
      auto const without_it = cumprod(where(first, 1, values), axis);
      auto const sums_without_it = cumsum_from_end(Tensor<T, D>(g * without_it), axis);
      into.add(Tensor<T, D>(where(first, sums_without_it, where(values == 0, 0, sums / values))));
    }
  }
};

}  // namespace detail

/// Running sums. Gradient: the running sums of g, from the end.
template <class E>
  requires differentiable<E>
auto cumsum(E const& x, int64_t axis) {
  int const k = detail::line_axis(axis, x.shape(), "cumsum");
  return detail::record_on<false>("Cumsum", cumsum(detail::values_of(x), k), x, detail::linear([k](auto const& g) { return detail::cumsum_from_end(g, k); }));
}

/// Running products. Gradient: the running sums of g y from the end, by x; beside zeros as the definition says. Third derivatives hold where at
/// most two elements of a line are 0.
template <class E>
  requires differentiable<E>
auto cumprod(E const& x, int64_t axis) {
  using T = value_of<E>;
  int const k = detail::line_axis(axis, x.shape(), "cumprod");
  using D = detail::result_device_t<device_of<E>>;
  Variable<T, D> const v = detail::record_transfer<D>(detail::operation_input<T>(x));
  auto const y = cumprod(v.value(), k);
  return detail::record("Cumprod", y, detail::CumprodRule<T, D>{detail::Saved<T, D>(v), detail::Saved<T, D>(y), k}, v);
}

}  // namespace situ::inline SITU_ABI
