/// Gradients of convolution: against PyTorch's, finite differences, and between devices and instruction sets.
#include <doctest/doctest.h>

#include <autograd/layouts.hpp>
#include <situ/autograd/conv2d.hpp>
#include <situ/ops/compare.hpp>
#include <support/compare.hpp>
#include <support/devices.hpp>

using namespace situ;
using situ_test::all_layouts;
using situ_test::layout;
using situ_test::leaf;
using situ_test::sample;
using situ_test::thrown;
using situ_test::V;

namespace {

struct Case {
  Shape x, w;
  extent2d stride, padding, dilation;
  int64_t groups;
  bool bias;
  double dx, dw, db;  ///< Σ (i + 1) gradient[i], by PyTorch 1.13: X = sample(x, 1), W = sample(w, 2), B = sample(b, 3), Σ y sample(y, 4)
};
Case const cases[] = {
    {{2, 3, 5, 6}, {4, 3, 3, 3}, 1, 0, 1, 1, true, -1813.91507921, -671.17172596, 6.438500000000004},
    {{2, 4, 7, 5}, {6, 2, 3, 2}, 2, 1, 1, 2, true, 2463.40184244, -172.83221025000006, -32.85949999999999},
    {{2, 3, 8, 8}, {3, 1, 3, 3}, 1, 1, 1, 3, false, -6536.425513169999, -8.188372330000064, 0},
    {{1, 2, 9, 9}, {2, 2, 2, 3}, {1, 3}, 2, 2, 1, true, 139.55957260000025, -18.986728920000004, 2.390500000000001},
    {{3, 5, 4, 4}, {2, 5, 1, 1}, 1, 0, 1, 1, true, -871.8888636599997, 3.596797589999987, 3.9217000000000004},
    {{4, 4, 3, 3}, {4, 4, 2, 2}, 1, 3, 1, 1, false, -1971.1901402399997, -38.29015822000002, 0},
    // few channels and outputs for each group
    {{2, 6, 9, 17}, {6, 1, 3, 3}, 1, 1, 1, 6, true, 48125.90812661998, 688.2580784799998, 65.8397},
    {{1, 4, 11, 7}, {8, 1, 5, 3}, {2, 1}, 2, 1, 4, false, 1708.9811893799988, -582.8692290399999, 0},
    {{2, 4, 14, 20}, {4, 2, 3, 3}, 2, 1, 1, 2, true, -35350.544313560014, -1883.8851628799996, 6.0661999999999985},
    {{1, 3, 8, 40}, {2, 3, 4, 3}, 1, {2, 1}, 1, 1, false, -49406.35009284, -272.46687000000014, 0},
    {{1, 2, 15, 35}, {2, 1, 3, 3}, 1, 3, 3, 2, false, 10888.236264429996, -247.8747988099999, 0},
    {{2, 2, 13, 9}, {2, 1, 3, 2}, 3, {1, 0}, 1, 2, false, 382.36367468000043, -8.00729248999999, 0},
};

template <class T, class D>
Variable<T, D> convolve(Case const& c, Variable<T, D> const& x, Variable<T, D> const& w, Variable<T, D> const& b) {
  if (!c.bias) return conv2d(x, w, {.stride = c.stride, .padding = c.padding, .dilation = c.dilation, .groups = c.groups});
  return conv2d(x, w, {.bias = b, .stride = c.stride, .padding = c.padding, .dilation = c.dilation, .groups = c.groups});
}
template <class T, class D>
double checksum(Tensor<T, D> const& t) {
  double total = 0, weight = 0;
  for (T v : t.to_vector()) total += ++weight * static_cast<double>(static_cast<compute_t<T>>(v));
  return total;
}

template <class T, class D>
void check_case(Case const& c, layout how, double tolerance) {
  auto const x = leaf<T, D>(c.x, how, 1), w = leaf<T, D>(c.w, how == layout::broadcast ? layout::contiguous : how, 2), b = leaf<T, D>({c.w[0]}, layout::contiguous, 3);
  auto const y = convolve(c, x, w, b);
  y.backward(sample<T, D>(y.shape(), 4));
  if (how == layout::contiguous) {
    CHECK(std::abs(checksum(x.grad()) - c.dx) <= tolerance);
    CHECK(std::abs(checksum(w.grad()) - c.dw) <= tolerance);
  }
  if (c.bias) CHECK(std::abs(checksum(b.grad()) - c.db) <= tolerance);
}

}  // namespace

