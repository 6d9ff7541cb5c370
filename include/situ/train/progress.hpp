/// A bar with loss and rate on a terminal, a line for each epoch elsewhere.
#pragma once

#include <time.h>
#include <unistd.h>
#include <cstdio>

#include <situ/train/history.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

inline double seconds_now() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

/// Writes to `out`; nothing at all when it is null.
class Progress {
 public:
  Progress(std::FILE* out, int64_t epochs) : out_(out), epochs_(epochs), terminal_(out != nullptr && ::isatty(::fileno(out)) != 0) {}

  /// Whether a step should be shown now: ten times a second, on a terminal.
  bool wants_step() {
    if (!terminal_) return false;
    double const now = seconds_now();
    if (now - shown_ < .1) return false;
    shown_ = now;
    return true;
  }
  [[gnu::cold]] void step(int64_t epoch, int64_t batch, int64_t batches, double loss, double samples_per_second) {
    char bar[31];
    int const filled = batches > 0 ? static_cast<int>(30 * batch / batches) : 30;
    for (int k = 0; k < 30; ++k) bar[k] = k < filled ? '=' : ' ';
    bar[30] = '\0';
    std::fprintf(out_, "\repoch %*lld/%lld [%s] loss %.4g  %.3g samples/s\033[K", digits(), as_long(epoch), as_long(epochs_), bar, loss, samples_per_second);
    std::fflush(out_);
  }
  [[gnu::cold]] void epoch(learning::Epoch const& e, learning::History const& history) {
    if (out_ == nullptr) return;
    std::fprintf(out_, "%sepoch %*lld/%lld  loss %.4f", terminal_ ? "\r\033[K" : "", digits(), as_long(e.number), as_long(epochs_), e.loss);
    if (e.validated || !math::isnan(e.validation_loss)) std::fprintf(out_, "  validation loss %.4f", e.validation_loss);
    if (e.has_metric || !math::isnan(e.metric)) std::fprintf(out_, "  %s %.4f", history.metric_name.c_str(), e.metric);
    std::fprintf(out_, "  %.3g samples/s\n", e.samples_per_second());
    std::fflush(out_);
  }
  [[gnu::cold]] void line(std::string const& text) {
    if (out_ == nullptr) return;
    std::fprintf(out_, "%s%s\n", terminal_ ? "\r\033[K" : "", text.c_str());
    std::fflush(out_);
  }

 private:
  static long long as_long(int64_t x) { return static_cast<long long>(x); }
  [[gnu::cold]] int digits() const {
    int result = 1;
    for (int64_t n = epochs_; n >= 10; n /= 10) ++result;
    return result;
  }
  std::FILE* out_;
  int64_t epochs_;
  bool terminal_;
  double shown_ = 0;
};

}  // namespace detail
}  // namespace situ::inline SITU_ABI
