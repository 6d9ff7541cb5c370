/// What collectives on host memory are made of: MPI, which is started when it is first needed and ended with the program, and a thread that runs collectives
/// while the program computes.
///
/// Each device has a communicator of its own, made when it is first used, and so has each DistributedDataParallel: collectives of one keep their order, and those of several
/// do not wait for each other. All of them run on threads of situ's or on the caller's, so MPI is asked for MPI_THREAD_MULTIPLE.
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
#include <memory>
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

/// A collective that runs while the program goes on. Who waits for it ends it, on that thread: what it holds goes back where it came from.
struct Job {
  bool done = false;
  bool held = true;  ///< by a Work; else its channel ends it
  std::exception_ptr failure;
  Job* next = nullptr;
  Job() = default;
  Job(Job const&) = delete;
  Job& operator=(Job const&) = delete;
  virtual ~Job() = default;
  virtual void run() = 0;
};

/// A way on which collectives keep their order: a communicator, and a thread on the host or a stream of a device.
struct Channel {
  Place place;
  MPI_Comm comm = MPI_COMM_NULL;
  std::shared_ptr<void> stream;  ///< of an asynchronous device, its Stream
  bool has_thread = false, stopping = false;
  pthread_t thread{};
  Job *first = nullptr, *last = nullptr;  ///< those that wait, and the one that runs
  Channel* next = nullptr;                ///< in the list of all
  explicit Channel(Place of) : place(of) {}
  Channel(Channel const&) = delete;
  Channel& operator=(Channel const&) = delete;
  ~Channel();
};
/// Channels of one user: one for each device.
struct Channels {
  int tag;  ///< of the first communicator, among those that are made at the same time
  List<Channel*> all;
  explicit Channels(int first_tag) : tag(first_tag) {}
  Channels(Channels const&) = delete;
  Channels& operator=(Channels const&) = delete;
  ~Channels() {
    for (Channel* channel : all) delete channel;
  }
};

/// One per process.
struct Process {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
  bool started = false, ours = false, ended = false;
  int rank = 0, size = 1, local_rank = 0;
  int pending = 0;  ///< collectives that are enqueued or run
  int groups = 0;   ///< how many DistributedDataParallel were made, but for copies
  MPI_Comm world = MPI_COMM_NULL;
  Channel* channels = nullptr;
  Channels own{0};
  List<Channel*> spare;  ///< made by two threads at once
};
SITU_PROCESS_STATE Process& process() {
  static Process* const process = new Process;  // what runs at the end of the program still needs it
  return *process;
}
/// Never held while MPI is called: what it waits for may need the lock here.
class Lock {
 public:
  Lock() { ::pthread_mutex_lock(&process().mutex); }
  Lock(Lock const&) = delete;
  Lock& operator=(Lock const&) = delete;
  ~Lock() { ::pthread_mutex_unlock(&process().mutex); }
};
/// For callers that hold the lock.
inline void wait_for_change() { ::pthread_cond_wait(&process().changed, &process().mutex); }
inline void tell_change() { ::pthread_cond_broadcast(&process().changed); }

[[noreturn]] __attribute__((noinline, cold)) inline void fail_call(char const* who, int status) {
  char text[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(status, text, &length);
  fail<Error>(who, ": MPI failed: ", static_cast<char const*>(text));
}
inline void check(char const* who, int status) {
  if (status != MPI_SUCCESS) [[unlikely]] fail_call(who, status);
}

// ---- the beginning and the end -----------------------------------------------------------------------------------------------------

/// Waits for what is enqueued, and ends the threads. MPI calls it when it is about to be finalized, whoever finalizes it.
inline int before_finalize(MPI_Comm, int, void*, void*) {
  Process& all = process();
  List<pthread_t> threads;
  {
    Lock const lock;
    while (all.pending > 0) wait_for_change();
    all.ended = true;
    for (Channel* channel = all.channels; channel; channel = channel->next) {
      if (std::exchange(channel->has_thread, false)) threads.push_back(channel->thread);
      channel->stopping = true;
    }
    tell_change();
  }
  for (pthread_t thread : threads) ::pthread_join(thread, nullptr);
  return MPI_SUCCESS;
}
/// At the end of a program that did not start MPI itself. One that fails ends all others, which would wait for it.
inline void finish(int status) {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized) return;
  if (status != 0) MPI_Abort(MPI_COMM_WORLD, status);
  MPI_Finalize();
}
#if defined(__GLIBC__)
inline void finish_with(int status, void*) { finish(status); }
#else
inline void finish_anyhow() { finish(0); }
#endif

