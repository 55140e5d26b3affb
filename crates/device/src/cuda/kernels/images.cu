// Pictures [n, h, w, c]: pooling, upsampling, and conversion of pixels to floats. Pixels of an operand are `stride` elements apart.
//
// All kernels run at memory bandwidth: a thread has 16 bytes of neighbouring channels where sizes, strides and addresses allow it,
// otherwise
// a single channel. Gradients are gathered, never scattered: each element is written by one thread.

// A row of pixels, and the column within it. Pixels are counted in 32 bits.
struct Pixel {
    i64 line;
    int x;
};

__device__ __forceinline__ Pixel pixel_at(i64 pixel, int width) {
    u32 line = (u32)pixel / (u32)width;
    return {(i64)line, (int)((u32)pixel - line * width)};
}

template <int VEC>
__device__ __forceinline__ void write(Element *to, const float (&values)[VEC], int accumulate) {
    Numbers<VEC> numbers;
    if (accumulate) numbers.read(to);
#pragma unroll
    for (int i = 0; i < VEC; i++) numbers.set(i, accumulate ? numbers.at(i) + values[i] : values[i]);
    numbers.write(to);
}

// Side of a window: the compile-time constant, or the launch argument if SIZE is 0.
template <int SIZE> __device__ __forceinline__ int side(int size) { return SIZE ? SIZE : size; }

// pixels, width: of y.
template <int VEC, int SIZE>
__device__ __forceinline__ void pool(const Element *x, Element *y, i64 pixels, int width, int channels, i64 x_stride,
                                     i64 y_stride, int runtime_size, int average) {
    int size = side<SIZE>(runtime_size);
    for_places<VEC>(pixels, channels, [&](i64 pixel, i64 channel) {
        Pixel to = pixel_at(pixel, width);
        const Element *window = x + ((to.line * size * width + to.x) * size) * x_stride + channel;
        float values[VEC];
#pragma unroll SIZE ? SIZE : 1
        for (int i = 0; i < size; i++)
#pragma unroll SIZE ? SIZE : 1
            for (int j = 0; j < size; j++) {
                Numbers<VEC> from;
                from.read(window + ((i64)i * width * size + j) * x_stride);
#pragma unroll
                for (int k = 0; k < VEC; k++) {
                    float value = from.at(k);
                    if (i + j == 0) values[k] = value;
                    else if (average) values[k] += value;
                    else if (value > values[k] || value != value) values[k] = value; // what is no number stays so
                }
            }
        float scale = average ? 1.0f / (size * size) : 1.0f;
#pragma unroll
        for (int k = 0; k < VEC; k++) values[k] *= scale;
        write<VEC>(y + pixel * y_stride + channel, values, 0);
    });
}

extern "C" __global__ void pool2d(const Element *x, Element *y, i64 pixels, int width, int channels, i64 x_stride, i64 y_stride,
                                  int size, int average, int packed) {
    follow();
    if (packed && size == 2) pool<PACK, 2>(x, y, pixels, width, channels, x_stride, y_stride, size, average);
    else if (packed) pool<PACK, 0>(x, y, pixels, width, channels, x_stride, y_stride, size, average);
    else pool<1, 0>(x, y, pixels, width, channels, x_stride, y_stride, size, average);
}

