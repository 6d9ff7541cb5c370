/// Tiles: how strided operands are brought to a kernel that reads contiguous or repeated elements only.
///
/// An index space is cut into tiles, which threads share. Rows of a tile in which every operand steps by one or not at all are
/// run where they lie, by a loop of the tree's own where buffers would take a part of its time. Everything else goes in packs of
/// some thousand bytes: operands that are not dense over a pack are copied into buffers that stay in the nearest cache, and so is
/// the result. Short rows are packed together, and a *transposed* operand, one whose shortest stride is along another axis than
/// the last one, is packed as many rows at a time as a cache line, or two of them, hold of it: each of its lines is then read
/// once. All of this is shared by expressions but for that loop.
#pragma once

#include <situ/core/shape.hpp>
#include <situ/expr/cpu/movers.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

inline constexpr int max_operands = 64;
inline constexpr int64_t tile_columns = 512;  ///< the longest run that reductions gather
inline constexpr int64_t tile_elements = 16384;
inline constexpr int64_t transposed_columns = 1024;  ///< of a tile: as many rows of a transposed operand keep their pages at hand
inline constexpr int64_t columns_ahead = 48;         ///< how far transposed operands are prefetched: a set of the cache holds few rows
/// From this size of the second cache on it holds two lines of as many columns as are under way (2 MiB: 0.8 to 0.9 of the time; 512 KiB: 1.7 to 2.4).
inline constexpr int64_t two_lines_cache_bytes = int64_t{2} << 20;
inline constexpr int64_t pack_bytes = 4096, long_pack_bytes = 8192;  ///< the latter where there are few operands, none is transposed, and there are eight packs or more
inline constexpr int64_t scratch_bytes = 4 * (long_pack_bytes + 64);

constexpr int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

/// How an index space is cut.
struct TileGrid {
  int row_axis = -1;    ///< taken together with the last axis; -1 when there is no other
  int layer_axis = -1;  ///< and with these two where they are short; -1 when it is not
  bool packs = false;
  bool by_rows = false;  ///< in the loop of the tree
  bool prefetches = false;
  int64_t pack_layers = 1, pack_rows = 1, pack_columns = 1;
  int64_t rows_ahead = 1;  ///< of a pack, whose lines are prefetched
  int64_t buffer_bytes = 0;  ///< of a pack of each operand
  int64_t tile[max_rank];  ///< the extents of a tile
  int order[max_rank];     ///< of the axes: neighbouring tiles differ in the first
  int64_t tiles = 1;       ///< how many there are
  int64_t elements = 1;    ///< of a tile
};

/// Adds a box of consecutive elements (layers of rows of `count`) to where the strides say; strides of 0 sum along an axis.
using AccumulateFunction = void (*)(void* to, int64_t to_layer, int64_t to_row, int64_t to_step, void const* from, int64_t layers, int64_t rows, int64_t count);

/// What the walk needs of a geometry: operand o's stride along axis k is strides[o * max_rank + k], in elements.
struct StridedSpace {
  TileGrid grid;
  int rank, operands;
  int64_t const* sizes;
  int64_t const* strides;
  void* const* data;
  bool stream = false;  ///< write the result past the caches
  bool copies = false;  ///< the result is the input
  MoverFunctions const* const* movers;  ///< of each operand's elements
  int element_sizes[max_operands];      ///< of `operands` of them; the others are not cleared, which costs more than a small launch has time for
  int outputs = 1;  ///< the first operands are written, all with the same strides; those without a mover are not
  RowsLoop rows_loop = nullptr;  ///< of the tree, where it has one
  void const* tree = nullptr;
  int64_t rows_from = 0;  ///< elements it takes rows from
  AccumulateFunction const* accumulate = nullptr;  ///< for outputs that are sums of what is written, with strides of their own; null for the others

  StridedSpace(int rank_, int operands_, int64_t const* sizes_, int64_t const* strides_, void* const* data_, MoverFunctions const* const* movers_)
      : rank(rank_), operands(operands_), sizes(sizes_), strides(strides_), data(data_), movers(movers_) {}

  bool is_sum(int o) const { return accumulate && o < outputs && accumulate[o]; }

