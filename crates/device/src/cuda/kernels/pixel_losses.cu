// Losses of every pixel, and the sums for overlap losses (Dice, Tversky).
//
// Logits are [n, h, w, k], `stride` elements apart, in f32 if `full`. Labels are bytes with three strides; a label that is not a class
// does not count. blockIdx.y is n, blockIdx.x a part of its pixels; the number of parts depends on the size of a picture alone. Parts are
// added in a fixed order. With one logit, STEP neighbouring pixels are read at once if everything is aligned.

#define LOSS_THREADS 256
#define LOSS_WARPS (LOSS_THREADS / WARP)
// Maximum number of pixels per read.
#define MANY 8
// Classes whose sums a thread has at a time.
#define CLASSES 8

struct Labels {
    const u8 *from;
    i64 line_stride, pixel_stride;
    int width;

    // STEP labels; neighbours are 8-byte aligned.
    template <int STEP> __device__ __forceinline__ void read(int pixel, int (&labels)[STEP]) const {
        if constexpr (STEP == MANY) {
            uint2 raw = *reinterpret_cast<const uint2 *>(from + pixel);
#pragma unroll
            for (int i = 0; i < MANY; i++) labels[i] = (i < 4 ? raw.x : raw.y) >> (8 * (i % 4)) & 0xff;
        } else {
            int line = (u32)pixel / (u32)width;
            labels[0] = from[line * line_stride + (pixel - line * width) * pixel_stride];
        }
    }
};

// A picture's logits and labels.
template <class T> struct Picture {
    const T *logits;
    Labels labels;
    i64 stride;
    int pixels, classes, first, last;
};

// Kernel arguments.
struct Operands {
    const void *logits;
    const u8 *labels;
    i64 stride, sample_stride, line_stride, pixel_stride;
    int pixels, width, classes;

    // The block's part of its picture; parts begin at multiples of MANY.
    template <class T> __device__ __forceinline__ Picture<T> picture() const {
        int per_part = (pixels + gridDim.x - 1) / gridDim.x;
        per_part = (per_part + MANY - 1) / MANY * MANY;
        i64 n = blockIdx.y;
        Labels of = {labels + n * sample_stride, line_stride, pixel_stride, width};
        int first = (int)min((i64)blockIdx.x * per_part, (i64)pixels);
        return {(const T *)logits + n * pixels * stride, of, stride, pixels, classes, first, min(first + per_part, pixels)};
    }
};

template <int STEP, class T> __device__ __forceinline__ void load_logits(const T *from, float (&values)[STEP]) {
    if constexpr (STEP == 1) {
        values[0] = load(*from);
    } else {
        constexpr int EACH = 16 / sizeof(T);
#pragma unroll
        for (int i = 0; i < STEP; i += EACH) {
            float pack[EACH];
            load_pack(from + i, pack);
#pragma unroll
            for (int k = 0; k < EACH; k++) values[i + k] = pack[k];
        }
    }
}

template <int STEP, class T> __device__ __forceinline__ void store_logits(T *to, float (&values)[STEP], int accumulate) {
    if (accumulate) {
        float before[STEP];
        load_logits<STEP>(to, before);
#pragma unroll
        for (int i = 0; i < STEP; i++) values[i] += before[i];
    }
    if constexpr (STEP == 1) {
        store(to, values[0]);
    } else {
        constexpr int EACH = 16 / sizeof(T);
#pragma unroll
        for (int i = 0; i < STEP; i += EACH) {
            float pack[EACH];
#pragma unroll
            for (int k = 0; k < EACH; k++) pack[k] = values[i + k];
            store_pack(to + i, pack);
        }
    }
}

// Sums over a block, N of each thread, in a fixed order; each of the first threads gets one sum.
template <int N> __device__ __forceinline__ float block_sums(const float (&values)[N], float (*shared)[3 * CLASSES]) {
#pragma unroll
    for (int i = 0; i < N; i++) {
        float sum = warp_sum(values[i]);
        if (threadIdx.x % WARP == 0) shared[threadIdx.x / WARP][i] = sum;
    }
    __syncthreads();
    float sum = 0.0f;
    if (threadIdx.x < N)
        for (int warp = 0; warp < LOSS_WARPS; warp++) sum += shared[warp][threadIdx.x];
    __syncthreads();
    return sum;
}

__device__ __noinline__ float power(float q, float focal) { return expf(focal * logf(q)); }

// The probability p of the true class, q = 1 - p, and -log p.
struct Truth {
    float p, q, surprise;

