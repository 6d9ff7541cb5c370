/// Where devices tell what they do: launches, allocations, transfers and synchronisations.
///
/// Nobody listens as a rule; each place then costs one load and a branch. What listens (situ::profile, TransferLog, the ranges of
/// NVTX) stands in headers of its own and leaves its functions in the one table here. SITU_CHECK_LAUNCHES, defined when a file of the
/// program is compiled or set to 1 in the environment when it runs, has every launch waited for, so that an error is thrown where it
/// arose, and names the expression.
#pragma once

#include <cstdlib>

#include <time.h>

#include <situ/core/scalar.hpp>
#include <situ/device/place.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// A formula as data: a function of formulas, an input (by number), a constant, or the index of an element.
struct Formula {
  enum class node : unsigned char { function, input, constant, index };
  node kind = node::constant;
  int number = 0;                          ///< of an input, or how many operands a function has
  char const* name = nullptr;              ///< of a function
  char const* type = nullptr;              ///< what a cast converts to
  Formula const* const* operands = nullptr;
};

/// The formula of a tree; the trees of expressions specialise it.
template <class Tree>
inline constexpr Formula formula_of{};

/// What a launch is called: `sum(a * b)`. Either part may be missing.
struct LaunchName {
  char const* operation = nullptr;
  int operation_length = -1;  ///< -1: to its end
  Formula const* formula = nullptr;
  constexpr LaunchName() = default;
  constexpr LaunchName(char const* name, Formula const* of = nullptr) : operation(name), formula(of) {}
  constexpr LaunchName(Formula const* of) : formula(of) {}
};

/// What stands for the inputs and constants of one formula, where they are known.
struct FormulaTexts {
  std::string const* inputs;
  std::string const* constants;  ///< from left to right
  int constants_done = 0;
};

/// `a`, `b`, … `z`, `a1`, …
inline std::string input_letter(int number) {
  std::string const letter(1, static_cast<char>('a' + number % 26));
  return number < 26 ? letter : letter + std::to_string(number / 26);
}
/// Operators are put in parentheses where they stand inside an operator.
__attribute__((cold)) inline void append_formula(std::string& to, Formula const& f, bool inside, FormulaTexts* texts = nullptr) {
  switch (f.kind) {
    case Formula::node::input: to += texts ? texts->inputs[f.number] : input_letter(f.number); return;
    case Formula::node::constant: to += texts ? texts->constants[texts->constants_done++] : "number"; return;
    case Formula::node::index: to += "index"; return;
    case Formula::node::function: break;
  }
  bool const infix = __builtin_strncmp(f.name, "operator", 8) == 0;
  if (infix) {
    if (inside) to += '(';
    if (f.number == 1) to += f.name + 8;
    for (int k = 0; k < f.number; ++k) {
      if (k > 0) to += std::string(" ") + (f.name + 8) + " ";
      append_formula(to, *f.operands[k], true, texts);
    }
    if (inside) to += ')';
    return;
  }
  to += f.name;
  if (f.type) to += std::string("<") + f.type + ">";
  to += '(';
  for (int k = 0; k < f.number; ++k) {
    if (k > 0) to += ", ";
    append_formula(to, *f.operands[k], false, texts);
  }
  to += ')';
}
__attribute__((cold)) inline std::string to_string(LaunchName const& name) {
  std::string result;
  if (name.operation) result = name.operation_length < 0 ? name.operation : std::string(name.operation, static_cast<std::size_t>(name.operation_length));
  if (!name.formula) return result.empty() ? "kernel" : result;
  // A tree that is one input says nothing beside the operation that reads it.
  if (name.operation && name.formula->kind != Formula::node::function) return result;
  if (name.operation) result += '(';
  append_formula(result, *name.formula, false);
  if (name.operation) result += ')';
  else if (name.formula->kind == Formula::node::input) result = "copy";
  else if (name.formula->kind == Formula::node::constant) result = "fill";
  return result;
}

/// A line of the program.
struct CallSite {
  char const* file = nullptr;
  int line = 0;
  char const* operation = nullptr;  ///< for what has no line: "to_vector"
  /// As a default argument: the caller's.
  static constexpr CallSite here(char const* operation = nullptr, char const* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line, operation};
  }
};

enum class event_kind : unsigned char { launch, allocation, release, transfer, synchronization, range };

