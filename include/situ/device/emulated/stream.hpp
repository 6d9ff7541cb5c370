/// The streams of emulated devices: queues of jobs, each with a host thread that starts with the first job.
///
/// A job runs after all that were enqueued before it on its stream, some time after the call that enqueued it returned. A
/// moment is the number of a job; a stream waits for one of another stream by a job that stands still until it has run.
#pragma once

#include <cstdlib>
#include <ctime>

#include <pthread.h>

#include <situ/core/scalar.hpp>
#include <situ/device/cpu/memory.hpp>
#include <situ/device/emulated/memory.hpp>
#include <situ/device/fault.hpp>
#include <situ/device/order.hpp>

namespace situ::inline SITU_ABI {
namespace emulated {

/// What one emulated device has done since it was configured.
struct counts {
  int64_t launches = 0;
  int64_t allocations = 0;
  int64_t bytes = 0;  ///< allocated now
  int64_t peak = 0;   ///< the most that was ever allocated
  int64_t copies_within = 0;
  int64_t copies_from_host = 0;
  int64_t copies_to_host = 0;
  int64_t copies_from_peer = 0;  ///< from other emulated devices to this one
  int64_t copies_to_peer = 0;
};

}  // namespace emulated

namespace detail::emulated {

/// Something to do on a stream. Derived jobs follow it in memory. `run` does the work, more than once where a job is replayed;
/// `end` ends the job's life.
struct Job {
  void (*run)(Job*) noexcept;
  void (*end)(Job*) noexcept;
  bool opens_memory = true;
  bool frees = false;  ///< gives memory back: not to be replayed, but to be run once when a record of it ends
  Job* next = nullptr;
};
template <class J>
void end_job(Job* job) noexcept {
  delete static_cast<J*>(job);
}

struct Queue;
struct Device;

inline constexpr int max_devices = 256;

/// All that emulated devices share. One per process, and never destroyed: tensors may outlive main.
struct State {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;   ///< guards everything of every device
  pthread_cond_t progress = PTHREAD_COND_INITIALIZER;  ///< a job has ended, or two streams have met
  int device_count = 2;
  std::size_t memory = std::size_t{1} << 30;
  int64_t operations = 0, fail_at = -1;
  uint64_t delays = 0;   ///< what the pauses of streams are drawn from; 0 for none
  bool at_exit = false;  ///< end_threads is registered
  bool watches_forks = false;
  bool ended = false;    ///< the program is ending: what comes now runs at once, on the caller's thread
  Device* devices[max_devices] = {};
};

SITU_PROCESS_STATE State& state() {
  static constinit State state;
  return state;
}

/// The current stream of each device in this thread.
SITU_PROCESS_STATE CurrentStream* current_streams() {
  static thread_local constinit CurrentStream streams[max_devices] = {};
  return streams;
}
/// That of one device. Numbers that no device has share the last one; they fail when they are used.
inline CurrentStream& current_stream(int ordinal) { return current_streams()[ordinal < max_devices ? ordinal : max_devices - 1]; }
/// The queue whose thread this is; null for other threads.
SITU_PROCESS_STATE Queue*& own_queue() {
  static thread_local constinit Queue* queue = nullptr;
  return queue;
}

class Lock {
 public:
  Lock() { ::pthread_mutex_lock(&state().mutex); }
  Lock(Lock const&) = delete;
  Lock& operator=(Lock const&) = delete;
  ~Lock() { ::pthread_mutex_unlock(&state().mutex); }
};

inline void sleep_for(int64_t microseconds) noexcept {
  timespec const time{static_cast<std::time_t>(microseconds / 1000000), static_cast<long>(microseconds % 1000000 * 1000)};
  ::nanosleep(&time, nullptr);
}

/// A stream: jobs in their order, and the thread that runs them. Callers hold the lock, except for run_now's job
/// itself. Never destroyed.
struct Queue {
  Pool* pool;
  Queue* next_of_device = nullptr;
  Job* first = nullptr;
  Job* last = nullptr;
  int64_t enqueued = 0, finished = 0;
  bool running = false, stopping = false;
  uint64_t random = 0;  ///< what its pauses are drawn from
  pthread_t thread = {};
  pthread_cond_t work = PTHREAD_COND_INITIALIZER;

  explicit Queue(Pool& memory) : pool(&memory) {}

  /// Whether jobs can wait here: starts the thread. Without one, jobs run where they are enqueued.
  bool start();

  /// The job's number, to wait for.
  int64_t enqueue(Job* job) {
    if (!start()) {
      run_now(job);
      ++enqueued;
      return ++finished;
    }
    (last ? last->next : first) = job;
    last = job;
    ::pthread_cond_signal(&work);
    return ++enqueued;
  }
  void wait(int64_t number) {
    if (own_queue() == this && finished < number) {
      fail<Error>("emulated: a function on a stream waits for that stream itself, which cannot go on before it returns");
    }
    while (finished < number) ::pthread_cond_wait(&state().progress, &state().mutex);
  }
  void drain() { wait(enqueued); }

