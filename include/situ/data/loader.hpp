/// DataLoader: a dataset in batches, on a device.
///
///     data::DataLoader loader{dataset, {.batch_size = 64, .shuffle = true, .workers = 2}, Cuda<0>{}};
///     for (auto [x, y] : loader) step(x, y);     // Tensor<float, Cuda<0>>, Tensor<int64_t, Cuda<0>>
#pragma once

#include <exception>

#include <situ/data/dataset.hpp>
#include <situ/data/detail/collate.hpp>
#include <situ/data/detail/pipeline.hpp>
#include <situ/tensor/transfer_async.hpp>

namespace situ::inline SITU_ABI {
namespace data {

struct LoaderOptions {
  int64_t batch_size = 1;
  bool shuffle = false;                               ///< a new order each epoch
  uint64_t seed = detail::default_generator().seed(); ///< what the orders, and what is random about samples, are drawn from
  bool drop_last = false;                             ///< leaves out what does not fill the last batch
  int workers = 0;                                    ///< threads that make batches; 0: they are made when they are asked for
  int prefetch = 0;                                   ///< batches that are made ahead; 0: two for each worker, more while they are small, and one for a device
  bool pin = true;                                    ///< batches for a device are put together in page-locked memory, from which it copies by itself
};

}  // namespace data

namespace detail {

template <class List, class D>
struct fields_batch;
template <class T, class D>
struct fields_batch<FieldTypes<T>, D> {
  using type = Tensor<T, D>;
};
template <class T, class U, class... Ts, class D>
struct fields_batch<FieldTypes<T, U, Ts...>, D> {
  using type = std::tuple<Tensor<T, D>, Tensor<U, D>, Tensor<Ts, D>...>;
};

/// The slots of a loader, and how a batch is made in one.
template <class X, class D, class List>
class LoaderCore;
template <class X, class D, class... Ts>
class LoaderCore<X, D, FieldTypes<Ts...>> final : public BatchPipeline {
 public:
  using Batch = typename fields_batch<FieldTypes<Ts...>, D>::type;

  [[gnu::cold]] LoaderCore(X&& dataset, PipelinePlan const& plan, bool pin) : BatchPipeline(plan), dataset_(std::move(dataset)), slots_(new Slot[static_cast<std::size_t>(slot_count())]) {
    int64_t const most = plan.samples < plan.batch_size ? plan.samples : plan.batch_size;
    for (int k = 0; k < slot_count(); ++k) with_fields(slots_[k], [&](auto&... fields) { (fields.prepare(most, pin), ...); });
  }
  [[gnu::cold]] ~LoaderCore() override {
    stop();
    delete[] slots_;
  }

  X const& dataset() const { return dataset_; }
  /// The batch of a slot; throws what went wrong with it.
  Batch take(int k) {
    if (SITU_UNLIKELY(static_cast<bool>(slots_[k].failure))) rethrow(slots_[k].failure);
    return std::exchange(slots_[k].batch, Batch());
  }

  Tensor<int64_t> epoch = whole_number(0), position = whole_number(0), seed = whole_number(static_cast<int64_t>(plan().seed));

 private:
  struct Slot {
    std::tuple<StagedField<Ts, D>...> fields;
    Batch batch;
    std::exception_ptr failure;
  };
  struct no_stream {};

  [[gnu::cold]] Start start() const override { return {static_cast<uint64_t>(*std::as_const(seed).data()), *std::as_const(epoch).data(), *std::as_const(position).data()}; }
  [[gnu::cold]] void has_ended(int64_t epoch_of_loop) noexcept override {
    for (int k = 0; k < slot_count(); ++k) {
      slots_[k].batch = Batch();
      slots_[k].failure = nullptr;
    }
    if (*std::as_const(epoch).data() != epoch_of_loop) return;  // another one was set in the meantime, for the next loop
    epoch.data()[0] = epoch_of_loop + 1;
    position.data()[0] = 0;
  }

  [[noreturn, gnu::cold]] static SITU_NOINLINE void rethrow(std::exception_ptr& failure) { std::rethrow_exception(std::exchange(failure, nullptr)); }
  template <class F>
  static void with_fields(Slot& slot, F const& f) {
    [&]<std::size_t... Ks>(std::index_sequence<Ks...>) { f(std::get<Ks>(slot.fields)...); }(std::index_sequence_for<Ts...>{});
  }
  static Tensor<int64_t> whole_number(int64_t value) {
    auto result = Tensor<int64_t>::uninitialized({});
    result.data()[0] = value;
    return result;
  }

