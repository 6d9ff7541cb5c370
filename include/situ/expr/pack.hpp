/// Vector packs: N lanes of T on the compiler's vector extension, for one instruction set.
///
/// A *pack* `pack<T, N, Isa>` holds N numbers; a *mask* `lane_mask<Bytes, N, Isa>` holds N truth values as lanes of Bytes
/// bytes, all ones or all zeros. Everything here is inlined into the kernel that uses it and is compiled for that
/// kernel's instruction set; `Isa` tells what that set offers. Packs are passed by reference, and their copy
/// constructor is not trivial, so that a call that is not inlined passes them in memory whatever the flags are.
#pragma once

#include <cstddef>

#include <situ/core/scalar.hpp>

namespace situ::inline SITU_ABI {

/// The instruction sets that CPU kernels are compiled for: bytes of a vector register, and whether a*b + c is fused.
namespace isa {
struct baseline {
  static constexpr int bytes = 16;
#if SITU_X86
  static constexpr bool fma = false;
#else
  static constexpr bool fma = true;
#endif
};
struct avx2 {
  static constexpr int bytes = 32;
  static constexpr bool fma = true;
};
struct avx512 {
  static constexpr int bytes = 64;
  static constexpr bool fma = true;
};
}  // namespace isa

namespace detail {
template <class T, int N>
struct vector_of {
  typedef T type __attribute__((vector_size(sizeof(T) * N)));
};
template <int Bytes>
using signed_of_bytes = signed_of_size<char[Bytes]>;

template <class T>
using unsigned_of_size = std::conditional_t<
    sizeof(T) == 1, uint8_t,
    std::conditional_t<sizeof(T) == 2, uint16_t, std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>>>;
}  // namespace detail

template <class T, int N, class Isa>
struct pack;
template <class U, class T, int N, class Isa>
SITU_INLINE pack<U, N, Isa> convert_unchecked(pack<T, N, Isa> const& a);

namespace detail {
/// Keeps a vector as it stands in a register: what was computed before is not merged with what comes after.
template <class Isa, class V>
SITU_INLINE void hold([[maybe_unused]] V& v) {
#if defined(__clang__)
#elif SITU_X86
  if constexpr (sizeof(V) > static_cast<std::size_t>(Isa::bytes) || sizeof(V) < 16) __asm__("" : "+m"(v));
  else __asm__("" : "+v"(v));
#elif defined(__aarch64__)
  if constexpr (sizeof(V) != 16) __asm__("" : "+m"(v));
  else __asm__("" : "+w"(v));
#else
  __asm__("" : "+m"(v));
#endif
}
}  // namespace detail

template <int Bytes, int N, class Isa>
struct lane_mask {
  static constexpr int lanes = N;
  using lane_type = detail::signed_of_bytes<Bytes>;
  using vector = typename detail::vector_of<lane_type, N>::type;
  vector v;

  SITU_INLINE lane_mask() = default;
  SITU_INLINE explicit lane_mask(vector const& from) : v(from) {}
  SITU_INLINE explicit lane_mask(bool all) : v(vector{} - static_cast<lane_type>(all)) {}
  SITU_INLINE lane_mask(lane_mask const& from) : v(from.v) {}
  SITU_INLINE lane_mask& operator=(lane_mask const& from) {
    v = from.v;
    return *this;
  }
  SITU_INLINE bool operator[](int lane) const { return v[lane] != 0; }

  /// The same truth values as lanes of another size.
  template <int Other>
  SITU_INLINE lane_mask<Other, N, Isa> as() const {
    if constexpr (Other == Bytes) return *this;
    else if constexpr (Other > Bytes && Isa::bytes > 16) return lane_mask<Other, N, Isa>(__builtin_convertvector(v, typename lane_mask<Other, N, Isa>::vector));
    else return lane_mask<Other, N, Isa>(convert_unchecked<detail::signed_of_bytes<Other>>(pack<lane_type, N, Isa>(v)).v);
  }

