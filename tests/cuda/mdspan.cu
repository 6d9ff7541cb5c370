/// A GPU's tensors as mdspans that kernels take, and the other way.
#include <doctest/doctest.h>

#include <cuda/std/mdspan>

#include <cuda/compare.hpp>
#include <situ/interop/mdspan.hpp>
#include <situ/tensor.hpp>

using namespace situ;
using situ_test::differs;

namespace {

using Matrix = cuda::std::mdspan<float, cuda::std::dextents<int, 2>, cuda::std::layout_stride>;

__global__ void add_places(Matrix m) {
  int const i = static_cast<int>(blockIdx.x), j = static_cast<int>(threadIdx.x);
  m(i, j) += static_cast<float>(100 * i + j);
}

}  // namespace

TEST_CASE("a kernel writes a view of a tensor through its mdspan") {
  Tensor<float, Cuda<0>> x = ones({4, 5}, Cuda<0>{}), part = x.t().slice(0, 1, 5, 2);
  Matrix const m = interop::to_mdspan<Matrix>(part);
  add_places<<<2, 4>>>(m);
  Tensor<float> expected = ones({4, 5});
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < 4; ++j) expected(j, 1 + 2 * i) += static_cast<float>(100 * i + j);
  }
  CHECK(differs(x, expected) == "");
  Tensor<float, Cuda<0>> y = interop::from_mdspan(m, Cuda<0>{});
  y += 1;
  CHECK(differs(part, expected.t().slice(0, 1, 5, 2) + 1) == "");
}
