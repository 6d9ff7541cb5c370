/// Attention and its gradients: against PyTorch's, and against plain loops.
#include <doctest/doctest.h>

#include <cmath>

#include <nn/expected/attention.hpp>
#include <nn/patterns.hpp>
#include <situ/autograd/attention.hpp>
#include <situ/nn/attention.hpp>
#include <situ/ops/compare.hpp>
#include <support/compare.hpp>
#include <support/devices.hpp>

using namespace situ;
using situ_test::expected;
using situ_test::largest_difference;
using situ_test::pattern;
using situ_test::thrown;

namespace {

template <class T = double, class D = Cpu>
Variable<T, D> leaf(int64_t seed, Shape const& shape) {
  return Variable<T, D>(pattern<T, D>(seed, shape));
}
template <class T>
constexpr double near = std::is_same_v<T, double> ? 2e-9 : std::is_same_v<T, float> ? 2e-6 : 3e-2;

/// Attention by plain loops, in double, on flat arrays [heads, tokens, features]. `seen` tells whether a query may see a key.
struct Loops {
  int64_t heads, rows, keys, depth, width;
  double scale;
  std::vector<double> q, k, v, g, y, dq, dk, dv;
  template <class Seen>
  void run(Seen const& seen) {
    auto const size = [](int64_t a, int64_t b, int64_t c) { return static_cast<std::size_t>(a * b * c); };
    y.assign(size(heads, rows, width), 0), dq.assign(size(heads, rows, depth), 0), dk.assign(size(heads, keys, depth), 0), dv.assign(size(heads, keys, width), 0);
    std::vector<double> w(static_cast<std::size_t>(keys)), h(w.size());
    for (int64_t n = 0; n < heads; ++n) {
      for (int64_t i = 0; i < rows; ++i) {
        double total = 0, mean = 0;
        for (int64_t j = 0; j < keys; ++j) {
          double s = 0, d = 0;
          for (int64_t e = 0; e < depth; ++e) s += q[size(n * rows + i, depth, 1) + size(e, 1, 1)] * k[size(n * keys + j, depth, 1) + size(e, 1, 1)];
          for (int64_t e = 0; e < width; ++e) d += g[size(n * rows + i, width, 1) + size(e, 1, 1)] * v[size(n * keys + j, width, 1) + size(e, 1, 1)];
          auto const at = static_cast<std::size_t>(j);
          w[at] = seen(n, i, j) ? std::exp(s * scale) : 0, h[at] = d;
          total += w[at];
        }
        if (total == 0) continue;
        for (std::size_t j = 0; j < w.size(); ++j) w[j] /= total, mean += w[j] * h[j];
        for (int64_t j = 0; j < keys; ++j) {
          double const weight = w[static_cast<std::size_t>(j)], slope = weight * (h[static_cast<std::size_t>(j)] - mean) * scale;
          for (int64_t e = 0; e < width; ++e) {
            y[size(n * rows + i, width, 1) + size(e, 1, 1)] += weight * v[size(n * keys + j, width, 1) + size(e, 1, 1)];
            dv[size(n * keys + j, width, 1) + size(e, 1, 1)] += weight * g[size(n * rows + i, width, 1) + size(e, 1, 1)];
          }
          for (int64_t e = 0; e < depth; ++e) {
            dq[size(n * rows + i, depth, 1) + size(e, 1, 1)] += slope * k[size(n * keys + j, depth, 1) + size(e, 1, 1)];
            dk[size(n * keys + j, depth, 1) + size(e, 1, 1)] += slope * q[size(n * rows + i, depth, 1) + size(e, 1, 1)];
          }
        }
      }
    }
  }
};
template <class T, class D>
std::vector<double> doubles(Tensor<T, D> const& x) {
  std::vector<double> result;
  for (T value : x.to_vector()) result.push_back(static_cast<double>(static_cast<compute_t<T>>(value)));
  return result;
}

/// Value and gradients of a case of expected/attention.py.
template <class T, class D>
void check_expected(std::string const& name, int64_t rows, int64_t keys, attention_options<T, D> const& options) {
  CAPTURE(name);
  auto const q = leaf<T, D>(1, {2, 2, rows, 3}), k = leaf<T, D>(2, {2, 2, keys, 3}), v = leaf<T, D>(3, {2, 2, keys, 2});
  auto const y = scaled_dot_product_attention(q, k, v, options);
  y.backward(pattern<T, D>(4, y.shape()));
  CHECK(largest_difference(y.value(), expected(name + ".y")) <= near<T>);
  CHECK(largest_difference(scaled_dot_product_attention(q.value(), k.value(), v.value(), options), expected(name + ".y")) <= near<T>);
  CHECK(largest_difference(q.grad(), expected(name + ".dq")) <= near<T>);
  CHECK(largest_difference(k.grad(), expected(name + ".dk")) <= near<T>);
  CHECK(largest_difference(v.grad(), expected(name + ".dv")) <= near<T>);
}
Tensor<bool> flags(Shape const& shape, bool (*f)(int64_t)) {
  auto result = Tensor<bool>::uninitialized(shape);
  for (int64_t k = 0; k < result.size(); ++k) result.data()[k] = f(k);
  return result;
}
template <class T, class D>
void check_all_expected() {
  check_expected<T, D>("plain", 4, 5, {});
  check_expected<T, D>("causal", 4, 5, {.causal = true});
  check_expected<T, D>("scale", 3, 4, {.scale = -0.5});
  check_expected<T, D>("bool mask", 4, 5, {.mask = flags({4, 5}, [](int64_t k) { return k % 3 != 1; }).to(D{})});
  check_expected<T, D>("added mask", 4, 5, {.mask = pattern<T, D>(5, {2, 1, 4, 5})});
  check_expected<T, D>("padding", 4, 5, {.causal = true, .mask = flags({2, 1, 1, 5}, [](int64_t k) { return k % 7 != 3; }).to(D{})});
}

/// Heads that are slices of tokens: [batch, heads, tokens, features] in memory of [batch, tokens, heads, features].
template <class T, class D>
Variable<T, D> sliced_leaf(int64_t seed, Shape const& shape) {
  return Variable<T, D>(pattern<T, D>(seed, {shape[0], shape[2], shape[1], shape[3]}).transpose(1, 2));
}

template <class T, class D>
void check_blocks(int64_t rows, int64_t keys, bool causal, bool masked) {
  CAPTURE(rows);
  CAPTURE(keys);
  constexpr int64_t depth = 20, width = 12;
  auto const q = sliced_leaf<T, D>(1, {1, 2, rows, depth}), k = sliced_leaf<T, D>(2, {1, 2, keys, depth}), v = leaf<T, D>(3, {1, 2, keys, width});
  auto const g = pattern<T, D>(4, {1, 2, rows, width});
  attention_options<T, D> options{.causal = causal};
  if (masked) options.mask = flags({rows, keys}, [](int64_t m) { return m % 7 < 4; }).to(D{});
  auto const y = scaled_dot_product_attention(q, k, v, options);
  y.backward(g);
  Loops loops{2, rows, keys, depth, width, 1 / std::sqrt(20.0), doubles(q.value()), doubles(k.value()), doubles(v.value()), doubles(g), {}, {}, {}, {}};
  loops.run([&](int64_t, int64_t i, int64_t j) { return (!causal || j <= i) && (!masked || (i * keys + j) % 7 < 4); });
  double const few = near<T>, many = near<T> * 10;
  CHECK(largest_difference(y.value(), loops.y) <= few);
  CHECK(largest_difference(q.grad(), loops.dq) <= few);
  CHECK(largest_difference(k.grad(), loops.dk) <= many);
  CHECK(largest_difference(v.grad(), loops.dv) <= many);
}

template <class Q, class K>
concept attends = requires(Q const& q, K const& k) { scaled_dot_product_attention(q, k, k); };

}  // namespace

