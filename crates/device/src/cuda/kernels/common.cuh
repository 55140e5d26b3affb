// Common beginning of every kernel file. Uses no toolkit headers: NVRTC alone compiles it.
//
// A file is compiled once per number format of the activations: ELEMENT is 0 for f32, 1 for f16, 2 for bf16. Arithmetic is
// always f32; Element is the storage format.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#ifndef ELEMENT
#error "ELEMENT: 0 for f32, 1 for f16, 2 for bf16"
#endif

#define WARP 32
#define ALL_LANES 0xffffffffu

// Instructions: all inline assembly, except for Hopper's products in ranks.cu. The software card for tests implements each of them in C++
// (crates/software-card/src/runtime/instructions.h).
#ifndef HOLDALL_SOFTWARE_CARD

// Every kernel begins with this: the next kernel may start while this one runs, and this one waits until the previous kernel has written
// its results. Before sm_90 kernels run one after the other without it.
__device__ __forceinline__ void follow() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

__device__ __forceinline__ float f16_to_float(u16 bits) {
    float value;
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
    return value;
}

__device__ __forceinline__ u16 float_to_f16(float value) {
    u16 bits;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
}

__device__ __forceinline__ u16 float_to_bf16(float value) {
#if __CUDA_ARCH__ >= 800
    u16 bits;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
    return bits;
#else
    u32 bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
#endif
}

// Copies 16 bytes from global to shared memory; writes zeros if `present` is false.
__device__ __forceinline__ void copy_chunk(u32 to, const void *from, bool present) {
#if __CUDA_ARCH__ >= 800
    int num_bytes = present ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(num_bytes) : "memory");
#else
    uint4 chunk = make_uint4(0, 0, 0, 0);
    if (present) chunk = *reinterpret_cast<const uint4 *>(from);
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(chunk.x), "r"(chunk.y), "r"(chunk.z),
                 "r"(chunk.w)
                 : "memory");
#endif
}

__device__ __forceinline__ void commit_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until all but the last PENDING committed groups of this thread have arrived.
template <int PENDING>
__device__ __forceinline__ void wait_copies() {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
#endif
}

// Loads four 8 x 8 matrices; lane l provides the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void load_matrices(u32 (&to)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}

__device__ __forceinline__ void load_matrices_transposed(u32 (&to)[4], u32 from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}

__device__ __forceinline__ void store_word(u32 to, u32 word) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(word) : "memory");
}

#if ELEMENT != 0
// c (16 x 8) += a (16 x 16) b (16 x 8).
__device__ __forceinline__ void multiply(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
#if __CUDA_ARCH__ >= 800
#if ELEMENT == 1
#define PRODUCT "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
#else
#define PRODUCT "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
#endif
    asm(PRODUCT " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
#elif ELEMENT == 1
#define PRODUCT "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32"
    asm(PRODUCT " {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a0), "r"(a1), "r"(b0));
    asm(PRODUCT " {%0, %1, %2, %3}, {%4, %5}, {%6}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a2), "r"(a3), "r"(b1));
#else
    // There are no bf16 products before sm_80: these kernels compile but are never launched.
    asm volatile("trap;");
#endif
}

// Two Elements in a word, the first in the low half.
__device__ __forceinline__ u32 pack_pair(float first, float second) {
#if __CUDA_ARCH__ >= 800
    u32 word;
#if ELEMENT == 1
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
#endif
    return word;
#elif ELEMENT == 1
    return (u32)float_to_f16(first) | (u32)float_to_f16(second) << 16;
#else
    return (u32)float_to_bf16(first) | (u32)float_to_bf16(second) << 16;
#endif
}

#endif

// 2^x; 0 for minus infinity.
__device__ __forceinline__ float power_of_two(float x) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
    return result;
}

// Reads parameters again for every row, from the cache: otherwise the compiler would keep them in registers for all rows,
// and spill the rows. `volatile`, and no `.nc`, prevent that.
__device__ __forceinline__ float4 read_again(const float4 *from) {
    float4 v;
    asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(from));
    return v;
}

__device__ __forceinline__ float read_again(const float *from) {
    float v;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(v) : "l"(from));
    return v;
}

#endif

__device__ __forceinline__ float bf16_to_float(u16 bits) {
    return __uint_as_float((u32)bits << 16);
}

