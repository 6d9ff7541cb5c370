/// TransferLog: which lines of a program move how much between devices.
///
///     TransferLog log;
///     train(epoch);
///     std::cout << log;     // 1875 transfers cuda:0 -> cpu at train.cpp:41 are 1874 too many
#pragma once

#include <iosfwd>
#include <string>
#include <utility>
#include <vector>

#include <situ/core/error.hpp>
#include <situ/device/any.hpp>
#include <situ/device/cpu/system.hpp>
#include <situ/device/memory_statistics.hpp>
#include <situ/device/observe.hpp>
#include <situ/device/report.hpp>

namespace situ::inline SITU_ABI {

namespace detail {

namespace parts {  // bases of public types; see expr/node.hpp
/// A log that is open.
struct OpenTransferLog {
  void (*add)(OpenTransferLog&, Happening const&) noexcept = nullptr;
  OpenTransferLog* next = nullptr;
};
}  // namespace parts
using parts::OpenTransferLog;

/// One list per process.
struct TransferLogs {
  int64_t lock = 0;
  OpenTransferLog* first = nullptr;
};
SITU_PROCESS_STATE TransferLogs& transfer_logs_state() {
  static constinit TransferLogs logs;
  return logs;
}
inline void log_transfer(Happening const& what) noexcept {
  TransferLogs& logs = transfer_logs_state();
  SpinLock const guard(logs.lock);
  for (OpenTransferLog* log = logs.first; log; log = log->next) log->add(*log, what);
}

}  // namespace detail

/// Counts what all threads move between devices from its construction to stop() or its end: copies within a device, and within host memory
/// (Cpu and Pinned), are none. Logs may be nested: each counts for itself. Without one, nothing is counted.
///
/// A transfer is told with the line that asked for it by to(), cpu(), cuda(), to_async(), pin() or item(); others, such as printing, with
/// what they did.
///
/// `TransferLog` is the name to use; a program without one does not pay for compiling it.
template <class Text = std::string>
class BasicTransferLog : detail::OpenTransferLog {
 public:
  struct row {
    AnyDevice from, to;
    Text site;
    int64_t count = 0, bytes = 0;
  };

  BasicTransferLog() {
    add = [](detail::OpenTransferLog& log, detail::Happening const& what) noexcept { static_cast<BasicTransferLog&>(log).count(what); };
    (void)detail::read_environment();
    detail::cpu::stay_loaded(reinterpret_cast<void const*>(&detail::log_transfer));
    detail::TransferLogs& logs = detail::transfer_logs_state();
    detail::SpinLock const guard(logs.lock);
    next = logs.first;
    logs.first = this;
    if (!detail::observers_state().log_transfer) detail::observers_state().log_transfer = &detail::log_transfer;
    __atomic_fetch_or(&detail::observers_state().active, static_cast<unsigned>(detail::transfer_logs), __ATOMIC_RELEASE);
  }
  BasicTransferLog(BasicTransferLog const&) = delete;
  BasicTransferLog& operator=(BasicTransferLog const&) = delete;
  ~BasicTransferLog() { stop(); }

  /// Ends the counting. Does nothing when called again.
  void stop() noexcept {
    if (stopped_) return;
    stopped_ = true;
    detail::TransferLogs& logs = detail::transfer_logs_state();
    detail::SpinLock const guard(logs.lock);
    detail::OpenTransferLog** link = &logs.first;
    while (*link != this) link = &(*link)->next;
    *link = next;
    if (!logs.first) __atomic_fetch_and(&detail::observers_state().active, ~static_cast<unsigned>(detail::transfer_logs), __ATOMIC_RELAXED);
  }
  /// Forgets what was counted.
  void reset() {
    detail::SpinLock const guard(detail::transfer_logs_state().lock);
    entries_.clear();
  }

  /// How many transfers there were, and their bytes: all of them, or those of one direction.
  int64_t count() const { return sum(nullptr, nullptr).count; }
  int64_t bytes() const { return sum(nullptr, nullptr).bytes; }
  int64_t count(AnyDevice const& from, AnyDevice const& to) const { return sum(&from, &to).count; }
  int64_t bytes(AnyDevice const& from, AnyDevice const& to) const { return sum(&from, &to).bytes; }

  /// By line and direction, most bytes first.
  std::vector<row> rows() const {
    std::vector<row> result;
    for (Entry const& entry : entries()) {
      row one{device_of(entry.from), device_of(entry.to), detail::site_text(entry.site), entry.count, entry.bytes};
      std::size_t at = 0;
      while (at < result.size() && !(result[at].from == one.from && result[at].to == one.to && result[at].site == one.site)) ++at;
      if (at == result.size()) result.push_back(one);
      else result[at].count += one.count, result[at].bytes += one.bytes;
    }
    for (std::size_t k = 1; k < result.size(); ++k) {
      for (std::size_t j = k; j > 0 && result[j].bytes > result[j - 1].bytes; --j) std::swap(result[j], result[j - 1]);
    }
    return result;
  }

  /// The rows as a table.
  friend std::string to_string(BasicTransferLog const& log) {
    std::vector<std::vector<Text>> cells{{"from", "to", "where", "count", "bytes"}};
    int64_t count = 0, bytes = 0;
    for (row const& r : log.rows()) {
      cells.push_back({to_string(r.from), to_string(r.to), r.site.empty() ? "elsewhere" : r.site, std::to_string(r.count), detail::bytes_text(r.bytes)});
      count += r.count;
      bytes += r.bytes;
    }
    return std::to_string(count) + (count == 1 ? " transfer, " : " transfers, ") + detail::bytes_text(bytes) + "\n" + (count ? detail::table_text(cells, 3) : "");
  }
  template <class Traits>
  friend std::basic_ostream<char, Traits>& operator<<(std::basic_ostream<char, Traits>& out, BasicTransferLog const& log) {
    return out << to_string(log).c_str();
  }

 private:
  struct Entry {
    detail::Place from, to;
    detail::CallSite site;
    int64_t count, bytes;
  };

  static AnyDevice device_of(detail::Place const& place) { return AnyDevice(place); }
  /// The lock is held.
  void count(detail::Happening const& what) noexcept {
    for (Entry& entry : entries_) {
      if (entry.from == what.from && entry.to == what.place && entry.site.file == what.site.file && entry.site.line == what.site.line &&
          entry.site.operation == what.site.operation) {
        ++entry.count;
        entry.bytes += what.bytes;
        return;
      }
    }
    try {
      entries_.push_back({what.from, what.place, what.site, 1, what.bytes});
    } catch (...) {
    }
  }
  std::vector<Entry> entries() const {
    detail::SpinLock const guard(detail::transfer_logs_state().lock);
    return entries_;
  }
  struct Sum {
    int64_t count, bytes;
  };
  Sum sum(AnyDevice const* from, AnyDevice const* to) const {
    Sum result{0, 0};
    for (Entry const& entry : entries()) {
      if (from && !(entry.from == from->place() && entry.to == to->place())) continue;
      result.count += entry.count;
      result.bytes += entry.bytes;
    }
    return result;
  }

  bool stopped_ = false;
  std::vector<Entry> entries_;
};

using TransferLog = BasicTransferLog<>;

}  // namespace situ::inline SITU_ABI