  /// g++ 12 takes masks that are combined apart into single lanes where masks have registers of their own: keep one whole.
  SITU_INLINE lane_mask held() const {
    lane_mask result(*this);
    detail::hold<Isa>(result.v);
    return result;
  }
  SITU_INLINE friend lane_mask operator!(lane_mask const& a) { return lane_mask(vector(~a.v)); }
  SITU_INLINE friend lane_mask operator&(lane_mask const& a, lane_mask const& b) { return lane_mask(vector(a.held().v & b.v)); }
  SITU_INLINE friend lane_mask operator|(lane_mask const& a, lane_mask const& b) { return lane_mask(vector(a.held().v | b.v)); }
  SITU_INLINE friend lane_mask operator^(lane_mask const& a, lane_mask const& b) { return lane_mask(vector(a.held().v ^ b.v)); }
};

/// Masks of different lane sizes meet at the size of the left one.
template <int A, int B, int N, class Isa>
  requires(A != B)
SITU_INLINE lane_mask<A, N, Isa> operator&(lane_mask<A, N, Isa> const& a, lane_mask<B, N, Isa> const& b) {
  return a & b.template as<A>();
}
template <int A, int B, int N, class Isa>
  requires(A != B)
SITU_INLINE lane_mask<A, N, Isa> operator|(lane_mask<A, N, Isa> const& a, lane_mask<B, N, Isa> const& b) {
  return a | b.template as<A>();
}
template <int A, int B, int N, class Isa>
  requires(A != B)
SITU_INLINE lane_mask<A, N, Isa> operator^(lane_mask<A, N, Isa> const& a, lane_mask<B, N, Isa> const& b) {
  return a ^ b.template as<A>();
}

template <class T, int N, class Isa>
struct pack {
  static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>, "16-bit floats compute as float, bool as mask");
  static constexpr int lanes = N;
  using value_type = T;
  using isa_type = Isa;
  using mask_type = lane_mask<static_cast<int>(sizeof(T)), N, Isa>;
  using vector = typename detail::vector_of<T, N>::type;
  vector v;

  SITU_INLINE pack() = default;
  SITU_INLINE explicit pack(vector const& from) : v(from) {}
#if defined(__clang__)
  SITU_INLINE explicit pack(T all) : v(all - vector{}) {}  // 0 + -0 would lose the sign
#else
  /// g++ 12 makes one broadcast of the loop, and of nothing else where registers are wide. For constants it would only be slow to compile.
  SITU_INLINE explicit pack(T all) {
    if (sizeof(vector) <= 16 || __builtin_constant_p(all)) {
      v = all - vector{};
    } else if constexpr (sizeof(T) == 1 && N > 16) {  // by words: with AVX2 its loop would go through memory
      v = reinterpret_cast<vector>(pack<uint32_t, N / 4, Isa>(static_cast<uint8_t>(all) * uint32_t{0x01010101}).v);
    } else {
      v = vector{} + all;
#if !defined(__CUDACC__)
#pragma GCC unroll 1  // -O3 would unroll it before it knows the registers: into one masked broadcast for each lane
#endif
      for (int k = 0; k < N; ++k) v[k] = all;
    }
  }
#endif
  SITU_INLINE pack(pack const& from) : v(from.v) {}
  SITU_INLINE pack& operator=(pack const& from) {
    v = from.v;
    return *this;
  }

  SITU_INLINE T operator[](int lane) const { return v[lane]; }
  SITU_INLINE void set(int lane, T value) { v[lane] = value; }

  SITU_INLINE static pack load(T const* from) {
    pack result;
    __builtin_memcpy(&result.v, from, sizeof(vector));
    return result;
  }
  SITU_INLINE void store(T* to) const { __builtin_memcpy(to, &v, sizeof(vector)); }

