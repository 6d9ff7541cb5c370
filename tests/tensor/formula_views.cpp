#include <situ/tensor.hpp>

#include <sstream>

#include <doctest/doctest.h>

#include <support/compare.hpp>
#include <support/devices.hpp>

using namespace situ;

namespace {

template <class D>
void views_of_formulas(D d) {
  Tensor<float, D> const x = arange(6, d).view({2, 3});
  auto const values = [](auto const& t) { return t.to_vector(); };
  using V = std::vector<float>;
  CHECK(values((x * 2).t()) == V{0, 6, 2, 8, 4, 10});
  CHECK(values((x * 2).transpose(0, 1).select(0, 2)) == V{4, 10});
  CHECK(values((x + 1)[1]) == V{4, 5, 6});
  CHECK(values((x + 1)[-1]) == V{4, 5, 6});
  CHECK(values((x + 1)(all(), 0)) == V{1, 4});
  CHECK(values((x + 1)(ellipsis(), -1)) == V{3, 6});
  CHECK(values((-x).flip(1)) == V{-2, -1, 0, -5, -4, -3});
  CHECK(values((x + 1).slice(1, 1, end())) == V{2, 3, 5, 6});
  CHECK(values((x + 1).slice(1, 0, 3, 2)) == V{1, 3, 4, 6});
  CHECK(values((x > 1).view({3, 2})) == std::vector<bool>{false, false, true, true, true, true});
  CHECK((x + x).reshape({-1}).shape() == Shape{6});
  CHECK(exp(x).flatten().shape() == Shape{6});
  CHECK(values((x.t() * 2).contiguous().view({6})) == V{0, 6, 2, 8, 4, 10});
  auto const own = (x + 0).clone();
  CHECK(own.is_contiguous());
  CHECK(own.data() != x.data());
  CHECK_FALSE((x + 0).is_cuda());
  CHECK((x * 1).unsqueeze(0).shape() == Shape{1, 2, 3});
  CHECK((x.unsqueeze(0) * 1).squeeze().shape() == Shape{2, 3});
  CHECK((x.unsqueeze(1) * 1).squeeze(1).shape() == Shape{2, 3});
  CHECK((x * 1).permute({1, 0}).shape() == Shape{3, 2});
  CHECK((x[0] * 1).expand({4, 3}).strides() == Shape{0, 1});
  CHECK((x(range(0, 0)) * 1).t().shape() == Shape{3, 0});
  CHECK(situ_test::thrown<IndexError>([&] { (x * 2)[2]; }, "operator[]: index 2 is out of range for axis 0 of shape [2, 3]: it has 2 elements") == "");
  CHECK(situ_test::thrown<ShapeError>([&] { (x * 2).view({5}); }, "view: shape [2, 3] (6 elements) cannot become [5] (5 elements)") == "");
}

template <class T>
concept writes_to_formulas = requires(T t) { (t * 2)[0] = t; } || requires(T t) { (t * 2).t() = 1; } || requires(T t) { (t * 2)[0] += 1; };
template <class T>
concept has_elements = requires(T t) { (t * 2)(0, 0); };

}  // namespace

TEST_CASE("views of formulas are views of their values, and cannot be written to") {
  views_of_formulas(Cpu{});
  views_of_formulas(Emulated<0>{});
  Tensor<float> const x = ones({2, 3});
  static_assert(std::is_same_v<decltype((x * 2).t()), const Tensor<float>>);
  static_assert(!writes_to_formulas<Tensor<float>>);
  static_assert(!has_elements<Tensor<float>>);
}

TEST_CASE("arange from start to stop takes a device") {
  auto const x = arange(2, 5, Emulated<0>{});
  static_assert(std::is_same_v<decltype(x), Tensor<float, Emulated<0>> const>);
  CHECK(x.to_vector() == std::vector<float>{2, 3, 4});
  CHECK(arange<int64_t>(-1, 1, Cpu{}).to_vector() == std::vector<int64_t>{-1, 0});
  CHECK(arange(0, 0, Cpu{}).size() == 0);
}

TEST_CASE("what dtype() and device() return prints as its name") {
  std::ostringstream out;
  Tensor<bfloat16, Emulated<1>> const x;
  out << x.dtype() << ' ' << x.device() << ' ' << dtype::boolean << ' ' << Cpu{} << ' ' << Pinned{} << ' ' << Cuda<1>{};
  CHECK(out.str() == "bfloat16 emulated:1 bool cpu pinned cuda:1");
}
