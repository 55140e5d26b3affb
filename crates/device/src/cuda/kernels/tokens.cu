// Pictures to patches, class token, token embedding, rows of tables, and one token per sample: a token by its index, or the mean
// of several tokens.

#define EMBEDDING_CHUNK 64
#define EMBEDDING_THREADS 64

// Sample of a row, with `per` rows per sample; rows are counted in 32 bits.
__device__ __forceinline__ i64 sample_of(i64 row, int per) { return (u32)row / (u32)per; }

// Stores a sum; A is Element or float.
template <int STEP, class A> __device__ __forceinline__ void store_sum(Element *to, const A *a, const float *b) {
    if constexpr (STEP == 1) {
        store(to, load(*a) + *b);
    } else {
        float left[PACK], right[PACK];
        load_pack(a, left);
        load_pack(b, right);
#pragma unroll
        for (int i = 0; i < PACK; i++) left[i] += right[i];
        store_pack(to, left);
    }
}

// Copies, or adds to the previous contents.
template <int STEP>
__device__ __forceinline__ void move(Element *to, const Element *from, bool accumulate) {
    if constexpr (STEP == 1) {
        if (accumulate) store(to, load(*to) + load(*from));
        else *to = *from;
    } else if (accumulate) {
        float values[PACK], before[PACK];
        load_pack(from, values);
        load_pack(to, before);
#pragma unroll
        for (int i = 0; i < PACK; i++) values[i] += before[i];
        store_pack(to, values);
    } else {
        *reinterpret_cast<uint4 *>(to) = *reinterpret_cast<const uint4 *>(from);
    }
}

// Loads STEP neighbouring pixels, 3 * STEP consecutive numbers.
template <int STEP> __device__ __forceinline__ void load_pixels(const u8 *from, float (&values)[3 * STEP]) {
    if constexpr (STEP == 8) {
#pragma unroll
        for (int word = 0; word < 3; word++) {
            uint2 raw = reinterpret_cast<const uint2 *>(from)[word];
#pragma unroll
            for (int i = 0; i < 8; i++) values[8 * word + i] = (float)((i < 4 ? raw.x : raw.y) >> (8 * (i % 4)) & 0xff);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 3; i++) values[i] = (float)from[i];
    }
}

template <int STEP> __device__ __forceinline__ void load_pixels(const float *from, float (&values)[3 * STEP]) {
    if constexpr (STEP == 8) {
#pragma unroll
        for (int i = 0; i < 24; i += 4) {
            float4 four = *reinterpret_cast<const float4 *>(from + i);
            values[i] = four.x, values[i + 1] = four.y, values[i + 2] = four.z, values[i + 3] = four.w;
        }
    } else {
#pragma unroll
        for (int i = 0; i < 3; i++) values[i] = from[i];
    }
}

// A thread turns STEP neighbouring pixels into STEP neighbours of each channel's plane: both sides access whole sectors, without
// shared memory. blockIdx.y: samples.
template <int STEP, class T>
__device__ __forceinline__ void cut(const T *pixels, Element *patches, int B, int height, int width, int p,
                                    const float (&scale)[3], const float (&shift)[3]) {
    int per_line = width / STEP, across = width / p, patch_elements = 3 * p * p;
    u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= (u32)(height * per_line)) return;
    int line = at / per_line, x = (at - line * per_line) * STEP;
    int down = line / p, right = x / p;
    i64 from = ((i64)line * width + x) * 3;
    i64 to = (i64)(down * across + right) * patch_elements + (line - down * p) * p + (x - right * p);
    for (int sample = blockIdx.y; sample < B; sample += gridDim.y) {
        i64 picture = (i64)sample * height * width * 3;
        float values[3 * STEP];
        load_pixels<STEP>(pixels + picture + from, values);
#pragma unroll
        for (int channel = 0; channel < 3; channel++) {
            Element *plane = patches + picture + to + channel * p * p;
            float out[STEP];
#pragma unroll
            for (int i = 0; i < STEP; i++) out[i] = values[3 * i + channel] * scale[channel] + shift[channel];
            if constexpr (STEP == 8) {
#pragma unroll
                for (int i = 0; i < 8; i += PACK) {
                    float pack[PACK];
#pragma unroll
                    for (int k = 0; k < PACK; k++) pack[k] = out[i + k];
                    store_pack(plane + i, pack);
                }
            } else {
                store(plane, out[0]);
            }
        }
    }
}

