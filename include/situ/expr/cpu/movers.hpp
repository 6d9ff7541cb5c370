/// Movers: how elements are copied between strided places and the buffers that kernels read and write.
///
/// A mover knows an element by its size alone, so that there are four of them, whatever the expressions. Rows of bytes go in
/// whole registers, past the caches where asked; a transposition goes in square blocks inside of registers.
#pragma once

#include <utility>

#include <situ/expr/cpu/evaluate.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// Elements of a rectangle from one order in memory to another: strides in elements. Where `from_step` is 0 and rows have less than 64 bytes, `to` is a
/// buffer: 15 bytes behind each row may be written before the next row is.
struct Move {
  void* to;
  int64_t to_row, to_step;
  void const* from;
  int64_t from_row, from_step;
  int64_t rows, count;
};

/// A cache line in registers: in halves until each is one.
template <class Isa, int Bytes = 64>
struct Line {
  Line<Isa, Bytes / 2> first, second;
  SITU_INLINE explicit Line(char const* from) : first(from), second(from + Bytes / 2) {}
  SITU_INLINE void store(char* to) const { first.store(to), second.store(to + Bytes / 2); }
  SITU_INLINE void stream(char* to) const { first.stream(to), second.stream(to + Bytes / 2); }
};
template <class Isa, int Bytes>
  requires(Bytes == Isa::bytes)
struct Line<Isa, Bytes> {
  pack<float, Bytes / 4, Isa> part;
  SITU_INLINE explicit Line(char const* from) { __builtin_memcpy(&part.v, from, Bytes); }
  SITU_INLINE void store(char* to) const { __builtin_memcpy(to, &part.v, Bytes); }
  SITU_INLINE void stream(char* to) const { stream_to(part, reinterpret_cast<float*>(to)); }
};

/// A word in a register.
template <class Word>
struct WordPiece {
  Word word;
  SITU_INLINE explicit WordPiece(char const* from) { __builtin_memcpy(&word, from, sizeof(Word)); }
  SITU_INLINE void store(char* to) const { __builtin_memcpy(to, &word, sizeof(Word)); }
};

/// Rows of at least 64 bytes.
struct CopyRowsBody {
  template <class Isa>
  SITU_INLINE static int run(char* to, int64_t to_row, char const* from, int64_t from_row, int64_t rows, int64_t bytes) {
    for (int64_t r = 0; r < rows; ++r, to += to_row, from += from_row) {
      int64_t b = 0;
      for (; b + 64 <= bytes; b += 64) Line<Isa>(from + b).store(to + b);
      if (b < bytes) Line<Isa>(from + bytes - 64).store(to + bytes - 64);
    }
    return 0;
  }
};

/// Fills rows of at least 64 bytes with one element each, of `size` bytes.
struct SplatRowsBody {
  template <class Isa>
  SITU_INLINE static int run(char* to, int64_t to_row, char const* from, int64_t from_row, int size, int64_t rows, int64_t bytes) {
    using P = pack<uint64_t, Isa::bytes / 8, Isa>;
    for (int64_t r = 0; r < rows; ++r, to += to_row, from += from_row) {
      uint64_t word;
      if (size == 8) {
        __builtin_memcpy(&word, from, 8);
      } else if (size == 4) {
        uint32_t x;
        __builtin_memcpy(&x, from, 4);
        word = x * uint64_t{0x100000001};
      } else if (size == 2) {
        uint16_t x;
        __builtin_memcpy(&x, from, 2);
        word = x * uint64_t{0x1000100010001};
      } else {
        word = static_cast<uint8_t>(*from) * uint64_t{0x101010101010101};
      }
      P const copies(word);
      int64_t b = 0;
      for (; b + 4 * Isa::bytes <= bytes; b += 4 * Isa::bytes) {
        for (int k = 0; k < 4; ++k) __builtin_memcpy(to + b + k * Isa::bytes, &copies.v, Isa::bytes);
      }
      for (; b + Isa::bytes <= bytes; b += Isa::bytes) __builtin_memcpy(to + b, &copies.v, Isa::bytes);
      if (bytes % Isa::bytes != 0) __builtin_memcpy(to + bytes - Isa::bytes, &copies.v, Isa::bytes);
    }
    return 0;
  }
};
SITU_NOINLINE inline void splat_rows(char* to, int64_t to_row, char const* from, int64_t from_row, int size, int64_t rows, int64_t bytes) {
  dispatch<SplatRowsBody>(to, to_row, from, from_row, size, rows, bytes);
}

