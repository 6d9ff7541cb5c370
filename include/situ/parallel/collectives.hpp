/// Several processes: who they are, and collectives, which all of them call in the same order.
///
///     float loss = …;                                        // mpirun -n 4 ./train
///     Tensor<float> mean{loss};
///     distributed::all_reduce(mean, distributed::reduce_op::avg);
///     if (distributed::rank() == 0) std::cout << mean << "\n";
///
/// On the host MPI carries the elements (SITU_WITH_MPI, any MPI library with MPI_THREAD_MULTIPLE), between GPUs NCCL (SITU_WITH_NCCL as well), which is opened when it is first
/// used. MPI is started by the first call of anything here, and ended with the program; a program that starts it itself asks for MPI_THREAD_MULTIPLE.
///
/// Device    `Cpu`, `Pinned`: done when the call returns, behind what all_reduce_async has begun. `Cuda<N>`, `Emulated<N>`: enqueued on a stream of its own behind what computes the
///           elements; what reads them on the device later comes behind it by itself, and the host does not wait. Devices of the user's own go through host memory.
/// Throws    Error what MPI reports (of a device, from the next synchronisation with it), CudaError what NCCL does. As everywhere in MPI, a process that calls other
///           collectives than the others, or with other shapes or types, or none because it has thrown, makes them wait or fail: let exceptions end the program, which ends all.
#pragma once

#include <cstdlib>
#include <cstring>
#include <string>

#include <situ/device/stream.hpp>
#include <situ/parallel/cuda/nccl.hpp>
#include <situ/parallel/mpi.hpp>
#include <situ/tensor/factories.hpp>
#include <situ/tensor/tensor.hpp>

namespace situ::inline SITU_ABI {

namespace error {
struct several_processes_need_MPI__define_SITU_WITH_MPI_and_link_an_MPI_library {};
template <class Device>
struct collectives_on_Cuda_need_NCCL__define_SITU_WITH_NCCL {};
}  // namespace error

namespace distributed {

#if !defined(SITU_WITH_MPI)

inline namespace SITU_ABI_MPI {
#define SITU_NEEDS_MPI(NAME) \
  template <class... Xs, class Error = error::several_processes_need_MPI__define_SITU_WITH_MPI_and_link_an_MPI_library> \
  int NAME(Xs&&...) = delete;
SITU_NEEDS_MPI(rank)
SITU_NEEDS_MPI(world_size)
SITU_NEEDS_MPI(local_rank)
SITU_NEEDS_MPI(use_own_gpu)
SITU_NEEDS_MPI(barrier)
SITU_NEEDS_MPI(all_reduce)
SITU_NEEDS_MPI(all_reduce_async)
SITU_NEEDS_MPI(broadcast)
SITU_NEEDS_MPI(all_gather)
SITU_NEEDS_MPI(reduce_scatter)
#undef SITU_NEEDS_MPI
}  // namespace SITU_ABI_MPI

#else

inline namespace SITU_ABI_MPI {

/// The number of this process, from 0 on. Throws Error when MPI cannot be started.
inline int rank() { return detail::mpi::started_process().rank; }
/// How many processes there are: 1 where mpirun has not started the program.
inline int world_size() { return detail::mpi::started_process().size; }
/// The number of this process among those of its machine.
inline int local_rank() { return detail::mpi::started_process().local_rank; }

/// Gives each process of a machine a GPU of its own, as its Cuda<0>: that of its local rank. It sets CUDA_VISIBLE_DEVICES (to one of those it names, if it is set), so it is called before
/// anything uses a GPU. A process for which there is none finds no GPU.
inline void use_own_gpu() {
  int left = local_rank();
  char const* list = std::getenv("CUDA_VISIBLE_DEVICES");
  std::string own = std::to_string(left);
  if (list) {
    std::string const all = list;
    std::size_t begin = 0;
    for (; left > 0 && begin != std::string::npos; --left) {
      std::size_t const comma = all.find(',', begin);
      begin = comma == std::string::npos ? comma : comma + 1;
    }
    own = begin == std::string::npos ? std::string("-1") : all.substr(begin, all.find(',', begin) - begin);
  }
  ::setenv("CUDA_VISIBLE_DEVICES", own.c_str(), 1);
}

/// Waits until all processes have come here.
inline void barrier() {
  MPI_Comm const comm = detail::mpi::communicator({});
  detail::mpi::drain();
  detail::mpi::check("barrier", MPI_Barrier(comm));
}

}  // namespace SITU_ABI_MPI

/// A collective that may still run. wait() returns when the host may read the elements, and throws what went wrong; without it the elements must not be touched. On an asynchronous
/// device nothing has to wait: it has nothing to do.
class Work {
 public:
  Work() = default;
  explicit Work(detail::mpi::Job* adopted) : job_(adopted) {}
  Work(Work&& other) noexcept : job_(std::exchange(other.job_, nullptr)) {}
  Work& operator=(Work&& other) noexcept {
    std::swap(job_, other.job_);
    return *this;
  }
  /// What was not waited for goes on.
  ~Work() { detail::mpi::drop(job_); }
  void wait() {
    if (job_) detail::mpi::wait(*job_);
  }

