#include <doctest/doctest.h>

#include <cuda/compare.hpp>
#include <situ/ops/index.hpp>
#include <situ/tensor.hpp>

using namespace situ;
using situ_test::differs;
using situ_test::numbers;
using Gpu = Cuda<0>;

namespace {

/// Indices from -extent to extent - 1, in an order that looks random.
template <class I = int64_t>
Tensor<I> places(Shape const& shape, int64_t extent, unsigned seed = 7) {
  auto result = empty<I>(shape);
  unsigned state = seed;
  for (int64_t k = 0; k < result.size(); ++k) {
    state = state * 1664525u + 1013904223u;
    result.data()[k] = static_cast<I>(static_cast<int64_t>((state >> 8) % static_cast<unsigned>(2 * extent)) - extent);
  }
  return result;
}

std::string message_of(void (*f)()) {
  try {
    f();
  } catch (IndexError const& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE_TEMPLATE("selecting by index gives on a GPU what it gives on the host", T, float, int8_t) {
  Tensor<T> const a = numbers<T>({30, 40});
  Tensor<T, Gpu> const x{a};
  for (int axis : {0, 1}) {
    auto const index = places({30, 40}, axis == 0 ? 30 : 40);
    auto const rows = places<int32_t>({70}, axis == 0 ? 30 : 40);
    CHECK(differs(gather(x, axis, index.to(Gpu{})), gather(a, axis, index)) == "");
    CHECK(differs(gather(x.flip(1), axis, index.to(Gpu{})), gather(a.flip(1), axis, index)) == "");
    CHECK(differs(index_select(x, axis, rows.to(Gpu{})), index_select(a, axis, rows)) == "");
    CHECK(differs(index_select(x.slice(1 - axis, 1, 30), axis, rows.to(Gpu{})), index_select(a.slice(1 - axis, 1, 30), axis, rows)) == "");
    CHECK(differs(scatter(x, axis, index.to(Gpu{}), x), scatter(a, axis, index, a)) == "");
    CHECK(differs(scatter_add(x, axis, index.to(Gpu{}), x), scatter_add(a, axis, index, a), 1e-5) == "");
  }
  auto const index = places({500}, 1200);
  CHECK(differs(take(x.t(), index.to(Gpu{})), take(a.t(), index)) == "");
}

TEST_CASE("a formula is computed for the selected rows") {
  Tensor<float> const a = numbers<float>({50, 64}), b = numbers<float>({64}, 2);
  auto const rows = places({33}, 50);
  Tensor<float, Gpu> const x{a}, y{b};
  CHECK(differs(index_select(x * 2 + y, 0, rows.to(Gpu{})), index_select(a * 2 + b, 0, rows), 1e-6) == "");
  CHECK(differs(index_select((x * 2 + y).to(Gpu{}).t(), 1, rows.to(Gpu{})), index_select(eval(a * 2 + b).t(), 1, rows), 1e-6) == "");
}

TEST_CASE("adding to few places gives the same sum every time") {
  for (int64_t extent : {1, 3, 40, 5000}) {
    auto const index = places({200000}, extent);
    Tensor<float> const src = numbers<float>({200000});
    Tensor<double> const exact = scatter_add(zeros<double>({extent}), 0, index, cast<double>(src));
    auto const on_gpu = index.to(Gpu{});
    Tensor<float, Gpu> const first = scatter_add(zeros({extent}, Gpu{}), 0, on_gpu, src.to(Gpu{}));
    CHECK(differs(first, exact, 1e-4) == "");
    for (int round = 0; round < 3; ++round) CHECK(differs(scatter_add(zeros({extent}, Gpu{}), 0, on_gpu, src.to(Gpu{})), first) == "");
  }
}

TEST_CASE("classes become rows with a single one") {
  auto const labels = abs(places({100}, 10)) % 10;
  CHECK(differs(one_hot<float>(labels.to(Gpu{}), 10), one_hot<float>(labels, 10)) == "");
}

TEST_CASE("an index out of range is told of at the next synchronisation, and the device works on") {
  static Tensor<float, Gpu> const x{numbers<float>({5, 3})};
  static Tensor<int64_t, Gpu> const wrong{{0, 7, 2}};
  static auto const y = index_select(x, 0, wrong.flatten());
  CHECK(message_of([] { synchronize(Gpu{}); }) ==
        "cuda:0: index_select: index 7 (element 1 of the indices) is out of range for axis 0: it has 5 elements; the operation ran without it, and its "
        "result must not be used");
  CHECK(message_of([] { synchronize(Gpu{}); }) == "");
  static auto const z = scatter_add(x, 0, wrong, x);
  CHECK(message_of([] { z.cpu(); }).find("cuda:0: scatter_add: index 7 ") == 0);
  CHECK(differs(x * 2, x.cpu() * 2) == "");
}
