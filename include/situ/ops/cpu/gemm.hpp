/// Products of matrices of any strides: blocks chosen for the caches, packed where packing pays, one thread per rectangle.
///
/// multiply() computes a rectangle of one product on the calling thread and is all that other operations need: a convolution
/// gives its product a `pack_b` that gathers pixels instead of reading a matrix.
#pragma once

#include <situ/core/shape.hpp>
#include <situ/device/cpu/memory.hpp>
#include <situ/ops/cpu/gemm_kernel.hpp>
#include <situ/ops/cpu/gemm_tiles.hpp>
#include <situ/ops/cpu/gemm_vector.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// C = A B, with A [m, k], B [k, n] and C [m, n] of any strides, in elements; then `finish`, on tiles that are still in the cache.
/// Trivially copyable.
template <class T>
struct Product {
  using sum_type = product_t<T>;
  int64_t m, n, k;
  T const* a;
  int64_t a_i, a_k;
  T const* b;
  int64_t b_k, b_j;
  T* c;
  int64_t c_i, c_j;
  /// Changes rows x columns sums in place, `stride` apart: the elements of C from (i, j) on. May be null. It multiplies no matrices.
  void (*finish)(Product const& product, sum_type* tile, int64_t stride, int64_t i, int64_t j, int64_t rows, int64_t columns) = nullptr;
  T const* bias = nullptr;  ///< for `finish`
  int64_t bias_i = 0, bias_j = 0;
  /// Where B is not a matrix in memory: writes to[k * width + j] = B[first_k + k, first_j + j] for k < depth and j < count, and zeros
  /// for count <= j < width. 64 bytes behind the end may be written as well.
  void (*pack_b)(void const* source, sum_type* to, int64_t width, int64_t first_k, int64_t depth, int64_t first_j, int64_t count) = nullptr;
  void const* source = nullptr;  ///< for `pack_b`
  /// Beside `pack_b`, where A lies in pieces: so many columns, then those `piece_step` elements on. 0: it is one. `pack_b` is never
  /// asked for columns of two pieces at once.
  int64_t piece = 0, piece_step = 0;

  /// The first element of A's column k.
  T const* a_column(int64_t column) const { return piece == 0 ? a + column * a_k : a + column / piece * piece_step + column % piece * a_k; }
};

/// Blocks: A's rows of `depth` elements, three units high, fill half of a first cache of 32 KiB; B's block half of a second one of 1 MiB.
template <class C>
inline constexpr int64_t block_depth = 1536 / static_cast<int>(sizeof(C));
inline constexpr int64_t block_columns = 384;
inline constexpr int64_t block_rows = 2304;

/// Memory for the time of a product: on the stack where it is small; null when there is none.
class PackingBuffer {
 public:
  explicit PackingBuffer(int64_t bytes) : bytes_(static_cast<std::size_t>(bytes)) {
    if (bytes <= static_cast<int64_t>(sizeof small_)) {
      memory_ = small_;
    } else {
      memory_ = find();
    }
  }
  PackingBuffer(PackingBuffer const&) = delete;
  PackingBuffer& operator=(PackingBuffer const&) = delete;
  ~PackingBuffer() {
    if (memory_ && memory_ != small_) deallocate(memory_, bytes_);
  }
  void* get() const { return memory_; }

 private:
  SITU_NOINLINE void* find() {
    if (bytes_ > 65536 && bytes_ < large_block) bytes_ = large_block;  // blocks of this size are kept from one product to the next
    try {
      return allocate(bytes_);
    } catch (...) {
      return nullptr;
    }
  }

  std::size_t bytes_;
  void* memory_;
  alignas(64) unsigned char small_[16384];
};