/// What is told. Literals and static data only: it is kept as it is.
struct Happening {
  event_kind kind = event_kind::launch;
  Place place;                ///< where it runs; of a transfer, where it goes
  Place from;                 ///< of a transfer
  LaunchName name;
  CallSite site;
  int64_t bytes = 0;
  void const* stream = nullptr;  ///< of a device, where there are several
};

/// Nanoseconds of the clock that std::chrono::steady_clock shows.
inline int64_t steady_now() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

inline Happening launch_happening(Place place, LaunchName const& name) noexcept {
  Happening what;
  what.place = place;
  what.name = name;
  return what;
}

/// Names what was told to a profile; 0 when there is none.
using Mark = int64_t;

enum observers : unsigned {
  profiles = 1u << 0,
  transfer_logs = 1u << 1,
  launch_checks = 1u << 2,
  ranges = 1u << 3,
  environment_unread = 1u << 31,
};

/// Who listens. One per process.
struct Observers {
  unsigned active = environment_unread;
  // Set by profiles. `queued`: it has been enqueued, and begins later.
  Mark (*begin)(Happening const&, bool queued) noexcept = nullptr;
  Mark (*start)(Mark, Happening const&) noexcept = nullptr;  ///< what was queued begins now; a new mark when it has run before
  void (*end)(Mark) noexcept = nullptr;
  void (*cancel)(Mark) noexcept = nullptr;
  /// The clock of a device: its own events around the work, and how they are read.
  void (*attach)(Mark, void* started, void* ended, int64_t (*read)(void* started, void* ended, int ordinal, int64_t* begin) noexcept) noexcept = nullptr;
  // Set by transfer logs.
  void (*log_transfer)(Happening const&) noexcept = nullptr;
  // Set by device/nvtx.hpp.
  void (*push_range)(LaunchName const& name) noexcept = nullptr;
  void (*pop_range)() noexcept = nullptr;
};

SITU_PROCESS_STATE Observers& observers_state() {
  static constinit Observers state;
  return state;
}

/// Reads SITU_CHECK_LAUNCHES, once.
__attribute__((noinline, cold)) inline unsigned read_environment() noexcept {
  unsigned& active = observers_state().active;
  if (__atomic_load_n(&active, __ATOMIC_RELAXED) & environment_unread) {
    char const* const asked = std::getenv("SITU_CHECK_LAUNCHES");
    if (asked && *asked && !(asked[0] == '0' && asked[1] == 0)) __atomic_fetch_or(&active, static_cast<unsigned>(launch_checks), __ATOMIC_RELAXED);
    __atomic_fetch_and(&active, ~static_cast<unsigned>(environment_unread), __ATOMIC_RELAXED);
  }
  return __atomic_load_n(&active, __ATOMIC_RELAXED);
}

/// Whether somebody may listen to any of these: one load.
SITU_INLINE bool is_observed(unsigned what) noexcept {
  return SITU_UNLIKELY((__atomic_load_n(&observers_state().active, __ATOMIC_RELAXED) & (what | environment_unread)) != 0);
}
/// Which of these listen.
inline unsigned observing(unsigned what) noexcept {
  unsigned active = __atomic_load_n(&observers_state().active, __ATOMIC_ACQUIRE);
  if (SITU_UNLIKELY(active & environment_unread)) active = read_environment();
  return active & what;
}
/// Has every launch waited for.
inline bool set_launch_checks(bool on) noexcept {
  unsigned& active = observers_state().active;
  (void)read_environment();
  if (on) __atomic_fetch_or(&active, static_cast<unsigned>(launch_checks), __ATOMIC_RELAXED);
  else __atomic_fetch_and(&active, ~static_cast<unsigned>(launch_checks), __ATOMIC_RELAXED);
  return on;
}
inline bool launches_are_checked() noexcept { return is_observed(launch_checks) && observing(launch_checks); }

#if defined(SITU_CHECK_LAUNCHES)
[[maybe_unused]] static bool const launches_of_this_program_are_checked = set_launch_checks(true);
#endif

/// Something that takes the caller's time, told to profiles and NVTX from its beginning to its end.
class Observed {
 public:
  explicit Observed(Happening const& what) noexcept { begin(what); }
  Observed(Place place, LaunchName const& name) noexcept { begin(launch_happening(place, name)); }
  Observed(Observed const&) = delete;
  Observed& operator=(Observed const&) = delete;
  ~Observed() { end(); }
  Mark mark() const { return mark_; }