extern "C" __global__ void patchify_u8(const u8 *pixels, Element *patches, int B, int height, int width, int p,
                                       float scale0, float scale1, float scale2, float shift0, float shift1,
                                       float shift2) {
    follow();
    float scale[3] = {scale0, scale1, scale2}, shift[3] = {shift0, shift1, shift2};
    if (p % 8 == 0) cut<8>(pixels, patches, B, height, width, p, scale, shift);
    else cut<1>(pixels, patches, B, height, width, p, scale, shift);
}

extern "C" __global__ void patchify_f32(const float *pixels, Element *patches, int B, int height, int width, int p) {
    follow();
    float scale[3] = {1.0f, 1.0f, 1.0f}, shift[3] = {};
    if (p % 8 == 0) cut<8>(pixels, patches, B, height, width, p, scale, shift);
    else cut<1>(pixels, patches, B, height, width, p, scale, shift);
}

// Mixup and CutMix of bytes, normalised as in `patchify_u8`. mix: lambda, and the box [y0, y1) x [x0, x1) of the partner.
extern "C" __global__ void mix_pictures(const u8 *pixels, const u8 *partner, const float *mix, float *mixed, int B,
                                        int height, int width, float scale0, float scale1, float scale2, float shift0,
                                        float shift1, float shift2) {
    follow();
    float scale[3] = {scale0, scale1, scale2}, shift[3] = {shift0, shift1, shift2};
    for_places<1>((i64)B * height, width, [&](i64 row, int x) {
        i64 sample = sample_of(row, height), at = (row * width + x) * 3;
        int y = (int)(row - sample * height);
        const float *m = mix + sample * 5;
        bool boxed = m[1] <= y && y < m[3] && m[2] <= x && x < m[4];
#pragma unroll
        for (int channel = 0; channel < 3; channel++) {
            float own = pixels[at + channel], other = partner[at + channel];
            float value = boxed ? other : m[0] * own + (1.0f - m[0]) * other;
            mixed[at + channel] = value * scale[channel] + shift[channel];
        }
    });
}

// The first `prefix` tokens of a sample are the class token and further learned tokens.
template <int STEP>
__device__ __forceinline__ void prepend_class(const Element *patches, const float *class_kd, const float *positions,
                                              Element *x, int B, int tokens, int prefix, int width) {
    for_places<STEP>((i64)B * tokens, width, [&](i64 row, int column) {
        i64 sample = sample_of(row, tokens);
        int token = (int)(row - sample * tokens);
        Element *to = x + row * width + column;
        const float *position = positions + (i64)token * width + column;
        if (token < prefix) store_sum<STEP>(to, class_kd + (i64)token * width + column, position);
        else store_sum<STEP>(to, patches + (row - (sample + 1) * prefix) * width + column, position);
    });
}

extern "C" __global__ void class_token(const Element *patches, const float *class_kd, const float *positions, Element *x,
                                       int B, int tokens, int prefix, int width) {
    follow();
    if (width % PACK == 0) prepend_class<PACK>(patches, class_kd, positions, x, B, tokens, prefix, width);
    else prepend_class<1>(patches, class_kd, positions, x, B, tokens, prefix, width);
}

template <int STEP>
__device__ __forceinline__ void drop_class(const Element *dx, Element *dpatches, int B, int tokens, int prefix, int width,
                                           int accumulate) {
    for_places<STEP>((i64)B * (tokens - prefix), width, [&](i64 row, int column) {
        i64 from = row + (sample_of(row, tokens - prefix) + 1) * prefix;
        move<STEP>(dpatches + row * width + column, dx + from * width + column, accumulate);
    });
}

