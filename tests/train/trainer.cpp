// The Trainer: what it reaches, what it writes, how it goes on.
#include <doctest/doctest.h>

#include <situ/train.hpp>

#include <situ/nn/dropout.hpp>
#include <situ/nn/linear.hpp>
#include <situ/nn/losses.hpp>
#include <situ/optim/adam.hpp>
#include <situ/optim/sgd.hpp>
#include <situ/optim/schedules.hpp>
#include <situ/ops/compare.hpp>

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <clocale>
#include <cstdio>
#include <fstream>
#include <string>
#include <vector>

#include <support/compare.hpp>

using namespace situ;

namespace {

template <class T, class Device>
struct Net {
  nn::Linear<T, Device> fc1{4, 8}, fc2{8, 3};
  nn::Dropout dropout{0.25};
  auto forward(auto const& x) const { return fc2(dropout(relu(fc1(x)))); }
  SITU_MODULE(fc1, fc2, dropout)
};

/// Points around three corners; the label says which.
struct Points {
  Tensor<float> x = Tensor<float>::uninitialized({60, 4}, "Points");
  Tensor<int64_t> y = Tensor<int64_t>::uninitialized({60}, "Points");
  Points() {
    Generator random{5};
    auto const noise = randn({60, 4}, random);
    for (int64_t i = 0; i < 60; ++i) {
      y(i) = i % 3;
      for (int64_t k = 0; k < 4; ++k) x(i, k) = .3f * noise(i, k) + (k == i % 3 ? 1.f : 0.f);
    }
  }
};

auto const loss = [](auto const& scores, auto const& labels) { return cross_entropy(scores, labels); };
double rate = 0.02;
auto const adam = [](auto& net) { return optim::Adam{net, {.lr = rate}}; };
auto const decay = [](auto& optimizer, int64_t) { return optim::StepLR{optimizer, {.step_size = 2, .gamma = 0.5}}; };

struct Folder {
  std::string path = "situ_trainer_test_" + std::to_string(::getpid()) + "_";
  std::string file(char const* name) const { return path + name; }
  ~Folder() {
    for (char const* name : {"run.safetensors", "t.csv", "t.svg", "log"}) std::remove(file(name).c_str());
  }
};

std::string read(std::string const& path) {
  std::string result;
  if (std::FILE* const in = std::fopen(path.c_str(), "r")) {
    char buffer[4096];
    for (std::size_t n = 0; (n = std::fread(buffer, 1, sizeof buffer, in)) > 0;) result.append(buffer, n);
    std::fclose(in);
  }
  return result;
}

template <class N>
bool same_bits(N const& a, N const& b) {
  auto const as = parameters(a), bs = parameters(b);
  for (std::size_t k = 0; k < as.size(); ++k) {
    if (!equal(as[k].value(), bs[k].value())) return false;
  }
  return as.size() == bs.size();
}

}  // namespace

TEST_CASE("a run that goes on from its checkpoint gives the bits of one that was not stopped") {
  Points const points;
  data::TensorDataset const samples{points.x, points.y};
  Folder const folder;
  auto const run = [&](int64_t epochs, bool resume, Net<float, Cpu>& net) {
    return learning::Trainer<Cpu>{{.epochs = epochs, .batch_size = 16, .seed = 3, .clip_norm = 1, .checkpoint = folder.file("run.safetensors"), .resume = resume, .progress = nullptr}}.fit(
        net, samples, samples, loss, adam, learning::accuracy, decay);
  };
  manual_seed(1);
  Net<float, Cpu> whole;
  Net<float, Cpu> parts = clone(whole);
  manual_seed(2);
  auto const expected = run(6, false, whole);
  manual_seed(2);
  run(3, false, parts);
  manual_seed(77);  // the checkpoint brings its own
  Net<float, Cpu> other;
  auto const found = run(6, true, other);
  CHECK(same_bits(whole, other));
  CHECK_FALSE(same_bits(whole, parts));
  REQUIRE(found.epochs.size() == 6);
  for (std::size_t k = 0; k < 6; ++k) {
    CHECK(found.epochs[k].number == static_cast<int64_t>(k + 1));
    CHECK(found.epochs[k].loss == expected.epochs[k].loss);
    CHECK(found.epochs[k].validation_loss == expected.epochs[k].validation_loss);
    CHECK(found.epochs[k].metric == expected.epochs[k].metric);
    CHECK(found.epochs[k].learning_rate == doctest::Approx(0.02 / (k < 2 ? 1 : k < 4 ? 2 : 4)));
  }
  CHECK(found.best_epoch == expected.best_epoch);
  CHECK(found.epochs.back().loss < expected.epochs.front().loss);
  CHECK(found.epochs.back().metric > 0.8);
}

