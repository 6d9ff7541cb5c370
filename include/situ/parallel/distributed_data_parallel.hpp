/// Data parallelism over several processes: each has a copy of a module, and computes a part of the batch; gradients are averaged while backward goes on.
///
///     Net<Cpu> net;                                                    // mpirun -n 4 ./train
///     DistributedDataParallel ddp{net};                                // every process has the weights of the first one now
///     optim::SGD optimizer{ddp, {.lr = 0.1f}};
///     for (auto& batch : data::DataLoader{distributed::share(samples), {.batch_size = 64}}) {
///       auto loss = cross_entropy(ddp(batch.x), batch.y);
///       loss.backward();                                               // gradients: the averages over all processes
///       optimizer.step();                                              // the same step everywhere
///     }
///
/// A call runs a copy of the module that shares everything with it but has, in place of each parameter, a result with the same elements, whose gradient is that of this process. These gradients
/// are gathered in buckets, the last parameters first; a full bucket is averaged over the processes while backward goes on with what lies below, and the parameters get theirs when all else is
/// done. The results lie as deep in the graph as their numbers say, so that the gradient of a layer's weights leaves before the layers below it are looked at.
#pragma once

#include <situ/nn/module.hpp>
#include <situ/parallel/collectives.hpp>

#if defined(SITU_WITH_MPI)

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <situ/data/subset.hpp>
#include <situ/parallel/gradient_exchange.hpp>

#endif

namespace situ::inline SITU_ABI {

/// How gradients are averaged.
struct DistributedOptions {
  int64_t bucket_bytes = int64_t{25} << 20;  ///< a bucket is full with so many; the first one with a megabyte, so that it leaves early
  bool broadcast_buffers = true;             ///< whether a call that records begins with the first process's buffers, as running means
};

#if defined(SITU_WITH_MPI)

namespace detail {

/// A Variable of any type.
struct HeldVariable {
  HeldVariable() = default;
  HeldVariable(HeldVariable const&) = delete;
  HeldVariable& operator=(HeldVariable const&) = delete;
  virtual ~HeldVariable() = default;
};
template <class V>
struct HeldOf final : HeldVariable {
  V value;
  explicit HeldOf(V v) : value(std::move(v)) {}
};

/// Makes `to` what `from` is, member by member, and stays where it is: f(to, from) for each parameter; what cannot be assigned is not. Calls f for none of a vector or an
/// optional that has to be made anew.
template <class X, class F>
void renew(X& to, X const& from, F const& f) {
  auto const all = [&] {
    if constexpr (std::is_copy_assignable_v<X>) to = from;
  };
  if constexpr (is_parameter<X>) {
    f(to, from);
  } else if constexpr (any_module<X>) {
    auto const tied = [](auto&... members) { return std::tie(members...); };
    [[maybe_unused]] auto const mine = to.situ_members(tied);
    [[maybe_unused]] auto const theirs = from.situ_members(tied);
    [&]<std::size_t... Ks>(std::index_sequence<Ks...>) {
      [[maybe_unused]] auto const unless_const = [&]<class Y>(Y& into, auto const& other) {
        if constexpr (!std::is_const_v<Y>) renew(into, other, f);
      };
      (unless_const(std::get<Ks>(mine), std::get<Ks>(theirs)), ...);
    }(std::make_index_sequence<std::tuple_size_v<std::remove_const_t<decltype(mine)>>>());
  } else if constexpr (is_optional<X>) {
    if (to && from) renew(*to, *from, f);
    else all();
  } else if constexpr (several<X> && holds_state<X>) {
    if (to.size() != from.size()) return all();
    auto each = from.begin();
    for (auto& mine : to) renew(mine, *each++, f);
  } else {
    all();
  }
}

/// The copy of a module that calls run. It stays where it is: sections that are run again refer to it.
template <class M>
class DistributedReplica {
 public:
  DistributedReplica() = default;
  DistributedReplica(DistributedReplica const&) = delete;
  DistributedReplica& operator=(DistributedReplica const&) = delete;
  ~DistributedReplica() { drop(exchange_); }

