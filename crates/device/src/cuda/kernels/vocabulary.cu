// Rows as wide as a vocabulary, a block per row: the cross-entropy of logits, its gradient, and the largest logits of a row. A product
// writes the logits before, in f32.

#define MINUS_INFINITY __int_as_float(0xff800000)
#define ROW_THREADS 512
#define TOP_THREADS 1024

// Packs of columns per thread in flight.
template <int VEC> __device__ __forceinline__ constexpr int ahead() { return VEC == 1 ? 8 : 4; }

// Loads packs of VEC columns, blockDim.x packs apart; minus infinity beyond the row. VEC divides the width.
template <int VEC>
__device__ __forceinline__ void load_columns(float (&values)[ahead<VEC>()][VEC], const float *row, int first, int width) {
#pragma unroll
    for (int a = 0; a < ahead<VEC>(); a++) {
        int column = first + a * blockDim.x * VEC;
        if (column < width) {
            if constexpr (VEC == 1) values[a][0] = row[column];
            else load_pack(row + column, values[a]);
        } else {
#pragma unroll
            for (int i = 0; i < VEC; i++) values[a][i] = MINUS_INFINITY;
        }
    }
}

// Loops over this thread's columns: work(values, first column).
template <int VEC, class Work> __device__ __forceinline__ void for_columns(const float *row, int width, Work work) {
    for (int first = threadIdx.x * VEC; first < width; first += ahead<VEC>() * blockDim.x * VEC) {
        float values[ahead<VEC>()][VEC];
        load_columns<VEC>(values, row, first, width);
        work(values, first);
    }
}

// Whether columns can be read in packs of four.
__device__ __forceinline__ bool packs(const float *row, int width) { return width % 4 == 0 && aligned(row); }

// A thread's largest logit so far, and the sum of exp(logit - largest).
struct Exponentials {
    float peak, sum;
    template <int N, int VEC> __device__ __forceinline__ void add(const float (&values)[N][VEC]) {
        float highest = peak;
#pragma unroll
        for (int i = 0; i < N * VEC; i++) highest = fmaxf(highest, values[i / VEC][i % VEC]);
        float base = highest == MINUS_INFINITY ? 0.0f : highest;
        sum *= expf(peak - base);
#pragma unroll
        for (int i = 0; i < N * VEC; i++) sum += expf(values[i / VEC][i % VEC] - base);
        peak = highest;
    }
};

// Sum over a block, for every thread: warps in order.
__device__ __forceinline__ float block_sum(float value) {
    __shared__ float parts[32];
    value = warp_sum(value);
    __syncthreads();
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = value;
    __syncthreads();
    value = parts[0];
    for (int i = 1; i < blockDim.x / WARP; i++) value += parts[i];
    return value;
}

__device__ __forceinline__ float block_max(float value) {
    __shared__ float parts[32];
    value = warp_max(value);
    __syncthreads();
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = value;
    __syncthreads();
    value = parts[0];
    for (int i = 1; i < blockDim.x / WARP; i++) value = fmaxf(value, parts[i]);
    return value;
}

// Log-sum-exp over the block's threads.
__device__ __forceinline__ float log_sum(Exponentials own) {
    float peak = block_max(own.peak), base = peak == MINUS_INFINITY ? 0.0f : peak;
    return base + logf(block_sum(own.sum * expf(own.peak - base)));
}

// Labels and weights of rows. They may be those of the whole batch; `micro` is the index of the micro-batch.
struct Targets {
    const i64 *labels;
    const float *token_weights, *sample_weights;
    const int *micro;
    i64 labels_micro, token_micro, sample_micro;
    int tokens;
};

struct Row {
    i64 label;
    float weight;
    __device__ __forceinline__ bool counts() const { return label >= 0 && weight != 0.0f; }
};

__device__ __forceinline__ Row read_row(const Targets &all, int row, int width) {
    i64 part = *all.micro;
    Row r = {all.labels[part * all.labels_micro + row],
             all.token_weights[part * all.token_micro + row] *
                 all.sample_weights[part * all.sample_micro + row / all.tokens]};
    // An invalid label must not cause a read outside of the logits: the loss becomes NaN instead.
    if (r.label >= width) r.label = 0, r.weight = __int_as_float(0x7fffffff);
    return r;
}

