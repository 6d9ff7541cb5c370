#include <situ/ops/conv2d.hpp>
#include <situ/ops/pool2d.hpp>

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include <doctest/doctest.h>

#include <situ/ops/random.hpp>
#include <support/compare.hpp>
#include <support/devices.hpp>

namespace {

using namespace situ;
using situ_test::thrown;

/// What conv2d is by its definition, in double, with the sum of magnitudes for tolerances.
struct Reference {
  std::vector<double> values, magnitudes;
  Shape shape;
};

template <class T>
Reference convolve(Tensor<T> const& x, Tensor<T> const& w, Tensor<T> const& bias, extent2d s, extent2d p, extent2d d, int64_t groups) {
  auto const number = [](T v) { return static_cast<double>(static_cast<compute_t<T>>(v)); };
  int64_t const n = x.size(0), channels = w.size(1), outputs = w.size(0), kh = w.size(2), kw = w.size(3);
  int64_t const height = (x.size(2) + 2 * p.height - d.height * (kh - 1) - 1) / s.height + 1;
  int64_t const width = (x.size(3) + 2 * p.width - d.width * (kw - 1) - 1) / s.width + 1;
  Reference result{{}, {}, {n, outputs, height, width}};
  for (int64_t image = 0; image < n; ++image) {
    for (int64_t o = 0; o < outputs; ++o) {
      for (int64_t i = 0; i < height; ++i) {
        for (int64_t j = 0; j < width; ++j) {
          double sum = bias.size() > 0 ? number(bias.item(o)) : 0, magnitude = std::fabs(sum);
          for (int64_t c = 0; c < channels; ++c) {
            for (int64_t u = 0; u < kh; ++u) {
              for (int64_t v = 0; v < kw; ++v) {
                int64_t const y = i * s.height - p.height + u * d.height, at = j * s.width - p.width + v * d.width;
                if (y < 0 || at < 0 || y >= x.size(2) || at >= x.size(3)) continue;
                double const term = number(w.item(o, c, u, v)) * number(x.item(image, o / (outputs / groups) * channels + c, y, at));
                sum += term, magnitude += std::fabs(term);
              }
            }
          }
          result.values.push_back(sum), result.magnitudes.push_back(magnitude);
        }
      }
    }
  }
  return result;
}

/// The worst error in units of the magnitude of what was added up.
template <class T, class D>
double error_of(Tensor<T, D> const& y, Reference const& expected) {
  REQUIRE(to_string(y.shape()) == to_string(expected.shape));
  double worst = 0;
  auto const values = y.to_vector();
  for (std::size_t k = 0; k < values.size(); ++k) {
    double const e = std::fabs(static_cast<double>(static_cast<compute_t<T>>(values[k])) - expected.values[k]) / (expected.magnitudes[k] + 1e-30);
    worst = e <= worst ? worst : e;  // NaN is the worst
    if (e != e) return e;
  }
  return worst;
}

struct Case {
  Shape x, w;
  extent2d stride, padding, dilation;
  int64_t groups;
  bool bias;
};

Case const cases[] = {
    {{2, 3, 9, 11}, {5, 3, 3, 3}, 1, 0, 1, 1, true},
    {{3, 3, 32, 32}, {16, 3, 3, 3}, 1, 1, 1, 1, true},
    {{1, 4, 17, 33}, {6, 4, 5, 3}, {2, 3}, {2, 1}, 1, 1, false},
    {{1, 4, 17, 33}, {6, 4, 3, 3}, {1, 2}, {3, 2}, {2, 3}, 1, true},
    {{2, 6, 12, 40}, {9, 2, 3, 3}, 1, 1, 1, 3, true},
    {{2, 6, 12, 80}, {6, 1, 3, 3}, 1, 1, 1, 6, true},
    {{2, 6, 12, 80}, {6, 1, 5, 3}, {2, 1}, {4, 3}, {2, 2}, 6, false},
    {{1, 5, 9, 70}, {5, 1, 3, 5}, 2, 2, 1, 5, true},
    {{2, 6, 12, 30}, {7, 6, 1, 1}, 1, 0, 1, 1, true},
    {{1, 2, 3, 3}, {4, 2, 3, 3}, 1, 7, 1, 1, true},
    {{1, 1, 1, 1}, {1, 1, 1, 1}, 1, 0, 1, 1, false},
    {{1, 70, 8, 9}, {3, 70, 3, 3}, 1, 1, 1, 1, false},
    {{1, 30, 13, 37}, {5, 30, 3, 3}, 2, 1, 1, 1, true},
    {{1, 260, 6, 20}, {4, 260, 3, 3}, 1, 1, 1, 1, true},
    {{2, 40, 9, 11}, {260, 20, 3, 3}, 1, 1, 1, 2, true},
    {{1, 130, 5, 6}, {128, 130, 3, 3}, {1, 2}, 1, 1, 1, false},
    {{1, 3, 15, 7}, {3, 1, 3, 3}, 1, 1, 1, 3, true},
    {{2, 2, 14, 17}, {6, 1, 7, 7}, 1, 3, 1, 2, true},
    {{1, 2, 9, 37}, {2, 1, 3, 3}, {1, 4}, 1, 2, 2, false},
    {{1, 4, 21, 25}, {4, 2, 5, 3}, {3, 2}, {0, 2}, {1, 2}, 2, true},
    {{1, 9, 8, 33}, {2, 9, 3, 3}, 2, 1, 1, 1, true},
    {{1, 1, 70, 110}, {2, 1, 3, 3}, 1, 1, 1, 1, true},
};

template <class T>
double tolerance() {
  return std::is_same_v<T, double> ? 1e-15 : std::is_same_v<T, float> ? 1e-6 : std::is_same_v<T, float16> ? 2e-3 : 1.6e-2;
}

template <class T, class D>
void check_case(Case const& one) {
  CAPTURE(to_string(one.x));
  CAPTURE(to_string(one.w));
  Generator generator{7};
  Tensor<T> const x = randn<T>(one.x, generator), w = randn<T>(one.w, generator), bias = one.bias ? randn<T>({one.w[0]}, generator) : Tensor<T>();
  Reference const expected = convolve(x, w, bias, one.stride, one.padding, one.dilation, one.groups);
  Tensor<T, D> const on_device = x.to(D{}), weights = w.to(D{});
  conv2d_options<T, D> options{.stride = one.stride, .padding = one.padding, .dilation = one.dilation, .groups = one.groups};
  if (one.bias) options.bias = bias.to(D{});
  CHECK(error_of(conv2d(on_device, weights, options), expected) <= tolerance<T>());
  // The same images in other layouts, and as a formula.
  Tensor<T, D> const transposed = Tensor<T, D>(on_device.transpose(2, 3)).contiguous().transpose(2, 3);
  Shape twice = one.x;
  twice[3] *= 2;
  Tensor<T, D> stepped = zeros<T>(twice, D{});
  stepped.slice(3, 0, end(), 2).flip(1) = on_device;
  CHECK(error_of(conv2d(transposed, weights, options), expected) <= tolerance<T>());
  CHECK(error_of(conv2d(stepped.slice(3, 0, end(), 2).flip(1), weights, options), expected) <= tolerance<T>());
  CHECK(error_of(conv2d(-on_device, weights.permute({3, 2, 1, 0}).contiguous().permute({3, 2, 1, 0}) * -1, options), expected) <= 2 * tolerance<T>());
}

}  // namespace