extern "C" __global__ void class_token_grad(const Element *dx, Element *dpatches, int B, int tokens, int prefix, int width,
                                            int accumulate) {
    follow();
    if (!dpatches || tokens <= prefix) return;
    if (width % PACK == 0) drop_class<PACK>(dx, dpatches, B, tokens, prefix, width, accumulate);
    else drop_class<1>(dx, dpatches, B, tokens, prefix, width, accumulate);
}

#define POSITION_THREADS 512
// Lanes side by side in a row; other lanes take other samples.
#define POSITION_LANES 8

// Sums over samples. blockIdx.y: token. blockIdx.x: POSITION_LANES * PACK columns.
extern "C" __global__ void __launch_bounds__(POSITION_THREADS)
    positions_grad(const Element *dx, float *dpositions, float *dclass, int B, int tokens, int prefix, int width,
                   int accumulate) {
    follow();
    __shared__ float shared[POSITION_THREADS / WARP][POSITION_LANES * PACK];
    int lane = threadIdx.x % POSITION_LANES, first = blockIdx.x * POSITION_LANES * PACK, token = blockIdx.y;
    i64 stride = (i64)tokens * width;
    dx += (i64)token * width + first;
    float sums[PACK] = {};
    bool packs = width % PACK == 0;
    int sample = threadIdx.x / POSITION_LANES;
    const int step = POSITION_THREADS / POSITION_LANES;
    if (packs && first + lane * PACK < width) {
#pragma unroll 4
        for (; sample < B; sample += step) {
            float values[PACK];
            load_pack(dx + sample * stride + lane * PACK, values);
#pragma unroll
            for (int i = 0; i < PACK; i++) sums[i] += values[i];
        }
    } else if (!packs) {
        for (; sample < B; sample += step)
#pragma unroll
            for (int i = 0; i < PACK; i++) {
                int column = i * POSITION_LANES + lane;
                if (first + column < width) sums[i] += load(dx[sample * stride + column]);
            }
    }
#pragma unroll
    for (int i = 0; i < PACK; i++) {
#pragma unroll
        for (int offset = POSITION_LANES; offset < WARP; offset *= 2)
            sums[i] += __shfl_xor_sync(ALL_LANES, sums[i], offset);
        if (threadIdx.x % WARP < POSITION_LANES)
            shared[threadIdx.x / WARP][packs ? lane * PACK + i : i * POSITION_LANES + lane] = sums[i];
    }
    __syncthreads();
    int column = first + threadIdx.x;
    if (threadIdx.x >= POSITION_LANES * PACK || column >= width) return;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < POSITION_THREADS / WARP; i++) sum += shared[i][threadIdx.x];
    float *to = dpositions + (i64)token * width + column;
    *to = accumulate ? *to + sum : sum;
    if (token < prefix) dclass[(i64)token * width + column] += sum;
}

// y[b, i] = x[b, i] + table[i / repeat].
template <int STEP>
__device__ __forceinline__ void add_rows(const Element *x, const float *table, Element *y, i64 rows, int tokens, int repeat,
                                         int width, i64 x_stride) {
    for_places<STEP>(rows, width, [&](i64 row, int column) {
        int token = (int)(row - sample_of(row, tokens) * tokens);
        const float *entry = table + (i64)(token / repeat) * width;
        store_sum<STEP>(y + row * width + column, x + row * x_stride + column, entry + column);
    });
}

extern "C" __global__ void add_positions(const Element *x, const float *table, Element *y, i64 rows, int tokens, int repeat,
                                         int width, i64 x_stride) {
    follow();
    bool packs = (width | x_stride) % PACK == 0 && aligned(x) && aligned(table) && aligned(y);
    if (packs) add_rows<PACK>(x, table, y, rows, tokens, repeat, width, x_stride);
    else add_rows<1>(x, table, y, rows, tokens, repeat, width, x_stride);
}

// y[b] = table.
template <int STEP>
__device__ __forceinline__ void copy_table(const float *table, Element *y, i64 rows, int entries, int width) {
    for_places<STEP>(rows, width, [&](i64 row, int column) {
        const float *from = table + (row - sample_of(row, entries) * entries) * width + column;
        Element *to = y + row * width + column;
        if constexpr (STEP == 1) {
            store(to, *from);
        } else {
            float values[STEP];
            load_pack(from, values);
            store_pack(to, values);
        }
    });
}

