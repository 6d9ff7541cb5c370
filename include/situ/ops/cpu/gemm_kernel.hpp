/// The inner kernel of matrix products: a tile of C in registers, and the packing of panels that it reads.
///
/// A tile is 12 or 4 rows high (6 or 4 with 16 vector registers) and one or two vectors wide, the last of them masked. Where fewer rows
/// are left, the last ones are computed again in place of those that are missing. Its elements are summed over k in order, whatever its
/// height and wherever it lies: how a product is cut into tiles cannot be seen in the result.
///
/// Source    the layers of Goto & van de Geijn 2008, doi:10.1145/1356052.1356053, and Van Zee & van de Geijn 2015,
///           doi:10.1145/2764454; here A's panel stays in the first cache and B's panels stream from the second.
#pragma once

#include <utility>

#include <situ/expr/cpu/dispatch.hpp>
#include <situ/expr/lanes.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// What products of T are summed in: float for the 16-bit floats; unsigned numbers for integers, which wrap.
template <class T>
using product_t = std::conditional_t<floating<T>, compute_t<T>, std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>>;

/// Whether a T in memory can be read and written as a product_t<T>.
template <class T>
inline constexpr bool is_product_type = sizeof(T) == sizeof(product_t<T>);

namespace cpu {

/// Whether vectors are loaded and stored in part. (In assembly: clang accepts wide registers there only where the function itself names
/// the target, and needs none for the rest.)
template <class Isa>
#if SITU_X86 && !defined(__clang__)
inline constexpr bool has_masks = Isa::bytes > 16;
#else
inline constexpr bool has_masks = false;
#endif

/// The sizes of tiles for one instruction set.
struct TileSizes {
  int lanes;   ///< of a vector
  int narrow;  ///< columns of the narrowest tile: half a vector where those are twice as fast
  int high, low;  ///< rows of a tile
  bool masked;    ///< tiles of one vector may have fewer columns
  bool prefers_packed;  ///< packed panels are multiplied faster than rows that lie apart
};
template <class C, class Isa>
inline constexpr TileSizes tile_sizes{Isa::bytes / static_cast<int>(sizeof(C)), Isa::bytes / static_cast<int>(sizeof(C)) / (Isa::bytes == 64 ? 2 : 1),
                                      Isa::bytes == 64 || !SITU_X86 ? 12 : Isa::bytes == 32 ? 6 : 4, 4, has_masks<Isa>, Isa::bytes == 32};

/// How many rows the next panel has when `left` are to be covered.
constexpr int panel_rows(int64_t left, TileSizes const& sizes) {
  bool const low = left <= sizes.low || (left <= 2 * sizes.low && (left > sizes.high || sizes.high >= 2 * sizes.low));
  return low ? sizes.low : sizes.high;
}

/// How many columns the next panel has: two vectors, one, or a narrow one for the rest.
constexpr int panel_columns(int64_t left, TileSizes const& sizes) {
  int const narrow = sizes.narrow < sizes.lanes ? sizes.narrow : 0;
  return left > sizes.lanes + narrow ? 2 * sizes.lanes : left > narrow ? sizes.lanes : narrow;
}

/// One element in all lanes. (clang accepts wide registers in assembly only where the function itself names the target, and needs none.)
template <class Isa, class C, class V>
SITU_INLINE void spread(V& to, C const* from) {
#if SITU_X86 && !defined(__clang__)
  if constexpr (Isa::bytes > 16 && std::is_same_v<C, float>) {
    __asm__("vbroadcastss {%1, %0|%0, %1}" : "=v"(to) : "m"(*from));
    return;
  } else if constexpr (Isa::bytes > 16 && sizeof(V) > 16 && std::is_same_v<C, double>) {
    __asm__("vbroadcastsd {%1, %0|%0, %1}" : "=v"(to) : "m"(*from));
    return;
  }
#endif
  constexpr int lanes = static_cast<int>(sizeof(V) / sizeof(C));
  if constexpr (sizeof(V) <= 16) to = pack<C, lanes, Isa>(*from).v;  // of a loop g++ would move each lane by itself
  else for (int l = 0; l < lanes; ++l) to[l] = *from;
}

/// sum += a * b, in one rounding where the instruction set has it, whatever -ffp-contract says.
template <class Isa, class C, class V>
SITU_INLINE void add_product(V& sum, V const& a, V const& b) {
#if defined(__clang__)
#pragma clang fp contract(fast)
#elif SITU_X86
  if constexpr (Isa::fma && std::is_same_v<C, float>) {
    __asm__("vfmadd231ps {%2, %1, %0|%0, %1, %2}" : "+v"(sum) : "v"(a), "v"(b));
    return;
  } else if constexpr (Isa::fma && std::is_same_v<C, double>) {
    __asm__("vfmadd231pd {%2, %1, %0|%0, %1, %2}" : "+v"(sum) : "v"(a), "v"(b));
    return;
  }
#endif
  sum += a * b;
}

/// sum += x * *from.
template <class Isa, class C, class V>
SITU_INLINE void add_product_of_all(V& sum, V const& x, C const* from) {
#if SITU_X86 && !defined(__clang__)
  if constexpr (Isa::bytes == 64 && sizeof(V) == 64 && std::is_same_v<C, float>) {
    __asm__("vfmadd231ps {%2%{1to16%}, %1, %0|%0, %1, %2%{1to16%}}" : "+v"(sum) : "v"(x), "m"(*from));
    return;
  } else if constexpr (Isa::bytes == 64 && sizeof(V) == 64 && std::is_same_v<C, double>) {
    __asm__("vfmadd231pd {%2%{1to8%}, %1, %0|%0, %1, %2%{1to8%}}" : "+v"(sum) : "v"(x), "m"(*from));
    return;
  }
#endif
  V all{};
  spread<Isa>(all, from);
  add_product<Isa, C>(sum, all, x);
}

#if SITU_X86 && !defined(__clang__) && __GNUC__ >= 11 && !defined(SITU_TEST_BASELINE_ONLY) && !defined(__CUDA_ARCH__)
#define SITU_PAIRS 1  // of bfloat16; in assembly, as above
#define SITU_ABI_PAIRS with_pairs  // for what takes part: files of different compilers may be linked
#else
#define SITU_PAIRS 0
#define SITU_ABI_PAIRS without_pairs
#endif

inline namespace SITU_ABI_PAIRS {

/// Whether elements of T can be multiplied by twos, where the processor has the instruction: see multiplies_pairs(m, k).
template <class T>
inline constexpr bool has_pairs = SITU_PAIRS && std::is_same_v<T, bfloat16>;

/// Whether products of m rows and depth k are multiplied by twos: where the processor does so, and AMD's do it twice as often in a second as for floats.
/// Intel's take longer for it than for two floats, but packing takes half the time, which is most of it where rows are few. Products and sums are those of
/// floats, each rounded once, but for subnormal numbers, which count as 0.
inline bool multiplies_pairs([[maybe_unused]] int64_t m, [[maybe_unused]] int64_t k) {
#if SITU_PAIRS
  if (current_instruction_set() != instruction_set::avx512 || !__builtin_cpu_supports("avx512bf16")) return false;
  return (m <= 4 && k >= 64) || __builtin_cpu_is("amd");
#else
  return false;
#endif
}

}  // namespace SITU_ABI_PAIRS

/// sum += x0 * from0 + x1 * from1 of the pairs of bfloat16 that lie in floats.
template <class V>
SITU_INLINE void add_pairs_of_all([[maybe_unused]] V& sum, [[maybe_unused]] V const& x, [[maybe_unused]] float const* from) {
#if SITU_PAIRS
  if constexpr (sizeof(V) == 64) __asm__("vdpbf16ps {%2%{1to16%}, %1, %0|%0, %1, %2%{1to16%}}" : "+v"(sum) : "v"(x), "m"(*from));
  else __asm__("vdpbf16ps {%2%{1to8%}, %1, %0|%0, %1, %2%{1to8%}}" : "+v"(sum) : "v"(x), "m"(*from));
#endif
}

alignas(64) inline constexpr int64_t lane_masks[8] = {-1, -1, -1, -1, 0, 0, 0, 0};

/// The first lanes of a vector: loads and stores that touch nothing else in memory. All lanes where there are no masks.
template <class Isa, class C, int Lanes>
struct FirstLanes {
  using V = typename vector_of<C, Lanes>::type;
  using Bytes = char[sizeof(V)];
#if SITU_X86 && !defined(__clang__)
  static constexpr bool in_register = Isa::bytes == 64, in_vector = Isa::bytes == 32;
  std::conditional_t<in_vector, typename vector_of<int64_t, static_cast<int>(sizeof(V)) / 8>::type, uint32_t> mask;

