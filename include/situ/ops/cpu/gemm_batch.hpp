/// Batches of small products: one launch, nothing packed that can be read where it lies.
///
/// Where the elements of both matrices and of their product each find place in one vector, a vector holds as many of them as it can, and
/// every step of the sum is two permutations and one multiplication. Of others with short rows, B is kept in registers. The rest are tiles
/// of the kernel for large products, one after the other.
#pragma once

#include <situ/ops/cpu/gemm.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// Whether there are permutations of a vector of C that take one instruction.
template <class C, class Isa>
inline constexpr bool has_permutations = has_masks<Isa> && (Isa::bytes == 64 || sizeof(C) == 4);
template <class C>
bool current_permutations() {
#if SITU_X86
  instruction_set const set = current_instruction_set();
  return set == instruction_set::avx512 ? has_permutations<C, isa::avx512> : set == instruction_set::avx2 && has_permutations<C, isa::avx2>;
#else
  return false;
#endif
}

/// A batch of products of few elements: `group` of them at a time, whose elements find place in vectors.
template <class C>
struct FewElements {
  static constexpr int most = 64 / static_cast<int>(sizeof(C));
  C const* a;
  C const* b;
  C* c;
  int64_t count, next_a, next_b, next_c;
  int64_t span_a, span_b;  ///< of one matrix, in elements
  int depth, group;
  int64_t low_a, low_b;                          ///< of the first element, from the matrix's own first
  signed_of_size<C> at_a[most][most], at_b[most][most];  ///< for each k: where a lane of the product finds its factors

  /// False where there is no place. Strides lead to the next matrices of the batch; the product is contiguous.
  template <class T>
  SITU_NOINLINE bool plan(Product<T> const& p, int lanes, int64_t step_a, int64_t step_b, int64_t step_c) {
    if (p.m > lanes || p.n > lanes || p.k > lanes || p.m * p.n > lanes || p.k < 1) return false;
    if ((p.n == 1 ? p.m > 1 && p.c_i != 1 : p.c_j != 1 || (p.m > 1 && p.c_i != p.n))) return false;
    auto const size = [](int64_t x) { return x < 0 ? -x : x; };
    auto const least = [](int64_t rows, int64_t step) { return step < 0 ? (rows - 1) * step : 0; };
    constexpr int64_t far = 64;
    if (p.m > 1 && size(p.a_i) > far) return false;
    if (p.n > 1 && size(p.b_j) > far) return false;
    if (p.k > 1 && (size(p.a_k) > far || size(p.b_k) > far)) return false;
    span_a = (p.m - 1) * size(p.a_i) + (p.k - 1) * size(p.a_k) + 1, span_b = (p.k - 1) * size(p.b_k) + (p.n - 1) * size(p.b_j) + 1;
    if (span_a > lanes || span_b > lanes) return false;
    low_a = least(p.m, p.a_i) + least(p.k, p.a_k), low_b = least(p.k, p.b_k) + least(p.n, p.b_j);
    next_a = step_a, next_b = step_b, next_c = step_c;
    depth = static_cast<int>(p.k);
    group = 1;
    if (step_a >= 0 && step_b >= 0 && step_c == p.m * p.n && step_a <= far && step_b <= far) {
      while ((group + 1) * step_c <= lanes && group * step_a + span_a <= lanes && group * step_b + span_b <= lanes) ++group;
    }
    for (int k = 0; k < depth; ++k) {
      for (int lane = 0; lane < lanes; ++lane) at_a[k][lane] = at_b[k][lane] = 0;
      int lane = 0;
      for (int g = 0; g < group; ++g) {
        for (int i = 0; i < p.m; ++i) {
          for (int j = 0; j < p.n; ++j, ++lane) {
            at_a[k][lane] = static_cast<signed_of_size<C>>(g * step_a + i * p.a_i + k * p.a_k - low_a);
            at_b[k][lane] = static_cast<signed_of_size<C>>(g * step_b + k * p.b_k + j * p.b_j - low_b);
          }
        }
      }
    }
    return true;
  }
};

