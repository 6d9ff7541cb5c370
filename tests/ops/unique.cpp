#include <situ/ops/reduce.hpp>
#include <situ/ops/searchsorted.hpp>
#include <situ/ops/unique.hpp>

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <ops/expected/sort.hpp>
#include <situ/tensor.hpp>
#include <support/compare.hpp>
#include <support/devices.hpp>

using namespace situ;

namespace {

uint64_t hashed(int64_t i) {
  uint64_t z = static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15u + 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

template <class T>
Tensor<T> numbers(Shape const& shape, int64_t different) {
  Tensor<T> result = empty<T>(shape);
  for (int64_t i = 0; i < result.size(); ++i) {
    result.data()[i] = detail::convert_scalar<T>(static_cast<int64_t>(hashed(i) % static_cast<uint64_t>(different)) - (std::is_signed_v<T> ? different / 2 : 0));
  }
  return result;
}

template <class T>
double number_of(T x) {
  return static_cast<double>(static_cast<compute_t<T>>(x));
}

/// Compares with std::map, which keeps where each number occurs.
template <class T, class D>
void check_unique(Tensor<T, D> const& x) {
  INFO(std::string(dtype_name<T>()), " of shape ", to_string(x.shape()), ", strides ", to_string(x.strides()));
  Tensor<T> const host = x.cpu().contiguous();
  std::map<double, std::vector<int64_t>> places;
  for (int64_t i = 0; i < host.size(); ++i) places[number_of(host.data()[i])].push_back(i);
  std::vector<double> values;
  std::vector<int64_t> counts, firsts, inverse(static_cast<std::size_t>(host.size()));
  for (auto const& [value, at] : places) {
    for (int64_t i : at) inverse[static_cast<std::size_t>(i)] = static_cast<int64_t>(values.size());
    values.push_back(value);
    counts.push_back(static_cast<int64_t>(at.size()));
    firsts.push_back(at.front());
  }
  auto const is = [&](auto const& got) {
    auto const h = got.cpu();
    REQUIRE(to_string(h.shape()) == to_string(Shape(static_cast<int64_t>(values.size()))));
    bool same = true;
    for (std::size_t k = 0; k < values.size(); ++k) same = same && number_of(h.data()[k]) == values[k];
    return same;
  };
  CHECK(is(unique(x)));
  auto const [v, c] = unique_counts(x);
  CHECK(is(v));
  CHECK(c.to_vector() == counts);
  auto const [w, i] = unique_inverse(x);
  CHECK(is(w));
  CHECK(to_string(i.shape()) == to_string(x.shape()));
  CHECK(i.to_vector() == inverse);
  auto const all = unique_all(x);
  CHECK(is(all.values));
  CHECK(all.indices.to_vector() == firsts);
  CHECK(all.inverse_indices.to_vector() == inverse);
  CHECK(all.counts.to_vector() == counts);
}

}  // namespace

TEST_CASE_TEMPLATE("unique finds every different element once, in order", T, float, double, float16, bfloat16, bool, int8_t, int16_t, int32_t, int64_t, uint8_t) {
  for (Shape const& shape : {Shape{}, Shape{0}, Shape{1}, Shape{3, 0}, Shape{17}, Shape{20, 30}, Shape{3000}}) {
    for (int64_t different : {1, 2, 100}) {
      check_unique(numbers<T>(shape, different));
      if constexpr (sizeof(T) == 4) check_unique(numbers<T>(shape, different).to(Emulated<0>{}));
    }
  }
}

TEST_CASE("unique takes views, expressions, and long rows with any number of threads") {
  int const before = num_threads();
  auto const x = numbers<int>({40, 50}, 700);
  check_unique(x.t());
  check_unique(x(range(1, 40, 3), range(49, 0, -2)));
  check_unique(x.to(Emulated<0>{}).t());
  check_unique(x.slice(0, 3, 4).expand({20, 50}));
  CHECK(unique(x % 3).to_vector() == std::vector<int>{0, 1, 2});
  CHECK(sum(unique_counts(x % 3).counts).item() == 2000);
  auto const [values, inverse] = unique_inverse(x * 2);
  CHECK(inverse.shape() == x.shape());
  for (int threads : {1, 4}) {
    set_num_threads(threads);
    check_unique(numbers<float>({200000}, 150000));
    check_unique(numbers<int64_t>({200000}, 3));
  }
  set_num_threads(before);
}

TEST_CASE("unique agrees with NumPy, and every NaN is an element of its own") {
  namespace np = expected_sort;
  using situ_test::difference;
  auto const [values, counts] = unique_counts(Tensor<float>{np::floats});
  CHECK(difference(values.to_vector(), np::floats_unique) == "");
  CHECK(difference(counts.to_vector(), np::floats_unique_counts) == "");
  auto const all = unique_all(Tensor<int64_t>(np::matrix, {3, 4}));
  CHECK(difference(all.values.to_vector(), np::matrix_unique) == "");
  CHECK(difference(all.indices.to_vector(), np::matrix_unique_indices) == "");
  CHECK(difference(all.inverse_indices.to_vector(), np::matrix_unique_inverse) == "");
  CHECK(difference(all.counts.to_vector(), np::matrix_unique_counts) == "");
}

// ---- searchsorted ---------------------------------------------------------------------------------------------------

TEST_CASE("searchsorted agrees with NumPy") {
  namespace np = expected_sort;
  using situ_test::difference;
  Tensor<double> const edges{np::edges}, probes{np::probes};
  CHECK(difference(searchsorted(edges, probes).to_vector(), np::probes_left) == "");
  CHECK(difference(searchsorted(edges, probes, right).to_vector(), np::probes_right) == "");
  CHECK(searchsorted(edges, 4.0).item() == 4);
  CHECK(searchsorted(edges, 4, right).item() == 6);
  CHECK(searchsorted(edges, 4).rank() == 0);
  CHECK(searchsorted(Tensor<float>{0.1f, 0.2f}, 0.1, right).item() == 1);  // a number is weak, as in PyTorch
  CHECK(searchsorted(Tensor<int64_t>{1, 2, 100000}, uint16_t{65535}).item() == 2);
  CHECK(searchsorted(Tensor<int64_t>{1, 2, 1LL << 40}, 4294967295u).item() == 2);
  CHECK(searchsorted(Tensor<int64_t>{1, 2, 3}, 18446744073709551615u).item() == 3);
  CHECK(searchsorted(Tensor<int64_t>{1, (1LL << 24) + 1}, 16777216.5).item() == 1);
  CHECK(searchsorted(Tensor<uint8_t>{1, 255}, 300).item() == 2);
}

TEST_CASE_TEMPLATE("searchsorted counts what is less, or no greater, on every device", D, Cpu, Pinned, Emulated<0>) {
  auto const each = []<class T, class V>(std::type_identity<T>, std::type_identity<V>) {
    for (int64_t n : {0, 1, 2, 3, 7, 100, 1000}) {
      Tensor<T> const row = sort_values(numbers<T>({n}, 60));
      Tensor<V> const values = numbers<V>({12, 9}, 100);
      auto const left = searchsorted(row.to(D{}), values.to(D{}).t()).cpu();
      auto const after = searchsorted(row.to(D{}), values.to(D{}).t(), right).cpu();
      REQUIRE(to_string(left.shape()) == "[9, 12]");
      bool same = true;
      for (int64_t i = 0; i < 12; ++i) {
        for (int64_t j = 0; j < 9; ++j) {
          double const x = number_of(values(i, j));
          int64_t less = 0, no_greater = 0;
          for (int64_t k = 0; k < n; ++k) less += number_of(row(k)) < x, no_greater += number_of(row(k)) <= x;
          same = same && left(j, i) == less && after(j, i) == no_greater;
        }
      }
      INFO(std::string(dtype_name<T>()), " and ", std::string(dtype_name<V>()), ", ", n, " elements");
      CHECK(same);
    }
  };
  each(std::type_identity<float>{}, std::type_identity<float>{});
  each(std::type_identity<int8_t>{}, std::type_identity<int>{});
  each(std::type_identity<int64_t>{}, std::type_identity<double>{});
  each(std::type_identity<float16>{}, std::type_identity<bool>{});
}

TEST_CASE("searchsorted works row by row, and fuses the values") {
  Tensor<float> const rows{{1, 3, 5}, {2, 4, 6}};
  Tensor<float> const values{{3, 6, 9}, {3, 6, 9}};
  CHECK(searchsorted(rows, values).to_vector() == std::vector<int64_t>{1, 3, 3, 1, 2, 3});
  CHECK(searchsorted(rows, values, right).to_vector() == std::vector<int64_t>{2, 3, 3, 1, 3, 3});
  CHECK(searchsorted(rows.flip(1).flip(1), values * 2 - 3).to_vector() == std::vector<int64_t>{1, 3, 3, 1, 3, 3});
  CHECK(searchsorted(sqrt(rows), values).to_vector() == std::vector<int64_t>{3, 3, 3, 3, 3, 3});
}

namespace {
template <class A, class B>
concept searchable = requires(A a, B b) { searchsorted(a, b); };
static_assert(searchable<Tensor<float>, Tensor<float, Pinned>>);
static_assert(!searchable<Tensor<float>, Tensor<float, Emulated<0>>>);
static_assert(!searchable<Tensor<float, Emulated<1>>, Tensor<float, Emulated<0>>>);
}  // namespace

TEST_CASE("what searchsorted cannot do it says") {
  using situ_test::thrown;
  auto const a = ones({2, 3}), b = ones({4, 3});
  CHECK(thrown<ShapeError>([&] { searchsorted(a, b); },
                           "searchsorted: sorted shape [2, 3] and values shape [4, 3] do not fit: the sorted elements have one axis, or all axes "
                           "but the last are the same") == "");
  CHECK(thrown<ShapeError>([&] { searchsorted(full({}, 1), b); }, "searchsorted: the sorted elements have shape []: they need an axis") == "");
}
