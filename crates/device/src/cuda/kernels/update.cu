// Gradient norm and AdamW over all tensors in one launch each; AdamW has one launch per format of moments in use.
//
// g = c * gradient with c = min(1, clip / (norm + 1e-6)) / loss scale, m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2,
// w = w (1 - rate decay) - rate / (1 - b1^t) * m / (sqrt(v / (1 - b2^t)) + eps), then w = min(w, maximum).

#define UPDATE_CHUNK 8192
#define UPDATE_THREADS 256

// Tensors are sorted by first_chunk; all pointers are 16-byte aligned.
struct Tensor {
    float *weight;
    const void *gradient; // floats, or bf16
    void *m; // floats, bf16 or codes
    void *v;
    float *m_scales; // of blocks of codes
    float *v_scales;
    Element *copy;  // the weight as the graph reads it; null where it reads the weight itself
    float *average; // of the weight over steps; null where there is none
    i64 n;
    i64 first_chunk;
    float weight_decay;
    int rate;
    float maximum; // infinity where there is none
    u32 number;    // of the parameter
    int gradient_is_bf16;
    int pad;

    // Four gradients; `at` is a multiple of four.
    __device__ __forceinline__ float4 gradients(i64 at) const {
        if (!gradient_is_bf16) return *reinterpret_cast<const float4 *>((const float *)gradient + at);
        ushort4 bits = *reinterpret_cast<const ushort4 *>((const u16 *)gradient + at);
        return make_float4(bf16_to_float(bits.x), bf16_to_float(bits.y), bf16_to_float(bits.z), bf16_to_float(bits.w));
    }
    __device__ __forceinline__ float one_gradient(i64 at) const {
        return gradient_is_bf16 ? bf16_to_float(((const u16 *)gradient)[at]) : ((const float *)gradient)[at];
    }
};
static_assert(sizeof(Tensor) == 104, "as the launcher lays it out");

// The last tensor that begins at or before this block's chunk. The table stays in the cache.
__device__ __forceinline__ int tensor_of_block(const Tensor *tensors, int num_tensors) {
    int low = 0, high = num_tensors - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (tensors[middle].first_chunk <= (i64)blockIdx.x) low = middle;
        else high = middle - 1;
    }
    return low;
}

// Sum over a block, for thread 0.
__device__ __forceinline__ double block_sum(double value) {
    __shared__ double parts[32];
    value = warp_sum(value);
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = value;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int i = 1; i < blockDim.x / WARP; i++) value += parts[i];
    return value;
}

