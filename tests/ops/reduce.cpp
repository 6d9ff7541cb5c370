#include <situ/ops/reduce.hpp>

#include <ops/reduce_checks.hpp>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

using namespace situ;
using namespace situ_test;

// ---- values ---------------------------------------------------------------------------------------------------------

TEST_CASE_TEMPLATE("every reduction over every subset of axes agrees with plain loops", T, float, int32_t) {
  for_each_instruction_set([] {
    for (Shape const& shape : {Shape{}, Shape{1}, Shape{5}, Shape{67}, Shape{3, 4}, Shape{33, 17}, Shape{1, 9}, Shape{9, 1}, Shape{7, 1, 3},
                               Shape{2, 3, 4, 5}, Shape{3, 5, 21}, Shape{4, 1, 2, 3, 2}, Shape{2, 2, 2, 2, 2, 2, 2, 2}}) {
      for_each_layout(scattered<T>(shape), [](auto const& x) { check_every_subset(x); });
    }
  });
}

TEST_CASE("rows of every length reduce to their plain sums and places") {
  for_each_instruction_set([] {
    Tensor<float> const x = scattered<float>({1100});
    for (int64_t n = 1; n <= 1100; n = n < 300 ? n + 1 : n + 37) {
      Tensor<float> const row = x.slice(0, 0, n);
      check_reductions(row, group(values_of(row.to_vector()), row.shape(), 1u), 1u);
    }
  });
}

TEST_CASE("negative axes count from the end") {
  Tensor<float> const x = scattered<float>({3, 4, 5});
  CHECK(sum(x, -1).to_vector() == sum(x, 2).to_vector());
  CHECK(max(x, {-3, -1}).to_vector() == max(x, {0, 2}).to_vector());
  CHECK(max(x, {-1, 0}).to_vector() == max(x, {0, 2}).to_vector());
  CHECK(argmin(x, {-2}, keepdim).shape() == Shape{3, 1, 5});
}

TEST_CASE("the order in which axes are named does not matter to argmax") {
  Tensor<float> const x = scattered<float>({3, 4, 5});
  CHECK(argmax(x, {2, 0}).to_vector() == argmax(x, {0, 2}).to_vector());
}

TEST_CASE("without axes a reduction covers everything, and keepdim keeps the rank") {
  Tensor<float> const x{{1, 2, 3}, {4, 5, 6}};
  CHECK(sum(x).shape() == Shape{});
  CHECK(sum(x).item() == 21.f);
  CHECK(sum(x, keepdim).shape() == Shape{1, 1});
  CHECK(mean(x, keepdim).item() == 3.5f);
  CHECK(argmax(x).item() == 5);
  CHECK(argmin(x, keepdim).shape() == Shape{1, 1});
  CHECK(max(x, Shape{}).to_vector() == x.to_vector());
  CHECK(argmax(x, Shape{}).to_vector() == std::vector<int64_t>(6, 0));
}

TEST_CASE("element types of results") {
  static_assert(std::is_same_v<decltype(sum(Tensor<bool>{})), Tensor<int64_t>>);
  static_assert(std::is_same_v<decltype(sum(Tensor<uint8_t>{})), Tensor<int64_t>>);
  static_assert(std::is_same_v<decltype(sum(Tensor<float16>{})), Tensor<float16>>);
  static_assert(std::is_same_v<decltype(sum(Tensor<double>{}, 0)), Tensor<double>>);
  static_assert(std::is_same_v<decltype(mean(Tensor<int32_t>{})), Tensor<float>>);
  static_assert(std::is_same_v<decltype(mean(Tensor<bfloat16>{}, {0}, keepdim)), Tensor<bfloat16>>);
  static_assert(std::is_same_v<decltype(min(Tensor<bool>{})), Tensor<bool>>);
  static_assert(std::is_same_v<decltype(max(Tensor<int8_t>{}, keepdim)), Tensor<int8_t>>);
  static_assert(std::is_same_v<decltype(argmax(Tensor<double>{})), Tensor<int64_t>>);
  static_assert(std::is_same_v<decltype(norm(Tensor<int64_t>{})), Tensor<float>>);
  static_assert(std::is_same_v<decltype(norm(Tensor<double>{})), Tensor<double>>);
  static_assert(std::is_same_v<decltype(sum(Tensor<float, Pinned>{})), Tensor<float, Cpu>>);
  static_assert(std::is_same_v<decltype(sum(Tensor<float, Emulated<1>>{})), Tensor<float, Emulated<1>>>);
}

