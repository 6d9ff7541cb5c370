#include <doctest/doctest.h>

#include <nn/losses.hpp>
#include <support/devices.hpp>

using namespace situ;
using namespace situ_test;

namespace {

/// The table of cross entropy and nll_loss, with labels of I; also from a view that is not contiguous.
template <class T, class D, class I>
void check_labels() {
  using R = detail::result_device_t<D>;
  for (expected::LabelCase const& c : expected::label_cases) {
    CAPTURE(c.reduction); CAPTURE(c.nll); CAPTURE(c.of_images); CAPTURE(c.smoothing); CAPTURE(c.ignored); CAPTURE(c.weighs);
    Shape const shape = c.of_images ? Shape{2, 7, 2, 2} : Shape{5, 7};
    Tensor<T, D> const x = tensor_of<T, D>(c.of_images ? expected::images : expected::scores, shape);
    Tensor<I, D> const y = labels_of<I, D>(c.of_images ? expected::image_labels : expected::labels, c.of_images ? Shape{2, 2, 2} : Shape{5});
    Tensor<T, R> const weight = c.weighs ? tensor_of<T, R>(expected::weight, {7}) : Tensor<T, R>();
    for (bool transposed : {false, true}) {
      Variable<T, D> const leaf{transposed ? x.transpose(0, 1).contiguous() : x};
      auto const v = transposed ? Variable<T, D>(leaf.transpose(0, 1)) : leaf;
      auto const loss = c.nll ? nll_loss(v, y, {.weight = weight, .ignore_index = c.ignored, .reduction = named(c.reduction)})
                              : cross_entropy(v, y, {.weight = weight, .ignore_index = c.ignored, .reduction = named(c.reduction), .label_smoothing = c.smoothing});
      go_back(loss);
      CHECK(apart(loss.value(), c.value, tolerance_of<T>) == "");
      CHECK(apart(Tensor<T, D>(transposed ? leaf.grad().transpose(0, 1) : leaf.grad()), c.gradient, tolerance_of<T>) == "");
      CHECK(v.size() == loss.size() * 7 * (loss.rank() == 0 ? y.size() : 1));
    }
  }
}
template <class T, class D>
void check_probabilities() {
  for (expected::ProbabilityCase const& c : expected::probability_cases) {
    CAPTURE(c.reduction); CAPTURE(c.of_images); CAPTURE(c.smoothing); CAPTURE(c.weighs);
    Shape const shape = c.of_images ? Shape{2, 7, 2, 2} : Shape{5, 7};
    Variable<T, D> const x{tensor_of<T, D>(c.of_images ? expected::images : expected::scores, shape)};
    Variable<T, D> const t{tensor_of<T, D>(c.of_images ? expected::image_probabilities : expected::probabilities, shape)};
    Tensor<T, D> const weight = c.weighs ? tensor_of<T, D>(expected::weight, {7}) : Tensor<T, D>();
    auto const loss = cross_entropy(x, t, {.weight = weight, .reduction = named(c.reduction), .label_smoothing = c.smoothing});
    go_back(loss);
    CHECK(apart(loss.value(), c.value, 4 * tolerance_of<T>) == "");
    CHECK(apart(x.grad(), c.gradient, tolerance_of<T>) == "");
    CHECK(apart(t.grad(), c.target_gradient, 4 * tolerance_of<T>) == "");
  }
}
/// Rows of every length and number, against plain loops in double: tails, blocks, many threads.
template <class T, class I = std::int64_t>
std::string compare_with_loops(std::int64_t rows, std::int64_t classes, double spread) {
  auto host = empty<T>({rows, classes});
  auto labels = empty<I>({rows});
  unsigned state = 7;
  auto const next = [&] { return (state = state * 1664525u + 1013904223u) >> 8; };
  for (std::int64_t k = 0; k < host.size(); ++k) host.data()[k] = detail::convert_scalar<T>((static_cast<double>(next() % 2001u) / 1000 - 1) * spread);
  for (std::int64_t k = 0; k < rows; ++k) labels.data()[k] = next() % 9 == 0 ? -100 : static_cast<I>(next() % static_cast<unsigned>(classes));
  std::vector<double> gradient(static_cast<std::size_t>(rows * classes));
  double total = 0, count = 0;
  for (std::int64_t r = 0; r < rows; ++r) count += labels.data()[r] >= 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    if (labels.data()[r] < 0) continue;
    auto const at = [&](std::int64_t c) { return static_cast<double>(static_cast<compute_t<T>>(host.data()[r * classes + c])); };
    double m = at(0), s = 0;
    for (std::int64_t c = 0; c < classes; ++c) m = std::fmax(m, at(c));
    for (std::int64_t c = 0; c < classes; ++c) s += std::exp(at(c) - m);
    total += m + std::log(s) - at(labels.data()[r]);
    for (std::int64_t c = 0; c < classes; ++c) gradient[static_cast<std::size_t>(r * classes + c)] = (std::exp(at(c) - m) / s - (c == labels.data()[r])) / count;
  }
  Variable<T> const x{host};
  auto const loss = cross_entropy(x, labels);
  loss.backward(retain_graph);
  if (count == 0) return "";
  std::string const value = apart(loss.value(), {total / count}, tolerance_of<T>);
  double const least = std::is_same_v<T, float16> ? 6e-8 * count : 0;
  for (double& g : gradient) g *= count;
  std::string const once = apart(Tensor<double>(cast<double>(x.grad()) * count), gradient, tolerance_of<T> * 2 + least);
  loss.backward(full<T>({}, 3));  // what was made with the loss is given away
  std::string const again = apart(Tensor<double>(cast<double>(x.grad()) * (count / 4)), gradient, tolerance_of<T> * 2 + least);
  return value != "" ? "value: " + value : once != "" ? once : again != "" ? "again: " + again : "";
}

