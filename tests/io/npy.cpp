#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <doctest/doctest.h>
#include <situ/core/layout.hpp>
#include <situ/device/emulated/device.hpp>
#include <situ/io/npy.hpp>

using namespace situ;
using namespace std::string_literals;
using namespace std::string_view_literals;

// Files as NumPy 2.4 writes them (np.save, and np.lib.format.write_array for versions 2 and 3; bfloat16 by ml_dtypes).
namespace numpy {
// clang-format off
constexpr auto float32_2x3 =
    "\223NUMPY\001\000v\000{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }                       "
    "                                   \n"
    "\000\000\200?\000\000\000@\000\000@@\000\000\220\300\001\000\000\000\000\000\200\177"sv;
constexpr auto float64_3 =
    "\223NUMPY\001\000v\000{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }                         "
    "                                   \n"
    "\232\231\231\231\231\231\271?\000\000\000\000\000\000\000\300\234u\000\210<\3447~"sv;
constexpr auto float16_4 =
    "\223NUMPY\001\000v\000{'descr': '<f2', 'fortran_order': False, 'shape': (4,), }                         "
    "                                   \n"
    "\000<\000\270\377{\000|"sv;
constexpr auto bfloat16_3 =
    "\223NUMPY\001\000v\000{'descr': '<V2', 'fortran_order': False, 'shape': (3,), }                         "
    "                                   \n"
    "\200? \300b\177"sv;
constexpr auto bool_4 =
    "\223NUMPY\001\000v\000{'descr': '|b1', 'fortran_order': False, 'shape': (4,), }                         "
    "                                   \n"
    "\001\000\000\001"sv;
constexpr auto int8_3 =
    "\223NUMPY\001\000v\000{'descr': '|i1', 'fortran_order': False, 'shape': (3,), }                         "
    "                                   \n"
    "\200\000\177"sv;
constexpr auto int16_2 =
    "\223NUMPY\001\000v\000{'descr': '<i2', 'fortran_order': False, 'shape': (2,), }                         "
    "                                   \n"
    "\000\200\377\177"sv;
constexpr auto int32_2 =
    "\223NUMPY\001\000v\000{'descr': '<i4', 'fortran_order': False, 'shape': (2,), }                         "
    "                                   \n"
    "\000\000\000\200\377\377\377\177"sv;
constexpr auto int64_2 =
    "\223NUMPY\001\000v\000{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }                         "
    "                                   \n"
    "\000\000\000\000\000\000\000\200\377\377\377\377\377\377\377\177"sv;
constexpr auto uint8_3 =
    "\223NUMPY\001\000v\000{'descr': '|u1', 'fortran_order': False, 'shape': (3,), }                         "
    "                                   \n"
    "\000\200\377"sv;
constexpr auto scalar =
    "\223NUMPY\001\000v\000{'descr': '<f8', 'fortran_order': False, 'shape': (), }                           "
    "                                   \n"
    "\000\000\000\000\000\000\004@"sv;
constexpr auto empty =
    "\223NUMPY\001\000v\000{'descr': '<f4', 'fortran_order': False, 'shape': (0,), }                         "
    "                                   \n"sv;
constexpr auto empty_3x0x2 =
    "\223NUMPY\001\000v\000{'descr': '<i4', 'fortran_order': False, 'shape': (3, 0, 2), }                    "
    "                                   \n"sv;
constexpr auto rank_8 =
    "\223NUMPY\001\000v\000{'descr': '|u1', 'fortran_order': False, 'shape': (1, 2, 1, 2, 1, 2, 1, 2), }     "
    "                                   \n"
    "\000\001\002\003\004\005\006\007\010\011\n"
    "\013\014\015\016\017"sv;
constexpr auto big_float32 =
    "\223NUMPY\001\000v\000{'descr': '>f4', 'fortran_order': False, 'shape': (2, 2), }                       "
    "                                   \n"
    "?\200\000\000@\000\000\000@@\000\000\277\000\000\000"sv;
constexpr auto big_int16 =
    "\223NUMPY\001\000v\000{'descr': '>i2', 'fortran_order': False, 'shape': (3,), }                         "
    "                                   \n"
    "\000\001\001\000\377\376"sv;
constexpr auto big_int64 =
    "\223NUMPY\001\000v\000{'descr': '>i8', 'fortran_order': False, 'shape': (2,), }                         "
    "                                   \n"
    "\000\000\000\000\000\000\000\001\377\377\377\377\377\377\377\376"sv;
constexpr auto fortran_2x3 =
    "\223NUMPY\001\000v\000{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3), }                        "
    "                                   \n"
    "\000\000\200?\000\000\200@\000\000\000@\000\000\240@\000\000@@\000\000\300@"sv;
constexpr auto fortran_2x3x4 =
    "\223NUMPY\001\000v\000{'descr': '<i2', 'fortran_order': True, 'shape': (2, 3, 4), }                     "
    "                                   \n"
    "\000\000\014\000\004\000\020\000\010\000\024\000\001\000\015\000\005\000\021\000\011\000\025\000\002\000"
    "\016\000\006\000\022\000\n"
    "\000\026\000\003\000\017\000\007\000\023\000\013\000\027\000"sv;
constexpr auto fortran_big =
    "\223NUMPY\001\000v\000{'descr': '>i4', 'fortran_order': True, 'shape': (2, 3), }                        "
    "                                   \n"
    "\000\000\000\001\000\000\000\004\000\000\000\002\000\000\000\005\000\000\000\003\000\000\000\006"sv;
constexpr auto version_2 =
    "\223NUMPY\002\000t\000\000\000{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }                 "
    "                                         \n"
    "\000\000\340@\000\000\000A"sv;
constexpr auto version_3 =
    "\223NUMPY\003\000t\000\000\000{'descr': '<f4', 'fortran_order': False, 'shape': (2,), }                 "
    "                                         \n"
    "\000\000\340@\000\000\000A"sv;
constexpr auto uint16_2 =
    "\223NUMPY\001\000v\000{'descr': '<u2', 'fortran_order': False, 'shape': (2,), }                         "
    "                                   \n"
    "\001\000\002\000"sv;
constexpr auto complex64_1 =
    "\223NUMPY\001\000v\000{'descr': '<c8', 'fortran_order': False, 'shape': (1,), }                         "
    "                                   \n"
    "\000\000\200?\000\000\000@"sv;
constexpr auto structured =
    "\223NUMPY\001\000v\000{'descr': [('a', '<f4'), ('b', '<i4')], 'fortran_order': False, 'shape': (1,), }  "
    "                                   \n"
    "\000\000\000\000\000\000\000\000"sv;
constexpr auto object =
    "\223NUMPY\001\000v\000{'descr': '|O', 'fortran_order': False, 'shape': (1,), }                          "
    "                                   \n"
    "\200\004\225\212\000\000\000\000\000\000\000\214\026numpy._core.multiarray\224\214\014_reconstruct\224"
    "\223\224\214\005numpy\224\214\007ndarray\224\223\224K\000\205\224C\001b\224\207\224R\224(K\001K\001\205"
    "\224h\003\214\005dtype\224\223\224\214\002O8\224\211\210\207\224R\224(K\003\214\001|\224NNNJ\377\377\377"
    "\377J\377\377\377\377K?t\224b\211]\224Nat\224b."sv;
constexpr auto datetime =
    "\223NUMPY\001\000v\000{'descr': '<M8[D]', 'fortran_order': False, 'shape': (1,), }                      "
    "                                   \n"
    "\346O\000\000\000\000\000\000"sv;
constexpr auto string =
    "\223NUMPY\001\000v\000{'descr': '<U2', 'fortran_order': False, 'shape': (1,), }                         "
    "                                   \n"
    "a\000\000\000b\000\000\000"sv;
// clang-format on
}  // namespace numpy

