#include <situ/ops/compare.hpp>
#include <situ/ops/linear.hpp>

#include <support/compare.hpp>
#include <support/devices.hpp>

#include "expected/matmul.hpp"
#include "matmul_support.hpp"

#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

using namespace situ;
using situ_test::numbers;
using situ_test::plain_product;
using situ_test::thrown;
using situ_test::wrong_elements;

namespace {

/// Views of one shape that lie in memory in different ways.
enum class Form { contiguous, transposed, rows_apart, stepped, flipped, broadcast, count };

template <class T, class D>
Tensor<T, D> matrix(Form form, int64_t rows, int64_t columns, int64_t seed) {
  auto const on = [&](Shape const& shape) { return numbers<T>(shape, seed).to(D{}); };
  switch (form) {
    case Form::transposed: return on({columns, rows}).t();
    case Form::rows_apart: return on({rows, columns + 5})(all(), range(2, 2 + columns));
    case Form::stepped: return on({2 * rows + 1, 3 * columns + 1})(range(1, end(), 2), range(1, end(), 3))(range(0, rows), range(0, columns));
    case Form::flipped: return on({rows, columns}).flip(0).flip(1);
    case Form::broadcast: return on({1, columns}).expand({rows, columns});
    default: return on({rows, columns});
  }
}

template <class T, class D>
void check_forms() {
  struct Size {
    int64_t m, k, n;
  };
  for (Size const s : {Size{1, 1, 1}, Size{2, 2, 2}, Size{3, 3, 3}, Size{5, 7, 1}, Size{1, 9, 13}, Size{13, 5, 17}, Size{30, 41, 50}, Size{67, 33, 70}}) {
    for (int f = 0; f < static_cast<int>(Form::count); ++f) {
      for (int g = 0; g < static_cast<int>(Form::count); ++g) {
        auto const a = matrix<T, D>(static_cast<Form>(f), s.m, s.k, 1);
        auto const b = matrix<T, D>(static_cast<Form>(g), s.k, s.n, 2);
        auto const c = matmul(a, b);
        INFO(std::string(dtype_name<T>()), " ", s.m, " ", s.k, " ", s.n, ", forms ", f, " ", g);
        CHECK(c.shape() == Shape{s.m, s.n});
        CHECK(c.is_contiguous());
        CHECK(wrong_elements(c.to_vector(), plain_product(a.cpu(), b.cpu()), s.k) == 0);
      }
    }
  }
}

template <class D>
void check_products() {
  int64_t number = 0;
  for (auto const& expected : situ_test::expected::products()) {
    auto const a = numbers<double>(expected.shapes[0], 0).to(D{}), b = numbers<double>(expected.shapes[1], 1).to(D{});
    INFO("product ", number++);
    auto const c = matmul(a, b);
    CHECK(c.shape() == expected.shape);
    CHECK(c.to_vector() == expected.values);
  }
}

}  // namespace

TEST_CASE_TEMPLATE("matmul gives what PyTorch gives", D, SITU_TEST_DEVICES) { check_products<D>(); }

TEST_CASE("matmul of any strides is the plain sum, for every element type and instruction set") {
  situ_test::with_every_instruction_set<Cpu>([] {
    check_forms<float, Cpu>();
    check_forms<double, Cpu>();
    check_forms<float16, Cpu>();
    check_forms<bfloat16, Cpu>();
    check_forms<int8_t, Cpu>();
    check_forms<uint8_t, Cpu>();
    check_forms<int16_t, Cpu>();
    check_forms<int32_t, Cpu>();
    check_forms<int64_t, Cpu>();
  });
  check_forms<float, Emulated<0>>();
}

