/// Pooling on the CPU, by packs: rows of the input, evaluated into a buffer where they are formulas, are reduced over the window's height, then over its width.
#pragma once

#include <limits>

#include <situ/device/cpu/scratch.hpp>
#include <situ/expr/cpu/launch.hpp>
#include <situ/expr/math.hpp>
#include <situ/ops/cpu/padded_lines.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// The largest element of a window; NaN where there is one.
struct max_pooling {
  static constexpr bool counts = false;
  /// What padding is.
  template <class X>
  static constexpr X least() {
    return std::numeric_limits<X>::has_infinity ? -std::numeric_limits<X>::infinity() : std::numeric_limits<X>::lowest();
  }
  /// The same where no function of the host can be called: a window that lies in the padding.
  template <class X>
  static constexpr X nothing = least<X>();
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static X combine(X const& a, X const& b) {
    return math::maximum(a, b);
  }
};
/// The mean of a window.
struct mean_pooling {
  static constexpr bool counts = true;
  template <class X>
  static constexpr X least() {
    return X(0);
  }
  /// The same where no function of the host can be called: a window that lies in the padding.
  template <class X>
  static constexpr X nothing = least<X>();
  template <class X>
  SITU_HOST_DEVICE SITU_INLINE static X combine(X const& a, X const& b) {
    return a + b;
  }
};

/// The windows of a pooling, on one axis: those of WindowAxis, or `adaptive` ones that cut the axis into equal parts.
struct PoolAxis {
  WindowAxis axis;
  bool adaptive;

  /// The indices [first, last) of a window inside the image, `axis.dilation` apart.
  SITU_HOST_DEVICE void range(int64_t window, int64_t& first, int64_t& last) const {
    if (adaptive) {
      first = window * axis.extent / axis.windows;
      last = ((window + 1) * axis.extent + axis.windows - 1) / axis.windows;
      return;
    }
    first = axis.start(window);
    int64_t const behind = first + (axis.kernel - 1) * axis.dilation + 1;
    last = behind < axis.extent ? behind : axis.extent;
    if (first < 0) first += (-first + axis.dilation - 1) / axis.dilation * axis.dilation;
  }
  /// How many indices of the window count when padding does.
  SITU_HOST_DEVICE int64_t padded_count(int64_t window) const {
    int64_t const first = axis.start(window), behind = axis.extent + axis.padding;
    int64_t const last = first + axis.kernel < behind ? first + axis.kernel : behind;
    return last - first;
  }
};

struct PoolPlan {
  PoolAxis y, x;
  bool count_padding;
  int64_t planes;

  /// Whether the one window of a plane has all of it.
  bool takes_planes() const {
    auto const all = [](PoolAxis const& a) {
      int64_t first = 0, last = 0;
      if (a.axis.windows == 1 && a.axis.dilation == 1) a.range(0, first, last);
      return first == 0 && last == a.axis.extent;
    };
    return all(y) && all(x);
  }
  /// How many elements of a window count, those of padding with them where they do.
  int64_t count_of_planes() const { return count_padding ? y.padded_count(0) * x.padded_count(0) : y.axis.extent * x.axis.extent; }
  /// Whether rows may be kept with their padding: it is not more than the image.
  bool pads_rows() const { return !x.adaptive && x.axis.padding <= x.axis.extent + 64; }
};

namespace cpu {

/// Elements 0, Stride, 2 Stride, … as a pack; reads up to Stride packs.
template <int Stride, class P, class C>
SITU_INLINE P strided_lanes(C const* from) {
  if constexpr (Stride == 1) return P::load(from);
  else return even_lanes(P::load(from), P::load(from + P::lanes));
}

/// The first `count` lanes, or all where there are no more.
template <class T, class C, int N, class Isa>
SITU_INLINE void store_windows(pack<C, N, Isa> const& value, T* to, int64_t count) {
  if (count >= N) return store_lanes<T, N, Isa>(value, to);
  T some[N];
  store_lanes<T, N, Isa>(value, some);
  std::memcpy(to, some, static_cast<std::size_t>(count) * sizeof(T));
}

/// to[i] = combine(a[i], b[i]), and so on for `rows` rows, `step` apart from b on; in whole packs.
template <class Pooling, class C>
struct PoolRowsBody {
  template <class Isa>
  SITU_INLINE static int run(C* to, C const* a, C const* b, int64_t step, int64_t rows, int64_t count) {
    constexpr int lanes = Isa::bytes / static_cast<int>(sizeof(C));
    using P = pack<C, lanes, Isa>;
    for (int64_t k = 0; k < count; k += lanes) {
      P value = P::load(a + k);
      for (int64_t r = 0; r < rows; ++r) value = Pooling::combine(value, P::load(b + r * step + k));
      value.store(to + k);
    }
    return 0;
  }
};
/// Windows along a row that has its padding around it, and up to two packs behind; `from` is the padding's first element. Stride 1 or 2.
template <class Pooling, class T>
struct PoolColumnsBody {
  using C = compute_t<T>;
  /// What counts in window j are rows * columns[j] elements.
  template <class Isa>
  SITU_INLINE static int run(T* to, C const* from, C const* columns, C rows, WindowAxis const& x) {
    if (x.stride == 1) strided<Isa, 1>(to, from, columns, rows, x);
    else strided<Isa, 2>(to, from, columns, rows, x);
    return 0;
  }

