/// Gradients of pooling: against finite differences, and PyTorch's conventions.
#include <algorithm>
#include <vector>

#include <doctest/doctest.h>

#include <autograd/layouts.hpp>
#include <situ/autograd/pool2d.hpp>
#include <situ/ops/compare.hpp>
#include <support/compare.hpp>
#include <support/devices.hpp>

using namespace situ;
using situ_test::all_layouts;
using situ_test::layout;
using situ_test::leaf;
using situ_test::sample;
using situ_test::V;

namespace {

using One = V (*)(V const&);
struct Case {
  char const* name;
  Shape shape;
  One f;
};
Case const cases[] = {
    {"max 2", {2, 2, 4, 6}, [](V const& x) -> V { return max_pool2d(x, 2); }},
    {"max 2 over an odd image", {1, 2, 5, 7}, [](V const& x) -> V { return max_pool2d(x, 2); }},
    {"max that overlaps", {2, 7, 6}, [](V const& x) -> V { return max_pool2d(x, {3, 2}, {.stride = {2, 1}, .padding = 1}); }},
    {"max 3", {1, 3, 37}, [](V const& x) -> V { return max_pool2d(x, 3, {.stride = 1, .padding = 1}); }},
    {"max 3 by twos", {1, 5, 36}, [](V const& x) -> V { return max_pool2d(x, 3, {.stride = 2, .padding = 1}); }},
    {"avg 3 by ones, by twos", {1, 4, 35}, [](V const& x) -> V { return avg_pool2d(x, 3, {.stride = {2, 1}, .padding = 1}); }},
    {"max with dilation and ceil", {1, 1, 7, 8}, [](V const& x) -> V { return max_pool2d(x, 2, {.stride = 3, .dilation = 2, .ceil_mode = true}); }},
    {"max 4 by threes", {1, 9, 41}, [](V const& x) -> V { return max_pool2d(x, 4, {.stride = 3, .padding = 1}); }},
    {"max 5 of few windows", {2, 5, 10}, [](V const& x) -> V { return max_pool2d(x, 5, {.stride = 4, .padding = 2, .ceil_mode = true}); }},
    {"max of a formula", {1, 2, 4, 34}, [](V const& x) -> V { return max_pool2d(square(x) + x, 2); }},
    {"max of a broadcast formula", {1, 2, 4, 4}, [](V const& x) -> V { return max_pool2d(x * x[0][0], 2); }},
    {"avg 2", {2, 2, 4, 6}, [](V const& x) -> V { return avg_pool2d(x, 2); }},
    {"avg that overlaps", {1, 2, 6, 7}, [](V const& x) -> V { return avg_pool2d(tanh(x), 3, {.stride = 2, .padding = 1}); }},
    {"avg without padding", {2, 6, 7}, [](V const& x) -> V { return avg_pool2d(x, {3, 2}, {.stride = 1, .padding = 1, .ceil_mode = true, .count_include_pad = false}); }},
    {"avg that hangs over", {1, 1, 2}, [](V const& x) -> V { return avg_pool2d(x, {1, 3}, {.stride = 2, .ceil_mode = true}); }},
    {"max far larger than the image", {1, 3, 4}, [](V const& x) -> V { return max_pool2d(x, 301, {.stride = 1, .padding = 150}); }},
    {"avg far larger than the image", {1, 3, 4}, [](V const& x) -> V { return avg_pool2d(x, {2, 301}, {.stride = 1, .padding = {0, 150}, .count_include_pad = false}); }},
    {"avg 2 of many windows", {2, 5, 39}, [](V const& x) -> V { return avg_pool2d(x, 2); }},
    {"avg 3 side by side", {1, 2, 7, 11}, [](V const& x) -> V { return avg_pool2d(x, 3); }},
    {"avg of planes", {2, 2, 3, 3}, [](V const& x) -> V { return avg_pool2d(x * 2, 3); }},
    {"adaptive of planes", {1, 2, 5, 7}, [](V const& x) -> V { return adaptive_avg_pool2d(x, 1); }},
    {"adaptive of equal parts", {2, 4, 36}, [](V const& x) -> V { return adaptive_avg_pool2d(x, {2, 12}); }},
    {"adaptive", {2, 5, 7}, [](V const& x) -> V { return adaptive_avg_pool2d(x, {2, 3}); }},
    {"adaptive beyond the image", {1, 1, 2, 3}, [](V const& x) -> V { return adaptive_avg_pool2d(x * 2, {3, 5}); }},
};

}  // namespace

