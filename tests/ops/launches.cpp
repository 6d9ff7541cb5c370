/// What is read in one pass is not written first: reductions and scans of a formula ask a device for what those of a tensor do.
#include <situ/ops/reduce.hpp>
#include <situ/ops/scan.hpp>
#include <situ/tensor.hpp>

#include <ostream>
#include <string>

#include <doctest/doctest.h>
#include <support/probe.hpp>

using namespace situ;

namespace {

struct Asked {
  int64_t launches, allocations, bytes, copies;
  bool operator==(Asked const&) const = default;
  /// How many parts a long line is shared out in, each with a few bytes of its own, may depend on what is read. No tensor fits in that.
  bool is_about(Asked const& other) const {
    int64_t const more = bytes - other.bytes;
    return launches == other.launches && allocations == other.allocations && copies == other.copies && more < 1000 && more > -1000;
  }
};
std::ostream& operator<<(std::ostream& out, Asked const& a) {
  return out << a.launches << " launches, " << a.allocations << " allocations of " << a.bytes << " bytes, " << a.copies << " copies";
}
template <class F>
Asked asked_by(F f) {
  Probe::reset();
  (void)f();
  return {Probe::launches, Probe::allocations, Probe::bytes, Probe::copies + Probe::transfers()};
}

/// f(x) of a tensor, of a formula of its type that reads two, and of one that broadcasts a row.
template <class F>
void check(std::string const& name, F f) {
  for (Shape const& shape : {Shape{30, 40}, Shape{3, 20000}, Shape{20000, 3}}) {
    CAPTURE(name);
    CAPTURE(to_string(shape));
    Tensor<float, Probe> const x = ones(shape).to(Probe{}), y = ones(shape).to(Probe{}), row = ones({shape[1]}).to(Probe{});
    Asked const of_tensor = asked_by([&] { return f(x); });
    CHECK(of_tensor.launches >= 1);
    CHECK(of_tensor.copies == 0);
    CAPTURE(of_tensor);
    Asked const of_two = asked_by([&] { return f(x * y); }), of_row = asked_by([&] { return f(abs(x - row) * 0.5f); });
    CAPTURE(of_two);
    CAPTURE(of_row);
    CHECK(of_two.is_about(of_tensor));
    CHECK(of_row.is_about(of_tensor));
  }
}

}  // namespace

TEST_CASE("a reduction of a formula is as many launches and as much memory as one of a tensor") {
  check("sum", [](auto const& x) { return sum(x); });
  check("sum, 0", [](auto const& x) { return sum(x, 0); });
  check("sum, 1", [](auto const& x) { return sum(x, 1); });
  check("mean", [](auto const& x) { return mean(x, 1, keepdim); });
  check("prod", [](auto const& x) { return prod(x, 0); });
  check("min", [](auto const& x) { return min(x); });
  check("max", [](auto const& x) { return max(x, 1); });
  check("argmin", [](auto const& x) { return argmin(x, 0); });
  check("argmax", [](auto const& x) { return argmax(x, 1); });
  check("argmax of all", [](auto const& x) { return argmax(x); });
  check("norm", [](auto const& x) { return norm(x, 1); });
  check("norm, 3", [](auto const& x) { return norm(x, {.p = 3}); });
  check("any", [](auto const& x) { return any(x, 0); });
  check("all", [](auto const& x) { return all(x); });
  check("count_nonzero", [](auto const& x) { return count_nonzero(x, 1); });
  check("var", [](auto const& x) { return var(x); });
  check("stddev", [](auto const& x) { return stddev(x, 0); });
  check("logsumexp", [](auto const& x) { return logsumexp(x, 1); });
}

TEST_CASE("a scan of a formula is as many launches and as much memory as one of a tensor") {
  check("cumsum, 0", [](auto const& x) { return cumsum(x, 0); });
  check("cumsum, 1", [](auto const& x) { return cumsum(x, 1); });
  check("cumprod, 1", [](auto const& x) { return cumprod(x, 1); });
}

TEST_CASE("a reduction is one launch and one allocation") {
  Tensor<float, Probe> const x = ones({30, 40}).to(Probe{});
  CHECK(asked_by([&] { return sum(x * 2 + 1); }) == Asked{1, 1, 4, 0});
  CHECK(asked_by([&] { return max(x * 2 + 1, 0); }) == Asked{1, 1, 4 * 40, 0});
  CHECK(asked_by([&] { return var(x * 2 + 1, 1); }) == Asked{1, 1, 4 * 30, 0});
}