  SITU_INLINE explicit FirstLanes(int64_t count) {
    if constexpr (in_vector) __builtin_memcpy(&mask, reinterpret_cast<char const*>(lane_masks) + (Lanes - count) * static_cast<int64_t>(sizeof(C)), sizeof mask);
    else mask = (uint32_t{1} << count) - 1;
  }
  SITU_INLINE void load(V& to, C const* from) const {
    if constexpr (in_register && sizeof(C) == 4) __asm__("vmovups {%1, %0%{%2%}%{z%}|%0%{%2%}%{z%}, %1}" : "=v"(to) : "m"(*reinterpret_cast<Bytes const*>(from)), "Yk"(mask));
    else if constexpr (in_register) __asm__("vmovupd {%1, %0%{%2%}%{z%}|%0%{%2%}%{z%}, %1}" : "=v"(to) : "m"(*reinterpret_cast<Bytes const*>(from)), "Yk"(mask));
    else if constexpr (in_vector && sizeof(C) == 4) __asm__("vmaskmovps {%1, %2, %0|%0, %2, %1}" : "=x"(to) : "m"(*reinterpret_cast<Bytes const*>(from)), "x"(mask));
    else if constexpr (in_vector) __asm__("vmaskmovpd {%1, %2, %0|%0, %2, %1}" : "=x"(to) : "m"(*reinterpret_cast<Bytes const*>(from)), "x"(mask));
    else __builtin_memcpy(&to, from, sizeof(V));
  }
  SITU_INLINE void store(V const& x, C* to) const {
    if constexpr (in_register && sizeof(C) == 4) __asm__("vmovups {%1, %0%{%2%}|%0%{%2%}, %1}" : "+m"(*reinterpret_cast<Bytes*>(to)) : "v"(x), "Yk"(mask));
    else if constexpr (in_register) __asm__("vmovupd {%1, %0%{%2%}|%0%{%2%}, %1}" : "+m"(*reinterpret_cast<Bytes*>(to)) : "v"(x), "Yk"(mask));
    else if constexpr (in_vector && sizeof(C) == 4) __asm__("vmaskmovps {%1, %2, %0|%0, %2, %1}" : "+m"(*reinterpret_cast<Bytes*>(to)) : "x"(x), "x"(mask));
    else if constexpr (in_vector) __asm__("vmaskmovpd {%1, %2, %0|%0, %2, %1}" : "+m"(*reinterpret_cast<Bytes*>(to)) : "x"(x), "x"(mask));
    else __builtin_memcpy(to, &x, sizeof(V));
  }
#else
  SITU_INLINE explicit FirstLanes(int64_t) {}
  SITU_INLINE void load(V& to, C const* from) const { __builtin_memcpy(&to, from, sizeof(V)); }
  SITU_INLINE void store(V const& x, C* to) const { __builtin_memcpy(to, &x, sizeof(V)); }
#endif
};

/// N elements as what they are summed in.
template <class T, int N, class Isa>
SITU_INLINE pack<product_t<T>, N, Isa> load_product(T const* from) {
  using C = product_t<T>;
  if constexpr (is_product_type<T>) return pack<C, N, Isa>::load(reinterpret_cast<C const*>(from));
  else if constexpr (floating<T>) return load_lanes<T, N, Isa>(from);
  else return convert_unchecked<C>(pack<T, N, Isa>::load(from));
}

/// What the tiles of a block are computed from: panels of A and B, packed or as they lie in memory, `depth` deep. And of others like
/// it, of a batch, that are not shown to `store`.
template <class C>
struct Block {
  /// Takes a tile where there is no C, or it is to be finished.
  using Store = void (*)(void const* product, C* tile, int64_t stride, int64_t i, int64_t j, int64_t rows, int64_t columns);
  int64_t rows, columns, depth;
  C const* a;       ///< packed: panels behind each other, as many elements for each k as a tile has rows
  int64_t a_i, a_k;
  C const* b;       ///< packed: the same with its columns
  int64_t b_k;
  C const* b_rest;  ///< unpacked and without masks: the columns that fill no vector, packed
  C* c;             ///< null: all tiles go to `store`
  int64_t c_i;
  Store store;
  void const* product;
  int64_t i, j;     ///< of the first tile, for `store`
  bool a_packed, b_packed;
  bool accumulate;  ///< adds to what is in C
  bool finishes;    ///< all tiles are shown to `store`
  int64_t count = 1, next_a = 0, next_b = 0, next_c = 0;  ///< of the batch, and the way to its next matrices

