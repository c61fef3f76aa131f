// tests/emulated/block.hpp: a block of GPU threads on the host, so that kernels run where there is no GPU: to be included before what
// emulate.cmake makes of the device sources.
//
// Each thread is a fiber; where threads of a warp or of the block meet, each goes on when the others are there. Shared memory begins as
// NaNs, and an asynchronous copy is done when it is waited for and not before: who reads too early reads something else.
#pragma once
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <utility>
#include <vector>

#define __device__
#define __CUDA_ARCH__ 900

struct uint2 {
  unsigned x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct float2 {
  float x, y;
};

namespace samite {
alignas(16) inline uint4 shared[101376 / 16];  // the kernels' dynamic shared memory: `extern __shared__ uint4 shared[]`
}

namespace emulated {

struct copy {
  void* to;
  const void* from;
  bool exists;
  std::size_t bytes;
};

struct thread {
  ucontext_t context;
  std::vector<char> stack;
  bool is_done = false;
  long meetings = 0, barriers = 0;         // of its warp and of its block, so far
  std::vector<std::vector<copy>> groups{};  // of copies under way
  std::vector<copy> open{};
};

inline constexpr int most_threads = 256, warp = 32;
inline thread threads[most_threads];
inline int running = 0, count = 0;
inline ucontext_t outside;
inline std::function<void()> kernel;
using words = unsigned[4];
inline words exchanged[2][most_threads];

inline void let_others_run() {
  const int self = running;
  int next = self;
  do next = (next + 1) % count;
  while (threads[next].is_done && next != self);
  if (next == self) return;
  running = next;
  ::swapcontext(&threads[self].context, &threads[next].context);
}

inline void fail(const char* why) {
  std::fprintf(stderr, "emulated block: %s\n", why);
  std::abort();
}

/// Gives `data` to the warp; returns what its threads gave, valid until the meeting after the next.
inline const words* meet(const unsigned* data, int size) {
  const int self = running, first = self / warp * warp;
  const long meeting = threads[self].meetings++;
  for (int i = 0; i < size; ++i) exchanged[meeting % 2][self][i] = data[i];
  for (int i = first; i < first + warp;) {
    if (threads[i].meetings > meeting) ++i;
    else if (threads[i].is_done) fail("a thread ended where its warp meets");
    else let_others_run();
  }
  return exchanged[meeting % 2] + first;
}

inline void barrier() {
  const long number = threads[running].barriers++;
  for (int i = 0; i < count;) {
    if (threads[i].barriers > number || threads[i].is_done) ++i;
    else let_others_run();
  }
}

inline void run_thread() {
  kernel();
  threads[running].is_done = true;
  for (int i = 0; i < count; ++i)
    if (!threads[i].is_done) {
      running = i;
      ::setcontext(&threads[i].context);
    }
  ::setcontext(&outside);
}

/// Runs one block of `size` threads, a whole number of warps.
inline void run_block(int size, std::function<void()> body) {
  count = size, kernel = std::move(body), running = 0;
  std::memset(samite::shared, 0xff, sizeof samite::shared);
  for (int i = 0; i < size; ++i) {
    thread& t = threads[i];
    t.stack.resize(128 * 1024);
    ::getcontext(&t.context);
    t.context.uc_stack.ss_sp = t.stack.data(), t.context.uc_stack.ss_size = t.stack.size(), t.context.uc_link = nullptr;
    t.is_done = false, t.meetings = t.barriers = 0, t.groups.clear(), t.open.clear();
    ::makecontext(&t.context, run_thread, 0);
  }
  ::swapcontext(&outside, &threads[0].context);
}

// ---- instructions ----------------------------------------------------------------------------------------------------------------

inline std::uint16_t to_bf16(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return x != x ? std::uint16_t(0x7fff) : std::uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline float from_bf16(unsigned half) {
  const std::uint32_t bits = half << 16;
  float x;
  std::memcpy(&x, &bits, 4);
  return x;
}
inline std::uint16_t to_f16(float x) {
  const _Float16 half = _Float16(x);
  std::uint16_t bits;
  std::memcpy(&bits, &half, 2);
  return bits;
}
inline float from_f16(unsigned half) {
  const std::uint16_t bits = std::uint16_t(half);
  _Float16 x;
  std::memcpy(&x, &bits, 2);
  return float(x);
}
inline float from_half(unsigned bits, bool is_bf16) { return is_bf16 ? from_bf16(bits) : from_f16(bits); }

inline unsigned shared_address(const void* pointer) { return unsigned(static_cast<const char*>(pointer) - reinterpret_cast<const char*>(samite::shared)); }

/// mma.m16n8k16: the fragments' layout is that of the PTX ISA, written anew from the text.
inline void multiply_add(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1, bool is_bf16) {
  unsigned A[warp][4], B[warp][4];
  std::memcpy(A, meet(a, 4), sizeof A);
  const unsigned b[2] = {b0, b1};
  std::memcpy(B, meet(b, 2), sizeof B);
  const auto half_of = [&](unsigned pair, int k) { return double(from_half(k % 2 != 0 ? pair >> 16 : pair & 0xffff, is_bf16)); };
  const int lane = running % warp;
  for (int e = 0; e < 4; ++e) {
    const int row = lane / 4 + e / 2 * 8, column = lane % 4 * 2 + e % 2;
    double sum = c[e];
    for (int k = 0; k < 16; ++k) sum += half_of(A[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2], k) * half_of(B[column * 4 + k % 8 / 2][k / 8], k);
    c[e] = float(sum);
  }
}

inline void load_matrices(unsigned (&x)[4], unsigned address, bool transposed) {
  const words* addresses = meet(&address, 1);
  const int lane = running % warp;
  for (int m = 0; m < 4; ++m) {
    x[m] = 0;
    for (int j = 0; j < 2; ++j) {
      const int row = transposed ? lane % 4 * 2 + j : lane / 4, column = transposed ? lane / 4 : lane % 4 * 2 + j;
      const unsigned at = addresses[8 * m + row][0];
      if (at % 16 != 0 || at + 16 > sizeof samite::shared) fail("a matrix row that is not aligned, or outside of shared memory");
      std::uint16_t half;
      std::memcpy(&half, reinterpret_cast<const char*>(samite::shared) + at + std::size_t(column) * 2, 2);
      x[m] |= unsigned(half) << (16 * j);
    }
  }
}

inline void copy_async(void* to, const void* from, bool exists, std::size_t bytes = 16) {
  if (reinterpret_cast<std::uintptr_t>(to) % bytes != 0 || reinterpret_cast<std::uintptr_t>(from) % bytes != 0) fail("an asynchronous copy that is not aligned");
  threads[running].open.push_back({to, from, exists, bytes});
}
inline void end_copies() {
  thread& t = threads[running];
  t.groups.push_back(std::exchange(t.open, {}));
}
inline void wait_copies(std::size_t left) {
  thread& t = threads[running];
  while (t.groups.size() > left) {
    for (const copy& c : t.groups.front()) {
      if (c.exists) std::memcpy(c.to, c.from, c.bytes);
      else std::memset(c.to, 0, c.bytes);
    }
    t.groups.erase(t.groups.begin());
  }
}

template <class T> T from_lane(T x, int lane) {
  static_assert(sizeof(T) <= sizeof(words));
  words data = {};
  std::memcpy(data, &x, sizeof x);
  std::memcpy(&x, meet(data, 4)[lane], sizeof x);
  return x;
}

}  // namespace emulated

// ---- what NVRTC declares by itself ----------------------------------------------------------------------------------------------

struct emulated_thread_index {
  struct {
    operator int() const { return emulated::running; }
  } x;
};
struct emulated_sizes {
  int x = 1, y = 1, z = 1;
};
inline emulated_thread_index threadIdx;
inline emulated_sizes blockIdx, gridDim, blockDim;

inline float __uint_as_float(unsigned x) {
  float y;
  std::memcpy(&y, &x, 4);
  return y;
}
inline unsigned __float_as_uint(float x) {
  unsigned y;
  std::memcpy(&y, &x, 4);
  return y;
}
inline double __longlong_as_double(long long x) {
  double y;
  std::memcpy(&y, &x, 8);
  return y;
}
inline void __syncwarp() { emulated::meet(nullptr, 0); }
inline void __syncthreads() { emulated::barrier(); }
template <class T> T __shfl_xor_sync(unsigned, T x, int mask) { return emulated::from_lane(x, (emulated::running % emulated::warp) ^ mask); }
template <class T> T __shfl_sync(unsigned, T x, int lane) { return emulated::from_lane(x, lane); }
inline bool __any_sync(unsigned, bool x) {
  const unsigned data = x;
  const emulated::words* all = emulated::meet(&data, 1);
  for (int i = 0; i < emulated::warp; ++i)
    if (all[i][0] != 0) return true;
  return false;
}
template <class T, class V> T atomicAdd(T* to, V x) { return std::exchange(*to, T(*to + T(x))); }
template <class T, class V> T atomicExch(T* to, V x) { return std::exchange(*to, T(x)); }
template <class T, class V, class W> T atomicCAS(T* to, V expected, W x) { return *to == T(expected) ? std::exchange(*to, T(x)) : *to; }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
inline double rsqrt(double x) { return 1 / std::sqrt(x); }