/// Writes a tile of sums to elements, converted and with C's strides.
template <class T>
struct StoreBody {
  using C = product_t<T>;
  template <class Isa>
  SITU_INLINE static int run(T* to, int64_t to_i, int64_t to_j, C const* tile, int64_t stride, int64_t rows, int64_t columns) {
    constexpr int lanes = Isa::bytes / static_cast<int>(sizeof(C));
    for (int64_t i = 0; i < rows; ++i) {
      T* const row = to + i * to_i;
      C const* const sums = tile + i * stride;
      int64_t j = 0;
      if constexpr (floating<T>) {
        if (to_j == 1) {
          for (; j + lanes <= columns; j += lanes) store_lanes<T, lanes, Isa>(pack<C, lanes, Isa>::load(sums + j), row + j);
        }
      }
      for (; j < columns; ++j) row[j * to_j] = static_cast<T>(sums[j]);
    }
    return 0;
  }
};
template <class T>
void store_sums(T* to, int64_t to_i, int64_t to_j, product_t<T> const* tile, int64_t stride, int64_t rows, int64_t columns) {
  dispatch<StoreBody<T>>(to, to_i, to_j, tile, stride, rows, columns);
}

inline namespace SITU_ABI_PAIRS {

/// What a kernel takes of k in one step: an element, or two neighbours (and then all that is said of k and depth in blocks and panels is said of pairs).
enum class Steps : int { elements, pairs, tiles };

/// The best for a product on this processor.
template <class T>
Steps best_steps(Product<T> const& p) {
  if (p.piece == 0) {
    bool const packs_enough = !p.pack_b || p.m >= tile_side;  // what gathers B makes floats first
    if (has_tiles<T> && packs_enough && is_for_tiles(p.m, p.n, p.k) && multiplies_tiles()) return Steps::tiles;
    if (has_pairs<T> && !p.pack_b && multiplies_pairs(p.m, p.k)) return Steps::pairs;
  }
  return Steps::elements;
}

/// The driver of one rectangle of one product.
template <class T>
struct Multiplication {
  using C = product_t<T>;
  Product<T> const& product;
  C* sums = nullptr;  ///< where sums are kept between blocks of k, from (sums_i, sums_j) on; null where there is but one such block
  int64_t sums_step = 0, sums_i = 0, sums_j = 0;
  bool finishes = false;
  Steps const kind = best_steps(product);

  /// What the kernel calls for tiles that it does not store, or that are to be finished.
  static void store(void const* self_, C* tile, int64_t stride, int64_t i, int64_t j, int64_t rows, int64_t columns) {
    auto const& self = *static_cast<Multiplication const*>(self_);
    Product<T> const& p = self.product;
    if (self.finishes) p.finish(p, tile, stride, i, j, rows, columns);
    if (!self.sums) store_sums<T>(p.c + i * p.c_i + j * p.c_j, p.c_i, p.c_j, tile, stride, rows, columns);
  }

  /// Without any buffer: for the smallest products, and where there is no memory.
  SITU_NOINLINE void plain(int64_t i0, int64_t i1, int64_t j0, int64_t j1) const {
    int64_t j = j0;
    if (SITU_UNLIKELY(product.pack_b != nullptr)) return plain_gathered(i0, i1, j0, j1);
    for (; j1 - j >= 4; j += 4) plain_columns<4>(i0, i1, j);
    if (j1 - j == 3) plain_columns<3>(i0, i1, j);
    else if (j1 - j == 2) plain_columns<2>(i0, i1, j);
    else if (j1 - j == 1) plain_columns<1>(i0, i1, j);
  }
  template <int N>
  SITU_INLINE void plain_columns(int64_t i0, int64_t i1, int64_t j) const {
    Product<T> const& p = product;
    for (int64_t i = i0; i < i1; ++i) {
      T const *a = p.a + i * p.a_i, *b = p.b + j * p.b_j;
      C s0 = C(0), s1 = C(0), s2 = C(0), s3 = C(0);
      for (int64_t k = p.k; k > 0; --k, a += p.a_k, b += p.b_k) {
        C const x = static_cast<C>(*a);
        s0 += x * static_cast<C>(b[0]);
        if constexpr (N > 1) s1 += x * static_cast<C>(b[p.b_j]);
        if constexpr (N > 2) s2 += x * static_cast<C>(b[2 * p.b_j]);
        if constexpr (N > 3) s3 += x * static_cast<C>(b[3 * p.b_j]);
      }
      C tile[N];
      tile[0] = s0;
      if constexpr (N > 1) tile[1] = s1;
      if constexpr (N > 2) tile[2] = s2;
      if constexpr (N > 3) tile[3] = s3;
      plain_store<N>(tile, i, j);
    }
  }
  SITU_NOINLINE void plain_gathered(int64_t i0, int64_t i1, int64_t j0, int64_t j1) const {
    Product<T> const& p = product;
    for (int64_t i = i0; i < i1; ++i) {
      for (int64_t j = j0; j < j1; ++j) {
        C sum = C(0), row[1 + 64 / sizeof(C)];  // pack_b may write behind its end
        for (int64_t k = 0; k < p.k; ++k) {
          p.pack_b(p.source, row, 1, k, 1, j, 1);
          sum += static_cast<C>(p.a_column(k)[i * p.a_i]) * row[0];
        }
        plain_store<1>(&sum, i, j);
      }
    }
  }
  template <int N>
  SITU_INLINE void plain_store(C* tile, int64_t i, int64_t j) const {
    Product<T> const& p = product;
    if (p.finish) p.finish(p, tile, N, i, j, 1, N);
    T* const to = p.c + i * p.c_i + j * p.c_j;
    for (int l = 0; l < N; ++l) {
      if constexpr (floating<T>) to[l * p.c_j] = convert_scalar<T>(tile[l]);
      else to[l * p.c_j] = static_cast<T>(tile[l]);
    }
  }

  /// Packs columns [j, j + columns) in panels that lie behind each other.
  SITU_NOINLINE void pack_columns(C* to, int64_t k, int64_t depth, int64_t j, int64_t columns, TileSizes const& sizes) const {
    Product<T> const& p = product;
    if (kind == Steps::tiles) return pack_tile_columns(to, k, depth, j, columns);
    for (int64_t done = 0; done < columns;) {
      int64_t const left = columns - done, width = panel_columns(left, sizes), count = left < width ? left : width;
      if (p.pack_b) p.pack_b(p.source, to + done * depth, width, k, depth, j + done, count);
      else if (kind == Steps::pairs) pack_pairs<T>(to + done * depth, width, p.b + 2 * k * p.b_k + (j + done) * p.b_j, p.b_j, p.b_k, count, depth, elements(k, depth));
      else pack_panel<T>(to + done * depth, width, p.b + k * p.b_k + (j + done) * p.b_j, p.b_j, p.b_k, count, depth);
      done += width;
    }
  }
  /// For tiles: groups.
  SITU_NOINLINE void pack_tile_columns(C* to, int64_t k, int64_t depth, int64_t j, int64_t columns) const {
    Product<T> const& p = product;
    int64_t const count = elements(k, depth);
    if (!p.pack_b) return Tiles<T>::pack_columns(to, p.b + 2 * k * p.b_k + j * p.b_j, p.b_j, p.b_k, columns, count, depth);
    for (int64_t done = 0; done < columns; done += tile_side, to += depth * tile_side) {
      p.pack_b(p.source, to, tile_side, 2 * k, count, j + done, columns - done < tile_side ? columns - done : tile_side);
      for (int64_t i = count * tile_side; i < 2 * depth * tile_side; ++i) to[i] = C(0);
      Tiles<T>::join_pairs(to, depth);
    }
  }
  SITU_NOINLINE void pack_rows(C* to, int64_t i, int64_t rows, int64_t k, int64_t depth, TileSizes const& sizes) const {
    Product<T> const& p = product;
    for (int64_t done = 0; done < rows;) {
      int64_t const left = rows - done, height = kind == Steps::tiles ? tile_side : panel_rows(left, sizes), count = left < height ? left : height;
      if (kind == Steps::tiles) Tiles<T>::pack_rows(to + done * depth, p.a + 2 * k * p.a_k + (i + done) * p.a_i, p.a_i, p.a_k, count, elements(k, depth), depth);
      else if (kind == Steps::pairs) pack_pairs<T>(to + done * depth, height, p.a + 2 * k * p.a_k + (i + done) * p.a_i, p.a_i, p.a_k, count, depth, elements(k, depth));
      else pack_panel<T>(to + done * depth, height, p.a_column(k) + (i + done) * p.a_i, p.a_i, p.a_k, count, depth);
      done += height;
    }
  }

  /// Whether A's panels are read where they lie: their lines must find place in the first cache beside each other.
  bool reads_a(int64_t columns, TileSizes const& sizes) const {
    Product<T> const& p = product;
    if constexpr (!is_product_type<T>) return false;
    int64_t const step_i = (p.a_i < 0 ? -p.a_i : p.a_i) * static_cast<int64_t>(sizeof(T)), step_k = (p.a_k < 0 ? -p.a_k : p.a_k) * static_cast<int64_t>(sizeof(T));
    if (p.a_k == 1 && step_i % 2048 != 0 && step_i <= 8192) return columns <= (sizes.prefers_packed ? 128 : 2 * block_columns);
    if (p.a_i == 1 && step_k % 2048 != 0 && p.k * step_k <= 65536) return columns <= 128;
    return columns <= 32;
  }
  /// The same of tiles, whose rows are cache lines.
  bool reads_tile_rows(int64_t rows) const {
    Product<T> const& p = product;
    int64_t const step = p.a_i * static_cast<int64_t>(sizeof(T));
    bool const lines = p.a_k == 1 && (reinterpret_cast<std::uintptr_t>(p.a) | static_cast<std::uintptr_t>(step)) % 64 == 0;
    return lines && rows % tile_side == 0 && p.k % (2 * tile_pairs) == 0;
  }
  /// Whether B is read where it lies: it is small, or used for few rows only.
  bool reads_b(int64_t rows) const {
    Product<T> const& p = product;
    if constexpr (!is_product_type<T>) return false;
    if (p.pack_b || p.b_j != 1 || p.b_k < 0) return false;
    return rows <= 24 || p.k * p.b_k * static_cast<int64_t>(sizeof(T)) <= 131072;
  }

  /// Rows [i0, i1) and columns [j0, j1).
  void run(int64_t i0, int64_t i1, int64_t j0, int64_t j1) {
    Product<T> const& p = product;
    int64_t const parts = block_parts();
    if (is_product_type<T> && p.c_j == 1) {
      sums = reinterpret_cast<C*>(p.c), sums_step = p.c_i;
      finishes = p.finish != nullptr;
      run_blocks(i0, i1, j0, j1, parts);
      return;
    }
    finishes = p.finish && parts == 1;
    if (parts == 1) {
      run_blocks(i0, i1, j0, j1, parts);
      return;
    }
    constexpr int64_t side = 1024;
    PackingBuffer const buffer(side * (j1 - j0 < side ? j1 - j0 : side) * static_cast<int64_t>(sizeof(C)));
    if (!buffer.get()) return plain(i0, i1, j0, j1);
    for (sums_i = i0; sums_i < i1; sums_i += side) {
      for (sums_j = j0; sums_j < j1; sums_j += side) {
        int64_t const behind = i1 - sums_i < side ? i1 : sums_i + side, columns = j1 - sums_j < side ? j1 - sums_j : side;
        sums = static_cast<C*>(buffer.get()), sums_step = columns;
        int64_t const rows = run_blocks(sums_i, behind, sums_j, sums_j + columns, parts) - sums_i;
        if (p.finish && rows > 0) p.finish(p, sums, sums_step, sums_i, sums_j, rows, columns);
        store_sums<T>(p.c + sums_i * p.c_i + sums_j * p.c_j, p.c_i, p.c_j, sums, sums_step, rows, columns);
      }
    }
  }

  /// Up to four rows times up to four columns, all of which lie in memory as they are.
  void run_scalar_products(int64_t i0, int64_t i1, int64_t j0, int64_t j1) const {
    Product<T> const& p = product;
    alignas(64) C x[is_product_type<T> ? 1 : vector_chain];
    C totals[4][4] = {}, found[4];
    for (int64_t k = 0; k < p.k; k += vector_chain) {
      int64_t const left = p.k - k, depth = left < vector_chain ? left : vector_chain;
      for (int64_t j = j0; j < j1; ++j) {
        T const* const column = p.b + j * p.b_j + k;
        if constexpr (!is_product_type<T>) pack_panel<T>(x, depth, column, 1, 2, depth, 1);
        sum_rows<T>(found, p.a + i0 * p.a_i + k, p.a_i, 1, is_product_type<T> ? reinterpret_cast<C const*>(column) : x, i1 - i0, depth);
        for (int64_t i = i0; i < i1; ++i) totals[i][j] += found[i - i0];
      }
    }
    store_sums<T>(p.c + i0 * p.c_i + j0 * p.c_j, p.c_i, p.c_j, &totals[i0][j0], 4, i1 - i0, j1 - j0);
  }

  /// Rows [i0, i1) of a product with a single column, where the matrix has an axis without gaps. False where it has none, or no memory.
  bool run_vector(int64_t i0, int64_t i1) const {
    Product<T> const& p = product;
    if (p.pack_b || (p.a_i != 1 && p.a_k != 1)) return false;
    bool const packs = !is_product_type<T> || p.b_k != 1;
    PackingBuffer const buffer(packs ? p.k * static_cast<int64_t>(sizeof(C)) + 64 : 0);
    C* const x = static_cast<C*>(buffer.get());
    if (!x) return false;
    if (packs) pack_panel<T>(x, p.k, p.b, p.b_k, 2, p.k, 1);
    alignas(64) C results[vector_sums];
    bool const direct = is_product_type<T> && p.c_i == 1;
    for (int64_t i = i0; i < i1; i += vector_sums) {
      int64_t const rows = i1 - i < vector_sums ? i1 - i : vector_sums;
      C* const found = direct ? reinterpret_cast<C*>(p.c + i) : results;
      sum_rows<T>(found, p.a + i * p.a_i, p.a_i, p.a_k, packs ? x : reinterpret_cast<C const*>(p.b), rows, p.k);
      if (p.finish) p.finish(p, found, 1, i, 0, rows, 1);
      if (!direct) store_sums<T>(p.c + i * p.c_i, 0, p.c_i, found, 0, 1, rows);
    }
    return true;
  }

 private:
  /// The steps of k.
  int64_t steps() const {
    if (kind == Steps::elements) return product.k;
    int64_t const pairs = (product.k + 1) / 2;
    return kind == Steps::pairs ? pairs : (pairs + tile_pairs - 1) / tile_pairs * tile_pairs;
  }
  /// How many of them a block has at most.
  int64_t most_steps() const { return kind == Steps::tiles ? tile_block_depth : block_depth<C>; }
  /// How many elements of k the pairs [k, k + depth) have.
  int64_t elements(int64_t k, int64_t depth) const { return product.k - 2 * k < 2 * depth ? product.k - 2 * k : 2 * depth; }
  /// How many blocks of k there are: as many as A's pieces, or more.
  int64_t block_parts() const {
    Product<T> const& p = product;
    int64_t const all = steps(), piece = p.piece == 0 ? all : p.piece;
    return (all + piece - 1) / piece * ((piece + most_steps() - 1) / most_steps());
  }
  /// Gives how far the rows are in `sums`, where it has these: what comes behind, where there was no memory to pack, is in the result already.
  int64_t run_blocks(int64_t i0, int64_t i1, int64_t j0, int64_t j1, int64_t parts) {
    Product<T> const& p = product;
    TileSizes const sizes = current_tile_sizes<C>();
    int64_t const all = steps(), piece = p.piece == 0 ? all : p.piece;
    int64_t deepest = (all + parts - 1) / parts;
    if (kind == Steps::tiles) deepest = (deepest + tile_pairs - 1) / tile_pairs * tile_pairs;
    bool const finishing = finishes;
    for (int64_t i = i0; i < i1; i += block_rows) {
      Block<C> block;
      block.rows = i1 - i < block_rows ? i1 - i : block_rows;
      block.a_packed = kind == Steps::tiles ? !reads_tile_rows(block.rows) : !reads_a(j1 - j0, sizes);
      block.b_packed = !reads_b(block.rows);
      int64_t const widest = j1 - j0 < block_columns ? j1 - j0 : block_columns;
      int64_t const space_a = block.a_packed ? ((block.rows + (kind == Steps::tiles ? tile_side : sizes.high)) * deepest + 127) / 64 * 64 : 0;  // B's panels begin with a cache line
      int64_t const room = kind == Steps::tiles && p.pack_b ? tile_side : 0;  // groups are packed in floats first
      int64_t const space_b = (block.b_packed ? (widest + sizes.lanes - 1) / sizes.lanes * sizes.lanes + room : sizes.lanes) * deepest + 64;
      PackingBuffer const buffer((space_a + space_b) * static_cast<int64_t>(sizeof(C)));
      C* const a = static_cast<C*>(buffer.get());
      if (SITU_UNLIKELY(!a)) {
        plain(i, i1, j0, j1);
        return i;
      }
      C* const b = a + space_a;
      block.a_i = p.a_i, block.a_k = p.a_k, block.b_k = p.b_k;
      block.b_rest = b;
      block.c_i = sums_step;
      block.i = i;
      block.product = this;
      block.store = &store;
      for (int64_t k = 0; k < all; k += block.depth) {
        int64_t const left = piece - k % piece;
        block.depth = left < deepest ? left : deepest;
        block.accumulate = k > 0;
        block.finishes = finishes = finishing && k + block.depth == all;
        if (block.a_packed) pack_rows(a, i, block.rows, k, block.depth, sizes);
        block.a = block.a_packed ? a : reinterpret_cast<C const*>(p.a_column(kind == Steps::tiles ? 2 * k : k) + i * p.a_i);
        for (int64_t j = j0; j < j1; j += block_columns) {
          block.j = j;
          block.columns = j1 - j < block_columns ? j1 - j : block_columns;
          block.c = sums ? sums + (i - sums_i) * sums_step + (j - sums_j) : nullptr;
          block.b = block.b_packed ? b : reinterpret_cast<C const*>(p.b + k * p.b_k + j);
          if (block.b_packed) {
            pack_columns(b, k, block.depth, j, block.columns, sizes);
          } else {
            int64_t const rest = block.columns % sizes.lanes;
            if (rest != 0 && !sizes.masked && !block.overlaps_columns(panel_columns(rest, sizes))) pack_columns(b, k, block.depth, j + block.columns - rest, rest, sizes);
          }
          if (kind == Steps::tiles) Tiles<T>::run(block);
          else if (kind == Steps::pairs) run_pairs<T>(block);
          else run_block(block);
        }
      }
    }
    finishes = finishing;
    return i1;
  }
};

}  // namespace SITU_ABI_PAIRS

