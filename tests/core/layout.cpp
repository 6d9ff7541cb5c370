#include <situ/core/layout.hpp>

#include <algorithm>
#include <vector>

#include <doctest/doctest.h>

#include <support/compare.hpp>

namespace {

using namespace situ;
using situ_test::thrown;

constexpr bool constant_expressions() {
  Layout const l(Shape{2, 3, 4});
  return l.strides == Shape{12, 4, 1} && l.is_contiguous() && l.size() == 24 && !l.is_broadcast() && l.extent().last == 23 && Layout().size() == 0;
}
static_assert(constant_expressions());

/// The offsets of all indices in row-major order, one by one.
std::vector<int64_t> offsets(Layout const& layout, int64_t first = 0) {
  std::vector<int64_t> result;
  int64_t index[max_rank] = {};
  for (int64_t n = layout.size(); n > 0; --n) {
    int64_t offset = first;
    for (int k = 0; k < layout.rank(); ++k) offset += index[k] * layout.strides[k];
    result.push_back(offset);
    for (int k = layout.rank() - 1; k >= 0; --k) {
      if (++index[k] < layout.shape[k]) break;
      index[k] = 0;
    }
  }
  return result;
}
std::vector<int64_t> offsets(detail::Viewed const& view) { return offsets(view.layout, view.offset); }

/// Strides that give these offsets for a shape, found from the offsets themselves; empty when there are none.
bool strides_exist(std::vector<int64_t> const& of, Shape const& shape) {
  Layout const dense(shape);
  Shape strides = dense.strides;
  for (int k = 0; k < shape.rank(); ++k) {
    strides[k] = shape[k] > 1 ? of[static_cast<std::size_t>(dense.strides[k])] - of[0] : 0;
  }
  return offsets(Layout(shape, strides), of[0]) == of;
}

void all_shapes(int64_t count, Shape const& begun, int rank, std::vector<Shape>& result) {
  if (rank == 0) {
    if (count == 1) result.push_back(begun);
    return;
  }
  for (int64_t n = 1; n <= count; ++n) {
    if (count % n != 0) continue;
    Shape next = begun;
    next.push_back(n);
    all_shapes(count / n, next, rank - 1, result);
  }
}

}  // namespace

TEST_CASE("a fresh layout is row-major without gaps") {
  CHECK(constant_expressions());
  CHECK(Layout(Shape{}).strides == Shape{});
  CHECK(Layout(Shape{3, 0, 2}).is_contiguous());
  CHECK(Layout(Shape{3, 1, 2}).strides == Shape{2, 2, 1});
  CHECK(Layout(Shape{3, 1}, Shape{1, 77}).is_contiguous());
  CHECK_FALSE(Layout(Shape{3, 2}, Shape{1, 3}).is_contiguous());
  CHECK(Layout(Shape{3, 2}, Shape{0, 1}).is_broadcast());
  CHECK_FALSE(Layout(Shape{1, 2}, Shape{0, 1}).is_broadcast());
}

TEST_CASE("the extent of a layout is what its offsets reach") {
  for (Layout const& l : {Layout(Shape{2, 3}), Layout(Shape{2, 3}, Shape{-3, 1}), Layout(Shape{2, 3}, Shape{1, -5}),
                          Layout(Shape{4, 2}, Shape{0, 7}), Layout(Shape{})}) {
    auto const all = offsets(l);
    CHECK(l.extent().first == *std::min_element(all.begin(), all.end()));
    CHECK(l.extent().last == *std::max_element(all.begin(), all.end()));
  }
  CHECK(Layout(Shape{2, 0}).extent().first == 0);
  CHECK(Layout(Shape{2, 0}).extent().last == -1);
}

TEST_CASE("select, flip, transpose, permute, squeeze and unsqueeze move no element") {
  Layout const l(Shape{2, 3, 4});
  CHECK(offsets(detail::select_view(l, 0, 1)) == std::vector<int64_t>{12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23});
  CHECK(offsets(detail::select_view(l, -2, -1)) == std::vector<int64_t>{8, 9, 10, 11, 20, 21, 22, 23});
  CHECK(offsets(detail::select_view(l, 2, 0)) == std::vector<int64_t>{0, 4, 8, 12, 16, 20});
  CHECK(offsets(detail::flip_view(Layout(Shape{2, 3}), 1)) == std::vector<int64_t>{2, 1, 0, 5, 4, 3});
  CHECK(offsets(detail::flip_view(Layout(Shape{2, 3}), 0)) == std::vector<int64_t>{3, 4, 5, 0, 1, 2});
  CHECK(offsets(detail::flip_view(Layout(Shape{0, 3}), 0)).empty());
  CHECK(offsets(detail::matrix_transposed(Layout(Shape{2, 3}))) == std::vector<int64_t>{0, 3, 1, 4, 2, 5});
  CHECK(detail::matrix_transposed(Layout(Shape{5})).shape == Shape{5});
  CHECK(detail::matrix_transposed(Layout(Shape{})).shape == Shape{});
  CHECK(detail::transposed(l, 0, -1).shape == Shape{4, 3, 2});
  Layout const p = detail::permuted(l, {2, 0, 1});
  CHECK(p.shape == Shape{4, 2, 3});
  CHECK(p.strides == Shape{1, 12, 4});
  CHECK(detail::permuted(l, {-1, -3, -2}).strides == p.strides);
  CHECK(detail::unsqueezed(l, 0).shape == Shape{1, 2, 3, 4});
  CHECK(detail::unsqueezed(l, -1).shape == Shape{2, 3, 4, 1});
  CHECK(detail::unsqueezed(l, 3).shape == Shape{2, 3, 4, 1});
  CHECK(detail::unsqueezed(l, 1).is_contiguous());
  CHECK(detail::squeezed(Layout(Shape{1, 2, 1, 3})).shape == Shape{2, 3});
  CHECK(detail::squeezed(Layout(Shape{1, 1})).shape == Shape{});
  CHECK(detail::squeezed(Layout(Shape{1, 2, 1}), -1).shape == Shape{1, 2});
  CHECK(detail::squeezed(Layout(Shape{1, 2, 1}), 1).shape == Shape{1, 2, 1});
}

