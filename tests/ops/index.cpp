#include <situ/ops/index.hpp>

#include <ops/expected/check_places.hpp>
#include <situ/ops/compare.hpp>
#include <support/probe.hpp>

using namespace situ;
using situ_test::check_places;
using situ_test::difference;
using situ_test::marked;
using situ_test::thrown;

namespace {

/// The indices that places.py uses, as I on D; some of them counted from the end.
template <class D, class I>
struct Indices {
  static Tensor<I, D> made(Tensor<int> const& values) { return cast<I>(values).to(D{}); }
  Tensor<I, D> gather0 = made({{{1, 0, -2}, {0, 1, -1}}}).reshape({1, 2, 3});
  Tensor<I, D> gather1 = made({{{1, 0, 2, 2}, {0, -1, 1, 1}}, {{2, -1, 0, 1}, {1, 0, 0, 2}}});
  Tensor<I, D> gather2 = made({{{3}, {0}, {-2}}, {{1}, {1}, {-4}}});
  Tensor<I, D> rows3 = made({2, 0, 2, 1, -2});
  Tensor<I, D> take = made({{23, 0, 7}, {-1, -24, 11}});
  Tensor<I, D> scatter1 = made({{{1, 0, 2, 2}, {0, 2, 1, -2}}});
  Tensor<I, D> scatter2 = made({{{3, 0}, {0, 1}, {2, -1}}});
};

/// All of the table, on tensors of T on D and on formulas of them, with indices of type I in two layouts.
template <class T, class D, class I>
void check_selecting() {
  Indices<D, I> const index;
  Tensor<T> const source = marked<T>({2, 3, 4}, 60);
  auto const sources = source.to_vector();
  std::vector<T> const elements(sources.begin(), sources.end());
  Tensor<T, D> const src = source.to(D{});
  Tensor<T, D> src_steps = empty<T>({2, 3, 8}, D{}).slice(2, 0, 8, 2);
  src_steps.assign(src);
  auto const flipped_twice = [](auto const& i) { return eval(i.flip(0)).flip(0); };  // the same numbers, backwards in memory
  auto const check = [&](auto&& input) {
    check_places<D, T>("gather 0", [&](auto const& x) { return gather(input(x), 0, index.gather0); });
    check_places<D, T>("gather 1", [&](auto const& x) { return gather(input(x), 1, flipped_twice(index.gather1)); });
    check_places<D, T>("gather 2", [&](auto const& x) { return gather(input(x), -1, index.gather2 + I(0)); });
    check_places<D, T>("index_select 0", [&](auto const& x) { return index_select(input(x), 0, index.rows3); });
    check_places<D, T>("index_select 1", [&](auto const& x) { return index_select(input(x), 1, flipped_twice(index.rows3)); });
    check_places<D, T>("index_select 2", [&](auto const& x) { return index_select(input(x), 2, index.rows3); });
    check_places<D, T>("take", [&](auto const& x) { return take(input(x), index.take); });
    check_places<D, T>("scatter 0", [&](auto const& x) { return scatter(input(x), 0, index.gather0, src); }, elements);
    check_places<D, T>("scatter 1", [&](auto const& x) { return scatter(input(x), 1, index.scatter1, src_steps); }, elements);
    check_places<D, T>("scatter 2", [&](auto const& x) { return scatter(input(x), 2, flipped_twice(index.scatter2), src); }, elements);
  };
  check([](auto const& x) { return x; });
  check([](auto const& x) { return cast<T>(x); });
}

/// Indices from -extent to extent - 1, in an order that looks random.
Tensor<int64_t> places(Shape const& shape, int64_t extent, unsigned seed = 7) {
  auto result = empty<int64_t>(shape);
  unsigned state = seed;
  for (int64_t k = 0; k < result.size(); ++k) {
    state = state * 1664525u + 1013904223u;
    result.data()[k] = static_cast<int64_t>((state >> 8) % static_cast<unsigned>(2 * extent)) - extent;
  }
  return result;
}

/// scatter_add by a plain loop, in double; `add` false: scatter.
Tensor<double> scattered_plainly(Tensor<double> const& x, int axis, Tensor<int64_t> const& index, Tensor<double> const& src, bool add) {
  Tensor<double> y = x.clone();
  for (int64_t i = 0; i < index.size(0); ++i) {
    for (int64_t j = 0; j < index.size(1); ++j) {
      int64_t k = index(i, j);
      if (k < 0) k += x.size(axis);
      double& place = axis == 0 ? y(k, j) : y(i, k);
      place = add ? place + src(i, j) : src(i, j);
    }
  }
  return y;
}

template <class T>
Tensor<T> small_numbers(Shape const& shape) {
  Tensor<T> result = empty<T>(shape);
  for (int64_t k = 0; k < result.size(); ++k) result.data()[k] = detail::convert_scalar<T>((k * 37 + k / 11) % 19 - (std::is_same_v<T, uint8_t> ? 0 : 9));
  return result;
}

}  // namespace