/// The rectangle of rows [i0, i1) and columns [j0, j1) of a product, on the calling thread. Never throws.
template <class T>
SITU_NOINLINE void multiply(Product<T> const& product, int64_t i0, int64_t i1, int64_t j0, int64_t j1) {
  Multiplication<T> work{product};
  int64_t const m = product.m, n = product.n, k = product.k;
  if (k == 0 || (m <= 16 && n <= 16 && k <= 16 && m * n * k <= 32)) return work.plain(i0, i1, j0, j1);
  if (n == 1 && work.run_vector(i0, i1)) return;
  bool const dense = product.a_k == 1 && product.b_k == 1 && product.piece == 0 && !product.pack_b;
  bool const cached = k * (m + n) * static_cast<int64_t>(sizeof(T)) <= int64_t{1} << 25;  // beyond the caches blocks are read faster
  if (m <= 4 && n <= 4 && k >= 256 && dense && cached && !product.finish) return work.run_scalar_products(i0, i1, j0, j1);
  work.run(i0, i1, j0, j1);
}

/// How a batch of products is cut into rectangles: item r + row_items * (c + column_items * batch).
struct ProductCut {
  int64_t rows, columns;  ///< of an item
  int64_t row_items, column_items;
  int64_t grain;
};

/// Products of batches, item by item. Every element is summed in the same order wherever items begin and end.
template <class T>
struct BatchKernel {
  Product<T> product;  ///< of the first matrices
  ProductCut cut;
  int rank;  ///< of the batch; strides in elements
  int64_t sizes[max_rank], a[max_rank], b[max_rank], c[max_rank];

