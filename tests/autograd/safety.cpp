/// What autograd must never do: give a wrong gradient unsaid, lose memory, or overflow the stack.
#include <doctest/doctest.h>

#include <situ/autograd.hpp>
#include <situ/device/emulated/device.hpp>
#include <situ/device/query.hpp>
#include <support/compare.hpp>

using namespace situ;

namespace {

using V = Variable<double>;
using Row = std::vector<double>;

V row() { return V(Tensor<double>{1., -2., 3.}); }

}  // namespace

// ---- what was written in place ------------------------------------------------------------------------------------

TEST_CASE("a backward names the function that wrote what it needs") {
  V const x = row();
  V const y = sum(tanh(x) * 2);
  Tensor<double> t = x.value();
  t(all()) = 0;
  CHECK(situ_test::thrown<GradientError>([&] { y.backward(); },
                                         "backward: Sum needs a tensor of shape [3] as it was when it was recorded, but assign has written to it in place since; "
                                         "write to a clone() of it, or after the backward") == "");
  V const z = exp(row()), u = z * z;
  Tensor<double> view = z.value().slice(0, 0, 1);
  view *= 2;
  CHECK(situ_test::thrown<GradientError>([&] { sum(u).backward(); },
                                         "backward: Mul needs a tensor of shape [3] as it was when it was recorded, but operator*= has written to it in place since; "
                                         "write to a clone() of it, or after the backward") == "");
}

TEST_CASE("writing what no backward needs is allowed") {
  V const x = row();
  V const y = x * 3 + 1;  // its gradient does not read x
  Tensor<double> t = x.value(), u = y.value();
  t += 1;
  u += 1;
  sum(y).backward();
  CHECK(x.grad().to_vector() == Row{3, 3, 3});
}

// ---- the end of a graph -------------------------------------------------------------------------------------------

TEST_CASE("a second backward says what it needs") {
  V const x = row();
  V const y = sum(x * x);
  y.backward(retain_graph);
  y.backward();
  CHECK(x.grad().to_vector() == Row{4, -8, 12});
  CHECK(situ_test::thrown<GradientError>([&] { y.backward(); },
                                         "backward: what Sum saved for its gradient was given back by the backward before; call that one as backward(retain_graph)") == "");
  CHECK(x.grad().to_vector() == Row{4, -8, 12});
}

TEST_CASE("what saved nothing serves every backward, as a view that was made before a loop") {
  V const x = row(), w = row();
  V const column = x.reshape({3, 1}), shifted = 2 * x - 1, joined = concat({x, w}), total = sum(x), part = x.slice(0, 1, 3), means = mean(w.unsqueeze(0) + column, 0);
  V const padded = pad(x, {1, 1}), mirrored = pad(x, {1, 0}, pad_mode::reflect), rows = einsum("ij->i", column);
  for (int step = 1; step <= 3; ++step) {
    V(sum(square(column)) + sum(square(shifted)) + sum(square(joined)) + total * 2 + sum(square(part)) + sum(square(means)) * 0 + (sum(square(padded)) + sum(square(rows))) / 2 + sum(mirrored)).backward();
    CHECK(x.grad().to_vector() == Row{13. * step, -32. * step, 47. * step});
    CHECK(w.grad().to_vector() == Row{2. * step, -4. * step, 6. * step});
  }
  V const saved = exp(x);
  sum(saved * 2).backward();
  CHECK(situ_test::thrown<GradientError>([&] { sum(saved * 3).backward(); },
                                         "backward: what Exp saved for its gradient was given back by the backward before; call that one as backward(retain_graph)") == "");
}

TEST_CASE("what has no gradient is refused in words") {
  V x = row();
  V const constant_(x.value(), false);
  CHECK(situ_test::thrown<GradientError>([&] { V(x * 2).backward(); },
                                         "backward: shape [3] has 3 elements: gradients start at one number; reduce it, as with sum, or give a gradient of this shape") == "");
  CHECK(situ_test::thrown<GradientError>(
            [&] { V(sum(constant_)).backward(); },
            "backward: this Variable requires no gradient: nothing that it was made of does, or nothing was recorded there, as in a no_grad; call requires_grad(true) on a leaf") == "");
  CHECK(situ_test::thrown<ShapeError>([&] { V(x * 2).backward(Tensor<double>{1., 2.}); }, "backward: a gradient of shape [2] was given for a Variable of shape [3]") == "");
  V y = x * 2;
  CHECK(situ_test::thrown<GradientError>([&] { y.requires_grad(false); },
                                         "requires_grad: this Variable is the result of Mul: only a leaf can be frozen; use value() or no_grad") == "");
  V const unused = row();
  CHECK(situ_test::thrown<GradientError>([&] { grad(sum(x * x), {x, unused}); },
                                         "grad: input 1 of shape [3] was not used for the output: it has no gradient; leave it out, or use it") == "");
  CHECK(situ_test::thrown<GradientError>([&] { grad(sum(x * constant_), constant_); },
                                         "grad: input 0 requires no gradient; call requires_grad(true) on it before it is used") == "");
  CHECK(!x.has_grad());
}

