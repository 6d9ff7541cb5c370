/// Runs the table of differentiable operations, and sees that none is missing from it.
#include <doctest/doctest.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <set>
#include <string_view>

#include <autograd/gradcheck_table.hpp>
#include <situ/autograd/conv2d.hpp>
#include <situ/autograd/index.hpp>
#include <situ/autograd/matmul.hpp>
#include <situ/autograd/rows.hpp>
#include <situ/autograd/scan.hpp>

using namespace situ;
using namespace situ_test;

namespace {

V input(Entry const& entry, Shape const& shape, layout how, unsigned number) {
  V const x = leaf(shape, how, number + 1);
  return entry.low == entry.high ? x : within(x, entry.low, entry.high);
}
bool check(Entry const& entry, std::vector<V> const& x) {
  if (entry.one) return gradcheck(entry.one, x[0]);
  if (entry.two) return gradcheck(entry.two, {x[0], x[1]});
  return gradcheck(entry.three, {x[0], x[1], x[2]});
}
bool check_twice(Entry const& entry, std::vector<V> const& x) {
  if (entry.one) return gradgradcheck(entry.one, x[0]);
  if (entry.two) return gradgradcheck(entry.two, {x[0], x[1]});
  return gradgradcheck(entry.three, {x[0], x[1], x[2]});
}
std::vector<V> inputs(Entry const& entry, layout how) {
  std::vector<V> result;
  for (unsigned k = 0; k < entry.shapes.size(); ++k) result.push_back(input(entry, entry.shapes[k], how, k));
  return result;
}

/// The names of functions that a header declares outside of namespaces of its own.
void add_functions(std::filesystem::path const& header, std::set<std::string>& names) {
  std::ifstream file(header);
  bool inside = false;
  for (std::string line; std::getline(file, line);) {
    for (std::string_view hidden : {"detail", "functions", "autograd", "nn"}) {
      if (line == "namespace " + std::string(hidden) + " {") inside = true;
      if (line == "}  // namespace " + std::string(hidden)) inside = false;
    }
    std::size_t const open = line.find('(');
    if (inside || open == std::string::npos || line.empty() || std::isspace(static_cast<unsigned char>(line[0])) || line[0] == '/' || line[0] == '#') continue;
    std::string_view const before = std::string_view(line).substr(0, open);
    if (before.starts_with("SITU_RECORDED_")) {  // a macro that declares functions of the name that follows
      std::size_t const end = line.find_first_of(",)", open);
      if (before != "SITU_RECORDED_FORM") names.insert(line.substr(open + 1, end - open - 1));
      continue;
    }
    std::size_t const space = before.rfind(' ');
    if (space == std::string_view::npos || before.starts_with("template") || before.starts_with("SITU_") || before.find('=') != std::string_view::npos) continue;
    std::string_view const name = before.substr(space + 1);
    if (!name.empty() && std::islower(static_cast<unsigned char>(name[0])) && name.find_first_of(":<&*") == std::string_view::npos) names.insert(std::string(name));
  }
}
/// Those that macros of expr/functions.hpp make.
void add_elementwise(std::filesystem::path const& header, std::set<std::string>& names) {
  std::ifstream file(header);
  for (std::string line; std::getline(file, line);) {
    for (std::string_view macro : {"SITU_UNARY(", "SITU_BINARY(", "SITU_OPERATOR(", "SITU_TERNARY_NAME("}) {
      if (line.starts_with(macro)) names.insert(line.substr(macro.size(), line.find(',') - macro.size()));
    }
  }
}

}  // namespace

void situ_test::check_gradients(Rows const& rows) {
  for (std::size_t k = 0; k < rows.count; ++k) {
    Entry const& entry = gradcheck_table()[rows.first + k];
    INFO(entry.operation << ", " << entry.variant);
    for (layout how : all_layouts) {
      if (how == layout::broadcast && (entry.flags & distinct)) continue;
      INFO(static_cast<int>(how));
      CHECK(check(entry, inputs(entry, how)));
    }
  }
}