TEST_CASE("expanding repeats axes of one index with stride 0") {
  Layout const l = detail::expanded(Layout(Shape{3, 1}), {2, 3, 4});
  CHECK(l.shape == Shape{2, 3, 4});
  CHECK(l.strides == Shape{0, 1, 0});
  CHECK(detail::expanded(Layout(Shape{3, 1}), {-1, 5}).shape == Shape{3, 5});
  CHECK(detail::expanded(Layout(Shape{3, 1}), {3, 0}).shape == Shape{3, 0});
  CHECK(detail::expanded(Layout(Shape{}), {2}).strides == Shape{0});
  CHECK(thrown<ShapeError>([] { detail::expanded(Layout(Shape{3}), {4}); },
                           "expand: shape [3] cannot be expanded to [4]: 3 != 4 in dimension 0") == "");
  CHECK(thrown<ShapeError>([] { detail::expanded(Layout(Shape{3, 1}), {3}); },
                           "expand: shape [3, 1] cannot be expanded to [3]: it has more dimensions") == "");
  CHECK(thrown<ShapeError>([] { detail::expanded(Layout(Shape{3}), {-1, 3}); },
                           "expand: shape [-1, 3] has a negative extent: -1; sizes are 0 or more, -1 keeps an existing one") == "");
}

TEST_CASE("an extent of -1 is inferred") {
  CHECK(detail::inferred({-1, 4}, {2, 3, 4}, "view") == Shape{6, 4});
  CHECK(detail::inferred({-1}, {}, "view") == Shape{1});
  CHECK(detail::inferred({2, -1}, {0, 2}, "view") == Shape{2, 0});
  CHECK(thrown<ShapeError>([] { detail::inferred({-1, -1}, {4}, "view"); },
                           "view: shape [-1, -1] has more than one -1; only one extent can be inferred") == "");
  CHECK(thrown<ShapeError>([] { detail::inferred({-1, 3}, {4}, "reshape"); },
                           "reshape: shape [4] (4 elements) cannot become [-1, 3]: 4 is not a multiple of 3") == "");
  CHECK(thrown<ShapeError>([] { detail::inferred({-1, 0}, {0}, "reshape"); },
                           "reshape: shape [0] (0 elements) cannot become [-1, 0]: beside an extent of 0 the -1 stands for any number; write the extent") == "");
  CHECK(thrown<ShapeError>([] { detail::inferred({5}, {4}, "view"); }, "view: shape [4] (4 elements) cannot become [5] (5 elements)") == "");
  CHECK(thrown<ShapeError>([] { detail::inferred({-2, 2}, {4}, "view"); },
                           "view: shape [-2, 2] has a negative extent: -2; sizes are 0 or more, or one -1") == "");
  CHECK(thrown<ShapeError>([] { detail::inferred({4294967296, 4294967296}, {4}, "view"); },
                           "view: shape [4294967296, 4294967296] has more elements than can be addressed: the product of the sizes overflows") == "");
}

TEST_CASE("a layout can be viewed in another shape exactly where strides for it exist") {
  std::vector<Layout> layouts{Layout(Shape{2, 3, 4})};
  auto const add = [&](Layout const& l) { layouts.push_back(l); };
  add(detail::transposed(layouts[0], 0, 1));
  add(detail::transposed(layouts[0], 1, 2));
  add(detail::permuted(layouts[0], {2, 0, 1}));
  add(detail::flip_view(layouts[0], 0).layout);
  add(detail::flip_view(detail::flip_view(layouts[0], 1).layout, 2).layout);
  add(Layout(Shape{2, 3, 4}, Shape{24, 8, 2}));
  add(Layout(Shape{2, 3, 4}, Shape{24, 4, 1}));
  add(Layout(Shape{2, 3, 4}, Shape{12, 4, 0}));
  add(Layout(Shape{2, 3, 4}, Shape{0, 0, 1}));
  add(Layout(Shape{6, 1, 4}, Shape{8, 3, 1}));
  add(Layout(Shape{6, 4, 1}, Shape{4, 1, 9}));
  add(Layout(Shape{1, 24}, Shape{5, -1}));
  add(Layout(Shape{24}, Shape{3}));
  add(Layout(Shape{4, 1, 6, 1}, Shape{1, 100, 4, 100}));
  add(Layout(Shape{2, 2, 3, 2}, Shape{12, 6, 2, 1}));
  std::vector<Shape> shapes;
  for (int rank = 0; rank <= 5; ++rank) all_shapes(24, {}, rank, shapes);
  int wrong = 0, viewable = 0;
  for (Layout const& l : layouts) {
    auto const before = offsets(l);
    for (Shape const& to : shapes) {
      Layout result;
      bool const possible = detail::viewed_as(l, to, result);
      if (possible != strides_exist(before, to)) ++wrong;
      if (!possible) continue;
      ++viewable;
      if (!(result.shape == to) || offsets(result) != before) ++wrong;
    }
  }
  CHECK(wrong == 0);
  CHECK(viewable > 0);
}