  // Integers wrap: they are added, subtracted and multiplied as unsigned lanes.
  using wrapping = typename detail::vector_of<
      typename std::conditional_t<std::is_integral_v<T>, std::type_identity<detail::unsigned_of_size<T>>,
                                  std::type_identity<T>>::type,
      N>::type;
  SITU_INLINE friend pack operator+(pack const& a, pack const& b) { return pack(vector(wrapping(a.v) + wrapping(b.v))); }
  SITU_INLINE friend pack operator-(pack const& a, pack const& b) { return pack(vector(wrapping(a.v) - wrapping(b.v))); }
  SITU_INLINE friend pack operator*(pack const& a, pack const& b) { return pack(vector(wrapping(a.v) * wrapping(b.v))); }
  SITU_INLINE friend pack operator-(pack const& a) { return pack(vector(-wrapping(a.v))); }
  /// Floating lanes only; integers divide through `floor_divide` and `remainder`, which know about zero.
  SITU_INLINE friend pack operator/(pack const& a, pack const& b)
    requires std::is_floating_point_v<T>
  {
    return pack(vector(a.v / b.v));
  }

  // Numbers of any arithmetic type stand beside packs, as beside scalars: x * 2 + 1.
  template <class S>
    requires std::is_arithmetic_v<S>
  SITU_INLINE friend pack operator+(pack const& a, S b) { return a + pack(static_cast<T>(b)); }
  template <class S>
    requires std::is_arithmetic_v<S>
  SITU_INLINE friend pack operator+(S a, pack const& b) { return pack(static_cast<T>(a)) + b; }
  template <class S>
    requires std::is_arithmetic_v<S>
  SITU_INLINE friend pack operator-(pack const& a, S b) { return a - pack(static_cast<T>(b)); }
  template <class S>
    requires std::is_arithmetic_v<S>
  SITU_INLINE friend pack operator-(S a, pack const& b) { return pack(static_cast<T>(a)) - b; }
  template <class S>
    requires std::is_arithmetic_v<S>
  SITU_INLINE friend pack operator*(pack const& a, S b) { return a * pack(static_cast<T>(b)); }
  template <class S>
    requires std::is_arithmetic_v<S>
  SITU_INLINE friend pack operator*(S a, pack const& b) { return pack(static_cast<T>(a)) * b; }
  template <class S>
    requires std::is_arithmetic_v<S>
  SITU_INLINE friend pack operator/(pack const& a, S b) { return a / pack(static_cast<T>(b)); }
  template <class S>
    requires std::is_arithmetic_v<S>
  SITU_INLINE friend pack operator/(S a, pack const& b) { return pack(static_cast<T>(a)) / b; }

  // Bitwise operations on integer lanes; shifts take one count for all lanes.
  SITU_INLINE friend pack operator&(pack const& a, pack const& b)
    requires std::is_integral_v<T>
  {
    return pack(vector(a.v & b.v));
  }
  SITU_INLINE friend pack operator|(pack const& a, pack const& b)
    requires std::is_integral_v<T>
  {
    return pack(vector(a.v | b.v));
  }
  SITU_INLINE friend pack operator^(pack const& a, pack const& b)
    requires std::is_integral_v<T>
  {
    return pack(vector(a.v ^ b.v));
  }
  SITU_INLINE friend pack operator~(pack const& a)
    requires std::is_integral_v<T>
  {
    return pack(vector(~a.v));
  }
  SITU_INLINE friend pack operator<<(pack const& a, int count)
    requires std::is_integral_v<T>
  {
    return pack(vector(wrapping(a.v) << static_cast<detail::unsigned_of_size<T>>(count)));
  }
  /// Arithmetic for signed lanes, logical for unsigned ones.
  SITU_INLINE friend pack operator>>(pack const& a, int count)
    requires std::is_integral_v<T>
  {
    return pack(vector(a.v >> static_cast<T>(count)));
  }

  SITU_INLINE friend mask_type operator==(pack const& a, pack const& b) { return mask_type(typename mask_type::vector(a.v == b.v)); }
  SITU_INLINE friend mask_type operator!=(pack const& a, pack const& b) { return mask_type(typename mask_type::vector(a.v != b.v)); }
  SITU_INLINE friend mask_type operator<(pack const& a, pack const& b) { return mask_type(typename mask_type::vector(a.v < b.v)); }
  SITU_INLINE friend mask_type operator<=(pack const& a, pack const& b) { return mask_type(typename mask_type::vector(a.v <= b.v)); }
  SITU_INLINE friend mask_type operator>(pack const& a, pack const& b) { return mask_type(typename mask_type::vector(a.v > b.v)); }
  SITU_INLINE friend mask_type operator>=(pack const& a, pack const& b) { return mask_type(typename mask_type::vector(a.v >= b.v)); }
};

