// For each query, the number of gallery items that score above its threshold; for each gallery item, the number of queries.
//
//   x 2^k = h + l + r      h, l halves:   |l| <= 2^-11 |x 2^k|,  |r| <= 2^-22 |x 2^k| + sqrt(D) 2^-25
//   q.g  ~  h.h' + h.l' + l.h'
//
// Legend: D values of a row, padded with zeros to a multiple of CHUNK. A tile is TILE_Q queries x TILE_G gallery items.
//
// Error of a product, in units of |q| |g|. The internal arithmetic of a tensor core is not documented, so each of the 17 terms of a
// product of 16 (the old sum is one) and the result are assumed to be truncated at 24 bits of the largest: 18 * 2^-23. Three such
// products are added for every 16 values, from zero, and then to a sum in f32, with at most 2^-24 each. By Cauchy and Schwarz the
// sizes of the parts add up to at most |q| |g|. The host adds these up: PER_PRODUCT and `bound` in ranks.rs.
//
// A comparison within the error bound goes to a list. A tile whose list overflows, or for which the global list has no room, counts
// nothing and goes to a list of tiles instead, which are computed in f64.

#if ELEMENT == 1

#define TILE_Q 128
#define TILE_G 256
#define CHUNK 32
#define THREADS 256
#define TILE_LIST 2048
#define OF_QUERY 1u
#define OF_ITEM 2u
// Counters: listed comparisons, tiles for f64, comparisons that f64 leaves open, comparisons in f64 (64 bits), and whether any l of
// the queries and of the gallery is nonzero.
#define LISTED 0
#define TILES 1
#define OPEN 2
#define IN_F64 4
#define Q_LOW 6
#define G_LOW 7
#define NOTHING 0xffffffffffffffffull
// Bytes of a row of a chunk in shared memory, and of all rows of a stage: h and l of the queries, h and l of the items.
#define ROW_BYTES (CHUNK * 2)
#define Q_BYTES (TILE_Q * ROW_BYTES)
#define G_BYTES (TILE_G * ROW_BYTES)
#define STAGE_BYTES (2 * Q_BYTES + 2 * G_BYTES)

__device__ __forceinline__ double power_of_two(int exponent) {
    return __longlong_as_double((i64)(1023 + exponent) << 52);
}

// Largest magnitude of all values, as bits (not finite: 0x7f800000 or more), and the lowest bit of any value.
extern "C" __global__ void rank_scan(const float *values, i64 count, u32 *largest, int *lowest) {
    u32 most = 0;
    int least = 1 << 20;
    for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < count; i += (i64)gridDim.x * blockDim.x) {
        u32 bits = __float_as_uint(values[i]) & 0x7fffffffu;
        most = max(most, bits);
        int exponent = (int)(bits >> 23);
        u32 whole = (bits & 0x7fffffu) | (exponent ? 0x800000u : 0u);
        if (whole) least = min(least, __ffs((int)whole) - 1 + max(exponent, 1) - 150);
    }
    for (int offset = 16; offset > 0; offset >>= 1) {
        most = max(most, __shfl_xor_sync(ALL_LANES, most, offset));
        least = min(least, __shfl_xor_sync(ALL_LANES, least, offset));
    }
    if (threadIdx.x % WARP == 0) {
        atomicMax(largest, most);
        atomicMin(lowest, least);
    }
}

// Splits rows, scaled by 2^exponent, into halves, and computes the size of each row, which scales the error of its products. One warp
// per row.
extern "C" __global__ void rank_split(const float *values, int rows, int dimension, int padded, int exponent, u16 *high,
                                      u16 *low, float *sizes, u32 *any_low) {
    int row = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (row >= rows) return;
    const float *from = values + (i64)row * dimension;
    double scale = power_of_two(exponent), squares = 0;
    u32 left = 0;
    for (int i = lane; i < padded; i += WARP) {
        float value = i < dimension ? (float)((double)from[i] * scale) : 0.0f;
        u16 h = float_to_f16(value);
        // Exact: a half is within half of its last bit.
        u16 l = float_to_f16(value - f16_to_float(h));
        high[(i64)row * padded + i] = h;
        low[(i64)row * padded + i] = l;
        left |= l & 0x7fffu;
        squares += (double)value * value;
    }
    squares = warp_sum(squares);
    for (int offset = 16; offset > 0; offset >>= 1) left |= __shfl_xor_sync(ALL_LANES, left, offset);
    if (lane == 0) {
        sizes[row] = (float)sqrt(squares) * 1.0001f + sqrtf((float)dimension) * 0.1251f;
        if (left) atomicOr(any_low, 1u);
    }
}