 private:
  template <class Isa, int Stride>
  SITU_INLINE static void strided(T* to, C const* from, C const* columns, C rows, WindowAxis const& x) {
    constexpr int lanes = Isa::bytes / static_cast<int>(sizeof(C));
    using P = pack<C, lanes, Isa>;
    int64_t const reach = x.kernel * x.dilation;
    for (int64_t j = 0; j < x.windows; j += lanes) {
      C const* const at = from + Stride * j;
      P value = strided_lanes<Stride, P>(at);
      for (int64_t k = x.dilation; k < reach; k += x.dilation) value = Pooling::combine(value, strided_lanes<Stride, P>(at + k));
      if constexpr (Pooling::counts) value = value / (P::load(columns + j) * P(rows));
      store_windows<T>(value, to + j, x.windows - j);
    }
  }
};

/// The same for a stride of 3 or more: what each column of the windows reads is put together in `parts` first. `from` is the image's first element.
template <class Pooling, class T>
struct PoolPartsBody {
  using C = compute_t<T>;
  template <class Isa>
  SITU_INLINE static int run(T* to, C* parts, C const* from, C const* columns, C rows, WindowAxis const& x) {
    constexpr int lanes = Isa::bytes / static_cast<int>(sizeof(C));
    using P = pack<C, lanes, Isa>;
    PaddedLine const line(x, 64 / static_cast<int64_t>(sizeof(C)));
    for (int64_t k = 0; k < line.copies; ++k) {
      PaddedLine::Part const part = line.part(x, k);
      copy_shifted<Isa, lanes>(parts + k * line.pitch, from + part.shift, x.stride, part.low, part.high, line.pitch, from + x.extent, Pooling::template least<C>());
    }
    for (int64_t j = 0; j < x.windows; j += lanes) {
      P value = P::load(parts + j);
      for (int64_t k = 1; k < line.copies; ++k) value = Pooling::combine(value, P::load(parts + k * line.pitch + j));
      if constexpr (Pooling::counts) value = value / (P::load(columns + j) * P(rows));
      store_windows<T>(value, to + j, x.windows - j);
    }
    return 0;
  }
};

/// Whole planes that follow each other, of `elements` each, to one number each.
template <class Pooling, class T>
struct PoolPlanesBody {
  using C = compute_t<T>;
  template <class Isa>
  SITU_INLINE static int run(T* to, C const* from, int64_t planes, int64_t elements, C count) {
    constexpr int N = Isa::bytes / static_cast<int>(sizeof(C));
    using P = pack<C, N, Isa>;
    P const none(Pooling::template least<C>());
    for (; planes > 0; --planes, ++to, from += elements) {
      P a = none, b = none;
      int64_t k = 0;
      for (; k + 2 * N <= elements; k += 2 * N) a = Pooling::combine(a, P::load(from + k)), b = Pooling::combine(b, P::load(from + k + N));
      if (k + N <= elements) a = Pooling::combine(a, P::load(from + k)), k += N;
      C value = of_lanes<Isa>(Pooling::combine(a, b), from + k, elements - k);
      if constexpr (Pooling::counts) value = value / count;
      *to = convert_scalar<T>(value);
    }
    return 0;
  }

