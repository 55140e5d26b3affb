// Layer norm: h = (x - mean) * rstd, y = h * gamma + beta over the last dimension.
//
// Backward, with g = dy * gamma: dx = (g - mean(g) - h * mean(g h)) * rstd, dgamma = sum of dy h, dbeta = sum of dy.
//
// A team of threads holds a row in registers, 16 bytes per access: a warp up to 1024 columns, a whole block up to 4096.
// The number of accesses per thread is a template argument, since registers cannot be indexed.

#define FORWARD_THREADS 128
#define BACKWARD_THREADS 256
#define BACKWARD_WARPS (BACKWARD_THREADS / WARP)
// Maximum columns per warp.
#define WARP_WIDTH 1024
// Accesses per 8 columns of a thread.
#define UNIT (8 / PACK)

struct alignas(16) Pack {
    union {
        uint4 raw;
        Element elements[PACK];
    };
    __device__ __forceinline__ float at(int i) const { return load(elements[i]); }
};

// Columns of a thread's k-th access: neighbours where rows are aligned, else every TEAM-th column, so that a warp
// still reads neighbours.
template <bool ALIGNED, int TEAM> struct Columns {
    int lane, width;

    __device__ __forceinline__ int column(int k, int i) const {
        return ALIGNED ? (k * TEAM + lane) * PACK + i : (k * PACK + i) * TEAM + lane;
    }
    __device__ __forceinline__ bool inside(int k, int i) const { return column(k, ALIGNED ? 0 : i) < width; }

    __device__ __forceinline__ Pack read(const Element *row, int k) const {
        Pack pack;
        pack.raw = make_uint4(0, 0, 0, 0);
        if (ALIGNED) {
            if (inside(k, 0)) pack.raw = *reinterpret_cast<const uint4 *>(row + column(k, 0));
        } else {
#pragma unroll
            for (int i = 0; i < PACK; i++)
                if (inside(k, i)) pack.elements[i] = row[column(k, i)];
        }
        return pack;
    }

    __device__ __forceinline__ void write(Element *row, int k, const Pack &pack) const {
        if (ALIGNED) {
            if (inside(k, 0)) *reinterpret_cast<uint4 *>(row + column(k, 0)) = pack.raw;
        } else {
#pragma unroll
            for (int i = 0; i < PACK; i++)
                if (inside(k, i)) row[column(k, i)] = pack.elements[i];
        }
    }

    // Reads parameters; zero outside of the row.
    __device__ __forceinline__ void read(const float *row, int k, float (&values)[PACK]) const {
        if (ALIGNED) {
#pragma unroll
            for (int i = 0; i < PACK; i += 4) {
                float4 four = make_float4(0, 0, 0, 0);
                if (inside(k, 0)) four = read_again(reinterpret_cast<const float4 *>(row + column(k, i)));
                values[i] = four.x, values[i + 1] = four.y, values[i + 2] = four.z, values[i + 3] = four.w;
            }
        } else {
#pragma unroll
            for (int i = 0; i < PACK; i++) values[i] = inside(k, i) ? read_again(row + column(k, i)) : 0.0f;
        }
    }

    __device__ __forceinline__ void write(float *row, int k, const float (&values)[PACK]) const {
#pragma unroll
        for (int i = 0; i < PACK; i++)
            if (inside(k, i)) row[column(k, i)] = values[i];
    }
};

// Two sums over a team in one pass; every thread gets them.
template <int TEAM> __device__ __forceinline__ float2 team_sum(float2 value) {
    value = make_float2(warp_sum(value.x), warp_sum(value.y));
    if (TEAM == WARP) return value;
    __shared__ float2 parts[TEAM / WARP];
    __syncthreads();
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = value;
    __syncthreads();
    value = parts[0];
#pragma unroll
    for (int i = 1; i < TEAM / WARP; i++) value.x += parts[i].x, value.y += parts[i].y;
    return value;
}

struct Forward {
    const Element *x;
    const float *gamma, *beta;
    Element *y;
    float *mean, *rstd;
    i64 rows;
    int width;
    i64 x_stride, y_stride;
    float eps;
};