// A thread has a window: the first maximum in row order gets dy. If x is null, the pooling is a mean.
template <int VEC, int SIZE>
__device__ __forceinline__ void pool_grad(const Element *dy, const Element *x, Element *dx, i64 pixels, int width, int channels,
                                          i64 dy_stride, i64 x_stride, i64 dx_stride, int runtime_size, int accumulate) {
    int size = side<SIZE>(runtime_size);
    for_places<VEC>(pixels, channels, [&](i64 pixel, i64 channel) {
        Pixel at = pixel_at(pixel, width);
        i64 first = (at.line * size * width + at.x) * size;
        Numbers<VEC> d;
        d.read(dy + pixel * dy_stride + channel);
        float largest[VEC];
        int place[VEC];
#pragma unroll
        for (int k = 0; k < VEC; k++) largest[k] = 0.0f, place[k] = 0;
        if (x) {
#pragma unroll SIZE ? SIZE : 1
            for (int i = 0; i < size; i++)
#pragma unroll SIZE ? SIZE : 1
                for (int j = 0; j < size; j++) {
                    Numbers<VEC> from;
                    from.read(x + (first + (i64)i * width * size + j) * x_stride + channel);
#pragma unroll
                    for (int k = 0; k < VEC; k++) {
                        float value = from.at(k);
                        if (i + j == 0 || value > largest[k] || value != value) largest[k] = value, place[k] = i * size + j;
                    }
                }
        }
        float scale = 1.0f / (size * size);
#pragma unroll SIZE ? SIZE : 1
        for (int i = 0; i < size; i++)
#pragma unroll SIZE ? SIZE : 1
            for (int j = 0; j < size; j++) {
                float values[VEC];
#pragma unroll
                for (int k = 0; k < VEC; k++)
                    values[k] = !x ? d.at(k) * scale : place[k] == i * size + j ? d.at(k) : 0.0f;
                write<VEC>(dx + (first + (i64)i * width * size + j) * dx_stride + channel, values, accumulate);
            }
    });
}

extern "C" __global__ void pool2d_grad(const Element *dy, const Element *x, Element *dx, i64 pixels, int width, int channels,
                                       i64 dy_stride, i64 x_stride, i64 dx_stride, int size, int accumulate, int packed) {
    follow();
    if (packed && size == 2)
        pool_grad<PACK, 2>(dy, x, dx, pixels, width, channels, dy_stride, x_stride, dx_stride, size, accumulate);
    else if (packed) pool_grad<PACK, 0>(dy, x, dx, pixels, width, channels, dy_stride, x_stride, dx_stride, size, accumulate);
    else pool_grad<1, 0>(dy, x, dx, pixels, width, channels, dy_stride, x_stride, dx_stride, size, accumulate);
}

// A thread has a pixel of x and writes all pixels that it becomes. pixels, width: of x.
template <int VEC>
__device__ __forceinline__ void repeat(const Element *x, Element *y, i64 pixels, int width, int channels, i64 x_stride,
                                       i64 y_stride, int factor) {
    for_places<VEC>(pixels, channels, [&](i64 pixel, i64 channel) {
        Pixel at = pixel_at(pixel, width);
        i64 first = (at.line * factor * width + at.x) * factor;
        Numbers<VEC> value;
        value.read(x + pixel * x_stride + channel);
        for (int i = 0; i < factor; i++)
            for (int j = 0; j < factor; j++) value.write(y + (first + (i64)i * width * factor + j) * y_stride + channel);
    });
}

extern "C" __global__ void upsample_nearest(const Element *x, Element *y, i64 pixels, int width, int channels, i64 x_stride,
                                            i64 y_stride, int factor, int packed) {
    follow();
    if (packed) repeat<PACK>(x, y, pixels, width, channels, x_stride, y_stride, factor);
    else repeat<1>(x, y, pixels, width, channels, x_stride, y_stride, factor);
}

template <int VEC>
__device__ __forceinline__ void repeat_grad(const Element *dy, Element *dx, i64 pixels, int width, int channels, i64 dy_stride,
                                            i64 dx_stride, int factor, int accumulate) {
    for_places<VEC>(pixels, channels, [&](i64 pixel, i64 channel) {
        Pixel at = pixel_at(pixel, width);
        i64 first = (at.line * factor * width + at.x) * factor;
        float sums[VEC] = {};
        for (int i = 0; i < factor; i++)
            for (int j = 0; j < factor; j++) {
                Numbers<VEC> d;
                d.read(dy + (first + (i64)i * width * factor + j) * dy_stride + channel);
#pragma unroll
                for (int k = 0; k < VEC; k++) sums[k] += d.at(k);
            }
        write<VEC>(dx + pixel * dx_stride + channel, sums, accumulate);
    });
}

