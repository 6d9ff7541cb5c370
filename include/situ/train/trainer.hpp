/// Trainer: epochs, devices, clipping, mixed precision, validation, early stopping, checkpoints.
///
///     Net<Cpu> net;
///     learning::Trainer<Cuda<0>, Cpu> trainer{{.epochs = 60, .batch_size = 64, .checkpoint = "run.safetensors", .svg = "curve.svg"}};
///     learning::History history = trainer.fit(net, training, validation,
///                                          [](auto const& y, auto const& labels) { return cross_entropy(y, labels); },
///                                          [](auto& model) { return optim::Adam{model, {.lr = 1e-3}}; }, learning::accuracy);
#pragma once

#include <cstdio>
#include <limits>
#include <tuple>

#include <situ/data/loader.hpp>
#include <situ/device/any.hpp>
#include <situ/io/safetensors.hpp>
#include <situ/nn/mixed.hpp>
#include <situ/ops/random.hpp>
#include <situ/ops/reduce.hpp>
#include <situ/optim/clip_grad.hpp>
#include <situ/optim/grad_scaler.hpp>
#include <situ/train/accuracy.hpp>
#include <situ/train/checkpoint.hpp>
#include <situ/train/options.hpp>

namespace situ::inline SITU_ABI {
namespace error {
template <class... Devices>
struct this_build_has_no_device_of_the_Trainer__add_Cpu_or_set_SITU_WITH_CUDA {};
}  // namespace error
namespace learning {

/// In place of a validation set, a metric or a schedule: without.
struct none_t {};
inline constexpr none_t none{};

}  // namespace learning

namespace detail {

/// The weighted sum of numbers that a device computes, read a while after they were enqueued: nothing waits for them in between.
template <class T, class D>
class LateSum {
 public:
  void begin() {
    late_.clear();
    late_.reserve(most);
    sum_ = weights_ = 0;
  }
  void add(Tensor<T, D> number, int64_t weight) {
    weights_ += static_cast<double>(weight);
    late_.push_back({std::move(number), static_cast<double>(weight)});
    if (late_.size() >= most) read(most - 16);
  }
  /// The mean of all; waits for them.
  double mean() {
    read(late_.size());
    return sum_ / weights_;
  }

 private:
  struct Late {
    Tensor<T, D> number;
    double weight;
  };
  void read(std::size_t count) {
    if (count == 0) return;
    for (std::size_t k = 0; k < count; ++k) sum_ += late_[k].weight * static_cast<double>(static_cast<compute_t<T>>(late_[k].number.item()));
    std::size_t const left = late_.size() - count;
    for (std::size_t k = 0; k < left; ++k) late_[k] = std::move(late_[k + count]);
    late_.truncate(left);
  }
  static constexpr std::size_t most = 256;
  List<Late> late_;
  double sum_ = 0, weights_ = 0;
};
/// The host's are read at once.
template <class T, host_device D>
class LateSum<T, D> {
 public:
  void begin() { sum_ = weights_ = 0; }
  void add(Tensor<T, D> const& number, int64_t weight) {
    weights_ += static_cast<double>(weight);
    sum_ += static_cast<double>(weight) * static_cast<double>(static_cast<compute_t<T>>(*number.data()));
  }
  double mean() const { return sum_ / weights_; }