    // q^focal, for `focal` above zero.
    __device__ __forceinline__ float factor(float focal) const { return power(q, focal); }
    // `focal` 0: no focal factor.
    __device__ __forceinline__ float loss(float focal) const { return focal > 0.0f ? factor(focal) * surprise : surprise; }
};

// `towards`: z for class 1, -z for class 0. Not inlined: eight inlined copies would take seconds to compile.
__device__ __noinline__ Truth sigmoid_truth(float towards) {
    float small = expf(-fabsf(towards)), whole = 1.0f / (1.0f + small);
    float p = towards > 0.0f ? whole : small * whole, q = towards > 0.0f ? small * whole : whole;
    return {p, q, fmaxf(-towards, 0.0f) + logf(1.0f + small)};
}

// The softmax of a pixel: exp(z - peak) / sum. Classes are few: loops over them are not unrolled.
struct Softmax {
    float peak, sum;
};

template <class T> __device__ __forceinline__ Softmax softmax(const T *logits, int classes) {
    float peak = __int_as_float(0xff800000), sum = 0.0f;
#pragma unroll 1
    for (int k = 0; k < classes; k++) peak = fmaxf(peak, load(logits[k]));
#pragma unroll 1
    for (int k = 0; k < classes; k++) sum += expf(load(logits[k]) - peak);
    return {peak, sum};
}

template <class T> __device__ __forceinline__ Truth softmax_truth(const T *logits, int classes, int label, const Softmax &s) {
    float others = 0.0f;
#pragma unroll 1
    for (int k = 0; k < classes; k++)
        if (k != label) others += expf(load(logits[k]) - s.peak);
    float z = load(logits[label]) - s.peak;
    return {expf(z) / s.sum, others / s.sum, logf(s.sum) - z};
}

// Weights: class_weights[2] or [k], and the sample's weight. Labels of weight zero do not count.
template <int STEP, class T>
__device__ __forceinline__ float sigmoid_losses(const Picture<T> &p, const float *class_weights, float focal) {
    float sum = 0.0f, weights[2] = {class_weights[0], class_weights[1]};
    for (int pixel = p.first + threadIdx.x * STEP; pixel < p.last; pixel += LOSS_THREADS * STEP) {
        float z[STEP];
        int labels[STEP];
        load_logits<STEP>(p.logits + pixel * p.stride, z);
        p.labels.template read<STEP>(pixel, labels);
#pragma unroll
        for (int i = 0; i < STEP; i++)
            if (labels[i] < 2) {
                float weight = labels[i] ? weights[1] : weights[0];
                if (weight != 0.0f) sum += weight * sigmoid_truth(labels[i] ? z[i] : -z[i]).loss(focal);
            }
    }
    return sum;
}

template <class T> __device__ __forceinline__ float softmax_losses(const Picture<T> &p, const float *class_weights, float focal) {
    float sum = 0.0f;
    for (int pixel = p.first + threadIdx.x; pixel < p.last; pixel += LOSS_THREADS) {
        int label[1];
        p.labels.template read<1>(pixel, label);
        if (label[0] >= p.classes || class_weights[label[0]] == 0.0f) continue;
        const T *logits = p.logits + pixel * p.stride;
        Truth truth = softmax_truth(logits, p.classes, label[0], softmax(logits, p.classes));
        sum += class_weights[label[0]] * truth.loss(focal);
    }
    return sum;
}

template <class T>
__device__ __forceinline__ float losses(const Operands &o, const float *class_weights, float focal, int is_softmax, int packed) {
    Picture<T> p = o.template picture<T>();
    if (is_softmax) return softmax_losses(p, class_weights, focal);
    return packed ? sigmoid_losses<MANY>(p, class_weights, focal) : sigmoid_losses<1>(p, class_weights, focal);
}

// partials[n][part].
extern "C" __global__ void __launch_bounds__(LOSS_THREADS)
    pixel_loss(const void *logits, const u8 *labels, const float *class_weights, const float *sample_weights, float *partials,
               i64 stride, i64 sample_stride, i64 line_stride, i64 pixel_stride, int pixels, int width, int classes, float focal,
               int is_softmax, int full, int packed, const int *micro, i64 labels_micro, i64 weights_micro) {
    follow();
    __shared__ float shared[LOSS_WARPS][3 * CLASSES];
    i64 part = micro ? *micro : 0;
    Operands o = {logits, labels + part * labels_micro, stride, sample_stride, line_stride, pixel_stride, pixels, width, classes};
    float weight = sample_weights[part * weights_micro + blockIdx.y], sum[1] = {};
    if (weight != 0.0f)
        sum[0] = full ? losses<float>(o, class_weights, focal, is_softmax, packed)
                      : losses<Element>(o, class_weights, focal, is_softmax, packed);
    float total = block_sums<1>(sum, shared);
    if (threadIdx.x == 0) partials[(i64)blockIdx.y * gridDim.x + blockIdx.x] = weight != 0.0f ? weight * total : 0.0f;
}

