// o = softmax(scale * q k^T + mask) v and its gradients without tensor cores: for f32, for head sizes that attention.cu does not
// support (any size up to 256) and for few queries.
//
// Legend: B samples, T queries, S keys, H heads side by side in the width. A warp owns one row of its result and loops over
// the other side. A lane holds 8 dims, so a head takes LANES = 4, 8 or 32 lanes, and the warp works on
// STREAMS = 32 / LANES rows at a time; each stream keeps its own sums, added at the end in a fixed order. Blocks of 128
// threads, 1-D grid; warps beyond the last row return.
//
// Also one query per row with a cache of keys and values, for decoding.

#define DIMS 8
// Rows per stream in flight, limited by registers.
#define AHEAD (ELEMENT == 0 ? 2 : 4)
#define MINUS_INFINITY __int_as_float(0xff800000)

#define FORWARD_PARAMETERS                                                                                                 \
    const Element *q, const Element *k, const Element *v, const i64 *key_lengths, Element *o, float *lse, int B, int H,    \
        int T, int S, i64 q_stride, i64 kv_stride, i64 o_stride, float scale, int causal, int head_size
#define FORWARD_ARGUMENTS q, k, v, key_lengths, o, lse, B, H, T, S, q_stride, kv_stride, o_stride, scale, causal, head_size

#define BACKWARD_PARAMETERS                                                                                                \
    const Element *do_, const Element *q, const Element *k, const Element *v, const Element *o, const float *lse,          \
        const i64 *key_lengths, Element *dq, Element *dk, Element *dv, int B, int H, int T, int S, i64 do_stride,          \
        i64 q_stride, i64 kv_stride, i64 o_stride, i64 dq_stride, i64 dkv_stride, float scale, int causal, int accumulate, \
        int head_size
#define BACKWARD_ARGUMENTS                                                                                                 \
    do_, q, k, v, o, lse, key_lengths, dq, dk, dv, B, H, T, S, do_stride, q_stride, kv_stride, o_stride, dq_stride,        \
        dkv_stride, scale, causal, accumulate, head_size

__device__ __forceinline__ int key_count(const i64 *key_lengths, int b, int S) {
    if (key_lengths == nullptr) return S;
    i64 length = key_lengths[b];
    return length < 0 ? 0 : length < S ? (int)length : S;
}

// Reads this lane's dims of a row; zeros beyond the head. `from` is the head's first dim. ALIGNED: rows and heads begin at 16 bytes.
template <int LANES, bool ALIGNED>
__device__ __forceinline__ void read_dims(float (&values)[DIMS], const Element *from, int head_size) {
    int dim = threadIdx.x % LANES * DIMS;
    from += dim;
    if (ALIGNED) {
        union {
            uint4 raw[DIMS / PACK];
            Element elements[DIMS];
        } packs;
#pragma unroll
        for (int i = 0; i < DIMS / PACK; i++) {
            packs.raw[i] = make_uint4(0, 0, 0, 0);
            if (dim < head_size) packs.raw[i] = reinterpret_cast<const uint4 *>(from)[i];
        }
#pragma unroll
        for (int i = 0; i < DIMS; i++) values[i] = load(packs.elements[i]);
    } else {
#pragma unroll
        for (int i = 0; i < DIMS; i++) values[i] = dim + i < head_size ? load(from[i]) : 0.0f;
    }
}

// Writes this lane's dims of a row, from the first stream.
template <int LANES, bool ALIGNED>
__device__ __forceinline__ void write_dims(Element *to, const float (&values)[DIMS], float scale, int head_size,
                                           bool accumulate) {
    int dim = threadIdx.x % LANES * DIMS;
    if (threadIdx.x % WARP >= LANES || dim >= head_size) return;
    to += dim;
    if (ALIGNED) {
#pragma unroll
        for (int i = 0; i < DIMS; i += PACK) {
            float pack[PACK] = {};
            if (accumulate) load_pack(to + i, pack);
#pragma unroll
            for (int j = 0; j < PACK; j++) pack[j] += values[i + j] * scale;
            store_pack(to + i, pack);
        }
    } else {
#pragma unroll
        for (int i = 0; i < DIMS; i++) {
            if (dim + i < head_size) store(to + i, values[i] * scale + (accumulate ? load(to[i]) : 0.0f));
        }
    }
}

// Dot product over the lanes of a stream.
template <int LANES>
__device__ __forceinline__ float dot(const float (&left)[DIMS], const float (&right)[DIMS]) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < DIMS; i++) sum += left[i] * right[i];
#pragma unroll
    for (int offset = LANES / 2; offset > 0; offset /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, offset);
    return sum;
}