extern "C" __global__ void repeat_table(const float *table, Element *y, i64 rows, int entries, int width) {
    follow();
    if (width % PACK == 0 && aligned(table) && aligned(y)) copy_table<PACK>(table, y, rows, entries, width);
    else copy_table<1>(table, y, rows, entries, width);
}

template <int STEP>
__device__ __forceinline__ void look_up(const i64 *ids, const float *table, const float *positions, Element *x, i64 rows,
                                        int tokens, int width) {
    for_places<STEP>(rows, width, [&](i64 row, int column) {
        i64 token = row - sample_of(row, tokens) * tokens;
        store_sum<STEP>(x + row * width + column, table + ids[row] * width + column, positions + token * width + column);
    });
}

extern "C" __global__ void embedding(const i64 *ids, const float *table, const float *positions, Element *x, i64 rows,
                                     int tokens, int width) {
    follow();
    if (width % PACK == 0) look_up<PACK>(ids, table, positions, x, rows, tokens, width);
    else look_up<1>(ids, table, positions, x, rows, tokens, width);
}

// dtable[ids[p]] += dx[p], equal ids in the order of their positions: `order` lists positions sorted by id, then -1 for positions
// that are left out.
//
// A block sums the runs of equal ids in its chunk of `order`. A run within the chunk contains all positions of its id, and is added to
// the table. A run that crosses an edge goes to partials[chunk][slot]: slot 0 if it began before the chunk, else 1.

// The id at an index of `order`, or -1 past the last.
__device__ __forceinline__ i64 id_at(const i64 *ids, const i64 *order, i64 place, i64 count_all) {
    i64 position = place < count_all ? order[place] : -1;
    return position < 0 ? -1 : ids[position];
}

// blockIdx.x: chunk. blockIdx.y: EMBEDDING_THREADS * PACK columns.
extern "C" __global__ void __launch_bounds__(EMBEDDING_THREADS)
    embedding_grad(const Element *dx, const i64 *ids, const i64 *order, float *dtable, float *partials, i64 count_all,
                   int width) {
    follow();
    const int AHEAD = 8; // rows in flight
    __shared__ i64 positions[EMBEDDING_CHUNK], run_ids[EMBEDDING_CHUNK];
    __shared__ i64 id_before, id_after;
    i64 start = (i64)blockIdx.x * EMBEDDING_CHUNK;
    {
        int entry = threadIdx.x;
        i64 place = start + entry;
        positions[entry] = place < count_all ? order[place] : -1;
        run_ids[entry] = positions[entry] < 0 ? -1 : ids[positions[entry]];
        if (entry == 0) id_before = start > 0 ? id_at(ids, order, start - 1, count_all) : -1;
        if (entry == 1) id_after = id_at(ids, order, start + EMBEDDING_CHUNK, count_all);
    }
    __syncthreads();
    bool packs = width % PACK == 0;
    int first = blockIdx.y * EMBEDDING_THREADS * PACK, columns[PACK];
#pragma unroll
    for (int i = 0; i < PACK; i++)
        columns[i] = first + (packs ? (int)threadIdx.x * PACK + i : i * EMBEDDING_THREADS + (int)threadIdx.x);
    float *slots = partials + (i64)blockIdx.x * 2 * width;
    float sums[PACK] = {};
    bool crosses_start = run_ids[0] == id_before;
    for (int base = 0; base < EMBEDDING_CHUNK && run_ids[base] >= 0; base += AHEAD) {
        float values[AHEAD][PACK];
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            const Element *row = dx + positions[base + k] * width;
            bool counts = run_ids[base + k] >= 0;
            if (packs) {
                if (counts && columns[0] < width) load_pack(row + columns[0], values[k]);
            } else {
#pragma unroll
                for (int i = 0; i < PACK; i++)
                    if (counts && columns[i] < width) values[k][i] = load(row[columns[i]]);
            }
        }
#pragma unroll
        for (int k = 0; k < AHEAD; k++) {
            int entry = base + k;
            i64 id = run_ids[entry];
            if (id < 0) break;
            i64 next = entry + 1 < EMBEDDING_CHUNK ? run_ids[entry + 1] : id_after;
#pragma unroll
            for (int i = 0; i < PACK; i++) sums[i] += values[k][i];
            bool last = entry + 1 == EMBEDDING_CHUNK;
            if (next == id && !last) continue;
            bool whole = !crosses_start && next != id;
            float *to = whole ? dtable + id * width : slots + (crosses_start ? 0 : width);
#pragma unroll
            for (int i = 0; i < PACK; i++) {
                if (columns[i] < width) to[columns[i]] = whole ? to[columns[i]] + sums[i] : sums[i];
                sums[i] = 0.0f;
            }
            crosses_start = false;
        }
    }
}

