/// situ::profile: what a piece of a program has its devices do, and how long that takes.
///
///     situ::profile p;                       // from here
///     train(batch);
///     p.stop();                              // to here; waits for what was enqueued
///     std::cout << p;                        // a table, the longest first
///     p.write_chrome_trace("step.json");     // for chrome://tracing, Perfetto, speedscope
///
/// Launches on the host and on emulated devices are timed by the host's clock, on GPUs by events in the stream, which add about a microsecond
/// to each. Kernels are named by their formulas, in which tensors are a, b, c from left to right.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <iosfwd>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include <pthread.h>
#include <sched.h>

#include <situ/core/error.hpp>
#include <situ/device/any.hpp>
#include <situ/device/cpu/memory.hpp>
#include <situ/device/observe.hpp>
#include <situ/device/report.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

struct ProfileEvent {
  Happening what;
  int64_t start = 0, duration = -1;  ///< nanoseconds; -1 until it has ended
  int thread = 0;
  bool began = false, cancelled = false;
  bool queued = false;          ///< it began on another thread than it was asked for
  bool read_on_device = false;  ///< by the clock of a GPU
  void* started = nullptr;
  void* ended = nullptr;
  int64_t (*read)(void* started, void* ended, int ordinal, int64_t* begin) noexcept = nullptr;
};

/// What running profiles were told, in its order. One per process; empty while no profile runs.
struct ProfileStore {
  static constexpr int index_bits = 36;
  int64_t lock = 0;
  int64_t running = 0;
  int64_t generation = 1;
  ProfileEvent* events = nullptr;
  int64_t count = 0, room = 0;
  int threads = 0;
  bool watches_forks = false;

  /// The event of a mark, while it is here. The lock is held.
  ProfileEvent* find(Mark mark) {
    int64_t const index = (mark & ((int64_t{1} << index_bits) - 1)) - 1;
    return mark >> index_bits == generation && index < count ? &events[index] : nullptr;
  }
};
SITU_PROCESS_STATE ProfileStore& profile_store() {
  static constinit ProfileStore store;
  return store;
}
/// A child of fork goes on with the profile.
inline void watch_forks(ProfileStore& store) noexcept {
  cpu::watch_forks();
  if (__atomic_exchange_n(&store.watches_forks, true, __ATOMIC_RELAXED)) return;
  ::pthread_atfork(
      [] {
        while (__atomic_exchange_n(&profile_store().lock, 1, __ATOMIC_ACQUIRE)) ::sched_yield();
      },
      [] { __atomic_store_n(&profile_store().lock, 0, __ATOMIC_RELEASE); }, [] { __atomic_store_n(&profile_store().lock, 0, __ATOMIC_RELEASE); });
}
SITU_PROCESS_STATE int& profile_thread() {
  static thread_local constinit int number = 0;
  return number;
}

inline Mark profile_begin(Happening const& what, bool queued) noexcept {
  ProfileStore& store = profile_store();
  SpinLock const guard(store.lock);
  if (store.running == 0) return 0;
  if (store.count == store.room) {
    int64_t const room = store.room ? 2 * store.room : 1024;
    void* const grown = std::realloc(static_cast<void*>(store.events), static_cast<std::size_t>(room) * sizeof(ProfileEvent));
    if (!grown) return 0;
    store.events = static_cast<ProfileEvent*>(grown);
    store.room = room;
  }
  int& thread = profile_thread();
  if (thread == 0) thread = ++store.threads;
  ProfileEvent& event = *::new (static_cast<void*>(&store.events[store.count++])) ProfileEvent;
  event.what = what;
  event.thread = thread;
  event.began = !queued;
  event.queued = queued;
  event.start = steady_now();
  return store.generation << ProfileStore::index_bits | store.count;
}
inline Mark profile_start(Mark mark, Happening const& what) noexcept {
  ProfileStore& store = profile_store();
  {
    SpinLock const guard(store.lock);
    ProfileEvent* const event = store.find(mark);
    if (event && !event->began) {
      int& thread = profile_thread();
      if (thread == 0) thread = ++store.threads;
      event->thread = thread;
      event->began = true;
      event->start = steady_now();
      return mark;
    }
    if (store.running == 0) return 0;
  }
  return profile_begin(what, false);
}
inline void profile_end(Mark mark) noexcept {
  int64_t const now = steady_now();
  ProfileStore& store = profile_store();
  SpinLock const guard(store.lock);
  if (ProfileEvent* const event = store.find(mark)) event->duration = now - event->start;
}
inline void profile_cancel(Mark mark) noexcept {
  ProfileStore& store = profile_store();
  SpinLock const guard(store.lock);
  if (ProfileEvent* const event = store.find(mark)) event->cancelled = true, event->duration = 0;
}
inline void profile_attach(Mark mark, void* started, void* ended, int64_t (*read)(void*, void*, int, int64_t*) noexcept) noexcept {
  ProfileStore& store = profile_store();
  {
    SpinLock const guard(store.lock);
    if (ProfileEvent* const event = store.find(mark)) {
      event->started = started;
      event->ended = ended;
      event->read = read;
      event->read_on_device = true;
      return;
    }
  }
  int64_t begin = 0;
  (void)read(started, ended, 0, &begin);  // the profile has ended: so do the events
}

