/// A training run but for its steps: its history, the best network so far, and everything that it needs to go on, as one safetensors file.
///
///     model.*  optimizer.*  schedule.*  scaler.*     their states
///     best.*                                         the network of the best epoch, where it is kept
///     history  generator                             what was reached; seed and calls of the default generator
#pragma once

#include <cstdlib>

#include <situ/io/safetensors.hpp>
#include <situ/ops/random.hpp>
#include <situ/train/history.hpp>
#include <situ/train/options.hpp>
#include <situ/train/progress.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// All of it that depends on no type of a network: compiled once, for size.
class TrainingRun {
 public:
  using Tensors = std::vector<io::NamedTensor>;

  learning::History history;

  /// `writes`: whether it shows progress and writes files, which of several processes one does.
  explicit TrainingRun(learning::TrainerOptions const& options, bool writes = true) : options_(options), progress_(writes ? options.progress : nullptr, options.epochs), writes_(writes) {}
  TrainingRun(TrainingRun const&) = delete;
  TrainingRun& operator=(TrainingRun const&) = delete;

  /// Where the states are. `home`: the network that was given, where another one is trained; else empty.
  /// Throws    IoError when there is a checkpoint to go on from that is of something else, and for files that cannot be written; nothing is changed then.
  [[gnu::cold]] void begin(Tensors model, Tensors home, void const* others, void (*add_others)(void const*, Tensors&)) {
    for (std::string const* each : {&options_.checkpoint, &options_.csv, &options_.svg}) {
      if (writes_ && !each->empty()) OutputFile const would_be_written({"Trainer", each->c_str()});  // said now rather than after an epoch
    }
    model_.swap(model), home_.swap(home);
    others_ = others, add_others_ = add_others;
    if (options_.restore_best) {
      for (io::NamedTensor const& each : model_) best_.push_back(each.fresh(message({"best.", each.name().c_str() + 6})));
      copy_tensors(model_, best_);
    }
    if (!options_.resume || ::access(options_.checkpoint.c_str(), F_OK) != 0) return;
    load();
    bring_home();
  }
  /// The number of the next epoch; 0 where the run ends.
  int64_t next_epoch() const {
    auto const done = static_cast<int64_t>(history.epochs.size());
    return done < options_.epochs && !history.stopped_early ? done + 1 : 0;
  }
  bool wants_step() { return progress_.wants_step(); }
  Progress& progress() { return progress_; }

  [[gnu::cold]] void end_epoch(learning::Epoch const& epoch) {
    history.epochs.push_back(learning::Epoch(epoch));
    if (is_better(epoch)) {
      history.best_epoch = epoch.number;
      copy_tensors(model_, best_);
    }
    look_at_patience();
    bring_home();
    progress_.epoch(epoch, history);
    if (!writes_) return;
    if (!options_.checkpoint.empty()) save();
    if (!options_.csv.empty()) history.save_csv(options_.csv);
    if (!options_.svg.empty()) history.save_svg(options_.svg);
  }
  [[gnu::cold]] void end() {
    if (history.stopped_early) progress_.line(message({"stopped: no better validation loss since epoch ", history.best_epoch}));
    if (!options_.restore_best || history.best_epoch == 0) return;
    copy_tensors(best_, model_);
    bring_home();
  }

 private:
  static constexpr int64_t columns = 9;

  [[gnu::cold]] static void copy_tensors(Tensors const& from, Tensors const& to) {
    for (std::size_t k = 0; k < from.size() && k < to.size(); ++k) copy_elements(from[k], to[k], "Trainer");
  }
  void bring_home() const { copy_tensors(model_, home_); }

  void look_at_patience() {
    history.stopped_early = options_.patience > 0 && static_cast<int64_t>(history.epochs.size()) - history.best_epoch >= options_.patience;
  }
  [[gnu::cold]] bool is_better(learning::Epoch const& epoch) const {
    if (history.best_epoch == 0) return true;
    learning::Epoch const& earlier = history.epochs[static_cast<std::size_t>(history.best_epoch - 1)];
    double const now = epoch.judged(), best = epoch.validated ? earlier.validation_loss : earlier.judged();
    return now < best - options_.min_delta || (math::isnan(best) && !math::isnan(now));
  }

