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
  char text[32];
  std::size_t at = sizeof text;
  for (int digits = 0; digits == 0 || number > 0; ++digits, number /= 10) {
    if (digits > 0 && digits % 3 == 0) text[--at] = ',';
    text[--at] = static_cast<char>('0' + number % 10);
  }
  return std::string(text + at, sizeof text - at);
}

/// The rows of a summary. Printing is never hot: what does not depend on types is compiled once, for size.
class SummaryTable {
 public:
  SummaryTable() { add_cells({"module", "type", "parameters", "number", "device"}); }

  /// Begins a row, and returns its number.
  [[gnu::cold]] SITU_NOINLINE std::size_t add_module(std::string const& place, char const* class_name) {
    add_cells({place.c_str(), short_name(class_name).c_str(), "", "", ""});
    numbers_.push_back(0);
    return numbers_.size();
  }
  /// Says that a module has no parameters yet.
  [[gnu::cold]] SITU_NOINLINE void leave_open(std::size_t row) { cell(row, parameters) += "made by the first input"; }
  /// A parameter of the module in a row, `name` below its place.
  [[gnu::cold]] SITU_NOINLINE void add_parameter(std::size_t row, std::string const& place, std::string const& name, Shape const& shape, void const* key, bool trains,
                                                 int element_bytes, std::string const& where) {
    note_device(row, where);
    Seen const* const earlier = find(key);
    int64_t const size = earlier ? 0 : product(shape);
    std::string& words = cell(row, parameters);
    words += message({words.empty() ? "" : ", ", name, earlier ? " = " : name.empty() ? "" : " "});
    if (earlier) words += earlier->path;
    else words += message({shape, trains ? "" : " frozen"});
    if (!earlier) seen_.push_back({key, place});
    cell(row, number) = grouped(numbers_[row - 1] += size);
    (trains ? trainable_ : frozen_) += size;
    bytes_ += size * element_bytes;
  }
  [[gnu::cold]] SITU_NOINLINE void add_buffer(std::size_t row, int64_t size, void const* key, int element_bytes, std::string const& where) {
    note_device(row, where);
    if (find(key)) return;
    seen_.push_back({key, {}});
    buffers_ += size;
    bytes_ += size * element_bytes;
  }

  /// The table: the whole module's type, a row for each module below it, and the totals.
  [[gnu::cold]] SITU_NOINLINE std::string text() const {
    // The whole module has a row where it has state of its own.
    std::size_t const begin = cell(1, device).empty() && cell(1, parameters).empty() ? 2 : 1, end = numbers_.size() + 1;
    std::size_t widths[columns] = {};
    for (std::size_t row = 0; row < end; row = row == 0 ? begin : row + 1) {
      for (int column = 0; column < device; ++column) {
        if (cell(row, column).size() > widths[column]) widths[column] = cell(row, column).size();
      }
    }
    MessageText result;
    add_to(result, cell(1, type));
    for (std::size_t row = 0; row < end && begin < end; row = row == 0 ? begin : row + 1) add_line(result, row, widths);
    add_to(result, "\n", grouped(trainable_ + frozen_), " parameters: ", grouped(trainable_), " trainable, ", grouped(frozen_), " frozen; ", grouped(buffers_),
           " elements in buffers; ", grouped(bytes_), " bytes");
    return result.string();
  }

 private:
  enum : int { path, type, parameters, number, device, columns };
  struct Seen {
    void const* key;
    std::string path;
  };

  void add_cells(std::initializer_list<char const*> texts) {
    for (char const* each : texts) cells_.push_back(each);
  }
  std::string& cell(std::size_t row, int column) { return cells_[row * columns + static_cast<std::size_t>(column)]; }
  std::string const& cell(std::size_t row, int column) const { return cells_[row * columns + static_cast<std::size_t>(column)]; }
  [[gnu::cold]] SITU_NOINLINE void note_device(std::size_t row, std::string const& name) {
    if (cell(row, device).empty()) cell(row, device) += name;
  }
  [[gnu::cold]] SITU_NOINLINE Seen const* find(void const* key) const {
    for (Seen const& each : seen_) {
      if (each.key == key) return &each;
    }
    return nullptr;
  }

  /// A row's cells below each other, the number to the right; no spaces at the end.
  [[gnu::cold]] SITU_NOINLINE void add_line(MessageText& to, std::size_t row, std::size_t const* widths) const {
    int last = device;
    while (last > 0 && cell(row, last).empty()) --last;
    for (int column = 0; column <= last; ++column) {
      std::string const& words = cell(row, column);
      to.add(column == 0 ? "\n" : "  ");
      if (column != number) to.add(words.c_str());
      for (std::size_t k = words.size(); column < last + (last == number) && k < widths[column]; ++k) to.add(" ");
      if (column == number) to.add(words.c_str());
    }
  }

  /// "Linear" of "… [with M = situ::nn::Linear<float>]": the last name before the template arguments, also of a type within a template.
  [[gnu::cold]] SITU_NOINLINE static std::string short_name(char const* signature) {
    char const* end = __builtin_strrchr(signature, ']');
    if (!end) return signature;
    if (end > signature && end[-1] == '>') {
      int depth = 0;
      do {
        --end;
        if (*end == '>') ++depth;
        if (*end == '<') --depth;
      } while (end > signature && depth > 0);
    }
    auto const is_letter = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || static_cast<signed char>(c) < 0; };
    char const* begin = end;
    while (begin > signature && is_letter(begin[-1])) --begin;
    return std::string(begin, static_cast<std::size_t>(end - begin));
  }

  List<std::string> cells_;  ///< row 0 is the heading
  List<int64_t> numbers_;    ///< of the rows' parameters
  List<Seen> seen_;          ///< parameters and buffers
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
        std::string const number = message({k++});
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
template <detail::text_stream Stream, any_module M>
Stream& operator<<(Stream& stream, M const& net) {
  std::string const text = summary(net);
  return detail::write_text(stream, text.data(), static_cast<std::ptrdiff_t>(text.size()));
}

namespace nn {
using situ::summary;
}  // namespace nn
}  // namespace situ::inline SITU_ABI