// A thread adds its 32 squares in f32, since f64 is slow on consumer cards; a sum that overflows is not finite.
extern "C" __global__ void __launch_bounds__(UPDATE_THREADS)
    gradient_norm(const Tensor *tensors, int num_tensors, double *partials) {
    follow();
    const Tensor &tensor = tensors[tensor_of_block(tensors, num_tensors)];
    i64 start = ((i64)blockIdx.x - tensor.first_chunk) * UPDATE_CHUNK, rest = tensor.n - start;
    float4 sums = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    auto add = [&](int at) {
        float4 g = tensor.gradients(start + at);
        sums.x += g.x * g.x, sums.y += g.y * g.y, sums.z += g.z * g.z, sums.w += g.w * g.w;
    };
    if (rest >= UPDATE_CHUNK) {
#pragma unroll
        for (int at = 0; at < UPDATE_CHUNK; at += 4 * UPDATE_THREADS) add(at + 4 * threadIdx.x);
    } else {
        int packed = (int)rest / 4 * 4;
        for (int at = 4 * threadIdx.x; at < packed; at += 4 * UPDATE_THREADS) add(at);
        if (threadIdx.x < rest - packed) {
            float g = tensor.one_gradient(start + packed + threadIdx.x);
            sums.x += g * g;
        }
    }
    double sum = block_sum((sums.x + sums.y) + (sums.z + sums.w));
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

// One block. norm = [norm before unscaling, 1 if finite else 0].
extern "C" __global__ void __launch_bounds__(1024) gradient_norm_finish(const double *partials, int n, float *norm) {
    follow();
    double sum = 0.0;
#pragma unroll 8
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += partials[i];
    sum = block_sum(sum);
    if (threadIdx.x > 0) return;
    float root = (float)sqrt(sum);
    norm[0] = root;
    norm[1] = isfinite(root) ? 1.0f : 0.0f;
}

struct StepNumbers {
    float beta1, beta2, eps, gradient_scale, rate, root_correction2, keep, maximum, average_share;

    __device__ __forceinline__ StepNumbers(const Tensor &tensor, const float *schedule, const float *norm, float beta1,
                                           float beta2, float eps, float clip_norm, float average_share)
        : beta1(beta1), beta2(beta2), eps(eps), maximum(tensor.maximum), average_share(average_share) {
        float clip = 1.0f, plain_rate = schedule[3 + tensor.rate];
        if (clip_norm > 0.0f) clip = fminf(1.0f, clip_norm / (norm[0] * schedule[0] + 1e-6f));
        gradient_scale = clip * schedule[0];
        rate = plain_rate * schedule[1];
        root_correction2 = sqrtf(schedule[2]);
        keep = 1.0f - plain_rate * tensor.weight_decay;
    }

    __device__ __forceinline__ void step(float &weight, float &m, float &v, float gradient) const {
        float g = gradient * gradient_scale;
        m = beta1 * m + (1.0f - beta1) * g;
        v = beta2 * v + (1.0f - beta2) * g * g;
        weight = weight * keep - rate * m / (sqrtf(v) * root_correction2 + eps);
        if (weight > maximum) weight = maximum;
    }
};

__device__ __forceinline__ void store_copy(Element *to, const float4 &w) {
#if ELEMENT == 0
    *reinterpret_cast<float4 *>(to) = w;
#else
    union {
        uint2 raw;
        Element elements[4];
    } four;
    store(&four.elements[0], w.x), store(&four.elements[1], w.y);
    store(&four.elements[2], w.z), store(&four.elements[3], w.w);
    *reinterpret_cast<uint2 *>(to) = four.raw;
#endif
}

__device__ __forceinline__ float followed(float average, float weight, float share) {
    return average + share * (weight - average);
}

// Stores four weights after the step: the weights, their copy and their average.
__device__ __forceinline__ void store_weights(const Tensor &tensor, i64 at, const float4 &w, float average_share) {
    *reinterpret_cast<float4 *>(tensor.weight + at) = w;
    if (tensor.copy) store_copy(tensor.copy + at, w);
    if (!tensor.average) return;
    float4 a = *reinterpret_cast<float4 *>(tensor.average + at);
    a.x = followed(a.x, w.x, average_share), a.y = followed(a.y, w.y, average_share);
    a.z = followed(a.z, w.z, average_share), a.w = followed(a.w, w.w, average_share);
    *reinterpret_cast<float4 *>(tensor.average + at) = a;
}

__device__ __forceinline__ void store_weight(const Tensor &tensor, i64 at, float w, float average_share) {
    tensor.weight[at] = w;
    if (tensor.copy) store(tensor.copy + at, w);
    if (tensor.average) tensor.average[at] = followed(tensor.average[at], w, average_share);
}

// schedule = [inverse loss scale, 1 / (1 - b1^t), 1 / (1 - b2^t), rate 0, rate 1, ...].
extern "C" __global__ void __launch_bounds__(UPDATE_THREADS)
    adamw(const Tensor *tensors, int num_tensors, const float *schedule, const float *norm, float beta1, float beta2,
          float eps, float clip_norm, float average_share) {
    follow();
    if (norm[1] == 0.0f) return;
    const Tensor tensor = tensors[tensor_of_block(tensors, num_tensors)];
    const StepNumbers numbers(tensor, schedule, norm, beta1, beta2, eps, clip_norm, average_share);
    i64 start = ((i64)blockIdx.x - tensor.first_chunk) * UPDATE_CHUNK;
    int count = (int)min(tensor.n - start, (i64)UPDATE_CHUNK), packed = count / 4 * 4;
    float *m = (float *)tensor.m + start, *v = (float *)tensor.v + start;
    const float *weight = tensor.weight + start;
#pragma unroll 2
    for (int at = 4 * threadIdx.x; at < packed; at += 4 * UPDATE_THREADS) {
        float4 w4 = *reinterpret_cast<const float4 *>(weight + at), m4 = *reinterpret_cast<float4 *>(m + at);
        float4 v4 = *reinterpret_cast<float4 *>(v + at), g4 = tensor.gradients(start + at);
        numbers.step(w4.x, m4.x, v4.x, g4.x);
        numbers.step(w4.y, m4.y, v4.y, g4.y);
        numbers.step(w4.z, m4.z, v4.z, g4.z);
        numbers.step(w4.w, m4.w, v4.w, g4.w);
        *reinterpret_cast<float4 *>(m + at) = m4;
        *reinterpret_cast<float4 *>(v + at) = v4;
        store_weights(tensor, start + at, w4, average_share);
    }
    int at = packed + threadIdx.x;
    if (at >= count) return;
    float w = weight[at];
    numbers.step(w, m[at], v[at], tensor.one_gradient(start + at));
    store_weight(tensor, start + at, w, average_share);
}

// Rounds up with a probability equal to the truncated fraction.
__device__ __forceinline__ u16 rounded_by(float value, u64 random) {
    return (u16)((__float_as_uint(value) + ((u32)random & 0xffffu)) >> 16);
}

// Moments in bf16. The last entry of the schedule is the number of the step, which seeds the random bits.
extern "C" __global__ void __launch_bounds__(UPDATE_THREADS)
    adamw_bf16(const Tensor *tensors, int num_tensors, const float *schedule, int schedule_length, const float *norm,
               float beta1, float beta2, float eps, float clip_norm, float average_share) {
    follow();
    if (norm[1] == 0.0f) return;
    const Tensor tensor = tensors[tensor_of_block(tensors, num_tensors)];
    const StepNumbers numbers(tensor, schedule, norm, beta1, beta2, eps, clip_norm, average_share);
    u64 key = mix((u64)tensor.number << 32 | __float_as_uint(schedule[schedule_length - 1]));
    i64 start = ((i64)blockIdx.x - tensor.first_chunk) * UPDATE_CHUNK;
    int count = (int)min(tensor.n - start, (i64)UPDATE_CHUNK), packed = count / 4 * 4;
    u16 *m = (u16 *)tensor.m + start, *v = (u16 *)tensor.v + start;
    const float *weight = tensor.weight + start;
    auto step = [&](float &w, u16 &m_bits, u16 &v_bits, float g, int at) {
        float m = bf16_to_float(m_bits), v = bf16_to_float(v_bits);
        numbers.step(w, m, v, g);
        u64 random = mix(key ^ (u64)(start + at));
        m_bits = rounded_by(m, random >> 48), v_bits = rounded_by(v, random >> 32);
    };
#pragma unroll 2
    for (int at = 4 * threadIdx.x; at < packed; at += 4 * UPDATE_THREADS) {
        float4 w4 = *reinterpret_cast<const float4 *>(weight + at);
        float4 g4 = tensor.gradients(start + at);
        ushort4 m4 = *reinterpret_cast<ushort4 *>(m + at), v4 = *reinterpret_cast<ushort4 *>(v + at);
        step(w4.x, m4.x, v4.x, g4.x, at);
        step(w4.y, m4.y, v4.y, g4.y, at + 1);
        step(w4.z, m4.z, v4.z, g4.z, at + 2);
        step(w4.w, m4.w, v4.w, g4.w, at + 3);
        *reinterpret_cast<ushort4 *>(m + at) = m4;
        *reinterpret_cast<ushort4 *>(v + at) = v4;
        store_weights(tensor, start + at, w4, average_share);
    }
    int at = packed + threadIdx.x;
    if (at >= count) return;
    float w = weight[at];
    step(w, m[at], v[at], tensor.one_gradient(start + at), at);
    store_weight(tensor, start + at, w, average_share);
}

#define MOMENT_BLOCK 256
#define SIGNED_ZERO 127
#define LOWEST_KEY (104 << 7)
#define NUM_PARTS 2960

// A dynamic map as in `dynamic_map.rs`: the number of each code, midpoints between levels of magnitude, and the number of midpoints
// below each part.
struct DynamicMap {
    float numbers[256];
    float midpoints[256];
    u8 first[NUM_PARTS];

    __device__ __forceinline__ int level(float magnitude) const {
        int part = (int)(__float_as_uint(magnitude) >> 16) - LOWEST_KEY;
        if (part < 0) return 0;
        int below = first[min(part, NUM_PARTS - 1)];
        return below + (magnitude > midpoints[below]);
    }
    __device__ __forceinline__ u8 signed_code(float relative) const {
        int nearest = level(fabsf(relative));
        // A negative number keeps its sign.
        return (u8)(relative < 0.0f ? SIGNED_ZERO - max(1, min(nearest, SIGNED_ZERO)) : SIGNED_ZERO + nearest);
    }
};
struct DynamicMaps {
    DynamicMap m, v;
};
static_assert(sizeof(DynamicMaps) == 2 * (2048 + NUM_PARTS) && sizeof(DynamicMaps) % 16 == 0, "as the launcher lays it out");

// Moments of one byte, one warp per block of 256: a lane has four elements of each half, so that every access of a warp covers whole
// cache lines.
extern "C" __global__ void __launch_bounds__(UPDATE_THREADS)
    adamw_8bit(const Tensor *tensors, int num_tensors, const DynamicMaps *maps, const float *schedule, const float *norm,
               float beta1, float beta2, float eps, float clip_norm, float average_share) {
    __shared__ __align__(16) DynamicMaps map;
    follow();
    if (norm[1] == 0.0f) return;
    for (int i = threadIdx.x; i < (int)sizeof(DynamicMaps) / 16; i += UPDATE_THREADS)
        reinterpret_cast<uint4 *>(&map)[i] = reinterpret_cast<const uint4 *>(maps)[i];
    __syncthreads();
    const Tensor tensor = tensors[tensor_of_block(tensors, num_tensors)];
    const StepNumbers numbers(tensor, schedule, norm, beta1, beta2, eps, clip_norm, average_share);
    i64 start = ((i64)blockIdx.x - tensor.first_chunk) * UPDATE_CHUNK;
    i64 end = min(tensor.n, start + UPDATE_CHUNK);
    u8 *m_codes = (u8 *)tensor.m, *v_codes = (u8 *)tensor.v;
    int lane = threadIdx.x % WARP;
    for (i64 block = start + threadIdx.x / WARP * MOMENT_BLOCK; block < end; block += UPDATE_THREADS / WARP * MOMENT_BLOCK) {
        float m_scale = tensor.m_scales[block / MOMENT_BLOCK], v_scale = tensor.v_scales[block / MOMENT_BLOCK];
        float w[8], m[8], v[8], m_largest = 0.0f, v_largest = 0.0f;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            i64 at = block + half * (MOMENT_BLOCK / 2) + 4 * lane;
            float g[4];
            u8 m_code[4], v_code[4];
            if (at + 4 <= end) {
                float4 w4 = *reinterpret_cast<const float4 *>(tensor.weight + at);
                float4 g4 = tensor.gradients(at);
                uchar4 mc = *reinterpret_cast<const uchar4 *>(m_codes + at);
                uchar4 vc = *reinterpret_cast<const uchar4 *>(v_codes + at);
                w[4 * half] = w4.x, w[4 * half + 1] = w4.y, w[4 * half + 2] = w4.z, w[4 * half + 3] = w4.w;
                g[0] = g4.x, g[1] = g4.y, g[2] = g4.z, g[3] = g4.w;
                m_code[0] = mc.x, m_code[1] = mc.y, m_code[2] = mc.z, m_code[3] = mc.w;
                v_code[0] = vc.x, v_code[1] = vc.y, v_code[2] = vc.z, v_code[3] = vc.w;
            } else {
                // Beyond the end: zeros, which do not change the maximum.
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    bool there = at + i < end;
                    w[4 * half + i] = there ? tensor.weight[at + i] : 0.0f;
                    g[i] = there ? tensor.one_gradient(at + i) : 0.0f;
                    m_code[i] = there ? m_codes[at + i] : SIGNED_ZERO;
                    v_code[i] = there ? v_codes[at + i] : 0;
                }
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int e = 4 * half + i;
                m[e] = map.m.numbers[m_code[i]] * m_scale, v[e] = map.v.numbers[v_code[i]] * v_scale;
                numbers.step(w[e], m[e], v[e], g[i]);
                m_largest = fmaxf(m_largest, fabsf(m[e])), v_largest = fmaxf(v_largest, v[e]);
            }
        }
        m_largest = warp_max(m_largest), v_largest = warp_max(v_largest);
        if (lane == 0) {
            tensor.m_scales[block / MOMENT_BLOCK] = m_largest;
            tensor.v_scales[block / MOMENT_BLOCK] = v_largest;
        }
        float m_divisor = m_largest > 0.0f ? m_largest : 1.0f, v_divisor = v_largest > 0.0f ? v_largest : 1.0f;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            i64 at = block + half * (MOMENT_BLOCK / 2) + 4 * lane;
            u8 m_code[4], v_code[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                m_code[i] = map.m.signed_code(m[4 * half + i] / m_divisor);
                v_code[i] = (u8)map.v.level(v[4 * half + i] / v_divisor);
            }
            if (at + 4 <= end) {
                *reinterpret_cast<uchar4 *>(m_codes + at) = make_uchar4(m_code[0], m_code[1], m_code[2], m_code[3]);
                *reinterpret_cast<uchar4 *>(v_codes + at) = make_uchar4(v_code[0], v_code[1], v_code[2], v_code[3]);
                float4 w4 = make_float4(w[4 * half], w[4 * half + 1], w[4 * half + 2], w[4 * half + 3]);
                store_weights(tensor, at, w4, average_share);
            } else {
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    if (at + i >= end) continue;
                    m_codes[at + i] = m_code[i], v_codes[at + i] = v_code[i];
                    store_weight(tensor, at + i, w[4 * half + i], average_share);
                }
            }
        }
    }
}