TEST_CASE("grad gives gradients and leaves grad() alone") {
  V const x = row(), w = row();
  V const h = x * w;
  auto const [gx, gh] = grad(sum(h * h), {x, h}, retain_graph);
  CHECK(gx.to_vector() == Row{2, -16, 54});
  CHECK(gh.to_vector() == Row{2, 8, 18});
  CHECK(!x.has_grad());
  CHECK(!w.has_grad());
  CHECK(grad(h, x, Tensor<double>{1., 10., 100.}).to_vector() == Row{1, -20, 300});
}

TEST_CASE("a grad that threw leaves nothing behind for the next one") {
  V const x = row(), w = row(), unused = row();
  auto const refuses = [](auto const& f) { return situ_test::thrown<GradientError>(f, "grad: input 0 of shape [3] was not used for the output: it has no gradient; leave it out, or use it"); };
  CHECK(refuses([&] { grad(sum(x * w), {unused, x}); }) == "");
  CHECK(refuses([&] { grad(sum(w * w), x); }) == "");
  CHECK(refuses([&] { grad(sum(x * w), {unused, x}, create_graph); }) == "");
  V const y = sum(x * w);  // nor has it given back what another one needs
  CHECK(refuses([&] { grad(y, {unused, x}); }) == "");
  CHECK(refuses([&] { grad(y, unused); }) == "");
  auto const [gx, gw] = grad(y, {x, w});
  CHECK(gx.to_vector() == w.value().to_vector());
  CHECK(gw.to_vector() == x.value().to_vector());
  CHECK(refuses([&] { grad(sum(w * w), x, create_graph); }) == "");
  V h = exp(w);
  h.register_hook([](Tensor<double> const&) { throw ShapeError("enough"); });
  CHECK_THROWS_AS(grad(sum(h * x), {x, w}), ShapeError);
  CHECK(refuses([&] { grad(sum(w * w), x); }) == "");
}

TEST_CASE("an input that grad is asked for twice is given twice") {
  V const x = row(), w = row();
  auto const [first, other, second] = grad(sum(x * w), {x, w, x});
  CHECK(first.to_vector() == Row{1, -2, 3});
  CHECK(other.to_vector() == Row{1, -2, 3});
  CHECK(second.to_vector() == Row{1, -2, 3});
  CHECK(first.data() != second.data());
  auto const [a, b] = grad(sum(x * x * w), {x, x}, create_graph);
  CHECK(grad(sum(a), x, retain_graph).to_vector() == Row{2, -4, 6});
  CHECK(grad(sum(b), w).to_vector() == Row{2, -4, 6});
}

TEST_CASE("the inputs of a grad may be a vector of any length, as the parameters of a module are") {
  V const x = row(), w = row();
  std::vector<V> const inputs{x, w, x};
  std::vector<Tensor<double>> const first = grad(sum(x * x * w), inputs);
  REQUIRE(first.size() == 3);
  CHECK(first[0].to_vector() == Row{2, 8, 18});
  CHECK(first[1].to_vector() == Row{1, 4, 9});
  CHECK(first[2].to_vector() == Row{2, 8, 18});
  CHECK(first[0].data() != first[2].data());
  CHECK(!x.has_grad());
  V const y = x * w;
  CHECK(grad(y, inputs, first[1], retain_graph)[1].to_vector() == Row{1, -8, 27});
  CHECK(grad(x * w, inputs, first[1])[0].to_vector() == Row{1, -8, 27});
  std::vector<V> const slopes = grad(y, inputs, first[1], create_graph);
  CHECK(grad(sum(slopes[0] * slopes[1]), std::vector{w})[0].to_vector() == Row{1, -32, 243});
  CHECK(grad(sum(grad(sum(x * x), std::vector{x}, create_graph)[0]), std::vector{x}, retain_graph)[0].to_vector() == Row{2, 2, 2});
  CHECK(grad(sum(x), std::vector<V>{}).empty());
  CHECK_THROWS_WITH_AS(grad(sum(x), inputs), "grad: input 1 of shape [3] was not used for the output: it has no gradient; leave it out, or use it", GradientError);
}