TEST_CASE("gradients of convolutions are PyTorch's, with every instruction set") {
  situ_test::with_every_instruction_set<Cpu>([] {
    for (Case const& c : cases) {
      check_case<double, Cpu>(c, layout::contiguous, 1e-8);
      check_case<double, Emulated<0>>(c, layout::contiguous, 1e-8);
      check_case<float, Cpu>(c, layout::contiguous, 5e-2);
    }
  });
}

TEST_CASE("gradients of convolutions in every layout") {
  for (Case const& c : cases) {
    if (detail::product(c.x) > 200) continue;
    for (layout how : all_layouts) {
      V const x = leaf(c.x, how, 1), w = leaf(c.w, how, 2), b = leaf({c.w[0]}, layout::contiguous, 3);
      CHECK(gradcheck([&c](V const& p, V const& q, V const& r) { return convolve<double, Cpu>(c, p, q, r); }, {x, w, b}));
    }
  }
}

TEST_CASE("a single image, a constant, a formula, nothing") {
  V const w = leaf({2, 3, 2, 2}, layout::contiguous, 2);
  Tensor<double> const image = sample({3, 4, 4});
  V const y = conv2d(image, w, {.bias = tanh(leaf({2})), .stride = 2});
  CHECK(std::string(y.grad_fn()) == "Conv2d");
  y.backward(ones<double>({2, 2, 2}).slice(2, 0, 1).expand({2, 2, 2}));
  Tensor<double> expected = zeros<double>({2, 3, 2, 2});  // each output sees the windows' sums
  for (int64_t o = 0; o < 2; ++o) {
    for (int64_t c = 0; c < 3; ++c) {
      for (int64_t k = 0; k < 16; ++k) expected(o, c, k / 4 % 2, k % 2) += image.item(c, k / 4, k % 4);
    }
  }
  CHECK(allclose(w.grad(), expected));
  V const none = leaf({0, 3, 4, 4});
  w.state()->has_grad = false;
  sum(conv2d(none, w)).backward();
  CHECK(none.grad().shape() == Shape{0, 3, 4, 4});
  CHECK(sum(abs(w.grad())).item() == 0);
  CHECK(thrown<ShapeError>([&] { conv2d(leaf({1, 2, 4, 4}), w); },
                           "conv2d: weights of shape [2, 3, 2, 2] do not fit images of shape [1, 2, 4, 4] in 1 group: 3 != 2 channels") == "");
}

TEST_CASE("gradients with strides beyond any image") {
  for (int64_t outputs : {1, 4, 8}) {
    Variable<float> const x(ones({1, 4, 8, 64})), w(ones({outputs, 4, 1, 1}));
    sum(conv2d(x, w, {.stride = {int64_t{1} << 62, 1}, .padding = {int64_t{1} << 61, 0}})).backward();
    CHECK(sum(abs(x.grad())).item() == 0);
    CHECK(sum(abs(w.grad())).item() == 0);
  }
}

TEST_CASE("results one column wide take gradients with any stride there") {
  for (int64_t groups : {1, 6}) {
    Tensor<double> const image = sample({2, 6, 9, 3}), weights = sample({12, 6 / groups, 2, 3}, 2);
    auto const run = [&](auto const& turn) {
      V const x(image), w(weights), b(sample({12}, 3));
      auto const y = conv2d(x, w, {.bias = b, .groups = groups});
      REQUIRE(y.shape() == Shape{2, 12, 8, 1});
      turn(y);
      return std::tuple(x.grad(), w.grad(), b.grad());
    };
    Tensor<double> const seed = sample({2, 12, 8, 1}, 4);
    auto const wanted = run([&](auto const& y) { y.backward(seed); });
    auto const check = [&](auto const& turn) {
      auto const found = run(turn);
      CHECK(allclose(std::get<0>(found), std::get<0>(wanted)));
      CHECK(allclose(std::get<1>(found), std::get<1>(wanted)));
      CHECK(allclose(std::get<2>(found), std::get<2>(wanted)));
    };
    check([&](auto const& y) { y.transpose(2, 3).backward(Tensor<double>(seed.transpose(2, 3)).contiguous()); });
    check([&](auto const& y) { y.backward(seed.flip(3)); });
    check([&](auto const& y) { y.transpose(1, 3).backward(Tensor<double>(seed.transpose(1, 3)).contiguous()); });
  }
}

