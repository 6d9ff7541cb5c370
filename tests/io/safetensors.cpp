#include <limits>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <io/files.hpp>
#include <situ/device/emulated/device.hpp>
#include <situ/io/safetensors.hpp>
#include <situ/nn/module.hpp>
#include <support/compare.hpp>

using namespace situ;
using namespace std::string_literals;
using situ_test::bytes_of;
using situ_test::counting;
using situ_test::Folder;
using situ_test::given;
using situ_test::holds;
using situ_test::put;
using situ_test::same;
using situ_test::thrown;

namespace {

using Gpu = Emulated<0>;

std::vector<double> const six = {0, 1, 2, 3, 100, 1};

/// The tensors of all_types.safetensors, read one by one.
std::vector<io::NamedTensor> all_types(io::Safetensors const& file) {
  return {{"scalar", file.load<float>("scalar")}, {"bool", file.load<bool>("bool")}, {"u8", file.load<uint8_t>("u8")},   {"i8", file.load<int8_t>("i8")},
          {"f64", file.load<double>("f64")},      {"f32", file.load<float>("f32")},  {"f16", file.load<float16>("f16")}, {"bf16", file.load<bfloat16>("bf16")},
          {"i16", file.load<int16_t>("i16")},     {"i32", file.load<int32_t>("i32")}, {"rank_4", file.load<int32_t>("rank_4")}, {"i64", file.load<int64_t>("i64")},
          {"empty", file.load<float>("empty")}};
}

template <class D>
struct Layer {
  Variable<float, D> weight, bias;
  SITU_MODULE(weight, bias)
};
template <class D>
struct Norm {
  Variable<float, D> weight, bias;
  Tensor<float, D> running_mean, running_var;
  nn::Counter num_batches_tracked;
  SITU_MODULE(weight, bias, running_mean, running_var, num_batches_tracked)
};
template <class D>
Variable<float, D> parameter(Shape const& shape) {
  return Variable<float, D>(zeros<float>(shape, D{}));
}
template <class D>
Layer<D> layer(int in, int out) {
  return {parameter<D>({out, in}), parameter<D>({out})};
}

/// Names as those of torch.nn.Sequential, from a for_each_state of the test's own.
template <class D>
struct TorchNet {
  Layer<D> first = layer<D>(3, 4), second = layer<D>(4, 2);
  Norm<D> norm{parameter<D>({4}), parameter<D>({4}), zeros<float>({4}, D{}), zeros<float>({4}, D{}), {}};
};
template <class D, class F>
void for_each_state(TorchNet<D> const& net, F const& f) {
  auto const below = [&](std::string const& path, auto const& part) {
    situ::for_each_state(part, [&](std::string const& name, auto const& x) { f(path + name, x); });
  };
  below("0.", net.first), below("1.", net.norm), below("3.", net.second);
}

/// A decoder whose weight is the encoder's.
struct Tied {
  Layer<Cpu> encoder = layer<Cpu>(3, 3), decoder{encoder.weight, parameter<Cpu>({3})};
  SITU_MODULE(encoder, decoder)
};

}  // namespace

TEST_CASE("every element type is read as the reference wrote it") {
  io::Safetensors const file{given("all_types.safetensors")};
  Shape const shape(2, 3);
  CHECK(holds(file.load<double>("f64"), shape, six));
  CHECK(holds(file.load<float>("f32"), shape, six));
  CHECK(holds(file.load<float16>("f16"), shape, six));
  CHECK(holds(file.load<bfloat16>("bf16"), shape, six));
  CHECK(holds(file.load<int64_t>("i64"), shape, six));
  CHECK(holds(file.load<int32_t>("i32"), shape, six));
  CHECK(holds(file.load<int16_t>("i16"), shape, six));
  CHECK(holds(file.load<int8_t>("i8"), shape, six));
  CHECK(holds(file.load<uint8_t>("u8"), shape, six));
  CHECK(holds(file.load<bool>("bool"), shape, six));
  CHECK(holds(file.load<float>("scalar"), Shape(), {2.5}));
  CHECK(file.load<float>("empty").shape() == Shape(3, 0, 2));
  CHECK(same(file.load<int32_t>("rank_4"), counting<int32_t>({2, 3, 1, 4})));
  CHECK(same(file.load<int32_t>("rank_4", Gpu{}), counting<int32_t>({2, 3, 1, 4})));
}

