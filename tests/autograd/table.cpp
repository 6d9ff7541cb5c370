/// Every elementwise function of one operand in every layout: gradients against finite differences, from one table.
#include <doctest/doctest.h>

#include <autograd/layouts.hpp>

using namespace situ;
using situ_test::leaf;
using situ_test::within;

namespace {

using V = Variable<double>;

/// A function of numbers between low and high.
struct Unary {
  char const* name;
  V (*f)(V const&);
  double low = -2, high = 2;
};
#define SITU_ENTRY(NAME, ...) {#NAME, [](V const& x) { return V(NAME(x)); }, __VA_ARGS__}
Unary const unary[] = {
    SITU_ENTRY(abs, -2, 2), SITU_ENTRY(sign, -2, 2), SITU_ENTRY(square, -2, 2), SITU_ENTRY(reciprocal, 0.5, 2), SITU_ENTRY(exp, -2, 2),
    SITU_ENTRY(exp2, -2, 2), SITU_ENTRY(expm1, -2, 2), SITU_ENTRY(log, 0.3, 3), SITU_ENTRY(log2, 0.3, 3), SITU_ENTRY(log10, 0.3, 3),
    SITU_ENTRY(log1p, -0.7, 3), SITU_ENTRY(sqrt, 0.3, 3), SITU_ENTRY(rsqrt, 0.3, 3), SITU_ENTRY(sin, -3, 3), SITU_ENTRY(cos, -3, 3),
    SITU_ENTRY(tan, -1.2, 1.2), SITU_ENTRY(asin, -0.9, 0.9), SITU_ENTRY(acos, -0.9, 0.9), SITU_ENTRY(atan, -3, 3), SITU_ENTRY(sinh, -2, 2),
    SITU_ENTRY(cosh, -2, 2), SITU_ENTRY(tanh, -2, 2), SITU_ENTRY(asinh, -3, 3), SITU_ENTRY(acosh, 1.3, 4), SITU_ENTRY(atanh, -0.8, 0.8),
    SITU_ENTRY(erf, -2, 2), SITU_ENTRY(erfc, -2, 2), SITU_ENTRY(lgamma, 0.4, 4), SITU_ENTRY(sigmoid, -3, 3), SITU_ENTRY(relu, -2, 2),
    SITU_ENTRY(silu, -3, 3), SITU_ENTRY(softplus, -3, 3), SITU_ENTRY(gelu, -3, 3), SITU_ENTRY(gelu_tanh, -3, 3), SITU_ENTRY(leaky_relu, -2, 2),
    SITU_ENTRY(elu, -2, 2), SITU_ENTRY(floor, -3, 3), SITU_ENTRY(ceil, -3, 3), SITU_ENTRY(round, -3, 3), SITU_ENTRY(trunc, -3, 3),
    SITU_ENTRY(-, -2, 2),
    {"x + 2", [](V const& x) { return V(x + 2); }},
    {"3 - x", [](V const& x) { return V(3 - x); }},
    {"x * 2", [](V const& x) { return V(x * 2); }},
    {"2 / x", [](V const& x) { return V(2 / x); }, 0.5, 2},
    {"x / 2", [](V const& x) { return V(x / 2); }},
    {"x * x + x / (x * x + 1)", [](V const& x) { return V(x * x + x / (x * x + 1)); }},
    {"pow(x, 3)", [](V const& x) { return V(pow(x, 3)); }},
    {"pow(2, x)", [](V const& x) { return V(pow(2, x)); }},
    {"clamp(x, -1, 1)", [](V const& x) { return V(clamp(x, -1, 1)); }},
    {"where(x > 0, log(x), x)", [](V const& x) { return V(where(x > 0, log(x), x)); }},
    {"x % 0.7", [](V const& x) { return V(x % 0.7); }},
    {"a tensor and a Variable", [](V const& x) { return V(x * Tensor<double>{1., -2., 3., 0.5} + x.value()[0] * 0.); }},
    {"views of it", [](V const& x) { return V(x[0] * tanh(x.t()(1, all())[0]) + x(range(0, 3, 2), all())); }},
};

}  // namespace

TEST_CASE("the gradient of every function of one operand, in every layout") {
  for (Unary const& entry : unary) {
    INFO(entry.name);
    for (auto how : situ_test::all_layouts) {
      INFO(static_cast<int>(how));
      CHECK(gradcheck(entry.f, within(leaf({3, 4}, how), entry.low, entry.high)));
    }
  }
}

TEST_CASE("a leaf that repeats its elements has the gradient of each") {
  for (Unary const& entry : unary) {
    INFO(entry.name);
    V const repeated(within(leaf({1, 4}), entry.low, entry.high).value().expand({3, 4}));
    CHECK(gradcheck(entry.f, repeated));
  }
}
