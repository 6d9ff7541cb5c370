#include <doctest/doctest.h>

#include <cuda/compare.hpp>
#include <situ/nn/losses.hpp>
#include <situ/ops/concat.hpp>
#include <situ/tensor.hpp>

using namespace situ;
using situ_test::differs;
using situ_test::many;
using situ_test::numbers;
using Gpu = Cuda<0>;

namespace {

template <class I>
Tensor<I> labels_for(Shape const& shape, std::int64_t classes) {
  auto result = empty<I>(shape);
  for (std::int64_t k = 0; k < result.size(); ++k) result.data()[k] = static_cast<I>(k % 7 == 3 ? -100 : (k * 37 + 5) % classes);
  return result;
}
/// Values and gradients of loss(x) on both devices.
template <class T, class F>
std::string differs_on_gpu(Tensor<T> const& host, F loss, double tolerance) {
  Variable<T> a{host};
  Variable<T, Gpu> b{host.to(Gpu{})};
  auto const on_host = loss(a);
  auto const on_gpu = loss(b);
  on_host.backward(ones<T>(on_host.shape()));
  on_gpu.backward(ones<T>(on_host.shape(), Gpu{}));
  std::string const values = differs(on_gpu.value(), on_host.value(), tolerance);
  return values != "" ? "value: " + values : differs(b.grad(), a.grad(), tolerance);
}

}  // namespace

TEST_CASE("cross entropy is the same on a GPU as on the host") {
  for (Shape const& s : {Shape{1, 1}, Shape{64, 10}, Shape{1000, 3}, Shape{33, 1024}, Shape{5, 5000}, Shape{2, 4, 3, 3}}) {
    CAPTURE(to_string(s));
    Tensor<float> x = numbers<float>(s);
    x.select(1, 0).assign(x.select(1, 0) * 40);  // some sums overflow about their label
    Shape kept{s[0]};
    for (int k = 2; k < s.rank(); ++k) kept.push_back(s[k]);
    Tensor<std::int64_t> const y = labels_for<std::int64_t>(kept, s[1]);
    Tensor<float> const w = eval(abs(numbers<float>({s[1]}, 5)));
    for (reduction how : {reduction::none, reduction::mean, reduction::sum}) {
      CHECK(differs_on_gpu(x, [&](auto const& v) { return cross_entropy(v, y.to(device_of<decltype(v)>{}), {.reduction = how}); }, 1e-5) == "");
      CHECK(differs_on_gpu(x, [&](auto const& v) {
              auto const d = device_of<decltype(v)>{};
              return cross_entropy(v, y.to(d), {.weight = w.to(d), .reduction = how, .label_smoothing = 0.1});
            }, 1e-4) == "");
      CHECK(differs_on_gpu(x, [&](auto const& v) { return nll_loss(v, y.to(device_of<decltype(v)>{}), {.reduction = how}); }, 1e-5) == "");
    }
    Tensor<float> const t = eval(abs(numbers<float>(s, 3)) * 0.1f);
    CHECK(differs_on_gpu(x, [&](auto const& v) { return cross_entropy(v, t.to(device_of<decltype(v)>{}), {.label_smoothing = 0.2}); }, 1e-4) == "");
  }
}

TEST_CASE("cross entropy of 16-bit floats is computed in float on a GPU, too") {
  for (Shape const& s : {Shape{40, 96}, Shape{40, 97}}) {
    Tensor<float16> const x = numbers<float16>(s), t = eval(abs(numbers<float16>(s, 3)) * float16(0.05f));
    Tensor<std::int64_t> const y = labels_for<std::int64_t>({s[0]}, s[1]);
    CHECK(differs_on_gpu(x, [&](auto const& v) { return cross_entropy(v, y.to(device_of<decltype(v)>{})); }, 2e-3) == "");
    CHECK(differs_on_gpu(x, [&](auto const& v) { return cross_entropy(v, t.to(device_of<decltype(v)>{})); }, 2e-3) == "");
  }
}

TEST_CASE("the probabilities of a cross entropy get the host's gradients on a GPU") {
  for (Shape const& s : {Shape{40, 96}, Shape{40, 97}}) {
    Tensor<float> const scores = numbers<float>(s), targets = eval(abs(numbers<float>(s, 3)) * 0.1f), w = eval(abs(numbers<float>({s[1]}, 5)));
    for (bool of_scores : {false, true}) {
      auto const gradients = [&](auto device) {
        using D = decltype(device);
        Variable<float, D> x(scores.to(device)), t(targets.to(device));
        if (of_scores) cross_entropy(x, t, {.weight = w.to(device), .reduction = reduction::sum, .label_smoothing = 0.2}).backward();
        else cross_entropy(scores.to(device), t, {.weight = w.to(device), .reduction = reduction::sum, .label_smoothing = 0.2}).backward();
        Tensor<float> const of_x = of_scores ? x.grad().cpu() : zeros(s);
        return eval(concat(of_x, t.grad().cpu()));
      };
      CHECK(differs(gradients(Gpu{}), gradients(Cpu{}), 1e-5) == "");
    }
  }
}

TEST_CASE("losses of pairs are the same on a GPU as on the host") {
  for (Shape const& s : {Shape{1}, Shape{7, 5}, Shape{many(1'000'030)}}) {
    CAPTURE(to_string(s));
    Tensor<float> const x = numbers<float>(s), y = eval(abs(numbers<float>(s, 2)) * 0.1f);
    for (reduction how : {reduction::none, reduction::mean, reduction::batchmean}) {
      auto const same = [&](auto loss) { return differs_on_gpu(x, [&](auto const& v) { return loss(v, y.to(device_of<decltype(v)>{})); }, 1e-5); };
      CHECK(same([&](auto const& v, auto const& t) { return mse_loss(v, t, {.reduction = how}); }) == "");
      CHECK(same([&](auto const& v, auto const& t) { return l1_loss(t, v, {.reduction = how}); }) == "");
      CHECK(same([&](auto const& v, auto const& t) { return smooth_l1_loss(v, t, {.reduction = how, .beta = 2}); }) == "");
      CHECK(same([&](auto const& v, auto const& t) { return binary_cross_entropy_with_logits(v, t, {.weight = t, .reduction = how}); }) == "");
      CHECK(same([&](auto const& v, auto const& t) { return kl_div(v, t, {.reduction = how}); }) == "");
      CHECK(same([&](auto const& v, auto const& t) { return kl_div(t, v, {.reduction = how, .log_target = true}); }) == "");
    }
  }
}

TEST_CASE("a label that is no class is told at the next synchronisation") {
  Variable<float, Gpu> x{ones({3, 4}, Gpu{})};
  auto const loss = cross_entropy(x, Tensor<std::int64_t, Gpu>{0, 4, 1});
  CHECK_THROWS_AS(synchronize(Gpu{}), IndexError);
}