template <class S, class L>
concept takes_labels = requires(S const& s, L const& l) { cross_entropy(s, l), nll_loss(s, l); };

}  // namespace

TEST_CASE("losses of labels and their gradients are PyTorch's") {
  situ_test::with_every_instruction_set<Cpu>([] { check_labels<float, Cpu, std::int64_t>(); });
  check_labels<float, Pinned, std::int64_t>();
  check_labels<float, Emulated<0>, std::int64_t>();
  check_labels<double, Cpu, std::uint8_t>();
}
TEST_CASE("cross entropy with probabilities has PyTorch's values, and gradients of both") {
  situ_test::with_every_instruction_set<Cpu>([] { check_probabilities<float, Cpu>(); });
  check_probabilities<float, Emulated<0>>();
}
TEST_CASE("cross entropy is right for rows of every length and for scores that lie far apart") {
  situ_test::UnknownCaches const caches;
  situ_test::with_every_instruction_set<Cpu>([] {
    for (std::int64_t classes : {1, 2, 3, 7, 8, 10, 15, 16, 17, 31, 33, 64, 100, 4099, 20000}) {
      CAPTURE(classes);
      for (std::int64_t rows : {1, 5, 63, 64, 65, 130}) {
        if (rows * classes > 600000) continue;
        CAPTURE(rows);
        CHECK(compare_with_loops<float>(rows, classes, 3) == "");
        if (classes < 100) CHECK(compare_with_loops<float>(rows, classes, 300) == "");
      }
    }
    CHECK(compare_with_loops<float>(30000, 10, 3) == "");
    CHECK(compare_with_loops<float>(22000, 100, 3) == "");  // past the cache
    CHECK(compare_with_loops<float>(70, 257, 40) == "");
    CHECK(compare_with_loops<float>(5, 1025, 3) == "");
    CHECK(compare_with_loops<float>(30000, 10, 300) == "");
    CHECK(compare_with_loops<bfloat16>(65, 33, 2) == "");
    CHECK(compare_with_loops<bfloat16>(64, 10, 2) == "");
    CHECK(compare_with_loops<double>(65, 33, 500) == "");
  });
}

