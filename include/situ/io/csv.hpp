/// CSV files: tables of numbers as tensors and datasets.
///
///     auto [values, names] = data::read_csv<double>("weather.csv", {.columns = {"temperature", "pressure"}});
///     data::CsvDataset iris{"iris.csv", {.label = "species", .label_names = true}};
#pragma once

#include <charconv>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#if !defined(__cpp_lib_to_chars)
#include <locale.h>
#endif

#include <situ/data/dataset.hpp>
#include <situ/io/detail/file.hpp>
#include <situ/tensor/tensor.hpp>

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

/// Columns of numbers, and their names.
template <element T>
struct CsvTable {
  Tensor<T> values;  ///< [rows, columns]
  std::vector<std::string> names;
};

}  // namespace data

namespace detail {

enum class parsed : unsigned char { number, missing, wrong, too_large };

inline bool is_word(std::string_view text, char const* word) {
  for (char c : text) {
    if ((c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c) != *word++) return false;
  }
  return *word == '\0';
}

/// Digits as far as they go: a number m * 10^e, which is exact unless `many`.
struct Decimal {
  uint64_t digits = 0;
  int exponent = 0;
  bool negative = false, many = false, has_point = false, good = false;
};
/// Reads a decimal number, and returns where it ends. Not `good`: there is none.
SITU_INLINE char const* scan_decimal(char const* at, char const* end, Decimal& number) {
  if (at != end && (*at == '-' || *at == '+')) number.negative = *at++ == '-';
  char const* const first = at;
  uint64_t digits = 0;
  for (; at != end && static_cast<unsigned char>(*at - '0') < 10; ++at) digits = 10 * digits + static_cast<unsigned char>(*at - '0');
  auto count = at - first;
  if (at != end && *at == '.') {
    number.has_point = true;
    char const* const point = ++at;
    for (; at != end && static_cast<unsigned char>(*at - '0') < 10; ++at) digits = 10 * digits + static_cast<unsigned char>(*at - '0');
    count += at - point;
    number.exponent = static_cast<int>(point - at);
  }
  if (count == 0) return at;
  number.good = true;
  number.digits = digits;
  number.many = count > 19;
  if (at == end || (*at != 'e' && *at != 'E')) return at;
  number.has_point = true;
  ++at;
  bool const down = at != end && *at == '-';
  if (at != end && (*at == '-' || *at == '+')) ++at;
  if (at == end || static_cast<unsigned char>(*at - '0') >= 10) {
    number.good = false;
    return at;
  }
  int power = 0;
  for (; at != end && static_cast<unsigned char>(*at - '0') < 10; ++at) power = power < 100000 ? 10 * power + (*at - '0') : power;
  number.exponent += down ? -power : power;
  return at;
}

/// Any decimal number, correctly rounded; the text is known to be one.
template <class F>
SITU_NOINLINE F parse_decimal_closely(char const* first, char const* last) {
  F value = 0;
#if defined(__cpp_lib_to_chars)
  if (*first == '+') ++first;
  auto const result = std::from_chars(first, last, value);
  if (result.ec != std::errc::result_out_of_range) return value;
  // Too large or too small: infinity or zero.
  int64_t magnitude = 0, power = 0;
  bool after_point = false, begun = false;
  char const* at = *first == '-' ? first + 1 : first;
  for (; at != last && *at != 'e' && *at != 'E'; ++at) {
    if (*at == '.') {
      after_point = true;
      continue;
    }
    begun = begun || *at != '0';
    if (begun && !after_point) ++magnitude;
    if (!begun && after_point) --magnitude;
  }
  bool const down = at != last && at[1] == '-';
  for (; at != last; ++at) {
    if (static_cast<unsigned char>(*at - '0') < 10 && power < 1000000) power = 10 * power + (*at - '0');
  }
  value = magnitude + (down ? -power : power) > 0 ? std::numeric_limits<F>::infinity() : F(0);
  return *first == '-' ? -value : value;
#else
  static locale_t const plain = ::newlocale(LC_ALL_MASK, "C", nullptr);
  std::string const text(first, last);
  if constexpr (std::is_same_v<F, float>) value = ::strtof_l(text.c_str(), nullptr, plain);
  else value = ::strtod_l(text.c_str(), nullptr, plain);
  return value;
#endif
}

/// m * 10^e, correctly rounded where that is one operation of exact numbers. False elsewhere.
/// Source    Clinger 1990, doi:10.1145/93548.93557.
template <class F>
SITU_INLINE bool decimal_to(Decimal const& number, F& value) {
  static constexpr double powers[] = {1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
  if (number.many || number.digits > uint64_t{1} << 53 || number.exponent < -22 || number.exponent > 22) return false;
  double const digits = static_cast<double>(static_cast<int64_t>(number.digits));
  double const wide = number.exponent < 0 ? digits / powers[-number.exponent] : digits * powers[number.exponent];
  if constexpr (std::is_same_v<F, float>) {
    // Rounded twice, to a value between two floats: then only a closer look tells which is nearer.
    uint64_t const bits = bits_to<uint64_t>(wide);
    if ((bits & 0x1fffffff) == 0x10000000 || (wide < 1.2e-38 && wide > 0) || wide > 3.4e38) return false;
  }
  value = static_cast<F>(number.negative ? -wide : wide);
  return true;
}

/// The element that a field says, without quotes and spaces around it.
template <element T>
parsed parse_field(std::string_view field, T& value) {
  if (field.empty() || is_word(field, "nan") || is_word(field, "na") || is_word(field, "n/a") || is_word(field, "null") || is_word(field, "none")) return parsed::missing;
  char const *const first = field.data(), *const last = first + field.size();
  Decimal number;
  bool const whole = scan_decimal(first, last, number) == last && number.good;
  if constexpr (floating<T>) {
    using F = std::conditional_t<std::is_same_v<T, double>, double, float>;
    F result;
    if (whole) {
      if (!decimal_to(number, result)) result = parse_decimal_closely<F>(first, last);
    } else {
      std::size_t const sign = *first == '-' || *first == '+';
      std::string_view const word = field.substr(sign);
      if (!is_word(word, "inf") && !is_word(word, "infinity")) return parsed::wrong;
      result = std::numeric_limits<F>::infinity();
      if (*first == '-') result = -result;
    }
    value = convert_scalar<T>(result);
  } else if constexpr (std::is_same_v<T, bool>) {
    if (is_word(field, "true") || field == "1") value = true;
    else if (is_word(field, "false") || field == "0") value = false;
    else return parsed::wrong;
  } else {
    if (!whole || number.has_point) return parsed::wrong;
    using Limits = std::numeric_limits<T>;
    uint64_t const most = number.negative ? static_cast<uint64_t>(-(static_cast<int64_t>(Limits::min()) + 1)) + (std::is_signed_v<T> ? 1 : 0) : static_cast<uint64_t>(Limits::max());
    uint64_t const largest = number.negative && !std::is_signed_v<T> ? 0 : most;
    if (number.many || number.digits > largest) return parsed::too_large;
    value = static_cast<T>(number.negative ? 0 - number.digits : number.digits);
  }
  return parsed::number;
}

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
    sorted_.insert(sorted_.begin() + static_cast<std::ptrdiff_t>(place(word)), words_.size());
    words_.emplace_back(word);
    return static_cast<int64_t>(words_.size()) - 1;
  }
  std::vector<std::string> const& words() const { return words_; }
  /// The numbers of the words in the order of their spelling.
  std::vector<std::size_t> const& sorted() const { return sorted_; }

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
  std::vector<std::size_t> sorted_;
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
    while (first != last && (*first == ' ' || *first == '\t')) ++first;
    while (first != last && (last[-1] == ' ' || last[-1] == '\t')) --last;
    end_field();
    return {first, static_cast<std::size_t>(last - first)};
  }

  [[noreturn]] SITU_NOINLINE void fail(int64_t line, std::string const& what) const { context_.fail(text("line ", line, what)); }
  FileContext const& context() const { return context_; }

 private:
  void end_field() {
    row_ended_ = at_ == end_ || *at_ == '\n';
    if (at_ != end_) ++at_;
    if (!row_ended_) return;
    ++line_;
    skip_blank_lines();
  }
  void skip_blank_lines() {
    while (at_ != end_ && (*at_ == '\n' || (*at_ == '\r' && (at_ + 1 == end_ || at_[1] == '\n')))) {
      if (*at_ == '\n') ++line_;
      ++at_;
    }
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
    if (at_ != end_ && *at_ != delimiter_ && *at_ != '\n') fail(line_, text(": '", std::string(1, *at_), "' found after a quoted field; the delimiter or the end of the line is needed"));
    end_field();
    return unquoted_;
  }

  FileContext context_;
  char const *at_, *end_;
  char delimiter_, quote_;
  bool row_ended_ = true;
  int64_t line_ = 1;
  std::string unquoted_;
};