TEST_CASE("attention and its gradients are PyTorch's") {
  situ_test::with_every_instruction_set<Cpu>([] {
    check_all_expected<float, Cpu>();
    check_all_expected<double, Cpu>();
  });
  check_all_expected<float, Emulated<0>>();
}

TEST_CASE("attention over many tokens is that of plain loops, in every block and layout") {
  situ_test::with_every_instruction_set<Cpu>([] {
    for (int64_t rows : {1, 75, 150}) {
      for (int64_t keys : {1, 33, 170}) check_blocks<float, Cpu>(rows, keys, rows != 75, rows != 150);
    }
  });
  check_blocks<float, Emulated<0>>(150, 170, true, true);
}

TEST_CASE("attention of 16-bit floats is computed in float and rounded once") {
  check_blocks<bfloat16, Cpu>(30, 40, true, false);
  check_blocks<bfloat16, Cpu>(80, 33, false, true);
}

TEST_CASE("the result lies in memory as the queries do, and batches broadcast") {
  auto const q = sliced_leaf<float, Cpu>(1, {2, 3, 4, 5}), k = leaf<float>(2, {3, 6, 5}), v = leaf<float>(3, {1, 1, 6, 5});
  auto const g = pattern<float>(4, {2, 3, 4, 5});
  auto const y = scaled_dot_product_attention(q, k, v);
  CHECK(y.value().transpose(1, 2).is_contiguous());
  y.backward(g);
  Variable<float> const all_k{k.value().expand({2, 3, 6, 5}).clone()}, all_v{v.value().expand({2, 3, 6, 5}).clone()};
  auto const z = scaled_dot_product_attention(q.value(), all_k, all_v);
  z.backward(g);
  CHECK(equal(z.value(), y.value()));
  CHECK(allclose(k.grad(), sum(all_k.grad(), 0), {1e-5, 1e-6}));
  CHECK(allclose(v.grad(), sum(all_v.grad(), {0, 1}).reshape({1, 1, 6, 5}), {1e-5, 1e-6}));
}

