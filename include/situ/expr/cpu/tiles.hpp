/// Tiles: how strided operands are brought to a kernel that reads contiguous or repeated elements only.
///
/// The last axis runs inside a row, a second axis from row to row, the others outside. An operand that does not step by one
/// along the row is copied into a buffer that stays in the cache: a repeated element a register's worth of times, a
/// *transposed* operand (contiguous along the second axis) in blocks of 4 x 4 for several rows at once, so that each of its
/// cache lines is read once. Short rows are taken together. None of this depends on the expression, so none of it is
/// instantiated per expression.
#pragma once

#include <cstdint>
#include <cstring>
#include <new>

#include <situ/core/shape.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

inline constexpr int max_operands = 64;
inline constexpr int64_t tile_columns = 512;       ///< the longest run through buffers
inline constexpr int64_t transposed_rows = 16;     ///< rows of a tile with transposed operands: a cache line of floats
inline constexpr int64_t transposed_columns = 4096;
inline constexpr int64_t tile_elements = 16384;    ///< of tiles without

/// How an index space is cut: `row_axis` is -1 when there is a single axis.
struct TileGrid {
  int row_axis = -1;
  int64_t rows = 1, columns = 1, outer = 1;
  int64_t tile_rows = 1, tile_columns = 1;

  int64_t count() const { return outer * row_tiles() * column_tiles(); }
  int64_t row_tiles() const { return (rows + tile_rows - 1) / tile_rows; }
  int64_t column_tiles() const { return (columns + tile_columns - 1) / tile_columns; }
};

/// What the walk needs of a geometry: operand o's stride along axis k is strides[o * max_rank + k], in elements.
struct StridedSpace {
  TileGrid grid;
  int rank, operands;
  int64_t const* sizes;
  int64_t const* strides;
  void* const* data;
  int element_sizes[max_operands];

  int64_t stride(int o, int axis) const { return strides[o * max_rank + axis]; }
  int last() const { return rank - 1; }
  bool is_transposed(int o, int row) const {
    int64_t const inner = stride(o, last());
    return inner != 0 && inner != 1 && stride(o, row) == 1;
  }

  void choose_grid() {
    grid = {};
    grid.columns = sizes[last()];
    grid.tile_columns = grid.columns < tile_elements ? grid.columns : tile_elements;
    if (rank > 1) {
      grid.row_axis = rank - 2;
      bool transposes = false;
      for (int axis = rank - 2; axis >= 0 && !transposes; --axis) {
        for (int o = 0; o < operands; ++o) {
          if (sizes[axis] < 4 || sizes[last()] < 4 || !is_transposed(o, axis)) continue;
          grid.row_axis = axis;
          transposes = true;
        }
      }
      grid.rows = sizes[grid.row_axis];
      for (int k = 0; k < last(); ++k) {
        if (k != grid.row_axis) grid.outer *= sizes[k];
      }
      if (transposes) {
        grid.tile_columns = grid.columns < transposed_columns ? grid.columns : transposed_columns;
        grid.tile_rows = transposed_rows;
      } else {
        grid.tile_rows = tile_elements / (grid.tile_columns > 0 ? grid.tile_columns : 1);
      }
    }
    if (grid.tile_rows > grid.rows) grid.tile_rows = grid.rows;
    if (grid.tile_rows < 1) grid.tile_rows = 1;
    if (grid.tile_columns < 1) grid.tile_columns = 1;
  }
};

/// Copies elements of one size between strided rows. `Word` is an unsigned integer of that size.
template <class Word>
struct Mover {
  static void gather(void* to, void const* from, int64_t step, int64_t count) {
    Word* const t = static_cast<Word*>(to);
    Word const* const f = static_cast<Word const*>(from);
    if (step == 1) {
      std::memcpy(t, f, static_cast<std::size_t>(count) * sizeof(Word));
    } else {
      for (int64_t k = 0; k < count; ++k) t[k] = f[k * step];
    }
  }
  static void scatter(void* to, void const* from, int64_t step, int64_t count) {
    Word* const t = static_cast<Word*>(to);
    Word const* const f = static_cast<Word const*>(from);
    for (int64_t k = 0; k < count; ++k) t[k * step] = f[k];
  }
  /// to[r * pitch + c] = from[c * step + r]
  static void transpose(void* to_, void const* from_, int64_t step, int64_t pitch, int64_t rows, int64_t columns) {
    Word* const to = static_cast<Word*>(to_);
    Word const* const from = static_cast<Word const*>(from_);
    int64_t c = 0;
    for (; c + 4 <= columns; c += 4) {
      Word const* const column = from + c * step;
      if (c + 36 <= columns) {  // each of these lines is used once, and the hardware does not see the pattern
        for (int64_t k = 32; k < 36; ++k) __builtin_prefetch(column + k * step, 0, 2);
      }
      int64_t r = 0;
      if constexpr (sizeof(Word) == 4) {
        for (; r + 4 <= rows; r += 4) block(to + r * pitch + c, column + r, step, pitch);
      }
      for (; r < rows; ++r) {
        Word* const row = to + r * pitch + c;
        row[0] = column[r], row[1] = column[step + r], row[2] = column[2 * step + r], row[3] = column[3 * step + r];
      }
    }
    for (; c < columns; ++c) {
      for (int64_t r = 0; r < rows; ++r) to[r * pitch + c] = from[c * step + r];
    }
  }

