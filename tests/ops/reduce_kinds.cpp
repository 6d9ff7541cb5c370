#include <situ/ops/compare.hpp>
#include <situ/ops/reduce.hpp>

#include <ops/expected/reduce.hpp>
#include <ops/reduce_support.hpp>
#include <support/compare.hpp>

#include <cstring>

using namespace situ;
using namespace situ_test;

namespace {

// ---- one table of operations ----------------------------------------------------------------------------------------

using Numbers = std::vector<double>;

template <class T, class D>
Numbers numbers_of(Tensor<T, D> const& x) {
  Numbers result;
  auto const values = x.to_vector();
  for (std::size_t k = 0; k < values.size(); ++k) result.push_back(number_of(static_cast<T>(values[k])));
  return result;
}

/// A result as numbers, and what they come with.
struct Result {
  std::string shape;
  dtype type;
  Numbers values;
};

/// An operation: what situ does, and what a plain loop makes of the elements of one output.
template <class T, class D>
struct Operation {
  char const* name;
  Result (*run)(Tensor<T, D> const& x, Shape const& axes, bool keep);
  double (*expected)(Numbers const& x);
  dtype type;
};

double variance_of(Numbers const& x, double correction) {
  double mean = 0, squares = 0;
  for (double v : x) mean += v;
  mean /= static_cast<double>(x.size());
  for (double v : x) squares += (v - mean) * (v - mean);
  double const divisor = static_cast<double>(x.size()) - correction;
  return divisor > 0 ? squares / divisor : NAN;
}
double power_norm_of(Numbers const& x, double p) {
  double s = 0;
  for (double v : x) s += p == 0 ? v != 0 : std::pow(std::fabs(v), p);
  return p == 0 ? s : std::pow(s, 1 / p);
}

#define OPERATION(NAME, TYPE, CALL, KEPT, ...)                                                               \
  Operation<T, D> {                                                                                          \
    NAME,                                                                                                    \
        [](Tensor<T, D> const& x, Shape const& axes, bool keep) {                                            \
          auto const y = keep ? KEPT : CALL;                                                                 \
          return Result{to_string(y.shape()), y.dtype(), numbers_of(y)};                                     \
        },                                                                                                   \
        [](Numbers const& x) -> double __VA_ARGS__, dtype_of<TYPE>                                           \
  }

/// What every element type is tested with.
template <class T, class D>
std::vector<Operation<T, D>> common_operations() {
  using I = std::conditional_t<floating<T>, T, int64_t>;
  using F = floating_t<T>;
  return {
      OPERATION("prod", I, prod(x, axes), prod(x, axes, keepdim), {
        double y = 1;
        for (double v : x) y *= v;
        return y;
      }),
      OPERATION("any", bool, any(x, axes), any(x, axes, keepdim), {
        for (double v : x) {
          if (v != 0) return 1;
        }
        return 0;
      }),
      OPERATION("all", bool, all(x, axes), all(x, axes, keepdim), {
        for (double v : x) {
          if (v == 0) return 0;
        }
        return 1;
      }),
      OPERATION("count_nonzero", int64_t, count_nonzero(x, axes), count_nonzero(x, axes, keepdim), {
        double n = 0;
        for (double v : x) n += v != 0;
        return n;
      }),
      OPERATION("var", F, var(x, axes), var(x, axes, keepdim), { return variance_of(x, 1); }),
      OPERATION("logsumexp", F, logsumexp(x, axes), logsumexp(x, axes, keepdim), {
        double s = 0;
        for (double v : x) s += std::exp(v);
        return std::log(s);
      }),
  };
}

template <class T, class D>
std::vector<Operation<T, D>> all_operations() {
  using F = floating_t<T>;
  auto result = common_operations<T, D>();
  for (auto const& more : {
           OPERATION("var_0", F, var(x, axes, {.correction = 0}), var(x, axes, {.correction = 0}, keepdim), { return variance_of(x, 0); }),
           OPERATION("stddev", F, stddev(x, axes), stddev(x, axes, keepdim), { return std::sqrt(variance_of(x, 1)); }),
           OPERATION("norm_1", F, norm(x, axes, {.p = 1}), norm(x, axes, {.p = 1}, keepdim), { return power_norm_of(x, 1); }),
           OPERATION("norm_3", F, norm(x, axes, {.p = 3}), norm(x, axes, {.p = 3}, keepdim), { return power_norm_of(x, 3); }),
           OPERATION("norm_half", F, norm(x, axes, {.p = 0.5}), norm(x, axes, {.p = 0.5}, keepdim), { return power_norm_of(x, 0.5); }),
           OPERATION("norm_0", F, norm(x, axes, {.p = 0}), norm(x, axes, {.p = 0}, keepdim), { return power_norm_of(x, 0); }),
           OPERATION("norm_inf", F, norm(x, axes, {.p = INFINITY}), norm(x, axes, {.p = INFINITY}, keepdim), {
             double y = -INFINITY;  // of nothing: refused, and not asked for here
             for (double v : x) y = std::fmax(y, std::fabs(v));
             return y;
           }),
           OPERATION("norm_minus_inf", F, norm(x, axes, {.p = -INFINITY}), norm(x, axes, {.p = -INFINITY}, keepdim), {
             double y = INFINITY;
             for (double v : x) y = std::fmin(y, std::fabs(v));
             return y;
           }),
       })
    result.push_back(more);
  return result;
}
#undef OPERATION

template <class T>
double loose_tolerance() {
  return std::is_same_v<T, double> ? 1e-13 : floating<T> ? 6 * tolerance_of<T>() : 2e-6;
}

bool agree(double a, double b, double tolerance) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  if (std::isinf(a) || std::isinf(b)) return a == b;
  return std::fabs(a - b) <= tolerance * std::fmax(1.0, std::fabs(b));
}