/// Starts MPI if nobody has. For callers that hold the lock: nothing is enqueued yet. Throws Error.
__attribute__((noinline, cold)) inline void start_locked() {
  Process& all = process();
  int initialized = 0, finalized = 0, provided = MPI_THREAD_SINGLE;
  MPI_Initialized(&initialized);
  MPI_Finalized(&finalized);
  if (!finalized && initialized) {
    MPI_Query_thread(&provided);
  } else if (!finalized) {
    check("distributed: MPI_Init_thread", MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided));
    all.ours = true;
#if defined(__GLIBC__)
    ::on_exit(&finish_with, nullptr);
#else
    std::atexit(&finish_anyhow);
#endif
  }
  if (finalized || provided < MPI_THREAD_MULTIPLE) {
    fail<Error>("distributed: ", finalized ? "MPI has been finalized, and cannot be started again: call MPI_Finalize behind the last collective"
                                 : initialized ? "MPI was started for one thread, and collectives run beside the program: start it with MPI_Init_thread(…, MPI_THREAD_MULTIPLE, …), or leave that to situ"
                                               : "this MPI library does not offer MPI_THREAD_MULTIPLE, and collectives run beside the program: use another one");
  }
  check("distributed: MPI_Comm_dup", MPI_Comm_dup(MPI_COMM_WORLD, &all.world));
  MPI_Comm_set_errhandler(all.world, MPI_ERRORS_RETURN);
  MPI_Comm_rank(all.world, &all.rank);
  MPI_Comm_size(all.world, &all.size);
  MPI_Comm node = MPI_COMM_NULL;
  check("distributed: MPI_Comm_split_type", MPI_Comm_split_type(all.world, MPI_COMM_TYPE_SHARED, all.rank, MPI_INFO_NULL, &node));
  MPI_Comm_rank(node, &all.local_rank);
  MPI_Comm_free(&node);
  int key = MPI_KEYVAL_INVALID;
  MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, &before_finalize, &key, nullptr);
  MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr);
  all.started = true;
}
inline Process& started_process() {
  Process& all = process();
  Lock const lock;
  if (!all.started) start_locked();
  return all;
}
/// For a collective: who they are is known when MPI has ended, too.
inline Process& running_process() {
  Process& all = started_process();
  if (__atomic_load_n(&all.ended, __ATOMIC_RELAXED)) fail<Error>("distributed: a collective was called when MPI had been finalized; call MPI_Finalize behind the last one");
  return all;
}

// ---- channels --------------------------------------------------------------------------------------------------------------------------

