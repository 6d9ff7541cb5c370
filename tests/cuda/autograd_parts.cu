// Joining, cutting, picking and writing parts of Variables, operations of one's own, and checkpoints: the gradients of the host, on a GPU.
#include <doctest/doctest.h>

#include <cuda/compare.hpp>
#include <situ/autograd/arrange.hpp>
#include <situ/autograd/checkpoint.hpp>
#include <situ/autograd/concat.hpp>
#include <situ/autograd/function.hpp>
#include <situ/autograd/index.hpp>
#include <situ/autograd/print.hpp>
#include <situ/tensor.hpp>

using namespace situ;
using situ_test::differs;
using situ_test::numbers;
using Gpu = Cuda<0>;

namespace {

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

struct join_and_cut {
  template <class D>
  auto operator()(Variable<float, D> const& x) const {
    auto const parts = split(x * 2, 7);
    return sum(square(concat(1, parts[0], x.slice(0, 7, 14), parts[2] * x.slice(0, 14, 21))));
  }
};
struct arrange {
  template <class D>
  auto operator()(Variable<float, D> const& x) const {
    auto const padded = pad(tile(x, {2, 1}), {1, 2, 3, 4}, pad_mode::reflect);
    return sum(square(roll(padded, 5, 0))) + sum(triu(x, 3) * flip(x, 1)) + trace(x * x) + sum(diag(x, 1)) + sum(square(repeat(x, 3, 1)));
  }
};
struct pick {
  template <class D>
  auto operator()(Variable<float, D> const& x) const {
    auto const index = (arange<int64_t>(40) % 30).to(D{});
    auto const picked = index_select(x * x, 0, index);
    auto const gathered = gather(x, 0, index.unsqueeze(1).expand({40, x.size(1)}).contiguous());
    return sum(picked * gathered) + sum(square(masked_select(x, x > 0))) + sum(masked_fill(x * x, x > 0.5, 2)) +
           sum(square(scatter_add(x, 0, index.slice(0, 0, 20).unsqueeze(1).expand({20, x.size(1)}).contiguous(), x * 2)));
  }
};
struct write_parts {
  template <class D>
  auto operator()(Variable<float, D> const& x) const {
    Variable<float, D> y(zeros({30, 41}, D{}), false);
    y[0] = x[1] * 2;
    y(range(1, 4), all()) = x(range(0, 6, 2), all());
    y(all(), 0) += x(all(), 1);
    y *= x;
    return sum(square(y));
  }
};
struct own {
  template <class D>
  auto operator()(Variable<float, D> const& x) const {
    return sum(checkpoint([](auto const& v) { return tanh(autograd::apply<Square>(v)); }, x));
  }
};

template <class F>
void check(F const& f) {
  Tensor<float> const values = numbers<float>({30, 41});
  Variable<float> const x(values);
  Variable<float, Gpu> const y(values.to(Gpu{}));
  Variable(f(x)).backward();
  Variable(f(y)).backward();
  CHECK(differs(y.grad(), x.grad(), 1e-4) == "");
}

}  // namespace

TEST_CASE("gradients of joined and cut parts") { check(join_and_cut{}); }
TEST_CASE("gradients of arrangements") { check(arrange{}); }
TEST_CASE("gradients of picked elements") { check(pick{}); }
TEST_CASE("gradients of parts that are written") { check(write_parts{}); }
TEST_CASE("gradients of one's own operations, and of sections that are run again") { check(own{}); }

TEST_CASE("a Variable prints with its device") {
  Variable<float, Gpu> const x(Tensor<float>{1.f, 2.f}.to(Gpu{}));
  CHECK(to_string(x) == "tensor([1., 2.], device='cuda:0', requires_grad=True)");
  CHECK(to_string(x * 2) == "tensor([2., 4.], device='cuda:0', grad_fn=<Mul>)");
}
