/// Picking elements: gradients of copies, and indices that are checked. gradcheck_arrange.cpp has the finite differences.
#include <doctest/doctest.h>

#include <situ/autograd/index.hpp>
#include <situ/device/emulated/device.hpp>
#include <situ/ops/random.hpp>
#include <support/compare.hpp>

using namespace situ;

namespace {

using V = Variable<double>;

V numbers(Shape const& shape) { return V(Tensor<double>(sin(arange<double>(detail::product(shape)) + 1)).reshape(shape)); }

}  // namespace

TEST_CASE("gradients of copies are added, the same from run to run") {
  Variable<float> const table_(randn({50, 16}));
  auto const index = randint(0, 50, {10000});
  auto const weights = randn({10000, 16});
  sum(index_select(table_, 0, index) * weights).backward();
  auto const first = table_.grad().to_vector();
  std::vector<double> expected(50 * 16);
  for (int64_t j = 0; j < 10000; ++j) {
    for (int64_t k = 0; k < 16; ++k) expected[static_cast<std::size_t>(index(j) * 16 + k)] += static_cast<double>(weights(j, k));
  }
  for (std::size_t k = 0; k < expected.size(); ++k) CHECK(std::abs(expected[k] - static_cast<double>(first[k])) < 1e-3);
  Variable<float> const again(table_.value());
  sum(index_select(again, 0, index) * weights).backward();
  CHECK(again.grad().to_vector() == first);
}

TEST_CASE("indices that a backward needs are checked, and names are those of PyTorch") {
  V const x = numbers({3, 4});
  Tensor<int64_t> index{0, 1};
  V const y = index_select(x, 0, index);
  CHECK(std::string(y.grad_fn()) == "IndexSelect");
  index += 1;
  CHECK(situ_test::thrown<GradientError>([&] { sum(y).backward(); },
                                         "backward: IndexSelect needs a tensor of shape [2] as it was when it was recorded, but operator+= has written to it in place since; "
                                         "write to a clone() of it, or after the backward") == "");
  CHECK_THROWS_AS(gather(x, 0, Tensor<int64_t>{{7, 0}}), IndexError);
}

TEST_CASE("picking on a device of its own memory") {
  using D = Emulated<0>;
  Variable<float, D> x(Tensor<float>{{1.f, 2.f}, {3.f, 4.f}}.to(D{}));
  auto const index = Tensor<int64_t>{1, 1, 0}.to(D{});
  sum(index_select(x, 0, index) * 2).backward();
  CHECK(x.grad().to_vector() == std::vector<float>{2, 2, 4, 4});
  x.zero_grad();
  sum(masked_select(x, x > 1.5f)).backward();
  CHECK(x.grad().to_vector() == std::vector<float>{0, 1, 1, 1});
}