template <class T, class D>
void check_operation(Operation<T, D> const& operation, Tensor<T, D> const& x, Groups<double> const& groups, Shape const& axes, bool keep) {
  bool const of_nothing = !groups.of.empty() && groups.of[0].empty();
  if (of_nothing && (std::strcmp(operation.name, "norm_inf") == 0 || std::strcmp(operation.name, "norm_minus_inf") == 0)) return;
  Result const result = operation.run(x, axes, keep);
  INFO(operation.name, " over ", to_string(axes), " of shape ", to_string(x.shape()), " with strides ", to_string(x.strides()));
  REQUIRE(result.shape == to_string(keep ? groups.kept_shape : groups.shape));
  REQUIRE(result.type == operation.type);
  REQUIRE(result.values.size() == groups.of.size());
  std::size_t wrong = 0;
  for (std::size_t k = 0; k < groups.of.size(); ++k) {
    double expected = operation.expected(groups.of[k]);
    if (std::is_same_v<T, float16> && std::fabs(expected) > 65504) expected = std::copysign(INFINITY, expected);
    if (agree(result.values[k], expected, loose_tolerance<T>())) continue;
    if (wrong++ == 0) MESSAGE("element ", k, " is ", result.values[k], " instead of ", expected);
  }
  CHECK(wrong == 0);
}

template <class T, class D>
void check_subsets(std::vector<Operation<T, D>> const& operations, Tensor<T, D> const& x) {
  Numbers const values = numbers_of(x);
  for (unsigned bits = 0; bits < 1u << x.rank(); ++bits) {
    auto const groups = group(values, x.shape(), bits);
    for (auto const& operation : operations) {
      check_operation(operation, x, groups, axes_of(bits, x.rank()), bits % 2 == 1);
    }
  }
}

