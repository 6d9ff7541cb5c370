#include <doctest/doctest.h>

#include <limits>
#include <map>
#include <string>

#include <optim/expected/trajectories.hpp>
#include <optim/support.hpp>

#include <situ/optim/adagrad.hpp>
#include <situ/optim/rmsprop.hpp>
#include <situ/optim/schedules.hpp>
#include <situ/optim/sgd.hpp>

using namespace situ;
using situ_test::leaf;
using situ_test::thrown;

namespace {

optim::SGD<float> momentum_sgd() { return optim::SGD<float>({leaf<float>({2}, {1, 2})}, {.lr = 0.2, .momentum = 0.9}); }

/// Sixteen learning rates and momenta, as PyTorch has them.
template <class Make>
void check_rates(std::string const& name, Make const& make) {
  CAPTURE(name);
  auto optimizer = momentum_sgd();
  auto schedule = make(optimizer);
  bool found = false;
  for (ExpectedRates const& expected : expected_rates) {
    if (expected.name != name) continue;
    found = true;
    for (int t = 0; t < 16; ++t) {
      CAPTURE(t);
      CHECK(schedule.lr() == doctest::Approx(expected.lr[t]).epsilon(1e-12));
      CHECK(optimizer.lr() == schedule.lr());
      CHECK(optimizer.options().momentum == doctest::Approx(expected.momentum[t]).epsilon(1e-12));
      CHECK(schedule.last_epoch() == t);
      schedule.step();
    }
  }
  CHECK(found);
}

}  // namespace

TEST_CASE("schedules give PyTorch's learning rates") {
  check_rates("StepLR", [](auto& o) { return optim::StepLR{o, {.step_size = 3, .gamma = 0.5}}; });
  check_rates("MultiStepLR", [](auto& o) { return optim::MultiStepLR{o, {.milestones = {2, 5, 5, 11}, .gamma = 0.5}}; });
  check_rates("ExponentialLR", [](auto& o) { return optim::ExponentialLR{o, {.gamma = 0.9}}; });
  check_rates("CosineAnnealingLR", [](auto& o) { return optim::CosineAnnealingLR{o, {.T_max = 8, .eta_min = 0.01}}; });
  check_rates("OneCycleLR", [](auto& o) { return optim::OneCycleLR{o, {.max_lr = 0.5, .total_steps = 16}}; });
  check_rates("OneCycleLR_linear_three_phase", [](auto& o) {
    return optim::OneCycleLR{o, {.max_lr = 0.5, .total_steps = 16, .anneal_strategy = optim::anneal::linear, .div_factor = 10, .final_div_factor = 100, .three_phase = true}};
  });
  check_rates("LinearWarmup", [](auto& o) { return optim::LinearWarmup{o, {.start_factor = 0.25, .total_iters = 4}}; });
  check_rates("LambdaLR", [](auto& o) { return optim::LambdaLR{o, [](std::int64_t t) { return 1. / (1. + static_cast<double>(t)); }}; });
  check_rates("LinearWarmup_then_CosineAnnealingLR", [](auto& o) {
    return optim::LinearWarmup{o, {.start_factor = 0.25, .total_iters = 4}, optim::CosineAnnealingLR{o, {.T_max = 8}}};
  });
}

TEST_CASE("each group has a learning rate of its own") {
  auto optimizer = momentum_sgd();
  optimizer.add_param_group({leaf<float>({1}, {1})}, {.lr = 1});
  optim::LambdaLR schedule{optimizer, [](std::int64_t t, int group) { return group == 0 ? 1. : 1. + static_cast<double>(t); }};
  schedule.step();
  CHECK(optimizer.lr(0) == 0.2);
  CHECK(optimizer.lr(1) == 2);
  CHECK(schedule.lr(1) == 2);
  CHECK(thrown<IndexError>([&] { (void)schedule.lr(2); }, "lr: there is no group 2: this schedule is for 2 groups") == "");
}

