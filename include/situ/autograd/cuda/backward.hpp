/// The GPU's backward kernels of a formula: one pass that writes the gradients of all of its slots.
///
/// As for values there are two, one that moves 16 bytes at a time and one for any strides. Operands are numbered with the gradients
/// first and the inputs of formula and seed behind them. A thread loads its elements of all inputs, and what it adds to, before it
/// stores anything; values and derivatives stay in registers. Gradients of the same memory are added up there.
#pragma once

#include <situ/autograd/backward_program.hpp>
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

/// The gradients of slot J: what was there, and what is added up.
template <int J, class T, int N>
struct SlotLanes {
  Lanes<T, N> before;
  compute_t<T> sums[N];
};

/// What is known of the slots when a kernel is launched.
template <int Outputs>
struct SlotPlan {
  uint64_t stored;               ///< those that are needed, but the later ones of several with the same memory
  uint64_t accumulated;          ///< those of them that are added to what was there
  bool shared;                   ///< there are such later ones
  unsigned char owner[Outputs];  ///< the slot that each one's gradient is a part of
};

template <class Slots, int N, class Js>
struct SlotSink;
/// Where derivatives go: the gradients of all slots, one lane after the other.
template <class... Ts, int N, std::size_t... Js>
struct SlotSink<Fields<Ts...>, N, std::index_sequence<Js...>> : SlotLanes<static_cast<int>(Js), Ts, N>... {
  SlotPlan<static_cast<int>(sizeof...(Ts))> const& plan;
  int j = 0;  ///< the lane that is being computed

  SITU_DEVICE __forceinline__ explicit SlotSink(SlotPlan<static_cast<int>(sizeof...(Ts))> const& p) : plan(p) {}

  template <int J>
  SITU_DEVICE __forceinline__ auto& slot() {
    return static_cast<SlotLanes<J, typename nth_type<J, Ts...>::type, N>&>(*this);
  }
  /// What is added to, from `place.load<J>(lanes)`.
  template <class P>
  SITU_DEVICE __forceinline__ void load(P const& place) {
    if (plan.accumulated) (load_slot<static_cast<int>(Js)>(place), ...);
  }
  template <int J, class T, class X>
  SITU_DEVICE __forceinline__ void put(X const& gradient) {
    slot<J>().sums[j] = gradient;
  }
  /// To `place.store<J>(lanes)`, when all lanes are computed.
  template <class P>
  SITU_DEVICE __forceinline__ void store(P const& place) {
    if (plan.accumulated) (add_before<static_cast<int>(Js)>(), ...);
    if (plan.shared) (join<static_cast<int>(Js), 0>(), ...);
    (store_slot<static_cast<int>(Js)>(place), ...);
  }

 private:
  template <int J, class P>
  SITU_DEVICE __forceinline__ void load_slot(P const& place) {
    if (plan.accumulated >> J & 1u) place.template load<J>(slot<J>().before);
  }
  template <int J>
  SITU_DEVICE __forceinline__ void add_before() {
    using T = typename nth_type<J, Ts...>::type;
    auto& own = slot<J>();
    if (!(plan.accumulated >> J & 1u)) return;
#pragma unroll
    for (int k = 0; k < N; ++k) own.sums[k] = from_word<T>(own.before.bits(k)) + own.sums[k];
  }
  /// Adds what slot J has to slot Ix, or to a later one, where that owns its memory.
  template <int J, int Ix>
  SITU_DEVICE __forceinline__ void join() {
    if constexpr (Ix < J) {
      if constexpr (std::is_same_v<typename nth_type<J, Ts...>::type, typename nth_type<Ix, Ts...>::type>) {
        if (plan.owner[J] == Ix) {
#pragma unroll
          for (int k = 0; k < N; ++k) slot<Ix>().sums[k] += slot<J>().sums[k];
        }
      }
      join<J, Ix + 1>();
    }
  }
  template <int J, class P>
  SITU_DEVICE __forceinline__ void store_slot(P const& place) {
    if (!(plan.stored >> J & 1u)) return;
    using T = typename nth_type<J, Ts...>::type;
    Lanes<T, N> lanes;
    lanes.clear();
#pragma unroll
    for (int k = 0; k < N; ++k) lanes.insert(k, to_word<T>(slot<J>().sums[k]));
    place.template store<J>(lanes);
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
  }(std::type_identity<typename P::slot_types>{});
  static constexpr int lanes = 16 / widest_operand;
  using list = decltype(inputs_of(std::type_identity<formula>{}) + inputs_of(std::type_identity<seed>{}));

