/// Scans on the CPU: each element is read once, in packs, and written once.
///
/// Along an axis that is dense in memory, a pack is scanned in its register, in log2 of its lanes steps, and the chain so far is put
/// in front. Along another one, rows are added to a strip of chains. With several threads, long lines are done in two passes: the totals of
/// their parts, then the parts.
#pragma once

#include <situ/core/storage.hpp>
#include <situ/expr/cpu/evaluate.hpp>
#include <situ/expr/cpu/tiles.hpp>
#include <situ/ops/cpu/reduce_plan.hpp>
#include <situ/ops/scan_program.hpp>

namespace situ::inline SITU_ABI {
namespace detail::cpu {

/// The lanes of a, `Steps` places up; those of `fill` come in.
template <int Steps, class P, int... K>
SITU_INLINE P lanes_up(P const& a, P const& fill, [[maybe_unused]] std::integer_sequence<int, K...> places) {
  constexpr int N = P::lanes;
  P result;
#if defined(__clang__)
  result.v = __builtin_shufflevector(a.v, fill.v, (K < Steps ? N : K - Steps)...);
#else
  typedef typename vector_of<signed_of_size<typename P::value_type>, N>::type Indices;
  Indices const from = {(K < Steps ? N : K - Steps)...};
  result.v = __builtin_shuffle(a.v, fill.v, from);
#endif
  return result;
}

/// The scan of the lanes of a pack.
template <class S, class P>
SITU_INLINE P scanned(P const& x) {
  constexpr int N = P::lanes;
  static_assert(N <= 16);
  constexpr std::make_integer_sequence<int, N> places{};
  P const none(static_cast<typename P::value_type>(S::identity()));
  P y = x;
  if constexpr (N > 1) y = S::combine(lanes_up<1>(y, none, places), y);
  if constexpr (N > 2) y = S::combine(lanes_up<2>(y, none, places), y);
  if constexpr (N > 4) y = S::combine(lanes_up<4>(y, none, places), y);
  if constexpr (N > 8) y = S::combine(lanes_up<8>(y, none, places), y);
  return y;
}

/// Lanes in another type.
template <class To, class From, int N, class Isa>
SITU_INLINE pack<To, N, Isa> widened_lanes(pack<From, N, Isa> const& x) {
#if SITU_MATH_X86_ASM
  if constexpr (std::is_same_v<From, float> && std::is_same_v<To, double> && N == 8 && Isa::bytes == 64) {  // g++ 12 takes it apart
    auto const from = x.v;
    pack<double, 8, Isa> result;
    __asm__("vcvtps2pd {%1, %0|%0, %1}" : "=v"(result.v) : "v"(from));
    return result;
  }
#endif
  return convert_unchecked<To>(x);
}

template <class S, class Tree, int Operands>
struct ScanBody {
  using T = typename Tree::value_type;
  using A = typename S::element;
  using L = typename S::lane;
  using Out = typename S::result;
  static constexpr int widest_line = widest<Tree> > static_cast<int>(sizeof(L)) ? widest<Tree> : static_cast<int>(sizeof(L));
  static constexpr int widest_strip = widest<Tree> > static_cast<int>(sizeof(A)) ? widest<Tree> : static_cast<int>(sizeof(A));

  template <class To, class Isa, int N>
  SITU_INLINE static pack<To, N, Isa> value(Tree const& tree, Run<Operands> const& run, int64_t i) {
    auto const x = convert_lanes<compute_t<T>, T, Isa, N>(Evaluator<Isa, N>::value(tree, Source<Isa, N>{run.data, run.mask, i, run.origin}));
    if constexpr (is_mask<std::remove_cvref_t<decltype(x)>>) return convert_lanes<To, bool, Isa, N>(x);
    else return widened_lanes<To>(x);
  }
  /// Writes a scanned pack, of which `lanes` are the values, behind `front`.
  template <class Isa, int N>
  SITU_INLINE static void put_behind(A front, L const* lanes, Out* to, bool stream) {
    constexpr int M = Isa::bytes / widest_strip < N ? Isa::bytes / widest_strip : N;
    pack<A, M, Isa> const before(front);
    for (int k = 0; k < N; k += M) put<Isa, M>(S::combine(before, widened_lanes<A>(pack<L, M, Isa>::load(lanes + k))), to + k, stream);
  }
  template <class Isa, int N>
  SITU_INLINE static void put(pack<A, N, Isa> const& y, Out* to, [[maybe_unused]] bool stream) {
    auto const lanes = convert_lanes<Out, A, Isa, N>(y);
    if constexpr (std::is_arithmetic_v<Out> && N * static_cast<int>(sizeof(Out)) >= 16) {
      if (SITU_UNLIKELY(stream)) return stream_to(lanes, to);
    }
    store_lanes<Out, N, Isa>(lanes, to);
  }