 private:
  /// The lanes and what is left behind them, fewer elements than lanes: half of the lanes at a time.
  template <class Isa, int N>
  SITU_INLINE static C of_lanes(pack<C, N, Isa> const& a, C const* rest, int64_t left) {
    if constexpr (N > 16 / static_cast<int>(sizeof(C))) {
      using Half = pack<C, N / 2, Isa>;
      struct Halves {
        typename Half::vector lower, upper;
      } halves;
      static_assert(sizeof halves == sizeof a.v);
      __builtin_memcpy(&halves, &a.v, sizeof halves);
      Half both = Pooling::combine(Half(halves.lower), Half(halves.upper));
      if (left >= N / 2) both = Pooling::combine(both, Half::load(rest)), rest += N / 2, left -= N / 2;
      return of_lanes<Isa>(both, rest, left);
    } else {
      C value = a[0];
      for (int l = 1; l < N; ++l) value = Pooling::combine(value, a[l]);
      for (int64_t k = 0; k < left; ++k) value = Pooling::combine(value, rest[k]);
      return value;
    }
  }
};

/// Windows of 2 x 2 that lie side by side, of pairs of rows behind each other. Each sum is divided by `count` where the pooling counts.
template <class Pooling, class T>
struct PoolFoursBody {
  using C = compute_t<T>;
  static constexpr int least = 16 / static_cast<int>(sizeof(C));  ///< of a pack

  template <class Isa>
  SITU_INLINE static int run(T* to, C const* from, int64_t rows, int64_t extent, int64_t windows, C count) {
    if (windows < least) narrow<Isa>(to, from, rows, extent, windows, count);
    else wide<Isa, Isa::bytes / static_cast<int>(sizeof(C))>(to, from, rows, extent, windows, count);
    return 0;
  }

 private:
  template <class P>
  SITU_INLINE static P of_four(P const& a0, P const& a1, P const& b0, P const& b1, C count) {
    P const all = Pooling::combine(Pooling::combine(a0, b0), Pooling::combine(a1, b1));
    if constexpr (Pooling::counts) return all / P(count);
    else return all;
  }
  /// In the widest packs that fit a row; the last one of a row reaches back.
  template <class Isa, int N>
  SITU_INLINE static void wide(T* to, C const* from, int64_t rows, int64_t extent, int64_t windows, C count) {
    if constexpr (N > least) {
      if (windows < N) return wide<Isa, N / 2>(to, from, rows, extent, windows, count);
    }
    using P = pack<C, N, Isa>;
    constexpr std::make_integer_sequence<int, N> steps{};
    for (int64_t row = 0; row < rows; ++row, from += 2 * extent, to += windows) {
      for (int64_t j = 0; j < windows; j += N) {
        int64_t const at = j + N <= windows ? j : windows - N;
        C const *const a = from + 2 * at, *const b = a + extent;
        P const al = P::load(a), ah = P::load(a + N), bl = P::load(b), bh = P::load(b + N);
        P const result = of_four(every_second<0>(al, ah, steps), every_second<1>(al, ah, steps), every_second<0>(bl, bh, steps), every_second<1>(bl, bh, steps), count);
        store_lanes<T, N, Isa>(result, to + at);
      }
    }
  }
  /// A pack of windows from several rows.
  template <class Isa>
  SITU_INLINE static void narrow(T* to, C const* from, int64_t rows, int64_t extent, int64_t windows, C count) {
    using P = pack<C, least, Isa>;
    int64_t column = 0;
    for (int64_t left = rows * windows; left > 0; left -= least, to += least) {
      C lanes[4][least] = {};
      int64_t const some = left < least ? left : least;
      for (int64_t l = 0; l < some; ++l) {
        C const* const a = from + 2 * column;
        lanes[0][l] = a[0], lanes[1][l] = a[1], lanes[2][l] = a[extent], lanes[3][l] = a[extent + 1];
        if (++column == windows) column = 0, from += 2 * extent;
      }
      P const result = of_four(P::load(lanes[0]), P::load(lanes[1]), P::load(lanes[2]), P::load(lanes[3]), count);
      for (int l = 0; l < some; ++l) to[l] = convert_scalar<T>(result[l]);
    }
  }
};

/// Items are rows of windows: planes x window rows.
template <class Pooling, class T, int Operands, int TreeBytes>
struct PoolKernel {
  using C = compute_t<T>;
  BoundTree<Operands, TreeBytes> bound;  ///< of the first row of the first plane; contiguous inputs, into C
  PoolPlan plan;
  T* result;
  bool direct;  ///< the input is a tensor of C

