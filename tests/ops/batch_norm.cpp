// Expected values are plain loops in double; PyTorch's stand in nn/expected/norms.hpp.
#include <doctest/doctest.h>

#include <cmath>
#include <situ/autograd/batch_norm.hpp>
#include <support/compare.hpp>
#include <support/devices.hpp>

using namespace situ;

namespace {

using Numbers = std::vector<double>;

template <class T>
Tensor<T> numbers(Shape const& shape, int64_t seed = 0) {
  auto result = empty<T>(shape);
  for (int64_t k = 0; k < result.size(); ++k) result.data()[k] = detail::convert_scalar<T>(static_cast<double>((k * 37 + 11 + 13 * seed) % 1009) / 256 - 2);
  return result;
}
template <class T, class D>
Numbers in_double(Tensor<T, D> const& x) {
  return x.cpu().template to<double>().to_vector();
}
std::size_t at(int64_t k) { return static_cast<std::size_t>(k); }

/// y, dx, dw, db, running mean and running variance, by their definitions.
std::array<Numbers, 6> by_loops(Shape const& shape, Numbers const& x, Numbers const& w, Numbers const& b, Numbers const& g, Numbers mean, Numbers variance,
                                batch_norm_options const& options) {
  int64_t const images = shape[0], channels = shape[1], inner = channels > 0 && images > 0 ? static_cast<int64_t>(x.size()) / images / channels : 0;
  double const n = static_cast<double>(images * inner);
  std::array<Numbers, 6> result{Numbers(x.size()), Numbers(x.size()), Numbers(at(channels)), Numbers(at(channels)), mean, variance};
  for (int64_t c = 0; c < channels; ++c) {
    auto const each = [&](auto const& f) {
      for (int64_t i = 0; i < images; ++i) {
        for (int64_t s = 0; s < inner; ++s) f(at((i * channels + c) * inner + s));
      }
    };
    double m = mean[at(c)], v = variance[at(c)];
    if (options.training) {
      m = v = 0;
      each([&](std::size_t k) { m += x[k] / n; });
      each([&](std::size_t k) { v += (x[k] - m) * (x[k] - m) / n; });
      result[4][at(c)] += options.momentum * (m - mean[at(c)]);
      result[5][at(c)] += options.momentum * (v * n / (n - 1) - variance[at(c)]);
    }
    double const r = 1 / std::sqrt(v + options.eps);
    double sum = 0, products = 0;
    each([&](std::size_t k) { result[0][k] = (x[k] - m) * r * w[at(c)] + b[at(c)], sum += g[k], products += g[k] * (x[k] - m) * r; });
    each([&](std::size_t k) { result[1][k] = options.training ? w[at(c)] * r * (g[k] - sum / n - (x[k] - m) * r * products / n) : w[at(c)] * r * g[k]; });
    result[2][at(c)] = products, result[3][at(c)] = sum;
  }
  return result;
}

/// The largest error, relative to the largest number that is expected where that is more than 1.
double worst(Numbers const& got, Numbers const& expected) {
  if (got.size() != expected.size()) return HUGE_VAL;
  double largest = 1, result = 0;
  for (double e : expected) largest = std::fabs(e) > largest ? std::fabs(e) : largest;
  for (std::size_t k = 0; k < got.size(); ++k) {
    double const error = std::fabs(got[k] - expected[k]) / largest;
    result = situ_test::worse(result, error);
  }
  return result;
}

template <class T, class D>
void check(Shape const& shape, batch_norm_options const& options, double tolerance) {
  CAPTURE(to_string(shape));
  CAPTURE(options.training);
  Shape const channels{shape[1]};
  Tensor<T> const x = numbers<T>(shape), w = numbers<T>(channels, 1), b = numbers<T>(channels, 2), g = numbers<T>(shape, 3);
  Tensor<T, D> mean = numbers<T>(channels, 4).to(D{}), variance = ones<T>(channels).to(D{});
  auto const expected = by_loops(shape, in_double(x), in_double(w), in_double(b), in_double(g), in_double(mean), in_double(variance), options);
  Variable<T, D> vx(x.to(D{})), vw(w.to(D{})), vb(b.to(D{}));
  auto const y = batch_norm(vx, mean, variance, vw, vb, options);
  y.backward(g.to(D{}));
  std::array<Numbers, 6> const got{in_double(y.value()), in_double(vx.grad()), in_double(vw.grad()), in_double(vb.grad()), in_double(mean), in_double(variance)};
  for (std::size_t k = 0; k < got.size(); ++k) {
    CAPTURE(k);
    CHECK(worst(got[k], expected[k]) < tolerance);
  }
}

template <class T, class D>
void check_shapes(double tolerance) {
  for (Shape const& shape : {Shape{6, 5}, Shape{2, 1}, Shape{300, 70}, Shape{37, 1100}, Shape{20, 3, 2, 2}, Shape{9, 90, 3}, Shape{3, 4, 5, 5}, Shape{2, 3, 17}, Shape{5, 2, 40, 41}}) {
    check<T, D>(shape, {.training = true, .momentum = 0.3}, tolerance);
    check<T, D>(shape, {.eps = 1e-2}, tolerance);
  }
}

}  // namespace

