/// Gradients of products: PyTorch's, and what is kept for them. gradcheck_products.cpp has the finite differences.
#include <doctest/doctest.h>

#include <autograd/layouts.hpp>
#include <situ/autograd/matmul.hpp>
#include <situ/ops/compare.hpp>
#include <support/compare.hpp>

using namespace situ;
using situ_test::layout;
using situ_test::leaf;
using situ_test::sample;
using situ_test::thrown;
using situ_test::V;

TEST_CASE("gradients of products are PyTorch's") {
  // torch 1.13: a = [[1,2,3],[4,5,6]], b = [[1,-1],[2,.5],[0,3]], matmul(a, b).backward([[1,2],[3,-4]])
  Variable<float> const a{{1.f, 2.f, 3.f}, {4.f, 5.f, 6.f}}, b{{1.f, -1.f}, {2.f, 0.5f}, {0.f, 3.f}};
  matmul(a, b).backward(Tensor<float>{{1.f, 2.f}, {3.f, -4.f}});
  CHECK(a.grad().to_vector() == std::vector<float>{-1, 3, 6, 7, 4, -12});
  CHECK(b.grad().to_vector() == std::vector<float>{13, -14, 17, -16, 21, -18});
  // x = [[1,2],[3,4]], w = [[1,-1],[.5,2],[3,1]], c = [0,-9,1]: sum(relu(linear(x, w, c)) * [[1,2,3],[4,5,6]])
  Tensor<float> const weights{{1.f, 2.f, 3.f}, {4.f, 5.f, 6.f}};
  for (bool fused : {false, true}) {
    Variable<float> const x{{1.f, 2.f}, {3.f, 4.f}}, w{{1.f, -1.f}, {0.5f, 2.f}, {3.f, 1.f}}, c{0.f, -9.f, 1.f};
    if (fused) sum(linear_relu(x, w, c) * weights).backward();
    else sum(relu(linear(x, w, c)) * weights).backward();
    CHECK(x.grad().to_vector() == std::vector<float>{9, 3, 20.5f, 16});
    CHECK(w.grad().to_vector() == std::vector<float>{0, 0, 15, 20, 21, 30});
    CHECK(c.grad().to_vector() == std::vector<float>{0, 5, 9});
  }
}

TEST_CASE("constants get no gradient, and are saved only where one is needed") {
  Tensor<float> const data = sample<float>({4, 3});
  Variable<float> const w = leaf<float>({2, 3});
  int64_t const before = data.use_count();
  auto const y = linear(data, w);
  CHECK(data.use_count() == before + 1);
  CHECK(w.value().use_count() == 2);  // the leaf's, and this one
  CHECK(std::string(y.grad_fn()) == "Linear");
  CHECK(std::string(matmul(w, data.t()).grad_fn()) == "Matmul");
  sum(y).backward();
  CHECK(w.grad().shape() == Shape{2, 3});
  no_grad const guard;
  CHECK_FALSE(linear(data, w).requires_grad());
}

TEST_CASE("what a product needs may not be written before its backward") {
  Variable<float> const a = leaf<float>({2, 3}), b = leaf<float>({3, 2});
  auto const y = matmul(a, b);
  b.value() += 1;
  CHECK(thrown<GradientError>([&] { sum(y).backward(); },
                              "backward: Matmul needs a tensor of shape [3, 2] as it was when it was recorded, but operator+= has written to it in place since; write to a "
                              "clone() of it, or after the backward") == "");
  CHECK(thrown<ShapeError>([&] { matmul(a, a); }, "matmul: shapes [2, 3] and [2, 3] cannot be multiplied: 3 != 2") == "");
  CHECK(thrown<ShapeError>([&] { einsum("ij,jk->il", a, b); }, "einsum: \"ij,jk->il\": index 'l' of the result is in no operand") == "");
  Variable<float> const p(ones({1, 2, 1})), q(ones({1, 2, 1})), r(ones({1, 2, 1})), s(ones({1, 1, 1}));
  CHECK(thrown<ShapeError>([&] { einsum("abc,def,ghi,adg->bcefhi", p, q, r, s); },
                           "einsum: in \"abc,def,ghi,adg->bcefhi\" the product of operands 0 to 2 would have 9 axes; a tensor has at most 8: write the operands in another order") == "");
  CHECK(Variable<float>(einsum("abc,def,adg,ghi->bcefhi", p, q, s, r)).shape() == Shape{2, 1, 2, 1, 2, 1});
}

TEST_CASE("products of nothing have gradients of zeros, or of nothing") {
  Variable<float> const a = leaf<float>({2, 3, 0}), b = leaf<float>({0, 4}), c = leaf<float>({2, 3, 4}), d = leaf<float>({4, 0});
  sum(matmul(a, b)).backward();
  sum(matmul(c, d)).backward();
  CHECK(a.grad().shape() == Shape{2, 3, 0});
  CHECK(b.grad().shape() == Shape{0, 4});
  CHECK(c.grad().to_vector() == std::vector<float>(24, 0.f));
  CHECK(d.grad().shape() == Shape{4, 0});
}

TEST_CASE("products on a device with a memory of its own, and of other types") {
  auto const run = []<class T, class D>(std::type_identity<T>, D) {
    auto const a = leaf<T, D>({5, 7}), b = leaf<T, D>({7, 3}, layout::transposed, 2), w = leaf<T, D>({4, 3}, layout::contiguous, 3);
    sum(square(linear_relu(matmul(a, b), w)) + sum(einsum("ij,jk->k", a, b))).backward();
    return std::vector<Tensor<double>>{a.grad().cpu().template to<double>(), b.grad().cpu().template to<double>(), w.grad().cpu().template to<double>()};
  };
  auto const exact = run(std::type_identity<double>{}, Cpu{});
  auto const check = [&](std::vector<Tensor<double>> const& got, double tolerance) {
    for (std::size_t k = 0; k < got.size(); ++k) CHECK(allclose(got[k], exact[k], {.rtol = tolerance, .atol = tolerance}));
  };
  check(run(std::type_identity<double>{}, Emulated<0>{}), 1e-12);
  check(run(std::type_identity<float>{}, Cpu{}), 1e-4);
  check(run(std::type_identity<bfloat16>{}, Emulated<0>{}), 0.3);
}

namespace {
template <class A, class B>
concept multiplies = requires(A a, B b) { matmul(a, b); };
}
static_assert(multiplies<Variable<float>, Tensor<float>> && multiplies<Tensor<float>, Variable<float>>);
static_assert(!multiplies<Variable<float>, Tensor<float, Emulated<0>>> && !multiplies<Variable<float>, Variable<float, Emulated<0>>>);

TEST_CASE("partial sums of three 16-bit operands are not rounded, nor are their gradients") {
  Variable a{Tensor<bfloat16>{{256, 256}, {1, 0}}};
  Tensor<bfloat16> const signs{1, -1}, b{2, 3};
  auto const y = einsum("ij,j,k->k", a, signs, b);
  CHECK(y.value().to<float>().to_vector() == std::vector<float>{2, 3});
  sum(y).backward();
  CHECK(a.grad().to<float>().to_vector() == std::vector<float>{5, -5, 5, -5});
}
