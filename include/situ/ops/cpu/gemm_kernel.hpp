/// The inner kernel of matrix products: a tile of C in registers, and the packing of panels that it reads.
///
/// A tile is 3U, 2U or U rows high (U: 4 with 32 vector registers, 2 with 16) and one or two vectors wide. Its elements are summed
/// over k in order, whatever its height and wherever it lies: how a product is cut into tiles cannot be seen in the result.
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

/// The sizes of tiles for one instruction set.
struct TileSizes {
  int lanes;   ///< of a vector
  int narrow;  ///< columns of the narrowest tile: half a vector where those are twice as fast
  int unit;    ///< rows of the lowest tile; the others have two and three times as many
};
template <class C, class Isa>
inline constexpr TileSizes tile_sizes{Isa::bytes / static_cast<int>(sizeof(C)), Isa::bytes / static_cast<int>(sizeof(C)) / (Isa::bytes == 64 ? 2 : 1),
                                      Isa::bytes == 64 || !SITU_X86 ? 4 : 2};

/// How many rows the next panel has when `left` are to be covered: 3, 2 or 1 units.
constexpr int panel_rows(int64_t left, int unit) {
  if (left <= unit) return unit;
  return left <= 2 * unit || (left > 3 * unit && left <= 4 * unit) ? 2 * unit : 3 * unit;
}

/// How many columns the next panel has: two vectors, one, or a narrow one for the rest.
constexpr int panel_columns(int64_t left, TileSizes const& sizes) {
  int const narrow = sizes.narrow < sizes.lanes ? sizes.narrow : 0;
  return left > sizes.lanes + narrow ? 2 * sizes.lanes : left > narrow ? sizes.lanes : narrow;
}

/// The sum of the heights of the panels that cover `rows`.
constexpr int64_t covered_rows(int64_t rows, int unit) {
  int64_t covered = rows > 8 * unit ? (rows - 4 * unit) / (3 * unit) * (3 * unit) : 0;
  while (covered < rows) covered += panel_rows(rows - covered, unit);
  return covered;
}

/// One element in all lanes. (clang accepts wide registers in assembly only where the function itself names the target, and needs none.)
template <class Isa, class C, class V>
SITU_INLINE void spread(V& to, C const* from) {
#if SITU_X86 && !defined(__clang__)
  if constexpr (Isa::bytes > 16 && std::is_same_v<C, float>) {
    __asm__("vbroadcastss %1, %0" : "=v"(to) : "m"(*from));
    return;
  } else if constexpr (Isa::bytes > 16 && std::is_same_v<C, double>) {
    __asm__("vbroadcastsd %1, %0" : "=v"(to) : "m"(*from));
    return;
  }
#endif
  for (int l = 0; l < static_cast<int>(sizeof(V) / sizeof(C)); ++l) to[l] = *from;
}

