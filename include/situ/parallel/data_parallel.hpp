/// Data parallelism in one process: a module on several devices, each of which computes a part of the batch.
///
///     template <class Device> struct Net { … SITU_MODULE(fc1, fc2) };
///
///     Net<Cuda<0>> net;
///     DataParallel<Net, Cuda<0>, Cuda<1>> parallel{net};         // a module on cuda:0, which shares the parameters of net
///     optim::SGD optimizer{parallel, {.lr = 0.1f}};
///     auto loss = cross_entropy(parallel(x), labels);            // x, labels and the output are on cuda:0
///     loss.backward();                                           // runs on both, and adds up the gradients on cuda:0
///     optimizer.step();
///
/// A call cuts its inputs along their first axis, sends the other devices their parts and copies of the parameters and buffers, calls the module on every
/// device, and joins the outputs on the first one. All of it is recorded: the gradients come back by the same ways. The devices are types, and so is what runs
/// on each: nothing of one can be mixed with the other's.
///
/// What runs side by side is what the devices do, which is asynchronous: one thread enqueues it for all of them, the first device last. A module that waits for
/// its device while it runs, as one that reads a number, makes the others wait.
#pragma once

#include <algorithm>
#include <array>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <situ/autograd/concat.hpp>
#include <situ/device/emulated/device.hpp>
#include <situ/device/query.hpp>
#include <situ/nn/flatten.hpp>
#include <situ/nn/move.hpp>
#include <situ/ops/concat.hpp>

namespace situ::inline SITU_ABI {

namespace error {
template <class First, class Module>
struct the_module_is_not_on_the_first_of_the_devices__move_it_with_to {};
}  // namespace error

namespace detail {

// ---- the devices ---------------------------------------------------------------------------------------------------------------

template <class D, class... Ds>
inline constexpr bool all_different = !(std::is_same_v<D, Ds> || ...) && all_different<Ds...>;
template <class D>
inline constexpr bool all_different<D> = true;

/// Whether a device is there; one that a user has added is, as soon as it is a type.
template <class D>
bool is_there() {
  if constexpr (std::is_same_v<typename device_traits<D>::kernels, cuda_kernels>) return AnyDevice(D{}).ordinal() < gpu::device_count();
  else if constexpr (emulated::ordinal_of<D> >= 0) return emulated::ordinal_of<D> < situ::emulated::device_count();
  else return true;
}
[[noreturn]] __attribute__((noinline, cold)) inline void fail_devices(char const* who, AnyDevice const& missing, AnyDevice const* devices, std::size_t count) {
  std::string list;
  for (std::size_t k = 0; k < count; ++k) list += (k > 0 ? ", " : "") + to_string(devices[k]);
  fail<DeviceUnavailable>(who, ": ", missing, " is not there, of the devices ", list, "; name such as this machine has");
}
template <class... Ds>
void require_devices(char const* who) {
  static_assert(all_different<Ds...>, "situ::DataParallel: the devices must be different ones");
  AnyDevice const devices[] = {Ds{}...};
  bool const there[] = {is_there<Ds>()...};
  for (std::size_t k = 0; k < sizeof...(Ds); ++k) {
    if (!there[k]) fail_devices(who, devices[k], devices, sizeof...(Ds));
  }
}

// ---- copies of the module ------------------------------------------------------------------------------------------------------

/// What profiles and TransferLogs say of the copies.
inline constexpr CallSite parallel_site{nullptr, 0, "DataParallel"};

/// Parameters of up to this many bytes cross together, in one copy.
inline constexpr int64_t joined_bytes = int64_t{1} << 20;

/// Parameters one behind the other, so that they cross in one copy, and their gradients in one. Those of copies that were not used have none.
template <class T, class D>
class JoinedParameters {
  using V = Variable<T, D>;
  /// The gradients of the parameters are parts of that of the whole.
  struct Rule {
    using twice = void;
    static constexpr bool stateless = true;
    std::vector<int64_t> ends;
    Tensor<bool> reached;

    template <class G, class Ix>
    void send(G const& g, std::size_t k, Ix const& into) const {
      bool* const all = Tensor<bool>(reached).data();
      if (all[k] && into.needed()) into.add(g.slice(0, k > 0 ? ends[k - 1] : 0, ends[k]).reshape(into.shape()));
      if (k + 1 == ends.size()) std::fill(all, all + ends.size(), false);
    }
  };

