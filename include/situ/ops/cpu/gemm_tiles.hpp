/// Products of bfloat16 on processors that multiply whole tiles (Intel's AMX): 16 x 16 sums, 32 elements of k at a time.
///
/// Panels of A and B are groups of 16 rows or columns. A group is packed in blocks of 32 elements of k, 1 KiB each, as the processor reads them:
///
/// rows      [16 rows][32 elements]
/// columns   [16 pairs of elements][16 columns][2]
///
/// with zeros where rows, columns or elements are missing. Products are exact. Of 32 elements the even ones and the odd ones are summed apart, in float,
/// then added; these sums are added over k in order. Subnormal numbers count as 0.
///
/// Source    Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18 (programming with Intel AMX)
#pragma once

#include <situ/ops/cpu/gemm_kernel.hpp>

#if SITU_X86 && defined(__x86_64__) && defined(__linux__) && (defined(__clang__) || __GNUC__ >= 11) && !defined(SITU_TEST_BASELINE_ONLY) && !defined(__CUDA_ARCH__)
#define SITU_TILES 1
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#else
#define SITU_TILES 0
#endif

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// Whether elements of T can be multiplied by tiles, where the processor does so: see multiplies_tiles().
template <class T>
inline constexpr bool has_tiles = SITU_TILES && std::is_same_v<T, bfloat16>;

inline constexpr int64_t tile_side = 16;         ///< rows and columns of a tile
inline constexpr int64_t tile_pairs = 16;        ///< of elements of k in one
inline constexpr int64_t tile_block_depth = 512;  ///< pairs: sums of up to 1024 elements are converted at once

/// Whether a product has enough to do for them: they are filled with zeros, and packing B is worth its while for several rows, or for wide and long ones.
constexpr bool is_for_tiles(int64_t m, int64_t n, int64_t k) {
  constexpr int64_t least = 16384;
  bool const large = k > least || m * n > least || m * n * k > least;
  return large && k >= 24 && (m >= 8 || (n >= 256 && k >= 64));
}

#if SITU_TILES
/// Whether the processor has tiles of bfloat16 and Linux lets this process use them, which it is asked for here: signal handlers' stacks (sigaltstack) must
/// have room for tiles from then on, and where one has not, there are none. Nor where the environment chooses the instruction set.
__attribute__((noinline, cold)) inline bool ask_for_tiles() {
  char const* const asked = std::getenv("SITU_INSTRUCTION_SET");
  if (asked && *asked) return false;
  // By their numbers: cpuid.h and sys/syscall.h would bring hundreds of macros. A processor with AVX-512 has leaf 7.
  unsigned a = 7, b = 0, c = 0, d = 0;
  __asm__ volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  constexpr unsigned amx_bf16 = 1u << 22, amx_tile = 1u << 24;
  if ((d & amx_bf16) == 0 || (d & amx_tile) == 0) return false;
  constexpr long arch_prctl = 158, request_permission = 0x1023, tile_data = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA: since Linux 5.16
  int const error = errno;
  bool const granted = syscall(arch_prctl, request_permission, tile_data) == 0;
  errno = error;
  return granted;
}
#endif

/// Whether products are multiplied by tiles.
inline bool multiplies_tiles() {
#if SITU_TILES
  if (current_instruction_set() != instruction_set::avx512) return false;
  static bool const granted = ask_for_tiles();
  return granted;
#else
  return false;
#endif
}

#if SITU_TILES
#if defined(__clang__)
#define SITU_TARGET_TILES target("amx-tile,amx-bf16"), noinline  // it asks of a function what its assembly needs
#else
#define SITU_TARGET_TILES noinline
#endif

