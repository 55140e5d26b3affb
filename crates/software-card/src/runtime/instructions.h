// C++ versions of the instructions that kernels use through inline assembly; `common.cuh` documents each. Included in place of the
// assembly for real cards.

typedef unsigned short u16;
typedef unsigned int u32;
inline void follow() {}

inline float f16_to_float(u16 bits) { return (float)holdall_bits<_Float16>(bits); }
inline u16 float_to_f16(float value) { return holdall_bits<u16>((_Float16)value); }
inline u16 float_to_bf16(float value) {
    u32 bits = holdall_bits<u32>(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return 0x7fff;
    return (u16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// cp.async: no data arrives before its thread waits.
inline void copy_chunk(u32 to, const void *from, bool present) {
    card::Copies &own = card::block.copies[card::block.current];
    if (own.count == own.room) {
        own.room = own.room ? 2 * own.room : 64;
        own.list = (card::Copy *)realloc(own.list, own.room * sizeof(card::Copy));
    }
    own.list[own.count++] = {card::shared_at(to), from, present, own.group};
}

inline void commit_copies() { card::block.copies[card::block.current].group++; }

template <int PENDING> inline void wait_copies() {
    card::Copies &own = card::block.copies[card::block.current];
    unsigned kept = 0;
    for (unsigned i = 0; i < own.count; i++) {
        card::Copy &copy = own.list[i];
        if (copy.group + PENDING >= own.group) {
            own.list[kept++] = copy;
        } else if (copy.present) {
            memcpy(copy.to, copy.from, 16);
        } else {
            memset(copy.to, 0, 16);
        }
    }
    own.count = kept;
}

template <bool TRANSPOSED> struct CardMatrices {
    u32 from;
    u32 *to;
    static void run(void *const (&lanes)[32]) {
        u16 rows[32][8];
        memset(rows, card::POISON, sizeof rows);
        for (int i = 0; i < 32; i++)
            if (lanes[i]) memcpy(rows[i], card::shared_at(((CardMatrices *)lanes[i])->from), 16);
        for (int i = 0; i < 32; i++) {
            if (!lanes[i]) continue;
            u32 *to = ((CardMatrices *)lanes[i])->to;
            for (int matrix = 0; matrix < 4; matrix++) {
                u16(*of)[8] = rows + 8 * matrix;
                int major = i / 4, minor = 2 * (i % 4);
                u32 first = TRANSPOSED ? of[minor][major] : of[major][minor];
                u32 second = TRANSPOSED ? of[minor + 1][major] : of[major][minor + 1];
                to[matrix] = first | second << 16;
            }
        }
    }
};

inline void load_matrices(u32 (&to)[4], u32 from) {
    CardMatrices<false> own = {from, to};
    card::meet_warp(CardMatrices<false>::run, &own);
}

inline void load_matrices_transposed(u32 (&to)[4], u32 from) {
    CardMatrices<true> own = {from, to};
    card::meet_warp(CardMatrices<true>::run, &own);
}

inline void store_word(u32 to, u32 word) { memcpy(card::shared_at(to), &word, 4); }

struct CardProduct {
    float *c;
    u32 a[4], b[2];
    static float number(u32 word, int half) {
        u16 bits = (u16)(word >> (16 * half));
#if ELEMENT == 1
        return f16_to_float(bits);
#else
        return holdall_bits<float>((u32)bits << 16);
#endif
    }
    static void run(void *const (&lanes)[32]) {
        float a[16][16], b[16][8], c[16][8];
        for (int i = 0; i < 32; i++) {
            int row = i / 4, column = 2 * (i % 4);
            CardProduct *own = (CardProduct *)lanes[i];
            if (!own) card::abandon("a product of a warp some of whose lanes have ended");
            for (int half = 0; half < 2; half++) {
                a[row][column + half] = number(own->a[0], half);
                a[row + 8][column + half] = number(own->a[1], half);
                a[row][column + 8 + half] = number(own->a[2], half);
                a[row + 8][column + 8 + half] = number(own->a[3], half);
                b[column + half][row] = number(own->b[0], half);
                b[column + 8 + half][row] = number(own->b[1], half);
                c[row][column + half] = own->c[half];
                c[row + 8][column + half] = own->c[2 + half];
            }
        }
        for (int i = 0; i < 16; i++)
            for (int k = 0; k < 16; k++)
                for (int j = 0; j < 8; j++) c[i][j] += a[i][k] * b[k][j];
        for (int i = 0; i < 32; i++) {
            int row = i / 4, column = 2 * (i % 4);
            float *to = ((CardProduct *)lanes[i])->c;
            to[0] = c[row][column], to[1] = c[row][column + 1];
            to[2] = c[row + 8][column], to[3] = c[row + 8][column + 1];
        }
    }
};

inline void multiply(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    CardProduct own = {c, {a0, a1, a2, a3}, {b0, b1}};
    card::meet_warp(CardProduct::run, &own);
}

inline u32 pack_pair(float first, float second) {
#if ELEMENT == 1
    return (u32)float_to_f16(first) | (u32)float_to_f16(second) << 16;
#else
    return (u32)float_to_bf16(first) | (u32)float_to_bf16(second) << 16;
#endif
}

inline float power_of_two(float x) { return exp2f(x); }

inline float4 read_again(const float4 *from) { return *from; }
inline float read_again(const float *from) { return *from; }