TEST_CASE("what an epoch says: means over samples, rates and norms before they are changed") {
  Points const points;
  data::TensorDataset const samples{points.x, points.y};
  manual_seed(1);
  Net<float, Cpu> first;
  first.dropout = nn::Dropout{0.};
  auto const run = [&](learning::TrainerOptions options, Net<float, Cpu>& net) {
    options.batch_size = 16, options.progress = nullptr;  // the last batch is of 12
    return learning::Trainer<Cpu>{options}.fit(net, samples, samples, loss, adam, learning::accuracy, decay).epochs;
  };
  Net<float, Cpu> net = clone(first);
  rate = 0;  // nothing is learned
  auto const still = run({.epochs = 1}, net);
  auto const left_out = run({.epochs = 1, .drop_last = true}, net);
  rate = 0.02;
  {
    no_grad const guard;
    Variable whole = cross_entropy(first(points.x), points.y);
    CHECK(still[0].loss == doctest::Approx(static_cast<double>(whole.item())).epsilon(1e-5));
    CHECK(still[0].validation_loss == doctest::Approx(static_cast<double>(whole.item())).epsilon(1e-5));
    Variable scores = first(points.x);
    CHECK(still[0].metric == doctest::Approx(static_cast<double>(Tensor<float>(learning::accuracy(scores.value(), points.y)).item())));
  }
  CHECK(still[0].samples == 60);
  CHECK(left_out[0].samples == 48);
  CHECK_FALSE(net.fc1.weight.has_grad());  // the last gradients are let go

  // The schedule moves with each of four steps: by two it halves twice in an epoch.
  auto const steps = run({.epochs = 2, .clip_norm = 1e-3, .schedule_steps = true}, net);
  CHECK(steps[0].learning_rate == 0.02);
  CHECK(steps[1].learning_rate == doctest::Approx(0.005));
  CHECK(steps[0].gradient_norm > 0.01);

  Net<float, Cpu> a = clone(first), b = clone(first), c = clone(first);
  run({.epochs = 1, .seed = 3}, a);
  run({.epochs = 1, .seed = 3}, b);
  run({.epochs = 1, .seed = 4}, c);
  CHECK(same_bits(a, b));
  CHECK_FALSE(same_bits(a, c));
}

TEST_CASE("the best epoch, the end of patience and both networks are kept over a stop") {
  double const none = std::numeric_limits<double>::quiet_NaN();
  Folder const folder;
  learning::TrainerOptions const options{.epochs = 9, .patience = 2, .min_delta = 0.1, .restore_best = true, .checkpoint = folder.file("run.safetensors"), .resume = true, .progress = nullptr};
  auto const nothing = [](void const*, detail::TrainingRun::Tensors&) {};
  for (int stop : {4, 3, 2}) {  // in one go, and in two
    CAPTURE(stop);
    double const losses[] = {none, 0.5, 0.45, 0.41};
    for (int from = 0; from < 4;) {
      Tensor<float> model{-1.f}, home{-1.f};
      detail::TrainingRun run(options);
      run.begin({{"model.x", model}}, {{"x", home}}, nullptr, nothing);
      CHECK(home.item() == (from == 0 ? -1.f : static_cast<float>(from)));
      int const to = from == 0 ? stop : 4;
      for (; from < to; ++from) {
        CHECK(run.next_epoch() == from + 1);
        model.assign(static_cast<float>(from + 1));
        run.end_epoch({.number = from + 1, .loss = losses[from], .validation_loss = none, .metric = none});
        CHECK(home.item() == static_cast<float>(from + 1));
      }
    }
    Tensor<float> model{-1.f}, home{-1.f};
    detail::TrainingRun run(options);
    run.begin({{"model.x", model}}, {{"x", home}}, nullptr, nothing);
    CHECK(run.history.best_epoch == 2);
    CHECK(run.history.stopped_early);
    CHECK(run.next_epoch() == 0);
    CHECK(model.item() == 4);
    CHECK(home.item() == 4);
    run.end();
    CHECK(model.item() == 2);
    CHECK(home.item() == 2);
    for (int64_t patience : {0, 3, 1}) {  // which the options say that it goes on with
      learning::TrainerOptions other = options;
      other.patience = patience;
      detail::TrainingRun longer(other);
      longer.begin({{"model.x", model}}, {{"x", home}}, nullptr, nothing);
      CHECK(longer.next_epoch() == (patience == 1 ? 0 : 5));
    }
    std::remove(folder.file("run.safetensors").c_str());
  }
}