TEST_CASE("a file lists what it holds") {
  io::Safetensors const file = io::load_safetensors(given("all_types.safetensors"));
  CHECK(file.keys() == std::vector<std::string>{"i64", "f64", "empty", "f32", "scalar", "i32", "rank_4", "bf16", "f16", "i16", "i8", "u8", "bool"});
  CHECK(file.size() == 13);
  CHECK(file.contains("f64"));
  CHECK(!file.contains("f6"));
  CHECK(file.shape("rank_4") == Shape(2, 3, 1, 4));
  CHECK(file.dtype("bf16") == dtype::bfloat16);
  CHECK(file.type_name("bf16") == "BF16");
  CHECK(file.metadata() == io::Metadata{{"format", "pt"}});
  REQUIRE(file.metadata("format"));
  CHECK(*file.metadata("format") == "pt");
  CHECK(file.metadata("none") == nullptr);
  io::Safetensors const names{given("names.safetensors")};
  CHECK(names.load<int32_t>("a\"\\/\n\x01\x7fé€😀").item(0) == 7);
  CHECK(names.load<int32_t>("").item(0) == 8);
  CHECK(names.metadata() == io::Metadata{{"\t", "\b\f\r\"\u2028"}});
}

TEST_CASE("a saved file is byte for byte what the reference writes") {
  Folder folder;
  std::string const path = folder / "x.safetensors";
  io::save_safetensors(path, all_types(io::Safetensors{given("all_types.safetensors")}), {{"format", "pt"}});
  CHECK(bytes_of(path) == bytes_of(given("all_types.safetensors")));
  io::Safetensors const names{given("names.safetensors")};
  io::save_safetensors(path, {{"", names.view<int32_t>("")}, {"a\"\\/\n\x01\x7fé€😀", names.view<int32_t>("a\"\\/\n\x01\x7fé€😀")}}, names.metadata());
  CHECK(bytes_of(path) == bytes_of(given("names.safetensors")));
  io::save_safetensors(path, std::vector<io::NamedTensor>{});
  CHECK(bytes_of(path) == bytes_of(given("nothing.safetensors")));
  CHECK(io::Safetensors{path}.keys().empty());
}

TEST_CASE_TEMPLATE("PyTorch's weights are loaded into modules, and saved as PyTorch would", D, Cpu, Gpu) {
  Folder folder;
  std::string const path = folder / "x.safetensors";
  TorchNet<D> net;
  float const* const before = host_device<D> ? net.first.weight.value().data() : nullptr;
  io::LoadResult const result = io::load_safetensors(given("torch_net.safetensors"), net);
  CHECK((result.missing.empty() && result.unexpected.empty()));
  CHECK(holds(net.first.weight.value(), {4, 3}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}));
  CHECK(holds(net.first.bias.value(), {4}, {10, 11, 12, 13}));
  CHECK(holds(net.norm.running_var, {4}, {50, 51, 52, 53}));
  CHECK(net.norm.num_batches_tracked.value() == 60);
  CHECK(holds(net.second.weight.value(), {2, 4}, {70, 71, 72, 73, 74, 75, 76, 77}));
  if (before) CHECK(net.first.weight.value().data() == before);
  io::save_safetensors(path, net, {{"format", "pt"}});
  CHECK(bytes_of(path) == bytes_of(given("torch_net.safetensors")));
}

TEST_CASE("loading is a write that backward() will notice, and only loading is") {
  TorchNet<Cpu> net;
  uint32_t const version = net.first.weight.value().storage_head()->version;
  io::load_safetensors(given("torch_net.safetensors"), net);
  CHECK(net.first.weight.value().storage_head()->version == version + 1);
  CHECK(net.first.weight.value().storage_head()->writer == "load_safetensors"s);
}

