/// Products of a matrix and a vector, at the speed of the memory that the matrix is read from.
#pragma once

#include <situ/ops/cpu/gemm_kernel.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// Sums are put aside after so many steps, so that long ones stay accurate.
inline constexpr int64_t vector_chain = 4096;
/// Rows are taken so many at a time, counted from the matrix's first one: what a row gives does not depend on the threads.
inline constexpr int vector_rows = 8;
/// Sums that are kept in the first cache.
inline constexpr int64_t vector_sums = 4096;

/// The sum of all lanes, by halves.
template <class V>
SITU_INLINE auto sum_of_lanes(V const& v) {
  using C = std::remove_cvref_t<decltype(v[0])>;
  constexpr int N = static_cast<int>(sizeof(V) / sizeof(C));
  if constexpr (N == 2) {
    return v[0] + v[1];
  } else if constexpr (N == 4) {
    return (v[0] + v[2]) + (v[1] + v[3]);
  } else {
    using Half = typename vector_of<C, N / 2>::type;
    Half low, high;
    __builtin_memcpy(&low, &v, sizeof(Half));
    __builtin_memcpy(&high, reinterpret_cast<char const*>(&v) + sizeof(Half), sizeof(Half));
    return sum_of_lanes(Half(low + high));
  }
}

/// sums[i] = sum over k of a[i * step + k] * x[k]: the rows lie in memory as they are.
template <class T>
struct SumRowsBody {
  using C = product_t<T>;

  template <class Isa>
  SITU_INLINE static int run(C* sums, T const* a, int64_t step, C const* x, int64_t rows, int64_t depth) {
    for (int64_t i = 0; i < rows; ++i) sums[i] = C(0);
    for (int64_t k = 0; k < depth; k += vector_chain) {
      int64_t const steps = depth - k < vector_chain ? depth - k : vector_chain;
      int64_t i = 0;
      for (; i + vector_rows <= rows; i += vector_rows) several<Isa>(sums + i, a + i * step + k, step, x + k, steps, std::make_integer_sequence<int, vector_rows>{});
      for (; i < rows; ++i) sums[i] += one<Isa>(a + i * step + k, x + k, steps);
    }
    return 0;
  }

 private:
  template <class Isa>
  static constexpr int lanes = tile_sizes<C, Isa>.lanes;

  /// The last N elements of a row, or of x, those before `first` as zeros: both, since 0 times infinity is NaN.
  template <class Isa, class U>
  SITU_INLINE static auto last_lanes(U const* end, int first) {
    constexpr int N = lanes<Isa>;
    using P = pack<C, N, Isa>;
    using Ix = pack<signed_of_size<C>, N, Isa>;
    Ix places;
    for (int l = 0; l < N; ++l) places.set(l, l);
    return select(places >= Ix(static_cast<signed_of_size<C>>(first)), load_product<U, N, Isa>(end - N), P(C(0)));
  }
  template <class Isa, int... R>
  SITU_INLINE static void several(C* sums, T const* a, int64_t step, C const* x, int64_t depth, std::integer_sequence<int, R...>) {
    constexpr int N = lanes<Isa>;
    using V = typename vector_of<C, N>::type;
    T const* const rows[] = {(a + R * step)...};
    if (SITU_UNLIKELY(depth < N)) {
      for (int r = 0; r < vector_rows; ++r) {
        for (int64_t k = 0; k < depth; ++k) sums[r] += static_cast<C>(a[r * step + k]) * x[k];
      }
      return;
    }
    V s[] = {((void)R, V{})...}, v;
    int64_t k = 0;
    for (; k + N <= depth; k += N) {
      __builtin_memcpy(&v, x + k, sizeof(V));
      (add_product<Isa, C>(s[R], load_product<T, N, Isa>(rows[R] + k).v, v), ...);
    }
    int const first = static_cast<int>(N - (depth - k));
    v = last_lanes<Isa>(x + depth, first).v;
    V ends[] = {s[R]...};
    for (int r = 0; r < vector_rows; ++r) {
      if (first < N) add_product<Isa, C>(ends[r], last_lanes<Isa>(a + r * step + depth, first).v, v);
      sums[r] += sum_of_lanes(ends[r]);
    }
  }
  template <class Isa>
  SITU_INLINE static C one(T const* a, C const* x, int64_t depth) {
    constexpr int N = lanes<Isa>;
    using V = typename vector_of<C, N>::type;
    V s0{}, s1{}, s2{}, s3{}, v0, v1, v2, v3;
    int64_t k = 0;
    for (; k + 4 * N <= depth; k += 4 * N) {
      __builtin_memcpy(&v0, x + k, sizeof(V));
      __builtin_memcpy(&v1, x + k + N, sizeof(V));
      __builtin_memcpy(&v2, x + k + 2 * N, sizeof(V));
      __builtin_memcpy(&v3, x + k + 3 * N, sizeof(V));
      add_product<Isa, C>(s0, load_product<T, N, Isa>(a + k).v, v0);
      add_product<Isa, C>(s1, load_product<T, N, Isa>(a + k + N).v, v1);
      add_product<Isa, C>(s2, load_product<T, N, Isa>(a + k + 2 * N).v, v2);
      add_product<Isa, C>(s3, load_product<T, N, Isa>(a + k + 3 * N).v, v3);
    }
    for (; k + N <= depth; k += N) {
      __builtin_memcpy(&v0, x + k, sizeof(V));
      add_product<Isa, C>(s0, load_product<T, N, Isa>(a + k).v, v0);
    }
    C total = sum_of_lanes(V((s0 + s1) + (s2 + s3)));
    for (; k < depth; ++k) total += static_cast<C>(a[k]) * x[k];
    return total;
  }
};

