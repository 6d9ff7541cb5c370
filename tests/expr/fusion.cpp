#include <doctest/doctest.h>

#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include <situ/tensor.hpp>
#include <support/devices.hpp>
#include <support/probe.hpp>

using namespace situ;

namespace {

using Counted = Tensor<float, Probe>;

static_assert(device<Probe> && host_device<Probe>);

Counted counting(Shape const& shape, float start = 0) {
  std::vector<float> values(static_cast<std::size_t>(detail::product(shape)));
  std::iota(values.begin(), values.end(), start);
  return {values, shape};
}

/// What f asks of the device.
struct Asked {
  int64_t launches, allocations, transfers;
  friend bool operator==(Asked const&, Asked const&) = default;
  friend doctest::String toString(Asked const& a) {
    return doctest::toString(a.launches) + " launches, " + doctest::toString(a.allocations) + " allocations, " +
           doctest::toString(a.transfers) + " transfers";
  }
};

template <class F>
Asked asked_by(F f) {
  Probe::reset();
  f();
  return {Probe::launches, Probe::allocations, Probe::transfers()};
}

constexpr Asked nothing{0, 0, 0}, one_kernel{1, 1, 0}, one_kernel_in_place{1, 0, 0};

}  // namespace

TEST_CASE("a chain of operators runs as one launch into one allocation") {
  Counted const a{1, 2}, b{3, 4}, c{5, 6};
  Counted y;
  CHECK(asked_by([&] { y = a * b + c; }) == one_kernel);
  CHECK(Probe::bytes == 8);
  CHECK(Probe::items == 2);
  CHECK(y.to_vector() == std::vector<float>{8, 14});
  CHECK(asked_by([&] { Counted const z = a * b + c - 0.5f * a; }) == one_kernel);
  CHECK(asked_by([&] { Tensor z = tanh(exp(-abs(a)) / (1 + square(b))) * where(a < c, b, 2); }) == one_kernel);
  CHECK(asked_by([&] { Tensor z = cast<double>(a) + cast<int32_t>(b); }) == one_kernel);
  CHECK(asked_by([&] { Tensor z = map([](float v, float w) { return v > w ? v : w * 2; }, a + 1, b); }) == one_kernel);
  CHECK(asked_by([&] { auto z = eval(a + b); }) == one_kernel);
  CHECK(asked_by([&] { auto z = (a * b + c).to<float16>(); }) == one_kernel);
  CHECK(asked_by([&] { auto z = (a * b + c).to<double>(Probe{}); }) == one_kernel);
}

TEST_CASE("a tensor that stands in a formula twice is read as two equal ones are, at every size") {
  situ_test::with_every_instruction_set<Cpu>([] {
    for (int64_t n = 1; n < 70; ++n) {
      Tensor<float> a = arange<float>(1, static_cast<float>(n) + 1), b = a * 0.37f, c = 2 - a, twin = a.clone();
      Tensor<float> const once = a * b + c - 0.5f * a, twice = a * b + c - 0.5f * twin;
      Tensor<float> y = zeros<float>({n}), z = a.clone();
      y = a * b + c - 0.5f * a;
      z = z * b + c - 0.5f * z;  // in place
      // One square is divided, the other could be fused with the difference: only if they are not one to the compiler.
      Tensor<float> const like = b.clone(), joined = square(b) / a + (c - square(b)), apart = square(b) / a + (c - square(like));
      bool equal_bits = true, right = true;
      for (int64_t k = 0; k < n; ++k) {
        equal_bits = equal_bits && once(k) == twice(k) && y(k) == once(k) && z(k) == once(k) && joined(k) == apart(k);
        right = right && std::abs(once(k) - (a(k) * b(k) + c(k) - 0.5f * a(k))) <= 1e-5f * a(k) * a(k);
      }
      CAPTURE(n);
      CHECK(equal_bits);
      CHECK(right);
    }
  });
}

TEST_CASE("broadcasts, views and strides are part of the one launch") {
  Counted const m = counting({40, 50}), row = counting({50}), column = counting({40, 1}), tall = counting({50, 40});
  CHECK(asked_by([&] { Counted const y = m * row + column; }) == one_kernel);
  CHECK(asked_by([&] { Counted const y = m + tall.t(); }) == one_kernel);
  CHECK(asked_by([&] { Counted const y = row.unsqueeze(0) * column; }) == one_kernel);
  CHECK(asked_by([&] { Counted const y = m.flip(0)(all(), range(0, end(), 3)) + 1; }) == one_kernel);
  Counted const y = m + tall.t();
  CHECK(y.item(7, 11) == 7 * 50 + 11 + 11 * 40 + 7);
}

