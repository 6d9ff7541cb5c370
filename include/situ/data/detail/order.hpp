/// Random orders: the permutations of loaders and splits.
#pragma once

#include <utility>
#include <vector>

#include <situ/ops/philox.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// Makes `at` 0, 1, ..., count - 1.
inline void plain_order(int64_t* at, int64_t count) {
  for (int64_t i = 0; i < count; ++i) at[i] = i;
}

__extension__ using uint128 = unsigned __int128;

/// Makes `at` a permutation of 0, 1, ..., count - 1, each with the same chance to within 2^-24: the exchanges of Fisher and Yates from the end
/// on, where place i changes with one of 0, ..., i. Places 2 p + 1 and 2 p share draw p of the stream as long as that has bits enough.
/// Source    Brackett-Rozinsky & Lemire 2024, doi:10.1002/spe.3369, for several numbers from one draw.
inline void shuffle_order(RandomStream const& stream, int64_t* at, int64_t count) {
  plain_order(at, count);
  bool const shared = count <= int64_t{1} << 20;
  PhiloxWords words{};
  for (int64_t k = shared ? (count - 1) >> 1 : count - 1, first = k; k >= 0; --k) {
    if (k == first || (k & 1)) words = philox(stream.seed, static_cast<uint64_t>(k) >> 1, stream.call);
    uint64_t const draw = k & 1 ? uint64_t{words.word[2]} << 32 | words.word[3] : uint64_t{words.word[0]} << 32 | words.word[1];
    int64_t const i = shared ? 2 * k + 1 : k;
    uint128 const product = uint128{draw} * static_cast<uint64_t>(i + 1);
    if (i < count) std::swap(at[i], at[static_cast<uint64_t>(product >> 64)]);
    if (!shared) continue;
    uint128 const next = uint128{static_cast<uint64_t>(product)} * static_cast<uint64_t>(i);
    std::swap(at[i - 1], at[static_cast<uint64_t>(next >> 64)]);
  }
}
inline std::vector<int64_t> random_order(RandomStream const& stream, int64_t count) {
  std::vector<int64_t> order(static_cast<std::size_t>(count));
  shuffle_order(stream, order.data(), count);
  return order;
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
