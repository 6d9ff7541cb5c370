/// Initial values of parameters.
///
///     nn::init::kaiming_normal(conv.weight, {.mode = nn::init::fan::out, .nonlinearity = nn::init::nonlinearity::relu});
///     nn::init::zeros(conv.bias);                        // nothing where the layer has none
///     nn::init::orthogonal(rnn.weight_hh_l0, 1.0, generator);
///
/// Each function writes to a Variable, or to a Tensor, in place, without being recorded, and gives it back. What is random is drawn on the host, from the
/// default generator where none is given, and moved once: the same seed gives the same numbers on every device.
/// Throws    ShapeError for a shape that the distribution is not defined for, LayoutError for a broadcast view, TypeError for read-only storage; nothing is
///           written then.
#pragma once

#include <optional>

#include <situ/autograd/variable.hpp>
#include <situ/ops/matmul.hpp>
#include <situ/ops/random.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

template <class T, class D>
Tensor<T, D> initialized_tensor(Variable<T, D> const& v) {
  return v.value();
}
template <class T, class D>
Tensor<T, D> initialized_tensor(Tensor<T, D> const& t) {
  return t;
}
/// What nn::init writes to: a Variable, or a Tensor of floating elements.
template <class V>
concept can_be_initialized = requires(V const& v) { initialized_tensor(v); } && floating<typename V::value_type>;

/// Writes the elements of a tensor of the same shape on the host.
template <class V>
V const& write_from_host(V const& v, Tensor<typename V::value_type> const& from, char const* who) {
  using D = typename V::device_type;
  auto to = initialized_tensor(v);
  if (!to.is_contiguous()) {
    to.assign(from.to(D{}));
  } else if (to.size() > 0) {
    auto* const memory = to.data();
    if (auto* const head = to.storage().head()) head->note_write(who);
    copy_bytes<D, Cpu>(memory, from.data(), static_cast<std::size_t>(from.size()) * sizeof(*memory));
  }
  return v;
}

/// Random numbers one by one: the numbers that random_tensor makes, in a kernel that compiles ten times as fast. Initial values are drawn once.
template <class F>
struct DrawnNumbers {
  F numbers;
  typename F::element* result;
  void operator()(int64_t first, int64_t last) const {
    for (int64_t i = first; i < last; ++i) result[i] = numbers(i);
  }
};
template <class F>
auto drawn(Shape const& shape, F numbers, Generator& generator, char const* who) {
  using T = typename F::element;
  Tensor<T> result = Tensor<T>::uninitialized(shape, who);
  numbers.stream = next_stream(generator);
  if (result.size() > 0) device_traits<Cpu>::launch(DrawnNumbers<F>{numbers, result.data()}, result.size(), 1 << 12);
  return result;
}
/// As uniform, normal and full give them.
template <class T>
Tensor<T> drawn_uniform(double low, double high, Shape const& shape, Generator& generator, char const* who) {
  if (!(low <= high) || !(high - low <= std::numeric_limits<double>::max())) {
    fail<ShapeError>(who, ": from ", low, " to ", high, ": low must not be above high, and both must be finite");
  }
  using C = compute_t<T>;
  return drawn(shape, uniform_numbers<T>{{}, static_cast<C>(high - low), static_cast<C>(low), largest_below<T>(high, low), false}, generator, who);
}
template <class T>
Tensor<T> drawn_normal(double mean, double deviation, Shape const& shape, Generator& generator, char const* who) {
  if (!(deviation >= 0)) fail<ShapeError>(who, ": the standard deviation is ", deviation, "; it must not be negative");
  using C = compute_t<T>;
  return drawn(shape, normal_numbers<T>{{}, static_cast<C>(deviation), static_cast<C>(mean), false}, generator, who);
}
template <class T>
Tensor<T> drawn_constant(double value, Shape const& shape, char const* who) {
  Tensor<T> result = Tensor<T>::uninitialized(shape, who);
  T* const to = result.data();
  for (int64_t i = 0; i < result.size(); ++i) to[i] = convert_scalar<T>(value);
  return result;
}

/// How many numbers an output is made of, and how many outputs a number goes to, by a weight [out, in, window...].
struct Fans {
  double in, out;
};
inline Fans fans_of(Shape const& shape, char const* who) {
  if (shape.rank() < 2) fail<ShapeError>(who, ": shape ", shape, " has no fan in and fan out: a weight has two axes or more, [out, in, window...]");
  double window = 1;
  for (int k = 2; k < shape.rank(); ++k) window *= static_cast<double>(shape[k]);
  return {static_cast<double>(shape[1]) * window, static_cast<double>(shape[0]) * window};
}

