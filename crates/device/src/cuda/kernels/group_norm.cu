// Group norm of pictures: h = (x - mean) * rstd over the pixels and channels of a group, y = activation(h * gamma + beta + residual).
// Instance norm has as many groups as channels.
//
// Backward, with dz = dy * activation'(z) and g = dz * gamma: dx = (g - mean(g) - h * mean(g h)) * rstd, dgamma = sum of dz h,
// dbeta = sum of dz, dresidual = dz.
//
// Pictures are [n, p, c] with p = height x width: blockIdx.z is n, blockIdx.x a part of the pixels, blockIdx.y a strip of `lanes`
// threads with VEC channels each. A thread keeps its channels for all of its pixels, so that values per channel stay in
// registers. The number of partial sums depends on the size of a picture alone, not on the batch, and they are added in a fixed order.

#define NORM_THREADS 256
// Pixels per thread in flight.
#define STATISTICS_DEPTH 8
#define DEPTH 4
#define FINISH_THREADS 512

// One thread's part of a picture: VEC channels of every rows-th pixel in first..last.
struct Share {
    int lane, row, rows, channel, first, last;
};

template <int VEC> __device__ __forceinline__ Share share_of(int pixels, int channels, int lanes) {
    int lane = threadIdx.x & (lanes - 1), row = threadIdx.x / (u32)lanes;
    int per_part = (pixels + gridDim.x - 1) / gridDim.x, first = blockIdx.x * per_part;
    int last = min(first + per_part, pixels), channel = (blockIdx.y * lanes + lane) * VEC;
    if (channel >= channels) last = 0;
    return {lane, row, (int)(NORM_THREADS / (u32)lanes), channel, first + row, last};
}

// Count of values, their mean, and the sum of squares around it: of a block of values, or of two blocks combined.
template <int VEC> struct Moments {
    float count, mean[VEC], squares[VEC];

    __device__ __forceinline__ void merge(float other_count, const float (&other_mean)[VEC], const float (&other_squares)[VEC]) {
        if (other_count == 0.0f) return;
        float total = count + other_count, share = other_count / total, weight = count * share;
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            float delta = other_mean[i] - mean[i];
            mean[i] += delta * share;
            squares[i] += other_squares[i] + delta * delta * weight;
        }
        count = total;
    }
};

template <int VEC>
__device__ __forceinline__ void statistics(const Element *x, float2 *partials, int pixels, int channels, i64 stride,
                                           int lanes, float (*shared)[NORM_THREADS]) {
    Share s = share_of<VEC>(pixels, channels, lanes);
    Moments<VEC> all = {};
    const Element *from = x + (i64)blockIdx.z * pixels * stride + s.channel;
    int pixel = s.first;
    for (; pixel + (STATISTICS_DEPTH - 1) * s.rows < s.last; pixel += STATISTICS_DEPTH * s.rows) {
        Numbers<VEC> values[STATISTICS_DEPTH];
#pragma unroll
        for (int k = 0; k < STATISTICS_DEPTH; k++) values[k].read(from + (i64)(pixel + k * s.rows) * stride);
        float mean[VEC], squares[VEC];
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            float sum = 0.0f, around = 0.0f;
#pragma unroll
            for (int k = 0; k < STATISTICS_DEPTH; k++) sum += values[k].at(i);
            float center = sum * (1.0f / STATISTICS_DEPTH);
#pragma unroll
            for (int k = 0; k < STATISTICS_DEPTH; k++) around += (values[k].at(i) - center) * (values[k].at(i) - center);
            mean[i] = center, squares[i] = around;
        }
        all.merge(STATISTICS_DEPTH, mean, squares);
    }
    for (; pixel < s.last; pixel += s.rows) {
        Numbers<VEC> value;
        value.read(from + (i64)pixel * stride);
        float mean[VEC], squares[VEC];
#pragma unroll
        for (int i = 0; i < VEC; i++) mean[i] = value.at(i), squares[i] = 0.0f;
        all.merge(1.0f, mean, squares);
    }
    for (int half = s.rows / 2; half > 0; half /= 2) {
        int other = threadIdx.x + half * lanes;
        __syncthreads();
        if (half <= s.row && s.row < 2 * half) {
            shared[2 * PACK][threadIdx.x] = all.count;
#pragma unroll
            for (int i = 0; i < VEC; i++) shared[2 * i][threadIdx.x] = all.mean[i], shared[2 * i + 1][threadIdx.x] = all.squares[i];
        }
        __syncthreads();
        if (s.row < half) {
            float mean[VEC], squares[VEC];
#pragma unroll
            for (int i = 0; i < VEC; i++) mean[i] = shared[2 * i][other], squares[i] = shared[2 * i + 1][other];
            all.merge(shared[2 * PACK][other], mean, squares);
        }
    }
    if (s.row > 0 || s.channel >= channels) return;
    float2 *to = partials + ((i64)blockIdx.z * gridDim.x + blockIdx.x) * channels + s.channel;
