/// The table's reductions, scans, sorts and operations on rows.
#include <doctest/doctest.h>

#include <autograd/gradcheck_table.hpp>

#include <situ/autograd/rows.hpp>
#include <situ/autograd/scan.hpp>
#include <situ/autograd/sort.hpp>

using namespace situ;
using namespace situ_test;

namespace {

constexpr double infinity = __builtin_huge_val();
Tensor<double> weights() { return sample({2, 3, 4}, 9); }

Rows const rows{
    {"sum", "", {{2, 3, 4}}, [](V const& x) { return V(sum(x)); }},
    {"sum", "of two axes, of a formula", {{2, 3, 4}, {4}}, [](V const& x, V const& row) { return V(sum(x * row + 1, {0, 2})); }, twice},
    {"mean", "keepdim", {{2, 3, 4}}, [](V const& x) { return V(mean(x, 1, keepdim)); }},
    {"mean", "of a formula", {{3, 4}, {4}}, [](V const& x, V const& row) { return V(mean(x * row + 1, 0)); }, twice},
    {"prod", "", {{2, 3, 4}}, [](V const& x) { return V(prod(x, {0, 2})); }, plain, -2, 2},
    {"prod", "of a formula", {{3, 4}, {4}}, [](V const& x, V const& row) { return V(prod(x * row + 2, 0, keepdim)); }},
    {"max", "", {{2, 3, 4}}, [](V const& x) { return V(max(x, 1)); }, distinct},
    {"max", "of a formula", {{3, 4}, {4}}, [](V const& x, V const& row) { return V(max(x * row + 1, -1, keepdim)); }, distinct},
    {"min", "", {{2, 3, 4}}, [](V const& x) { return V(min(x)); }, distinct},
    {"var", "", {{2, 3, 4}}, [](V const& x) { return V(var(x, {1, 2})); }},
    {"var", "of a formula", {{3, 4}, {4}}, [](V const& x, V const& row) { return V(var(x * row + 1, {.correction = 2.5})); }, twice},
    {"stddev", "", {{2, 3, 4}}, [](V const& x) { return V(stddev(x, 2, {.correction = 0}, keepdim)); }, distinct},
    {"stddev", "of a formula", {{3, 4}, {4}}, [](V const& x, V const& row) { return V(stddev(x * row + 1)); }, twice},
    {"logsumexp", "", {{2, 3, 4}}, [](V const& x) { return V(logsumexp(x, 1)); }},
    {"logsumexp", "of a formula", {{3, 4}, {4}}, [](V const& x, V const& row) { return V(logsumexp(x * row, {0, 1}, keepdim)); }, twice},
    {"norm", "", {{2, 3, 4}}, [](V const& x) { return V(norm(x, {0, 1})); }, plain, -2, 2},
    {"norm", "1", {{2, 3, 4}}, [](V const& x) { return V(norm(x, 1, {.p = 1})); }, plain, -2, 2},
    {"norm", "1/2", {{2, 3, 4}}, [](V const& x) { return V(norm(x, 1, {.p = 0.5})); }, plain, -2, 2},
    {"norm", "3/2", {{2, 3, 4}}, [](V const& x) { return V(norm(x, 1, {.p = 1.5})); }, plain, -2, 2},
    {"norm", "3, of a formula", {{3, 4}, {4}}, [](V const& x, V const& row) { return V(norm(x * row, 0, {.p = 3}, keepdim)); }, plain, -2, 2},
    {"norm", "of the largest", {{2, 3, 4}}, [](V const& x) { return V(norm(x, 1, {.p = infinity})); }, distinct, -2, 2},
    {"norm", "of the smallest", {{2, 3, 4}}, [](V const& x) { return V(norm(x, 1, {.p = -infinity})); }, distinct, -2, 2},

    {"softmax", "first axis", {{2, 3, 4}}, [](V const& x) { return V(softmax(x, 0) * weights()); }},
    {"softmax", "inner axis", {{2, 3, 4}}, [](V const& x) { return V(softmax(x, 1) * weights()); }, twice},
    {"softmax", "last axis", {{2, 3, 4}}, [](V const& x) { return V(softmax(x, -1) * weights()); }, twice},
    {"softmax", "of a formula", {{3, 4}, {4}}, [](V const& x, V const& row) { return V(softmax(x * row + x, 0)); }},
    {"log_softmax", "first axis", {{2, 3, 4}}, [](V const& x) { return V(log_softmax(x, 0) * weights()); }},
    {"log_softmax", "inner axis", {{2, 3, 4}}, [](V const& x) { return V(log_softmax(x, 1) * weights()); }, twice},
    {"log_softmax", "last axis", {{2, 3, 4}}, [](V const& x) { return V(log_softmax(x, -1) * weights()); }, twice},
    {"log_softmax", "of a formula", {{3, 4}, {4}}, [](V const& x, V const& row) { return V(log_softmax(x * row + x, 1)); }},
    {"layer_norm", "", {{2, 3, 4}}, [](V const& x) { return V(layer_norm(x, {4}, 0.1) * weights()); }, twice},
    {"layer_norm", "weight", {{2, 3, 4}, {4}}, [](V const& x, V const& w) { return V(layer_norm(x, {4}, w, 0.1) * x); }},
    {"layer_norm", "weight and bias", {{2, 3, 4}, {4}, {4}}, [](V const& x, V const& w, V const& b) { return V(layer_norm(x, {4}, w, b, 0.1) * x); }, twice},
    {"layer_norm", "of a formula, two axes", {{2, 3, 4}}, [](V const& x) { return V(layer_norm(x * 2 + 1, {3, 4}, 0.1) * x); }},
    {"layer_norm", "outer axes", {{2, 3, 4}, {2, 4}}, [](V const& x, V const& w) { return V(layer_norm(x, normalized_axes{{0, 2}}, w, 0.1) * x); }},
    {"layer_norm", "of a constant", {{4}, {4}}, [](V const& w, V const& b) { return V(layer_norm(weights(), {4}, w, b)); }},
    {"rms_norm", "inner axis", {{2, 3, 4}}, [](V const& x) { return V(rms_norm(x, normalized_axes{{1}}, 0.1) * x); }},
    {"rms_norm", "weight", {{2, 3, 4}, {4}}, [](V const& x, V const& w) { return V(rms_norm(x, {4}, w, 0.1) * x); }, twice},

    {"cumsum", "first axis", {{2, 3, 4}}, [](V const& x) { return V(cumsum(x, 0) * weights()); }},
    {"cumsum", "last axis, of a formula", {{3, 4}, {4}}, [](V const& x, V const& row) { return V(cumsum(x * row, 1)); }},
    {"cumsum", "inner axis", {{2, 3, 4}}, [](V const& x) { return V(cumsum(x, 1) * weights()); }},
    {"cumprod", "last axis", {{2, 3, 4}}, [](V const& x) { return V(cumprod(x, -1) * weights()); }, plain, -2, 2},
    {"cumprod", "inner axis", {{2, 3, 4}}, [](V const& x) { return V(cumprod(x, 1) * weights()); }, plain, -2, 2},
    {"cumprod", "first axis, of a formula", {{3, 4}, {4}}, [](V const& x, V const& row) { return V(cumprod(x + row, 0)); }, plain, -2, 2},
    {"sort", "values, descending", {{2, 3, 4}}, [](V const& x) { return V(sort(x, 1, descending).values * weights()); }, distinct},
    {"sort", "last axis", {{2, 3, 4}}, [](V const& x) { return V(sort(x).values * weights()); }, distinct},
    {"sort_values", "of a formula", {{2, 3, 4}}, [](V const& x) { return V(sort_values(x + 2, 0) * weights()); }, distinct},
    {"topk", "values", {{2, 3, 4}}, [](V const& x) { return V(topk(x, 2, 1).values * x(all(), range(0, 2))); }, distinct},
};

}  // namespace

TEST_CASE("reductions, rows, scans and sorting have the gradients of finite differences, in every layout") { check_gradients(rows); }