// dz = -s q^focal (focal p (-log p) + q), s = 1 for class 1 and -1 for class 0; `weights` include the seed and the sample's weight.
template <int STEP, class T>
__device__ __forceinline__ void sigmoid_loss_grad(const Picture<T> &p, T *d, i64 d_stride, const float (&weights)[2], float focal,
                                                  int accumulate) {
    for (int pixel = p.first + threadIdx.x * STEP; pixel < p.last; pixel += LOSS_THREADS * STEP) {
        float z[STEP], values[STEP];
        int labels[STEP];
        load_logits<STEP>(p.logits + pixel * p.stride, z);
        p.labels.template read<STEP>(pixel, labels);
#pragma unroll
        for (int i = 0; i < STEP; i++) {
            values[i] = 0.0f;
            float weight = labels[i] == 1 ? weights[1] : labels[i] == 0 ? weights[0] : 0.0f;
            if (weight == 0.0f) continue;
            Truth truth = sigmoid_truth(labels[i] ? z[i] : -z[i]);
            float slope = truth.q;
            if (focal > 0.0f) slope = truth.factor(focal) * (focal * truth.p * truth.surprise + truth.q);
            values[i] = (labels[i] ? -weight : weight) * slope;
        }
        store_logits<STEP>(d + pixel * d_stride, values, accumulate);
    }
}

// dz[j] = (p[j] - [j is true]) q^focal (1 + focal p (-log p) / q).
template <class T>
__device__ __forceinline__ void softmax_loss_grad(const Picture<T> &p, T *d, i64 d_stride, const float *class_weights, float weight,
                                                  float focal, int accumulate) {
    for (int pixel = p.first + threadIdx.x; pixel < p.last; pixel += LOSS_THREADS) {
        int label[1];
        p.labels.template read<1>(pixel, label);
        const T *logits = p.logits + pixel * p.stride;
        T *to = d + pixel * d_stride;
        float factor = label[0] < p.classes ? weight * class_weights[label[0]] : 0.0f;
        if (factor == 0.0f) {
            if (!accumulate)
#pragma unroll 1
                for (int k = 0; k < p.classes; k++) store(to + k, 0.0f);
            continue;
        }
        Softmax s = softmax(logits, p.classes);
        Truth truth = softmax_truth(logits, p.classes, label[0], s);
        if (focal > 0.0f)
            factor *= truth.q > 0.0f ? truth.factor(focal) * (1.0f + focal * truth.p * truth.surprise / truth.q) : 0.0f;
#pragma unroll 1
        for (int k = 0; k < p.classes; k++) {
            float value = factor * (k == label[0] ? -truth.q : expf(load(logits[k]) - s.peak) / s.sum);
            store(to + k, accumulate ? load(to[k]) + value : value);
        }
    }
}

template <class T>
__device__ __forceinline__ void loss_grad(const Operands &o, void *dlogits, i64 d_stride, const float *class_weights, float weight,
                                          float focal, int is_softmax, int accumulate, int packed) {
    Picture<T> p = o.template picture<T>();
    T *d = (T *)dlogits + (i64)blockIdx.y * o.pixels * d_stride;
    if (is_softmax) {
        softmax_loss_grad(p, d, d_stride, class_weights, weight, focal, accumulate);
        return;
    }
    float weights[2] = {weight * class_weights[0], weight * class_weights[1]};
    if (packed) sigmoid_loss_grad<MANY>(p, d, d_stride, weights, focal, accumulate);
    else sigmoid_loss_grad<1>(p, d, d_stride, weights, focal, accumulate);
}

