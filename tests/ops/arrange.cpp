#include <situ/ops/arrange.hpp>
#include <situ/ops/concat.hpp>
#include <situ/ops/pad.hpp>
#include <situ/ops/matrix_parts.hpp>

#include <ops/expected/check_places.hpp>
#include <situ/ops/index.hpp>
#include <support/devices.hpp>
#include <support/probe.hpp>

using namespace situ;
using situ_test::Operation;
using situ_test::thrown;

namespace {

/// What every row of the table does to x; expected/places.py has the same rows.
template <class X>
struct Arranging {
  using T = value_of<X>;
  using D = detail::result_device_t<device_of<X>>;
  using R = Tensor<T, D>;
  static std::vector<Operation<X>> operations() {
    return {
        {"concat 0", [](X const& x) -> R { return concat(x, x); }},
        {"concat 1 of three", [](X const& x) -> R { return concat(1, x, flip(x, 1), split(x, {1, 2}, 1)[0]); }},
        {"concat -1", [](X const& x) -> R { return concat({R(x), R(flip(x, 0))}, -1); }},
        {"concat nothing", [](X const& x) -> R { return concat(std::vector<R>{R(), R(x)}, 1); }},
        {"stack 0", [](X const& x) -> R { return stack(x, flip(x, 0)); }},
        {"stack 2", [](X const& x) -> R { return stack(2, x, flip(x, 2)); }},
        {"stack -1", [](X const& x) -> R { return stack({R(x), R(x), R(flip(x, 0))}, -1); }},
        {"split 3 last", [](X const& x) -> R { return split(x, 3, 2)[1]; }},
        {"split sizes", [](X const& x) -> R { return split(x, {1, 0, 2}, 1)[2]; }},
        {"chunk 3", [](X const& x) -> R { return chunk(x, 3, 2)[1]; }},
        {"tile all", [](X const& x) -> R { return tile(x, {2, 1, 3}); }},
        {"tile fewer", [](X const& x) -> R { return tile(x, 2); }},
        {"tile more", [](X const& x) -> R { return tile(x, {2, 1, 2, 1}); }},
        {"tile none", [](X const& x) -> R { return tile(x, {0, 1, 1}); }},
        {"repeat 0", [](X const& x) -> R { return repeat(x, 3, 0); }},
        {"repeat 1", [](X const& x) -> R { return repeat(x, 2, 1); }},
        {"repeat 2", [](X const& x) -> R { return repeat(x, 2, -1); }},
        {"repeat flat", [](X const& x) -> R { return repeat(x, 2); }},
        {"repeat counts", [](X const& x) -> R { return repeat(x, {1, 0, 3}, 1); }},
        {"pad last", [](X const& x) -> R { return pad(x, {1, 2}, true); }},
        {"pad three", [](X const& x) -> R { return pad(x, {1, 0, 2, 1, 0, 1}, true); }},
        {"pad negative", [](X const& x) -> R { return pad(x, {-1, 2, 1, -1}, true); }},
        {"pad reflect", [](X const& x) -> R { return pad(x, {3, 1, 1, 2}, pad_mode::reflect); }},
        {"pad replicate", [](X const& x) -> R { return pad(x, {3, 1, 1, 5}, pad_mode::replicate); }},
        {"pad circular", [](X const& x) -> R { return pad(x, {4, 1, 0, 3}, pad_mode::circular); }},
        {"roll 2", [](X const& x) -> R { return roll(x, 1, 2); }},
        {"roll two", [](X const& x) -> R { return roll(x, {1, -1}, {0, 2}); }},
        {"roll far", [](X const& x) -> R { return roll(x, -7, 1); }},
        {"roll twice", [](X const& x) -> R { return roll(x, {1, 2}, {2, -1}); }},
        {"roll flat", [](X const& x) -> R { return roll(x, 5); }},
        {"flip all", [](X const& x) -> R { return flip(x); }},
        {"flip two", [](X const& x) -> R { return flip(x, {0, -1}); }},
        {"triu", [](X const& x) -> R { return triu(x); }},
        {"triu 2", [](X const& x) -> R { return triu(x, 2); }},
        {"tril 1", [](X const& x) -> R { return tril(x, 1); }},
        {"tril -9", [](X const& x) -> R { return tril(x, -9); }},
        {"diag", [](X const& x) -> R { return diag(x); }},
        {"diag 1", [](X const& x) -> R { return diag(x, 1); }},
        {"diag -2", [](X const& x) -> R { return diag(x, -2); }},
        {"diag 9", [](X const& x) -> R { return diag(x, 9); }},
        {"diag of row", [](X const& x) -> R { return diag(x); }},
        {"diag of row -2", [](X const& x) -> R { return diag(x, -2); }},
        {"meshgrid ij", [](X const& x) -> R { return meshgrid({R(x), split(R(flip(x)), 2)[0]})[0]; }},
        {"meshgrid xy", [](X const& x) -> R { return meshgrid({R(x), split(R(flip(x)), 2)[0]}, indexing::xy)[1]; }},
        {"roll of one", [](X const& x) -> R { return roll(x, 3, 0); }},
        {"tile of one", [](X const& x) -> R { return tile(x, 5); }},
        {"concat of none", [](X const& x) -> R { return concat(1, x, x); }},
        {"pad of none", [](X const& x) -> R { return pad(x, {0, 0, 1, 1}, true); }},
        {"repeat of none", [](X const& x) -> R { return repeat(x, 2, 1); }},
    };
  }
};

}  // namespace

