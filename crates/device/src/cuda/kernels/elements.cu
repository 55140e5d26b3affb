// Element-wise operations and row normalisation.
//
// All kernels but `normalize` run at memory bandwidth: a thread moves 16 bytes where rows are aligned, otherwise one number.
// Loops are grid-strided; a grid that gives each thread one access is the fastest.

// Calls packed(start) for every full pack of n numbers, single(at) for each remaining number.
template <int STEP, class Packed, class Single>
__device__ __forceinline__ void for_flat(i64 n, Packed packed, Single single) {
    i64 num_packs = n / STEP;
    for (i64 at = first_thread(); at < num_packs; at += all_threads()) packed(at * STEP);
    for (i64 at = num_packs * STEP + first_thread(); at < n; at += all_threads()) single(at);
}

template <class T>
__device__ __forceinline__ void fill_all(T *y, float value, i64 n) {
    constexpr int STEP = 16 / sizeof(T);
    float values[STEP];
#pragma unroll
    for (int i = 0; i < STEP; i++) values[i] = value;
    for_flat<STEP>(n, [&](i64 at) { store_pack(y + at, values); }, [&](i64 at) { store(y + at, value); });
}

extern "C" __global__ void fill(Element *y, float value, i64 n) { follow(); fill_all(y, value, n); }

struct Span {
    char *start; // aligned to 256 bytes
    i64 bytes;   // a multiple of two
};

// A block per span. The bytes after the last whole 16 are cleared by twos.
extern "C" __global__ void clear_spans(const Span *spans) {
    follow();
    Span span = spans[blockIdx.x];
    i64 packed = span.bytes / 16 * 16;
    for (i64 at = 16 * threadIdx.x; at < packed; at += 16 * blockDim.x)
        *reinterpret_cast<uint4 *>(span.start + at) = make_uint4(0, 0, 0, 0);
    for (i64 at = packed + 2 * threadIdx.x; at < span.bytes; at += 2 * blockDim.x)
        *reinterpret_cast<u16 *>(span.start + at) = 0;
}

extern "C" __global__ void fill_f32(float *y, float value, i64 n) { follow(); fill_all(y, value, n); }

extern "C" __global__ void add(Element *y, const Element *a, const Element *b, i64 rows, int width, i64 y_stride,
                               i64 a_stride, i64 b_stride) {
    follow();
    bool packs = (width | y_stride | a_stride | b_stride) % PACK == 0 && aligned(y) && aligned(a) && aligned(b);
    i64 columns = width;
    if (y_stride == width && a_stride == width && b_stride == width) columns *= rows, rows = 1;
    if (packs) {
        for_places<PACK>(rows, columns, [&](i64 row, i64 column) {
            float left[PACK], right[PACK];
            load_pack(a + row * a_stride + column, left);
            load_pack(b + row * b_stride + column, right);
#pragma unroll
            for (int i = 0; i < PACK; i++) left[i] += right[i];
            store_pack(y + row * y_stride + column, left);
        });
    } else {
        for_places<1>(rows, columns, [&](i64 row, i64 column) {
            float sum = load(a[row * a_stride + column]) + load(b[row * b_stride + column]);
            store(y + row * y_stride + column, sum);
        });
    }
}

template <class T>
__device__ __forceinline__ void add_rows_into(T *y, const T *x, i64 rows, i64 width, i64 y_stride, i64 x_stride,
                                              int accumulate) {
    constexpr int STEP = 16 / sizeof(T);
    bool packs = (width | y_stride | x_stride) % STEP == 0 && aligned(y) && aligned(x);
    if (y_stride == width && x_stride == width) width *= rows, rows = 1;
    if (packs) {
        for_places<STEP>(rows, width, [&](i64 row, i64 column) {
            T *to = y + row * y_stride + column;
            const T *from = x + row * x_stride + column;
            // A plain copy of bits: NaNs keep their payload and nothing is converted.
            if (!accumulate) {
                *reinterpret_cast<uint4 *>(to) = *reinterpret_cast<const uint4 *>(from);
                return;
            }
            float values[STEP], before[STEP];
            load_pack(from, values);
            load_pack(to, before);
#pragma unroll
            for (int i = 0; i < STEP; i++) values[i] += before[i];
            store_pack(to, values);
        });
    } else {
        for_places<1>(rows, width, [&](i64 row, i64 column) {
            T *to = y + row * y_stride + column;
            T from = x[row * x_stride + column];
            if (accumulate) store(to, load(*to) + load(from));
            else *to = from;
        });
    }
}

