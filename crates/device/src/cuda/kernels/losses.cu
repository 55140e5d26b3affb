// Separable losses, a warp per row. `full`: predictions are f32 for any Element. Labels, targets and weights are those of the whole
// batch; `micro` is the index of the micro-batch.

struct Row {
    i64 label;
    float weight;
    __device__ __forceinline__ bool counts() const { return label >= 0 && weight != 0.0f; }
};

__device__ __forceinline__ Row read_row(const i64 *labels, const float *weights, int row, int width, const int *micro,
                                        i64 labels_micro, i64 weights_micro) {
    i64 part = micro ? *micro : 0;
    Row r = {labels[part * labels_micro + row], weights[part * weights_micro + row]};
    // An invalid label must not cause a read outside of the logits: the loss becomes NaN instead.
    if (r.label >= width) r.label = 0, r.weight = __int_as_float(0x7fffffff);
    return r;
}

// Largest logit and sum of exp(logit - largest).
template <class T> __device__ __forceinline__ float2 peak_and_sum(const T *logits, int width, int lane) {
    float peak = __int_as_float(0xff800000), sum = 0.0f;
#pragma unroll 8
    for (int column = lane; column < width; column += WARP) peak = fmaxf(peak, load(logits[column]));
    peak = warp_max(peak);
#pragma unroll 8
    for (int column = lane; column < width; column += WARP) sum += expf(load(logits[column]) - peak);
    return make_float2(peak, warp_sum(sum));
}

template <class T>
__device__ __forceinline__ float cross_entropy_of(const T *logits, const Row &r, int width, float smoothing, int lane) {
    float2 l = peak_and_sum(logits, width, lane);
    float target = load(logits[r.label]);
    if (smoothing > 0.0f) {
        float sum = 0.0f;
#pragma unroll 8
        for (int column = lane; column < width; column += WARP) sum += load(logits[column]);
        target = (1.0f - smoothing) * target + smoothing * (warp_sum(sum) / width);
    }
    return r.weight * (l.x + logf(l.y) - target);
}

// Like peak_and_sum, with target[c] weighted by class_weights[c].
template <class T>
__device__ __forceinline__ float weighted_cross_entropy_of(const T *logits, const Row &r, const float *class_weights,
                                                           int width, float smoothing, int lane) {
    float2 l = peak_and_sum(logits, width, lane);
    float log_sum = l.x + logf(l.y);
    float loss = (1.0f - smoothing) * class_weights[r.label] * (log_sum - load(logits[r.label]));
    if (smoothing > 0.0f) {
        float sum = 0.0f;
        for (int column = lane; column < width; column += WARP)
            sum += class_weights[column] * (log_sum - load(logits[column]));
        loss += smoothing * (warp_sum(sum) / width);
    }
    return r.weight * loss;
}

template <class T>
__device__ __forceinline__ float cross_entropy_row(const T *logits, const Row &r, const float *class_weights, int width,
                                                   float smoothing, int lane) {
    return class_weights ? weighted_cross_entropy_of(logits, r, class_weights, width, smoothing, lane)
                         : cross_entropy_of(logits, r, width, smoothing, lane);
}

// Cross-entropy: loss = w * (logsumexp(logits) - target . logits), dlogits = seed * w * (softmax - target).
// Rows of weight zero and of negative label do not count. Class weights may be null.
extern "C" __global__ void cross_entropy(const void *logits, const i64 *labels, const float *weights,
                                         const float *class_weights, float *row_losses, int rows, int width, i64 stride,
                                         float smoothing, int full, const int *micro, i64 labels_micro,
                                         i64 weights_micro) {
    follow();
    int lane = threadIdx.x % WARP, row = (blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    if (row >= rows) return;
    Row r = read_row(labels, weights, row, width, micro, labels_micro, weights_micro);
    float loss = 0.0f;
    if (r.counts()) {
        i64 from = row * stride;
        loss = full ? cross_entropy_row((const float *)logits + from, r, class_weights, width, smoothing, lane)
                    : cross_entropy_row((const Element *)logits + from, r, class_weights, width, smoothing, lane);
    }
    if (lane == 0) row_losses[row] = loss;
}

// One block. Sums per thread, then over warps in order: the same bits every time.
extern "C" __global__ void __launch_bounds__(1024) sum_into(const float *values, int n, float *total) {
    follow();
    __shared__ double parts[32];
    double sum = 0.0;
#pragma unroll 4
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += values[i];
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = sum;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int i = 1; i < blockDim.x / WARP; i++) sum += parts[i];
    *total = (float)(*total + sum);
}

template <class T>
__device__ __forceinline__ void weighted_cross_entropy_grad_of(const T *logits, T *dlogits, const Row &r,
                                                               const float *class_weights, int width, float seed,
                                                               float smoothing, int accumulate, int lane) {
    float2 l = peak_and_sum(logits, width, lane);
    float whole = seed * r.weight;
    float spread = smoothing / width * whole, own = (1.0f - smoothing) * class_weights[r.label] * whole;
    float all = 0.0f;
    for (int column = lane; column < width; column += WARP) all += class_weights[column];
    float scale = (own + spread * warp_sum(all)) / l.y;
    for (int column = lane; column < width; column += WARP) {
        float value = expf(load(logits[column]) - l.x) * scale - spread * class_weights[column];
        if (column == r.label) value -= own;
        store(dlogits + column, accumulate ? load(dlogits[column]) + value : value);
    }
}