TEST_CASE("arranging puts every element where PyTorch and NumPy put it") {
  situ_test::with_every_instruction_set<Cpu>([] { situ_test::check_table<float, Cpu, Arranging>(); });
  situ_test::check_table<bool, Cpu, Arranging>();
  situ_test::check_table<int16_t, Pinned, Arranging>();
  situ_test::check_table<double, Emulated<0>, Arranging>();
  situ_test::check_table_of_formulas<float16, Cpu, Arranging>();
}

TEST_CASE("formulas of one type are joined as a list") {
  Tensor<float> const x{1, 2};
  CHECK(concat({x * 2, x * 3}).to_vector() == std::vector<float>{2, 4, 3, 6});
  CHECK(stack({x * 2, x * 3}, 1).to_vector() == std::vector<float>{2, 3, 4, 6});
}

TEST_CASE("every element type can be arranged") {
  auto const check = []<class T>(T) {
    Tensor<T> const x = situ_test::marked<T>({2, 3});
    std::vector<T> twice = x.to_vector();
    auto const values = x.to_vector();
    twice.insert(twice.end(), values.begin(), values.end());
    CHECK(situ_test::difference(concat({x, x}).to_vector(), twice) == "");
    CHECK(situ_test::difference(roll(roll(x, 4), -4).to_vector(), values) == "");
  };
  check(bfloat16{}), check(int8_t{}), check(int32_t{}), check(int64_t{}), check(uint8_t{});
}

TEST_CASE("parts of different types promote, and Pinned mixes with Cpu") {
  Tensor<float> const a{1, 2};
  Tensor<int32_t> const b{3, 4};
  auto const c = concat(0, a, b, pin(a) * 2);
  static_assert(std::is_same_v<decltype(c), Tensor<float> const>);
  CHECK(c.to_vector() == std::vector<float>{1, 2, 3, 4, 2, 4});
  static_assert(std::is_same_v<decltype(stack(b, b > 3)), Tensor<int32_t>>);
  CHECK(stack(b, b > 3).to_vector() == std::vector<int32_t>{3, 4, 0, 1});
}

namespace {
template <class L, class R>
concept concatenates = requires(L const& l, R const& r) { concat(0, l, r); };
template <class L, class R>
concept stacks = requires(L const& l, R const& r) { stack(l, r); };
}  // namespace

TEST_CASE("parts on different devices do not compile") {
  using A = Tensor<float>;
  using B = Tensor<float, Emulated<0>>;
  static_assert(concatenates<A, A> && concatenates<A, Tensor<int, Pinned>> && concatenates<B, B>);
  static_assert(!concatenates<A, B> && !concatenates<Tensor<float, Emulated<1>>, B>);
  static_assert(stacks<A, A> && !stacks<A, B>);
}