  /// The copy, as the module is now.
  M& refresh(M const& net, DistributedOptions const& options, std::shared_ptr<DistributedGroup> const& group) {
    bool const known = copy_ && knows(net);
    if (!known) build(net, options, group);
    if (!copy_) copy_.emplace(net);
    renew(*copy_, net, [](auto&, auto const&) {});
    if (!known) {
      std::size_t k = 0;
      for_each_held(*copy_, [&]<class X>(X& x) {
        if constexpr (is_parameter<X>) x = static_cast<HeldOf<X> const*>(known_[k++].used)->value;
      });
    }
    return *copy_;
  }
  /// What a call has changed in the copy, in the module.
  void bring_back(M& net) {
    std::size_t next = 0;  // where the next one stands, as a rule
    auto const own = [&]<class V>(V const& x) {
      for (std::size_t tried = 0; tried < known_.size(); ++tried) {
        std::size_t const k = (next + tried) % known_.size();
        if (static_cast<void const*>(x.state()) != known_[k].used_state) continue;
        next = k + 1;
        if (known_[k].slot) return static_cast<ExchangeSlot<value_of<V>, device_of<V>> const*>(known_[k].slot)->parameter;
        break;
      }
      return x;
    };
    renew(net, *copy_, [&]<class V>(V& to, V const& from) {
      V const now = own(from);
      if (now.state() != to.state()) to = now;
    });
    for_each_held(net, [&]<class X>(X& x) {  // of what was made anew
      if constexpr (is_parameter<X>) {
        if (x.state()->name == distributed_name) x = own(x);
      }
    });
  }
  mpi::Channels& channels() const { return exchange_->channels(); }

 private:
  /// A parameter where it stands; without a slot it is not trained.
  struct Known {
    void const* state;
    StorageHead const* head;
    GradientSlot* slot;
    HeldVariable* used;  ///< what stands there in the copy
    void const* used_state;
  };

  template <class V>
  static constexpr int number_of_type = []<class... Vs>(Types<Vs...>) {
    int number = 0;
    (void)((std::is_same_v<V, Vs> || (++number, false)) || ...);
    return number;
  }(typename parameter_types_in<Types<>, M>::type{});

