#include <situ/situ.hpp>

#include <doctest/doctest.h>

#include <string>
#include <vector>

using namespace situ;

namespace {

using Device = Emulated<0>;
using Other = Emulated<1>;
using Float = Tensor<float, Device>;
using State = std::vector<Tensor<double>>;

/// Numbers that repeat and differ in sign.
Tensor<float> counting(Shape const& shape) { return (arange(detail::product(shape)) % 23 * 0.25f - 3).reshape(shape); }

bool same(State const& a, State const& b) {
  for (std::size_t k = 0; k < a.size() && k < b.size(); ++k) {
    if (!equal(a[k], b[k])) return false;
  }
  return a.size() == b.size();
}
/// What the devices hold, the frees that wait for streams done.
int64_t bytes_held() {
  synchronize(Device{});
  synchronize(Other{});
  return emulated::statistics(0).bytes + emulated::statistics(1).bytes;
}

/// Runs operation(operands), with the first, the second, ... allocation, copy or launch in it made to fail, until none does. What operands.state()
/// gives must then be as it was; no memory may be lost, and the same operation must work right after.
template <class Operands, class F>
void sweep(std::string const& name, F operation) {
  CAPTURE(name);
  auto const result_of = [&](Operands& operands) {
    auto const result = operation(operands);
    detail::emulated::state().fail_at = -1;  // what follows only looks
    return result.cpu().template to<double>();
  };
  emulated::configure();
  int64_t prepared = 0;
  State untouched;
  Tensor<double> expected;
  {
    Operands operands;
    prepared = detail::emulated::state().operations;
    untouched = operands.state();
    expected = result_of(operands);
  }
  int64_t failures = 0;
  for (bool failed = true; failed; failures += failed) {
    CAPTURE(failures);
    emulated::configure({.fail_at = prepared + failures});
    Operands operands;
    int64_t const held = bytes_held();
    failed = false;
    Tensor<double> result;
    try {
      result = result_of(operands);
    } catch (OutOfMemory const& error) {
      failed = std::string(error.what()).find("allocation failed: operation ") != std::string::npos;
    } catch (emulated::InjectedFault const& error) {
      failed = std::string(error.what()).find(" was made to fail") != std::string::npos;
    }
    if (!failed) {
      CHECK(equal(result, expected));
      continue;
    }
    CHECK(bytes_held() == held);
    CHECK(same(operands.state(), untouched));
    CHECK(equal(result_of(operands), expected));
  }
  CHECK(failures > 0);
  emulated::configure();
}

struct Tensors {
  Float x = counting({6, 5}).to(Device{}), y = counting({6, 5}).flip(1).contiguous().to(Device{}), large = counting({100, 1000}).to(Device{});
  Tensor<int64_t, Device> places = Tensor<int64_t>{2, 0, 4, 2}.to(Device{}), columns = Tensor<int64_t>{{0, 4, 1}, {2, 2, 3}}.to(Device{});

  State state() const {
    return {x.cpu().to<double>(), y.cpu().to<double>(), large.cpu().to<double>(), places.cpu().to<double>(), columns.cpu().to<double>()};
  }
};

}  // namespace

TEST_CASE("whatever fails in a formula, a copy or a write in place, operands stay as they were") {
  sweep<Tensors>("formula", [](Tensors& o) { return eval(tanh(o.x) * 2 + o.y[0]); });
  sweep<Tensors>("where", [](Tensors& o) { return eval(where(o.x > 0, cast<int64_t>(o.y), 7)); });
  sweep<Tensors>("clone", [](Tensors& o) { return o.x.clone(); });
  sweep<Tensors>("contiguous", [](Tensors& o) { return o.x.t().contiguous(); });
  sweep<Tensors>("conversion", [](Tensors& o) { return o.x.to<double>(); });
  sweep<Tensors>("to the host", [](Tensors& o) { return o.x.t().cpu(); });
  sweep<Tensors>("to another device", [](Tensors& o) { return o.x.t().to(Other{}); });
  sweep<Tensors>("to page-locked memory", [](Tensors& o) { return o.x.to_async(Pinned{}).get(); });
  sweep<Tensors>("from the host", [](Tensors&) { return Float(counting({3, 4}).t()); });
  sweep<Tensors>("from page-locked memory", [](Tensors&) { return pin(counting({3, 4})).to_async(Device{}); });
  sweep<Tensors>("from values", [](Tensors&) { return Float{{1, 2}, {3, 4}}; });
  sweep<Tensors>("+=", [](Tensors& o) { return o.x += o.y * 2, o.x; });
  sweep<Tensors>("row", [](Tensors& o) { return o.x[1] = o.y[0] * 2, o.x; });
  sweep<Tensors>("row from another device", [](Tensors& o) { return o.x[1] = Tensor<float>{5, 6, 7, 8, 9}.to(Device{}), o.x; });
  sweep<Tensors>("overlapping rows", [](Tensors& o) { return o.x.slice(0, 1, 6).assign(o.x.slice(0, 0, 5)), o.x; });
  sweep<Tensors>("transpose onto itself", [](Tensors& o) { return o.x(range(0, 5), all()) += o.x(range(0, 5), all()).t(), o.x; });
  sweep<Tensors>("reused storage", [](Tensors& o) {
    Float z = o.x * 1;
    z = z * o.y;
    return z;
  });
}