/// Waits for the events [first, last) to end.
inline void settle_profile(int64_t first, int64_t last) {
  ProfileStore& store = profile_store();
  for (int64_t k = first; k < last; ++k) {
    for (int tries = 0;; ++tries) {
      ProfileEvent event;
      {
        SpinLock const guard(store.lock);
        event = store.events[k];
        store.events[k].read = nullptr;  // one thread reads it
      }
      if (event.duration >= 0) break;
      if (event.read) {
        int64_t begin = event.start;
        int64_t const took = event.read(event.started, event.ended, event.what.place.ordinal, &begin);
        SpinLock const guard(store.lock);
        store.events[k].start = begin;
        store.events[k].duration = took;
        break;
      }
      // What is under way on the host, such as the call that this stands in, or a range of another thread, has no end yet.
      if (event.began && (event.thread == profile_thread() || event.what.kind == event_kind::range)) break;
      if (tries < 1000) {
        ::sched_yield();
      } else {
        timespec const pause{0, 100000};
        ::nanosleep(&pause, nullptr);
      }
    }
  }
}

}  // namespace detail

/// Records what all threads have the devices do, from its construction to stop() or its end. Profiles may overlap. While one runs, each
/// launch and allocation costs about a tenth of a microsecond more on the host; otherwise nothing but a branch.
///
/// `profile` is the name to use; a program that records nothing does not pay for compiling it.
template <class Event = detail::ProfileEvent, class Text = std::string>
class basic_profile {
 public:
  /// What events of one kind and name come to.
  struct row {
    Text kind;    ///< "launch", "allocation", "transfer", "copy" (within a device), "synchronization", "range"
    Text name;    ///< a formula, an operation, a direction
    Text device;
    int64_t count = 0;
    int64_t bytes = 0;
    double seconds = 0, longest = 0;
  };

  basic_profile() {
    detail::ProfileStore& store = detail::profile_store();
    detail::Observers& observers = detail::observers_state();
    (void)detail::read_environment();
    detail::cpu::stay_loaded(reinterpret_cast<void const*>(&detail::profile_begin));
    detail::watch_forks(store);
    detail::SpinLock const guard(store.lock);
    if (store.running++ == 0) {
      if (!observers.begin) {  // for all that come, while other threads read them
        observers.start = &detail::profile_start;
        observers.end = &detail::profile_end;
        observers.cancel = &detail::profile_cancel;
        observers.attach = &detail::profile_attach;
        observers.begin = &detail::profile_begin;
      }
      __atomic_store_n(&detail::cpu::memory_state().small_limit, std::size_t{0}, __ATOMIC_RELAXED);
      __atomic_fetch_or(&observers.active, static_cast<unsigned>(detail::profiles), __ATOMIC_RELEASE);
    }
    first_ = store.count;
    began_ = detail::steady_now();
  }
  basic_profile(basic_profile const&) = delete;
  basic_profile& operator=(basic_profile const&) = delete;
  ~basic_profile() {
    try {
      stop();
    } catch (...) {
    }
  }

