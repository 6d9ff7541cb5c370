/// What prepares the batches of a loader: threads that make batches ahead of the one who takes them, in the order in which they are taken.
///
/// A batch is made in a slot, by one thread. Who needs a batch that nobody has begun makes it: without threads that is every batch, and with threads
/// the first of a loop. Threads live as long as the loader, and sleep between its loops; one of them finds the next epoch's order while the
/// last batches of this one are used.
///
/// To wake a thread costs its waker some 10 us, more than a small batch: so threads that have nothing to do while a loop runs look again by themselves,
/// when half of what is ready will be used up, and are woken only for batches that cost more than that.
#pragma once

#include <span>

#include <pthread.h>
#if defined(__linux__)
#include <sys/prctl.h>
#endif

#include <situ/core/error.hpp>
#include <situ/core/list.hpp>
#include <situ/data/detail/order.hpp>
#include <situ/device/cpu/launch.hpp>
#include <situ/device/host_functions.hpp>

#if defined(_OPENMP)
#include <omp.h>
#endif

namespace situ::inline SITU_ABI {
namespace detail {

class BatchPipeline;
inline namespace SITU_ABI_THREADS {
inline void* run_batch_worker(void* pipeline);
}

struct PipelinePlan {
  int64_t samples = 0, batch_size = 1;
  bool shuffle = false, drop_last = false;
  uint64_t seed = 0;
  int workers = 0;
  int ahead = 0;      ///< batches that are prepared, beside the one in use
  int most_ahead = 0; ///< the same where batches turn out to be small
};

class BatchPipeline {
 public:
  BatchPipeline(BatchPipeline const&) = delete;
  BatchPipeline& operator=(BatchPipeline const&) = delete;

  PipelinePlan const& plan() const { return plan_; }
  int64_t batches() const {
    int64_t const whole = plan_.samples / plan_.batch_size;
    return whole + (!plan_.drop_last && plan_.samples % plan_.batch_size != 0);
  }

  /// Starts a loop where it is to start, and returns its epoch.
  [[gnu::cold]] SITU_NOINLINE int64_t begin() {
    Lock const lock(*this);
    while (ordering_) wait();
    if (running_) fail<Error>("DataLoader: a loop over this loader is running; let it end first, or use a second loader");
    auto const [seed, epoch, first] = start();
    if (plan_.seed != seed) {
      plan_.seed = seed;
      order_epoch_ = next_order_epoch_ = -1;
    }
    set_order(epoch);
    start_threads();
    end_ = batches();
    claimed_ = consumed_ = first < end_ ? first : end_;
    free_.clear();
    for (int k = slot_count(); k-- > 0;) free_.push_back(k);
    running_ = true;
    idle_ = 0;
    if (parked_ > 0 || (napping_ > 0 && is_worth_waking())) ::pthread_cond_broadcast(&work_);
    return epoch;
  }
  /// The slot of the next batch, which is made when this returns; -1 behind the last one.
  SITU_NOINLINE int next() {
    Lock const lock(*this);
    if (consumed_ == end_) return -1;
    if (claimed_ == consumed_) make_next();
    else if (!made(consumed_)) wait_for_batch(consumed_);
    int const slot = slot_of(consumed_);
    // Without threads, what a device copies while it computes is made now.
    while (threads_.empty() && can_claim()) make_next();
    return slot;
  }
  /// The batch that next() gave is no longer used.
  SITU_NOINLINE void release() {
    Lock const lock(*this);
    free_.push_back(slot_of(consumed_++));
    ++used_;
    if (napping_ > 0 && claimed_ < end_ && claimed_ - consumed_ <= ahead_ / 2 && is_worth_waking()) ::pthread_cond_broadcast(&work_);
  }
  /// Ends the loop over an epoch, also before the last batch. No thread is at work when this returns, and no batch is kept.
  [[gnu::cold]] void end(int64_t epoch) noexcept {
    Lock const lock(*this);
    end_ = claimed_;
    while (making_ > 0) wait();
    has_ended(epoch);
    running_ = false;  // only now: until then another loop would be a second one
  }
  int64_t consumed() const { return consumed_; }
  int slot_count() const { return plan_.most_ahead + 1; }

 protected:
  [[gnu::cold]] explicit BatchPipeline(PipelinePlan const& plan)
      : plan_(plan), ahead_(plan.ahead) {
    slot_of_.resize(static_cast<std::size_t>(plan.most_ahead) + 1);
    made_.resize(static_cast<std::size_t>(plan.most_ahead) + 1);
    pthread_condattr_t attributes;
    ::pthread_condattr_init(&attributes);
    ::pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    ::pthread_cond_init(&work_, &attributes);
    ::pthread_condattr_destroy(&attributes);
  }
  [[gnu::cold]] virtual ~BatchPipeline() { ::pthread_cond_destroy(&work_); }