TEST_CASE("the network stays where it is, and is trained on the first device of the list that is there") {
  Points const points;
  data::TensorDataset const samples{points.x, points.y};
  manual_seed(1);
  Net<float, Cpu> here;
  Net<float, Cpu> there = clone(here);
  learning::TrainerOptions const options{.epochs = 2, .batch_size = 16, .progress = nullptr};
  auto const weight = there.fc1.weight;
  manual_seed(2);
  auto const a = learning::Trainer<Cpu>{options}.fit(here, samples, learning::none, loss, adam);
  manual_seed(2);
  auto const b = learning::Trainer<Cuda<63>, Emulated<0>, Cpu>{options}.fit(there, samples, learning::none, loss, adam);
  CHECK(same_bits(here, there));
  CHECK(equal(weight.value(), here.fc1.weight.value()));  // written in place
  CHECK(a.epochs.back().loss == b.epochs.back().loss);
  CHECK(a.epochs.back().samples == 60);
  CHECK_FALSE(there.dropout.training);

  // Emulated devices are those that are configured.
  CHECK(to_string(learning::Trainer<Cuda<63>, Emulated<200>, Emulated<1>, Cpu>{}.device()) == "emulated:1");
  CHECK(to_string(learning::Trainer<Emulated<200>, Cpu>{}.device()) == "cpu");
  CHECK_THROWS_AS((learning::Trainer<Cuda<63>, Emulated<200>>{}.device()), DeviceUnavailable);
}

TEST_CASE("gradients of several batches make one step") {
  Points const points;
  data::TensorDataset const samples{points.x, points.y};
  manual_seed(1);
  Net<float, Cpu> whole;
  whole.dropout = nn::Dropout{0.};
  Net<float, Cpu> parts = clone(whole);
  auto const run = [&](int64_t batch, int64_t accumulate, Net<float, Cpu>& net, double clip_norm = 0, double clip_value = 0) {
    learning::Trainer<Cpu>{{.epochs = 1, .batch_size = batch, .shuffle = false, .clip_norm = clip_norm, .clip_value = clip_value, .accumulate = accumulate, .progress = nullptr}}.fit(
        net, samples, learning::none, loss, [](auto& n) { return optim::SGD{n, {.lr = 0.1}}; });
  };
  run(30, 1, whole);
  run(10, 3, parts);
  CHECK(allclose(whole.fc1.weight.value(), parts.fc1.weight.value(), {.rtol = 1e-5, .atol = 1e-6}));

  // Three batches, two to a step: the last step is of one, whose gradient counts whole.
  Net<float, Cpu> uneven = clone(whole), by_hand = clone(whole);
  run(20, 2, uneven);
  optim::SGD optimizer{by_hand, {.lr = 0.1}};
  for (auto [first, last] : {std::pair{0, 40}, std::pair{40, 60}}) {
    optimizer.zero_grad();
    cross_entropy(by_hand(points.x.slice(0, first, last)), points.y.slice(0, first, last)).backward();
    optimizer.step();
  }
  CHECK(allclose(uneven.fc1.weight.value(), by_hand.fc1.weight.value(), {.rtol = 1e-5, .atol = 1e-6}));

  // Clipped by value, then by norm.
  Net<float, Cpu> clipped = clone(by_hand);
  run(60, 1, clipped, 0.02, 0.01);
  optimizer.zero_grad();
  cross_entropy(by_hand(points.x), points.y).backward();
  optim::clip_grad_value(by_hand, 0.01);
  optim::clip_grad_norm(by_hand, 0.02);
  optimizer.step();
  CHECK(allclose(clipped.fc1.weight.value(), by_hand.fc1.weight.value(), {.rtol = 1e-6, .atol = 1e-8}));
}