TEST_CASE("sums longer than a block, and all sizes around those of tiles") {
  situ_test::with_every_instruction_set<Cpu>([] {
    for (int64_t k : {383, 384, 385, 1000}) {
      for (int64_t n : {1, 3, 16, 24, 37, 64}) {
        auto const a = numbers<float>({29, k}, 1), b = numbers<float>({k, n}, 2), w = numbers<float>({n, k}, 3);
        INFO("k ", k, ", n ", n);
        CHECK(wrong_elements(matmul(a, b).to_vector(), plain_product(a, b), k) == 0);
        CHECK(wrong_elements(matmul(a, w.t()).to_vector(), plain_product<float>(a, w.t()), k) == 0);
        auto const half = a.to<float16>(), other = b.to<float16>();
        CHECK(wrong_elements(matmul(half, other).to_vector(), plain_product(half, other), k) == 0);
      }
    }
    for (int64_t k : {767, 768, 769, 1537}) {
      for (int64_t n : {2, 16, 24, 37}) {
        auto const a = numbers<bfloat16>({29, k}, 1), b = numbers<bfloat16>({k, n}, 2), w = numbers<bfloat16>({n, k}, 3), x = numbers<bfloat16>({k, 29}, 4);
        INFO("bfloat16, k ", k, ", n ", n);
        CHECK(wrong_elements(matmul(a, b).to_vector(), plain_product(a, b), k) == 0);
        CHECK(wrong_elements(matmul(x.t(), w.t()).to_vector(), plain_product<bfloat16>(x.t(), w.t()), k) == 0);
      }
    }
    for (int64_t m = 1; m <= 40; ++m) {
      for (int64_t n = 1; n <= 70; n += m % 3 + 1) {
        auto const a = numbers<float>({m, 6}, m), b = numbers<float>({6, n}, n);
        INFO("m ", m, ", n ", n);
        CHECK(wrong_elements(matmul(a, b).to_vector(), plain_product(a, b), 6) == 0);
      }
    }
  });
}

TEST_CASE_TEMPLATE("a few rows by a few rows: long scalar products", T, float, double, float16, int32_t) {
  situ_test::with_every_instruction_set<Cpu>([] {
    for (int64_t k : {255, 256, 301, 4096, 4300}) {
      for (int64_t m = 1; m <= 5; ++m) {
        for (int64_t n = 1; n <= 5; ++n) {
          auto const a = numbers<T>({m, k}, 1), w = numbers<T>({n, k}, 2), wide = numbers<T>({n, k + 3}, 3), batch = numbers<T>({2, m, k}, 4);
          auto const apart = wide.slice(1, 2, k + 2).t();
          INFO("m ", m, ", n ", n, ", k ", k);
          CHECK(wrong_elements(matmul(a, w.t()).to_vector(), plain_product<T>(a, w.t()), k) == 0);
          CHECK(wrong_elements(matmul(a, apart).to_vector(), plain_product<T>(a, apart), k) == 0);
          auto const both = matmul(batch, w.t());
          CHECK(wrong_elements(both[1].to_vector(), plain_product<T>(batch[1], w.t()), k) == 0);
        }
      }
    }
  });
}

TEST_CASE("packed panels of any height and depth") {
  situ_test::with_every_instruction_set<Cpu>([] {
    for (int64_t m = 3; m <= 19; ++m) {
      for (int64_t k : {5, 6, 7, 8, 11, 17}) {
        auto const a = numbers<float>({m, k}, 1), b = numbers<float>({301, k}, 2);
        auto const x = numbers<double>({m, k}, 3), y = numbers<double>({301, k}, 4);
        auto const u = numbers<bfloat16>({m, k}, 5), v = numbers<bfloat16>({k, 301}, 6);
        INFO("m ", m, ", k ", k);
        CHECK(wrong_elements(matmul(a, b.t()).to_vector(), plain_product<float>(a, b.t()), k) == 0);
        CHECK(wrong_elements(matmul(x, y.t()).to_vector(), plain_product<double>(x, y.t()), k) == 0);
        CHECK(wrong_elements(matmul(u, v).to_vector(), plain_product(u, v), k) == 0);
      }
    }
  });
}

