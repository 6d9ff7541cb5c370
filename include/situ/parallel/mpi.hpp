/// What collectives on host memory are made of: MPI, which is started when it is first needed and ended with the program, and a thread that runs collectives
/// while the program computes.
///
/// Each device has a communicator of its own, made when it is first used: collectives of one device keep their order, and those of several do not wait for
/// each other. All of them run on threads of situ's or on the caller's, so MPI is asked for MPI_THREAD_MULTIPLE.
#pragma once

#include <situ/core/error.hpp>

namespace situ::inline SITU_ABI {
namespace distributed {

/// How the elements of all processes are put together. bool: a sum and a maximum say whether any is true, a product and a minimum whether all are.
enum class reduce_op : int { sum, avg, prod, min, max };

}  // namespace distributed
}  // namespace situ::inline SITU_ABI

#if defined(SITU_WITH_MPI)

#include <cstdlib>
#include <exception>
#include <utility>

#include <pthread.h>

#include <situ/core/list.hpp>
#include <situ/core/scalar.hpp>
#include <situ/device/place.hpp>

// The C++ bindings that MPI once had are not used.
#if !defined(OMPI_SKIP_MPICXX)
#define OMPI_SKIP_MPICXX 1
#endif
#if !defined(MPICH_SKIP_MPICXX)
#define MPICH_SKIP_MPICXX 1
#endif
#include <mpi.h>

namespace situ::inline SITU_ABI {
namespace detail::mpi {

/// A collective that runs while the program goes on. Counted: by who waits for it, and by the queue.
struct Job {
  int64_t references = 2;
  bool done = false;
  std::exception_ptr failure;
  Job* next = nullptr;
  Job() = default;
  Job(Job const&) = delete;
  Job& operator=(Job const&) = delete;
  virtual ~Job() = default;
  virtual void run() = 0;
};

/// The communicator of a device; page-locked memory is the host's.
struct Communicator {
  Place place;
  MPI_Comm comm;
};

/// One per process.
struct Process {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
  bool started = false, ours = false, has_thread = false, stopping = false;
  int rank = 0, size = 1, local_rank = 0;
  int pending = 0;  ///< collectives that are enqueued or run
  MPI_Comm world = MPI_COMM_NULL;
  pthread_t thread{};
  Job *first = nullptr, *last = nullptr;  ///< those that wait
  List<Communicator> communicators;
};
SITU_PROCESS_STATE Process& process() {
  static Process* const process = new Process;  // what runs at the end of the program still needs it
  return *process;
}
class Lock {
 public:
  Lock() { ::pthread_mutex_lock(&process().mutex); }
  Lock(Lock const&) = delete;
  Lock& operator=(Lock const&) = delete;
  ~Lock() { ::pthread_mutex_unlock(&process().mutex); }
};
/// For callers that hold the lock.
inline void wait_for_change() { ::pthread_cond_wait(&process().changed, &process().mutex); }

[[noreturn]] __attribute__((noinline, cold)) inline void fail_call(char const* who, int status) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(status, text, &length);
  fail<Error>(who, ": MPI failed: ", static_cast<char const*>(text));
}
inline void check(char const* who, int status) {
  if (status != MPI_SUCCESS) [[unlikely]] fail_call(who, status);
}

/// Ends what runs, and MPI if it was begun here.
inline void finish() {
  Process& all = process();
  bool joins = false;
  {
    Lock const lock;
    while (all.pending > 0) wait_for_change();
    joins = std::exchange(all.has_thread, false);
    all.stopping = true;
    ::pthread_cond_broadcast(&all.changed);
  }
  if (joins) ::pthread_join(all.thread, nullptr);
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (all.ours && !finalized) MPI_Finalize();
}

/// Starts MPI if nobody has. For callers that hold the lock. Throws Error.
__attribute__((noinline, cold)) inline void start_locked() {
  Process& all = process();
  int initialized = 0, finalized = 0, provided = MPI_THREAD_SINGLE;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (finalized) fail<Error>("distributed: MPI has been finalized, and cannot be started again; call MPI_Finalize behind the last collective");
  if (initialized) {
    MPI_Query_thread(&provided);
  } else {
    check("distributed: MPI_Init_thread", MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided));
    all.ours = true;
    std::atexit([] { finish(); });
  }
  if (provided < MPI_THREAD_MULTIPLE) {
    fail<Error>("distributed: MPI was started for one thread, and collectives run beside the program: ",
                initialized ? "start it with MPI_Init_thread(…, MPI_THREAD_MULTIPLE, …), or leave that to situ" : "use an MPI library that offers MPI_THREAD_MULTIPLE");
  }
  check("distributed: MPI_Comm_dup", MPI_Comm_dup(MPI_COMM_WORLD, &all.world));
  MPI_Comm_set_errhandler(all.world, MPI_ERRORS_RETURN);
  MPI_Comm_rank(all.world, &all.rank);
  MPI_Comm_size(all.world, &all.size);
  MPI_Comm node = MPI_COMM_NULL;
  check("distributed: MPI_Comm_split_type", MPI_Comm_split_type(all.world, MPI_COMM_TYPE_SHARED, all.rank, MPI_INFO_NULL, &node));
  MPI_Comm_rank(node, &all.local_rank);
  MPI_Comm_free(&node);
  all.started = true;
}
inline Process& started_process() {
  Process& all = process();
  Lock const lock;
  if (!all.started) start_locked();
  return all;
}