/// sums[i] += sum over k of a[i + k * step] * x[k]: the columns lie in memory as they are.
template <class T>
struct ColumnsBody {
  using C = product_t<T>;

  template <class Isa>
  SITU_INLINE static int run(C* sums, T const* a, int64_t step, C const* x, int64_t rows, int64_t depth) {
    int64_t k = 0;
    for (; k + vector_rows <= depth; k += vector_rows) several<Isa>(sums, a + k * step, step, x + k, rows, std::make_integer_sequence<int, vector_rows>{});
    for (; k < depth; ++k) several<Isa>(sums, a + k * step, step, x + k, rows, std::integer_sequence<int, 0>{});
    return 0;
  }

 private:
  template <class Isa, int... R>
  SITU_INLINE static void several(C* sums, T const* a, int64_t step, C const* x, int64_t rows, std::integer_sequence<int, R...>) {
    constexpr int N = tile_sizes<C, Isa>.lanes;
    using V = typename vector_of<C, N>::type;
    T const* const columns[] = {(a + R * step)...};
    V v[sizeof...(R)], s;
    (spread<Isa>(v[R], x + R), ...);
    int64_t i = 0;
    for (; i + N <= rows; i += N) {
      __builtin_memcpy(&s, sums + i, sizeof(V));
      (add_product<Isa, C>(s, load_product<T, N, Isa>(columns[R] + i).v, v[R]), ...);
      __builtin_memcpy(sums + i, &s, sizeof(V));
    }
    for (; i < rows; ++i) {
      C total = sums[i];
      ((total += static_cast<C>(columns[R][i]) * x[R]), ...);
      sums[i] = total;
    }
  }
};

/// Sums of at most vector_sums rows of a matrix times x, which is contiguous and of the type of the sums. One of the matrix's strides is 1.
template <class T>
SITU_NOINLINE void sum_rows(product_t<T>* sums, T const* a, int64_t a_i, int64_t a_k, product_t<T> const* x, int64_t rows, int64_t depth) {
  using C = product_t<T>;
  if (a_k == 1) {
    dispatch<SumRowsBody<T>>(sums, a, a_i, x, rows, depth);
    return;
  }
  for (int64_t i = 0; i < rows; ++i) sums[i] = C(0);
  if (depth <= vector_chain) {
    dispatch<ColumnsBody<T>>(sums, a, a_k, x, rows, depth);
    return;
  }
  alignas(64) C part[vector_sums];  // rows are no more than that
  for (int64_t k = 0; k < depth; k += vector_chain) {
    for (int64_t i = 0; i < rows; ++i) part[i] = C(0);
    dispatch<ColumnsBody<T>>(static_cast<C*>(part), a + k * a_k, a_k, x + k, rows, depth - k < vector_chain ? depth - k : vector_chain);
    for (int64_t i = 0; i < rows; ++i) sums[i] += part[i];
  }
}

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
