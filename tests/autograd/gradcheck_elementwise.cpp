/// The table's elementwise functions.
#include <doctest/doctest.h>

#include <autograd/gradcheck_table.hpp>

using namespace situ;
using namespace situ_test;

namespace {

#define SITU_ROW(NAME, LOW, HIGH) {#NAME, "", {{3, 4}}, [](V const& x) { return V(NAME(x)); }, elementwise, LOW, HIGH}
#define SITU_PAIR(NAME, LOW, HIGH) {#NAME, "", {{2, 3}, {2, 3}}, [](V const& a, V const& b) { return V(NAME(a, b)); }, elementwise, LOW, HIGH}
Rows const rows{
    SITU_ROW(abs, -2, 2), SITU_ROW(sign, -2, 2), SITU_ROW(square, -2, 2), SITU_ROW(reciprocal, 0.5, 2), SITU_ROW(exp, -2, 2),
    SITU_ROW(exp2, -2, 2), SITU_ROW(expm1, -2, 2), SITU_ROW(log, 0.3, 3), SITU_ROW(log2, 0.3, 3), SITU_ROW(log10, 0.3, 3),
    SITU_ROW(log1p, -0.7, 3), SITU_ROW(sqrt, 0.3, 3), SITU_ROW(rsqrt, 0.3, 3), SITU_ROW(sin, -3, 3), SITU_ROW(cos, -3, 3),
    SITU_ROW(tan, -1.2, 1.2), SITU_ROW(asin, -0.9, 0.9), SITU_ROW(acos, -0.9, 0.9), SITU_ROW(atan, -3, 3), SITU_ROW(sinh, -2, 2),
    SITU_ROW(cosh, -2, 2), SITU_ROW(tanh, -2, 2), SITU_ROW(asinh, -3, 3), SITU_ROW(acosh, 1.3, 4), SITU_ROW(atanh, -0.8, 0.8),
    SITU_ROW(erf, -2, 2), SITU_ROW(erfc, -2, 2), SITU_ROW(lgamma, 0.4, 4), SITU_ROW(sigmoid, -3, 3), SITU_ROW(relu, -2, 2),
    SITU_ROW(silu, -3, 3), SITU_ROW(softplus, -3, 3), SITU_ROW(gelu, -3, 3), SITU_ROW(gelu_tanh, -3, 3), SITU_ROW(leaky_relu, -2, 2),
    SITU_ROW(elu, -2, 2), SITU_ROW(floor, -3, 3), SITU_ROW(ceil, -3, 3), SITU_ROW(round, -3, 3), SITU_ROW(trunc, -3, 3),
    {"-", "x", {{3, 4}}, [](V const& x) { return V(-x); }, elementwise, -2, 2},
    {"+", "x + 2", {{3, 4}}, [](V const& x) { return V(x + 2); }, elementwise, -2, 2},
    {"-", "3 - x", {{3, 4}}, [](V const& x) { return V(3 - x); }, elementwise, -2, 2},
    {"*", "x * 2", {{3, 4}}, [](V const& x) { return V(x * 2); }, elementwise, -2, 2},
    {"/", "2 / x", {{3, 4}}, [](V const& x) { return V(2 / x); }, elementwise, 0.5, 2},
    {"/", "x / 2", {{3, 4}}, [](V const& x) { return V(x / 2); }, elementwise, -2, 2},
    {"*", "x * x + x / (x * x + 1)", {{3, 4}}, [](V const& x) { return V(x * x + x / (x * x + 1)); }, elementwise, -2, 2},
    {"pow", "x, 3", {{3, 4}}, [](V const& x) { return V(pow(x, 3)); }, elementwise, -2, 2},
    {"pow", "2, x", {{3, 4}}, [](V const& x) { return V(pow(2, x)); }, elementwise, -2, 2},
    {"clamp", "x, -1, 1", {{3, 4}}, [](V const& x) { return V(clamp(x, -1, 1)); }, elementwise, -2, 2},
    {"where", "x > 0, log(x), x", {{3, 4}}, [](V const& x) { return V(where(x > 0, log(x), x)); }, elementwise, -2, 2},
    {"%", "x % 0.7", {{3, 4}}, [](V const& x) { return V(x % 0.7); }, elementwise, -2, 2},
    {"*", "a tensor and a Variable", {{3, 4}}, [](V const& x) { return V(x * Tensor<double>{1., -2., 3., 0.5} + x.value()[0] * 0.); }, elementwise, -2, 2},
    {"*", "views of it", {{3, 4}}, [](V const& x) { return V(x[0] * tanh(x.t()(1, all())[0]) + x(range(0, 3, 2), all())); }, elementwise, -2, 2},
    {"+", "a, b", {{2, 3}, {2, 3}}, [](V const& a, V const& b) { return V(a + b); }, elementwise, -2, 2},
    {"-", "a, b", {{2, 3}, {2, 3}}, [](V const& a, V const& b) { return V(a - b); }, elementwise, -2, 2},
    {"*", "a, b", {{2, 3}, {2, 3}}, [](V const& a, V const& b) { return V(a * b); }, elementwise, -2, 2},
    {"/", "a, b", {{2, 3}, {2, 3}}, [](V const& a, V const& b) { return V(a / b); }, elementwise, 0.5, 2},
    {"%", "a, b", {{2, 3}, {2, 3}}, [](V const& a, V const& b) { return V(a % b); }, elementwise, 0.5, 3},
    SITU_PAIR(fmod, 0.5, 3), SITU_PAIR(floor_divide, 0.5, 3), SITU_PAIR(minimum, -2, 2), SITU_PAIR(maximum, -2, 2), SITU_PAIR(pow, 0.4, 2),
    SITU_PAIR(atan2, -2, 2), SITU_PAIR(hypot, -2, 2), SITU_PAIR(leaky_relu, -2, 2), SITU_PAIR(elu, -2, 2),
    {"lerp", "a, b, a", {{2, 3}, {2, 3}}, [](V const& a, V const& b) { return V(lerp(a, b, a)); }, elementwise, -2, 2},
    {"clamp", "a, b, b + 1", {{2, 3}, {2, 3}}, [](V const& a, V const& b) { return V(clamp(a, b, b + 1)); }, elementwise, -2, 2},
    {"where", "a > b, a * b, b", {{2, 3}, {2, 3}}, [](V const& a, V const& b) { return V(where(a > b, a * b, b)); }, elementwise, -2, 2},
    {"*", "tanh(a * b + a) * b", {{2, 3}, {2, 3}}, [](V const& a, V const& b) { return V(tanh(a * b + a) * b); }, elementwise, -2, 2},
};

}  // namespace

TEST_CASE("elementwise operations have the gradients of finite differences, in every layout") { check_gradients(rows); }
