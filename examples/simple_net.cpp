// A two-layer network: trained on real digits, moved from device to device, to a file, to Python and back.
//
//   ./examples/run simple_net [FOLDER]           the folder that holds digits_images.npy and digits_labels.npy
//
// Each line says what situ decides when it compiles. Without a GPU, Emulated<0> stands in for one: memory of its own, work of its own.
// The Python part needs python3 alone: the format is a length, a line of JSON, and the numbers. Leaves in the present folder the weights,
// simple_net.safetensors, the doubled ones of Python, the checkpoint of the training, simple_net_run.safetensors, and its curve, simple_net.svg.

#include <situ/situ.hpp>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <iostream>
#include <string>

using namespace situ;

template <class Device>
struct Net {
  nn::Linear<float, Device> fc1{64, 32}, fc2{32, 10};
  auto forward(auto const& x) const { return fc2(relu(fc1(x))); }
  SITU_MODULE(fc1, fc2)
};

// Doubles every weight of a file, with the package safetensors where it is installed, else by hand.
char const* const python = R"(
import json, struct, sys
source, target = sys.argv[1:]
try:
    from safetensors.numpy import load_file, save_file
    weights = load_file(source)
    save_file({name: 2 * w for name, w in weights.items()}, target)
    shapes = {name: list(w.shape) for name, w in weights.items()}
except ImportError:
    data = open(source, 'rb').read()
    n = struct.unpack('<Q', data[:8])[0]
    header, numbers = json.loads(data[8:8 + n]), data[8 + n:]
    shapes = {name: entry['shape'] for name, entry in header.items() if name != '__metadata__'}
    values = struct.unpack('<%df' % (len(numbers) // 4), numbers)
    open(target, 'wb').write(data[:8 + n] + struct.pack('<%df' % len(values), *(2 * v for v in values)))
for name in sorted(shapes):
    print('  python: %-12s %s' % (name, shapes[name]))
)";

void check(char const* what, bool holds) {
  std::cout << what << ": " << (holds ? "yes" : "no") << "\n";
  if (!holds) throw Error(std::string("simple_net: ") + what + " does not hold");
}

std::string data_folder(int argc, char** argv) {
  if (argc > 1) return std::string(argv[1]) + "/";
  for (char const* place : {"data/", "examples/data/"}) {
    if (std::filesystem::exists(std::string(place) + "digits_images.npy")) return place;
  }
  return (std::filesystem::path(argv[0]).parent_path() / "data/").string();
}

template <class Device>
void run(Device device, std::string const& folder) {
  Tensor<float> const images = io::load_npy<uint8_t>(folder + "digits_images.npy").reshape({-1, 64}) / 16;
  auto const labels = io::load_npy<uint8_t>(folder + "digits_labels.npy").to<int64_t>();
  manual_seed(1);
  Net<Cpu> net;  // parameters are made where the type says
  std::cout << net << "\n";

  // Trained on the device, which the Trainer moves it to and back from.
  auto const [training, test] = data::random_split(data::TensorDataset{images, labels}, {0.8, 0.2});
  learning::Trainer<Device> const trainer{{.epochs = 8, .checkpoint = "simple_net_run.safetensors", .svg = "simple_net.svg"}};
  trainer.fit(
      net, training, test, [](auto const& scores, auto const& digits) { return cross_entropy(scores, digits); },
      [](auto& model) { return optim::Adam{model, {.lr = 3e-3}}; }, learning::accuracy);

  auto const there = to(net, device);  // a Net<Device>: another type, with copies of the parameters
  std::cout << "moved to " << AnyDevice(device) << "\n";
  auto const x = images.slice(0, 0, 3);
  auto const here = net(x).value();
  auto const same = there(x.to(device)).value().cpu();  // there(x) does not compile: x is on the CPU
  std::cout << here << "\n";
  check("the same there", allclose(here, same));

  auto const back = to(there, Cpu{});  // a Net<Cpu> again
  check("moved back, bit for bit", equal(back.fc1.weight.value(), net.fc1.weight.value()));

  std::string const file = "simple_net.safetensors", doubled = "simple_net_doubled.safetensors";
  io::save_safetensors(file, there);  // from the device; opens in Python as {"fc1.weight": ...}
  std::cout << "saved " << file << "\n" << std::flush;

  if (std::system("python3 -c 'pass' 2>/dev/null") != 0) {
    std::cout << "python3 was not found: its part is left out\n";
    return;
  }
  if (std::system(("python3 - " + file + " " + doubled + " <<'END'\n" + python + "END\n").c_str()) != 0) throw Error("simple_net: Python could not read the file");
  io::load_safetensors(doubled, net);  // in place, from Python
  check("doubled in Python and loaded", equal(net.fc2.weight.value(), eval(2 * back.fc2.weight.value())));
}

int main(int argc, char** argv) try {
  AnyDevice const device = gpu::is_available() ? try_gpu(0) : AnyDevice(Emulated<0>{});
  visit<Cuda<0>, Emulated<0>>(device, [&](auto d) { run(d, data_folder(argc, argv)); });
  return 0;
} catch (Error const& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