  /// Ends the recording, and waits for what was enqueued in it. Does nothing when called again.
  void stop() {
    if (stopped_) return;
    detail::ProfileStore& store = detail::profile_store();
    int64_t const last = count();
    ended_ = detail::steady_now();
    detail::settle_profile(first_, last);
    events_.reserve(static_cast<std::size_t>(last - first_));
    stopped_ = true;
    detail::ProfileEvent* all = nullptr;
    int64_t all_count = 0;
    {
      detail::SpinLock const guard(store.lock);
      for (int64_t k = first_; k < last; ++k) {
        if (!store.events[k].cancelled) events_.push_back(store.events[k]);
      }
      if (--store.running > 0) return;
      __atomic_fetch_and(&detail::observers_state().active, ~static_cast<unsigned>(detail::profiles), __ATOMIC_RELAXED);
      __atomic_store_n(&detail::cpu::memory_state().small_limit, detail::cpu::large_block, __ATOMIC_RELAXED);
      all = std::exchange(store.events, nullptr);
      all_count = std::exchange(store.count, 0);
      store.room = 0;
      ++store.generation;
    }
    for (int64_t k = 0; k < all_count; ++k) {  // what began meanwhile in other threads is in no profile: its events go
      int64_t begin = 0;
      if (all[k].read) (void)all[k].read(all[k].started, all[k].ended, all[k].what.place.ordinal, &begin);
    }
    std::free(all);
  }

  /// How often each thing happened so far, on all devices or on one (of a transfer: that it goes to or comes from). Nothing is waited for.
  int64_t launches() const { return count_of(detail::event_kind::launch); }
  int64_t launches(AnyDevice const& d) const { return count_of(detail::event_kind::launch, &d); }
  int64_t allocations() const { return count_of(detail::event_kind::allocation); }
  int64_t allocations(AnyDevice const& d) const { return count_of(detail::event_kind::allocation, &d); }
  int64_t transfers() const { return count_of(detail::event_kind::transfer, nullptr, 1); }
  int64_t transfers(AnyDevice const& d) const { return count_of(detail::event_kind::transfer, &d, 1); }
  /// Within a device.
  int64_t copies() const { return count_of(detail::event_kind::transfer, nullptr, 0); }
  int64_t copies(AnyDevice const& d) const { return count_of(detail::event_kind::transfer, &d, 0); }
  int64_t synchronizations() const { return count_of(detail::event_kind::synchronization); }
  int64_t synchronizations(AnyDevice const& d) const { return count_of(detail::event_kind::synchronization, &d); }

  /// What happened, by kind, name and device, the longest first. Waits for what was enqueued.
  std::vector<row> rows() const {
    std::vector<row> result;
    std::vector<Event> const all = events();
    std::vector<decltype(Event::what)> seen;
    for (auto const& event : all) {
      if (event.what.kind == detail::event_kind::release) continue;
      std::size_t at = 0;
      while (at < seen.size() && !alike(seen[at], event.what)) ++at;
      if (at == seen.size()) {
        seen.push_back(event.what);
        result.push_back({kind_text(event.what), name_text(event.what), to_string(event.what.place), 0, 0, 0, 0});
      }
      row& r = result[at];
      double const seconds = event.duration > 0 ? static_cast<double>(event.duration) * 1e-9 : 0;
      ++r.count;
      r.bytes += event.what.bytes;
      r.seconds += seconds;
      if (seconds > r.longest) r.longest = seconds;
    }
    std::vector<row> merged;  // the same name may come from several libraries
    for (row& one : result) {
      std::size_t at = 0;
      while (at < merged.size() && !(merged[at].kind == one.kind && merged[at].name == one.name && merged[at].device == one.device)) ++at;
      if (at == merged.size()) {
        merged.push_back(one);
      } else {
        merged[at].count += one.count;
        merged[at].bytes += one.bytes;
        merged[at].seconds += one.seconds;
        if (one.longest > merged[at].longest) merged[at].longest = one.longest;
      }
    }
    for (std::size_t k = 1; k < merged.size(); ++k) {
      for (std::size_t j = k; j > 0 && merged[j].seconds > merged[j - 1].seconds; --j) std::swap(merged[j], merged[j - 1]);
    }
    return merged;
  }