// Thresholds in the units of the products: a product below `low` is certainly not above, a product above `high` certainly is.
extern "C" __global__ void rank_bounds(const double2 *thresholds, int count, int exponent, float *low, float *high) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) return;
    double2 threshold = thresholds[i];
    double scale = power_of_two(exponent);
    low[i] = __double2float_rd((threshold.x - threshold.y) * scale);
    high[i] = __double2float_ru((threshold.x + threshold.y) * scale);
}

__device__ __forceinline__ void multiply(float (&c)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    multiply(c, a[0], a[1], a[2], a[3], b0, b1);
}

// Swizzled address of a chunk of 16 bytes: neighbouring rows are rotated, so that a warp's reads have no bank conflicts.
__device__ __forceinline__ u32 place(int row, int part) { return row * ROW_BYTES + ((part ^ (row >> 1 & 3)) << 4); }

// One thread's part of a copy of one side: one chunk of every 64th row.
struct Copier {
    const u16 *from;
    u32 to;
    int rows_left;
    i64 stride;
};

__device__ __forceinline__ Copier copier(const u16 *side, u32 to, int first, int total, int padded) {
    int row = threadIdx.x / 4, part = threadIdx.x % 4;
    return {side + (i64)(first + row) * padded + part * 8, to + place(row, part), total - first - row, (i64)padded * 64};
}

// Rows beyond the end become zeros; `ROWS` is a multiple of 64, so that the swizzle of a thread's rows repeats.
template <int ROWS>
__device__ __forceinline__ void fetch(const Copier &copier, u32 stage, int chunk) {
#pragma unroll
    for (int i = 0; i < ROWS / 64; i++) {
        bool present = copier.rows_left > i * 64;
        const u16 *from = copier.from + chunk * CHUNK + i * copier.stride;
        copy_chunk(copier.to + stage + i * 64 * ROW_BYTES, from, present);
    }
}

struct Side {
    const u16 *high, *low;
    const float *sizes, *bounds_low, *bounds_high;
    u32 *above;
    int rows;
};

struct Copiers {
    Copier q_high, q_low, g_high, g_low;
};

__device__ __forceinline__ Copiers copiers(u32 base, const Side &q, const Side &g, int first_q, int first_g, int padded) {
    return {copier(q.high, base, first_q, q.rows, padded), copier(q.low, base + Q_BYTES, first_q, q.rows, padded),
            copier(g.high, base + 2 * Q_BYTES, first_g, g.rows, padded),
            copier(g.low, base + 2 * Q_BYTES + G_BYTES, first_g, g.rows, padded)};
}

__device__ __forceinline__ void fetch_stage(const Copiers &all, int stage, int chunk, bool q_low, bool g_low) {
    u32 offset = stage * STAGE_BYTES;
    fetch<TILE_Q>(all.q_high, offset, chunk);
    fetch<TILE_G>(all.g_high, offset, chunk);
    if (q_low) fetch<TILE_Q>(all.q_low, offset, chunk);
    if (g_low) fetch<TILE_G>(all.g_low, offset, chunk);
}

struct Tile {
    int q, g;
};

// Tile of a block. Tiles of a few rows of queries and all items are consecutive, column by column, so that concurrent blocks share rows
// in the cache.
__device__ __forceinline__ Tile tile_of(int block, int q_rows, int g_rows) {
    const int GROUP = 16;
    int q_tiles = (q_rows + TILE_Q - 1) / TILE_Q, g_tiles = (g_rows + TILE_G - 1) / TILE_G;
    int group = block / (GROUP * g_tiles), in_group = block % (GROUP * g_tiles);
    int group_rows = min(GROUP, q_tiles - group * GROUP);
    return {group * GROUP + in_group % group_rows, in_group / group_rows};
}

// Adds the complete results of a tile, `local`, to the global counts and list, or puts the tile on the list for f64.
struct Local {
    u32 *row_above, *column_above, *count, *list;
};

__device__ __forceinline__ void finish(Local local, Tile tile, const Side &q, const Side &g, int q_base, u64 *list,
                                       u32 list_room, u32 *tiles, u32 *counters) {
    u32 count = *local.count;
    if (threadIdx.x == 0) {
        u32 at = count <= TILE_LIST ? atomicAdd(&counters[LISTED], count) : list_room;
        bool fits = count <= TILE_LIST && at <= list_room && count <= list_room - at;
        if (!fits) {
            // Marks list entries that were reserved and cannot be used.
            if (count <= TILE_LIST)
                for (u32 i = at; i < list_room && i < at + count; i++) list[i] = NOTHING;
            tiles[atomicAdd(&counters[TILES], 1u)] = (u32)tile.q << 16 | (u32)tile.g;
        }
        local.count[1] = fits ? at : 0xffffffffu;
    }
    __syncthreads();
    u32 at = local.count[1];
    if (at == 0xffffffffu) return;
    int first_q = tile.q * TILE_Q, first_g = tile.g * TILE_G;
    for (u32 i = threadIdx.x; i < count; i += THREADS) {
        u32 entry = local.list[i];
        u64 row = q_base + first_q + (entry >> 16), column = first_g + (entry >> 2 & 0x3fff);
        list[at + i] = row << 32 | column << 2 | (entry & 3);
    }
    for (int i = threadIdx.x; i < TILE_Q; i += THREADS)
        if (local.row_above[i]) atomicAdd(&q.above[first_q + i], local.row_above[i]);
    for (int i = threadIdx.x; i < TILE_G; i += THREADS)
        if (local.column_above[i]) atomicAdd(&g.above[first_g + i], local.column_above[i]);
}

