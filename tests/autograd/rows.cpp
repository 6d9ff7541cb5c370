/// Derivatives of operations on rows: against double precision and values of PyTorch 1.13. gradcheck_sums.cpp has the finite differences.
#include <doctest/doctest.h>

#include <cmath>
#include <autograd/inputs.hpp>
#include <situ/autograd/rows.hpp>
#include <situ/ops/random.hpp>
#include <support/compare.hpp>
#include <support/devices.hpp>

using namespace situ;
using situ_test::numbers;

namespace {

template <class W>
concept normalizes = requires(Variable<float> v, W w) { layer_norm(v, {2}, w); };

}  // namespace

TEST_CASE_TEMPLATE("gradients of rows are the same for every instruction set, length and number of rows", D, Cpu, Emulated<0>) {
  situ_test::with_every_instruction_set<D>([] {
    for (int64_t n : {1, 2, 7, 16, 33, 100, 5000}) {
      CAPTURE(n);
      int64_t const rows = n > 1000 ? 3 : 300;
      auto const values = numbers({rows, n}), slopes = numbers({rows, n}, 9), weights = numbers({n}, 5);
      Variable x{values.to<float>(D{})}, w{weights.to<float>(D{})}, b{zeros<float>({n}, D{})};
      Variable<double> x64{values}, w64{weights}, b64{zeros<double>({n})};
      auto const close = [&](auto const& got, Tensor<double> const& want) {
        return max(abs(got.template to<double>().cpu() - want)).item() <= 2e-6 * (n == 1 ? 1 : max(abs(want)).item());  // of one element the terms cancel
      };
      auto const g = slopes.to<float>(D{});
      layer_norm(x, {n}, w, b, 0.1).backward(g);
      // The same in double, of elementary functions.
      Variable<double> d = x64 - mean(x64, 1, keepdim);
      Variable<double> y = d * rsqrt(mean(d * d, 1, keepdim) + 0.1) * w64 + b64;
      y.backward(slopes);
      CHECK(close(x.grad(), x64.grad()));
      CHECK(close(w.grad(), w64.grad()));
      CHECK(close(b.grad(), b64.grad()));
      x.zero_grad(), x64.zero_grad();
      softmax(x, 1).backward(g);
      Variable<double> e = exp(x64);
      Variable<double> s = e / sum(e, 1, keepdim);
      s.backward(slopes);
      CHECK(close(x.grad(), x64.grad()));
      x.zero_grad(), x64.zero_grad();
      log_softmax(x, 1).backward(g);
      Variable<double> l = x64 - log(sum(exp(x64), 1, keepdim));
      l.backward(slopes);
      CHECK(close(x.grad(), x64.grad()));
    }
  });
}

TEST_CASE("a gradient that nobody else sees is written over, and only that") {
  situ_test::with_every_instruction_set<Cpu>([] {
    for (int64_t n : {15, 16, 33, 100, 5000}) {
      CAPTURE(n);
      Tensor<float> const slopes = numbers({5, n}, 9).to<float>(), values = numbers({5, n}).to<float>();
      Variable x{values}, v{values}, u{values}, w{numbers({n}, 5).to<float>()};
      layer_norm(x, {n}, w).backward(slopes);
      sum(layer_norm(v, {n}, w.value()) * slopes).backward();
      CHECK(v.grad().to_vector() == x.grad().to_vector());
      Variable<float> y = layer_norm(u, {n}, w.value());
      y.retain_grad();
      sum(y * slopes).backward();
      CHECK(y.grad().to_vector() == slopes.to_vector());
      CHECK(u.grad().to_vector() == x.grad().to_vector());
    }
  });
}

TEST_CASE("a gradient that is computed with the rows that it reaches is that of a formula by itself") {
  situ_test::with_every_instruction_set<Cpu>([] {
    for (int64_t n : {1, 3, 16, 33, 100, 300, 2049, 4096, 4097}) {
      CAPTURE(n);
      int64_t const rows = 20000 / n + 3;
      Tensor<float> const values = numbers({rows, n}).to<float>(), slopes = numbers({rows, n}, 9).to<float>();
      Tensor<float> const weights = numbers({n}, 5).to<float>();
      Variable x{values}, w{weights}, b{zeros<float>({n})}, x2{values}, w2{weights}, b2{zeros<float>({n})};
      layer_norm(x, {n}, w, b).backward(Tensor<float>(square(slopes) * 3));
      sum(layer_norm(x2, {n}, w2, b2) * square(slopes) * 3).backward();
      CHECK(x2.grad().to_vector() == x.grad().to_vector());
      auto const same = [&](Tensor<float> const& a, Tensor<float> const& b) {  // rows shorter than a register are summed in other parts
        return n >= 16 ? a.to_vector() == b.to_vector() : max(abs(a - b)).item() <= 1e-5f * (1 + max(abs(b)).item());
      };
      CHECK(same(w2.grad(), w.grad()));
      CHECK(same(b2.grad(), b.grad()));
      // Of the weight alone, and from one number.
      Variable w3{weights}, w4{weights};
      rms_norm(values, {n}, w3).backward(full({rows, n}, 0.5f));
      sum(rms_norm(values, {n}, w4) * 0.5f).backward();
      CHECK(same(w4.grad(), w3.grad()));
    }
  });
}