/// sum += a * b, in one rounding where the instruction set has it, whatever -ffp-contract says.
template <class Isa, class C, class V>
SITU_INLINE void add_product(V& sum, V const& a, V const& b) {
#if defined(__clang__)
#pragma clang fp contract(fast)
#elif SITU_X86
  if constexpr (Isa::fma && std::is_same_v<C, float>) {
    __asm__("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return;
  } else if constexpr (Isa::fma && std::is_same_v<C, double>) {
    __asm__("vfmadd231pd %2, %1, %0" : "+v"(sum) : "v"(a), "v"(b));
    return;
  }
#endif
  sum += a * b;
}

/// N elements as what they are summed in.
template <class T, int N, class Isa>
SITU_INLINE pack<product_t<T>, N, Isa> load_product(T const* from) {
  using C = product_t<T>;
  if constexpr (is_product_type<T>) return pack<C, N, Isa>::load(reinterpret_cast<C const*>(from));
  else if constexpr (floating<T>) return load_lanes<T, N, Isa>(from);
  else return convert_unchecked<C>(pack<T, N, Isa>::load(from));
}

/// What the tiles of a block are computed from: panels of A and B, packed or as they lie in memory, `depth` deep.
template <class C>
struct Block {
  /// Takes a tile that the kernel has not stored itself, or that is to be finished; `direct` tells that it was stored.
  using Store = void (*)(void const* product, C* tile, int64_t stride, int64_t i, int64_t j, int64_t rows, int64_t columns, bool direct);
  int64_t rows, columns, depth;
  C const* a;       ///< packed: panels behind each other, `height` elements for each k; unpacked: at least a unit of rows
  int64_t a_i, a_k;
  C const* b;       ///< packed: the same with `width` elements
  int64_t b_k;
  C const* b_rest;  ///< unpacked: the columns that fill no vector, packed
  C* c;             ///< null: all tiles go to `store`
  int64_t c_i;
  Store store;
  void const* product;
  int64_t i, j;     ///< of the first tile, for `store`
  bool a_packed, b_packed;
  bool accumulate;  ///< adds to what is in C
  bool finishes;    ///< all tiles are shown to `store`

  /// Whether columns that fill no tile are covered by one that reaches back: some sums are then computed twice.
  bool overlaps_columns(int width) const { return !b_packed && !accumulate && columns >= width; }
};

template <class C>
struct BlockBody {
  template <class Isa, int Rows, int Vectors, int Lanes, int... R>
  SITU_INLINE static void tile(Block<C> const& block, C const* a, int64_t a_i, int64_t a_k, C const* b, int64_t b_k, int64_t i, int64_t j, int64_t rows,
                               int64_t columns, std::integer_sequence<int, R...>) {
    constexpr int width = Lanes * Vectors;
    using V = typename vector_of<C, Lanes>::type;
    V sums[Rows][Vectors];
    ((sums[R][0] = V{}, sums[R][Vectors - 1] = V{}), ...);
    bool const direct = block.c && rows == Rows && columns == width;
    C* c = block.c ? block.c + i * block.c_i + j : nullptr;
    int64_t c_i = block.c_i;
    if (direct) (__builtin_prefetch(c + R * c_i, 1), ...), (__builtin_prefetch(c + R * c_i + width - 1, 1), ...);
    C const* p[] = {a, a + 3 * a_i, a + 6 * a_i, a + 9 * a_i};  // a third of the addresses is computed, the rest is base + index * scale
    for (int64_t k = block.depth; k > 0; --k) {
      V x[Vectors];
      __builtin_memcpy(&x[0], b, sizeof(V));
      if constexpr (Vectors == 2) __builtin_memcpy(&x[1], b + Lanes, sizeof(V));
      (step<Isa>(sums[R], p[R / 3] + R % 3 * a_i, x), ...);
      b += b_k;
      p[0] += a_k, p[1] += a_k, p[2] += a_k, p[3] += a_k;
    }
    alignas(64) C buffer[Rows * width];
    bool const adds = direct && block.accumulate;
    if (!direct) c = buffer, c_i = width;
    (put(sums[R], c + R * c_i, adds), ...);
    if (SITU_UNLIKELY(!direct || block.finishes)) block.store(block.product, c, c_i, block.i + i, block.j + j, rows, columns, direct);
  }

  template <class Isa>
  SITU_INLINE static int run(Block<C> const* given) {
    constexpr int unit = tile_sizes<C, Isa>.unit;
    Block<C> const& block = *given;
    for (int64_t i = 0; i < block.rows;) {
      int height = panel_rows(block.rows - i, unit);
      if (!block.a_packed) {
        while (height > unit && height > block.rows) height -= unit;
        if (block.rows - i < height) i = block.rows - height;
      }
      if (height == 3 * unit) panel<Isa, 3 * unit>(block, i);
      else if (height == 2 * unit) panel<Isa, 2 * unit>(block, i);
      else panel<Isa, unit>(block, i);
      i += height;
    }
    return 0;
  }

 private:
  template <class Isa, class V, int Vectors>
  SITU_INLINE static void step(V (&sums)[Vectors], C const* a, V const (&x)[Vectors]) {
    V all{};
    spread<Isa>(all, a);
    add_product<Isa, C>(sums[0], all, x[0]);
    if constexpr (Vectors == 2) add_product<Isa, C>(sums[1], all, x[1]);
  }
  template <class V, int Vectors>
  SITU_INLINE static void put(V (&sums)[Vectors], C* c, bool adds) {
    if (adds) {
      V before;
      __builtin_memcpy(&before, c, sizeof(V));
      sums[0] += before;
      if constexpr (Vectors == 2) {
        __builtin_memcpy(&before, c + sizeof(V) / sizeof(C), sizeof(V));
        sums[1] += before;
      }
    }
    __builtin_memcpy(c, &sums[0], sizeof(V));
    if constexpr (Vectors == 2) __builtin_memcpy(c + sizeof(V) / sizeof(C), &sums[1], sizeof(V));
  }

  /// All tiles of one panel of rows.
  template <class Isa, int Rows>
  SITU_INLINE static void panel(Block<C> const& block, int64_t i) {
    constexpr TileSizes sizes = tile_sizes<C, Isa>;
    using Sequence = std::make_integer_sequence<int, Rows>;
    int64_t const rows = block.rows - i < Rows ? block.rows - i : Rows;
    C const* const a = block.a_packed ? block.a + i * block.depth : block.a + i * block.a_i;
    int64_t const a_i = block.a_packed ? 1 : block.a_i, a_k = block.a_packed ? Rows : block.a_k;
    for (int64_t j = 0; j < block.columns;) {
      int64_t width = panel_columns(block.columns - j, sizes);
      if (!block.b_packed && width == 2 * sizes.lanes && block.columns - j < width) width = sizes.lanes;
      if (block.columns - j < width && block.overlaps_columns(static_cast<int>(width))) j = block.columns - width;
      int64_t const left = block.columns - j, columns = left < width ? left : width;
      C const* b = block.b_packed ? block.b + j * block.depth : block.b + j;
      int64_t b_k = block.b_packed ? width : block.b_k;
      if (!block.b_packed && columns < width) b = block.b_rest, b_k = width;
      if (width == 2 * sizes.lanes) tile<Isa, Rows, 2, sizes.lanes>(block, a, a_i, a_k, b, b_k, i, j, rows, columns, Sequence{});
      else if (width == sizes.lanes) tile<Isa, Rows, 1, sizes.lanes>(block, a, a_i, a_k, b, b_k, i, j, rows, columns, Sequence{});
      else if constexpr (sizes.narrow < sizes.lanes) tile<Isa, Rows, 1, sizes.narrow>(block, a, a_i, a_k, b, b_k, i, j, rows, columns, Sequence{});
      j += width;
    }
  }
};

/// All tiles of a block.
template <class C>
SITU_NOINLINE void run_block(Block<C> const& block) {
  dispatch<BlockBody<C>>(&block);
}

// ---- packing --------------------------------------------------------------------------------------------------------

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
    using V = typename pack<C, 4, Isa>::vector;
    V const r0 = load_product<T, 4, Isa>(from).v, r1 = load_product<T, 4, Isa>(from + step).v;
    V const r2 = load_product<T, 4, Isa>(from + 2 * step).v, r3 = load_product<T, 4, Isa>(from + 3 * step).v;
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
};

template <class T>
SITU_NOINLINE void pack_panel(product_t<T>* to, int64_t width, T const* from, int64_t step_i, int64_t step_k, int64_t count, int64_t depth) {
  dispatch<PackBody<T>>(to, width, from, step_i, step_k, count, depth);
}

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