#pragma unroll
    for (int i = 0; i < VEC; i++) to[i] = make_float2(all.mean[i], all.squares[i]);
}

// partials[n][part][c]: mean and sum of squares around it.
extern "C" __global__ void __launch_bounds__(NORM_THREADS, 3)
    group_statistics(const Element *x, float2 *partials, int pixels, int channels, i64 stride, int lanes, int packed) {
    follow();
    __shared__ float shared[2 * PACK + 1][NORM_THREADS];
    if (packed) statistics<PACK>(x, partials, pixels, channels, stride, lanes, shared);
    else statistics<1>(x, partials, pixels, channels, stride, lanes, shared);
}

// Sum over a block of FINISH_THREADS; every thread gets the result.
__device__ __forceinline__ double block_sum(double value) {
    __shared__ double parts[FINISH_THREADS / WARP];
    value = warp_sum(value);
    __syncthreads();
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = value;
    __syncthreads();
    double sum = parts[0];
#pragma unroll
    for (int i = 1; i < FINISH_THREADS / WARP; i++) sum += parts[i];
    return sum;
}

// blockIdx.x: group, blockIdx.y: picture.
extern "C" __global__ void __launch_bounds__(FINISH_THREADS)
    group_statistics_finish(const float2 *partials, float *mean, float *rstd, int pixels, int channels, int parts, float eps) {
    follow();
    int per_group = channels / gridDim.x, per_part = (pixels + parts - 1) / parts;
    partials += (i64)blockIdx.y * parts * channels + blockIdx.x * per_group;
    double sum = 0.0, squares = 0.0, count = (double)pixels * per_group;
    for (int at = threadIdx.x; at < parts * per_group; at += FINISH_THREADS) {
        int part = at / per_group, channel = at - part * per_group;
        float2 p = partials[(i64)part * channels + channel];
        sum += (double)max(min(per_part, pixels - part * per_part), 0) * p.x;
    }
    double center = block_sum(sum) / count;
    for (int at = threadIdx.x; at < parts * per_group; at += FINISH_THREADS) {
        int part = at / per_group, channel = at - part * per_group;
        float2 p = partials[(i64)part * channels + channel];
        double delta = p.x - center;
        squares += p.y + max(min(per_part, pixels - part * per_part), 0) * delta * delta;
    }
    float variance = (float)(block_sum(squares) / count);
    if (threadIdx.x > 0) return;
    i64 to = (i64)blockIdx.y * gridDim.x + blockIdx.x;
    mean[to] = (float)center;
    rstd[to] = 1.0f / sqrtf(variance + eps);
}

// Not inlined: GELU is rare after a group norm, and every inlined copy would take a second to compile.
__device__ __noinline__ float gelu(float z, bool quick) { return quick ? Quick::value(z) : Erf::value(z); }
__device__ __noinline__ float gelu_slope(float z, bool quick) { return quick ? Quick::slope(z) : Erf::slope(z); }

// kind 0: z if positive, else z * below: identity (below = 1), ReLU (0) and leaky ReLU. 1: quick GELU. 2: erf GELU.
struct Curve {
    int kind;
    float below;

    template <int VEC> __device__ __forceinline__ void values(float (&z)[VEC]) const {
        if (kind == 0) {
#pragma unroll
            for (int i = 0; i < VEC; i++) z[i] = z[i] > 0.0f ? z[i] : below * z[i];
        } else {
#pragma unroll
            for (int i = 0; i < VEC; i++) z[i] = gelu(z[i], kind == 1);
        }
    }

    template <int VEC> __device__ __forceinline__ void slopes(float (&z)[VEC]) const {
        if (kind == 0) {
#pragma unroll
            for (int i = 0; i < VEC; i++) z[i] = z[i] > 0.0f ? 1.0f : below;
        } else {
#pragma unroll
            for (int i = 0; i < VEC; i++) z[i] = gelu_slope(z[i], kind == 1);
        }
    }
};