template <class T>
__device__ __forceinline__ void cross_entropy_row_grad(const T *logits, T *dlogits, const Row &r,
                                                       const float *class_weights, int width, float seed,
                                                       float smoothing, int accumulate, int lane) {
    if (!r.counts()) {
        if (!accumulate)
            for (int column = lane; column < width; column += WARP) store(dlogits + column, 0.0f);
        return;
    }
    if (class_weights) {
        weighted_cross_entropy_grad_of(logits, dlogits, r, class_weights, width, seed, smoothing, accumulate, lane);
        return;
    }
    float2 l = peak_and_sum(logits, width, lane);
    float whole = seed * r.weight, scale = whole / l.y;
    float spread = smoothing / width * whole, own = (1.0f - smoothing) * whole;
#pragma unroll 4
    for (int column = lane; column < width; column += WARP) {
        float value = expf(load(logits[column]) - l.x) * scale - spread;
        if (column == r.label) value -= own;
        store(dlogits + column, accumulate ? load(dlogits[column]) + value : value);
    }
}

extern "C" __global__ void cross_entropy_grad(const float *seed, const void *logits, const i64 *labels,
                                              const float *weights, const float *class_weights, void *dlogits,
                                              int rows, int width, i64 stride, i64 d_stride, float smoothing,
                                              int accumulate, int full, const int *micro, i64 labels_micro,
                                              i64 weights_micro) {
    follow();
    int lane = threadIdx.x % WARP, row = (blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    if (row >= rows) return;
    Row r = read_row(labels, weights, row, width, micro, labels_micro, weights_micro);
    i64 from = row * stride, to = row * d_stride;
    if (full)
        cross_entropy_row_grad((const float *)logits + from, (float *)dlogits + to, r, class_weights, width, *seed,
                               smoothing, accumulate, lane);
    else
        cross_entropy_row_grad((const Element *)logits + from, (Element *)dlogits + to, r, class_weights, width, *seed,
                               smoothing, accumulate, lane);
}

// Losses of one prediction each. Elements of weight zero do not count, whatever their target is.
struct BinaryCrossEntropy {
    static __device__ __forceinline__ float value(float z, float target) {
        return fmaxf(z, 0.0f) - z * target + log1pf(expf(-fabsf(z)));
    }
    static __device__ __forceinline__ float slope(float z, float target) { return 1.0f / (1.0f + expf(-z)) - target; }
};

struct SquaredError {
    static __device__ __forceinline__ float value(float x, float target) { return (x - target) * (x - target); }
    static __device__ __forceinline__ float slope(float x, float target) { return 2.0f * (x - target); }
};

// A row of the operands.
template <class T> struct Points {
    const T *x;
    const float *targets, *weights;
    int width, lane;

    template <class Curve> __device__ __forceinline__ float loss() const {
        float sum = 0.0f;
        for (int k = lane; k < width; k += WARP)
            if (weights[k] != 0.0f) sum += weights[k] * Curve::value(load(x[k]), targets[k]);
        return warp_sum(sum);
    }

    template <class Curve> __device__ __forceinline__ void gradient(T *dx, float seed, int accumulate) const {
        for (int k = lane; k < width; k += WARP) {
            float value = weights[k] != 0.0f ? seed * weights[k] * Curve::slope(load(x[k]), targets[k]) : 0.0f;
            store(dx + k, accumulate ? load(dx[k]) + value : value);
        }
    }
};

template <class T>
__device__ __forceinline__ void pointwise_row(const Points<T> &points, int squared, float *row_loss) {
    float loss = squared ? points.template loss<SquaredError>() : points.template loss<BinaryCrossEntropy>();
    if (points.lane == 0) *row_loss = loss;
}

extern "C" __global__ void pointwise_loss(const void *x, const float *targets, const float *weights, float *row_losses,
                                          int rows, int width, i64 x_stride, i64 targets_stride, i64 weights_stride,
                                          int squared, int full, const int *micro, i64 targets_micro, i64 weights_micro) {
    follow();
    int lane = threadIdx.x % WARP, row = (blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    if (row >= rows) return;
    i64 part = micro ? *micro : 0;
    targets += part * targets_micro + row * targets_stride, weights += part * weights_micro + row * weights_stride;
    if (full)
        pointwise_row(Points<float>{(const float *)x + row * x_stride, targets, weights, width, lane}, squared,
                      row_losses + row);
    else
        pointwise_row(Points<Element>{(const Element *)x + row * x_stride, targets, weights, width, lane}, squared,
                      row_losses + row);
}

template <class T>
__device__ __forceinline__ void pointwise_row_grad(const Points<T> &points, T *dx, float seed, int squared,
                                                   int accumulate) {
    if (squared) points.template gradient<SquaredError>(dx, seed, accumulate);
    else points.template gradient<BinaryCrossEntropy>(dx, seed, accumulate);
}

extern "C" __global__ void pointwise_loss_grad(const float *seed, const void *x, const float *targets,
                                               const float *weights, void *dx, int rows, int width, i64 x_stride,
                                               i64 targets_stride, i64 weights_stride, i64 dx_stride, int squared,
                                               int accumulate, int full, const int *micro, i64 targets_micro,
                                               i64 weights_micro) {
    follow();
    int lane = threadIdx.x % WARP, row = (blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    if (row >= rows) return;
    i64 part = micro ? *micro : 0;
    targets += part * targets_micro + row * targets_stride, weights += part * weights_micro + row * weights_stride;
    if (full)
        pointwise_row_grad(Points<float>{(const float *)x + row * x_stride, targets, weights, width, lane},
                           (float *)dx + row * dx_stride, *seed, squared, accumulate);
    else
        pointwise_row_grad(Points<Element>{(const Element *)x + row * x_stride, targets, weights, width, lane},
                           (Element *)dx + row * dx_stride, *seed, squared, accumulate);
}