  int64_t stride(int o, int axis) const { return axis < 0 ? 0 : strides[o * max_rank + axis]; }
  static int64_t magnitude(int64_t stride) { return stride < 0 ? -stride : stride; }
  int last() const { return rank - 1; }
  SITU_NOINLINE void choose_grid() {
    grid = {};
    int64_t const columns = sizes[last()];
    int64_t shortest = INT64_MAX, n = 1, transposed_size = 8, widest = 1;
    bool buffers = accumulate != nullptr, transposes = false;
    bool copied = false, rows_copied = false;  // what packs would have to copy, and rows of more than one element among it
    bool in_pages = false;  // large transposed operands whose columns are whole pages apart, and so in each other's way
    int row = rank - 2;
    for (int k = 0; k < rank; ++k) n *= sizes[k], grid.tile[k] = 1;
    for (int o = 0; o < operands; ++o) {
      int64_t const* const steps = strides + o * max_rank;
      int64_t const step = steps[last()], size = element_sizes[o];
      if (size > widest) widest = size;
      if (row >= 0 && steps[row] != 0 && (step != 1 || steps[row] != columns)) copied = true, rows_copied = rows_copied || step == 1;
      if (is_sum(o) || step == 0 || step == 1) continue;
      buffers = true;
      int64_t const apart = magnitude(step);
      for (int k = 0; k < last(); ++k) {
        int64_t const near = magnitude(steps[k]);
        if (near == 0 || near >= apart) continue;
        transposes = true;
        if (near < shortest) shortest = near, row = k;
        if (size > 0) transposed_size = smaller(size, transposed_size);
        if (n * size > 256 * 1024 && apart * size >= 64) grid.prefetches = true, in_pages = in_pages || apart * size % 4096 == 0;
      }
    }
    int64_t const rows = row < 0 ? 1 : sizes[row];
    grid.by_rows = rows_loop && !buffers && columns >= rows_from && columns >= (copied ? 16 : 32);
    if (!transposes && operands * (long_pack_bytes + 64) <= scratch_bytes && n * widest >= 8 * long_pack_bytes) grid.buffer_bytes = long_pack_bytes + 64;
    else grid.buffer_bytes = operands * (pack_bytes + 64) <= scratch_bytes ? pack_bytes + 64 : scratch_bytes / operands / 64 * 64;
    int64_t const pack = (grid.buffer_bytes - 64) >> (widest > 4 ? 3 : widest > 2 ? 2 : widest - 1);
    int64_t line = 1;  // rows that are packed together, or a multiple of them
    grid.packs = buffers;
    if (transposes) {
      bool const two_lines = in_pages && transposed_size >= 4 && second_cache_bytes() >= two_lines_cache_bytes;  // of each column at once
      line = smaller(smaller((two_lines ? 128 : 64) / transposed_size, pack / 16), rows);
    } else if (!buffers && row >= 0) {  // where no rows of more than one element would have to be copied, longer ones are packed
      grid.packs = !grid.by_rows && columns * widest < (rows_copied ? 768 : 2048);
      line = 64;  // whole registers, where they fit
      while (line > 1 && line * columns > pack) line /= 2;
    }
    int64_t const width = smaller(columns, transposes ? transposed_columns : tile_elements);
    int64_t const pack_columns = smaller(columns, transposes ? pack / line : pack);
    int64_t pack_rows = pack / pack_columns;
    if (pack_rows > line) pack_rows = pack_rows / line * line;
    pack_rows = smaller(pack_rows, rows);
    int64_t tile_rows = transposes && columns > width ? pack_rows : tile_elements / width;
    if (grid.packs) tile_rows = tile_rows < pack_rows ? pack_rows : tile_rows / pack_rows * pack_rows;
    if (grid.by_rows) tile_rows = smaller(tile_rows, rows_together());
    if (row >= 0) grid.tile[row] = smaller(tile_rows, rows);
    grid.tile[last()] = width;
    int const layer = row == last() - 1 ? last() - 2 : last() - 1;
    if (layer >= 0 && !grid.by_rows && rows * columns <= pack / 4) {
      grid.layer_axis = layer;
      grid.packs = true;
      grid.prefetches = false;
      pack_rows = rows;
      int64_t layers = pack / (rows * columns);
      if (layers > 16) layers = layers / 16 * 16;
      grid.pack_layers = layers;
      grid.tile[layer] = smaller(layers * 8, sizes[layer]);
    }
    grid.row_axis = row;
    grid.pack_rows = pack_rows;
    grid.rows_ahead = line;
    grid.pack_columns = pack_columns;
    int placed = 0;
    grid.order[placed++] = transposes ? row : last();
    if (row >= 0) grid.order[placed++] = transposes ? last() : row;
    for (int k = last() - 1; k >= 0; --k) {
      if (k != row) grid.order[placed++] = k;
    }
    for (int k = 0; k < rank; ++k) grid.tiles *= tiles(k), grid.elements *= grid.tile[k];
  }
  /// How many rows the loop of the tree takes at once: a buffer holds a register for each.
  int64_t rows_together() const { return (grid.buffer_bytes - 64) / 64; }
  SITU_NOINLINE int64_t tiles(int axis) const {
    int64_t const size = sizes[axis], tile = grid.tile[axis];
    return size <= tile ? 1 : tile == 1 ? size : (size + tile - 1) / tile;
  }
};