TEST_CASE("grad of several outputs is the sum of theirs") {
  V const x = row(), w = row();
  V const a = sum(x * w), b = sum(x * x);
  auto const [gx, gw] = grad({a, b}, {x, w}, retain_graph);  // w + 2x, x
  CHECK(gx.to_vector() == Row{3, -6, 9});
  CHECK(gw.to_vector() == Row{1, -2, 3});
  CHECK(grad({a, b}, x, retain_graph).to_vector() == Row{3, -6, 9});
  CHECK(grad({b}, std::vector{x}, retain_graph)[0].to_vector() == Row{2, -4, 6});
  CHECK(grad(std::vector{a, b}, {w, x}, retain_graph)[1].to_vector() == Row{3, -6, 9});
  V const slope = grad(std::vector{a, b.reshape({1, 1})}, x, create_graph);
  CHECK(grad(sum(slope * slope), w).to_vector() == Row{6, -12, 18});
  CHECK_THROWS_WITH_AS(grad({a, V(x * w)}, {x, w}),
                       "grad: the output has shape [3]: gradients start at one number; reduce it, as with sum, or give a gradient of this shape", GradientError);
  CHECK_THROWS_WITH_AS(grad(std::vector<V>{}, x), "grad: no output was given: there is nothing to differentiate", GradientError);
  CHECK(!x.has_grad());
  V const c = sum(x * w), d = sum(w * w);
  no_grad const guard;
  CHECK(grad({c, d}, w).to_vector() == Row{3, -6, 9});
}

TEST_CASE("a gradient to begin with may stand in braces") {
  V const x = row();
  V const y = x * x;
  y.backward({1, 10, 100}, retain_graph);
  CHECK(x.grad().to_vector() == Row{2, -40, 600});
  CHECK_THROWS_AS(y.backward({1, 10}), ShapeError);
  V const w = row();
  (w * w).backward({1, 10, 100});
  CHECK(w.grad().to_vector() == Row{2, -40, 600});
}

TEST_CASE("what was moved from is refused until it is assigned to") {
  V x = row();
  V const y = std::move(x);
  char const* const message = "Variable: it was moved from, and holds nothing; assign to it before it is used";
  CHECK_THROWS_WITH_AS((void)x.size(), message, GradientError);
  CHECK_THROWS_WITH_AS((void)(x + 1).size(), message, GradientError);
  CHECK_THROWS_WITH_AS((void)(y * x).size(), message, GradientError);
  CHECK_THROWS_WITH_AS(x.backward(), message, GradientError);
  V copy = x;
  CHECK_THROWS_WITH_AS((void)copy.value(), message, GradientError);
  x = y * 2;
  copy = x;
  CHECK(copy.to_vector() == Row{2, -4, 6});
}

// ---- scopes and flags ---------------------------------------------------------------------------------------------

TEST_CASE("nothing is recorded inside of a no_grad, and again inside of an enable_grad in it") {
  V const x = row();
  {
    no_grad const guard;
    CHECK(!V(x * 2).requires_grad());
    {
      enable_grad const again;
      CHECK(V(x * 2).requires_grad());
    }
    CHECK(!V(sum(x)).requires_grad());
  }
  CHECK(V(x * 2).requires_grad());
  CHECK_THROWS_AS(([&] {
                    no_grad const guard;
                    throw ShapeError("out");
                  }()),
                  ShapeError);
  CHECK(V(x * 2).requires_grad());
}

TEST_CASE("a frozen leaf, a value and a detached result get no gradient") {
  V x = row(), frozen = row();
  frozen.requires_grad(false);
  sum(x * frozen + V(x * x).detach() + constant(x)).backward();
  CHECK(x.grad().to_vector() == Row{1, -2, 3});
  CHECK(!frozen.has_grad());
  frozen.requires_grad(true);
  sum(x * frozen).backward();
  CHECK(x.grad().to_vector() == Row{2, -4, 6});
  CHECK(frozen.grad().to_vector() == Row{1, -2, 3});
  x.zero_grad();
  CHECK(!x.has_grad());
  CHECK(x.grad().size() == 0);
}