  /// `rows` lines of run.count elements, `bytes` apart operand by operand, each with `base` in front; `chain` goes on, from line to line it
  /// starts again. `output` says whether to write.
  struct Line {
    template <class Isa>
    SITU_INLINE static void run(Tree const* tree_, Run<Operands> const* run_, int64_t rows, int64_t const* bytes, A base, A* chain_, int flags) {
      constexpr int N = Isa::bytes / widest_line;
      using P = pack<L, N, Isa>;
      Tree const tree = *tree_;
      bool const writes = flags & 1, stream = flags & 2;
      int64_t const n = run_->count, rounded = (n + N - 1) / N * N;
      alignas(64) L lanes[N];
      A chain = *chain_;
      for (int64_t row = 0; row < rows; ++row) {
        Run<Operands> run = *run_;
        bool room = !stream;  // for whole packs: what they write too much belongs to the next line, which comes later
        for (int o = 0; o < Operands; ++o) {
          if (row > 0) run.data[o] = static_cast<char*>(run.data[o]) + row * bytes[o];
          int const size = ElementwiseBody<Tree, Out, Operands>::element_size(o);
          if (run.mask[o] != 0) room = room && bytes[o] > 0 && (rows - 1 - row) * bytes[o] >= (rounded - n) * size;
        }
        if (row > 0) chain = S::identity();
        Out* out = static_cast<Out*>(run.data[0]);
        int64_t i = 0;
        int64_t const whole = room ? rounded : n / N * N;
        for (; i < whole; i += N) {
          scanned<S>(value<L, Isa, N>(tree, run, i)).store(lanes);
          if (writes) put_behind<Isa, N>(S::combine(base, chain), lanes, out + i, stream);
          chain = S::combine(chain, static_cast<A>(lanes[N - 1]));
        }
        if (i >= n) continue;
        alignas(64) unsigned char buffers[Operands][64];
        int const tail = static_cast<int>(n - i);
        buffer_tail<N>(std::type_identity<Tree>{}, run, buffers, i, tail);
        P const y = scanned<S>(value<L, Isa, N>(tree, run, 0));
        y.store(lanes);
        if (writes) {
          alignas(64) Out last[N];
          put_behind<Isa, N>(S::combine(base, chain), lanes, last, false);
          copy_short(out + i, last, tail * static_cast<int64_t>(sizeof(Out)));
        }
        chain = S::combine(chain, static_cast<A>(lanes[tail - 1]));
      }
      *chain_ = chain;
    }
  };

