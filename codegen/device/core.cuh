// core.cuh: storage types, conversions, arithmetic on reals. Every other device source starts from it.
//
// No host or vendor header is included: a header costs more compile time than all the kernels here together.
#pragma once
#include "integers.cuh"

namespace samite {

using f32 = float;
using f64 = double;

struct bf16 {
  u16 bits;
};
struct f16 {
  u16 bits;
};

// ---- conversions between storage and arithmetic; rounding is to nearest, ties to even ----------------------------------

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(double x) { return float(x); }
__device__ inline float to_float(bf16 x) { return __uint_as_float(u32(x.bits) << 16); }
__device__ inline float to_float(f16 x) {
  float y;
  asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
  return y;
}

template <class T> struct storage;
template <> struct storage<float> {
  static __device__ inline float from(float x) { return x; }
  static __device__ inline float from(double x) { return float(x); }
};
template <> struct storage<double> {
  static __device__ inline double from(float x) { return x; }
  static __device__ inline double from(double x) { return x; }
};
template <> struct storage<bf16> {
  static __device__ inline bf16 from(float x) {
    bf16 y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
  }
  static __device__ inline bf16 from(double x) { return from(float(x)); }
  // The first argument becomes the lower half.
  static __device__ inline u32 pair(float low, float high) {
    u32 y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
  }
};
template <> struct storage<f16> {
  static __device__ inline f16 from(float x) {
    f16 y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y.bits) : "f"(x));
    return y;
  }
  static __device__ inline f16 from(double x) { return from(float(x)); }
  static __device__ inline u32 pair(float low, float high) {
    u32 y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
  }
};

// Reals and indices as the kernel's arithmetic sees them.
template <class Real> struct arithmetic {
  static __device__ inline Real load(float x) { return Real(x); }
  static __device__ inline Real load(double x) { return Real(x); }
  static __device__ inline Real load(bf16 x) { return Real(to_float(x)); }
  static __device__ inline Real load(f16 x) { return Real(to_float(x)); }
  static __device__ inline Real load(i32 x) { return Real(x); }
  static __device__ inline Real load(i64 x) { return Real(x); }
  static __device__ inline Real load(u8 x) { return Real(x); }
};

template <class T> __device__ inline void put(T& to, float x) { to = storage<T>::from(x); }
template <class T> __device__ inline void put(T& to, double x) { to = storage<T>::from(x); }
__device__ inline void put(i32& to, float x) { to = i32(x); }
__device__ inline void put(i32& to, double x) { to = i32(x); }
__device__ inline void put(i64& to, float x) { to = i64(x); }
__device__ inline void put(i64& to, double x) { to = i64(x); }
__device__ inline void put(u8& to, double x) { to = u8(x > 0 ? (x < 255 ? x : 255) : 0); }  // 0 for NaN, as the conversions to i32 and i64 give
__device__ inline void put(u8& to, float x) { put(to, double(x)); }

// A real rounded to what the storage type can hold.
template <class T, class Real> __device__ inline Real rounded_to(Real x) { return arithmetic<Real>::load(storage<T>::from(x)); }

// ---- reals: as the CPU backend computes them, so no fast approximations; min and max keep the first of two NaN-free equals --

__device__ inline float real_exp(float x) { return ::expf(x); }
__device__ inline double real_exp(double x) { return ::exp(x); }
__device__ inline float real_log(float x) { return ::logf(x); }
__device__ inline double real_log(double x) { return ::log(x); }
__device__ inline float real_sqrt(float x) { return ::sqrtf(x); }
__device__ inline double real_sqrt(double x) { return ::sqrt(x); }
__device__ inline float real_rsqrt(float x) { return ::rsqrtf(x); }
__device__ inline double real_rsqrt(double x) { return ::rsqrt(x); }
__device__ inline float real_tanh(float x) { return ::tanhf(x); }
__device__ inline double real_tanh(double x) { return ::tanh(x); }
__device__ inline float real_sin(float x) { return ::sinf(x); }
__device__ inline double real_sin(double x) { return ::sin(x); }
__device__ inline float real_cos(float x) { return ::cosf(x); }
__device__ inline double real_cos(double x) { return ::cos(x); }
// These hide the global functions: a NaN is treated as `value` in ir/ops.hpp treats it.
__device__ inline float fabs(float x) { return ::fabsf(x); }
__device__ inline double fabs(double x) { return ::fabs(x); }
__device__ inline float fmin(float a, float b) { return b < a ? b : a; }
__device__ inline double fmin(double a, double b) { return b < a ? b : a; }
__device__ inline float fmax(float a, float b) { return a < b ? b : a; }
__device__ inline double fmax(double a, double b) { return a < b ? b : a; }

__device__ inline float infinity() { return __uint_as_float(0x7f800000u); }
// A constant that has no decimal spelling.
__device__ inline double real_bits(u64 bits) { return __longlong_as_double(i64(bits)); }

// ---- errors that a kernel finds in its data; the host reads the report when it waits for the device ------------------------

struct error_report {
  i32 code;    // 0: none
  i32 source;  // which launch
  i64 value, position, bound;
};

// The first to come wins; the others would say the same.
__device__ inline void report_error(error_report* report, i32 code, i32 source, i64 value, i64 position, i64 bound) {
  if (atomicCAS(&report->code, 0, code) != 0) return;
  report->source = source, report->value = value, report->position = position, report->bound = bound;
}

}  // namespace samite
