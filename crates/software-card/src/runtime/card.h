// CUDA's words for a C++ compiler of the host: what a kernel file is compiled with in place of NVRTC.
//
// A library has one block's memory: shared variables are plain statics in a section of their own, and `threadIdx` is a plain global that
// is set whenever a thread gets its turn. Blocks that run at the same time run in copies of the library, one for each core.
//
// The threads of a block are fibers. A thread runs until it meets others, at a barrier or in an operation of its warp; then the next one
// has its turn, in an order drawn from the block's seed. A thread that meets nobody never leaves its stack, so that kernels without
// barriers cost a call for each thread.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#if !defined(__x86_64__)
#error "the software card switches between threads of a block in x86-64's assembly alone"
#endif

namespace card {

constexpr int LANES = 32;
constexpr int MOST_THREADS = 1024;
constexpr size_t STACK_BYTES = 256 << 10;

struct Extent {
    unsigned x, y, z;
};

// What the host says of a launch; `Launch` in launch.rs is the same.
struct Launch {
    void (*kernel)(void *const *);
    void *const *arguments;
    Extent grid, block;
    // MOST_THREADS stacks of STACK_BYTES, each with a page at its end that nobody may touch.
    char *stacks;
    // The arena whose tensors are guarded, and a byte for each of its bytes: 0 lies outside of every tensor.
    uint64_t arena, arena_bytes;
    const unsigned char *is_inside;
};

// A kernel as the host finds it; `KernelEntry` in launch.rs is the same.
struct Kernel {
    const char *name;
    void (*call)(void *const *);
    unsigned num_arguments, most_threads;
    const unsigned *argument_bytes;
};

// An operation of a whole warp: called once, with what each lane brought; null for lanes that are not there.
typedef void (*Collective)(void *const (&lanes)[LANES]);

struct Warp {
    // A bit for each lane.
    uint32_t alive, runnable, started, at_collective, at_barrier;
    Collective collective;
    void *brought[LANES];
};

// A chunk that cp.async copies: it arrives when its thread waits for it, and no earlier.
struct Copy {
    void *to;
    const void *from;
    bool present;
    unsigned group;
};

struct Copies {
    Copy *list;
    unsigned count, room, group;
};

struct Block {
    const Launch *launch;
    Warp warps[MOST_THREADS / LANES];
    uint32_t ready_warps;
    int num_warps, num_alive, num_at_barrier;
    // Sum of what threads bring to a barrier, and the sum that the last barrier left.
    int brought, left;
    void *stack_pointer[MOST_THREADS];
    void *stack_of[MOST_THREADS];
    Copies copies[MOST_THREADS];
    void *free_stacks[MOST_THREADS];
    int num_free;
    void *host_stack_pointer;
    unsigned current;
    uint64_t random;
    bool backwards, restless;
    const char *fault;
    // Address and instruction of an access outside of every tensor.
    uint64_t stray_access[2];
};

static Block block;

// Saves what the callee must keep, and goes on where another stack left off.
extern "C" void holdall_switch(void **from, void *to);
asm(R"(
.text
.local holdall_switch
.type holdall_switch, @function
holdall_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size holdall_switch, .-holdall_switch
)");

static inline uint64_t draw() {
    uint64_t x = block.random;
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    return block.random = x;
}

}  // namespace card

static card::Extent threadIdx, blockIdx, blockDim, gridDim;

