/// Where backward kernels put gradients: over what is there, on top of it, into sums, and past the caches.
#include <doctest/doctest.h>

#include <cstdint>
#include <vector>

#include <situ/autograd/backward.hpp>
#include <situ/autograd/reduce.hpp>
#include <support/devices.hpp>

using namespace situ;

namespace {

/// Whole numbers from -2 to 2: what the formulas below make of them is exact in every type.
template <class T>
Tensor<T> numbers(Shape const& shape, int step) {
  auto result = empty<T>(shape);
  for (int64_t k = 0; k < result.size(); ++k) result.data()[k] = static_cast<T>(static_cast<float>((k * step + 3) % 5 - 2));
  return result;
}
double at(int64_t k, int step) { return static_cast<double>((k * step + 3) % 5 - 2); }

/// How many elements are not what is expected, `times` over.
template <class T>
int64_t differences(Tensor<T> const& found, double (*expected)(int64_t), int times = 1) {
  int64_t count = 0;
  for (int64_t k = 0; k < found.size(); ++k) count += static_cast<double>(static_cast<float>(found.data()[k])) != times * expected(k);
  return count;
}

/// Around packs of every instruction set, and around the pieces that wait in a buffer.
std::vector<int64_t> lengths() {
  std::vector<int64_t> result;
  for (int64_t n = 1; n <= 70; ++n) result.push_back(n);
  for (int64_t n : {127, 128, 129, 255, 257, 511, 513, 1023, 1024, 1025, 1041, 2047, 2048, 2050, 4099, 40001}) result.push_back(n);
  return result;
}

}  // namespace

TEST_CASE_TEMPLATE("gradients of leaves that appear twice, and of two passes, are added", T, float, double, float16, bfloat16) {
  situ_test::with_every_instruction_set<Cpu>([&] {
    for (int64_t const n : lengths()) {
      CAPTURE(n);
      Variable x{numbers<T>({n}, 2)}, y{numbers<T>({n}, 3)};
      for (int pass = 1; pass <= 2; ++pass) {
        sum((x - y) * (x + x - y)).backward();  // by x: 4x - 3y, by y: 2y - 3x
        CHECK(differences(x.grad(), [](int64_t k) { return 4 * at(k, 2) - 3 * at(k, 3); }, pass) == 0);
        CHECK(differences(y.grad(), [](int64_t k) { return 2 * at(k, 3) - 3 * at(k, 2); }, pass) == 0);
      }
    }
  });
}

TEST_CASE("a gradient that nobody asked for is not written") {
  for (int64_t const n : {3, 16, 37, 2050}) {
    Variable x{numbers<float>({n}, 2)}, y{numbers<float>({n}, 3)};
    auto const by_y = grad(sum(x * y - y), y);
    CHECK(differences(by_y, [](int64_t k) { return at(k, 2) - 1; }) == 0);
    CHECK(x.grad().size() == 0);
    CHECK(differences(grad(sum((x - y) * (x + x - y)), y), [](int64_t k) { return 2 * at(k, 3) - 3 * at(k, 2); }) == 0);
  }
}

TEST_CASE_TEMPLATE("a row that was broadcast gets the sum, beside a matrix that appears twice", T, float, double, float16, bfloat16) {
  situ_test::with_every_instruction_set<Cpu>([&] {
    for (int64_t const rows : {7, 300}) {
      for (int64_t const n : {1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 33, 100, 515}) {
        CAPTURE(rows);
        CAPTURE(n);
        Variable x{numbers<T>({rows, n}, 2)}, y{numbers<T>({n}, 3)};
        sum((x - y) * (x + x)).backward();  // by x: 4x - 2y, by y: -2 sum(x)
        auto const by_x = x.grad(), by_y = y.grad();
        int64_t wrong = 0;
        for (int64_t c = 0; c < n; ++c) {
          double total = 0;
          for (int64_t r = 0; r < rows; ++r) {
            total -= 2 * at(r * n + c, 2);
            wrong += static_cast<double>(static_cast<float>(by_x.data()[r * n + c])) != 4 * at(r * n + c, 2) - 2 * at(c, 3);
          }
          wrong += by_y.data()[c] != detail::convert_scalar<T>(static_cast<float>(total));
        }
        CHECK(wrong == 0);
      }
    }
  });
}

