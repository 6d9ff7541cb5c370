/// Elementwise formulas on a GPU, beside a copy that moves as many bytes; in the end many small ones. Results are checked at a few
/// elements.
#include "gpu.hpp"

namespace {

using namespace bench;

/// The elements of y that are looked at, beside formula(i).
template <class Y, class F>
void expect_elements(std::string const& key, Y const& y, double tolerance, F formula) {
  auto const flat = y.flatten();
  for (std::int64_t i = 0; i < flat.size(); i += flat.size() / 23 + 1) {
    expect(key, static_cast<double>(static_cast<float>(flat.item(i))), formula(i), tolerance);
  }
}

template <class T>
void contiguous_and_strided(int bits, bool all) {
  std::int64_t const n = std::int64_t{1} << bits, side = std::int64_t{1} << bits / 2;
  double const bytes = static_cast<double>(n) * sizeof(T), exact = sizeof(T) == 4 ? 4e-6 : 3e-3;
  std::string const type = type_name<T>, size = "/" + type + "/2^" + std::to_string(bits), square = "/" + type + "/" + std::to_string(side) + "^2";
  auto const label = [&](char const* formula) { return std::string(formula) + ", " + type + ", 2^" + std::to_string(bits); };
  using Vector = Tensor<T, Gpu>;
  T const half = static_cast<T>(0.5f);
  auto rounded = [](float x) { return static_cast<double>(static_cast<float>(static_cast<T>(x))); };
  auto at = [=](std::int64_t i) { return rounded(value(i, 0)); };
  auto at_b = [=](std::int64_t i) { return rounded(value(i, 1)); };
  auto at_c = [=](std::int64_t i) { return rounded(value(i, 2)); };
  Vector a = input<T>({n}, 0), b = input<T>({n}, 1), c = input<T>({n}, 2), y = zeros<T>({n}, Gpu{});

  memory_row("chain" + size, label("a*b + c - 0.5f*a"), 0.95, 4 * bytes, [&] { y = a * b + c - half * a; });
  expect_elements("chain" + size, y, exact, [&](std::int64_t i) { return at(i) * at_b(i) + at_c(i) - 0.5 * at(i); });
  memory_row("exp" + size, label("exp(a)"), 0.95, 2 * bytes, [&] { y = exp(a); });
  expect_elements("exp" + size, y, exact, [&](std::int64_t i) { return std::exp(at(i)); });
  if (!all) return;
  memory_row("log" + size, label("log(abs(a) + 1)"), 0.95, 2 * bytes, [&] { y = log(abs(a) + static_cast<T>(1.0f)); });
  expect_elements("log" + size, y, exact, [&](std::int64_t i) { return std::log(std::abs(at(i)) + 1); });
  memory_row("tanh" + size, label("tanh(a*b + c)"), 0.95, 4 * bytes, [&] { y = tanh(a * b + c); });
  expect_elements("tanh" + size, y, exact, [&](std::int64_t i) { return std::tanh(at(i) * at_b(i) + at_c(i)); });
  memory_row("gelu_tanh" + size, label("gelu(a), tanh form"), 0.95, 2 * bytes, [&] { y = gelu(a, approximate_tanh); });
  memory_row("gelu" + size, label("gelu(a), erf form"), 0.95, 2 * bytes, [&] { y = gelu(a); });
  expect_elements("gelu" + size, y, exact, [&](std::int64_t i) { return 0.5 * at(i) * (1 + std::erf(at(i) * 0.7071067811865476)); });
  memory_row("fresh" + size, label("a*b + c, fresh result"), 0.95, 4 * bytes, [&] { Vector const fresh = a * b + c; });
  if constexpr (std::is_same_v<T, float>) {
    Tensor<float16, Gpu> h = cast<float16>(a);
    memory_row("narrow" + size, label("cast<float16>(a)"), 0.95, 1.5 * bytes, [&] { h = cast<float16>(a); });
  }

  Vector const A = a.view({side, side}), B = b.view({side, side}), row = input<T>({side}, 3), column = input<T>({side}, 4);
  Vector Y = y.view({side, side});
  auto at_row = [=](std::int64_t i) { return rounded(value(i % side, 3)); };
  auto at_column = [=](std::int64_t i) { return rounded(value(i / side, 4)); };
  y = Vector{}, c = Vector{};  // Y is the only owner now
  memory_row("add_row" + square, label("matrix + row"), 0.90, 2 * bytes, [&] { Y = A + row; });
  expect_elements("add_row" + square, Y, exact, [&](std::int64_t i) { return at(i) + at_row(i); });
  memory_row("add_column" + square, label("matrix + column"), 0.90, 2 * bytes, [&] { Y = A + column.unsqueeze(1); });
  expect_elements("add_column" + square, Y, exact, [&](std::int64_t i) { return at(i) + at_column(i); });
  memory_row("outer" + square, label("column * row"), 0.90, bytes, [&] { Y = column.unsqueeze(1) * row; });
  expect_elements("outer" + square, Y, exact, [&](std::int64_t i) { return at_column(i) * at_row(i); });
  memory_row("add_transposed" + square, label("A + transpose of B"), 0.80, 3 * bytes, [&] { Y = A + B.t(); });
  expect_elements("add_transposed" + square, Y, exact, [&](std::int64_t i) { return at(i) + at_b(i % side * side + i / side); });
  memory_row("transposed" + square, label("-transpose of B"), 0.80, 2 * bytes, [&] { Y = -B.t(); });
  expect_elements("transposed" + square, Y, exact, [&](std::int64_t i) { return -at_b(i % side * side + i / side); });
  memory_row("every_other" + square, label("every other column of B, doubled"), 0, 1.5 * bytes, [&] { Vector const z = B.slice(1, 0, side, 2) * static_cast<T>(2.0f); });
}

void rows() {
  int const bits = large();
  contiguous_and_strided<float>(bits, true);
  contiguous_and_strided<float16>(bits, true);
  contiguous_and_strided<float>(26, false);
  contiguous_and_strided<float16>(26, false);
}

}  // namespace

int main() { return bench::run(rows); }