/// Products of at most nine of these stay exact.
template <class T>
Tensor<T> small_numbers(Shape const& shape) {
  Tensor<T> result = empty<T>(shape);
  for (int64_t i = 0; i < result.size(); ++i) {
    int const k = static_cast<int>((i * 37 + 11) % 17) - 8;
    result.data()[i] = detail::convert_scalar<T>(floating<T> ? static_cast<float>(k) / 4 : static_cast<float>(std::is_same_v<T, uint8_t> ? (k + 8) % 3 : k % 3));
  }
  return result;
}

}  // namespace

TEST_CASE("every kind of reduction agrees with plain loops in every layout") {
  auto const operations = all_operations<float, Cpu>();
  for_each_instruction_set([&] {
    for (Shape const& shape : {Shape{}, Shape{1}, Shape{67}, Shape{33, 17}, Shape{1, 9}, Shape{3, 5, 21}, Shape{2, 3, 2, 5}, Shape{0, 3}, Shape{4, 0, 3}}) {
      for_each_layout(small_numbers<float>(shape), [&](auto const& x) { check_subsets(operations, x); });
    }
  });
}

TEST_CASE_TEMPLATE("one number is reduced along axis 0 and -1, as in PyTorch and NumPy", D, Cpu, Emulated<0>) {
  auto const x = full({}, 5.f, D{});
  CHECK(sum(x, 0).item() == 5);
  CHECK(sum(x, 0, keepdim).shape() == Shape{});
  CHECK(max(x * 2, -1).item() == 10);
  CHECK(argmax(x, {0}).item() == 0);
  CHECK(var(x, 0, {.correction = 0}).item() == 0);
  CHECK(std::isnan(var(Tensor<float>(zeros({0})), {.correction = -1}).item()));
  CHECK(norm(x, -1, {.p = 1}).item() == 5);
  CHECK(thrown<ShapeError>([&] { sum(x, {0, -1}); }, "sum: axis -1 appears twice in [0, -1]") == "");
  CHECK(thrown<ShapeError>([&] { sum(x, 1); }, "sum: axis 1 is out of range for shape []: it has no axes") == "");
}

TEST_CASE_TEMPLATE("every element type has the kinds of reductions", T, float16, int32_t, bool) {
  auto const operations = common_operations<T, Cpu>();
  for_each_instruction_set([&] {
    for (Shape const& shape : {Shape{1}, Shape{70}, Shape{6, 35}, Shape{3, 4, 9}, Shape{3, 0}}) {
      for_each_layout(small_numbers<T>(shape), [&](auto const& x) { check_subsets(operations, x); });
    }
  });
}

TEST_CASE("the kinds of reductions run where their input lives") {
  for (Shape const& shape : {Shape{5}, Shape{33, 17}, Shape{3, 5, 21}, Shape{4, 0, 3}}) {
    Tensor<float> const x = small_numbers<float>(shape);
    check_subsets(all_operations<float, Emulated<0>>(), x.to(Emulated<0>{}));
    check_subsets(common_operations<float, Pinned>(), x.to(Pinned{}));
  }
}

TEST_CASE("the kinds of reductions agree with PyTorch and NumPy") {
  Tensor<float> const x = small_numbers<float>({3, 4, 5});
  auto const operations = all_operations<float, Cpu>();
  for (auto const& expected : expected::reductions) {
    Shape const axes(expected.axes);
    for (auto const& operation : operations) {
      if (std::strcmp(operation.name, expected.name) != 0) continue;
      for (auto const& in : {x, x.permute({2, 0, 1}).contiguous().permute({1, 2, 0})}) {
        Numbers const found = operation.run(in, axes, true).values;
        INFO(operation.name, " over ", to_string(axes));
        REQUIRE(found.size() == expected.values.size());
        for (std::size_t k = 0; k < found.size(); ++k) CHECK(agree(found[k], expected.values[k], 2e-6));
      }
    }
  }
}