TEST_CASE("slices follow Python's rules") {
  // Checksums of the indices that Python gives for every start and stop in -6 .. 6 and step in -3 .. 3, and for an open stop.
  struct {
    int64_t n;
    uint32_t closed, open;
  } const python[] = {{0, 1842613088u, 4110692576u}, {1, 3943580352u, 338882145u}, {4, 3659298204u, 1984501603u}, {5, 2585572420u, 592743663u}};
  for (auto const& line : python) {
    CAPTURE(line.n);
    Layout const l(Shape{line.n});
    uint32_t closed = 0, open = 0;
    auto const add = [](uint32_t& sum, detail::Viewed const& view) {
      for (int64_t i : offsets(view)) sum = sum * 31 + static_cast<uint32_t>(i) + 1;
      sum = sum * 31 + 97;
    };
    for (int64_t start = -6; start <= 6; ++start) {
      for (int64_t stop = -6; stop <= 6; ++stop) {
        for (int64_t step : {-3, -2, -1, 1, 2, 3}) add(closed, detail::slice_view(l, 0, start, stop, step));
      }
      for (int64_t step : {-3, -2, -1, 1, 2, 3}) add(open, detail::slice_view(l, 0, start, 0, step, false, true));
    }
    CHECK(closed == line.closed);
    CHECK(open == line.open);
  }
}

TEST_CASE("bounds and steps of any size are safe") {
  Layout const l(Shape{5});
  CHECK(offsets(detail::slice_view(l, 0, INT64_MIN, INT64_MAX, INT64_MAX)) == std::vector<int64_t>{0});
  CHECK(offsets(detail::slice_view(l, 0, INT64_MAX, INT64_MIN, INT64_MIN)) == std::vector<int64_t>{4});
  CHECK(offsets(detail::slice_view(l, 0, INT64_MAX, INT64_MIN, -2)) == std::vector<int64_t>{4, 2, 0});
  CHECK(thrown<IndexError>([&] { detail::slice_view(l, 0, 0, 5, 0); }, "slice: the step of axis 0 is 0; a step is positive or negative") == "");
}

TEST_CASE("indices and axes outside their range are named") {
  Layout const l(Shape{2, 3});
  CHECK(thrown<IndexError>([&] { detail::select_view(l, 0, 2); }, "select: index 2 is out of range for axis 0 of shape [2, 3]: it has 2 elements") == "");
  CHECK(thrown<IndexError>([&] { detail::select_view(l, 1, -4); }, "select: index -4 is out of range for axis 1 of shape [2, 3]: it has 3 elements") == "");
  CHECK(thrown<IndexError>([&] { detail::select_view(Layout(Shape{1}), 0, 1); },
                           "select: index 1 is out of range for axis 0 of shape [1]: it has 1 element") == "");
  CHECK(thrown<ShapeError>([&] { detail::select_view(l, 2, 0); }, "select: axis 2 is out of range for shape [2, 3]: axes are -2 to 1") == "");
  CHECK(thrown<ShapeError>([&] { detail::flip_view(l, -3); }, "flip: axis -3 is out of range for shape [2, 3]: axes are -2 to 1") == "");
  CHECK(thrown<ShapeError>([&] { detail::unsqueezed(l, 3 + 1); }, "unsqueeze: axis 4 is out of range for shape [2, 3]: axes are -3 to 2") == "");
  CHECK(thrown<ShapeError>([&] { detail::unsqueezed(Layout(Shape::filled(8, 1)), 0); }, "shape: 9 dimensions were given: a tensor has at most 8") == "");
  CHECK(thrown<ShapeError>([&] { detail::matrix_transposed(Layout(Shape{1, 2, 3})); },
                           "t: shape [1, 2, 3] has 3 axes: t() takes at most 2; use transpose(axis0, axis1) or permute") == "");
  CHECK(thrown<ShapeError>([&] { detail::permuted(l, {0}); }, "permute: 1 axis [0] was given for shape [2, 3]: it has 2") == "");
  CHECK_THROWS_AS(detail::permuted(l, {1, -1}), ShapeError);
}