TEST_CASE("a schedule goes on from its state, and outlives neither copy nor move of its optimiser") {
  auto const make = [](auto& o) { return optim::LinearWarmup{o, {.start_factor = 0.5, .total_iters = 3}, optim::CosineAnnealingLR{o, {.T_max = 9}}}; };
  auto first = momentum_sgd(), second = momentum_sgd();
  auto one = make(first), other = make(second);
  for (int t = 0; t < 6; ++t) one.step();
  std::map<std::string, std::vector<double>> state;
  for_each_state(one, [&]<class S>(std::string const& name, S const& x) {
    if constexpr (std::is_same_v<S, nn::Counter>) state[name] = {static_cast<double>(x.value())};
    else state[name] = x.to_vector();
  });
  CHECK(state.size() == 4);
  CHECK(state.at("last_epoch")[0] == 6);
  CHECK(state.at("then.last_epoch")[0] == 3);
  CHECK(state.at("then.base_lrs")[0] == 0.2);
  for_each_state(other, [&]<class S>(std::string const& name, S& x) {
    if constexpr (std::is_same_v<S, nn::Counter>) x.set(static_cast<std::int64_t>(state.at(name)[0]));
    else x.assign(Tensor<double>(state.at(name)));
  });
  auto moved = std::move(second);
  one.step(), other.step();
  CHECK(moved.lr() == first.lr());
  CHECK(moved.lr() == doctest::Approx(0.1 * (1 + std::cos(3.14159265358979323846 * 4 / 9))));
}

TEST_CASE("a schedule brings a momentum to an optimiser that was made without one, and the state that it needs") {
  auto const check = [](auto const& make, std::vector<double> const& expected) {
    auto const run = [&](auto& optimizer, auto& schedule, std::size_t from, std::size_t to) {
      auto const w = optimizer.parameters()[0];
      for (std::size_t t = from; t < to; ++t) {
        CAPTURE(t);
        situ_test::set_grads(w, {2 * w.item(0)});  // of w²
        optimizer.step();
        schedule.step();
        CHECK(w.item(0) == doctest::Approx(expected[t]).epsilon(1e-12));
      }
    };
    auto const one_cycle = [](auto& optimizer) { return optim::OneCycleLR{optimizer, {.max_lr = 0.1, .total_steps = 10}}; };
    std::map<std::string, std::vector<double>> state;
    auto const save = [&]<class S>(std::string const& name, S const& x) {
      if constexpr (std::is_same_v<S, nn::Counter>) state[name] = {static_cast<double>(x.value())};
      else state[name] = situ_test::numbers_of(x);
    };
    auto const load = [&]<class S>(std::string const& name, S& x) {
      if constexpr (std::is_same_v<S, nn::Counter>) x.set(static_cast<std::int64_t>(state.at(name)[0]));
      else x.assign(Tensor<typename S::value_type>(state.at(name), x.shape()));
    };
    auto optimizer = make(leaf<double>({1}, {1}));
    auto schedule = one_cycle(optimizer);
    run(optimizer, schedule, 0, 3);
    for_each_state(optimizer, save);
    for_each_state(schedule, [&](std::string const& name, auto const& x) { save("schedule." + name, x); });
    CHECK(state.count("0.momentum_buffer") == 1);
    auto again = make(leaf<double>({1}, {optimizer.parameters()[0].item(0)}));
    auto schedule_again = one_cycle(again);
    std::size_t visited = 0;
    for_each_state(again, [&](std::string const& name, auto& x) { load(name, x), ++visited; });
    for_each_state(schedule_again, [&](std::string const& name, auto& x) { load("schedule." + name, x), ++visited; });
    CHECK(visited == state.size());
    run(again, schedule_again, 3, 6);
  };
  // PyTorch 1.13's
  check([](Variable<double> const& w) { return optim::SGD{{w}, {.lr = 0.1}}; },
        {0.992, 0.7952319999999999, 0.3145456, -0.13586312450645546, -0.44801185546349154, -0.602175365795129});
  check([](Variable<double> const& w) { return optim::RMSprop{{w}, {.lr = 0.1}}; },
        {0.9600000019999999, 0.13094279161407985, -1.3190029324674282, -1.8392651557164978, -1.6600624701532865, -1.2136792534174685});
}