#if !defined(__FAST_MATH__)
TEST_CASE("NaN, infinities, one element and none reduce as in PyTorch and NumPy") {
  auto const operations = all_operations<float, Cpu>();
  for_each_instruction_set([&] {
    for (auto const& special : expected::specials) {
      std::vector<float> const input(special.input.begin(), special.input.end());
      Tensor<float> const row(input);
      Tensor<float> const strip = row.unsqueeze(1).expand({row.size(), 19}).contiguous();
      for (std::size_t k = 0; k < special.values.size(); ++k) {
        for (auto const& operation : operations) {
          if (std::strcmp(operation.name, expected::special_names[k]) != 0) continue;
          INFO(operation.name, " of ", input.size(), " elements, the first of which is ", input.empty() ? 0.f : input[0]);
          CHECK(agree(operation.run(row, 0, false).values[0], special.values[k], 1e-6));
          for (double v : operation.run(strip, 0, false).values) CHECK(agree(v, special.values[k], 1e-6));
        }
      }
    }
  });
}

TEST_CASE("one NaN or infinity is found wherever it stands") {
  for_each_instruction_set([] {
    for (int64_t n : {1, 5, 17, 64, 131, 5000}) {
      for (int64_t at = 0; at < n; at += n > 100 ? 71 : 1) {
        Tensor<float> row = full({n}, 0.5f);
        row(at) = NAN;
        CHECK(std::isnan(var(row, {.correction = 0}).item()));
        CHECK(std::isnan(logsumexp(row).item()));
        CHECK(std::isnan(prod(row).item()));
        CHECK(std::isnan(max(row).item()));
        CHECK(count_nonzero(row).item() == n);
        row(at) = INFINITY;
        CHECK(logsumexp(row).item() == INFINITY);
        CHECK(max(row).item() == INFINITY);
        CHECK(min(-row).item() == -INFINITY);
        CHECK(norm(row, {.p = INFINITY}).item() == INFINITY);
        row = zeros({n});
        row(at) = 1e-30f;
        CHECK(any(row).item());
        CHECK(all(row == 0).item() == false);
        CHECK(count_nonzero(row).item() == 1);
      }
    }
  });
}
#endif