extern "C" __global__ void add_into(Element *y, const Element *x, i64 rows, int width, i64 y_stride, i64 x_stride,
                                    int accumulate, const int *micro, i64 y_micro, i64 x_micro) {
    follow();
    i64 part = micro ? *micro : 0;
    add_rows_into(y + part * y_micro, x + part * x_micro, rows, width, y_stride, x_stride, accumulate);
}

extern "C" __global__ void add_into_f32(float *y, const float *x, i64 rows, int width, i64 y_stride, i64 x_stride,
                                        int accumulate, const int *micro, i64 y_micro, i64 x_micro) {
    follow();
    i64 part = micro ? *micro : 0;
    add_rows_into(y + part * y_micro, x + part * x_micro, rows, width, y_stride, x_stride, accumulate);
}

// Four at a time: the floats are the larger side.
__device__ __forceinline__ void load_four(const Element *from, float (&values)[4]) {
#if ELEMENT == 0
    load_pack(from, values);
#else
    union {
        uint2 raw;
        Element elements[4];
    } four;
    four.raw = *reinterpret_cast<const uint2 *>(from);
#pragma unroll
    for (int i = 0; i < 4; i++) values[i] = load(four.elements[i]);
#endif
}

__device__ __forceinline__ void store_four(Element *to, const float (&values)[4]) {
#if ELEMENT == 0
    store_pack(to, values);
#else
    union {
        uint2 raw;
        Element elements[4];
    } four;
#pragma unroll
    for (int i = 0; i < 4; i++) store(&four.elements[i], values[i]);
    *reinterpret_cast<uint2 *>(to) = four.raw;
#endif
}

extern "C" __global__ void cast_down(Element *y, const float *x, i64 n) {
    follow();
    for_flat<4>(
        n,
        [&](i64 at) {
            float values[4];
            load_pack(x + at, values);
            store_four(y + at, values);
        },
        [&](i64 at) { store(y + at, x[at]); });
}

extern "C" __global__ void cast_up(float *y, const Element *x, i64 n, int accumulate) {
    follow();
    for_flat<4>(
        n,
        [&](i64 at) {
            float values[4], before[4];
            load_four(x + at, values);
            if (accumulate) {
                load_pack(y + at, before);
#pragma unroll
                for (int i = 0; i < 4; i++) values[i] += before[i];
            }
            store_pack(y + at, values);
        },
        [&](i64 at) { y[at] = load(x[at]) + (accumulate ? y[at] : 0.0f); });
}

// Like cast_down, for rows with gaps: columns of a wider value, a token of each sample.
extern "C" __global__ void cast_down_rows(Element *y, const float *x, i64 rows, int width, i64 y_stride, i64 x_stride,
                                          int accumulate) {
    follow();
    i64 step = (i64)gridDim.x * blockDim.x;
    for (i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x; at < rows * width; at += step) {
        i64 row = at / width, column = at % width;
        Element *to = y + row * y_stride + column;
        store(to, x[row * x_stride + column] + (accumulate ? load(*to) : 0.0f));
    }
}

extern "C" __global__ void cast_up_rows(float *y, const Element *x, i64 rows, int width, i64 y_stride, i64 x_stride,
                                        int accumulate) {
    follow();
    i64 step = (i64)gridDim.x * blockDim.x;
    for (i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x; at < rows * width; at += step) {
        i64 row = at / width, column = at % width;
        float *to = y + row * y_stride + column;
        *to = load(x[row * x_stride + column]) + (accumulate ? *to : 0.0f);
    }
}

