/// Random numbers: rand, randn, uniform, normal, randint, bernoulli.
///
/// Philox 4x32-10, keyed by the seed, with the element's index and the number of the call as counter (ops/philox.hpp tells how). The same seed
/// gives the same numbers on every device, for any number of threads: integers, coins and uniforms bit for bit, normals within 2 ULP.
///
///     Generator generator{42};
///     randn({2, 3}, generator, Cuda<0>{});   uniform(-1, 1, {2, 3});   randint(0, 10, {4});   bernoulli(0.1, {1000});
///
/// Shape     the shape comes before the generator, the device tag last; without a generator the default one draws, which manual_seed seeds.
/// Device    the numbers are made on the device; enqueued, not waited for.
/// Throws    ShapeError for a shape that no tensor can have, and for parameters that no distribution has. The generator stays as it was then.
/// Cost      one allocation and one launch.
#pragma once

#include <exception>

#include <situ/ops/random_numbers.hpp>
#include <situ/tensor/factories.hpp>

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
  /// How often it has been drawn from: with the seed, its whole state.
  uint64_t calls() const { return __atomic_load_n(&calls_, __ATOMIC_RELAXED); }
  /// Goes on as after so many calls.
  void restore(uint64_t seed, uint64_t calls) {
    seed_ = seed;
    __atomic_store_n(&calls_, calls, __ATOMIC_RELAXED);
  }
  /// The number of this call; for those who draw.
  uint64_t next_call() { return __atomic_fetch_add(&calls_, uint64_t{1}, __ATOMIC_RELAXED); }
  /// The call of that number made nothing: the next one gets it, unless another has been made since.
  void give_back(uint64_t call) {
    uint64_t after = call + 1;
    __atomic_compare_exchange_n(&calls_, &after, call, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED);
  }

 private:
  uint64_t seed_;
  uint64_t calls_ = 0;
};

namespace detail {

SITU_PROCESS_STATE Generator& default_generator() {
  static Generator generator;
  return generator;
}

inline RandomStream next_stream(Generator& generator) { return {generator.seed(), generator.next_call()}; }

/// A generator's next call, which is not used up where its scope is left by an exception.
class Draw {
 public:
  explicit Draw(Generator& generator) : stream(next_stream(generator)), generator_(generator), exceptions_(std::uncaught_exceptions()) {}
  Draw(Draw const&) = delete;
  Draw& operator=(Draw const&) = delete;
  ~Draw() {
    if (std::uncaught_exceptions() > exceptions_) generator_.give_back(stream.call);
  }
  RandomStream const stream;

