// o = softmax(scale * q k^T + mask) v and its gradients on tensor cores, for 2-byte Elements and heads of 32 or 64.
//
// Legend: B samples, T queries, S keys, H heads side by side in the width, HEAD dims each. A warp owns 16 rows of its
// result (queries, or keys in dk and dv) and loops over the other side in groups of 16. Scores stay in registers: the result
// of one product (rows lane / 4 and lane / 4 + 8) is the left side of the next.
//
// There are no atomic additions: the same inputs give the same bits. `scale` must be positive. Keys beyond a sample's length
// are never read.

#if ELEMENT != 0

#define LOG2_E 1.4426950408889634f
#define LN_2 0.6931471805599453f
#define INFINITE __int_as_float(0x7f800000)

__device__ __forceinline__ float unpack(u32 word, int half) {
    Element element = {(u16)(word >> (16 * half))};
    return load(element);
}

__device__ __forceinline__ int lane_index() { return threadIdx.x % WARP; }

// Sum over the four lanes that share a row.
__device__ __forceinline__ float row_sum(float value) {
    value += __shfl_xor_sync(ALL_LANES, value, 1);
    return value + __shfl_xor_sync(ALL_LANES, value, 2);
}

__device__ __forceinline__ float row_max(float value) {
    value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, 1));
    return fmaxf(value, __shfl_xor_sync(ALL_LANES, value, 2));
}

__device__ __forceinline__ int key_count(const i64 *key_lengths, int b, int S) {
    if (key_lengths == nullptr) return S;
    i64 length = key_lengths[b];
    return length < 0 ? 0 : length < S ? (int)length : S;
}

// Number of keys that a query attends to; zero for a row beyond the last query.
__device__ __forceinline__ int visible_keys(int query, int T, int num_keys, int causal) {
    if (query >= T) return 0;
    return causal ? min(num_keys, query + 1) : num_keys;
}

__device__ __forceinline__ int groups_of_16(int count) { return count <= 0 ? 0 : (count + 15) / 16; }

// Tiles in shared memory: rows of HEAD Elements, without padding. The 16-byte chunks of a row are permuted by the row's
// index, so that the eight rows of a matrix are in different banks.

template <int HEAD>
__device__ __forceinline__ u32 chunk_offset(int row, int chunk) {
    int swap = HEAD == 64 ? row & 7 : (row >> 1) & 3;
    return row * (HEAD * 2) + ((chunk ^ swap) << 4);
}

// Starts copying `rows` rows; rows from `present` on are zeros.
template <int HEAD, int ROWS, int THREADS>
__device__ __forceinline__ void copy_rows(u32 tile, const Element *from, i64 stride, int present, int rows = ROWS) {
    const int CHUNKS = HEAD / 8, STEP = THREADS / CHUNKS;
    int first = threadIdx.x / CHUNKS, chunk = threadIdx.x % CHUNKS;
    from += first * stride + chunk * 8;
#pragma unroll
    for (int i = 0; i < ROWS / STEP; i++) {
        int row = first + i * STEP;
        // A row that is not present is not read, so `from` may be invalid there.
        if (row < rows) copy_chunk(tile + chunk_offset<HEAD>(row, chunk), from, row < present);
        from += STEP * stride;
    }
}

// Address of this lane's row of the 16 x 16 block at (row, 8 * chunk), for load_matrices. The order of the four matrices is
// top left, bottom left, top right, bottom right.
template <int HEAD>
__device__ __forceinline__ u32 block_address(u32 tile, int row, int chunk) {
    return tile + chunk_offset<HEAD>(row + (lane_index() & 15), chunk + (lane_index() >> 4));
}

// Loads the warp's 16 rows of a tile as the left side of products.
template <int HEAD>
__device__ __forceinline__ void load_left(u32 (&left)[HEAD / 16][4], u32 tile, int row) {
#pragma unroll
    for (int k = 0; k < HEAD / 16; k++) load_matrices(left[k], block_address<HEAD>(tile, row, 2 * k));
}

// c (16 x 16) = left (16 x HEAD) (rows row..row + 16 of the tile)^T.
template <int HEAD>
__device__ __forceinline__ void products_with_rows(float (&c)[2][4], const u32 (&left)[HEAD / 16][4], u32 tile, int row) {
#pragma unroll
    for (int e = 0; e < 4; e++) c[0][e] = c[1][e] = 0.0f;
#pragma unroll
    for (int k = 0; k < HEAD / 16; k++) {
        u32 right[4];
        load_matrices(right, block_address<HEAD>(tile, row, 2 * k));
        multiply(c[0], left[k][0], left[k][1], left[k][2], left[k][3], right[0], right[2]);
        multiply(c[1], left[k][0], left[k][1], left[k][2], left[k][3], right[1], right[3]);
    }
}

// sum (16 x HEAD) += left (16 x 16) (rows row..row + 16 of the tile).
template <int HEAD>
__device__ __forceinline__ void add_weighted_rows(float (&sum)[HEAD / 8][4], const u32 (&left)[4], u32 tile, int row) {
#pragma unroll
    for (int n = 0; n < HEAD / 16; n++) {
        u32 right[4];
        load_matrices_transposed(right, block_address<HEAD>(tile, row, 2 * n));
        multiply(sum[2 * n], left[0], left[1], left[2], left[3], right[0], right[1]);
        multiply(sum[2 * n + 1], left[0], left[1], left[2], left[3], right[2], right[3]);
    }
}

template <int HEAD>
__device__ __forceinline__ void clear(float (&sum)[HEAD / 8][4]) {
#pragma unroll
    for (int n = 0; n < HEAD / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) sum[n][e] = 0.0f;
}

// Converts a 16 x 16 result to the left side of the next product.
__device__ __forceinline__ void pack_left(u32 (&left)[4], const float (&c)[2][4]) {
#pragma unroll
    for (int n = 0; n < 2; n++) {
        left[2 * n] = pack_pair(c[n][0], c[n][1]);
        left[2 * n + 1] = pack_pair(c[n][2], c[n][3]);
    }
}