  /// A few rows onto a strip of chains, with `bases` in front; both are padded to whole packs. The rows that come next are asked for at the
  /// same time.
  struct Strip {
    template <class Isa>
    SITU_INLINE static void run(Tree const* tree_, Run<Operands> const* run_, int rows, int64_t const* bytes_, A const* bases, A* chains, int flags) {
      constexpr int N = Isa::bytes / widest_strip;
      using P = pack<A, N, Isa>;
      Tree const tree = *tree_;
      bool const writes = flags & 1, stream = flags & 2;
      Run<Operands> run = *run_;
      int64_t bytes[Operands];
      for (int o = 0; o < Operands; ++o) bytes[o] = bytes_[o];
      int64_t i = 0;
      for (; i + 2 * N <= run.count; i += 2 * N) {  // two packs: whole cache lines of floats
        P chain = P::load(chains + i), chain2 = P::load(chains + i + N);
        P const base = P::load(bases + i), base2 = P::load(bases + i + N);
        Run<Operands> at = run;
        for (int row = 0; row < rows; ++row) {
          for (int o = 1; o < Operands; ++o) {
            int const size = ElementwiseBody<Tree, Out, Operands>::element_size(o);
            if (size > 0) __builtin_prefetch(static_cast<char const*>(at.data[o]) + (i & at.mask[o]) * size + rows * bytes[o], 0, 2);
          }
          chain = S::combine(chain, value<A, Isa, N>(tree, at, i));
          chain2 = S::combine(chain2, value<A, Isa, N>(tree, at, i + N));
          if (writes) {
            put<Isa, N>(S::combine(base, chain), static_cast<Out*>(at.data[0]) + i, stream);
            put<Isa, N>(S::combine(base2, chain2), static_cast<Out*>(at.data[0]) + i + N, stream);
          }
          for (int o = 0; o < Operands; ++o) at.data[o] = static_cast<char*>(at.data[o]) + bytes[o];
        }
        chain.store(chains + i);
        chain2.store(chains + i + N);
      }
      for (; i < run.count; i += N) add_columns<Isa, N>(tree, run, rows, bytes, bases, chains, i, writes);
    }

    /// The last columns: a pack, or less.
    template <class Isa, int N>
    SITU_INLINE static void add_columns(Tree const& tree, Run<Operands> const& run, int rows, int64_t const* bytes, A const* bases, A* chains, int64_t i, bool writes) {
      using P = pack<A, N, Isa>;
      int const tail = run.count - i < N ? static_cast<int>(run.count - i) : N;
      P chain = P::load(chains + i);
      P const base = P::load(bases + i);
      for (int row = 0; row < rows; ++row) {
        Run<Operands> at = run;
        alignas(64) unsigned char buffers[Operands][64];
        for (int o = 0; o < Operands; ++o) at.data[o] = static_cast<char*>(at.data[o]) + row * bytes[o];
        Out* const out = static_cast<Out*>(at.data[0]) + i;
        buffer_tail<N>(std::type_identity<Tree>{}, at, buffers, i, tail);
        chain = S::combine(chain, value<A, Isa, N>(tree, at, 0));
        if (!writes) continue;
        alignas(64) Out last[N];
        put<Isa, N>(S::combine(base, chain), last, false);
        copy_short(out, last, tail * static_cast<int64_t>(sizeof(Out)));
      }
      chain.store(chains + i);
    }
  };
};

/// How a scan is cut: groups of lines, or strips of them, and parts of their length.
struct ScanPlan {
  bool by_strips, stream;
  int64_t groups, group_lines;  ///< by strips: strips side by side are groups, of group_lines columns
  int64_t strips, columns;      ///< by strips: how many to a row of columns
  int64_t parts, part_length;
};

enum class scan_pass { whole, totals, parts };

/// The kernel of a scan: groups of lines [first, last), or parts of groups.
template <class P>
struct ScanKernel {
  using S = typename P::scanner;
  using Tree = typename P::tree_type;
  using A = typename S::element;
  using Out = typename S::result;
  static constexpr int operands = P::leaves + 1;
  using Body = ScanBody<S, Tree, operands>;
  using Elementwise = ElementwiseBody<Tree, Out, operands>;
  static constexpr int64_t strip_columns = 2048, rows_together = 8, most_lines = 16;
  static constexpr int64_t panel_pitch = tile_columns + 64 / static_cast<int64_t>(sizeof(float));  ///< of elements; not a power of two

  P program;
  ScanPlan plan{};
  scan_pass pass = scan_pass::whole;
  A* bases = nullptr;  ///< of the lines of the first part, then of the next one

  explicit ScanKernel(P const& p) : program(p) {}
  int kept() const { return program.where.rank - 1; }
  int64_t stride(int o, int axis) const { return program.where.strides[o][axis]; }

  ReduceSpace space() const {
    ReduceSpace space{program.where.rank, kept(), operands, program.where.sizes, &program.where.strides[0][0], program.where.data, {}, program.lines, program.length, input_movers<Tree, operands>.of};
    for (int o = 0; o < operands; ++o) space.element_sizes[o] = Elementwise::element_size(o);
    return space;
  }

