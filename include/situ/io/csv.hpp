/// CSV files: tables of numbers as tensors and datasets.
///
///     auto [values, names] = data::read_csv<double>("weather.csv", {.columns = {"temperature", "pressure"}});
///     data::CsvDataset iris{"iris.csv", {.label = "species", .label_names = true}};
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <situ/data/dataset.hpp>
#include <situ/io/detail/csv_text.hpp>
#include <situ/io/detail/file.hpp>
#include <situ/tensor/tensor.hpp>

namespace situ::inline SITU_ABI {
namespace data {

/// Columns of numbers, and their names.
template <element T>
struct CsvTable {
  Tensor<T> values;  ///< [rows, columns]
  std::vector<std::string> names;
};

}  // namespace data

namespace detail {

/// What stands in a file, in quotes: the first 60 characters; a zero, at which messages would end, as \0.
inline std::string quoted_text(std::string_view found, char const* quote) {
  std::string result = quote;
  for (char c : found.substr(0, 60)) {
    if (c == '\0') result += "\\0";
    else result += c;
  }
  return result + (found.size() > 60 ? "..." : "") + quote;
}
inline std::string quoted_column(std::string_view name) { return quoted_text(name, "\""); }

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
      if (targets[k] != skipped) text.context().fail("column ", quoted_column(name), " is asked for twice; each can be read once");
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
      if (found < all_names.size()) text.context().fail("two columns are named ", quoted_column(name), ": columns ", static_cast<int64_t>(found) + 1, " and ", static_cast<int64_t>(k) + 1);
      found = k;
    }
    if (found < all_names.size()) return found;
    std::string there;
    for (std::size_t k = 0; k < all_names.size() && k < 20; ++k) there += (k ? ", " : "") + quoted_column(all_names[k]);
    text.context().fail("there is no column ", quoted_column(name), ": the columns are ", there, all_names.size() > 20 ? ", ..." : "");
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
  std::string const found = field.empty() ? std::string("nothing") : quoted_text(field, "'");
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
  if (words.words().size() != options.classes.size()) text.context().fail("a class is named twice in .classes; each word stands for one number");
  std::vector<int64_t> numbers;  // of the words, which L need not hold before they are sorted
  int64_t rows = 0;
  for (; !text.at_end(); ++rows, values += width) {
    int64_t const line = text.line();
    for (std::size_t k = 0;; ++k) {
      if (SITU_UNLIKELY(k == fields)) {
        int64_t found = static_cast<int64_t>(k) + 1;
        for (text.take(); !text.row_ended(); text.take()) ++found;
        text.fail(line, detail::text(": ", found, found == 1 ? " field" : " fields", " found; ", static_cast<int64_t>(fields), fields == 1 ? " is" : " are", " needed, as in line ", plan.header_line));
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
          numbers.push_back(number);
        }
      }
      if (!text.row_ended()) continue;
      if (SITU_UNLIKELY(k + 1 != fields)) {
        text.fail(line, detail::text(": ", static_cast<int64_t>(k) + 1, k == 0 ? " field" : " fields", " found; ", static_cast<int64_t>(fields), fields == 1 ? " is" : " are", " needed, as in line ", plan.header_line));
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
    if (by_name) {
      std::vector<L> number_of(result.classes.size());
      for (std::size_t k = 0; k < number_of.size(); ++k) {
        std::size_t const word = options.classes.empty() ? words.sorted()[k] : k;
        auto const number = static_cast<int64_t>(k);
        L const label = convert_scalar<L>(number);
        number_of[word] = label;
        if (convert_scalar<int64_t>(label) != number) {
          text.context().fail(detail::text(number_of.size(), " classes do not fit labels of type ", name(dtype_of<L>), ": number ", number, " is none; take a wider type"));
        }
        result.classes[k] = words.words()[word];
      }
      L* const written = result.labels.data();
      for (int64_t i = 0; i < rows; ++i) written[i] = number_of[static_cast<std::size_t>(numbers[static_cast<std::size_t>(i)])];
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
/// which are then doubled. Lines end with \n or \r\n; empty ones, and those of spaces, are left out, and so are spaces around a field without quotes.
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
