/// Selecting by a mask on the CPU: the mask is counted in blocks, then every block writes behind those before it.
#pragma once

#include <situ/core/storage.hpp>
#include <situ/expr/cpu/launch.hpp>
#include <situ/ops/select_program.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// How many of `n` bytes of 0 and 1 are 1.
inline int64_t count_ones(unsigned char const* mask, int64_t n) {
  constexpr uint64_t even = 0x00ff00ff00ff00ffu;
  int64_t count = 0, k = 0;
  while (k + 32 <= n) {  // four sums of eight bytes each, which hold 255 additions
    int64_t const rounds = (n - k) / 32 < 255 ? (n - k) / 32 : 255;
    uint64_t sums[4] = {};
    for (int64_t r = 0; r < rounds; ++r, k += 32) {
      uint64_t words[4];
      __builtin_memcpy(words, mask + k, 32);
      sums[0] += words[0], sums[1] += words[1], sums[2] += words[2], sums[3] += words[3];
    }
    for (uint64_t const s : sums) count += static_cast<int64_t>(((s & even) + (s >> 8 & even)) * 0x0001000100010001u >> 48);
  }
  for (; k < n; ++k) count += mask[k];
  return count;
}

/// Ones in each block of the mask.
struct CountKernel {
  unsigned char const* mask;
  int64_t* counts;
  int64_t size;

  void operator()(int64_t first, int64_t last) const {
    for (int64_t b = first; b < last; ++b) {
      int64_t const begin = b * select_block, left = size - begin;
      counts[b] = count_ones(mask + begin, left < select_block ? left : select_block);
    }
  }
};

/// Counts become the places where blocks begin; behind them stands the total.
struct PlaceKernel {
  int64_t* counts;
  int64_t blocks;

  void operator()(int64_t, int64_t) const {
    int64_t total = 0;
    for (int64_t b = 0; b < blocks; ++b) {
      int64_t const count = counts[b];
      counts[b] = total;
      total += count;
    }
    counts[blocks] = total;
  }
};

#if SITU_X86
// Mask registers may be named only where the compiler might use them.
#if defined(__AVX512F__)
#define SITU_AND_K1 , "k1"
#else
#define SITU_AND_K1
#endif
/// The elements of a register that have a 1 in the mask, side by side; all of the register is written. Gives their number.
template <class Word>
SITU_INLINE int64_t compress_avx512(Word* to, Word const* from, unsigned char const* mask) {
  struct Register {
    unsigned char bytes[64];
  };
  uint64_t count;
  if constexpr (sizeof(Word) == 4) {
    __asm__("vmovdqu {%[mask], %%xmm1|xmm1, %[mask]}\n\t"
            "vptestmb {%%xmm1, %%xmm1, %%k1|k1, xmm1, xmm1}\n\t"
            "vmovdqu32 {%[from], %%zmm0|zmm0, %[from]}\n\t"
            "vpcompressd {%%zmm0, %%zmm0%{%%k1%}%{z%}|zmm0%{k1%}%{z%}, zmm0}\n\t"
            "vmovdqu32 {%%zmm0, %[to]|%[to], zmm0}\n\t"
            "kmovw {%%k1, %k[count]|%k[count], k1}\n\t"
            "popcnt{q|} %[count], %[count]"
            : [to] "=m"(*reinterpret_cast<Register*>(to)), [count] "=r"(count)
            : [from] "m"(*reinterpret_cast<Register const*>(from)), [mask] "m"(*reinterpret_cast<unsigned char const(*)[16]>(mask))
            : "xmm0", "xmm1" SITU_AND_K1, "cc");
  } else {
    __asm__("vmovq {%[mask], %%xmm1|xmm1, %[mask]}\n\t"
            "vptestmb {%%xmm1, %%xmm1, %%k1|k1, xmm1, xmm1}\n\t"
            "vmovdqu64 {%[from], %%zmm0|zmm0, %[from]}\n\t"
            "vpcompressq {%%zmm0, %%zmm0%{%%k1%}%{z%}|zmm0%{k1%}%{z%}, zmm0}\n\t"
            "vmovdqu64 {%%zmm0, %[to]|%[to], zmm0}\n\t"
            "kmovw {%%k1, %k[count]|%k[count], k1}\n\t"
            "popcnt{q|} %[count], %[count]"
            : [to] "=m"(*reinterpret_cast<Register*>(to)), [count] "=r"(count)
            : [from] "m"(*reinterpret_cast<Register const*>(from)), [mask] "m"(*reinterpret_cast<unsigned char const(*)[8]>(mask))
            : "xmm0", "xmm1" SITU_AND_K1, "cc");
  }
  return static_cast<int64_t>(count);
}
#undef SITU_AND_K1

