/// The gradients of pooling on the CPU, plane by plane. Sums of 16-bit floats are made in float.
///
/// Of means, each element gathers from the windows that it belongs to: rows of gradients with room around them. Of the largest elements, the places are found
/// again, for a vector of windows at a time, from padded lines.
#pragma once

#include <situ/ops/cpu/gemm.hpp>
#include <situ/ops/cpu/pool2d.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// Windows of 2 x 2 that lie side by side, of pairs of rows behind each other: their gradients go to the first of the largest elements.
template <class C>
struct LargestOfFourBody {
  static constexpr int least = 16 / static_cast<int>(sizeof(C));  ///< of a pack

  template <class Isa>
  SITU_INLINE static int run(C* to, C const* from, C const* g, int64_t rows, int64_t extent, int64_t windows) {
    if (windows < least) narrow<Isa>(to, from, g, rows, extent, windows);
    else wide<Isa, Isa::bytes / static_cast<int>(sizeof(C))>(to, from, g, rows, extent, windows);
    return 0;
  }

 private:
  template <class P>
  struct Four {
    P a0, a1, b0, b1;
  };
  template <class P>
  SITU_INLINE static void share(P const& a0, P const& a1, P const& b0, P const& b1, P const& gradient, Four<P>& shares) {
    P const zero(C(0));
    auto const second = (a1 > a0) | math::isnan(a1);
    P const top = select(second, a1, a0);
    auto const third = (b0 > top) | math::isnan(b0);
    P const most = select(third, b0, top);
    auto const fourth = (b1 > most) | math::isnan(b1);
    P const left = select(fourth, zero, gradient), rest = select(third, zero, left);
    shares.b1 = select(fourth, gradient, zero), shares.b0 = select(third, left, zero);
    shares.a1 = select(second, rest, zero), shares.a0 = select(second, zero, rest);
  }
  /// In the widest packs that fit a row; the last one of a row reaches back.
  template <class Isa, int N>
  SITU_INLINE static void wide(C* to, C const* from, C const* g, int64_t rows, int64_t extent, int64_t windows) {
    if constexpr (N > least) {
      if (windows < N) return wide<Isa, N / 2>(to, from, g, rows, extent, windows);
    }
    using P = pack<C, N, Isa>;
    constexpr std::make_integer_sequence<int, N> steps{};
    for (int64_t row = 0; row < rows; ++row, from += 2 * extent, to += 2 * extent, g += windows) {
      for (int64_t j = 0; j < windows; j += N) {
        int64_t const at = j + N <= windows ? j : windows - N;
        C const *const a = from + 2 * at, *const b = a + extent;
        P const al = P::load(a), ah = P::load(a + N), bl = P::load(b), bh = P::load(b + N), gradient = P::load(g + at);
        Four<P> shares;
        share(every_second<0>(al, ah, steps), every_second<1>(al, ah, steps), every_second<0>(bl, bh, steps), every_second<1>(bl, bh, steps), gradient, shares);
        C *const to_a = to + 2 * at, *const to_b = to_a + extent;
        interleaved<0>(shares.a0, shares.a1, steps).store(to_a);
        interleaved<1>(shares.a0, shares.a1, steps).store(to_a + N);
        interleaved<0>(shares.b0, shares.b1, steps).store(to_b);
        interleaved<1>(shares.b0, shares.b1, steps).store(to_b + N);
      }
    }
  }
  /// A pack of windows from several rows.
  template <class Isa>
  SITU_INLINE static void narrow(C* to, C const* from, C const* g, int64_t rows, int64_t extent, int64_t windows) {
    using P = pack<C, least, Isa>;
    int64_t column = 0;
    for (int64_t left = rows * windows; left > 0; left -= least, g += least) {
      C lanes[4][least] = {}, gradients[least] = {};
      int64_t places[least];
      int64_t const some = left < least ? left : least;
      C const* const begin = from;
      for (int64_t l = 0; l < some; ++l) {
        C const* const a = from + 2 * column;
        places[l] = a - begin, gradients[l] = g[l];
        lanes[0][l] = a[0], lanes[1][l] = a[1], lanes[2][l] = a[extent], lanes[3][l] = a[extent + 1];
        if (++column == windows) column = 0, from += 2 * extent;
      }
      Four<P> shares;
      share(P::load(lanes[0]), P::load(lanes[1]), P::load(lanes[2]), P::load(lanes[3]), P::load(gradients), shares);
      for (int l = 0; l < some; ++l) {
        C* const a = to + places[l];
        a[0] = shares.a0[l], a[1] = shares.a1[l], a[extent] = shares.b0[l], a[extent + 1] = shares.b1[l];
      }
      to += from - begin;
    }
  }
};