 private:
  Generator& generator_;
  int exceptions_;
};

/// The largest finite value of a floating type.
template <class T>
inline constexpr double most_of = std::is_same_v<T, float16> ? 65504 : std::is_same_v<T, double> ? std::numeric_limits<double>::max()
                                : std::is_same_v<T, float> ? 0x1.fffffep127 : 0x1.fep127;

/// Throws ShapeError where whole numbers from `least` to `most` are no values of T, or are beyond its largest.
template <element T>
void check_holds([[maybe_unused]] int64_t least, [[maybe_unused]] int64_t most, [[maybe_unused]] char const* who) {
  if constexpr (!floating<T> || std::is_same_v<T, float16>) {
    constexpr int64_t lowest = floating<T> ? -65504 : static_cast<int64_t>(std::numeric_limits<T>::lowest()), highest = floating<T> ? 65504 : static_cast<int64_t>(std::numeric_limits<T>::max());
    if (least < lowest || most > highest) fail<ShapeError>(who, ": numbers from ", least, " to ", most, " were asked for; ", dtype_name<T>(), " holds ", lowest, " to ", highest);
  }
}

/// `low`, or where a floating T rounds it down, the least T above it, when there is one below `high`.
template <class T>
int64_t start_of_integers(int64_t low, int64_t high) {
  if constexpr (floating<T>) {
    if (convert_scalar<int64_t>(convert_scalar<T>(low)) >= low) return low;
    double const above = -static_cast<double>(largest_below<T>(-static_cast<double>(low), -1e19));
    return above < 0x1p63 && static_cast<int64_t>(above) < high ? static_cast<int64_t>(above) : low;
  } else {
    return low;
  }
}
/// `high`, or where a floating T rounds high - 1 up to it, the end of the integers up to the largest T below it.
template <class T>
int64_t end_of_integers(int64_t low, int64_t high) {
  if constexpr (floating<T>) {
    int64_t const below = static_cast<int64_t>(largest_below<T>(static_cast<double>(high), static_cast<double>(low)));
    return below >= low && below < high - 1 && convert_scalar<int64_t>(convert_scalar<T>(high - 1)) >= high ? below + 1 : high;
  } else {
    return high;
  }
}

/// A fresh tensor of these numbers.
template <device D, class F>
Tensor<typename F::element, D> random_tensor(Shape const& shape, F const& numbers, char const* who) {
  using T = typename F::element;
  auto result = Tensor<T, D>::uninitialized(shape, who);
  if constexpr (std::is_same_v<typename device_traits<D>::kernels, cpu_kernels>) {
    if (result.size() > 0) device_traits<D>::launch(cpu::RandomKernel<F>{numbers, result.data()}, result.size(), int64_t{1} << 15);
  } else {
    fill_with(result, numbers);
  }
  return result;
}
/// The same of the generator's next call.
template <device D, class F>
Tensor<typename F::element, D> random_tensor(Shape const& shape, F numbers, Generator& generator, char const* who) {
  Draw const draw(generator);
  numbers.stream = draw.stream;
  return random_tensor<D>(shape, numbers, who);
}

}  // namespace detail

/// The generator that draws where none is given: its seed() and calls() continue a program later, by restore().
inline Generator& default_generator() { return detail::default_generator(); }
/// Seeds it.
inline void manual_seed(uint64_t seed) { detail::default_generator().manual_seed(seed); }

/// Uniform in [0, 1): multiples of 2^-24, for double of 2^-53, for float16 of 2^-11, for bfloat16 of 2^-8.
template <element T = float, device D = Cpu>
  requires floating<T>
Tensor<T, D> rand(Shape const& shape, Generator& generator, D = {}) {
  return detail::random_tensor<D>(shape, detail::uniform_numbers<T>{}, generator, "rand");
}
template <element T = float, device D = Cpu>
  requires floating<T>
Tensor<T, D> rand(Shape const& shape, D device = {}) {
  return rand<T>(shape, detail::default_generator(), device);
}

/// Normal with mean 0 and standard deviation 1, by Box and Muller's transform of two uniform numbers into two normal ones.
template <element T = float, device D = Cpu>
  requires floating<T>
Tensor<T, D> randn(Shape const& shape, Generator& generator, D = {}) {
  return detail::random_tensor<D>(shape, detail::normal_numbers<T>{}, generator, "randn");
}
template <element T = float, device D = Cpu>
  requires floating<T>
Tensor<T, D> randn(Shape const& shape, D device = {}) {
  return randn<T>(shape, detail::default_generator(), device);
}
SITU_SHAPE_IN_BRACES(rand)
SITU_SHAPE_IN_BRACES(randn)
#undef SITU_SHAPE_IN_BRACES

/// Uniform in [low, high): low + (high - low) u, u as rand gives it, and never high. Throws ShapeError unless low <= high, both finite in T, and
/// high - low is finite in the type of the arithmetic (float for 16-bit types).
template <element T = float, device D = Cpu>
  requires floating<T>
