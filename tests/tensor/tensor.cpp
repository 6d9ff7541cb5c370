#include <situ/tensor/tensor.hpp>

#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <support/compare.hpp>
#include <support/devices.hpp>

namespace {

using namespace situ;
using situ_test::thrown;

template <class T, class D = Cpu>
using tensor = Tensor<T, D>;

static_assert(std::is_same_v<Tensor<>, Tensor<float, Cpu>>);
static_assert(std::is_same_v<Tensor<int64_t>::value_type, int64_t> && std::is_same_v<Tensor<int64_t>::device_type, Cpu>);
static_assert(Tensor<float16>::dtype() == dtype::float16 && !Tensor<float>::is_cuda());
static_assert(std::is_nothrow_move_constructible_v<Tensor<>> && std::is_nothrow_move_assignable_v<Tensor<>>);
static_assert(std::is_nothrow_default_constructible_v<Tensor<>> || std::is_default_constructible_v<Tensor<>>);

// Element types convert without being asked only where promotion loses nothing.
static_assert(std::is_convertible_v<Tensor<float>, Tensor<double>> && std::is_convertible_v<Tensor<bool>, Tensor<int8_t>>);
static_assert(std::is_convertible_v<Tensor<int64_t>, Tensor<float>> && std::is_convertible_v<Tensor<uint8_t>, Tensor<int16_t>>);
static_assert(!std::is_convertible_v<Tensor<double>, Tensor<float>> && !std::is_constructible_v<Tensor<float>, Tensor<double>>);
static_assert(!std::is_convertible_v<Tensor<float>, Tensor<int64_t>> && !std::is_constructible_v<Tensor<int64_t>, Tensor<float>>);
static_assert(!std::is_constructible_v<Tensor<int8_t>, Tensor<uint8_t>> && !std::is_constructible_v<Tensor<float16>, Tensor<bfloat16>>);
static_assert(std::is_assignable_v<Tensor<double>&, Tensor<float>> && !std::is_assignable_v<Tensor<float>&, Tensor<double>>);
static_assert(std::is_assignable_v<Tensor<float>, Tensor<int32_t>> && !std::is_assignable_v<Tensor<int32_t>, Tensor<float>>);

// Devices convert only when it is written.
static_assert(!std::is_convertible_v<Tensor<float, Cpu>, Tensor<float, Emulated<0>>>);
static_assert(!std::is_convertible_v<Tensor<float, Emulated<0>>, Tensor<float, Cpu>>);
static_assert(!std::is_convertible_v<Tensor<float, Emulated<0>>, Tensor<float, Emulated<1>>>);
static_assert(std::is_constructible_v<Tensor<float, Emulated<0>>, Tensor<float, Cpu>>);
static_assert(std::is_constructible_v<Tensor<double, Cpu>, Tensor<float, Emulated<0>>>);
static_assert(!std::is_constructible_v<Tensor<float, Cpu>, Tensor<double, Emulated<0>>>);
static_assert(!std::is_assignable_v<Tensor<float, Emulated<0>>&, Tensor<float, Cpu>>);
static_assert(std::is_convertible_v<Tensor<float, Pinned>, Tensor<float, Cpu>> && std::is_assignable_v<Tensor<float, Pinned>&, Tensor<float, Cpu>>);

// Numbers are no tensors, and a shape is no tensor.
static_assert(!std::is_convertible_v<float, Tensor<float>> && !std::is_assignable_v<Tensor<float>&, float>);
static_assert(!std::is_constructible_v<Tensor<float>, Shape>);

template <class X, class Y>
concept addable = requires(X x, Y y) { x + y; };
static_assert(addable<Tensor<float>, Tensor<int32_t>> && addable<Tensor<float>, float> && addable<int, Tensor<bool>>);
static_assert(addable<Tensor<float, Pinned>, Tensor<float>>);
static_assert(!addable<Tensor<float>, Tensor<float, Emulated<0>>> && !addable<Tensor<float, Emulated<1>>, Tensor<float, Emulated<0>>>);
static_assert(!addable<Tensor<float>, std::string> && !addable<Tensor<float>, int*>);

template <class X>
concept has_element_access = requires(X x) { x(0); };
static_assert(has_element_access<Tensor<float>> && has_element_access<Tensor<float, Pinned>> && !has_element_access<Tensor<float, Emulated<0>>>);

}  // namespace

TEST_CASE("a default-constructed tensor is empty, of shape [0]") {
  Tensor<float> x;
  CHECK(x.shape() == Shape{0});
  CHECK(x.size() == 0);
  CHECK(x.rank() == 1);
  CHECK(x.use_count() == 0);
  CHECK(x.data() == nullptr);
  CHECK(x.is_contiguous());
  CHECK(x.to_vector().empty());
  Tensor<float> const y = x + 1;
  CHECK(y.shape() == Shape{0});
}