template <class Curve>
__device__ __forceinline__ void activate(Element *y, const Element *z, i64 n) {
    for_flat<PACK>(
        n,
        [&](i64 at) {
            float values[PACK];
            load_pack(z + at, values);
#pragma unroll
            for (int i = 0; i < PACK; i++) values[i] = Curve::value(values[i]);
            store_pack(y + at, values);
        },
        [&](i64 at) { store(y + at, Curve::value(load(z[at]))); });
}

template <class Curve>
__device__ __forceinline__ void activate_grad(Element *dy, const Element *z, i64 n) {
    for_flat<PACK>(
        n,
        [&](i64 at) {
            float values[PACK], gradient[PACK];
            load_pack(z + at, values);
            load_pack(dy + at, gradient);
#pragma unroll
            for (int i = 0; i < PACK; i++) gradient[i] *= Curve::slope(values[i]);
            store_pack(dy + at, gradient);
        },
        [&](i64 at) { store(dy + at, load(dy[at]) * Curve::slope(load(z[at]))); });
}

extern "C" __global__ void activate_quick(Element *y, const Element *z, i64 n) { follow(); activate<Quick>(y, z, n); }

extern "C" __global__ void activate_erf(Element *y, const Element *z, i64 n) { follow(); activate<Erf>(y, z, n); }

extern "C" __global__ void activate_relu(Element *y, const Element *z, i64 n) { follow(); activate<Relu>(y, z, n); }

extern "C" __global__ void activate_leaky(Element *y, const Element *z, i64 n) { follow(); activate<LeakyRelu>(y, z, n); }

extern "C" __global__ void activate_grad_quick(Element *dy, const Element *z, i64 n) { follow(); activate_grad<Quick>(dy, z, n); }

extern "C" __global__ void activate_grad_erf(Element *dy, const Element *z, i64 n) { follow(); activate_grad<Erf>(dy, z, n); }

extern "C" __global__ void activate_grad_relu(Element *dy, const Element *z, i64 n) { follow(); activate_grad<Relu>(dy, z, n); }

extern "C" __global__ void activate_grad_leaky(Element *dy, const Element *z, i64 n) { follow(); activate_grad<LeakyRelu>(dy, z, n); }

// Threads of a block, and how many of them are side by side in a row: few, so that there are enough blocks.
#define SUMS_THREADS 512
#define SUMS_LANES 4

// dy becomes dz in place, and its columns are summed in the same pass. blockIdx.x: SUMS_LANES * PACK columns; blockIdx.y: every
// gridDim.y-th strip of rows. Sums go to partials[part][width], or with a single part are added to dbias. width is a multiple of PACK.
template <class Curve>
__device__ __forceinline__ void activate_grad_sums(Element *dy, const Element *z, float *partials, float *dbias, i64 rows,
                                                   int width) {
    constexpr int STRIP = SUMS_THREADS / SUMS_LANES;
    __shared__ float shared[SUMS_THREADS / WARP][SUMS_LANES * PACK];
    int lane = threadIdx.x % SUMS_LANES, first = blockIdx.x * SUMS_LANES * PACK, column = first + lane * PACK;
    float sums[PACK] = {};
    if (column < width) {
#pragma unroll 4
        for (i64 row = (i64)blockIdx.y * STRIP + threadIdx.x / SUMS_LANES; row < rows; row += (i64)gridDim.y * STRIP) {
            float values[PACK], gradient[PACK];
            load_pack(z + row * width + column, values);
            load_pack(dy + row * width + column, gradient);
#pragma unroll
            for (int i = 0; i < PACK; i++) {
                gradient[i] *= Curve::slope(values[i]);
                sums[i] += gradient[i];
            }
            store_pack(dy + row * width + column, gradient);
        }
    }
#pragma unroll
    for (int i = 0; i < PACK; i++) {
#pragma unroll
        for (int offset = SUMS_LANES; offset < WARP; offset *= 2) sums[i] += __shfl_xor_sync(ALL_LANES, sums[i], offset);
        if (threadIdx.x % WARP < SUMS_LANES) shared[threadIdx.x / WARP][lane * PACK + i] = sums[i];
    }
    __syncthreads();
    column = first + threadIdx.x;
    if (threadIdx.x >= SUMS_LANES * PACK || column >= width) return;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < SUMS_THREADS / WARP; i++) sum += shared[i][threadIdx.x];
    if (gridDim.y == 1) dbias[column] += sum;
    else partials[(i64)blockIdx.y * width + column] = sum;
}

