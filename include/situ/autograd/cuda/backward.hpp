/// The GPU's backward kernels of a formula: one pass that writes the gradients of all of its slots.
///
/// As for values there are two, one that moves 16 bytes at a time and one for any strides. Operands are numbered with the gradients
/// first and the inputs of formula and seed behind them. A thread loads its elements of all inputs, and what it adds to, before it
/// stores anything; values and derivatives stay in registers. Gradients of the same memory are added up there.
#pragma once

#include <situ/autograd/derivative.hpp>
#include <situ/expr/evaluate.hpp>

#if defined(__CUDACC__)

namespace situ::inline SITU_ABI {
namespace detail::cuda {

/// The inputs of trees.
template <class... Is>
struct Inputs {
  template <class... More>
  constexpr Inputs<Is..., More...> operator+(Inputs<More...>) const {
    return {};
  }
};
template <class Leaf>
constexpr Inputs<> inputs_of(std::type_identity<Leaf>) {
  return {};
}
template <class T, int K>
constexpr Inputs<Input<T, K>> inputs_of(std::type_identity<Input<T, K>>) {
  return {};
}
template <class Op, class... Ts>
constexpr auto inputs_of(std::type_identity<Apply<Op, Ts...>>) {
  return (Inputs<>{} + ... + inputs_of(std::type_identity<Ts>{}));
}

/// N elements of each of them. As a source it fills what a part of a tree holds.
template <class List, int N>
struct Registers;
template <class... Is, int N>
struct Registers<Inputs<Is...>, N> : Held<Is, N>... {
  static constexpr int lanes = N;
  template <class S>
  SITU_DEVICE __forceinline__ void fill([[maybe_unused]] S const& source) {
    (hold(static_cast<Held<Is, N>&>(*this), source), ...);
  }
  template <class T, int K>
  SITU_DEVICE __forceinline__ void load(Lanes<T, N>& lanes) const {
    lanes = static_cast<Held<Input<T, K>, N> const&>(*this).lanes;
  }
};

/// How a lane, which is a scalar here, is handled on both ways; see Reverse.
template <class R>
struct LaneSource {
  R const& registers;
  int j;
  int64_t index;
};
struct ScalarLanes {
  template <class Tree, class R>
  SITU_DEVICE __forceinline__ static auto value(Tree const& tree, LaneSource<R> const& source) {
    Held<Tree, R::lanes> held;
    hold(held, source.registers);
    return Evaluator::value(tree, held, source.j, source.index);
  }
  template <class Wanted, class From, class X>
  SITU_DEVICE __forceinline__ static compute_t<Wanted> operand(X const& x) {
    return convert_scalar<compute_t<Wanted>>(x);
  }
  template <class To, class From, class X>
  SITU_DEVICE __forceinline__ static compute_t<To> convert(X const& x) {
    return convert_scalar<compute_t<To>>(x);
  }
  template <class Op, class... Ts, class... Xs>
  SITU_DEVICE __forceinline__ static auto apply(Apply<Op, Ts...> const& node, Xs const&... xs) {
    return Evaluator::apply(node, xs...);
  }
  template <class Op, class... Ts, class Y, class... Xs>
  SITU_DEVICE __forceinline__ static auto derivative(Apply<Op, Ts...> const& node, Y const& y, Xs const&... xs) {
    if constexpr (functions::is_mapped<Op>) {
      using R = typename Apply<Op, Ts...>::value_type;
      return node.op.device_derivative(static_cast<typename Ts::value_type>(xs)..., static_cast<R>(y));
    } else {
      return Op::derivative(xs..., y);
    }
  }
};

/// The gradient of slot J: what was there, what it becomes, and the lane that is being computed.
template <int J, class T, int N>
struct SlotLanes {
  using type = T;
  Lanes<T, N> before, after;
  compute_t<T> sum = 0;
};

/// What is known of the slots when a kernel is launched.
template <int Outputs>
struct SlotPlan {
  uint64_t needed, accumulated;
  unsigned char owner[Outputs];  ///< the first slot with the same memory
};

template <class Slots, int N, class Js>
struct SlotSink;
/// Where derivatives go: the gradients of all slots, one lane after the other.
template <class... Ts, int N, std::size_t... Js>
struct SlotSink<Fields<Ts...>, N, std::index_sequence<Js...>> : SlotLanes<static_cast<int>(Js), Ts, N>... {
  SlotPlan<static_cast<int>(sizeof...(Ts))> const& plan;
  int j = 0;