TEST_CASE("the gradient of a result is kept where that is asked for") {
  V const x = row();
  V h = x * x;
  V const other = h * 2;
  h.retain_grad();
  sum(h * 3 + other).backward();
  CHECK(h.grad().to_vector() == Row{5, 5, 5});
  CHECK(!other.has_grad());
  CHECK(x.grad().to_vector() == Row{10, -20, 30});
}

TEST_CASE("a leaf that is frozen after it was used gets no gradient") {
  V x = row(), w = row();
  V const y = sum(x * w + x);
  V const z = sum(matmul(x, w));
  int seen = 0;
  x.register_hook([&](Tensor<double> const&) { ++seen; });
  x.requires_grad(false);
  y.backward();
  z.backward();
  CHECK(!x.has_grad());
  CHECK(seen == 0);
  CHECK(w.grad().to_vector() == Row{2, -4, 6});
}

TEST_CASE("a name whose gradient is kept keeps that of its new value after a recorded write") {
  V const x = row();
  V y = x * 2;
  y.retain_grad();
  y += 1;  // 3, -3, 7
  sum(y * y).backward();
  CHECK(y.grad().to_vector() == Row{6, -6, 14});
  CHECK(x.grad().to_vector() == Row{12, -12, 28});
  V z = x * 2;
  z.retain_grad();
  z[0] = 7;
  sum(z * z).backward();
  CHECK(z.grad().to_vector() == Row{14, -8, 12});
}

TEST_CASE("grad fills no gradient that is retained") {
  V const x = row();
  V h = x * x;
  h.retain_grad();
  V const y = sum(h * h);
  CHECK(grad(y, x, retain_graph).to_vector() == Row{4, -32, 108});
  CHECK(!h.has_grad());
  CHECK(grad(y, x, create_graph).to_vector() == Row{4, -32, 108});
  CHECK(!h.has_grad());
  y.backward();
  CHECK(h.grad().to_vector() == Row{2, 8, 18});
}

TEST_CASE("gradients that users hold are not written behind their backs") {
  V const x = row();
  Tensor<double> const seed{1., 1., 1.};
  V(x * 1).backward(seed);
  Tensor<double> const first = x.grad();
  CHECK(seed.data() != first.data());
  V h = x * 1;
  h.retain_grad();
  V const y = h.reshape({3, 1}) * 1.0;
  y.backward(Tensor<double>{{1.}, {2.}, {3.}});
  CHECK(h.grad().data() != x.grad().data());
  CHECK(h.grad().to_vector() == Row{1, 2, 3});
  CHECK(seed.to_vector() == Row{1, 1, 1});
}

// ---- hooks --------------------------------------------------------------------------------------------------------

TEST_CASE("hooks see gradients, and may replace them") {
  V x = row();
  V h = x * x;
  std::vector<Row> seen;
  auto const first = h.register_hook([&](Tensor<double> const& g) { seen.push_back(g.to_vector()); });
  h.register_hook([&](Tensor<double> const& g) { return g * 10; });
  x.register_hook([&](Tensor<double> const& g) { seen.push_back(g.to_vector()); });
  sum(h * 2 + h).backward(retain_graph);
  CHECK(seen == std::vector<Row>{{3, 3, 3}, {60, -120, 180}});
  CHECK(x.grad().to_vector() == Row{60, -120, 180});
  h.remove_hook(first);
  seen.clear();
  sum(h * 2).backward();
  CHECK(seen == std::vector<Row>{{40, -80, 120}});
  V const constant_(x.value(), false);
  CHECK_THROWS_AS(V(constant_).register_hook([](Tensor<double> const&) {}), GradientError);
}

TEST_CASE("hooks from before a recorded write see the gradient of what was there, and are removed by the name") {
  V const x = row();
  V y = x * 2;
  std::vector<Row> before, after;
  auto const first = y.register_hook([&](Tensor<double> const& g) { before.push_back(g.to_vector()); });
  y += 1;
  y[0] = 7;
  auto const second = y.register_hook([&](Tensor<double> const& g) { after.push_back(g.to_vector()); });
  CHECK(first != second);
  V const other = y * 1;
  sum(y + other).backward(retain_graph);
  CHECK(before == std::vector<Row>{{0, 2, 2}});
  CHECK(after == std::vector<Row>{{2, 2, 2}});
  y *= 3;
  y.remove_hook(first);
  sum(other).backward(retain_graph);
  CHECK(before.size() == 1);
  CHECK(after.size() == 2);
  y.remove_hook(second);
  y.remove_hook(first);
  sum(other).backward();
  CHECK(before.size() == 1);
  CHECK(after.size() == 2);
}