extern "C" __global__ void upsample_nearest_grad(const Element *dy, Element *dx, i64 pixels, int width, int channels,
                                                 i64 dy_stride, i64 dx_stride, int factor, int accumulate, int packed) {
    follow();
    if (packed) repeat_grad<PACK>(dy, dx, pixels, width, channels, dy_stride, dx_stride, factor, accumulate);
    else repeat_grad<1>(dy, dx, pixels, width, channels, dy_stride, dx_stride, factor, accumulate);
}

// Position of a pixel of y between two pixels of x: (i + 1/2) / factor - 1/2, clamped to the first and last pixel.
struct Between {
    int low, high;
    float share;
};

__device__ __forceinline__ Between between(int i, int factor, int size) {
    int halves = max(2 * i + 1 - factor, 0), low = halves / (2 * factor);
    return {low, min(low + 1, size - 1), (float)(halves - low * 2 * factor) / (float)(2 * factor)};
}

// pixels: of y; height, width: of x.
template <int VEC>
__device__ __forceinline__ void bilinear(const Element *x, Element *y, i64 pixels, int height, int width, int channels,
                                         i64 x_stride, i64 y_stride, int factor) {
    for_places<VEC>(pixels, channels, [&](i64 pixel, i64 channel) {
        Pixel at = pixel_at(pixel, width * factor), line = pixel_at(at.line, height * factor);
        Between v = between(line.x, factor, height), h = between(at.x, factor, width);
        const Element *low = x + (line.line * height + v.low) * width * x_stride + channel;
        const Element *high = x + (line.line * height + v.high) * width * x_stride + channel;
        Numbers<VEC> a, b, c, d;
        a.read(low + h.low * x_stride), b.read(low + h.high * x_stride);
        c.read(high + h.low * x_stride), d.read(high + h.high * x_stride);
        float values[VEC];
#pragma unroll
        for (int k = 0; k < VEC; k++) {
            float upper = (1.0f - h.share) * a.at(k) + h.share * b.at(k);
            float lower = (1.0f - h.share) * c.at(k) + h.share * d.at(k);
            values[k] = (1.0f - v.share) * upper + v.share * lower;
        }
        write<VEC>(y + pixel * y_stride + channel, values, 0);
    });
}

extern "C" __global__ void upsample_bilinear(const Element *x, Element *y, i64 pixels, int height, int width, int channels,
                                             i64 x_stride, i64 y_stride, int factor, int packed) {
    follow();
    if (packed) bilinear<PACK>(x, y, pixels, height, width, channels, x_stride, y_stride, factor);
    else bilinear<1>(x, y, pixels, height, width, channels, x_stride, y_stride, factor);
}

// The pixels of y that depend on a pixel of x.
struct Readers {
    int first, last;
};

__device__ __forceinline__ Readers readers(int i, int factor, int size) {
    return {max(factor * (i - 1) + (factor - 1) / 2, 0), min(factor * (i + 1) + factor / 2, size * factor - 1)};
}

__device__ __forceinline__ float share_of(const Between &b, int i) {
    return (b.low == i ? 1.0f - b.share : 0.0f) + (b.high == i ? b.share : 0.0f);
}

// pixels, height, width: of x.
template <int VEC>
__device__ __forceinline__ void bilinear_grad(const Element *dy, Element *dx, i64 pixels, int height, int width, int channels,
                                              i64 dy_stride, i64 dx_stride, int factor, int accumulate) {
    for_places<VEC>(pixels, channels, [&](i64 pixel, i64 channel) {
        Pixel at = pixel_at(pixel, width), line = pixel_at(at.line, height);
        Readers rows = readers(line.x, factor, height), columns = readers(at.x, factor, width);
        float sums[VEC] = {};
        for (int i = rows.first; i <= rows.last; i++) {
            float row = share_of(between(i, factor, height), line.x);
            i64 from = (line.line * height * factor + i) * (width * factor);
            for (int j = columns.first; j <= columns.last; j++) {
                float share = row * share_of(between(j, factor, width), at.x);
                Numbers<VEC> d;
                d.read(dy + (from + j) * dy_stride + channel);
#pragma unroll
                for (int k = 0; k < VEC; k++) sums[k] += share * d.at(k);
            }
        }
        write<VEC>(dx + pixel * dx_stride + channel, sums, accumulate);
    });
}

