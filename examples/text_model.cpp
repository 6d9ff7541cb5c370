// A small causal transformer that learns to write, character by character, from The Devil's Dictionary by Ambrose Bierce (1911, public domain).
//
//   ./examples/run text_model                    Debian's text: apt-get install dict-devil
//   ./examples/run text_model TEXT [STEPS]       any text of some 100 kB, plain or gzip
//   ./examples/run text_model TEXT STEPS resume  goes on where a run of as many steps was stopped
//
// Learns on the first nine tenths of the text, and tells after every 100 steps how many bits a character of the rest costs (a uniform guess: log₂ of the
// number of characters that occur). Then it writes. About a minute on one core; on the GPU where this build and this machine have one. Leaves in the
// present folder its learning curve, text_model.svg, the weights, text_model.safetensors, and all that a run needs to go on, text_model_run.safetensors.

#include <situ/situ.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

using namespace situ;

constexpr int64_t context = 64, width = 128, heads = 4;

/// Characters → scores of the next one, at every place: [batch, tokens] → [batch, tokens, characters].
template <class Device>
struct TextModel {
  nn::Embedding<float, Device> characters, positions{context, width};
  nn::TransformerEncoderLayer<float, Device> layer1, layer2;
  nn::LayerNorm<float, Device> norm{width};
  nn::Linear<float, Device> head;

  static TextModel with(int64_t count) {
    nn::transformer_encoder_layer_options const options{.dim_feedforward = 4 * width, .dropout = 0, .norm_first = true, .causal = true};
    TextModel net{.characters = {count, width}, .layer1 = {width, heads, options}, .layer2 = {width, heads, options}, .head = {width, count}};
    nn::init::normal(net.characters.weight, 0, 0.02);  // small beside what the layers add
    nn::init::normal(net.positions.weight, 0, 0.02);
    return net;
  }
  auto forward(auto const& ids) const {
    Variable const x = characters(ids) + positions(arange<int64_t>(ids.size(1), Device{}));
    return head(norm(layer2(layer1(x))));
  }
  SITU_MODULE(characters, positions, layer1, layer2, norm, head)
};

std::string read_text(std::string const& path) {
  std::string text;
  bool const packed = path.ends_with(".dz") || path.ends_with(".gz");
  std::FILE* const file = packed ? popen(("zcat < '" + path + "'").c_str(), "r") : std::fopen(path.c_str(), "r");
  if (!file) return text;
  char buffer[65536];
  for (std::size_t n; (n = std::fread(buffer, 1, sizeof buffer, file)) > 0;) text.append(buffer, n);
  packed ? pclose(file) : std::fclose(file);
  std::size_t const first = text.find("\nABASEMENT,");  // behind the dictionary's preface
  return first == std::string::npos ? text : text.substr(first + 1);
}

/// The text as numbers, and which character each number is.
struct Encoded {
  Tensor<int64_t> ids;
  std::string characters;
};
Encoded encode(std::string const& text) {
  int64_t numbers[256];
  for (int64_t& each : numbers) each = -1;
  Encoded result;
  std::vector<int64_t> ids;
  for (char c : text) {
    int64_t& number = numbers[static_cast<unsigned char>(c)];
    if (number < 0) number = static_cast<int64_t>(result.characters.size()), result.characters += c;
    ids.push_back(number);
  }
  result.ids = Tensor<int64_t>(ids);
  return result;
}

/// Bits that a character of the text costs, given at least half a context before it.
template <class Device>
double bits_per_character(TextModel<Device>& net, Tensor<int64_t, Device> const& ids) {
  no_grad guard;
  net.eval();
  double total = 0;
  constexpr int64_t half = context / 2;
  int64_t const windows = (ids.size() - 1 - context) / half + 1;
  int64_t counted = 0;
  for (int64_t first = 0; first < windows; first += 64) {
    int64_t const count = std::min<int64_t>(64, windows - first);
    Tensor const places = arange<int64_t>(first * half, (first + count) * half, half, Device{}).unsqueeze(1) + arange<int64_t>(context, Device{});
    auto const scores = net(take(ids, places)).value().slice(1, half, context);
    auto const next = take(ids, places + 1).slice(1, half, context);
    total += cross_entropy(scores.reshape({count * half, -1}), next.reshape({-1}), {.reduction = reduction::sum}).item();
    counted += count * half;
  }
  net.train();
  return total / static_cast<double>(counted) / std::log(2.0);
}

template <class Device>
std::string write(TextModel<Device>& net, Encoded const& text, std::string const& start, int64_t length, float temperature) {
  no_grad guard;
  net.eval();
  std::vector<int64_t> ids;
  std::string result = start;
  for (char c : start) ids.push_back(static_cast<int64_t>(text.characters.find(c)));
  for (int64_t k = 0; k < length; ++k) {
    std::size_t const seen = std::min<std::size_t>(ids.size(), context);
    Tensor<int64_t> const last(std::vector<int64_t>(ids.end() - static_cast<std::ptrdiff_t>(seen), ids.end()), {1, static_cast<int64_t>(seen)});
    auto const scores = net(last.to(Device{})).value().select(1, -1).select(0, 0);
    ids.push_back(multinomial(softmax(scores / temperature, 0), 1).item());
    result += text.characters[static_cast<std::size_t>(ids.back())];
  }
  net.train();
  return result;
}

