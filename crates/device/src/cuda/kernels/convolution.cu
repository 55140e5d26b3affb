// Helpers of convolutions: moving pixels of transposed convolutions, biases, and heads of few outputs.
//
// A transposed convolution without overlap is a product: each pixel of x gives `down x across` pixels of y. The product's rows are
// `blocks`, [pixels, down * across * channels]; y is a picture whose pixels may have a stride larger than their channels.

// Index in y of part `k` of pixel `pixel` of x (counted over all rows of all pictures).
__device__ __forceinline__ i64 place_in_y(i64 pixel, int k, int width, int down, int across) {
    i64 row = pixel / width;
    int column = (int)(pixel % width);
    return (row * down + k / across) * ((i64)width * across) + (i64)column * across + k % across;
}

// y = blocks + bias, from pixel `first` of x on.
extern "C" __global__ void blocks_to_pixels(const Element *blocks, Element *y, const Element *bias, i64 first, i64 pixels,
                                            int width, int down, int across, int channels, i64 y_stride) {
    follow();
    i64 step = (i64)gridDim.x * blockDim.x, start = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    int parts = down * across;
    bool packed = channels % PACK == 0 && y_stride % PACK == 0 && aligned(y) && aligned(blocks) && (!bias || aligned(bias));
    int each = packed ? channels / PACK : channels;
    for (i64 at = start; at < pixels * parts * each; at += step) {
        int c = (int)(at % each);
        i64 block = at / each;
        i64 to = place_in_y(first + block / parts, (int)(block % parts), width, down, across) * y_stride;
        if (packed) {
            float values[PACK], add[PACK];
            load_pack(blocks + at * PACK, values);
            if (bias) {
                load_pack(bias + c * PACK, add);
#pragma unroll
                for (int i = 0; i < PACK; i++) values[i] += add[i];
            }
            store_pack(y + to + c * PACK, values);
        } else {
            store(y + to + c, load(blocks[at]) + (bias ? load(bias[c]) : 0.0f));
        }
    }
}

// blocks = y, from pixel `first` of x on.
extern "C" __global__ void pixels_to_blocks(Element *blocks, const Element *y, i64 first, i64 pixels, int width, int down,
                                            int across, int channels, i64 y_stride) {
    follow();
    i64 step = (i64)gridDim.x * blockDim.x, start = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    int parts = down * across;
    bool packed = channels % PACK == 0 && y_stride % PACK == 0 && aligned(y) && aligned(blocks);
    int each = packed ? channels / PACK : channels;
    for (i64 at = start; at < pixels * parts * each; at += step) {
        int c = (int)(at % each);
        i64 block = at / each;
        i64 from = place_in_y(first + block / parts, (int)(block % parts), width, down, across) * y_stride;
        if (packed) {
            float values[PACK];
            load_pack(y + from + c * PACK, values);
            store_pack(blocks + at * PACK, values);
        } else {
            store(blocks + at, load(y[from + c]));
        }
    }
}

// y[row, c] += bias[c].
extern "C" __global__ void add_bias(Element *y, const Element *bias, i64 rows, int width, i64 stride) {
    follow();
    i64 step = (i64)gridDim.x * blockDim.x, start = (i64)blockIdx.x * blockDim.x + threadIdx.x;
    bool packed = width % PACK == 0 && stride % PACK == 0 && aligned(y) && aligned(bias);
    int each = packed ? width / PACK : width;
    for (i64 at = start; at < rows * each; at += step) {
        int c = (int)(at % each);
        Element *to = y + at / each * stride;
        if (packed) {
            float values[PACK], add[PACK];
            load_pack(to + c * PACK, values);
            load_pack(bias + c * PACK, add);
#pragma unroll
            for (int i = 0; i < PACK; i++) values[i] += add[i];
            store_pack(to + c * PACK, values);
        } else {
            store(to + c, load(to[c]) + load(bias[c]));
        }
    }
}