  /// Whether columns that fill no tile are covered by one that reaches back: some sums are then computed twice.
  bool overlaps_columns(int width) const { return !b_packed && !accumulate && columns >= width; }
};

/// The tiles of a block of C, or of `Pairs` of bfloat16 that lie in floats: then each step is two.
template <class C, bool Pairs = false>
struct BlockBody {
  /// Where a tile is, and what it is computed from.
  struct Place {
    C const* a;
    int64_t a_i, a_k;
    C const* b;
    int64_t b_k;
    C* c;
    int64_t i, j, rows, columns;
  };

  template <class Isa, int Rows, int Vectors, int Lanes, int... R>
  SITU_INLINE static void tile(Block<C> const& block, Place const& place, std::integer_sequence<int, R...>) {
    int64_t const rows = place.rows, columns = place.columns, a_k = place.a_k, b_k = place.b_k;
    C const* b = place.b;
    C* const c = place.c;
    constexpr int width = Lanes * Vectors;
    constexpr bool masked = has_masks<Isa> && (Vectors == 1 || Isa::bytes == 64);
    using V = typename vector_of<C, Lanes>::type;
    V sums[Rows][Vectors];
    ((sums[R][0] = V{}, sums[R][Vectors - 1] = V{}), ...);
    FirstLanes<Isa, C, Lanes> const last(masked ? columns - (width - Lanes) : Lanes);
    bool const direct = c && (masked || columns == width);
    if (direct && block.depth >= 32) prefetch(c, block.c_i, rows, columns);
    // Of those rows that are missing, the last two take the place. Of two rows one address is computed, the other is base + index * scale.
    int64_t const a_i = rows < 2 ? 0 : place.a_i, c_i = rows < 2 ? 0 : block.c_i, last_pair = rows < 2 ? 0 : rows - 2;
    int64_t const pair[] = {(R < last_pair ? R : last_pair)...};
    int64_t k = block.depth;
    C const* a = place.a;
    // With 16 registers there is no room to decode much beside twelve products: in packed panels, whose steps are known, four passes of
    // the loop are one, and no address is computed in them.
    if constexpr (tile_sizes<C, Isa>.prefers_packed && Vectors == 2 && Rows == tile_sizes<C, Isa>.high) {
      if (block.a_packed && block.b_packed && rows == Rows) {
        constexpr int together = 4;
        for (; k >= together; k -= together, a += together * Rows, b += together * width) {
          several<Isa, Rows, Lanes>(sums, a, b, std::make_integer_sequence<int, together>{}, std::integer_sequence<int, R...>{});
        }
      }
    }
    C const* p[] = {(a + pair[R] * a_i)...};
    for (; k > 0; --k) {
      V x[Vectors];
      if constexpr (Vectors == 2) __builtin_memcpy(&x[0], b, sizeof(V));
      if constexpr (masked) last.load(x[Vectors - 1], b + (width - Lanes));
      else __builtin_memcpy(&x[Vectors - 1], b + (width - Lanes), sizeof(V));
      (step<Isa>(sums[R], p[R - R % 2] + R % 2 * a_i, x), ...);
      b += b_k;
      ((p[R] += a_k), ...);  // those of odd rows are not needed, and not computed
    }
    alignas(64) C buffer[Rows * width];
    if (direct && block.accumulate) (add<Isa>(sums[R], c + (pair[R - R % 2] * c_i + R % 2 * c_i), last), ...);
    C* const to = direct ? c : buffer;
    int64_t const to_i = direct ? c_i : width;
    if (masked && (Isa::bytes == 64 || columns < width)) (put<masked>(sums[R], to + (pair[R - R % 2] * to_i + R % 2 * to_i), last), ...);
    else (put<false>(sums[R], to + (pair[R - R % 2] * to_i + R % 2 * to_i), last), ...);
    if constexpr (!masked || Isa::bytes < 64) {
      if (SITU_UNLIKELY(c && !direct)) copy(c, block.c_i, buffer, width, rows, columns, block.accumulate);
    }
    if (SITU_UNLIKELY(!c || block.finishes)) block.store(block.product, c ? c : buffer, c ? block.c_i : width, block.i + place.i, block.j + place.j, rows, columns);
  }

