/// Evaluation of a tree in a CUDA thread: a few neighbouring elements of every input are held in registers, then the
/// formula is computed for one after the other. Device only, so that a function that cannot run there is an error.
#pragma once

#include <concepts>

#include <situ/expr/lower.hpp>

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace functions {
struct gelu;
struct gelu_tanh;
struct log;
struct log10;
struct log1p;
struct log2;
}  // namespace functions
#if defined(__CUDA_ARCH__)
namespace math::detail {
__device__ inline float gelu_of_narrow(float x);
__device__ inline float gelu_tanh_of_narrow(float x);
__device__ inline float log_of_narrow(float t, float x, float unit);
}  // namespace math::detail
#endif
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
  if constexpr (std::is_same_v<T, bool>) return bits != 0;
  else return bits_to<T>(bits);
}

/// The way back: 16-bit floats are rounded to nearest even.
template <class T>
SITU_DEVICE __forceinline__ word_of<T> to_word(compute_t<T> value) {
  if constexpr (std::is_same_v<T, bool>) return value ? 1 : 0;
  else return bits_to<word_of<T>>(static_cast<T>(value));
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
  /// From memory that the kernel does not write: its stores, whichever come first, are not waited for.
  SITU_DEVICE __forceinline__ void load_read_only(T const* from) {
    if constexpr (bytes == 16) {
      uint4 const v = __ldg(reinterpret_cast<uint4 const*>(from));
      words[0] = v.x, words[1] = v.y, words[2] = v.z, words[3] = v.w;
    } else if constexpr (bytes == 8) {
      uint2 const v = __ldg(reinterpret_cast<uint2 const*>(from));
      words[0] = v.x, words[1] = v.y;
    } else {
      words[0] = __ldg(reinterpret_cast<typename word<bytes>::type const*>(from));
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
  /// One element, N times.
  SITU_DEVICE __forceinline__ void load_one(T const* from) {
    word_of<T> const one = *reinterpret_cast<word_of<T> const*>(from);
    clear();
#pragma unroll
    for (int j = 0; j < N; ++j) insert(j, one);
  }
  /// As load_each, but that the others become as the first one, where there is one: what a map calls gets nothing else than elements.
  SITU_DEVICE __forceinline__ void load_repeating(T const* from, int64_t stride, int count) {
    clear();
    if (count <= 0) return;
#pragma unroll
    for (int j = 0; j < N; ++j) insert(j, *reinterpret_cast<word_of<T> const*>(from + (j < count ? j * stride : 0)));
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

/// Stores N numbers, rounded to what memory holds, as neighbours.
template <int N, class T, class C>
SITU_DEVICE __forceinline__ void store_neighbours(T* to, C const (&y)[N]) {
  Lanes<T, N> result;
  result.clear();
#pragma unroll
  for (int j = 0; j < N; ++j) result.insert(j, to_word<T>(y[j]));
  result.store(to);
}

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

  /// The function of a node, of operands that are what it takes.
  template <class Op, class... Ts, class... Xs>
  SITU_DEVICE __forceinline__ static compute_t<typename Apply<Op, Ts...>::value_type> apply(Apply<Op, Ts...> const& node, Xs const&... xs) {
    using R = typename Apply<Op, Ts...>::value_type;
    if constexpr (functions::is_mapped<Op>) {
      return convert_scalar<compute_t<R>>(node.op.device_value(static_cast<typename Ts::value_type>(xs)...));
    } else if constexpr (functions::is_cast<Op>) {
      compute_t<R> const y = compute_scalar<R>(Op::value(xs...));
      return from_word<R>(to_word<R>(y));
    } else if constexpr (sizeof(R) == 2 && std::is_same_v<compute_t<R>, float>) {
      return value_of_narrow(node.op, xs...);
    } else {
      return convert_scalar<compute_t<R>>(Op::value(xs...));
    }
  }

 private:
  /// To be rounded to 16 bits: what takes longer than memory then has a shorter way.
  template <class Op, class... Xs>
  SITU_DEVICE __forceinline__ static float value_of_narrow(Op const&, Xs const&... xs) {
    return convert_scalar<float>(Op::value(xs...));
  }
#if defined(__CUDA_ARCH__)
  template <std::same_as<float> X>
  SITU_DEVICE __forceinline__ static float value_of_narrow(functions::gelu const&, X const& x) {
    return math::detail::gelu_of_narrow(x);
  }
  template <std::same_as<float> X>
  SITU_DEVICE __forceinline__ static float value_of_narrow(functions::gelu_tanh const&, X const& x) {
    return math::detail::gelu_tanh_of_narrow(x);
  }
  template <std::same_as<float> X>
  SITU_DEVICE __forceinline__ static float value_of_narrow(functions::log const&, X const& x) {
    return math::detail::log_of_narrow(x - 1, x, 1);
  }
  template <std::same_as<float> X>
  SITU_DEVICE __forceinline__ static float value_of_narrow(functions::log2 const&, X const& x) {
    return math::detail::log_of_narrow(x - 1, x, 1.44269504f);
  }
  template <std::same_as<float> X>
  SITU_DEVICE __forceinline__ static float value_of_narrow(functions::log10 const&, X const& x) {
    return math::detail::log_of_narrow(x - 1, x, 0.434294482f);
  }
  template <std::same_as<float> X>
  SITU_DEVICE __forceinline__ static float value_of_narrow(functions::log1p const&, X const& x) {
    return math::detail::log_of_narrow(x, 1 + x, 1);
  }
#endif

  /// Evaluates the operands one after the other, converted to what the function takes, then the function.
  template <int K, class Node, class T, class... Ts, class H, class... Done>
  SITU_DEVICE __forceinline__ static auto operands(Node const& node, Fields<T, Ts...> const& rest, H const& held, int j, int64_t index,
                                                   Done const&... done) {
    using Wanted = typename Node::types::template operand<K>;
    compute_t<Wanted> const x = convert_scalar<compute_t<Wanted>>(value(rest.head, held.head, j, index));
    if constexpr (sizeof...(Ts) > 0) return operands<K + 1>(node, rest.tail, held.tail, j, index, done..., x);
    else return apply(node, done..., x);
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

/// Whether a tree reads the numbers of elements.
template <class Tree>
inline constexpr bool counts_elements = std::is_same_v<Tree, Index>;
template <class Op, class... Ts>
inline constexpr bool counts_elements<Apply<Op, Ts...>> = (counts_elements<Ts> || ...);

}  // namespace detail::cuda
}  // namespace situ::inline SITU_ABI

#endif
