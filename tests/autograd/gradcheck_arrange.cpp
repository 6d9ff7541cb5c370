/// The table's operations that arrange elements and pick them.
#include <doctest/doctest.h>

#include <autograd/gradcheck_table.hpp>

using namespace situ;
using namespace situ_test;

namespace {

Tensor<int64_t> places() { return Tensor<int64_t>{{0, 2, 2, -1}, {1, 1, 0, 0}}; }
Tensor<int64_t> once() { return Tensor<int64_t>{{0, 2, 1, -1}, {1, 0, 2, 0}}; }
Tensor<bool> mask() { return Tensor<bool>{{true, false, true, true}, {false, false, true, false}, {true, false, false, false}}; }

Rows const rows{
    {"concat", "of formulas", {{3, 4}}, [](V const& x) { return concat({x * 2, x * 3}, 1); }, twice},
    {"concat", "", {{3, 4}}, [](V const& x) { return concat({x, V(x * 2), x}, 1); }, twice},
    {"concat", "of formulas and constants", {{3, 4}}, [](V const& x) { return concat(0, x, x * x, ones<double>({1, 4}), Tensor<double>(), tanh(x)); }, twice},
    {"stack", "", {{3, 4}}, [](V const& x) { return stack({x, V(exp(x))}, 1); }, twice},
    {"stack", "of a list of formulas", {{3, 4}}, [](V const& x) { return stack({x * 2, x * 3}); }, twice},
    {"stack", "of formulas and constants", {{3, 4}}, [](V const& x) { return stack(-1, x * x, zeros<double>({3, 4}), x); }, twice},
    {"split", "", {{3, 4}}, [](V const& x) { auto const p = split(x, {1, 0, 3}, 1); return V(sum(p[0] * p[2], 1)); }, twice},
    {"split", "by size", {{3, 4}}, [](V const& x) { auto const p = split(x * x, 2); return V(sum(p[0], 0) * p[1][0]); }, twice},
    {"chunk", "", {{3, 4}}, [](V const& x) { auto const p = chunk(x, 2, 1); return V(p[0] * p[1] + p[0]); }, twice},
    {"concat", "of a split", {{3, 4}}, [](V const& x) { return concat(split(x, 1)); }, twice},
    {"tile", "", {{3, 4}}, [](V const& x) { return tile(x, {2, 3}); }, twice},
    {"tile", "along fewer axes", {{3, 4}}, [](V const& x) { return tile(x * 2, 3); }, twice},
    {"tile", "along more axes", {{3, 4}}, [](V const& x) { return tile(x, {2, 1, 3, 1}); }, twice},
    {"tile", "to nothing", {{3, 4}}, [](V const& x) { return V(sum(tile(x, {0, 1})) + sum(x)); }, twice},
    {"repeat", "", {{3, 4}}, [](V const& x) { return repeat(x, 3, 0); }, twice},
    {"repeat", "a formula", {{3, 4}}, [](V const& x) { return repeat(x * x, 2, -1); }, twice},
    {"repeat", "elements", {{3, 4}}, [](V const& x) { return V(repeat(x, 2)); }, twice},
    {"flip", "", {{3, 4}}, [](V const& x) { return V(flip(x, 1)); }, twice},
    {"flip", "all", {{3, 4}}, [](V const& x) { return V(flip(x) * x); }, twice},
    {"flip", "a formula", {{3, 4}}, [](V const& x) { return flip(x * x, {0, 1}); }, twice},
    {"roll", "", {{3, 4}}, [](V const& x) { return roll(x, {1, -1}, {0, 1}); }, twice},
    {"roll", "in a row", {{3, 4}}, [](V const& x) { return roll(x * x, 5); }, twice},
    {"pad", "", {{3, 4}}, [](V const& x) { return pad(x, {1, 2, 0, 1}, 7); }, twice},
    {"pad", "and cut", {{3, 4}}, [](V const& x) { return pad(x * x, {-1, 2, 1, -1}); }, twice},
    {"pad", "reflect", {{3, 4}}, [](V const& x) { return pad(x, {2, 1, 1, 2}, pad_mode::reflect); }, plain},
    {"pad", "replicate", {{3, 4}}, [](V const& x) { return pad(x * x, {2, 3, 1, 0}, pad_mode::replicate); }, plain},
    {"pad", "circular", {{3, 4}}, [](V const& x) { return pad(x, {3, 1, 2, -1}, pad_mode::circular); }, plain},
    {"triu", "", {{3, 4}}, [](V const& x) { return V(triu(x * x, 1)); }, twice},
    {"tril", "", {{3, 4}}, [](V const& x) { return V(tril(x, -1) * x); }, twice},
    {"trace", "", {{3, 4}}, [](V const& x) { return trace(x); }, twice},
    {"trace", "of a formula", {{3, 4}}, [](V const& x) { return trace(x * x, 1); }, twice},
    {"diag", "", {{3, 4}}, [](V const& x) { return diag(x, -1); }, twice},
    {"diag", "of a formula", {{3, 4}}, [](V const& x) { return diag(x * x, 1); }, twice},
    {"diag", "of a row", {{3, 4}}, [](V const& x) { return diag(x[1], 1); }, twice},
    {"meshgrid", "", {{3, 4}}, [](V const& x) { auto const g = meshgrid({V(x[0]), V(x[1](range(0, 2)))}, indexing::xy); return V(g[0] * g[1]); }, twice},
    {"gather", "", {{3, 4}}, [](V const& x) { return gather(x, 0, places()); }, twice},
    {"gather", "a formula", {{3, 4}}, [](V const& x) { return gather(x * x, 1, places()); }, twice},
    {"gather", "twice", {{3, 4}}, [](V const& x) { return gather(gather(x, 1, places()), 0, Tensor<int32_t>{{1, 0}, {1, 1}, {1, 0}}); }, twice},
    {"take", "", {{3, 4}}, [](V const& x) { return take(x, Tensor<int64_t>{{0, 5}, {5, -1}}); }, twice},
    {"take", "along an axis", {{3, 4}}, [](V const& x) { return take(x * x, Tensor<int64_t>{3, 3, 1}, 1); }, twice},
    {"index_select", "rows", {{3, 4}}, [](V const& x) { return index_select(x, 0, Tensor<int64_t>{2, 0, 2, 2}); }, twice},
    {"index_select", "columns", {{3, 4}}, [](V const& x) { return index_select(x * x, -1, Tensor<int32_t>{3, 3, 1}); }, twice},
    {"index_select", "nothing", {{3, 4}}, [](V const& x) { return V(sum(index_select(x, 0, zeros<int64_t>({0}))) + sum(x)); }, twice},
    {"repeat", "by counts", {{3, 4}}, [](V const& x) { return repeat(x, {2, 0, 3}, 0); }, twice},
    {"scatter", "", {{3, 4}}, [](V const& x) { return scatter(x, 0, once(), x * 3); }, twice},
    {"scatter", "a number", {{3, 4}}, [](V const& x) { return scatter(x * x, 0, places(), 5); }, twice},
    {"scatter", "into a constant", {{3, 4}}, [](V const& x) { return scatter(ones<double>({3, 4}), 0, once(), x); }, twice},
    {"scatter", "a constant", {{3, 4}}, [](V const& x) { return scatter(x, 0, once(), ones<double>({2, 4})); }, twice},
    {"scatter_add", "", {{3, 4}}, [](V const& x) { return scatter_add(x, 0, places(), x * x); }, twice},
    {"scatter_add", "a number", {{3, 4}}, [](V const& x) { return V(scatter_add(x * x, 1, places()(all(), range(0, 2)), 5) * x); }, twice},
    {"scatter_add", "into a constant", {{3, 4}}, [](V const& x) { return scatter_add(ones<double>({5, 4}), 0, places(), x); }, twice},
    {"masked_fill", "", {{3, 4}}, [](V const& x) { return V(masked_fill(x * x, mask(), 2)); }, twice},
    {"masked_select", "", {{3, 4}}, [](V const& x) { return masked_select(x, mask()); }, twice},
    {"masked_select", "a formula", {{3, 4}}, [](V const& x) { return masked_select(x * x, mask()[0]); }, twice},
    {"masked_select", "of broadcast rows", {{3, 4}}, [](V const& x) { return masked_select(x[1] * 2, mask()); }, twice},
    {"masked_select", "by comparison", {{3, 4}}, [](V const& x) { return masked_select(x, x > 0.1); }, twice},
    {"slicing", "read", {{3, 4}}, [](V const& x) { return V(x(range(0, 3, 2), all()) * x[1]); }, twice},
    {"slicing", "steps, flipped", {{3, 4}}, [](V const& x) { return V(x.slice(1, 1, 4, 2).flip(0) * x.t()[0].unsqueeze(1)); }, twice},
    {"slicing", "select, expand, reshape", {{3, 4}}, [](V const& x) { return V(x.select(1, 2).unsqueeze(1).expand({3, 4}).reshape({2, 6}) * x.reshape({2, 6})); }, twice},
    {"slicing", "flatten", {{3, 4}}, [](V const& x) { return V(x.reshape({3, 2, 2}).flatten(0, 1) * x.t().reshape({2, 3, 2}).flatten(0, -2)); }, twice},
    {"slicing", "written", {{3, 4}, {4}}, [](V const& x, V const& row) { V y(x * 2); y[1] = row * row; return V(y * y); }, plain},
    {"slicing", "written, every other", {{3, 4}, {3, 2}}, [](V const& x, V const& part) { V y(x * x); y(all(), range(0, 4, 2)) = part; return V(y * x); }, plain},
};

}  // namespace

TEST_CASE("operations that arrange and pick have the gradients of finite differences, in every layout") { check_gradients(rows); }