 public:
  std::vector<V> parameters;

  /// Once all are there, before they are sent.
  void join() {
    if (parameters.empty()) return;
    std::vector<Tensor<T, D>> flat;
    bool leaves = true;
    for (V const& each : parameters) {
      flat.push_back(each.value().flatten());
      ends_.push_back((ends_.empty() ? 0 : ends_.back()) + each.size());
      leaves = leaves && each.is_leaf();
    }
    Tensor<T, D> value = concat(flat);
    if (!records_gradients) {
      whole_.emplace(std::move(value), false);
      return;
    }
    reached_ = zeros<bool>({static_cast<int64_t>(parameters.size())});
    whole_.emplace(V::adopt(new RecordedList<T, D, Rule>("DataParallel", std::move(value), Rule{ends_, reached_}, parameters.data(), parameters.size())));
    if (leaves) whole_->state()->depth = 1;
  }
  /// Calls take(parameter, copy on To) for each.
  template <class To, class F>
  void send(To, F const& take) const {
    if (!whole_) return;
    Variable<T, To> const there = sent(*whole_, To{});
    for (std::size_t k = 0; k < parameters.size(); ++k) {
      auto const part = [first = k > 0 ? ends_[k - 1] : 0, last = ends_[k], shape = parameters[k].shape()](auto const& t) { return t.slice(0, first, last).reshape(shape); };
      Tensor<T, To> value(part(there.value()));
      if (!records_gradients) {
        take(parameters[k], Variable<T, To>(std::move(value), true));
        continue;
      }
      take(parameters[k], noted_view(record("DataParallel", std::move(value), twice([part, k, reached = reached_](auto const& g, auto const& into) {
                                              Tensor<bool>(reached).data()[k] = true;
                                              into.add_part(part, g);
                                            }),
                                            there),
                                     there));
    }
  }
  /// One parameter's copy.
  template <class To>
  static Variable<T, To> sent(V const& v, To) {
    if (!records_gradients || !v.requires_grad()) return Variable<T, To>(v.value().to(To{}, parallel_site), v.requires_grad());
    Variable<T, To> copy = v.to(To{}, parallel_site);
    if (v.state()->depth < 2) copy.state()->depth = 2;
    return copy;
  }

 private:
  std::vector<int64_t> ends_;
  Tensor<bool> reached_;
  std::optional<V> whole_;
};

/// What the copies of a module on D are made of: its parameters, of the types in the list.
template <class D, class Parameters>
class Shipment;
template <class D, class... Vs>
class Shipment<D, Types<Vs...>> {
 public:
  template <class M>
  explicit Shipment(M const& net) {
    (add<Vs>(net), ...);
  }
  /// A copy on To. Gradients go back from its parameters to the module's.
  template <class To, class M>
  auto copy(M const& net) const {
    Copies<To> copies;
    (std::get<JoinedOf<Vs>>(joined_).send(To{}, [&](Vs const& from, Copied<To, Vs> copy) { std::get<Pairs<To, Vs>>(copies).push_back({from, std::move(copy)}); }), ...);
    return changed_module(net, Replicate<To>{copies});
  }

 private:
  template <class V>
  using JoinedOf = JoinedParameters<value_of<V>, device_of<V>>;
  template <class To, class V>
  using Copied = Variable<value_of<V>, To>;
  template <class To, class V>
  struct Pair {
    V from;
    Copied<To, V> copy;
  };
  template <class To, class V>
  using Pairs = std::vector<Pair<To, V>>;
  template <class To>
  using Copies = std::tuple<Pairs<To, Vs>...>;

  /// The change of a module that is copied; see nn/move.hpp.
  template <class To>
  struct Replicate {
    template <class X>
    using type = typename moved_type<X, To>::type;
    Copies<To>& copies;

