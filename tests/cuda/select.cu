#include <doctest/doctest.h>

#include <cuda/compare.hpp>
#include <situ/ops/select.hpp>
#include <situ/tensor.hpp>

using namespace situ;
using situ_test::differs;
using situ_test::numbers;
using Gpu = Cuda<0>;

TEST_CASE_TEMPLATE("a mask selects on a GPU what it selects on the host", T, float, float16, bool) {
  for (Shape const& shape : {Shape{0}, Shape{1}, Shape{33}, Shape{100, 257}, Shape{3, 5000, 7}}) {
    Tensor<T> const a = numbers<T>(shape);
    Tensor<bool> const mask = numbers<float>(shape, 5) > 3;
    Tensor<T, Gpu> const x{a};
    Tensor<bool, Gpu> const m{mask};
    CHECK(differs(masked_select(x, m), masked_select(a, mask)) == "");
    CHECK(differs(nonzero(m), nonzero(mask)) == "");
    CHECK(differs(nonzero(x), nonzero(a)) == "");
    CHECK(differs(masked_fill(x, m, true), masked_fill(a, mask, true)) == "");
  }
}

TEST_CASE("masks and inputs may be formulas, strided, broadcast and unaligned") {
  Tensor<float> const a = numbers<float>({200, 300});
  Tensor<float, Gpu> const x{a};
  CHECK(differs(masked_select(x * 2, x > 1), masked_select(a * 2, a > 1)) == "");
  CHECK(differs(masked_select(x.t(), x.t() > 1), masked_select(a.t(), a.t() > 1)) == "");
  CHECK(differs(masked_select(x, x[3] > 1), masked_select(a, a[3] > 1)) == "");
  Tensor<float> const column = numbers<float>({200, 1}, 7);
  Tensor<float, Gpu> const y{column};
  CHECK(differs(masked_select(x * 2 + y, x.flip(0) > 1), masked_select(a * 2 + column, a.flip(0) > 1), 1e-6) == "");
  CHECK(differs(masked_select(y, x > 1), masked_select(column, a > 1)) == "");
  CHECK(differs(masked_select(x.slice(1, 1, 300, 2), x.slice(1, 0, 300, 2) > 1), masked_select(a.slice(1, 1, 300, 2), a.slice(1, 0, 300, 2) > 1)) == "");
  CHECK(differs(masked_select(cast<float16>(x) + float16(1), x > 1), masked_select(cast<float16>(a) + float16(1), a > 1)) == "");
  CHECK(differs(masked_select(x > 2, x > 1), masked_select(a > 2, a > 1)) == "");
  Tensor<bool> const row = eval(a > 0).flatten();
  CHECK(differs(nonzero(row.to(Gpu{}).slice(0, 3, 50000)), nonzero(row.slice(0, 3, 50000))) == "");
}