  template <class Isa>
  SITU_INLINE static int run(Block<C> const* given) {
    constexpr TileSizes sizes = tile_sizes<C, Isa>;
    Block<C> const& block = *given;
    C const *a = block.a, *b = block.b;
    C* c = block.c;
    for (int64_t count = block.count; count > 0; --count) {
      for (int64_t i = 0; i < block.rows;) {
        int const height = panel_rows(block.rows - i, sizes);
        if (height == sizes.high) panel<Isa, sizes.high>(block, a, b, c, i);
        else if constexpr (sizes.low < sizes.high) panel<Isa, sizes.low>(block, a, b, c, i);
        i += height;
      }
      a += block.next_a, b += block.next_b, c += block.next_c;
    }
    return 0;
  }

 private:
  template <class Isa, class V, int Vectors>
  SITU_INLINE static void step(V (&sums)[Vectors], C const* a, V const (&x)[Vectors]) {
    add<Isa>(sums[0], x[0], a);
    if constexpr (Vectors == 2) add<Isa>(sums[1], x[1], a);
  }
  template <class Isa, class V>
  SITU_INLINE static void add(V& sum, V const& x, C const* a) {
    if constexpr (Pairs) add_pairs_of_all(sum, x, a);
    else add_product_of_all<Isa, C>(sum, x, a);
  }
  /// So many steps in packed panels.
  template <class Isa, int Rows, int Lanes, class V, int... K, int... R>
  SITU_INLINE static void several(V (&sums)[Rows][2], C const* a, C const* b, std::integer_sequence<int, K...>, std::integer_sequence<int, R...> rows) {
    (one_of_several<Isa, Rows, Lanes>(sums, a + K * Rows, b + K * 2 * Lanes, rows), ...);
  }
  template <class Isa, int Rows, int Lanes, class V, int... R>
  SITU_INLINE static void one_of_several(V (&sums)[Rows][2], C const* a, C const* b, std::integer_sequence<int, R...>) {
    V x[2];
    __builtin_memcpy(&x[0], b, sizeof(V));
    __builtin_memcpy(&x[1], b + Lanes, sizeof(V));
    (step<Isa>(sums[R], a + R, x), ...);
  }
  template <class Isa, class V, int Vectors, class Last>
  SITU_INLINE static void add(V (&sums)[Vectors], C const* c, Last const& last) {
    constexpr int lanes = static_cast<int>(sizeof(V) / sizeof(C));
    V before;
    if constexpr (Vectors == 2) {
      __builtin_memcpy(&before, c, sizeof(V));
      sums[0] += before;
    }
    if constexpr (has_masks<Isa> && (Vectors == 1 || Isa::bytes == 64)) last.load(before, c + (Vectors - 1) * lanes);
    else __builtin_memcpy(&before, c + (Vectors - 1) * lanes, sizeof(V));
    sums[Vectors - 1] += before;
  }
  template <bool Masked, class V, int Vectors, class Last>
  SITU_INLINE static void put(V (&sums)[Vectors], C* c, Last const& last) {
    constexpr int lanes = static_cast<int>(sizeof(V) / sizeof(C));
    if constexpr (Vectors == 2) __builtin_memcpy(c, &sums[0], sizeof(V));
    if constexpr (Masked) last.store(sums[Vectors - 1], c + (Vectors - 1) * lanes);
    else __builtin_memcpy(c + (Vectors - 1) * lanes, &sums[Vectors - 1], sizeof(V));
  }