  static constexpr int64_t longest_pack = 64 / static_cast<int>(sizeof(C));

  void operator()(int64_t first, int64_t last) const {
    if (in_fours()) return pool_fours(first, last);
    if (plan.takes_planes() && (direct || plan.y.axis.extent * plan.x.axis.extent <= chunk)) return pool_planes(first, last);
    WindowAxis const& x = plan.x.axis;
    bool const by_packs = plan.pads_rows() && x.stride <= 2;
    int64_t const before = by_packs ? x.padding : 0, reach = (x.kernel - 1) * x.dilation + 1;  // the row's padding
    int64_t const hang = by_packs ? x.start(x.windows - 1) + reach - x.extent : 0;
    PaddedLine const line(x, longest_pack);
    bool const by_parts = !by_packs && plan.pads_rows() && reads_closely(x) && x.windows >= 8 && x.kernel <= 2 * x.windows && x.stride <= 2 * x.kernel;
    int64_t const padded = whole_packs(x.extent), columns_padded = Pooling::counts && (by_packs || by_parts) ? whole_packs(x.windows) : 0;
    int64_t const parts_size = by_parts ? line.size() + longest_pack : 0;
    int64_t const row_size = whole_packs(before + (by_packs && x.stride * (x.windows + longest_pack) + reach > padded ? x.stride * (x.windows + longest_pack) + reach : padded)) + longest_pack;
    constexpr int64_t fixed_elements = 16384 / static_cast<int>(sizeof(C));
    alignas(64) C fixed[fixed_elements];
    int64_t const all = row_size + padded + columns_padded + parts_size;
    Scratch const block(all <= fixed_elements ? 0 : all * static_cast<int64_t>(sizeof(C)));
    C* const buffer = all <= fixed_elements ? fixed : reinterpret_cast<C*>(block.get());
    C* const row = buffer + before;
    C* const other = buffer + row_size;
    C* const columns = other + padded;
    for (int64_t k = 0; k < all; ++k) buffer[k] = Pooling::template least<C>();
    for (int64_t j = 0; j < columns_padded; ++j) columns[j] = static_cast<C>(j < x.windows ? count_of_columns(j) : 1);
    for (int64_t item = first; item < last; ++item) {
      int64_t const window = item % plan.y.axis.windows, first_row = item / plan.y.axis.windows * plan.y.axis.extent;
      int64_t from, behind;
      plan.y.range(window, from, behind);
      int64_t const dilation = plan.y.axis.dilation;
      int64_t rows = 0;
      C const* top = nullptr;
      for (int64_t y = from; y < behind; y += dilation, ++rows) {
        C const* const next = read_row(rows == 0 ? row : other, first_row + y);
        if (rows > 0) {
          int64_t const left = next == other ? 1 : rows_in_place(first_row + y, (behind - y + dilation - 1) / dilation);
          dispatch<PoolRowsBody<Pooling, C>>(row, top, next, dilation * x.extent, left, x.extent);
          y += (left - 1) * dilation, rows += left - 1;
        }
        top = rows > 0 ? row : next;
      }
      if (top != row) {
        if (top) std::memcpy(row, top, static_cast<std::size_t>(x.extent) * sizeof(C));
        else for (int64_t k = 0; k < x.extent; ++k) row[k] = Pooling::template least<C>();  // dilated windows may lie in the padding
      }
      for (int64_t k = 0; k < hang; ++k) row[x.extent + k] = Pooling::template least<C>();
      T* const to = result + item * x.windows;
      int64_t const counted_rows = plan.count_padding ? plan.y.padded_count(window) : rows;
      if (by_packs) {
        dispatch<PoolColumnsBody<Pooling, T>>(to, row - before, columns, static_cast<C>(counted_rows), x);
        continue;
      }
      if (by_parts) {
        dispatch<PoolPartsBody<Pooling, T>>(to, columns + columns_padded, static_cast<C const*>(row), const_cast<C const*>(columns), static_cast<C>(counted_rows), x);
        continue;
      }
      for (int64_t j = 0; j < x.windows; ++j) {
        int64_t left, right;
        plan.x.range(j, left, right);
        C value = left < right ? row[left] : Pooling::template least<C>();
        for (int64_t k = left + x.dilation; k < right; k += x.dilation) value = Pooling::combine(value, row[k]);
        if constexpr (Pooling::counts) value = value / static_cast<C>(counted_rows * count_of_columns(j));
        to[j] = convert_scalar<T>(value);
      }
    }
  }