 private:
  detail::mpi::Job* job_ = nullptr;
};

#endif

}  // namespace distributed

#if defined(SITU_WITH_MPI)

namespace detail::mpi {

/// Where collectives of a device are enqueued: one stream for each communicator.
template <class D>
SITU_PROCESS_STATE Stream<D> const& stream_of() {
  static Stream<D> const* const stream = new Stream<D>;  // what runs at the end of the program may need it
  return *stream;
}

// ---- the collectives, on dense elements: by MPI, and by NCCL -----------------------------------------------------------------------

inline namespace SITU_ABI_NCCL {
inline namespace SITU_ABI_CUDA {

template <class D>
inline constexpr bool is_cuda = std::is_same_v<typename device_traits<D>::kernels, cuda_kernels>;
/// Whether collectives take the elements where they are. Those of other devices go through host memory.
template <class D>
inline constexpr bool is_in_place = is_immediate<D> || is_cuda<D> || emulated::ordinal_of<D> >= 0;
#if defined(SITU_WITH_CUDA) && defined(SITU_WITH_NCCL)
#define SITU_NCCL(CALL) \
  int nccl(cuda::NcclFunctions const& f, [[maybe_unused]] void* comm, [[maybe_unused]] cudaStream_t stream) const { return CALL; }
template <class D>
concept has_collectives = true;
#else
#define SITU_NCCL(CALL)
template <class D>
concept has_collectives = !is_cuda<D>;
#endif

template <class T>
struct AllReduce {
  static constexpr char const *name = "all_reduce", *nccl_name = "ncclAllReduce";
  T* data;
  int64_t count;
  distributed::reduce_op op;
  void mpi(MPI_Comm comm) const {
    in_pieces(count, [&](int64_t first, int n) { check(name, MPI_Allreduce(MPI_IN_PLACE, data + first, n, type_of<T>(), operation_of<T>(op), comm)); });
  }
  SITU_NCCL(f.all_reduce(data, data, static_cast<std::size_t>(count), cuda::nccl_type<T>, cuda::nccl_operation<T>(op), comm, stream))
};
template <class T>
struct Broadcast {
  static constexpr char const *name = "broadcast", *nccl_name = "ncclBroadcast";
  T* data;
  int64_t count;
  int root;
  void mpi(MPI_Comm comm) const {
    in_pieces(count, [&](int64_t first, int n) { check(name, MPI_Bcast(data + first, n, type_of<T>(), root, comm)); });
  }
  SITU_NCCL(f.broadcast(data, data, static_cast<std::size_t>(count) * sizeof(T), cuda::nccl_bytes, root, comm, stream))
};
/// `count` elements of each process.
template <class T>
struct AllGather {
  static constexpr char const *name = "all_gather", *nccl_name = "ncclAllGather";
  T const* from;
  T* to;
  int64_t count;
  void mpi(MPI_Comm comm) const {
    if (count <= most_elements) {
      int const n = static_cast<int>(count);
      return check(name, MPI_Allgather(from, n, type_of<T>(), to, n, type_of<T>(), comm));
    }
    std::memcpy(to + process().rank * count, from, static_cast<std::size_t>(count) * sizeof(T));
    for (int r = 0; r < process().size; ++r) Broadcast<T>{to + r * count, count, r}.mpi(comm);
  }
  SITU_NCCL(f.all_gather(from, to, static_cast<std::size_t>(count) * sizeof(T), cuda::nccl_bytes, comm, stream))
};
/// `count` elements for each process.
template <class T>
struct ReduceScatter {
  static constexpr char const *name = "reduce_scatter", *nccl_name = "ncclReduceScatter";
  T const* from;
  T* to;
  int64_t count;
  distributed::reduce_op op;
  void mpi(MPI_Comm comm) const {
    if (count <= most_elements) return check(name, MPI_Reduce_scatter_block(from, to, static_cast<int>(count), type_of<T>(), operation_of<T>(op), comm));
    for (int r = 0; r < process().size; ++r) {
      in_pieces(count, [&](int64_t first, int n) { check(name, MPI_Reduce(from + r * count + first, to + first, n, type_of<T>(), operation_of<T>(op), r, comm)); });
    }
  }
  SITU_NCCL(f.reduce_scatter(from, to, static_cast<std::size_t>(count), cuda::nccl_type<T>, cuda::nccl_operation<T>(op), comm, stream))
};
#undef SITU_NCCL

/// Opens an emulated device's memory to the host functions of a scope.
class OpenMemory {
 public:
  explicit OpenMemory(int ordinal) : ordinal_(ordinal) {
    detail::emulated::Lock const lock;
    detail::emulated::find(ordinal_).pool.open();
  }
  OpenMemory(OpenMemory const&) = delete;
  OpenMemory& operator=(OpenMemory const&) = delete;
  ~OpenMemory() {
    detail::emulated::Lock const lock;
    detail::emulated::find(ordinal_).pool.close();
  }

 private:
  int ordinal_;
};
/// Runs the collective that `prepare` gives in the order of D. prepare takes the elements' pointers, by which that order is noted.
template <class D, class F>
void run_collective(F const& prepare) {
  if constexpr (is_immediate<D>) {
    MPI_Comm const comm = communicator(place_of<D>);
    drain();
    prepare().mpi(comm);
#if defined(SITU_WITH_CUDA) && defined(SITU_WITH_NCCL)
  } else if constexpr (is_cuda<D>) {
    void* const comm = cuda::nccl_communicator(D::ordinal);
    Stream<D> const& stream = stream_of<D>();
    StreamGuard const guard{stream};
    auto const collective = prepare();
    cuda::DeviceGuard const device(D::ordinal);
    cuda::check_nccl(D::ordinal, collective.nccl(cuda::nccl_state().f, comm, stream.native()), collective.nccl_name);
#endif
  } else {
    MPI_Comm const comm = communicator(place_of<D>);
    Stream<D> const& stream = stream_of<D>();
    StreamGuard const guard{stream};
    enqueue(stream, [collective = prepare(), comm, pending = Pending()] {
      OpenMemory const memory(D::ordinal);
      collective.mpi(comm);
    });
  }
}

/// The elements, which are about to be written.
template <class T, class D>
T* written(Tensor<T, D>& x, char const* who) {
  T* const data = x.data();
  if (StorageHead* const head = x.body() ? x.body()->storage.head() : nullptr) head->note_write(who);
  return data;
}

template <class T, class D>
void check_reduction(distributed::reduce_op op, char const* who) {
  static_assert(!(is_cuda<D> && std::is_same_v<T, int16_t>), "situ::distributed: NCCL reduces no 16-bit integers; cast them to int32_t first");
  if (!floating<T> && op == distributed::reduce_op::avg) fail<TypeError>(who, ": an average of ", dtype_name<T>(), " was asked for; only floating-point elements have one: use to or cast first");
}
/// Averages are sums of elements that are divided first, but on GPUs.
template <class T, class D>
void divide(Tensor<T, D>& x, distributed::reduce_op op) {
  if constexpr (floating<T> && !is_cuda<D>) {
    if (op == distributed::reduce_op::avg) x *= 1.0 / started_process().size;
  }
}
inline void check_root(int root, char const* who) {
  if (root < 0 || root >= started_process().size) fail<IndexError>(who, ": process ", root, " was asked for; there are ", started_process().size, ", numbered from 0 on");
}

/// f(x) in place, for x of any layout and device: on a dense copy that is written back, where it has to be.
template <class T, class D, class F>
void in_place(Tensor<T, D>& x, F const& f) {
  if (x.size() == 0) return;
  if constexpr (!is_in_place<D>) {
    Tensor<T, Cpu> host = x.to(Cpu{});
    f(host);
    x.assign(host.to(D{}));
  } else if (!x.is_contiguous()) {
    Tensor<T, D> dense = x.clone();
    f(dense);
    x.assign(dense);
  } else {
    f(x);
  }
}

template <class T, class D>
struct AllReduceJob final : Job {
  Tensor<T, D> x;
  AllReduce<T> collective;
  MPI_Comm comm;
  AllReduceJob(Tensor<T, D> const& elements, distributed::reduce_op op)
      : x(elements), collective{written(x, "all_reduce_async"), x.size(), op}, comm(communicator(place_of<D>)) {}
  void run() override { collective.mpi(comm); }
};

}  // namespace SITU_ABI_CUDA
}  // namespace SITU_ABI_NCCL
}  // namespace detail::mpi

namespace distributed {
inline namespace SITU_ABI_NCCL {
inline namespace SITU_ABI_CUDA {

/// x ← the sums (averages, products, smallest, largest) over all processes of each element, on all of them. In place: through a view, to what it shows.
///
/// Shape     any, the same on all processes. A tensor that is not contiguous is copied, there and back.
/// Dtype     all ten; 16-bit floats are added in float, one process after the other, and rounded each time. An average divides first.
/// Throws    TypeError for an average of integers; see the top of this file.
/// Cost      on the host that of MPI_Allreduce: some microseconds, and 2 (n - 1) / n times the bytes each way of n processes. The same bits on all processes.
template <element T, device D>
  requires detail::mpi::has_collectives<D>
void all_reduce(Tensor<T, D>& x, reduce_op op = reduce_op::sum) {
  detail::mpi::check_reduction<T, D>(op, "all_reduce");
  detail::mpi::in_place(x, [op]<class U>(U& dense) {
    using On = device_of<U>;
    detail::mpi::divide(dense, op);
    detail::mpi::run_collective<On>([&] { return detail::mpi::AllReduce<T>{detail::mpi::written(dense, "all_reduce"), dense.size(), op}; });
  });
}
template <element T, device D>
  requires detail::mpi::has_collectives<D>
void all_reduce(Tensor<T, D>&& view, reduce_op op = reduce_op::sum) {
  all_reduce(view, op);
}

/// The same beside what the program goes on with: of host memory by a thread of its own, until wait(). Collectives of host memory that are called meanwhile come behind it.
///
/// Throws    ShapeError for a tensor that is not contiguous.
/// Example   auto work = distributed::all_reduce_async(gradient);  …  work.wait();
template <element T, device D>
  requires detail::mpi::has_collectives<D>
[[nodiscard]] Work all_reduce_async(Tensor<T, D>& x, reduce_op op = reduce_op::sum) {
  detail::mpi::check_reduction<T, D>(op, "all_reduce_async");
  if (!x.is_contiguous()) detail::fail<ShapeError>("all_reduce_async: a view of shape ", x.shape(), " that is not contiguous was given; give a contiguous() tensor, or use all_reduce");
  if constexpr (is_immediate<D>) {
    if (x.size() == 0) return {};
    detail::mpi::divide(x, op);
    auto* const job = new detail::mpi::AllReduceJob<T, D>(x, op);
    try {
      detail::mpi::enqueue_job(job);
    } catch (...) {
      delete job;
      throw;
    }
    return Work(job);
  } else {
    all_reduce(x, op);
    return {};
  }
}

/// x ← that of process `root`, on all processes. In place: through a view, to what it shows.
///
/// Shape     any, the same on all processes.
/// Dtype     all ten.
/// Throws    IndexError for a root that is no process.
template <element T, device D>
  requires detail::mpi::has_collectives<D>
void broadcast(Tensor<T, D>& x, int root = 0) {
  detail::mpi::check_root(root, "broadcast");
  detail::mpi::in_place(x, [root]<class U>(U& dense) {
    detail::mpi::run_collective<device_of<U>>([&] { return detail::mpi::Broadcast<T>{detail::mpi::written(dense, "broadcast"), dense.size(), root}; });
  });
}
template <element T, device D>
  requires detail::mpi::has_collectives<D>
void broadcast(Tensor<T, D>&& view, int root = 0) {
  broadcast(view, root);
}

/// The tensors of all processes, one behind the other along the first axis, on all of them.
///
/// Shape     [a, …] of n processes gives [n a, …], a number [n]; the same on all processes.
/// Dtype     all ten.
template <expression E>
  requires detail::mpi::has_collectives<device_of<E>>
auto all_gather(E const& x) {
  using T = value_of<E>;
  using D = detail::result_device_t<device_of<E>>;
  Tensor<T, D> const values(x);
  if constexpr (!detail::mpi::is_in_place<D>) {
    return all_gather(values.to(Cpu{})).to(D{});
  } else {
    Shape shape = values.rank() > 0 ? values.shape() : Shape{1};
    shape[0] *= world_size();
    Tensor<T, D> const dense = values.contiguous();
    Tensor<T, D> result = empty<T>(shape, D{});
    if (result.size() > 0) {
      detail::mpi::run_collective<D>([&] { return detail::mpi::AllGather<T>{dense.data(), result.data(), dense.size()}; });
    }
    return result;
  }
}

/// The sums over all processes, of which each gets its part: rows [r a, (r + 1) a) of the sums are process r's.
///
/// Shape     [n a, …] of n processes gives [a, …]; the same on all processes.
/// Dtype     as all_reduce.
/// Throws    ShapeError where the first axis is no multiple of the number of processes; TypeError for an average of integers.
template <expression E>
  requires detail::mpi::has_collectives<device_of<E>>
auto reduce_scatter(E const& x, reduce_op op = reduce_op::sum) {
  using T = value_of<E>;
  using D = detail::result_device_t<device_of<E>>;
  detail::mpi::check_reduction<T, D>(op, "reduce_scatter");
  int const n = world_size();
  if (x.shape().rank() == 0 || x.shape()[0] % n != 0) {
    detail::fail<ShapeError>("reduce_scatter: a tensor of shape ", x.shape(), " was given to ", n, " processes; its first axis is cut into as many equal parts: pad it");
  }
  Tensor<T, D> const values(x);
  if constexpr (!detail::mpi::is_in_place<D>) {
    return reduce_scatter(values.to(Cpu{}), op).to(D{});
  } else {
    Shape shape = values.shape();
    shape[0] /= n;
    Tensor<T, D> dense = op == reduce_op::avg && !detail::mpi::is_cuda<D> ? values.clone() : values.contiguous();
    detail::mpi::divide(dense, op);
    Tensor<T, D> result = empty<T>(shape, D{});
    if (result.size() > 0) {
      detail::mpi::run_collective<D>([&] { return detail::mpi::ReduceScatter<T>{std::as_const(dense).data(), result.data(), result.size(), op}; });
    }
    return result;
  }
}

#define SITU_NEEDS_NCCL(NAME)                                                                                                                             \
  template <class E, class... Xs, class Error = error::collectives_on_Cuda_need_NCCL__define_SITU_WITH_NCCL<device_of<std::remove_cvref_t<E>>>>           \
    requires(expression<std::remove_cvref_t<E>> && !detail::mpi::has_collectives<device_of<std::remove_cvref_t<E>>>)                                      \
  void NAME(E&&, Xs const&...) = delete;
SITU_NEEDS_NCCL(all_reduce)
SITU_NEEDS_NCCL(all_reduce_async)
SITU_NEEDS_NCCL(broadcast)
SITU_NEEDS_NCCL(all_gather)
SITU_NEEDS_NCCL(reduce_scatter)
#undef SITU_NEEDS_NCCL

}  // namespace SITU_ABI_CUDA
}  // namespace SITU_ABI_NCCL
}  // namespace distributed

#endif

}  // namespace situ::inline SITU_ABI
