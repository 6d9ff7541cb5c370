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
    else return lane_mask<Other, N, Isa>(__builtin_convertvector(v, typename lane_mask<Other, N, Isa>::vector));
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

/// Lane by lane as a C++ cast where that is defined; the caller keeps floats inside the integer's range.
template <class U, class T, int N, class Isa>
SITU_INLINE pack<U, N, Isa> convert_unchecked(pack<T, N, Isa> const& a) {
  if constexpr (std::is_same_v<T, U>) return a;
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