#define TARGETS                                                                                                            \
    const i64 *labels, const float *token_weights, const float *sample_weights, const int *micro, i64 labels_micro,       \
        i64 token_micro, i64 sample_micro, int tokens
#define ALL_TARGETS {labels, token_weights, sample_weights, micro, labels_micro, token_micro, sample_micro, tokens}

template <int VEC>
__device__ __forceinline__ void row_statistics(const float *logits, int width, bool smooth, float &lse, float &total) {
    Exponentials own = {MINUS_INFINITY, 0.0f};
    float sum = 0.0f;
    for_columns<VEC>(logits, width, [&](const float(&values)[ahead<VEC>()][VEC], int first) {
        own.add(values);
        if (!smooth) return;
#pragma unroll
        for (int i = 0; i < ahead<VEC>() * VEC; i++)
            if (first + i / VEC * blockDim.x * VEC < width) sum += values[i / VEC][i % VEC];
    });
    lse = log_sum(own);
    total = smooth ? block_sum(sum) : 0.0f;
}

// Rows from first_row on of the batch, a tile of logits: w (lse - (1 - e) logit[label] - e / V * sum of logits).
extern "C" __global__ void __launch_bounds__(ROW_THREADS)
    vocabulary_loss(const float *logits, i64 stride, int first_row, int width, TARGETS, float smoothing, float *lse,
                    float *row_losses) {
    follow();
    int row = first_row + blockIdx.x;
    logits += blockIdx.x * stride;
    Targets all = ALL_TARGETS;
    Row r = read_row(all, row, width);
    float log_sum = 0.0f, loss = 0.0f;
    if (r.counts()) {
        float total;
        bool smooth = smoothing > 0.0f;
        if (packs(logits, width)) row_statistics<4>(logits, width, smooth, log_sum, total);
        else row_statistics<1>(logits, width, smooth, log_sum, total);
        float target = logits[r.label];
        if (smooth) target = (1.0f - smoothing) * target + smoothing * (total / width);
        loss = r.weight * (log_sum - target);
    }
    if (threadIdx.x > 0) return;
    if (lse) lse[row] = log_sum;
    row_losses[row] = loss;
}

template <int VEC> __device__ __forceinline__ void store_columns(Element *to, const float (&values)[VEC]) {
    if constexpr (VEC == 1) {
        store(to, values[0]);
    } else {
        union {
            float4 whole;
            uint2 half;
            Element elements[VEC];
        } four;
#pragma unroll
        for (int i = 0; i < VEC; i++) store(&four.elements[i], values[i]);
#if ELEMENT == 0
        *reinterpret_cast<float4 *>(to) = four.whole;
#else
        *reinterpret_cast<uint2 *>(to) = four.half;
#endif
    }
}

// Writes a row's gradient over its logits, from the front: each written address was read before, or is behind all reads.
template <int VEC>
__device__ __forceinline__ void row_gradient(float *logits, int width, const Row &r, float lse, float seed,
                                             float smoothing) {
    Element *to = reinterpret_cast<Element *>(logits);
    bool counts = r.counts();
    float whole = counts ? seed * r.weight : 0.0f;
    float spread = smoothing / width * whole, own = (1.0f - smoothing) * whole;
    // The trip count is that of the whole block, so that all threads reach the barriers.
    for (int base = 0; base < width; base += ahead<VEC>() * blockDim.x * VEC) {
        int first = base + threadIdx.x * VEC;
        float values[ahead<VEC>()][VEC];
        if (counts) load_columns<VEC>(values, logits, first, width);
#pragma unroll
        for (int i = 0; i < ahead<VEC>() * VEC; i++) {
            float &value = values[i / VEC][i % VEC];
            int column = first + i / VEC * blockDim.x * VEC + i % VEC;
            value = counts ? expf(value - lse) * whole - spread : 0.0f;
            if (counts && column == r.label) value -= own;
        }
        __syncthreads();
#pragma unroll
        for (int a = 0; a < ahead<VEC>(); a++) {
            int column = first + a * blockDim.x * VEC;
            if (column < width) store_columns<VEC>(to + column, values[a]);
        }
    }
}