// Writes 16 rows from `row` on, those below `rows`. Lanes of a row exchange words until each has 16 consecutive bytes.
template <int HEAD>
__device__ __forceinline__ void write_rows(Element *to, i64 stride, int row, int rows, const float (&values)[HEAD / 8][4],
                                           float scale_top, float scale_bottom, bool accumulate) {
    int t = lane_index() % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int at_row = row + lane_index() / 4 + 8 * half;
        float scale = half == 0 ? scale_top : scale_bottom;
#pragma unroll
        for (int j = 0; j < HEAD / 32; j++) {
            u32 words[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float(&c)[4] = values[4 * j + i];
                words[i] = pack_pair(c[2 * half] * scale, c[2 * half + 1] * scale);
            }
#pragma unroll
            for (int step = 1; step <= 2; step *= 2) {
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    int low = step == 1 ? 2 * i : i, high = low + step;
                    u32 received = __shfl_xor_sync(ALL_LANES, t & step ? words[low] : words[high], step);
                    if (t & step) words[low] = received;
                    else words[high] = received;
                }
            }
            if (at_row < rows) {
                Element *at = to + at_row * stride + (4 * j + t) * 8;
                if (accumulate) {
                    float sums[PACK];
                    load_pack(at, sums);
#pragma unroll
                    for (int i = 0; i < PACK; i++) sums[i] += unpack(words[i / 2], i % 2);
                    store_pack(at, sums);
                } else {
                    *reinterpret_cast<uint4 *>(at) = make_uint4(words[0], words[1], words[2], words[3]);
                }
            }
        }
    }
}

// Scores of the warp's queries and `groups` groups of keys of a tile, minus infinity for masked keys. WHOLE: all
// GROUPS are present and every query attends to every key.
template <int HEAD, int GROUPS, bool WHOLE>
__device__ __forceinline__ void scores(float (&s)[GROUPS][2][4], const u32 (&q)[HEAD / 16][4], u32 k_tile, int groups,
                                       int first_key, const int (&limit)[2]) {
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        if (!WHOLE && g >= groups) continue;
        products_with_rows<HEAD>(s[g], q, k_tile, 16 * g);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int key = first_key + 16 * g + i / 4 * 8 + lane_index() % 4 * 2 + i % 2;
            if (!WHOLE && key >= limit[i % 4 / 2]) s[g][i / 4][i % 4] = -INFINITE;
        }
    }
}

// Probabilities before normalisation, 2^(log2_scale * (s - max)), as left sides; updates the running maximum and this lane's part of
// the running sum. `rescale` is the factor for earlier sums. The running sum includes probabilities that the mask drops.
template <int GROUPS, bool WHOLE, class M>
__device__ __forceinline__ void weights(u32 (&p)[GROUPS][4], float (&s)[GROUPS][2][4], int groups, float (&maximum)[2],
                                        float (&sum)[2], float (&rescale)[2], float log2_scale, const M &mask, int row,
                                        int first_key) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float highest = maximum[half];
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            if (!WHOLE && g >= groups) continue;
#pragma unroll
            for (int i = 0; i < 4; i++) highest = fmaxf(highest, s[g][i / 2][2 * half + i % 2]);
        }
        highest = row_max(highest);
        // A row without any key so far: every probability is 2^-infinity, not 2^(infinity - infinity).
        float base = highest == -INFINITE ? 0.0f : highest * log2_scale;
        rescale[half] = power_of_two(maximum[half] * log2_scale - base);
        maximum[half] = highest;
        float added = 0.0f;
#pragma unroll
        for (int g = 0; g < GROUPS; g++) {
            if (!WHOLE && g >= groups) continue;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float &value = s[g][i / 2][2 * half + i % 2];
                value = power_of_two(value * log2_scale - base);
                added += value;
            }
        }
        sum[half] = sum[half] * rescale[half] + added;
    }
#pragma unroll
    for (int g = 0; g < GROUPS; g++) {
        if (!WHOLE && g >= groups) continue;
        if constexpr (M::DROPS) {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                int query = row + lane_index() / 4 + i % 4 / 2 * 8;
                s[g][i / 4][i % 4] *= mask.factor(query, first_key + 16 * g + i / 4 * 8 + lane_index() % 4 * 2 + i % 2);
            }
        }
        pack_left(p[g], s[g]);
    }
}

// Divides by the softmax sums and writes o and lse.
template <int HEAD>
__device__ __forceinline__ void write_forward(const float (&o_sum)[HEAD / 8][4], const float (&maximum)[2], float (&sum)[2],
                                              Element *o, i64 o_stride, float *lse, int row, int T, float scale) {
    float inverse[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        sum[half] = row_sum(sum[half]);
        inverse[half] = sum[half] > 0.0f ? 1.0f / sum[half] : 0.0f;
        int query = row + lane_index() / 4 + 8 * half;
        if (lse != nullptr && lane_index() % 4 == 0 && query < T) {
            lse[query] = maximum[half] * scale + LN_2 * __log2f(sum[half]);
        }
    }
    write_rows<HEAD>(o, o_stride, row, T, o_sum, inverse[0], inverse[1], false);
}

#define FORWARD_PARAMETERS                                                                                                 \
    const Element *q, const Element *k, const Element *v, const i64 *key_lengths, Element *o, float *lse, int B, int H,    \
        int T, int S, i64 q_stride, i64 kv_stride, i64 o_stride, float scale, int causal
#define FORWARD_ARGUMENTS q, k, v, key_lengths, o, lse, B, H, T, S, q_stride, kv_stride, o_stride, scale, causal

#define BACKWARD_PARAMETERS                                                                                                \
    const Element *do_, const Element *q, const Element *k, const Element *v, const Element *o, const float *lse,          \
        const i64 *key_lengths, Element *dq, Element *dk, Element *dv, int B, int H, int T, int S, i64 do_stride,          \
        i64 q_stride, i64 kv_stride, i64 o_stride, i64 dq_stride, i64 dkv_stride, float scale, int causal, int accumulate
