/// DLPack of a GPU's tensors: the same memory there and back.
#include <doctest/doctest.h>

#include <support/dlpack_abi.hpp>

#include <cuda/compare.hpp>
#include <situ/interop/dlpack.hpp>
#include <situ/tensor.hpp>
#include <support/compare.hpp>

using namespace situ;
using situ_test::thrown;

TEST_CASE("a GPU's tensor is given and taken") {
  auto x = arange<float>(6, Cuda<0>{}).reshape({2, 3});
  auto* const given = interop::to_dlpack(x.t());
  CHECK(given->dl_tensor.device.device_type == 2);
  CHECK(given->dl_tensor.device.device_id == 0);
  CHECK(given->dl_tensor.strides[0] == 1);
  CHECK(given->dl_tensor.data == x.data());
  CHECK(thrown<TypeError>([&] { (void)interop::from_dlpack<float>(given); },
                          "from_dlpack: float32 on cpu was asked for, and the tensor has float32 on cuda:0; ask for what it has, and convert that with to") == "");
  auto y = interop::from_dlpack<float, Cuda<0>>(given);
  y += 10;
  CHECK(situ_test::differs(x, Tensor<float>{{10, 11, 12}, {13, 14, 15}}, 0) == "");
}