  int64_t make(int k, std::span<int64_t const> indices, int64_t epoch_of_batch) noexcept override {
    Slot& slot = slots_[k];
    int64_t bytes = 0;
    try {
      with_fields(slot, [&](auto&... fields) {
        (fields.begin(static_cast<int64_t>(indices.size())), ...);
        collate<X, Ts...>(dataset_, indices, SampleKey{plan().seed, epoch_of_batch}, fields...);
        ((bytes += fields.bytes()), ...);
        if constexpr (asynchronous<D>) {
          StreamGuard const guard(stream_);
          slot.batch = Batch(fields.take()...);
        } else {
          slot.batch = Batch(fields.take()...);
        }
      });
    } catch (...) {
      slot.failure = std::current_exception();
    }
    return bytes;
  }

  X dataset_;
  [[maybe_unused]] std::conditional_t<asynchronous<D>, Stream<D>, no_stream> stream_;
  Slot* slots_;  ///< slot_count() of them
};

[[gnu::cold]] inline PipelinePlan plan_of(data::LoaderOptions const& options, int64_t samples, bool is_asynchronous) {
  auto const check = [](char const* what, int64_t value, int64_t least) {
    if (value < least) fail_with<ShapeError>({"DataLoader: ", what, " is ", value, "; ", least, " or more is needed"});
  };
  check("batch_size", options.batch_size, 1);
  check("workers", options.workers, 0);
  check("prefetch", options.prefetch, 0);
  if (samples < 0) fail_with<ShapeError>({"DataLoader: the dataset's size() is ", samples, "; 0 or more is needed"});
  PipelinePlan plan{samples, options.batch_size, options.shuffle, options.drop_last, options.seed, options.workers, 0, 0};
  if (options.prefetch > 0) plan.ahead = plan.most_ahead = options.workers > 0 || is_asynchronous ? options.prefetch : 0;
  else if (options.workers == 0) plan.ahead = plan.most_ahead = is_asynchronous ? 1 : 0;
  else plan.ahead = options.workers < (1 << 20) ? 2 * options.workers : 1 << 21, plan.most_ahead = plan.ahead < 16 ? 16 : plan.ahead;
  int64_t batches = samples / plan.batch_size + 1;  // more than these are never ahead
  if (batches > 1 << 16) batches = 1 << 16;
  if (batches < plan.most_ahead) plan.most_ahead = static_cast<int>(batches);
  if (batches < plan.ahead) plan.ahead = static_cast<int>(batches);
  return plan;
}

}  // namespace detail

namespace data {

/// A dataset in batches: a range of tensors on device D, as many as a sample has fields; a tuple of them where there are several.
///
/// Shape     batch k has shape [batch_size, S...] for fields of shape S; the last one is smaller, or left out, where the sizes do not fit.
/// Order     with `shuffle` a new permutation each epoch, by Philox from (seed, epoch). Batches and their order are the same for every number
///           of workers and every device. Each loop is one epoch; one that is left early ends it.
/// Device    batches are made on the host, by `workers` threads or when they are asked for, and copied to a device on a stream of the loader's own,
///           from page-locked buffers that are used again: while a batch is computed with, the next one is copied. Whoever uses a batch
///           on another stream is ordered behind the copy without being asked.
/// Memory    on the host a batch's storage is used again when all of its handles are gone; who keeps a batch keeps it unchanged.
/// Throws    ShapeError for options that make no sense; Error when a second loop begins while one is running. From `++`, in the place of a batch, what
///           the dataset threw in making it: an Error of situ's with "sample 17: " before its message and its type unchanged, another exception nested
///           in such an Error.
/// State     epoch(), position() and seed(), also as for_each_state visits them; set between loops. A state saved in a loop's body goes on with the
///           next batch.
template <class X, device D = Cpu>
class DataLoader {
 public:
  template <class Error = typename decltype(detail::dataset_error<X>())::type>
  DataLoader(X const&, LoaderOptions const& = {}, D = {}) = delete;
};

template <dataset X, device D>
class DataLoader<X, D> {
  using Core = detail::LoaderCore<X, D, typename detail::field_types_of<detail::sample_of<X>>::type>;

 public:
  using device_type = D;
  using dataset_type = X;
  /// What a loop gives: a Tensor, or a std::tuple of Tensors.
  using value_type = typename Core::Batch;

