/// What gradients of several processes are averaged by, in a backward pass: parameters' places in buckets, and the nodes that fill, send and empty them.
#pragma once

#include <situ/parallel/collectives.hpp>

#if defined(SITU_WITH_MPI)

#include <memory>
#include <utility>
#include <vector>

#include <situ/autograd/state.hpp>

namespace situ::inline SITU_ABI {
namespace detail {

/// What copies of a DistributedDataParallel share.
struct DistributedGroup {
  int alone = 0;            ///< how many no_sync() live, on the thread that trains
  bool unaveraged = false;  ///< whether there are gradients from within one
  int number = __atomic_add_fetch(&mpi::process().groups, 1, __ATOMIC_RELAXED);
  static constexpr int most = 64;
  std::unique_ptr<mpi::Channels> channels[most];
  uint64_t free = ~uint64_t{0};  ///< those that no exchange has
};
/// Channels of one exchange while it lives: the first ones that are free in all processes, which take them in the same call.
class ExchangeChannels {
 public:
  explicit ExchangeChannels(std::shared_ptr<DistributedGroup> group) : group_(std::move(group)) {
    mpi::Channel& host = mpi::channel_on<Cpu>(mpi::process().own);
    uint64_t free = group_->free;
    mpi::drain(host);
    mpi::check("DistributedDataParallel", MPI_Allreduce(MPI_IN_PLACE, &free, 1, MPI_UINT64_T, MPI_BAND, host.comm));
    if (free == 0) fail<Error>("DistributedDataParallel: ", DistributedGroup::most, " copies of one module have recorded at the same time; make further ones of clones of the module inside");
    number_ = __builtin_ctzll(free);
    std::unique_ptr<mpi::Channels>& mine = group_->channels[number_];
    if (!mine) mine = std::make_unique<mpi::Channels>(4096 * (1 + (group_->number + number_) % 7));
    group_->free &= ~(uint64_t{1} << number_);
  }
  ExchangeChannels(ExchangeChannels const&) = delete;
  ExchangeChannels& operator=(ExchangeChannels const&) = delete;
  ~ExchangeChannels() { group_->free |= uint64_t{1} << number_; }
  mpi::Channels& get() const { return *group_->channels[number_]; }
  DistributedGroup& group() const { return *group_; }

 private:
  std::shared_ptr<DistributedGroup> group_;
  int number_ = 0;
};

/// The name of the nodes.
inline constexpr char distributed_name[] = "DistributedDataParallel";

class GradientExchange;

/// Gradients of parameters of one type that travel together, and behind them what the parameters had, if that is to be averaged, too.
struct GradientBucket {
  int64_t elements = 0;
  std::size_t parameters = 0, missing = 0;
  bool sent = false;
  distributed::Work work;
  GradientBucket() = default;
  GradientBucket(GradientBucket const&) = delete;
  GradientBucket& operator=(GradientBucket const&) = delete;
  virtual ~GradientBucket() = default;
  virtual void send(mpi::Channels& channels) = 0;
  virtual void close() noexcept = 0;
};
template <class T, class D>
struct BucketOf final : GradientBucket {
  Tensor<T, D> flat;
  void send(mpi::Channels& channels) override { work = mpi::begin_all_reduce(channels, flat, distributed::reduce_op::sum); }
  void close() noexcept override {
    work = {};
    flat = {};
    sent = false;
    missing = parameters;
  }
};

/// A parameter's place in a bucket.
struct GradientSlot {
  GradientBucket* bucket = nullptr;
  int64_t offset = 0;
  int type = 0;      ///< of the parameter, among those of the module
  bool has = false;  ///< what this process adds
  GradientSlot() = default;
  GradientSlot(GradientSlot const&) = delete;
  GradientSlot& operator=(GradientSlot const&) = delete;
  virtual ~GradientSlot() = default;
  /// Nothing came. `carries`: what was added up without averaging goes with it.
  virtual void put_nothing(bool carries) = 0;
  virtual void deliver(Flow& flow, bool carries) = 0;
};
template <class T, class D>
struct ExchangeSlot final : GradientSlot {
  Variable<T, D> parameter;
  explicit ExchangeSlot(Variable<T, D> const& v) : parameter(v) {}

  /// A share of the gradient that has arrived, on top of what arrived before.
  void put(Tensor<T, D> const& gradient, bool carries) {
    Tensor<T, D> to = part(carries, false);
    if (has) to += gradient * share();
    else to.assign(gradient * share());
    if (!has && carries) put_former();
    has = true;
  }
  void put_nothing(bool carries) override {
    part(carries, false).assign(0);
    if (carries) put_former();
  }
  void deliver(Flow& flow, bool carries) override {
    State<T, D>& state = *parameter.state();
    Into<T, D> const into(flow, &state);
    if (into.needed()) {
      if (carries) {
        if (!state.has_grad) state.grad = zeros<T>(state.shape, D{}), state.has_grad = true;
        if (StorageHead* const head = state.grad.body() ? state.grad.storage().head() : nullptr) head->note_write("DistributedDataParallel");
        state.grad.assign(part(carries, true));
      }
      into.add(part(carries, false).clone());  // of its own: the bucket is not kept for it
    }
    has = false;
  }

