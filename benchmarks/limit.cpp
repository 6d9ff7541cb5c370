/// The limit: loops written by hand for this very workload, on reused memory whose page faults are paid. Streaming
/// stores where the result does not fit the cache, two threads where they gain, no checks of any kind.
#include "limit_simd.hpp"
#include "workloads.hpp"

#include <omp.h>
#include <sys/mman.h>

#include <cblas.h>
extern "C" void openblas_set_num_threads(int);  // in OpenBLAS's <cblas.h> only

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

namespace workloads {

using limit::V, limit::width, limit::load, limit::store, limit::stream, limit::set, limit::fma;

const char* const library = "limit";

namespace {

int team = 1;

/// Floats on a cache line's boundary, many of them on huge pages where the system grants those on demand.
class Buffer {
 public:
  explicit Buffer(std::size_t n) {
    constexpr std::size_t line = 64, huge_page = std::size_t{2} << 20;
    std::size_t bytes = n * sizeof(float), unit = bytes >= 2 * huge_page ? huge_page : line;
    bytes = (bytes + unit - 1) / unit * unit;
    data_ = static_cast<float*>(std::aligned_alloc(unit, bytes));
    if (!data_) std::abort();
    if (unit == huge_page) madvise(data_, bytes, MADV_HUGEPAGE);
    std::memset(data_, 0, bytes);
  }
  Buffer(Input which, std::size_t n) : Buffer(n) { fill(which, data_, n); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { std::free(data_); }
  operator float*() const { return data_; }

 private:
  float* data_;
};

/// Calls part(begin, end) on each thread, with bounds that are multiples of `grain`.
template <class Part>
inline void parallel(std::size_t n, std::size_t smallest, std::size_t grain, Part part) {
  if (team == 1 || n < smallest) return part(std::size_t{0}, n);
#pragma omp parallel num_threads(team)
  {
    auto threads = static_cast<std::size_t>(omp_get_num_threads()), id = static_cast<std::size_t>(omp_get_thread_num());
    std::size_t share = (n / threads + grain - 1) / grain * grain;
    std::size_t begin = std::min(n, id * share), end = id + 1 == threads ? n : std::min(n, begin + share);
    Part mine = part;  // vector stores may alias the shared one, which the compiler would then read again and again
    mine(begin, end);
  }
}

constexpr std::size_t beyond_cache = 4u << 20;  // elements: results this large are streamed past the cache

template <class F>
inline void elementwise(float* y, std::size_t n, std::size_t smallest, F f) {
  constexpr std::size_t step = 4 * width;
  bool past_cache = n >= beyond_cache;
  parallel(n, smallest, step, [=](std::size_t i, std::size_t end) {
    if (past_cache) {
      for (; i + step <= end; i += step)
        for (std::size_t k = 0; k < 4; ++k) stream(y + i + k * width, f(i + k * width));
      _mm_sfence();
    } else {
      for (; i + step <= end; i += step)
        for (std::size_t k = 0; k < 4; ++k) store(y + i + k * width, f(i + k * width));
    }
    for (; i + width <= end; i += width) store(y + i, f(i));
    if (i < end) {  // every size here is a multiple of 8, or at least one vector long
      i = end - width;
      store(y + i, f(i));
    }
  });
}

template <class F>
void run_elementwise(State& state, Row row, Input input, F f) {
  std::size_t n = size(state);
  Buffer inputs[] = {{input, n}, {Input::b, n}, {Input::c, n}}, result(n);
  float *a = inputs[0], *b = inputs[1], *c = inputs[2], *y = result;
  for (auto _ : state) {
    elementwise(y, n, 8000, [=](std::size_t i) { return f(a + i, b + i, c + i); });
    keep(*y);
  }
  verify(state, row, y);
}

/// The fold of f(accumulator, vector) over n elements, a multiple of a vector, with eight accumulators on each thread.
template <class F, class Join, class Finish>
inline float fold(const float* a, std::size_t n, float start, F f, Join join, Finish finish) {
  constexpr std::size_t chains = 8, step = chains * width;
  float total = start;
  parallel(n, 32000, step, [&](std::size_t i, std::size_t end) {
    V s[chains];
    for (auto& each : s) each = set(start);
    for (; i + step <= end; i += step)
      for (std::size_t k = 0; k < chains; ++k) s[k] = f(s[k], load(a + i + k * width));
    for (; i < end; i += width) s[0] = f(s[0], load(a + i));
    for (std::size_t k = 1; k < chains; ++k) s[0] = join(s[0], s[k]);
    float part = finish(s[0]);
#pragma omp critical(limit_fold)
    total = join(total, part);
  });
  return total;
}

struct Add {
  template <class T>
  T operator()(T x, T y) const { return x + y; }
};
struct AddSquare {
  V operator()(V x, V y) const { return fma(y, y, x); }
};
struct Larger {
  V operator()(V x, V y) const { return limit::max(x, y); }
  float operator()(float x, float y) const { return x < y ? y : x; }
};

template <class Fold>
void run_fold(State& state, Row row, Fold f) {
  std::size_t n = size(state);
  Buffer a(Input::a, n);
  float result = 0;
  for (auto _ : state) {
    result = f(a, n);
    keep(result);
  }
  verify(state, row, result);
}

/// Calls part(first, last) for the rows of a matrix on each thread.
template <class Part>
inline void by_rows(std::size_t rows, std::size_t grain, Part part) {
  parallel(rows, 2, grain, part);
}

template <class F>
void run_matrix(State& state, Row row, F f) {
  std::size_t n = size(state);
  Buffer a(Input::a, n * n), b(Input::b, row == Row::add_transposed ? n * n : n), y(n * n);
  for (auto _ : state) {
    f(y, a, b, n);
    keep(y);
  }
  verify(state, row, y);
}

/// One square tile, `width` on a side: y = a + the transpose of b.
inline void add_transposed_tile(float* y, const float* a, const float* b, std::size_t n) {
#if defined(__AVX512F__) && defined(__AVX512DQ__)
  __m512 r[16], t[16];
  for (std::size_t i = 0; i < 16; ++i) r[i] = load(b + i * n);
  for (std::size_t i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps(r[i], r[i + 1]);
  }
  auto pair = [](__m512 x, __m512 z, bool high) {
    __m512d p = _mm512_castps_pd(x), q = _mm512_castps_pd(z);
    return _mm512_castpd_ps(high ? _mm512_unpackhi_pd(p, q) : _mm512_unpacklo_pd(p, q));
  };
  for (std::size_t i = 0; i < 16; i += 4) {
    r[i] = pair(t[i], t[i + 2], false), r[i + 1] = pair(t[i], t[i + 2], true);
    r[i + 2] = pair(t[i + 1], t[i + 3], false), r[i + 3] = pair(t[i + 1], t[i + 3], true);
  }
  for (std::size_t i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_f32x4(r[i], r[i + 4], 0xDD);
    t[i + 8] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_f32x4(r[i + 8], r[i + 12], 0xDD);
  }
  for (std::size_t i = 0; i < 8; ++i) {
    r[i] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0x88), r[i + 8] = _mm512_shuffle_f32x4(t[i], t[i + 8], 0xDD);
  }
  for (std::size_t i = 0; i < 16; ++i) stream(y + i * n, load(a + i * n) + r[i]);
#else
  __m256 r[8], t[8];
  for (std::size_t i = 0; i < 8; ++i) r[i] = load(b + i * n);
  for (std::size_t i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (std::size_t i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44), r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xEE);
    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44), r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xEE);
  }
  for (std::size_t i = 0; i < 4; ++i) {
    t[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20), t[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
  }
  for (std::size_t i = 0; i < 8; ++i) store(y + i * n, load(a + i * n) + t[i]);
#endif
}

}  // namespace