/// The communicator of a device. All processes make it when they first use that device: on the program's threads, not on a device's.
inline MPI_Comm communicator(Place place) {
  Process& all = started_process();
  if (place.is_host()) place = {};
  Lock const lock;
  for (Communicator const& each : all.communicators) {
    if (each.place == place) return each.comm;
  }
  MPI_Comm comm = MPI_COMM_NULL;
  check("distributed: MPI_Comm_dup", MPI_Comm_dup(all.world, &comm));
  MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  all.communicators.push_back({place, comm});
  return comm;
}

/// Counts a collective that is enqueued, from its making to its end: the program ends behind it.
class Pending {
 public:
  Pending() {
    Lock const lock;
    ++process().pending;
  }
  Pending(Pending&& other) noexcept : counts_(std::exchange(other.counts_, false)) {}
  Pending& operator=(Pending&&) = delete;
  ~Pending() {
    if (!counts_) return;
    Lock const lock;
    --process().pending;
    ::pthread_cond_broadcast(&process().changed);
  }

 private:
  bool counts_ = true;
};

inline void drop(Job* job) noexcept {
  if (job && __atomic_sub_fetch(&job->references, 1, __ATOMIC_ACQ_REL) == 0) delete job;
}

/// The thread: what is enqueued, in that order.
inline void* run_jobs(void*) {
  Process& all = process();
  ::pthread_mutex_lock(&all.mutex);
  for (;;) {
    while (!all.first && !all.stopping) wait_for_change();
    Job* const job = all.first;
    if (!job) break;
    ::pthread_mutex_unlock(&all.mutex);
    try {
      job->run();
    } catch (...) {
      job->failure = std::current_exception();
    }
    ::pthread_mutex_lock(&all.mutex);
    all.first = job->next;
    if (!all.first) all.last = nullptr;
    job->done = true;
    --all.pending;
    ::pthread_cond_broadcast(&all.changed);
    drop(job);
  }
  ::pthread_mutex_unlock(&all.mutex);
  return nullptr;
}
/// Enqueues a job, whose second reference is the queue's. Throws Error, and the job is the caller's.
inline void enqueue_job(Job* job) {
  Process& all = started_process();
  Lock const lock;
  if (!all.has_thread) {
    if (::pthread_create(&all.thread, nullptr, &run_jobs, nullptr) != 0) fail<Error>("distributed: the system has no thread for collectives");
    all.has_thread = true;
  }
  (all.last ? all.last->next : all.first) = job;
  all.last = job;
  ++all.pending;
  ::pthread_cond_broadcast(&all.changed);
}
/// Waits for a job, and throws what it threw.
inline void wait(Job& job) {
  {
    Lock const lock;
    while (!job.done) wait_for_change();
  }
  if (job.failure) std::rethrow_exception(std::exchange(job.failure, nullptr));
}
/// Waits for all that is enqueued: what comes next runs on the calling thread.
inline void drain() {
  Process& all = started_process();
  Lock const lock;
  while (all.first) wait_for_change();
}

