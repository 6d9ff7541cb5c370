/// Any bytes are a zip archive or an IoError, and so is each of its members: nothing else is thrown, no byte beyond the input is read, and no more is
/// allocated than the input could hold.
///
///     fuzz_npz -max_len=2048 found/ tests/io/files/        compiled with SITU_WITH_ZLIB
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include <situ/io/npz.hpp>

namespace {

using namespace situ;

void require(bool fact) {
  if (!fact) std::abort();
}

template <class T>
void read_as(detail::BytesSource const& file, detail::ZipMember const& member) {
  try {
    Tensor<T> const x = detail::decode_npz<T>(file, member, {"fuzz", "fuzz"});
    require(x.size() * static_cast<int64_t>(sizeof(T)) < member.size && member.size <= 1032 * (file.size() + 2));
  } catch (IoError const&) {}
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* bytes, std::size_t size) {
  detail::BytesSource const file{bytes, static_cast<int64_t>(size)};
  try {
    for (detail::ZipMember const& member : detail::ZipReader::members(file, {"fuzz", "fuzz"})) {
      require(member.header + 30 + member.stored_size <= file.size());
      read_as<float>(file, member);
      read_as<int64_t>(file, member);
      read_as<bool>(file, member);
    }
  } catch (IoError const&) {}
  return 0;
}