extern "C" __global__ void __launch_bounds__(SUMS_THREADS)
    activate_grad_sums_quick(Element *dy, const Element *z, float *partials, float *dbias, i64 rows, int width) {
    follow();
    activate_grad_sums<Quick>(dy, z, partials, dbias, rows, width);
}

extern "C" __global__ void __launch_bounds__(SUMS_THREADS)
    activate_grad_sums_erf(Element *dy, const Element *z, float *partials, float *dbias, i64 rows, int width) {
    follow();
    activate_grad_sums<Erf>(dy, z, partials, dbias, rows, width);
}

extern "C" __global__ void __launch_bounds__(SUMS_THREADS)
    activate_grad_sums_relu(Element *dy, const Element *z, float *partials, float *dbias, i64 rows, int width) {
    follow();
    activate_grad_sums<Relu>(dy, z, partials, dbias, rows, width);
}

extern "C" __global__ void __launch_bounds__(SUMS_THREADS)
    activate_grad_sums_leaky(Element *dy, const Element *z, float *partials, float *dbias, i64 rows, int width) {
    follow();
    activate_grad_sums<LeakyRelu>(dy, z, partials, dbias, rows, width);
}

// y[n, d] = x[n, d] * gamma[d].
extern "C" __global__ void scale_columns(Element *y, const Element *x, const float *gamma, i64 rows, int width, i64 y_stride,
                                         i64 x_stride) {
    follow();
    if ((width | y_stride | x_stride) % PACK == 0 && aligned(y) && aligned(x)) {
        for_places<PACK>(rows, width, [&](i64 row, i64 column) {
            float values[PACK], factors[PACK];
            load_pack(x + row * x_stride + column, values);
            load_pack(gamma + column, factors);
#pragma unroll
            for (int i = 0; i < PACK; i++) values[i] *= factors[i];
            store_pack(y + row * y_stride + column, values);
        });
    } else {
        for_places<1>(rows, width, [&](i64 row, i64 column) {
            store(y + row * y_stride + column, load(x[row * x_stride + column]) * gamma[column]);
        });
    }
}

#define SCALE_WARPS 8

// Optionally turns dy into dx in place, and optionally sums dy x over rows in the same pass. blockIdx.x: WARP * PACK columns;
// blockIdx.y: every gridDim.y-th strip of rows, whose sums go to partials[part][width].
template <bool ALIGNED>
__device__ __forceinline__ void scale_grad(Element *dy, const Element *x, const float *gamma, float *partials, i64 rows,
                                           int width, i64 dy_stride, i64 x_stride, int write_dx) {
    __shared__ float shared[SCALE_WARPS][WARP * PACK];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, first = blockIdx.x * WARP * PACK, columns[PACK];
    float sums[PACK] = {}, factors[PACK] = {}, d[PACK] = {}, v[PACK] = {};
#pragma unroll
    for (int i = 0; i < PACK; i++) {
        columns[i] = first + (ALIGNED ? lane * PACK + i : i * WARP + lane);
        if (columns[i] < width) factors[i] = gamma[columns[i]];
    }
#pragma unroll 2
    for (i64 row = (i64)blockIdx.y * SCALE_WARPS + warp; row < rows; row += (i64)gridDim.y * SCALE_WARPS) {
        Element *dy_row = dy + row * dy_stride;
        const Element *x_row = x + row * x_stride;
        if (ALIGNED) {
            if (columns[0] >= width) break;
            load_pack(dy_row + columns[0], d);
            load_pack(x_row + columns[0], v);
        } else {
#pragma unroll
            for (int i = 0; i < PACK; i++)
                if (columns[i] < width) d[i] = load(dy_row[columns[i]]), v[i] = load(x_row[columns[i]]);
        }
#pragma unroll
        for (int i = 0; i < PACK; i++) sums[i] += d[i] * v[i], d[i] *= factors[i];
        if (!write_dx) continue;
        if (ALIGNED) {
            store_pack(dy_row + columns[0], d);
        } else {
#pragma unroll
            for (int i = 0; i < PACK; i++)
                if (columns[i] < width) store(dy_row + columns[i], d[i]);
        }
    }
    if (!partials) return;
#pragma unroll
    for (int i = 0; i < PACK; i++) shared[warp][columns[i] - first] = sums[i];
    __syncthreads();
    int column = first + threadIdx.x;
    if (threadIdx.x >= WARP * PACK || column >= width) return;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < SCALE_WARPS; i++) sum += shared[i][threadIdx.x];
    partials[(i64)blockIdx.y * width + column] = sum;
}