TEST_CASE("variances are accurate where the mean is large, in one pass over rows, strips and parts") {
  // x = 10^6 + k / 16: every float is exact, and squares of the raw numbers would lose everything.
  constexpr int64_t n = 200'000;
  Tensor<float> x = empty({n});
  double mean = 0, squares = 0;
  for (int64_t i = 0; i < n; ++i) x.data()[i] = 1e6f + static_cast<float>((i * 7919) % 160) / 16, mean += static_cast<double>(x.data()[i]);
  mean /= n;
  for (int64_t i = 0; i < n; ++i) squares += std::pow(static_cast<double>(x.data()[i]) - mean, 2);
  Tensor<float> const columns = x.unsqueeze(1).expand({n, 24}).contiguous(), spread = x.unsqueeze(1).expand({n, 3}).contiguous();
  for_each_instruction_set([&] {
    CHECK(agree(static_cast<double>(var(x).item()), squares / (n - 1), 1e-6));
    CHECK(agree(static_cast<double>(stddev(x, {.correction = 0}).item()), std::sqrt(squares / n), 1e-6));
    CHECK(agree(static_cast<double>(var(columns, 0).item(23)), squares / (n - 1), 1e-6));
    CHECK(agree(static_cast<double>(var(spread, 0).item(2)), squares / (n - 1), 1e-6));
    CHECK(agree(static_cast<double>(var(x * 1.f).item()), squares / (n - 1), 1e-6));
    CHECK(agree(var(cast<double>(x)).item(), squares / (n - 1), 1e-12));
  });
  // However the elements are ordered: what looks like all of them at first may be far from them.
  for (int64_t const step : {1, 2, 512, 4096}) {
    for (int64_t const rows : {1, 7}) {
      Tensor<float> ordered = empty({n});
      for (int64_t i = 0; i < n; ++i) ordered.data()[i] = x.data()[i] + (i % 4096 / step % 2 == 0 ? 0 : 64) + static_cast<float>(i) / 64 + (i % 1024 - 512 >= 0 && i % 1024 - 512 < 64 ? 4096 : 0);
      double sum = 0, about = 0;
      int64_t const count = n / rows;
      for (int64_t i = 0; i < count; ++i) sum += static_cast<double>(ordered.data()[i]);
      for (int64_t i = 0; i < count; ++i) about += std::pow(static_cast<double>(ordered.data()[i]) - sum / static_cast<double>(count), 2);
      for_each_instruction_set([&] {
        CHECK(agree(static_cast<double>(var(ordered.slice(0, 0, count)).item()) / about * static_cast<double>(count - 1), 1, 1e-6));
        CHECK(agree(static_cast<double>(var(ordered.slice(0, 0, count * rows).reshape({rows, count}), 1).item(0)) / about * static_cast<double>(count - 1), 1, 1e-6));
      });
    }
  }
  for (float const special : {INFINITY, NAN}) {
    for (int64_t const at : {0, 2048, 5000, 199'999}) {
      Tensor<float> spoilt = x.clone();
      spoilt(at) = special;
      for_each_instruction_set([&] { CHECK(std::isnan(var(spoilt).item())); });
    }
  }
  Tensor<float> outlier = full({n}, 0.f);
  for (int64_t i = 0; i < n; ++i) outlier.data()[i] = static_cast<float>(i % 2) * 1e-3f;
  outlier(0) = 1e6f;
  CHECK(agree(static_cast<double>(var(outlier).item()) / 5e6, 1e12 / n / 5e6, 1e-5));
  CHECK(var(full({100}, 0.1f)).item() < 1e-15f);
  CHECK(agree(static_cast<double>(var(full<int64_t>({3}, int64_t{1} << 40)).item()), 0, 0));
}

TEST_CASE("variances of every length near the end of a block agree with plain loops, wherever a part differs from the rest") {
  constexpr int64_t most = 200'000;
  Tensor<float> x = empty({most});
  for (int const kind : {0, 1, 2}) {
    for (int64_t i = 0; i < most; ++i) {
      double const noise = std::sin(static_cast<double>(i) * 1.7);
      x.data()[i] = static_cast<float>(kind == 0 ? noise + 3 : kind == 1 ? static_cast<double>(i) * 0.25 : i % 16384 < 40 ? 0 : 500 + noise);
    }
    for (int64_t const block : {64, 256, 512, 4096, 16384, 65536, 131072}) {
      for (int64_t n = block - 1; n <= block + 65; n += n < block + 2 ? 1 : 31) {
        double mean = 0, squares = 0;
        for (int64_t i = 0; i < n; ++i) mean += static_cast<double>(x.data()[i]) / static_cast<double>(n);
        for (int64_t i = 0; i < n; ++i) squares += std::pow(static_cast<double>(x.data()[i]) - mean, 2);
        Tensor<float> const some = x.slice(0, 0, n);
        for_each_instruction_set([&] { CHECK(agree(static_cast<double>(var(some).item()) / squares * static_cast<double>(n - 1), 1, 2e-6)); });
      }
    }
  }
}

TEST_CASE("variances of columns agree with plain loops, whatever a column's first rows say of the rest") {
  for (int64_t const rows : {2, 15, 16, 63, 64, 65, 127, 128, 200, 1000}) {
    for (int64_t const columns : {8, 9, 31, 67, 1100}) {
      // A column of noise far from 0, one that rises, one of equal numbers, one that is 0 but for an outlier in a row in which no guess looks, one with a step.
      Tensor<float> x = empty({rows, columns});
      std::vector<double> mean(static_cast<std::size_t>(columns)), squares(mean);
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) {
          double const noise = std::sin(static_cast<double>(i * columns + j) * 1.7), of[] = {1000 + noise, static_cast<double>(i) * 0.25, 0.1, i % 64 == 4 ? 1e4 : 0, i < 32 ? noise : 500 + noise};
          x(i, j) = static_cast<float>(of[j % 5]);
          mean[static_cast<std::size_t>(j)] += static_cast<double>(x(i, j)) / static_cast<double>(rows);
        }
      }
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) squares[static_cast<std::size_t>(j)] += std::pow(static_cast<double>(x(i, j)) - mean[static_cast<std::size_t>(j)], 2);
      }
      for_each_instruction_set([&] {
        Tensor<float> const found = var(x, 0), of_formula = var(x + 0.f, 0);
        int wrong = 0;
        for (int64_t j = 0; j < columns; ++j) {
          double const expected = squares[static_cast<std::size_t>(j)] / static_cast<double>(rows - 1), bound = 2e-6 * expected + 1e-13;
          wrong += !(std::abs(static_cast<double>(found(j)) - expected) <= bound);
          wrong += !(std::abs(static_cast<double>(of_formula(j)) - expected) <= bound);
        }
        CAPTURE(rows);
        CAPTURE(columns);
        CHECK(wrong == 0);
      });
    }
  }
}