// The operands of the forward pass; residual may be null.
struct Norm {
    const Element *x, *residual;
    const float *mean, *rstd, *gamma, *beta;
    i64 x_stride, residual_stride;
    int pixels, channels, groups;

    __device__ __forceinline__ int group_of(int channel) const { return (u32)channel / (u32)(channels / groups); }
};

// Factors from x to z for a thread's channels.
template <int VEC> struct Channels {
    float mean[VEC], scale[VEC], beta[VEC];

    __device__ __forceinline__ void load(const Norm &f, int channel) {
#pragma unroll
        for (int i = 0; i < VEC; i++) {
            bool inside = channel + i < f.channels;
            int at = inside ? channel + i : 0, group = blockIdx.z * f.groups + f.group_of(at);
            mean[i] = f.mean[group], scale[i] = f.rstd[group] * f.gamma[at], beta[i] = f.beta[at];
        }
    }
    __device__ __forceinline__ float z(int i, float x) const { return (x - mean[i]) * scale[i] + beta[i]; }
};

template <int VEC>
__device__ __forceinline__ void apply(const Norm &f, Element *y, i64 y_stride, int lanes, Curve curve) {
    Share s = share_of<VEC>(f.pixels, f.channels, lanes);
    Channels<VEC> channels;
    channels.load(f, s.channel);
    i64 picture = (i64)blockIdx.z * f.pixels;
    for (int pixel = s.first; pixel < s.last; pixel += DEPTH * s.rows) {
        Numbers<VEC> x[DEPTH];
#pragma unroll
        for (int k = 0; k < DEPTH; k++)
            if (pixel + k * s.rows < s.last) x[k].read(f.x + (picture + pixel + k * s.rows) * f.x_stride + s.channel);
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            if (pixel + k * s.rows >= s.last) continue;
            i64 at = picture + pixel + k * s.rows;
            Numbers<VEC> residual;
            if (f.residual) residual.read(f.residual + at * f.residual_stride + s.channel);
            float z[VEC];
#pragma unroll
            for (int i = 0; i < VEC; i++) z[i] = channels.z(i, x[k].at(i)) + (f.residual ? residual.at(i) : 0.0f);
            curve.values(z);
#pragma unroll
            for (int i = 0; i < VEC; i++) x[k].set(i, z[i]);
            x[k].write(y + at * y_stride + s.channel);
        }
    }
}

extern "C" __global__ void __launch_bounds__(NORM_THREADS, 3)
    group_norm(const Element *x, const Element *residual, const float *mean, const float *rstd, const float *gamma,
               const float *beta, Element *y, i64 x_stride, i64 residual_stride, i64 y_stride, int pixels, int channels,
               int groups, int lanes, int packed, int curve, float below) {
    follow();
    Norm f = {x, residual, mean, rstd, gamma, beta, x_stride, residual_stride, pixels, channels, groups};
    if (packed) apply<PACK>(f, y, y_stride, lanes, {curve, below});
    else apply<1>(f, y, y_stride, lanes, {curve, below});
}

// Calls work(at, dz, x - mean) for every pixel of a thread; `at` is the pixel's index in the batch.
template <int VEC, class Work>
__device__ __forceinline__ void for_gradients(const Norm &f, const Element *dy, i64 dy_stride, const Share &s,
                                              const Channels<VEC> &channels, Curve curve, Work work) {
    i64 picture = (i64)blockIdx.z * f.pixels;
    for (int pixel = s.first; pixel < s.last; pixel += DEPTH * s.rows) {
        Numbers<VEC> x[DEPTH], d[DEPTH];
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            i64 at = picture + pixel + k * s.rows;
            if (pixel + k * s.rows >= s.last) continue;
            x[k].read(f.x + at * f.x_stride + s.channel);
            d[k].read(dy + at * dy_stride + s.channel);
        }
#pragma unroll
        for (int k = 0; k < DEPTH; k++) {
            if (pixel + k * s.rows >= s.last) continue;
            i64 at = picture + pixel + k * s.rows;
            Numbers<VEC> residual;
            if (f.residual) residual.read(f.residual + at * f.residual_stride + s.channel);
            float dz[VEC], centered[VEC];
#pragma unroll
            for (int i = 0; i < VEC; i++) dz[i] = channels.z(i, x[k].at(i)) + (f.residual ? residual.at(i) : 0.0f);
            curve.slopes(dz);
#pragma unroll
            for (int i = 0; i < VEC; i++) dz[i] *= d[k].at(i), centered[i] = x[k].at(i) - channels.mean[i];
            work(at, dz, centered);
        }
    }
}