TEST_CASE("training stops when the validation loss gets no better, and the best network is given") {
  Points const points;
  data::TensorDataset const samples{points.x, points.y};
  manual_seed(1);
  Net<float, Cpu> net;
  // A learning rate that goes up to where nothing is learned any more.
  auto const rising = [](auto& optimizer, int64_t) { return optim::StepLR{optimizer, {.step_size = 1, .gamma = 3.}}; };
  auto const history = learning::Trainer<Cpu>{{.epochs = 60, .batch_size = 16, .patience = 3, .restore_best = true, .progress = nullptr}}.fit(
      net, samples, samples, loss, adam, learning::none, rising);
  CHECK(history.stopped_early);
  CHECK(history.epochs.size() == static_cast<std::size_t>(history.best_epoch + 3));
  double lowest = history.epochs[0].validation_loss;
  for (auto const& epoch : history.epochs) lowest = epoch.validation_loss < lowest ? epoch.validation_loss : lowest;
  no_grad const guard;
  Variable now = cross_entropy(net(points.x), points.y);
  CHECK(static_cast<double>(now.item()) == doctest::Approx(lowest).epsilon(1e-5));
}

TEST_CASE("an epoch whose validation loss is no number is no good one") {
  Points const points;
  data::TensorDataset const samples{points.x, points.y}, held_out{points.x(range(0, 7), all()), points.y(range(0, 7))};
  int64_t validations = 0;
  auto const failing = [&](auto const& y, auto const& target) {
    Variable result = loss(y, target);
    if (target.size() == 7 && ++validations != 2) result = result * std::numeric_limits<float>::quiet_NaN();
    return result;
  };
  Net<float, Cpu> net;
  auto const history = learning::Trainer<Cpu>{{.epochs = 9, .batch_size = 16, .patience = 3, .restore_best = true, .progress = nullptr}}.fit(net, samples, held_out, failing, adam);
  CHECK(history.best_epoch == 2);
  CHECK(history.stopped_early);
  CHECK(history.epochs.size() == 5);
  CHECK(history.epochs[4].loss < history.epochs[1].loss);
}

TEST_CASE_TEMPLATE("mixed precision", Compute, bfloat16, float16) {
  Points const points;
  data::TensorDataset const samples{points.x, points.y};
  manual_seed(1);
  Net<float, Cpu> net;
  Folder const folder;
  auto const history = learning::Trainer<Cpu>{{.epochs = 12, .batch_size = 16, .clip_norm = 10, .clip_value = 1, .checkpoint = folder.file("run.safetensors"), .progress = nullptr}}.template fit<Compute>(
      net, samples, samples, loss, adam, learning::accuracy);
  CHECK(history.epochs.back().gradient_norm < 10);  // of gradients without the scale
  if (std::is_same_v<Compute, float16>) {
    Tensor<double> scale{0.};
    Tensor<int64_t> steps{int64_t{0}};
    scale = scale.reshape({}), steps = steps.reshape({});
    io::load_safetensors(folder.file("run.safetensors"), {{"scaler.scale", scale}, {"scaler.growth_tracker", steps}}, {.strict = false});
    CHECK(scale.item() == 65536);
    CHECK(steps.item() == 48);
  }
  CHECK(history.epochs.back().loss < 0.7 * history.epochs.front().loss);
  CHECK(history.epochs.back().metric > 0.8);
}