TEST_CASE_TEMPLATE("braces hold values, never a shape", D, SITU_TEST_DEVICES) {
  tensor<float, D> const one{5};
  CHECK(one.shape() == Shape{1});
  CHECK(one.item() == 5.f);
  CHECK(tensor<float, D>{{1}, {2}}.shape() == Shape{2, 1});
  tensor<float, D> const m{{1, 2}, {3, 4}};
  CHECK(m.shape() == Shape{2, 2});
  CHECK(m.to_vector() == std::vector<float>{1, 2, 3, 4});
  tensor<double, D> const cube{{{1, 2.5}, {3, 4}, {5, 6}}, {{7, 8}, {9, 10}, {11, 12}}};
  CHECK(cube.shape() == Shape{2, 3, 2});
  CHECK(cube.item(1, 2, 0) == 11.);
  CHECK(cube.item(0, 0, 1) == 2.5);
  CHECK(tensor<bool, D>{true, false, true}.to_vector() == std::vector<bool>{true, false, true});
  CHECK(tensor<float, D>{}.shape() == Shape{0});
  CHECK(tensor<float, D>{{}, {}}.shape() == Shape{2, 0});
  CHECK(tensor<int64_t, D>{INT64_MAX, INT64_MIN}.to_vector() == std::vector<int64_t>{INT64_MAX, INT64_MIN});
}

TEST_CASE("ragged braces are refused") {
  CHECK(thrown<ShapeError>([] { Tensor<float>{{1, 2}, {3}}; },
                           "Tensor: the braces are ragged: 1 element stands where 2 are needed, in dimension 1") == "");
  CHECK(thrown<ShapeError>([] { Tensor<float>{{1, 2}, 3}; },
                           "Tensor: the braces are ragged: numbers and lists stand side by side at depth 1") == "");
  CHECK(thrown<ShapeError>([] { Tensor<float>{1, {2}}; },
                           "Tensor: the braces are ragged: numbers and lists stand side by side at depth 1") == "");
  CHECK(thrown<ShapeError>([] { Tensor<float>{{}, {1}}; },
                           "Tensor: the braces are ragged: 1 element stands where 0 are needed, in dimension 1") == "");
  CHECK(thrown<ShapeError>([] { Tensor<float>{{{{{{{{{1}}}}}}}}}; }, "shape: 9 dimensions were given: a tensor has at most 8") == "");
}

TEST_CASE_TEMPLATE("ranges are copied in, and to_vector copies out", D, SITU_TEST_DEVICES) {
  std::vector<float> const values{1, 2, 3, 4, 5, 6};
  tensor<float, D> const v{std::span<const float>(values), {2, 3}};
  CHECK(v.shape() == Shape{2, 3});
  CHECK(v.to_vector() == values);
  CHECK(v.t().to_vector() == std::vector<float>{1, 4, 2, 5, 3, 6});
  tensor<float, D> const flat(values);
  CHECK(flat.shape() == Shape{6});
  CHECK(flat.to_vector() == values);
  CHECK(tensor<float, D>(std::vector<float>{}, {0, 3}).shape() == Shape{0, 3});
  CHECK(thrown<ShapeError>([&] { tensor<float, D>(values, {2, 4}); }, "Tensor: 6 values were given for shape [2, 4], which has 8") == "");
  static_assert(std::is_same_v<decltype(Tensor(std::vector<double>{}, Shape{0})), Tensor<double>>);
}

TEST_CASE("handles share their storage, clones do not") {
  Tensor<float> a{1, 2, 3};
  CHECK(a.use_count() == 1);
  {
    Tensor<float> const b = a;
    CHECK(a.use_count() == 2);
    CHECK(std::as_const(b).data() == std::as_const(a).data());
    Tensor<float> const row = a.unsqueeze(0);
    CHECK(a.use_count() == 3);
  }
  CHECK(a.use_count() == 1);
  Tensor<float> const c = a.clone();
  CHECK(c.use_count() == 1);
  a(0) = 9;
  CHECK(c.item(0) == 1.f);
  Tensor<float> const moved = std::move(a);
  CHECK(moved.use_count() == 1);
  CHECK(a.shape() == Shape{0});  // NOLINT: what is left is an empty tensor
  CHECK(a.size() == 0);
  Tensor<float> strided = moved.flip(0).clone();
  CHECK(strided.is_contiguous());
  CHECK(strided.to_vector() == std::vector<float>{3, 2, 9});
}

TEST_CASE("self-assignment leaves a tensor as it is") {
  Tensor<float> a{1, 2, 3};
  Tensor<float>& same = a;
  a = same;
  CHECK(a.to_vector() == std::vector<float>{1, 2, 3});
  a = a.flip(0);
  CHECK(a.to_vector() == std::vector<float>{3, 2, 1});
}