  /// Cuts the work by shapes and strides alone.
  void cut(int64_t grain) {
    int const along = kept();
    bool dense = true;  // along the scanned axis
    for (int o = 0; o < operands; ++o) dense = dense && (stride(o, along) == 1 || (o > 0 && stride(o, along) == 0));
    plan.by_strips = along > 0 && program.where.sizes[along - 1] >= 8 && stride(0, along - 1) == 1 && stride(0, along) != 1;
    plan.stream = program.lines * program.length * static_cast<int64_t>(sizeof(Out)) >= (int64_t{8} << 20) && (plan.by_strips || program.length >= 1024);
    if (plan.by_strips) {
      plan.columns = program.where.sizes[along - 1];
      plan.strips = (plan.columns + strip_columns - 1) / strip_columns;
      plan.group_lines = strip_columns;
      plan.groups = program.lines / plan.columns * plan.strips;
    } else {
      plan.group_lines = dense ? 1 : most_lines;
      plan.groups = (program.lines + plan.group_lines - 1) / plan.group_lines;
    }
    int64_t const wide = plan.by_strips ? (plan.columns < strip_columns ? plan.columns : strip_columns) : plan.group_lines;
    plan.part_length = program.length;
    if (plan.groups < 64) {  // few groups: parts of a grain
      int64_t const rows = ((grain + wide - 1) / wide + 511) / 512 * 512;
      if (rows < program.length) plan.part_length = rows;
    }
    plan.parts = (program.length + plan.part_length - 1) / plan.part_length;
  }

  void operator()(int64_t first, int64_t last) const {
    ReduceSpace const space = this->space();
    int64_t gathered = 64;
    for (int o = 1; o < operands; ++o) gathered += is_boxed(o) ? most_lines * panel_pitch * space.element_sizes[o] : tile_columns * space.element_sizes[o] + 64;
    std::size_t const chains = static_cast<std::size_t>(plan.by_strips ? strip_columns + 64 : most_lines) * sizeof(A);
    std::size_t const held = static_cast<std::size_t>(most_lines * tile_columns) * sizeof(Out);
    Scratch const block(static_cast<int64_t>(2 * chains + held) + gathered);
    unsigned char* const memory = block.get();
    Work work{space, {}, reinterpret_cast<A*>(memory), reinterpret_cast<A*>(memory + chains), reinterpret_cast<Out*>(memory + 2 * chains), memory + 2 * chains + held};
    if (pass == scan_pass::whole) {
      if (plan.group_lines == 1 && plan.parts == 1) {
        run_dense_lines(work, first, last);
      } else {
        for (int64_t group = first; group < last; ++group) run_group(work, group, 0, plan.parts);
      }
    } else {
      for (int64_t unit = first; unit < last; ++unit) run_group(work, unit / plan.parts, unit % plan.parts, unit % plan.parts + 1);
    }
    if (plan.stream) finish_streaming();
  }

 private:
  /// Whether a kernel cannot read an operand where it lies: lines, or rows of a strip, are copied beside each other, a box of them at a time.
  bool is_boxed(int o) const {
    int const along = kept();
    int64_t const s = stride(o, plan.by_strips ? along - 1 : along);
    if (s == 1 || Elementwise::element_size(o) == 0) return false;
    return s != 0 || operands == 2 || (plan.by_strips && stride(o, along) != 0);
  }
  bool is_boxed() const {
    bool any = false;
    for (int o = 1; o < operands; ++o) any = any || is_boxed(o);
    return any;
  }

  struct Work {
    ReduceSpace const& space;
    ReduceFeed feed;
    A* bases;
    A* chains;
    Out* held;
    unsigned char* scratch;
  };

  /// What the pack code is told: 1 to write, 2 to do so past the caches.
  int flags(void const* to) const {
    if (pass == scan_pass::totals) return 0;
    return plan.stream && reinterpret_cast<std::uintptr_t>(to) % 64 == 0 ? 3 : 1;
  }
  void start(Work const& work, Run<operands>& run, void* to, int64_t count) const {
    for (int o = 1; o < operands; ++o) run.data[o] = work.feed.data[o], run.mask[o] = work.feed.mask[o];
    run.data[0] = to;
    run.mask[0] = -1;
    run.count = count;
    run.origin = 0;
  }

