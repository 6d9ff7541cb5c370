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
struct InterleaveBody {
  /// to[k * pieces + j] = element k of piece j; the last registers overlap those before. Gives n, or 0 where nothing was done: where pieces do not
  /// fill a register, or words of less than four bytes are to go in threes and the registers are the baseline's, which on x86 has no shuffle of bytes.
  template <class Isa>
  SITU_INLINE static int64_t run(void* to_, JoinedPiece const* piece, int pieces, int64_t row, int64_t n) {
    constexpr int size = static_cast<int>(sizeof(Word)), N = (size < 4 && Isa::bytes > 32 ? 32 : Isa::bytes) / size;
    using P = pack<Word, N, Isa>;
    using Lanes = std::make_integer_sequence<int, N>;
    if (n < N) return 0;
    auto* const to = static_cast<Word*>(to_);
    auto const from = [&](int j) { return reinterpret_cast<Word const*>(piece[j].from) + row; };
    if (pieces == 2) {
      Word const *const a = from(0), *const b = from(1);
      for (int64_t k = 0; k < n; k += N) {
        if (k + N > n) k = n - N;
        put(P::load(a + k), P::load(b + k), to + 2 * k, Lanes{});
      }
      return n;
    }
    if (pieces == 4) {
      Word const *const a = from(0), *const b = from(1), *const c = from(2), *const d = from(3);
      for (int64_t k = 0; k < n; k += N) {
        if (k + N > n) k = n - N;
        P const p = P::load(a + k), q = P::load(b + k), r = P::load(c + k), s = P::load(d + k);
        put(low(p, r, Lanes{}), low(q, s, Lanes{}), to + 4 * k, Lanes{});
        put(high(p, r, Lanes{}), high(q, s, Lanes{}), to + 4 * k + 2 * N, Lanes{});
      }
      return n;
    }
    if constexpr (size >= 4 || Isa::bytes > 16) {
      Word const *const a = from(0), *const b = from(1), *const c = from(2);
      for (int64_t k = 0; k < n; k += N) {
        if (k + N > n) k = n - N;
        P const p = dealt<0>(P::load(a + k), Lanes{}), q = dealt<1>(P::load(b + k), Lanes{}), r = dealt<2>(P::load(c + k), Lanes{});
        merged<0>(p, q, r, Lanes{}).store(to + 3 * k);
        merged<1>(p, q, r, Lanes{}).store(to + 3 * k + N);
        merged<2>(p, q, r, Lanes{}).store(to + 3 * k + 2 * N);
      }
      return n;
    } else {
      return 0;
    }
  }

 private:
  /// The lanes `From` of a, and, counted on from the lanes of a, of b.
  template <int... From, class P>
  static SITU_INLINE P shuffled(P const& a, P const& b) {
#if defined(__clang__)
    return P(__builtin_shufflevector(a.v, b.v, From...));
#else
    return P(__builtin_shuffle(a.v, b.v, typename P::vector{static_cast<Word>(From)...}));
#endif
  }
  template <class P, int... K>
  static SITU_INLINE P low(P const& a, P const& b, std::integer_sequence<int, K...>) {
    return shuffled<(K / 2 + K % 2 * P::lanes)...>(a, b);
  }
  template <class P, int... K>
  static SITU_INLINE P high(P const& a, P const& b, std::integer_sequence<int, K...>) {
    return shuffled<(K / 2 + K % 2 * P::lanes + P::lanes / 2)...>(a, b);
  }
  template <class P, int... K>
  static SITU_INLINE void put(P const& a, P const& b, Word* to, std::integer_sequence<int, K...> lanes) {
    low(a, b, lanes).store(to);
    high(a, b, lanes).store(to + P::lanes);
  }
  /// Of three pieces: element k of piece J in lane (3 k + J) mod lanes, where it stands in the register of the result that it belongs to. As 3 and
  /// the number of lanes have no common divisor, no two meet: k = (lane - J) / 3, and 1 / 3 = 43 modulo all powers of two up to 128.
  template <int J, class P, int... K>
  static SITU_INLINE P dealt(P const& x, std::integer_sequence<int, K...>) {
    return shuffled<((K - J + 2 * P::lanes) * 43 % P::lanes)...>(x, x);
  }
  /// Register R of the result: lane i is of piece (R lanes + i) mod 3.
  template <int R, class P, int... K>
  static SITU_INLINE P merged(P const& a, P const& b, P const& c, std::integer_sequence<int, K...>) {
    constexpr int N = P::lanes;
    P const ab = shuffled<(K + ((R * N + K) % 3 == 1 ? N : 0))...>(a, b);
    return shuffled<(K + ((R * N + K) % 3 == 2 ? N : 0))...>(ab, c);
  }
};
template <class Word>
int64_t interleave(void* to, JoinedPiece const* piece, int pieces, int64_t row, int64_t n) {
  return dispatch<InterleaveBody<Word>>(to, piece, pieces, row, n);
}

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

  int64_t elements(int64_t) const { return rows * row_bytes / size; }
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
    int64_t const fitting = block_bytes / row_bytes, block = fitting > 64 ? fitting - fitting % 64 : fitting;  // whole registers and lines
    for (int64_t row = first; row < last; row += block) {
      int64_t const count = last - row < block ? last - row : block;
      char* const place = to + row * row_bytes;
      char* const where = stream ? held + (reinterpret_cast<std::uintptr_t>(place) & 63) : place;
      put_together(where, row, count);
      if (stream) stream_rows(place, 0, where, 0, 1, count * row_bytes, nullptr, true, true);
    }
  }

  void put_together(char* where, int64_t row, int64_t count) const {
    if (in_turn && interleave(where, piece, pieces, row, count) == count) return;
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
  kernel.in_turn = count >= 2 && count <= 4;
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
  kernel.stream = cpu::goes_past_caches(rows * kernel.row_bytes, rows * kernel.row_bytes);
  kernel.mover = cpu::mover_of<T>;
  kernel.interleave = &cpu::interleave<unsigned_of_size<T>>;
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