TEST_CASE("a gradient of a norm that others add to, or look at, is computed first") {
  int64_t const n = 20;
  Tensor<float> const values = numbers({7, n}).to<float>(), slopes = numbers({7, n}, 9).to<float>(), more = numbers({7, n}, 4).to<float>();
  auto const want = [&](Tensor<float> const& g) {
    Variable x{values};
    layer_norm(x, {n}).backward(g);
    return x.grad().to_vector();
  };
  {
    Variable x{values};
    Variable<float> const y = layer_norm(x, {n});
    (sum(y * slopes) + sum(y * more)).backward();
    CHECK(x.grad().to_vector() == want(slopes + more));
  }
  {
    Variable x{values};
    Variable<float> const y = layer_norm(x, {n}), z = y.reshape({n, 7});  // a view comes between
    (sum(y * slopes) + sum(z * more.reshape({n, 7}))).backward();
    CHECK(x.grad().to_vector() == want(slopes + more));
  }
  {
    Variable x{values};
    Variable<float> y = layer_norm(x, {n});
    y.register_hook([](Tensor<float> const& g) { return Tensor<float>(g * 2); });
    sum(y * slopes).backward();
    CHECK(x.grad().to_vector() == want(slopes * 2));
  }
  {
    Variable x{values};
    Variable<float> y = layer_norm(x, {n});
    auto const [gy, gx] = grad(sum(y * slopes), {y, x}, retain_graph);
    CHECK(gy.to_vector() == slopes.to_vector());
    CHECK(gx.to_vector() == want(slopes));
    CHECK(grad(sum(y * slopes), x).to_vector() == want(slopes));
  }
  {
    Variable x{values};
    Variable<float> const y = layer_norm(x, {n});
    Variable<float> const total = sum(y * slopes);
    total.backward(retain_graph);
    total.backward();
    Variable twice{values};
    layer_norm(twice, {n}).backward(slopes), layer_norm(twice, {n}).backward(slopes);
    CHECK(x.grad().to_vector() == twice.grad().to_vector());
    no_grad const guard;
    CHECK(layer_norm(x, {n}).value().to_vector() == y.value().to_vector());
  }
}

TEST_CASE("rows of results beyond the caches are those of few rows") {
  situ_test::UnknownCaches const caches;
  situ_test::with_every_instruction_set<Cpu>([] {
    for (int64_t n : {64, 101}) {
      CAPTURE(n);
      int64_t const rows = (int64_t{1} << 21) / n + 5, some = 37;
      Generator generator(3);
      Tensor<float> const values = randn<float>({rows, n}, generator) + 100, slopes = randn<float>({rows, n}, generator);
      Variable x{values}, w{randn<float>({n}, generator)};
      Variable<float> const y = layer_norm(x, {n}, w);
      y.backward(slopes);
      for (int64_t first : {int64_t{0}, int64_t{5000}, rows - some}) {
        Variable part{values.slice(0, first, first + some)}, rows_alone{values.slice(0, first, first + 1)};
        Variable<float> const z = layer_norm(part, {n}, w.value());
        z.backward(slopes.slice(0, first, first + some));
        CHECK(z.value().to_vector() == y.value().slice(0, first, first + some).to_vector());
        CHECK(part.grad().to_vector() == x.grad().slice(0, first, first + some).to_vector());
        // One row alone goes another way.
        Variable<float> const u = layer_norm(rows_alone, {n}, w.value());
        u.backward(slopes.slice(0, first, first + 1));
        CHECK(max(abs(u.value() - z.value().slice(0, 0, 1))).item() < 2e-5f);
        CHECK(max(abs(rows_alone.grad() - part.grad().slice(0, 0, 1))).item() < 2e-5f);
      }
    }
  });
}