namespace {

/// Decodes from a buffer of exactly the bytes' size, so that a sanitizer sees any byte read beyond.
template <class T>
Tensor<T> decode(std::string_view bytes) {
  std::unique_ptr<unsigned char[]> const exact(new unsigned char[bytes.size()]);
  if (!bytes.empty()) std::memcpy(exact.get(), bytes.data(), bytes.size());
  return detail::decode_npy<T>(exact.get(), bytes.size(), "x.npy");
}

/// What decoding as T reports, without the beginning that all messages share.
template <class T = float>
std::string rejection(std::string_view bytes) {
  constexpr auto beginning = "load_npy: x.npy: "sv;
  try {
    decode<T>(bytes);
  } catch (IoError const& e) {
    std::string_view const what = e.what();
    return what.substr(0, beginning.size()) == beginning ? std::string(what.substr(beginning.size()))
                                                         : "? " + std::string(what);
  }
  return "no error";
}

/// A file with this header, as hostile as the test wants it, and these elements.
std::string file(std::string_view header, std::string_view elements = {}, int version = 1) {
  std::string bytes = "\x93NUMPY"s + static_cast<char>(version) + '\0';
  for (int i = 0; i < (version == 1 ? 2 : 4); ++i) bytes += static_cast<char>(header.size() >> (8 * i) & 255);
  return bytes.append(header).append(elements);
}

std::string header(std::string_view shape, std::string_view descr = "'<f4'") {
  return file("{'descr': "s.append(descr).append(", 'fortran_order': False, 'shape': ").append(shape).append(", }"));
}

template <class T>
bool holds(Tensor<T> const& x, Shape const& shape, std::initializer_list<std::type_identity_t<T>> values) {
  return x.shape() == shape && x.size() == static_cast<int64_t>(values.size()) &&
         (values.size() == 0 || std::memcmp(x.data(), values.begin(), values.size() * sizeof(T)) == 0);
}

template <class T>
bool same(Tensor<T> const& x, Tensor<T> const& y) {
  return x.shape() == y.shape() &&
         (x.size() == 0 || std::memcmp(x.data(), y.data(), static_cast<size_t>(x.size()) * sizeof(T)) == 0);
}

template <class T>
T from_bits(uint16_t bits) {
  T value;
  value.bits = bits;
  return value;
}

/// 0, 1, 2, … as T.
template <class T>
Tensor<T> counting(Shape const& shape) {
  Tensor<T> x = Tensor<T>::uninitialized(shape);
  for (int64_t i = 0; i < x.size(); ++i) x.data()[i] = detail::convert_scalar<T>(static_cast<float>(i % 100));
  return x;
}

/// A folder that is removed with all that tests put into it.
struct Folder {
  std::string name = std::string(P_tmpdir) + "/situ-npy-XXXXXX";
  std::vector<std::string> files;