// ---- every path -----------------------------------------------------------------------------------------------------

TEST_CASE("short, long, wide and few reductions agree with sums in double") {
  struct Case {
    Shape shape, axes;
  };
  // Short rows; long rows; strips with odd columns; more columns than one strip holds; outputs cut into parts: along a row, over
  // rows, and over strips; groups of axes that cannot be joined.
  Case const cases[] = {{{1000, 3}, {1}},       {{1000, 3}, {0}},        {{3, 40001}, {1}},       {{131, 517}, {0}},       {{70, 4099}, {0}},
                        {{9, 8195}, {0}},       {{3, 100, 33}, {1}},     {{3000001}, {0}},        {{2, 1500000}, {1}},     {{1500000, 2}, {0}},
                        {{200001, 9}, {0}},     {{40001, 4, 40}, {0, 2}}, {{100, 10, 1000}, {0, 2}}, {{2, 800000, 2}, {0, 1}}, {{1, 1400000, 1}, {1}},
                        {{400, 4100}, {0}},     {{3, 7, 5, 11, 13}, {1, 3}}, {{150000, 1, 3, 4}, {0, 2}}, {{5000, 33, 9}, {0, 1}}};
  for (Case const& each : cases) {
    Tensor<float> const x = uniforms(each.shape);
    unsigned bits = 0;
    for (int64_t axis : each.axes) bits |= 1u << axis;
    auto const groups = group(values_of(x.to_vector()), x.shape(), bits);
    INFO("axes ", to_string(each.axes), " of shape ", to_string(each.shape));
    for_each_instruction_set([&] { check_reductions(x, groups, bits, false, everything, 1e-6); });
    if (x.rank() > 1) {
      Shape backwards, lies;
      for (int k = x.rank() - 1; k >= 0; --k) backwards.push_back(k), lies.push_back(each.shape[k]);
      Tensor<float> turned = empty(lies).permute(backwards);
      turned.assign(x);
      INFO("with axes reversed in memory");
      check_reductions(turned, groups, bits, false, everything, 1e-6);
    }
  }
}

TEST_CASE("indices are found beyond 2^16 elements, in rows and in strips") {
  Tensor<float> x = zeros({3, 200000});
  x(0, 199999) = 1, x(1, 70000) = 1, x(2, 0) = 1;
  CHECK(argmax(x, 1).to_vector() == std::vector<int64_t>{199999, 70000, 0});
  CHECK(argmax(x).item() == 0 * 200000 + 199999);
  Tensor<float> const columns = x.t().contiguous().unsqueeze(2).expand({200000, 3, 4}).contiguous();
  CHECK(argmax(columns, 0).to_vector() == std::vector<int64_t>{199999, 199999, 199999, 199999, 70000, 70000, 70000, 70000, 0, 0, 0, 0});
  Tensor<int8_t> bytes = zeros<int8_t>({100000});
  bytes(99999) = -1;
  CHECK(argmin(bytes).item() == 99999);
}

TEST_CASE("the first of equal extrema is found wherever it stands") {
  for_each_instruction_set([] {
    for (int64_t n : {2, 5, 16, 33, 100, 129}) {
      for (int64_t first = 0; first + 1 < n; ++first) {
        Tensor<float> row = zeros({n});
        row(first) = -1, row(n - 1) = -1;
        CHECK(argmin(row).item() == first);
        CHECK(argmax(-row).item() == first);
        Tensor<float> const strip = row.unsqueeze(1).expand({n, 9}).contiguous();
        CHECK(argmin(strip, 0).to_vector() == std::vector<int64_t>(9, first));
      }
    }
  });
}