void set_threads(int threads) {
  team = threads;
  omp_set_num_threads(threads);
}

using P = const float*;

void chain(State& state) {
  run_elementwise(state, Row::chain, Input::a,
                  [](P a, P b, P c) { V x = limit::held(load(a)); return fma(x, load(b), load(c)) - set(0.5f) * x; });
}
void exp(State& state) {
  run_elementwise(state, Row::exp, Input::a, [](P a, P, P) { return limit::exp(load(a)); });
}
void log(State& state) {
  run_elementwise(state, Row::log, Input::positive, [](P a, P, P) { return limit::log(load(a)); });
}
void tanh(State& state) {
  run_elementwise(state, Row::tanh, Input::a,
                  [](P a, P b, P c) { return limit::tanh(fma(load(a), load(b), load(c))); });
}
void sigmoid(State& state) {
  run_elementwise(state, Row::sigmoid, Input::a, [](P a, P, P) { return limit::sigmoid(load(a)); });
}
void gelu_tanh(State& state) {
  run_elementwise(state, Row::gelu_tanh, Input::a, [](P a, P, P) { return limit::gelu_tanh(load(a)); });
}
void gelu_erf(State& state) {
  run_elementwise(state, Row::gelu_erf, Input::a, [](P a, P, P) { return limit::gelu_erf(load(a)); });
}

void fresh(State& state) {
  std::size_t n = size(state);
  Buffer a(Input::a, n), b(Input::b, n), c(Input::c, n);
  float* last = nullptr;
  for (auto _ : state) {
    std::free(last);
    float* y = static_cast<float*>(std::malloc(n * sizeof(float)));
    std::size_t i = 0;
    for (; i + width <= n; i += width) store(y + i, fma(load(a + i), load(b + i), load(c + i)));
    for (; i + 4 <= n; i += 4)
      _mm_storeu_ps(y + i, _mm_fmadd_ps(_mm_loadu_ps(a + i), _mm_loadu_ps(b + i), _mm_loadu_ps(c + i)));
    keep(y);
    last = y;
  }
  verify(state, Row::fresh, last);
  std::free(last);
}