TEST_CASE("what is written: lines, a table, a picture") {
  Points const points;
  data::TensorDataset const samples{points.x, points.y};
  Folder const folder;
  manual_seed(1);
  Net<float, Cpu> net;
  std::FILE* const log = std::fopen(folder.file("log").c_str(), "w");
  REQUIRE(log != nullptr);
  auto const history = learning::Trainer<Cpu>{{.epochs = 2, .batch_size = 16, .csv = folder.file("t.csv"), .svg = folder.file("t.svg"), .progress = log}}.fit(
      net, samples, samples, loss, adam, learning::accuracy);
  std::fclose(log);
  std::string const lines = read(folder.file("log"));
  char first[80];
  std::snprintf(first, sizeof first, "epoch 1/2  loss %.4f  validation loss %.4f  accuracy %.4f  ", history.epochs[0].loss, history.epochs[0].validation_loss, history.epochs[0].metric);
  CHECK(lines.substr(0, std::string(first).size()) == first);
  CHECK(lines.find("\nepoch 2/2  loss ") != std::string::npos);
  CHECK(lines.find('\r') == std::string::npos);  // no terminal
  std::string const table = read(folder.file("t.csv"));
  CHECK(table.substr(0, 74) == "epoch,loss,validation_loss,accuracy,learning_rate,gradient_norm,seconds,sa");
  CHECK(table == history.csv());
  std::string const picture = read(folder.file("t.svg"));
  CHECK(picture.substr(0, 4) == "<svg");
  CHECK(picture.substr(picture.size() - 7) == "</svg>\n");
  CHECK(picture == history.svg());
  char const* const before = std::setlocale(LC_ALL, nullptr);
  std::string const kept = before ? before : "C";
  std::setlocale(LC_ALL, "de_DE.UTF-8");
  CHECK(table == history.csv());
  CHECK(picture == history.svg());
  std::setlocale(LC_ALL, kept.c_str());
}

TEST_CASE("a table leaves out what was not measured") {
  double const none = std::numeric_limits<double>::quiet_NaN();
  learning::History history;
  history.metric_name = "error";
  history.epochs = {{1, 0.5, none, none, 0.001, none, 0.25, 100}, {2, 0.25, 0.75, 0.125, 0.0005, 2, 0.5, 100}};
  CHECK(history.csv() ==
        "epoch,loss,validation_loss,error,learning_rate,gradient_norm,seconds,samples_per_second\n"
        "1,0.5,,,0.001,,0.250,400\n"
        "2,0.25,0.75,0.125,0.0005,2,0.500,200\n");
  history.metric_name = "top-1, \"strict\"";
  CHECK(history.csv().rfind("epoch,loss,validation_loss,\"top-1, \"\"strict\"\"\",learning_rate,", 0) == 0);
}

TEST_CASE("a loss that has become NaN is written as nan, also after a stop") {
  Points const points;
  data::TensorDataset const samples{points.x, points.y};
  Folder const folder;
  auto const lost = [](auto const& scores, auto const& labels) { return cross_entropy(scores, labels) * std::numeric_limits<float>::quiet_NaN(); };
  auto const unknown = [](auto const& scores, auto const&) { return mean(scores) * std::numeric_limits<float>::quiet_NaN(); };
  manual_seed(1);
  Net<float, Cpu> net;
  std::FILE* const log = std::fopen(folder.file("log").c_str(), "w");
  REQUIRE(log != nullptr);
  for (int64_t epochs : {1, 2}) {
    learning::Trainer<Cpu>{{.epochs = epochs, .clip_norm = 1, .checkpoint = folder.file("run.safetensors"), .resume = true, .csv = folder.file("t.csv"), .progress = log}}.fit(
        net, samples, samples, lost, adam, unknown);
  }
  std::fclose(log);
  std::string const table = read(folder.file("t.csv"));
  CHECK(table.find("\n1,nan,nan,nan,0.02,nan,") != std::string::npos);
  CHECK(table.find("\n2,nan,nan,nan,0.02,nan,") != std::string::npos);
  CHECK(read(folder.file("log")).find("epoch 1/1  loss nan  validation loss nan  metric nan  ") == 0);
}

