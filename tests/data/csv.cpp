#include <situ/io/csv.hpp>

#include <doctest/doctest.h>

#include <unistd.h>

#include <clocale>
#include <cstdio>
#include <string>
#include <vector>

#include <situ/data/loader.hpp>
#include <situ/tensor.hpp>
#include <data/expected/decimals.hpp>
#include <support/compare.hpp>

using namespace situ;
using data::CsvDataset;
using data::CsvOptions;
using data::parse_csv;
using situ_test::thrown;

namespace {

std::string const flowers = std::string(SITU_REPOSITORY) + "/tests/data/files/flowers.csv";

/// The rows of one column.
template <class T = float>
std::vector<T> column(std::string const& text, CsvOptions const& options = {}) {
  return parse_csv<T>(text, options).values.to_vector();
}
std::string message(char const* text, CsvOptions const& options = {}) {
  try {
    parse_csv<float>(text, options);
  } catch (IoError const& e) {
    return e.what();
  }
  return "nothing was thrown";
}
template <class T>
std::string message_of(char const* text) {
  try {
    parse_csv<T>(text);
  } catch (IoError const& e) {
    return e.what();
  }
  return "nothing was thrown";
}

struct TextFile {
  std::string path = "situ_csv_test_" + std::to_string(::getpid()) + ".csv";
  explicit TextFile(std::string const& text) {
    std::FILE* const out = std::fopen(path.c_str(), "w");
    REQUIRE(out != nullptr);
    std::fwrite(text.data(), 1, text.size(), out);
    std::fclose(out);
  }
  ~TextFile() { std::remove(path.c_str()); }
};

using Floats = std::vector<float>;
using Names = std::vector<std::string>;

}  // namespace

TEST_CASE("columns of numbers become a tensor of rows, with the names of the header") {
  auto const [values, names] = parse_csv("a,b,c\n1,2,3\n4,5,6\n");
  CHECK(values.shape() == Shape{2, 3});
  CHECK(values.to_vector() == Floats{1, 2, 3, 4, 5, 6});
  CHECK(names == Names{"a", "b", "c"});
  CHECK(parse_csv("1,2\n3,4", {.header = false}).values.to_vector() == Floats{1, 2, 3, 4});
  CHECK(parse_csv("1,2\n3,4", {.header = false}).names == Names{"0", "1"});
  CHECK(parse_csv("a;b\n1;2", {.delimiter = ';'}).values.to_vector() == Floats{1, 2});
  CHECK(parse_csv("a\tb\n1\t2\n \t3", {.delimiter = '\t'}).values.to_vector()[3] == 3);
  CHECK(parse_csv("a,b,c\n1,2,3\n4,5,6\n", {.columns = {"c", "a"}}).values.to_vector() == Floats{3, 1, 6, 4});
  CHECK(parse_csv("a,b,c\n1,x,3", {.columns = {"c"}}).names == Names{"c"});
  CHECK(parse_csv("1,x,3", {.header = false, .columns = {"2", "0"}}).values.to_vector() == Floats{3, 1});
  CHECK(parse_csv("a,b\n").values.shape() == Shape{0, 2});
  CHECK(parse_csv("a,b").values.shape() == Shape{0, 2});
}

TEST_CASE("quotes, spaces, empty lines, carriage returns and a byte order mark are read as RFC 4180 and spreadsheets write them") {
  CHECK(column("\xef\xbb\xbf\"a\"\r\n1\r\n\r\n 2 \r\n\"3\"\r\n\t\"4\" \r\n") == Floats{1, 2, 3, 4});
  CHECK(column("\n\na\n\n1\n\n\n2") == Floats{1, 2});
  CHECK(column("a\n1\n2\r") == Floats{1, 2});
  CHECK(column("  \na\n1\n   \n2\n \t \r\n3\n  ") == Floats{1, 2, 3});  // lines of spaces, too
  CHECK(parse_csv("a\tb\n1\t2\n \t \n", {.delimiter = '\t'}).values.size() == 4);  // unless those are delimiters
  CHECK(parse_csv("\"x, \"\"y\"\"\nz\",b\n1,2").names == Names{"x, \"y\"\nz", "b"});
  CHECK(column("'a'\n'1'", {.quote = '\''}) == Floats{1});
}

TEST_CASE("missing values are NaN, and infinities are read") {
  auto const values = column("a,b\n1,\nNA,nan\n-NaN,1\n", {.columns = {"b"}});
  CHECK(std::isnan(values[0]));
  CHECK(std::isnan(values[1]));
  CHECK(values[2] == 1);
  for (char const* word : {"\"\"", "NaN", "-nan", "+NaN", "NA", "n/a", "NULL", "None"}) CHECK(std::isnan(column(std::string("a,b\n") + word + ",1", {.columns = {"a"}})[0]));
  CHECK(column("a\ninf\n-Infinity\n+INF") == Floats{std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::infinity()});
}

