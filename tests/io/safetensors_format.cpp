#include <memory>
#include <string>
#include <string_view>

#include <doctest/doctest.h>
#include <io/files.hpp>
#include <situ/io/detail/safetensors_format.hpp>
#include <support/compare.hpp>

// What the reference (safetensors 0.8.0 in Python) says to the same bytes stands beside the cases in which situ is stricter.
using namespace situ;
using namespace std::string_literals;
using namespace std::string_view_literals;
using detail::SafetensorsHeader;

namespace {

std::string file(std::string_view header, std::size_t data = 0) {
  std::string bytes;
  for (int k = 0; k < 8; ++k) bytes += static_cast<char>(static_cast<std::uint64_t>(header.size()) >> (8 * k) & 255);
  return bytes.append(header).append(data, '\0');
}

/// Reads from a buffer of exactly the bytes' size, so that a sanitizer sees any byte read beyond.
SafetensorsHeader parse(std::string_view bytes) {
  std::unique_ptr<unsigned char[]> const exact(new unsigned char[bytes.size()]);
  if (!bytes.empty()) std::memcpy(exact.get(), bytes.data(), bytes.size());
  detail::FileContext const context{"load", "x"};
  auto const size = static_cast<int64_t>(bytes.size());
  int64_t const length = detail::safetensors_header_length(exact.get(), size, context);
  return detail::parse_safetensors_header(exact.get() + 8, length, size, context);
}

/// What reading it reports, without the beginning that all messages share.
std::string rejection(std::string_view bytes) {
  try {
    (void)parse(bytes);
  } catch (IoError const& e) {
    std::string const what = e.what();
    return what.compare(0, 9, "load: x: ") == 0 ? what.substr(9) : "? " + what;
  }
  return "";
}
/// The same for a file whose only tensor "a" has this description.
std::string tensor_rejection(std::string_view description, std::size_t data = 4) { return rejection(file("{\"a\":"s.append(description) + "}", data)); }
std::string fields(std::string_view dtype, std::string_view shape, std::string_view offsets) {
  return "{\"dtype\":"s.append(dtype).append(",\"shape\":").append(shape).append(",\"data_offsets\":").append(offsets) + "}";
}

}  // namespace

TEST_CASE("a header is a list of tensors in the order of their data") {
  SafetensorsHeader const header = parse(file(R"({"b":{"dtype":"F32","shape":[2,1],"data_offsets":[2,10]},"a":{"shape":[],"data_offsets":[0,2],"dtype":"BF16"},)"
                                              R"("__metadata__":{"x":"y","":"é"},"c":{"dtype":"U8","shape":[0,7],"data_offsets":[10,10]}}   )",
                                              10));
  REQUIRE(header.entries.size() == 3);
  CHECK(header.entries[0].name == "a");
  CHECK(header.entries[0].dtype() == dtype::bfloat16);
  CHECK(header.entries[0].shape == Shape());
  CHECK(header.entries[1].name == "b");
  CHECK(header.entries[1].shape == Shape(2, 1));
  CHECK(header.entries[1].begin == 2);
  CHECK(header.entries[1].end == 10);
  CHECK(header.entries[2].shape == Shape(0, 7));
  CHECK(header.find("b") == &header.entries[1]);
  CHECK(header.find("") == nullptr);
  CHECK(header.copy_metadata() == io::Metadata{{"x", "y"}, {"", "é"}});
}