TEST_CASE("building a formula, and making views, asks nothing of the device") {
  Counted const a = counting({4, 6}), b = counting({4, 6});
  CHECK(asked_by([&] {
          auto const formula = tanh(a * b) + where(a > b, a.flip(1), 3);
          auto const view = a.t()(range(1, 3), all()).unsqueeze(0).expand({5, 2, 4});
          auto const shape = a.view({24}).reshape({2, 12}).shape();
          Counted const handle = a;
          (void)formula, (void)view, (void)shape, (void)handle;
        }) == nothing);
}

TEST_CASE("a formula is evaluated at every use, and sees later writes") {
  Counted a{1, 2, 3};
  auto const formula = a * 10;
  CHECK(eval(formula).to_vector() == std::vector<float>{10, 20, 30});
  a += 1;
  CHECK(asked_by([&] { Counted const y = formula; }) == one_kernel);
  CHECK(eval(formula).to_vector() == std::vector<float>{20, 30, 40});
}

TEST_CASE("an empty result asks for no launch and no memory") {
  Counted const a = counting({0, 3});
  CHECK(asked_by([&] { Counted const y = a * 2 + 1; }) == nothing);
}

TEST_CASE("z = z * x in a loop allocates nothing") {
  Counted z = counting({100}, 1);
  Counted const x = counting({100}, 2);
  float const* const where = std::as_const(z).data();
  CHECK(asked_by([&] {
          for (int k = 0; k < 5; ++k) z = z * x;
        }) == Asked{5, 0, 0});
  CHECK(std::as_const(z).data() == where);
  CHECK(z.item(3) == 4.f * 5 * 5 * 5 * 5 * 5);
  CHECK(asked_by([&] { z = x + 1; }) == one_kernel_in_place);      // not an operand: still only ours
  CHECK(asked_by([&] { z = z * z + z; }) == one_kernel_in_place);  // several times, at the same indices
  CHECK(asked_by([&] { z *= x; }) == one_kernel_in_place);
  CHECK(asked_by([&] { z[3] = 7; }) == one_kernel_in_place);
  CHECK(asked_by([&] { z(range(0, 50)) = x(range(50, 100)) * 2; }) == one_kernel_in_place);
  CHECK(asked_by([&] { z.assign(x - z); }) == one_kernel_in_place);
}

TEST_CASE("storage is not written again where another handle or view could tell") {
  Counted const x{10, 20, 30};
  {
    Counted z{1, 2, 3};
    Counted const copy = z;
    CHECK(asked_by([&] { z = z * x; }) == one_kernel);
    CHECK(copy.to_vector() == std::vector<float>{1, 2, 3});
    CHECK(z.to_vector() == std::vector<float>{10, 40, 90});
  }
  {
    Counted z{1, 2, 3};
    Counted const view = z.slice(0, 1, 3);
    CHECK(asked_by([&] { z = z + x; }) == one_kernel);
    CHECK(view.to_vector() == std::vector<float>{2, 3});
    CHECK(asked_by([&] { z = x - 1; }) ==
          one_kernel_in_place);  // the view holds the old storage, this one is ours alone
    CHECK(z.to_vector() == std::vector<float>{9, 19, 29});
  }
  {
    Counted z{1, 2, 3};
    auto const formula = z * 2;  // holds z's storage, and must see what z was
    CHECK(asked_by([&] { z = x + 0; }) == one_kernel);
    CHECK(eval(formula).to_vector() == std::vector<float>{2, 4, 6});
  }
  {
    Counted z{1, 2, 3};
    auto const formula = z * 2;
    CHECK(asked_by([&] { z = formula; }) == one_kernel);  // an lvalue formula may be used again
    CHECK(z.to_vector() == std::vector<float>{2, 4, 6});
    CHECK(asked_by([&] { z = formula; }).launches == 1);
    CHECK(z.to_vector() == std::vector<float>{2, 4, 6});
  }
  {
    Counted z{1, 2, 3};
    auto formula = z * 2;
    z = std::move(formula);
    CHECK(z.to_vector() == std::vector<float>{2, 4, 6});
  }
}

TEST_CASE("storage is not written again where elements are read at other indices, or as another type or shape") {
  {
    Counted z = counting({3, 3});
    CHECK(asked_by([&] { z = z.t() + 0; }) == one_kernel);
    CHECK(z.to_vector() == std::vector<float>{0, 3, 6, 1, 4, 7, 2, 5, 8});
  }
  {
    Counted z{1, 2, 3, 4};
    CHECK(asked_by([&] { z = z + z.flip(0); }) == one_kernel);
    CHECK(z.to_vector() == std::vector<float>{5, 5, 5, 5});
  }
  {
    Counted z{1, 2, 3};
    CHECK(asked_by([&] { z = z + z.unsqueeze(1); }) == one_kernel);
    CHECK(z.shape() == Shape(3, 3));
    CHECK(z.to_vector() == std::vector<float>{2, 3, 4, 3, 4, 5, 4, 5, 6});
  }
  {
    Counted z = counting({4});
    CHECK(asked_by([&] { z = z(range(1, 3)) * 1; }) == one_kernel);
    CHECK(z.to_vector() == std::vector<float>{1, 2});
  }
  {
    Tensor<int32_t, Probe> n{1, 2, 3};
    Counted z{1, 2, 3};
    CHECK(asked_by([&] { z = cast<float>(n) * z; }) == one_kernel_in_place);
    CHECK(z.to_vector() == std::vector<float>{1, 4, 9});
  }
}

