#include <situ/tensor/transfer_async.hpp>

#include <doctest/doctest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <unistd.h>

#include <situ/tensor.hpp>

using namespace situ;

namespace {

using A = Emulated<0>;
using B = Emulated<1>;
using Host = Tensor<float, Pinned>;

Tensor<float> counting(Shape const& shape) { return arange<float>(0, static_cast<double>(detail::product(shape)), 1).reshape(shape); }

/// Everything enqueued on a stream waits until it opens.
class Gate {
 public:
  template <class D>
  explicit Gate(Stream<D> const& stream) {
    enqueue(stream, [this] {
      while (__atomic_load_n(&open_, __ATOMIC_ACQUIRE) == 0) ::usleep(100);
    });
  }
  void open() { __atomic_store_n(&open_, 1, __ATOMIC_RELEASE); }

 private:
  int open_ = 0;
};

template <class X, class Y>
concept crosses = requires(X const& x) { x.to_async(Y{}); };
static_assert(crosses<Host, A> && crosses<Tensor<float, A>, Pinned> && crosses<Tensor<float, A>, B> && crosses<Host, Pinned>);
static_assert(!crosses<Tensor<float>, A> && !crosses<Tensor<float, A>, Cpu> && !crosses<Tensor<float>, Pinned>);
static_assert(crosses<decltype(std::declval<Host>() * 2), A> && !crosses<decltype(std::declval<Host>() * std::declval<Tensor<float>>()), A>);
static_assert(std::is_same_v<decltype(std::declval<Host>().to_async(A{})), Tensor<float, A>>);
static_assert(std::is_same_v<decltype(std::declval<Tensor<float, A>>().to_async(Pinned{})), Pending<Host>>);
static_assert(std::is_same_v<decltype(std::declval<Tensor<float, A>>().to_async<double>(Pinned{})), Pending<Tensor<double, Pinned>>>);
static_assert(!std::is_convertible_v<Pending<Host>, Host> && !std::is_constructible_v<Host, Pending<Host>>);

/// Views of a tensor of shape [4, 5, 6].
template <class X>
auto views(X const& x) {
  return std::vector<X>{x,
                        x.permute({2, 0, 1}),
                        x.transpose(0, 1),
                        x.flip(0),
                        x.permute({1, 2, 0}).flip(1),
                        x(all(), all(), range(1, 5)),
                        x(all(), range(1, 3)),
                        x.slice(0, 0, 4, 2),
                        x.slice(1, 0, 5, 2),
                        x.slice(2, 1, 6, 3),
                        x.slice(2, 0, 6, 2).flip(2),
                        x.select(2, 3),
                        x.select(1, 2).t(),
                        x.select(0, 1),
                        x[1][2].expand({3, 6}),
                        x[0].unsqueeze(1).expand({5, 2, 6}),
                        x(all(), all(), range(2, 2)),
                        x[2][3][4],
                        x.slice(0, 3, 4)};
}

}  // namespace

TEST_CASE("to_async is stream-ordered in all directions, whatever the strides are") {
  Tensor<float> const a = counting({4, 5, 6});
  auto const expected = views(a);
  auto const from_pinned = views(pin(a));
  auto const from_device = views(a.to(A{}));
  for (std::size_t k = 0; k < expected.size(); ++k) {
    CAPTURE(k);
    Tensor<float> const& e = expected[k];
    Tensor<float, A> x = from_pinned[k].to_async(A{});
    CHECK(x.shape() == e.shape());
    CHECK(x.to_vector() == e.to_vector());
    Host h = from_device[k].to_async(Pinned{}).get();
    CHECK(h.shape() == e.shape());
    CHECK(h.to_vector() == e.to_vector());
    Tensor<float, B> there = from_device[k].to_async(B{});
    CHECK(there.to_vector() == e.to_vector());
    auto const more = eval(e + 1).to_vector();  // what arrives can be written to, whatever it was a view of
    CHECK((x += 1).to_vector() == more);
    CHECK((h += 1).to_vector() == more);
    CHECK((there += 1).to_vector() == more);
    CHECK(from_device[k].template to_async<double>(Pinned{}).get().template to<float>().to_vector() == e.to_vector());
  }
}

TEST_CASE("what is contiguous but for the order of its axes keeps it, rows are packed by the copy, and nothing crosses twice") {
  Host const p = pin(counting({64, 80}));
  auto const before = emulated::statistics(0);
  Tensor<float, A> const t = p.t().to_async(A{});
  CHECK(t.strides() == Shape(1, 80));
  Tensor<float, A> const part = p(range(0, 64), range(16, 48)).to_async(A{});
  CHECK(part.is_contiguous());
  Tensor<float, A> const flipped = p.flip(0).to_async(A{});
  CHECK(flipped.strides() == Shape(-80, 1));
  Host const back = part.t().to_async(Pinned{}).get();
  CHECK(back.strides() == Shape(1, 32));
  auto const after = emulated::statistics(0);
  CHECK(after.copies_from_host == before.copies_from_host + 3);
  CHECK(after.copies_to_host == before.copies_to_host + 1);
  CHECK(after.launches == before.launches);
  Tensor<float, A> const x = counting({8, 9, 10}).to(A{});
  auto const h = x(all(), range(1, 4), range(2, 5)).to_async(Pinned{});  // packed by a kernel first
  CHECK(emulated::statistics(0).launches == after.launches + 1);
  CHECK(h.get().to_vector() == counting({8, 9, 10})(all(), range(1, 4), range(2, 5)).to_vector());
}