/// What a processor does with its eight tiles. 0 to 3 are used for the sums of two by two, 4 and 5 for rows of A, 6 and 7 for columns of B.
struct TileRegisters {
  template <int Tile>
  SITU_INLINE static void load(void const* from, int64_t stride) {
    __asm__ volatile("{tileloadd (%0,%1,1), %%tmm%c2|tileloadd tmm%c2, [%0+%1*1]}" ::"r"(from), "r"(stride), "i"(Tile) : "memory");
  }
  template <int Tile>
  SITU_INLINE static void store(void* to, int64_t stride) {
    __asm__ volatile("{tilestored %%tmm%c2, (%0,%1,1)|tilestored [%0+%1*1], tmm%c2}" ::"r"(to), "r"(stride), "i"(Tile) : "memory");
  }
  template <int Tile>
  SITU_INLINE static void clear() {
    __asm__ volatile("{tilezero %%tmm%c0|tilezero tmm%c0}" ::"i"(Tile));
  }
  /// sums += a * b.
  template <int Sums, int A, int B>
  SITU_INLINE static void multiply() {
    __asm__ volatile("{tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0|tdpbf16ps tmm%c0, tmm%c1, tmm%c2}" ::"i"(Sums), "i"(A), "i"(B));
  }
  /// Every tile has 16 rows of 64 bytes.
  SITU_INLINE static void begin() {
    struct alignas(64) {
      unsigned char palette = 1, start_row = 0, reserved[14] = {};
      uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
      unsigned char rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
    } const shape;
    static_assert(sizeof shape == 64);
    __asm__ volatile("ldtilecfg %0" ::"m"(shape));
  }
  SITU_INLINE static void end() { __asm__ volatile("tilerelease"); }
};

/// Rows of A from one on, in bytes: to the next one, to those behind 16 of them, and along a row to the next tile.
struct TileRows {
  char const* first;
  int64_t row, group, step;
};

/// Rows x Columns tiles, each 1 or 2, `depth` pairs deep; b is the first group, `stride` is that of c in elements.
template <int Rows, int Columns>
SITU_INLINE void multiply_tiles(TileRows const& rows, float const* b, int64_t depth, float* c, int64_t stride, bool accumulate) {
  using R = TileRegisters;
  int64_t const bytes = stride * 4, group = depth * tile_side;
  char const* a = rows.first;
  if (accumulate) {
    R::load<0>(c, bytes);
    if constexpr (Columns == 2) R::load<1>(c + tile_side, bytes);
    if constexpr (Rows == 2) R::load<2>(c + tile_side * stride, bytes);
    if constexpr (Rows == 2 && Columns == 2) R::load<3>(c + tile_side * stride + tile_side, bytes);
  } else {
    R::clear<0>(), R::clear<1>(), R::clear<2>(), R::clear<3>();
  }
  for (int64_t k = 0; k < depth; k += tile_pairs, a += rows.step, b += tile_pairs * tile_side) {
    R::load<4>(a, rows.row);
    R::load<6>(b, 64);
    R::multiply<0, 4, 6>();
    if constexpr (Columns == 2) R::load<7>(b + group, 64), R::multiply<1, 4, 7>();
    if constexpr (Rows == 2) R::load<5>(a + rows.group, rows.row), R::multiply<2, 5, 6>();
    if constexpr (Rows == 2 && Columns == 2) R::multiply<3, 5, 7>();
  }
  R::store<0>(c, bytes);
  if constexpr (Columns == 2) R::store<1>(c + tile_side, bytes);
  if constexpr (Rows == 2) R::store<2>(c + tile_side * stride, bytes);
  if constexpr (Rows == 2 && Columns == 2) R::store<3>(c + tile_side * stride + tile_side, bytes);
}

static_assert(tile_sizes<float, isa::avx512>.lanes == tile_side, "the room for B's panels is counted in vectors");