/// What is gathered from in one plane: rows of windows with `before` columns, of which no window is, in front of them and enough behind.
template <class C>
struct PoolGatherPlan {
  static constexpr int64_t longest_pack = 64 / static_cast<int>(sizeof(C));
  WindowAxis y, x;
  int64_t before, step;  ///< of a row of windows

  PoolGatherPlan(WindowAxis const& rows, WindowAxis const& columns) : y(rows), x(columns) {
    int64_t const reach = (x.kernel - 1) * x.dilation + 1, most = x.extent / x.stride + 1 > x.windows ? x.extent / x.stride + 1 : x.windows;
    before = reach;
    step = before + most + x.padding + reach + 2 * longest_pack;
  }
  /// Windows that are few beside the image are written one by one.
  static bool takes(PoolPlan const& plan) {
    WindowAxis const &y = plan.y.axis, &x = plan.x.axis;
    return !plan.y.adaptive && plan.pads_rows() && x.stride <= 2 && y.kernel * x.kernel < (int64_t{1} << 24) && y.padding <= y.extent + 64 &&
           16 * y.windows * x.windows >= y.extent * x.extent;
  }
  int64_t windows_size() const { return y.windows * step + longest_pack; }
};

/// A row of the image: the sum of the gradients of its windows.
template <class C>
struct PoolGatherBody {
  /// `gradients` are those of row 0, column 0 of the windows.
  template <class Isa>
  SITU_INLINE static int run(C* to, C const* gradients, int64_t row, PoolGatherPlan<C> const& plan) {
    if (plan.x.stride == 1) strided<Isa, 1>(to, gradients, row, plan);
    else strided<Isa, 2>(to, gradients, row, plan);
    return 0;
  }

 private:
  /// For columns Stride m + Phase.
  template <class P, int Stride, int Phase>
  SITU_INLINE static P sum(C const* gradients, int64_t row, int64_t m, PoolGatherPlan<C> const& plan) {
    P result(C(0));
    WindowAxis const &y = plan.y, &x = plan.x;
    for (int64_t u = y.kernel - 1; u >= 0; --u) {  // windows in their order
      int64_t const behind = row + y.padding - u * y.dilation, i = behind / y.stride;
      if (behind < 0 || behind % y.stride != 0 || i >= y.windows) continue;
      for (int64_t v = x.kernel - 1; v >= 0; --v) {
        int64_t const shift = Phase + x.padding - v * x.dilation;
        if constexpr (Stride == 2) {
          if (shift & 1) continue;
        }
        result = result + P::load(gradients + i * plan.step + m + (Stride == 2 ? shift >> 1 : shift));
      }
    }
    return result;
  }
  template <class Isa, int Stride>
  SITU_INLINE static void strided(C* to, C const* gradients, int64_t row, PoolGatherPlan<C> const& plan) {
    constexpr int lanes = Isa::bytes / static_cast<int>(sizeof(C)), some = Stride * lanes;
    using P = pack<C, lanes, Isa>;
    for (int64_t k = 0; k < plan.x.extent; k += some) {
      C last[some];
      C* const at = k + some <= plan.x.extent ? to + k : last;
      P const even = sum<P, Stride, 0>(gradients, row, k / Stride, plan);
      if constexpr (Stride == 1) {
        even.store(at);
      } else {
        constexpr std::make_integer_sequence<int, lanes> steps{};
        P const odd = sum<P, Stride, 1>(gradients, row, k / Stride, plan);
        interleaved<0>(even, odd, steps).store(at);
        interleaved<1>(even, odd, steps).store(at + lanes);
      }
      if (at == last) std::memcpy(to + k, last, static_cast<std::size_t>(plan.x.extent - k) * sizeof(C));
    }
  }
};

