/// The text of a CSV file: its fields one after the other, and the words of a column.
#pragma once

#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <situ/core/list.hpp>
#include <situ/io/detail/decimal.hpp>
#include <situ/io/detail/file.hpp>

namespace situ::inline SITU_ABI {
namespace data {

/// How a CSV file is read.
struct CsvOptions {
  char delimiter = ',';
  bool header = true;                  ///< the first row holds the names of the columns; without it they are named "0", "1", ...
  std::vector<std::string> columns{};  ///< those to be read, in this order; empty: all (but the label)
  std::string label{};                 ///< CsvDataset: the column of the labels
  bool label_names = false;            ///< labels are words, and are numbered in the order of their spelling
  std::vector<std::string> classes{};  ///< or in this order; another word is an error
  char quote = '"';
};

}  // namespace data

namespace detail {

/// The words of a column, each with a number.
class WordList {
 public:
  WordList() = default;
  explicit WordList(std::vector<std::string> const& words) {
    for (std::string const& word : words) add(word);
  }
  /// -1: not in the list.
  int64_t find(std::string_view word) const {
    std::size_t const at = place(word);
    return at < sorted_.size() && words_[sorted_[at]] == word ? static_cast<int64_t>(sorted_[at]) : -1;
  }
  int64_t add(std::string_view word) {
    if (int64_t const known = find(word); known >= 0) return known;
    std::size_t const at = place(word);
    sorted_.push_back(0);
    for (std::size_t k = words_.size(); k > at; --k) sorted_[k] = sorted_[k - 1];
    sorted_[at] = words_.size();
    words_.push_back(std::string(word));
    return static_cast<int64_t>(words_.size()) - 1;
  }
  std::vector<std::string> const& words() const { return words_; }
  /// The numbers of the words in the order of their spelling.
  List<std::size_t> const& sorted() const { return sorted_; }

 private:
  std::size_t place(std::string_view word) const {
    std::size_t low = 0, high = sorted_.size();
    while (low < high) {
      std::size_t const middle = (low + high) / 2;
      if (words_[sorted_[middle]] < word) low = middle + 1;
      else high = middle;
    }
    return low;
  }
  std::vector<std::string> words_;
  List<std::size_t> sorted_;
};

/// Walks over the fields of a CSV text.
class CsvText {
 public:
  CsvText(char const* who, char const* path, std::string_view text, data::CsvOptions const& options)
      : context_{who, path}, at_(text.data()), end_(at_ + text.size()), delimiter_(options.delimiter), quote_(options.quote) {
    if (text.substr(0, 3) == "\xef\xbb\xbf") at_ += 3;  // a byte order mark
    skip_blank_lines();
  }

  bool at_end() const { return at_ == end_; }
  int64_t line() const { return line_; }
  bool row_ended() const { return row_ended_; }
  /// No more rows than that are left, if each has so many fields.
  int64_t most_rows(int64_t fields) const {
    int64_t newlines = 1;
    for (char const* at = at_; (at = static_cast<char const*>(std::memchr(at, '\n', static_cast<std::size_t>(end_ - at)))) != nullptr; ++at) ++newlines;
    int64_t const by_size = (end_ - at_) / (fields > 0 ? fields : 1) + 1;
    return newlines < by_size ? newlines : by_size;
  }

  /// A number that stands in a field by itself, without quotes, is read at once; false, and nothing is read, for all else.
  template <class T>
  SITU_INLINE bool take_number(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      return false;
    } else {
      Decimal number;
      char const* const after = scan_decimal(at_, end_, number);
      if (!number.good || after == end_ || (*after != delimiter_ && *after != '\n')) return false;
      if constexpr (floating<T>) {
        std::conditional_t<std::is_same_v<T, double>, double, float> result;
        if (!decimal_to(number, result)) result = parse_decimal_closely<decltype(result)>(at_, after);
        value = convert_scalar<T>(result);
      } else {
        if (number.has_point || number.many || number.digits > static_cast<uint64_t>(std::numeric_limits<T>::max()) || (number.negative && !std::is_signed_v<T>)) return false;
        value = static_cast<T>(number.negative ? 0 - number.digits : number.digits);
      }
      at_ = after;
      end_field();
      return true;
    }
  }

  /// The next field: without its quotes, or without the spaces around it. Stays as it is until the next one is taken.
  std::string_view take() {
    char const* first = at_;
    while (first != end_ && (*first == ' ' || *first == '\t') && *first != delimiter_) ++first;
    if (first != end_ && *first == quote_) return take_quoted(first + 1);
    first = at_;
    while (at_ != end_ && *at_ != delimiter_ && *at_ != '\n') ++at_;
    char const* last = at_;
    if (last != first && last[-1] == '\r' && (at_ == end_ || *at_ == '\n')) --last;
    if (first != last && std::memchr(first, '\r', static_cast<std::size_t>(last - first))) fail_carriage_return();
    while (first != last && (*first == ' ' || *first == '\t')) ++first;
    while (first != last && (last[-1] == ' ' || last[-1] == '\t')) --last;
    end_field();
    return {first, static_cast<std::size_t>(last - first)};
  }

  [[noreturn]] SITU_NOINLINE void fail(int64_t line, std::string const& what) const { context_.fail("line ", line, what); }
  FileContext const& context() const { return context_; }

 private:
  void end_field() {
    row_ended_ = at_ == end_ || *at_ == '\n';
    if (at_ != end_) ++at_;
    if (!row_ended_) return;
    ++line_;
    skip_blank_lines();
  }
  /// Lines of nothing but spaces, too.
  void skip_blank_lines() {
    for (;;) {
      char const* at = at_;
      while (at != end_ && (*at == ' ' || *at == '\t') && *at != delimiter_) ++at;
      if (at != end_ && *at == '\r' && (at + 1 == end_ || at[1] == '\n')) ++at;
      if (at == end_) break;
      if (*at != '\n') return;
      at_ = at + 1;
      ++line_;
    }
    at_ = end_;
  }
  std::string_view take_quoted(char const* first) {
    int64_t const line = line_;
    unquoted_.clear();
    for (;;) {
      char const* const closing = static_cast<char const*>(std::memchr(first, quote_, static_cast<std::size_t>(end_ - first)));
      if (!closing) fail(line, ": a quoted field does not end; a closing quote is needed");
      for (char const* c = first; c != closing; ++c) line_ += *c == '\n';
      unquoted_.append(first, closing);
      first = closing + 1;
      if (first == end_ || *first != quote_) break;
      unquoted_ += quote_;  // two of them stand for one
      ++first;
    }
    at_ = first;
    while (at_ != end_ && (*at_ == ' ' || *at_ == '\t' || (*at_ == '\r' && (at_ + 1 == end_ || at_[1] == '\n'))) && *at_ != delimiter_) ++at_;
    if (at_ != end_ && *at_ == '\r') fail_carriage_return();
    if (at_ != end_ && *at_ != delimiter_ && *at_ != '\n') fail(line_, text(": '", std::string(1, *at_), "' found after a quoted field; the delimiter or the end of the line is needed"));
    end_field();
    return unquoted_;
  }

  /// A file whose lines end with \r alone would be one line, its header.
  [[noreturn]] SITU_NOINLINE void fail_carriage_return() const { fail(line_, ": a carriage return found within the line; lines end with \\n or \\r\\n"); }

  FileContext context_;
  char const *at_, *end_;
  char delimiter_, quote_;
  bool row_ended_ = true;
  int64_t line_ = 1;
  std::string unquoted_;
};

}  // namespace detail
}  // namespace situ::inline SITU_ABI
