/// Operations of one's own: autograd::apply.
#include <doctest/doctest.h>

#include <situ/autograd/function.hpp>
#include <situ/autograd/gradcheck.hpp>
#include <situ/device/emulated/device.hpp>
#include <support/compare.hpp>

using namespace situ;

namespace {

using Row = std::vector<double>;

/// x², whose backward reads x.
struct Square {
  static auto forward(auto& ctx, auto const& x) {
    ctx.save(x);
    return x * x;
  }
  static auto backward(auto& ctx, auto const& g) {
    std::remove_cvref_t<decltype(g)> const x = ctx.saved(0);
    return 2 * g * x;
  }
};

/// scale · a ⊙ b with the types written out.
struct Scaled {
  static constexpr char const* name = "ScaledProduct";
  static Tensor<double> forward(autograd::Context& ctx, Tensor<double> const& a, double scale, Tensor<double> const& b) {
    ctx.save_for_backward(a, b, scale);
    ++forwards;
    return a * b * scale;
  }
  static std::tuple<Tensor<double>, Tensor<double>> backward(autograd::Context& ctx, Tensor<double> const& g) {
    auto const [a, b] = ctx.saved<Tensor<double>, Tensor<double>>();
    double const scale = ctx.saved(2);
    needed[0] = ctx.needs_gradient(0), needed[1] = ctx.needs_gradient(1);
    return {g * b * scale, g * a * scale};
  }
  static inline int forwards = 0;
  static inline bool needed[2] = {};
};

/// Sine, cosine, and the sign, which is an integer.
struct SinCos {
  static auto forward(auto& ctx, auto const& x) {
    auto const s = eval(sin(x)), c = eval(cos(x));
    ctx.save(s, c);
    return std::tuple(s, cast<int32_t>(sign(x)), c);
  }
  static auto backward(auto& ctx, auto const& gs, auto const& gc) {
    ++calls;
    using G = std::remove_cvref_t<decltype(gs)>;
    auto const [s, c] = ctx.template saved<G, G>();
    return gs * c - gc * s;
  }
  static inline int calls = 0;
};

/// k x w n.
struct ScaledProduct {
  static auto forward(auto& ctx, double k, auto const& x, auto const& w, int n) {
    ctx.save(k * n, x, w);
    return x * w * (k * n);
  }
  template <class G>
  static auto backward(auto& ctx, G const& g) {
    auto const [factor, x, w] = ctx.template saved<double, G, G>();
    return std::tuple(autograd::none, g * w * factor, g * x * factor, autograd::none);
  }
};

/// x + row, with the gradient of the row left to be summed; the constant gets none.
struct AddRow {
  static auto forward(auto&, auto const& x, auto const& row, auto const&) { return x + row; }
  static auto backward(auto&, auto const& g) { return std::tuple(g, g, autograd::none); }
};

struct WrongShape {
  static auto forward(auto&, auto const& x) { return x * 2; }
  static auto backward(auto&, auto const& g) { return g.slice(0, 0, 2); }
};

struct WrongType {
  static auto forward(auto& ctx, auto const& x) {
    ctx.save(x);
    return x * 2;
  }
  static auto backward(auto& ctx, auto const& g) {
    Tensor<float> const x = ctx.saved(0);
    return cast<double>(x) * g;
  }
};
struct TooFew {
  static auto forward(auto&, auto const& x) { return x * 2; }
  static auto backward(auto& ctx, auto const& g) {
    double const scale = ctx.saved(0);
    return g * scale;
  }
};

Variable<double> row() { return Variable<double>(Tensor<double>{1., -2., 3.}); }

}  // namespace

TEST_CASE("an operation of one's own is recorded as one node") {
  auto const x = row();
  Variable<double> const y = autograd::apply<Square>(x);
  CHECK(y.to_vector() == Row{1, 4, 9});
  CHECK(std::string(y.grad_fn()) == "Square");
  CHECK(y.requires_grad());
  CHECK(!y.is_leaf());
  sum(y).backward();
  CHECK(x.grad().to_vector() == Row{2, -4, 6});
  CHECK(gradcheck([](auto const& v) { return autograd::apply<Square>(v); }, x));
  CHECK(gradcheck([](auto const& v) { return tanh(autograd::apply<Square>(v * 0.5) + v); }, x));
}

TEST_CASE("forward gets tensors, and other arguments as they are") {
  auto const a = row(), b = row();
  Tensor<double> const t{2., 3., 4.};
  Variable<double> const y = autograd::apply<Scaled>(a, 10.0, b * 2);
  CHECK(y.to_vector() == Row{20, 80, 180});
  CHECK(std::string(y.grad_fn()) == "ScaledProduct");
  y.backward(Tensor<double>{1., 1., 1.});
  CHECK(Scaled::needed[0]);
  CHECK(Scaled::needed[1]);
  CHECK(a.grad().to_vector() == Row{20, -40, 60});
  CHECK(b.grad().to_vector() == Row{20, -40, 60});
  auto const c = row();
  autograd::apply<Scaled>(t, 1.0, c).backward(Tensor<double>{1., 1., 1.});
  CHECK(!Scaled::needed[0]);
  CHECK(Scaled::needed[1]);
  CHECK(c.grad().to_vector() == Row{2, 3, 4});
  CHECK(gradcheck([](auto const& u, double s, auto const& v) { return autograd::apply<Scaled>(u, s, v); }, std::tuple(row(), 3.0, row())));
}