  [[gnu::cold]] void save() const {
    Generator const& random = default_generator();
    auto const table = Tensor<double>::uninitialized({static_cast<int64_t>(history.epochs.size()), columns}, "Trainer");
    double* at = Tensor<double>(table).data();
    for (learning::Epoch const& e : history.epochs) {
      double const row[] = {static_cast<double>(e.number), e.loss, e.validation_loss, e.metric, e.learning_rate, e.gradient_norm, e.seconds, static_cast<double>(e.samples),
                            static_cast<double>(e.validated + 2 * e.has_metric + 4 * e.has_gradient_norm)};
      std::memcpy(at, row, sizeof row);
      at += columns;
    }
    auto const generator = Tensor<int64_t>::uninitialized({2}, "Trainer");
    int64_t* const drawn = Tensor<int64_t>(generator).data();
    drawn[0] = static_cast<int64_t>(random.seed()), drawn[1] = static_cast<int64_t>(random.calls());
    io::Metadata::value_type const about[] = {
        {"format", "situ training run"}, {"best_epoch", message({history.best_epoch})}};
    save_tensors(options_.checkpoint, parts(table, generator), io::Metadata(about, about + 2));
  }
  [[gnu::cold]] void load() {
    SafetensorsFile const file("Trainer", options_.checkpoint);
    SafetensorsEntry const* const entry = file.header.find("history");
    if (!entry || !entry->is_own_type() || entry->dtype() != dtype::float64 || entry->axes != 2 || entry->shape[1] != columns) {
      file.context.fail("holds no training run: a checkpoint that a Trainer has written is needed");
    }
    for (auto const& pair : file.header.metadata) {
      if (pair.first == "best_epoch") history.best_epoch = std::atoll(pair.second.data());
    }
    if (history.best_epoch < 0 || history.best_epoch > entry->shape[0]) {
      file.context.fail(message({"holds no training run: its best epoch is number ", history.best_epoch, " of ", entry->shape[0]}));
    }
    auto const table = Tensor<double>::uninitialized(entry->shape, "Trainer");
    auto const generator = Tensor<int64_t>::uninitialized({2}, "Trainer");
    load_tensors(options_.checkpoint, parts(table, generator), {});
    default_generator().restore(static_cast<uint64_t>(generator.data()[0]), static_cast<uint64_t>(generator.data()[1]));
    double const* at = table.data();
    for (int64_t k = 0; k < entry->shape[0]; ++k, at += columns) {
      auto const measured = convert_scalar<int>(at[8]);
      history.epochs.push_back({convert_scalar<int64_t>(at[0]), at[1], at[2], at[3], at[4], at[5], at[6], convert_scalar<int64_t>(at[7]), (measured & 1) != 0, (measured & 2) != 0,
                                (measured & 4) != 0});
    }
    look_at_patience();  // that of these options
  }
  /// Handles: what is loaded through them is loaded into the parts.
  [[gnu::cold]] Tensors parts(Tensor<double> const& table, Tensor<int64_t> const& generator) const {
    Tensors all;
    for (io::NamedTensor const& each : model_) all.push_back(io::NamedTensor(each));
    for (io::NamedTensor const& each : best_) all.push_back(io::NamedTensor(each));
    add_others_(others_, all);
    all.push_back({"history", table});
    all.push_back({"generator", generator});
    return all;
  }

  learning::TrainerOptions const& options_;
  Progress progress_;
  bool writes_;
  Tensors model_, home_, best_;
  void const* others_ = nullptr;
  void (*add_others_)(void const*, Tensors&) = nullptr;
};

}  // namespace detail
}  // namespace situ::inline SITU_ABI