  /// The events one by one, in the format of Chrome's trace viewer. Waits for what was enqueued. Throws IoError.
  void write_chrome_trace(std::string const& path) const {
    std::string const json = chrome_trace();
    std::FILE* const file = std::fopen(path.c_str(), "wb");
    bool good = file && std::fwrite(json.data(), 1, json.size(), file) == json.size();
    if (file) good = std::fclose(file) == 0 && good;
    if (!good) detail::fail<IoError>("write_chrome_trace: ", path, ": the file cannot be written");
  }
  std::string chrome_trace() const {
    std::string json = "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[";
    json += "\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":1,\"tid\":0,\"args\":{\"name\":\"host\"}}";
    struct Track {
      int pid;
      int64_t tid;
      void const* stream;
    };
    std::vector<Track> tracks;
    struct Held {
      detail::Place place;
      int64_t bytes;
    };
    std::vector<Held> allocated;
    for (auto const& event : events()) {
      detail::Happening const& what = event.what;
      bool const on_gpu = event.read_on_device;
      int const pid = on_gpu ? 2 + what.place.ordinal : 1;
      std::size_t at = 0;
      while (at < tracks.size() && !(tracks[at].pid == pid && (on_gpu ? tracks[at].stream == what.stream : tracks[at].tid == event.thread))) ++at;
      if (at == tracks.size()) {
        tracks.push_back({pid, on_gpu ? static_cast<int64_t>(at) + 1 : event.thread, what.stream});
        std::string const device = to_string(what.kind == detail::event_kind::transfer && what.place.is_host() ? what.from : what.place);
        if (on_gpu) json += ",\n{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":" + std::to_string(pid) + ",\"tid\":0,\"args\":{\"name\":\"" + device + "\"}}";
        json += ",\n{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":" + std::to_string(pid) + ",\"tid\":" + std::to_string(tracks[at].tid) + ",\"args\":{\"name\":\"";
        json += on_gpu ? "stream " + std::to_string(at + 1) : (event.queued ? device + " " : "") + "thread " + std::to_string(event.thread);
        json += "\"}}";
      }
      std::string const begin = detail::microseconds_text(event.start - began_);
      std::string const ids = ",\"pid\":" + std::to_string(pid) + ",\"tid\":" + std::to_string(tracks[at].tid);
      if (what.kind == detail::event_kind::allocation || what.kind == detail::event_kind::release) {
        std::size_t k = 0;
        while (k < allocated.size() && !(allocated[k].place == what.place)) ++k;
        if (k == allocated.size()) allocated.push_back({what.place, 0});
        allocated[k].bytes += what.kind == detail::event_kind::allocation ? what.bytes : -what.bytes;
        json += ",\n{\"name\":\"memory of " + to_string(what.place) + "\",\"ph\":\"C\",\"ts\":" + begin + ids + ",\"args\":{\"bytes\":" + std::to_string(allocated[k].bytes) + "}}";
        if (what.kind == detail::event_kind::release) continue;
      }
      json += ",\n{\"name\":";
      detail::append_json(json, name_text(what));
      json += ",\"cat\":\"" + kind_text(what) + "\",\"ph\":\"X\"";
      json += ",\"ts\":" + begin + ",\"dur\":" + detail::microseconds_text(event.duration > 0 ? event.duration : 0) + ids + ",\"args\":{\"device\":\"" + to_string(what.place) + "\"";
      if (what.bytes > 0) json += ",\"bytes\":" + std::to_string(what.bytes);
      if (what.site.file || what.site.operation) {
        json += ",\"site\":";
        detail::append_json(json, detail::site_text(what.site));
      }
      json += "}}";
    }
    return json + "\n]}\n";
  }

  /// The rows as a table.
  friend std::string to_string(basic_profile const& p) {
    std::vector<row> const all = p.rows();
    std::vector<std::vector<Text>> cells{{"kind", "name", "device", "calls", "total", "mean", "longest", "bytes"}};
    int64_t bytes[2] = {};
    for (row const& r : all) {
      if (r.kind == "allocation") bytes[0] += r.bytes;
      if (r.kind == "transfer") bytes[1] += r.bytes;
      std::string name = r.name;
      if (name.size() > 60) name = name.substr(0, 57) + "...";
      auto const time = [](double seconds) { return detail::time_text(static_cast<int64_t>(seconds * 1e9 + 0.5)); };
      cells.push_back({r.kind, name, r.device, std::to_string(r.count), time(r.seconds), time(r.seconds / static_cast<double>(r.count)), time(r.longest),
                       r.bytes ? detail::bytes_text(r.bytes) : ""});
    }
    auto const plural = [](int64_t n, char const* one, char const* many) { return std::to_string(n) + " " + (n == 1 ? one : many); };
    return plural(p.launches(), "launch", "launches") + ", " + plural(p.allocations(), "allocation", "allocations") + " (" + detail::bytes_text(bytes[0]) + "), " +
           plural(p.transfers(), "transfer", "transfers") + " (" + detail::bytes_text(bytes[1]) + "), " +
           plural(p.synchronizations(), "synchronization", "synchronizations") + " in " +
           detail::time_text((p.stopped_ ? p.ended_ : detail::steady_now()) - p.began_) + "\n" + (all.empty() ? "" : detail::table_text(cells, 3));
  }
  template <class Traits>
  friend std::basic_ostream<char, Traits>& operator<<(std::basic_ostream<char, Traits>& out, basic_profile const& p) {
    return out << to_string(p).c_str();
  }

