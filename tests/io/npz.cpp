#include <memory>
#include <string>
#include <string_view>

#include <doctest/doctest.h>
#include <io/files.hpp>
#include <situ/device/emulated/device.hpp>
#include <situ/io/npz.hpp>
#include <situ/tensor/factories.hpp>
#include <support/compare.hpp>

using namespace situ;
using namespace std::string_literals;
using namespace std::string_view_literals;
using situ_test::bytes_of;
using situ_test::Folder;
using situ_test::given;
using situ_test::holds;
using situ_test::put;
using situ_test::thrown;

namespace {

/// What reading the list of members, and the member x, of these bytes reports; they lie in a buffer of exactly their size. What was read is in `values`.
std::string rejection(std::string_view bytes, std::vector<float>* values = nullptr) {
  std::unique_ptr<unsigned char[]> const exact(new unsigned char[bytes.size()]);
  if (!bytes.empty()) std::memcpy(exact.get(), bytes.data(), bytes.size());
  detail::BytesSource const file{exact.get(), static_cast<int64_t>(bytes.size())};
  detail::FileContext const context{"load", "x"};
  try {
    for (detail::ZipMember const& member : detail::ZipReader::members(file, context)) {
      if (member.name != "x.npy") continue;
      Tensor<float> const x = detail::decode_npz<float>(file, member, context);
      if (values != nullptr) *values = x.to_vector();
    }
  } catch (IoError const& e) {
    std::string const what = e.what();
    return what.compare(0, 9, "load: x: ") == 0 ? what.substr(9) : "? " + what;
  }
  return "";
}

std::string little(std::uint64_t value, int bytes) {
  std::string result;
  for (int k = 0; k < bytes; ++k) result += k < 8 ? static_cast<char>(value >> (8 * k) & 255) : char(0);
  return result;
}

/// An archive of stored members, as a test wants it.
struct Archive {
  std::string members, list;
  int count = 0;

  void add(std::string const& name, std::string const& data, unsigned flags = 0, unsigned method = 0) {
    std::string const head = little(flags, 2) + little(method, 2) + little(0, 4) + little(detail::crc32_of(0, reinterpret_cast<unsigned char const*>(data.data()), data.size()), 4) +
                             little(data.size(), 4) + little(data.size(), 4) + little(name.size(), 2) + little(0, 2);
    list += little(detail::zip_central_mark, 4) + little(20, 2) + little(20, 2) + head + little(0, 10) + little(members.size(), 4) + name;
    members += little(detail::zip_local_mark, 4) + little(20, 2) + head + name + data;
    ++count;
  }
  std::string bytes(std::string const& comment = "") const {
    return members + list + little(detail::zip_end_mark, 4) + little(0, 4) + little(static_cast<unsigned>(count), 2) + little(static_cast<unsigned>(count), 2) +
           little(list.size(), 4) + little(members.size(), 4) + little(comment.size(), 2) + comment;
  }
};

std::string npy() {
  std::string bytes = detail::npy_preamble(dtype::float32, {2});
  float const values[] = {1.5f, -2};
  return bytes.append(reinterpret_cast<char const*>(values), sizeof values);
}
std::string one() {
  Archive archive;
  archive.add("x.npy", npy());
  return archive.bytes();
}
/// The archive with other bytes at a place.
std::string with(std::string bytes, std::size_t at, std::string const& other) { return bytes.replace(at, other.size(), other); }

}  // namespace

TEST_CASE("arrays are read as numpy.savez wrote them") {
  io::Npz const file = io::load_npz(given("stored.npz"));
  CHECK(file.keys() == std::vector<std::string>{"x", "n", "f", "e", "b", "é/ü"});
  CHECK(file.size() == 6);
  CHECK(file.contains("é/ü"));
  CHECK(!file.contains("x.npy"));
  CHECK(file.shape("f") == Shape(2, 3));
  CHECK(holds(file.load<float>("x"), {2, 3}, {0, 1, 2, 3, 4, 5}));
  CHECK(holds(file.load<int64_t>("n"), {3}, {1, -2, 3}));
  CHECK(holds(file.load<double>("f"), {2, 3}, {0, 1, 2, 3, 4, 5}));
  CHECK(file.load<double>("e").shape() == Shape(0, 3));
  CHECK(holds(file.load<bool>("b"), Shape(), {1}));
  CHECK(holds(file.load<double>("é/ü"), {1}, {2.5}));
  CHECK(holds(file.load<float>("x", Emulated<0>{}), {2, 3}, {0, 1, 2, 3, 4, 5}));
}

