#include <situ/ops/select.hpp>

#include <ops/expected/check_places.hpp>
#include <situ/ops/compare.hpp>
#include <support/probe.hpp>

using namespace situ;
using situ_test::difference;
using situ_test::Operation;
using situ_test::thrown;

namespace {

/// The masks of places.py.
template <class X>
struct Selecting {
  using T = value_of<X>;
  using D = detail::result_device_t<device_of<X>>;
  using R = Tensor<T, D>;
  static auto numbers() { return arange<int64_t>(24, D{}).reshape({2, 3, 4}); }
  static std::vector<Operation<X>> operations() {
    return {
        {"masked_select", [](X const& x) -> R { return masked_select(x, numbers() * 7 % 5 > 1); }},
        {"masked_select broadcast", [](X const& x) -> R { return masked_select(x, Tensor<bool>{true, false, false, true}.to(D{})); }},
        {"masked_select none", [](X const& x) -> R { return masked_select(x, numbers() < 0); }},
    };
  }
};

/// true in places that look random, in `percent` of 100.
Tensor<bool> mask_of(Shape const& shape, int percent) {
  Tensor<bool> result = empty<bool>(shape);
  unsigned state = 99;
  for (int64_t k = 0; k < result.size(); ++k) {
    state = state * 1664525u + 1013904223u;
    result.data()[k] = static_cast<int>((state >> 8) % 100) < percent;
  }
  return result;
}

}  // namespace

TEST_CASE("a mask selects what PyTorch selects") {
  situ_test::with_every_instruction_set<Cpu>([] { situ_test::check_table<float, Cpu, Selecting>(); });
  situ_test::check_table<bool, Cpu, Selecting>();
  situ_test::check_table<int16_t, Pinned, Selecting>();
  situ_test::check_table<double, Emulated<0>, Selecting>();
  situ_test::check_table<float16, Emulated<0>, Selecting>();
  situ_test::check_table_of_formulas<float, Cpu, Selecting>();
  situ_test::check_table_of_formulas<int8_t, Emulated<0>, Selecting>();
}

TEST_CASE_TEMPLATE("masks of every size and density select what a plain loop selects", T, float, double, int8_t, float16) {
  for (int64_t n : {1, 7, 8, 63, 64, 1000, 4096, 4097, 50000}) {
    Tensor<T> const x = cast<T>(arange<int32_t>(n) % 100);
    for (int percent : {0, 1, 10, 50, 99, 100}) {
      Tensor<bool> const mask = mask_of({n + 1}, percent).slice(0, 1, n + 1);  // not aligned
      std::vector<T> expected, twice;
      std::vector<int64_t> places;
      for (int64_t k = 0; k < n; ++k) {
        if (mask(k)) expected.push_back(x(k)), twice.push_back(detail::convert_scalar<T>(static_cast<int>(x(k)) * 2)), places.push_back(k);
      }
      situ_test::with_every_instruction_set<Cpu>([&] {
        INFO(n, " elements, ", percent, " percent");
        CHECK(difference(masked_select(x, mask).to_vector(), expected) == "");
        CHECK(difference(masked_select(x * 2, mask).to_vector(), twice) == "");
        CHECK(nonzero(mask).to_vector() == places);
      });
    }
  }
}

TEST_CASE_TEMPLATE("the indices of elements that are not 0 are listed in order", D, Cpu, Pinned, Emulated<0>) {
  for (Shape const& shape : {Shape{0}, Shape{5}, Shape{3, 4}, Shape{40, 300}, Shape{7, 1, 700}, Shape{2, 3, 2, 900}, Shape{3000, 3}, Shape{5000, 1}, Shape{2, 0, 3}}) {
    Tensor<bool> const mask = mask_of(shape, 40);
    std::vector<int64_t> expected;
    for (int64_t p = 0; p < mask.size(); ++p) {
      if (!mask.data()[p]) continue;
      int64_t step = mask.size(), rest = p;
      for (int64_t extent : shape) step /= extent, expected.push_back(rest / step), rest %= step;
    }
    Tensor<bool, D> const there = mask.to(D{});
    auto const found = nonzero(there);
    INFO(to_string(shape));
    CHECK(found.shape() == Shape(static_cast<int64_t>(expected.size()) / shape.rank(), shape.rank()));
    CHECK(found.to_vector() == expected);
    CHECK(nonzero(cast<float>(there) * 0.5f).to_vector() == expected);
    Tensor<bool, D> turned = empty<bool>(shape, D{}).flip(0);
    turned.assign(there);
    CHECK(nonzero(turned).to_vector() == expected);
  }
  CHECK(nonzero(full({}, 2, Cpu{}).to(D{})).shape() == Shape(1, 0));
  CHECK(nonzero(zeros({}).to(D{})).shape() == Shape(0, 0));
  CHECK(nonzero(Tensor<float16>{0, -0.f, 1}.to(D{})).to_vector() == std::vector<int64_t>{2});
}