inline double root(double x) { return SITU_LIBM(sqrt)(x); }

/// The number that a standard normal one is below with probability p in (0, 1).
/// Source    Acklam's rational approximation (relative error 1e-9), and two of Halley's steps.
inline double normal_quantile(double p) {
  constexpr double a[] = {-3.969683028665376e+01, 2.209460984245205e+02, -2.759285104469687e+02, 1.383577518672690e+02, -3.066479806614716e+01, 2.506628277459239e+00};
  constexpr double b[] = {-5.447609879822406e+01, 1.615858368580409e+02, -1.556989798598866e+02, 6.680131188771972e+01, -1.328068155288572e+01};
  constexpr double c[] = {-7.784894002430293e-03, -3.223964580411365e-01, -2.400758277161838e+00, -2.549732539343734e+00, 4.374664141464968e+00, 2.938163982698783e+00};
  constexpr double d[] = {7.784695709041462e-03, 3.224671290700398e-01, 2.445134137142996e+00, 3.754408661907416e+00};
  if (p > 0.5) return -normal_quantile(1 - p);
  if (!(p > 0)) return -std::numeric_limits<double>::infinity();
  double x;
  if (p < 0.02425) {
    double const q = root(-2 * SITU_LIBM(log)(p));
    x = (((((c[0] * q + c[1]) * q + c[2]) * q + c[3]) * q + c[4]) * q + c[5]) / ((((d[0] * q + d[1]) * q + d[2]) * q + d[3]) * q + 1);
  } else {
    double const q = p - 0.5, r = q * q;
    x = (((((a[0] * r + a[1]) * r + a[2]) * r + a[3]) * r + a[4]) * r + a[5]) * q / (((((b[0] * r + b[1]) * r + b[2]) * r + b[3]) * r + b[4]) * r + 1);
  }
  for (int step = 0; step < 2; ++step) {
    double const error = 0.5 * SITU_LIBM(erfc)(-x * 0.70710678118654752440) - p;
    double const u = error * 2.50662827463100050242 * SITU_LIBM(exp)(x * x / 2);
    x -= u / (1 + x * u / 2);
  }
  return x;
}

/// Makes rows of a matrix [count, length] on the host orthonormal, each without its share of those before: what columns become as Q of a decomposition Q R with
/// a diagonal of R that is positive. Blocks of rows lose their share of all rows before in two products, then each its share of those in its block; all of it
/// twice, after which rows are orthogonal to the last digits.
/// Source    Giraud, Langou & Rozložník 2005, doi:10.1016/j.camwa.2005.08.009 ("twice is enough").
template <class Real>
void orthonormalize(Tensor<Real>& matrix) {
  int64_t const count = matrix.size(0), length = matrix.size(1);
  Real* const rows = matrix.data();
  auto const dot = [length](Real const* a, Real const* b) {
    Real sums[4] = {};
    int64_t k = 0;
    for (; k + 4 <= length; k += 4) {
      for (int j = 0; j < 4; ++j) sums[j] += a[k + j] * b[k + j];
    }
    for (; k < length; ++k) sums[0] += a[k] * b[k];
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
  };
  constexpr int64_t width = 32;
  for (int64_t first = 0; first < count; first += width) {
    int64_t const last = first + width < count ? first + width : count;
    for (int turn = 0; turn < 2; ++turn) {
      if (first > 0) {
        Tensor<Real> const block = matrix.slice(0, first, last), before = matrix.slice(0, 0, first);
        Tensor<Real> const shares = matmul(matmul(block, before.t()), before);
        Real const* const share = shares.data();
        for (int64_t k = 0; k < (last - first) * length; ++k) rows[first * length + k] -= share[k];
      }
      for (int64_t i = first; i < last; ++i) {
        Real* const row = rows + i * length;
        for (int64_t j = first; j < i; ++j) {
          Real const* const other = rows + j * length;
          Real const share = dot(row, other);
          for (int64_t k = 0; k < length; ++k) row[k] -= share * other[k];
        }
        Real const norm = root(dot(row, row));
        for (int64_t k = 0; k < length; ++k) row[k] /= norm;
      }
    }
  }
}

}  // namespace detail