/// m ? a : b, lane by lane. Never written with & and |: that is scalarised.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> select(lane_mask<static_cast<int>(sizeof(T)), N, Isa> const& m, pack<T, N, Isa> const& a,
                                   pack<T, N, Isa> const& b) {
  return pack<T, N, Isa>(typename pack<T, N, Isa>::vector(m.v ? a.v : b.v));
}
template <int Bytes, class T, int N, class Isa>
  requires(Bytes != static_cast<int>(sizeof(T)))
SITU_INLINE pack<T, N, Isa> select(lane_mask<Bytes, N, Isa> const& m, pack<T, N, Isa> const& a, pack<T, N, Isa> const& b) {
  return select(m.template as<static_cast<int>(sizeof(T))>(), a, b);
}
/// The scalar form, so that one definition serves packs and CUDA threads.
template <class T>
  requires std::is_arithmetic_v<T>
SITU_HOST_DEVICE constexpr T select(bool m, T a, T b) {
  return m ? a : b;
}

/// The same bits read as lanes of another type of the same size.
template <class U, class T, int N, class Isa>
SITU_INLINE pack<U, N, Isa> bitcast(pack<T, N, Isa> const& a) {
  static_assert(sizeof(T) == sizeof(U));
  return pack<U, N, Isa>(reinterpret_cast<typename pack<U, N, Isa>::vector>(a.v));
}