  SITU_DEVICE __forceinline__ explicit SlotSink(SlotPlan<static_cast<int>(sizeof...(Ts))> const& p) : plan(p) {}

  template <int J>
  SITU_DEVICE __forceinline__ auto& slot() {
    return static_cast<SlotLanes<J, typename nth_type<J, Ts...>::type, N>&>(*this);
  }
  template <int J>
  SITU_DEVICE __forceinline__ bool owns() const {
    return (plan.needed >> J & 1u) && plan.owner[J] == J;
  }

  /// From `place.load<J>(lanes)`.
  template <class P>
  SITU_DEVICE __forceinline__ void load(P const& place) {
    (load_slot<static_cast<int>(Js)>(place), ...);
  }
  /// To `place.store<J>(lanes)`.
  template <class P>
  SITU_DEVICE __forceinline__ void store(P const& place) {
    (store_slot<static_cast<int>(Js)>(place), ...);
  }
  template <int J, class T, class X>
  SITU_DEVICE __forceinline__ void put(X const& gradient) {
    if (plan.needed >> J & 1u) add<J, 0>(gradient);
  }
  /// Lane j is complete.
  SITU_DEVICE __forceinline__ void finish_lane() { (slot<static_cast<int>(Js)>().after.insert(j, to_word<Ts>(slot<static_cast<int>(Js)>().sum)), ...); }

 private:
  template <int J, int I, class X>
  SITU_DEVICE __forceinline__ void add(X const& gradient) {
    using T = typename nth_type<J, Ts...>::type;
    if constexpr (I == J) {
      auto& own = slot<J>();
      own.sum = plan.accumulated >> J & 1u ? from_word<T>(own.before.bits(j)) + gradient : gradient;
    } else {
      if constexpr (std::is_same_v<T, typename nth_type<I, Ts...>::type>) {
        if (plan.owner[J] == I) {
          slot<I>().sum += gradient;
          return;
        }
      }
      add<J, I + 1>(gradient);
    }
  }
  template <int J, class P>
  SITU_DEVICE __forceinline__ void load_slot(P const& place) {
    slot<J>().before.clear();
    slot<J>().after.clear();
    if (owns<J>() && (plan.accumulated >> J & 1u)) place.template load<J>(slot<J>().before);
  }
  template <int J, class P>
  SITU_DEVICE __forceinline__ void store_slot(P const& place) {
    if (owns<J>()) place.template store<J>(slot<J>().after);
  }
};

/// What a program is for its kernels.
template <class P>
struct BackwardTraits {
  using formula = typename P::formula_type;
  using seed = typename P::seed_type;
  static constexpr int outputs = P::outputs, inputs = P::inputs, operands = P::operands;
  static constexpr int widest_operand = []<class... Ts>(std::type_identity<Fields<Ts...>>) {
    int result = widest_input<formula> > widest_input<seed> ? widest_input<formula> : widest_input<seed>;
    for (int size : {static_cast<int>(sizeof(Ts))...}) result = size > result ? size : result;
    return result;
  }(std::type_identity<typename P::slots>{});
  static constexpr int lanes = 16 / widest_operand;
  static constexpr int rounds = lanes > 4 || inputs > 3 ? 1 : 2;
  using list = decltype(inputs_of(std::type_identity<formula>{}) + inputs_of(std::type_identity<seed>{}));
  using registers = Registers<list, lanes>;
  using sink = SlotSink<typename P::slots, lanes, std::make_index_sequence<static_cast<std::size_t>(outputs)>>;

  static constexpr ElementSizes<operands> element_sizes = []<class... Ts>(std::type_identity<Fields<Ts...>>) {
    ElementSizes<operands> sizes{{static_cast<int>(sizeof(Ts))...}};
    for (int k = 0; k < inputs; ++k) sizes.of[outputs + k] = input_size(std::type_identity<formula>{}, k) + input_size(std::type_identity<seed>{}, k);
    return sizes;
  }(std::type_identity<typename P::slots>{});

