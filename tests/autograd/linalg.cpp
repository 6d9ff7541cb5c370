/// Gradients of linear algebra: against finite differences, and against PyTorch's.
#include <situ/config.hpp>

#if defined(SITU_WITH_LAPACK)

#include <doctest/doctest.h>

#include <autograd/layouts.hpp>
#include <situ/autograd/linalg.hpp>
#include <situ/autograd/matmul.hpp>
#include <situ/ops/compare.hpp>
#include <support/compare.hpp>

#include <string_view>

using namespace situ;
using situ_test::layout;
using situ_test::leaf;
using situ_test::sample;
using situ_test::V;

namespace {

using Two = V (*)(V const&, V const&);
struct Case {
  char const* name;
  Shape a, b;
  Two f;
};
/// Far from singular.
V regular(V const& a) { return V(a + eye<double>(a.size(-1)) * 4); }

Tensor<double> constant_matrix() { return sample({2, 2}, 8) + eye<double>(2) * 4; }

Case const cases[] = {
    {"solve", {3, 3}, {3, 2}, [](V const& a, V const& b) -> V { return solve(regular(a), b); }},
    {"solve of a vector", {3, 3}, {3}, [](V const& a, V const& b) -> V { return solve(regular(a), b); }},
    {"solve of a batch of vectors", {2, 3, 3}, {2, 3}, [](V const& a, V const& b) -> V { return solve(regular(a), b); }},
    {"solve that broadcasts", {2, 1, 2, 2}, {3, 2, 1}, [](V const& a, V const& b) -> V { return solve(regular(a), b); }},
    {"solve of a constant matrix", {2, 2}, {2, 2}, [](V const& a, V const& b) -> V { return solve(constant_matrix(), b + 0 * a); }},
    {"solve of a constant side", {2, 2}, {2, 2}, [](V const& a, V const& b) -> V { return solve(regular(a) + 0 * b, sample({2, 2}, 9)); }},
    {"inv", {2, 3, 3}, {1}, [](V const& a, V const&) -> V { return inv(regular(a)); }},
    {"det", {2, 3, 3}, {1}, [](V const& a, V const&) -> V { return det(a); }},
    {"det of small ones", {1, 1}, {1}, [](V const& a, V const&) -> V { return det(a); }},
    {"slogdet", {2, 3, 3}, {1}, [](V const& a, V const&) -> V { return slogdet(a).logabsdet; }},
    {"slogdet of small ones", {1, 1}, {1}, [](V const& a, V const&) -> V { return slogdet(a).logabsdet; }},
    {"cholesky", {2, 3, 3}, {1}, [](V const& a, V const&) -> V { return cholesky(matmul(a, a.transpose(-2, -1)) + eye<double>(3)); }},
    {"cholesky, upper", {3, 3}, {1}, [](V const& a, V const&) -> V { return cholesky(matmul(a, a.t()) + eye<double>(3), {.upper = true}); }},
};

}  // namespace

TEST_CASE("gradients of linear algebra") {
  for (Case const& c : cases) {
    CAPTURE(c.name);
    for (layout how : {layout::contiguous, layout::transposed, layout::sliced}) CHECK(gradcheck(c.f, {leaf(c.a, how, 3), leaf(c.b, how, 4)}));
    if (std::string_view(c.name).starts_with("cholesky")) continue;
    for (layout how : {layout::contiguous, layout::transposed}) CHECK(gradgradcheck(c.f, {leaf(c.a, how, 3), leaf(c.b, how, 4)}));
  }
}

TEST_CASE("what has no second derivative says so") {
  V const a{{4., 2.}, {2., 3.}};
  V const y = sum(cholesky(a));
  CHECK_THROWS_AS(static_cast<void>(grad(y, a, create_graph)), GradientError);
}