__device__ __forceinline__ void add_to_list(Local local, u32 row, u32 column, bool of_query, bool of_item) {
    u32 at = atomicAdd(local.count, 1u);
    if (at < TILE_LIST) local.list[at] = row << 16 | column << 2 | (of_query ? OF_QUERY : 0) | (of_item ? OF_ITEM : 0);
}

extern __shared__ __align__(1024) unsigned char shared[];

// Counts one tile. Warps are arranged 2 x 4, with 64 x 64 each: 4 x 8 products of 16 x 8.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
    rank_count(const u16 *q_high, const u16 *q_low, const float *q_sizes, const float *q_bounds_low,
               const float *q_bounds_high, u32 *q_above, int q_rows, const u16 *g_high, const u16 *g_low,
               const float *g_sizes, const float *g_bounds_low, const float *g_bounds_high, u32 *g_above, int g_rows,
               int padded, int stages, float relative, float per_product, int q_base, u64 *list, u32 list_room, u32 *tiles,
               u32 *counters) {
    Side q = {q_high, q_low, q_sizes, q_bounds_low, q_bounds_high, q_above, q_rows};
    Side g = {g_high, g_low, g_sizes, g_bounds_low, g_bounds_high, g_above, g_rows};
    Tile tile = tile_of(blockIdx.x, q_rows, g_rows);
    int first_q = tile.q * TILE_Q, first_g = tile.g * TILE_G;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    int warp_q = (warp & 1) * 64, warp_g = (warp >> 1) * 64;
    bool use_q_low = counters[Q_LOW], use_g_low = counters[G_LOW];
    relative += per_product * (1 + use_q_low + use_g_low);
    u32 base = (u32)__cvta_generic_to_shared(shared);
    int chunks = padded / CHUNK;
    Copiers all = copiers(base, q, g, first_q, first_g, padded);

    float sums[4][8][4];
#pragma unroll
    for (int m = 0; m < 4; m++)
#pragma unroll
        for (int n = 0; n < 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) sums[m][n][i] = 0;

    for (int chunk = 0; chunk < stages - 1; chunk++) {
        if (chunk < chunks)
            fetch_stage(all, chunk, chunk, use_q_low, use_g_low);
        commit_copies();
    }
    // This lane's part of the addresses: rows 0 to 15 of a left side, twice 8 rows of a right side.
    int a_row = warp_q + lane % 16, a_part = lane / 16;
    int b_row = warp_g + lane % 8 + (lane / 16) * 8, b_part = lane / 8 % 2;
    for (int chunk = 0; chunk < chunks; chunk++) {
        if (stages == 1) {
            __syncthreads();
            fetch_stage(all, 0, chunk, use_q_low, use_g_low);
            commit_copies();
            wait_copies<0>();
        } else if (stages == 2) {
            wait_copies<0>();
        } else if (stages == 3) {
            wait_copies<1>();
        } else {
            wait_copies<2>();
        }
        __syncthreads();
        int next = chunk + stages - 1;
        if (stages > 1) {
            if (next < chunks) fetch_stage(all, next % stages, next, use_q_low, use_g_low);
            commit_copies();
        }
        u32 stage = base + chunk % stages * STAGE_BYTES;
#pragma unroll
        for (int step = 0; step < CHUNK / 16; step++) {
            u32 a_high[4][4], a_low[4][4];
#pragma unroll
            for (int m = 0; m < 4; m++) {
                u32 at = place(a_row + m * 16, step * 2 + a_part);
                load_matrices(a_high[m], stage + at);
                if (use_q_low) load_matrices(a_low[m], stage + Q_BYTES + at);
            }
#pragma unroll
            for (int pair = 0; pair < 4; pair++) {
                u32 b_high[4], b_low[4];
                u32 at = place(b_row + pair * 16, step * 2 + b_part);
                load_matrices(b_high, stage + 2 * Q_BYTES + at);
                if (use_g_low) load_matrices(b_low, stage + 2 * Q_BYTES + G_BYTES + at);
                float part[4][2][4];
#pragma unroll
                for (int m = 0; m < 4; m++)
#pragma unroll
                    for (int n = 0; n < 2; n++)
#pragma unroll
                        for (int i = 0; i < 4; i++) part[m][n][i] = 0;
                if (use_g_low) {
#pragma unroll
                    for (int m = 0; m < 4; m++)
#pragma unroll
                        for (int n = 0; n < 2; n++) multiply(part[m][n], a_high[m], b_low[2 * n], b_low[2 * n + 1]);
                }
                if (use_q_low) {
#pragma unroll
                    for (int m = 0; m < 4; m++)
#pragma unroll
                        for (int n = 0; n < 2; n++) multiply(part[m][n], a_low[m], b_high[2 * n], b_high[2 * n + 1]);
                }
#pragma unroll
                for (int m = 0; m < 4; m++)
#pragma unroll
                    for (int n = 0; n < 2; n++) multiply(part[m][n], a_high[m], b_high[2 * n], b_high[2 * n + 1]);
#pragma unroll
                for (int m = 0; m < 4; m++)
#pragma unroll
                    for (int n = 0; n < 2; n++)
#pragma unroll
                        for (int i = 0; i < 4; i++) sums[m][2 * pair + n][i] += part[m][n][i];
            }
        }
    }
    wait_copies<0>();
    __syncthreads();

    // The memory of the stages is free now.
    u32 *words = reinterpret_cast<u32 *>(shared);
    Local local = {words, words + TILE_Q, words + TILE_Q + TILE_G, words + TILE_Q + TILE_G + 2};
    for (int i = threadIdx.x; i < TILE_Q + TILE_G + 1; i += THREADS) words[i] = 0;
    __syncthreads();

    // Missing rows have a NaN bound, with which no comparison holds.
    float none = __int_as_float(0x7fffffff);
    float row_size[8], row_low[8], row_high[8];
    u32 above_row[8];
#pragma unroll
    for (int k = 0; k < 8; k++) {
        int row = first_q + warp_q + k / 2 * 16 + k % 2 * 8 + lane / 4;
        bool present = row < q.rows;
        row_size[k] = present ? q.sizes[row] * relative : none;
        row_low[k] = present ? q.bounds_low[row] : none;
        row_high[k] = present ? q.bounds_high[row] : none;
        above_row[k] = 0;
    }
    u32 open_row[4] = {0, 0, 0, 0}, open_column[4] = {0, 0, 0, 0};
#pragma unroll
    for (int n = 0; n < 8; n++) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            int in_tile = warp_g + n * 8 + lane % 4 * 2 + c, column = first_g + in_tile;
            bool present = column < g.rows;
            float size = present ? g.sizes[column] : none;
            float low = present ? g.bounds_low[column] : none, high = present ? g.bounds_high[column] : none;
            u32 above = 0;
#pragma unroll
            for (int k = 0; k < 8; k++) {
                float score = sums[k / 2][n][k % 2 * 2 + c], error = row_size[k] * size;
                bool is_above = score - row_high[k] > error, may_be = score - row_low[k] >= -error;
                bool is_above_column = score - high > error, may_be_column = score - low >= -error;
                above_row[k] += is_above;
                above += is_above_column;
                u32 bit = 1u << (n % 2 * 16 + k * 2 + c);
                if (may_be && !is_above) open_row[n / 2] |= bit;
                if (may_be_column && !is_above_column) open_column[n / 2] |= bit;
            }
            above += __shfl_xor_sync(ALL_LANES, above, 4);
            above += __shfl_xor_sync(ALL_LANES, above, 8);
            above += __shfl_xor_sync(ALL_LANES, above, 16);
            if (lane < 4 && above) atomicAdd(&local.column_above[in_tile], above);
        }
    }