TEST_CASE("bfloat16 numbers of any size, and infinities at the end of a row of odd length") {
  situ_test::with_every_instruction_set<Cpu>([] {
    auto a = numbers<bfloat16>({21, 75}, 1), b = numbers<bfloat16>({75, 33}, 2);
    for (int64_t i = 0; i < a.size(); ++i) a.data()[i] = static_cast<bfloat16>(std::ldexp(static_cast<float>(a.data()[i]) + 0.5f + static_cast<float>(i % 64) / 64, static_cast<int>(i * 37 % 61) - 30));
    for (int64_t i = 0; i < b.size(); ++i) b.data()[i] = static_cast<bfloat16>(std::ldexp(static_cast<float>(b.data()[i]) + 0.25f, static_cast<int>(i * 53 % 83) - 70));
    auto const magnitudes = plain_product<bfloat16>(abs(a), abs(b)), expected = plain_product(a, b);
    auto const got = matmul(a, b).to_vector();
    std::size_t wrong = 0;
    for (std::size_t i = 0; i < got.size(); ++i) wrong += !(std::abs(static_cast<double>(static_cast<float>(got[i])) - expected[i]) <= 4e-3 * std::abs(expected[i]) + 2e-6 * magnitudes[i]);
    CHECK(wrong == 0);

    auto x = full<bfloat16>({14, 75}, 1), y = full<bfloat16>({75, 18}, 2);
    x(3, 74) = bfloat16(INFINITY);
    y(74, 5) = bfloat16(-INFINITY);
    auto const z = matmul(x, y);
    CHECK(static_cast<float>(z(3, 4)) == INFINITY);
    CHECK(static_cast<float>(z(2, 5)) == -INFINITY);
    CHECK(static_cast<float>(z(3, 5)) == -INFINITY);
    CHECK(static_cast<float>(z(2, 4)) == 150.f);
  });
}

TEST_CASE("products of bfloat16 around the sizes of tiles, of any strides") {
  situ_test::with_every_instruction_set<Cpu>([] {
    for (int64_t m : {1, 4, 15, 16, 17, 32, 33, 48}) {
      for (int64_t n : {2, 15, 16, 17, 31, 32, 33, 50}) {
        for (int64_t k : {31, 32, 33, 65, 96, 130, 1025, 1056}) {
          if (k > 1000 && (m * n) % 3 != 0) continue;
          auto const a = numbers<bfloat16>({m, k}, 1), b = numbers<bfloat16>({k, n}, 2), x = numbers<bfloat16>({k, m}, 3), w = numbers<bfloat16>({n, k}, 4);
          INFO("m ", m, ", n ", n, ", k ", k);
          CHECK(wrong_elements(matmul(a, b).to_vector(), plain_product(a, b), k) == 0);
          CHECK(wrong_elements(matmul(x.t(), b).to_vector(), plain_product<bfloat16>(x.t(), b), k) == 0);
          CHECK(wrong_elements(matmul(a, w.t()).to_vector(), plain_product<bfloat16>(a, w.t()), k) == 0);
          if (k > 100) continue;
          auto const apart = matrix<bfloat16, Cpu>(Form::stepped, m, k, 5), back = matrix<bfloat16, Cpu>(Form::flipped, k, n, 6);
          auto const backwards = a.flip(0), repeated = matrix<bfloat16, Cpu>(Form::broadcast, m, k, 7);
          CHECK(wrong_elements(matmul(backwards, b).to_vector(), plain_product<bfloat16>(backwards, b), k) == 0);
          CHECK(wrong_elements(matmul(repeated, b).to_vector(), plain_product<bfloat16>(repeated, b), k) == 0);
          CHECK(wrong_elements(matmul(apart, back).to_vector(), plain_product(apart, back), k) == 0);
        }
      }
    }
    auto const a = numbers<bfloat16>({70, 2100}, 1), b = numbers<bfloat16>({2100, 420}, 2);  // more than one block of k, and of columns
    CHECK(wrong_elements(matmul(a, b).to_vector(), plain_product(a, b), 2100) == 0);
    auto const c = numbers<bfloat16>({2350, 33}, 3), d = numbers<bfloat16>({33, 18}, 4);  // and of rows
    CHECK(wrong_elements(matmul(c, d).to_vector(), plain_product(c, d), 33) == 0);
    for (int64_t n : {18, 40}) {  // what an earlier product has left in memory is not read
      auto const nothing = full<bfloat16>({n, 96}, std::nanf(""));
      CHECK(std::isnan(static_cast<float>(matmul(nothing, nothing.t())(0, 0))));
      auto const e = numbers<bfloat16>({n, 65}, 5), f = numbers<bfloat16>({65, n}, 6);
      CHECK(wrong_elements(matmul(e, f).to_vector(), plain_product(e, f), 65) == 0);
    }
  });
}