  static constexpr ElementSizes<operands> element_sizes = []<class... Ts>(std::type_identity<Fields<Ts...>>) {
    ElementSizes<operands> sizes{{static_cast<int>(sizeof(Ts))...}};
    for (int k = 0; k < inputs; ++k) sizes.of[outputs + k] = input_size(std::type_identity<formula>{}, k) + input_size(std::type_identity<seed>{}, k);
    return sizes;
  }(std::type_identity<typename P::slot_types>{});

  /// The gradients of N elements, from number `index` on: from `place.load<T, K>(lanes)`, to `place.store<J>(lanes)`.
  template <int N, class Place>
  static SITU_DEVICE __forceinline__ void run(typename P::trees const& trees, SlotPlan<outputs> const& slot_plan, Place const& place, int64_t index) {
    using Held = Registers<list, N>;
    Held held;
    held.fill(place);
    SlotSink<typename P::slot_types, N, std::make_index_sequence<static_cast<std::size_t>(outputs)>> to(slot_plan);
    to.load(place);
#pragma unroll
    for (int j = 0; j < N; ++j) {
      LaneSource<Held> const source{held, j, index};
      Kept<ScalarLanes, formula, LaneSource<Held>> const kept(trees.formula, source);
      auto const gradient = ScalarLanes::convert<typename formula::value_type, typename seed::value_type>(ScalarLanes::value(trees.seed, source));
      to.j = j;
      Reverse<ScalarLanes>::down(trees.formula, kept, gradient, to);
    }
    to.store(place);
  }
};

/// The operands of a formula's backward pass, gradients first.
template <int Outputs, int Inputs>
struct ContiguousGradients : ContiguousOperands<Outputs + Inputs> {
  uint64_t repeated;  ///< bit o: operand o is one element
  SlotPlan<Outputs> slot_plan;
};
template <int Outputs, int Inputs>
struct StridedGradients : StridedOperands<Outputs + Inputs> {
  SlotPlan<Outputs> slot_plan;
};

/// The elements of each operand from that place of a chunk on.
template <int Outputs, int Inputs>
struct ContiguousPlace {
  ContiguousGradients<Outputs, Inputs> const& operands;
  int64_t first;
  int place;
  template <class T, int K, int N>
  SITU_DEVICE __forceinline__ void load(Lanes<T, N>& lanes) const {
    constexpr int o = Outputs + K;
    T const* const from = static_cast<T const*>(operands.data[o]);
    if (operands.repeated >> o & 1u) lanes.load_each(from, 0, N);
    else lanes.load(from + first + place);
  }
  template <int J, class T, int N>
  SITU_DEVICE __forceinline__ void load(Lanes<T, N>& lanes) const {
    lanes.load(static_cast<T const*>(operands.data[J]) + first + place);
  }
  template <int J, class T, int N>
  SITU_DEVICE __forceinline__ void store(Lanes<T, N> const& lanes) const {
    lanes.store(static_cast<T*>(operands.data[J]) + first + place);
  }
};

template <class P>
using ContiguousBackwardArguments = FormulaArguments<ContiguousGradients<P::outputs, P::inputs>, typename P::trees>;
template <class P>
__global__ void __launch_bounds__(block_threads) contiguous_backward_kernel(const __grid_constant__ ContiguousBackwardArguments<P> arguments) {
  using Traits = BackwardTraits<P>;
  using Place = ContiguousPlace<P::outputs, P::inputs>;
  constexpr int N = Traits::lanes;
  auto const& operands = arguments.operands;
  ContiguousChunk const chunk(operands, N, 1);
  int const at = static_cast<int>(threadIdx.x) * N;
  if (operands.vectors && at + N <= chunk.left) {
    Traits::template run<N>(arguments.tree, operands.slot_plan, Place{operands, chunk.first, at}, chunk.first + at);
  }
#pragma unroll 1
  for (int k = chunk.first_single(operands, N); k < chunk.left; k += static_cast<int>(blockDim.x)) {
    Traits::template run<1>(arguments.tree, operands.slot_plan, Place{operands, chunk.first, k}, chunk.first + k);
  }
}

/// N elements of each operand along the innermost axis. Nothing is added to here.
template <int Outputs, int Inputs>
struct StridedPlace : StridedSource<StridedGradients<Outputs, Inputs>, Outputs> {
  using StridedSource<StridedGradients<Outputs, Inputs>, Outputs>::load;
  template <int J, class T, int N>
  SITU_DEVICE __forceinline__ void load(Lanes<T, N>&) const {}
  template <int J, class T, int N>
  SITU_DEVICE __forceinline__ void store(Lanes<T, N> const& lanes) const {
    store_strided(lanes, this->arguments, this->offsets, J);
  }
};