template <int VEC>
__device__ __forceinline__ void gradient_sums(const Norm &f, const Element *dy, i64 dy_stride, float2 *partials, int lanes,
                                              Curve curve, float (*shared)[NORM_THREADS]) {
    Share s = share_of<VEC>(f.pixels, f.channels, lanes);
    Channels<VEC> channels;
    channels.load(f, s.channel);
    float sums[VEC] = {}, products[VEC] = {};
    for_gradients<VEC>(f, dy, dy_stride, s, channels, curve,
                       [&](i64, const float (&dz)[VEC], const float (&centered)[VEC]) {
#pragma unroll
                           for (int i = 0; i < VEC; i++) sums[i] += dz[i], products[i] += dz[i] * centered[i];
                       });
    for (int half = s.rows / 2; half > 0; half /= 2) {
        int other = threadIdx.x + half * lanes;
        __syncthreads();
        if (half <= s.row && s.row < 2 * half) {
#pragma unroll
            for (int i = 0; i < VEC; i++) shared[2 * i][threadIdx.x] = sums[i], shared[2 * i + 1][threadIdx.x] = products[i];
        }
        __syncthreads();
        if (s.row < half) {
#pragma unroll
            for (int i = 0; i < VEC; i++) sums[i] += shared[2 * i][other], products[i] += shared[2 * i + 1][other];
        }
    }
    if (s.row > 0 || s.channel >= f.channels) return;
    float2 *to = partials + ((i64)blockIdx.z * gridDim.x + blockIdx.x) * f.channels + s.channel;
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        float rstd = f.rstd[blockIdx.z * f.groups + f.group_of(s.channel + i)];
        to[i] = make_float2(sums[i], products[i] * rstd);
    }
}

// partials[n][part][c]: sums of dz and of dz h.
extern "C" __global__ void __launch_bounds__(NORM_THREADS, 2)
    group_norm_grad_sums(const Element *dy, const Element *x, const Element *residual, const float *mean, const float *rstd,
                         const float *gamma, const float *beta, float2 *partials, i64 dy_stride, i64 x_stride,
                         i64 residual_stride, int pixels, int channels, int groups, int lanes, int packed, int curve,
                         float below) {
    follow();
    __shared__ float shared[2 * PACK][NORM_THREADS];
    Norm f = {x, residual, mean, rstd, gamma, beta, x_stride, residual_stride, pixels, channels, groups};
    if (packed) gradient_sums<PACK>(f, dy, dy_stride, partials, lanes, {curve, below}, shared);
    else gradient_sums<1>(f, dy, dy_stride, partials, lanes, {curve, below}, shared);
}

// Adds parts to sums[n][c], and computes means[n][group] of g and of g h. blockIdx.x: group, blockIdx.y: picture; `lanes` threads
// have neighbouring channels.
extern "C" __global__ void __launch_bounds__(FINISH_THREADS)
    group_norm_grad_finish(const float2 *partials, const float *gamma, float2 *sums, float2 *means, int pixels, int channels,
                           int parts, int lanes) {
    follow();
    __shared__ double shared[2][FINISH_THREADS];
    int per_group = channels / gridDim.x, first = blockIdx.x * per_group;
    int lane = threadIdx.x & (lanes - 1), slot = threadIdx.x / (u32)lanes, slots = FINISH_THREADS / (u32)lanes;
    partials += (i64)blockIdx.y * parts * channels;
    double total = 0.0, total_product = 0.0;
    for (int tile = 0; tile < per_group; tile += lanes) {
        int channel = first + tile + lane;
        bool inside = tile + lane < per_group;
        double sum = 0.0, product = 0.0;
        if (inside) {
#pragma unroll 4
            for (int part = slot; part < parts; part += slots) {
                float2 p = partials[(i64)part * channels + channel];
                sum += p.x, product += p.y;
            }
        }
        __syncthreads();
        shared[0][threadIdx.x] = sum, shared[1][threadIdx.x] = product;
        for (int half = slots / 2; half > 0; half /= 2) {
            __syncthreads();
            if (slot < half) {
                shared[0][threadIdx.x] += shared[0][threadIdx.x + half * lanes];
                shared[1][threadIdx.x] += shared[1][threadIdx.x + half * lanes];
            }
        }
        if (slot > 0 || !inside) continue;
        sum = shared[0][threadIdx.x], product = shared[1][threadIdx.x];
        sums[(i64)blockIdx.y * channels + channel] = make_float2((float)sum, (float)product);
        total += sum * gamma[channel], total_product += product * gamma[channel];
    }
    // Only the first slot holds a value, and the first slot is within the first warp.
    if (threadIdx.x >= WARP) return;
    total = warp_sum(total), total_product = warp_sum(total_product);
    double count = (double)pixels * per_group;
    if (threadIdx.x == 0)
        means[(i64)blockIdx.y * gridDim.x + blockIdx.x] = make_float2((float)(total / count), (float)(total_product / count));
}

