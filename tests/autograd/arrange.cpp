/// Joining, cutting, arranging: what gradients are made of, names and errors. gradcheck_arrange.cpp has the finite differences.
#include <doctest/doctest.h>

#include <situ/autograd/arrange.hpp>
#include <situ/autograd/concat.hpp>
#include <situ/device/emulated/device.hpp>
#include <support/compare.hpp>

using namespace situ;

namespace {

using V = Variable<double>;

V numbers(Shape const& shape) { return V(Tensor<double>(sin(arange<double>(detail::product(shape)) + 1)).reshape(shape)); }

}  // namespace

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