/// For every mask of the words in 32 bytes the places of its ones, counted in words of four bytes, as vpermd takes them.
template <class Word>
struct PlacesOfOnes {
  static constexpr int lanes = 32 / static_cast<int>(sizeof(Word)), halves = 8 / lanes;
  unsigned char of[1 << lanes][8];
  constexpr PlacesOfOnes() : of() {
    for (int bits = 0; bits < 1 << lanes; ++bits) {
      int at = 0;
      for (int place = 0; place < 8; ++place) {
        if (bits >> place / halves & 1) of[bits][at++] = static_cast<unsigned char>(place);
      }
    }
  }
};
template <class Word>
inline constexpr PlacesOfOnes<Word> places_of_ones;

/// What compress_avx512 does, of 32 bytes.
template <class Word>
SITU_INLINE int64_t compress_avx2(Word* to, Word const* from, unsigned char const* mask) {
  struct Register {
    unsigned char bytes[32];
  };
  uint64_t ones = 0;
  __builtin_memcpy(&ones, mask, PlacesOfOnes<Word>::lanes);
  unsigned char const(&places)[8] = places_of_ones<Word>.of[ones * 0x0102040810204080u >> 56];  // the lowest bit of each byte
  __asm__("vpmovzxbd {%[places], %%ymm0|ymm0, %[places]}\n\t"
          "vpermd {%[from], %%ymm0, %%ymm0|ymm0, ymm0, %[from]}\n\t"
          "vmovdqu {%%ymm0, %[to]|%[to], ymm0}"
          : [to] "=m"(*reinterpret_cast<Register*>(to))
          : [from] "m"(*reinterpret_cast<Register const*>(from)), [places] "m"(places)
          : "xmm0");
  return static_cast<int64_t>(ones * 0x0101010101010101u >> 56);
}

/// Behind code that the compiler takes for none of wide registers.
SITU_INLINE void leave_wide_registers() {
  __asm__ volatile("vzeroupper" ::: "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15");
}
#endif

/// Moves the elements of `from` that have a 1 in the mask behind each other; `room` is how many these are, and nothing is written
/// past them. Gives `room`.
template <class Word>
SITU_NOINLINE int64_t compact(Word* to, Word const* from, unsigned char const* mask, int64_t n, int64_t room) {
  int64_t at = 0, k = 0;
#if SITU_X86
  if constexpr (sizeof(Word) >= 4) {
    instruction_set const set = current_instruction_set();
    if (set == instruction_set::avx512) {
      constexpr int64_t lanes = 64 / sizeof(Word);
      for (; k + lanes <= n && at + lanes <= room; k += lanes) at += compress_avx512(to + at, from + k, mask + k);
    } else if (set == instruction_set::avx2) {
      constexpr int64_t lanes = 32 / sizeof(Word);
      for (; k + lanes <= n && at + lanes <= room; k += lanes) at += compress_avx2(to + at, from + k, mask + k);
    }
    if (k > 0) leave_wide_registers();
  }
#endif
  bool const sparse = room * 32 < n;  // only then is it likely that there is nothing to move, and worth a branch
  for (; k + 8 <= n && at < room; k += 8) {
    uint64_t word = 1;
    if (sparse) __builtin_memcpy(&word, mask + k, 8);
    if (word == 0) continue;
    if (at + 8 <= room) {
      for (int j = 0; j < 8; ++j) {
        to[at] = from[k + j];
        at += mask[k + j];
      }
    } else {
      for (int j = 0; j < 8; ++j) {
        if (mask[k + j]) to[at++] = from[k + j];
      }
    }
  }
  for (; k < n && at < room; ++k) {
    if (mask[k]) to[at++] = from[k];
  }
  return at;
}