template <bool ALIGNED, int TEAM, int COUNT> __device__ __forceinline__ void forward(const Forward &f) {
    Columns<ALIGNED, TEAM> columns = {(int)threadIdx.x % TEAM, f.width};
    constexpr int TEAMS = FORWARD_THREADS / TEAM;
    float inverse_width = 1.0f / f.width;
    for (i64 row = (i64)blockIdx.x * TEAMS + threadIdx.x / TEAM; row < f.rows; row += (i64)gridDim.x * TEAMS) {
        Pack x[COUNT];
        float sum = 0.0f;
#pragma unroll
        for (int k = 0; k < COUNT; k++) x[k] = columns.read(f.x + row * f.x_stride, k);
#pragma unroll
        for (int k = 0; k < COUNT; k++)
#pragma unroll
            for (int i = 0; i < PACK; i++) sum += x[k].at(i);
        float center = team_sum<TEAM>(make_float2(sum, 0.0f)).x * inverse_width;
        float squares = 0.0f;
#pragma unroll
        for (int k = 0; k < COUNT; k++)
#pragma unroll
            for (int i = 0; i < PACK; i++)
                if (columns.inside(k, i)) squares += (x[k].at(i) - center) * (x[k].at(i) - center);
        float variance = team_sum<TEAM>(make_float2(squares, 0.0f)).x * inverse_width;
        float scale = 1.0f / sqrtf(variance + f.eps);
#pragma unroll
        for (int k = 0; k < COUNT; k++) {
            float gamma[PACK], beta[PACK];
            columns.read(f.gamma, k, gamma);
            columns.read(f.beta, k, beta);
            Pack y;
#pragma unroll
            for (int i = 0; i < PACK; i++)
                store(&y.elements[i], (x[k].at(i) - center) * scale * gamma[i] + beta[i]);
            columns.write(f.y + row * f.y_stride, k, y);
        }
        if (columns.lane == 0) {
            if (f.mean) f.mean[row] = center;
            if (f.rstd) f.rstd[row] = scale;
        }
    }
}

extern "C" __global__ void __launch_bounds__(FORWARD_THREADS, 8)
    layer_norm(const Element *x, const float *gamma, const float *beta, Element *y, float *mean, float *rstd, i64 rows,
               int width, i64 x_stride, i64 y_stride, float eps) {
    follow();
    Forward f = {x, gamma, beta, y, mean, rstd, rows, width, x_stride, y_stride, eps};
    bool packs = (width | x_stride | y_stride) % PACK == 0 && aligned(x) && aligned(y);
    if (width > WARP_WIDTH) {
        if (packs) forward<true, FORWARD_THREADS, 4 * UNIT>(f);
        else forward<false, FORWARD_THREADS, 4 * UNIT>(f);
    } else if (!packs) forward<false, WARP, 4 * UNIT>(f);
    else if (width <= 256) forward<true, WARP, UNIT>(f);
    else if (width <= 512) forward<true, WARP, 2 * UNIT>(f);
    else if (width <= 768) forward<true, WARP, 3 * UNIT>(f);
    else forward<true, WARP, 4 * UNIT>(f);
}

struct Backward {
    const Element *dy, *x;
    const float *gamma, *mean, *rstd;
    Element *dx;
    float *partials;
    i64 rows;
    int width;
    i64 dy_stride, x_stride, dx_stride;
    bool accumulate;
};

// Adds up each warp's part of a row, in order.
template <bool ALIGNED, int TEAM, int COUNT>
__device__ __forceinline__ void add_warps(const Columns<ALIGNED, TEAM> &columns, const float (&values)[COUNT][PACK],
                                          float *shared, float *total) {
    __syncthreads();
#pragma unroll
    for (int k = 0; k < COUNT; k++) columns.write(shared + threadIdx.x / WARP * WARP_WIDTH, k, values[k]);
    __syncthreads();
    for (int column = threadIdx.x; column < columns.width; column += BACKWARD_THREADS) {
        float sum = 0.0f;
#pragma unroll
        for (int warp = 0; warp < BACKWARD_WARPS; warp++) sum += shared[warp * WARP_WIDTH + column];
        total[column] = sum;
    }
}