void power(State& state) {
  std::size_t n = size(state);
  Buffer x(Input::near_one, n), z(n);
  float result = 0;
  auto multiply = [&](std::size_t i, std::size_t end) {
    constexpr std::size_t step = 4 * width;
    for (; i + step <= end; i += step)
      for (std::size_t k = 0; k < 4; ++k) store(z + i + k * width, load(z + i + k * width) * load(x + i + k * width));
    for (; i + width <= end; i += width) store(z + i, load(z + i) * load(x + i));
    for (; i + 4 <= end; i += 4) _mm_storeu_ps(z + i, _mm_loadu_ps(z + i) * _mm_loadu_ps(x + i));
  };
  for (auto _ : state) {
    std::memcpy(z, x, n * sizeof(float));
    for (int k = 0; k < 1000; ++k) {
      multiply(0, n);
      keep(z);
    }
    float squares = 0;
    if (n % width == 0) squares = fold(z, n, 0.0f, AddSquare{}, Add{}, limit::add_up);
    else for (std::size_t i = 0; i < n; ++i) squares += z[i] * z[i];
    result = std::sqrt(squares);
    keep(result);
  }
  verify(state, Row::power, result);
}

/// Past the caches, where the matrix is more than they hold.
inline void put(bool past, float* to, V x) {
  if (past) stream(to, x);
  else store(to, x);
}
bool goes_past_caches(std::size_t n) { return n * n * sizeof(float) > (std::size_t{8} << 20); }

void add_row(State& state) {
  run_matrix(state, Row::add_row, [](float* y, P a, P b, std::size_t n) {
    constexpr std::size_t together = 4;  // rows that share a load of b
    bool const past = goes_past_caches(n);
    by_rows(n, together, [=](std::size_t row, std::size_t last) {
      for (; row < last; row += together)
        for (std::size_t i = row * n, k = 0; k < n; i += width, k += width) {
          V x = load(b + k);
          for (std::size_t r = 0; r < together; ++r) put(past, y + i + r * n, load(a + i + r * n) + x);
        }
      _mm_sfence();
    });
  });
}

void add_column(State& state) {
  run_matrix(state, Row::add_column, [](float* y, P a, P b, std::size_t n) {
    bool const past = goes_past_caches(n);
    by_rows(n, 1, [=](std::size_t row, std::size_t last) {
      for (; row < last; ++row) {
        V x = set(b[row]);
        for (std::size_t i = 0; i < n; i += width) put(past, y + row * n + i, load(a + row * n + i) + x);
      }
      _mm_sfence();
    });
  });
}

void outer(State& state) {
  run_matrix(state, Row::outer, [](float* y, P a, P b, std::size_t n) {
    bool const past = goes_past_caches(n);
    by_rows(n, 1, [=](std::size_t row, std::size_t last) {
      for (; row < last; ++row) {
        V x = set(a[row]);
        for (std::size_t i = 0; i < n; i += width) put(past, y + row * n + i, x * load(b + i));
      }
      _mm_sfence();
    });
  });
}

void add_transposed(State& state) {
  run_matrix(state, Row::add_transposed, [](float* y, P a, P b, std::size_t n) {
    constexpr std::size_t line = 16;  // floats on a cache line
    by_rows(n, line, [=](std::size_t row, std::size_t last) {
      for (; row < last; row += line)
        for (std::size_t j = 0; j < n; j += width) {
          for (std::size_t k = 0; k < width; ++k) _mm_prefetch(b + (j + 2 * line + k) * n + row, _MM_HINT_T1);
          for (std::size_t i = row; i < row + line; i += width)
            add_transposed_tile(y + i * n + j, a + i * n + j, b + j * n + i, n);
        }
      _mm_sfence();
    });
  });
}

void sum(State& state) {
  run_fold(state, Row::sum, [](P a, std::size_t n) { return fold(a, n, 0.0f, Add{}, Add{}, limit::add_up); });
}
void max(State& state) {
  run_fold(state, Row::max, [](P a, std::size_t n) { return fold(a, n, -3e38f, Larger{}, Larger{}, limit::largest); });
}
void norm(State& state) {
  run_fold(state, Row::norm,
           [](P a, std::size_t n) { return std::sqrt(fold(a, n, 0.0f, AddSquare{}, Add{}, limit::add_up)); });
}

namespace {

template <class F>
void run_sums(State& state, Row row, F f) {
  std::size_t n = size(state);
  Buffer a(Input::a, n * n), y(n);
  for (auto _ : state) {
    f(y, a, n);
    keep(y);
  }
  verify(state, row, y);
}

}  // namespace

void row_sums(State& state) {
  run_sums(state, Row::row_sums, [](float* y, P a, std::size_t n) {
    by_rows(n, 16, [=](std::size_t row, std::size_t last) {
      for (; row < last; ++row) {
        constexpr std::size_t chains = 8;
        V s[chains];
        for (auto& each : s) each = set(0);
        for (std::size_t i = 0; i < n; i += chains * width)
          for (std::size_t k = 0; k < chains; ++k) s[k] = s[k] + load(a + row * n + i + k * width);
        y[row] = limit::add_up(((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7])));
      }
    });
  });
}

void column_sums(State& state) {
  run_sums(state, Row::column_sums, [](float* y, P a, std::size_t n) {
    static std::vector<float> sums;
    sums.assign(static_cast<std::size_t>(team) * n, 0.0f);
    by_rows(n, 16, [=](std::size_t row, std::size_t last) {
      float* s = sums.data() + static_cast<std::size_t>(omp_get_thread_num()) * n;
      for (; row < last; row += 4)
        for (std::size_t i = 0; i < n; i += width) {
          P p = a + row * n + i;
          store(s + i, load(s + i) + ((load(p) + load(p + n)) + (load(p + 2 * n) + load(p + 3 * n))));
        }
    });
    for (std::size_t i = 0; i < n; i += width) {
      V s = load(sums.data() + i);
      for (int t = 1; t < team; ++t) s = s + load(sums.data() + static_cast<std::size_t>(t) * n + i);
      store(y + i, s);
    }
  });
}