extern "C" __global__ void __launch_bounds__(SCALE_WARPS *WARP)
    scale_columns_grad(Element *dy, const Element *x, const float *gamma, float *partials, i64 rows, int width,
                       i64 dy_stride, i64 x_stride, int write_dx) {
    follow();
    bool packs = (width | dy_stride | x_stride) % PACK == 0 && aligned(dy) && aligned(x);
    if (packs) scale_grad<true>(dy, x, gamma, partials, rows, width, dy_stride, x_stride, write_dx);
    else scale_grad<false>(dy, x, gamma, partials, rows, width, dy_stride, x_stride, write_dx);
}

struct Dropout {
    const i64 *samples, *stream;
    i64 per_sample;
    u64 layer;
    u32 threshold;
    float scale;
    int whole; // a sample is dropped as one

    __device__ __forceinline__ u64 key(i64 sample) const { return dropout_key(stream, samples[sample], layer); }
    __device__ __forceinline__ float apply(float x, u64 key, u64 index) const {
        return (u32)(mix(key ^ (whole ? 0 : index)) >> 32) >= threshold ? x * scale : 0.0f;
    }
};

template <class T>
__device__ __forceinline__ void drop(T *y, const T *x, i64 rows, int width, i64 y_stride, i64 x_stride, const Dropout &op) {
    constexpr int STEP = 16 / sizeof(T);
    auto index_of = [&](i64 row, i64 sample) { return (u64)(row - sample * op.per_sample) * width; };
    if ((width | y_stride | x_stride) % STEP == 0 && aligned(y) && aligned(x)) {
        for_places<STEP>(rows, width, [&](i64 row, i64 column) {
            i64 sample = (u32)row / (u32)op.per_sample;
            u64 key = op.key(sample), index = index_of(row, sample) + column;
            float values[STEP];
            load_pack(x + row * x_stride + column, values);
#pragma unroll
            for (int i = 0; i < STEP; i++) values[i] = op.apply(values[i], key, index + i);
            store_pack(y + row * y_stride + column, values);
        });
    } else {
        for_places<1>(rows, width, [&](i64 row, i64 column) {
            i64 sample = (u32)row / (u32)op.per_sample;
            float value = load(x[row * x_stride + column]);
            value = op.apply(value, op.key(sample), index_of(row, sample) + column);
            store(y + row * y_stride + column, value);
        });
    }
}

// `full`: numbers are f32 for any Element. `micro`: samples are those of the whole batch.
extern "C" __global__ void dropout(void *y, const void *x, const i64 *samples, const i64 *stream, i64 rows, int width,
                                   i64 y_stride, i64 x_stride, i64 per_sample, i64 layer, int threshold, float scale,
                                   int whole, int full, const int *micro, i64 samples_micro) {
    follow();
    i64 part = micro ? *micro : 0;
    Dropout op = {samples + part * samples_micro, stream, per_sample, (u64)layer, (u32)threshold, scale, whole};
    if (full) drop((float *)y, (const float *)x, rows, width, y_stride, x_stride, op);
    else drop((Element *)y, (const Element *)x, rows, width, y_stride, x_stride, op);
}