/// Runs a kernel on `count` elements: data[o] contiguous where mask[o] is -1, a register of copies where it is 0.
using RunFunction = void (*)(void const* self, void* const* data, int64_t const* mask, int64_t count, bool stream);

/// A walk through the tiles of a strided space, with a buffer for each operand.
class TileWalk {
 public:
  TileWalk(StridedSpace const& space, RunFunction run, void const* self) : space_(space), grid_(space.grid), run_(run), self_(self) {
    for (int o = 0; o < space.operands; ++o) {
      buffer_[o] = scratch_ + o * grid_.buffer_bytes;
      kept_[o] = {};
      step_[o] = space.stride(o, space.last()), row_[o] = space.stride(o, grid_.row_axis), layer_[o] = space.stride(o, grid_.layer_axis);
      int64_t const near = StridedSpace::magnitude(row_[o]), apart = StridedSpace::magnitude(step_[o]);
      ahead_[o] = grid_.prefetches && near != 0 && apart > near && apart * space.element_sizes[o] >= 64;
    }
  }

  void tiles(int64_t first, int64_t end) {
    for (int64_t t = first; t < end; ++t) {
      int64_t extent[max_rank], rest = t;
      for (int o = 0; o < space_.operands; ++o) place_[o] = static_cast<char*>(space_.data[o]);
      for (int k = 0; k < space_.rank; ++k) {
        int const axis = grid_.order[k];
        int64_t const tile = grid_.tile[axis], size = space_.sizes[axis];
        extent[axis] = smaller(size, tile);
        if (rest == 0) continue;
        int64_t const along = space_.tiles(axis), start = rest % along * tile;
        rest /= along;
        extent[axis] = smaller(size - start, tile);
        for (int o = 0; o < space_.operands; ++o) place_[o] += start * space_.strides[o * max_rank + axis] * space_.element_sizes[o];
      }
      columns_ = extent[space_.last()];
      rows_ = grid_.row_axis < 0 ? 1 : extent[grid_.row_axis];
      tile(grid_.layer_axis < 0 ? 1 : extent[grid_.layer_axis]);
    }
  }

 private:
  void tile(int64_t layers) {
    // Rows of at least a line, of which movers write nothing behind.
    if (space_.copies && !space_.stream && step_[0] == 1 && (step_[1] == 0 || step_[1] == 1) && columns_ * space_.element_sizes[0] >= 64 + 64 * step_[1]) {  // without a buffer
      for (int64_t l = 0; l < layers; ++l) space_.movers[0]->move({at(0, l, 0, 0), row_[0], 1, at(1, l, 0, 0), row_[1], step_[1], rows_, columns_});
      return;
    }
    // (Between launch and run another set of instructions may have been chosen, which has no such loop.)
    if (grid_.by_rows && space_.rows_loop && columns_ >= space_.rows_from) return in_loop_of_tree();
    if (!grid_.packs) return rows();
    for (int64_t l = 0; l < layers; l += grid_.pack_layers) {
      for (int64_t r = 0; r < rows_; r += grid_.pack_rows) {
        for (int64_t c = 0; c < columns_; c += grid_.pack_columns) {
          pack(l, r, c, smaller(grid_.pack_layers, layers - l), smaller(grid_.pack_rows, rows_ - r), smaller(grid_.pack_columns, columns_ - c));
        }
      }
    }
  }