TEST_CASE("schedules say what is wrong with their options") {
  auto sgd = momentum_sgd();
  optim::Adagrad adagrad{{leaf<float>({1}, {1})}};
  CHECK(thrown<Error>([&] { optim::StepLR s(sgd, {.step_size = 0}); }, "StepLR: step_size is 0; it must be at least 1") == "");
  CHECK(thrown<Error>([&] { optim::CosineAnnealingLR s(sgd, {.T_max = -1}); }, "CosineAnnealingLR: T_max is -1; it must be at least 1") == "");
  CHECK(thrown<Error>([&] { optim::OneCycleLR s(sgd, {.max_lr = 1}); }, "OneCycleLR: total_steps is 0; it must be at least 1") == "");
  CHECK(thrown<Error>([&] { optim::OneCycleLR s(sgd, {.max_lr = 1, .total_steps = 5, .pct_start = 2}); }, "OneCycleLR: pct_start is 2; it must be between 0 and 1") == "");
  CHECK(thrown<Error>([&] { optim::OneCycleLR s(sgd, {.max_lr = 1, .total_steps = 5, .div_factor = 0}); }, "OneCycleLR: div_factor is 0; it must be greater than 0") == "");
  CHECK(thrown<Error>([&] { optim::OneCycleLR s(sgd, {.max_lr = 1, .total_steps = 5, .final_div_factor = -1}); }, "OneCycleLR: final_div_factor is -1; it must be greater than 0") == "");
  CHECK(thrown<Error>([&] { optim::OneCycleLR s(adagrad, {.max_lr = 1, .total_steps = 5}); }, "OneCycleLR: this optimizer has no momentum to cycle; pass .cycle_momentum = false") == "");
  CHECK(thrown<Error>([&] { optim::LinearWarmup s(sgd, {.start_factor = 0}); }, "LinearWarmup: start_factor is 0; it must be greater than 0 and at most 1") == "");
  optim::OneCycleLR cycle{adagrad, {.max_lr = 1, .total_steps = 2, .cycle_momentum = false}};
  cycle.step(), cycle.step();
  CHECK(thrown<Error>([&] { cycle.step(); }, "OneCycleLR: step 3 was asked for, but total_steps is 2") == "");
  CHECK(cycle.last_epoch() == 2);

  CHECK(thrown<Error>([&] { optim::StepLR s(sgd, {.gamma = -1}); }, "StepLR: gamma is -1; it must be a number that is at least 0") == "");
  CHECK(thrown<Error>([&] { optim::MultiStepLR s(sgd, {.milestones = {2}, .gamma = -1}); }, "MultiStepLR: gamma is -1; it must be a number that is at least 0") == "");
  CHECK(thrown<Error>([&] { optim::ExponentialLR s(sgd, {.gamma = -1}); }, "ExponentialLR: gamma is -1; it must be a number that is at least 0") == "");
  CHECK(thrown<Error>([&] { optim::CosineAnnealingLR s(sgd, {.eta_min = -2}); }, "CosineAnnealingLR: eta_min is -2; it must be a number that is at least 0") == "");

  // A learning rate that is no number is told at the step that comes to it, which has then not been made.
  optim::LambdaLR falling{sgd, [](int64_t t) { return t == 1 ? std::numeric_limits<double>::quiet_NaN() : 0.5; }};
  double const lr = falling.lr();
  CHECK(thrown<Error>([&] { falling.step(); }, "at step 1 of the schedule the learning rate of group 0 would be nan; it must be a finite number") == "");
  CHECK(falling.lr() == lr);
  CHECK(falling.last_epoch() == 0);
  CHECK(thrown<Error>([&] { falling.go_to(-5); }, "go_to: step -5 was asked for; steps count from 0") == "");
}