 private:
  static int64_t count() {
    detail::ProfileStore& store = detail::profile_store();
    detail::SpinLock const guard(store.lock);
    return store.count;
  }
  static bool alike(detail::Happening const& a, detail::Happening const& b) {
    return a.kind == b.kind && a.place == b.place && a.from == b.from && a.name.operation == b.name.operation && a.name.formula == b.name.formula;
  }
  static std::string kind_text(detail::Happening const& what) {
    switch (what.kind) {
      case detail::event_kind::launch: return "launch";
      case detail::event_kind::allocation: return "allocation";
      case detail::event_kind::release: return "release";
      case detail::event_kind::transfer: return what.place == what.from ? "copy" : "transfer";
      case detail::event_kind::synchronization: return "synchronization";
      case detail::event_kind::range: break;
    }
    return "range";
  }
  static std::string name_text(detail::Happening const& what) {
    switch (what.kind) {
      case detail::event_kind::allocation: return "allocate";
      case detail::event_kind::transfer: return to_string(what.from) + " -> " + to_string(what.place);
      default: return to_string(what.name);
    }
  }
  /// `moved`: 1 for transfers, 0 for copies within a device, -1 for what is neither.
  int64_t count_of(detail::event_kind kind, AnyDevice const* d = nullptr, int moved = -1) const {
    detail::ProfileStore& store = detail::profile_store();
    auto const counts = [&](detail::ProfileEvent const& event) {
      detail::Happening const& what = event.what;
      if (what.kind != kind || event.cancelled || (moved >= 0 && (what.place == what.from) == (moved == 1))) return false;
      return !d || what.place == d->place() || (moved >= 0 && what.from == d->place());
    };
    int64_t result = 0;
    if (stopped_) {
      for (auto const& event : events_) result += counts(event);
    } else {
      detail::SpinLock const guard(store.lock);
      for (int64_t k = first_; k < store.count; ++k) result += counts(store.events[k]);
    }
    return result;
  }
  std::vector<Event> events() const {
    if (stopped_) return events_;
    detail::ProfileStore& store = detail::profile_store();
    int64_t const last = count();
    detail::settle_profile(first_, last);
    std::vector<Event> result;
    result.reserve(static_cast<std::size_t>(last - first_));
    detail::SpinLock const guard(store.lock);
    for (int64_t k = first_; k < last; ++k) {
      if (!store.events[k].cancelled) result.push_back(store.events[k]);
    }
    return result;
  }

  int64_t first_ = 0, began_ = 0, ended_ = 0;
  bool stopped_ = false;
  std::vector<Event> events_;
};
using profile = basic_profile<>;

/// A named part of the program in profiles and, with SITU_NVTX, in Nsight: ProfileRange const forward("forward"). The name is a literal.
class ProfileRange {
 public:
  explicit ProfileRange(char const* name) noexcept {
    if (detail::is_observed(detail::profiles | detail::ranges)) begin(name);
  }
  ProfileRange(ProfileRange const&) = delete;
  ProfileRange& operator=(ProfileRange const&) = delete;
  ~ProfileRange() {
    if (mark_) detail::observers_state().end(mark_);
    if (pushed_) detail::observers_state().pop_range();
  }

 private:
  void begin(char const* name) noexcept {
    unsigned const who = detail::observing(detail::profiles | detail::ranges);
    detail::Observers const& observers = detail::observers_state();
    if (who & detail::ranges) observers.push_range(name), pushed_ = true;
    if (!(who & detail::profiles)) return;
    detail::Happening what;
    what.kind = detail::event_kind::range;
    what.name = detail::LaunchName(name);
    mark_ = observers.begin(what, false);
  }
  detail::Mark mark_ = 0;
  bool pushed_ = false;
};

}  // namespace situ::inline SITU_ABI
