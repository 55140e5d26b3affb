// Dice and Tversky losses from sums: TP, P and G of each class, a row for each sample of the whole batch.
//
// There are few numbers: one block, in f64.

#define LOSS_THREADS 256
#define LOSS_WARPS (LOSS_THREADS / WARP)

// Sum over the block; every thread gets it.
__device__ __forceinline__ double block_total(double value) {
    __shared__ double parts[LOSS_WARPS];
    value = warp_sum(value);
    __syncthreads();
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = value;
    __syncthreads();
    double sum = parts[0];
#pragma unroll
    for (int warp = 1; warp < LOSS_WARPS; warp++) sum += parts[warp];
    return sum;
}

// T = (TP + smooth) / (TP + alpha FP + beta FN + smooth), and its derivatives by TP, P and G.
struct Tversky {
    double alpha, beta, smooth;

    __device__ __forceinline__ double value(const double (&s)[3], double (&slopes)[3]) const {
        double below = s[0] + alpha * (s[1] - s[0]) + beta * (s[2] - s[0]) + smooth;
        slopes[0] = slopes[1] = slopes[2] = 0.0;
        if (below == 0.0) return 1.0;
        double t = (s[0] + smooth) / below;
        slopes[0] = (1.0 - (1.0 - alpha - beta) * t) / below, slopes[1] = -alpha * t / below, slopes[2] = -beta * t / below;
        return t;
    }
};

// Rows of sums, and their weights; rows of weight zero do not count.
struct Sums {
    const float *sums, *weights;
    i64 stride;
    int rows;

    // Sums of a class over all rows; every thread gets them.
    __device__ __forceinline__ void over_rows(int k, double (&all)[3]) const {
        double own[3] = {};
        for (int row = threadIdx.x; row < rows; row += LOSS_THREADS)
            if (weights[row] != 0.0f)
                for (int i = 0; i < 3; i++) own[i] += (double)weights[row] * sums[row * stride + 3 * k + i];
        for (int i = 0; i < 3; i++) all[i] = block_total(own[i]);
    }

    __device__ __forceinline__ void of_row(int row, int k, double (&one)[3]) const {
        for (int i = 0; i < 3; i++) one[i] = sums[row * stride + 3 * k + i];
    }
};

// One block. `batch`: one overlap of all rows, else one per row.
extern "C" __global__ void __launch_bounds__(LOSS_THREADS)
    overlap_loss(const float *sums, const float *weights, float *total, int rows, int classes, i64 stride, int first_class,
                 int batch, float alpha, float beta, float smooth, const int *micro, i64 sums_micro, i64 weights_micro) {
    follow();
    i64 part = micro ? *micro : 0;
    Sums s = {sums + part * sums_micro, weights + part * weights_micro, stride, rows};
    Tversky tversky = {alpha, beta, smooth};
    double loss = 0.0, of[3], slopes[3];
    for (int k = first_class; k < classes; k++) {
        if (batch) {
            s.over_rows(k, of);
            if (threadIdx.x == 0) loss += 1.0 - tversky.value(of, slopes);
        } else {
            for (int row = threadIdx.x; row < rows; row += LOSS_THREADS) {
                if (s.weights[row] == 0.0f) continue;
                s.of_row(row, k, of);
                loss += s.weights[row] * (1.0 - tversky.value(of, slopes));
            }
        }
    }
    loss = block_total(loss);
    if (threadIdx.x == 0) *total = (float)(*total + loss / (classes - first_class));
}

extern "C" __global__ void __launch_bounds__(LOSS_THREADS)
    overlap_loss_grad(const float *seed, const float *sums, const float *weights, float *dsums, int rows, int classes, i64 stride,
                      i64 d_stride, int first_class, int batch, float alpha, float beta, float smooth, int accumulate,
                      const int *micro, i64 sums_micro, i64 weights_micro, i64 dsums_micro) {
    follow();
    i64 part = micro ? *micro : 0;
    Sums s = {sums + part * sums_micro, weights + part * weights_micro, stride, rows};
    Tversky tversky = {alpha, beta, smooth};
    dsums += part * dsums_micro;
    double each = (double)*seed / (classes - first_class), of[3], slopes[3] = {};
#pragma unroll 1
    for (int k = 0; k < classes; k++) {
        bool counts = k >= first_class;
        if (batch && counts) {
            s.over_rows(k, of);
            tversky.value(of, slopes);
        }
        for (int row = threadIdx.x; row < rows; row += LOSS_THREADS) {
            float weight = counts ? s.weights[row] : 0.0f;
            if (!batch && weight != 0.0f) {
                s.of_row(row, k, of);
                tversky.value(of, slopes);
            }
            float *to = dsums + row * d_stride + 3 * k;
            for (int i = 0; i < 3; i++) {
                float value = weight != 0.0f ? (float)(-each * weight * slopes[i]) : 0.0f;
                to[i] = accumulate ? to[i] + value : value;
            }
        }
    }
}