  /// Every operand steps by one along the rows, or not at all.
  void rows() {
    void* data[max_operands];
    int64_t mask[max_operands];
    int const size = space_.element_sizes[0];
    for (int64_t r = 0; r < rows_; ++r) {
      for (int o = 0; o < space_.operands; ++o) {
        data[o] = at(o, 0, r, 0);
        mask[o] = -1;
        if (step_[o] == 0) data[o] = repeated(o, data[o]), mask[o] = 0;
      }
      int64_t const unaligned = static_cast<int64_t>(-reinterpret_cast<std::uintptr_t>(data[0]) & 63) / size;
      int64_t count = columns_;
      if (space_.stream && unaligned > 0 && unaligned < count) {  // whole lines only are written past the caches
        run_(self_, data, mask, unaligned, false);
        count -= unaligned;
        for (int o = 0; o < space_.operands; ++o) {
          if (mask[o] != 0) data[o] = static_cast<char*>(data[o]) + unaligned * space_.element_sizes[o];
        }
      }
      run_(self_, data, mask, count, space_.stream);
    }
  }

  /// The same in the loop of the tree: what repeats along the rows is a register of copies for each of them.
  void in_loop_of_tree() {
    void* data[max_operands];
    int64_t row_bytes[max_operands];
    int64_t const together = space_.rows_together();
    for (int64_t r = 0; r < rows_; r += together) {
      int64_t const rows = smaller(together, rows_ - r);
      for (int o = 0; o < space_.operands; ++o) {
        int const size = space_.element_sizes[o];
        data[o] = at(o, 0, r, 0);
        row_bytes[o] = row_[o] * size;
        if (step_[o] != 0 || size == 0) continue;
        if (row_[o] == 0) {
          data[o] = repeated(o, data[o]);
        } else {
          if (size >= 4) splat_lines(reinterpret_cast<char*>(buffer_[o]), static_cast<char const*>(data[o]), row_bytes[o], size, rows);
          else space_.movers[o]->move({buffer_[o], 64 / size, 1, data[o], row_[o], 0, rows, 64 / size});
          data[o] = buffer_[o];
          row_bytes[o] = 64;
        }
      }
      RowsRun const run{data, step_, row_bytes, rows, columns_};
      space_.rows_loop(space_.tree, &run);
    }
  }

  void pack(int64_t l, int64_t r, int64_t c, int64_t layers, int64_t rows, int64_t count) {
    void* data[max_operands];
    int64_t mask[max_operands];
    if (grid_.prefetches) gather_ahead(r, c, rows, count);
    for (int o = 0; o < space_.operands; ++o) {
      char* const from = at(o, l, r, c);
      bool const dense = (step_[o] == 1 || count == 1) && (row_[o] == count || rows == 1) && (layer_[o] == rows * count || layers == 1);
      data[o] = dense && !space_.is_sum(o) ? from : static_cast<void*>(buffer_[o]);
      mask[o] = -1;
      if (dense || o < space_.outputs || ahead_[o]) continue;
      bool const repeats = row_[o] == 0 && layer_[o] == 0;
      if (repeats && step_[o] == 0) {
        data[o] = repeated(o, from), mask[o] = 0;
        continue;
      }
      Kept& kept = kept_[o];
      if (repeats && kept.from == from && kept.count == count && kept.rows >= rows * layers) continue;
      move(o, buffer_[o], count, 1, rows * count, from, row_[o], step_[o], layer_[o], layers, rows, count);
      kept = {from, rows * layers, count};
    }
    run_(self_, data, mask, layers * rows * count, space_.stream && data[0] != buffer_[0]);
    for (int o = 0; o < space_.outputs; ++o) {
      if (data[o] != buffer_[o] || !space_.movers[o]) continue;
      char* const to = at(o, l, r, c);
      int const size = space_.element_sizes[o];
      if (space_.is_sum(o)) {
        space_.accumulate[o](to, layer_[o], row_[o], step_[o], buffer_[o], layers, rows, count);
      } else if (space_.stream && step_[o] == 1 && layers == 1 && grid_.pack_columns * size >= 128 && rows <= begun_rows) {
        stream_rows(to, row_[o] * size, reinterpret_cast<char const*>(buffer_[o]), count * size, rows, count * size, begun_, c == 0, c + count == columns_);
      } else {
        move(o, to, row_[o], step_[o], layer_[o], buffer_[o], count, 1, rows * count, layers, rows, count);
      }
    }
  }

