/// Gradients of gradients of losses and of the layers of convolutional networks, against finite differences, plain gradients and PyTorch.
#include <doctest/doctest.h>

#include <limits>
#include <tuple>

#include <situ/autograd.hpp>
#include <situ/nn.hpp>
#include <situ/ops.hpp>

using namespace situ;

namespace {

using V = Variable<double>;

/// sin(0.7 k + phase)
Tensor<double> waves(Shape const& shape, double phase) {
  int64_t count = 1;
  for (int64_t extent : shape) count *= extent;
  return Tensor<double>(sin(arange<double>(static_cast<double>(count)) * 0.7 + phase)).reshape(shape);
}

/// Whether the gradient of sum(f(x) c) that is recorded is the plain one, and is differentiated as finite differences say.
template <class F>
void check(F const& f, V const& x) {
  V const y = f(x);
  Tensor<double> const c = waves(y.shape(), 2);
  CHECK(allclose(grad(sum(f(x) * c), x, create_graph).value(), grad(sum(f(x) * c), x), {1e-12, 1e-12}));
  CHECK(gradgradcheck(f, x));
}
template <class F>
void check(F const& f, V const& x, V const& y) {
  check([&](auto const& v) { return f(v, y.value()); }, x);
  check([&](auto const& v) { return f(x.value(), v); }, y);
  CHECK(gradgradcheck(f, {x, y}));
}

}  // namespace

TEST_CASE("losses of labels and of probabilities have second derivatives") {
  V const x{waves({3, 4}, 0.1)}, images{waves({2, 3, 2, 2}, 0.2)}, alone{waves({5}, 0.3)};
  V const targets{softmax(waves({3, 4}, 1), 1)}, image_targets{softmax(waves({2, 3, 2, 2}, 1), 1)};
  Tensor<int64_t> const labels{1, 3, -100}, image_labels = Tensor<int64_t>{0, 2, 1, 1, 2, 2, -100, 0}.reshape({2, 2, 2});
  Tensor<int64_t> const label = full<int64_t>({}, 2);
  Tensor<double> const four{1, 2, 0.5, 3}, three{1, 0.25, 2}, none;
  for (auto how : {reduction::none, reduction::mean, reduction::sum, reduction::batchmean}) {
    CAPTURE(static_cast<int>(how));
    for (double smoothing : {0.0, 0.2}) {
      for (bool weighs : {false, true}) {
        cross_entropy_options<double, Cpu> const options{.weight = weighs ? four : none, .reduction = how, .label_smoothing = smoothing};
        cross_entropy_options<double, Cpu> const of_images{.weight = weighs ? three : none, .reduction = how, .label_smoothing = smoothing};
        check([&](auto const& v) { return cross_entropy(v, labels, options); }, x);
        check([&](auto const& v) { return cross_entropy(v, image_labels, of_images); }, images);
        check([&](auto const& v, auto const& t) { return cross_entropy(v, t, options); }, x, targets);
        check([&](auto const& v, auto const& t) { return cross_entropy(v, t, of_images); }, images, image_targets);
      }
      check([&](auto const& v) { return cross_entropy(v, label, {.reduction = how, .label_smoothing = smoothing}); }, alone);
    }
    check([&](auto const& v) { return nll_loss(log_softmax(v, 1), labels, {.weight = four, .reduction = how}); }, x);
  }
  // A score of -inf has probability 0 and gradients of 0, of every order.
  double const inf = std::numeric_limits<double>::infinity();
  V const masked{Tensor<double>{{1, -inf, 2, 0}, {-inf, 3, 1e3, 4}, {0, -inf, 1, 2}}};
  V const first = grad(cross_entropy(masked, labels), masked, create_graph);
  CHECK(allclose(first.value(), grad(cross_entropy(masked, labels), masked)));
  V const second = grad(sum(first * first), masked, create_graph);
  Tensor<double> const third = grad(sum(second * second), masked);
  CHECK(all(isfinite(second.value()) && isfinite(third)).item());
  CHECK(second.value()(0, 1) == 0);
  CHECK(third(0, 1) == 0);
  CHECK(third(0, 0) != 0);
  // Labels that are all ignored: the mean is NaN, and its gradients are 0.
  Tensor<int64_t> const ignored{-100, -100, -100};
  auto const none_counts = [&](auto const& loss) {
    V const slope = grad(loss, x, create_graph);
    CHECK(equal(slope.value(), zeros<double>({3, 4})));
    CHECK(equal(grad(sum(slope * slope), x), zeros<double>({3, 4})));
  };
  none_counts(cross_entropy(x, ignored));
  none_counts(cross_entropy(x, ignored, {.label_smoothing = 0.1}));
  V const slope_of_nll = grad(nll_loss(x, ignored), x, create_graph);
  CHECK(equal(slope_of_nll.value(), zeros<double>({3, 4})));
}