#define BACKWARD_ARGUMENTS                                                                                                 \
    do_, q, k, v, o, lse, key_lengths, dq, dk, dv, B, H, T, S, do_stride, q_stride, kv_stride, o_stride, dq_stride,        \
        dkv_stride, scale, causal, accumulate

// Advances the pointers from whole tensors to one sample and head.
#define SELECT_FORWARD(b, h)                                                                                               \
    q += (i64)(b) * T * q_stride + (h) * HEAD;                                                                             \
    k += (i64)(b) * S * kv_stride + (h) * HEAD;                                                                            \
    v += (i64)(b) * S * kv_stride + (h) * HEAD;                                                                            \
    o += (i64)(b) * T * o_stride + (h) * HEAD;                                                                             \
    if (lse != nullptr) lse += ((i64)(b) * H + (h)) * T;
#define SELECT_BACKWARD(b, h)                                                                                              \
    SELECT_FORWARD(b, h)                                                                                                   \
    do_ += (i64)(b) * T * do_stride + (h) * HEAD;                                                                          \
    dq += (i64)(b) * T * dq_stride + (h) * HEAD;                                                                           \
    dk += (i64)(b) * S * dkv_stride + (h) * HEAD;                                                                          \
    dv += (i64)(b) * S * dkv_stride + (h) * HEAD;

// At most 16 * W queries and keys: one block per head of a sample. Grid (H, B), 32 * W threads.

template <int HEAD, int W>
__device__ __forceinline__ void forward_small(FORWARD_PARAMETERS) {
    const int ROWS = 16 * W, TILE = ROWS * HEAD * 2;
    __shared__ uint4 storage[3 * TILE / 16];
    u32 q_tile = shared_address(storage), k_tile = q_tile + TILE, v_tile = k_tile + TILE;
    int b = blockIdx.y, row = threadIdx.x / WARP * 16;
    SELECT_FORWARD(b, blockIdx.x)
    int num_keys = key_count(key_lengths, b, S);

    copy_rows<HEAD, ROWS, 2 * ROWS>(q_tile, q, q_stride, T, 16 * groups_of_16(T));
    copy_rows<HEAD, ROWS, 2 * ROWS>(k_tile, k, kv_stride, num_keys, 16 * groups_of_16(num_keys));
    commit_copies();
    copy_rows<HEAD, ROWS, 2 * ROWS>(v_tile, v, kv_stride, num_keys, 16 * groups_of_16(num_keys));
    commit_copies();

    int query = row + lane_index() / 4;
    int limit[2] = {visible_keys(query, T, num_keys, causal), visible_keys(query + 8, T, num_keys, causal)};
    int groups = row >= T ? 0 : groups_of_16(causal ? min(num_keys, row + 16) : num_keys);
    float maximum[2] = {-INFINITE, -INFINITE}, sum[2] = {0.0f, 0.0f};
    u32 p[W][4];

    wait_copies<1>();
    __syncthreads();
    if (row < T) {
        u32 q_left[HEAD / 16][4];
        load_left<HEAD>(q_left, q_tile, row);
        float s[W][2][4], rescale[2];
        scores<HEAD, W, false>(s, q_left, k_tile, groups, 0, limit);
        weights<W, false>(p, s, groups, maximum, sum, rescale, scale * LOG2_E, NoMask(), row, 0);
    }
    wait_copies<0>();
    __syncthreads();
    if (row < T) {
        float o_sum[HEAD / 8][4];
        clear<HEAD>(o_sum);
#pragma unroll
        for (int g = 0; g < W; g++) {
            if (g < groups) add_weighted_rows<HEAD>(o_sum, p[g], v_tile, 16 * g);
        }
        write_forward<HEAD>(o_sum, maximum, sum, o, o_stride, lse, row, T, scale);
    }
}

// All three gradients. sum(p dp), with the row in registers, replaces sum(do o): o is not read.
template <int HEAD, int W>
__device__ __forceinline__ void backward_small(BACKWARD_PARAMETERS) {
    const int ROWS = 16 * W, TILE = ROWS * HEAD * 2;
    // Rows of p and ds: a padding of 8 Elements puts the rows of a matrix into different banks.
    const int PITCH = ROWS * 2 + 16, SQUARE = ROWS * PITCH;
    __shared__ uint4 storage[(2 * TILE + 2 * (TILE > SQUARE ? TILE : SQUARE)) / 16];
    u32 q_tile = shared_address(storage), do_tile = q_tile + TILE;
    u32 k_tile = do_tile + TILE, v_tile = k_tile + TILE;
    // p and ds overwrite k and v, which are no longer needed then.
    u32 p_square = k_tile, ds_square = p_square + SQUARE;
    int b = blockIdx.y, row = threadIdx.x / WARP * 16, lane = lane_index();
    SELECT_BACKWARD(b, blockIdx.x)
    int num_keys = key_count(key_lengths, b, S);

    copy_rows<HEAD, ROWS, 2 * ROWS>(q_tile, q, q_stride, T, 16 * groups_of_16(T));
    copy_rows<HEAD, ROWS, 2 * ROWS>(k_tile, k, kv_stride, num_keys, 16 * groups_of_16(num_keys));
    commit_copies();
    copy_rows<HEAD, ROWS, 2 * ROWS>(do_tile, do_, do_stride, T, 16 * groups_of_16(T));
    copy_rows<HEAD, ROWS, 2 * ROWS>(v_tile, v, kv_stride, num_keys, 16 * groups_of_16(num_keys));
    commit_copies();

    int limit[2], groups = row >= T ? 0 : groups_of_16(causal ? min(num_keys, row + 16) : num_keys);
    float log2_sum[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int query = row + lane / 4 + 8 * half;
        limit[half] = visible_keys(query, T, num_keys, causal);
        log2_sum[half] = query < T ? lse[query] * LOG2_E : 0.0f;
    }
    u32 p[W][4], ds[W][4];
    u32 left[HEAD / 16][4];

    wait_copies<1>();
    __syncthreads();
    if (row < T) {
        load_left<HEAD>(left, q_tile, row);
#pragma unroll
        for (int g = 0; g < W; g++) {
            if (g >= groups) continue;
            float s[1][2][4];
            scores<HEAD, 1, false>(s, left, k_tile + 16 * g * HEAD * 2, 1, 16 * g, limit);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float &value = s[0][i / 4][i % 4];
                value = power_of_two(value * (scale * LOG2_E) - log2_sum[i % 4 / 2]);
            }
            pack_left(p[g], s[0]);
        }
    }
    wait_copies<0>();
    __syncthreads();
    if (row < T) {
        load_left<HEAD>(left, do_tile, row);
        float dp[W][2][4], delta[2] = {0.0f, 0.0f};
#pragma unroll
        for (int g = 0; g < W; g++) {
            if (g >= groups) continue;
            products_with_rows<HEAD>(dp[g], left, v_tile, 16 * g);
#pragma unroll
            for (int i = 0; i < 8; i++) delta[i % 4 / 2] += dp[g][i / 4][i % 4] * unpack(p[g][i / 2], i % 2);
        }
        delta[0] = row_sum(delta[0]);
        delta[1] = row_sum(delta[1]);
#pragma unroll
        for (int g = 0; g < W; g++) {
            if (g >= groups) continue;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float &value = dp[g][i / 4][i % 4];
                value = unpack(p[g][i / 2], i % 2) * (value - delta[i % 4 / 2]);
            }
            pack_left(ds[g], dp[g]);
        }
        float dq_sum[HEAD / 8][4];
        clear<HEAD>(dq_sum);