TEST_CASE("all that does not fit is in one error, and nothing is changed") {
  io::Safetensors const file{given("torch_net.safetensors")};
  Tensor<float> const weight = full<float>({3, 4}, 7), bias = full<float>({4}, 7), none = full<float>({2}, 7);
  Tensor<double> const mean = full<double>({4}, 7), var = full<double>({5}, 7);
  std::vector<io::NamedTensor> const tensors = {{"1.running_var", var}, {"0.bias", bias}, {"none", none}, {"1.running_mean", mean}, {"0.weight", weight}};
  std::string const path = given("torch_net.safetensors"), begin = "load_safetensors: " + path + ": the file does not fit; nothing was loaded:";
  std::string const ill_fitting =
      "\n  another shape: \"1.running_var\" is [5], in the file [4]"
      "\n  another shape: \"0.weight\" is [3, 4], in the file [4, 3]"
      "\n  another element type: \"1.running_var\" is F64, in the file F32; ask for {.cast = true} to convert it"
      "\n  another element type: \"1.running_mean\" is F64, in the file F32; ask for {.cast = true} to convert it";
  CHECK(thrown<IoError>([&] { io::load_safetensors(path, tensors); },
                        begin +
                            "\n  missing in the file: \"none\", F32 [2]"
                            "\n  unexpected in the file: \"1.num_batches_tracked\", \"I64\" []"
                            "\n  unexpected in the file: \"1.bias\", \"F32\" [4]"
                            "\n  unexpected in the file: \"1.weight\", \"F32\" [4]"
                            "\n  unexpected in the file: \"3.bias\", \"F32\" [2]"
                            "\n  unexpected in the file: \"3.weight\", \"F32\" [2, 4]" +
                            ill_fitting) == "");
  CHECK(thrown<IoError>([&] { io::load_safetensors(path, tensors, {.strict = false}); }, begin + ill_fitting) == "");
  for (auto const* each : {&weight, &bias, &none}) {
    CHECK(holds(*each, each->shape(), std::vector<double>(static_cast<std::size_t>(each->size()), 7)));
    CHECK(each->storage_head()->version == 0);
  }
  CHECK(holds(mean, {4}, {7, 7, 7, 7}));
}

TEST_CASE("loading that is not strict says what was missing and unexpected") {
  Tensor<float> bias = zeros({4});
  Tensor<int32_t> none = full<int32_t>({2}, 7);
  io::LoadResult const result = io::load_safetensors(given("torch_net.safetensors"), {{"0.bias", bias}, {"none", none}}, {.strict = false});
  CHECK(result.missing == std::vector<std::string>{"none"});
  CHECK(result.unexpected == std::vector<std::string>{"1.num_batches_tracked", "0.weight", "1.bias", "1.running_mean", "1.running_var", "1.weight", "3.bias", "3.weight"});
  CHECK(holds(bias, {4}, {10, 11, 12, 13}));
  CHECK(holds(none, {2}, {7, 7}));
}

TEST_CASE("tensors of any type on any device are saved and loaded together") {
  Folder folder;
  std::string const path = folder / "x.safetensors";
  Tensor<float> const a = counting<float>({3, 4});
  Tensor<int64_t, Gpu> const b = counting<int64_t>({5}).to(Gpu{});
  Tensor<bfloat16, Pinned> const c = counting<bfloat16>({2, 2}).to(Pinned{});
  Tensor<bool, Emulated<1>> const d = counting<bool>({7}).to(Emulated<1>{});
  Variable<double> const v{counting<double>({2}, 5)};
  io::save_safetensors(path, {{"a", a}, {"b", b}, {"c", c}, {"d", d}, {"v", v}, {"e", a.t() * 2}});
  // Each onto another device, and into memory with strides.
  Tensor<float, Gpu> a2 = zeros<float>({3, 4}, Gpu{}), e2 = zeros<float>({5, 8}, Gpu{});
  Tensor<int64_t, Emulated<1>> b2 = zeros<int64_t>({5}, Emulated<1>{});
  Tensor<bfloat16> c2 = zeros<bfloat16>({2, 2});
  Tensor<bool, Pinned> d2 = zeros<bool>({7}, Pinned{});
  Tensor<double> v2 = zeros<double>({4});
  io::load_safetensors(path, {{"a", a2}, {"b", b2}, {"c", c2.t()}, {"d", d2.flip(0)}, {"v", v2.slice(0, 0, 4, 2)}, {"e", e2(range(1, 5), range(7, 0, -3))}});
  CHECK(same(a2, a));
  CHECK(same(b2, b));
  CHECK(same(c2.t(), c));
  CHECK(same(d2.flip(0), d));
  CHECK(holds(v2, {4}, {5, 0, 6, 0}));
  Tensor<float> expected = zeros({5, 8});
  expected(range(1, 5), range(7, 0, -3)) = a.t() * 2;
  CHECK(same(e2, expected));
}