TEST_CASE("conv2d is its definition, for every instruction set, layout and option") {
  situ_test::with_every_instruction_set<Cpu>([] {
    for (Case const& one : cases) check_case<float, Cpu>(one);
  });
}

TEST_CASE_TEMPLATE("conv2d of this type", T, double, float16, bfloat16) {
  for (Case const& one : cases) check_case<T, Cpu>(one);
}

TEST_CASE("conv2d on an asynchronous device") {
  for (Case const& one : cases) check_case<float, Emulated<0>>(one);
}

TEST_CASE("conv2d gives what PyTorch does") {
  // torch.nn.functional.conv2d(torch.arange(16.).view(1, 1, 4, 4), torch.tensor([[[[1., 2.], [3., 4.]]]]), torch.tensor([0.5]), stride=2, padding=1)
  Tensor<float> const y = conv2d(arange<float>(16).view({1, 1, 4, 4}), Tensor<float>{{{{1, 2}, {3, 4}}}}, {.bias = Tensor<float>{0.5f}, .stride = 2, .padding = 1});
  CHECK(situ_test::difference(y.to_vector(), std::vector<double>{0.5, 11.5, 9.5, 40.5, 84.5, 40.5, 24.5, 41.5, 15.5}) == "");
}

TEST_CASE("conv2d does not depend on the number of threads, and takes images without a batch") {
  Generator generator{3};
  Tensor<float> const x = randn({2, 8, 40, 50}, generator), w = randn({12, 8, 3, 3}, generator);
  int const before = num_threads();
  set_num_threads(1);
  Tensor<float> const one = conv2d(x, w, {.padding = 1});
  set_num_threads(3);
  Tensor<float> const three = conv2d(x, w, {.padding = 1});
  set_num_threads(before);
  CHECK(one.to_vector() == three.to_vector());
  CHECK(Tensor<float>(conv2d(x[1], w, {.padding = 1})).to_vector() == Tensor<float>(one[1]).to_vector());
  // One image whose outputs threads share, and one channel whose rows they do.
  Tensor<float> const deep = randn({1, 144, 12, 12}, generator), many = randn({200, 144, 3, 3}, generator), wide = randn({1, 1, 150, 120}, generator), few = randn({3, 1, 3, 3}, generator);
  auto const values = [&](int threads) {
    set_num_threads(threads);
    return std::pair(conv2d(deep, many, {.padding = 1}).to_vector(), conv2d(wide, few, {.padding = 1}).to_vector());
  };
  auto const alone = values(1);
  for (int threads : {2, 3, 5}) CHECK(values(threads) == alone);
  set_num_threads(before);
}