TEST_CASE("to_async returns at once, and a Pending value is read when it is there") {
  Host const p = pin(Tensor<float>{1, 2, 3});
  Stream<A> const s;
  StreamGuard const guard{s};
  Gate gate(s);
  Tensor<float, A> const x = p.to_async(A{});
  Pending<Host> const h = (x * 2).to_async(Pinned{});
  Pending<Host> const same = h;
  CHECK(!h.ready());
  gate.open();
  CHECK(h.get().to_vector() == std::vector<float>{2, 4, 6});
  CHECK(h.ready());
  CHECK(same.get().data() == h.get().data());
  Pending<Host> const nothing;
  CHECK(nothing.ready());
  CHECK(nothing.get().size() == 0);
  CHECK(p.to_async(Pinned{}).get().data() == p.data());
  CHECK(std::as_const(x).data() == x.to_async(A{}).data());
}

TEST_CASE("the source of a copy may go, and the memory stays until the copy has ended") {
  Stream<A> const s;
  StreamGuard const guard{s};
  Gate gate(s);
  std::optional<Host> p = pin(Tensor<float>{1, 2, 3, 4});
  Tensor<float, A> const x = p->to_async(A{});
  p.reset();
  std::vector<Host> others;
  for (int k = 0; k < 50; ++k) others.push_back(pin(full<float>({4}, -1.f)));
  std::optional<Tensor<float, A>> y = x + 1;
  Pending<Host> const h = y->to_async(Pinned{});
  y.reset();
  (void)(x * 3).to_async(Pinned{});  // nobody waits for this one
  gate.open();
  CHECK(x.to_vector() == std::vector<float>{1, 2, 3, 4});
  CHECK(h.get().to_vector() == std::vector<float>{2, 3, 4, 5});
  synchronize(A{});
  CHECK(detail::host_state().freed_later == nullptr);
}

TEST_CASE("writes of the host to page-locked memory wait for copies from it") {
  Stream<A> const s;
  StreamGuard const guard{s};
  Tensor<float> const old{1, 2, 3, 4}, fresh{5, 6, 7, 8};
  auto const check = [&](auto const& write) {
    Host p = pin(old);
    emulated::delay(s, 3);
    Tensor<float, A> const x = p.to_async(A{});
    write(p);
    CHECK(x.to_vector() == old.to_vector());
    CHECK(p.to_vector() == fresh.to_vector());
  };
  check([&](Host& p) { p.assign(fresh); });
  check([&](Host& p) { p += 4; });
  check([&](Host& p) { p(all()) = fresh; });
  check([&](Host& p) {
    for (int k = 0; k < 4; ++k) p(k) = fresh(k);
  });
  check([&](Host& p) { std::copy_n(fresh.data(), 4, p.data()); });
  check([&](Host& p) { p = p + 4; });  // into memory of its own
  {
    Host const p = pin(old);
    Gate gate(s);
    Tensor<float, A> const x = p.to_async(A{});
    CHECK(p(2) == 3);  // readers do not wait
    CHECK((p + 1).to_vector() == std::vector<float>{2, 3, 4, 5});
    gate.open();
    CHECK(x.item(0) == 1);
  }
}

TEST_CASE("what a host function lets go of is freed behind it: on its thread no driver may be called") {
  int64_t const before = gpu::memory_allocated(Pinned{});
  int64_t inside = 0;
  Stream<A> const stream;
  Tensor<float, A> const x = ones({1000}, A{});
  auto const coming = std::make_shared<std::optional<Host>>(x.to_async(Pinned{}).get());
  Host p = pin(ones({500}));
  enqueue(stream, [&inside, coming, p = std::make_shared<std::optional<Host>>(std::move(p))] {
    coming->reset();
    p->reset();
    inside = gpu::memory_allocated(Pinned{});
  });
  stream.synchronize();
  CHECK(inside - before >= 6000);
  CHECK(gpu::memory_allocated(Pinned{}) == before);
}