#pragma unroll
        for (int g = 0; g < W; g++) {
            if (g < groups) add_weighted_rows<HEAD>(dq_sum, ds[g], k_tile, 16 * g);
        }
        write_rows<HEAD>(dq, dq_stride, row, T, dq_sum, scale, scale, accumulate & 1);
    }
    __syncthreads();
    if (row < T) {
        u32 offset = (row + lane / 4) * PITCH + lane % 4 * 4;
#pragma unroll
        for (int g = 0; g < W; g++) {
            if (g >= groups) continue;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                u32 at = offset + i % 2 * 8 * PITCH + g * 32 + i / 2 * 16;
                store_word(p_square + at, p[g][i]);
                store_word(ds_square + at, ds[g][i]);
            }
        }
    }
    __syncthreads();
    // From here on the warp handles its 16 keys; the transposed squares are left sides.
    if (row >= S) return;
    int first = causal ? row / 16 : 0, last = row < num_keys ? groups_of_16(T) : 0;
#pragma unroll
    for (int which = 0; which < 2; which++) {
        float sum[HEAD / 8][4];
        clear<HEAD>(sum);
        u32 square = (which == 0 ? p_square : ds_square) + (lane & 15) * PITCH + (row / 8 + (lane >> 4)) * 16;
#pragma unroll
        for (int g = 0; g < W; g++) {
            if (g < first || g >= last) continue;
            u32 block[4];
            load_matrices_transposed(block, square + 16 * g * PITCH);
            u32 transposed[4] = {block[0], block[2], block[1], block[3]};
            add_weighted_rows<HEAD>(sum, transposed, which == 0 ? do_tile : q_tile, 16 * g);
        }
        if (which == 0) write_rows<HEAD>(dv, dkv_stride, row, S, sum, 1.0f, 1.0f, accumulate & 4);
        else write_rows<HEAD>(dk, dkv_stride, row, S, sum, scale, scale, accumulate & 2);
    }
}

// Any T and S: tiles of 64 rows; the next tile is copied during the work on one. 128 threads.

#define TILE_ROWS 64
#define TILE_THREADS 128

// Grid (ceil(T / 64), H, B).
template <int HEAD, class M>
__device__ __forceinline__ void forward_tiled(FORWARD_PARAMETERS, const M &mask) {
    const int TILE = TILE_ROWS * HEAD * 2;
    __shared__ uint4 storage[4 * TILE / 16];
    u32 stages = shared_address(storage);
    int b = blockIdx.z, first_query = blockIdx.x * TILE_ROWS, row = first_query + threadIdx.x / WARP * 16;
    SELECT_FORWARD(b, blockIdx.y)
    int num_keys = key_count(key_lengths, b, S);
    int end = causal ? min(num_keys, first_query + TILE_ROWS) : num_keys;
    float log2_scale = scale * LOG2_E;

    // The queries are loaded into registers through the second stage.
    copy_rows<HEAD, TILE_ROWS, TILE_THREADS>(stages + 2 * TILE, q + first_query * q_stride, q_stride, T - first_query);
    copy_rows<HEAD, TILE_ROWS, TILE_THREADS>(stages, k, kv_stride, num_keys);
    copy_rows<HEAD, TILE_ROWS, TILE_THREADS>(stages + TILE, v, kv_stride, num_keys);
    commit_copies();
    float maximum[2] = {-INFINITE, -INFINITE}, sum[2] = {0.0f, 0.0f};
    float o_sum[HEAD / 8][4];
    clear<HEAD>(o_sum);
    u32 q_left[HEAD / 16][4];
    wait_copies<0>();
    __syncthreads();
    load_left<HEAD>(q_left, stages + 2 * TILE, row - first_query);

    for (int key = 0; key < end; key += TILE_ROWS) {
        u32 k_tile = stages + (key / TILE_ROWS % 2) * 2 * TILE, v_tile = k_tile + TILE;
        wait_copies<0>();
        __syncthreads();
        int next = key + TILE_ROWS;
        if (next < end) {
            u32 to = stages + (next / TILE_ROWS % 2) * 2 * TILE;
            copy_rows<HEAD, TILE_ROWS, TILE_THREADS>(to, k + next * kv_stride, kv_stride, num_keys - next);
            copy_rows<HEAD, TILE_ROWS, TILE_THREADS>(to + TILE, v + next * kv_stride, kv_stride, num_keys - next);
            commit_copies();
        }
        float s[4][2][4], rescale[2];
        u32 p[4][4];
        bool whole = next <= visible_keys(row, T, num_keys, causal);
        int groups = row >= T ? 0 : min(4, groups_of_16((causal ? min(num_keys, row + 16) : num_keys) - key));
        int query = row + lane_index() / 4;
        int limit[2] = {visible_keys(query, T, num_keys, causal), visible_keys(query + 8, T, num_keys, causal)};
        if (whole) {
            scores<HEAD, 4, true>(s, q_left, k_tile, 4, key, limit);
            weights<4, true>(p, s, 4, maximum, sum, rescale, log2_scale, mask, row, key);
        } else {
            scores<HEAD, 4, false>(s, q_left, k_tile, groups, key, limit);
            weights<4, false>(p, s, groups, maximum, sum, rescale, log2_scale, mask, row, key);
        }
#pragma unroll
        for (int n = 0; n < HEAD / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) o_sum[n][e] *= rescale[e / 2];
#pragma unroll
        for (int g = 0; g < 4; g++) {
            if (g < groups) add_weighted_rows<HEAD>(o_sum, p[g], v_tile, 16 * g);
        }
    }
    if (row < T) write_forward<HEAD>(o_sum, maximum, sum, o, o_stride, lse, row, T, scale);
}