TEST_CASE("views of tensors share their storage, views of formulas compute nothing") {
  Tensor<float> x = arange(12).reshape({3, 4});
  split(x, 2, 1)[1].assign(zeros({3, 2}));
  flip(x, 0)[0] = ones({4});
  diag(x.slice(1, 0, 3)) += 10;
  CHECK(x.to_vector() == std::vector<float>{10, 1, 0, 0, 4, 15, 0, 0, 1, 1, 11, 1});
  auto const grids = meshgrid({x[0], x[1]});
  CHECK(grids[0].strides() == Shape(1, 0));
  CHECK(grids[0].storage() == x.storage());

  Tensor<float, Probe> const a{{1, 2}, {3, 4}};
  Probe::reset();
  auto const parts = split(a * 2, 1);
  auto const turned = flip(parts[1] + 1);
  auto const part = triu(a * 2 + 1);
  CHECK(Probe::launches == 2);  // the two rows of numbers of triu
  Probe::reset();
  Tensor<float, Probe> const y = turned;
  CHECK(Probe::launches == 1);
  CHECK(Probe::allocations == 1);
  CHECK(y.to_vector() == std::vector<float>{9, 7});
  CHECK(Tensor<float, Probe>(part).to_vector() == std::vector<float>{3, 5, 0, 9});
}

TEST_CASE("parts are evaluated straight into the result") {
  Tensor<float, Probe> const a{{1, 2}, {3, 4}}, b{{5, 6}, {7, 8}};
  auto const costs = [](auto f, int launches) {
    Probe::reset();
    auto const y = f();
    CHECK(Probe::allocations == 1);
    CHECK(Probe::launches == launches);
  };
  costs([&] { return concat(1, a * 2, a + b, b); }, 3);
  costs([&] { return stack(a * b, b); }, 2);
  costs([&] { return pad(a * b, {1, 0}); }, 2);
  costs([&] { return roll(a * b, 1, 0); }, 2);
  costs([&] { return roll(a * b, 1); }, 2);
  costs([&] { return tile(a * b, {2, 1}); }, 2);
  costs([&] { return repeat(a * b, 3, 0); }, 2);
}

TEST_CASE("large tensors are arranged as small ones are") {
  Tensor<int32_t> const x = arange<int32_t>(600 * 700).reshape({600, 700});
  auto const y = roll(x, {50, -3}, {0, 1});
  auto const z = pad(x, {2, 3}, pad_mode::reflect);
  auto const w = concat(1, x, x + 1);
  int64_t wrong = 0;
  for (int i = 0; i < 600; ++i) {
    for (int j = 0; j < 700; ++j) wrong += y((i + 50) % 600, (j + 697) % 700) != x(i, j) || z(i, j + 2) != x(i, j) || w(i, j + 700) != x(i, j) + 1;
    wrong += z(i, 0) != x(i, 2) || z(i, 704) != x(i, 696);
  }
  CHECK(wrong == 0);
}