 private:
  static void block(Word* to, Word const* from, int64_t step, int64_t pitch) {
    typedef Word four __attribute__((vector_size(16)));
    typedef uint64_t two __attribute__((vector_size(16)));
    four a, b, c, d;
    std::memcpy(&a, from, 16);
    std::memcpy(&b, from + step, 16);
    std::memcpy(&c, from + 2 * step, 16);
    std::memcpy(&d, from + 3 * step, 16);
    two const ab0 = __builtin_bit_cast(two, interleave_low(a, b)), ab1 = __builtin_bit_cast(two, interleave_high(a, b));
    two const cd0 = __builtin_bit_cast(two, interleave_low(c, d)), cd1 = __builtin_bit_cast(two, interleave_high(c, d));
    two const r0 = {ab0[0], cd0[0]}, r1 = {ab0[1], cd0[1]}, r2 = {ab1[0], cd1[0]}, r3 = {ab1[1], cd1[1]};
    std::memcpy(to, &r0, 16);
    std::memcpy(to + pitch, &r1, 16);
    std::memcpy(to + 2 * pitch, &r2, 16);
    std::memcpy(to + 3 * pitch, &r3, 16);
  }
  template <class Four>
  static SITU_INLINE Four interleave_low(Four const& a, Four const& b) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, 0, 4, 1, 5);
#else
    return __builtin_shuffle(a, b, Four{0, 4, 1, 5});
#endif
  }
  template <class Four>
  static SITU_INLINE Four interleave_high(Four const& a, Four const& b) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, 2, 6, 3, 7);
#else
    return __builtin_shuffle(a, b, Four{2, 6, 3, 7});
#endif
  }
};

/// The movers for an element size.
struct MoverFunctions {
  void (*gather)(void*, void const*, int64_t, int64_t);
  void (*scatter)(void*, void const*, int64_t, int64_t);
  void (*transpose)(void*, void const*, int64_t, int64_t, int64_t, int64_t);
};
template <class Word>
inline constexpr MoverFunctions movers_of{&Mover<Word>::gather, &Mover<Word>::scatter, &Mover<Word>::transpose};

inline MoverFunctions const& movers_for(int element_size) {
  return element_size == 4 ? movers_of<uint32_t> : element_size == 8 ? movers_of<uint64_t> : element_size == 2 ? movers_of<uint16_t> : movers_of<uint8_t>;
}

/// Runs a kernel on `count` elements: data[o] contiguous where mask[o] is -1, a register of copies where it is 0.
using RunFunction = void (*)(void const* self, void* const* data, int64_t const* mask, int64_t count);

/// One tile: rows of `count` elements each; place, step and row tell where the operands lie.
struct StridedTile {
  void* place[max_operands];
  int64_t step[max_operands], row[max_operands];
  int64_t rows, count;
};

/// A bump allocator over a buffer that stays in the cache, for one tile.
struct Scratch {
  unsigned char* next;
  unsigned char* take(int64_t bytes) {
    unsigned char* const result = next;
    next += (bytes + 63) / 64 * 64;
    return result;
  }
};

