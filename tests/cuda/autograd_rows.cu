#include <doctest/doctest.h>

#include <array>

#include <cuda/compare.hpp>
#include <situ/autograd/random.hpp>
#include <situ/autograd/rows.hpp>
#include <situ/autograd/scan.hpp>
#include <situ/autograd/sort.hpp>

using namespace situ;
using situ_test::differs;
using situ_test::numbers;
using Gpu = Cuda<0>;

namespace {

/// The gradient of f(x) for the gradient g of its value, on the device of x.
template <class F, class T, class D>
Tensor<T, D> gradient(F const& f, Tensor<T, D> const& x, Tensor<T, D> const& g) {
  Variable<T, D> v(x);
  Variable<T, D>(f(v)).backward(g);
  return v.grad();
}

}  // namespace

TEST_CASE("gradients of rows, scans and sorts are the same on a GPU as on the host") {
  Tensor<float> const a = numbers<float>({33, 70}), g = numbers<float>({33, 70}, 2);
  Tensor<float, Gpu> const x{a}, h{g};
  double const tolerance = 2e-5;
  auto const same = [&](auto const& f) { return differs(gradient(f, x, h), gradient(f, a, g), tolerance); };
  CHECK(same([](auto const& v) { return softmax(v, 1); }) == "");
  CHECK(same([](auto const& v) { return log_softmax(v * v, 0); }) == "");
  CHECK(same([](auto const& v) { return layer_norm(v, {70}); }) == "");
  CHECK(same([](auto const& v) { return rms_norm(v, normalized_axes{{0}}); }) == "");
  CHECK(same([](auto const& v) { return cumsum(v, 1); }) == "");
  CHECK(same([](auto const& v) { return cumprod(v, 0); }) == "");
  CHECK(same([](auto const& v) { return sort(v, 1).values; }) == "");
}

TEST_CASE("layer_norm's weight and bias get the host's gradients on a GPU") {
  Tensor<float> const a = numbers<float>({40, 30}), g = numbers<float>({40, 30}, 2), w = numbers<float>({30}, 3);
  auto const run = [&](auto device) {
    using D = decltype(device);
    Variable<float, D> x(a.to(device)), weight(w.to(device)), bias(zeros<float>({30}, device));
    layer_norm(x, {30}, weight, bias).backward(g.to(device));
    return std::array<Tensor<float>, 2>{weight.grad().cpu(), bias.grad().cpu()};
  };
  auto const there = run(Gpu{}), here = run(Cpu{});
  CHECK(differs(there[0], here[0], 2e-5) == "");
  CHECK(differs(there[1], here[1], 2e-5) == "");
}

TEST_CASE("clusters hold rows on a GPU that has them") {
  cudaDeviceProp properties;
  REQUIRE(cudaGetDeviceProperties(&properties, 0) == cudaSuccess);
  CHECK(detail::cuda::runs_in_clusters<detail::cuda::cluster_row_gradient_kernel<detail::cpu::RowGradient::softmax, float, true>>(0) == (properties.major >= 9));
}