  /// Makes a batch in a slot, and keeps what goes wrong there. Returns its bytes.
  virtual int64_t make(int slot, std::span<int64_t const> indices, int64_t epoch) noexcept = 0;

  /// Where the next loop starts: its batch `first` of an epoch.
  struct Start {
    uint64_t seed;
    int64_t epoch, first;
  };
  virtual Start start() const = 0;
  /// Lets go of what was made and is not used, and goes on behind the epoch.
  virtual void has_ended(int64_t epoch) noexcept = 0;

  /// To be called before what make() uses goes.
  [[gnu::cold]] void stop() noexcept {
    {
      Lock const lock(*this);
      running_ = false;
      stopping_ = true;
      ::pthread_cond_broadcast(&work_);
    }
    for (pthread_t thread : threads_) ::pthread_join(thread, nullptr);
    threads_.clear();
  }

 private:
  friend void* SITU_ABI_THREADS::run_batch_worker(void* pipeline);

  struct Lock {
    explicit Lock(BatchPipeline& p) : pipeline(p) { ::pthread_mutex_lock(&pipeline.mutex_); }
    Lock(Lock const&) = delete;
    Lock& operator=(Lock const&) = delete;
    ~Lock() { ::pthread_mutex_unlock(&pipeline.mutex_); }
    BatchPipeline& pipeline;
  };
  struct Unlock {
    explicit Unlock(BatchPipeline& p) : pipeline(p) { ::pthread_mutex_unlock(&pipeline.mutex_); }
    Unlock(Unlock const&) = delete;
    Unlock& operator=(Unlock const&) = delete;
    ~Unlock() { ::pthread_mutex_lock(&pipeline.mutex_); }
    BatchPipeline& pipeline;
  };

  // What follows is called under the lock.

  std::size_t place(int64_t batch) const { return static_cast<std::size_t>(batch) % slot_of_.size(); }
  int slot_of(int64_t batch) const { return slot_of_[place(batch)]; }
  bool made(int64_t batch) const { return __atomic_load_n(&made_[place(batch)], __ATOMIC_ACQUIRE) != 0; }
  bool can_claim() const { return running_ && claimed_ < end_ && claimed_ - consumed_ <= ahead_; }
  bool wants_order() const { return running_ && plan_.shuffle && claimed_ == end_ && !ordering_ && next_order_epoch_ != order_epoch_ + 1; }

  void wait() {
    ++waiting_;
    ::pthread_cond_wait(&ready_, &mutex_);
    --waiting_;
  }
  /// Another thread is at it. Sleeping costs more than a small batch.
  void wait_for_batch(int64_t batch) {
    if (!is_worth_waking()) {
      Unlock const unlocked(*this);
      for (int k = 0; k < 1000 && !made(batch); ++k) {
#if SITU_X86
        __builtin_ia32_pause();
#endif
      }
    }
    while (!made(batch)) wait();
  }
  void wake_waiting() {
    if (waiting_ > 0) ::pthread_cond_broadcast(&ready_);
  }

  void make_next() {
    int64_t const batch = claimed_++;
    int const slot = free_.back();
    free_.pop_back();
    slot_of_[place(batch)] = slot;
    made_[place(batch)] = 0;
    ++making_;
    int64_t const first = batch * plan_.batch_size, rest = plan_.samples - first;
    std::span<int64_t const> const indices(order_.data() + first, static_cast<std::size_t>(rest < plan_.batch_size ? rest : plan_.batch_size));
    int64_t const epoch = order_epoch_;
    int64_t bytes;
    double time;
    {
      Unlock const unlocked(*this);
      double const start = milliseconds_now();
      bytes = make(slot, indices, epoch);
      time = milliseconds_now() - start;
    }
    cost_ = cost_ == 0 ? time : 0.75 * cost_ + 0.25 * time;
    --making_;
    __atomic_store_n(&made_[place(batch)], char{1}, __ATOMIC_RELEASE);
    if (ahead_ < plan_.most_ahead && bytes > 0) {
      constexpr int64_t small = int64_t{1} << 20;  // all of them together
      int64_t const fit = small / bytes;
      if (fit > ahead_) ahead_ = fit < plan_.most_ahead ? static_cast<int>(fit) : plan_.most_ahead;
    }
    wake_waiting();
  }

