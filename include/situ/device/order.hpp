/// How work on several streams is ordered without being asked: who used a storage, and what a stream must wait for.
///
/// A thread's stay on a stream, from the StreamGuard that brought it there to the one that takes it away, is a *segment*. A
/// storage notes the segments that wrote it last and that read it since. Leaving a segment records a *moment* of its
/// stream (an event), which stands for the end of everything that was enqueued in that segment: a stream that needs a storage of another one
/// waits for that moment and not for what was enqueued there later. While a segment lasts, its end is the present.
///
/// Several threads may share a stream. A storage that two of them read at the same time notes no segment but the
/// stream itself, whose moment is the present whenever it is asked for.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <new>
#include <utility>

#include <pthread.h>

#include <situ/core/error.hpp>
#include <situ/core/storage.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

struct StreamDriver;
struct HostFunction;
class Moment;

/// A point in what a stream does: everything that was enqueued before. Counted.
struct MomentState {
  int64_t count = 1;
  StreamDriver const* driver = nullptr;
  StreamState* stream = nullptr;
  void* native = nullptr;
  int64_t number = 0;
  double time = 0;  ///< in milliseconds, where the driver needs it
  int64_t place = 0;  ///< among the moments and host functions of its stream, where the driver needs it
  bool timed = false;
  mutable bool has_passed = false;  ///< as the host has seen: nobody has to be asked again
};

/// What streams of one kind of device can do. Everything here may be called from any thread, whatever its current device is.
struct StreamDriver {
  void (*require)(int ordinal);                                            ///< throws DeviceUnavailable where there is no such device
  void (*open)(StreamState& state, int priority);                          ///< makes the native stream; throws
  void (*open_default)(StreamState& state);                                ///< finds that of the device; throws DeviceUnavailable
  void (*record)(StreamState& state, Moment const& moment);                ///< behind what is enqueued
  void (*wait_for)(StreamState& later, MomentState const& moment);         ///< what is enqueued from now on waits
  bool (*passed)(MomentState const& moment);
  void (*wait)(MomentState const& moment);                                 ///< the host waits
  void (*drop)(MomentState& moment) noexcept;
  double (*milliseconds)(MomentState const& from, MomentState const& to);
  bool (*idle)(StreamState& state);
  void (*synchronize)(StreamState& state);                                 ///< throws what kernels found wrong
  void (*call)(StreamState& state, HostFunction* function);                ///< on a host thread, in the order of the stream
  void (*free_after)(int ordinal, StorageHead& head, uint64_t const* notes, int count) noexcept;
};