  /// Whole lines, each dense: several at a time.
  void run_dense_lines(Work& work, int64_t first, int64_t last) const {
    int const along = kept();
    int64_t const width = along > 0 ? program.where.sizes[along - 1] : 1;
    bool in_step = true;
    for (int o = 1; o < operands; ++o) in_step = in_step && (stride(o, along) == 1 || (operands > 2 && along > 0 && stride(o, along - 1) == 0));
    for (int64_t line = first; line < last;) {
      int64_t rows = width - line % width;
      if (rows > last - line) rows = last - line;
      if (!in_step || plan.stream) rows = 1;
      char* place[max_operands];
      for (int o = 0; o < operands; ++o) place[o] = static_cast<char*>(program.where.data[o]);
      work.space.advance(place, 0, along, line);
      place[0] += output_offset(line, 0);
      A chain = S::identity();
      for (int64_t i = 0; i < program.length;) {
        char* from[max_operands];
        for (int o = 1; o < operands; ++o) from[o] = place[o] + i * stride(o, along) * work.space.element_sizes[o];
        int64_t const count = work.feed.bring(work.space, from, along, program.length - i, work.scratch);
        Run<operands> run;
        char* const to = place[0] + i * static_cast<int64_t>(sizeof(Out));
        start(work, run, to, count);
        int64_t bytes[operands];
        for (int o = 0; o < operands; ++o) bytes[o] = along > 0 ? stride(o, along - 1) * work.space.element_sizes[o] : 0;
        int64_t const together = count == program.length ? rows : 1;
        dispatch<typename Body::Line>(&program.tree, const_cast<Run<operands> const*>(&run), together, static_cast<int64_t const*>(bytes), S::identity(), &chain, flags(to));
        rows = together;
        i += count;
      }
      line += rows;
    }
  }

  /// Bytes from the output's first element to that of a line, `index` along it.
  int64_t output_offset(int64_t line, int64_t index) const {
    int64_t offset = index * stride(0, kept());
    for (int k = kept() - 1; k >= 0; --k) {
      offset += line % program.where.sizes[k] * stride(0, k);
      line /= program.where.sizes[k];
    }
    return offset * static_cast<int64_t>(sizeof(Out));
  }

  /// Parts [part, end) of a group of lines, one after the other.
  void run_group(Work& work, int64_t group, int64_t part, int64_t end) const {
    int64_t line, lines;
    if (plan.by_strips) {
      int64_t const column = group % plan.strips * strip_columns;
      line = group / plan.strips * plan.columns + column;
      lines = plan.columns - column < strip_columns ? plan.columns - column : strip_columns;
    } else {
      line = group * plan.group_lines;
      lines = program.lines - line < plan.group_lines ? program.lines - line : plan.group_lines;
    }
    int64_t const padded = plan.by_strips ? (lines + 63) / 64 * 64 : lines;
    for (int64_t k = 0; k < padded; ++k) work.bases[k] = work.chains[k] = S::identity();
    for (; part < end; ++part) {
      int64_t const first = part * plan.part_length;
      int64_t const stop = first + plan.part_length < program.length ? first + plan.part_length : program.length;
      if (pass == scan_pass::parts) {
        for (int64_t k = 0; k < lines; ++k) work.bases[k] = bases[part * program.lines + line + k];
      }
      if (plan.by_strips) run_strip(work, line, lines, first, stop);
      else run_lines(work, line, lines, first, stop);
      for (int64_t k = 0; k < lines; ++k) {
        if (pass == scan_pass::totals) bases[part * program.lines + line + k] = work.chains[k];
        work.bases[k] = S::combine(work.bases[k], work.chains[k]);
        work.chains[k] = S::identity();
      }
    }
  }