namespace {

struct PadCase {
  Shape shape;
  std::vector<int64_t> widths;
};
/// pad with a number, element by element.
template <class T>
void check_padding(PadCase const& c) {
  Tensor<T> x = empty<T>(c.shape);
  for (int64_t k = 0; k < x.size(); ++k) x.data()[k] = static_cast<T>(k % 8191);
  Tensor<T> const y = pad(x, c.widths, 7);
  int const rank = c.shape.rank();
  int64_t wrong = 0;
  for (int64_t k = 0; k < y.size(); ++k) {
    int64_t left = k, place = 0, stride = 1;
    bool inside = true;
    for (int axis = rank - 1; axis >= 0; --axis) {
      std::size_t const pair = static_cast<std::size_t>(2 * (rank - 1 - axis));
      int64_t const index = left % y.shape()[axis] - (pair < c.widths.size() ? c.widths[pair] : 0);
      inside = inside && index >= 0 && index < c.shape[axis];
      place += index * stride, stride *= c.shape[axis], left /= y.shape()[axis];
    }
    wrong += y.data()[k] != (inside ? static_cast<T>(place % 8191) : T(7));
  }
  INFO(c.shape);
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE_TEMPLATE("large tensors are padded with a number on any side", T, int16_t, float) {
  situ_test::UnknownCaches const caches;
  int64_t const scale = 4 / static_cast<int64_t>(sizeof(T));
  for (PadCase const& c : {PadCase{{1500 * scale, 1501}, {1, 1, 1, 1}}, PadCase{{1500 * scale, 1501}, {3, 0, 0, 2}}, PadCase{{300'000 * scale, 7}, {1, 2}}, PadCase{{300'000 * scale, 7}, {0, 0, 5, 0}},
                        PadCase{{1, 1200 * scale, 900, 2}, {0, 0, 2, 1, 1, 0}}, PadCase{{2, 1200 * scale, 901}, {1, 2, 3, 4}}, PadCase{{2'500'001 * scale}, {300, 7}},
                        PadCase{{1600 * scale, 1400}, {-1, 2, 1, 0}}, PadCase{{1600 * scale, 1400}, {400, 0}}}) {
    check_padding<T>(c);
  }
}

TEST_CASE_TEMPLATE("what the caches hold is padded with a number along any axes", T, int8_t, int16_t, float, double) {
  int const before = num_threads();
  for (int const threads : {1, 3}) {
    set_num_threads(threads);
    for (PadCase const& c : {PadCase{{}, {}}, PadCase{{1}, {2, 0}}, PadCase{{5}, {0, 3}}, PadCase{{7, 3}, {1, 1, 1, 1}}, PadCase{{2, 3, 4, 5}, {1, 2, 3, 4}}, PadCase{{3, 40, 17}, {1, 0, 0, 2}},
                             PadCase{{60, 28, 31}, {2, 2, 1, 1}}, PadCase{{4, 6, 2, 3}, {0, 0, 1, 1}}, PadCase{{4, 6, 2, 3}, {0, 0, 0, 0, 1, 1}}, PadCase{{3, 300, 200}, {1, 70, 5, 0}},
                             PadCase{{2, 3, 4}, {1, 1, 0, 0, 1, 0}}, PadCase{{2, 3, 9000}, {3, 4, 1, 1}}}) {
      check_padding<T>(c);
    }
  }
  set_num_threads(before);
}

TEST_CASE("axes of one index are padded by the shape, whatever their strides are") {
  Tensor<float> const x = arange<float>(131'072 * 64).view({131'072, 64}).unsqueeze(2).permute({0, 2, 1});  // whose middle axis has the stride 1
  for (std::vector<int64_t> const& widths : {std::vector<int64_t>{0, 0, 1, 1}, {0, 0, 1, 0}, {0, 0, 2, 1}, {1, 1, 0, 0}}) {
    Tensor<float> const y = pad(x, widths, 7);
    int64_t const rows = 1 + widths[2] + widths[3], columns = 64 + widths[0] + widths[1];
    REQUIRE(y.shape() == Shape{131'072, rows, columns});
    int64_t wrong = 0;
    for (int64_t k = 0; k < y.size(); ++k) {
      int64_t const row = k / columns % rows - widths[2], column = k % columns - widths[0];
      wrong += y.data()[k] != (row == 0 && column >= 0 && column < 64 ? static_cast<float>(k / columns / rows * 64 + column) : 7.f);
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE_TEMPLATE("rows are put together from pieces of any width", T, int8_t, float) {
  situ_test::UnknownCaches const caches;
  for (int64_t const rows : {2, 37, sizeof(T) == 4 ? 700'000 : 500}) {
    for (int64_t const width : {1, 3, 21}) {
      if (rows * width > 3'000'000) continue;
      Tensor<T> x = empty<T>({rows, width});
      for (int64_t k = 0; k < x.size(); ++k) x.data()[k] = static_cast<T>(k % 101);
      for (int64_t const pieces : {2, 3, 4}) {
        std::vector<Tensor<T>> parts;
        for (int64_t p = 0; p < pieces; ++p) parts.push_back(x + static_cast<T>(p));
        Tensor<T> const joined = concat(parts, 1), stacked = stack(parts, -1), repeated = repeat(x, pieces, 1), rolled = roll(joined, 2, 1);
        int64_t wrong = 0;
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t p = 0; p < pieces; ++p) {
            for (int64_t c = 0; c < width; ++c) {
              T const value = static_cast<T>((r * width + c) % 101), in_part = static_cast<T>(value + static_cast<T>(p));
              int64_t const row = r * width * pieces, at = p * width + c;
              wrong += joined.data()[row + at] != in_part || stacked.data()[row + c * pieces + p] != in_part || repeated.data()[row + c * pieces + p] != value;
              wrong += rolled.data()[row + (at + 2) % (width * pieces)] != in_part;
            }
          }
        }
        INFO(rows, " rows of ", pieces, " pieces of ", width);
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE_TEMPLATE("elements of two, three and four tensors take turns with every instruction set", T, uint8_t, int16_t, float, double) {
  situ_test::UnknownCaches const caches;
  for (int64_t const n : {1, 5, 31, 64, 100, 2'731, 20'000, sizeof(T) == 8 ? 530'000 : 0}) {
    std::vector<Tensor<T>> parts;
    for (int64_t p = 0; p < 4; ++p) {
      parts.push_back(empty<T>({n}));
      for (int64_t k = 0; k < n; ++k) parts.back().data()[k] = static_cast<T>((k * 4 + p) % 127);
    }
    situ_test::with_every_instruction_set<Cpu>([&] {
      for (std::size_t pieces = 2; pieces <= 4; ++pieces) {
        Tensor<T> const stacked = stack(std::vector<Tensor<T>>(parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(pieces)), -1);
        auto const count = static_cast<int64_t>(pieces);
        REQUIRE(stacked.shape() == Shape{n, count});
        int64_t wrong = 0;
        for (int64_t k = 0; k < n; ++k) {
          for (int64_t p = 0; p < count; ++p) wrong += stacked.data()[k * count + p] != static_cast<T>((k * 4 + p) % 127);
        }
        INFO(n, " elements of ", pieces, " tensors");
        CHECK(wrong == 0);
      }
    });
  }
}

TEST_CASE_TEMPLATE("pieces of long rows follow each other, whatever their lengths and the number of threads are", T, int8_t, float) {
  auto const value = [](int64_t row, int64_t column) { return static_cast<T>((row * 31 + column) % 101); };
  for (int64_t const rows : {1, 3, sizeof(T) == 4 ? 160 : 7}) {
    std::vector<Tensor<T>> parts;
    int64_t columns = 0;
    for (int64_t const width : {9001, 5, 0, 5772, 1}) {
      Tensor<T> part = empty<T>({rows, width});
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < width; ++c) part.data()[r * width + c] = value(r, columns + c);
      }
      parts.push_back(part);
      columns += width;
    }
    for (int const threads : {1, 3}) {
      set_num_threads(threads);
      Tensor<T> const joined = concat(parts, 1), rolled = roll(joined, 4097, 1), stacked = stack({joined, rolled, joined}), flat = roll(joined, -5);
      CHECK(joined.shape() == Shape(rows, columns));
      int64_t wrong = 0;
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t c = 0; c < columns; ++c) {
          int64_t const at = r * columns + c, moved = r * columns + (c + 4097) % columns;
          wrong += joined.data()[at] != value(r, c) || rolled.data()[moved] != value(r, c) || flat.data()[(at + joined.size() - 5) % joined.size()] != value(r, c);
          wrong += stacked.data()[at] != value(r, c) || stacked.data()[joined.size() + moved] != value(r, c) || stacked.data()[2 * joined.size() + at] != value(r, c);
        }
      }
      INFO(rows, " rows, ", threads, " threads");
      CHECK(wrong == 0);
    }
    set_num_threads(2);
  }
}

TEST_CASE("rank 8 is repeated and tiled") {
  Tensor<float> const x = arange(4).reshape({1, 1, 1, 1, 1, 1, 2, 2});
  CHECK(repeat(x, 2, 7).to_vector() == std::vector<float>{0, 0, 1, 1, 2, 2, 3, 3});
  CHECK(tile(x, {1, 1, 1, 1, 1, 1, 2, 1}).to_vector() == std::vector<float>{0, 1, 2, 3, 0, 1, 2, 3});
  CHECK(repeat(full({}, 3), 2).to_vector() == std::vector<float>{3, 3});
}

TEST_CASE_TEMPLATE("the trace is the sum of the diagonal", D, Cpu, Emulated<0>) {
  Tensor<float, D> const x = arange(24).reshape({2, 3, 4}).to(D{});
  CHECK(trace(x).to_vector() == std::vector<float>{0 + 5 + 10, 12 + 17 + 22});
  CHECK(trace(x[0] * 2, 1).item() == 2 * (1 + 6 + 11));
  CHECK(trace(x[0], -5).item() == 0);
  CHECK(trace(cast<int8_t>(x[1]), -1).item() == 16 + 21);
}

TEST_CASE("chunks of nothing, and fewer than were asked for, are PyTorch's") {
  CHECK(chunk(zeros({0}), 3).size() == 3);
  CHECK(chunk(zeros({10}), 4).size() == 4);
  CHECK(chunk(zeros({10}), 4)[3].size() == 1);
  CHECK(chunk(zeros({6}), 4).size() == 3);
  CHECK(split(zeros({0}), 0).size() == 1);
}

TEST_CASE("what cannot be arranged is named") {
  Tensor<float> const x = zeros({2, 3}), y = zeros({2, 4}), r = zeros({3});
  auto const says = [](auto f, char const* message) { CHECK(thrown<ShapeError>(f, message) == ""); };
  says([&] { concat({x, y}); }, "concat: shapes [2, 3] and [2, 4] cannot be joined along axis 0: 3 != 4 in dimension 1");
  says([&] { concat(1, x, r); }, "concat: shapes [2, 3] and [3] cannot be joined along axis 1: they have 2 and 1 axes");
  says([&] { concat({x, x}, 2); }, "concat: axis 2 is out of range for shape [2, 3]: axes are -2 to 1");
  says([&] { concat(std::vector<Tensor<float>>{}); }, "concat: no tensors were given; at least one is needed");
  says([&] { stack({x, x, y}); }, "stack: tensors 0 and 2 have shapes [2, 3] and [2, 4]; all must have the same, or use concat");
  says([&] { stack({x, x}, 3); }, "stack: axis 3 is out of range for shape [2, 3] and one more axis: axes are -3 to 2");
  says([&] { split(x, {1, 1}, 1); }, "split: the sizes add up to 2, but axis 1 of shape [2, 3] has 3 elements");
  says([&] { split(x, {4, -1}, 1); }, "split: a size of -1 was asked for; sizes are 0 or more");
  says([&] { split(x, 0); }, "split: slices of 0 indices cannot cover 2; a size is 1 or more");
  says([&] { chunk(x, 0); }, "chunk: 0 chunks were asked for; there is at least 1");
  says([&] { tile(x, {1, -2}); }, "tile: -2 repetitions were asked for along axis 1; counts are 0 or more");
  says([&] { tile(x, {int64_t{1} << 62, 2}); }, "tile: shape [2, 3] repeated [4611686018427387904, 2] times has more elements than can be addressed");
  says([&] { repeat(x, -1, 0); }, "repeat: -1 repetitions were asked for; a count is 0 or more");
  says([&] { repeat(x, {1, 2}, 1); }, "repeat: 2 counts were given for axis 1 of shape [2, 3]: one for each of its 3 indices is needed");
  says([&] { pad(x, {1}); }, "pad: 1 width was given for shape [2, 3]: a pair for each axis is needed, from the last axis on, at most 4");
  says([&] { pad(x, {-2, -2}); }, "pad: widths -2 and -2 do not fit axis 1 of shape [2, 3]");
  says([&] { pad(x, {INT64_MIN, INT64_MIN}); }, "pad: widths -9223372036854775808 and -9223372036854775808 do not fit axis 1 of shape [2, 3]");
  CHECK_THROWS_WITH_AS(pad(Tensor<uint8_t>{1}, {1, 1}, 300), "pad: 300 is no uint8: these are 0 to 255; take a wider element type", TypeError);
  says([&] { pad(x, {3, 0}, pad_mode::reflect); }, "pad: a width of 3 is too much for mode reflect: axis 1 has 3 elements; at most 2 can be added");
  says([&] { pad(x, {0, 4}, pad_mode::circular); }, "pad: a width of 4 is too much for mode circular: axis 1 has 3 elements; at most 3 can be added");
  says([&] { pad(zeros({0}), {0, 1}, pad_mode::replicate); }, "pad: a width of 1 is too much for mode replicate: axis 0 has 0 elements");
  says([&] { roll(x, {1, 2}, 0); }, "roll: 2 shifts were given for 1 axis; each axis needs one");
  says([&] { flip(x, {0, -2}); }, "flip: axis -2 appears twice in [0, -2]");
  says([&] { triu(r); }, "triu: shape [3] has 1 axis; a matrix has two");
  says([&] { trace(r); }, "trace: shape [3] has 1 axis; a matrix has two");
  CHECK(diag(zeros({3, 4}), INT64_MIN).shape() == Shape{0});
  CHECK(trace(ones({3, 4}), INT64_MIN).item() == 0);
  says([&] { diag(zeros({1, 2, 3})); }, "diag: shape [1, 2, 3] has 3 axes; 1 or 2 are needed");
  says([&] { meshgrid({x, x}); }, "meshgrid: shape [2, 3] has 2 axes; rows of numbers are needed");
  int64_t const many = int64_t{1} << 62;
  Tensor<float> const wide = zeros({1}).expand({many});
  says([&] { concat({wide, wide}); }, "concat: shape [4611686018427387904] cannot be joined along axis 0: the axis would have more elements than can be addressed");
  says([&] { split(wide, 1); }, "split: 4611686018427387904 parts of an axis of 4611686018427387904 elements were asked for; there are at most 2147483647");
  says([&] { chunk(zeros({0}), many); }, "chunk: 4611686018427387904 parts of an axis of 0 elements were asked for; there are at most 2147483647");
  says([&] { repeat(x, {many, many}, 0); }, "repeat: the counts for axis 0 of shape [2, 3] add up to more elements than can be addressed");
  says([&] { repeat(x, {many, 0}, 0); }, "repeat: shape [4611686018427387904, 3] has more elements than can be addressed: the product of the sizes overflows");
  CHECK(split(wide, many / 2).size() == 2);
}

namespace {
template <class X, class V>
concept padded_with = requires(X const& x, V v) { pad(x, {1, 1}, v); };
}  // namespace

TEST_CASE("what is padded with becomes an element of x, which must be able to hold it") {
  CHECK(pad(Tensor<uint8_t>{7}, {1, 1}, 255).to_vector() == std::vector<uint8_t>{255, 7, 255});
  CHECK_THROWS_AS(pad(Tensor<uint8_t>{7}, {1, 1}, -1), TypeError);
  CHECK(pad(Tensor<int32_t>{7}, {1, 1}).to_vector() == std::vector<int32_t>{0, 7, 0});
  CHECK(pad(Tensor<float>{7}, {1, 0}, 0.5).to_vector() == std::vector<float>{0.5, 7});
  static_assert(padded_with<Tensor<float16>, double> && padded_with<Tensor<bool>, int> && padded_with<Tensor<uint8_t>, int64_t>);
  static_assert(!padded_with<Tensor<int32_t>, double> && !padded_with<Tensor<int64_t>, float> && !padded_with<Tensor<bool>, float16>);
}