/// Elements of a contiguous input.
template <class Word>
struct SelectKernel {
  Word* to;
  Word const* from;
  unsigned char const* mask;
  int64_t const* places;
  int64_t size;

  void operator()(int64_t first, int64_t last) const {
    for (int64_t b = first; b < last; ++b) {
      int64_t const begin = b * select_block, left = size - begin;
      compact(to + places[b], from + begin, mask + begin, left < select_block ? left : select_block, places[b + 1] - places[b]);
    }
  }
};

/// The same of a formula over contiguous inputs, which is computed a piece at a time into a buffer that stays in the cache.
template <class T, int Operands, int TreeBytes>
struct SelectFormulaKernel {
  BoundTree<Operands, TreeBytes> bound;
  T* to;
  unsigned char const* mask;
  int64_t const* places;
  int64_t size;

  void operator()(int64_t first, int64_t last) const {
    constexpr int64_t piece = 16384 / sizeof(T);
    alignas(64) unsigned char buffer[16384];
    using Word = moved_as<T>;
    for (int64_t b = first; b < last; ++b) {
      int64_t const begin = b * select_block, end = begin + select_block < size ? begin + select_block : size;
      int64_t at = places[b];
      for (int64_t k = begin; k < end && at < places[b + 1]; k += piece) {
        int64_t const n = end - k < piece ? end - k : piece;
        Run<Operands> run;
        for (int o = 1; o < Operands; ++o) {
          run.data[o] = static_cast<char*>(bound.data[o]) + k * bound.sizes[o];
          run.mask[o] = -1;
        }
        run.data[0] = buffer, run.mask[0] = -1;
        run.count = n;
        run.origin = k;
        bound.run(run, false);
        int64_t const room = count_ones(mask + k, n);
        at += compact(reinterpret_cast<Word*>(to + at), reinterpret_cast<Word const*>(buffer), mask + k, n, room);
      }
    }
  }
};

/// to[k] = begin + ones[k].
struct NumberOnesBody {
  template <class Isa>
  SITU_INLINE static int run(int64_t* to, int32_t const* ones, int64_t begin, int64_t count, bool stream) {
    constexpr int N = Isa::bytes / static_cast<int>(sizeof(int64_t));
    pack<int64_t, N, Isa> const from(begin);
    int64_t k = 0;
    for (; stream && k < count && reinterpret_cast<std::uintptr_t>(to + k) % Isa::bytes != 0; ++k) to[k] = begin + ones[k];
    for (; k + N <= count; k += N) {
      auto const numbers = from + convert_unchecked<int64_t>(pack<int32_t, N, Isa>::load(ones + k));
      if (SITU_LIKELY(stream)) stream_to(numbers, to + k);
      else numbers.store(to + k);
    }
    for (; k < count; ++k) to[k] = begin + ones[k];
    return 0;
  }
};

/// The indices of ones, `rank` numbers for each: a block's ones are listed first, and then written row by row.
struct NonzeroKernel {
  int64_t* to;
  unsigned char const* mask;
  int64_t const* places;
  int64_t size;
  int rank;
  int64_t sizes[max_rank];