TEST_CASE("gradients of pooling in every layout, with every instruction set") {
  situ_test::with_every_instruction_set<Cpu>([] {
    for (Case const& c : cases) {
      CAPTURE(c.name);
      for (layout how : all_layouts) {
        if (how == layout::broadcast && c.name[0] == 'm') continue;  // ties: there is no derivative
        CHECK(gradcheck(c.f, leaf(c.shape, how, 5)));
      }
    }
  });
}

TEST_CASE("a gradient goes to the first of the largest elements, and to a NaN") {
  float const nan = __builtin_nanf("");
  Tensor<float> const images{{{1.f, 1.f, 0.f, 2.f}, {1.f, 1.f, 2.f, 2.f}}, {{0.f, nan, 3.f, nan}, {5.f, 9.f, 4.f, nan}}};
  Variable<float> const x(images.clone());
  max_pool2d(x, 2).backward(Tensor<float>{{{1.f, 2.f}}, {{3.f, 4.f}}});
  CHECK(x.grad()[0].to_vector() == std::vector<float>{1, 0, 0, 2, 0, 0, 0, 0});
  // torch 1.13: max_pool2d takes what is larger, and every NaN: of [[0, nan], [5, 9]] the NaN stays, of [[3, nan], [4, nan]] the last one is taken.
  CHECK(x.grad()[1].to_vector() == std::vector<float>{0, 3, 0, 0, 0, 0, 0, 4});

  // The same of windows that overlap, with infinities: torch 1.13, gradients 1, 2, 3, ...
  float const inf = __builtin_inff();
  Tensor<float> const image{{{1.f, 1.f, 0.f, 2.f, 2.f}, {nan, 1.f, 2.f, 2.f, -inf}, {0.f, 3.f, nan, 3.f, -inf}}};
  auto const gradient = [](Tensor<float> const& of, extent2d kernel, pool2d_options const& options) {
    Variable<float> const v(of.clone());
    Variable<float> const y = max_pool2d(v, kernel, options);
    y.backward(Tensor<float>(arange<float>(y.size()).reshape(y.shape()) + 1));
    return v.grad().to_vector();
  };
  CHECK(gradient(image, 3, {.stride = 1, .padding = 1}) == std::vector<float>{0, 0, 0, 12, 0, 20, 0, 0, 0, 0, 0, 0, 63, 25, 0});
  CHECK(gradient(image, 3, {.stride = 2, .padding = 1}) == std::vector<float>{0, 0, 0, 5, 0, 5, 0, 0, 0, 0, 0, 0, 5, 6, 0});
  CHECK(gradient(full({1, 1, 4}, -inf), {1, 3}, {.stride = 1, .padding = {0, 1}}) == std::vector<float>{3, 3, 4, 0});
  // A dilated window that sees nothing but padding has nobody to give it to.
  CHECK(gradient(ones({1, 2, 2}), 2, {.stride = 1, .padding = 1, .dilation = 3}) == std::vector<float>{0, 0, 0, 0});
  CHECK(gradient(ones({1, 2, 2}), 2, {.stride = 3, .padding = 1, .dilation = 3}) == std::vector<float>{0, 0, 0, 0});
  int64_t const far = int64_t{1} << 60;
  CHECK(gradient(ones({1, 2, 2}), {2, 3}, {.stride = {2 * far, 1}, .padding = 1, .dilation = {far - 1, 1}, .ceil_mode = true}) == std::vector<float>{0, 0, 0, 0});
  CHECK(gradient(ones({1, 2, 2}), 2, {.stride = INT64_MAX, .padding = 1, .dilation = INT64_MAX - 1, .ceil_mode = true}) == std::vector<float>{0, 0, 0, 0});
  // The packs of a long row say the same.
  Tensor<float> const wide = images.unsqueeze(2).expand({2, 2, 40, 4}).reshape({2, 2, 160});
  Variable<float> const y(wide);
  max_pool2d(y, 2).backward(Tensor<float>{{{1.f, 2.f}}, {{3.f, 4.f}}}.unsqueeze(2).expand({2, 1, 40, 2}).reshape({2, 1, 80}));
  CHECK(equal(y.grad(), x.grad().unsqueeze(2).expand({2, 2, 40, 4}).reshape({2, 2, 160})));
}

