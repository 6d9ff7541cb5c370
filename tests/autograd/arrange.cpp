/// Joining, cutting, arranging: gradients against finite differences, by one table of operations and layouts.
#include <doctest/doctest.h>

#include <situ/autograd/arrange.hpp>
#include <situ/autograd/concat.hpp>
#include <situ/autograd/gradcheck.hpp>
#include <situ/device/emulated/device.hpp>
#include <support/compare.hpp>

using namespace situ;

namespace {

using V = Variable<double>;
using Row = std::vector<double>;
using Function = V (*)(V const&);

V numbers(Shape const& shape) { return V(Tensor<double>(sin(arange<double>(detail::product(shape)) + 1)).reshape(shape)); }

/// Variables of shape [3, 4] in several layouts.
std::vector<V> layouts() {
  return {numbers({3, 4}), V(numbers({4, 3}).value().t()), V(numbers({6, 9}).value()(range(0, 6, 2), range(0, 8, 2))), V(numbers({3, 4}).value().flip(1)),
          V(numbers({4}).value().expand({3, 4}))};
}

struct Entry {
  char const* name;
  Function f;
};
Entry const table[] = {
    {"concat", [](V const& x) { return concat({x, V(x * 2), x}, 1); }},
    {"concat of formulas and constants", [](V const& x) { return concat(0, x, x * x, ones<double>({1, 4}), Tensor<double>(), tanh(x)); }},
    {"stack", [](V const& x) { return stack({x, V(exp(x))}, 1); }},
    {"stack of formulas and constants", [](V const& x) { return stack(-1, x * x, zeros<double>({3, 4}), x); }},
    {"split", [](V const& x) { auto const p = split(x, {1, 0, 3}, 1); return V(sum(p[0] * p[2], 1)); }},
    {"split by size", [](V const& x) { auto const p = split(x * x, 2); return V(sum(p[0], 0) * p[1][0]); }},
    {"chunk", [](V const& x) { auto const p = chunk(x, 2, 1); return V(p[0] * p[1] + p[0]); }},
    {"concat of a split", [](V const& x) { return concat(split(x, 1)); }},
    {"tile", [](V const& x) { return tile(x, {2, 3}); }},
    {"tile along fewer axes", [](V const& x) { return tile(x * 2, 3); }},
    {"tile along more axes", [](V const& x) { return tile(x, {2, 1, 3, 1}); }},
    {"tile to nothing", [](V const& x) { return V(sum(tile(x, {0, 1})) + sum(x)); }},
    {"repeat", [](V const& x) { return repeat(x, 3, 0); }},
    {"repeat a formula", [](V const& x) { return repeat(x * x, 2, -1); }},
    {"repeat elements", [](V const& x) { return V(repeat(x, 2)); }},
    {"flip", [](V const& x) { return V(flip(x, 1)); }},
    {"flip all", [](V const& x) { return V(flip(x) * x); }},
    {"flip a formula", [](V const& x) { return flip(x * x, {0, 1}); }},
    {"roll", [](V const& x) { return roll(x, {1, -1}, {0, 1}); }},
    {"roll in a row", [](V const& x) { return roll(x * x, 5); }},
    {"pad", [](V const& x) { return pad(x, {1, 2, 0, 1}, 7); }},
    {"pad and cut", [](V const& x) { return pad(x * x, {-1, 2, 1, -1}); }},
    {"pad reflect", [](V const& x) { return pad(x, {2, 1, 1, 2}, pad_mode::reflect); }},
    {"pad replicate", [](V const& x) { return pad(x * x, {2, 3, 1, 0}, pad_mode::replicate); }},
    {"pad circular", [](V const& x) { return pad(x, {3, 1, 2, -1}, pad_mode::circular); }},
    {"triu", [](V const& x) { return V(triu(x * x, 1)); }},
    {"tril", [](V const& x) { return V(tril(x, -1) * x); }},
    {"trace", [](V const& x) { return trace(x); }},
    {"trace of a formula", [](V const& x) { return trace(x * x, 1); }},
    {"diag", [](V const& x) { return diag(x, -1); }},
    {"diag of a formula", [](V const& x) { return diag(x * x, 1); }},
    {"diag of a row", [](V const& x) { return diag(x[1], 1); }},
    {"meshgrid", [](V const& x) { auto const g = meshgrid({V(x[0]), V(x[1](range(0, 2)))}, indexing::xy); return V(g[0] * g[1]); }},
};

}  // namespace

TEST_CASE("arrangements have the gradients of finite differences, whatever the layout") {
  for (Entry const& entry : table) {
    INFO(entry.name);
    for (V const& x : layouts()) CHECK(gradcheck(entry.f, x));
  }
}

TEST_CASE("arrangements have second derivatives") {
  for (Entry const& entry : table) {
    if (std::string(entry.name).find("pad re") == 0 || std::string(entry.name) == "pad circular") continue;
    INFO(entry.name);
    CHECK(gradgradcheck(entry.f, numbers({3, 4})));
  }
}

TEST_CASE("gradients of joined parts are slices, and parts that are cut add in place") {
  V const x = numbers({1000}), y = numbers({1000});
  concat({x, y}).backward(arange<double>(2000));
  CHECK(x.grad().item(999) == 999);
  CHECK(y.grad().item(0) == 1000);
  V const z = numbers({1000});
  auto const parts = split(z * 2, 10);
  V total(Tensor<double>(zeros<double>({10})), false);
  for (V const& part : parts) total += part * part;
  sum(total).backward();
  CHECK(situ_test::difference(z.grad().to_vector(), Tensor<double>(8 * z.value()).to_vector(), 1) == "");
}

TEST_CASE("names are those of PyTorch, constants stay constants, and errors are those of tensors") {
  V const x = numbers({2, 2});
  CHECK(std::string(concat({x, x}).grad_fn()) == "Cat");
  CHECK(std::string(stack(x, x).grad_fn()) == "Stack");
  CHECK(std::string(tile(x, {1, 2}).grad_fn()) == "Repeat");
  CHECK(std::string(split(x, 1)[0].grad_fn()) == "Split");
  {
    no_grad const guard;
    CHECK(!concat({x, x}).requires_grad());
    CHECK(!concat(0, x, x * 2).requires_grad());
    CHECK(!split(x, 1)[0].requires_grad());
  }
  CHECK(situ_test::thrown<ShapeError>([&] { concat({x, numbers({3, 3})}); }, "concat: shapes [2, 2] and [3, 3] cannot be joined along axis 0: 2 != 3 in dimension 1") == "");
  CHECK(situ_test::thrown<ShapeError>([&] { tile(x, {-1, 1}); }, "tile: -1 repetitions were asked for along axis 0; counts are 0 or more") == "");
}

TEST_CASE("arrangements on a device of its own memory") {
  using D = Emulated<0>;
  Variable<float, D> const x(Tensor<float>{{1.f, 2.f}, {3.f, 4.f}}.to(D{}));
  auto const y = concat(1, x, x * x, tile(x, {1, 2}));
  sum(pad(y, {1, 1}, pad_mode::replicate) * 2).backward();
  CHECK(x.grad().to_vector() == std::vector<float>{2 * (2 + 2 + 2), 2 * (1 + 4 + 3), 2 * (2 + 6 + 2), 2 * (1 + 8 + 3)});
}