namespace {

template <class F>
void run_rows(State& state, Row row, F f) {
  std::size_t n = size(state);
  Buffer a(Input::a, n * n), y(n * n);
  for (auto _ : state) {
    by_rows(n, 16, [&, n](std::size_t first, std::size_t last) {
      for (; first < last; ++first) f(y + first * n, a + first * n, n);
    });
    keep(y);
  }
  verify(state, row, y);
}

}  // namespace

void softmax(State& state) {
  run_rows(state, Row::softmax, [](float* y, P a, std::size_t n) {
    V most = load(a), most1 = load(a + width);
    for (std::size_t i = 0; i < n; i += 2 * width) most = limit::max(most, load(a + i)), most1 = limit::max(most1, load(a + i + width));
    V largest = set(limit::largest(limit::max(most, most1))), sum = set(0), sum1 = set(0);
    for (std::size_t i = 0; i < n; i += 2 * width) {
      V e = limit::exp(load(a + i) - largest), e1 = limit::exp(load(a + i + width) - largest);
      store(y + i, e), store(y + i + width, e1);
      sum = sum + e, sum1 = sum1 + e1;
    }
    V scale = set(1.0f / limit::add_up(sum + sum1));
    for (std::size_t i = 0; i < n; i += width) store(y + i, load(y + i) * scale);
  });
}
namespace {
inline void normalise(float* y, P a, std::size_t n) {
  V s[4] = {set(0), set(0), set(0), set(0)}, q[4] = {set(0), set(0), set(0), set(0)};
  for (std::size_t i = 0; i < n; i += 4 * width)
    for (std::size_t k = 0; k < 4; ++k) s[k] = s[k] + load(a + i + k * width);
  float mean = limit::add_up((s[0] + s[1]) + (s[2] + s[3])) / static_cast<float>(n);
  V m = set(mean);
  for (std::size_t i = 0; i < n; i += 4 * width)
    for (std::size_t k = 0; k < 4; ++k) {
      V d = load(a + i + k * width) - m;
      q[k] = fma(d, d, q[k]);
    }
  float variance = limit::add_up((q[0] + q[1]) + (q[2] + q[3])) / static_cast<float>(n);
  V scale = set(1.0f / std::sqrt(variance + 1e-5f)), shift = m * scale;
  for (std::size_t i = 0; i < n; i += width) store(y + i, limit::fms(load(a + i), scale, shift));
}
}  // namespace
void layer_norm(State& state) { run_rows(state, Row::layer_norm, normalise); }