TEST_CASE("conv2d of nothing is nothing, or zeros") {
  CHECK(to_string(conv2d(zeros({0, 3, 5, 5}), zeros({4, 3, 3, 3})).shape()) == "[0, 4, 3, 3]");
  CHECK(to_string(conv2d(zeros({2, 3, 5, 5}), zeros({0, 3, 3, 3})).shape()) == "[2, 0, 3, 3]");
  CHECK(conv2d(zeros({1, 0, 3, 3}), zeros({2, 0, 3, 3})).to_vector() == std::vector<float>{0, 0});
  CHECK(conv2d(zeros({2, 0, 5, 20}), zeros({8, 0, 3, 3}), {.bias = ones({8}), .padding = 1}).to_vector() == std::vector<float>(2 * 8 * 5 * 20, 1.f));
  for (int64_t const channels : {1, 3}) {  // windows that see nothing but padding
    for (int64_t const outputs : {1, 4}) {
      for (int64_t const height : {0, 4}) {
        auto const y = conv2d(zeros({2, channels, height, 0}), ones({outputs, channels, 3, 3}), {.bias = ones({outputs}), .padding = 16});
        CHECK(y.to_vector() == std::vector<float>(static_cast<std::size_t>(2 * outputs * (height + 30) * 30), 1.f));
      }
    }
  }
}