// dgamma and dbeta, summed over pictures in order, a thread per channel; either may be null.
extern "C" __global__ void group_norm_grad_parameters(const float2 *sums, float *dgamma, float *dbeta, int pictures,
                                                      int channels, int gamma_accumulates, int beta_accumulates) {
    follow();
    int channel = blockIdx.x * blockDim.x + threadIdx.x;
    if (channel >= channels) return;
    float2 total = make_float2(0.0f, 0.0f);
    for (int n = 0; n < pictures; n++) {
        float2 sum = sums[(i64)n * channels + channel];
        total.x += sum.x, total.y += sum.y;
    }
    if (dgamma) dgamma[channel] = gamma_accumulates ? dgamma[channel] + total.y : total.y;
    if (dbeta) dbeta[channel] = beta_accumulates ? dbeta[channel] + total.x : total.x;
}

// Destination of a gradient; `to` may be null, and may be dy.
struct Gradient {
    Element *to;
    i64 stride;
    int accumulate;

    template <int VEC> __device__ __forceinline__ void write(i64 at, int channel, const float (&values)[VEC]) const {
        Element *place = to + at * stride + channel;
        Numbers<VEC> numbers;
        if (accumulate) numbers.read(place);
#pragma unroll
        for (int i = 0; i < VEC; i++) numbers.set(i, accumulate ? numbers.at(i) + values[i] : values[i]);
        numbers.write(place);
    }
};

template <int VEC>
__device__ __forceinline__ void gradients(const Norm &f, const Element *dy, i64 dy_stride, const float2 *means,
                                          const Gradient &dx, const Gradient &dresidual, int lanes, Curve curve) {
    Share s = share_of<VEC>(f.pixels, f.channels, lanes);
    Channels<VEC> channels;
    channels.load(f, s.channel);
    float shift[VEC], factor[VEC];
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        int group = blockIdx.z * f.groups + f.group_of(min(s.channel + i, f.channels - 1));
        float rstd = f.rstd[group];
        float2 mean = dx.to ? means[group] : make_float2(0.0f, 0.0f);
        shift[i] = rstd * mean.x, factor[i] = rstd * rstd * mean.y;
    }
    for_gradients<VEC>(f, dy, dy_stride, s, channels, curve,
                       [&](i64 at, const float (&dz)[VEC], const float (&centered)[VEC]) {
                           if (dresidual.to) dresidual.write<VEC>(at, s.channel, dz);
                           if (!dx.to) return;
                           float values[VEC];
#pragma unroll
                           for (int i = 0; i < VEC; i++)
                               values[i] = dz[i] * channels.scale[i] - shift[i] - centered[i] * factor[i];
                           dx.write<VEC>(at, s.channel, values);
                       });
}

extern "C" __global__ void __launch_bounds__(NORM_THREADS, 2)
    group_norm_grad(const Element *dy, const Element *x, const Element *residual, const float *mean, const float *rstd,
                    const float *gamma, const float *beta, const float2 *means, Element *dx, Element *dresidual,
                    i64 dy_stride, i64 x_stride, i64 residual_stride, i64 dx_stride, i64 dresidual_stride, int pixels,
                    int channels, int groups, int lanes, int packed, int curve, float below, int x_accumulates,
                    int residual_accumulates) {
    follow();
    Norm f = {x, residual, mean, rstd, gamma, beta, x_stride, residual_stride, pixels, channels, groups};
    Gradient to_x = {dx, dx_stride, x_accumulates}, to_residual = {dresidual, dresidual_stride, residual_accumulates};
    if (packed) gradients<PACK>(f, dy, dy_stride, means, to_x, to_residual, lanes, {curve, below});
    else gradients<1>(f, dy, dy_stride, means, to_x, to_residual, lanes, {curve, below});
}
