// The contrastive loss in tiles. A product computes a tile of dots; scores are s = exp(logit_scale) * dot.
//
// Forward, each tile is folded into running maxima and sums of its rows and of its columns. Rows of weight zero are
// padding and excluded: their maximum stays at minus infinity, their sum at zero.
// Backward: g = seed / 2 * (exp(s - row_lse) + exp(s - column_lse)) - seed * (row == column).
//
// With groups (else null) every pair within a group is positive: its target is shares[row] along rows and shares[column] along
// columns, in place of the diagonal's 1.
//
// A tile is [num_rows, num_columns] at row i and column j of the batch.

#define MINUS_INFINITY __int_as_float(0xff800000)
#define COLUMN_WARPS 16
#define GRAD_ROWS 8
#define GRAD_COLUMNS 128

extern "C" __global__ void contrastive_begin(float *row_peak, float *row_sum, float *column_peak, float *column_sum,
                                             int rows) {
    follow();
    int row = blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) return;
    row_peak[row] = column_peak[row] = MINUS_INFINITY;
    row_sum[row] = column_sum[row] = 0.0f;
}

// A warp per row. The second read of a row hits the cache.
extern "C" __global__ void contrastive_rows(const float *tile, int tile_stride, int i, int num_rows, int j,
                                            int num_columns, const float *weights, const float *logit_scale,
                                            const i64 *groups, const float *shares, float *row_peak, float *row_sum,
                                            float *diagonal) {
    follow();
    int lane = threadIdx.x % WARP, r = (blockIdx.x * blockDim.x + threadIdx.x) / WARP;
    if (r >= num_rows) return;
    tile += (i64)r * tile_stride;
    int row = i + r;
    float scale = expf(*logit_scale);
    if (!groups && lane == 0 && j <= row && row < j + num_columns) diagonal[row] = scale * tile[row - j];
    if (weights[row] == 0.0f) return;
    if (groups) {
        float positives = 0.0f;
        i64 group = groups[row];
#pragma unroll 4
        for (int c = lane; c < num_columns; c += WARP)
            if (weights[j + c] != 0.0f && groups[j + c] == group) positives += scale * tile[c];
        positives = warp_sum(positives);
        if (lane == 0) diagonal[row] = (j > 0 ? diagonal[row] : 0.0f) + shares[row] * positives;
    }
    float before = row_peak[row], peak = before, sum = 0.0f;
#pragma unroll 8
    for (int c = lane; c < num_columns; c += WARP)
        if (weights[j + c] != 0.0f) peak = fmaxf(peak, scale * tile[c]);
    peak = warp_max(peak);
    if (peak == MINUS_INFINITY) return;
#pragma unroll 8
    for (int c = lane; c < num_columns; c += WARP)
        if (weights[j + c] != 0.0f) sum += expf(scale * tile[c] - peak);
    sum = warp_sum(sum);
    if (lane > 0) return;
    row_sum[row] = row_sum[row] * expf(before - peak) + sum;
    row_peak[row] = peak;
}

// A lane per column; the block's warps share the rows.
extern "C" __global__ void __launch_bounds__(COLUMN_WARPS *WARP)
    contrastive_columns(const float *tile, int tile_stride, int i, int num_rows, int j, int num_columns,
                        const float *weights, const float *logit_scale, float *column_peak, float *column_sum) {
    follow();
    __shared__ float peaks[COLUMN_WARPS][WARP], sums[COLUMN_WARPS][WARP];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, c = blockIdx.x * WARP + lane;
    bool counts = c < num_columns && weights[j + c] != 0.0f;
    float scale = expf(*logit_scale);
    float before = counts ? column_peak[j + c] : MINUS_INFINITY, peak = before, sum = 0.0f;
    tile += c;
    if (counts) {
#pragma unroll 8
        for (int r = warp; r < num_rows; r += COLUMN_WARPS)
            if (weights[i + r] != 0.0f) peak = fmaxf(peak, scale * tile[(i64)r * tile_stride]);
    }
    peaks[warp][lane] = peak;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < COLUMN_WARPS; w++) peak = fmaxf(peak, peaks[w][lane]);
    // A column of padding has no maximum, and nothing to sum.
    counts = counts && peak != MINUS_INFINITY;
    if (counts) {
#pragma unroll 8
        for (int r = warp; r < num_rows; r += COLUMN_WARPS)
            if (weights[i + r] != 0.0f) sum += expf(scale * tile[(i64)r * tile_stride] - peak);
    }
    sums[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || !counts) return;
