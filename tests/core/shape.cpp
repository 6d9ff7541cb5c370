#include <situ/core/shape.hpp>

#include <cstdint>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <support/compare.hpp>

namespace {

using namespace situ;
using situ_test::thrown;

constexpr bool constant_expressions() {
  Shape s{2, 3};
  s.push_back(4);
  s.insert(0, 7);
  s.erase(1);
  return s == Shape{7, 3, 4} && s.rank() == 3 && s.front() == 7 && s.back() == 4 && detail::product(s) == 84 && Shape().empty() &&
         Shape::filled(2, 5) == Shape{5, 5} && !(Shape{1} == Shape{1, 1});
}
static_assert(constant_expressions());

}  // namespace

TEST_CASE("shapes are written with any integer types or taken from ranges") {
  CHECK(constant_expressions());
  std::size_t const n = 3;
  CHECK(Shape{n, int64_t{4}, short{5}} == Shape{3, 4, 5});
  std::vector<int> const sizes{1, 2, 3};
  CHECK(Shape(sizes) == Shape{1, 2, 3});
  CHECK(Shape(std::vector<int64_t>{}) == Shape{});
  int64_t total = 0;
  for (int64_t extent : Shape{1, 2, 3}) total += extent;
  CHECK(total == 6);
}

TEST_CASE("shapes print in brackets") {
  CHECK(to_string(Shape{2, 3}) == "[2, 3]");
  CHECK(to_string(Shape{}) == "[]");
  std::ostringstream out;
  out << Shape{-1};
  CHECK(out.str() == "[-1]");
}

TEST_CASE("a shape has at most eight dimensions") {
  CHECK((Shape{1, 2, 3, 4, 5, 6, 7, 8}.rank()) == 8);
  CHECK(thrown<ShapeError>([] { Shape{1, 2, 3, 4, 5, 6, 7, 8, 9}; }, "shape: 9 dimensions were given: a tensor has at most 8") == "");
  CHECK(thrown<ShapeError>([] { Shape(std::vector<int>(20, 1)); }, "shape: 20 dimensions were given: a tensor has at most 8") == "");
  Shape full = Shape::filled(8, 1);
  CHECK(thrown<ShapeError>([&] { full.push_back(1); }, "shape: 9 dimensions were given: a tensor has at most 8") == "");
  CHECK(full == Shape::filled(8, 1));
}

TEST_CASE("shapes broadcast as in NumPy") {
  auto const both_ways = [](Shape const& a, Shape const& b) {
    Shape const result = detail::broadcast(a, b, "operator+");
    CHECK(detail::broadcast(b, a, "operator+") == result);
    return result;
  };
  CHECK(both_ways({2, 3}, {3}) == Shape{2, 3});
  CHECK(both_ways({2, 1}, {1, 3}) == Shape{2, 3});
  CHECK(both_ways({}, {4}) == Shape{4});
  CHECK(both_ways({}, {}) == Shape{});
  CHECK(both_ways({0}, {1}) == Shape{0});
  CHECK(both_ways({5, 0}, {1, 1}) == Shape{5, 0});
  CHECK(both_ways({8, 1, 6, 1}, {7, 1, 5}) == Shape{8, 7, 6, 5});
  CHECK(thrown<ShapeError>([] { detail::broadcast({3}, {2}, "operator+"); },
                           "operator+: shapes [3] and [2] do not broadcast: 3 != 2 in dimension 0") == "");
  CHECK(thrown<ShapeError>([] { detail::broadcast({0}, {2}, "minimum"); },
                           "minimum: shapes [0] and [2] do not broadcast: 0 != 2 in dimension 0") == "");
  CHECK(thrown<ShapeError>([] { detail::broadcast({4, 2, 3}, {5, 3}, "where"); },
                           "where: shapes [4, 2, 3] and [5, 3] do not broadcast: 2 != 5 in dimension 1") == "");
}