TEST_CASE("assigning a tensor rebinds and copies nothing") {
  Counted const x{1, 2, 3};
  Counted z{4, 5, 6};
  CHECK(asked_by([&] { z = x; }) == nothing);
  CHECK(std::as_const(z).data() == x.data());
  CHECK(x.use_count() == 2);
  z = z * 2;  // shared: a fresh result
  CHECK(x.to_vector() == std::vector<float>{1, 2, 3});
}

TEST_CASE("writes in place whose source overlaps them give what a temporary would give") {
  for (int64_t n : {5, 64, 1000, 5000}) {
    std::vector<float> start(static_cast<std::size_t>(n));
    std::iota(start.begin(), start.end(), 1.f);
    auto const size = start.size();
    auto const check = [&](auto program, auto loop) {
      Counted x(start, {n});
      program(x);
      std::vector<float> const before = start;
      std::vector<float> after = start;
      loop(after, before);
      CHECK(x.to_vector() == after);
    };
    check([&](Counted& x) { x(range(1, end())) = x(range(0, n - 1)); },
          [&](auto& after, auto const& before) {
            for (std::size_t i = 1; i < size; ++i) after[i] = before[i - 1];
          });
    check([&](Counted& x) { x(range(0, n - 1)) = x(range(1, end())); },
          [&](auto& after, auto const& before) {
            for (std::size_t i = 1; i < size; ++i) after[i - 1] = before[i];
          });
    check([&](Counted& x) { x(range(1, end())) += x(range(0, n - 1)) * 2; },
          [&](auto& after, auto const& before) {
            for (std::size_t i = 1; i < size; ++i) after[i] = before[i] + before[i - 1] * 2;
          });
    check([&](Counted& x) { x.assign(x.flip(0)); },
          [&](auto& after, auto const& before) {
            for (std::size_t i = 0; i < size; ++i) after[i] = before[size - 1 - i];
          });
    check([&](Counted& x) { x.flip(0) = x + x.flip(0) * 3; },
          [&](auto& after, auto const& before) {
            for (std::size_t i = 0; i < size; ++i) after[size - 1 - i] = before[i] + before[size - 1 - i] * 3;
          });
    check([&](Counted& x) { x(range(0, end(), 2)) = x(range(0, (n + 1) / 2)) * 10; },
          [&](auto& after, auto const& before) {
            for (std::size_t i = 0; i < (size + 1) / 2; ++i) after[2 * i] = before[i] * 10;
          });
    check([&](Counted& x) { x *= x[2]; },
          [&](auto& after, auto const& before) {
            for (float& v : after) v *= before[2];
          });
    check([&](Counted& x) { x -= x * 1; },
          [&](auto& after, auto const&) {
            for (float& v : after) v = 0;
          });
    check([&](Counted& x) { x = x(range(0, 1)) + x; },
          [&](auto& after, auto const& before) {
            for (float& v : after) v += before[0];
          });
  }
}

TEST_CASE("overlapping writes of matrices give what a temporary would give") {
  for (int64_t n : {3, 17, 70}) {
    Counted const start = counting({n, n});
    auto const at = [&](int64_t i, int64_t j) { return static_cast<float>(i * n + j); };
    auto const check = [&](auto program, auto value) {
      Counted x = start.clone();
      program(x);
      std::vector<float> expected;
      for (int64_t i = 0; i < n; ++i) {
        for (int64_t j = 0; j < n; ++j) expected.push_back(value(i, j));
      }
      CHECK(x.to_vector() == expected);
    };
    check([&](Counted& x) { x.assign(x.t()); }, [&](int64_t i, int64_t j) { return at(j, i); });
    check([&](Counted& x) { x.t() = x; }, [&](int64_t i, int64_t j) { return at(j, i); });
    check([&](Counted& x) { x += x.t(); }, [&](int64_t i, int64_t j) { return at(i, j) + at(j, i); });
    check([&](Counted& x) { x.t() = x.t() * 2; }, [&](int64_t i, int64_t j) { return at(i, j) * 2; });
    check([&](Counted& x) { x -= x[0]; }, [&](int64_t i, int64_t j) { return at(i, j) - at(0, j); });
    check([&](Counted& x) { x *= x(all(), range(1, 2)); }, [&](int64_t i, int64_t j) { return at(i, j) * at(i, 1); });
    check([&](Counted& x) { x(range(1, end()), range(1, end())) = x(range(0, n - 1), range(0, n - 1)); },
          [&](int64_t i, int64_t j) { return i > 0 && j > 0 ? at(i - 1, j - 1) : at(i, j); });
    check([&](Counted& x) { x[1] = x(all(), 0) + x[1]; },
          [&](int64_t i, int64_t j) { return i == 1 ? at(j, 0) + at(1, j) : at(i, j); });
  }
}