TEST_CASE("numbers are rounded to the nearest, alone in a field, with quotes, and whatever the locale") {
  char const* const before = std::setlocale(LC_ALL, nullptr);
  std::string const kept = before ? before : "C";
  std::setlocale(LC_ALL, "de_DE.UTF-8");
  for (auto const& number : number_texts) {
    CAPTURE(number.text);
    for (bool quoted : {false, true}) {
      std::string const text = quoted ? std::string("a\n\"") + number.text + "\"" : std::string("a\n") + number.text + "\n";
      CHECK(detail::bits_to<uint64_t>(column<double>(text)[0]) == number.wide);
      CHECK(detail::bits_to<uint32_t>(column<float>(text)[0]) == number.narrow);
    }
  }
  std::setlocale(LC_ALL, kept.c_str());
  CHECK(static_cast<float>(parse_csv<float16>("a\n1.5").values.item()) == 1.5f);
  CHECK(column<double>("a\n0000000000000000000000000001.5\n0.000000000000000000000000000015e29\n00000000000000000000\n") == std::vector<double>{1.5, 1.5, 0});
  for (std::size_t zeros : {1u, 2u, 300u}) CHECK_THROWS_AS(column("a\nnan" + std::string(zeros, '\0') + "\n"), IoError);
}

TEST_CASE("integers are exact, and what is no integer of the type is an error") {
  CHECK(column<int64_t>("a\n9223372036854775807\n-9223372036854775808\n+0\n\"12\"") ==
        std::vector<int64_t>{std::numeric_limits<int64_t>::max(), std::numeric_limits<int64_t>::min(), 0, 12});
  CHECK(column<uint8_t>("a\n255\n0\n-0") == std::vector<uint8_t>{255, 0, 0});
  CHECK(column<int8_t>("a\n-128\n127") == std::vector<int8_t>{-128, 127});
  CHECK(parse_csv<bool>("a\ntrue\n0\n1\nFALSE").values.to_vector() == std::vector<bool>{true, false, true, false});
  CHECK(message_of<int64_t>("a\n9223372036854775808") == "parse_csv: text: line 2, column 1 (\"a\"): '9223372036854775808' found; it does not fit int64");
  CHECK(message_of<int64_t>("a\n-9223372036854775809") == "parse_csv: text: line 2, column 1 (\"a\"): '-9223372036854775809' found; it does not fit int64");
  CHECK(message_of<uint8_t>("a\n256") == "parse_csv: text: line 2, column 1 (\"a\"): '256' found; it does not fit uint8");
  CHECK(message_of<uint8_t>("a\n-1") == "parse_csv: text: line 2, column 1 (\"a\"): '-1' found; it does not fit uint8");
  CHECK(message_of<int32_t>("a\n1.0") == "parse_csv: text: line 2, column 1 (\"a\"): '1.0' found; an integer is needed for int32");
  CHECK(message_of<int32_t>("a,b\n,1") == "parse_csv: text: line 2, column 1 (\"a\"): nothing found; missing values have no place in int32");
  CHECK(message_of<bool>("a\n2") == "parse_csv: text: line 2, column 1 (\"a\"): '2' found; 0, 1, true or false is needed");
}