TEST_CASE("whatever fails in a reduction, a scan or a product, operands stay as they were") {
  sweep<Tensors>("sum", [](Tensors& o) { return sum(o.large * 2); });
  sweep<Tensors>("sum of columns", [](Tensors& o) { return sum(o.large, 0, keepdim); });
  sweep<Tensors>("var", [](Tensors& o) { return var(o.large, 1); });
  sweep<Tensors>("argmax", [](Tensors& o) { return argmax(o.large); });
  sweep<Tensors>("item", [](Tensors& o) { return full<float>({}, sum(o.x).item()); });
  sweep<Tensors>("equal", [](Tensors& o) { return full<float>({}, equal(o.x, o.y)); });
  sweep<Tensors>("cumsum", [](Tensors& o) { return cumsum(o.large, 0); });
  sweep<Tensors>("cumprod", [](Tensors& o) { return cumprod(o.large * 0.01, 1); });
  sweep<Tensors>("softmax", [](Tensors& o) { return softmax(o.x * 2, 0); });
  sweep<Tensors>("layer_norm", [](Tensors& o) { return layer_norm(o.x + 1, {5}, o.y[0], o.y[1]); });
  sweep<Tensors>("matmul", [](Tensors& o) { return matmul(o.x * 2, o.y.t()); });
  sweep<Tensors>("large matmul", [](Tensors& o) { return matmul(o.large, o.large.t()); });
  sweep<Tensors>("einsum", [](Tensors& o) { return einsum("ij,kj,k->i", o.x, o.y, o.y(all(), 0)); });
  sweep<Tensors>("conv2d", [](Tensors& o) { return conv2d(o.large.reshape({10, 10, 25, 40}), o.large.reshape({-1})(range(0, 360)).reshape({4, 10, 3, 3}), {.padding = 1}); });
  sweep<Tensors>("max_pool2d", [](Tensors& o) { return max_pool2d(relu(o.large.reshape({10, 10, 25, 40})), 2); });
}

TEST_CASE("whatever fails in arranging, selecting or sorting, operands stay as they were") {
  sweep<Tensors>("concat", [](Tensors& o) { return concat(0, o.x, o.y * 2, o.x[0].unsqueeze(0)); });
  sweep<Tensors>("pad", [](Tensors& o) { return pad(o.x, {1, 2, 0, 1}, 7); });
  sweep<Tensors>("roll", [](Tensors& o) { return roll(o.x, 2, 1); });
  sweep<Tensors>("gather", [](Tensors& o) { return gather(o.x, 1, o.columns); });
  sweep<Tensors>("scatter_add", [](Tensors& o) { return scatter_add(o.x, 1, o.columns, o.y); });
  sweep<Tensors>("index_select", [](Tensors& o) { return index_select(o.x, 0, o.places); });
  sweep<Tensors>("one_hot", [](Tensors& o) { return one_hot(o.places, 5); });
  sweep<Tensors>("masked_select", [](Tensors& o) { return masked_select(o.x, o.y > 0); });
  sweep<Tensors>("nonzero", [](Tensors& o) { return nonzero(o.x > 0); });
  sweep<Tensors>("sort", [](Tensors& o) { return sort(o.x, 0, descending).values; });
  sweep<Tensors>("argsort", [](Tensors& o) { return argsort(o.large.reshape({-1})); });
  sweep<Tensors>("topk", [](Tensors& o) { return topk(o.large, 3).indices; });
  sweep<Tensors>("unique", [](Tensors& o) { return unique_counts(o.x).counts; });
  sweep<Tensors>("searchsorted", [](Tensors& o) { return searchsorted(arange(5, Device{}), o.x); });
}

// A generator counts calls, also those that fail: each operation has one of its own.
TEST_CASE("whatever fails in drawing random numbers, operands stay as they were") {
  auto const with = [](auto draw) {
    return [draw](Tensors& o) {
      Generator generator{5};
      return draw(o, generator);
    };
  };
  sweep<Tensors>("randn", with([](Tensors&, Generator& g) { return randn({40}, g, Device{}); }));
  sweep<Tensors>("randint", with([](Tensors&, Generator& g) { return randint(0, 9, {40}, g, Device{}); }));
  sweep<Tensors>("randperm", with([](Tensors&, Generator& g) { return randperm(40, g, Device{}); }));
  sweep<Tensors>("multinomial", with([](Tensors& o, Generator& g) { return multinomial(abs(o.x), 3, g); }));
  sweep<Tensors>("dropout", with([](Tensors& o, Generator& g) { return dropout(o.x, 0.5, g); }));
}

