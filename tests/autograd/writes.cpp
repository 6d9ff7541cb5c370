/// Writing into Variables: parts of them, and v += e. Literal gradients are PyTorch 1.13's.
#include <doctest/doctest.h>

#include <functional>
#include <optional>
#include <thread>

#include <situ/autograd/concat.hpp>
#include <situ/autograd/function.hpp>
#include <situ/autograd/gradcheck.hpp>
#include <situ/autograd/matmul.hpp>
#include <situ/device/emulated/device.hpp>
#include <support/compare.hpp>

using namespace situ;

namespace {

using Row = std::vector<double>;
using V = Variable<double>;

V matrix() { return V(Tensor<double>{{1., 2., 3.}, {4., 5., 6.}}); }
V row() { return V(Tensor<double>{7., 8., 9.}); }

struct Doubled {
  static auto forward(auto&, auto const& x) { return x * 2; }
  static auto backward(auto&, auto const& g) { return g * 2; }
};

struct Spread {
  static auto forward(auto&, auto const& x) { return Tensor<double>(eval(x * 2).expand({2, 3})); }
  static auto backward(auto&, auto const& g) { return sum(g, 0) * 2; }
};

struct Same {
  static auto forward(auto&, auto const& x) { return x; }
  static auto backward(auto&, auto const& g) { return g; }
};

}  // namespace

template <class A, class I>
concept takes_index = requires(A a, I i) { a[i]; };
static_assert(takes_index<Variable<float>&, int> && takes_index<Variable<float> const, std::size_t> && takes_index<decltype(std::declval<Variable<float>&>()[0]), int>);
template <class A>
concept takes_rows_in_braces = requires { std::declval<A>() = {{7.f, 8.f}, {0}}; } || requires { std::declval<A>() = {{7.f}, {}}; } || requires { std::declval<A>() = {{7.f, 8.f}, nullptr}; };
static_assert(!takes_rows_in_braces<VariablePart<float, Cpu>> && !takes_rows_in_braces<VariablePart<float, Cpu>&>);
static_assert(!takes_index<Variable<float>&, float> && !takes_index<Variable<float> const, bool> && !takes_index<decltype(std::declval<Variable<float>&>()[0]), double>);

TEST_CASE("a row that is written gets its gradient, and what was there before gets none") {
  V const x = matrix(), e = row();
  V y = x * 2;
  y[1] = e * e;
  CHECK(y.to_vector() == Row{2, 4, 6, 49, 64, 81});
  CHECK(std::string(y.grad_fn()) == "CopySlices");
  sum(y * y).backward();
  CHECK(x.grad().to_vector() == Row{8, 16, 24, 0, 0, 0});
  CHECK(e.grad().to_vector() == Row{1372, 2048, 2916});
}

TEST_CASE("every kind of index can be written, and every layout") {
  auto const check = [](auto const& f) { CHECK(gradcheck(f, {matrix(), row()})); };
  check([](V const& x, V const& e) {
    V y = x * 2;
    y(all(), 0) = e[0] * 3;
    return V(y * y);
  });
  check([](V const& x, V const& e) {
    V y = x * 2;
    y(range(0, 2), range(0, end(), 2)) = e(range(0, 2));
    return V(y * y);
  });
  check([](V const& x, V const& e) {
    V y = x * 2;
    y[1][2] = e[0] * e[1];
    y(0, 1) = e[2];
    return V(y * y);
  });
  check([](V const& x, V const& e) {
    V y = (x.t() * 2);
    V z = y.t().clone();
    z(1, range(2, -4, -1)) = e;
    return V(z * z);
  });
  check([](V const& x, V const& e) {
    V const constant_(Tensor<double>{{1., 2.}, {3., 4.}, {5., 6.}}, false);
    V y(constant_.value().t().flip(1), false);  // strides 1 and -2 in memory
    y[0] = e;
    y(all(), 2) *= x(all(), 0);
    return V(y * y);
  });
  check([](V const& x, V const& e) {
    V y = x * 1;
    y(all()) = e;  // broadcast
    return V(y * y + x);
  });
}