  bool knows(M const& net) const {
    std::size_t k = 0;
    bool result = exchange_ != nullptr;
    for_each_held(net, [&]<class X>(X const& x) {
      if constexpr (is_parameter<X>) {
        auto const* const state = x.state();
        bool const same = k < known_.size() && known_[k].state == state && known_[k].head == state->value.storage_head() && (known_[k].slot != nullptr) == state->requires_grad;
        result = result && same && !is_outdated(*static_cast<HeldOf<X> const*>(known_[k].used)->value.state());
        ++k;
      }
    });
    if (!result || k != known_.size()) return false;
    k = 0;
    for_each_held(*copy_, [&]<class X>(X const& x) {  // a call may have put others there
      if constexpr (is_parameter<X>) {
        result = result && k < known_.size() && static_cast<void const*>(x.state()) == known_[k].used_state;
        ++k;
      }
    });
    return result && k == known_.size();
  }
  void build(M const& net, DistributedOptions const& options, std::shared_ptr<DistributedGroup> const& group) {
    for_each_state(net, [](std::string const&, auto const&) {});  // throws where there is none yet
    known_.clear();
    used_.clear();
    drop(std::exchange(exchange_, nullptr));
    exchange_ = new GradientExchange(group);
    int64_t depth = 0;
    for_each_held(net, [&]<class X>(X const& x) {
      if constexpr (is_parameter<X>) {
        Known here{x.state(), x.state()->value.storage_head(), nullptr, nullptr, nullptr};
        for (Known const& earlier : known_) {
          if (earlier.state == here.state) here = earlier;
        }
        if (!here.used) {
          X used = x;
          if (x.requires_grad()) {
            auto slot = std::make_unique<ExchangeSlot<value_of<X>, device_of<X>>>(x);
            slot->type = number_of_type<X>;
            exchange_->add_edge(x.state());
            depth += int64_t{1} << 32;  // more than there are operations between two parameters
            used = noted_view(X::adopt(new UsedParameter<value_of<X>, device_of<X>>(*exchange_, *slot, depth)), x);
            here.slot = slot.get();
            exchange_->slots.push_back(std::move(slot));
          }
          here.used_state = used.state();
          used_.push_back(std::make_unique<HeldOf<X>>(std::move(used)));
          here.used = used_.back().get();
        }
        known_.push_back(here);
      }
    });
    std::reverse(exchange_->slots.begin(), exchange_->slots.end());
    [&]<class... Vs>(Types<Vs...>) {
      cut<Vs...>(options.bucket_bytes);
      (prepare_channel<device_of<Vs>>(exchange_->channels()), ...);
    }(typename parameter_types_in<Types<>, M>::type{});
  }
  /// All processes make it in this call: passes may send what they have to several in any order.
  template <class D>
  static void prepare_channel(mpi::Channels& channels) {
    if constexpr (mpi::is_in_place<D>) mpi::channel_on<D>(mpi::is_cuda<D> ? mpi::process().own : channels);
  }
  /// Parameters of a type follow each other into a bucket until it is full.
  template <class... Vs>
  void cut(int64_t bucket_bytes) {
    constexpr int64_t first_bytes = int64_t{1} << 20;
    std::array<GradientBucket*, sizeof...(Vs)> open{};
    for (auto const& slot : exchange_->slots) {
      ((slot->type == number_of_type<Vs> ? place<Vs>(*slot, open[number_of_type<Vs>], exchange_->buckets.size() <= 1 && first_bytes < bucket_bytes ? first_bytes : bucket_bytes) : void()), ...);
    }
    for (auto const& bucket : exchange_->buckets) bucket->close();
  }
  template <class V>
  void place(GradientSlot& slot, GradientBucket*& open, int64_t room) {
    using T = value_of<V>;
    if (!open || open->elements * static_cast<int64_t>(sizeof(T)) >= room) {
      exchange_->buckets.push_back(std::make_unique<BucketOf<T, device_of<V>>>());
      open = exchange_->buckets.back().get();
    }
    slot.bucket = open;
    slot.offset = open->elements;
    open->elements += static_cast<ExchangeSlot<T, device_of<V>>&>(slot).parameter.size();
    ++open->parameters;
  }

  std::optional<M> copy_;
  std::vector<Known> known_;
  std::vector<std::unique_ptr<HeldVariable>> used_;
  GradientExchange* exchange_ = nullptr;
};
/// That of a handle: copies make one of their own, when they need it, and what is assigned to keeps its own, which finds out what has changed.
template <class M>
class OwnReplica {
 public:
  OwnReplica() = default;
  OwnReplica(OwnReplica const&) noexcept {}
  OwnReplica(OwnReplica&& other) noexcept : replica_(std::move(other.replica_)) {}
  OwnReplica& operator=(OwnReplica const&) noexcept { return *this; }
  OwnReplica& operator=(OwnReplica&& other) noexcept {
    if (other.replica_) std::swap(replica_, other.replica_);
    return *this;
  }
  ~OwnReplica() = default;
  DistributedReplica<M>& get() {
    if (!replica_) replica_ = std::make_unique<DistributedReplica<M>>();
    return *replica_;
  }