inline std::string quoted_column(std::string_view name) { return text("\"", std::string(name.substr(0, 60)), name.size() > 60 ? "...\"" : "\""); }

/// Which field goes where.
struct CsvPlan {
  static constexpr int skipped = -1, label = -2;
  std::vector<int> targets;  ///< of each field: a column of the values, or one of the above
  std::vector<std::string> all_names, names;
  int64_t header_line = 1;

  CsvPlan(CsvText& text, data::CsvOptions const& options) {
    header_line = text.line();
    if (text.at_end()) text.context().fail("the file holds no rows; at least one is needed");
    CsvText ahead = text;
    do all_names.emplace_back(ahead.take());
    while (!ahead.row_ended());
    if (options.header) {
      text = ahead;
    } else {
      for (std::size_t k = 0; k < all_names.size(); ++k) all_names[k] = std::to_string(k);
    }
    targets.assign(all_names.size(), skipped);
    if (!options.label.empty()) targets[find(text, options.label)] = label;
    if (options.columns.empty()) {
      for (std::size_t k = 0; k < all_names.size(); ++k) {
        if (targets[k] == skipped) add(k);
      }
    }
    for (std::string const& name : options.columns) {
      std::size_t const k = find(text, name);
      if (targets[k] != skipped) text.context().fail(situ::detail::text("column ", quoted_column(name), " is asked for twice; each can be read once"));
      add(k);
    }
  }

