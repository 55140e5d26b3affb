// Bias gradients: sums over the rows of dz, db[c] += sum over n of dz[n, c].
//
// Two launches for many rows (each part of the rows to its own partial sums, then the partial sums in order), one for few rows.

#define SUM_WARPS 8
#define ONCE_THREADS 1024
// Lanes side by side in a row: few, so that there are enough blocks although each takes all rows.
#define ONCE_LANES 4
#define FINISH_WARPS 16

template <class T> __device__ __forceinline__ bool in_packs(const T *dz, int width, i64 stride) {
    return (width | stride) % (i64)(16 / sizeof(T)) == 0 && ((u64)dz & 15) == 0;
}

// The i-th column of a lane, of LANES * N from the block's first: neighbours where rows are aligned, else every LANES-th column.
template <bool ALIGNED, int LANES, int N> __device__ __forceinline__ int column_of(int lane, int i) {
    return ALIGNED ? lane * N + i : i * LANES + lane;
}

// Adds every step-th row from `row` on to a lane's N sums.
template <bool ALIGNED, int LANES, class T, int N>
__device__ __forceinline__ void add_rows(const T *dz, i64 row, i64 rows, i64 step, int width, i64 stride, int first,
                                         int lane, float (&sums)[N]) {
    if (ALIGNED) {
        if (first + lane * N >= width) return;
        dz += first + lane * N;
#pragma unroll 4
        for (; row < rows; row += step) {
            float values[N];
            load_pack(dz + row * stride, values);
#pragma unroll
            for (int i = 0; i < N; i++) sums[i] += values[i];
        }
    } else {
        for (; row < rows; row += step)
#pragma unroll
            for (int i = 0; i < N; i++) {
                int column = first + column_of<false, LANES, N>(lane, i);
                if (column < width) sums[i] += load(dz[row * stride + column]);
            }
    }
}

template <bool ALIGNED, class T>
__device__ __forceinline__ void sum_part(const T *dz, float *partials, i64 rows, int width, i64 stride) {
    constexpr int N = 16 / sizeof(T);
    __shared__ float shared[SUM_WARPS][WARP * N];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, first = blockIdx.x * WARP * N;
    float sums[N] = {};
    add_rows<ALIGNED, WARP>(dz, (i64)blockIdx.y * SUM_WARPS + warp, rows, (i64)gridDim.y * SUM_WARPS, width, stride,
                            first, lane, sums);
#pragma unroll
    for (int i = 0; i < N; i++) shared[warp][column_of<ALIGNED, WARP, N>(lane, i)] = sums[i];
    __syncthreads();
    int column = threadIdx.x;
    if (column >= WARP * N || first + column >= width) return;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < SUM_WARPS; i++) sum += shared[i][column];
    partials[(i64)blockIdx.y * width + first + column] = sum;
}

template <bool ALIGNED, class T>
__device__ __forceinline__ void sum_once(const T *dz, float *dbias, i64 rows, int width, i64 stride, int inert_from,
                                         int inert_to) {
    constexpr int N = 16 / sizeof(T);
    __shared__ float shared[ONCE_THREADS / WARP][ONCE_LANES * N];
    int lane = threadIdx.x % ONCE_LANES, first = blockIdx.x * ONCE_LANES * N;
    float sums[N] = {};
    add_rows<ALIGNED, ONCE_LANES>(dz, threadIdx.x / ONCE_LANES, rows, ONCE_THREADS / ONCE_LANES, width, stride, first,
                                  lane, sums);
#pragma unroll
    for (int i = 0; i < N; i++) {
#pragma unroll
        for (int offset = ONCE_LANES; offset < WARP; offset *= 2) sums[i] += __shfl_xor_sync(ALL_LANES, sums[i], offset);
        if (threadIdx.x % WARP < ONCE_LANES)
            shared[threadIdx.x / WARP][column_of<ALIGNED, ONCE_LANES, N>(lane, i)] = sums[i];
    }
    __syncthreads();
    int column = first + threadIdx.x;
    if (threadIdx.x >= ONCE_LANES * N || column >= width || (inert_from <= column && column < inert_to)) return;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < ONCE_THREADS / WARP; i++) sum += shared[i][threadIdx.x];
    dbias[column] += sum;
}

extern "C" __global__ void __launch_bounds__(SUM_WARPS *WARP)
    column_sums(const Element *dz, float *partials, i64 rows, int width, i64 stride) {
    follow();
    if (in_packs(dz, width, stride)) sum_part<true>(dz, partials, rows, width, stride);
    else sum_part<false>(dz, partials, rows, width, stride);
}

extern "C" __global__ void __launch_bounds__(SUM_WARPS *WARP)
    column_sums_f32(const float *dz, float *partials, i64 rows, int width, i64 stride) {
    follow();
    if (in_packs(dz, width, stride)) sum_part<true>(dz, partials, rows, width, stride);
    else sum_part<false>(dz, partials, rows, width, stride);
}

extern "C" __global__ void __launch_bounds__(ONCE_THREADS)
    column_sums_once(const Element *dz, float *dbias, i64 rows, int width, i64 stride, int inert_from, int inert_to) {
    follow();
    if (in_packs(dz, width, stride)) sum_once<true>(dz, dbias, rows, width, stride, inert_from, inert_to);
    else sum_once<false>(dz, dbias, rows, width, stride, inert_from, inert_to);
}

extern "C" __global__ void __launch_bounds__(ONCE_THREADS)
    column_sums_once_f32(const float *dz, float *dbias, i64 rows, int width, i64 stride, int inert_from, int inert_to) {
    follow();
    if (in_packs(dz, width, stride)) sum_once<true>(dz, dbias, rows, width, stride, inert_from, inert_to);
    else sum_once<false>(dz, dbias, rows, width, stride, inert_from, inert_to);
}

// A lane per column; the block's warps share the parts. blockIdx.y: consecutive sums, each of its own parts.
extern "C" __global__ void __launch_bounds__(FINISH_WARPS *WARP)
    column_sums_finish(const float *partials, int parts, int width, float *dbias, int inert_from, int inert_to) {
    follow();
    __shared__ float shared[FINISH_WARPS][WARP];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, column = blockIdx.x * WARP + lane;
    partials += (i64)blockIdx.y * parts * width;
    dbias += (i64)blockIdx.y * width;
    float sum = 0.0f;
    if (column < width) {
#pragma unroll 4
        for (int part = warp; part < parts; part += FINISH_WARPS) sum += partials[(i64)part * width + column];
    }
    shared[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || column >= width || (inert_from <= column && column < inert_to)) return;
#pragma unroll
    for (int i = 1; i < FINISH_WARPS; i++) sum += shared[i][lane];
    dbias[column] += sum;
}