TEST_CASE("a query that sees no key gives 0, and has no gradient") {
  auto const q = leaf<float>(1, {2, 3, 4}), k = leaf<float>(2, {2, 5, 4}), v = leaf<float>(3, {2, 5, 4});
  Tensor<float> const hidden = full({2, 1, 5}, -std::numeric_limits<float>::infinity());
  auto const y = scaled_dot_product_attention(q, k, v, {.mask = hidden});
  y.backward(pattern<float>(4, {2, 3, 4}));
  for (auto const& x : {y.value(), q.grad(), k.grad(), v.grad()}) CHECK(equal(x, zeros(x.shape())));
  CHECK(equal(scaled_dot_product_attention(q.value(), k.value(), v.value(), {.mask = full<bool>({5}, false)}), zeros({2, 3, 4})));
  CHECK(equal(scaled_dot_product_attention(ones({2, 3, 4}), ones({2, 0, 4}), ones({2, 0, 6})), zeros({2, 3, 6})));
  CHECK(scaled_dot_product_attention(ones({2, 0, 4}), ones({2, 3, 4}), ones({2, 3, 6})).shape() == Shape{2, 0, 6});
}

TEST_CASE("dropout drops weights by the generator's call, on every device alike, and backward drops the same") {
  int64_t const rows = 40, keys = 90;
  auto const q = pattern<float>(1, {1, 2, rows, 8}), k = pattern<float>(2, {1, 2, keys, 8});
  Tensor<float> const one = eye(keys).expand({1, 2, keys, keys});  // the result is the weights
  auto const plain = scaled_dot_product_attention(q, k, one);
  manual_seed(7);
  Variable<float> const v{one.clone()};
  auto const dropped = scaled_dot_product_attention(q, k, v, {.dropout = 0.25});
  auto const weights = dropped.value();
  int64_t zeros_seen = 0;
  for (int64_t n = 0; n < weights.size(); ++n) {
    float const w = weights.data()[n], p = plain.data()[n];
    if (w == 0) ++zeros_seen;
    else CHECK(std::abs(w - p / 0.75f) <= 1e-6f);
  }
  CHECK(std::abs(static_cast<double>(zeros_seen) / static_cast<double>(weights.size()) - 0.25) < 0.02);
  auto const g = pattern<float>(4, {1, 2, rows, keys});
  dropped.backward(g);
  CHECK(allclose(v.grad(), matmul(weights.transpose(-2, -1), g), {1e-5, 1e-5}));
  manual_seed(7);
  Emulated<0> const device;
  auto const elsewhere = scaled_dot_product_attention(q.to(device), k.to(device), one.clone().to(device), {.dropout = 0.25});
  CHECK(equal(elsewhere.cpu(), weights));
  situ_test::with_every_instruction_set<Cpu>([&] {
    manual_seed(7);
    CHECK(allclose(scaled_dot_product_attention(q, k, one, {.dropout = 0.25}), weights, {1e-6, 1e-6}));
  });
}

