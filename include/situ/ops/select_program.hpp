/// What selections by a mask have in common on every device: the mask is cut into blocks of a fixed size.
#pragma once

#include <situ/expr/lower.hpp>
#include <situ/expr/pack.hpp>
#include <situ/ops/index_program.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

inline constexpr int64_t select_block = 4096;  ///< elements of a mask that are counted together
constexpr int64_t select_blocks(int64_t size) { return (size + select_block - 1) / select_block; }

}  // namespace detail
}  // namespace situ::inline SITU_ABI