 private:
  std::unique_ptr<DistributedReplica<M>> replica_;
};

/// Throws Error on all processes where their modules, or what is asked for, differ.
template <class M>
void check_same_module(M const& net, DistributedOptions const& options) {
  uint64_t hash = 14695981039346656037u;
  int64_t tensors = 0, elements = 0;
  List<void const*> states;
  auto const mix = [&](auto word) { hash = (hash ^ static_cast<uint64_t>(word)) * 1099511628211u; };
  mix(options.bucket_bytes);
  mix(options.broadcast_buffers);
  for_each_state(net, [&]<class X>(std::string const& name, X const& x) {
    ++tensors;
    for (char c : name) mix(static_cast<unsigned char>(c));
    if constexpr (!std::is_same_v<X, nn::Counter>) {
      elements += x.size();
      mix(static_cast<int>(dtype_of<value_of<X>>));
      for (int64_t extent : x.shape()) mix(extent);
    }
    if constexpr (is_parameter<X>) {
      mix(x.requires_grad());
      std::size_t place = 0;
      while (place < states.size() && states[place] != x.state()) ++place;
      mix(place);
      states.push_back(x.state());
    }
  });
  auto const word = static_cast<int64_t>(hash >> 1);
  Tensor<int64_t> extremes{word, -word};
  distributed::all_reduce(extremes, distributed::reduce_op::max);
  if (extremes.item(0) == word && extremes.item(1) == -word) return;
  fail<Error>("DistributedDataParallel: the modules of the processes differ in their options, or in the names, shapes or element types of their parameters and buffers, which are trained, or which are "
              "one; process ",
              distributed::rank(), " has ", tensors, " of ", elements, " elements: make them in the same way");
}

/// Parameters become those of the first process.
template <class M>
void broadcast_parameters(M const& net) {
  for_each_held(net, []<class X>(X const& x) {
    if constexpr (is_parameter<X>) distributed::broadcast(Tensor<value_of<X>, device_of<X>>(x.value()));
  });
}
/// The same of buffers: those of the host in one message, and written only where they differ, since a pending backward may need them.
template <class M>
void broadcast_buffers(M const& net, mpi::Channels& channels) {
  int64_t bytes = 0;
  auto const on_host = [](auto const& f) {
    return [&f]<class X>(X const& held) {
      if constexpr (std::is_same_v<X, nn::Counter>) {
        Tensor<int64_t> count = held.tensor();
        f(count);
      } else if constexpr (!is_parameter<X>) {
        X x = held;
        if constexpr (is_immediate<device_of<X>>) f(x);
      }
    };
  };
  auto const size = [](auto const& x) { return x.size() * static_cast<int64_t>(sizeof(value_of<std::remove_cvref_t<decltype(x)>>)); };
  auto const measure = [&](auto& x) { bytes += size(x); };
  for_each_held(net, on_host(measure));
  if (bytes > 0) {
    Tensor<uint8_t> all = empty<uint8_t>({bytes});
    int64_t at = 0;
    bool const root = mpi::process().rank == 0;
    auto const pack = [&](auto& x) {
      auto const dense = x.contiguous();
      if (size(x) > 0) std::memcpy(all.data() + at, std::as_const(dense).data(), static_cast<std::size_t>(size(x)));
      at += size(x);
    };
    if (root) for_each_held(net, on_host(pack));
    mpi::run_collective<Cpu>(channels, [&] { return mpi::Broadcast<uint8_t>{all.data(), bytes, 0}; });
    at = 0;
    auto const unpack = [&]<class T, class D>(Tensor<T, D>& x) {
      Tensor<T, D> dense = x.contiguous();
      auto const n = static_cast<std::size_t>(size(x));
      bool const same = n == 0 || std::memcmp(all.data() + at, std::as_const(dense).data(), n) == 0;
      if (!same) {
        if (x.is_contiguous()) {
          std::memcpy(mpi::written(x, "broadcast"), all.data() + at, n);
        } else {
          std::memcpy(dense.data(), all.data() + at, n);
          x.assign(dense);
        }
      }
      at += size(x);
    };
    if (!root) for_each_held(net, on_host(unpack));
  }
  for_each_held(net, [&]<class X>(X const& held) {
    if constexpr (!is_parameter<X> && !std::is_same_v<X, nn::Counter>) {
      X x = held;
      if constexpr (!is_immediate<device_of<X>>) {
        mpi::in_place(x, [&]<class T, class D>(Tensor<T, D>& dense) {
          mpi::run_collective<D>(channels, [&] { return mpi::Broadcast<T>{mpi::received(dense, 0), dense.size(), 0}; });
        });
      }
    }
  });
}

}  // namespace detail

/// A module whose gradients are averaged over all processes: DistributedDataParallel ddp{net}, on every process.
///
/// It is a module on net's device, and shares the parameters and buffers of net: optimisers, `train()`, and state files (where names begin with "module.", as PyTorch's do) take it as any other.
/// learning::Trainer trains it in all processes, each with its share of the samples: losses and metrics are averages, by which all decide alike, and the first process shows progress and writes files.
/// Where mpirun has not started the program, or nothing is recorded, a call is net's.
///
/// Making    net's parameters and buffers become those of the first process. All processes make it, with the same options; copies, clone(ddp) and to(ddp, device) send nothing.
/// Inputs    this process's part of a batch. Averages of gradients are those of the whole batch where the loss is a mean and all parts have as many rows: see distributed::share.
/// Gradients of the parameters: averages over all processes, the same bits on all of them. Those that a process's pass does not reach count as zeros there; a pass that reaches no parameter
///           at all leaves the others waiting. Without zero_grad() they are added up, as anywhere; what was added up within no_sync() is averaged with the next ones. What reaches a parameter
///           directly, not through a call, as a penalty on its size, is not averaged. They cannot be differentiated again. Several calls may be made before a backward; one
///           thread makes those that record. Sections that are run again (checkpoint) are the same in all processes.
/// Buffers   those of the first process, before each call that records (DistributedOptions::broadcast_buffers).
/// Files     all processes have the same weights: let one write them.
/// Throws    Error when MPI cannot be started, or the processes' modules differ; GradientError for create_graph; what collectives and the module throw. A module that is lazy must have its
///           parameters.
/// Cost      each parameter's gradient is copied into a bucket, and back; 2 (n - 1) / n times their bytes cross each way for n processes. On the host a thread of its own sends them: leave it a
///           core, and start programs with `mpirun --bind-to none`, as Open MPI binds each process to one core otherwise.
/// Example   mpirun -n 2 --bind-to none ./distributed
template <any_module M>
class DistributedDataParallel {
 public:
  explicit DistributedDataParallel(M net, DistributedOptions const& how = {}) : module(std::move(net)), options(how) {
    if (how.bucket_bytes < 1) detail::fail<ShapeError>("DistributedDataParallel: buckets of ", how.bucket_bytes, " bytes were asked for; at least 1 is needed");
    detail::check_same_module(module, how);
    group_ = std::make_shared<detail::DistributedGroup>();
    if (distributed::world_size() == 1) return;
    detail::broadcast_parameters(module);
    detail::broadcast_buffers(module, detail::mpi::process().own);
  }
  DistributedDataParallel(nn::from_members_t, M net, DistributedOptions const& how, std::shared_ptr<detail::DistributedGroup> const& group)
      : module(std::move(net)), options(how), group_(group) {}