  SITU_NOINLINE static void prefetch(C const* c, int64_t c_i, int64_t rows, int64_t columns) {
    for (; rows > 0; --rows, c += c_i) __builtin_prefetch(c, 1), __builtin_prefetch(c + columns - 1, 1);
  }
  SITU_NOINLINE static void copy(C* to, int64_t to_i, C const* from, int64_t width, int64_t rows, int64_t columns, bool adds) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t s = 0; s < columns; ++s) to[r * to_i + s] = adds ? to[r * to_i + s] + from[r * width + s] : from[r * width + s];
    }
  }

  /// All tiles of one panel of rows.
  template <class Isa, int Rows>
  SITU_INLINE static void panel(Block<C> const& block, C const* a, C const* b, C* c, int64_t i) {
    constexpr TileSizes sizes = tile_sizes<C, Isa>;
    using Sequence = std::make_integer_sequence<int, Rows>;
    Place place;
    place.i = i;
    place.rows = block.rows - i < Rows ? block.rows - i : Rows;
    place.a = a + i * (block.a_packed ? block.depth : block.a_i);
    place.a_i = block.a_packed ? 1 : block.a_i, place.a_k = block.a_packed ? Rows : block.a_k;
    C* const to = c ? c + i * block.c_i : nullptr;
    for (int64_t j = 0; j < block.columns;) {
      int64_t width = panel_columns(block.columns - j, sizes);
      if constexpr (!has_masks<Isa> || Isa::bytes < 64) {
        if (!block.b_packed && width == 2 * sizes.lanes && block.columns - j < width) width = sizes.lanes;
        if (block.columns - j < width && block.overlaps_columns(static_cast<int>(width))) j = block.columns - width;
      }
      int64_t const left = block.columns - j;
      place.j = j;
      place.columns = left < width ? left : width;
      place.b = b + (block.b_packed ? j * block.depth : j);
      place.b_k = block.b_packed ? width : block.b_k;
      if constexpr (!has_masks<Isa>) {
        if (!block.b_packed && left < width) place.b = block.b_rest, place.b_k = width;
      }
      place.c = to ? to + j : nullptr;
      if (width == 2 * sizes.lanes) tile<Isa, Rows, 2, sizes.lanes>(block, place, Sequence{});
      else if (width == sizes.lanes) tile<Isa, Rows, 1, sizes.lanes>(block, place, Sequence{});
      else if constexpr (sizes.narrow < sizes.lanes) tile<Isa, Rows, 1, sizes.narrow>(block, place, Sequence{});
      j += width;
    }
  }
};