TEST_CASE("conv2d names what does not fit") {
  Tensor<float> const x = zeros({2, 4, 5, 5}), w = zeros({6, 4, 3, 3});
  CHECK(thrown<ShapeError>([&] { conv2d(x[0][0], w); }, "conv2d: shapes [5, 5] and [6, 4, 3, 3] were given: images are [N, C, H, W] or [C, H, W], weights [O, C / groups, kh, kw]") == "");
  CHECK(thrown<ShapeError>([&] { conv2d(x, zeros({6, 3, 3, 3})); }, "conv2d: weights of shape [6, 3, 3, 3] do not fit images of shape [2, 4, 5, 5] in 1 group: 3 != 4 channels") == "");
  CHECK(thrown<ShapeError>([&] { conv2d(x, w, {.groups = 3}); }, "conv2d: 3 groups do not divide 4 input and 6 output channels of shapes [2, 4, 5, 5] and [6, 4, 3, 3]") == "");
  CHECK(thrown<ShapeError>([&] { conv2d(x, w, {.groups = 0}); }, "conv2d: 0 groups do not divide 4 input and 6 output channels of shapes [2, 4, 5, 5] and [6, 4, 3, 3]") == "");
  CHECK(thrown<ShapeError>([&] { conv2d(x, w, {.bias = zeros({5})}); }, "conv2d: a bias of shape [5] does not fit weights of shape [6, 4, 3, 3]: it has one element for each of the 6 outputs") == "");
  CHECK(thrown<ShapeError>([&] { conv2d(x, w, {.stride = 0}); }, "conv2d: a stride of 0 x 0 was given; both must be 1 or more") == "");
  CHECK(thrown<ShapeError>([&] { conv2d(x, w, {.padding = {0, -1}}); }, "conv2d: a padding of 0 x -1 was given; both must be 0 or more") == "");
  CHECK(thrown<ShapeError>([&] { conv2d(x, w, {.dilation = 4}); }, "conv2d: a kernel of 3 x 3 with dilation 4 x 4 does not fit images of 5 x 5 with padding 0 x 0: pad more, or take a smaller kernel") == "");
  CHECK(thrown<ShapeError>([&] { conv2d(x, w, {.dilation = INT64_MAX}); }, "conv2d: a kernel of 3 x 3 with dilation 9223372036854775807 x 9223372036854775807 does not fit images of 5 x 5 with padding 0 x 0: pad more, or take a smaller kernel") == "");
  CHECK(to_string(conv2d(x, w).shape()) == "[2, 6, 3, 3]");
}

namespace {

struct PoolCase {
  extent2d kernel, stride, padding, dilation;
  bool ceil, count_padding;
};

/// A pooling by its definition; `padded` elements count in means where the case says so, but not beyond the padding.
double pooled(Tensor<double> const& plane, PoolCase const& one, int64_t i, int64_t j, bool largest) {
  double best = -INFINITY, sum = 0;
  int64_t count = 0;
  for (int64_t u = 0; u < one.kernel.height; ++u) {
    for (int64_t v = 0; v < one.kernel.width; ++v) {
      int64_t const y = i * one.stride.height - one.padding.height + u * one.dilation.height;
      int64_t const x = j * one.stride.width - one.padding.width + v * one.dilation.width;
      if (y >= plane.size(0) + one.padding.height || x >= plane.size(1) + one.padding.width) continue;
      bool const inside = y >= 0 && x >= 0 && y < plane.size(0) && x < plane.size(1);
      count += inside || one.count_padding;
      if (!inside) continue;
      double const value = plane.item(y, x);
      sum += value;
      if (value > best || value != value) best = value;
    }
  }
  return largest ? best : sum / static_cast<double>(count);
}

PoolCase const pool_cases[] = {
    {2, 2, 0, 1, false, true}, {3, 1, 1, 1, false, true}, {{3, 2}, {2, 3}, {1, 0}, 1, false, false}, {2, 2, 0, 1, true, true},
    {3, 2, 1, 1, true, true},  {3, 2, 1, 1, true, false}, {1, 1, 0, 1, false, true},                {2, 1, 0, 2, false, true},
    {3, 3, 1, 1, true, true},  {{2, 5}, {2, 4}, {1, 2}, 1, true, true}, {{2, 3}, {1, 3}, {0, 1}, 2, false, true},
    {{2, 160}, 1, {1, 80}, 1, false, true}, {{301, 1}, 1, {150, 0}, 1, false, false}, {{1, 175}, 2, {0, 87}, 1, true, true},
    {3, 3, 0, 1, false, true}, {{2, 4}, {1, 3}, {1, 2}, 1, true, false},
};

template <class T, class D>
void check_pooling(Shape const& shape) {
  Generator generator{11};
  Tensor<T> const host = randn<T>(shape, generator);
  Tensor<T, D> const x = host.to(D{});
  extent2d const plane(shape[2], shape[3]);
  std::vector<PoolCase> all(std::begin(pool_cases), std::end(pool_cases));
  all.push_back({plane, 1, 0, 1, false, true});
  all.push_back({plane, plane, {1, 0}, 1, false, true});
  for (PoolCase const& one : all) {
    pool2d_options const options{one.stride, one.padding, one.dilation, one.ceil, one.count_padding};
    bool const mean = one.dilation == extent2d(1);
    auto const check = [&](auto const& result, bool largest, double sign) {
      Tensor<double> const values = cast<double>(result.cpu());
      std::string wrong;
      for (int64_t n = 0; n < shape[0]; ++n) {
        for (int64_t c = 0; c < shape[1]; ++c) {
          Tensor<double> const plane = cast<double>(host[n][c]) * sign;
          for (int64_t i = 0; i < values.size(2); ++i) {
            for (int64_t j = 0; j < values.size(3); ++j) {
              double const wanted = pooled(plane, one, i, j, largest), got = values.item(n, c, i, j);
              if (!(std::fabs(got - wanted) <= tolerance<T>() * (1 + std::fabs(wanted)))) wrong = to_string(Shape{n, c, i, j});
            }
          }
        }
      }
      CHECK(wrong == "");
    };
    Tensor<T, D> const other = Tensor<T, D>(x.permute({3, 1, 0, 2})).contiguous().permute({2, 1, 3, 0});
    check(max_pool2d(x, one.kernel, options), true, 1);
    check(max_pool2d(x * -1, one.kernel, options), true, -1);
    check(max_pool2d(other, one.kernel, options), true, 1);
    check(max_pool2d(x + zeros<T>({1}, D{}), one.kernel, options), true, 1);
    if (mean) check(avg_pool2d(x, one.kernel, options), false, 1);
    if (mean) check(avg_pool2d(other * 2, one.kernel, options), false, 2);
  }
}

}  // namespace