/// No loop by hand: OpenBLAS.
void product(State& state) {
  std::size_t n = size(state);
  Buffer a(Input::a, n * n), b(Input::b, n * n), y(n * n);
  openblas_set_num_threads(team);
  auto m = static_cast<int>(n);
  for (auto _ : state) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, m, m, 1.0f, a, m, b, m, 0.0f, y, m);
    keep(y);
  }
  verify(state, Row::product, y);
}
/// OpenBLAS on one thread, from one buffer into the other.
void product_power(State& state) {
  std::size_t n = size(state);
  Buffer x(n * n), buffers[] = {Buffer(n * n), Buffer(n * n)};
  fill_for_powers(x, n);
  openblas_set_num_threads(1);
  auto m = static_cast<int>(n);
  float result = 0;
  for (auto _ : state) {
    float *z = x, *next = buffers[0];
    for (int k = 0; k < 1000; ++k) {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, m, m, 1.0f, z, m, x, m, 0.0f, next, m);
      z = next, next = z == buffers[0] ? buffers[1] : buffers[0];
    }
    result = std::sqrt(fold(z, n * n, 0.0f, AddSquare{}, Add{}, limit::add_up));
    keep(result);
  }
  verify(state, Row::product_power, &result, 1);
}
namespace {
using Bfloat16s = std::vector<std::uint16_t>;
Bfloat16s narrowed(const float* from, std::size_t n) {
  Bfloat16s to(n);
  for (std::size_t i = 0; i < n; ++i) {
    std::uint32_t bits;
    std::memcpy(&bits, from + i, sizeof bits);
    to[i] = static_cast<std::uint16_t>((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
  }
  return to;
}
void widen(const std::uint16_t* from, float* to, std::size_t n) {
  auto* bits = reinterpret_cast<std::uint32_t*>(to);
  for (std::size_t i = 0; i < n; ++i) bits[i] = static_cast<std::uint32_t>(from[i]) << 16;
}
}  // namespace
/// Widened, OpenBLAS, and rounded.
void bfloat16_product(State& state) {
  std::size_t n = size(state);
  Buffer a(Input::a, n * n), b(Input::b, n * n), y(n * n);
  Bfloat16s const p = narrowed(a, n * n), q = narrowed(b, n * n);
  Bfloat16s result;
  openblas_set_num_threads(team);
  auto m = static_cast<int>(n);
  for (auto _ : state) {
    widen(p.data(), a, n * n), widen(q.data(), b, n * n);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, m, m, 1.0f, a, m, b, m, 0.0f, y, m);
    result = narrowed(y, n * n);
    keep(result);
  }
  widen(result.data(), y, n * n);
  verify(state, Row::bfloat16_product, y, n * n);
}
/// No loop by hand: std::sort.
void sort(State& state) {
  std::size_t n = size(state);
  Buffer a(Input::a, n), y(n);
  for (auto _ : state) {
    std::memcpy(y, a, n * sizeof(float));
    std::sort(static_cast<float*>(y), y + n);
    keep(y);
  }
  verify(state, Row::sort, y);
}

/// The largest of each block of 4096, and then its place in the best one.
void argmax(State& state) {
  std::size_t n = size(state), place = 0;
  Buffer a(Input::a, n);
  const float* from = a;
  for (auto _ : state) {
    float best = -3e38f;
    std::size_t block = 0;
    parallel(n, 32000, 4096, [&](std::size_t i, std::size_t end) {
      float mine = -3e38f;
      std::size_t where = i;
      for (; i < end; i += 4096) {
        V m[4] = {set(-3e38f), set(-3e38f), set(-3e38f), set(-3e38f)};
        std::size_t stop = std::min(end, i + 4096), k = i;
        for (; k + 4 * width <= stop; k += 4 * width)
          for (std::size_t j = 0; j < 4; ++j) m[j] = limit::max(m[j], load(from + k + j * width));
        for (; k < stop; k += width) m[0] = limit::max(m[0], load(from + k));
        float largest = limit::largest(limit::max(limit::max(m[0], m[1]), limit::max(m[2], m[3])));
        if (largest > mine) mine = largest, where = i;
      }
#pragma omp critical(limit_argmax)
      if (mine > best || (mine == best && where < block)) best = mine, block = where;
    });
    place = static_cast<std::size_t>(std::find(from + block, from + n, best) - from);
    keep(place);
  }
  verify(state, Row::argmax, from + place, 1);
}

namespace {
/// A bound rather than a way to do it: n elements are copied past the caches.
void copy(State& state, std::size_t n) {
  Buffer a(Input::a, n), y(n);
  const float* from = a;
  float* to = y;
  for (auto _ : state) {
    parallel(n, 32000, 4 * width, [=](std::size_t i, std::size_t stop) {
      for (; i < stop; i += width) stream(to + i, load(from + i));
      _mm_sfence();
    });
    keep(y);
  }
}
}  // namespace
void cumsum(State& state) { copy(state, size(state)); }
void cumsum_rows(State& state) { copy(state, size(state) * size(state)); }
void cumsum_columns(State& state) { copy(state, size(state) * size(state)); }

void softmax_columns(State& state) {
  std::size_t n = size(state);
  Buffer a(Input::a, n * n), y(n * n);
  const float* from = a;
  float* to = y;
  constexpr std::size_t packs = 4, strip = packs * width;
  for (auto _ : state) {
    by_rows(n / strip, 1, [=](std::size_t first, std::size_t last) {
      std::vector<float> memory(n * strip + 16);
      float* held = memory.data();
      for (; first < last; ++first) {
        const float* x = from + first * strip;
        V most[packs], sum[packs];
        for (std::size_t k = 0; k < packs; ++k) most[k] = set(-3e38f), sum[k] = set(0);
        for (std::size_t i = 0; i < n; ++i) {
          for (std::size_t k = 0; k < packs; ++k) {
            V v = load(x + i * n + k * width);
            _mm_prefetch(x + (i + 16) * n + k * width, _MM_HINT_T1);
            store(held + i * strip + k * width, v);
            most[k] = limit::max(most[k], v);
          }
        }
        for (std::size_t i = 0; i < n; ++i) {
          for (std::size_t k = 0; k < packs; ++k) {
            V e = limit::exp(load(held + i * strip + k * width) - most[k]);
            store(held + i * strip + k * width, e);
            sum[k] = sum[k] + e;
          }
        }
        for (std::size_t k = 0; k < packs; ++k) sum[k] = set(1) / sum[k];
        for (std::size_t i = 0; i < n; ++i)
          for (std::size_t k = 0; k < packs; ++k) stream(to + i * n + first * strip + k * width, load(held + i * strip + k * width) * sum[k]);
      }
      _mm_sfence();
    });
    keep(y);
  }
  verify(state, Row::softmax_columns, y, n * n);
}
void layer_norm_cached(State& state) {
  std::size_t n = size(state);
  constexpr std::size_t length = 1024;
  Buffer a(Input::a, n * length), y(n * length);
  float *from = a, *to = y;
  for (auto _ : state) {
    by_rows(n, 16, [=](std::size_t first, std::size_t last) {
      for (; first < last; ++first) normalise(to + first * length, from + first * length, length);
    });
    keep(y);
  }
  verify(state, Row::layer_norm_cached, y, n * length);
}

namespace {
/// y = a b, all of side N.
template <std::size_t N>
inline void multiply(float* __restrict y, const float* __restrict a, const float* __restrict b) {
  for (std::size_t i = 0; i < N; ++i) {
    float sums[N] = {};
    for (std::size_t k = 0; k < N; ++k)
      for (std::size_t j = 0; j < N; ++j) sums[j] += a[i * N + k] * b[k * N + j];
    for (std::size_t j = 0; j < N; ++j) y[i * N + j] = sums[j];
  }
}
template <std::size_t N>
void run_small(State& state) {
  Buffer a(Input::a, N * N), b(Input::b, N * N);
  float* last = nullptr;
  for (auto _ : state) {
    std::free(last);
    last = static_cast<float*>(std::malloc(N * N * sizeof(float)));
    multiply<N>(last, a, b);
    keep(last);
  }
  verify(state, Row::small_product, last, N * N);
  std::free(last);
}
template <class F>
void run_batch(State& state, F f) {
  std::size_t n = size(state), count = std::size_t{1} << 18;
  Buffer a(Input::a, count), b(Input::b, count), y(count);
  float *p = a, *q = b, *r = y;
  for (auto _ : state) {
    parallel(count, 8000, n * n, [=](std::size_t i, std::size_t stop) {
      for (; i < stop; i += n * n) f(r + i, p + i, q + i);
    });
    keep(y);
  }
  verify(state, Row::batched_product, y, count);
}
}  // namespace
void small_product(State& state) {
  if (size(state) == 2) run_small<2>(state);
  else if (size(state) == 3) run_small<3>(state);
  else run_small<4>(state);
}
void batched_product(State& state) {
  if (size(state) == 4) return run_batch(state, multiply<4>);
  if (size(state) == 16) {
    return run_batch(state, [](float* y, const float* a, const float* b) {
      V rows[16][16 / width];
      for (std::size_t k = 0; k < 16; ++k)
        for (std::size_t p = 0; p < 16 / width; ++p) rows[k][p] = load(b + k * 16 + p * width);
      for (std::size_t i = 0; i < 16; ++i) {
        for (std::size_t p = 0; p < 16 / width; ++p) {
          V even = set(0), odd = set(0);
#pragma GCC unroll 16
          for (std::size_t k = 0; k < 16; k += 2) even = fma(set(a[i * 16 + k]), rows[k][p], even), odd = fma(set(a[i * 16 + k + 1]), rows[k + 1][p], odd);
          store(y + i * 16 + p * width, even + odd);
        }
      }
    });
  }
  openblas_set_num_threads(1);
  int n = static_cast<int>(size(state));
  run_batch(state, [n](float* y, const float* a, const float* b) { cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, n, n, n, 1.0f, a, n, b, n, 0.0f, y, n); });
}

