/// Random numbers: Philox 4x32-10, keyed by the seed, with the element's index and the number of the call as counter.
///
/// The same seed gives the same numbers on every device and for any number of threads: integers and uniforms bit for bit, normals
/// within a few ULP.
/// Source    Salmon, Moraes, Dror & Shaw 2011, doi:10.1145/2063384.2063405.
#pragma once

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