namespace card {

[[noreturn]] static void abandon(const char *fault) {
    block.fault = fault;
    void *ignored;
    holdall_switch(&ignored, block.host_stack_pointer);
    __builtin_unreachable();
}

static void take_turn(unsigned thread) {
    block.current = thread;
    threadIdx.x = thread;
}

static void run_threads();

// The thread that goes on: one of this warp where there is one. -1 where none can.
static int next_thread() {
    unsigned warp = block.current / LANES, lane = block.current % LANES;
    uint32_t ready = block.warps[warp].runnable;
    if (ready == 0 || (block.restless && draw() % 8 == 0 && block.ready_warps)) {
        uint32_t warps = block.ready_warps;
        if (warps == 0) return -1;
        unsigned skip = draw() % __builtin_popcount(warps);
        while (skip--) warps &= warps - 1;
        warp = __builtin_ctz(warps);
        ready = block.warps[warp].runnable;
        lane = draw() % LANES;
    }
    if (block.backwards) {
        uint32_t below = ready & ((1u << lane) - 1);
        return warp * LANES + 31 - __builtin_clz(below ? below : ready);
    }
    uint32_t above = ready & ~((2u << lane) - 1);
    return warp * LANES + __builtin_ctz(above ? above : ready);
}

static void mark_waiting(Warp &warp, unsigned thread) {
    warp.runnable &= ~(1u << thread % LANES);
    if (warp.runnable == 0) block.ready_warps &= ~(1u << thread / LANES);
}

static void mark_runnable(unsigned index, uint32_t lanes) {
    block.warps[index].runnable |= lanes;
    if (lanes) block.ready_warps |= 1u << index;
}

static const char *STUCK = "threads wait for each other and none can go on: a barrier or an operation of a warp that not all of them reach";

static void *fresh_stack(unsigned thread) {
    char *stack = (char *)block.free_stacks[--block.num_free];
    block.stack_of[thread] = stack;
    // Tops are shifted against each other, or they would all lie in the same lines of the cache.
    size_t shift = (size_t)(stack - block.launch->stacks) / STACK_BYTES % 61 * 192;
    void **top = (void **)(stack + STACK_BYTES - 64 - shift);
    *--top = nullptr;
    *--top = (void *)run_threads;
    top -= 6;
    return top;
}

static void *stack_pointer_of(unsigned thread) {
    Warp &warp = block.warps[thread / LANES];
    if (warp.started >> thread % LANES & 1) return block.stack_pointer[thread];
    warp.started |= 1u << thread % LANES;
    return fresh_stack(thread);
}

// Until this thread can go on.
__attribute__((noinline)) static void wait() {
    unsigned own = block.current;
    int next = next_thread();
    if (next < 0) abandon(STUCK);
    if ((unsigned)next != own) {
        void *to = stack_pointer_of(next);
        take_turn(next);
        holdall_switch(&block.stack_pointer[own], to);
    }
    take_turn(own);
}

static void finish_collective(unsigned index) {
    Warp &warp = block.warps[index];
    warp.collective(warp.brought);
    for (int lane = 0; lane < LANES; lane++) warp.brought[lane] = nullptr;
    uint32_t lanes = warp.at_collective;
    warp.at_collective = 0;
    mark_runnable(index, lanes);
}

__attribute__((noinline)) static void meet_warp(Collective collective, void *brought) {
    unsigned thread = block.current, index = thread / LANES, lane = thread % LANES;
    Warp &warp = block.warps[index];
    if (warp.at_collective == 0) warp.collective = collective;
    else if (warp.collective != collective) abandon("lanes of a warp wait in different operations of a warp");
    warp.brought[lane] = brought;
    warp.at_collective |= 1u << lane;
    if (warp.at_collective == warp.alive) {
        finish_collective(index);
        if (!block.restless) return;
    } else {
        mark_waiting(warp, thread);
    }
    wait();
}

static void open_barrier() {
    block.left = block.brought;
    block.brought = 0;
    block.num_at_barrier = 0;
    for (int i = 0; i < block.num_warps; i++) {
        uint32_t lanes = block.warps[i].at_barrier;
        block.warps[i].at_barrier = 0;
        mark_runnable(i, lanes);
    }
}

__attribute__((noinline)) static int meet_block(int brought) {
    unsigned thread = block.current;
    Warp &warp = block.warps[thread / LANES];
    block.brought += brought;
    warp.at_barrier |= 1u << thread % LANES;
    mark_waiting(warp, thread);
    if (++block.num_at_barrier == block.num_alive) open_barrier();
    wait();
    return block.left;
}

static void leave(unsigned thread) {
    unsigned index = thread / LANES;
    Warp &warp = block.warps[index];
    mark_waiting(warp, thread);
    warp.alive &= ~(1u << thread % LANES);
    block.num_alive--;
    if (warp.at_collective && warp.at_collective == warp.alive) finish_collective(index);
    if (block.num_at_barrier && block.num_at_barrier == block.num_alive) open_barrier();
}

// What a stack runs: a thread, and after it those that have not begun.
static void run_threads() {
    for (;;) {
        unsigned thread = block.current;
        block.launch->kernel(block.launch->arguments);
        leave(thread);
        int next = block.num_alive == 0 ? -2 : next_thread();
        if (next == -1) abandon(STUCK);
        void *ignored;
        if (next == -2) holdall_switch(&ignored, block.host_stack_pointer);
        Warp &warp = block.warps[next / LANES];
        void *own = block.stack_of[thread];
        take_turn(next);
        if (!(warp.started >> next % LANES & 1)) {
            warp.started |= 1u << next % LANES;
            block.stack_of[next] = own;
            continue;
        }
        block.free_stacks[block.num_free++] = own;
        holdall_switch(&ignored, block.stack_pointer[next]);
    }
}

extern "C" __attribute__((visibility("hidden"))) char __start_holdall_shared[], __stop_holdall_shared[];

static inline char *shared_at(uint32_t offset) { return __start_holdall_shared + offset; }

// Not a number in every format: what nobody wrote is seen in the result.
constexpr int POISON = 0xff;

}  // namespace card

