/// The streams of emulated devices: queues of jobs, each with a host thread that starts with the first job.
///
/// A job runs after all that were enqueued before it on its stream, some time after the call that enqueued it returned.
#pragma once

#include <cstdlib>

#include <pthread.h>

#include <situ/core/scalar.hpp>
#include <situ/device/emulated/memory.hpp>
#include <situ/device/fault.hpp>

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

/// Something to do on a stream. Derived jobs follow it in memory; `run` does the work and ends the job's life.
struct Job {
  void (*run)(Job*) noexcept;
  bool opens_memory = true;
  Job* next = nullptr;
};

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
  bool at_exit = false;  ///< end_threads is registered
  bool ended = false;    ///< the program is ending: what comes now runs at once, on the caller's thread
  Device* devices[max_devices] = {};
};

SITU_PROCESS_STATE State& state() {
  static constinit State state;
  return state;
}

class Lock {
 public:
  Lock() { ::pthread_mutex_lock(&state().mutex); }
  Lock(Lock const&) = delete;
  Lock& operator=(Lock const&) = delete;
  ~Lock() { ::pthread_mutex_unlock(&state().mutex); }
};

/// A stream: jobs in their order, and the thread that runs them. Callers hold the lock, except for run_now's job
/// itself.
struct Queue {
  Pool* pool;
  Job* first = nullptr;
  Job* last = nullptr;
  int64_t enqueued = 0, finished = 0;
  bool running = false, stopping = false;
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
    ::pthread_mutex_lock(&state().mutex);
    if (opens) pool->close();
  }

  /// The memory stays open from job to job, and is closed before anybody hears that the last one has ended.
  static void* run_jobs(void* argument) {
    Queue& self = *static_cast<Queue*>(argument);
    bool opened = false;
    Lock const lock;
    for (;;) {
      while (!self.first && !self.stopping) ::pthread_cond_wait(&self.work, &state().mutex);
      Job* const job = self.first;
      if (!job) return nullptr;
      self.first = job->next;
      if (!self.first) self.last = nullptr;
      if (job->opens_memory && !opened) self.pool->open(), opened = true;
      ::pthread_mutex_unlock(&state().mutex);
      job->run(job);
      ::pthread_mutex_lock(&state().mutex);
      if (!self.first && opened) self.pool->close(), opened = false;
      ++self.finished;
      ::pthread_cond_broadcast(&state().progress);
    }
  }
};

/// One device: what it has, and what was done with it.
struct Device {
  Pool pool{};
  Queue stream{pool};
  situ::emulated::counts counts{};
  IndexFault fault{};  ///< in ordinary memory, which the stream's thread reaches
};

/// Runs everything that is left when the program ends, so that no thread outlives what it uses.
inline void end_threads() {
  Lock const lock;
  State& all = state();
  for (Device* device : all.devices) {
    if (device) device->stream.drain();
  }
  all.ended = true;
  for (Device* device : all.devices) {
    if (device) device->stream.stop();
  }
}

inline bool Queue::start() {
  State& all = state();
  while (stopping) ::pthread_cond_wait(&all.progress, &all.mutex);
  if (running) return true;
  if (all.ended) return false;
  if (!all.at_exit) all.at_exit = std::atexit(&end_threads) == 0;
  running = ::pthread_create(&thread, nullptr, &run_jobs, this) == 0;
  return running;
}

}  // namespace detail::emulated
}  // namespace situ::inline SITU_ABI