namespace {

/// Direct: a padded copy of an image, then for some outputs at a time a row of sums in registers.
template <class Finish>
void convolve(State& state, Row row, std::size_t result_elements, Finish finish) {
  std::size_t n = size(state);
  constexpr std::size_t side = Images::side, channels = Images::channels, outputs = Images::outputs, pitch = side + 2 + 14, plane = side * side;
  constexpr std::size_t packs = side / width, together = width == 16 ? 8 : 2;
  Buffer x(Input::a, n * channels * plane), w(Input::b, outputs * channels * 9), bias(Input::c, outputs), y(result_elements);
  float *from = x, *weights = w, *biases = bias, *to = y;
  for (auto _ : state) {
    by_rows(n, 1, [=](std::size_t image, std::size_t last) {
      alignas(64) static thread_local float padded[channels * (side + 2) * pitch];
      alignas(64) static thread_local float result[outputs * plane];
      for (; image < last; ++image) {
        for (std::size_t r = 0; r < channels * side; ++r)
          std::memcpy(padded + (r / side * (side + 2) + r % side + 1) * pitch + 1, from + (image * channels * side + r) * side, side * sizeof(float));
        for (std::size_t o = 0; o < outputs; o += together) {
          for (std::size_t r = 0; r < side; ++r) {
            V sums[together][packs];
#pragma GCC unroll 8
            for (std::size_t k = 0; k < together; ++k)
              for (std::size_t p = 0; p < packs; ++p) sums[k][p] = set(biases[o + k]);
            for (std::size_t t = 0; t < channels * 9; ++t) {
              const float* line = padded + (t / 9 * (side + 2) + r + t / 3 % 3) * pitch + t % 3;
              V v[packs];
              for (std::size_t p = 0; p < packs; ++p) v[p] = load(line + p * width);
#pragma GCC unroll 8
              for (std::size_t k = 0; k < together; ++k) {
                V weight = set(weights[(o + k) * channels * 9 + t]);
                for (std::size_t p = 0; p < packs; ++p) sums[k][p] = fma(weight, v[p], sums[k][p]);
              }
            }
#pragma GCC unroll 8
            for (std::size_t k = 0; k < together; ++k)
              for (std::size_t p = 0; p < packs; ++p) store(result + (o + k) * plane + r * side + p * width, sums[k][p]);
          }
        }
        finish(to, result, image);
      }
    });
    keep(y);
  }
  verify(state, row, y, result_elements);
}

}  // namespace
void convolution(State& state) {
  constexpr std::size_t image_elements = Images::outputs * Images::side * Images::side;
  convolve(state, Row::convolution, size(state) * image_elements,
           [](float* y, const float* x, std::size_t image) { std::memcpy(y + image * image_elements, x, image_elements * sizeof(float)); });
}
void convolution_block(State& state) {
  constexpr std::size_t side = Images::side, pooled = Images::pooled, image_elements = Images::outputs * pooled * pooled;
  convolve(state, Row::convolution_block, size(state) * image_elements, [](float* y, const float* x, std::size_t image) {
    y += image * image_elements;
    for (std::size_t r = 0; r < Images::outputs * pooled; ++r) {
      const float *p = x + 2 * r * side, *q = p + side;
      float tops[side];
      for (std::size_t k = 0; k < side; ++k) tops[k] = std::max(std::max(p[k], q[k]), 0.0f);
      for (std::size_t k = 0; k < pooled; ++k) y[r * pooled + k] = std::max(tops[2 * k], tops[2 * k + 1]);
    }
  });
}