TEST_CASE("losses of pairs have second derivatives") {
  V const x{waves({3, 4}, 0.1)}, y{Tensor<double>(waves({3, 4}, 1.3) * 0.4 + 0.5)};
  Tensor<double> const weight{1, 2, 3, 4}, positive{2, 1, 3, 0.5};
  for (auto how : {reduction::none, reduction::mean, reduction::sum, reduction::batchmean}) {
    CAPTURE(static_cast<int>(how));
    check([&](auto const& a, auto const& b) { return V(mse_loss(a, b, {.reduction = how})); }, x, y);
    check([&](auto const& a, auto const& b) { return V(l1_loss(a, b, {.reduction = how})); }, x, y);
    check([&](auto const& a, auto const& b) { return V(smooth_l1_loss(a, b, {.reduction = how, .beta = 0.7})); }, x, y);
    check([&](auto const& a, auto const& b) { return V(binary_cross_entropy_with_logits(a, b, {.weight = weight, .reduction = how, .pos_weight = positive})); }, x, y);
    check([&](auto const& a, auto const& b) { return V(kl_div(a, b, {.reduction = how})); }, x, y);
    check([&](auto const& a, auto const& b) { return V(kl_div(a, b, {.reduction = how, .log_target = true})); }, x, y);
  }
  // With beta 0 nothing is a parabola.
  V const slope_of_l1 = grad(smooth_l1_loss(x, y.value(), {.reduction = reduction::sum, .beta = 0}), x, create_graph);
  CHECK(equal(grad(sum(slope_of_l1 * slope_of_l1), x), zeros<double>({3, 4})));
  // The second derivative of a logarithm of a sigmoid at 0 is that of everywhere else: -1/4.
  V const zero{Tensor<double>{0}};
  V const slope = grad(binary_cross_entropy_with_logits(zero, Tensor<double>{1}), zero, create_graph);
  CHECK(grad(slope, zero).item(0) == doctest::Approx(0.25));
}

TEST_CASE("convolutions, poolings and batch normalisation have second derivatives") {
  V const x{waves({2, 4, 5, 4}, 0.1)}, w{waves({6, 2, 3, 2}, 0.4)}, b{waves({6}, 0.9)}, image{waves({4, 5, 4}, 0.2)};
  auto const convolve = [](auto const& i, auto const& k, auto const& bias) {
    return conv2d(i, k, {.bias = bias, .stride = {2, 1}, .padding = {1, 0}, .dilation = {1, 2}, .groups = 2});
  };
  CHECK(gradgradcheck(convolve, {x, w, b}));
  CHECK(gradgradcheck(convolve, {image, w, b}));
  check([&](auto const& v) { return convolve(v, w.value(), b.value()); }, x);
  check([&](auto const& v) { return convolve(x.value(), v, b.value()); }, w);
  auto const of_order_three = [&](V const& i, V const& k) {
    auto const [gi, gk] = grad(sum(square(convolve(i, k, b))), {i, k}, create_graph);
    auto const [hi, hk] = grad(sum(gi * gi) + sum(gk * gk), {i, k}, create_graph);
    return sum(hi) * 0.01 + sum(hk) * 0.01;
  };
  CHECK(gradcheck(of_order_three, {image, w}));
  for (bool counts : {false, true}) {
    auto const means = [&](auto const& v) { return avg_pool2d(v, {3, 2}, {.stride = {2, 1}, .padding = 1, .count_include_pad = counts}); };
    check(means, x);
    check([&](auto const& v) { return means(tanh(v) * 2); }, x);
  }
  check([](auto const& v) { return adaptive_avg_pool2d(v, {3, 3}); }, x);
  for (auto const& options : {pool2d_options{}, pool2d_options{.stride = {2, 1}, .padding = 1}, pool2d_options{.stride = 1, .padding = 1, .dilation = 2}}) {
    auto const largest = [&](auto const& v) { return max_pool2d(v, {3, 2}, options); };
    check(largest, x);
    check([&](auto const& v) { return largest(tanh(v) * v); }, image);
    auto const third = [&](V const& v) {
      V const g = grad(sum(pow(largest(v), 4)), v, create_graph);
      return sum(grad(sum(g * g), v, create_graph));
    };
    CHECK(gradcheck(third, image));
  }

  Tensor<double> const mean = waves({4}, 1), var = Tensor<double>(waves({4}, 2) * 0.4 + 1);
  V const gamma{waves({4}, 0.5)}, beta{waves({4}, 0.6)};
  for (bool training : {false, true}) {
    auto const normalise = [&](auto const& i, auto const& g, auto const& o) { return batch_norm(i, mean.clone(), var.clone(), g, o, {.training = training}); };
    CHECK(gradgradcheck(normalise, {x, gamma, beta}));
    check([&](auto const& v) { return normalise(v, gamma.value(), beta.value()); }, x);
    check([&](auto const& v) { return normalise(x.value(), v, beta.value()); }, gamma);
    check([&](auto const& v) { return batch_norm(v, mean.clone(), var.clone(), {.training = training}); }, x);
  }
}

