/// Rows put together from pieces on the CPU: concat, stack, repeat and roll.
///
/// A block of short rows is put together while it is in the nearest cache, from all pieces one after the other; where the result is large, it
/// then goes past the caches in whole lines. So every line of the result is written once. Pieces of long rows are copied as they follow each
/// other.
#pragma once

#include <situ/core/storage.hpp>
#include <situ/expr/cpu/launch.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// A piece of every row: `bytes` from each of the rows of a tensor, which lie `from_row` bytes apart.
struct JoinedPiece {
  char const* from;
  int64_t from_row, bytes;
};

/// Elements of two, three or four rows in turn.
template <class Word>
struct Interleaver : Mover<Word> {
  using M = Mover<Word>;
  using typename M::Lanes;
  using typename M::V;
  static constexpr int lanes = M::lanes;
  static constexpr bool by_threes = lanes == 4;

  static constexpr bool takes(int pieces) { return pieces == 2 || pieces == 4 || (by_threes && pieces == 3); }
  /// to[k * pieces + j] = element k of piece j, for whole registers; gives how many k that were.
  static int64_t run(void* to_, JoinedPiece const* piece, int pieces, int64_t row, int64_t n) {
    auto* const to = static_cast<Word*>(to_);
    auto const from = [&](int j) { return reinterpret_cast<Word const*>(piece[j].from) + row; };
    int64_t k = 0;
    if (pieces == 2) {
      Word const *const a = from(0), *const b = from(1);
      for (; k + lanes <= n; k += lanes) put(M::load(a + k), M::load(b + k), to + 2 * k);
    } else if (pieces == 4) {
      Word const *const a = from(0), *const b = from(1), *const c = from(2), *const d = from(3);
      for (; k + lanes <= n; k += lanes) {
        V const p = M::load(a + k), q = M::load(b + k), r = M::load(c + k), s = M::load(d + k);
        put(M::low(p, r, Lanes{}), M::low(q, s, Lanes{}), to + 4 * k);
        put(M::high(p, r, Lanes{}), M::high(q, s, Lanes{}), to + 4 * k + 2 * lanes);
      }
    } else if constexpr (by_threes) {
      Word const *const a = from(0), *const b = from(1), *const c = from(2);
      for (; k + lanes < n; k += lanes) {  // registers of three and one too many, over which the next one is written
        V const p = M::load(a + k), q = M::load(b + k), r = M::load(c + k);
        V const low = M::low(p, r, Lanes{}), low2 = M::low(q, q, Lanes{}), high = M::high(p, r, Lanes{}), high2 = M::high(q, q, Lanes{});
        Word* const at = to + 3 * k;
        M::store(M::low(low, low2, Lanes{}), at);
        M::store(M::high(low, low2, Lanes{}), at + 3);
        M::store(M::low(high, high2, Lanes{}), at + 6);
        M::store(M::high(high, high2, Lanes{}), at + 9);
      }
    }
    return k;
  }

 private:
  static SITU_INLINE void put(V const& a, V const& b, Word* to) {
    M::store(M::low(a, b, Lanes{}), to);
    M::store(M::high(a, b, Lanes{}), to + lanes);
  }
};

/// Rows [first, last); of long ones, units [first, last) of all bytes.
struct JoinRowsKernel {
  static constexpr int most_pieces = 16;
  static constexpr int64_t block_bytes = 8192;  ///< the longest row that is short, and the longest block of them
  static constexpr int64_t unit_bytes = 4096;

  char* to;
  int64_t rows, row_bytes;
  int pieces, size;  ///< size: of an element
  bool stream, in_turn;
  MoverFunctions const* mover;
  int64_t (*interleave)(void* to, JoinedPiece const* piece, int pieces, int64_t row, int64_t n);
  JoinedPiece piece[most_pieces];

  bool is_long() const { return row_bytes > block_bytes; }

  void operator()(int64_t first, int64_t last) const {
    if (is_long()) copy_pieces(first * unit_bytes, last * unit_bytes < rows * row_bytes ? last * unit_bytes : rows * row_bytes);
    else join_rows(first, last);
    if (stream) finish_streaming();
  }

 private:
  void copy_pieces(int64_t at, int64_t end) const {
    while (at < end) {
      int64_t const row = at / row_bytes;
      int64_t begin = at - row * row_bytes;
      JoinedPiece const* p = piece;
      for (; begin >= p->bytes; ++p) begin -= p->bytes;
      int64_t const bytes = p->bytes - begin < end - at ? p->bytes - begin : end - at;
      char const* const from = p->from + row * p->from_row + begin;
      if (stream) stream_rows(to + at, 0, from, 0, 1, bytes, nullptr, true, true);
      else copy_rows(to + at, bytes, from, bytes, 1, bytes);
      at += bytes;
    }
  }