#pragma unroll
    for (int k = 0; k < 8; k++) {
        u32 above = above_row[k];
        above += __shfl_xor_sync(ALL_LANES, above, 1);
        above += __shfl_xor_sync(ALL_LANES, above, 2);
        if (lane % 4 == 0 && above) atomicAdd(&local.row_above[warp_q + k / 2 * 16 + k % 2 * 8 + lane / 4], above);
    }
#pragma unroll
    for (int word = 0; word < 4; word++) {
        for (u32 open = open_row[word] | open_column[word]; open; open &= open - 1) {
            int bit = __ffs((int)open) - 1, k = bit % 16 / 2;
            u32 row = warp_q + k / 2 * 16 + k % 2 * 8 + lane / 4;
            u32 column = warp_g + (word * 2 + bit / 16) * 8 + lane % 4 * 2 + bit % 2;
            add_to_list(local, row, column, open_row[word] >> bit & 1, open_column[word] >> bit & 1);
        }
    }
    __syncthreads();
    finish(local, tile, q, g, q_base, list, list_room, tiles, counters);
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// d (64 x 64) = a (64 x 16) b (64 x 16)^T, plus d if `add`: a in registers, b at the descriptor. Asynchronous.
__device__ __forceinline__ void multiply_wide(float (&d)[32], const u32 (&a)[4], u64 b, int add) {
    asm volatile(
        "{\n.reg .pred add;\nsetp.ne.b32 add, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, add, 1, 1, 0;\n}"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
          "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]),
          "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]),
          "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));
}

// Descriptor of rows of 64 bytes, swizzled as in `place`; groups of eight rows are 512 bytes apart.
__device__ __forceinline__ u64 descriptor(u32 address) {
    return (u64)(address >> 4 & 0x3fff) | 1ull << 16 | 32ull << 32 | 2ull << 62;
}

__device__ __forceinline__ void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void wait_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// The same tile with Hopper's products: two groups of four warps, 64 queries x 256 items each, in quarters of 64 items. While
// the products of a quarter run, the previous quarter is added to the sums.
template <bool LOW>
__device__ __forceinline__ void count_wide(const Side &q, const Side &g, int padded, int stages, float relative,
                                           int q_base, u64 *list, u32 list_room, u32 *tiles, u32 *counters) {
    Tile tile = tile_of(blockIdx.x, q.rows, g.rows);
    int first_q = tile.q * TILE_Q, first_g = tile.g * TILE_G;
    int warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    u32 base = (u32)__cvta_generic_to_shared(shared);
    int chunks = padded / CHUNK;
    Copiers all = copiers(base, q, g, first_q, first_g, padded);

    float sums[4][32], part[2][32];
#pragma unroll
    for (int quarter = 0; quarter < 4; quarter++)
#pragma unroll
        for (int i = 0; i < 32; i++) sums[quarter][i] = 0;
#pragma unroll
    for (int i = 0; i < 32; i++) part[0][i] = part[1][i] = 0;

    for (int chunk = 0; chunk < stages - 1; chunk++) {
        if (chunk < chunks)
            fetch_stage(all, chunk, chunk, LOW, LOW);
        commit_copies();
    }
    int a_row = warp * 16 + lane % 16, a_part = lane / 16;
    for (int chunk = 0; chunk < chunks; chunk++) {
        if (stages == 4)
            wait_copies<2>();
        else
            wait_copies<0>();
        // The products read shared memory through the async proxy, the copies wrote it through the generic one.
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        __syncthreads();
        u32 stage = base + chunk % stages * STAGE_BYTES;
        u32 a_high[2][4], a_low[2][4];
#pragma unroll
        for (int step = 0; step < 2; step++) {
            u32 at = place(a_row, step * 2 + a_part);
            load_matrices(a_high[step], stage + at);
            if (LOW) load_matrices(a_low[step], stage + Q_BYTES + at);
        }
        u64 b_high = descriptor(stage + 2 * Q_BYTES), b_low = descriptor(stage + 2 * Q_BYTES + G_BYTES);
#pragma unroll
        for (int quarter = 0; quarter < 4; quarter++) {
            begin_products();
#pragma unroll
            for (int step = 0; step < 2; step++) {
                // 64 rows of 64 bytes are 256 units of 16 bytes; 16 halves are two units.
                u64 offset = quarter * 256 + step * 2;
                multiply_wide(part[quarter % 2], a_high[step], b_high + offset, step);
                if (LOW) multiply_wide(part[quarter % 2], a_low[step], b_high + offset, 1);
                if (LOW) multiply_wide(part[quarter % 2], a_high[step], b_low + offset, 1);
            }
            commit_products();
            if (quarter == 0) {
                // All warps are done with the chunk that this copy overwrites. The copy runs during products.
                int next = chunk + stages - 1;
                if (next < chunks) fetch_stage(all, next % stages, next, LOW, LOW);
                commit_copies();
            }
            if (quarter > 0) {
                wait_products<1>();
#pragma unroll
                for (int i = 0; i < 32; i++) sums[quarter - 1][i] += part[(quarter - 1) % 2][i];
            }
        }
        wait_products<0>();
#pragma unroll
        for (int i = 0; i < 32; i++) sums[3][i] += part[1][i];
    }
    wait_copies<0>();
    __syncthreads();

    u32 *words = reinterpret_cast<u32 *>(shared);
    Local local = {words, words + TILE_Q, words + TILE_Q + TILE_G, words + TILE_Q + TILE_G + 2};
    float *columns = reinterpret_cast<float *>(words + TILE_Q + TILE_G + 2 + TILE_LIST);
    u32 *packed = reinterpret_cast<u32 *>(columns + 3 * TILE_G);
    // Missing rows have a NaN bound, with which no comparison holds.
    float none = __int_as_float(0x7fffffff);
    for (int i = threadIdx.x; i < TILE_G; i += THREADS) {
        int column = first_g + i;
        bool present = column < g.rows;
        columns[i] = present ? g.sizes[column] : none;
        columns[TILE_G + i] = present ? g.bounds_low[column] : none;
        columns[2 * TILE_G + i] = present ? g.bounds_high[column] : none;
    }
    if (threadIdx.x == 0) *local.count = 0;
    __syncthreads();

    float row_size[2], row_low[2], row_high[2];
    u32 above_row[2] = {0, 0};
#pragma unroll
    for (int k = 0; k < 2; k++) {
        int row = first_q + warp * 16 + k * 8 + lane / 4;
        bool present = row < q.rows;
        row_size[k] = present ? q.sizes[row] * relative : none;
        row_low[k] = present ? q.bounds_low[row] : none;
        row_high[k] = present ? q.bounds_high[row] : none;
    }
#pragma unroll
    for (int quarter = 0; quarter < 4; quarter++) {
#pragma unroll
        for (int two = 0; two < 4; two++) {
            // Counts of four columns in one word: at most two rows of eight lanes each.
            u32 above_columns = 0;
#pragma unroll
            for (int one = 0; one < 2; one++) {
                int n = two * 2 + one, in_tile = quarter * 64 + n * 8 + lane % 4 * 2;
                float2 size = *reinterpret_cast<float2 *>(columns + in_tile);
                float2 low = *reinterpret_cast<float2 *>(columns + TILE_G + in_tile);
                float2 high = *reinterpret_cast<float2 *>(columns + 2 * TILE_G + in_tile);
                u32 open_row = 0, open_column = 0;
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    int k = i / 2, c = i % 2;
                    float score = sums[quarter][n * 4 + i], error = row_size[k] * (c ? size.y : size.x);
                    bool is_above = score - row_high[k] > error, may_be = score - row_low[k] >= -error;
                    bool is_above_column = score - (c ? high.y : high.x) > error;
                    bool may_be_column = score - (c ? low.y : low.x) >= -error;
                    if (is_above) above_row[k]++;
                    if (is_above_column) above_columns += 1u << (8 * (2 * one + c));
                    if (may_be && !is_above) open_row |= 1u << i;
                    if (may_be_column && !is_above_column) open_column |= 1u << i;
                }
                for (u32 open = open_row | open_column; open; open &= open - 1) {
                    int i = __ffs((int)open) - 1;
                    add_to_list(local, warp * 16 + i / 2 * 8 + lane / 4, in_tile + i % 2, open_row >> i & 1,
                                open_column >> i & 1);
                }
            }
            above_columns += __shfl_xor_sync(ALL_LANES, above_columns, 4);
            above_columns += __shfl_xor_sync(ALL_LANES, above_columns, 8);
            above_columns += __shfl_xor_sync(ALL_LANES, above_columns, 16);
            if (lane < 4) packed[(warp * 4 + lane) * 16 + quarter * 4 + two] = above_columns;
        }
    }
#pragma unroll
    for (int k = 0; k < 2; k++) {
        u32 above = above_row[k];
        above += __shfl_xor_sync(ALL_LANES, above, 1);
        above += __shfl_xor_sync(ALL_LANES, above, 2);
        if (lane % 4 == 0) local.row_above[warp * 16 + k * 8 + lane / 4] = above;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < TILE_G; i += THREADS) {
        // Column i is column 2 (i / 2 % 4) + i % 2 of eight.
        int n = i / 8, word = n / 2, shift = 8 * (n % 2 * 2 + i % 2);
        u32 above = 0;
        for (int from = 0; from < THREADS / WARP; from++)
            above += packed[(from * 4 + i / 2 % 4) * 16 + word] >> shift & 0xff;
        local.column_above[i] = above;
    }
    __syncthreads();
    finish(local, tile, q, g, q_base, list, list_room, tiles, counters);
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    rank_count_wide(const u16 *q_high, const u16 *q_low, const float *q_sizes, const float *q_bounds_low,
                    const float *q_bounds_high, u32 *q_above, int q_rows, const u16 *g_high, const u16 *g_low,
                    const float *g_sizes, const float *g_bounds_low, const float *g_bounds_high, u32 *g_above,
                    int g_rows, int padded, int stages, float relative, float per_product, int q_base, u64 *list,
                    u32 list_room, u32 *tiles, u32 *counters) {
    Side q = {q_high, q_low, q_sizes, q_bounds_low, q_bounds_high, q_above, q_rows};
    Side g = {g_high, g_low, g_sizes, g_bounds_low, g_bounds_high, g_above, g_rows};
    // Products of 32 values are summed before they are added to the sums: twice the terms of the narrow kernel.
    if (counters[Q_LOW] | counters[G_LOW])
        count_wide<true>(q, g, padded, stages, relative + 6 * per_product, q_base, list, list_room, tiles, counters);
    else
        count_wide<false>(q, g, padded, stages, relative + 2 * per_product, q_base, list, list_room, tiles, counters);
}

#endif

// 1: above, 0: equal, -1: below, 2: within the error of f64.
__device__ __forceinline__ int compare(double score, double error, double2 threshold) {
    double difference = score - threshold.x;
    error += threshold.y;
    if (fabs(difference) > error) return difference > 0 ? 1 : -1;
    return error == 0 ? 0 : 2;
}

__device__ __forceinline__ void leave_open(u64 entry, u64 *open, u32 open_room, u32 *counters) {
    u32 at = atomicAdd(&counters[OPEN], 1u);
    if (at < open_room) open[at] = entry;
}

// Whether two rows are equal, value by value. To be called by all lanes of a warp.
__device__ __forceinline__ bool same_rows(const float *a, const float *b, int dimension) {
    if (a == b) return true;
    bool same = true;
    for (int i = threadIdx.x % WARP; i < dimension; i += WARP) same &= a[i] == b[i];
    return __all_sync(ALL_LANES, same);
}

// Repeats the listed comparisons in f64, one warp each. Comparisons that f64 leaves open go to another list, unless the row is a copy of
// the positive.
extern "C" __global__ void rank_recheck(const float *queries, const float *gallery, int dimension, const u64 *list,
                                        u32 list_room, const double2 *q_thresholds, const u32 *q_positives, u32 *q_above,
                                        u32 *q_level, const double2 *g_thresholds, const u32 *g_positives, u32 *g_above,
                                        u32 *g_level, i64 q_first, i64 g_first, i64 q_rows, i64 g_rows, int exact, u64 *open,
                                        u32 open_room, u32 *counters) {
    int lane = threadIdx.x % WARP;
    u32 count = min(counters[LISTED], list_room), step = gridDim.x * (blockDim.x / WARP);
    u64 decided = 0;
    for (u32 i = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP; i < count; i += step) {
        u64 entry = list[i];
        if (entry == NOTHING) continue;
        u32 row = (u32)(entry >> 32), column = (u32)entry >> 2;
        const float *a = queries + (i64)row * dimension, *b = gallery + (i64)column * dimension;
        double score = 0, size = 0;
        if (dimension % 4 == 0) {
            for (int k = lane * 4; k < dimension; k += 4 * WARP) {
                float4 x = *reinterpret_cast<const float4 *>(a + k), y = *reinterpret_cast<const float4 *>(b + k);
                double p0 = (double)x.x * y.x, p1 = (double)x.y * y.y, p2 = (double)x.z * y.z, p3 = (double)x.w * y.w;
                score += (p0 + p1) + (p2 + p3);
                size += (fabs(p0) + fabs(p1)) + (fabs(p2) + fabs(p3));
            }
        } else {
            for (int k = lane; k < dimension; k += WARP) {
                double product = (double)a[k] * b[k];
                score += product;
                size += fabs(product);
            }
        }
        score = warp_sum(score);
        size = warp_sum(size);
        double error = exact ? 0.0 : (dimension + 2) * 2.220446049250313e-16 * size;
        for (u32 side = 0; side < 2; side++) {
            u32 flag = side ? OF_ITEM : OF_QUERY;
            if (!(entry & flag)) continue;
            u32 own = side ? column : row;
            int order = compare(score, error, side ? g_thresholds[own] : q_thresholds[own]);
            decided++;
            if (order == 2) {
                // If the positive is not among these rows, the host decides.
                i64 other = side ? (i64)g_positives[own] - q_first : (i64)q_positives[own] - g_first;
                bool here = other >= 0 && other < (side ? q_rows : g_rows);
                bool same = here && (side ? same_rows(a, queries + other * dimension, dimension)
                                          : same_rows(b, gallery + other * dimension, dimension));
                if (same) order = 0;
            }
            if (lane != 0) continue;
            if (order == 2) leave_open((entry & ~3ull) | flag, open, open_room, counters);
            if (order == 1) atomicAdd(side ? &g_above[own] : &q_above[own], 1u);
            if (order == 0) atomicAdd(side ? &g_level[own] : &q_level[own], 1u);
        }
    }
    if (lane == 0 && decided) atomicAdd(reinterpret_cast<u64 *>(counters + IN_F64), decided);
}

#define DENSE 64
#define DEPTH 16

// Computes whole tiles in f64, if the lists had no room for them. Blocks of 64 x 64, 4 x 4 per thread.
extern "C" __global__ void __launch_bounds__(256)
    rank_dense(const float *queries, const float *gallery, int dimension, const u32 *tiles, int q_base,
               const double2 *q_thresholds, const u32 *q_positives, u32 *q_above, u32 *q_level,
               const double2 *g_thresholds, const u32 *g_positives, u32 *g_above, u32 *g_level, i64 q_first, i64 g_first,
               int q_rows, int g_rows, int exact, u64 *open, u32 open_room, u32 *counters) {
    __shared__ float a[DEPTH][DENSE + 1], b[DEPTH][DENSE + 1];
    const u32 PARTS_G = TILE_G / DENSE, PARTS = (TILE_Q / DENSE) * PARTS_G;
    u32 count = counters[TILES] * PARTS;
    int ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    for (u32 job = blockIdx.x; job < count; job += gridDim.x) {
        u32 tile = tiles[job / PARTS], part = job % PARTS;
        int first_q = q_base + (int)(tile >> 16) * TILE_Q + (int)(part / PARTS_G) * DENSE;
        int first_g = (int)(tile & 0xffff) * TILE_G + (int)(part % PARTS_G) * DENSE;
        double score[4][4] = {}, size[4][4] = {};
        for (int k0 = 0; k0 < dimension; k0 += DEPTH) {
            __syncthreads();
            for (int i = threadIdx.x; i < DENSE * DEPTH; i += 256) {
                int row = i / DEPTH, k = i % DEPTH;
                bool inside = k0 + k < dimension;
                a[k][row] = inside && first_q + row < q_rows ? queries[(i64)(first_q + row) * dimension + k0 + k] : 0.0f;
                b[k][row] = inside && first_g + row < g_rows ? gallery[(i64)(first_g + row) * dimension + k0 + k] : 0.0f;
            }
            __syncthreads();
            for (int k = 0; k < DEPTH; k++)
#pragma unroll
                for (int i = 0; i < 4; i++)
#pragma unroll
                    for (int j = 0; j < 4; j++) {
                        double product = (double)a[k][ty + 16 * i] * b[k][tx + 16 * j];
                        score[i][j] += product;
                        size[i][j] += fabs(product);
                    }
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                int row = first_q + ty + 16 * i, column = first_g + tx + 16 * j;
                if (row >= q_rows || column >= g_rows) continue;
                double error = exact ? 0.0 : (dimension + 2) * 2.220446049250313e-16 * size[i][j];
                u64 entry = (u64)row << 32 | (u64)column << 2;
                for (int side = 0; side < 2; side++) {
                    int own = side ? column : row;
                    int order = compare(score[i][j], error, side ? g_thresholds[own] : q_thresholds[own]);
                    if (order == 2) {
                        i64 other = side ? (i64)g_positives[own] - q_first : (i64)q_positives[own] - g_first;
                        bool same = other >= 0 && other < (side ? q_rows : g_rows);
                        const float *x = side ? queries + (i64)row * dimension : gallery + (i64)column * dimension;
                        const float *y = (side ? queries : gallery) + other * dimension;
                        for (int k = 0; same && x != y && k < dimension; k++) same = x[k] == y[k];
                        if (same) order = 0;
                    }
                    if (order == 2) leave_open(entry | (side ? OF_ITEM : OF_QUERY), open, open_room, counters);
                    if (order == 1) atomicAdd(side ? &g_above[own] : &q_above[own], 1u);
                    if (order == 0) atomicAdd(side ? &g_level[own] : &q_level[own], 1u);
                }
            }
        if (threadIdx.x == 0) atomicAdd(reinterpret_cast<u64 *>(counters + IN_F64), (u64)2 * DENSE * DENSE);
    }
}

// Scores of pairs in f64 with their error bounds, one warp each.
extern "C" __global__ void rank_pairs(const float *queries, const float *gallery, int dimension, const uint2 *pairs,
                                      int count, int exact, double2 *scores) {
    int i = blockIdx.x * (blockDim.x / WARP) + threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (i >= count) return;
    uint2 pair = pairs[i];
    const float *a = queries + (i64)pair.x * dimension, *b = gallery + (i64)pair.y * dimension;
    double score = 0, size = 0;
    for (int k = lane; k < dimension; k += WARP) {
        double product = (double)a[k] * b[k];
        score += product;
        size += fabs(product);
    }
    score = warp_sum(score);
    size = warp_sum(size);
    if (lane == 0) scores[i] = make_double2(score, exact ? 0.0 : (dimension + 2) * 2.220446049250313e-16 * size);
}

#endif