/// The thread of a channel: what is enqueued, in that order.
inline void* run_jobs(void* which) {
  auto& channel = *static_cast<Channel*>(which);
  Process& all = process();
  ::pthread_mutex_lock(&all.mutex);
  for (;;) {
    while (!channel.first && !channel.stopping) wait_for_change();
    Job* const job = channel.first;
    if (!job) break;
    ::pthread_mutex_unlock(&all.mutex);
    try {
      job->run();
    } catch (...) {
      job->failure = std::current_exception();
    }
    ::pthread_mutex_lock(&all.mutex);
    channel.first = job->next;
    if (!channel.first) channel.last = nullptr;
    job->done = true;
    bool const held = job->held;
    --all.pending;
    tell_change();
    if (held) continue;
    ::pthread_mutex_unlock(&all.mutex);
    delete job;  // which may end tensors
    ::pthread_mutex_lock(&all.mutex);
  }
  ::pthread_mutex_unlock(&all.mutex);
  return nullptr;
}
/// Waits for what is enqueued on it.
inline Channel::~Channel() {
  Process& all = process();
  bool joins = false, ended = false;
  {
    Lock const lock;
    while (first) wait_for_change();
    joins = std::exchange(has_thread, false);
    stopping = true;
    for (Channel** at = &all.channels; *at; at = &(*at)->next) {
      if (*at == this) {
        *at = next;
        break;
      }
    }
    ended = all.ended;
    tell_change();
  }
  if (joins) ::pthread_join(thread, nullptr);
  if (!ended && comm != MPI_COMM_NULL) MPI_Comm_free(&comm);
}

/// For callers that hold the lock; waits where another thread makes it.
inline Channel* find_channel(Channels const& channels, Place place) {
  Channel* found = nullptr;
  for (Channel* channel : channels.all) {
    if (channel->place == place) found = channel;
  }
  while (found && found->comm == MPI_COMM_NULL) wait_for_change();
  return found;
}
/// The channel of a device, which all processes make when they first use it: threads may do so for several at the same time. make_stream() gives its stream.
template <class F>
Channel& channel_of(Channels& channels, Place place, F const& make_stream) {
  Process& all = running_process();
  if (place.is_host()) place = {};
  {
    Lock const lock;
    if (Channel* const found = find_channel(channels, place)) return *found;
  }
  std::shared_ptr<void> stream = make_stream();
  auto* const channel = new Channel(place);
  channel->stream = std::move(stream);
  {
    Lock const lock;
    Channel* const found = find_channel(channels, place);
    (found ? all.spare : channels.all).push_back(channel);
    if (found) return *found;
    channel->next = std::exchange(all.channels, channel);
  }
  MPI_Group everybody = MPI_GROUP_NULL;
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Comm_group(all.world, &everybody);
  int const status = MPI_Comm_create_group(all.world, everybody, channels.tag + 512 * static_cast<int>(place.kind) + place.ordinal, &comm);
  MPI_Group_free(&everybody);
  if (status == MPI_SUCCESS) MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
  {
    Lock const lock;
    channel->comm = status == MPI_SUCCESS ? comm : all.world;  // nothing works any more, but nobody waits for it
    tell_change();
  }
  check("distributed: MPI_Comm_create_group", status);
  return *channel;
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
    tell_change();
  }

 private:
  bool counts_ = true;
};

/// Enqueues a job. Throws Error, and the job is the caller's.
inline void enqueue_job(Channel& channel, Job* job) {
  Lock const lock;
  if (!channel.has_thread) {
    if (::pthread_create(&channel.thread, nullptr, &run_jobs, &channel) != 0) fail<Error>("distributed: the system has no thread for collectives");
    channel.has_thread = true;
  }
  (channel.last ? channel.last->next : channel.first) = job;
  channel.last = job;
  ++process().pending;
  tell_change();
}
/// Waits for a job, and throws what it threw, once.
inline void wait(Job& job) {
  std::exception_ptr failure;
  {
    Lock const lock;
    while (!job.done) wait_for_change();
    std::swap(failure, job.failure);
  }
  if (failure) std::rethrow_exception(failure);
}
/// Nobody waits for it any more.
inline void drop(Job* job) noexcept {
  if (!job) return;
  bool done = false;
  {
    Lock const lock;
    done = job->done;
    job->held = false;
  }
  if (done) delete job;
}
/// Waits for all that is enqueued: what comes next runs on the calling thread.
inline void drain(Channel& channel) {
  Lock const lock;
  while (channel.first) wait_for_change();
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