// y = bf16(y + x), rounded to nearest. Both are 8-byte aligned at multiples of four.
extern "C" __global__ void __launch_bounds__(UPDATE_THREADS) add_rounded(u16 *y, const float *x, i64 n, int accumulate) {
    follow();
    i64 at = 4 * ((i64)blockIdx.x * UPDATE_THREADS + threadIdx.x);
    if (at + 4 <= n) {
        float4 sum = *reinterpret_cast<const float4 *>(x + at);
        if (accumulate) {
            ushort4 old = *reinterpret_cast<const ushort4 *>(y + at);
            sum.x += bf16_to_float(old.x), sum.y += bf16_to_float(old.y);
            sum.z += bf16_to_float(old.z), sum.w += bf16_to_float(old.w);
        }
        *reinterpret_cast<ushort4 *>(y + at) =
            make_ushort4(float_to_bf16(sum.x), float_to_bf16(sum.y), float_to_bf16(sum.z), float_to_bf16(sum.w));
        return;
    }
    for (; at < n; at++) y[at] = float_to_bf16(x[at] + (accumulate ? bf16_to_float(y[at]) : 0.0f));
}

#define EXCHANGE 0
#define RESTART 1

// Exchanges weights and averages, copies weights to averages, or moves averages towards weights by a share.
extern "C" __global__ void __launch_bounds__(UPDATE_THREADS)
    weight_averages(const Tensor *tensors, int num_tensors, int action, float share) {
    follow();
    const Tensor tensor = tensors[tensor_of_block(tensors, num_tensors)];
    i64 start = ((i64)blockIdx.x - tensor.first_chunk) * UPDATE_CHUNK, end = min(tensor.n, start + UPDATE_CHUNK);
#pragma unroll 4
    for (i64 at = start + threadIdx.x; at < end; at += UPDATE_THREADS) {
        float weight = tensor.weight[at], average = tensor.average[at];
        if (action == EXCHANGE) tensor.weight[at] = average, tensor.average[at] = weight;
        else tensor.average[at] = action == RESTART ? weight : followed(average, weight, share);
    }
}