namespace nn::init {

/// What a distribution's width is made from: the numbers that come in, which keeps the size of values on the way forward, or those that go out, which keeps
/// that of gradients on the way back.
enum class fan { in, out };

/// What follows a layer.
enum class nonlinearity { linear, sigmoid, tanh, relu, leaky_relu, selu };

/// The gain that keeps the size of values through a nonlinearity: 1, for tanh 5/3, relu √2, leaky_relu √(2 / (1 + slope²)), selu 3/4.
inline double calculate_gain(nonlinearity kind, double slope = 0.01) {
  switch (kind) {
    case nonlinearity::tanh: return 5.0 / 3;
    case nonlinearity::relu: return detail::root(2.0);
    case nonlinearity::leaky_relu: return detail::root(2 / (1 + slope * slope));
    case nonlinearity::selu: return 0.75;
    default: return 1;
  }
}

/// Uniform in [low, high).
template <detail::can_be_initialized V>
V uniform(V const& v, double low = 0, double high = 1, Generator& generator = detail::default_generator()) {
  return detail::write_from_host(v, detail::drawn_uniform<typename V::value_type>(low, high, v.shape(), generator, "init::uniform"), "init::uniform");
}

/// Normal with this mean and standard deviation.
template <detail::can_be_initialized V>
V normal(V const& v, double mean = 0, double deviation = 1, Generator& generator = detail::default_generator()) {
  return detail::write_from_host(v, detail::drawn_normal<typename V::value_type>(mean, deviation, v.shape(), generator, "init::normal"), "init::normal");
}

/// Normal, without what lies outside of [low, high]: the quantiles of uniform numbers. Throws ShapeError unless low < high, or for a negative deviation.
template <detail::can_be_initialized V>
V trunc_normal(V const& v, double mean = 0, double deviation = 1, double low = -2, double high = 2, Generator& generator = detail::default_generator()) {
  if (!(deviation >= 0) || !(low < high)) {
    detail::fail<ShapeError>("init::trunc_normal: from ", low, " to ", high, " with a standard deviation of ", deviation,
                             ": low must be below high, and the deviation must not be negative");
  }
  using T = typename V::value_type;
  Tensor<double> const chances = detail::drawn_uniform<double>(0, 1, v.shape(), generator, "init::trunc_normal");
  Tensor<T> result = Tensor<T>::uninitialized(v.shape(), "init::trunc_normal");
  // Probabilities in the lower half keep their digits: an interval above the mean is mirrored.
  bool const mirrored = low > mean;
  double const side = mirrored ? -1 : 1, from = mirrored ? mean - high : low - mean, to = mirrored ? mean - low : high - mean;
  auto const probability = [deviation](double distance) { return 0.5 * SITU_LIBM(erfc)(-distance / (deviation * 1.41421356237309504880)); };
  double const first = deviation > 0 ? probability(from) : 0, last = deviation > 0 ? probability(to) : 0;
  for (int64_t i = 0; i < result.size(); ++i) {
    double distance = deviation > 0 ? deviation * detail::normal_quantile(first + (last - first) * chances.data()[i]) : 0;
    distance = distance < from ? from : distance > to ? to : distance;
    result.data()[i] = detail::convert_scalar<T>(mean + side * distance);
  }
  return detail::write_from_host(v, result, "init::trunc_normal");
}

/// Every element is `value`.
template <detail::can_be_initialized V>
V constant(V const& v, double value) {
  return detail::write_from_host(v, detail::drawn_constant<typename V::value_type>(value, v.shape(), "init::constant"), "init::constant");
}
template <detail::can_be_initialized V>
V zeros(V const& v) {
  return init::constant(v, 0);
}
template <detail::can_be_initialized V>
V ones(V const& v) {
  return init::constant(v, 1);
}

/// The same for what a layer may have or not, as a bias: nothing where there is none.
template <detail::can_be_initialized V>
std::optional<V> constant(std::optional<V> const& v, double value) {
  if (v) init::constant(*v, value);
  return v;
}
template <detail::can_be_initialized V>
std::optional<V> zeros(std::optional<V> const& v) {
  return init::constant(v, 0);
}
template <detail::can_be_initialized V>
std::optional<V> ones(std::optional<V> const& v) {
  return init::constant(v, 1);
}
template <detail::can_be_initialized V>
std::optional<V> uniform(std::optional<V> const& v, double low = 0, double high = 1, Generator& generator = detail::default_generator()) {
  if (v) init::uniform(*v, low, high, generator);
  return v;
}
template <detail::can_be_initialized V>
std::optional<V> normal(std::optional<V> const& v, double mean = 0, double deviation = 1, Generator& generator = detail::default_generator()) {
  if (v) init::normal(*v, mean, deviation, generator);
  return v;
}

/// The identity of a linear layer: a matrix with ones on its diagonal.
template <detail::can_be_initialized V>
V eye(V const& v) {
  if (v.rank() != 2) detail::fail<ShapeError>("init::eye: shape ", v.shape(), " was given: a matrix has two axes");
  using T = typename V::value_type;
  Tensor<T> values = detail::drawn_constant<T>(0, v.shape(), "init::eye");
  int64_t const rows = v.shape()[0], columns = v.shape()[1];
  for (int64_t k = 0; k < rows && k < columns; ++k) values.data()[k * columns + k] = detail::convert_scalar<T>(1);
  return detail::write_from_host(v, values, "init::eye");
}

/// Uniform in ±gain √(6 / (fan in + fan out)).
/// Source    Glorot & Bengio 2010.
template <detail::can_be_initialized V>
V xavier_uniform(V const& v, double gain = 1, Generator& generator = detail::default_generator()) {
  detail::Fans const fans = detail::fans_of(v.shape(), "init::xavier_uniform");
  double const bound = fans.in + fans.out > 0 ? gain * detail::root(6 / (fans.in + fans.out)) : 0;
  return init::uniform(v, -bound, bound, generator);
}
/// Normal with standard deviation gain √(2 / (fan in + fan out)).
template <detail::can_be_initialized V>
V xavier_normal(V const& v, double gain = 1, Generator& generator = detail::default_generator()) {
  detail::Fans const fans = detail::fans_of(v.shape(), "init::xavier_normal");
  return init::normal(v, 0, fans.in + fans.out > 0 ? gain * detail::root(2 / (fans.in + fans.out)) : 0, generator);
}

/// The options of kaiming_uniform and kaiming_normal; `a` is the negative slope of the leaky_relu that follows.
struct kaiming_options {
  double a = 0;
  fan mode = fan::in;
  init::nonlinearity nonlinearity = init::nonlinearity::leaky_relu;