TEST_CASE("a conversion happens where fewer bytes cross") {
  Tensor<float> const a{1, -2, 3.5f, 4};
  Host const p = pin(a);
  auto before = emulated::statistics(0);
  Tensor<float16, A> const narrow = p.to_async<float16>(A{});
  CHECK(emulated::statistics(0).launches == before.launches);
  CHECK(narrow.to<float>().to_vector() == a.to_vector());
  before = emulated::statistics(0);
  Tensor<double, A> const wide = p.to_async<double>(A{});
  CHECK(emulated::statistics(0).launches == before.launches + 1);
  CHECK(wide.to<float>().to_vector() == a.to_vector());
  before = emulated::statistics(0);
  Pending<Tensor<float, Pinned>> const back = narrow.to_async<float>(Pinned{});
  CHECK(back.get().to_vector() == a.to_vector());
  CHECK(emulated::statistics(0).launches == before.launches);
  CHECK(back.get().data() == back.get().data());
  before = emulated::statistics(0);
  Pending<Tensor<float16, Pinned>> const narrowed = wide.to_async<float16>(Pinned{});
  CHECK(emulated::statistics(0).launches == before.launches + 1);
  CHECK(narrowed.get().to<float>().to_vector() == a.to_vector());
  CHECK(p.to_async<float>(A{}).to_vector() == a.to_vector());
}

TEST_CASE("expressions are evaluated where they are, and then cross") {
  Host const p = pin(Tensor<float>{1, 2, 3});
  CHECK((p * 2 + 1).to_async(A{}).to_vector() == std::vector<float>{3, 5, 7});
  Tensor<float, A> const x{1, 2, 3};
  CHECK((x + x).to_async(Pinned{}).get().to_vector() == std::vector<float>{2, 4, 6});
  CHECK((x - 1).to_async(B{}).to_vector() == std::vector<float>{0, 1, 2});
  Tensor<float, A> y = zeros<float>({2, 3}, A{});
  y[1] = p.to_async(A{});  // a strided target: written by a kernel of the device
  CHECK(y.to_vector() == std::vector<float>{0, 0, 0, 1, 2, 3});
}

TEST_CASE("empty tensors cross") {
  Tensor<float, A> const x = pin(zeros<float>({0, 3})).to_async(A{});
  CHECK(x.shape() == Shape(0, 3));
  CHECK(x.to_async(Pinned{}).get().shape() == Shape(0, 3));
  CHECK(Tensor<float, A>().to_async(Pinned{}).get().size() == 0);
}

TEST_CASE("a copy that fails leaves everything as it was") {
  Tensor<float> const a{1, 2, 3};
  int failures = 0;
  for (int64_t k = 0; k < 6; ++k) {
    synchronize(A{});
    synchronize(B{});
    emulated::configure({.fail_at = k});
    Host p = pin(a);
    for (int attempt = 0; attempt < 2; ++attempt) {
      try {
        Tensor<float, A> const x = p.to_async(A{});
        Pending<Host> const h = (x + 1).to_async(Pinned{});
        CHECK(h.get().to_vector() == std::vector<float>{2, 3, 4});
        break;
      } catch (Error const&) {
        ++failures;
      }
    }
    p += 1;
    CHECK(p.to_vector() == std::vector<float>{2, 3, 4});
    synchronize(A{});
    CHECK(emulated::statistics(0).bytes == 0);
  }
  CHECK(failures == 5);
  emulated::configure();
}

TEST_CASE("faults of kernels before the copy are thrown by get") {
  Tensor<float, A> const x{1, 2};
  struct Faulty {
    detail::IndexBounds bounds;
    void operator()(int64_t, int64_t) const { detail::record_fault(bounds, 9, 0); }
  };
  device_traits<A>::launch(Faulty{{device_traits<A>::fault(), "lookup", 7, 0}}, 1, 1);
  Pending<Host> const h = x.to_async(Pinned{});
  CHECK_THROWS_AS((void)h.get(), IndexError);
  CHECK(h.get().to_vector() == std::vector<float>{1, 2});
}

TEST_CASE("memory of somebody else's goes back when nothing uses it any more") {
  Stream<A> const s;
  StreamGuard const guard{s};
  std::vector<float> memory{1, 2, 3};
  Tensor<float, A> x;
  {
    auto const p = from_blob(memory.data(), {3}, {1}, [](float* first) { std::fill_n(first, 3, -1.f); }, Pinned{});
    emulated::delay(s, 3);
    x = p.to_async(A{});
  }
  CHECK(memory[0] == -1);
  CHECK(x.to_vector() == std::vector<float>{1, 2, 3});
  Tensor<float, A> owner{4, 5, 6};
  Tensor<float, A> sum;
  {
    auto const borrowed = from_blob(std::as_const(owner).data(), {3}, {1}, [&](float const*) { owner = {}; }, A{});
    Stream<A> const other;
    StreamGuard const inner{other};
    emulated::delay(other, 3);
    sum = borrowed + 1;
  }
  Tensor<float, A> const fresh{7, 8, 9};
  CHECK(sum.to_vector() == std::vector<float>{5, 6, 7});
}
