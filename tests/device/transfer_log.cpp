#include <situ/device/transfer_log.hpp>

#include <doctest/doctest.h>

#include <sstream>
#include <string>

#include <situ/device/emulated/device.hpp>
#include <situ/device/pinned.hpp>
#include <situ/expr/functions.hpp>
#include <situ/tensor/factories.hpp>
#include <situ/tensor/print.hpp>
#include <situ/tensor/transfer.hpp>
#include <situ/tensor/transfer_async.hpp>

using namespace situ;

namespace {
using Device = Emulated<0>;

std::string here(int line) { return "transfer_log.cpp:" + std::to_string(line); }
}  // namespace

TEST_CASE("a log counts transfers and bytes by direction") {
  Tensor<float> const a = ones({1000});
  TransferLog log;
  auto const x = a.to(Device{});
  auto const y = x.to(Emulated<1>{});
  for (int k = 0; k < 5; ++k) (void)y.cpu();
  CHECK(log.count() == 7);
  CHECK(log.bytes() == 7 * 4000);
  CHECK(log.count(Cpu{}, Device{}) == 1);
  CHECK(log.count(Device{}, Emulated<1>{}) == 1);
  CHECK(log.count(Emulated<1>{}, Cpu{}) == 5);
  CHECK(log.bytes(Emulated<1>{}, Cpu{}) == 20000);
  CHECK(log.count(Emulated<1>{}, Device{}) == 0);
  log.reset();
  CHECK(log.count() == 0);
}

TEST_CASE("a log names the lines that move, so that a loop with too many is seen") {
  auto const x = ones({100}).to(Device{});
  TransferLog log;
  float total = 0;
  int const loop = __LINE__ + 1;
  for (int k = 0; k < 50; ++k) total += (x * 2).to(Cpu{})(k);
  int const once = __LINE__ + 1;
  auto const all = x.cpu();
  int const one = __LINE__ + 1;
  total += Tensor<float, Device>(x(range(0, 1))).item();
  int const more = __LINE__ + 1;
  auto const values = x.to_vector();
  CHECK(total == 101);
  auto const rows = log.rows();
  REQUIRE(rows.size() == 4);
  CHECK(rows[0].site == here(loop));
  CHECK(rows[0].count == 50);
  CHECK(rows[0].bytes == 50 * 400);
  CHECK(rows[0].from == AnyDevice(Device{}));
  CHECK(rows[0].to == AnyDevice(Cpu{}));
  CHECK(rows[1].site == here(once));
  CHECK(rows[2].site == "to_vector at " + here(more));
  CHECK(rows[3].site == "item at " + here(one));
  CHECK(rows[3].bytes == 4);
}

TEST_CASE("conversions, other elements and printing are told as what they are") {
  auto const x = ones({10}).to(Device{});
  TransferLog log;
  auto const halves = x.to<float16>(Cpu{});
  float const third = x.item(3);
  std::ostringstream out;
  out << x;
  CHECK(third == 1);
  CHECK(log.count(Device{}, Cpu{}) == 3);
  CHECK(log.bytes(Device{}, Cpu{}) == 20 + 4 + 40);  // converted before it crosses
  bool item = false;
  for (auto const& row : log.rows()) item = item || row.site == "item";
  CHECK(item);
}

TEST_CASE("what stays on a device or in host memory is no transfer") {
  Tensor<float> const a = ones({10});
  auto const x = a.to(Device{});
  TransferLog log;
  auto const same = x.to(Device{});
  auto const copy = x.clone();
  auto const y = x * 2 + copy;
  auto const p = pin(a);
  auto const values = a.to_vector();
  CHECK(a.item(1) == 1);
  CHECK(log.count() == 0);
  std::ostringstream out;
  out << log;
  CHECK(out.str() == "0 transfers, 0 bytes\n");
}

TEST_CASE("page-locked memory is named as such") {
  auto const p = pin(ones({10}));
  TransferLog log;
  auto const x = p.to(Device{});
  auto const q = x.to(Pinned{});
  CHECK(log.count(Pinned{}, Device{}) == 1);
  CHECK(log.count(Device{}, Pinned{}) == 1);
  CHECK(log.count(Cpu{}, Device{}) == 0);
}

