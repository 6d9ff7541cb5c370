#include <vector>

#include <doctest/doctest.h>

#include <support/compare.hpp>
#include <support/devices.hpp>

namespace {
using namespace situ;
using situ_test::thrown;
using ints = std::vector<int64_t>;
}  // namespace

// The expected elements are NumPy's for arange(24).reshape(2, 3, 4).
TEST_CASE_TEMPLATE("indices select, slice, skip and add axes", D, SITU_TEST_DEVICES) {
  Tensor<int64_t, D> const x = arange<int64_t>(24, D{}).view({2, 3, 4});
  CHECK(x(all(), 1).to_vector() == ints{4, 5, 6, 7, 16, 17, 18, 19});
  CHECK(x(all(), range(1, 3), -1).to_vector() == ints{7, 11, 19, 23});
  CHECK(x(ellipsis(), 0).to_vector() == ints{0, 4, 8, 12, 16, 20});
  CHECK(x(1, ellipsis(), 2).to_vector() == ints{14, 18, 22});
  CHECK(x(ellipsis()).shape() == Shape{2, 3, 4});
  CHECK(x(ellipsis(), newaxis()).shape() == Shape{2, 3, 4, 1});
  CHECK(x(newaxis(), 0, newaxis()).shape() == Shape{1, 1, 3, 4});
  CHECK(x(newaxis(), newaxis(), all(), newaxis(), 1, newaxis(), newaxis(), range(1, 3)).shape() == Shape{1, 1, 2, 1, 1, 1, 2});
  auto const most = x.reshape({1, 2, 1, 3, 1, 4, 1, 1});  // as many axes as there may be: an integer makes room
  CHECK(most(newaxis(), 0).shape() == Shape{1, 2, 1, 3, 1, 4, 1, 1});
  CHECK(most(newaxis(), ellipsis(), -1).shape() == Shape{1, 1, 2, 1, 3, 1, 4, 1});
  CHECK(x(0, newaxis(), range(0, 2)).shape() == Shape{1, 2, 4});
  CHECK(x(all(), all(), range(1, end())).shape() == Shape{2, 3, 3});
  CHECK(x(all(), range(2, end(), -2), range(-2, 100)).to_vector() == ints{10, 11, 2, 3, 22, 23, 14, 15});
  CHECK(x(range(-1, -3, -1), 0, range(3, 0, -2)).to_vector() == ints{15, 13, 3, 1});
  CHECK(x(range(1, 1)).shape() == Shape{0, 3, 4});
  CHECK(x(range(0, 1)).shape() == Shape{1, 3, 4});
  CHECK(x(1, 2, range(0, end())).to_vector() == ints{20, 21, 22, 23});
  CHECK(x[1][2].to_vector() == ints{20, 21, 22, 23});
  CHECK(x(ellipsis(), range(0, 3, 2), newaxis(), 1).shape() == Shape{2, 2, 1});
  CHECK(x(ellipsis(), range(0, 3, 2), newaxis(), 1).to_vector() == ints{1, 9, 13, 21});
}

TEST_CASE_TEMPLATE("indexed views are written in place", D, SITU_TEST_DEVICES) {
  Tensor<int64_t, D> x = zeros<int64_t>({2, 3}, D{});
  x(all(), 0) = 5;
  x(0, range(1, end())) = Tensor<int64_t, D>{7, 8};
  x(ellipsis(), -1) += 1;
  CHECK(x.to_vector() == ints{5, 7, 9, 5, 0, 1});
  x[1] = Tensor<int64_t, D>{2};
  CHECK(x.to_vector() == ints{5, 7, 9, 2, 2, 2});
  x[0] = {1, 2, 3};
  CHECK(x.to_vector() == ints{1, 2, 3, 2, 2, 2});
  x(range(0, 0)) = 99;
  CHECK(x.to_vector() == ints{1, 2, 3, 2, 2, 2});
}