TEST_CASE("attention with several heads tells what does not fit") {
  nn::MultiheadAttention<> const attention{6, 2};
  auto const call = [&](Shape const& q, Shape const& k, Shape const& v) { return [&attention, q, k, v] { attention(ones(q), ones(k), ones(v)); }; };
  auto const expected = [](char const* shapes) {
    return "MultiheadAttention: a " + std::string(shapes) + " were given; key and value have one shape, and the batch of the query";
  };
  CHECK(attention(ones({2, 4, 6}), ones({2, 3, 6}), ones({2, 3, 6})).shape() == Shape{2, 4, 6});
  CHECK(thrown<ShapeError>(call({2, 4, 6}, {1, 3, 6}, {2, 3, 6}), expected("query of shape [2, 4, 6], a key of shape [1, 3, 6] and a value of shape [2, 3, 6]")) == "");
  CHECK(thrown<ShapeError>(call({2, 4, 6}, {1, 3, 6}, {1, 3, 6}), expected("query of shape [2, 4, 6], a key of shape [1, 3, 6] and a value of shape [1, 3, 6]")) == "");
  CHECK(thrown<ShapeError>(call({1, 4, 6}, {2, 3, 6}, {2, 3, 6}), expected("query of shape [1, 4, 6], a key of shape [2, 3, 6] and a value of shape [2, 3, 6]")) == "");
  CHECK(thrown<ShapeError>(call({4, 6}, {3, 6}, {2, 6}), expected("query of shape [4, 6], a key of shape [3, 6] and a value of shape [2, 6]")) == "");
  CHECK(thrown<ShapeError>([] { (nn::MultiheadAttention<>(6, 2, {.dropout = 1.5})); }, "MultiheadAttention: the probability of dropout is 1.5; it must be in [0, 1]") == "");
  CHECK(thrown<ShapeError>([] { (nn::MultiheadAttention<>(-2, 2)); }, "MultiheadAttention: shape [-6, -2] has a negative extent: -6; sizes are 0 or more") == "");
}

TEST_CASE("attention tells what does not fit") {
  auto const call = [](Shape const& q, Shape const& k, Shape const& v) { return [=] { scaled_dot_product_attention(ones(q), ones(k), ones(v)); }; };
  CHECK(thrown<ShapeError>(call({2, 3}, {4, 5}, {4, 5}), "scaled_dot_product_attention: queries [2, 3], keys [4, 5] and values [4, 5] were given: queries and keys have as many features") == "");
  CHECK(thrown<ShapeError>(call({2, 3}, {4, 3}, {5, 3}), "scaled_dot_product_attention: queries [2, 3], keys [4, 3] and values [5, 3] were given: there is a value for each key") == "");
  CHECK(thrown<ShapeError>(call({3}, {4, 3}, {4, 3}), "scaled_dot_product_attention: queries [3], keys [4, 3] and values [4, 3] were given: each is [..., tokens, features]") == "");
  CHECK(thrown<ShapeError>(call({2, 2, 3}, {3, 4, 3}, {4, 3}), "scaled_dot_product_attention: queries [2, 2, 3], keys [3, 4, 3] and values [4, 3] were given: the axes before the last two do not broadcast") == "");
  CHECK(thrown<ShapeError>([] { scaled_dot_product_attention(ones({2, 3}), ones({4, 3}), ones({4, 3}), {.mask = ones<bool>({3, 4})}); },
                           "scaled_dot_product_attention: a mask of shape [3, 4] does not broadcast to the scores' shape [2, 4]") == "");
  CHECK(thrown<ShapeError>([] { scaled_dot_product_attention(ones({2, 3}), ones({4, 3}), ones({4, 3}), {.dropout = 1.5}); },
                           "scaled_dot_product_attention: the probability of dropout is 1.5; it must be in [0, 1]") == "");
  static_assert(attends<Tensor<float>, Tensor<float>> && attends<Variable<float>, Tensor<float>>);
  static_assert(!attends<Tensor<float>, Tensor<float, Emulated<0>>> && !attends<Variable<float>, Tensor<float, Emulated<0>>>);
  static_assert(!attends<Tensor<int>, Tensor<int>>);
}

TEST_CASE("writing to what attention saved is noticed") {
  auto const q = leaf<float>(1, {2, 3, 4});
  auto const y = scaled_dot_product_attention(q, q, q);
  auto value = q.value();
  value += 1;
  CHECK_THROWS_AS(y.backward(pattern<float>(4, {2, 3, 4})), GradientError);
  auto const p = leaf<float>(1, {2, 3, 4});
  attention_options<float, Cpu> options{.mask = full<bool>({3, 3}, true)};
  Tensor<bool> seen = options.mask.keep();
  seen.assign(true);  // before the call: nothing has been saved yet
  auto const masked = scaled_dot_product_attention(p, p, p, options), again = scaled_dot_product_attention(p, p, p, options);
  masked.backward(pattern<float>(4, {2, 3, 4}));
  seen.assign(false);
  CHECK_THROWS_AS(again.backward(pattern<float>(4, {2, 3, 4})), GradientError);
}