TEST_CASE("views are saved in row-major order, wherever they are") {
  Folder folder;
  std::string const path = folder / "x.safetensors";
  Tensor<int16_t> const x = counting<int16_t>({4, 6, 5});
  Tensor<int16_t, Gpu> const y = x.to(Gpu{});
  auto const check = [&](auto const& view) {
    Tensor<int16_t> const on_host = view(x).contiguous();
    io::save_safetensors(path, {{"x", view(x)}, {"y", view(y)}});
    io::Safetensors const file{path};
    CHECK(same(file.view<int16_t>("x"), on_host));
    CHECK(same(file.view<int16_t>("y"), on_host));
  };
  check([](auto const& t) { return t.permute({2, 0, 1}); });
  check([](auto const& t) { return t.flip(1)(all(), range(0, 6, 2), range(1, 4)); });
  check([](auto const& t) { return t.select(1, 3); });
  check([](auto const& t) { return t(1, 2, range(0, 5, 2)); });
  check([](auto const& t) { return t.select(0, 2).select(0, 1).expand({3, 5}); });
  check([](auto const& t) { return t(3, 5, 4, ellipsis()); });
  check([](auto const& t) { return t(all(), range(2, 2)).transpose(0, 2); });
}

TEST_CASE("tensors larger than the staging buffers cross in pieces") {
  Folder folder;
  std::string const path = folder / "x.safetensors";
  int64_t const n = (detail::Staging::capacity * 5 / 2) / 4 + 3;
  Tensor<int32_t> x = Tensor<int32_t>::uninitialized({n});
  int32_t* const data = x.data();
  for (int64_t k = 0; k < n; ++k) data[k] = static_cast<int32_t>(k * 2654435761);
  Tensor<int32_t, Gpu> const small = counting<int32_t>({100}).to(Gpu{});
  io::save_safetensors(path, {{"x", x.to(Gpu{})}, {"a", small}, {"z", small}});
  Tensor<int32_t, Gpu> y = zeros<int32_t>({n}, Gpu{}), a = zeros<int32_t>({100}, Gpu{}), z = zeros<int32_t>({100}, Gpu{});
  io::load_safetensors(path, {{"x", y}, {"a", a}, {"z", z}});
  CHECK(same(y, x));
  CHECK(same(a, small));
  CHECK(same(z, small));
  CHECK(same(io::Safetensors{path}.view<int32_t>("x"), x));
  CHECK(same(io::Safetensors{path}.load<int32_t>("x"), x));
  Tensor<int16_t, Gpu> half = zeros<int16_t>({n}, Gpu{});
  io::load_safetensors(path, {{"x", half}}, {.strict = false, .cast = true});
  CHECK(same(half, x.to<int16_t>()));
}

TEST_CASE("when a device fails there is the old file or the new one") {
  Folder folder;
  std::string const path = folder / "x.safetensors";
  io::save_safetensors(path, {{"x", counting<float>({1000})}});
  std::string const expected = bytes_of(path);
  int failures = 0;
  for (int at = 1; at < 8; ++at) {
    put(path, "old");
    emulated::configure({.devices = 2, .fail_at = at});
    bool failed = false;
    try {
      Tensor<float, Gpu> const x = counting<float>({1000}).to(Gpu{});
      io::save_safetensors(path, {{"x", x}});
    } catch (Error const&) { failed = true; }
    CHECK(bytes_of(path) == (failed ? "old" : expected));
    failures += failed;
  }
  CHECK(failures > 1);
  emulated::configure();
}