  Folder() { REQUIRE(::mkdtemp(name.data()) != nullptr); }
  ~Folder() {
    for (std::string const& each : files) ::unlink(each.c_str());
    CHECK(::rmdir(name.c_str()) == 0);  // nothing else was left, no temporary file in particular
  }
  std::string operator/(char const* file) { return files.emplace_back(name + "/" + file); }
};

void put(std::string const& path, std::string_view bytes) {
  std::FILE* const out = std::fopen(path.c_str(), "wb");
  REQUIRE(out != nullptr);
  std::fwrite(bytes.data(), 1, bytes.size(), out);
  std::fclose(out);
}

std::string bytes_of(std::string const& path) {
  std::string bytes;
  std::FILE* const in = std::fopen(path.c_str(), "rb");
  REQUIRE(in != nullptr);
  for (int c; (c = std::fgetc(in)) != EOF;) bytes += static_cast<char>(c);
  std::fclose(in);
  return bytes;
}

template <class T>
std::string load_error(std::string const& path) {
  try {
    io::load_npy<T>(path);
  } catch (IoError const& e) { return e.what(); }
  return "no error";
}

template <class E>
std::string save_error(std::string const& path, E const& x) {
  try {
    io::save_npy(path, x);
  } catch (IoError const& e) { return e.what(); }
  return "no error";
}

}  // namespace

TEST_CASE("every element type is read as NumPy wrote it") {
  CHECK(holds(decode<float>(numpy::float32_2x3), {2, 3}, {1, 2, 3, -4.5f, 1.4e-45f, __builtin_inff()}));
  CHECK(holds(decode<double>(numpy::float64_3), {3}, {0.1, -2., 1e300}));
  CHECK(holds(decode<float16>(numpy::float16_4), {4},
              {float16(1.f), float16(-0.5f), from_bits<float16>(0x7bff), from_bits<float16>(0x7c00)}));
  CHECK(holds(decode<bfloat16>(numpy::bfloat16_3), {3},
              {from_bits<bfloat16>(0x3f80), from_bits<bfloat16>(0xc020), from_bits<bfloat16>(0x7f62)}));
  CHECK(holds(decode<bool>(numpy::bool_4), {4}, {true, false, false, true}));
  CHECK(holds(decode<int8_t>(numpy::int8_3), {3}, {-128, 0, 127}));
  CHECK(holds(decode<int16_t>(numpy::int16_2), {2}, {-32768, 32767}));
  CHECK(holds(decode<int32_t>(numpy::int32_2), {2}, {INT32_MIN, INT32_MAX}));
  CHECK(holds(decode<int64_t>(numpy::int64_2), {2}, {INT64_MIN, INT64_MAX}));
  CHECK(holds(decode<uint8_t>(numpy::uint8_3), {3}, {0, 128, 255}));
}

TEST_CASE("ranks from 0 to 8 and arrays without elements are ordinary") {
  CHECK(holds(decode<double>(numpy::scalar), Shape(), {2.5}));
  CHECK(holds(decode<float>(numpy::empty), {0}, {}));
  CHECK(holds(decode<int32_t>(numpy::empty_3x0x2), {3, 0, 2}, {}));
  CHECK(holds(decode<uint8_t>(numpy::rank_8), {1, 2, 1, 2, 1, 2, 1, 2},
              {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}));
}

