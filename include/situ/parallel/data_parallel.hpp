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

#include <array>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <situ/autograd/concat.hpp>
#include <situ/device/present.hpp>
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

__attribute__((noinline, cold)) inline void require_devices(char const* who, AnyDevice const* devices, std::size_t count) {
  for (std::size_t k = 0; k < count; ++k) {
    if (is_there(devices[k])) continue;
    std::string list;
    for (std::size_t j = 0; j < count; ++j) list += (j > 0 ? ", " : "") + to_string(devices[j]);
    fail<DeviceUnavailable>(who, ": ", devices[k], " is not there, of the devices ", list, "; there are ", gpu::device_count(), " GPUs and ", situ::emulated::device_count(), " emulated devices");
  }
}

// ---- copies of the module ------------------------------------------------------------------------------------------------------

/// What profiles and TransferLogs say of the copies.
inline constexpr CallSite parallel_site{nullptr, 0, "DataParallel"};

/// Parameters and buffers of up to this many bytes cross together, in one copy.
inline constexpr int64_t joined_bytes = int64_t{1} << 20;

/// Variables or Tensors that go to other devices.
template <class V>
class Cargo {
 public:
  void add(V const& x) {
    bool const is_small = x.size() * static_cast<int64_t>(sizeof(value_of<V>)) <= joined_bytes;
    (is_small ? small_ : large_).push_back(x);
  }
  /// Puts the small ones one behind the other. To be called once, before they are sent.
  void join() {
    if (small_.size() < 2) return;
    std::vector<V> flat;
    for (V const& each : small_) {
      flat.push_back(each.flatten());
      sizes_.push_back(each.size());
    }
    joined_.emplace(concat(flat));
  }
  /// Calls take(x, copy of x on D) for each.
  template <class D, class F>
  void send(D, F const& take) const {
    for (V const& each : large_) take(each, each.to(D{}, parallel_site));
    if (!joined_) {
      for (V const& each : small_) take(each, each.to(D{}, parallel_site));
      return;
    }
    auto const parts = split(joined_->to(D{}, parallel_site), sizes_);
    for (std::size_t k = 0; k < parts.size(); ++k) take(small_[k], parts[k].reshape(small_[k].shape()));
  }

 private:
  std::vector<V> small_, large_;
  std::vector<int64_t> sizes_;
  std::optional<V> joined_;
};

/// What the copies of a module on D are made of: its parameters of the types in the list, and its buffers.
template <class D, class Parameters>
class Shipment;
template <class D, class... Vs>
class Shipment<D, Types<Vs...>> {
 public:
  template <class M>
  explicit Shipment(M const& net) {
    (add<Vs>(net), ...);
    for_each_held(net, [&]<class X>(X const& x) {
      if constexpr (std::is_same_v<X, Tensor<float, D>>) buffers_.add(x);
    });
    (join<Vs>(), ...);
    buffers_.join();
  }
  /// A copy on To. Gradients go back from its parameters to the module's.
  template <class To, class M>
  auto copy(M const& net) const {
    Copies<To> copies;
    (send<Vs>(copies), ...);
    buffers_.send(To{}, [&](auto const& from, auto copy) { copies.buffers.push_back({from, std::move(copy)}); });
    return changed_module(net, Replicate<To>{copies});
  }

 private:
  template <class V>
  struct Parts {
    Cargo<V> trained, frozen;
  };
  template <class V, class W>
  struct Pair {
    V from;
    W copy;
  };
  template <class To, class V>
  using Copied = Variable<value_of<V>, To>;
  template <class To>
  struct Copies {
    std::tuple<std::vector<Pair<Vs, Copied<To, Vs>>>...> parameters;
    std::vector<Pair<Tensor<float, D>, Tensor<float, To>>> buffers;
  };
  /// The change of a module that is copied; see nn/move.hpp.
  template <class To>
  struct Replicate {
    template <class X>
    using type = typename moved_type<X, To>::type;
    Copies<To> const& copies;

    template <class T>
    Variable<T, To> parameter(Variable<T, D> const& v) const {
      for (auto const& each : std::get<std::vector<Pair<Variable<T, D>, Variable<T, To>>>>(copies.parameters)) {
        if (each.from.state() == v.state()) return each.copy;
      }
      return v.to(To{}, parallel_site);
    }
    template <class H, class T>
    auto buffer(H const& x, Tensor<T, D> const*) const {
      if constexpr (is_optional<H>) return x ? std::optional<Tensor<T, To>>(one_buffer(*x)) : std::optional<Tensor<T, To>>();
      else return one_buffer(x);
    }
    template <class T>
    Tensor<T, To> one_buffer(Tensor<T, D> const& x) const {
      if constexpr (std::is_same_v<T, float>) {
        for (auto const& each : copies.buffers) {
          if (each.from.body() == x.body()) return each.copy;
        }
      }
      return x.to(To{}, parallel_site);
    }
  };