TEST_CASE("several writes in a row are each recorded") {
  V const x = matrix(), e = row();
  auto const f = [](V const& a, V const& b) {
    V y(Tensor<double>(zeros<double>({4, 3})), false);
    for (int64_t k = 0; k < 4; ++k) y[k] = (k == 0 ? V(b * 2) : V(tanh(y[k - 1].clone()) + a[k % 2]));
    y(range(1, 3)) += b;
    y(range(0, 2)) -= b * b;
    y[3] *= b;
    y[2] /= b;
    y[0] += 1;
    y[1] = 5;
    y(2, range(0, 2)) = Tensor<double>{8., 9.};
    return y;
  };
  CHECK(gradcheck(f, {x, e}));
  CHECK(gradcheck([&](V const& a, V const& b) { return sum(square(f(a, b))); }, {x, e}));
  CHECK(gradgradcheck(f, {x, e}));
}

TEST_CASE("a constant becomes the result of what is written into it") {
  V const e = row();
  V y(Tensor<double>(zeros<double>({2, 3})), false);
  y[0] = Tensor<double>{1., 2., 3.};
  y[1] = 4;
  CHECK(!y.requires_grad());
  CHECK(y.is_leaf());
  y[1] = e * 2;
  CHECK(y.requires_grad());
  sum(y).backward();
  CHECK(e.grad().to_vector() == Row{2, 2, 2});
}

TEST_CASE("a leaf that requires a gradient is written inside of a no_grad only") {
  V w = matrix();
  CHECK(situ_test::thrown<GradientError>([&] { w[0] = 1; },
                                         "operator=: this Variable of shape [2, 3] is a leaf that requires a gradient: a part of it cannot be written where gradients are "
                                         "recorded; write inside of a no_grad, or to a clone() of it") == "");
  CHECK(situ_test::thrown<GradientError>([&] { w -= 1; },
                                         "operator-=: this Variable of shape [2, 3] is a leaf that requires a gradient: it cannot be changed where gradients are recorded; "
                                         "do it inside of a no_grad, or name the result differently") == "");
  CHECK(w.to_vector() == Row{1, 2, 3, 4, 5, 6});
  sum(w * w).backward();
  double const* const data = w.value().data();
  {
    no_grad const guard;
    w -= 0.5 * w.grad();
    w[1] = 7;
    w(all(), 0) += Tensor<double>{1., 2.};
    w *= 2;
    w /= 2.0;
    w += 1;
  }
  CHECK(w.to_vector() == Row{2, 1, 1, 10, 8, 8});
  CHECK(w.value().data() == data);
  CHECK(w.is_leaf());
  CHECK(w.requires_grad());
  sum(w * w).backward();
  CHECK(w.grad().to_vector() == Row{6, 6, 8, 28, 26, 28});
}

TEST_CASE("changing a result is recorded") {
  CHECK(gradcheck(
      [](V const& x, V const& e) {
        V y = x * 2;
        y += e;
        y *= e * 2;
        y -= x;
        y /= 3;
        V total(Tensor<double>(zeros<double>({})), false);
        total += sum(y * y);
        return total;
      },
      {matrix(), row()}));
  V y = matrix() * 2;
  CHECK_THROWS_AS(y += V(Tensor<double>(ones<double>({2, 2, 3}))), ShapeError);
  CHECK_THROWS_AS(y[0] = V(Tensor<double>(ones<double>({2}))), ShapeError);
  CHECK(y.to_vector() == Row{2, 4, 6, 8, 10, 12});
  CHECK(std::string(y.grad_fn()) == "Mul");
}