Tensor<T, D> uniform(double low, double high, Shape const& shape, Generator& generator, D = {}) {
  if (!(low <= high) || !(high - low <= std::numeric_limits<double>::max())) {
    detail::fail<ShapeError>("uniform: from ", low, " to ", high, ": low must not be above high, and both must be finite");
  }
  using C = compute_t<T>;
  if (double const most = detail::most_of<T>; low < -most || high > most || high - low > static_cast<double>(std::numeric_limits<C>::max())) {
    detail::fail<ShapeError>("uniform: from ", low, " to ", high, ": that is more than ", dtype_name<T>(), " spans");
  }
  detail::uniform_numbers<T> const numbers{{}, static_cast<C>(high - low), static_cast<C>(low), detail::largest_below<T>(high, low), false};
  return detail::random_tensor<D>(shape, numbers, generator, "uniform");
}
template <element T = float, device D = Cpu>
  requires floating<T>
Tensor<T, D> uniform(double low, double high, Shape const& shape, D device = {}) {
  return uniform<T>(low, high, shape, detail::default_generator(), device);
}

/// Normal with that mean and standard deviation: mean + deviation z, z as randn gives it. Throws ShapeError when the deviation is negative or NaN.
template <element T = float, device D = Cpu>
  requires floating<T>
Tensor<T, D> normal(double mean, double deviation, Shape const& shape, Generator& generator, D = {}) {
  if (!(deviation >= 0)) detail::fail<ShapeError>("normal: the standard deviation is ", deviation, "; it must not be negative");
  using C = compute_t<T>;
  detail::normal_numbers<T> const numbers{{}, static_cast<C>(deviation), static_cast<C>(mean), false};
  return detail::random_tensor<D>(shape, numbers, generator, "normal");
}
template <element T = float, device D = Cpu>
  requires floating<T>
Tensor<T, D> normal(double mean, double deviation, Shape const& shape, D device = {}) {
  return normal<T>(mean, deviation, shape, detail::default_generator(), device);
}

/// Integers uniform in [low, high), each within 2^-64 of its share. Throws ShapeError unless low < high, and T holds them. Floats round them, and
/// give no integer that would be rounded below low or up to high.
template <element T = int64_t, device D = Cpu>
Tensor<T, D> randint(int64_t low, int64_t high, Shape const& shape, Generator& generator, D = {}) {
  if (low >= high) detail::fail<ShapeError>("randint: from ", low, " to ", high, ": there is no integer in between; low must be less than high");
  detail::check_holds<T>(low, high - 1, "randint");
  int64_t const start = detail::start_of_integers<T>(low, high);
  uint64_t const span = static_cast<uint64_t>(detail::end_of_integers<T>(low, high)) - static_cast<uint64_t>(start);
  return detail::random_tensor<D>(shape, detail::whole_numbers<T>{{}, start, span}, generator, "randint");
}
template <element T = int64_t, device D = Cpu>
Tensor<T, D> randint(int64_t low, int64_t high, Shape const& shape, D device = {}) {
  return randint<T>(low, high, shape, detail::default_generator(), device);
}

/// From 0 up to high: randint(10, {4}).
template <element T = int64_t, device D = Cpu>
Tensor<T, D> randint(int64_t high, Shape const& shape, Generator& generator, D device = {}) {
  return randint<T>(0, high, shape, generator, device);
}
template <element T = int64_t, device D = Cpu>
Tensor<T, D> randint(int64_t high, Shape const& shape, D device = {}) {
  return randint<T>(0, high, shape, detail::default_generator(), device);
}

namespace error {
template <class... Given>
struct randint_takes_integers__use_cast {};
}  // namespace error
template <element T = int64_t, device D = Cpu, number A, number B, class... Rest, class Error = error::randint_takes_integers__use_cast<A, B>>
  requires(std::floating_point<A> || std::floating_point<B>)
void randint(A, B, Shape const&, Rest&&...) = delete;
template <element T = int64_t, device D = Cpu, std::floating_point A, class... Rest, class Error = error::randint_takes_integers__use_cast<A>>
void randint(A, Shape const&, Rest&&...) = delete;