  template <class V, class M>
  void add(M const& net) {
    auto& parts = std::get<Parts<V>>(parts_);
    for (V const& each : parameters_of<V>(net)) (each.requires_grad() ? parts.trained : parts.frozen).add(each);
  }
  template <class V>
  void join() {
    auto& parts = std::get<Parts<V>>(parts_);
    parts.trained.join();
    parts.frozen.join();
  }
  template <class V, class To>
  void send(Copies<To>& copies) const {
    auto const& parts = std::get<Parts<V>>(parts_);
    auto& to = std::get<std::vector<Pair<V, Copied<To, V>>>>(copies.parameters);
    auto const take = [&](V const& from, Copied<To, V> copy) { to.push_back({from, std::move(copy)}); };
    parts.trained.send(To{}, take);
    parts.frozen.send(To{}, take);
  }

  std::tuple<Parts<Vs>...> parts_;
  Cargo<Tensor<float, D>> buffers_;
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
    for (std::size_t k = 0; k < result.size(); ++k) result[k] = joined_at([k](Y const& y) -> auto const& { return y[k]; });
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
  auto const settle = [&](auto const& x) {
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

}  // namespace detail

/// net(inputs...) on several devices, for a module of any type: data_parallel<Cuda<0>, Cuda<1>>(net, x). See DataParallel.
template <device D, device... Ds, any_module M, class... Xs>
  requires(std::is_same_v<detail::module_device<std::remove_const_t<M>>, D> && (detail::input_fits<typename M::situ_member_types, Xs> && ...))
auto data_parallel(M& net, Xs const&... inputs) {
  static_assert(detail::all_different<D, Ds...>, "situ::data_parallel: the devices must be different ones");
  AnyDevice const devices[] = {D{}, Ds{}...};
  detail::require_devices("data_parallel", devices, 1 + sizeof...(Ds));
  return detail::run_in_parallel<D, Ds...>(net, inputs...);
}
template <device D, device... Ds, any_module M, class... Xs,
          class Error = error::the_module_is_not_on_the_first_of_the_devices__move_it_with_to<D, detail::module_device<std::remove_const_t<M>>>>
  requires(!std::is_same_v<detail::module_device<std::remove_const_t<M>>, D>)
void data_parallel(M&, Xs const&...) = delete;
template <device D, device... Ds, any_module M, class... Xs, class Error = typename detail::wrong_input<typename M::situ_member_types, Xs...>::type>
  requires(std::is_same_v<detail::module_device<std::remove_const_t<M>>, D>)
void data_parallel(M&, Xs const&...) = delete;

/// A module whose calls run on several devices: DataParallel<Net, Cuda<0>, Cuda<1>> parallel{net}, of a template Net<Device>.
///
/// It is a module on the first device, and shares the parameters and buffers of net: optimisers, `train()`, state files (where names begin with "module.", as
/// PyTorch's do), learning::Trainer and to(parallel, device), which gives a DataParallel on that device alone, take it as any other.
///
/// Inputs    Tensors, Variables and formulas on the first device, cut along their first axis: n rows on k devices are ⌈n/k⌉ for each, fewer for the last, and where
///           there are fewer rows than devices the last ones do nothing. Tensors without axes are given to all; so is what is no tensor. Tuples, pairs, vectors, arrays and
///           optionals of tensors are cut one by one.
/// Outputs   joined along their first axis on the first device; numbers are joined to a vector of one for each device that took part: mean(parallel(x)) for a module that
///           gives its loss, where the rows divide evenly.
/// Gradients recorded as everything else: those of the parameters are the sums over the devices, in their order, on the first one.
/// Buffers   the other devices' copies are dropped after a call: running statistics are those of the first device's part, as PyTorch's are.
/// Throws    DeviceUnavailable when it is made and a device is not there; ShapeError for inputs of different lengths; what the module throws.
/// Cost      each call sends each other device the parameters: those of up to a megabyte together in one copy, and so their gradients back.
template <template <class> class Net, device D, device... Ds>
class DataParallel {
 public:
  explicit DataParallel(Net<D> net) : DataParallel(nn::from_members, std::move(net)) {
    AnyDevice const devices[] = {D{}, Ds{}...};
    detail::require_devices("DataParallel", devices, 1 + sizeof...(Ds));
  }
  template <any_module M, class Error = error::the_module_is_not_on_the_first_of_the_devices__move_it_with_to<D, detail::module_device<M>>>
    requires(!std::is_convertible_v<M, Net<D>> && !std::is_same_v<M, DataParallel>)
  explicit DataParallel(M const&) = delete;
  DataParallel(nn::from_members_t, Net<D> net) : module(std::move(net)) { static_assert(detail::all_different<D, Ds...>, "situ::DataParallel: the devices must be different ones"); }

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