TEST_CASE("gradients of the largest of many equal elements, of NaN and infinities are PyTorch's, for windows of all kinds") {
  struct Ties {
    Shape shape;
    extent2d kernel, stride, padding, dilation;
    double checksum;  ///< Σ (i + 1) gradient[i], by PyTorch 1.13: floor(3 sample(shape, 5)) with NaN, -inf and inf put in, gradients 1, 2, 3, ...
  };
  double const inf = std::numeric_limits<double>::infinity(), nan = std::nan("");
  situ_test::with_every_instruction_set<Cpu>([&] {
    for (Ties const& c : {Ties{{2, 11, 38}, 3, 3, 0, 1, 1303580}, Ties{{2, 7, 7}, 7, 7, 0, 1, 136}, Ties{{1, 8, 17}, 8, 8, 0, 1, 38}, Ties{{1, 13, 30}, {5, 9}, {4, 5}, {2, 4}, 1, 63744},
                          Ties{{1, 15, 41}, 3, {3, 4}, 1, 2, 481625}, Ties{{1, 9, 20}, 5, 1, 2, 1, 1501686}, Ties{{1, 4, 18}, {2, 6}, {2, 6}, 0, 1, 762}, Ties{{2, 9, 33}, 3, 2, 1, 1, 5616525}}) {
      CAPTURE(c.shape);
      auto values = eval(floor(sample(c.shape, 5) * 3)).to_vector();
      values[17] = values[19] = nan, values[3] = -inf, values[4] = values[7] = inf;
      auto const checksum = [&]<class T>(std::type_identity<T>) {
        Variable<T> const x(eval(cast<T>(Tensor<double>(values, c.shape))));
        Variable<T> const y = max_pool2d(x, c.kernel, {.stride = c.stride, .padding = c.padding, .dilation = c.dilation});
        y.backward(eval(arange<T>(y.size()).reshape(y.shape()) + T(1)));
        double total = 0, weight = 0;
        for (T g : x.grad().to_vector()) total += ++weight * static_cast<double>(g);
        return total;
      };
      CHECK(checksum(std::type_identity<double>{}) == c.checksum);
      CHECK(checksum(std::type_identity<float>{}) == c.checksum);
    }
  });
}

TEST_CASE("one place of a window of more than 2^24 elements gets the gradient") {
  Variable<float> const x(arange<float>(3 * 64).view({1, 3, 64}));
  Variable<float> const y = max_pool2d(x, {600'001, 64}, {.stride = 1, .padding = {300'000, 32}});
  sum(y).backward();
  CHECK(y.shape() == Shape{1, 3, 65});
  // Every window has the last row; window j of a row ends at column min(j + 31, 63).
  std::vector<float> expected(3 * 64);
  for (int j = 0; j < 65; ++j) expected[static_cast<std::size_t>(2 * 64 + std::min(j + 31, 63))] += 3;
  CHECK(x.grad().to_vector() == expected);
}

TEST_CASE("pooling on a device with a memory of its own, and of other types") {
  auto const run = []<class T, class D>(std::type_identity<T>, D) {
    auto const x = leaf<T, D>({3, 2, 9, 11});
    sum(square(max_pool2d(relu(x) + x, 3, {.stride = 2})) * 2).backward();
    sum(square(avg_pool2d(x, 2))).backward();
    sum(max_pool2d(x, 2)).backward();
    return x.grad().cpu().template to<double>();
  };
  auto const exact = run(std::type_identity<double>{}, Cpu{});
  CHECK(allclose(run(std::type_identity<double>{}, Emulated<0>{}), exact));
  CHECK(allclose(run(std::type_identity<float>{}, Cpu{}), exact, {.rtol = 1e-4, .atol = 1e-5}));
  CHECK(run(std::type_identity<float16>{}, Emulated<0>{}).shape() == exact.shape());
}

TEST_CASE("nothing is stored for the gradient of pooling") {
  Variable<float> const x = leaf<float>({1, 1, 4, 4});
  auto const y = max_pool2d(x, 2);
  CHECK(std::string(y.grad_fn()) == "MaxPool2d");
  CHECK(std::string(avg_pool2d(x, 2).grad_fn()) == "AvgPool2d");
  Variable<float> const none = leaf<float>({0, 2, 4, 4});
  sum(max_pool2d(none, 2)).backward();
  CHECK(none.grad().shape() == Shape{0, 2, 4, 4});
}