TEST_CASE("statistics of rows that are far from 0 and close together lose no digits") {
  situ_test::with_every_instruction_set<Cpu>([] {
    for (int64_t n : {16, 40, 100}) {
      Generator generator(5);
      Tensor<float> const values = randn<float>({7, n}, generator) * 0.01f + 300, slopes = randn<float>({7, n}, generator);
      Variable x{values};
      Variable<double> d{values.to<double>()};
      layer_norm(x, {n}).backward(slopes);
      layer_norm(d, {n}).backward(slopes.to<double>());
      CHECK(max(abs(x.grad().to<double>() - d.grad())).item() < 1e-5 * max(abs(d.grad())).item());
    }
  });
}

TEST_CASE("gradients beyond the caches are those of few elements") {
  situ_test::UnknownCaches const caches;
  situ_test::with_every_instruction_set<Cpu>([] {
    int64_t const n = (int64_t{1} << 20) + 77;
    Tensor<float> const values = numbers({n}).to<float>(), factors = numbers({n}, 9).to<float>();
    for (int64_t skip : {0, 3}) {  // whether the inputs lie as packs do
      Tensor<float> const a = values.slice(0, skip, n), f = factors.slice(0, skip, n);
      Variable x{a}, w{f}, v{Tensor<float>(a.slice(0, n - 40, n - skip))}, u{Tensor<float>(f.slice(0, n - 40, n - skip))};
      Variable<double> y{a.to<double>()};
      sum(x * w * y * 0.5).backward();
      sum(v * u * y.value().slice(0, n - 40, n - skip) * 0.5).backward();
      CHECK(x.grad().slice(0, n - 40, n - skip).to_vector() == v.grad().to_vector());
      CHECK(w.grad().slice(0, n - 40, n - skip).to_vector() == u.grad().to_vector());
      bool right = true;
      std::vector<float> const as = a.to_vector(), fs = f.to_vector(), by_w = w.grad().to_vector();
      std::vector<double> const by_y = y.grad().to_vector();
      for (std::size_t k = 0; k < as.size(); ++k) {
        double const d = static_cast<double>(as[k]), e = static_cast<double>(fs[k]);
        right = right && by_y[k] == static_cast<double>(as[k] * fs[k]) * 0.5 && std::fabs(static_cast<double>(by_w[k]) - 0.5 * d * d) <= 1e-6 * d * d && std::isfinite(e);
      }
      CHECK(right);
    }
  });
}

TEST_CASE("softmax of one number without axes does not depend on it") {
  Variable<double> const x{full<double>({}, 3)};
  (softmax(x, 0) * 5 + log_softmax(x * x, -1)).backward();
  CHECK(x.grad().shape() == Shape{});
  CHECK(x.grad().item() == 0);
}

TEST_CASE("16-bit floats are computed in float") {
  Variable x{Tensor<float16>{{1, 2, 4}, {0, 1, 0}}};
  Variable w{Tensor<float>{1, 2, 1}};
  Tensor<float16> const g{{1, 0, 2}, {0, 1, 1}};
  softmax(x, 1).backward(g);
  // torch.softmax in double
  std::vector<float> const want{-0.0287f, -0.1990f, 0.2278f, -0.1667f, 0.1222f, 0.0446f};
  auto const got = x.grad().to<float>().to_vector();
  for (std::size_t k = 0; k < want.size(); ++k) CHECK(got[k] == doctest::Approx(want[k]).epsilon(0.01));
  x.zero_grad();
  layer_norm(x, {3}, w).backward(g);
  // torch.nn.functional.layer_norm in double
  std::vector<float> const want_w{-1.0690f, 1.4142f, 1.9655f}, want_x{0.45816f, -0.68724f, 0.22908f, -1.0607f, 0.0001f, 1.0606f};
  REQUIRE(w.grad().size() == 3);
  for (int k = 0; k < 3; ++k) CHECK(static_cast<float>(w.grad().item(k)) == doctest::Approx(want_w[static_cast<std::size_t>(k)]).epsilon(0.003));
  auto const got_x = x.grad().to<float>().to_vector();
  for (std::size_t k = 0; k < want_x.size(); ++k) CHECK(std::fabs(got_x[k] - want_x[k]) < 2e-3f);
}

TEST_CASE("rows of pinned memory have gradients") {
  Variable x{Tensor<float, Pinned>{{1, 2, 4}, {0, 1, 0}}}, w{Tensor<float, Pinned>{1, 2, 3}};
  Variable y{x.value().to(Cpu{})}, u{w.value().to(Cpu{})};
  sum(layer_norm(x, {3}, w) * softmax(x, 1)).backward();
  sum(layer_norm(y, {3}, u) * softmax(y, 1)).backward();
  CHECK(x.grad().to_vector() == y.grad().to_vector());
  CHECK(w.grad().to_vector() == u.grad().to_vector());
}