TEST_CASE("zip64, and sizes behind the data, are read") {
  for (char const* name : {"zip64.npz", "piped.npz"}) {
    CAPTURE(name);
    CHECK(holds(io::load_npz(given(name)).load<float>("x"), {2, 3}, {0, 1, 2, 3, 4, 5}));
  }
}

TEST_CASE("deflated arrays are read with zlib, and named without") {
  std::string const path = given("deflated.npz");
  io::Npz const file = io::load_npz(path);
  CHECK(file.keys() == std::vector<std::string>{"x", "f", "long"});
#if defined(SITU_WITH_ZLIB)
  CHECK(holds(file.load<float>("x"), {2, 3}, {0, 1, 2, 3, 4, 5}));
  CHECK(holds(file.load<double>("f"), {2, 3}, {0, 1, 2, 3, 4, 5}));
  std::vector<double> expected;
  for (int k = 0; k < 40000; ++k) expected.push_back(k * 7 % 256);
  CHECK(holds(file.load<uint8_t>("long"), {40000}, expected));
  // Damaged in each of its bytes: an error, or the same array where the byte means nothing.
  std::string const whole = bytes_of(path);
  for (std::size_t at = 0; at < whole.size(); ++at) {
    std::string const message = rejection(with(whole, at, std::string(1, static_cast<char>(whole[at] ^ 0x24))));
    CHECK((message == "" || message[0] != '?'));
  }
#else
  CHECK(thrown<IoError>([&] { (void)file.load<float>("x"); },
                        "Npz::load: " + path +
                            "['x']: the member is deflated, which this program cannot read: compile it with SITU_WITH_ZLIB (and link zlib), or save without compression, as "
                            "numpy.savez does") == "");
#endif
  CHECK(thrown<IoError>([&] { (void)io::load_npz(given("bzip2.npz")).load<float>("x"); },
                        "Npz::load: " + given("bzip2.npz") + "['x']: the member is compressed by method 12; 0 (stored) or 8 (deflated) is needed") == "");
}

TEST_CASE("what is written is read") {
  Folder folder;
  std::string const path = folder / "w.npz";
  Tensor<float> const x = arange<float>(6).view({2, 3});
  Tensor<int64_t, Emulated<0>> const n = Tensor<int64_t>{{1, -2, 3}, {4, 5, 6}}.to(Emulated<0>{});
  std::vector<io::NamedTensor> const tensors{{"x", x.t()}, {"é/ü", x * 2.5f}, {"n", n}, {"columns", n(all(), range(0, end(), 2))}, {"none", zeros<uint8_t>({0, 3})}, {"one", full<double>({}, 7)},
                                             {"h", Tensor<float16>{1, -2}}, {"", Tensor<bool>{true, false}}};
  for (std::uint64_t most : {std::uint64_t{0xfffffffe}, std::uint64_t{150}, std::uint64_t{0}}) {  // with zip64 where numbers are larger
    CAPTURE(most);
    detail::write_npz(path, tensors, most);
    io::Npz const file = io::load_npz(path);
    CHECK(file.keys() == std::vector<std::string>{"x", "é/ü", "n", "columns", "none", "one", "h", ""});
    CHECK(holds(file.load<float>("x"), {3, 2}, {0, 3, 1, 4, 2, 5}));
    CHECK(holds(file.load<float>("é/ü"), {2, 3}, {0, 2.5, 5, 7.5, 10, 12.5}));
    CHECK(holds(file.load<int64_t>("n"), {2, 3}, {1, -2, 3, 4, 5, 6}));
    CHECK(holds(file.load<int64_t>("columns"), {2, 2}, {1, 3, 4, 6}));
    CHECK(file.load<uint8_t>("none").shape() == Shape(0, 3));
    CHECK(holds(file.load<double>("one"), Shape(), {7}));
    CHECK(holds(file.load<bool>(""), {2}, {1, 0}));
    CHECK(situ_test::difference(cast<float>(file.load<float16>("h")).to_vector(), std::vector<double>{1, -2}) == "");
  }
  // Byte for byte a test's own archive of the same members, but for the day, which is the first that there is in archives.
  io::save_npz(path, {{"x", x}, {"n", Tensor<int32_t>{7}}});
  Archive expected;
  std::string const x_path = folder / "x.npy", n_path = folder / "n.npy";
  io::save_npy(x_path, x), io::save_npy(n_path, Tensor<int32_t>{7});
  expected.add("x.npy", bytes_of(x_path)), expected.add("n.npy", bytes_of(n_path));
  std::string written = bytes_of(path);
  std::string_view const day = "\0\0\0\0\0\0\x21\0"sv;
  int days = 0;
  for (std::size_t at = 0; (at = written.find(day, at)) != std::string::npos; ++days) written[at + 6] = '\0';
  CHECK(days == 4);
  CHECK(written == expected.bytes());
  io::save_npz(path, {});
  CHECK(io::load_npz(path).size() == 0);
}

