/// Derivatives of reductions where there are ties, zeros and infinities, as PyTorch 1.13 has them. gradcheck_sums.cpp has the finite differences.
#include <doctest/doctest.h>

#include <cmath>
#include <situ/autograd/backward.hpp>
#include <situ/autograd/reduce.hpp>
#include <support/compare.hpp>
#include <support/devices.hpp>

using namespace situ;

namespace {

std::vector<double> near(std::vector<double> values) {
  for (double& v : values) v = std::round(v * 1e4) / 1e4 + 0.0;
  return values;
}

}  // namespace

TEST_CASE("extrema share their gradient among equals") {
  Variable x{Tensor<float>{{1, 5, 5}, {2, 2, 0}}};
  sum(max(x, 1) * Tensor<float>{4, 6}).backward();
  CHECK(x.grad().to_vector() == std::vector<float>{0, 2, 2, 3, 3, 0});
  x.zero_grad();
  max(x).backward();
  CHECK(x.grad().to_vector() == std::vector<float>{0, 0.5f, 0.5f, 0, 0, 0});
  Variable y{Tensor<float>{1, static_cast<float>(NAN), static_cast<float>(NAN), 3}};
  min(y * 2).backward();
  CHECK(y.grad().to_vector() == std::vector<float>{0, 1, 1, 0});
  Variable z{Tensor<float>{-3, 1, 3}};
  norm(z, {.p = INFINITY}).backward();
  CHECK(z.grad().to_vector() == std::vector<float>{-0.5f, 0, 0.5f});
}

TEST_CASE_TEMPLATE("a product's gradient is right beside zeros", D, Cpu, Emulated<0>) {
  // torch.prod(x, 1).backward(torch.tensor([1., 10., 100.])) of PyTorch 1.13
  Variable x{Tensor<float, D>{{2, 3, 4}, {0, 3, 4}, {0, 3, 0}}};
  prod(x, 1).backward(Tensor<float, D>{1, 10, 100});
  CHECK(x.grad().to_vector() == std::vector<float>{12, 8, 6, 120, 0, 0, 0, 0, 0});
  Variable none{Tensor<float, D>{2, 0, 5}};
  prod(none * 1).backward();
  CHECK(none.grad().to_vector() == std::vector<float>{0, 10, 0});
}

TEST_CASE("norms have the gradient 0 at 0") {
  for (double p : {0.0, 0.5, 1.0, 1.5, 2.0, 3.0}) {
    CAPTURE(p);
    Variable x{zeros<double>({3})};
    norm(x, {.p = p}).backward();
    CHECK(x.grad().to_vector() == std::vector<double>{0, 0, 0});
    Variable y{Tensor<double>{0, -2}};
    norm(y, {.p = p}).backward();
    CHECK(near(y.grad().to_vector()) == std::vector<double>{0, p == 0 ? 0.0 : -1.0});
  }
  Variable x{zeros<double>({3})};
  norm(x).backward();
  CHECK(x.grad().to_vector() == std::vector<double>{0, 0, 0});
  Variable same{ones<double>({3})};
  stddev(same).backward();
  CHECK(same.grad().to_vector() == std::vector<double>{0, 0, 0});
}

TEST_CASE("gradients of reductions are those of PyTorch 1.13") {
  // x = torch.tensor([[0.5, -1., 2.], [3., 0.25, -0.75]], dtype=torch.float64, requires_grad=True)
  Tensor<double> const values{{0.5, -1, 2}, {3, 0.25, -0.75}};
  auto const gradient = [&](auto const& f) {
    Variable x{values};
    sum(f(x) * Tensor<double>{1, 2}).backward();
    return near(x.grad().to_vector());
  };
  CHECK(gradient([](auto const& x) { return stddev(x, 1); }) == std::vector<double>{0, -0.5, 0.5, 1.1158, -0.3004, -0.8154});
  CHECK(gradient([](auto const& x) { return logsumexp(x, 1); }) == std::vector<double>{0.1753, 0.0391, 0.7856, 1.8392, 0.1176, 0.0433});
  CHECK(gradient([](auto const& x) { return norm(x, 1, {.p = 3}); }) == std::vector<double>{0.0573, -0.229, 0.916, 1.9787, 0.0137, -0.1237});
  CHECK(gradient([](auto const& x) { return norm(x, 1, {.p = 0.5}); }) == std::vector<double>{4.4142, -3.1213, 2.2071, 3.5774, 12.3923, -7.1547});
}