  void operator()(int64_t first, int64_t last) const {
    uint32_t numbers[select_block], ones[select_block];
    int64_t const most = size < select_block ? size : select_block;
    bool const stream = rank == 1 && places[select_blocks(size)] * static_cast<int64_t>(sizeof(int64_t)) >= streaming_bytes;
    for (int64_t k = 0; k < most; ++k) numbers[k] = static_cast<uint32_t>(k);
    for (int64_t b = first; b < last; ++b) {
      int64_t const begin = b * select_block, left = size - begin, count = places[b + 1] - places[b];
      compact(ones, numbers, mask + begin, left < select_block ? left : select_block, count);
      if (rank == 1) dispatch<NumberOnesBody>(to + places[b], reinterpret_cast<int32_t const*>(ones), begin, count, stream);
      else write(to + places[b] * rank, begin, ones, count);
    }
    if (stream) finish_streaming();
  }

 private:
  void write(int64_t* out, int64_t begin, uint32_t const* ones, int64_t count) const {
    int const last = rank - 1;
    if (last < 0) return;
    int64_t row = begin / sizes[last], at[max_rank];
    int64_t row_begin = row * sizes[last] - begin;  // from the block's beginning
    for (int a = last - 1; a >= 0; --a) at[a] = row % sizes[a], row /= sizes[a];
    for (int64_t k = 0; k < count;) {
      int64_t const row_end = row_begin + sizes[last];
      if (last == 1) {
        for (; k < count && ones[k] < row_end; ++k, out += 2) out[0] = at[0], out[1] = ones[k] - row_begin;
      } else {
        for (; k < count && ones[k] < row_end; ++k, out += rank) {
          for (int a = 0; a < last; ++a) out[a] = at[a];
          out[last] = ones[k] - row_begin;
        }
      }
      row_begin = row_end;
      for (int a = last - 1; a >= 0 && ++at[a] == sizes[a] && a > 0; --a) at[a] = 0;
    }
  }
};

inline constexpr int64_t select_grain = 4;  ///< blocks that are worth a thread of their own

}  // namespace detail::cpu

namespace detail {

template <class D>
void launch_count(cpu_kernels, bool const* mask, int64_t* places, int64_t size) {
  int64_t const blocks = select_blocks(size);
  device_traits<D>::launch(cpu::CountKernel{reinterpret_cast<unsigned char const*>(mask), places, size}, blocks, 2 * cpu::select_grain);
  device_traits<D>::launch(cpu::PlaceKernel{places, blocks}, 1, 1);
}

template <class D>
void launch_nonzero(cpu_kernels, int64_t* to, bool const* mask, int64_t const* places, Shape const& shape) {
  cpu::NonzeroKernel kernel{to, reinterpret_cast<unsigned char const*>(mask), places, product(shape), shape.rank(), {}};
  for (int k = 0; k < shape.rank(); ++k) kernel.sizes[k] = shape[k];
  device_traits<D>::launch(kernel, select_blocks(kernel.size), cpu::select_grain);
}

/// The elements of e, of the mask's shape, that have a true there. Gives false where e must be a contiguous tensor first.
template <class D, class T, class E>
bool launch_select(cpu_kernels, T* to, E const& e, Tensor<bool, D> const& mask, int64_t const* places) {
  auto const* const bytes = reinterpret_cast<unsigned char const*>(mask.data());
  int64_t const size = mask.size();
  constexpr int operands = leaf_count<E> + 1;
  cpu::SelectFormulaKernel<T, operands, cpu::tree_bytes<tree_of<E>>> kernel;
  Layout const* layouts[operands];
  if (!collect_operands(e, mask.layout(), true, kernel.bound.data, layouts)) return false;
  if constexpr (std::is_same_v<tree_of<E>, Input<T, 0>>) {
    using Word = moved_as<T>;
    cpu::SelectKernel<Word> const moves{reinterpret_cast<Word*>(to), static_cast<Word const*>(kernel.bound.data[1]), bytes, places, size};
    device_traits<D>::launch(moves, select_blocks(size), cpu::select_grain);
  } else {
    cpu::bind_tree<T>(kernel.bound, lower<0>(e));
    kernel.to = to;
    kernel.mask = bytes;
    kernel.places = places;
    kernel.size = size;
    device_traits<D>::launch(kernel, select_blocks(size), cpu::select_grain);
  }
  return true;
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