TEST_CASE("large products in all their blocks") {
  auto const a = numbers<float>({2500, 70}, 1), b = numbers<float>({70, 900}, 2);
  CHECK(wrong_elements(matmul(a, b).to_vector(), plain_product(a, b), 70) == 0);
  auto const c = numbers<bfloat16>({1100, 500}, 1), d = numbers<bfloat16>({500, 60}, 2);
  CHECK(wrong_elements(matmul(c, d).to_vector(), plain_product(c, d), 500) == 0);
  auto const tall = numbers<float>({5000, 9000}, 1), x = numbers<float>({9000, 1}, 2), y = numbers<float>({1, 5000}, 3);
  CHECK(wrong_elements(matmul(tall, x).to_vector(), plain_product(tall, x), 9000) == 0);
  CHECK(wrong_elements(matmul(y, tall).to_vector(), plain_product(y, tall), 9000) == 0);
}

TEST_CASE("the result does not depend on the number of threads, bit for bit") {
  auto const numbers_between = [](Shape const& shape, int64_t seed) { return Tensor<float>(numbers<float>(shape, seed) * 0.3f + 0.01f); };
  auto const same = []<class T>(Tensor<T> const& a, Tensor<T> const& b) {
    set_num_threads(1);
    auto const one = matmul(a, b).to_vector();
    for (int threads : {2, 3, 7}) {
      set_num_threads(threads);
      auto const many = matmul(a, b).to_vector();
      CHECK(std::memcmp(one.data(), many.data(), one.size() * sizeof(T)) == 0);
    }
    set_num_threads(1);
  };
  int const before = num_threads();
  same(numbers_between({301, 517}, 1), numbers_between({517, 203}, 2));
  same(numbers_between({13, 517}, 1), numbers_between({517, 2003}, 2));
  same(Tensor<bfloat16>(cast<bfloat16>(numbers_between({301, 1517}, 1))), Tensor<bfloat16>(cast<bfloat16>(numbers_between({1517, 203}, 2))));
  same(numbers_between({40, 33, 35}, 1), numbers_between({40, 35, 37}, 2));
  same(numbers_between({3001, 517}, 1), numbers_between({517}, 2));
  same(numbers_between({517}, 1), numbers_between({517, 3001}, 2));
  set_num_threads(before);
}

TEST_CASE("batches broadcast, permuted ones too") {
  auto const q = numbers<float>({2, 7, 3, 8}, 1), k = numbers<float>({2, 9, 3, 8}, 2);
  auto const scores = matmul(q.permute({0, 2, 1, 3}), k.permute({0, 2, 3, 1}));
  CHECK(scores.shape() == Shape{2, 3, 7, 9});
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t h = 0; h < 3; ++h) {
      CHECK(wrong_elements(scores[b][h].to_vector(), plain_product<float>(q[b](all(), h), k[b](all(), h).t()), 8) == 0);
    }
  }
  CHECK(equal(bmm(q[0], k[0](range(0, 7), all(), all()).transpose(1, 2)), matmul(q[0], k[0](range(0, 7), all(), all()).transpose(1, 2))));
  Tensor<float> const batches = bmm(q[0], k[0](range(0, 7), all(), all()).transpose(1, 2));
  for (int64_t b = 0; b < 7; ++b) CHECK(wrong_elements(batches[b].to_vector(), plain_product<float>(q[0][b], k[0][b].t()), 8) == 0);
  auto const shared = matmul(q.expand({4, 2, 7, 3, 8}), k[0][0].t());
  CHECK(equal(shared[3], matmul(q, k[0][0].t())));
}

