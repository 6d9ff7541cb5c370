/// What a Trainer is told.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include <situ/io/detail/file.hpp>

namespace situ::inline SITU_ABI {
namespace learning {

struct TrainerOptions {
  int64_t epochs = 10;
  int64_t batch_size = 64;
  bool shuffle = true;        ///< the training part, anew in each epoch
  uint64_t seed = 0;          ///< of the shuffling
  bool drop_last = false;
  int workers = 1;            ///< threads that prepare batches; 0: none
  double clip_norm = 0;       ///< gradients are scaled down to this norm; 0: they are not
  double clip_value = 0;      ///< gradients are cut at ± this; 0: they are not
  int64_t accumulate = 1;     ///< batches whose gradients make one step: the mean of theirs
  bool schedule_steps = false;///< the schedule moves after each step rather than after each epoch
  int64_t patience = 0;       ///< epochs without a better validation loss after which training stops; 0: it does not
  double min_delta = 0;       ///< what counts as better: lower by more than this
  bool restore_best = false;  ///< in the end the network is that of the best epoch
  std::string checkpoint = {};///< a safetensors file with everything that a run needs to go on, written after each epoch
  bool resume = false;        ///< goes on from the checkpoint where there is one
  std::string csv = {};       ///< the history as a table, written after each epoch
  std::string svg = {};       ///< the learning curves, written after each epoch
  std::FILE* progress = stdout;  ///< null: silent
};

}  // namespace learning

namespace detail {

[[gnu::cold]] inline void need_option(bool good, char const* name, double value, char const* cure) {
  if (!good) fail_with<Error>({"Trainer: ", name, " = ", value, ": ", cure});
}
[[gnu::cold]] inline void check_options(learning::TrainerOptions const& o) {
  auto const number = [](int64_t x) { return static_cast<double>(x); };
  need_option(o.epochs >= 0, "epochs", number(o.epochs), "it cannot be negative");
  need_option(o.batch_size > 0, "batch_size", number(o.batch_size), "a batch has at least one sample");
  need_option(o.clip_norm >= 0, "clip_norm", o.clip_norm, "it cannot be negative");
  need_option(o.clip_value >= 0, "clip_value", o.clip_value, "it cannot be negative");
  need_option(o.accumulate > 0, "accumulate", number(o.accumulate), "a step takes at least one batch");
  need_option(o.patience >= 0, "patience", number(o.patience), "it cannot be negative");
  need_option(o.min_delta >= 0, "min_delta", o.min_delta, "it cannot be negative");
  need_option(o.workers >= 0, "workers", o.workers, "it cannot be negative");
  if (o.resume && o.checkpoint.empty()) fail_with<Error>({"Trainer: resume = true: name the checkpoint to go on from"});
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