TEST_CASE("selecting by index takes every element from where PyTorch takes it") {
  situ_test::with_every_instruction_set<Cpu>([] { check_selecting<float, Cpu, int64_t>(); });
  check_selecting<bool, Cpu, int8_t>();
  check_selecting<double, Emulated<0>, int32_t>();
  check_selecting<float16, Emulated<0>, int16_t>();
  check_selecting<int16_t, Pinned, int64_t>();
}

TEST_CASE("uint8 is an index, not a mask") {
  Tensor<int32_t> const x{10, 20, 30};
  CHECK(index_select(x, 0, Tensor<uint8_t>{1, 1, 0}).to_vector() == std::vector<int32_t>{20, 20, 10});
}

TEST_CASE("rows of every length are selected") {
  for (int64_t width : {1, 2, 3, 4, 8, 16, 17, 32, 100, 700}) {
    Tensor<float> const x = small_numbers<float>({50, width, 2})(all(), all(), 0), z = eval(x.t()).t();
    Tensor<float> const dense = eval(x), column = small_numbers<float>({50, 1});
    auto const rows = places({333}, 50);
    int64_t wrong = 0;
    auto const a = index_select(x, 0, rows), b = index_select(dense, 0, rows), c = index_select(x * 2 + column, 0, rows), d = index_select(z, 0, rows),
               e = index_select(dense * 2, 0, rows), f = index_select(dense.t(), 1, rows), g = index_select(dense.t() + 1, 1, rows);
    for (int64_t r = 0; r < 333; ++r) {
      int64_t const i = rows(r) < 0 ? rows(r) + 50 : rows(r);
      for (int64_t j = 0; j < width; ++j) {
        float const v = x(i, j);
        wrong += a(r, j) != v || b(r, j) != v || c(r, j) != v * 2 + column(i, 0) || d(r, j) != v || e(r, j) != v * 2 || f(j, r) != v || g(j, r) != v + 1;
      }
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("the same places of many rows, however long these are") {
  for (int64_t const count : {63, 64, 65, 300, 2048, 2049}) {
    CAPTURE(count);
    int64_t const rows = 9, columns = 500;
    Tensor<float> const x = arange<float>(rows * columns).view({rows, columns});
    Tensor<int64_t> index = empty<int64_t>({count});
    for (int64_t k = 0; k < count; ++k) index.data()[k] = (k * 37) % 1000 - 500;  // negative ones count from the end
    Tensor<float> const y = index_select(x, 1, index);
    int64_t wrong = 0;
    for (int64_t k = 0; k < rows * count; ++k) {
      int64_t const i = index.data()[k % count];
      wrong += y.data()[k] != static_cast<float>(k / count * columns + (i < 0 ? i + columns : i));
    }
    CHECK(wrong == 0);
    index.data()[count - 2] = columns;
    CHECK_THROWS_AS(index_select(x, 1, index), IndexError);
  }
}

TEST_CASE("only the selected rows of a formula are computed, in one launch") {
  Tensor<float, Probe> const x = ones<float>({1000, 16}, Probe{}) * 3;
  Tensor<int64_t, Probe> const rows{5, -1};
  Probe::reset();
  auto const y = index_select(x * 2 + 1, 0, rows);
  CHECK(Probe::launches == 1);
  CHECK(Probe::items == 2);
  CHECK(Probe::allocations == 1);
  CHECK(Probe::synchronizations == 0);
  CHECK(y.to_vector() == std::vector<float>(32, 7));
}

TEST_CASE_TEMPLATE("scattering is a plain loop in row-major order", T, float, int32_t, int8_t, float16) {
  struct Form {
    Shape x, index;
  };
  for (Form const& form : {Form{{40, 30}, {40, 30}}, Form{{33, 21}, {9000, 21}}, Form{{3, 700}, {300, 700}}, Form{{700, 3}, {700, 200}}, Form{{1, 9}, {70000, 1}}, Form{{9, 1}, {70000, 1}}, Form{{6000, 1}, {70000, 1}}, Form{{20, 5}, {9000, 5}}, Form{{2, 2}, {0, 2}}}) {
    for (int way : {0, 1, 2, 3}) {
      int const axis = way % 2;
      if (form.index[1 - axis] > form.x[1 - axis]) continue;
      Tensor<T> const x = small_numbers<T>(form.x), src = small_numbers<T>(form.index);
      Tensor<int64_t> const each = places(form.index, form.x[axis]), one = std::as_const(each).slice(1 - axis, 0, 1).expand(form.index);
      Tensor<int64_t> const index = way < 2 ? each : one;  // or whole rows, of one index
      INFO(to_string(form.x), " ", to_string(form.index), " axis ", axis);
      Tensor<double> const wide = cast<double>(x);
      for (bool add : {false, true}) {
        Tensor<T> const expected = cast<T>(cast<int64_t>(scattered_plainly(wide, axis, index, cast<double>(src), add)));
        for (int threads : {1, 2, 7}) {
          set_num_threads(threads);
          CHECK(equal(add ? scatter_add(x, axis, index, src) : scatter(x, axis, index, src), expected));
        }
        Emulated<0> const device;
        auto const there = add ? scatter_add(x.to(device), axis, index.to(device), src.to(device)) : scatter(x.to(device), axis, index.to(device), src.to(device));
        CHECK(equal(there.cpu(), expected));
      }
    }
  }
  set_num_threads(2);
}

TEST_CASE("threads share out targets that no cache holds, each in the order of the indices") {
  constexpr int64_t n = 2200000;
  for (Shape const& form : {Shape{70000}, Shape{35000, 2}}) {
    int64_t const columns = form.rank() == 1 ? 1 : form[1], rows = n / columns;
    Shape const to = form.rank() == 1 ? Shape{rows} : Shape{rows, columns};
    Tensor<int64_t> const index = places(form, 20000) * (rows / 20000);  // each several times, also counted from the end
    Tensor<int32_t> const src = cast<int32_t>(places(form, 1000, 3));
    std::vector<int32_t> sums(n), last(n);
    for (int64_t k = 0; k < src.size(); ++k) {
      int64_t const i = index.data()[k] < 0 ? index.data()[k] + rows : index.data()[k];
      sums[static_cast<std::size_t>(i * columns + k % columns)] += src.data()[k];
      last[static_cast<std::size_t>(i * columns + k % columns)] = src.data()[k];
    }
    for (int threads : {1, 2, 5}) {
      set_num_threads(threads);
      CHECK(scatter_add(zeros<int32_t>(to), 0, index, src).to_vector() == sums);
      CHECK(scatter(zeros<int32_t>(to), 0, index, src).to_vector() == last);
      Tensor<int64_t> wrong = index.clone();
      wrong.data()[wrong.size() - 3] = n;
      CHECK_THROWS_AS(scatter_add(zeros<int32_t>(to), 0, wrong, src), IndexError);
    }
  }
  set_num_threads(2);
}

TEST_CASE("sums of floats do not depend on the number of threads") {
  auto const index = places({300000}, 70);
  Tensor<float> const src = cast<float>(places({300000}, 1 << 20, 3)) / 1024;
  Tensor<float> first;
  for (int threads : {1, 2, 3, 8}) {
    set_num_threads(threads);
    Tensor<float> const sums = scatter_add(zeros({70}), 0, index, src);
    if (first.size() == 0) first = sums;
    CHECK(equal(sums, first));
  }
  set_num_threads(2);
  Tensor<double> const exact = scattered_plainly(zeros<double>({70, 1}), 0, index.unsqueeze(1), cast<double>(src).to(Cpu{}).unsqueeze(1), true);
  CHECK(allclose(cast<double>(first), exact.flatten(), {1e-4, 1e-2}));
}

TEST_CASE("numbers and other types are scattered, bools are or-ed, integers wrap") {
  Tensor<float> const x{1, 2, 3};
  Tensor<int64_t> const places{0, -1, 0};
  CHECK(scatter(x, 0, places, 7).to_vector() == std::vector<float>{7, 2, 7});
  CHECK(scatter_add(x, 0, places, 0.5).to_vector() == std::vector<float>{2, 2, 3.5});
  CHECK(scatter_add(x, 0, places, Tensor<int32_t>{1, 2, 3}).to_vector() == std::vector<float>{5, 2, 5});
  CHECK(scatter_add(x, 0, places, x * 2).to_vector() == std::vector<float>{9, 2, 7});
  CHECK(scatter_add(Tensor<bool>{false, false, true}, 0, places, Tensor<bool>{true, false, false}).to_vector() == std::vector<bool>{true, false, true});
  CHECK(scatter_add(Tensor<int8_t>{100, 0, 0}, 0, places, Tensor<int8_t>{100, 1, 100}).to_vector() == std::vector<int8_t>{44, 0, 1});
  CHECK(scatter_add(Tensor<float16>{0, 0, 0}, 0, zeros<int64_t>({3}), Tensor<float16>{2048, 1, 1}).item(0) == 2050.f);  // 2048 in float16's own additions
  CHECK(x.to_vector() == std::vector<float>{1, 2, 3});
}

TEST_CASE_TEMPLATE("classes become rows with a single one", D, Cpu, Emulated<0>) {
  Tensor<int32_t, D> const labels = Tensor<int32_t>{{0, 2}, {1, 2}}.to(D{});
  auto const rows = one_hot(labels, 3);
  static_assert(std::is_same_v<decltype(rows), Tensor<int64_t, D> const>);
  CHECK(rows.shape() == Shape(2, 2, 3));
  CHECK(rows.to_vector() == std::vector<int64_t>{1, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1});
  CHECK(one_hot<float16>(labels[1] - 1, 2).to_vector() == std::vector<float16>{float16(1.f), float16(0.f), float16(0.f), float16(1.f)});
  CHECK(one_hot<bool>(labels[0], 4).to_vector() == std::vector<bool>{true, false, false, false, false, false, true, false});
  CHECK(one_hot(labels(range(0, 0)), 3).shape() == Shape(0, 2, 3));
}

TEST_CASE_TEMPLATE("one_hot counts the classes where their number is not given", D, Cpu, Emulated<0>) {
  Tensor<uint8_t, D> const labels = Tensor<uint8_t>{0, 2, 1}.to(D{});
  CHECK(equal(one_hot(labels), one_hot(labels, 3)));
  CHECK(one_hot<float>(labels(range(0, 1))).to_vector() == std::vector<float>{1});  // shapes: libtorch 1.13
  CHECK(one_hot(labels + uint8_t(253)).shape() == Shape(3, 256));
  CHECK(one_hot(labels[1] * 2).to_vector() == std::vector<int64_t>{0, 0, 0, 0, 1});
  CHECK(thrown<ShapeError>([&] { one_hot(labels(range(0, 0))); }, "one_hot: shape [0] has no indices to count the classes from; give their number") == "");
  CHECK(thrown<ShapeError>([&] { one_hot(cast<int64_t>(labels[0]) + INT64_MAX); },
                           "one_hot: shape [9223372036854775807] has more elements than can be addressed: the product of the sizes overflows") == "");
  if constexpr (host_device<D>) {
    CHECK(thrown<IndexError>([&] { one_hot(cast<int>(labels) - 3); }, "one_hot: index -3 at [0] is out of range for 1 class: indices are 0 to 0") == "");
  }
}

TEST_CASE("nothing is selected from nothing") {
  Tensor<int64_t> const none = zeros<int64_t>({0});
  CHECK(index_select(zeros({3, 4}), 1, none).shape() == Shape(3, 0));
  CHECK(index_select(zeros({0, 4}), 0, none).shape() == Shape(0, 4));
  CHECK(index_select(zeros({2, 0}), 0, Tensor<int64_t>{1, 0, 1}).shape() == Shape(3, 0));
  CHECK(take(zeros({3}), none).shape() == Shape(0));
  CHECK(take(zeros({3, 4}), none, 1).shape() == Shape(3, 0));
  CHECK(take(Tensor<float>{{1, 2, 3}, {4, 5, 6}}, Tensor<int64_t>{2, 0}, 1).to_vector() == std::vector<float>{3, 1, 6, 4});
  CHECK(gather(zeros({3, 4}), 0, zeros<int64_t>({0, 4})).shape() == Shape(0, 4));
  CHECK(scatter_add(ones({2}), 0, none, zeros({0})).to_vector() == std::vector<float>{1, 1});
}

TEST_CASE("a bad index is named, with its place") {
  Tensor<float> const x = zeros({5, 3});
  Tensor<int64_t> const wrong{{0, 4, 2}, {-1, 1, -7}};
  auto const index_says = [](auto f, char const* message) { CHECK(thrown<IndexError>(f, message) == ""); };
  auto const shape_says = [](auto f, char const* message) { CHECK(thrown<ShapeError>(f, message) == ""); };
  index_says([&] { gather(x, 0, wrong); }, "gather: index -7 at [1, 2] is out of range for axis 0 of shape [5, 3]: indices are -5 to 4");
  index_says([&] { gather(x, 1, wrong(range(0, 1))); }, "gather: index 4 at [0, 1] is out of range for axis 1 of shape [5, 3]: indices are -3 to 2");
  index_says([&] { index_select(x, 0, wrong.flatten()); }, "index_select: index -7 at [5] is out of range for axis 0 of shape [5, 3]: indices are -5 to 4");
  index_says([&] { index_select(x * 2, 0, wrong.flatten()); }, "index_select: index -7 at [5] is out of range for axis 0 of shape [5, 3]: indices are -5 to 4");
  index_says([&] { index_select(zeros({5, 32}) * 2, 0, wrong.flatten()); }, "index_select: index -7 at [5] is out of range for axis 0 of shape [5, 32]: indices are -5 to 4");
  index_says([&] { index_select(x, 1, wrong[1]); }, "index_select: index -7 at [2] is out of range for axis 1 of shape [5, 3]: indices are -3 to 2");
  index_says([&] { index_select(zeros({0, 3}), 0, wrong[0]); }, "index_select: index 0 at [0] is out of range for axis 0 of shape [0, 3]: it has no elements");
  index_says([&] { index_select(zeros({2, 0}), 0, Tensor<int64_t>{1, 2}); }, "index_select: index 2 at [1] is out of range for axis 0 of shape [2, 0]: indices are -2 to 1");
  index_says([&] { index_select(zeros({2, 0}) * 2, 1, Tensor<int64_t>{0}); }, "index_select: index 0 at [0] is out of range for axis 1 of shape [2, 0]: it has no elements");
  index_says([&] { take(x, wrong + 11); }, "take: index 15 at [0, 1] is out of range for shape [5, 3]: indices are -15 to 14");
  index_says([&] { take(x, Tensor<int64_t>{INT64_MAX, 0}); }, "take: index 9223372036854775807 at [0] is out of range for shape [5, 3]: indices are -15 to 14");
  index_says([&] { scatter(x, 0, wrong, 1); }, "scatter: index -7 at [1, 2] is out of range for axis 0 of shape [5, 3]: indices are -5 to 4");
  index_says([&] { scatter_add(x, 0, wrong, x); }, "scatter_add: index -7 at [1, 2] is out of range for axis 0 of shape [5, 3]: indices are -5 to 4");
  index_says([&] { one_hot(wrong, 5); }, "one_hot: index -1 at [1, 0] is out of range for 5 classes: indices are 0 to 4");
  index_says([&] { one_hot(wrong, 0); }, "one_hot: index 0 at [0, 0] is out of range for 0 classes: it has no elements");
  shape_says([&] { gather(x, 2, wrong); }, "gather: axis 2 is out of range for shape [5, 3]: axes are -2 to 1");
  shape_says([&] { gather(x, 0, wrong[0]); }, "gather: the index of shape [3] has 1 axis, x of shape [5, 3] has 2; they must be the same");
  shape_says([&] { gather(x, 0, zeros<int64_t>({1, 4})); }, "gather: the index of shape [1, 4] does not fit x of shape [5, 3] along axis 1: 4 > 3");
  shape_says([&] { index_select(x, 0, wrong); }, "index_select: the index of shape [2, 3] has 2 axes; it must have 1: index.flatten() has, and gather picks single elements");
  shape_says([&] { scatter(x, 0, wrong, zeros({1, 3})); }, "scatter: src of shape [1, 3] has too few elements for the index of shape [2, 3]: an element for each index is needed");
  shape_says([&] { one_hot(wrong, -1); }, "one_hot: -1 classes were asked for; there are 0 or more");
  CHECK(equal(x, zeros({5, 3})));
  Tensor<float> const nothing = zeros({0, 3});
  Tensor<int64_t> const some = zeros<int64_t>({2, 3});
  index_says([&] { gather(nothing.flip(1), 0, some); }, "gather: index 0 at [0, 0] is out of range for axis 0 of shape [0, 3]: it has no elements");
  index_says([&] { scatter_add(nothing, 0, some, ones({2, 3})); }, "scatter_add: index 0 at [0, 0] is out of range for axis 0 of shape [0, 3]: it has no elements");
}

TEST_CASE("the first bad index is named for any number of threads") {
  Tensor<int64_t> index = zeros<int64_t>({200000});
  index.slice(0, 150000, 160000) += 9;
  index(70000) = -3;
  for (int threads : {1, 4}) {
    set_num_threads(threads);
    CHECK(thrown<IndexError>([&] { take(zeros({2}), index); }, "take: index -3 at [70000] is out of range for shape [2]: indices are -2 to 1") == "");
    CHECK(thrown<IndexError>([&] { scatter_add(zeros({2}), 0, index, 1); }, "scatter_add: index -3 at [70000] is out of range for axis 0 of shape [2]: indices are -2 to 1") == "");
  }
  set_num_threads(2);
}

namespace {
template <class X, class I>
concept gathers = requires(X const& x, I const& i) {
  gather(x, 0, i);
  index_select(x, 0, i);
  take(x, i);
};
template <class X, class I, class S>
concept scatters = requires(X const& x, I const& i, S const& s) {
  scatter(x, 0, i, s);
  scatter_add(x, 0, i, s);
};
}  // namespace

TEST_CASE("indices elsewhere, and indices that are no integers, do not compile") {
  using X = Tensor<float>;
  using I = Tensor<int64_t>;
  static_assert(gathers<X, I> && gathers<X, Tensor<int8_t, Pinned>> && gathers<Tensor<float, Emulated<0>>, Tensor<int, Emulated<0>>>);
  static_assert(!gathers<X, Tensor<int64_t, Emulated<0>>> && !gathers<X, X> && !gathers<X, Tensor<bool>>);
  static_assert(scatters<X, I, X> && scatters<X, I, int> && scatters<X, I, Tensor<int16_t>> && scatters<Tensor<int>, I, int>);
  static_assert(!scatters<X, I, Tensor<double>> && !scatters<X, I, Tensor<float, Emulated<0>>> && !scatters<Tensor<int>, I, double>);
}

// ---- devices that run later -----------------------------------------------------------------------------------------

TEST_CASE("on a device a bad index becomes an error at the next synchronisation, and the device works on") {
  using D = Emulated<0>;
  Tensor<float, D> const x = arange(12).reshape({4, 3}).to(D{});
  Tensor<int64_t, D> const wrong = Tensor<int64_t>{{0, 1, 9}, {-5, 1, 2}}.to(D{});
  synchronize(D{});
  auto const says = [](auto f, char const* message) { CHECK(thrown<IndexError>(f, message) == ""); };
  {
    auto const y = gather(x, 0, wrong);  // does not throw
    says([] { synchronize(D{}); },
         "emulated:0: gather: index 9 (element 2 of the indices) is out of range for axis 0: it has 4 elements; the operation ran without it, and its result must "
         "not be used");
    synchronize(D{});
    CHECK(y.to_vector() == std::vector<float>{0, 4, 0, 0, 4, 8});  // 0 where there was nothing to select
  }
  {
    auto const y = index_select(x, 0, wrong.flatten());
    says([&] { (void)x.item(0, 0); },
         "emulated:0: index_select: index 9 (element 2 of the indices) is out of range for axis 0: it has 4 elements; the operation ran without it, and its result "
         "must not be used");
    CHECK(x.item(3, 2) == 11);
  }
  {
    auto const y = take(x, wrong + 5), z = take(x, wrong - 100);  // the first fault stays
    says([&] { (void)z.cpu(); },
         "emulated:0: take: index 14 (element 2 of the indices) is out of range for an input of 12 elements; the operation ran without it, and its result must not "
         "be used");
    CHECK(y.to_vector() == std::vector<float>{5, 6, 0, 0, 6, 7});
  }
  {
    auto const y = scatter_add(x, 0, wrong, 1), z = scatter(x, 0, wrong, -1);
    says([&] { (void)y.to_vector(); },
         "emulated:0: scatter_add: index 9 (element 2 of the indices) is out of range for axis 0: it has 4 elements; the operation ran without it, and its result "
         "must not be used");
    CHECK(y.to_vector() == std::vector<float>{1, 1, 2, 3, 6, 5, 6, 7, 9, 9, 10, 11});
    CHECK(z.to_vector() == std::vector<float>{-1, 1, 2, 3, -1, 5, 6, 7, -1, 9, 10, 11});
  }
  {
    auto const y = one_hot(wrong, 3);
    says([] { synchronize(D{}); },
         "emulated:0: one_hot: index 9 (element 2 of the indices) is out of range for 3 classes; the operation ran without it, and its result must not be used");
  }
  {
    auto const y = index_select(x * 2 + ones({4, 3}).to(D{}), 0, wrong.flatten());
    CHECK_THROWS_AS(synchronize(D{}), IndexError);
  }
  { auto const ended_unread = gather(x, 0, wrong); }  // destructors do not throw
  CHECK_THROWS_AS(synchronize(D{}), IndexError);
  CHECK((x * 2).item(1, 1) == 8);
}

TEST_CASE("a fault on one device is no concern of another") {
  Tensor<float, Emulated<0>> const x = ones({3}).to(Emulated<0>{});
  Tensor<float, Emulated<1>> const other = ones({3}).to(Emulated<1>{});
  auto const y = take(x, Tensor<int64_t>{3}.to(Emulated<0>{}));
  synchronize(Emulated<1>{});
  CHECK(other.item(2) == 1);
  auto const index = Tensor<int64_t>{0, 2}.to(Emulated<0>{});  // what is written to the device is not in doubt
  CHECK_THROWS_AS((void)y.item(), IndexError);
  CHECK(take(x, index).to_vector() == std::vector<float>{1, 1});
}
