/// Graphs: work that is recorded once and replayed in one go, without the host's time for each operation.
#pragma once

#include <utility>

#include <situ/device/cuda/device.hpp>
#include <situ/device/cuda/graph.hpp>
#include <situ/device/emulated/device.hpp>
#include <situ/device/emulated/graph.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// For its time this thread's work on D is recorded. Ends with the thread back on the stream that it came from.
template <class D, class Record>
class Recording {
 public:
  Recording(Record& record, StreamHandle const& before)
      : record_(record), before_(before), stream_(open_stream(device_traits<D>::stream_driver(), D::ordinal, 0, true)), current_(device_traits<D>::current_stream()) {
    try {
      record.begin(stream_.state(), before_);
    } catch (...) {
      __atomic_store_n(&stream_.state().recorded, false, __ATOMIC_RELEASE);
      throw;
    }
    change_stream(current_, &stream_.state());
    current_.recorder = &record;
  }
  Recording(Recording const&) = delete;
  Recording& operator=(Recording const&) = delete;
  ~Recording() {
    if (!ended_) record_.abandon(stream_.state());
    __atomic_store_n(&stream_.state().recorded, false, __ATOMIC_RELEASE);
    change_stream(current_, &before_.state());
    current_.recorder = nullptr;
  }
  void end() {
    record_.end(stream_.state());
    ended_ = true;
  }

 private:
  Record& record_;
  StreamHandle before_, stream_;
  CurrentStream& current_;
  bool ended_ = false;
};

}  // namespace detail

namespace gpu {

/// The work on device D that a function enqueues, recorded to be replayed.
///
///     Tensor<float, Cuda<0>> x = …, w = …, b = …, y = zeros({64, 10}, Cuda<0>{});
///     gpu::Graph graph{[&] { y.assign(tanh(matmul(x, w)) + b); }};   // enqueues nothing yet
///     x.assign(next);  graph.replay();                               // new numbers, in the same memory
///
/// A replay enqueues all of it on this thread's stream, at the cost of one launch, and reads and writes the memory that the recorded operations
/// named: new inputs are written in place (`x.assign(…)`), results are read where they were written. It is ordered like any
/// operation, on whatever streams its tensors are used.
///
/// The graph holds every tensor that it uses, and all memory that was allocated while recording: a tensor that was made there and lives on
/// has its elements after each replay (and none before the first). What the host computed while recording is recorded as it was: shapes, numbers,
/// keys of random numbers.
///
/// What waits for the device cannot be recorded: item(), cpu(), printing, synchronize(), values that come from the host. It throws (CudaError
/// on a GPU, Error on an emulated device), the graph is then what it was before, and the stream goes on. No storage is reused for a result while
/// recording.
///
/// Device    `Cuda<N>`, `Emulated<N>`. One stream: f changes to no other one.
/// Throws    what f throws; CudaError; Error where this thread records already; OutOfMemory.
/// Threads   a graph is used by one thread at a time.
template <device D = Cuda<0>>
  requires detail::asynchronous<D>
class Graph {
 public:
  using device_type = D;

  /// Holds nothing: replay() throws.
  Graph() = default;
  template <class F>
    requires requires(F& f) { f(); }
  explicit Graph(F&& f) {
    capture(f);
  }
  Graph(Graph&& other) noexcept : record_(std::exchange(other.record_, nullptr)) {}
  Graph& operator=(Graph&& other) noexcept {
    std::swap(record_, other.record_);
    return *this;
  }
  ~Graph() { reset(); }

  /// Records f(), which enqueues nothing; what was recorded before is let go when that has worked.
  template <class F>
    requires requires(F& f) { f(); }
  void capture(F&& f) {
    detail::CurrentStream& current = device_traits<D>::current_stream();
    refuse(current, "capture");
    Graph fresh;
    fresh.record_ = new Record(D::ordinal);
    {
      detail::Recording<D, Record> recording(*fresh.record_, detail::current_stream_of(device_traits<D>::stream_driver(), D::ordinal, current));
      f();
      recording.end();
    }
    std::swap(record_, fresh.record_);
  }

  /// Enqueues what was recorded on this thread's stream.
  void replay() const {
    detail::CurrentStream& current = device_traits<D>::current_stream();
    if (!record_) detail::fail<Error>("gpu::Graph: replay of a graph that holds nothing; capture(f) records what f does");
    refuse(current, "replay");
    device_traits<D>::use_stream();
    record_->template order<D>();
    record_->replay(*current.state);
  }
  void operator()() const { replay(); }

  /// Lets go of what was recorded, and of what that held.
  void reset() noexcept {
    if (record_) std::exchange(record_, nullptr)->release();
  }
  /// How many kernels and copies were recorded.
  int64_t size() const { return record_ ? record_->size() : 0; }
  bool empty() const { return record_ == nullptr; }

 private:
  using Record = typename detail::graph_of<D>::record;

  static void refuse(detail::CurrentStream const& current, char const* what) {
    if (current.recorder) {
      detail::fail<Error>("gpu::Graph: ", what, " on ", device_traits<D>::name(), " while this thread records a graph there; graphs do not nest");
    }
  }

  Record* record_ = nullptr;
};
template <class F>
Graph(F&&) -> Graph<>;

}  // namespace gpu
}  // namespace situ::inline SITU_ABI