TEST_CASE("a write that others would not know of is refused") {
  V const x = matrix(), e = row();
  V y = x * 2;
  {
    V const other = y;
    CHECK(situ_test::thrown<GradientError>([&] { y[0] = e; },
                                           "operator=: other Variables or formulas share the history of this one of shape [2, 3], and would not know of the write; "
                                           "write to a clone() of it") == "");
  }
  V view = y.t();
  CHECK(situ_test::thrown<GradientError>([&] { view[0] = 1; },
                                         "operator=: this Variable of shape [3, 2] is itself a view of another one, which would not know of the write; write to a part of "
                                         "that one, or to a clone()") == "");
  CHECK(situ_test::thrown<GradientError>([&] { view += 1; },
                                         "operator+=: this Variable of shape [3, 2] is itself a view of another one, which would not know of the change; change a part of that "
                                         "one, or name the result differently") == "");
  CHECK(view.to_vector() == Row{2, 8, 4, 10, 6, 12});
  V alone = (x * 3).t();  // nobody can see what it was a view of
  alone += 1;
  CHECK(alone.to_vector() == Row{4, 13, 7, 16, 10, 19});
  y[0] = e;
  CHECK(situ_test::thrown<GradientError>([&] { V const z = view * 2; },
                                         "a view of shape [3, 2] is used after the Variable that it is a view of was written: its gradient would go astray; take the view "
                                         "again") == "");
  for (auto const& use : std::initializer_list<std::function<void()>>{[&] { autograd::apply<Doubled>(view); }, [&] { view.backward(ones<double>({3, 2})); },
                                                                      [&] { grad(view, x, ones<double>({3, 2})); }, [&] { concat({view, view}); }}) {
    CHECK_THROWS_AS(use(), GradientError);
  }
  CHECK(sum(y.t()).item() == 24 + 30);
  y(all()) = y * 3;  // its own history may be held by what is written
  CHECK(y.to_vector() == Row{21, 24, 27, 24, 30, 36});
}

TEST_CASE("a part of what a Variable was before it was assigned to is not written as one of what it is") {
  V const x = matrix();
  V y = x * 2;
  auto part = y[1];
  y *= 3;
  for (auto const& write : std::initializer_list<std::function<void()>>{[&] { part[0] = 5; }, [&] { part[0] += 5; }}) {
    CHECK(situ_test::thrown<GradientError>(write, "operator=: the Variable that this part of shape [] was taken of has ended since, or was moved or assigned to; take the part again") == "");
  }
  CHECK(y.to_vector() == Row{6, 12, 18, 24, 30, 36});
  y[1][0] = 5;
  sum(y).backward();
  CHECK(x.grad().to_vector() == Row{6, 6, 6, 0, 6, 6});
}

TEST_CASE("a part is changed by formulas of the whole") {
  V const x = matrix();
  V y = x * 2;
  y(all()) += y * 3;
  CHECK(y.to_vector() == Row{8, 16, 24, 32, 40, 48});
  sum(y).backward();
  CHECK(x.grad().to_vector() == Row(6, 8.));
}

TEST_CASE("views that operations give are known as views, and stay so whatever is written later") {
  V const x = matrix();
  V h = x * 2;
  V const transposed = einsum("ij->ji", h), same = autograd::apply<Same>(h), viewed = h.view({6});
  h[0] = 0;
  {
    no_grad guard;
    h *= 1;
  }
  for (V const* view : {&transposed, &same, &viewed}) CHECK_THROWS_AS(sum(*view).backward(), GradientError);
  V leaf = matrix();
  V turned = einsum("ij->ji", leaf), given = autograd::apply<Same>(leaf);
  CHECK_THROWS_AS(turned[0] = 7, GradientError);
  CHECK_THROWS_AS(given[0] = 7, GradientError);
  CHECK(leaf.to_vector() == Row{1, 2, 3, 4, 5, 6});
  V sums = einsum("ij->i", leaf);
  sums[0] = 7;  // which is not
  sum(sums).backward();
  CHECK(leaf.grad().to_vector() == Row{0, 0, 0, 1, 1, 1});
}

TEST_CASE("a write for which there is no memory is none to a backward") {
  emulated::configure({.devices = 1, .memory = 1 << 20});
  {
    using D = Emulated<0>;
    Variable<float, D> const w{ones<float, D>({300, 300})};
    Variable<float, D> const total = sum(w * w);
    Tensor<float, D> t = w.value();
    {
      auto const filler = zeros<float, D>({130000});
      CHECK_THROWS_AS(t.assign(t.t()), OutOfMemory);
    }
    total.backward();
    CHECK(w.grad().item(7, 11) == 2);
  }
  emulated::configure({});
}