TEST_CASE("poolings are their definitions, for every instruction set") {
  situ_test::with_every_instruction_set<Cpu>([] {
    check_pooling<float, Cpu>({2, 3, 7, 9});
    check_pooling<float, Cpu>({1, 2, 8, 32});
    check_pooling<float, Cpu>({1, 1, 5, 70});
  });
  check_pooling<double, Cpu>({1, 2, 6, 16});
  check_pooling<float16, Cpu>({1, 2, 6, 10});
  check_pooling<float, Emulated<0>>({1, 2, 8, 32});
}

TEST_CASE("adaptive_avg_pool2d gives what PyTorch does") {
  // torch.nn.functional.adaptive_avg_pool2d(torch.arange(35.).view(1, 1, 5, 7), (2, 3))
  Tensor<float> const x = arange<float>(35).view({1, 1, 5, 7});
  CHECK(situ_test::difference(adaptive_avg_pool2d(x, {2, 3}).to_vector(), std::vector<double>{8, 10, 12, 22, 24, 26}) == "");
  CHECK(situ_test::difference(adaptive_avg_pool2d(x[0], 1).to_vector(), std::vector<double>{17}) == "");
  // and of torch.arange(48.).view(1, 4, 12), to (2, 4): parts of one size
  CHECK(situ_test::difference(adaptive_avg_pool2d(arange<float>(48).view({1, 4, 12}), {2, 4}).to_vector(), std::vector<double>{7, 10, 13, 16, 31, 34, 37, 40}) == "");
}

TEST_CASE("a NaN is the largest element, and integers pool") {
  Tensor<float> x = zeros({1, 1, 2, 4});
  x(0, 0, 1, 2) = std::numeric_limits<float>::quiet_NaN();
  CHECK(situ_test::difference(max_pool2d(x, 2).to_vector(), std::vector<double>{0, std::nan("")}) == "");
  CHECK(max_pool2d(arange<int32_t>(16).view({1, 4, 4}), 2).to_vector() == std::vector<int32_t>{5, 7, 13, 15});
  CHECK(to_string(max_pool2d(zeros({0, 2, 4, 4}), 2).shape()) == "[0, 2, 2, 2]");
  // A dilated window may see nothing but padding.
  CHECK(max_pool2d(ones({1, 1, 2, 2}), 2, {.stride = 1, .padding = 1, .dilation = 3}).item() == -std::numeric_limits<float>::infinity());
  pool2d_options const far{.stride = INT64_MAX, .padding = 1, .dilation = INT64_MAX - 1, .ceil_mode = true};
  CHECK(max_pool2d(ones({1, 1, 2, 2}), 2, far)(0, 0, 0, 0) == -std::numeric_limits<float>::infinity());
}

