/// What the tests of reductions and scans share: the elements of each output in plain vectors, and inputs in every layout.
#pragma once

#include <situ/device/emulated/device.hpp>
#include <situ/device/pinned.hpp>
#include <situ/tensor/factories.hpp>
#include <situ/tensor/tensor.hpp>

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

namespace situ_test {

using namespace situ;

// ---- plain loops ----------------------------------------------------------------------------------------------------

/// What references are computed in.
template <class T>
using wide = std::conditional_t<floating<T>, double, int64_t>;

template <class T>
double number_of(T x) {
  if constexpr (detail::is_one_of<T, float16, bfloat16>) return static_cast<double>(static_cast<float>(x));
  else return static_cast<double>(x);
}

template <class T>
std::vector<wide<T>> values_of(std::vector<T> const& from) {
  std::vector<wide<T>> result(from.size());
  for (std::size_t k = 0; k < from.size(); ++k) {
    if constexpr (detail::is_one_of<T, float16, bfloat16>) result[k] = static_cast<double>(static_cast<float>(from[k]));
    else result[k] = static_cast<wide<T>>(from[k]);
  }
  return result;
}

/// The elements that each output is reduced from, in the order of the reduced axes.
template <class W>
struct Groups {
  Shape shape, kept_shape;  ///< of the result, without and with keepdim
  std::vector<std::vector<W>> of;
};

template <class W>
Groups<W> group(std::vector<W> const& values, Shape const& shape, unsigned reduced) {
  Groups<W> groups;
  int64_t outputs = 1;
  for (int k = 0; k < shape.rank(); ++k) {
    bool const gone = reduced >> k & 1u;
    groups.kept_shape.push_back(gone ? 1 : shape[k]);
    if (!gone) groups.shape.push_back(shape[k]), outputs *= shape[k];
  }
  groups.of.resize(static_cast<std::size_t>(outputs));
  for (std::size_t i = 0; i < values.size(); ++i) {
    int64_t rest = static_cast<int64_t>(i), output = 0, step = 1;
    for (int k = shape.rank() - 1; k >= 0; --k) {
      if (!(reduced >> k & 1u)) output += rest % shape[k] * step, step *= shape[k];
      rest /= shape[k];
    }
    groups.of[static_cast<std::size_t>(output)].push_back(values[i]);
  }
  return groups;
}

inline Shape axes_of(unsigned bits, int rank) {
  Shape axes;
  for (int k = 0; k < rank; ++k) {
    if (bits >> k & 1u) axes.push_back(k);
  }
  return axes;
}

/// A few units in the last place of T.
template <class T>
double tolerance_of() {
  if constexpr (std::is_same_v<T, double>) return 1e-15;
  else if constexpr (std::is_same_v<T, float>) return 2e-7;
  else if constexpr (std::is_same_v<T, float16>) return 1e-3;
  else if constexpr (std::is_same_v<T, bfloat16>) return 8e-3;
  else return 0;
}

inline bool close(double a, double b, double tolerance) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  if (std::isinf(a) || std::isinf(b)) return a == b;
  return std::fabs(a - b) <= tolerance * std::fabs(b);
}

// ---- inputs ---------------------------------------------------------------------------------------------------------

/// Small integers in no order, with many ties: their sums are exact in every type.
template <class T>
Tensor<T> scattered(Shape const& shape) {
  Tensor<T> result = empty<T>(shape);
  for (int64_t i = 0; i < result.size(); ++i) {
    int const hashed = static_cast<int>(static_cast<uint32_t>(i + 1) * 2654435761u >> 15) & 0xffff;
    int const value = std::is_same_v<T, bool> ? hashed % 2 : std::is_same_v<T, uint8_t> ? hashed % 17 : hashed % 17 - 8;
    result.data()[i] = detail::convert_scalar<T>(value);
  }
  return result;
}

/// Uniform in [0, 1), on a grid of 2^-24.
inline float uniform_at(int64_t i) {
  uint64_t z = static_cast<uint64_t>(i) * 0x9e3779b97f4a7c15u + 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return static_cast<float>((z ^ z >> 31) >> 40) * 0x1p-24f;
}
inline Tensor<float> uniforms(Shape const& shape) {
  Tensor<float> result = empty(shape);
  for (int64_t i = 0; i < result.size(); ++i) result.data()[i] = uniform_at(i);
  return result;
}

/// f(the same values in another layout), and f(broadcast views of them).
template <class T, class F>
void for_each_layout(Tensor<T> const& x, F f) {
  Shape const shape = x.shape();
  int const rank = shape.rank();
  f(x);
  auto const copied = [&](Tensor<T> view) {
    view.assign(x);
    REQUIRE(view.to_vector() == x.to_vector());
    f(view);
  };
  if (rank == 0) return copied(empty<T>({3})[1]);

  Shape backwards, rotated, turned;
  for (int k = 0; k < rank; ++k) backwards.push_back(rank - 1 - k), rotated.push_back((k + 1) % rank), turned.push_back((k + rank - 1) % rank);
  auto const permuted_to_shape = [&](Shape const& order, Shape const& inverse) {  // lies in memory as `order` says
    Shape lies;
    for (int64_t axis : order) lies.push_back(shape[axis]);
    copied(empty<T>(lies).permute(inverse));
  };
  if (rank > 1) {
    permuted_to_shape(backwards, backwards);
    permuted_to_shape(rotated, turned);
    Shape swapped = axes_of((1u << rank) - 1u, rank);
    swapped[0] = rank - 1, swapped[rank - 1] = 0;
    permuted_to_shape(swapped, swapped);
  }

  Shape larger = shape;
  for (int k = 0; k < rank; ++k) larger[k] = 2 * shape[k] + 1;
  Tensor<T> every_other = empty<T>(larger);
  Tensor<T> flipped = empty<T>(shape);
  for (int k = 0; k < rank; ++k) {
    every_other = every_other.slice(k, 1, 2 * shape[k] + 1, 2);
    flipped = flipped.flip(k);
    copied(empty<T>(shape).flip(k));
  }
  copied(every_other);
  copied(flipped);
  copied(empty<T>({x.size() + 1}).slice(0, 1, x.size() + 1).view(shape));

  for (int k = 0; k < rank; ++k) {
    if (shape[k] > 1 && x.size() > 0) f(x.select(k, shape[k] - 1).unsqueeze(k).expand(shape));
  }
  if (x.size() > 0) f(x.flatten()[0].expand(shape));
}

/// f() with every instruction set that this processor has.
template <class F>
void for_each_instruction_set(F f) {
  instruction_set const best = get_instruction_set();
  for (instruction_set const set : {instruction_set::baseline, instruction_set::avx2, instruction_set::avx512}) {
    if (set > best) break;
    set_instruction_set(set);
    INFO("instruction set ", static_cast<int>(set));
    f();
  }
  set_instruction_set(best);
}

}  // namespace situ_test