 private:
  __attribute__((noinline, cold)) void begin(Happening const& what) noexcept {
    unsigned const who = observing(profiles | ranges);
    Observers const& to = observers_state();
    if ((who & ranges) && what.kind == event_kind::launch && to.push_range) to.push_range(what.name), pushed_ = true;
    if ((who & profiles) && to.begin) mark_ = to.begin(what, false);
  }
  __attribute__((noinline, cold)) void end() noexcept {
    if (mark_) observers_state().end(mark_);
    if (pushed_) observers_state().pop_range();
  }
  Mark mark_ = 0;
  bool pushed_ = false;
};

/// The letters of a kernel's type without its namespaces, template arguments and "Kernel".
struct TypeName {
  char const* begin;
  int length;
};
template <class Kernel>
constexpr TypeName type_name() {
  char const* const all = __PRETTY_FUNCTION__;
  int at = 0, begin = 0, end = 0;
  while (all[at] && !(all[at] == 'K' && all[at + 1] == 'e' && all[at + 2] == 'r' && all[at + 3] == 'n' && all[at + 4] == 'e' && all[at + 5] == 'l' &&
                      all[at + 6] == ' ' && all[at + 7] == '=')) {
    ++at;
  }
  for (at = begin = all[at] ? at + 9 : at; all[at] && all[at] != '<' && all[at] != ']' && all[at] != ';'; ++at) {
    if (all[at] == ':' && all[at + 1] == ':') begin = at + 2;
  }
  end = at;
  if (end - begin > 6 && all[end - 6] == 'K' && all[end - 1] == 'l') end -= 6;
  return {all + begin, end - begin};
}

/// What to call the launch of a kernel: it may have an `operation`, a reducer or an operator with a name, and a tree.
template <class Kernel>
LaunchName launch_name([[maybe_unused]] Kernel const& kernel) {
  LaunchName name;
  if constexpr (requires { kernel.bound.formula; }) name.formula = kernel.bound.formula;
  else if constexpr (requires { typename Kernel::Tree; }) name.formula = &formula_of<typename Kernel::Tree>;
  if constexpr (requires { name.operation = kernel.operation; }) name.operation = kernel.operation;
  else if constexpr (requires { name.operation = Kernel::R::name; }) name.operation = Kernel::R::name;
  else if constexpr (requires { name.operation = kernel.op.name; }) name.operation = kernel.op.name;
  else {
    constexpr TypeName type = type_name<Kernel>();
    name.operation = type.begin;
    name.operation_length = type.length;
  }
  return name;
}

// Work that is enqueued in a stream of an emulated device keeps a mark, and begins when the stream comes to it.

/// The mark of work that is recorded into a graph: each time that it runs is told anew.
inline constexpr Mark recorded_mark = -1;

__attribute__((noinline, cold)) inline Mark begin_queued(Place place, LaunchName const& name) noexcept {
  return observing(profiles) ? observers_state().begin(launch_happening(place, name), true) : 0;
}
inline Mark queue_launch(Place place, LaunchName const& name, bool recorded) noexcept {
  if (SITU_UNLIKELY(recorded)) return recorded_mark;
  return is_observed(profiles) ? begin_queued(place, name) : 0;
}
__attribute__((noinline, cold)) inline Mark start_queued(Mark mark, Happening const& what) noexcept {
  return observing(profiles) ? observers_state().start(mark, what) : 0;
}
inline void end_queued(Mark mark) noexcept {
  if (SITU_UNLIKELY(mark != 0)) observers_state().end(mark);
}

/// Where a transfer was asked for, for the time of a call: kept per thread while somebody listens.
struct TransferContext {
  CallSite site;
  Place from, to;
};
SITU_PROCESS_STATE TransferContext const*& transfer_context() {
  static thread_local constinit TransferContext const* context = nullptr;
  return context;
}

class TransferSite {
 public:
  TransferSite(CallSite const& site, Place from, Place to) noexcept {
    if (!is_observed(profiles | transfer_logs)) return;
    TransferContext const*& current = transfer_context();
    before_ = current;
    if (before_) return;  // the outermost call is the program's
    context_ = {site, from, to};
    current = &context_;
    set_ = true;
  }
  TransferSite(TransferSite const&) = delete;
  TransferSite& operator=(TransferSite const&) = delete;
  ~TransferSite() {
    if (SITU_UNLIKELY(set_)) transfer_context() = before_;
  }

 private:
  TransferContext context_;
  TransferContext const* before_ = nullptr;
  bool set_ = false;
};

