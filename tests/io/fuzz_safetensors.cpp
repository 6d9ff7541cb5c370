/// Any bytes are a safetensors file or an IoError: nothing else is thrown, no byte beyond the input is read, what is accepted is what the format says, and
/// what would be written of it is read again.
///
///     fuzz_safetensors -max_len=1024 -dict=tests/io/safetensors.dict found/ tests/io/files/
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

#include <situ/io/safetensors.hpp>

namespace {

using namespace situ;
using detail::SafetensorsEntry;
using detail::SafetensorsHeader;

void require(bool fact) {
  if (!fact) std::abort();
}

SafetensorsHeader parse(unsigned char const* bytes, std::size_t size) {
  detail::FileContext const context{"fuzz", "fuzz"};
  int64_t const length = detail::safetensors_header_length(bytes, static_cast<int64_t>(size), context);
  return detail::parse_safetensors_header(bytes + 8, length, static_cast<int64_t>(size), context);
}

void check(SafetensorsHeader const& header, std::size_t size) {
  int64_t end = 0;
  for (SafetensorsEntry const& entry : header.entries) {
    require(entry.begin == end && entry.end >= entry.begin);
    require(header.find(entry.name) == &entry);
    end = entry.end;
    if (!entry.is_own_type() || entry.axes > max_rank) continue;
    int64_t bytes = detail::bytes_of_dtype(entry.dtype());
    for (int64_t extent : entry.shape) {
      if (bytes > 0) require(!__builtin_mul_overflow(bytes, extent, &bytes));
    }
    require(bytes == entry.bytes());
  }
  require(header.data_begin + end == static_cast<int64_t>(size));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* bytes, std::size_t size) {
  SafetensorsHeader header;
  try {
    header = parse(bytes, size);
  } catch (IoError const&) { return 0; }
  check(header, size);

  detail::List<SafetensorsEntry> again;
  for (SafetensorsEntry const& entry : header.entries) {
    if (entry.is_own_type() && entry.axes <= max_rank) again.push_back(entry);
  }
  std::string written;
  try {
    written = detail::safetensors_preamble(again, header.copy_metadata(), {"fuzz", "fuzz"});
  } catch (IoError const&) {
    require(false);  // all names were accepted
  }
  int64_t const data = again.empty() ? 0 : again.back().end;
  require(written.size() % 8 == 0);
  std::unique_ptr<unsigned char[]> const exact(new unsigned char[written.size()]);
  std::memcpy(exact.get(), written.data(), written.size());
  SafetensorsHeader const second = parse(exact.get(), written.size() + static_cast<std::size_t>(data));  // the data are not looked at
  require(second.copy_metadata() == header.copy_metadata() && second.entries.size() == again.size());
  for (SafetensorsEntry const& entry : again) {
    SafetensorsEntry const* const found = second.find(entry.name);
    require(found && found->kind == entry.kind && found->shape == entry.shape && found->begin == entry.begin && found->end == entry.end);
  }
  return 0;
}