TEST_CASE("archives that cannot be written are named, and leave what was there") {
  Folder folder;
  std::string const path = folder / "w.npz";
  io::save_npz(path, {{"x", ones({2})}});
  std::string const before = bytes_of(path);
  CHECK(thrown<IoError>([&] { io::save_npz(path, {{"a", ones({2})}, {"b", ones({2})}, {"a", ones({3})}}); }, "save_npz: " + path + ": the name 'a' was given twice; names are unique") == "");
  CHECK(thrown<IoError>([&] { io::save_npz(path, {{"a\0b"s, ones({2})}}); }, "save_npz: " + path + ": the name 'a\\x00b' has a zero byte; names of files have none") == "");
  CHECK(thrown<IoError>([&] { io::save_npz(path, {{std::string(65001, 'a'), ones({2})}}); }, "save_npz: " + path + ": a name of 65001 bytes was given; the format has room for 65000") == "");
  CHECK(bytes_of(path) == before);
}

TEST_CASE("CRC-32 is the one of zip") {
  auto const crc = [](std::string_view text) { return detail::crc32_of(0, reinterpret_cast<unsigned char const*>(text.data()), text.size()); };
  CHECK(crc("") == 0);
  CHECK(crc("a") == 0xe8b7be43);
  CHECK(crc("123456789") == 0xcbf43926);
  CHECK(crc("The quick brown fox jumps over the lazy dog") == 0x414fa339);
  auto const* const tail = reinterpret_cast<unsigned char const*>("456789");
  CHECK(detail::crc32_of(crc("123"), tail, 6) == 0xcbf43926);
}

TEST_CASE("the wrong element type, name or file is named") {
  std::string const path = given("stored.npz");
  io::Npz const file = io::load_npz(path);
  CHECK(thrown<IoError>([&] { (void)file.load<double>("x"); },
                        "Npz::load: " + path +
                            "['x']: the elements have another type: float32 ('<f4') found; float64 ('<f8') was asked for: use Npz::load<float>, or save the array as float64") == "");
  CHECK(thrown<IoError>([&] { (void)file.load<float>("y"); },
                        "Npz::load: " + path + "['y']: there is no such array; the file has 'x', 'n', 'f', 'e', 'b', '\\xc3\\xa9/\\xc3\\xbc'") == "");
  Folder folder;
  std::string const none = folder / "none.npz";
  CHECK(thrown<IoError>([&] { io::load_npz(none); }, "load_npz: " + none + ": cannot be opened: No such file or directory; a readable file is needed") == "");
  put(none, "\x93NUMPY\1\0v\0{'descr': "sv);
  CHECK(thrown<IoError>([&] { io::load_npz(none); }, "load_npz: " + none + ": is no zip archive: no end of a list of members found in its last 20 bytes") == "");
  Archive archive;
  archive.add("readme.txt", "hello");
  archive.add("", npy());
  put(none, archive.bytes());
  io::Npz const odd = io::load_npz(none);
  CHECK(odd.keys() == std::vector<std::string>{"readme.txt", ""});
  CHECK(thrown<IoError>([&] { (void)odd.load<float>("readme.txt"); },
                        "Npz::load: " + none + "['readme.txt']: is not an npy file: it begins with 'hello'; '\\x93NUMPY' is needed") == "");
  CHECK(holds(odd.load<float>(""), {2}, {1.5, -2}));
}

TEST_CASE("an archive that is cut, or longer, is rejected") {
  std::string const whole = one();
  CHECK(rejection(whole) == "");
  for (std::size_t size = 0; size < whole.size(); ++size) CHECK(rejection(std::string_view(whole).substr(0, size)) != "");
  CHECK(rejection(whole + "x") != "");
  CHECK(rejection("x" + whole) == "the archive is damaged: its list of members does not end where the archive ends");
  std::string const zip64 = bytes_of(given("zip64.npz"));
  CHECK(rejection(zip64) == "");
  for (std::size_t size = 0; size < zip64.size(); ++size) CHECK(rejection(std::string_view(zip64).substr(0, size)) != "");
  CHECK(rejection("") == "the file is empty: 0 bytes found; a zip archive is needed");
}

TEST_CASE("a comment is passed over, also one that looks like an end") {
  Archive archive;
  archive.add("x.npy", npy());
  CHECK(rejection(archive.bytes("a comment")) == "");
  CHECK(rejection(archive.bytes("PK\5\6 and so on, for more than twenty-two bytes")) == "");
  CHECK(rejection(archive.bytes(std::string(65535, 'P'))) == "");
}