  std::string column(std::size_t k) const { return text(", column ", static_cast<int64_t>(k) + 1, " (", quoted_column(all_names[k]), ")"); }

 private:
  void add(std::size_t k) {
    targets[k] = static_cast<int>(names.size());
    names.push_back(all_names[k]);
  }
  std::size_t find(CsvText const& text, std::string const& name) const {
    std::size_t found = all_names.size();
    for (std::size_t k = 0; k < all_names.size(); ++k) {
      if (all_names[k] != name) continue;
      if (found < all_names.size()) text.context().fail(situ::detail::text("two columns are named ", quoted_column(name), ": columns ", static_cast<int64_t>(found) + 1, " and ", static_cast<int64_t>(k) + 1));
      found = k;
    }
    if (found < all_names.size()) return found;
    std::string there;
    for (std::size_t k = 0; k < all_names.size() && k < 20; ++k) there += (k ? ", " : "") + quoted_column(all_names[k]);
    text.context().fail(situ::detail::text("there is no column ", quoted_column(name), ": the columns are ", there, all_names.size() > 20 ? ", ..." : ""));
  }
};

template <element T>
T csv_value(CsvText& text, CsvPlan const& plan, std::size_t k) {
  T value{};
  if (SITU_LIKELY(text.take_number(value))) return value;
  int64_t const line = text.line();
  std::string_view const field = text.take();
  parsed const result = parse_field(field, value);
  if (result == parsed::number) return value;
  if constexpr (floating<T>) {
    if (result == parsed::missing) return convert_scalar<T>(std::numeric_limits<float>::quiet_NaN());
  }
  std::string const found = field.empty() ? std::string("nothing") : "'" + std::string(field.substr(0, 60)) + (field.size() > 60 ? "...'" : "'");
  text.fail(line, detail::text(plan.column(k), ": ", found, " found; ",
                               floating<T>                      ? "a number is needed"
                               : std::is_same_v<T, bool>        ? "0, 1, true or false is needed"
                               : result == parsed::too_large ? detail::text("it does not fit ", name(dtype_of<T>))
                                                             : detail::text(result == parsed::missing ? "missing values have no place in " : "an integer is needed for ", name(dtype_of<T>))));
}

template <element T, element L>
struct CsvContent {
  Tensor<T> values;
  Tensor<L> labels;
  std::vector<std::string> names, classes;
};