  /// The standard deviation: gain / √fan.
  double deviation(Shape const& shape, char const* who) const {
    detail::Fans const fans = detail::fans_of(shape, who);
    double const count = mode == fan::in ? fans.in : fans.out;
    return count > 0 ? calculate_gain(nonlinearity, a) / detail::root(count) : 0;
  }
};
/// Uniform in ±gain √(3 / fan).
/// Source    He, Zhang, Ren & Sun 2015, doi:10.1109/ICCV.2015.123.
template <detail::can_be_initialized V>
V kaiming_uniform(V const& v, kaiming_options const& options = {}, Generator& generator = detail::default_generator()) {
  double const bound = detail::root(3.0) * options.deviation(v.shape(), "init::kaiming_uniform");
  return init::uniform(v, -bound, bound, generator);
}
/// Normal with standard deviation gain / √fan.
template <detail::can_be_initialized V>
V kaiming_normal(V const& v, kaiming_options const& options = {}, Generator& generator = detail::default_generator()) {
  return init::normal(v, 0, options.deviation(v.shape(), "init::kaiming_normal"), generator);
}

/// A matrix [out, in...] with orthonormal rows, or columns where there are fewer of them, times `gain`: uniform among all such matrices.
/// Cost      4 m n² operations of double on the host, n the smaller extent, most of them in products.
/// Source    Saxe, McClelland & Ganguli 2014, arXiv:1312.6120.
template <detail::can_be_initialized V>
V orthogonal(V const& v, double gain = 1, Generator& generator = detail::default_generator()) {
  if (v.rank() < 2) detail::fail<ShapeError>("init::orthogonal: shape ", v.shape(), " was given: a weight has two axes or more, [out, in, window...]");
  int64_t const rows = v.shape()[0], columns = rows > 0 ? detail::product(v.shape()) / rows : 0;
  bool const tall = rows > columns;
  Tensor<double> matrix = detail::drawn_normal<double>(0, 1, tall ? Shape{columns, rows} : Shape{rows, columns}, generator, "init::orthogonal");
  detail::orthonormalize(matrix);
  using T = typename V::value_type;
  auto const values = Tensor<T>::uninitialized(v.shape(), "init::orthogonal");
  T* const to = const_cast<T*>(values.data());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) to[i * columns + j] = detail::convert_scalar<T>(gain * matrix.data()[tall ? j * rows + i : i * columns + j]);
  }
  return detail::write_from_host(v, values, "init::orthogonal");
}

}  // namespace nn::init
}  // namespace situ::inline SITU_ABI
