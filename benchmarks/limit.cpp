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

void add_row(State& state) {
  run_matrix(state, Row::add_row, [](float* y, P a, P b, std::size_t n) {
    constexpr std::size_t together = 4;  // rows that share a load of b
    by_rows(n, together, [=](std::size_t row, std::size_t last) {
      for (; row < last; row += together)
        for (std::size_t i = row * n, k = 0; k < n; i += width, k += width) {
          V x = load(b + k);
          for (std::size_t r = 0; r < together; ++r) stream(y + i + r * n, load(a + i + r * n) + x);
        }
      _mm_sfence();
    });
  });
}

void add_column(State& state) {
  run_matrix(state, Row::add_column, [](float* y, P a, P b, std::size_t n) {
    by_rows(n, 1, [=](std::size_t row, std::size_t last) {
      for (; row < last; ++row) {
        V x = set(b[row]);
        for (std::size_t i = 0; i < n; i += width) stream(y + row * n + i, load(a + row * n + i) + x);
      }
      _mm_sfence();
    });
  });
}

void outer(State& state) {
  run_matrix(state, Row::outer, [](float* y, P a, P b, std::size_t n) {
    by_rows(n, 1, [=](std::size_t row, std::size_t last) {
      for (; row < last; ++row) {
        V x = set(a[row]);
        for (std::size_t i = 0; i < n; i += width) stream(y + row * n + i, x * load(b + i));
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
void layer_norm(State& state) {
  run_rows(state, Row::layer_norm, [](float* y, P a, std::size_t n) {
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
  });
}

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

}  // namespace workloads