template <class C>
struct FewElementsBody {
  template <class Isa>
  SITU_INLINE static int run(FewElements<C> const* few, int64_t size) {
    if constexpr (has_permutations<C, Isa>) {
      switch (few->depth) {
        case 2: return products<Isa>(*few, size, std::make_integer_sequence<int, 2>{});
        case 3: return products<Isa>(*few, size, std::make_integer_sequence<int, 3>{});
        case 4: return products<Isa>(*few, size, std::make_integer_sequence<int, 4>{});
        default: return products<Isa>(*few, size, std::make_integer_sequence<int, 1>{});
      }
    }
    return 0;
  }

 private:
  /// `to` = the lanes of `from` that `places` names.
  template <class Isa, class V, class Ix>
  SITU_INLINE static void permute([[maybe_unused]] V& to, [[maybe_unused]] V const& from, [[maybe_unused]] Ix const& places) {
#if SITU_X86 && !defined(__clang__)
    if constexpr (sizeof(C) == 4) __asm__("vpermps {%1, %2, %0|%0, %2, %1}" : "=v"(to) : "v"(from), "v"(places));
    else __asm__("vpermpd {%1, %2, %0|%0, %2, %1}" : "=v"(to) : "v"(from), "v"(places));
#endif
  }
  /// The first steps of the sum with places in registers, then the others. `size` is that of one product.
  template <class Isa, int... K>
  SITU_INLINE static int products(FewElements<C> const& few, int64_t size, std::integer_sequence<int, K...>) {
    constexpr int N = tile_sizes<C, Isa>.lanes;
    using V = typename vector_of<C, N>::type;
    using Ix = typename vector_of<signed_of_size<C>, N>::type;
    Ix at_a[sizeof...(K)], at_b[sizeof...(K)];
    (__builtin_memcpy(&at_a[K], few.at_a[K], sizeof(Ix)), ...);
    (__builtin_memcpy(&at_b[K], few.at_b[K], sizeof(Ix)), ...);
    C const *a = few.a + few.low_a, *b = few.b + few.low_b;
    C* c = few.c;
    int64_t left = few.count;
    int const depth = few.depth;
    for (int64_t group = few.group; left > 0; group = 1) {
      if (group > left) continue;
      FirstLanes<Isa, C, N> const lanes_a((group - 1) * few.next_a + few.span_a), lanes_b((group - 1) * few.next_b + few.span_b), lanes_c(group * size);
      int64_t const next_a = group * few.next_a, next_b = group * few.next_b, next_c = group * few.next_c;
      bool const fills = group * size == N;  // a vector
      for (; left >= group; left -= group) {
        V x, y, u, v, sum{};
        lanes_a.load(x, a), lanes_b.load(y, b);
        ((permute<Isa>(u, x, at_a[K]), permute<Isa>(v, y, at_b[K]), add_product<Isa, C>(sum, u, v)), ...);
        if constexpr (sizeof...(K) == 1) {
          for (int k = 1; k < depth; ++k) {
            Ix p, q;
            __builtin_memcpy(&p, few.at_a[k], sizeof(Ix));
            __builtin_memcpy(&q, few.at_b[k], sizeof(Ix));
            permute<Isa>(u, x, p), permute<Isa>(v, y, q), add_product<Isa, C>(sum, u, v);
          }
        }
        if (Isa::bytes < 64 && fills) __builtin_memcpy(c, &sum, sizeof(V));
        else lanes_c.store(sum, c);
        a += next_a, b += next_b, c += next_c;
      }
    }
    return 0;
  }
};

/// Products whose rows find place in one vector, with B's few rows in registers.
template <class C>
struct FewRowsBody {
  static constexpr int most = 8;
  static constexpr int side = 16 / static_cast<int>(sizeof(C));  ///< of a matrix whose rows are 16 bytes