/// All tiles of a block.
template <class C>
SITU_NOINLINE void run_block(Block<C> const& block) {
  dispatch<BlockBody<C>>(&block);
}
inline namespace SITU_ABI_PAIRS {
/// And of one that is packed in pairs, for products of T.
template <class T>
SITU_NOINLINE void run_pairs([[maybe_unused]] Block<product_t<T>> const& block) {
#if SITU_PAIRS
  if constexpr (has_pairs<T>) run_avx512<BlockBody<float, true>>(&block);
#endif
}
}  // namespace SITU_ABI_PAIRS

// ---- packing --------------------------------------------------------------------------------------------------------

/// The columns of four by four elements, `width` apart.
template <class Isa, class C>
SITU_INLINE void store_transposed(C* to, int64_t width, pack<C, 4, Isa> const& row0, pack<C, 4, Isa> const& row1, pack<C, 4, Isa> const& row2, pack<C, 4, Isa> const& row3) {
  using V = typename pack<C, 4, Isa>::vector;
  V const r0 = row0.v, r1 = row1.v, r2 = row2.v, r3 = row3.v;
#if defined(__clang__) || __GNUC__ >= 12
  V const low01 = __builtin_shufflevector(r0, r1, 0, 4, 1, 5), high01 = __builtin_shufflevector(r0, r1, 2, 6, 3, 7);
  V const low23 = __builtin_shufflevector(r2, r3, 0, 4, 1, 5), high23 = __builtin_shufflevector(r2, r3, 2, 6, 3, 7);
  V const c0 = __builtin_shufflevector(low01, low23, 0, 1, 4, 5), c1 = __builtin_shufflevector(low01, low23, 2, 3, 6, 7);
  V const c2 = __builtin_shufflevector(high01, high23, 0, 1, 4, 5), c3 = __builtin_shufflevector(high01, high23, 2, 3, 6, 7);
#else
  V const c0{r0[0], r1[0], r2[0], r3[0]}, c1{r0[1], r1[1], r2[1], r3[1]}, c2{r0[2], r1[2], r2[2], r3[2]}, c3{r0[3], r1[3], r2[3], r3[3]};
#endif
  __builtin_memcpy(to, &c0, sizeof(V));
  __builtin_memcpy(to + width, &c1, sizeof(V));
  __builtin_memcpy(to + 2 * width, &c2, sizeof(V));
  __builtin_memcpy(to + 3 * width, &c3, sizeof(V));
}

