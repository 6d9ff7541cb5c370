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

#include <situ/parallel/mpi.hpp>
#include <situ/tensor/tensor.hpp>

#if defined(SITU_WITH_MPI)

#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include <situ/device/stream.hpp>
#include <situ/parallel/cuda/nccl.hpp>
#include <situ/tensor/factories.hpp>

#endif

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

class Work;

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

template <class D>
inline constexpr bool is_cuda = std::is_same_v<typename device_traits<D>::kernels, cuda_kernels>;
/// Whether collectives take the elements where they are. Those of other devices go through host memory.
template <class D>
inline constexpr bool is_in_place = is_immediate<D> || is_cuda<D> || emulated::ordinal_of<D> >= 0;

/// The channel of a device, with its stream.
template <class D>
Channel& channel_on(Channels& channels) {
  return channel_of(channels, place_of<D>, [] {
    if constexpr (asynchronous<D>) return std::static_pointer_cast<void>(std::make_shared<Stream<D>>());
    else return std::shared_ptr<void>();
  });
}
template <class D>
Stream<D> const& stream_of(Channel const& channel) {
  return *static_cast<Stream<D> const*>(channel.stream.get());
}

// ---- the collectives, on dense elements --------------------------------------------------------------------------------------------

template <class T>
struct AllReduce {
  static constexpr char const* name = "all_reduce";
  T* data;
  int64_t count;
  distributed::reduce_op op;
  void mpi(MPI_Comm comm) const {
    in_pieces(count, [&](int64_t first, int n) { check(name, MPI_Allreduce(MPI_IN_PLACE, data + first, n, type_of<T>(), operation_of<T>(op), comm)); });
  }
};
template <class T>
struct Broadcast {
  static constexpr char const* name = "broadcast";
  T* data;
  int64_t count;
  int root;
  void mpi(MPI_Comm comm) const {
    in_pieces(count, [&](int64_t first, int n) { check(name, MPI_Bcast(data + first, n, type_of<T>(), root, comm)); });
  }
};
/// `count` elements of each process.
template <class T>
struct AllGather {
  static constexpr char const* name = "all_gather";
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
};
/// `count` elements for each process.
template <class T>
struct ReduceScatter {
  static constexpr char const* name = "reduce_scatter";
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
};

/// Runs collectives on a GPU's stream; there with NCCL alone.
template <class D>
struct Nccl;
#if defined(SITU_WITH_CUDA) && defined(SITU_WITH_NCCL)
template <class T>
int enqueue_nccl(AllReduce<T> const& c, cuda::NcclFunctions const& f, void* comm, cudaStream_t stream) {
  return f.all_reduce(c.data, c.data, static_cast<std::size_t>(c.count), cuda::nccl_type<T>, cuda::nccl_operation<T>(c.op), comm, stream);
}
template <class T>
int enqueue_nccl(Broadcast<T> const& c, cuda::NcclFunctions const& f, void* comm, cudaStream_t stream) {
  return f.broadcast(c.data, c.data, static_cast<std::size_t>(c.count) * sizeof(T), cuda::nccl_bytes, c.root, comm, stream);
}
template <class T>
int enqueue_nccl(AllGather<T> const& c, cuda::NcclFunctions const& f, void* comm, cudaStream_t stream) {
  return f.all_gather(c.from, c.to, static_cast<std::size_t>(c.count) * sizeof(T), cuda::nccl_bytes, comm, stream);
}
template <class T>
int enqueue_nccl(ReduceScatter<T> const& c, cuda::NcclFunctions const& f, void* comm, cudaStream_t stream) {
  return f.reduce_scatter(c.from, c.to, static_cast<std::size_t>(c.count), cuda::nccl_type<T>, cuda::nccl_operation<T>(c.op), comm, stream);
}
template <int N>
struct Nccl<Cuda<N>> {
  template <class F>
  static void run(Channel const& channel, F const& prepare) {
    void* const comm = cuda::nccl_communicator(N, channel.comm);
    Stream<Cuda<N>> const& stream = stream_of<Cuda<N>>(channel);
    StreamGuard const guard{stream};
    auto const collective = prepare();
    cuda::DeviceGuard const device(N);
    cuda::check_nccl(N, enqueue_nccl(collective, cuda::nccl_state().f, comm, stream.native()), collective.name);
  }
};
#endif
template <class D>
concept has_collectives = !is_cuda<D> || requires { sizeof(Nccl<D>); };

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
/// Runs the collective that `prepare` gives in the order of D. prepare takes the elements' pointers, by which that order is noted. GPUs have one channel, whoever asks: NCCL's
/// communicators must not run beside each other.
template <class D, class F>
void run_collective(Channels& channels, F const& prepare) {
  Channel& channel = channel_on<D>(is_cuda<D> ? process().own : channels);
  if constexpr (is_immediate<D>) {
    drain(channel);
    prepare().mpi(channel.comm);
  } else if constexpr (is_cuda<D>) {
    Nccl<D>::run(channel, prepare);
  } else {
    Stream<D> const& stream = stream_of<D>(channel);
    StreamGuard const guard{stream};
    enqueue(stream, [collective = prepare(), comm = channel.comm, pending = Pending()] {
      OpenMemory const memory(D::ordinal);
      collective.mpi(comm);
    });
  }
}