TEST_CASE("a view's elements are the file's memory, read-only, which stays when the file does not") {
  Folder folder;
  std::string const path = folder / "x.safetensors";
  Tensor<float> const x = counting<float>({100, 30});
  io::save_safetensors(path, {{"x", x}, {"y", x}});
  Tensor<float> view, other;
  {
    io::Safetensors file{path};
    view = file.view<float>("x");
    other = file.view<float>("y");
    io::Safetensors const copy = file;
    CHECK(std::as_const(view).data() + 3000 == std::as_const(other).data());  // in one mapping, one behind the other
    CHECK(std::as_const(view).data() == copy.view<float>("x").storage_head()->memory);
  }
  io::save_safetensors(path, {{"x", x * 2}});
  ::unlink(path.c_str());
  CHECK(same(view, x));
  CHECK(same(other.t(), x.t()));
  CHECK(thrown<TypeError>([&] { view[0] = 1.f; }, "assign: the storage is read-only: it was given as a pointer to const; write to a clone() of it") == "");
  CHECK(thrown<TypeError>([&] { (void)view.data(); }, "data: the storage is read-only: it was given as a pointer to const; write to a clone() of it") == "");
  CHECK(thrown<TypeError>([&] { io::load_safetensors(given("torch_net.safetensors"), {{"0.weight", view}}); },
                          "load_safetensors: the storage is read-only: it was given as a pointer to const; write to a clone() of it") == "");
}

TEST_CASE("what does not lie in the file as it should is copied by a view") {
  io::Safetensors const file{given("foreign.safetensors")};
  CHECK(holds(file.view<float>("odd"), {2}, {1.5, -2}));
  Tensor<float> copy = file.view<float>("odd");
  CHECK(reinterpret_cast<std::uintptr_t>(std::as_const(copy).data()) % alignof(float) == 0);
  CHECK(thrown<TypeError>([&] { copy += 1.f; }, "operator+=: the storage is read-only: it was given as a pointer to const; write to a clone() of it") == "");
  copy = copy * 2.f;  // in other memory
  copy += 1.f;
  CHECK(holds(copy, {2}, {4, -3}));
  CHECK(holds(file.view<bool>("bools"), {3}, {0, 1, 1}));
  CHECK(holds(file.load<bool>("bools", Gpu{}), {3}, {0, 1, 1}));
  CHECK(holds(file.load<int32_t>("bools", Cpu{}, {.cast = true}), {3}, {0, 1, 1}));
  CHECK(io::Safetensors{given("all_types.safetensors")}.view<float>("empty").shape() == Shape(3, 0, 2));
}

TEST_CASE("types and ranks that situ has not are listed, and not loaded") {
  std::string const path = given("foreign.safetensors");
  io::Safetensors const file{path};
  CHECK(file.keys() == std::vector<std::string>{"c64", "f4", "later", "axes", "odd", "bools"});
  CHECK(file.shape("f4") == Shape(3, 2));
  CHECK(file.type_name("later") == "Q7");
  CHECK(thrown<TypeError>([&] { (void)file.dtype("c64"); }, "Safetensors::dtype: " + path + ": tensor \"c64\" has elements of type \"C64\", which situ has not; convert the file") == "");
  CHECK(thrown<TypeError>([&] { (void)file.load<float>("later", Cpu{}, {.cast = true}); },
                          "Safetensors::load: " + path + ": tensor \"later\" has elements of type \"Q7\", which situ has not; convert the file") == "");
  CHECK(thrown<ShapeError>([&] { (void)file.view<uint8_t>("axes"); }, "Safetensors::view: " + path + ": tensor \"axes\" has 9 axes; a Tensor has at most 8") == "");
  CHECK(thrown<IoError>([&] { (void)file.load<double>("odd"); },
                        "Safetensors::load: " + path +
                            ": tensor \"odd\" has another element type: F32 found, F64 was asked for; ask for float32, or convert it: load<T>(key, device, {.cast = true})") == "");
  CHECK(thrown<IoError>([&] { (void)file.shape("no\n"); },
                        "Safetensors::shape: " + path + ": there is no tensor \"no\\n\"; it has \"c64\", \"f4\", \"later\", \"axes\", \"odd\", \"bools\"") == "");
  CHECK(thrown<IoError>([&] { (void)io::Safetensors{given("all_types.safetensors")}.view<float>("x"); },
                        "Safetensors::view: " + given("all_types.safetensors") +
                            ": there is no tensor \"x\"; it has \"i64\", \"f64\", \"empty\", \"f32\", \"scalar\", \"i32\", \"rank_4\", \"bf16\" and 5 more") == "");
  Tensor<float> const c = zeros({1});
  CHECK(thrown<IoError>([&] { io::load_safetensors(path, {{"c64", c}}, {.strict = false, .cast = true}); },
                        "load_safetensors: " + path + ": the file does not fit; nothing was loaded:\n  another element type: \"c64\" is F32, in the file \"C64\", which situ has not") == "");
}