/// A plane with its padding around it, which is less than all elements.
template <class C>
struct PoolLinesBody {
  template <class Isa>
  SITU_INLINE static int run(C* to, C const* plane, C const* end, WindowAxis const& y, WindowAxis const& x, int64_t lines) {
    constexpr int lanes = Isa::bytes / static_cast<int>(sizeof(C));
    PaddedLine const line(x, 64 / static_cast<int64_t>(sizeof(C)));
    PaddedLine::Part const parts[2] = {line.part(x, 0), line.part(x, 1)};
    for (int64_t r = 0; r < lines; ++r) {
      int64_t const row = r - y.padding;
      bool const inside = row >= 0 && row < y.extent;
      for (int64_t k = 0; k < line.copies; ++k, to += line.pitch) {
        PaddedLine::Part const part = k < 2 ? parts[k] : line.part(x, k);
        copy_shifted<Isa, lanes>(to, plane + row * x.extent + part.shift, x.stride, inside ? part.low : 0, inside ? part.high : 0, line.pitch, end, max_pooling::least<C>());
      }
    }
    return 0;
  }
};

/// What stands in for some elements each of several lanes, of padded lines: those of a row of windows, or of the columns of one.
template <class C>
struct PoolLanes {
  using Ix = signed_of_size<C>;
  static constexpr Ix none = std::numeric_limits<Ix>::min() / 2;
  C const* line;          ///< of the first row that is in the image
  int64_t step;           ///< to the next one
  int64_t const* places;  ///< of columns, in a line
  Ix const* begin;        ///< the first column in the image, or `none`
  int64_t rows, columns, count;
  Ix first, down, across;  ///< what the first row, the next one and the next column add to a place in the plane
};

/// Where the largest of each lane's elements is in the plane, the first of them or the last NaN, seen from the window's corner; what `begin` says where no element
/// is larger than the least, less than 0 for none.
template <class C>
struct PoolLargestBody {
  using Ix = signed_of_size<C>;
  template <class Isa>
  SITU_INLINE static int run(Ix* chosen, PoolLanes<C> const* lanes_) {
    PoolLanes<C> const a = *lanes_;
    constexpr int lanes = Isa::bytes / static_cast<int>(sizeof(C));
    using P = pack<C, lanes, Isa>;
    using Places = pack<Ix, lanes, Isa>;
    for (int64_t j = 0; j < a.count; j += lanes) {
      P const infinity(std::numeric_limits<C>::infinity());
      P most = -infinity;  // infinite behind a NaN: then only another one is not below or equal
      Places at = Places::load(a.begin + j) + Places(a.first);
      C const* line = a.line + j;
      Ix row = a.first;
      for (int64_t u = 0; u < a.rows; ++u, line += a.step, row = static_cast<Ix>(row + a.down)) {
        Ix place = row;
        for (int64_t v = 0; v < a.columns; ++v, place = static_cast<Ix>(place + a.across)) {
          P const value = P::load(line + a.places[v]);
          auto const not_larger = value <= most;
          most = select(not_larger, most, select(value <= infinity, value, infinity));
          at = select(not_larger, at, Places(place));
        }
      }
      at.store(chosen + j);
    }
    return 0;
  }
};

/// Where in its plane the largest element of window (i, j) is, the first of them or the last NaN; -1 for a window without elements: dilated ones may lie in
/// the padding. `value(place)` gives an element.
template <class F>
int64_t place_of_largest(PoolPlan const& plan, int64_t i, int64_t j, F const& value) {
  WindowAxis const &y = plan.y.axis, &x = plan.x.axis;
  int64_t top, bottom, left, right;
  plan.y.range(i, top, bottom);
  plan.x.range(j, left, right);
  int64_t place = -1;
  decltype(value(int64_t{})) largest{};
  for (int64_t row = top; row < bottom; row += y.dilation) {
    for (int64_t column = left; column < right; column += x.dilation) {
      int64_t const at = row * x.extent + column;
      auto const here = value(at);
      if (place >= 0 && !(here > largest) && !math::isnan(here)) continue;
      largest = here, place = at;
    }
  }
  return place;
}

/// Items are planes: of each window of x, what stands in `from` in the place of the largest element; 0 for windows without elements.
template <class C>
struct MaxPoolPickKernel {
  PoolPlan plan;
  C const *x, *from;  ///< [planes, height, width]
  C* result;          ///< [planes, windows]
  void operator()(int64_t first, int64_t last) const {
    int64_t const size = plan.y.axis.extent * plan.x.axis.extent;
    C* to = result + first * plan.y.axis.windows * plan.x.axis.windows;
    for (int64_t plane = first; plane < last; ++plane) {
      for (int64_t i = 0; i < plan.y.axis.windows; ++i) {
        for (int64_t j = 0; j < plan.x.axis.windows; ++j) {
          int64_t const place = place_of_largest(plan, i, j, [&](int64_t at) { return x[plane * size + at]; });
          *to++ = place < 0 ? C(0) : from[plane * size + place];
        }
      }
    }
  }
};