// Runs one block; null, or what went wrong.
extern "C" const char *holdall_run_block(const card::Launch *launch, card::Extent index, uint64_t seed) {
    using namespace card;
    for (int i = 0; i < MOST_THREADS; i++) block.free_stacks[i] = launch->stacks + (size_t)(MOST_THREADS - 1 - i) * STACK_BYTES;
    block.num_free = MOST_THREADS;
    memset(__start_holdall_shared, POISON, __stop_holdall_shared - __start_holdall_shared);
    unsigned num_threads = launch->block.x * launch->block.y * launch->block.z;
    block.launch = launch;
    block.num_alive = num_threads;
    block.num_warps = (num_threads + LANES - 1) / LANES;
    block.num_at_barrier = block.brought = block.left = 0;
    block.ready_warps = block.num_warps == 32 ? ~0u : (1u << block.num_warps) - 1;
    block.fault = nullptr;
    block.stray_access[0] = block.stray_access[1] = 0;
    for (int i = 0; i < block.num_warps; i++) {
        unsigned lanes = num_threads - i * LANES < LANES ? num_threads - i * LANES : LANES;
        Warp &warp = block.warps[i];
        memset(&warp, 0, sizeof warp);
        warp.alive = warp.runnable = lanes == 32 ? ~0u : (1u << lanes) - 1;
    }
    for (unsigned i = 0; i < num_threads; i++) block.copies[i].count = block.copies[i].group = 0;
    blockDim = launch->block, gridDim = launch->grid, blockIdx = index;
    threadIdx = {0, 0, 0};
    block.random = seed | 1;
    for (int i = 0; i < 4; i++) draw();
    block.backwards = draw() >> 20 & 1;
    block.restless = (draw() >> 20 & 3) == 0;
    block.current = draw() % num_threads;
    unsigned first = next_thread();
    take_turn(first);
    holdall_switch(&block.host_stack_pointer, stack_pointer_of(first));
    // The host's own accesses, before the next block begins, are not checked.
    block.launch = nullptr;
    return block.fault;
}

// Where a signal's handler sends a thread that touched what it must not.
extern "C" void holdall_abandon() { card::abandon("a fault"); }

extern "C" void holdall_stray_access(uint64_t *to) { to[0] = card::block.stray_access[0], to[1] = card::block.stray_access[1]; }

#if defined(HOLDALL_GUARD_TENSORS)
// The compiler calls these at every access of memory; an access of the arena must lie within a tensor.
#define HOLDALL_UNCHECKED extern "C" __attribute__((noinline, used, no_sanitize("address", "kernel-address")))
HOLDALL_UNCHECKED void holdall_check_bytes(uint64_t address, uint64_t bytes, void *instruction) {
    using namespace card;
    uint64_t offset = address - block.launch->arena;
    for (uint64_t i = offset; i < offset + bytes && i < block.launch->arena_bytes; i++) {
        if (block.launch->is_inside[i]) continue;
        block.stray_access[0] = block.launch->arena + i;
        block.stray_access[1] = (uint64_t)instruction - 1;
        abandon("an access outside of every tensor");
    }
}
// Eight marks are compared at once: one after the other they would take longer than all else that a kernel does.
static inline __attribute__((always_inline, no_sanitize("address", "kernel-address"))) void holdall_check_access(
    uint64_t address, uint64_t bytes, void *instruction) {
    using namespace card;
    if (block.launch == nullptr) return;
    uint64_t offset = address - block.launch->arena;
    if (offset >= block.launch->arena_bytes) return;
    for (uint64_t i = 0; i < bytes; i += 8) {
        uint64_t num_marks = bytes - i < 8 ? bytes - i : 8;
        uint64_t marks, inside = 0x0101010101010101 >> (64 - 8 * num_marks);
        if (offset + i + 8 > block.launch->arena_bytes) return holdall_check_bytes(address, bytes, instruction);
        memcpy(&marks, block.launch->is_inside + offset + i, sizeof marks);
        if ((marks & inside) != inside) return holdall_check_bytes(address, bytes, instruction);
    }
}
#define HOLDALL_CHECK(name, bytes) \
    HOLDALL_UNCHECKED void __asan_##name##_noabort(uint64_t address) { holdall_check_access(address, bytes, __builtin_return_address(0)); }