 private:
  static double share() { return 1.0 / mpi::process().size; }
  void put_former() {
    State<T, D> const& state = *parameter.state();
    Tensor<T, D> to = part(true, true);
    if (state.has_grad) to.assign(state.grad * share());
    else to.assign(0);
  }
  Tensor<T, D> part(bool carries, bool former) {
    auto& own = static_cast<BucketOf<T, D>&>(*bucket);
    if (!own.flat.body()) own.flat = Tensor<T, D>::uninitialized({own.elements * (carries ? 2 : 1)}, "DistributedDataParallel");
    int64_t const first = offset + (former ? own.elements : 0);
    return own.flat.slice(0, first, first + parameter.size()).view(parameter.shape());
  }
};

/// The exchanges that a thread's passes have reached and not ended.
SITU_PROCESS_STATE constinit thread_local GradientExchange* exchanges_under_way = nullptr;

/// Where the averages come back: above the parameters, and below all else. Processes send all buckets in one order, whatever parameters each of them has used.
class GradientExchange final : public Node {
 public:
  std::vector<std::unique_ptr<GradientSlot>> slots;  ///< the last parameter first
  std::vector<std::unique_ptr<GradientBucket>> buckets;

  explicit GradientExchange(std::shared_ptr<DistributedGroup> group) : channels_(std::move(group)) {
    name = distributed_name;
    requires_grad = true;
    saves_nothing = true;
  }
  ~GradientExchange() override {
    forget();
    drop_inputs(*this);
  }
  void add_edge(Node* parameter) {
    edges_.push_back(parameter);
    count_up(parameter->references);
    inputs = edges_.data();
    input_count = static_cast<int>(edges_.size());
    if (parameter->depth >= depth) depth = parameter->depth + 1;  // of leaves 1
  }

  template <class T, class D>
  void arrived(ExchangeSlot<T, D>& slot, Tensor<T, D> const& gradient, Flow& flow) {
    flow.arrived(this);
    if (!flow_) {
      flow_ = &flow;
      carries_ = channels_.group().unaveraged && !flow.for_targets();
      next_ = std::exchange(exchanges_under_way, this);
    }
    if (slot.bucket->sent) end_round(flow);  // a section that is run again has added to it once more
    if (!slot.has) --slot.bucket->missing;
    slot.put(gradient, carries_);
    for (; sent_ < buckets.size() && buckets[sent_]->missing == 0; ++sent_) send(*buckets[sent_]);
  }
  void backward(Flow& flow) override {
    for (GradientExchange* each = exchanges_under_way; each; each = each->next_) {
      if (each->flow_ == flow_) each->send_rest();  // before this one waits for processes that wait for that
    }
    end_round(flow);
  }
  void forget() noexcept override {
    for (auto const& bucket : buckets) bucket->close();
    for (auto const& slot : slots) slot->has = false;
    sent_ = 0;
    for (GradientExchange** at = &exchanges_under_way; flow_ && *at; at = &(*at)->next_) {
      if (*at == this) {
        *at = next_;
        break;
      }
    }
    flow_ = nullptr;
  }
  mpi::Channels& channels() const { return channels_.get(); }
  void call_hooks() override {}
  void capture() override {}
  void release() noexcept override {}

 private:
  void send(GradientBucket& bucket) {
    bucket.sent = true;
    bucket.send(channels_.get());
  }
  void send_rest() {
    for (auto const& slot : slots) {
      if (!slot->has && !slot->bucket->sent) slot->put_nothing(carries_);
    }
    for (; sent_ < buckets.size(); ++sent_) send(*buckets[sent_]);
  }
  void end_round(Flow& flow) {
    send_rest();
    for (auto const& bucket : buckets) bucket->work.wait();
    for (auto const& slot : slots) slot->deliver(flow, carries_);
    for (auto const& bucket : buckets) bucket->close();
    sent_ = 0;
    if (carries_) carries_ = channels_.group().unaveraged = false;
  }

  ExchangeChannels channels_;
  std::vector<Node*> edges_;
  std::size_t sent_ = 0;  ///< buckets
  Flow const* flow_ = nullptr;  ///< the pass that has reached it
  bool carries_ = false;        ///< whether what was added up without averaging is averaged in it
  GradientExchange* next_ = nullptr;
};

/// A parameter as a call uses it.
template <class T, class D>
struct UsedParameter final : State<T, D> {
  Node* edge[1];
  ExchangeSlot<T, D>& slot;  ///< the exchange's
  UsedParameter(GradientExchange& all, ExchangeSlot<T, D>& place, int64_t least) : State<T, D>(distributed_name, Tensor<T, D>(place.parameter.value()), edge, 1), slot(place) {
    connect_input(*this, 0, &all);
    if (this->depth < least) this->depth = least;
    this->saves_nothing = true;
  }
  ~UsedParameter() override { drop_inputs(*this); }
  void backward(Flow& flow) override {
    if (flow.creates_graph()) fail<GradientError>("DistributedDataParallel: gradients of several processes cannot be differentiated again; take create_graph of the module itself");
    this->keep_retained(flow);
    if (flow.wants(edge[0])) static_cast<GradientExchange&>(*edge[0]).arrived(slot, this->incoming, flow);
  }
};

}  // namespace detail
}  // namespace situ::inline SITU_ABI

#endif