#if ELEMENT == 0
typedef float Element;
__device__ __forceinline__ float load(float x) { return x; }
__device__ __forceinline__ void store(float *to, float value) { *to = value; }
// Elements per 16-byte access.
#define PACK 4
#else
struct Element {
    u16 bits;
};
#define PACK 8
#if ELEMENT == 1
__device__ __forceinline__ float load(Element x) { return f16_to_float(x.bits); }
__device__ __forceinline__ void store(Element *to, float value) { to->bits = float_to_f16(value); }
#else
__device__ __forceinline__ float load(Element x) { return bf16_to_float(x.bits); }
__device__ __forceinline__ void store(Element *to, float value) { to->bits = float_to_bf16(value); }
#endif
#endif

// Whether the address is 16-byte aligned.
__device__ __forceinline__ bool aligned(const void *pointer) { return ((u64)pointer & 15) == 0; }

// Loads and stores of floats, for any Element.
#if ELEMENT != 0
__device__ __forceinline__ float load(float x) { return x; }
__device__ __forceinline__ void store(float *to, float value) { *to = value; }
__device__ __forceinline__ void store_pack(float *to, const float (&values)[4]) {
    *reinterpret_cast<float4 *>(to) = make_float4(values[0], values[1], values[2], values[3]);
}
#endif

// Loads N floats; `from` is 16-byte aligned.
template <int N> __device__ __forceinline__ void load_pack(const float *from, float (&values)[N]) {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        float4 four = *reinterpret_cast<const float4 *>(from + i);
        values[i] = four.x, values[i + 1] = four.y, values[i + 2] = four.z, values[i + 3] = four.w;
    }
}

// Loads 16 bytes of Elements as floats; `from` is 16-byte aligned.
__device__ __forceinline__ void load_pack(const Element *from, float (&values)[PACK]) {
    union {
        uint4 raw;
        Element elements[PACK];
    } pack;
    pack.raw = *reinterpret_cast<const uint4 *>(from);
#pragma unroll
    for (int i = 0; i < PACK; i++) values[i] = load(pack.elements[i]);
}

__device__ __forceinline__ void store_pack(Element *to, const float (&values)[PACK]) {
    union {
        uint4 raw;
        Element elements[PACK];
    } pack;
#pragma unroll
    for (int i = 0; i < PACK; i++) store(&pack.elements[i], values[i]);
    *reinterpret_cast<uint4 *>(to) = pack.raw;
}

// Sums and maxima over a warp, in a fixed order: every lane gets the result.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) value += __shfl_xor_sync(ALL_LANES, value, offset);
    return value;
}

__device__ __forceinline__ float warp_max(float value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, offset));
    return value;
}

__device__ __forceinline__ double warp_sum(double value) {
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) value += __shfl_xor_sync(ALL_LANES, value, offset);
    return value;
}