TEST_CASE_TEMPLATE("axes of one index may lead what is assigned to a part, as in PyTorch and NumPy", D, SITU_TEST_DEVICES) {
  Tensor<int64_t, D> x = arange<int64_t>(6, D{}).view({2, 3});
  x[0] = Tensor<int64_t, D>{{7, 8, 9}};
  CHECK(x.to_vector() == ints{7, 8, 9, 3, 4, 5});
  x(all(), 1) = Tensor<int64_t, D>{{{1, 2}}} * 10;
  CHECK(x.to_vector() == ints{7, 10, 9, 3, 20, 5});
  x(1, range(0, 2)) = Tensor<int64_t, D>{{6}};
  CHECK(x.to_vector() == ints{7, 10, 9, 6, 6, 5});
  x[1] = x(range(0, 1), range(2, -4, -1));  // which overlaps nothing that is written
  x[0] = x(range(0, 1), range(2, -4, -1));  // which overlaps it in another order
  CHECK(x.to_vector() == ints{9, 10, 7, 9, 10, 7});
  x.t() = full<int64_t>({1, 1, 1, 1, 1, 1, 1, 1}, 4, D{});
  CHECK(x.to_vector() == ints(6, 4));
  CHECK(thrown<ShapeError>([&] { x[0] = zeros<int64_t>({2, 3}, D{}); }, "assign: shape [2, 3] cannot be expanded to [3]: it has more dimensions") == "");
  CHECK(thrown<ShapeError>([&] { x[0] = zeros<int64_t>({1, 2, 3}, D{}); }, "assign: shape [1, 2, 3] cannot be expanded to [3]: it has more dimensions") == "");
  CHECK(thrown<ShapeError>([&] { x.assign(zeros<int64_t>({1, 2, 3}, D{})); }, "assign: shape [1, 2, 3] cannot be expanded to [2, 3]: it has more dimensions") == "");
  CHECK(thrown<ShapeError>([&] { x += zeros<int64_t>({1, 2, 3}, D{}); }, "operator+=: shape [1, 2, 3] cannot be expanded to [2, 3]: it has more dimensions") == "");
  CHECK(x.to_vector() == ints(6, 4));
}

TEST_CASE("wrong indices name the axis, the shape and what there is") {
  Tensor<float> x = zeros({2, 3});
  CHECK(thrown<IndexError>([&] { (void)x[2]; }, "operator[]: index 2 is out of range for axis 0 of shape [2, 3]: it has 2 elements") == "");
  CHECK(thrown<IndexError>([&] { (void)x(all(), 3); }, "operator(): index 3 is out of range for axis 1 of shape [2, 3]: it has 3 elements") == "");
  CHECK(thrown<IndexError>([&] { (void)x(all(), all(), all()); }, "operator(): 3 axes are indexed of shape [2, 3]: it has 2") == "");
  CHECK(thrown<IndexError>([&] { (void)x(range(0, 2, 0)); }, "operator(): the step of axis 0 is 0; a step is positive or negative") == "");
  CHECK(thrown<IndexError>([&] { (void)full({}, 1)[0]; }, "operator[]: index 0 was given for shape []: it has no axes") == "");
  CHECK(thrown<IndexError>([&] { (void)zeros({0})[0]; }, "operator[]: index 0 is out of range for axis 0 of shape [0]: it has 0 elements") == "");
  CHECK(thrown<IndexError>([&] { x[-3] = 1; }, "operator[]: index -3 is out of range for axis 0 of shape [2, 3]: it has 2 elements") == "");
  CHECK(x.to_vector() == std::vector<float>(6));
}

TEST_CASE("elements stand at the same place whichever way they are indexed") {
  Tensor<int64_t> const x = arange<int64_t>(60).view({3, 4, 5});
  Tensor<int64_t> const y = x.permute({2, 0, 1}).flip(1);
  int wrong = 0;
  for (int64_t i = 0; i < 5; ++i) {
    for (int64_t j = 0; j < 3; ++j) {
      for (int64_t k = 0; k < 4; ++k) {
        int64_t const expected = (2 - j) * 20 + k * 5 + i;
        wrong += y(i, j, k) != expected || y[i][j].item(k) != expected || y(i, ellipsis(), k).item(j) != expected ||
                 y.select(2, k).select(0, i).item(j) != expected;
      }
    }
  }
  CHECK(wrong == 0);
}
