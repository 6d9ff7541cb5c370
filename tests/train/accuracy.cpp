// The share of rows whose largest score stands at the label, beside a plain loop over NumPy's argmax.
#include <doctest/doctest.h>

#include <situ/train/accuracy.hpp>

#include <situ/ops/random.hpp>
#include <situ/tensor.hpp>

#include <support/devices.hpp>

#include <cmath>
#include <limits>
#include <vector>

using namespace situ;

namespace {

/// numpy.argmax: the first of the largest, and the first NaN before all numbers.
int64_t argmax_of(std::vector<double> const& row) {
  std::size_t best = 0;
  for (std::size_t c = 0; c < row.size(); ++c) {
    if (std::isnan(row[c])) return static_cast<int64_t>(c);
    if (row[c] > row[best]) best = c;
  }
  return static_cast<int64_t>(best);
}

template <class T, class D>
void check(int64_t rows, int64_t classes, int64_t inner) {
  CAPTURE(rows);
  CAPTURE(classes);
  CAPTURE(inner);
  auto const nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  Tensor<T> scores = cast<T>(randint<int32_t>(0, 7, {rows, classes, inner}) * 1);  // many ties
  auto labels = randint<int64_t>(0, classes, {rows, inner});
  int64_t hits = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t k = 0; k < inner; ++k) {
      if ((r + k) % 5 == 1) scores(r, r % classes, k) = T(nan);
      if ((r + k) % 7 == 2) scores(r, (r + 1) % classes, k) = T(infinity);
      if ((r + k) % 11 == 3) scores(r, (r + 2) % classes, k) = T(nan);
      std::vector<double> row;
      for (int64_t c = 0; c < classes; ++c) row.push_back(static_cast<double>(static_cast<float>(T(scores(r, c, k)))));
      if (r % 2 == 0) labels(r, k) = argmax_of(row);
      hits += labels(r, k) == argmax_of(row);
    }
  }
  REQUIRE(hits > 0);
  float const expected = static_cast<float>(static_cast<double>(hits) / static_cast<double>(rows * inner));
  CHECK(learning::accuracy(scores.to(D{}), labels.to(D{})).item() == expected);
  if (inner == 1) CHECK(learning::accuracy(scores.squeeze(-1).to(D{}), labels.squeeze(-1).to(D{})).item() == expected);
  CHECK(learning::accuracy(Variable<T, D>(scores.to(D{})), labels.to(D{})).item() == expected);
}

}  // namespace

TEST_CASE_TEMPLATE("accuracy counts the rows whose largest score stands at the label", D, Cpu, Emulated<0>) {
  for (int64_t const classes : {1, 2, 10, 130}) {
    check<float, D>(1, classes, 1);
    check<float, D>(257, classes, 1);
    check<float, D>(33, classes, 4);
    check<bfloat16, D>(19, classes, 1);
  }
  check<float, D>(5000, 100, 1);  // several blocks
}

TEST_CASE("accuracy takes labels of any integer type and formulas, and says what does not fit") {
  Tensor<float> const scores{{1, 3, 2}, {5, 4, 5}};
  CHECK(learning::accuracy(scores * 2.f, Tensor<int32_t>{1, 2}).item() == .5f);
  CHECK(learning::accuracy(scores, Tensor<uint8_t>{1, 0}).item() == 1.f);
  CHECK(learning::accuracy(scores, Tensor<int64_t>{-1, 3}).item() == 0.f);
  CHECK_THROWS_AS(static_cast<void>(learning::accuracy(scores, Tensor<int64_t>{1, 0, 1})), ShapeError);
  CHECK(std::isnan(learning::accuracy(zeros<float>({0, 3}), zeros<int64_t>({0})).item()));
}
