#include <situ/tensor/factories.hpp>

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <support/compare.hpp>
#include <support/devices.hpp>

namespace {

using namespace situ;
using situ_test::difference;
using situ_test::thrown;

static_assert(std::is_same_v<decltype(zeros({2, 3})), Tensor<float, Cpu>>);
static_assert(std::is_same_v<decltype(ones<double>({2})), Tensor<double, Cpu>>);
static_assert(std::is_same_v<decltype(full({2}, 7)), Tensor<float, Cpu>>, "never deduced from numbers");
static_assert(std::is_same_v<decltype(arange(5)), Tensor<float, Cpu>>);
static_assert(std::is_same_v<decltype(empty<float, Emulated<0>>({1})), Tensor<float, Emulated<0>>>);
static_assert(std::is_same_v<decltype(full({2, 3}, 7.f, Emulated<1>{})), Tensor<float, Emulated<1>>>);
static_assert(std::is_same_v<decltype(zeros_like(std::declval<Tensor<int8_t, Pinned>>())), Tensor<int8_t, Cpu>> ||
              std::is_same_v<decltype(zeros_like(std::declval<Tensor<int8_t, Pinned>>())), Tensor<int8_t, Pinned>>);

}  // namespace

TEST_CASE_TEMPLATE("factories fill their shape", D, SITU_TEST_DEVICES) {
  D const device{};
  CHECK(zeros({2, 3}, device).to_vector() == std::vector<float>(6));
  CHECK(ones<double>({5}, device).to_vector() == std::vector<double>(5, 1.));
  CHECK(full<int32_t>({2, 2}, 7, device).to_vector() == std::vector<int32_t>(4, 7));
  CHECK(full<bool>({2}, true, device).to_vector() == std::vector<bool>{true, true});
  CHECK_THROWS_AS((void)full<int8_t>({1}, 1000, device), TypeError);
  CHECK(full<int8_t>({1}, -128, device).item() == -128);
  CHECK(full<int8_t>({1}, 1000., device).item() == 127);
  CHECK(static_cast<float>(full<float16>({1}, 0.1, device).item()) == 0.0999755859375f);
  CHECK(full({}, 3, device).shape() == Shape{});
  CHECK(zeros({0, 4}, device).shape() == Shape{0, 4});
  std::vector<float> const v(7);
  CHECK(empty<float, D>({v.size(), 3}).shape() == Shape{7, 3});
  CHECK(eye(3, device).to_vector() == std::vector<float>{1, 0, 0, 0, 1, 0, 0, 0, 1});
  CHECK(eye<int64_t>(2, 3, device).to_vector() == std::vector<int64_t>{1, 0, 0, 0, 1, 0});
  CHECK(eye<bool>(2, device).to_vector() == std::vector<bool>{true, false, false, true});
  CHECK(eye(3, 2, device).to_vector() == std::vector<float>{1, 0, 0, 1, 0, 0});
  CHECK(eye(0, device).shape() == Shape{0, 0});
  CHECK(eye(3, 0, device).shape() == Shape{3, 0});
}

TEST_CASE_TEMPLATE("arange counts up to but not including its end", D, SITU_TEST_DEVICES) {
  D const device{};
  CHECK(arange(4, device).to_vector() == std::vector<float>{0, 1, 2, 3});
  CHECK(arange(0, 10, 2, device).to_vector() == std::vector<float>{0, 2, 4, 6, 8});
  CHECK(arange<int32_t>(5, 0, -2, device).to_vector() == std::vector<int32_t>{5, 3, 1});
  CHECK(arange<int64_t>(3, 3, 1, device).shape() == Shape{0});
  CHECK(arange(0, device).shape() == Shape{0});
  CHECK(arange(2.5, device).to_vector() == std::vector<float>{0, 1, 2});
  // numpy.arange(0, 1, 0.1), in double and in float
  CHECK(difference(arange<double>(0, 1, 0.1, device).to_vector(),
                 std::vector<double>{0, 0.1, 0.2, 0.30000000000000004, 0.4, 0.5, 0.6000000000000001, 0.7000000000000001, 0.8, 0.9}) == "");
  CHECK(arange(0, 1, 0.1, device).size() == 10);
  std::vector<float> const tenths = arange(0, 1, 0.1, device).to_vector();
  CHECK(tenths[9] == 0.9f);
  CHECK(arange<uint8_t>(250, 258, 1, device).to_vector() == std::vector<uint8_t>{250, 251, 252, 253, 254, 255, 0, 1});
  std::vector<double> const many = arange<double>(100003, device).to_vector();
  int wrong = 0;
  for (std::size_t k = 0; k < many.size(); ++k) wrong += many[k] != static_cast<double>(k);
  CHECK(wrong == 0);
}

TEST_CASE("arange refuses what it cannot count") {
  double const nan = std::numeric_limits<double>::quiet_NaN(), infinite = std::numeric_limits<double>::infinity();
  CHECK_THROWS_WITH_AS((void)arange(0, nan), "arange: from 0 to nan in steps of 1: the step must lead from start to stop and not be 0", ShapeError);
  CHECK_THROWS_AS((void)arange(nan, 3), ShapeError);
  CHECK_THROWS_AS((void)arange(0, 3, nan), ShapeError);
  CHECK_THROWS_AS((void)arange(infinite, infinite), ShapeError);
  CHECK_THROWS_AS((void)arange(0, infinite), ShapeError);
}