__device__ __forceinline__ i64 first_thread() { return (i64)blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ i64 all_threads() { return (i64)gridDim.x * blockDim.x; }

// Calls work(row, column) for every STEPth column. Avoids 64-bit division, which is slow and rarely necessary.
template <int STEP, class Work>
__device__ __forceinline__ void for_places(i64 rows, i64 width, Work work) {
    i64 per_row = width / STEP, total = rows * per_row;
    for (i64 at = first_thread(); at < total; at += all_threads()) {
        i64 row = rows == 1 ? 0 : total >> 32 ? at / per_row : (u32)at / (u32)per_row;
        work(row, (at - row * per_row) * STEP);
    }
}

// SplitMix64's output function, as in `ops/dropout.rs`.
__device__ __forceinline__ u64 mix(u64 x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

// Seed of the masks of a sample. stream: seed and epoch.
__device__ __forceinline__ u64 dropout_key(const i64 *stream, i64 sample, u64 layer) {
    u64 key = mix(mix(mix((u64)stream[0]) ^ (u64)stream[1]) ^ (u64)sample);
    return mix(key ^ layer);
}

// Dropout of attention's probabilities. NoMask: no dropout.
struct NoMask {
    static constexpr bool DROPS = false;
    __device__ __forceinline__ NoMask of(int, int) const { return {}; }
    __device__ __forceinline__ float factor(int, int) const { return 1.0f; }
};

// Mask of a sample and head: its seed, and the factor of the probabilities that are kept.
struct HeadMask {
    static constexpr bool DROPS = true;
    u64 key;
    u32 threshold;
    float scale;
    __device__ __forceinline__ float factor(int query, int at) const {
        return (u32)(mix(key ^ ((u64)query << 20 | (u64)at)) >> 32) >= threshold ? scale : 0.0f;
    }
};

// Kernel arguments of a mask. Samples are those of the whole batch; `micro` is the index of the micro-batch.
struct Mask {
    const i64 *samples, *stream;
    const int *micro;
    i64 samples_micro, layer;
    int threshold;
    float scale;
    __device__ __forceinline__ HeadMask of(int sample, int head) const {
        u64 sample_key = dropout_key(stream, samples[*micro * samples_micro + sample], (u64)layer);
        return {sample_key ^ (u64)head << 40, (u32)threshold, scale};
    }
};

#define MASK_PARAMETERS                                                                                                    \
    const i64 *samples, const i64 *stream, const int *micro, i64 samples_micro, i64 layer, int threshold, float drop_scale
#define MASK                                                                                                               \
    Mask { samples, stream, micro, samples_micro, layer, threshold, drop_scale }

__device__ __forceinline__ u32 shared_address(const void *at) {
    return (u32)__cvta_generic_to_shared(at);
}

// Activations: their value and their slope at z.

// z sigmoid(1.702 z).
struct Quick {
    static __device__ __forceinline__ float sigmoid(float z) {
#if ELEMENT == 0
        return 1.0f / (1.0f + expf(-1.702f * z));
#else
        return __fdividef(1.0f, 1.0f + __expf(-1.702f * z));
#endif
    }
    static __device__ __forceinline__ float value(float z) { return z * sigmoid(z); }
    static __device__ __forceinline__ float slope(float z) {
        float s = sigmoid(z);
        return s + 1.702f * z * s * (1.0f - s);
    }
};

// z Phi(z), Phi(z) = (1 + erf(z / sqrt 2)) / 2.
struct Erf {
#if ELEMENT == 0
    static __device__ __forceinline__ float phi(float z, float) {
        return 0.5f * (1.0f + erff(z * 0.70710678118654752f));
    }
    static __device__ __forceinline__ float bell(float z) { return expf(-0.5f * z * z); }
#else
    // Abramowitz and Stegun 7.1.26, within 1.5e-7: erff would cost more than the memory traffic, and the slope needs the bell anyway.
    static __device__ __forceinline__ float phi(float z, float bell) {
        float t = __fdividef(1.0f, 1.0f + 0.3275911f * 0.70710678118654752f * fabsf(z));
        float tail = 1.061405429f;
        tail = tail * t - 1.453152027f;
        tail = tail * t + 1.421413741f;
        tail = tail * t - 0.284496736f;
        tail = tail * t + 0.254829592f;
        tail = 0.5f * tail * t * bell;
        return z < 0.0f ? tail : 1.0f - tail;
    }
    static __device__ __forceinline__ float bell(float z) { return __expf(-0.5f * z * z); }
#endif
    static __device__ __forceinline__ float value(float z) {
        return z * phi(z, ELEMENT == 0 ? 0.0f : bell(z));
    }
    static __device__ __forceinline__ float slope(float z) {
        float b = bell(z);
        return phi(z, b) + z * 0.3989422804014327f * b;
    }
};

struct Relu {
    static __device__ __forceinline__ float value(float z) { return z < 0.0f ? 0.0f : z; }
    static __device__ __forceinline__ float slope(float z) { return z > 0.0f ? 1.0f : 0.0f; }
};

struct LeakyRelu {
    static __device__ __forceinline__ float value(float z) { return z > 0.0f ? z : 0.01f * z; }
    static __device__ __forceinline__ float slope(float z) { return z > 0.0f ? 1.0f : 0.01f; }
};

// VEC neighbouring numbers in the storage format: a pack, with 16-byte aligned `from` and `to`, or a single number.
template <int VEC> struct Numbers;

template <> struct Numbers<PACK> {
    union {
        uint4 raw;
        Element elements[PACK];
    };
    __device__ __forceinline__ void read(const Element *from) { raw = *reinterpret_cast<const uint4 *>(from); }
    __device__ __forceinline__ void write(Element *to) const { *reinterpret_cast<uint4 *>(to) = raw; }
    __device__ __forceinline__ float at(int i) const { return load(elements[i]); }
    __device__ __forceinline__ void set(int i, float value) { store(&elements[i], value); }
};

template <> struct Numbers<1> {
    Element element;
    __device__ __forceinline__ void read(const Element *from) { element = *from; }
    __device__ __forceinline__ void write(Element *to) const { *to = element; }
    __device__ __forceinline__ float at(int) const { return load(element); }
    __device__ __forceinline__ void set(int, float value) { store(&element, value); }
};
