/// What stands between the parentheses of x(all(), range(1, end()), -1).
#pragma once

#include <concepts>

#include <situ/core/layout.hpp>

namespace situ::inline SITU_ABI {

/// Every index of an axis.
struct all_t {};
constexpr all_t all() { return {}; }

/// As many whole axes as are left; at most once.
struct ellipsis_t {};
constexpr ellipsis_t ellipsis() { return {}; }

/// A new axis of one index.
struct newaxis_t {};
constexpr newaxis_t newaxis() { return {}; }

/// The open end of a range.
struct end_t {};
constexpr end_t end() { return {}; }

/// Indices start, start + step, ... before stop, with Python's rules: negative bounds count from the end of the axis, bounds
/// beyond it are clamped, step may be negative.
struct range_t {
  int64_t start, stop, step;
  bool open_stop;
};
constexpr range_t range(int64_t start, int64_t stop, int64_t step = 1) { return {start, stop, step, false}; }
constexpr range_t range(int64_t start, end_t, int64_t step = 1) { return {start, 0, step, true}; }

namespace detail {

template <class Ix>
concept view_index = std::same_as<Ix, all_t> || std::same_as<Ix, ellipsis_t> || std::same_as<Ix, newaxis_t> || std::same_as<Ix, range_t>;
template <class Ix>
concept any_index = view_index<Ix> || std::integral<Ix>;

template <class Ix>
inline constexpr bool takes_axis = !std::same_as<Ix, newaxis_t> && !std::same_as<Ix, ellipsis_t>;

/// Applies one index to axis `axis` of `view`, which was axis `named` of `from`; afterwards both are the next ones. A new axis is noted, in front of
/// which one it comes: it is made when integers have taken theirs.
template <class Ix>
void apply_index(Viewed& view, int& axis, Layout const& from, int& named, int whole_axes, int*& new_axis, Ix index) {
  if constexpr (std::integral<Ix>) {
    (void)checked_index(static_cast<int64_t>(index), from.shape[named], named, from.shape, "operator()");
    ++named;
    Viewed const next = select_view(view.layout, axis, static_cast<int64_t>(index), "operator()");
    view = {next.layout, view.offset + next.offset};
  } else if constexpr (std::same_as<Ix, all_t>) {
    ++axis, ++named;
  } else if constexpr (std::same_as<Ix, ellipsis_t>) {
    axis += whole_axes, named += whole_axes;
  } else if constexpr (std::same_as<Ix, newaxis_t>) {
    *new_axis++ = axis;
  } else {
    check_step(index.step, named, "operator()");
    ++named;
    Viewed const next = slice_view(view.layout, axis, index.start, index.stop, index.step, false, index.open_stop, "operator()");
    view = {next.layout, view.offset + next.offset};
    ++axis;
  }
}

template <class... Is>
Viewed index_view(Layout const& from, Is... indices) {
  constexpr int taken = (0 + ... + static_cast<int>(takes_axis<Is>));
  static_assert((0 + ... + static_cast<int>(std::same_as<Is, ellipsis_t>)) <= 1, "situ: an index has at most one ellipsis()");
  if (taken > from.rank()) {
    fail<IndexError>("operator(): ", taken, taken == 1 ? " axis is" : " axes are", " indexed of shape ", from.shape, ": it has ", from.rank());
  }
  Viewed view{from, 0};
  int axis = 0, named = 0, new_axes[sizeof...(Is) + 1], *new_axis = new_axes;
  (apply_index(view, axis, from, named, from.rank() - taken, new_axis, indices), ...);
  for (int* at = new_axes; at < new_axis; ++at) view.layout = unsqueezed(view.layout, *at + static_cast<int>(at - new_axes));
  return view;
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
