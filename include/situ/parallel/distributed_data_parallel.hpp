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
/// A call gives the module, in place of each parameter, a result with the same elements, whose gradient is that of this process. Those gradients are gathered in buckets, the last
/// parameters first; a full bucket is averaged over the processes while backward goes on with what lies below, and the parameters get theirs when all else is done. These results lie as deep
/// in the graph as their numbers say, so that the gradient of a layer's weights leaves before the layers below it are looked at.
#pragma once

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include <situ/autograd/state.hpp>
#include <situ/data/subset.hpp>
#include <situ/nn/module.hpp>
#include <situ/parallel/collectives.hpp>

namespace situ::inline SITU_ABI {

/// How gradients are averaged.
struct DistributedOptions {
  int64_t bucket_bytes = int64_t{25} << 20;  ///< a bucket is full with so many; the first one with a megabyte, so that it leaves early
  bool broadcast_buffers = true;             ///< whether a call that records begins with the first process's buffers, as running means
};

#if defined(SITU_WITH_MPI)

namespace detail {
inline namespace SITU_ABI_MPI {
inline namespace SITU_ABI_NCCL {
inline namespace SITU_ABI_CUDA {

/// The gradients of one call's parameters of a type, on their way. Numbers count from the last parameter.
template <class T, class D>
class ReducedGradients {
 public:
  std::vector<Variable<T, D>> leaves;

  void cut(int64_t bucket_bytes) {
    int64_t room = bucket_bytes < first_bytes ? bucket_bytes : first_bytes, bytes = 0;
    for (std::size_t k = 0; k < leaves.size(); ++k) {
      if (buckets_.empty() || bytes >= room) {
        if (!buckets_.empty()) room = bucket_bytes;
        buckets_.emplace_back();
        buckets_.back().first = k;
        bytes = 0;
      }
      Bucket& bucket = buckets_.back();
      places_.push_back({buckets_.size() - 1, bucket.elements});
      bucket.elements += leaves[k].size();
      bucket.last = k + 1;
      bytes += leaves[k].size() * static_cast<int64_t>(sizeof(T));
    }
    reset();
  }
  /// What parameter k got in this process. With `adds` it goes on top of what it has, which is averaged, too: what was added up without averaging.
  void arrived(std::size_t k, Tensor<T, D> const& gradient, bool adds) {
    Bucket& bucket = buckets_[places_[k].bucket];
    put(bucket, k, &gradient, adds);
    has_[k] = true;
    --bucket.missing;
    while (next_ < buckets_.size() && buckets_[next_].missing == 0) start(buckets_[next_++], adds);
  }
  /// Sends off what is left, waits for all, and calls take(k, gradient) for each.
  template <class F>
  void finish(bool adds, F const& take) {
    while (next_ < buckets_.size()) start(buckets_[next_++], adds);
    for (Bucket& bucket : buckets_) {
      bucket.work.wait();
      for (std::size_t k = bucket.first; k < bucket.last; ++k) take(k, part_of(k));
      bucket.flat = {};
    }
  }
  /// As before a pass.
  void reset() noexcept {
    next_ = 0;
    has_.assign(leaves.size(), false);
    for (Bucket& bucket : buckets_) {
      bucket.work = {};
      bucket.flat = {};
      bucket.missing = bucket.last - bucket.first;
    }
  }

 private:
  static constexpr int64_t first_bytes = int64_t{1} << 20;
  struct Bucket {
    std::size_t first = 0, last = 0, missing = 0;
    int64_t elements = 0;
    Tensor<T, D> flat;
    distributed::Work work;
  };
  struct PlaceOf {
    std::size_t bucket;
    int64_t offset;
  };

  Tensor<T, D> part_of(std::size_t k) const {
    PlaceOf const& place = places_[k];
    return buckets_[place.bucket].flat.slice(0, place.offset, place.offset + leaves[k].size()).view(leaves[k].shape());
  }
  void put(Bucket& bucket, std::size_t k, Tensor<T, D> const* gradient, bool adds) {
    if (!bucket.flat.body()) bucket.flat = Tensor<T, D>::uninitialized({bucket.elements}, "DistributedDataParallel");
    double const share = 1.0 / distributed::world_size();
    State<T, D>& leaf = *leaves[k].state();
    Tensor<T, D> part = part_of(k);
    if (adds && leaf.has_grad) {
      if (gradient) part.assign((leaf.grad + *gradient) * share);
      else part.assign(leaf.grad * share);
      leaf.grad = {};
      leaf.has_grad = false;
    } else if (gradient) {
      part.assign(*gradient * share);
    } else {
      part.assign(0);
    }
  }
  /// All processes start all buckets in their order, whatever parameters each of them used.
  void start(Bucket& bucket, bool adds) {
    for (std::size_t k = bucket.first; bucket.missing > 0 && k < bucket.last; ++k) {
      if (!has_[k]) put(bucket, k, nullptr, adds);
    }
    bucket.work = distributed::all_reduce_async(bucket.flat);
  }

  std::vector<Bucket> buckets_;
  std::vector<PlaceOf> places_;
  std::vector<bool> has_;
  std::size_t next_ = 0;  ///< the bucket that is started next
};

/// Where the averages come back: above the parameters, and below all else.
template <class T, class D>
struct AveragedGradients final : State<T, D> {
  std::vector<Node*> edges;
  ReducedGradients<T, D> gradients;
  explicit AveragedGradients(std::vector<Variable<T, D>> parameters, int64_t bucket_bytes) : State<T, D>(Tensor<T, D>()), edges(parameters.size()) {
    this->name = "DistributedDataParallel";
    this->requires_grad = true;
    this->saves_nothing = true;
    this->inputs = edges.data();
    this->input_count = static_cast<int>(edges.size());
    for (std::size_t k = 0; k < edges.size(); ++k) {
      edges[k] = parameters[k].state();
      count_up(edges[k]->references);
      if (edges[k]->depth >= this->depth) this->depth = edges[k]->depth + 1;  // of leaves 1
    }
    gradients.leaves = std::move(parameters);
    gradients.cut(bucket_bytes);
  }
  ~AveragedGradients() override { drop_inputs(*this); }
  void backward(Flow& flow) override {
    gradients.finish(!flow.for_targets(), [&](std::size_t k, Tensor<T, D> const& gradient) { Into<T, D>(flow, edges[k]).add(gradient); });
  }
  void forget() noexcept override {
    State<T, D>::forget();
    gradients.reset();
  }
};

/// A parameter as a call uses it.
template <class T, class D>
struct UsedParameter final : State<T, D> {
  Node* edge[1];
  std::size_t number;
  UsedParameter(AveragedGradients<T, D>& all, std::size_t k, int64_t depth)
      : State<T, D>("DistributedDataParallel", Tensor<T, D>(all.gradients.leaves[k].value()), edge, 1), number(k) {
    connect_input(*this, 0, &all);
    if (this->depth < depth) this->depth = depth;
    this->saves_nothing = true;
  }
  ~UsedParameter() override { drop_inputs(*this); }
  void backward(Flow& flow) override {
    if (flow.creates_graph()) fail<GradientError>("DistributedDataParallel: gradients of several processes cannot be differentiated again; take create_graph of the module itself");
    this->keep_retained(flow);
    if (!flow.wants(edge[0])) return;
    auto& all = static_cast<AveragedGradients<T, D>&>(*edge[0]);
    all.gradients.arrived(number, this->incoming, !flow.for_targets());
    flow.arrived(&all);
  }
};

/// Within a scope a module's parameters are what UsedParameter makes of them.
template <class M>
class UsedParameters {
 public:
  UsedParameters(M& net, DistributedOptions const& options) : net_(net) {
    int64_t depth = 0;
    [&]<class... Vs>(Types<Vs...>) { (replace<Vs>(options, depth), ...); }(typename parameter_types_in<Types<>, std::remove_const_t<M>>::type{});
  }
  UsedParameters(UsedParameters const&) = delete;
  UsedParameters& operator=(UsedParameters const&) = delete;
  ~UsedParameters() { restore(); }

 private:
  template <class V>
  struct Pair {
    V leaf, used;
  };
  template <class>
  struct Pairs;
  template <class... Vs>
  struct Pairs<Types<Vs...>> {
    std::tuple<std::vector<Pair<Vs>>...> of;
  };

  template <class V>
  void replace(DistributedOptions const& options, int64_t& depth) {
    using T = value_of<V>;
    using D = device_of<V>;
    std::vector<V> trained;
    for (V const& each : parameters_of<V>(net_)) {
      if (each.requires_grad()) trained.push_back(each);
    }
    if (trained.empty()) return;
    std::reverse(trained.begin(), trained.end());
    auto* const all = new AveragedGradients<T, D>(trained, options.bucket_bytes);
    Variable<T, D> const held = Variable<T, D>::adopt(all);
    auto& pairs = std::get<std::vector<Pair<V>>>(pairs_.of);
    for (std::size_t k = trained.size(); k-- > 0;) {
      depth += int64_t{1} << 32;  // more than there are operations between two parameters
      pairs.push_back({trained[k], noted_view(V::adopt(new UsedParameter<T, D>(*all, k, depth)), trained[k])});
    }
    exchange<V>(&Pair<V>::leaf, &Pair<V>::used);
  }
  void restore() noexcept {
    [&]<class... Vs>(Types<Vs...>) { (exchange<Vs>(&Pair<Vs>::used, &Pair<Vs>::leaf), ...); }(typename parameter_types_in<Types<>, std::remove_const_t<M>>::type{});
  }
  /// Puts the one of each pair in the other's place. They are met in the order of the pairs, but for those that stand in several places.
  template <class V>
  void exchange(V Pair<V>::*from, V Pair<V>::*to) {
    auto const& pairs = std::get<std::vector<Pair<V>>>(pairs_.of);
    std::size_t next = 0;
    for_each_held(net_, [&]<class X>(X& x) {
      if constexpr (std::is_same_v<X, V>) {
        for (std::size_t tried = 0; tried < pairs.size(); ++tried) {
          Pair<V> const& pair = pairs[(next + tried) % pairs.size()];
          if ((pair.*from).state() != x.state()) continue;
          x = pair.*to;
          next += tried + 1;
          break;
        }
      }
    });
  }

  M& net_;
  Pairs<typename parameter_types_in<Types<>, std::remove_const_t<M>>::type> pairs_;
};

/// Throws Error on all processes where their modules differ.
template <class M>
void check_same_module(M const& net) {
  uint64_t hash = 14695981039346656037u;
  int64_t tensors = 0, elements = 0;
  auto const mix = [&](uint64_t word) { hash = (hash ^ word) * 1099511628211u; };
  for_each_state(net, [&]<class X>(std::string const& name, X const& x) {
    ++tensors;
    for (char c : name) mix(static_cast<unsigned char>(c));
    if constexpr (!std::is_same_v<X, nn::Counter>) {
      elements += x.size();
      mix(static_cast<uint64_t>(dtype_of<value_of<X>>));
      for (int64_t extent : x.shape()) mix(static_cast<uint64_t>(extent));
    }
  });
  auto const word = static_cast<int64_t>(hash >> 1);
  Tensor<int64_t> extremes{word, -word};
  distributed::all_reduce(extremes, distributed::reduce_op::max);
  if (extremes.item(0) == word && extremes.item(1) == -word) return;
  fail<Error>("DistributedDataParallel: the modules of the processes differ in the names, shapes or element types of their parameters and buffers; process ", distributed::rank(), " has ", tensors,
              " of ", elements, " elements: make them in the same way");
}
/// Parameters (and) buffers become those of the first process.
template <bool Parameters, class M>
void broadcast_state(M& net) {
  for_each_held(net, []<class X>(X& x) {
    if constexpr (is_parameter<X>) {
      if constexpr (Parameters) distributed::broadcast(Tensor<value_of<X>, device_of<X>>(x.value()));
    } else if constexpr (std::is_same_v<X, nn::Counter>) {
      distributed::broadcast(Tensor<int64_t>(x.tensor()));
    } else {
      distributed::broadcast(x);
    }
  });
}

template <class M, class... Xs>
auto run_distributed(M& net, DistributedOptions const& options, Xs const&... inputs) {
  if (options.broadcast_buffers) broadcast_state<false>(net);
  UsedParameters<M> const used(net, options);
  return net(inputs...);
}

}  // namespace SITU_ABI_CUDA
}  // namespace SITU_ABI_NCCL
}  // namespace SITU_ABI_MPI
}  // namespace detail

/// A module whose gradients are averaged over all processes: DistributedDataParallel ddp{net}, on every process.
///
/// It is a module on net's device, and shares the parameters and buffers of net: optimisers, `train()`, state files (where names begin with "module.", as PyTorch's do) and
/// learning::Trainer take it as any other. Where mpirun has not started the program, or nothing is recorded, it is net.
///
/// Making    net's parameters and buffers become those of the first process. All processes make it, as they do to(ddp, device).
/// Inputs    this process's part of a batch. Averages of gradients are those of the whole batch where the loss is a mean and all parts have as many rows: see distributed::share.
/// Gradients of the parameters: averages over all processes, the same bits on all of them. Those that a process's call did not use count as zeros there. Without zero_grad() they are added up, as
///           anywhere; what was added up within no_sync() is averaged with the next ones. What reaches a parameter directly, not through a call, as a penalty on its size, is not averaged.
///           They cannot be differentiated again.
/// Buffers   those of the first process, before each call that records (DistributedOptions::broadcast_buffers).
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
    detail::check_same_module(module);
    if (distributed::world_size() > 1) detail::broadcast_state<true>(module);
  }
  DistributedDataParallel(nn::from_members_t, M net) : DistributedDataParallel(std::move(net)) {}

  template <class... Xs>
  auto forward(Xs const&... inputs) const {
    using Output = decltype(module(inputs...));
    if (!syncs_ || !detail::records_gradients || distributed::world_size() == 1) return module(inputs...);
    return Output(detail::run_distributed(module, options, inputs...));
  }

  /// Within the scope of what this gives, calls are those of the module: gradients are added up in this process, and averaged with those of the next call behind it.
  ///
  ///     { auto const alone = ddp.no_sync();  loss(ddp(first), …).backward(); }
  ///     loss(ddp(second), …).backward();                                           // the averages of both
  auto no_sync() {
    class [[nodiscard]] NoSync {
     public:
      explicit NoSync(bool& syncs) : syncs_(syncs), before_(std::exchange(syncs, false)) {}
      NoSync(NoSync const&) = delete;
      NoSync& operator=(NoSync const&) = delete;
      ~NoSync() { syncs_ = before_; }

     private:
      bool& syncs_;
      bool before_;
    };
    return NoSync(syncs_);
  }

  mutable M module;  ///< a call that records puts other Variables in the place of its parameters until it returns
  DistributedOptions options;
  SITU_MODULE(module)

 private:
  bool syncs_ = true;
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
