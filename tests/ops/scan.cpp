#include <situ/ops/scan.hpp>

#include <ops/expected/reduce.hpp>
#include <ops/reduce_support.hpp>
#include <support/compare.hpp>

#include <cstring>
#include <stdexcept>
#include <string>

using namespace situ;
using namespace situ_test;

namespace {

/// The running sum or product of a row-major array, by a plain loop.
std::vector<double> scan_of(std::vector<double> const& x, Shape const& shape, int axis, bool product) {
  std::vector<double> y = x;
  int64_t inner = 1;
  for (int k = axis + 1; k < shape.rank(); ++k) inner *= shape[k];
  for (std::size_t i = 0; i < y.size(); ++i) {
    int64_t const at = static_cast<int64_t>(i) / inner % shape[axis];
    if (at > 0) y[i] = product ? y[i - static_cast<std::size_t>(inner)] * x[i] : y[i - static_cast<std::size_t>(inner)] + x[i];
  }
  return y;
}

template <class T, class D>
std::vector<double> numbers_of(Tensor<T, D> const& x) {
  std::vector<double> result;
  auto const values = x.to_vector();
  for (std::size_t k = 0; k < values.size(); ++k) result.push_back(number_of(static_cast<T>(values[k])));
  return result;
}

template <class Y>
void check(char const* what, Y const& found, std::vector<double> const& expected, Shape const& shape, double tolerance) {
  INFO(std::string(what), " of shape ", to_string(shape));
  REQUIRE(found.shape() == shape);
  REQUIRE(found.is_contiguous());
  auto const values = numbers_of(found);
  std::size_t wrong = 0;
  for (std::size_t k = 0; k < values.size(); ++k) {
    double wanted = expected[k];
    if constexpr (sizeof(typename Y::value_type) == 2) wanted = number_of(detail::convert_scalar<typename Y::value_type>(wanted));  // its range, too
    if (close(values[k], wanted, tolerance)) continue;
    if (wrong++ == 0) MESSAGE("element ", k, " is ", values[k], " instead of ", wanted);
  }
  CHECK(wrong == 0);
}

template <class T, class D>
void check_scans(Tensor<T, D> const& x, int first_axis = 0) {
  auto const values = numbers_of(x);
  double const tolerance = floating<T> ? tolerance_of<T>() : 0;
  for (int axis = first_axis; axis < x.rank(); ++axis) {
    INFO("axis ", axis, " with strides ", to_string(x.strides()));
    check("cumsum", cumsum(x, axis), scan_of(values, x.shape(), axis, false), x.shape(), tolerance);
    check("cumprod", cumprod(x, axis - x.rank()), scan_of(values, x.shape(), axis, true), x.shape(), tolerance);
  }
}

/// 1, -1 and, seldom, 2 or 0.5: neither sums nor products of a few dozen leave any type's exact range.
template <class T>
Tensor<T> units(Shape const& shape) {
  Tensor<T> result = empty<T>(shape);
  for (int64_t i = 0; i < result.size(); ++i) {
    int64_t const k = (i * 37 + 11) % 17;
    float const value = k == 3 ? 2.f : k == 5 && floating<T> ? 0.5f : std::is_same_v<T, uint8_t> || k % 2 ? 1.f : -1.f;
    result.data()[i] = detail::convert_scalar<T>(value);
  }
  return result;
}

}  // namespace

TEST_CASE_TEMPLATE("scans agree with plain loops in every layout", T, float, double, float16, int32_t, bool) {
  for_each_instruction_set([] {
    for (Shape const& shape : {Shape{1}, Shape{5}, Shape{67}, Shape{9, 33}, Shape{33, 9}, Shape{1, 9}, Shape{9, 1}, Shape{3, 5, 21}, Shape{2, 3, 1, 5},
                               Shape{0}, Shape{4, 0, 3}}) {
      for_each_layout(units<T>(shape), [](auto const& x) { check_scans(x); });
    }
  });
}

TEST_CASE_TEMPLATE("many short lines, which are taken side by side, are scanned as plain loops do", T, float, double, float16, bool) {
  for_each_instruction_set([] {
    for (Shape const& shape : {Shape{64, 1}, Shape{700, 3}, Shape{2, 531, 5}, Shape{1100, 6}, Shape{70, 17}, Shape{64, 33}, Shape{3, 65, 2, 7}, Shape{66, 100}}) {
      for_each_layout(units<T>(shape), [](auto const& x) { check_scans(x, x.rank() - 1); });
    }
  });
}