HOLDALL_CHECK(load1, 1) HOLDALL_CHECK(load2, 2) HOLDALL_CHECK(load4, 4) HOLDALL_CHECK(load8, 8) HOLDALL_CHECK(load16, 16)
HOLDALL_CHECK(store1, 1) HOLDALL_CHECK(store2, 2) HOLDALL_CHECK(store4, 4) HOLDALL_CHECK(store8, 8) HOLDALL_CHECK(store16, 16)
HOLDALL_UNCHECKED void __asan_loadN_noabort(uint64_t address, uint64_t bytes) {
    holdall_check_access(address, bytes, __builtin_return_address(0));
}
HOLDALL_UNCHECKED void __asan_storeN_noabort(uint64_t address, uint64_t bytes) {
    holdall_check_access(address, bytes, __builtin_return_address(0));
}
HOLDALL_UNCHECKED void __asan_handle_no_return() {}
#endif

// The thread whose turn it was.
extern "C" unsigned holdall_current_thread() { return card::block.current; }

namespace card {

template <class T, int SIZE = sizeof(T)> struct Shuffle {
    T value;
    unsigned from;
    static void run(void *const (&lanes)[LANES]) {
        T values[LANES];
        memset((void *)values, POISON, sizeof values);
        for (int i = 0; i < LANES; i++)
            if (lanes[i]) values[i] = ((Shuffle *)lanes[i])->value;
        for (int i = 0; i < LANES; i++)
            if (lanes[i]) ((Shuffle *)lanes[i])->value = values[((Shuffle *)lanes[i])->from % LANES];
    }
};

struct Vote {
    unsigned holds, result;
    static void run(void *const (&lanes)[LANES]) {
        unsigned holds = 0;
        for (int i = 0; i < LANES; i++)
            if (lanes[i]) holds |= (((Vote *)lanes[i])->holds != 0) << i;
        for (int i = 0; i < LANES; i++)
            if (lanes[i]) ((Vote *)lanes[i])->result = holds;
    }
};

inline unsigned vote(bool holds) {
    Vote own = {holds, 0};
    meet_warp(Vote::run, &own);
    return own.result;
}

inline void nothing(void *const (&)[LANES]) {}

template <class T> inline T shuffle(T value, unsigned from) {
    Shuffle<T> own = {value, from};
    meet_warp(Shuffle<T>::run, &own);
    return own.value;
}

inline unsigned lane() { return block.current % LANES; }

constexpr unsigned first_bound(unsigned most_threads = MOST_THREADS, unsigned = 0) { return most_threads; }

template <class> struct Call;
template <class... P> struct Call<void (*)(P...)> {
    template <void (*F)(P...), size_t... I> static void spread(void *const *arguments, std::index_sequence<I...>) {
        F(*(std::remove_cv_t<P> *)arguments[I]...);
    }
    template <void (*F)(P...)> static void call(void *const *arguments) {
        spread<F>(arguments, std::index_sequence_for<P...>());
    }
    static constexpr unsigned bytes[sizeof...(P) + 1] = {sizeof(P)..., 0};
    static constexpr unsigned count = sizeof...(P);
};

}  // namespace card

// A line of the table of kernels; `bounds` is what __launch_bounds__ says, in parentheses.
#define HOLDALL_KERNEL(name, bounds)                                                                                       \
    {#name, card::Call<decltype(&name)>::call<&name>, card::Call<decltype(&name)>::count, card::first_bound bounds,        \
     card::Call<decltype(&name)>::bytes},

#define __device__
#define __global__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __shared__ static __attribute__((section("holdall_shared")))

#define HOLDALL_VECTOR(name, type, bytes2, bytes4)                                                        \
    struct __align__(bytes2) name##2 { type x, y; };                                                      \
    struct __align__(bytes4) name##4 { type x, y, z, w; };                                                \
    inline name##2 make_##name##2(type x, type y) { return {x, y}; }                                      \
    inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