TEST_CASE("learning curves that are almost level, or of any size, make a picture") {
  double const none = std::numeric_limits<double>::quiet_NaN(), largest = std::numeric_limits<double>::max();
  double const pairs[][2] = {{0.3, 0x1.3333333333334p-2}, {0.5, 0x1.0000000000001p-1}, {0, 5e-324}, {1e-310, 3e-310}, {-largest, largest}, {1e299, -1e299}, {0, 0}, {-0.3, -0.3}};
  for (auto const& pair : pairs) {
    learning::History history;
    history.epochs = {{1, pair[0], none, none, 0.1, none, 1, 10}, {2, pair[1], none, none, 0.1, none, 1, 10}};
    std::string const picture = history.svg();
    CAPTURE(pair[0]);
    CHECK(picture.size() < 4000);
    CHECK(picture.find("nan") == std::string::npos);
    CHECK(picture.find("inf") == std::string::npos);
  }
}

TEST_CASE("bad options, a checkpoint of something else") {
  using situ_test::thrown;
  auto const with = [](learning::TrainerOptions options) { return [options] { learning::Trainer<Cpu> trainer{options}; }; };
  CHECK(thrown<Error>(with({.batch_size = 0}), "Trainer: batch_size = 0: a batch has at least one sample") == "");
  CHECK(thrown<Error>(with({.clip_norm = -1}), "Trainer: clip_norm = -1: it cannot be negative") == "");
  CHECK(thrown<Error>(with({.min_delta = std::numeric_limits<double>::quiet_NaN()}), "Trainer: min_delta = nan: it cannot be negative") == "");
  CHECK(thrown<Error>(with({.resume = true}), "Trainer: resume = true: name the checkpoint to go on from") == "");
  CHECK(thrown<DeviceUnavailable>([] { learning::Trainer<Cuda<63>>{}.device(); }, "Trainer: none of the devices of its list is available here; add Cpu to the list") == "");

  Points const points;
  data::TensorDataset const samples{points.x, points.y};
  Folder const folder;
  Net<float, Cpu> net;
  io::save_safetensors(folder.file("run.safetensors"), net);
  Net<float, Cpu> const before = clone(net);
  learning::Trainer<Cpu> const trainer{{.checkpoint = folder.file("run.safetensors"), .resume = true, .progress = nullptr}};
  CHECK(thrown<IoError>([&] { trainer.fit(net, samples, learning::none, loss, adam); },
                        "Trainer: " + folder.file("run.safetensors") + ": holds no training run: a checkpoint that a Trainer has written is needed") == "");
  CHECK(same_bits(net, before));

  // The best epoch of a file that was changed.
  learning::Trainer<Cpu>{{.epochs = 1, .checkpoint = folder.file("run.safetensors"), .progress = nullptr}}.fit(net, samples, learning::none, loss, adam);
  Net<float, Cpu> const trained = clone(net);
  {
    std::fstream file(folder.file("run.safetensors"), std::ios::in | std::ios::out | std::ios::binary);
    std::string const head = [&] {
      std::string bytes(4096, ' ');
      file.read(bytes.data(), 4096);
      file.clear();
      return bytes;
    }();
    std::size_t const at = head.find("\"best_epoch\":\"1\"");
    REQUIRE(at != std::string::npos);
    file.seekp(static_cast<std::streamoff>(at) + 14);
    file.put('9');
  }
  CHECK(thrown<IoError>([&] { trainer.fit(net, samples, learning::none, loss, adam); },
                        "Trainer: " + folder.file("run.safetensors") + ": holds no training run: its best epoch is number 9 of 1") == "");
  CHECK(same_bits(net, trained));
  data::TensorDataset const no_samples{points.x.slice(0, 0, 0), points.y.slice(0, 0, 0)};
  CHECK(thrown<ShapeError>([&] { learning::Trainer<Cpu>{{.progress = nullptr}}.fit(net, no_samples, learning::none, loss, adam); },
                           "Trainer: the training data has no batches: 0 samples, in batches of 64; give some samples") == "");
  CHECK(same_bits(net, trained));

  // Before the first step, not after the first epoch.
  for (auto const& options : {learning::TrainerOptions{.checkpoint = "no_such_folder/x", .progress = nullptr}, learning::TrainerOptions{.csv = "no_such_folder/x", .progress = nullptr},
                              learning::TrainerOptions{.svg = "no_such_folder/x", .progress = nullptr}}) {
    CHECK(thrown<IoError>([&] { learning::Trainer<Cpu>{options}.fit(net, samples, learning::none, loss, adam); },
                          "Trainer: no_such_folder/x: cannot be written: No such file or directory; a writable folder is needed") == "");
    CHECK(same_bits(net, trained));
  }
}