extern "C" __global__ void __launch_bounds__(LOSS_THREADS)
    pixel_loss_grad(const float *seed, const void *logits, const u8 *labels, const float *class_weights,
                    const float *sample_weights, void *dlogits, i64 stride, i64 sample_stride, i64 line_stride, i64 pixel_stride,
                    i64 d_stride, int pixels, int width, int classes, float focal, int is_softmax, int accumulate, int full,
                    int packed, const int *micro, i64 labels_micro, i64 weights_micro) {
    follow();
    i64 part = micro ? *micro : 0;
    Operands o = {logits, labels + part * labels_micro, stride, sample_stride, line_stride, pixel_stride, pixels, width, classes};
    float weight = sample_weights[part * weights_micro + blockIdx.y];
    if (weight != 0.0f) weight *= *seed;
    if (full) loss_grad<float>(o, dlogits, d_stride, class_weights, weight, focal, is_softmax, accumulate, packed);
    else loss_grad<Element>(o, dlogits, d_stride, class_weights, weight, focal, is_softmax, accumulate, packed);
}

// Sums of p g, of p and of g.
template <int STEP, class T> __device__ __forceinline__ void sigmoid_overlap(const Picture<T> &p, float (&sums)[3]) {
    for (int pixel = p.first + threadIdx.x * STEP; pixel < p.last; pixel += LOSS_THREADS * STEP) {
        float z[STEP];
        int labels[STEP];
        load_logits<STEP>(p.logits + pixel * p.stride, z);
        p.labels.template read<STEP>(pixel, labels);
#pragma unroll
        for (int i = 0; i < STEP; i++) {
            if (labels[i] > 1) continue;
            float probability = sigmoid_truth(z[i]).p;
            sums[1] += probability;
            if (labels[i]) sums[0] += probability, sums[2] += 1.0f;
        }
    }
}

// The same sums for CLASSES classes from `first_class` on.
template <class T>
__device__ __forceinline__ void softmax_overlap(const Picture<T> &p, int first_class, float (&sums)[3 * CLASSES]) {
    for (int pixel = p.first + threadIdx.x; pixel < p.last; pixel += LOSS_THREADS) {
        int label[1];
        p.labels.template read<1>(pixel, label);
        if (label[0] >= p.classes) continue;
        const T *logits = p.logits + pixel * p.stride;
        Softmax s = softmax(logits, p.classes);
#pragma unroll
        for (int i = 0; i < CLASSES; i++) {
            int k = first_class + i;
            if (k >= p.classes) continue;
            float probability = expf(load(logits[k]) - s.peak) / s.sum;
            sums[3 * i + 1] += probability;
            if (label[0] == k) sums[3 * i] += probability, sums[3 * i + 2] += 1.0f;
        }
    }
}

template <class T>
__device__ __forceinline__ void overlap(const Operands &o, float *to, int is_softmax, int packed, float (*shared)[3 * CLASSES]) {
    Picture<T> p = o.template picture<T>();
    int first_class = blockIdx.z * CLASSES, here = 3 * min(CLASSES, o.classes - first_class);
    float sum;
    if (is_softmax) {
        float sums[3 * CLASSES] = {};
        softmax_overlap(p, first_class, sums);
        sum = block_sums<3 * CLASSES>(sums, shared);
    } else {
        float sums[3] = {};
        if (packed) sigmoid_overlap<MANY>(p, sums);
        else sigmoid_overlap<1>(p, sums);
        sum = block_sums<3>(sums, shared);
    }
    if (threadIdx.x < here) to[3 * first_class + threadIdx.x] = sum;
}

// partials[n][part][3k]; blockIdx.z: CLASSES classes.
extern "C" __global__ void __launch_bounds__(LOSS_THREADS)
    overlap_sums(const void *logits, const u8 *labels, float *partials, i64 stride, i64 sample_stride, i64 line_stride,
                 i64 pixel_stride, int pixels, int width, int classes, int is_softmax, int full, int packed, const int *micro,
                 i64 labels_micro) {
    follow();
    __shared__ float shared[LOSS_WARPS][3 * CLASSES];
    i64 part = micro ? *micro : 0;
    Operands o = {logits, labels + part * labels_micro, stride, sample_stride, line_stride, pixel_stride, pixels, width, classes};
    float *to = partials + ((i64)blockIdx.y * gridDim.x + blockIdx.x) * 3 * classes;
    if (full) overlap<float>(o, to, is_softmax, packed, shared);
    else overlap<Element>(o, to, is_softmax, packed, shared);
}