#define RUN_WARPS 16

// For a run that crosses the end of the chunk it begins in: adds up its parts, and adds the total to the table.
// blockIdx.x: chunk. blockIdx.y: 4 * WARP columns.
extern "C" __global__ void __launch_bounds__(RUN_WARPS *WARP)
    embedding_grad_finish(const i64 *ids, const i64 *order, const float *partials, float *dtable, i64 count_all,
                          int width) {
    follow();
    i64 chunk = blockIdx.x, start = chunk * EMBEDDING_CHUNK, after = start + EMBEDDING_CHUNK;
    i64 id = id_at(ids, order, after, count_all);
    if (id < 0 || id_at(ids, order, after - 1, count_all) != id) return;
    if (start > 0 && id_at(ids, order, start - 1, count_all) == id) return; // it began before this chunk
    // Chunks that begin with this id are consecutive: counts them, a block's worth at a time.
    i64 num_chunks = 1;
    for (int found = blockDim.x; found == blockDim.x; num_chunks += found)
        found = __syncthreads_count(
            id_at(ids, order, (chunk + num_chunks + threadIdx.x) * EMBEDDING_CHUNK, count_all) == id);

    __shared__ float shared[RUN_WARPS][4 * WARP];
    int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, first = blockIdx.y * 4 * WARP;
    float sums[4] = {};
#pragma unroll 4
    for (i64 k = warp; k < num_chunks; k += RUN_WARPS) {
        const float *slot = partials + ((chunk + k) * 2 + (k == 0)) * width;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int column = first + i * WARP + lane;
            if (column < width) sums[i] += slot[column];
        }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) shared[warp][i * WARP + lane] = sums[i];
    __syncthreads();
    int column = first + threadIdx.x;
    if (threadIdx.x >= 4 * WARP || column >= width) return;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < RUN_WARPS; i++) sum += shared[i][threadIdx.x];
    dtable[id * width + column] += sum;
}

template <int STEP>
__device__ __forceinline__ void gather(const Element *x, const i64 *index, Element *y, int B, int tokens, int width,
                                       i64 y_stride) {
    for_places<STEP>(B, width, [&](i64 sample, int column) {
        const Element *from = x + (sample * tokens + index[sample]) * width + column;
        move<STEP>(y + sample * y_stride + column, from, false);
    });
}

extern "C" __global__ void gather_rows(const Element *x, const i64 *index, Element *y, int B, int tokens, int width,
                                       i64 y_stride) {
    follow();
    if ((width | y_stride) % PACK == 0) gather<PACK>(x, index, y, B, tokens, width, y_stride);
    else gather<1>(x, index, y, B, tokens, width, y_stride);
}

template <int STEP>
__device__ __forceinline__ void scatter(const Element *dy, const i64 *index, Element *dx, int B, int tokens, int width,
                                        i64 dy_stride) {
    for_places<STEP>(B, width, [&](i64 sample, int column) {
        Element *to = dx + (sample * tokens + index[sample]) * width + column;
        move<STEP>(to, dy + sample * dy_stride + column, true);
    });
}

