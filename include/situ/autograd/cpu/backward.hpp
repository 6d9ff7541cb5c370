/// The CPU's backward kernel of a formula: one pass that writes the gradients of all of its slots.
///
/// Operands are numbered with the gradients first and the inputs of formula and seed behind them. Gradients are contiguous.
#pragma once

#include <situ/autograd/backward_program.hpp>
#include <situ/autograd/derivative.hpp>
#include <situ/autograd/node.hpp>
#include <situ/expr/cpu/launch.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// In how many groups the CPU sums the gradients of a Variable that was broadcast to `whole` elements, while it computes them; 0 where
/// there are so many sums that it is better done afterwards, unless many terms would be rounded first (`narrow`). No matter how many threads there are.
inline int64_t sum_groups(int64_t whole, int64_t sums, bool narrow) {
  constexpr int64_t fewest = 1 << 14, most = 64;  // elements of a group, groups
  if (whole == 0) return 0;
  if (sums * 4 > whole) return !narrow ? 0 : whole < (1 << 18) ? 1 : 4;
  int64_t groups = whole / (sums * 4 > fewest ? sums * 4 : fewest);
  return groups < 1 ? 1 : groups < most ? groups : most;
}

/// Whether one element stands for all of a layout.
inline bool repeats_one(Layout const& layout) {
  for (int k = 0; k < layout.rank(); ++k) {
    if (layout.shape[k] != 1 && layout.strides[k] != 0) return false;
  }
  return true;
}

}  // namespace detail
namespace detail::cpu {

/// How lanes of packs are handled on both ways.
template <class Isa, int N>
struct PackLanes : Evaluator<Isa, N> {
  template <class Wanted, class From, class X>
  SITU_INLINE static auto operand(X const& x) {
    return operand_lanes<Wanted, From, Isa, N>(x);
  }
  template <class To, class From, class X>
  SITU_INLINE static lanes_t<To, N, Isa> convert(X const& x) {
    return convert_lanes<To, From, Isa, N>(x);
  }
  template <class Op, class... Ts, class Y, class... Xs>
  SITU_INLINE static auto derivative(Apply<Op, Ts...> const& node, Y const& y, Xs const&... xs) {
    if constexpr (functions::is_mapped<Op>) {
      using Types = Fields<typename Apply<Op, Ts...>::value_type, typename Ts::value_type...>;
      return node.op.template lanes_derivative<N, Isa>(std::type_identity<Types>{}, y, xs...);
    } else {
      return Op::derivative(xs..., y);
    }
  }
};

/// What one call of a backward pass covers; see Run. Gradients come first.
struct BackwardRun {
  void* const* data;
  int64_t const* mask;
  int64_t count;
  int64_t origin;
  bool streams = false;  ///< the gradients, all of which are wanted, from the beginnings of lines on, past the caches
};

/// Which gradients are written, which of them on top of what is there, and which are parts of sums: bit j for slot j.
struct BackwardMasks {
  uint64_t needed = 0, accumulated = 0, summed = 0;
};

/// Stores a pack of a gradient: as it is computed where it becomes a part of a sum.
template <class T, int N, class Isa>
SITU_INLINE void store_gradient(lanes_t<T, N, Isa> const& gradient, char const* to, [[maybe_unused]] bool is_part) {
  using C = compute_t<T>;
  char* const at = const_cast<char*>(to);
  if constexpr (!std::is_same_v<T, C>) {
    if (is_part) return store_lanes<C, N, Isa>(gradient, reinterpret_cast<C*>(at));
  }
  store_lanes<T, N, Isa>(gradient, reinterpret_cast<T*>(at));
}

/// The same past the caches; not for what is narrower than it is computed.
template <class T, int N, class Isa>
SITU_INLINE void stream_gradient(lanes_t<T, N, Isa> const& gradient, char const* to) {
  if constexpr (std::is_same_v<T, compute_t<T>> && sizeof(gradient.v) == static_cast<std::size_t>(Isa::bytes)) stream_to(gradient, reinterpret_cast<T*>(const_cast<char*>(to)));
  else store_gradient<T, N, Isa>(gradient, to, false);
}

/// The gradients of a pack, in registers until all are there: what is inlined into each other on the way down is arithmetic alone. Formulas share it.
template <int J, class X>
struct Arrived {
  X lanes;
};
template <class Isa, int N, class Numbers, class... Ts>
struct Sink;
template <class Isa, int N, int... Js, class... Ts>
struct Sink<Isa, N, std::integer_sequence<int, Js...>, Ts...> : Arrived<Js, lanes_t<Ts, N, Isa>>... {
  template <int J, class T, class X>
  SITU_INLINE void put(X const& gradient) {
    static_cast<Arrived<J, X>&>(*this).lanes = gradient;
  }
  SITU_INLINE void store(char const* const* to, uint64_t parts, bool streams) const {
    if (SITU_UNLIKELY(streams)) (stream_gradient<Ts, N, Isa>(static_cast<Arrived<Js, lanes_t<Ts, N, Isa>> const&>(*this).lanes, to[Js]), ...);
    else (store_gradient<Ts, N, Isa>(static_cast<Arrived<Js, lanes_t<Ts, N, Isa>> const&>(*this).lanes, to[Js], parts >> Js & 1u), ...);
  }
};

template <class F, class S, class Slots, int Inputs>
struct BackwardBody;
template <class F, class S, class... Ts, int Inputs>
struct BackwardBody<F, S, Fields<Ts...>, Inputs> {
  static constexpr int outputs = static_cast<int>(sizeof...(Ts)), operands = outputs + Inputs;
  static constexpr int widest_lane = [] {
    int result = widest<F> > widest<S> ? widest<F> : widest<S>;
    for (int w : {static_cast<int>(sizeof(compute_t<Ts>))...}) result = w > result ? w : result;
    return result;
  }();
  template <class Isa>
  static constexpr int lanes_in = Isa::bytes / widest_lane;