// One group of 16 keys: adds ds = p (dp - delta) to dq.
template <int HEAD, bool WHOLE, class M>
__device__ __forceinline__ void backward_dq_group(float (&dq_sum)[HEAD / 8][4], const u32 (&q_left)[HEAD / 16][4],
                                                  const u32 (&do_left)[HEAD / 16][4], u32 k_tile, u32 v_tile, int first_key,
                                                  const int (&limit)[2], const float (&log2_sum)[2],
                                                  const float (&delta)[2], float log2_scale, const M &mask, int row) {
    float s[1][2][4], dp[2][4];
    scores<HEAD, 1, WHOLE>(s, q_left, k_tile, 1, first_key, limit);
    products_with_rows<HEAD>(dp, do_left, v_tile, 0);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float &value = dp[i / 4][i % 4];
        int half = i % 4 / 2;
        if constexpr (M::DROPS) {
            int query = row + lane_index() / 4 + 8 * half;
            value *= mask.factor(query, first_key + i / 4 * 8 + lane_index() % 4 * 2 + i % 2);
        }
        value = power_of_two(s[0][i / 4][i % 4] * log2_scale - log2_sum[half]) * (value - delta[half]);
    }
    u32 ds[4];
    pack_left(ds, dp);
    add_weighted_rows<HEAD>(dq_sum, ds, k_tile, 0);
}

// dq alone. Grid (ceil(T / 64), H, B).
template <int HEAD, class M>
__device__ __forceinline__ void backward_dq(BACKWARD_PARAMETERS, const M &mask) {
    const int TILE = TILE_ROWS * HEAD * 2, GROUP = 16 * HEAD * 2;
    __shared__ uint4 storage[4 * TILE / 16];
    u32 stages = shared_address(storage);
    int b = blockIdx.z, first_query = blockIdx.x * TILE_ROWS, row = first_query + threadIdx.x / WARP * 16;
    int lane = lane_index();
    SELECT_BACKWARD(b, blockIdx.y)
    int num_keys = key_count(key_lengths, b, S);
    int end = causal ? min(num_keys, first_query + TILE_ROWS) : num_keys;
    float log2_scale = scale * LOG2_E;

    // Queries and do are loaded into registers through the second stage.
    u32 second = stages + 2 * TILE;
    copy_rows<HEAD, TILE_ROWS, TILE_THREADS>(second, q + first_query * q_stride, q_stride, T - first_query);
    copy_rows<HEAD, TILE_ROWS, TILE_THREADS>(second + TILE, do_ + first_query * do_stride, do_stride, T - first_query);
    copy_rows<HEAD, TILE_ROWS, TILE_THREADS>(stages, k, kv_stride, num_keys);
    copy_rows<HEAD, TILE_ROWS, TILE_THREADS>(stages + TILE, v, kv_stride, num_keys);
    commit_copies();
    int limit[2];
    float log2_sum[2], delta[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int query = row + lane / 4 + 8 * half;
        limit[half] = visible_keys(query, T, num_keys, causal);
        log2_sum[half] = 0.0f;
        delta[half] = 0.0f;
        if (query < T) {
            log2_sum[half] = lse[query] * LOG2_E;
#pragma unroll
            for (int j = 0; j < HEAD / 32; j++) {
                float left[PACK], right[PACK];
                load_pack(do_ + query * do_stride + (4 * j + lane % 4) * 8, left);
                load_pack(o + query * o_stride + (4 * j + lane % 4) * 8, right);
#pragma unroll
                for (int i = 0; i < PACK; i++) delta[half] += left[i] * right[i];
            }
        }
        delta[half] = row_sum(delta[half]);
    }
    float dq_sum[HEAD / 8][4];
    clear<HEAD>(dq_sum);
    u32 q_left[HEAD / 16][4], do_left[HEAD / 16][4];
    wait_copies<0>();
    __syncthreads();
    load_left<HEAD>(q_left, second, row - first_query);
    load_left<HEAD>(do_left, second + TILE, row - first_query);

    for (int key = 0; key < end; key += TILE_ROWS) {
        u32 k_tile = stages + (key / TILE_ROWS % 2) * 2 * TILE, v_tile = k_tile + TILE;
        wait_copies<0>();
        __syncthreads();
        int next = key + TILE_ROWS;
        if (next < end) {
            u32 to = stages + (next / TILE_ROWS % 2) * 2 * TILE;
            copy_rows<HEAD, TILE_ROWS, TILE_THREADS>(to, k + next * kv_stride, kv_stride, num_keys - next);
            copy_rows<HEAD, TILE_ROWS, TILE_THREADS>(to + TILE, v + next * kv_stride, kv_stride, num_keys - next);
            commit_copies();
        }
        bool whole = next <= visible_keys(row, T, num_keys, causal);
        if (whole) {
#pragma unroll 2
            for (int g = 0; g < 4; g++) {
                backward_dq_group<HEAD, true>(dq_sum, q_left, do_left, k_tile + g * GROUP, v_tile + g * GROUP, key + 16 * g,
                                              limit, log2_sum, delta, log2_scale, mask, row);
            }
        } else {
            int groups = row >= T ? 0 : min(4, groups_of_16((causal ? min(num_keys, row + 16) : num_keys) - key));
#pragma unroll 1
            for (int g = 0; g < groups; g++) {
                backward_dq_group<HEAD, false>(dq_sum, q_left, do_left, k_tile + g * GROUP, v_tile + g * GROUP,
                                               key + 16 * g, limit, log2_sum, delta, log2_scale, mask, row);
            }
        }
    }
    if (row < T) write_rows<HEAD>(dq, dq_stride, row, T, dq_sum, scale, scale, accumulate & 1);
}