 private:
  double sum_ = 0, weights_ = 0;
};
/// A Tensor of a loss or a metric, whatever it comes as.
template <class E>
auto number_of(E const& e) {
  if constexpr (differentiable<E>) return Variable(e).value();
  else return Tensor(e);
}
template <class E>
using late_sum_of = LateSum<value_of<E>, result_device_t<device_of<E>>>;

/// Of a network that several processes train, whether this is the one that shows progress and writes files.
template <class M>
bool is_first_of_processes([[maybe_unused]] M const& model) {
  if constexpr (requires { model.is_first_process(); }) return model.is_first_process();
  else return true;
}
/// What they decide by is the same for all of them: averages of what each has measured.
template <class M>
void agree(M const& model, learning::Epoch& epoch) {
  double numbers[] = {epoch.loss, epoch.validation_loss, epoch.metric};
  if constexpr (requires { model.average_over_processes(numbers, 3); }) {
    model.average_over_processes(numbers, 3);
    epoch.loss = numbers[0], epoch.validation_loss = numbers[1], epoch.metric = numbers[2];
  }
}

}  // namespace detail

namespace learning {

inline namespace SITU_ABI_CUDA {

/// Trains networks on the first of `Devices` that this machine and this build have.
///
/// The network that is given stays where it is, on the CPU as a rule: it is copied to the device, trained there, and its parameters and buffers
/// are written back after each epoch. Where it already lives on the device, it is trained itself.
///
/// On the CPU a run that was stopped and goes on from its checkpoint gives the same bits as one that was not: parameters, state of the
/// optimiser, schedule and generator, order of the batches.
template <device... Devices>
class Trainer {
 public:
  explicit Trainer(TrainerOptions options = {}) : options_(std::move(options)) { detail::check_options(options_); }
  TrainerOptions const& options() const { return options_; }

  /// The device that is trained on. Throws DeviceUnavailable when none of the list is there.
  AnyDevice device() const {
    AnyDevice const wanted[] = {AnyDevice(Devices{})...};
    for (AnyDevice const& each : wanted) {
      if (is_there(each)) return each;
    }
    detail::fail<DeviceUnavailable>("Trainer: none of the devices of its list is available here; add Cpu to the list");
  }

  /// Trains `net`.
  ///
  /// training, validation   datasets of pairs (input, target); validation may be learning::none
  /// loss                   loss(output, target) gives a number to be made small, the mean over the batch
  /// make_optimizer         make_optimizer(net) gives the optimiser for the network on its device
  /// metric                 metric(output, target) gives the mean over the batch of what is to be watched, as learning::accuracy
  /// make_schedule          make_schedule(optimizer, steps of an epoch) gives the schedule of the learning rate
  /// Compute                float: all in the network's type; bfloat16: forward and backward of the network in bfloat16, the loss in float;
  ///                        float16: the same, with the loss scaled
  ///
  /// Throws    what these throw; IoError for a checkpoint that does not fit and for files that cannot be written, before anything is changed. A network that
  ///           lives elsewhere than on the device is then as after the last epoch that was finished, one that is trained itself as after the last step.
  /// In the end the network is in the mode of evaluation, as after net.eval().
  template <floating Compute = float, any_module Net, class Training, class Validation, class Loss, class MakeOptimizer, class Metric = none_t,
            class MakeSchedule = none_t>
    requires(detail::in_this_build<Devices> || ...)
  History fit(Net& net, Training const& training, Validation const& validation, Loss const& loss, MakeOptimizer const& make_optimizer,
              Metric const& metric = {}, MakeSchedule const& make_schedule = {}) const {
    History history;
    visit<Devices...>(device(), [&](auto d) { history = fit_on<Compute>(d, net, training, validation, loss, make_optimizer, metric, make_schedule); });
    return history;
  }
  template <floating Compute = float, any_module Net, class... Xs, class Error = error::this_build_has_no_device_of_the_Trainer__add_Cpu_or_set_SITU_WITH_CUDA<Devices...>>
    requires(!(detail::in_this_build<Devices> || ...))
  void fit(Net&, Xs const&...) const = delete;

 private:
  static bool is_there(AnyDevice const& d) {
    if (d.type() == AnyDevice::kind::emulated) return d.ordinal() < emulated::device_count();
    return !d.is_cuda() || try_gpu(d.ordinal()) == d;
  }

  /// The schedule where none is asked for.
  struct NoSchedule {
    void step() {}
  };
  template <class Make, class Optimizer>
  static auto schedule_of(Make const& make, Optimizer& optimizer, int64_t steps) {
    if constexpr (std::is_same_v<Make, none_t>) return NoSchedule{};
    else return make(optimizer, steps);
  }
  /// The network's output for a batch. Computed in less than float, it becomes float again: losses are sums, and scaled ones beyond float16.
  template <class Compute, class Model, class X>
  static auto output_of(Model const& model, X const& x) {
    if constexpr (std::is_same_v<Compute, float>) return model(x);
    else if constexpr (floating<value_of<X>>) return Variable(model(cast<Compute>(x))).template to<float>();
    else return Variable(model(x)).template to<float>();
  }
  template <class Compute, class Model>
  static auto computing(Model const& model) {
    if constexpr (std::is_same_v<Compute, float>) return model;
    else return mixed<Compute>(model);
  }
  template <class Loader>
  using Target = std::tuple_element_t<1, typename Loader::value_type>;
  template <class Compute, class Model, class Loader>
  using OutputOf = decltype(Variable(output_of<Compute>(computing<Compute>(std::declval<Model const&>()), std::declval<std::tuple_element_t<0, typename Loader::value_type> const&>())));
  template <class Compute, class Loss, class Model, class Loader>
  using LossOf = decltype(std::declval<Loss const&>()(std::declval<OutputOf<Compute, Model, Loader>>(), std::declval<Target<Loader> const&>()));
  static constexpr double not_measured = std::numeric_limits<double>::quiet_NaN();

  template <class Compute, class D, class Net, class Training, class Validation, class Loss, class MakeOptimizer, class Metric, class MakeSchedule>
  History fit_on(D device, Net& net, Training const& training, Validation const& validation, Loss const& loss_of, MakeOptimizer const& make_optimizer,
                 Metric const& metric, MakeSchedule const& make_schedule) const {
    constexpr bool scaled = std::is_same_v<Compute, float16>;
    auto model = to(net, device);
    auto optimizer = make_optimizer(model);
    data::DataLoader batches{training,
                             {.batch_size = options_.batch_size, .shuffle = options_.shuffle, .seed = options_.seed, .drop_last = options_.drop_last, .workers = options_.workers},
                             device};
    if (batches.size() == 0) {
      detail::fail<ShapeError>("Trainer: the training data has no batches: ", static_cast<int64_t>(training.size()), training.size() == 1 ? " sample" : " samples", ", in batches of ", options_.batch_size,
                               options_.drop_last ? ", of which the last one is dropped; give more samples, or smaller batches" : "; give some samples");
    }
    int64_t const steps = (batches.size() + options_.accumulate - 1) / options_.accumulate;
    auto schedule = schedule_of(make_schedule, optimizer, steps);
    optim::GradScaler scaler;
    auto const weights = parameters(model);

    detail::TrainingRun run(options_, detail::is_first_of_processes(model));
    if constexpr (requires { Metric::name; }) run.history.metric_name = Metric::name;
    detail::TrainingRun::Tensors home;
    if constexpr (!std::is_same_v<detail::module_device<Net>, D>) home = io::named_state(net);
    auto const add_others = [&](detail::TrainingRun::Tensors& all) {
      StateCollector collect{&all, "optimizer."};
      for_each_state(optimizer, collect);
      collect.prefix = "schedule.";
      if constexpr (has_state<decltype(schedule)>) for_each_state(schedule, collect);
      collect.prefix = "scaler.";
      for_each_state(scaler, collect);
    };
    run.begin(io::named_state(model, "model."), std::move(home), &add_others,
              [](void const* f, detail::TrainingRun::Tensors& all) { (*static_cast<decltype(add_others)*>(f))(all); });

    detail::late_sum_of<LossOf<Compute, Loss, decltype(model), decltype(batches)>> losses;
    decltype(detail::clip_norm<true>(weights, 1., 2., false)) norm;
    while (int64_t const number = run.next_epoch()) {
      Epoch epoch{.number = number, .validation_loss = not_measured, .metric = not_measured, .gradient_norm = not_measured};
      epoch.learning_rate = optimizer.lr();
      model.train();
      batches.set_epoch(number - 1);
      double const started = detail::seconds_now();
      losses.begin();
      int64_t batch = 0, together = 1;  // of the batches that make one step
      for (auto const& [x, y] : batches) {
        if (batch % options_.accumulate == 0) {
          optimizer.zero_grad();
          int64_t const left = batches.size() - batch;
          together = left < options_.accumulate ? left : options_.accumulate;
        }
        auto const net_now = computing<Compute>(model);
        Variable loss = loss_of(output_of<Compute>(net_now, x), y);
        int64_t const samples = x.size(0);
        losses.add(loss.value(), samples);
        epoch.samples += samples;
        ++batch;
        bool const last = batch % options_.accumulate == 0 || batch == batches.size();
        if (options_.accumulate > 1) loss = loss / static_cast<double>(together);
        if constexpr (scaled) scaler.scale(loss).backward();
        else loss.backward();
        if (last) {
          if constexpr (scaled) scaler.unscale(optimizer);
          if (options_.clip_value > 0) optim::clip_grad_value(weights, options_.clip_value);
          if (options_.clip_norm > 0) norm = detail::clip_norm<true>(weights, options_.clip_norm, 2., false);
          if constexpr (scaled) scaler.step(optimizer), scaler.update();
          else optimizer.step();
          if (options_.schedule_steps) schedule.step();
        }
        if (run.wants_step()) {
          run.progress().step(number, batch, batches.size(), losses.mean(), static_cast<double>(epoch.samples) / (detail::seconds_now() - started));
        }
      }
      epoch.loss = epoch.samples > 0 ? losses.mean() : not_measured;
      epoch.seconds = detail::seconds_now() - started;
      if (norm.size() == 1) epoch.gradient_norm = static_cast<double>(norm.item()), epoch.has_gradient_norm = true;
      optimizer.zero_grad();
      if constexpr (!std::is_same_v<Validation, none_t>) validate<Compute>(model, device, validation, loss_of, metric, epoch);
      if (!options_.schedule_steps) schedule.step();
      detail::agree(model, epoch);
      run.end_epoch(epoch);
    }
    run.end();
    model.eval();
    net.eval();
    return std::move(run.history);
  }

  /// Loss and metric on the validation part, without recording; nothing where it has no samples.
  template <class Compute, class Model, class D, class Validation, class Loss, class Metric>
  void validate(Model& model, D device, Validation const& validation, Loss const& loss_of, Metric const& metric, Epoch& epoch) const {
    no_grad const guard;
    model.eval();
    data::DataLoader batches{validation, {.batch_size = options_.batch_size, .workers = options_.workers}, device};
    auto const net_now = computing<Compute>(model);
    detail::late_sum_of<LossOf<Compute, Loss, Model, decltype(batches)>> losses;
    [[maybe_unused]] auto metrics = [&] {
      if constexpr (std::is_same_v<Metric, none_t>) return none;
      else return detail::late_sum_of<decltype(metric(std::declval<OutputOf<Compute, Model, decltype(batches)>>().value(), std::declval<Target<decltype(batches)>>()))>();
    }();
    int64_t seen = 0;
    for (auto const& [x, y] : batches) {
      Variable output = output_of<Compute>(net_now, x);
      losses.add(detail::number_of(loss_of(output, y)), x.size(0));
      if constexpr (!std::is_same_v<Metric, none_t>) metrics.add(detail::number_of(metric(output.value(), y)), x.size(0));
      seen += x.size(0);
    }
    if (seen == 0) return;
    epoch.validation_loss = losses.mean(), epoch.validated = true;
    if constexpr (!std::is_same_v<Metric, none_t>) epoch.metric = metrics.mean(), epoch.has_metric = true;
  }

  TrainerOptions options_;
};

/// Cuda<0> where there is a GPU, else Cpu.
template <>
class Trainer<> : public Trainer<Cuda<0>, Cpu> {
 public:
  using Trainer<Cuda<0>, Cpu>::Trainer;
};

}  // namespace SITU_ABI_CUDA
}  // namespace learning
}  // namespace situ::inline SITU_ABI