TEST_CASE_TEMPLATE("element types are converted as cast does, when that is asked for", T, float, double, float16, bfloat16, bool, int8_t, int16_t, int32_t, int64_t, uint8_t) {
  Folder folder;
  std::string const path = folder / "x.safetensors";
  double const nan = std::numeric_limits<double>::quiet_NaN();
  // The last ones are nearer to a middle between two 16-bit floats than a float tells.
  Tensor<double> const d{-1.5, 1e300, nan, -1e10, 300.7, 0.1, 0, 2147483649.0, 65519, 1 + 0x1p-11 + 0x1p-40, -1 - 0x1p-8 - 0x1p-40};
  Tensor<float> const f = cast<float>(d);
  Tensor<float16> const h = cast<float16>(d);
  Tensor<bfloat16> const b = cast<bfloat16>(d);
  Tensor<int64_t> const i{0, -1, 1, 127, 128, 9007199254740993, -9223372036854775807, 4294967297, 16777217};
  Tensor<bool> const o{true, false};
  Tensor<uint8_t> const u{0, 255};
  io::save_safetensors(path, {{"d", d}, {"f", f}, {"h", h}, {"b", b}, {"i", i}, {"o", o}, {"u", u}});
  io::Safetensors const file{path};
  auto const check = [&](char const* key, auto const& from) {
    CAPTURE(key);
    Tensor<T> const got = file.load<T>(key, Cpu{}, {.cast = true});
    for (int64_t k = 0; k < from.size(); ++k) {
      CAPTURE(k);
      T const expected = detail::convert_scalar<T>(from(k)), found = std::as_const(got)(k);
      CHECK((std::memcmp(&found, &expected, sizeof(T)) == 0 || (detail::convert_scalar<double>(found) != detail::convert_scalar<double>(found) &&
                                                                detail::convert_scalar<double>(expected) != detail::convert_scalar<double>(expected))));
    }
  };
  check("d", d), check("f", f), check("h", h), check("b", b), check("i", i), check("o", o), check("u", u);
}

TEST_CASE("a parameter in two places is written once, and one of its names is enough") {
  Folder folder;
  std::string const path = folder / "x.safetensors", both = folder / "both.safetensors";
  Tied net;
  net.encoder.weight.value().assign(counting<float>({3, 3}));
  io::save_safetensors(path, net);
  CHECK(io::Safetensors{path}.keys() == std::vector<std::string>{"decoder.bias", "encoder.bias", "encoder.weight"});
  Tied other;
  io::load_safetensors(path, other);
  CHECK(same(other.decoder.weight.value(), net.encoder.weight.value()));
  io::save_safetensors(both, {{"encoder.bias", zeros({3})}, {"decoder.bias", zeros({3})}, {"decoder.weight", net.encoder.weight}});
  other.encoder.weight.value().assign(0.f);
  CHECK(io::load_safetensors(both, other).missing.empty());
  CHECK(same(other.encoder.weight.value(), net.encoder.weight.value()));
  // Tensors that are named one by one are what they are called.
  io::save_safetensors(both, {{"a", net.encoder.weight}, {"b", net.encoder.weight}});
  CHECK(io::Safetensors{both}.size() == 2);
}

TEST_CASE("states with prefixes share a file") {
  Folder folder;
  std::string const path = folder / "x.safetensors";
  TorchNet<Cpu> net;
  Tied tied;
  io::load_safetensors(given("torch_net.safetensors"), net);
  auto all = io::named_state(net, "model.");
  for (auto const& each : io::named_state(tied, "other.")) all.push_back(each);
  CHECK(all[0].name() == "model.0.weight");
  CHECK(all[0].dtype() == dtype::float32);
  CHECK(all[0].shape() == Shape(4, 3));
  CHECK(all[0].size() == 12);
  io::save_safetensors(path, all);
  TorchNet<Gpu> on_device;
  io::load_safetensors(path, io::named_state(on_device, "model."), {.strict = false});
  CHECK(same(on_device.second.weight.value(), net.second.weight.value()));
}