TEST_CASE("big-endian elements are swapped") {
  CHECK(holds(decode<float>(numpy::big_float32), {2, 2}, {1.f, 2.f, 3.f, -0.5f}));
  CHECK(holds(decode<int16_t>(numpy::big_int16), {3}, {1, 256, -2}));
  CHECK(holds(decode<int64_t>(numpy::big_int64), {2}, {1, -2}));
}

TEST_CASE("an array in Fortran order is the same array") {
  CHECK(holds(decode<float>(numpy::fortran_2x3), {2, 3}, {1.f, 2.f, 3.f, 4.f, 5.f, 6.f}));
  CHECK(holds(decode<int16_t>(numpy::fortran_2x3x4), {2, 3, 4},
              {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23}));
  CHECK(holds(decode<int32_t>(numpy::fortran_big), {2, 3}, {1, 2, 3, 4, 5, 6}));
}

TEST_CASE_TEMPLATE("Fortran order is undone for every size of element, and beyond one tile", T, uint8_t, int16_t, float,
                   double) {
  for (Shape const& shape : {Shape(67, 45), Shape(5, 33, 3, 34), Shape(1, 7, 1), Shape(40, 1),
                             Shape(2, 1, 3, 1, 2, 1, 2, 2), Shape(4, 0, 2)}) {
    CAPTURE(to_string(shape));
    Tensor<T> const expected = counting<T>(shape);
    std::vector<T> elements(static_cast<size_t>(expected.size()));
    Layout const rows(shape);
    for (size_t at = 0; at < elements.size(); ++at) {
      int64_t rest = static_cast<int64_t>(at), offset = 0;
      for (int axis = 0; axis < shape.rank(); rest /= shape[axis++]) offset += rest % shape[axis] * rows.strides[axis];
      elements[at] = expected.data()[offset];
    }
    std::string const bytes = file("{'descr': '"s + detail::npy_type_of(dtype_of<T>).descr +
                                       "', 'fortran_order': True, 'shape': " + detail::text(detail::npy_shape_text(shape)) + "}",
                                   {reinterpret_cast<char const*>(elements.data()), elements.size() * sizeof(T)});
    CHECK(same(decode<T>(bytes), expected));
  }
}

TEST_CASE("versions 2 and 3 are read") {
  CHECK(holds(decode<float>(numpy::version_2), {2}, {7.f, 8.f}));
  CHECK(holds(decode<float>(numpy::version_3), {2}, {7.f, 8.f}));
}

TEST_CASE("every byte but 0 is true") {
  CHECK(holds(decode<bool>(file("{'descr': '|b1', 'fortran_order': False, 'shape': (4,)}", "\0\1\2\xff"sv)), {4},
              {false, true, true, true}));
}

TEST_CASE("headers are read as Python reads them") {
  auto const one = "\0\0\x80\x3f"sv;
  for (auto text : {"{'shape':(1,),'fortran_order':False,'descr':'<f4'}"sv,
                    "{\"descr\": \"<f4\", \"fortran_order\": False, \"shape\": (1,)}"sv,
                    "  {  'descr'  :  '<f4'  ,  'fortran_order'  :  True  ,\n 'shape'  :  (  1  ,  )  ,  }  \n\n"sv,
                    "{'descr': '<f4', 'fortran_order': False, 'shape': (1L,), }"sv}) {
    CAPTURE(text);
    CHECK(holds(decode<float>(file(text, one)), {1}, {1.f}));
  }
  CHECK(holds(decode<float>(file("{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1)}", one)), {1, 1}, {1.f}));
}

TEST_CASE("bfloat16 is two raw bytes, with either mark") {
  CHECK(decode<bfloat16>(file("{'descr': '|V2', 'fortran_order': False, 'shape': ()}", "\x80\x3f"sv)).data()[0].bits ==
        0x3f80);
  CHECK(rejection<bfloat16>(file("{'descr': '>V2', 'fortran_order': False, 'shape': ()}", "\x3f\x80"sv)) ==
        "the elements have a type that situ has not: '>V2' found; bfloat16 ('<V2') was asked for: save the array as "
        "bfloat16");
}

TEST_CASE("a file cut at any byte, or longer by one, is rejected") {
  auto const cut = [](auto kind, std::string_view whole) {
    using T = decltype(kind);
    for (size_t size = 0; size < whole.size(); ++size) {
      CAPTURE(size);
      CHECK_THROWS_AS(decode<T>(whole.substr(0, size)), IoError);
    }
    CHECK_NOTHROW(decode<T>(whole));
    CHECK_THROWS_AS(decode<T>(std::string(whole) + '\0'), IoError);
  };
  cut(float{}, numpy::float32_2x3);
  cut(bool{}, numpy::bool_4);
  cut(double{}, numpy::scalar);
  cut(float{}, numpy::empty);
  cut(int32_t{}, numpy::fortran_big);
  cut(float{}, numpy::version_2);
  cut(float{}, numpy::version_3);
}