namespace {
/// to(i) for the elements i of [0, n), on each thread.
template <class F>
void run_selection(State& state, Row row, std::size_t n, Buffer const& y, std::size_t count, F f) {
  for (auto _ : state) {
    parallel(n, 8000, 1, f);
    keep(y);
  }
  verify(state, row, y, count);
}
}  // namespace
void gather(State& state) {
  std::size_t n = size(state);
  Buffer a(Input::a, n), y(n);
  std::vector<std::int64_t> places = indices(n, n);
  const float* from = a;
  float* to = y;
  const std::int64_t* at = places.data();
  run_selection(state, Row::gather, n, y, n, [=](std::size_t i, std::size_t stop) {
    for (; i < stop; ++i) to[i] = from[at[i]];
  });
}
void index_select(State& state) {
  std::size_t n = size(state);
  constexpr std::size_t wide = Selections::width;
  Buffer a(Input::a, Selections::rows * wide), y(n * wide);
  std::vector<std::int64_t> rows = indices(n, Selections::rows);
  const float* from = a;
  float* to = y;
  const std::int64_t* at = rows.data();
  run_selection(state, Row::index_select, n, y, n * wide, [=](std::size_t i, std::size_t stop) {
    for (; i < stop; ++i) std::memcpy(to + i * wide, from + static_cast<std::size_t>(at[i]) * wide, wide * sizeof(float));
  });
}
/// On each thread into sums of its own.
void scatter_add(State& state) {
  std::size_t n = size(state);
  constexpr std::size_t bins = Selections::bins;
  Buffer a(Input::a, n), y(bins);
  std::vector<std::int64_t> places = indices(n, bins);
  for (auto _ : state) {
    std::memset(y, 0, bins * sizeof(float));
    parallel(n, 8000, 1, [&](std::size_t i, std::size_t stop) {
      float sums[2][bins] = {};
      for (; i + 2 <= stop; i += 2) sums[0][places[i]] += a[i], sums[1][places[i + 1]] += a[i + 1];
      for (; i < stop; ++i) sums[0][places[i]] += a[i];
#pragma omp critical(limit_scatter)
      for (std::size_t k = 0; k < bins; ++k) y[k] += sums[0][k] + sums[1][k];
    });
    keep(y);
  }
  verify(state, Row::scatter_add, y, bins);
}

/// Sums of differences from the first element and of their squares, in one pass.
void variance(State& state) {
  std::size_t n = size(state);
  Buffer a(Input::a, n);
  const float* from = a;
  float result = 0;
  for (auto _ : state) {
    double sum = 0, squares = 0;
    parallel(n, 32000, 8 * width, [&](std::size_t i, std::size_t end) {
      V s[8], q[8], first = set(from[0]);
      for (std::size_t k = 0; k < 8; ++k) s[k] = q[k] = set(0);
      for (; i < end; i += 8 * width) {
        for (std::size_t k = 0; k < 8; ++k) {
          V d = load(from + i + k * width) - first;
          s[k] = s[k] + d, q[k] = fma(d, d, q[k]);
        }
      }
      double mine = 0, mine_squared = 0;
      for (std::size_t k = 0; k < 8; ++k) mine += static_cast<double>(limit::add_up(s[k])), mine_squared += static_cast<double>(limit::add_up(q[k]));
#pragma omp critical(limit_variance)
      sum += mine, squares += mine_squared;
    });
    auto const count = static_cast<double>(n);
    result = static_cast<float>((squares - sum * sum / count) / (count - 1));
    keep(result);
  }
  verify(state, Row::variance, &result, 1);
}