// One group of 16 queries, with the warp's keys as rows: adds p^T to dv and ds^T to dk. `log2_sum` and `delta` begin at the
// group's first query.
template <int HEAD, bool WHOLE, class M>
__device__ __forceinline__ void backward_dkv_group(float (&dk_sum)[HEAD / 8][4], float (&dv_sum)[HEAD / 8][4],
                                                   const u32 (&k_left)[HEAD / 16][4], const u32 (&v_left)[HEAD / 16][4],
                                                   u32 q_tile, u32 do_tile, const float *log2_sum, const float *delta,
                                                   int first_query, int first_key, int num_keys, int causal,
                                                   float log2_scale, const M &mask) {
    float p[2][4], ds[2][4];
    products_with_rows<HEAD>(p, k_left, q_tile, 0);
    products_with_rows<HEAD>(ds, v_left, do_tile, 0);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float &weight = p[i / 4][i % 4];
        int column = i / 4 * 8 + lane_index() % 4 * 2 + i % 2, key = first_key + lane_index() / 4 + i % 4 / 2 * 8;
        weight = power_of_two(weight * log2_scale - log2_sum[column]);
        if (!WHOLE && (key >= num_keys || (causal && key > first_query + column))) weight = 0.0f;
        if constexpr (M::DROPS) {
            float factor = mask.factor(first_query + column, key);
            ds[i / 4][i % 4] = weight * (ds[i / 4][i % 4] * factor - delta[column]);
            weight *= factor;
        } else {
            ds[i / 4][i % 4] = weight * (ds[i / 4][i % 4] - delta[column]);
        }
    }
    u32 left[4];
    pack_left(left, p);
    add_weighted_rows<HEAD>(dv_sum, left, do_tile, 0);
    pack_left(left, ds);
    add_weighted_rows<HEAD>(dk_sum, left, q_tile, 0);
}

// dk and dv. Grid (ceil(S / 64), H, B).
template <int HEAD, class M>
__device__ __forceinline__ void backward_dkv(BACKWARD_PARAMETERS, const M &mask) {
    const int TILE = TILE_ROWS * HEAD * 2, GROUP = 16 * HEAD * 2, CHUNKS = HEAD / 8;
    __shared__ uint4 storage[5 * TILE / 16];
    __shared__ float log2_sum[TILE_ROWS], delta[TILE_ROWS];
    u32 stages = shared_address(storage), o_tile = stages + 4 * TILE;
    int b = blockIdx.z, first_key = blockIdx.x * TILE_ROWS, row = first_key + threadIdx.x / WARP * 16;
    SELECT_BACKWARD(b, blockIdx.y)
    int num_keys = key_count(key_lengths, b, S);
    int begin = causal ? first_key : 0, end = first_key < num_keys ? T : 0;
    float log2_scale = scale * LOG2_E;
    float dk_sum[HEAD / 8][4], dv_sum[HEAD / 8][4];
    clear<HEAD>(dk_sum);
    clear<HEAD>(dv_sum);

    if (begin < end) {
        // Keys and values are loaded into registers through the stage of the second tile.
        u32 other = stages + ((begin / TILE_ROWS + 1) % 2) * 2 * TILE;
        copy_rows<HEAD, TILE_ROWS, TILE_THREADS>(other, k + first_key * kv_stride, kv_stride, num_keys - first_key);
        copy_rows<HEAD, TILE_ROWS, TILE_THREADS>(other + TILE, v + first_key * kv_stride, kv_stride, num_keys - first_key);
        u32 k_left[HEAD / 16][4], v_left[HEAD / 16][4];
        float log2_sum_next = 0.0f;

        for (int query = begin - TILE_ROWS; query < end; query += TILE_ROWS) {
            u32 q_tile = stages + (query / TILE_ROWS & 1) * 2 * TILE, do_tile = q_tile + TILE;
            if (query >= begin) {
                wait_copies<0>();
                __syncthreads();
                if (query == begin) {
                    load_left<HEAD>(k_left, other, row - first_key);
                    load_left<HEAD>(v_left, other + TILE, row - first_key);
                }
#pragma unroll
                for (int i = 0; i < TILE_ROWS * CHUNKS / TILE_THREADS; i++) {
                    int index = i * TILE_THREADS + threadIdx.x, at = index / CHUNKS;
                    u32 offset = chunk_offset<HEAD>(at, index % CHUNKS);
                    float left[PACK], right[PACK], product = 0.0f;
                    const char *bytes = reinterpret_cast<const char *>(storage);
                    load_pack(reinterpret_cast<const Element *>(bytes + (do_tile - stages) + offset), left);
                    load_pack(reinterpret_cast<const Element *>(bytes + (o_tile - stages) + offset), right);
#pragma unroll
                    for (int j = 0; j < PACK; j++) product += left[j] * right[j];
#pragma unroll
                    for (int step = 1; step < CHUNKS; step *= 2) product += __shfl_xor_sync(ALL_LANES, product, step);
                    if (index % CHUNKS == 0) delta[at] = product;
                }
                if (threadIdx.x < TILE_ROWS) log2_sum[threadIdx.x] = log2_sum_next;
                __syncthreads();
            }
            int next = query + TILE_ROWS;
            if (next < end) {
                u32 to = stages + (next / TILE_ROWS % 2) * 2 * TILE;
                copy_rows<HEAD, TILE_ROWS, TILE_THREADS>(to, q + next * q_stride, q_stride, T - next);
                copy_rows<HEAD, TILE_ROWS, TILE_THREADS>(to + TILE, do_ + next * do_stride, do_stride, T - next);
                copy_rows<HEAD, TILE_ROWS, TILE_THREADS>(o_tile, o + next * o_stride, o_stride, T - next);
                commit_copies();
                // Infinity makes the probabilities of missing queries 0.
                int at = next + threadIdx.x;
                if (threadIdx.x < TILE_ROWS) log2_sum_next = at < T ? lse[at] * LOG2_E : INFINITE;
            }
            if (query < begin || row >= num_keys) continue;
            if (row + 16 <= num_keys && next <= T && (!causal || query >= row + 15)) {
#pragma unroll 1
                for (int g = 0; g < 4; g++) {
                    backward_dkv_group<HEAD, true>(dk_sum, dv_sum, k_left, v_left, q_tile + g * GROUP, do_tile + g * GROUP,
                                                   log2_sum + 16 * g, delta + 16 * g, query + 16 * g, row, num_keys, causal,
                                                   log2_scale, mask);
                }
            } else {
                int groups = min(4, groups_of_16(T - query));
#pragma unroll 1
                for (int g = causal ? max(0, row - query) / 16 : 0; g < groups; g++) {
                    backward_dkv_group<HEAD, false>(dk_sum, dv_sum, k_left, v_left, q_tile + g * GROUP, do_tile + g * GROUP,
                                                    log2_sum + 16 * g, delta + 16 * g, query + 16 * g, row, num_keys,
                                                    causal, log2_scale, mask);
                }
            }
        }
    }
    if (row >= S) return;
    write_rows<HEAD>(dk, dkv_stride, row, S, dk_sum, scale, scale, accumulate & 2);
    write_rows<HEAD>(dv, dkv_stride, row, S, dv_sum, 1.0f, 1.0f, accumulate & 4);
}