TEST_CASE("batch_norm and its gradients are those of their definitions, for every type, shape and instruction set") {
  situ_test::with_every_instruction_set<Cpu>([] {
    check_shapes<float, Cpu>(2e-6);
    check_shapes<double, Cpu>(1e-13);
    check_shapes<float16, Cpu>(1e-3);
    check_shapes<bfloat16, Cpu>(8e-3);
  });
  check_shapes<float, Emulated<0>>(2e-6);
}

TEST_CASE("batch_norm takes tensors of any layout, formulas, and parameters of other types") {
  Tensor<float> const whole = numbers<float>({6, 8, 10}), none;
  batch_norm_options const training{.training = true};
  for (Tensor<float> const& x : {Tensor<float>(whole.transpose(0, 2)), Tensor<float>(whole.slice(1, 1, 8, 3)), Tensor<float>(whole.flip(2)), Tensor<float>(whole.select(0, 1).unsqueeze(0).expand({4, 8, 10}))}) {
    CHECK(situ_test::difference(batch_norm(x, none, none, training).to_vector(), batch_norm(x.clone(), none, none, training).to_vector()) == "");
  }
  Tensor<double> const w = numbers<double>({8}, 1), b = numbers<double>({8}, 2);
  Tensor<float> const wide = numbers<float>({16}, 1).slice(0, 0, 16, 2), y = batch_norm(whole, none, none, wide, wide, training);
  CHECK(situ_test::difference(y.to_vector(), batch_norm(whole, none, none, wide.clone(), wide.clone(), training).to_vector()) == "");
  CHECK(worst(in_double(batch_norm(whole * 2 + 1, none, none, w + 0, b, training)),
              by_loops({6, 8, 10}, in_double(Tensor<float>(whole * 2 + 1)), in_double(w), in_double(b), Numbers(480), Numbers(8), Numbers(8), training)[0]) < 2e-6);
  CHECK(batch_norm(numbers<float>({0, 3}), zeros({3}), ones({3})).shape() == Shape{0, 3});
  CHECK(batch_norm(numbers<float>({4, 0}), none, none, training).shape() == Shape{4, 0});
}

TEST_CASE("batch_norm does not lose the variance of numbers far from 0, nor of numbers that drift") {
  for (Shape const& shape : {Shape{4000, 20}, Shape{64, 2, 200}}) {
    Tensor<float> x = empty({shape});
    for (bool drifts : {false, true}) {
      for (int64_t k = 0; k < x.size(); ++k) x.data()[k] = (drifts ? static_cast<float>(k) : 1e5f) + static_cast<float>((k * 7919) % 64) / 64;
      Tensor<float> mean = zeros({shape[1]}), variance = zeros({shape[1]});
      batch_norm_options const options{.training = true, .momentum = 1};
      Numbers const parameters(at(shape[1]), 1);
      auto const expected = by_loops(shape, in_double(x), parameters, Numbers(at(shape[1])), Numbers(at(x.size())), Numbers(at(shape[1])), Numbers(at(shape[1])), options);
      Tensor<float> const y = batch_norm(x, mean, variance, options);
      CHECK(worst(in_double(y), expected[0]) < 1e-6);
      for (std::size_t c = 0; c < expected[5].size(); ++c) CHECK(variance.data()[c] == doctest::Approx(expected[5][c]).epsilon(1e-6));
    }
  }
}

TEST_CASE("batch_norm gives the same for any number of threads") {
  for (Shape const& shape : {Shape{64, 24, 20, 20}, Shape{600, 700}}) {
    auto const run = [&](int threads) {
      set_num_threads(threads);
      Variable<float> x(numbers<float>(shape)), w(numbers<float>({shape[1]}, 1)), b(numbers<float>({shape[1]}, 2));
      Variable<float> const y = batch_norm(x, Tensor<float>(), Tensor<float>(), w, b, {.training = true});
      y.backward(numbers<float>(shape, 3));
      return std::array{y.value().to_vector(), x.grad().to_vector(), w.grad().to_vector(), b.grad().to_vector()};
    };
    int const before = num_threads();
    auto const one = run(1), three = run(3);
    set_num_threads(before);
    for (std::size_t k = 0; k < one.size(); ++k) CHECK(situ_test::difference(three[k], one[k]) == "");
  }
}

