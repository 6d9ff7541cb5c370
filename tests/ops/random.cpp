#include <doctest/doctest.h>

#include <cmath>
#include <situ/ops.hpp>
#include <situ/tensor.hpp>

using namespace situ;

TEST_CASE("Philox 4x32-10 gives the numbers of the published test vectors") {
  // The known-answer file of Random123: kat_vectors, philox4x32 10.
  auto const zero = detail::philox(0, 0, 0);
  CHECK(zero.word[0] == 0x6627e8d5u);
  CHECK(zero.word[1] == 0xe169c58du);
  CHECK(zero.word[2] == 0xbc57ac4cu);
  CHECK(zero.word[3] == 0x9b00dbd8u);
  auto const ones = detail::philox(~0ull, ~0ull, ~0ull);
  CHECK(ones.word[0] == 0x408f276du);
  CHECK(ones.word[1] == 0x41c83b0eu);
  CHECK(ones.word[2] == 0xa20bc7c6u);
  CHECK(ones.word[3] == 0x6d5451fdu);
  auto const pi = detail::philox(0x299f31d0a4093822ull, 0x85a308d3243f6a88ull, 0x0370734413198a2eull);
  CHECK(pi.word[0] == 0xd16cfe09u);
  CHECK(pi.word[1] == 0x94fdccebu);
  CHECK(pi.word[2] == 0x5001e420u);
  CHECK(pi.word[3] == 0x24126ea1u);
}

TEST_CASE("the same seed gives the same numbers on every device, and every call other ones") {
  Generator first{42}, second{42}, third{43};
  auto const a = rand({1000}, first), b = rand({1000}, first);
  auto const on_device = rand({1000}, second, Emulated<0>{});
  CHECK(equal(a, on_device.cpu()));
  CHECK_FALSE(equal(a, b));
  CHECK_FALSE(equal(a, rand({1000}, third)));
  manual_seed(7);
  auto const c = randn({100}), d = randn({100});
  manual_seed(7);
  CHECK(equal(c, randn({100})));
  CHECK(equal(d, randn({100})));
}

TEST_CASE("uniform and normal numbers have the moments of their distributions") {
  Generator generator{1};
  int64_t const n = 1'000'000;
  auto const u = rand<double>({n}, generator);
  // Mean of n uniforms: standard deviation 1/sqrt(12 n); five of them.
  CHECK(std::abs(mean(u).item() - 0.5) < 5 / std::sqrt(12.0 * static_cast<double>(n)));
  CHECK(std::abs(mean(square(u - 0.5)).item() - 1.0 / 12) < 5 * std::sqrt(1.0 / 180 / static_cast<double>(n)));
  CHECK(min(u).item() >= 0);
  CHECK(max(u).item() < 1);
  auto const x = randn<double>({n}, generator);
  CHECK(std::abs(mean(x).item()) < 5 / std::sqrt(static_cast<double>(n)));
  CHECK(std::abs(mean(square(x)).item() - 1) < 5 * std::sqrt(2.0 / static_cast<double>(n)));
  CHECK(std::abs(mean(x * x * x).item()) < 5 * std::sqrt(15.0 / static_cast<double>(n)));
  CHECK(std::abs(mean(square(square(x))).item() - 3) < 5 * std::sqrt(96.0 / static_cast<double>(n)));
  // The distribution function at a few places: 0.5 * erfc(-q / sqrt 2).
  for (double q : {-2.0, -1.0, -0.5, 0.0, 0.3, 1.5, 3.0}) {
    double const expected = 0.5 * std::erfc(-q / std::sqrt(2.0));
    CHECK(std::abs(mean(cast<double>(x < q)).item() - expected) < 5 * std::sqrt(expected * (1 - expected) / static_cast<double>(n)));
  }
}

TEST_CASE("random integers cover [low, high) evenly") {
  Generator generator{3};
  auto const k = randint(-3, 5, {80000}, generator);
  static_assert(std::is_same_v<decltype(k)::value_type, int64_t>);
  CHECK(min(k).item() == -3);
  CHECK(max(k).item() == 4);
  for (int v = -3; v < 5; ++v) {
    auto const count = static_cast<double>(sum(k == v).item());
    CHECK(std::abs(count - 10000) < 5 * std::sqrt(10000.0 * 7 / 8));
  }
  CHECK_THROWS_WITH_AS(randint(5, 5, {2}, generator), "randint: from 5 to 5: there is no integer in between; low must be less than high", ShapeError);
}