namespace {

/// A network before a backward, its first gradients being there already.
struct Gradients {
  Variable<float, Device> w{counting({5, 4}).to(Device{})}, b{counting({4}).to(Device{})};
  Float x = counting({6, 5}).to(Device{});

  auto loss() const { return mean(square(softmax(tanh(matmul(x, w) + b), 1) - 0.3f)); }
  Gradients() { loss().backward(); }
  State state() const { return {w.value().cpu().to<double>(), b.value().cpu().to<double>(), x.cpu().to<double>(), w.grad().cpu().to<double>(), b.grad().cpu().to<double>()}; }
};

/// Before a step of an optimiser, of which `Steps` have been made.
template <class Optimizer, int Steps>
struct Training {
  Variable<float, Device> w{counting({4, 5}).to(Device{})}, b{counting({4}).to(Device{})};
  Optimizer optimizer{{w, b}, {.lr = 0.1}};

  Training() {
    sum(square(w)).backward();
    sum(square(b)).backward();
    for (int k = 0; k < Steps; ++k) optimizer.step();
  }
  State state() {
    State all;
    for (auto const& v : {w, b}) all.push_back(v.value().cpu().template to<double>()), all.push_back(v.grad().cpu().template to<double>());
    for_each_state(optimizer, [&](std::string const&, auto const& x) {
      if constexpr (requires { x.tensor(); }) all.push_back(x.tensor().template to<double>());
      else all.push_back(x.cpu().template to<double>());
    });
    return all;
  }
};

struct Normalised {
  nn::BatchNorm1d<float, Device> norm{5};
  Float x = counting({6, 5}).to(Device{});

  State state() const { return {x.cpu().to<double>(), norm.running_mean->cpu().to<double>(), norm.running_var->cpu().to<double>(), norm.num_batches_tracked->tensor().to<double>()}; }
};

/// Before a call that draws from the default generator, whose count of calls is state too.
struct Draws {
  Float x = counting({6, 5}).to(Device{}), weights = (counting({6, 5}) + 3).to(Device{}), q = counting({2, 3, 4}).to(Device{});

  Draws() { manual_seed(5); }
  State state() const {
    return {x.cpu().to<double>(), q.cpu().to<double>(), full<double>({}, static_cast<double>(detail::default_generator().calls()))};
  }
};

constexpr auto step = [](auto& o) { return o.optimizer.step(), o.w.value(); };

}  // namespace

TEST_CASE("whatever fails in forward, the gradients that are there stay as they were") {
  sweep<Gradients>("forward", [](Gradients& o) { return o.loss().value(); });
  sweep<Gradients>("grad", [](Gradients& o) { return grad(o.loss(), o.w); });
}

TEST_CASE("whatever fails in a draw, the generator stays as it was") {
  sweep<Draws>("rand", [](Draws&) { return rand({6, 5}, Device{}); });
  sweep<Draws>("bernoulli(0, shape)", [](Draws&) { return bernoulli(0, {6, 5}, Device{}); });
  sweep<Draws>("bernoulli", [](Draws& o) { return bernoulli(o.weights / 6); });
  sweep<Draws>("dropout", [](Draws& o) { return dropout(o.x * 2, 0.5); });
  sweep<Draws>("dropout of everything", [](Draws& o) { return dropout(o.x, 1); });
  sweep<Draws>("dropout of a Variable", [](Draws& o) { return dropout(Variable(o.x), 0.5).value(); });
  sweep<Draws>("randperm", [](Draws&) { return randperm(20, Device{}); });
  sweep<Draws>("multinomial", [](Draws& o) { return multinomial(o.weights, 2); });
  sweep<Draws>("multinomial with replacement", [](Draws& o) { return multinomial(o.weights, 9, with_replacement); });
  sweep<Draws>("attention", [](Draws& o) { return scaled_dot_product_attention(o.q, o.q, o.q, {.dropout = 0.5}); });
  sweep<Draws>("attention of a Variable", [](Draws& o) { return scaled_dot_product_attention(Variable(o.q), o.q, o.q, {.dropout = 0.5}).value(); });
}

TEST_CASE("whatever fails in a step of an optimiser, parameters, state and counts of steps stay as they were") {
  sweep<Training<optim::SGD<float, Device>, 1>>("SGD", step);
  sweep<Training<optim::Adam<float, Device>, 1>>("Adam", step);
  sweep<Training<optim::RMSprop<float, Device>, 0>>("RMSprop", step);
}

TEST_CASE("whatever fails in a normalised batch, running statistics stay as they were") {
  sweep<Normalised>("BatchNorm1d", [](Normalised& o) { return o.norm(o.x).value(); });
}