TEST_CASE("names and targets that cannot be are refused before anything is touched") {
  Folder folder;
  std::string const path = folder / "x.safetensors";
  Tensor<float> const x = counting<float>({2});
  put(path, "old");
  auto const message = [&](char const* what) { return "save_safetensors: " + path + ": " + what; };
  CHECK(thrown<IoError>([&] { io::save_safetensors(path, {{"a", x}, {"b", x}, {"a", x}}); }, message("two tensors are called \"a\"; names are unique")) == "");
  CHECK(thrown<IoError>([&] { io::save_safetensors(path, {{"\xff", x}}); }, message("the name '\\xff' is not UTF-8; UTF-8 is needed")) == "");
  CHECK(thrown<IoError>([&] { io::save_safetensors(path, {{"a", x}}, {{"note", "\xff"}}); }, message("the text '\\xff' is not UTF-8; UTF-8 is needed")) == "");
  CHECK(thrown<IoError>([&] { io::save_safetensors(path, {{"a", x}}, {{"\xff", "note"}}); }, message("the key '\\xff' is not UTF-8; UTF-8 is needed")) == "");
  CHECK(thrown<IoError>([&] { io::save_safetensors(path, {{"__metadata__", x}}); },
                        message("a tensor cannot be called \"__metadata__\": the format keeps the metadata under that name")) == "");
  CHECK(thrown<IoError>([&] { io::save_safetensors(path, {{"a", x}}, {{"k", "1"}, {"k", "2"}}); }, message("key \"k\" of the metadata was given twice; keys are unique")) == "");
  CHECK(bytes_of(path) == "old");
  std::string const net = given("torch_net.safetensors");
  CHECK(thrown<IoError>([&] { io::load_safetensors(net, {{"a", x}, {"a", x}}); }, "load_safetensors: " + net + ": two tensors are called \"a\"; names are unique") == "");
  CHECK(thrown<TypeError>([&] { io::load_safetensors(net, {{"a", x * 2}}); },
                          "load_safetensors: \"a\" is the value of an expression: nobody would see what is loaded into it; give a tensor") == "");
  CHECK(thrown<LayoutError>([&] { io::load_safetensors(net, {{"a", x.expand({3, 2})}}); },
                            "load_safetensors: writing to a broadcast view of shape [3, 2] with strides [0, 1] would write elements more than once; write to a clone() of it") == "");
}

TEST_CASE("a save that fails leaves the old file and nothing else") {
  Folder folder;
  std::string const path = folder / "x.safetensors", missing = folder.name + "/none/x.safetensors";
  put(path, "old");
  Tensor<float> const x = counting<float>({5000});
  situ_test::with_full_disk(1000, [&] { CHECK_THROWS_AS(io::save_safetensors(path, {{"x", x}}), IoError); });
  CHECK(bytes_of(path) == "old");
  situ_test::with_full_disk(9000, [&] { CHECK_THROWS_AS(io::save_safetensors(path, {{"x", x.slice(0, 0, 5000, 2)}, {"y", x.to(Gpu{})}}), IoError); });
  CHECK(bytes_of(path) == "old");
  CHECK(thrown<IoError>([&] { io::save_safetensors(missing, {{"x", x}}); },
                        "save_safetensors: " + missing + ": cannot be written: No such file or directory; a writable folder is needed") == "");
  CHECK(thrown<IoError>([&] { io::save_safetensors("/dev/null", {{"x", x}}); },
                        "save_safetensors: /dev/null: is not an ordinary file: a device found; a regular file or a new name is needed") == "");
}