TEST_CASE("logsumexp neither overflows nor loses small terms") {
  for_each_instruction_set([] {
    CHECK(agree(static_cast<double>(logsumexp(full({100000}, 1000.f)).item()), 1000 + std::log(100000.0), 1e-7));
    CHECK(agree(static_cast<double>(logsumexp(full({100000}, -1000.f)).item()), -1000 + std::log(100000.0), 1e-7));
    Tensor<float> x = full({30000}, -20.f);
    x(29999) = 5;
    CHECK(agree(static_cast<double>(logsumexp(x).item()), std::log(std::exp(5.0) + 29999 * std::exp(-20.0)), 1e-7));
    Tensor<float> const columns = x.unsqueeze(1).expand({30000, 11}).contiguous();
    CHECK(agree(static_cast<double>(logsumexp(columns, 0).item(10)), std::log(std::exp(5.0) + 29999 * std::exp(-20.0)), 1e-7));
    CHECK(static_cast<float>(logsumexp(full<float16>({1000}, 60000)).item()) == doctest::Approx(60000).epsilon(1e-3));
  });
}

TEST_CASE("partial products may leave the range of float") {
  Tensor<float> x = full({50}, 1e10f);
  for (int64_t i = 0; i < 50; i += 2) x(i) = 1e-10f;
  for_each_instruction_set([&] {
    CHECK(prod(x).item() == doctest::Approx(1));
    CHECK(prod(x.unsqueeze(1).expand({50, 9}).contiguous(), 0).item(8) == doctest::Approx(1));
    CHECK(prod(full<int64_t>({63}, 2)).item() == INT64_MIN);
    CHECK(prod(full<int8_t>({20}, 3)).item() == 3486784401);
  });
}

TEST_CASE("counts go beyond 32 bits' worth of lanes") {
  for_each_instruction_set([] {
    CHECK(count_nonzero(ones<int8_t>({10}).unsqueeze(0).expand({3'000'000, 10})).item() == 30'000'000);
    CHECK(count_nonzero(ones<bool>({3'000'001})).item() == 3'000'001);
  });
}

TEST_CASE("options are named, and lists of axes are lists of axes") {
  Tensor<float> const x{{1, 2, 3}, {4, 5, 7}};
  CHECK(var(x, {0, 1}).item() == doctest::Approx(14.0 / 3));
  CHECK(var(x, {.correction = 0}).item() == doctest::Approx(35.0 / 9));
  CHECK(var(x, {.correction = 0}, keepdim).shape() == Shape{1, 1});
  CHECK(var(x, {0}).to_vector() == std::vector<float>{4.5f, 4.5f, 8.f});
  CHECK(var(x, {}).shape() == x.shape());
  CHECK(var(x, -1, {.correction = 1.5}).item(0) == doctest::Approx(2.0 / 1.5));
  CHECK(stddev(x, {0, 1}, {.correction = 0}, keepdim).item() == doctest::Approx(std::sqrt(35.0 / 9)));
  CHECK(norm(x, {.p = 1}).item() == 22.f);
  CHECK(norm(x, {0}).shape() == Shape{3});
  CHECK(norm(x, {.p = INFINITY}, keepdim).shape() == Shape{1, 1});
  CHECK(norm(x, 1, {.p = -INFINITY}).to_vector() == std::vector<float>{1, 4});
  CHECK(norm(x, {.p = 2}).item() == norm(x).item());
  CHECK(any(x, keepdim).shape() == Shape{1, 1});
  CHECK(logsumexp(x, {-1}, keepdim).shape() == Shape{2, 1});
}