/// Items are planes. The places of the largest elements are found again.
template <class T, int Operands, int TreeBytes>
struct MaxPoolGradientKernel {
  using C = compute_t<T>;
  static constexpr int64_t most_places = int64_t{1} << 29;
  BoundTree<Operands, TreeBytes> bound;  ///< of the first row of the first plane; contiguous inputs, into C
  PoolPlan plan;
  T const* gradients;  ///< [planes, windows]
  C* result;           ///< [planes, height, width]
  bool direct;         ///< the input is a tensor of C

  void operator()(int64_t first, int64_t last) const {
    WindowAxis const &y = plan.y.axis, &x = plan.x.axis;
    int64_t const size = y.extent * x.extent, inside = 2 * y.windows * x.extent;
    bool const in_fours = std::is_same_v<T, C> && y.kernel == 2 && x.kernel == 2 && y.stride == 2 && x.stride == 2 && y.padding == 0 && x.padding == 0 &&
                          y.dilation == 1 && x.dilation == 1 && y.windows * 2 <= y.extent && x.windows * 2 <= x.extent;
    if (!in_fours && by_lines(first, last)) return;
    PackingBuffer const buffer(direct ? 0 : size * static_cast<int64_t>(sizeof(C)));
    for (int64_t plane = first; plane < last; ++plane) {
      C* const to = result + plane * size;
      T const* const g = gradients + plane * y.windows * x.windows;
      C const* from = nullptr;  // the plane, where there is one in memory
      if (direct || buffer.get()) from = read(static_cast<C*>(buffer.get()), plane * size, size);
      if (!in_fours || !from || 2 * x.windows < x.extent) {
        for (int64_t k = 0; k < size; ++k) to[k] = C(0);
      }
      if constexpr (std::is_same_v<T, C>) {
        if (in_fours && from) {
          dispatch<LargestOfFourBody<C>>(to, from, g, y.windows, x.extent, x.windows);
          for (int64_t k = inside; k < size; ++k) to[k] = C(0);
          continue;
        }
      }
      scatter(to, from, g, plane * size);
    }
  }