namespace {

/// The gradient of sum(g layer_norm(x)), or of rms_norm, by its definition.
std::vector<double> norm_gradient_by_loops(Tensor<float> const& x, Tensor<float> const& g, bool centred) {
  int64_t const rows = x.shape()[0], n = x.shape()[1];
  double const count = static_cast<double>(n);
  std::vector<double> result;
  for (int64_t r = 0; r < rows; ++r) {
    auto const at = [&](Tensor<float> const& t, int64_t k) { return static_cast<double>(t.data()[r * n + k]); };
    double mean = 0, variance = 0, total = 0, product = 0;
    for (int64_t k = 0; k < n && centred; ++k) mean += at(x, k) / count;
    for (int64_t k = 0; k < n; ++k) variance += (at(x, k) - mean) * (at(x, k) - mean) / count;
    double const scale = 1 / std::sqrt(variance + 1e-5);
    for (int64_t k = 0; k < n; ++k) total += centred ? at(g, k) / count : 0, product += at(g, k) * (at(x, k) - mean) * scale / count;
    for (int64_t k = 0; k < n; ++k) result.push_back(scale * (at(g, k) - total - (at(x, k) - mean) * scale * product));
  }
  return result;
}

}  // namespace

TEST_CASE("gradients of norms of rows of every length, with a gradient that lies in memory, and with one that is computed") {
  for (int64_t n = 2; n <= 300; n += n < 140 ? 1 : 7) {
    for (int64_t rows : {4, 16, 17, 52}) {
      Tensor<float> const values = randn({rows, n}) * 2 + 5, y = randn({rows, n});
      Variable x{values};
      double worst = 0;
      auto const compare = [&](Tensor<float> const& g, bool centred) {
        auto const want = norm_gradient_by_loops(values, g, centred);
        for (int64_t k = 0; k < rows * n; ++k) {
          double const w = want[static_cast<std::size_t>(k)];
          worst = situ_test::worse(worst, std::abs(static_cast<double>(x.grad().data()[k]) - w) / (1 + std::abs(w)));
        }
        x.zero_grad();
      };
      sum(layer_norm(x, {n}) * y).backward();  // y itself
      compare(y, true);
      sum(y * rms_norm(x, {n})).backward();
      compare(y, false);
      sum(layer_norm(x, {n}) * y * 2).backward();
      compare(Tensor<float>(y * 2), true);
      sum(layer_norm(x, {n}) * y).backward(full({}, 3.f));
      compare(Tensor<float>(y * 3), true);
      layer_norm(x, {n}).backward(y);
      compare(y, true);
      CHECK_MESSAGE(worst < (n == 2 ? 2e-3 : 2e-5), n, " ", rows, " ", worst);
      CHECK(y.use_count() == 1);  // what was lent is given back
    }
  }
}

TEST_CASE("gradients of norms are the same with any number of threads") {
  Tensor<float> const values = randn({3001, 100}), y = randn({3001, 100});
  int const before = num_threads();
  std::vector<float> first;
  for (int threads : {1, 2, 3}) {
    set_num_threads(threads);
    Variable x{values}, w{ones({100})};
    sum(layer_norm(x, {100}) * y).backward();
    sum(layer_norm(x, {100}, w) * y).backward();
    auto got = x.grad().to_vector();
    for (float const k : w.grad().to_vector()) got.push_back(k);
    if (first.empty()) first = got;
    CHECK(got == first);
  }
  set_num_threads(before);
}

TEST_CASE("nodes of rows have PyTorch's names, and devices do not mix") {
  Variable x{Tensor<float>{{1, 2}}};
  CHECK(std::string(softmax(x, 1).grad_fn()) == "Softmax");
  CHECK(std::string(log_softmax(x * 2, 1).grad_fn()) == "LogSoftmax");
  CHECK(std::string(layer_norm(x, {2}).grad_fn()) == "LayerNorm");
  static_assert(!normalizes<Tensor<float, Emulated<0>>>);
  static_assert(normalizes<Tensor<float>>);
  CHECK(situ_test::thrown<ShapeError>([&] { softmax(x, 2); }, "softmax: axis 2 is out of range for shape [1, 2]: axes are -2 to 1") == "");
  CHECK(situ_test::thrown<ShapeError>([&] { layer_norm(x, {2}, x); }, "layer_norm: the weight has shape [1, 2], but the normalized axes of [1, 2] have shape [2]") == "");
}