extern "C" __global__ void upsample_bilinear_grad(const Element *dy, Element *dx, i64 pixels, int height, int width, int channels,
                                                  i64 dy_stride, i64 dx_stride, int factor, int accumulate, int packed) {
    follow();
    if (packed) bilinear_grad<PACK>(dy, dx, pixels, height, width, channels, dy_stride, dx_stride, factor, accumulate);
    else bilinear_grad<1>(dy, dx, pixels, height, width, channels, dy_stride, dx_stride, factor, accumulate);
}

// Storage formats of pixels.
struct Byte {
    static const int SIZE = 1;
    static __device__ __forceinline__ float at(const u8 *from) { return (float)*from; }
};

// Little-endian 16-bit number, at any address.
struct TwoBytes {
    static const int SIZE = 2;
    static __device__ __forceinline__ float at(const u8 *from) { return (float)(from[0] | from[1] << 8); }
};

struct Float {
    static const int SIZE = 4;
    static __device__ __forceinline__ float at(const u8 *from) { return *reinterpret_cast<const float *>(from); }
};

struct Compute {
    static const int SIZE = sizeof(Element);
    static __device__ __forceinline__ float at(const u8 *from) { return load(*reinterpret_cast<const Element *>(from)); }
};

// Channels of a pixel per launch; channels after the last are zeros.
#define NORMALIZED 8

template <class Format>
__device__ __forceinline__ void normalize_all(const u8 *pixels, Element *y, i64 num_pixels, int height, int width, i64 sample_bytes,
                                              i64 line_bytes, i64 pixel_bytes, i64 y_stride, int first, int channels,
                                              const float (&factor)[NORMALIZED], const float (&shift)[NORMALIZED]) {
    for (i64 pixel = first_thread(); pixel < num_pixels; pixel += all_threads()) {
        Pixel at = pixel_at(pixel, width), line = pixel_at(at.line, height);
        const u8 *from = pixels + line.line * sample_bytes + line.x * line_bytes + at.x * pixel_bytes + first * Format::SIZE;
        Element *to = y + pixel * y_stride + first;
#pragma unroll
        for (int i = 0; i < NORMALIZED; i += PACK) {
            float values[PACK];
#pragma unroll
            for (int k = 0; k < PACK; k++) {
                int channel = i + k;
                values[k] = 0.0f;
                if (first + channel < channels)
                    values[k] = Format::at(from + channel * Format::SIZE) * factor[channel] + shift[channel];
            }
            store_pack(to + i, values);
        }
    }
}

// format 0: bytes, 1: two bytes each, 2: f32, 3: Elements. y is 16-byte aligned, y_stride a multiple of NORMALIZED.
extern "C" __global__ void normalize_pixels(const u8 *pixels, Element *y, i64 num_pixels, int height, int width, i64 sample_bytes,
                                            i64 line_bytes, i64 pixel_bytes, i64 y_stride, int first, int channels, int format,
                                            float factor0, float factor1, float factor2, float factor3, float factor4,
                                            float factor5, float factor6, float factor7, float shift0, float shift1, float shift2,
                                            float shift3, float shift4, float shift5, float shift6, float shift7) {
    follow();
    float factor[NORMALIZED] = {factor0, factor1, factor2, factor3, factor4, factor5, factor6, factor7};
    float shift[NORMALIZED] = {shift0, shift1, shift2, shift3, shift4, shift5, shift6, shift7};
#define NORMALIZE(Format)                                                                                                  \
    normalize_all<Format>(pixels, y, num_pixels, height, width, sample_bytes, line_bytes, pixel_bytes, y_stride, first,    \
                          channels, factor, shift)
    if (format == 0) NORMALIZE(Byte);
    else if (format == 1) NORMALIZE(TwoBytes);
    else if (format == 2) NORMALIZE(Float);
    else NORMALIZE(Compute);
}