TEST_CASE("what cannot be read is named with its line and column") {
  CHECK(message("a,b\n1,2\n\"x\n\",3\n4,5") == "parse_csv: text: line 3, column 1 (\"a\"): 'x\n' found; a number is needed");
  CHECK(message("a,b\n1,2\n\n3,4 5") == "parse_csv: text: line 4, column 2 (\"b\"): '4 5' found; a number is needed");
  for (char const* word : {"-", "+-1", "1e", "1e+", ".", "1.2.3", "0x10", "1_0", "infinite", "--inf"}) {
    CHECK(message((std::string("a\n") + word).c_str()) == std::string("parse_csv: text: line 2, column 1 (\"a\"): '") + word + "' found; a number is needed");
  }
  CHECK(message("a,b\n1,2\n3") == "parse_csv: text: line 3: 1 field found; 2 are needed, as in line 1");
  CHECK(message("a,b\n1,2\n3,4,5,6\n") == "parse_csv: text: line 3: 4 fields found; 2 are needed, as in line 1");
  for (char const* text : {"a,b\r1,2\r3,4\r", "a,b\r1,2\n", "\"a\"\r\"b\"\r"}) CHECK(message(text) == "parse_csv: text: line 1: a carriage return found within the line; lines end with \\n or \\r\\n");
  CHECK(message("a,b\n1,2\r3,4\r") == "parse_csv: text: line 2: a carriage return found within the line; lines end with \\n or \\r\\n");
  CHECK(message("\n\na,b\n1") == "parse_csv: text: line 4: 1 field found; 2 are needed, as in line 3");
  CHECK(message("a\n\"1") == "parse_csv: text: line 2: a quoted field does not end; a closing quote is needed");
  CHECK(message("a\n\"1\"2") == "parse_csv: text: line 2: '2' found after a quoted field; the delimiter or the end of the line is needed");
  CHECK(message("") == "parse_csv: text: the file holds no rows; at least one is needed");
  CHECK(message("a,b\n1,2", {.columns = {"c"}}) == "parse_csv: text: there is no column \"c\": the columns are \"a\", \"b\"");
  CHECK(message("a,b\n1,2", {.columns = {"b", "b"}}) == "parse_csv: text: column \"b\" is asked for twice; each can be read once");
  CHECK(message("a,b,a\n1,2,3", {.columns = {"a"}}) == "parse_csv: text: two columns are named \"a\": columns 1 and 3");
  CHECK(parse_csv("a,b,a\n1,2,3").values.size() == 3);
  TextFile const zero(std::string("a\nx\0y\n", 6));
  CHECK(thrown<IoError>([&] { data::read_csv(zero.path); }, "read_csv: " + zero.path + ": line 2, column 1 (\"a\"): 'x\\0y' found; a number is needed") == "");
  CHECK(thrown<IoError>([] { data::read_csv("/nowhere.csv"); }, "read_csv: /nowhere.csv: cannot be opened: No such file or directory; a readable file is needed") == "");
  CHECK(thrown<IoError>([] { data::read_csv(flowers); }, "read_csv: " + flowers + ": line 2, column 3 (\"species\"): 'setosa' found; a number is needed") == "");
}

TEST_CASE("a CsvDataset has rows with labels, which may be words") {
  CsvDataset const named{flowers, {.columns = {"sepal width", "sepal length"}, .label = "species", .label_names = true}};
  CHECK(named.size() == 4);
  CHECK(named.columns() == Names{"sepal width", "sepal length"});
  CHECK(named.classes() == Names{"setosa", "versicolor", "virginica"});
  data::DataLoader loader{named, {.batch_size = 4}};
  for (auto [x, y] : loader) {
    CHECK(y.to_vector() == std::vector<int64_t>{0, 1, 2, 2});
    CHECK(std::isnan(x(2, 0)));
    CHECK(x(3, 1) == 5.8f);
  }
  CsvOptions options{.columns = {"sepal length"}, .label = "species", .classes = {"virginica", "setosa", "versicolor"}};
  CsvDataset<double, int32_t> const ordered{flowers, options};
  CHECK(std::get<1>(ordered.tensors()).to_vector() == std::vector<int32_t>{1, 2, 0, 0});
  CHECK(std::get<0>(ordered.get(1)).item() == 7);
  options.classes.pop_back();
  CHECK(thrown<IoError>([&] { (CsvDataset<double, int32_t>(flowers, {.label = "species", .classes = {"setosa", "virginica", "setosa"}})); },
                        "CsvDataset: " + flowers + ": a class is named twice in .classes; each word stands for one number") == "");
  CHECK(thrown<IoError>([&] { (CsvDataset<double, int32_t>(flowers, options)); },
                        "CsvDataset: " + flowers + ": line 3, column 3 (\"species\"): \"versicolor\" found; one of the classes is needed") == "");
  std::string many = "x,y\n";
  for (int k = 0; k < 300; ++k) many += std::to_string(k) + ",c" + std::to_string(1000 + k * 7 % 300) + "\n";
  TextFile const file(many);
  CsvDataset<float, int16_t> const short_labels{file.path, {.label = "y", .label_names = true}};
  std::vector<int16_t> const numbers_of_names = std::get<1>(short_labels.tensors()).to_vector();
  for (std::size_t k = 0; k < 300; ++k) CHECK(numbers_of_names[k] == static_cast<int16_t>(k * 7 % 300));
  CHECK(thrown<IoError>([&] { (CsvDataset<float, int8_t>(file.path, {.label = "y", .label_names = true})); },
                        "CsvDataset: " + file.path + ": 300 classes do not fit labels of type int8: number 128 is none; take a wider type") == "");
  CHECK_THROWS_AS((CsvDataset<float, bfloat16>(file.path, {.label = "y", .label_names = true})), IoError);
  CsvDataset<float, float> const numbers{flowers, {.columns = {"sepal width"}, .label = "sepal length"}};
  CHECK(std::get<1>(numbers.tensors()).to_vector() == Floats{5.1f, 7, 6.3f, 5.8f});
  CHECK(thrown<IoError>([] { CsvDataset<>(flowers, {}); }, "CsvDataset: " + flowers + ": no column of labels is named; {.label = \"...\"} is needed") == "");
}