TEST_CASE("the penalty of a network's gradients has PyTorch's gradients") {
  auto const run = []<class T, class D>(std::type_identity<T>, D device) {
    auto const leaf = [&](Tensor<double> const& t) { return Variable<T, D>(Tensor<T>(cast<T>(t)).to(device), true); };
    auto const x = leaf(waves({2, 2, 5, 4}, 0.1)), w = leaf(waves({3, 2, 3, 2}, 0.4)), b = leaf(waves({3}, 0.9));
    auto const gamma = leaf(Tensor<double>(waves({3}, 2) * 0.5 + 1)), beta = leaf(waves({3}, 3));
    auto const h = tanh(batch_norm(conv2d(x, w, {.bias = b, .stride = {2, 1}, .padding = 1}), Tensor<T, D>(), Tensor<T, D>(), gamma, beta, {.training = true}));
    auto const scores = sum(avg_pool2d(h, 2), {2, 3});
    auto const weight = Tensor<T>(cast<T>(Tensor<double>{1, 0.5, 2})).to(device);
    auto const loss = cross_entropy(scores, Tensor<int64_t>{2, 0}.to(device), {.weight = weight, .label_smoothing = 0.1});
    auto const [gx, gw] = grad(loss, {x, w}, create_graph);
    auto const penalty = sum(gx * gx) + sum(gw * gw);
    auto const [pw, pb, pg, po] = grad(penalty, {w, b, gamma, beta});
    auto const there = [](auto const& t) { return Tensor<double>(cast<double>(t.cpu())); };
    return std::tuple{there(loss.value()), there(penalty.value()), there(pw).flatten(), there(pb), there(pg), there(po)};
  };
  auto const check_against = [](auto const& found, double tolerance) {
    auto const& [loss, penalty, pw, pb, pg, po] = found;
    // PyTorch 1.13's, in double
    CHECK(loss.item() == doctest::Approx(1.656745089890462).epsilon(tolerance));
    CHECK(penalty.item() == doctest::Approx(2.660986213066362).epsilon(tolerance));
    CHECK(allclose(pw, Tensor<double>{-0.110230536104, -0.380466777435, -0.227910991675, 0.177506128511, 0.314156403454, -0.136203336707, -0.413271851234, -0.12161736029, 0.472036847569,
                                      0.479937648652,  -0.283236336964, -0.425369356834, -1.91334636222, -0.575162422535, 2.17587589725,   0.582105743218,  -2.32163610828, -1.46702855707,
                                      1.08699432275,   2.30835112651,   -1.03525916771,  -2.5249723297,  0.407962583181,  1.86935273342,   -0.163080031618, -0.840077018545, -0.0761685742973,
                                      0.623525197346,  0.216313112694,  -0.41373988288,  -1.42659244213, -1.25837396164,  1.31996729248,   1.32965012668,   -1.16538095003, -1.16029612322},
                   {tolerance, tolerance}));
    CHECK(max(abs(pb)).item() < tolerance);
    CHECK(allclose(pg, Tensor<double>{0.192474333688, 2.39382040379, 1.94211431293}, {tolerance, tolerance}));
    CHECK(allclose(po, Tensor<double>{-0.396123037432, 0.930251388605, 1.72750866221}, {tolerance, tolerance}));
  };
  check_against(run(std::type_identity<double>{}, Cpu{}), 1e-10);
  check_against(run(std::type_identity<double>{}, Emulated<0>{}), 1e-10);
  check_against(run(std::type_identity<float>{}, Pinned{}), 1e-4);
}