/// 1 with probability p, else 0. Throws ShapeError unless p is in [0, 1].
template <element T = float, device D = Cpu>
Tensor<T, D> bernoulli(double p, Shape const& shape, Generator& generator, D = {}) {
  if (!(p >= 0 && p <= 1)) detail::fail<ShapeError>("bernoulli: the probability is ", p, "; it must be in [0, 1]");
  if (p > 0) return detail::random_tensor<D>(shape, detail::coins<T>{{}, detail::Chance::of(p)}, generator, "bernoulli");
  detail::Draw const draw(generator);
  return detail::filled<T, D>(shape, 0, "bernoulli");
}
template <element T = float, device D = Cpu>
Tensor<T, D> bernoulli(double p, Shape const& shape, D device = {}) {
  return bernoulli<T>(p, shape, detail::default_generator(), device);
}

// The shape may stand first, as it does elsewhere: normal({2, 3}, 0, 1), randint({4}, 10). A braced list that could be a number is an array, which is nearer.
#define SITU_SHAPE_FIRST(NAME, ELEMENT, KIND, PARAMETERS, ...)                                                                \
  template <element T = ELEMENT, device D = Cpu, std::same_as<Shape> S = Shape, KIND>                                        \
  Tensor<T, D> NAME(S const& shape, PARAMETERS, D device = {}) {                                                             \
    return NAME<T>(__VA_ARGS__, shape, device);                                                                              \
  }                                                                                                                          \
  template <element T = ELEMENT, device D = Cpu, std::same_as<Shape> S = Shape, KIND>                                        \
  Tensor<T, D> NAME(S const& shape, PARAMETERS, Generator& generator, D device = {}) {                                       \
    return NAME<T>(__VA_ARGS__, shape, generator, device);                                                                   \
  }                                                                                                                          \
  template <element T = ELEMENT, device D = Cpu, std::integral Ix, KIND>                                                     \
  Tensor<T, D> NAME(Ix const (&extent)[1], PARAMETERS, D device = {}) {                                                      \
    return NAME<T>(__VA_ARGS__, Shape(extent[0]), device);                                                                   \
  }                                                                                                                          \
  template <element T = ELEMENT, device D = Cpu, std::integral Ix, KIND>                                                     \
  Tensor<T, D> NAME(Ix const (&extent)[1], PARAMETERS, Generator& generator, D device = {}) {                                \
    return NAME<T>(__VA_ARGS__, Shape(extent[0]), generator, device);                                                        \
  }
#define SITU_COMMA ,
SITU_SHAPE_FIRST(uniform, float, number A SITU_COMMA number B, A low SITU_COMMA B high, low, high)
SITU_SHAPE_FIRST(normal, float, number A SITU_COMMA number B, A mean SITU_COMMA B deviation, mean, deviation)
SITU_SHAPE_FIRST(randint, int64_t, std::integral A SITU_COMMA std::integral B, A low SITU_COMMA B high, low, high)
SITU_SHAPE_FIRST(bernoulli, float, number A, A p, static_cast<double>(p))
SITU_SHAPE_FIRST(randint, int64_t, std::integral A, A high, static_cast<int64_t>(high))
#undef SITU_COMMA
#undef SITU_SHAPE_FIRST

/// rand and randn of the shape, element type and device of another tensor or expression; on the Cpu for what is Pinned, as all results.
template <expression E>
  requires floating<value_of<E>>
auto rand_like(E const& e, Generator& generator = detail::default_generator()) {
  return rand<value_of<E>>(e.shape(), generator, detail::result_device_t<device_of<E>>{});
}
template <expression E>
  requires floating<value_of<E>>
auto randn_like(E const& e, Generator& generator = detail::default_generator()) {
  return randn<value_of<E>>(e.shape(), generator, detail::result_device_t<device_of<E>>{});
}

}  // namespace situ::inline SITU_ABI