// `shared` holds a row per warp.
template <bool ALIGNED, int TEAM, int COUNT>
__device__ __forceinline__ void backward(const Backward &f, float *shared) {
    Columns<ALIGNED, TEAM> columns = {(int)threadIdx.x % TEAM, f.width};
    constexpr int TEAMS = BACKWARD_THREADS / TEAM;
    float inverse_width = 1.0f / f.width;
    float dgamma[COUNT][PACK], dbeta[COUNT][PACK];
#pragma unroll
    for (int k = 0; k < COUNT; k++)
#pragma unroll
        for (int i = 0; i < PACK; i++) dgamma[k][i] = dbeta[k][i] = 0.0f;
    for (i64 row = (i64)blockIdx.x * TEAMS + threadIdx.x / TEAM; row < f.rows; row += (i64)gridDim.x * TEAMS) {
        Pack x[COUNT], dy[COUNT];
#pragma unroll
        for (int k = 0; k < COUNT; k++) {
            x[k] = columns.read(f.x + row * f.x_stride, k);
            dy[k] = columns.read(f.dy + row * f.dy_stride, k);
        }
        float center = f.mean[row], scale = f.rstd[row];
        float2 sums = make_float2(0.0f, 0.0f);
#pragma unroll
        for (int k = 0; k < COUNT; k++) {
            float gamma[PACK];
            columns.read(f.gamma, k, gamma);
#pragma unroll
            for (int i = 0; i < PACK; i++) {
                // Outside of the row dy is zero, and so is every term.
                float h = (x[k].at(i) - center) * scale, d = dy[k].at(i);
                dgamma[k][i] += d * h;
                dbeta[k][i] += d;
                sums.x += d * gamma[i];
                sums.y += d * gamma[i] * h;
            }
        }
        if (!f.dx) continue;
        sums = team_sum<TEAM>(sums);
        float mean_g = sums.x * inverse_width, mean_gh = sums.y * inverse_width;
        Element *dx_row = f.dx + row * f.dx_stride;
#pragma unroll
        for (int k = 0; k < COUNT; k++) {
            float gamma[PACK];
            columns.read(f.gamma, k, gamma);
            Pack dx;
            if (f.accumulate) dx = columns.read(dx_row, k);
#pragma unroll
            for (int i = 0; i < PACK; i++) {
                float h = (x[k].at(i) - center) * scale;
                float value = (dy[k].at(i) * gamma[i] - mean_g - h * mean_gh) * scale;
                store(&dx.elements[i], f.accumulate ? dx.at(i) + value : value);
            }
            columns.write(dx_row, k, dx);
        }
    }
    if (!f.partials) return;
    float *part = f.partials + (i64)blockIdx.x * 2 * f.width;
    if (TEAM == BACKWARD_THREADS) {
#pragma unroll
        for (int k = 0; k < COUNT; k++) {
            columns.write(part, k, dgamma[k]);
            columns.write(part + f.width, k, dbeta[k]);
        }
    } else {
        add_warps<ALIGNED, TEAM, COUNT>(columns, dgamma, shared, part);
        add_warps<ALIGNED, TEAM, COUNT>(columns, dbeta, shared, part + f.width);
    }
}

// Two blocks per multiprocessor keep enough rows in flight; f32 rows take twice the registers.
extern "C" __global__ void __launch_bounds__(BACKWARD_THREADS, ELEMENT == 0 ? 1 : 2)
    layer_norm_grad(const Element *dy, const Element *x, const float *gamma, const float *mean, const float *rstd,
                    Element *dx, float *partials, i64 rows, int width, i64 dy_stride, i64 x_stride, i64 dx_stride,
                    int accumulate) {
    follow();
    __shared__ float shared[BACKWARD_WARPS * WARP_WIDTH];
    if (!dx) dx_stride = 0;
    Backward f = {dy, x, gamma, mean, rstd, dx, partials, rows, width, dy_stride, x_stride, dx_stride, accumulate != 0};
    bool packs = (width | dy_stride | x_stride | dx_stride) % PACK == 0 && aligned(dy) && aligned(x) && aligned(dx);
    if (width > WARP_WIDTH) {
        if (packs) backward<true, BACKWARD_THREADS, 2 * UNIT>(f, shared);
        else backward<false, BACKWARD_THREADS, 2 * UNIT>(f, shared);
    } else if (!packs) backward<false, WARP, 4 * UNIT>(f, shared);
    else if (width <= 256) backward<true, WARP, UNIT>(f, shared);
    else if (width <= 512) backward<true, WARP, 2 * UNIT>(f, shared);
    else if (width <= 768) backward<true, WARP, 3 * UNIT>(f, shared);
    else backward<true, WARP, 4 * UNIT>(f, shared);
}

// A lane per column of [dgamma, dbeta]; the block's 16 warps share the parts.
extern "C" __global__ void __launch_bounds__(512)
    layer_norm_grad_finish(const float *partials, int parts, int width, float *dgamma, float *dbeta, int accumulate) {
    follow();
    __shared__ float shared[16][WARP];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, column = blockIdx.x * WARP + lane;
    float sum = 0.0f;
    if (column < 2 * width) {
#pragma unroll 4
        for (int part = warp; part < parts; part += 16) sum += partials[(i64)part * 2 * width + column];
    }
    shared[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || column >= 2 * width) return;
    float *total = column < width ? dgamma : dbeta;
    if (!total) return;
    total += column < width ? column : column - width;
#pragma unroll
    for (int i = 1; i < 16; i++) sum += shared[i][lane];
    *total = accumulate ? *total + sum : sum;
}
