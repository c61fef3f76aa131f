// hopper.cuh: what sm_90a adds: matrix products of a warpgroup (wgmma), tensor copies (TMA), barriers in shared memory.
//
// Tiles in shared memory are chunks of 64 columns, [rows][64] of 16-bit elements with 128-byte rows, in the 128-byte swizzle; chunks
// begin at multiples of 1024 bytes. A product of a warpgroup has 64 rows; element (i, e) of a thread's accumulators is in row
// 16 * warp + lane / 4 + (e / 2) * 8 and column 8 i + lane % 4 * 2 + e % 2.
// source  PTX ISA 9.0, "Asynchronous Warpgroup Level Matrix Instructions", "Tensor Memory Access"
#pragma once
#include "mma.cuh"

namespace samite {

// ---- barriers in shared memory ------------------------------------------------------------------------------------------------

// Barriers and tiles are named by their addresses in shared memory.
__device__ inline void barrier_init(u32 barrier, u32 count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory"); }
__device__ inline void barrier_init_visible() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ inline void barrier_arrive(u32 barrier) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.shared::cta.b64 state, [%0]; }" ::"r"(barrier) : "memory");
}
// Who tells a barrier that a tile has been read, how many that are of a warpgroup: a thread for all of it, after they have met or for what came before a product, which all
// take part in; or one of each warp. racecheck believes only the threads that arrive: with SAMITE_EVERY_THREAD_ARRIVES all do.
#ifdef SAMITE_EVERY_THREAD_ARRIVES
constexpr u32 group_arrivals = 128, warp_arrivals = 128;
__device__ inline void group_arrive(u32 barrier) { barrier_arrive(barrier); }
__device__ inline void warp_arrive(u32 barrier) { barrier_arrive(barrier); }
#else
constexpr u32 group_arrivals = 1, warp_arrivals = 4;
__device__ inline void group_arrive(u32 barrier) {
  if (threadIdx.x % 128 == 0) barrier_arrive(barrier);
}
__device__ inline void warp_arrive(u32 barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier_arrive(barrier);
}
#endif
__device__ inline void barrier_expect(u32 barrier, u32 bytes) {
  asm volatile("{ .reg .b64 state; mbarrier.arrive.expect_tx.shared::cta.b64 state, [%0], %1; }" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ inline void barrier_wait(u32 barrier, u32 parity) {
  asm volatile(
      "{\n.reg .pred done;\nwait_%=:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra wait_%=;\n}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
__device__ inline void store_shared(u32 address, i32 a, i32 b) { asm volatile("st.shared.v2.s32 [%0], {%1, %2};" ::"r"(address), "r"(a), "r"(b) : "memory"); }
__device__ inline int2 load_shared(u32 address) {
  int2 x;
  asm volatile("ld.shared.v2.s32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(address) : "memory");
  return x;
}
__device__ inline void store_shared(u32 address, u32 x) { asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(x) : "memory"); }
__device__ inline uint4 load_shared_16(u32 address) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(address) : "memory");
  return x;
}

__device__ inline float2 load_shared_pair(u32 address) {
  float2 x;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x.x), "=f"(x.y) : "r"(address) : "memory");
  return x;
}
// Four 8x8 blocks of 16-bit elements: lane 8 i + j has the address of row j of block i, x[i] this lane's two elements of block i: row lane / 4, columns lane % 4 * 2 and
// the next.
__device__ inline void store_blocks(u32 address, u32 a, u32 b, u32 c, u32 d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
// Four 8x8 blocks of 16-bit elements, transposed: lane 8 i + j has the address of row j of block i, x[i] this lane's two elements of block i.
__device__ inline void store_transposed(u32 address, const u32* x) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory");
}

// ---- tensor copies -------------------------------------------------------------------------------------------------------------