#pragma unroll
    for (int w = 1; w < COLUMN_WARPS; w++) sum += sums[w][lane];
    column_sum[j + c] = column_sum[j + c] * expf(before - peak) + sum;
    column_peak[j + c] = peak;
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

// One block, for the rows of this process.
extern "C" __global__ void __launch_bounds__(1024)
    contrastive_finish(const float *row_peak, const float *row_sum, const float *column_peak, const float *column_sum,
                       const float *diagonal, const float *weights, float *row_lse, float *column_lse, float *total,
                       int first, int end) {
    follow();
    double sum = 0.0;
    for (int row = first + threadIdx.x; row < end; row += blockDim.x) {
        float along = row_peak[row] + logf(row_sum[row]), across = column_peak[row] + logf(column_sum[row]);
        row_lse[row] = along;
        column_lse[row] = across;
        if (weights[row] != 0.0f) sum += 0.5 * ((double)along + (double)across) - (double)diagonal[row];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) *total = (float)(*total + sum);
}

// Grid: x = ceil(num_columns / GRAD_COLUMNS), y = ceil(num_rows / GRAD_ROWS); a block writes partials[y * gridDim.x + x].
// A warp per row, 4 columns per lane.
//
// Each direction's probabilities add up to one, so for the temperature's gradient scores may be taken relative to their
// log-sum-exp, whose rounding then cancels in the sum over all tiles.
extern "C" __global__ void __launch_bounds__(GRAD_ROWS *WARP)
    contrastive_grad_tile(float *tile, int tile_stride, int i, int num_rows, int j, int num_columns,
                          const float *weights, const float *logit_scale, const i64 *groups, const float *shares,
                          const float *row_lse, const float *column_lse, const float *seed, float *partials) {
    follow();
    __shared__ float row_parts[GRAD_ROWS];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, r = blockIdx.y * GRAD_ROWS + warp, row = i + r;
    float scale = expf(*logit_scale), half = 0.5f * *seed, share = 0.0f;
    if (r < num_rows) {
        bool row_counts = weights[row] != 0.0f;
        float along = row_lse[row];
        tile += (i64)r * tile_stride;
#pragma unroll
        for (int k = 0; k < GRAD_COLUMNS / WARP; k++) {
            int c = blockIdx.x * GRAD_COLUMNS + k * WARP + lane, column = j + c;
            if (c >= num_columns) continue;
            float gradient = 0.0f;
            if (row_counts && weights[column] != 0.0f) {
                float s = scale * tile[c], a = s - along, b = s - column_lse[column];
                float p = expf(a), q = expf(b);
                gradient = half * (p + q);
                share += p * a + q * b;
                if (groups) {
                    if (groups[row] == groups[column]) {
                        gradient -= half * (shares[row] + shares[column]);
                        share -= shares[row] * a + shares[column] * b;
                    }
                } else if (row == column) {
                    gradient -= 2.0f * half, share -= a + b;
                }
            }
            tile[c] = scale * gradient;
        }
    }
    share = warp_sum(share);
    if (lane == 0) row_parts[warp] = share;
    __syncthreads();
    if (threadIdx.x > 0) return;
#pragma unroll
    for (int w = 1; w < GRAD_ROWS; w++) share += row_parts[w];
    partials[blockIdx.y * gridDim.x + blockIdx.x] = half * share;
}

// One block.
extern "C" __global__ void __launch_bounds__(1024)
    contrastive_grad_scale(const float *partials, int n, float *dlogit_scale, int accumulate) {
    follow();
    double sum = 0.0;
#pragma unroll 4
    for (int k = threadIdx.x; k < n; k += blockDim.x) sum += partials[k];
    sum = block_sum(sum);
    if (threadIdx.x == 0) *dlogit_scale = (float)(accumulate ? *dlogit_scale + sum : sum);
}
