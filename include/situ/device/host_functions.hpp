/// Host functions in the order of a stream, and the copies that page-locked memory takes part in: what the host and a stream owe each
/// other. The order among streams is kept by device/order.hpp.
#pragma once

#include <ctime>
#include <exception>
#include <new>
#include <utility>

#include <pthread.h>

#include <situ/core/list.hpp>
#include <situ/device/order.hpp>
#include <situ/device/place.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

// ---- host functions ----------------------------------------------------------------------------------------------------

struct FreedLater;
/// What host functions and copies from and to page-locked memory leave behind. Its lock is never held while a driver is called: the driver's own threads
/// take it, and may hold a lock of the driver's.
struct HostState {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  FreedLater* freed_later = nullptr;
};
SITU_PROCESS_STATE HostState& host_state() {
  static constinit HostState state;
  return state;
}
class HostLock {
 public:
  HostLock() { ::pthread_mutex_lock(&host_state().mutex); }
  HostLock(HostLock const&) = delete;
  HostLock& operator=(HostLock const&) = delete;
  ~HostLock() { ::pthread_mutex_unlock(&host_state().mutex); }
};


inline double milliseconds_now() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

/// A function that the host runs in the order of a stream.
struct HostFunction {
  void (*run)(HostFunction*);
  void (*end)(HostFunction*) noexcept;
  StreamState* stream;
  HostFunction* next = nullptr;
  int64_t place = 0;  ///< as a moment's
};
template <class F>
struct HostFunctionOf : HostFunction {
  F f;
  explicit HostFunctionOf(F&& function)
      : HostFunction{[](HostFunction* self) { static_cast<HostFunctionOf*>(self)->f(); },
                     [](HostFunction* self) noexcept { delete static_cast<HostFunctionOf*>(self); }, nullptr},
        f(static_cast<F&&>(function)) {}
};

/// Runs it; what it throws is kept for the next synchronisation with its stream.
inline void run_host_function(HostFunction* function) noexcept {
  StreamState& stream = *function->stream;
  StreamState*& here = host_function_stream();
  here = &stream;
  try {
    function->run(function);
  } catch (...) {
    HostLock const lock;
    if (!stream.failure) stream.failure = std::current_exception();
  }
  here = nullptr;
}

[[noreturn]] __attribute__((noinline, cold)) inline void fail_host_function_in_graph(Place place) {
  fail<Error>("enqueue: ", to_string(place), " is recording a graph on this thread, and a host function runs once; call it before or after the replay");
}

/// Throws what a host function of the stream threw, once.
inline void throw_failure(StreamState& state) {
  std::exception_ptr failure;
  {
    HostLock const lock;
    std::swap(failure, state.failure);
  }
  if (failure) std::rethrow_exception(failure);
}
/// The same for all streams of a device.
inline void throw_failures(StreamDriver const* driver, int ordinal) {
  std::exception_ptr failure;
  {
    StreamLock const streams;
    HostLock const lock;
    if (StreamState* const state = find_stream(driver, ordinal, [](StreamState& s) { return s.failure != nullptr; })) std::swap(failure, state->failure);
  }
  if (failure) std::rethrow_exception(failure);
}

// ---- copies that page-locked memory takes part in ------------------------------------------------------------------------

/// A copy from or to a storage in page-locked memory that may not have ended.
struct CopyInFlight {
  Moment end;
  bool writes;  ///< to this memory
  CopyInFlight* next;
};
/// Page-locked memory that nobody holds any more, but copies.
struct FreedLater {
  CopyInFlight* copies;
  void* memory;
  std::size_t bytes;
  void (*deallocate)(void* memory, std::size_t bytes) noexcept;
  FreedLater* next;
};
/// Rows of `width` bytes that begin every `pitch` bytes, packed by a copy.
struct PitchedCopy {
  std::size_t width, pitch, count;
};

/// Notes a copy of page-locked memory in this thread's stream: made before the copy is enqueued, and published behind it.
class CopyNote {
 public:
  CopyNote(StreamDriver const* driver, int ordinal, CurrentStream& current, bool writes)
      : current_(current), copy_(new CopyInFlight{Moment::make(driver, false), writes, nullptr}) {
    if (current.recorder) {
      delete copy_;
      fail<Error>("to_async: work on this device is recorded on this thread, and a copy of page-locked memory would be waited for; copy before or after it");
    }
    begin_segment(driver, ordinal, current);
    current.used = true;
  }
  CopyNote(CopyNote const&) = delete;
  CopyNote& operator=(CopyNote const&) = delete;
  ~CopyNote() { delete copy_; }