TEST_CASE("argmax and argmin find what a loop finds among few values, infinities and NaN") {
  constexpr float inf = std::numeric_limits<float>::infinity();
  for_each_instruction_set([] {
    std::mt19937 random(7);
    int wrong = 0;
    for (int round = 0; round < 400; ++round) {
      auto const n = static_cast<int64_t>(1 + random() % (round % 8 == 0 ? 50'000 : 4'000));
      std::vector<float> values(static_cast<std::size_t>(n));
      for (float& value : values) value = static_cast<float>(random() % 3);
      for (float const special : {inf, -inf, -inf, std::nanf("")}) {
        if (random() % 4 == 0) values[random() % values.size()] = special;
      }
      for (int const sign : {1, -1}) {
        std::size_t first = 0;
        for (std::size_t k = 1; k < values.size() && !std::isnan(values[first]); ++k) {
          if (std::isnan(values[k]) || (sign > 0 ? values[k] > values[first] : values[k] < values[first])) first = k;
        }
        Tensor<float> const x(values);
        wrong += (sign > 0 ? argmax(x) : argmin(x)).item() != static_cast<int64_t>(first);
      }
    }
    CHECK(wrong == 0);
  });
}

TEST_CASE("argmax and argmin of many rows find what a loop finds in each, however short the rows are") {
  constexpr float inf = std::numeric_limits<float>::infinity();
  for_each_instruction_set([] {
    std::mt19937 random(11);
    for (int64_t const columns : {1, 2, 3, 7, 8, 10, 15, 16, 17, 31, 33, 63, 64, 65, 100, 130, 400}) {
      constexpr int64_t rows = 150;
      std::vector<float> values(static_cast<std::size_t>(rows * columns));
      for (float& value : values) value = random() % 50 == 0 ? (random() % 3 == 0 ? std::nanf("") : random() % 2 == 0 ? inf : -inf) : static_cast<float>(random() % 9) - 4;
      Tensor<float> const x(values, {rows, columns});
      Tensor<int64_t> const most = argmax(x, 1), least = argmin(x, 1), of_formula = argmin(-x, 1);
      int wrong = 0;
      for (int64_t row = 0; row < rows; ++row) {
        for (int const sign : {1, -1}) {
          int64_t first = 0;
          for (int64_t k = 1; k < columns && !std::isnan(x(row, first)); ++k) {
            if (std::isnan(x(row, k)) || (sign > 0 ? x(row, k) > x(row, first) : x(row, k) < x(row, first))) first = k;
          }
          wrong += (sign > 0 ? most : least)(row) != first;
          wrong += sign > 0 && of_formula(row) != first;
        }
      }
      CAPTURE(columns);
      CHECK(wrong == 0);
    }
  });
}