TEST_CASE("the determinant of singular matrices has a gradient") {
  V const x{{1., 2., 3.}, {2., 4., 6.}, {1., 0., 1.}};  // of rank 2: the cofactors are [[4, 4, -4], [-2, -2, 2], [0, 0, 0]]
  det(x).backward();
  CHECK(allclose(x.grad(), Tensor<double>{{4., 4., -4.}, {-2., -2., 2.}, {0., 0., 0.}}, {.rtol = 1e-12, .atol = 1e-12}));
  V const rank_one{{1., 2., 3.}, {2., 4., 6.}, {3., 6., 9.}};
  det(rank_one).backward();
  CHECK(max(abs(rank_one.grad())).item() < 1e-12);
}

TEST_CASE("beside a singular matrix, one that holds NaN has NaN for a gradient, and the others theirs") {
  double const nan = std::numeric_limits<double>::quiet_NaN();
  V const x{{{1., 2.}, {2., 4.}}, {{nan, 0.}, {0., 1.}}, {{3., 1.}, {0., 2.}}};
  sum(det(x)).backward();
  CHECK(allclose(x.grad()[0], Tensor<double>{{4., -2.}, {-2., 1.}}, {.rtol = 1e-12, .atol = 1e-12}));
  CHECK(situ_test::shown(x.grad().item(1, 0, 0)).find("nan") != std::string::npos);
  CHECK(allclose(x.grad()[2], Tensor<double>{{2., 0.}, {-1., 3.}}, {.rtol = 1e-12, .atol = 1e-12}));
}

TEST_CASE("the logarithm of a determinant that is no double has a gradient, and its sign has none") {
  V const x(eye<double>(3) * 1e200 + Tensor<double>{{0., 3e200, 0.}, {0., 0., 0.}, {0., 0., -2e200}});
  auto const [sign, logabsdet] = slogdet(x);
  CHECK(sign.item() == -1);
  CHECK(logabsdet.item() == doctest::Approx(3 * std::log(1e200)));
  logabsdet.backward();
  CHECK(allclose(x.grad() * 1e200, Tensor<double>{{1., 0., 0.}, {-3., 1., 0.}, {0., 0., -1.}}, {.rtol = 1e-12}));
  V const singular{{1., 2.}, {2., 4.}};
  V const y = slogdet(singular).logabsdet;
  CHECK_THROWS_AS(y.backward(), LinalgError);
}

TEST_CASE("the gradient of cholesky is symmetric, as PyTorch's") {
  // torch 1.13: a = [[4, 2], [2, 3]]; (torch.linalg.cholesky(a) * [[1, 2], [3, 4]]).sum().backward()
  V const a{{4., 2.}, {2., 3.}};
  sum(cholesky(a) * Tensor<double>{{1., 2.}, {3., 4.}}).backward();
  CHECK(allclose(a.grad(), Tensor<double>{{0.22855339059327373, 0.04289321881345256}, {0.04289321881345256, 1.414213562373095}}, {.rtol = 1e-12}));
}

TEST_CASE("linear algebra on a device with a memory of its own") {
  auto const run = []<class D>(D) {
    auto const a = leaf<double, D>({2, 3, 3}), b = leaf<double, D>({3, 2}, layout::contiguous, 2);
    Variable<double, D> const m(a + eye<double>(3, D{}) * 4);
    (sum(solve(m, b)) + sum(inv(m)) + sum(det(m)) + sum(slogdet(m).logabsdet)).value();
    Variable<double, D>(sum(solve(m, b)) + sum(inv(m)) + sum(det(m)) + sum(slogdet(m).logabsdet)).backward();
    return std::pair(a.grad().cpu(), b.grad().cpu());
  };
  auto const host = run(Cpu{}), other = run(Emulated<0>{});
  CHECK(allclose(host.first, other.first));
  CHECK(allclose(host.second, other.second));
}

TEST_CASE("the rank of a matrix that records is a Tensor") {
  V const v{Tensor<double>{{1, 2}, {2, 4}}};
  CHECK(matrix_rank(v).item() == 1);
  CHECK(matrix_rank(v * 2 + eye<double>(2), {.rtol = 0.5}).item() == 1);
}

#endif
