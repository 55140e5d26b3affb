// Gradient norm and AdamW over all tensors in one launch each.
//
// g = c * gradient with c = min(1, clip / (norm + 1e-6)) / loss scale, m = b1 m + (1 - b1) g, v = b2 v + (1 - b2) g^2,
// w = w (1 - rate decay) - rate / (1 - b1^t) * m / (sqrt(v / (1 - b2^t)) + eps), then w = min(w, maximum).

#define UPDATE_CHUNK 8192
#define UPDATE_THREADS 256

// Tensors are sorted by first_chunk; all pointers are 16-byte aligned.
struct Tensor {
    float *weight;
    const float *gradient;
    float *m;
    float *v;
    Element *copy; // the weight as the graph reads it; null where it reads the weight itself
    i64 n;
    i64 first_chunk;
    float weight_decay;
    int rate;
    float maximum; // infinity where there is none
    float pad;
};
static_assert(sizeof(Tensor) == 72, "as the launcher lays it out");

// The last tensor that begins at or before this block's chunk. The table stays in the cache.
__device__ __forceinline__ int tensor_of_block(const Tensor *tensors, int num_tensors) {
    int low = 0, high = num_tensors - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (tensors[middle].first_chunk <= (i64)blockIdx.x) low = middle;
        else high = middle - 1;
    }
    return low;
}

// The sum over a block, for thread 0.
__device__ __forceinline__ double block_sum(double value) {
    __shared__ double parts[32];
    value = warp_sum(value);
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = value;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int i = 1; i < blockDim.x / WARP; i++) value += parts[i];
    return value;
}

// A thread adds its 32 squares in f32, since consumer cards have next to no f64; what overflows there is not finite.
extern "C" __global__ void __launch_bounds__(UPDATE_THREADS)
    gradient_norm(const Tensor *tensors, int num_tensors, double *partials) {
    follow();
    const Tensor &tensor = tensors[tensor_of_block(tensors, num_tensors)];
    i64 start = ((i64)blockIdx.x - tensor.first_chunk) * UPDATE_CHUNK, rest = tensor.n - start;
    const float *gradient = tensor.gradient + start;
    float4 sums = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    auto add = [&](int at) {
        float4 g = *reinterpret_cast<const float4 *>(gradient + at);
        sums.x += g.x * g.x, sums.y += g.y * g.y, sums.z += g.z * g.z, sums.w += g.w * g.w;
    };
    if (rest >= UPDATE_CHUNK) {
#pragma unroll
        for (int at = 0; at < UPDATE_CHUNK; at += 4 * UPDATE_THREADS) add(at + 4 * threadIdx.x);
    } else {
        int packed = (int)rest / 4 * 4;
        for (int at = 4 * threadIdx.x; at < packed; at += 4 * UPDATE_THREADS) add(at);
        if (threadIdx.x < rest - packed) sums.x += gradient[packed + threadIdx.x] * gradient[packed + threadIdx.x];
    }
    double sum = block_sum((sums.x + sums.y) + (sums.z + sums.w));
    if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

// One block. norm = [norm before unscaling, 1 if finite else 0].
extern "C" __global__ void __launch_bounds__(1024) gradient_norm_finish(const double *partials, int n, float *norm) {
    follow();
    double sum = 0.0;
#pragma unroll 8
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += partials[i];
    sum = block_sum(sum);
    if (threadIdx.x > 0) return;
    float root = (float)sqrt(sum);
    norm[0] = root;
    norm[1] = isfinite(root) ? 1.0f : 0.0f;
}

struct StepNumbers {
    float beta1, beta2, eps, gradient_scale, rate, root_correction2, keep, maximum;

    __device__ __forceinline__ void step(float &weight, float &m, float &v, float gradient) const {
        float g = gradient * gradient_scale;
        m = beta1 * m + (1.0f - beta1) * g;
        v = beta2 * v + (1.0f - beta2) * g * g;
        weight = weight * keep - rate * m / (sqrtf(v) * root_correction2 + eps);
        if (weight > maximum) weight = maximum;
    }
};

__device__ __forceinline__ void store_copy(Element *to, const float4 &w) {
#if ELEMENT == 0
    *reinterpret_cast<float4 *>(to) = w;
#else
    union {
        uint2 raw;
        Element elements[4];
    } four;
    store(&four.elements[0], w.x), store(&four.elements[1], w.y);
    store(&four.elements[2], w.z), store(&four.elements[3], w.w);
    *reinterpret_cast<uint2 *>(to) = four.raw;
#endif
}

// schedule = [inverse loss scale, 1 / (1 - b1^t), 1 / (1 - b2^t), rate 0, rate 1, ...].
extern "C" __global__ void __launch_bounds__(UPDATE_THREADS)
    adamw(const Tensor *tensors, int num_tensors, const float *schedule, const float *norm, float beta1, float beta2,
          float eps, float clip_norm) {
    follow();
    if (norm[1] == 0.0f) return;
    const Tensor tensor = tensors[tensor_of_block(tensors, num_tensors)];
    float rate = schedule[3 + tensor.rate], clip = 1.0f;
    if (clip_norm > 0.0f) clip = fminf(1.0f, clip_norm / (norm[0] * schedule[0] + 1e-6f));
    const StepNumbers numbers = {beta1, beta2, eps, clip * schedule[0], rate * schedule[1], sqrtf(schedule[2]),
                             1.0f - rate * tensor.weight_decay, tensor.maximum};
    i64 start = ((i64)blockIdx.x - tensor.first_chunk) * UPDATE_CHUNK;
    int count = (int)min(tensor.n - start, (i64)UPDATE_CHUNK), packed = count / 4 * 4;
    float *weight = tensor.weight + start, *m = tensor.m + start, *v = tensor.v + start;
    const float *gradient = tensor.gradient + start;
    Element *copy = tensor.copy ? tensor.copy + start : nullptr;
#pragma unroll 2
    for (int at = 4 * threadIdx.x; at < packed; at += 4 * UPDATE_THREADS) {
        float4 w4 = *reinterpret_cast<float4 *>(weight + at), m4 = *reinterpret_cast<float4 *>(m + at);
        float4 v4 = *reinterpret_cast<float4 *>(v + at), g4 = *reinterpret_cast<const float4 *>(gradient + at);
        numbers.step(w4.x, m4.x, v4.x, g4.x);
        numbers.step(w4.y, m4.y, v4.y, g4.y);
        numbers.step(w4.z, m4.z, v4.z, g4.z);
        numbers.step(w4.w, m4.w, v4.w, g4.w);
        *reinterpret_cast<float4 *>(weight + at) = w4;
        *reinterpret_cast<float4 *>(m + at) = m4;
        *reinterpret_cast<float4 *>(v + at) = v4;
        if (copy) store_copy(copy + at, w4);
    }
    int at = packed + threadIdx.x;
    if (at >= count) return;
    numbers.step(weight[at], m[at], v[at], gradient[at]);
    if (copy) store(copy + at, weight[at]);
}
