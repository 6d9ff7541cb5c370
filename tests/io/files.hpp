/// Files for the tests of io: a folder that cleans up behind itself, and whole files as bytes.
#pragma once

#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include <doctest/doctest.h>
#include <situ/tensor/tensor.hpp>

namespace situ_test {

/// What the reference implementations wrote; see tests/io/expected/files.py.
inline std::string given(char const* name) { return SITU_REPOSITORY "/tests/io/files/" + std::string(name); }

/// A folder that is removed with all that tests put into it.
struct Folder {
  std::string name = std::string(P_tmpdir) + "/situ-io-XXXXXX";
  std::vector<std::string> files;

  Folder() { REQUIRE(::mkdtemp(name.data()) != nullptr); }
  ~Folder() {
    for (std::string const& each : files) ::unlink(each.c_str());
    CHECK(::rmdir(name.c_str()) == 0);  // nothing else was left, no temporary file in particular
  }
  std::string operator/(char const* file) { return files.emplace_back(name + "/" + file); }
};

inline void put(std::string const& path, std::string_view bytes) {
  std::FILE* const out = std::fopen(path.c_str(), "wb");
  REQUIRE(out != nullptr);
  std::fwrite(bytes.data(), 1, bytes.size(), out);
  std::fclose(out);
}

inline std::string bytes_of(std::string const& path) {
  std::string bytes;
  std::FILE* const in = std::fopen(path.c_str(), "rb");
  REQUIRE(in != nullptr);
  char piece[65536];
  for (std::size_t n; (n = std::fread(piece, 1, sizeof piece, in)) > 0;) bytes.append(piece, n);
  std::fclose(in);
  return bytes;
}

/// f() while no file may become larger than `bytes`.
template <class F>
void with_full_disk(rlim_t bytes, F f) {
  ::rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
  ::rlimit small = before;
  small.rlim_cur = bytes;
  auto* const handler = std::signal(SIGXFSZ, SIG_IGN);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  f();
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &before) == 0);
  std::signal(SIGXFSZ, handler);
}

/// 0, 1, 2, … as T, up to 99 and again.
template <class T>
situ::Tensor<T> counting(situ::Shape const& shape, int start = 0) {
  auto x = situ::Tensor<T>::uninitialized(shape);
  T* const data = x.data();
  for (std::int64_t i = 0; i < x.size(); ++i) data[i] = situ::detail::convert_scalar<T>(static_cast<float>((i + start) % 100));
  return x;
}

/// Whether a tensor is of this shape and holds these values, after a conversion from double.
template <class T, class D>
bool holds(situ::Tensor<T, D> const& x, situ::Shape const& shape, std::vector<double> const& values) {
  situ::Tensor<T> const host = x.cpu().contiguous();
  bool same = x.shape() == shape && x.size() == static_cast<std::int64_t>(values.size());
  for (std::size_t k = 0; same && k < values.size(); ++k) {
    T const expected = situ::detail::convert_scalar<T>(values[k]);
    same = std::memcmp(host.data() + k, &expected, sizeof(T)) == 0;
  }
  return same;
}

template <class T, class D, class E>
bool same(situ::Tensor<T, D> const& x, situ::Tensor<T, E> const& y) {
  situ::Tensor<T> const a = x.cpu().contiguous(), b = y.cpu().contiguous();
  return a.shape() == b.shape() && (a.size() == 0 || std::memcmp(a.data(), b.data(), static_cast<std::size_t>(a.size()) * sizeof(T)) == 0);
}

}  // namespace situ_test
