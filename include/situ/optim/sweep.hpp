/// Sweeps: one pass over the elements of many tensors, in one launch.
///
/// A *rule* says what happens to an element: it reads and writes through a *cell*, which is a pack of neighbours on the CPU and one element
/// on a GPU,
///
///     at.parameter()  at.gradient()  at.state(k)      numbers, in the type that T is computed in
///     at.set_parameter(x)  at.set_state(k, x)
///
/// so that one definition serves both. The pointers and sizes of the tensors travel in the kernel's own parameters, up to `sweep_room` tensors
/// at a time: nothing is allocated, and nothing is copied to the device before.
///
/// The tensors are cut into chunks of `sweep_chunk` elements, whatever the number of threads; each element is changed on its own.
#pragma once

#include <situ/core/storage.hpp>
#include <situ/expr/cpu/dispatch.hpp>
#include <situ/expr/lanes.hpp>
#include <situ/expr/math/basic.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

inline constexpr int sweep_states = 3;
/// The operands of a sweep: what is changed, its gradient, the states from number 2 on, and a copy of what is changed in full precision.
enum sweep_operand { sweep_parameter, sweep_gradient, sweep_state, sweep_master = sweep_state + sweep_states, sweep_operands };
inline constexpr int64_t sweep_chunk = 2048;
/// Tensors of one launch: its parameters then fit 4 KiB, which every driver takes.
inline constexpr int sweep_room = 60;

/// One tensor of a sweep, with what goes with it: contiguous, or null.
struct Span {
  void* data[sweep_operands];
  int64_t size;
  int64_t end;  ///< the chunks of the tensors up to this one
};

/// The tensors of one launch.
struct Spans {
  int count;
  bool vectors;  ///< all are aligned to 16 bytes
  Span all[sweep_room];

  Spans() : count(0), vectors(true) {}
  int64_t chunks() const { return count > 0 ? all[count - 1].end : 0; }
  /// One more, whose data are to be filled in.
  Span& add(int64_t size) {
    Span& span = all[count];
    for (void*& data : span.data) data = nullptr;
    span.size = size;
    span.end = chunks() + (size + sweep_chunk - 1) / sweep_chunk;
    ++count;
    return span;
  }
  void note_alignment() {
    for (void const* data : all[count - 1].data) vectors = vectors && reinterpret_cast<std::uintptr_t>(data) % 16 == 0;
  }
};

/// The gradient of what is minimised, with the decay of the weights: without one an infinite parameter stays as it is.
template <class Cell, class X, class C>
SITU_HOST_DEVICE SITU_INLINE X decayed_gradient(Cell const& at, X const& parameter, C const& sign, C const& decay) {
  X const g = at.gradient() * sign;
  return decay != C(0) ? X(g + parameter * decay) : g;
}

// What is launched by launch_sweep<D>(kernels, work), in the headers of the families of kernels.

/// The rule, and where it applies.
template <class Rule>
struct Sweep {
  Rule rule;
  char const* operation;  ///< its name in profiles
  Spans spans;
};

/// What is summed up in each chunk: Σ |x|^p, or the greatest |x|.
template <class T>
struct NormParts {
  double* parts;
  double p;
  char const* operation;
  Spans spans;
};
/// The same where p is 2 whatever happens: no other power is compiled for the CPU.
template <class T>
struct SquareParts : NormParts<T> {};
/// The norm of all, and what brings it down to max_norm: min(1, max_norm / (norm + 1e-6)).
template <class T>
struct NormsJoined {
  double const* parts;
  int64_t count;
  double p, max_norm;
  compute_t<T>* norm;
  compute_t<T>* coefficient;  ///< or null
  char const* operation;
};

inline constexpr double greatest_norm = 1e300;  ///< from this p on, the greatest |x|

/// Two parts as one. A NaN is greater than all numbers.
SITU_HOST_DEVICE inline double joined_parts(double a, double b, double p) {
  if (p < greatest_norm) return a + b;
  return math::detail::magnitude_of(a) > math::detail::magnitude_of(b) ? a : b;
}
SITU_HOST_DEVICE inline double norm_of_total(double total, double p) {
  if (p == 2) return SITU_LIBM(sqrt)(total);
  if (p == 1 || p >= greatest_norm) return total;
  return SITU_LIBM(pow)(total, 1 / p);
}
template <class T>
SITU_HOST_DEVICE void write_norm(NormsJoined<T> const& a, double total) {
  using C = compute_t<T>;
  C const norm = static_cast<C>(norm_of_total(total, a.p));
  *a.norm = norm;
  if (!a.coefficient) return;
  C const limited = static_cast<C>(a.max_norm) / (norm + C(1e-6));
  *a.coefficient = limited > C(1) ? C(1) : limited;  // NaN stays NaN
}


}  // namespace detail
}  // namespace situ::inline SITU_ABI
