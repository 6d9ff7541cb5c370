#include <doctest/doctest.h>

#include <cuda/compare.hpp>
#include <situ/ops/normalization.hpp>
#include <situ/ops/reduce.hpp>
#include <situ/ops/softmax.hpp>
#include <situ/tensor.hpp>

using namespace situ;
using situ_test::differs;
using situ_test::numbers;
using Gpu = Cuda<0>;

TEST_CASE("softmax and the norms are the same on a GPU as on the host") {
  using T = float;
  double const tolerance = 2e-6;
  for (Shape const& s : {Shape{1, 1}, Shape{64, 10}, Shape{1000, 5}, Shape{33, 1024}, Shape{3, 5000}, Shape{2, 50001}, Shape{5000, 3}}) {
    CAPTURE(to_string(s));
    Tensor<T> const a = numbers<T>(s);
    Tensor<T, Gpu> const x{a};
    for (int axis : {0, 1}) {
      CAPTURE(axis);
      CHECK(differs(softmax(x, axis), softmax(a, axis), tolerance) == "");
      CHECK(differs(softmax(x.t(), axis), softmax(a.t(), axis), tolerance) == "");
      CHECK(differs(softmax(x.flip(1), axis), softmax(a.flip(1), axis), tolerance) == "");
      CHECK(differs(log_softmax(x, axis), log_softmax(a, axis), 10 * tolerance) == "");
    }
    Shape const last(s[1]);
    CHECK(differs(layer_norm(x, last), layer_norm(a, last), 10 * tolerance) == "");
    CHECK(differs(rms_norm(x, last), rms_norm(a, last), 10 * tolerance) == "");
  }
}

TEST_CASE("softmax of 16-bit floats is computed in float on a GPU, too") {
  Tensor<float16> const a = numbers<float16>({33, 1000});
  Tensor<float16, Gpu> const x{a};
  CHECK(differs(softmax(x, 1), softmax(a, 1), 2e-3) == "");
}

TEST_CASE("an operation on rows fuses its input, and takes weights and several axes") {
  Tensor<float> const a = numbers<float>({12, 7, 40}), b = numbers<float>({7, 1}, 2), w = numbers<float>({7, 40}, 3);
  Tensor<float, Gpu> const x{a}, y{b}, v{w};
  CHECK(differs(softmax(x * 0.5f + y, 2), softmax(a * 0.5f + b, 2), 2e-6) == "");
  CHECK(differs(layer_norm(x + y, {7, 40}, v, v), layer_norm(a + b, {7, 40}, w, w), 2e-5) == "");
  CHECK(differs(layer_norm(x, normalized_axes{{0, 2}}), layer_norm(a, normalized_axes{{0, 2}}), 2e-5) == "");
  CHECK(differs(rms_norm(x, normalized_axes{{1}}), rms_norm(a, normalized_axes{{1}}), 2e-5) == "");
}

TEST_CASE("rows that blocks or clusters of blocks hold are those of the host") {
  // Of one block, two, four and eight, in vectors and without, and too long by a little.
  for (Shape const& s : {Shape{3, 12288}, Shape{2, 16385}, Shape{2, 65536}, Shape{1, 131071}, Shape{1, 131073}}) {
    CAPTURE(to_string(s));
    Tensor<float> const a = numbers<float>(s), w = numbers<float>({s[1]}, 2), far = eval(a * 1e-3f + 100.0f);
    Tensor<float> poisoned = a.clone(), lowest = a.clone();
    poisoned.select(1, s[1] - 1).select(0, 0) = NAN;
    lowest.select(0, s[0] - 1) = -INFINITY;
    for (Tensor<float> const& host : {a, poisoned, lowest}) {
      CHECK(differs(softmax(host.to(Gpu{}), 1), softmax(host, 1), 1e-7) == "");
    }
    CHECK(differs(log_softmax(a.to(Gpu{}) * 0.5f, 1), log_softmax(a * 0.5f, 1), 2e-6) == "");
    CHECK(differs(layer_norm(far.to(Gpu{}), {s[1]}, w.to(Gpu{}), w.to(Gpu{})), layer_norm(far, {s[1]}, w, w), 1e-4) == "");
    CHECK(differs(rms_norm(a.to(Gpu{}), {s[1]}, w.to(Gpu{})), rms_norm(a, {s[1]}, w), 1e-5) == "");
  }
  for (Shape const& s : {Shape{2, 16392}, Shape{2, 40000}, Shape{1, 262144}, Shape{1, 40001}}) {
    CAPTURE(to_string(s));
    Tensor<float16> const h = numbers<float16>(s);
    Tensor<bfloat16> b = cast<bfloat16>(h);
    CHECK(differs(layer_norm(h.to(Gpu{}), {s[1]}), layer_norm(h, {s[1]}), 2e-3) == "");
    CHECK(differs(softmax(h.to(Gpu{}), 1), softmax(h, 1), 1e-7) == "");
    CHECK(differs(log_softmax(b.to(Gpu{}), 1), log_softmax(b, 1), 1e-2) == "");
    b.select(1, 7).assign(NAN);
    CHECK(differs(softmax(b.to(Gpu{}), 1), softmax(b, 1), 1e-7) == "");
  }
  Tensor<double> const d = numbers<double>({2, 30000});
  CHECK(differs(softmax(d.to(Gpu{}), 1), softmax(d, 1), 1e-14) == "");
  CHECK(differs(layer_norm(d.to(Gpu{}), {30000}), layer_norm(d, {30000}), 1e-10) == "");
}

