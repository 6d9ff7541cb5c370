#include <doctest/doctest.h>

#include <cuda/compare.hpp>
#include <limits>
#include <situ/ops/searchsorted.hpp>
#include <situ/ops/unique.hpp>
#include <situ/tensor.hpp>

using namespace situ;
using situ_test::differs;
using situ_test::many;
using situ_test::numbers;
using Gpu = Cuda<0>;

namespace {

/// Rows of every kind: in shared memory (several to a block, one to a block), and radix-sorted, of one tile and several.
template <class T>
void check_sorts() {
  for (Shape const& s : {Shape{1}, Shape{1000, 3}, Shape{50, 33}, Shape{3, 2048}, Shape{3, 2049}, Shape{2, 9001}, Shape{100000}, Shape{20, 300, 5}}) {
    CAPTURE(to_string(s));
    Tensor<T> const a = numbers<T>(s);
    Tensor<T, Gpu> const x{a};
    for (int axis = 0; axis < s.rank(); ++axis) {
      CAPTURE(axis);
      auto const [values, indices] = sort(x, axis);
      auto const expected = sort(a, axis);
      CHECK(differs(values, expected.values) == "");
      CHECK(differs(indices, expected.indices) == "");
      auto const falling = sort(x, axis, descending);
      auto const expected_falling = sort(a, axis, descending);
      CHECK(differs(falling.values, expected_falling.values) == "");
      CHECK(differs(falling.indices, expected_falling.indices) == "");
      CHECK(differs(sort_values(x, axis), expected.values) == "");
      CHECK(differs(argsort(x, axis, descending), expected_falling.indices) == "");
      auto const best = topk(x, s[axis] / 3, axis);
      auto const expected_best = topk(a, s[axis] / 3, axis);
      CHECK(differs(best.values, expected_best.values) == "");
      CHECK(differs(best.indices, expected_best.indices) == "");
      CHECK(differs(topk(x, 1, axis, smallest).indices, topk(a, 1, axis, smallest).indices) == "");
    }
    CHECK(differs(sort_values(x.flip(0)), sort_values(a.flip(0))) == "");
  }
}

}  // namespace

TEST_CASE_TEMPLATE("rows of this type are sorted on a GPU as on the host", T, float, double, bfloat16, int8_t) { check_sorts<T>(); }

TEST_CASE("a GPU puts NaN last and keeps equal elements in order") {
  float const nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (int64_t n : {20, 5000}) {
    Tensor<float> a = numbers<float>({n});
    for (int64_t i = 0; i < n; i += 5) a.data()[i] = i % 4 == 0 ? nan : i % 4 == 1 ? -0.f : i % 4 == 2 ? 0.f : i % 3 == 0 ? -nan : -inf;
    Tensor<float, Gpu> const x{a};
    CHECK(differs(argsort(x), argsort(a)) == "");
    CHECK(differs(argsort(x, descending), argsort(a, descending)) == "");
    CHECK(differs(1 / sort_values(x), 1 / sort_values(a)) == "");
    CHECK(differs(sort_values(x * 2 + 1), sort_values(a * 2 + 1)) == "");
  }
}

TEST_CASE("many rows are sorted in one go on a GPU, and topk of a long row") {
  Tensor<int> const a = numbers<int>({many(300), 4100});
  Tensor<int, Gpu> const x{a};
  CHECK(differs(sort_values(x), sort_values(a)) == "");
  CHECK(differs(topk(x, 17).indices, topk(a, 17).indices) == "");
  Tensor<int> const b = numbers<int>({many(1'000'000)});
  Tensor<int, Gpu> const y{b};
  CHECK(differs(topk(y, 17).indices, topk(b, 17).indices) == "");
}

TEST_CASE("unique elements and binary search on a GPU are those of the host") {
  for (Shape const& s : {Shape{0}, Shape{1}, Shape{40, 50}, Shape{100000}}) {
    Tensor<float> const a = numbers<float>(s);
    Tensor<float, Gpu> const x{a};
    CHECK(differs(unique(x), unique(a)) == "");
    CHECK(differs(unique_counts(x).counts, unique_counts(a).counts) == "");
    auto const all = unique_all(x);
    auto const expected = unique_all(a);
    CHECK(differs(all.values, expected.values) == "");
    CHECK(differs(all.indices, expected.indices) == "");
    CHECK(differs(all.inverse_indices, expected.inverse_indices) == "");
    CHECK(differs(all.counts, expected.counts) == "");
    auto const edges = linspace(-9.f, 9.f, 50);
    CHECK(differs(searchsorted(Tensor<float, Gpu>{edges}, x * 1.5), searchsorted(edges, a * 1.5)) == "");
  }
  auto const rows = sort_values(numbers<float>({4, 100})), values = numbers<float>({4, 7}, 9);
  CHECK(differs(searchsorted(Tensor<float, Gpu>{rows}, Tensor<float, Gpu>{values}, right), searchsorted(rows, values, right)) == "");
}
