/// Binary search of many values at once.
#pragma once

#include <situ/expr/lanes.hpp>
#include <situ/ops/sort_keys.hpp>
#include <situ/tensor/factories.hpp>

namespace situ::inline SITU_ABI {

/// The place after equal elements, for searchsorted: searchsorted(edges, x, right).
struct right_t {
  explicit constexpr right_t(int) {}
};
inline constexpr right_t right{0};

namespace detail {

/// The first place in a sorted row before which every element is less than x (or, to the right, no greater). NaN is larger than everything.
/// On the CPU the lanes of a pack are searched for side by side, so that they wait for memory together.
template <class T, class V, bool Right>
struct SearchSorted {
  static constexpr char const* name = "searchsorted";
  using packed = void;
  using C = promote_t<T, V>;
  using K = sort_key_t<C>;
  T const* sorted;
  int64_t n;

  SITU_HOST_DEVICE static bool is_before(T const& element, K key) {
    K const other = sort_key(convert_scalar<C>(element));
    return Right ? !(key < other) : other < key;
  }
  SITU_HOST_DEVICE int64_t search(T const* row, V const& value) const {
    K const key = sort_key(convert_scalar<C>(value));
    if (n == 0) return 0;
    int64_t first = 0;
    for (int64_t left = n, half = 0; left > 1; left -= half) {  // the same steps whatever is found
      half = left / 2;
      first = is_before(row[first + half - 1], key) ? first + half : first;
    }
    return is_before(row[first], key) ? first + 1 : first;
  }
  SITU_HOST_DEVICE int64_t operator()(V const& value) const { return search(sorted, value); }
  SITU_HOST_DEVICE int64_t operator()(V const& value, int64_t row) const { return search(sorted + row * n, value); }

  template <int N, class Isa, class X, class Row>
  SITU_INLINE pack<int64_t, N, Isa> search_lanes(X const& values, Row const& row_of) const {
    K keys[N];
    T const* rows[N];
    alignas(64) int64_t first[N] = {};
    for (int k = 0; k < N; ++k) {
      keys[k] = sort_key(convert_scalar<C>(lane<V>(values, k)));
      rows[k] = sorted + row_of(k);
    }
    for (int64_t left = n, half = 0; left > 1; left -= half) {
      half = left / 2;
      for (int k = 0; k < N; ++k) first[k] += half & -static_cast<int64_t>(is_before(rows[k][first[k] + half - 1], keys[k]));
    }
    if (n > 0) {
      for (int k = 0; k < N; ++k) first[k] += is_before(rows[k][first[k]], keys[k]);
    }
    return pack<int64_t, N, Isa>::load(first);
  }
  struct OnlyRow {
    SITU_INLINE int64_t operator()(int) const { return 0; }
  };
  template <class Rows>
  struct RowOfLane {
    Rows const& rows;
    int64_t n;
    SITU_INLINE int64_t operator()(int k) const { return rows[k] * n; }
  };
  template <class U, int N, class Isa>
  SITU_INLINE auto operator()(pack<U, N, Isa> const& values) const {
    return search_lanes<N, Isa>(values, OnlyRow{});
  }
  template <class U, int N, class Isa>
  SITU_INLINE auto operator()(pack<U, N, Isa> const& values, pack<int64_t, N, Isa> const& rows) const {
    return search_lanes<N, Isa>(values, RowOfLane<pack<int64_t, N, Isa>>{rows, n});
  }
  template <int B, int N, class Isa>
  SITU_INLINE auto operator()(lane_mask<B, N, Isa> const& values) const {
    return search_lanes<N, Isa>(values, OnlyRow{});
  }
  template <int B, int N, class Isa>
  SITU_INLINE auto operator()(lane_mask<B, N, Isa> const& values, pack<int64_t, N, Isa> const& rows) const {
    return search_lanes<N, Isa>(values, RowOfLane<pack<int64_t, N, Isa>>{rows, n});
  }
};

template <class T, class V, bool Right>
inline constexpr int cost_of_function<SearchSorted<T, V, Right>> = 1000;

template <bool Right, class A, class E>
auto searchsorted(A const& a, E const& values) {
  using D = result_device_t<device_of<A>>;
  auto const sorted = evaluated(a).contiguous();
  Shape const &s = sorted.shape(), &v = values.shape();
  if (s.rank() == 0) fail<ShapeError>("searchsorted: the sorted elements have shape []: they need an axis");
  SearchSorted<value_of<A>, value_of<E>, Right> const f{sorted.data(), s[s.rank() - 1]};
  if (s.rank() == 1) return Tensor<int64_t, D>(map(f, values));
  bool fits = s.rank() == v.rank();
  for (int k = 0; fits && k + 1 < s.rank(); ++k) fits = s[k] == v[k];
  if (!fits) {
    fail<ShapeError>("searchsorted: sorted shape ", s, " and values shape ", v,
                     " do not fit: the sorted elements have one axis, or all axes but the last are the same");
  }
  Shape rows = s;
  rows[s.rank() - 1] = 1;
  return Tensor<int64_t, D>(map(f, values, arange<int64_t>(product(rows), D{}).view(rows)));
}

/// A number to be found among elements of A: weak, as in a comparison, but that floating ones stay double beside integers.
template <class A, class V>
auto searched(V value) {
  using C = std::conditional_t<std::is_integral_v<V> || floating<value_of<A>>, number_beside_t<true, value_of<A>, V>, typename canonical<V>::type>;
  return full<C>({}, compared_number<C>(value), result_device_t<device_of<A>>{});
}

}  // namespace detail

/// The indices at which `values` would be inserted into `sorted` so that it stays sorted: sorted[i - 1] < value <= sorted[i]; with `right`,
/// sorted[i - 1] <= value < sorted[i].
///
/// Shape     sorted [n], values of any shape; or sorted (..., n) with values (..., m), row by row. The result has the shape of values.
/// Dtype     compared in the type that both promote to; int64 out. NaN is larger than every number.
/// Device    both on one device (anything else does not compile); enqueued, not waited for.
/// Throws    ShapeError when the shapes do not fit. What is not sorted gives some place in it.
/// Cost      one launch, log2 n steps for each value; an expression of values is fused.
template <class A, class E>
  requires(expression<A> && expression<E> && on_same_device<A, E>)
auto searchsorted(A const& sorted, E const& values) {
  return detail::searchsorted<false>(sorted, values);
}
template <class A, class E>
  requires(expression<A> && expression<E> && on_same_device<A, E>)
auto searchsorted(A const& sorted, E const& values, right_t) {
  return detail::searchsorted<true>(sorted, values);
}
/// One value: a tensor of shape [].
template <class A, number V>
  requires expression<A>
auto searchsorted(A const& sorted, V value) {
  return detail::searchsorted<false>(sorted, detail::searched<A>(value));
}
template <class A, number V>
  requires expression<A>
auto searchsorted(A const& sorted, V value, right_t) {
  return detail::searchsorted<true>(sorted, detail::searched<A>(value));
}
template <class A, class E, class Error = detail::different_devices_of<A, E>>
  requires(expression<A> && expression<E> && !on_same_device<A, E>)
void searchsorted(A const&, E const&) = delete;
template <class A, class E, class Error = detail::different_devices_of<A, E>>
  requires(expression<A> && expression<E> && !on_same_device<A, E>)
void searchsorted(A const&, E const&, right_t) = delete;

}  // namespace situ::inline SITU_ABI
