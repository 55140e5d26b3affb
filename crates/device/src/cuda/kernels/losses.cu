// Cross-entropy over rows of f32 logits, a warp per row:
// loss = w * (logsumexp(logits) - target . logits), dlogits = seed * w * (softmax - target).
//
// Rows of weight zero and of negative label count nothing. `micro` says which micro-batch this is: labels and weights are
// those of the whole batch.

struct Row {
    i64 label;
    float weight;
    __device__ __forceinline__ bool counts() const { return label >= 0 && weight != 0.0f; }
};

__device__ __forceinline__ Row read_row(const i64 *labels, const float *weights, int row, int width, const int *micro,
                                        i64 labels_micro, i64 weights_micro) {
    i64 part = micro ? *micro : 0;
    Row r = {labels[part * labels_micro + row], weights[part * weights_micro + row]};
    // A label that is no class must not reach for memory that is not there: it makes itself seen in the loss.
    if (r.label >= width) r.label = 0, r.weight = __int_as_float(0x7fffffff);
    return r;
}

// Largest logit and sum of exp(logit - largest).
__device__ __forceinline__ float2 peak_and_sum(const float *logits, int width, int lane) {
    float peak = __int_as_float(0xff800000), sum = 0.0f;
#pragma unroll 8
    for (int column = lane; column < width; column += WARP) peak = fmaxf(peak, logits[column]);
    peak = warp_max(peak);
#pragma unroll 8
    for (int column = lane; column < width; column += WARP) sum += expf(logits[column] - peak);
    return make_float2(peak, warp_sum(sum));
}

extern "C" __global__ void cross_entropy(const float *logits, const i64 *labels, const float *weights, float *row_losses,
                                         int rows, int width, i64 stride, float smoothing, const int *micro,
                                         i64 labels_micro, i64 weights_micro) {
    follow();
    int lane = threadIdx.x % WARP, row = (blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    if (row >= rows) return;
    logits += row * stride;
    Row r = read_row(labels, weights, row, width, micro, labels_micro, weights_micro);
    float loss = 0.0f;
    if (r.counts()) {
        float2 l = peak_and_sum(logits, width, lane);
        float target = logits[r.label];
        if (smoothing > 0.0f) {
            float sum = 0.0f;
#pragma unroll 8
            for (int column = lane; column < width; column += WARP) sum += logits[column];
            target = (1.0f - smoothing) * target + smoothing * (warp_sum(sum) / width);
        }
        loss = r.weight * (l.x + logf(l.y) - target);
    }
    if (lane == 0) row_losses[row] = loss;
}

// One block. Every thread's share, then the warps in order: the same bits every time.
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

extern "C" __global__ void cross_entropy_grad(const float *seed, const float *logits, const i64 *labels,
                                              const float *weights, float *dlogits, int rows, int width, i64 stride,
                                              i64 d_stride, float smoothing, int accumulate, const int *micro,
                                              i64 labels_micro, i64 weights_micro) {
    follow();
    int lane = threadIdx.x % WARP, row = (blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    if (row >= rows) return;
    logits += row * stride, dlogits += row * d_stride;
    Row r = read_row(labels, weights, row, width, micro, labels_micro, weights_micro);
    if (!r.counts()) {
        if (!accumulate)
            for (int column = lane; column < width; column += WARP) dlogits[column] = 0.0f;
        return;
    }
    float2 l = peak_and_sum(logits, width, lane);
    float whole = *seed * r.weight, scale = whole / l.y;
    float spread = smoothing / width * whole, own = (1.0f - smoothing) * whole;
#pragma unroll 4
    for (int column = lane; column < width; column += WARP) {
        float value = expf(logits[column] - l.x) * scale - spread;
        if (column == r.label) value -= own;
        dlogits[column] = accumulate ? dlogits[column] + value : value;
    }
}