/// Repeats one element of each row over 64 bytes; elements of 4 or 8 bytes, `from_row` bytes apart.
struct SplatLinesBody {
  template <class Isa>
  SITU_INLINE static int run(char* to, char const* from, int64_t from_row, int size, int64_t rows) {
    for (; rows > 0; --rows, to += 64, from += from_row) {
      uint32_t low, high;
      __builtin_memcpy(&low, from, 4);
      __builtin_memcpy(&high, from + size - 4, 4);
      pack<uint64_t, Isa::bytes / 8, Isa> const copies(uint64_t{high} << 32 | low);
      for (int b = 0; b < 64; b += Isa::bytes) __builtin_memcpy(to + b, &copies.v, Isa::bytes);
    }
    return 0;
  }
};
SITU_NOINLINE inline void splat_lines(char* to, char const* from, int64_t from_row, int size, int64_t rows) {
  dispatch<SplatLinesBody>(to, from, from_row, size, rows);
}

/// Pieces of rows, whole lines of which are written past the caches. A line that is begun by one piece and completed by the next
/// waits in `begun`, 64 bytes for each row, or null for whole rows: all pieces but the last one have at least 64 bytes.
struct StreamRowsBody {
  template <class Isa>
  SITU_INLINE static int run(char* to, int64_t to_row, char const* from, int64_t from_row, int64_t rows, int64_t bytes, char* begun, bool first, bool last) {
    for (int64_t r = 0; r < rows; ++r, to += to_row, from += from_row, begun += first && last ? 0 : 64) {
      int64_t const before = static_cast<int64_t>(reinterpret_cast<std::uintptr_t>(to) & 63);
      int64_t b = 0;
      if (before > 0) {
        b = 64 - before < bytes ? 64 - before : bytes;
        copy_short(first ? to : begun + before, from, b);
        if (!first && before + b == 64) Line<Isa>(begun).stream(to - before);
        else if (!first) copy_short(to - before, begun, before + b);
      }
      for (; b + 64 <= bytes; b += 64) Line<Isa>(from + b).stream(to + b);
      if (b < bytes) copy_short(last ? to + b : begun, from + b, bytes - b);
    }
    return 0;
  }
};
SITU_NOINLINE inline void stream_rows(char* to, int64_t to_row, char const* from, int64_t from_row, int64_t rows, int64_t bytes, char* begun, bool first, bool last) {
  dispatch<StreamRowsBody>(to, to_row, from, from_row, rows, bytes, begun, first, last);
}

/// Rows of at least one and at most two `Piece`s, which may overlap.
template <class Piece>
inline void copy_short_rows(char* to, int64_t to_row, char const* from, int64_t from_row, int64_t rows, int64_t bytes) {
  int64_t const second = bytes - static_cast<int64_t>(sizeof(Piece));
  for (int64_t r = 0; r < rows; ++r, to += to_row, from += from_row) {
    Piece const a(from), b(from + second);
    a.store(to), b.store(to + second);
  }
}

/// Rows of bytes; strides in bytes.
inline void copy_rows(char* to, int64_t to_row, char const* from, int64_t from_row, int64_t rows, int64_t bytes) {
  if (to_row == bytes && from_row == bytes) bytes *= rows, rows = 1;
  if (bytes >= 64) dispatch<CopyRowsBody>(to, to_row, from, from_row, rows, bytes);
  else if (bytes >= 32) copy_short_rows<Line<isa::baseline, 32>>(to, to_row, from, from_row, rows, bytes);
  else if (bytes >= 16) copy_short_rows<Line<isa::baseline, 16>>(to, to_row, from, from_row, rows, bytes);
  else if (bytes >= 8) copy_short_rows<WordPiece<uint64_t>>(to, to_row, from, from_row, rows, bytes);
  else if (bytes >= 4) copy_short_rows<WordPiece<uint32_t>>(to, to_row, from, from_row, rows, bytes);
  else if (bytes >= 2) copy_short_rows<WordPiece<uint16_t>>(to, to_row, from, from_row, rows, bytes);
  else copy_short_rows<WordPiece<uint8_t>>(to, to_row, from, from_row, rows, bytes);
}