  template <class Isa>
  SITU_INLINE static void run(void const* trees_, char const* const* at, int64_t const* step, int64_t origin, int64_t packs, uint64_t parts, bool streams) {
    constexpr int N = lanes_in<Isa>;
    constexpr std::make_integer_sequence<int, operands> numbers{};
    using Lanes = PackLanes<Isa, N>;
    using Source = PackSource<Isa, N>;
    BackwardTrees<F, S> const trees = *static_cast<BackwardTrees<F, S> const*>(trees_);
    PackPlaces<operands> places;
    places.start(at, step, origin, numbers);
    do {
      Source const source{places.at + outputs, places.i};
      Kept<Lanes, F, Source> const kept(trees.formula, source);
      auto const seed = Lanes::template convert<typename F::value_type, typename S::value_type>(Lanes::value(trees.seed, source));
      Sink<Isa, N, std::make_integer_sequence<int, outputs>, Ts...> sink;
      Reverse<Lanes>::down(trees.formula, kept, seed, sink);
      sink.store(places.at, parts, streams);
      places.go_on(N, numbers);
    } while (--packs != 0);
  }
};

/// Adds what was computed to what is there.
template <class T>
struct AddLanesBody {
  template <class Isa>
  SITU_INLINE static void run(T* to, compute_t<T> const* from, int64_t count) {
    using C = compute_t<T>;
    constexpr int N = Isa::bytes / static_cast<int>(sizeof(C));
    int64_t i = 0;
    for (; i + N <= count; i += N) store_lanes<T, N, Isa>(load_lanes<T, N, Isa>(to + i) + load_lanes<C, N, Isa>(from + i), to + i);
    for (; i < count; ++i) to[i] = convert_scalar<T>(static_cast<C>(to[i]) + from[i]);
  }
};
template <class T>
void add_lanes(void* to, void const* from, int64_t count) {
  dispatch<AddLanesBody<T>>(static_cast<T*>(to), static_cast<compute_t<T> const*>(from), count);
}

/// The kernel for each instruction set: whole packs. Bit j of the last number but one: slot j's gradient becomes part of a sum. The last: past the caches.
using BackwardLoops = Variants<void, void const*, char const* const*, int64_t const*, int64_t, int64_t, uint64_t, bool>;

template <class T>
void accumulate_box(void* to, int64_t to_layer, int64_t to_row, int64_t to_step, void const* from, int64_t layers, int64_t rows, int64_t count);

/// What is known of a backward kernel when it is compiled. All that formulas have of their own is the kernel and this.
struct BackwardCode {
  BackwardLoops const* start;
  int outputs, operands;
  int lanes;  ///< elements of an AVX-512 pack
  Grain grain;
  Formula const* formula;
  bool hands_on = false;                           ///< the gradient is the first input times the second, which is the result's
  int sizes[max_operands] = {};                    ///< of an element
  int sum_sizes[max_operands] = {};                ///< of an element of the gradients' sums
  MoverFunctions const* movers[max_operands] = {};
  AccumulateFunction accumulate[max_operands] = {};  ///< of gradients
  void (*add[max_operands])(void* to, void const* from, int64_t count) = {};  ///< the same of elements that lie as they were computed
};

template <class T, int K>
constexpr void tell_inputs(std::type_identity<Input<T, K>>, BackwardCode& code) {
  code.sizes[code.outputs + K] = static_cast<int>(sizeof(T));
  code.movers[code.outputs + K] = mover_of<T>;
}
template <class Leaf>
constexpr void tell_inputs(std::type_identity<Leaf>, BackwardCode&) {}
template <class Op, class... Ts>
constexpr void tell_inputs(std::type_identity<Apply<Op, Ts...>>, BackwardCode& code) {
  (tell_inputs(std::type_identity<Ts>{}, code), ...);
}

/// A Variable times a tensor, and what is said of it in BackwardCode.
template <class F, class S>
inline constexpr bool hands_on_input = false;
template <class T>
inline constexpr bool hands_on_input<Apply<functions::multiply, Apply<functions::slot<0>, Constant<T>>, Input<T, 0>>, Input<T, 1>> = true;
template <class T>
inline constexpr bool hands_on_input<Apply<functions::multiply, Input<T, 0>, Apply<functions::slot<0>, Constant<T>>>, Input<T, 1>> = true;

template <class F, class S, class Slots, int Inputs>
inline constexpr BackwardCode backward_code = []<class... Ts>(std::type_identity<Fields<Ts...>>) {
  using Body = BackwardBody<F, S, Slots, Inputs>;
  static_assert(std::is_trivially_copyable_v<BackwardTrees<F, S>>, "situ: what is mapped over tensors must be trivially copyable");
  static_assert(Body::operands <= max_operands, "situ: a formula and its gradients are at most 64 tensors; evaluate a part of it first");
  BackwardCode code{&variants_of<Body, void, void const*, char const* const*, int64_t const*, int64_t, int64_t, uint64_t, bool>, Body::outputs, Body::operands, 64 / Body::widest_lane, grain_of(time_of<F> + time_of<F> + time_of<F> + time_of<S> + Cost{static_cast<int>((sizeof(Ts) + ...)), 0}), &formula_of<F>};
  code.hands_on = hands_on_input<F, S>;
  int o = 0;
  ((code.sizes[o] = static_cast<int>(sizeof(Ts)), code.sum_sizes[o] = static_cast<int>(sizeof(compute_t<Ts>)), code.movers[o] = mover_of<Ts>,
    code.accumulate[o] = &accumulate_box<compute_t<Ts>>, code.add[o] = &add_lanes<Ts>, ++o),
   ...);
  tell_inputs(std::type_identity<F>{}, code);
  tell_inputs(std::type_identity<S>{}, code);
  return code;
}(std::type_identity<Slots>{});

/// A backward pass with its types forgotten, and where its operands lie. Trivially copyable. Passes of up to `Most` operands share it.
template <int Most, int TreeBytes>
struct BoundBackward {
  void* data[Most];
  BackwardCode const* code;
  Formula const* formula;
  BackwardMasks masks;
  uint64_t repeated;  ///< inputs of one element, which stands for all
  alignas(16) unsigned char trees[TreeBytes];