extern "C" __global__ void scatter_rows(const Element *dy, const i64 *index, Element *dx, int B, int tokens, int width,
                                        i64 dy_stride) {
    follow();
    if ((width | dy_stride) % PACK == 0) scatter<PACK>(dy, index, dx, B, tokens, width, dy_stride);
    else scatter<1>(dy, index, dx, B, tokens, width, dy_stride);
}

// Loads and stores STEP neighbours as floats.
template <int STEP> __device__ __forceinline__ void load_step(const Element *from, float (&values)[STEP]) {
    if constexpr (STEP == 1) values[0] = load(*from);
    else load_pack(from, values);
}

template <int STEP> __device__ __forceinline__ void store_step(Element *to, const float (&values)[STEP]) {
    if constexpr (STEP == 1) store(to, values[0]);
    else store_pack(to, values);
}

// End of the tokens that count: of a sample's tokens from `first` on, all or the first `lengths`.
__device__ __forceinline__ int end_of(const i64 *lengths, i64 sample, int first, int tokens) {
    if (lengths == nullptr) return tokens;
    i64 length = lengths[sample];
    return length < 0 ? first : length < tokens - first ? first + (int)length : tokens;
}

// Each thread adds up its columns' tokens in order. `lengths` may be null; the mean of no tokens is zero.
template <int STEP>
__device__ __forceinline__ void mean_of(const Element *x, const i64 *lengths, Element *y, int B, int tokens, int first,
                                        int width, i64 x_stride, i64 y_stride) {
    for_places<STEP>(B, width, [&](i64 sample, int column) {
        int end = end_of(lengths, sample, first, tokens);
        float sums[STEP] = {}, values[STEP], share = end > first ? 1.0f / (end - first) : 0.0f;
#pragma unroll 8
        for (int token = first; token < end; token++) {
            load_step<STEP>(x + (sample * tokens + token) * x_stride + column, values);
#pragma unroll
            for (int i = 0; i < STEP; i++) sums[i] += values[i];
        }
#pragma unroll
        for (int i = 0; i < STEP; i++) sums[i] *= share;
        store_step<STEP>(y + sample * y_stride + column, sums);
    });
}

extern "C" __global__ void mean_tokens(const Element *x, const i64 *lengths, Element *y, int B, int tokens, int first,
                                       int width, i64 x_stride, i64 y_stride) {
    follow();
    bool packs = (width | x_stride | y_stride) % PACK == 0 && aligned(x) && aligned(y);
    if (packs) mean_of<PACK>(x, lengths, y, B, tokens, first, width, x_stride, y_stride);
    else mean_of<1>(x, lengths, y, B, tokens, first, width, x_stride, y_stride);
}

template <int STEP>
__device__ __forceinline__ void spread(const Element *dy, const i64 *lengths, Element *dx, int B, int tokens, int first,
                                       int width, i64 dy_stride, i64 dx_stride, int accumulate) {
    for_places<STEP>((i64)B * tokens, width, [&](i64 row, int column) {
        i64 sample = sample_of(row, tokens);
        int token = (int)(row - sample * tokens), end = end_of(lengths, sample, first, tokens);
        bool counts = token >= first && token < end;
        if (!counts && accumulate) return;
        Element *to = dx + row * dx_stride + column;
        float values[STEP] = {}, before[STEP] = {}, share = counts ? 1.0f / (end - first) : 0.0f;
        if (counts) load_step<STEP>(dy + sample * dy_stride + column, values);
        if (accumulate) load_step<STEP>(to, before);
#pragma unroll
        for (int i = 0; i < STEP; i++) values[i] = before[i] + values[i] * share;
        store_step<STEP>(to, values);
    });
}

extern "C" __global__ void mean_tokens_grad(const Element *dy, const i64 *lengths, Element *dx, int B, int tokens, int first,
                                            int width, i64 dy_stride, i64 dx_stride, int accumulate) {
    follow();
    bool packs = (width | dy_stride | dx_stride) % PACK == 0 && aligned(dy) && aligned(dx);
    if (packs) spread<PACK>(dy, lengths, dx, B, tokens, first, width, dy_stride, dx_stride, accumulate);
    else spread<1>(dy, lengths, dx, B, tokens, first, width, dy_stride, dx_stride, accumulate);
}