TEST_CASE("axes count from either end") {
  Shape const shape{8, 16};
  CHECK(detail::checked_axis(-1, 2, shape, "sum") == 1);
  CHECK(detail::checked_axis(-2, 2, shape, "sum") == 0);
  CHECK(detail::checked_axis(1, 2, shape, "sum") == 1);
  CHECK(thrown<ShapeError>([&] { detail::checked_axis(2, 2, shape, "sum"); }, "sum: axis 2 is out of range for shape [8, 16]: axes are -2 to 1") == "");
  CHECK(thrown<ShapeError>([&] { detail::checked_axis(-3, 2, shape, "sum"); }, "sum: axis -3 is out of range for shape [8, 16]: axes are -2 to 1") == "");
  CHECK(thrown<ShapeError>([] { detail::checked_axis(0, 0, Shape{}, "sum"); }, "sum: axis 0 is out of range for shape []: it has no axes") == "");
}

TEST_CASE("a shape without axes has the axes 0 and -1 of a line of one element") {
  CHECK(detail::line_axis(0, {}, "sum") == 0);
  CHECK(detail::line_axis(-1, {}, "sum") == 0);
  CHECK(detail::line_axis(-1, {2, 3}, "sum") == 1);
  CHECK(thrown<ShapeError>([] { detail::line_axis(1, {}, "sum"); }, "sum: axis 1 is out of range for shape []: it has no axes") == "");
  CHECK(detail::axis_bit(-1, {}, "sum") == 0);
  CHECK(detail::axis_bit(-1, {2, 3}, "sum") == 2);
}

TEST_CASE("counting elements finds negative sizes and products that overflow") {
  CHECK(detail::count_of({2, 3, 4}, "zeros") == 24);
  CHECK(detail::count_of({}, "zeros") == 1);
  CHECK(detail::count_of({INT64_MAX, 0, INT64_MAX}, "zeros", 8) == 0);
  CHECK(detail::count_of({INT64_MAX}, "zeros", 1) == INT64_MAX);
  CHECK(thrown<ShapeError>([] { detail::count_of({2, -3}, "zeros"); },
                           "zeros: shape [2, -3] has a negative extent: -3; sizes are 0 or more") == "");
  CHECK(thrown<ShapeError>([] { detail::count_of({0, -3}, "zeros"); },
                           "zeros: shape [0, -3] has a negative extent: -3; sizes are 0 or more") == "");
  CHECK(thrown<ShapeError>([] { detail::count_of({3037000500, 3037000500}, "zeros"); },
                           "zeros: shape [3037000500, 3037000500] has more elements than can be addressed: the product of the sizes overflows") == "");
  CHECK(thrown<ShapeError>([] { detail::count_of({INT64_MAX / 4}, "zeros", 8); },
                           "zeros: shape [2305843009213693951] has more elements than can be addressed: the product of the sizes overflows") == "");
}

TEST_CASE("entries are counted from the end, too") {
  Shape s{2, 3, 5};
  CHECK(s[-1] == 5);
  CHECK(s[-3] == 2);
  CHECK(s[int64_t{-2}] == 3);
  s[-1] = 7;
  CHECK(s == Shape{2, 3, 7});
  CHECK(thrown<IndexError>([&] { (void)s[-4]; }, "shape: there is no entry -4 of 3") == "");
  CHECK(thrown<IndexError>([&] { (void)s[8]; }, "shape: there is no entry 8 of 3") == "");
  CHECK(thrown<IndexError>([&] { s[std::size_t{1} << 63] = 1; }, "shape: there is no entry -9223372036854775808 of 3") == "");
  CHECK(thrown<IndexError>([&] { (void)Shape{}[-1]; }, "shape: there is no entry -1 of 0") == "");
  CHECK(Shape{1, 2, 3, 4, 5, 6, 7, 8}[-8] == 1);
  static_assert(Shape{2, 3}[-1] == 3);
}
