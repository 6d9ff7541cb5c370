#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <support/compare.hpp>
#include <support/devices.hpp>

namespace {

using namespace situ;
using situ_test::thrown;
using floats = std::vector<float>;

template <class X, class Y>
concept adds_in_place = requires(X& x, Y y) { x += y; };
template <class X, class Y>
concept divides_in_place = requires(X& x, Y y) { x /= y; };
static_assert(adds_in_place<Tensor<float>, Tensor<int32_t>> && adds_in_place<Tensor<float>, double> && adds_in_place<Tensor<int32_t>, int>);
static_assert(!adds_in_place<Tensor<int32_t>, double> && !adds_in_place<Tensor<float>, Tensor<double>>);
static_assert(!adds_in_place<Tensor<uint8_t>, Tensor<int8_t>> && !adds_in_place<Tensor<float>, Tensor<float, Emulated<0>>>);
static_assert(divides_in_place<Tensor<float>, int> && !divides_in_place<Tensor<int32_t>, int>);
static_assert(adds_in_place<Tensor<float, Pinned>, Tensor<float, Cpu>> && adds_in_place<Tensor<float, Cpu>, Tensor<float, Pinned>>);

}  // namespace

TEST_CASE_TEMPLATE("assigning to a name rebinds it, assigning to a view writes in place", D, SITU_TEST_DEVICES) {
  Tensor<float, D> x{{1, 2}, {3, 4}};
  Tensor<float, D> const alias = x;
  x = x + 1;
  CHECK(alias.to_vector() == floats{1, 2, 3, 4});
  CHECK(x.to_vector() == floats{2, 3, 4, 5});
  x = alias;
  x[1] = x[0] * 10;
  CHECK(alias.to_vector() == floats{1, 2, 10, 20});
  x.t() = Tensor<float, D>{{5, 6}, {7, 8}};
  CHECK(alias.to_vector() == floats{5, 7, 6, 8});
  x(all(), 0) = 0;
  CHECK(alias.to_vector() == floats{0, 7, 0, 8});
  x.assign(x + 1);
  CHECK(alias.to_vector() == floats{1, 8, 1, 9});
  x.assign(Tensor<int32_t, D>{3, 4});
  CHECK(alias.to_vector() == floats{3, 4, 3, 4});
  x.view({4}) = arange<int64_t>(4, D{});
  CHECK(alias.to_vector() == floats{0, 1, 2, 3});
  x[0] = alias[1];
  CHECK(alias.to_vector() == floats{2, 3, 2, 3});
}

TEST_CASE_TEMPLATE("+= -= *= /= work in place", D, SITU_TEST_DEVICES) {
  Tensor<float, D> x{{1, 2}, {3, 4}};
  Tensor<float, D> const alias = x;
  x += 1;
  x *= Tensor<float, D>{10, 100};
  x -= x[0];
  x /= 2;
  CHECK(alias.to_vector() == floats{0, 0, 10, 100});
  x[0] += 5;
  x.t()[1] -= Tensor<float, D>{1, 2};
  CHECK(alias.to_vector() == floats{5, 4, 10, 98});
  (x += 1) *= 2;
  CHECK(alias.to_vector() == floats{12, 10, 22, 198});
  Tensor<int32_t, D> i{7, 8};
  i *= 3;
  i -= Tensor<bool, D>{true, false};
  CHECK(i.to_vector() == std::vector<int32_t>{20, 24});
  Tensor<float16, D> h{1, 2};
  h += 0.5;
  CHECK(static_cast<float>(h.item(1)) == 2.5f);
}

TEST_CASE_TEMPLATE("a source that overlaps its target is read before it is written", D, SITU_TEST_DEVICES) {
  Tensor<float, D> x = arange(9, D{}).view({3, 3});
  x += x.t();
  CHECK(x.to_vector() == floats{0, 4, 8, 4, 8, 12, 8, 12, 16});
  x = arange(9, D{}).view({3, 3});
  x.t() = x;
  CHECK(x.to_vector() == floats{0, 3, 6, 1, 4, 7, 2, 5, 8});
  Tensor<float, D> y = arange(6, D{});
  y(range(1, end())) = y(range(0, 5));
  CHECK(y.to_vector() == floats{0, 0, 1, 2, 3, 4});
  y = arange(6, D{});
  y(range(0, 5)) = y(range(1, end())) * 10;
  CHECK(y.to_vector() == floats{10, 20, 30, 40, 50, 5});
  y = arange(6, D{});
  y.assign(y.flip(0));
  CHECK(y.to_vector() == floats{5, 4, 3, 2, 1, 0});
  y -= y[2];
  CHECK(y.to_vector() == floats{2, 1, 0, -1, -2, -3});
  y(range(0, 6, 2)) = y(range(1, 6, 2));
  CHECK(y.to_vector() == floats{1, 1, -1, -1, -3, -3});
  Tensor<float, D> m = arange(6, D{}).view({2, 3});
  m.assign(m[1]);
  CHECK(m.to_vector() == floats{3, 4, 5, 3, 4, 5});
}