  /// Whether it is best for products of these sizes.
  static bool takes(Block<C> const& block, TileSizes const& sizes) {
    if (!sizes.masked) return is_square(block) && sizes.lanes <= 2 * side;
    return block.depth > 1 && block.depth <= most && block.columns <= sizes.lanes;
  }

  template <class Isa>
  SITU_INLINE static int run(Block<C> const* given) {
    constexpr TileSizes sizes = tile_sizes<C, Isa>;
    if constexpr (sizes.lanes <= 2 * side) {
      if (is_square(*given)) return squares<Isa>(*given, std::make_integer_sequence<int, side>{}), 0;
    }
    if constexpr (has_masks<Isa>) {
      constexpr int deep = Isa::bytes == 64 ? most : sizes.lanes;
      if (given->columns > sizes.narrow) {
        if constexpr (sizes.narrow < sizes.lanes) products<Isa, sizes.lanes, false>(*given, std::make_integer_sequence<int, most>{});
      } else if (given->depth == deep) {
        products<Isa, sizes.narrow, true>(*given, std::make_integer_sequence<int, deep>{});
      } else {
        products<Isa, sizes.narrow, false>(*given, std::make_integer_sequence<int, most>{});
      }
    }
    return 0;
  }

 private:
  template <class Isa, int Lanes, bool Deepest, int... K>
  SITU_INLINE static void products(Block<C> const& block, std::integer_sequence<int, K...>) {
    using V = typename vector_of<C, Lanes>::type;
    FirstLanes<Isa, C, Lanes> const lanes(block.columns);
    C const *matrix = block.a, *b = block.b;
    C* to = block.c;
    int64_t const next_a = block.next_a, next_b = block.next_b, next_c = block.next_c, depth = block.depth;
    int64_t const a_i = block.a_i, a_k = block.a_k, b_k = block.b_k, c_i = block.c_i, rows = block.rows;
    [[maybe_unused]] int64_t whole = Isa::bytes == 64 ? 0 : whole_rows(block, Lanes);
    V x[sizeof...(K)];
    ((x[K] = V{}), ...);
    for (int64_t t = block.count; t > 0; --t) {
      static_cast<void>((((Deepest || K < depth) && (lanes.load(x[K], b + K * b_k), true)) && ...));
      C const* a = matrix;
      C* c = to;
      for (int64_t i = rows; i > 0; --i) {
        V sum{};
        static_cast<void>((((Deepest || K < depth) && (add_product_of_all<Isa, C>(sum, x[K], a + K * a_k), true)) && ...));
        if (Isa::bytes < 64 && SITU_LIKELY(--whole >= 0)) __builtin_memcpy(c, &sum, sizeof(V));
        else lanes.store(sum, c);
        a += a_i, c += c_i;
      }
      matrix += next_a, b += next_b, to += next_c;
    }
  }
  /// How many rows of C, of all products, are written with whole vectors: what these write behind a row, the next rows write again.
  /// (Stores whose mask is a vector take some processors a dozen cycles.)
  SITU_NOINLINE static int64_t whole_rows(Block<C> const& block, int64_t lanes) {
    int64_t const columns = block.columns, rows = block.count * block.rows;
    if (columns == lanes) return rows;
    bool const dense = (block.rows == 1 || block.c_i == columns) && (block.count == 1 || block.next_c == block.rows * columns);
    return dense ? ((rows + 1) * columns - lanes) / columns : 0;
  }