// ---- types and operations --------------------------------------------------------------------------------------------------------

template <element T>
MPI_Datatype type_of() {
  if constexpr (std::is_same_v<T, float>) return MPI_FLOAT;
  else if constexpr (std::is_same_v<T, double>) return MPI_DOUBLE;
  else if constexpr (std::is_same_v<T, int64_t>) return MPI_INT64_T;
  else if constexpr (std::is_same_v<T, int32_t>) return MPI_INT32_T;
  else if constexpr (std::is_same_v<T, int16_t>) return MPI_INT16_T;
  else if constexpr (std::is_same_v<T, int8_t>) return MPI_INT8_T;
  else if constexpr (sizeof(T) == 2) return MPI_UINT16_T;  // 16-bit floats, which have operations of their own
  else return MPI_UINT8_T;
}

/// 16-bit floats are combined as floats, and floats by comparisons that keep NaN, as max and min do everywhere else.
template <class T, distributed::reduce_op Op>
void combine(void* from, void* into, int* count, MPI_Datatype*) {
  T const* const a = static_cast<T const*>(from);
  T* const b = static_cast<T*>(into);
  using C = compute_t<T>;
  for (int k = 0; k < *count; ++k) {
    C const x = static_cast<C>(a[k]), y = static_cast<C>(b[k]);
    if constexpr (Op == distributed::reduce_op::prod) b[k] = static_cast<T>(x * y);
    else if constexpr (Op == distributed::reduce_op::min) b[k] = static_cast<T>(x < y || x != x ? x : y);
    else if constexpr (Op == distributed::reduce_op::max) b[k] = static_cast<T>(x > y || x != x ? x : y);
    else b[k] = static_cast<T>(x + y);
  }
}
template <class T, distributed::reduce_op Op>
MPI_Op own_operation() {
  static MPI_Op const operation = [] {
    MPI_Op made = MPI_OP_NULL;
    check("all_reduce", MPI_Op_create(&combine<T, Op>, 1, &made));
    return made;
  }();
  return operation;
}
/// Of an average, its sum.
template <element T>
MPI_Op operation_of(distributed::reduce_op op) {
  using enum distributed::reduce_op;
  if constexpr (std::is_same_v<T, bool>) return op == sum || op == max ? MPI_MAX : MPI_MIN;
  else if constexpr (floating<T> && sizeof(T) == 2) return op == prod ? own_operation<T, prod>() : op == min ? own_operation<T, min>() : op == max ? own_operation<T, max>() : own_operation<T, sum>();
  else if constexpr (floating<T>) return op == prod ? MPI_PROD : op == min ? own_operation<T, min>() : op == max ? own_operation<T, max>() : MPI_SUM;
  else return op == prod ? MPI_PROD : op == min ? MPI_MIN : op == max ? MPI_MAX : MPI_SUM;
}

/// MPI counts in ints.
inline constexpr int64_t most_elements = int64_t{1} << 30;
template <class F>
void in_pieces(int64_t count, F const& f) {
  for (int64_t first = 0; first < count; first += most_elements) f(first, static_cast<int>(count - first < most_elements ? count - first : most_elements));
}

}  // namespace detail::mpi
}  // namespace situ::inline SITU_ABI

#endif