  explicit DataLoader(X dataset, LoaderOptions const& options = {}, D = {}) {
    auto const samples = static_cast<int64_t>(dataset.size());
    core_ = new Core(std::move(dataset), detail::plan_of(options, samples, detail::asynchronous<D>), options.pin);
  }
  DataLoader(DataLoader&& other) noexcept : core_(std::exchange(other.core_, nullptr)) {}
  DataLoader& operator=(DataLoader&& other) noexcept {
    std::swap(core_, other.core_);
    return *this;
  }
  ~DataLoader() { delete core_; }

  /// Batches in an epoch.
  int64_t size() const { return core_->batches(); }
  int64_t batch_size() const { return core_->plan().batch_size; }
  X const& dataset() const { return core_->dataset(); }
  D device() const { return {}; }

  // ---- where it is ----------------------------------------------------------------------------------------------

  /// Of this loop, or of the next one where none is running.
  int64_t epoch() const { return *std::as_const(core_->epoch).data(); }
  /// How many batches of the epoch have been given; 0 between loops.
  int64_t position() const { return *std::as_const(core_->position).data(); }
  uint64_t seed() const { return static_cast<uint64_t>(*std::as_const(core_->seed).data()); }
  /// The epoch of the next loop, and the batch that it begins with. A loop that is running goes on as it is.
  void set_epoch(int64_t epoch, int64_t position = 0) {
    if (epoch < 0 || position < 0) detail::fail<IndexError>("DataLoader: epoch ", epoch, ", position ", position, " was asked for; both count from 0");
    core_->epoch.data()[0] = epoch;
    core_->position.data()[0] = position;
  }
  /// f(name, Tensor<int64_t>) for "epoch", "position" and "seed", to be saved and to be written in place.
  template <class F>
  friend void for_each_state(DataLoader& loader, F const& f) {
    f(std::string("epoch"), loader.core_->epoch);
    f(std::string("position"), loader.core_->position);
    f(std::string("seed"), loader.core_->seed);
  }
  template <class F>
  friend void for_each_state(DataLoader const& loader, F const& f) {
    for_each_state(const_cast<DataLoader&>(loader), [&](std::string const& name, Tensor<int64_t> const& x) { f(name, x); });
  }

  // ---- the loop -------------------------------------------------------------------------------------------------

  struct sentinel {};
  /// One pass over the batches of an epoch. When it goes, the loop has ended.
  class iterator {
   public:
    using value_type = typename DataLoader::value_type;
    using difference_type = std::ptrdiff_t;

    iterator(iterator&& other) noexcept : core_(std::exchange(other.core_, nullptr)), epoch_(other.epoch_), batch_(std::move(other.batch_)) {}
    iterator& operator=(iterator&& other) noexcept {
      std::swap(core_, other.core_);
      std::swap(epoch_, other.epoch_);
      std::swap(batch_, other.batch_);
      return *this;
    }
    ~iterator() { end(); }

    value_type& operator*() const { return batch_; }
    iterator& operator++() {
      batch_ = value_type();
      core_->release();
      take();
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(iterator const& it, sentinel) { return it.core_ == nullptr; }

   private:
    friend DataLoader;
    iterator(Core* core, int64_t epoch) : core_(core), epoch_(epoch) {
      try {
        take();
      } catch (...) {
        end();
        throw;
      }
    }
    void take() {
      int const slot = core_->next();
      if (slot < 0) return end();
      if (*std::as_const(core_->epoch).data() == epoch_) core_->position.data()[0] = core_->consumed() + 1;
      batch_ = core_->take(slot);
    }
    void end() noexcept {
      if (!core_) return;
      batch_ = value_type();
      core_->end(epoch_);
      core_ = nullptr;
    }

    Core* core_;
    int64_t epoch_;
    mutable value_type batch_;
  };

  /// Begins the epoch, or goes on with it at position().
  iterator begin() const { return iterator(core_, core_->begin()); }
  sentinel end() const { return {}; }

 private:
  Core* core_ = nullptr;
};

template <dataset X, device D = Cpu>
DataLoader(X, LoaderOptions = {}, D = {}) -> DataLoader<X, D>;
template <class X, device D = Cpu>
  requires(!dataset<X>)
DataLoader(X, LoaderOptions = {}, D = {}) -> DataLoader<X, D>;

}  // namespace data
}  // namespace situ::inline SITU_ABI
