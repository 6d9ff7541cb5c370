#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <situ/ops/compare.hpp>
#include <situ/ops/random.hpp>
#include <situ/ops/random_ops.hpp>
#include <situ/ops/reduce.hpp>
#include <situ/tensor.hpp>
#include <support/compare.hpp>
#include <support/devices.hpp>
#include <support/probe.hpp>

using namespace situ;

namespace {

__extension__ typedef unsigned __int128 wide_unsigned;

/// Philox 4x32-10 as the paper writes it, of counter (block, call).
struct Block {
  uint32_t word[4];
};
Block philox_by_the_paper(uint64_t seed, uint64_t block, uint64_t call) {
  uint32_t c[4] = {static_cast<uint32_t>(block), static_cast<uint32_t>(block >> 32), static_cast<uint32_t>(call), static_cast<uint32_t>(call >> 32)};
  uint32_t key[2] = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  for (int round = 0; round < 10; ++round) {
    uint64_t const p0 = 0xD2511F53ull * c[0], p1 = 0xCD9E8D57ull * c[2];
    uint32_t const next[4] = {static_cast<uint32_t>(p1 >> 32) ^ c[1] ^ key[0], static_cast<uint32_t>(p1), static_cast<uint32_t>(p0 >> 32) ^ c[3] ^ key[1],
                              static_cast<uint32_t>(p0)};
    std::copy(next, next + 4, c);
    key[0] += 0x9E3779B9u, key[1] += 0xBB67AE85u;
  }
  return {{c[0], c[1], c[2], c[3]}};
}
/// word(i) and draw(i) of the documentation.
struct WordStream {
  uint64_t seed, call;
  uint32_t word(int64_t i) const { return philox_by_the_paper(seed, static_cast<uint64_t>(i) / 4, call).word[i % 4]; }
  uint64_t draw(int64_t i) const { return uint64_t{word(2 * i)} << 32 | word(2 * i + 1); }
};

template <class X, class F>
bool all_are(X const& x, F expected) {
  auto const values = x.cpu().to_vector();
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!(values[i] == expected(static_cast<int64_t>(i)))) {
      MESSAGE("element ", i);
      return false;
    }
  }
  return true;
}

/// The largest distance between the distribution of x and the function given, times the root of their number (Kolmogorov and Smirnov):
/// above 1.95 with probability 0.001.
template <class T, class F>
double distance(std::vector<T>& x, F distribution) {
  std::sort(x.begin(), x.end());
  double const n = static_cast<double>(x.size());
  double worst = 0;
  for (std::size_t k = 0; k < x.size(); ++k) {
    double const f = distribution(static_cast<double>(x[k]));
    worst = std::fmax(worst, std::fmax(f - static_cast<double>(k) / n, static_cast<double>(k + 1) / n - f));
  }
  return worst * std::sqrt(n);
}

double mean_of(Tensor<float> const& x) { return mean(cast<double>(x)).item(); }

}  // namespace