  /// Runs what is left, and ends the thread.
  void stop() {
    if (!running) return;
    stopping = true;
    ::pthread_cond_signal(&work);
    ::pthread_mutex_unlock(&state().mutex);
    ::pthread_join(thread, nullptr);
    ::pthread_mutex_lock(&state().mutex);
    running = stopping = false;
    ::pthread_cond_broadcast(&state().progress);
  }

 private:
  void run_now(Job* job) {
    bool const opens = job->opens_memory;
    if (opens) pool->open();
    ::pthread_mutex_unlock(&state().mutex);
    job->run(job);
    job->end(job);
    ::pthread_mutex_lock(&state().mutex);
    if (opens) pool->close();
  }

  /// How long it pauses before a job, in microseconds: most often not at all. The first job after a new seed begins a new row of pauses.
  int64_t pause() {
    if (state().delays == 0) return 0;
    if (random == 0) random = state().delays * 0x9e3779b97f4a7c15u + (reinterpret_cast<std::uintptr_t>(this) >> 6) + 1;
    random ^= random << 13, random ^= random >> 7, random ^= random << 17;
    return random % 4 == 0 ? static_cast<int64_t>((random >> 32) % 300) : 0;
  }

  /// The memory stays open from job to job, and is closed before anybody hears that the last one has ended.
  static void* run_jobs(void* argument) {
    Queue& self = *static_cast<Queue*>(argument);
    bool opened = false;
    own_queue() = &self;
    Lock const lock;
    for (;;) {
      while (!self.first && !self.stopping) ::pthread_cond_wait(&self.work, &state().mutex);
      Job* const job = self.first;
      if (!job) return nullptr;
      self.first = job->next;
      if (!self.first) self.last = nullptr;
      if (job->opens_memory && !opened) self.pool->open(), opened = true;
      int64_t const pause = self.pause();
      ::pthread_mutex_unlock(&state().mutex);
      if (pause > 0) sleep_for(pause);
      job->run(job);
      job->end(job);
      ::pthread_mutex_lock(&state().mutex);
      if (!self.first && opened) self.pool->close(), opened = false;
      ++self.finished;
      ::pthread_cond_broadcast(&state().progress);
    }
  }
};

/// One device: what it has, and what was done with it. Never destroyed: configure() empties it.
struct Device {
  Pool pool{};
  Queue stream{pool};        ///< the default one
  Queue* queues = &stream;   ///< all of them
  situ::emulated::counts counts{};
  IndexFault fault{};  ///< in ordinary memory, which the streams' threads reach
  bool has_lost_work = false;  ///< in a child process
  uint64_t senders[max_devices / 64] = {};  ///< bit m: emulated:m has sent something to this one, so that its faults are this one's, too

  /// f(queue) for every stream. f may let go of the lock.
  template <class F>
  void for_each_queue(F const& f) {
    for (Queue* queue = queues; queue; queue = queue->next_of_device) f(*queue);
  }
};

/// Waits for all streams of a device, but not for the one whose thread this is.
inline void drain(Device& device) {
  device.for_each_queue([](Queue& queue) {
    if (own_queue() != &queue) queue.drain();
  });
}

/// Waits for all devices: memory of one may be freed in a stream of another, which copied from it.
inline void drain_all() {
  for (Device* device : state().devices) {
    if (device) drain(*device);
  }
}

/// Runs everything that is left when the program ends, so that no thread outlives what it uses.
inline void end_threads() {
  Lock const lock;
  State& all = state();
  drain_all();
  all.ended = true;
  for (Device* device : all.devices) {
    if (device) device->for_each_queue([](Queue& queue) { queue.stop(); });
  }
}

// A child process has none of the threads: they start again with the next job. What they had not done is lost there, and said to be.
inline void before_fork() noexcept { ::pthread_mutex_lock(&state().mutex); }
inline void after_fork() noexcept { ::pthread_mutex_unlock(&state().mutex); }
inline void in_forked_child() noexcept {
  State& all = state();
  pthread_cond_t const fresh = PTHREAD_COND_INITIALIZER;  // nobody waits
  all.progress = fresh;
  for (Device* device : all.devices) {
    if (!device) continue;
    device->for_each_queue([&](Queue& queue) {
      device->has_lost_work |= queue.finished < queue.enqueued;
      queue.first = queue.last = nullptr;
      queue.finished = queue.enqueued;
      queue.running = queue.stopping = false;
      queue.work = fresh;
    });
  }
  after_fork();
}

inline bool Queue::start() {
  State& all = state();
  auto const settled = [&] {
    while (stopping) ::pthread_cond_wait(&all.progress, &all.mutex);
    return running || all.ended;
  };
  if (!settled()) {
    ::pthread_mutex_unlock(&all.mutex);
    cpu::stay_loaded(reinterpret_cast<void const*>(&run_jobs));
    cpu::watch_forks();
    if (!__atomic_exchange_n(&all.watches_forks, true, __ATOMIC_RELAXED)) ::pthread_atfork(&before_fork, &after_fork, &in_forked_child);
    ::pthread_mutex_lock(&all.mutex);
    if (!settled()) {
      if (!all.at_exit) all.at_exit = std::atexit(&end_threads) == 0;
      running = ::pthread_create(&thread, nullptr, &run_jobs, this) == 0;
    }
  }
  return running;
}

}  // namespace detail::emulated
}  // namespace situ::inline SITU_ABI