struct alignas(64) tensor_map {
  u64 words[16];
};
__device__ inline void prefetch(const tensor_map& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }
// A box of the map at column, row, head and batch to shared memory; its bytes count in the barrier. One thread.
__device__ inline void copy_box(u32 to, const tensor_map& map, u32 barrier, i32 column, i32 row, i32 head, i32 batch) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to), "l"(&map),
               "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch)
               : "memory");
}

// The same of a map whose rows have one more axis, taken whole: heads of a group beside one another in each token's place.
__device__ inline void copy_packed_box(u32 to, const tensor_map& map, u32 barrier, i32 column, i32 row, i32 head, i32 batch) {
  asm volatile("cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %7, %4, %5, %6}], [%2];" ::"r"(to), "l"(&map),
               "r"(barrier), "r"(column), "r"(row), "r"(head), "r"(batch), "r"(0)
               : "memory");
}

// The way back, which clips what is outside of the map. One thread, after copies_follow of those that wrote the box; it waits until a box has been read.
__device__ inline void store_packed_box(const tensor_map& map, u32 from, i32 column, i32 row, i32 head, i32 batch) {
  asm volatile("cp.async.bulk.tensor.5d.global.shared::cta.tile.bulk_group [%0, {%2, %6, %3, %4, %5}], [%1];" ::"l"(&map), "r"(from), "r"(column), "r"(row), "r"(head),
               "r"(batch), "r"(0)
               : "memory");
}
__device__ inline void boxes_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
__device__ inline void boxes_wait_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }

// `bytes` at a multiple of 16 bytes, as many as 16 divides. One thread.
__device__ inline void copy_bytes(u32 to, const void* from, u32 bytes, u32 barrier) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}
__device__ inline void add_global(float* to, float a, float b, float c, float d) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(a), "f"(b), "f"(c), "f"(d) : "memory");
}

// What this thread read and wrote in shared memory comes before the copies that a barrier lets follow.
__device__ inline void copies_follow() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// ---- registers of a warpgroup ----------------------------------------------------------------------------------------------------

template <int Count> __device__ inline void give_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count)); }
template <int Count> __device__ inline void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count)); }
__device__ inline void block_sync(int name, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(name), "r"(threads) : "memory"); }
__device__ inline void warpgroup_sync(int name) { block_sync(name, 128); }

// ---- products --------------------------------------------------------------------------------------------------------------------

__device__ inline void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Pending> __device__ inline void products_wait() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory"); }
// Keeps the compiler from moving arithmetic on accumulators over a wait or a begin.
template <int N> __device__ inline void pin(float (&x)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(x[i])::"memory");
}

// Descriptor of an operand in shared memory. Rows of k (K-major): `lead` is not read. Columns of k: `lead` is the distance of chunks.
__device__ inline u64 operand(u32 tile, u32 lead) {
  return u64((tile & 0x3ffff) >> 4) | u64(lead >> 4) << 16 | u64(1024 >> 4) << 32 | u64(1) << 62;
}

// c[64, 8 N'] (+)= a b for 16 steps of k. In `product`, a and b are descriptors and both are K-major; in `product_by_columns` b has the
// steps of k as rows; so it has in `product_columns`, where a are registers. `product_columns_of` takes the first 8 or 2 steps of k that begin at b, as a group
// that is begun and committed. It is one text, since the assembler lets accumulators in flight meet at the end of branches only where no instruction
// copies them, and the compiler before it would.
template <class T, int N> struct warpgroup_product;