TEST_CASE("saving replaces a file, keeps its permissions and follows a symbolic link") {
  Folder folder;
  std::string const path = folder / "x.safetensors", link = folder / "link";
  put(path, "old");
  REQUIRE(::chmod(path.c_str(), 0640) == 0);
  REQUIRE(::symlink("x.safetensors", link.c_str()) == 0);
  io::save_safetensors(link, {{"x", counting<float>({2})}});
  CHECK(holds(io::Safetensors{path}.load<float>("x"), {2}, {0, 1}));
  struct ::stat status{};
  REQUIRE(::lstat(link.c_str(), &status) == 0);
  CHECK(S_ISLNK(status.st_mode));
  REQUIRE(::stat(path.c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0640);
  // Links that lead to no file yet: to one in another folder, through a second link.
  REQUIRE(::mkdir((folder / "runs").c_str(), 0700) == 0);
  REQUIRE(::symlink("new.safetensors", (folder / "runs/last").c_str()) == 0);
  REQUIRE(::symlink((folder.name + "/runs/last").c_str(), (folder / "latest").c_str()) == 0);
  io::save_safetensors(folder / "latest", {{"x", counting<float>({2})}});
  for (char const* each : {"latest", "runs/last"}) {
    REQUIRE(::lstat((folder / each).c_str(), &status) == 0);
    CHECK(S_ISLNK(status.st_mode));
  }
  CHECK(holds(io::Safetensors{folder.name + "/runs/new.safetensors"}.load<float>("x"), {2}, {0, 1}));
  REQUIRE(::symlink("circle", (folder / "circle").c_str()) == 0);
  io::save_safetensors(folder / "circle", {{"x", counting<float>({2})}});
  CHECK(holds(io::Safetensors{folder.name + "/circle"}.load<float>("x"), {2}, {0, 1}));
  std::remove((folder.name + "/runs/last").c_str()), std::remove((folder.name + "/runs/new.safetensors").c_str()), ::rmdir((folder.name + "/runs").c_str());
}

TEST_CASE("a file that cannot be read is named") {
  Folder folder;
  std::string const path = folder / "x.safetensors";
  Tensor<float> const x = zeros({2});
  CHECK(thrown<IoError>([&] { io::load_safetensors(path, {{"x", x}}); }, "load_safetensors: " + path + ": cannot be opened: No such file or directory; a readable file is needed") == "");
  CHECK(thrown<IoError>([&] { io::Safetensors{folder.name}; }, "Safetensors: " + folder.name + ": is not an ordinary file: a folder found; a regular file is needed") == "");
  put(path, "{\"x\":1}");
  CHECK(thrown<IoError>([&] { io::load_safetensors(path, {{"x", x}}); },
                        "load_safetensors: " + path + ": the file is too short: 7 bytes found; a safetensors file begins with the 8 bytes of its header's length") == "");
  // A file that is cut between its header and its elements.
  io::save_safetensors(path, {{"x", counting<float>({100000})}});
  io::Safetensors const file{path};
  REQUIRE(::truncate(path.c_str(), 200000) == 0);
  CHECK(thrown<IoError>([&] { (void)file.load<float>("x"); }, "Safetensors: " + path + ": became shorter while it was read: it ends at byte 200000; 400072 bytes are needed") == "");
}

TEST_CASE("small tensors are read together, also with others between them that nobody asks for") {
  Folder folder;
  std::vector<io::NamedTensor> saved, loaded;
  std::vector<Tensor<float>> targets;
  for (int k = 0; k < 200; ++k) {
    int64_t const size = k == 150 ? 400'000 : k % 9;  // one that is read alone; some are empty
    saved.push_back({"t" + std::to_string(1000 + k), Tensor<float>(arange<float>(size) + static_cast<float>(1000 * k))});
    if (k % 70 == 5) continue;  // the file goes on behind them
    targets.push_back(zeros<float>({size}));
    loaded.push_back({saved.back().name(), targets.back()});
  }
  std::string const path = folder / "many.safetensors";
  io::save_safetensors(path, saved);
  auto const result = io::load_safetensors(path, loaded, {.strict = false});
  CHECK(result.unexpected == std::vector<std::string>{"t1005", "t1075", "t1145"});
  int wrong = 0;
  for (std::size_t n = 0; n < targets.size(); ++n) {
    int const k = std::stoi(loaded[n].name().substr(1)) - 1000;
    auto const values = targets[n].to_vector();
    for (std::size_t i = 0; i < values.size(); ++i) wrong += values[i] != static_cast<float>(1000 * k) + static_cast<float>(i);
  }
  CHECK(wrong == 0);
}