TEST_CASE("another element type names both and the cure") {
  CHECK(rejection<float>(numpy::uint8_3) ==
        "the elements have another type: uint8 ('|u1') found; float32 ('<f4') was asked for: use load_npy<uint8_t>, or "
        "save the array as float32");
  CHECK(rejection<float>(numpy::big_int16) ==
        "the elements have another type: int16 ('>i2') found; float32 ('<f4') was asked for: use load_npy<int16_t>, or "
        "save the array as float32");
  CHECK(rejection<int8_t>(numpy::bfloat16_3) ==
        "the elements have another type: bfloat16 ('<V2') found; int8 ('|i1') was asked for: use load_npy<bfloat16>, "
        "or save the array as int8");
  CHECK(rejection<float16>(numpy::float64_3) ==
        "the elements have another type: float64 ('<f8') found; float16 ('<f2') was asked for: use load_npy<double>, "
        "or save the array as float16");
}

TEST_CASE("element types without a C++ one are named as the file names them") {
  auto const message = [](char const* found) {
    return "the elements have a type that situ has not: "s + found +
           " found; float32 ('<f4') was asked for: save the array as float32";
  };
  CHECK(rejection(numpy::uint16_2) == message("'<u2'"));
  CHECK(rejection(numpy::complex64_1) == message("'<c8'"));
  CHECK(rejection(numpy::datetime) == message("'<M8[D]'"));
  CHECK(rejection(numpy::string) == message("'<U2'"));
  for (auto descr :
       {"''", "'<'", "'<f'", "'f4'", "'=f4'", "'|f4'", "'<f4 '", "'<f-4'", "'<f99999999999999999999'", "'\xc3\xa4'"})
    CHECK(rejection(header("(1,)", descr)).find("the elements have a type that situ has not: ") == 0);
  CHECK(rejection(header("(1,)", "'\x1b[31m\x7f\xff'")) == message("'\\x1b[31m\\x7f\\xff'"));
  CHECK(rejection(header("(1,)", "'0123456789012345678901234567890123456789 and on'")) ==
        message("'0123456789012345678901234567890123456789…'"));
}

TEST_CASE("Python objects and structures are never read") {
  CHECK(rejection(numpy::object) ==
        "the elements are Python objects: '|O' found; numbers are needed, objects would have to be unpickled, which "
        "runs code");
  CHECK(rejection(header("(1,)", "'O'")).find("the elements are Python objects: 'O' found") == 0);
  CHECK(rejection(numpy::structured) ==
        "the elements are structured: '[('a', '<f4'), ('b', '<i4')], 'fortran_o…' found at byte 20; a plain element "
        "type such as '<f4' is needed");
  CHECK(rejection(header("(1,)", "('<f4', (2,))")).find("the elements are structured: ") == 0);
}

TEST_CASE("what is not an npy file is told from one that is cut") {
  CHECK(rejection("") == "the file is empty: 0 bytes found; an npy file is needed");
  CHECK(rejection("PK\3\4 and so on") == "is not an npy file: it begins with 'PK\\x03\\x04 a'; '\\x93NUMPY' is needed");
  CHECK(rejection("\x93NUMPX\1\0v\0") == "is not an npy file: it begins with '\\x93NUMPX'; '\\x93NUMPY' is needed");
  CHECK(rejection("\x93NUM") == "the file ends inside its header: 4 bytes found; 10 are needed");
  CHECK(rejection("\x93NUMPY\1\0v"sv) == "the file ends inside its header: 9 bytes found; 10 are needed");
  CHECK(rejection("\x93NUMPY\1\0v\0{"sv) == "the file ends inside its header: 11 bytes found; 128 are needed");
  CHECK(rejection("\x93NUMPY\2\0\xff\xff\xff\xff{"sv) ==
        "the file ends inside its header: 13 bytes found; 4294967307 are needed");
  CHECK(rejection(file(std::string(65536, ' '), "", 2)) ==
        "the header is too long: 65536 bytes found; at most 65535 are accepted");
  CHECK(rejection("\x93NUMPY\4\0\1\0{}"sv) == "unknown version of the format: 4.0 found; 1.0, 2.0 or 3.0 is needed");
  CHECK(rejection("\x93NUMPY\1\1\2\0{}"sv) == "unknown version of the format: 1.1 found; 1.0, 2.0 or 3.0 is needed");
  CHECK(rejection("\x93NUMPY\0\0\2\0{}"sv) == "unknown version of the format: 0.0 found; 1.0, 2.0 or 3.0 is needed");
}