TEST_CASE("running sums of short lines do not depend on the number of threads") {
  Tensor<float> const x = sin(arange<float>(270000)).view({90000, 3});
  int const threads = num_threads();
  set_num_threads(1);
  Tensor<float> const one = cumsum(x, 1);
  set_num_threads(2);
  Tensor<float> const two = cumsum(x, 1);
  set_num_threads(threads);
  CHECK(one.to_vector() == two.to_vector());
  auto const values = x.to_vector(), sums = one.to_vector();
  for (std::size_t k = 0; k < values.size(); k += 3) {
    REQUIRE(sums[k] == values[k]);
    REQUIRE(sums[k + 1] == values[k] + values[k + 1]);
    REQUIRE(static_cast<double>(sums[k + 2]) == doctest::Approx(double{values[k]} + double{values[k + 1]} + double{values[k + 2]}).epsilon(1e-6).scale(1));
  }
}

TEST_CASE("scans of every length, along rows and across them") {
  for_each_instruction_set([] {
    Tensor<float> const x = units<float>({20, 150});
    for (int64_t n = 1; n <= 150; n = n < 70 ? n + 1 : n + 13) {
      check_scans(x.slice(1, 0, n));
      check_scans(x.slice(1, 0, n).contiguous());
      check_scans(x.t().slice(0, 0, n).contiguous());
    }
  });
}

TEST_CASE("element types of scans") {
  static_assert(std::is_same_v<decltype(cumsum(Tensor<float>{}, 0)), Tensor<float>>);
  static_assert(std::is_same_v<decltype(cumsum(Tensor<bfloat16>{}, 0)), Tensor<bfloat16>>);
  static_assert(std::is_same_v<decltype(cumsum(Tensor<bool>{}, 0)), Tensor<int64_t>>);
  static_assert(std::is_same_v<decltype(cumprod(Tensor<uint8_t>{}, 0)), Tensor<int64_t>>);
  static_assert(std::is_same_v<decltype(cumsum(Tensor<float, Pinned>{}, 0)), Tensor<float, Cpu>>);
  static_assert(std::is_same_v<decltype(cumsum(Tensor<float, Emulated<1>>{}, 0)), Tensor<float, Emulated<1>>>);
}

TEST_CASE("scans agree with PyTorch") {
  Tensor<float> x = empty({3, 4, 5});
  for (int64_t i = 0; i < 60; ++i) x.data()[i] = static_cast<float>((i * 37 + 11) % 17 - 8) / 4;
  for (auto const& expected : expected::scans) {
    bool const product = std::strcmp(expected.name, "cumprod") == 0;
    check(expected.name, product ? cumprod(x, expected.axis) : cumsum(x, expected.axis), expected.values, x.shape(), 2e-7);
  }
}

TEST_CASE("scans run where their input lives") {
  for (Shape const& shape : {Shape{5}, Shape{33, 17}, Shape{3, 5, 21}, Shape{4, 0, 3}}) {
    Tensor<float> const x = units<float>(shape);
    check_scans(x.to(Emulated<0>{}));
    check_scans(x.to(Pinned{}));
  }
  Tensor<float> const large = uniforms({2'000'000});
  CHECK(cumsum(large.to(Emulated<0>{}), 0).to_vector() == cumsum(large, 0).to_vector());
}