template <int LANES>
__device__ __forceinline__ void add_streams(float (&values)[DIMS]) {
#pragma unroll
    for (int offset = LANES; offset < WARP; offset *= 2)
#pragma unroll
        for (int i = 0; i < DIMS; i++) values[i] += __shfl_xor_sync(ALL_LANES, values[i], offset);
}

template <int LANES, bool ALIGNED, class M>
__device__ __forceinline__ void forward(FORWARD_PARAMETERS, const M &masks) {
    const int STREAMS = WARP / LANES;
    i64 warp = (i64)blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (warp >= (i64)B * H * T) return;
    int t = (int)(warp % T), h = (int)(warp / T % H), b = (int)(warp / T / H);
    k += (i64)b * S * kv_stride + h * head_size;
    v += (i64)b * S * kv_stride + h * head_size;
    int num_keys = key_count(key_lengths, b, S);
    if (causal) num_keys = min(num_keys, t + 1);

    auto mask = masks.of(b, h);
    float query[DIMS], mixed[DIMS];
    read_dims<LANES, ALIGNED>(query, q + ((i64)b * T + t) * q_stride + h * head_size, head_size);
#pragma unroll
    for (int i = 0; i < DIMS; i++) mixed[i] = 0.0f;
    float highest = MINUS_INFINITY, sum = 0.0f;
    // The trip count is that of the whole warp, so that all lanes take part in the sums.
    for (int first = 0; first < num_keys; first += STREAMS * AHEAD) {
        float keys[AHEAD][DIMS], values[AHEAD][DIMS], scores[AHEAD];
        int key = first + threadIdx.x % WARP / LANES;
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            int at = min(key + a * STREAMS, num_keys - 1);
            read_dims<LANES, ALIGNED>(keys[a], k + at * kv_stride, head_size);
            read_dims<LANES, ALIGNED>(values[a], v + at * kv_stride, head_size);
        }
        float before = highest;
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            scores[a] = dot<LANES>(query, keys[a]) * scale;
            if (key + a * STREAMS >= num_keys) scores[a] = MINUS_INFINITY;
            highest = fmaxf(highest, scores[a]);
        }
        // A stream without any key so far has nothing to rescale.
        float base = highest == MINUS_INFINITY ? 0.0f : highest, rescale = expf(before - base);
        sum *= rescale;
#pragma unroll
        for (int i = 0; i < DIMS; i++) mixed[i] *= rescale;
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            float weight = expf(scores[a] - base);
            sum += weight;
            if constexpr (decltype(mask)::DROPS) weight *= mask.factor(t, key + a * STREAMS);
#pragma unroll
            for (int i = 0; i < DIMS; i++) mixed[i] += weight * values[a][i];
        }
    }
    float warp_highest = warp_max(highest), base = warp_highest == MINUS_INFINITY ? 0.0f : warp_highest;
    float rescale = expf(highest - base);
    sum *= rescale;
#pragma unroll
    for (int i = 0; i < DIMS; i++) mixed[i] *= rescale;
#pragma unroll
    for (int offset = LANES; offset < WARP; offset *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, offset);
    add_streams<LANES>(mixed);
    float inverse = sum > 0.0f ? 1.0f / sum : 0.0f;
    write_dims<LANES, ALIGNED>(o + ((i64)b * T + t) * o_stride + h * head_size, mixed, inverse, head_size, false);
    if (lse != nullptr && threadIdx.x % WARP == 0) lse[warp] = warp_highest + logf(sum);
}