TEST_CASE("a backward notices that what it needs was written") {
  V const x = matrix(), e = row();
  V y = x * 2;
  V const z = y * y;
  y[0] = e;
  CHECK(situ_test::thrown<GradientError>([&] { sum(z).backward(); },
                                         "backward: Mul needs a tensor of shape [2, 3] as it was when it was recorded, but a recorded write has written to it in place since; "
                                         "write to a clone() of it, or after the backward") == "");
}

TEST_CASE("what is written may have axes of one index in front that the part has not") {
  V const e(Tensor<double>{{7., 8., 9.}});
  V y = matrix() * 1;
  y[0] = e;
  y(1, 2) = square(e(all(), range(0, 1)));
  CHECK(y.to_vector() == Row{7, 8, 9, 4, 5, 49});
  sum(y * y).backward();
  CHECK(e.grad().to_vector() == Row{14 + 2 * 49 * 14, 16, 18});
  no_grad const guard;
  y[1] = e;
  CHECK(y.to_vector() == Row{7, 8, 9, 7, 8, 9});
  CHECK(situ_test::thrown<ShapeError>([&] { y[0] = matrix(); }, "assign: shape [2, 3] cannot be expanded to [3]: it has more dimensions") == "");
}

TEST_CASE("a part is changed by what its axes are enough for, recorded or not") {
  V y = matrix() * 1;
  V const e(Tensor<double>{{7., 8., 9.}});
  CHECK_THROWS_AS(y[0] += e, ShapeError);
  no_grad const guard;
  CHECK_THROWS_AS(y[0] += e, ShapeError);
  CHECK(y.to_vector() == Row{1, 2, 3, 4, 5, 6});
}

TEST_CASE("a part may outlive what it is a part of, and is written no more where that would have to be recorded") {
  V const x = matrix();
  auto const message = "operator=: the Variable that this part of shape [] was taken of has ended since, or was moved or assigned to; take the part again";
  auto const row_of = [](V y) { return y[1]; };
  auto ended = row_of(x * 2);
  CHECK(situ_test::thrown<GradientError>([&] { ended[0] = 5; }, message) == "");
  CHECK(situ_test::thrown<GradientError>([&] { ended[0] += 5; }, message) == "");
  CHECK(ended.to_vector() == Row{8, 10, 12});
  sum(ended).backward();
  CHECK(x.grad().to_vector() == Row{0, 0, 0, 2, 2, 2});

  std::vector<V> held;
  held.push_back(x * 3);
  auto moved = held[0][1];
  held.reserve(held.capacity() + 100);  // held[0] lies elsewhere
  CHECK(situ_test::thrown<GradientError>([&] { moved[0] = 5; }, message) == "");
  held[0][1][0] = 5;
  CHECK(held[0].to_vector() == Row{3, 6, 9, 5, 15, 18});

  auto copied = [&] {
    V y = x * 4;
    auto part = y[1];
    held[0] = y;  // the only handle that is left is another one
    return part;
  }();
  CHECK(situ_test::thrown<GradientError>([&] { copied[0] = 5; }, message) == "");
  CHECK(held[0].to_vector() == Row{4, 8, 12, 16, 20, 24});

  {  // inside of a no_grad, nobody has to know
    no_grad guard;
    copied[0] = 5;
    ended[0] -= 5;
  }
  CHECK(held[0].to_vector() == Row{4, 8, 12, 5, 20, 24});
  CHECK(ended.to_vector() == Row{3, 10, 12});

  // Nor where nothing was recorded. What was written into a constant before is remembered.
  auto constant = row_of(V(zeros<double>({2, 3}), false));
  constant[0] = 5;
  CHECK(constant.to_vector() == Row{5, 0, 0});
  CHECK(situ_test::thrown<GradientError>([&] { constant[0] = x[0][0]; }, message) == "");
  auto written = [&] {
    V y(zeros<double>({2, 3}), false);
    auto part = y[1];
    part[0] = x[1][2];
    part[1] = x[0][1];  // y is still where it was
    CHECK(y.to_vector() == Row{0, 0, 0, 6, 2, 0});
    CHECK(y.requires_grad());
    sum(y * y).backward();
    return part;
  }();
  CHECK(x.grad().to_vector() == Row{0, 4, 0, 2, 2, 2 + 12});
  CHECK(situ_test::thrown<GradientError>([&] { written[0] = 5; },
                                         "a view of shape [3] is used after the Variable that it is a view of was written: its gradient would go astray; take the view again") == "");
}