/// Whether X is a Tensor that is not const.
template <class X>
inline constexpr bool is_written = false;
template <class T, class D>
inline constexpr bool is_written<Tensor<T, D>> = true;

/// The elements, which are about to be written.
template <class T, class D>
T* written(Tensor<T, D>& x, char const* who) {
  T* const data = x.data();
  if (StorageHead* const head = x.body() ? x.body()->storage.head() : nullptr) head->note_write(who);
  return data;
}

/// What a broadcast reads or writes: nobody writes to that of the root.
template <class T, class D>
T* received(Tensor<T, D>& x, int root) {
  return root == started_process().rank ? const_cast<T*>(std::as_const(x).data()) : written(x, "broadcast");
}

template <class T, class D>
void check_reduction(distributed::reduce_op op, char const* who) {
  static_assert(!(is_cuda<D> && std::is_same_v<T, int16_t>), "situ::distributed: NCCL reduces no 16-bit integers; cast them to int32_t first");
  if (!floating<T> && op == distributed::reduce_op::avg) fail<TypeError>(who, ": an average of ", dtype_name<T>(), " was asked for; only floating-point elements have one: use to or cast first");
}
/// Averages are sums of elements that are divided first, but on GPUs. What runs on the host comes first.
template <class T, class D>
void divide(Tensor<T, D>& x, distributed::reduce_op op) {
  if constexpr (floating<T> && !is_cuda<D>) {
    if (op == distributed::reduce_op::avg) x *= 1.0 / started_process().size;
  }
}
/// What host memory holds is known behind what all_reduce_async has begun.
template <class D>
void settle_host() {
  if constexpr (is_immediate<D>) drain(channel_on<D>(process().own));
}
inline void check_root(int root, char const* who) {
  if (root < 0 || root >= started_process().size) fail<IndexError>(who, ": process ", root, " was asked for; there are ", started_process().size, ", numbered from 0 on");
}

/// f(x) in place, for x of any layout and device: on a dense copy that is written back, where it has to be.
template <class T, class D, class F>
void in_place(Tensor<T, D>& x, F const& f) {
  if (x.size() == 0) return;
  settle_host<D>();
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
  AllReduceJob(Tensor<T, D> const& elements, distributed::reduce_op op, Channel const& channel)
      : x(elements), collective{written(x, "all_reduce_async"), x.size(), op}, comm(channel.comm) {}
  void run() override {
    if constexpr (floating<T>) {
      using C = compute_t<T>;
      C const share = static_cast<C>(1.0 / process().size);
      for (int64_t k = 0; collective.op == distributed::reduce_op::avg && k < collective.count; ++k) collective.data[k] = static_cast<T>(static_cast<C>(collective.data[k]) * share);
    }
    collective.mpi(comm);
  }
};
/// Begins a sum, or what op says, of a dense x.
template <class T, class D>
distributed::Work begin_all_reduce(Channels& channels, Tensor<T, D>& x, distributed::reduce_op op) {
  if (x.size() == 0) return {};
  if constexpr (is_immediate<D>) {
    Channel& channel = channel_on<D>(channels);
    auto* const job = new AllReduceJob<T, D>(x, op, channel);
    try {
      enqueue_job(channel, job);
    } catch (...) {
      delete job;
      throw;
    }
    return distributed::Work(job);
  } else {
    divide(x, op);
    run_collective<D>(channels, [&] { return AllReduce<T>{written(x, "all_reduce_async"), x.size(), op}; });
    return {};
  }
}

}  // namespace detail::mpi