  /// The end of the copy.
  Moment publish(StorageHead& head) {
    StreamState& stream = *(copy_->end.state()->stream = current_.state);
    try {
      stream.driver->record(stream, copy_->end);
    } catch (...) {
      stream.driver->synchronize(stream);  // nobody else would wait for it
      throw;
    }
    Moment result = copy_->end;
    HostLock const lock;
    copy_->next = static_cast<CopyInFlight*>(head.uses);
    __atomic_store_n(&head.uses, static_cast<void*>(std::exchange(copy_, nullptr)), __ATOMIC_RELEASE);
    return result;
  }

 private:
  CurrentStream& current_;
  CopyInFlight* copy_;
};
inline void forget_copies(CopyInFlight* copies) noexcept {
  while (copies) delete std::exchange(copies, copies->next);
}
/// Copies that nobody waits for any more.
struct EndedCopies {
  CopyInFlight* first = nullptr;
  EndedCopies() = default;
  EndedCopies(EndedCopies const&) = delete;
  EndedCopies& operator=(EndedCopies const&) = delete;
  ~EndedCopies() { forget_copies(first); }
};
/// Waits for the copies that the host must not run beside: a reader for those that write, a writer for all. A host function
/// stands in the order of its own stream already, and lets nothing of a driver's go.
SITU_NOINLINE inline void await_copies(StorageHead& head, bool writes) {
  StreamState* const here = host_function_stream();
  for (;;) {
    Moment next;
    List<Moment> others;
    EndedCopies ended;
    {
      HostLock const lock;
      for (auto** link = reinterpret_cast<CopyInFlight**>(&head.uses); *link;) {
        CopyInFlight* const copy = *link;
        if (!here && copy->end.known_to_have_passed()) {
          __atomic_store_n(link, copy->next, __ATOMIC_RELAXED);
          copy->next = std::exchange(ended.first, copy);
          continue;
        }
        link = &copy->next;
        if (copy->end.known_to_have_passed() || (here && copy->end.state()->stream == here)) continue;
        if (writes || copy->writes) {
          if (!next) next = copy->end;
        } else if (!here) {
          others.push_back(copy->end);
        }
      }
    }
    if (next) {
      next.wait();
      continue;
    }
    for (Moment const& each : others) (void)each.passed();  // the next who comes lets go of them
    return;
  }
}

/// Waits for all of them, before memory that somebody else owns goes back.
inline void end_copies(StorageHead& head) noexcept {
  try {
    await_copies(head, true);
  } catch (...) {
  }
}

inline bool have_passed(CopyInFlight const* copies) {
  for (; copies; copies = copies->next) {
    if (!copies->end.passed()) return false;
  }
  return true;
}
/// Remembers memory that is freed later; without memory to do so, it is not freed.
inline void free_later(CopyInFlight* copies, void* memory, std::size_t bytes, void (*deallocate)(void*, std::size_t) noexcept) noexcept {
  auto* const later = new (std::nothrow) FreedLater{copies, memory, bytes, deallocate, nullptr};
  if (!later) return;
  HostLock const lock;
  later->next = host_state().freed_later;
  __atomic_store_n(&host_state().freed_later, later, __ATOMIC_RELAXED);
}
/// Frees what no copy needs any more.
inline void free_what_copies_left() noexcept {
  if (SITU_LIKELY(!__atomic_load_n(&host_state().freed_later, __ATOMIC_RELAXED)) || host_function_stream()) return;
  FreedLater* all = nullptr;
  {
    HostLock const lock;
    all = host_state().freed_later;
    __atomic_store_n(&host_state().freed_later, nullptr, __ATOMIC_RELAXED);
  }
  FreedLater *kept = nullptr, *last = nullptr;
  while (all) {
    FreedLater* const one = std::exchange(all, all->next);
    bool passed = false;
    try {
      passed = have_passed(one->copies);
    } catch (...) {  // the device is lost: the memory stays
    }
    if (passed) {
      forget_copies(one->copies);
      one->deallocate(one->memory, one->bytes);
      delete one;
    } else {
      if (!kept) last = one;
      one->next = std::exchange(kept, one);
    }
  }
  if (!kept) return;
  HostLock const lock;
  last->next = host_state().freed_later;
  __atomic_store_n(&host_state().freed_later, kept, __ATOMIC_RELAXED);
}
/// Whether the memory of a storage will be freed later, because copies still need it.
inline bool deallocate_after_copies(StorageHead& head, void* memory, std::size_t bytes, void (*deallocate)(void*, std::size_t) noexcept) noexcept {
  auto* const copies = static_cast<CopyInFlight*>(head.uses);
  bool passed = false;
  try {
    passed = !host_function_stream() && have_passed(copies);
  } catch (...) {
  }
  if (passed) forget_copies(copies);
  else free_later(copies, memory, bytes, deallocate);
  return !passed;
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