// Copies rows of `width` to rows of `padded`, with zeros at the end.
extern "C" __global__ void pad_rows(Element *to, const Element *from, i64 rows, int width, int padded) {
    follow();
    i64 step = (i64)gridDim.x * blockDim.x;
    for (i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x; at < rows * padded; at += step) {
        int column = (int)(at % padded);
        store(to + at, column < width ? load(from[at / padded * width + column]) : 0.0f);
    }
}

// A head: few outputs for each pixel, y[p, k] = x[p, :] . w[k, :] + b[k].
#define HEAD_THREADS 256
#define MOST_OUTPUTS 4
#define MOST_CHANNELS 512

template <int K>
__device__ __forceinline__ void head(const Element *x, const Element *w, const Element *bias, Element *y, i64 pixels,
                                     int channels, i64 x_stride, i64 y_stride) {
    __shared__ float weights[MOST_OUTPUTS * MOST_CHANNELS];
    for (int i = threadIdx.x; i < K * channels; i += blockDim.x) weights[i] = load(w[i]);
    __syncthreads();
    bool packed = channels % PACK == 0 && x_stride % PACK == 0 && aligned(x);
    i64 step = (i64)gridDim.x * blockDim.x;
    for (i64 pixel = (i64)blockIdx.x * blockDim.x + threadIdx.x; pixel < pixels; pixel += step) {
        const Element *from = x + pixel * x_stride;
        float sums[K];
#pragma unroll
        for (int k = 0; k < K; k++) sums[k] = bias ? load(bias[k]) : 0.0f;
        if (packed) {
            for (int c = 0; c < channels; c += PACK) {
                float values[PACK];
                load_pack(from + c, values);
#pragma unroll
                for (int k = 0; k < K; k++)
#pragma unroll
                    for (int i = 0; i < PACK; i++) sums[k] += values[i] * weights[k * channels + c + i];
            }
        } else {
            for (int c = 0; c < channels; c++) {
                float value = load(from[c]);
#pragma unroll
                for (int k = 0; k < K; k++) sums[k] += value * weights[k * channels + c];
            }
        }
#pragma unroll
        for (int k = 0; k < K; k++) store(y + pixel * y_stride + k, sums[k]);
    }
}

#define WITH_OUTPUTS(call)                                                                                              \
    switch (outputs) {                                                                                                 \
    case 1: call(1); break;                                                                                            \
    case 2: call(2); break;                                                                                            \
    case 3: call(3); break;                                                                                            \
    default: call(4); break;                                                                                           \
    }

extern "C" __global__ void __launch_bounds__(HEAD_THREADS)
    head_forward(const Element *x, const Element *w, const Element *bias, Element *y, i64 pixels, int channels, i64 x_stride,
                 i64 y_stride, int outputs) {
    follow();
#define FORWARD(K) head<K>(x, w, bias, y, pixels, channels, x_stride, y_stride)
    WITH_OUTPUTS(FORWARD)
}

// dx[p, c] = sum over k of dy[p, k] w[k, c].
extern "C" __global__ void __launch_bounds__(HEAD_THREADS)
    head_input_grad(const Element *dy, const Element *w, Element *dx, i64 pixels, int channels, i64 dy_stride, i64 dx_stride,
                    int outputs, int accumulate) {
    follow();
    __shared__ float weights[MOST_OUTPUTS * MOST_CHANNELS];
    for (int i = threadIdx.x; i < outputs * channels; i += blockDim.x) weights[i] = load(w[i]);
    __syncthreads();
    bool packed = channels % PACK == 0 && dx_stride % PACK == 0 && aligned(dx);
    int each = packed ? channels / PACK : channels;
    i64 step = (i64)gridDim.x * blockDim.x;
    for (i64 at = (i64)blockIdx.x * blockDim.x + threadIdx.x; at < pixels * each; at += step) {
        i64 pixel = at / each;
        int c = (int)(at % each) * (packed ? PACK : 1);
        Element *to = dx + pixel * dx_stride + c;
        if (packed) {
            float values[PACK] = {};
            if (accumulate) load_pack(to, values);
            for (int k = 0; k < outputs; k++) {
                float gradient = load(dy[pixel * dy_stride + k]);
#pragma unroll
                for (int i = 0; i < PACK; i++) values[i] += gradient * weights[k * channels + c + i];
            }
            store_pack(to, values);
        } else {
            float value = accumulate ? load(*to) : 0.0f;
            for (int k = 0; k < outputs; k++) value += load(dy[pixel * dy_stride + k]) * weights[k * channels + c];
            store(to, value);
        }
    }
}