  int operands() const { return code->operands; }
  bool writes(int o) const { return o < code->outputs && (masks.needed >> o & 1u); }
  bool sums(int o) const { return o < code->outputs && (masks.summed >> o & 1u); }
  int size(int o) const { return sums(o) ? code->sum_sizes[o] : code->sizes[o]; }

  void run_contiguous(BackwardRun const& run) const {
    int const lanes = code->lanes >> (2 - static_cast<int>(current_instruction_set()));
    int64_t const packs = run.count / lanes;
    if (packs > 0) run_packs(run, packs, lanes);
    if (packs * lanes != run.count) run_tail(run, packs * lanes, lanes);
  }

 private:
  SITU_NOINLINE void run_packs(BackwardRun const& run, int64_t packs, int lanes) const {
    alignas(64) unsigned char unread[64];  // gradients that nobody wants
    char const* at[Most];
    int64_t step[Most];
    for (int o = 0; o < operands(); ++o) {
      at[o] = static_cast<char const*>(run.data[o]);
      step[o] = run.mask[o] & (lanes * size(o));
      if (o < code->outputs && !writes(o)) at[o] = reinterpret_cast<char const*>(unread), step[o] = 0;
    }
    if (SITU_UNLIKELY(masks.accumulated != 0)) run_pieces(at, step, run.origin, packs, lanes);
    else (*code->start)(trees, at, step, run.origin, packs, masks.summed, run.streams);
  }
  /// Gradients that go on top of what is there wait in a buffer for it, a piece after the other: kernels have no code for that.
  SITU_NOINLINE void run_pieces(char const** at, int64_t* step, int64_t origin, int64_t packs, int lanes) const {
    alignas(64) char buffer[16384];
    char* to[Most];
    uint64_t const waits = masks.accumulated;
    int const piece = static_cast<int>(sizeof buffer) / 64 / __builtin_popcountll(waits), most = piece < 64 ? piece : 64;
    for (int o = 0; o < code->outputs; ++o) {
      to[o] = const_cast<char*>(at[o]);
      if (waits >> o & 1u) step[o] = lanes * code->sum_sizes[o];
    }
    for (int64_t now; packs > 0; packs -= now) {
      now = packs < most ? packs : most;
      char* wait = buffer;
      for (int o = 0; o < code->outputs; ++o) {
        if (waits >> o & 1u) at[o] = wait, wait += most * 64;
      }
      (*code->start)(trees, at, step, origin, now, masks.summed | waits, false);
      for (int o = 0; o < operands(); ++o) {
        if (o < code->outputs && (waits >> o & 1u)) {
          code->add[o](to[o], at[o], now * lanes);
          to[o] += now * lanes * code->sizes[o];
        } else {
          at[o] += now * step[o];
        }
      }
      origin += now * lanes;
    }
  }
  /// What is left is less than a pack: on padded copies. Gradients of the same memory share theirs.
  SITU_NOINLINE void run_tail(BackwardRun const& run, int64_t done, int lanes) const {
    alignas(64) unsigned char buffers[Most][64];
    void* tail[Most];
    int const left = static_cast<int>(run.count - done);
    for (int o = 0; o < operands(); ++o) {
      tail[o] = buffers[o];
      bool const is_output = o < code->outputs;
      if (run.mask[o] == 0) {
        tail[o] = run.data[o];
        continue;
      }
      if (is_output && !writes(o)) continue;
      bool shared = false;
      for (int p = 0; is_output && p < o; ++p) {
        if (writes(p) && run.data[p] == run.data[o]) tail[o] = tail[p], shared = true;
      }
      if (!shared && (!is_output || (masks.accumulated >> o & 1u))) pad_short(buffers[o], static_cast<char*>(run.data[o]) + done * size(o), left, size(o));
    }
    run_packs({tail, run.mask, lanes, run.origin + done}, 1, lanes);
    for (int o = 0; o < code->outputs; ++o) {
      if (writes(o)) copy_short(static_cast<char*>(run.data[o]) + done * size(o), tail[o], left * size(o));
    }
  }