TEST_CASE("several outputs share one backward, and those that are not used have the gradient 0") {
  auto const x = row();
  auto const [s, signs, c] = autograd::apply<SinCos>(x);
  static_assert(std::is_same_v<decltype(signs), Tensor<int32_t> const>);
  CHECK(signs.to_vector() == std::vector<int32_t>{1, -1, 1});
  SinCos::calls = 0;
  sum(s * 2 + c).backward();
  CHECK(SinCos::calls == 1);
  CHECK(gradcheck([](auto const& v) {
    auto const [a, n, b] = autograd::apply<SinCos>(v);
    return std::tuple(a, b, a * b);
  }, x));
  auto const y = row();
  sum(std::get<2>(autograd::apply<SinCos>(y))).backward();
  CHECK(std::abs(y.grad().item(0) + std::sin(1.0)) < 1e-15);
}

TEST_CASE("without a gradient wanted there is nothing but the forward") {
  Tensor<double> const t{2., 3., 4.};
  static_assert(std::is_same_v<decltype(autograd::apply<Square>(t)), Tensor<double>>);
  CHECK(autograd::apply<Square>(t * 2).to_vector() == Row{16, 36, 64});
  auto const x = row();
  {
    no_grad const guard;
    Variable<double> const y = autograd::apply<Square>(x);
    CHECK(!y.requires_grad());
    CHECK(y.is_leaf());
  }
  Variable<double> const frozen(t, false);
  CHECK(!autograd::apply<Square>(frozen).requires_grad());
}

TEST_CASE("gradients are summed over axes that were broadcast, and refused in other shapes") {
  Variable<double> const m(Tensor<double>{{1., 2.}, {3., 4.}}), r(Tensor<double>{{5., 6.}});
  autograd::apply<AddRow>(m, r, Tensor<double>{1.}).backward(Tensor<double>{{1., 2.}, {3., 4.}});
  CHECK(m.grad().to_vector() == Row{1, 2, 3, 4});
  CHECK(r.grad().to_vector() == Row{4, 6});
  auto const x = row();
  Variable<double> const y = sum(autograd::apply<WrongShape>(x));
  CHECK(situ_test::thrown<GradientError>([&] { y.backward(); },
                                         "WrongShape: backward gave a gradient of shape [2] for tensor argument 0 of shape [3]; it must have that shape") == "");
}

TEST_CASE("a backward may return none for arguments that are no tensors, as in PyTorch") {
  auto const x = row(), w = row();
  sum(autograd::apply<ScaledProduct>(2.0, x, w, 3)).backward();
  CHECK(x.grad().to_vector() == Row{6, -12, 18});
  CHECK(w.grad().to_vector() == Row{6, -12, 18});
}

TEST_CASE("what was saved is checked when it is read") {
  auto const x = row();
  CHECK(situ_test::thrown<TypeError>([&] { sum(autograd::apply<WrongType>(x)).backward(); },
                                     "saved: value 0 was saved as a Tensor of float64 on cpu and asked for as a Tensor of float32 on cpu") == "");
  CHECK(situ_test::thrown<IndexError>([&] { sum(autograd::apply<TooFew>(x)).backward(); }, "saved: value 0 was asked for, but 0 were saved") == "");
  Variable<double> const y = sum(autograd::apply<Square>(x));
  Tensor<double> t = x.value();
  t += 1;
  CHECK(situ_test::thrown<GradientError>([&] { y.backward(); },
                                         "backward: Square needs a tensor of shape [3] as it was when it was recorded, but operator+= has written to it in place since; "
                                         "write to a clone() of it, or after the backward") == "");
}

TEST_CASE("a second backward needs retain_graph, and a second derivative is refused") {
  auto const x = row();
  Variable<double> const y = sum(autograd::apply<Square>(x));
  y.backward(retain_graph);
  y.backward();
  CHECK(x.grad().to_vector() == Row{4, -8, 12});
  CHECK_THROWS_AS(y.backward(), GradientError);
  Variable<double> const z = sum(autograd::apply<Square>(x));
  CHECK(situ_test::thrown<GradientError>([&] { grad(z, x, create_graph); }, "grad: Square has no second derivative here; call grad without create_graph") == "");
  CHECK(grad(z, x).to_vector() == Row{2, -4, 6});
}

TEST_CASE("operations run on a device of its own memory") {
  using D = Emulated<0>;
  Variable<float, D> const x(Tensor<float>{1.f, -2.f, 3.f}.to(D{}));
  sum(autograd::apply<Square>(x)).backward();
  CHECK(x.grad().to_vector() == std::vector<float>{2, -4, 6});
}
