#include <sys/mman.h>

#include <type_traits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <support/compare.hpp>
#include <support/devices.hpp>

namespace {

using namespace situ;
using situ_test::thrown;
using ints = std::vector<int64_t>;

template <class D>
Tensor<int64_t, D> counted(Shape const& shape) {
  return arange<int64_t>(detail::product(shape), D{}).view(shape);
}

// A const handle gives const views: writing through them does not compile.
template <class X>
concept writable_row = requires(X x) { x[0] = 1; };
template <class X>
concept writable_slice = requires(X x) { x(all(), 0) = 1; };
template <class X>
concept writable_transpose = requires(X x) { x.t() = x; };
template <class X>
concept writable_view = requires(X x) { x.view({6}) = 1; };
template <class X>
concept writable_reshape = requires(X x) { x.reshape({6}) = 1; };
template <class X>
concept writable_flat = requires(X x) { x.flatten() = 1; };
template <class X>
concept writable_in_place = requires(X x) { x += 1; };
template <class X>
concept writable_row_in_place = requires(X x) { x[0] *= 2; };
template <class X>
concept assigned = requires(X x) { x.assign(1); };
template <class X>
concept gives_mutable_pointer = requires(X x) { *x.data() = 1; };
using mutable_handle = Tensor<float>&;
using const_handle = Tensor<float> const&;
static_assert(writable_row<mutable_handle> && !writable_row<const_handle>);
static_assert(writable_slice<mutable_handle> && !writable_slice<const_handle>);
static_assert(writable_transpose<mutable_handle> && !writable_transpose<const_handle>);
static_assert(writable_view<mutable_handle> && !writable_view<const_handle>);
static_assert(writable_reshape<mutable_handle> && !writable_reshape<const_handle>);
static_assert(writable_flat<mutable_handle> && !writable_flat<const_handle>);
static_assert(writable_in_place<mutable_handle> && !writable_in_place<const_handle>);
static_assert(writable_row_in_place<mutable_handle> && !writable_row_in_place<const_handle>);
static_assert(assigned<mutable_handle> && !assigned<const_handle>);
static_assert(gives_mutable_pointer<mutable_handle> && !gives_mutable_pointer<const_handle>);

}  // namespace

// The expected elements are NumPy's for arange(n).reshape(shape).
TEST_CASE_TEMPLATE("views share the storage and show it in another order", D, SITU_TEST_DEVICES) {
  Tensor<int64_t, D> const x = counted<D>({2, 3});
  CHECK(x.t().to_vector() == ints{0, 3, 1, 4, 2, 5});
  CHECK(x.t().strides() == Shape{1, 3});
  CHECK(x.transpose(0, 1).shape() == Shape{3, 2});
  CHECK(x.flip(0).to_vector() == ints{3, 4, 5, 0, 1, 2});
  CHECK(x.flip(-1).to_vector() == ints{2, 1, 0, 5, 4, 3});
  CHECK(x.flip(0).flip(1).to_vector() == ints{5, 4, 3, 2, 1, 0});
  CHECK(x[1].to_vector() == ints{3, 4, 5});
  CHECK(x[-2].to_vector() == ints{0, 1, 2});
  CHECK(x.select(1, 2).to_vector() == ints{2, 5});
  CHECK(x.slice(1, 0, 3, 2).to_vector() == ints{0, 2, 3, 5});
  CHECK(x.slice(1, -1, -4, -1).to_vector() == ints{2, 1, 0, 5, 4, 3});
  CHECK(x.slice(1, 1, end()).to_vector() == ints{1, 2, 4, 5});
  CHECK(x.slice(1, 2, end(), -2).to_vector() == ints{2, 0, 5, 3});
  CHECK(x.unsqueeze(1).shape() == Shape{2, 1, 3});
  CHECK(x.unsqueeze(1).squeeze(1).shape() == Shape{2, 3});
  CHECK(x.unsqueeze(0).unsqueeze(-1).squeeze().to_vector() == ints{0, 1, 2, 3, 4, 5});
  CHECK(x.select(0, 0).expand({2, 3}).to_vector() == ints{0, 1, 2, 0, 1, 2});
  CHECK(x.view({3, 2}).to_vector() == ints{0, 1, 2, 3, 4, 5});
  CHECK(x.view({-1}).shape() == Shape{6});
  CHECK(x.use_count() == 1);
  Tensor<int64_t, D> const cube = counted<D>({2, 3, 4});
  CHECK(cube.permute({2, 0, 1}).shape() == Shape{4, 2, 3});
  CHECK(cube.permute({2, 0, 1}).to_vector() ==
        ints{0, 4, 8, 12, 16, 20, 1, 5, 9, 13, 17, 21, 2, 6, 10, 14, 18, 22, 3, 7, 11, 15, 19, 23});
  CHECK(cube.transpose(0, 2)[1][2].to_vector() == ints{9, 21});
  CHECK(cube.flip(1).permute({1, 2, 0}).slice(1, 1, 4, 2).to_vector() == ints{9, 21, 11, 23, 5, 17, 7, 19, 1, 13, 3, 15});
}