/// Step, losses and learning rate of what a curve shows, to and from a row of numbers.
Tensor<double> to_tensor(learning::History const& history) {
  Tensor<double> table = empty<double>({history.epochs.size(), 4});
  for (int64_t k = 0; learning::Epoch const& e : history.epochs) table[k++] = Tensor<double>{static_cast<double>(e.number), e.loss, e.validation_loss, e.learning_rate};
  return table;
}
learning::History to_history(Tensor<double> const& table) {
  learning::History history;
  for (int64_t k = 0; k < table.size(0); ++k) {
    history.epochs.push_back({.number = static_cast<int64_t>(table(k, 0)), .loss = table(k, 1), .validation_loss = table(k, 2), .learning_rate = table(k, 3)});
  }
  return history;
}

template <class Device>
double run(Encoded const& text, int64_t steps, bool resume, Device device) {
  int64_t const count = text.ids.size(), cut = count * 9 / 10;
  auto const learned = text.ids.slice(0, 0, cut).to(device), held_back = text.ids.slice(0, cut, count).to(device);
  manual_seed(1);
  auto net = to(TextModel<Cpu>::with(static_cast<int64_t>(text.characters.size())), device);
  std::printf("%lld characters, %zu different ones; %lld parameters\n", static_cast<long long>(count), text.characters.size(), static_cast<long long>(num_parameters(net)));

  constexpr int64_t batch = 16;
  optim::AdamW optimizer{net, {.lr = 3e-3, .weight_decay = 0.01}};
  optim::OneCycleLR schedule{optimizer, {.max_lr = 3e-3, .total_steps = steps + 1, .pct_start = 0.1, .cycle_momentum = false}};
  Generator batches{1};  // drawn from once in each step
  learning::History history;
  double loss_sum = 0, bits = 0;

  std::string const checkpoint = "text_model_run.safetensors";
  auto state = io::named_state(net, "model.");  // handles: what is loaded into them is loaded into the network
  for (auto const& each : io::named_state(optimizer, "optimizer.")) state.push_back(each);
  for (auto const& each : io::named_state(schedule, "schedule.")) state.push_back(each);
  if (resume) {
    auto const curve = io::load_safetensors(checkpoint).load<double>("curve");
    auto all = state;
    all.push_back({"curve", curve});
    io::load_safetensors(checkpoint, all);
    history = to_history(curve);
    batches.restore(1, static_cast<uint64_t>(history.epochs.back().number));
    bits = history.epochs.back().validation_loss / std::log(2.0);
    std::printf("goes on after step %lld\n", static_cast<long long>(history.epochs.back().number));
  }

  auto begin = std::chrono::steady_clock::now();
  for (int64_t step = static_cast<int64_t>(batches.calls()) + 1; step <= steps; ++step) {
    Tensor const places = randint(0, cut - context - 1, {batch, 1}, batches, device) + arange<int64_t>(context, device);
    Variable scores = net(take(learned, places));
    Variable loss = cross_entropy(scores.reshape({batch * context, -1}), take(learned, places + 1).reshape({-1}));
    optimizer.zero_grad();
    loss.backward();
    optim::clip_grad_norm(parameters(net), 1.0);
    optimizer.step();
    schedule.step();
    loss_sum += loss.item();
    if (step % 100 == 0 || step == steps) {
      auto const now = std::chrono::steady_clock::now();
      int64_t const since = (step - 1) % 100 + 1;
      bits = bits_per_character(net, held_back);
      history.epochs.push_back({.number = step, .loss = loss_sum / static_cast<double>(since), .validation_loss = bits * std::log(2.0), .learning_rate = schedule.lr(),
                                .seconds = std::chrono::duration<double>(now - begin).count(), .samples = since * batch * context});
      learning::Epoch const& last = history.epochs.back();
      std::printf("step %4lld: loss %.3f, %.3f bits per character held back, %.0f characters/s\n", static_cast<long long>(step), last.loss, bits, last.samples_per_second());
      std::fflush(stdout);
      auto all = state;
      all.push_back({"curve", to_tensor(history)});
      io::save_safetensors(checkpoint, all);
      loss_sum = 0;
      begin = std::chrono::steady_clock::now();
    }
  }
  history.save_svg("text_model.svg");
  io::save_safetensors("text_model.safetensors", net);
  std::string const start = text.characters.find_first_not_of("SITU, n. ") == std::string::npos ? "" : "SITU, n.  ";
  for (float temperature : {0.5f, 0.8f}) {
    std::printf("\n--- temperature %.1f\n%s\n", static_cast<double>(temperature), write(net, text, start, 300, temperature).c_str());
  }
  std::printf("\nbits per character: %.3f\n", bits);
  return bits;
}

int main(int argc, char** argv) try {
  std::string const path = argc > 1 ? argv[1] : "/usr/share/dictd/devil.dict.dz";
  std::string const text = std::ifstream(path) ? read_text(path) : "";
  if (text.size() < 20000) {
    std::cerr << "text_model: there is no text of 20 kB or more at " << path
              << ".\nOn Debian and Ubuntu, `apt-get install dict-devil` brings The Devil's Dictionary; or name a text: ./examples/run text_model TEXT\n";
    return 77;  // tests take this as skipped
  }
  int64_t const steps = argc > 2 ? std::atoll(argv[2]) : 900;
  bool const resume = argc > 3 && std::string(argv[3]) == "resume";
  Encoded const encoded = encode(text);
  AnyDevice const device = try_gpu(0);
  std::cout << path << " on " << device << "\n" << std::flush;
  double bits = 0;
  visit(device, [&](auto d) { bits = run(encoded, steps, resume, d); });
  return bits < (steps >= 800 ? 3.0 : 8.0) ? 0 : 1;
} catch (Error const& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