TEST_CASE("the first of equal extrema is found in every block of a long tensor") {
  int const threads = num_threads();
  constexpr int64_t n = 1'600'003;
  Tensor<float> x = zeros({n});
  for (int const count : {1, 2}) {
    set_num_threads(count);
    for_each_instruction_set([&] {
      for (int64_t const first : {int64_t{0}, int64_t{15}, int64_t{63}, int64_t{1023}, int64_t{4095}, int64_t{4096}, int64_t{4160}, int64_t{98'303}, int64_t{98'304}, int64_t{800'001}, n - 3, n - 1}) {
        for (int64_t const second : {first, first + 1, first + 70, n - 1}) {
          if (second >= n) continue;
          x(first) = 2, x(second) = 2;
          CHECK(argmax(x).item() == first);
          CHECK(argmin(-x).item() == first);
          CHECK(max(x).item() == 2);
          x(first) = 0, x(second) = 0;
        }
        x(first) = -INFINITY;
        CHECK(argmin(x).item() == first);
        CHECK(argmax(x).item() == (first == 0 ? 1 : 0));
        CHECK(min(x).item() == -INFINITY);
        x(first) = NAN;
        CHECK(argmax(x).item() == first);
        CHECK(std::isnan(max(x).item()));
        x(first) = 0;
      }
    });
  }
  set_num_threads(threads);
}

TEST_CASE("results are the same bits with one thread and with two") {
  int const threads = num_threads();
  Tensor<float> const x = uniforms({1500, 2000}) - 0.5f;
  auto const same = [&](auto f) {
    set_num_threads(1);
    auto const one = f();
    set_num_threads(2);
    auto const two = f();
    REQUIRE(one.shape() == two.shape());
    CHECK(std::memcmp(one.data(), two.data(), static_cast<std::size_t>(one.size()) * sizeof(*one.data())) == 0);
  };
  Tensor<float> const tall = x.reshape({300000, 10}), flat = x.reshape({2, 1500000});
  same([&] { return sum(x); });
  same([&] { return sum(x, 0); });
  same([&] { return sum(x, 1); });
  same([&] { return sum(tall, 0); });
  same([&] { return sum(flat, 1); });
  same([&] { return sum(x.t()); });
  same([&] { return mean(square(x) * x, 0); });
  same([&] { return norm(tall, 0); });
  same([&] { return argmax(x); });
  same([&] { return argmin(tall, 0); });
  same([&] { return max(flat, 1); });
  set_num_threads(threads);
}

// ---- accuracy -------------------------------------------------------------------------------------------------------

TEST_CASE("sums of ten million floats are within 1e-6 of the sum in double") {
  constexpr int64_t n = 10'000'000;
  auto const check = [&](Tensor<float> const& x) {
    double expected = 0, magnitude = 0, squares = 0;
    for (int64_t i = 0; i < n; ++i) {
      double const v = static_cast<double>(x.data()[i]);
      expected += v, magnitude += std::fabs(v), squares += v * v;
    }
    for_each_instruction_set([&] {
      CHECK(std::fabs(static_cast<double>(sum(x).item()) - expected) <= 1e-6 * std::fabs(expected));
      CHECK(std::fabs(static_cast<double>(mean(x).item()) - expected / n) <= 1e-6 * std::fabs(expected / n));
      CHECK(close(static_cast<double>(norm(x).item()), std::sqrt(squares), 1e-6));
      CHECK(std::fabs(static_cast<double>(sum(sum(x.view({1000, 10000}), 0)).item()) - expected) <= 1e-6 * magnitude);
      CHECK(std::fabs(static_cast<double>(sum(sum(x.view({1000, 10000}), 1)).item()) - expected) <= 1e-6 * magnitude);
      CHECK(std::fabs(static_cast<double>(sum(sum(x.view({1000000, 10}), 0)).item()) - expected) <= 1e-6 * magnitude);
      CHECK(std::fabs(static_cast<double>(sum(x.view({5000000, 2}).t()).item()) - expected) <= 1e-6 * std::fabs(expected));
    });
  };
  SUBCASE("uniform") { check(uniforms({n})); }
  SUBCASE("all equal") { check(full({n}, 0.1f)); }
  SUBCASE("alternating magnitudes") {
    Tensor<float> x = empty({n});
    for (int64_t i = 0; i < n; ++i) x.data()[i] = i % 2 ? 1e-3f * (1 + uniform_at(i)) : 1e4f * (1 + uniform_at(i));
    check(x);
  }
  SUBCASE("a large element first") {
    Tensor<float> x = uniforms({n});
    x(0) = 1e6f;
    check(x);
  }
}

TEST_CASE("sums of doubles along very short rows are added in pairs") {
  int64_t const n = 400'000;
  Tensor<double> const gapped = full<double>({n, 4}, 0.1)(all(), range(0, 3)), narrow = full<double>({4, n}, 0.1).t()(all(), range(0, 4, 2));
  for_each_instruction_set([&] {
    CHECK(std::fabs(sum(gapped).item() / (0.1L * 3 * n) - 1) < 4e-15L);
    CHECK(std::fabs(sum(gapped * gapped).item() / (0.01L * 3 * n) - 1) < 4e-15L);
    CHECK(std::fabs(norm(gapped).item() / std::sqrt(0.01L * 3 * n) - 1) < 4e-15L);
    CHECK(std::fabs(mean(narrow).item() / 0.1L - 1) < 4e-15L);
  });
}

TEST_CASE("sums of costly expressions are as accurate as sums of tensors") {
  constexpr int64_t n = 2'000'000;
  Tensor<float> const x = full({n}, 0.3f);
  double const each = static_cast<double>(exp(x.slice(0, 0, 1)).item()), expected = each * n;
  for_each_instruction_set([&] {
    CHECK(close(static_cast<double>(sum(exp(x)).item()), expected, 1e-6));
    CHECK(close(static_cast<double>(sum(exp(x.view({1000, 2000})), 0).item(7)), each * 1000, 1e-6));
    CHECK(close(static_cast<double>(sum(exp(x.view({100, 20000})), 1).item(7)), each * 20000, 1e-6));
  });
}

TEST_CASE("16-bit floats are summed in float") {
  for_each_instruction_set([] {
    CHECK(static_cast<float>(sum(full<float16>({10000}, 1)).item()) == 10000.f);  // 2048 when summed in float16
    CHECK(static_cast<float>(mean(full<float16>({100000}, 3)).item()) == 3.f);
    CHECK(static_cast<float>(mean(full<float16>({4}, 65504)).item()) == 65504.f);
    CHECK(static_cast<float>(norm(Tensor<float16>{300, 400}).item()) == 500.f);
    CHECK(static_cast<float>(sum(full<bfloat16>({1000}, 1)).item()) == 1000.f);  // 256 when summed in bfloat16
  });
}

// ---- special values -------------------------------------------------------------------------------------------------

TEST_CASE("integers are summed in 64 bits, which wrap") {
  CHECK(sum(full<int8_t>({1000}, 127)).item() == 127000);
  CHECK(sum(full<uint8_t>({1000}, 255)).item() == 255000);
  CHECK(sum(full<int32_t>({4}, 2147483647)).item() == 8589934588);
  CHECK(sum(Tensor<int64_t>(std::vector<int64_t>{INT64_MAX, 1})).item() == INT64_MIN);
  CHECK(mean(full<int64_t>({3}, INT64_MAX)).item() == 9223372036854775808.f);
  CHECK(sum(Tensor<bool>{true, false, true}).item() == 2);
  CHECK(static_cast<double>(mean(Tensor<bool>{true, false, true}).item()) == doctest::Approx(2.0 / 3));
  CHECK(min(Tensor<int64_t>(std::vector<int64_t>{INT64_MAX, INT64_MAX - 1})).item() == INT64_MAX - 1);
  CHECK(argmax(Tensor<int64_t>(std::vector<int64_t>{INT64_MAX - 1, INT64_MAX})).item() == 1);
  CHECK(max(Tensor<int8_t>{-128, -127}).item() == -127);
  CHECK(min(Tensor<bool>{true, true}).item() == true);
  CHECK(max(Tensor<bool>{false, false}).item() == false);
  CHECK(argmax(Tensor<bool>{false, true, true}).item() == 1);
}

TEST_CASE("reductions of nothing are 0 where that is defined") {
  CHECK(sum(zeros({0})).item() == 0.f);
  CHECK(sum(zeros<int32_t>({0, 3})).item() == 0);
  CHECK(norm(zeros({0})).item() == 0.f);
  CHECK(sum(zeros({0, 3}), 0).to_vector() == std::vector<float>{0, 0, 0});
  CHECK(sum(zeros({3, 0}), 1).to_vector() == std::vector<float>{0, 0, 0});
  CHECK(sum(zeros({20, 0, 9}), 1, keepdim).to_vector() == std::vector<float>(180, 0.f));
  CHECK(sum(zeros({0, 3}), 1).shape() == Shape{0});
  CHECK(max(zeros({0, 3}), 1).shape() == Shape{0});  // no results: no element is missed
  CHECK(argmin(zeros({5, 0}), 0).shape() == Shape{0});
  CHECK(sum(Tensor<float>{}).item() == 0.f);
  for_each_layout(scattered<float>({4, 0, 3}), [](auto const& x) { check_every_subset(x); });
  for_each_layout(scattered<int8_t>({0}), [](auto const& x) { check_every_subset(x); });
}

TEST_CASE("sums give back -0 and overflow as IEEE says") {
  float const huge = std::numeric_limits<float>::max();
  CHECK(sum(Tensor<float>{huge, huge, -huge}).item() == huge);  // summed apart from the range of the result
  CHECK(static_cast<float>(sum(Tensor<float16>{65504, 65504}).item()) == std::numeric_limits<float>::infinity());
  CHECK(min(Tensor<float>{1, std::numeric_limits<float>::infinity()}).item() == 1.f);
}

#if !defined(__FAST_MATH__)
TEST_CASE("NaN and infinities reduce as in NumPy") {
  float const inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for_each_instruction_set([&] {
    CHECK(std::isnan(sum(Tensor<float>{1, nan, 2}).item()));
    CHECK(std::isnan(mean(Tensor<float>{1, nan, 2}).item()));
    CHECK(std::isnan(norm(Tensor<float>{1, nan, 2}).item()));
    CHECK(std::isnan(sum(Tensor<float>{inf, -inf}).item()));
    CHECK(sum(Tensor<float>{inf, 1}).item() == inf);
    CHECK(mean(Tensor<float>{-inf, 1}).item() == -inf);
    CHECK(norm(Tensor<float>{-inf, 1}).item() == inf);
    CHECK(std::isnan(mean(zeros({0})).item()));
    CHECK(std::isnan(mean(zeros<int32_t>({0})).item()));
    CHECK(min(Tensor<float>{inf, inf}).item() == inf);
    CHECK(max(Tensor<float>{-inf, -inf}).item() == -inf);
    CHECK(argmin(Tensor<float>{inf, inf, -inf, -inf}).item() == 2);
    CHECK(argmax(Tensor<float>{-inf, -inf}).item() == 0);
    CHECK(argmax(Tensor<float>{1, nan, inf, nan}).item() == 1);
    CHECK(argmin(Tensor<float>{1, nan, -inf, nan}).item() == 1);
    CHECK(argmin(Tensor<float>{nan, nan}).item() == 0);
  });
}

TEST_CASE_TEMPLATE("one NaN is found wherever it stands", T, float, double, float16) {
  T const nan = detail::convert_scalar<T>(std::numeric_limits<float>::quiet_NaN());
  auto const is_nan = [](T x) { return std::isnan(number_of(x)); };
  for_each_instruction_set([&] {
    for (int64_t n : {1, 2, 7, 16, 31, 64, 65, 131, 300}) {
      for (int64_t at = 0; at < n; at += n > 100 ? 13 : 1) {
        Tensor<T> row = scattered<T>({n}).clone();
        row(at) = nan;
        if (at + 3 < n) row(at + 3) = nan;
        CHECK(is_nan(sum(row).item()));
        CHECK(is_nan(min(row).item()));
        CHECK(is_nan(max(row).item()));
        CHECK(argmin(row).item() == at);
        CHECK(argmax(row).item() == at);
        Tensor<T> const strip = row.unsqueeze(1).expand({n, 11}).contiguous();
        CHECK(argmin(strip, 0).to_vector() == std::vector<int64_t>(11, at));
        CHECK(argmax(strip, 0).item(10) == at);
        CHECK(is_nan(min(strip, 0).item(10)));
        CHECK(is_nan(max(strip, 0).item(0)));
      }
    }
    Tensor<T> parts = zeros<T>({3000000});
    parts(2999998) = nan, parts(1400000) = nan;
    CHECK(argmin(parts).item() == 1400000);
    CHECK(argmax(parts).item() == 1400000);
    CHECK(is_nan(max(parts).item()));
  });
}
#endif

// ---- fused inputs ---------------------------------------------------------------------------------------------------

TEST_CASE("a reduction is fused with its input") {
  Tensor<float> const a = scattered<float>({37, 53}), b = scattered<float>({53, 37}).t(), row = scattered<float>({53});
  auto const va = values_of(a.to_vector()), vb = values_of(b.to_vector()), vr = values_of(row.to_vector());
  std::vector<double> products(va.size()), scaled(va.size());
  for (std::size_t i = 0; i < va.size(); ++i) products[i] = va[i] * vb[i], scaled[i] = (va[i] - vr[i % 53]) * 2 + 1;
  for_each_instruction_set([&] {
    for (unsigned bits = 0; bits < 4; ++bits) {
      auto const of_products = group(products, a.shape(), bits), of_scaled = group(scaled, a.shape(), bits);
      Shape const axes = axes_of(bits, 2);
      check_values("sum(a * b)", sum(a * b, axes), of_products.shape, 2e-7, [&](std::size_t k) { return sum_of(of_products.of[k]); });
      check_values("argmax((a - row) * 2 + 1)", argmax((a - row) * 2 + 1, axes), of_scaled.shape, 0,
                   [&](std::size_t k) { return first_extremum(of_scaled.of[k], 1); });
      check_values("sum((a - row) * 2 + 1)", sum((a - row) * 2 + 1, axes, keepdim), of_scaled.kept_shape, 2e-7,
                   [&](std::size_t k) { return sum_of(of_scaled.of[k]); });
    }
    CHECK(sum(a > 0).item() == [&] {
      int64_t n = 0;
      for (double v : va) n += v > 0;
      return n;
    }());
    CHECK(max(cast<double>(a) * 0.5).item() == 4.0);
    CHECK(static_cast<double>(mean(where(a > 0, a, 0)).item()) == doctest::Approx([&] {
            double s = 0;
            for (double v : va) s += v > 0 ? v : 0;
            return s / static_cast<double>(va.size());
          }()));
    CHECK(sum(map([](float v) { return v * 3; }, a)).item() == 3 * sum(a).item());
  });
}

TEST_CASE("the nearest of several centres is two reductions in a row") {
  Tensor<float> const x = uniforms({61, 19}), c = uniforms({7 * 19 + 100}).slice(0, 100, 7 * 19 + 100).view({7, 19});
  std::vector<int64_t> expected;
  for (int64_t i = 0; i < 61; ++i) {
    int64_t best = 0;
    double least = 1e30;
    for (int64_t j = 0; j < 7; ++j) {
      double distance = 0;
      for (int64_t k = 0; k < 19; ++k) distance += std::pow(static_cast<double>(x(i, k)) - static_cast<double>(c(j, k)), 2);
      if (distance < least) least = distance, best = j;
    }
    expected.push_back(best);
  }
  for_each_instruction_set([&] { CHECK(argmin(sum(square(x.unsqueeze(1) - c.unsqueeze(0)), 2), 1).to_vector() == expected); });
}

TEST_CASE("a reduction is an operand like any tensor") {
  Tensor<float> const x{{1, 2, 3}, {4, 5, 6}};
  Tensor<float> const centred = x - mean(x, 1, keepdim);
  CHECK(centred.to_vector() == std::vector<float>{-1, 0, 1, -1, 0, 1});
  Tensor<float> const mixed = sum(x, 0) + max(x, 1, keepdim);
  CHECK(mixed.to_vector() == std::vector<float>{8, 10, 12, 11, 13, 15});
}

// ---- devices --------------------------------------------------------------------------------------------------------

TEST_CASE("reductions run where their input lives") {
  for (Shape const& shape : {Shape{5}, Shape{33, 17}, Shape{3, 5, 21}, Shape{4, 0, 3}}) {
    Tensor<float> const x = scattered<float>(shape);
    check_every_subset(x.to(Emulated<0>{}));
    check_every_subset(x.to(Emulated<1>{}));
    check_every_subset(x.to(Pinned{}));
  }
  Tensor<float> const large = uniforms({2, 1500000});
  CHECK(sum(large.to(Emulated<0>{}), 1).to_vector() == sum(large, 1).to_vector());  // in parts, merged by a second launch
  CHECK(argmax(large.to(Emulated<0>{})).item() == argmax(large).item());
}

// ---- bad input ------------------------------------------------------------------------------------------------------

TEST_CASE("an axis that does not exist is named with the shape and the axes that do") {
  Tensor<float> const x = zeros({8, 16});
  CHECK_THROWS_WITH_AS(sum(x, 2), "sum: axis 2 is out of range for shape [8, 16]: axes are -2 to 1", ShapeError);
  CHECK_THROWS_WITH_AS(mean(x, -3), "mean: axis -3 is out of range for shape [8, 16]: axes are -2 to 1", ShapeError);
  CHECK_THROWS_WITH_AS(argmin(x, {0, 7}, keepdim), "argmin: axis 7 is out of range for shape [8, 16]: axes are -2 to 1", ShapeError);
  CHECK_THROWS_WITH_AS(norm(x.select(0, 0), 1), "norm: axis 1 is out of range for shape [16]: axes are -1 to 0", ShapeError);
  CHECK_THROWS_WITH_AS(max(sum(x), 1), "max: axis 1 is out of range for shape []: it has no axes", ShapeError);
  CHECK(sum(x, 1).size() == 8);
}

TEST_CASE("an axis that is named twice is refused") {
  Tensor<float> const x = zeros({8, 16});
  CHECK_THROWS_WITH_AS(sum(x, {1, 1}), "sum: axis 1 appears twice in [1, 1]", ShapeError);
  CHECK_THROWS_WITH_AS(max(x, {0, -2}), "max: axis -2 appears twice in [0, -2]", ShapeError);
}

TEST_CASE("the extremum of nothing is refused") {
  CHECK_THROWS_WITH_AS(max(zeros({0})), "max: shape [0] has no elements along the reduced axes: the extremum of nothing is not defined", ShapeError);
  CHECK_THROWS_WITH_AS(min(zeros({3, 0}), 1), "min: shape [3, 0] has no elements along the reduced axes: the extremum of nothing is not defined",
                       ShapeError);
  CHECK_THROWS_WITH_AS(argmin(zeros({0, 3}), 0), "argmin: shape [0, 3] has no elements along the reduced axes: the extremum of nothing is not defined",
                       ShapeError);
  CHECK_THROWS_WITH_AS(max(zeros({0, 3, 0}), 2), "max: shape [0, 3, 0] has no elements along the reduced axes: the extremum of nothing is not defined",
                       ShapeError);  // though there would be no result to hold it
  CHECK(max(zeros({0, 3, 0}), 1).shape() == Shape(0, 0));
  CHECK(argmin(zeros({0, 3}), 1, keepdim).shape() == Shape(0, 1));
  constexpr int64_t n = int64_t{1} << 32;  // n times n wraps to 0
  CHECK(max(zeros({n, n, 0}), {0, 1}).shape() == Shape(0));
  CHECK(sum(zeros({n, n, 0})).item() == 0);
  CHECK_THROWS_WITH_AS(argmax(Tensor<float, Emulated<0>>{}),
                       "argmax: shape [0] has no elements along the reduced axes: the extremum of nothing is not defined", ShapeError);
}