#if SITU_X86 && defined(__SSE2__) && !defined(__clang__)
#define SITU_PACK_CONVERSIONS 1
#else
#define SITU_PACK_CONVERSIONS 0
#endif
#if SITU_PACK_CONVERSIONS
// g++ 12 takes most conversions between sizes apart into lanes. Where an operand has less than 16 bytes it stands in the first ones of a register.
namespace detail {
template <class V>
using whole_register = typename vector_of<int64_t, (sizeof(V) < 16 ? 16 : static_cast<int>(sizeof(V))) / 8>::type;
template <class V>
SITU_INLINE void put_in_register(whole_register<V>& to, V const& from) {
  if constexpr (sizeof(V) < 16) {
    unsigned_of_size<V> word;
    __builtin_memcpy(&word, &from, sizeof word);
    to = whole_register<V>{static_cast<int64_t>(word), 0};
  } else {
    to = reinterpret_cast<whole_register<V>>(from);
  }
}

/// To lanes that are wider: of integers, of float to double, and of int32 to double.
template <class U, class T, int N, class Isa>
inline constexpr bool widens_in_register = sizeof(U) > sizeof(T) && (sizeof(U) * N == 16 || sizeof(U) * N == 32 || sizeof(U) * N == 64) &&
                                           sizeof(U) * N <= static_cast<std::size_t>(Isa::bytes) &&
                                           (std::is_integral_v<U> ? std::is_integral_v<T> && (Isa::bytes > 16 || sizeof(U) <= 4) : std::is_signed_v<T> && sizeof(T) == 4);
template <class U, class T, int N, class Isa>
SITU_INLINE pack<U, N, Isa> widened(pack<T, N, Isa> const& a) {
  constexpr int from_bytes = sizeof(T), to_bytes = sizeof(U);
  whole_register<decltype(a.v)> from;
  put_in_register(from, a.v);
  typename pack<U, N, Isa>::vector result;  // not a pack, which g++ would keep in memory
  if constexpr (Isa::bytes > 16) {
#define SITU_WIDENED(name) __asm__(name " {%1, %0|%0, %1}" : "=v"(result) : "v"(from))
#define SITU_WIDENED_INTEGERS(sizes)                                   \
  if constexpr (std::is_signed_v<T>) SITU_WIDENED("vpmovsx" sizes);    \
  else SITU_WIDENED("vpmovzx" sizes)
    if constexpr (std::is_floating_point_v<T>) SITU_WIDENED("vcvtps2pd");
    else if constexpr (std::is_floating_point_v<U>) SITU_WIDENED("vcvtdq2pd");
    else if constexpr (from_bytes == 1 && to_bytes == 2) SITU_WIDENED_INTEGERS("bw");
    else if constexpr (from_bytes == 1 && to_bytes == 4) SITU_WIDENED_INTEGERS("bd");
    else if constexpr (from_bytes == 1) SITU_WIDENED_INTEGERS("bq");
    else if constexpr (from_bytes == 2 && to_bytes == 4) SITU_WIDENED_INTEGERS("wd");
    else if constexpr (from_bytes == 2) SITU_WIDENED_INTEGERS("wq");
    else SITU_WIDENED_INTEGERS("dq");
#undef SITU_WIDENED_INTEGERS
#undef SITU_WIDENED
  } else if constexpr (std::is_floating_point_v<T>) {
    typedef float floats __attribute__((vector_size(16)));
    result = __builtin_ia32_cvtps2pd(__builtin_bit_cast(floats, from));
  } else if constexpr (std::is_floating_point_v<U>) {
    typedef int ints __attribute__((vector_size(16)));
    result = __builtin_ia32_cvtdq2pd(__builtin_bit_cast(ints, from));
  } else {  // every lane twice, until its copies fill a lane of U, the uppermost of which is then shifted down
    typedef char bytes __attribute__((vector_size(16)));
    typedef short words __attribute__((vector_size(16)));
    if constexpr (from_bytes == 1) from = __builtin_bit_cast(decltype(from), __builtin_shuffle(__builtin_bit_cast(bytes, from), bytes{0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7}));
    if constexpr (to_bytes == 4) from = __builtin_bit_cast(decltype(from), __builtin_shuffle(__builtin_bit_cast(words, from), words{0, 0, 1, 1, 2, 2, 3, 3}));
    using Shifted = std::conditional_t<std::is_signed_v<T>, signed_of_bytes<to_bytes>, unsigned_of_size<U>>;
    result = reinterpret_cast<decltype(result)>(reinterpret_cast<typename pack<Shifted, N, Isa>::vector>(from) >> static_cast<Shifted>(8 * (to_bytes - from_bytes)));
  }
  return pack<U, N, Isa>(result);
}

/// Every second of the lanes of `Bytes` bytes of two registers, in the first.
template <int Bytes, class R>
SITU_INLINE void keep_even_lanes(R& a, R const& b) {
  using V = typename vector_of<signed_of_bytes<Bytes>, 16 / Bytes>::type;
  V even;
  if constexpr (Bytes == 4) even = V{0, 2, 4, 6};
  else if constexpr (Bytes == 2) even = V{0, 2, 4, 6, 8, 10, 12, 14};
  else even = V{0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
  a = reinterpret_cast<R>(__builtin_shuffle(reinterpret_cast<V>(a), reinterpret_cast<V>(b), even));
}
/// Integers to lanes that are narrower.
template <class U, class T, int N, class Isa>
inline constexpr bool narrows_in_register = sizeof(U) < sizeof(T) && std::is_integral_v<U> && std::is_integral_v<T> && N > 2 &&
                                            sizeof(T) * N <= static_cast<std::size_t>(Isa::bytes);
template <class U, class T, int N, class Isa>
SITU_INLINE pack<U, N, Isa> narrowed(pack<T, N, Isa> const& a) {
  constexpr int from_bytes = sizeof(T), to_bytes = sizeof(U);
  using To = typename pack<U, N, Isa>::vector;
  whole_register<decltype(a.v)> from;
  put_in_register(from, a.v);
  whole_register<To> result;
  if constexpr (sizeof from == 64) {
#define SITU_NARROWED(name) __asm__(name " {%1, %0|%0, %1}" : "=v"(result) : "v"(from))
    if constexpr (from_bytes == 2) SITU_NARROWED("vpmovwb");
    else if constexpr (from_bytes == 4 && to_bytes == 2) SITU_NARROWED("vpmovdw");
    else if constexpr (from_bytes == 4) SITU_NARROWED("vpmovdb");
    else if constexpr (to_bytes == 4) SITU_NARROWED("vpmovqd");
    else if constexpr (to_bytes == 2) SITU_NARROWED("vpmovqw");
    else SITU_NARROWED("vpmovqb");
#undef SITU_NARROWED
  } else {
    whole_register<To> upper;
    if constexpr (sizeof from == 32) result = __builtin_shufflevector(from, from, 0, 1), upper = __builtin_shufflevector(from, from, 2, 3);
    else result = from, upper = from;
    if constexpr (from_bytes == 8) keep_even_lanes<4>(result, upper), upper = result;
    if constexpr (from_bytes >= 4 && to_bytes <= 2) keep_even_lanes<2>(result, upper), upper = result;
    if constexpr (to_bytes == 1) keep_even_lanes<1>(result, upper);
  }
  To narrow;
  __builtin_memcpy(&narrow, &result, sizeof narrow);
  return pack<U, N, Isa>(narrow);
}
}  // namespace detail
#endif

/// Lane by lane as a C++ cast where that is defined; the caller keeps floats inside the integer's range.
template <class U, class T, int N, class Isa>
SITU_INLINE pack<U, N, Isa> convert_unchecked(pack<T, N, Isa> const& a) {
  if constexpr (std::is_same_v<T, U>) return a;
#if SITU_PACK_CONVERSIONS
  else if constexpr (std::is_integral_v<T> && sizeof(T) < 4 && (std::is_floating_point_v<U> || sizeof(U) == 8) && !detail::widens_in_register<U, T, N, Isa>)
    return convert_unchecked<U>(convert_unchecked<int32_t>(a));
  else if constexpr (std::is_floating_point_v<T> && std::is_integral_v<U> && sizeof(U) < 4) return convert_unchecked<U>(convert_unchecked<int32_t>(a));
  else if constexpr (detail::widens_in_register<U, T, N, Isa>) return detail::widened<U>(a);
  else if constexpr (detail::narrows_in_register<U, T, N, Isa>) return detail::narrowed<U>(a);
#endif
  else return pack<U, N, Isa>(__builtin_convertvector(a.v, typename pack<U, N, Isa>::vector));
}

/// a*b + c, fused where the instruction set fuses it.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> multiply_add(pack<T, N, Isa> const& a, pack<T, N, Isa> const& b, pack<T, N, Isa> const& c) {
  return pack<T, N, Isa>(typename pack<T, N, Isa>::vector(a.v * b.v + c.v));
}