TEST_CASE("asynchronous transfers are told with their lines, directions and the bytes that cross") {
  Tensor<float, Pinned> const p = pin(ones({64, 80}));
  auto const x = p.to(Device{});
  synchronize(Device{});
  TransferLog log;
  int const line = __LINE__;
  auto const whole = p.to_async(Device{});
  auto const rows = p(all(), range(16, 48)).to_async(Device{});  // packed by the copy
  auto const back = x(all(), range(16, 48)).to_async(Pinned{});
  auto const half = x.to_async<float16>(Pinned{});
  auto const wide = p.to_async<double>(Device{});
  auto const there = x.to_async(Emulated<1>{});
  auto const same = x.to_async(Device{});
  (void)back.get();
  (void)half.get();
  synchronize(Device{});
  auto const found = [&](int offset) -> TransferLog::row {
    for (auto const& row : log.rows()) {
      if (row.site == here(line + offset)) return row;
    }
    return {};
  };
  CHECK(log.count() == 6);
  CHECK(found(1).bytes == 64 * 80 * 4);
  CHECK(found(1).from == AnyDevice(Pinned{}));
  CHECK(found(1).to == AnyDevice(Device{}));
  CHECK(found(2).bytes == 64 * 32 * 4);
  CHECK(found(2).to == AnyDevice(Device{}));
  CHECK(found(3).bytes == 64 * 32 * 4);
  CHECK(found(3).from == AnyDevice(Device{}));
  CHECK(found(3).to == AnyDevice(Pinned{}));
  CHECK(found(4).bytes == 64 * 80 * 2);
  CHECK(found(5).bytes == 64 * 80 * 4);
  CHECK(found(6).from == AnyDevice(Device{}));
  CHECK(found(6).to == AnyDevice(Emulated<1>{}));
  CHECK(found(7).count == 0);
}

TEST_CASE("logs may be nested, and count nothing before and after") {
  Tensor<float> const a = ones({10});
  (void)a.to(Device{});
  TransferLog outer;
  (void)a.to(Device{});
  {
    TransferLog inner;
    (void)a.to(Device{});
    CHECK(inner.count() == 1);
    CHECK(outer.count() == 2);
    outer.stop();  // in any order
    (void)a.to(Device{});
    CHECK(inner.count() == 2);
  }
  (void)a.to(Device{});
  CHECK(outer.count() == 2);
  CHECK_FALSE(detail::is_observed(detail::transfer_logs));
}

TEST_CASE("a log prints as a table, most bytes first") {
  auto const x = ones({256}).to(Device{});
  TransferLog log;
  int const line = __LINE__ + 1;
  for (int k = 0; k < 3; ++k) (void)x.cpu();
  (void)x.item(0);
  std::ostringstream out;
  out << log;
  CHECK(out.str() == "4 transfers, 3.0 KiB\n"
                     "from        to   where                 count    bytes\n"
                     "emulated:0  cpu  " + here(line) + "      3  3.0 KiB\n"
                     "emulated:0  cpu  item                      1  4 bytes\n");
}

TEST_CASE("what is strided crosses without its gaps where a copy can leave them out") {
  Tensor<float> const a = arange<float>(0, 64 * 80, 1).reshape({64, 80});
  auto const x = a.to(Device{});
  TransferLog log;
  auto const crossed = [&](auto const& part, auto const& expected) {
    log.reset();
    CHECK(part.cpu().is_contiguous());
    CHECK(log.count() == (part.size() > 0));
    int64_t const bytes = log.bytes();
    CHECK(part.cpu().to_vector() == expected.to_vector());
    log.reset();
    auto const there = part.to(Emulated<1>{});
    CHECK(log.count() == (part.size() > 0));
    CHECK(log.bytes() == bytes);
    CHECK(there.cpu().to_vector() == expected.to_vector());
    CHECK(part.to(Pinned{}).to_vector() == expected.to_vector());
    return bytes;
  };
  CHECK(crossed(x(all(), range(16, 48)), a(all(), range(16, 48))) == 64 * 32 * 4);
  CHECK(crossed(x.select(1, 79), a.select(1, 79)) == 64 * 4);
  CHECK(crossed(x.t()(range(0, 32)).flip(1), a.t()(range(0, 32)).flip(1)) == 64 * 32 * 4);
  CHECK(crossed(x.t(), a.t()) == 64 * 80 * 4);
  CHECK(crossed(x.flip(0), a.flip(0)) == 64 * 80 * 4);
  CHECK(crossed(x[3].expand({50, 80}), a[3].expand({50, 80})) == 80 * 4);
  CHECK(crossed(x.slice(1, 0, 80, 3), a.slice(1, 0, 80, 3)) == (63 * 80 + 79) * 4);  // small gaps cross
  CHECK(crossed(x.slice(0, 0, 64, 2).slice(1, 0, 80, 3), a.slice(0, 0, 64, 2).slice(1, 0, 80, 3)) == (62 * 80 + 79) * 4);
  CHECK(crossed(x(range(3, 3)), a(range(3, 3))) == 0);
}