/// Copies elements of one size. `Word` is an unsigned integer of that size.
template <class Word>
struct Mover {
  /// A run of elements, `step` apart, to consecutive ones.
  static void gather(void* to, void const* from, int64_t step, int64_t count) { move({to, count, 1, from, 0, step, 1, count}); }

  static void move(Move const& asked) {
    Move m = asked;
    Word* to = static_cast<Word*>(m.to);
    Word const* from = static_cast<Word const*>(m.from);
    if (m.to_step != 1 && (m.to_row == 1 || m.to_row == -1)) {
      std::swap(m.to_row, m.to_step);
      std::swap(m.from_row, m.from_step);
      std::swap(m.rows, m.count);
    }
    if (m.to_step < 0) {
      to += (m.count - 1) * m.to_step, from += (m.count - 1) * m.from_step;
      m.to_step = -m.to_step, m.from_step = -m.from_step;
    }
    if (m.from_row == -1 && m.from_step != 0) {
      to += (m.rows - 1) * m.to_row, from += (m.rows - 1) * m.from_row;
      m.to_row = -m.to_row, m.from_row = -m.from_row;
    }
    if (m.to_step == 1) {
      if (m.from_step == 1) return copy_rows_of(to, from, m);
      if (m.from_step == 0) return splat_rows(to, from, m);
      if (m.from_row == 1 && m.rows >= lanes && m.count >= lanes) return transpose(to, from, m);
      if (m.from_step == -1 && m.count >= lanes) return reverse_rows(to, from, m);
      if (m.from_step == 2 && m.count > lanes) {
        int64_t const done = thin_rows(to, from, m);
        to += done, from += 2 * done, m.count -= done;
      }
    }
    auto const magnitude = [](int64_t s) { return s < 0 ? -s : s; };
    bool const by_rows = m.rows > m.count ? m.count < 8 || m.from_row < magnitude(m.from_step) : m.rows >= 8 && m.from_row < magnitude(m.from_step);
    if (by_rows) {
      std::swap(m.to_row, m.to_step);
      std::swap(m.from_row, m.from_step);
      std::swap(m.rows, m.count);
    }
    for (int64_t r = 0; r < m.rows; ++r, to += m.to_row, from += m.from_row) each(to, m.to_step, from, m.from_step, m.count);
  }

 protected:
  static constexpr int lanes = 16 / static_cast<int>(sizeof(Word));
  typedef Word V __attribute__((vector_size(16)));
  using Lanes = std::make_integer_sequence<int, lanes>;
  using Halves = std::make_integer_sequence<int, lanes / 2>;