/// All tiles of a block whose panels are groups, `depth` pairs deep; or A's rows lie where they are, a_i elements apart, whole groups of them.
__attribute__((SITU_TARGET_TILES)) inline void run_tiles(Block<float> const& block) {
  alignas(64) float buffer[4 * tile_side * tile_side];
  constexpr int64_t width = 2 * tile_side;
  TileRegisters::begin();
  for (int64_t i = 0; i < block.rows; i += width) {
    int64_t const rows = block.rows - i < width ? block.rows - i : width;
    int64_t const a_i = 2 * block.a_i;  // bytes
    TileRows const packed{reinterpret_cast<char const*>(block.a + i * block.depth), 64, block.depth * tile_side * 4, 1024};
    TileRows const a = block.a_packed ? packed : TileRows{reinterpret_cast<char const*>(block.a) + i * a_i, a_i, tile_side * a_i, 64};
    for (int64_t j = 0; j < block.columns; j += width) {
      int64_t const columns = block.columns - j < width ? block.columns - j : width;
      float const* const b = block.b + j * block.depth;
      float* const c = block.c ? block.c + i * block.c_i + j : nullptr;
      bool const direct = c && rows % tile_side == 0 && columns % tile_side == 0;
      float* const to = direct ? c : buffer;
      int64_t const stride = direct ? block.c_i : width;
      if (!direct && block.accumulate) {
        for (int64_t r = 0; r < rows; ++r) __builtin_memcpy(buffer + r * width, c + r * block.c_i, static_cast<std::size_t>(columns) * sizeof(float));
      }
      if (rows > tile_side && columns > tile_side) multiply_tiles<2, 2>(a, b, block.depth, to, stride, block.accumulate);
      else if (rows > tile_side) multiply_tiles<2, 1>(a, b, block.depth, to, stride, block.accumulate);
      else if (columns > tile_side) multiply_tiles<1, 2>(a, b, block.depth, to, stride, block.accumulate);
      else multiply_tiles<1, 1>(a, b, block.depth, to, stride, block.accumulate);
      if (c && !direct) {
        for (int64_t r = 0; r < rows; ++r) __builtin_memcpy(c + r * block.c_i, buffer + r * width, static_cast<std::size_t>(columns) * sizeof(float));
      }
      if (!c || block.finishes) block.store(block.product, c ? c : buffer, c ? block.c_i : width, block.i + i, block.j + j, rows, columns);
    }
  }
  TileRegisters::end();
}
#undef SITU_TARGET_TILES
#endif

/// Packs a group of up to 16 rows: row i and element k are from[i * step_i + k * step_k], for i < rows and k < elements. `depth` pairs, a multiple of 16.
template <class T>
struct PackTileRowsBody {
  template <class Isa>
  SITU_INLINE static int run(T* to, T const* from, int64_t step_i, int64_t step_k, int64_t rows, int64_t elements, int64_t depth) {
    constexpr int64_t length = 2 * tile_pairs;
    for (int64_t first = 0; first < 2 * depth; first += length, to += tile_side * length, from += length * step_k) {
      int64_t const left = elements - first < length ? elements - first : length;
      if (rows < tile_side || left < length) __builtin_memset(static_cast<void*>(to), 0, sizeof(T) * tile_side * length);
      if (step_k == 1) {
        for (int64_t i = 0; i < rows; ++i) {
          if (left == length) __builtin_memcpy(static_cast<void*>(to + i * length), from + i * step_i, sizeof(T) * length);
          else for (int64_t k = 0; k < left; ++k) to[i * length + k] = from[i * step_i + k];
        }
      } else if (step_i == 1 && rows == tile_side && left == length) {
        transpose<Isa>(to, from, step_k);
      } else {
        for (int64_t i = 0; i < rows; ++i) {
          for (int64_t k = 0; k < left; ++k) to[i * length + k] = from[i * step_i + k * step_k];
        }
      }
    }
    return 0;
  }

 private:
  /// Where the rows are neighbours: 16 pairs of columns, and those across.
  template <class Isa>
  SITU_INLINE static void transpose(T* to, T const* from, int64_t step_k) {
    using Four = pack<float, 4, Isa>;
    alignas(64) float pairs[tile_pairs][tile_side];
    for (int64_t k = 0; k < tile_pairs; ++k) interleave_pairs<tile_side>(pairs[k], from + 2 * k * step_k, from + (2 * k + 1) * step_k);
    auto const four = [&](int64_t k, int64_t i) { return Four::load(pairs[k] + i); };
    for (int64_t k = 0; k < tile_pairs; k += 4) {
      for (int64_t i = 0; i < tile_side; i += 4) {
        Four const k0 = four(k, i), k1 = four(k + 1, i), k2 = four(k + 2, i), k3 = four(k + 3, i);
        store_transposed<Isa>(reinterpret_cast<float*>(to + i * 2 * tile_pairs + 2 * k), tile_pairs, k0, k1, k2, k3);
      }
    }
  }
};