/// What is told of a copy between two places; the host's side is named by whoever asked.
__attribute__((noinline, cold)) inline Happening transfer_happening(Place to, Place from, std::size_t bytes, void const* stream) noexcept {
  Happening what;
  what.kind = event_kind::transfer;
  what.place = to;
  what.from = from;
  what.bytes = static_cast<int64_t>(bytes);
  what.stream = stream;
  if (TransferContext const* const context = transfer_context()) {
    what.site = context->site;
    if (to.is_host() && context->to.is_host()) what.place = context->to;
    if (from.is_host() && context->from.is_host()) what.from = context->from;
  }
  return what;
}
/// Tells logs of a transfer, and profiles of its beginning.
__attribute__((noinline, cold)) inline Mark begin_transfer(Place to, Place from, std::size_t bytes, bool queued, void const* stream = nullptr) noexcept {
  unsigned const who = observing(profiles | transfer_logs);
  if (!who) return 0;
  Observers const& observers = observers_state();
  Happening const what = transfer_happening(to, from, bytes, stream);
  if ((who & transfer_logs) && observers.log_transfer && !(to == from)) observers.log_transfer(what);
  return (who & profiles) && observers.begin ? observers.begin(what, queued) : 0;
}

inline Mark queue_transfer(Place to, Place from, std::size_t bytes, bool recorded) noexcept {
  if (SITU_UNLIKELY(recorded)) return recorded_mark;
  return is_observed(profiles | transfer_logs) ? begin_transfer(to, from, bytes, true) : 0;
}

/// A transfer that is done when the scope ends.
class ObservedTransfer {
 public:
  ObservedTransfer(Place to, Place from, std::size_t bytes) noexcept {
    if (is_observed(profiles | transfer_logs)) mark_ = begin_transfer(to, from, bytes, false);
  }
  ObservedTransfer(ObservedTransfer const&) = delete;
  ObservedTransfer& operator=(ObservedTransfer const&) = delete;
  ~ObservedTransfer() {
    if (SITU_UNLIKELY(mark_ != 0)) observers_state().end(mark_);
  }
  Mark mark() const { return mark_; }

 private:
  Mark mark_ = 0;
};

/// A wait of the host for a device, until the scope ends.
class ObservedWait {
 public:
  explicit ObservedWait(Place place, char const* what = "synchronize", void const* stream = nullptr) noexcept {
    if (is_observed(profiles)) begin(place, what, stream);
  }
  ObservedWait(ObservedWait const&) = delete;
  ObservedWait& operator=(ObservedWait const&) = delete;
  ~ObservedWait() {
    if (SITU_UNLIKELY(mark_ != 0)) observers_state().end(mark_);
  }

 private:
  __attribute__((noinline, cold)) void begin(Place place, char const* what, void const* stream) noexcept {
    if (!observing(profiles)) return;
    Happening happening;
    happening.kind = event_kind::synchronization;
    happening.place = place;
    happening.name = LaunchName(what);
    happening.stream = stream;
    mark_ = observers_state().begin(happening, false);
  }
  Mark mark_ = 0;
};

/// An allocation, until the scope ends; cancelled when it throws.
class ObservedAllocation {
 public:
  ObservedAllocation(Place place, std::size_t bytes) noexcept {
    if (is_observed(profiles)) begin(event_kind::allocation, place, bytes);
  }
  ObservedAllocation(ObservedAllocation const&) = delete;
  ObservedAllocation& operator=(ObservedAllocation const&) = delete;
  ~ObservedAllocation() {
    if (SITU_UNLIKELY(mark_ != 0)) observers_state().cancel(mark_);
  }
  template <class T>
  T* done(T* memory) {
    if (SITU_UNLIKELY(mark_ != 0)) observers_state().end(mark_), mark_ = 0;
    return memory;
  }
  static void released(Place place, std::size_t bytes) noexcept {
    if (!is_observed(profiles)) return;
    ObservedAllocation release(event_kind::release, place, bytes);
    (void)release.done(&release);
  }

 private:
  ObservedAllocation(event_kind kind, Place place, std::size_t bytes) noexcept { begin(kind, place, bytes); }
  __attribute__((noinline, cold)) void begin(event_kind kind, Place place, std::size_t bytes) noexcept {
    if (!observing(profiles)) return;
    Happening happening;
    happening.kind = kind;
    happening.place = place;
    happening.bytes = static_cast<int64_t>(bytes);
    mark_ = observers_state().begin(happening, false);
  }
  Mark mark_ = 0;
};

}  // namespace detail
}  // namespace situ::inline SITU_ABI