TEST_CASE("nothing in an archive is trusted") {
  std::string const whole = one(), name = "x.npy";
  std::size_t const list = whole.size() - 22 - 46 - 5, end = whole.size() - 22;
  CHECK(rejection(with(whole, 14, "zzzz")) == "");  // what the list says counts
  CHECK(rejection(with(whole, list + 16, "zzzz")) == "the member is damaged: its CRC-32 is not what the archive says");
  CHECK(rejection(with(whole, 30 + 5 + 130, "z")) == "the member is damaged: its CRC-32 is not what the archive says");
  CHECK(rejection(with(whole, 0, "PK\1\2")) == "the archive is damaged: no member begins at byte 0");
  CHECK(rejection(with(whole, 30, "y")) == "the archive is damaged: a member is called 'x.npy' in the list and 'y.npy' where it lies");
  CHECK(rejection(with(whole, 28, "\xff\xff")).find("the archive is damaged: a member of 136 bytes begins at byte 65570 of a file of ") == 0);
  CHECK(rejection(with(whole, 26, "\xff\xff")) == "the archive is damaged: a member reaches beyond the end of the file");
  CHECK(rejection(with(whole, list + 20, "\x89")) == "the archive is damaged: a member's sizes cannot be right");
  CHECK(rejection(with(whole, list + 20, "\xff\xff\xff\x7f\xff\xff\xff\x7f")) == "the archive is damaged: a member does not lie in the file");
  CHECK(rejection(with(whole, list + 20, "\xff\xff\xff\xff\xff\xff\xff\xff")) == "the archive is damaged: a member does not lie in the file");  // zip64, but no field
  CHECK(rejection(with(whole, list + 42, "\xff\xff\xff\x7f")) == "the archive is damaged: a member does not lie in the file");
  CHECK(rejection(with(whole, list + 8, "\1")) == "the member is encrypted; save it without a password");
  CHECK(rejection(with(whole, list + 28, "\xff\xff")) == "the archive is damaged: its list of members is cut");
  CHECK(rejection(with(whole, list, "PK\3\4")) == "the archive is damaged: its list of members is cut");
  CHECK(rejection(with(whole, end + 4, "\1")) == "the archive is in several parts; one file is needed");
  CHECK(rejection(with(whole, end + 8, "\2\0\2"s)) == "the archive is damaged: its list of members is too short");
  CHECK(rejection(with(whole, end + 8, "\0\0\0"s)) == "the archive is damaged: its list of members is longer than it says");
  CHECK(rejection(with(whole, end + 12, "\xff\xff\xff\x7f")) == "the archive is damaged: its list of members does not end where the archive ends");
  CHECK(rejection(with(whole, end + 16, "\1")) == "the archive is damaged: its list of members does not end where the archive ends");
  // A deflated member that would be a thousand times larger than it may become.
  CHECK(rejection(with(with(whole, list + 10, "\x08"), list + 24, "\xff\xff\xff\x7f")) == "the archive is damaged: a member's sizes cannot be right");

  Archive twice;
  twice.add("x.npy", npy()), twice.add("x.npy", npy());
  CHECK(rejection(twice.bytes()) == "two members of the archive are called 'x.npy'; names are unique");
  Archive overlapping;
  overlapping.add("a.npy", npy()), overlapping.add("b.npy", npy());
  std::size_t const second = overlapping.members.size() + 46 + 5 + 42;
  CHECK(rejection(with(overlapping.bytes(), second, "\x10\0"s)) == "the archive is damaged: two members overlap");
}

TEST_CASE("an archive damaged in any byte is rejected, or read as it was") {
  // What nobody reads may change: times, versions, attributes, and what a member repeats of the list. That is less than half of these archives.
  for (std::string const& whole : {one(), bytes_of(given("zip64.npz"))}) {
    std::vector<float> undamaged;
    REQUIRE(rejection(whole, &undamaged) == "");
    std::size_t const name = whole.rfind("x.npy");  // in the list
    std::size_t rejected = 0;
    for (std::size_t at = 0; at < whole.size(); ++at) {
      for (int bit : {1, 0x80}) {
        CAPTURE(at);
        std::vector<float> values;
        std::string const message = rejection(with(whole, at, std::string(1, static_cast<char>(whole[at] ^ bit))), &values);
        if (message == "") {
          bool const is_name = at >= name && at < name + 5;  // then there is no x
          CHECK(values == (is_name ? std::vector<float>{} : undamaged));
        } else {
          CHECK(message[0] != '?');
          ++rejected;
        }
      }
    }
    CHECK(rejected > whole.size());
  }
}