  /// Moves the product of the first matrices to those of another number.
  void move_to(Product<T>& one, int64_t batch) const {
    for (int axis = rank - 1; axis >= 0; --axis) {
      int64_t const place = batch % sizes[axis];
      batch /= sizes[axis];
      one.a += place * a[axis], one.b += place * b[axis], one.c += place * c[axis];
    }
  }
  void operator()(int64_t first, int64_t last) const {
    while (first < last) {
      int64_t const column_item = first / cut.row_items, row_item = first % cut.row_items;
      int64_t const end = last - first < cut.row_items - row_item ? row_item + last - first : cut.row_items;
      Product<T> one = product;
      move_to(one, column_item / cut.column_items);
      auto const least = [](int64_t x, int64_t y) { return x < y ? x : y; };
      int64_t const j = column_item % cut.column_items * cut.columns;
      multiply(one, row_item * cut.rows, least(end * cut.rows, one.m), j, least(j + cut.columns, one.n));
      first += end - row_item;
    }
  }
};

/// Cuts m x n products of depth k for so many threads. The cut cannot be seen in the results.
template <class T>
ProductCut cut_product(int64_t m, int64_t n, int64_t k, int threads) {
  constexpr int element_size = static_cast<int>(sizeof(T));
  ProductCut cut{};
  auto const parts = [](int64_t whole, int64_t part) { return (whole + part - 1) / part; };
  if (n == 1) {  // bound by memory: half a megabyte for a thread
    cut.rows = 64, cut.columns = 1;
    cut.grain = (int64_t{1} << 18) / (64 * (k + 1) * element_size) + 1;
  } else {
    bool const tiles = has_tiles<T> && is_for_tiles(m, n, k) && multiplies_tiles();
    cut.rows = tiles ? 2 * tile_side : 12, cut.columns = n;
    int64_t const rows = parts(m, cut.rows);
    if (threads > 1 && rows < 8 * threads && n > 128) {
      int64_t const wanted = parts(8 * threads, rows), most = parts(n, 64);
      cut.columns = parts(parts(n, wanted < most ? wanted : most), 32) * 32;
    }
    cut.grain = (int64_t{1} << (tiles ? 22 : 19)) / (cut.rows * (cut.columns < 65536 ? cut.columns : 65536) * (k < 65536 ? k + 1 : 65536)) + 1;
  }
  cut.row_items = parts(m, cut.rows);
  cut.column_items = parts(n, cut.columns);
  return cut;
}

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