  template <class... Xs>
  auto forward(Xs const&... inputs) const {
    using Output = decltype(module(inputs...));
    if constexpr (has_parameters) {
      if (averages()) return Output(std::as_const(prepared())(inputs...));
    }
    return Output(module(inputs...));
  }
  template <class... Xs>
  auto forward(Xs const&... inputs) {
    using Output = decltype(module(inputs...));
    if constexpr (has_parameters) {
      if (averages()) {
        Output output(prepared()(inputs...));
        replica_.get().bring_back(module);
        return output;
      }
    }
    return Output(module(inputs...));
  }

  /// Within the scope of what this gives, calls of this module and its copies are the module's: gradients are added up in this process, and averaged with those of the next call behind it.
  ///
  ///     { auto const alone = ddp.no_sync();  loss(ddp(first), …).backward(); }
  ///     loss(ddp(second), …).backward();                                           // the averages of both
  auto no_sync() const {
    class [[nodiscard]] NoSync {
     public:
      explicit NoSync(std::shared_ptr<detail::DistributedGroup> group) : group_(std::move(group)) { ++group_->alone; }
      NoSync(NoSync const&) = delete;
      NoSync& operator=(NoSync const&) = delete;
      ~NoSync() { --group_->alone; }

     private:
      std::shared_ptr<detail::DistributedGroup> group_;
    };
    return NoSync(group_);
  }