template <int LANES, bool ALIGNED, class M>
__device__ __forceinline__ void backward_dq(BACKWARD_PARAMETERS, const M &masks) {
    const int STREAMS = WARP / LANES;
    i64 warp = (i64)blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (warp >= (i64)B * H * T) return;
    int t = (int)(warp % T), h = (int)(warp / T % H), b = (int)(warp / T / H);
    i64 row = (i64)b * T + t;
    k += (i64)b * S * kv_stride + h * head_size;
    v += (i64)b * S * kv_stride + h * head_size;
    int num_keys = key_count(key_lengths, b, S);
    if (causal) num_keys = min(num_keys, t + 1);

    auto mask = masks.of(b, h);
    float query[DIMS], gradient[DIMS], result[DIMS], sum[DIMS];
    read_dims<LANES, ALIGNED>(query, q + row * q_stride + h * head_size, head_size);
    read_dims<LANES, ALIGNED>(gradient, do_ + row * do_stride + h * head_size, head_size);
    read_dims<LANES, ALIGNED>(result, o + row * o_stride + h * head_size, head_size);
    float delta = dot<LANES>(gradient, result), log_sum = lse[warp];
#pragma unroll
    for (int i = 0; i < DIMS; i++) sum[i] = 0.0f;
    for (int first = 0; first < num_keys; first += STREAMS * AHEAD) {
        float keys[AHEAD][DIMS], values[AHEAD][DIMS];
        int key = first + threadIdx.x % WARP / LANES;
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            int at = min(key + a * STREAMS, num_keys - 1);
            read_dims<LANES, ALIGNED>(keys[a], k + at * kv_stride, head_size);
            read_dims<LANES, ALIGNED>(values[a], v + at * kv_stride, head_size);
        }
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            float weight = expf(dot<LANES>(query, keys[a]) * scale - log_sum);
            float dp = dot<LANES>(gradient, values[a]);
            if constexpr (decltype(mask)::DROPS) dp *= mask.factor(t, key + a * STREAMS);
            float ds = weight * (dp - delta);
            if (key + a * STREAMS >= num_keys) ds = 0.0f;
#pragma unroll
            for (int i = 0; i < DIMS; i++) sum[i] += ds * keys[a][i];
        }
    }
    add_streams<LANES>(sum);
    write_dims<LANES, ALIGNED>(dq + row * dq_stride + h * head_size, sum, scale, head_size, accumulate & 1);
}

template <int LANES, bool ALIGNED, class M>
__device__ __forceinline__ void backward_dkv(BACKWARD_PARAMETERS, const M &masks) {
    const int STREAMS = WARP / LANES;
    i64 warp = (i64)blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (warp >= (i64)B * H * S) return;
    int s = (int)(warp % S), h = (int)(warp / S % H), b = (int)(warp / S / H);
    i64 row = (i64)b * S + s;
    q += (i64)b * T * q_stride + h * head_size;
    do_ += (i64)b * T * do_stride + h * head_size;
    o += (i64)b * T * o_stride + h * head_size;
    lse += ((i64)b * H + h) * T;
    // No query attends to a missing key.
    int begin = causal ? s : 0, end = s < key_count(key_lengths, b, S) ? T : 0;

    auto mask = masks.of(b, h);
    float key[DIMS], value[DIMS], dk_sum[DIMS], dv_sum[DIMS];
    read_dims<LANES, ALIGNED>(key, k + row * kv_stride + h * head_size, head_size);
    read_dims<LANES, ALIGNED>(value, v + row * kv_stride + h * head_size, head_size);
#pragma unroll
    for (int i = 0; i < DIMS; i++) dk_sum[i] = dv_sum[i] = 0.0f;
    for (int first = begin; first < end; first += STREAMS) {
        float query[DIMS], gradient[DIMS], result[DIMS];
        int t = first + threadIdx.x % WARP / LANES, at = min(t, end - 1);
        read_dims<LANES, ALIGNED>(query, q + at * q_stride, head_size);
        read_dims<LANES, ALIGNED>(gradient, do_ + at * do_stride, head_size);
        read_dims<LANES, ALIGNED>(result, o + at * o_stride, head_size);
        float weight = expf(dot<LANES>(query, key) * scale - lse[at]);
        if (t >= end) weight = 0.0f;
        float dp = dot<LANES>(gradient, value), factor = 1.0f;
        if constexpr (decltype(mask)::DROPS) dp *= factor = mask.factor(t, s);
        float ds = weight * (dp - dot<LANES>(gradient, result));
        if constexpr (decltype(mask)::DROPS) weight *= factor;
#pragma unroll
        for (int i = 0; i < DIMS; i++) {
            dv_sum[i] += weight * gradient[i];
            dk_sum[i] += ds * query[i];
        }
    }
    add_streams<LANES>(dk_sum);
    add_streams<LANES>(dv_sum);
    write_dims<LANES, ALIGNED>(dk + row * dkv_stride + h * head_size, dk_sum, scale, head_size, accumulate & 2);
    write_dims<LANES, ALIGNED>(dv + row * dkv_stride + h * head_size, dv_sum, 1.0f, head_size, accumulate & 4);
}