TEST_CASE("the kinds of reductions are fused with their input") {
  Tensor<float> const a = scattered<float>({37, 53}), b = scattered<float>({53, 37}).t(), row = scattered<float>({53});
  Tensor<float> const products = a * b, shifted = (a - row) * 0.5f;
  for_each_instruction_set([&] {
    for (unsigned bits = 1; bits < 4; ++bits) {
      Shape const axes = axes_of(bits, 2);
      CHECK(allclose(var(a * b, axes), var(products, axes), {.rtol = 1e-6}));
      CHECK(allclose(logsumexp((a - row) * 0.5f, axes), logsumexp(shifted, axes), {.rtol = 1e-6}));
      CHECK(equal(count_nonzero(a * b, axes), count_nonzero(products, axes)));
      CHECK(equal(any(a > row, axes), any(Tensor<bool>(a > row), axes)));
      CHECK(equal(all(a > row, axes), all(Tensor<bool>(a > row), axes)));
    }
  });
}

TEST_CASE("the kinds of reductions give the same bits with one thread and with two") {
  int const threads = num_threads();
  Tensor<float> const x = uniforms({1500, 2000}) - 0.5f;
  auto const same = [&](auto f) {
    set_num_threads(1);
    auto const one = f();
    set_num_threads(2);
    auto const two = f();
    CHECK(std::memcmp(one.data(), two.data(), static_cast<std::size_t>(one.size()) * sizeof(*one.data())) == 0);
  };
  Tensor<float> const tall = x.reshape({300000, 10}), flat = x.reshape({2, 1500000});
  for (Tensor<float> const& in : {x, tall, flat}) {
    for (int axis : {0, 1}) {
      same([&] { return var(in, axis); });
      same([&] { return logsumexp(in, axis); });
    }
    same([&] { return var(in); });
    same([&] { return norm(in, {.p = 3}); });
    same([&] { return max(in, 0); });
  }
  set_num_threads(threads);
}

TEST_CASE("bad axes and extrema of nothing are refused by name") {
  Tensor<float> const x = zeros({8, 16});
  CHECK(thrown<ShapeError>([&] { var(x, 2); }, "var: axis 2 is out of range for shape [8, 16]: axes are -2 to 1") == "");
  CHECK(thrown<ShapeError>([&] { stddev(x, {0, -2}); }, "stddev: axis -2 appears twice in [0, -2]") == "");
  CHECK(thrown<ShapeError>([&] { logsumexp(x, -3); }, "logsumexp: axis -3 is out of range for shape [8, 16]: axes are -2 to 1") == "");
  CHECK(thrown<ShapeError>([&] { norm(x, 5, {.p = 1}); }, "norm: axis 5 is out of range for shape [8, 16]: axes are -2 to 1") == "");
  CHECK(thrown<ShapeError>([&] { any(sum(x), 1); }, "any: axis 1 is out of range for shape []: it has no axes") == "");
  CHECK(thrown<ShapeError>([&] { norm(zeros({0}), {.p = INFINITY}); },
                           "norm: shape [0] has no elements along the reduced axes: the extremum of nothing is not defined") == "");
  CHECK(prod(x).item() == 0.f);
}
