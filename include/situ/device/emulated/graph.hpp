/// Graphs of emulated devices: the jobs that were recorded, run again in their order.
#pragma once

#include <situ/device/emulated/device.hpp>
#include <situ/device/recorder.hpp>

namespace situ::inline SITU_ABI {
namespace detail::emulated {

/// Counted: a replay that has not run yet holds it, too.
class GraphRecord final : public GraphRecorder {
 public:
  explicit GraphRecord(int ordinal) : ordinal_(ordinal) { enqueue = &take; }
  GraphRecord(GraphRecord const&) = delete;
  GraphRecord& operator=(GraphRecord const&) = delete;

  void begin(StreamState&, StreamHandle const&) {}
  void end(StreamState&) { drop_dead(); }
  void abandon(StreamState&) noexcept {}
  int64_t size() const { return size_; }

  /// Enqueued on a stream, behind the last replay. Counted as one launch.
  void replay(StreamState& stream) {
    {
      Lock const lock;
      LaunchName const name("gpu::Graph::replay");
      detail::emulated::begin<situ::emulated::InjectedFault>(ordinal_, "launch", &situ::emulated::counts::launches, &name);
    }
    if (last_) wait_in_stream(stream, *last_.state());
    auto* const job = new ReplayJob{{&run, &end_replay}, this};
    __atomic_fetch_add(&holders_, 1, __ATOMIC_RELAXED);
    {
      Lock const lock;
      queue_of(stream).enqueue(job);
    }
    last_ = detail::record_moment(stream);
    last_stream_ = StreamHandle(&stream);
    if (launches_are_checked()) check_launch(ordinal_);
  }

  /// The graph ends: what it holds is given back behind its last replay.
  void release() noexcept {
    forget();
    {
      Lock const lock;
      Queue& queue = last_ ? queue_of(last_stream_.state()) : state().devices[ordinal_]->stream;
      while (frees_) {
        Job* const job = std::exchange(frees_, frees_->next);
        job->next = nullptr;
        queue.enqueue(job);
      }
    }
    drop(this);
  }

 private:
  struct ReplayJob : Job {
    GraphRecord* record;
  };

  ~GraphRecord() {
    while (first_) {
      Job* const job = std::exchange(first_, first_->next);
      job->end(job);
    }
  }
  static void drop(GraphRecord* record) noexcept {
    if (__atomic_sub_fetch(&record->holders_, 1, __ATOMIC_ACQ_REL) == 0) delete record;
  }
  static void run(Job* job) noexcept {
    for (Job* each = static_cast<ReplayJob*>(job)->record->first_; each; each = each->next) each->run(each);
  }
  static void end_replay(Job* job) noexcept {
    drop(static_cast<ReplayJob*>(job)->record);
    delete static_cast<ReplayJob*>(job);
  }
  static void take(StreamRecorder* recorder, void* taken) {
    auto& self = *static_cast<GraphRecord*>(recorder);
    auto* const job = static_cast<Job*>(taken);
    if (job->frees) {
      job->next = std::exchange(self.frees_, job);
      return;
    }
    (self.last_job_ ? self.last_job_->next : self.first_) = job;
    self.last_job_ = job;
    ++self.size_;
  }

  int ordinal_;
  Job* first_ = nullptr;
  Job* last_job_ = nullptr;
  Job* frees_ = nullptr;  ///< to be run when the graph ends: its memory is its own until then
  int64_t size_ = 0, holders_ = 1;
  Moment last_;
  StreamHandle last_stream_;
};

}  // namespace detail::emulated

namespace detail {
template <int N>
struct graph_of<Emulated<N>> {
  using record = emulated::GraphRecord;
};
}  // namespace detail
}  // namespace situ::inline SITU_ABI