template <class P>
using StridedBackwardArguments = FormulaArguments<StridedGradients<P::outputs, P::inputs>, typename P::trees>;
template <class P>
__global__ void __launch_bounds__(block_threads) strided_backward_kernel(const __grid_constant__ StridedBackwardArguments<P> arguments) {
  using Traits = BackwardTraits<P>;
  auto const& operands = arguments.operands;
  StridedTile<Traits::lanes, StridedGradients<P::outputs, P::inputs>> const tile(operands);
  tile.stage();
  tile.for_each([&]<int N>(std::integral_constant<int, N>, TilePlace const& from, int64_t index, int64_t const* offsets) {
    StridedPlace<P::outputs, P::inputs> const place{{operands, offsets, from}};
    Traits::template run<N>(arguments.tree, operands.slot_plan, place, index);
  });
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

/// Finds the slots that have the same memory; takes the later ones out of `stored` and `accumulated`.
SITU_NOINLINE inline bool find_owners(unsigned char* owners, void* const* data, int slot_count, uint64_t& stored, uint64_t& accumulated) {
  uint64_t const needed = stored;
  for (int j = 0; j < slot_count; ++j) {
    int owner = needed >> j & 1u ? 0 : j;
    while (owner < j && !((needed >> owner & 1u) && data[owner] == data[j])) ++owner;
    owners[j] = static_cast<unsigned char>(owner);
    if (owner != j) stored &= ~(uint64_t{1} << j);
  }
  accumulated &= stored;
  return stored != needed;
}
template <int Outputs, int Inputs>
void plan_slots(BackwardPlaces<Outputs, Inputs> const& places, SlotPlan<Outputs>& plan) {
  plan.stored = places.needed, plan.accumulated = places.accumulated;
  plan.shared = find_owners(plan.owner, places.where.data, Outputs, plan.stored, plan.accumulated);
}

/// Launches a backward pass of any formula with so many slots and inputs.
template <int Outputs, int Inputs>
SITU_NOINLINE void launch_gradients(int device, FormulaKernels const& kernels, BackwardPlaces<Outputs, Inputs> const& places) {
  constexpr int operands = Outputs + Inputs;
  using Places = BackwardPlaces<Outputs, Inputs>;
  auto const& where = places.where;
  int64_t const size = where.size();
  if (size == 0) return;
  LaunchName const name("backward", kernels.formula);
  uint64_t repeated;
  if (is_flat(where.contiguous, where.rank, where.strides, operands, repeated)) {
    FormulaBytes<ContiguousGradients<Outputs, Inputs>> arguments(kernels);
    auto& to = arguments.operands;
    plan_slots(places, to.slot_plan);
    to.repeated = repeated;
    __builtin_memcpy(to.data, where.data, sizeof to.data);
    int const threads = bind_contiguous(to, device, to.data, kernels.element_sizes, operands, repeated, size, kernels.lanes, kernels.rounds);
    return launch_kernel(device, name, kernels.contiguous, contiguous_blocks(to, threads, kernels.lanes, kernels.rounds), threads, &arguments);
  }
  StridedSpace space(where, kernels.element_sizes);
  struct Context {
    int device;
    FormulaKernels const& kernels;
    Places const& places;
    LaunchName const& name;
  } context{device, kernels, places, name};
  space.for_each_part(
      [](void* self, StridedSpace const& part) {
        auto const& c = *static_cast<Context const*>(self);
        FormulaBytes<StridedGradients<Outputs, Inputs>> arguments(c.kernels);
        plan_slots(c.places, arguments.operands.slot_plan);
        launch_part<Outputs + Inputs>(c.device, c.name, c.kernels.strided, arguments, part, c.kernels, Outputs);
      },
      &context);
}

}  // namespace detail::cuda

namespace detail {
inline namespace SITU_ABI_COMPILER {

/// Runs a bound backward pass of a formula on D, which has CUDA's kernels: enqueued on the device's current stream.
template <class D, class P>
void launch_backward(cuda_kernels, typename P::trees const& trees, BackwardPlaces<P::outputs, P::inputs> const& places) {
  static_assert(P::operands <= 64, "situ: a formula and its gradients are at most 64 tensors; evaluate a part of it first");
  using Traits = cuda::BackwardTraits<P>;
  cuda::FormulaKernels const kernels{{&formula_of<typename P::formula_type>, &trees, sizeof trees, Traits::element_sizes.of, Traits::lanes,
                                      cuda::counts_elements<typename P::formula_type> || cuda::counts_elements<typename P::seed_type>},
                                     reinterpret_cast<void const*>(&cuda::contiguous_backward_kernel<P>),
                                     reinterpret_cast<void const*>(&cuda::strided_backward_kernel<P>),
                                     1};
  cuda::launch_gradients(device_traits<D>::ordinal, kernels, places);
}

}  // namespace SITU_ABI_COMPILER
}  // namespace detail
}  // namespace situ::inline SITU_ABI

#endif