  void join_rows(int64_t first, int64_t last) const {
    alignas(64) char held[block_bytes + 64];
    int64_t const block = block_bytes / row_bytes;
    for (int64_t row = first; row < last; row += block) {
      int64_t const count = last - row < block ? last - row : block;
      char* const place = to + row * row_bytes;
      char* const where = stream ? held + (reinterpret_cast<std::uintptr_t>(place) & 63) : place;
      put_together(where, row, count);
      if (stream) stream_rows(place, 0, where, 0, 1, count * row_bytes, nullptr, true, true);
    }
  }

  void put_together(char* where, int64_t row, int64_t count) const {
    int64_t const done = in_turn ? interleave(where, piece, pieces, row, count) : 0;
    if (done == count) return;
    where += done * row_bytes;
    row += done;
    count -= done;
    int64_t const pitch = row_bytes / size;
    for (int p = 0; p < pieces; ++p) {
      char const* const from = piece[p].from + row * piece[p].from_row;
      if (piece[p].bytes == size) mover->move({where, 0, pitch, from, 0, piece[p].from_row / size, 1, count});
      else mover->move({where, pitch, 1, from, piece[p].from_row / size, 1, count, piece[p].bytes / size});
      where += piece[p].bytes;
    }
  }
};

}  // namespace detail::cpu

namespace detail {

/// Writes `rows` rows, each made of the same pieces of other rows, one behind the other. False, and nothing is done, where there are too many
/// pieces, or one row alone, of which not much is to be copied.
template <class D, class T>
bool launch_join(cpu_kernels, T* to, int64_t rows, cpu::JoinedPiece const* pieces, int count) {
  cpu::JoinRowsKernel kernel{};
  if (count > cpu::JoinRowsKernel::most_pieces) return false;
  constexpr int size = static_cast<int>(sizeof(T));
  kernel.in_turn = cpu::Interleaver<unsigned_of_size<T>>::takes(count);
  for (int p = 0; p < count; ++p) {
    kernel.piece[p] = pieces[p];
    kernel.row_bytes += pieces[p].bytes;
    kernel.in_turn = kernel.in_turn && pieces[p].bytes == size && pieces[p].from_row == size;
  }
  constexpr int64_t unit = cpu::JoinRowsKernel::unit_bytes, grain = int64_t{1} << 18;
  if (kernel.row_bytes == 0 || (rows == 1 && kernel.row_bytes < grain)) return false;
  kernel.to = reinterpret_cast<char*>(to);
  kernel.rows = rows;
  kernel.pieces = count;
  kernel.size = size;
  kernel.stream = rows * kernel.row_bytes >= cpu::streaming_bytes;
  kernel.mover = cpu::mover_of<T>;
  kernel.interleave = &cpu::Interleaver<unsigned_of_size<T>>::run;
  if (kernel.is_long()) device_traits<D>::launch(kernel, (rows * kernel.row_bytes + unit - 1) / unit, grain / unit);
  else device_traits<D>::launch(kernel, rows, grain / kernel.row_bytes + 1);
  return true;
}
template <class D, class T, class Kernels, class Piece>
bool launch_join(Kernels, T*, int64_t, Piece const*, int) {
  return false;
}

/// Joins tensors that are dense in memory: `rows` rows of each, side by side; with a step of 0 the same one `count` times. False where they are
/// no such.
template <class T, class D, class E>
bool join_dense(T* to, D const&, int64_t rows, E const* parts, int64_t count, int64_t step = 1) {
  if constexpr (std::is_same_v<value_of<E>, T> && requires(E const& e) { e.storage(); }) {
    cpu::JoinedPiece pieces[cpu::JoinRowsKernel::most_pieces];
    int used = 0;
    for (int64_t k = 0; k < count; ++k) {
      if (parts[k * step].size() == 0) continue;
      if (!parts[k * step].is_contiguous() || used == cpu::JoinRowsKernel::most_pieces) return false;
      int64_t const bytes = parts[k * step].size() / rows * static_cast<int64_t>(sizeof(T));
      pieces[used++] = {reinterpret_cast<char const*>(parts[k * step].data()), bytes, bytes};
    }
    return launch_join<D>(typename device_traits<D>::kernels{}, to, rows, pieces, used);
  } else {
    return false;
  }
}

/// The rows of a dense tensor, of `length` elements, rolled by `shift` of them. False where the result was not written.
template <class D, class E>
bool roll_dense(value_of<E>* to, E const& x, int64_t rows, int64_t length, int64_t shift) {
  if constexpr (requires { x.storage(); }) {
    if (!x.is_contiguous()) return false;
    constexpr auto size = static_cast<int64_t>(sizeof(value_of<E>));
    auto const* const from = reinterpret_cast<char const*>(x.data());
    int64_t const stays = length - shift;
    cpu::JoinedPiece const pieces[] = {{from + stays * size, length * size, shift * size}, {from, length * size, stays * size}};
    return launch_join<D>(typename device_traits<D>::kernels{}, to, rows, pieces, 2);
  } else {
    return false;
  }
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