TEST_CASE("on a terminal a bar is redrawn in its line, and each epoch leaves one line") {
  int const master = ::posix_openpt(O_RDWR | O_NOCTTY);
  if (master < 0 || ::grantpt(master) != 0 || ::unlockpt(master) != 0) return;  // a system without pseudo terminals
  std::FILE* const terminal = std::fopen(::ptsname(master), "w");
  REQUIRE(terminal != nullptr);
  Points const points;
  data::TensorDataset const samples{points.x, points.y};
  Net<float, Cpu> net;
  learning::Trainer<Cpu>{{.epochs = 2, .batch_size = 16, .progress = terminal}}.fit(net, samples, samples, loss, adam, learning::accuracy);
  detail::Progress(terminal, 10).step(3, 5, 10, 0.25, 1234);
  std::fflush(terminal);
  std::string shown(65536, '\0');
  ::fcntl(master, F_SETFL, O_NONBLOCK);
  std::size_t size = 0;
  for (ssize_t got = 0; (got = ::read(master, shown.data() + size, shown.size() - size)) > 0;) size += static_cast<std::size_t>(got);
  shown.resize(size);
  std::fclose(terminal);
  ::close(master);

  CHECK(shown.find("\repoch  3/10 [===============               ] loss 0.25  1.23e+03 samples/s\033[K") != std::string::npos);
  // What a terminal shows in the end: \r goes back, \033[K clears the rest of the line.
  std::vector<std::string> lines(1);
  std::size_t at = 0;
  bool bar = false;
  for (std::size_t k = 0; k < shown.size(); ++k) {
    if (shown[k] == '\r') at = 0;
    else if (shown[k] == '\n') lines.emplace_back(), at = 0;
    else if (shown.compare(k, 3, "\033[K") == 0) lines.back().resize(at), k += 2;
    else {
      if (lines.back().size() <= at) lines.back().resize(at + 1, ' ');
      lines.back()[at++] = shown[k];
      bar = bar || shown[k] == '[';
    }
  }
  CHECK(bar);
  REQUIRE(lines.size() == 3);
  for (std::size_t k = 0; k < 2; ++k) {
    CAPTURE(lines[k]);
    CHECK(lines[k].rfind(k == 0 ? "epoch 1/2  loss " : "epoch 2/2  loss ", 0) == 0);
    CHECK(lines[k].find("  validation loss ") != std::string::npos);
    CHECK(lines[k].find("  accuracy ") != std::string::npos);
    CHECK(lines[k].find('[') == std::string::npos);  // nothing of the bar is left over
    CHECK(lines[k].substr(lines[k].size() - 10) == " samples/s");
  }
}

TEST_CASE_TEMPLATE("the first device of the list that is there is chosen when the program runs", First, Emulated<0>, Emulated<1>) {
  learning::Trainer<First, Cpu> const trainer{{.epochs = 2, .batch_size = 16, .workers = 2, .progress = nullptr}};
  CHECK(to_string(trainer.device()) == to_string(AnyDevice(First{})));
  Points const points;
  data::TensorDataset const samples{points.x, points.y};
  manual_seed(1);
  Net<float, Cpu> net;
  auto const history = trainer.fit(net, samples, learning::none, loss, adam);
  CHECK(history.epochs.back().loss < history.epochs.front().loss);
}