  /// The order of an epoch depends on nothing but the seed, the epoch and the number of samples. The numbers are not those of a Generator with the
  /// same seed: its calls count from 0.
  RandomStream stream_of_epoch(int64_t epoch) const { return {plan_.seed, static_cast<uint64_t>(epoch) | uint64_t{1} << 63}; }
  int64_t* room_for_order(List<int64_t>& order) const {
    order.resize(static_cast<std::size_t>(plan_.samples));
    return order.data();
  }
  void set_order(int64_t epoch) {
    if (!plan_.shuffle) {
      if (order_epoch_ < 0) plain_order(room_for_order(order_), plan_.samples);
    } else if (order_epoch_ != epoch) {
      if (next_order_epoch_ == epoch) std::swap(order_, next_order_);
      else shuffle_order(stream_of_epoch(epoch), room_for_order(order_), plan_.samples);
      next_order_epoch_ = -1;
    }
    order_epoch_ = epoch;
  }
  void find_next_order() {
    ordering_ = true;
    int64_t const epoch = order_epoch_ + 1;
    bool found = true;
    {
      Unlock const unlocked(*this);
      try {
        shuffle_order(stream_of_epoch(epoch), room_for_order(next_order_), plan_.samples);
      } catch (...) {  // then the next loop finds it, and says what is wrong
        found = false;
      }
    }
    next_order_epoch_ = found ? epoch : -1;
    ordering_ = false;
    wake_waiting();
  }

  /// Threads that the system does not give are not missed: who takes the batches makes them.
  [[gnu::cold]] void start_threads() {
    while (static_cast<int>(threads_.size()) < plan_.workers) {
      threads_.reserve(threads_.size() + 1);
      pthread_t thread;
      if (::pthread_create(&thread, nullptr, &run_batch_worker, this) != 0) break;
      threads_.push_back(thread);
    }
  }
  void work() {
    Lock const lock(*this);
    double before = 0, nap = 0;  // when it looked last, and how long it slept
    int64_t seen = 0;            // what had been used up then
    while (!stopping_) {
      if (can_claim()) {
        make_next();
      } else if (wants_order()) {
        find_next_order();
      } else if (!running_ && idle_ > longest_idleness) {
        ++parked_;
        ::pthread_cond_wait(&work_, &mutex_);
        --parked_;
      } else {
        double const now = milliseconds_now();
        if (!running_) {  // the next loop may begin soon
          nap = shortest_nap + idle_;
          idle_ += nap;
        } else if (used_ == seen) {
          nap *= 2;
        } else {
          double const left = claimed_ < end_ ? 0.5 * static_cast<double>(claimed_ - consumed_) : static_cast<double>(end_ - consumed_) - 0.5;
          nap = (now - before) / static_cast<double>(used_ - seen) * left;
        }
        before = now;
        seen = used_;
        nap = nap < shortest_nap ? shortest_nap : nap > longest_nap ? longest_nap : nap;
        nap_for(nap);
      }
    }
  }
  void nap_for(double milliseconds) {
    timespec until{};
    ::clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += static_cast<long>(milliseconds * 1e6);
    if (until.tv_nsec >= 1000000000) until.tv_nsec -= 1000000000, ++until.tv_sec;
    ++napping_;
    ::pthread_cond_timedwait(&work_, &mutex_, &until);
    --napping_;
  }
  bool is_worth_waking() const { return cost_ == 0 || cost_ > 0.02; }

  PipelinePlan plan_;
  int ahead_;
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
  pthread_cond_t work_;                              ///< for the threads
  pthread_cond_t ready_ = PTHREAD_COND_INITIALIZER;  ///< for the one who takes batches
  bool running_ = false, stopping_ = false, ordering_ = false;
  int parked_ = 0, napping_ = 0, waiting_ = 0, making_ = 0;
  double cost_ = 0;  ///< milliseconds for a batch, more or less
  double idle_ = 0;  ///< milliseconds since the last loop, more or less
  static constexpr double shortest_nap = 0.02, longest_nap = 2, longest_idleness = 20;
  int64_t claimed_ = 0, consumed_ = 0, end_ = 0;  ///< batches that were begun, that are used up, and all
  int64_t used_ = 0;                              ///< batches that were used up in all loops
  List<int> free_, slot_of_;
  List<char> made_;
  List<int64_t> order_, next_order_;
  int64_t order_epoch_ = -1, next_order_epoch_ = -1;
  List<pthread_t> threads_;
};

inline namespace SITU_ABI_THREADS {
/// Kernels that a sample needs run on the thread that makes it, not on a team of its own.
inline void* run_batch_worker(void* pipeline) {
  cpu::thread_use().alone = true;
#if defined(_OPENMP)
  omp_set_num_threads(1);  // of what is not situ's
#endif
#if defined(__linux__)
  ::prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL);  // naps end within a microsecond of their time, not 50: several small batches
#endif
  static_cast<BatchPipeline*>(pipeline)->work();
  return nullptr;
}
}  // namespace SITU_ABI_THREADS

}  // namespace detail
}  // namespace situ::inline SITU_ABI