TEST_CASE("integers wrap, 16-bit floats are rounded once, infinities and NaN stay") {
  Tensor<int8_t> const small{{100, 100}};
  CHECK(matmul(small, small.t()).item() == static_cast<int8_t>(20000));
  Tensor<int64_t> const large{{int64_t{1} << 62, 3}};
  CHECK(matmul(large, large.t()).item() == 9);
  auto const ones = full<float16>({1, 4096}, float16(1.f));
  CHECK(static_cast<float>(matmul(ones, ones.t()).item()) == 4096.f);  // a chain of float16 additions ends at 2048
  Tensor<float> special = zeros({4, 40});
  special(1, 20) = INFINITY;
  special(2, 33) = NAN;
  auto const x = full({40}, 1.f);
  auto const y = matmul(special, x).to_vector(), z = matmul(special, x.unsqueeze(1).expand({40, 20}))(all(), 19).to_vector();
  for (auto const& v : {y, z}) {
    CHECK(v[0] == 0);
    CHECK(v[1] == INFINITY);
    CHECK(std::isnan(v[2]));
    CHECK(v[3] == 0);
  }
}

TEST_CASE("an infinity in a vector stays one, wherever it stands") {
  situ_test::with_every_instruction_set<Cpu>([] {
    std::size_t wrong = 0;
    for (int64_t depth : {5, 10, 19, 31, 40}) {
      for (int64_t at = 0; at < depth; ++at) {
        auto x = full({depth}, 1.f);
        x(at) = INFINITY;
        for (float y : matmul(full({9, depth}, 1.f), x).to_vector()) wrong += !(y == INFINITY);
        for (float y : matmul(x, full({9, depth}, 1.f).t()).to_vector()) wrong += !(y == INFINITY);
        for (float y : matmul(x, full({depth, 9}, 1.f)).to_vector()) wrong += !(y == INFINITY);
        auto const doubles = cast<double>(x);
        for (double y : matmul(full<double>({9, depth}, 1.0), doubles).to_vector()) wrong += !(y == INFINITY);
      }
    }
    CHECK(wrong == 0);
  });
}

TEST_CASE("sums of nothing are 0, those of operands that run backwards too") {
  CHECK(equal(matmul(zeros({4, 0}).flip(0), zeros({0, 5}).flip(1)), zeros({4, 5})));
  auto const b = arange<float>(17);
  CHECK(equal(linear(zeros({3, 0}), zeros({17, 0}).flip(0), b), b.expand({3, 17})));
  CHECK(equal(matmul(zeros({3, 4, 0}).flip(0), zeros({3, 0, 5}).flip(2)), zeros({3, 4, 5})));
  CHECK(equal(matmul(zeros({2, 1, 40, 0}).flip(2), zeros({3, 0, 33}).flip(0)), zeros({2, 3, 40, 33})));
}

TEST_CASE("operands promote, and formulas are operands") {
  Tensor<float> const a{{1, 2}, {3, 4}};
  Tensor<int32_t> const n{{1, 0}, {2, 1}};
  Tensor<bool> const mask{{true, false}, {true, true}};
  static_assert(std::is_same_v<decltype(matmul(n, a)), Tensor<float>>);
  static_assert(std::is_same_v<decltype(matmul(n, n)), Tensor<int32_t>>);
  static_assert(std::is_same_v<decltype(matmul(pin(a), pin(a))), Tensor<float>>);
  CHECK(matmul(n, a).to_vector() == std::vector<float>{1, 2, 5, 8});
  CHECK(matmul(mask, a).to_vector() == std::vector<float>{1, 2, 4, 6});
  CHECK(matmul(a + 1, 2 * a).to_vector() == std::vector<float>{22, 32, 38, 56});
  Tensor<float> z = a;
  for (int k = 0; k < 3; ++k) z = matmul(z, a);
  CHECK(z.to_vector() == std::vector<float>{199, 290, 435, 634});
}

