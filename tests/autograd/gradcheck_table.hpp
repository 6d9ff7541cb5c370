/// The one table of differentiable operations: each is checked against finite differences in every layout.
///
/// Files named gradcheck_*.cpp add their rows to it. A public function of the autograd headers, or an elementwise function, that has no row
/// fails the test that reads those headers.
#pragma once

#include <string>
#include <vector>

#include <autograd/layouts.hpp>

namespace situ_test {

/// What an entry asks for besides its gradient in every layout.
enum : unsigned {
  plain = 0,
  distinct = 1,     ///< not for inputs that repeat elements: among equals there is no derivative
  twice = 2,        ///< second derivatives, too
  elementwise = 4,  ///< second derivatives, operands that are broadcast and, where there are two, every pair of layouts
};

struct Entry {
  using One = V (*)(V const&);
  using Two = V (*)(V const&, V const&);
  using Three = V (*)(V const&, V const&, V const&);

  std::string operation;  ///< the public name
  char const* variant;    ///< what of it
  std::vector<situ::Shape> shapes;
  One one = nullptr;
  Two two = nullptr;
  Three three = nullptr;
  unsigned flags;
  double low, high;  ///< inputs lie between them, away from kinks; both 0 for -1 to 1

  Entry(char const* name, char const* what, std::vector<situ::Shape> const& inputs, One f, unsigned also = plain, double from = 0, double to = 0)
      : operation(name), variant(what), shapes(inputs), one(f), flags(also), low(from), high(to) {}
  Entry(char const* name, char const* what, std::vector<situ::Shape> const& inputs, Two f, unsigned also = plain, double from = 0, double to = 0)
      : operation(name), variant(what), shapes(inputs), two(f), flags(also), low(from), high(to) {}
  Entry(char const* name, char const* what, std::vector<situ::Shape> const& inputs, Three f, unsigned also = plain, double from = 0, double to = 0)
      : operation(name), variant(what), shapes(inputs), three(f), flags(also), low(from), high(to) {}
};

inline std::vector<Entry>& gradcheck_table() {
  static std::vector<Entry> table;
  return table;
}

/// Adds rows: `Rows const rows{{...}, {...}};` in a file of its own, which checks them.
struct Rows {
  std::size_t first, count;
  Rows(std::initializer_list<Entry> entries) : first(gradcheck_table().size()), count(entries.size()) {
    gradcheck_table().insert(gradcheck_table().end(), entries.begin(), entries.end());
  }
};
/// Whether these operations have the gradients of finite differences, in every layout.
void check_gradients(Rows const& rows);

}  // namespace situ_test