// y = x / |x|, a warp per row. Rows are short and few: the second read hits the cache.
template <class Y>
__device__ __forceinline__ void normalize_rows(const Element *x, Y *y, float *inverse, int rows, int width, i64 x_stride,
                                               i64 y_stride) {
    int lane = threadIdx.x % WARP, row = (int)(first_thread() / WARP);
    if (row >= rows) return;
    x += row * x_stride, y += row * y_stride;
    bool fours = (width | x_stride | y_stride) % 4 == 0;
    float sum = 0.0f, values[4];
    if (fours) {
#pragma unroll 4
        for (int column = 4 * lane; column < width; column += 4 * WARP) {
            load_four(x + column, values);
#pragma unroll
            for (int i = 0; i < 4; i++) sum += values[i] * values[i];
        }
    } else {
        for (int column = lane; column < width; column += WARP) sum += load(x[column]) * load(x[column]);
    }
    float scale = 1.0f / sqrtf(warp_sum(sum));
    if (fours) {
#pragma unroll 4
        for (int column = 4 * lane; column < width; column += 4 * WARP) {
            load_four(x + column, values);
#pragma unroll
            for (int i = 0; i < 4; i++) values[i] *= scale;
            if constexpr (sizeof(Y) == 4) {
                store_pack(y + column, values);
            } else {
#pragma unroll
                for (int i = 0; i < 4; i++) store(y + column + i, values[i]);
            }
        }
    } else {
        for (int column = lane; column < width; column += WARP) store(y + column, load(x[column]) * scale);
    }
    if (inverse && lane == 0) inverse[row] = scale;
}

// Writes features, which are f32, or frames that are pooled to features.
extern "C" __global__ void normalize(const Element *x, float *y, float *inverse, int rows, int width, i64 x_stride,
                                     i64 y_stride) {
    follow();
    normalize_rows(x, y, inverse, rows, width, x_stride, y_stride);
}

extern "C" __global__ void normalize_within(const Element *x, Element *y, float *inverse, int rows, int width, i64 x_stride,
                                            i64 y_stride) {
    follow();
    normalize_rows(x, y, inverse, rows, width, x_stride, y_stride);
}

// dx = (dy - y (y . dy)) / |x|, a warp per row.
template <class Y>
__device__ __forceinline__ void normalize_rows_grad(const Y *dy, const Y *y, const float *inverse, Element *dx, int rows, int width,
                                                    i64 dy_stride, i64 y_stride, i64 dx_stride, int accumulate) {
    int lane = threadIdx.x % WARP, row = (int)(first_thread() / WARP);
    if (row >= rows) return;
    dy += row * dy_stride, y += row * y_stride, dx += row * dx_stride;
    float along = 0.0f;
#pragma unroll 4
    for (int column = lane; column < width; column += WARP) along += load(dy[column]) * load(y[column]);
    along = warp_sum(along);
    float scale = inverse[row];
#pragma unroll 4
    for (int column = lane; column < width; column += WARP) {
        float value = (load(dy[column]) - load(y[column]) * along) * scale;
        store(dx + column, accumulate ? load(dx[column]) + value : value);
    }
}

extern "C" __global__ void normalize_grad(const float *dy, const float *y, const float *inverse, Element *dx, int rows,
                                          int width, i64 dy_stride, i64 y_stride, i64 dx_stride, int accumulate) {
    follow();
    normalize_rows_grad(dy, y, inverse, dx, rows, width, dy_stride, y_stride, dx_stride, accumulate);
}

extern "C" __global__ void normalize_within_grad(const Element *dy, const Element *y, const float *inverse, Element *dx, int rows,
                                                 int width, i64 dy_stride, i64 y_stride, i64 dx_stride, int accumulate) {
    follow();
    normalize_rows_grad(dy, y, inverse, dx, rows, width, dy_stride, y_stride, dx_stride, accumulate);
}