// Dispatches by head size and alignment; all threads take the same branch.
#define BY_HEAD_SIZE(function, aligned, arguments)                                                                         \
    if (head_size % DIMS == 0 && (aligned)) {                                                                              \
        if (head_size <= 4 * DIMS) function<4, true> arguments;                                                            \
        else if (head_size <= 8 * DIMS) function<8, true> arguments;                                                       \
        else function<32, true> arguments;                                                                                 \
    } else {                                                                                                               \
        if (head_size <= 8 * DIMS) function<8, false> arguments;                                                           \
        else function<32, false> arguments;                                                                                \
    }

#define FORWARD_ALIGNED                                                                                                    \
    (((u64)q | (u64)k | (u64)v | (u64)o) % 16 == 0 && (q_stride | kv_stride | o_stride) % PACK == 0)
#define BACKWARD_ALIGNED                                                                                                   \
    (FORWARD_ALIGNED && ((u64)do_ | (u64)dq | (u64)dk | (u64)dv) % 16 == 0 &&                                              \
     (do_stride | dq_stride | dkv_stride) % PACK == 0)

extern "C" __global__ void __launch_bounds__(128) attention_plain_forward(FORWARD_PARAMETERS) {
    follow();
    BY_HEAD_SIZE(forward, FORWARD_ALIGNED, (FORWARD_ARGUMENTS, NoMask()))
}

extern "C" __global__ void __launch_bounds__(128) attention_plain_backward_dq(BACKWARD_PARAMETERS) {
    follow();
    BY_HEAD_SIZE(backward_dq, BACKWARD_ALIGNED, (BACKWARD_ARGUMENTS, NoMask()))
}

extern "C" __global__ void __launch_bounds__(128) attention_plain_backward_dkv(BACKWARD_PARAMETERS) {
    follow();
    BY_HEAD_SIZE(backward_dkv, BACKWARD_ALIGNED, (BACKWARD_ARGUMENTS, NoMask()))
}

// Dispatches with dropout. Single-number accesses alone: this path is slow anyway, and every variant has to be compiled.
#define DROPPING(function, arguments)                                                                                      \
    if (head_size <= 8 * DIMS) function<8, false> arguments;                                                               \
    else function<32, false> arguments;

extern "C" __global__ void __launch_bounds__(128) attention_plain_forward_dropping(FORWARD_PARAMETERS, MASK_PARAMETERS) {
    follow();
    DROPPING(forward, (FORWARD_ARGUMENTS, MASK))
}

extern "C" __global__ void __launch_bounds__(128)
    attention_plain_backward_dq_dropping(BACKWARD_PARAMETERS, MASK_PARAMETERS) {
    follow();
    DROPPING(backward_dq, (BACKWARD_ARGUMENTS, MASK))
}

extern "C" __global__ void __launch_bounds__(128)
    attention_plain_backward_dkv_dropping(BACKWARD_PARAMETERS, MASK_PARAMETERS) {
    follow();
    DROPPING(backward_dkv, (BACKWARD_ARGUMENTS, MASK))
}

// One query per row i over the steps 0..=position of a cache [R, L, width]: the row's key and value are written to the cache at `position`;
// an earlier step u is read from row ancestors[i, u]. Grid (H, R): a block per head of a row, whose warps share the steps.

#define CACHED_WARPS 4
#define CACHED_PARAMETERS                                                                                                  \
    const Element *q, const Element *k, const Element *v, const i64 *ancestors, const i64 *position, Element *o,           \
        Element *keys, Element *values, int R, int L, i64 q_stride, i64 k_stride, i64 v_stride, i64 o_stride, i64 width,   \
        float scale, int head_size
#define CACHED_ARGUMENTS                                                                                                   \
    q, k, v, ancestors, position, o, keys, values, R, L, q_stride, k_stride, v_stride, o_stride, width, scale, head_size

// Results of the warps for the first warp; one allocation for all head sizes.
__shared__ float parts[CACHED_WARPS][WARP * DIMS], peaks[CACHED_WARPS], sums[CACHED_WARPS];