TEST_CASE_TEMPLATE("a loss that is scaled, or not reduced, has a gradient that is scaled", D, Cpu, Emulated<0>) {
  for (std::int64_t classes : {3, 40, 300}) {
    CAPTURE(classes);
    Tensor<float, D> const x = sin(arange<float>(70 * classes, D{}) * 1.3f).reshape({70, classes});
    Tensor<std::int64_t, D> const y = arange<std::int64_t>(70, D{}) % static_cast<int>(classes);
    auto const gradient = [&](auto const& f) {
      Variable<float, D> const v{x};
      f(cross_entropy(v, y, {.reduction = reduction::none})).backward();
      Variable<float, D> const u{x};
      f(cross_entropy(u, y, {.reduction = reduction::sum})).backward();
      return std::pair(Tensor<double>(v.grad().cpu().template to<double>()), Tensor<double>(u.grad().cpu().template to<double>()));
    };
    auto const one = gradient([](auto const& loss) { return sum(loss); }), four = gradient([](auto const& loss) { return sum(loss * 4); });
    CHECK(one.first.to_vector() == one.second.to_vector());
    CHECK(four.first.to_vector() == Tensor<double>(one.first * 4).to_vector());
    CHECK(four.second.to_vector() == four.first.to_vector());
    // Rows of their own slopes.
    Variable<float, D> const v{x};
    Tensor<float, D> const slopes = arange<float>(70, D{});
    cross_entropy(v, y, {.reduction = reduction::none}).backward(slopes);
    CHECK(apart(v.grad(), Tensor<double>(one.first * arange<double>(70).unsqueeze(1)).to_vector(), tolerance_of<float>) == "");
  }
}

TEST_CASE("the number of threads does not change a loss or its gradient") {
  int const before = num_threads();
  auto x = empty<float>({50000, 10});
  for (std::int64_t k = 0; k < x.size(); ++k) x.data()[k] = static_cast<float>(k * 7919 % 1000) / 100;
  auto const y = full<std::int64_t>({50000}, 3);
  std::vector<float> results[2];
  for (int k : {0, 1}) {
    set_num_threads(k == 0 ? 1 : 3);
    Variable<float> const v{x};
    auto const loss = cross_entropy(v, y);
    loss.backward();
    results[k] = v.grad().to_vector();
    results[k].push_back(loss.value().item());
  }
  set_num_threads(before);
  CHECK(results[0] == results[1]);
}

TEST_CASE("special scores and labels give what PyTorch gives") {
  float const inf = __builtin_inff();
  Tensor<std::int64_t> const y{0, 1};
  {  // a score of -inf has probability 0
    Variable<float> const x{Tensor<float>{{1, -inf, 2}, {0, 1, -inf}}};
    auto const loss = cross_entropy(x, y, {.reduction = reduction::none});
    loss.backward(ones({2}));
    CHECK(apart(loss.value(), {1.3132617, 0.3132617}, 1e-6) == "");
    CHECK(apart(x.grad(), {-0.7310586, 0, 0.7310586, 0.2689414, -0.2689414, 0}, 1e-6) == "");
  }
  {  // the label's own is -inf
    Variable<float> const x{Tensor<float>{{-inf, 0, 0}, {0, -inf, 1}}};
    auto const loss = cross_entropy(x, y, {.reduction = reduction::none});
    loss.backward(ones({2}));
    CHECK(apart(loss.value(), {inf, inf}, 0) == "");
    CHECK(apart(x.grad(), {-1, 0.5, 0.5, 0.2689414, -1, 0.7310586}, 1e-6) == "");
  }
  auto const is_nan = [](auto const& t) { return t.item() != t.item(); };
  CHECK(is_nan(cross_entropy(Tensor<float>{{1, __builtin_nanf(""), 2}, {0, 1, 2}}, y)));
  CHECK(is_nan(cross_entropy(Tensor<float>{{1, inf, 2}, {0, 1, 2}}, y)));
  CHECK(is_nan(cross_entropy(ones({2, 3}), full<std::int64_t>({2}, -100))));
  CHECK(cross_entropy(ones({2, 3}), full<std::int64_t>({2}, -100), {.reduction = reduction::sum}).item() == 0);
  CHECK(cross_entropy(ones({0, 3}), zeros<std::int64_t>({0}), {.reduction = reduction::sum}).item() == 0);
  CHECK(cross_entropy(Tensor<float>{1, 1}, full<std::int64_t>({}, 1)).item() == doctest::Approx(0.6931472));
}

