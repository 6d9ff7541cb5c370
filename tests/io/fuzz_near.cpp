/// What a fuzzer is given where there is none: the files named on the command line, each of their beginnings, and each with one byte changed.
///
///     fuzz_npy tests/io/corpus/*        compiled with this file instead of -fsanitize=fuzzer
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(std::uint8_t const* bytes, std::size_t size);

int main(int count, char** names) {
  std::size_t inputs = 0;
  // A copy of its own size each: a sanitizer sees what is read behind it.
  auto const give = [&](std::vector<std::uint8_t> const& bytes, std::size_t size) {
    std::vector<std::uint8_t> const input(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
    LLVMFuzzerTestOneInput(input.data(), input.size());
    ++inputs;
  };
  for (int k = 1; k < count; ++k) {
    std::ifstream file(names[k], std::ios::binary);
    std::vector<std::uint8_t> bytes{std::istreambuf_iterator<char>(file), {}};
    if (!file.is_open() || bytes.empty()) {
      std::printf("%s cannot be read\n", names[k]);
      return 1;
    }
    for (std::size_t size = 0; size <= bytes.size(); ++size) give(bytes, size);
    for (std::uint8_t& byte : bytes) {
      std::uint8_t const was = byte;
      for (int const other : {was ^ 1, was ^ 0x80, 0, 0xff}) {
        byte = static_cast<std::uint8_t>(other);
        give(bytes, bytes.size());
      }
      byte = was;
    }
  }
  std::printf("%zu inputs\n", inputs);
  return inputs > 0 ? 0 : 1;
}