/// A counted pointer to a moment. A null one has passed.
class Moment {
 public:
  Moment() = default;
  Moment(Moment const& other) noexcept : state_(other.state_) {
    if (state_) __atomic_fetch_add(&state_->count, 1, __ATOMIC_RELAXED);
  }
  Moment(Moment&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
  Moment& operator=(Moment other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }
  ~Moment() {
    if (!state_ || __atomic_fetch_sub(&state_->count, 1, __ATOMIC_ACQ_REL) != 1) return;
    state_->driver->drop(*state_);
    delete state_;
  }
  static Moment make(StreamDriver const* driver, bool timed) {
    Moment result;
    result.state_ = new MomentState{1, driver, nullptr, nullptr, 0, 0, 0, timed};
    return result;
  }

  explicit operator bool() const { return state_ != nullptr; }
  MomentState* state() const { return state_; }
  bool is_shared() const { return __atomic_load_n(&state_->count, __ATOMIC_ACQUIRE) > 1; }
  bool known_to_have_passed() const { return !state_ || __atomic_load_n(&state_->has_passed, __ATOMIC_ACQUIRE); }
  bool passed() const {
    return known_to_have_passed() || (state_->driver->passed(*state_) && note_passed());
  }
  void wait() const {
    if (known_to_have_passed()) return;
    state_->driver->wait(*state_);
    note_passed();
  }

 private:
  bool note_passed() const {
    __atomic_store_n(&state_->has_passed, true, __ATOMIC_RELEASE);
    return true;
  }
  MomentState* state_ = nullptr;
};

/// What a thread does on a device is written down instead of being done: the capture of a graph. Set as CurrentStream::recorder.
struct StreamRecorder {
  /// A storage is used that was made before. It must live as long as the record, and be ordered whenever that is replayed.
  void (*use)(StreamRecorder*, StorageHead& head, bool writes) = nullptr;
  /// A storage was made. Its memory must not become anybody else's while the record may be replayed.
  void (*make)(StreamRecorder*, StorageHead& head) = nullptr;
  /// Takes over an emulated device's job (an emulated::Job*); null where the device records by itself.
  void (*enqueue)(StreamRecorder*, void* job) = nullptr;
  // Of a GPU: memory that the record has left over, or null; memory that it takes over; and memory on its way back, false where it is none
  // of the record's.
  void* (*reuse)(StreamRecorder*, std::size_t bytes) = nullptr;
  void (*keep)(StreamRecorder*, void* memory, std::size_t bytes) = nullptr;
  bool (*take_back)(StreamRecorder*, void* memory) noexcept = nullptr;
  void* memory_stream = nullptr;  ///< where more memory is taken: not the stream that is captured; null is the default one
};
inline void made_while_recording(StreamRecorder* recorder, StorageHead& head) { recorder->make(recorder, head); }

/// A stream. Never destroyed: when its last handle goes, it is kept to be handed out again, so that notes of it stay valid.
struct StreamState {
  static constexpr int remembered = 16;
  StreamDriver const* driver = nullptr;
  int ordinal = 0;
  uint32_t index = 0;  ///< in StreamTable::all
  void* native = nullptr;
  int priority = 0;
  bool is_default = false;
  bool foreign = false;  ///< somebody else's: not used without a handle
  bool crowded = false;  ///< several threads are, or were, on it at once
  bool recorded = false; ///< a graph is being captured of it: it was idle before, and does nothing until that ends
  int64_t handles = 0;
  int64_t places = 0;   ///< that moments and host functions have taken, where the driver needs it
  int64_t running = 0;  ///< that of the host function which runs, or ran last
  uint64_t segments = 0;  ///< that were begun
  int64_t open = 0;       ///< segments that last
  uint64_t ended[remembered] = {};  ///< the segments that ended last
  Moment ends[remembered];
  int ends_at = 0;
  std::exception_ptr failure;  ///< of a host function
};

/// The stream whose host function this thread is running; null for none.
SITU_PROCESS_STATE StreamState*& host_function_stream() {
  static thread_local constinit StreamState* stream = nullptr;
  return stream;
}

/// All streams of the process, and the lock of all notes.
struct StreamTable {
  static constexpr uint32_t room = 1 << 16;
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  uint32_t count = 2;  ///< numbers 0 and 1 are nobody
  StreamState** all = nullptr;
};
SITU_PROCESS_STATE StreamTable& stream_table() {
  static constinit StreamTable table;
  return table;
}

class StreamLock {
 public:
  StreamLock() { ::pthread_mutex_lock(&stream_table().mutex); }
  StreamLock(StreamLock const&) = delete;
  StreamLock& operator=(StreamLock const&) = delete;
  ~StreamLock() { ::pthread_mutex_unlock(&stream_table().mutex); }
};

// A note is sequence << 17 | stream << 1, with sequence 0 for all that the stream does.
inline uint32_t stream_of(uint64_t note) { return static_cast<uint32_t>(note >> 1) & (StreamTable::room - 1); }
inline uint64_t note_of(uint64_t sequence, uint32_t stream) { return sequence << 17 | uint64_t{stream} << 1; }
inline StreamState& state_of(uint64_t note) { return *stream_table().all[stream_of(note)]; }

// ---- streams. Callers hold the lock. -----------------------------------------------------------------------------------

inline StreamState* new_stream(StreamDriver const* driver, int ordinal) {
  StreamTable& table = stream_table();
  if (table.count == StreamTable::room) fail<Error>("Stream: there are ", table.count, " streams already; let handles go, and their streams are used again");
  if (!table.all) table.all = static_cast<StreamState**>(std::calloc(StreamTable::room, sizeof(StreamState*)));
  if (!table.all) fail<OutOfMemory>("Stream: there is no memory for another one");
  auto* const state = new StreamState;
  state->driver = driver;
  state->ordinal = ordinal;
  state->index = table.count;
  return state;
}
inline StreamState* add_stream(StreamState* state) {
  StreamTable& table = stream_table();
  table.all[state->index] = state;
  __atomic_store_n(&table.count, state->index + 1, __ATOMIC_RELEASE);
  return state;
}
template <class F>
StreamState* find_stream(StreamDriver const* driver, int ordinal, F const& wanted) {
  StreamTable const& table = stream_table();
  for (uint32_t k = 2; k < table.count; ++k) {
    StreamState* const state = table.all[k];
    if (state->driver == driver && state->ordinal == ordinal && wanted(*state)) return state;
  }
  return nullptr;
}
inline StreamState* default_stream(StreamDriver const* driver, int ordinal) {
  if (StreamState* const found = find_stream(driver, ordinal, [](StreamState const& s) { return s.is_default; })) return found;
  StreamState* const state = new_stream(driver, ordinal);
  state->is_default = true;
  try {
    driver->open_default(*state);
  } catch (...) {
    delete state;
    throw;
  }
  return add_stream(state);
}

inline Moment record_moment(StreamState& state, bool timed = false) {
  Moment moment = Moment::make(state.driver, timed);
  moment.state()->stream = &state;
  state.driver->record(state, moment);
  return moment;
}
/// The end of a segment that is known to have ended; a null pointer otherwise.
inline Moment const* end_of(uint64_t note) {
  StreamState& state = state_of(note);
  uint64_t const sequence = note >> 17;
  for (int k = 0; sequence != 0 && k < StreamState::remembered; ++k) {
    if (state.ended[k] == sequence) return &state.ends[k];
  }
  return nullptr;
}
/// What a note stands for.
inline Moment moment_of(uint64_t note) {
  if (Moment const* const end = end_of(note)) return *end;
  StreamState& state = state_of(note);
  if (__atomic_load_n(&state.recorded, __ATOMIC_ACQUIRE)) return {};
  if (state.foreign && __atomic_load_n(&state.handles, __ATOMIC_ACQUIRE) == 0) return state.ends[(state.ends_at + StreamState::remembered - 1) % StreamState::remembered];
  return record_moment(state);
}

// ---- where a thread is -------------------------------------------------------------------------------------------------

/// The segment that the thread is in.
inline uint64_t begin_segment(StreamDriver const* driver, int ordinal, CurrentStream& current) {
  if (current.segment != 0) return current.segment;
  StreamLock const lock;
  if (!current.state) current.state = default_stream(driver, ordinal);
  StreamState& state = *current.state;
  if (++state.open > 1) state.crowded = true;
  return current.segment = note_of(++state.segments, state.index);
}
/// Takes a thread to another stream; null is the default one.
inline void change_stream(CurrentStream& current, StreamState* to) noexcept {
  if (to == current.state || (!to && current.state->is_default) || (!current.state && to->is_default)) return;
  if (current.segment != 0) {
    StreamLock const lock;
    StreamState& state = *current.state;
    if (current.used && !current.recorder) {
      try {
        Moment moment = record_moment(state);
        state.ended[state.ends_at] = current.segment >> 17;
        state.ends[state.ends_at] = std::move(moment);
        state.ends_at = (state.ends_at + 1) % StreamState::remembered;
      } catch (...) {  // then the end of the segment is the present, whenever it is asked for
      }
    }
    --state.open;
  }
  current.segment = 0;
  current.used = false;
  current.state = to;
  current.native = to && !to->is_default ? to->native : nullptr;
}

// ---- who used a storage ------------------------------------------------------------------------------------------------

inline StreamUses* uses_of(StorageHead& head) {
  auto* uses = static_cast<StreamUses*>(head.uses);
  if (!uses) __atomic_store_n(&head.uses, uses = new StreamUses, __ATOMIC_RELAXED);
  return uses;
}
/// f(note) for each segment that read it since it was written.
template <class F>
void for_each_read(StreamUses const& uses, F const& f) {
  if (uses.read != 0) f(uses.read);
  for (int k = 0; k < uses.more_count; ++k) f(uses.more[k]);
}
inline void forget_reads(StreamUses& uses) noexcept {
  uses.read = 0;
  uses.more_count = 0;
  std::free(uses.more);
  uses.more = nullptr;
}
inline bool is_noted(StreamUses const& uses, uint32_t stream) {
  bool result = false;
  for_each_read(uses, [&](uint64_t note) { result = result || stream_of(note) == stream; });
  return result;
}
inline void note_read(StreamUses& uses, uint64_t segment) {
  StreamState const& state = state_of(segment);
  uint64_t const note = state.crowded ? note_of(0, state.index) : segment;
  uint64_t* place = uses.read == 0 || stream_of(uses.read) == state.index ? &uses.read : nullptr;
  for (int k = 0; k < uses.more_count; ++k) {
    if (stream_of(uses.more[k]) == state.index) place = &uses.more[k];
  }
  if (!place) {
    auto* const grown = static_cast<uint64_t*>(std::realloc(uses.more, static_cast<std::size_t>(uses.more_count + 1) * sizeof(uint64_t)));
    if (!grown) throw std::bad_alloc();
    uses.more = grown;
    place = &uses.more[uses.more_count++];
  }
  *place = note;
}

/// Makes this thread's stream wait for those whose work on the storage comes before its own, and notes it as a user.
SITU_NOINLINE inline void order_after_others(StreamDriver const* driver, int ordinal, CurrentStream& current, StorageHead& head, bool writes) {
  if (current.recorder) {
    auto const* const uses = static_cast<StreamUses const*>(head.uses);
    if (uses && uses->written == current.segment && current.segment != 0) return;  // made while recording
    current.recorder->use(current.recorder, head, writes);
    return;
  }
  uint64_t const mine = begin_segment(driver, ordinal, current);
  StreamLock const lock;
  StreamUses& uses = *uses_of(head);
  StreamState& state = *current.state;
  current.used = true;
  auto const wait_for = [&](uint64_t note) {
    if (stream_of(note) == state.index || note == StreamUses::nobody) return;
    if (Moment const moment = moment_of(note)) driver->wait_for(state, *moment.state());
  };
  bool const read_before = is_noted(uses, state.index);
  if (!read_before) wait_for(uses.written);
  if (writes) {
    for_each_read(uses, wait_for);
    forget_reads(uses);
    uses.written = mine;
    __atomic_store_n(&uses.stamp, mine, __ATOMIC_RELAXED);
    return;
  }
  // Another thread that wrote it may read it on without a further note.
  bool const may_be_read = !read_before && uses.written != StreamUses::nobody && stream_of(uses.written) != state.index && !end_of(uses.written);
  if (may_be_read && !is_noted(uses, stream_of(uses.written))) note_read(uses, uses.written);
  note_read(uses, mine);
  bool const alone = uses.written == mine && uses.more_count == 0;
  __atomic_store_n(&uses.stamp, alone ? mine : mine | 1, __ATOMIC_RELAXED);
}

/// Whether another stream than this thread's used the storage since this one wrote it.
inline bool used_by_others(CurrentStream const& current, StorageHead const& head) {
  auto const* const uses = static_cast<StreamUses const*>(head.uses);
  if (current.segment == 0 || current.recorder || !uses) return true;
  uint32_t const stream = stream_of(current.segment);
  StreamLock const lock;
  bool result = stream_of(uses->written) != stream;
  for_each_read(*uses, [&](uint64_t note) { result = result || stream_of(note) != stream; });
  return result;
}

/// Frees a storage's memory when those who used it have done so. `free_here` frees it in the order of this thread's stream.
inline void deallocate_after_others(StreamDriver const* driver, int ordinal, CurrentStream const& current, StorageHead& head,
                                    void (*free_here)(int ordinal, void* memory, std::size_t bytes) noexcept) noexcept {
  auto& uses = *static_cast<StreamUses*>(head.uses);
  if (!head.memory) return forget_reads(uses);
  uint32_t const stream = stream_of(current.segment);
  bool here = current.recorder != nullptr && uses.written == current.segment;  // made while recording
  if (uses.read == 0) uses.read = uses.written;
  if (!here && !current.recorder) {
    here = true;
    for_each_read(uses, [&](uint64_t note) { here = here && stream_of(note) == stream; });
  }
  if (here) {
    free_here(ordinal, head.memory, head.bytes);
  } else if (uses.more_count == 0) {
    driver->free_after(ordinal, head, &uses.read, 1);
  } else {
    int const count = uses.more_count + 1;
    if (auto* const notes = static_cast<uint64_t*>(std::realloc(uses.more, static_cast<std::size_t>(count) * sizeof(uint64_t)))) {
      uses.more = notes;
      notes[count - 1] = uses.read;
      driver->free_after(ordinal, head, notes, count);
    }  // without memory for a note, the storage is not freed
  }
  forget_reads(uses);
}

/// Before memory that somebody else owns goes back: this thread's stream comes behind all others.
inline void end_uses(StreamDriver const* driver, int ordinal, CurrentStream& current, StorageHead& head) noexcept {
  auto* const uses = static_cast<StreamUses*>(head.uses);
  try {
    if (driver && !current.recorder) order_after_others(driver, ordinal, current, head, true);
  } catch (...) {  // the device is lost, and its memory with it
  }
  forget_reads(*uses);
  delete uses;
  head.uses = nullptr;
}

// ---- handles -----------------------------------------------------------------------------------------------------------

/// A counted handle of a stream.
class StreamHandle {
 public:
  StreamHandle() = default;
  explicit StreamHandle(StreamState* state) : state_(state) {
    if (state_) __atomic_fetch_add(&state_->handles, 1, __ATOMIC_RELAXED);
  }
  StreamHandle(StreamHandle const& other) : StreamHandle(other.state_) {}
  StreamHandle(StreamHandle&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
  StreamHandle& operator=(StreamHandle other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }
  ~StreamHandle() {
    if (state_) __atomic_fetch_sub(&state_->handles, 1, __ATOMIC_ACQ_REL);
  }
  StreamState& state() const { return *state_; }
  explicit operator bool() const { return state_ != nullptr; }

 private:
  StreamState* state_ = nullptr;
};

/// A stream that nobody has: one that was let go and is idle, or a new one. One that will be captured is marked as such before anybody else can come by.
inline StreamHandle open_stream(StreamDriver const* driver, int ordinal, int priority, bool recorded = false) {
  driver->require(ordinal);  // there may be streams of a device that is no longer there
  StreamLock const lock;
  StreamState* state = find_stream(driver, ordinal, [&](StreamState& s) {
    return !s.is_default && !s.foreign && s.priority == priority && __atomic_load_n(&s.handles, __ATOMIC_ACQUIRE) == 0 && s.driver->idle(s);
  });
  if (!state) {
    state = new_stream(driver, ordinal);
    state->priority = priority;
    try {
      driver->open(*state, priority);
    } catch (...) {
      delete state;
      throw;
    }
    add_stream(state);
  }
  state->failure = nullptr;
  __atomic_store_n(&state->recorded, recorded, __ATOMIC_RELEASE);
  return StreamHandle(state);
}
/// A stream that somebody else made, and destroys when no handle is left.
inline StreamHandle wrap_stream(StreamDriver const* driver, int ordinal, void* native) {
  driver->require(ordinal);
  StreamLock const lock;
  StreamState* state = find_stream(driver, ordinal, [&](StreamState& s) { return s.foreign && s.native == native; });
  if (!state) state = find_stream(driver, ordinal, [](StreamState& s) { return s.foreign && __atomic_load_n(&s.handles, __ATOMIC_ACQUIRE) == 0; });
  if (!state) {
    state = new_stream(driver, ordinal);
    state->foreign = true;
    add_stream(state);
  }
  bool const taken_over = __atomic_load_n(&state->handles, __ATOMIC_ACQUIRE) == 0;
  state->native = native;
  StreamHandle result(state);
  Moment const& last = state->ends[(state->ends_at + StreamState::remembered - 1) % StreamState::remembered];
  // Its number stood for another stream, or for one at the same address: what was noted of that comes before.
  if (taken_over && !last.passed()) driver->wait_for(*state, *last.state());
  return result;
}
inline StreamHandle current_stream_of(StreamDriver const* driver, int ordinal, CurrentStream const& current) {
  driver->require(ordinal);
  if (current.state) return StreamHandle(current.state);
  StreamLock const lock;
  return StreamHandle(default_stream(driver, ordinal));
}
inline StreamHandle default_stream_of(StreamDriver const* driver, int ordinal) {
  driver->require(ordinal);
  StreamLock const lock;
  return StreamHandle(default_stream(driver, ordinal));
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