    template <class T>
    Variable<T, To> parameter(Variable<T, D> const& v) const {
      auto& known = std::get<Pairs<To, Variable<T, D>>>(copies);
      for (auto const& each : known) {
        if (each.from.state() == v.state()) return each.copy;
      }
      known.push_back({v, JoinedParameters<T, D>::sent(v, To{})});
      return known.back().copy;
    }
    template <class H, class T>
    auto buffer(H const& x, Tensor<T, D> const*) const {
      if constexpr (is_optional<H>) return x ? std::optional<Tensor<T, To>>(x->to(To{}, parallel_site)) : std::optional<Tensor<T, To>>();
      else return x.to(To{}, parallel_site);
    }
    /// What is on no device of its own has its state copied, too.
    template <class X>
    X unchanged(X const& x) const {
      return clone(x);
    }
  };

  template <class V, class M>
  void add(M const& net) {
    JoinedOf<V>& joined = std::get<JoinedOf<V>>(joined_);
    for (V const& each : parameters_of<V>(net)) {
      if (each.requires_grad() && each.size() * static_cast<int64_t>(sizeof(value_of<V>)) <= joined_bytes) joined.parameters.push_back(each);
    }
    joined.join();
  }

  std::tuple<JoinedOf<Vs>...> joined_;
};

// ---- cutting and joining -------------------------------------------------------------------------------------------------------

template <class X>
inline constexpr bool is_tuple = false;
template <class... Xs>
inline constexpr bool is_tuple<std::tuple<Xs...>> = true;
template <class A, class B>
inline constexpr bool is_tuple<std::pair<A, B>> = true;

/// x with f(tensor) in place of each Tensor, Variable and formula: itself, or in tuples, pairs, vectors, arrays and optionals. What else there is stays.
template <class X, class F>
auto map_tensors(X const& x, F const& f) {
  if constexpr (any_formula<X>) {
    return f(x);
  } else if constexpr (is_tuple<X>) {
    return std::apply(
        [&](auto const&... each) {
          if constexpr (requires { x.first; }) return std::pair{map_tensors(each, f)...};
          else return std::tuple<decltype(map_tensors(each, f))...>{map_tensors(each, f)...};
        },
        x);
  } else if constexpr (is_optional<X>) {
    using Mapped = decltype(map_tensors(*x, f));
    return x ? std::optional<Mapped>(map_tensors(*x, f)) : std::optional<Mapped>();
  } else if constexpr (several<X>) {
    using Mapped = decltype(map_tensors(std::declval<typename element_of_several<X>::type const&>(), f));
    if constexpr (requires { x.get_allocator(); }) {
      std::vector<Mapped> result;
      for (auto const& each : x) result.push_back(map_tensors(each, f));
      return result;
    } else {
      return std::apply([&](auto const&... each) { return std::array<Mapped, sizeof...(each)>{map_tensors(each, f)...}; }, x);
    }
  } else {
    return x;
  }
}

/// The outputs of all devices as one, with their tensors one behind the other. What is no tensor is the first device's.
template <class Y>
Y joined_outputs(std::vector<Y> const& all) {
  auto const joined_at = [&](auto const& part) {
    std::vector<std::remove_cvref_t<decltype(part(all[0]))>> parts;
    for (Y const& each : all) parts.push_back(part(each));
    return joined_outputs(parts);
  };
  if constexpr (any_formula<Y>) {
    return concat(all);
  } else if constexpr (is_tuple<Y>) {
    return [&]<std::size_t... Ks>(std::index_sequence<Ks...>) {
      return Y{joined_at([](Y const& y) -> auto const& { return std::get<Ks>(y); })...};
    }(std::make_index_sequence<std::tuple_size_v<Y>>{});
  } else if constexpr (is_optional<Y>) {
    for (Y const& each : all) {
      if (each.has_value() != all[0].has_value()) fail<ShapeError>("DataParallel: an output is there on some devices, and not on others");
    }
    return all[0] ? Y(joined_at([](Y const& y) -> auto const& { return *y; })) : Y();
  } else if constexpr (several<Y>) {
    Y result = all[0];
    for (Y const& each : all) {
      if (each.size() != result.size()) fail<ShapeError>("DataParallel: the modules give ", result.size(), " outputs on one device and ", each.size(), " on another one");
    }
    for (std::size_t k = 0; k < result.size(); ++k) result[k] = joined_at([k](Y const& y) { return y[k]; });
    return result;
  } else {
    return all[0];
  }
}

/// How a batch is cut: the first devices get as many rows as divide it evenly, rounded up; the last one that gets any may have fewer.
struct Cut {
  int64_t each = 0, rows = 0;
  int devices = 1;
  Cut(int64_t batch, int most) : rows(batch) {
    if (batch <= 0) return;
    each = (batch + most - 1) / most;
    devices = static_cast<int>((batch + each - 1) / each);
  }
  int64_t first(int device) const { return device * each; }
  int64_t stop(int device) const { return device + 1 == devices ? rows : (device + 1) * each; }
};

/// The module's output for the parts of a batch on D, the module's device, and on Ds.
template <device D, device... Ds, class M, class... Xs>
auto run_in_parallel(M& net, Xs const&... xs) {
  int64_t batch = -1;
  Shape seen;
  auto const note = [&](Shape const& shape) {
    if (shape.rank() == 0) return;
    if (batch >= 0 && shape[0] != batch) {
      fail<ShapeError>("DataParallel: all inputs are cut along their first axis, which must be of one length: an input has shape ", seen, ", another one ", shape);
    }
    batch = shape[0], seen = shape;
  };
  auto const settle = [&]<class X>(X const& x) {
    static_assert(mixes_with<device_of<X>, D>, "situ::DataParallel: an input holds a tensor of another device than the first one; move it there with to");
    note(x.shape());
    return settled(x);
  };
  std::tuple<decltype(map_tensors(xs, settle))...> const inputs{map_tensors(xs, settle)...};
  Cut const cut(batch, 1 + static_cast<int>(sizeof...(Ds)));

  auto const output_of = [&]<class To>(auto& module, To, int device) {
    auto const part = [&](auto const& x) { return x.rank() > 0 && cut.devices > 1 ? x.slice(0, cut.first(device), cut.stop(device)).to(To{}, parallel_site) : x.to(To{}, parallel_site); };
    return std::apply([&](auto const&... each) { return map_tensors(module(map_tensors(each, part)...), [](auto const& y) { return settled(y); }); }, inputs);
  };
  auto const home = [](auto const& y) {
    auto const here = y.to(D{}, parallel_site);
    return here.rank() > 0 ? here : here.unsqueeze(0);
  };
  using Output = decltype(map_tensors(output_of(net, D{}, 0), home));
  if (cut.devices == 1) return Output(map_tensors(output_of(net, D{}, 0), home));
  constexpr bool joinable = (std::is_same_v<Output, decltype(map_tensors(output_of(std::declval<typename moved_type<std::remove_const_t<M>, Ds>::type&>(), Ds{}, 0), home))> && ...);
  static_assert(joinable, "situ::DataParallel: outputs are joined that are tensors, Variables and formulas, and tuples, pairs, vectors, arrays and optionals of them; this module gives a type of its own for each device");
  if constexpr (joinable) {
    Shipment<D, typename parameter_types_in<Types<>, std::remove_const_t<M>>::type> const shipment(net);
    auto const output_on = [&]<class To>(To to, int device) {
      auto module = shipment.template copy<To>(net);
      return output_of(module, to, device);
    };
    std::vector<Output> outputs;
    [&]<std::size_t... Ks>(std::index_sequence<Ks...>) {
      std::tuple<std::optional<decltype(output_on(Ds{}, 0))>...> others;
      ((static_cast<int>(Ks) + 1 < cut.devices ? static_cast<void>(std::get<Ks>(others).emplace(output_on(Ds{}, static_cast<int>(Ks) + 1))) : void()), ...);
      outputs.push_back(map_tensors(output_of(net, D{}, 0), home));
      ((std::get<Ks>(others) ? outputs.push_back(map_tensors(*std::get<Ks>(others), home)) : void()), ...);
    }(std::index_sequence_for<Ds...>{});
    return joined_outputs(outputs);
  }
}

}  // namespace detail

/// net(inputs...) on several devices, for a module of any type: data_parallel<Cuda<0>, Cuda<1>>(net, x). See DataParallel.
template <device D, device... Ds, any_module M, class... Xs>
  requires(detail::stays_on<std::remove_cvref_t<M>, D> && (detail::input_fits<typename std::remove_cvref_t<M>::situ_member_types, Xs> && ...))
auto data_parallel(M&& net, Xs const&... inputs) {
  detail::require_devices<D, Ds...>("data_parallel");
  return detail::run_in_parallel<D, Ds...>(net, inputs...);
}
template <device D, device... Ds, any_module M, class... Xs,
          class Error = error::the_module_is_not_on_the_first_of_the_devices__move_it_with_to<D, detail::module_device<std::remove_cvref_t<M>>>>
  requires(!detail::stays_on<std::remove_cvref_t<M>, D>)
void data_parallel(M&&, Xs const&...) = delete;
template <device D, device... Ds, any_module M, class... Xs, class Error = typename detail::wrong_input<typename std::remove_cvref_t<M>::situ_member_types, Xs...>::type>
  requires(detail::stays_on<std::remove_cvref_t<M>, D>)
void data_parallel(M&&, Xs const&...) = delete;

/// A module whose calls run on several devices: DataParallel<Net, Cuda<0>, Cuda<1>> parallel{net}, of a template Net<Device> (for a layer:
/// template <class D> using Net = nn::Linear<float, D>).
///
/// It is a module on the first device, and shares the parameters and buffers of net: optimisers, `train()`, state files (where names begin with "module.", as
/// PyTorch's do), learning::Trainer in float, and to(parallel, device), which gives a DataParallel on that device alone, take it as any other.
///
/// Inputs    Tensors, Variables and formulas on the first device. All that have axes are cut along their first one, as `chunk` cuts: n rows on k devices are ⌈n/k⌉ for each as
///           long as there are rows, so that the last devices may get fewer, or nothing to do. What every device needs whole, as a mask [rows, keys] of attention, is a member of the
///           module, or is expanded to an axis of the batch. Tensors without axes are given to all; so is what is no tensor. Tuples, pairs, vectors, arrays and optionals
///           of tensors are cut one by one. Where nothing has axes, the first device does all. A module that writes to its input writes to the first device's rows.
/// Outputs   tensors, Variables and formulas, and tuples, pairs, vectors, arrays and optionals of them, joined along their first axis on the first device; numbers are joined to a vector
///           of one for each device that took part: mean(parallel(x)) for a module that gives its loss, where the rows divide evenly.
/// Gradients recorded as everything else: those of the parameters are the sums over the devices, in an order that is the same for every call, on the first one. On the way back it
///           waits for the others' when it has nothing else to do.
/// Buffers   the other devices' copies are dropped after a call: running statistics are those of the first device's part, as PyTorch's are. A layer that wants several rows for them
///           (BatchNorm in training) wants them on every device.
/// Throws    DeviceUnavailable when it is made and a device is not there; ShapeError for inputs of different lengths; what the module throws, and for more than one device Error for layers
///           that have no parameters yet (LazyLinear).
/// Cost      each call sends each other device the parameters: those of a type that are trained and of up to a megabyte together in one copy, and so their gradients back; the others, and
///           buffers, one by one. A module does not write to parameters while it runs.
template <template <class> class Net, device D, device... Ds>
class DataParallel {
 public:
  explicit DataParallel(std::type_identity_t<Net<D>> net) : DataParallel(nn::from_members, std::move(net)) { detail::require_devices<D, Ds...>("DataParallel"); }
  template <any_module M, class Error = error::the_module_is_not_on_the_first_of_the_devices__move_it_with_to<D, detail::module_device<M>>>
    requires(!std::is_convertible_v<M, Net<D>> && !std::is_same_v<M, DataParallel> && !std::is_same_v<M, DataParallel<Net, D>>)
  explicit DataParallel(M const&) = delete;
  /// What to(parallel, D{}) gives, for a member of this type.
  DataParallel(DataParallel<Net, D> const& one)
    requires(sizeof...(Ds) > 0)
      : DataParallel(one.module) {}
  DataParallel(nn::from_members_t, std::type_identity_t<Net<D>> net) : module(std::move(net)) {}

  template <class To>
  using on_device = DataParallel<Net, To>;

  template <class... Xs>
  auto forward(Xs const&... inputs) const {
    return detail::run_in_parallel<D, Ds...>(module, inputs...);
  }
  template <class... Xs>
  auto forward(Xs const&... inputs) {
    return detail::run_in_parallel<D, Ds...>(module, inputs...);
  }

  Net<D> module;
  SITU_MODULE(module)
};

}  // namespace situ::inline SITU_ABI