// All three gradients for at most 64 queries and any number of keys (a decoder that attends to frame tokens): queries stay in
// registers, and each tile of keys is read once. Grid (H, B), 128 threads.
template <int HEAD>
__device__ __forceinline__ void backward_few(BACKWARD_PARAMETERS) {
    const int TILE = TILE_ROWS * HEAD * 2, GROUP = 16 * HEAD * 2;
    // p and ds of a tile of keys: a row per query, with the layout of a tile of 64 dims.
    const int SQUARE = TILE_ROWS * TILE_ROWS * 2;
    __shared__ uint4 storage[(4 * TILE + 2 * SQUARE) / 16];
    u32 q_tile = shared_address(storage), do_tile = q_tile + TILE, k_tile = do_tile + TILE, v_tile = k_tile + TILE;
    u32 p_square = v_tile + TILE, ds_square = p_square + SQUARE;
    // The warp's queries, and its keys within a tile.
    int b = blockIdx.y, row = threadIdx.x / WARP * 16, lane = lane_index();
    SELECT_BACKWARD(b, blockIdx.x)
    int num_keys = key_count(key_lengths, b, S);
    int end = causal ? min(num_keys, T) : num_keys;
    float log2_scale = scale * LOG2_E;

    copy_rows<HEAD, TILE_ROWS, TILE_THREADS>(q_tile, q, q_stride, T);
    copy_rows<HEAD, TILE_ROWS, TILE_THREADS>(do_tile, do_, do_stride, T);
    copy_rows<HEAD, TILE_ROWS, TILE_THREADS>(k_tile, k, kv_stride, num_keys);
    copy_rows<HEAD, TILE_ROWS, TILE_THREADS>(v_tile, v, kv_stride, num_keys);
    commit_copies();
    int limit[2];
    float log2_sum[2], delta[2];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int query = row + lane / 4 + 8 * half;
        limit[half] = visible_keys(query, T, num_keys, causal);
        log2_sum[half] = 0.0f;
        delta[half] = 0.0f;
        if (query < T) {
            log2_sum[half] = lse[query] * LOG2_E;
#pragma unroll
            for (int j = 0; j < HEAD / 32; j++) {
                float left[PACK], right[PACK];
                load_pack(do_ + query * do_stride + (4 * j + lane % 4) * 8, left);
                load_pack(o + query * o_stride + (4 * j + lane % 4) * 8, right);
#pragma unroll
                for (int i = 0; i < PACK; i++) delta[half] += left[i] * right[i];
            }
        }
        delta[half] = row_sum(delta[half]);
    }
    float dq_sum[HEAD / 8][4];
    clear<HEAD>(dq_sum);

    int key = 0;
    for (; key < end; key += TILE_ROWS) {
        wait_copies<0>();
        __syncthreads();
        // The warp's queries with this tile of keys.
        int groups = row >= T ? 0 : min(4, groups_of_16((causal ? min(num_keys, row + 16) : num_keys) - key));
        if (groups > 0) {
            u32 q_left[HEAD / 16][4], do_left[HEAD / 16][4];
            load_left<HEAD>(q_left, q_tile, row);
            load_left<HEAD>(do_left, do_tile, row);
#pragma unroll 1
            for (int g = 0; g < groups; g++) {
                float s[1][2][4], dp[2][4];
                scores<HEAD, 1, false>(s, q_left, k_tile + g * GROUP, 1, key + 16 * g, limit);
                products_with_rows<HEAD>(dp, do_left, v_tile, 16 * g);
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    float &weight = s[0][i / 4][i % 4];
                    int half = i % 4 / 2;
                    weight = power_of_two(weight * log2_scale - log2_sum[half]);
                    dp[i / 4][i % 4] = weight * (dp[i / 4][i % 4] - delta[half]);
                }
                u32 p[4], ds[4];
                pack_left(p, s[0]);
                pack_left(ds, dp);
                add_weighted_rows<HEAD>(dq_sum, ds, k_tile, 16 * g);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    u32 at = chunk_offset<64>(row + lane / 4 + i % 2 * 8, 2 * g + i / 2) + lane % 4 * 4;
                    store_word(p_square + at, p[i]);
                    store_word(ds_square + at, ds[i]);
                }
            }
        }
        __syncthreads();
        // Keys and values of this tile are no longer needed: the next tile is copied while the warp's keys get their gradients.
        int next = key + TILE_ROWS;
        if (next < end) {
            copy_rows<HEAD, TILE_ROWS, TILE_THREADS>(k_tile, k + next * kv_stride, kv_stride, num_keys - next);
            copy_rows<HEAD, TILE_ROWS, TILE_THREADS>(v_tile, v + next * kv_stride, kv_stride, num_keys - next);
            commit_copies();
        }
        int own = key + row;
        int first = causal ? own / 16 : 0, last = own < end ? groups_of_16(T) : 0;