TEST_CASE("a name for a part that was assigned to is no part, and has parts of its own") {
  V const x = matrix();
  V y = x * 2;
  auto name = y[1];
  name = x * 3;
  name[0] = x[1] * 2;
  CHECK(name.to_vector() == Row{8, 10, 12, 12, 15, 18});
  CHECK(y.to_vector() == Row{2, 4, 6, 8, 10, 12});
  sum(name).backward();
  CHECK(x.grad().to_vector() == Row{0, 0, 0, 5, 5, 5});
  auto other = y[0];
  name = other;  // the part that the other is
  name[2] = 7;
  CHECK(y.to_vector() == Row{2, 4, 7, 8, 10, 12});
  auto const copy = name;
  name = V(Tensor<double>{1., 2.}, false);
  CHECK(copy.to_vector() == Row{2, 4, 7});
  name(range(0, 1)) = 3;
  CHECK(name.to_vector() == Row{3, 2});
}

TEST_CASE("a part is changed under a name of its own") {
  for (int layout = 0; layout < 2; ++layout) {
    V const x = matrix();
    V y = layout == 0 ? V(zeros<double>({2, 3}), false) : V(Tensor<double>(zeros<double>({3, 2}).t()), false);
    REQUIRE(y.is_contiguous() == (layout == 0));
    y(all()) = x * 2;
    auto row = y[1];
    row += 1;
    row *= x[0];
    row -= x[1];
    row /= 2;
    CHECK(y.to_vector() == Row{2, 4, 6, 2.5, 8.5, 16.5});
    CHECK(row.to_vector() == Row{2.5, 8.5, 16.5});
    auto const loss = [&](V const& v) { return sum(v * v); };
    auto const of_row = grad(loss(row), x, retain_graph);
    CHECK(of_row.to_vector() == Row{22.5, 93.5, 214.5, 2.5, 25.5, 82.5});
    auto const of_y = grad(loss(y), x);
    CHECK(of_y.to_vector() == Row{30.5, 109.5, 238.5, 2.5, 25.5, 82.5});
  }
  V x = matrix();
  auto row = x[1];
  CHECK_THROWS_AS(row += 1, GradientError);  // of a leaf that requires a gradient
  {
    no_grad guard;
    row += 1;
  }
  CHECK(x.to_vector() == Row{1, 2, 3, 5, 6, 7});
  row = x * 2;
  row += 1;  // a name of its own
  CHECK(row.to_vector() == Row{3, 5, 7, 11, 13, 15});
  CHECK(x.to_vector() == Row{1, 2, 3, 5, 6, 7});
}

TEST_CASE("parts of a Variable are not those of its copies") {
  auto const read = [](V v) { return v[0][0].item(); };
  auto const expected = Row{8, 4, 6, 8, 10, 12};
  for (int what = 0; what < 3; ++what) {
    V const x = matrix();
    V y = x * 2;
    auto row = [&] {
      std::optional<no_grad> guard;
      if (what == 1) guard.emplace();  // a part of what has a history, which it does not know of
      return y[0];
    }();
    if (what == 2) {
      V const& same = y;
      y = same;
    }
    CHECK(read(y) == 2);
    row[0] = x[1][0] * 2;
    CHECK(y.to_vector() == expected);
    sum(y).backward();
    CHECK(x.grad().to_vector() == Row{0, 2, 2, 4, 2, 2});
  }
  V const x = matrix();
  V y = x * 2;
  auto row = [&] {
    no_grad guard;
    return y[0];
  }();
  V const z = std::move(y);
  CHECK_THROWS_AS(row[0] = 5., GradientError);  // z would not know of it
  {
    V other = x * 3, copy = other;
    auto part = copy[1];
    other(all()) = std::move(copy);
    part = part[0];
    CHECK(other.to_vector() == Row{3, 6, 9, 12, 15, 18});
  }
}

