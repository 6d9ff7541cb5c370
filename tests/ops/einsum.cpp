#include <situ/ops/compare.hpp>
#include <situ/ops/einsum.hpp>

#include <support/compare.hpp>
#include <support/devices.hpp>

#include "expected/matmul.hpp"

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace situ;
using situ_test::thrown;

namespace {

/// The element with index i in row-major order is (7 i + 3 seed) mod 11 - 5.
template <class T, class D>
Tensor<T, D> numbers(Shape const& shape, int64_t seed) {
  auto result = empty<T>(shape);
  for (int64_t i = 0; i < result.size(); ++i) result.data()[i] = detail::convert_scalar<T>((7 * i + 3 * seed) % 11 - 5);
  return result.to(D{});
}

template <class T, class D>
void check_sums() {
  for (auto const& expected : situ_test::expected::sums()) {
    INFO(std::string(expected.equation));
    std::vector<Tensor<T, D>> x;
    for (std::size_t k = 0; k < expected.shapes.size(); ++k) x.push_back(numbers<T, D>(expected.shapes[k], static_cast<int64_t>(k)));
    Tensor<T, D> const y = x.size() == 1   ? einsum(expected.equation, x[0])
                           : x.size() == 2 ? einsum(expected.equation, x[0], x[1])
                                           : einsum(expected.equation, x[0], x[1], x[2]);
    CHECK(y.shape() == expected.shape);
    CHECK(y.to_vector() == std::vector<T>(expected.values.begin(), expected.values.end()));
  }
}

}  // namespace

TEST_CASE("einsum gives what PyTorch gives") {
  check_sums<double, Cpu>();
  check_sums<int32_t, Cpu>();
  check_sums<float, Emulated<0>>();
}

TEST_CASE("einsum takes views and formulas, and extents of 1 broadcast") {
  auto const a = numbers<float, Cpu>({4, 6}, 1), b = numbers<float, Cpu>({6, 5}, 2);
  CHECK(equal(einsum("ij,jk->ik", a.flip(0), b(all(), range(0, 5, 2))), matmul(a.flip(0), b(all(), range(0, 5, 2)))));
  CHECK(equal(einsum("ij,jk->ik", a + 1, 2 * b), matmul(a + 1, 2 * b)));
  CHECK(equal(einsum(std::string("ji,jk"), a.t(), b), matmul(a, b)));
  CHECK(equal(einsum("ij,jk->ik", a(all(), range(2, 3)), b), matmul(a(all(), range(2, 3)).expand({4, 6}), b)));
  CHECK(equal(einsum("ij,ij->i", a(all(), range(2, 3)), a), sum(a(all(), range(2, 3)) * a, 1)));
  static_assert(std::is_same_v<decltype(einsum("i,i", a[0], b(all(), 0).to<double>())), Tensor<double>>);
}

TEST_CASE("a diagonal is a view") {
  auto const a = numbers<float, Cpu>({3, 3}, 1);
  auto const d = einsum("ii->i", a);
  CHECK(d.data() == a.data());
  CHECK(d.strides() == Shape(4));
}

TEST_CASE("equations that do not fit are explained") {
  auto const a = zeros({2, 3}), b = zeros({4, 5});
  auto const message = [&](char const* equation, auto const& what) {
    return thrown<ShapeError>([&] { einsum(equation, a, b); }, std::string("einsum: \"") + equation + "\": " + what);
  };
  CHECK(message("ij,jk->ik", "index 'j' stands for 3 in operand 0 and for 4 in operand 1") == "");
  CHECK(message("ij->ij", "1 term for 2 operands") == "");
  CHECK(message("ij,kl,mn->ij", "3 terms for 2 operands") == "");
  CHECK(message("ijk,kl", "operand 0 has shape [2, 3]: 2 axes, but its term names 3") == "");
  CHECK(message("i,kl", "operand 0 has shape [2, 3]: 2 axes, but its term names 1") == "");
  CHECK(message("ii,kl", "index 'i' stands for 2 and 3 in shape [2, 3]") == "");
  CHECK(message("ij,kl->im", "index 'm' of the result is in no operand") == "");
  CHECK(message("ij,kl->ii", "index 'i' appears twice in the result") == "");
  CHECK(message("i1,kl", "'1' is not an index: these are letters, and ... stands for the other axes") == "");
  CHECK(message("...i...,kl", "a term has more than one ellipsis") == "");
  CHECK(message("ij,kl->i,k", "the result has more than one term") == "");
}

TEST_CASE("operands are joined in another order where more than eight axes would be left by the way") {
  Tensor<float> const x = arange<float>(8).view({2, 2, 2}), y = x + 1, z = x * 2, w = x.view({2, 2, 2});
  // numpy.einsum("abc,def,ghi,adg->bcefhi", x, y, z, w).sum(axis=(1, 2, 4)), with x = numpy.arange(8.).reshape(2, 2, 2)
  std::vector<double> const expected{22784, 29952, 28000, 36800, 36096, 47360, 44256, 58048};
  CHECK(situ_test::difference(sum(einsum("abc,def,ghi,adg->bcefhi", x, y, z, w), {1, 2, 4}).to_vector(), expected) == "");
  CHECK(thrown<ShapeError>([&] { einsum("abc,def,ghi->abcdefghi", x, y, z); },
                           "einsum: in \"abc,def,ghi->abcdefghi\" the product of two operands would have more than 8 axes; take the sum in several steps") == "");
}

template <class A, class B>
concept summable = requires(A const& a, B const& b) { einsum("i,i", a, b); };
static_assert(summable<Tensor<float>, Tensor<int8_t>>);
static_assert(!summable<Tensor<float>, Tensor<float, Emulated<0>>>);

// What is summed of one operand, or is the product of two of three, needs more bits than the type has.
TEST_CASE_TEMPLATE("partial sums of 16-bit floats are not rounded", T, float16, bfloat16) {
  T const large = detail::convert_scalar<T>(std::is_same_v<T, float16> ? 2048 : 256), one = detail::convert_scalar<T>(1), none = detail::convert_scalar<T>(0);
  Tensor<T> const a{{large, large}, {one, none}}, signs{1, -1}, b = ones<T>({2});
  CHECK(einsum("ij,j->", a, signs).template to<float>().item() == 1);
  CHECK(einsum("j,ij->", signs, a).template to<float>().item() == 1);
  CHECK(einsum("ij,j,k->k", a, signs, b).template to<float>().to_vector() == std::vector<float>{1, 1});
  CHECK(einsum("ij,jk,kl->il", Tensor<T>{{large, one}}, Tensor<T>{{1, 1}, {1, 0}}, Tensor<T>{{1}, {-1}}).template to<float>().item() == 1);
}