#pragma unroll
        for (int which = 0; which < 2; which++) {
            float sum[HEAD / 8][4];
            clear<HEAD>(sum);
            u32 square = which == 0 ? p_square : ds_square;
#pragma unroll 1
            for (int g = first; g < last; g++) {
                u32 block[4];
                load_matrices_transposed(block, block_address<64>(square, 16 * g, row / 8));
                u32 transposed[4] = {block[0], block[2], block[1], block[3]};
                add_weighted_rows<HEAD>(sum, transposed, which == 0 ? do_tile : q_tile, 16 * g);
            }
            if (own >= S) continue;
            if (which == 0) write_rows<HEAD>(dv, dkv_stride, own, S, sum, 1.0f, 1.0f, accumulate & 4);
            else write_rows<HEAD>(dk, dkv_stride, own, S, sum, scale, scale, accumulate & 2);
        }
    }
    if (row < T) write_rows<HEAD>(dq, dq_stride, row, T, dq_sum, scale, scale, accumulate & 1);
    // Keys that no query attends to.
    clear<HEAD>(dq_sum);
    for (int own = key + row; own < S; own += TILE_ROWS) {
        if (!(accumulate & 4)) write_rows<HEAD>(dv, dkv_stride, own, S, dq_sum, 1.0f, 1.0f, false);
        if (!(accumulate & 2)) write_rows<HEAD>(dk, dkv_stride, own, S, dq_sum, 1.0f, 1.0f, false);
    }
}

// The second bound limits registers so that as many blocks share a multiprocessor; on sm_90 almost nothing spills at these values.

#define SMALL_KERNELS(HEAD, W)                                                                                             \
    extern "C" __global__ void __launch_bounds__(32 * W, W == 4 ? 7 : 5)                                                   \
        attention_forward_small_##HEAD##_##W(FORWARD_PARAMETERS) { follow();                                               \
        forward_small<HEAD, W>(FORWARD_ARGUMENTS);                                                                         \
    }                                                                                                                      \
    extern "C" __global__ void __launch_bounds__(32 * W, W == 4 ? 5 : 4)                                                   \
        attention_backward_small_##HEAD##_##W(BACKWARD_PARAMETERS) { follow();                                             \
        backward_small<HEAD, W>(BACKWARD_ARGUMENTS);                                                                       \
    }
SMALL_KERNELS(32, 4)
SMALL_KERNELS(32, 5)
SMALL_KERNELS(64, 4)
SMALL_KERNELS(64, 5)

#define TILED_KERNELS(HEAD)                                                                                                \
    extern "C" __global__ void __launch_bounds__(TILE_THREADS, 4) attention_forward_##HEAD(FORWARD_PARAMETERS) { follow(); \
        forward_tiled<HEAD>(FORWARD_ARGUMENTS, NoMask());                                                                          \
    }                                                                                                                      \
    extern "C" __global__ void __launch_bounds__(TILE_THREADS, 4) attention_backward_dq_##HEAD(BACKWARD_PARAMETERS) { follow(); \
        backward_dq<HEAD>(BACKWARD_ARGUMENTS, NoMask());                                                                           \
    }                                                                                                                      \
    extern "C" __global__ void __launch_bounds__(TILE_THREADS, 3) attention_backward_dkv_##HEAD(BACKWARD_PARAMETERS) { follow(); \
        backward_dkv<HEAD>(BACKWARD_ARGUMENTS, NoMask());                                                                          \
    }                                                                                                                      \
    extern "C" __global__ void __launch_bounds__(TILE_THREADS, 4) attention_backward_few_##HEAD(BACKWARD_PARAMETERS) { follow(); \
        backward_few<HEAD>(BACKWARD_ARGUMENTS);                                                                            \
    }
TILED_KERNELS(32)
TILED_KERNELS(64)

// Dropout of probabilities: tiled kernels for every size.
#define DROPPING_KERNELS(HEAD)                                                                                             \
    extern "C" __global__ void __launch_bounds__(TILE_THREADS, 4)                                                          \
        attention_forward_dropping_##HEAD(FORWARD_PARAMETERS, MASK_PARAMETERS) { follow();                                 \
        forward_tiled<HEAD>(FORWARD_ARGUMENTS, MASK.of(blockIdx.z, blockIdx.y));                    \
    }                                                                                                                      \
    extern "C" __global__ void __launch_bounds__(TILE_THREADS, 4)                                                          \
        attention_backward_dq_dropping_##HEAD(BACKWARD_PARAMETERS, MASK_PARAMETERS) { follow();                            \
        backward_dq<HEAD>(BACKWARD_ARGUMENTS, MASK.of(blockIdx.z, blockIdx.y));                     \
    }                                                                                                                      \
    extern "C" __global__ void __launch_bounds__(TILE_THREADS, 3)                                                          \
        attention_backward_dkv_dropping_##HEAD(BACKWARD_PARAMETERS, MASK_PARAMETERS) { follow();                           \
        backward_dkv<HEAD>(BACKWARD_ARGUMENTS, MASK.of(blockIdx.z, blockIdx.y));                    \
    }
DROPPING_KERNELS(32)
DROPPING_KERNELS(64)

#endif