TEST_CASE("a part of what is broadcast is not written: others have its elements too") {
  V const x = row();
  V y = autograd::apply<Spread>(x);
  REQUIRE(y.layout().is_broadcast());
  CHECK_THROWS_AS(y[0] = x, LayoutError);
  CHECK_THROWS_AS(y[0] += x, LayoutError);
  auto part = y[1];
  CHECK_THROWS_AS(part -= 1, LayoutError);
  CHECK(y.to_vector() == Row{14, 16, 18, 14, 16, 18});
  sum(y).backward();
  CHECK(x.grad().to_vector() == Row{4, 4, 4});
}

TEST_CASE("named parts are changed in turn") {
  V const x = matrix();
  V y = x * 1;
  auto a = y[0], b = y[1];
  a *= x[1];
  b *= x[0];
  a += 1;
  auto e = b[2];
  e *= x[0][0];
  a[1] = x[0][2];
  a[2] = x[0][1];
  CHECK(y.to_vector() == Row{5, 3, 2, 4, 10, 18});
  sum(y * y).backward();
  CHECK(x.grad().to_vector() == Row{40 + 2 * 4 * 4 + 2 * 18 * 18, 2 * 2 + 2 * 10 * 5, 2 * 3 + 2 * 18 * 6, 2 * 5 * 1 + 2 * 4 * 1, 2 * 10 * 2, 2 * 18 * 3});
  V u = x * 2;
  for (auto row : {u[0], u[1]}) row *= x[0];
  CHECK(u.to_vector() == Row{2, 8, 18, 8, 20, 36});
  auto rebound = u[0];
  rebound = x * 2;
  std::move(rebound) = x * 3;
  CHECK(rebound.to_vector() == Row{3, 6, 9, 12, 15, 18});
  CHECK(u.to_vector() == Row{2, 8, 18, 8, 20, 36});
}

TEST_CASE("copies of a Variable are read part by part from several threads") {
  V const x = matrix();
  std::vector<std::thread> threads;
  std::vector<double> sums(4);
  for (std::size_t t = 0; t < sums.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int k = 0; k < 2000; ++k) {
        V mine = x;
        sums[t] += mine[0][1].item() + mine(1, 2).item();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(sums == Row{16000, 16000, 16000, 16000});
}

TEST_CASE("a part that is only read is a Variable") {
  V x = matrix();
  V const y = x[1];
  CHECK(std::string(y.grad_fn()) == "Select");
  auto z = x(all(), range(0, 2));
  sum(z * x[0](range(0, 2)) + sum(x[1])).backward();
  z = V(Tensor<double>{1., 2.});  // rebinds
  CHECK(x.to_vector() == Row{1, 2, 3, 4, 5, 6});
  CHECK(x.grad().to_vector() == Row{1 + 1 + 4, 2 + 2 + 5, 0, 1 + 4, 2 + 4, 4});
  static_assert(std::is_same_v<decltype(Variable(x[1])), V>);
  V const joined = concat({x[1], x[0]});
  CHECK(joined.to_vector() == Row{4, 5, 6, 1, 2, 3});
  std::vector<V> const rows{x[0], x[1]};
  CHECK(V(rows.size() > 1 ? x[0] : rows[1]).to_vector() == Row{1, 2, 3});
}

TEST_CASE("writes are recorded on a device of its own memory") {
  using D = Emulated<0>;
  Variable<float, D> const e(Tensor<float>{1.f, 2.f, 3.f}.to(D{}));
  Variable<float, D> y(zeros({2, 3}, D{}), false);
  y[0] = e * e;
  y(1, range(0, 2)) = e(range(1, 3));
  y *= 2.f;
  sum(y * y).backward();
  CHECK(e.grad().to_vector() == std::vector<float>{16, 128 + 16, 432 + 24});
}
