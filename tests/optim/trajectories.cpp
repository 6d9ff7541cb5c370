#include <doctest/doctest.h>

#include <optim/expected/trajectories.hpp>
#include <optim/support.hpp>

#include <situ/optim.hpp>
#include <support/compare.hpp>

using namespace situ;
using situ_test::gradient_at;
using situ_test::numbers_of;

namespace {

/// Elements 0, 17 and 36 of 37 parameters after 1, 10 and 100 steps.
template <class O>
std::vector<double> trajectory(typename O::Options const& options) {
  using T = typename O::value_type;
  using D = typename O::device_type;
  auto p = situ_test::leaf<T, D>({37}, situ_test::ramp(37));
  O optimizer({p}, options);
  std::vector<double> shown;
  for (int t = 1; t <= 100; ++t) {
    situ_test::set_grads(p, gradient_at(t, numbers_of(p)));
    optimizer.step();
    if (t != 1 && t != 10 && t != 100) continue;
    std::vector<double> const now = numbers_of(p);
    for (std::size_t i : {0u, 17u, 36u}) shown.push_back(now[i]);
  }
  return shown;
}

/// The greatest distance, relative to max(1, |expected|).
double distance(std::vector<double> const& got, std::vector<double> const& expected) {
  REQUIRE(got.size() == expected.size());
  double result = 0;
  for (std::size_t k = 0; k < got.size(); ++k) result = situ_test::worse(result, std::abs(got[k] - expected[k]) / std::fmax(1, std::abs(expected[k])));
  return result;
}

}  // namespace

#define UNPACKED(...) __VA_ARGS__

TEST_CASE("optimisers of float go where PyTorch's go") {
  situ_test::with_every_instruction_set<Cpu>([] {
#define SITU_ROW(NAME, OPTIONS, IN_FLOAT, IN_DOUBLE)                                                                    \
  CHECK_MESSAGE(distance(trajectory<optim::NAME<float>>({UNPACKED OPTIONS}), {UNPACKED IN_FLOAT}) < 1e-6, #NAME #OPTIONS);
    SITU_TRAJECTORIES(SITU_ROW)
#undef SITU_ROW
  });
}

TEST_CASE("optimisers of double go where PyTorch's go") {
  situ_test::with_every_instruction_set<Cpu>([] {
#define SITU_ROW(NAME, OPTIONS, IN_FLOAT, IN_DOUBLE)                                                                      \
  CHECK_MESSAGE(distance(trajectory<optim::NAME<double>>({UNPACKED OPTIONS}), {UNPACKED IN_DOUBLE}) < 1e-13, #NAME #OPTIONS);
    SITU_TRAJECTORIES(SITU_ROW)
#undef SITU_ROW
  });
}

TEST_CASE("an asynchronous device takes the same steps as the host") {
  optim::AdamOptions const adam{.lr = 0.01, .weight_decay = 0.1, .amsgrad = true};
  CHECK(trajectory<optim::Adam<float, Emulated<0>>>(adam) == trajectory<optim::Adam<float>>(adam));
  optim::SGDOptions const sgd{.lr = 0.05, .momentum = 0.9, .nesterov = true};
  CHECK(trajectory<optim::SGD<float, Emulated<0>>>(sgd) == trajectory<optim::SGD<float>>(sgd));
}

TEST_CASE("16-bit parameters go the way of float ones, rounded, and with master weights exactly") {
  optim::AdamOptions options{.lr = 0.01, .weight_decay = 0.1};
  auto const exact = trajectory<optim::Adam<float>>(options);
  CHECK(distance(trajectory<optim::Adam<bfloat16>>(options), exact) < 0.2);
  CHECK(distance(trajectory<optim::Adam<float16>>(options), exact) < 0.02);
  options.master_weights = true;
  CHECK(distance(trajectory<optim::Adam<bfloat16>>(options), exact) < 0.01);
  CHECK(distance(trajectory<optim::Adam<float16>>(options), exact) < 0.001);
}
