#include <situ/expr/map.hpp>

#include <cmath>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>

#include <support/compare.hpp>
#include <support/devices.hpp>

namespace situ_test {

using namespace situ;

/// A function object for every device.
struct cubed {
  template <class T>
  SITU_HOST_DEVICE T operator()(T x) const {
    return static_cast<T>(x * x * x);
  }
};
struct scaled {
  float factor;
  SITU_HOST_DEVICE float operator()(float x) const { return factor * x; }
};
/// Called with packs on the CPU.
struct packed_polynomial {
  using packed = void;
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE auto operator()(X const& x) const {
    return x * x * 2 + 1;
  }
};
/// An entry of a user's own, as the library's are written.
struct mish_like {
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static X value(X const& x, X const& y) {
    return x * y + x;
  }
};
struct packed_entry {
  using packed = void;
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static auto value(X const& x) {
    return x > X(lane_type<X>(2));
  }
  template <class X>
  struct lane {
    using type = X;
  };
  template <class X>
    requires requires { typename X::value_type; }
  struct lane<X> {
    using type = typename X::value_type;
  };
  template <class X>
  using lane_type = typename lane<X>::type;
};
struct halves_up {
  SITU_HOST_DEVICE float16 operator()(float16 x) const { return float16(static_cast<float>(x) / 2); }
};

inline float third_power(float x) { return x * x * x; }

}  // namespace situ_test

using namespace situ;

TEST_CASE_TEMPLATE("function objects are mapped over elements on every device", D, SITU_TEST_DEVICES) {
  Tensor<float, D> const x{{1, 2, 3}, {4, 5, 6}};
  CHECK(eval(map(situ_test::cubed{}, x)).to_vector() == std::vector<float>{1, 8, 27, 64, 125, 216});
  CHECK(eval(map(situ_test::scaled{0.5f}, x.t())).to_vector() == std::vector<float>{0.5, 2, 1, 2.5, 1.5, 3});
  CHECK(eval(map(situ_test::packed_polynomial{}, x)).to_vector() == std::vector<float>{3, 9, 19, 33, 51, 73});
  CHECK(eval(map(situ_test::mish_like{}, x, x[0])).to_vector() == std::vector<float>{2, 6, 12, 8, 15, 24});
  CHECK(eval(map(situ_test::packed_entry{}, x)).to_vector() == std::vector<bool>{false, false, true, true, true, true});
  CHECK(eval(map(situ_test::cubed{}, Tensor<int64_t, D>{-2, 3})).to_vector() == std::vector<int64_t>{-8, 27});
  CHECK(static_cast<float>(eval(map(situ_test::halves_up{}, Tensor<float16, D>{3})).item()) == 1.5f);
}

TEST_CASE("lambdas are mapped over elements of host tensors") {
  Tensor<float> const x{1, 4, 9};
  float const shift = 0.5f;
  CHECK(eval(map([shift](float v) { return v + shift; }, x)).to_vector() == std::vector<float>{1.5, 4.5, 9.5});
  CHECK(eval(map([](auto v) { return std::sqrt(v); }, x)).to_vector() == std::vector<float>{1, 2, 3});
  CHECK(eval(map([](float v) { return v > 2; }, x)).to_vector() == std::vector<bool>{false, true, true});
  CHECK(eval(map([](float v) { return static_cast<int>(v) * 2; }, x)).to_vector() == std::vector<int32_t>{2, 8, 18});
  CHECK(eval(map([](float v, int i, bool b) { return b ? v : static_cast<float>(i); }, x, Tensor<int32_t>{7, 8, 9}, x > 2)).to_vector() ==
        std::vector<float>{7, 4, 9});
  CHECK(eval(map([](double v, double w) { return v - w; }, Tensor<double>{1, 2}, 0.5)).to_vector() == std::vector<double>{0.5, 1.5});
  CHECK(eval(map([](bool b) { return !b; }, x > 2)).to_vector() == std::vector<bool>{true, false, false});
  CHECK(eval(map([](int64_t a, float b, double c, uint8_t e, float16 g) { return static_cast<double>(a) + b + c + e + g; }, Tensor<int64_t>{1},
                 Tensor<float>{2}, Tensor<double>{3}, Tensor<uint8_t>{4}, Tensor<float16>{5})).item() == 15.);
  static_assert(std::is_same_v<value_of<decltype(map([](float) { return 1LL; }, x))>, int64_t>);
}