HOLDALL_VECTOR(float, float, 8, 16)
HOLDALL_VECTOR(int, int, 8, 16)
HOLDALL_VECTOR(uint, unsigned, 8, 16)
HOLDALL_VECTOR(ushort, unsigned short, 4, 8)
HOLDALL_VECTOR(uchar, unsigned char, 2, 4)
HOLDALL_VECTOR(double, double, 16, 16)

using std::isfinite;
using std::isinf;
using std::isnan;

template <class A, class B> inline __attribute__((always_inline)) constexpr std::common_type_t<A, B> min(A a, B b) {
    return (std::common_type_t<A, B>)b < (std::common_type_t<A, B>)a ? b : a;
}
template <class A, class B> inline __attribute__((always_inline)) constexpr std::common_type_t<A, B> max(A a, B b) {
    return (std::common_type_t<A, B>)a < (std::common_type_t<A, B>)b ? b : a;
}

inline void __syncthreads() { card::meet_block(0); }
inline int __syncthreads_or(int holds) { return card::meet_block(holds != 0) != 0; }
inline int __syncthreads_and(int holds) { return card::meet_block(holds == 0) == 0; }
inline int __syncthreads_count(int holds) { return card::meet_block(holds != 0); }
inline void __syncwarp(unsigned = ~0u) { card::meet_warp(card::nothing, &card::block); }
template <class T> inline T __shfl_xor_sync(unsigned, T value, int mask, int = 32) {
    return card::shuffle(value, card::lane() ^ mask);
}
template <class T> inline T __shfl_sync(unsigned, T value, int from, int = 32) { return card::shuffle(value, from); }
template <class T> inline T __shfl_down_sync(unsigned, T value, unsigned by, int = 32) {
    unsigned from = card::lane() + by;
    return card::shuffle(value, from < 32 ? from : card::lane());
}
template <class T> inline T __shfl_up_sync(unsigned, T value, unsigned by, int = 32) {
    unsigned own = card::lane();
    return card::shuffle(value, own >= by ? own - by : own);
}
inline unsigned __ballot_sync(unsigned, int holds) { return card::vote(holds); }
inline int __any_sync(unsigned, int holds) { return card::vote(holds) != 0; }
inline int __all_sync(unsigned, int holds) { return card::vote(!holds) == 0; }

template <class T> inline T atomicAdd(T *to, T value) { return __atomic_fetch_add(to, value, __ATOMIC_SEQ_CST); }
template <class T> inline T atomicOr(T *to, T value) { return __atomic_fetch_or(to, value, __ATOMIC_SEQ_CST); }
template <class T> inline T atomicMax(T *to, T value) {
    T old = __atomic_load_n(to, __ATOMIC_SEQ_CST);
    while (old < value && !__atomic_compare_exchange_n(to, &old, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
    return old;
}
template <class T> inline T atomicMin(T *to, T value) {
    T old = __atomic_load_n(to, __ATOMIC_SEQ_CST);
    while (value < old && !__atomic_compare_exchange_n(to, &old, value, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
    return old;
}
inline void __threadfence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }

template <class To, class From> inline __attribute__((always_inline)) To holdall_bits(From from) {
    To to;
    static_assert(sizeof to == sizeof from, "the same number of bits");
    memcpy(&to, &from, sizeof to);
    return to;
}
inline float __int_as_float(int bits) { return holdall_bits<float>(bits); }
inline float __uint_as_float(unsigned bits) { return holdall_bits<float>(bits); }
inline unsigned __float_as_uint(float value) { return holdall_bits<unsigned>(value); }
inline int __float_as_int(float value) { return holdall_bits<int>(value); }
inline double __longlong_as_double(long long bits) { return holdall_bits<double>(bits); }
inline long long __double_as_longlong(double value) { return holdall_bits<long long>(value); }
inline int __ffs(int value) { return __builtin_ffs(value); }
inline int __clz(int value) { return value ? __builtin_clz(value) : 32; }
inline int __popc(unsigned value) { return __builtin_popcount(value); }
inline float __fdividef(float a, float b) { return a / b; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
// The next float in the direction, where the double is none.
inline float __double2float_rd(double value) {
    float nearest = (float)value;
    return (double)nearest > value ? nextafterf(nearest, -INFINITY) : nearest;
}
inline float __double2float_ru(double value) {
    float nearest = (float)value;
    return (double)nearest < value ? nextafterf(nearest, INFINITY) : nearest;
}
#define __expf(x) expf(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
inline size_t __cvta_generic_to_shared(const void *at) { return (const char *)at - card::__start_holdall_shared; }