TEST_CASE("a header that is not the dictionary of the format is rejected where it errs") {
  CHECK(rejection(file("")) == "the header is not a dictionary: its end found at byte 10; '{' is needed");
  CHECK(rejection(file("[1, 2]")) == "the header is not a dictionary: '[1, 2]' found at byte 10; '{' is needed");
  CHECK(rejection(file("{")) ==
        "the header's dictionary cannot be read: its end found at byte 11; a key in quotes or '}' is needed");
  CHECK(rejection(file("{descr: 1}")) ==
        "the header's dictionary cannot be read: 'descr: 1}' found at byte 11; a key in quotes or '}' is needed");
  CHECK(rejection(file("{'descr")) ==
        "the header's dictionary cannot be read: ''descr' found at byte 11; a key in quotes or '}' is needed");
  CHECK(rejection(file("{'descr' '<f4'}")) ==
        "the header's dictionary cannot be read: ''<f4'}' found at byte 19; ':' is needed");
  CHECK(rejection(file("{'descr': '<f4' 'shape'")) ==
        "the header's dictionary cannot be read: ''shape'' found at byte 26; ',' or '}' is needed");
  CHECK(rejection(file("{'descr': 4")) ==
        "the element type cannot be read: '4' found at byte 20; a plain element type such as '<f4' is needed");
  CHECK(rejection(file("{'descr': '\\x3cf4'")) ==
        "the element type cannot be read: ''\\x3cf4'' found at byte 20; a plain element type such as '<f4' is needed");
  CHECK(rejection(file("{'fortran_order': 1")) ==
        "'fortran_order' cannot be read: '1' found at byte 28; True or False is needed");
  CHECK(rejection(file("{}")) ==
        "a key is missing from the header: none found; 'descr', 'fortran_order' and 'shape' are needed");
  CHECK(rejection(file("{'shape': (), 'descr': '<f4'}")) ==
        "a key is missing from the header: 'descr', 'shape' found; 'descr', 'fortran_order' and 'shape' are needed");
  CHECK(rejection(file("{'shape': (), 'shape': ()}")) ==
        "a key stands twice in the header: 'shape' found again; 'descr', 'fortran_order' and 'shape' are needed");
  CHECK(rejection(file("{\v}")).find("the header's dictionary cannot be read: '\\x0b}' found at byte 11; ") == 0);
  CHECK(rejection(file("{'shape ': ()}")) ==
        "unknown key in the header: 'shape ' found; 'descr', 'fortran_order' and 'shape' are needed");
  CHECK(rejection(file("{'descr': '<f4', 'fortran_order': False, 'shape': ()} x")) ==
        "the header goes on after its dictionary: 'x' found at byte 64; nothing but spaces is needed");
  CHECK(rejection(file("{'descr': '<f4', 'fortran_order': False, 'shape': ()}\0"sv))
            .find("the header goes on after its dictionary: '\\x00'") == 0);
}

TEST_CASE("a shape that is no shape is rejected") {
  CHECK(rejection(header("3")) == "the shape is not a tuple: '3, }' found at byte 60; '(' is needed");
  CHECK(rejection(header("[3]")) == "the shape is not a tuple: '[3], }' found at byte 60; '(' is needed");
  CHECK(rejection(header("(3)")) == "the shape is not a tuple: '(3)' found; '(3,)' is needed");
  CHECK(rejection(header("(,)")) == "the shape cannot be read: ',), }' found at byte 61; an extent is needed");
  CHECK(rejection(header("(3 4)")) == "the shape cannot be read: '4), }' found at byte 63; ',' or ')' is needed");
  CHECK(rejection(header("(3., 4)")) == "the shape cannot be read: '., 4), }' found at byte 62; ',' or ')' is needed");
  CHECK(rejection(header("(03,)")) ==
        "the shape cannot be read: '03,), }' found at byte 61; an extent without leading zeros is needed");
  CHECK(rejection(header("(-,)")) == "the shape cannot be read: '-,), }' found at byte 61; an extent is needed");
  CHECK(rejection(header("(True,)")) == "the shape cannot be read: 'True,), }' found at byte 61; an extent is needed");
  CHECK(rejection(header("(2, -3)")) == "the shape has a negative extent: '-3' found; 0 or more is needed");
  CHECK(rejection(header("(-99999999999999999999,)")) ==
        "the shape has a negative extent: '-99999999999999999999' found; 0 or more is needed");
  CHECK(rejection(header("(1, 1, 1, 1, 1, 1, 1, 1, 1)")) ==
        "the shape has too many dimensions: 9 found; at most 8 are supported");
}