// Registers by number, and the accumulators that they are.
#define SAMITE_REGISTERS_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define SAMITE_REGISTERS_32 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SAMITE_REGISTERS_64 SAMITE_REGISTERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define SAMITE_REGISTERS_96 SAMITE_REGISTERS_64 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define SAMITE_REGISTERS_128 SAMITE_REGISTERS_96 ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define SAMITE_SUMS_8(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3]), "+f"(c[i + 4]), "+f"(c[i + 5]), "+f"(c[i + 6]), "+f"(c[i + 7])
#define SAMITE_SUMS_16 SAMITE_SUMS_8(0), SAMITE_SUMS_8(8)
#define SAMITE_SUMS_32 SAMITE_SUMS_8(0), SAMITE_SUMS_8(8), SAMITE_SUMS_8(16), SAMITE_SUMS_8(24)
#define SAMITE_SUMS_64 SAMITE_SUMS_32, SAMITE_SUMS_8(32), SAMITE_SUMS_8(40), SAMITE_SUMS_8(48), SAMITE_SUMS_8(56)
#define SAMITE_SUMS_96 SAMITE_SUMS_64, SAMITE_SUMS_8(64), SAMITE_SUMS_8(72), SAMITE_SUMS_8(80), SAMITE_SUMS_8(88)
#define SAMITE_SUMS_128 SAMITE_SUMS_96, SAMITE_SUMS_8(96), SAMITE_SUMS_8(104), SAMITE_SUMS_8(112), SAMITE_SUMS_8(120)

// The numbers behind the accumulators are those of the other operands.
#define SAMITE_PRODUCT(T, N, COUNT, A, B, ADD) SAMITE_PRODUCT_AS(product, "0", T, N, COUNT, A, B, ADD)
#define SAMITE_PRODUCT_BY_COLUMNS(T, N, COUNT, A, B, ADD) SAMITE_PRODUCT_AS(product_by_columns, "1", T, N, COUNT, A, B, ADD)
#define SAMITE_PRODUCT_AS(NAME, ROWS, T, N, COUNT, A, B, ADD)                                                     \
  static __device__ inline void NAME(float (&c)[COUNT], u64 a, u64 b, int add) {                                  \
    asm volatile(                                                                                                 \
        "{\n.reg .pred p;\nsetp.ne.b32 p, " ADD ", 0;\n"                                                         \
        "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." #T "." #T " "                                           \
        "{" SAMITE_REGISTERS_##COUNT "}, "                                                                        \
        A ", " B ", p, 1, 1, 0, " ROWS ";\n}"                                                                     \
        : SAMITE_SUMS_##COUNT                                                                                     \
        : "l"(a), "l"(b), "r"(add));                                                                              \
  }