  /// Fills the boxes: `rows` rows of `count` elements, `down` and `step` being the axes along which these lie, from `places` on.
  void fill_boxes(Work& work, char* const* places, int down, int step, int64_t rows, int64_t count) const {
    unsigned char* panel = work.scratch;
    for (int o = 1; o < operands; ++o) {
      if (!is_boxed(o)) continue;
      int const size = work.space.element_sizes[o];
      work.space.movers[o]->move({panel, panel_pitch, 1, places[o], down < 0 ? 0 : stride(o, down), stride(o, step), rows, count});
      panel += most_lines * panel_pitch * size;
    }
  }
  /// Binds the operands of a run of `count` elements along `step`: row `row` of the boxes, and others where they lie.
  void bind(Work& work, Run<operands>& run, char* const* places, int step, int64_t row, int64_t count) const {
    unsigned char* panel = work.scratch;
    for (int o = 1; o < operands; ++o) {
      int const size = work.space.element_sizes[o];
      run.data[o] = places[o];
      run.mask[o] = -1;
      if (is_boxed(o)) {
        run.data[o] = panel + row * panel_pitch * size;
        panel += most_lines * panel_pitch * size;
      } else if (stride(o, step) == 0 && size > 0) {
        work.space.movers[o]->gather(work.feed.splats[o], places[o], 0, 64 / size);
        run.data[o] = work.feed.splats[o], run.mask[o] = 0;
      }
    }
    run.mask[0] = -1;
    run.count = count;
    run.origin = 0;
  }

  void run_lines(Work& work, int64_t line, int64_t lines, int64_t first, int64_t stop) const {
    int const along = kept();
    int64_t const out_stride = stride(0, along);
    int64_t const tile = plan.group_lines == 1 && !is_boxed() ? row_run : tile_columns;
    int64_t const width = along > 0 ? program.where.sizes[along - 1] : 1;
    // Lines that lie side by side in the output are held, and written together, a few places of all of them at a time.
    bool const side_by_side = along > 0 && stride(0, along - 1) == 1 && line % width + lines <= width;
    MoverFunctions const& movers = *mover_of<Out>;
    for (int64_t begin = first; begin < stop; begin += tile) {
      int64_t const count = begin + tile < stop ? tile : stop - begin;
      char* place[max_operands];
      int64_t boxed = 0, behind = 0;  // lines in the boxes
      for (int64_t k = 0; k < lines; ++k) {
        for (int o = 1; o < operands; ++o) place[o] = static_cast<char*>(program.where.data[o]) + begin * stride(o, along) * work.space.element_sizes[o];
        work.space.advance(place, 0, along, line + k);
        if (k == behind) {
          boxed = k;
          behind = k + width - (line + k) % width;
          if (behind > lines) behind = lines;
          fill_boxes(work, place, along - 1, along, behind - boxed, count);
        }
        char* const to = static_cast<char*>(program.where.data[0]) + output_offset(line + k, begin);
        Out* const out = out_stride == 1 ? reinterpret_cast<Out*>(to) : work.held + k * tile_columns;
        Run<operands> run;
        bind(work, run, place, along, k - boxed, count);
        run.data[0] = out;
        int64_t const bytes[operands] = {};
        int const told = out_stride == 1 ? flags(out) : flags(out) & 1;
        dispatch<typename Body::Line>(&program.tree, const_cast<Run<operands> const*>(&run), int64_t{1}, static_cast<int64_t const*>(bytes), work.bases[k], &work.chains[k], told);
        if (out_stride != 1 && !side_by_side && pass != scan_pass::totals) movers.move({to, 0, out_stride, out, 0, 1, 1, count});
      }
      if (out_stride == 1 || !side_by_side || pass == scan_pass::totals) continue;
      char* const to = static_cast<char*>(program.where.data[0]) + output_offset(line, begin);
      constexpr int64_t places = 16;
      for (int64_t i = 0; i < count; i += places) {
        int64_t const rows = count - i < places ? count - i : places;
        movers.move({to + i * out_stride * static_cast<int64_t>(sizeof(Out)), out_stride, 1, work.held + i, 1, tile_columns, rows, lines});
      }
    }
  }