 public:
  /// Elements from number `first` on, where every input is contiguous or of one element; the one gradient that is written goes to `to`, unless null.
  SITU_NOINLINE void run_range(int64_t first, int64_t count, void* to, bool stream) const {
    alignas(64) unsigned char copies[Most][64];
    void* places[Most];
    int64_t mask[Most];
    for (int o = 0; o < operands(); ++o) {
      bool const repeats = repeated >> o & 1u;
      mask[o] = repeats ? 0 : -1;
      places[o] = repeats ? copies[o] : to && o < code->outputs ? to : static_cast<void*>(static_cast<char*>(data[o]) + first * size(o));
      if (repeats) pad_short(copies[o], data[o], 1, size(o));
    }
    for (int o = 0; o < code->outputs; ++o) stream = stream && writes(o) && reinterpret_cast<std::uintptr_t>(places[o]) % 64 == 0;
    run_contiguous({places, mask, count, first, stream});
  }
};

template <int Most, int TreeBytes>
struct ContiguousBackward {
  static constexpr char const* operation = "backward";
  BoundBackward<Most, TreeBytes> bound;
  bool stream;
  int64_t elements(int64_t items) const { return items; }
  void operator()(int64_t first, int64_t last) const {
    bound.run_range(first, last - first, nullptr, stream);
    if (SITU_UNLIKELY(stream)) finish_streaming();
  }
};

/// Adds a box of gradients to a sum. One for each type, whatever the formula.
template <class T>
struct AccumulateBody {
  template <class Isa>
  SITU_INLINE static void run(T* to, int64_t to_layer, int64_t to_row, int64_t to_step, T const* from, int64_t layers, int64_t rows, int64_t count) {
    constexpr int N = Isa::bytes / static_cast<int>(sizeof(T));
    using P = pack<T, N, Isa>;
    if (to_step == 1 && to_row == count) count *= rows, rows = 1;  // rows that lie close to each other are one
    for (int64_t l = 0; l < layers; ++l, to += to_layer, from += rows * count) {
      if ((to_step == 1 || count == 1) && to_row == 0 && rows > 1) {
        add_rows<Isa>(to, from, rows, count);
      } else if (to_step == 1 || count == 1) {
        for (int64_t r = 0; r < rows; ++r) {
          int64_t c = 0;
          for (; c + N <= count; c += N) (P::load(to + r * to_row + c) + P::load(from + r * count + c)).store(to + r * to_row + c);
          for (; c < count; ++c) to[r * to_row + c] += from[r * count + c];
        }
      } else if (to_step == 0 && to_row == 0) {
        *to += sum_of<Isa>(from, rows * count);
      } else if (to_step == 0) {
        for (int64_t r = 0; r < rows; ++r) to[r * to_row] += sum_of<Isa>(from + r * count, count);
      } else {
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < count; ++c) to[r * to_row + c * to_step] += from[r * count + c];
        }
      }
    }
  }

 private:
  /// Rows onto one.
  template <class Isa>
  SITU_INLINE static void add_rows(T* to, T const* from, int64_t rows, int64_t count) {
    constexpr int N = Isa::bytes / static_cast<int>(sizeof(T));
    using P = pack<T, N, Isa>;
    P const none(T(0));
    if (count >= N) {
      for (int64_t c = 0;; c = c + 2 * N <= count ? c + N : count - N) {  // the last pack overlaps the one before
        int const again = static_cast<int>(c % N == 0 ? 0 : N - c % N);
        P sum = none;
        for (int64_t r = 0; r < rows; ++r) sum = sum + P::load(from + r * count + c);
        if (again == 0) (P::load(to + c) + sum).store(to + c);
        else for (int k = again; k < N; ++k) to[c + k] += sum[k];
        if (c + N == count) break;
      }
      return;
    }
    T sums[N * N] = {};  // N rows are as many whole packs as they have columns
    int64_t r = 0;
    for (; r + N <= rows; r += N, from += N * count) {
      for (int64_t k = 0; k < count; ++k) (P::load(sums + k * N) + P::load(from + k * N)).store(sums + k * N);
    }
    for (int64_t k = 0; k < (rows - r) * count; ++k) sums[k] += from[k];
    for (int64_t c = 0; c < count; ++c) {
      T sum(0);
      for (int64_t k = 0; k < N; ++k) sum += sums[k * count + c];
      to[c] += sum;
    }
  }
  template <class Isa>
  SITU_INLINE static T sum_of(T const* from, int64_t count) {
    constexpr int N = Isa::bytes / static_cast<int>(sizeof(T));
    using P = pack<T, N, Isa>;
    P sums[4] = {P(T(0)), P(T(0)), P(T(0)), P(T(0))};
    int64_t c = 0;
    for (; c + 4 * N <= count; c += 4 * N) {
      for (int k = 0; k < 4; ++k) sums[k] = sums[k] + P::load(from + c + k * N);
    }
    P const all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    T result(0);
    for (int k = 0; k < N; ++k) result += all[k];
    for (; c < count; ++c) result += from[c];
    return result;
  }
};
template <class T>
void accumulate_box(void* to, int64_t to_layer, int64_t to_row, int64_t to_step, void const* from, int64_t layers, int64_t rows, int64_t count) {
  dispatch<AccumulateBody<T>>(static_cast<T*>(to), to_layer, to_row, to_step, static_cast<T const*>(from), layers, rows, count);
}