TEST_CASE("one window may hang over the end of an image with ceil_mode, and kernels be far larger than it") {
  // torch.nn.functional.max_pool2d(torch.ones(1, 1, 2), (1, 3), stride=3, ceil_mode=True)
  CHECK(max_pool2d(ones({1, 1, 2}), {1, 3}, {.stride = 3, .ceil_mode = true}).to_vector() == std::vector<float>{1});
  CHECK(avg_pool2d(ones({1, 1, 2}), {1, 3}, {.stride = 2, .ceil_mode = true}).to_vector() == std::vector<float>{1});
  CHECK(thrown<ShapeError>([&] { max_pool2d(ones({1, 1, 2}), {1, 5}, {.stride = 2, .ceil_mode = true}); },
                           "max_pool2d: a kernel of 1 x 5 with dilation 1 x 1 does not fit images of 1 x 2 with padding 0 x 0: pad more, or take a smaller kernel") == "");
  int64_t const most = INT32_MAX;
  CHECK(max_pool2d(arange<float>(4).view({1, 2, 2}), most, {.stride = 1, .padding = most / 2}).to_vector() == std::vector<float>(4, 3.f));
  CHECK(thrown<ShapeError>([&] { avg_pool2d(ones({1, 2, 2}), most + 1, {.stride = 1, .padding = most / 2}); },
                           "avg_pool2d: a kernel of 2147483648 x 2147483648 was given; neither may be more than 2^31 - 1") == "");
}

TEST_CASE("poolings name what does not fit") {
  Tensor<float> const x = zeros({1, 2, 4, 5});
  CHECK(thrown<ShapeError>([&] { max_pool2d(x[0][0], 2); }, "max_pool2d: shape [4, 5] was given: images are [N, C, H, W] or [C, H, W]") == "");
  CHECK(thrown<ShapeError>([&] { max_pool2d(x, 2, {.padding = 2}); }, "max_pool2d: a padding of 2 x 2 is more than half of the kernel of 2 x 2") == "");
  CHECK(thrown<ShapeError>([&] { max_pool2d(x, {3, 2}, {.padding = {INT64_MAX, 0}}); }, "max_pool2d: a padding of 9223372036854775807 x 0 is more than half of the kernel of 3 x 2") == "");
  CHECK(thrown<ShapeError>([&] { max_pool2d(x, {-1, 2}); }, "max_pool2d: a kernel of -1 x 2 was given; both must be 1 or more") == "");
  CHECK(thrown<ShapeError>([&] { avg_pool2d(x, {5, 2}); }, "avg_pool2d: a kernel of 5 x 2 with dilation 1 x 1 does not fit images of 4 x 5 with padding 0 x 0: pad more, or take a smaller kernel") == "");
  CHECK(thrown<ShapeError>([&] { max_pool2d(x, -2); }, "max_pool2d: a kernel of -2 x -2 was given; both must be 1 or more") == "");
  CHECK(thrown<ShapeError>([&] { adaptive_avg_pool2d(x, INT64_MAX); },
                           "adaptive_avg_pool2d: shape [1, 2, 9223372036854775807, 9223372036854775807] has more elements than can be addressed: the product of the sizes overflows") == "");
  CHECK(thrown<ShapeError>([&] { avg_pool2d(x, 2, {.dilation = 2}); }, "avg_pool2d: a dilation of 2 x 2 was given; it has none") == "");
  CHECK(thrown<ShapeError>([&] { adaptive_avg_pool2d(x, {0, 2}); }, "adaptive_avg_pool2d: images of shape [1, 2, 4, 5] cannot become 0 x 2: all extents must be 1 or more") == "");
  CHECK(to_string(max_pool2d(x, 2).shape()) == "[1, 2, 2, 2]");
}