TEST_CASE("what the reference reads is read") {
  for (auto text : {"{}"sv, "{}  \n\r\t"sv, R"({ "__metadata__" : null })"sv, "{\"__metadata__\":{}}"sv, "{\n\"__metadata__\"\t:\r{ \"a\" :\"\x7f\" } }"sv}) {
    CAPTURE(text);
    CHECK(rejection(file(text)) == "");
  }
  std::string const first = fields("\"F32\"", "[1]", "[0,4]");
  CHECK(rejection(file("{\"\":" + first + "}", 4)) == "");
  CHECK(tensor_rejection(fields(R"("F\u00332")", "[ 1 , 1 ]", "[ 0 , 4 ]")) == "");
  CHECK(tensor_rejection(fields("\"U8\"", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,4]", "[0,4]")) == "");
  CHECK(tensor_rejection(fields("\"F4\"", "[3,2]", "[0,3]"), 3) == "");
  CHECK(tensor_rejection(fields("\"F6_E2M3\"", "[4]", "[0,3]"), 3) == "");
  CHECK(tensor_rejection(fields("\"F32\"", "[0,4294967296,4294967296]", "[0,0]"), 0) == "");
  std::string const more = ",\"more\":" + std::string(100, '[') + "{\"a\":[{}, [], -0.5e+3, 1e999, true, false, null, \"\\ud83d\\ude00\"]}" + std::string(100, ']') + "}";
  CHECK(tensor_rejection(first.substr(0, first.size() - 1) + more) == "");
  SafetensorsHeader const escaped = parse(file(R"({"\"\\\/\b\f\n\r\t\u00e9\u20ac\ud83d\ude00\u0000":)" + first + "}", 4));
  CHECK(escaped.entries[0].name == "\"\\/\b\f\n\r\té€😀\0"s);
}

TEST_CASE("the length of the header is checked before anything is read") {
  CHECK(rejection("") == "the file is too short: 0 bytes found; a safetensors file begins with the 8 bytes of its header's length");
  CHECK(rejection("1234567").find("the file is too short: 7 bytes found") == 0);
  CHECK(rejection("\xff\xff\xff\xff\xff\xff\xff\xff{}"sv) ==
        "is no safetensors file: its first 8 bytes say that the header is 18446744073709551615 bytes long; at most 100000000 are allowed");
  CHECK(rejection("\x01\xe1\xf5\x05\0\0\0\0"sv).find("100000001 bytes long") != std::string::npos);
  CHECK(rejection("\0\xe1\xf5\x05\0\0\0\0{}"sv) == "the file ends inside its header: 10 bytes found; 100000008 are needed");
  CHECK(rejection("\0\0\0\0\0\0\0\0"sv) == "is no safetensors file: an empty header found; a JSON object is needed, which begins with '{'");
  CHECK(rejection(file("[{}]")) == "is no safetensors file: a header that begins with '[{}]' found; a JSON object is needed, which begins with '{'");
  CHECK(rejection(file(" {}")).find("is no safetensors file") == 0);  // the reference reads this; the format's text forbids it
  CHECK(rejection("\x93NUMPY\1\0v\0{'descr': "sv).find("is no safetensors file") == 0);
}

TEST_CASE("a header is UTF-8") {
  struct {
    std::string_view bytes;
    bool is_utf8;
  } const cases[] = {{"\x7f"sv, true},         {"\xc2\x80"sv, true},     {"\xdf\xbf"sv, true},         {"\xe0\xa0\x80"sv, true},     {"\xed\x9f\xbf"sv, true},     {"\xee\x80\x80"sv, true},
                     {"\xef\xbf\xbf"sv, true}, {"\xf0\x90\x80\x80"sv, true}, {"\xf4\x8f\xbf\xbf"sv, true}, {"\x80"sv, false},         {"\xc0\x80"sv, false},        {"\xc1\xbf"sv, false},
                     {"\xc2"sv, false},        {"\xc2\x41"sv, false},    {"\xe0\x9f\xbf"sv, false},    {"\xed\xa0\x80"sv, false},    {"\xe2\x82"sv, false},        {"\xf0\x8f\xbf\xbf"sv, false},
                     {"\xf4\x90\x80\x80"sv, false}, {"\xf5\x80\x80\x80"sv, false}, {"\xff"sv, false},  {"\xf0\x90\x80"sv, false}};
  for (auto const& each : cases) {
    CAPTURE(each.bytes);
    for (std::string const& around : {""s, "0123456"s, "0123456789abcdef"s}) {
      std::string const text = "{\"__metadata__\":{\"" + around + std::string(each.bytes) + "\":\"\"}}";
      CHECK((rejection(file(text)) == "") == each.is_utf8);
    }
  }
  CHECK(rejection(file("{\"\xff\":1}")) == "the header is not UTF-8: '\\xff\":1' found at byte 10; UTF-8 is needed");
}

TEST_CASE("JSON is read strictly, and the message says where it ends to be JSON") {
  CHECK(rejection(file("{")) == "a name cannot be read: the end of the header found at byte 9; a string is needed");
  CHECK(rejection(file("{a:1}")) == "a name cannot be read: 'a:1}' found at byte 9; a string is needed");
  CHECK(rejection(file("{\"a\" 1}")) == "a name has no value: '1}' found at byte 13; ':' is needed");
  CHECK(rejection(file("{}x")) == "the header goes on after its object: 'x' found at byte 10; nothing but spaces is needed");
  CHECK(rejection(file("{}\0"sv)).find("the header goes on after its object: '\\x00'") == 0);
  CHECK(rejection(file("{}//")) != "");
  CHECK(rejection(file("{\f}")) != "");
  CHECK(rejection(file("{\"a\":null}")) == "a tensor is no JSON object: 'null}' found at byte 13; '{' is needed");
  CHECK(rejection(file(R"({"a":["F32",[1],[0,4]]})", 4)).find("a tensor is no JSON object") == 0);  // the reference reads this
  CHECK(rejection(file("{\"a")) == "a string does not end: the end of the header found at byte 11; '\"' is needed");
  CHECK(rejection(file("{\"a\n\":1}")).find("a string holds a control character: '\\x0a\":1}' found at byte 11") == 0);
  CHECK(rejection(file(R"({"a\x":1})")).find("an escape cannot be read: '\\x\":1}' found at byte 11") == 0);
  CHECK(rejection(file(R"({"a\u12g4":1})")).find("an escape cannot be read: 'g4\":1}'") == 0);
  for (auto half : {R"({"\ud800":1})"sv, R"({"\udc00":1})"sv, R"({"\ud800\ud800":1})"sv, R"({"\ud800\u0041":1})"sv, R"({"\ud800x":1})"sv}) {
    CAPTURE(half);
    CHECK(rejection(file(half)).find("an escape is half of a character: ") == 0);
  }
  std::string const good = fields("\"F32\"", "[1]", "[0,4]"), open = good.substr(0, good.size() - 1);
  CHECK(rejection(file("{\"a\":" + good + ",}", 4)).find("a name cannot be read: '}'") == 0);
  CHECK(rejection(file("{\"a\":" + good + " \"b\":1}", 4)).find("the header cannot be read: '\"b\":1}' found") == 0);
  for (auto value : {"01", "-", "1.", ".5", "1e", "+1", "nul", "tru", "'a'", "[1,]", "{\"a\":1,}", "{1:2}", "[", "{\"a\"}", "[}", "{]", "", "\"\\z\"", "[1 2]"}) {
    CAPTURE(value);
    CHECK(tensor_rejection(open + ",\"more\":" + value + "}") != "");
  }
  std::string const deep = open + ",\"more\":" + std::string(100000, '[');
  CHECK(tensor_rejection(deep).find("values are nested too deeply: ") == 0);
}

TEST_CASE("a tensor's description is checked") {
  CHECK(tensor_rejection(R"({"dtype":"F32","data_offsets":[0,4]})") == "tensor \"a\" has no \"shape\"; \"dtype\", \"shape\" and \"data_offsets\" are needed");
  CHECK(tensor_rejection("{}").find("tensor \"a\" has no \"dtype\"") == 0);
  CHECK(tensor_rejection(R"({"dtype":"F32","shape":[1],"dtype":"F32","data_offsets":[0,4]})") == "tensor \"a\" has \"dtype\" twice; once is needed");
  CHECK(tensor_rejection(fields("4", "[1]", "[0,4]")).find("the dtype cannot be read: ") == 0);
  for (auto shape : {"[-1]", "[1.0]", "[1e0]", "[01]", "1", "null", "\"1\"", "[1,]", "[,1]", "[1", "[9223372036854775808]", "[[1]]"}) {
    CAPTURE(shape);
    CHECK(tensor_rejection(fields("\"F32\"", shape, "[0,4]")).find("the shape is no list of sizes: ") == 0);
  }
  for (auto offsets : {"[0]", "[0,4,4]", "[]", "4", "[0,4.0]", "[-0,4]", "[0 4]", "[0,18446744073709551616]"}) {
    CAPTURE(offsets);
    CHECK(tensor_rejection(fields("\"F32\"", "[1]", offsets)).find("data_offsets are no pair of offsets: ") == 0);
  }
  CHECK(tensor_rejection(fields("\"F32\"", "[2]", "[0,4]")) == "tensor \"a\" has another size than its shape: data_offsets [0, 4] found; 8 bytes are needed for shape [2] of F32");
  CHECK(tensor_rejection(fields("\"F32\"", "[1]", "[4,0]")) == "tensor \"a\" ends before it begins: data_offsets [4, 0] found; [begin, end] are needed");
  CHECK(tensor_rejection(fields("\"F4\"", "[3]", "[0,2]"), 2) == "tensor \"a\" does not end with a byte: shape [3] of F4 found; whole bytes are needed");
  CHECK(tensor_rejection(fields("\"F6_E3M2\"", "[3]", "[0,3]"), 3) != "");
  CHECK(tensor_rejection(fields("\"F32\"", "[4294967296,4294967296]", "[0,4]")) ==
        "tensor \"a\" is too large: shape [4294967296, 4294967296] of \"F32\" found; fewer than 2^63 bits are needed");
  CHECK(tensor_rejection(fields("\"F64\"", "[1152921504606846976]", "[0,0]"), 0).find("tensor \"a\" is too large") == 0);
  CHECK(tensor_rejection(fields("\"F32\"", "[4294967296,4294967296,0]", "[0,0]"), 0).find("tensor \"a\" is too large") == 0);
}

TEST_CASE("tensors fill the file without holes and overlaps") {
  auto const two = [](std::string const& a, std::string const& b, std::size_t data) {
    return rejection(file("{\"a\":" + fields("\"F32\"", "[1]", a) + ",\"b\":" + fields("\"F32\"", "[1]", b) + "}", data));
  };
  CHECK(two("[0,4]", "[4,8]", 8) == "");
  CHECK(two("[4,8]", "[0,4]", 8) == "");
  CHECK(two("[0,4]", "[8,12]", 12) == "tensor \"b\" does not begin where the one in front of it ends: at byte 8 of the data; 4 is needed");
  CHECK(two("[0,4]", "[0,4]", 4) == "tensor \"b\" does not begin where the one in front of it ends: at byte 0 of the data; 4 is needed");
  CHECK(two("[4,8]", "[8,12]", 12).find("tensor \"a\" does not begin") == 0);
  CHECK(two("[0,4]", "[4,8]", 9) == "the data are longer than the header says: 9 bytes found; 8 are needed");
  CHECK(two("[0,4]", "[4,8]", 7) == "the data are shorter than the header says: 7 bytes found; 8 are needed");
  CHECK(rejection(file("{}", 1)) == "the data are longer than the header says: 1 bytes found; 0 are needed");
  std::string const empty = fields("\"F32\"", "[0]", "[0,0]"), full = fields("\"F32\"", "[1]", "[0,4]");
  CHECK(rejection(file("{\"b\":" + empty + ",\"a\":" + full + "}", 4)) == "");
  CHECK(rejection(file("{\"b\":" + empty + ",\"a\":" + empty + "}")) == "");
}

TEST_CASE("names are unique") {
  std::string const a = fields("\"F32\"", "[1]", "[0,4]"), b = fields("\"F32\"", "[1]", "[4,8]");
  // The reference reads the first of these two: the last description of a name counts there.
  CHECK(rejection(file("{\"a\":" + fields("\"F32\"", "[0]", "[0,0]") + ",\"a\":" + a + "}", 4)) == "tensor \"a\" stands twice in the header; names are unique");
  CHECK(rejection(file("{\"a\":" + a + ",\"\\u0061\":" + b + "}", 8)) == "tensor \"a\" stands twice in the header; names are unique");
  CHECK(rejection(file("{\"__metadata__\":{},\"__metadata__\":{}}")) == "\"__metadata__\" stands twice in the header; names are unique");
  CHECK(rejection(file("{\"__metadata__\":{\"a\":\"1\",\"a\":\"2\"}}")) == "key \"a\" stands twice in \"__metadata__\"; keys are unique");
  for (auto metadata : {"1", "[]", "{\"a\":1}", "{\"a\":{}}", "{\"a\":null}", "\"\""}) CHECK(rejection(file("{\"__metadata__\":"s + metadata + "}")) != "");
}

TEST_CASE("a file cut at any byte, or longer by one, is rejected") {
  for (char const* name : {"all_types.safetensors", "torch_net.safetensors", "names.safetensors", "nothing.safetensors", "foreign.safetensors"}) {
    CAPTURE(name);
    std::string const whole = situ_test::bytes_of(situ_test::given(name));
    CHECK(rejection(whole) == "");
    for (std::size_t size = 0; size < whole.size(); ++size) CHECK(rejection(std::string_view(whole).substr(0, size)) != "");
    CHECK(rejection(whole + '\0') != "");
  }
}

TEST_CASE("long lists are read in the time that sorting takes") {
  std::string text = "{";
  constexpr int count = 50000;
  for (int k = count; k-- > 0;) {
    text += (text.size() > 1 ? ",\"" : "\"") + std::to_string(k) + "\":" + fields("\"U8\"", "[1]", "[" + std::to_string(k) + "," + std::to_string(k + 1) + "]");
  }
  SafetensorsHeader const header = parse(file(text + "}", count));
  REQUIRE(header.entries.size() == count);
  CHECK(header.find("49999")->begin == 49999);
  CHECK(header.entries[7].name == "7");
}