/// Any strides of the inputs, and sums: groups of tiles of the grid. Each group has sums of its own, one after the other in memory, so
/// that the result does not depend on who runs what.
template <int Most, int TreeBytes>
struct StridedBackward {
  static constexpr char const* operation = "backward";
  BoundBackward<Most, TreeBytes> bound;
  TileGrid grid;
  int rank;
  int64_t groups;
  int64_t sizes[max_rank];
  int64_t strides[Most + 1][max_rank];  ///< the first are those of the space itself
  MoverFunctions const* movers[Most];
  AccumulateFunction accumulate[Most];
  int64_t sum_bytes[Most];  ///< of a group's sum

  int64_t elements(int64_t) const { return grid.tiles * grid.elements; }

  StridedSpace space(void* const* data) const {
    StridedSpace space(rank, bound.operands(), sizes, &strides[1][0], data, movers);
    space.grid = grid;
    space.outputs = bound.code->outputs;
    if (bound.masks.summed) space.accumulate = accumulate;
    for (int o = 0; o < bound.operands(); ++o) space.element_sizes[o] = bound.size(o);
    return space;
  }
  void operator()(int64_t first, int64_t last) const {
    if (!bound.masks.summed) return run_tiles(space(bound.data), first, last, &run_strided, this);
    for (int64_t g = first; g < last; ++g) {
      void* data[Most];
      for (int o = 0; o < bound.operands(); ++o) {
        data[o] = bound.data[o];
        if (!bound.sums(o)) continue;
        data[o] = static_cast<char*>(data[o]) + g * sum_bytes[o];
        __builtin_memset(data[o], 0, static_cast<std::size_t>(sum_bytes[o]));
      }
      run_tiles(space(data), grid.tiles * g / groups, grid.tiles * (g + 1) / groups, &run_strided, this);
    }
  }

