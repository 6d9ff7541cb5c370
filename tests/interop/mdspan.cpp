/// mdspan: the standard library's where it has one, else CUDA's, which the host's compiler takes as well.
#include <doctest/doctest.h>

#include <support/mdspan.hpp>

#include <situ/interop/mdspan.hpp>
#include <situ/ops/compare.hpp>
#include <support/compare.hpp>
#include <support/devices.hpp>

using namespace situ;
using situ_test::at;
using situ_test::thrown;

namespace {

template <class T, std::size_t Rank, class Layout = spans::layout_stride, class Index = std::int64_t>
using Span = spans::mdspan<T, spans::dextents<Index, Rank>, Layout>;

template <class M, class X>
constexpr bool gives = requires(X x) { interop::to_mdspan<M>(static_cast<X>(x)); };
static_assert(gives<Span<float, 2>, Tensor<float>&> && gives<Span<float const, 2>, Tensor<float>&> && gives<Span<float const, 2>, Tensor<float> const&>);
static_assert(gives<Span<float16, 2>, Tensor<float16, Cuda<0>>&>);
static_assert(!gives<Span<float, 2>, Tensor<float> const&> && !gives<Span<float, 2>, Tensor<float>> && !gives<Span<double, 2>, Tensor<float>&> && !gives<float, Tensor<float>&>);

/// Empty when an mdspan of two axes has the elements of x.
template <class M, class T>
std::string unlike(M const& m, Tensor<T> const& x) {
  if (static_cast<int64_t>(m.extent(0)) != x.size(0) || static_cast<int64_t>(m.extent(1)) != x.size(1)) return "other extents";
  for (int i = 0; i < x.size(0); ++i) {
    for (int j = 0; j < x.size(1); ++j) {
      if (&at(m, i, j) != &x(i, j)) return "element " + std::to_string(i) + ", " + std::to_string(j);
    }
  }
  return "";
}

struct Doubling {  // an accessor whose references are none
  using offset_policy = Doubling;
  using element_type = float;
  using reference = float;
  using data_handle_type = float*;
  float access(float* p, std::size_t i) const { return 2 * p[i]; }
  float* offset(float* p, std::size_t i) const { return p + i; }
};
using Doubled = spans::mdspan<float, spans::dextents<int, 1>, spans::layout_right, Doubling>;
static_assert(!gives<Doubled, Tensor<float>&>);
template <class M>
constexpr bool becomes_a_tensor = requires(M m) { interop::from_mdspan(m); };
static_assert(becomes_a_tensor<Span<int64_t const, 8>> && !becomes_a_tensor<Doubled> && !becomes_a_tensor<Span<unsigned, 1>> && !becomes_a_tensor<int>);

}  // namespace

TEST_CASE("an mdspan sees the elements of a tensor, with its strides") {
  auto x = arange<float>(60).view({3, 4, 5});
  auto const is_same = [](Tensor<float> view) {
    std::string const one = unlike(interop::to_mdspan<Span<float, 2>>(view), view), other = unlike(interop::to_mdspan<Span<float const, 2, spans::layout_stride, int>>(view), view);
    return one + other;
  };
  CHECK(is_same(x[1]) == "");
  CHECK(is_same(x[1].t()) == "");
  CHECK(is_same(x.select(1, 2)) == "");
  CHECK(is_same(x.select(2, 4).slice(0, 0, 3, 2)) == "");
  CHECK(is_same(x[1].slice(0, 2, 3)) == "");
  CHECK(is_same(x[1].slice(0, 2, 3).expand({1, 5}).flip(0)) == "");  // a stride without meaning
  CHECK(is_same(zeros({0, 3})) == "");
  CHECK(is_same(zeros({3, 0}).flip(0)) == "");
  auto m = interop::to_mdspan<Span<float, 3>>(x);
  m.data_handle()[m.mapping()(2, 1, 3)] = -1;
  CHECK(x(2, 1, 3) == -1);
  auto number = full({}, 3.f);
  CHECK(*(interop::to_mdspan<Span<float, 0>>(number).data_handle()) == 3);
  CHECK(*interop::to_mdspan<Span<float, 0, spans::layout_right>>(number).data_handle() == 3);
}

TEST_CASE("layouts without strides of their own are given what has theirs") {
  auto x = arange<float>(6).view({2, 3});
  Tensor<float> turned = x.t(), wide = arange<float>(8).view({2, 4}).slice(1, 0, 3);
  using Right = Span<float, 2, spans::layout_right, int>;
  using Left = Span<float, 2, spans::layout_left, int>;
  CHECK(unlike(interop::to_mdspan<Right>(x), x) == "");
  CHECK(unlike(interop::to_mdspan<Left>(turned), turned) == "");
  CHECK(thrown<LayoutError>([&] { (void)interop::to_mdspan<Right>(turned); }, "to_mdspan: shape [3, 2] has strides [1, 3], where the layout of the mdspan has [2, 1]; "
                                                                              "name an mdspan of layout_stride, or give a copy") == "");
  CHECK(thrown<LayoutError>([&] { (void)interop::to_mdspan<Left>(x); }, "to_mdspan: shape [2, 3] has strides [3, 1], where the layout of the mdspan has [1, 2]; "
                                                                        "name an mdspan of layout_stride, or give a copy") == "");
  CHECK_THROWS_AS(interop::to_mdspan<Right>(wide), LayoutError);
  Tensor<float> row = x.slice(0, 1, 2);
  CHECK(unlike(interop::to_mdspan<Right>(row), row) == "");
}