TEST_CASE("sizes that overflow are rejected before anything is allocated") {
  CHECK(rejection(header("(9223372036854775808,)")) ==
        "the shape is too large: an extent of '9223372036854775808' found; fewer than 2^63 elements are needed");
  CHECK(rejection(header("(4294967296, 4294967296)")) ==
        "the shape is too large: (4294967296, 4294967296) found; fewer than 2^63 elements are needed");
  CHECK(rejection(header("(0, 4294967296, 4294967296)")) ==
        "the shape is too large: (0, 4294967296, 4294967296) found; fewer than 2^63 elements are needed");
  CHECK(rejection(header("(2305843009213693952,)")) ==
        "the shape is too large: (2305843009213693952,) of 4 bytes each found; fewer than 2^63 bytes are needed");
  CHECK(rejection(header("(2305843009213693951,)")) ==
        "the data are shorter than the header says: 0 bytes found; 9223372036854775804 are needed for shape "
        "(2305843009213693951,) of float32");
  CHECK(decode<float>(header("(0, 2305843009213693951)")).size() == 0);
}

TEST_CASE("data shorter or longer than the header says are rejected") {
  CHECK(rejection(numpy::float32_2x3.substr(0, 128 + 20)) ==
        "the data are shorter than the header says: 20 bytes found; 24 are needed for shape (2, 3) of float32");
  CHECK(rejection(std::string(numpy::float32_2x3) + "x") ==
        "the data are longer than the header says: 25 bytes found; 24 are needed for shape (2, 3) of float32");
}

TEST_CASE("a saved file is byte for byte what NumPy writes") {
  Folder folder;
  std::string const path = folder / "x.npy";
  auto const check = [&](auto kind, std::string_view expected) {
    io::save_npy(path, decode<decltype(kind)>(expected));
    CHECK(bytes_of(path) == expected);
  };
  check(float{}, numpy::float32_2x3);
  check(double{}, numpy::float64_3);
  check(float16{}, numpy::float16_4);
  check(bfloat16{}, numpy::bfloat16_3);
  check(bool{}, numpy::bool_4);
  check(int8_t{}, numpy::int8_3);
  check(int16_t{}, numpy::int16_2);
  check(int32_t{}, numpy::int32_2);
  check(int64_t{}, numpy::int64_2);
  check(uint8_t{}, numpy::uint8_3);
  check(double{}, numpy::scalar);
  check(float{}, numpy::empty);
  check(int32_t{}, numpy::empty_3x0x2);
  check(uint8_t{}, numpy::rank_8);
}

TEST_CASE_TEMPLATE("save and load give back the same bits for ranks 0 to 8", T, float, double, float16, bfloat16, bool,
                   int8_t, int16_t, int32_t, int64_t, uint8_t) {
  Folder folder;
  std::string const path = folder / "x.npy";
  Shape shape;
  for (int rank = 0; rank <= 8; ++rank) {
    CAPTURE(rank);
    Tensor<T> const x = counting<T>(shape);
    io::save_npy(path, x);
    CHECK(same(io::load_npy<T>(path), x));
    CHECK(bytes_of(path).size() % 64 == static_cast<size_t>(x.size()) * sizeof(T) % 64);
    if (rank < 8) shape.push_back(rank % 3 + 1);
  }
}

TEST_CASE("views, expressions and tensors on devices are saved as their values in row-major order") {
  Folder folder;
  std::string const path = folder / "x.npy";
  Tensor<float> const x{{1, 2, 3}, {4, 5, 6}};
  io::save_npy(path, x.t());
  CHECK(holds(io::load_npy<float>(path), {3, 2}, {1, 4, 2, 5, 3, 6}));
  io::save_npy(path, x * 2 + 1);
  CHECK(holds(io::load_npy<float>(path), {2, 3}, {3, 5, 7, 9, 11, 13}));
  io::save_npy(path, x.to(Emulated<0>{}).t() > 2);
  CHECK(holds(io::load_npy<bool>(path), {3, 2}, {false, true, false, true, true, true}));
  io::save_npy(path, x.to(Emulated<1>{}));
  CHECK(same(io::load_npy<float>(path), x));
  io::save_npy(path, x.to(Pinned{}).t());
  CHECK(holds(io::load_npy<float>(path), {3, 2}, {1, 4, 2, 5, 3, 6}));
  io::save_npy(path, x.select(0, 1).expand({2, 3}));
  CHECK(holds(io::load_npy<float>(path), {2, 3}, {4, 5, 6, 4, 5, 6}));
}