// Partial sums of dw[k, c] = sum over p of dy[p, k] x[p, c], and of db[k] behind them: [parts, outputs * (channels + 1)].
// Each part has a run of pixels; within it, threads that share channels alternate, and their sums are added in order.
template <int K>
__device__ __forceinline__ void head_sums(const Element *dy, const Element *x, float *partials, i64 pixels, int channels,
                                          i64 dy_stride, i64 x_stride) {
    __shared__ float shared[HEAD_THREADS * PACK];
    // One more lane than there are packs of channels: its x is 1.
    int lanes = channels / PACK + 1, rows = HEAD_THREADS / lanes;
    int lane = threadIdx.x % lanes, row = threadIdx.x / lanes;
    i64 each = (pixels + gridDim.x - 1) / gridDim.x;
    i64 begin = blockIdx.x * each, end = min(begin + each, pixels);
    float sums[K][PACK] = {};
    if (row < rows)
        for (i64 pixel = begin + row; pixel < end; pixel += rows) {
            float values[PACK] = {1.0f};
            if (lane + 1 < lanes) load_pack(x + pixel * x_stride + lane * PACK, values);
#pragma unroll
            for (int k = 0; k < K; k++) {
                float gradient = load(dy[pixel * dy_stride + k]);
#pragma unroll
                for (int i = 0; i < PACK; i++) sums[k][i] += gradient * values[i];
            }
        }
    int width = lanes * PACK;
    for (int k = 0; k < K; k++) {
        __syncthreads();
        if (row < rows)
#pragma unroll
            for (int i = 0; i < PACK; i++) shared[row * width + lane * PACK + i] = sums[k][i];
        __syncthreads();
        for (int c = threadIdx.x; c <= channels; c += blockDim.x) {
            float sum = 0.0f;
            for (int r = 0; r < rows; r++) sum += shared[r * width + c];
            int to = c < channels ? k * channels + c : K * channels + k;
            partials[(i64)blockIdx.x * K * (channels + 1) + to] = sum;
        }
    }
}

extern "C" __global__ void __launch_bounds__(HEAD_THREADS)
    head_weight_grad(const Element *dy, const Element *x, float *partials, i64 pixels, int channels, i64 dy_stride,
                     i64 x_stride, int outputs) {
    follow();
#define SUMS(K) head_sums<K>(dy, x, partials, pixels, channels, dy_stride, x_stride)
    WITH_OUTPUTS(SUMS)
}

// dw and db from the parts, added to or replaced.
extern "C" __global__ void head_weight_grad_finish(const float *partials, int parts, float *dw, float *dbias, int outputs,
                                                   int channels, int add_weight, int add_bias) {
    follow();
    int width = outputs * (channels + 1), weights = outputs * channels;
    int lane = threadIdx.x % WARP, at = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP;
    if (at >= width) return;
    float sum = 0.0f;
    for (int part = lane; part < parts; part += WARP) sum += partials[(i64)part * width + at];
    sum = warp_sum(sum);
    if (lane) return;
    if (at < weights) {
        if (dw) dw[at] = add_weight ? dw[at] + sum : sum;
    } else if (dbias) {
        dbias[at - weights] = add_bias ? dbias[at - weights] + sum : sum;
    }
}