TEST_CASE_TEMPLATE("writing through a view is seen through every other", D, SITU_TEST_DEVICES) {
  Tensor<int64_t, D> x = counted<D>({2, 3});
  Tensor<int64_t, D> const all_of_it = x.view({6});
  x.t()[1] = 9;
  CHECK(all_of_it.to_vector() == ints{0, 9, 2, 3, 9, 5});
  x.flip(1).select(1, 0) = -1;
  CHECK(all_of_it.to_vector() == ints{0, 9, -1, 3, 9, -1});
}

TEST_CASE("view refuses a layout that reshape copies") {
  Tensor<int64_t> const x = counted<Cpu>({2, 3});
  CHECK(thrown<LayoutError>([&] { (void)x.t().view({6}); },
                            "view: shape [3, 2] with strides [1, 3] cannot be viewed as [6] without a copy; use reshape(), which copies where it must") == "");
  Tensor<int64_t> const copied = x.t().reshape({6});
  CHECK(copied.to_vector() == ints{0, 3, 1, 4, 2, 5});
  CHECK(x.use_count() == 1);
  Tensor<int64_t> const viewed = x.reshape({-1, 2});
  CHECK(x.use_count() == 2);
  CHECK(viewed.shape() == Shape{3, 2});
  CHECK(x.t().flatten().to_vector() == copied.to_vector());
  Tensor<int64_t> const four = arange<int64_t>(0, 120).reshape({2, 3, 4, 5});
  CHECK(four.flatten(1).shape() == Shape{2, 60});
  CHECK(four.flatten(0, 1).shape() == Shape{6, 4, 5});
  CHECK(four.flatten(1, -2).shape() == Shape{2, 12, 5});
  CHECK(four.flatten(-1).shape() == four.shape());
  CHECK(four.flatten(1, 2).data() == four.data());
  CHECK(four.transpose(1, 2).flatten(1, 2)(1, 7, 3) == four(1, 1, 2, 3));  // place 7 of [4, 3] is [2, 1]
  CHECK(zeros({2, 0, 3}).flatten(0, 1).shape() == Shape{0, 3});
  CHECK(zeros({}).flatten(0, -1).shape() == Shape{1});
  CHECK((four + 1).flatten(2).shape() == Shape{2, 3, 20});
  CHECK(thrown<ShapeError>([&] { (void)four.flatten(2, 1); }, "flatten: axis 2 is behind axis 1 in shape [2, 3, 4, 5]; the first of the axes to join comes first") == "");
  CHECK(thrown<ShapeError>([&] { (void)four.flatten(4); }, "flatten: axis 4 is out of range for shape [2, 3, 4, 5]: axes are -4 to 3") == "");
  CHECK(x.slice(1, 0, 2).view({2, 2, 1}).to_vector() == ints{0, 1, 3, 4});
  CHECK_THROWS_AS((void)x.slice(1, 0, 2).view({4}), LayoutError);
  CHECK(x.slice(1, 0, 2).reshape({4}).to_vector() == ints{0, 1, 3, 4});
  CHECK(thrown<ShapeError>([&] { (void)x.view({4}); }, "view: shape [2, 3] (6 elements) cannot become [4] (4 elements)") == "");
  CHECK(thrown<ShapeError>([&] { (void)x.reshape({4, -1}); }, "reshape: shape [2, 3] (6 elements) cannot become [4, -1]: 6 is not a multiple of 4") == "");
}