// A warp per sum: parts in a fixed order. columns: 3k.
extern "C" __global__ void overlap_sums_finish(const float *partials, float *sums, int rows, int columns, int parts, i64 stride,
                                               const int *micro, i64 sums_micro) {
    follow();
    int lane = threadIdx.x % WARP, at = (blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    if (at >= rows * columns) return;
    int n = at / columns, column = at - n * columns;
    double sum = 0.0;
    for (int part = lane; part < parts; part += WARP) sum += partials[((i64)n * parts + part) * columns + column];
    sum = warp_sum(sum);
    if (lane == 0) sums[(micro ? *micro : 0) * sums_micro + n * stride + column] = (float)sum;
}

// dz = p (1 - p) (g dTP + dP).
template <int STEP, class T>
__device__ __forceinline__ void sigmoid_overlap_grad(const Picture<T> &p, const float *dsums, T *d, i64 d_stride, int accumulate) {
    float hit = dsums[0], any = dsums[1];
    for (int pixel = p.first + threadIdx.x * STEP; pixel < p.last; pixel += LOSS_THREADS * STEP) {
        float z[STEP], values[STEP];
        int labels[STEP];
        load_logits<STEP>(p.logits + pixel * p.stride, z);
        p.labels.template read<STEP>(pixel, labels);
#pragma unroll
        for (int i = 0; i < STEP; i++) {
            Truth truth = sigmoid_truth(z[i]);
            values[i] = labels[i] > 1 ? 0.0f : truth.p * truth.q * (labels[i] ? hit + any : any);
        }
        store_logits<STEP>(d + pixel * d_stride, values, accumulate);
    }
}

// dp[j] = [j is true] dTP[j] + dP[j], dz[j] = p[j] (dp[j] - sum over i of p[i] dp[i]).
template <class T>
__device__ __forceinline__ void softmax_overlap_grad(const Picture<T> &p, const float *dsums, T *d, i64 d_stride, int accumulate) {
    for (int pixel = p.first + threadIdx.x; pixel < p.last; pixel += LOSS_THREADS) {
        int label[1];
        p.labels.template read<1>(pixel, label);
        const T *logits = p.logits + pixel * p.stride;
        T *to = d + pixel * d_stride;
        bool counts = label[0] < p.classes;
        if (!counts && accumulate) continue;
        Softmax s = {0.0f, 1.0f};
        float mean = 0.0f;
        if (counts) {
            s = softmax(logits, p.classes);
#pragma unroll 1
            for (int k = 0; k < p.classes; k++)
                mean += expf(load(logits[k]) - s.peak) * (dsums[3 * k + 1] + (k == label[0] ? dsums[3 * k] : 0.0f));
            mean /= s.sum;
        }
#pragma unroll 1
        for (int k = 0; k < p.classes; k++) {
            float value = 0.0f;
            if (counts) {
                float slope = dsums[3 * k + 1] + (k == label[0] ? dsums[3 * k] : 0.0f);
                value = expf(load(logits[k]) - s.peak) / s.sum * (slope - mean);
            }
            store(to + k, accumulate ? load(to[k]) + value : value);
        }
    }
}

template <class T>
__device__ __forceinline__ void overlap_grad(const Operands &o, const float *dsums, void *dlogits, i64 d_stride, int is_softmax,
                                             int accumulate, int packed) {
    Picture<T> p = o.template picture<T>();
    T *d = (T *)dlogits + (i64)blockIdx.y * o.pixels * d_stride;
    if (is_softmax) softmax_overlap_grad(p, dsums, d, d_stride, accumulate);
    else if (packed) sigmoid_overlap_grad<MANY>(p, dsums, d, d_stride, accumulate);
    else sigmoid_overlap_grad<1>(p, dsums, d, d_stride, accumulate);
}

extern "C" __global__ void __launch_bounds__(LOSS_THREADS)
    overlap_sums_grad(const float *dsums, const void *logits, const u8 *labels, void *dlogits, i64 dsums_stride, i64 stride,
                      i64 sample_stride, i64 line_stride, i64 pixel_stride, i64 d_stride, int pixels, int width, int classes,
                      int is_softmax, int accumulate, int full, int packed, const int *micro, i64 dsums_micro, i64 labels_micro) {
    follow();
    i64 part = micro ? *micro : 0;
    Operands o = {logits, labels + part * labels_micro, stride, sample_stride, line_stride, pixel_stride, pixels, width, classes};
    dsums += part * dsums_micro + blockIdx.y * dsums_stride;
    if (full) overlap_grad<float>(o, dsums, dlogits, d_stride, is_softmax, accumulate, packed);
    else overlap_grad<Element>(o, dsums, dlogits, d_stride, is_softmax, accumulate, packed);
}