template <class T>
void check_narrow(double tolerance) {
  for (Shape const& s : {Shape{70, 8}, Shape{33, 100}, Shape{9, 512}, Shape{5, 4096}, Shape{2, 24000}, Shape{1, 300000}}) {
    CAPTURE(to_string(s));
    int64_t const n = s[1];
    Tensor<T> const h = numbers<T>(s), w = numbers<T>({n}, 2), b = numbers<T>({n}, 3), longer = numbers<T>({n + 1}, 4);
    Tensor<float> const wide = numbers<float>({n}, 5);
    Tensor<T, Gpu> const x{h}, v{w}, c{b}, further{longer};
    CHECK(differs(layer_norm(x, {n}, v, c), layer_norm(h, {n}, w, b), tolerance) == "");
    CHECK(differs(layer_norm(x, {n}, v), layer_norm(h, {n}, w), tolerance) == "");
    CHECK(differs(layer_norm(x, {n}, wide.to(Gpu{}), c), layer_norm(h, {n}, wide, b), tolerance) == "");
    CHECK(differs(layer_norm(x, {n}, v * 2, wide.to(Gpu{})), layer_norm(h, {n}, w * 2, wide), tolerance) == "");
    CHECK(differs(layer_norm(x + x, {n}, further.slice(0, 1, n + 1), further.slice(0, 0, n)), layer_norm(h + h, {n}, longer.slice(0, 1, n + 1), longer.slice(0, 0, n)), tolerance) == "");
    CHECK(differs(rms_norm(x, {n}, v), rms_norm(h, {n}, w), tolerance) == "");
    Tensor<T> lone = ones<T>(s);
    lone.select(1, 0).assign(static_cast<T>(1000.0f));
    Tensor<T, Gpu> const alone{lone}, large{Tensor<T>(full<T>({n}, static_cast<T>(300.0f)))};
    CHECK(differs(rms_norm(alone, {n}, large * large), rms_norm(lone, {n}, large.cpu() * large.cpu()), tolerance) == "");  // a formula is not rounded: 90000 is no float16
    // Powers of 16-bit floats have fewer bits: of what softmax should be, in double, no more than a unit in the last place is missing.
    Tensor<T> const made = softmax(x * 4, 1).cpu(), logarithms = log_softmax(x * 4, 1).cpu();
    Tensor<double> const exact = softmax(cast<double>(h * 4), 1);
    CHECK(max(abs(cast<double>(made) - exact) / (exact + 1e-4)).item() < tolerance);
    CHECK(max(abs(cast<double>(logarithms) - log(exact)) / (1 - log(exact))).item() < tolerance);
  }
}

TEST_CASE("rows of 16-bit floats, and weights of the same") {
  check_narrow<float16>(1e-3 * 2);
  check_narrow<bfloat16>(8e-3 * 2);
}

TEST_CASE("few long rows are cut into parts for many blocks, with the same results") {
  for (Shape const& s : {Shape{1, 400001}, Shape{2, 300000}, Shape{70000, 2}}) {
    CAPTURE(to_string(s));
    int const axis = s[0] < s[1] ? 1 : 0;
    Tensor<float> a = numbers<float>(s), flat = eval(a * 1e-3f + 100.0f), lowest = a.clone(), poisoned = a.clone(), endless = a.clone();
    lowest.select(1 - axis, 0) = -INFINITY;
    (axis == 1 ? poisoned.select(1, s[1] - 1) : poisoned.select(0, s[0] - 1)) = NAN;
    (axis == 1 ? endless.select(1, s[1] / 2) : endless.select(0, s[0] / 2)) = -INFINITY;
    for (Tensor<float> const& host : {a, lowest, poisoned, endless}) {
      Tensor<float, Gpu> const x{host};
      CHECK(differs(softmax(x, axis), softmax(host, axis), 1e-7) == "");
      CHECK(differs(log_softmax(x, axis), log_softmax(host, axis), 2e-6) == "");
    }
    // Far from 0 the mean and the variance are what is left of large numbers.
    normalized_axes const along{{axis}};
    Tensor<float, Gpu> const y{flat};
    CHECK(differs(layer_norm(y, along), layer_norm(flat, along), 1e-4) == "");
    CHECK(differs(rms_norm(y * 2 + 1, along), rms_norm(flat * 2 + 1, along), 1e-6) == "");
    Tensor<float> const first = softmax(y, axis).cpu();
    CHECK(differs(softmax(y, axis), first, 0.0) == "");
  }
  Tensor<float16> const h = numbers<float16>({1, 200000});
  CHECK(differs(layer_norm(h.to(Gpu{}), {200000}), layer_norm(h, {200000}), 2e-3) == "");
  Tensor<double> const d = numbers<double>({3, 2, 50000});
  CHECK(differs(softmax(d.to(Gpu{}), 2), softmax(d, 2), 1e-14) == "");
  CHECK(differs(layer_norm(d.to(Gpu{}), normalized_axes{{0, 2}}), layer_norm(d, normalized_axes{{0, 2}}), 1e-10) == "");
}

TEST_CASE("an operation on rows calls a function for elements alone") {
  CHECK(situ_test::looks_up<Gpu>([](auto const& y) { return softmax(y, 1); }, 2e-6) == "");
}