 private:
  static int64_t whole_packs(int64_t count) { return (count + longest_pack - 1) / longest_pack * longest_pack; }
  /// How many columns of a window count.
  int64_t count_of_columns(int64_t window) const {
    if (plan.count_padding) return plan.x.padded_count(window);
    int64_t left, right;
    plan.x.range(window, left, right);
    return (right - left + plan.x.axis.dilation - 1) / plan.x.axis.dilation;
  }
  /// Whether windows of 2 x 2 lie side by side.
  bool in_fours() const {
    auto const halves = [](PoolAxis const& a) {
      return !a.adaptive && a.axis.kernel == 2 && a.axis.stride == 2 && a.axis.padding == 0 && a.axis.dilation == 1 && 2 * a.axis.windows <= a.axis.extent;
    };
    return halves(plan.y) && halves(plan.x) && (direct || 2 * plan.x.axis.extent <= chunk);
  }
  static constexpr int64_t chunk = 16384 / static_cast<int>(sizeof(C));  ///< elements that are evaluated at a time

  void pool_fours(int64_t first, int64_t last) const {
    WindowAxis const &y = plan.y.axis, &x = plan.x.axis;
    alignas(64) C buffer[chunk];
    while (first < last) {  // the rows of a plane, or those of all planes where none is left out
      int64_t const plane = first / y.windows, row = first % y.windows;
      int64_t rows = y.extent == 2 * y.windows || last - first < y.windows - row ? last - first : y.windows - row;
      int64_t const offset = (plane * y.extent + 2 * row) * x.extent;
      C const* from = buffer;
      if (direct) {
        from = static_cast<C const*>(bound.data[1]) + offset;
      } else {
        int64_t const most = chunk / (2 * x.extent);
        if (rows > most) rows = most;
        read(buffer, offset, 2 * rows * x.extent);
      }
      dispatch<PoolFoursBody<Pooling, T>>(result + first * x.windows, from, rows, x.extent, x.windows, C(4));
      first += rows;
    }
  }
  void pool_planes(int64_t first, int64_t last) const {
    int64_t const size = plan.y.axis.extent * plan.x.axis.extent;
    C const count = static_cast<C>(plan.count_of_planes());
    if (direct) {
      dispatch<PoolPlanesBody<Pooling, T>>(result + first, static_cast<C const*>(bound.data[1]) + first * size, last - first, size, count);
      return;
    }
    alignas(64) C buffer[chunk];
    while (first < last) {
      int64_t const planes = last - first < chunk / size ? last - first : chunk / size;
      read(buffer, first * size, planes * size);
      dispatch<PoolPlanesBody<Pooling, T>>(result + first, static_cast<C const*>(buffer), planes, size, count);
      first += planes;
    }
  }
  /// One row of the input: where it lies, when whole packs of it lie in the input, else evaluated into `to`, which is padded.
  C const* read_row(C* to, int64_t number) const {
    int64_t const offset = number * plan.x.axis.extent;
    if (direct && offset + whole_packs(plan.x.axis.extent) <= plan.planes * plan.y.axis.extent * plan.x.axis.extent) return static_cast<C const*>(bound.data[1]) + offset;
    read(to, offset, plan.x.axis.extent);
    return to;
  }
  /// How many of `rows` rows, from one on that is read where it lies, can be as well.
  int64_t rows_in_place(int64_t number, int64_t rows) const {
    int64_t const extent = plan.x.axis.extent, room = plan.planes * plan.y.axis.extent * extent - whole_packs(extent) - number * extent;
    int64_t const most = room / (plan.y.axis.dilation * extent) + 1;
    return rows < most ? rows : most;
  }
  /// Evaluates elements of the input.
  void read(C* to, int64_t offset, int64_t count) const {
    Run<Operands> run;
    run.data[0] = to;
    for (int o = 1; o < Operands; ++o) run.data[o] = static_cast<char*>(bound.data[o]) + offset * bound.sizes[o];
    run.count = count;
    run.origin = offset;
    bound.run_contiguous(run, false);
  }
};

}  // namespace cpu
}  // namespace detail
}  // namespace situ::inline SITU_ABI