 private:
  /// Many windows at a time, or many columns of one; false where there is no memory for it.
  bool by_lines(int64_t first, int64_t last) const {
    using Ix = signed_of_size<C>;
    constexpr int64_t vector = 64 / static_cast<int64_t>(sizeof(C));
    WindowAxis const &y = plan.y.axis, &x = plan.x.axis;
    bool const few = x.windows < 4 && x.kernel > 5 && x.dilation == 1;  // windows of a row: lanes are the columns of one
    if (!reads_closely(y) || !reads_closely(x) || (x.windows == 1 && !few)) return false;
    WindowAxis const columns = few ? WindowAxis{x.extent, (x.windows - 1) * x.stride + x.kernel, 1, 1, x.padding, 1} : x;
    PaddedLine const line(columns, vector);
    int64_t const size = y.extent * x.extent, lines = (y.windows - 1) * y.stride + (y.kernel - 1) * y.dilation + 1;
    // A copy that is far larger than the plane does not pay; places are counted in 31 bits.
    if (line.copies > (16 * size + 65536) / (lines * line.pitch) || lines > most_places / (4 * x.extent + 256)) return false;
    int64_t const room = lines * line.size() + vector;
    int64_t const lanes = few ? x.kernel : x.windows, padded = (lanes + vector - 1) / vector * vector, begins = few ? x.windows : 1;
    PackingBuffer const memory((room + (1 + begins) * padded + (direct ? 0 : size)) * static_cast<int64_t>(sizeof(C)) + columns.kernel * static_cast<int64_t>(sizeof(int64_t)));
    if (!memory.get()) return false;
    auto* const places = static_cast<int64_t*>(memory.get());
    C *const copy = reinterpret_cast<C*>(places + columns.kernel), *const plane_buffer = copy + room;
    Ix *const chosen = reinterpret_cast<Ix*>(plane_buffer + (direct ? 0 : size)), *const begin = chosen + padded;
    for (int64_t v = 0; v < columns.kernel; ++v) places[v] = line.place(columns, v);
    for (int64_t k = 0; k < begins * padded; ++k) begin[k] = PoolLanes<C>::none;
    for (int64_t j = 0; j < x.windows; ++j) {
      int64_t left, right;
      plan.x.range(j, left, right);
      if (left >= right) continue;
      if (!few) begin[j] = static_cast<Ix>(left - x.start(j));
      else for (int64_t column = left; column < right; ++column) begin[j * padded + column - x.start(j)] = 0;
    }
    PoolLanes<C> a{nullptr, y.dilation * line.size(), places, begin, 0, columns.kernel, lanes, 0, static_cast<Ix>(y.dilation * x.extent), static_cast<Ix>(x.dilation)};
    C const* const behind = direct ? static_cast<C const*>(bound.data[1]) + plan.planes * size : plane_buffer + size;
    for (int64_t plane = first; plane < last; ++plane) {
      C const* const image = read(plane_buffer, plane * size, size);
      dispatch<PoolLinesBody<C>>(copy, image, behind, y, columns, lines);
      C* const to = result + plane * size;
      T const* g = gradients + plane * y.windows * x.windows;
      for (int64_t k = 0; k < size; ++k) to[k] = C(0);
      for (int64_t i = 0; i < y.windows; ++i, g += x.windows) {
        int64_t top, bottom;
        plan.y.range(i, top, bottom);
        if (top >= bottom) continue;
        int64_t const corner = y.start(i) * x.extent + x.start(0), skipped = top - y.start(i);
        a.rows = (bottom - top + y.dilation - 1) / y.dilation, a.first = static_cast<Ix>(skipped * x.extent);
        C const* const from = copy + (i * y.stride + skipped) * line.size();
        if (!few) {
          a.line = from;
          dispatch<PoolLargestBody<C>>(chosen, const_cast<PoolLanes<C> const*>(&a));
          for (int64_t j = 0; j < x.windows; ++j) {
            if (SITU_LIKELY(chosen[j] >= 0)) to[corner + j * x.stride + chosen[j]] += static_cast<C>(g[j]);
          }
        } else {
          for (int64_t j = 0; j < x.windows; ++j) {
            a.line = from + j * x.stride, a.begin = begin + j * padded;
            dispatch<PoolLargestBody<C>>(chosen, const_cast<PoolLanes<C> const*>(&a));
            int64_t const place = first_of_largest(image + corner + j * x.stride, chosen, lanes);
            if (place >= 0) to[corner + j * x.stride + place] += static_cast<C>(g[j]);
          }
        }
      }
    }
    return true;
  }
  /// Of a place in every column, where there is one: that of the largest element, the first there is or the last NaN.
  static int64_t first_of_largest(C const* image, signed_of_size<C> const* rows, int64_t columns) {
    int64_t place = -1;
    C most{};
    for (int64_t k = 0; k < columns; ++k) {
      int64_t const at = rows[k] + k;
      if (rows[k] < 0) continue;
      C const value = image[at];
      bool const undefined = math::isnan(value), was = math::isnan(most);
      if (place >= 0 && !(undefined ? !was || at > place : value > most || (value == most && at < place))) continue;
      place = at, most = value;
    }
    return place;
  }
  /// Window by window; `from` is the plane, or null where there was no memory to evaluate it.
  void scatter(C* to, C const* from, T const* g, int64_t offset) const {
    for (int64_t i = 0; i < plan.y.axis.windows; ++i) {
      for (int64_t j = 0; j < plan.x.axis.windows; ++j, ++g) {
        int64_t const place = place_of_largest(plan, i, j, [&](int64_t at) {
          alignas(64) C one[64 / sizeof(C)];
          return from ? from[at] : *read(one, offset + at, 1);
        });
        if (place >= 0) to[place] += static_cast<C>(*g);
      }
    }
  }
  /// Elements of the input: where they lie, or evaluated into `to`.
  C const* read(C* to, int64_t offset, int64_t count) const {
    if (direct) return static_cast<C const*>(bound.data[1]) + offset;
    Run<Operands> run;
    run.data[0] = to;
    for (int o = 1; o < Operands; ++o) run.data[o] = static_cast<char*>(bound.data[o]) + offset * bound.sizes[o];
    run.count = count;
    run.origin = offset;
    bound.run_contiguous(run, false);
    return to;
  }
};

