/// Tails: the last elements of a run, fewer than a pack has lanes, go through buffers of one register's size.
#pragma once

#include <cstdint>

#include <situ/device/cpu/launch.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// memcpy of 1 to 63 bytes, as two moves that overlap.
SITU_NOINLINE inline void copy_short(void* to, void const* from, int64_t bytes) {
  auto* const t = static_cast<char*>(to);
  auto* const f = static_cast<char const*>(from);
  struct Half {
    char byte[32];
  };
  if (bytes >= 32) {
    Half a, b;
    __builtin_memcpy(&a, f, 32);
    __builtin_memcpy(&b, f + bytes - 32, 32);
    __builtin_memcpy(t, &a, 32);
    __builtin_memcpy(t + bytes - 32, &b, 32);
  } else if (bytes >= 16) {
    uint64_t a[2], b[2];
    __builtin_memcpy(&a, f, 16);
    __builtin_memcpy(&b, f + bytes - 16, 16);
    __builtin_memcpy(t, &a, 16);
    __builtin_memcpy(t + bytes - 16, &b, 16);
  } else if (bytes >= 8) {
    uint64_t a, b;
    __builtin_memcpy(&a, f, 8);
    __builtin_memcpy(&b, f + bytes - 8, 8);
    __builtin_memcpy(t, &a, 8);
    __builtin_memcpy(t + bytes - 8, &b, 8);
  } else if (bytes >= 4) {
    uint32_t a, b;
    __builtin_memcpy(&a, f, 4);
    __builtin_memcpy(&b, f + bytes - 4, 4);
    __builtin_memcpy(t, &a, 4);
    __builtin_memcpy(t + bytes - 4, &b, 4);
  } else {
    for (int64_t k = 0; k < bytes; ++k) t[k] = f[k];
  }
}

/// Copies fewer than a register's worth of elements to a buffer of one, and repeats the last one behind them: functions then see
/// no other values than those of the tensors.
SITU_NOINLINE inline void pad_short(unsigned char* to, void const* from, int count, int size) {
  auto fill = [&]<class Word>(Word) {
    Word last;
    __builtin_memcpy(&last, static_cast<char const*>(from) + (count - 1) * size, sizeof(Word));
    for (int k = 0; k < 64 / static_cast<int>(sizeof(Word)); ++k) __builtin_memcpy(to + k * static_cast<int>(sizeof(Word)), &last, sizeof(Word));
  };
  if (size == 4) fill(uint32_t{});
  else if (size == 8) fill(uint64_t{});
  else if (size == 2) fill(uint16_t{});
  else fill(uint8_t{});
  copy_short(to, from, int64_t{count} * size);
}

#if SITU_X86
typedef long long tail_register __attribute__((vector_size(64)));

/// pad_short by a masked load over copies of the last element.
__attribute__((target("avx512f,avx512bw"), always_inline)) inline void pad_with_mask(unsigned char* to, char const* from, int count, int size) {
  int const bytes = count * size;
  uint64_t const mask = (uint64_t{1} << bytes) - 1;
  char const* const last = from + bytes - size;
  tail_register x;
  if (size == 4) __asm__("vpbroadcastd {%1, %0|%0, %1}" : "=v"(x) : "m"(*reinterpret_cast<char const(*)[4]>(last)));
  else if (size == 8) __asm__("vpbroadcastq {%1, %0|%0, %1}" : "=v"(x) : "m"(*reinterpret_cast<char const(*)[8]>(last)));
  else if (size == 2) __asm__("vpbroadcastw {%1, %0|%0, %1}" : "=v"(x) : "m"(*reinterpret_cast<char const(*)[2]>(last)));
  else __asm__("vpbroadcastb {%1, %0|%0, %1}" : "=v"(x) : "m"(*last));
  __asm__("vmovdqu8 {%1, %0%{%2%}|%0%{%2%}, %1}" : "+v"(x) : "m"(*reinterpret_cast<char const(*)[64]>(from)), "Yk"(mask));
  *reinterpret_cast<tail_register*>(to) = x;
}
__attribute__((target("avx512f,avx512bw"), noinline)) inline void pad_with_masks(void* const* to, void const* const* data, int const* sizes, int operands,
                                                                                  int64_t done, int count) {
  for (int o = 1; o < operands; ++o) pad_with_mask(static_cast<unsigned char*>(to[o]), static_cast<char const*>(data[o]) + done * sizes[o], count, sizes[o]);
}

typedef long long tail_half __attribute__((vector_size(32)));
inline constexpr int32_t tail_words[16] = {-1, -1, -1, -1, -1, -1, -1, -1};

/// The same where AVX2 has masked loads: elements that are all of `size` bytes, 4 or 8, each to 32 bytes, which one load then finds whole.
__attribute__((target("avx2"), noinline)) inline void pad_words_with_mask(void* const* to, void const* const* data, int size, int operands, int64_t done,
                                                                          int count) {
  int64_t const first = done * size, bytes = count * size;
  tail_half mask, words, x;
  __builtin_memcpy(&mask, reinterpret_cast<char const*>(tail_words + 8) - bytes, sizeof mask);
  for (int o = 1; o < operands; ++o) {
    char const* const from = static_cast<char const*>(data[o]) + first;
    char const* const last = from + bytes - size;
    __asm__("vpmaskmovd {%1, %2, %0|%0, %2, %1}" : "=x"(words) : "m"(*reinterpret_cast<char const(*)[32]>(from)), "x"(mask));
    if (size == 4) __asm__("vpbroadcastd {%1, %0|%0, %1}" : "=x"(x) : "m"(*reinterpret_cast<char const(*)[4]>(last)));
    else __asm__("vpbroadcastq {%1, %0|%0, %1}" : "=x"(x) : "m"(*reinterpret_cast<char const(*)[8]>(last)));
    __asm__("vpblendvb {%2, %1, %0, %0|%0, %0, %1, %2}" : "+x"(x) : "x"(words), "x"(mask));
    *static_cast<tail_half*>(to[o]) = x;
  }
}
#endif

/// Brings `count` elements of every input o, from element `done` on, to the buffer to[o] of 64 bytes, padded to a register of the instruction set.
template <int Operands>
SITU_INLINE void load_tails([[maybe_unused]] instruction_set set, void* const* to, void const* const* data, int const* sizes, int64_t done, int count) {
#if SITU_X86
  if (SITU_LIKELY(set == instruction_set::avx512)) return pad_with_masks(to, data, sizes, Operands, done, count);
  if constexpr (Operands > 1) {
    bool words = set == instruction_set::avx2 && sizes[1] >= 4;
    for (int o = 2; o < Operands; ++o) words = words && sizes[o] == sizes[1];
    if (SITU_LIKELY(words)) return pad_words_with_mask(to, data, sizes[1], Operands, done, count);
  }
#endif
  for (int o = 1; o < Operands; ++o) pad_short(static_cast<unsigned char*>(to[o]), static_cast<char const*>(data[o]) + done * sizes[o], count, sizes[o]);
}

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