  /// Makes numbers their averages over all processes.
  void average_over_processes(double* numbers, int64_t count) const {
    Tensor<double> all = empty<double>({count});
    std::copy(numbers, numbers + count, all.data());
    distributed::all_reduce(all, distributed::reduce_op::avg);
    std::copy(all.data(), all.data() + count, numbers);
  }
  bool is_first_process() const { return distributed::rank() == 0; }

  M module;
  DistributedOptions options;

 private:
  std::shared_ptr<detail::DistributedGroup> group_;

 public:
  SITU_MODULE(module, options, group_)

 private:
  static constexpr bool has_parameters = detail::parameter_types_in<detail::Types<>, M>::type::count > 0;
  bool averages() const {
    if (!detail::records_gradients || distributed::world_size() == 1) return false;
    if (group_->alone == 0) return true;
    detail::for_each_held(module, []<class X>(X const& x) {
      if constexpr (detail::is_parameter<X>) {
        if (x.requires_grad() && !x.is_leaf()) {
          detail::fail<GradientError>("DistributedDataParallel: within no_sync a call of a module whose parameters are results, as those of mixed, would leave gradients that are never averaged; call it without no_sync");
        }
      }
    });
    group_->unaveraged = true;
    return false;
  }
  M& prepared() const {
    M& copy = replica_.get().refresh(module, options, group_);
    if (options.broadcast_buffers) detail::broadcast_buffers(module, replica_.get().channels());
    return copy;
  }
  mutable detail::OwnReplica<M> replica_;
};

namespace distributed {

/// The samples of a dataset that are this process's: every n-th one of n processes, as many for each. Those that are left over are made up for by the first ones, as PyTorch's
/// DistributedSampler does; of fewer samples than processes some stand in several shares.
///
/// Order     as in the dataset: a DataLoader shuffles within a share. Where neighbours are alike, give random_split's part or a Subset in random order, the same on all processes.
/// Throws    ShapeError for a dataset without samples.
template <data::dataset X>
auto share(X samples) {
  int64_t const all = static_cast<int64_t>(samples.size()), n = world_size(), each = (all + n - 1) / n;
  if (all == 0) detail::fail<ShapeError>("distributed::share: the dataset has no samples");
  std::vector<int64_t> indices;
  for (int64_t k = 0; k < each; ++k) indices.push_back((rank() + k * n) % all);
  return data::Subset<X>(std::move(samples), std::move(indices));
}

}  // namespace distributed

#else

inline namespace SITU_ABI_MPI {
template <any_module M>
class DistributedDataParallel {
 public:
  template <class Error = error::several_processes_need_MPI__define_SITU_WITH_MPI_and_link_an_MPI_library>
  explicit DistributedDataParallel(M, DistributedOptions const& = {}) = delete;
};
}  // namespace SITU_ABI_MPI

namespace distributed {
inline namespace SITU_ABI_MPI {
template <class... Xs, class Error = error::several_processes_need_MPI__define_SITU_WITH_MPI_and_link_an_MPI_library>
void share(Xs&&...) = delete;
}  // namespace SITU_ABI_MPI
}  // namespace distributed

#endif

}  // namespace situ::inline SITU_ABI