TEST_CASE("ranks, extents, index types, strides and read-only storage are checked") {
  auto x = zeros({2, 3}), many = zeros({100, 2});
  auto const says = [](std::string const& what) { return "to_mdspan: shape " + what; };
  using Fixed = spans::mdspan<float, spans::extents<int, 2, spans::dynamic_extent>, spans::layout_right>;
  using Other = spans::mdspan<float, spans::extents<int, 2, 4>, spans::layout_right>;
  CHECK(unlike(interop::to_mdspan<Fixed>(x), x) == "");
  CHECK(thrown<ShapeError>([&] { (void)interop::to_mdspan<Other>(x); }, says("[2, 3] has 3 in axis 1, where the type of the mdspan has 4")) == "");
  CHECK(thrown<ShapeError>([&] { (void)interop::to_mdspan<Span<float, 3>>(x); },
                           says("[2, 3] has 2 axes, and the mdspan 3; select, flatten or unsqueeze axes, or name another mdspan")) == "");
  CHECK(thrown<ShapeError>([&] { (void)interop::to_mdspan<Span<float, 2, spans::layout_stride, signed char>>(many); },
                           says("[100, 2] with strides [2, 1] has places beyond 127, the largest number of the mdspan's index type; name one of a larger type")) == "");
  CHECK(unlike(interop::to_mdspan<Span<float, 2, spans::layout_stride, unsigned char>>(many), many) == "");
  Tensor<float> flipped = x.flip(1), repeated = arange<float>(3).expand({2, 3});
  CHECK(thrown<LayoutError>([&] { (void)interop::to_mdspan<Span<float, 2>>(flipped); },
                            says("[2, 3] with strides [3, -1] is flipped or broadcast, and the strides of an mdspan are positive; give a contiguous() copy")) == "");
  CHECK_THROWS_AS((interop::to_mdspan<Span<float const, 2>>(repeated)), LayoutError);
  float const numbers[] = {1, 2, 3};
  auto fixed = from_blob(numbers, {3});
  CHECK(*interop::to_mdspan<Span<float const, 1>>(fixed).data_handle() == 1);
  CHECK(thrown<TypeError>([&] { (void)interop::to_mdspan<Span<float, 1>>(fixed); },
                          "to_mdspan: the storage is read-only: it was given as a pointer to const; give std::as_const(x), or a clone() of it") == "");
}

TEST_CASE("a tensor sees the elements of an mdspan") {
  float numbers[24];
  for (int i = 0; i < 24; ++i) numbers[i] = static_cast<float>(i);
  Span<float, 2, spans::layout_right, int> const right(numbers, 4, 6);
  Tensor x = interop::from_mdspan(right);
  static_assert(std::is_same_v<decltype(x), Tensor<float, Cpu>>);
  CHECK(equal(x, arange<float>(24).view({4, 6})));
  x(1, 2) = -1;
  CHECK(numbers[8] == -1);
  numbers[8] = 8;
  CHECK(equal(interop::from_mdspan(Span<float, 2, spans::layout_left>(numbers, 6, 4)), arange<float>(24).view({4, 6}).t()));
  Tensor<float> part = x.slice(1, 1, 6, 2).t();
  CHECK(equal(interop::from_mdspan(interop::to_mdspan<Span<float, 2>>(part)), part));
  CHECK(equal(interop::from_mdspan(spans::mdspan<float, spans::extents<int, 2, 12>>(numbers)), arange<float>(24).view({2, 12})));
  CHECK(interop::from_mdspan(Span<float, 0, spans::layout_right>(numbers)).item() == 0);
  CHECK(interop::from_mdspan(Span<float, 2, spans::layout_right>(nullptr, 0, 3)).shape() == Shape{0, 3});
  auto fixed = interop::from_mdspan(Span<float const, 1, spans::layout_right>(numbers, 24), Pinned{});
  static_assert(std::is_same_v<decltype(fixed), Tensor<float, Pinned>>);
  CHECK_THROWS_AS(fixed += 1, TypeError);
  CHECK(thrown<Error>([] { (void)interop::from_mdspan(Span<float, 1, spans::layout_right>(nullptr, 3)); }, "from_mdspan: the mdspan of shape [3] has a null pointer in place of its elements") == "");
}

TEST_CASE("a device's tensors are given and taken as such") {
  auto x = arange<float>(6, Emulated<0>{}).reshape({2, 3});
  auto const m = interop::to_mdspan<Span<float, 2>>(x);
  CHECK(m.data_handle() == std::as_const(x).data());
  auto y = interop::from_mdspan(m, Emulated<0>{});
  y += 1;
  CHECK(equal(x.cpu(), arange<float>(1, 7).view({2, 3})));
}
