#include <situ/tensor/transfer.hpp>

#include <type_traits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <support/compare.hpp>
#include <support/devices.hpp>

namespace {
using namespace situ;
using floats = std::vector<float>;
}  // namespace

TEST_CASE_TEMPLATE("to moves between devices and back", D, SITU_TEST_DEVICES) {
  Tensor<float> const a{{1, 2, 3}, {4, 5, 6}};
  Tensor<float, D> const x = a.to(D{});
  static_assert(std::is_same_v<std::remove_const_t<decltype(a.to(D{}))>, Tensor<float, D>>);
  CHECK(x.to_vector() == a.to_vector());
  CHECK(x.cpu().to_vector() == a.to_vector());
  CHECK(x.device() == D{});
  Tensor<float, D> const direct{a};
  CHECK(direct.to_vector() == a.to_vector());
  Tensor<float> const back{x};
  CHECK(back.to_vector() == a.to_vector());
  CHECK(a.t().to(D{}).to_vector() == floats{1, 4, 2, 5, 3, 6});
  CHECK(x.t().cpu().to_vector() == floats{1, 4, 2, 5, 3, 6});
  CHECK(x.flip(0).flip(1).cpu().to_vector() == floats{6, 5, 4, 3, 2, 1});
  CHECK(x.slice(1, 0, 3, 2).cpu().to_vector() == floats{1, 3, 4, 6});
  CHECK(x[1].expand({2, 3}).cpu().to_vector() == floats{4, 5, 6, 4, 5, 6});
  CHECK(a[1].expand({2, 3}).to(D{}).to_vector() == floats{4, 5, 6, 4, 5, 6});
  CHECK((x * 2 + 1).cpu().to_vector() == floats{3, 5, 7, 9, 11, 13});
}

TEST_CASE("copies that threads share have every byte, and write none beside it") {
  int const before = num_threads();
  for (int const threads : {1, 2, 3}) {
    set_num_threads(threads);
    for (int64_t const n : {131'071, 131'072, 131'073, 500'001, 3'000'007}) {
      CAPTURE(threads);
      CAPTURE(n);
      Tensor<uint8_t> x = empty<uint8_t>({n});
      for (int64_t k = 0; k < n; ++k) x.data()[k] = static_cast<uint8_t>(k % 251);
      auto const wrong = [n](Tensor<uint8_t> const& y) {
        int64_t result = 0;
        for (int64_t k = 0; k < n; ++k) result += y.data()[k] != k % 251;
        return result;
      };
      CHECK(wrong(x.clone()) == 0);
      CHECK(wrong(x.to(Pinned{}).cpu()) == 0);
      std::vector<uint8_t> to(static_cast<std::size_t>(n) + 2, 255);
      detail::cpu::copy_bytes(to.data() + 1, x.data(), static_cast<std::size_t>(n));
      int64_t different = (to.front() != 255) + (to.back() != 255);
      for (int64_t k = 0; k < n; ++k) different += to[static_cast<std::size_t>(k + 1)] != k % 251;
      CHECK(different == 0);
    }
  }
  set_num_threads(before);
}

TEST_CASE_TEMPLATE("moving to where it is gives the same storage", D, SITU_TEST_DEVICES) {
  Tensor<float, D> const x = ones({3}, D{});
  Tensor<float, D> const same = x.to(x.device());
  CHECK(x.use_count() == 2);
  CHECK(same.storage() == x.storage());
  CHECK(x.template to<float>().storage() == x.storage());
}

TEST_CASE_TEMPLATE("to converts elements, also on the way", D, SITU_TEST_DEVICES) {
  Tensor<float> const a{-1.5f, 2.5f, 300.f};
  CHECK(a.template to<int8_t>(D{}).to_vector() == std::vector<int8_t>{-1, 2, 127});
  CHECK(a.to(D{}).template to<double>().to_vector() == std::vector<double>{-1.5, 2.5, 300});
  CHECK(a.template to<double>(D{}).cpu().to_vector() == std::vector<double>{-1.5, 2.5, 300});
  CHECK(a.to(D{}).template to<bool>(Cpu{}).to_vector() == std::vector<bool>{true, true, true});
  CHECK(static_cast<float>(a.template to<float16>(D{}).item(2)) == 300.f);
}

TEST_CASE_TEMPLATE("empty and 0-dimensional tensors move like others", D, SITU_TEST_DEVICES) {
  CHECK(zeros({0, 3}).to(D{}).shape() == Shape{0, 3});
  CHECK(zeros({0, 3}, D{}).t().cpu().shape() == Shape{3, 0});
  CHECK(zeros({4, 3}, D{}).slice(0, 2, 2).cpu().shape() == Shape{0, 3});
  CHECK(full({}, 5).to(D{}).item() == 5.f);
  CHECK(Tensor<float>{}.to(D{}).cpu().shape() == Shape{0});
}

TEST_CASE("devices exchange tensors with each other") {
  Tensor<float, Emulated<0>> const x = arange(6, Emulated<0>{}).view({2, 3});
  Tensor<float, Emulated<1>> const y = x.to(Emulated<1>{});
  CHECK(y.to_vector() == floats{0, 1, 2, 3, 4, 5});
  CHECK(x.t().to(Emulated<1>{}).to_vector() == floats{0, 3, 1, 4, 2, 5});
  CHECK((y + 1).to(Emulated<0>{}).to_vector() == floats{1, 2, 3, 4, 5, 6});
  Tensor<float, Emulated<1>> rows = x(all(), 1).unsqueeze(0).expand({3, 2}).to(Emulated<1>{});
  rows += Tensor<float, Emulated<1>>{{0}, {10}, {20}};  // what arrives is broadcast no longer
  CHECK(rows.to_vector() == floats{1, 4, 11, 14, 21, 24});
  Tensor<float, Emulated<1>> blocks = x.flip(1).unsqueeze(1).unsqueeze(-1).expand({2, 5, 3, 2}).to(Emulated<1>{});
  blocks[1] *= 2;
  CHECK(blocks(all(), 4, all(), 1).to_vector() == floats{2, 1, 0, 10, 8, 6});
  Tensor<float, Pinned> const p = pin(x);
  CHECK(p.to_vector() == floats{0, 1, 2, 3, 4, 5});
  CHECK(pin(Tensor<float>{1, 2} * 3).to_vector() == floats{3, 6});
  synchronize(Emulated<0>{});
}

TEST_CASE("pinned and ordinary host memory mix") {
  Tensor<float, Pinned> p{1, 2, 3};
  Tensor<float> const a{10, 20, 30};
  Tensor sum = p + a;
  static_assert(std::is_same_v<decltype(sum), Tensor<float, Cpu>>);
  CHECK(sum.to_vector() == floats{11, 22, 33});
  p = a * 2;
  CHECK(p.to_vector() == floats{20, 40, 60});
  p[0] = a[2];
  p += a;
  CHECK(p.to_vector() == floats{40, 60, 90});
  p(1) = 0;
  CHECK(p(1) == 0.f);
}

TEST_CASE("a copy does not follow later writes to its source") {
  Tensor<float> a = arange(4);
  Tensor<float, Emulated<0>> const x = a.to(Emulated<0>{});
  a += 100;
  CHECK(x.to_vector() == floats{0, 1, 2, 3});
  Tensor<float, Emulated<0>> y = x.clone();
  Tensor<float> const host = y.cpu();
  y += 1;
  CHECK(host.to_vector() == floats{0, 1, 2, 3});
  CHECK(y.to_vector() == floats{1, 2, 3, 4});
}