/// The shares of means over windows that lie side by side, `count` elements each: a line of them for every row of windows, and as many copies as a window has rows.
template <class T>
struct PoolTilesBody {
  using C = compute_t<T>;
  template <class Isa>
  SITU_INLINE static int run(C* to, T const* g, C* line, int64_t planes, WindowAxis const& y, WindowAxis const& x, C count) {
    constexpr int N = Isa::bytes / static_cast<int>(sizeof(C));
    using P = pack<C, N, Isa>;
    constexpr std::make_integer_sequence<int, N> lanes{};
    auto const row_bytes = static_cast<std::size_t>(x.extent) * sizeof(C);
    for (int64_t k = x.windows * x.kernel; k < x.extent; ++k) line[k] = C(0);
    for (; planes > 0; --planes) {
      for (int64_t i = 0; i < y.windows; ++i, g += x.windows) {
        int64_t j = 0;
        for (; x.kernel == 2 && j + N <= x.windows; j += N) {
          P const shares = P(load_lanes<T, N, Isa>(g + j)) / P(count);
          interleaved<0>(shares, shares, lanes).store(line + 2 * j);
          interleaved<1>(shares, shares, lanes).store(line + 2 * j + N);
        }
        for (; j < x.windows; ++j) {
          C const share = static_cast<C>(g[j]) / count;
          for (int64_t k = 0; k < x.kernel; ++k) line[j * x.kernel + k] = share;
        }
        for (int64_t row = 0; row < y.kernel; ++row, to += x.extent) std::memcpy(to, line, row_bytes);
      }
      for (int64_t k = (y.extent - y.windows * y.kernel) * x.extent; k > 0; --k) *to++ = C(0);
    }
    return 0;
  }
};

/// Items are planes: every window gives each of its elements an equal share.
template <class T>
struct MeanPoolGradientKernel {
  using C = compute_t<T>;
  PoolPlan plan;
  T const* gradients;  ///< [planes, windows]
  C* result;           ///< [planes, height, width]

  void operator()(int64_t first, int64_t last) const {
    WindowAxis const &y = plan.y.axis, &x = plan.x.axis;
    int64_t const size = y.extent * x.extent;
    if (plan.takes_planes() && size * static_cast<int64_t>(sizeof(C)) >= 64) return share_planes(first, last);
    if (tiles(plan.y) && tiles(plan.x) && x.extent <= tile_columns) return share_tiles(first, last);
    if (PoolGatherPlan<C>::takes(plan) && gather(first, last)) return;
    for (int64_t plane = first; plane < last; ++plane) {
      C* const to = result + plane * size;
      T const* g = gradients + plane * y.windows * x.windows;
      for (int64_t k = 0; k < size; ++k) to[k] = C(0);
      for (int64_t i = 0; i < y.windows; ++i, g += x.windows) {
        int64_t top, bottom;
        plan.y.range(i, top, bottom);
        for (int64_t j = 0; j < x.windows; ++j) {
          int64_t left, right;
          plan.x.range(j, left, right);
          int64_t const count = plan.count_padding ? plan.y.padded_count(i) * plan.x.padded_count(j) : (bottom - top) * (right - left);
          C const share = static_cast<C>(g[j]) / static_cast<C>(count);
          for (int64_t row = top; row < bottom; ++row) {
            C* const line = to + row * x.extent;
            for (int64_t column = left; column < right; ++column) line[column] += share;
          }
        }
      }
    }
  }