TEST_CASE("contiguous copies only what is not contiguous") {
  Tensor<int64_t> const x = counted<Cpu>({2, 3});
  CHECK(std::as_const(x).data() == x.contiguous().data());
  Tensor<int64_t> const y = x.t().contiguous();
  CHECK(y.strides() == Shape{2, 1});
  CHECK(y.to_vector() == ints{0, 3, 1, 4, 2, 5});
  CHECK(x.expand({2, 2, 3}).contiguous().to_vector() == ints{0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5});
}

TEST_CASE("views of empty and of 0-dimensional tensors are ordinary") {
  Tensor<float> const none = zeros({0, 3});
  CHECK(none.t().shape() == Shape{3, 0});
  CHECK(none.view({3, 0, 5}).shape() == Shape{3, 0, 5});
  CHECK(none.reshape({0}).to_vector().empty());
  CHECK(none.flip(0).slice(0, 0, 10).shape() == Shape{0, 3});
  CHECK(none.select(1, 2).shape() == Shape{0});
  CHECK(none.unsqueeze(0).expand({4, 0, 3}).shape() == Shape{4, 0, 3});
  CHECK(none.clone().shape() == Shape{0, 3});
  CHECK(zeros({2, 3}).slice(0, 1, 1).size() == 0);
  Tensor<float> const scalar = full({}, 4);
  CHECK(scalar.view({1, 1}).to_vector() == std::vector<float>{4});
  CHECK(scalar.t().rank() == 0);
  CHECK(scalar.unsqueeze(0).shape() == Shape{1});
  CHECK(scalar.expand({3}).to_vector() == std::vector<float>{4, 4, 4});
  CHECK(scalar.squeeze().rank() == 0);
  CHECK(scalar.flatten().shape() == Shape{1});
}

TEST_CASE("elements that lie further apart than 32 bits count") {
  constexpr int64_t apart = (int64_t{1} << 32) + 5;
  auto const bytes = static_cast<std::size_t>(4 * apart);
  void* const memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);  // a few pages are touched
  if (memory == MAP_FAILED) {
    MESSAGE("skipped: no 16 GiB of addresses to be had");
    return;
  }
  auto* const first = static_cast<int8_t*>(memory);
  for (int64_t k = 0; k < 4; ++k) {
    for (int64_t j = 0; j < 3; ++j) first[k * apart + j] = static_cast<int8_t>(3 * k + j);
  }
  Tensor<int8_t> const expected = cast<int8_t>(arange<int64_t>(12)).reshape({4, 3});
  auto rows = from_blob(first, {4, 3}, {apart, 1}), flipped = from_blob(first + 3 * apart, {4, 3}, {-apart, 1});
  CHECK(rows.clone().to_vector() == expected.to_vector());
  CHECK(flipped.flip(0).clone().to_vector() == expected.to_vector());
  CHECK(rows.t().clone().to_vector() == expected.t().clone().to_vector());
  CHECK(eval(rows + flipped).to_vector() == std::vector<int8_t>{9, 11, 13, 9, 11, 13, 9, 11, 13, 9, 11, 13});
  CHECK(rows(3, 2) == 11);
  CHECK(rows.slice(0, 1, end(), 2).to_vector() == std::vector<int8_t>{3, 4, 5, 9, 10, 11});
  CHECK(to_string(rows) == to_string(expected));
  rows.t() = expected.reshape({3, 4}) * 2;
  CHECK(rows.t().to_vector() == std::vector<int8_t>{0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22});
  CHECK(first[3 * apart + 1] == 14);
  CHECK(::munmap(memory, bytes) == 0);
}