#define SAMITE_PRODUCT_COLUMNS(T, N, COUNT, A, B)                                                                 \
  static __device__ inline void product_columns(float (&c)[COUNT], const u32* a, u64 b) {                         \
    asm volatile(                                                                                                 \
        "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." #T "." #T " "                                           \
        "{" SAMITE_REGISTERS_##COUNT "}, "                                                                        \
        "{" A "}, " B ", 1, 1, 1, 1;"                                                                             \
        : SAMITE_SUMS_##COUNT                                                                                     \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                                    \
  }
#define SAMITE_STEP(T, N, COUNT, A, B, AT)                                                                        \
  "add.s64 d, " B ", " #AT ";\n"                                                                                  \
  "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." #T "." #T " {" SAMITE_REGISTERS_##COUNT "}, {" A "}, d, 1, 1, 1, 1;\n"
#define SAMITE_PRODUCT_COLUMNS_OF(T, N, COUNT, A0, A1, A2, A3, A4, A5, A6, A7, B, STEPS)                          \
  static __device__ inline void product_columns_of(float (&c)[COUNT], const u32 (&a)[32], u64 b, int steps) {     \
    asm volatile(                                                                                                 \
        "{\n.reg .pred p;\n.reg .b64 d;\n"                                                                        \
        "setp.gt.s32 p, " STEPS ", 2;\n@!p bra two_%=;\nwgmma.fence.sync.aligned;\n"                             \
        SAMITE_STEP(T, N, COUNT, A0, B, 0) SAMITE_STEP(T, N, COUNT, A1, B, 128)                                   \
        SAMITE_STEP(T, N, COUNT, A2, B, 256) SAMITE_STEP(T, N, COUNT, A3, B, 384)                                 \
        SAMITE_STEP(T, N, COUNT, A4, B, 512) SAMITE_STEP(T, N, COUNT, A5, B, 640)                                 \
        SAMITE_STEP(T, N, COUNT, A6, B, 768) SAMITE_STEP(T, N, COUNT, A7, B, 896)                                 \
        "wgmma.commit_group.sync.aligned;\nbra.uni done_%=;\n"                                                    \
        "two_%=:\nwgmma.fence.sync.aligned;\n"                                                                    \
        SAMITE_STEP(T, N, COUNT, A0, B, 0) SAMITE_STEP(T, N, COUNT, A1, B, 128)                                   \
        "wgmma.commit_group.sync.aligned;\ndone_%=:\n}"                                                           \
        : SAMITE_SUMS_##COUNT                                                                                     \
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(a[4]), "r"(a[5]), "r"(a[6]), "r"(a[7]), "r"(a[8]), "r"(a[9]), "r"(a[10]),      \
          "r"(a[11]), "r"(a[12]), "r"(a[13]), "r"(a[14]), "r"(a[15]), "r"(a[16]), "r"(a[17]), "r"(a[18]), "r"(a[19]), "r"(a[20]),       \
          "r"(a[21]), "r"(a[22]), "r"(a[23]), "r"(a[24]), "r"(a[25]), "r"(a[26]), "r"(a[27]), "r"(a[28]), "r"(a[29]), "r"(a[30]),       \
          "r"(a[31]), "l"(b), "r"(steps)                                                                          \
        : "memory");                                                                                              \
  }
#define SAMITE_PRODUCTS(T)                                                                                        \
  template <> struct warpgroup_product<T, 32> {                                                                   \
    SAMITE_PRODUCT(T, 32, 16, "%16", "%17", "%18")                                                                \
  };                                                                                                              \
  template <> struct warpgroup_product<T, 64> {                                                                   \
    SAMITE_PRODUCT(T, 64, 32, "%32", "%33", "%34")                                                                \
    SAMITE_PRODUCT_BY_COLUMNS(T, 64, 32, "%32", "%33", "%34")                                                     \
    SAMITE_PRODUCT_COLUMNS(T, 64, 32, "%32, %33, %34, %35", "%36")                                                \
    SAMITE_PRODUCT_COLUMNS_OF(T, 64, 32, "%32, %33, %34, %35", "%36, %37, %38, %39", "%40, %41, %42, %43", "%44, %45, %46, %47",         \
                              "%48, %49, %50, %51", "%52, %53, %54, %55", "%56, %57, %58, %59", "%60, %61, %62, %63", "%64", "%65")      \
  };                                                                                                              \
  template <> struct warpgroup_product<T, 128> {                                                                  \
    SAMITE_PRODUCT(T, 128, 64, "%64", "%65", "%66")                                                               \
    SAMITE_PRODUCT_COLUMNS(T, 128, 64, "%64, %65, %66, %67", "%68")                                               \
    SAMITE_PRODUCT_COLUMNS_OF(T, 128, 64, "%64, %65, %66, %67", "%68, %69, %70, %71", "%72, %73, %74, %75", "%76, %77, %78, %79",        \
                              "%80, %81, %82, %83", "%84, %85, %86, %87", "%88, %89, %90, %91", "%92, %93, %94, %95", "%96", "%97")      \
  };                                                                                                              \
  template <> struct warpgroup_product<T, 192> {                                                                  \
    SAMITE_PRODUCT_COLUMNS(T, 192, 96, "%96, %97, %98, %99", "%100")                                              \
  };                                                                                                              \
  template <> struct warpgroup_product<T, 256> {                                                                  \
    SAMITE_PRODUCT_COLUMNS(T, 256, 128, "%128, %129, %130, %131", "%132")                                         \
  };
SAMITE_PRODUCTS(bf16)
SAMITE_PRODUCTS(f16)

}  // namespace samite