inline void run_tile(StridedSpace const& space, StridedTile& tile, unsigned char* scratch_memory, RunFunction run, void const* self) {
  int const operands = space.operands;
  void* data[max_operands];
  int64_t mask[max_operands];
  // Short rows are taken together, as many as fit a buffer; operands that are dense over them are used where they lie.
  int64_t const together = tile.count >= 128 ? 1 : tile_columns / (tile.count > 0 ? tile.count : 1);
  if (together > 1 && tile.rows > 1) {
    for (int64_t r = 0; r < tile.rows; r += together) {
      int64_t const rows = tile.rows - r < together ? tile.rows - r : together;
      Scratch scratch{scratch_memory};
      for (int o = 0; o < operands; ++o) {
        int const size = space.element_sizes[o];
        char* const from = static_cast<char*>(tile.place[o]) + r * tile.row[o] * size;
        mask[o] = -1;
        if ((tile.step[o] == 1 || tile.count == 1) && tile.row[o] == tile.count) {
          data[o] = from;
          continue;
        }
        unsigned char* const buffer = scratch.take(rows * tile.count * size);
        data[o] = buffer;
        if (o == 0) continue;
        auto const gather = movers_for(size).gather;
        if (tile.count == 1) gather(buffer, from, tile.row[o], rows);
        else {
          for (int64_t k = 0; k < rows; ++k) gather(buffer + k * tile.count * size, from + k * tile.row[o] * size, tile.step[o], tile.count);
        }
      }
      run(self, data, mask, rows * tile.count);
      int const size = space.element_sizes[0];
      char* const to = static_cast<char*>(tile.place[0]) + r * tile.row[0] * size;
      if (data[0] != to) {
        for (int64_t k = 0; k < rows; ++k) {
          movers_for(size).scatter(to + k * tile.row[0] * size, static_cast<char*>(data[0]) + k * tile.count * size, tile.step[0], tile.count);
        }
      }
    }
    return;
  }
  Scratch tile_scratch{scratch_memory};
  bool buffers_needed = tile.step[0] != 1;
  for (int o = 1; o < operands; ++o) {  // transposed operands: all rows at once
    int const size = space.element_sizes[o];
    if (size != 0 && tile.rows > 1 && tile.count <= transposed_columns && tile.row[o] == 1 && tile.step[o] != 0 && tile.step[o] != 1 &&
        tile.rows <= transposed_rows) {
      unsigned char* const buffer = tile_scratch.take(tile.rows * tile.count * size);
      movers_for(size).transpose(buffer, tile.place[o], tile.step[o], tile.count, tile.rows, tile.count);
      tile.place[o] = buffer, tile.step[o] = 1, tile.row[o] = tile.count;
    }
    buffers_needed = buffers_needed || (tile.step[o] != 0 && tile.step[o] != 1);
  }
  int64_t const longest = buffers_needed ? tile_columns : tile.count;
  for (int64_t r = 0; r < tile.rows; ++r) {
    for (int64_t c = 0; c < tile.count; c += longest) {
      int64_t const count = tile.count - c < longest ? tile.count - c : longest;
      Scratch scratch = tile_scratch;
      for (int o = 0; o < operands; ++o) {
        int const size = space.element_sizes[o];
        char* const from = static_cast<char*>(tile.place[o]) + (r * tile.row[o] + c * tile.step[o]) * size;
        mask[o] = -1;
        data[o] = from;
        if (tile.step[o] == 1) continue;
        if (tile.step[o] == 0) {
          unsigned char* const copies = scratch.take(64);
          movers_for(size).gather(copies, from, 0, 64 / size);
          data[o] = copies, mask[o] = 0;
        } else {
          data[o] = scratch.take(count * size);
          if (o > 0) movers_for(size).gather(data[o], from, tile.step[o], count);
        }
      }
      run(self, data, mask, count);
      if (tile.step[0] != 1) {
        int const size = space.element_sizes[0];
        movers_for(size).scatter(static_cast<char*>(tile.place[0]) + (r * tile.row[0] + c * tile.step[0]) * size, data[0], tile.step[0], count);
      }
    }
  }
}

/// Runs the tiles [first, end) of a strided space.
inline void run_tiles(StridedSpace const& space, int64_t first, int64_t end, RunFunction run, void const* self) {
  TileGrid const& grid = space.grid;
  constexpr int64_t fixed_scratch = 32 * 1024;
  alignas(64) unsigned char fixed[fixed_scratch];
  int64_t needed = 0;  // transposed tiles and runs, at worst for every operand
  for (int o = 0; o < space.operands; ++o) {
    bool const transposed = grid.row_axis >= 0 && space.is_transposed(o, grid.row_axis);
    needed += (transposed ? transposed_rows * grid.tile_columns : tile_columns) * space.element_sizes[o] + 192;
  }
  unsigned char* const scratch = needed <= fixed_scratch ? fixed : static_cast<unsigned char*>(::operator new(static_cast<std::size_t>(needed), std::align_val_t{64}));
  StridedTile tile;
  int64_t const row_tiles = grid.row_tiles(), column_tiles = grid.column_tiles();
  for (int64_t t = first; t < end; ++t) {
    int64_t const column = t % column_tiles * grid.tile_columns;
    int64_t const begin = t / column_tiles % row_tiles * grid.tile_rows;
    tile.count = grid.columns - column < grid.tile_columns ? grid.columns - column : grid.tile_columns;
    tile.rows = grid.rows - begin < grid.tile_rows ? grid.rows - begin : grid.tile_rows;
    int64_t outside = t / column_tiles / row_tiles;
    int64_t index[max_rank] = {};
    for (int k = space.last() - 1; k >= 0; --k) {
      if (k == grid.row_axis) continue;
      index[k] = outside % space.sizes[k];
      outside /= space.sizes[k];
    }
    if (grid.row_axis >= 0) index[grid.row_axis] = begin;
    index[space.last()] = column;
    for (int o = 0; o < space.operands; ++o) {
      int64_t offset = 0;
      for (int k = 0; k < space.rank; ++k) offset += index[k] * space.stride(o, k);
      tile.place[o] = static_cast<char*>(space.data[o]) + offset * space.element_sizes[o];
      tile.step[o] = space.stride(o, space.last());
      tile.row[o] = grid.row_axis >= 0 ? space.stride(o, grid.row_axis) : 0;
    }
    run_tile(space, tile, scratch, run, self);
  }
  if (scratch != fixed) ::operator delete(scratch, std::align_val_t{64});
}

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