TEST_CASE("long float scans are accurate, and the same bits with one thread and with two") {
  int const threads = num_threads();
  constexpr int64_t n = 3'000'001;
  Tensor<float> const x = uniforms({n});
  for (Tensor<float> const& in : {x, full({n}, 0.1f)}) {
    for_each_instruction_set([&] {
      set_num_threads(1);
      Tensor<float> const one = cumsum(in, 0);
      set_num_threads(2);
      Tensor<float> const two = cumsum(in, 0);
      CHECK(std::memcmp(one.data(), two.data(), static_cast<std::size_t>(n) * 4) == 0);
      double total = 0, worst = 0;
      for (int64_t i = 0; i < n; ++i) {
        total += static_cast<double>(in.data()[i]);
        worst = situ_test::worse(worst, std::fabs(static_cast<double>(one.data()[i]) - total) / total);
      }
      CHECK(worst < 5e-7);
    });
  }
  Tensor<float> const flat = uniforms({3'000'000});
  for (Shape const& shape : {Shape{2, 1500000}, Shape{1500000, 2}, Shape{300000, 10}, Shape{50000, 60}, Shape{1500, 2000}, Shape{600, 5000}, Shape{375, 8000}}) {
    Tensor<float> const m = flat.view(shape);
    for (int axis : {0, 1}) {
      INFO("axis ", axis, " of shape ", to_string(shape));
      auto const expected = scan_of(numbers_of(m), shape, axis, false);
      for (Tensor<float> const& in : {m, m.t().contiguous().t()}) {
        set_num_threads(1);
        Tensor<float> const one = cumsum(in, axis);
        set_num_threads(2);
        Tensor<float> const two = cumsum(in, axis);
        CHECK(std::memcmp(one.data(), two.data(), 12'000'000) == 0);
        check("cumsum", one, expected, shape, 5e-7);
      }
    }
  }
  set_num_threads(threads);
}

namespace {

template <class X>
void check_same_bits(char const* what, X const& scan) {
  INFO(std::string(what));
  set_num_threads(1);
  auto const one = scan();
  for (int run = 0; run < 3; ++run) {  // which thread finds what known differs
    set_num_threads(2);
    auto const two = scan();
    CHECK(std::memcmp(one.data(), two.data(), static_cast<std::size_t>(one.size()) * sizeof(*one.data())) == 0);
  }
}

}  // namespace

TEST_CASE("long scans of all types and of formulas are the same bits with one thread and with two") {
  int const threads = num_threads();
  constexpr int64_t n = 2'500'003;
  Tensor<float> const x = uniforms({n}), y = x.flip(0);
  Tensor<double> const wide = cast<double>(x) / 3.0;
  Tensor<int32_t> const whole = cast<int32_t>(x * 1000.0f);
  Tensor<float16> const half = cast<float16>(uniforms({2 * n}));  // threads share what is 8 MiB or more
  for_each_instruction_set([&] {
    check_same_bits("double", [&] { return cumsum(wide, 0); });
    check_same_bits("int32", [&] { return cumsum(whole, 0); });
    check_same_bits("bool", [&] { return cumsum(x > 0.5f, 0); });
    check_same_bits("float16", [&] { return cumsum(half - float16(0.5f), 0); });
    check_same_bits("formula", [&] { return cumsum(x * y - 0.25f, 0); });
    check_same_bits("formula of doubles", [&] { return cumsum(wide * 1.1 + x, 0); });
    check_same_bits("products", [&] { return cumprod(x * 0.01f + 0.995f, 0); });
    check_same_bits("products of doubles", [&] { return cumprod(wide * 0.01 + 0.9983, 0); });
  });
  set_num_threads(threads);
}

TEST_CASE("running sums beyond the range of floats do not depend on the lines beside them") {
  int const threads = num_threads();
  constexpr int64_t rows = 200, n = 41;
  Tensor<float> x = zeros<float>({rows, n});
  for (int64_t row = 0; row < rows; ++row) {
    float* const line = x.data() + row * n;
    line[0] = std::ldexp(1.0f, 100), line[16] = std::ldexp(1.0f, 76), line[32] = std::ldexp(1.0f, 50), line[39] = 2e38f;
  }
  for_each_instruction_set([&] {
    for (int count : {1, 2}) {
      set_num_threads(count);
      Tensor<float> const y = cumsum(x, 1);
      for (int64_t row = 1; row < rows; ++row) CHECK(std::memcmp(y.data(), y.data() + row * n, n * sizeof(float)) == 0);
      CHECK(y.data()[40] == 2e38f);
    }
  });
  set_num_threads(threads);
}