/// Packs `count` rows (or columns) of a matrix, `depth` long: to[k * width + i] = from[i * step_i + k * step_k], and zeros for
/// i >= count. Up to 64 bytes behind the end may be written as well.
template <class T>
struct PackBody {
  using C = product_t<T>;

  template <class Isa>
  SITU_INLINE static int run(C* to, int64_t width, T const* from, int64_t step_i, int64_t step_k, int64_t count, int64_t depth) {
    if (count < width) {
      for (int64_t k = 0; k < depth; ++k) {
        for (int64_t i = count; i < width; ++i) to[k * width + i] = C(0);
      }
    }
    if (step_i == 1) {
      constexpr int lanes = tile_sizes<C, Isa>.lanes;
      for (int64_t k = 0; k < depth; ++k) {
        T const* const row = from + k * step_k;
        C* const place = to + k * width;
        int64_t i = 0;
        for (; i + lanes <= count; i += lanes) load_product<T, lanes, Isa>(row + i).store(place + i);
        for (; i + 4 <= count; i += 4) load_product<T, 4, Isa>(row + i).store(place + i);
        for (; i < count; ++i) place[i] = static_cast<C>(row[i]);
      }
      return 0;
    }
    int64_t i = 0;
    if (step_k == 1) {
      for (; i + 4 <= count; i += 4) {
        T const* const row = from + i * step_i;
        int64_t k = 0;
        for (; k + 4 <= depth; k += 4) transpose<Isa>(to + k * width + i, width, row + k, step_i);
        for (; k < depth; ++k) {
          for (int64_t r = 0; r < 4; ++r) to[k * width + i + r] = static_cast<C>(row[r * step_i + k]);
        }
      }
      if (i + 2 <= count) {
        T const* const row = from + i * step_i;
        int64_t k = 0;
        for (; k + 4 <= depth; k += 4) transpose_two<Isa>(to + k * width + i, width, row + k, step_i);
        for (; k < depth; ++k) {
          for (int64_t r = 0; r < 2; ++r) to[k * width + i + r] = static_cast<C>(row[r * step_i + k]);
        }
        i += 2;
      }
    }
    for (; i < count; ++i) {
      for (int64_t k = 0; k < depth; ++k) to[k * width + i] = static_cast<C>(from[i * step_i + k * step_k]);
    }
    return 0;
  }

 private:
  /// Four by four elements.
  template <class Isa>
  SITU_INLINE static void transpose(C* to, int64_t width, T const* from, int64_t step) {
    store_transposed<Isa>(to, width, load_product<T, 4, Isa>(from), load_product<T, 4, Isa>(from + step), load_product<T, 4, Isa>(from + 2 * step),
                          load_product<T, 4, Isa>(from + 3 * step));
  }
  /// Two by four.
  template <class Isa>
  SITU_INLINE static void transpose_two(C* to, int64_t width, T const* from, int64_t step) {
    using V = typename pack<C, 4, Isa>::vector;
    V const r0 = load_product<T, 4, Isa>(from).v, r1 = load_product<T, 4, Isa>(from + step).v;
    V const low{r0[0], r1[0], r0[1], r1[1]}, high{r0[2], r1[2], r0[3], r1[3]};
    __builtin_memcpy(to, &low, sizeof(V) / 2);
    __builtin_memcpy(to + width, reinterpret_cast<char const*>(&low) + sizeof(V) / 2, sizeof(V) / 2);
    __builtin_memcpy(to + 2 * width, &high, sizeof(V) / 2);
    __builtin_memcpy(to + 3 * width, reinterpret_cast<char const*>(&high) + sizeof(V) / 2, sizeof(V) / 2);
  }
};

template <class T>
SITU_NOINLINE void pack_panel(product_t<T>* to, int64_t width, T const* from, int64_t step_i, int64_t step_k, int64_t count, int64_t depth) {
  dispatch<PackBody<T>>(to, width, from, step_i, step_k, count, depth);
}

