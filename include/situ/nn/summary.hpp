/// What a module is made of, as a table: std::cout << net, or summary(net) as text.
///
///     Net
///     module  type         parameters                      number  device
///     fc1     Linear       weight [128, 64], bias [128]     8,320  cpu
///     norm    BatchNorm1d  weight [128], bias [128]           256  cpu
///     act     ReLU
///     fc2     Linear       weight [10, 128] frozen          1,280  cpu
///     9,856 parameters: 8,576 trainable, 1,280 frozen; 257 elements in buffers; 40,456 bytes
///
/// A parameter that stands in several places is counted in the first of them, and named in the others. `operator<<` is found after
/// `using namespace situ`.
#pragma once

#include <situ/core/list.hpp>
#include <situ/nn/module.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// "1,234,567".
[[gnu::cold]] inline std::string grouped(int64_t number) {
  std::string result = std::to_string(number);
  for (std::size_t at = result.size(); at > 3;) result.insert(at -= 3, 1, ',');
  return result;
}

/// The rows of a summary. Printing is never hot: what does not depend on types is compiled once, for size.
class SummaryTable {
 public:
  /// Begins a row, and returns its number.
  [[gnu::cold]] SITU_NOINLINE std::size_t add_module(std::string const& place, char const* class_name) {
    rows_.push_back(Row());
    for (int k = 0; k < columns; ++k) cells_.push_back(k == 0 ? place : k == 1 ? short_name(class_name) : std::string());
    return rows_.size() - 1;
  }
  /// Says that a module has no parameters yet.
  [[gnu::cold]] SITU_NOINLINE void leave_open(std::size_t row) {
    cell(row, parameters) = "made by the first input";
  }
  /// A parameter of the module in a row, `name` below its place.
  [[gnu::cold]] SITU_NOINLINE void add_parameter(std::size_t row, std::string const& place, std::string const& name, Shape const& shape, void const* key, bool trains,
                                                 int element_bytes, std::string const& where) {
    Row& to = rows_[row];
    std::string& words = cell(row, parameters);
    if (!words.empty()) words += ", ";
    words += name;
    note_device(row, where);
    to.has_parameters = true;
    for (std::size_t k = 0; k < seen_.size(); ++k) {
      if (seen_[k] != key) continue;
      words += " = " + seen_paths_[k];
      return;
    }
    note_seen(key, place);
    int64_t const size = product(shape);
    words += (name.empty() ? "" : " ") + to_string(shape) + (trains ? "" : " frozen");
    to.number += size;
    (trains ? trainable_ : frozen_) += size;
    bytes_ += size * element_bytes;
  }
  [[gnu::cold]] SITU_NOINLINE void add_buffer(std::size_t row, int64_t size, void const* key, int element_bytes, std::string const& where) {
    note_device(row, where);
    for (void const* earlier : seen_) {
      if (earlier == key) return;
    }
    note_seen(key, {});
    buffers_ += size;
    bytes_ += size * element_bytes;
  }

  /// The table: the whole module's type, a row for each module below it, and the totals.
  [[gnu::cold]] SITU_NOINLINE std::string text() const {
    std::size_t widths[4] = {6, 4, 10, 6};
    for (std::size_t k = first_row(); k < rows_.size(); ++k) {
      Row const& row = rows_[k];
      for (int column = 0; column < 4; ++column) {
        std::size_t const width = column < 3 ? cells_[k * columns + static_cast<std::size_t>(column)].size() : grouped(row.number).size();
        if (width > widths[column]) widths[column] = width;
      }
    }
    std::string result = cells_[type];
    if (first_row() < rows_.size()) add_line(result, widths, "module", "type", "parameters", "number", "device");
    for (std::size_t k = first_row(); k < rows_.size(); ++k) {
      Row const& row = rows_[k];
      std::string const* const cells = &cells_[k * columns];
      add_line(result, widths, cells[path], cells[type], cells[parameters], row.has_parameters ? grouped(row.number) : std::string(), cells[device]);
    }
    return result + "\n" + grouped(trainable_ + frozen_) + " parameters: " + grouped(trainable_) + " trainable, " + grouped(frozen_) + " frozen; " + grouped(buffers_) +
           " elements in buffers; " + grouped(bytes_) + " bytes";
  }

 private:
  struct Row {
    int64_t number = 0;
    bool has_parameters = false;
  };
  enum : int { path, type, parameters, device, columns };
  std::string& cell(std::size_t row, int column) { return cells_[row * columns + static_cast<std::size_t>(column)]; }
  void note_device(std::size_t row, std::string const& name) {
    if (cell(row, device).empty()) cell(row, device) = name;
  }
  void note_seen(void const* key, std::string const& where) {
    seen_.push_back(key);
    seen_paths_.push_back(where);
  }

  /// The whole module has a row where it has state of its own.
  std::size_t first_row() const { return cells_[device].empty() && cells_[parameters].empty() ? 1 : 0; }