TEST_CASE("points of two sets that were broadcast against each other get the sums over the other set") {
  situ_test::with_every_instruction_set<Cpu>([&] {
    for (int64_t const n : {1, 2, 3, 5, 16, 21}) {
      CAPTURE(n);
      constexpr int64_t first = 35, second = 70;
      Variable x{numbers<float>({first, 1, n}, 2)}, y{numbers<float>({1, second, n}, 3)};
      sum((x - y) * (x + x)).backward();
      int64_t wrong = 0;
      for (int64_t c = 0; c < n; ++c) {
        for (int64_t i = 0; i < first; ++i) {
          double total = 0;
          for (int64_t j = 0; j < second; ++j) total += 4 * at(i * n + c, 2) - 2 * at(j * n + c, 3);
          wrong += static_cast<double>(x.grad()(i, 0, c)) != total;
        }
        double total = 0;
        for (int64_t i = 0; i < first; ++i) total -= 2 * at(i * n + c, 2);
        for (int64_t j = 0; j < second; ++j) wrong += static_cast<double>(y.grad()(0, j, c)) != total;
      }
      CHECK(wrong == 0);
    }
  });
}

TEST_CASE("gradients beyond the caches are what smaller ones are, also in parts and on top of others") {
  situ_test::UnknownCaches const caches;
  constexpr int64_t n = (int64_t{1} << 21) + 37;  // two gradients of 8 MiB each
  situ_test::with_every_instruction_set<Cpu>([&] {
    Variable x{numbers<float>({n}, 2)}, w{numbers<float>({n}, 3)};
    Variable first{numbers<double>({n}, 2)}, second{numbers<double>({n}, 3)};
    for (int pass = 1; pass <= 2; ++pass) {
      sum(x * w + w).backward();
      sum(first * second + second).backward();
      CHECK(differences(x.grad(), [](int64_t k) { return at(k, 3); }, pass) == 0);
      CHECK(differences(w.grad(), [](int64_t k) { return at(k, 2) + 1; }, pass) == 0);
      CHECK(differences(first.grad(), [](int64_t k) { return at(k, 3); }, pass) == 0);
      CHECK(differences(second.grad(), [](int64_t k) { return at(k, 2) + 1; }, pass) == 0);
    }
    CHECK(differences(grad(sum(x * w + w), w), [](int64_t k) { return at(k, 2) + 1; }) == 0);
  });
}

TEST_CASE_TEMPLATE("sums of 16-bit gradients keep what a term alone would lose, beside a Variable of as many sums as terms", T, float16, bfloat16) {
  float const u = std::is_same_v<T, float16> ? 0x1p-10f : 0x1p-7f;  // the last bit of 1
  int64_t const rows = 32, columns = 21;
  auto x = empty<T>({2, rows, columns}), y = empty<T>({2, rows, columns});
  for (int64_t k = 0; k < x.size(); ++k) {  // products 1 + 8 u + 15 u², less 1 + 8 u
    bool const first = k / columns % 2 == 0;
    x.data()[k] = static_cast<T>(first ? 1 + 3 * u : -(1 + 8 * u));
    y.data()[k] = static_cast<T>(first ? 1 + 5 * u : 1.0f);
  }
  for (int way = 0; way < 3; ++way) {
    auto const laid = [way](Tensor<T> const& t) { return way == 0 ? t : way == 1 ? t.flip(2) : t.transpose(0, 1).contiguous().transpose(0, 1); };
    Variable<T> w(ones<T>({columns})), b(zeros<T>({1, rows, columns}));
    Variable<T> loss = sum((laid(x) * w + b) * laid(y));
    loss.backward();
    std::vector<float> const sums = w.grad().template to<float>().to_vector();
    for (float const sum : sums) CHECK(sum == static_cast<float>(rows) * 15 * u * u);
    std::vector<float> const pairs = b.grad().template to<float>().to_vector();
    for (int64_t k = 0; k < rows * columns; ++k) CHECK(pairs[static_cast<std::size_t>(k)] == (k / columns % 2 == 0 ? 2 + 10 * u : 2));
  }
}

TEST_CASE_TEMPLATE("Variables that were broadcast to no elements have gradients of 0", T, float, double, float16, bfloat16) {
  for (int64_t columns : {1, 37, 5000}) {
    { Tensor<compute_t<T>> const before = full<compute_t<T>>({columns}, 3); }  // where sums may lie
    Variable<T> w(ones<T>({columns})), b(ones<T>({1, columns}));
    Variable<T> loss = sum(zeros<T>({0, columns}) * w + b);
    loss.backward();
    CHECK(count_nonzero(w.grad()).item() == 0);
    CHECK(count_nonzero(b.grad()).item() == 0);
    CHECK(count_nonzero(grad(Variable<T>(sum(zeros<T>({0, columns}) * w)), w)).item() == 0);
    Variable<T> none(zeros<T>({0, 1}));
    CHECK(count_nonzero(grad(Variable<T>(sum(none * w)), {none, w})[1]).item() == 0);
  }
}