 private:
  static constexpr int64_t tile_columns = 2048;
  /// Whether windows lie side by side, inside of the image.
  static bool tiles(PoolAxis const& a) {
    return !a.adaptive && a.axis.kernel == a.axis.stride && a.axis.padding == 0 && a.axis.dilation == 1 && a.axis.windows * a.axis.kernel <= a.axis.extent;
  }
  void share_tiles(int64_t first, int64_t last) const {
    WindowAxis const &y = plan.y.axis, &x = plan.x.axis;
    C line[tile_columns];
    dispatch<PoolTilesBody<T>>(result + first * y.extent * x.extent, gradients + first * y.windows * x.windows, static_cast<C*>(line), last - first, y, x,
                               static_cast<C>(y.kernel * x.kernel));
  }
  /// Where planes have one window, of all of their elements.
  void share_planes(int64_t first, int64_t last) const {
    constexpr int size = sizeof(C), most = 256;
    int64_t const bytes = plan.y.axis.extent * plan.x.axis.extent * size;
    C const count = static_cast<C>(plan.count_of_planes());
    C shares[most];
    while (first < last) {
      int64_t const planes = last - first < most ? last - first : most;
      for (int64_t k = 0; k < planes; ++k) shares[k] = static_cast<C>(gradients[first + k]) / count;
      splat_rows(reinterpret_cast<char*>(result) + first * bytes, bytes, reinterpret_cast<char const*>(shares), size, size, planes, bytes);
      first += planes;
    }
  }
  /// By packs; false where there is no memory for it.
  bool gather(int64_t first, int64_t last) const {
    WindowAxis const &y = plan.y.axis, &x = plan.x.axis;
    PoolGatherPlan<C> const shape(y, x);
    int64_t const all = shape.windows_size() + x.windows;
    PackingBuffer const memory(all * static_cast<int64_t>(sizeof(C)));
    C* const buffer = static_cast<C*>(memory.get());
    if (!buffer) return false;
    C *const shares = buffer + shape.before, *const columns = buffer + shape.windows_size();
    for (int64_t k = 0; k < all; ++k) buffer[k] = C(0);
    auto const count = [this](PoolAxis const& axis, int64_t window) {
      if (plan.count_padding) return axis.padded_count(window);
      int64_t from, behind;
      axis.range(window, from, behind);
      return behind - from;
    };
    for (int64_t j = 0; j < x.windows; ++j) columns[j] = static_cast<C>(count(plan.x, j));
    for (int64_t plane = first; plane < last; ++plane) {
      T const* from = gradients + plane * y.windows * x.windows;
      for (int64_t i = 0; i < y.windows; ++i, from += x.windows) {
        C const rows = static_cast<C>(count(plan.y, i));
        for (int64_t j = 0; j < x.windows; ++j) shares[i * shape.step + j] = static_cast<C>(from[j]) / (rows * columns[j]);
      }
      C* const to = result + plane * y.extent * x.extent;
      for (int64_t row = 0; row < y.extent; ++row) dispatch<PoolGatherBody<C>>(to + row * x.extent, shares, row, shape);
    }
    return true;
  }
};

}  // namespace detail::cpu

namespace detail {

inline int64_t planes_at_once(PoolPlan const& plan) {
  int64_t const work = plan.y.axis.extent * plan.x.axis.extent + plan.y.axis.windows * plan.x.axis.windows * (plan.y.axis.kernel < plan.y.axis.extent ? plan.y.axis.kernel : plan.y.axis.extent);
  return (int64_t{1} << 15) / (work < (1 << 15) ? work + 1 : 1 << 15) + 1;
}

/// The gradient of the largest elements, from contiguous gradients of the windows and a formula of contiguous tensors of one shape.
template <class D, class T, class E, class C>
void launch_max_pool_gradient(cpu_kernels, PoolPlan const& plan, E const& e, T const* gradients, C* result) {
  constexpr int operands = leaf_count<E> + 1;
  cpu::MaxPoolGradientKernel<T, operands, cpu::tree_bytes<tree_of<E>>> kernel;
  cpu::bind_tree<C>(kernel.bound, lower<0>(e));
  collect_places(e, kernel.bound.data);
  kernel.plan = plan, kernel.gradients = gradients, kernel.result = result;
  kernel.direct = std::is_same_v<tree_of<E>, Input<C, 0>>;
  device_traits<D>::launch(kernel, plan.planes, planes_at_once(plan));
}
/// What stands in the places of x's largest elements.
template <class D, class C>
void launch_max_pool_pick(cpu_kernels, PoolPlan const& plan, Tensor<C, D> const& x, C const* from, C* result) {
  device_traits<D>::launch(cpu::MaxPoolPickKernel<C>{plan, x.data(), from, result}, plan.planes, planes_at_once(plan));
}
/// That of means.
template <class D, class T, class C>
void launch_mean_pool_gradient(cpu_kernels, PoolPlan const& plan, T const* gradients, C* result) {
  device_traits<D>::launch(cpu::MeanPoolGradientKernel<T>{plan, gradients, result}, plan.planes, planes_at_once(plan));
}

}  // namespace detail
}  // namespace situ::inline SITU_ABI