TEST_CASE("a NaN stays in its channel, and gradients go only where they are wanted") {
  Tensor<float> x = numbers<float>({40, 30});
  x(3, 7) = std::numeric_limits<float>::quiet_NaN();
  Tensor<float> mean = zeros({30}), variance = ones({30});
  Tensor<float> const y = batch_norm(x, mean, variance, {.training = true});
  CHECK(std::isnan(y(0, 7)));
  CHECK(std::isnan(mean(7)));
  CHECK((!std::isnan(y(3, 6)) && !std::isnan(y(3, 8)) && !std::isnan(variance(8))));
  Tensor<float> const z = numbers<float>({4, 3}), ones_of_3 = ones({3});
  for (bool training : {true, false}) {
    Variable<float> all(z), w(ones_of_3), b(ones_of_3), w_alone(ones_of_3), b_alone(ones_of_3), x_alone(z);
    batch_norm_options const options{.training = training, .momentum = 0};
    Tensor<float> const m = zeros({3}), v = ones({3});
    batch_norm(all, m, v, w, b, options).backward(numbers<float>({4, 3}, 5));
    batch_norm(z, m, v, w_alone, ones_of_3, options).backward(numbers<float>({4, 3}, 5));
    batch_norm(z, m, v, ones_of_3, b_alone, options).backward(numbers<float>({4, 3}, 5));
    batch_norm(x_alone, m, v, options).backward(numbers<float>({4, 3}, 5));
    CHECK(situ_test::difference(w_alone.grad().to_vector(), w.grad().to_vector()) == "");
    CHECK(situ_test::difference(b_alone.grad().to_vector(), b.grad().to_vector()) == "");
    CHECK(situ_test::difference(x_alone.grad().to_vector(), all.grad().to_vector()) == "");
  }
}

TEST_CASE("batch_norm says what does not fit, and has changed nothing then") {
  using situ_test::thrown;
  Tensor<float> const x = ones({2, 3, 4}), none;
  Tensor<float> mean = zeros({3}), variance = ones({3});
  batch_norm_options const training{.training = true};
  auto const shapes = [&](auto const& f, char const* message) { CHECK(thrown<ShapeError>(f, message) == ""); };
  shapes([&] { batch_norm(ones({3}), mean, variance); }, "batch_norm: an input of shape [3] was given; inputs are [N, C] or [N, C, ...]");
  shapes([&] { batch_norm(x, zeros({4}), ones({3})); }, "batch_norm: the running mean has shape [4], but inputs of shape [2, 3, 4] have 3 channels");
  shapes([&] { batch_norm(x, mean, variance, ones({3}), ones({3, 1}), training); }, "batch_norm: the bias has shape [3, 1], but inputs of shape [2, 3, 4] have 3 channels");
  shapes([&] { batch_norm(ones({1, 3}), mean, variance, training); },
         "batch_norm: an input of shape [1, 3] has 1 value for each channel, and training needs their variance: give 2 or more, or normalise with the running statistics (net.eval())");
  shapes([&] { batch_norm(ones({0, 3}), mean, variance, training); },
         "batch_norm: an input of shape [0, 3] has 0 values for each channel, and training needs their variance: give 2 or more, or normalise with the running statistics (net.eval())");
  shapes([&] { batch_norm(x, none, variance); }, "batch_norm: there are no running statistics to normalise with; give both, or say {.training = true}");
  CHECK(thrown<LayoutError>([&] { batch_norm(x, mean, Tensor<float>(zeros({1}).expand({3})), training); },
                            "batch_norm: the running variance is a broadcast view, which cannot be written; give a clone() of it") == "");
  CHECK(mean.to_vector() == std::vector<float>(3, 0));
  Variable<float> v(x.clone());
  auto const y = batch_norm(v, mean, variance, training);
  v.value() += 1;
  CHECK(thrown<GradientError>([&] { y.backward(x); }, "backward: BatchNorm needs a tensor of shape [2, 3, 4] as it was when it was recorded, but operator+= has written to it in place "
                                                      "since; write to a clone() of it, or after the backward") == "");
}

namespace {
template <class X, class R>
concept normalises = requires(X const& x, R const& r) { batch_norm(x, r, r); };
static_assert(normalises<Tensor<float>, Tensor<float>> && normalises<Variable<float>, Tensor<double>> && normalises<Tensor<float, Pinned>, Tensor<float>>);
static_assert(!normalises<Tensor<float>, Tensor<float, Emulated<0>>> && !normalises<Variable<float, Emulated<0>>, Tensor<float>>);
static_assert(!normalises<Tensor<int>, Tensor<float>>);
}  // namespace
