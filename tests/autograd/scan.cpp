/// Derivatives of scans, sorts and dropout, by hand. gradcheck_sums.cpp has the finite differences.
#include <doctest/doctest.h>

#include <situ/autograd/backward.hpp>
#include <situ/autograd/random.hpp>
#include <situ/autograd/scan.hpp>
#include <situ/autograd/sort.hpp>
#include <situ/ops/random.hpp>
#include <support/compare.hpp>
#include <support/devices.hpp>

using namespace situ;

TEST_CASE_TEMPLATE("running products have the right gradient beside zeros", D, Cpu, Emulated<0>) {
  // torch.cumprod(x, 1).backward(g) of PyTorch 1.13
  Variable x{Tensor<float, D>{{2, 0, 3, 4}, {2, 0, 3, 0}, {0, 1, 2, 3}}};
  cumprod(x, 1).backward(Tensor<float, D>{{1, 2, 3, 4}, {1, 2, 3, 4}, {1, 2, 3, 4}});
  CHECK(x.grad().to_vector() == std::vector<float>{1, 118, 0, 0, 1, 22, 0, 0, 33, 0, 0, 0});
  CHECK(std::string(cumprod(x, 0).grad_fn()) == "Cumprod");
  Variable y{Tensor<float, D>{{1, 2}, {3, 4}}};
  cumsum(y, 0).backward(Tensor<float, D>{{1, 10}, {100, 1000}});
  CHECK(y.grad().to_vector() == std::vector<float>{101, 1010, 100, 1000});
}

TEST_CASE("gradients of sort and topk go where the values stood") {
  Variable x{Tensor<float>{{3, 1, 2}, {5, 5, 4}}};
  auto const [values, indices] = topk(x, 1);
  CHECK(indices.to_vector() == std::vector<int64_t>{0, 0});
  sum(values).backward();
  CHECK(x.grad().to_vector() == std::vector<float>{1, 0, 0, 1, 0, 0});
  CHECK(argsort(x * 2, 1).to_vector() == std::vector<int64_t>{1, 2, 0, 2, 0, 1});
  static_assert(std::is_same_v<decltype(argsort(x)), Tensor<int64_t>>);
  Variable one{full<float>({}, 3.f)};
  sort(one).values.backward();
  CHECK(one.grad().item() == 1);
}

TEST_CASE_TEMPLATE("dropout's gradient is dropped in the same places", D, Cpu, Emulated<0>) {
  Generator generator(3), same(3);
  Variable x{full<float>({70, 30}, 2.f, D{})};
  Variable<float, D> y = dropout(x, 0.25, generator);
  auto const mask = dropout(ones<float>({70, 30}, D{}), 0.25, same).to_vector();
  (y * y).value();
  y.backward(full<float>({70, 30}, 3.f, D{}));
  auto const got = x.grad().to_vector();
  bool kept = true;
  for (std::size_t k = 0; k < got.size(); ++k) kept = kept && got[k] == 3 * mask[k];
  CHECK(kept);
  // Of a formula, with a broadcast gradient.
  Variable a{full<float>({8, 4}, 1.f, D{})};
  Generator third(3), fourth(3);
  sum(dropout(a * 2, 0.5, third)).backward();
  auto const coins = dropout(ones<float>({8, 4}, D{}), 0.5, fourth).to_vector();
  auto const slopes = a.grad().to_vector();
  for (std::size_t k = 0; k < slopes.size(); ++k) CHECK(slopes[k] == 2 * coins[k]);
  a.zero_grad();
  sum(dropout(a, 1.0)).backward();
  CHECK(a.grad().to_vector() == std::vector<float>(32, 0.f));
  a.zero_grad();
  sum(dropout(a, 0.5, false)).backward();
  CHECK(a.grad().to_vector() == std::vector<float>(32, 1.f));
  CHECK(situ_test::thrown<ShapeError>([&] { dropout(a, 2.0); }, "dropout: the probability is 2; it must be in [0, 1]") == "");
  static_assert(std::is_same_v<decltype(bernoulli(a)), Tensor<float, D>>);
}

TEST_CASE("a running sum or product of one number has the gradient of that number") {
  Variable x{full({}, 3.f)};
  cumsum(x * x, 0).backward();
  CHECK(x.grad().item() == 6);
  cumprod(x * x, -1).backward();
  CHECK(x.grad().item() == 12);
  auto const slope = grad(cumprod(x * x * x, 0), x, create_graph);
  CHECK(grad(slope, x).item() == 18);
}
