#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <situ/ops/compare.hpp>
#include <situ/ops/sampling.hpp>
#include <situ/tensor.hpp>
#include <support/compare.hpp>
#include <support/devices.hpp>

using namespace situ;

TEST_CASE_TEMPLATE("randperm is a permutation, the same on every device", D, Cpu, Emulated<0>) {
  for (int64_t n : {0, 1, 2, 100, 70'000}) {
    Generator generator{11}, host{11};
    auto const order = randperm(n, generator, D{});
    static_assert(std::is_same_v<value_of<decltype(order)>, int64_t>);
    auto values = order.cpu().to_vector();
    CHECK(equal(order.cpu(), randperm(n, host)));
    std::sort(values.begin(), values.end());
    bool whole = static_cast<int64_t>(values.size()) == n;
    for (std::size_t k = 0; k < values.size(); ++k) whole = whole && values[k] == static_cast<int64_t>(k);
    CHECK(whole);
  }
  CHECK(randperm<int32_t>(3, D{}).size() == 3);
  CHECK(randperm<uint8_t>(256, D{}).size() == 256);
  CHECK(situ_test::thrown<ShapeError>([] { randperm<uint8_t>(257, D{}); }, "randperm: numbers from 0 to 256 were asked for; uint8 holds 0 to 255") == "");
}

TEST_CASE("every order of four is as likely as another") {
  Generator generator{12};
  std::vector<int> counts(24);
  for (int k = 0; k < 24'000; ++k) {
    auto const order = randperm(4, generator).to_vector();
    int rank = 0;
    for (int i = 0; i < 4; ++i) {
      int below = 0;
      for (int j = i + 1; j < 4; ++j) below += order[static_cast<std::size_t>(j)] < order[static_cast<std::size_t>(i)];
      rank = rank * (4 - i) + below;
    }
    ++counts[static_cast<std::size_t>(rank)];
  }
  double chi_squared = 0;
  for (int count : counts) chi_squared += (count - 1000.0) * (count - 1000.0) / 1000;
  CHECK(chi_squared < 49.7);  // with probability 0.999, for 23 degrees of freedom
}

TEST_CASE_TEMPLATE("multinomial with replacement draws in proportion to the weights", D, Cpu, Emulated<0>) {
  Generator generator{13};
  Tensor<float, D> const weights = Tensor<float>{{1, 0, 2, 5}, {0, 0, 0, 3}}.to(D{});
  auto const drawn = multinomial(weights, 80'000, with_replacement, generator).cpu();
  CHECK(drawn.shape() == Shape{2, 80'000});
  std::vector<int> counts(4);
  for (int64_t index : drawn[0].to_vector()) ++counts.at(static_cast<std::size_t>(index));
  double const shares[] = {0.125, 0, 0.25, 0.625};
  for (std::size_t k = 0; k < 4; ++k) CHECK(std::abs(counts[k] - 80'000 * shares[k]) <= 5 * std::sqrt(80'000 * shares[k] * (1 - shares[k])));
  for (int64_t index : drawn[1].to_vector()) REQUIRE(index == 3);
  float const inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  if constexpr (std::is_same_v<D, Cpu>) {
    for (Tensor<float> const& w : {Tensor<float>{{1, 2}, {1, inf}}, Tensor<float>{{1, 2}, {nan, 1}}, Tensor<float>{{-1, 2}, {1, 1}}}) {
      CHECK(situ_test::thrown<ShapeError>([&] { multinomial(w, 1, with_replacement); }, "multinomial: a weight is negative, infinite or no number; weights are 0 or more") == "");
      CHECK(situ_test::thrown<ShapeError>([&] { multinomial(w, 1); }, "multinomial: a weight is negative, infinite or no number; weights are 0 or more") == "");
    }
    CHECK(situ_test::thrown<ShapeError>([&] { multinomial(Tensor<float>{{1, 2}, {0, 0}}, 1); }, "multinomial: all weights of a row are 0; there is nothing to draw from") == "");
  } else {  // nobody looks
    Tensor<float, D> const unusable = Tensor<float>{{0, 0, 0}, {1, inf, 1}, {1, nan, 1}}.to(D{});
    auto const some = multinomial(unusable, 20, with_replacement, generator).cpu();
    CHECK(some.shape() == Shape{3, 20});
    for (int64_t index : some.flatten().to_vector()) CHECK((index >= 0 && index < 3));
  }
  for (int64_t index : multinomial(Tensor<double>{0, 5e-324, 0}, 1000, with_replacement, generator).to_vector()) REQUIRE(index == 1);
  auto const huge = multinomial(Tensor<double>{1e308, 1e308}, 10'000, with_replacement, generator).to_vector();
  CHECK(std::abs(std::count(huge.begin(), huge.end(), 0) - 5000) <= 250);
  CHECK(multinomial(ones({1}), 2, with_replacement, generator).to_vector() == std::vector<int64_t>{0, 0});
}

TEST_CASE("multinomial without replacement draws each index once, the first in proportion to the weights, then in proportion to those left") {
  Generator generator{14};
  Tensor<double> const weights = Tensor<double>{1, 0, 2, 5}.reshape({1, 4}).expand({16'000, 4});
  auto const drawn = multinomial(weights * 0.5, 2, generator).to_vector();
  std::vector<int> counts(16);
  for (std::size_t k = 0; k < drawn.size(); k += 2) ++counts.at(static_cast<std::size_t>(4 * drawn[k] + drawn[k + 1]));
  double const w[] = {1, 0, 2, 5};
  for (std::size_t i = 0; i < 4; ++i) {
    for (std::size_t j = 0; j < 4; ++j) {
      double const p = i == j ? 0 : w[i] / 8 * w[j] / (8 - w[i]);
      CHECK(std::abs(counts[4 * i + j] - 16'000 * p) <= 5 * std::sqrt(16'000 * p * (1 - p)));
    }
  }
  for (int k = 0; k < 1000; ++k) REQUIRE(multinomial(Tensor<double>{0, 1e-310, 1}, 2, generator).to_vector() == std::vector<int64_t>{2, 1});
  auto all = multinomial(Tensor<int32_t>{3, 1, 2}, 3, generator).to_vector();
  std::sort(all.begin(), all.end());
  CHECK(all == std::vector<int64_t>{0, 1, 2});
}

TEST_CASE("what cannot be drawn is named") {
  auto const w = ones({3});
  CHECK(situ_test::thrown<ShapeError>([] { randperm(-1); }, "randperm: -1 elements were asked for; 0 or more are possible") == "");
  CHECK(situ_test::thrown<ShapeError>([&] { multinomial(w, 4); }, "multinomial: 4 samples of 3 cannot be drawn without replacement; pass with_replacement") == "");
  CHECK(situ_test::thrown<ShapeError>([&] { multinomial(w, 0); }, "multinomial: 0 samples were asked for; at least 1 is needed") == "");
  CHECK(situ_test::thrown<ShapeError>([] { multinomial(ones({2, 0}), 1, with_replacement); }, "multinomial: the weights have shape [2, 0]: there is nothing to draw from") == "");
  CHECK(situ_test::thrown<ShapeError>([] { multinomial(ones({1, 2, 3}), 1); }, "multinomial: the weights have shape [1, 2, 3]; one or two axes are needed") == "");
}