TEST_CASE("a hook is removed by its own number alone, whichever name that was given by") {
  V const x = row();
  V y = x * 2;
  V const z = y;
  int a = 0, b = 0, c = 0;
  auto const first = y.register_hook([&](Tensor<double> const&) { ++a; });
  y += 1;
  V(z).register_hook([&](Tensor<double> const&) { ++b; });
  auto const third = y.register_hook([&](Tensor<double> const&) { ++c; });
  y.remove_hook(third);
  y.remove_hook(0);
  sum(y + z).backward();
  CHECK(a == 1);
  CHECK(b == 1);
  CHECK(c == 0);
  y.remove_hook(0);
  V u = x * 2;
  auto const gone = u.register_hook([&](Tensor<double> const&) { ++a; });
  u.remove_hook(gone);
  u += 1;
  u.register_hook([&](Tensor<double> const&) { ++c; });
  u.remove_hook(gone);
  u.remove_hook(first);
  sum(u).backward();
  CHECK(a == 1);
  CHECK(c == 1);
}

TEST_CASE("a name with a hook may be written very often") {
  V const x = row();
  int calls = 0;
  {
    V y = x * 2;
    auto const hook = y.register_hook([&](Tensor<double> const&) { ++calls; });
    for (int k = 0; k < 100000; ++k) {
      y += 1;
      if (k % 1000 == 0) y.register_hook([&](Tensor<double> const&) { ++calls; });
    }
    y.remove_hook(hook);
    sum(y).backward();
  }
  CHECK(calls == 100);
}

TEST_CASE("the number of a hook that was removed is not given to another one") {
  Variable<double> x{Tensor<double>{1., 2.}};
  int calls = 0;
  auto const first = x.register_hook([&](auto const&) { calls += 1; });
  x.remove_hook(first);
  x.register_hook([&](auto const&) { calls += 10; });
  x.remove_hook(first);
  sum(x).backward();
  CHECK(calls == 10);
}

TEST_CASE("a hook may remove itself and others, and start a backward that comes by") {
  V x = row();
  std::vector<int> calls;
  int64_t first = 0, last = 0;
  first = x.register_hook([&](Tensor<double> const&) {
    x.remove_hook(first);
    x.remove_hook(last);
    calls.push_back(1);
  });
  x.register_hook([&](Tensor<double> const&) { calls.push_back(2); });
  last = x.register_hook([&](Tensor<double> const&) { calls.push_back(3); });
  sum(x * 2).backward();
  sum(x * 2).backward();
  CHECK(calls == std::vector<int>{1, 2, 2});
  CHECK(x.grad().to_vector() == Row{4, 4, 4});
  V w = row();
  bool once = false;
  w.register_hook([&](Tensor<double> const&) {
    if (std::exchange(once, true)) return;
    enable_grad const recording;
    sum(w * 10).backward();
  });
  sum(w * 2).backward();
  CHECK(w.grad().to_vector() == Row{12, 12, 12});
}

TEST_CASE("a hook that grad calls starts no pass of its own, and a grad meets none that is running") {
  V const x = row();
  auto const other = [&] { return V(sum(x * 100)); };
  V h = x * x;
  h.register_hook([&](Tensor<double> const&) {
    enable_grad const recording;
    other().backward();
  });
  char const* const refused = "backward: a hook that is called by grad cannot start a pass; call backward after that grad";
  CHECK(situ_test::thrown<GradientError>([&] { (void)grad(sum(h * 3 + x), x, retain_graph); }, refused) == "");
  CHECK(situ_test::thrown<GradientError>([&] { (void)grad(sum(h * 3 + x), x, create_graph); }, refused) == "");
  CHECK(!x.has_grad());
  sum(h * 3 + x).backward();
  CHECK(x.grad().to_vector() == Row{107, 89, 119});
  V k = x * 2;
  k.register_hook([&](Tensor<double> const&) {
    enable_grad const recording;
    (void)grad(sum(x * x), x);
  });
  CHECK(situ_test::thrown<GradientError>([&] { sum(k + x).backward(); },
                                         "grad: a backward pass that has come by here is still running; call grad after it, or of a formula that shares nothing with it") == "");
}

TEST_CASE("grad does not leave out what was given back") {
  V const x = row();
  V const z = exp(x);
  sum(z).backward();
  CHECK(situ_test::thrown<GradientError>([&] { (void)grad(sum(x * 2 + z), x); },
                                         "backward: what Exp saved for its gradient was given back by the backward before; call that one as backward(retain_graph)") == "");
  CHECK(grad(sum(x * 2), x).to_vector() == Row{2, 2, 2});
}