TEST_CASE_TEMPLATE("gradients of rows of any length are the host's, in vectors and without, held by a team, a block or a cluster, and read twice", T, float, double, bfloat16) {
  double const tolerance = sizeof(T) == 4 ? 1e-4 : sizeof(T) == 8 ? 1e-10 : 2e-2;
  for (Shape const& shape : {Shape{33, 70}, Shape{1000, 3}, Shape{9, 64}, Shape{2, 5, 1024}, Shape{3, 1001}, Shape{2, 4096}, Shape{3, 8192}, Shape{1, 20003}, Shape{1, 65536}, Shape{1, 65537}, Shape{1, 1}}) {
    CAPTURE(to_string(shape));
    int64_t const n = shape[shape.rank() - 1];
    Tensor<T> const a = numbers<T>(shape), g = numbers<T>(shape, 2), w = numbers<T>({n}, 3), part = numbers<T>({2 * n + 1}, 4);
    Tensor<T, Gpu> const x{a}, h{g}, weight{w}, off_grid{part};
    auto const same = [&](auto const& f) { return differs(gradient(f, x, h), gradient(f, a, g), tolerance); };
    CHECK(same([&](auto const& v) { return softmax(v, -1) * static_cast<T>(n); }) == "");  // whose gradients are not small
    CHECK(same([](auto const& v) { return log_softmax(v, -1); }) == "");
    CHECK(same([&](auto const& v) { return layer_norm(v, {n}); }) == "");
    CHECK(same([&](auto const& v) { return rms_norm(v, {n}); }) == "");
    auto const even = [&](auto const& f) {  // the gradient of a sum, one element for all
      auto const at = [&](auto v) {
        sum(f(v) * f(v)).backward();
        sum(f(v)).backward();
        return v.grad().cpu();
      };
      return differs(at(Variable<T, Gpu>(x)), at(Variable<T, Cpu>(a)), tolerance);
    };
    CHECK(even([](auto const& v) { return log_softmax(v, -1); }) == "");
    CHECK(even([&](auto const& v) { return layer_norm(v, {n}); }) == "");
    auto const norms = [&](auto device, auto const& weights) {
      using D = decltype(device);
      Variable<T, D> v(a.to(device)), u(weights), bias(zeros<T>({n}, device));
      layer_norm(v, {n}, u, bias).backward(g.to(device));
      return std::array<Tensor<T>, 3>{v.grad().cpu(), u.grad().cpu(), bias.grad().cpu()};
    };
    double const summed = tolerance * 10;
    auto const there = norms(Gpu{}, weight), here = norms(Cpu{}, w);
    CHECK(differs(there[0], here[0], tolerance) == "");
    CHECK(differs(there[1], here[1], summed) == "");
    CHECK(differs(there[2], here[2], summed) == "");
    auto const apart = norms(Gpu{}, Tensor<T, Gpu>(off_grid(range(1, n + 1)))), host = norms(Cpu{}, Tensor<T>(part(range(1, n + 1))));
    CHECK(differs(apart[0], host[0], tolerance) == "");
    CHECK(differs(apart[1], host[1], summed) == "");
  }
}

TEST_CASE_TEMPLATE("gradients of many long rows, which one kernel makes, and of rows of nothing are the host's", T, float, double, bfloat16) {
  double const tolerance = sizeof(T) == 4 ? 1e-4 : sizeof(T) == 8 ? 1e-10 : 2e-2;
  int64_t const lengths[] = {4100, sizeof(T) == 4 ? 12001 : 2050, 0};
  for (int64_t n : lengths) {
    CAPTURE(n);
#if defined(SITU_TEST_ON_HOST)  // where threads take turns, these take longest
    if (sizeof(T) == 8 && n == 4100) continue;
#endif
    Shape const shape{n > 0 ? 257 : 3, n};
    CHECK(detail::rows_fill_a_gpu<compute_t<T>>(shape, 2u) == (n > 0));
    Tensor<T> const a = numbers<T>(shape), g = numbers<T>(shape, 2), w = numbers<T>({n}, 3);
    Tensor<T, Gpu> const x{a}, h{g}, weight{w};
    auto const same = [&](auto const& f) { return differs(gradient(f, x, h), gradient(f, a, g), tolerance); };
    CHECK(same([&](auto const& v) { return softmax(v, -1) * static_cast<T>(n); }) == "");
    if (n == 12001) continue;
    CHECK(same([](auto const& v) { return log_softmax(v, -1); }) == "");
    CHECK(same([&](auto const& v) { return rms_norm(v, {n}); }) == "");
    auto const norms = [&](auto device, auto const& weights) {
      using D = decltype(device);
      Variable<T, D> v(a.to(device)), u(weights), bias(zeros<T>({n}, device));
      layer_norm(v, {n}, u, bias).backward(g.to(device));
      return std::array<Tensor<T>, 3>{v.grad().cpu(), u.grad().cpu(), bias.grad().cpu()};
    };
    auto const there = norms(Gpu{}, weight), here = norms(Cpu{}, w);
    CHECK(differs(there[0], here[0], tolerance) == "");
    CHECK(differs(there[1], here[1], tolerance * 10) == "");
    CHECK(differs(there[2], here[2], tolerance * 10) == "");
  }
}

TEST_CASE("dropout's gradient is dropped in the same places on a GPU") {
  Generator there(5), here(5);
  Tensor<float> const a = numbers<float>({64, 30});
  Tensor<float, Gpu> const x{a};
  auto const on_gpu = gradient([&](auto const& v) { return dropout(v, 0.3, there); }, x, x);
  auto const on_host = gradient([&](auto const& v) { return dropout(v, 0.3, here); }, a, a);
  CHECK(differs(on_gpu, on_host, 0) == "");
}