 private:
  static void run_strided(void const* self_, void* const* data, int64_t const* mask_, int64_t count, bool) {
    auto const& self = *static_cast<StridedBackward const*>(self_);
    int64_t mask[Most];
    for (int o = 0; o < self.bound.operands(); ++o) mask[o] = o < self.bound.code->outputs ? -1 : mask_[o];
    self.bound.run_contiguous({data, mask, count, 0});
  }
};

template <class D, int Most, int TreeBytes>
SITU_NOINLINE void launch_contiguous_backward(BoundBackward<Most, TreeBytes> const& bound, int64_t n) {
  ContiguousBackward<Most, TreeBytes> kernel{bound, false};
  if constexpr (is_immediate<D>) {
    if (n <= bound.code->grain && n < elements_of_team) return kernel(0, n);
  }
  int64_t written = 0, read = 0;  // bytes
  for (int o = 0; o < bound.operands(); ++o) {
    if (o < bound.code->outputs) written += bound.writes(o) ? n * bound.size(o) : 0;
    else read += (bound.repeated >> o & 1u) != 0 ? 0 : n * bound.size(o);
  }
  kernel.stream = !bound.masks.accumulated && goes_past_caches(written, read);
  device_traits<D>::launch(kernel, n, bound.code->grain);
}
/// What a backward kernel would write for a node that computes its gradient in parts. Keeps what is read: a tensor for each body.
template <class D, int Most, int TreeBytes>
struct LateBackward final : LateGradient {
  BoundBackward<Most, TreeBytes> bound;
  void* (*begin)(Node* node, Shape const& shape);  ///< memory for the gradient, which becomes what has arrived
  int slot = 0;
  Handle read[Most];