TEST_CASE_TEMPLATE("dot and outer", D, Cpu, Emulated<0>) {
  auto const a = numbers<float>({100}, 1).to(D{}), b = numbers<float>({100}, 2).to(D{});
  CHECK(dot(a, b).shape() == Shape{});
  CHECK(dot(a, b).item() == matmul(a, b).item());
  CHECK(dot(a.flip(0), b).item() == matmul(a.flip(0), b).item());
  auto const c = outer(a, b(range(0, 7)));
  CHECK(c.shape() == Shape{100, 7});
  CHECK(c.to_vector() == matmul(a.unsqueeze(1), b(range(0, 7)).unsqueeze(0)).to_vector());
  CHECK(dot(Tensor<float>{1, 2, 3}.to(D{}), Tensor<float>{4, 5, 6}.to(D{})).item() == 32);
  CHECK(dot(Tensor<int8_t>{100, 100}.to(D{}), Tensor<int8_t>{100, 100}.to(D{})).item() == static_cast<int8_t>(20000));
  CHECK(outer(Tensor<float>{1, 2}.to(D{}), Tensor<float>{3, 4, 5}.to(D{})).to_vector() == std::vector<float>{3, 4, 5, 6, 8, 10});
  auto const n = numbers<int8_t>({3}, 1).to(D{});
  static_assert(std::is_same_v<value_of<decltype(dot(n, n))>, int8_t>);
  CHECK(dot(n, n).item() == matmul(n, n).item());
}

TEST_CASE_TEMPLATE("linear gives what PyTorch gives", D, SITU_TEST_DEVICES) {
  auto const x = numbers<double>({3, 4}, 0).to(D{}), w = Tensor<double, D>((numbers<double>({2, 4}, 1) / 8.0).to(D{})), b = numbers<double>({2}, 2).to(D{});
  CHECK(linear(x, w, b).to_vector() == situ_test::expected::linear());
  CHECK(linear_relu(x, w, b).to_vector() == situ_test::expected::linear_relu());
  auto const y = linear_gelu_tanh(x, w, b).to_vector();
  for (std::size_t k = 0; k < y.size(); ++k) CHECK(std::fabs(y[k] - situ_test::expected::linear_gelu_tanh()[k]) <= 1e-14 * (1 + std::fabs(y[k])));
  CHECK(linear(x[1], w, b).to_vector() == linear(x, w, b)[1].to_vector());
  CHECK(linear(x, w[1], b.select(0, 1)).to_vector() == linear(x, w, b)(all(), 1).to_vector());
}

TEST_CASE("bias and activation reach every tile once") {
  situ_test::with_every_instruction_set<Cpu>([] {
    auto const check = []<class T>(std::type_identity<T>, Shape const& shape, int64_t out, double tolerance) {
      int64_t const in = shape.back();
      Tensor<T> const x(numbers<T>(shape, 1)), w = ((numbers<T>({out, in}, 2)) * 0.125).template to<T>(), b = numbers<T>({out}, 3);
      auto const y = (matmul(x.template to<double>(), w.template to<double>().t()) + b.template to<double>());
      INFO(std::string(dtype_name<T>()), " ", to_string(shape), " ", out);
      auto const close = [&](auto const& got, auto const& expected) {
        return allclose(got.template to<double>(), expected, {.rtol = tolerance, .atol = tolerance * static_cast<double>(in)});
      };
      CHECK(close(linear(x, w, b), y));
      CHECK(close(linear_relu(x, w, b), relu(y)));
      CHECK(close(linear_gelu_tanh(x, w, b), gelu(y, approximate_tanh)));
      CHECK(close(linear_relu(x, w), relu(y - b.template to<double>())));
    };
    for (int64_t out : {1, 5, 9, 17, 20, 25, 33, 49, 50, 100}) {  // last tiles of one column, too
      check(std::type_identity<float>{}, {3, 7, 19}, out, 1e-6);
      check(std::type_identity<float>{}, {33, 800}, out, 1e-6);
      check(std::type_identity<float16>{}, {9, 800}, out, 1e-3);
      check(std::type_identity<float>{}, {40}, out, 1e-6);
      check(std::type_identity<double>{}, {2, 3}, out, 1e-14);
    }
  });
  Tensor<int32_t> const n{{1, -2}, {3, 4}}, b{-4, 1};
  CHECK(linear_relu(n, n, b[0].expand({2})).to_vector() == std::vector<int32_t>{1, 0, 0, 21});
  // The activation is one of the sums as they wrap: 200 is -56, and -200 is 56.
  CHECK(linear_relu(Tensor<int8_t>{{20, 1}, {-20, 3}}, Tensor<int8_t>{{10, 0}}).to_vector() == std::vector<int8_t>{0, 56});
  CHECK(linear_relu(Tensor<int16_t>{{200, 1}, {-200, 3}}, Tensor<int16_t>{{200, 0}}, Tensor<int16_t>{4}).to_vector() == std::vector<int16_t>{0, 25540});
  CHECK(linear_relu(Tensor<uint8_t>{{20, 1}}, Tensor<uint8_t>{{10, 0}}).to_vector() == std::vector<uint8_t>{200});
}