// Turns a tile of logits into seed * w * (softmax - target) as Elements, in place: a row begins where its logits began.
extern "C" __global__ void __launch_bounds__(ROW_THREADS)
    vocabulary_loss_grad(float *logits, i64 stride, int first_row, int width, TARGETS, float smoothing, const float *lse,
                         const float *seed) {
    follow();
    int row = first_row + blockIdx.x;
    logits += blockIdx.x * stride;
    Targets all = ALL_TARGETS;
    Row r = read_row(all, row, width);
    if (packs(logits, width)) row_gradient<4>(logits, width, r, lse[row], *seed, smoothing);
    else row_gradient<1>(logits, width, r, lse[row], *seed, smoothing);
}

// Sort key: larger logits have larger keys, equal logits are ordered by smaller column; 0 for NaN and minus infinity.
__device__ __forceinline__ u64 key_of(float value, int column) {
    if (!(value > MINUS_INFINITY)) return 0;
    u32 bits = __float_as_uint(value == 0.0f ? 0.0f : value);
    bits ^= bits >> 31 ? 0xffffffffu : 0x80000000u;
    return (u64)bits << 32 | (0xffffffffu - (u32)column);
}

__device__ __forceinline__ u64 larger(u64 a, u64 b) { return a > b ? a : b; }

__device__ __forceinline__ u64 warp_max(u64 key) {
#pragma unroll
    for (int offset = 16; offset > 0; offset >>= 1) key = larger(key, __shfl_xor_sync(ALL_LANES, key, offset));
    return key;
}

template <int VEC>
__device__ __forceinline__ void top_of_row(const float *logits, const i64 *banned, float *values, float *ids, float *lse,
                                           int width, int num_banned, int count) {
    __shared__ u64 bests[TOP_THREADS / WARP];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    Exponentials own = {MINUS_INFINITY, 0.0f};
    u64 candidate = 0;
    for_columns<VEC>(logits, width, [&](const float(&values)[ahead<VEC>()][VEC], int first) {
        own.add(values);
#pragma unroll
        for (int i = 0; i < ahead<VEC>() * VEC; i++) {
            int column = first + i / VEC * TOP_THREADS * VEC + i % VEC;
            candidate = larger(candidate, key_of(values[i / VEC][i % VEC], column));
        }
    });
    float log_sum_all = log_sum(own);
    if (threadIdx.x == 0) *lse = log_sum_all;

    // Every thread has the best of its columns. The best of all is removed, and its thread finds its next best.
    int found = 0;
    while (found < count) {
        u64 best = warp_max(candidate);
        if (lane == 0) bests[warp] = best;
        __syncthreads();
        best = warp_max(bests[lane]);
        if (best == 0) break;
        int column = (int)(0xffffffffu - (u32)best);
        bool is_banned = false;
        for (int i = threadIdx.x; i < num_banned; i += TOP_THREADS) is_banned |= banned[i] == column;
        if (!__syncthreads_or(is_banned)) {
            if (threadIdx.x == 0) {
                values[found] = logits[column];
                ids[found] = (float)column;
            }
            found++;
        }
        int owner = column / VEC % TOP_THREADS;
        if (warp != owner / WARP) continue;
        u64 next = 0;
        for (int k = lane;; k += WARP) {
            int other = (k / VEC * TOP_THREADS + owner) * VEC + k % VEC;
            if (other >= width) break;
            u64 key = key_of(logits[other], other);
            if (key < best) next = larger(next, key);
        }
        next = warp_max(next);
        if (lane == owner % WARP) candidate = next;
    }
    for (int i = found + threadIdx.x; i < count; i += TOP_THREADS) {
        values[i] = MINUS_INFINITY;
        ids[i] = -1.0f;
    }
}

// The `count` largest logits of a row without banned tokens, and the log-sum-exp of all. A block per row.
extern "C" __global__ void __launch_bounds__(TOP_THREADS)
    top_tokens(const float *logits, const i64 *banned, float *values, float *ids, float *lse, int width, int num_banned,
               int count, i64 stride) {
    follow();
    i64 row = blockIdx.x;
    logits += row * stride;
    banned += row * num_banned;
    values += row * count;
    ids += row * count;
    if (packs(logits, width)) top_of_row<4>(logits, banned, values, ids, lse + row, width, num_banned, count);
    else top_of_row<1>(logits, banned, values, ids, lse + row, width, num_banned, count);
}
