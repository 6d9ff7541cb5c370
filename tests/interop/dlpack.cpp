/// DLPack: what is written into the C structs, what is read from them, who frees what, and what is refused.
#include <doctest/doctest.h>

#include <support/dlpack_abi.hpp>

#include <situ/interop/dlpack.hpp>
#include <situ/ops/compare.hpp>
#include <support/compare.hpp>
#include <support/devices.hpp>

using namespace situ;
using situ_test::thrown;

namespace {

/// Another library's tensor of 2 x 3 elements.
template <class T, class Managed = DLManagedTensor>
struct Theirs {
  static inline int ended = 0;
  T elements[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  std::int64_t shape[9] = {2, 3, 1, 1, 1, 1, 1, 1, 1}, strides[9] = {1, 2, 1, 1, 1, 1, 1, 1, 1};
  Managed managed{};
  Theirs(int code, int device = 1) {
    ended = 0;
    managed.dl_tensor = {elements, {device, 0}, 2, {static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(8 * sizeof(T)), 1}, shape, strides, sizeof(T)};
    managed.deleter = [](Managed*) { ++ended; };
  }
};

}  // namespace

TEST_CASE_TEMPLATE("what is given: types, bits, shape, strides, address", T, bool, int8_t, uint8_t, int16_t, int32_t, int64_t, float16, bfloat16, float, double) {
  int const code = std::is_same_v<T, bool> ? 6 : std::is_same_v<T, bfloat16> ? 4 : floating<T> ? 2 : std::is_same_v<T, uint8_t> ? 1 : 0;
  auto const x = zeros<T>({2, 3, 4});
  Tensor<T> view = x.transpose(0, 2).slice(1, 1, 3);
  DLManagedTensor* const given = interop::to_dlpack(view);
  DLTensor const& about = given->dl_tensor;
  CHECK(about.dtype.code == code);
  CHECK(about.dtype.bits == 8 * sizeof(T));
  CHECK(about.dtype.lanes == 1);
  CHECK(about.device.device_type == 1);
  CHECK(about.device.device_id == 0);
  REQUIRE(about.ndim == 3);
  std::int64_t const shape[] = {4, 2, 2}, strides[] = {1, 4, 12};
  for (int k = 0; k < 3; ++k) {
    CHECK(about.shape[k] == shape[k]);
    CHECK(about.strides[k] == strides[k]);
  }
  CHECK(static_cast<T*>(about.data) + about.byte_offset / sizeof(T) == x.data() + 4);
  given->deleter(given);
}

TEST_CASE("what is given holds the storage until its deleter is called, and is seen by both") {
  auto x = arange<float>(6).reshape({2, 3});
  int64_t const before = x.use_count();
  auto* const given = interop::to_dlpack(x);
  CHECK(x.use_count() == before + 1);
  static_cast<float*>(given->dl_tensor.data)[5] = 50;
  CHECK(x.item(1, 2) == 50);
  x = Tensor<float>{1};
  CHECK(static_cast<float*>(given->dl_tensor.data)[5] == 50);
  given->deleter(given);

  auto* const back = interop::to_dlpack(full({2}, 7.f, Pinned{}));
  CHECK(back->dl_tensor.device.device_type == 1);
  auto const again = interop::from_dlpack<float>(back);  // which frees it
  CHECK(all(again == Tensor<float>{7, 7}).item());
  auto* const number = interop::to_dlpack(full({}, 3.f));
  CHECK(number->dl_tensor.ndim == 0);
  CHECK(interop::from_dlpack<float>(number).item() == 3);
  auto* const nothing = interop::to_dlpack(zeros({0, 4}));
  CHECK(interop::from_dlpack<float>(nothing).shape() == Shape{0, 4});
}

TEST_CASE("what is taken: strides, offset, none of them, and the end") {
  Theirs<float> theirs(2);
  {
    auto x = interop::from_dlpack<float>(&theirs.managed);
    CHECK(all(x == Tensor<float>{{1, 3, 5}, {2, 4, 6}}).item());
    x += 10;
    CHECK(theirs.elements[6] == 16);
    CHECK(theirs.elements[0] == 0);
    CHECK(theirs.elements[7] == 7);
    auto const view = x[1];
    x = Tensor<float>{0};
    CHECK(Theirs<float>::ended == 0);
  }
  CHECK(Theirs<float>::ended == 1);
  Theirs<std::int16_t> packed(0);
  packed.managed.dl_tensor.strides = nullptr;
  CHECK(all(interop::from_dlpack<int16_t>(&packed.managed) == Tensor<int16_t>{{1, 2, 3}, {4, 5, 6}}).item());
  packed.managed.deleter = nullptr;  // nothing to end
  CHECK(interop::from_dlpack<int16_t>(&packed.managed).size() == 6);
  Theirs<float> locked(2, 3);
  CHECK(interop::from_dlpack<float>(&locked.managed).item(0, 1) == 3);
  CHECK(interop::from_dlpack<float, Pinned>(&locked.managed).item(0, 1) == 3);
}

TEST_CASE("DLPack 1: the version, and what is read-only") {
  Theirs<double, DLManagedTensorVersioned> theirs(2);
  theirs.managed.version = {1, 3};
  theirs.managed.flags = 1;
  auto x = interop::from_dlpack<double>(&theirs.managed);
  CHECK(x.item(1, 2) == 6);
  CHECK_THROWS_AS(x += 1, TypeError);
  CHECK(theirs.elements[6] == 6);
  CHECK(thrown<TypeError>([&] { interop::to_dlpack(x); }, "to_dlpack: the storage is read-only, which a DLManagedTensor cannot say; give x.clone(), or a DLManagedTensorVersioned") == "");
  auto* const given = interop::to_dlpack<DLManagedTensorVersioned>(x);
  CHECK(given->version.major == 1);
  CHECK(given->flags == 1);
  given->deleter(given);
  auto* const writable = interop::to_dlpack<DLManagedTensorVersioned>(x.clone());
  CHECK(writable->flags == 0);
  writable->deleter(writable);
  theirs.managed.version = {2, 0};
  CHECK(thrown<Error>([&] { interop::from_dlpack<double>(&theirs.managed); }, "from_dlpack: DLPack of version 2.0; version 1 is understood") == "");
}

TEST_CASE("what is refused stays the caller's") {
  Theirs<float> theirs(2);
  auto& about = theirs.managed.dl_tensor;
  auto const take = [&] { (void)interop::from_dlpack<float>(&theirs.managed); };
  auto const has = [](std::string const& what) {
    return "from_dlpack: float32 on cpu was asked for, and the tensor has " + what + "; ask for what it has, and convert that with to";
  };
  CHECK(thrown<TypeError>([&] { (void)interop::from_dlpack<int32_t>(&theirs.managed); },
                          "from_dlpack: int32 on cpu was asked for, and the tensor has float32 on cpu; ask for what it has, and convert that with to") == "");
  about.dtype = {5, 64, 1};
  CHECK(thrown<TypeError>(take, has("type code 5 of 64 bits on cpu")) == "");
  about.dtype = {2, 32, 4};
  CHECK(thrown<TypeError>(take, has("float32 in vectors of 4 on cpu")) == "");
  about.dtype = {2, 64, 1};
  CHECK(thrown<TypeError>(take, has("float64 on cpu")) == "");
  about.dtype = {2, 32, 1};
  about.device = {2, 1};
  CHECK(thrown<TypeError>(take, has("float32 on cuda:1")) == "");
  about.device = {10, 0};
  CHECK(thrown<TypeError>(take, has("float32 on device type 10")) == "");
  about.device = {1, 0};
  about.ndim = 9;
  CHECK(thrown<ShapeError>(take, "from_dlpack: the tensor has 9 axes; a Tensor has at most 8") == "");
  about.ndim = 2;
  about.byte_offset = 2;
  CHECK(thrown<LayoutError>(take, "from_dlpack: the elements are not aligned to 4 bytes; copy them there") == "");
  about.byte_offset = 0;
  theirs.shape[1] = -3;
  CHECK_THROWS_AS(take(), ShapeError);
  theirs.shape[1] = 3;
  about.data = nullptr;
  CHECK(thrown<Error>(take, "from_dlpack: the tensor of shape [2, 3] has a null pointer in place of its elements") == "");
  CHECK(thrown<Error>([&] { (void)interop::from_dlpack<float>(static_cast<DLManagedTensor*>(nullptr)); }, "from_dlpack: a null pointer was given") == "");
  CHECK(Theirs<float>::ended == 0);
}
