// situ 0.1.0, in one header. Generated from include/situ by single_include/generate: edit there.
//
// MIT License
//
// Copyright (c) 2026 The situ authors
//
// Permission is hereby granted, free of charge, to any person obtaining a copy
// of this software and associated documentation files (the "Software"), to deal
// in the Software without restriction, including without limitation the rights
// to use, copy, modify, merge, publish, distribute, sublicense, and/or sell
// copies of the Software, and to permit persons to whom the Software is
// furnished to do so, subject to the following conditions:
//
// The above copyright notice and this permission notice shall be included in all
// copies or substantial portions of the Software.
//
// THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR
// IMPLIED, INCLUDING BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY,
// FITNESS FOR A PARTICULAR PURPOSE AND NONINFRINGEMENT. IN NO EVENT SHALL THE
// AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, DAMAGES OR OTHER
// LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
// OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE
// SOFTWARE.
//
// SPDX-License-Identifier: MIT
#pragma once

// ---- <situ/situ.hpp>
/// All of situ.


// ---- <situ/core.hpp>
/// What a tensor is made of: devices as tags, element types, shapes, layouts, storage, errors.


// ---- <situ/core/device.hpp>
/// Devices as types, and what every device must offer.
///
/// A *device* is an empty tag type. `device_traits<D>` tells all the rest of situ what D can do; whoever specialises
/// it for a type of their own has added a device:
///
///     template <> struct device_traits<Mine> {
///       static constexpr bool host_memory = true;      // may the host dereference its pointers?
///       using kernels = cpu_kernels;                   // whose kernels run there
///       static std::string name();                     // "mine"; printed with tensors when it is not "cpu"
///       static void* allocate(std::size_t bytes);      // aligned to 64; throws OutOfMemory, DeviceUnavailable
///       static void deallocate(void* memory, std::size_t bytes) noexcept;
///       static void copy(void* to, void const* from, std::size_t bytes);                  // within the device, enqueued
///       static void copy_from_host(void* to, void const* from, std::size_t bytes);        // done when it returns
///       static void copy_to_host(void* to, void const* from, std::size_t bytes);          // done when it returns
///       template <class Kernel>
///       static void launch(Kernel const& kernel, std::int64_t items, std::int64_t grain); // see below
///       static void synchronize();
///     };
///
/// A kernel of the `cpu_kernels` family is trivially copyable and is called as `kernel(first, last)` on parts of
/// [0, items) that may run side by side; parts begin at multiples of `grain`. `launch` may return before it has run.
/// Three traits are optional: `using result_device = Cpu;` for memory that mixes with that device,
/// `template <class From> static void copy_from(void* to, void const* from, std::size_t bytes)` for copies that need not
/// pass through the host, and `static constexpr bool immediate = true;` where the calling thread may do a little work itself,
/// without a launch.

#include <string>


// ---- <situ/config.hpp>
/// Version, feature macros and the few macros that every header uses.

#define SITU_VERSION_MAJOR 0
#define SITU_VERSION_MINOR 1
#define SITU_VERSION_PATCH 0

/// The inline namespace that carries the version: libraries that embed different versions link side by side.
#ifndef SITU_ABI
#define SITU_ABI v0_1_0
#endif

#if !defined(__GNUC__) && !defined(__clang__)
#error "situ needs g++, clang++ or nvcc with one of them as its host compiler"
#endif
#if __cplusplus < 202002L
#error "situ needs C++20: pass -std=c++20"
#endif

/// SITU_WITH_CUDA: `Cuda<N>` tensors can be made. Set by nvcc, and by the CMake target situ::cuda for host files.
#if defined(__CUDACC__) && !defined(SITU_WITH_CUDA)
#define SITU_WITH_CUDA 1
#endif

/// Functions whose body depends on how a file is compiled stand in one of these inline namespaces, so that files
/// compiled in different ways link into one program. Data types never do.
#if defined(SITU_WITH_CUDA)
#define SITU_ABI_CUDA with_cuda
#else
#define SITU_ABI_CUDA without_cuda
#endif
#if defined(_OPENMP)
#define SITU_ABI_THREADS with_openmp
#else
#define SITU_ABI_THREADS without_openmp
#endif
#if defined(__CUDACC__)
#define SITU_ABI_COMPILER by_nvcc
#else
#define SITU_ABI_COMPILER by_host_compiler
#endif

#if defined(__CUDACC__)
#define SITU_HOST_DEVICE __host__ __device__
#define SITU_DEVICE __device__
#else
#define SITU_HOST_DEVICE
#define SITU_DEVICE
#endif

/// Vector code is inlined into the kernel of each instruction set, also at -O0: no pack ever crosses a call.
#define SITU_INLINE __attribute__((always_inline)) inline
#define SITU_NOINLINE __attribute__((noinline))
#define SITU_LIKELY(x) __builtin_expect(!!(x), 1)
#define SITU_UNLIKELY(x) __builtin_expect(!!(x), 0)

/// A function of the C library by its name, without <cmath>, which costs more to include than all of situ's mathematics.
/// nvcc has the functions declared, with a version for each side.
#if defined(__CUDACC__)
#define SITU_LIBM(NAME) ::NAME
#else
#define SITU_LIBM(NAME) __builtin_##NAME
#endif

/// State that must be one per process is exported, also from libraries built with hidden visibility.
#define SITU_PROCESS_STATE __attribute__((visibility("default"))) inline

#if defined(__x86_64__) || defined(__i386__)
#define SITU_X86 1
#else
#define SITU_X86 0
#endif

/// True in an AddressSanitizer build: nothing is then recycled, so that a use after free is seen.
#if defined(__SANITIZE_ADDRESS__)
#define SITU_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SITU_ASAN 1
#endif
#endif
#ifndef SITU_ASAN
#define SITU_ASAN 0
#endif

namespace situ::inline SITU_ABI {

/// Ordinary host memory; work runs on all host cores. The default device.
struct Cpu {
  friend constexpr bool operator==(Cpu, Cpu) { return true; }
};

/// Page-locked host memory (ordinary memory in a build without CUDA). Mixes with `Cpu`; the result is then `Cpu`.
struct Pinned {
  friend constexpr bool operator==(Pinned, Pinned) { return true; }
};

/// GPU N, as numbered after CUDA_VISIBLE_DEVICES.
template <int N = 0>
struct Cuda {
  static_assert(N >= 0, "situ::Cuda<N>: N is the number of a GPU, 0 or more");
  static constexpr int ordinal = N;
  friend constexpr bool operator==(Cuda, Cuda) { return true; }
};

/// A pretended accelerator with private memory and an asynchronous stream, for tests where there is no GPU.
template <int N = 0>
struct Emulated {
  static_assert(N >= 0, "situ::Emulated<N>: N is the number of an emulated device, 0 or more");
  static constexpr int ordinal = N;
  friend constexpr bool operator==(Emulated, Emulated) { return true; }
};

/// The families of kernels: a device runs one of them.
struct cpu_kernels {};
struct cuda_kernels {};

template <class D>
struct device_traits;

/// A type that `device_traits` describes.
template <class D>
concept device = requires { typename device_traits<D>::kernels; };

/// Whether small kernels may run on the calling thread, without a launch.
template <class D>
inline constexpr bool is_immediate = false;
template <class D>
  requires(device_traits<D>::immediate)
inline constexpr bool is_immediate<D> = true;

/// Whether host code may dereference the device's pointers.
template <class D>
concept host_device = device<D> && device_traits<D>::host_memory;

namespace detail {

template <class D>
struct result_device {
  using type = D;
};
template <class D>
  requires requires { typename device_traits<D>::result_device; }
struct result_device<D> {
  using type = typename device_traits<D>::result_device;
};

/// The device that results of D live on: D itself, or for Pinned, Cpu.
template <class D>
using result_device_t = typename result_device<D>::type;

}  // namespace detail

/// Whether tensors of two devices may stand in one expression.
template <class D1, class D2>
concept mixes_with = std::is_same_v<D1, D2> || std::is_same_v<detail::result_device_t<D1>, detail::result_device_t<D2>>;

/// What a user reads when a program is wrong about devices: each name is the message.
namespace error {
template <class Left, class Right>
struct operands_on_different_devices__move_one_with_to {};
template <class To, class From>
struct conversion_across_devices_is_explicit__use_to {};
template <class Device>
struct element_access_on_a_device__use_item_for_one_element_or_cpu_for_all {};
template <class From, class To>
struct conversion_would_lose_values__use_cast {};
}  // namespace error
}  // namespace situ::inline SITU_ABI

// ---- <situ/core/error.hpp>
/// The exceptions that situ throws, and how their messages are put together.

#include <stdexcept>
#include <string>
#include <type_traits>


#define SITU_EXCEPTION __attribute__((visibility("default")))

namespace situ::inline SITU_ABI {

/// The base of all: `what()` says who, what was asked, what was found, and what to do.
struct SITU_EXCEPTION Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};
/// Shapes, axes or sizes do not fit the call.
struct SITU_EXCEPTION ShapeError : Error {
  using Error::Error;
};
/// The strides do not allow what was asked; a copy would.
struct SITU_EXCEPTION LayoutError : Error {
  using Error::Error;
};
/// An index lies outside its axis.
struct SITU_EXCEPTION IndexError : Error {
  using Error::Error;
};
/// The element type, or the storage's permission, does not allow it.
struct SITU_EXCEPTION TypeError : Error {
  using Error::Error;
};
/// There is no such device in this machine or this build.
struct SITU_EXCEPTION DeviceUnavailable : Error {
  using Error::Error;
};
/// A call to CUDA failed; the message holds the call and the code.
struct SITU_EXCEPTION CudaError : Error {
  using Error::Error;
};
/// Memory ran out on a device; the message holds what was asked and what there was.
struct SITU_EXCEPTION OutOfMemory : Error {
  using Error::Error;
};
/// A gradient cannot be computed.
struct SITU_EXCEPTION GradientError : Error {
  using Error::Error;
};
/// A matrix is singular or an iteration did not converge.
struct SITU_EXCEPTION LinalgError : Error {
  using Error::Error;
};
/// A file cannot be read or written, or does not hold what it should.
struct SITU_EXCEPTION IoError : Error {
  using Error::Error;
};

namespace detail {

inline void append(std::string& to, char const* text) { to += text; }
inline void append(std::string& to, std::string const& text) { to += text; }
__attribute__((cold)) inline void append_integer(std::string& to, unsigned long long magnitude, bool negative) {
  char digits[24];
  int at = 24;
  do {
    digits[--at] = static_cast<char>('0' + magnitude % 10);
    magnitude /= 10;
  } while (magnitude != 0);
  if (negative) digits[--at] = '-';
  to.append(digits + at, static_cast<std::size_t>(24 - at));
}
template <class I>
  requires std::is_integral_v<I>
void append(std::string& to, I number) {
  if (std::is_signed_v<I> && static_cast<long long>(number) < 0) append_integer(to, 0ull - static_cast<unsigned long long>(number), true);
  else append_integer(to, static_cast<unsigned long long>(number), false);
}
inline void append(std::string& to, double number) {
  char buffer[32];
  __builtin_snprintf(buffer, sizeof buffer, "%g", number);
  to += buffer;
}
template <class X>
  requires requires(X const& x) { to_string(x); }
void append(std::string& to, X const& x) {
  to += to_string(x);
}

/// The parts, one after the other: text("axis ", axis, " is out of range for shape ", shape).
template <class... Parts>
std::string text(Parts const&... parts) {
  std::string result;
  (append(result, parts), ...);
  return result;
}

/// Throws E with the parts as its message; kept out of line so that checks cost a compare and a jump.
template <class E, class... Parts>
[[noreturn]] __attribute__((noinline, cold)) void fail(Parts const&... parts) {
  throw E(text(parts...));
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI

// ---- <situ/core/layout.hpp>
/// Layouts: how the indices of a tensor become offsets into its storage, and how views change that.
///
/// *contiguous* means row-major without gaps; *offset* counts elements from the tensor's first element.


// ---- <situ/core/shape.hpp>
/// Shapes: up to eight extents, held inline. Also used for strides and lists of axes.

#include <concepts>
#include <cstddef>
#include <cstdint>


// ---- <situ/core/scalar.hpp>
/// Element types: which there are, the 16-bit floats, promotion between them, and their names.

#include <concepts>
#include <cstdint>
#include <limits>
#include <type_traits>


namespace situ::inline SITU_ABI {

using std::int16_t;
using std::int32_t;
using std::int64_t;
using std::int8_t;
using std::uint16_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;

namespace detail {

template <class To, class From>
SITU_HOST_DEVICE constexpr To bits_to(From const& from) {
  static_assert(sizeof(To) == sizeof(From));
  return __builtin_bit_cast(To, from);
}

/// binary32 to binary16, round to nearest even; NaN stays NaN, beyond 65504 + half an ulp becomes infinite.
SITU_HOST_DEVICE constexpr uint16_t half_bits(float value) {
  uint32_t const bits = bits_to<uint32_t>(value);
  uint32_t const sign = (bits >> 16) & 0x8000u;
  uint32_t const magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  if (magnitude < 0x38800000u) {  // subnormal in binary16: add the magic number that aligns the mantissa
    float const shifted = bits_to<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (bits_to<uint32_t>(shifted) - 0x3f000000u));
  }
  uint32_t const rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u) - 0x38000000u;
  return static_cast<uint16_t>(sign | (rounded >> 13));
}

SITU_HOST_DEVICE constexpr float half_value(uint16_t half) {
  uint32_t const sign = (static_cast<uint32_t>(half) & 0x8000u) << 16;
  uint32_t const magnitude = static_cast<uint32_t>(half) & 0x7fffu;
  if (magnitude >= 0x7c00u) return bits_to<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  if (magnitude < 0x400u) {
    float const value = static_cast<float>(magnitude) * 5.9604644775390625e-8f;  // 2^-24
    return bits_to<float>(sign | bits_to<uint32_t>(value));
  }
  return bits_to<float>(sign | ((magnitude << 13) + 0x38000000u));
}

SITU_HOST_DEVICE constexpr uint16_t bfloat_bits(float value) {
  uint32_t const bits = bits_to<uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

}  // namespace detail

/// IEEE 754 binary16, stored as 16 bits. Arithmetic is done in float and rounded when it is stored.
struct float16 {
  uint16_t bits = 0;
  constexpr float16() = default;
  template <class U>
    requires std::is_arithmetic_v<U>
  SITU_HOST_DEVICE constexpr explicit(!std::is_same_v<U, float>) float16(U value)
      : bits(detail::half_bits(static_cast<float>(value))) {}
  SITU_HOST_DEVICE constexpr operator float() const { return detail::half_value(bits); }
};

/// The upper half of a binary32: 8 bits of exponent, 8 of precision.
struct bfloat16 {
  uint16_t bits = 0;
  constexpr bfloat16() = default;
  template <class U>
    requires std::is_arithmetic_v<U>
  SITU_HOST_DEVICE constexpr explicit(!std::is_same_v<U, float>) bfloat16(U value)
      : bits(detail::bfloat_bits(static_cast<float>(value))) {}
  SITU_HOST_DEVICE constexpr operator float() const {
    return detail::bits_to<float>(static_cast<uint32_t>(bits) << 16);
  }
};

namespace detail {
template <class T, class... Us>
inline constexpr bool is_one_of = (std::is_same_v<T, Us> || ...);
}

/// The types a tensor may hold.
template <class T>
concept element = detail::is_one_of<T, float, double, float16, bfloat16, bool, int8_t, int16_t, int32_t, int64_t, uint8_t>;

template <class T>
concept floating = detail::is_one_of<T, float, double, float16, bfloat16>;

template <class T>
concept integer = element<T> && !floating<T> && !std::is_same_v<T, bool>;

/// A C++ number that may stand beside a tensor in an expression; its type is weak.
template <class T>
concept number = std::is_arithmetic_v<T> || detail::is_one_of<T, float16, bfloat16>;

namespace detail {

template <class T>
using signed_of_size = std::conditional_t<
    sizeof(T) == 1, int8_t,
    std::conditional_t<sizeof(T) == 2, int16_t, std::conditional_t<sizeof(T) == 4, int32_t, int64_t>>>;

/// `long long` and `long` are both 64 bits: map what a user wrote to the element type of its size.
template <class T>
struct canonical {
  using type = T;
};
template <class T>
  requires(std::is_integral_v<T> && !std::is_same_v<T, bool> && !element<T>)
struct canonical<T> {
  using type = signed_of_size<T>;
};
template <>
struct canonical<long double> {
  using type = double;
};

template <class T, class U>
constexpr auto promote() {
  if constexpr (std::is_same_v<T, U>) return T{};
  else if constexpr (std::is_same_v<T, bool>) return U{};
  else if constexpr (std::is_same_v<U, bool>) return T{};
  else if constexpr (floating<T> && !floating<U>) return T{};
  else if constexpr (floating<U> && !floating<T>) return U{};
  else if constexpr (floating<T>) {
    if constexpr (sizeof(T) != sizeof(U)) return std::conditional_t<(sizeof(T) > sizeof(U)), T, U>{};
    else return float{};  // float16 with bfloat16: neither holds the other
  } else if constexpr (std::is_signed_v<T> == std::is_signed_v<U>) {
    return std::conditional_t<(sizeof(T) > sizeof(U)), T, U>{};
  } else {
    using S = std::conditional_t<std::is_signed_v<T>, T, U>;
    return std::conditional_t<sizeof(S) == 1, int16_t, S>{};  // the unsigned one is uint8
  }
}

}  // namespace detail

/// The element type that tensors of T and U combine to, by the array API's table; an integer with a floating type
/// gives the floating type, float16 with bfloat16 gives float.
template <class T, class U>
using promote_t = decltype(detail::promote<T, U>());

/// The element type of a tensor of T combined with a C++ number of type S. Numbers are weak: they keep T unless T
/// cannot be of their kind (an integer tensor with a floating number gives float, bool with an integer int64).
template <class T, class S>
using weak_t = std::conditional_t<
    (floating<S> || std::is_floating_point_v<S>) && !floating<T>, float,
    std::conditional_t<std::is_same_v<T, bool> && !std::is_same_v<S, bool>, int64_t, T>>;

/// T where it is floating, float otherwise: what `/`, `exp` and their like give.
template <class T>
using floating_t = std::conditional_t<floating<T>, T, float>;

/// The type that values of T are computed in: float for the 16-bit floats, T otherwise.
template <class T>
using compute_t = std::conditional_t<detail::is_one_of<T, float16, bfloat16>, float, T>;

/// Whether a T becomes a U without being asked: only where no promotion is lost.
template <class T, class U>
concept implicitly_converts_to = std::is_same_v<promote_t<T, U>, U>;

/// The name as PyTorch and NumPy print it: `float32`, `bfloat16`, `int64`.
template <element T>
constexpr const char* dtype_name() {
  if constexpr (std::is_same_v<T, float>) return "float32";
  else if constexpr (std::is_same_v<T, double>) return "float64";
  else if constexpr (std::is_same_v<T, float16>) return "float16";
  else if constexpr (std::is_same_v<T, bfloat16>) return "bfloat16";
  else if constexpr (std::is_same_v<T, bool>) return "bool";
  else if constexpr (std::is_same_v<T, int8_t>) return "int8";
  else if constexpr (std::is_same_v<T, int16_t>) return "int16";
  else if constexpr (std::is_same_v<T, int32_t>) return "int32";
  else if constexpr (std::is_same_v<T, int64_t>) return "int64";
  else return "uint8";
}

/// The run-time name of an element type; what `x.dtype()` returns.
enum class dtype : unsigned char { float32, float64, float16, bfloat16, boolean, int8, int16, int32, int64, uint8 };

template <element T>
inline constexpr dtype dtype_of = std::is_same_v<T, float>      ? dtype::float32
                                  : std::is_same_v<T, double>   ? dtype::float64
                                  : std::is_same_v<T, float16>  ? dtype::float16
                                  : std::is_same_v<T, bfloat16> ? dtype::bfloat16
                                  : std::is_same_v<T, bool>     ? dtype::boolean
                                  : std::is_same_v<T, int8_t>   ? dtype::int8
                                  : std::is_same_v<T, int16_t>  ? dtype::int16
                                  : std::is_same_v<T, int32_t>  ? dtype::int32
                                  : std::is_same_v<T, int64_t>  ? dtype::int64
                                                                : dtype::uint8;

/// The name of a run-time element type, as PyTorch and NumPy print it.
constexpr const char* name(dtype type) {
  constexpr const char* names[] = {"float32", "float64", "float16", "bfloat16", "bool",
                                   "int8",    "int16",   "int32",   "int64",    "uint8"};
  return names[static_cast<int>(type)];
}

namespace detail {

/// Variables, because device code may not call std::numeric_limits.
template <class T>
inline constexpr T least_integer = std::numeric_limits<T>::min();
template <class T>
inline constexpr T greatest_integer = std::numeric_limits<T>::max();

/// C++ conversion between element types without undefined behaviour: a float becomes an integer by truncation that
/// saturates, NaN becomes 0; integers wrap; anything but zero is true.
template <class To, class From>
SITU_HOST_DEVICE constexpr To convert_scalar(From const& from) {
  if constexpr (std::is_same_v<To, From>) return from;
  else if constexpr (is_one_of<From, float16, bfloat16>) return convert_scalar<To>(static_cast<float>(from));
  else if constexpr (is_one_of<To, float16, bfloat16>) return To(static_cast<float>(from));
  else if constexpr (std::is_same_v<To, bool>) return from != From(0);
  else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    constexpr To low = least_integer<To>, high = greatest_integer<To>;
    if (!(from == from)) return To(0);
    if (from <= static_cast<From>(low)) return low;
    if (from >= static_cast<From>(high)) return high;
    return static_cast<To>(from);
  } else {
    return static_cast<To>(from);
  }
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI

namespace situ::inline SITU_ABI {

/// The most dimensions a tensor may have.
inline constexpr int max_rank = 8;

/// A short list of integers: the extents of a tensor, its strides, or axes of it. Written {2, 3}, with any integer
/// types, or converted from a range of integers such as std::vector. Throws ShapeError beyond eight entries.
class Shape {
 public:
  constexpr Shape() = default;

  template <std::integral... Is>
    requires(sizeof...(Is) > 0)
  constexpr Shape(Is... extents) : rank_(static_cast<int>(sizeof...(Is))) {
    if constexpr (sizeof...(Is) > max_rank) too_many(static_cast<int64_t>(sizeof...(Is)));
    else {
      int k = 0;
      ((values_[k++] = static_cast<int64_t>(extents)), ...);
    }
  }

  /// From any sized contiguous range of integers; not from a tensor, whose elements may lie on a device.
  template <class Range>
    requires(!std::same_as<Range, Shape> && !requires { typename Range::device_type; } && requires(Range const& r) {
      requires std::integral<std::remove_cvref_t<decltype(*r.data())>>;
      r.size();
    })
  constexpr Shape(Range const& extents) : Shape(extents.data(), static_cast<int64_t>(extents.size())) {}

  template <std::integral I>
  constexpr Shape(I const* first, int64_t count) {
    if (count > max_rank || count < 0) too_many(count);
    rank_ = static_cast<int>(count);
    for (int k = 0; k < rank_; ++k) values_[k] = static_cast<int64_t>(first[k]);
  }

  /// `rank` entries of the same value.
  static constexpr Shape filled(int rank, int64_t value) {
    Shape result;
    if (rank > max_rank || rank < 0) too_many(rank);
    result.rank_ = rank;
    for (int k = 0; k < rank; ++k) result.values_[k] = value;
    return result;
  }

  constexpr int rank() const { return rank_; }
  constexpr std::size_t size() const { return static_cast<std::size_t>(rank_); }
  constexpr bool empty() const { return rank_ == 0; }
  constexpr int64_t operator[](std::integral auto k) const { return values_[k]; }
  constexpr int64_t& operator[](std::integral auto k) { return values_[k]; }
  constexpr int64_t const* data() const { return values_; }
  constexpr int64_t const* begin() const { return values_; }
  constexpr int64_t const* end() const { return values_ + rank_; }
  constexpr int64_t front() const { return values_[0]; }
  constexpr int64_t back() const { return values_[rank_ - 1]; }

  constexpr void push_back(int64_t value) {
    if (rank_ == max_rank) too_many(rank_ + 1);
    values_[rank_++] = value;
  }
  constexpr void insert(int at, int64_t value) {
    push_back(value);
    for (int k = rank_ - 1; k > at; --k) values_[k] = values_[k - 1];
    values_[at] = value;
  }
  constexpr void erase(int at) {
    for (int k = at; k + 1 < rank_; ++k) values_[k] = values_[k + 1];
    values_[--rank_] = 0;
  }

  friend constexpr bool operator==(Shape const& a, Shape const& b) {
    if (a.rank_ != b.rank_) return false;
    for (int k = 0; k < a.rank_; ++k) {
      if (a.values_[k] != b.values_[k]) return false;
    }
    return true;
  }

  /// `[2, 3]`
  friend std::string to_string(Shape const& shape);

 private:
  [[noreturn]] static void too_many(int64_t count) {
    detail::fail<ShapeError>("shape: ", count, " dimensions were given: a tensor has at most ", max_rank);
  }

  int64_t values_[max_rank] = {};
  int rank_ = 0;
};

__attribute__((cold)) inline std::string to_string(Shape const& shape) {
  std::string result = "[";
  for (int k = 0; k < shape.rank(); ++k) {
    if (k > 0) result += ", ";
    detail::append(result, shape[k]);
  }
  return result += "]";
}

/// Writes `[2, 3]`; works with any stream, so that no stream header is needed here.
template <class Stream>
  requires requires(Stream& s, char const* t) { s.write(t, 1); s.flush(); }
Stream& operator<<(Stream& stream, Shape const& shape) {
  std::string const text = to_string(shape);
  stream.write(text.data(), static_cast<std::ptrdiff_t>(text.size()));
  return stream;
}

namespace detail {

/// The product of the extents. Throws ShapeError on a negative extent and when bytes would not fit 63 bits.
inline int64_t count_of(Shape const& shape, char const* who, int64_t element_size = 1) {
  int64_t count = 1;
  bool empty = false;
  for (int64_t extent : shape) {
    if (extent < 0) fail<ShapeError>(who, ": shape ", shape, " has a negative extent: ", extent, "; sizes are 0 or more");
    empty = empty || extent == 0;
  }
  if (empty) return 0;
  int64_t bytes = element_size;
  for (int64_t extent : shape) {
    if (__builtin_mul_overflow(bytes, extent, &bytes)) {
      fail<ShapeError>(who, ": shape ", shape, " has more elements than can be addressed: the product of the sizes overflows");
    }
    count *= extent;
  }
  return count;
}

/// The product of the extents of a shape that has been checked.
constexpr int64_t product(Shape const& shape) {
  int64_t count = 1;
  for (int64_t extent : shape) count *= extent;
  return count;
}

/// An axis counted from the front. Throws ShapeError when `shape` has no such axis.
inline int checked_axis(int64_t axis, int rank, Shape const& shape, char const* who) {
  if (axis < -rank || axis >= rank) {
    if (rank == 0) fail<ShapeError>(who, ": axis ", axis, " is out of range for shape ", shape, ": it has no axes");
    fail<ShapeError>(who, ": axis ", axis, " is out of range for shape ", shape, ": axes are ", -rank, " to ", rank - 1);
  }
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

/// NumPy broadcasting of two shapes. Throws ShapeError that names both.
inline Shape broadcast(Shape const& a, Shape const& b, char const* who) {
  if (SITU_LIKELY(a == b)) return a;
  int const rank = a.rank() > b.rank() ? a.rank() : b.rank();
  Shape result = Shape::filled(rank, 1);
  for (int k = 0; k < rank; ++k) {
    int const ka = k - (rank - a.rank()), kb = k - (rank - b.rank());
    int64_t const na = ka < 0 ? 1 : a[ka], nb = kb < 0 ? 1 : b[kb];
    if (na != nb && na != 1 && nb != 1) {
      fail<ShapeError>(who, ": shapes ", a, " and ", b, " do not broadcast: ", na, " != ", nb, " in dimension ", k);
    }
    result[k] = na == 1 ? nb : na;
  }
  count_of(result, who);
  return result;
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI

namespace situ::inline SITU_ABI {

/// A shape and its strides, in elements. Strides may be zero (broadcast) or negative (flipped).
struct Layout {
  Shape shape;
  Shape strides;

  constexpr Layout() : shape(0), strides(1) {}
  constexpr Layout(Shape const& extents, Shape const& steps) : shape(extents), strides(steps) {}
  explicit constexpr Layout(Shape const& extents) : shape(extents), strides(extents) {
    int64_t step = 1;
    for (int k = shape.rank() - 1; k >= 0; --k) {
      strides[k] = step;
      step *= shape[k] > 1 ? shape[k] : 1;
    }
  }

  constexpr int rank() const { return shape.rank(); }
  constexpr int64_t size() const { return detail::product(shape); }

  constexpr bool is_contiguous() const {
    int64_t step = 1;
    for (int k = rank() - 1; k >= 0; --k) {
      if (shape[k] == 0) return true;
      if (shape[k] == 1) continue;
      if (strides[k] != step) return false;
      step *= shape[k];
    }
    return true;
  }

  /// True when two different indices share an element: an axis of stride 0 with more than one index.
  constexpr bool is_broadcast() const {
    for (int k = 0; k < rank(); ++k) {
      if (strides[k] == 0 && shape[k] > 1) return true;
    }
    return false;
  }

  /// The smallest and the largest offset reached; {0, -1} when there are no elements.
  struct Extent {
    int64_t first, last;
  };
  constexpr Extent extent() const {
    Extent e{0, 0};
    for (int k = 0; k < rank(); ++k) {
      if (shape[k] == 0) return {0, -1};
      int64_t const reach = (shape[k] - 1) * strides[k];
      (reach < 0 ? e.first : e.last) += reach;
    }
    return e;
  }
};

namespace detail {

/// That of a default-constructed tensor: shape [0].
inline constexpr Layout empty_layout{};

/// The layout after a view operation, and the offset of its first element.
struct Viewed {
  Layout layout;
  int64_t offset = 0;
};

inline int64_t checked_index(int64_t index, int64_t extent, int axis, Shape const& shape, char const* who) {
  if (SITU_UNLIKELY(index < -extent || index >= extent)) {
    fail<IndexError>(who, ": index ", index, " is out of range for axis ", axis, " of shape ", shape, ": it has ",
                     extent, extent == 1 ? " element" : " elements");
  }
  return index < 0 ? index + extent : index;
}

inline Viewed select_view(Layout const& from, int64_t axis, int64_t index, char const* who = "select") {
  int const k = checked_axis(axis, from.rank(), from.shape, who);
  int64_t const i = checked_index(index, from.shape[k], k, from.shape, who);
  Viewed result{from, i * from.strides[k]};
  result.layout.shape.erase(k);
  result.layout.strides.erase(k);
  return result;
}

/// Python's slice rules: negative bounds count from the end, bounds beyond it are clamped, step may be negative.
inline Viewed slice_view(Layout const& from, int64_t axis, int64_t start, int64_t stop, int64_t step,
                         bool open_start = false, bool open_stop = false, char const* who = "slice") {
  int const k = checked_axis(axis, from.rank(), from.shape, who);
  if (step == 0) fail<IndexError>(who, ": the step of axis ", k, " is 0; a step is positive or negative");
  int64_t const n = from.shape[k];
  auto clamped = [n, step](int64_t i) {
    int64_t const low = step > 0 ? 0 : -1, high = step > 0 ? n : n - 1;
    if (i < 0) i = i < -n ? low : i + n;
    return i < low ? low : i > high ? high : i;
  };
  int64_t const first = open_start ? (step > 0 ? 0 : n - 1) : clamped(start);
  int64_t const last = open_stop ? (step > 0 ? n : -1) : clamped(stop);
  int64_t count = 0;
  if (step > 0 && last > first) count = (last - first - 1) / step + 1;
  if (step < 0 && first > last) count = (first - last - 1) / (step == INT64_MIN ? INT64_MAX : -step) + 1;
  Viewed result{from, count > 0 ? first * from.strides[k] : 0};
  result.layout.shape[k] = count;
  result.layout.strides[k] = count > 1 ? from.strides[k] * step : from.strides[k];
  return result;
}

inline Viewed flip_view(Layout const& from, int64_t axis) {
  int const k = checked_axis(axis, from.rank(), from.shape, "flip");
  Viewed result{from, from.shape[k] > 0 ? (from.shape[k] - 1) * from.strides[k] : 0};
  result.layout.strides[k] = -from.strides[k];
  return result;
}

inline Layout transposed(Layout const& from, int64_t axis0, int64_t axis1, char const* who = "transpose") {
  int const i = checked_axis(axis0, from.rank(), from.shape, who), j = checked_axis(axis1, from.rank(), from.shape, who);
  Layout result = from;
  result.shape[i] = from.shape[j], result.shape[j] = from.shape[i];
  result.strides[i] = from.strides[j], result.strides[j] = from.strides[i];
  return result;
}

inline Layout matrix_transposed(Layout const& from) {
  if (from.rank() > 2) {
    fail<ShapeError>("t: shape ", from.shape, " has ", from.rank(), " axes: t() takes at most 2; use transpose(axis0, axis1) or permute");
  }
  return from.rank() < 2 ? from : transposed(from, 0, 1, "t");
}

inline Layout permuted(Layout const& from, Shape const& axes) {
  if (axes.rank() != from.rank()) {
    fail<ShapeError>("permute: ", axes.rank(), " axes ", axes, " were given for shape ", from.shape, ": it has ", from.rank());
  }
  Layout result = from;
  unsigned seen = 0;
  for (int k = 0; k < from.rank(); ++k) {
    int const axis = checked_axis(axes[k], from.rank(), from.shape, "permute");
    if (seen & (1u << axis)) fail<ShapeError>("permute: axis ", axis, " appears twice in ", axes);
    seen |= 1u << axis;
    result.shape[k] = from.shape[axis];
    result.strides[k] = from.strides[axis];
  }
  return result;
}

inline Layout unsqueezed(Layout const& from, int64_t axis) {
  int const rank = from.rank() + 1;
  if (axis < -rank || axis >= rank) {
    fail<ShapeError>("unsqueeze: axis ", axis, " is out of range for shape ", from.shape, ": axes are ", -rank, " to ", rank - 1);
  }
  int const k = static_cast<int>(axis < 0 ? axis + rank : axis);
  Layout result = from;
  result.strides.insert(k, k < from.rank() ? from.shape[k] * from.strides[k] : 1);
  result.shape.insert(k, 1);
  return result;
}

inline Layout squeezed(Layout const& from) {
  Layout result{Shape{}, Shape{}};
  for (int k = 0; k < from.rank(); ++k) {
    if (from.shape[k] == 1) continue;
    result.shape.push_back(from.shape[k]);
    result.strides.push_back(from.strides[k]);
  }
  return result;
}

inline Layout squeezed(Layout const& from, int64_t axis) {
  int const k = checked_axis(axis, from.rank(), from.shape, "squeeze");
  Layout result = from;
  if (from.shape[k] == 1) result.shape.erase(k), result.strides.erase(k);
  return result;
}

/// Strides that repeat `from` over `to`: 0 where an axis is broadcast. -1 in `to` keeps the extent.
inline Layout expanded(Layout const& from, Shape to, char const* who = "expand") {
  int const lead = to.rank() - from.rank();
  if (lead < 0) fail<ShapeError>(who, ": shape ", from.shape, " cannot be expanded to ", to, ": it has more dimensions");
  Layout result{to, Shape::filled(to.rank(), 0)};
  for (int k = 0; k < to.rank(); ++k) {
    int64_t const have = k < lead ? 1 : from.shape[k - lead];
    if (to[k] == -1 && k >= lead) result.shape[k] = have;
    int64_t const want = result.shape[k];
    if (want < 0) fail<ShapeError>(who, ": shape ", to, " has a negative extent: ", want, "; sizes are 0 or more, -1 keeps an existing one");
    if (have != want && have != 1) {
      fail<ShapeError>(who, ": shape ", from.shape, " cannot be expanded to ", to, ": ", have, " != ", want, " in dimension ", k);
    }
    result.strides[k] = k < lead || (have == 1 && want != 1) ? 0 : from.strides[k - lead];
  }
  count_of(result.shape, who);
  return result;
}

/// `to` with its single -1 replaced by what is left of `size` elements.
inline Shape inferred(Shape to, Shape const& from, char const* who) {
  int64_t const size = product(from);
  int unknown = -1;
  int64_t known = 1;
  for (int k = 0; k < to.rank(); ++k) {
    if (to[k] == -1) {
      if (unknown >= 0) fail<ShapeError>(who, ": shape ", to, " has more than one -1; only one extent can be inferred");
      unknown = k;
    } else if (to[k] < 0) {
      fail<ShapeError>(who, ": shape ", to, " has a negative extent: ", to[k], "; sizes are 0 or more, or one -1");
    } else if (__builtin_mul_overflow(known, to[k], &known)) {
      fail<ShapeError>(who, ": shape ", to, " has more elements than can be addressed: the product of the sizes overflows");
    }
  }
  if (unknown >= 0) {
    if (known == 0 || size % known != 0) {
      fail<ShapeError>(who, ": shape ", from, " (", size, " elements) cannot become ", to, ": ", size, " is not a multiple of ", known);
    }
    to[unknown] = size / known;
  } else if (known != size) {
    fail<ShapeError>(who, ": shape ", from, " (", size, " elements) cannot become ", to, " (", known, " elements)");
  }
  return to;
}

/// The strides under which the elements of `from` can be seen as `to`, if there are any.
inline bool viewed_as(Layout const& from, Shape const& to, Layout& result) {
  result = Layout(to);
  if (from.size() == 0 || from.is_contiguous()) return true;
  // Group axes of `from` that are contiguous with each other, and cut `to` into the same groups (from the last axis).
  int view = to.rank() - 1;
  int64_t group_size = 1, view_size = 1;
  int64_t group_stride = from.rank() ? from.strides[from.rank() - 1] : 1;
  for (int k = from.rank() - 1; k >= 0; --k) {
    if (group_size == 1) group_stride = from.strides[k];
    group_size *= from.shape[k];
    bool const cut = k == 0 || (from.shape[k - 1] != 1 && from.strides[k - 1] != group_size * group_stride);
    if (!cut) continue;
    while (view >= 0 && (view_size < group_size || to[view] == 1)) {
      result.strides[view] = view_size * group_stride;
      view_size *= to[view];
      --view;
    }
    if (view_size != group_size) return false;
    group_size = view_size = 1;
  }
  return view < 0;
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI

// ---- <situ/core/storage.hpp>
/// Storage: a reference-counted piece of one device's memory, and the counted description of a tensor in it.

#include <cstddef>
#include <new>
#include <utility>


#if defined(__has_include)
#if __has_include(<sys/single_threaded.h>)
#include <sys/single_threaded.h>
#define SITU_SINGLE_THREADED __libc_single_threaded
#endif
#endif
#ifndef SITU_SINGLE_THREADED
#define SITU_SINGLE_THREADED 0
#endif

namespace situ::inline SITU_ABI {
namespace detail {

// Counts are atomic, because handles may be copied from several threads; a process that has only one pays nothing for it.
SITU_INLINE void count_up(int64_t& count) noexcept {
  if (SITU_SINGLE_THREADED) __atomic_store_n(&count, __atomic_load_n(&count, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
  else __atomic_fetch_add(&count, 1, __ATOMIC_RELAXED);
}
/// Whether this was the last one. The only owner needs no atomic operation: nobody else can see the count.
SITU_INLINE bool count_down(int64_t& count) noexcept {
  int64_t const before = __atomic_load_n(&count, __ATOMIC_ACQUIRE);
  if (before == 1) return true;
  if (SITU_SINGLE_THREADED) {
    __atomic_store_n(&count, before - 1, __ATOMIC_RELAXED);
    return false;
  }
  return __atomic_fetch_sub(&count, 1, __ATOMIC_ACQ_REL) == 1;
}

/// The head of a storage, in ordinary host memory.
struct StorageHead {
  int64_t references = 1;
  void* memory = nullptr;
  std::size_t bytes = 0;
  void (*destroy)(StorageHead*) noexcept = nullptr;
  bool allocated_here = true;  ///< false for from_blob: never written again behind the owner's back
  bool read_only = false;
};

/// A counted pointer to a storage head.
class Storage {
 public:
  constexpr Storage() = default;
  explicit Storage(StorageHead* adopted) : head_(adopted) {}
  Storage(Storage const& other) noexcept : head_(other.head_) {
    if (head_) count_up(head_->references);
  }
  Storage(Storage&& other) noexcept : head_(std::exchange(other.head_, nullptr)) {}
  Storage& operator=(Storage other) noexcept {
    std::swap(head_, other.head_);
    return *this;
  }
  ~Storage() {
    if (head_ && count_down(head_->references)) head_->destroy(head_);
  }

  StorageHead* head() const { return head_; }
  explicit operator bool() const { return head_ != nullptr; }
  int64_t use_count() const { return head_ ? __atomic_load_n(&head_->references, __ATOMIC_ACQUIRE) : 0; }
  friend bool operator==(Storage const& a, Storage const& b) { return a.head_ == b.head_; }

 private:
  StorageHead* head_ = nullptr;
};

/// What a tensor is: where its first element lies, and its layout. Never changes once it is shared.
struct Body {
  int64_t handles = 1;
  Storage storage;
  void* first = nullptr;
  Layout layout;
  int64_t size = 0;
  bool contiguous = true;
  bool apart = true;  ///< false where it lies in the storage's own block
};

/// A counted pointer to a body: all that a Tensor holds. A null handle is an empty tensor.
class Handle {
 public:
  constexpr Handle() = default;
  explicit Handle(Body* adopted) : body_(adopted) {}
  Handle(Handle const& other) noexcept : body_(other.body_) {
    if (body_) count_up(body_->handles);
  }
  Handle(Handle&& other) noexcept : body_(std::exchange(other.body_, nullptr)) {}
  Handle& operator=(Handle other) noexcept {
    std::swap(body_, other.body_);
    return *this;
  }
  ~Handle() {
    if (body_) drop(body_);
  }

  Body* body() const { return body_; }
  /// Handles of this body, and other views of its storage.
  int64_t use_count() const {
    return body_ ? __atomic_load_n(&body_->handles, __ATOMIC_ACQUIRE) + (body_->storage ? body_->storage.use_count() - 1 : 0) : 0;
  }

 private:
  // Out of line: expressions end many handles, and each of them would be inlined twice, once for exceptions.
  static SITU_NOINLINE void drop(Body* body) noexcept {
    if (SITU_LIKELY(!count_down(body->handles))) return;
    Storage const last = std::move(body->storage);  // may end the block that the body lies in
    if (body->apart) delete body;
  }
  Body* body_ = nullptr;
};

/// A handle to another view of the same storage.
inline Handle make_view(Storage const& storage, void* first, Layout const& layout) {
  return Handle(new Body{1, storage, first, layout, layout.size(), layout.is_contiguous(), true});
}

/// The head and the body of a fresh tensor, side by side in front of its data or in a block of their own.
struct FreshBlock {
  StorageHead head;
  Body body;
  FreshBlock(Shape const& shape, int64_t size) : body{1, {}, nullptr, Layout(shape), size, true, false} {}
};
inline constexpr std::size_t fresh_block_bytes = (sizeof(FreshBlock) + 63) / 64 * 64;

template <class D>
struct FreshStorage {
  static constexpr bool in_front = requires { device_traits<D>::head_before_data; };

  static void destroy(StorageHead* head) noexcept {
    auto* const block = reinterpret_cast<FreshBlock*>(head);
    if constexpr (in_front) {
      device_traits<D>::deallocate(block, head->bytes + fresh_block_bytes);
    } else {
      if (head->memory) device_traits<D>::deallocate(head->memory, head->bytes);
      delete block;
    }
  }
};

/// A fresh tensor's body over `bytes` bytes of D for a contiguous shape of `size` elements, uninitialised: one allocation of the device, none when
/// bytes is 0.
template <class D>
SITU_NOINLINE Handle make_fresh(std::size_t bytes, int64_t size, Shape const& shape) {
  if (SITU_UNLIKELY(bytes == 0)) return make_view({}, nullptr, Layout(shape));
  FreshBlock* block;
  void* memory;
  if constexpr (FreshStorage<D>::in_front) {
    char* const all = static_cast<char*>(device_traits<D>::allocate(bytes + fresh_block_bytes));
    block = ::new (static_cast<void*>(all)) FreshBlock(shape, size);
    memory = all + fresh_block_bytes;
  } else {
    block = new FreshBlock(shape, size);
    try {
      memory = device_traits<D>::allocate(bytes);
    } catch (...) {
      delete block;
      throw;
    }
  }
  block->head.memory = block->body.first = memory;
  block->head.bytes = bytes;
  block->head.destroy = &FreshStorage<D>::destroy;
  block->body.storage = Storage(&block->head);
  return Handle(&block->body);
}

/// Memory of D for the time of an operation: freed in the order of what is enqueued.
template <class D>
class Temporary {
 public:
  explicit Temporary(std::size_t bytes) : bytes_(bytes), memory_(bytes ? device_traits<D>::allocate(bytes) : nullptr) {}
  Temporary(Temporary const&) = delete;
  Temporary& operator=(Temporary const&) = delete;
  ~Temporary() {
    if (memory_) device_traits<D>::deallocate(memory_, bytes_);
  }
  void* get() const { return memory_; }

 private:
  std::size_t bytes_;
  void* memory_;
};

}  // namespace detail
}  // namespace situ::inline SITU_ABI

// ---- <situ/device.hpp>
/// Devices: memory, streams, launches, and questions about them.


// ---- <situ/device/any.hpp>
/// Devices chosen while the program runs: AnyDevice names one, try_gpu finds one, visit goes back to types.

#include <iosfwd>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>


// ---- <situ/device/cpu/device.hpp>
/// What `Cpu` and `Pinned` can do.

#include <cstring>


// ---- <situ/device/cpu/launch.hpp>
/// The host cores: how many are used, which instruction set, and how a kernel is spread over them.

#include <cstdlib>
#include <cstring>


#if defined(_OPENMP)
#include <omp.h>
#endif

namespace situ::inline SITU_ABI {

/// The instruction sets that CPU kernels exist for.
enum class instruction_set : int { baseline, avx2, avx512 };

namespace detail::cpu {

inline instruction_set best_instruction_set() noexcept {
#if SITU_X86
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("fma")) {
    return instruction_set::avx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return instruction_set::avx2;
#endif
  return instruction_set::baseline;
}

/// SITU_INSTRUCTION_SET=baseline|avx2|avx512 in the environment lowers the choice.
inline instruction_set initial_instruction_set() noexcept {
  instruction_set const best = best_instruction_set();
  if (char const* asked = std::getenv("SITU_INSTRUCTION_SET")) {
    if (std::strcmp(asked, "baseline") == 0) return instruction_set::baseline;
    if (std::strcmp(asked, "avx2") == 0 && best >= instruction_set::avx2) return instruction_set::avx2;
  }
  return best;
}

/// 0: not looked up yet; else the instruction set + 1. One per process.
SITU_PROCESS_STATE int& instruction_set_state() {
  static constinit int state = 0;
  return state;
}

__attribute__((noinline, cold)) inline int look_up_instruction_set() noexcept {
  int const state = static_cast<int>(initial_instruction_set()) + 1;
  __atomic_store_n(&instruction_set_state(), state, __ATOMIC_RELAXED);
  return state;
}

inline instruction_set current_instruction_set() noexcept {
  int state = __atomic_load_n(&instruction_set_state(), __ATOMIC_RELAXED);
  if (SITU_UNLIKELY(state == 0)) state = look_up_instruction_set();
  return static_cast<instruction_set>(state - 1);
}

/// 0: as many as OpenMP would use. One per process.
SITU_PROCESS_STATE int& thread_limit() {
  static constinit int limit = 0;
  return limit;
}

}  // namespace detail::cpu

/// The instruction set that kernels run with.
inline instruction_set get_instruction_set() { return detail::cpu::current_instruction_set(); }

/// Makes kernels run with `set`; for tests and comparisons. Throws DeviceUnavailable when this processor lacks it.
inline void set_instruction_set(instruction_set set) {
  constexpr char const* names[] = {"baseline", "avx2", "avx512"};
  instruction_set const best = detail::cpu::best_instruction_set();
  if (set > best) {
    detail::fail<DeviceUnavailable>("set_instruction_set: this processor has no ", names[static_cast<int>(set)],
                                    ": the best it offers is ", names[static_cast<int>(best)]);
  }
  __atomic_store_n(&detail::cpu::instruction_set_state(), static_cast<int>(set) + 1, __ATOMIC_RELAXED);
}

inline namespace SITU_ABI_THREADS {

/// How many host threads a kernel may use: 1 in a file that is compiled without OpenMP.
inline int num_threads() {
#if defined(_OPENMP)
  int const limit = __atomic_load_n(&detail::cpu::thread_limit(), __ATOMIC_RELAXED);
  return limit > 0 ? limit : omp_get_max_threads();
#else
  return 1;
#endif
}

}  // namespace SITU_ABI_THREADS

/// Sets how many host threads kernels use; results do not depend on it. Throws ShapeError unless n is at least 1.
inline void set_num_threads(int n) {
  if (n < 1) detail::fail<ShapeError>("set_num_threads: ", n, " threads were asked for; at least 1 is needed");
  __atomic_store_n(&detail::cpu::thread_limit(), n, __ATOMIC_RELAXED);
}

namespace detail::cpu {
inline namespace SITU_ABI_THREADS {

/// Runs kernel(first, last) on [0, items), on one thread when that is no more than `grain` items. Parts begin at
/// multiples of `grain`, so they are the same whatever the number of threads.
template <class Kernel>
void launch(Kernel const& kernel, int64_t items, [[maybe_unused]] int64_t grain) {
#if defined(_OPENMP)
  if (items > 2 * grain) {  // a region costs more than a small kernel, also one that is serialised
    int64_t const parts = (items + grain - 1) / grain;
    int64_t const threads = parts < num_threads() ? parts : num_threads();
    if (threads > 1 && !omp_in_parallel()) {
#pragma omp parallel num_threads(static_cast<int>(threads))
      {
        int64_t const me = omp_get_thread_num(), all = omp_get_num_threads();
        int64_t const first = parts * me / all * grain, end = parts * (me + 1) / all * grain;
        if (first < end) kernel(first, end < items ? end : items);
      }
      return;
    }
  }
#endif
  kernel(int64_t{0}, items);
}

}  // namespace SITU_ABI_THREADS
}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI

// ---- <situ/device/cpu/memory.hpp>
/// Host memory: aligned to 64 bytes, large blocks on huge pages and kept for the next tensor of their size.

#include <cstddef>
#include <cstdlib>
#include <utility>


#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace situ::inline SITU_ABI {
namespace detail::cpu {

inline constexpr std::size_t alignment = 64;
inline constexpr std::size_t large_block = std::size_t{1} << 20;
inline constexpr std::size_t huge_page = std::size_t{2} << 20;

/// Counts and a few freed large blocks: a fresh result then costs no page faults. One per process.
struct MemoryState {
  static constexpr int kept_blocks = 8;
  int64_t lock = 0;
  int64_t allocated = 0, peak = 0, kept = 0;
  int64_t keep_limit = int64_t{1} << 30;
  struct Block {
    void* memory;
    std::size_t bytes;
  } blocks[kept_blocks] = {};
};

SITU_PROCESS_STATE MemoryState& memory_state() {
  static constinit MemoryState state;
  return state;
}

struct MemoryLock {
  MemoryState& state;
  explicit MemoryLock(MemoryState& s) : state(s) {
    while (__atomic_exchange_n(&state.lock, 1, __ATOMIC_ACQUIRE)) {
    }
  }
  MemoryLock(MemoryLock const&) = delete;
  MemoryLock& operator=(MemoryLock const&) = delete;
  ~MemoryLock() { __atomic_store_n(&state.lock, 0, __ATOMIC_RELEASE); }
};

constexpr std::size_t rounded_up(std::size_t bytes, std::size_t to) { return (bytes + to - 1) / to * to; }

inline void release_block(MemoryState::Block const& block) noexcept {
#if defined(__linux__)
  ::munmap(block.memory, block.bytes);
#else
  std::free(block.memory);
#endif
}

[[noreturn]] __attribute__((noinline, cold)) inline void out_of_memory(std::size_t bytes) {
  fail<OutOfMemory>("cpu: allocation of ", bytes, " bytes failed: the system has no memory of that size left; ", memory_state().allocated,
                    " bytes are in use by situ and ", memory_state().kept,
                    " are kept for reuse: free tensors, call empty_cache(), or work on smaller parts");
}

/// A large block: one that was kept, else new pages. Block sizes are rounded so that similar sizes share blocks.
inline void* allocate_large(std::size_t bytes) {
  std::size_t const unit = bytes >= 4 * huge_page ? huge_page : std::size_t{1} << 16;
  if (bytes > (std::size_t{1} << 62)) out_of_memory(bytes);
  std::size_t const size = rounded_up(bytes, unit);
  MemoryState& state = memory_state();
  {
    MemoryLock guard(state);
    for (auto& block : state.blocks) {
      if (block.memory && block.bytes == size) {
        state.kept -= static_cast<int64_t>(size);
        state.allocated += static_cast<int64_t>(size);
        if (state.allocated > state.peak) state.peak = state.allocated;
        return std::exchange(block, {}).memory;
      }
    }
  }
#if defined(__linux__)
  std::size_t const slack = unit == huge_page ? huge_page : 0;
  void* const mapped = ::mmap(nullptr, size + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) out_of_memory(bytes);
  char* memory = static_cast<char*>(mapped);
  if (slack) {
    auto const address = reinterpret_cast<std::uintptr_t>(memory);
    std::size_t const before = rounded_up(address, huge_page) - address;
    if (before) ::munmap(memory, before);
    if (slack - before) ::munmap(memory + before + size, slack - before);
    memory += before;
#if defined(MADV_HUGEPAGE)
    ::madvise(memory, size, MADV_HUGEPAGE);
#endif
  }
#else
  void* const memory = std::aligned_alloc(huge_page, rounded_up(size, huge_page));
  if (!memory) out_of_memory(bytes);
#endif
  MemoryLock guard(state);
  state.allocated += static_cast<int64_t>(size);
  if (state.allocated > state.peak) state.peak = state.allocated;
  return memory;
}

inline void deallocate_large(void* memory, std::size_t bytes) noexcept {
  std::size_t const unit = bytes >= 4 * huge_page ? huge_page : std::size_t{1} << 16;
  std::size_t const size = rounded_up(bytes, unit);
  MemoryState& state = memory_state();
  MemoryState::Block evicted{memory, size};
  {
    MemoryLock guard(state);
    state.allocated -= static_cast<int64_t>(size);
    if (!SITU_ASAN && state.kept + static_cast<int64_t>(size) <= state.keep_limit) {
      MemoryState::Block* place = &state.blocks[0];
      for (auto& block : state.blocks) {
        if (!block.memory) {
          place = &block;
          break;
        }
        if (block.bytes < place->bytes) place = &block;
      }
      state.kept += static_cast<int64_t>(size) - static_cast<int64_t>(place->bytes);
      evicted = std::exchange(*place, evicted);
    }
  }
  if (evicted.memory) release_block(evicted);
}

/// How many bytes to ask malloc for. Loads that follow stores to nearby addresses, but for multiples of a page, wait for them in
/// vain, so tensors of one size that are made one after the other should not lie a page and a little apart.
constexpr std::size_t spread_size(std::size_t bytes) {
  constexpr std::size_t page = 4096, apart = 1024;
  if (SITU_LIKELY(bytes < page)) return bytes;
  std::size_t const beyond = (bytes + 16) % page;  // what malloc adds itself
  return bytes + (beyond < apart ? apart - beyond : beyond > page - apart ? page - beyond : 0);
}

inline void* allocate(std::size_t bytes) {
  if (SITU_UNLIKELY(bytes >= large_block)) return allocate_large(bytes);
  // malloc is several times faster than aligned_alloc on small blocks: align by hand, with malloc's pointer in front.
  void* const raw = std::malloc(spread_size(bytes + alignment));
  if (SITU_UNLIKELY(!raw)) out_of_memory(bytes);
  auto const address = reinterpret_cast<std::uintptr_t>(raw);
  char* const memory = static_cast<char*>(raw) + (alignment - address % alignment);
  reinterpret_cast<void**>(memory)[-1] = raw;
  return memory;
}

inline void deallocate(void* memory, std::size_t bytes) noexcept {
  if (SITU_UNLIKELY(bytes >= large_block)) return deallocate_large(memory, bytes);
  std::free(reinterpret_cast<void**>(memory)[-1]);
}

inline void empty_cache() noexcept {
  MemoryState& state = memory_state();
  MemoryState::Block released[MemoryState::kept_blocks];
  {
    MemoryLock guard(state);
    for (int k = 0; k < MemoryState::kept_blocks; ++k) released[k] = std::exchange(state.blocks[k], {});
    state.kept = 0;
  }
  for (auto& block : released) {
    if (block.memory) release_block(block);
  }
}

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI

namespace situ::inline SITU_ABI {

template <>
struct device_traits<Cpu> {
  static constexpr bool host_memory = true;
  static constexpr bool immediate = true;
  static constexpr bool head_before_data = true;
  using kernels = cpu_kernels;

  static std::string name() { return "cpu"; }
  static void* allocate(std::size_t bytes) { return detail::cpu::allocate(bytes); }
  static void deallocate(void* memory, std::size_t bytes) noexcept { detail::cpu::deallocate(memory, bytes); }
  static void copy(void* to, void const* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
  static void copy_from_host(void* to, void const* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
  static void copy_to_host(void* to, void const* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
  template <class Kernel>
  static void launch(Kernel const& kernel, int64_t items, int64_t grain) {
    detail::cpu::launch(kernel, items, grain);
  }
  static void synchronize() {}
};

}  // namespace situ::inline SITU_ABI

// ---- <situ/device/cuda/device.hpp>
/// What `Cuda<N>` can do. A complete type in every build; without SITU_WITH_CUDA, using it is a compile error.

#include <string>


// ---- <situ/device/cuda/memory.hpp>
/// Memory of a GPU: stream-ordered, from the driver's pool, which keeps what is freed; and copies from, to and between GPUs.

#include <cstddef>
#include <cstdio>


// ---- <situ/device/cuda/stream.hpp>
/// Checked calls, the probe for GPUs, the guard of the current device, and the current stream of each device.

#include <string>


// ---- <situ/device/cuda/state.hpp>
/// What a process knows about its GPUs: the same data in every build, so that all files share one of it.

#include <cstdint>


namespace situ::inline SITU_ABI {
namespace detail::cuda {

inline constexpr int max_devices = 64;

struct DeviceState {
  int64_t allocated = 0, peak = 0;  ///< bytes held by tensors, and the most there were
  uint64_t peers = 0;               ///< bit m: cuda:m may read this device's pool, or was found not to
  int multiprocessors = 0;
  int ready = 0;                    ///< 1 when the pool is set up and the properties are known
};

struct ProcessState {
  int device_count = -1;  ///< -1: not looked up yet
  int probe_error = 0;    ///< why there is none: a cudaError_t, or -1 for no driver
  DeviceState devices[max_devices];
};

/// One per process.
SITU_PROCESS_STATE ProcessState& process_state() {
  static constinit ProcessState state;
  return state;
}

/// The current stream of each device in this thread; null is the device's legacy default stream, whatever the flags of a file.
SITU_PROCESS_STATE void** current_streams() {
  static thread_local constinit void* streams[max_devices] = {};
  return streams;
}

inline void count_allocation(int device, int64_t bytes) noexcept {
  DeviceState& state = process_state().devices[device];
  int64_t const now = __atomic_add_fetch(&state.allocated, bytes, __ATOMIC_RELAXED);
  int64_t peak = __atomic_load_n(&state.peak, __ATOMIC_RELAXED);
  while (now > peak && !__atomic_compare_exchange_n(&state.peak, &peak, now, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
}

}  // namespace detail::cuda
}  // namespace situ::inline SITU_ABI

#if defined(SITU_WITH_CUDA)
#include <cuda_runtime_api.h>
#endif

namespace situ::inline SITU_ABI {
namespace detail::cuda {
inline namespace SITU_ABI_CUDA {

#if defined(SITU_WITH_CUDA)

/// Throws CudaError for a failed call, after clearing the error that the runtime would report again.
template <class... Parts>
[[noreturn]] __attribute__((noinline, cold)) void fail_call(int device, cudaError_t code, Parts const&... call) {
  (void)cudaGetLastError();
  bool const no_code = code == cudaErrorNoKernelImageForDevice || code == cudaErrorUnsupportedPtxVersion;
  fail<CudaError>("cuda:", device, ": ", call..., " failed: ", cudaGetErrorName(code), " (", cudaGetErrorString(code), ")",
                  no_code ? ": compile for this GPU, with -arch=native or -arch=sm_XY" : "");
}

/// Throws CudaError unless code is success; `call` says what was called.
template <class... Parts>
void check(int device, cudaError_t code, Parts const&... call) {
  if (code != cudaSuccess) [[unlikely]] fail_call(device, code, call...);
}

/// The number of GPUs; 0 without a driver. Looked up once.
inline int device_count() noexcept {
  ProcessState& state = process_state();
  int count = __atomic_load_n(&state.device_count, __ATOMIC_ACQUIRE);
  if (count >= 0) [[likely]] return count;
  int driver = 0, error = 0;
  count = 0;
  // Without a driver this is the only call that tells it without an error that sticks.
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    error = -1;
  } else {
    cudaError_t const code = cudaGetDeviceCount(&count);
    if (code != cudaSuccess) {
      (void)cudaGetLastError();
      error = static_cast<int>(code);
      count = 0;
    }
  }
  if (count > max_devices) count = max_devices;
  __atomic_store_n(&state.probe_error, error, __ATOMIC_RELAXED);
  __atomic_store_n(&state.device_count, count, __ATOMIC_RELEASE);
  return count;
}

/// Throws DeviceUnavailable, saying why there is no such device.
[[noreturn]] __attribute__((noinline, cold)) inline void fail_unavailable(int device) {
  int const count = device_count();
  int const error = __atomic_load_n(&process_state().probe_error, __ATOMIC_RELAXED);
  char const* const cure = "; try_gpu() finds a device that is there";
  if (error == -1) fail<DeviceUnavailable>("cuda:", device, ": there is no such device: no CUDA driver was found", cure);
  if (error == static_cast<int>(cudaErrorInsufficientDriver)) {
    int driver = 0;
    (void)cudaDriverGetVersion(&driver);
    fail<DeviceUnavailable>("cuda:", device, ": the CUDA driver is too old: it supports CUDA ", driver / 1000, ".", driver % 1000 / 10,
                            ", this program was built with CUDA ", CUDART_VERSION / 1000, ".", CUDART_VERSION % 1000 / 10, "; update the driver");
  }
  if (error != 0 && error != static_cast<int>(cudaErrorNoDevice)) {
    auto const code = static_cast<cudaError_t>(error);
    fail<DeviceUnavailable>("cuda:", device, ": cudaGetDeviceCount failed: ", cudaGetErrorName(code), " (", cudaGetErrorString(code), ")");
  }
  if (count == 0) fail<DeviceUnavailable>("cuda:", device, ": there is no such device: no GPU was found", cure);
  fail<DeviceUnavailable>("cuda:", device, ": there is no such device: ", count, count == 1 ? " GPU was found" : " GPUs were found");
}

/// The first use of a device: its pool keeps what tensors free, and its properties are read.
__attribute__((noinline, cold)) inline void prepare(int device) {
  if (device < 0 || device >= device_count()) fail_unavailable(device);
  int pools = 0, multiprocessors = 0;
  check(device, cudaDeviceGetAttribute(&pools, cudaDevAttrMemoryPoolsSupported, device), "cudaDeviceGetAttribute");
  if (pools == 0) fail<DeviceUnavailable>("cuda:", device, ": the driver offers no stream-ordered memory on this GPU; situ needs it");
  check(device, cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  cudaMemPool_t pool = nullptr;
  uint64_t keep_all = UINT64_MAX;
  check(device, cudaDeviceGetDefaultMemPool(&pool, device), "cudaDeviceGetDefaultMemPool");
  check(device, cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep_all), "cudaMemPoolSetAttribute");
  DeviceState& state = process_state().devices[device];
  __atomic_store_n(&state.multiprocessors, multiprocessors, __ATOMIC_RELAXED);
  __atomic_store_n(&state.ready, 1, __ATOMIC_RELEASE);
}

/// Throws DeviceUnavailable unless the device can be used.
inline void require_device(int device) {
  if (device < 0 || device >= max_devices) fail_unavailable(device);
  if (!__atomic_load_n(&process_state().devices[device].ready, __ATOMIC_ACQUIRE)) [[unlikely]] prepare(device);
}

/// Makes `device` the current one, and in the end the one that was it before.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) : device_(device), previous_(device) {
    require_device(device);
    check(device, cudaGetDevice(&previous_), "cudaGetDevice");
    if (previous_ != device) check(device, cudaSetDevice(device), "cudaSetDevice");
  }
  DeviceGuard(DeviceGuard const&) = delete;
  DeviceGuard& operator=(DeviceGuard const&) = delete;
  ~DeviceGuard() {
    if (previous_ != device_) (void)cudaSetDevice(previous_);
  }

 private:
  int device_, previous_;
};

/// The stream that this thread's work on the device goes to. The legacy default stream orders the work of all threads.
inline cudaStream_t current_stream(int device) noexcept {
  void* const stream = current_streams()[device];
  return stream ? static_cast<cudaStream_t>(stream) : cudaStreamLegacy;
}

#else

inline int device_count() noexcept { return 0; }

#endif

}  // namespace SITU_ABI_CUDA
}  // namespace detail::cuda
}  // namespace situ::inline SITU_ABI

namespace situ::inline SITU_ABI {
namespace detail::cuda {
inline namespace SITU_ABI_CUDA {

#if defined(SITU_WITH_CUDA)

/// Bytes that the pool holds, used or kept; 0 where the device has not been used.
inline int64_t reserved_bytes(int device) noexcept {
  if (device < 0 || device >= device_count() || !__atomic_load_n(&process_state().devices[device].ready, __ATOMIC_ACQUIRE)) return 0;
  cudaMemPool_t pool = nullptr;
  uint64_t bytes = 0;
  if (cudaDeviceGetDefaultMemPool(&pool, device) != cudaSuccess ||
      cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &bytes) != cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  return static_cast<int64_t>(bytes);
}

/// What Cuda<N> asks of the CUDA runtime, with the number of the device as an argument.
struct Runtime {
  /// Throws OutOfMemory, DeviceUnavailable, CudaError. The memory may be used by what is enqueued from now on.
  static void* allocate(int device, std::size_t bytes) {
    DeviceGuard const guard(device);
    cudaStream_t const stream = current_stream(device);
    void* memory = nullptr;
    cudaError_t code = cudaMallocAsync(&memory, bytes, stream);
    if (code == cudaErrorMemoryAllocation) {  // what is freed in other streams comes back when they have run
      (void)cudaGetLastError();
      code = cudaDeviceSynchronize();
      if (code == cudaSuccess) code = cudaMallocAsync(&memory, bytes, stream);
    }
    if (code == cudaErrorMemoryAllocation) fail_memory(device, bytes);
    check(device, code, "cudaMallocAsync of ", bytes, " bytes");
    count_allocation(device, static_cast<int64_t>(bytes));
    return memory;
  }

  /// Freed when what is enqueued has run. Reports an error instead of throwing it; accepts that the driver is unloading at exit.
  static void deallocate(int device, void* memory, std::size_t bytes) noexcept {
    int previous = device;
    cudaError_t code = cudaGetDevice(&previous);
    if (code == cudaSuccess && previous != device) code = cudaSetDevice(device);
    if (code == cudaSuccess) code = cudaFreeAsync(memory, current_stream(device));
    if (previous != device) (void)cudaSetDevice(previous);
    count_allocation(device, -static_cast<int64_t>(bytes));
    if (code == cudaSuccess || code == cudaErrorCudartUnloading || code == cudaErrorContextIsDestroyed) return;
    (void)cudaGetLastError();
    std::fprintf(stderr, "situ: cuda:%d: cudaFreeAsync failed: %s (%s)\n", device, cudaGetErrorName(code), cudaGetErrorString(code));
  }

  /// Within the device; enqueued.
  static void copy(int device, void* to, void const* from, std::size_t bytes) {
    DeviceGuard const guard(device);
    check(device, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, current_stream(device)), "cudaMemcpyAsync of ", bytes, " bytes");
  }

  /// From or to the host; after what is enqueued, and done when it returns.
  static void copy_from_host(int device, void* to, void const* from, std::size_t bytes) {
    copy_and_wait(device, to, from, bytes, cudaMemcpyHostToDevice);
  }
  static void copy_to_host(int device, void* to, void const* from, std::size_t bytes) {
    copy_and_wait(device, to, from, bytes, cudaMemcpyDeviceToHost);
  }

  /// From another GPU; enqueued in the receiver's stream. It waits for the sender's stream, which then waits for the copy.
  static void copy_from_peer(int device, void* to, int peer, void const* from, std::size_t bytes) {
    require_device(device);
    connect(device, peer);
    Event sent, received;
    {
      DeviceGuard const guard(peer);
      sent.record(peer);
    }
    DeviceGuard const guard(device);
    cudaStream_t const stream = current_stream(device);
    check(device, cudaStreamWaitEvent(stream, sent.event, 0), "cudaStreamWaitEvent");
    check(device, cudaMemcpyPeerAsync(to, device, from, peer, bytes, stream), "cudaMemcpyPeerAsync of ", bytes, " bytes from cuda:", peer);
    received.record(device);
    DeviceGuard const back(peer);
    check(peer, cudaStreamWaitEvent(current_stream(peer), received.event, 0), "cudaStreamWaitEvent");
  }

  static void synchronize(int device) {
    DeviceGuard const guard(device);
    check(device, cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

 private:
  /// Of the device that is current when it is recorded; the driver keeps it alive until it has happened.
  struct Event {
    cudaEvent_t event = nullptr;
    Event() = default;
    Event(Event const&) = delete;
    Event& operator=(Event const&) = delete;
    ~Event() {
      if (event) (void)cudaEventDestroy(event);
    }
    void record(int device) {
      check(device, cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
      check(device, cudaEventRecord(event, current_stream(device)), "cudaEventRecord");
    }
  };

  static void copy_and_wait(int device, void* to, void const* from, std::size_t bytes, cudaMemcpyKind kind) {
    DeviceGuard const guard(device);
    cudaStream_t const stream = current_stream(device);
    check(device, cudaMemcpyAsync(to, from, bytes, kind, stream), "cudaMemcpyAsync of ", bytes, " bytes");
    check(device, cudaStreamSynchronize(stream), "cudaStreamSynchronize");
  }

  /// Opens the peer's pool to the device where the hardware can; copies are staged by the driver where it cannot.
  static void connect(int device, int peer) {
    require_device(peer);
    uint64_t& peers = process_state().devices[peer].peers;
    uint64_t const bit = uint64_t{1} << device;
    if (device == peer || (__atomic_load_n(&peers, __ATOMIC_ACQUIRE) & bit)) return;
    int can = 0;
    cudaMemPool_t pool = nullptr;
    if (cudaDeviceCanAccessPeer(&can, device, peer) == cudaSuccess && can && cudaDeviceGetDefaultMemPool(&pool, peer) == cudaSuccess) {
      cudaMemAccessDesc access{};
      access.location.type = cudaMemLocationTypeDevice;
      access.location.id = device;
      access.flags = cudaMemAccessFlagsProtReadWrite;
      (void)cudaMemPoolSetAccess(pool, &access, 1);
    }
    (void)cudaGetLastError();
    __atomic_fetch_or(&peers, bit, __ATOMIC_RELEASE);
  }

  [[noreturn]] __attribute__((noinline, cold)) static void fail_memory(int device, std::size_t bytes) {
    (void)cudaGetLastError();
    std::size_t free = 0, total = 0;
    (void)cudaMemGetInfo(&free, &total);
    (void)cudaGetLastError();
    fail<OutOfMemory>("cuda:", device, ": cudaMallocAsync of ", bytes, " bytes failed: cudaErrorMemoryAllocation (out of memory): ", free, " of ", total,
                      " bytes are free, ", __atomic_load_n(&process_state().devices[device].allocated, __ATOMIC_RELAXED),
                      " are allocated by situ, ", reserved_bytes(device),
                      " are reserved by its pool: free tensors, call gpu::empty_cache(), use float16, or work on smaller parts");
  }
};

template <int>
using runtime_of = Runtime;

#else

inline int64_t reserved_bytes(int) noexcept { return 0; }

/// In a build without CUDA, using any of this is one error.
template <int N>
struct MissingRuntime {
  static_assert(N < 0, "situ: Cuda_needs_SITU_WITH_CUDA: this file is compiled without CUDA; link the CMake target situ::cuda (or define "
                       "SITU_WITH_CUDA and link cudart), or compile with nvcc");
  static void* allocate(int, std::size_t);
  static void deallocate(int, void*, std::size_t) noexcept;
  static void copy(int, void*, void const*, std::size_t);
  static void copy_from_host(int, void*, void const*, std::size_t);
  static void copy_to_host(int, void*, void const*, std::size_t);
  static void copy_from_peer(int, void*, int, void const*, std::size_t);
  static void synchronize(int);
};

template <int N>
using runtime_of = MissingRuntime<N>;

#endif

}  // namespace SITU_ABI_CUDA
}  // namespace detail::cuda
}  // namespace situ::inline SITU_ABI

namespace situ::inline SITU_ABI {
namespace detail {

template <class D>
inline constexpr bool is_cuda = false;
template <int N>
inline constexpr bool is_cuda<Cuda<N>> = true;

}  // namespace detail

/// Work goes to the device's current stream of the calling thread; the current CUDA device is left as it was.
template <int N>
struct device_traits<Cuda<N>> {
  static constexpr bool host_memory = false;
  static constexpr int ordinal = N;
  using kernels = cuda_kernels;

  static std::string name() { return "cuda:" + std::to_string(N); }
  static void* allocate(std::size_t bytes) { return detail::cuda::runtime_of<N>::allocate(N, bytes); }
  static void deallocate(void* memory, std::size_t bytes) noexcept { detail::cuda::runtime_of<N>::deallocate(N, memory, bytes); }
  static void copy(void* to, void const* from, std::size_t bytes) { detail::cuda::runtime_of<N>::copy(N, to, from, bytes); }
  static void copy_from_host(void* to, void const* from, std::size_t bytes) { detail::cuda::runtime_of<N>::copy_from_host(N, to, from, bytes); }
  static void copy_to_host(void* to, void const* from, std::size_t bytes) { detail::cuda::runtime_of<N>::copy_to_host(N, to, from, bytes); }
  /// Between GPUs: direct where the hardware can, never through situ's own host memory. Enqueued.
  template <class From>
    requires detail::is_cuda<From>
  static void copy_from(void* to, void const* from, std::size_t bytes) {
    detail::cuda::runtime_of<N>::copy_from_peer(N, to, From::ordinal, from, bytes);
  }
  static void synchronize() { detail::cuda::runtime_of<N>::synchronize(N); }
};

}  // namespace situ::inline SITU_ABI

namespace situ::inline SITU_ABI {

/// The name of a device, known at run time. Converts from every device, prints as `cpu`, `pinned`, `cuda:0`, `emulated:1`.
class AnyDevice {
 public:
  enum class kind : unsigned char { cpu, pinned, cuda, emulated, other };

  constexpr AnyDevice() = default;
  constexpr AnyDevice(Cpu) {}
  constexpr AnyDevice(Pinned) : AnyDevice(kind::pinned, 0) {}
  template <int N>
  constexpr AnyDevice(Cuda<N>) : AnyDevice(kind::cuda, N) {}
  template <int N>
  constexpr AnyDevice(Emulated<N>) : AnyDevice(kind::emulated, N) {}
  /// A device that the user has added.
  template <device D>
    requires(std::is_empty_v<D>)
  constexpr AnyDevice(D) : AnyDevice(kind::other, 0) {
    name_ = &device_traits<D>::name;
  }
  /// GPU number `ordinal`, whether it is there or not.
  static constexpr AnyDevice cuda(int ordinal) { return {kind::cuda, ordinal}; }

  constexpr kind type() const { return kind_; }
  /// The number in the name; 0 for devices without one.
  constexpr int ordinal() const { return ordinal_; }
  constexpr bool is_cuda() const { return kind_ == kind::cuda; }

  friend bool operator==(AnyDevice const& a, AnyDevice const& b) {
    if (a.kind_ != b.kind_ || a.ordinal_ != b.ordinal_) return false;
    return a.kind_ != kind::other || a.name_ == b.name_ || a.name_() == b.name_();
  }

  friend std::string to_string(AnyDevice const& d) {
    switch (d.kind_) {
      case kind::cpu: return "cpu";
      case kind::pinned: return "pinned";
      case kind::cuda: return "cuda:" + std::to_string(d.ordinal_);
      case kind::emulated: return "emulated:" + std::to_string(d.ordinal_);
      case kind::other: break;
    }
    return d.name_();
  }
  template <class Traits>
  friend std::basic_ostream<char, Traits>& operator<<(std::basic_ostream<char, Traits>& out, AnyDevice const& d) {
    return out << to_string(d).c_str();
  }

 private:
  constexpr AnyDevice(kind k, int ordinal) : kind_(k), ordinal_(ordinal) {}

  kind kind_ = kind::cpu;
  int ordinal_ = 0;
  std::string (*name_)() = nullptr;  ///< of a device that situ does not know
};

inline namespace SITU_ABI_CUDA {

/// Cuda i where it is present, else Cpu. Never throws.
inline AnyDevice try_gpu(int i = 0) noexcept {
  if (i >= 0 && i < detail::cuda::device_count()) return AnyDevice::cuda(i);
  return Cpu{};
}

/// All GPUs, in their order; { Cpu } where there is none.
inline std::vector<AnyDevice> try_all_gpus() {
  std::vector<AnyDevice> result;
  for (int i = 0; i < detail::cuda::device_count(); ++i) result.push_back(AnyDevice::cuda(i));
  if (result.empty()) result.push_back(Cpu{});
  return result;
}

}  // namespace SITU_ABI_CUDA

namespace detail {

template <class...>
struct device_list {};

inline namespace SITU_ABI_CUDA {

/// Whether this build can make tensors on D.
template <class D>
inline constexpr bool in_this_build = true;
#if !defined(SITU_WITH_CUDA)
template <int N>
inline constexpr bool in_this_build<Cuda<N>> = false;
#endif

template <class... Ds>
[[noreturn]] __attribute__((noinline, cold)) void fail_visit(AnyDevice const& d, device_list<Ds...>) {
  std::string list;
  bool left_out = false;
  ((list += (list.empty() ? "" : ", ") + to_string(AnyDevice(Ds{})), left_out = left_out || (d == AnyDevice(Ds{}) && !in_this_build<Ds>)), ...);
  if (left_out) fail<DeviceUnavailable>("visit: ", d, " is in the list, but not in this build: link situ::cuda, or compile with nvcc");
  fail<DeviceUnavailable>("visit: ", d, " is not among the devices that this call lists: ", list, "; add it to the template arguments of visit");
}

/// What f returns for the first listed device that this build has.
template <class F, class... Ds>
struct visit_result {
  static_assert(sizeof...(Ds) > 0, "situ::visit: this build has none of the listed devices");
};
template <class F, class D, class... Ds>
struct visit_result<F, D, Ds...> : visit_result<F, Ds...> {};
template <class F, class D, class... Ds>
  requires in_this_build<D>
struct visit_result<F, D, Ds...> {
  using type = decltype(std::declval<F>()(D{}));
};

template <class R, class List, class D, class... Ds, class F>
R visit_from(AnyDevice const& d, F&& f) {
  if constexpr (in_this_build<D>) {
    if (d == AnyDevice(D{})) return static_cast<F&&>(f)(D{});
  }
  if constexpr (sizeof...(Ds) > 0) return visit_from<R, List, Ds...>(d, static_cast<F&&>(f));
  else fail_visit(d, List{});
}

}  // namespace SITU_ABI_CUDA
}  // namespace detail

inline namespace SITU_ABI_CUDA {

/// Calls f with the tag of the device that d names: visit<Cpu, Cuda<0>>(d, [&](auto device) { train(device); }).
///
/// f is instantiated for the listed devices that this build has (without a list: Cpu and Cuda<0>), and returns one type for all
/// of them. Throws DeviceUnavailable for a device that is not in the list.
template <device... Ds, class F>
decltype(auto) visit(AnyDevice const& d, F&& f) {
  if constexpr (sizeof...(Ds) == 0) {
    return visit<Cpu, Cuda<0>>(d, static_cast<F&&>(f));
  } else {
    using R = typename detail::visit_result<F&&, Ds...>::type;
    return detail::visit_from<R, detail::device_list<Ds...>, Ds...>(d, static_cast<F&&>(f));
  }
}

}  // namespace SITU_ABI_CUDA
}  // namespace situ::inline SITU_ABI

// ---- <situ/device/emulated/device.hpp>
/// What `Emulated<N>` can do: a pretended accelerator that runs the CPU's kernels on memory and threads of its own.
///
/// Its memory faults when the host touches it, or a kernel of another device; launches, frees and copies within and
/// between devices are enqueued on its stream and run later; it runs out of memory, and faults can be injected. Code
/// that works here does not lean on anything that a GPU would not give.

#include <cstring>
#include <initializer_list>
#include <new>


// ---- <situ/device/emulated/stream.hpp>
/// The streams of emulated devices: queues of jobs, each with a host thread that starts with the first job.
///
/// A job runs after all that were enqueued before it on its stream, some time after the call that enqueued it returned.

#include <cstdlib>

#include <pthread.h>


// ---- <situ/device/emulated/memory.hpp>
/// The memory of an emulated device: a private range of addresses that the host cannot touch.
///
/// A pool is *open* while work of its device runs, and closed (every access faults) the rest of the time. What is free
/// is written down outside of the pool. In an AddressSanitizer build freed blocks and a margin behind every block are
/// poisoned.

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include <sys/mman.h>

#if SITU_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace situ::inline SITU_ABI {
namespace detail::emulated {

/// Blocks of one device. Callers hold the lock of the process state.
class Pool {
 public:
  static constexpr std::size_t alignment = 256;
  static constexpr std::size_t margin = SITU_ASAN ? 256 : 0;

  std::size_t capacity = 0;  ///< what blocks may take in all
  std::size_t used = 0;      ///< what they take, rounded up to the alignment
  int64_t blocks = 0;        ///< how many there are

  static constexpr std::size_t rounded(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

  /// Takes a range of addresses without memory behind it. False when there is none of that length.
  bool map(std::size_t bytes) {
    constexpr std::size_t page = std::size_t{2} << 20;
    if (bytes > SIZE_MAX / 4 || !make_room()) return false;
    bytes = rounded(bytes);
    std::size_t const range = SITU_ASAN ? 2 * bytes + margin : bytes;  // margins are not part of the capacity
    mapped_ = (range + page - 1) / page * page + page;
    void* const memory = ::mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return false;
    mapping_ = memory;
    base_ = static_cast<char*>(memory) + (page - reinterpret_cast<std::uintptr_t>(memory) % page) % page;
    open_bytes_ = mapped_ - page;
#if defined(MADV_HUGEPAGE)
    ::madvise(base_, open_bytes_, MADV_HUGEPAGE);  // opening and closing cost by the page
#endif
    if (opened_ > 0) ::mprotect(base_, open_bytes_, PROT_READ | PROT_WRITE);
    capacity = bytes;
    if (range > 0) insert(0, {0, range});
    return true;
  }
  void unmap() noexcept {
    std::free(pieces_);
    if (!mapping_) return;
#if SITU_ASAN
    __asan_unpoison_memory_region(base_, touched_);
#endif
    ::munmap(mapping_, mapped_);
    mapping_ = nullptr;
  }
  bool is_mapped() const { return mapping_ != nullptr; }

  /// The first place that is large enough; nullptr when there is none.
  void* take(std::size_t bytes) {
    if (bytes > capacity || rounded(bytes) > capacity - used || !make_room()) return nullptr;
    std::size_t const size = rounded(bytes);
    for (std::size_t k = 0; k < count_; ++k) {
      Piece& piece = pieces_[k];
      if (piece.size < size + margin) continue;
      char* const memory = base_ + piece.offset;
      piece.offset += size + margin;
      piece.size -= size + margin;
#if SITU_ASAN
      if (piece.offset > touched_) touched_ = piece.offset;
      __asan_poison_memory_region(memory, size + margin);
      __asan_unpoison_memory_region(memory, bytes);
#endif
      if (piece.size == 0) erase(k);
      used += size;
      ++blocks;
      return memory;
    }
    return nullptr;
  }
  void give(void* memory, std::size_t bytes) noexcept {
    std::size_t const size = rounded(bytes);
    Piece const piece{static_cast<std::size_t>(static_cast<char*>(memory) - base_), size + margin};
#if SITU_ASAN
    __asan_poison_memory_region(memory, size + margin);
#endif
    used -= size;
    --blocks;
    std::size_t low = 0, high = count_;  // to the first piece behind this one
    while (low < high) {
      std::size_t const middle = (low + high) / 2;
      if (pieces_[middle].offset < piece.offset)
        low = middle + 1;
      else
        high = middle;
    }
    if (low < count_ && piece.offset + piece.size == pieces_[low].offset) {
      pieces_[low] = {piece.offset, piece.size + pieces_[low].size};
    } else {
      insert(low, piece);
    }
    if (low > 0 && pieces_[low - 1].offset + pieces_[low - 1].size == piece.offset) {
      pieces_[low - 1].size += pieces_[low].size;
      erase(low);
    }
  }
  std::size_t largest_free() const {
    std::size_t largest = 0;
    for (std::size_t k = 0; k < count_; ++k) {
      if (pieces_[k].size > largest + margin) largest = pieces_[k].size - margin;
    }
    return largest < capacity - used ? largest : capacity - used;
  }

  void open() {
    if (opened_++ == 0 && mapping_) ::mprotect(base_, open_bytes_, PROT_READ | PROT_WRITE);
  }
  void close() {
    if (--opened_ == 0 && mapping_) ::mprotect(base_, open_bytes_, PROT_NONE);
  }

 private:
  struct Piece {
    std::size_t offset, size;
  };

  /// There are at most one more pieces than blocks, so that a block can always be given back.
  bool make_room() {
    std::size_t const needed = static_cast<std::size_t>(blocks) + 3;
    if (needed <= room_) return true;
    void* const grown = std::realloc(pieces_, 2 * needed * sizeof(Piece));
    if (!grown) return false;
    pieces_ = static_cast<Piece*>(grown);
    room_ = 2 * needed;
    return true;
  }
  void insert(std::size_t at, Piece piece) {
    std::memmove(pieces_ + at + 1, pieces_ + at, (count_++ - at) * sizeof(Piece));
    pieces_[at] = piece;
  }
  void erase(std::size_t at) { std::memmove(pieces_ + at, pieces_ + at + 1, (--count_ - at) * sizeof(Piece)); }

  void* mapping_ = nullptr;
  char* base_ = nullptr;
  std::size_t mapped_ = 0, open_bytes_ = 0;
  [[maybe_unused]] std::size_t touched_ = 0;
  int opened_ = 0;
  Piece* pieces_ = nullptr;  ///< what is free, by offset; no two touch
  std::size_t count_ = 0, room_ = 0;
};

}  // namespace detail::emulated
}  // namespace situ::inline SITU_ABI

namespace situ::inline SITU_ABI {
namespace emulated {

/// What one emulated device has done since it was configured.
struct counts {
  int64_t launches = 0;
  int64_t allocations = 0;
  int64_t bytes = 0;  ///< allocated now
  int64_t peak = 0;   ///< the most that was ever allocated
  int64_t copies_within = 0;
  int64_t copies_from_host = 0;
  int64_t copies_to_host = 0;
  int64_t copies_from_peer = 0;  ///< from other emulated devices to this one
  int64_t copies_to_peer = 0;
};

}  // namespace emulated

namespace detail::emulated {

/// Something to do on a stream. Derived jobs follow it in memory; `run` does the work and ends the job's life.
struct Job {
  void (*run)(Job*) noexcept;
  bool opens_memory = true;
  Job* next = nullptr;
};

struct Queue;
struct Device;

inline constexpr int max_devices = 256;

/// All that emulated devices share. One per process, and never destroyed: tensors may outlive main.
struct State {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;   ///< guards everything of every device
  pthread_cond_t progress = PTHREAD_COND_INITIALIZER;  ///< a job has ended, or two streams have met
  int device_count = 2;
  std::size_t memory = std::size_t{1} << 30;
  int64_t operations = 0, fail_at = -1;
  bool at_exit = false;  ///< end_threads is registered
  bool ended = false;    ///< the program is ending: what comes now runs at once, on the caller's thread
  Device* devices[max_devices] = {};
};

SITU_PROCESS_STATE State& state() {
  static constinit State state;
  return state;
}

class Lock {
 public:
  Lock() { ::pthread_mutex_lock(&state().mutex); }
  Lock(Lock const&) = delete;
  Lock& operator=(Lock const&) = delete;
  ~Lock() { ::pthread_mutex_unlock(&state().mutex); }
};

/// A stream: jobs in their order, and the thread that runs them. Callers hold the lock, except for run_now's job
/// itself.
struct Queue {
  Pool* pool;
  Job* first = nullptr;
  Job* last = nullptr;
  int64_t enqueued = 0, finished = 0;
  bool running = false, stopping = false;
  pthread_t thread = {};
  pthread_cond_t work = PTHREAD_COND_INITIALIZER;

  explicit Queue(Pool& memory) : pool(&memory) {}

  /// Whether jobs can wait here: starts the thread. Without one, jobs run where they are enqueued.
  bool start();

  /// The job's number, to wait for.
  int64_t enqueue(Job* job) {
    if (!start()) {
      run_now(job);
      ++enqueued;
      return ++finished;
    }
    (last ? last->next : first) = job;
    last = job;
    ::pthread_cond_signal(&work);
    return ++enqueued;
  }
  void wait(int64_t number) {
    while (finished < number) ::pthread_cond_wait(&state().progress, &state().mutex);
  }
  void drain() { wait(enqueued); }

  /// Runs what is left, and ends the thread.
  void stop() {
    if (!running) return;
    stopping = true;
    ::pthread_cond_signal(&work);
    ::pthread_mutex_unlock(&state().mutex);
    ::pthread_join(thread, nullptr);
    ::pthread_mutex_lock(&state().mutex);
    running = stopping = false;
    ::pthread_cond_broadcast(&state().progress);
  }

 private:
  void run_now(Job* job) {
    bool const opens = job->opens_memory;
    if (opens) pool->open();
    ::pthread_mutex_unlock(&state().mutex);
    job->run(job);
    ::pthread_mutex_lock(&state().mutex);
    if (opens) pool->close();
  }

  /// The memory stays open from job to job, and is closed before anybody hears that the last one has ended.
  static void* run_jobs(void* argument) {
    Queue& self = *static_cast<Queue*>(argument);
    bool opened = false;
    Lock const lock;
    for (;;) {
      while (!self.first && !self.stopping) ::pthread_cond_wait(&self.work, &state().mutex);
      Job* const job = self.first;
      if (!job) return nullptr;
      self.first = job->next;
      if (!self.first) self.last = nullptr;
      if (job->opens_memory && !opened) self.pool->open(), opened = true;
      ::pthread_mutex_unlock(&state().mutex);
      job->run(job);
      ::pthread_mutex_lock(&state().mutex);
      if (!self.first && opened) self.pool->close(), opened = false;
      ++self.finished;
      ::pthread_cond_broadcast(&state().progress);
    }
  }
};

/// One device: what it has, and what was done with it.
struct Device {
  Pool pool{};
  Queue stream{pool};
  situ::emulated::counts counts{};
};

/// Runs everything that is left when the program ends, so that no thread outlives what it uses.
inline void end_threads() {
  Lock const lock;
  State& all = state();
  for (Device* device : all.devices) {
    if (device) device->stream.drain();
  }
  all.ended = true;
  for (Device* device : all.devices) {
    if (device) device->stream.stop();
  }
}

inline bool Queue::start() {
  State& all = state();
  while (stopping) ::pthread_cond_wait(&all.progress, &all.mutex);
  if (running) return true;
  if (all.ended) return false;
  if (!all.at_exit) all.at_exit = std::atexit(&end_threads) == 0;
  running = ::pthread_create(&thread, nullptr, &run_jobs, this) == 0;
  return running;
}

}  // namespace detail::emulated
}  // namespace situ::inline SITU_ABI

namespace situ::inline SITU_ABI {
namespace emulated {

/// What configure() sets.
struct configuration {
  int devices = 2;                            ///< how many there are: 0 to 256
  std::size_t memory = std::size_t{1} << 30;  ///< of each, in bytes
  int64_t fail_at = -1;  ///< the operation that fails, counted from 0 over all devices; -1 for none
};

/// A launch or a copy that failed because configure() was told so. An allocation fails with OutOfMemory instead.
struct SITU_EXCEPTION InjectedFault : Error {
  using Error::Error;
};

}  // namespace emulated

namespace detail::emulated {

/// A piece of a message. A list of them compiles faster than an overload for each.
struct Part {
  char const* words = nullptr;
  long long number = 0;
  constexpr Part(char const* text) : words(text) {}
  constexpr Part(int64_t value) : number(value) {}
  constexpr Part(std::size_t value) : number(static_cast<long long>(value)) {}
  constexpr Part(int value) : number(value) {}
};
inline std::string message(std::initializer_list<Part> parts) {
  std::string result;
  for (Part const& part : parts) part.words ? result.append(part.words) : result.append(std::to_string(part.number));
  return result;
}

/// The device of a number. Callers hold the lock here and below, unless a function takes it.
inline Device& find(int ordinal) {
  State& all = state();
  if (ordinal >= all.device_count) {
    throw DeviceUnavailable(message({"emulated:", ordinal, ": there is no such device: ", all.device_count,
                                     all.device_count == 1 ? " device is" : " devices are",
                                     " configured; emulated::configure({.devices = ", ordinal + 1, "}) makes more"}));
  }
  Device*& device = all.devices[ordinal];
  if (!device) device = new Device;
  return *device;
}

/// The device, for an operation that is counted. Throws E when it is the one that was told to fail.
template <class E>
Device& begin(int ordinal, char const* what, int64_t situ::emulated::counts::*counter) {
  Device& device = find(ordinal);
  int64_t const number = state().operations++;
  if (number == state().fail_at) {
    throw E(message({"emulated:", ordinal, ": ", what, " failed: operation ", number,
                     " was made to fail by emulated::configure({.fail_at = ", number, "}); the next operation works"}));
  }
  ++(device.counts.*counter);
  return device;
}

inline void* allocate(int ordinal, std::size_t bytes) {
  Lock const lock;
  Device& device = begin<OutOfMemory>(ordinal, "allocation", &situ::emulated::counts::allocations);
  Pool& pool = device.pool;
  auto& counts = device.counts;
  if (!pool.is_mapped() && !pool.map(state().memory)) {
    --counts.allocations;
    throw OutOfMemory(
        message({"emulated:", ordinal, ": allocation of ", bytes, " bytes failed: the system has no address range of ",
                 state().memory, " bytes for this device; emulated::configure({.memory = ...}) makes it smaller"}));
  }
  void* memory = pool.take(bytes);
  if (!memory) {
    device.stream.drain();  // frees may be waiting there
    memory = pool.take(bytes);
  }
  if (!memory) {
    --counts.allocations;
    throw OutOfMemory(message({"emulated:", ordinal, ": allocation of ", bytes,
                               " bytes failed: ", pool.capacity - pool.used, " of ", pool.capacity,
                               " bytes are free, the largest free block has ", pool.largest_free(), ", and ", pool.used,
                               " are allocated by situ: free tensors, work on smaller parts, or give the device more "
                               "with emulated::configure({.memory = ...})"}));
  }
  counts.bytes += static_cast<int64_t>(bytes);
  if (counts.bytes > counts.peak) counts.peak = counts.bytes;
  return memory;
}

struct FreeJob : Job {
  Pool* pool;
  void* memory;
  std::size_t bytes;
};

/// Takes effect when everything that is enqueued has run.
inline void deallocate(int ordinal, void* memory, std::size_t bytes) noexcept {
  constexpr auto run = [](Job* job) noexcept {
    auto* const self = static_cast<FreeJob*>(job);
    {
      Lock const lock;
      self->pool->give(self->memory, self->bytes);
    }
    delete self;
  };
  Lock const lock;
  Device& device = *state().devices[ordinal];
  device.counts.bytes -= static_cast<int64_t>(bytes);
  if (auto* const job = new (std::nothrow) FreeJob{{+run, false}, &device.pool, memory, bytes}) {
    device.stream.enqueue(job);
  } else {
    device.stream.drain();
    device.pool.give(memory, bytes);
  }
}

struct CopyJob : Job {
  void* to;
  void const* from;
  std::size_t bytes;
};

/// A copy on one device's stream; waited for when the host takes part in it.
inline void copy(int ordinal, void* to, void const* from, std::size_t bytes,
                 int64_t situ::emulated::counts::*direction) {
  constexpr auto run = [](Job* job) noexcept {
    auto* const self = static_cast<CopyJob*>(job);
    std::memcpy(self->to, self->from, self->bytes);
    delete self;
  };
  if (bytes == 0) return;
  Lock const lock;
  Device& device = begin<situ::emulated::InjectedFault>(ordinal, "copy", direction);
  int64_t const number = device.stream.enqueue(new CopyJob{{+run}, to, from, bytes});
  if (direction != &situ::emulated::counts::copies_within) device.stream.wait(number);
}

/// Two streams meet: the source's stands still while the target's copies.
struct Meeting {
  enum { apart, source_is_there, done } stage = apart;
  Pool* source;
};
struct MeetingJob : Job {
  Meeting* meeting;
};
struct PeerCopyJob : CopyJob {
  Meeting* meeting;
};

/// Runs after everything that is enqueued on either device, and before everything that will be.
inline void copy_from_peer(int ordinal, int source_ordinal, void* to, void const* from, std::size_t bytes) {
  constexpr auto wait_for_copy = [](Job* job) noexcept {
    auto* const self = static_cast<MeetingJob*>(job);
    {
      Lock const lock;
      self->meeting->stage = Meeting::source_is_there;
      ::pthread_cond_broadcast(&state().progress);
      while (self->meeting->stage != Meeting::done) ::pthread_cond_wait(&state().progress, &state().mutex);
    }
    delete self->meeting;
    delete self;
  };
  constexpr auto run = [](Job* job) noexcept {
    auto* const self = static_cast<PeerCopyJob*>(job);
    Meeting& meeting = *self->meeting;
    {
      Lock const lock;
      while (meeting.stage != Meeting::source_is_there) ::pthread_cond_wait(&state().progress, &state().mutex);
      meeting.source->open();
    }
    std::memcpy(self->to, self->from, self->bytes);
    {
      Lock const lock;
      meeting.source->close();
      meeting.stage = Meeting::done;
      ::pthread_cond_broadcast(&state().progress);
    }
    delete self;
  };
  if (bytes == 0) return;
  Lock const lock;
  Device& source = find(source_ordinal);
  Device& target = begin<situ::emulated::InjectedFault>(ordinal, "copy", &situ::emulated::counts::copies_from_peer);
  ++source.counts.copies_to_peer;
  bool const threads = source.stream.start() && target.stream.start();
  if (!threads) {
    source.stream.drain();
    target.stream.drain();
    source.pool.open();
    target.pool.open();
    std::memcpy(to, from, bytes);
    source.pool.close();
    target.pool.close();
    return;
  }
  // Both are enqueued under one lock, so that all streams see all meetings in the same order and never wait in a
  // circle.
  auto* const meeting = new Meeting{Meeting::apart, &source.pool};
  auto* const copies = new PeerCopyJob{{{+run}, to, from, bytes}, meeting};
  source.stream.enqueue(new MeetingJob{{+wait_for_copy, false}, meeting});
  target.stream.enqueue(copies);
}

template <class Kernel>
struct KernelJob : Job {
  Kernel kernel;
  int64_t items;

  static void run_kernel(Job* job) noexcept {
    auto* const self = static_cast<KernelJob*>(job);
    self->kernel(int64_t{0}, self->items);
    delete self;
  }
};

inline void count_launch(int ordinal) {
  Lock const lock;
  begin<situ::emulated::InjectedFault>(ordinal, "launch", &situ::emulated::counts::launches);
}
inline void enqueue(int ordinal, Job* job) {
  Lock const lock;
  state().devices[ordinal]->stream.enqueue(job);
}

inline void synchronize(int ordinal) {
  Lock const lock;
  find(ordinal).stream.drain();
}

template <class D>
inline constexpr int ordinal_of = -1;
template <int N>
inline constexpr int ordinal_of<Emulated<N>> = N;

}  // namespace detail::emulated

namespace emulated {

/// How many emulated devices exist: Emulated<0> to Emulated<device_count() - 1>.
inline int device_count() {
  detail::emulated::Lock const lock;
  return detail::emulated::state().device_count;
}

/// What a device has done since it was configured. Throws DeviceUnavailable.
inline counts statistics(int ordinal) {
  detail::emulated::Lock const lock;
  return detail::emulated::find(ordinal).counts;
}

/// Makes the emulated devices anew, with counts that start at 0. Waits for what they still do.
///
/// Throws    Error while memory of a device is allocated, or when there are to be less than 0 or more than 256; nothing
/// is changed then. Threads   not beside other work with these devices. Example   emulated::configure({.devices = 4,
/// .memory = 1 << 20});
inline void configure(configuration const& asked = {}) {
  detail::emulated::Lock const lock;
  auto& all = detail::emulated::state();
  if (asked.devices < 0 || asked.devices > detail::emulated::max_devices) {
    throw Error(
        detail::emulated::message({"emulated::configure: ", asked.devices,
                                   " devices were asked for; there can be 0 to ", detail::emulated::max_devices}));
  }
  for (int k = 0; k < all.device_count; ++k) {
    auto* const device = all.devices[k];
    if (!device) continue;
    device->stream.drain();
    if (device->pool.blocks > 0) {
      throw Error(detail::emulated::message({"emulated::configure: emulated:", k, " still holds ", device->pool.blocks,
                                             device->pool.blocks == 1 ? " allocation" : " allocations", " of ",
                                             device->counts.bytes, " bytes in all: destroy the tensors on it first"}));
    }
  }
  for (int k = 0; k < all.device_count; ++k) {
    auto*& device = all.devices[k];
    if (!device) continue;
    device->stream.stop();
    device->pool.unmap();
    delete device;
    device = nullptr;
  }
  all.device_count = asked.devices;
  all.memory = asked.memory;
  all.operations = 0;
  all.fail_at = asked.fail_at;
}

}  // namespace emulated

template <int N>
struct device_traits<Emulated<N>> {
  static constexpr bool host_memory = false;
  using kernels = cpu_kernels;

  static std::string name() { return "emulated:" + std::to_string(N); }
  static void* allocate(std::size_t bytes) { return detail::emulated::allocate(N, bytes); }
  static void deallocate(void* memory, std::size_t bytes) noexcept { detail::emulated::deallocate(N, memory, bytes); }
  static void copy(void* to, void const* from, std::size_t bytes) {
    detail::emulated::copy(N, to, from, bytes, &emulated::counts::copies_within);
  }
  static void copy_from_host(void* to, void const* from, std::size_t bytes) {
    detail::emulated::copy(N, to, from, bytes, &emulated::counts::copies_from_host);
  }
  static void copy_to_host(void* to, void const* from, std::size_t bytes) {
    detail::emulated::copy(N, to, from, bytes, &emulated::counts::copies_to_host);
  }
  template <class From>
    requires(detail::emulated::ordinal_of<From> >= 0)
  static void copy_from(void* to, void const* from, std::size_t bytes) {
    detail::emulated::copy_from_peer(N, detail::emulated::ordinal_of<From>, to, from, bytes);
  }
  /// The kernel is copied, and runs later on the thread of the device's stream.
  template <class Kernel>
  static void launch(Kernel const& kernel, int64_t items, int64_t /*grain*/) {
    static_assert(std::is_trivially_copyable_v<Kernel>,
                  "situ: a kernel is trivially copyable: it holds pointers and numbers, no owners");
    using Job = detail::emulated::KernelJob<Kernel>;
    detail::emulated::count_launch(N);
    detail::emulated::enqueue(N, new Job{{&Job::run_kernel}, kernel, items});
  }
  static void synchronize() { detail::emulated::synchronize(N); }
};

}  // namespace situ::inline SITU_ABI

// ---- <situ/device/pinned.hpp>
/// What `Pinned` can do: host memory that GPUs reach directly. Page-locked where CUDA is compiled in and there is a GPU.

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <new>


namespace situ::inline SITU_ABI {
namespace detail {

/// How page-locked memory is had: set by files that are compiled with CUDA, so that all others share it. One per process.
struct PinnedHooks {
  void* (*allocate)(std::size_t bytes);  ///< null where nothing can be locked; throws OutOfMemory
  void (*deallocate)(void* memory) noexcept;
};

SITU_PROCESS_STATE PinnedHooks& pinned_hooks() {
  static constinit PinnedHooks hooks{};
  return hooks;
}

/// In front of every block: how it is freed, since blocks may be older than the hooks.
struct PinnedHead {
  static constexpr std::size_t bytes = 64;
  void (*deallocate)(void* memory) noexcept;  ///< null: ordinary memory
};

inline void* allocate_pinned(std::size_t bytes) {
  PinnedHooks const hooks = pinned_hooks();
  void* block = nullptr;
  auto deallocate = hooks.deallocate;
  if (bytes > SIZE_MAX - PinnedHead::bytes) cpu::out_of_memory(bytes);
  if (hooks.allocate) block = hooks.allocate(bytes + PinnedHead::bytes);
  if (!block) {
    block = cpu::allocate(bytes + PinnedHead::bytes);
    deallocate = nullptr;
  }
  ::new (block) PinnedHead{deallocate};
  return static_cast<char*>(block) + PinnedHead::bytes;
}

inline void deallocate_pinned(void* memory, std::size_t bytes) noexcept {
  void* const block = static_cast<char*>(memory) - PinnedHead::bytes;
  auto const deallocate = static_cast<PinnedHead*>(block)->deallocate;
  if (deallocate) deallocate(block);
  else cpu::deallocate(block, bytes + PinnedHead::bytes);
}

#if defined(SITU_WITH_CUDA)
namespace cuda {
inline namespace SITU_ABI_CUDA {

inline void* allocate_page_locked(std::size_t bytes) {
  if (device_count() == 0) return nullptr;
  void* memory = nullptr;
  cudaError_t const code = cudaHostAlloc(&memory, bytes, cudaHostAllocPortable);
  if (code == cudaSuccess) return memory;
  (void)cudaGetLastError();
  if (code == cudaErrorMemoryAllocation) {
    fail<OutOfMemory>("pinned: cudaHostAlloc of ", bytes, " bytes failed: the system cannot lock that much memory: free pinned tensors, raise the limit "
                      "(ulimit -l), or use Cpu");
  }
  fail<CudaError>("pinned: cudaHostAlloc of ", bytes, " bytes failed: ", cudaGetErrorName(code), " (", cudaGetErrorString(code), ")");
}

inline void deallocate_page_locked(void* memory) noexcept {
  cudaError_t const code = cudaFreeHost(memory);
  if (code == cudaSuccess || code == cudaErrorCudartUnloading || code == cudaErrorContextIsDestroyed) return;
  (void)cudaGetLastError();
  std::fprintf(stderr, "situ: pinned: cudaFreeHost failed: %s (%s)\n", cudaGetErrorName(code), cudaGetErrorString(code));
}

inline bool const pinned_hooks_are_set = [] {
  pinned_hooks() = {&allocate_page_locked, &deallocate_page_locked};
  return true;
}();

}  // namespace SITU_ABI_CUDA
}  // namespace cuda
#endif

}  // namespace detail

template <>
struct device_traits<Pinned> {
  static constexpr bool host_memory = true;
  static constexpr bool immediate = true;
  static constexpr bool head_before_data = true;
  using kernels = cpu_kernels;
  using result_device = Cpu;

  static std::string name() { return "pinned"; }
  static void* allocate(std::size_t bytes) { return detail::allocate_pinned(bytes); }
  static void deallocate(void* memory, std::size_t bytes) noexcept { detail::deallocate_pinned(memory, bytes); }
  static void copy(void* to, void const* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
  static void copy_from_host(void* to, void const* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
  static void copy_to_host(void* to, void const* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
  template <class Kernel>
  static void launch(Kernel const& kernel, int64_t items, int64_t grain) {
    detail::cpu::launch(kernel, items, grain);
  }
  static void synchronize() {}
};

}  // namespace situ::inline SITU_ABI

// ---- <situ/device/query.hpp>
/// Questions about GPUs and memory. They work in every build: without CUDA there is no GPU, and it holds nothing.

#include <string>


namespace situ::inline SITU_ABI {
namespace gpu {

/// Bytes of a GPU's memory.
struct MemoryInfo {
  int64_t free = 0, total = 0;
};

inline namespace SITU_ABI_CUDA {

/// How many GPUs this program can use: 0 in a build without CUDA, without a driver, and without a GPU.
inline int device_count() noexcept { return detail::cuda::device_count(); }

/// Whether there is a GPU.
inline bool is_available() noexcept { return device_count() > 0; }

/// The name of GPU i, as its maker calls it. Throws DeviceUnavailable when there is no such GPU.
inline std::string device_name([[maybe_unused]] int i = 0) {
#if defined(SITU_WITH_CUDA)
  detail::cuda::require_device(i);
  cudaDeviceProp properties;
  detail::cuda::check(i, cudaGetDeviceProperties(&properties, i), "cudaGetDeviceProperties");
  return properties.name;
#else
  detail::fail<DeviceUnavailable>("cuda:", i, ": there is no such device: this program was built without CUDA");
#endif
}

/// The free and the total memory of GPU i; zeros where there is no such GPU. What situ's pool keeps counts as used.
inline MemoryInfo memory_info([[maybe_unused]] int i = 0) {
#if defined(SITU_WITH_CUDA)
  if (i >= 0 && i < device_count()) {
    detail::cuda::DeviceGuard const guard(i);
    std::size_t free = 0, total = 0;
    detail::cuda::check(i, cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return {static_cast<int64_t>(free), static_cast<int64_t>(total)};
  }
#endif
  return {};
}

/// Bytes of the device's memory that are held for tensors, those in use and those kept for reuse. The host's count is of blocks from
/// 1 MiB on.
inline int64_t memory_reserved(AnyDevice const& d) {
  if (d.is_cuda()) return detail::cuda::reserved_bytes(d.ordinal());
  if (d.type() != AnyDevice::kind::cpu) return 0;
  detail::cpu::MemoryState const& state = detail::cpu::memory_state();
  return __atomic_load_n(&state.allocated, __ATOMIC_RELAXED) + __atomic_load_n(&state.kept, __ATOMIC_RELAXED);
}
inline int64_t memory_reserved(int i) { return memory_reserved(AnyDevice::cuda(i)); }

/// Gives memory that is kept for reuse back to the system: the host's, and that of the GPUs that were used. Waits for those.
inline void empty_cache() {
  detail::cpu::empty_cache();
#if defined(SITU_WITH_CUDA)
  for (int i = 0; i < device_count(); ++i) {
    if (!__atomic_load_n(&detail::cuda::process_state().devices[i].ready, __ATOMIC_ACQUIRE)) continue;
    detail::cuda::DeviceGuard const guard(i);
    cudaMemPool_t pool = nullptr;
    detail::cuda::check(i, cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    detail::cuda::check(i, cudaDeviceGetDefaultMemPool(&pool, i), "cudaDeviceGetDefaultMemPool");
    detail::cuda::check(i, cudaMemPoolTrimTo(pool, 0), "cudaMemPoolTrimTo");
  }
#endif
}

}  // namespace SITU_ABI_CUDA

/// Bytes that tensors hold on the device (a tag, an AnyDevice, or the number of a GPU). The host's count is of blocks from 1 MiB on.
inline int64_t memory_allocated(AnyDevice const& d) {
  if (d.is_cuda() && d.ordinal() >= 0 && d.ordinal() < detail::cuda::max_devices) {
    return __atomic_load_n(&detail::cuda::process_state().devices[d.ordinal()].allocated, __ATOMIC_RELAXED);
  }
  return d.type() == AnyDevice::kind::cpu ? __atomic_load_n(&detail::cpu::memory_state().allocated, __ATOMIC_RELAXED) : 0;
}

/// The most that memory_allocated has been.
inline int64_t max_memory_allocated(AnyDevice const& d) {
  if (d.is_cuda() && d.ordinal() >= 0 && d.ordinal() < detail::cuda::max_devices) {
    return __atomic_load_n(&detail::cuda::process_state().devices[d.ordinal()].peak, __ATOMIC_RELAXED);
  }
  return d.type() == AnyDevice::kind::cpu ? __atomic_load_n(&detail::cpu::memory_state().peak, __ATOMIC_RELAXED) : 0;
}
inline int64_t memory_allocated(int i) { return memory_allocated(AnyDevice::cuda(i)); }
inline int64_t max_memory_allocated(int i) { return max_memory_allocated(AnyDevice::cuda(i)); }

}  // namespace gpu
}  // namespace situ::inline SITU_ABI

// ---- <situ/expr.hpp>
/// Expression templates: functions with their derivatives, nodes, lowering, evaluation.


// ---- <situ/expr/evaluate.hpp>
/// Evaluation: an expression is bound to memory and launched on its device, as one kernel.


// ---- <situ/expr/cpu/launch.hpp>
/// Launching a tree on the CPU: contiguous operands at once, everything else through tiles.
///
/// What is instantiated per expression is its loop, once for every instruction set, and little else: the kernels below know a tree
/// by its bytes and by the function that runs it, so that expressions with as many operands share them.


// ---- <situ/expr/cpu/evaluate.hpp>
/// Evaluation of a tree in packs: the one loop of a CPU kernel.


// ---- <situ/expr/cpu/dispatch.hpp>
/// One function body compiled for every instruction set, chosen at run time, so that a plain -O2 build is fast.


// ---- <situ/expr/pack.hpp>
/// Vector packs: N lanes of T on the compiler's vector extension, for one instruction set.
///
/// A *pack* `pack<T, N, Isa>` holds N numbers; a *mask* `mask<Bytes, N, Isa>` holds N truth values as lanes of Bytes
/// bytes, all ones or all zeros. Everything here is inlined into the kernel that uses it and is compiled for that
/// kernel's instruction set; `Isa` tells what that set offers. Packs are passed by reference, and their copy
/// constructor is not trivial, so that a call that is not inlined passes them in memory whatever the flags are.

#include <cstddef>


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
struct mask {
  static constexpr int lanes = N;
  using lane_type = detail::signed_of_bytes<Bytes>;
  using vector = typename detail::vector_of<lane_type, N>::type;
  vector v;

  SITU_INLINE mask() = default;
  SITU_INLINE explicit mask(vector const& from) : v(from) {}
  SITU_INLINE explicit mask(bool all) : v(vector{} - static_cast<lane_type>(all)) {}
  SITU_INLINE mask(mask const& from) : v(from.v) {}
  SITU_INLINE mask& operator=(mask const& from) {
    v = from.v;
    return *this;
  }
  SITU_INLINE bool operator[](int lane) const { return v[lane] != 0; }

  /// The same truth values as lanes of another size.
  template <int Other>
  SITU_INLINE mask<Other, N, Isa> as() const {
    if constexpr (Other == Bytes) return *this;
    else return mask<Other, N, Isa>(__builtin_convertvector(v, typename mask<Other, N, Isa>::vector));
  }

  /// g++ 12 takes masks that are combined apart into single lanes where masks have registers of their own: keep one whole.
  SITU_INLINE mask held() const {
    mask result(*this);
    detail::hold<Isa>(result.v);
    return result;
  }
  SITU_INLINE friend mask operator!(mask const& a) { return mask(vector(~a.v)); }
  SITU_INLINE friend mask operator&(mask const& a, mask const& b) { return mask(vector(a.held().v & b.v)); }
  SITU_INLINE friend mask operator|(mask const& a, mask const& b) { return mask(vector(a.held().v | b.v)); }
  SITU_INLINE friend mask operator^(mask const& a, mask const& b) { return mask(vector(a.held().v ^ b.v)); }
};

/// Masks of different lane sizes meet at the size of the left one.
template <int A, int B, int N, class Isa>
  requires(A != B)
SITU_INLINE mask<A, N, Isa> operator&(mask<A, N, Isa> const& a, mask<B, N, Isa> const& b) {
  return a & b.template as<A>();
}
template <int A, int B, int N, class Isa>
  requires(A != B)
SITU_INLINE mask<A, N, Isa> operator|(mask<A, N, Isa> const& a, mask<B, N, Isa> const& b) {
  return a | b.template as<A>();
}
template <int A, int B, int N, class Isa>
  requires(A != B)
SITU_INLINE mask<A, N, Isa> operator^(mask<A, N, Isa> const& a, mask<B, N, Isa> const& b) {
  return a ^ b.template as<A>();
}

template <class T, int N, class Isa>
struct pack {
  static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>, "16-bit floats compute as float, bool as mask");
  static constexpr int lanes = N;
  using value_type = T;
  using isa_type = Isa;
  using mask_type = mask<static_cast<int>(sizeof(T)), N, Isa>;
  using vector = typename detail::vector_of<T, N>::type;
  vector v;

  SITU_INLINE pack() = default;
  SITU_INLINE explicit pack(vector const& from) : v(from) {}
  SITU_INLINE explicit pack(T all) : v(vector{} + all) {
    if constexpr (std::is_floating_point_v<T>) {  // 0 + -0 would lose the sign
      for (int k = 0; k < N; ++k) v[k] = all;
    }
  }
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
SITU_INLINE pack<T, N, Isa> select(mask<static_cast<int>(sizeof(T)), N, Isa> const& m, pack<T, N, Isa> const& a,
                                   pack<T, N, Isa> const& b) {
  return pack<T, N, Isa>(typename pack<T, N, Isa>::vector(m.v ? a.v : b.v));
}
template <int Bytes, class T, int N, class Isa>
  requires(Bytes != static_cast<int>(sizeof(T)))
SITU_INLINE pack<T, N, Isa> select(mask<Bytes, N, Isa> const& m, pack<T, N, Isa> const& a, pack<T, N, Isa> const& b) {
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
SITU_INLINE bool any_of(mask<Bytes, N, Isa> const& m) {
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
  return pack<T, N, Isa>(__arithmetic_fence(a.v));
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
inline constexpr bool is_mask<mask<Bytes, N, Isa>> = true;
}  // namespace detail
}  // namespace situ::inline SITU_ABI

namespace situ::inline SITU_ABI {
namespace detail::cpu {

#if SITU_X86
#if defined(__clang__)
#define SITU_TARGET_AVX512 target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma"), min_vector_width(512)
#else
#define SITU_TARGET_AVX512 target("avx512f,avx512vl,avx512bw,avx512dq,avx2,fma,prefer-vector-width=512")
#endif
template <class Body, class... Args>
__attribute__((SITU_TARGET_AVX512, noinline)) auto run_avx512(Args... args) {
  return Body::template run<isa::avx512>(args...);
}
template <class Body, class... Args>
__attribute__((target("avx2,fma"), noinline)) auto run_avx2(Args... args) {
  return Body::template run<isa::avx2>(args...);
}
#undef SITU_TARGET_AVX512
#endif
template <class Body, class... Args>
__attribute__((noinline)) auto run_baseline(Args... args) {
  return Body::template run<isa::baseline>(args...);
}

struct not_run {
  template <class T>
  operator T() const {
    return T();
  }
};

/// Body::run<Isa>(args...) for the instruction set in force. `run` is SITU_INLINE; arguments are scalars and pointers.
template <class Body, class... Args>
SITU_INLINE auto dispatch([[maybe_unused]] Args... args) {
#if defined(__CUDA_ARCH__)
  return not_run{};  // nvcc's pass for the device: no host code comes out of it, and functions for both sides may hold no vectors there
#else
#if SITU_X86
  instruction_set const set = current_instruction_set();
  if (SITU_LIKELY(set == instruction_set::avx512)) return run_avx512<Body>(args...);
  if (set == instruction_set::avx2) return run_avx2<Body>(args...);
#endif
  return run_baseline<Body>(args...);
#endif
}

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI

// ---- <situ/expr/cpu/tail.hpp>
/// Tails: the last elements of a run, fewer than a pack has lanes, go through buffers of one register's size.

#include <cstdint>


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
  if (size == 4) __asm__("vpbroadcastd %1, %0" : "=v"(x) : "m"(*reinterpret_cast<char const(*)[4]>(last)));
  else if (size == 8) __asm__("vpbroadcastq %1, %0" : "=v"(x) : "m"(*reinterpret_cast<char const(*)[8]>(last)));
  else if (size == 2) __asm__("vpbroadcastw %1, %0" : "=v"(x) : "m"(*reinterpret_cast<char const(*)[2]>(last)));
  else __asm__("vpbroadcastb %1, %0" : "=v"(x) : "m"(*last));
  __asm__("vmovdqu8 %1, %0%{%2%}" : "+v"(x) : "m"(*reinterpret_cast<char const(*)[64]>(from)), "Yk"(mask));
  *reinterpret_cast<tail_register*>(to) = x;
}
__attribute__((target("avx512f,avx512bw"), noinline)) inline void pad_with_masks(unsigned char (*buffers)[64], void const* const* data, int const* sizes,
                                                                                  int operands, int64_t done, int count) {
  for (int o = 1; o < operands; ++o) pad_with_mask(buffers[o], static_cast<char const*>(data[o]) + done * sizes[o], count, sizes[o]);
}
#endif

/// Brings `count` elements of every input, from element `done` on, to `buffers`, padded.
inline void load_tails(unsigned char (*buffers)[64], void const* const* data, int const* sizes, int operands, int64_t done, int count) {
#if SITU_X86
  if (SITU_LIKELY(current_instruction_set() == instruction_set::avx512)) return pad_with_masks(buffers, data, sizes, operands, done, count);
#endif
  for (int o = 1; o < operands; ++o) pad_short(buffers[o], static_cast<char const*>(data[o]) + done * sizes[o], count, sizes[o]);
}
}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI

// ---- <situ/expr/lanes.hpp>
/// Lanes: how elements of every type become packs and masks, are converted between types, and are stored again.
///
/// In a kernel a number is a `pack` of compute_t<T>, a bool is a `mask`. 16-bit floats are widened to float when
/// they are loaded and rounded once, when they are stored.


namespace situ::inline SITU_ABI {
namespace detail {

/// What N lanes of element type T are in a kernel for Isa.
template <class T, int N, class Isa>
struct lanes {
  using type = pack<compute_t<T>, N, Isa>;
};
template <int N, class Isa>
struct lanes<bool, N, Isa> {
  using type = mask<1, N, Isa>;
};
template <class T, int N, class Isa>
using lanes_t = typename lanes<T, N, Isa>::type;

template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> widen_half(pack<uint16_t, N, Isa> const& half) {
  using U = pack<uint32_t, N, Isa>;
  using F = pack<float, N, Isa>;
  U const wide = convert_unchecked<uint32_t>(half);
  U const sign = (wide & U(0x8000u)) << 16;
  U const magnitude = wide & U(0x7fffu);
  // Normal numbers move their exponent; subnormal ones are magnitude * 2^-24; infinities and NaN keep all ones.
  U const normal = (magnitude << 13) + U(0x38000000u);
  U const tiny = bitcast<uint32_t>(convert_unchecked<float>(bitcast<int32_t>(magnitude)) * F(5.9604644775390625e-8f));
  U const special = (magnitude << 13) | U(0x7f800000u);
  U const bits = select(magnitude < U(0x400u), tiny, select(magnitude >= U(0x7c00u), special, normal));
  return bitcast<float>(bits | sign);
}

template <int N, class Isa>
SITU_INLINE pack<uint16_t, N, Isa> narrow_half(pack<float, N, Isa> const& value) {
  using U = pack<uint32_t, N, Isa>;
  using F = pack<float, N, Isa>;
  U const bits = bitcast<uint32_t>(value);
  U const sign = (bits >> 16) & U(0x8000u);
  U const magnitude = bits & U(0x7fffffffu);
  U const normal = (magnitude + U(0xfffu) + ((magnitude >> 13) & U(1u)) - U(0x38000000u)) >> 13;
  F const small = keep_order(bitcast<float>(select(magnitude < U(0x38800000u), magnitude, U(0u))) + F(0.5f));
  U const tiny = bitcast<uint32_t>(small) - U(0x3f000000u);
  U const nan = U(0x7e00u) | ((magnitude >> 13) & U(0x3ffu));
  U const finite = select(magnitude < U(0x38800000u), tiny, select(magnitude >= U(0x477ff000u), U(0x7c00u), normal));
  return convert_unchecked<uint16_t>(select(magnitude > U(0x7f800000u), nan, finite) | sign);
}

template <int N, class Isa>
SITU_INLINE pack<uint16_t, N, Isa> narrow_bfloat(pack<float, N, Isa> const& value) {
  using U = pack<uint32_t, N, Isa>;
  U const bits = bitcast<uint32_t>(value);
  U const rounded = (bits + U(0x7fffu) + ((bits >> 16) & U(1u))) >> 16;
  U const nan = (bits >> 16) | U(0x40u);
  return convert_unchecked<uint16_t>(select((bits & U(0x7fffffffu)) > U(0x7f800000u), nan, rounded));
}

/// N elements from consecutive places, as lanes.
template <class T, int N, class Isa>
SITU_INLINE lanes_t<T, N, Isa> load_lanes(T const* from) {
  if constexpr (std::is_same_v<T, bool>) {
    using P = pack<int8_t, N, Isa>;
    return P::load(reinterpret_cast<int8_t const*>(from)) != P(int8_t{0});
  } else if constexpr (std::is_same_v<T, float16>) {
    return widen_half(pack<uint16_t, N, Isa>::load(reinterpret_cast<uint16_t const*>(from)));
  } else if constexpr (std::is_same_v<T, bfloat16>) {
    auto const raw = pack<uint16_t, N, Isa>::load(reinterpret_cast<uint16_t const*>(from));
    return bitcast<float>(convert_unchecked<uint32_t>(raw) << 16);
  } else {
    return pack<T, N, Isa>::load(from);
  }
}

/// Lanes to N consecutive elements.
template <class T, int N, class Isa>
SITU_INLINE void store_lanes(lanes_t<T, N, Isa> const& x, T* to) {
  if constexpr (std::is_same_v<T, bool>) {
    pack<int8_t, N, Isa> const ones(typename pack<int8_t, N, Isa>::vector(-x.v));
    ones.store(reinterpret_cast<int8_t*>(to));
  } else if constexpr (std::is_same_v<T, float16>) {
    narrow_half(x).store(reinterpret_cast<uint16_t*>(to));
  } else if constexpr (std::is_same_v<T, bfloat16>) {
    narrow_bfloat(x).store(reinterpret_cast<uint16_t*>(to));
  } else {
    x.store(to);
  }
}

/// The same value in all lanes.
template <class T, int N, class Isa>
SITU_INLINE lanes_t<T, N, Isa> broadcast_lanes(compute_t<T> value) {
  return lanes_t<T, N, Isa>(value);
}

/// One lane as an element.
template <class T, class X>
SITU_INLINE T lane(X const& x, int k) {
  if constexpr (is_mask<X>) return x[k];
  else return static_cast<T>(x[k]);
}

/// Floating lanes to integers: truncated, saturated, NaN to 0.
template <class To, class From, int N, class Isa>
SITU_INLINE pack<To, N, Isa> saturate(pack<From, N, Isa> const& x) {
  using F = pack<From, N, Isa>;
  using I = pack<To, N, Isa>;
  constexpr To low = std::numeric_limits<To>::min(), high = std::numeric_limits<To>::max();
  F const lowest(static_cast<From>(low)), highest(static_cast<From>(high));  // highest may be one too large
  auto const below = x <= lowest, above = x >= highest, number = x == x;
  F const inside = select(number & !(below | above), x, F(From(0)));
  I result;
  if constexpr (sizeof(To) < 4) result = convert_unchecked<To>(convert_unchecked<int32_t>(inside));
  else result = convert_unchecked<To>(inside);
  return select(below, I(low), select(above, I(high), result));
}

/// Lanes of element type From as lanes of element type To, with the conversions of C++ made total (see cast).
template <class To, class From, class Isa, int N, class X>
SITU_INLINE lanes_t<To, N, Isa> convert_lanes(X const& x) {
  using CTo = compute_t<To>;
  if constexpr (std::is_same_v<To, bool>) {
    if constexpr (is_mask<X>) return x.template as<1>();
    else return (x != X(typename X::value_type(0))).template as<1>();
  } else if constexpr (is_mask<X>) {
    using P = pack<CTo, N, Isa>;
    return select(x, P(CTo(1)), P(CTo(0)));
  } else {
    using V = typename X::value_type;
    if constexpr (std::is_same_v<V, CTo>) return x;
    else if constexpr (std::is_floating_point_v<V> && std::is_integral_v<CTo>) return saturate<CTo>(x);
    else return convert_unchecked<CTo>(x);
  }
}

/// As convert_lanes, for operands: a mask stays as wide as it is when a bool is asked for.
template <class To, class From, class Isa, int N, class X>
SITU_INLINE auto operand_lanes(X const& x) {
  if constexpr (std::is_same_v<To, bool> && is_mask<X>) return x;
  else return convert_lanes<To, From, Isa, N>(x);
}

/// The value as a float16 or bfloat16 would hold it: what cast does in the middle of an expression.
template <class T, int N, class Isa>
SITU_INLINE lanes_t<T, N, Isa> rounded_to(lanes_t<T, N, Isa> const& x) {
  if constexpr (std::is_same_v<T, float16>) return widen_half(narrow_half(x));
  else if constexpr (std::is_same_v<T, bfloat16>) return bitcast<float>(convert_unchecked<uint32_t>(narrow_bfloat(x)) << 16);
  else return x;
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI

// ---- <situ/expr/lower.hpp>
/// Lowering: from an expression, which owns its tensors, to a *tree*, which is trivially copyable and goes into a kernel.
///
/// A tree refers to the tensors by number, from left to right: `Input<T, 2>` is the third. Where they lie is told by a
/// `Program`: pointers, and strides after dimensions have been joined. Equal formulas on different tensors have the
/// same type, so they share their kernels, whatever the number of the device is.


// ---- <situ/expr/map.hpp>
/// cast, and user-defined elementwise functions.


// ---- <situ/expr/node.hpp>
/// Nodes: what an expression is made of before it is evaluated.
///
/// An *expression* is a tensor or a `Map` of expressions. Nodes hold their operands by value (a tensor is a counted
/// handle), so an expression may outlive the tensors it was written with. It is a formula: evaluated at every use.

#include <new>
#include <utility>


namespace situ::inline SITU_ABI {

template <element T = float, device D = Cpu>
class Tensor;

namespace detail {
// Defined by the tensor layer, and found when they are instantiated.
template <class E>
auto evaluated(E&& e);
template <class To, class T, class From>
Tensor<T, To> transfer(Tensor<T, From> const& from);
template <class U, class T, class D>
Tensor<U, D> converted(Tensor<T, D> const& from);
template <class U, class To, class T, class From>
Tensor<U, To> convert_and_transfer(Tensor<T, From> const& from);

/// The one place where a type is declared to be an expression.
template <class E>
inline constexpr bool is_expression = false;
template <class T, class D>
inline constexpr bool is_expression<Tensor<T, D>> = true;
}  // namespace detail

/// A tensor, or a lazy combination of tensors: what functions of tensors take.
template <class E>
concept expression = detail::is_expression<std::remove_cvref_t<E>>;

/// The element type of an expression.
template <class E>
using value_of = typename std::remove_cvref_t<E>::value_type;

/// The device of an expression: where its operands live and its result will.
template <class E>
using device_of = typename std::remove_cvref_t<E>::device_type;

namespace detail {

/// A C++ number beside tensors, already of the type that its weakness gives it.
template <class T>
struct Constant {
  using value_type = T;
  compute_t<T> value;
};

template <class E>
inline constexpr bool is_constant = false;
template <class T>
inline constexpr bool is_constant<Constant<T>> = true;

/// Members in a row; trivially copyable when they are, which std::tuple is not.
template <class... Es>
struct Fields {};
template <class E, class... Es>
struct Fields<E, Es...> {
  E head;
  Fields<Es...> tail;
};

template <class E, class... Es>
SITU_HOST_DEVICE SITU_INLINE constexpr Fields<std::remove_cvref_t<E>, std::remove_cvref_t<Es>...> fields_of(E&& e, Es&&... es) {
  if constexpr (sizeof...(Es) == 0) return {static_cast<E&&>(e), {}};
  else return {static_cast<E&&>(e), fields_of(static_cast<Es&&>(es)...)};
}

/// The same for operands that own tensors; host only.
template <class E, class... Es>
SITU_INLINE constexpr Fields<std::remove_cvref_t<E>, std::remove_cvref_t<Es>...> operand_fields(E&& e, Es&&... es) {
  if constexpr (sizeof...(Es) == 0) return {static_cast<E&&>(e), {}};
  else return {static_cast<E&&>(e), operand_fields(static_cast<Es&&>(es)...)};
}

/// The common device of operands, of which constants have none: void for none at all.
template <class... Ds>
struct common_device {
  using type = void;
};
template <class D>
struct common_device<D> {
  using type = D;
};
template <class D, class... Ds>
  requires(sizeof...(Ds) > 0)
struct common_device<D, Ds...> {
  using rest = typename common_device<Ds...>::type;
  using type = std::conditional_t<std::is_void_v<rest> || std::is_same_v<D, rest>, D,
                                  std::conditional_t<std::is_void_v<D>, rest, result_device_t<std::conditional_t<std::is_void_v<D>, Cpu, D>>>>;
};

template <class E>
struct operand_device {
  using type = device_of<E>;
};
template <class E>
  requires(is_constant<std::remove_cvref_t<E>> || number<std::remove_cvref_t<E>>)
struct operand_device<E> {
  using type = void;
};
template <class E>
using operand_device_t = typename operand_device<E>::type;

template <class D1, class D2>
inline constexpr bool may_mix = std::is_void_v<D1> || std::is_void_v<D2>;
template <class D1, class D2>
  requires(!std::is_void_v<D1> && !std::is_void_v<D2>)
inline constexpr bool may_mix<D1, D2> = mixes_with<D1, D2>;

/// The shape of a formula: that of a tensor in it while all of them have the same, else one of its own.
class CommonShape {
 public:
  /// `leaf` is held by a tensor of the formula, wherever the formula is moved.
  explicit CommonShape(Shape const* leaf) : shape_(leaf) {}
  CommonShape(CommonShape const& other) : shape_(other.shape_) {
    if (SITU_UNLIKELY(!other.uniform())) take(other);
  }
  CommonShape& operator=(CommonShape const& other) {
    shape_ = other.shape_;
    if (SITU_UNLIKELY(!other.uniform())) take(other);
    return *this;
  }
  Shape const& get() const { return *shape_; }
  /// Whether nothing is broadcast.
  bool uniform() const { return shape_ != &own_; }

  /// Becomes the shapes of operands, broadcast; null pointers are left out. Throws ShapeError that names two of them.
  SITU_NOINLINE void broadcast(Shape const* const* operands, int count, char const* who) {
    Shape result;
    bool any = false;
    for (int k = 0; k < count; ++k) {
      if (!operands[k]) continue;
      result = any ? detail::broadcast(result, *operands[k], who) : *operands[k];
      any = true;
    }
    shape_ = ::new (static_cast<void*>(&own_)) Shape(result);
  }

 private:
  SITU_NOINLINE void take(CommonShape const& other) { shape_ = ::new (static_cast<void*>(&own_)) Shape(other.own_); }

  Shape const* shape_;
  union {
    Shape own_;
  };
};

/// How many tensors an expression reads.
template <class E>
inline constexpr int leaf_count = 1;
template <class T>
inline constexpr int leaf_count<Constant<T>> = 0;

}  // namespace detail

namespace detail {

/// What every expression offers beside its shape: the ways out of it. A tensor gives itself, a formula its value.
template <class E>
class ExpressionMembers {
 public:
  /// The value on another device: the one way across. Already there, a tensor is returned as it is, with the same storage.
  /// What touches the host is done when this returns; between devices it is enqueued.
  template <device To>
  auto to(To) const {
    return transfer<To>(evaluated(self()));
  }
  /// The value as elements of U.
  template <element U>
  auto to() const {
    return converted<U>(evaluated(self()));
  }
  /// Both: converted on the side that makes fewer bytes cross.
  template <element U, device To>
  auto to(To) const {
    return convert_and_transfer<U, To>(evaluated(self()));
  }
  auto cpu() const { return to(Cpu{}); }
  template <int N = 0>
  auto cuda() const {
    return to(Cuda<N>{});
  }

 private:
  E const& self() const { return static_cast<E const&>(*this); }
};

}  // namespace detail

/// A lazy elementwise function `Op` of operands. Built by the functions and operators of situ, never by hand.
template <class Op, class... Es>
struct Map : detail::ExpressionMembers<Map<Op, Es...>> {
  using types = typename Op::template types<typename Es::value_type...>;
  using value_type = typename types::result;
  using device_type = typename detail::common_device<detail::operand_device_t<Es>...>::type;

  Op op;
  detail::Fields<Es...> operands;
  detail::CommonShape common;

  /// The broadcast shape of the operands.
  Shape const& shape() const { return common.get(); }
  int rank() const { return shape().rank(); }
  /// The number of elements.
  int64_t size() const { return detail::product(shape()); }
  int64_t size(int64_t axis) const { return shape()[detail::checked_axis(axis, rank(), shape(), "size")]; }
  device_type device() const { return {}; }
  static constexpr situ::dtype dtype() { return dtype_of<value_type>; }
  /// One element of the value, which is computed whole.
  template <std::integral... Is>
  value_type item(Is... indices) const {
    return detail::evaluated(*this).item(indices...);
  }
  auto to_vector() const { return detail::evaluated(*this).to_vector(); }

  Map(Op&& f, detail::Fields<Es...>&& es, detail::CommonShape const& shape)
      : op(static_cast<Op&&>(f)), operands(static_cast<detail::Fields<Es...>&&>(es)), common(shape) {}
};

namespace detail {
template <class Op, class... Es>
inline constexpr bool is_expression<Map<Op, Es...>> = true;
template <class Op, class... Es>
inline constexpr int leaf_count<Map<Op, Es...>> = (0 + ... + leaf_count<Es>);

/// The shape of an operand; a null pointer for constants.
template <class E>
SITU_INLINE Shape const* shape_of(E const& operand) {
  if constexpr (is_constant<E>) return nullptr;
  else return &operand.shape();
}
/// Whether nothing is broadcast in an operand.
template <class E>
SITU_INLINE bool is_uniform(E const& operand) {
  if constexpr (requires { operand.common; }) return operand.common.uniform();
  else return true;
}

/// Out of line, because every node of every expression asks for it.
SITU_NOINLINE inline bool same_shape(Shape const& a, Shape const& b) { return a == b; }

/// Whether an operand has the shape of those before it, the first of which sets it.
template <class E>
SITU_INLINE bool agrees(Shape const*& first, E const& operand) {
  if constexpr (is_constant<E>) {
    return true;
  } else {
    Shape const* const shape = &operand.shape();
    if (!first) first = shape;
    else if (SITU_UNLIKELY(shape != first) && !same_shape(*first, *shape)) return false;
    return is_uniform(operand);
  }
}

/// Builds a node. Throws ShapeError when the shapes do not broadcast; the message names both.
template <class Op, class... Es>
auto make_map(Op op, Es&&... es) {
  using Node = Map<Op, std::remove_cvref_t<Es>...>;
  Shape const* first = nullptr;
  bool const uniform = (agrees(first, es) && ...);
  CommonShape common(first);
  if (SITU_UNLIKELY(!uniform)) {
    Shape const* const shapes[] = {shape_of(es)...};
    common.broadcast(shapes, sizeof...(Es), Op::name);
  }
  return Node(static_cast<Op&&>(op), operand_fields(static_cast<Es&&>(es)...), common);
}

}  // namespace detail

/// Whether expressions (or numbers) live on devices that mix, so that they may stand in one expression.
template <class L, class R>
concept on_same_device = detail::may_mix<detail::operand_device_t<L>, detail::operand_device_t<R>>;

namespace detail {

/// The first of Ds that does not mix with D, or void.
template <class D, class... Ds>
struct stranger_to {
  using type = void;
};
template <class D, class First, class... Ds>
struct stranger_to<D, First, Ds...> : std::conditional_t<may_mix<D, First>, stranger_to<D, Ds...>, std::type_identity<First>> {};

/// The message about the first two devices that do not mix; `type` is missing where all do.
template <class... Ds>
struct different_devices {};
template <class D, class... Ds>
struct different_devices<D, Ds...>
    : std::conditional_t<std::is_void_v<typename stranger_to<D, Ds...>::type>, different_devices<Ds...>,
                         std::type_identity<error::operands_on_different_devices__move_one_with_to<D, typename stranger_to<D, Ds...>::type>>> {};
template <class... Xs>
using different_devices_of = typename different_devices<operand_device_t<Xs>...>::type;

}  // namespace detail

}  // namespace situ::inline SITU_ABI

// ---- <situ/expr/types.hpp>
/// Typing rules of elementwise functions: from the operands' element types to what they are converted to, and to the
/// element type of the result.


namespace situ::inline SITU_ABI {
namespace detail {

template <class... Ts>
struct promoted;
template <class T>
struct promoted<T> {
  using type = T;
};
template <class T, class U, class... Rest>
struct promoted<T, U, Rest...> : promoted<promote_t<T, U>, Rest...> {};
template <class... Ts>
using promoted_t = typename promoted<Ts...>::type;

/// All operands promote together, the result is of that type: `+`, minimum.
template <class... Ts>
struct arithmetic {
  using result = promoted_t<Ts...>;
  template <int>
  using operand = result;
};

/// As arithmetic, in float when all operands are integers: `/`, exp.
template <class... Ts>
struct real_valued {
  using result = floating_t<promoted_t<Ts...>>;
  template <int>
  using operand = result;
};

/// Compared as their promoted type, bool results: `<`, isnan.
template <class... Ts>
struct predicate {
  using result = bool;
  template <int>
  using operand = promoted_t<Ts...>;
};

/// bool operands, bool result: `&&`.
template <class... Ts>
struct logical {
  using result = bool;
  template <int>
  using operand = bool;
};

/// Integers or bools, which promote together: `&`.
template <class... Ts>
struct bitwise : arithmetic<Ts...> {
  static_assert((!floating<Ts> && ...), "situ: bitwise operators take integer and bool tensors; cast<int32_t>(x) makes one");
};

/// A bool, then operands that promote together: where.
template <class M, class... Ts>
struct choice {
  using result = promoted_t<Ts...>;
  template <int K>
  using operand = std::conditional_t<K == 0, bool, result>;
};

/// The arithmetic type of one lane of X: of a pack, or of a scalar in a CUDA thread.
template <class X>
struct lane_value {
  using type = X;
};
template <class T, int N, class Isa>
struct lane_value<pack<T, N, Isa>> {
  using type = T;
};
template <int B, int N, class Isa>
struct lane_value<mask<B, N, Isa>> {
  using type = bool;
};
template <class X>
using lane_value_t = typename lane_value<X>::type;
template <class X>
inline constexpr bool integer_lanes = std::is_integral_v<lane_value_t<X>> && !std::is_same_v<lane_value_t<X>, bool>;
template <class X>
inline constexpr bool bool_lanes = std::is_same_v<lane_value_t<X>, bool>;

/// The element type that a number of type S takes beside operands of type T. Comparisons are made in a type that
/// holds both, so that `bytes < 300` is what it says.
template <bool Compares, class T, class S>
using number_beside_t = std::conditional_t<Compares && std::is_integral_v<T> && std::is_integral_v<S>,
                                           promote_t<T, typename canonical<S>::type>, weak_t<T, typename canonical<S>::type>>;

/// The type of an expression made of numbers alone, as in where(mask, 1, 0): float or int64.
template <class S>
using number_alone_t = std::conditional_t<std::is_floating_point_v<S>, float,
                                          std::conditional_t<std::is_integral_v<S> && !std::is_same_v<S, bool>, int64_t, S>>;

}  // namespace detail
}  // namespace situ::inline SITU_ABI

namespace situ::inline SITU_ABI {
namespace functions {

/// Conversion to U; see situ::cast.
template <class U>
struct cast {
  static constexpr char const* name = "cast";
  static constexpr int cost = 1;
  template <class T>
  struct types {
    using result = U;
    template <int>
    using operand = T;
  };
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static X value(X const& x) {
    return x;  // the evaluator converts what a function returns to its result type
  }
  template <class X, class Y>
  SITU_HOST_DEVICE SITU_INLINE static X derivative(X const&, Y const&) {
    return X(detail::lane_value_t<X>(1));
  }
};
template <class Op>
inline constexpr bool is_cast = false;
template <class U>
inline constexpr bool is_cast<cast<U>> = true;

}  // namespace functions

/// The elements converted to U: floats are truncated towards zero when U is an integer type, saturate at its ends, and NaN
/// becomes 0; integers wrap; anything but 0 is true; 16-bit floats are rounded to nearest even, here and now.
template <element U, expression E>
auto cast(E&& x) {
  return detail::make_map(functions::cast<U>{}, static_cast<E&&>(x));
}

namespace detail {

/// How F is called: an entry of its own `F::value(x...)`, or a callable.
template <class F, class... Xs>
concept has_static_value = requires(Xs const&... x) { std::remove_cvref_t<F>::value(x...); };

template <class F, class... Xs>
struct map_result;
template <class F, class... Xs>
  requires has_static_value<F, Xs...>
struct map_result<F, Xs...> {
  using type = std::remove_cvref_t<decltype(F::value(std::declval<Xs const&>()...))>;
};
template <class F, class... Xs>
  requires(!has_static_value<F, Xs...> && requires(F const& f, Xs const&... x) { f(x...); })
struct map_result<F, Xs...> {
  using type = std::remove_cvref_t<decltype(std::declval<F const&>()(std::declval<Xs const&>()...))>;
};

template <class F, class... Xs>
concept maps = requires { typename map_result<F, Xs...>::type; } && element<typename canonical<typename map_result<F, Xs...>::type>::type>;

template <int K, class T, class... Ts>
struct nth_type : nth_type<K - 1, Ts...> {};
template <class T, class... Ts>
struct nth_type<0, T, Ts...> {
  using type = T;
};

/// What explain calls a user's function: its `name` where it has one.
template <class F>
constexpr char const* name_of_function() {
  if constexpr (requires { std::string(F::name); }) return F::name;
  else return "map";
}

template <class F>
inline constexpr bool wants_packs = requires { typename F::packed; };

}  // namespace detail

namespace functions {

/// A user's function of elements; see situ::map.
template <class F>
struct mapped {
  static constexpr char const* name = detail::name_of_function<F>();
  static constexpr int cost = 20;
  template <class... Ts>
  struct types {
    using result = typename detail::canonical<typename detail::map_result<F, Ts...>::type>::type;
    template <int K>
    using operand = typename detail::nth_type<K, Ts...>::type;
  };

  F f;

  // How elements convert to what a user's function takes is the user's affair, not a warning about situ.
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wconversion"
#pragma GCC diagnostic ignored "-Wsign-conversion"
#pragma GCC diagnostic ignored "-Wdouble-promotion"
  template <class... Xs>
  SITU_INLINE auto call(Xs const&... x) const {
    if constexpr (detail::has_static_value<F, Xs...>) return F::value(x...);
    else return f(x...);
  }
#pragma GCC diagnostic pop

#if defined(__CUDACC__)
  /// Device only, so that a function that cannot run on the device is an error at compile time.
  template <class... Xs>
  SITU_DEVICE auto device_value(Xs const&... x) const {
    if constexpr (detail::has_static_value<F, Xs...>) return F::value(x...);
    else return f(x...);
  }
#endif

  /// Host only: N lanes at once on opt-in, else one lane after the other.
  template <class R, int N, class Isa, class... Ts, class... Xs>
  SITU_INLINE detail::lanes_t<R, N, Isa> lanes_value(std::type_identity<detail::Fields<Ts...>>, Xs const&... x) const {
    if constexpr (detail::wants_packs<F>) {
      return detail::convert_lanes<R, R, Isa, N>(call(x...));
    } else {
      using U = std::conditional_t<std::is_same_v<R, bool>, int8_t, compute_t<R>>;
      alignas(64) U results[N];
      for (int k = 0; k < N; ++k) results[k] = static_cast<U>(static_cast<compute_t<R>>(call(detail::lane<Ts>(x, k)...)));
      if constexpr (std::is_same_v<R, bool>) return pack<int8_t, N, Isa>::load(results) != pack<int8_t, N, Isa>(int8_t{0});
      else return pack<U, N, Isa>::load(results);
    }
  }
};
template <class Op>
inline constexpr bool is_mapped = false;
template <class F>
inline constexpr bool is_mapped<mapped<F>> = true;

}  // namespace functions

namespace detail {

/// The type and value of an operand of map: numbers keep the element type of their C++ type.
template <class X>
struct map_operand {
  using type = typename canonical<std::remove_cvref_t<X>>::type;
};
template <expression X>
struct map_operand<X> {
  using type = value_of<X>;
};
template <class X>
using map_operand_t = typename map_operand<X>::type;

template <class... Ds>
struct all_mix {
  static constexpr bool value = true;
};
template <class D, class... Ds>
struct all_mix<D, Ds...> {
  static constexpr bool value = (may_mix<D, Ds> && ...) && all_mix<Ds...>::value;
};

}  // namespace detail

/// f applied to every element of broadcast operands: a lambda, a function object, or an entry with `static value`.
///
///     y_i = f(a_i, b_i, ...)
///
/// f gets scalars of the operands' element types and returns any element type; it must be pure and must not throw. A type
/// that says `using packed = void;` is called with `pack`s on the CPU and with scalars on CUDA. On `Cuda` f is a function
/// object at namespace scope whose operator() is SITU_HOST_DEVICE, or an extended lambda.
/// Shape     operands broadcast; ShapeError names both shapes when they do not.
/// Cost      fuses like every other function; without packs, one call per element.
template <class F, class... Xs>
  requires((expression<Xs> || ...) && ((expression<Xs> || number<std::remove_cvref_t<Xs>>)&&...) &&
           detail::all_mix<detail::operand_device_t<Xs>...>::value &&
           detail::maps<std::remove_cvref_t<F>, detail::map_operand_t<Xs>...>)
auto map(F&& f, Xs&&... xs) {
  auto held = []<class X>(X&& x) -> decltype(auto) {
    if constexpr (expression<X>) return static_cast<X&&>(x);
    else {
      using T = detail::map_operand_t<X>;
      return detail::Constant<T>{detail::convert_scalar<compute_t<T>>(x)};
    }
  };
  return detail::make_map(functions::mapped<std::remove_cvref_t<F>>{static_cast<F&&>(f)}, held(static_cast<Xs&&>(xs))...);
}
template <class F, class... Xs, class Error = detail::different_devices_of<Xs...>>
  requires(((expression<Xs> || number<std::remove_cvref_t<Xs>>)&&...) && !detail::all_mix<detail::operand_device_t<Xs>...>::value)
void map(F&&, Xs&&...) = delete;

}  // namespace situ::inline SITU_ABI

namespace situ::inline SITU_ABI {
namespace detail {

template <class T, int K>
struct Input {
  using value_type = T;
};

/// The index of an element in row-major order; for trees that fill fresh, contiguous tensors.
struct Index {
  using value_type = int64_t;
};

template <class Op, class... Ts>
struct Apply {
  using types = typename Op::template types<typename Ts::value_type...>;
  using value_type = typename types::result;
  Op op;
  Fields<Ts...> operands;
};

template <int First, class T, class D>
Input<T, First> lower(Tensor<T, D> const&) {
  return {};
}
template <int First>
Index lower(Index const&) {
  return {};
}
template <int First, class T>
Constant<T> lower(Constant<T> const& constant) {
  return constant;
}
template <int First, class Op, class... Es>
auto lower(Map<Op, Es...> const& map);

template <class T, class... Ts>
Fields<T, Ts...> prepend(T const& head, Fields<Ts...> const& tail) {
  return {head, tail};
}
template <class Op, class... Ts>
Apply<Op, Ts...> make_apply(Op const& op, Fields<Ts...> const& operands) {
  return {op, operands};
}

template <int First>
Fields<> lower_fields(Fields<> const&) {
  return {};
}
template <int First, class E, class... Es>
auto lower_fields(Fields<E, Es...> const& fields) {
  auto head = lower<First>(fields.head);
  auto tail = lower_fields<First + leaf_count<E>>(fields.tail);
  return prepend(head, tail);
}
template <int First, class Op, class... Es>
auto lower(Map<Op, Es...> const& map) {
  return make_apply(map.op, lower_fields<First>(map.operands));
}

template <>
inline constexpr int leaf_count<Index> = 0;

template <class E>
using tree_of = decltype(lower<0>(std::declval<E const&>()));

/// f(tensor) for every tensor of an expression, from left to right.
template <class T, class D, class F>
SITU_INLINE void for_each_leaf(Tensor<T, D> const& leaf, F&& f) {
  f(leaf);
}
template <class T, class F>
SITU_INLINE void for_each_leaf(Constant<T> const&, F&&) {}
template <class F>
SITU_INLINE void for_each_leaf(Index const&, F&&) {}
template <class F>
SITU_INLINE void for_each_leaf(Fields<> const&, F&&) {}
template <class E, class... Es, class F>
SITU_INLINE void for_each_leaf(Fields<E, Es...> const& fields, F&& f);
template <class Op, class... Es, class F>
SITU_INLINE void for_each_leaf(Map<Op, Es...> const& map, F&& f) {
  for_each_leaf(map.operands, f);
}
template <class E, class... Es, class F>
SITU_INLINE void for_each_leaf(Fields<E, Es...> const& fields, F&& f) {
  for_each_leaf(fields.head, f);
  for_each_leaf(fields.tail, f);
}

/// The size of the widest type that a tree computes in: it decides how many lanes a kernel has.
template <class Tree>
inline constexpr int widest = static_cast<int>(sizeof(compute_t<typename Tree::value_type>));
template <class Op, class... Ts>
inline constexpr int widest<Apply<Op, Ts...>> = [] {
  int result = static_cast<int>(sizeof(compute_t<typename Apply<Op, Ts...>::value_type>));
  for (int w : {widest<Ts>...}) result = w > result ? w : result;
  return result;
}();

/// The weight of a tree in tens of picoseconds per element: bytes read and operations.
template <class Tree>
inline constexpr int cost_of = 0;
template <class T, int K>
inline constexpr int cost_of<Input<T, K>> = static_cast<int>(sizeof(T));
template <class Op, class... Ts>
inline constexpr int cost_of<Apply<Op, Ts...>> = Op::cost + (0 + ... + cost_of<Ts>);

/// How many operations a tree does per element.
template <class Tree>
inline constexpr int operation_count = 0;
template <class Op, class... Ts>
inline constexpr int operation_count<Apply<Op, Ts...>> = 1 + (0 + ... + operation_count<Ts>);

/// Where the operands of a kernel lie: number 0 is the output, the inputs follow. Strides are in elements.
/// When everything is contiguous, `rank` is 1 and nothing else than the pointers and `sizes[0]` is set.
template <int Operands>
struct Geometry {
  void* data[Operands];
  int64_t sizes[max_rank];
  int64_t strides[Operands][max_rank];
  int rank;
  bool contiguous;

  int64_t size() const {
    int64_t n = 1;
    for (int k = 0; k < rank; ++k) n *= sizes[k];
    return n;
  }
};

/// Drops axes of one index, orders the others by the output's strides (outer first), and joins neighbours that every
/// operand steps through alike. Axes below `fixed` keep their place and are joined only among themselves.
/// Operand o's stride along axis k stands in strides[o * max_rank + k].
inline int coalesce(int64_t* sizes, int64_t* strides, int operands, int rank, int* fixed = nullptr) {
  int const cut = fixed ? *fixed : 0;
  int kept = 0, kept_fixed = 0;
  auto stride = [strides](int o, int k) -> int64_t& { return strides[o * max_rank + k]; };
  for (int k = 0; k < rank; ++k) {
    if (sizes[k] == 1) continue;
    sizes[kept] = sizes[k];
    for (int o = 0; o < operands; ++o) stride(o, kept) = stride(o, k);
    ++kept;
    if (k < cut) kept_fixed = kept;
  }
  auto magnitude = [](int64_t s) { return s < 0 ? -s : s; };
  auto before = [&](int a, int b) {  // whether axis a should lie outside of axis b
    if (magnitude(stride(0, a)) != magnitude(stride(0, b))) return magnitude(stride(0, a)) > magnitude(stride(0, b));
    return false;
  };
  if (!fixed) {
    for (int k = 1; k < kept; ++k) {
      for (int j = k; j > 0 && before(j, j - 1); --j) {
        std::swap(sizes[j], sizes[j - 1]);
        for (int o = 0; o < operands; ++o) std::swap(stride(o, j), stride(o, j - 1));
      }
    }
  }
  int joined = 0;
  for (int k = 0; k < kept; ++k) {
    bool join = joined > 0 && !(fixed && k == kept_fixed);
    for (int o = 0; join && o < operands; ++o) join = stride(o, joined - 1) == stride(o, k) * sizes[k];
    if (join) {
      sizes[joined - 1] *= sizes[k];
      for (int o = 0; o < operands; ++o) stride(o, joined - 1) = stride(o, k);
    } else {
      sizes[joined] = sizes[k];
      for (int o = 0; o < operands; ++o) stride(o, joined) = stride(o, k);
      ++joined;
    }
    if (fixed && k < kept_fixed) *fixed = joined;
  }
  if (fixed && kept_fixed == 0) *fixed = 0;
  return joined;
}

/// The strides of `leaf` when it is broadcast to `shape`, written to `strides`.
inline void broadcast_strides(Layout const& leaf, Shape const& shape, int64_t* strides) {
  int const lead = shape.rank() - leaf.rank();
  for (int k = 0; k < shape.rank(); ++k) {
    strides[k] = k < lead || (leaf.shape[k - lead] == 1 && shape[k] != 1) ? 0 : leaf.strides[k - lead];
  }
}

/// An expression bound to memory: the tree, and where the output and the inputs lie.
template <class Tree, class Out, int Leaves>
struct Program {
  using tree_type = Tree;
  using out_type = Out;
  static constexpr int leaves = Leaves;
  Tree tree;
  Geometry<Leaves + 1> where;
  explicit Program(Tree const& formula) : tree(formula) {}  // a lambda in it can be copied, but not assigned
};

/// The joined sizes and strides of operands whose layouts broadcast to the first one, the output's. Returns the rank, at least 1.
inline int bind_strides(Layout const* const* layouts, int operands, int64_t* sizes, int64_t* strides) {
  Layout const& out = *layouts[0];
  for (int k = 0; k < out.rank(); ++k) sizes[k] = out.shape[k], strides[k] = out.strides[k];
  for (int o = 1; o < operands; ++o) broadcast_strides(*layouts[o], out.shape, strides + o * max_rank);
  int const rank = coalesce(sizes, strides, operands, out.rank());
  if (rank > 0) return rank;
  sizes[0] = 1;
  for (int o = 0; o < operands; ++o) strides[o * max_rank] = 1;
  return 1;
}

/// Collects where the inputs lie, from data[1] on; returns whether all are contiguous.
template <class E>
SITU_INLINE bool collect_places(E const& e, void** data) {
  bool contiguous = true;
  int o = 1;
  for_each_leaf(e, [&](auto const& leaf) {
    data[o++] = const_cast<void*>(static_cast<void const*>(leaf.data()));
    contiguous = contiguous && leaf.is_contiguous();
  });
  return contiguous;
}

/// Collects the layouts of the output and the inputs.
template <class E>
SITU_INLINE void collect_layouts(E const& e, Layout const& out, Layout const** layouts) {
  layouts[0] = &out;
  int o = 1;
  for_each_leaf(e, [&](auto const& leaf) { layouts[o++] = &leaf.layout(); });
}

/// Both; returns whether all operands are contiguous and of the output's shape.
template <class E>
SITU_INLINE bool collect_operands(E const& e, Layout const& out, bool out_is_contiguous, void** data, Layout const** layouts) {
  collect_layouts(e, out, layouts);
  Shape const* const shape = shape_of(e);
  return collect_places(e, data) && out_is_contiguous && is_uniform(e) && (!shape || same_shape(*shape, out.shape));
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// What one call of a kernel covers: `count` elements from `data[o]` on. Number 0 is the output. An input is contiguous
/// (mask -1), or repeats (mask 0): `data` then points to a register's worth of copies of its element.
template <int Operands>
struct Run {
  void* data[Operands];
  int64_t mask[Operands];
  int64_t count;
  int64_t origin;  ///< the index of the first element, for trees that ask for it
};

/// N elements from index i of every input. `data` and `mask` are those of a Run.
template <class Isa, int N>
struct Source {
  void* const* data;
  int64_t const* mask;
  int64_t i;
  int64_t origin;
  template <class T, int K>
  SITU_INLINE lanes_t<T, N, Isa> load() const {
    return load_lanes<T, N, Isa>(static_cast<T const*>(data[K + 1]) + (i & mask[K + 1]));
  }
  SITU_INLINE pack<int64_t, N, Isa> index() const {
    pack<int64_t, N, Isa> steps;
    for (int k = 0; k < N; ++k) steps.set(k, k);
    return steps + pack<int64_t, N, Isa>(origin + i);
  }
};

/// The same where every input is contiguous.
template <class Isa, int N>
struct ContiguousSource : Source<Isa, N> {
  template <class T, int K>
  SITU_INLINE lanes_t<T, N, Isa> load() const {
    return load_lanes<T, N, Isa>(static_cast<T const*>(this->data[K + 1]) + this->i);
  }
};

template <class Isa, int N>
struct Evaluator {
  template <class T, int K, class S>
  SITU_INLINE static lanes_t<T, N, Isa> value(Input<T, K> const&, S const& source) {
    return source.template load<T, K>();
  }
  template <class T, class S>
  SITU_INLINE static lanes_t<T, N, Isa> value(Constant<T> const& constant, S const&) {
    return broadcast_lanes<T, N, Isa>(constant.value);
  }
  template <class S>
  SITU_INLINE static pack<int64_t, N, Isa> value(Index const&, S const& source) {
    return source.index();
  }
  template <class Op, class... Ts, class S>
  SITU_INLINE static auto value(Apply<Op, Ts...> const& node, S const& source) {
    return operands<0>(node, node.operands, source);
  }

 private:
  /// Evaluates the operands one after the other, converted to what the function takes, then the function.
  template <int K, class Node, class T, class... Ts, class S, class... Done>
  SITU_INLINE static auto operands(Node const& node, Fields<T, Ts...> const& rest, S const& source, Done const&... done) {
    using Wanted = typename Node::types::template operand<K>;
    auto const x = operand_lanes<Wanted, typename T::value_type, Isa, N>(value(rest.head, source));
    if constexpr (sizeof...(Ts) > 0) return operands<K + 1>(node, rest.tail, source, done..., x);
    else return apply(node, done..., x);
  }
  template <class Op, class... Ts, class... Xs>
  SITU_INLINE static auto apply(Apply<Op, Ts...> const& node, Xs const&... xs) {
    using R = typename Apply<Op, Ts...>::value_type;
    if constexpr (functions::is_mapped<Op>) {
      return node.op.template lanes_value<R, N, Isa>(std::type_identity<Fields<typename Ts::value_type...>>{}, xs...);
    } else if constexpr (std::is_same_v<R, bool>) {
      return operand_lanes<bool, bool, Isa, N>(Op::value(xs...));
    } else {
      auto const y = convert_lanes<R, R, Isa, N>(Op::value(xs...));
      if constexpr (functions::is_cast<Op>) return rounded_to<R, N, Isa>(y);
      else return y;
    }
  }
};

/// A store that goes past the caches; only for whole registers, aligned to their size.
template <class P>
SITU_INLINE void stream_to(P const& x, typename P::value_type* to) {
#if SITU_X86 && defined(__clang__)
  __builtin_nontemporal_store(x.v, reinterpret_cast<typename P::vector*>(to));
#elif SITU_X86
  if constexpr (P::isa_type::bytes == 16) __asm__ volatile("movntps %1, %0" : "=m"(*reinterpret_cast<typename P::vector*>(to)) : "x"(x.v));
  else __asm__ volatile("vmovntps %1, %0" : "=m"(*reinterpret_cast<typename P::vector*>(to)) : "v"(x.v));
#else
  x.store(to);
#endif
}
/// Orders streamed stores before what follows.
inline void finish_streaming() {
#if SITU_X86
  __builtin_ia32_sfence();
#endif
}

/// Copies the last `count` elements of every input, fewer than N, to `buffers`, and repeats the last one behind them: functions
/// then see no other values than those of the tensors.
template <int N, class T, int K, int Operands>
SITU_INLINE void buffer_tail(std::type_identity<Input<T, K>>, Run<Operands>& run, unsigned char (*buffers)[64], int64_t i, int count) {
  if (run.mask[K + 1] == 0) return;
  T const* const from = static_cast<T const*>(run.data[K + 1]) + i;
  T* const to = reinterpret_cast<T*>(buffers[K + 1]);
  T const last = from[count - 1];
  for (int k = 0; k < N; ++k) to[k] = last;
  copy_short(to, from, count * static_cast<int64_t>(sizeof(T)));
  run.data[K + 1] = to;
}
template <int N, class Leaf, int Operands>
SITU_INLINE void buffer_tail(std::type_identity<Leaf>, Run<Operands>&, unsigned char (*)[64], int64_t, int) {}
template <int N, class Op, class... Ts, int Operands>
SITU_INLINE void buffer_tail(std::type_identity<Apply<Op, Ts...>>, Run<Operands>& run, unsigned char (*buffers)[64], int64_t i, int count) {
  (buffer_tail<N>(std::type_identity<Ts>{}, run, buffers, i, count), ...);
}

template <class Tree, class Out, int Operands>
struct ElementwiseBody {
  static constexpr int widest_lane = widest<Tree> > static_cast<int>(sizeof(compute_t<Out>)) ? widest<Tree> : static_cast<int>(sizeof(compute_t<Out>));

  template <class Isa>
  static constexpr int lanes_in = Isa::bytes / widest_lane;

  /// Whether stores may go past the caches: packs of whole registers.
  template <class Isa>
  static constexpr bool may_stream = std::is_arithmetic_v<Out> && !std::is_same_v<Out, bool> && lanes_in<Isa> * static_cast<int>(sizeof(Out)) == Isa::bytes;

  /// Contiguous inputs, whole packs only: gives how many elements that were.
  template <class Isa>
  SITU_INLINE static int64_t run(Tree const* tree_, Run<Operands> const* run_, bool stream) {
    constexpr int N = lanes_in<Isa>;
    Tree const tree = *tree_;
    Run<Operands> const run = *run_;
    Out* const out = static_cast<Out*>(run.data[0]);
    int64_t i = 0;
    for (; i + N <= run.count; i += N) {
      auto const y = convert_lanes<Out, typename Tree::value_type, Isa, N>(
          Evaluator<Isa, N>::value(tree, ContiguousSource<Isa, N>{{run.data, run.mask, i, run.origin}}));
      if constexpr (may_stream<Isa>) {
        if (SITU_UNLIKELY(stream)) {
          stream_to(y, out + i);
          continue;
        }
      }
      store_lanes<Out, N, Isa>(y, out + i);
    }
    return i;
  }

  /// The size of an element of operand o.
  SITU_INLINE static int element_size(int o) {
    return o == 0 ? static_cast<int>(sizeof(Out)) : input_size(std::type_identity<Tree>{}, o - 1);
  }

 private:
  template <class T, int K>
  SITU_INLINE static int input_size(std::type_identity<Input<T, K>>, int k) {
    return k == K ? static_cast<int>(sizeof(T)) : 0;
  }
  template <class Leaf>
  SITU_INLINE static int input_size(std::type_identity<Leaf>, int) {
    return 0;
  }
  template <class Op, class... Ts>
  SITU_INLINE static int input_size(std::type_identity<Apply<Op, Ts...>>, int k) {
    return (0 + ... + input_size(std::type_identity<Ts>{}, k));
  }
};

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI

// ---- <situ/expr/cpu/tiles.hpp>
/// Tiles: how strided operands are brought to a kernel that reads contiguous or repeated elements only.
///
/// An index space is cut into tiles, which threads share. Rows of a tile in which every operand steps by one or not at all are
/// run where they lie. Everything else goes in packs of some thousand bytes: operands that are not dense over a pack are copied
/// into buffers that stay in the nearest cache, and so is the result. Short rows are packed together, and a *transposed* operand,
/// one whose shortest stride is along another axis than the last one, is packed as many rows at a time as a cache line holds
/// of it: each of its lines is then read once. None of this depends on the expression, so none of it is instantiated per
/// expression.


// ---- <situ/expr/cpu/movers.hpp>
/// Movers: how elements are copied between strided places and the buffers that kernels read and write.
///
/// A mover knows an element by its size alone, so that there are four of them, whatever the expressions. Rows of bytes go in
/// whole registers, past the caches where asked; a transposition goes in square blocks inside of registers.

#include <utility>


namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// Elements of a rectangle from one order in memory to another: strides in elements. Where `from_step` is 0, `to` is a buffer:
/// 15 bytes behind each row may be written before the next row is.
struct Move {
  void* to;
  int64_t to_row, to_step;
  void const* from;
  int64_t from_row, from_step;
  int64_t rows, count;
};

/// A cache line in registers.
template <class Isa>
struct Line {
  using P = pack<float, Isa::bytes / 4, Isa>;
  P part[64 / Isa::bytes];
  SITU_INLINE explicit Line(char const* from) {
    for (int k = 0; k < 64 / Isa::bytes; ++k) __builtin_memcpy(&part[k].v, from + k * Isa::bytes, Isa::bytes);
  }
  SITU_INLINE void store(char* to) const {
    for (int k = 0; k < 64 / Isa::bytes; ++k) __builtin_memcpy(to + k * Isa::bytes, &part[k].v, Isa::bytes);
  }
  SITU_INLINE void stream(char* to) const {
    for (int k = 0; k < 64 / Isa::bytes; ++k) stream_to(part[k], reinterpret_cast<float*>(to + k * Isa::bytes));
  }
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

/// Pieces of rows, whole lines of which are written past the caches. A line that is begun by one piece and completed by the next
/// waits in `begun`, 64 bytes for each row: all pieces but the last one have at least 64 bytes.
struct StreamRowsBody {
  template <class Isa>
  SITU_INLINE static int run(char* to, int64_t to_row, char const* from, int64_t from_row, int64_t rows, int64_t bytes, char* begun, bool first, bool last) {
    for (int64_t r = 0; r < rows; ++r, to += to_row, from += from_row, begun += 64) {
      int64_t const before = static_cast<int64_t>(reinterpret_cast<std::uintptr_t>(to) & 63);
      int64_t b = 0;
      if (before > 0) {
        b = 64 - before < bytes ? 64 - before : bytes;
        if (first) {
          copy_short(to, from, b);
        } else {
          copy_short(begun + before, from, b);
          if (before + b == 64) Line<Isa>(begun).stream(to - before);
          else copy_short(to - before, begun, before + b);
        }
      }
      for (; b + 64 <= bytes; b += 64) Line<Isa>(from + b).stream(to + b);
      if (b < bytes) copy_short(last ? to + b : begun, from + b, bytes - b);
    }
    return 0;
  }
};

/// Rows of at least one and at most two `Piece`s, which may overlap.
template <class Piece>
inline void copy_short_rows(char* to, int64_t to_row, char const* from, int64_t from_row, int64_t rows, int64_t bytes) {
  int64_t const second = bytes - static_cast<int64_t>(sizeof(Piece));
  for (int64_t r = 0; r < rows; ++r, to += to_row, from += from_row) {
    Piece a, b;
    __builtin_memcpy(&a, from, sizeof(Piece));
    __builtin_memcpy(&b, from + second, sizeof(Piece));
    __builtin_memcpy(to, &a, sizeof(Piece));
    __builtin_memcpy(to + second, &b, sizeof(Piece));
  }
}

/// Rows of bytes; strides in bytes.
inline void copy_rows(char* to, int64_t to_row, char const* from, int64_t from_row, int64_t rows, int64_t bytes) {
  struct Half {
    uint64_t part[4];
  };
  struct Quarter {
    uint64_t part[2];
  };
  if (to_row == bytes && from_row == bytes) bytes *= rows, rows = 1;
  if (bytes >= 64) dispatch<CopyRowsBody>(to, to_row, from, from_row, rows, bytes);
  else if (bytes >= 32) copy_short_rows<Half>(to, to_row, from, from_row, rows, bytes);
  else if (bytes >= 16) copy_short_rows<Quarter>(to, to_row, from, from_row, rows, bytes);
  else if (bytes >= 8) copy_short_rows<uint64_t>(to, to_row, from, from_row, rows, bytes);
  else if (bytes >= 4) copy_short_rows<uint32_t>(to, to_row, from, from_row, rows, bytes);
  else if (bytes >= 2) copy_short_rows<uint16_t>(to, to_row, from, from_row, rows, bytes);
  else copy_short_rows<uint8_t>(to, to_row, from, from_row, rows, bytes);
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
      if (m.from_step == 2 && m.count > lanes) return thin_rows(to, from, m);
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

 private:
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
  /// Every second element.
  static void thin_rows(Word* to, Word const* from, Move const& m) {
    for (int64_t r = 0; r < m.rows; ++r, to += m.to_row, from += m.from_row) {
      int64_t c = 0;
      for (; c + lanes < m.count; c += lanes) store(thinned(load(from + 2 * c), load(from + 2 * c + lanes), Lanes{}), to + c);
      each(to + c, 1, from + 2 * c, 2, m.count - c);
    }
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

inline MoverFunctions const& movers_for(int element_size) {
  return element_size == 4 ? movers_of<uint32_t> : element_size == 8 ? movers_of<uint64_t> : element_size == 2 ? movers_of<uint16_t> : movers_of<uint8_t>;
}

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI

namespace situ::inline SITU_ABI {
namespace detail::cpu {

inline constexpr int max_operands = 64;
inline constexpr int64_t tile_columns = 512;  ///< the longest run that reductions gather
inline constexpr int64_t tile_elements = 16384;
inline constexpr int64_t transposed_columns = 1024;  ///< of a tile: as many rows of a transposed operand keep their pages at hand
inline constexpr int64_t columns_ahead = 48;         ///< how far transposed operands are prefetched: a set of the cache holds few rows
inline constexpr int64_t pack_bytes = 4096;
inline constexpr int64_t scratch_bytes = 32 * 1024;

/// How an index space is cut.
struct TileGrid {
  int row_axis = -1;    ///< taken together with the last axis; -1 when there is no other
  int layer_axis = -1;  ///< and with these two where they are short; -1 when it is not
  bool packs = false;
  bool prefetches = false;
  int64_t pack_layers = 1, pack_rows = 1, pack_columns = 1;
  int64_t tile[max_rank];  ///< the extents of a tile
  int order[max_rank];     ///< of the axes: neighbouring tiles differ in the first
  int64_t tiles = 1;       ///< how many there are
  int64_t elements = 1;    ///< of a tile
};

/// What the walk needs of a geometry: operand o's stride along axis k is strides[o * max_rank + k], in elements.
struct StridedSpace {
  TileGrid grid;
  int rank, operands;
  int64_t const* sizes;
  int64_t const* strides;
  void* const* data;
  bool stream;  ///< write the result past the caches
  int element_sizes[max_operands];

  int64_t stride(int o, int axis) const { return axis < 0 ? 0 : strides[o * max_rank + axis]; }
  int64_t distance(int o, int axis) const { return stride(o, axis) < 0 ? -stride(o, axis) : stride(o, axis); }
  int last() const { return rank - 1; }
  int64_t buffer_bytes() const { return operands * (pack_bytes + 64) <= scratch_bytes ? pack_bytes + 64 : scratch_bytes / operands / 64 * 64; }
  /// Whether operand o is transposed with respect to an axis, and each of its rows is on cache lines of its own.
  bool is_transposed(int o, int axis) const {
    return stride(o, axis) != 0 && distance(o, last()) > distance(o, axis) && distance(o, last()) * element_sizes[o] >= 64;
  }

  SITU_NOINLINE void choose_grid() {
    grid = {};
    int64_t const columns = sizes[last()];
    int64_t shortest = INT64_MAX, n = 1, transposed_size = 8, widest = 1;
    bool buffers = false, transposes = false;
    grid.row_axis = rank - 2;
    for (int k = 0; k < rank; ++k) n *= sizes[k], grid.tile[k] = 1;
    for (int o = 0; o < operands; ++o) {
      if (element_sizes[o] > widest) widest = element_sizes[o];
      if (stride(o, last()) != 0 && stride(o, last()) != 1) buffers = true;
      if (distance(o, last()) <= 1) continue;
      for (int k = 0; k < last(); ++k) {
        if (distance(o, k) == 0 || distance(o, k) >= distance(o, last())) continue;
        transposes = true;
        if (distance(o, k) < shortest) shortest = distance(o, k), grid.row_axis = k;
        if (element_sizes[o] > 0 && element_sizes[o] < transposed_size) transposed_size = element_sizes[o];
        if (n * element_sizes[o] > 256 * 1024 && is_transposed(o, k)) grid.prefetches = true;
      }
    }
    int const row = grid.row_axis;
    int64_t const rows = row < 0 ? 1 : sizes[row];
    int64_t const pack = (buffer_bytes() - 64) >> (widest > 4 ? 3 : widest > 2 ? 2 : widest - 1);
    int64_t& tile_rows = grid.tile[row < 0 ? last() : row];
    int64_t line = 1;  // rows that are packed together, or a multiple of them
    if (transposes) {
      line = 64 / transposed_size < pack / 16 ? 64 / transposed_size : pack / 16;
      if (line > rows) line = rows;
      grid.packs = true;
    } else if (buffers) {
      grid.packs = true;
    } else if (row >= 0) {  // where few operands would have to be copied, longer rows are packed
      bool copies = false;
      for (int o = 0; o < operands; ++o) copies = copies || (stride(o, row) != 0 && (stride(o, row) != columns || stride(o, last()) != 1));
      grid.packs = columns < (copies ? 128 : 512);
      line = 64;  // whole registers, where they fit
      while (line > 1 && line * columns > pack) line /= 2;
    }
    grid.pack_columns = columns < pack ? columns : pack;
    if (transposes && columns > pack / line) grid.pack_columns = pack / line;
    grid.pack_rows = pack / grid.pack_columns;
    if (grid.pack_rows > line) grid.pack_rows = grid.pack_rows / line * line;
    if (grid.pack_rows > rows) grid.pack_rows = rows;

    int64_t const longest = transposes ? transposed_columns : tile_elements;
    int64_t const width = columns < longest ? columns : longest;
    if (row >= 0) {
      tile_rows = tile_elements / width;
      if (transposes && columns > width) tile_rows = grid.pack_rows;
      if (grid.packs) tile_rows = tile_rows < grid.pack_rows ? grid.pack_rows : tile_rows / grid.pack_rows * grid.pack_rows;
      if (tile_rows > rows) tile_rows = rows;
    }
    grid.tile[last()] = width;
    if (rows * columns <= pack / 4) {
      for (int k = last() - 1; k >= 0 && grid.layer_axis < 0; --k) {
        if (k != row) grid.layer_axis = k;
      }
    }
    if (grid.layer_axis >= 0) {
      grid.packs = true;
      grid.prefetches = false;
      grid.pack_rows = rows;
      grid.pack_layers = pack / (rows * columns);
      if (grid.pack_layers > 16) grid.pack_layers = grid.pack_layers / 16 * 16;
      grid.tile[grid.layer_axis] = grid.pack_layers * 8 < sizes[grid.layer_axis] ? grid.pack_layers * 8 : sizes[grid.layer_axis];
    }
    int placed = 0;
    int const first = transposes ? row : last(), second = transposes ? last() : row;
    if (first >= 0) grid.order[placed++] = first;
    if (second >= 0) grid.order[placed++] = second;
    for (int k = last() - 1; k >= 0; --k) {
      if (k != row) grid.order[placed++] = k;
    }
    for (int k = 0; k < rank; ++k) grid.tiles *= tiles(k), grid.elements *= grid.tile[k];
  }
  int64_t tiles(int axis) const {
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
    int64_t const bytes = space.buffer_bytes();
    for (int o = 0; o < space.operands; ++o) {
      buffer_[o] = scratch_ + o * bytes;
      kept_[o] = {};
      step_[o] = space.stride(o, space.last()), row_[o] = space.stride(o, grid_.row_axis), layer_[o] = space.stride(o, grid_.layer_axis);
    }
  }

  void tiles(int64_t first, int64_t end) {
    int64_t remaining = end - first;
    int64_t index[max_rank] = {};  // in tiles, in the order of the grid
    for (int k = 0; first > 0; ++k) {
      int64_t const along = space_.tiles(grid_.order[k]);
      index[k] = first % along;
      first /= along;
    }
    while (remaining-- > 0) {
      int64_t extent[max_rank], start[max_rank];
      for (int k = 0; k < space_.rank; ++k) {
        int const axis = grid_.order[k];
        start[axis] = index[k] * grid_.tile[axis];
        extent[axis] = space_.sizes[axis] - start[axis] < grid_.tile[axis] ? space_.sizes[axis] - start[axis] : grid_.tile[axis];
      }
      for (int o = 0; o < space_.operands; ++o) {
        int64_t offset = 0;
        for (int k = 0; k < space_.rank; ++k) offset += start[k] * space_.stride(o, k);
        place_[o] = static_cast<char*>(space_.data[o]) + offset * space_.element_sizes[o];
      }
      columns_ = extent[space_.last()];
      rows_ = grid_.row_axis < 0 ? 1 : extent[grid_.row_axis];
      tile(grid_.layer_axis < 0 ? 1 : extent[grid_.layer_axis]);
      for (int k = 0; k < space_.rank; ++k) {
        if (++index[k] < space_.tiles(grid_.order[k])) break;
        index[k] = 0;
      }
    }
  }

 private:
  void tile(int64_t layers) {
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

  void pack(int64_t l, int64_t r, int64_t c, int64_t layers, int64_t rows, int64_t count) {
    void* data[max_operands];
    int64_t mask[max_operands];
    if (grid_.prefetches) gather_ahead(r, c, rows, count);
    for (int o = 0; o < space_.operands; ++o) {
      char* const from = at(o, l, r, c);
      bool const dense = (step_[o] == 1 || count == 1) && (row_[o] == count || rows == 1) && (layer_[o] == rows * count || layers == 1);
      data[o] = dense ? from : static_cast<void*>(buffer_[o]);
      mask[o] = -1;
      if (dense || o == 0 || (grid_.prefetches && space_.is_transposed(o, grid_.row_axis))) continue;
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
    if (data[0] != buffer_[0]) return run_(self_, data, mask, layers * rows * count, space_.stream);
    run_(self_, data, mask, layers * rows * count, false);
    int const size = space_.element_sizes[0];
    if (space_.stream && step_[0] == 1 && layers == 1 && grid_.pack_columns * size >= 128 && rows <= begun_rows) {
      dispatch<StreamRowsBody>(at(0, l, r, c), row_[0] * size, reinterpret_cast<char const*>(buffer_[0]), count * size, rows, count * size, begun_,
                               c == 0, c + count == columns_);
    } else {
      move(0, at(0, l, r, c), row_[0], step_[0], layer_[0], buffer_[0], count, 1, rows * count, layers, rows, count);
    }
  }

  /// Moves a box of operand o; strides are those of rows, within rows, and of layers.
  void move(int o, void* to_, int64_t to_row, int64_t to_step, int64_t to_layer, void const* from_, int64_t from_row, int64_t from_step,
            int64_t from_layer, int64_t layers, int64_t rows, int64_t count) const {
    int const size = space_.element_sizes[o];
    auto const move = movers_for(size).move;
    char* const to = static_cast<char*>(to_);
    char const* const from = static_cast<char const*>(from_);
    if (layers == 1 || rows * count >= 64 || from_step == 0) {
      for (int64_t l = 0; l < layers; ++l) {
        move({to + l * to_layer * size, to_row, to_step, from + l * from_layer * size, from_row, from_step, rows, count});
      }
    } else if (rows <= count || (to_step == 1 && from_step == 1)) {  // the shortest axis outside
      for (int64_t r = 0; r < rows; ++r) {
        move({to + r * to_row * size, to_layer, to_step, from + r * from_row * size, from_layer, from_step, layers, count});
      }
    } else {
      for (int64_t c = 0; c < count; ++c) {
        move({to + c * to_step * size, to_layer, to_row, from + c * from_step * size, from_layer, from_row, layers, rows});
      }
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
        if (space_.is_transposed(o, grid_.row_axis)) {
          char const* ahead = next < columns_ ? at(o, 0, r, next) : at(o, 0, r + grid_.pack_rows, next - columns_);
          ahead += (rows - 1) * row_[o] * size;  // the line of the last row: that of the first one may have come before
          for (int64_t j = 0; j < columns; ++j) __builtin_prefetch(ahead + j * step_[o] * size, 0, 2);
          movers_for(size).move({buffer_[o] + begin * size, count, 1, at(o, 0, r, c + begin), row_[o], step_[o], rows, columns});
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
  void* repeated(int o, void const* from) {
    if (kept_[o].from != from) {
      int const size = space_.element_sizes[o];
      if (size > 0) movers_for(size).move({buffer_[o], 64 / size, 1, from, 0, 0, 1, 64 / size});
      kept_[o] = {from, 1, 64 / (size > 0 ? size : 1)};
    }
    return buffer_[o];
  }

  char* at(int o, int64_t l, int64_t r, int64_t c) const {
    return place_[o] + (l * layer_[o] + r * row_[o] + c * step_[o]) * space_.element_sizes[o];
  }
  static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

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

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// Outputs beyond this many bytes are written past the caches when no input is the output.
inline constexpr int64_t streaming_bytes = int64_t{8} << 20;

/// A tree with its type forgotten, and where its operands lie. Trivially copyable: a device may run it later.
template <int Operands, int TreeBytes>
struct BoundTree : Run<Operands> {
  static_assert(Operands <= max_operands, "situ: an expression reads at most 63 tensors; evaluate a part of it first");
  int64_t (*start)(void const* tree, Run<Operands> const* run, bool stream);  ///< whole packs; gives how many elements
  int sizes[Operands];  ///< of an element
  int64_t grain;        ///< elements that are worth a thread of their own: about 40 microseconds
  int lanes;            ///< elements of an AVX-512 pack
  alignas(16) unsigned char tree[TreeBytes];

  /// Contiguous inputs.
  SITU_INLINE void run_contiguous(Run<Operands> const& run, bool stream) const {
    int const pack_lanes = lanes >> (2 - static_cast<int>(current_instruction_set()));
    int64_t const done = run.count < pack_lanes ? 0 : start(tree, &run, stream);
    if (SITU_UNLIKELY(done != run.count)) run_tail(run, done, pack_lanes);
  }
  /// What is left is less than a pack.
  SITU_NOINLINE void run_tail(Run<Operands> const& run, int64_t done, int pack_lanes) const {
    Run<Operands> tail;
    bool in_place = false;
    for (int o = 1; o < Operands; ++o) in_place = in_place || run.data[o] == run.data[0];
    if (done > 0 && !in_place) {  // the last pack's worth: some elements are computed twice
      int64_t const first = run.count - pack_lanes;
      for (int o = 0; o < Operands; ++o) tail.data[o] = static_cast<char*>(run.data[o]) + first * sizes[o];
      tail.count = pack_lanes;
      tail.origin = run.origin + first;
      start(tree, &tail, false);
      return;
    }
    alignas(64) unsigned char buffers[Operands][64];  // on padded copies
    int const left = static_cast<int>(run.count - done);
    load_tails(buffers, run.data, sizes, Operands, done, left);
    for (int o = 0; o < Operands; ++o) tail.data[o] = buffers[o];
    tail.count = lanes;
    tail.origin = run.origin + done;
    start(tree, &tail, false);
    copy_short(static_cast<char*>(run.data[0]) + done * sizes[0], buffers[0], left * sizes[0]);
  }

  /// Contiguous or repeated inputs. Those that repeat are spread over a buffer, and the run is cut to its length.
  void run(Run<Operands>& run, bool stream) const {
    stream = stream && reinterpret_cast<std::uintptr_t>(run.data[0]) % 64 == 0;
    bool repeats = false;
    for (int o = 1; o < Operands; ++o) repeats = repeats || run.mask[o] == 0;
    if (!repeats) return run_contiguous(run, stream);
    constexpr int64_t bytes = Operands <= 8 ? 2048 : 16384 / Operands / 64 * 64;
    alignas(64) unsigned char buffers[Operands][bytes];
    int64_t longest = run.count;
    for (int o = 1; o < Operands; ++o) {
      if (run.mask[o] == 0 && bytes / sizes[o] < longest) longest = bytes / sizes[o];
    }
    longest = longest < run.count ? longest / 64 * 64 : longest;
    for (int o = 1; o < Operands; ++o) {
      if (run.mask[o] != 0) continue;
      for (int64_t at = 0; at < longest * sizes[o]; at += 64) __builtin_memcpy(buffers[o] + at, run.data[o], 64);
      run.data[o] = buffers[o];
    }
    for (int64_t left = run.count; left > 0; left -= longest) {
      run.count = left < longest ? left : longest;
      run_contiguous(run, stream);
      run.origin += run.count;
      for (int o = 0; o < Operands; ++o) {
        if (o == 0 || run.mask[o] != 0) run.data[o] = static_cast<char*>(run.data[o]) + run.count * sizes[o];
      }
    }
  }
};

/// The loops of a tree for the instruction set in force.
template <class Tree, class Out, int Operands>
SITU_NOINLINE int64_t start_tree(void const* tree, Run<Operands> const* run, bool stream) {
  return dispatch<ElementwiseBody<Tree, Out, Operands>>(static_cast<Tree const*>(tree), run, stream);
}

/// All operands contiguous: elements [first, last).
template <int Operands, int TreeBytes>
struct ContiguousKernel {
  BoundTree<Operands, TreeBytes> bound;
  bool stream;

  void operator()(int64_t first, int64_t last) const {
    Run<Operands> run;
    for (int o = 0; o < Operands; ++o) run.data[o] = static_cast<char*>(bound.data[o]) + first * bound.sizes[o];
    run.count = last - first;
    run.origin = first;
    bound.run_contiguous(run, stream && reinterpret_cast<std::uintptr_t>(run.data[0]) % 64 == 0);
    if (SITU_UNLIKELY(stream)) finish_streaming();
  }
};

/// Any strides: tiles [first, last) of the grid.
template <int Operands, int TreeBytes>
struct StridedKernel {
  BoundTree<Operands, TreeBytes> bound;
  bool stream;
  TileGrid grid;
  int rank;
  int64_t sizes[max_rank];
  int64_t strides[Operands][max_rank];

  StridedSpace space() const {
    StridedSpace space{grid, rank, Operands, sizes, &strides[0][0], bound.data, stream, {}};
    for (int o = 0; o < Operands; ++o) space.element_sizes[o] = bound.sizes[o];
    return space;
  }
  void operator()(int64_t first, int64_t last) const {
    run_tiles(space(), first, last, &run_strided, this);
    if (SITU_UNLIKELY(stream)) finish_streaming();
  }

 private:
  static void run_strided(void const* self_, void* const* data, int64_t const* mask, int64_t count, bool stream) {
    auto const& self = *static_cast<StridedKernel const*>(self_);
    Run<Operands> run;
    for (int o = 0; o < Operands; ++o) run.data[o] = data[o], run.mask[o] = mask[o];
    run.count = count;
    run.origin = 0;
    self.bound.run(run, stream);
  }
};

inline bool streams(void* const* data, int operands, int64_t bytes) {
  bool result = bytes >= streaming_bytes;
  for (int o = 1; o < operands; ++o) result = result && data[o] != data[0];
  return result;
}

/// Runs a tree whose operands are contiguous on D, which has the CPU's kernels.
template <class D, int Operands, int TreeBytes>
SITU_NOINLINE void launch_contiguous(BoundTree<Operands, TreeBytes>& bound, int64_t n) {
  if (SITU_UNLIKELY(n == 0)) return;
  if constexpr (is_immediate<D>) {
    if (SITU_LIKELY(n <= bound.grain)) {
      bound.count = n;
      bound.origin = 0;
      return bound.run_contiguous(bound, false);
    }
  }
  ContiguousKernel<Operands, TreeBytes> const kernel{bound, streams(bound.data, Operands, n * bound.sizes[0])};
  device_traits<D>::launch(kernel, n, bound.grain);
}

/// Runs a tree over operands of any layout: layouts[0] is the output's.
template <class D, int Operands, int TreeBytes>
SITU_NOINLINE void launch_strided(BoundTree<Operands, TreeBytes> const& bound, Layout const* const* layouts) {
  StridedKernel<Operands, TreeBytes> kernel;
  kernel.bound = bound;
  kernel.grid = {};
  kernel.rank = bind_strides(layouts, Operands, kernel.sizes, &kernel.strides[0][0]);
  int64_t n = 1;
  for (int k = 0; k < kernel.rank; ++k) n *= kernel.sizes[k];
  if (n == 0) return;
  kernel.stream = streams(bound.data, Operands, n * bound.sizes[0]);
  StridedSpace space = kernel.space();
  space.choose_grid();
  kernel.grid = space.grid;
  device_traits<D>::launch(kernel, kernel.grid.tiles, bound.grain / kernel.grid.elements + 1);
}

/// Binds a tree; the operands' places are still to be set.
template <class Out, int Operands, class Tree, int TreeBytes>
SITU_INLINE void bind_tree(BoundTree<Operands, TreeBytes>& bound, Tree const& tree) {
  static_assert(std::is_trivially_copyable_v<Tree>, "situ: what is mapped over tensors must be trivially copyable");
  using Body = ElementwiseBody<Tree, Out, Operands>;
  ::new (static_cast<void*>(bound.tree)) Tree(tree);
  bound.start = &start_tree<Tree, Out, Operands>;
  for (int o = 0; o < Operands; ++o) bound.sizes[o] = Body::element_size(o);
  constexpr int64_t cost = cost_of<Tree> + static_cast<int>(sizeof(Out));  // in tens of picoseconds
  bound.grain = (int64_t{4000000} / cost + 1023) / 1024 * 1024;
  bound.lanes = 64 / Body::widest_lane;
}

template <class Tree>
inline constexpr int tree_bytes = static_cast<int>((sizeof(Tree) + 63) / 64 * 64);

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
#if defined(__CUDACC__)

// ---- <situ/expr/cuda/launch.hpp>
/// Launching a Program on a GPU. Each expression has two kernels, shared by all devices:
///
/// contiguous  every thread moves 16 bytes of the widest operand at a time, several of them in flight
/// strided     axes are walked with fast division; along the innermost one a thread still handles as many neighbours,
///             with 16-byte accesses for the operands that allow it


// ---- <situ/device/cuda/launch.hpp>
/// Launching kernels on a GPU: checked, on the device's current stream, with numbers that were looked up once.


#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

inline constexpr int block_threads = 256;

/// Unsigned division by a number that is known before the launch, for numerators below 2^31:
/// q = (high(n * multiplier) + n) >> shift.
struct FastDivisor {
  uint32_t divisor, multiplier, shift;

  static FastDivisor of(int64_t d) {
    FastDivisor result{static_cast<uint32_t>(d), 0, 0};
    while (result.shift < 32 && (uint64_t{1} << result.shift) < static_cast<uint64_t>(d)) ++result.shift;
    result.multiplier =
        static_cast<uint32_t>((uint64_t{1} << 32) * ((uint64_t{1} << result.shift) - static_cast<uint64_t>(d)) / static_cast<uint64_t>(d) + 1);
    return result;
  }
  SITU_DEVICE uint32_t quotient(uint32_t n) const { return (__umulhi(n, multiplier) + n) >> shift; }
};

/// How many blocks fill the device once, at eight blocks for each multiprocessor.
inline int64_t full_grid(int device) {
  require_device(device);
  return int64_t{8} * __atomic_load_n(&process_state().devices[device].multiprocessors, __ATOMIC_RELAXED);
}

/// Starts kernel(argument). `what` names it in messages. Throws CudaError, DeviceUnavailable.
template <class Argument>
void launch(int device, char const* what, void (*kernel)(Argument), dim3 blocks, int threads, std::remove_cv_t<Argument> const& argument) {
  DeviceGuard const guard(device);
  void* arguments[] = {const_cast<void*>(static_cast<void const*>(&argument))};
  cudaError_t const code = cudaLaunchKernel(reinterpret_cast<void const*>(kernel), blocks, dim3(static_cast<unsigned>(threads)), arguments, 0, current_stream(device));
  check(device, code, "launching ", what);
}

}  // namespace detail::cuda
}  // namespace situ::inline SITU_ABI

#endif

// ---- <situ/expr/cuda/evaluate.hpp>
/// Evaluation of a tree in a CUDA thread: a few neighbouring elements of every input are held in registers, then the
/// formula is computed for one after the other. Device only, so that a function that cannot run there is an error.


#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

template <int Bytes>
struct word;
template <>
struct word<1> {
  using type = unsigned char;
};
template <>
struct word<2> {
  using type = unsigned short;
};
template <>
struct word<4> {
  using type = unsigned int;
};
template <>
struct word<8> {
  using type = unsigned long long;
};
/// The bits of a T, as memory holds them.
template <class T>
using word_of = typename word<sizeof(T)>::type;

/// One element from memory as the type that it is computed in.
template <class T>
SITU_DEVICE __forceinline__ compute_t<T> from_word(word_of<T> bits) {
  if constexpr (std::is_same_v<T, bool>) {
    return bits != 0;
  } else if constexpr (std::is_same_v<T, float16>) {
    float result;
    asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(bits));
    return result;
  } else if constexpr (std::is_same_v<T, bfloat16>) {
    return __uint_as_float(static_cast<unsigned>(bits) << 16);
  } else {
    return bits_to<T>(bits);
  }
}

/// The way back: 16-bit floats are rounded to nearest even.
template <class T>
SITU_DEVICE __forceinline__ word_of<T> to_word(compute_t<T> value) {
  if constexpr (std::is_same_v<T, float16>) {
    unsigned short result;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result) : "f"(value));
    return result;
  } else if constexpr (std::is_same_v<T, bfloat16>) {
#if __CUDA_ARCH__ >= 800
    unsigned short result;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result) : "f"(value));
    return result;
#else
    return bfloat_bits(value);
#endif
  } else if constexpr (std::is_same_v<T, bool>) {
    return value ? 1 : 0;
  } else {
    return bits_to<word_of<T>>(value);
  }
}

/// The registers that N neighbouring elements of type T fill: a transfer of 16, 8, 4, 2 or 1 bytes.
template <class T, int N>
struct Lanes {
  static constexpr int bytes = N * static_cast<int>(sizeof(T));
  static_assert(bytes <= 16 && (bytes & (bytes - 1)) == 0);
  unsigned words[(bytes + 3) / 4];

  SITU_DEVICE __forceinline__ void load(T const* from) {
    if constexpr (bytes == 16) {
      uint4 const v = *reinterpret_cast<uint4 const*>(from);
      words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
    } else if constexpr (bytes == 8) {
      uint2 const v = *reinterpret_cast<uint2 const*>(from);
      words[0] = v.x, words[1] = v.y;
    } else {
      words[0] = *reinterpret_cast<typename word<bytes>::type const*>(from);
    }
  }
  SITU_DEVICE __forceinline__ void store(T* to) const {
    if constexpr (bytes == 16) *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
    else if constexpr (bytes == 8) *reinterpret_cast<uint2*>(to) = make_uint2(words[0], words[1]);
    else *reinterpret_cast<typename word<bytes>::type*>(to) = static_cast<typename word<bytes>::type>(words[0]);
  }
  /// The first `count` of them, `stride` elements apart; the others become 0.
  SITU_DEVICE __forceinline__ void load_each(T const* from, int64_t stride, int count) {
    clear();
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if (j < count) insert(j, *reinterpret_cast<word_of<T> const*>(from + j * stride));
    }
  }
  SITU_DEVICE __forceinline__ void store_each(T* to, int64_t stride, int count) const {
#pragma unroll
    for (int j = 0; j < N; ++j) {
      if (j < count) *reinterpret_cast<word_of<T>*>(to + j * stride) = bits(j);
    }
  }

  SITU_DEVICE __forceinline__ void clear() {
#pragma unroll
    for (unsigned& w : words) w = 0;
  }
  SITU_DEVICE __forceinline__ word_of<T> bits(int j) const {
    if constexpr (sizeof(T) == 8) return words[2 * j] | static_cast<unsigned long long>(words[2 * j + 1]) << 32;
    else if constexpr (sizeof(T) == 4) return words[j];
    else if constexpr (sizeof(T) == 2) return static_cast<unsigned short>(words[j / 2] >> (j % 2 * 16));
    else return static_cast<unsigned char>(words[j / 4] >> (j % 4 * 8));
  }
  /// Sets lane j, which is 0.
  SITU_DEVICE __forceinline__ void insert(int j, word_of<T> bits) {
    if constexpr (sizeof(T) == 8) words[2 * j] = static_cast<unsigned>(bits), words[2 * j + 1] = static_cast<unsigned>(bits >> 32);
    else if constexpr (sizeof(T) == 4) words[j] = bits;
    else if constexpr (sizeof(T) == 2) words[j / 2] |= static_cast<unsigned>(bits) << (j % 2 * 16);
    else words[j / 4] |= static_cast<unsigned>(bits) << (j % 4 * 8);
  }
};

/// N elements of each input of a tree, in the tree's order.
template <class Tree, int N>
struct Held {};
template <class T, int K, int N>
struct Held<Input<T, K>, N> {
  Lanes<T, N> lanes;
};
template <class Op, class... Ts, int N>
struct Held<Apply<Op, Ts...>, N> {
  Fields<Held<Ts, N>...> operands;
};

/// Fills what is held: `source.load<T, K>(lanes)` for every input.
template <class Tree, int N, class S>
SITU_DEVICE __forceinline__ void hold(Held<Tree, N>&, S const&) {}
template <class T, int K, int N, class S>
SITU_DEVICE __forceinline__ void hold(Held<Input<T, K>, N>& held, S const& source) {
  source.template load<T, K>(held.lanes);
}
template <class S>
SITU_DEVICE __forceinline__ void hold_fields(Fields<>&, S const&) {}
template <class H, class... Hs, class S>
SITU_DEVICE __forceinline__ void hold_fields(Fields<H, Hs...>& fields, S const& source);
template <class Op, class... Ts, int N, class S>
SITU_DEVICE __forceinline__ void hold(Held<Apply<Op, Ts...>, N>& held, S const& source) {
  hold_fields(held.operands, source);
}
template <class H, class... Hs, class S>
SITU_DEVICE __forceinline__ void hold_fields(Fields<H, Hs...>& fields, S const& source) {
  hold(fields.head, source);
  hold_fields(fields.tail, source);
}

/// The value of a tree for lane j, in the type that its elements are computed in.
struct Evaluator {
  template <class T, int K, int N>
  SITU_DEVICE __forceinline__ static compute_t<T> value(Input<T, K> const&, Held<Input<T, K>, N> const& held, int j, int64_t) {
    return from_word<T>(held.lanes.bits(j));
  }
  template <class T, int N>
  SITU_DEVICE __forceinline__ static compute_t<T> value(Constant<T> const& constant, Held<Constant<T>, N> const&, int, int64_t) {
    return constant.value;
  }
  template <int N>
  SITU_DEVICE __forceinline__ static int64_t value(Index const&, Held<Index, N> const&, int j, int64_t index) {
    return index + j;
  }
  template <class Op, class... Ts, int N>
  SITU_DEVICE __forceinline__ static auto value(Apply<Op, Ts...> const& node, Held<Apply<Op, Ts...>, N> const& held, int j, int64_t index) {
    return operands<0>(node, node.operands, held.operands, j, index);
  }

 private:
  /// Evaluates the operands one after the other, converted to what the function takes, then the function.
  template <int K, class Node, class T, class... Ts, class H, class... Done>
  SITU_DEVICE __forceinline__ static auto operands(Node const& node, Fields<T, Ts...> const& rest, H const& held, int j, int64_t index,
                                                   Done const&... done) {
    using Wanted = typename Node::types::template operand<K>;
    compute_t<Wanted> const x = convert_scalar<compute_t<Wanted>>(value(rest.head, held.head, j, index));
    if constexpr (sizeof...(Ts) > 0) return operands<K + 1>(node, rest.tail, held.tail, j, index, done..., x);
    else return apply(node, done..., x);
  }
  template <class Op, class... Ts, class... Xs>
  SITU_DEVICE __forceinline__ static compute_t<typename Apply<Op, Ts...>::value_type> apply(Apply<Op, Ts...> const& node, Xs const&... xs) {
    using R = typename Apply<Op, Ts...>::value_type;
    if constexpr (functions::is_mapped<Op>) {
      return convert_scalar<compute_t<R>>(node.op.device_value(static_cast<typename Ts::value_type>(xs)...));
    } else if constexpr (functions::is_cast<Op>) {
      compute_t<R> const y = convert_scalar<compute_t<R>>(Op::value(xs...));
      return from_word<R>(to_word<R>(y));
    } else {
      return convert_scalar<compute_t<R>>(Op::value(xs...));
    }
  }
};

/// The widest element that a tree reads from memory: it decides how many neighbours a thread handles.
template <class Tree>
inline constexpr int widest_input = 1;
template <class T, int K>
inline constexpr int widest_input<Input<T, K>> = static_cast<int>(sizeof(T));
template <class Op, class... Ts>
inline constexpr int widest_input<Apply<Op, Ts...>> = [] {
  int result = 1;
  for (int w : {widest_input<Ts>...}) result = w > result ? w : result;
  return result;
}();

/// The size of an element of input k.
template <class T, int K>
constexpr int input_size(std::type_identity<Input<T, K>>, int k) {
  return k == K ? static_cast<int>(sizeof(T)) : 0;
}
template <class Leaf>
constexpr int input_size(std::type_identity<Leaf>, int) {
  return 0;
}
template <class Op, class... Ts>
constexpr int input_size(std::type_identity<Apply<Op, Ts...>>, int k) {
  return (0 + ... + input_size(std::type_identity<Ts>{}, k));
}

}  // namespace detail::cuda
}  // namespace situ::inline SITU_ABI

#endif

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

inline constexpr int64_t index_limit = int64_t{1} << 31;  // what 32-bit indices and FastDivisor reach

/// How many neighbouring elements a thread handles at once.
template <class P>
inline constexpr int lanes_of =
    16 / (widest_input<typename P::tree_type> > static_cast<int>(sizeof(typename P::out_type)) ? widest_input<typename P::tree_type>
                                                                                                : static_cast<int>(sizeof(typename P::out_type)));

/// How many times a thread of the contiguous kernel does so: about four loads are in flight, and few registers are held.
template <class P>
inline constexpr int rounds_of = lanes_of<P> > 4 || P::leaves > 3 ? 1 : P::leaves <= 1 ? 4 : 2;

template <class P>
struct ContiguousArguments {
  typename P::tree_type tree;
  void* data[P::leaves + 1];
  int64_t count;
  bool vectors;  ///< every operand is aligned to its lanes
  explicit ContiguousArguments(typename P::tree_type const& tree) : tree(tree) {}
};

/// N elements from number `first` on; `count` of them exist.
struct ContiguousSource {
  void* const* data;
  int64_t first;
  int count;
  bool whole;
  template <class T, int K, int N>
  SITU_DEVICE __forceinline__ void load(Lanes<T, N>& lanes) const {
    T const* const from = static_cast<T const*>(data[K + 1]) + first;
    if (whole) lanes.load(from);
    else lanes.load_each(from, 1, count);
  }
};

template <class P>
__global__ void __launch_bounds__(block_threads) contiguous_kernel(const __grid_constant__ ContiguousArguments<P> arguments) {
  using Tree = typename P::tree_type;
  using Out = typename P::out_type;
  constexpr int N = lanes_of<P>, rounds = rounds_of<P>;
  Held<Tree, N> held[rounds];
  int64_t const origin = (static_cast<int64_t>(blockIdx.x) * (rounds * static_cast<int>(blockDim.x)) + static_cast<int>(threadIdx.x)) * N;
  int const step = static_cast<int>(blockDim.x) * N;
#pragma unroll
  for (int r = 0; r < rounds; ++r) {  // all loads come before the first store, which might write to the same memory
    int64_t const first = origin + r * step, left = arguments.count - first;
    int const count = left >= N ? N : left > 0 ? static_cast<int>(left) : 0;
    hold(held[r], ContiguousSource{arguments.data, first, count, arguments.vectors && count == N});
  }
#pragma unroll
  for (int r = 0; r < rounds; ++r) {
    int64_t const first = origin + r * step, left = arguments.count - first;
    int const count = left >= N ? N : left > 0 ? static_cast<int>(left) : 0;
    Lanes<Out, N> result;
    result.clear();
#pragma unroll
    for (int j = 0; j < N; ++j) {
      result.insert(j, to_word<Out>(convert_scalar<compute_t<Out>>(Evaluator::value(arguments.tree, held[r], j, first))));
    }
    Out* const to = static_cast<Out*>(arguments.data[0]) + first;
    if (arguments.vectors && count == N) result.store(to);
    else result.store_each(to, 1, count);
  }
}

/// Rows of `inner` elements, the rows numbered over all other axes; a block covers a tile of columns and rows, so that
/// operands which run across the rows find their neighbours in its cache.
template <class P>
struct StridedArguments {
  static constexpr int operands = P::leaves + 1;
  typename P::tree_type tree;
  void* data[operands];
  int strides[operands][max_rank];
  FastDivisor sizes[max_rank];     ///< of the outer axes
  FastDivisor tile_columns;        ///< tiles side by side
  unsigned rows, inner;
  int outer_rank;                  ///< the innermost axis has this number
  int column_bits;                 ///< a tile is 2^column_bits threads wide
  uint64_t vectors;                ///< bit o: operand o takes 16-byte accesses
  explicit StridedArguments(typename P::tree_type const& tree) : tree(tree) {}
};

template <class A>
struct StridedSource {
  A const& arguments;
  int64_t const* offsets;
  int count;
  template <class T, int K, int N>
  SITU_DEVICE __forceinline__ void load(Lanes<T, N>& lanes) const {
    T const* const from = static_cast<T const*>(arguments.data[K + 1]) + offsets[K + 1];
    if (count == N && (arguments.vectors >> (K + 1) & 1)) lanes.load(from);
    else lanes.load_each(from, arguments.strides[K + 1][arguments.outer_rank], count);
  }
};

template <class P>
__global__ void __launch_bounds__(block_threads) strided_kernel(const __grid_constant__ StridedArguments<P> arguments) {
  using Tree = typename P::tree_type;
  using Out = typename P::out_type;
  constexpr int N = lanes_of<P>, operands = P::leaves + 1;
  unsigned const tile_row = arguments.tile_columns.quotient(blockIdx.x);
  unsigned const tile_column = blockIdx.x - tile_row * arguments.tile_columns.divisor;
  int const bits = arguments.column_bits;
  unsigned row = tile_row * (static_cast<unsigned>(block_threads) >> bits) + (threadIdx.x >> bits);
  unsigned const column = ((tile_column << bits) + (threadIdx.x & ((1u << bits) - 1))) * N;
  if (row >= arguments.rows || column >= arguments.inner) return;
  int const count = arguments.inner - column < N ? static_cast<int>(arguments.inner - column) : N;

  int64_t const index = static_cast<int64_t>(row) * arguments.inner + column;
  int64_t offsets[operands];
#pragma unroll
  for (int o = 0; o < operands; ++o) offsets[o] = static_cast<int64_t>(arguments.strides[o][arguments.outer_rank]) * static_cast<int>(column);
#pragma unroll 1
  for (int k = arguments.outer_rank - 1; k >= 0; --k) {
    unsigned const q = arguments.sizes[k].quotient(row);
    int const place = static_cast<int>(row - q * arguments.sizes[k].divisor);
    row = q;
#pragma unroll
    for (int o = 0; o < operands; ++o) offsets[o] += static_cast<int64_t>(arguments.strides[o][k]) * place;
  }

  Held<Tree, N> held;
  hold(held, StridedSource<StridedArguments<P>>{arguments, offsets, count});
  Lanes<Out, N> result;
  result.clear();
#pragma unroll
  for (int j = 0; j < N; ++j) {
    result.insert(j, to_word<Out>(convert_scalar<compute_t<Out>>(Evaluator::value(arguments.tree, held, j, index))));
  }
  Out* const to = static_cast<Out*>(arguments.data[0]) + offsets[0];
  if (count == N && (arguments.vectors & 1)) result.store(to);
  else result.store_each(to, arguments.strides[0][arguments.outer_rank], count);
}

/// The untyped part of a geometry, for what is decided once for all kernels.
struct StridedSpace {
  int operands, rank;
  void* data[64];
  int64_t sizes[max_rank];
  int64_t strides[64][max_rank];
  int const* element_sizes;

  /// Moves operand pointers by `steps` along axis k.
  void advance(int k, int64_t steps) {
    for (int o = 0; o < operands; ++o) data[o] = static_cast<char*>(data[o]) + steps * strides[o][k] * element_sizes[o];
  }

  /// Calls run(context, part) on parts of the space that 32-bit indices and strides reach: nearly always on all of it.
  void for_each_part(void (*run)(void*, StridedSpace const&), void* context) {
    for (int k = 0; k < rank; ++k) {
      bool far = false;
      for (int o = 0; o < operands; ++o) far = far || strides[o][k] >= index_limit || strides[o][k] <= -index_limit;
      if (!far) continue;
      int64_t const size = sizes[k];
      for (int o = 0; size == 1 && o < operands; ++o) strides[o][k] = 0;
      if (size == 1) continue;
      for (int64_t i = 0; i < size; ++i) {
        StridedSpace part = *this;
        part.advance(k, i);
        part.sizes[k] = 1;
        for (int o = 0; o < operands; ++o) part.strides[o][k] = 0;
        part.for_each_part(run, context);
      }
      return;
    }
    int64_t count = 1;
    int cut = -1;
    for (int k = rank - 1; k >= 0; --k) {
      if (sizes[k] > 1) cut = k;  // the outermost axis that has anything to cut
      count = sizes[k] < index_limit && count < index_limit ? count * sizes[k] : index_limit;
    }
    if (count < index_limit) return run(context, *this);
    StridedSpace head = *this;
    int64_t const half = sizes[cut] / 2;
    head.sizes[cut] = half;
    head.for_each_part(run, context);
    advance(cut, half);
    sizes[cut] -= half;
    for_each_part(run, context);
  }

  /// Whether operand o may be accessed `lanes` elements at once along the innermost axis.
  bool takes_vectors(int o, int lanes) const {
    bool result = strides[o][rank - 1] == 1 && reinterpret_cast<std::uintptr_t>(data[o]) % static_cast<std::size_t>(lanes * element_sizes[o]) == 0;
    for (int k = 0; k + 1 < rank; ++k) result = result && strides[o][k] % lanes == 0;
    return result;
  }

  /// The width of a tile in threads, as a power of 2: whole rows, or narrow where an operand runs across the rows.
  int column_bits(int64_t columns) const {
    bool across = false;
    for (int o = 0; o < operands; ++o) {
      int64_t const inner = strides[o][rank - 1];
      if (inner <= 1 && inner >= -1) continue;
      for (int k = 0; k + 1 < rank; ++k) across = across || (strides[o][k] != 0 && strides[o][k] < inner && -strides[o][k] < inner);
    }
    int bits = 0;
    while (bits < (across ? 3 : 8) && (int64_t{1} << bits) < columns) ++bits;
    return bits;
  }
};

template <class P>
constexpr int element_size(int o) {
  return o == 0 ? static_cast<int>(sizeof(typename P::out_type)) : input_size(std::type_identity<typename P::tree_type>{}, o - 1);
}

template <class P>
void launch_contiguous(int device, P const& program, int const* element_sizes) {
  constexpr int N = lanes_of<P>, rounds = rounds_of<P>;
  ContiguousArguments<P> arguments(program.tree);
  arguments.count = program.where.sizes[0];
  arguments.vectors = true;
  for (int o = 0; o <= P::leaves; ++o) {
    arguments.data[o] = program.where.data[o];
    arguments.vectors = arguments.vectors && reinterpret_cast<std::uintptr_t>(arguments.data[o]) % static_cast<std::size_t>(N * element_sizes[o]) == 0;
  }
  int threads = block_threads;
  int64_t const full = full_grid(device);
  while (threads > 64 && arguments.count <= full / 2 * threads * rounds * N / 4) threads /= 2;  // spread small work over more multiprocessors
  int64_t const chunk = int64_t{threads} * rounds * N;
  launch(device, "an elementwise kernel", contiguous_kernel<P>, dim3(static_cast<unsigned>((arguments.count + chunk - 1) / chunk)), threads, arguments);
}

template <class P>
void launch_strided(int device, typename P::tree_type const& tree, StridedSpace const& space) {
  constexpr int N = lanes_of<P>;
  StridedArguments<P> arguments(tree);
  arguments.outer_rank = space.rank - 1;
  arguments.inner = static_cast<unsigned>(space.sizes[space.rank - 1]);
  arguments.vectors = 0;
  int64_t rows = 1;
  for (int k = 0; k < space.rank; ++k) {
    if (k + 1 < space.rank) rows *= space.sizes[k], arguments.sizes[k] = FastDivisor::of(space.sizes[k]);
    for (int o = 0; o <= P::leaves; ++o) arguments.strides[o][k] = static_cast<int>(space.strides[o][k]);
  }
  for (int o = 0; o <= P::leaves; ++o) {
    arguments.data[o] = space.data[o];
    if (space.takes_vectors(o, N)) arguments.vectors |= uint64_t{1} << o;
  }
  int64_t const columns = (space.sizes[space.rank - 1] + N - 1) / N;
  int const bits = space.column_bits(columns);
  int64_t const tile_columns = (columns + (int64_t{1} << bits) - 1) >> bits;
  int64_t const tile_rows = (rows + (block_threads >> bits) - 1) / (block_threads >> bits);
  arguments.rows = static_cast<unsigned>(rows);
  arguments.column_bits = bits;
  arguments.tile_columns = FastDivisor::of(tile_columns);
  launch(device, "an elementwise kernel", strided_kernel<P>, dim3(static_cast<unsigned>(tile_columns * tile_rows)), block_threads, arguments);
}

template <class P>
void launch_program(int device, P const& program) {
  static_assert(P::leaves < 64, "situ: an expression reads at most 63 tensors; evaluate a part of it first");
  auto const& where = program.where;
  if (where.size() == 0) return;
  int element_sizes[P::leaves + 1];
  for (int o = 0; o <= P::leaves; ++o) element_sizes[o] = element_size<P>(o);
  if (where.contiguous) return launch_contiguous(device, program, element_sizes);
  StridedSpace space;
  space.operands = P::leaves + 1;
  space.rank = where.rank;
  space.element_sizes = element_sizes;
  for (int k = 0; k < where.rank; ++k) space.sizes[k] = where.sizes[k];
  for (int o = 0; o <= P::leaves; ++o) {
    space.data[o] = where.data[o];
    for (int k = 0; k < where.rank; ++k) space.strides[o][k] = where.strides[o][k];
  }
  struct Context {
    int device;
    P const& program;
  } context{device, program};
  space.for_each_part(
      [](void* self, StridedSpace const& part) {
        auto const& c = *static_cast<Context const*>(self);
        launch_strided<P>(c.device, c.program.tree, part);
      },
      &context);
}

}  // namespace detail::cuda

namespace detail {
inline namespace SITU_ABI_COMPILER {

/// Runs a bound program on D, which has CUDA's kernels: enqueued on the device's current stream.
template <class D, class P>
void launch_elementwise(cuda_kernels, P const& program) {
  cuda::launch_program(device_traits<D>::ordinal, program);
}

}  // namespace SITU_ABI_COMPILER
}  // namespace detail
}  // namespace situ::inline SITU_ABI

#endif
#endif

namespace situ::inline SITU_ABI {
namespace detail {

#if !defined(__CUDACC__)
/// Asked where a kernel of Cuda would be launched. Without SITU_WITH_CUDA the device itself says what is missing.
#if defined(SITU_WITH_CUDA)
template <class>
inline constexpr bool compiled_by_nvcc = false;
#else
template <class>
inline constexpr bool compiled_by_nvcc = true;
#endif

inline namespace SITU_ABI_COMPILER {
template <class D, class P>
void launch_elementwise(cuda_kernels, P const&) {
  static_assert(compiled_by_nvcc<P>,
                "situ: evaluating_on_Cuda_needs_nvcc: this file is not compiled by nvcc; name it .cu, or keep to making, moving and "
                "printing Cuda tensors here");
}
}  // namespace SITU_ABI_COMPILER
#endif

/// Writes the values of e, broadcast to the layout's shape, to memory of D. One launch; none for an empty shape.
/// `same`: that nothing is broadcast, and e has this very shape.
template <class D, class T, class E>
void evaluate(T* data, Layout const& layout, bool is_contiguous, E const& e, bool same) {
  constexpr int operands = leaf_count<E> + 1;
  Layout const* layouts[operands];
  if constexpr (std::is_same_v<typename device_traits<D>::kernels, cpu_kernels>) {
    cpu::BoundTree<operands, cpu::tree_bytes<tree_of<E>>> bound;
    cpu::bind_tree<T>(bound, lower<0>(e));
    bound.data[0] = data;
    bool const contiguous = collect_places(e, bound.data) && is_contiguous && same;
    if (SITU_LIKELY(contiguous)) return cpu::launch_contiguous<D>(bound, layout.size());
    collect_layouts(e, layout, layouts);
    cpu::launch_strided<D>(bound, layouts);
  } else {
    Program<tree_of<E>, T, leaf_count<E>> program(lower<0>(e));
    auto& where = program.where;
    where.data[0] = data;
    where.contiguous = collect_places(e, where.data) && is_contiguous && same;
    where.rank = 1;
    where.sizes[0] = layout.size();
    if (!where.contiguous) {
      collect_layouts(e, layout, layouts);
      where.rank = bind_strides(layouts, operands, where.sizes, &where.strides[0][0]);
      where.contiguous = where.rank == 1;
      for (int o = 0; o < operands; ++o) where.contiguous = where.contiguous && where.strides[o][0] == 1;
    }
    launch_elementwise<D>(typename device_traits<D>::kernels{}, program);
  }
}
template <class D, class T, class E>
SITU_INLINE void evaluate(T* data, Layout const& layout, bool is_contiguous, E const& e) {
  Shape const* const own = shape_of(e);
  evaluate<D>(data, layout, is_contiguous, e, is_uniform(e) && (!own || same_shape(*own, layout.shape)));
}

/// Fills `count` consecutive elements of D from a tree without inputs.
template <class D, class T, class Tree>
void evaluate_tree(T* data, int64_t count, Tree const& tree) {
  if constexpr (std::is_same_v<typename device_traits<D>::kernels, cpu_kernels>) {
    cpu::BoundTree<1, cpu::tree_bytes<Tree>> bound;
    cpu::bind_tree<T>(bound, tree);
    bound.data[0] = data;
    cpu::launch_contiguous<D>(bound, count);
  } else {
    Program<Tree, T, 0> program(tree);
    program.where.data[0] = data;
    program.where.contiguous = true;
    program.where.rank = 1;
    program.where.sizes[0] = count;
    launch_elementwise<D>(typename device_traits<D>::kernels{}, program);
  }
}

/// The value of an expression as a tensor of its own type and device.
template <class E>
auto evaluated(E&& e) {
  using Plain = std::remove_cvref_t<E>;
  using Result = Tensor<typename Plain::value_type, result_device_t<typename Plain::device_type>>;
  if constexpr (std::is_same_v<Plain, Tensor<typename Plain::value_type, typename Plain::device_type>>) return Plain(static_cast<E&&>(e));
  else return Result(static_cast<E&&>(e));
}

/// Whether memory that is written shares bytes with memory that is read, in another order than index by index.
inline bool overlap_differently(void const* written, std::size_t written_size, Layout const& to, void const* read, std::size_t read_size,
                                Layout const& from) {
  auto const a = to.extent(), b = from.extent();
  if (a.last < a.first || b.last < b.first) return false;
  auto const at = [](void const* p, int64_t offset, std::size_t size) {
    return static_cast<char const*>(p) + offset * static_cast<int64_t>(size);
  };
  char const* const a0 = at(written, a.first, written_size);
  char const* const a1 = at(written, a.last + 1, written_size);
  char const* const b0 = at(read, b.first, read_size);
  char const* const b1 = at(read, b.last + 1, read_size);
  if (a1 <= b0 || b1 <= a0) return false;
  if (written != read || written_size != read_size || !(to.shape == from.shape)) return true;
  for (int k = 0; k < to.rank(); ++k) {
    if (to.shape[k] > 1 && to.strides[k] != from.strides[k]) return true;
  }
  return false;
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI

// ---- <situ/expr/explain.hpp>
/// explain: a fused kernel in words.


namespace situ::inline SITU_ABI {
namespace detail {

/// What explain collects: the inputs in the order of their first appearance, each with a letter.
struct Explanation {
  struct Entry {
    void const* data;
    std::string text;
    int64_t bytes;
    Layout layout;
  };
  Entry entries[64];
  int count = 0;
  int64_t reads = 0;

  static std::string letter(int k) {
    std::string name(1, static_cast<char>('a' + k % 26));
    return k < 26 ? name : name + std::to_string(k / 26);
  }

  template <class T, class D>
  std::string input(Tensor<T, D> const& x, Shape const& shape) {
    for (int k = 0; k < count; ++k) {
      if (entries[k].data == x.data() && entries[k].layout.shape == x.shape() && entries[k].layout.strides == x.strides()) return letter(k);
    }
    if (count == 64) return "x";
    int64_t distinct = 1;  // elements that a broadcast input really has
    for (int k = 0; k < x.rank(); ++k) distinct *= x.strides()[k] == 0 && x.shape()[k] > 0 ? 1 : x.shape()[k];
    int64_t const bytes = distinct * static_cast<int64_t>(sizeof(T));
    char const* const how = !(x.shape() == shape) ? ", broadcast" : x.is_contiguous() ? "" : x.layout().is_broadcast() ? ", broadcast" : ", strided";
    entries[count] = {x.data(), text(letter(count), ": ", dtype_name<T>(), " ", x.shape(), " on ", device_traits<D>::name(), how, ", ", bytes, " bytes"),
                      bytes, x.layout()};
    reads += bytes;
    return letter(count++);
  }
};

template <class T>
std::string number_text(T value) {
  if constexpr (std::is_same_v<T, bool>) return value ? "true" : "false";
  else if constexpr (std::is_floating_point_v<T>) {
    char buffer[32];
    __builtin_snprintf(buffer, sizeof buffer, "%.9g", static_cast<double>(value));
    return buffer;
  } else return std::to_string(value);
}

/// Formulas are put in parentheses where they stand inside an operator.
template <class T, class D>
std::string formula(Tensor<T, D> const& x, Explanation& seen, Shape const& shape, bool) {
  return seen.input(x, shape);
}
template <class T>
std::string formula(Constant<T> const& c, Explanation&, Shape const&, bool) {
  return number_text(c.value);
}
template <class Op, class... Es>
std::string formula(Map<Op, Es...> const& map, Explanation& seen, Shape const& shape, bool inside);

inline void formulas(Fields<> const&, Explanation&, Shape const&, bool, std::string*) {}
template <class E, class... Es>
void formulas(Fields<E, Es...> const& operands, Explanation& seen, Shape const& shape, bool inside, std::string* to) {
  *to = formula(operands.head, seen, shape, inside);
  formulas(operands.tail, seen, shape, inside, to + 1);
}

template <class Op, class... Es>
std::string formula(Map<Op, Es...> const& map, Explanation& seen, Shape const& shape, bool inside) {
  std::string parts[sizeof...(Es)];
  std::string name = Op::name;
  bool const infix = name.compare(0, 8, "operator") == 0;
  formulas(map.operands, seen, shape, infix, parts);
  if constexpr (functions::is_cast<Op>) name += std::string("<") + dtype_name<typename Map<Op, Es...>::value_type>() + ">";
  std::string result;
  if (infix) {
    std::string const symbol = name.substr(8);
    result = sizeof...(Es) == 1 ? symbol + parts[0] : parts[0];
    for (std::size_t k = 1; k < sizeof...(Es); ++k) result += " " + symbol + " " + parts[k];
    return inside ? "(" + result + ")" : result;
  }
  result = name + "(";
  for (std::size_t k = 0; k < sizeof...(Es); ++k) result += (k ? ", " : "") + parts[k];
  return result + ")";
}

}  // namespace detail

/// The kernel that an expression becomes: its formula, its inputs, the bytes that it moves and the operations per element.
///
///     one kernel for 1000 elements on cpu: out = a * b + 2
///       a: float32 [1000] on cpu, 4000 bytes
///       b: float32 [1000] on cpu, 4000 bytes
///       out: float32 [1000] on cpu, 4000 bytes
///       moves 12000 bytes, 2 operations per element
template <class E>
  requires expression<E>
std::string explain(E const& e) {
  using T = value_of<E>;
  detail::Explanation seen;
  std::string const formula = detail::formula(e, seen, e.shape(), false);
  std::string const where = device_traits<detail::result_device_t<device_of<E>>>::name();
  int64_t const written = e.size() * static_cast<int64_t>(sizeof(T));
  int constexpr operations = detail::operation_count<detail::tree_of<E>>;
  std::string result = detail::text("one kernel for ", e.size(), " elements on ", where, ": out = ", formula, "\n");
  for (int k = 0; k < seen.count; ++k) result += "  " + seen.entries[k].text + "\n";
  return result + detail::text("  out: ", dtype_name<T>(), " ", e.shape(), " on ", where, ", ", written, " bytes\n  moves ",
                               seen.reads + written, " bytes, ", operations, operations == 1 ? " operation" : " operations", " per element\n");
}

}  // namespace situ::inline SITU_ABI

// ---- <situ/expr/functions.hpp>
/// Elementwise functions and operators: one entry each, with its value and its derivative.
///
/// An entry is a functor type in `situ::functions`: `value(x...)` computes lanes from lanes and serves packs on the CPU
/// and scalars on CUDA; `derivative(x..., y)` gives dy/dx (for several operands, one after the other in `Fields`), of
/// which y = value(x...). `types` is its typing rule (expr/types.hpp), `cost` its weight in tens of picoseconds.
/// Conventions at kinks follow PyTorch: relu'(0) = 0, abs'(0) = 0, minimum and maximum share the gradient at ties,
/// clamp passes it inside the closed interval.
///
/// Shape     operands broadcast as in NumPy; ShapeError names both shapes when they do not.
/// Dtype     operands promote (array API); numbers are weak; real functions of integers give float.
/// Device    all operands on one device (Pinned mixes with Cpu); anything else does not compile.
/// Cost      nothing until the expression becomes a tensor; then one kernel for the whole of it.


// ---- <situ/expr/lane_functions.hpp>
/// What the elementwise functions are made of, lane by lane: small helpers that serve packs, masks and CUDA scalars.


// ---- <situ/expr/math.hpp>
/// The mathematical functions of expressions: each one for numbers, on every device, and for CPU packs.


// ---- <situ/expr/math/basic.hpp>
/// Square roots, rounding, signs, tests, extremes and division with remainder: of numbers and of packs.
///
/// Special values are those of IEEE 754 and C99 Annex F; `remainder`, `floor_divide`, `minimum` and `maximum` are
/// NumPy's. Tests look at bits, so that they hold under -ffast-math. Integers wrap and divide by zero to 0.



// ---- <situ/expr/math/detail.hpp>
/// What the vector functions of mathematics are made of: fused and compensated arithmetic, powers of two, slow lanes.
///
/// Nothing here relies on the compiler's own contraction of a*b + c, and what depends on the order of operations is
/// fenced, so that -O0, -ffp-contract=off and -ffast-math give the same accuracy.

#include <utility>


namespace situ::inline SITU_ABI {
namespace math {
namespace detail {

// Inline assembly for one vector operation, spelled for both assembler dialects, where g++ has no spelling of its own.
// Clang judges an operand's size by the flags of the file, not of the kernel, and gets none.
#if SITU_X86 && !defined(__clang__)
#define SITU_MATH_X86_ASM 1
#else
#define SITU_MATH_X86_ASM 0
#endif

template <class T, int N, class Isa>
inline constexpr bool in_register =
    (sizeof(T) * N == 16 || sizeof(T) * N == 32 || sizeof(T) * N == 64) && sizeof(T) * N <= Isa::bytes;
/// vscalef, vgetexp and vgetmant can be used.
template <class T, int N, class Isa>
inline constexpr bool has_avx512 = SITU_MATH_X86_ASM && Isa::bytes == 64 && in_register<T, N, Isa>;

/// ±(a*b) ± c, rounded once. Only where Isa::fma.
enum class sign { plus, minus };
template <sign Product = sign::plus, sign Addend = sign::plus, class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> fused(pack<T, N, Isa> const& a, pack<T, N, Isa> const& b, pack<T, N, Isa> const& c) {
  static_assert(Isa::fma);
#if SITU_MATH_X86_ASM
  if constexpr (in_register<T, N, Isa>) {
    static_assert(Product == sign::plus || Addend == sign::plus);
    auto r = a.v;
    auto const bv = b.v;
    auto const cv = c.v;
#define SITU_MATH_FUSED(name) __asm__(name " {%2, %1, %0|%0, %1, %2}" : "+v"(r) : "v"(bv), "v"(cv))
    if constexpr (sizeof(T) == 4 && Product == sign::minus) SITU_MATH_FUSED("vfnmadd213ps");
    else if constexpr (sizeof(T) == 4 && Addend == sign::minus) SITU_MATH_FUSED("vfmsub213ps");
    else if constexpr (sizeof(T) == 4) SITU_MATH_FUSED("vfmadd213ps");
    else if constexpr (Product == sign::minus) SITU_MATH_FUSED("vfnmadd213pd");
    else if constexpr (Addend == sign::minus) SITU_MATH_FUSED("vfmsub213pd");
    else SITU_MATH_FUSED("vfmadd213pd");
#undef SITU_MATH_FUSED
    return pack<T, N, Isa>(r);
  }
#endif
  auto const av = Product == sign::minus ? -a.v : a.v;
  auto r = Addend == sign::minus ? -c.v : c.v;
#if defined(__clang__) && __has_builtin(__builtin_elementwise_fma)
  return pack<T, N, Isa>(__builtin_elementwise_fma(av, b.v, r));
#else
#if !defined(__clang__) && defined(__aarch64__)
  if constexpr (sizeof(T) * N == 16) {
    if constexpr (sizeof(T) == 4) __asm__("fmla %0.4s, %1.4s, %2.4s" : "+w"(r) : "w"(av), "w"(b.v));
    else __asm__("fmla %0.2d, %1.2d, %2.2d" : "+w"(r) : "w"(av), "w"(b.v));
    return pack<T, N, Isa>(r);
  }
#endif
  for (int k = 0; k < N; ++k) {
    if constexpr (sizeof(T) == 4) r[k] = __builtin_fmaf(av[k], b.v[k], r[k]);
    else r[k] = __builtin_fma(av[k], b.v[k], r[k]);
  }
  return pack<T, N, Isa>(r);
#endif
}

#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__ && SITU_X86
#define SITU_MATH_ESTIMATES 1  // compilers may replace quotients and square roots by estimates
#else
#define SITU_MATH_ESTIMATES 0
#endif

#if SITU_MATH_ESTIMATES
enum class exact { quotient, square_root };
/// One instruction on 16 bytes: clang, too, accepts that size in every file.
template <exact Operation, class T, class V>
SITU_INLINE void by_instruction(V& r, V const& a) {
#if !defined(__AVX__)
  if constexpr (Operation == exact::quotient && sizeof(T) == 4)
    __asm__("divps {%1, %0|%0, %1}" : "+x"(r) : "x"(a));
  else if constexpr (Operation == exact::quotient)
    __asm__("divpd {%1, %0|%0, %1}" : "+x"(r) : "x"(a));
  else if constexpr (sizeof(T) == 4)
    __asm__("sqrtps {%1, %0|%0, %1}" : "=x"(r) : "x"(a));
  else
    __asm__("sqrtpd {%1, %0|%0, %1}" : "=x"(r) : "x"(a));
#else
  constexpr bool divides = Operation == exact::quotient;
  if constexpr (divides && sizeof(T) == 4)
    __asm__("vdivps {%1, %0, %0|%0, %0, %1}" : "+x"(r) : "x"(a));
  else if constexpr (divides)
    __asm__("vdivpd {%1, %0, %0|%0, %0, %1}" : "+x"(r) : "x"(a));
  else if constexpr (sizeof(T) == 4)
    __asm__("vsqrtps {%1, %0|%0, %1}" : "=x"(r) : "x"(a));
  else
    __asm__("vsqrtpd {%1, %0|%0, %1}" : "=x"(r) : "x"(a));
#endif
}
template <exact Operation, class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> by_sixteen_bytes(pack<T, N, Isa> const& x, pack<T, N, Isa> const& a) {
  using V = typename situ::detail::vector_of<T, static_cast<int>(16 / sizeof(T))>::type;
  constexpr int size = static_cast<int>(sizeof(T)) * N, step = size < 16 ? size : 16;
  pack<T, N, Isa> r(x);
  for (int from = 0; from < size; from += step) {
    V part = V{} + T(1), operand = part;
    __builtin_memcpy(&part, reinterpret_cast<char const*>(&x.v) + from, step);
    __builtin_memcpy(&operand, reinterpret_cast<char const*>(&a.v) + from, step);
    by_instruction<Operation, T>(part, operand);
    __builtin_memcpy(reinterpret_cast<char*>(&r.v) + from, &part, step);
  }
  return r;
}
#endif

/// a / b, correctly rounded also where -ffast-math would multiply by an approximate reciprocal.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> divide(pack<T, N, Isa> const& a, pack<T, N, Isa> const& b) {
#if SITU_MATH_ESTIMATES
  if constexpr (!(SITU_MATH_X86_ASM && in_register<T, N, Isa>)) {
    return by_sixteen_bytes<exact::quotient>(a, b);
  } else {
    auto r = a.v;
    auto const bv = b.v;
#if !defined(__AVX__)
    if constexpr (Isa::bytes == 16) {
      if constexpr (sizeof(T) == 4) __asm__("divps {%1, %0|%0, %1}" : "+x"(r) : "x"(bv));
      else __asm__("divpd {%1, %0|%0, %1}" : "+x"(r) : "x"(bv));
      return pack<T, N, Isa>(r);
    }
#endif
    if constexpr (sizeof(T) == 4) __asm__("vdivps {%1, %0, %0|%0, %0, %1}" : "+v"(r) : "v"(bv));
    else __asm__("vdivpd {%1, %0, %0|%0, %0, %1}" : "+v"(r) : "v"(bv));
    return pack<T, N, Isa>(r);
  }
#else
#if defined(__clang__) && __clang_major__ >= 18
#pragma clang fp reciprocal(off)
#endif
  return pack<T, N, Isa>(typename pack<T, N, Isa>::vector(a.v / b.v));
#endif
}

/// 1 / a to within 2^-14 or better, for a in [2^-100, 2^100]: `residual` tells the rest.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> near_reciprocal(pack<T, N, Isa> const& a) {
#if SITU_MATH_X86_ASM
  if constexpr (sizeof(T) == 4 && has_avx512<T, N, Isa>) {
    auto const v = a.v;
    auto r = v;
    __asm__("vrcp14ps {%1, %0|%0, %1}" : "=v"(r) : "v"(v));
    return pack<T, N, Isa>(r);
  }
#endif
  return divide(pack<T, N, Isa>(T(1)), a);
}

/// True if any lane is; one or two instructions.
template <int Bytes, int N, class Isa>
SITU_INLINE bool any(mask<Bytes, N, Isa> const& m) {
#if SITU_MATH_X86_ASM
  auto const v = m.v;
  if constexpr (Bytes * N == 64 && Isa::bytes == 64) {
    unsigned short k;
    __asm__("vptestmd {%1, %1, %0|%0, %1, %1}" : "=Yk"(k) : "v"(v));
    return k != 0;
  } else if constexpr (Bytes * N == 32 && Isa::bytes >= 32) {
    bool r;
    __asm__("vptest {%1, %1|%1, %1}" : "=@ccnz"(r) : "x"(v));
    return r;
  } else if constexpr (Bytes * N == 16) {
    int r;
#if !defined(__AVX__)
    if constexpr (Isa::bytes == 16) __asm__("pmovmskb {%1, %0|%0, %1}" : "=r"(r) : "x"(v));
    else
#endif
      __asm__("vpmovmskb {%1, %0|%0, %1}" : "=r"(r) : "x"(v));
    return r != 0;
  }
#endif
  return any_of(m);
}

/// True if any lane of x is below the bound; NaN is not.
template <int N, class Isa>
SITU_INLINE bool any_below(pack<float, N, Isa> const& x, float bound) {
  pack<float, N, Isa> const b(bound);
#if SITU_MATH_X86_ASM
  if constexpr (has_avx512<float, N, Isa> && N == 16) {
    auto const xv = x.v;
    auto const bv = b.v;
    unsigned short k;
    __asm__("vcmpps {$1, %2, %1, %0|%0, %1, %2, 1}" : "=Yk"(k) : "v"(xv), "v"(bv));
    return k != 0;
  }
#endif
  return any(x < b);
}

/// hi + lo, not rounded: lo holds what hi lost.
template <class P>
struct two {
  P hi, lo;
};

/// a + b exactly, for a whose last digit weighs no less than that of b; so for |a| >= |b|, or a == 0.
template <class T, int N, class Isa>
SITU_INLINE two<pack<T, N, Isa>> fast_two_sum(pack<T, N, Isa> const& a, pack<T, N, Isa> const& b) {
  pack<T, N, Isa> const s = keep_order(a + b);
  return {s, b - keep_order(s - a)};
}

/// a + b exactly.
template <class T, int N, class Isa>
SITU_INLINE two<pack<T, N, Isa>> two_sum(pack<T, N, Isa> const& a, pack<T, N, Isa> const& b) {
  pack<T, N, Isa> const s = keep_order(a + b);
  pack<T, N, Isa> const from_b = keep_order(s - a);
  pack<T, N, Isa> const from_a = keep_order(s - from_b);
  return {s, keep_order(a - from_a) + keep_order(b - from_b)};
}

/// The upper half of the digits of a, so that products of such halves are exact.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> upper_half(pack<T, N, Isa> const& a) {
  if constexpr (sizeof(T) == 4) return bitcast<float>(bitcast<int32_t>(a) & pack<int32_t, N, Isa>(-0x1000));
  else return bitcast<double>(bitcast<int64_t>(a) & pack<int64_t, N, Isa>(-0x8000000));
}

/// a * b exactly, unless the low part underflows.
template <class T, int N, class Isa>
SITU_INLINE two<pack<T, N, Isa>> two_prod(pack<T, N, Isa> const& a, pack<T, N, Isa> const& b) {
  using P = pack<T, N, Isa>;
  P const p = keep_order(a * b);
  if constexpr (Isa::fma) {
    return {p, fused<sign::plus, sign::minus>(a, b, p)};
  } else {
    P const a1 = upper_half(a), b1 = upper_half(b), a2 = keep_order(a - a1), b2 = keep_order(b - b1);
    P const e1 = keep_order(a1 * b1 - p);
    P const e2 = keep_order(e1 + keep_order(a1 * b2));
    P const e3 = keep_order(e2 + keep_order(a2 * b1));
    return {p, keep_order(e3 + keep_order(a2 * b2))};
  }
}

/// c + a b to twice the precision, for c whose last digit weighs no less than that of a b.
template <class T, int N, class Isa>
SITU_INLINE two<pack<T, N, Isa>> sum_of_product(pack<T, N, Isa> const& c, pack<T, N, Isa> const& a,
                                                pack<T, N, Isa> const& b) {
  auto const product = two_prod(a, b);
  auto const sum = fast_two_sum(c, product.hi);
  return {sum.hi, keep_order(sum.lo) + product.lo};
}

/// 1 − a b as if in one rounding, for b close to 1/a.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> residual(pack<T, N, Isa> const& a, pack<T, N, Isa> const& b) {
  pack<T, N, Isa> const one(T(1));
  if constexpr (Isa::fma) {
    return fused<sign::minus>(a, b, one);
  } else {
    auto const [high, low] = two_prod(a, b);
    return keep_order(one - high) - low;
  }
}

/// a + a b, which -ffast-math would otherwise turn into a (1 + b).
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> add_share(pack<T, N, Isa> const& a, pack<T, N, Isa> const& b) {
#if defined(__FINITE_MATH_ONLY__) && __FINITE_MATH_ONLY__
  return multiply_add(a, b, keep_order(a));
#else
  return multiply_add(a, b, a);
#endif
}

/// The polynomial whose coefficients are given from the highest power down.
template <class T, int N, class Isa, class... C>
SITU_INLINE pack<T, N, Isa> horner(pack<T, N, Isa> const& x, T highest, C... lower) {
  pack<T, N, Isa> r(highest);
  ((r = multiply_add(r, x, pack<T, N, Isa>(static_cast<T>(lower)))), ...);
  return r;
}

/// 1.5 · 2^23 or 1.5 · 2^52: added to a small number it leaves the nearest integer in the low bits.
template <class T>
inline constexpr T round_magic = sizeof(T) == 4 ? T(12582912.0) : T(6755399441055744.0);

/// The nearest integer, for |x| < 2^22 or 2^51.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> round_small(pack<T, N, Isa> const& x) {
  pack<T, N, Isa> const magic(round_magic<T>);
  return keep_order(keep_order(x + magic) - magic);
}

/// 2^n for integers n in the range of normal numbers.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> power_of_two(pack<T, N, Isa> const& n) {
  if constexpr (sizeof(T) == 4) {
    return bitcast<float>(bitcast<int32_t>(keep_order(n + pack<T, N, Isa>(round_magic<T> + 127))) << 23);
  } else {
    return bitcast<double>(bitcast<int64_t>(keep_order(n + pack<T, N, Isa>(round_magic<T> + 1023))) << 52);
  }
}

/// x · 2^n for integers n, |n| <= 250 or 2000, rounded once; overflow and denormal results as in ldexp.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> scale(pack<T, N, Isa> const& x, pack<T, N, Isa> const& n) {
#if SITU_MATH_X86_ASM
  if constexpr (has_avx512<T, N, Isa>) {
    auto r = x.v;
    auto const nv = n.v;
    if constexpr (sizeof(T) == 4) __asm__("vscalefps {%1, %0, %0|%0, %0, %1}" : "+v"(r) : "v"(nv));
    else __asm__("vscalefpd {%1, %0, %0|%0, %0, %1}" : "+v"(r) : "v"(nv));
    return pack<T, N, Isa>(r);
  }
#endif
  pack<T, N, Isa> const half = round_small(n * T(0.5));
  return keep_order(x * power_of_two(half)) * power_of_two(keep_order(n - half));
}

/// |x| and the sign of x, as bits.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> magnitude(pack<T, N, Isa> const& x) {
  if constexpr (sizeof(T) == 4) return bitcast<float>(bitcast<int32_t>(x) & pack<int32_t, N, Isa>(0x7fffffff));
  else return bitcast<double>(bitcast<int64_t>(x) & pack<int64_t, N, Isa>(0x7fffffffffffffff));
}
/// x with its sign flipped where that of `sign` is set.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> flip_sign(pack<T, N, Isa> const& x, pack<T, N, Isa> const& sign) {
  using I = situ::detail::signed_of_bytes<sizeof(T)>;
  pack<I, N, Isa> const bit(std::numeric_limits<I>::min());
  return bitcast<T>(bitcast<I>(x) ^ (bitcast<I>(sign) & bit));
}

/// y, which is positive or has the sign of x already unless it is 0, with the sign of x.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> with_sign_of(pack<T, N, Isa> const& x, pack<T, N, Isa> const& y) {
  using I = situ::detail::signed_of_bytes<sizeof(T)>;
  pack<I, N, Isa> const bit(std::numeric_limits<I>::min());
#if SITU_MATH_X86_ASM
  if constexpr (has_avx512<T, N, Isa>) {
    auto r = y.v;
    auto const xv = x.v;
    auto const bv = bit.v;
    __asm__("vpternlogd {$0xf8, %2, %1, %0|%0, %1, %2, 0xf8}" : "+v"(r) : "v"(xv), "v"(bv));
    return pack<T, N, Isa>(r);
  }
#endif
  return bitcast<T>(bitcast<I>(y) | (bitcast<I>(x) & bit));
}

/// −|x|.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> negative_magnitude(pack<T, N, Isa> const& x) {
  using I = situ::detail::signed_of_bytes<sizeof(T)>;
  return bitcast<T>(bitcast<I>(x) | pack<I, N, Isa>(std::numeric_limits<I>::min()));
}

/// x where it is not below / not above the bound; a NaN in x stays.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> at_least(pack<T, N, Isa> const& x, T bound) {
  pack<T, N, Isa> const b(bound);
#if SITU_MATH_X86_ASM
  if constexpr (has_avx512<T, N, Isa>) {  // g++ 12 makes a comparison and a blend of it
    auto r = x.v;
    auto const bv = b.v;
    if constexpr (sizeof(T) == 4) __asm__("vmaxps {%0, %1, %0|%0, %1, %0}" : "+v"(r) : "v"(bv));
    else __asm__("vmaxpd {%0, %1, %0|%0, %1, %0}" : "+v"(r) : "v"(bv));
    return pack<T, N, Isa>(r);
  }
#endif
  return select(x < b, b, x);
}
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> at_most(pack<T, N, Isa> const& x, T bound) {
  pack<T, N, Isa> const b(bound);
#if SITU_MATH_X86_ASM
  if constexpr (has_avx512<T, N, Isa>) {
    auto r = x.v;
    auto const bv = b.v;
    if constexpr (sizeof(T) == 4) __asm__("vminps {%0, %1, %0|%0, %1, %0}" : "+v"(r) : "v"(bv));
    else __asm__("vminpd {%0, %1, %0|%0, %1, %0}" : "+v"(r) : "v"(bv));
    return pack<T, N, Isa>(r);
  }
#endif
  return select(x > b, b, x);
}

/// The rest of a kernel never shares its registers with a call: lanes go through memory, in a function of their own.
template <class F, class T, int N>
SITU_NOINLINE void call_lanes(T const* x, T* y, signed char const* wanted) {
  for (int k = 0; k < N; ++k) {
    if (wanted[k]) y[k] = F::value(x[k]);
  }
}
template <class F, class T, int N>
SITU_NOINLINE void call_lanes(T const* x1, T const* x2, T* y, signed char const* wanted) {
  for (int k = 0; k < N; ++k) {
    if (wanted[k]) y[k] = F::value(x1[k], x2[k]);
  }
}

/// y with the lanes of m replaced by F::value(x), a function of numbers. For rare lanes.
template <class F, class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> by_lane(mask<static_cast<int>(sizeof(T)), N, Isa> const& m, pack<T, N, Isa> const& x,
                                    pack<T, N, Isa> const& y) {
  T from[N], to[N];
  signed char wanted[N];
  x.store(from);
  y.store(to);
  for (int k = 0; k < N; ++k) wanted[k] = m[k];
  call_lanes<F, T, N>(from, to, wanted);
  return pack<T, N, Isa>::load(to);
}
template <class F, class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> by_lane(mask<static_cast<int>(sizeof(T)), N, Isa> const& m, pack<T, N, Isa> const& x1,
                                    pack<T, N, Isa> const& x2, pack<T, N, Isa> const& y) {
  T from1[N], from2[N], to[N];
  signed char wanted[N];
  x1.store(from1);
  x2.store(from2);
  y.store(to);
  for (int k = 0; k < N; ++k) wanted[k] = m[k];
  call_lanes<F, T, N>(from1, from2, to, wanted);
  return pack<T, N, Isa>::load(to);
}
/// F::value on every lane, for functions that have no vector form.
template <class F, class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> every_lane(pack<T, N, Isa> const& x) {
  return by_lane<F>(mask<static_cast<int>(sizeof(T)), N, Isa>(true), x, x);
}
template <class F, class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> every_lane(pack<T, N, Isa> const& x1, pack<T, N, Isa> const& x2) {
  return by_lane<F>(mask<static_cast<int>(sizeof(T)), N, Isa>(true), x1, x2, x1);
}

/// The halves of a pack, widened, and back: for functions that compute their hard parts in double. The indices are
/// written out because nvcc loses a pack expansion among the builtin's arguments.
template <int N, class Isa>
SITU_INLINE pack<double, N / 2, Isa> widen_lower(pack<float, N, Isa> const& x) {
  static_assert(N == 4 || N == 8 || N == 16);
  using half = typename situ::detail::vector_of<float, N / 2>::type;
  half h;
  if constexpr (N == 4) h = __builtin_shufflevector(x.v, x.v, 0, 1);
  else if constexpr (N == 8) h = __builtin_shufflevector(x.v, x.v, 0, 1, 2, 3);
  else h = __builtin_shufflevector(x.v, x.v, 0, 1, 2, 3, 4, 5, 6, 7);
  return convert_unchecked<double>(pack<float, N / 2, Isa>(h));
}
template <int N, class Isa>
SITU_INLINE pack<double, N / 2, Isa> widen_upper(pack<float, N, Isa> const& x) {
  static_assert(N == 4 || N == 8 || N == 16);
  using half = typename situ::detail::vector_of<float, N / 2>::type;
  half h;
  if constexpr (N == 4) h = __builtin_shufflevector(x.v, x.v, 2, 3);
  else if constexpr (N == 8) h = __builtin_shufflevector(x.v, x.v, 4, 5, 6, 7);
  else h = __builtin_shufflevector(x.v, x.v, 8, 9, 10, 11, 12, 13, 14, 15);
  return convert_unchecked<double>(pack<float, N / 2, Isa>(h));
}
template <int N, class Isa>
SITU_INLINE pack<float, 2 * N, Isa> narrow(pack<double, N, Isa> const& lower, pack<double, N, Isa> const& upper) {
  static_assert(N == 2 || N == 4 || N == 8);
  auto const a = convert_unchecked<float>(lower).v, b = convert_unchecked<float>(upper).v;
  typename situ::detail::vector_of<float, 2 * N>::type whole;
  if constexpr (N == 2) whole = __builtin_shufflevector(a, b, 0, 1, 2, 3);
  else if constexpr (N == 4) whole = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7);
  else whole = __builtin_shufflevector(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return pack<float, 2 * N, Isa>(whole);
}

}  // namespace detail
}  // namespace math
}  // namespace situ::inline SITU_ABI

namespace situ::inline SITU_ABI {
namespace math {
namespace detail {

template <class T>
using bits_of = situ::detail::signed_of_bytes<static_cast<int>(sizeof(T))>;
template <class T>
inline constexpr bits_of<T> magnitude_bits = std::numeric_limits<bits_of<T>>::max();
template <class T>
inline constexpr bits_of<T> infinity_bits = sizeof(T) == 4 ? static_cast<bits_of<T>>(0x7f800000)
                                                           : static_cast<bits_of<T>>(0x7ff0000000000000);

template <class T>
SITU_HOST_DEVICE constexpr bits_of<T> magnitude_of(T x) {
  return static_cast<bits_of<T>>(situ::detail::bits_to<bits_of<T>>(x) & magnitude_bits<T>);
}
template <class T, int N, class Isa>
SITU_INLINE pack<bits_of<T>, N, Isa> magnitude_of(pack<T, N, Isa> const& x) {
  return bitcast<bits_of<T>>(x) & pack<bits_of<T>, N, Isa>(magnitude_bits<T>);
}

/// Infinite, or no number, also where the compiler believes that there is neither.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> infinite() {
  return bitcast<T>(pack<bits_of<T>, N, Isa>(infinity_bits<T>));
}
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> not_a_number() {
  return bitcast<T>(pack<bits_of<T>, N, Isa>(static_cast<bits_of<T>>(infinity_bits<T> + (infinity_bits<T> >> 9))));
}

enum class towards { nearest = 0, below = 1, above = 2, zero = 3 };

/// Integral values by adding and subtracting 2^23 or 2^52, for instruction sets that cannot round.
template <towards Direction, class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> rounded_by_sum(pack<T, N, Isa> const& x) {
  using P = pack<T, N, Isa>;
  P const size = bitcast<T>(magnitude_of(x)), whole(sizeof(T) == 4 ? T(0x1p23) : T(0x1p52)), zero(T(0)), one(T(1));
  P const nearest = keep_order(size + whole) - whole;
  P r = nearest;
  if constexpr (Direction == towards::zero) {
    r = nearest - select(nearest > size, one, zero);
  } else if constexpr (Direction != towards::nearest) {
    P const sided = flip_sign(nearest, x);
    r = Direction == towards::below ? sided - select(sided > x, one, zero) : sided + select(sided < x, one, zero);
    r = bitcast<T>(magnitude_of(r));
  }
  return select(size < whole, flip_sign(r, x), x);
}

template <towards Direction, class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> rounded(pack<T, N, Isa> const& x) {
  if constexpr (Isa::bytes >= 32) {
#if SITU_MATH_X86_ASM
    if constexpr (in_register<T, N, Isa>) {
      constexpr int quietly = static_cast<int>(Direction) | 8;
      typename pack<T, N, Isa>::vector r;
      auto const v = x.v;
      if constexpr (Isa::bytes == 64 && sizeof(T) == 4) {
        __asm__("vrndscaleps {%2, %1, %0|%0, %1, %2}" : "=v"(r) : "v"(v), "i"(quietly));
      } else if constexpr (Isa::bytes == 64) {
        __asm__("vrndscalepd {%2, %1, %0|%0, %1, %2}" : "=v"(r) : "v"(v), "i"(quietly));
      } else if constexpr (sizeof(T) == 4) {
        __asm__("vroundps {%2, %1, %0|%0, %1, %2}" : "=x"(r) : "x"(v), "i"(quietly));
      } else {
        __asm__("vroundpd {%2, %1, %0|%0, %1, %2}" : "=x"(r) : "x"(v), "i"(quietly));
      }
      return pack<T, N, Isa>(r);
    }
#elif defined(__clang__) && !defined(__CUDACC__)
    if constexpr (Direction == towards::below)
      return pack<T, N, Isa>(__builtin_elementwise_floor(x.v));
    else if constexpr (Direction == towards::above)
      return pack<T, N, Isa>(__builtin_elementwise_ceil(x.v));
    else if constexpr (Direction == towards::zero)
      return pack<T, N, Isa>(__builtin_elementwise_trunc(x.v));
    else
      return pack<T, N, Isa>(__builtin_elementwise_roundeven(x.v));
#endif
  }
  return rounded_by_sum<Direction>(x);
}

#if defined(__clang__)
// Square roots that are free of errno, which clang then joins to vector instructions.
extern "C" float situ_math_sqrtf(float) __asm__("sqrtf") __attribute__((const));
extern "C" double situ_math_sqrt(double) __asm__("sqrt") __attribute__((const));
#endif
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> sqrt_by_lane(pack<T, N, Isa> const& x) {
#if SITU_MATH_ESTIMATES
  return by_sixteen_bytes<exact::square_root>(x, x);
#else
  pack<T, N, Isa> r(x);
  for (int k = 0; k < N; ++k) {
#if defined(__clang__)
    if constexpr (sizeof(T) == 4)
      r.v[k] = situ_math_sqrtf(x.v[k]);
    else
      r.v[k] = situ_math_sqrt(x.v[k]);
#else
    if constexpr (sizeof(T) == 4)
      r.v[k] = SITU_LIBM(sqrtf)(x.v[k]);
    else
      r.v[k] = SITU_LIBM(sqrt)(x.v[k]);
#endif
  }
  return r;
#endif
}

/// a / b, correctly rounded.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> quotient(pack<T, N, Isa> const& a, pack<T, N, Isa> const& b) {
  return divide(a, b);
}

}  // namespace detail

// Numbers.

SITU_HOST_DEVICE inline float sqrt(float x) { return SITU_LIBM(sqrtf)(x); }
SITU_HOST_DEVICE inline double sqrt(double x) { return SITU_LIBM(sqrt)(x); }
#if defined(__CUDA_ARCH__)
SITU_HOST_DEVICE inline float rsqrt(float x) { return ::rsqrtf(x); }
SITU_HOST_DEVICE inline double rsqrt(double x) { return ::rsqrt(x); }
#else
SITU_HOST_DEVICE inline float rsqrt(float x) { return 1.f / SITU_LIBM(sqrtf)(x); }
SITU_HOST_DEVICE inline double rsqrt(double x) { return 1. / SITU_LIBM(sqrt)(x); }
#endif
SITU_HOST_DEVICE inline float reciprocal(float x) { return 1.f / x; }
SITU_HOST_DEVICE inline double reciprocal(double x) { return 1. / x; }
SITU_HOST_DEVICE inline float abs(float x) { return SITU_LIBM(fabsf)(x); }
SITU_HOST_DEVICE inline double abs(double x) { return SITU_LIBM(fabs)(x); }
SITU_HOST_DEVICE inline float floor(float x) { return SITU_LIBM(floorf)(x); }
SITU_HOST_DEVICE inline double floor(double x) { return SITU_LIBM(floor)(x); }
SITU_HOST_DEVICE inline float ceil(float x) { return SITU_LIBM(ceilf)(x); }
SITU_HOST_DEVICE inline double ceil(double x) { return SITU_LIBM(ceil)(x); }
SITU_HOST_DEVICE inline float round(float x) { return SITU_LIBM(rintf)(x); }
SITU_HOST_DEVICE inline double round(double x) { return SITU_LIBM(rint)(x); }
SITU_HOST_DEVICE inline float trunc(float x) { return SITU_LIBM(truncf)(x); }
SITU_HOST_DEVICE inline double trunc(double x) { return SITU_LIBM(trunc)(x); }
SITU_HOST_DEVICE inline float copysign(float x, float sign) { return SITU_LIBM(copysignf)(x, sign); }
SITU_HOST_DEVICE inline double copysign(double x, double sign) { return SITU_LIBM(copysign)(x, sign); }
SITU_HOST_DEVICE inline float hypot(float x, float y) { return SITU_LIBM(hypotf)(x, y); }
SITU_HOST_DEVICE inline double hypot(double x, double y) { return SITU_LIBM(hypot)(x, y); }
SITU_HOST_DEVICE inline float fmod(float x, float y) { return SITU_LIBM(fmodf)(x, y); }
SITU_HOST_DEVICE inline double fmod(double x, double y) { return SITU_LIBM(fmod)(x, y); }

template <class T>
requires std::is_floating_point_v<T> SITU_HOST_DEVICE constexpr bool isnan(T x) {
  return detail::magnitude_of(x) > detail::infinity_bits<T>;
}
template <class T>
requires std::is_floating_point_v<T> SITU_HOST_DEVICE constexpr bool isinf(T x) {
  return detail::magnitude_of(x) == detail::infinity_bits<T>;
}
template <class T>
requires std::is_floating_point_v<T> SITU_HOST_DEVICE constexpr bool isfinite(T x) {
  return detail::magnitude_of(x) < detail::infinity_bits<T>;
}

/// The smaller; a NaN in either; of equals the first.
template <class T>
requires std::is_arithmetic_v<T> SITU_HOST_DEVICE constexpr T minimum(T x, T y) {
  if constexpr (std::is_floating_point_v<T>)
    return x <= y || x != x ? x : y;
  else
    return x <= y ? x : y;
}
template <class T>
requires std::is_arithmetic_v<T> SITU_HOST_DEVICE constexpr T maximum(T x, T y) {
  if constexpr (std::is_floating_point_v<T>)
    return x >= y || x != x ? x : y;
  else
    return x >= y ? x : y;
}

/// -1, 0 or 1; 0 for both zeros, NaN for NaN.
template <class T>
requires std::is_arithmetic_v<T> SITU_HOST_DEVICE constexpr T sign(T x) {
  if constexpr (std::is_unsigned_v<T>)
    return x != T(0) ? T(1) : T(0);
  else
    return x > T(0) ? T(1) : x < T(0) ? T(-1) : x == T(0) ? T(0) : x;
}

/// |x|; the most negative integer stays itself.
template <class T>
requires std::is_integral_v<T> SITU_HOST_DEVICE constexpr T abs(T x) {
  using U = std::make_unsigned_t<T>;
  if constexpr (std::is_unsigned_v<T>)
    return x;
  else
    return x < 0 ? static_cast<T>(static_cast<U>(U(0) - static_cast<U>(x))) : x;
}

/// The quotient rounded towards minus infinity. By zero: 0.
template <class T>
requires std::is_integral_v<T> SITU_HOST_DEVICE constexpr T floor_divide(T x, T y) {
  using U = std::make_unsigned_t<T>;
  if (y == T(0)) return T(0);
  if constexpr (std::is_unsigned_v<T>) {
    return static_cast<T>(x / y);
  } else {
    if (y == T(-1)) return static_cast<T>(static_cast<U>(U(0) - static_cast<U>(x)));
    T const quotient = static_cast<T>(x / y), rest = static_cast<T>(x % y);
    return rest != 0 && (rest < 0) != (y < 0) ? static_cast<T>(quotient - 1) : quotient;
  }
}
/// x - y · floor(x / y): the divisor's sign, or zero. By zero: 0.
template <class T>
requires std::is_integral_v<T> SITU_HOST_DEVICE constexpr T remainder(T x, T y) {
  if (y == T(0)) return T(0);
  if constexpr (std::is_unsigned_v<T>) {
    return static_cast<T>(x % y);
  } else {
    if (y == T(-1)) return T(0);
    T const rest = static_cast<T>(x % y);
    return rest != 0 && (rest < 0) != (y < 0) ? static_cast<T>(rest + y) : rest;
  }
}
/// x - y · trunc(x / y): the dividend's sign, or zero. By zero: 0.
template <class T>
requires std::is_integral_v<T> SITU_HOST_DEVICE constexpr T fmod(T x, T y) {
  if (y == T(0)) return T(0);
  if constexpr (std::is_signed_v<T>) {
    if (y == T(-1)) return T(0);
  }
  return static_cast<T>(x % y);
}

/// fmod moved to the divisor's sign; a zero has that sign too.
template <class T>
requires std::is_floating_point_v<T> SITU_HOST_DEVICE inline T remainder(T x, T y) {
  T const rest = fmod(x, y);
  if (rest == T(0)) {
    return situ::detail::bits_to<T>(
        static_cast<detail::bits_of<T>>(situ::detail::bits_to<detail::bits_of<T>>(y) & ~detail::magnitude_bits<T>));
  }
  return (rest < T(0)) != (y < T(0)) ? rest + y : rest;
}

/// The quotient rounded towards minus infinity, consistent with `remainder`; by zero: as x / y.
template <class T>
requires std::is_floating_point_v<T> SITU_HOST_DEVICE inline T floor_divide(T x, T y) {
  if (y == T(0)) return x / y;
  T const rest = fmod(x, y);
  T quotient = (x - rest) / y;
  if (rest != T(0) && (rest < T(0)) != (y < T(0))) quotient -= T(1);
  if (quotient == T(0)) {
    using I = detail::bits_of<T>;
    return situ::detail::bits_to<T>(
        static_cast<I>((situ::detail::bits_to<I>(x) ^ situ::detail::bits_to<I>(y)) & ~detail::magnitude_bits<T>));
  }
  T const whole = floor(quotient);
  return quotient - whole > T(0.5) ? whole + T(1) : whole;
}

// Packs. Between two selections stands keep_order where g++ would join their masks by |, which AVX-512 kernels then
// do lane by lane.

template <class T, int N, class Isa>
  requires std::is_floating_point_v<T> SITU_INLINE pack<T, N, Isa> sqrt(pack<T, N, Isa> const& x) {
#if SITU_MATH_X86_ASM
    if constexpr (detail::in_register<T, N, Isa>) {
      typename pack<T, N, Isa>::vector r;
      auto const v = x.v;
#if !defined(__AVX__)
      if constexpr (Isa::bytes == 16) {
        if constexpr (sizeof(T) == 4)
          __asm__("sqrtps {%1, %0|%0, %1}" : "=x"(r) : "x"(v));
        else
          __asm__("sqrtpd {%1, %0|%0, %1}" : "=x"(r) : "x"(v));
        return pack<T, N, Isa>(r);
      }
#endif
      if constexpr (sizeof(T) == 4)
        __asm__("vsqrtps {%1, %0|%0, %1}" : "=v"(r) : "v"(v));
      else
        __asm__("vsqrtpd {%1, %0|%0, %1}" : "=v"(r) : "v"(v));
      return pack<T, N, Isa>(r);
    }
#elif !defined(__clang__) && defined(__aarch64__)
    if constexpr (sizeof(T) * N == 16) {
      typename pack<T, N, Isa>::vector r;
      if constexpr (sizeof(T) == 4)
        __asm__("fsqrt %0.4s, %1.4s" : "=w"(r) : "w"(x.v));
      else
        __asm__("fsqrt %0.2d, %1.2d" : "=w"(r) : "w"(x.v));
      return pack<T, N, Isa>(r);
    }
#endif
    return detail::sqrt_by_lane(x);
  }

template <class T, int N, class Isa>
  requires std::is_floating_point_v<T> SITU_INLINE pack<T, N, Isa> reciprocal(pack<T, N, Isa> const& x) {
    return detail::quotient(pack<T, N, Isa>(T(1)), x);
  }
template <class T, int N, class Isa>
  requires std::is_floating_point_v<T> SITU_INLINE pack<T, N, Isa> rsqrt(pack<T, N, Isa> const& x) {
    return reciprocal(sqrt(x));
  }

template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> abs(pack<T, N, Isa> const& x) {
  if constexpr (std::is_floating_point_v<T>)
    return bitcast<T>(detail::magnitude_of(x));
  else if constexpr (std::is_unsigned_v<T>)
    return x;
  else
    return select(x < pack<T, N, Isa>(T(0)), -x, x);
}
template <class T, int N, class Isa>
  requires std::is_floating_point_v<T> SITU_INLINE pack<T, N, Isa> copysign(pack<T, N, Isa> const& x,
                                                                            pack<T, N, Isa> const& sign) {
    return detail::flip_sign(abs(x), sign);
  }
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> sign(pack<T, N, Isa> const& x) {
  using P = pack<T, N, Isa>;
  P const zero(T(0)), one(T(1));
  if constexpr (std::is_floating_point_v<T>) {
    P const r = select(x == zero, zero, copysign(one, x));
    return select(x != x, x, r);
  } else if constexpr (std::is_unsigned_v<T>) {
    return select(x != zero, one, zero);
  } else {
    return select(x > zero, one, select(x < zero, P(T(-1)), zero));
  }
}

template <class T, int N, class Isa>
  requires std::is_floating_point_v<T> SITU_INLINE pack<T, N, Isa> floor(pack<T, N, Isa> const& x) {
    return detail::rounded<detail::towards::below>(x);
  }
template <class T, int N, class Isa>
  requires std::is_floating_point_v<T> SITU_INLINE pack<T, N, Isa> ceil(pack<T, N, Isa> const& x) {
    return detail::rounded<detail::towards::above>(x);
  }
/// To the nearest integer, halves to even.
template <class T, int N, class Isa>
  requires std::is_floating_point_v<T> SITU_INLINE pack<T, N, Isa> round(pack<T, N, Isa> const& x) {
    return detail::rounded<detail::towards::nearest>(x);
  }
template <class T, int N, class Isa>
  requires std::is_floating_point_v<T> SITU_INLINE pack<T, N, Isa> trunc(pack<T, N, Isa> const& x) {
    return detail::rounded<detail::towards::zero>(x);
  }

template <class T, int N, class Isa>
requires std::is_floating_point_v<T> SITU_INLINE auto isnan(pack<T, N, Isa> const& x) {
  return detail::magnitude_of(x) > pack<detail::bits_of<T>, N, Isa>(detail::infinity_bits<T>);
}
template <class T, int N, class Isa>
requires std::is_floating_point_v<T> SITU_INLINE auto isinf(pack<T, N, Isa> const& x) {
  return detail::magnitude_of(x) == pack<detail::bits_of<T>, N, Isa>(detail::infinity_bits<T>);
}
template <class T, int N, class Isa>
requires std::is_floating_point_v<T> SITU_INLINE auto isfinite(pack<T, N, Isa> const& x) {
  return detail::magnitude_of(x) < pack<detail::bits_of<T>, N, Isa>(detail::infinity_bits<T>);
}

template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> minimum(pack<T, N, Isa> const& x, pack<T, N, Isa> const& y) {
  pack<T, N, Isa> const r = select(x <= y, x, y);
  if constexpr (std::is_floating_point_v<T>)
    return select(x != x, x, keep_order(r));
  else
    return r;
}
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> maximum(pack<T, N, Isa> const& x, pack<T, N, Isa> const& y) {
  pack<T, N, Isa> const r = select(x >= y, x, y);
  if constexpr (std::is_floating_point_v<T>)
    return select(x != x, x, keep_order(r));
  else
    return r;
}

/// √(x² + y²) without overflow; infinite where either is, also beside a NaN.
template <class T, int N, class Isa>
  requires std::is_floating_point_v<T> SITU_INLINE pack<T, N, Isa> hypot(pack<T, N, Isa> const& x,
                                                                         pack<T, N, Isa> const& y) {
    using P = pack<T, N, Isa>;
    constexpr bool narrow = sizeof(T) == 4;
    P const size_x = abs(x), size_y = abs(y), one(T(1));
    auto const swapped = size_x < size_y;
    P const larger = select(swapped, size_y, size_x), smaller = select(swapped, size_x, size_y);
    auto const huge = larger > P(narrow ? T(0x1p60) : T(0x1p500));
    auto const tiny = larger < P(narrow ? T(0x1p-40) : T(0x1p-450));
    constexpr T up = narrow ? T(0x1p90f) : T(0x1p600), down = T(1) / up;
    P const scale = select(huge, P(down), select(tiny, P(up), one));
    P const unscale = select(huge, P(up), select(tiny, P(down), one));
    P const a = keep_order(larger * scale), b = keep_order(smaller * scale);
    P const r = keep_order(sqrt(a * a + b * b)) * unscale;
    P const without_x = select(isinf(y), size_y, r);
    return select(isinf(x), size_x, keep_order(without_x));
  }

namespace detail {
struct fmod_lanes {
  template <class T>
  static T value(T x, T y) {
    return math::fmod(x, y);
  }
};
struct remainder_lanes {
  template <class T>
  static T value(T x, T y) {
    return math::remainder(x, y);
  }
};
struct floor_divide_lanes {
  template <class T>
  static T value(T x, T y) {
    return math::floor_divide(x, y);
  }
};
}  // namespace detail

template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> fmod(pack<T, N, Isa> const& x, pack<T, N, Isa> const& y) {
  return detail::every_lane<detail::fmod_lanes>(x, y);
}
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> remainder(pack<T, N, Isa> const& x, pack<T, N, Isa> const& y) {
  return detail::every_lane<detail::remainder_lanes>(x, y);
}
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> floor_divide(pack<T, N, Isa> const& x, pack<T, N, Isa> const& y) {
  return detail::every_lane<detail::floor_divide_lanes>(x, y);
}

}  // namespace math
}  // namespace situ::inline SITU_ABI

// ---- <situ/expr/math/erf.hpp>
/// erf, erfc, gelu and gelu_tanh of packs and numbers.


// ---- <situ/expr/math/piecewise.hpp>
/// Functions as tables of polynomials, one for each of 16 intervals, for kernels that can look numbers up in registers.


namespace situ::inline SITU_ABI {
namespace math {
namespace detail {

/// Polynomials in x − centre; coefficient[0] belongs to the constant. A centre lies where the value is close to a float, so
/// that the last addition makes most of the error.
template <int Degree>
struct pieces {
  alignas(64) float centre[16];
  alignas(64) float coefficient[Degree + 1][16];
};

#if SITU_MATH_X86_ASM
/// table[index mod 16]. Only where has_avx512.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> look_up(pack<int32_t, N, Isa> const& index, float const (&table)[16]) {
  using register_of = typename situ::detail::vector_of<float, 16>::type;
  register_of r, from, values;
  __builtin_memcpy(&values, table, 64);
  if constexpr (N == 16) {
    from = bitcast<float>(index).v;
  } else {
    from = values;
    __builtin_memcpy(&from, &index.v, sizeof(index.v));
  }
  __asm__("vpermps {%2, %1, %0|%0, %1, %2}" : "=v"(r) : "v"(from), "v"(values));
  if constexpr (N == 16) {
    return pack<float, N, Isa>(r);
  } else {
    pack<float, N, Isa> result(0.0f);
    __builtin_memcpy(&result.v, &r, sizeof(result.v));
    return result;
  }
}

/// c[K] + d (c[K + 1] + d (… + d c[Degree])), the coefficients looked up. Not a loop: g++ -O2 would keep it, and read memory.
template <int K, int Degree, int N, class Isa>
SITU_INLINE pack<float, N, Isa> looked_up_horner(pack<int32_t, N, Isa> const& index, pack<float, N, Isa> const& d,
                                                 float const (&c)[Degree + 1][16]) {
  if constexpr (K == Degree) return look_up(index, c[K]);
  else return fused(looked_up_horner<K + 1, Degree>(index, d, c), d, look_up(index, c[K]));
}
/// The polynomial of the index at x.
template <int Degree, int N, class Isa>
SITU_INLINE pack<float, N, Isa> look_up_value(pack<int32_t, N, Isa> const& index, pack<float, N, Isa> const& x,
                                              pieces<Degree> const& table) {
  return looked_up_horner<0, Degree>(index, x - look_up(index, table.centre), table.coefficient);
}

#endif

/// tanh(x), 0 <= x <= 9.1. An interval's number is in bits 21 to 24 of x + 5/8: intervals grow with x. A polynomial errs by less
/// than 2^-24.3 of the value.
inline constexpr pieces<5> tanh_pieces{
    {1.6249857f, 2.1249893f, 2.624981f, 3.1251433f, 3.8750033f, 4.8749824f, 5.8744745f, 6.87357f, 8.317766f, 0.0f,
     0.18750109f, 0.3124974f, 0.4999994f, 0.7500064f, 1.0000303f, 1.2500032f},
    {{0.92534417f, 0.97187215f, 0.98955935f, 0.99614763f, 0.9991389f, 0.9998834f, 0.9999842f, 0.99999785f, 0.9999999f,
      0.0f, 0.18533425f, 0.30270737f, 0.4621167f, 0.63515276f, 0.7616069f, 0.84828454f},
     {0.14373805f, 0.055464514f, 0.020772291f, 0.0076898965f, 0.0017215232f, 0.0002331665f, 3.1590913e-05f,
      4.2830393e-06f, 2.3905554e-07f, 1.0f, 0.9656512f, 0.90836823f, 0.78644824f, 0.596581f, 0.41995496f, 0.28041333f},
     {-0.13301432f, -0.05390352f, -0.02055434f, -0.007659752f, -0.0017179395f, -0.00023284626f, -3.154865e-05f,
      -4.143378e-06f, -2.3548888e-07f, 3.1204848e-07f, -0.17896792f, -0.27496952f, -0.3634256f, -0.37891993f,
      -0.31984246f, -0.2378719f},
     {0.07517848f, 0.033901237f, 0.013416284f, 0.0050671375f, 0.0011432648f, 0.00015518343f, 2.1032023e-05f,
      2.8522486e-06f, 1.5357887e-07f, -0.33335564f, -0.2887152f, -0.21954516f, -0.094224796f, 0.041807167f, 0.10361073f,
      0.1083126f},
     {-0.024855528f, -0.015026007f, -0.006480259f, -0.0025209505f, -0.0005967692f, -8.132529e-05f, -1.1033926e-05f,
      -2.0328926e-06f, -9.1415394e-08f, 0.00047275607f, 0.11286145f, 0.15779272f, 0.16358799f, 0.09972554f, 0.028106602f,
      -0.012257683f},
     {0.0011028729f, 0.004452962f, 0.0023593619f, 0.0009758607f, 0.00023672442f, 3.2477335e-05f, 4.404602e-06f,
      6.0299226e-07f, 4.099971e-08f, 0.12998629f, 0.0968763f, 0.044330552f, -0.025565464f, -0.06343082f, -0.04639145f,
      -0.019376699f}}};

/// Φ(−x), Φ the normal distribution, and gelu_tanh(−x) / −x, in intervals around k · 0.28125, of which the last reaches from
/// 4.078125 to 5.5. There the polynomials err by 2^-26.8, before by less than 2^-25.3 of the value.
inline constexpr float piece_width = 0.28125f, last_piece = 14.5f * piece_width, pieces_end = 5.5f;
inline constexpr pieces<6> normal_pieces{
    {0.0f, 0.28125456f, 0.56250226f, 0.84374976f, 1.1250817f, 1.4062324f, 1.6875051f, 1.9687288f, 2.2499273f, 2.531304f,
     2.8124833f, 3.093755f, 3.3750918f, 3.656303f, 3.937497f, 4.789139f},
    {{0.5f, 0.38925758f, 0.28688693f, 0.19940463f, 0.13027722f, 0.07982757f, 0.045753133f, 0.024492122f, 0.012226781f,
      0.0056819674f, 0.0024580287f, 0.0009882031f, 0.00036895537f, 0.00012793948f, 4.1167998e-05f, 8.37493e-07f},
     {-0.3989423f, -0.38347125f, -0.34056717f, -0.27946022f, -0.21185718f, -0.14842385f, -0.09606067f, -0.05744743f,
      -0.031744845f, -0.016200904f, -0.0076429644f, -0.0033306142f, -0.0013407035f, -0.00049884553f, -0.00017150822f,
      -4.2336596e-06f},
     {1.1319688e-06f, 0.05392653f, 0.095784895f, 0.11789727f, 0.11917832f, 0.10435922f, 0.08105144f, 0.056549206f,
      0.0357118f, 0.020504704f, 0.010747855f, 0.0051520523f, 0.0022624985f, 0.000911965f, 0.00033765633f,
      1.0061065e-05f},
     {0.06645352f, 0.058853652f, 0.038803678f, 0.013420874f, -0.009384796f, -0.024179984f, -0.029581208f, -0.027535168f,
      -0.02149223f, -0.014601256f, -0.008802296f, -0.0047579687f, -0.002321929f, -0.001028325f, -0.00041458147f,
      -1.4247808e-05f},
     {0.00052627415f, -0.013126296f, -0.021421291f, -0.022484854f, -0.017223883f, -0.008893644f, -0.0010293631f,
      0.0041267965f, 0.006136671f, 0.0058229594f, 0.0043978496f, 0.0028212925f, 0.0015821236f, 0.00078801234f,
      0.00035186423f, 1.5944626e-05f},
     {-0.013410327f, -0.007968511f, -0.003497195f, 0.0016570874f, 0.005233319f, 0.0060940236f, 0.0047681914f,
      0.0024957478f, 0.00047002145f, -0.0007441675f, -0.0011472693f, -0.001030506f, -0.00071984105f, -0.00042289458f,
      -0.00021576145f, -1.7619277e-05f},
     {0.008564858f, 0.0021026868f, 0.0032171938f, 0.002926075f, 0.001336168f, -0.00020065888f, -0.0011846684f,
      -0.0013375519f, -0.0009797064f, -0.0004761225f, -5.2454012e-05f, 0.0001561649f, 0.00019257062f, 0.00015082066f,
      9.311137e-05f, 1.0532771e-05f}}};
inline constexpr pieces<6> gelu_tanh_pieces{
    {0.0f, 0.28125226f, 0.56249213f, 0.84374386f, 1.1249913f, 1.4062442f, 1.6874706f, 1.9687485f, 2.2499287f,
     2.5312526f, 2.8125439f, 3.093741f, 3.3750584f, 3.6562293f, 3.9374864f, 4.7890906f},
    {{0.5f, 0.3892654f, 0.2869371f, 0.19952261f, 0.1304687f, 0.07999094f, 0.04583952f, 0.024454964f, 0.012091761f,
      0.005505146f, 0.0022927728f, 0.00086684973f, 0.00029475382f, 8.942036e-05f, 2.395654e-05f, 1.8931156e-07f},
     {-0.3989423f, -0.38340035f, -0.3403588f, -0.27920485f, -0.21176969f, -0.14858939f, -0.09645728f, -0.057864398f,
      -0.03200693f, -0.016245663f, -0.0075238803f, -0.0031566077f, -0.0011887399f, -0.00039854538f, -0.00011773356f,
      -1.2988528e-06f},
     {1.1321645e-06f, 0.054155096f, 0.09599702f, 0.11781491f, 0.118758544f, 0.10385565f, 0.08080961f, 0.05668791f,
      0.036089398f, 0.020871203f, 0.0109394435f, 0.005168779f, 0.0021834918f, 0.00081809587f, 0.00026909955f,
      3.896477e-06f},
     {0.066782594f, 0.05901645f, 0.03859765f, 0.012973925f, -0.009676933f, -0.024058515f, -0.029140536f, -0.027123228f,
      -0.021361904f, -0.014742307f, -0.009033832f, -0.0049269977f, -0.002381367f, -0.0010135281f, -0.00037634186f,
      -6.312184e-06f},
     {0.00052680814f, -0.013401554f, -0.021744767f, -0.022532336f, -0.016927045f, -0.0085045295f, -0.0008890146f,
      0.0039542927f, 0.005852747f, 0.0056515746f, 0.0043987106f, 0.0029150334f, 0.0016708294f, 0.00082982314f,
      0.0003552396f, 9.3930685e-06f},
     {-0.013644327f, -0.008180336f, -0.003401485f, 0.0021153602f, 0.0054937294f, 0.006064234f, 0.0045525585f,
      0.0023487534f, 0.0004735226f, -0.00063148735f, -0.001043962f, -0.0010036076f, -0.000746043f, -0.00045696975f,
      -0.00023452268f, -1.4862614e-05f},
     {0.008595f, 0.0021474778f, 0.003403071f, 0.002667815f, 0.0011167631f, -0.00046291054f, -0.0012677422f,
      -0.0012924247f, -0.0008643935f, -0.00041907202f, -8.855103e-05f, 0.000114415074f, 0.00017747408f, 0.0001560204f,
      0.00010349356f, 1.0393772e-05f}}};

}  // namespace detail
}  // namespace math
}  // namespace situ::inline SITU_ABI

// ---- <situ/expr/math/sigmoid.hpp>
/// sigmoid, silu, softplus, elu and tanh of packs and numbers.


// ---- <situ/expr/math/exp.hpp>
/// exp, exp2 and expm1 of packs and numbers.


namespace situ::inline SITU_ABI {
namespace math {

// Numbers: libm on the host, CUDA's own functions on a device.
SITU_HOST_DEVICE inline float exp(float x) { return SITU_LIBM(expf)(x); }
SITU_HOST_DEVICE inline double exp(double x) { return SITU_LIBM(exp)(x); }
SITU_HOST_DEVICE inline float exp2(float x) { return SITU_LIBM(exp2f)(x); }
SITU_HOST_DEVICE inline double exp2(double x) { return SITU_LIBM(exp2)(x); }
SITU_HOST_DEVICE inline float expm1(float x) { return SITU_LIBM(expm1f)(x); }
SITU_HOST_DEVICE inline double expm1(double x) { return SITU_LIBM(expm1)(x); }

namespace detail {

/// exp(x) in parts: 2^n · (1 + t) with |t| < 0.42, for |x| < 175.
template <class P>
struct exp_parts {
  P t, n;
};

/// r² q(r) + c. Not Horner's scheme: how long one element takes matters as much as how many operations it takes.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> exp_rest(pack<float, N, Isa> const& r, pack<float, N, Isa> const& c) {
  using P = pack<float, N, Isa>;
  P const u = r * r;
  P const a = multiply_add(r, P(0.166665196f), P(0.49999994f));
  P const b = multiply_add(r, P(0.00836881157f), P(0.0416683964f));
  return multiply_add(u, multiply_add(u, multiply_add(u, P(0.00138143916f), b), a), c);
}

/// The parts of exp(x).
///
///     n = round(x / ln 2),   r = x − n ln 2,   t = r + r² q(r)
///
/// ln 2 is split so that n times its upper part is exact; the polynomial errs by 2^-28.
template <int N, class Isa>
SITU_INLINE exp_parts<pack<float, N, Isa>> split_exp(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const magic(round_magic<float>);
  P const n = keep_order(keep_order(multiply_add(x, P(1.44269504f), magic)) - magic);
  P const r = keep_order(multiply_add(n, P(-0.693359375f), x)) - n * P(-2.12194440e-4f);
  return {exp_rest(r, r), n};
}
/// The parts of exp(x), |x| < 1400, in double. The polynomial errs by 2^-57 of the whole.
template <int N, class Isa>
SITU_INLINE exp_parts<pack<double, N, Isa>> split_exp(pack<double, N, Isa> const& x) {
  using P = pack<double, N, Isa>;
  P const magic(round_magic<double>);
  P const n = keep_order(keep_order(multiply_add(x, P(1.4426950408889634), magic)) - magic);
  P const a = keep_order(multiply_add(n, P(-6.93147180369123816490e-01), x));
  P const b = n * P(-1.90821492927058770002e-10);
  P const r = keep_order(a + b);
  P const lost = keep_order(a - r) + b;
  P const u = r * r;
  P const v = u * u;
  P const q0 = multiply_add(r, P(0.16666666666666674), P(0.500000000000001));
  P const q1 = multiply_add(r, P(0.008333333333322087), P(0.04166666666652043));
  P const q2 = multiply_add(r, P(0.00019841269886957503), P(0.00138888889482975));
  P const q3 = multiply_add(r, P(2.755724192264636e-06), P(2.480148678758961e-05));
  P const q4 = multiply_add(r, P(2.5110205749647452e-08), P(2.763285843695327e-07));
  P const high = multiply_add(v, q4, multiply_add(u, q3, q2));
  P const q = multiply_add(v, high, multiply_add(u, q1, q0));
  return {r + multiply_add(u, q, lost), n};
}

/// The parts of 2^(−x − low), where low is what x lost in rounding. The polynomial is that of exp2 in −r.
template <int N, class Isa>
SITU_INLINE exp_parts<pack<float, N, Isa>> split_exp2_negated(pack<float, N, Isa> const& x,
                                                              pack<float, N, Isa> const& low) {
  using P = pack<float, N, Isa>;
  P const magic(round_magic<float>);
  P const n = keep_order(keep_order(magic - x) - magic);
  P const r = keep_order(x + n) + low;
  P const u = r * r;
  P const a = multiply_add(r, P(-0.0555029698f), P(0.240226507f));
  P const b = multiply_add(r, P(-0.00134101545f), P(0.00961802993f));
  P const q = multiply_add(u, multiply_add(u, P(0.000154698646f), b), a);
  return {multiply_add(u, q, r * -0.693147242f), n};
}

/// The parts of exp(x + low), where low is what x lost in rounding; t = r + rest, a sum that is not yet rounded.
template <class P>
struct exp_twice {
  P r, rest, n;
};
template <int N, class Isa>
SITU_INLINE exp_twice<pack<float, N, Isa>> split_exp_twice(pack<float, N, Isa> const& x,
                                                           pack<float, N, Isa> const& low) {
  using P = pack<float, N, Isa>;
  P const magic(round_magic<float>);
  P const n = keep_order(keep_order(multiply_add(x, P(1.44269504f), magic)) - magic);
  P const a = keep_order(multiply_add(n, P(-0.693359375f), x));
  P const b = multiply_add(n, P(2.12194440e-4f), low);
  P const r = keep_order(a + b);
  return {r, exp_rest(r, keep_order(a - r) + b), n};
}

struct scalar_exp2 {
  static double value(double x) { return math::exp2(x); }
};
struct scalar_expm1 {
  static double value(double x) { return math::expm1(x); }
};

}  // namespace detail

/// eˣ.
///
/// Special   exp(−inf) = 0, exp(inf) = inf, NaN stays.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> exp(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  auto const [t, n] = detail::split_exp(detail::at_least(detail::at_most(x, 89.0f), -104.0f));
  return detail::scale(P(1.0f) + t, n);
}

/// 2ˣ.
///
/// Special   exp2 of an integer is exact; exp2(−inf) = 0, exp2(inf) = inf, NaN stays.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> exp2(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const y = detail::at_least(detail::at_most(x, 129.0f), -151.0f);
  P const n = detail::round_small(y);
  P const r = y - n;
  P const q = detail::horner(r, 0.000154698646f, 0.00134101545f, 0.00961802993f, 0.0555029698f, 0.240226507f,
                             0.693147242f);
  return detail::scale(multiply_add(r, q, P(1.0f)), n);
}

/// eˣ − 1, accurate near 0.
///
///     2^n t + (2^n − 1),   halved so that 2^n does not overflow
///
/// Special   expm1(±0) = ±0, expm1(−inf) = −1, expm1(inf) = inf, NaN stays.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> expm1(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  auto const [t, n] = detail::split_exp(detail::at_least(detail::at_most(x, 89.0f), -18.0f));
  P const s = detail::power_of_two(n - P(1.0f));
  P const y = multiply_add(s, t, keep_order(s - P(0.5f)));
  // n == 0 gives 0.5 t + 0: only there can the result be so small that halving loses digits.
  return select(n == P(0.0f), select(x == P(0.0f), x, t), y + y);
}

template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> exp(pack<double, N, Isa> const& x) {
  using P = pack<double, N, Isa>;
  auto const [t, n] = detail::split_exp(detail::at_least(detail::at_most(x, 710.0), -746.0));
  return detail::scale(P(1.0) + t, n);
}

// The other functions of double go through libm, lane by lane.
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> exp2(pack<double, N, Isa> const& x) {
  return detail::every_lane<detail::scalar_exp2>(x);
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> expm1(pack<double, N, Isa> const& x) {
  return detail::every_lane<detail::scalar_expm1>(x);
}

}  // namespace math
}  // namespace situ::inline SITU_ABI

// ---- <situ/expr/math/log.hpp>
/// log, log2, log10 and log1p of packs and numbers.


namespace situ::inline SITU_ABI {
namespace math {

// Numbers: libm on the host, CUDA's own functions on a device.
SITU_HOST_DEVICE inline float log(float x) { return SITU_LIBM(logf)(x); }
SITU_HOST_DEVICE inline double log(double x) { return SITU_LIBM(log)(x); }
SITU_HOST_DEVICE inline float log2(float x) { return SITU_LIBM(log2f)(x); }
SITU_HOST_DEVICE inline double log2(double x) { return SITU_LIBM(log2)(x); }
SITU_HOST_DEVICE inline float log10(float x) { return SITU_LIBM(log10f)(x); }
SITU_HOST_DEVICE inline double log10(double x) { return SITU_LIBM(log10)(x); }
SITU_HOST_DEVICE inline float log1p(float x) { return SITU_LIBM(log1pf)(x); }
SITU_HOST_DEVICE inline double log1p(double x) { return SITU_LIBM(log1p)(x); }

namespace detail {

/// x = 2^e (1 + f), −1/4 <= f < 1/2. Where `special` is set, some lane is no positive normal number: such lanes hold
/// what they need for the answer to be right (has_avx512), or `log_special` puts it right.
template <class P>
struct log_parts {
  P f, e;
  bool special;
};

#if SITU_MATH_X86_ASM
/// x = 2^e m, 3/4 <= m < 3/2. e = ±inf and NaN come out of these instructions as the logarithm needs them.
template <class P>
struct scientific {
  P m, e;
};
template <int N, class Isa>
SITU_INLINE scientific<pack<float, N, Isa>> mantissa_and_exponent(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  auto const v = x.v;
  typename P::vector m, e;
  __asm__("vgetmantps {$11, %1, %0|%0, %1, 11}" : "=v"(m) : "v"(v));
  __asm__("vgetexpps {%1, %0|%0, %1}" : "=v"(e) : "v"(v));
  P const mantissa(m), exponent(e), one(1.0f);
  return {mantissa, select(mantissa < one, exponent + one, exponent)};
}
#endif

template <int N, class Isa>
SITU_INLINE log_parts<pack<float, N, Isa>> split_log(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  using I = pack<int32_t, N, Isa>;
#if SITU_MATH_X86_ASM
  if constexpr (has_avx512<float, N, Isa>) {
    auto const [m, e] = mantissa_and_exponent(x);
    return {m - P(1.0f), e, false};
  }
#endif
  I const bits = bitcast<int32_t>(x);
  bool const special = any((bits < I(0x00800000)) | (bits >= I(0x7f800000)));
  I from = bits - I(0x3f400000);
  if (SITU_UNLIKELY(special)) {
    from = select(bits < I(0x00800000), bitcast<int32_t>(x * 8388608.0f) - I(0x3f400000) - I(23 << 23), from);
  }
  P const f = bitcast<float>((from & I(0x007fffff)) + I(0x3f400000)) - P(1.0f);
  return {f, convert_unchecked<float>(from >> 23), special};
}

/// y with the logarithms of 0, of inf, of negative numbers and of NaN put right.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> log_special(pack<T, N, Isa> const& x, pack<T, N, Isa> const& y) {
  using P = pack<T, N, Isa>;
  P const zero(T(0)), infinity(std::numeric_limits<T>::infinity()), nan(std::numeric_limits<T>::quiet_NaN());
  P const above = select(x > zero, select(x < infinity, y, x), select(x < zero, nan, x));
  return select(x == zero, -infinity, above);
}

/// log(1 + f) − f;  log(1 + f) = f − f²/2 + f³ p(f), p erring by 2^-27.6 of the whole.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> log_rest(pack<float, N, Isa> const& f) {
  using P = pack<float, N, Isa>;
  P const p = horner(f, -0.0450761728f, 0.104631938f, -0.13161242f, 0.14478381f, -0.166473061f, 0.199908614f,
                     -0.250000954f, 0.333334506f);
  return (f * f) * multiply_add(f, p, P(-0.5f));
}

/// e log 2 + log(1 + f), the first product exact.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> join_log(pack<float, N, Isa> const& f, pack<float, N, Isa> const& e) {
  using P = pack<float, N, Isa>;
  P const rest = multiply_add(e, P(1.42860677e-06f), log_rest(f));
  return multiply_add(e, P(0.693145751953125f), keep_order(f + rest));
}

/// a + b + c log(1 + f), for a = 0 or |a| > c |log(1 + f)|. c is given as c1 + c2, where c1 has 12 digits.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> join_scaled_log(pack<float, N, Isa> const& f, pack<float, N, Isa> const& a,
                                                pack<float, N, Isa> const& b, float c1, float c2, float c) {
  using P = pack<float, N, Isa>;
  P const f1 = upper_half(f), f2 = keep_order(f - f1);
  auto const [high, lost] = fast_two_sum(a, keep_order(f1 * c1));
  P const low = multiply_add(f1, P(c2), multiply_add(f2 + log_rest(f), P(c), b));
  P const y = high + keep_order(keep_order(lost) + low);
  // The parts of 0, inf, a negative number and NaN: a or f tells, but inf − inf has spoilt y.
  if constexpr (has_avx512<float, N, Isa>) return select(magnitude(a) < P(1000.0f), y, a + f);
  return y;
}

/// For m in [3/4, 3/2), by k = round(16 m), at k mod 16: a number close to 16/k, and the negative of its logarithm, which is
/// within 2^-34 of a multiple of 2^-17.
struct log_table {
  alignas(64) float inverse[16];
  alignas(64) float log[16];
};
inline constexpr log_table log_pieces{
    {1.0f, 0.94219804f, 0.88983244f, 0.8423222f, 0.8002678f, 0.76497954f, 0.7278798f, 0.69387513f, 0.6634757f, 0.0f, 0.0f,
     0.0f, 1.33066f, 1.2286048f, 1.1477572f, 1.0719025f},
    {0.0f, 0.059539795f, 0.11672211f, 0.17159271f, 0.22280884f, 0.2679062f, 0.31761932f, 0.36546326f, 0.41026306f, 0.0f,
     0.0f, 0.0f, -0.28567505f, -0.20587921f, -0.13780975f, -0.06943512f}};

#if SITU_MATH_X86_ASM
/// log(x) for every x, where numbers can be looked up in registers.
///
///     x = 2^e m,   r = m c − 1,   log(x) = (e log 2 − log(c)) + log(1 + r),   |r| < 0.0402,   c = 1 for m near 1
///
/// log 2 is split so that the first sum is exact; the polynomial errs by 2^-29.6 of log(1 + r).
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> log_by_table(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  auto const [m, e] = mantissa_and_exponent(x);
  auto const index = bitcast<int32_t>(keep_order(m + P(round_magic<float> / 16)));
  P const r = fused<sign::plus, sign::minus>(m, look_up(index, log_pieces.inverse), P(1.0f));
  P const whole = fused(e, P(0.693145751953125f), look_up(index, log_pieces.log));
  P const u = r * r;
  P const a = fused(r, P(0.33333325f), P(-0.49999985f));
  P const p = fused(u, fused(r, P(0.20024663f), P(-0.2503525f)), a);
  return whole + fused(e, P(1.42860677e-06f), fused(u, p, r));
}
#endif

struct scalar_log {
  static double value(double x) { return math::log(x); }
};
struct scalar_log2 {
  static double value(double x) { return math::log2(x); }
};
struct scalar_log10 {
  static double value(double x) { return math::log10(x); }
};
struct scalar_log1p {
  static double value(double x) { return math::log1p(x); }
};

}  // namespace detail

/// Natural logarithm.
///
/// Special   log(±0) = −inf, log(inf) = inf, of a negative number NaN, NaN stays.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> log(pack<float, N, Isa> const& x) {
#if SITU_MATH_X86_ASM
  if constexpr (detail::has_avx512<float, N, Isa>) return detail::log_by_table(x);
#endif
  auto const [f, e, special] = detail::split_log(x);
  pack<float, N, Isa> const y = detail::join_log(f, e);
  if (SITU_UNLIKELY(special)) return detail::log_special(x, y);
  return y;
}

/// Logarithm to base 2; exact at powers of two.
///
/// Special   as log.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> log2(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  auto const [f, e, special] = detail::split_log(x);
  P const y = detail::join_scaled_log(f, e, P(0.0f), 1.4423828125f, 0.000312228396f, 1.44269502f);
  if (SITU_UNLIKELY(special)) return detail::log_special(x, y);
  return y;
}

/// Logarithm to base 10.
///
/// Special   as log.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> log10(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  auto const [f, e, special] = detail::split_log(x);
  P const y = detail::join_scaled_log(f, e * 0.301025390625f, e * 4.60503907e-06f, 0.4342041015625f, 9.03803375e-05f,
                                      0.434294492f);
  if (SITU_UNLIKELY(special)) return detail::log_special(x, y);
  return y;
}

/// log(1 + x), accurate near 0.
///
///     1 + x = 2^e m,   f = m − 1 = 2^-e x + (2^-e − 1)
///
/// Special   log1p(±0) = ±0, log1p(−1) = −inf, log1p(inf) = inf, below −1 NaN, NaN stays.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> log1p(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  using I = pack<int32_t, N, Isa>;
  P const one(1.0f), infinity(std::numeric_limits<float>::infinity());
  I const from = bitcast<int32_t>(keep_order(x + one)) - I(0x3f400000);
  P const e = convert_unchecked<float>(from >> 23);
  P const m = bitcast<float>((from & I(0x007fffff)) + I(0x3f400000)) - one;
  P const s = detail::power_of_two(-e);
  P const f = select(e > P(60.0f), m, multiply_add(s, x, keep_order(s - one)));
  P y = detail::join_log(f, e);
  y = select(x == P(0.0f), x, y);
  if (SITU_UNLIKELY(detail::any(select(x > -one, x, infinity) >= infinity))) {
    P const nan(std::numeric_limits<float>::quiet_NaN());
    y = select(x > -one, select(x < infinity, y, x), select(x < -one, nan, x));
    y = select(x == -one, -infinity, y);
  }
  return y;
}

/// In double:
///
///     f = m − 1 in [−0.293, 0.414],   s = f / (2 + f),   log(1 + f) = f − (f²/2 − s (f²/2 + R(s²)))
///
/// Cost      lanes that are 0, denormal, negative, infinite or NaN go through libm.
/// Source    the scheme and the coefficients of R are those of log in FreeBSD's msun, e_log.c (Sun Microsystems 1993).
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> log(pack<double, N, Isa> const& x) {
  using P = pack<double, N, Isa>;
  using I = pack<int64_t, N, Isa>;
  using U = pack<uint64_t, N, Isa>;
  constexpr int64_t low = 0x3fe6a09e00000000;  // just below sqrt(1/2)
  I const from = bitcast<int64_t>(x) + I(0x3ff0000000000000 - low);
  P const biased = bitcast<double>((bitcast<uint64_t>(from) >> 52) | U(0x4330000000000000));  // 2^52 + exponent
  P const e = keep_order(biased) - 4503599627371519.0;
  P const f = keep_order(bitcast<double>((from & I(0x000fffffffffffff)) + I(low)) - 1.0);
  P const s = detail::divide(f, f + 2.0);
  P const z = s * s, w = z * z;
  P const odd = detail::horner(w, 1.531383769920937332e-01, 2.222219843214978396e-01, 3.999999999940941908e-01);
  P const even = detail::horner(w, 1.479819860510658591e-01, 1.818357216161805012e-01, 2.857142874366239149e-01,
                                6.666666666666735130e-01);
  P const r = multiply_add(z, even, w * odd);
  P const half_square = keep_order(f * f * 0.5);
  P const rest = keep_order(half_square - keep_order(multiply_add(s, half_square + r, e * 1.90821492927058770002e-10)));
  P const y = multiply_add(e, P(6.93147180369123816490e-01), -keep_order(rest - f));
  P const least(std::numeric_limits<double>::min()), infinity(std::numeric_limits<double>::infinity());
  auto const special = select(x < infinity, x, -infinity) < least;
  if (SITU_UNLIKELY(detail::any(special))) return detail::by_lane<detail::scalar_log>(special, x, y);
  return y;
}

// The other functions of double go through libm, lane by lane.
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> log2(pack<double, N, Isa> const& x) {
  return detail::every_lane<detail::scalar_log2>(x);
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> log10(pack<double, N, Isa> const& x) {
  return detail::every_lane<detail::scalar_log10>(x);
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> log1p(pack<double, N, Isa> const& x) {
  return detail::every_lane<detail::scalar_log1p>(x);
}

}  // namespace math
}  // namespace situ::inline SITU_ABI

namespace situ::inline SITU_ABI {
namespace math {

// Numbers: libm on the host, CUDA's own functions on a device.
SITU_HOST_DEVICE inline float tanh(float x) { return SITU_LIBM(tanhf)(x); }
SITU_HOST_DEVICE inline double tanh(double x) { return SITU_LIBM(tanh)(x); }
/// 1 / (1 + e⁻ˣ), without overflow.
template <class T>
  requires std::is_floating_point_v<T>
SITU_HOST_DEVICE inline T sigmoid(T x) {
  T const e = math::exp(x < 0 ? x : -x);
  return x < 0 ? e / (1 + e) : 1 / (1 + e);
}
/// x / (1 + e⁻ˣ). e⁻ᵃ is squared from its half, so that x e⁻ᵃ is rounded once where e⁻ᵃ alone is denormal.
template <class T>
  requires std::is_floating_point_v<T>
SITU_HOST_DEVICE inline T silu(T x) {
  T const h = math::exp((x < 0 ? x : -x) / 2);
  return x < 0 ? (x < T(-2000) ? T(-0.0) : x * h / (1 + h * h) * h) : x / (1 + h * h);
}
/// log(1 + eˣ).
template <class T>
  requires std::is_floating_point_v<T>
SITU_HOST_DEVICE inline T softplus(T x) {
  T const y = math::log1p(math::exp(x < 0 ? x : -x));
  return x > 0 ? x + y : y;
}
/// x for x > 0, otherwise alpha (eˣ − 1).
template <class T>
  requires std::is_floating_point_v<T>
SITU_HOST_DEVICE inline T elu(T x, T alpha) {
  return x > 0 ? x : alpha * math::expm1(x);
}

namespace detail {

/// g · sigmoid(z), where z < 0 where `negative` is set, and exp(−|z|) = 2^n (1 + t).
///
///     z >= 0:  g / (1 + e),   z < 0:  g (1 + t) / (1 + e) · 2^n,   e = 2^n (1 + t)
///
/// The quotient is near_reciprocal's u, put right by 1 − u (1 + e) = (1 − u) − u e, whose first difference is exact.
/// The power of two comes last, so that a small result is rounded once.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> times_sigmoid(pack<T, N, Isa> const& g,
                                          mask<static_cast<int>(sizeof(T)), N, Isa> const& negative,
                                          exp_parts<pack<T, N, Isa>> const& parts) {
  using P = pack<T, N, Isa>;
  auto const [t, n] = parts;
  P const one(T(1));
  P const s = power_of_two(at_least(n, T(-100)));
  P const e = add_share(s, t);
  P const u = near_reciprocal(one + e);
  P const w = keep_order(one - u) - u * e;
  // Not 0 but far below one ulp of 1, and more than w where g may be infinite: inf times it is inf.
  P const f = select(negative, t, P(T(4e-30)));
  P const p = g * u;
  return scale(add_share(p, multiply_add(one + f, w, f)), select(negative, n, P(T(0))));
}
/// sigmoid(x) = q / d with q = 2^n, where one rounding of d matters: d = (q + 1) + t, e⁻ˣ = 2^-n (1 + t).
template <class P>
struct sigmoid_quotient {
  P q, d, n;
};
/// For |x| < 87.3; where powers of two that are denormal cost nothing, for −150 < x < 88.
///
/// q + 1 is exact but where q is far from 1; what it loses then joins t.
template <int N, class Isa>
SITU_INLINE sigmoid_quotient<pack<float, N, Isa>> split_sigmoid(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const one(1.0f), magic(round_magic<float> + 127.0f);
  P const shifted = keep_order(multiply_add(x, P(1.44269504f), magic));
  P const n = keep_order(shifted - magic);
  P q;
  if constexpr (has_avx512<float, N, Isa>) q = scale(one, n);
  else q = bitcast<float>(bitcast<int32_t>(shifted) << 23);
  P const r = keep_order(multiply_add(n, P(0.693359375f), -x)) - n * P(2.12194440e-4f);
  P const sum = keep_order(q + one);
  P const lost = q - keep_order(sum - one);
  P const t = exp_rest(r, keep_order(r + lost));
  return {q, sum + keep_order(t), n};
}
/// Beyond it sigmoid may be denormal, and exp(−x) overflow.
inline constexpr float sigmoid_bound = 87.0f;

/// Where exp's argument is cut off: x eˣ is 0 in T from well above it.
template <class T>
inline constexpr T least_exponent = sizeof(T) == 4 ? T(-173) : T(-1380);

// A sum of several roundings may err by more than 2 ULP: a long double is rounded once.
struct scalar_softplus {
  static double value(double x) {
    long double const y = SITU_LIBM(log1pl)(SITU_LIBM(expl)(-SITU_LIBM(fabsl)(static_cast<long double>(x))));
    return static_cast<double>(x > 0 ? x + y : y);
  }
};

// Named functions, because nvcc loses the attribute that inlines a lambda.
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> sigmoid_anywhere(pack<T, N, Isa> const& x) {
  using P = pack<T, N, Isa>;
  P const a = at_least(negative_magnitude(x), least_exponent<T>);
  return times_sigmoid(P(T(1)), x < P(T(0)), split_exp(a));
}
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> silu_anywhere(pack<T, N, Isa> const& x) {
  using P = pack<T, N, Isa>;
  P const a = at_least(negative_magnitude(x), least_exponent<T>);
  // Below its bound the result is −0 whatever g is.
  P const g = at_least(x, sizeof(T) == 4 ? T(-200) : T(-1000));
  return with_sign_of(x, times_sigmoid(g, x < P(T(0)), split_exp(a)));
}

}  // namespace detail

/// 1 / (1 + e⁻ˣ), also where that is denormal.
template <class T, int N, class Isa>
  requires std::is_floating_point_v<T>
SITU_INLINE pack<T, N, Isa> sigmoid(pack<T, N, Isa> const& x) {
  using P = pack<T, N, Isa>;
  if constexpr (detail::has_avx512<float, N, Isa> && sizeof(T) == 4) {
    auto const [q, d, n] = detail::split_sigmoid(detail::at_least(detail::at_most(x, 87.5f), -110.0f));
    return detail::divide(q, d);
  } else if constexpr (sizeof(T) == 4) {
    auto const [q, d, n] = detail::split_sigmoid(detail::at_least(detail::at_most(x, detail::sigmoid_bound), -detail::sigmoid_bound));
    P const y = detail::divide(q, d);
    if (SITU_UNLIKELY(detail::any_below(x, -detail::sigmoid_bound))) {
      return select(x < P(-detail::sigmoid_bound), detail::sigmoid_anywhere(x), y);
    }
    return y;
  } else {
    return detail::sigmoid_anywhere(x);
  }
}

/// x / (1 + e⁻ˣ); −0 at −inf.
template <class T, int N, class Isa>
  requires std::is_floating_point_v<T>
SITU_INLINE pack<T, N, Isa> silu(pack<T, N, Isa> const& x) {
  using P = pack<T, N, Isa>;
  if constexpr (detail::has_avx512<float, N, Isa> && sizeof(T) == 4) {
    P const g = detail::at_least(x, -125.0f);
    auto const [q, d, n] = detail::split_sigmoid(detail::at_most(g, 87.5f));
    return detail::scale(detail::divide(g, d), n);
  } else if constexpr (sizeof(T) == 4) {
    P const c = detail::at_least(detail::at_most(x, 80.0f), -detail::sigmoid_bound);  // c q must not overflow
    auto const [q, d, n] = detail::split_sigmoid(c);
    P const y = detail::divide(c * q, d);
    auto const tail = x != c;
    if (SITU_UNLIKELY(detail::any(tail))) return select(tail, detail::silu_anywhere(x), y);
    return y;
  } else {
    return detail::silu_anywhere(x);
  }
}

/// log(1 + eˣ).
///
///     max(x, 0) + log(1 + e),   e = exp(−|x|) = 2^n (1 + t)
///
/// 1 + e is f + 1 for e < 1/2, otherwise 2 (f + 1); either f takes one rounding from t.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> softplus(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const zero(0.0f), one(1.0f), half(0.5f);
  P const a = detail::negative_magnitude(x);
  auto const [t, n] = detail::split_exp(detail::at_least(a, -125.0f));
  auto const big = a > P(-0.693f);
  P const c = select(big, half, one);
  P const s = detail::scale(c, n);
  P const f = multiply_add(s, t, s - select(big, half, zero));
  P const y = f + (detail::log_rest(f) + select(big, P(1.42860677e-06f), zero));
  return (y + select(big, P(0.693145751953125f), zero)) + select(x < zero, zero, x);
}

/// x for x > 0, otherwise alpha (eˣ − 1).
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> elu(pack<float, N, Isa> const& x, pack<float, N, Isa> const& alpha) {
  using P = pack<float, N, Isa>;
  return select(x > P(0.0f), x, alpha * expm1(x));
}

/// Hyperbolic tangent.
///
///     with tables in registers:  ± a polynomial in |x| for each of 16 intervals
///     elsewhere, |x| < 0.6:      x + x³ p(x²),   otherwise ±(1 − 2 / (e^(2|x|) + 1))
///
/// Special   tanh(±0) = ±0, tanh(±inf) = ±1, NaN stays.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> tanh(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const a = detail::magnitude(x);
#if SITU_MATH_X86_ASM
  if constexpr (detail::has_avx512<float, N, Isa>) {
    P const c = detail::at_most(a, 9.1f);
    auto const index = bitcast<int32_t>(keep_order(c + P(0.625f))) >> 21;
    return detail::with_sign_of(x, detail::look_up_value(index, c, detail::tanh_pieces));
  }
#endif
  P const one(1.0f);
  auto const [t, n] = detail::split_exp(detail::at_most(a + a, 20.0f));
  P const s = detail::power_of_two(n);
  P const large = one - detail::divide(P(2.0f), multiply_add(s, t, s + one));
  P const u = x * x;
  P const p = detail::horner(u, -0.00585642783f, 0.020775415f, -0.0537828915f, 0.133319989f, -0.333333045f);
  P const small = multiply_add(a * u, p, a);
  return detail::flip_sign(select(a < P(0.6f), small, large), x);
}

template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> tanh(pack<double, N, Isa> const& x) {
  using P = pack<double, N, Isa>;
  P const one(1.0), a = detail::magnitude(x);
  auto const [t, n] = detail::split_exp(detail::at_most(a + a, 45.0));
  P const s = detail::power_of_two(n);
  P const large = one - detail::divide(P(2.0), multiply_add(s, t, s + one));
  P const u = x * x;
  P const p = detail::horner(u, 6.477581866197033e-06, -3.11403341907711e-05, 9.247128195651618e-05,
                             -0.00023751361412136432, 0.0005896266047842966, -0.001455766104783872,
                             0.003592120140358819, -0.008863234928490647, 0.021869488507630066, -0.053968253967490894,
                             0.13333333333332378, -0.3333333333333333);
  P const small = multiply_add(a * u, p, a);
  return detail::flip_sign(select(a < P(0.6), small, large), x);
}

// softplus of double goes through libm, lane by lane.
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> softplus(pack<double, N, Isa> const& x) {
  return detail::every_lane<detail::scalar_softplus>(x);
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> elu(pack<double, N, Isa> const& x, pack<double, N, Isa> const& alpha) {
  using P = pack<double, N, Isa>;
  return select(x > P(0.0), x, alpha * expm1(x));
}
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> elu(pack<T, N, Isa> const& x, T alpha) {
  return elu(x, pack<T, N, Isa>(alpha));
}

}  // namespace math
}  // namespace situ::inline SITU_ABI

namespace situ::inline SITU_ABI {
namespace math {

// Numbers: libm on the host, CUDA's own functions on a device.
SITU_HOST_DEVICE inline float erf(float x) { return SITU_LIBM(erff)(x); }
SITU_HOST_DEVICE inline double erf(double x) { return SITU_LIBM(erf)(x); }
SITU_HOST_DEVICE inline float erfc(float x) { return SITU_LIBM(erfcf)(x); }
SITU_HOST_DEVICE inline double erfc(double x) { return SITU_LIBM(erfc)(x); }
/// x Φ(x), Φ the normal distribution: gelu in its exact form.
template <class T>
  requires std::is_floating_point_v<T>
SITU_HOST_DEVICE inline T gelu(T x) {
  // −x/√2 = u + d: erfc(u + d) = erfc(u) − 2/√π e^(−u²) d, and e^(−u²)/erfc(u) is close to √π (u + 1/(2u)) where that
  // matters, in the tail.
  T u, d;
  if constexpr (sizeof(T) == 4) {
    u = x * -0.707106769f;
    d = SITU_LIBM(fmaf)(x, -0.707106769f, -u) + x * -1.21016175e-08f;
  } else {
    u = x * -0.7071067811865476;
    d = SITU_LIBM(fma)(x, -0.7071067811865476, -u) + x * 4.833646656726457e-17;
  }
  if (u > 40) return T(-0.0);
  T const y = x * (T(0.5) * math::erfc(u));
  return u > 1 ? y - y * d * (2 * u + 1 / u) : y;
}
/// x (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2: gelu as it is often approximated.
template <class T>
  requires std::is_floating_point_v<T>
SITU_HOST_DEVICE inline T gelu_tanh(T x) {
  if (x < -50) return T(-0.0);
  if (x > 50) return x;
  double const y = static_cast<double>(x);
  double const z = 0.7978845608028654 * y * (1 + 0.044715 * y * y);  // half of what sigmoid takes
  double const a = z < 0 ? z : -z;
  T const high = static_cast<T>(a);
  T const h = math::exp(high);
  T const half = h + h * static_cast<T>(a - static_cast<double>(high));
  return x < 0 ? x * half / (1 + half * half) * half : x / (1 + half * half);
}

namespace detail {

/// x · 2^n, where x is close to high + low.
template <class P>
struct tail_parts {
  P high, low, n;
};

/// g e^z h(v) / (a + c) with v = (a − c) / (a + c), z = high + low; c has few digits, and h(v) = h0 + v rest(v).
///
/// What the sum, the quotient, v, the last step of h and the products lose is kept: only rest(v) is plainly rounded.
template <int N, class Isa, class H>
SITU_INLINE tail_parts<pack<float, N, Isa>> gaussian_tail(pack<float, N, Isa> const& g, pack<float, N, Isa> const& a,
                                                          float c, two<pack<float, N, Isa>> const& z,
                                                          two<float> const& h0, H const& rest) {
  using P = pack<float, N, Isa>;
  auto const [x, x_rest, n] = split_exp_twice(z.hi, z.lo);
  P const t = x + x_rest;
  P const centre(c);
  P const d = keep_order(a + centre);
  P const lost = a - keep_order(d - centre);
  P const u = near_reciprocal(d);
  P const w = residual(d, u) - lost * u;  // 1 / (a + c) = u (1 + w)
  auto const [v, v_low] = sum_of_product(P(1.0f), u, P(-2 * c));
  P const y = keep_order(multiply_add(u * (-2 * c), w, v_low));
  P const full = keep_order(v + y);
  P const r = rest(full);
  auto const [h, h_low] = sum_of_product(P(h0.hi), r, full);
  auto const [p, p_low] = two_prod(u, h);
  P const h_rest = multiply_add(keep_order(v - full) + y, r, h_low + P(h0.lo));
  auto const [q, q_low] = two_prod(g, p);
  P const low = multiply_add(g, multiply_add(u, h_rest, p_low), q_low);
  return {q, multiply_add(q, x + multiply_add(t, w, x_rest + w), low), n};
}

// libm's erfc errs by up to 5 ULP in double; what follows rounds a long double once, and lets none overflow.
struct scalar_gelu {
  static double value(double x) {
    if (x < -50) return -0.0;
    return static_cast<double>(0.5L * x * SITU_LIBM(erfcl)(-x * 0.707106781186547524400844362104849039L));
  }
};
struct scalar_gelu_tanh {
  static double value(double x) {
    if (x < -50) return -0.0;
    if (x > 50) return x;
    long double const y = x;
    return static_cast<double>(y / (1 + SITU_LIBM(expl)(y * (1 + 0.044715L * y * y) * -1.59576912160573071175978423973752L)));
  }
};
struct scalar_erf {
  static double value(double x) { return math::erf(x); }
};
struct scalar_erfc {
  static double value(double x) { return static_cast<double>(SITU_LIBM(erfcl)(static_cast<long double>(x))); }
};

}  // namespace detail

/// Error function.
///
///     |x| < 0.92:  x + x p(x²),   otherwise ±(1 − exp(−q(|x|)))
///
/// Special   erf(±0) = ±0, erf(±inf) = ±1, NaN stays.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> erf(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const one(1.0f), a = detail::at_most(detail::magnitude(x), 4.0f);
  P const g = detail::horner(a, 6.62777097e-07f, 1.23303944e-05f, -0.000384787476f, 0.00401340146f, -0.0248128027f,
                             0.107905716f, 0.633627295f, 1.12939703f, -0.000153382425f);
  auto const [t, n] = detail::split_exp(-g);
  P const s = detail::power_of_two(n);
  P const large = one - multiply_add(s, t, s);
  P const u = a * a;
  P const p = detail::horner(u, 8.36957333e-05f, -0.000814258703f, 0.00520102307f, -0.0268593952f, 0.112836957f,
                             -0.376126349f, 0.128379166f);
  return detail::flip_sign(select(a < P(0.92f), multiply_add(a, p, a), large), x);
}

namespace detail {
// Named, because nvcc loses the attribute that inlines a lambda.
struct erfc_polynomial {
  template <class P>
  SITU_INLINE P operator()(P const& v) const {
    return horner(v, 7.83312717e-05f, 0.000191038387f, -0.000337805483f, -0.00147547433f, 0.00139119988f,
                            0.0099369511f, -0.0145328781f, -0.067796357f, 0.326650828f, -0.721257448f);
  }
};
struct gelu_polynomial {
  template <class P>
  SITU_INLINE P operator()(P const& v) const {
    return horner(v, 5.21401962e-05f, 0.000127202933f, -0.00024353445f, -0.00102806545f, 0.00102492748f,
                    0.00696759438f, -0.0104626361f, -0.0472624376f, 0.230017707f, -0.509332001f);
  }
};
}  // namespace detail

/// 1 − erf(x), also where that is denormal.
///
///     x >= 0:  exp(−x²) h(v) / (x + 2.125),   v = (x − 2.125) / (x + 2.125)
///
/// Special   erfc(inf) = 0, erfc(−inf) = 2, NaN stays.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> erfc(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const a = detail::at_most(detail::magnitude(x), 10.25f);
  auto const square = detail::two_prod(a, a);
  auto const tail = detail::gaussian_tail(
      P(1.0f), a, 2.125f, {-square.hi, -square.lo}, {1.03134906f, -1.30585738e-08f},
      detail::erfc_polynomial{});
  P const y = detail::scale(keep_order(tail.high + tail.low), tail.n);
  return select(x < P(0.0f), P(2.0f) - y, y);
}

namespace detail {
/// gelu for every x.
///
///     x < 0:  x exp(−x²/2) h(v) / (|x| + 3),   v = (|x| − 3) / (|x| + 3);   x > 0:  x + gelu(−x)
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> gelu_anywhere(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const g = at_most(at_least(x, -15.0f), 15.0f);
  auto const square = two_prod(g, g);
  auto const tail = gaussian_tail(
      g, magnitude(g), 3.0f, {square.hi * -0.5f, square.lo * -0.5f}, {0.729083717f, -2.64977533e-08f},
      gelu_polynomial{});
  P const y = scale(keep_order(tail.high + tail.low), tail.n);
  return with_sign_of(x, select(x > P(0.0f), x - y, y));
}
}  // namespace detail

#if SITU_MATH_X86_ASM
namespace detail {
/// x f(x) = max(x, 0) − |x| f(−|x|), for f with f(x) + f(−x) = 1, from the table of f(−|x|).
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> gelu_by_table(pack<float, N, Isa> const& x, pieces<6> const& table) {
  using P = pack<float, N, Isa>;
  P const a = at_most(magnitude(x), pieces_end);
  P const index = multiply_add(at_most(a, 15 * piece_width), P(1.0f / piece_width), P(round_magic<float>));
  P const f = look_up_value(bitcast<int32_t>(keep_order(index)), a, table);
  return fused<sign::minus>(a, f, at_least(x, -0.0f));
}
}  // namespace detail
#endif

/// x Φ(x), Φ the normal distribution: gelu in its exact form.
///
/// Where numbers can be looked up in registers, Φ comes from a table of polynomials, but for the left tail.
///
/// Special   gelu(inf) = inf, gelu(−inf) = −0, NaN stays.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> gelu(pack<float, N, Isa> const& x) {
#if SITU_MATH_X86_ASM
  if constexpr (detail::has_avx512<float, N, Isa>) {
    pack<float, N, Isa> const y = detail::gelu_by_table(x, detail::normal_pieces), bound(-detail::last_piece);
    if (SITU_UNLIKELY(detail::any_below(x, -detail::last_piece))) return select(x < bound, detail::gelu_anywhere(x), y);
    return y;
  }
#endif
  return detail::gelu_anywhere(x);
}

namespace detail {
/// gelu_tanh for every x.
///
///     x sigmoid(z),   z = 2 √(2/π) x (1 + 0.044715 x²)
///
/// z log2(e) is computed to twice the precision: where it is large, its absolute error is the result's relative one.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> gelu_tanh_anywhere(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const g = at_least(x, -12.5f);
  P const a = at_most(magnitude(g), 12.5f);
  // z = a (k + k_low + (c + c_low) a²)
  P const c(0.102943242f), c_low(-2.01619844e-09f), k(2.30218505859375f), k_low(2.31395497e-05f);
  auto const [square, square_low] = two_prod(a, a);
  P const correction = multiply_add(square_low, c, multiply_add(square, c_low, k_low));
  two<P> sum;
  if constexpr (Isa::fma) {  // k has few digits, k − sum is exact
    sum.hi = keep_order(multiply_add(square, c, k));
    sum.lo = fused(square, c, k - sum.hi);
  } else {
    auto const product = two_prod(square, c);
    sum = two_sum(k, product.hi);
    sum.lo = keep_order(sum.lo) + product.lo;
  }
  auto const z = two_prod(a, sum.hi);
  P const z_low = multiply_add(a, keep_order(sum.lo) + correction, z.lo);
  return with_sign_of(x, times_sigmoid(g, x < P(0.0f), split_exp2_negated(z.hi, z_low)));
}
}  // namespace detail

/// x (1 + tanh(√(2/π) (x + 0.044715 x³))) / 2: gelu as it is often approximated; by a table where gelu is.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> gelu_tanh(pack<float, N, Isa> const& x) {
#if SITU_MATH_X86_ASM
  if constexpr (detail::has_avx512<float, N, Isa>) {
    pack<float, N, Isa> const y = detail::gelu_by_table(x, detail::gelu_tanh_pieces), bound(-detail::last_piece);
    if (SITU_UNLIKELY(detail::any_below(x, -detail::last_piece))) return select(x < bound, detail::gelu_tanh_anywhere(x), y);
    return y;
  }
#endif
  return detail::gelu_tanh_anywhere(x);
}

// Doubles go through libm, lane by lane.
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> erf(pack<double, N, Isa> const& x) {
  return detail::every_lane<detail::scalar_erf>(x);
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> erfc(pack<double, N, Isa> const& x) {
  return detail::every_lane<detail::scalar_erfc>(x);
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> gelu(pack<double, N, Isa> const& x) {
  return detail::every_lane<detail::scalar_gelu>(x);
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> gelu_tanh(pack<double, N, Isa> const& x) {
  return detail::every_lane<detail::scalar_gelu_tanh>(x);
}

}  // namespace math
}  // namespace situ::inline SITU_ABI

// ---- <situ/expr/math/gamma.hpp>
/// log|Γ(x)| of numbers and of packs.



#if defined(__GLIBC__) && !defined(__CUDACC__)
// As glibc declares them; not every compiler has them as builtins.
extern "C" double lgamma_r(double, int*) noexcept;
extern "C" long double lgammal_r(long double, int*) noexcept;
#endif

namespace situ::inline SITU_ABI {
namespace math {

/// log|Γ(x)|; +∞ at 0, at the negative integers and at both infinities.
#if defined(__CUDA_ARCH__)
SITU_HOST_DEVICE inline double lgamma(double x) { return SITU_LIBM(lgamma)(x); }
SITU_HOST_DEVICE inline float lgamma(float x) { return SITU_LIBM(lgammaf)(x); }
#else
SITU_HOST_DEVICE inline double lgamma(double x) {
#if defined(__GLIBC__)
  int sign = 0;  // lgamma itself would write the sign into a variable that threads share
  // Between its poles the double function errs by up to 5 ulps.
  if (x < 0) return static_cast<double>(::lgammal_r(static_cast<long double>(x), &sign));
  return ::lgamma_r(x, &sign);
#else
  return SITU_LIBM(lgamma)(x);
#endif
}
SITU_HOST_DEVICE inline float lgamma(float x) { return static_cast<float>(math::lgamma(static_cast<double>(x))); }
#endif

namespace detail {
struct lgamma_lanes {
  template <class T>
  static T value(T x) {
    return math::lgamma(x);
  }
};
}  // namespace detail

template <class T, int N, class Isa>
  requires std::is_floating_point_v<T> SITU_INLINE pack<T, N, Isa> lgamma(pack<T, N, Isa> const& x) {
    return detail::every_lane<detail::lgamma_lanes>(x);
  }

}  // namespace math
}  // namespace situ::inline SITU_ABI

// ---- <situ/expr/math/hyperbolic.hpp>
/// Hyperbolic functions of numbers and of packs, without `tanh`.
///
/// Float packs are computed in vectors, near zero by minimax polynomials and elsewhere from an exponential or a
/// logarithm that carries its low part; double packs go through the C library lane by lane.



namespace situ::inline SITU_ABI {
namespace math {

SITU_HOST_DEVICE inline double sinh(double x) { return SITU_LIBM(sinh)(x); }
SITU_HOST_DEVICE inline double cosh(double x) { return SITU_LIBM(cosh)(x); }
SITU_HOST_DEVICE inline double asinh(double x) { return SITU_LIBM(asinh)(x); }
SITU_HOST_DEVICE inline double acosh(double x) { return SITU_LIBM(acosh)(x); }
SITU_HOST_DEVICE inline double atanh(double x) { return SITU_LIBM(atanh)(x); }
// The C library's float forms are less accurate than its double forms, rounded.
#if defined(__CUDA_ARCH__)
SITU_HOST_DEVICE inline float sinh(float x) { return SITU_LIBM(sinhf)(x); }
SITU_HOST_DEVICE inline float cosh(float x) { return SITU_LIBM(coshf)(x); }
SITU_HOST_DEVICE inline float asinh(float x) { return SITU_LIBM(asinhf)(x); }
SITU_HOST_DEVICE inline float acosh(float x) { return SITU_LIBM(acoshf)(x); }
SITU_HOST_DEVICE inline float atanh(float x) { return SITU_LIBM(atanhf)(x); }
#else
SITU_HOST_DEVICE inline float sinh(float x) { return static_cast<float>(SITU_LIBM(sinh)(static_cast<double>(x))); }
SITU_HOST_DEVICE inline float cosh(float x) { return static_cast<float>(SITU_LIBM(cosh)(static_cast<double>(x))); }
SITU_HOST_DEVICE inline float asinh(float x) { return static_cast<float>(SITU_LIBM(asinh)(static_cast<double>(x))); }
SITU_HOST_DEVICE inline float acosh(float x) { return static_cast<float>(SITU_LIBM(acosh)(static_cast<double>(x))); }
SITU_HOST_DEVICE inline float atanh(float x) { return static_cast<float>(SITU_LIBM(atanh)(static_cast<double>(x))); }
#endif

namespace detail {

struct sinh_lanes {
  static double value(double x) { return SITU_LIBM(sinh)(x); }
};
struct cosh_lanes {
  static double value(double x) { return SITU_LIBM(cosh)(x); }
};
struct asinh_lanes {
  static double value(double x) { return SITU_LIBM(asinh)(x); }
};
struct acosh_lanes {
  static double value(double x) { return SITU_LIBM(acosh)(x); }
};
struct atanh_lanes {
  static double value(double x) { return SITU_LIBM(atanh)(x); }
};

/// exp(x)/4 as high + low for 0 <= x <= 89.6, a quarter so that it never overflows before the result does.
template <int N, class Isa>
SITU_INLINE two<pack<float, N, Isa>> quarter_exp(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const n = round_small(x * P(0x1.715476p0f));
  P const coarse = keep_order(x - keep_order(n * P(0x1.62e4p-1f)));  // exact: the constant has 15 bits
  P const r = keep_order(coarse - n * P(0x1.7f7d1cp-20f));
  P const p =
      multiply_add(keep_order(r * r), horner(r, 0.00139506313f, 0.00836896989f, 0.0416662022f, 0.166665182f, 0.5f), r);
  two<P> const e = fast_two_sum(P(1.f), p);
  P const scale = power_of_two(n - P(2.f));
  return {e.hi * scale, e.lo * scale};
}

/// log(high + low) + n·log 2 for positive normal high below 2^127 and |low| at most half an ulp of it.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> log_of_two(pack<float, N, Isa> const& high, pack<float, N, Isa> const& low,
                                           pack<float, N, Isa> const& n) {
  using P = pack<float, N, Isa>;
  using I = pack<int32_t, N, Isa>;
  I const bits = bitcast<int32_t>(high);
  I const exponent = (bits - I(0x3f3504f3)) >> 23;
  P const m = bitcast<float>(bits - (exponent << 23));  // between √½ and √2
  P const scale = bitcast<float>((I(127) - exponent) << 23);
  two<P> const f = fast_two_sum(keep_order(m - P(1.f)), keep_order(low * scale));
  P const k = convert_unchecked<float>(exponent) + n;
  P const square = f.hi * f.hi;
  P const p = horner(f.hi, -0.0763632208f, 0.127636597f, -0.131604999f, 0.14201504f, -0.166233018f, 0.200012356f,
                     -0.250008225f, 0.333333313f);
  P const tail = multiply_add(square * f.hi, p, multiply_add(k, P(0x1.7f7d1cp-20f), f.lo));
  P const rest = multiply_add(square, P(-0.5f), tail);
  // k · log 2 to 15 bits is exact, and is zero or larger than the high part.
  P const whole = keep_order(k * P(0x1.62e4p-1f));
  two<P> const s = fast_two_sum(whole, f.hi);
  return s.hi + keep_order(s.lo + rest);
}

}  // namespace detail

template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> sinh(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const size = abs(x), z = size * size;
  P const p = detail::horner(z, 2.81695134e-06f, 0.000198361595f, 0.0083333496f, 0.166666672f);
  P const near = multiply_add(keep_order(size * z), p, size);
  auto const e = detail::quarter_exp(detail::at_most(size, 89.6f));
  P const inverse = detail::quotient(P(0.0625f), e.hi);
  P const far = keep_order(e.hi + keep_order(e.lo - inverse)) * 2.f;
  return detail::flip_sign(select(size < P(1.f), near, far), x);
}
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> cosh(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  auto const e = detail::quarter_exp(detail::at_most(abs(x), 89.6f));
  P const inverse = detail::quotient(P(0.0625f), e.hi);
  return keep_order(e.hi + keep_order(e.lo + inverse)) * 2.f;
}

/// log(x + √(x² + 1)) with x + √(x² + 1) = 1 + (x + x²/(1 + √(x² + 1))); log(2x) for large x.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> asinh(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const size = abs(x), zero(0.f), one(1.f);
  auto const large = size > P(0x1p13f);
  P const moderate = select(large, one, size), z = moderate * moderate;
  P const p = detail::horner(z, -0.0132375266f, 0.0281691235f, -0.0443845168f, 0.0749865249f, -0.166666433f);
  P const near = multiply_add(keep_order(moderate * z), p, moderate);
  P const more = keep_order(detail::quotient(z, one + sqrt(z + one)));
  auto const sum = detail::fast_two_sum(moderate, more);
  auto const argument = detail::two_sum(one, sum.hi);
  P const far = detail::log_of_two(select(large, size * P(0.25f), argument.hi),
                                   select(large, zero, argument.lo + sum.lo), select(large, P(3.f), zero));
  P const r = select(size < P(0.5f), near, far);
  return detail::flip_sign(select(isfinite(size), r, size), x);
}

/// log(1 + (t + √(t·(t + 2)))) with t = x - 1; log(2x) for large x.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> acosh(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const zero(0.f), one(1.f), two(2.f);
  auto const large = x > P(0x1p13f);
  P const t = keep_order(select(large, one, x) - one);
  P const root = sqrt(t * keep_order(t + two));
  auto const sum = detail::fast_two_sum(root, t);
  auto const argument = detail::two_sum(one, sum.hi);
  P const r = detail::log_of_two(select(large, x * P(0.25f), argument.hi), select(large, zero, argument.lo + sum.lo),
                                 select(large, P(3.f), zero));
  return select(x < one, detail::not_a_number<float, N, Isa>(), select(isfinite(x), r, x));
}

/// Beyond 1/2: half of log((1 + x)/(1 - x)).
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> atanh(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const size = abs(x), z = size * size, zero(0.f), one(1.f), half(0.5f);
  P const near = multiply_add(
      keep_order(size * z),
      detail::horner(z, 0.1766911f, 0.0513582975f, 0.118237287f, 0.14222762f, 0.200025186f, 0.333333015f), size);
  P const argument = detail::quotient(one + size, one - size);
  P r = select(size < half, near, half * detail::log_of_two(argument, zero, zero));
  r = select(size == one, detail::infinite<float, N, Isa>(), r);
  r = select(size > one, detail::not_a_number<float, N, Isa>(), r);
  return detail::flip_sign(select(isnan(size), size, r), x);
}

template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> sinh(pack<double, N, Isa> const& x) {
  return detail::every_lane<detail::sinh_lanes>(x);
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> cosh(pack<double, N, Isa> const& x) {
  return detail::every_lane<detail::cosh_lanes>(x);
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> asinh(pack<double, N, Isa> const& x) {
  return detail::every_lane<detail::asinh_lanes>(x);
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> acosh(pack<double, N, Isa> const& x) {
  return detail::every_lane<detail::acosh_lanes>(x);
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> atanh(pack<double, N, Isa> const& x) {
  return detail::every_lane<detail::atanh_lanes>(x);
}

}  // namespace math
}  // namespace situ::inline SITU_ABI

// ---- <situ/expr/math/pow.hpp>
/// pow of packs and numbers.


namespace situ::inline SITU_ABI {
namespace math {

// Numbers: libm on the host, CUDA's own functions on a device.
SITU_HOST_DEVICE inline float pow(float x, float y) { return SITU_LIBM(powf)(x, y); }
SITU_HOST_DEVICE inline double pow(double x, double y) { return SITU_LIBM(pow)(x, y); }

namespace detail {

struct scalar_pow {
  static float value(float x, float y) { return math::pow(x, y); }
  static double value(double x, double y) { return math::pow(x, y); }
};

/// The parts of x^y = 2^n (1 + t), computed in double; x is positive and normal.
///
///     log2 x = e + s w(s²),   s = (m − 1) / (m + 1),   x = 2^e m,   w erring by 2^-45
template <int N, class Isa>
struct pow_parts {
  pack<double, N, Isa> r, n;
};
template <int N, class Isa>
SITU_INLINE pow_parts<N, Isa> split_pow(pack<double, N, Isa> const& m, pack<double, N, Isa> const& e,
                                        pack<double, N, Isa> const& y) {
  using P = pack<double, N, Isa>;
  P const one(1.0);
  P const s = divide(m - one, m + one);
  P const w = horner(s * s, 0.2829086468850141, 0.31990513478741683, 0.4122092652538879, 0.5770779422462297,
                     0.961796694113718, 2.88539008177785);
  P const z = y * multiply_add(s, w, e);
  P const limited = select(z > P(200.0), P(200.0), select(z < P(-200.0), P(-200.0), z));
  P const n = round_small(limited);
  return {limited - n, n};
}

}  // namespace detail

/// xʸ.
///
///     2^(y log2 x), the logarithm and its product with y in double
///
/// Special   as C99: pow(x, ±0) = 1, pow(1, y) = 1, a negative x with a whole y has its sign, with another y is NaN.
/// Cost      lanes where x is not positive and normal, or y is 0, infinite or NaN, go through libm.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> pow(pack<float, N, Isa> const& x, pack<float, N, Isa> const& y) {
  using P = pack<float, N, Isa>;
  using I = pack<int32_t, N, Isa>;
  // x = 2^e m with m in [0.707, 1.414].
  I const bits = bitcast<int32_t>(x);
  I const from = bits - I(0x3f3504f3);
  P const m = bitcast<float>((from & I(0x007fffff)) + I(0x3f3504f3));
  P const e = convert_unchecked<float>(from >> 23);
  P r, n;
  if constexpr (N * 8 <= Isa::bytes) {
    auto const parts = detail::split_pow(convert_unchecked<double>(m), convert_unchecked<double>(e),
                                         convert_unchecked<double>(y));
    r = convert_unchecked<float>(parts.r);
    n = convert_unchecked<float>(parts.n);
  } else {
    auto const lower = detail::split_pow(detail::widen_lower(m), detail::widen_lower(e), detail::widen_lower(y));
    auto const upper = detail::split_pow(detail::widen_upper(m), detail::widen_upper(e), detail::widen_upper(y));
    r = detail::narrow(lower.r, upper.r);
    n = detail::narrow(lower.n, upper.n);
  }
  P const q = detail::horner(r, 0.000154698646f, 0.00134101545f, 0.00961802993f, 0.0555029698f, 0.240226507f,
                             0.693147242f);
  P const z = detail::scale(multiply_add(r, q, P(1.0f)), n);
  // One comparison finds the lanes that libm must do: x outside [2^-126, inf), or y outside ±[2^-126, inf).
  P const infinity(std::numeric_limits<float>::infinity()), least(std::numeric_limits<float>::min());
  P const a = detail::magnitude(y);
  P const x_class = select(x < infinity, x, -infinity);
  P const y_class = select(a < infinity, a, -infinity);
  auto const special = select(x_class < least, x_class, y_class) < least;
  if (SITU_UNLIKELY(detail::any(special))) return detail::by_lane<detail::scalar_pow>(special, x, y, z);
  return z;
}

template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> pow(pack<double, N, Isa> const& x, pack<double, N, Isa> const& y) {
  return detail::every_lane<detail::scalar_pow>(x, y);
}

}  // namespace math
}  // namespace situ::inline SITU_ABI

// ---- <situ/expr/math/trig.hpp>
/// Trigonometric functions of numbers and of packs.
///
/// Float packs are computed in vectors: sine, cosine and tangent subtract multiples of π/2 exactly and evaluate minimax
/// polynomials; lanes beyond the reach of that subtraction go through the double functions of the C library, as double
/// packs do.



namespace situ::inline SITU_ABI {
namespace math {

SITU_HOST_DEVICE inline float sin(float x) { return SITU_LIBM(sinf)(x); }
SITU_HOST_DEVICE inline double sin(double x) { return SITU_LIBM(sin)(x); }
SITU_HOST_DEVICE inline float cos(float x) { return SITU_LIBM(cosf)(x); }
SITU_HOST_DEVICE inline double cos(double x) { return SITU_LIBM(cos)(x); }
SITU_HOST_DEVICE inline float tan(float x) { return SITU_LIBM(tanf)(x); }
SITU_HOST_DEVICE inline double tan(double x) { return SITU_LIBM(tan)(x); }
SITU_HOST_DEVICE inline float asin(float x) { return SITU_LIBM(asinf)(x); }
SITU_HOST_DEVICE inline double asin(double x) { return SITU_LIBM(asin)(x); }
SITU_HOST_DEVICE inline float acos(float x) { return SITU_LIBM(acosf)(x); }
SITU_HOST_DEVICE inline double acos(double x) { return SITU_LIBM(acos)(x); }
SITU_HOST_DEVICE inline float atan(float x) { return SITU_LIBM(atanf)(x); }
SITU_HOST_DEVICE inline double atan(double x) { return SITU_LIBM(atan)(x); }
SITU_HOST_DEVICE inline float atan2(float y, float x) { return SITU_LIBM(atan2f)(y, x); }
SITU_HOST_DEVICE inline double atan2(double y, double x) { return SITU_LIBM(atan2)(y, x); }

namespace detail {

// keep_order stands around the first factor of a correction, a*b + c, where -ffast-math would take out c as a factor.

// The C library's double functions, lane by lane.
struct sin_lanes {
  static double value(double x) { return SITU_LIBM(sin)(x); }
  static float value(float x) { return static_cast<float>(SITU_LIBM(sin)(static_cast<double>(x))); }
};
struct cos_lanes {
  static double value(double x) { return SITU_LIBM(cos)(x); }
  static float value(float x) { return static_cast<float>(SITU_LIBM(cos)(static_cast<double>(x))); }
};
struct tan_lanes {
  static double value(double x) { return SITU_LIBM(tan)(x); }
  static float value(float x) { return static_cast<float>(SITU_LIBM(tan)(static_cast<double>(x))); }
};
struct asin_lanes {
  static double value(double x) { return SITU_LIBM(asin)(x); }
};
struct acos_lanes {
  static double value(double x) { return SITU_LIBM(acos)(x); }
};
struct atan_lanes {
  static double value(double x) { return SITU_LIBM(atan)(x); }
};
struct atan2_lanes {
  static double value(double y, double x) { return SITU_LIBM(atan2)(y, x); }
};

inline constexpr float half_pi = 0x1.921fb6p0f, half_pi_rest = -0x1.777a5cp-25f;

// Clang before 15 has no vector form of a fused product that it is sure to keep.
#if defined(__clang__) && __clang_major__ < 15
template <class Isa>
inline constexpr bool reduces_by_fma = false;
#else
template <class Isa>
inline constexpr bool reduces_by_fma = Isa::fma;
#endif

/// x = n·π/2 + high + low for 0 <= x <= reach, with |high| below 0.79 and the sum as precise as its size.
template <class Isa>
inline constexpr float quadrant_reach = reduces_by_fma<Isa> ? 100000.f : 6400.f;
template <int N, class Isa>
struct quadrant {
  pack<int32_t, N, Isa> n;  // its lowest bits only
  pack<float, N, Isa> high, low;
};

template <bool WithLow, int N, class Isa>
SITU_INLINE quadrant<N, Isa> reduce_to_quadrant(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const magic(round_magic<float>);
  P const shifted = keep_order(multiply_add(x, P(0x1.45f306p-1f), magic));
  P const n = keep_order(shifted - magic);
  quadrant<N, Isa> r;
  r.n = bitcast<int32_t>(shifted);
  r.low = P(0.f);
  if constexpr (reduces_by_fma<Isa>) {
    P const minus = P(-half_pi_rest), least = P(0x1.ee59dap-50f);
    P const first = fused(n, P(-half_pi), x);  // exact
    if constexpr (WithLow) {
      P const next = keep_order(n * minus);  // `first` is a multiple of its last digit: the sum is split exactly
      r.high = keep_order(first + next);
      r.low = keep_order(keep_order(first - r.high) + next) + fused(n, least, fused(n, minus, -next));
    } else {
      r.high = fused(n, least, fused(n, minus, first));
    }
  } else {
    // Three parts of π/2 so short that their products with n are exact.
    P const first = keep_order(x - keep_order(n * P(0x1.922p0f)));
    P const second = keep_order(first - keep_order(n * P(-0x1.2cp-18f)));
    P const third = keep_order(n * P(0x1.11p-26f)), fourth = keep_order(n * P(0x1.68c234p-39f));
    r.high = keep_order(second - third);
    r.low = keep_order(keep_order(second - r.high) - third) - fourth;
  }
  return r;
}

/// sin for Shift 0, cos for Shift 1, of x >= 0, without its sign for negative arguments.
template <int Shift, int N, class Isa>
SITU_INLINE pack<float, N, Isa> circular(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  using I = pack<int32_t, N, Isa>;
  constexpr bool with_low = !reduces_by_fma<Isa>;  // a fused reduction is rounded once and can do without
  quadrant<N, Isa> const q = reduce_to_quadrant<with_low>(x);
  P const z = q.high * q.high, third = keep_order(q.high * z), fourth = keep_order(z * z);
  P const p = horner(z, -0.000195114582f, 0.00833213329f, -0.166666538f);
  P const r = horner(z, 2.44287858e-05f, -0.0013887278f, 0.0416666456f);
  P const start = multiply_add(z, P(-0.5f), P(1.f));
  P sine, cosine;
  if constexpr (with_low) {
    sine = q.high + keep_order(third * p + q.low);
    cosine = start + keep_order(fourth * r - q.high * q.low);
  } else {
    sine = multiply_add(third, p, q.high);
    cosine = multiply_add(fourth, r, start);
  }
  I const n = q.n + I(Shift);
  P const value = select((n & I(1)) == I(0), sine, cosine);
  return flip_sign(value, bitcast<float>(n << 30));
}

/// The polynomial p of asin(s) = s + s³·p(s²), for z = s² <= 1/4.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> arcsine_of_half(pack<float, N, Isa> const& z) {
  return horner(z, 0.0421663076f, 0.0241795145f, 0.0454703756f, 0.0749529749f, 0.166667521f);
}

/// atan for 0 <= t <= 1.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> arctangent_of_one(pack<float, N, Isa> const& t) {
  pack<float, N, Isa> const z = t * t;
  return multiply_add(keep_order(t * z),
                      horner(z, -0.00179362227f, 0.0109146088f, -0.0311778504f, 0.0579576008f, -0.08403451f,
                             0.109521858f, -0.142642424f, 0.199985489f, -0.333332986f),
                      t);
}

}  // namespace detail

template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> sin(pack<float, N, Isa> const& x) {
  pack<float, N, Isa> const size = abs(x);
  pack<float, N, Isa> const r = detail::flip_sign(detail::circular<0>(size), x);
  auto const far = size > pack<float, N, Isa>(detail::quadrant_reach<Isa>);
  if (SITU_UNLIKELY(detail::any(far))) return detail::by_lane<detail::sin_lanes>(far, x, r);
  return r;
}
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> cos(pack<float, N, Isa> const& x) {
  pack<float, N, Isa> const size = abs(x);
  pack<float, N, Isa> const r = detail::circular<1>(size);
  auto const far = size > pack<float, N, Isa>(detail::quadrant_reach<Isa>);
  if (SITU_UNLIKELY(detail::any(far))) return detail::by_lane<detail::cos_lanes>(far, x, r);
  return r;
}

/// tan = t with t = tan(r) in even quadrants, -1/t in odd ones; the rounding error of t is carried along.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> tan(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  using I = pack<int32_t, N, Isa>;
  P const size = abs(x);
  auto const q = detail::reduce_to_quadrant<true>(size);
  P const z = q.high * q.high;
  P const p = detail::horner(z, 0.00444010738f, -3.70847592e-05f, 0.0109333824f, 0.0212454889f, 0.0540668294f,
                             0.133326039f, 0.333333522f);
  P const small = multiply_add(keep_order(q.high * z), p, multiply_add(q.low, z, q.low));
  P const t = keep_order(q.high + small);
  P const rest = small - keep_order(t - q.high);
  auto const even = (q.n & I(1)) == I(0);
  P const inverse = detail::quotient(P(-1.f), t);
  P r = select(even, t, multiply_add(inverse * inverse, rest, inverse));
  r = detail::flip_sign(r, x);
  auto const far = size > P(detail::quadrant_reach<Isa>);
  if (SITU_UNLIKELY(detail::any(far))) return detail::by_lane<detail::tan_lanes>(far, x, r);
  return r;
}

/// Beyond 1/2: asin x = π/2 - 2·asin √((1 - x)/2) = 2·(π/4 - asin √((1 - x)/2)).
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> asin(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const size = abs(x), half(0.5f);
  auto const large = size > half;
  P const z = select(large, (P(1.f) - size) * half, size * size);
  P const s = select(large, sqrt(z), size);
  P const third = keep_order(s * z), p = detail::arcsine_of_half(z);
  P const rest = keep_order(multiply_add(third, p, P(-0.5f * detail::half_pi_rest)));
  P const beyond = keep_order(P(0.5f * detail::half_pi) - s) - rest;
  return detail::flip_sign(select(large, beyond + beyond, multiply_add(third, p, s)), x);
}
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> acos(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const size = abs(x), half(0.5f);
  auto const large = size > half;
  P const z = select(large, (P(1.f) - size) * half, x * x);
  P const s = select(large, sqrt(z), x);
  P const p = multiply_add(keep_order(s * z), detail::arcsine_of_half(z), s);
  P const rest = P(detail::half_pi) - keep_order(p - P(detail::half_pi_rest));
  return select(large, P(2.f), P(1.f)) * select(x > half, p, rest);
}

/// Of the smaller over the larger of |y| and |x|, then moved to its octant.
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> atan2(pack<float, N, Isa> const& y, pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  using I = pack<int32_t, N, Isa>;
  P const size_y = abs(y), size_x = abs(x), zero(0.f);
  auto const steep = size_y > size_x;
  P const over = select(steep, size_x, size_y), under = select(steep, size_y, size_x);
  P t = detail::quotient(over, under);
  t = select(over == under, select(under == zero, zero, P(1.f)), t);  // 0 / 0 and ∞ / ∞
  P p = detail::arctangent_of_one(t);
  auto const left = bitcast<int32_t>(x) < I(0);
  p = select(steep ^ left, -p, p);
  P const high = select(steep, P(detail::half_pi), select(left, P(2 * detail::half_pi), zero));
  P const low = select(steep, P(detail::half_pi_rest), select(left, P(2 * detail::half_pi_rest), zero));
  return detail::flip_sign(high + keep_order(p + low), y);
}
template <int N, class Isa>
SITU_INLINE pack<float, N, Isa> atan(pack<float, N, Isa> const& x) {
  using P = pack<float, N, Isa>;
  P const size = abs(x), one(1.f);
  auto const steep = size > one;
  P const p = detail::arctangent_of_one(select(steep, detail::quotient(one, size), size));
  P const beyond = P(detail::half_pi) - keep_order(p - P(detail::half_pi_rest));
  return detail::flip_sign(select(steep, beyond, p), x);
}

template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> sin(pack<double, N, Isa> const& x) {
  return detail::every_lane<detail::sin_lanes>(x);
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> cos(pack<double, N, Isa> const& x) {
  return detail::every_lane<detail::cos_lanes>(x);
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> tan(pack<double, N, Isa> const& x) {
  return detail::every_lane<detail::tan_lanes>(x);
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> asin(pack<double, N, Isa> const& x) {
  return detail::every_lane<detail::asin_lanes>(x);
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> acos(pack<double, N, Isa> const& x) {
  return detail::every_lane<detail::acos_lanes>(x);
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> atan(pack<double, N, Isa> const& x) {
  return detail::every_lane<detail::atan_lanes>(x);
}
template <int N, class Isa>
SITU_INLINE pack<double, N, Isa> atan2(pack<double, N, Isa> const& y, pack<double, N, Isa> const& x) {
  return detail::every_lane<detail::atan2_lanes>(y, x);
}

}  // namespace math
}  // namespace situ::inline SITU_ABI

#if defined(__CUDACC__)
#pragma nv_diagnostic push
#pragma nv_diag_suppress 186, 20011, 20012, 20013, 20014, 20015
#endif

namespace situ::inline SITU_ABI {
namespace detail {

// Signed overflow wraps, also on CUDA, where operands are scalars.
template <class X>
SITU_HOST_DEVICE SITU_INLINE X added(X const& a, X const& b) {
  if constexpr (std::is_integral_v<X>) return static_cast<X>(static_cast<unsigned_of_size<X>>(a) + static_cast<unsigned_of_size<X>>(b));
  else return a + b;
}
template <class X>
SITU_HOST_DEVICE SITU_INLINE X subtracted(X const& a, X const& b) {
  if constexpr (std::is_integral_v<X>) return static_cast<X>(static_cast<unsigned_of_size<X>>(a) - static_cast<unsigned_of_size<X>>(b));
  else return a - b;
}
template <class X>
SITU_HOST_DEVICE SITU_INLINE X multiplied(X const& a, X const& b) {
  if constexpr (std::is_integral_v<X>) return static_cast<X>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  else return a * b;
}

template <class X>
struct isa_of;
template <int B, int N, class Isa>
struct isa_of<mask<B, N, Isa>> {
  using type = Isa;
};

/// f of every lane; for what has no vector form.
template <class F, int N, class T, class Isa, class... More>
SITU_INLINE pack<T, N, Isa> each_lane(F f, pack<T, N, Isa> const& a, More const&... more) {
  pack<T, N, Isa> result;
  for (int k = 0; k < N; ++k) result.set(k, f(a[k], more[k]...));
  return result;
}

template <class T>
  requires std::is_integral_v<T>
SITU_HOST_DEVICE constexpr T integer_power(T base, T exponent) {
  if (exponent < 0) {
    if (base == 1) return 1;
    if (std::is_signed_v<T> && base == static_cast<T>(-1)) return exponent % 2 == 0 ? T(1) : base;
    return 0;
  }
  uint64_t result = 1, factor = static_cast<uint64_t>(base);
  for (auto left = static_cast<uint64_t>(exponent); left != 0; left >>= 1) {
    if (left & 1) result *= factor;
    factor *= factor;
  }
  return static_cast<T>(result);
}
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> integer_power(pack<T, N, Isa> const& a, pack<T, N, Isa> const& b) {
  return each_lane([](T x, T n) { return integer_power(x, n); }, a, b);
}

/// Shifts by counts outside [0, bits) give what shifting bit by bit would: 0, or -1 for negative numbers to the right.
template <class T>
  requires std::is_integral_v<T>
SITU_HOST_DEVICE constexpr T shifted_left(T x, T count) {
  constexpr int bits = static_cast<int>(8 * sizeof(T));
  if (count < 0 || count >= static_cast<T>(bits)) return 0;
  return static_cast<T>(static_cast<uint64_t>(x) << static_cast<int>(count));
}
template <class T>
  requires std::is_integral_v<T>
SITU_HOST_DEVICE constexpr T shifted_right(T x, T count) {
  constexpr int bits = static_cast<int>(8 * sizeof(T));
  if (count < 0 || count >= static_cast<T>(bits)) return x < 0 ? static_cast<T>(-1) : T(0);
  return static_cast<T>(x >> static_cast<int>(count));
}
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> shifted_left(pack<T, N, Isa> const& a, pack<T, N, Isa> const& b) {
  return each_lane([](T x, T n) { return shifted_left(x, n); }, a, b);
}
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> shifted_right(pack<T, N, Isa> const& a, pack<T, N, Isa> const& b) {
  return each_lane([](T x, T n) { return shifted_right(x, n); }, a, b);
}

/// The derivative of log|Gamma(x)|: reflection below 1/2, recurrence up to 10, then the asymptotic series.
SITU_HOST_DEVICE inline double digamma(double x) {
  double result = 0;
  if (x < 0.5) {
    double const pi = 3.14159265358979323846, turns = x - math::floor(x);
    if (turns == 0.0) return __builtin_nan("");
    result = -pi / math::tan(pi * turns);
    x = 1 - x;
  }
  for (; x < 10; x += 1) result -= 1 / x;
  double const r = 1 / (x * x);
  return result + math::log(x) - 0.5 / x -
         r * (1.0 / 12 - r * (1.0 / 120 - r * (1.0 / 252 - r * (1.0 / 240 - r * (1.0 / 132 - r * (691.0 / 32760))))));
}
SITU_HOST_DEVICE inline float digamma(float x) { return static_cast<float>(digamma(static_cast<double>(x))); }
template <class T, int N, class Isa>
SITU_INLINE pack<T, N, Isa> digamma(pack<T, N, Isa> const& a) {
  return each_lane([](T x) { return digamma(x); }, a);
}

}  // namespace detail

namespace functions {
template <class X, class Z>
SITU_HOST_DEVICE SITU_INLINE auto sum_of(X const& a, Z const& b) {
  if constexpr (detail::bool_lanes<X>) return a | b;
  else return detail::added(a, b);
}
template <class X, class Z>
SITU_HOST_DEVICE SITU_INLINE auto difference_of(X const& a, Z const& b) {
  static_assert(!detail::bool_lanes<X>, "situ: bool tensors are not subtracted; use a ^ b, or cast one to a number");
  return detail::subtracted(a, b);
}
template <class X, class Z>
SITU_HOST_DEVICE SITU_INLINE auto product_of(X const& a, Z const& b) {
  if constexpr (detail::bool_lanes<X>) return a & b;
  else return detail::multiplied(a, b);
}
template <class X>
SITU_HOST_DEVICE SITU_INLINE auto negative_of(X const& x) {
  static_assert(!detail::bool_lanes<X>, "situ: bool tensors are not negated with -; use !x");
  if constexpr (detail::integer_lanes<X>) return detail::subtracted(X(detail::lane_value_t<X>(0)), x);
  else return -x;
}
/// Functions that leave integers and bools as they are.
#define SITU_ROUNDING(NAME)                                                                  \
  template <class X>                                                                         \
  SITU_HOST_DEVICE SITU_INLINE auto NAME##_of(X const& x) {                                  \
    if constexpr (std::is_floating_point_v<detail::lane_value_t<X>>) return math::NAME(x);   \
    else return x;                                                                           \
  }
SITU_ROUNDING(floor)
SITU_ROUNDING(ceil)
SITU_ROUNDING(round)
SITU_ROUNDING(trunc)
#undef SITU_ROUNDING
template <class X>
SITU_HOST_DEVICE SITU_INLINE auto abs_of(X const& x) {
  if constexpr (detail::bool_lanes<X>) return x;
  else return math::abs(x);
}

/// Truth values as 0 and 1, numbers as they are: what can be ordered.
template <class X>
SITU_HOST_DEVICE SITU_INLINE auto numeric(X const& x) {
  if constexpr (detail::is_mask<X>) {
    using P = pack<typename X::lane_type, X::lanes, typename detail::isa_of<X>::type>;
    return P(typename P::vector(-x.template as<1>().template as<sizeof(typename X::lane_type)>().v));
  } else if constexpr (detail::bool_lanes<X>) {
    return static_cast<int>(x);
  } else {
    return x;
  }
}
template <class X, class Z>
SITU_HOST_DEVICE SITU_INLINE auto same_lanes(X const& a, Z const& b) {
  if constexpr (detail::is_mask<X>) return !(a ^ b);
  else return a == b;
}
template <class X, class Z>
SITU_HOST_DEVICE SITU_INLINE auto minimum_of(X const& a, Z const& b) {
  if constexpr (std::is_same_v<X, bool>) return a && b;
  else if constexpr (detail::bool_lanes<X>) return a & b;
  else return math::minimum(a, b);
}
template <class X, class Z>
SITU_HOST_DEVICE SITU_INLINE auto maximum_of(X const& a, Z const& b) {
  if constexpr (std::is_same_v<X, bool>) return a || b;
  else if constexpr (detail::bool_lanes<X>) return a | b;
  else return math::maximum(a, b);
}
template <class X>
SITU_HOST_DEVICE SITU_INLINE auto power_of(X const& a, X const& b) {
  if constexpr (detail::integer_lanes<X>) return detail::integer_power(a, b);
  else return math::pow(a, b);
}
/// The share of the gradient that an operand gets: all where it was chosen, half at a tie.
template <class M1, class M2, class X>
SITU_HOST_DEVICE SITU_INLINE X tie_share(M1 const& chosen, M2 const& tie, X const& one) {
  return select(chosen, one, select(tie, one * X(detail::lane_value_t<X>(0.5)), one - one));
}
/// The functions below have no name in `math`: they are short formulas.
template <class X>
SITU_HOST_DEVICE SITU_INLINE auto sign_of(X const& x) {
  if constexpr (detail::bool_lanes<X>) return x;
  else return math::sign(x);
}
template <class M, class X, class Z>
SITU_HOST_DEVICE SITU_INLINE X chosen(M const& m, X const& a, Z const& b) {
  if constexpr (detail::bool_lanes<X>) return a ^ ((a ^ b) & !m);
  else return select(m, a, b);
}
/// Exact at both ends: from a below the middle, from b above it.
template <class X>
SITU_HOST_DEVICE SITU_INLINE X lerp_of(X const& a, X const& b, X const& t) {
  using T = detail::lane_value_t<X>;
  return select(t < X(T(0.5)), a + t * (b - a), b - (b - a) * (X(T(1)) - t));
}
/// d silu / dx = s (1 + x (1 - s)), s = sigmoid(x)
template <class X>
SITU_HOST_DEVICE SITU_INLINE X silu_slope(X const& x) {
  X const one(detail::lane_value_t<X>(1)), s = math::sigmoid(x);
  return s * (one + x * (one - s));
}
template <class X>
SITU_HOST_DEVICE SITU_INLINE X gelu_tanh_slope(X const& x) {
  using T = detail::lane_value_t<X>;
  X const one(T(1)), c(T(0.79788456080286535588)), k(T(0.044715));
  X const t = math::tanh(c * (x + k * x * x * x));
  return X(T(0.5)) * (one + t) + X(T(0.5)) * x * (one - t * t) * c * (one + X(T(3)) * k * x * x);
}
}  // namespace functions

}  // namespace situ::inline SITU_ABI

#if defined(__CUDACC__)
#pragma nv_diagnostic pop
#endif

#if defined(__CUDACC__)
#pragma nv_diagnostic push
#pragma nv_diag_suppress 20011, 20012, 20013, 20014, 20015
#endif

namespace situ::inline SITU_ABI {

namespace detail {

template <class L, class R>
concept operand_pair = (expression<L> && (expression<R> || number<std::remove_cvref_t<R>>)) ||
                       (expression<R> && number<std::remove_cvref_t<L>>);

/// An operand as a node holds it: expressions as they are, numbers as constants beside T.
template <bool Compares, class T, class X>
SITU_INLINE decltype(auto) operand(X&& x) {
  using S = std::remove_cvref_t<X>;
  if constexpr (expression<X>) return static_cast<X&&>(x);
  else {
    using C = number_beside_t<Compares, T, S>;
    if constexpr (Compares) return Constant<C>{convert_scalar<compute_t<C>>(convert_scalar<C>(x))};  // as the tensor would hold it
    else return Constant<C>{convert_scalar<compute_t<C>>(x)};
  }
}

template <class Op, class L, class R>
auto make_binary(L&& l, R&& r) {
  constexpr bool compares = requires { Op::compares; };
  if constexpr (expression<L> && expression<R>) return make_map(Op{}, static_cast<L&&>(l), static_cast<R&&>(r));
  else if constexpr (expression<L>) return make_map(Op{}, static_cast<L&&>(l), operand<compares, value_of<L>>(r));
  else return make_map(Op{}, operand<compares, value_of<R>>(l), static_cast<R&&>(r));
}

}  // namespace detail

#define SITU_VALUE SITU_HOST_DEVICE SITU_INLINE static auto value
#define SITU_DERIVATIVE SITU_HOST_DEVICE SITU_INLINE static auto derivative

// NAME(x): VALUE and DERIVATIVE are formulas in x, and y = NAME(x).
#define SITU_UNARY(NAME, TYPES, COST, VALUE, DERIVATIVE)                                            \
  namespace functions {                                                                             \
  struct NAME {                                                                                     \
    static constexpr char const* name = #NAME;                                                      \
    static constexpr int cost = COST;                                                               \
    template <class... Ts>                                                                          \
    using types = detail::TYPES<Ts...>;                                                             \
    template <class X>                                                                              \
    SITU_VALUE([[maybe_unused]] X const& x) {                                                       \
      return VALUE;                                                                                 \
    }                                                                                               \
    template <class X, class Y>                                                                     \
    SITU_DERIVATIVE([[maybe_unused]] X const& x, [[maybe_unused]] Y const& y) {                     \
      using T [[maybe_unused]] = detail::lane_value_t<X>;                                           \
      return DERIVATIVE;                                                                            \
    }                                                                                               \
  };                                                                                                \
  }                                                                                                 \
  template <expression E>                                                                           \
  auto NAME(E&& x) {                                                                                \
    return detail::make_map(functions::NAME{}, static_cast<E&&>(x));                                \
  }

// The functor of a function of two operands a, b: DA and DB are the partial derivatives.
#define SITU_BINARY_FUNCTOR(NAME, TEXT, TYPES, COST, VALUE, DA, DB)                                 \
  namespace functions {                                                                             \
  struct NAME {                                                                                     \
    static constexpr char const* name = TEXT;                                                       \
    static constexpr int cost = COST;                                                               \
    template <class... Ts>                                                                          \
    using types = detail::TYPES<Ts...>;                                                             \
    template <class X, class Z>                                                                     \
    SITU_VALUE(X const& a, Z const& b) {                                                            \
      return VALUE;                                                                                 \
    }                                                                                               \
    template <class X, class Y>                                                                     \
    SITU_DERIVATIVE([[maybe_unused]] X const& a, [[maybe_unused]] X const& b,                       \
                    [[maybe_unused]] Y const& y) {                                                  \
      using T [[maybe_unused]] = detail::lane_value_t<X>;                                           \
      return detail::fields_of(DA, DB);                                                             \
    }                                                                                               \
  };                                                                                                \
  }

// A function (or operator) of two operands, and the deleted twin that carries the message about devices.
#define SITU_BINARY_NAME(FUNCTION, FUNCTOR)                                                         \
  template <class L, class R>                                                                       \
    requires(detail::operand_pair<L, R> && on_same_device<L, R>)                                    \
  auto FUNCTION(L&& l, R&& r) {                                                                     \
    return detail::make_binary<functions::FUNCTOR>(static_cast<L&&>(l), static_cast<R&&>(r));       \
  }                                                                                                 \
  template <class L, class R,                                                                       \
            class Error = error::operands_on_different_devices__move_one_with_to<device_of<L>, device_of<R>>> \
    requires(expression<L> && expression<R> && !on_same_device<L, R>)                               \
  void FUNCTION(L&&, R&&) = delete;

#define SITU_BINARY(NAME, TYPES, COST, VALUE, DA, DB)             \
  SITU_BINARY_FUNCTOR(NAME, #NAME, TYPES, COST, VALUE, DA, DB)    \
  SITU_BINARY_NAME(NAME, NAME)

#define SITU_OPERATOR(SYMBOL, NAME, TYPES, COST, VALUE, DA, DB)                \
  SITU_BINARY_FUNCTOR(NAME, "operator" #SYMBOL, TYPES, COST, VALUE, DA, DB)    \
  SITU_BINARY_NAME(operator SYMBOL, NAME)

// Comparisons, logical and bitwise operators have no derivative.
#define SITU_DISCRETE(SYMBOL, NAME, TYPES, EXTRA, VALUE)                                            \
  namespace functions {                                                                             \
  struct NAME {                                                                                     \
    static constexpr char const* name = "operator" #SYMBOL;                                         \
    static constexpr int cost = 1;                                                                  \
    EXTRA template <class... Ts>                                                                    \
    using types = detail::TYPES<Ts...>;                                                             \
    template <class X, class Z>                                                                     \
    SITU_VALUE(X const& a, Z const& b) {                                                            \
      return VALUE;                                                                                 \
    }                                                                                               \
  };                                                                                                \
  }                                                                                                 \
  SITU_BINARY_NAME(operator SYMBOL, NAME)


// ---- arithmetic ---------------------------------------------------------------------------------------------------

SITU_OPERATOR(+, add, arithmetic, 1, sum_of(a, b), X(T(1)), X(T(1)))
SITU_OPERATOR(-, subtract, arithmetic, 1, difference_of(a, b), X(T(1)), X(T(-1)))
SITU_OPERATOR(*, multiply, arithmetic, 1, product_of(a, b), b, a)
/// True division: integers give float.
SITU_OPERATOR(/, divide, real_valued, 4, a / b, X(T(1)) / b, -(y / b))
/// The remainder with the divisor's sign, as Python's %; an integer divisor of 0 gives 0.
SITU_OPERATOR(%, remainder, arithmetic, 20, math::remainder(a, b), X(T(1)), -math::floor(a / b))
SITU_BINARY_NAME(remainder, remainder)
/// floor(a / b); an integer divisor of 0 gives 0.
SITU_BINARY(floor_divide, arithmetic, 10, math::floor_divide(a, b), X(T(0)), X(T(0)))
/// The remainder with the dividend's sign, as C's fmod.
SITU_BINARY(fmod, arithmetic, 20, math::fmod(a, b), X(T(1)), -math::trunc(a / b))
/// The smaller one; NaN where either is NaN.
SITU_BINARY(minimum, arithmetic, 2, minimum_of(a, b), tie_share(a < b, a == b, X(T(1))), tie_share(b < a, a == b, X(T(1))))
/// The larger one; NaN where either is NaN.
SITU_BINARY(maximum, arithmetic, 2, maximum_of(a, b), tie_share(a > b, a == b, X(T(1))), tie_share(b > a, a == b, X(T(1))))
/// a to the power of b, with C99's special cases; integers to a negative power give 0 unless a is 1 or -1.
SITU_BINARY(pow, arithmetic, 80, power_of(a, b),
            select(b == X(T(0)), X(T(0)), b * math::pow(a, b - X(T(1)))),
            select(a == X(T(0)), X(T(0)), y * math::log(a)))
/// The angle of the point (b, a) from the first axis, in (-pi, pi].
SITU_BINARY(atan2, real_valued, 60, math::atan2(a, b), b / (a * a + b * b), -(a / (a * a + b * b)))
/// sqrt(a*a + b*b) without overflow.
SITU_BINARY(hypot, real_valued, 20, math::hypot(a, b), a / y, b / y)
/// x where x > 0, slope * x elsewhere.
SITU_BINARY(leaky_relu, arithmetic, 3, select(a > X(detail::lane_value_t<X>(0)), a, a * b), select(a > X(T(0)), X(T(1)), b),
            select(a > X(T(0)), X(T(0)), a))
/// x where x > 0, alpha * expm1(x) elsewhere.
SITU_BINARY(elu, real_valued, 40, math::elu(a, b), select(a > X(T(0)), X(T(1)), y + b),
            select(a > X(T(0)), X(T(0)), math::expm1(a)))

// ---- comparisons, logic, bits -------------------------------------------------------------------------------------

#define SITU_COMPARES static constexpr bool compares = true;
SITU_DISCRETE(==, equal_to, predicate, SITU_COMPARES, same_lanes(a, b))
SITU_DISCRETE(!=, not_equal_to, predicate, SITU_COMPARES, !same_lanes(a, b))
SITU_DISCRETE(<, less, predicate, SITU_COMPARES, numeric(a) < numeric(b))
SITU_DISCRETE(<=, less_equal, predicate, SITU_COMPARES, numeric(a) <= numeric(b))
SITU_DISCRETE(>, greater, predicate, SITU_COMPARES, numeric(a) > numeric(b))
SITU_DISCRETE(>=, greater_equal, predicate, SITU_COMPARES, numeric(a) >= numeric(b))
#undef SITU_COMPARES
/// Elementwise: both sides are evaluated.
SITU_DISCRETE(&&, logical_and, logical, , a & b)
SITU_DISCRETE(||, logical_or, logical, , a | b)
SITU_DISCRETE(&, bitwise_and, bitwise, , a & b)
SITU_DISCRETE(|, bitwise_or, bitwise, , a | b)
SITU_DISCRETE(^, bitwise_xor, bitwise, , a ^ b)
SITU_DISCRETE(<<, shift_left, bitwise, , detail::shifted_left(a, b))
SITU_DISCRETE(>>, shift_right, bitwise, , detail::shifted_right(a, b))

// ---- functions of one operand -------------------------------------------------------------------------------------

#define SITU_CONSTANT(VALUE) X(static_cast<T>(VALUE))

/// -x; integers wrap.
namespace functions {
struct negative {
  static constexpr char const* name = "operator-";
  static constexpr int cost = 1;
  template <class... Ts>
  using types = detail::arithmetic<Ts...>;
  template <class X>
  SITU_VALUE(X const& x) {
    return negative_of(x);
  }
  template <class X, class Y>
  SITU_DERIVATIVE(X const&, Y const&) {
    return X(detail::lane_value_t<X>(-1));
  }
};
/// Not, of truth values (numbers: x == 0).
struct logical_not {
  static constexpr char const* name = "operator!";
  static constexpr int cost = 1;
  template <class... Ts>
  using types = detail::logical<Ts...>;
  template <class X>
  SITU_VALUE(X const& x) {
    return !x;
  }
};
/// All bits inverted; not, of bools.
struct bitwise_not {
  static constexpr char const* name = "operator~";
  static constexpr int cost = 1;
  template <class... Ts>
  using types = detail::bitwise<Ts...>;
  template <class X>
  SITU_VALUE(X const& x) {
    if constexpr (detail::bool_lanes<X>) return !x;
    else return ~x;
  }
};
}  // namespace functions
template <expression E>
auto operator-(E&& x) {
  return detail::make_map(functions::negative{}, static_cast<E&&>(x));
}
template <expression E>
auto operator!(E&& x) {
  return detail::make_map(functions::logical_not{}, static_cast<E&&>(x));
}
template <expression E>
auto operator~(E&& x) {
  return detail::make_map(functions::bitwise_not{}, static_cast<E&&>(x));
}

SITU_UNARY(abs, arithmetic, 1, abs_of(x), math::sign(x))
/// -1, 0 or 1; NaN of NaN.
SITU_UNARY(sign, arithmetic, 2, sign_of(x), SITU_CONSTANT(0))
SITU_UNARY(square, arithmetic, 1, product_of(x, x), x + x)
/// 1/x; integers give float.
SITU_UNARY(reciprocal, real_valued, 4, X(detail::lane_value_t<X>(1)) / x, -(y * y))
SITU_UNARY(exp, real_valued, 25, math::exp(x), y)
SITU_UNARY(exp2, real_valued, 25, math::exp2(x), y * SITU_CONSTANT(0.69314718055994530942))
/// exp(x) - 1 without cancellation.
SITU_UNARY(expm1, real_valued, 30, math::expm1(x), y + SITU_CONSTANT(1))
SITU_UNARY(log, real_valued, 30, math::log(x), SITU_CONSTANT(1) / x)
SITU_UNARY(log2, real_valued, 30, math::log2(x), SITU_CONSTANT(1.44269504088896340736) / x)
SITU_UNARY(log10, real_valued, 30, math::log10(x), SITU_CONSTANT(0.43429448190325182765) / x)
/// log(1 + x) without cancellation.
SITU_UNARY(log1p, real_valued, 30, math::log1p(x), SITU_CONSTANT(1) / (x + SITU_CONSTANT(1)))
SITU_UNARY(sqrt, real_valued, 8, math::sqrt(x), SITU_CONSTANT(0.5) / y)
/// 1/sqrt(x)
SITU_UNARY(rsqrt, real_valued, 12, math::rsqrt(x), SITU_CONSTANT(-0.5) * y / x)
SITU_UNARY(sin, real_valued, 40, math::sin(x), math::cos(x))
SITU_UNARY(cos, real_valued, 40, math::cos(x), -math::sin(x))
SITU_UNARY(tan, real_valued, 60, math::tan(x), SITU_CONSTANT(1) + y * y)
SITU_UNARY(asin, real_valued, 40, math::asin(x), math::rsqrt(SITU_CONSTANT(1) - x * x))
SITU_UNARY(acos, real_valued, 40, math::acos(x), -math::rsqrt(SITU_CONSTANT(1) - x * x))
SITU_UNARY(atan, real_valued, 40, math::atan(x), SITU_CONSTANT(1) / (SITU_CONSTANT(1) + x * x))
SITU_UNARY(sinh, real_valued, 50, math::sinh(x), math::cosh(x))
SITU_UNARY(cosh, real_valued, 50, math::cosh(x), math::sinh(x))
SITU_UNARY(tanh, real_valued, 40, math::tanh(x), SITU_CONSTANT(1) - y * y)
SITU_UNARY(asinh, real_valued, 60, math::asinh(x), math::rsqrt(x * x + SITU_CONSTANT(1)))
SITU_UNARY(acosh, real_valued, 60, math::acosh(x), math::rsqrt(x * x - SITU_CONSTANT(1)))
SITU_UNARY(atanh, real_valued, 60, math::atanh(x), SITU_CONSTANT(1) / (SITU_CONSTANT(1) - x * x))
SITU_UNARY(erf, real_valued, 60, math::erf(x), SITU_CONSTANT(1.12837916709551257390) * math::exp(-(x * x)))
/// 1 - erf(x) without cancellation.
SITU_UNARY(erfc, real_valued, 80, math::erfc(x), SITU_CONSTANT(-1.12837916709551257390) * math::exp(-(x * x)))
/// log|Gamma(x)|
SITU_UNARY(lgamma, real_valued, 300, math::lgamma(x), detail::digamma(x))
/// 1 / (1 + exp(-x))
SITU_UNARY(sigmoid, real_valued, 40, math::sigmoid(x), y * (SITU_CONSTANT(1) - y))
SITU_UNARY(relu, arithmetic, 1, maximum_of(x, X(detail::lane_value_t<X>(0))), select(x > SITU_CONSTANT(0), SITU_CONSTANT(1), SITU_CONSTANT(0)))
/// x * sigmoid(x)
SITU_UNARY(silu, real_valued, 40, math::silu(x), silu_slope(x))
/// log(1 + exp(x))
SITU_UNARY(softplus, real_valued, 60, math::softplus(x), math::sigmoid(x))
/// x * Phi(x), with Phi(x) = (1 + erf(x / sqrt 2)) / 2, the distribution function of the normal distribution.
SITU_UNARY(gelu, real_valued, 60, math::gelu(x),
           SITU_CONSTANT(0.5) * math::erfc(x * SITU_CONSTANT(-0.70710678118654752440)) +
               x * SITU_CONSTANT(0.39894228040143267794) * math::exp(SITU_CONSTANT(-0.5) * x * x))
/// x * (1 + tanh(u)) / 2, with u = sqrt(2 / pi) * (x + 0.044715 x^3).
SITU_UNARY(gelu_tanh, real_valued, 50, math::gelu_tanh(x), gelu_tanh_slope(x))
SITU_UNARY(floor, arithmetic, 2, floor_of(x), SITU_CONSTANT(0))
SITU_UNARY(ceil, arithmetic, 2, ceil_of(x), SITU_CONSTANT(0))
/// To the nearest integer, halves to even.
SITU_UNARY(round, arithmetic, 2, round_of(x), SITU_CONSTANT(0))
SITU_UNARY(trunc, arithmetic, 2, trunc_of(x), SITU_CONSTANT(0))

/// Selects the tanh form: gelu(x, approximate_tanh).
struct approximate_tanh_t {};
inline constexpr approximate_tanh_t approximate_tanh{};
template <expression E>
auto gelu(E&& x, approximate_tanh_t) {
  return gelu_tanh(static_cast<E&&>(x));
}

/// leaky_relu(x) with PyTorch's slope of 0.01; elu(x) with alpha = 1.
template <expression E>
auto leaky_relu(E&& x) {
  return leaky_relu(static_cast<E&&>(x), 0.01);
}
template <expression E>
auto elu(E&& x) {
  return elu(static_cast<E&&>(x), 1.0);
}

#define SITU_PREDICATE(NAME, OF_INTEGERS)                                                                   \
  namespace functions {                                                                                     \
  struct NAME {                                                                                             \
    static constexpr char const* name = #NAME;                                                              \
    static constexpr int cost = 1;                                                                          \
    template <class... Ts>                                                                                  \
    using types = detail::predicate<Ts...>;                                                                 \
    template <class X>                                                                                      \
    SITU_VALUE(X const& x) {                                                                                \
      if constexpr (std::is_floating_point_v<detail::lane_value_t<X>>) return math::NAME(x);                \
      else return decltype(same_lanes(x, x))(OF_INTEGERS);                                                  \
    }                                                                                                       \
  };                                                                                                        \
  }                                                                                                         \
  template <expression E>                                                                                   \
  auto NAME(E&& x) {                                                                                        \
    return detail::make_map(functions::NAME{}, static_cast<E&&>(x));                                        \
  }
SITU_PREDICATE(isnan, false)
SITU_PREDICATE(isinf, false)
SITU_PREDICATE(isfinite, true)
#undef SITU_PREDICATE

// ---- functions of three operands ----------------------------------------------------------------------------------

#define SITU_TERNARY_FUNCTOR(NAME, TYPES, COST, VALUE, DA, DB, DC)                                          \
  namespace functions {                                                                                     \
  struct NAME {                                                                                             \
    static constexpr char const* name = #NAME;                                                              \
    static constexpr int cost = COST;                                                                       \
    template <class... Ts>                                                                                  \
    using types = detail::TYPES<Ts...>;                                                                     \
    template <class A, class B, class C>                                                                    \
    SITU_VALUE(A const& a, B const& b, C const& c) {                                                        \
      return VALUE;                                                                                         \
    }                                                                                                       \
    template <class A, class X, class Y>                                                                    \
    SITU_DERIVATIVE([[maybe_unused]] A const& a, [[maybe_unused]] X const& b, [[maybe_unused]] X const& c,  \
                    [[maybe_unused]] Y const& y) {                                                          \
      using T [[maybe_unused]] = detail::lane_value_t<X>;                                                   \
      return detail::fields_of(DA, DB, DC);                                                                 \
    }                                                                                                       \
  };                                                                                                        \
  }

SITU_TERNARY_FUNCTOR(where, choice, 1, chosen(a, b, c), SITU_CONSTANT(0), select(a, SITU_CONSTANT(1), SITU_CONSTANT(0)),
                     select(a, SITU_CONSTANT(0), SITU_CONSTANT(1)))
SITU_TERNARY_FUNCTOR(clamp, arithmetic, 2, minimum_of(maximum_of(a, b), c),
                     select((a >= b) & (a <= c), SITU_CONSTANT(1), SITU_CONSTANT(0)),
                     select((a < b) & (b < c), SITU_CONSTANT(1), SITU_CONSTANT(0)),
                     select((a > c) | (b >= c), SITU_CONSTANT(1), SITU_CONSTANT(0)))
SITU_TERNARY_FUNCTOR(lerp, real_valued, 2, lerp_of(a, b, c), SITU_CONSTANT(1) - c, c, b - a)

namespace detail {

template <class X>
concept operand_like = expression<X> || number<std::remove_cvref_t<X>>;

/// The type that numbers among operands stand beside: that of the expressions, promoted.
template <class... Xs>
struct beside {
  using type = void;
};
template <class X, class... Xs>
struct beside<X, Xs...> {
  using rest = typename beside<Xs...>::type;
  static auto pick() {
    if constexpr (!expression<X>) return std::type_identity<rest>{};
    else if constexpr (std::is_void_v<rest>) return std::type_identity<value_of<X>>{};
    else return std::type_identity<promote_t<value_of<X>, rest>>{};
  }
  using type = typename decltype(pick())::type;
};

/// As beside; for two numbers alone, their common type.
template <class B, class C>
struct where_context : beside<B, C> {};
template <class B, class C>
  requires(!expression<B> && !expression<C>)
struct where_context<B, C> {
  using type = number_alone_t<std::common_type_t<std::remove_cvref_t<B>, std::remove_cvref_t<C>>>;
};

/// Operands after the first ones that were given: numbers become constants of the common type.
template <class Context, class X>
SITU_INLINE decltype(auto) operand_among(X&& x) {
  if constexpr (expression<X>) return static_cast<X&&>(x);
  else return operand<false, Context>(x);
}

template <class A, class B, class C>
concept one_device_of_three = on_same_device<A, B> && on_same_device<A, C> && on_same_device<B, C>;

}  // namespace detail

#define SITU_TERNARY_NAME(NAME, FIRST, ...)                                                                          \
  template <class A, class B, class C>                                                                               \
    requires((expression<A> || expression<B> || expression<C>)&&detail::operand_like<A> && detail::operand_like<B> && \
             detail::operand_like<C> && detail::one_device_of_three<A, B, C>)                                        \
  auto NAME(A&& a, B&& b, C&& c) {                                                                                   \
    using Context = __VA_ARGS__;                                                                                        \
    return detail::make_map(functions::NAME{}, FIRST, detail::operand_among<Context>(static_cast<B&&>(b)),           \
                            detail::operand_among<Context>(static_cast<C&&>(c)));                                    \
  }                                                                                                                  \
  template <class A, class B, class C, class Error = detail::different_devices_of<A, B, C>>                          \
    requires((expression<A> || expression<B> || expression<C>)&&detail::operand_like<A> && detail::operand_like<B> && \
             detail::operand_like<C> && !detail::one_device_of_three<A, B, C>)                                       \
  void NAME(A&&, B&&, C&&) = delete;

/// b where the condition a is true, c elsewhere; the condition may be of any element type (0 is false).
SITU_TERNARY_NAME(where, detail::operand_among<bool>(static_cast<A&&>(a)), typename detail::where_context<B, C>::type)
/// min(max(a, b), c): a limited to the interval [b, c].
SITU_TERNARY_NAME(clamp, detail::operand_among<Context>(static_cast<A&&>(a)), typename detail::beside<A, B, C>::type)
/// a + c * (b - a), exact at c = 0 and c = 1.
SITU_TERNARY_NAME(lerp, detail::operand_among<Context>(static_cast<A&&>(a)), typename detail::beside<A, B, C>::type)

#undef SITU_TERNARY_NAME
#undef SITU_TERNARY_FUNCTOR
#undef SITU_CONSTANT
}  // namespace situ::inline SITU_ABI

#undef SITU_UNARY
#undef SITU_BINARY
#undef SITU_BINARY_NAME
#undef SITU_BINARY_FUNCTOR
#undef SITU_OPERATOR
#undef SITU_DISCRETE
#undef SITU_VALUE
#undef SITU_DERIVATIVE
#if defined(__CUDACC__)
#pragma nv_diagnostic pop
#endif

// ---- <situ/tensor.hpp>
/// Tensors: views, factories, transfers, printing, and everything elementwise.


// ---- <situ/tensor/factories.hpp>
/// Factories: tensors from shapes and numbers.
///
/// The shape comes first, the device tag last; T is float unless it is written and is never deduced from numbers.
///
///     zeros({2, 3});  ones<double>({2, 3});  full({2, 3}, 7.f, Cuda<0>{});  empty<float, Cuda<0>>({n, 3});
///
/// Throws    ShapeError for negative extents, more than eight of them, or more elements than can be addressed;
///           OutOfMemory; DeviceUnavailable.
/// Cost      one allocation, and one launch where elements are written.


// ---- <situ/tensor/transfer.hpp>
/// Transfers: the only way from one device to another.
///
/// What crosses is one contiguous piece where the source is contiguous (on the host it is made so first). A strided source
/// on a device crosses as the span of memory that it covers, so that no kernel is needed there.


// ---- <situ/tensor/tensor.hpp>
/// Tensor: a counted handle to elements on a device that is part of its type.

#include <vector>


// ---- <situ/tensor/indexing.hpp>
/// What stands between the parentheses of x(all(), range(1, end()), -1).

#include <concepts>


namespace situ::inline SITU_ABI {

/// Every index of an axis.
struct all_t {};
constexpr all_t all() { return {}; }

/// As many whole axes as are left; at most once.
struct ellipsis_t {};
constexpr ellipsis_t ellipsis() { return {}; }

/// A new axis of one index.
struct newaxis_t {};
constexpr newaxis_t newaxis() { return {}; }

/// The open end of a range.
struct end_t {};
constexpr end_t end() { return {}; }

/// Indices start, start + step, ... before stop, with Python's rules: negative bounds count from the end of the axis, bounds
/// beyond it are clamped, step may be negative.
struct range_t {
  int64_t start, stop, step;
  bool open_stop;
};
constexpr range_t range(int64_t start, int64_t stop, int64_t step = 1) { return {start, stop, step, false}; }
constexpr range_t range(int64_t start, end_t, int64_t step = 1) { return {start, 0, step, true}; }

namespace detail {

template <class I>
concept view_index = std::same_as<I, all_t> || std::same_as<I, ellipsis_t> || std::same_as<I, newaxis_t> || std::same_as<I, range_t>;
template <class I>
concept any_index = view_index<I> || std::integral<I>;

template <class I>
inline constexpr bool takes_axis = !std::same_as<I, newaxis_t> && !std::same_as<I, ellipsis_t>;

/// Applies one index to axis `axis` of `view`; afterwards `axis` is the next one.
template <class I>
void apply_index(Viewed& view, int& axis, int whole_axes, I index) {
  if constexpr (std::integral<I>) {
    Viewed const next = select_view(view.layout, axis, static_cast<int64_t>(index), "operator()");
    view = {next.layout, view.offset + next.offset};
  } else if constexpr (std::same_as<I, all_t>) {
    ++axis;
  } else if constexpr (std::same_as<I, ellipsis_t>) {
    axis += whole_axes;
  } else if constexpr (std::same_as<I, newaxis_t>) {
    view.layout = unsqueezed(view.layout, axis);
    ++axis;
  } else {
    Viewed const next = slice_view(view.layout, axis, index.start, index.stop, index.step, false, index.open_stop, "operator()");
    view = {next.layout, view.offset + next.offset};
    ++axis;
  }
}

template <class... Is>
Viewed index_view(Layout const& from, Is... indices) {
  constexpr int taken = (0 + ... + static_cast<int>(takes_axis<Is>));
  static_assert((0 + ... + static_cast<int>(std::same_as<Is, ellipsis_t>)) <= 1, "situ: an index has at most one ellipsis()");
  if (taken > from.rank()) {
    fail<IndexError>("operator(): ", taken, " axes are indexed of shape ", from.shape, ": it has ", from.rank());
  }
  Viewed view{from, 0};
  int axis = 0;
  (apply_index(view, axis, from.rank() - taken, indices), ...);
  return view;
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI

// ---- <situ/tensor/nested.hpp>
/// Braces that hold values: Tensor<float>{{1, 2}, {3, 4}}.

#include <initializer_list>


namespace situ::inline SITU_ABI {
namespace detail {

/// A number, or a list of the same; lives as long as the braces it was written with.
template <class T>
class Nested {
 public:
  template <number U>
  constexpr Nested(U value) : value_(convert_scalar<T>(value)) {}
  constexpr Nested(std::initializer_list<Nested> list) : list_(list), count_(static_cast<int64_t>(list.size())) {}

  constexpr bool is_list() const { return count_ >= 0; }

  /// Writes the extents from `axis` on, taken from the first element of every list.
  void measure(Shape& shape) const {
    if (!is_list()) return;
    shape.push_back(count_);
    if (count_ > 0) list_.begin()->measure(shape);
  }

  /// Writes the values in row-major order; throws ShapeError unless every list has the extent of its axis.
  T* copy_to(T* to, Shape const& shape, int axis) const {
    if (is_list() != (axis < shape.rank()) || (is_list() && count_ != shape[axis])) {
      if (!is_list() || axis >= shape.rank()) fail<ShapeError>("Tensor: the braces are ragged: numbers and lists stand side by side at depth ", axis);
      fail<ShapeError>("Tensor: the braces are ragged: ", count_, " elements stand where ", shape[axis], " are needed, in dimension ", axis);
    }
    if (!is_list()) {
      *to = value_;
      return to + 1;
    }
    for (int64_t k = 0; k < count_; ++k) to = list_.begin()[k].copy_to(to, shape, axis + 1);
    return to;
  }

 private:
  T value_{};
  std::initializer_list<Nested> list_;
  int64_t count_ = -1;
};

}  // namespace detail
}  // namespace situ::inline SITU_ABI

namespace situ::inline SITU_ABI {

namespace detail {

/// Whether values of E may become elements of T on D without being asked.
template <class E, class T, class D>
concept becomes = expression<E> && mixes_with<device_of<E>, D> && implicitly_converts_to<value_of<E>, T>;

template <class R, class T>
concept range_of = !expression<R> && requires(R const& r) {
  { r.data() } -> std::convertible_to<T const*>;
  { r.size() } -> std::convertible_to<std::size_t>;
};

[[noreturn]] __attribute__((noinline, cold)) inline void fail_broadcast_write(char const* who, Layout const& layout) {
  fail<LayoutError>(who, ": writing to a broadcast view of shape ", layout.shape, " with strides ", layout.strides,
                    " would write elements more than once; write to a clone() of it");
}
[[noreturn]] __attribute__((noinline, cold)) inline void fail_read_only(char const* who) {
  fail<TypeError>(who, ": the storage is read-only: it was given as a pointer to const; write to a clone() of it");
}

}  // namespace detail

/// Elements of type T on device D: a handle of shape, strides and a counted storage.
///
/// Copying a handle shares the storage; clone() copies the elements. Assigning an expression to a named tensor rebinds it;
/// assigning to a temporary view, as in `x[1] = e`, writes in place, and so do assign(), `+=`, `-=`, `*=` and `/=`. A const handle gives
/// const views. A default-constructed tensor is empty, of shape [0].
/// *contiguous* means row-major without gaps; strides count elements and may be zero (broadcast) or negative.
template <element T, device D>
class Tensor : public detail::ExpressionMembers<Tensor<T, D>> {
 public:
  using value_type = T;
  using device_type = D;

  // ---- construction -----------------------------------------------------------------------------------------------

  Tensor() = default;
  Tensor(Tensor const&) = default;
  Tensor(Tensor&&) noexcept = default;

  /// Values in braces, of any rank: {{1, 2}, {3, 4}}. Never a shape. Throws ShapeError when they are ragged.
  Tensor(std::initializer_list<detail::Nested<T>> values) {
    detail::Nested<T> const list(values);
    Shape shape;
    list.measure(shape);
    Tensor<T, Cpu> host = Tensor<T, Cpu>::uninitialized(shape);
    list.copy_to(host.raw(), shape, 0);
    if constexpr (std::is_same_v<D, Cpu>) *this = host;
    else *this = detail::transfer<D>(host);
  }

  /// Copies the numbers of a contiguous range, such as std::vector or std::span. Throws ShapeError when the shape has
  /// another number of elements.
  template <detail::range_of<T> R>
  Tensor(R const& values, Shape const& shape) {
    if (detail::count_of(shape, "Tensor", sizeof(T)) != static_cast<int64_t>(values.size())) {
      detail::fail<ShapeError>("Tensor: ", values.size(), " values were given for shape ", shape, ", which has ", detail::product(shape));
    }
    *this = uninitialized(shape);
    if (size() > 0) device_traits<D>::copy_from_host(raw(), values.data(), bytes());
  }
  /// The same in one dimension.
  template <detail::range_of<T> R>
  explicit Tensor(R const& values) : Tensor(values, Shape(static_cast<int64_t>(values.size()))) {}

  /// Evaluates an expression on its own device, into one kernel and one allocation.
  template <class E>
    requires(detail::becomes<E, T, D> && !std::is_same_v<std::remove_cvref_t<E>, Tensor>)
  Tensor(E&& e) : handle_(uninitialized(e.shape(), "Tensor").handle_) {
    detail::evaluate<D>(raw(), layout(), true, e, detail::is_uniform(e));
  }
  /// An expression of another device: direct initialisation is explicit, so it transfers.
  template <class U, class From>
    requires(!mixes_with<From, D> && implicitly_converts_to<U, T>)
  explicit Tensor(Tensor<U, From> const& from) : Tensor(detail::convert_and_transfer<T, D>(from)) {}
  template <template <class, class...> class Formula, class Op, class... Es>
    requires(expression<Formula<Op, Es...>> && !mixes_with<device_of<Formula<Op, Es...>>, D> &&
             implicitly_converts_to<value_of<Formula<Op, Es...>>, T>)
  explicit Tensor(Formula<Op, Es...> const& from) : Tensor(detail::convert_and_transfer<T, D>(detail::evaluated(from))) {}
  /// Without direct initialisation it does not compile.
  template <class E, class Error = error::conversion_across_devices_is_explicit__use_to<D, device_of<E>>>
    requires(expression<E> && !mixes_with<device_of<E>, D>)
  Tensor(E const&) = delete;
  template <class E, class Error = error::conversion_would_lose_values__use_cast<value_of<E>, T>>
    requires(expression<E> && mixes_with<device_of<E>, D> && !implicitly_converts_to<value_of<E>, T>)
  Tensor(E&&) = delete;

  /// Uninitialised memory for a shape. Throws ShapeError, OutOfMemory, DeviceUnavailable. Prefer `empty`.
  static Tensor uninitialized(Shape const& shape, char const* who = "empty") {
    int64_t const count = detail::count_of(shape, who, sizeof(T));
    return from_handle(detail::make_fresh<D>(static_cast<std::size_t>(count) * sizeof(T), count, shape));
  }
  /// A tensor from its handle; for situ's own use.
  static Tensor from_handle(detail::Handle handle) {
    Tensor result;
    result.handle_ = std::move(handle);
    return result;
  }

  // ---- assignment -------------------------------------------------------------------------------------------------

  Tensor& operator=(Tensor const&) & = default;
  Tensor& operator=(Tensor&&) & noexcept = default;
  /// Rebinds this handle to the value of an expression. The old storage is written again where nobody can tell.
  template <class E>
    requires(detail::becomes<E, T, D> && !std::is_same_v<std::remove_cvref_t<E>, Tensor>)
  Tensor& operator=(E&& e) & {
    if (SITU_LIKELY(can_reuse<E>(e))) detail::evaluate<D>(raw(), layout(), true, e, detail::is_uniform(e));
    else *this = Tensor(static_cast<E&&>(e));
    return *this;
  }
  template <class E, class Error = error::conversion_across_devices_is_explicit__use_to<D, device_of<E>>>
    requires(expression<E> && !mixes_with<device_of<E>, D>)
  Tensor& operator=(E&&) = delete;
  template <class E, class Error = error::conversion_would_lose_values__use_cast<value_of<E>, T>>
    requires(expression<E> && mixes_with<device_of<E>, D> && !implicitly_converts_to<value_of<E>, T>)
  Tensor& operator=(E&&) = delete;

  /// Writes in place: the left side is a temporary view, as in `x[1] = e` or `x(all(), 0) = 0`.
  Tensor operator=(Tensor const& other) && { return assign(other); }
  template <class E>
    requires(detail::becomes<E, T, D> && !std::is_same_v<std::remove_cvref_t<E>, Tensor>)
  Tensor operator=(E&& e) && {
    return assign(static_cast<E&&>(e));
  }
  template <number S>
    requires implicitly_converts_to<weak_t<T, typename detail::canonical<S>::type>, T>
  Tensor operator=(S value) && {
    return assign(value);
  }

  /// Writes the values of an expression, broadcast to this shape, into this storage. A source that overlaps it differently is
  /// evaluated first. Throws ShapeError, LayoutError for a broadcast view, TypeError for read-only storage.
  template <class E>
    requires detail::becomes<E, T, D>
  Tensor& assign(E&& e) {
    check_writable("assign");
    if (!(e.shape() == shape())) detail::expanded(Layout(e.shape()), shape(), "assign");
    if (overlaps_differently(e)) {
      Tensor const value = uninitialized(e.shape(), "assign");
      detail::evaluate<D>(value.raw(), value.layout(), true, e);
      detail::evaluate<D>(raw(), layout(), is_contiguous(), value);
    } else {
      detail::evaluate<D>(raw(), layout(), is_contiguous(), e);
    }
    return *this;
  }
  template <class E, class Error = error::operands_on_different_devices__move_one_with_to<D, device_of<E>>>
    requires(expression<E> && !mixes_with<device_of<E>, D>)
  Tensor& assign(E&&) = delete;
  template <class E, class Error = error::conversion_would_lose_values__use_cast<value_of<E>, T>>
    requires(expression<E> && mixes_with<device_of<E>, D> && !implicitly_converts_to<value_of<E>, T>)
  Tensor& assign(E&&) = delete;
  template <number S>
    requires implicitly_converts_to<weak_t<T, typename detail::canonical<S>::type>, T>
  Tensor& assign(S value) {
    check_writable("assign");
    detail::evaluate<D>(raw(), layout(), is_contiguous(), detail::Constant<T>{detail::convert_scalar<compute_t<T>>(value)});
    return *this;
  }
  template <number S, class Error = error::conversion_would_lose_values__use_cast<S, T>>
    requires(!implicitly_converts_to<weak_t<T, typename detail::canonical<S>::type>, T>)
  Tensor& assign(S) = delete;

#define SITU_IN_PLACE(SYMBOL)                                                          \
  template <class X>                                                                   \
    requires detail::becomes<decltype(std::declval<Tensor&>() SYMBOL std::declval<X>()), T, D> \
  Tensor& operator SYMBOL##=(X&& x) {                                                  \
    return assign(*this SYMBOL static_cast<X&&>(x));                                   \
  }                                                                                    \
  template <class E, class Error = error::operands_on_different_devices__move_one_with_to<D, device_of<E>>> \
    requires(expression<E> && !mixes_with<device_of<E>, D>)                            \
  Tensor& operator SYMBOL##=(E&&) = delete;                                            \
  template <class X, class U = value_of<decltype(std::declval<Tensor&>() SYMBOL std::declval<X>())>, \
            class Error = error::conversion_would_lose_values__use_cast<U, T>>         \
    requires(!implicitly_converts_to<U, T>)                                            \
  Tensor& operator SYMBOL##=(X&&) = delete;
  SITU_IN_PLACE(+)
  SITU_IN_PLACE(-)
  SITU_IN_PLACE(*)
  SITU_IN_PLACE(/)
#undef SITU_IN_PLACE

  // ---- what it is -------------------------------------------------------------------------------------------------

  Shape const& shape() const { return layout().shape; }
  /// In elements.
  Shape const& strides() const { return layout().strides; }
  Layout const& layout() const { return handle_.body() ? handle_.body()->layout : detail::empty_layout; }
  int rank() const { return layout().rank(); }
  /// The number of elements.
  int64_t size() const { return handle_.body() ? handle_.body()->size : 0; }
  int64_t size(int64_t axis) const { return shape()[detail::checked_axis(axis, rank(), shape(), "size")]; }
  bool is_contiguous() const { return handle_.body() ? handle_.body()->contiguous : true; }
  D device() const { return {}; }
  static constexpr situ::dtype dtype() { return dtype_of<T>; }
  static constexpr bool is_cuda() { return std::is_same_v<typename device_traits<D>::kernels, cuda_kernels>; }
  /// How many handles share the storage: copies of this one, and views of it (copies of a view count as one).
  int64_t use_count() const { return handle_.use_count(); }
  /// The first element, in the device's memory. Throws TypeError from a non-const handle to read-only storage.
  T* data() {
    if (read_only()) detail::fail_read_only("data");
    return raw();
  }
  T const* data() const { return raw(); }
  detail::Storage storage() const { return handle_.body() ? handle_.body()->storage : detail::Storage(); }
  detail::Body const* body() const { return handle_.body(); }
  detail::Handle const& handle() const { return handle_; }
  detail::StorageHead const* storage_head() const { return handle_.body() ? handle_.body()->storage.head() : nullptr; }

  // ---- views: the same storage, seen differently --------------------------------------------------------------------

#define SITU_VIEW(NAME, PARAMETERS, BODY) \
  Tensor NAME PARAMETERS { return BODY; } \
  const Tensor NAME PARAMETERS const { return BODY; }

  /// The same elements with another shape (one -1 is inferred). Throws LayoutError when the strides do not allow it.
  SITU_VIEW(view, (Shape const& to), viewed_as(to))
  SITU_VIEW(transpose, (int64_t axis0, int64_t axis1), viewed({detail::transposed(layout(), axis0, axis1), 0}))
  /// The matrix transposed; a tensor of less than two axes stays as it is. Throws ShapeError beyond two.
  SITU_VIEW(t, (), viewed({detail::matrix_transposed(layout()), 0}))
  SITU_VIEW(permute, (Shape const& axes), viewed({detail::permuted(layout(), axes), 0}))
  SITU_VIEW(unsqueeze, (int64_t axis), viewed({detail::unsqueezed(layout(), axis), 0}))
  SITU_VIEW(squeeze, (), viewed({detail::squeezed(layout()), 0}))
  SITU_VIEW(squeeze, (int64_t axis), viewed({detail::squeezed(layout(), axis), 0}))
  /// Repeats axes of one index without copying; -1 keeps an extent.
  SITU_VIEW(expand, (Shape const& to), viewed({detail::expanded(layout(), to), 0}))
  SITU_VIEW(select, (int64_t axis, int64_t index), viewed(detail::select_view(layout(), axis, index)))
  SITU_VIEW(slice, (int64_t axis, int64_t start, int64_t stop, int64_t step = 1),
            viewed(detail::slice_view(layout(), axis, start, stop, step)))
  SITU_VIEW(slice, (int64_t axis, int64_t start, end_t, int64_t step = 1),
            viewed(detail::slice_view(layout(), axis, start, 0, step, false, true)))
  SITU_VIEW(flip, (int64_t axis), viewed(detail::flip_view(layout(), axis)))
  SITU_VIEW(operator[], (int64_t index), viewed(detail::select_view(layout(), 0, index, "operator[]")))
#undef SITU_VIEW

  /// x(all(), range(1, end()), -1): one index per axis; axes that are not named are kept whole.
  template <class... Is>
    requires((detail::any_index<Is> && ...) && (detail::view_index<Is> || ...))
  Tensor operator()(Is... indices) {
    return viewed(detail::index_view(layout(), indices...));
  }
  template <class... Is>
    requires((detail::any_index<Is> && ...) && (detail::view_index<Is> || ...))
  const Tensor operator()(Is... indices) const {
    return viewed(detail::index_view(layout(), indices...));
  }

  /// The same elements with another shape: a view where the strides allow it, else a contiguous copy.
  Tensor reshape(Shape const& to) { return reshaped(to); }
  const Tensor reshape(Shape const& to) const { return reshaped(to); }
  Tensor flatten() { return reshaped({-1}); }
  const Tensor flatten() const { return reshaped({-1}); }
  /// This tensor where it is contiguous, else a contiguous copy.
  Tensor contiguous() { return is_contiguous() ? *this : clone(); }
  const Tensor contiguous() const { return is_contiguous() ? *this : clone(); }
  /// A contiguous copy in storage of its own.
  Tensor clone() const {
    Tensor result = uninitialized(shape(), "clone");
    if (is_contiguous()) {
      if (size() > 0) device_traits<D>::copy(result.raw(), raw(), bytes());
    } else {
      detail::evaluate<D>(result.raw(), result.layout(), true, *this);
    }
    return result;
  }

  // ---- elements ---------------------------------------------------------------------------------------------------

  /// One element: as many indices as axes; negative ones count from the end. Throws IndexError. Host memory only.
  template <std::integral... Is>
    requires host_device<D>
  T& operator()(Is... indices) {
    if (SITU_UNLIKELY(read_only())) detail::fail_read_only("operator()");
    return raw()[offset_of("operator()", indices...)];
  }
  template <std::integral... Is>
    requires host_device<D>
  T const& operator()(Is... indices) const {
    return raw()[offset_of("operator()", indices...)];
  }
  template <std::integral... Is, class Error = error::element_access_on_a_device__use_item_for_one_element_or_cpu_for_all<D>>
    requires(!host_device<D>)
  T& operator()(Is...) const = delete;

  /// One element by value, from any device: waits for what is enqueued there. Without indices, the only element.
  template <std::integral... Is>
  T item(Is... indices) const {
    int64_t offset = 0;
    if constexpr (sizeof...(Is) == 0) {
      if (size() != 1) detail::fail<ShapeError>("item: shape ", shape(), " has ", size(), " elements; without indices there must be exactly one");
    } else {
      offset = offset_of("item", indices...);
    }
    T value;
    device_traits<D>::copy_to_host(&value, raw() + offset, sizeof(T));
    return value;
  }
  /// All elements in row-major order.
  std::vector<T> to_vector() const
    requires(!std::is_same_v<T, bool>)
  {
    std::vector<T> result(static_cast<std::size_t>(size()));
    copy_out(result.data());
    return result;
  }
  std::vector<bool> to_vector() const
    requires(std::is_same_v<T, bool>)
  {
    Tensor<T, Cpu> const host = detail::transfer<Cpu>(*this).contiguous();
    return std::vector<bool>(host.data(), host.data() + host.size());
  }

 private:
  template <element U, situ::device Other>
  friend class Tensor;

  T* raw() const { return handle_.body() ? static_cast<T*>(handle_.body()->first) : nullptr; }
  bool read_only() const {
    auto const* const head = storage_head();
    return head && head->read_only;
  }
  std::size_t bytes() const { return static_cast<std::size_t>(size()) * sizeof(T); }

  Tensor viewed(detail::Viewed const& view) const {
    return from_handle(detail::make_view(storage(), raw() ? raw() + view.offset : nullptr, view.layout));
  }

  Tensor reshaped(Shape const& to) const {
    Shape const shape = detail::inferred(to, this->shape(), "reshape");
    Layout result;
    if (detail::viewed_as(layout(), shape, result)) return viewed({result, 0});
    return clone().viewed({Layout(shape), 0});
  }

  Tensor viewed_as(Shape const& to) const {
    Shape const shape = detail::inferred(to, this->shape(), "view");
    Layout result;
    if (!detail::viewed_as(layout(), shape, result)) {
      detail::fail<LayoutError>("view: shape ", this->shape(), " with strides ", strides(), " cannot be viewed as ", shape,
                                " without a copy; use reshape(), which copies where it must");
    }
    return viewed({result, 0});
  }

  template <class... Is>
  int64_t offset_of(char const* who, Is... indices) const {
    constexpr int count = sizeof...(Is);
    if (SITU_UNLIKELY(count != rank())) {
      detail::fail<IndexError>(who, ": ", count, " indices were given for shape ", shape(), ": it has ", rank(), rank() == 1 ? " axis" : " axes");
    }
    int64_t offset = 0;
    int axis = 0;
    ((offset += detail::checked_index(static_cast<int64_t>(indices), shape()[axis], axis, shape(), who) * strides()[axis], ++axis), ...);
    return offset;
  }

  void copy_out(T* to) const {
    if (size() == 0) return;
    if (is_contiguous()) return device_traits<D>::copy_to_host(to, raw(), bytes());
    Tensor<T, Cpu> const host = detail::transfer<Cpu>(*this).contiguous();
    device_traits<Cpu>::copy(to, host.data(), bytes());
  }

  void check_writable(char const* who) const {
    if (SITU_UNLIKELY(layout().is_broadcast())) detail::fail_broadcast_write(who, layout());
    if (SITU_UNLIKELY(read_only())) detail::fail_read_only(who);
  }

  /// Whether the value of e may be written into this storage unseen: nobody else holds it but e, which ends now and reads
  /// every element only to compute the one that replaces it.
  template <class E, class Expression>
  bool can_reuse(Expression const& e) const {
    detail::Body const* const body = handle_.body();
    if (!body || !body->contiguous || !body->storage || !body->storage.head()->allocated_here || body->storage.use_count() != 1) return false;
    int64_t appearances = 0;  // of this very body: another one would count in the storage
    detail::for_each_leaf(e, [&](auto const& leaf) { appearances += leaf.body() == body; });
    if (__atomic_load_n(&body->handles, __ATOMIC_ACQUIRE) != 1 + appearances) return false;
    return (appearances == 0 || !std::is_lvalue_reference_v<E>) && detail::same_shape(e.shape(), body->layout.shape);
  }

  /// Whether e reads elements of this storage at other indices than those they are written at.
  template <class E>
  bool overlaps_differently(E const& e) const {
    bool result = false;
    detail::for_each_leaf(e, [&](auto const& leaf) {
      result = result || detail::overlap_differently(raw(), sizeof(T), layout(), leaf.data(), sizeof(value_of<decltype(leaf)>), leaf.layout());
    });
    return result;
  }

  detail::Handle handle_;
};

// `Tensor y = e;` deduces the element type and the device of e. Each of these is more specialised than the constructors above,
// which would deduce the defaults.
template <class Op, class... Es>
Tensor(Map<Op, Es...> const&) -> Tensor<value_of<Map<Op, Es...>>, detail::result_device_t<device_of<Map<Op, Es...>>>>;
template <class Op, class... Es>
Tensor(Map<Op, Es...>&) -> Tensor<value_of<Map<Op, Es...>>, detail::result_device_t<device_of<Map<Op, Es...>>>>;
template <class Op, class... Es>
Tensor(Map<Op, Es...>&&) -> Tensor<value_of<Map<Op, Es...>>, detail::result_device_t<device_of<Map<Op, Es...>>>>;
template <class T, class D>
Tensor(Tensor<T, D> const&) -> Tensor<T, D>;
template <class T, class D>
Tensor(Tensor<T, D>&) -> Tensor<T, D>;
template <class T, class D>
Tensor(Tensor<T, D>&&) -> Tensor<T, D>;
template <class R>
  requires requires(R const& r) { r.data(); r.size(); }
Tensor(R const&, Shape) -> Tensor<std::remove_cvref_t<decltype(*std::declval<R const&>().data())>>;

/// The value of an expression as a tensor; a tensor is returned as it is.
template <class E>
  requires expression<E>
auto eval(E&& e) {
  return detail::evaluated(static_cast<E&&>(e));
}

}  // namespace situ::inline SITU_ABI

namespace situ::inline SITU_ABI {
namespace detail {

template <class To, class From>
concept copies_directly = requires(void* to, void const* from, std::size_t n) { device_traits<To>::template copy_from<From>(to, from, n); };

/// Copies bytes between the memories of two devices, by the shortest way.
template <class To, class From>
void copy_bytes(void* to, void const* from, std::size_t bytes) {
  if (bytes == 0) return;
  if constexpr (std::is_same_v<To, From>) device_traits<To>::copy(to, from, bytes);
  else if constexpr (std::is_same_v<To, Cpu>) device_traits<From>::copy_to_host(to, from, bytes);
  else if constexpr (host_device<From>) device_traits<To>::copy_from_host(to, from, bytes);
  else if constexpr (host_device<To>) device_traits<From>::copy_to_host(to, from, bytes);
  else if constexpr (copies_directly<To, From>) device_traits<To>::template copy_from<From>(to, from, bytes);
  else {
    Temporary<Cpu> const staged(bytes);
    device_traits<From>::copy_to_host(staged.get(), from, bytes);
    device_traits<To>::copy_from_host(to, staged.get(), bytes);
  }
}

/// `from` on device To: itself when it is there already.
template <class To, class T, class From>
Tensor<T, To> transfer(Tensor<T, From> const& from) {
  if constexpr (std::is_same_v<To, From>) return from;
  else if constexpr (host_device<From>) {
    Tensor<T, From> const packed = from.contiguous();
    Tensor<T, To> result = Tensor<T, To>::uninitialized(from.shape(), "to");
    copy_bytes<To, From>(result.data(), packed.data(), static_cast<std::size_t>(from.size()) * sizeof(T));
    return result;
  } else {
    auto const span = from.layout().extent();
    std::size_t const elements = span.last < span.first ? 0 : static_cast<std::size_t>(span.last - span.first + 1);
    bool const dense = from.is_contiguous();
    Tensor<T, To> result = Tensor<T, To>::uninitialized(dense ? from.shape() : Shape(static_cast<int64_t>(elements)), "to");
    copy_bytes<To, From>(result.data(), from.data() + (elements ? span.first : 0), elements * sizeof(T));
    if (dense) return result;
    void* const first = elements ? result.data() - span.first : nullptr;
    auto strided = Tensor<T, To>::from_handle(make_view(result.storage(), first, from.layout()));
    if constexpr (host_device<To>) return strided.contiguous();
    else return strided;
  }
}

template <class U, class T, class D>
Tensor<U, D> converted(Tensor<T, D> const& from) {
  if constexpr (std::is_same_v<U, T>) return from;
  else return Tensor<U, D>(cast<U>(from));
}

/// Narrowing happens before the copy, widening after it: the fewer bytes cross.
template <class U, class To, class T, class From>
Tensor<U, To> convert_and_transfer(Tensor<T, From> const& from) {
  if constexpr (std::is_same_v<U, T>) return transfer<To>(from);
  else if constexpr (sizeof(U) <= sizeof(T)) return transfer<To>(converted<U>(from));
  else return converted<U>(transfer<To>(from));
}

}  // namespace detail

/// A copy in page-locked host memory, from which asynchronous transfers start.
template <class E>
  requires expression<E>
auto pin(E const& e) {
  return e.to(Pinned{});
}

/// Waits until everything that was enqueued on the device has run.
template <device D>
void synchronize(D) {
  device_traits<D>::synchronize();
}

}  // namespace situ::inline SITU_ABI

namespace situ::inline SITU_ABI {
namespace detail {

/// Fills a fresh tensor with f(index), where f is a function object that runs on every device.
template <element T, device D, class F>
Tensor<T, D> generate(Shape const& shape, F f, char const* who) {
  Tensor<T, D> result = Tensor<T, D>::uninitialized(shape, who);
  using Tree = Apply<functions::mapped<F>, Index>;
  Tree const tree{{f}, {Index{}, {}}};
  evaluate_tree<D>(result.data(), result.size(), tree);
  return result;
}

template <class T>
struct arange_at {
  std::conditional_t<std::is_integral_v<T>, int64_t, double> start, step;
  SITU_HOST_DEVICE T operator()(int64_t i) const {
    if constexpr (std::is_integral_v<T>) return static_cast<T>(added(start, multiplied(step, i)));
    else return T(static_cast<compute_t<T>>(start + step * static_cast<double>(i)));
  }
};
template <class T>
struct linspace_at {
  double start, stop, step;
  int64_t count;
  SITU_HOST_DEVICE T operator()(int64_t i) const {  // from both ends, so that both are exact
    double const x = i < count / 2 ? start + step * static_cast<double>(i) : stop - step * static_cast<double>(count - 1 - i);
    return convert_scalar<T>(x);
  }
};
template <class T>
struct eye_at {
  int64_t columns;
  SITU_HOST_DEVICE T operator()(int64_t i) const { return convert_scalar<T>(i / columns == i % columns ? 1 : 0); }
};

}  // namespace detail

/// Uninitialised elements.
template <element T = float, device D = Cpu>
Tensor<T, D> empty(Shape const& shape, D = {}) {
  return Tensor<T, D>::uninitialized(shape, "empty");
}

namespace detail {
template <element T, device D, number V>
Tensor<T, D> filled(Shape const& shape, V value, char const* who) {
  Tensor<T, D> result = Tensor<T, D>::uninitialized(shape, who);
  evaluate<D>(result.data(), result.layout(), true, Constant<T>{convert_scalar<compute_t<T>>(convert_scalar<T>(value))});
  return result;
}
}  // namespace detail

/// Every element is `value`.
template <element T = float, device D = Cpu, number V>
Tensor<T, D> full(Shape const& shape, V value, D = {}) {
  return detail::filled<T, D>(shape, value, "full");
}
template <element T = float, device D = Cpu>
Tensor<T, D> zeros(Shape const& shape, D = {}) {
  return detail::filled<T, D>(shape, 0, "zeros");
}
template <element T = float, device D = Cpu>
Tensor<T, D> ones(Shape const& shape, D = {}) {
  return detail::filled<T, D>(shape, 1, "ones");
}

/// start, start + step, ... before stop. Throws ShapeError when step is 0 or leads away from stop.
template <element T = float, device D = Cpu, number A, number B, number S = int>
Tensor<T, D> arange(A start, B stop, S step = S(1), D = {}) {
  double const from = static_cast<double>(start), to = static_cast<double>(stop), by = static_cast<double>(step);
  if (!(by != 0) || (to - from) / by < 0) {
    detail::fail<ShapeError>("arange: from ", from, " to ", to, " in steps of ", by, ": the step must lead from start to stop and not be 0");
  }
  double const steps = (to - from) / by;
  int64_t count = detail::convert_scalar<int64_t>(steps);
  if (count < INT64_MAX && static_cast<double>(count) < steps) ++count;
  if constexpr (std::is_integral_v<A> && std::is_integral_v<B> && std::is_integral_v<S>) {  // exact, also beyond 2^53
    uint64_t const distance = step > 0 ? static_cast<uint64_t>(stop) - static_cast<uint64_t>(start) : static_cast<uint64_t>(start) - static_cast<uint64_t>(stop);
    uint64_t const width = step > 0 ? static_cast<uint64_t>(step) : uint64_t{0} - static_cast<uint64_t>(step);
    count = static_cast<int64_t>(distance / width + (distance % width != 0));
  }
  detail::arange_at<T> at{};
  at.start = detail::convert_scalar<decltype(at.start)>(start);
  at.step = detail::convert_scalar<decltype(at.step)>(step);
  return detail::generate<T, D>({count}, at, "arange");
}
/// 0, 1, ... before stop.
template <element T = float, device D = Cpu, number B>
Tensor<T, D> arange(B stop, D device = {}) {
  return arange<T>(0, stop, 1, device);
}

/// `count` numbers from start to stop, both included and exact.
template <element T = float, device D = Cpu, number A, number B>
Tensor<T, D> linspace(A start, B stop, int64_t count, D = {}) {
  double const from = static_cast<double>(start), to = static_cast<double>(stop);
  double const step = count > 1 ? (to - from) / static_cast<double>(count - 1) : 0;
  return detail::generate<T, D>({count}, detail::linspace_at<T>{from, count > 1 ? to : from, step, count}, "linspace");
}

/// The identity matrix, rows x columns (square when only rows are given).
template <element T = float, device D = Cpu>
Tensor<T, D> eye(int64_t rows, int64_t columns, D = {}) {
  return detail::generate<T, D>({rows, columns}, detail::eye_at<T>{columns}, "eye");
}
template <element T = float, device D = Cpu>
Tensor<T, D> eye(int64_t rows, D device = {}) {
  return eye<T>(rows, rows, device);
}

/// The shape, element type and device of another tensor or expression.
template <expression E>
auto empty_like(E const& e) {
  return empty<value_of<E>>(e.shape(), detail::result_device_t<device_of<E>>{});
}
template <expression E, number V>
auto full_like(E const& e, V value) {
  return full<value_of<E>>(e.shape(), value, detail::result_device_t<device_of<E>>{});
}
template <expression E>
auto zeros_like(E const& e) {
  return full_like(e, 0);
}
template <expression E>
auto ones_like(E const& e) {
  return full_like(e, 1);
}

namespace detail {

struct no_deleter {
  void operator()(void*) const {}
};

template <class U, class Deleter>
struct ForeignStorage : StorageHead {
  Deleter deleter;
  explicit ForeignStorage(Deleter&& d) : deleter(static_cast<Deleter&&>(d)) {}
  static void destroy_foreign(StorageHead* head) noexcept {
    auto* const self = static_cast<ForeignStorage*>(head);
    self->deleter(static_cast<U*>(self->memory));
    delete self;
  }
};

}  // namespace detail

/// A tensor over memory that somebody else made, on device D: the pointer is kept, nothing is copied. `deleter(pointer)` is called
/// when the last handle goes. A pointer to const gives read-only storage: writing to it throws TypeError.
/// Throws    ShapeError when shape and strides differ in length, or for a shape that no tensor can have.
template <class T, device D = Cpu, class Deleter = detail::no_deleter>
  requires element<std::remove_const_t<T>>
Tensor<std::remove_const_t<T>, D> from_blob(T* pointer, Shape const& shape, Shape const& strides, Deleter deleter = {}, D = {}) {
  using U = std::remove_const_t<T>;
  detail::count_of(shape, "from_blob", sizeof(T));
  if (shape.rank() != strides.rank()) {
    detail::fail<ShapeError>("from_blob: shape ", shape, " and strides ", strides, " differ in length; one stride per axis is needed");
  }
  auto* const head = new detail::ForeignStorage<U, Deleter>(static_cast<Deleter&&>(deleter));
  head->memory = const_cast<U*>(pointer);
  head->destroy = &detail::ForeignStorage<U, Deleter>::destroy_foreign;
  head->allocated_here = false;
  head->read_only = std::is_const_v<T>;
  Layout const layout(shape, strides);
  auto const extent = layout.extent();
  head->bytes = extent.last < extent.first ? 0 : static_cast<std::size_t>(extent.last - extent.first + 1) * sizeof(T);
  return Tensor<U, D>::from_handle(detail::make_view(detail::Storage(head), const_cast<U*>(pointer), layout));
}
template <class T, device D = Cpu>
  requires element<std::remove_const_t<T>>
Tensor<std::remove_const_t<T>, D> from_blob(T* pointer, Shape const& shape, D device = {}) {
  detail::count_of(shape, "from_blob", sizeof(T));
  return from_blob(pointer, shape, Layout(shape).strides, detail::no_deleter{}, device);
}

}  // namespace situ::inline SITU_ABI

// ---- <situ/tensor/print.hpp>
/// Printing, as PyTorch prints: std::cout << x.


// ---- <situ/tensor/format.hpp>
/// Tensors as text, by PyTorch's rules: what `std::cout << x` prints.

#include <cstdio>
#include <string>
#include <vector>


namespace situ::inline SITU_ABI {
namespace detail {

/// PyTorch's default print options.
namespace print_options {
inline constexpr int digits = 4;            // behind the point
inline constexpr int line_width = 80;       // of elements, and of the last line with its suffixes
inline constexpr int64_t threshold = 1000;  // more elements than this are summarised
inline constexpr int64_t edge = 3;          // kept at each end of an axis that is summarised
}  // namespace print_options

// Printing is never hot: `cold` functions are compiled for size, and these two stay calls, so that a program that
// prints pays little for it in compile time.
[[gnu::cold]] SITU_NOINLINE inline void put(std::string& out, char const* text) { out.append(text); }
[[gnu::cold]] SITU_NOINLINE inline void put(std::string& out, char c, int count) {
  out.append(static_cast<std::size_t>(count), c);
}

/// The bits of a float as those of the same double. No arithmetic touches subnormals, infinities and NaN, which
/// floating-point flags may flush or assume away.
[[gnu::cold]] inline uint64_t widened(uint32_t bits) {
  uint64_t const sign = static_cast<uint64_t>(bits >> 31) << 63, fraction = bits & 0x007fffffu;
  uint64_t const exponent = (bits >> 23) & 0xffu;
  if (exponent == 0) return sign | bits_to<uint64_t>(static_cast<double>(fraction) * 0x1p-149);
  return sign | (exponent == 0xff ? uint64_t{0x7ff} : exponent + (1023 - 127)) << 52 | fraction << 29;
}

/// Element i of a floating type, as the bits of a double.
[[gnu::cold]] inline uint64_t real_bits_at(dtype type, void const* data, int64_t i) {
  if (type == dtype::float64) {
    uint64_t bits;
    __builtin_memcpy(&bits, static_cast<double const*>(data) + i, sizeof bits);
    return bits;
  }
  uint32_t bits;
  if (type == dtype::float16) {
    uint16_t const half = static_cast<float16 const*>(data)[i].bits;
    bool const finite = (half & 0x7c00u) != 0x7c00u;
    bits = finite ? bits_to<uint32_t>(half_value(half)) : (half & 0x8000u) << 16 | 0x7f800000u | (half & 0x3ffu) << 13;
  } else if (type == dtype::bfloat16) {
    bits = static_cast<uint32_t>(static_cast<bfloat16 const*>(data)[i].bits) << 16;
  } else {
    __builtin_memcpy(&bits, static_cast<float const*>(data) + i, sizeof bits);
  }
  return widened(bits);
}

[[gnu::cold]] inline int64_t integer_at(dtype type, void const* data, int64_t i) {
  switch (type) {
    case dtype::boolean: return static_cast<unsigned char const*>(data)[i] != 0;
    case dtype::uint8: return static_cast<uint8_t const*>(data)[i];
    case dtype::int8: return static_cast<int8_t const*>(data)[i];
    case dtype::int16: return static_cast<int16_t const*>(data)[i];
    case dtype::int32: return static_cast<int32_t const*>(data)[i];
    default: return static_cast<int64_t const*>(data)[i];
  }
}

inline constexpr int number_room = 352;  // for any double, written out

/// A finite number with `precision` digits behind the point, which is a point whatever the locale's is; returns the
/// length.
[[gnu::cold]] inline int write_decimal(char* buffer, double value, int precision, bool scientific) {
  int const length = scientific ? std::snprintf(buffer, number_room, "%.*e", precision, value)
                                : std::snprintf(buffer, number_room, "%.*f", precision, value);
  if (precision == 0) return length;
  auto const is_digit = [](char c) { return c >= '0' && c <= '9'; };
  int from = 0;
  while (is_digit(buffer[from]) || buffer[from] == '-') ++from;
  int to = from;
  while (from < length && !is_digit(buffer[from])) ++from;
  buffer[to++] = '.';
  while (from < length) buffer[to++] = buffer[from++];
  buffer[to] = '\0';
  return to;
}

/// The elements of one contiguous row-major tensor in host memory, all in the same notation and width.
class PrintedElements {
 public:
  [[gnu::cold]] PrintedElements(dtype type, void const* data, int rank, int64_t const* sizes)
      : type_(type), data_(data), rank_(rank), sizes_(sizes) {
    for (int dim = 0; dim < rank; ++dim) count_ *= sizes[dim];
    summarised_ = count_ > print_options::threshold;
    if (count_ == 0) return;
    if (is_real()) {
      for_each_shown(0, 0, &PrintedElements::see_range);
      if (max_bits_ == 0) return;  // nothing but zeros and what is not finite
      double const low = bits_to<double>(min_bits_), high = bits_to<double>(max_bits_);
      scientific_ = high > 1e8 || (!whole_ && low < 1e-4) || high / low > 1000.0;
    }
    for_each_shown(0, 0, &PrintedElements::see_width);
  }

  int64_t count() const { return count_; }

  /// Appends the elements in their brackets; `indent` is the column they begin in.
  [[gnu::cold]] void write(std::string& out, int indent) const {
    if (count_ == 0) put(out, "[]");
    else write(out, 0, 0, indent);
  }

 private:
  static constexpr uint64_t magnitude_mask = ~uint64_t{0} >> 1;
  static constexpr uint64_t infinity_bits = uint64_t{0x7ff} << 52;

  bool is_real() const {
    return type_ == dtype::float32 || type_ == dtype::float64 || type_ == dtype::float16 || type_ == dtype::bfloat16;
  }

  // An axis of n is shown as `shown(n)` items: all its elements, or both ends and an ellipsis between them.
  bool cuts(int64_t n) const { return summarised_ && n > 2 * print_options::edge; }
  int64_t shown(int64_t n) const { return cuts(n) ? 2 * print_options::edge + 1 : n; }

  /// The index of an item, −1 for the ellipsis.
  int64_t index(int64_t n, int64_t item) const {
    if (!cuts(n) || item < print_options::edge) return item;
    return item == print_options::edge ? -1 : n - shown(n) + item;
  }

  /// The number of elements in one step along `dim`.
  [[gnu::cold]] int64_t stride(int dim) const {
    int64_t product = 1;
    while (++dim < rank_) product *= sizes_[dim];
    return product;
  }

  [[gnu::cold]] void for_each_shown(int dim, int64_t offset, void (PrintedElements::*visit)(int64_t)) {
    if (dim == rank_) return (this->*visit)(offset);
    int64_t const n = sizes_[dim], step = stride(dim);
    for (int64_t item = 0; item < shown(n); ++item) {
      int64_t const i = index(n, item);
      if (i >= 0) for_each_shown(dim + 1, offset + i * step, visit);
    }
  }

  /// The bits of |x|, which order as the magnitudes do.
  uint64_t magnitude_bits(int64_t i) const { return real_bits_at(type_, data_, i) & magnitude_mask; }

  [[gnu::cold]] void see_range(int64_t i) {
    uint64_t const bits = magnitude_bits(i);
    if (bits == 0 || bits >= infinity_bits) return;
    if (bits < min_bits_) min_bits_ = bits;
    if (bits > max_bits_) max_bits_ = bits;
    double const magnitude = bits_to<double>(bits);
    if (magnitude < 1.0) whole_ = false;
    else if (magnitude < 0x1p53 && static_cast<double>(static_cast<int64_t>(magnitude)) != magnitude) whole_ = false;
  }

  /// Zeros, infinities and NaN have no say in the width of a column, as in PyTorch.
  [[gnu::cold]] void see_width(int64_t i) {
    if (is_real()) {
      uint64_t const bits = magnitude_bits(i);
      if (bits == 0 || bits >= infinity_bits) return;
    }
    char buffer[number_room];
    int const length = spell(buffer, i);
    if (length > width_) width_ = length;
  }

  /// Element i without padding, into number_room characters; returns the length.
  [[gnu::cold]] int spell(char* buffer, int64_t i) const {
    char const* word = nullptr;
    if (is_real()) {
      uint64_t const bits = real_bits_at(type_, data_, i), magnitude = bits & magnitude_mask;
      if (magnitude < infinity_bits) {
        double const value = bits_to<double>(bits);
        if (scientific_ || !whole_) return write_decimal(buffer, value, print_options::digits, scientific_);
        int const length = write_decimal(buffer, value, 0, false);
        buffer[length] = '.';
        buffer[length + 1] = '\0';
        return length + 1;
      }
      word = magnitude > infinity_bits ? "nan" : bits == magnitude ? "inf" : "-inf";
    } else {
      int64_t const value = integer_at(type_, data_, i);
      if (type_ != dtype::boolean) return std::snprintf(buffer, number_room, "%lld", static_cast<long long>(value));
      word = value != 0 ? "True" : "False";
    }
    return std::snprintf(buffer, number_room, "%s", word);
  }

  [[gnu::cold]] void write_element(std::string& out, int64_t i) const {
    char buffer[number_room];
    int const length = spell(buffer, i);
    if (length < width_) put(out, ' ', width_ - length);
    put(out, buffer);
  }

  /// Axis `dim` and those within it. The innermost runs along the line and is broken after as many columns as fit;
  /// the others have one line end less than there are axes left.
  [[gnu::cold]] void write(std::string& out, int dim, int64_t offset, int indent) const {
    if (dim == rank_) return write_element(out, offset);
    bool const row = dim == rank_ - 1;
    int64_t const n = sizes_[dim], step = stride(dim);
    int const fit = (print_options::line_width - indent) / (width_ + 2);
    int column = 0;
    put(out, "[");
    for (int64_t item = 0; item < shown(n); ++item) {
      if (item > 0) {
        put(out, ",");
        if (row && column < fit) {
          put(out, " ");
        } else {
          put(out, '\n', row ? 1 : rank_ - dim - 1);
          put(out, ' ', indent + 1);
          column = 0;
        }
      }
      ++column;
      int64_t const i = index(n, item);
      if (i < 0) put(out, row ? " ..." : "...");
      else write(out, dim + 1, offset + i * step, indent + 1);
    }
    put(out, "]");
  }

  dtype type_;
  void const* data_;
  int rank_;
  int64_t const* sizes_;
  int64_t count_ = 1;
  bool summarised_ = false;
  bool whole_ = true;  // floats that are all integers: "3."
  bool scientific_ = false;
  uint64_t min_bits_ = ~uint64_t{0}, max_bits_ = 0;  // of the finite magnitudes above zero
  int width_ = 1;
};

/// Appends `, suffix`, on a new line where it would not fit; `column` is how PyTorch counts the last line.
[[gnu::cold]] SITU_NOINLINE inline void put_suffix(std::string& out, int indent, int& column, char const* suffix) {
  int const length = static_cast<int>(__builtin_strlen(suffix));
  if (column + length + 2 > print_options::line_width) {
    put(out, ",\n");
    put(out, ' ', indent);
    column = indent + length;
  } else {
    put(out, ", ");
    column += length + 2;
  }
  put(out, suffix);
}

[[gnu::cold]] inline std::string format_tensor(dtype type, void const* data, int rank, int64_t const* sizes,
                                               std::string const& device, std::vector<std::string> const& suffixes) {
  std::string out, suffix;
  put(out, "tensor(");
  int const indent = static_cast<int>(out.size());
  PrintedElements const elements(type, data, rank, sizes);
  elements.write(out, indent);

  std::size_t const last_break = out.rfind('\n');
  int column = static_cast<int>(last_break == std::string::npos ? out.size() + 2 : out.size() - last_break + 1);
  if (!device.empty()) {
    put(suffix, "device='");
    put(suffix, device.c_str());
    put(suffix, "'");
    put_suffix(out, indent, column, suffix.c_str());
  }
  bool names_type = type != dtype::float32;
  if (elements.count() > 0) {
    names_type = names_type && type != dtype::int64 && type != dtype::boolean;
  } else if (rank != 1) {  // "[]" alone says neither shape nor type
    suffix.clear();
    for (int dim = 0; dim < rank; ++dim) {
      char buffer[32];
      std::snprintf(buffer, sizeof buffer, "%s%lld", dim == 0 ? "size=(" : ", ", static_cast<long long>(sizes[dim]));
      put(suffix, buffer);
    }
    put(suffix, ")");
    put_suffix(out, indent, column, suffix.c_str());
  }
  if (names_type) {
    suffix.clear();
    put(suffix, "dtype=");
    put(suffix, name(type));
    put_suffix(out, indent, column, suffix.c_str());
  }
  for (std::string const& extra : suffixes) put_suffix(out, indent, column, extra.c_str());
  put(out, ")");
  return out;
}

/// A tensor as PyTorch prints it, but that a dtype is written without `torch.`: `dtype=float64`.
///
/// `data` is contiguous, row-major and in host memory; only what is printed is read. `device` is empty for the host,
/// else `cuda:0`; `suffixes` are further texts such as `requires_grad=True`, in the order given.
///
///     [1.5, 2]     →  tensor([1.5000, 2.0000])
///     shape (0, 3) →  tensor([], size=(0, 3))
template <element T>
std::string format_tensor(T const* data, int rank, int64_t const* sizes, std::string const& device,
                          std::vector<std::string> const& suffixes = {}) {
  return format_tensor(dtype_of<T>, data, rank, sizes, device, suffixes);
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI

namespace situ::inline SITU_ABI {

/// The text that `<<` writes; waits for the device.
template <class E>
  requires expression<E>
std::string to_string(E const& e) {
  auto const host = detail::evaluated(e).cpu().contiguous();
  std::string const name = device_traits<device_of<E>>::name();
  return detail::format_tensor(host.data(), host.rank(), host.shape().data(), name == "cpu" ? std::string() : name);
}

/// Writes a tensor, or the value of an expression, to a stream.
template <class Stream, class E>
  requires(expression<E> && requires(Stream& s, char const* t) {
    s.write(t, 1);
    s.flush();
  })
Stream& operator<<(Stream& stream, E const& e) {
  std::string const text = to_string(e);
  stream.write(text.data(), static_cast<std::ptrdiff_t>(text.size()));
  return stream;
}

}  // namespace situ::inline SITU_ABI

// ---- <situ/ops.hpp>
/// Operations that are not elementwise.


// ---- <situ/ops/compare.hpp>
/// Comparisons of whole tensors, and isclose.


// ---- <situ/ops/reduce.hpp>
/// Reductions over all axes or chosen ones, fused with the expression that they reduce.
///
///     sum(x)   sum(x, 0)   sum(square(a - b), {0, 1}, keepdim)
///
/// Shape     over all axes: []; over chosen ones: the shape without them, or with extent 1 there under `keepdim`. Negative axes
///           count from the end.
/// Device    runs where x lives; enqueued, not waited for.
/// Throws    ShapeError when x has no such axis, an axis is named twice, or an extremum of nothing is asked for.
/// Special   NaN in, NaN out; argmin and argmax give the place of the first NaN.
/// Cost      reads every input once; one launch, or two when few outputs are reduced from many elements. Results are the same
///           from run to run, and for any number of threads.


// ---- <situ/ops/cpu/reduce.hpp>
/// Reductions on the CPU: one pass over the inputs, in packs.
///
/// A reduction is cut into *units* by its shape alone, so results do not depend on the number of threads. Where the last reduced
/// axis is the fastest in memory, a unit reduces rows to one number each; where the last kept axis is, it adds rows into a
/// strip of accumulators. Floats are added in float for at most a few hundred times in a row, then in double.


// ---- <situ/ops/reduce_program.hpp>
/// A reduction bound to memory, for every device's kernels.


// ---- <situ/ops/reducers.hpp>
/// What a reduction computes, apart from how it walks memory.
///
/// A *reducer* of elements T has an `accumulator` (trivially copyable), `identity()`, `step(a, x, index)` that takes one element in,
/// `merge(a, b)` of two parts of which a comes first, and `finish(a, count)` that gives the `result`. The CPU's kernels
/// run `lanes` of it at once: `combine` of packs, where the reducer has one.


namespace situ::inline SITU_ABI {
namespace reducers {

/// What sums are kept in: integers in 64 bits, 16-bit floats in float.
template <class T>
using sum_t = std::conditional_t<floating<T>, compute_t<T>, int64_t>;

/// Σ x. Integers and bools give int64.
template <class T>
struct sum {
  static constexpr char const* name = "sum";
  static constexpr bool empty_is_defined = true;
  using element = sum_t<T>;
  using accumulator = element;
  using result = std::conditional_t<floating<T>, T, int64_t>;
  SITU_HOST_DEVICE static constexpr accumulator identity() { return accumulator(0); }
  SITU_HOST_DEVICE static accumulator step(accumulator a, element x, int64_t) { return detail::added(a, x); }
  SITU_HOST_DEVICE static accumulator merge(accumulator a, accumulator b) { return detail::added(a, b); }
  template <class A>
  SITU_HOST_DEVICE static result finish(A a, int64_t) {
    return detail::convert_scalar<result>(a);
  }
  template <class X>
  SITU_INLINE static X combine(X const& a, X const& b) {
    return a + b;
  }
};

/// Σ x / n; integers give float. The mean of nothing is NaN.
template <class T>
struct mean : sum<T> {
  static constexpr char const* name = "mean";
  using element = std::conditional_t<floating<T>, compute_t<T>, double>;
  using accumulator = element;
  using result = floating_t<T>;
  SITU_HOST_DEVICE static constexpr accumulator identity() { return accumulator(0); }
  SITU_HOST_DEVICE static accumulator step(accumulator a, element x, int64_t) { return a + x; }
  SITU_HOST_DEVICE static accumulator merge(accumulator a, accumulator b) { return a + b; }
  template <class A>
  SITU_HOST_DEVICE static result finish(A a, int64_t count) {
    return detail::convert_scalar<result>(a / static_cast<A>(count));
  }
};

/// sqrt(Σ x) of squares x.
template <class T>
struct root_of_sum : sum<T> {
  static constexpr char const* name = "norm";
  using result = T;
  template <class A>
  SITU_HOST_DEVICE static result finish(A a, int64_t) {
    return detail::convert_scalar<result>(math::sqrt(a));
  }
};

/// What is no less, and no greater, than any T. Variables, because device code may not call std::numeric_limits.
template <class T>
inline constexpr T greatest_value = std::is_floating_point_v<T> ? std::numeric_limits<T>::infinity() : std::numeric_limits<T>::max();
template <class T>
inline constexpr T least_value = std::is_floating_point_v<T> ? static_cast<T>(-std::numeric_limits<T>::infinity()) : std::numeric_limits<T>::lowest();

/// The smallest element; NaN where there is one.
template <class T>
struct min {
  static constexpr char const* name = "min";
  static constexpr bool empty_is_defined = false;
  using element = std::conditional_t<std::is_same_v<T, bool>, uint8_t, compute_t<T>>;
  using accumulator = element;
  using result = T;
  SITU_HOST_DEVICE static constexpr accumulator identity() {
    return greatest_value<element>;
  }
  SITU_HOST_DEVICE static accumulator step(accumulator a, element x, int64_t) { return math::minimum(a, x); }
  SITU_HOST_DEVICE static accumulator merge(accumulator a, accumulator b) { return math::minimum(a, b); }
  SITU_HOST_DEVICE static result finish(accumulator a, int64_t) { return detail::convert_scalar<result>(a); }
  template <class X>
  SITU_INLINE static X combine(X const& a, X const& b) {
    return math::minimum(a, b);
  }
};

/// The largest element; NaN where there is one.
template <class T>
struct max : min<T> {
  static constexpr char const* name = "max";
  using typename min<T>::element;
  using typename min<T>::accumulator;
  SITU_HOST_DEVICE static constexpr accumulator identity() {
    return least_value<element>;
  }
  SITU_HOST_DEVICE static accumulator step(accumulator a, element x, int64_t) { return math::maximum(a, x); }
  SITU_HOST_DEVICE static accumulator merge(accumulator a, accumulator b) { return math::maximum(a, b); }
  template <class X>
  SITU_INLINE static X combine(X const& a, X const& b) {
    return math::maximum(a, b);
  }
};

/// An element and where it stands in the order of the reduced axes.
template <class T>
struct indexed {
  T value;
  int64_t index;  ///< -1: none yet
};

/// The index of the first largest (Sign = 1) or smallest (Sign = -1) element; the first NaN where there is one.
template <class T, int Sign>
struct arg_extremum {
  static constexpr char const* name = Sign > 0 ? "argmax" : "argmin";
  static constexpr bool order_matters = true;
  static constexpr bool empty_is_defined = false;
  using element = std::conditional_t<std::is_same_v<T, bool>, uint8_t, compute_t<T>>;
  using accumulator = indexed<element>;
  using result = int64_t;
  SITU_HOST_DEVICE static constexpr accumulator identity() { return {element(0), -1}; }
  /// Whether x beats the best so far when it comes later: NaN beats all but NaN.
  SITU_HOST_DEVICE static bool beats(element x, element best) {
    if constexpr (std::is_floating_point_v<element>) {
      bool const x_is_nan = math::isnan(x), best_is_nan = math::isnan(best);
      if (x_is_nan || best_is_nan) return x_is_nan && !best_is_nan;
    }
    return Sign > 0 ? x > best : x < best;
  }
  SITU_HOST_DEVICE static accumulator step(accumulator a, element x, int64_t index) {
    return a.index < 0 || beats(x, a.value) ? accumulator{x, index} : a;
  }
  SITU_HOST_DEVICE static accumulator merge(accumulator a, accumulator b) {
    if (a.index < 0) return b;
    if (b.index < 0) return a;
    if (beats(b.value, a.value)) return b;
    if (beats(a.value, b.value)) return a;
    return a.index < b.index ? a : b;
  }
  SITU_HOST_DEVICE static result finish(accumulator a, int64_t) { return a.index; }
};
template <class T>
using argmax = arg_extremum<T, 1>;
template <class T>
using argmin = arg_extremum<T, -1>;

}  // namespace reducers
}  // namespace situ::inline SITU_ABI

namespace situ::inline SITU_ABI {
namespace detail {

/// The tree of the input, and where the output (operand 0, contiguous) and the inputs lie. Axes [0, kept_rank) are those of the
/// output, in its order; axes [kept_rank, rank) are reduced, and the output's strides along them are 0. Axes are joined
/// inside each of the two groups; an empty group counts as one index. Elements are numbered 0 .. count-1 in the order of the
/// reduced axes: that is the index a reducer sees.
template <class Reducer_, class Tree, int Leaves>
struct ReduceProgram {
  using reducer = Reducer_;
  using tree_type = Tree;
  using value_type = typename Tree::value_type;
  using out_type = typename Reducer_::result;
  static constexpr int leaves = Leaves;
  Tree tree;
  Geometry<Leaves + 1> where;
  int kept_rank;
  int64_t outputs;  ///< elements of the output
  int64_t count;    ///< elements that each of them is reduced from
  explicit ReduceProgram(Tree const& formula) : tree(formula) {}  // a lambda in it can be copied, but not assigned
};

/// Binds the reduction of `e` over the axes whose bit is set in `reduced` to an output at `data`.
template <class Reducer, class E>
void bind_reduction(ReduceProgram<Reducer, tree_of<E>, leaf_count<E>>& program, typename Reducer::result* data, E const& e, unsigned reduced) {
  Shape const& shape = e.shape();
  int const rank = shape.rank();
  constexpr int operands = leaf_count<E> + 1;
  auto& where = program.where;
  where.data[0] = data;
  where.contiguous = false;
  int order[max_rank];
  int kept = 0, at = 0;
  for (int k = 0; k < rank; ++k) {
    if (!(reduced >> k & 1u)) order[at++] = k;
  }
  kept = at;
  for (int k = 0; k < rank; ++k) {
    if (reduced >> k & 1u) order[at++] = k;
  }
  if constexpr (!requires { Reducer::order_matters; }) {  // the reduced axes in the order of memory, by the first input
    bool first = true;
    for_each_leaf(e, [&](auto const& leaf) {
      if (!std::exchange(first, false)) return;
      int64_t strides[max_rank];
      broadcast_strides(leaf.layout(), shape, strides);
      auto magnitude = [&](int axis) { return strides[axis] < 0 ? -strides[axis] : strides[axis]; };
      for (int k = kept + 1; k < rank; ++k) {
        for (int j = k; j > kept && magnitude(order[j]) > magnitude(order[j - 1]); --j) std::swap(order[j], order[j - 1]);
      }
    });
  }
  program.outputs = program.count = 1;
  int64_t step = 1;
  for (int k = kept - 1; k >= 0; --k) {
    where.strides[0][k] = step;
    step *= shape[order[k]];
  }
  for (int k = 0; k < rank; ++k) {
    where.sizes[k] = shape[order[k]];
    (k < kept ? program.outputs : program.count) *= where.sizes[k];
    if (k >= kept) where.strides[0][k] = 0;
  }
  int o = 1;
  for_each_leaf(e, [&](auto const& leaf) {
    where.data[o] = const_cast<void*>(static_cast<void const*>(leaf.data()));
    int64_t strides[max_rank];
    broadcast_strides(leaf.layout(), shape, strides);
    for (int k = 0; k < rank; ++k) where.strides[o][k] = strides[order[k]];
    ++o;
  });
  program.kept_rank = kept;
  where.rank = coalesce(where.sizes, &where.strides[0][0], operands, rank, &program.kept_rank);
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// Whether a reducer remembers where it found its element.
template <class R>
inline constexpr bool finds_index = std::is_same_v<typename R::accumulator, reducers::indexed<typename R::element>>;

/// What parts of a reduction are merged in: sums of floats in double.
template <class R>
struct merged_in {
  using type = std::conditional_t<std::is_same_v<typename R::accumulator, float>, double, typename R::accumulator>;
};
template <class R>
  requires(requires { R::empty_is_defined; } && !R::empty_is_defined)
struct merged_in<R> {
  using type = typename R::accumulator;
};

inline constexpr int64_t strip_columns = 4096;  ///< accumulators that a unit keeps side by side
inline constexpr int64_t strip_rows = 64;       ///< rows added in float before they are added in double
inline constexpr int64_t row_run = 16384;       ///< elements added in float before they are added in double

/// How a reduction is cut. `by_strips`: the kept axis `rank - 1` of the reordered space is the fastest one.
struct ReducePlan {
  bool by_strips;
  int64_t units_per_output;  ///< by rows: parts of one output; by strips: parts of one strip
  int64_t rows_per_unit, run_per_unit;
  int64_t outer, strips, columns;  ///< by strips
  int64_t units() const { return by_strips ? outer * strips * units_per_output : outer * units_per_output; }
};

/// The strided space of a reduction's inputs; operand 0 is not used.
struct ReduceSpace {
  int rank, kept, operands;
  int64_t const* sizes;
  int64_t const* strides;
  void* const* data;
  int element_sizes[max_operands];
  int64_t outputs, count;

  int64_t stride(int o, int axis) const { return strides[o * max_rank + axis]; }

  /// Adds the offset of the `index`-th position of axes [first, last) to every operand's place.
  void advance(char** place, int first, int last, int64_t index) const {
    for (int k = last - 1; k >= first; --k) {
      int64_t const at = index % sizes[k];
      index /= sizes[k];
      if (at == 0) continue;
      for (int o = 1; o < operands; ++o) place[o] += at * stride(o, k) * element_sizes[o];
    }
  }

  ReducePlan plan(int64_t grain) const {
    ReducePlan plan{};
    int const last_kept = kept - 1, last_reduced = rank - 1;
    if (kept > 0 && kept < rank && sizes[last_kept] >= 8) {
      int votes = 0;
      for (int o = 1; o < operands; ++o) {
        if (element_sizes[o] == 0) continue;
        int64_t const a = stride(o, last_kept) < 0 ? -stride(o, last_kept) : stride(o, last_kept);
        int64_t const b = stride(o, last_reduced) < 0 ? -stride(o, last_reduced) : stride(o, last_reduced);
        if (a != 0 && b != 0) votes += a < b ? 1 : -1;
        else if (a != 0) votes += a == 1 ? 1 : 0;
        else if (b != 0) votes -= b == 1 ? 1 : 0;
      }
      plan.by_strips = votes > 0;
    }
    if (plan.by_strips) {
      plan.columns = sizes[last_kept];
      plan.strips = (plan.columns + strip_columns - 1) / strip_columns;
      plan.outer = outputs / plan.columns;
      int64_t const wide = plan.columns < strip_columns ? plan.columns : strip_columns;
      int64_t rows = (grain + wide - 1) / wide;
      if (rows < 2 * strip_rows) rows = 2 * strip_rows;
      if (count * outputs < 2 * grain) rows = count;
      plan.rows_per_unit = rows < count ? rows : (count > 0 ? count : 1);
      plan.units_per_output = count > 0 ? (count + plan.rows_per_unit - 1) / plan.rows_per_unit : 1;
      return plan;
    }
    plan.outer = outputs;
    int64_t const run = kept < rank ? sizes[last_reduced] : 1;
    int64_t const rows = run > 0 ? count / run : 0;
    plan.rows_per_unit = rows > 0 ? rows : 1;
    plan.run_per_unit = run > 0 ? run : 1;
    plan.units_per_output = 1;
    if (count >= 2 * grain && outputs < 64) {  // few outputs: several units each
      if (run >= grain) {
        plan.run_per_unit = (grain + row_run - 1) / row_run * row_run;
        plan.rows_per_unit = 1;
        plan.units_per_output = rows * ((run + plan.run_per_unit - 1) / plan.run_per_unit);
      } else {
        plan.rows_per_unit = (grain + run - 1) / run;
        plan.units_per_output = (rows + plan.rows_per_unit - 1) / plan.rows_per_unit;
      }
    }
    return plan;
  }
};

/// Brings `count` elements from `place` on, `axis` apart, to a form that kernels read. Returns how many were brought.
struct ReduceFeed {
  void* data[max_operands];
  int64_t mask[max_operands];
  alignas(64) unsigned char splats[max_operands][64];

  int64_t bring(ReduceSpace const& space, char* const* place, int axis, int64_t count, unsigned char* scratch) {
    bool gathers = false;
    for (int o = 1; o < space.operands; ++o) {
      int64_t const s = axis >= 0 ? space.stride(o, axis) : 0;
      gathers = gathers || (s != 0 && s != 1 && count > 1);
    }
    if (gathers && count > tile_columns) count = tile_columns;
    for (int o = 1; o < space.operands; ++o) {
      int const size = space.element_sizes[o];
      int64_t const s = axis >= 0 ? space.stride(o, axis) : 0;
      data[o] = place[o];
      mask[o] = -1;
      if (s == 1 || (count == 1 && s != 0)) continue;
      auto const gather = movers_for(size).gather;
      if (s == 0) {
        gather(splats[o], place[o], 0, 64 / (size > 0 ? size : 1));
        data[o] = splats[o], mask[o] = 0;
      } else {
        data[o] = scratch;
        gather(scratch, place[o], s, count);
        scratch += (count * size + 63) / 64 * 64;
      }
    }
    return count;
  }
};

/// The pack code of a reducer that combines values alone.
template <class R, class Tree, int Operands>
struct CombineBody {
  using T = typename Tree::value_type;
  using A = typename R::element;
  static constexpr int widest_lane = widest<Tree> > static_cast<int>(sizeof(A)) ? widest<Tree> : static_cast<int>(sizeof(A));
  static constexpr int unroll = cost_of<Tree> <= 24 ? 4 : 1;

  template <class Isa, int N>
  SITU_INLINE static pack<A, N, Isa> value(Tree const& tree, Run<Operands> const& run, int64_t i) {
    return convert_lanes<A, T, Isa, N>(Evaluator<Isa, N>::value(tree, Source<Isa, N>{run.data, run.mask, i, run.origin}));
  }

  /// The sum of a block, which -ffast-math may not dissolve into one long sum.
  template <class P>
  SITU_INLINE static P apart(P const& block) {
    if constexpr (std::is_floating_point_v<A>) return keep_order(block);
    else return block;
  }

  /// A row of elements to one number.
  struct Row {
    template <class Isa>
    SITU_INLINE static void run(Tree const* tree_, Run<Operands> const* run_, A* result) {
      constexpr int N = Isa::bytes / widest_lane;
      using P = pack<A, N, Isa>;
      Tree const tree = *tree_;
      Run<Operands> run = *run_;
      int64_t i = 0;
      P const none(R::identity());
      P a = none;
      if constexpr (unroll == 4) {
        while (i + 4 * N <= run.count) {  // few additions in a row, then their sum: rounding errors stay small
          int64_t const whole = (run.count - i) / (4 * N) * (4 * N);
          int64_t const stop = i + (whole < 64 * N ? whole : 64 * N);
          P b = none, c = none, d = none, e = none;
          for (; i < stop; i += 4 * N) {
            b = R::combine(b, value<Isa, N>(tree, run, i));
            c = R::combine(c, value<Isa, N>(tree, run, i + N));
            d = R::combine(d, value<Isa, N>(tree, run, i + 2 * N));
            e = R::combine(e, value<Isa, N>(tree, run, i + 3 * N));
          }
          a = R::combine(a, apart(R::combine(R::combine(b, c), R::combine(d, e))));
        }
      }
      while (i + N <= run.count) {
        int64_t const whole = (run.count - i) / N * N;
        int64_t const stop = i + (whole < 64 * N ? whole : 64 * N);
        P b = none;
        for (; i < stop; i += N) b = R::combine(b, value<Isa, N>(tree, run, i));
        a = R::combine(a, apart(b));
      }
      alignas(64) unsigned char buffers[Operands][64];
      if (i < run.count) {
        int const tail = static_cast<int>(run.count - i);
        buffer_tail<N>(std::type_identity<Tree>{}, run, buffers, i, tail);
        A lanes[N];
        value<Isa, N>(tree, run, 0).store(lanes);
        for (int k = tail; k < N; ++k) lanes[k] = R::identity();
        a = R::combine(a, P::load(lanes));
      }
      A lanes[N];
      a.store(lanes);
      for (int half = N / 2; half > 0; half /= 2) {
        for (int k = 0; k < half; ++k) lanes[k] = R::merge(lanes[k], lanes[k + half]);
      }
      *result = lanes[0];
    }
  };

  /// Four rows of elements, or as many as `rows` says, into a strip of accumulators that is padded to whole packs. Rows lie `row_bytes`
  /// apart, operand by operand.
  struct Strip {
    template <class Isa>
    SITU_INLINE static int run(Tree const* tree_, Run<Operands> const* run_, A* strip, int64_t const* row_bytes, int rows) {
      constexpr int N = Isa::bytes / widest_lane;
      using P = pack<A, N, Isa>;
      Tree const tree = *tree_;
      Run<Operands> run = *run_;
      int64_t i = 0;
      if constexpr (unroll == 4) {
        if (rows == 4) {
          Run<Operands> second = run, third = run, fourth = run;
          for (int o = 1; o < Operands; ++o) {
            second.data[o] = static_cast<char*>(run.data[o]) + row_bytes[o];
            third.data[o] = static_cast<char*>(run.data[o]) + 2 * row_bytes[o];
            fourth.data[o] = static_cast<char*>(run.data[o]) + 3 * row_bytes[o];
          }
          for (; i + N <= run.count; i += N) {
            P const ab = R::combine(value<Isa, N>(tree, run, i), value<Isa, N>(tree, second, i));
            P const cd = R::combine(value<Isa, N>(tree, third, i), value<Isa, N>(tree, fourth, i));
            R::combine(P::load(strip + i), R::combine(ab, cd)).store(strip + i);
          }
          if (i >= run.count) return 0;
          // The last columns of four rows are left to the loop below, row by row.
          for (int row = 0; row < 4; ++row) {
            Run<Operands>& at = row == 0 ? run : row == 1 ? second : row == 2 ? third : fourth;
            add_row<Isa, N>(tree, at, strip, i);
          }
          return 0;
        }
      }
      add_row<Isa, N>(tree, run, strip, i);
      return 0;
    }

    template <class Isa, int N>
    SITU_INLINE static void add_row(Tree const& tree, Run<Operands> run, A* strip, int64_t i) {
      using P = pack<A, N, Isa>;
      alignas(64) unsigned char buffers[Operands][64];
      int64_t n = run.count;
      for (;;) {
        for (; i + N <= n; i += N) R::combine(P::load(strip + i), value<Isa, N>(tree, run, i)).store(strip + i);
        if (i >= n) return;
        buffer_tail<N>(std::type_identity<Tree>{}, run, buffers, i, static_cast<int>(n - i));
        strip += i;
        i = 0, n = N;
      }
    }
  };
};

/// The pack code of argmin and argmax: values and, beside them, indices as lanes of the same size.
template <class R, class Tree, int Operands>
struct IndexBody {
  using T = typename Tree::value_type;
  using E = typename R::element;
  using A = std::conditional_t<(sizeof(E) < 4), int32_t, E>;
  using I = signed_of_size<A>;
  static constexpr int sign = std::is_same_v<R, reducers::argmax<T>> ? 1 : -1;
  static constexpr int widest_lane = widest<Tree> > static_cast<int>(sizeof(A)) ? widest<Tree> : static_cast<int>(sizeof(A));

  template <class Isa, int N>
  SITU_INLINE static pack<A, N, Isa> value(Tree const& tree, Run<Operands> const& run, int64_t i) {
    return convert_lanes<A, T, Isa, N>(Evaluator<Isa, N>::value(tree, Source<Isa, N>{run.data, run.mask, i, run.origin}));
  }
  template <class P>
  SITU_INLINE static typename P::mask_type beats(P const& x, P const& best) {
    auto const better = sign > 0 ? x > best : x < best;
    if constexpr (std::is_floating_point_v<A>) return better | (math::isnan(x) & !math::isnan(best));
    else return better;
  }

  struct Row {
    template <class Isa>
    SITU_INLINE static void run(Tree const* tree_, Run<Operands> const* run_, reducers::indexed<A>* result) {
      constexpr int N = Isa::bytes / widest_lane;
      using P = pack<A, N, Isa>;
      using Q = pack<I, N, Isa>;
      Tree const tree = *tree_;
      Run<Operands> run = *run_;
      alignas(64) unsigned char buffers[Operands][64];
      P best(A(0));
      Q where(I(0)), here;
      for (int k = 0; k < N; ++k) here.set(k, static_cast<I>(k));
      bool first = true;
      int64_t i = 0, n = run.count;
      int lanes_used = static_cast<int>(n < N ? n : N);
      for (;;) {
        for (; i + N <= n; i += N) {
          P const x = value<Isa, N>(tree, run, i);
          if (first) best = x, where = here, first = false;
          else {
            auto const m = beats(x, best);
            best = select(m, x, best);
            where = select(m, here, where);
          }
          here = here + Q(static_cast<I>(N));
        }
        if (i >= n) break;
        buffer_tail<N>(std::type_identity<Tree>{}, run, buffers, i, static_cast<int>(n - i));  // repeats lose: they come later
        i = 0, n = N;
      }
      A values[N];
      I indices[N];
      best.store(values);
      where.store(indices);
      reducers::indexed<A> found{values[0], indices[0]};
      for (int k = 1; k < lanes_used; ++k) found = merged(found, {values[k], indices[k]});
      *result = found;
    }
  };

  struct Strip {
    template <class Isa>
    SITU_INLINE static void run(Tree const* tree_, Run<Operands> const* run_, A* bests, I* wheres, I row) {
      constexpr int N = Isa::bytes / widest_lane;
      using P = pack<A, N, Isa>;
      using Q = pack<I, N, Isa>;
      Tree const tree = *tree_;
      Run<Operands> run = *run_;
      alignas(64) unsigned char buffers[Operands][64];
      int64_t i = 0, n = run.count;
      for (;;) {
        for (; i + N <= n; i += N) {
          P const x = value<Isa, N>(tree, run, i), best = P::load(bests + i);
          auto const m = beats(x, best);
          select(row == 0 ? typename P::mask_type(true) : m, x, best).store(bests + i);
          select(row == 0 ? typename P::mask_type(true) : m, Q(row), Q::load(wheres + i)).store(wheres + i);
        }
        if (i >= n) return;
        buffer_tail<N>(std::type_identity<Tree>{}, run, buffers, i, static_cast<int>(n - i));
        bests += i, wheres += i;
        i = 0, n = N;
      }
    }
  };

  static reducers::indexed<A> merged(reducers::indexed<A> a, reducers::indexed<A> b) {
    using Wide = reducers::arg_extremum<A, sign>;
    return Wide::merge(a, b);
  }
};

/// The kernel of a reduction: units [first, last) of its plan. Several units of one output leave their parts in `parts`.
template <class P>
struct ReduceKernel {
  using R = typename P::reducer;
  using Tree = typename P::tree_type;
  static constexpr int operands = P::leaves + 1;
  static constexpr bool indexed = finds_index<R>;
  using Body = std::conditional_t<indexed, IndexBody<R, Tree, operands>, CombineBody<R, Tree, operands>>;
  using Elementwise = ElementwiseBody<Tree, typename Tree::value_type, operands>;
  using A = typename Body::A;
  using Total = typename merged_in<R>::type;
  using I = signed_of_size<A>;
  /// Costly expressions are added row by row, not four at a time: fewer rows keep the rounding error as small.
  static constexpr int64_t block_rows = cost_of<Tree> <= 24 ? strip_rows : strip_rows / 4;

  P program;
  ReducePlan plan;
  Total* parts;  ///< null when every output is one unit

  ReduceSpace space() const {
    ReduceSpace space{program.where.rank, program.kept_rank, operands, program.where.sizes, &program.where.strides[0][0], program.where.data, {},
                      program.outputs, program.count};
    for (int o = 1; o < operands; ++o) space.element_sizes[o] = Elementwise::element_size(o);
    return space;
  }

  void operator()(int64_t first, int64_t last) const {
    ReduceSpace const space = this->space();
    alignas(64) unsigned char fixed[16 * 1024];
    int64_t needed = 64;
    for (int o = 1; o < operands; ++o) needed += tile_columns * space.element_sizes[o] + 64;
    unsigned char* const scratch = needed <= static_cast<int64_t>(sizeof fixed) ? fixed : static_cast<unsigned char*>(::operator new(static_cast<std::size_t>(needed), std::align_val_t{64}));
    ReduceFeed feed;
    if (plan.by_strips) {
      auto* const strip = static_cast<unsigned char*>(::operator new((strip_columns + 64) * (sizeof(A) + sizeof(I) + sizeof(Total)), std::align_val_t{64}));
      for (int64_t unit = first; unit < last; ++unit) run_strip(space, feed, scratch, strip, unit);
      ::operator delete(strip, std::align_val_t{64});
    } else {
      for (int64_t unit = first; unit < last; ++unit) run_rows(space, feed, scratch, unit);
    }
    if (scratch != fixed) ::operator delete(scratch, std::align_val_t{64});
  }

  static Total widened(A a) { return static_cast<Total>(a); }
  static Total widened(reducers::indexed<A> a) { return {static_cast<typename R::element>(a.value), a.index}; }
  static Total empty() { return static_cast<Total>(R::identity()); }
  static Total merged(Total const& a, Total const& b) {
    if constexpr (std::is_same_v<Total, typename R::accumulator>) return R::merge(a, b);
    else return a + b;  // float sums, in double
  }

 private:
  void start(Run<operands>& run, ReduceFeed const& feed, int64_t count) const {
    for (int o = 1; o < operands; ++o) run.data[o] = feed.data[o], run.mask[o] = feed.mask[o];
    run.data[0] = nullptr;
    run.mask[0] = 0;
    run.count = count;
    run.origin = 0;
  }

  void run_rows(ReduceSpace const& space, ReduceFeed& feed, unsigned char* scratch, int64_t unit) const {
    int64_t const output = unit / plan.units_per_output, part = unit % plan.units_per_output;
    int const axis = space.kept < space.rank ? space.rank - 1 : -1;
    int64_t const run_length = axis >= 0 ? space.sizes[axis] : 1;
    int64_t const runs_per_row = run_length > 0 ? (run_length + plan.run_per_unit - 1) / plan.run_per_unit : 1;
    int64_t const rows = run_length > 0 ? space.count / run_length : 0;
    int64_t row = part / runs_per_row * plan.rows_per_unit;
    int64_t const end = row + plan.rows_per_unit < rows ? row + plan.rows_per_unit : rows;
    int64_t const begin = part % runs_per_row * plan.run_per_unit;
    int64_t const stop = begin + plan.run_per_unit < run_length ? begin + plan.run_per_unit : run_length;
    char* base[max_operands];
    for (int o = 1; o < operands; ++o) base[o] = static_cast<char*>(space.data[o]);
    space.advance(base, 0, space.kept, output);
    Total total = empty();
    for (; row < end; ++row) {
      char* place[max_operands];
      for (int o = 1; o < operands; ++o) place[o] = base[o];
      if (axis >= 0) space.advance(place, space.kept, axis, row);
      for (int64_t i = begin; i < stop;) {
        char* from[max_operands];
        for (int o = 1; o < operands; ++o) from[o] = place[o] + (axis >= 0 ? i * space.stride(o, axis) : 0) * space.element_sizes[o];
        int64_t const wanted = stop - i < row_run ? stop - i : row_run;
        int64_t const count = feed.bring(space, from, axis, wanted, scratch);
        Run<operands> run;
        start(run, feed, count);
        if constexpr (indexed) {
          reducers::indexed<A> found;
          dispatch<typename Body::Row>(&program.tree, const_cast<Run<operands> const*>(&run), &found);
          found.index += row * run_length + i;
          total = merged(total, widened(found));
        } else {
          A sum;
          dispatch<typename Body::Row>(&program.tree, const_cast<Run<operands> const*>(&run), &sum);
          total = merged(total, widened(sum));
        }
        i += count;
      }
    }
    deliver(output, part, total);
  }

  void run_strip(ReduceSpace const& space, ReduceFeed& feed, unsigned char* scratch, unsigned char* memory, int64_t unit) const {
    int64_t const part = unit % plan.units_per_output;
    int64_t const strip = unit / plan.units_per_output % plan.strips;
    int64_t const outer = unit / plan.units_per_output / plan.strips;
    int const axis = space.kept - 1;
    int64_t const column = strip * strip_columns;
    int64_t const columns = plan.columns - column < strip_columns ? plan.columns - column : strip_columns;
    int64_t const first = part * plan.rows_per_unit;
    int64_t const end = first + plan.rows_per_unit < space.count ? first + plan.rows_per_unit : space.count;
    auto* const totals = reinterpret_cast<Total*>(memory);
    auto* const values = reinterpret_cast<A*>(memory + (strip_columns + 64) * sizeof(Total));
    auto* const wheres = reinterpret_cast<I*>(memory + (strip_columns + 64) * (sizeof(Total) + sizeof(A)));
    char* base[max_operands];
    for (int o = 1; o < operands; ++o) base[o] = static_cast<char*>(space.data[o]) + column * space.stride(o, axis) * space.element_sizes[o];
    space.advance(base, 0, axis, outer);
    for (int64_t c = 0; c < columns; ++c) totals[c] = empty();
    for (int64_t block = first; block < end; block += block_rows) {
      int64_t const block_end = block + block_rows < end ? block + block_rows : end;
      if constexpr (!indexed) {
        for (int64_t c = 0; c < columns + 64; ++c) values[c] = R::identity();
      } else {
        for (int64_t c = 0; c < columns + 64; ++c) values[c] = A(0), wheres[c] = 0;
      }
      for (int64_t row = block; row < block_end;) {
        int64_t row_bytes[operands] = {};
        int const rows = rows_together(space, row, block_end, row_bytes);
        char* place[max_operands];
        for (int o = 1; o < operands; ++o) place[o] = base[o];
        space.advance(place, space.kept, space.rank, row);
        for (int64_t i = 0; i < columns;) {
          char* from[max_operands];
          for (int o = 1; o < operands; ++o) from[o] = place[o] + i * space.stride(o, axis) * space.element_sizes[o];
          int64_t const count = feed.bring(space, from, axis, columns - i, scratch);
          Run<operands> run;
          start(run, feed, count);
          if constexpr (indexed) {
            dispatch<typename Body::Strip>(&program.tree, const_cast<Run<operands> const*>(&run), values + i, wheres + i, static_cast<I>(row - block));
          } else {
            dispatch<typename Body::Strip>(&program.tree, const_cast<Run<operands> const*>(&run), values + i, static_cast<int64_t const*>(row_bytes), rows);
          }
          i += count;
        }
        row += rows;
      }
      for (int64_t c = 0; c < columns; ++c) {
        if constexpr (indexed) totals[c] = merged(totals[c], widened(reducers::indexed<A>{values[c], wheres[c] + block}));
        else totals[c] = merged(totals[c], widened(values[c]));
      }
    }
    int64_t const output = outer * plan.columns + column;
    for (int64_t c = 0; c < columns; ++c) deliver(output + c, part, totals[c]);
  }

  /// How many rows from `row` on a strip's kernel may take at once, four or one, and how far apart they lie: four where they follow
  /// each other along one axis and every operand is read where it lies.
  static int rows_together(ReduceSpace const& space, int64_t row, int64_t end, int64_t* row_bytes) {
    if (indexed || cost_of<Tree> > 24 || row + 4 > end || space.kept >= space.rank) return 1;
    int const last = space.rank - 1;
    if (row % space.sizes[last] + 4 > space.sizes[last]) return 1;
    for (int o = 1; o < operands; ++o) {
      int64_t const step = space.stride(o, space.kept - 1);
      row_bytes[o] = space.stride(o, last) * space.element_sizes[o];
      if (step != 1 && !(step == 0 && row_bytes[o] == 0)) return 1;
    }
    return 4;
  }

  void deliver(int64_t output, int64_t part, Total const& total) const {
    if (parts) parts[output * plan.units_per_output + part] = total;
    else static_cast<typename R::result*>(program.where.data[0])[output] = R::finish(total, program.count);
  }
};

/// Merges the parts of outputs [first, last), as a balanced tree.
template <class K>
struct MergeKernel {
  typename K::Total* parts;
  typename K::R::result* out;
  int64_t units_per_output, count;

  void operator()(int64_t first, int64_t last) const {
    for (int64_t output = first; output < last; ++output) {
      auto* const mine = parts + output * units_per_output;
      for (int64_t n = units_per_output; n > 1; n = (n + 1) / 2) {
        for (int64_t k = 0; k < n / 2; ++k) mine[k] = K::merged(mine[2 * k], mine[2 * k + 1]);
        if (n % 2) mine[n / 2] = mine[n - 1];
      }
      out[output] = K::R::finish(mine[0], count);
    }
  }
};

}  // namespace detail::cpu

namespace detail {

/// Runs a bound reduction on D, which has the CPU's kernels: one launch, or two when outputs are cut into parts.
template <class D, class P>
void launch_reduce(cpu_kernels, P const& program) {
  using Kernel = cpu::ReduceKernel<P>;
  if (program.outputs == 0) return;
  constexpr int64_t cost = cost_of<typename P::tree_type> + 2;
  constexpr int64_t grain = (int64_t{4000000} / cost + cpu::row_run - 1) / cpu::row_run * cpu::row_run;  // about 40 microseconds
  Kernel kernel{program, {}, nullptr};
  kernel.plan = kernel.space().plan(grain);
  int64_t const units = kernel.plan.units();
  bool const in_parts = kernel.plan.units_per_output > 1;
  Temporary<D> const parts(in_parts ? static_cast<std::size_t>(program.outputs * kernel.plan.units_per_output) * sizeof(typename Kernel::Total) : 0);
  kernel.parts = static_cast<typename Kernel::Total*>(parts.get());
  int64_t const elements_per_unit = program.outputs * program.count / units + 1;
  device_traits<D>::launch(kernel, units, grain / elements_per_unit + 1);
  if (!kernel.parts) return;
  cpu::MergeKernel<Kernel> const merge{kernel.parts, static_cast<typename P::out_type*>(program.where.data[0]), kernel.plan.units_per_output, program.count};
  device_traits<D>::launch(merge, program.outputs, grain / kernel.plan.units_per_output + 1);
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
#if defined(__CUDACC__)

// ---- <situ/ops/cuda/reduce.hpp>
/// Reductions on a GPU: one kernel for each, and a second one that joins parts when few outputs are made from many elements.
///
/// A thread takes runs of neighbouring elements along the innermost reduced axis; the threads that work on one output stand
/// side by side in a block where that axis is the dense one, and across it where a kept axis is, so that accesses coalesce
/// either way. How the work is cut depends on shapes, strides and constants alone, never on the GPU, and nothing is
/// atomic: the results are the same from run to run.


#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

inline constexpr int64_t reduction_blocks = 1024;  // work is cut into parts until there are this many blocks
inline constexpr int chain_length = 128;           // steps of a thread before a floating sum is put aside

/// How the threads of a block are shared out: `lanes` of them work on one output.
struct ReductionTeams {
  int lanes;         ///< a power of 2
  bool side_by_side; ///< the lanes of an output are neighbours; else the outputs are

  SITU_HOST_DEVICE int outputs() const { return block_threads / lanes; }
  SITU_DEVICE int lane() const { return static_cast<int>(side_by_side ? threadIdx.x % static_cast<unsigned>(lanes) : threadIdx.x / static_cast<unsigned>(outputs())); }
  SITU_DEVICE int output() const { return static_cast<int>(side_by_side ? threadIdx.x / static_cast<unsigned>(lanes) : threadIdx.x % static_cast<unsigned>(outputs())); }
  SITU_DEVICE int stride() const { return side_by_side ? 1 : outputs(); }
};

/// Joins the accumulators of a team, in an order that is always the same; lane 0 returns the whole. For all threads of a block.
template <class R>
SITU_DEVICE typename R::accumulator join(ReductionTeams const& teams, typename R::accumulator mine) {
  __shared__ typename R::accumulator parts[block_threads];
  int const lane = teams.lane(), stride = teams.stride();
  int const me = static_cast<int>(threadIdx.x);
  parts[me] = mine;
#pragma unroll 1
  for (int half = teams.lanes / 2; half > 0; half /= 2) {
    __syncthreads();
    if (lane < half) {
      mine = R::merge(mine, parts[me + half * stride]);
      parts[me] = mine;
    }
  }
  return mine;
}

/// An axis of a walk: its extent, divided by quickly where 32 bits suffice.
struct WalkedAxis {
  int64_t size;
  FastDivisor fast;
};

template <class P>
struct ReduceArguments {
  static constexpr int inputs = P::leaves;
  typename P::tree_type tree;
  void const* data[inputs + 1];
  int64_t strides[inputs + 1][max_rank];  ///< kept axes, then reduced ones; of input o - 1
  WalkedAxis sizes[max_rank];
  int kept_rank, run_axis;  ///< run_axis is the last one: -1 when nothing is reduced
  bool wide;                ///< numbers of rows or outputs exceed 31 bits
  int64_t outputs, count;
  int64_t run, runs;        ///< the innermost reduced extent, and how many threads' worth of lanes it is
  int64_t steps;            ///< of all lanes together, for one output
  int64_t steps_per_part;
  int64_t rows_per_stride, runs_per_stride;  ///< `lanes` steps further
  int parts;
  ReductionTeams teams;
  uint64_t vectors;  ///< bit o: input o - 1 takes 16-byte accesses
  void* result;      ///< outputs, or accumulators of `parts` parts for each output
  explicit ReduceArguments(typename P::tree_type const& tree) : tree(tree) {}
};

/// How many neighbouring elements a thread takes at once.
template <class P>
inline constexpr int reduction_lanes = P::leaves == 0 ? 4 : 16 / widest_input<typename P::tree_type>;

template <class A>
struct ReduceSource {
  A const& arguments;
  int64_t const* offsets;
  int count;
  template <class T, int K, int N>
  SITU_DEVICE __forceinline__ void load(Lanes<T, N>& lanes) const {
    T const* const from = static_cast<T const*>(arguments.data[K + 1]) + offsets[K + 1];
    if (count == N && (arguments.vectors >> (K + 1) & 1)) lanes.load(from);
    else lanes.load_each(from, arguments.run_axis < 0 ? 0 : arguments.strides[K + 1][arguments.run_axis], count);
  }
};

/// Adds to the offsets of all inputs what index `i` of the axes [first, last) does, the last one running fastest.
template <class A>
SITU_DEVICE __forceinline__ void walk(A const& arguments, int first, int last, int64_t i, int64_t* offsets) {
#pragma unroll 1
  for (int k = last - 1; k >= first; --k) {
    int64_t q;
    if (arguments.wide) q = i / arguments.sizes[k].size;
    else q = arguments.sizes[k].fast.quotient(static_cast<uint32_t>(i));
    int64_t const place = i - q * arguments.sizes[k].size;
    i = q;
#pragma unroll
    for (int o = 1; o <= A::inputs; ++o) offsets[o] += arguments.strides[o][k] * place;
  }
}

template <class P>
__global__ void __launch_bounds__(block_threads) reduce_kernel(const __grid_constant__ ReduceArguments<P> arguments) {
  using R = typename P::reducer;
  using Tree = typename P::tree_type;
  using Accumulator = typename R::accumulator;
  constexpr int N = reduction_lanes<P>, inputs = P::leaves;
  constexpr bool floats = std::is_floating_point_v<Accumulator>;
  constexpr int rounds = N > 4 || inputs > 3 ? 1 : 2;
  ReductionTeams const teams = arguments.teams;
  int const lane = teams.lane();
  int64_t const output = static_cast<int64_t>(blockIdx.x) * teams.outputs() + teams.output();

  Accumulator total = R::identity(), sum = R::identity();
  if (output < arguments.outputs) {
    int64_t kept[inputs + 1] = {};
    walk(arguments, 0, arguments.kept_rank, output, kept);
    int64_t step = static_cast<int64_t>(blockIdx.y) * arguments.steps_per_part;
    int64_t const end = step + arguments.steps_per_part < arguments.steps ? step + arguments.steps_per_part : arguments.steps;
    step += lane;
    int64_t row = 0, run = step;
    if (arguments.runs < arguments.steps) row = step / arguments.runs, run = step - row * arguments.runs;
    for (int chain = 1; step < end; ++chain) {
      Held<Tree, N> held[rounds];
      int counts[rounds];
      int64_t first[rounds];
#pragma unroll
      for (int r = 0; r < rounds; ++r) {
        int64_t offsets[inputs + 1];
        int64_t const left = step < end ? arguments.run - run * N : 0;
        counts[r] = left < N ? static_cast<int>(left) : N;
        first[r] = row * arguments.run + run * N;
#pragma unroll
        for (int o = 1; o <= inputs; ++o) offsets[o] = kept[o] + (arguments.run_axis < 0 ? 0 : arguments.strides[o][arguments.run_axis] * (run * N));
        if (step < end && row > 0) walk(arguments, arguments.kept_rank, arguments.run_axis, row, offsets);
        hold(held[r], ReduceSource<ReduceArguments<P>>{arguments, offsets, counts[r]});
        step += teams.lanes;
        row += arguments.rows_per_stride;
        run += arguments.runs_per_stride;
        if (run >= arguments.runs && arguments.runs < arguments.steps) run -= arguments.runs, ++row;
      }
#pragma unroll
      for (int r = 0; r < rounds; ++r) {
#pragma unroll
        for (int j = 0; j < N; ++j) {
          auto const x = convert_scalar<typename R::element>(Evaluator::value(arguments.tree, held[r], j, first[r]));
          if (j < counts[r]) sum = R::step(sum, x, first[r] + j);
        }
      }
      if constexpr (floats) {
        if (chain % chain_length == 0) {
          total = R::merge(total, sum);
          sum = R::identity();
        }
      }
    }
    if constexpr (floats) total = R::merge(total, sum);
    else total = sum;
  }

  total = join<R>(teams, total);
  if (lane != 0 || output >= arguments.outputs) return;
  if (arguments.parts > 1) static_cast<Accumulator*>(arguments.result)[output * arguments.parts + blockIdx.y] = total;
  else static_cast<typename P::out_type*>(arguments.result)[output] = R::finish(total, arguments.count);
}

template <class R>
struct JoinArguments {
  typename R::accumulator const* parts;
  typename R::result* result;
  int64_t outputs, count;
  int parts_per_output;
  ReductionTeams teams;
};

/// The second launch: the parts of every output become one.
template <class R>
__global__ void __launch_bounds__(block_threads) join_kernel(const __grid_constant__ JoinArguments<R> arguments) {
  ReductionTeams const teams = arguments.teams;
  int64_t const output = static_cast<int64_t>(blockIdx.x) * teams.outputs() + teams.output();
  typename R::accumulator total = R::identity();
  if (output < arguments.outputs) {
#pragma unroll 1
    for (int k = teams.lane(); k < arguments.parts_per_output; k += teams.lanes) {
      total = R::merge(total, arguments.parts[output * arguments.parts_per_output + k]);
    }
  }
  total = join<R>(teams, total);
  if (teams.lane() == 0 && output < arguments.outputs) arguments.result[output] = R::finish(total, arguments.count);
}

/// The least power of 2 that is no less than n, at most `limit`.
inline int power_of_2_above(int64_t n, int limit) {
  int result = 1;
  while (result < limit && result < n) result *= 2;
  return result;
}

/// Orders the reduced axes by the largest stride that an input has along them, outer first, and joins them again. For reducers
/// that do not ask for indices.
inline void order_reduced_axes(int64_t* sizes, int64_t* strides, int operands, int kept, int& rank) {
  auto stride = [strides](int o, int k) -> int64_t& { return strides[o * max_rank + k]; };
  auto reach = [&](int k) {
    int64_t result = 0;
    for (int o = 1; o < operands; ++o) {
      int64_t const s = stride(o, k) < 0 ? -stride(o, k) : stride(o, k);
      if (s > result) result = s;
    }
    return result;
  };
  for (int k = kept + 1; k < rank; ++k) {
    for (int j = k; j > kept && reach(j) > reach(j - 1); --j) {
      std::swap(sizes[j], sizes[j - 1]);
      for (int o = 0; o < operands; ++o) std::swap(stride(o, j), stride(o, j - 1));
    }
  }
  int in_place = 0;  // the order stands; neighbours are only joined
  if (rank > kept) rank = kept + coalesce(sizes + kept, strides + kept, operands, rank - kept, &in_place);
}

/// Whether the innermost reduced axis is denser in memory than the innermost kept one, for most inputs.
inline bool reduced_axis_is_dense(int64_t const* strides, int operands, int kept, int rank) {
  if (kept == 0 || rank == kept) return true;
  int votes = 0;
  for (int o = 1; o < operands; ++o) {
    int64_t along = strides[o * max_rank + rank - 1], across = strides[o * max_rank + kept - 1];
    along = along < 0 ? -along : along;
    across = across < 0 ? -across : across;
    if (along == 0) continue;
    votes += across == 0 || along <= across ? 1 : -1;
  }
  return votes >= 0;
}

template <class A>
concept reports_an_index = requires(A a) { a.index; };

/// Gives device memory back when the work that uses it has been enqueued.
template <class D>
struct Scratch {
  void* memory;
  std::size_t bytes;
  explicit Scratch(std::size_t n) : memory(device_traits<D>::allocate(n)), bytes(n) {}
  Scratch(Scratch const&) = delete;
  Scratch& operator=(Scratch const&) = delete;
  ~Scratch() { device_traits<D>::deallocate(memory, bytes); }
};

/// Everything of the arguments that does not depend on memory, and the blocks to launch.
template <class P>
dim3 plan_reduction(P const& program, ReduceArguments<P>& arguments) {
  using R = typename P::reducer;
  constexpr int N = reduction_lanes<P>, operands = P::leaves + 1;
  auto where = program.where;
  int const kept = program.kept_rank;
  if constexpr (!reports_an_index<typename R::accumulator> && P::leaves > 0) {
    order_reduced_axes(where.sizes, &where.strides[0][0], operands, kept, where.rank);
  }
  int const rank = where.rank;
  bool const reduces = rank > kept && program.count > 0;
  arguments.kept_rank = kept;
  arguments.run_axis = rank > kept ? rank - 1 : -1;
  arguments.outputs = program.outputs;
  arguments.count = program.count;
  arguments.run = program.count == 0 ? 0 : reduces ? where.sizes[rank - 1] : 1;
  arguments.runs = (arguments.run + N - 1) / N;
  int64_t const rows = program.count == 0 ? 0 : program.count / arguments.run;
  arguments.steps = arguments.runs * rows;
  arguments.wide = program.outputs >= (int64_t{1} << 31) || rows >= (int64_t{1} << 31);
  arguments.vectors = 0;
  for (int k = 0; k < rank; ++k) {
    arguments.sizes[k].size = where.sizes[k];
    if (where.sizes[k] > 0 && where.sizes[k] < (int64_t{1} << 31)) arguments.sizes[k].fast = FastDivisor::of(where.sizes[k]);
    else arguments.sizes[k].fast = FastDivisor::of(1);
    for (int o = 0; o < operands; ++o) arguments.strides[o][k] = where.strides[o][k];
  }
  for (int o = 1; o < operands; ++o) {
    auto const bytes = static_cast<std::uintptr_t>(N * input_size(std::type_identity<typename P::tree_type>{}, o - 1));
    arguments.data[o] = where.data[o];
    bool fits = reduces && where.strides[o][rank - 1] == 1 && reinterpret_cast<std::uintptr_t>(where.data[o]) % bytes == 0;
    for (int k = 0; k + 1 < rank; ++k) fits = fits && where.strides[o][k] % N == 0;
    if (fits) arguments.vectors |= uint64_t{1} << o;
  }
  arguments.data[0] = nullptr;

  ReductionTeams& teams = arguments.teams;
  teams.side_by_side = reduced_axis_is_dense(&where.strides[0][0], operands, kept, rank);
  if (teams.side_by_side) {  // four steps for each lane, or one where there are few outputs
    teams.lanes = power_of_2_above((arguments.steps + 3) / 4, block_threads);
    int const most = power_of_2_above(arguments.steps, block_threads);
    while (teams.lanes < most && program.outputs * teams.lanes < reduction_blocks * block_threads) teams.lanes *= 2;
  } else {
    teams.lanes = block_threads / power_of_2_above(program.outputs, 32);
  }
  int64_t const blocks = (program.outputs + teams.outputs() - 1) / teams.outputs();
  int64_t parts = blocks < reduction_blocks ? (reduction_blocks + blocks - 1) / blocks : 1;
  int64_t const most_parts = arguments.steps / (4 * teams.lanes);
  if (parts > most_parts) parts = most_parts > 1 ? most_parts : 1;
  arguments.steps_per_part = (arguments.steps + parts - 1) / parts;
  arguments.parts = static_cast<int>(parts);
  arguments.rows_per_stride = arguments.runs > 0 && arguments.runs < arguments.steps ? teams.lanes / arguments.runs : 0;
  arguments.runs_per_stride = teams.lanes - arguments.rows_per_stride * arguments.runs;
  return dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(parts));
}

}  // namespace detail::cuda

namespace detail {
inline namespace SITU_ABI_COMPILER {

/// Runs a bound reduction on D, which has CUDA's kernels: one launch, or two; enqueued on the device's current stream.
template <class D, class P>
void launch_reduce(cuda_kernels, P const& program) {
  using R = typename P::reducer;
  using Accumulator = typename R::accumulator;
  static_assert(P::leaves < 63, "situ: a reduction reads at most 62 tensors; evaluate a part of its input first");
  if (program.outputs == 0) return;
  constexpr int device = device_traits<D>::ordinal;
  cuda::ReduceArguments<P> arguments(program.tree);
  dim3 const blocks = cuda::plan_reduction(program, arguments);
  arguments.result = program.where.data[0];
  if (arguments.parts == 1) return cuda::launch(device, R::name, cuda::reduce_kernel<P>, blocks, cuda::block_threads, arguments);

  cuda::Scratch<D> const scratch(static_cast<std::size_t>(program.outputs) * static_cast<std::size_t>(arguments.parts) * sizeof(Accumulator));
  arguments.result = scratch.memory;
  cuda::launch(device, R::name, cuda::reduce_kernel<P>, blocks, cuda::block_threads, arguments);
  cuda::JoinArguments<R> join;
  join.parts = static_cast<Accumulator const*>(scratch.memory);
  join.result = static_cast<typename R::result*>(program.where.data[0]);
  join.outputs = program.outputs;
  join.count = program.count;
  join.parts_per_output = arguments.parts;
  join.teams = {cuda::power_of_2_above(arguments.parts, cuda::block_threads), true};
  unsigned const join_blocks = static_cast<unsigned>((program.outputs + join.teams.outputs() - 1) / join.teams.outputs());
  cuda::launch(device, R::name, cuda::join_kernel<R>, dim3(join_blocks), cuda::block_threads, join);
}

}  // namespace SITU_ABI_COMPILER
}  // namespace detail
}  // namespace situ::inline SITU_ABI

#endif
#endif

namespace situ::inline SITU_ABI {

/// Keeps reduced axes with extent 1: sum(x, 0, keepdim).
struct keepdim_t {
  explicit constexpr keepdim_t(int) {}  // not from {}: sum(x, {}) names no axes
};
inline constexpr keepdim_t keepdim{0};

namespace detail {

#if !defined(__CUDACC__)
inline namespace SITU_ABI_COMPILER {
template <class D, class P>
void launch_reduce(cuda_kernels, P const&) {
  static_assert(compiled_by_nvcc<P>, "situ: reducing_on_Cuda_needs_nvcc: this file is not compiled by nvcc; name it .cu, or move the tensor to the host");
}
}  // namespace SITU_ABI_COMPILER
#endif

/// The axes as a set of bits. Throws ShapeError.
inline unsigned axis_bits(Shape const& axes, Shape const& shape, char const* who) {
  unsigned bits = 0;
  for (int64_t axis : axes) {
    unsigned const bit = 1u << checked_axis(axis, shape.rank(), shape, who);
    if (bits & bit) fail<ShapeError>(who, ": axis ", axis, " appears twice in ", axes);
    bits |= bit;
  }
  return bits;
}

template <class Reducer, class E>
auto reduce(E const& e, unsigned reduced, bool keep) {
  using D = result_device_t<device_of<E>>;
  Shape shape, source = e.shape();
  int64_t count = 1;
  for (int k = 0; k < source.rank(); ++k) {
    bool const gone = reduced >> k & 1u;
    if (gone) count *= source[k];
    if (!gone) shape.push_back(source[k]);
    else if (keep) shape.push_back(1);
  }
  auto result = Tensor<typename Reducer::result, D>::uninitialized(shape, Reducer::name);
  if constexpr (!Reducer::empty_is_defined) {
    if (count == 0 && result.size() > 0) {
      fail<ShapeError>(Reducer::name, ": shape ", source, " has no elements along the reduced axes: the extremum of nothing is not defined");
    }
  }
  ReduceProgram<Reducer, tree_of<E>, leaf_count<E>> program(lower<0>(e));
  bind_reduction(program, result.data(), e, reduced);
  launch_reduce<D>(typename device_traits<D>::kernels{}, program);
  return result;
}

/// x in a floating type: x itself when it has one.
template <class E>
decltype(auto) as_floating(E const& e) {
  if constexpr (floating<value_of<E>>) return (e);
  else return cast<float>(e);
}

inline unsigned all_axes(Shape const& shape) { return (1u << shape.rank()) - 1u; }

}  // namespace detail

#define SITU_REDUCTION(NAME, REDUCER, INPUT)                                                            \
  template <class E>                                                                                    \
    requires expression<E>                                                                              \
  auto NAME(E const& x) {                                                                               \
    return detail::reduce<reducers::REDUCER<value_of<decltype(INPUT)>>>(INPUT, detail::all_axes(x.shape()), false); \
  }                                                                                                     \
  template <class E>                                                                                    \
    requires expression<E>                                                                              \
  auto NAME(E const& x, keepdim_t) {                                                                    \
    return detail::reduce<reducers::REDUCER<value_of<decltype(INPUT)>>>(INPUT, detail::all_axes(x.shape()), true); \
  }                                                                                                     \
  template <class E>                                                                                    \
    requires expression<E>                                                                              \
  auto NAME(E const& x, Shape const& axes) {                                                            \
    return detail::reduce<reducers::REDUCER<value_of<decltype(INPUT)>>>(INPUT, detail::axis_bits(axes, x.shape(), #NAME), false); \
  }                                                                                                     \
  template <class E>                                                                                    \
    requires expression<E>                                                                              \
  auto NAME(E const& x, Shape const& axes, keepdim_t) {                                                 \
    return detail::reduce<reducers::REDUCER<value_of<decltype(INPUT)>>>(INPUT, detail::axis_bits(axes, x.shape(), #NAME), true); \
  }

/// Σ x. Integers and bools give int64; 16-bit floats are summed in float. The sum of nothing is 0.
SITU_REDUCTION(sum, sum, x)
/// Σ x / n. Integers give float. The mean of nothing is NaN.
SITU_REDUCTION(mean, mean, x)
/// The smallest element.
SITU_REDUCTION(min, min, x)
/// The largest element.
SITU_REDUCTION(max, max, x)
/// The index of the first smallest element along the reduced axes, in row-major order; int64.
SITU_REDUCTION(argmin, argmin, x)
/// The index of the first largest element along the reduced axes, in row-major order; int64.
SITU_REDUCTION(argmax, argmax, x)
/// The Euclidean norm, sqrt(Σ x²). Integers give float.
SITU_REDUCTION(norm, root_of_sum, square(detail::as_floating(x)))
#undef SITU_REDUCTION

}  // namespace situ::inline SITU_ABI

namespace situ::inline SITU_ABI {
namespace functions {

/// |a - b| <= atol + rtol * |b|, or equal (infinities); see situ::isclose.
template <bool EqualNan>
struct isclose {
  static constexpr char const* name = "isclose";
  static constexpr int cost = 6;
  template <class A, class B, class R, class L>
  struct types {
    using result = bool;
    using common = floating_t<promote_t<A, B>>;
    template <int>
    using operand = common;
  };
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static auto value(X const& a, X const& b, X const& rtol, X const& atol) {
    auto const close = ((math::abs(a - b) <= atol + rtol * math::abs(b)) & math::isfinite(b) & math::isfinite(a)) | (a == b);
    if constexpr (EqualNan) return close | (math::isnan(a) & math::isnan(b));
    else return close;
  }
};

}  // namespace functions

/// What isclose and allclose allow; the defaults are PyTorch's and NumPy's.
struct tolerance {
  double rtol = 1e-5;
  double atol = 1e-8;
  bool equal_nan = false;
};

namespace detail {
template <class E>
auto all_of(E const& e) -> bool {
  return e.size() == 0 || min(e).item();
}
template <bool EqualNan, class A, class B>
auto close_map(A const& a, B const& b, tolerance const& allowed) {
  using T = floating_t<promote_t<value_of<A>, value_of<B>>>;
  using C = compute_t<T>;
  return make_map(functions::isclose<EqualNan>{}, a, b, Constant<T>{static_cast<C>(allowed.rtol)}, Constant<T>{static_cast<C>(allowed.atol)});
}
}  // namespace detail

/// Where |a - b| <= atol + rtol * |b|; equal infinities are close, NaN to nothing. Integers are compared as float.
template <class A, class B>
  requires(expression<A> && expression<B> && on_same_device<A, B>)
auto isclose(A const& a, B const& b, tolerance const& allowed = {}) {
  auto const close = detail::close_map<false>(a, b, allowed);
  return close || (isnan(a) && isnan(b) && allowed.equal_nan);
}

/// Whether all elements are close, after broadcasting; true for no elements. Waits for the device.
template <class A, class B>
  requires(expression<A> && expression<B> && on_same_device<A, B>)
bool allclose(A const& a, B const& b, tolerance const& allowed = {}) {
  return allowed.equal_nan ? detail::all_of(detail::close_map<true>(a, b, allowed)) : detail::all_of(detail::close_map<false>(a, b, allowed));
}

/// Whether shapes and all elements are equal; NaN equals nothing. Waits for the device.
template <class A, class B>
  requires(expression<A> && expression<B> && on_same_device<A, B>)
bool equal(A const& a, B const& b) {
  return a.shape() == b.shape() && detail::all_of(a == b);
}

template <class A, class B, class Error = error::operands_on_different_devices__move_one_with_to<device_of<A>, device_of<B>>>
  requires(expression<A> && expression<B> && !on_same_device<A, B>)
void isclose(A const&, B const&, tolerance const& = {}) = delete;
template <class A, class B, class Error = error::operands_on_different_devices__move_one_with_to<device_of<A>, device_of<B>>>
  requires(expression<A> && expression<B> && !on_same_device<A, B>)
void allclose(A const&, B const&, tolerance const& = {}) = delete;
template <class A, class B, class Error = error::operands_on_different_devices__move_one_with_to<device_of<A>, device_of<B>>>
  requires(expression<A> && expression<B> && !on_same_device<A, B>)
void equal(A const&, B const&) = delete;

}  // namespace situ::inline SITU_ABI

// ---- <situ/ops/random.hpp>
/// Random numbers: Philox 4x32-10, keyed by the seed, with the element's index and the number of the call as counter.
///
/// The same seed gives the same numbers on every device and for any number of threads: integers and uniforms bit for bit, normals
/// within a few ULP.
/// Source    Salmon, Moraes, Dror & Shaw 2011, doi:10.1145/2063384.2063405.


namespace situ::inline SITU_ABI {

/// A stream of random numbers: a seed, and how many calls have drawn from it.
class Generator {
 public:
  explicit Generator(uint64_t seed = 0) : seed_(seed) {}
  uint64_t seed() const { return seed_; }
  /// Starts over with another seed.
  void manual_seed(uint64_t seed) {
    seed_ = seed;
    __atomic_store_n(&calls_, uint64_t{0}, __ATOMIC_RELAXED);
  }
  /// The number of this call; for those who draw.
  uint64_t next_call() { return __atomic_fetch_add(&calls_, uint64_t{1}, __ATOMIC_RELAXED); }

 private:
  uint64_t seed_;
  uint64_t calls_ = 0;
};

namespace detail {

SITU_PROCESS_STATE Generator& default_generator() {
  static Generator generator;
  return generator;
}

struct PhiloxWords {
  uint32_t word[4];
};

/// Ten rounds of Philox 4x32.
SITU_HOST_DEVICE inline PhiloxWords philox(uint64_t key, uint64_t index, uint64_t call) {
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  uint32_t c0 = static_cast<uint32_t>(index), c1 = static_cast<uint32_t>(index >> 32);
  uint32_t c2 = static_cast<uint32_t>(call), c3 = static_cast<uint32_t>(call >> 32);
  for (int round = 0; round < 10; ++round) {
    uint64_t const p0 = uint64_t{0xD2511F53u} * c0, p1 = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(p1);
    c2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(p0);
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

/// [0, 1): 24 bits for float and the 16-bit types, 53 for double.
template <class T>
SITU_HOST_DEVICE compute_t<T> uniform_from(PhiloxWords const& words) {
  if constexpr (std::is_same_v<T, double>) {
    uint64_t const bits = (uint64_t{words.word[0]} << 32 | words.word[1]) >> 11;
    return static_cast<double>(bits) * (1.0 / 9007199254740992.0);
  } else {
    constexpr int keep = std::is_same_v<T, float> ? 24 : std::is_same_v<T, float16> ? 11 : 8;  // never rounds up to 1
    return static_cast<float>(words.word[0] >> (32 - keep)) * (1.f / static_cast<float>(1 << keep));
  }
}

template <class T>
struct uniform_at {
  uint64_t seed, call;
  SITU_HOST_DEVICE T operator()(int64_t i) const {
    return convert_scalar<T>(uniform_from<T>(philox(seed, static_cast<uint64_t>(i), call)));
  }
};
/// Box-Muller, from a radius in (0, 1] and an angle.
template <class T>
struct normal_at {
  uint64_t seed, call;
  SITU_HOST_DEVICE T operator()(int64_t i) const {
    using C = std::conditional_t<std::is_same_v<T, double>, double, float>;
    PhiloxWords const words = philox(seed, static_cast<uint64_t>(i), call);
    C radius, angle;
    if constexpr (std::is_same_v<T, double>) {
      radius = 1.0 - uniform_from<double>(words);
      angle = uniform_from<double>({{words.word[2], words.word[3], 0, 0}});
    } else {
      radius = (static_cast<float>(words.word[0] >> 8) + 1.f) * (1.f / 16777216.f);
      angle = static_cast<float>(words.word[1] >> 8) * (1.f / 16777216.f);
    }
    C const two_pi = static_cast<C>(6.28318530717958647692);
    return convert_scalar<T>(math::sqrt(C(-2) * math::log(radius)) * math::cos(two_pi * angle));
  }
};
template <class T>
struct whole_number_at {
  uint64_t seed, call;
  int64_t low;
  uint64_t span;
  SITU_HOST_DEVICE T operator()(int64_t i) const {
    PhiloxWords const words = philox(seed, static_cast<uint64_t>(i), call);
    uint64_t const bits = uint64_t{words.word[0]} << 32 | words.word[1];
    // The high word of bits * span: each value within 2^-64 of its share.
    uint64_t const low_product = (bits & 0xffffffffu) * (span & 0xffffffffu);
    uint64_t const middle0 = (bits >> 32) * (span & 0xffffffffu) + (low_product >> 32);
    uint64_t const middle1 = (bits & 0xffffffffu) * (span >> 32) + (middle0 & 0xffffffffu);
    uint64_t const drawn = (bits >> 32) * (span >> 32) + (middle0 >> 32) + (middle1 >> 32);
    return convert_scalar<T>(static_cast<int64_t>(static_cast<uint64_t>(low) + drawn));
  }
};

}  // namespace detail

/// Seeds the default generator, which draws where none is given.
inline void manual_seed(uint64_t seed) { detail::default_generator().manual_seed(seed); }

/// Uniform in [0, 1).
template <element T = float, device D = Cpu>
  requires floating<T>
Tensor<T, D> rand(Shape const& shape, Generator& generator, D = {}) {
  return detail::generate<T, D>(shape, detail::uniform_at<T>{generator.seed(), generator.next_call()}, "rand");
}
template <element T = float, device D = Cpu>
  requires floating<T>
Tensor<T, D> rand(Shape const& shape, D device = {}) {
  return rand<T>(shape, detail::default_generator(), device);
}

/// Normal with mean 0 and standard deviation 1.
template <element T = float, device D = Cpu>
  requires floating<T>
Tensor<T, D> randn(Shape const& shape, Generator& generator, D = {}) {
  return detail::generate<T, D>(shape, detail::normal_at<T>{generator.seed(), generator.next_call()}, "randn");
}
template <element T = float, device D = Cpu>
  requires floating<T>
Tensor<T, D> randn(Shape const& shape, D device = {}) {
  return randn<T>(shape, detail::default_generator(), device);
}

/// Integers uniform in [low, high). Throws ShapeError unless low < high.
template <element T = int64_t, device D = Cpu>
Tensor<T, D> randint(int64_t low, int64_t high, Shape const& shape, Generator& generator, D = {}) {
  if (low >= high) detail::fail<ShapeError>("randint: from ", low, " to ", high, ": there is no integer in between; low must be less than high");
  uint64_t const span = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  return detail::generate<T, D>(shape, detail::whole_number_at<T>{generator.seed(), generator.next_call(), low, span}, "randint");
}
template <element T = int64_t, device D = Cpu>
Tensor<T, D> randint(int64_t low, int64_t high, Shape const& shape, D device = {}) {
  return randint<T>(low, high, shape, detail::default_generator(), device);
}

}  // namespace situ::inline SITU_ABI

// ---- <situ/io.hpp>
/// Files.


// ---- <situ/io/npy.hpp>
/// NumPy's files: a tensor from a .npy file and back.

#include <cstdint>
#include <cstring>
#include <string>


// ---- <situ/io/detail/file.hpp>
/// Files as bytes: an input whose size is known before anything is allocated, an output that appears whole or not at
/// all.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>


namespace situ::inline SITU_ABI {
namespace detail {

/// What an error message begins with: the function that was called and the file it was given.
struct FileContext {
  char const* who;
  char const* path;

  [[noreturn]] SITU_NOINLINE void fail(std::string const& what) const {
    throw IoError(text(who, ": ", path, ": ", what));
  }
  [[noreturn]] SITU_NOINLINE void fail(char const* what, int error, char const* needed) const {
    fail(text(what, ": ", std::strerror(error), "; ", needed));
  }
};

inline char const* kind_of_file(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

class FileDescriptor {
public:
  explicit FileDescriptor(int fd) : fd_(fd) {}
  ~FileDescriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  FileDescriptor(FileDescriptor const&) = delete;
  FileDescriptor& operator=(FileDescriptor const&) = delete;

  int get() const { return fd_; }
  int release() {
    int const fd = fd_;
    fd_ = -1;
    return fd;
  }

private:
  int fd_;
};

/// An ordinary file, open for reading.
///
/// Throws    IoError if it cannot be opened or is a folder, pipe, socket or device; opening never waits.
class InputFile {
public:
  explicit InputFile(FileContext const& context)
      : context_(context), file_(::open(context.path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)) {
    if (file_.get() < 0) context.fail("cannot be opened", errno, "a readable file is needed");
    struct ::stat status{};
    if (::fstat(file_.get(), &status) != 0) context.fail("cannot be examined", errno, "a readable file is needed");
    if (!S_ISREG(status.st_mode))
      context.fail(text("is not an ordinary file: ", kind_of_file(status.st_mode), " found; a regular file is needed"));
    size_ = static_cast<int64_t>(status.st_size);
  }

  int64_t size() const { return size_; }

  /// Reads `bytes` bytes from `offset` on.
  ///
  /// Throws    IoError if the file has become shorter or the system reports an error.
  void read(void* to, int64_t offset, int64_t bytes) const {
    auto* at = static_cast<unsigned char*>(to);
    while (bytes > 0) {
      ssize_t const got = ::pread(file_.get(), at, static_cast<size_t>(bytes), static_cast<off_t>(offset));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) context_.fail("cannot be read", errno, "a readable file is needed");
      if (got == 0)
        context_.fail(text("became shorter while it was read: it ends at byte ", offset, "; ", offset + bytes,
                           " bytes are needed"));
      at += got, offset += got, bytes -= got;
    }
  }

private:
  FileContext context_;
  FileDescriptor file_;
  int64_t size_ = 0;
};

/// Writes a file through a temporary one in the same folder that is renamed into place: readers see the old file or
/// the whole new one. An existing file keeps its permissions, a symbolic link is followed.
///
/// Throws    IoError if the folder cannot be written, the disk is full, or the name belongs to something that is not
///           an ordinary file. The old file is then as it was, and the temporary one is removed.
class OutputFile {
public:
  explicit OutputFile(FileContext const& context) : context_(context), target_(context.path), file_(-1) {
    struct ::stat status{};
    bool const exists = ::stat(context.path, &status) == 0;
    if (exists && !S_ISREG(status.st_mode))
      context.fail(text("is not an ordinary file: ", kind_of_file(status.st_mode),
                        " found; a regular file or a new name is needed"));
    if (exists) {
      if (char* const resolved = ::realpath(context.path, nullptr)) {
        target_ = resolved;
        std::free(resolved);
      }
    }
    // The name does not grow with the target's, which may be as long as the file system allows.
    size_t const slash = target_.rfind('/');
    std::string const folder = slash == std::string::npos ? std::string() : target_.substr(0, slash + 1);
    static unsigned counter = 0;
    int fd = -1;
    do {
      unsigned const number = __atomic_fetch_add(&counter, 1u, __ATOMIC_RELAXED);
      temporary_ = folder + ".situ-" + std::to_string(::getpid()) + "-" + std::to_string(number) + ".tmp";
      fd = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (fd < 0 && (errno == EEXIST || errno == EINTR));
    if (fd < 0) context.fail("cannot be written", errno, "a writable folder is needed");
    file_ = fd;
    if (exists) ::fchmod(fd, status.st_mode & 0777);  // may fail: some file systems have no permissions
  }
  ~OutputFile() {
    if (file_ >= 0) {
      ::close(file_);
      ::unlink(temporary_.c_str());
    }
  }
  OutputFile(OutputFile const&) = delete;
  OutputFile& operator=(OutputFile const&) = delete;

  void write(void const* from, int64_t bytes) {
    auto const* at = static_cast<unsigned char const*>(from);
    while (bytes > 0) {
      ssize_t const put = ::write(file_, at, static_cast<size_t>(bytes));
      if (put < 0 && errno == EINTR) continue;
      if (put < 0) context_.fail("cannot be written", errno, text(bytes, " more bytes are needed").c_str());
      at += put, bytes -= put;
    }
  }

  /// Puts the file in its place. Without it, nothing has happened.
  void commit() {
    int const fd = file_;
    file_ = -1;
    if (::close(fd) != 0 || std::rename(temporary_.c_str(), target_.c_str()) != 0) {
      int const error = errno;
      ::unlink(temporary_.c_str());
      context_.fail("cannot be written", error, "a writable file is needed");
    }
  }

private:
  FileContext context_;
  std::string target_, temporary_;
  int file_;
};

}  // namespace detail
}  // namespace situ::inline SITU_ABI

// ---- <situ/io/detail/npy_format.hpp>
/// The npy format as a pure function over bytes: a header becomes a shape and an element type, or an IoError.
///
/// A file is the magic `\x93NUMPY`, a version, the length of the header, the header (a Python dictionary with exactly
/// the keys 'descr', 'fortran_order' and 'shape', padded with spaces to a multiple of 64) and the elements.
///
/// Source    numpy.lib.format, https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>


static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "situ reads and writes npy files on little-endian hosts");

namespace situ::inline SITU_ABI {
namespace detail {

inline constexpr int64_t npy_max_header = 65535;  // what version 1.0 can say; eight dimensions take less than 300
inline constexpr int64_t npy_max_preamble = 12 + npy_max_header;

/// What the header of an npy file says, checked for itself but not yet against an element type or the file's size.
struct npy_header {
  std::string descr;           ///< the element type as it is written: `<f4`
  char byte_order = 0;         ///< `<`, `>` or `|`; 0 if descr is not an order, a letter and a number
  char kind = 0;               ///< `f`, `i`, `u`, `b`, `V`, …
  int64_t item_size = 0;       ///< bytes per element
  bool fortran_order = false;  ///< the first index varies fastest
  Shape shape;
  int64_t count = 0;       ///< elements
  int64_t data_begin = 0;  ///< where the elements begin
};

struct npy_type {
  char kind;
  int item_size;
  char const* descr;     ///< as it is saved
  char const* cpp_name;  ///< as it is asked for
};

/// bfloat16 has no name of its own in NumPy: it is saved as ml_dtypes does, as two raw bytes.
constexpr npy_type npy_type_of(dtype type) {
  constexpr npy_type types[] = {{'f', 4, "<f4", "float"},    {'f', 8, "<f8", "double"},  {'f', 2, "<f2", "float16"},
                                {'V', 2, "<V2", "bfloat16"}, {'b', 1, "|b1", "bool"},    {'i', 1, "|i1", "int8_t"},
                                {'i', 2, "<i2", "int16_t"},  {'i', 4, "<i4", "int32_t"}, {'i', 8, "<i8", "int64_t"},
                                {'u', 1, "|u1", "uint8_t"}};
  return types[static_cast<int>(type)];
}

/// Bytes from a file as they may stand in a message: quoted, printable, short.
inline std::string npy_quote(unsigned char const* bytes, size_t size) {
  constexpr size_t longest = 40;
  constexpr char const* digits = "0123456789abcdef";
  std::string text = "'";
  for (size_t i = 0; i < size && i < longest; ++i) {
    if (bytes[i] >= 0x20 && bytes[i] < 0x7f)
      text += static_cast<char>(bytes[i]);
    else
      text.append("\\x").append(1, digits[bytes[i] >> 4]).append(1, digits[bytes[i] & 15]);
  }
  return text + (size > longest ? "…'" : "'");
}

/// A shape as Python writes it: `()`, `(3,)`, `(2, 3)`.
inline std::string npy_shape_text(Shape const& shape) {
  std::string result = "(";
  for (int i = 0; i < shape.rank(); ++i) result += (i ? ", " : "") + std::to_string(shape[i]);
  return result + (shape.rank() == 1 ? ",)" : ")");
}

/// Elements of a shape. As in NumPy, an extent of zero does not excuse the others: their product bounds the strides.
/// False if 63 bits do not hold the bytes.
inline bool npy_count(Shape const& shape, int64_t item_size, int64_t& count) {
  int64_t bound = item_size;
  count = 1;
  for (int64_t extent : shape)
    if (__builtin_mul_overflow(bound, extent > 0 ? extent : 1, &bound)) return false;
  for (int64_t extent : shape) count *= extent;
  return true;
}

/// Reads the dictionary: the part of Python's literals that such a header may use, and nothing else.
class NpyHeaderReader {
 public:
  NpyHeaderReader(unsigned char const* first, unsigned char const* last, int64_t offset, char const* file)
      : begin_(first), at_(first), last_(last), offset_(offset), context_{"load_npy", file} {}

  void read(npy_header& header) {
    skip_space();
    if (!take('{')) expected("the header is not a dictionary", "'{'");
    for (skip_space(); !take('}'); skip_space()) {
      unsigned char const *key, *key_end;
      if (!take_string(key, key_end)) expected("the header's dictionary cannot be read", "a key in quotes or '}'");
      read_value(key, static_cast<size_t>(key_end - key), header);
      skip_space();
      if (!take(',') && (at_ == last_ || *at_ != '}')) expected("the header's dictionary cannot be read", "',' or '}'");
    }
    skip_space();
    if (at_ != last_) expected("the header goes on after its dictionary", "nothing but spaces");
    if (!(found_[0] && found_[1] && found_[2])) missing();
  }

 private:
  static constexpr char const* keys_[] = {"descr", "fortran_order", "shape"};
  static constexpr char const* all_keys_ = "'descr', 'fortran_order' and 'shape' are needed";

  /// Python's, which has no vertical tab.
  static bool is_space(unsigned char c) { return c == ' ' || (c >= '\t' && c <= '\r' && c != '\v'); }
  static bool is_digit(unsigned char c) { return c >= '0' && c <= '9'; }

  void skip_space() {
    while (at_ != last_ && is_space(*at_)) ++at_;
  }
  bool take(char c) {
    if (at_ == last_ || *at_ != static_cast<unsigned char>(c)) return false;
    ++at_;
    return true;
  }
  bool take_word(char const* word) {
    size_t const size = std::strlen(word);
    if (static_cast<size_t>(last_ - at_) < size || std::memcmp(at_, word, size) != 0) return false;
    at_ += size;
    return true;
  }

  [[noreturn]] SITU_NOINLINE void expected(char const* what, char const* needed) const {
    std::string const found = at_ == last_ ? std::string("its end") : npy_quote(at_, static_cast<size_t>(last_ - at_));
    context_.fail(std::string(what) + ": " + found + " found at byte " + std::to_string(offset_ + (at_ - begin_)) +
                  "; " + needed + " is needed");
  }

  [[noreturn]] SITU_NOINLINE void missing() const {
    std::string found;
    for (int i = 0; i < 3; ++i)
      if (found_[i]) found += (found.empty() ? "'" : ", '") + std::string(keys_[i]) + "'";
    context_.fail("a key is missing from the header: " + (found.empty() ? "none" : found) + " found; " + all_keys_);
  }

  /// Escapes are refused: no key and no element type needs one.
  bool take_string(unsigned char const*& first, unsigned char const*& end) {
    if (at_ == last_ || (*at_ != '\'' && *at_ != '"')) return false;
    unsigned char const* closing = at_ + 1;
    while (closing != last_ && *closing != *at_ && *closing != '\\' && *closing != '\n') ++closing;
    if (closing == last_ || *closing != *at_) return false;
    first = at_ + 1, end = closing, at_ = closing + 1;
    return true;
  }

  void read_value(unsigned char const* key, size_t size, npy_header& header) {
    int which = 0;
    while (which < 3 && (std::strlen(keys_[which]) != size || std::memcmp(keys_[which], key, size) != 0)) ++which;
    if (which == 3) context_.fail("unknown key in the header: " + npy_quote(key, size) + " found; " + all_keys_);
    if (found_[which])
      context_.fail("a key stands twice in the header: " + npy_quote(key, size) + " found again; " + all_keys_);
    found_[which] = true;
    skip_space();
    if (!take(':')) expected("the header's dictionary cannot be read", "':'");
    skip_space();
    if (which == 0)
      read_descr(header);
    else if (which == 1)
      read_order(header);
    else
      read_shape(header);
  }

  void read_descr(npy_header& header) {
    if (at_ != last_ && (*at_ == '[' || *at_ == '('))
      expected("the elements are structured", "a plain element type such as '<f4'");
    unsigned char const *first, *end;
    if (!take_string(first, end)) expected("the element type cannot be read", "a plain element type such as '<f4'");
    size_t const size = static_cast<size_t>(end - first);
    header.descr.assign(first, end);
    size_t const letter = size > 0 && std::strchr("<>|=", *first) != nullptr && *first != 0 ? 1 : 0;
    if (size > letter && first[letter] == 'O')
      context_.fail("the elements are Python objects: " + npy_quote(first, size) +
                    " found; numbers are needed, objects would have to be unpickled, which runs code");
    if (letter == 0 || *first == '=' || size < 3 || size > 6) return;
    int64_t item_size = 0;
    for (size_t i = 2; i < size; ++i) {
      if (!is_digit(first[i])) return;
      item_size = 10 * item_size + (first[i] - '0');
    }
    header.byte_order = static_cast<char>(first[0]);
    header.kind = static_cast<char>(first[1]);
    header.item_size = item_size;
  }

  void read_order(npy_header& header) {
    if (take_word("True"))
      header.fortran_order = true;
    else if (take_word("False"))
      header.fortran_order = false;
    else
      expected("'fortran_order' cannot be read", "True or False");
  }

  void read_shape(npy_header& header) {
    if (!take('(')) expected("the shape is not a tuple", "'('");
    int64_t rank = 0;
    bool comma = true;
    for (skip_space(); !take(')'); skip_space()) {
      if (!comma) expected("the shape cannot be read", "',' or ')'");
      int64_t const extent = read_extent();
      if (++rank <= max_rank) header.shape.push_back(extent);
      skip_space();
      comma = take(',');
    }
    if (rank > max_rank)
      context_.fail(text("the shape has too many dimensions: ", rank, " found; at most ", max_rank, " are supported"));
    if (rank == 1 && !comma)
      context_.fail(
          text("the shape is not a tuple: '(", header.shape[0], ")' found; '(", header.shape[0], ",)' is needed"));
    if (!npy_count(header.shape, 1, header.count))
      context_.fail(text("the shape is too large: ", npy_shape_text(header.shape),
                         " found; fewer than 2^63 elements are needed"));
  }

  int64_t read_extent() {
    unsigned char const* const first = at_;
    bool const negative = take('-');
    if (at_ == last_ || !is_digit(*at_)) at_ = first, expected("the shape cannot be read", "an extent");
    if (*at_ == '0' && last_ - at_ > 1 && is_digit(at_[1]))
      expected("the shape cannot be read", "an extent without leading zeros");
    int64_t extent = 0;
    bool fits = true;
    for (; at_ != last_ && is_digit(*at_); ++at_)
      fits = fits && !__builtin_mul_overflow(extent, int64_t{10}, &extent) &&
             !__builtin_add_overflow(extent, int64_t{*at_} - '0', &extent);
    std::string const digits = !fits || negative ? npy_quote(first, static_cast<size_t>(at_ - first)) : std::string();
    if (negative) context_.fail("the shape has a negative extent: " + digits + " found; 0 or more is needed");
    if (!fits)
      context_.fail("the shape is too large: an extent of " + digits + " found; fewer than 2^63 elements are needed");
    take('L');  // written by Python 2
    return extent;
  }

  unsigned char const *begin_, *at_, *last_;
  int64_t offset_;
  FileContext context_;
  bool found_[3] = {};
};

/// Reads the header of an npy file from its first bytes, never beyond `bytes + size`.
///
/// `size` is the whole file's size, or at least npy_max_preamble. `file` is what messages call the file.
/// Throws    IoError as `load_npy: <file>: what is wrong: found; needed`. Allocates only for messages and `descr`.
inline npy_header parse_npy_header(unsigned char const* bytes, size_t size, char const* file) {
  static constexpr unsigned char magic[] = {0x93, 'N', 'U', 'M', 'P', 'Y'};
  FileContext const context{"load_npy", file};
  auto const need = [&](int64_t needed) {
    if (size < static_cast<size_t>(needed))
      context.fail(text("the file ends inside its header: ", size, " bytes found; ", needed, " are needed"));
  };
  if (size == 0) context.fail("the file is empty: 0 bytes found; an npy file is needed");
  if (std::memcmp(bytes, magic, size < 6 ? size : 6) != 0)
    context.fail("is not an npy file: it begins with " + npy_quote(bytes, size < 6 ? size : 6) +
                 "; '\\x93NUMPY' is needed");
  need(10);
  int const major = bytes[6], minor = bytes[7];
  if (major < 1 || major > 3 || minor != 0)
    context.fail(text("unknown version of the format: ", major, ".", minor, " found; 1.0, 2.0 or 3.0 is needed"));
  int64_t const begin = major == 1 ? 10 : 12;
  need(begin);
  int64_t length = 0;
  for (int64_t i = begin; i-- > 8;) length = 256 * length + bytes[i];
  if (length > npy_max_header && static_cast<int64_t>(size) >= npy_max_preamble)
    context.fail(text("the header is too long: ", length, " bytes found; at most ", npy_max_header, " are accepted"));
  need(begin + length);

  npy_header header;
  header.data_begin = begin + length;
  NpyHeaderReader(bytes + begin, bytes + header.data_begin, begin, file).read(header);
  return header;
}

inline bool npy_holds(npy_header const& header, dtype type) {
  npy_type const wanted = npy_type_of(type);
  if (header.byte_order == 0 || header.kind != wanted.kind || header.item_size != wanted.item_size) return false;
  if (type == dtype::bfloat16) return header.byte_order != '>';
  return wanted.item_size == 1 || header.byte_order != '|';
}

/// Compares a header with the element type that is asked for and the size of the file.
///
/// Returns   the number of bytes the elements take.
/// Throws    IoError if the type is another one, or the file is shorter or longer than the header says.
inline int64_t check_npy_data(npy_header const& header, dtype type, int64_t file_size, char const* file) {
  FileContext const context{"load_npy", file};
  npy_type const wanted = npy_type_of(type);
  if (!npy_holds(header, type)) {
    std::string const found =
        npy_quote(reinterpret_cast<unsigned char const*>(header.descr.data()), header.descr.size());
    std::string const asked = text(name(type), " ('", wanted.descr, "') was asked for");
    for (int i = 0; i <= static_cast<int>(dtype::uint8); ++i) {
      dtype const other = static_cast<dtype>(i);
      if (npy_holds(header, other))
        context.fail(text("the elements have another type: ", name(other), " (", found, ") found; ", asked,
                          ": use load_npy<", npy_type_of(other).cpp_name, ">, or save the array as ", name(type)));
    }
    context.fail(text("the elements have a type that situ has not: ", found, " found; ", asked, ": save the array as ",
                      name(type)));
  }
  int64_t count;
  if (!npy_count(header.shape, wanted.item_size, count))
    context.fail(text("the shape is too large: ", npy_shape_text(header.shape), " of ", wanted.item_size,
                      " bytes each found; fewer than 2^63 bytes are needed"));
  int64_t const bytes = count * wanted.item_size, found = file_size - header.data_begin;
  if (found != bytes)
    context.fail(text("the data are ", found < bytes ? "shorter" : "longer", " than the header says: ", found,
                      " bytes found; ", bytes, " are needed for shape ", npy_shape_text(header.shape), " of ",
                      name(type)));
  return bytes;
}

/// Everything that stands before the elements, byte for byte as NumPy writes it: version 1.0, room for the first
/// extent to grow to 21 digits, padding to a multiple of 64. Eight dimensions never need version 2.0.
inline std::string npy_preamble(dtype type, Shape const& shape) {
  std::string header = text("{'descr': '", npy_type_of(type).descr,
                            "', 'fortran_order': False, 'shape': ", npy_shape_text(shape), ", }");
  if (!shape.empty()) header.append(21 - std::to_string(shape[0]).size(), ' ');
  header.append(63 - (10 + header.size()) % 64, ' ');
  header += '\n';
  std::string preamble("\x93NUMPY\x01\x00", 8);
  preamble += static_cast<char>(header.size() & 255);
  preamble += static_cast<char>(header.size() >> 8);
  return preamble + header;
}

template <class Word>
void npy_swap_bytes(unsigned char* data, int64_t count) {
  for (int64_t i = 0; i < count; ++i, data += sizeof(Word)) {
    Word word;
    std::memcpy(&word, data, sizeof word);
    if constexpr (sizeof(Word) == 2)
      word = __builtin_bswap16(word);
    else if constexpr (sizeof(Word) == 4)
      word = __builtin_bswap32(word);
    else
      word = __builtin_bswap64(word);
    std::memcpy(data, &word, sizeof word);
  }
}

/// Makes what lies in the file what a tensor may hold: the host's byte order, and for bool only 0 and 1.
inline void npy_to_native(unsigned char* data, npy_header const& header) {
  if (header.kind == 'b')
    for (int64_t i = 0; i < header.count; ++i) data[i] = data[i] != 0;
  if (header.byte_order != '>') return;
  if (header.item_size == 2) npy_swap_bytes<uint16_t>(data, header.count);
  if (header.item_size == 4) npy_swap_bytes<uint32_t>(data, header.count);
  if (header.item_size == 8) npy_swap_bytes<uint64_t>(data, header.count);
}

/// Copies elements whose first index varies fastest to where the last one does, in tiles over these two axes.
template <class Word>
void npy_copy_from_fortran(unsigned char const* from, unsigned char* to, npy_header const& header) {
  constexpr int64_t size = sizeof(Word), tile = 32;
  int const last = header.shape.rank() - 1;
  int64_t from_step[max_rank], to_step[max_rank], index[max_rank] = {};
  for (int64_t i = 0, step = size; i <= last; step *= header.shape[i++]) from_step[i] = step;
  for (int64_t i = last, step = size; i >= 0; step *= header.shape[i--]) to_step[i] = step;
  for (;;) {
    unsigned char const* from_block = from;
    unsigned char* to_block = to;
    for (int i = 1; i < last; ++i) from_block += index[i] * from_step[i], to_block += index[i] * to_step[i];
    for (int64_t row = 0; row < header.shape[0]; row += tile) {
      int64_t const row_end = row + tile < header.shape[0] ? row + tile : header.shape[0];
      for (int64_t column = 0; column < header.shape[last]; column += tile) {
        int64_t const column_end = column + tile < header.shape[last] ? column + tile : header.shape[last];
        for (int64_t i = row; i < row_end; ++i)
          for (int64_t j = column; j < column_end; ++j)
            std::memcpy(to_block + i * to_step[0] + j * size, from_block + i * size + j * from_step[last], size);
      }
    }
    int axis = last - 1;
    while (axis > 0 && ++index[axis] == header.shape[axis]) index[axis--] = 0;
    if (axis <= 0) return;
  }
}

/// Whether the elements lie in another order than the tensor's.
inline bool npy_is_transposed(npy_header const& header) {
  return header.fortran_order && header.shape.rank() > 1 && header.count > 0;
}

inline void npy_from_fortran(unsigned char const* from, unsigned char* to, npy_header const& header) {
  if (header.item_size == 1) npy_copy_from_fortran<uint8_t>(from, to, header);
  if (header.item_size == 2) npy_copy_from_fortran<uint16_t>(from, to, header);
  if (header.item_size == 4) npy_copy_from_fortran<uint32_t>(from, to, header);
  if (header.item_size == 8) npy_copy_from_fortran<uint64_t>(from, to, header);
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI

namespace situ::inline SITU_ABI {
namespace detail {

/// The tensor in the `size` bytes of an npy file; `file` is what messages call it. Throws IoError.
template <element T>
Tensor<T> decode_npy(unsigned char const* bytes, size_t size, char const* file) {
  npy_header const header = parse_npy_header(bytes, size, file);
  int64_t const data_bytes = check_npy_data(header, dtype_of<T>, static_cast<int64_t>(size), file);
  Tensor<T> result = Tensor<T>::uninitialized(header.shape, "load_npy");
  if (data_bytes == 0) return result;
  auto* const data = reinterpret_cast<unsigned char*>(result.data());
  if (npy_is_transposed(header))
    npy_from_fortran(bytes + header.data_begin, data, header);
  else
    std::memcpy(data, bytes + header.data_begin, static_cast<size_t>(data_bytes));
  npy_to_native(data, header);
  return result;
}

inline void write_npy(std::string const& path, dtype type, Shape const& shape, void const* data) {
  std::string const preamble = npy_preamble(type, shape);
  OutputFile file({"save_npy", path.c_str()});
  file.write(preamble.data(), static_cast<int64_t>(preamble.size()));
  file.write(data, product(shape) * npy_type_of(type).item_size);
  file.commit();
}

}  // namespace detail

namespace io {

/// Reads an array that NumPy (`np.save`) or save_npy wrote.
///
/// Shape     as in the file, row-major; an array in Fortran order comes out as the same array.
/// Dtype     exactly T: `<f4` is float, `<f2` float16, `|b1` bool (every byte but 0 is true), `<V2` bfloat16, as
///           ml_dtypes saves it. Big-endian elements are swapped.
/// Throws    IoError, `load_npy: <path>: what is wrong: found; needed`, if the path is no ordinary file, the header
///           is not the format's, the elements have another type (objects and structures are never read), there
///           are more than eight dimensions, or the file is not exactly as long as its header says.
/// Cost      one read into the tensor's memory, which is allocated only when the file is known to fill it; Fortran
///           order takes a second buffer of that size.
/// Example   auto images = io::load_npy<uint8_t>("images.npy");
template <element T>
Tensor<T> load_npy(std::string const& path) {
  detail::FileContext const context{"load_npy", path.c_str()};
  detail::InputFile const file(context);
  std::string head(static_cast<size_t>(file.size() < detail::npy_max_preamble ? file.size() : detail::npy_max_preamble),
                   '\0');
  file.read(head.data(), 0, static_cast<int64_t>(head.size()));
  detail::npy_header const header =
      detail::parse_npy_header(reinterpret_cast<unsigned char const*>(head.data()), head.size(), context.path);
  int64_t const bytes = detail::check_npy_data(header, dtype_of<T>, file.size(), context.path);
  Tensor<T> result = Tensor<T>::uninitialized(header.shape, "load_npy");
  if (bytes == 0) return result;
  auto* const data = reinterpret_cast<unsigned char*>(result.data());
  if (detail::npy_is_transposed(header)) {
    Tensor<T> columns = Tensor<T>::uninitialized(header.shape, "load_npy");
    auto* const raw = reinterpret_cast<unsigned char*>(columns.data());
    file.read(raw, header.data_begin, bytes);
    detail::npy_from_fortran(raw, data, header);
  } else {
    file.read(data, header.data_begin, bytes);
  }
  detail::npy_to_native(data, header);
  return result;
}

/// Writes a tensor, or the value of an expression, byte for byte as NumPy would; `np.load` and load_npy read it.
///
/// The file appears whole or not at all: it is written under another name in the same folder and renamed. It is not
/// forced onto the disk. An existing file keeps its permissions, a symbolic link is followed.
///
/// Dtype     every element type; bfloat16 as two raw bytes (`<V2`), which `x.view(ml_dtypes.bfloat16)` reads in NumPy.
/// Device    any; waits for the value and copies it to the host. Nothing is copied if it is there and contiguous.
/// Throws    IoError if the folder cannot be written, the disk is full, or the path is no ordinary file; a file that
///           was there is then as it was.
/// Example   io::save_npy("means.npy", means);
template <expression E>
void save_npy(std::string const& path, E const& tensor) {
  using T = value_of<E>;
  using D = device_of<E>;
  Tensor<T, D> const value = tensor;
  if constexpr (host_device<D>) {
    auto const rows = value.contiguous();
    detail::write_npy(path, dtype_of<T>, rows.shape(), rows.data());
  } else {
    auto const rows = value.cpu().contiguous();
    detail::write_npy(path, dtype_of<T>, rows.shape(), rows.data());
  }
}

}  // namespace io
}  // namespace situ::inline SITU_ABI