template <element T, element L, bool WithLabels>
CsvContent<T, L> read_csv_text(char const* who, char const* path, std::string_view content, data::CsvOptions const& options) {
  CsvText text(who, path, content, options);
  if constexpr (WithLabels) {
    if (options.label.empty()) text.context().fail("no column of labels is named; {.label = \"...\"} is needed");
  }
  CsvPlan plan(text, options);
  auto const fields = plan.targets.size();
  auto const width = static_cast<int64_t>(plan.names.size());
  int64_t const most = text.at_end() ? 0 : text.most_rows(static_cast<int64_t>(fields));
  CsvContent<T, L> result{Tensor<T>::uninitialized({most, width}, who), Tensor<L>::uninitialized({WithLabels ? most : 0}, who), plan.names, {}};
  T* values = result.values.data();
  [[maybe_unused]] L* const labels = result.labels.data();
  [[maybe_unused]] bool const by_name = options.label_names || !options.classes.empty();
  [[maybe_unused]] WordList words(options.classes);
  int64_t rows = 0;
  for (; !text.at_end(); ++rows, values += width) {
    int64_t const line = text.line();
    for (std::size_t k = 0;; ++k) {
      if (SITU_UNLIKELY(k == fields)) {
        int64_t found = static_cast<int64_t>(k) + 1;
        for (text.take(); !text.row_ended(); text.take()) ++found;
        text.fail(line, detail::text(": ", found, " fields found; ", static_cast<int64_t>(fields), " are needed, as in line ", plan.header_line));
      }
      int const target = plan.targets[k];
      if (target >= 0) {
        values[target] = csv_value<T>(text, plan, k);
      } else if (target == CsvPlan::skipped) {
        text.take();
      } else if constexpr (WithLabels) {
        if (!by_name) {
          labels[rows] = csv_value<L>(text, plan, k);
        } else {
          std::string_view const word = text.take();
          int64_t const number = options.classes.empty() ? words.add(word) : words.find(word);
          if (number < 0) text.fail(line, detail::text(plan.column(k), ": ", quoted_column(word), " found; one of the classes is needed"));
          labels[rows] = convert_scalar<L>(number);
        }
      }
      if (!text.row_ended()) continue;
      if (SITU_UNLIKELY(k + 1 != fields)) {
        text.fail(line, detail::text(": ", static_cast<int64_t>(k) + 1, k == 0 ? " field" : " fields", " found; ", static_cast<int64_t>(fields), " are needed, as in line ", plan.header_line));
      }
      break;
    }
  }
  if (rows < most) {
    result.values = Tensor<T>(result.values.slice(0, 0, rows).clone());
    if constexpr (WithLabels) result.labels = Tensor<L>(result.labels.slice(0, 0, rows).clone());
  }
  if constexpr (WithLabels) {
    result.classes = words.words();
    if (by_name && options.classes.empty()) {
      std::vector<L> number_of(words.sorted().size());
      for (std::size_t k = 0; k < number_of.size(); ++k) {
        number_of[words.sorted()[k]] = convert_scalar<L>(static_cast<int64_t>(k));
        result.classes[k] = words.words()[words.sorted()[k]];
      }
      L* const written = result.labels.data();
      for (int64_t i = 0; i < rows; ++i) written[i] = number_of[static_cast<std::size_t>(convert_scalar<int64_t>(written[i]))];
    }
  }
  return result;
}

template <element T, element L, bool WithLabels>
CsvContent<T, L> read_csv_file(char const* who, std::string const& path, data::CsvOptions const& options) {
  InputFile const file({who, path.c_str()});
  Temporary<Cpu> const content(static_cast<std::size_t>(file.size()));
  file.read(content.get(), 0, file.size());
  return read_csv_text<T, L, WithLabels>(who, path.c_str(), {static_cast<char const*>(content.get()), static_cast<std::size_t>(file.size())}, options);
}

}  // namespace detail

namespace data {

/// Reads columns of numbers from a CSV file, as RFC 4180 describes it: fields between delimiters, in quotes where they hold delimiters, line breaks or quotes,
/// which are then doubled. Lines end with \n or \r\n; empty ones are left out, and so are spaces around a field without quotes.
///
/// Shape     values: [rows, columns].
/// Dtype     T. Numbers are decimal, always with a dot whatever the locale, and correctly rounded (16-bit floats by way of float); inf and nan are known.
/// Special   a missing value (nothing, NA, N/A, nan, null, none) is NaN.
/// Throws    IoError, `read_csv: <path>: line 3, column 2 ("age"): 'x' found; a number is needed`, for a field that is no T, also a missing one where T has no NaN;
///           rows of another length than the first; columns that are not there; and whatever keeps the file from being read.
/// Cost      one pass over the file, which is read into memory as a whole.
template <element T = float>
CsvTable<T> read_csv(std::string const& path, CsvOptions const& options = {}) {
  auto content = detail::read_csv_file<T, int64_t, false>("read_csv", path, options);
  return {std::move(content.values), std::move(content.names)};
}
/// The same from a text.
template <element T = float>
CsvTable<T> parse_csv(std::string_view text, CsvOptions const& options = {}) {
  auto content = detail::read_csv_text<T, int64_t, false>("parse_csv", "text", text, options);
  return {std::move(content.values), std::move(content.names)};
}

/// Rows of a CSV file with their labels: sample i is (columns of row i, its label). Held in memory.
///
/// The labels are numbers, or with `label_names` words: their numbers are then the places in classes().
/// Throws    as read_csv.
template <element T = float, element L = int64_t>
class CsvDataset : public TensorDataset<Tensor<T>, Tensor<L>> {
 public:
  explicit CsvDataset(std::string const& path, CsvOptions const& options) : CsvDataset(detail::read_csv_file<T, L, true>("CsvDataset", path, options)) {}

  /// The names of the columns that are read, without the label.
  std::vector<std::string> const& columns() const { return columns_; }
  /// The words that labels stand for.
  std::vector<std::string> const& classes() const { return classes_; }

 private:
  explicit CsvDataset(detail::CsvContent<T, L> content)
      : TensorDataset<Tensor<T>, Tensor<L>>(content.values, content.labels), columns_(std::move(content.names)), classes_(std::move(content.classes)) {}
  std::vector<std::string> columns_, classes_;
};

}  // namespace data
}  // namespace situ::inline SITU_ABI