TEST_CASE_TEMPLATE("item reads one element on every device", D, SITU_TEST_DEVICES) {
  tensor<int32_t, D> const x{{1, 2, 3}, {4, 5, 6}};
  CHECK(x.item(1, 2) == 6);
  CHECK(x.item(-1, -3) == 4);
  CHECK(x.t().item(2, 0) == 3);
  CHECK(x.flip(1).item(0, 0) == 3);
  CHECK((x * 2).item(1, 1) == 10);
  CHECK(x.select(0, 1).select(0, 1).item() == 5);
  CHECK(thrown<ShapeError>([&] { (void)x.item(); }, "item: shape [2, 3] has 6 elements; without indices there must be exactly one") == "");
  CHECK_THROWS_AS((void)x.item(1), IndexError);
  CHECK_THROWS_AS((void)x.item(0, 3), IndexError);
  CHECK_THROWS_AS((void)(tensor<int32_t, D>{}.item()), ShapeError);
  CHECK(x.item(1, 2) == 6);
}

TEST_CASE("elements are read and written in host memory") {
  Tensor<float> a{{1, 2, 3}, {4, 5, 6}};
  a(1, 2) = 7.f;
  a(-1, 0) += 1;
  CHECK(a.to_vector() == std::vector<float>{1, 2, 3, 5, 5, 7});
  a.t()(2, 0) = 8;
  CHECK(a(0, 2) == 8.f);
  Tensor<float> const& c = a;
  CHECK(c(0, 0) == 1.f);
  static_assert(std::is_same_v<decltype(c(0, 0)), float const&> && std::is_same_v<decltype(a(0, 0)), float&>);
  Tensor<bool> flags{true, false};
  flags(1) = true;
  CHECK(flags.to_vector() == std::vector<bool>{true, true});
  Tensor<float> scalar = Tensor<float>{3}.reshape({});
  CHECK(scalar.rank() == 0);
  CHECK(scalar.item() == 3.f);
  CHECK(thrown<IndexError>([&] { a(2, 0) = 0; }, "operator(): index 2 is out of range for axis 0 of shape [2, 3]: it has 2 elements") == "");
  CHECK(thrown<IndexError>([&] { a(0, -4) = 0; }, "operator(): index -4 is out of range for axis 1 of shape [2, 3]: it has 3 elements") == "");
  CHECK(thrown<IndexError>([&] { a(0) = 0; }, "operator(): 1 index was given for shape [2, 3]: it has 2 axes") == "");
  CHECK(thrown<IndexError>([&] { a(0, 0, 0) = 0; }, "operator(): 3 indices were given for shape [2, 3]: it has 2 axes") == "");
}

TEST_CASE("a tensor says what it is") {
  Tensor<double> const x(std::vector<double>(24), {2, 3, 4});
  CHECK(x.shape() == Shape{2, 3, 4});
  CHECK(x.strides() == Shape{12, 4, 1});
  CHECK(x.rank() == 3);
  CHECK(x.size() == 24);
  CHECK(x.size(1) == 3);
  CHECK(x.size(-1) == 4);
  CHECK(x.device() == Cpu{});
  CHECK(reinterpret_cast<std::uintptr_t>(x.data()) % 64 == 0);
  CHECK(thrown<ShapeError>([&] { (void)x.size(3); }, "size: axis 3 is out of range for shape [2, 3, 4]: axes are -3 to 2") == "");
}

TEST_CASE("what to_vector gives makes the tensor again, bools too") {
  std::vector<bool> const bits{true, false, false, true, true, false};
  Tensor<bool> const b(bits, {2, 3});
  CHECK(b.to_vector() == bits);
  CHECK(b(1, 1));
  CHECK(Tensor<bool>(bits).shape() == Shape{6});
  CHECK(Tensor<bool, Emulated<0>>(bits, {3, 2}).to_vector() == bits);
  CHECK(thrown<ShapeError>([&] { Tensor<bool>(bits, {4}); }, "Tensor: 6 values were given for shape [4], which has 4") == "");
  CHECK(Tensor<float>(std::vector<float>{1, 2}, {2, 1}).to_vector() == std::vector<float>{1, 2});
  static_assert(!std::is_constructible_v<Tensor<float>, std::vector<bool>, Shape>);
}

TEST_CASE("expressions deduce the tensor that they become") {
  Tensor<float> const a{1, 2};
  Tensor<int32_t> const i{3, 4};
  Tensor y = a * i;
  static_assert(std::is_same_v<decltype(y), Tensor<float>>);
  Tensor c = a;
  static_assert(std::is_same_v<decltype(c), Tensor<float>>);
  CHECK(c.use_count() == 2);
  static_assert(std::is_same_v<decltype(eval(a < i)), Tensor<bool>>);
  static_assert(std::is_same_v<decltype(eval(i / i)), Tensor<float>>);
  static_assert(std::is_same_v<decltype(eval(std::declval<Tensor<float, Pinned>>() + 1)), Tensor<float>>);
  Tensor<double> const wide = a + i;
  CHECK(wide.to_vector() == std::vector<double>{4, 6});
}
