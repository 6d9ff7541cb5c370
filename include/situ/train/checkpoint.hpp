/// Everything that a training run needs to go on, as one safetensors file.
///
///     model.*  optimizer.*  schedule.*  scaler.*     their states
///     best.*                                         the network of the best epoch, where it is kept
///     history  generator                             what was reached; seed and calls of the default generator
#pragma once

#include <cstdlib>

#include <situ/io/safetensors.hpp>
#include <situ/nn/move.hpp>
#include <situ/ops/random.hpp>
#include <situ/train/history.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

inline bool file_exists(std::string const& path) { return ::access(path.c_str(), F_OK) == 0; }

/// Writes the parameters and buffers of a network to another of the same type, in place.
template <class M>
void copy_state(M const& from, M& to) {
  no_grad const guard;
  std::vector<void const*> sources;
  for_each_state(from, [&]<class X>(std::string const&, X const& x) { sources.push_back(&x); });
  std::size_t k = 0;
  for_each_state(to, [&]<class X>(std::string const&, X& x) {
    X const& source = *static_cast<X const*>(sources[k++]);
    if constexpr (std::is_same_v<X, nn::Counter>) x.set(source.value());
    else if constexpr (is_parameter<X>) x.value().assign(source.value());
    else Tensor(x).assign(source);
  });
}

/// The parts of a run, whose states stand in one file, each under its name.
template <class Model, class Optimizer, class Schedule, class Scaler>
struct RunState {
  Model& model;
  Model& best;
  Optimizer& optimizer;
  Schedule& schedule;
  Scaler& scaler;
  bool keeps_best;

  static constexpr int64_t columns = 8;

  void save(std::string const& path, train::History const& history) const {
    Generator const& random = default_generator();
    auto table = zeros<double>({static_cast<int64_t>(history.epochs.size()), columns});
    double* at = table.data();
    for (train::Epoch const& e : history.epochs) {
      for (double const x : {static_cast<double>(e.number), e.loss, e.validation_loss, e.metric, e.learning_rate, e.gradient_norm, e.seconds, static_cast<double>(e.samples)}) *at++ = x;
    }
    auto all = parts();
    all.emplace_back("history", table);
    all.emplace_back("generator", Tensor<int64_t>{static_cast<int64_t>(random.seed()), static_cast<int64_t>(random.calls())});
    io::save_safetensors(path, all, {{"format", "situ training run"}, {"best_epoch", std::to_string(history.best_epoch)}, {"stopped_early", history.stopped_early ? "1" : "0"}});
  }
  /// Throws    IoError when the file is of something else, or of a run with another network or optimiser; nothing is changed.
  train::History load(std::string const& path, train::History history) const {
    io::Safetensors const file(path);
    if (!file.contains("history") || file.shape("history").rank() != 2 || file.shape("history")[1] != columns) {
      fail<IoError>("Trainer: ", path, ": holds no training run: a checkpoint that a Trainer has written is needed");
    }
    Tensor<double> table = zeros<double>(file.shape("history"));
    Tensor<int64_t> generator{0, 0};
    auto all = parts();
    all.emplace_back("history", table);
    all.emplace_back("generator", generator);
    io::load_safetensors(path, all);
    default_generator().restore(static_cast<uint64_t>(generator.data()[0]), static_cast<uint64_t>(generator.data()[1]));
    double const* at = table.data();
    for (int64_t k = 0; k < table.size(0); ++k, at += columns) {
      history.epochs.push_back({static_cast<int64_t>(at[0]), at[1], at[2], at[3], at[4], at[5], at[6], static_cast<int64_t>(at[7])});
    }
    if (std::string const* const best_epoch = file.metadata("best_epoch")) history.best_epoch = std::atoll(best_epoch->c_str());
    if (std::string const* const stopped = file.metadata("stopped_early")) history.stopped_early = *stopped == "1";
    return history;
  }

 private:
  /// Handles: what is loaded through them is loaded into the parts.
  std::vector<io::NamedTensor> parts() const {
    std::vector<io::NamedTensor> all;
    auto const add = [&](auto& part, char const* prefix) {
      if constexpr (has_state<std::remove_reference_t<decltype(part)>>) {
        for (auto& each : io::named_state(part, prefix)) all.push_back(std::move(each));
      }
    };
    add(model, "model.");
    if (keeps_best) add(best, "best.");
    add(optimizer, "optimizer.");
    add(schedule, "schedule.");
    add(scaler, "scaler.");
    return all;
  }
};

}  // namespace detail
}  // namespace situ::inline SITU_ABI