  template <class Begin>
  LateBackward(BoundBackward<Most, TreeBytes> const& b, Body const* const* bodies, Node* const* edges, Begin const& begin_of) : bound(b) {
    while (!bound.writes(slot)) ++slot;
    node = edges[slot];
    begin = begin_of(slot);
    for (int k = 0; k < bound.operands() - bound.code->outputs; ++k) {
      if (auto* const body = const_cast<Body*>(bodies[k])) count_up(body->handles), read[k] = Handle(body);
    }
    int const input = bound.code->outputs;
    if (bound.code->hands_on && (bound.repeated >> input & 3u) == 2u && is_one(bound.data[input + 1], bound.size(input + 1))) lies_at = bound.data[input];
  }
  void compute(void* to, int64_t first, int64_t count) const override { bound.run_range(first, count, to, false); }
  void settle() override {
    bound.data[slot] = begin(node, node->shape);
    launch_contiguous_backward<D>(bound, product(node->shape));
  }

 private:
  /// Of an element that is no shorter than what is computed with.
  static bool is_one(void const* element, int size) { return size == 4 ? *static_cast<float const*>(element) == 1 : size == 8 && *static_cast<double const*>(element) == 1; }
};

/// layouts: of the space, then of every operand. Nothing but sums is accumulated here; each has room for `groups` of them.
template <class D, int Most, int TreeBytes>
SITU_NOINLINE void launch_strided_backward(BoundBackward<Most, TreeBytes> const& bound, Layout const* const* layouts, int64_t groups) {
  StridedBackward<Most, TreeBytes> kernel;
  kernel.bound = bound;
  kernel.grid = {};
  kernel.rank = bind_strides(layouts, bound.operands() + 1, kernel.sizes, &kernel.strides[0][0]);
  kernel.groups = groups;
  for (int o = 0; o < bound.operands(); ++o) {
    kernel.movers[o] = o < bound.code->outputs && !bound.writes(o) ? nullptr : bound.code->movers[o];
    kernel.accumulate[o] = bound.sums(o) ? bound.code->accumulate[o] : nullptr;
    kernel.sum_bytes[o] = bound.sums(o) ? layouts[o + 1]->size() * bound.size(o) : 0;
  }
  StridedSpace space = kernel.space(bound.data);
  space.choose_grid();
  kernel.grid = space.grid;
  if (bound.masks.summed) device_traits<D>::launch(kernel, groups, 1);
  else device_traits<D>::launch(kernel, kernel.grid.tiles, bound.code->grain / kernel.grid.elements + 1);
}

}  // namespace detail::cpu
}  // namespace situ::inline SITU_ABI