  static void pad(std::string& line, std::size_t width, std::size_t from) {
    if (line.size() - from < width) line.append(width - (line.size() - from), ' ');
  }
  [[gnu::cold]] SITU_NOINLINE static void add_line(std::string& to, std::size_t const* widths, std::string const& path, std::string const& type, std::string const& parameters,
                                                   std::string const& number, std::string const& device) {
    std::string line;
    std::size_t from = 0;
    std::string const* const cells[] = {&path, &type, &parameters};
    for (int column = 0; column < 3; ++column) {
      line += *cells[column];
      pad(line, widths[column], from);
      line += "  ";
      from = line.size();
    }
    if (number.size() < widths[3]) line.append(widths[3] - number.size(), ' ');
    line += number + "  " + device;
    while (!line.empty() && line.back() == ' ') line.pop_back();
    to += "\n" + line;
  }

  /// "Linear" of "… [with M = situ::nn::Linear<float>]": the last name before the template arguments, also of a type within a template.
  [[gnu::cold]] SITU_NOINLINE static std::string short_name(char const* signature) {
    std::string const all = signature;
    std::size_t end = all.rfind(']');
    if (end == std::string::npos) return all;
    if (end > 0 && all[end - 1] == '>') {
      int depth = 0;
      do {
        --end;
        if (all[end] == '>') ++depth;
        if (all[end] == '<') --depth;
      } while (end > 0 && depth > 0);
    }
    auto const is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || static_cast<signed char>(c) < 0; };
    std::size_t begin = end;
    while (begin > 0 && is_letter(all[begin - 1])) --begin;
    return all.substr(begin, end - begin);
  }

  List<Row> rows_;
  List<std::string> cells_;  ///< of a row: where it stands, its type, its parameters, its device
  List<void const*> seen_;   ///< parameters and buffers
  List<std::string> seen_paths_;
  int64_t trainable_ = 0, frozen_ = 0, buffers_ = 0, bytes_ = 0;
};

template <class M>
constexpr char const* module_signature() {
  return __PRETTY_FUNCTION__;
}

/// Adds x, which stands at `path`, to a table; `name` is its name in the module of a row.
template <class X>
void summarise(SummaryTable& table, std::size_t row, std::string const& path, std::string const& name, X const& x) {
  if constexpr (is_parameter<X>) {
    table.add_parameter(row, path, name, x.shape(), x.state(), x.requires_grad(), static_cast<int>(sizeof(value_of<X>)), device_traits<device_of<X>>::name());
  } else if constexpr (std::is_same_v<X, nn::Counter>) {
    table.add_buffer(row, 1, x.tensor().body(), 8, {});
  } else if constexpr (is_buffer<X>) {
    table.add_buffer(row, x.size(), x.body(), static_cast<int>(sizeof(value_of<X>)), device_traits<device_of<X>>::name());
  } else if constexpr (any_module<X>) {
    std::size_t const own = table.add_module(path, module_signature<X>());
    if constexpr (requires { x.situ_check_state(path); }) {
      try {
        x.situ_check_state(path);
      } catch (TypeError const&) {
        return table.leave_open(own);
      }
    }
    constexpr bool is_nameless = requires { X::situ_member_is_nameless; };
    constexpr bool names_elements = requires { x.situ_element_name(int64_t{}); };
    int k = 0;
    for_each_member(x, [&]<class Member>(Member const& member) {
      int const number = k++;
      if constexpr (!any_module<Member> && !holds_state<Member>) {
        static_cast<void>(number);
      } else if constexpr (is_nameless) {
        summarise(table, own, path, {}, member);
      } else if constexpr (several<Member> && names_elements) {
        int64_t j = 0;
        for (auto const& each : member) {
          std::string const element = element_name(x, j++);
          summarise(table, own, path_below(path, element), element, each);
        }
      } else {
        std::string const below = member_name(X::situ_member_names(), number);
        summarise(table, own, path_below(path, below), below, member);
      }
    });
  } else if constexpr (is_optional<X>) {
    if constexpr (holds_state<X>) {
      if (x) summarise(table, row, path, name, *x);
    }
  } else if constexpr (several<X>) {
    if constexpr (holds_state<X>) {
      int64_t k = 0;
      for (auto const& each : x) {
        std::string const number = std::to_string(k++);
        summarise(table, row, path_below(path, number), path_below(name, number), each);
      }
    }
  }
}

}  // namespace detail

/// A table of the modules below this one: path, type, shapes of their own parameters, the number of these, and where they are; then the totals.
template <any_module M>
std::string summary(M const& net) {
  detail::SummaryTable table;
  detail::summarise(table, 0, {}, {}, net);
  return table.text();
}

/// Writes the summary to a stream.
template <class Stream, any_module M>
  requires requires(Stream& s, char const* t) {
    s.write(t, 1);
    s.flush();
  }
Stream& operator<<(Stream& stream, M const& net) {
  std::string const text = summary(net);
  stream.write(text.data(), static_cast<std::ptrdiff_t>(text.size()));
  return stream;
}

namespace nn {
using situ::summary;
}  // namespace nn
}  // namespace situ::inline SITU_ABI