TEST_CASE("elementwise operations: every pair of layouts, and operands that are broadcast, which get sums") {
  Shape const pairs[][2] = {{{2, 3}, {3}}, {{3}, {2, 3}}, {{2, 1}, {1, 3}}, {{}, {2, 3}}, {{2, 3}, {}}, {{1}, {2, 1, 3}}, {{2, 1, 1}, {2, 3}}, {{}, {}}, {{0, 3}, {3}}};
  for (Entry const& entry : gradcheck_table()) {
    if (!(entry.flags & elementwise)) continue;
    INFO(entry.operation << ", " << entry.variant);
    if (entry.one) {
      CHECK(check(entry, {V(input(entry, {1, 4}, layout::contiguous, 0).value().expand({3, 4}))}));
    } else if (entry.two) {
      for (layout left : all_layouts) {
        for (layout right : all_layouts) {
          if (left != right) CHECK(check(entry, {input(entry, {2, 3}, left, 0), input(entry, {2, 3}, right, 1)}));
        }
      }
      for (auto const& [left, right] : pairs) CHECK(check(entry, {input(entry, left, layout::contiguous, 0), input(entry, right, layout::contiguous, 1)}));
    }
  }
}

TEST_CASE("second derivatives of the operations that have them") {
  for (Entry const& entry : gradcheck_table()) {
    if (!(entry.flags & (twice | elementwise))) continue;
    INFO(entry.operation << ", " << entry.variant);
    for (layout how : {layout::contiguous, layout::transposed}) CHECK(check_twice(entry, inputs(entry, how)));
  }
}

TEST_CASE("gradients on a device with a memory of its own") {
  using D = Emulated<0>;
  for (layout how : all_layouts) {
    INFO(static_cast<int>(how));
    auto const x = leaf<double, D>({3, 4}, how), w = leaf<double, D>({4, 2}, how, 2);
    auto const image = leaf<double, D>({1, 2, 3, 4}, how, 3), kernel = leaf<double, D>({2, 2, 2, 2}, how, 4);
    CHECK(gradcheck([](auto const& a, auto const& b) { return tanh(matmul(a, b) * 2); }, {x, w}));
    CHECK(gradcheck([](auto const& a) { return std::tuple{sum(a * a, 0), var(a, 1), softmax(a, 0), layer_norm(a, {4}, 0.1), cumsum(a, 0), a(range(0, 3, 2), all()) * a[1]}; }, x));
    CHECK(gradcheck([](auto const& a) { return index_select(a, 0, Tensor<int64_t>{2, 0, 2}.to(D{})); }, x));
    CHECK(gradcheck([](auto const& a, auto const& b) { return conv2d(a, b, {.padding = 1}); }, {image, kernel}));
  }
}

TEST_CASE("no differentiable operation is missing from the table") {
  std::filesystem::path const include = std::filesystem::path(SITU_REPOSITORY) / "include/situ";
  std::set<std::string> names;
  for (auto const& header : std::filesystem::directory_iterator(include / "autograd")) {
    if (header.path().extension() == ".hpp" && header.path().filename() != "values.hpp") add_functions(header.path(), names);  // those give values, without gradients
  }
  add_elementwise(include / "expr/functions.hpp", names);
  CHECK(names.size() > 110);
  // Of gradients themselves; what gives constants; what linalg.cpp has, which needs LAPACK; what is deleted.
  for (char const* other : {"grad", "gradcheck", "gradgradcheck", "checkpoint", "constant", "bernoulli", "multinomial", "rand_like", "randn_like", "argsort", "matrix_rank", "to_string", "solve", "inv", "det", "slogdet", "cholesky", "lstsq"}) CHECK(names.erase(other) == 1);
  for (Entry const& entry : gradcheck_table()) names.erase(entry.operation);
  std::string missing;
  for (std::string const& name : names) missing += name + " ";
  CHECK(missing == "");
}