TEST_CASE("what does not fit is refused in words") {
  Tensor<float> const x = ones({2, 3});
  Tensor<std::int64_t> const y{0, 3};
  CHECK(thrown<IndexError>([&] { (void)cross_entropy(x, y); }, "cross_entropy: label 3 at [1] is out of range for 3 classes: labels are 0 to 2, or -100 for rows to be left out") == "");
  CHECK(thrown<IndexError>([&] { (void)nll_loss(Variable<float>{x}, Tensor<std::int64_t>{-1, 0}, {.ignore_index = 7}); },
                           "nll_loss: label -1 at [0] is out of range for 3 classes: labels are 0 to 2, or 7 for rows to be left out") == "");
  CHECK(thrown<ShapeError>([&] { (void)cross_entropy(x, zeros<std::int64_t>({3})); }, "cross_entropy: labels of shape [3] do not fit scores of shape [2, 3]: their shape must be [2]") == "");
  CHECK(thrown<ShapeError>([&] { (void)cross_entropy(x, ones({2, 2})); }, "cross_entropy: probabilities of shape [2, 2] do not fit scores of shape [2, 3]: their shape must be [2, 3]") == "");
  CHECK(thrown<ShapeError>([&] { (void)cross_entropy(full<float>({}, 1.f), y); }, "cross_entropy: the scores have no axis; their shape is [classes], [rows, classes] or [rows, classes, ...]") == "");
  CHECK(thrown<ShapeError>([&] { (void)cross_entropy(x, zeros<std::int64_t>({2}), {.weight = ones({2})}); }, "cross_entropy: weights of shape [2] do not fit 3 classes: their shape must be [3]") == "");
  CHECK(thrown<ShapeError>([&] { (void)cross_entropy(x, zeros<std::int64_t>({2}), {.label_smoothing = 1.5}); }, "cross_entropy: label_smoothing is 1.5; it must be from 0 to 1") == "");
  static_assert(takes_labels<Tensor<float>, Tensor<std::int64_t, Pinned>> && !takes_labels<Tensor<float>, Tensor<std::int64_t, Emulated<0>>>);
}

TEST_CASE("an asynchronous device tells of a bad label when it is waited for") {
  using D = Emulated<0>;
  Variable<float, D> const x{ones({2, 3}, D{})};
  auto const loss = cross_entropy(x, Tensor<std::int64_t, D>{0, 3});
  CHECK_THROWS_AS((void)loss.value().item(), IndexError);
}

TEST_CASE("tensors give tensors, and formulas are evaluated first") {
  Tensor<float> const a{{1, 2, 3}, {4, 5, 7}};
  Tensor<std::int64_t> const y{2, 0};
  Tensor<float> const plain = nn::cross_entropy(a * 2 - 1, y);
  CHECK(plain.item() == cross_entropy(eval(a * 2 - 1), y).item());
  no_grad const guard;
  CHECK(!cross_entropy(Variable<float>{a}, y).requires_grad());
}

TEST_CASE("a backward notices labels and scores that were written since") {
  Variable<float> const x{ones({2, 3})};
  Tensor<std::int64_t> y{0, 1};
  auto const loss = cross_entropy(x, y);
  y.assign(zeros<std::int64_t>({2}));
  CHECK_THROWS_AS(loss.backward(), GradientError);
  Tensor<float> weight = ones({3});
  for (bool const by_labels : {true, false}) {
    auto const weighted = by_labels ? nll_loss(x, y, {.weight = weight}) : cross_entropy(x, full({2, 3}, 1.f / 3), {.weight = weight});
    weight.assign(2.f);
    CHECK_THROWS_AS(weighted.backward(), GradientError);
  }
}

TEST_CASE("gradients of probabilities are right for scores that are all far from 0") {  // softmax of equal scores; log 3 less the score about them
  Variable<float> const x{full({2, 3}, 1e7f)}, t{full({2, 3}, 1.f / 3)};
  auto const loss = cross_entropy(x, t);
  CHECK(loss.item() == doctest::Approx(std::log(3.)));
  loss.backward();
  for (float const found : x.grad().to_vector()) CHECK(std::abs(found) < 1e-7f);
  for (float const found : t.grad().to_vector()) CHECK(found == doctest::Approx(std::log(3.) / 2));
}
