/// All reductions of a tensor beside plain loops.
#pragma once

#include <situ/ops/reduce.hpp>

#include <ops/reduce_support.hpp>

#include <cmath>

namespace situ_test {

// ---- plain loops ----------------------------------------------------------------------------------------------------

template <class W>
W sum_of(std::vector<W> const& x) {
  W s = 0;
  for (W const v : x) s += v;
  return s;
}
template <class W>
double norm_of(std::vector<W> const& x) {
  double s = 0;
  for (W const v : x) s += static_cast<double>(v) * static_cast<double>(v);
  return std::sqrt(s);
}
template <class W>
int64_t first_extremum(std::vector<W> const& x, int sign) {
  std::size_t best = 0;
  for (std::size_t k = 1; k < x.size(); ++k) {
    if (sign > 0 ? x[k] > x[best] : x[k] < x[best]) best = k;
  }
  return static_cast<int64_t>(best);
}

/// Counts the elements of `result` that differ from expected(k).
template <class T, class D, class Expected>
void check_values(char const* what, Tensor<T, D> const& result, Shape const& shape, double tolerance, Expected expected) {
  INFO(std::string(what), " of shape ", to_string(result.shape()));
  REQUIRE(to_string(result.shape()) == to_string(shape));
  auto const values = result.to_vector();
  std::size_t wrong = 0, first = 0;
  for (std::size_t k = 0; k < values.size(); ++k) {
    bool right;
    if constexpr (std::is_same_v<T, int64_t>) right = values[k] == static_cast<int64_t>(expected(k));
    else right = close(number_of(static_cast<T>(values[k])), static_cast<double>(expected(k)), tolerance);
    if (!right && wrong++ == 0) first = k;
  }
  if (wrong > 0) {
    INFO("element ", first, " is ", number_of(static_cast<T>(values[first])), " instead of ", static_cast<double>(expected(first)));
    CHECK(wrong == 0);
  }
}

inline constexpr unsigned sums = 1, extrema = 2, everything = sums | extrema;

/// All reductions of x over the axes whose bit is set, with the plain loops' result.
template <class T, class D>
void check_reductions(Tensor<T, D> const& x, Groups<wide<T>> const& groups, unsigned bits, bool keep = false, unsigned which = everything,
                      double tolerance = -1) {
  using R = reducers::mean<T>;
  Shape const axes = axes_of(bits, x.rank());
  Shape const shape = keep ? groups.kept_shape : groups.shape;
  auto const& of = groups.of;
  double const float_tolerance = tolerance < 0 ? tolerance_of<typename R::result>() : tolerance;
  auto const reduced = [&](auto f) { return keep ? f(x, axes, true) : f(x, axes, false); };
#define SITU_REDUCED(NAME) \
  reduced([](auto const& a, Shape const& b, bool k) { return k ? NAME(a, b, keepdim) : NAME(a, b); })
  if (which & sums) {
    check_values("sum", SITU_REDUCED(sum), shape, float_tolerance, [&](std::size_t k) { return sum_of(of[k]); });
    check_values("norm", SITU_REDUCED(norm), shape, float_tolerance, [&](std::size_t k) { return norm_of(of[k]); });
#if defined(__FAST_MATH__)
    if (of.empty() || !of[0].empty())
#endif
      check_values("mean", SITU_REDUCED(mean), shape, float_tolerance,
                   [&](std::size_t k) { return static_cast<double>(sum_of(of[k])) / static_cast<double>(of[k].size()); });
  }
  if (which & extrema) {
    if (!of.empty() && of[0].empty()) {
      CHECK_THROWS_AS(SITU_REDUCED(min), ShapeError);
      CHECK_THROWS_AS(SITU_REDUCED(max), ShapeError);
      CHECK_THROWS_AS(SITU_REDUCED(argmin), ShapeError);
      CHECK_THROWS_AS(SITU_REDUCED(argmax), ShapeError);
      return;
    }
    check_values("min", SITU_REDUCED(min), shape, 0, [&](std::size_t k) { return of[k][static_cast<std::size_t>(first_extremum(of[k], -1))]; });
    check_values("max", SITU_REDUCED(max), shape, 0, [&](std::size_t k) { return of[k][static_cast<std::size_t>(first_extremum(of[k], 1))]; });
    check_values("argmin", SITU_REDUCED(argmin), shape, 0, [&](std::size_t k) { return first_extremum(of[k], -1); });
    check_values("argmax", SITU_REDUCED(argmax), shape, 0, [&](std::size_t k) { return first_extremum(of[k], 1); });
  }
#undef SITU_REDUCED
}

template <class T, class D>
void check_every_subset(Tensor<T, D> const& x) {
  auto const values = values_of(x.to_vector());
  for (unsigned bits = 0; bits < 1u << x.rank(); ++bits) {
    auto const groups = group(values, x.shape(), bits);
    INFO("axes ", to_string(axes_of(bits, x.rank())), " of shape ", to_string(x.shape()), " with strides ", to_string(x.strides()));
    check_reductions(x, groups, bits);
    check_reductions(x, groups, bits, true, sums);
  }
}

}  // namespace situ_test