TEST_CASE("what is not finite is in the gradients of those weights that meet it") {
  double const inf = std::numeric_limits<double>::infinity();
  situ_test::with_every_instruction_set<Cpu>([&] {
    for (int64_t width : {6, 19, 35}) {  // the last pixel is met by the last column of the kernel only
      Tensor<float> image = ones({1, 2, 5, width});
      image.slice(3, width - 1, width) = full({1, 2, 5, 1}, static_cast<float>(inf));
      Variable<float> const w(ones({2, 1, 3, 3}));
      sum(conv2d(image, w, {.groups = 2})).backward();
      float const row = static_cast<float>(3 * (width - 2)), all = static_cast<float>(inf);
      CHECK(w.grad().to_vector() == std::vector<float>{row, row, all, row, row, all, row, row, all, row, row, all, row, row, all, row, row, all});
    }
  });
}

TEST_CASE("larger convolutions: several parts, blocks and threads give what one thread gives") {
  struct Large {
    Shape x, w;
    extent2d stride, padding;
    int64_t groups;
  };
  for (Large const& l : {Large{{40, 3, 17, 19}, {16, 3, 3, 3}, 1, 1, 1}, Large{{2, 70, 12, 13}, {34, 35, 3, 3}, 2, 1, 2},
                         Large{{1, 4, 90, 300}, {8, 4, 5, 5}, 1, 2, 1}, Large{{9, 96, 7, 7}, {10, 96, 3, 3}, 1, 1, 1}, Large{{5, 40, 11, 10}, {24, 40, 1, 1}, 1, 0, 1}, Large{{3, 6, 9, 41}, {6, 1, 3, 5}, 1, {1, 2}, 6},
                         Large{{3, 6, 9, 41}, {6, 1, 3, 2}, 2, 1, 6}, Large{{5, 4, 70, 130}, {4, 1, 3, 3}, 1, 1, 4}, Large{{2, 160, 12, 12}, {160, 160, 3, 3}, 1, 1, 1}}) {
    auto const run = [&]<class T>(std::type_identity<T>) {
      auto const x = leaf<T>(l.x, layout::contiguous, 1), w = leaf<T>(l.w, layout::contiguous, 2);
      auto const y = conv2d(x, w, {.stride = l.stride, .padding = l.padding, .groups = l.groups});
      y.backward(sample<T>(y.shape(), 3));
      return std::pair(x.grad(), w.grad());
    };
    auto const got = run(std::type_identity<float>{});
    auto const exact = run(std::type_identity<double>{});
    CHECK(allclose(got.first.to<double>(), exact.first, {.rtol = 1e-4, .atol = 1e-3}));
    CHECK(allclose(got.second.to<double>(), exact.second, {.rtol = 1e-4, .atol = 1e-2}));
    int const threads = num_threads();
    set_num_threads(1);
    auto const alone = run(std::type_identity<float>{});
    set_num_threads(threads);
    CHECK(equal(got.first, alone.first));
    CHECK(equal(got.second, alone.second));
    // Σ x ∂L/∂x = Σ w ∂L/∂w = L: convolution is linear in each.
    auto const x = sample(l.x, 1), w = sample(l.w, 2);
    CHECK(std::abs((sum(x * exact.first) - sum(w * exact.second)).item()) < 1e-6);
  }
}

TEST_CASE_TEMPLATE("gradients of 16-bit convolutions are rounded once", T, float16, bfloat16) {
  double const half_unit = std::is_same_v<T, float16> ? 0x1p-11 : 0x1p-8;
  for (int64_t groups : {1, 4}) {
    for (int64_t stride : {1, 2}) {
      Tensor<T> const x(cast<T>(sample({2, 4, 16, 36}, 1))), w(cast<T>(sample({8, 4 / groups, 3, 3}, 2)));
      Variable<T> vx(x), vw(w), vb(zeros<T>({8}));
      Variable<double> ex(x.template to<double>()), ew(w.template to<double>()), eb(zeros<double>({8}));
      auto y = conv2d(vx, vw, {.bias = vb, .stride = stride, .groups = groups});
      auto exact = conv2d(ex, ew, {.bias = eb, .stride = stride, .groups = groups});
      Tensor<T> const g(cast<T>(sample(y.shape(), 3)));
      y.backward(g);
      exact.backward(g.template to<double>());
      auto const off = [&](Tensor<T> const& got, Tensor<double> const& want) {  // beyond half a unit, and what sums in float lose
        return max(abs(got.template to<double>() - want) - abs(want) * half_unit).item();
      };
      CHECK(off(vx.grad(), ex.grad()) < 1e-5);
      CHECK(off(vw.grad(), ew.grad()) < 1e-4);
      CHECK(off(vb.grad(), eb.grad()) < 1e-4);
    }
  }
}