TEST_CASE("overlapping writes agree with a temporary for every pair of slices") {
  int wrong = 0;
  for (int64_t to = 0; to < 4; ++to) {
    for (int64_t from = 0; from < 4; ++from) {
      for (int64_t to_step : {-2, -1, 1, 2}) {
        for (int64_t from_step : {-2, -1, 1, 2}) {
          auto const slice = [](Tensor<float>& x, int64_t begin, int64_t step) {
            return step > 0 ? x.slice(0, begin, begin + 4 * step, step) : x.slice(0, begin - 4 * step, begin, step);
          };
          Tensor<float> x = arange(16), expected = arange(16);
          Tensor<float> const source = slice(expected, from, from_step) + 100;
          slice(expected, to, to_step) = source;
          slice(x, to, to_step) = slice(x, from, from_step) + 100;
          wrong += x.to_vector() != expected.to_vector();
        }
      }
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("a new value reuses the old storage only where nobody can tell") {
  Tensor<float> z = ones({4}), x = full({4}, 2.f);
  float const* const place = std::as_const(z).data();
  for (int k = 0; k < 3; ++k) z = z * x;
  CHECK(std::as_const(z).data() == place);
  CHECK(z.to_vector() == floats(4, 8));

  Tensor<float> const held = z;  // somebody else holds it
  z = z * x;
  CHECK(std::as_const(z).data() != place);
  CHECK(held.to_vector() == floats(4, 8));
  CHECK(z.to_vector() == floats(4, 16));

  Tensor<float> w = arange(4);
  auto e = w + 1;  // a formula that is kept sees w
  w = e;
  CHECK(w.to_vector() == floats{1, 2, 3, 4});
  CHECK(eval(e).to_vector() == floats{1, 2, 3, 4});

  Tensor<float> m = arange(4).view({2, 2});
  m = m + m.t();  // read at other indices
  CHECK(m.to_vector() == floats{0, 3, 3, 6});
  Tensor<float> v = arange(4);
  v = v.flip(0) * 1;
  CHECK(v.to_vector() == floats{3, 2, 1, 0});
  v = v[3] + v;
  CHECK(v.to_vector() == floats{3, 2, 1, 0});
  v = v[0] + v;
  CHECK(v.to_vector() == floats{6, 5, 4, 3});

  Tensor<float> other = zeros({4});
  float const* const before = std::as_const(other).data();
  other = x + 1;  // does not appear in its own value
  CHECK(std::as_const(other).data() == before);
  CHECK(other.to_vector() == floats(4, 3));
  other = x(range(0, 2)) + 1;  // another shape
  CHECK(other.shape() == Shape{2});

  Tensor<double> wide = zeros<double>({4});
  wide = x + 0.5;
  CHECK(wide.to_vector() == std::vector<double>(4, 2.5));
  Tensor<float> part = arange(8).slice(0, 0, 8, 2);
  part = part * 2;
  CHECK(part.is_contiguous());
  CHECK(part.to_vector() == floats{0, 4, 8, 12});
  Tensor<float> viewed = arange(3);
  Tensor<float> const view = viewed.view({3});
  viewed = view + 1;
  CHECK(view.to_vector() == floats{0, 1, 2});
  Tensor<float> twice = arange(3);
  twice = twice * twice + twice;
  CHECK(twice.to_vector() == floats{0, 2, 6});
}

TEST_CASE("an assignment that fails leaves everything as it was") {
  Tensor<float> x = arange(6).view({2, 3});
  Tensor<float> const y{1, 2};
  CHECK(thrown<ShapeError>([&] { x.assign(y); }, "assign: shape [2] cannot be expanded to [2, 3]: 2 != 3 in dimension 1") == "");
  CHECK(thrown<ShapeError>([&] { x = x + y; }, "operator+: shapes [2, 3] and [2] do not broadcast: 3 != 2 in dimension 1") == "");
  CHECK(thrown<ShapeError>([&] { x += y; }, "operator+: shapes [2, 3] and [2] do not broadcast: 3 != 2 in dimension 1") == "");
  CHECK(thrown<ShapeError>([&] { x[0] = x; }, "assign: shape [2, 3] cannot be expanded to [3]: it has more dimensions") == "");
  CHECK(thrown<ShapeError>([&] { x[0] += x; }, "operator+=: shape [2, 3] cannot be expanded to [3]: it has more dimensions") == "");
  Tensor<float> wide = y.expand({3, 2});
  CHECK(thrown<LayoutError>([&] { wide += 1; },
                            "operator+=: writing to a broadcast view of shape [3, 2] with strides [0, 1] would write elements more than once; write to a clone() of it") == "");
  CHECK(thrown<LayoutError>([&] { wide.assign(0); },
                            "assign: writing to a broadcast view of shape [3, 2] with strides [0, 1] would write elements more than once; write to a clone() of it") == "");
  CHECK(x.to_vector() == floats{0, 1, 2, 3, 4, 5});
  CHECK(y.to_vector() == floats{1, 2});
  x += 1;
  CHECK(x.to_vector() == floats{1, 2, 3, 4, 5, 6});
}

TEST_CASE("assignment broadcasts its source") {
  Tensor<float> x = zeros({2, 3});
  x.assign(Tensor<float>{{1}, {2}});
  CHECK(x.to_vector() == floats{1, 1, 1, 2, 2, 2});
  x.assign(full({}, 7));
  CHECK(x.to_vector() == floats(6, 7));
  x.t() = Tensor<float>{4, 5} * 2;
  CHECK(x.to_vector() == floats{8, 8, 8, 10, 10, 10});
  Tensor<float> none = zeros({0, 3});
  none.assign(Tensor<float>{1, 2, 3});
  none += 1;
  CHECK(none.size() == 0);
}
