/// Comparison of what a GPU computes with what the host does.
#pragma once

#include <cmath>
#include <string>

#include <situ/tensor.hpp>

namespace situ_test {

/// Elements enough for all of a GPU; a tenth of them where the host runs the kernels thread by thread.
#if defined(SITU_TEST_ON_HOST)
constexpr int64_t many(int64_t n) { return n / 10; }
#else
constexpr int64_t many(int64_t n) { return n; }
#endif

template <class T>
double as_double(T x) {
  if constexpr (situ::floating<T>) return static_cast<double>(static_cast<situ::compute_t<T>>(x));
  else return static_cast<double>(x);
}

/// Empty when every element that was computed is within `tolerance` of the expected one, relative to max(1, |expected|);
/// NaN equals NaN, infinities themselves. Otherwise the first difference, in words.
template <class Got, class Expected>
std::string differs(Got const& got, Expected const& expected, double tolerance = 0) {
  auto const x = situ::eval(got).cpu();
  auto const y = situ::eval(expected).cpu();
  if (!(x.shape() == y.shape())) return "shape " + to_string(x.shape()) + ", expected " + to_string(y.shape());
  auto const a = x.to_vector();
  auto const b = y.to_vector();
  for (std::size_t i = 0; i < a.size(); ++i) {
    using A = situ::value_of<decltype(x)>;
    using B = situ::value_of<decltype(y)>;
    double const p = as_double(static_cast<A>(a[i])), q = as_double(static_cast<B>(b[i]));
    if (p == q || (std::isnan(p) && std::isnan(q))) continue;
    if (!std::isinf(p) && !std::isinf(q) && std::abs(p - q) <= tolerance * std::fmax(1.0, std::abs(q))) continue;
    return "element " + std::to_string(i) + " is " + std::to_string(p) + ", expected " + std::to_string(q);
  }
  return "";
}

/// Reads a table from its end: a number that is none of its elements', which are 1 to 64, would make it read behind the table.
struct FromTheEnd {
  float const* table;
  SITU_HOST_DEVICE float operator()(int number) const { return table[64 - number]; }
};
/// run(x, map(FromTheEnd, x)) for such numbers of several shapes, on a device and on the host, gives the same.
template <class D, class F>
std::string looks_up(F const& run, double tolerance) {
  situ::Tensor<float> const table = situ::arange<float>(64);
  situ::Tensor<float, D> const there{table};
  std::string found;
  for (situ::Shape const& shape : {situ::Shape{1, 7}, situ::Shape{3, 33}, situ::Shape{5, 1001}, situ::Shape{1001, 3}, situ::Shape{1, 20003}}) {
    situ::Tensor<int32_t> const numbers = situ::arange<int32_t>(shape[0] * shape[1]).view(shape) % 64 + 1;
    situ::Tensor<int32_t, D> const numbers_there{numbers};
    for (bool turned : {false, true}) {
      auto const seen = [&](auto const& x) { return turned ? x.t() : x; };
      std::string const difference = differs(run(situ::map(FromTheEnd{there.data()}, seen(numbers_there))), run(situ::map(FromTheEnd{table.data()}, seen(numbers))), tolerance);
      if (!difference.empty()) found += "shape " + to_string(shape) + (turned ? ", turned: " : ": ") + difference + "\n";
    }
  }
  return found;
}

/// Numbers from -10 to 10 in steps of 0.01, in an order that looks random, converted to T.
template <class T>
situ::Tensor<T> numbers(situ::Shape const& shape, unsigned seed = 1) {
  auto result = situ::empty<T>(shape);
  unsigned state = seed * 2654435761u;
  for (std::int64_t i = 0; i < result.size(); ++i) {
    state = state * 1664525u + 1013904223u;
    result.data()[i] = situ::detail::convert_scalar<T>(static_cast<double>((state >> 8) % 2001u) / 100 - 10);
  }
  return result;
}

}  // namespace situ_test