TEST_CASE_TEMPLATE("linspace holds both ends exactly", D, SITU_TEST_DEVICES) {
  D const device{};
  CHECK(linspace(0.f, 1.f, 5, device).to_vector() == std::vector<float>{0, 0.25, 0.5, 0.75, 1});
  CHECK(linspace(3, -1, 3, device).to_vector() == std::vector<float>{3, 1, -1});
  CHECK(linspace(2, 9, 1, device).to_vector() == std::vector<float>{2});
  CHECK(linspace(2, 9, 0, device).shape() == Shape{0});
  // numpy.linspace(0.1, 0.7, 7)
  CHECK(difference(linspace<double>(0.1, 0.7, 7, device).to_vector(),
                 std::vector<double>{0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7}, 2) == "");
  std::vector<double> const x = linspace<double>(0.1, 0.7, 1001, device).to_vector();
  CHECK(x.front() == 0.1);
  CHECK(x.back() == 0.7);
  double furthest = 0;
  for (std::size_t k = 0; k < x.size(); ++k) furthest = std::max(furthest, std::abs(x[k] - (0.1 + 0.6 * static_cast<double>(k) / 1000)));
  CHECK(furthest < 3e-16);
  CHECK(linspace<int32_t>(0, 1000, 11, device).to_vector() == std::vector<int32_t>{0, 100, 200, 300, 400, 500, 600, 700, 800, 900, 1000});
  for (int64_t count : {0, 1, 7, 63, 64, 65, 129, 200}) {
    Tensor<int64_t, D> const k = arange<int64_t>(count, device);
    std::vector<bool> const bits = (k * k % 7 < 3).to_vector();
    CHECK(bits.size() == static_cast<std::size_t>(count));
    for (std::size_t n = 0; n < bits.size(); ++n) CHECK(bits[n] == (n * n % 7 < 3));
  }
}

TEST_CASE_TEMPLATE("the like factories take shape, type and device from a tensor or an expression", D, SITU_TEST_DEVICES) {
  Tensor<int32_t, D> const x = full<int32_t>({2, 2}, 3, D{});
  CHECK(zeros_like(x).to_vector() == std::vector<int32_t>(4));
  CHECK(ones_like(x.t()).is_contiguous());
  CHECK(full_like(x / 2, 0.5).to_vector() == std::vector<float>(4, 0.5f));
  CHECK(empty_like(x).shape() == Shape{2, 2});
}

TEST_CASE("from_blob keeps the pointer and calls the deleter once") {
  float buffer[6] = {1, 2, 3, 4, 5, 6};
  int deleted = 0;
  {
    Tensor<float> x = from_blob(buffer, {3, 2}, {1, 3}, [&](float* p) {
      CHECK(p == buffer);
      ++deleted;
    });
    CHECK(x.to_vector() == std::vector<float>{1, 4, 2, 5, 3, 6});
    CHECK(x.use_count() == 1);
    x(2, 0) = 9;
    CHECK(buffer[2] == 9.f);
    Tensor<float> const row = x[1];
    x = Tensor<float>{};
    CHECK(deleted == 0);
    CHECK(row.to_vector() == std::vector<float>{2, 5});
  }
  CHECK(deleted == 1);
  Tensor<float> y = from_blob(buffer, {2, 3});
  y += 1;
  CHECK(buffer[0] == 2.f);
  y = y * 2;  // memory of somebody else is never reused for a new value
  CHECK(buffer[0] == 2.f);
  CHECK(y.item(0, 0) == 4.f);
  Tensor<float> const backwards = from_blob(buffer + 5, {6}, {-1});
  CHECK(backwards.item(0) == 7.f);
  CHECK(thrown<ShapeError>([&] { (void)from_blob(buffer, {2, 3}, {1}); },
                           "from_blob: shape [2, 3] and strides [1] differ in length; one stride per axis is needed") == "");
}

TEST_CASE("a pointer to const gives read-only storage") {
  float const buffer[3] = {1, 2, 3};
  Tensor<float> x = from_blob(buffer, {3});
  CHECK((x + 1).to_vector() == std::vector<float>{2, 3, 4});
  char const* const assigning = "assign: the storage is read-only: it was given as a pointer to const; write to a clone() of it";
  CHECK(thrown<TypeError>([&] { x += 1; }, "operator+=: the storage is read-only: it was given as a pointer to const; write to a clone() of it") == "");
  CHECK(thrown<TypeError>([&] { x[0] = 1; }, assigning) == "");
  CHECK(thrown<TypeError>([&] { x.assign(2); }, assigning) == "");
  CHECK(thrown<TypeError>([&] { x(0) = 1; }, "operator(): the storage is read-only: it was given as a pointer to const; write to a clone() of it") == "");
  CHECK(thrown<TypeError>([&] { (void)x.data(); }, "data: the storage is read-only: it was given as a pointer to const; write to a clone() of it") == "");
  CHECK(std::as_const(x).data() == buffer);
  CHECK(std::as_const(x)(1) == 2.f);
  Tensor<float> y = x.clone();
  y += 1;
  CHECK(y.to_vector() == std::vector<float>{2, 3, 4});
  CHECK(x.to_vector() == std::vector<float>{1, 2, 3});
  x = x * 2;  // rebinding is no write
  CHECK(x.to_vector() == std::vector<float>{2, 4, 6});
  CHECK(buffer[0] == 1.f);
}