  /// All lanes of a thread.
  static SITU_DEVICE __forceinline__ void compute(formula const& f, seed const& s, registers const& held, sink& to, int64_t index) {
#pragma unroll
    for (int j = 0; j < lanes; ++j) {
      LaneSource<registers> const source{held, j, index};
      Kept<ScalarLanes, formula, LaneSource<registers>> const kept(f, source);
      auto const gradient = ScalarLanes::convert<typename formula::value_type, typename seed::value_type>(ScalarLanes::value(s, source));
      to.j = j;
      Reverse<ScalarLanes>::down(f, kept, gradient, to);
      to.finish_lane();
    }
  }
};

template <class P>
struct ContiguousBackwardArguments : ContiguousSpace {
  typename P::formula_type formula;
  typename P::seed_type seed;
  void* data[P::operands];
  SlotPlan<P::outputs> slots;
  uint64_t repeated;  ///< bit o: operand o is one element
  explicit ContiguousBackwardArguments(P const& p) : formula(p.formula), seed(p.seed) {}
};

/// N elements of each operand from number `first` on; `count` of them exist.
template <class A, int Outputs>
struct ContiguousPlace {
  A const& arguments;
  int64_t first;
  int count;
  bool whole;
  template <class T, int K, int N>
  SITU_DEVICE __forceinline__ void load(Lanes<T, N>& lanes) const {
    constexpr int o = Outputs + K;
    T const* const from = static_cast<T const*>(arguments.data[o]);
    if (arguments.repeated >> o & 1u) lanes.load_each(from, 0, N);
    else if (whole) lanes.load(from + first);
    else lanes.load_each(from + first, 1, count);
  }
  template <int J, class T, int N>
  SITU_DEVICE __forceinline__ void load(Lanes<T, N>& lanes) const {
    T const* const from = static_cast<T const*>(arguments.data[J]) + first;
    if (whole) lanes.load(from);
    else lanes.load_each(from, 1, count);
  }
  template <int J, class T, int N>
  SITU_DEVICE __forceinline__ void store(Lanes<T, N> const& lanes) const {
    T* const to = static_cast<T*>(arguments.data[J]) + first;
    if (whole) lanes.store(to);
    else lanes.store_each(to, 1, count);
  }
};

template <class P>
__global__ void __launch_bounds__(block_threads) contiguous_backward_kernel(const __grid_constant__ ContiguousBackwardArguments<P> arguments) {
  using Traits = BackwardTraits<P>;
  using Place = ContiguousPlace<ContiguousBackwardArguments<P>, P::outputs>;
  constexpr int N = Traits::lanes, rounds = Traits::rounds;
  int64_t const origin = (static_cast<int64_t>(blockIdx.x) * (rounds * static_cast<int>(blockDim.x)) + static_cast<int>(threadIdx.x)) * N;
  int const step = static_cast<int>(blockDim.x) * N;
  auto const place = [&](int r) {
    int64_t const first = origin + r * step, left = arguments.count - first;
    int const count = left >= N ? N : left > 0 ? static_cast<int>(left) : 0;
    return Place{arguments, first, count, arguments.vectors && count == N};
  };
  typename Traits::registers held[rounds];
#pragma unroll
  for (int r = 0; r < rounds; ++r) held[r].fill(place(r));
#pragma unroll
  for (int r = 0; r < rounds; ++r) {
    Place const here = place(r);
    typename Traits::sink sink(arguments.slots);
    sink.load(here);
    Traits::compute(arguments.formula, arguments.seed, held[r], sink, here.first);
    sink.store(here);
  }
}

template <class P>
struct StridedBackwardArguments : StridedOperands<P::operands> {
  typename P::formula_type formula;
  typename P::seed_type seed;
  SlotPlan<P::outputs> slots;
  explicit StridedBackwardArguments(P const& p) : formula(p.formula), seed(p.seed) {}
};

/// The gradients of a thread of the strided kernel, where nothing is added to.
template <class A>
struct StridedGradients {
  A const& arguments;
  int64_t const* offsets;
  int count;
  template <int J, class T, int N>
  SITU_DEVICE __forceinline__ void load(Lanes<T, N>&) const {}
  template <int J, class T, int N>
  SITU_DEVICE __forceinline__ void store(Lanes<T, N> const& lanes) const {
    T* const to = static_cast<T*>(arguments.data[J]) + offsets[J];
    if (count == N && (arguments.vectors >> J & 1)) lanes.store(to);
    else lanes.store_each(to, arguments.strides[J][arguments.outer_rank], count);
  }
};

template <class P>
__global__ void __launch_bounds__(block_threads) strided_backward_kernel(const __grid_constant__ StridedBackwardArguments<P> arguments) {
  using Traits = BackwardTraits<P>;
  int64_t index, offsets[P::operands];
  int const count = locate<Traits::lanes>(arguments, index, offsets);
  if (count == 0) return;
  typename Traits::registers held;
  held.fill(StridedSource<StridedBackwardArguments<P>, P::outputs>{arguments, offsets, count});
  StridedGradients<StridedBackwardArguments<P>> const here{arguments, offsets, count};
  typename Traits::sink sink(arguments.slots);
  sink.load(here);
  Traits::compute(arguments.formula, arguments.seed, held, sink, index);
  sink.store(here);
}

/// Whether the joined operands are contiguous, or one element: then bit o of `repeated` is set.
SITU_NOINLINE inline bool is_flat(bool contiguous, int rank, int64_t const (*strides)[max_rank], int operands, uint64_t& repeated) {
  repeated = 0;
  if (contiguous) return true;
  bool flat = rank == 1;
  for (int o = 0; flat && o < operands; ++o) {
    if (strides[o][0] == 0) repeated |= uint64_t{1} << o;
    else flat = strides[o][0] == 1;
  }
  return flat;
}

/// Which slots have the same memory.
SITU_NOINLINE inline void find_owners(unsigned char* owners, void* const* data, uint64_t needed, int slots) {
  for (int j = 0; j < slots; ++j) {
    int owner = 0;
    while (owner < j && !((needed >> owner & 1u) && data[owner] == data[j])) ++owner;
    owners[j] = static_cast<unsigned char>(owner);
  }
}
template <class P>
void plan_slots(P const& program, SlotPlan<P::outputs>& plan) {
  plan.needed = program.needed, plan.accumulated = program.accumulated;
  find_owners(plan.owner, program.where.data, program.needed, P::outputs);
}

template <class P>
void launch_contiguous_backward(int device, P const& program, uint64_t repeated, LaunchName const& name) {
  using Traits = BackwardTraits<P>;
  constexpr int N = Traits::lanes, rounds = Traits::rounds;
  ContiguousBackwardArguments<P> arguments(program);
  plan_slots(program, arguments.slots);
  arguments.repeated = repeated;
  __builtin_memcpy(arguments.data, program.where.data, sizeof arguments.data);
  int const threads = bind_contiguous(arguments, device, arguments.data, Traits::element_sizes.of, P::operands, repeated, program.where.size(), N, rounds);
  launch(device, name, contiguous_backward_kernel<P>, contiguous_blocks(arguments, threads, N, rounds), threads, arguments);
}

template <class P>
void launch_backward_program(int device, P const& program) {
  static_assert(P::operands <= 64, "situ: a formula and its gradients are at most 64 tensors; evaluate a part of it first");
  auto const& where = program.where;
  if (where.size() == 0) return;
  LaunchName const name("backward", &formula_of<typename P::formula_type>);
  uint64_t repeated;
  if (is_flat(where.contiguous, where.rank, where.strides, P::operands, repeated)) return launch_contiguous_backward(device, program, repeated, name);
  StridedSpace space(where, BackwardTraits<P>::element_sizes.of);
  struct Context {
    int device;
    P const& program;
    LaunchName const& name;
  } context{device, program, name};
  space.for_each_part(
      [](void* self, StridedSpace const& part) {
        auto const& c = *static_cast<Context const*>(self);
        StridedBackwardArguments<P> arguments(c.program);
        plan_slots(c.program, arguments.slots);
        dim3 const blocks = bind_part(arguments, part, BackwardTraits<P>::lanes);
        launch(c.device, c.name, strided_backward_kernel<P>, blocks, block_threads, arguments);
      },
      &context);
}

}  // namespace detail::cuda

namespace detail {
inline namespace SITU_ABI_COMPILER {

/// Runs a bound backward pass of a formula on D, which has CUDA's kernels: enqueued on the device's current stream.
template <class D, class P>
void launch_backward(cuda_kernels, P const& program) {
  cuda::launch_backward_program(device_traits<D>::ordinal, program);
}

}  // namespace SITU_ABI_COMPILER
}  // namespace detail
}  // namespace situ::inline SITU_ABI

#endif