  /// Moves a box of operand o; strides are those of rows, within rows, and of layers.
  SITU_NOINLINE void move(int o, void* to, int64_t to_row, int64_t to_step, int64_t to_layer, void const* from, int64_t from_row, int64_t from_step,
                          int64_t from_layer, int64_t layers, int64_t rows, int64_t count) const {
    Move m{to, to_row, to_step, from, from_row, from_step, rows, count};
    int64_t outer = layers, to_outer = to_layer, from_outer = from_layer;
    if (layers > 1 && rows * count < 64 && from_step != 0) {  // the shortest axis outside
      bool const by_rows = rows <= count || (to_step == 1 && from_step == 1);
      if (!by_rows) m = {to, to_step, to_row, from, from_step, from_row, count, rows};
      outer = m.rows, to_outer = m.to_row, from_outer = m.from_row;
      m.rows = layers, m.to_row = to_layer, m.from_row = from_layer;
    }
    int const size = space_.element_sizes[o];
    for (; outer > 0; --outer) {
      space_.movers[o]->move(m);
      m.to = static_cast<char*>(m.to) + to_outer * size;
      m.from = static_cast<char const*>(m.from) + from_outer * size;
    }
  }

  /// Gathers transposed operands. What comes next of them and of those with rows in other places is prefetched a little at a
  /// time, since the hardware does not see the pattern.
  void gather_ahead(int64_t r, int64_t c, int64_t rows, int64_t count) {
    constexpr int64_t together = 16;
    int64_t const chunks = (count + together - 1) / together, rows_in_chunk = (rows + chunks - 1) / chunks;
    bool const last = c + count == columns_;
    for (int64_t k = 0; k < chunks; ++k) {
      int64_t const begin = k * together, columns = smaller(together, count - begin), next = c + begin + columns_ahead;
      int64_t const row = k * rows_in_chunk, row_end = smaller(row + rows_in_chunk, rows);
      for (int o = 1; o < space_.operands; ++o) {
        int const size = space_.element_sizes[o];
        if (ahead_[o]) {
          char const* ahead = next < columns_ ? at(o, 0, r, next) : at(o, 0, r + grid_.pack_rows, next - columns_);
          for (int64_t j = rows - 1; j >= 0 && j >= rows - grid_.rows_ahead; j -= 64 / size) {  // from the last row on: the line of the first one may have come before
            for (int64_t i = 0; i < columns; ++i) __builtin_prefetch(ahead + (j * row_[o] + i * step_[o]) * size, 0, 2);
          }
          space_.movers[o]->move({buffer_[o] + begin * size, count, 1, at(o, 0, r, c + begin), row_[o], step_[o], rows, columns});
        } else if (step_[o] == 1 && row_[o] != 0) {
          for (int64_t j = row; j < row_end; ++j) {
            char const* const ahead = last ? at(o, 0, r + grid_.pack_rows + j, 0) : at(o, 0, r + j, c + count);
            for (int64_t byte = 63; byte < count * size + 63; byte += 64) __builtin_prefetch(ahead + byte, 0, 2);
          }
        }
      }
    }
  }

  /// A register of copies of an element of operand o.
  SITU_NOINLINE void* repeated(int o, void const* from) {
    if (kept_[o].from != from) {
      int const size = space_.element_sizes[o];
      if (size > 0) space_.movers[o]->move({buffer_[o], 64 / size, 1, from, 0, 0, 1, 64 / size});
      kept_[o] = {from, 1, 64 / (size > 0 ? size : 1)};
    }
    return buffer_[o];
  }

  char* at(int o, int64_t l, int64_t r, int64_t c) const {
    return place_[o] + (l * layer_[o] + r * row_[o] + c * step_[o]) * space_.element_sizes[o];
  }

  /// What a buffer holds, for operands that repeat from row to row.
  struct Kept {
    void const* from;
    int64_t rows, count;
  };

  StridedSpace const& space_;
  TileGrid const& grid_;
  RunFunction run_;
  void const* self_;
  int64_t rows_, columns_;
  char* place_[max_operands];
  int64_t step_[max_operands], row_[max_operands], layer_[max_operands];
  bool ahead_[max_operands];  ///< transposed, each of its rows on cache lines of its own: gathered with what comes next prefetched
  unsigned char* buffer_[max_operands];
  Kept kept_[max_operands];
  static constexpr int begun_rows = 64;
  alignas(64) char begun_[begun_rows * 64];  ///< lines of the result that the next pack completes
  alignas(64) unsigned char scratch_[scratch_bytes];
};

/// Runs the tiles [first, end) of a strided space.
inline void run_tiles(StridedSpace const& space, int64_t first, int64_t end, RunFunction run, void const* self) {
  TileWalk(space, run, self).tiles(first, end);
}

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