/// Two 16-bit floats in one place.
template <class T>
SITU_INLINE void put_pair(float* to, T first, T second) {
  T const both[] = {first, second};
  __builtin_memcpy(to, both, sizeof *to);
}
/// N places: each has an element of a row, and that of the next one.
template <int N, class T>
SITU_INLINE void interleave_pairs(float* to, T const* row, T const* next) {
  using Halves = typename vector_of<uint16_t, N>::type;
  using Words = typename vector_of<uint32_t, N>::type;
  Halves first, second;
  __builtin_memcpy(&first, row, sizeof first);
  __builtin_memcpy(&second, next, sizeof second);
  Words const both = __builtin_convertvector(first, Words) | __builtin_convertvector(second, Words) << 16;
  __builtin_memcpy(to, &both, sizeof both);
}

/// Packs a panel with two neighbours of k together in each place, `depth` of them: to[k * width + i] = from[i * step_i + 2 k * step_k] and from[i * step_i + (2 k + 1) * step_k].
/// Of `elements` along k, which may be one less than those: then 0 is the last one.
template <class T>
struct PackPairsBody {
  template <class Isa>
  SITU_INLINE static int run(float* to, int64_t width, T const* from, int64_t step_i, int64_t step_k, int64_t count, int64_t depth, int64_t elements) {
    int64_t const whole = elements / 2;
    if (count < width) {
      for (int64_t k = 0; k < depth; ++k) {
        for (int64_t i = count; i < width; ++i) to[k * width + i] = 0.0f;
      }
    }
    int64_t i = 0;
    if (step_i == 1) {
      for (int64_t k = 0; k < whole; ++k) {
        T const *const row = from + 2 * k * step_k, *const next = row + step_k;
        for (i = 0; i + 16 <= count; i += 16) interleave_pairs<16>(to + k * width + i, row + i, next + i);
        for (; i + 4 <= count; i += 4) interleave_pairs<4>(to + k * width + i, row + i, next + i);
        for (; i < count; ++i) put_pair(to + k * width + i, row[i], next[i]);
      }
      i = count;
    } else if (step_k == 1) {
      for (; i + 4 <= count; i += 4) {
        T const* const row = from + i * step_i;
        int64_t k = 0;
        for (; k + 4 <= whole; k += 4) {
          T const* const p = row + 2 * k;
          store_transposed<Isa>(to + k * width + i, width, four<Isa>(p), four<Isa>(p + step_i), four<Isa>(p + 2 * step_i), four<Isa>(p + 3 * step_i));
        }
        for (; k < whole; ++k) {
          for (int64_t r = 0; r < 4; ++r) put_pair(to + k * width + i + r, row[r * step_i + 2 * k], row[r * step_i + 2 * k + 1]);
        }
      }
    }
    for (; i < count; ++i) {
      for (int64_t k = 0; k < whole; ++k) put_pair(to + k * width + i, from[i * step_i + 2 * k * step_k], from[i * step_i + (2 * k + 1) * step_k]);
    }
    if (whole < depth) {
      for (i = 0; i < count; ++i) put_pair(to + whole * width + i, from[i * step_i + 2 * whole * step_k], T(0.0f));
    }
    return 0;
  }

 private:
  template <class Isa>
  SITU_INLINE static pack<float, 4, Isa> four(T const* from) {
    pack<float, 4, Isa> found;
    __builtin_memcpy(&found.v, from, sizeof found.v);
    return found;
  }
};

inline namespace SITU_ABI_PAIRS {
template <class T>
SITU_NOINLINE void pack_pairs([[maybe_unused]] product_t<T>* to, [[maybe_unused]] int64_t width, [[maybe_unused]] T const* from, [[maybe_unused]] int64_t step_i,
                              [[maybe_unused]] int64_t step_k, [[maybe_unused]] int64_t count, [[maybe_unused]] int64_t depth, [[maybe_unused]] int64_t elements) {
#if SITU_PAIRS
  if constexpr (has_pairs<T>) run_avx512<PackPairsBody<T>>(to, width, from, step_i, step_k, count, depth, elements);
#endif
}
}  // namespace SITU_ABI_PAIRS

/// The sizes of tiles for the instruction set in force.
template <class C>
TileSizes current_tile_sizes() {
  switch (current_instruction_set()) {
#if SITU_X86
    case instruction_set::avx512: return tile_sizes<C, isa::avx512>;
    case instruction_set::avx2: return tile_sizes<C, isa::avx2>;
#endif
    default: return tile_sizes<C, isa::baseline>;
  }
}

}  // namespace cpu
}  // namespace detail
}  // namespace situ::inline SITU_ABI