namespace {
/// Copies past the caches, to any place.
void copy_past(float* to, const float* from, std::size_t n) {
  std::size_t i = 0;
  for (; i < n && reinterpret_cast<std::uintptr_t>(to + i) % sizeof(V) != 0; ++i) to[i] = from[i];
  for (; i + width <= n; i += width) stream(to + i, load(from + i));
  for (; i < n; ++i) to[i] = from[i];
}
}  // namespace
void pad(State& state) {
  std::size_t n = size(state), wide = n + 2;
  Buffer a(Input::a, n * n), y(wide * wide);
  const float* from = a;
  float* to = y;
  for (auto _ : state) {
    by_rows(wide, 1, [=](std::size_t row, std::size_t last) {
      for (; row < last; ++row) {
        float* const line = to + row * wide;
        if (row == 0 || row + 1 == wide) {
          std::memset(line, 0, wide * sizeof(float));
        } else {
          line[0] = line[wide - 1] = 0;
          copy_past(line + 1, from + (row - 1) * n, n);
        }
      }
      _mm_sfence();
    });
    keep(y);
  }
  verify(state, Row::pad, y, wide * wide);
}
void roll(State& state) {
  std::size_t n = size(state);
  Buffer a(Input::a, n), y(n);
  float *from = a, *to = y;
  for (auto _ : state) {
    std::memcpy(to, from + n - rolled_by, rolled_by * sizeof(float));
    parallel(n - rolled_by, 32000, width, [=](std::size_t i, std::size_t end) {
      copy_past(to + rolled_by + i, from + i, end - i);
      _mm_sfence();
    });
    keep(y);
  }
  verify(state, Row::roll, y, n);
}
void stack(State& state) {
  std::size_t n = size(state);
  Buffer a(Input::a, n), b(Input::b, n), c(Input::c, n), y(3 * n);
  float *to = y, *parts[] = {a, b, c};
  for (auto _ : state) {
    for (std::size_t part = 0; part < 3; ++part) {
      float *const from = parts[part], *const there = to + part * n;
      parallel(n, 32000, width, [=](std::size_t i, std::size_t end) { std::memcpy(there + i, from + i, (end - i) * sizeof(float)); });
    }
    keep(y);
  }
  verify(state, Row::stack, y, 3 * n);
}
void stack_last(State& state) {
  std::size_t n = size(state);
  Buffer a(Input::a, n), b(Input::b, n), c(Input::c, n), y(3 * n);
  float *p = a, *q = b, *r = c, *to = y;
  for (auto _ : state) {
    parallel(n, 32000, width, [=](std::size_t i, std::size_t end) {
#pragma GCC ivdep
      for (; i < end; ++i) to[3 * i] = p[i], to[3 * i + 1] = q[i], to[3 * i + 2] = r[i];
    });
    keep(y);
  }
  verify(state, Row::stack_last, y, 3 * n);
}

// No loops by hand from here on: the standard library, on one thread.

void masked_select(State& state) {
  std::size_t n = size(state), count = 0;
  Buffer a(Input::a, n), y(n);
  std::vector<unsigned char> mask(n);
  for (std::size_t i = 0; i < n; ++i) mask[i] = a[i] > 0;
  const float* from = a;
  float* to = y;
  for (auto _ : state) {
    count = 0;
    for (std::size_t i = 0; i < n; ++i) to[count] = from[i], count += mask[i];
    keep(y);
  }
  verify(state, Row::masked_select, y, count);
}
/// On one thread.
void nonzero(State& state) {
  std::size_t n = size(state), count = 0;
  Buffer a(Input::a, n), y(n);
  std::vector<unsigned char> mask(n);
  for (std::size_t i = 0; i < n; ++i) mask[i] = a[i] > 0;
  std::vector<std::int64_t> places(n);
  for (auto _ : state) {
    count = 0;
    for (std::size_t i = 0; i < n; ++i) places[count] = static_cast<std::int64_t>(i), count += mask[i];
    keep(*places.data());
  }
  for (std::size_t i = 0; i < count; ++i) y[i] = static_cast<float>(places[i]);
  verify(state, Row::nonzero, y, count);
}
void argsort(State& state) {
  std::size_t n = size(state);
  Buffer a(Input::a, n), y(n);
  std::vector<std::int64_t> order(n);
  for (auto _ : state) {
    for (std::size_t i = 0; i < n; ++i) order[i] = static_cast<std::int64_t>(i);
    std::sort(order.begin(), order.end(), [&](std::int64_t i, std::int64_t j) { return a[i] < a[j]; });
    keep(*order.data());
  }
  for (std::size_t i = 0; i < n; ++i) y[i] = a[order[i]];
  verify(state, Row::argsort, y, n);
}
void topk(State& state) {
  std::size_t n = size(state);
  Buffer a(Input::a, n);
  std::vector<std::int64_t> order(n);
  for (auto _ : state) {
    for (std::size_t i = 0; i < n; ++i) order[i] = static_cast<std::int64_t>(i);
    std::partial_sort(order.begin(), order.begin() + Selections::best, order.end(), [&](std::int64_t i, std::int64_t j) { return a[i] > a[j]; });
    keep(*order.data());
  }
  std::vector<float> best;
  for (std::size_t i = 0; i < Selections::best; ++i) best.push_back(a[order[i]]);
  verify(state, Row::topk, best.data(), best.size());
}
void unique(State& state) {
  std::size_t n = size(state), count = 0;
  Buffer a(n), y(n);
  for (std::size_t i = 0; i < n; ++i) a[i] = static_cast<float>(index(i, n / 2));
  for (auto _ : state) {
    std::memcpy(y, a, n * sizeof(float));
    std::sort(static_cast<float*>(y), y + n);
    count = static_cast<std::size_t>(std::unique(static_cast<float*>(y), y + n) - y);
    keep(y);
  }
  verify(state, Row::unique, y, count);
}

}  // namespace workloads