  /// Whether B is square with rows of 16 bytes, and A and C have no gaps between their rows.
  static bool is_square(Block<C> const& block) {
    return block.columns == side && block.depth == side && block.a_i == side && block.a_k == 1 && block.c_i == side && block.rows > 1;
  }
  /// Those products, with one or two rows of A, and of C, in a vector.
  template <class Isa, int... K>
  SITU_INLINE static void squares(Block<C> const& block, std::integer_sequence<int, K...>) {
    constexpr int lanes = tile_sizes<C, Isa>.lanes;
    using V = typename vector_of<C, lanes>::type;
    C const *a = block.a, *b = block.b;
    C* c = block.c;
    int64_t const next_a = block.next_a, next_b = block.next_b, next_c = block.next_c, b_k = block.b_k, last = block.rows * side - lanes;
    V x[side], rows, factors{};
    for (int64_t t = block.count; t > 0; --t) {
      (repeat(x[K], b + K * b_k), ...);
      for (int64_t i = 0; i < last + lanes; i += lanes) {
        int64_t const at = i < last ? i : last;  // where a single row is left, the one before it is computed again
        V sum{};
        __builtin_memcpy(&rows, a + at, sizeof(V));
        ((spread_each<K>(factors, rows, std::make_integer_sequence<int, lanes>{}), add_product<Isa, C>(sum, factors, x[K])), ...);
        __builtin_memcpy(c + at, &sum, sizeof(V));
      }
      a += next_a, b += next_b, c += next_c;
    }
  }
  /// The element of every row that is numbered K, in all places of the row.
  template <int K, class V, int... L>
  SITU_INLINE static void spread_each(V& to, V const& rows, std::integer_sequence<int, L...>) {
    to = V{rows[L / side * side + K]...};
  }
  /// 16 bytes, as often as they find place.
  template <class V>
  SITU_INLINE static void repeat(V& to, C const* from) {
    using Row = char[16];
#if SITU_X86 && !defined(__clang__)
    if constexpr (sizeof(V) == 32) {
      __asm__("vbroadcastf128 {%1, %0|%0, %1}" : "=x"(to) : "m"(*reinterpret_cast<Row const*>(from)));
      return;
    }
#endif
    for (std::size_t part = 0; part < sizeof(V) / sizeof(Row); ++part) __builtin_memcpy(reinterpret_cast<char*>(&to) + part * sizeof(Row), from, sizeof(Row));
  }
};

/// Products of matrices that lie behind each other, with B's rows without gaps.
template <class C>
void run_small_blocks(Block<C> const& block, TileSizes const& sizes) {
  if (FewRowsBody<C>::takes(block, sizes)) dispatch<FewRowsBody<C>>(&block);
  else run_block(block);
}

/// Whether a product is so small that tiles of it are computed at once: its elements are those of its sums, and C's rows have no gaps.
template <class T>
bool is_small_product(Product<T> const& p) {
  return is_product_type<T> && !p.finish && p.c_j == 1 && p.n > 1 && p.m <= 256 && p.n <= 256 && p.k > 0 && p.k <= 256 && p.m * p.n * p.k <= 32768;
}
/// Whether products of a batch are so small that they are not cut.
template <class T>
bool is_small_batch(Product<T> const& p) {
  return is_small_product(p) || (is_product_type<T> && !p.finish && p.n == 1 && p.m <= 16 && p.k > 0 && p.k <= 16);
}

/// `count` small products; the steps lead to the next matrices.
template <class T>
SITU_NOINLINE void multiply_small(Product<T> const& p, int64_t count, int64_t next_a, int64_t next_b, int64_t next_c) {
  using C = product_t<T>;
  TileSizes const sizes = current_tile_sizes<C>();
  Block<C> block{};
  block.rows = p.m, block.columns = p.n, block.depth = p.k;
  block.a = reinterpret_cast<C const*>(p.a), block.a_i = p.a_i, block.a_k = p.a_k, block.next_a = next_a;
  block.b = reinterpret_cast<C const*>(p.b), block.b_k = p.b_k, block.next_b = next_b;
  block.c = reinterpret_cast<C*>(p.c), block.c_i = p.c_i, block.next_c = next_c;
  block.count = count;
  if (p.b_j == 1 && (sizes.masked || p.n >= 2 * sizes.lanes || p.n == sizes.lanes || FewRowsBody<C>::takes(block, sizes))) return run_small_blocks(block, sizes);
  block.b_packed = true;
  block.b_k = panel_columns(p.n, sizes);
  int64_t const columns = (p.n + sizes.lanes - 1) / sizes.lanes * sizes.lanes, size = columns * p.k;
  constexpr int64_t room = 4096;
  int64_t const some = next_b == 0 ? count : size < room ? room / size : 1;
  block.next_b = next_b == 0 ? 0 : size;
  PackingBuffer const buffer(((next_b == 0 || some == 1 ? size : room) + 64) * static_cast<int64_t>(sizeof(C)));
  Product<T> one = p;
  Multiplication<T> const work{one};
  C* const b = static_cast<C*>(buffer.get());
  for (int64_t t = 0; t < count; t += some) {
    block.count = count - t < some ? count - t : some;
    if (!b) {
      for (int64_t u = 0; u < block.count; ++u) work.plain(0, p.m, 0, p.n), one.a += next_a, one.b += next_b, one.c += next_c;
      continue;
    }
    for (int64_t u = 0; u < (next_b == 0 ? 1 : block.count); ++u) work.pack_columns(b + u * size, 0, p.k, 0, p.n, sizes), one.b += next_b;
    block.b = b;
    run_small_blocks(block, sizes);
    block.a += block.count * next_a, block.c += block.count * next_c;
  }
}