template <int LANES, bool ALIGNED>
__device__ __forceinline__ void cached(CACHED_PARAMETERS) {
    const int STREAMS = WARP / LANES, STEPS = CACHED_WARPS * STREAMS;
    int row = blockIdx.y, warp = threadIdx.x / WARP, stream = warp * STREAMS + threadIdx.x % WARP / LANES;
    i64 head = (i64)blockIdx.x * head_size;
    // An invalid position or ancestor must not cause a read outside of the cache: the result becomes NaN instead.
    i64 last = *position;
    bool exists = 0 <= last && last < L;
    if (!exists) last = -1;
    ancestors += (i64)row * L;
    keys += head;
    values += head;

    float query[DIMS], mixed[DIMS];
    if (exists && warp < 2) {
        const Element *from = warp == 0 ? k + row * k_stride : v + row * v_stride;
        Element *to = (warp == 0 ? keys : values) + ((i64)row * L + last) * width;
        read_dims<LANES, ALIGNED>(mixed, from + head, head_size);
        write_dims<LANES, ALIGNED>(to, mixed, 1.0f, head_size, false);
    }
    read_dims<LANES, ALIGNED>(query, q + row * q_stride + head, head_size);
#pragma unroll
    for (int i = 0; i < DIMS; i++) mixed[i] = 0.0f;
    float highest = MINUS_INFINITY, sum = 0.0f;
    // The new key and value are read from the cache.
    __syncthreads();
    // The trip count is that of the whole block, so that all lanes take part in the sums.
    for (i64 first = 0; first <= last; first += STEPS * AHEAD) {
        float step_keys[AHEAD][DIMS], step_values[AHEAD][DIMS], scores[AHEAD];
        i64 from[AHEAD];
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            i64 step = first + stream + a * STEPS;
            from[a] = step < last ? ancestors[step] : row;
        }
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            i64 step = first + stream + a * STEPS, source = from[a];
            exists = exists && 0 <= source && source < R;
            if (source < 0 || source >= R) source = row;
            i64 at = (source * L + (step < last ? step : last)) * width;
            read_dims<LANES, ALIGNED>(step_keys[a], keys + at, head_size);
            read_dims<LANES, ALIGNED>(step_values[a], values + at, head_size);
        }
        float before = highest;
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            scores[a] = dot<LANES>(query, step_keys[a]) * scale;
            if (first + stream + a * STEPS > last) scores[a] = MINUS_INFINITY;
            highest = fmaxf(highest, scores[a]);
        }
        // A stream without any step so far has nothing to rescale.
        float base = highest == MINUS_INFINITY ? 0.0f : highest, rescale = expf(before - base);
        sum *= rescale;
#pragma unroll
        for (int i = 0; i < DIMS; i++) mixed[i] *= rescale;
#pragma unroll
        for (int a = 0; a < AHEAD; a++) {
            float weight = expf(scores[a] - base);
            sum += weight;
#pragma unroll
            for (int i = 0; i < DIMS; i++) mixed[i] += weight * step_values[a][i];
        }
    }
    float peak = warp_max(highest), base = peak == MINUS_INFINITY ? 0.0f : peak, rescale = expf(highest - base);
    if (!__all_sync(ALL_LANES, exists)) rescale = __int_as_float(0x7fffffff);
    sum *= rescale;
#pragma unroll
    for (int i = 0; i < DIMS; i++) mixed[i] *= rescale;
#pragma unroll
    for (int offset = LANES; offset < WARP; offset *= 2) sum += __shfl_xor_sync(ALL_LANES, sum, offset);
    add_streams<LANES>(mixed);
    int lane = threadIdx.x % WARP;
    if (lane < LANES) {
#pragma unroll
        for (int i = 0; i < DIMS; i++) parts[warp][lane * DIMS + i] = mixed[i];
    }
    if (lane == 0) peaks[warp] = peak, sums[warp] = sum;
    __syncthreads();
    if (warp > 0) return;
#pragma unroll
    for (int w = 1; w < CACHED_WARPS; w++) peak = fmaxf(peak, peaks[w]);
    base = peak == MINUS_INFINITY ? 0.0f : peak;
    sum = 0.0f;
#pragma unroll
    for (int i = 0; i < DIMS; i++) mixed[i] = 0.0f;
#pragma unroll
    for (int w = 0; w < CACHED_WARPS; w++) {
        float part = expf(peaks[w] - base);
        sum += part * sums[w];
#pragma unroll
        for (int i = 0; i < DIMS; i++) mixed[i] += part * parts[w][lane % LANES * DIMS + i];
    }
    write_dims<LANES, ALIGNED>(o + row * o_stride + head, mixed, 1.0f / sum, head_size, false);
}

#define CACHED_ALIGNED                                                                                                     \
    (((u64)q | (u64)k | (u64)v | (u64)o | (u64)keys | (u64)values) % 16 == 0 &&                                            \
     (q_stride | k_stride | v_stride | o_stride | width) % PACK == 0)

extern "C" __global__ void __launch_bounds__(CACHED_WARPS *WARP) cached_attention(CACHED_PARAMETERS) {
    follow();
    BY_HEAD_SIZE(cached, CACHED_ALIGNED, (CACHED_ARGUMENTS))
}