TEST_CASE("a slice of -inf gives logsumexp the gradient 0") {
  double const inf = std::numeric_limits<double>::infinity();
  Variable x{Tensor<double>{{-inf, -inf}, {0, -inf}}};
  sum(logsumexp(x, 1)).backward();
  CHECK(x.grad().to_vector() == std::vector<double>{0, 0, 1, 0});
}

TEST_CASE("what finds or counts gives Tensors") {
  Variable x{Tensor<float>{{1, 0}, {3, 2}}};
  CHECK(argmax(x, 1).to_vector() == std::vector<int64_t>{0, 0});
  CHECK(argmin(x * 2, {0}, keepdim).to_vector() == std::vector<int64_t>{0, 0});
  CHECK(argmin(x).item() == 1);
  CHECK(any(x > 2).item());
  CHECK(!all(x).item());
  CHECK(count_nonzero(x, 0).to_vector() == std::vector<int64_t>{2, 1});
  static_assert(std::is_same_v<decltype(argmax(x, 1)), Tensor<int64_t>>);
}

TEST_CASE_TEMPLATE("reductions of 16-bit floats and of other devices have gradients", D, Cpu, Emulated<0>) {
  Variable x{Tensor<float16, D>{{1, 2}, {3, 5}}};
  mean(x, 0).backward(Tensor<float16, D>{2, 4});
  CHECK(x.grad().template to<float>().to_vector() == std::vector<float>{1, 2, 1, 2});
  Variable y{Tensor<float, D>{{3, 4}, {6, 8}}};
  sum(norm(y * 2, 1)).backward();
  CHECK(y.grad().to_vector()[3] == doctest::Approx(1.6));
  y.zero_grad();
  sum(max(y, 0)).backward();
  CHECK(y.grad().to_vector() == std::vector<float>{0, 0, 1, 1});
}

TEST_CASE("what a reduction needs must not be written") {
  Variable x{Tensor<float>{1, 2, 3}};
  Variable y = norm(x);
  Tensor<float> value = y.value();
  value += 1;
  CHECK(situ_test::thrown<GradientError>([&] { y.backward(); },
                                         "backward: Norm needs a tensor of shape [] as it was when it was recorded, but operator+= has written to it in place since; write "
                                         "to a clone() of it, or after the backward") == "");
  CHECK(std::string(y.grad_fn()) == "Norm");
  CHECK(std::string(stddev(x).grad_fn()) == "Std");
  CHECK(std::string(logsumexp(x, 0).grad_fn()) == "Logsumexp");
  CHECK(situ_test::thrown<ShapeError>([&] { max(x, 1); }, "max: axis 1 is out of range for shape [3]: axes are -1 to 0") == "");
}

TEST_CASE("what gradients of 16-bit floats divide by is not rounded to 16 bits") {
  Variable x{Tensor<bfloat16>{100, 100.5, 101, 101.5}};  // their mean, 100.75, is between two of bfloat16
  sum(var(x)).backward();
  auto const nearest = [](float value) { return static_cast<float>(static_cast<bfloat16>(value)); };
  CHECK(x.grad().to<float>().to_vector() == std::vector<float>{-0.5f, nearest(-1 / 6.0f), nearest(1 / 6.0f), 0.5f});
  x.zero_grad();
  sum(stddev(x)).backward();
  CHECK(x.grad().to<float>().to_vector()[0] == doctest::Approx(-0.387298).epsilon(0.01));
  CHECK(x.grad().to<float>().to_vector()[1] == doctest::Approx(-0.129099).epsilon(0.01));
  Variable wide{Tensor<float16>(cast<float16>(arange<float>(1, 1001) * 60 * where(arange<float>(0, 1000) % 2 == 0, 1.0f, -1.0f)))};
  sum(stddev(wide)).backward();  // 1 / (999 y) is less than half of the smallest number
  CHECK(static_cast<float>(wide.grad().item(999)) == doctest::Approx(-0.001733).epsilon(0.01));
  Variable large{Tensor<float16>(full<float16>({4}, 8000))};
  norm(large, {.p = 3}).backward();  // y² is no number of float16, nor is its reciprocal
  CHECK(static_cast<float>(large.grad().item(2)) == doctest::Approx(std::pow(4.0, -2.0 / 3)).epsilon(0.01));
  Variable many{full<float16>({70000}, 2)};  // more than float16 can count
  max(many).backward();
  CHECK(static_cast<float>(many.grad().item(69999)) == static_cast<float>(static_cast<float16>(1 / 70000.0f)));
  many.zero_grad();
  norm(many, {.p = std::numeric_limits<double>::infinity()}).backward();
  CHECK(static_cast<float>(many.grad().item(69999)) == static_cast<float>(static_cast<float16>(1 / 70000.0f)));
}
