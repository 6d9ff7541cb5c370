/// Graphs of GPUs: what CUDA captures of a stream.
///
/// Memory that is taken while recording comes from the device's pool and belongs to the record until it ends: what is freed while
/// recording is handed out again in the same record, in the order of its one stream. So a graph holds no allocations of CUDA's, and what was
/// made while recording may be read, written and freed like any other memory.
#pragma once

#include <vector>

#include <situ/device/cuda/order.hpp>
#include <situ/device/recorder.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cuda {
inline namespace SITU_ABI_CUDA {

#if defined(SITU_WITH_CUDA)

class GraphRecord final : public GraphRecorder {
 public:
  explicit GraphRecord(int device) : device_(device) {
    reuse = [](StreamRecorder* self, std::size_t bytes) { return static_cast<GraphRecord*>(self)->find_free(bytes); };
    keep = [](StreamRecorder* self, void* memory, std::size_t bytes) { static_cast<GraphRecord*>(self)->blocks_.push_back({memory, bytes, false}); };
    take_back = [](StreamRecorder* self, void* memory) noexcept { return static_cast<GraphRecord*>(self)->make_free(memory); };
  }
  GraphRecord(GraphRecord const&) = delete;
  GraphRecord& operator=(GraphRecord const&) = delete;

  /// `before` is where the thread came from: more memory is taken there.
  void begin(StreamState& stream, StreamHandle const& before) {
    memory_ = before;
    memory_stream = Streams::native(before.state());
    DeviceGuard const guard(device_);
    int& captures = process_state().devices[device_].captures;
    __atomic_fetch_add(&captures, 1, __ATOMIC_ACQ_REL);
    cudaError_t const code = cudaStreamBeginCapture(Streams::native(stream), cudaStreamCaptureModeRelaxed);
    if (code != cudaSuccess) __atomic_fetch_sub(&captures, 1, __ATOMIC_ACQ_REL);
    check(device_, code, "cudaStreamBeginCapture");
    capturing_ = true;
  }
  void end(StreamState& stream) {
    DeviceGuard const guard(device_);
    drop_dead();
    cudaGraph_t graph = nullptr;
    cudaError_t code = end_capture(stream, graph);
    if (code == cudaSuccess && !graph) code = cudaErrorStreamCaptureInvalidated;
    if (code != cudaSuccess) come_after_memory_anyway(stream);
    check(device_, code, "capturing a graph: something that its function does cannot be recorded: cudaStreamEndCapture");
    std::size_t nodes = 0;
    code = cudaGraphGetNodes(graph, nullptr, &nodes);
    if (code == cudaSuccess) code = cudaGraphInstantiate(&executable_, graph, 0);
    (void)cudaGraphDestroy(graph);
    if (code != cudaSuccess) come_after_memory_anyway(stream);
    check(device_, code, "cudaGraphInstantiate of ", nodes, " nodes");
    size_ = static_cast<int64_t>(nodes);
    come_after_memory(stream);
  }
  /// What was captured is forgotten, and the stream can be used again.
  void abandon(StreamState& stream) noexcept {
    if (!capturing_) return;
    cudaGraph_t graph = nullptr;
    (void)end_capture(stream, graph);
    if (graph) (void)cudaGraphDestroy(graph);
    (void)cudaGetLastError();
    come_after_memory_anyway(stream);
  }
  int64_t size() const { return size_; }

  /// CUDA itself lets a replay wait for the one before, on whatever stream that was.
  void replay(StreamState& stream) {
    if (memory_is_there_ && &stream != &memory_.state()) {
      if (memory_is_there_.passed()) memory_is_there_ = {};
      else Streams::wait_for(stream, *memory_is_there_.state());
    }
    DeviceGuard const guard(device_);
    ObservedWork work(device_, Streams::native(stream), LaunchName("gpu::Graph::replay"));
    check(device_, cudaGraphLaunch(executable_, Streams::native(stream)), "cudaGraphLaunch of ", size_, " nodes");
    if (last_ != &stream) last_handle_ = StreamHandle(last_ = &stream);
    work.enqueued();
  }

  /// The graph ends: what it holds is given back behind its last replay.
  void release() noexcept {
    for (Storage const& each : made()) give_up(each.head()->memory);
    forget();
    if (executable_ && cudaGraphExecDestroy(executable_) != cudaSuccess) (void)cudaGetLastError();  // when it has run
    if (!blocks_.empty()) {
      CurrentStream& current = current_streams()[device_];
      void* const native = std::exchange(current.native, last_ ? last_->native : memory_.state().native);
      for (Block const& each : blocks_) Runtime::deallocate(device_, each.memory, each.bytes);
      current.native = native;
    }
    delete this;
  }

 private:
  struct Block {
    void* memory;
    std::size_t bytes;
    bool free;
  };
  ~GraphRecord() = default;

  /// What was made is noted as written on the captured stream: who comes behind that comes behind the allocations, too.
  void come_after_memory(StreamState& stream) {
    if (!took_memory_) return;
    memory_is_there_ = record_moment(memory_.state());
    Streams::wait_for(stream, *memory_is_there_.state());
  }
  /// The same of what was not recorded: what was made lives on, and is used behind its allocation.
  void come_after_memory_anyway(StreamState& stream) noexcept {
    try {
      come_after_memory(stream);
    } catch (...) {
    }
  }
  cudaError_t end_capture(StreamState& stream, cudaGraph_t& graph) noexcept {
    capturing_ = false;
    cudaError_t const code = cudaStreamEndCapture(Streams::native(stream), &graph);
    __atomic_fetch_sub(&process_state().devices[device_].captures, 1, __ATOMIC_ACQ_REL);
    return code;
  }
  void* find_free(std::size_t bytes) {
    drop_dead();
    for (Block& each : blocks_) {
      if (!each.free || each.bytes != bytes) continue;
      each.free = false;
      return each.memory;
    }
    took_memory_ = true;
    return nullptr;
  }
  bool make_free(void* memory) noexcept {
    for (Block& each : blocks_) {
      if (each.memory == memory) return each.free = true;
    }
    return false;
  }
  /// Memory of a storage that lives on: the storage frees it.
  void give_up(void* memory) noexcept {
    for (Block& each : blocks_) {
      if (each.memory != memory) continue;
      each = blocks_.back();
      blocks_.pop_back();
      return;
    }
  }

  int device_;
  bool capturing_ = false, took_memory_ = false;
  cudaGraphExec_t executable_ = nullptr;
  int64_t size_ = 0;
  std::vector<Block> blocks_;
  StreamHandle memory_, last_handle_;
  StreamState* last_ = nullptr;
  Moment memory_is_there_;
};
template <int>
using graph_record_of = GraphRecord;

#else

template <int N>
struct MissingGraph : GraphRecorder {
  static_assert(N < 0, "situ: Cuda_needs_SITU_WITH_CUDA: this file is compiled without CUDA; link the CMake target situ::cuda (or define "
                       "SITU_WITH_CUDA and link cudart), or compile with nvcc");
  explicit MissingGraph(int);
  void begin(StreamState&, StreamHandle const&);
  void end(StreamState&);
  void abandon(StreamState&) noexcept;
  void replay(StreamState&);
  void release() noexcept;
  int64_t size() const;
};
template <int N>
using graph_record_of = MissingGraph<N>;

#endif

}  // namespace SITU_ABI_CUDA
}  // namespace detail::cuda

namespace detail {
template <int N>
struct graph_of<Cuda<N>> {
  using record = cuda::graph_record_of<N>;
};
}  // namespace detail
}  // namespace situ::inline SITU_ABI