/// Packs groups of 16 columns behind each other: element k and column j are from[k * step_k + j * step_j], for k < elements and j < columns.
template <class T>
struct PackTileColumnsBody {
  template <class Isa>
  SITU_INLINE static int run(float* to, T const* from, int64_t step_j, int64_t step_k, int64_t columns, int64_t elements, int64_t depth) {
    int64_t const whole = elements / 2, group = tile_side * depth;
    while (columns > 0) {
      int64_t count = columns < tile_side ? columns : tile_side;
      if (step_j == 1 && columns >= 2 * tile_side) {  // a whole cache line of each row
        count = 2 * tile_side;
        for (int64_t k = 0; k < whole; ++k) {
          T const *const row = from + 2 * k * step_k, *const next = row + step_k;
          if (whole - k > ahead) __builtin_prefetch(row + 2 * ahead * step_k), __builtin_prefetch(next + 2 * ahead * step_k);
          interleave_pairs<tile_side>(to + k * tile_side, row, next);
          interleave_pairs<tile_side>(to + k * tile_side + group, row + tile_side, next + tile_side);
        }
        if (elements > 2 * whole) {
          for (int64_t j = 0; j < count; ++j) put_pair(to + whole * tile_side + j / tile_side * group + j % tile_side, from[2 * whole * step_k + j], T(0.0f));
        }
      } else {
        PackPairsBody<T>::template run<Isa>(to, tile_side, from, step_j, step_k, count, (elements + 1) / 2, elements);
      }
      for (int64_t done = 0; done < count; done += tile_side, to += group) {
        for (int64_t i = (elements + 1) / 2 * tile_side; i < group; ++i) to[i] = 0.0f;
      }
      from += count * step_j;
      columns -= count;
    }
    return 0;
  }

 private:
  static constexpr int64_t ahead = 8;
};

/// Of a group of columns that was packed in floats, 16 for each element, makes pairs in the same place.
struct JoinPairsBody {
  template <class Isa>
  SITU_INLINE static int run(float* group, int64_t depth) {
    using Words = typename vector_of<uint32_t, tile_side>::type;
    for (int64_t k = 0; k < depth; ++k) {
      Words first, second;
      __builtin_memcpy(&first, group + 2 * k * tile_side, sizeof first);
      __builtin_memcpy(&second, group + (2 * k + 1) * tile_side, sizeof second);
      Words const both = first >> 16 | (second & 0xffff0000u);
      __builtin_memcpy(group + k * tile_side, &both, sizeof both);
    }
    return 0;
  }
};

/// Both kinds of groups, and the tiles of blocks of them. For T without tiles, nothing.
template <class T>
struct Tiles {
  static void pack_rows([[maybe_unused]] product_t<T>* to, [[maybe_unused]] T const* from, [[maybe_unused]] int64_t step_i, [[maybe_unused]] int64_t step_k,
                        [[maybe_unused]] int64_t rows, [[maybe_unused]] int64_t elements, [[maybe_unused]] int64_t depth) {
#if SITU_TILES
    if constexpr (has_tiles<T>) run_avx512<PackTileRowsBody<T>>(reinterpret_cast<T*>(to), from, step_i, step_k, rows, elements, depth);
#endif
  }
  static void pack_columns([[maybe_unused]] product_t<T>* to, [[maybe_unused]] T const* from, [[maybe_unused]] int64_t step_j, [[maybe_unused]] int64_t step_k,
                           [[maybe_unused]] int64_t columns, [[maybe_unused]] int64_t elements, [[maybe_unused]] int64_t depth) {
#if SITU_TILES
    if constexpr (has_tiles<T>) run_avx512<PackTileColumnsBody<T>>(to, from, step_j, step_k, columns, elements, depth);
#endif
  }
  /// Makes pairs of a group that was packed in floats: 2 * depth * 16 of them, which are numbers of T.
  static void join_pairs([[maybe_unused]] product_t<T>* group, [[maybe_unused]] int64_t depth) {
#if SITU_TILES
    if constexpr (has_tiles<T>) run_avx512<JoinPairsBody>(group, depth);
#endif
  }
  static void run([[maybe_unused]] Block<product_t<T>> const& block) {
#if SITU_TILES
    if constexpr (has_tiles<T>) run_tiles(block);
#endif
  }
};

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