/// One product, on one thread. It is held where it is run later, and else referred to.
template <class T, class Held>
struct SingleKernel {
  Held product;
  void operator()(int64_t, int64_t) const {
    Product<T> const& p = product;
    if constexpr (is_product_type<T>) {
      if (is_small_product(p) && p.m * p.n * p.k > 32) return multiply_small(p, 1, 0, 0, 0);
    }
    if (p.m * p.n * p.k <= 32) Multiplication<T>{p}.plain(0, p.m, 0, p.n);
    else multiply(p, 0, p.m, 0, p.n);
  }
};

/// Many rows of few elements times a small matrix, row by row.
template <class T>
struct NarrowRowsKernel {
  Product<T> product;
  /// Whether it is best for a product.
  static bool takes(Product<T> const& p) {
    if (!is_product_type<T> || p.finish || p.c_j != 1 || p.n < 2 || p.k < 2 || p.k > FewRowsBody<product_t<T>>::most) return false;
    TileSizes const sizes = current_tile_sizes<product_t<T>>();
    return sizes.masked && p.n <= sizes.lanes;
  }
  void operator()(int64_t first, int64_t last) const {
    Product<T> rows = product;
    rows.m = last - first;
    rows.a += first * rows.a_i, rows.c += first * rows.c_i;
    multiply_small(rows, 1, 0, 0, 0);
  }
};

/// A batch of small products, item by item. Every element is summed in the same order wherever items begin and end.
template <class T>
struct SmallBatchKernel {
  using C = product_t<T>;
  BatchKernel<T> batch;

  void operator()(int64_t first, int64_t last) const {
    int const axis = batch.rank - 1;
    Product<T> const& all = batch.product;
    FewElements<C> few;
    TileSizes const sizes = current_tile_sizes<C>();
    bool const is_few = current_permutations<C>() && few.plan(all, sizes.lanes, batch.a[axis], batch.b[axis], batch.c[axis]);
    while (first < last) {
      Product<T> one = all;
      batch.move_to(one, first);
      int64_t const left = batch.sizes[axis] - first % batch.sizes[axis], count = last - first < left ? last - first : left;
      first += count;
      if (is_few) {
        few.a = reinterpret_cast<C const*>(one.a), few.b = reinterpret_cast<C const*>(one.b), few.c = reinterpret_cast<C*>(one.c);
        few.count = count;
        dispatch<FewElementsBody<C>>(static_cast<FewElements<C> const*>(&few), one.m * one.n);
      } else if (one.n > 1 && (sizes.masked || one.m * one.n * one.k > 32)) {
        multiply_small(one, count, batch.a[axis], batch.b[axis], batch.c[axis]);
      } else {
        for (int64_t t = 0; t < count; ++t) {
          multiply(one, 0, one.m, 0, one.n);
          one.a += batch.a[axis], one.b += batch.b[axis], one.c += batch.c[axis];
        }
      }
    }
  }
};

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
