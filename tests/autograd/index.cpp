/// Picking elements: gradients against finite differences, by one table of operations and layouts.
#include <doctest/doctest.h>

#include <situ/autograd/gradcheck.hpp>
#include <situ/autograd/index.hpp>
#include <situ/device/emulated/device.hpp>
#include <situ/ops/random.hpp>
#include <support/compare.hpp>

using namespace situ;

namespace {

using V = Variable<double>;
using Row = std::vector<double>;
using Function = V (*)(V const&);

V numbers(Shape const& shape) { return V(Tensor<double>(sin(arange<double>(detail::product(shape)) + 1)).reshape(shape)); }
std::vector<V> layouts() {
  return {numbers({3, 4}), V(numbers({4, 3}).value().t()), V(numbers({6, 9}).value()(range(0, 6, 2), range(0, 8, 2))), V(numbers({3, 4}).value().flip(1)),
          V(numbers({4}).value().expand({3, 4}))};
}
Tensor<int64_t> places() { return Tensor<int64_t>{{0, 2, 2, -1}, {1, 1, 0, 0}}; }
Tensor<int64_t> once() { return Tensor<int64_t>{{0, 2, 1, -1}, {1, 0, 2, 0}}; }
Tensor<bool> mask() { return Tensor<bool>{{true, false, true, true}, {false, false, true, false}, {true, false, false, false}}; }

struct Entry {
  char const* name;
  Function f;
};
Entry const table[] = {
    {"gather", [](V const& x) { return gather(x, 0, places()); }},
    {"gather a formula", [](V const& x) { return gather(x * x, 1, places()); }},
    {"gather twice", [](V const& x) { return gather(gather(x, 1, places()), 0, Tensor<int32_t>{{1, 0}, {1, 1}, {1, 0}}); }},
    {"take", [](V const& x) { return take(x, Tensor<int64_t>{{0, 5}, {5, -1}}); }},
    {"index_select rows", [](V const& x) { return index_select(x, 0, Tensor<int64_t>{2, 0, 2, 2}); }},
    {"index_select columns", [](V const& x) { return index_select(x * x, -1, Tensor<int32_t>{3, 3, 1}); }},
    {"index_select nothing", [](V const& x) { return V(sum(index_select(x, 0, zeros<int64_t>({0}))) + sum(x)); }},
    {"repeat by counts", [](V const& x) { return repeat(x, {2, 0, 3}, 0); }},
    {"scatter", [](V const& x) { return scatter(x, 0, once(), x * 3); }},
    {"scatter a number", [](V const& x) { return scatter(x * x, 0, places(), 5); }},
    {"scatter into a constant", [](V const& x) { return scatter(ones<double>({3, 4}), 0, once(), x); }},
    {"scatter a constant", [](V const& x) { return scatter(x, 0, once(), ones<double>({2, 4})); }},
    {"scatter_add", [](V const& x) { return scatter_add(x, 0, places(), x * x); }},
    {"scatter_add a number", [](V const& x) { return V(scatter_add(x * x, 1, places()(all(), range(0, 2)), 5) * x); }},
    {"scatter_add into a constant", [](V const& x) { return scatter_add(ones<double>({5, 4}), 0, places(), x); }},
    {"masked_fill", [](V const& x) { return V(masked_fill(x * x, mask(), 2)); }},
    {"masked_select", [](V const& x) { return masked_select(x, mask()); }},
    {"masked_select a formula", [](V const& x) { return masked_select(x * x, mask()[0]); }},
    {"masked_select of broadcast rows", [](V const& x) { return masked_select(x[1] * 2, mask()); }},
    {"masked_select by comparison", [](V const& x) { return masked_select(x, x > 0.1); }},
};

}  // namespace

TEST_CASE("picked elements have the gradients of finite differences, whatever the layout") {
  for (Entry const& entry : table) {
    INFO(entry.name);
    for (V const& x : layouts()) CHECK(gradcheck(entry.f, x));
  }
}

TEST_CASE("picked elements have second derivatives") {
  for (Entry const& entry : table) {
    INFO(entry.name);
    CHECK(gradgradcheck([&](V const& x) { return V(entry.f(x * x) * 0.5); }, numbers({3, 4})));
  }
}

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