TEST_CASE("a function sees the value of an unsigned number") {
  Tensor<int64_t> const x{0, 1};
  auto const add = [](auto a, auto b) { return static_cast<int64_t>(a + b); };
  CHECK(eval(map(add, x, uint16_t{65535})).to_vector() == std::vector<int64_t>{65535, 65536});
  CHECK(eval(map(add, x, 4294967295u)).to_vector() == std::vector<int64_t>{4294967295, 4294967296});
}

TEST_CASE("functions are mapped like function objects") {
  Tensor<float> const x{1, -2, 3};
  CHECK(eval(map(situ_test::third_power, x)).to_vector() == std::vector<float>{1, -8, 27});
  CHECK(eval(map(&situ_test::third_power, x * 2) + 1).to_vector() == std::vector<float>{9, -63, 217});
}

TEST_CASE("a function of elements is called once for each, whatever the layout") {
  Tensor<float> const x = arange(37).view({37, 1}).expand({37, 5});
  int calls = 0;
  Tensor<float> const y = map([&calls](float v) { return ++calls, v + 1; }, x.contiguous());
  CHECK(y.item(36, 4) == 37.f);
  CHECK(calls >= 37 * 5);
  CHECK(eval(map([](float v) { return v; }, zeros({0, 3}))).shape() == Shape{0, 3});
}

TEST_CASE("what a function throws on the host reaches the caller, from every thread") {
  int const before = num_threads();
  Tensor<float> const x = arange<float>(1'000'000);
  for (int threads : {1, 4}) {
    set_num_threads(threads);
    for (float at : {0.f, 999'999.f}) {
      auto const throws_at = [at](float v) {
        if (v == at) throw std::out_of_range("not this one");
        return v;
      };
      CHECK_THROWS_AS(eval(map(throws_at, x)), std::out_of_range);
    }
    CHECK(eval(map([](float v) { return v + 1; }, x)).item(999'999) == 1'000'000.f);
  }
  set_num_threads(before);
}

TEST_CASE("functions see the elements of short tensors and no others") {
  auto check = [&]<class X, class Y>(X, Y) {
    situ_test::with_every_instruction_set<Cpu>([&] {
      for (int n = 1; n < 20; ++n) {
        Tensor<X> x = full<X>({40}, X(99));
        Tensor<Y> y = full<Y>({40}, Y(99));
        x.slice(0, 7, 7 + n) = arange<X>(0, n);
        y.slice(0, 9, 9 + n) = arange<Y>(0, n);
        static bool strange;
        strange = false;
        auto watched = [](auto a, auto b) {
          strange = strange || a == decltype(a)(99) || b == decltype(b)(99);
          return static_cast<float>(a) + 2 * static_cast<float>(b);
        };
        Tensor<float> const z = map(watched, x.slice(0, 7, 7 + n), y.slice(0, 9, 9 + n));
        INFO(n);
        CHECK(!strange);
        for (int k = 0; k < n; ++k) CHECK(z(k) == 3.f * static_cast<float>(k));
      }
    });
  };
  check(1.f, 1.f);
  check(1., 1.);
  check(1.f, 1.);
  check(int8_t{1}, 1.f);
  check(int64_t{1}, int64_t{1});
  check(int16_t{1}, int16_t{1});
}

TEST_CASE("mapped functions fuse with others and run alike on every instruction set") {
  Tensor<float> const x = linspace(-2, 2, 1003);
  std::vector<float> expected;
  for (float v : x.to_vector()) expected.push_back(std::abs(v * 2) + 1);
  situ_test::with_every_instruction_set<Cpu>([&] {
    CHECK(situ_test::difference(eval(map([](float v) { return v < 0 ? -v : v; }, x * 2) + 1).to_vector(), expected) == "");
  });
}

TEST_CASE("functions that do not fit are refused") {
  auto const takes_string = [](std::string const&) { return 1.f; };
  auto const gives_string = [](float) { return std::string(); };
  auto const good = [](float v) { return v; };
  auto const mapped = [](auto f, auto x) { return requires { map(f, x); }; };
  CHECK(mapped(good, Tensor<float>{}));
  CHECK_FALSE(mapped(takes_string, Tensor<float>{}));
  CHECK_FALSE(mapped(gives_string, Tensor<float>{}));
  CHECK(situ_test::thrown<ShapeError>([] { (void)map([](float a, float b) { return a + b; }, zeros({3}), zeros({2})); },
                                      "map: shapes [3] and [2] do not broadcast: 3 != 2 in dimension 0") == "");
}