TEST_CASE("Philox 4x32-10 gives the numbers of the published test vectors") {
  // The known-answer file of Random123: kat_vectors, philox4x32 10.
  struct {
    uint64_t key, block, call;
    uint32_t word[4];
  } const known[] = {{0, 0, 0, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
                     {~0ull, ~0ull, ~0ull, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
                     {0x299f31d0a4093822ull, 0x85a308d3243f6a88ull, 0x0370734413198a2eull, {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}};
  for (auto const& k : known) {
    auto const words = detail::philox(k.key, k.block, k.call);
    auto const paper = philox_by_the_paper(k.key, k.block, k.call);
    for (int w = 0; w < 4; ++w) {
      CHECK(words.word[w] == k.word[w]);
      CHECK(paper.word[w] == k.word[w]);
    }
  }
}

TEST_CASE_TEMPLATE("element i is made from word i or draw i of its call, as documented", D, SITU_TEST_DEVICES) {
  situ_test::with_every_instruction_set<D>([] {
    Generator generator{0x123456789abcdefull};
    int64_t const n = 1237;
    auto stream = [call = uint64_t{0}]() mutable { return WordStream{0x123456789abcdefull, call++}; };
    auto s = stream();
    CHECK(all_are(rand({n}, generator, D{}), [&](int64_t i) { return static_cast<float>(s.word(i) >> 8) * 0x1p-24f; }));
    s = stream();
    CHECK(all_are(rand<double>({n}, generator, D{}), [&](int64_t i) { return static_cast<double>(s.draw(i) >> 11) * 0x1p-53; }));
    s = stream();
    CHECK(all_are(rand<bfloat16>({n}, generator, D{}), [&](int64_t i) { return bfloat16(static_cast<float>(s.word(i) >> 24) * 0x1p-8f); }));
    s = stream();
    CHECK(all_are(uniform(-3, 1.5, {n}, generator, D{}), [&](int64_t i) {
      volatile float const product = static_cast<float>(s.word(i) >> 8) * 0x1p-24f * 4.5f;
      return product + -3.f;
    }));
    s = stream();
    CHECK(all_are(randint(-7, 93, {n}, generator, D{}), [&](int64_t i) { return static_cast<int64_t>(static_cast<wide_unsigned>(s.draw(i)) * 100 >> 64) - 7; }));
    s = stream();
    CHECK(all_are(randint(INT64_MIN, INT64_MAX, {n}, generator, D{}), [&](int64_t i) {
      return static_cast<int64_t>(static_cast<uint64_t>(INT64_MIN) + static_cast<uint64_t>(static_cast<wide_unsigned>(s.draw(i)) * UINT64_MAX >> 64));
    }));
    s = stream();
    CHECK(all_are(bernoulli(0.25, {n}, generator, D{}), [&](int64_t i) { return s.word(i) < 0x40000000u ? 1.f : 0.f; }));
    s = stream();
    Tensor<float, D> const x = full<float>({n}, 3.f, D{});
    CHECK(all_are(dropout(x * 2.f, 0.75, generator), [&](int64_t i) { return s.word(i) < 0x40000000u ? 24.f : 0.f; }));
    s = stream();
    CHECK(all_are(bernoulli(x * 0.25f, generator), [&](int64_t i) { return static_cast<float>(s.word(i) >> 8) * 0x1p-24f < 0.75f ? 1.f : 0.f; }));
  });
}

TEST_CASE("normal numbers are Box and Muller's to within 2 ULP, with every instruction set") {
  situ_test::with_every_instruction_set<Cpu>([] {
    Generator generator{5};
    int64_t const n = 400'001;
    auto const x = randn({n}, generator).to_vector();
    auto const wide = randn<double>({n}, generator).to_vector();
    WordStream const s{5, 0}, t{5, 1};
    double worst = 0, worst_wide = 0;
    auto ulps = [](double got, double expected, double digits) {
      return std::fabs(got - expected) / std::ldexp(1.0, std::ilogb(std::fabs(expected) + 1e-30) - static_cast<int>(digits));
    };
    for (int64_t i = 0; i < n; ++i) {
      int64_t const even = i - i % 2;
      auto turned = [&](double turns) {  // exact at quarters
        double const r = turns - std::nearbyint(turns * 4) / 4;
        double const c = std::cos(6.283185307179586477 * r), v = std::sin(6.283185307179586477 * r);
        int const quarter = static_cast<int>(std::nearbyint(turns * 4)) % 4;
        double const cosine = quarter == 0 ? c : quarter == 1 ? -v : quarter == 2 ? -c : v;
        double const sine = quarter == 0 ? v : quarter == 1 ? c : quarter == 2 ? -v : -c;
        return i % 2 ? sine : cosine;
      };
      double const u = static_cast<double>(static_cast<float>(s.word(even) >> 1 | 1u) * 0x1p-31f);
      worst = situ_test::worse(worst, ulps(static_cast<double>(x[static_cast<std::size_t>(i)]),
                                    std::sqrt(-2 * std::log(u)) * turned(static_cast<double>(s.word(even + 1) >> 8) * 0x1p-24), 23));
      double const v = 1 - static_cast<double>(t.draw(even) >> 11) * 0x1p-53;
      worst_wide = situ_test::worse(worst_wide, ulps(wide[static_cast<std::size_t>(i)], std::sqrt(-2 * std::log(v)) * turned(static_cast<double>(t.draw(even + 1) >> 11) * 0x1p-53), 52));
    }
    CHECK(worst <= 2);
    CHECK(worst_wide <= 4);  // of a reference that is itself rounded
  });
}

TEST_CASE("the same seed gives the same numbers on every device, in every part of a tensor, and every call other ones") {
  Generator first{42}, second{42}, third{43};
  auto const a = rand({1000}, first), b = rand({1000}, first);
  auto const on_device = rand({1000}, second, Emulated<0>{});
  CHECK(equal(a, on_device.cpu()));
  CHECK_FALSE(equal(a, b));
  CHECK_FALSE(equal(a, rand({1000}, third)));
  manual_seed(7);
  auto const c = randn({10, 10}), d = randn({100});
  manual_seed(7);
  CHECK(equal(c.reshape({100}), randn({100})));
  CHECK(equal(d.slice(0, 0, 37), randn({37})));
  int const threads = num_threads();
  auto drawn = [](int n) {
    set_num_threads(n);
    Generator g{9};
    return std::vector<Tensor<float>>{rand({200'003}, g), randn({200'003}, g), dropout(full({200'003}, 1.f), 0.5, g), dropout(full({419, 401}, 1.f).t(), 0.5, g)};
  };
  auto const one = drawn(1), two = drawn(2);
  set_num_threads(threads);
  for (std::size_t k = 0; k < one.size(); ++k) CHECK(equal(one[k], two[k]));
}

TEST_CASE("ten million uniform and normal numbers have the moments and the distribution that they should have") {
  int64_t const n = 10'000'000;
  double const root = std::sqrt(static_cast<double>(n));
  Generator generator{1};
  auto const u = rand({n}, generator);
  CHECK(std::abs(mean_of(u) - 0.5) < 5 * std::sqrt(1.0 / 12) / root);
  CHECK(std::abs(mean(square(cast<double>(u) - 0.5)).item() - 1.0 / 12) < 5 * std::sqrt(1.0 / 180) / root);
  CHECK(min(u).item() >= 0);
  CHECK(max(u).item() < 1);
  auto const x = randn({n}, generator);
  CHECK(std::abs(mean_of(x)) < 5 / root);
  CHECK(std::abs(mean_of(square(x)) - 1) < 5 * std::sqrt(2.0) / root);
  CHECK(std::abs(mean_of(x * x * x)) < 5 * std::sqrt(15.0) / root);
  CHECK(std::abs(mean_of(square(square(x))) - 3) < 5 * std::sqrt(96.0) / root);
  CHECK(std::abs(mean_of(x.slice(0, 0, end(), 2) * x.slice(0, 1, end(), 2))) < 5 * std::sqrt(2.0) / root);  // the two of a pair
  auto values = u.to_vector();
  CHECK(distance(values, [](double q) { return q; }) < 1.95);
  values = x.to_vector();
  CHECK(distance(values, [](double q) { return 0.5 * std::erfc(-q * 0.70710678118654752440); }) < 1.95);
}

TEST_CASE("uniform stays below its upper end, and normal has its mean and deviation") {
  Generator generator{2};
  for (auto [low, high] : {std::pair{-1.0, 1.0}, {1.0, 1.0 + 0x1p-22}, {0.0, 1e-30}, {5.0, 5.0}, {-3.0, -2.9999}}) {
    auto const x = uniform(low, high, {20'000}, generator);
    CHECK(static_cast<double>(min(x).item()) >= static_cast<double>(static_cast<float>(low)));
    CHECK((static_cast<double>(max(x).item()) < high || low == high));
    auto const half = uniform<float16>(low, high + 1, {20'000}, generator);
    CHECK(static_cast<double>(static_cast<float>(max(half).item())) < high + 1);
  }
  auto const z = normal(10, 0.5, {1'000'000}, generator);
  CHECK(std::abs(mean_of(z) - 10) < 5 * 0.5 / 1000);
  CHECK(std::abs(mean(square(cast<double>(z) - 10.0)).item() - 0.25) < 5 * 0.25 * std::sqrt(2.0) / 1000);
  CHECK(all_are(normal(3, 0, {5}, generator), [](int64_t) { return 3.f; }));
}

TEST_CASE("random integers cover [low, high) evenly") {
  Generator generator{3};
  auto const k = randint(-3, 5, {80000}, generator);
  static_assert(std::is_same_v<value_of<decltype(k)>, int64_t>);
  CHECK(min(k).item() == -3);
  CHECK(max(k).item() == 4);
  for (int v = -3; v < 5; ++v) {
    auto const count = static_cast<double>(sum(k == v).item());
    CHECK(std::abs(count - 10000) < 5 * std::sqrt(10000.0 * 7 / 8));
  }
  Generator again{3}, same{3};
  CHECK(equal(randint(7, {2, 50}, again), randint(0, 7, {2, 50}, same)));
  static_assert(std::is_same_v<decltype(randint<int>(7, {3}, again, Emulated<0>{})), Tensor<int, Emulated<0>>>);
  CHECK(randint(1, {4}).to_vector() == std::vector<int64_t>(4, 0));
  CHECK(randint<uint8_t>(256, {}, Emulated<0>{}).shape() == Shape{});
  CHECK(randint(5, 6, {}).item() == 5);  // and no shape of [6]
  auto const bytes = randint<uint8_t>(250, 256, {100}, generator);
  CHECK(min(bytes).item() >= 250);
}

TEST_CASE("the default generator goes on where it was") {
  manual_seed(11);
  (void)rand({3});
  uint64_t const seed = default_generator().seed(), calls = default_generator().calls();
  CHECK(seed == 11);
  CHECK(calls == 1);
  auto const next = randn({5}).to_vector();
  manual_seed(12);
  (void)rand({3});
  default_generator().restore(seed, calls);
  CHECK(randn({5}).to_vector() == next);
}

TEST_CASE_TEMPLATE("rand_like and randn_like have the shape, type and device of their operand", D, SITU_TEST_DEVICES) {
  Tensor<double, D> const x = zeros<double>({30, 7}, D{});
  Generator a{4}, b{4};
  CHECK(equal(rand_like(x, a).cpu(), rand<double>({30, 7}, b)));
  CHECK(situ_test::difference(randn_like(x.t(), a).to_vector(), randn<double>({7, 30}, b).to_vector(), host_device<D> ? 0 : 2) == "");
  CHECK(equal(randn_like(cast<float16>(x) * 2, a).cpu(), randn<float16>({30, 7}, b)));
  static_assert(std::is_same_v<decltype(rand_like(x)), Tensor<double, detail::result_device_t<D>>>);
  static_assert(std::is_same_v<decltype(randn_like(cast<float>(x))), Tensor<float, detail::result_device_t<D>>>);
  manual_seed(3);
  auto const first = rand_like(x).cpu();
  manual_seed(3);
  CHECK(equal(first, rand<double>({30, 7})));
  CHECK(rand_like(zeros({0, 3}, D{})).shape() == Shape{0, 3});
}

TEST_CASE_TEMPLATE("dropout keeps elements or makes them 0, whatever their layout is", D, SITU_TEST_DEVICES) {
  situ_test::with_every_instruction_set<D>([] {
    Tensor<float, D> const x = (arange<float>(60 * 41) + 1.f).to(D{}).reshape({60, 41});
    Tensor<float, D> const across = Tensor<float, D>(x.t().clone()).t();
    Generator a{4}, b{4}, c{4}, d{4};
    auto const y = dropout(x, 0.5, a).cpu();
    CHECK(equal(y, dropout(across, 0.5, b).cpu()));
    CHECK(equal(y, dropout(x.flip(0) * 1.f, 0.5, c).cpu()) == false);
    CHECK(equal(y, dropout((across + x) * 0.5f, 0.5, d).cpu()));
    auto const kept = y != 0.f;
    CHECK(equal(y, eval(where(kept, x.cpu() * 2.f, 0.f))));
    double const share = static_cast<double>(sum(kept).item()) / 2460;
    CHECK(std::abs(share - 0.5) < 5 * 0.5 / std::sqrt(2460.0));
    CHECK(equal(dropout(x, 0.5, false).cpu(), x.cpu()));
    CHECK(equal(dropout(x, 0, a).cpu(), x.cpu()));
    CHECK(sum(dropout(x, 1, a)).item() == 0);
  });
}

TEST_CASE("coins and dropout have the share that they should have, also in 16 bits") {
  Generator generator{6};
  double const tolerance = 5 * 0.5 / std::sqrt(1e6);
  for (double p : {0.001, 0.3, 0.999}) {
    CHECK(std::abs(mean_of(bernoulli(p, {1'000'000}, generator)) - p) < tolerance);
    CHECK(std::abs(mean_of(cast<float>(bernoulli<bool>(p, {1'000'000}, generator))) - p) < tolerance);
    CHECK(std::abs(mean_of(cast<float>(bernoulli(full<float16>({1'000'000}, p), generator))) - p) < tolerance + 5e-4 * p);
    CHECK(std::abs(mean_of(cast<float>(dropout(full<bfloat16>({1'000'000}, 1), p, generator) == bfloat16(0.f))) - p) < tolerance);
  }
  CHECK(sum(bernoulli(0, {1000}, generator)).item() == 0);
  CHECK(sum(bernoulli(1, {1000}, generator)).item() == 1000);
}

TEST_CASE("dropout of a formula is one launch into one allocation; nothing is made of nothing") {
  Tensor<float, Probe> const x = ones({30, 200}).to(Probe{});
  Probe::reset();
  auto const y = dropout(x * 2.f + x.t().reshape({30, 200}).slice(0, 0, 1), 0.5);
  CHECK(Probe::launches <= 2);  // the reshape of a transpose is a copy
  Probe::reset();
  auto const z = dropout(x * 2.f, 0.5);
  CHECK(Probe::launches == 1);
  CHECK(Probe::allocations == 1);
  CHECK(rand({0, 3}).shape() == Shape{0, 3});
  CHECK(dropout(empty<float>({0, 3}), 0.5).size() == 0);
}

TEST_CASE("dropout of a strided or broadcast formula drops the places that it drops of its value") {
  situ_test::with_every_instruction_set<Cpu>([] {
    for (Shape const& s : {Shape{3, 5}, Shape{300, 7}, Shape{7, 3000}, Shape{1, 9}, Shape{5, 1}}) {
      Tensor<float> const x = arange<float>(1, detail::product(s) + 1).view({s[1], s[0]}), row = ones({s[1]});
      Tensor<float> const value = x.t() * 2 + row;
      Generator first{9}, second{9};
      CHECK(Tensor<float>(dropout(x.t() * 2 + row, 0.3, first)).to_vector() == Tensor<float>(dropout(value, 0.3, second)).to_vector());
    }
  });
}

TEST_CASE("a draw that fails leaves the generator as it was") {
  Generator generator{7};
  Shape const no_shape{2, -1};
  CHECK_THROWS_AS(rand(no_shape, generator), ShapeError);
  CHECK_THROWS_AS(randn(no_shape, generator), ShapeError);
  CHECK_THROWS_AS(uniform(0, 1, no_shape, generator), ShapeError);
  CHECK_THROWS_AS(normal(0, 1, no_shape, generator), ShapeError);
  CHECK_THROWS_AS(randint(0, 2, no_shape, generator), ShapeError);
  CHECK_THROWS_AS(bernoulli(0.5, no_shape, generator), ShapeError);
  CHECK_THROWS_AS(bernoulli(0, no_shape, generator), ShapeError);
  CHECK_THROWS_AS(rand({int64_t{1} << 61}, generator), Error);
  CHECK(generator.calls() == 0);
  (void)bernoulli(0, {2}, generator), (void)rand({0}, generator);
  CHECK(generator.calls() == 2);
}

TEST_CASE("16-bit floats stay within what they hold, and below the bound") {
  Generator generator{7};
  CHECK(situ_test::thrown<ShapeError>([&] { uniform<float16>(-1e6, 1e6, {2}, generator); }, "uniform: from -1e+06 to 1e+06: that is more than float16 spans") == "");
  CHECK(situ_test::thrown<ShapeError>([&] { randint<float16>(0, 65506, {2}, generator); },
                                      "randint: numbers from 0 to 65505 were asked for; float16 holds -65504 to 65504") == "");
  CHECK(generator.calls() == 0);
  CHECK(uniform<float16>(-65504, 65504, {2}).size() == 2);
  CHECK(static_cast<float>(max(randint<float16>(2049, 4096, {20000}, generator)).item()) == 4094);
  CHECK(static_cast<float>(min(randint<float16>(2049, 4096, {20000}, generator)).item()) == 2050);
  CHECK(static_cast<float>(min(randint<bfloat16>(-1001, -257, {20000}, generator)).item()) == -1000);
  CHECK(min(randint<float>((int64_t{1} << 40) + 1, int64_t{1} << 41, {200}, generator)).item() > 0x1p40f);
  CHECK(min(randint<double>((int64_t{1} << 53) + 1, (int64_t{1} << 53) + 4, {200}, generator)).item() == 0x1p53 + 2);
  CHECK(min(randint<double>(INT64_MAX - 600, INT64_MAX, {200}, generator)).item() >= 0x1p63 - 1024);
  CHECK(min(randint<float>(INT64_MAX - (int64_t{1} << 38) - 5, INT64_MAX, {200}, generator)).item() >= 0x1p63f - 0x1p39f);
  CHECK(static_cast<float>(max(randint<bfloat16>(0, 512, {20000}, generator)).item()) == 510);
  CHECK(max(randint<float>(0, int64_t{1} << 40, {20000}, generator)).item() < 0x1p40f);
  CHECK(max(randint<float>((int64_t{1} << 40) - 5, int64_t{1} << 40, {200}, generator)).item() <= 0x1p40f);  // there is no float in between
  CHECK(static_cast<float>(max(randint<float16>(0, 65505, {200000}, generator)).item()) == 65504);
}

TEST_CASE("the shape may stand first") {
  Generator here(7), there(7);
  Shape const shape{2, 3};
  CHECK(equal(normal({2, 3}, 1, 2, here), normal(1, 2, {2, 3}, there)));
  CHECK(equal(bernoulli({2, 3}, 0.5, here), bernoulli(0.5, {2, 3}, there)));
  CHECK(equal(bernoulli<bool>({9}, 0.25, here), bernoulli<bool>(0.25, {9}, there)));
  CHECK(equal(uniform(shape, -1, 1, here), uniform(-1, 1, shape, there)));
  CHECK(equal(uniform<double>({4}, 0.5, 2.5, here), uniform<double>(0.5, 2.5, {4}, there)));
  CHECK(equal(randint({3, 2}, 0, 10, here), randint(0, 10, {3, 2}, there)));
  CHECK(equal(randint({5}, 10, here), randint(10, {5}, there)));
  CHECK(randint({3}, 10).shape() == Shape{3});
  int64_t const rows = 2;
  CHECK(equal(normal({rows, 3}, 0, 1, here), normal(0, 1, {2, 3}, there)));
  CHECK(equal(normal<float, Emulated<0>>({3}, 0, 1, here).cpu(), normal(0, 1, {3}, there)));
  CHECK(equal(normal<float, Emulated<0>>({2, 3}, 0, 1, here).cpu(), normal(0, 1, {2, 3}, there)));
  CHECK(equal(randint(shape, 10, here), randint(10, shape, there)));
  CHECK(equal(randint({2, 2}, 10, here), randint(10, {2, 2}, there)));
  static_assert(std::is_same_v<decltype(normal({3}, 0, 1, Emulated<0>{})), Tensor<float, Emulated<0>>>);
  static_assert(std::is_same_v<decltype(randint<int32_t>({3}, 5, Emulated<0>{})), Tensor<int32_t, Emulated<0>>>);
  static_assert(std::is_same_v<decltype(normal(0, 1, {3})), Tensor<float>> && std::is_same_v<decltype(normal(0, 1, 3)), Tensor<float>>);
}

TEST_CASE("parameters that no distribution has are named") {
  auto const x = ones({3});
  CHECK(situ_test::thrown<ShapeError>([] { randint(5, 5, {2}); }, "randint: from 5 to 5: there is no integer in between; low must be less than high") == "");
  CHECK(situ_test::thrown<ShapeError>([] { uniform(-3e38, 3e38, {2}); }, "uniform: from -3e+38 to 3e+38: that is more than float32 spans") == "");
  CHECK(situ_test::thrown<ShapeError>([] { uniform(1e300, 1e300, {2}); }, "uniform: from 1e+300 to 1e+300: that is more than float32 spans") == "");
  CHECK(uniform<double>(-3e38, 3e38, {2}).size() == 2);
  CHECK(situ_test::thrown<ShapeError>([] { randint<int8_t>(0, 1000, {2}); }, "randint: numbers from 0 to 999 were asked for; int8 holds -128 to 127") == "");
  CHECK(situ_test::thrown<ShapeError>([] { randint<uint8_t>(-1, 5, {2}); }, "randint: numbers from -1 to 4 were asked for; uint8 holds 0 to 255") == "");
  CHECK(situ_test::thrown<ShapeError>([] { uniform(2, 1, {2}); }, "uniform: from 2 to 1: low must not be above high, and both must be finite") == "");
  CHECK(situ_test::thrown<ShapeError>([] { uniform(0, INFINITY, {2}); }, "uniform: from 0 to inf: low must not be above high, and both must be finite") == "");
  CHECK(situ_test::thrown<ShapeError>([] { normal(0, -1, {2}); }, "normal: the standard deviation is -1; it must not be negative") == "");
  CHECK(situ_test::thrown<ShapeError>([] { bernoulli(1.5, {2}); }, "bernoulli: the probability is 1.5; it must be in [0, 1]") == "");
  CHECK(situ_test::thrown<ShapeError>([&] { dropout(x, -0.5); }, "dropout: the probability is -0.5; it must be in [0, 1]") == "");
}