/// True if any lane is.
template <int Bytes, int N, class Isa>
SITU_INLINE bool any_of(lane_mask<Bytes, N, Isa> const& m) {
  using wide = typename detail::vector_of<int64_t, (Bytes * N + 7) / 8>::type;
  if constexpr (Bytes * N >= 8) {
    wide const words = reinterpret_cast<wide>(m.v);
    int64_t any = 0;
    for (int k = 0; k < Bytes * N / 8; ++k) any |= words[k];
    return any != 0;
  } else {
    bool any = false;
    for (int k = 0; k < N; ++k) any = any || m[k];
    return any;
  }
}

/// A value that the optimiser may not regroup, also under -ffast-math.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> keep_order(pack<T, N, Isa> const& a) {
#if defined(__clang__)
  if constexpr (std::is_floating_point_v<T>) return pack<T, N, Isa>(__arithmetic_fence(a.v));
  else return a;
#else
  auto v = a.v;          // not a pack, which g++ would then keep in memory, with all that it was made of
  detail::hold<Isa>(v);  // __builtin_assoc_barrier of g++ 12 is scalarised on vectors
  return pack<T, N, Isa>(v);
#endif
}

namespace detail {
template <class X>
inline constexpr bool is_pack = false;
template <class T, int N, class Isa>
inline constexpr bool is_pack<pack<T, N, Isa>> = true;
template <class X>
inline constexpr bool is_mask = false;
template <int Bytes, int N, class Isa>
inline constexpr bool is_mask<lane_mask<Bytes, N, Isa>> = true;
}  // namespace detail
}  // namespace situ::inline SITU_ABI
