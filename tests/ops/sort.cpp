#include <situ/ops/sort.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <ops/expected/sort.hpp>
#include <situ/tensor.hpp>
#include <support/compare.hpp>
#include <support/devices.hpp>
#include <support/probe.hpp>

using namespace situ;

namespace {

// ---- the oracle: std::sort of indices, by comparing plain numbers and then places ----------------------------------------

template <class T>
bool less(T a, T b) {
  if constexpr (floating<T>) {
    double const x = static_cast<double>(static_cast<compute_t<T>>(a)), y = static_cast<double>(static_cast<compute_t<T>>(b));
    return std::isnan(x) ? false : std::isnan(y) ? true : x < y;
  } else {
    return a < b;
  }
}

/// One row of host elements `step` apart.
template <class T>
std::vector<int64_t> order_of(T const* row, int64_t n, int64_t step, bool falling) {
  std::vector<int64_t> order(static_cast<std::size_t>(n));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::sort(order.begin(), order.end(), [=](int64_t a, int64_t b) {
    bool const before = less(row[a * step], row[b * step]), after = less(row[b * step], row[a * step]);
    return falling ? after || (!before && a < b) : before || (!after && a < b);
  });
  return order;
}

template <class T>
bool same_bits(T a, T b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

/// Empty, or the first place where values (bit for bit) or indices are not those of the first k of the stable order.
template <class T>
std::string differs(Tensor<T> const& x, int axis, bool falling, int64_t k, Tensor<T> const* values, Tensor<int64_t> const* indices) {
  int64_t const n = x.rank() == 0 ? 1 : x.size(axis);
  int64_t columns = 1;
  for (int a = axis + 1; a < x.rank(); ++a) columns *= x.shape()[a];
  Shape shape = x.shape();
  if (x.rank() > 0) shape[axis] = k;
  if (values && !(values->shape() == shape)) return "the values have shape " + to_string(values->shape());
  if (indices && !(indices->shape() == shape)) return "the indices have shape " + to_string(indices->shape());
  if (values && !values->is_contiguous()) return "the values are not contiguous";
  for (int64_t r = 0; n > 0 && r < x.size() / n; ++r) {
    int64_t const first = r / columns * n * columns + r % columns, place = r / columns * k * columns + r % columns;
    auto const order = order_of(x.data() + first, n, columns, falling);
    for (int64_t i = 0; i < k; ++i) {
      int64_t const from = order[static_cast<std::size_t>(i)];
      if (indices && indices->data()[place + i * columns] != from) {
        return "row " + std::to_string(r) + ", index " + std::to_string(i) + " is " + std::to_string(indices->data()[place + i * columns]) + ", expected " + std::to_string(from);
      }
      if (values && !same_bits(values->data()[place + i * columns], x.data()[first + from * columns])) {
        return "row " + std::to_string(r) + ", value " + std::to_string(i) + " is not element " + std::to_string(from);
      }
    }
  }
  return "";
}

template <class T, class D>
void check_sort(Tensor<T, D> const& x, int axis = -1) {
  INFO(std::string(dtype_name<T>()), " of shape ", to_string(x.shape()), ", strides ", to_string(x.strides()), ", axis ", axis);
  Tensor<T> const host = x.cpu().contiguous();
  int const a = axis < 0 ? axis + std::max(x.rank(), 1) : axis;
  int64_t const n = x.rank() == 0 ? 1 : x.size(a);
  for (bool falling : {false, true}) {
    auto const [values, indices] = falling ? sort(x, axis, descending) : sort(x, axis);
    auto const hv = values.cpu();
    auto const hi = indices.cpu();
    CHECK(differs(host, a, falling, n, &hv, &hi) == "");
    auto const alone = (falling ? sort_values(x, axis, descending) : sort_values(x, axis)).cpu();
    CHECK(differs<T>(host, a, falling, n, &alone, nullptr) == "");
    auto const order = (falling ? argsort(x, axis, descending) : argsort(x, axis)).cpu();
    CHECK(differs<T>(host, a, falling, n, nullptr, &order) == "");
  }
}

template <class T, class D>
void check_topk(Tensor<T, D> const& x, int64_t k, int axis = -1) {
  INFO("topk ", k, " of ", std::string(dtype_name<T>()), " of shape ", to_string(x.shape()), ", strides ", to_string(x.strides()), ", axis ", axis);
  Tensor<T> const host = x.cpu().contiguous();
  int const a = axis < 0 ? axis + std::max(x.rank(), 1) : axis;
  for (bool largest : {false, true}) {
    auto const [values, indices] = largest ? topk(x, k, axis) : topk(x, k, axis, smallest);
    auto const hv = values.cpu();
    auto const hi = indices.cpu();
    CHECK(differs(host, a, largest, k, &hv, &hi) == "");
  }
}

// ---- inputs ---------------------------------------------------------------------------------------------------------

uint64_t hashed(int64_t i) {
  uint64_t z = static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15u + 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

constexpr char const* patterns[] = {"any bits", "rising", "falling", "all equal", "few different", "specials", "small numbers"};

/// Element i of n of a pattern.
template <class T>
T pattern(int kind, int64_t i, int64_t n) {
  using K = detail::unsigned_of_size<T>;
  if constexpr (std::is_same_v<T, bool>) {
    return kind == 1 ? i > n / 2 : kind == 2 ? i < n / 3 : kind == 3 ? true : hashed(i) % 2 == 1;
  } else {
    using Limits = std::numeric_limits<std::conditional_t<floating<T>, compute_t<T>, T>>;
    auto const number = [](double x) { return detail::convert_scalar<T>(x); };
    switch (kind) {
      case 0: return detail::bits_to<T>(static_cast<K>(hashed(i)));  // among floats: NaN of any sign and payload, infinities, subnormals
      case 1: return number(static_cast<double>(i) - static_cast<double>(n) / 2);
      case 2: return number(static_cast<double>(n) / 2 - static_cast<double>(i));
      case 3: return number(-7);
      case 4: return number(static_cast<double>(hashed(i) % 5) - 2);
      case 5: {
        double const inf = std::numeric_limits<double>::infinity();
        if constexpr (floating<T>) {
          double const specials[] = {0.0, -0.0, std::nan(""), -std::nan(""), inf, -inf, 1e-40, -1e-40, 1.0, -1.0};
          return T(static_cast<compute_t<T>>(specials[hashed(i) % 10]));
        } else {
          T const specials[] = {Limits::min(), Limits::max(), T(0), T(1), T(Limits::max() - 1), T(Limits::min() + 1)};
          return specials[hashed(i) % 6];
        }
      }
      default: return number(static_cast<double>(hashed(i) % 3000) / 16 - 90);
    }
  }
}

template <class T>
Tensor<T> made(int kind, Shape const& shape) {
  Tensor<T> result = empty<T>(shape);
  int64_t const n = result.size();
  for (int64_t i = 0; i < n; ++i) result.data()[i] = pattern<T>(kind, i, n);
  return result;
}

template <class T>
void check_patterns() {
  for (int kind = 0; kind < 7; ++kind) {
    INFO(std::string(patterns[kind]));
    for (Shape const& shape : {Shape{1}, Shape{2}, Shape{24}, Shape{25}, Shape{1000}, Shape{70, 3}, Shape{37, 10}, Shape{5, 64}, Shape{33, 65}, Shape{9, 512}, Shape{3, 513}, Shape{9, 1500}}) {
      check_sort(made<T>(kind, shape));
    }
    check_topk(made<T>(kind, {4, 700}), 5);
    check_topk(made<T>(kind, {9000}), 1);
    check_topk(made<T>(kind, {9000}), 2000);
    check_topk(made<T>(kind, {100}), 60);
  }
}

}  // namespace

#define ALL_TYPES float, double, float16, bfloat16, bool, int8_t, int16_t, int32_t, int64_t, uint8_t

TEST_CASE_TEMPLATE("sorting is stable, with NaN last, for every pattern and length", T, ALL_TYPES) {
  situ_test::with_every_instruction_set<Cpu>([] { check_patterns<T>(); });
}

TEST_CASE_TEMPLATE("a long row is sorted by all threads, and the result does not depend on their number", T, float, double, bfloat16, bool, int8_t, int32_t) {
  int const before = num_threads();
  for (int threads : {1, 3, 4}) {
    set_num_threads(threads);
    for (int kind : {0, 4, 5, 6}) {
      INFO(threads, " threads, ", std::string(patterns[kind]));
      check_sort(made<T>(kind, {150000}));
      auto const x = made<T>(kind, {2, 100000});
      check_topk(x, 20);
      check_topk(x[0], 300);
      auto const y = made<T>(kind, {150000});  // evaluated where the result will be, and sorted there
      Tensor<T> const evaluated = where(y == y, y, y);
      auto const in_place = sort_values(where(y == y, y, y));
      CHECK(differs<T>(evaluated, 0, false, y.size(), &in_place, nullptr) == "");
    }
  }
  set_num_threads(before);
}

// A fifth of the elements lie so close together that the digits which tell the others apart do not tell these.
TEST_CASE_TEMPLATE("close elements between distant ones are sorted too", T, double, int64_t, float, int32_t) {
  situ_test::with_every_instruction_set<Cpu>([] {
    for (int64_t n : {100, 1500, 150000}) {
      INFO(n);
      Tensor<T> x = empty<T>({n});
      for (int64_t i = 0; i < n; ++i) {
        int64_t const far = static_cast<int64_t>(hashed(i) >> 2), close = (int64_t{1} << 61) + static_cast<int64_t>(hashed(i) % 1000) * (floating<T> ? 4096 : 1);
        if constexpr (sizeof(T) == 8) x.data()[i] = static_cast<T>(i % 5 == 0 ? close : far);
        else x.data()[i] = static_cast<T>(i % 5 == 0 ? 1000 + close % 64 : far >> 31);
      }
      check_sort(x);
      auto const sorted = sort_values(where(x == x, x, x));
      CHECK(differs<T>(x, 0, false, n, &sorted, nullptr) == "");
    }
  });
}

// Those are counted, where their range is at most a quarter of their number.
TEST_CASE_TEMPLATE("whole numbers of a narrow range are sorted, wherever it lies and where it ends", T, int32_t, int64_t) {
  int const before = num_threads();
  using U = detail::unsigned_of_size<T>;
  T const least = std::numeric_limits<T>::min(), most = std::numeric_limits<T>::max();
  auto const check = [&](int64_t n, int64_t range, T low, int64_t far) {
    INFO(n, " elements of ", range, " numbers from ", low);
    Tensor<T> x = empty<T>({n});
    for (int64_t i = 0; i < n; ++i) x.data()[i] = static_cast<T>(static_cast<U>(low) + static_cast<U>(i == 5 ? 0 : i == 77 ? range - 1 : static_cast<int64_t>(hashed(i) % static_cast<uint64_t>(range))));
    if (far != 0) x.data()[n - 3] = static_cast<T>(static_cast<U>(low) + static_cast<U>(range - 1 + far));
    check_sort(x);
    Tensor<T> const evaluated = where(x == x, x, x);
    auto const in_place = sort_values(where(x == x, x, x));
    CHECK(differs<T>(evaluated, 0, false, n, &in_place, nullptr) == "");
  };
  for (int64_t n : {2047, 2048, 2049}) {
    for (int64_t range : {int64_t{1}, n / 4 - 1, n / 4, n / 4 + 1}) {
      check(n, range, T(-range / 2), 0);
      check(n, range, least, 0);
      check(n, range, static_cast<T>(most - (range - 1)), 0);
      check(n, range, T(-3), 1);
      check(n, range, T(-3), int64_t{1} << 30);
    }
  }
  set_num_threads(3);
  for (int64_t range : {2, 17000, 18000}) check(70001, range, T(-2), 0);
  set_num_threads(before);
  situ_test::with_every_instruction_set<Cpu>([&] { check(5003, 1000, T(-500), 0); });
  Tensor<T> x = empty<T>({3, 3000});
  for (int64_t i = 0; i < x.size(); ++i) x.data()[i] = static_cast<T>(hashed(i) % 50) - 25;
  check_sort(x.to(Emulated<0>{}));
  check_sort(x.t());
}

// Few elements are inserted one by one; how few, the bits say in which they differ.
TEST_CASE_TEMPLATE("rows of every short length are sorted, whatever the bits in which they differ", T, double, int64_t, float, int16_t) {
  for (int64_t n = 20; n < 140; ++n) {
    for (int width = 5; width <= 8 * static_cast<int>(sizeof(T)); width += 9) {
      INFO(n, " elements of ", width, " bits");
      Tensor<T> x = empty<T>({n});
      for (int64_t i = 0; i < n; ++i) x.data()[i] = detail::of_sort_key<T>(static_cast<detail::sort_key_t<T>>(hashed(i) >> (64 - width)));
      check_sort(x);
      auto const sorted = sort_values(x.flip(0));
      Tensor<T> const flipped = x.flip(0).contiguous();
      CHECK(differs<T>(flipped, 0, false, n, &sorted, nullptr) == "");
    }
  }
}

TEST_CASE_TEMPLATE("every view and axis is sorted on every device", D, Cpu, Pinned, Emulated<0>) {
  auto const each = []<class T>(std::type_identity<T>) {
    for (int kind : {5, 6}) {
      auto const x = made<T>(kind, {7, 30, 5}).to(D{});
      for (int axis : {0, 1, 2, -2}) {
        check_sort(x, axis);
        check_sort(x.transpose(0, 2), axis);
        check_sort(x(range(0, 7, 2), range(29, 3, -3), all()), axis);
        check_sort(x.flip(1), axis);
        check_sort(x.slice(1, 4, 5).expand({7, 30, 5}), axis);
        check_topk(x, 2, axis);
        check_topk(x.transpose(0, 1), 1, axis);
      }
      auto const tall = made<T>(kind, {900, 6}).to(D{});  // beyond a network
      check_sort(tall, 0);
      check_sort(tall.t(), 0);
      check_topk(tall, 7, 0);
      check_sort(made<T>(kind, {4097, 9}).to(D{}), 0);
      check_sort(made<T>(kind, {40000, 2}).to(D{}), 0);
      check_sort(made<T>(kind, {}).to(D{}));
      check_sort(made<T>(kind, {}).to(D{}), 0);
      check_sort(made<T>(kind, {0}).to(D{}));
      check_sort(made<T>(kind, {3, 0}).to(D{}));
      check_sort(made<T>(kind, {0, 3}).to(D{}));
      check_sort(made<T>(kind, {0, 3}).to(D{}), 0);
      check_sort(made<T>(kind, {1, 1}).to(D{}), 0);
      check_topk(made<T>(kind, {0, 3}).to(D{}), 0, 0);
      check_topk(made<T>(kind, {4, 50}).to(D{}), 0);
      check_topk(made<T>(kind, {}).to(D{}), 1);
    }
  };
  each(std::type_identity<float>{});
  if constexpr (!std::is_same_v<D, Pinned>) {
    each(std::type_identity<int8_t>{});
    each(std::type_identity<double>{});
  }
}

TEST_CASE("sorting agrees with NumPy") {
  namespace np = expected_sort;
  using situ_test::difference;
  Tensor<float> const x{np::floats};
  auto const [values, indices] = sort(x);
  CHECK(difference(values.to_vector(), np::floats_sorted) == "");
  CHECK(difference(indices.to_vector(), np::floats_order) == "");
  CHECK(difference(sort_values(x).to_vector(), np::floats_sorted) == "");
  Tensor<int8_t> const y{np::integers};
  CHECK(difference(sort_values(y).to_vector(), np::integers_sorted) == "");
  CHECK(difference(argsort(y).to_vector(), np::integers_order) == "");
  Tensor<int64_t> const m(np::matrix, {3, 4});
  CHECK(difference(sort_values(m, 0).to_vector(), np::matrix_sorted_0) == "");
  CHECK(difference(argsort(m, 0).to_vector(), np::matrix_order_0) == "");
  CHECK(difference(sort_values(m, 1).to_vector(), np::matrix_sorted_1) == "");
  CHECK(difference(argsort(m).to_vector(), np::matrix_order_1) == "");
}

TEST_CASE("topk gives the largest first, and the smallest when asked") {
  Tensor<int> const x{{3, 9, 1, 9}, {5, 5, 7, 0}};
  auto const best = topk(x, 2);
  CHECK(best.values.to_vector() == std::vector<int>{9, 9, 7, 5});
  CHECK(best.indices.to_vector() == std::vector<int64_t>{1, 3, 2, 0});
  auto const [values, indices] = topk(x, 1, 0);
  CHECK(values.to_vector() == std::vector<int>{5, 9, 7, 9});
  CHECK(indices.to_vector() == std::vector<int64_t>{1, 0, 1, 0});
  CHECK(topk(x, 2, smallest).values.to_vector() == std::vector<int>{1, 3, 0, 5});
  CHECK(topk(x + 0.5, 1, smallest).values.to_vector() == std::vector<float>{1.5f, 0.5f});
}

TEST_CASE("an expression is evaluated once, where it is sorted") {
  Tensor<float, Probe> const a{made<float>(6, {2000}).to(Probe{})}, b = a;
  Probe::reset();
  auto const values = sort_values(a * b);
  CHECK(Probe::allocations == 2);  // the result, and as much scratch
  CHECK(Probe::launches == 2);
  CHECK(Probe::transfers() == 0);
  Probe::reset();
  auto const tensor = sort_values(a);
  CHECK(Probe::allocations == 2);
  CHECK(Probe::launches == 1);
  Probe::reset();
  auto const rows = sort_values(a.view({50, 40}));
  CHECK(Probe::allocations == 2);  // the keys of 16 rows
  CHECK(Probe::launches == 1);
}

TEST_CASE("what sorting cannot do it says") {
  using situ_test::thrown;
  auto const x = made<float>(6, {3, 4});
  CHECK(thrown<ShapeError>([&] { sort(x, 2); }, "sort: axis 2 is out of range for shape [3, 4]: axes are -2 to 1") == "");
  CHECK(thrown<ShapeError>([&] { sort_values(x, -3); }, "sort_values: axis -3 is out of range for shape [3, 4]: axes are -2 to 1") == "");
  CHECK(thrown<ShapeError>([&] { argsort(x, 5); }, "argsort: axis 5 is out of range for shape [3, 4]: axes are -2 to 1") == "");
  CHECK(thrown<ShapeError>([&] { topk(x, 5); }, "topk: 5 elements were asked for along axis -1 of shape [3, 4]: there are 4; k is 0 to 4") == "");
  CHECK(thrown<ShapeError>([&] { topk(x, -1, 0); }, "topk: -1 elements were asked for along axis 0 of shape [3, 4]: there are 3; k is 0 to 3") == "");
  CHECK(thrown<ShapeError>([&] { sort(x.select(0, 0).select(0, 0), 1); }, "sort: axis 1 is out of range for shape []: it has no axes") == "");
}

TEST_CASE("of an axis of any length nothing is sorted beside an axis of length 0") {
  constexpr int64_t n = int64_t{1} << 62;
  Tensor<float> const none = zeros({n, n, 0});
  CHECK(sort(none, 0).indices.shape() == Shape(n, n, 0));
  CHECK(argsort(none, 1).shape() == Shape(n, n, 0));
  CHECK(topk(none, 3, 1).values.shape() == Shape(n, 3, 0));
}