TEST_CASE("shapes that do not fit are named") {
  auto const a = zeros({2, 3}), b = zeros({4, 5}), v = zeros({3}), c = zeros({3, 2, 3}), d = zeros({2, 3, 2}), s = zeros({});
  CHECK(thrown<ShapeError>([&] { matmul(a, b); }, "matmul: shapes [2, 3] and [4, 5] cannot be multiplied: 3 != 4") == "");
  CHECK(thrown<ShapeError>([&] { matmul(v, b); }, "matmul: shapes [3] and [4, 5] cannot be multiplied: 3 != 4") == "");
  CHECK(thrown<ShapeError>([&] { matmul(b, v); }, "matmul: shapes [4, 5] and [3] cannot be multiplied: 5 != 3") == "");
  CHECK(thrown<ShapeError>([&] { matmul(c, d); }, "matmul: shapes [3, 2, 3] and [2, 3, 2] cannot be multiplied: 3 != 2, the batches do not broadcast") == "");
  CHECK(thrown<ShapeError>([&] { matmul(s, a); },
                           "matmul: shapes [] and [2, 3] cannot be multiplied: each operand needs an axis; use * for products with one number") == "");
  CHECK(thrown<ShapeError>([&] { bmm(a, d); }, "bmm: shapes [2, 3] and [2, 3, 2] were given: both operands must have 3 axes; matmul takes others") == "");
  CHECK(thrown<ShapeError>([&] { bmm(c, d); }, "bmm: shapes [3, 2, 3] and [2, 3, 2] cannot be multiplied: 3 != 2 batches; matmul broadcasts") == "");
  CHECK(thrown<ShapeError>([&] { dot(a, v); }, "dot: shapes [2, 3] and [3] were given: both operands must have 1 axis; matmul takes others") == "");
  CHECK(thrown<ShapeError>([&] { dot(v, zeros({4})); }, "dot: shapes [3] and [4] cannot be multiplied: 3 != 4") == "");
  CHECK(thrown<ShapeError>([&] { outer(a, v); }, "outer: shapes [2, 3] and [3] were given: both operands must have 1 axis; matmul takes others") == "");
  CHECK(thrown<ShapeError>([&] { linear(b, a); }, "linear: shapes [4, 5] and [2, 3] cannot be multiplied: 5 != 3; the weights are [out, in]") == "");
  CHECK(thrown<ShapeError>([&] { linear(v, a, v); },
                           "linear: a bias of shape [3] does not fit weights of shape [2, 3]: it has one element for each output") == "");
  CHECK(thrown<ShapeError>([&] { linear_relu(v, d); },
                           "linear_relu: shapes [3] and [2, 3, 2] were given: x needs an axis, and the weights are [out, in] or [in]") == "");
}

template <class A, class B>
concept multipliable = requires(A const& a, B const& b) { matmul(a, b); };
static_assert(multipliable<Tensor<float>, Tensor<int8_t, Pinned>>);
static_assert(!multipliable<Tensor<float>, Tensor<float, Emulated<0>>>);
static_assert(!multipliable<Tensor<bool>, Tensor<bool>>);
static_assert(!multipliable<Tensor<float>, float>);
