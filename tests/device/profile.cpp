#include <situ/device/profile.hpp>

#include <doctest/doctest.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include <pthread.h>
#include <unistd.h>
#include <situ/device/emulated/device.hpp>
#include <situ/device/pinned.hpp>
#include <situ/device/event.hpp>
#include <situ/device/query.hpp>
#include <situ/expr/functions.hpp>
#include <situ/ops/index.hpp>
#include <situ/ops/reduce.hpp>
#include <situ/tensor/factories.hpp>
#include <situ/tensor/transfer.hpp>
#include <situ/tensor/transfer_async.hpp>

#include "support/compare.hpp"

using namespace situ;

namespace {

using Device = Emulated<0>;

profile::row const* find(std::vector<profile::row> const& rows, std::string const& kind, std::string const& name, std::string const& device) {
  for (auto const& row : rows) {
    if (row.kind == kind && row.name == name && row.device == device) return &row;
  }
  return nullptr;
}

std::string names_of(std::vector<profile::row> const& rows, std::string const& kind) {
  std::string result;
  for (auto const& row : rows) {
    if (row.kind == kind) result += (result.empty() ? "" : "; ") + row.name;
  }
  return result;
}

template <class F>
std::string launches_of(F f) {
  profile p;
  f();
  p.stop();
  return names_of(p.rows(), "launch");
}

/// A reader of JSON that keeps nothing: whether the text is one value.
struct Json {
  char const* at;

