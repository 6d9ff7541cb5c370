/// Any bytes are an npy file or an IoError: nothing else is thrown, no byte beyond the input is read, nothing larger
/// than the input is allocated, and what was read is read again from what would be written.
///
///     fuzz_npy -max_len=512 found/ tests/io/corpus/
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>

#include <situ/io/npy.hpp>

namespace {

using namespace situ;

void require(bool fact) {
  if (!fact) std::abort();
}

template <class T>
void read_as(unsigned char const* bytes, std::size_t size) {
  Tensor<T> first;
  try {
    first = detail::decode_npy<T>(bytes, size, "fuzz");
  } catch (IoError const&) { return; }
  std::size_t const data_bytes = static_cast<std::size_t>(first.size()) * sizeof(T);
  require(data_bytes <= size);
  std::string written = detail::npy_preamble(dtype_of<T>, first.shape());
  require(written.size() % 64 == 0);
  if (data_bytes > 0) written.append(reinterpret_cast<char const*>(first.data()), data_bytes);
  Tensor<T> const second =
      detail::decode_npy<T>(reinterpret_cast<unsigned char const*>(written.data()), written.size(), "fuzz");
  require(second.shape() == first.shape());
  require(data_bytes == 0 || std::memcmp(second.data(), first.data(), data_bytes) == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* bytes, std::size_t size) {
  detail::npy_header header;
  try {
    header = detail::parse_npy_header(bytes, size, {"load_npy", "fuzz"});
  } catch (IoError const&) { return 0; }
  require(header.data_begin <= static_cast<int64_t>(size) && header.count >= 0);
  // Every type is asked for: nine of them are refused.
  read_as<float>(bytes, size), read_as<double>(bytes, size), read_as<float16>(bytes, size),
      read_as<bfloat16>(bytes, size);
  read_as<bool>(bytes, size), read_as<uint8_t>(bytes, size);
  read_as<int8_t>(bytes, size), read_as<int16_t>(bytes, size), read_as<int32_t>(bytes, size),
      read_as<int64_t>(bytes, size);
  return 0;
}