  static void each(Word* to, int64_t to_step, Word const* from, int64_t from_step, int64_t count) {
    int64_t k = 0;
    for (; k + 4 <= count; k += 4, to += 4 * to_step, from += 4 * from_step) {
      Word const a = from[0], b = from[from_step], c = from[2 * from_step], d = from[3 * from_step];
      to[0] = a, to[to_step] = b, to[2 * to_step] = c, to[3 * to_step] = d;
    }
    for (; k < count; ++k, to += to_step, from += from_step) *to = *from;
  }
  static void copy_rows_of(Word* to, Word const* from, Move const& m) {
    constexpr int64_t size = sizeof(Word);
    copy_rows(reinterpret_cast<char*>(to), m.to_row * size, reinterpret_cast<char const*>(from), m.from_row * size, m.rows, m.count * size);
  }
  static void splat_rows(Word* to, Word const* from, Move const& m) {
    constexpr int64_t size = sizeof(Word);
    if (m.count * size >= 64) {
      return cpu::splat_rows(reinterpret_cast<char*>(to), m.to_row * size, reinterpret_cast<char const*>(from), m.from_row * size, size, m.rows, m.count * size);
    }
    for (int64_t r = 0; r < m.rows; ++r, to += m.to_row, from += m.from_row) {
      V const v = V{} + *from;
      for (int64_t c = 0; c < m.count; c += lanes) store(v, to + c);
    }
  }
  static void reverse_rows(Word* to, Word const* from, Move const& m) {
    for (int64_t r = 0; r < m.rows; ++r, to += m.to_row, from += m.from_row) {
      for (int64_t c = 0;; c = c + 2 * lanes <= m.count ? c + lanes : m.count - lanes) {
        store(reversed(load(from - c - (lanes - 1)), Lanes{}), to + c);
        if (c + lanes == m.count) break;
      }
    }
  }
  /// Every second element, in whole registers that do not reach behind the last one; gives how many of each row that were.
  static int64_t thin_rows(Word* to, Word const* from, Move const& m) {
    int64_t const whole = (m.count - 1) / lanes * lanes;
    for (int64_t r = 0; r < m.rows; ++r, to += m.to_row, from += m.from_row) {
      for (int64_t c = 0; c < whole; c += lanes) store(thinned(load(from + 2 * c), load(from + 2 * c + lanes), Lanes{}), to + c);
    }
    return whole;
  }
  /// to[r, c] = from[c, r] in square blocks; the last ones overlap those before.
  static void transpose(Word* to, Word const* from, Move const& m) {
    for (int64_t c = 0;; c = c + 2 * lanes <= m.count ? c + lanes : m.count - lanes) {
      for (int64_t r = 0;; r = r + 2 * lanes <= m.rows ? r + lanes : m.rows - lanes) {
        block(to + r * m.to_row + c, m.to_row, from + c * m.from_step + r, m.from_step, Lanes{});
        if (r + lanes == m.rows) break;
      }
      if (c + lanes == m.count) break;
    }
  }
  template <int... K>
  static SITU_INLINE void block(Word* to, int64_t to_row, Word const* from, int64_t from_step, std::integer_sequence<int, K...>) {
    V v[lanes] = {load(from + K * from_step)...};
    interleave(v, Halves{});
    if constexpr (lanes > 2) interleave(v, Halves{});
    if constexpr (lanes > 4) interleave(v, Halves{});
    if constexpr (lanes > 8) interleave(v, Halves{});
    (store(v[K], to + K * to_row), ...);
  }
  /// Deals the rows of a block like two halves of a deck of cards; log2(lanes) times transposes it.
  template <int... K>
  static SITU_INLINE void interleave(V (&v)[lanes], std::integer_sequence<int, K...>) {
    V const w[lanes / 2][2] = {{low(v[K], v[K + lanes / 2], Lanes{}), high(v[K], v[K + lanes / 2], Lanes{})}...};
    ((v[2 * K] = w[K][0], v[2 * K + 1] = w[K][1]), ...);
  }
  static SITU_INLINE V load(Word const* from) {
    V v;
    __builtin_memcpy(&v, from, 16);
    return v;
  }
  static SITU_INLINE void store(V const& v, Word* to) { __builtin_memcpy(to, &v, 16); }
#if defined(__clang__)
#define SITU_SHUFFLE(a, b, index) __builtin_shufflevector(a, b, (index)...)
#else
#define SITU_SHUFFLE(a, b, index) __builtin_shuffle(a, b, V{static_cast<Word>(index)...})
#endif
  template <int... K>
  static SITU_INLINE V low(V const& a, V const& b, std::integer_sequence<int, K...>) {
    return SITU_SHUFFLE(a, b, K / 2 + K % 2 * lanes);
  }
  template <int... K>
  static SITU_INLINE V high(V const& a, V const& b, std::integer_sequence<int, K...>) {
    return SITU_SHUFFLE(a, b, K / 2 + K % 2 * lanes + lanes / 2);
  }
  template <int... K>
  static SITU_INLINE V reversed(V const& a, std::integer_sequence<int, K...>) {
    if constexpr (sizeof(Word) >= 4) {
      return SITU_SHUFFLE(a, a, lanes - 1 - K);
    } else {  // the baseline of x86 has no shuffle of bytes
      typedef uint64_t Two __attribute__((vector_size(16)));
      auto const swapped = [](uint64_t x) {
        uint64_t const y = __builtin_bswap64(x);
        if constexpr (sizeof(Word) == 1) return y;
        else return (y >> 8 & 0x00ff00ff00ff00ff) | (y & 0x00ff00ff00ff00ff) << 8;
      };
      Two const two = __builtin_bit_cast(Two, a), result = {swapped(two[1]), swapped(two[0])};
      return __builtin_bit_cast(V, result);
    }
  }
  template <int... K>
  static SITU_INLINE V thinned(V const& a, V const& b, std::integer_sequence<int, K...>) {
    return SITU_SHUFFLE(a, b, 2 * K);
  }
#undef SITU_SHUFFLE
};

/// The movers for an element size.
struct MoverFunctions {
  void (*gather)(void*, void const*, int64_t, int64_t);
  void (*move)(Move const&);
};
template <class Word>
inline constexpr MoverFunctions movers_of{&Mover<Word>::gather, &Mover<Word>::move};

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
