/// Reducers that keep two numbers: a *centre*, and what lies around it.
///
/// A few thousand elements that are still in the cache are read twice: `gather` folds them, `centre` makes a number of that,
/// `spread` sums how the elements lie around it, `part` makes the two numbers, and `merge` joins two parts whose counts are known. Memory is
/// read once, and nothing cancels. All of them work on packs and on numbers, so one description serves every device.
///
///     element         what is read; gather, centre and spread work in it
///     component       what the two numbers are kept in
///     none()          what gather starts from; absent(c): an element that spreads nothing
///     spread(s, t, x, c)   adds x to the sums s and t
///     is_near(s, t, c, n)  whether s and t serve, although c was only a guess (of a pack: for each lane); without it none is made
#pragma once

#include <situ/ops/reducers.hpp>

namespace situ::inline SITU_ABI {
namespace reducers {

template <class R>
concept centred = requires { typename R::component; };

/// Two numbers, and of how many elements.
template <class C>
struct centred_part {
  double count;
  C centre, spread;
};

/// What centred reducers have in common.
template <class R, class C>
struct centred_base {
  using component = C;
  using accumulator = centred_part<C>;
  using total = accumulator;
  static constexpr bool empty_is_defined = true;
  SITU_HOST_DEVICE static accumulator merge(accumulator const& a, accumulator const& b) {
    if (b.count == 0) return a;
    if (a.count == 0) return b;
    accumulator result = a;
    R::merge(result.centre, result.spread, b.centre, b.spread, static_cast<C>(a.count), static_cast<C>(b.count));
    result.count = a.count + b.count;
    return result;
  }
  /// The part of a few elements x that are at hand, of which those with a bit in `valid` count.
  template <int N, class E>
  SITU_HOST_DEVICE static accumulator part_of(E const (&x)[N], unsigned valid) {
    E first = R::none();
    int count = 0;
    for (int k = 0; k < N; ++k) {
      if (valid >> k & 1u) first = R::gather(first, x[k]), ++count;
    }
    if (count == 0) return R::identity();
    E const c = R::centre(first, static_cast<E>(count));
    E s = 0, t = 0;
    for (int k = 0; k < N; ++k) {
      if (valid >> k & 1u) R::spread(s, t, x[k], c);
    }
    accumulator result{static_cast<double>(count), 0, 0};
    R::part(result.centre, result.spread, static_cast<C>(c), static_cast<C>(s), static_cast<C>(t), static_cast<C>(count));
    return result;
  }
};

/// Σ (x - mean)² / (n - correction), by the mean and the sum of squares around it. Parts are joined by the formula of Chan, Golub and
/// LeVeque (1979). Integers give float, by way of double.
template <class T>
struct variance : centred_base<variance<T>, double> {
  using base = centred_base<variance<T>, double>;
  using base::merge;
  static constexpr char const* name = "var";
  static constexpr int times_dearer = 6;  ///< than a sum, of several outputs on the CPU
  using parameter = void;
  using element = std::conditional_t<floating<T>, compute_t<T>, double>;
  using typename base::accumulator;
  using result = floating_t<T>;
  SITU_HOST_DEVICE static accumulator identity() { return {0, 0, 0}; }
  SITU_HOST_DEVICE static element none() { return element(0); }
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static X gather(X const& a, X const& x) {
    return a + x;
  }
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static X centre(X const& first, element n) {
    return first * X(element(1) / n);
  }
  SITU_HOST_DEVICE static element absent(element c) { return c; }
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static void spread(X& s, X& t, X const& x, X const& c) {
    X const d = x - c;
    s = s + d * d;
    t = t + d;
  }
  /// Whether sums about a guess have lost no more than a bit or two: it is at most twice as far from the mean as the elements are in their root mean
  /// square, and so is the beginning of a straight line; or it is the mean but for the rounding of c.
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static auto is_near(X const& s, X const& t, X const& c, double n) {
    X const off = t * X(1 / n), square = s * X(1 / n) - off * off;
    return ((off * off <= X(4) * square) | (off * off <= c * c * X(sizeof(element) == 4 ? 0x1p-44 : 0x1p-102))) & (square < X(__builtin_huge_val()));
  }
  /// The centre was rounded, or guessed: t tells by how much.
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static void part(X& mean, X& squares, X const& c, X const& s, X const& t, double n) {
    X const off = t * X(1 / n);
    mean = c + off;
    squares = s - t * off;
  }
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static void merge(X& mean, X& squares, X const& mean2, X const& squares2, double n, double n2) {
    double const share = n2 / (n + n2);
    X const apart = mean2 - mean;
    squares = squares + squares2 + apart * apart * X(n * share);
    mean = mean + apart * X(share);
  }
  SITU_HOST_DEVICE static double value(accumulator const& a, double correction) {
    double const divisor = a.count > 0 ? a.count - correction : 0;  // of nothing it is NaN, whatever the correction
    return a.spread / (divisor > 0 ? divisor : 0.0);
  }
  SITU_HOST_DEVICE static result finish(accumulator const& a, int64_t, double correction) {
    return detail::convert_scalar<result>(value(a, correction));
  }
};

/// The root of the variance.
template <class T>
struct deviation : variance<T> {
  static constexpr char const* name = "stddev";
  using typename variance<T>::accumulator;
  using typename variance<T>::result;
  SITU_HOST_DEVICE static result finish(accumulator const& a, int64_t, double correction) {
    return detail::convert_scalar<result>(math::sqrt(variance<T>::value(a, correction)));
  }
};

/// log Σ exp(x), by the largest element and the sum of exponentials below it (Blanchard, Higham and Higham 2021).
template <class T>
struct logsumexp : centred_base<logsumexp<T>, compute_t<T>> {
  using base = centred_base<logsumexp<T>, compute_t<T>>;
  using base::merge;
  static constexpr char const* name = "logsumexp";
  static constexpr int times_dearer = 12;
  using element = compute_t<T>;
  using typename base::accumulator;
  using result = T;
  SITU_HOST_DEVICE static accumulator identity() { return {0, least_value<element>, 0}; }
  SITU_HOST_DEVICE static element none() { return least_value<element>; }
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static X gather(X const& a, X const& x) {
    return math::maximum(a, x);
  }
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static X centre(X const& largest, element) {
    return largest;
  }
  SITU_HOST_DEVICE static element absent(element) { return least_value<element>; }
  /// Infinities are not subtracted from themselves.
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static X shift(X const& largest) {
    return select(math::isfinite(largest), largest, X(element(0)));
  }
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static void spread(X& s, X&, X const& x, X const& largest) {
    s = s + math::exp(x - shift(largest));
  }
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static void part(X& centre, X& sum, X const& largest, X const& s, X const&, element) {
    centre = largest;
    sum = s;
  }
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static void merge(X& centre, X& sum, X const& centre2, X const& sum2, element, element) {
    X const largest = math::maximum(centre, centre2), from = shift(largest);
    sum = sum * math::exp(centre - from) + sum2 * math::exp(centre2 - from);
    centre = largest;
  }
  /// -inf where all elements are, inf or NaN where one is.
  SITU_HOST_DEVICE static result finish(accumulator const& a, int64_t) {
    return detail::convert_scalar<result>(math::isfinite(a.centre) ? a.centre + math::log(a.spread) : a.centre);
  }
};

}  // namespace reducers
}  // namespace situ::inline SITU_ABI