  void run_strip(Work& work, int64_t line, int64_t lines, int64_t first, int64_t stop) const {
    int const along = kept(), across = along - 1;
    bool const boxed = is_boxed();
    int64_t const most_rows = boxed ? most_lines : rows_together, most_columns = boxed ? tile_columns : strip_columns;
    int64_t bytes[operands];
    for (int o = 0; o < operands; ++o) bytes[o] = (o > 0 && is_boxed(o) ? panel_pitch : stride(o, along)) * work.space.element_sizes[o];
    for (int64_t row = first; row < stop;) {
      int64_t const rows = stop - row < most_rows ? stop - row : most_rows;
      char* place[max_operands];
      for (int o = 0; o < operands; ++o) place[o] = static_cast<char*>(program.where.data[o]) + (o > 0 ? row * stride(o, along) * work.space.element_sizes[o] : 0);
      work.space.advance(place, 0, along, line);
      place[0] = static_cast<char*>(program.where.data[0]) + output_offset(line, row);
      for (int64_t i = 0; i < lines;) {
        int64_t const count = lines - i < most_columns ? lines - i : most_columns;
        Run<operands> run;
        if (boxed) fill_boxes(work, place, along, across, rows, count);
        bind(work, run, place, across, 0, count);
        run.data[0] = place[0];
        int const told = bytes[0] % 64 == 0 ? flags(place[0]) : flags(place[0]) & 1;
        dispatch<typename Body::Strip>(&program.tree, const_cast<Run<operands> const*>(&run), static_cast<int>(rows), static_cast<int64_t const*>(bytes),
                                       static_cast<A const*>(work.bases + i), work.chains + i, told);
        for (int o = 0; o < operands; ++o) place[o] += count * stride(o, across) * work.space.element_sizes[o];
        i += count;
      }
      row += rows;
    }
  }
};

/// Makes totals of the parts of lines [first, last) their bases.
template <class S>
struct ScanBasesKernel {
  typename S::element* bases;
  int64_t lines, parts;
  void operator()(int64_t first, int64_t last) const {
    for (int64_t line = first; line < last; ++line) {
      typename S::element base = S::identity();
      for (int64_t part = 0; part < parts; ++part) {
        auto& mine = bases[part * lines + line];
        auto const total = mine;
        mine = base;
        base = S::combine(base, total);
      }
    }
  }
};

}  // namespace detail::cpu

namespace detail {
inline namespace SITU_ABI_THREADS {

/// Runs a bound scan on D, which has the CPU's kernels: one launch, or three where several threads share long lines.
template <class D, class P>
void launch_scan(cpu_kernels, P const& program) {
  using S = typename P::scanner;
  constexpr int64_t cost = cost_of<typename P::tree_type> + static_cast<int>(sizeof(typename P::out_type)) + 4;
  constexpr int64_t grain = (int64_t{4000000} / cost + cpu::row_run - 1) / cpu::row_run * cpu::row_run;  // about 40 microseconds
  cpu::ScanKernel<P> kernel(program);
  kernel.cut(grain);
  auto const& plan = kernel.plan;
  int64_t const unit = program.lines * program.length / (plan.groups * plan.parts) + 1;
  bool const shared = host_device<D> && plan.parts > 1 && plan.groups < num_threads();
  if (!shared) return device_traits<D>::launch(kernel, plan.groups, grain / (unit * plan.parts) + 1);
  Temporary<D> const bases(static_cast<std::size_t>(program.lines * plan.parts) * sizeof(typename S::element));
  kernel.bases = static_cast<typename S::element*>(bases.get());
  kernel.pass = cpu::scan_pass::totals;
  device_traits<D>::launch(kernel, plan.groups * plan.parts, grain / unit + 1);
  device_traits<D>::launch(cpu::ScanBasesKernel<S>{kernel.bases, program.lines, plan.parts}, program.lines, grain / plan.parts + 1);
  kernel.pass = cpu::scan_pass::parts;
  device_traits<D>::launch(kernel, plan.groups * plan.parts, grain / unit + 1);
}

}  // namespace SITU_ABI_THREADS
}  // namespace detail
}  // namespace situ::inline SITU_ABI