TEST_CASE("files larger than any header are read in place, in either order") {
  Folder folder;
  std::string const path = folder / "x.npy";
  Tensor<float> const x = counting<float>({300, 200});
  io::save_npy(path, x);
  CHECK(same(io::load_npy<float>(path), x));
  std::string bytes = bytes_of(path);
  bytes.replace(bytes.find("False"), 5, "True ");
  bytes.replace(bytes.find("(300, 200)"), 10, "(200, 300)");
  put(path, bytes);
  Tensor<float> const y = io::load_npy<float>(path);
  CHECK(y.shape() == Shape(200, 300));
  bool transposed = true;
  for (int64_t i = 0; i < 200; ++i)
    for (int64_t j = 0; j < 300; ++j) transposed = transposed && y.data()[i * 300 + j] == x.data()[j * 200 + i];
  CHECK(transposed);
}

TEST_CASE("a header of more than 65535 bytes in a file is rejected without reading it") {
  Folder folder;
  std::string const path = folder / "x.npy";
  put(path, file(std::string(100000, ' '), "", 2));
  CHECK(load_error<float>(path) ==
        "load_npy: " + path + ": the header is too long: 100000 bytes found; at most 65535 are accepted");
}

TEST_CASE("load_npy names the file that it cannot read") {
  Folder folder;
  std::string const path = folder / "x.npy";
  CHECK(load_error<float>(path) ==
        "load_npy: " + path + ": cannot be opened: No such file or directory; a readable file is needed");
  CHECK(load_error<float>(folder.name) ==
        "load_npy: " + folder.name + ": is not an ordinary file: a folder found; a regular file is needed");
  CHECK(load_error<float>("/dev/null") ==
        "load_npy: /dev/null: is not an ordinary file: a device found; a regular file is needed");
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  CHECK(load_error<float>(path) ==
        "load_npy: " + path + ": is not an ordinary file: a pipe found; a regular file is needed");
  ::unlink(path.c_str());
  put(path, numpy::uint8_3);
  CHECK(load_error<float>(path) ==
        "load_npy: " + path +
            ": the elements have another type: uint8 ('|u1') found; float32 ('<f4') was asked for: "
            "use load_npy<uint8_t>, or save the array as float32");
  put(path, "");
  CHECK(load_error<float>(path) == "load_npy: " + path + ": the file is empty: 0 bytes found; an npy file is needed");
}

TEST_CASE("saving replaces a file, keeps its permissions and follows a symbolic link") {
  Folder folder;
  std::string const path = folder / "x.npy", link = folder / "link.npy";
  put(path, "old");
  REQUIRE(::chmod(path.c_str(), 0640) == 0);
  REQUIRE(::symlink("x.npy", link.c_str()) == 0);
  io::save_npy(link, counting<float>({2}));
  CHECK(holds(io::load_npy<float>(path), {2}, {0.f, 1.f}));
  struct ::stat status{};
  REQUIRE(::lstat(link.c_str(), &status) == 0);
  CHECK(S_ISLNK(status.st_mode));
  REQUIRE(::stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0640);
}

TEST_CASE("a name as long as the file system allows, and one in the current folder, can be saved") {
  Folder folder;
  std::string const path = folder / (std::string(251, 'x') + ".npy").c_str();
  io::save_npy(path, counting<float>({2}));
  CHECK(io::load_npy<float>(path).size() == 2);
  std::string const here = "situ-npy-test-" + std::to_string(::getpid()) + ".npy";
  io::save_npy(here, counting<float>({2}));
  CHECK(io::load_npy<float>(here).size() == 2);
  ::unlink(here.c_str());
}

TEST_CASE("a save that fails leaves the old file and nothing else") {
  Folder folder;
  std::string const path = folder / "x.npy";
  Tensor<float> const x = counting<float>({1000});
  put(path, numpy::float32_2x3);
  struct ::rlimit before{}, small{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  small = before, small.rlim_cur = 1000;
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  std::string const message = save_error(path, x);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  std::signal(SIGXFSZ, handler);
  CHECK(message == "save_npy: " + path + ": cannot be written: File too large; 3128 more bytes are needed");
  CHECK(bytes_of(path) == numpy::float32_2x3);
  io::save_npy(path, x);
  CHECK(same(io::load_npy<float>(path), x));
}

TEST_CASE("save_npy writes ordinary files only") {
  Folder folder;
  std::string const missing = folder.name + "/none/x.npy";
  Tensor<float> const x = counting<float>({2});
  CHECK(save_error(missing, x) ==
        "save_npy: " + missing + ": cannot be written: No such file or directory; a writable folder is needed");
  CHECK(save_error(folder.name, x) ==
        "save_npy: " + folder.name +
            ": is not an ordinary file: a folder found; a regular file or a new name is needed");
  CHECK(save_error("/dev/null", x) ==
        "save_npy: /dev/null: is not an ordinary file: a device found; a regular file or a new name is needed");
  CHECK(save_error("", x) != "no error");
}