TEST_CASE("many places are listed with every instruction set and number of threads") {
  constexpr int64_t n = 1'300'000;  // more than the 8 MiB from which on results go past the caches
  Tensor<bool> const mask = arange<int64_t>(n) % 6 != 4;
  std::vector<int64_t> expected;
  for (int64_t k = 0; k < n; ++k) {
    if (k % 6 != 4) expected.push_back(k);
  }
  REQUIRE(expected.size() * sizeof(int64_t) >= std::size_t{8} << 20);
  for (int const threads : {1, 2, 5}) {
    set_num_threads(threads);
    situ_test::with_every_instruction_set<Cpu>([&] { CHECK(nonzero(mask).to_vector() == expected); });
  }
  set_num_threads(2);
}

TEST_CASE("results do not depend on the number of threads") {
  Tensor<bool> const mask = mask_of({300000}, 30);
  Tensor<int32_t> const x = arange<int32_t>(300000);
  set_num_threads(1);
  auto const selected = masked_select(x, mask);
  auto const found = nonzero(mask);
  for (int threads : {2, 5}) {
    set_num_threads(threads);
    CHECK(equal(masked_select(x, mask), selected));
    CHECK(equal(nonzero(mask), found));
  }
  set_num_threads(2);
  CHECK(equal(cast<int64_t>(selected), found.flatten()));
}

TEST_CASE("masks and inputs broadcast, and a formula is computed as it is selected from") {
  Tensor<float> const x{{1, 2, 3}, {4, 5, 6}}, row{10, 20, 30};
  CHECK(masked_select(row, x > 2).to_vector() == std::vector<float>{30, 10, 20, 30});
  CHECK(masked_select(x + row, x > 4).to_vector() == std::vector<float>{25, 36});
  Tensor<float, Probe> const p = ones<float>({5000}, Probe{});
  Tensor<bool, Probe> const mask = p > 0;
  Probe::reset();
  auto const y = masked_select(p * 2 + 1, mask);
  CHECK(Probe::launches == 3);     // count, places, select
  CHECK(Probe::allocations == 2);  // places and the result
  CHECK(y.size() == 5000);
  CHECK(y.item(4999) == 3);
}

TEST_CASE_TEMPLATE("masked_fill writes a value where the mask is true, as part of a formula", D, Cpu, Emulated<0>) {
  Tensor<float, D> const x = Tensor<float>{{1, 2}, {3, 4}}.to(D{});
  CHECK((masked_fill(x, x > 2, -1) * 2).to_vector() == std::vector<float>{2, 4, -2, -2});
  CHECK(masked_fill(x, x[0] > 1, 0.5).to_vector() == std::vector<float>{1, 0.5, 3, 0.5});
  CHECK(masked_fill(x.template to<float16>(), x > 3, 1 + 0x1p-11 + 0x1p-40).item(1, 1).bits == 0x3c01);  // rounded once
  static_assert(std::is_same_v<value_of<decltype(masked_fill(cast<int8_t>(x), x > 2, 30))>, int8_t>);
  CHECK_THROWS_WITH_AS(masked_fill(cast<int8_t>(x), x > 2, 300), "masked_fill: 300 is no int8: these are -128 to 127; take a wider element type", TypeError);
  CHECK(masked_fill(cast<bool>(x - 1), x > 3, false).to_vector() == std::vector<bool>{false, true, true, false});
}

namespace {
template <class X, class M>
concept selects = requires(X const& x, M const& m) { masked_select(x, m); };
template <class X, class M, class V>
concept fills = requires(X const& x, M const& m, V v) { masked_fill(x, m, v); };
}  // namespace

TEST_CASE("masks elsewhere, masks of numbers and values that do not fit do not compile") {
  using X = Tensor<float>;
  using M = Tensor<bool>;
  static_assert(selects<X, M> && selects<X, Tensor<bool, Pinned>> && !selects<X, X> && !selects<X, Tensor<bool, Emulated<0>>>);
  static_assert(fills<X, M, int> && fills<Tensor<int>, M, int> && !fills<Tensor<int>, M, double> && !fills<X, Tensor<bool, Emulated<0>>, int>);
  CHECK(thrown<ShapeError>([] { (void)masked_select(zeros({2, 3}), zeros<bool>({4})); }, "masked_select: shapes [2, 3] and [4] do not broadcast: 3 != 4 in dimension 1") == "");
}
