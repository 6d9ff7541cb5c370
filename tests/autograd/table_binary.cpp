/// Every elementwise function of several operands in every layout: gradients against finite differences, from one table.
#include <doctest/doctest.h>

#include <autograd/layouts.hpp>

using namespace situ;
using situ_test::leaf;
using situ_test::within;

namespace {

using V = Variable<double>;

/// A function of numbers between low and high.
struct Binary {
  char const* name;
  V (*f)(V const&, V const&);
  double low = -2, high = 2;
};
#define SITU_PAIR(NAME, ...) {#NAME, [](V const& a, V const& b) { return V(NAME(a, b)); }, __VA_ARGS__}
Binary const binary[] = {
    {"a + b", [](V const& a, V const& b) { return V(a + b); }},
    {"a - b", [](V const& a, V const& b) { return V(a - b); }},
    {"a * b", [](V const& a, V const& b) { return V(a * b); }},
    {"a / b", [](V const& a, V const& b) { return V(a / b); }, 0.5, 2},
    {"a % b", [](V const& a, V const& b) { return V(a % b); }, 0.5, 3},
    SITU_PAIR(fmod, 0.5, 3), SITU_PAIR(floor_divide, 0.5, 3), SITU_PAIR(minimum, -2, 2), SITU_PAIR(maximum, -2, 2), SITU_PAIR(pow, 0.4, 2),
    SITU_PAIR(atan2, -2, 2), SITU_PAIR(hypot, -2, 2), SITU_PAIR(leaky_relu, -2, 2), SITU_PAIR(elu, -2, 2),
    {"lerp(a, b, a)", [](V const& a, V const& b) { return V(lerp(a, b, a)); }},
    {"clamp(a, b, b + 1)", [](V const& a, V const& b) { return V(clamp(a, b, b + 1)); }},
    {"where(a > b, a * b, b)", [](V const& a, V const& b) { return V(where(a > b, a * b, b)); }},
    {"tanh(a * b + a) * b", [](V const& a, V const& b) { return V(tanh(a * b + a) * b); }},
};

}  // namespace

TEST_CASE("the gradient of every function of two operands, in every pair of layouts") {
  for (Binary const& entry : binary) {
    INFO(entry.name);
    for (auto left : situ_test::all_layouts) {
      for (auto right : situ_test::all_layouts) {
        CHECK(gradcheck(entry.f, {within(leaf({2, 3}, left), entry.low, entry.high), within(leaf({2, 3}, right, 2), entry.low, entry.high)}));
      }
    }
  }
}

TEST_CASE("operands that are broadcast get sums") {
  Shape const pairs[][2] = {{{2, 3}, {3}}, {{3}, {2, 3}}, {{2, 1}, {1, 3}}, {{}, {2, 3}}, {{2, 3}, {}}, {{1}, {2, 1, 3}}, {{2, 1, 1}, {2, 3}}, {{}, {}}, {{0, 3}, {3}}};
  for (Binary const& entry : binary) {
    INFO(entry.name);
    for (auto const& [left, right] : pairs) {
      CHECK(gradcheck(entry.f, {within(leaf(left), entry.low, entry.high), within(leaf(right, situ_test::layout::contiguous, 2), entry.low, entry.high)}));
    }
  }
}