TEST_CASE("a long line, which is written past the caches, is what its sums are where they leave the range of floats and come back") {
  int const threads = num_threads();
  constexpr int64_t n = 2'300'011;
  float const unit = std::ldexp(1.0f, 104), most = std::ldexp(1.0f, 127);  // the double sums are exact
  Tensor<float> x = round(uniforms({n})) * unit;
  for (auto [at, value] : {std::pair{70'000, 1.5f}, {70'300, -1.5f}, {300'000, -1.75f}, {301'500, 1.0f}, {302'999, 0.75f}, {2'200'000, 1.0f}, {2'290'000, 0.875f}, {2'295'000, -1.25f}, {2'299'999, 0.5f}}) {
    x.data()[at] = value * most;
  }
  std::vector<float> expected(n);
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x.data()[i]), expected[static_cast<std::size_t>(i)] = sum > 3.4028235e38 ? INFINITY : static_cast<float>(sum);
  for_each_instruction_set([&] {
    for (int count : {1, 2}) {
      set_num_threads(count);
      full({n}, -1.0f);  // memory that is taken again holds nothing that was right
      Tensor<float> const y = cumsum(x, 0);
      int64_t wrong = 0;
      for (int64_t i = 0; i < n; ++i) {
        float const e = expected[static_cast<std::size_t>(i)], found = y.data()[i];
        wrong += !(found == e || (std::isfinite(e) && std::abs(found - e) <= 2e-7f * std::abs(e)));
      }
      CHECK(wrong == 0);
    }
  });
  set_num_threads(threads);
}

TEST_CASE("what a function throws within a long line that threads share reaches the caller, and none of them waits for it") {
  int const threads = num_threads();
  constexpr int64_t n = 2'300'003;
  for (int64_t at : {int64_t{100}, n / 2, n - 1}) {
    Tensor<float> x = ones({n});
    x.data()[at] = -1;
    auto const positive = [](float v) {
      if (v < 0) throw std::domain_error("negative");
      return v;
    };
    for (int count : {1, 2, 3}) {
      set_num_threads(count);
      std::string said;
      try {
        eval(cumsum(map(positive, x), 0));
      } catch (std::domain_error const& e) {
        said = e.what();
      }
      CHECK(said == "negative");
      x.data()[at] = 1;
      CHECK(cumsum(map(positive, x), 0).item(n - 1) == static_cast<float>(n));
      x.data()[at] = -1;
    }
  }
  set_num_threads(threads);
}

TEST_CASE("a scan is fused with its input") {
  Tensor<float> const a = units<float>({37, 53}), b = units<float>({53, 37}).t(), row = units<float>({53});
  Tensor<float> const products = a * b, shifted = a + row;
  for_each_instruction_set([&] {
    for (int axis : {0, 1}) {
      CHECK(cumsum(a * b, axis).to_vector() == cumsum(products, axis).to_vector());
      CHECK(cumsum(a + row, axis).to_vector() == cumsum(shifted, axis).to_vector());
      CHECK(cumsum(a + row.slice(0, 0, 37).unsqueeze(1), axis).to_vector() == cumsum(Tensor<float>(a + row.slice(0, 0, 37).unsqueeze(1)), axis).to_vector());
      CHECK(cumsum(a > 0, axis).to_vector() == cumsum(Tensor<bool>(a > 0), axis).to_vector());
    }
  });
}

#if !defined(__FAST_MATH__)
TEST_CASE("a NaN is in every later result, and infinities meet as in IEEE arithmetic") {
  for_each_instruction_set([] {
    for (int64_t at : {0, 3, 15, 16, 30, 47}) {
      Tensor<float> x = ones({48});
      x(at) = NAN;
      auto const y = cumsum(x, 0).to_vector();
      for (int64_t i = 0; i < 48; ++i) CHECK(std::isnan(y[static_cast<std::size_t>(i)]) == (i >= at));
    }
    Tensor<float> x = ones({40});
    x(5) = INFINITY, x(30) = -INFINITY;
    auto const y = cumsum(x, 0).to_vector();
    for (int i = 0; i < 40; ++i) {
      CHECK((i < 5 ? y[static_cast<std::size_t>(i)] == static_cast<float>(i + 1) : i < 30 ? y[static_cast<std::size_t>(i)] == INFINITY : std::isnan(y[static_cast<std::size_t>(i)])));
    }
  });
}
#endif

TEST_CASE("running sums come back from beyond the range of floats") {
  constexpr int64_t n = 2000;
  Tensor<float> x = zeros({n});
  x.data()[0] = x.data()[100] = 3e38f;
  x.data()[1200] = -3e38f;
  for_each_instruction_set([&] {
    Tensor<float> const y = cumsum(x, 0);
    int64_t wrong = 0;
    for (int64_t i = 0; i < n; ++i) wrong += y.data()[i] != (i < 100 || i >= 1200 ? 3e38f : INFINITY);
    CHECK(wrong == 0);
  });
}

TEST_CASE("integers are scanned in 64 bits, which wrap") {
  CHECK(cumsum(full<int8_t>({3}, 127), 0).to_vector() == std::vector<int64_t>{127, 254, 381});
  CHECK(cumprod(full<int32_t>({3}, 2000000), 0).item(2) == 8000000000000000000);
  CHECK(cumsum(Tensor<int64_t>(std::vector<int64_t>{INT64_MAX, 1}), 0).item(1) == INT64_MIN);
}

TEST_CASE("a scan along an axis that does not exist is refused") {
  Tensor<float> const x = zeros({8, 16});
  CHECK(thrown<ShapeError>([&] { cumsum(x, 2); }, "cumsum: axis 2 is out of range for shape [8, 16]: axes are -2 to 1") == "");
  CHECK(thrown<ShapeError>([&] { cumprod(x.select(0, 0).select(0, 0), 1); }, "cumprod: axis 1 is out of range for shape []: it has no axes") == "");
  CHECK(cumsum(x, 1).size() == 128);
}

// Operands that lie across what is scanned are copied beside each other, a box at a time: long ones fill several boxes.
TEST_CASE_TEMPLATE("long operands that lie across", D, Cpu, Emulated<0>) {
  using namespace situ;
  struct Case {
    Shape shape;
    int axis;
  };
  for (Case const& c : {Case{{37, 1300}, 1}, Case{{1300, 37}, 0}, Case{{3, 700, 21}, 1}, Case{{5, 1100, 3}, 1}, Case{{2, 18, 1030}, 2}}) {
    Shape turned = c.shape;
    std::swap(turned[0], turned[c.shape.rank() - 1]);
    std::vector<int64_t> numbers(static_cast<std::size_t>(turned[0] * turned[1] * (turned.rank() > 2 ? turned[2] : 1)));
    for (std::size_t k = 0; k < numbers.size(); ++k) numbers[k] = static_cast<int64_t>(k * 7919 % 1001) - 500;
    Tensor<int64_t, D> const x = Tensor<int64_t>(numbers).reshape(turned).to(D{});
    Tensor<int64_t, D> const across = x.transpose(0, c.shape.rank() - 1), row = across.select(c.axis, 0).unsqueeze(c.axis), along = across.contiguous();
    auto const found = cumsum(across, c.axis).to_vector(), wanted = cumsum(along, c.axis).to_vector();
    CHECK(found == wanted);
    CHECK(cumsum(across * row, c.axis).to_vector() == cumsum(Tensor<int64_t, D>(along * row), c.axis).to_vector());
    CHECK(cumsum(across.flip(c.axis), c.axis).to_vector() == cumsum(Tensor<int64_t, D>(along.flip(c.axis).contiguous()), c.axis).to_vector());
    Tensor<int64_t> const sums = Tensor<int64_t>(wanted).reshape(c.shape), values = along.to(Cpu{});
    for (int64_t i = 1; i < c.shape[c.axis]; ++i) {
      auto const step = Tensor<int64_t>(sums.select(c.axis, i) - sums.select(c.axis, i - 1)).to_vector();
      REQUIRE(step == values.select(c.axis, i).to_vector());
    }
  }
}

TEST_CASE_TEMPLATE("one number is its own running sum along axis 0 and -1, as in PyTorch and NumPy", D, Cpu, Emulated<0>) {
  auto const x = full({}, 5.f, D{});
  CHECK(cumsum(x, 0).item() == 5);
  CHECK(cumsum(x * x, -1).item() == 25);
  CHECK(cumprod(x + 1, 0).item() == 6);
  CHECK(cumsum(full<bool>({}, true, D{}), 0).item() == 1);
  CHECK(cumsum(x, 0).shape() == Shape{});
}