TEST_CASE("writes in place at the same indices need no temporary, others need one") {
  Counted x = counting({64});
  CHECK(asked_by([&] { x *= x; }) == one_kernel_in_place);
  CHECK(asked_by([&] { x(range(0, 32)) = x(range(0, 32)) * 2; }) == one_kernel_in_place);
  CHECK(asked_by([&] { x(range(0, 32)) = x(range(32, 64)); }) == one_kernel_in_place);
  CHECK(asked_by([&] { x(range(0, 63)) = x(range(1, 64)); }) == Asked{2, 1, 0});
}

TEST_CASE("to the device where a tensor is shares its storage") {
  Counted const x{1, 2, 3};
  CHECK(asked_by([&] {
          auto const same = x.to(Probe{});
          auto const again = x.to(x.device());
          auto const typed = x.to<float>();
          auto const both = x.to<float>(Probe{});
          CHECK(same.data() == x.data());
          CHECK(again.data() == x.data());
          CHECK(typed.data() == x.data());
          CHECK(both.data() == x.data());
          CHECK(x.use_count() == 5);
        }) == nothing);
  CHECK(asked_by([&] { auto const y = (x + 1).to(Probe{}); }) == one_kernel);
}

TEST_CASE("a transfer moves its bytes once") {
  Counted const x = counting({10, 20});
  CHECK(asked_by([&] { auto const y = x.cpu(); }) == Asked{0, 0, 1});
  CHECK(Probe::to_host == 1);
  CHECK(asked_by([&] { Counted const y(std::vector<float>(200), {10, 20}); }) == Asked{0, 1, 1});
  CHECK(Probe::from_host == 1);
  CHECK(asked_by([&] { auto const y = x.clone(); }) == Asked{0, 1, 1});
  CHECK(Probe::copies == 1);
  CHECK(asked_by([&] { auto const y = (x * 2).cpu(); }) == Asked{1, 1, 1});
  CHECK(asked_by([&] { CHECK(x.item(9, 19) == 199); }) == Asked{0, 0, 1});
  CHECK(asked_by([&] { CHECK(x.contiguous().data() == x.data()); }) == nothing);
  CHECK(Probe::synchronizations == 0);
}

TEST_CASE("what is allocated is given back") {
  int64_t const live = Probe::live;
  {
    Counted x = counting({100});
    Counted const y = x * 2 + x.flip(0);
    x = y - 1;
    auto const formula = x + y;
    Counted const z = formula;
    CHECK(Probe::live > live);
  }
  CHECK(Probe::live == live);
}

TEST_CASE("an element of an operand begins where the operand does, and is another operand") {
  Tensor<float> const a = arange<float>(1, 65, 1), b = ones<float>({64}), c = zeros<float>({64});
  Tensor<float> const y = a * b + c - 0.5f * a[0], z = a[0] * b + c - 0.5f * a, w = a * b + c - 0.5f * a.slice(0, 0, 1).expand({64});
  for (int k = 0; k < 64; ++k) {
    CHECK(y(k) == static_cast<float>(k) + 0.5f);
    CHECK(z(k) == 1 - 0.5f * static_cast<float>(k + 1));
    CHECK(w(k) == static_cast<float>(k) + 0.5f);
  }
}

TEST_CASE("what is written in place ends with any number of elements, and is computed once") {
  auto const check = []<class T>(T) {
    for (int n = 1; n <= 140; ++n) {
      Tensor<T> y = Tensor<T>::uninitialized({n + 1}, "test"), a = Tensor<T>::uninitialized({n}, "test");
      for (int k = 0; k <= n; ++k) y(k) = T(k % 7);
      for (int k = 0; k < n; ++k) a(k) = T(k % 5 + 1);
      auto part = y.slice(0, 0, n);
      part += a;
      part.assign(part * a + part);
      int wrong = 0;
      for (int k = 0; k < n; ++k) wrong += double(y(k)) != double(k % 7 + k % 5 + 1) * double(k % 5 + 2);
      CHECK(wrong == 0);
      CHECK(double(y(n)) == n % 7);
    }
  };
  situ_test::with_every_instruction_set<Cpu>([&] { check(float()), check(double()), check(int8_t()), check(float16()); });
}