namespace error {
template <class X>
struct collectives_take_Tensors_that_are_not_const__use_value_of_a_Variable_and_give_expressions_and_numbers_a_name {};
}  // namespace error

namespace distributed {
inline namespace SITU_ABI_MPI {

/// Waits until all processes have come here.
inline void barrier() {
  detail::mpi::Channel& channel = detail::mpi::channel_on<Cpu>(detail::mpi::process().own);
  detail::mpi::drain(channel);
  detail::mpi::check("barrier", MPI_Barrier(channel.comm));
}

}  // namespace SITU_ABI_MPI

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
    detail::mpi::run_collective<On>(detail::mpi::process().own, [&] { return detail::mpi::AllReduce<T>{detail::mpi::written(dense, "all_reduce"), dense.size(), op}; });
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
  if constexpr (detail::mpi::is_in_place<D>) return detail::mpi::begin_all_reduce(detail::mpi::process().own, x, op);
  else return all_reduce(x, op), Work();
}
template <element T, device D>
  requires detail::mpi::has_collectives<D>
[[nodiscard]] Work all_reduce_async(Tensor<T, D>&& view, reduce_op op = reduce_op::sum) {
  return all_reduce_async(view, op);
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
    detail::mpi::run_collective<device_of<U>>(detail::mpi::process().own, [&] { return detail::mpi::Broadcast<T>{detail::mpi::received(dense, root), dense.size(), root}; });
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
  detail::mpi::settle_host<D>();
  Tensor<T, D> const values(x);
  if constexpr (!detail::mpi::is_in_place<D>) {
    return all_gather(values.to(Cpu{})).to(D{});
  } else {
    Shape shape = values.rank() > 0 ? values.shape() : Shape{1};
    shape[0] *= world_size();
    Tensor<T, D> const dense = values.contiguous();
    Tensor<T, D> result = empty<T>(shape, D{});
    if (result.size() > 0) {
      detail::mpi::run_collective<D>(detail::mpi::process().own, [&] { return detail::mpi::AllGather<T>{dense.data(), result.data(), dense.size()}; });
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
  detail::mpi::settle_host<D>();
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
      detail::mpi::run_collective<D>(detail::mpi::process().own, [&] { return detail::mpi::ReduceScatter<T>{std::as_const(dense).data(), result.data(), result.size(), op}; });
    }
    return result;
  }
}

#define SITU_NEEDS_NCCL(NAME)                                                                                                                             \
  template <class E, class... Xs, class Error = error::collectives_on_Cuda_need_NCCL__define_SITU_WITH_NCCL<device_of<std::remove_cvref_t<E>>>>           \
    requires(expression<std::remove_cvref_t<E>> && !detail::mpi::has_collectives<device_of<std::remove_cvref_t<E>>>)                                      \
  int NAME(E&&, Xs const&...) = delete;
SITU_NEEDS_NCCL(all_reduce)
SITU_NEEDS_NCCL(all_reduce_async)
SITU_NEEDS_NCCL(broadcast)
SITU_NEEDS_NCCL(all_gather)
SITU_NEEDS_NCCL(reduce_scatter)
#undef SITU_NEEDS_NCCL

#define SITU_WRITES(NAME)                                                                                                                                 \
  template <class X, class... Xs,                                                                                                                         \
            class Error = error::collectives_take_Tensors_that_are_not_const__use_value_of_a_Variable_and_give_expressions_and_numbers_a_name<std::remove_cvref_t<X>>> \
    requires(!detail::mpi::is_written<std::remove_reference_t<X>>)                                                                                        \
  int NAME(X&&, Xs const&...) = delete;
SITU_WRITES(all_reduce)
SITU_WRITES(all_reduce_async)
SITU_WRITES(broadcast)
#undef SITU_WRITES

}  // namespace distributed

#endif

}  // namespace situ::inline SITU_ABI