  void space() {
    while (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r') ++at;
  }
  bool literal(char const* word) {
    for (; *word; ++word, ++at) {
      if (*at != *word) return false;
    }
    return true;
  }
  bool text() {
    if (*at++ != '"') return false;
    for (; *at != '"'; ++at) {
      if (static_cast<unsigned char>(*at) < 0x20) return false;
      if (*at == '\\' && !*++at) return false;
    }
    return *at++ == '"';
  }
  bool list(char close, bool pairs) {
    ++at;
    space();
    if (*at == close) return ++at, true;
    for (;;) {
      space();
      if (pairs && !text()) return false;
      space();
      if (pairs && *at++ != ':') return false;
      if (!value()) return false;
      space();
      if (*at == close) return ++at, true;
      if (*at++ != ',') return false;
    }
  }
  bool value() {
    space();
    switch (*at) {
      case '{': return list('}', true);
      case '[': return list(']', false);
      case '"': return text();
      case 't': return literal("true");
      case 'f': return literal("false");
      case 'n': return literal("null");
      default: break;
    }
    char* end = nullptr;
    std::strtod(at, &end);
    bool const number = end != at;
    at = end;
    return number;
  }
  static bool is_valid(std::string const& json) {
    Json reader{json.c_str()};
    bool const valid = reader.value();
    reader.space();
    return valid && *reader.at == 0;
  }
};

int64_t occurrences(std::string const& text, std::string const& part) {
  int64_t result = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++result;
  return result;
}

}  // namespace

TEST_CASE_TEMPLATE("a chain of operators is one launch and one allocation", D, Cpu, Device) {
  for (int64_t n : {4, 1000, 3000000}) {
    auto const a = ones({n}).to(D{}), b = ones({n}).to(D{}), c = ones({n}).to(D{});
    synchronize(D{});
    profile p;
    Tensor<float, D> const y = tanh(a * b + c) * 0.5f;
    CHECK(p.launches() == 1);
    CHECK(p.allocations() == 1);
    CHECK(p.transfers() == 0);
    CHECK(p.copies() == 0);
    CHECK(p.synchronizations() == 0);
    p.stop();
    CHECK(p.launches(D{}) == 1);
    CHECK(p.allocations(D{}) == 1);
    CHECK(p.launches(Emulated<1>{}) == 0);
    auto const rows = p.rows();
    auto const* const launch = find(rows, "launch", "tanh((a * b) + c) * number", device_traits<D>::name());
    REQUIRE(launch);
    CHECK(launch->count == 1);
    CHECK(launch->seconds > 0);
    CHECK(launch->longest == launch->seconds);
    auto const* const allocation = find(rows, "allocation", "allocate", device_traits<D>::name());
    REQUIRE(allocation);
    CHECK(allocation->bytes >= n * 4);
    CHECK(y.size() == n);
  }
}

TEST_CASE("an update in place allocates nothing, and a profile shows it") {
  Tensor<float> z = ones({10000}), x = ones({10000});
  profile p;
  for (int k = 0; k < 7; ++k) z = z * x;
  p.stop();
  CHECK(p.launches() == 7);
  CHECK(p.allocations() == 0);
}

TEST_CASE("launches are named by their formulas") {
  Tensor<float> a = ones({40, 50}), b = ones({40, 50}), v = ones({50});
  CHECK(launches_of([&] { Tensor y = a + v; }) == "a + b");
  CHECK(launches_of([&] { Tensor y = (a + b) / (1 - a); }) == "(a + b) / (number - c)");
  CHECK(launches_of([&] { Tensor y = where(a > b, -a, maximum(b, v)); }) == "where(a > b, -c, maximum(d, e))");
  CHECK(launches_of([&] { Tensor y = cast<int32_t>(a); }) == "cast<int32>(a)");
  CHECK(launches_of([&] { a.t().contiguous(); }) == "copy");
  CHECK(launches_of([&] { zeros({30}); }) == "fill");
  CHECK(launches_of([&] { a(all(), 0) = 3; }) == "fill");
  CHECK(launches_of([&] { sum(a * b); }).starts_with("sum(a * b)"));
  CHECK(launches_of([&] { max(a, 0); }).starts_with("max"));
  auto const d = a.to(Device{});
  CHECK(launches_of([&] { Tensor y = d * d; }) == "a * b");
}

TEST_CASE("many launches of a formula are one row, the longest row first") {
  Tensor<float> a = ones({100}), large = ones({4000000});
  profile p;
  for (int k = 0; k < 5; ++k) Tensor<float> const y = a * static_cast<float>(k);
  Tensor<float> const y = large + large;
  p.stop();
  auto const rows = p.rows();
  auto const* const products = find(rows, "launch", "a * number", "cpu");
  REQUIRE(products);
  CHECK(products->count == 5);
  CHECK(products->longest <= products->seconds);
  for (std::size_t k = 1; k < rows.size(); ++k) CHECK(rows[k - 1].seconds >= rows[k].seconds);
}

TEST_CASE("transfers have a direction and bytes, copies within a device are told apart") {
  Tensor<float> const a = ones({1000});
  profile p;
  auto const x = a.to(Device{});
  auto const copy = x.clone();
  auto const there = x.to(Emulated<1>{});
  auto const back = there.cpu();
  float const first = x.item(0);
  auto const p1 = pin(a);
  p.stop();
  CHECK(first == 1);
  CHECK(p.transfers() == 4);
  CHECK(p.transfers(Device{}) == 3);
  CHECK(p.transfers(Emulated<1>{}) == 2);
  CHECK(p.copies() == 1);
  auto const rows = p.rows();
  CHECK(find(rows, "transfer", "cpu -> emulated:0", "emulated:0")->bytes == 4000);
  CHECK(find(rows, "transfer", "emulated:0 -> emulated:1", "emulated:1")->bytes == 4000);
  CHECK(find(rows, "transfer", "emulated:1 -> cpu", "cpu")->bytes == 4000);
  CHECK(find(rows, "transfer", "emulated:0 -> cpu", "cpu")->bytes == 4);
  CHECK(find(rows, "copy", "emulated:0 -> emulated:0", "emulated:0")->bytes == 4000);
}

TEST_CASE("waiting for a device is told") {
  auto const x = ones({1000}).to(Device{});
  profile p;
  auto const y = x + 1;
  synchronize(Device{});
  synchronize(Cpu{});
  p.stop();
  CHECK(p.synchronizations() == 1);
  CHECK(find(p.rows(), "synchronization", "synchronize", "emulated:0"));
}

TEST_CASE("waiting for a copy or an event is told, and what is there already is no wait") {
  Stream<Device> const s;
  StreamGuard const guard{s};
  auto const x = ones({1000}, Device{});
  s.synchronize();
  profile p;
  emulated::delay(s, 3);
  auto const h = x.to_async(Pinned{});
  CHECK(p.synchronizations() == 0);
  CHECK(h.get()(7) == 1);
  CHECK(p.synchronizations() == 1);
  CHECK(h.get()(8) == 1);
  Event<Device> event;
  emulated::delay(s, 3);
  event.record(s);
  event.synchronize();
  event.synchronize();
  p.stop();
  CHECK(p.synchronizations() == 2);
  auto const rows = p.rows();
  auto const* const waits = find(rows, "synchronization", "Event::synchronize", "emulated:0");
  REQUIRE(waits);
  CHECK(waits->count == 2);
  CHECK(waits->seconds > 0.003);
}

namespace {
struct Slow {
  float* data;
  void operator()(int64_t first, int64_t last) const {
    ::usleep(20000);
    for (int64_t i = first; i < last; ++i) data[i] = 1;
  }
};
}  // namespace

TEST_CASE("a launch lasts as long as it runs on its device, not as long as it takes to enqueue") {
  Tensor<float, Device> x = Tensor<float, Device>::uninitialized({4});
  profile p;
  for (int k = 0; k < 3; ++k) device_traits<Device>::launch(Slow{x.data()}, 4, 4);
  CHECK(p.launches() == 3);  // nothing is waited for
  auto const rows = p.rows();  // here it is
  auto const* const slow = find(rows, "launch", "Slow", "emulated:0");
  REQUIRE(slow);
  CHECK(slow->count == 3);
  CHECK(slow->seconds >= 0.06);
  CHECK(slow->longest >= 0.02);
  CHECK(slow->longest < 0.05);
}

TEST_CASE("what was enqueued before a profile is not part of it, and profiles may overlap") {
  Tensor<float, Device> x = ones({4}).to(Device{});
  device_traits<Device>::launch(Slow{x.data()}, 4, 4);
  profile outer;
  Tensor<float, Device> const y = x + 1;
  {
    profile inner;
    Tensor<float, Device> const z = x * 2;
    CHECK(inner.launches() == 1);
    CHECK(outer.launches() == 2);
    inner.stop();
    CHECK(names_of(inner.rows(), "launch") == "a * number");
  }
  Tensor<float, Device> const w = x * y;
  outer.stop();
  Tensor<float, Device> const after = x * y;
  CHECK(outer.launches() == 3);
  CHECK(outer.allocations() == 3);
  outer.stop();
  CHECK(outer.launches() == 3);
}

TEST_CASE("an allocation that fails is none") {
  profile p;
  CHECK_THROWS_AS(zeros({int64_t{1} << 50}), OutOfMemory);
  CHECK_THROWS_AS((Tensor<float, Device>::uninitialized({int64_t{1} << 40})), OutOfMemory);
  CHECK(p.allocations() == 0);
  CHECK(p.launches() == 0);
}

namespace {
void* work(void*) {
  Tensor<float> x = ones({100});
  for (int k = 0; k < 500; ++k) x = x * 1.5f;
  auto y = x.to(Device{});
  for (int k = 0; k < 100; ++k) y = y + 1;
  return nullptr;
}
}  // namespace

TEST_CASE("a profile records what all threads do") {
  profile p;
  pthread_t threads[3];
  for (auto& thread : threads) REQUIRE(pthread_create(&thread, nullptr, &work, nullptr) == 0);
  for (int k = 0; k < 20; ++k) {
    profile short_one;
    short_one.stop();
  }
  for (auto& thread : threads) pthread_join(thread, nullptr);
  p.stop();
  CHECK(p.launches(Cpu{}) == 3 * 501);
  CHECK(p.launches(Device{}) == 3 * 100);
  CHECK(p.transfers() == 3);
}

namespace {
bool serving = false, served = false;
void* serve(void*) {
  ProfileRange const range("serve");
  __atomic_store_n(&serving, true, __ATOMIC_RELEASE);
  while (!__atomic_load_n(&served, __ATOMIC_ACQUIRE)) ::usleep(100);
  return nullptr;
}
}  // namespace

TEST_CASE("a profile ends while a range of another thread lasts") {
  profile p;
  pthread_t thread;
  REQUIRE(pthread_create(&thread, nullptr, &serve, nullptr) == 0);
  while (!__atomic_load_n(&serving, __ATOMIC_ACQUIRE)) ::usleep(100);
  p.stop();
  CHECK(p.rows().size() == 1);
  __atomic_store_n(&served, true, __ATOMIC_RELEASE);
  pthread_join(thread, nullptr);
}

TEST_CASE("nothing is recorded, and blocks take the short way, when no profile runs") {
  {
    profile p;
    CHECK(detail::cpu::memory_state().small_limit == 0);
  }
  CHECK(detail::cpu::memory_state().small_limit == detail::cpu::large_block);
  Tensor<float> const x = ones({10}) + 1;
  CHECK(detail::profile_store().count == 0);
  CHECK(detail::profile_store().events == nullptr);
  CHECK_FALSE(detail::is_observed(detail::profiles));
}

TEST_CASE("a profile prints as a table") {
  Tensor<float> const a = ones({256});
  profile p;
  Tensor<float> const y = a * a;
  auto const x = y.to(Device{});
  p.stop();
  std::ostringstream out;
  out << p;
  std::string const text = out.str();
  CHECK(text == to_string(p));
  CHECK(text.starts_with("1 launch, 2 allocations ("));
  CHECK(text.find("1 transfer (1.0 KiB), 0 synchronizations in ") != std::string::npos);
  CHECK(text.find("\nkind ") != std::string::npos);
  CHECK(text.find("\nlaunch      a * b ") != std::string::npos);
  CHECK(text.find("\ntransfer    cpu -> emulated:0 ") != std::string::npos);
  CHECK(occurrences(text, "\n") == 6);
}

TEST_CASE("a trace file is valid JSON with an event for each thing that happened") {
  Tensor<float> const a = ones({256});
  profile p;
  {
    ProfileRange const range("a \"part\"\\\n");
    Tensor<float> const y = a * a;
    auto const x = y.to(Device{});
    Tensor<float, Device> const z = x + 1;
  }
  std::string const path = std::string(std::getenv("TMPDIR") ? std::getenv("TMPDIR") : "/tmp") + "/situ_trace_" + std::to_string(::getpid()) + ".json";
  p.write_chrome_trace(path);  // also while it runs
  p.stop();
  p.write_chrome_trace(path);
  std::ifstream file(path);
  std::string const json((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  CHECK(json == p.chrome_trace());
  CHECK(Json::is_valid(json));
  CHECK_FALSE(Json::is_valid(json + "]"));
  CHECK(occurrences(json, "\"ph\":\"X\"") == 2 + 3 + 1 + 1);  // launches, allocations, the transfer, the range
  CHECK(occurrences(json, "\"ph\":\"C\"") == 3 + 3);
  CHECK(json.find("\"name\":\"a * b\",\"cat\":\"launch\"") != std::string::npos);
  CHECK(json.find("\"name\":\"a \\\"part\\\"\\\\\\u000a\",\"cat\":\"range\"") != std::string::npos);
  CHECK(json.find("\"site\":\"profile.cpp:") != std::string::npos);
  CHECK(json.find("emulated:0 thread") != std::string::npos);
  if (std::system("python3 -c pass 2> /dev/null") == 0) {
    std::string const check = "python3 -c \"import json, sys; json.load(open(sys.argv[1]))['traceEvents'][0]['name']\" " + path;
    CHECK(std::system(check.c_str()) == 0);
  }
  std::remove(path.c_str());
  CHECK(situ_test::thrown<IoError>([&] { p.write_chrome_trace("/nonexistent/trace.json"); },
                                   "write_chrome_trace: /nonexistent/trace.json: the file cannot be written") == "");
}

TEST_CASE("times in a trace do not depend on the locale") {
  using detail::microseconds_text;
  CHECK(microseconds_text(0) == "0.000");
  CHECK(microseconds_text(1) == "0.001");
  CHECK(microseconds_text(1234567) == "1234.567");
  CHECK(microseconds_text(-7) == "-0.007");
  CHECK(microseconds_text(-1500) == "-1.500");
}

TEST_CASE("checked launches are waited for, and throw what they found wrong themselves") {
  Tensor<float, Device> const x = ones({4}).to(Device{});
  Tensor<int64_t, Device> const bad = Tensor<int64_t>{1, 7}.to(Device{});
  {
    auto const y = index_select(x, 0, bad);
    CHECK_THROWS_AS(synchronize(Device{}), IndexError);
  }
  gpu::check_launches(true);
  CHECK_THROWS_AS(index_select(x, 0, bad), IndexError);
  synchronize(Device{});
  Tensor<float, Device> z = x + 1;
  CHECK(situ_test::thrown<IndexError>([&] { index_select(z, 0, bad); },
                                      "emulated:0: index_select: index 7 (element 1 of the indices) is out of range for axis 0: it has 4 elements; the operation ran "
                                      "without it, and its result must not be used") == "");
  device_traits<Device>::launch(Slow{z.data()}, 4, 4);
  profile p;
  synchronize(Device{});
  p.stop();
  CHECK(p.rows().at(0).seconds < 0.01);  // nothing was left to wait for
  gpu::check_launches(false);
}

TEST_CASE("in a process with SITU_CHECK_LAUNCHES=1" * doctest::skip()) {
  Tensor<float, Device> const x = ones({4}).to(Device{});
  CHECK_THROWS_AS(index_select(x, 0, Tensor<int64_t>{1, 7}.to(Device{})), IndexError);
}

TEST_CASE("SITU_CHECK_LAUNCHES in the environment checks launches from the start") {
  char program[4096];
  auto const length = ::readlink("/proc/self/exe", program, sizeof program - 1);
  if (length <= 0) return;
  program[length] = 0;
  std::string const run = std::string("'") + program + "' --no-skip --test-case='in a process with SITU_CHECK_LAUNCHES=1' > /dev/null";
  CHECK(std::system(("SITU_CHECK_LAUNCHES=1 " + run).c_str()) == 0);
  CHECK(std::system(("SITU_CHECK_LAUNCHES=0 " + run).c_str()) != 0);
}

TEST_CASE("a launch that fails is named") {
  emulated::configure();
  {
    Tensor<float, Device> const x = ones({4}).to(Device{});
    (void)x;
  }
  emulated::configure({.fail_at = 3});
  {
    Tensor<float, Device> const x = ones({4}).to(Device{});  // an allocation and a copy
    CHECK(situ_test::thrown<emulated::InjectedFault>([&] { Tensor<float, Device> const y = tanh(x * 2); },
                                                     "emulated:0: launch of tanh(a * number) failed: operation 3 was made to fail by emulated::configure({.fail_at = "
                                                     "3}); the next operation works") == "");
  }
  emulated::configure();
}