TEST_CASE("what a hook gives must have the gradient's shape, and has no derivative") {
  V x = row();
  V h = x * x;
  h.register_hook([](Tensor<double> const&) { return ones<double>({2}); });
  CHECK(situ_test::thrown<GradientError>([&] { sum(h * 2).backward(); },
                                         "backward: a hook gave a gradient of shape [2] for a Variable of shape [3]; it must have that shape") == "");
  CHECK(!x.has_grad());
  h = x * x;
  h.register_hook([](Tensor<double> const& g) { return g * 10; });
  CHECK(situ_test::thrown<GradientError>([&] { (void)grad(sum(h * h), x, create_graph); },
                                         "grad: a hook that replaces a gradient has no derivative; call grad without create_graph, or return nothing from the hook") == "");
  std::vector<Row> seen;
  V u = x * x;
  u.register_hook([&](Tensor<double> const& g) { seen.push_back(g.to_vector()); });
  CHECK(grad(sum(grad(sum(u * u), x, create_graph)), x).to_vector() == Row{12, 48, 108});
  CHECK(seen == std::vector<Row>{{2, 8, 18}, {4, -8, 12}});
}

TEST_CASE("a backward that is given up leaves no gradient on the way") {
  V const x = row();
  V h = x * x;
  auto const hook = h.register_hook([](Tensor<double> const&) { throw ShapeError("enough"); });
  V const y = sum(h * h);
  CHECK_THROWS_AS(y.backward(retain_graph), ShapeError);
  CHECK(!x.has_grad());
  h.remove_hook(hook);
  y.backward();
  CHECK(x.grad().to_vector() == Row{4, -32, 108});
}

// ---- memory -------------------------------------------------------------------------------------------------------

TEST_CASE("a chain of a million nodes is run and given back without a recursion") {
  auto const before = gpu::memory_allocated(Cpu{});
  {
    Variable<float> const x(Tensor<float>{1.f, 2.f});
    Variable<float> y = x * 1;
    for (int k = 0; k < 1000000; ++k) y = y + 1;
    sum(y).backward();
    CHECK(x.grad().to_vector() == std::vector<float>{1, 1});
  }
  CHECK(gpu::memory_allocated(Cpu{}) == before);
  {
    Variable<float> const x(Tensor<float>{1.f, 2.f});
    Variable<float> y = x * 1;
    for (int k = 0; k < 1000000; ++k) y = y * y;  // dies without a backward
  }
  CHECK(gpu::memory_allocated(Cpu{}) == before);
}

TEST_CASE("a wide graph is run once for each node") {
  V const x(Tensor<double>{1., 1.});
  V y = x * 1;
  for (int k = 0; k < 60; ++k) y = y + y;  // 2^60 ways
  sum(y).backward();
  CHECK(x.grad().to_vector() == Row{0x1p60, 0x1p60});
}

TEST_CASE("memory is given back as a backward proceeds") {
  using D = Emulated<0>;
  int64_t const bytes = int64_t{4} << 18;
  synchronize(D{});
  int64_t const before = gpu::memory_allocated(D{});
  {
    Variable<float, D> const x(ones({1 << 18}, D{}));
    Variable<float, D> y = x * 1;
    for (int k = 0; k < 10; ++k) y = tanh(y);
    Variable<float, D> const total = sum(y);
    y = Variable<float, D>();
    synchronize(D{});
    int64_t const held = gpu::memory_allocated(D{}) - before;
    CHECK(held >= 10 * bytes);
    CHECK(held < 12 * bytes + bytes / 2);
    gpu::reset_peak_memory_stats(D{});
    total.backward();
    synchronize(D{});
    CHECK(gpu::max_memory_allocated(D{}) - before <= held + 2 * bytes);  // no more than a gradient comes and one goes
    CHECK(gpu::memory_allocated(D{}) - before < 2 * bytes + bytes / 2);  // x and its gradient
  }
  synchronize(D{});
  CHECK(gpu::memory_allocated(D{}) == before);
}

TEST_CASE("gradients that meet are added in an order of their own, and shared memory is not written") {
  V const x = row();
  V const a = x.reshape({3}), b = x.view({3});
  V const y = a + b + a * b + x;
  y.backward(Tensor<double>{1., 1., 1.});
  CHECK(x.grad().to_vector() == Row{5, -1, 9});
}
