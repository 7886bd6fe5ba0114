// Runs CUDA kernels compiled for the CPU: one fiber per CUDA thread, blocks spread over OS threads.
//
// Loaded once per process by devices/host.py, with global symbols; the kernels' libraries call the functions at the end of this
// file and read the thread_local indices below.
//
// AutotuneOrder (autotune_host_launch.h) says which thread goes on when one waits, and in which order blocks run.
//
// A fiber runs CUDA threads one after the other as long as none of them waits, so a kernel without a barrier is a
// plain loop on one stack. A thread that waits keeps its stack, and the block's remaining threads start on another.
// A cluster's blocks are on as many OS threads, whatever the machine's cores, in turns, and read each other's thread-local memory.
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#if !defined(__x86_64__) || defined(AUTOTUNE_UCONTEXT)
#include <ucontext.h>
#undef AUTOTUNE_UCONTEXT
#define AUTOTUNE_UCONTEXT
#endif

#include "autotune_host_launch.h"

extern "C" {
#define CONTEXT __thread Index __attribute__((tls_model("initial-exec")))
CONTEXT autotune_thread_idx;
CONTEXT autotune_block_idx;
CONTEXT autotune_block_dim;
CONTEXT autotune_grid_dim;
}

// AddressSanitizer must be told of every change of stack. Present only in a process that runs checked kernels.
extern "C" {
__attribute__((weak)) void __sanitizer_start_switch_fiber(void** fake, const void* bottom, size_t size_bytes);
__attribute__((weak)) void __sanitizer_finish_switch_fiber(void* fake, const void** bottom, size_t* size_bytes);
__attribute__((weak)) void __asan_poison_memory_region(const volatile void* address, size_t size_bytes);
__attribute__((weak)) void __asan_unpoison_memory_region(const volatile void* address, size_t size_bytes);
__attribute__((weak)) void __sanitizer_symbolize_pc(void* pc, const char* format, char* out, size_t out_bytes);
__attribute__((weak)) void __asan_loadN(const void* address, size_t size_bytes);
__attribute__((weak)) void __asan_storeN(const void* address, size_t size_bytes);
void* __tls_get_addr(size_t*);
}

namespace {

constexpr unsigned MAX_THREADS = 1024;             // of a block
constexpr unsigned WARPS = MAX_THREADS / 32;
constexpr unsigned BARRIERS = 16;                  // of a block
constexpr size_t STACK_BYTES = (128 << 10) + 1088;  // odd in cache lines, so that equal frames do not share cache sets
constexpr size_t DYNAMIC_SMEM_BYTES = 232448;      // of every kernel library with dynamic shared memory: 227 KB
constexpr uint64_t CANARY = 0x5ca1ab1e0ddba11dull;

constexpr unsigned MAX_COPIES = 4096;              // under way in a block
constexpr unsigned LATE_COPIES = 64;               // of a thread, before the oldest come unasked
constexpr unsigned MAX_CLUSTER = 8;                // blocks
constexpr size_t STATE_BYTES = 12288;              // what a thread has under way, for autotune_host_pending.h
constexpr unsigned MAX_ARRAYS = 32;                // of global memory that are watched
constexpr unsigned ACCESSORS = 32000;              // blocks that are told apart in `Accesses`
constexpr unsigned READS = 4096;                   // that are remembered
constexpr unsigned RECENT = 64;                    // accesses of shared memory that may come before a store of the same word
constexpr size_t SMEM_GUARD_BYTES = 4096;          // behind what a launch declares
constexpr size_t SMEM_BYTES = DYNAMIC_SMEM_BYTES + (64 << 10);  // that are watched, with the static part
constexpr int PREFETCHED_LINES = 4;                // of the stack of the fiber after the next

enum WarpKind { SYNC, BALLOT, SHFL, SHFL_UP, SHFL_DOWN, SHFL_XOR, TOGETHER, ACTIVE };  // as in autotune_host_warp.h

struct alignas(64) Fiber {
#ifdef AUTOTUNE_UCONTEXT
    ucontext_t context;
#else
    void* sp;
#endif
    Index index;      // of the CUDA thread that it runs
    unsigned thread;  // the same, linear
    int line;         // where it waits, for messages
    struct {          // what it left for its warp, and what it gets
        int kind;
        unsigned mask, source, width;
        uint64_t value, result;
    } warp;
    char* stack;
    void* fake_stack;
};

struct Warp {
    unsigned alive;    // lanes that have not exited
    unsigned waiting;  // lanes in a warp primitive
    unsigned fresh;    // lanes that have not started
    unsigned ready;    // lanes that waited and can go on
};

struct Copy {  // as AutotuneCopy in autotune_host.h
    void* to;
    const void* from;
    size_t bytes;
    const void* owner;
    unsigned group;
    void (*perform)(const Copy* copy);
    unsigned char what[160];
};

struct LateCopy {  // as AutotuneLateCopy in autotune_host.h
    void* to;
    unsigned bytes, group;
    unsigned char data[16];
};

// Of a thread, a ring.
struct LateCopies {
    unsigned first, count, group;
    LateCopy at[LATE_COPIES];
};

// ARRIVED: at its cluster's barrier. AWAITING: its threads wait for what another block of the cluster does.
enum BlockState : unsigned char { RUNNABLE, ARRIVED, AWAITING, ENDED };

// Blocks on an OS thread each, one cluster after another. They take turns: each goes on for as long as it can without the others.
struct Cluster {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t index;  // of the launch's clusters; behind the last one there is nothing to do
    unsigned turn;   // the block that runs
    BlockState states[MAX_CLUSTER];
    char* smem[MAX_CLUSTER];  // of those that have begun and not ended
    struct Worker* workers[MAX_CLUSTER];  // of the same
};

enum Access { READ, WRITE, ATOMIC };

// Which blocks accessed a byte of global memory: numbers from 1 to ACCESSORS, 0 for none.
struct Accesses {
    uint16_t writer : 15, atomic : 1;  // the last block that wrote, and whether only by atomics
    uint16_t reader : 15, many : 1;    // a block that read since, and whether others did
};

// What a block read, and what was there then.
struct Read {
    struct WatchedArray* array;
    uintptr_t address;
    unsigned bytes;
    unsigned char content[16];
};

struct WatchedArray {
    uintptr_t address;
    uint64_t bytes;
    bool poisoned;
    Accesses* accesses;  // of each byte
};

// Of a byte of shared memory: the threads that accessed it, from 1 on, and when. A `Moment` before the block began: nobody.
using Moment = uint32_t;
struct SmemAccesses {
    uint16_t writer : 15, atomic : 1;
    uint16_t readers[2];  // the last ones, which differ
    Moment written, read[2];
};
constexpr uint16_t BARRIER_OBJECT = 0x7fff;  // in place of a writer

// What a thread read or is about to write, and what was there then.
struct SmemAccess {
    uintptr_t address;
    unsigned bytes;
    const void* caller;
    unsigned char content[16];
};

// What the threads of a block know of each other. A warp that waited for another one knows what that did before.
struct Known {
    Moment now;                    // counts what orders threads
    Moment began;                  // the block, or since its last barrier
    Moment warps[WARPS][WARPS];    // of a warp: until when it knows what each other one did
    Moment published[WARPS];       // what barrier objects, and atomics after fences, pass on
    Moment lanes[MAX_THREADS];     // of a thread: until when it knows what its own warp did
};

struct Launch {
    void (*kernel)(void* const*);
    void* const* arguments;
    Index grid, block;
    unsigned threads;
    uint64_t blocks, next, chunk;
    unsigned cluster;  // blocks of one
    uint64_t runs;     // clusters that run: all, or some from the first to the last
    Cluster* clusters;  // under way at the same time
    uint64_t smem_bytes;
    void* (*smem)();
    uint64_t tls_module, tls_bytes;
    unsigned order;       // AutotuneOrder
    uint64_t order_seed;  // of the random ones
    uint64_t stride;      // from one block, or cluster, to the next that runs in a random order
    unsigned smem_byte;   // fills shared memory before a block starts; more than a byte holds: nothing does
    WatchedArray arrays[MAX_ARRAYS];
    unsigned array_count;
    uint64_t releases;                  // fences that were followed by an atomic
    uint64_t* released;                 // the last of them of each block
    bool watches_smem;
    int64_t deadline_ns;
    int stopped;  // a first failure is being written
    char* reason;
    char* message;
    size_t message_bytes;
};

// A barrier of some of a block's threads.
struct SomeBarrier {
    Fiber* waiting[MAX_THREADS];
    unsigned arrived, asleep;
};

struct Worker {
    Launch* launch;
    Fiber* current;
    Fiber main;
    const void* main_stack;
    size_t main_stack_bytes;
    Fiber* free[MAX_THREADS];
    unsigned free_count;
    unsigned fiber_count;
    Fiber* waiting[MAX_THREADS];  // at the block's barrier
    unsigned arrived, live;
    int barrier_line;
    unsigned barrier_count, barrier_result;
    uint64_t random;
    Index indexed_block;  // block size for which `indices` holds
    Index indices[MAX_THREADS];
    Warp warps[WARPS];
    unsigned runnable;  // warps with a lane that can start or go on
    unsigned warp;      // that runs; WARPS after a barrier of the block, which lets any warp be the next
    SomeBarrier some_barriers[BARRIERS];
    Fiber* lanes[MAX_THREADS];  // who runs a thread that has started
    Fiber* asleep[MAX_THREADS];  // who waits for a barrier object to complete a phase
    unsigned asleep_count;
    Fiber* lingering[MAX_THREADS];  // who goes on when nobody else can
    unsigned lingering_count;
    bool asks_active;  // whether lanes of this block asked who is active
    Copy copies[MAX_COPIES];  // asked for and not done, in this order
    unsigned copy_count;
    unsigned groups[MAX_THREADS];  // groups of copies that a thread committed
    uint64_t block_count;          // blocks that were begun
    unsigned accessor;             // the block's number in `Accesses`
    bool fenced, fenced_block;     // whether the block called __threadfence, or any fence
    uint64_t acquired;             // releases before the block's last atomic
    uintptr_t smem_begin, smem_end;
    Read reads[READS];  // whose words the block may have written since
    unsigned read_count;
    SmemAccess recent[RECENT];    // of the thread that runs, since it went on; a ring
    unsigned recent_count;
    Known known;
    Cluster* cluster;              // nullptr where blocks are alone
    unsigned cluster_rank;
    uint64_t meetings;                 // of the block with its cluster
    uint64_t meetings_of[MAX_THREADS];  // that a thread has been at
    LateCopies late[MAX_THREADS];    // cp.async
    uint64_t state_of[MAX_THREADS];  // the block whose thread a state is of
    alignas(64) unsigned char states[MAX_THREADS][STATE_BYTES];
    Fiber fibers[MAX_THREADS];
    SmemAccesses smem_accesses[SMEM_BYTES];  // untouched, and so without memory, where nothing is watched
    char* stacks;
    char signal_stack[32 << 10];
};

__thread Worker* self_worker __attribute__((tls_model("initial-exec")));

// From the first to the last byte of the arrays that this OS thread's launch watches. Checked kernels ask for every access.
__thread uintptr_t watched_begin __attribute__((tls_model("initial-exec")));
__thread size_t watched_bytes __attribute__((tls_model("initial-exec")));
// The shared memory of this OS thread's block, if it is watched.
__thread uintptr_t watched_smem __attribute__((tls_model("initial-exec")));
__thread size_t watched_smem_bytes __attribute__((tls_model("initial-exec")));

int64_t now_ns(clockid_t clock = CLOCK_MONOTONIC) {
    timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

uint64_t next_random(Worker* w) {  // splitmix64
    uint64_t z = w->random += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

unsigned below(Worker* w, unsigned limit) { return static_cast<unsigned>(static_cast<uint32_t>(next_random(w)) * uint64_t{limit} >> 32); }

// ---- switching stacks ----

void fiber_main();

#ifdef AUTOTUNE_UCONTEXT
void switch_stack(Fiber* from, Fiber* to) { swapcontext(&from->context, &to->context); }
void prepare_stack(Fiber* fiber) {
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack;
    fiber->context.uc_stack.ss_size = STACK_BYTES / 64 * 64;
    fiber->context.uc_link = nullptr;
    makecontext(&fiber->context, fiber_main, 0);
}
#else
extern "C" __attribute__((visibility("hidden"))) void autotune_switch(void** from, void* to);
asm(R"(
.text
.p2align 4
.globl autotune_switch
.hidden autotune_switch
.type autotune_switch, @function
autotune_switch:
    push %rbp
    push %rbx
    push %r12
    push %r13
    push %r14
    push %r15
    mov %rsp, (%rdi)
    mov %rsi, %rsp
    pop %r15
    pop %r14
    pop %r13
    pop %r12
    pop %rbx
    pop %rbp
    ret
.size autotune_switch, . - autotune_switch
)");
inline void switch_stack(Fiber* from, Fiber* to) { autotune_switch(&from->sp, to->sp); }
void prepare_stack(Fiber* fiber) {
    uintptr_t top = (reinterpret_cast<uintptr_t>(fiber->stack) + STACK_BYTES) & ~uintptr_t{63};
    void** sp = reinterpret_cast<void**>(top) - 8;  // six registers, the entry, its return address: none
    memset(sp, 0, 8 * sizeof(void*));
    sp[6] = reinterpret_cast<void*>(fiber_main);
    fiber->sp = sp;
}
#endif

inline void switch_to(Worker* w, Fiber* from, Fiber* to) {
    w->current = to;
    autotune_thread_idx = to->index;
    if (__builtin_expect(__sanitizer_start_switch_fiber != nullptr, 0)) {
        const bool to_main = to == &w->main;
        __sanitizer_start_switch_fiber(&from->fake_stack, to_main ? w->main_stack : to->stack,
                                       to_main ? w->main_stack_bytes : STACK_BYTES);
        switch_stack(from, to);
        __sanitizer_finish_switch_fiber(from->fake_stack, nullptr, nullptr);
        return;
    }
    switch_stack(from, to);
}

// ---- failures ----

__attribute__((format(printf, 3, 4))) void record(Launch* launch, const char* reason, const char* format, ...) {
    if (__atomic_exchange_n(&launch->stopped, 1, __ATOMIC_ACQ_REL)) return;
    snprintf(launch->reason, 32, "%s", reason);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(launch->message, launch->message_bytes, format, arguments);
    va_end(arguments);
}

// Leaves the kernel: every fiber of the block is abandoned.
[[noreturn]] void abandon(Worker* w) {
    Fiber* const from = w->current;
    w->fiber_count = 0;
    switch_to(w, from, &w->main);
    __builtin_unreachable();
}

[[noreturn]] void deadlock(Worker* w) {
    int barrier_line = w->arrived ? w->barrier_line : 0, warp_line = 0;
    unsigned in_warp = 0, missing = 0;
    for (unsigned i = 0; i < w->launch->threads; ++i) {
        const Warp* warp = &w->warps[i / 32];
        if (!(warp->waiting >> i % 32 & 1)) continue;
        ++in_warp;
        warp_line = w->lanes[i]->line;
        missing = w->lanes[i]->warp.mask & warp->alive & ~warp->waiting;
    }
    unsigned at_some = 0;
    int some_line = 0;
    for (const SomeBarrier& barrier : w->some_barriers) {
        at_some += barrier.asleep;
        if (barrier.asleep) some_line = barrier.waiting[0]->line;
    }
    record(w->launch, "deadlock",
           "deadlock in block (%u, %u, %u): %u of %u threads wait at the barrier of line %d, %u in the warp primitive of "
           "line %d for lanes 0x%x, %u for the barrier object of line %d, %u at the barrier of some threads of line %d",
           autotune_block_idx.x, autotune_block_idx.y, autotune_block_idx.z, w->arrived, w->live, barrier_line, in_warp,
           warp_line, missing, w->asleep_count, w->asleep_count ? w->asleep[0]->line : 0, at_some, some_line);
    abandon(w);
}

// ---- conflicts of blocks ----

// Whether this block came after what that one did: that one called __threadfence and then an atomic function, and this
// one called an atomic function later, as the last block of a reduction does.
bool comes_after(const Worker* w, unsigned accessor) {
    const uint64_t released = __atomic_load_n(&w->launch->released[accessor], __ATOMIC_RELAXED);
    return released && released <= w->acquired;
}

[[noreturn]] void conflict(Worker* w, Access access, uintptr_t address, unsigned other, const char* did) {
    Launch* const launch = w->launch;
    char who[64] = "another block";
    if (other && launch->cluster == 1 && launch->blocks <= ACCESSORS) {
        const uint64_t block = other - 1;
        snprintf(who, sizeof who, "block (%u, %u, %u)", static_cast<unsigned>(block % launch->grid.x),
                 static_cast<unsigned>(block / launch->grid.x % launch->grid.y),
                 static_cast<unsigned>(block / launch->grid.x / launch->grid.y));
    }
    const Index b = autotune_block_idx;
    record(launch, "race", "block (%u, %u, %u) %s address 0x%llx, which %s %s in the same launch", b.x, b.y, b.z,
           access == READ    ? "reads"
           : access == WRITE ? "writes"
                             : "updates atomically",
           static_cast<unsigned long long>(address), who, did);
    abandon(w);
}

void note(Worker* w, const WatchedArray* array, Access access, uintptr_t address, size_t bytes) {
    const uint16_t me = static_cast<uint16_t>(w->accessor);
    for (uintptr_t at = address; at < address + bytes && at - array->address < array->bytes; ++at) {
        Accesses& kept = array->accesses[at - array->address];
        Accesses now = kept;
        const bool foreign = now.writer && now.writer != me;
        if (foreign && (access == WRITE || !now.atomic) && !comes_after(w, now.writer))
            conflict(w, access, at, now.writer, now.atomic ? "updates atomically" : "writes");
        if (access == WRITE && now.many && !w->launch->releases) conflict(w, access, at, 0, "reads");
        if (access == WRITE && !now.many && now.reader && now.reader != me && !comes_after(w, now.reader))
            conflict(w, access, at, now.reader, "reads");
        if (access == READ) {
            if (now.reader && now.reader != me) now.many = 1;
            now.reader = me;
        } else {
            if (access == WRITE || now.writer != me) now.atomic = access == ATOMIC;
            now.writer = me;
            if (access == WRITE) now.reader = now.many = 0;
        }
        kept = now;
    }
}

// The compiler leaves out the call for a store where there was one for a load of the same word. What changed since this
// block read it, or was about to write it again, was written by this block.
void note_changes(Worker* w) {
    for (unsigned i = 0; i < w->read_count; ++i) {
        const Read& read = w->reads[i];
        const Accesses kept = read.array->accesses[read.address - read.array->address];
        if (kept.writer == w->accessor || (kept.writer && kept.atomic)) continue;
        if (memcmp(read.content, reinterpret_cast<const void*>(read.address), read.bytes) != 0)
            note(w, read.array, WRITE, read.address, read.bytes);
    }
    w->read_count = 0;
}

bool is_of_another(const Worker* w, const WatchedArray* array, uintptr_t address) {
    const Accesses kept = array->accesses[address - array->address];
    return kept.writer && kept.writer != w->accessor && !kept.atomic;
}

// Whether no kernel has written any of these bytes.
bool is_poison(const Worker* w, const WatchedArray* array, uintptr_t address, size_t bytes) {
    if (w->launch->smem_byte == 0x3f) return false;  // makes ordinary numbers, which an earlier launch may have written
    for (size_t i = 0; i < bytes; ++i) {
        if (array->accesses[address + i - array->address].writer) return false;
        if (*reinterpret_cast<const unsigned char*>(address + i) != w->launch->smem_byte) return false;
    }
    return true;
}

// Keeps what is there now, for note_changes.
void remember(Worker* w, WatchedArray* array, uintptr_t address, size_t bytes) {
    if (w->read_count == READS) note_changes(w);
    Read& read = w->reads[w->read_count++];
    read.array = array;
    read.address = address;
    read.bytes = static_cast<unsigned>(bytes);
    memcpy(read.content, reinterpret_cast<const void*>(address), bytes);
}

__attribute__((noinline)) void watch_arrays(Access access, uintptr_t address, size_t bytes) {
    Worker* const w = self_worker;
    if (address - reinterpret_cast<uintptr_t>(w->stacks) < MAX_THREADS * STACK_BYTES) return;
    if (address - w->smem_begin < w->smem_end - w->smem_begin) return;
    for (unsigned i = 0; i < w->launch->array_count; ++i) {
        WatchedArray* const array = &w->launch->arrays[i];
        if (address - array->address >= array->bytes || address + bytes - array->address > array->bytes) continue;
        if (access == READ && array->poisoned && is_poison(w, array, address, bytes)) {
            record(w->launch, "unwritten", "block (%u, %u, %u) reads address 0x%llx before anything is written there",
                   autotune_block_idx.x, autotune_block_idx.y, autotune_block_idx.z, static_cast<unsigned long long>(address));
            abandon(w);
        }
        if (access != WRITE || bytes > sizeof Read::content) {
            note(w, array, access, address, bytes);
            if (access == READ && bytes <= sizeof Read::content) remember(w, array, address, bytes);
            return;
        }
        // Blocks whose tiles overlap may write the same value to a word: what matters is whether the store changes it.
        // Of a store of several words, some may be another block's.
        for (size_t first = 0, end; first < bytes; first = end) {
            const bool again = is_of_another(w, array, address + first);
            for (end = first + 1; end < bytes && is_of_another(w, array, address + end) == again; ++end) {}
            if (again)
                remember(w, array, address + first, end - first);
            else
                note(w, array, WRITE, address + first, end - first);
        }
        return;
    }
}

// ---- conflicts of a block's threads ----

// Whether an access by another thread, at this moment, came before all that the current one does now.
inline bool is_past(const Worker* w, unsigned thread, unsigned other, Moment moment) {
    const Known& known = w->known;
    if (moment < known.began) return true;
    return moment < (thread / 32 == other / 32 ? known.lanes[thread] : known.warps[thread / 32][other / 32]);
}

[[noreturn]] void smem_conflict(Worker* w, Access access, uintptr_t at, const void* caller, unsigned other, const char* did) {
    char line[64] = "";
    if (__sanitizer_symbolize_pc) __sanitizer_symbolize_pc(const_cast<void*>(caller), "kernel.cu:%l: ", line, sizeof line);
    const Index b = autotune_block_idx, mine = w->current->index, theirs = w->indices[other];
    record(w->launch, "race",
           "%sthread (%u, %u, %u) of block (%u, %u, %u) %s byte %llu of shared memory, which thread (%u, %u, %u) %s, and "
           "nothing orders them",
           line, mine.x, mine.y, mine.z, b.x, b.y, b.z, access == READ ? "reads" : access == WRITE ? "writes" : "updates atomically",
           static_cast<unsigned long long>(at - w->smem_begin), theirs.x, theirs.y, theirs.z, did);
    abandon(w);
}

void note_smem(Worker* w, Access access, uintptr_t address, size_t bytes, const void* caller) {
    const unsigned thread = w->current->thread;
    const uint16_t me = static_cast<uint16_t>(thread + 1);
    const Moment now = w->known.now;
    for (uintptr_t at = address; at < address + bytes && at - w->smem_begin < SMEM_BYTES; ++at) {
        SmemAccesses& kept = w->smem_accesses[at - w->smem_begin];
        if (kept.writer == BARRIER_OBJECT && kept.written >= w->known.began) continue;
        const bool both_atomic = access == ATOMIC && kept.atomic;
        if (kept.writer != me && !both_atomic && !is_past(w, thread, kept.writer - 1u, kept.written))
            smem_conflict(w, access, at, caller, kept.writer - 1u, kept.atomic ? "updates atomically" : "writes");
        if (access == READ) {
            const bool again = kept.readers[0] == me;
            if (!again) kept.readers[1] = kept.readers[0], kept.read[1] = kept.read[0];
            kept.readers[0] = me;
            kept.read[0] = now;
            continue;
        }
        for (int i = 0; i < 2; ++i) {
            const unsigned reader = kept.readers[i];
            if (reader != me && !is_past(w, thread, reader - 1, kept.read[i]))
                smem_conflict(w, access, at, caller, reader - 1, "reads");
        }
        kept.writer = me;
        kept.atomic = access == ATOMIC;
        kept.written = now;
    }
}

void note_if_written(Worker* w, const SmemAccess& recent) {
    if (memcmp(recent.content, reinterpret_cast<const void*>(recent.address), recent.bytes) != 0)
        note_smem(w, WRITE, recent.address, recent.bytes, recent.caller);
}

// Before another thread goes on, or this one gets to know of others or lets them know: what it wrote.
void note_written(Worker* w) {
    const unsigned count = w->recent_count < RECENT ? w->recent_count : RECENT;
    w->recent_count = 0;
    for (unsigned i = 0; i < count; ++i) note_if_written(w, w->recent[i]);
}

// The compiler leaves out the call for a store where there was one for a load of the same word, and threads may write the
// value that is there: what matters is whether a word changes.
__attribute__((noinline)) void watch_smem(Access access, uintptr_t address, size_t bytes, const void* caller) {
    Worker* const w = self_worker;
    if (access != WRITE) note_smem(w, access, address, bytes, caller);
    if (access == ATOMIC) return;
    for (size_t first = 0; first < bytes; first += sizeof SmemAccess::content) {
        const size_t some = bytes - first < sizeof SmemAccess::content ? bytes - first : sizeof SmemAccess::content;
        SmemAccess& recent = w->recent[w->recent_count++ % RECENT];
        if (w->recent_count > RECENT) note_if_written(w, recent);
        recent = {address + first, static_cast<unsigned>(some), caller, {}};
        memcpy(recent.content, reinterpret_cast<const void*>(recent.address), some);
    }
}

// What the current thread's warp did is known to whoever learns from `published` later, and it learns what was published.
void publish(Worker* w) {
    if (!watched_smem_bytes) return;
    note_written(w);
    Known& known = w->known;
    const unsigned thread = w->current->thread, warp = thread / 32;
    known.warps[warp][warp] = known.lanes[thread] = ++known.now;
    for (unsigned i = 0; i < WARPS; ++i) {
        const Moment latest = known.published[i] > known.warps[warp][i] ? known.published[i] : known.warps[warp][i];
        known.published[i] = known.warps[warp][i] = latest;
    }
}

inline void watch(Access access, const void* pointer, size_t bytes, const void* caller) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    if (__builtin_expect(address - watched_begin < watched_bytes, 0)) watch_arrays(access, address, bytes);
    if (address - watched_smem < watched_smem_bytes) watch_smem(access, address, bytes, caller);
}

// The arrays of the launch that begins on this OS thread.
void watch_from_here(const Launch* launch) {
    uintptr_t begin = UINTPTR_MAX, end = 0;
    for (unsigned i = 0; i < launch->array_count; ++i) {
        const WatchedArray& array = launch->arrays[i];
        if (array.address < begin) begin = array.address;
        if (array.address + array.bytes > end) end = array.address + array.bytes;
    }
    watched_begin = begin;
    watched_bytes = launch->array_count ? end - begin : 0;
}

// ---- scheduling the threads of a block ----

Fiber* new_fiber(Worker* w) {
    if (w->free_count) return w->free[--w->free_count];
    Fiber* fiber = &w->fibers[w->fiber_count++];
    fiber->stack = w->stacks + (fiber - w->fibers) * STACK_BYTES;
    fiber->fake_stack = nullptr;
    memcpy(fiber->stack, &CANARY, sizeof CANARY);
    if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(fiber->stack, STACK_BYTES);
    prepare_stack(fiber);
    return fiber;
}

inline void make_ready(Worker* w, const Fiber* fiber) {
    const unsigned warp = fiber->thread / 32;
    w->warps[warp].ready |= 1u << fiber->thread % 32;
    w->runnable |= 1u << warp;
}

// One of the bits of a mask that is not 0.
inline unsigned choose(Worker* w, unsigned mask) {
    switch (w->launch->order) {
        case AUTOTUNE_ASCENDING: return static_cast<unsigned>(__builtin_ctz(mask));
        case AUTOTUNE_DESCENDING: return 31u - static_cast<unsigned>(__builtin_clz(mask));
        default: break;
    }
    for (unsigned skipped = below(w, static_cast<unsigned>(__builtin_popcount(mask))); skipped; --skipped) mask &= mask - 1;
    return static_cast<unsigned>(__builtin_ctz(mask));
}

// Takes the thread that starts or goes on when the current one cannot; MAX_THREADS when there is none.
inline unsigned take_thread(Worker* w) {
    if (!w->runnable) return MAX_THREADS;
    const bool goes_on = w->launch->order != AUTOTUNE_THREADS && w->warp < WARPS && w->runnable >> w->warp & 1;
    if (!goes_on) w->warp = choose(w, w->runnable);
    Warp& warp = w->warps[w->warp];
    const unsigned lane = choose(w, warp.fresh | warp.ready);
    warp.fresh &= ~(1u << lane);
    warp.ready &= ~(1u << lane);
    if (!(warp.fresh | warp.ready)) w->runnable &= ~(1u << w->warp);
    return 32 * w->warp + lane;
}

// The fiber of a thread that starts or goes on.
inline Fiber* fiber_of(Worker* w, unsigned thread) {
    if (w->lanes[thread]) return w->lanes[thread];
    Fiber* const fiber = new_fiber(w);
    fiber->thread = thread;
    return fiber;
}

// Lanes of one warp that ask who is active at one place go on once no thread can go on otherwise: more do not come.
bool answer_active(Worker* w) {
    for (unsigned number = 0; 32 * number < w->launch->threads; ++number) {
        Warp& warp = w->warps[number];
        Fiber** const lanes = w->lanes + 32 * number;
        unsigned members = 0;
        int line = 0;
        for (unsigned rest = warp.waiting; rest; rest &= rest - 1) {
            const unsigned lane = static_cast<unsigned>(__builtin_ctz(rest));
            if (lanes[lane]->warp.kind != ACTIVE || (members && lanes[lane]->line != line)) continue;
            line = lanes[lane]->line;
            members |= 1u << lane;
        }
        if (!members) continue;
        warp.waiting &= ~members;
        for (unsigned rest = members; rest; rest &= rest - 1) {
            Fiber* const fiber = lanes[__builtin_ctz(rest)];
            fiber->warp.result = members;
            make_ready(w, fiber);
        }
        return true;
    }
    return false;
}

// The fiber that goes on when the current one cannot; nullptr when none can.
inline Fiber* pick(Worker* w) {
    const unsigned thread = take_thread(w);
    if (thread < MAX_THREADS) return fiber_of(w, thread);
    if (w->lingering_count) return w->lingering[--w->lingering_count];
    return w->asks_active && answer_active(w) ? fiber_of(w, take_thread(w)) : nullptr;
}

Fiber* pick_when_woken(Worker* w);

inline void suspend(Worker* w, Fiber* fiber) {
    Fiber* to = pick(w);
    if (__builtin_expect(!to, 0)) to = pick_when_woken(w);
    if (to == fiber) return;  // another block woke it
#ifndef AUTOTUNE_UCONTEXT
    if (w->warp < WARPS && w->warps[w->warp].ready) {
        const char* const next = static_cast<char*>(w->lanes[32 * w->warp + static_cast<unsigned>(__builtin_ctz(w->warps[w->warp].ready))]->sp);
        for (int line = 0; line < PREFETCHED_LINES; ++line) __builtin_prefetch(next + 64 * line, 1);
    }
#endif
    switch_to(w, fiber, to);
}

// The warp that came last goes on where threads run in ascending order, which spares a change of stack; else any may.
void release_barrier(Worker* w) {
    w->barrier_result = w->barrier_count;
    w->known.began = ++w->known.now;
    for (unsigned i = 0; i < w->arrived; ++i) make_ready(w, w->waiting[i]);
    w->arrived = 0;
    if (w->launch->order != AUTOTUNE_ASCENDING) w->warp = WARPS;
}

// What all lanes compute together, from what each of them left; the first word of that says how.
void compute_together(Worker* w, Fiber* const* lanes, unsigned members) {
    if (members != ~0u) {
        record(w->launch, "deadlock", "the warp's matrix product of line %d needs all 32 lanes, and 0x%x came",
               lanes[__builtin_ctz(members)]->line, members);
        abandon(w);
    }
    using Compute = void (*)(void* const*);
    void* left[32];
    for (unsigned lane = 0; lane < 32; ++lane) left[lane] = reinterpret_cast<void*>(lanes[lane]->warp.value);
    (*static_cast<Compute*>(left[0]))(left);
}

// Completes the warp primitive of `mask` when all its lanes came. Lanes that exited count as there.
void try_warp(Worker* w, unsigned warp_number, unsigned mask) {
    Warp* warp = &w->warps[warp_number];
    Fiber** lanes = w->lanes + 32 * warp_number;
    if (mask & warp->alive & ~warp->waiting) return;
    const unsigned members = mask & warp->waiting;
    unsigned ballot = 0;
    const Fiber* first = lanes[__builtin_ctz(members)];
    if (first->warp.kind == ACTIVE) return;
    for (unsigned rest = members; rest; rest &= rest - 1) {
        const Fiber* fiber = lanes[__builtin_ctz(rest)];
        if (fiber->warp.mask != mask) return;  // it waits for others first
        if (fiber->warp.kind != first->warp.kind || fiber->line != first->line) {
            record(w->launch, "deadlock", "lanes of one warp meet in different warp primitives: lines %d and %d, mask 0x%x",
                   first->line, fiber->line, mask);
            abandon(w);
        }
        ballot |= static_cast<unsigned>(fiber->warp.value & 1) << __builtin_ctz(rest);
    }
    const Moment now = ++w->known.now;
    for (unsigned rest = members; rest; rest &= rest - 1) w->known.lanes[32 * warp_number + static_cast<unsigned>(__builtin_ctz(rest))] = now;
    if (first->warp.kind == TOGETHER) compute_together(w, lanes, members);
    for (unsigned rest = members; rest; rest &= rest - 1) {
        const unsigned lane = static_cast<unsigned>(__builtin_ctz(rest));
        Fiber* fiber = lanes[lane];
        const unsigned width = fiber->warp.width, source = fiber->warp.source, base = lane & ~(width - 1);
        unsigned from = lane;
        switch (fiber->warp.kind) {
            case BALLOT: fiber->warp.result = ballot; break;
            case SHFL: from = base | (source & (width - 1)); break;
            case SHFL_UP: from = lane - base >= source ? lane - source : lane; break;
            case SHFL_DOWN: from = lane - base + uint64_t{source} < width ? lane + source : lane; break;
            case SHFL_XOR: from = (lane ^ source) < base + width ? (lane ^ source) & 31 : lane; break;
            default: break;
        }
        if (fiber->warp.kind == BALLOT) continue;
        // The value of a lane that takes no part is undefined on a GPU; here it is all ones, NaN.
        fiber->warp.result = members >> from & 1 ? lanes[from]->warp.value : ~uint64_t{0};
    }
    warp->waiting &= ~members;
    for (unsigned rest = members; rest; rest &= rest - 1) {
        Fiber* fiber = lanes[__builtin_ctz(rest)];
        if (fiber != w->current) make_ready(w, fiber);
    }
}

// A thread returned from the kernel; whoever waited only for it goes on.
inline void exit_thread(Worker* w, unsigned thread) {
    Warp* warp = &w->warps[thread / 32];
    warp->alive &= ~(1u << thread % 32);
    --w->live;
    if (__builtin_expect(warp->waiting != 0, 0)) {
        for (unsigned rest = warp->waiting; rest; rest &= rest - 1) {
            const unsigned lane = static_cast<unsigned>(__builtin_ctz(rest));
            if (warp->waiting >> lane & 1) try_warp(w, thread / 32, w->lanes[thread / 32 * 32 + lane]->warp.mask);
        }
    }
    if (__builtin_expect(w->arrived != 0 && w->arrived == w->live, 0)) release_barrier(w);
}

__attribute__((noinline)) void fiber_main() {
    Worker* const w = self_worker;
    Fiber* const fiber = w->current;
    if (__sanitizer_finish_switch_fiber) {
        const void* bottom;
        size_t size_bytes;
        __sanitizer_finish_switch_fiber(nullptr, &bottom, &size_bytes);
        if (!w->main_stack) w->main_stack = bottom, w->main_stack_bytes = size_bytes;
    }
    for (;;) {
        Launch* const launch = w->launch;
        w->lanes[fiber->thread] = fiber;
        autotune_thread_idx = fiber->index = w->indices[fiber->thread];
        launch->kernel(launch->arguments);
        note_written(w);
        if (w->live == 1) note_changes(w);
        exit_thread(w, fiber->thread);
        const unsigned next = w->live ? take_thread(w) : MAX_THREADS;
        if (next < MAX_THREADS && !w->lanes[next]) {  // on the same stack
            fiber->thread = next;
            continue;
        }
        w->free[w->free_count++] = fiber;
        Fiber* to = next < MAX_THREADS ? w->lanes[next] : w->live ? pick(w) : &w->main;
        if (!to) to = pick_when_woken(w);
        if (to != fiber) switch_to(w, fiber, to);
    }
}

// Where the launch's n-th block, or cluster, lies in the grid.
uint64_t place_in_order(const Launch* launch, uint64_t n) {
    const uint64_t count = launch->blocks / launch->cluster;
    if (launch->runs < count) return static_cast<uint64_t>(static_cast<unsigned __int128>(n) * (count - 1) / (launch->runs - 1));
    if (launch->order == AUTOTUNE_ASCENDING) return n;
    if (launch->order == AUTOTUNE_DESCENDING) return count - 1 - n;
    return static_cast<uint64_t>((static_cast<unsigned __int128>(n) * launch->stride + launch->order_seed) % count);
}

uint64_t common_divisor(uint64_t a, uint64_t b) { return b ? common_divisor(b, a % b) : a; }

// A step through all of `count` places in no obvious order: near the golden section, with no divisor in common.
uint64_t stride_of(uint64_t count) {
    uint64_t stride = static_cast<uint64_t>(0.618 * static_cast<double>(count)) + 1;
    while (common_divisor(stride, count) != 1) ++stride;
    return stride;
}

// All threads can start.
void start_threads(Worker* w, const Launch* launch, uint64_t block) {
    if (memcmp(&w->indexed_block, &launch->block, sizeof(Index)) != 0) {
        w->indexed_block = launch->block;
        Index* index = w->indices;
        for (unsigned z = 0; z < launch->block.z; ++z)
            for (unsigned y = 0; y < launch->block.y; ++y)
                for (unsigned x = 0; x < launch->block.x; ++x) *index++ = {x, y, z};
    }
    w->random = launch->order_seed * 0x2545f4914f6cdd1dull + block;
    w->runnable = 0;
    w->warp = WARPS;
    for (unsigned i = 0; 32 * i < launch->threads; ++i) {
        const unsigned lanes = launch->threads - 32 * i;
        const unsigned all = lanes >= 32 ? ~0u : (1u << lanes) - 1;
        w->warps[i] = {all, 0, all, 0};
        w->runnable |= 1u << i;
    }
    memset(w->lanes, 0, launch->threads * sizeof *w->lanes);
}

// Of this OS thread's block; nullptr where it has none.
char* smem_base(const Launch* launch) {
    size_t index[2] = {launch->tls_module, 0};
    return launch->tls_bytes ? static_cast<char*>(__tls_get_addr(index)) : nullptr;
}

// The dynamic shared memory behind what a launch declares, which no block must change.
struct SmemGuard {
    char* begin;
    size_t bytes;
    int byte;
};
SmemGuard smem_guard(const Launch* launch) {
    if (!launch->smem) return {};
    const size_t left = DYNAMIC_SMEM_BYTES - launch->smem_bytes;
    return {static_cast<char*>(launch->smem()) + launch->smem_bytes, left < SMEM_GUARD_BYTES ? left : SMEM_GUARD_BYTES,
            launch->smem_byte <= 0xff ? static_cast<int>(launch->smem_byte) : 0xff};
}

void check_smem(Launch* launch) {
    const SmemGuard guard = smem_guard(launch);
    const auto is_filled = [guard](size_t i) { return static_cast<unsigned char>(guard.begin[i]) == guard.byte; };
    if (!guard.bytes || (is_filled(0) && !memcmp(guard.begin, guard.begin + 1, guard.bytes - 1))) return;
    size_t first = 0;
    while (is_filled(first)) ++first;
    const Index b = autotune_block_idx;
    record(launch, "oob_write",
           "block (%u, %u, %u) writes byte %llu of its dynamic shared memory, behind what smem_bytes of its stage declares: %llu",
           b.x, b.y, b.z, static_cast<unsigned long long>(launch->smem_bytes + first),
           static_cast<unsigned long long>(launch->smem_bytes));
}

// Fills what a block may use of its shared memory, unless it is to find what the block before left. ASan hides the rest
// from the block; without ASan, the first bytes of the rest show whether it has written there.
void poison_smem(const Launch* launch) {
    const auto fill = [launch](char* from, size_t bytes) {
        if (launch->smem_byte <= 0xff) memset(from, static_cast<int>(launch->smem_byte), bytes);
    };
    char* const base = smem_base(launch);
    if (!base) return;
    char* const end = base + launch->tls_bytes;
    char* const smem = launch->smem ? static_cast<char*>(launch->smem()) : end;
    if (__asan_unpoison_memory_region) __asan_unpoison_memory_region(base, launch->tls_bytes);
    fill(base, static_cast<size_t>(smem - base) + (launch->smem ? launch->smem_bytes : 0));
    if (!launch->smem) return;
    char* const behind = smem + DYNAMIC_SMEM_BYTES;
    if (behind < end) fill(behind, static_cast<size_t>(end - behind));
    if (__asan_poison_memory_region)
        return __asan_poison_memory_region(smem + launch->smem_bytes, DYNAMIC_SMEM_BYTES - launch->smem_bytes);
    const SmemGuard guard = smem_guard(launch);
    memset(guard.begin, guard.byte, guard.bytes);
}

void run_block(Worker* w, Launch* launch, uint64_t block) {
    const Index grid = launch->grid;
    autotune_block_idx = {static_cast<unsigned>(block % grid.x), static_cast<unsigned>(block / grid.x % grid.y),
                          static_cast<unsigned>(block / grid.x / grid.y)};
    start_threads(w, launch, block);
    poison_smem(launch);
    w->arrived = w->asleep_count = w->lingering_count = w->copy_count = 0;
    w->asks_active = false;
    memset(w->groups, 0, launch->threads * sizeof *w->groups);
    for (unsigned thread = 0; thread < launch->threads; ++thread) w->late[thread].first = w->late[thread].count = w->late[thread].group = 0;
    for (SomeBarrier& barrier : w->some_barriers) barrier.arrived = barrier.asleep = 0;
    w->live = launch->threads;
    ++w->block_count;
    w->accessor = static_cast<unsigned>(1 + block / launch->cluster % ACCESSORS);
    w->fenced = w->fenced_block = false;
    w->acquired = 0;
    w->read_count = w->recent_count = 0;
    w->smem_begin = reinterpret_cast<uintptr_t>(smem_base(launch));
    w->smem_end = w->smem_begin + launch->tls_bytes;
    watched_smem = w->smem_begin;
    watched_smem_bytes = launch->watches_smem ? launch->tls_bytes : 0;
    if (w->known.now >> 31) {
        memset(&w->known, 0, sizeof w->known);
        if (launch->watches_smem) memset(w->smem_accesses, 0, sizeof w->smem_accesses);
    }
    w->known.began = ++w->known.now;
    w->meetings = 0;
    if (w->cluster) {
        memset(w->meetings_of, 0, launch->threads * sizeof *w->meetings_of);
        w->cluster->smem[w->cluster_rank] = smem_base(launch);
        w->cluster->workers[w->cluster_rank] = w;
    }
    if (!w->fiber_count) w->free_count = 0;  // the last block was abandoned
    switch_to(w, &w->main, pick(w));
    if (!__asan_poison_memory_region) check_smem(launch);
}

Worker* make_worker() {
    const size_t stacks_bytes = MAX_THREADS * STACK_BYTES + 4096;
    const size_t bytes = (sizeof(Worker) + 4095) / 4096 * 4096;
    void* memory = mmap(nullptr, bytes + stacks_bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return nullptr;
    Worker* w = static_cast<Worker*>(memory);
    w->stacks = static_cast<char*>(memory) + bytes;
    return w;
}

// ---- clusters ----

// Waits for the turn of this OS thread's block. False: nothing is left to run, or the launch failed.
bool wait_for_turn(const Worker* w, Launch* launch) {
    Cluster* const cluster = w->cluster;
    for (;;) {
        if (__atomic_load_n(&launch->stopped, __ATOMIC_ACQUIRE)) return false;
        if (cluster->index >= launch->runs) return false;
        if (cluster->turn == w->cluster_rank) return true;
        timespec until;  // a failure wakes nobody
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 20000000;
        if (until.tv_nsec >= 1000000000) ++until.tv_sec, until.tv_nsec -= 1000000000;
        pthread_cond_timedwait(&cluster->changed, &cluster->lock, &until);
    }
}

// The first block that can go on, in the launch's order.
unsigned first_runnable(const Cluster* cluster, const Launch* launch) {
    const unsigned size = launch->cluster;
    for (unsigned i = 0; i < size; ++i) {
        const unsigned rank = launch->order == AUTOTUNE_ASCENDING    ? i
                              : launch->order == AUTOTUNE_DESCENDING ? size - 1 - i
                                                                     : static_cast<unsigned>((i + launch->order_seed) % size);
        if (cluster->states[rank] == RUNNABLE) return rank;
    }
    return size;
}

// This block goes no further; another one's turn comes. All pass the barrier together, and all end before the next cluster begins.
// Where no turn is left, those that await something wait for each other.
void pass_turn(Worker* w, Launch* launch, BlockState state) {
    Cluster* const cluster = w->cluster;
    cluster->states[w->cluster_rank] = state;
    cluster->turn = first_runnable(cluster, launch);
    if (cluster->turn == launch->cluster) {
        bool all_ended = true, awaited = false;
        for (unsigned i = 0; i < launch->cluster; ++i) {
            all_ended &= cluster->states[i] == ENDED;
            awaited |= cluster->states[i] == AWAITING;
        }
        if (awaited) {
            cluster->states[w->cluster_rank] = RUNNABLE;  // to say so
            cluster->turn = w->cluster_rank;
            if (state == AWAITING) return;
            record(launch, "deadlock", "deadlock in cluster %llu: some of its blocks wait for others that have %s",
                   static_cast<unsigned long long>(cluster->index), state == ENDED ? "ended" : "come to the cluster's barrier");
            return;
        }
        for (unsigned i = 0; i < launch->cluster; ++i)
            if (all_ended || cluster->states[i] == ARRIVED) cluster->states[i] = RUNNABLE;
        if (all_ended) cluster->index = __atomic_fetch_add(&launch->next, 1, __ATOMIC_RELAXED);
        cluster->turn = first_runnable(cluster, launch);
    }
    pthread_cond_broadcast(&cluster->changed);
}

// The block is at its cluster's barrier, with all its threads.
void meet(Worker* w) {
    pthread_mutex_lock(&w->cluster->lock);
    pass_turn(w, w->launch, ARRIVED);
    const bool passed = wait_for_turn(w, w->launch);
    pthread_mutex_unlock(&w->cluster->lock);
    if (!passed) abandon(w);
}

// The thread of this block that goes on once another block of the cluster woke it. A deadlock where none does.
Fiber* pick_when_woken(Worker* w) {
    Cluster* const cluster = w->cluster;
    if (!cluster) deadlock(w);
    pthread_mutex_lock(&cluster->lock);
    pass_turn(w, w->launch, AWAITING);
    const bool passed = wait_for_turn(w, w->launch);
    pthread_mutex_unlock(&cluster->lock);
    if (!passed) abandon(w);
    Fiber* const to = pick(w);
    if (!to) deadlock(w);
    return to;
}

void check_time(Launch* launch, uint64_t started) {
    if (now_ns(CLOCK_PROCESS_CPUTIME_ID) > launch->deadline_ns)
        record(launch, "too_long", "the launch ran past its time limit with %llu of %llu blocks started",
               static_cast<unsigned long long>(started), static_cast<unsigned long long>(launch->blocks));
}

// Runs a block of each of several clusters, until none is left.
void run_clusters(Worker* w, Launch* launch, unsigned rank) {
    Cluster* const cluster = w->cluster = &launch->clusters[rank / launch->cluster];
    w->cluster_rank = rank % launch->cluster;
    pthread_mutex_lock(&cluster->lock);
    while (wait_for_turn(w, launch)) {
        pthread_mutex_unlock(&cluster->lock);
        const uint64_t place = place_in_order(launch, cluster->index);
        const uint64_t block = place * launch->cluster + w->cluster_rank;
        run_block(w, launch, block);
        check_time(launch, block);
        pthread_mutex_lock(&cluster->lock);
        cluster->smem[w->cluster_rank] = nullptr;
        cluster->workers[w->cluster_rank] = nullptr;
        pass_turn(w, launch, ENDED);
    }
    pthread_mutex_unlock(&cluster->lock);
    w->cluster = nullptr;
}

// Runs blocks, which are alone, until none is left.
void run_single_blocks(Worker* w, Launch* launch) {
    while (!__atomic_load_n(&launch->stopped, __ATOMIC_ACQUIRE)) {
        const uint64_t first = __atomic_fetch_add(&launch->next, launch->chunk, __ATOMIC_RELAXED);
        if (first >= launch->runs) break;
        const uint64_t end = first + launch->chunk < launch->runs ? first + launch->chunk : launch->runs;
        for (uint64_t block = first; block < end && !__atomic_load_n(&launch->stopped, __ATOMIC_RELAXED); ++block)
            run_block(w, launch, place_in_order(launch, block));
        check_time(launch, end);
    }
}

// Runs blocks of the launch on this OS thread until none is left; its rank is its number among the launch's.
void run_blocks(Launch* launch, unsigned rank) {
    if (!self_worker) self_worker = make_worker();
    Worker* const w = self_worker;
    if (!w) return record(launch, "out_of_memory", "no memory for the stacks of %u threads", MAX_THREADS);
    w->launch = launch;
    watch_from_here(launch);
    autotune_block_dim = launch->block;
    autotune_grid_dim = launch->grid;
    stack_t alternative = {}, before = {};
    alternative.ss_sp = w->signal_stack;
    alternative.ss_size = sizeof w->signal_stack;
    sigaltstack(&alternative, &before);
    if (launch->clusters) {
        run_clusters(w, launch, rank);
    } else {
        run_single_blocks(w, launch);
    }
    for (unsigned i = 0; i < w->fiber_count; ++i)
        if (memcmp(w->fibers[i].stack, &CANARY, sizeof CANARY) != 0)
            record(launch, "illegal_address", "stack overflow: a thread's local arrays take more than %zu bytes", STACK_BYTES);
    if (__asan_unpoison_memory_region && launch->tls_bytes) {
        size_t index[2] = {launch->tls_module, 0};
        __asan_unpoison_memory_region(__tls_get_addr(index), launch->tls_bytes);
    }
    sigaltstack(&before, nullptr);
    watched_bytes = watched_smem_bytes = 0;
    w->launch = nullptr;
}

// ---- faults of the kernel ----

const int SIGNALS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
constexpr int SIGNAL_COUNT = sizeof SIGNALS / sizeof *SIGNALS;
struct sigaction previous[SIGNAL_COUNT];

void on_fault(int number, siginfo_t* info, void*) {
    Worker* const w = self_worker;
    if (w && w->launch && w->current != &w->main) {
        const Index t = w->current->index, b = autotune_block_idx;
        const bool address = number == SIGSEGV || number == SIGBUS;
        record(w->launch, address ? "illegal_address" : "trap", "%s %p in block (%u, %u, %u), thread (%u, %u, %u)",
               address               ? "illegal address"
               : number == SIGFPE ? "integer division by zero at"
                                     : "illegal instruction at",
               info->si_addr, b.x, b.y, b.z, t.x, t.y, t.z);
        abandon(w);
    }
    for (int i = 0; i < SIGNAL_COUNT; ++i)
        if (SIGNALS[i] == number) sigaction(number, &previous[i], nullptr);  // the instruction runs again and faults there
}

void catch_faults() {
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (int i = 0; i < SIGNAL_COUNT; ++i) sigaction(SIGNALS[i], &action, &previous[i]);
}

void leave_faults() {
    for (int i = 0; i < SIGNAL_COUNT; ++i) sigaction(SIGNALS[i], &previous[i], nullptr);
}

// ---- the pool of OS threads ----

pthread_mutex_t launching = PTHREAD_MUTEX_INITIALIZER;
pthread_mutex_t pool_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t pool_wake = PTHREAD_COND_INITIALIZER, pool_done = PTHREAD_COND_INITIALIZER;
unsigned pool_size, pool_active;
uint64_t pool_generation;
unsigned pool_wanted;
Launch* pool_launch;

void* pool_main(void* argument) {
    const unsigned number = static_cast<unsigned>(reinterpret_cast<uintptr_t>(argument));
    uint64_t seen = 0;
    pthread_mutex_lock(&pool_lock);
    for (;;) {
        while (!pool_launch || pool_generation == seen) pthread_cond_wait(&pool_wake, &pool_lock);
        seen = pool_generation;
        if (number >= pool_wanted) continue;
        Launch* const launch = pool_launch;
        pthread_mutex_unlock(&pool_lock);
        run_blocks(launch, number + 1);
        pthread_mutex_lock(&pool_lock);
        if (--pool_active == 0) pthread_cond_signal(&pool_done);
    }
}

void forget_pool() {  // after a fork the child has no pool threads
    pthread_mutex_init(&launching, nullptr);
    pthread_mutex_init(&pool_lock, nullptr);
    pthread_cond_init(&pool_wake, nullptr);
    pthread_cond_init(&pool_done, nullptr);
    pool_size = pool_active = 0;
    pool_launch = nullptr;
}

// On so many OS threads; clusters need one for each of their blocks.
void run_on(Launch* launch, unsigned threads) {
    const unsigned wanted = threads - 1;
    if (!wanted) return run_blocks(launch, 0);
    if (!pool_size) {
        static bool registered;
        if (!registered) pthread_atfork(nullptr, nullptr, forget_pool);
        registered = true;
    }
    pthread_mutex_lock(&pool_lock);
    while (pool_size < wanted) {
        pthread_t thread;
        sigset_t all, kept;
        sigfillset(&all);
        for (int i = 0; i < SIGNAL_COUNT; ++i) sigdelset(&all, SIGNALS[i]);
        pthread_sigmask(SIG_SETMASK, &all, &kept);  // the caller's signals (Ctrl-C) stay with the caller
        const int failed = pthread_create(&thread, nullptr, pool_main, reinterpret_cast<void*>(uintptr_t{pool_size}));
        pthread_sigmask(SIG_SETMASK, &kept, nullptr);
        if (failed) break;
        pthread_detach(thread);
        ++pool_size;
    }
    pool_wanted = pool_active = wanted < pool_size ? wanted : pool_size;
    if (launch->clusters && pool_wanted < wanted) record(launch, "out_of_memory", "a cluster's blocks need %u threads of this machine", threads);
    pool_launch = launch;
    ++pool_generation;
    pthread_cond_broadcast(&pool_wake);
    pthread_mutex_unlock(&pool_lock);
    run_blocks(launch, 0);
    pthread_mutex_lock(&pool_lock);
    while (pool_active) pthread_cond_wait(&pool_done, &pool_lock);
    pool_launch = nullptr;
    pthread_mutex_unlock(&pool_lock);
}

void run_launch(Launch* launch, unsigned cores) {
    // Of a store that another block is about to make, the value is not known yet, so blocks that are compared take turns.
    if (launch->array_count) cores = 1;
    const uint64_t clusters = launch->runs;
    const unsigned at_once = clusters < cores ? static_cast<unsigned>(clusters) : cores;
    if (launch->cluster == 1) return run_on(launch, at_once);
    launch->clusters = static_cast<Cluster*>(calloc(at_once, sizeof(Cluster)));
    for (unsigned i = 0; i < at_once; ++i) {
        launch->clusters[i].index = i;
        launch->clusters[i].turn = first_runnable(&launch->clusters[i], launch);
        pthread_mutex_init(&launch->clusters[i].lock, nullptr);
        pthread_cond_init(&launch->clusters[i].changed, nullptr);
    }
    launch->next = at_once;
    run_on(launch, at_once * launch->cluster);
    free(launch->clusters);
}

}  // namespace

// ---- called by kernels ----

extern "C" [[noreturn]] void autotune_stop(const char* reason, const char* what, const char* file, int line);

// AddressSanitizer's functions, as checked kernels call them (--wrap): here first, then there.
#define AUTOTUNE_WATCHED(access, name, bytes)                                 \
    extern "C" __attribute__((weak)) void __asan_##name(const void* address); \
    extern "C" void __wrap___asan_##name(const void* address) {               \
        watch(access, address, bytes, __builtin_return_address(0));           \
        __asan_##name(address);                                               \
    }
AUTOTUNE_WATCHED(READ, load1, 1)
AUTOTUNE_WATCHED(READ, load2, 2)
AUTOTUNE_WATCHED(READ, load4, 4)
AUTOTUNE_WATCHED(READ, load8, 8)
AUTOTUNE_WATCHED(READ, load16, 16)
AUTOTUNE_WATCHED(WRITE, store1, 1)
AUTOTUNE_WATCHED(WRITE, store2, 2)
AUTOTUNE_WATCHED(WRITE, store4, 4)
AUTOTUNE_WATCHED(WRITE, store8, 8)
AUTOTUNE_WATCHED(WRITE, store16, 16)
#undef AUTOTUNE_WATCHED

extern "C" void __wrap___asan_loadN(const void* address, size_t bytes) {
    watch(READ, address, bytes, __builtin_return_address(0));
    __asan_loadN(address, bytes);
}
extern "C" void __wrap___asan_storeN(const void* address, size_t bytes) {
    watch(WRITE, address, bytes, __builtin_return_address(0));
    __asan_storeN(address, bytes);
}

// Through the read-only cache, which may hold what was there before the launch.
extern "C" void autotune_read_only(const void* pointer, size_t bytes) {
    Worker* const w = self_worker;
    const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
    for (unsigned i = 0; i < w->launch->array_count; ++i) {
        const WatchedArray& array = w->launch->arrays[i];
        for (uintptr_t at = address; at < address + bytes && at - array.address < array.bytes; ++at) {
            const unsigned writer = array.accesses[at - array.address].writer;
            if (writer) conflict(w, READ, at, writer, "writes, unseen by __ldg,");
        }
    }
}

extern "C" void autotune_fence(int device) {
    self_worker->fenced |= device != 0;
    self_worker->fenced_block = true;
}

extern "C" void autotune_atomic(const void* address, size_t bytes) {
    Worker* const w = self_worker;
    Launch* const launch = w->launch;
    if (__asan_storeN) __asan_storeN(address, bytes);
    note_changes(w);
    if (w->fenced && launch->released) {
        const uint64_t now = __atomic_add_fetch(&launch->releases, 1, __ATOMIC_RELAXED);
        __atomic_store_n(&launch->released[w->accessor], now, __ATOMIC_RELAXED);
    }
    w->acquired = __atomic_load_n(&launch->releases, __ATOMIC_RELAXED);
    if (w->fenced_block) publish(w);
    watch(ATOMIC, address, bytes, __builtin_return_address(0));
}

static Copy* put_off(Worker* w, const Copy* copy) {
    if (w->copy_count == MAX_COPIES) {
        record(w->launch, "out_of_memory", "more than %u bulk copies of a block are under way", MAX_COPIES);
        abandon(self_worker);
    }
    Copy* const kept = &w->copies[w->copy_count++];
    *kept = *copy;
    return kept;
}

static int wake(Worker* w) {
    const int woken = static_cast<int>(w->asleep_count);
    for (unsigned i = 0; i < w->asleep_count; ++i) make_ready(w, w->asleep[i]);
    w->asleep_count = 0;
    return woken;
}

// The current thread uses a barrier object, which orders those that do.
extern "C" void autotune_barrier_object(const void* object, size_t bytes) {
    Worker* const w = self_worker;
    publish(w);
    for (uintptr_t at = reinterpret_cast<uintptr_t>(object) - w->smem_begin, i = 0; i < bytes && at + i < watched_smem_bytes; ++i) {
        w->smem_accesses[at + i].writer = BARRIER_OBJECT;
        w->smem_accesses[at + i].written = w->known.now;
    }
}

extern "C" unsigned autotune_barrier(int predicate, int line) {
    Worker* const w = self_worker;
    Fiber* const fiber = w->current;
    note_written(w);
    if (w->arrived == 0) {
        w->barrier_line = line;
        w->barrier_count = 0;
    } else if (__builtin_expect(line != w->barrier_line, 0)) {
        record(w->launch, "deadlock",
               "divergent barrier in block (%u, %u, %u): thread (%u, %u, %u) is at the barrier of line %d, %u threads wait at "
               "that of line %d",
               autotune_block_idx.x, autotune_block_idx.y, autotune_block_idx.z, fiber->index.x, fiber->index.y,
               fiber->index.z, line, w->arrived, w->barrier_line);
        abandon(w);
    }
    w->barrier_count += predicate != 0;
    fiber->line = line;
    if (w->arrived + 1 == w->live) {
        release_barrier(w);
        if (w->warp == WARPS) {
            make_ready(w, fiber);
            suspend(w, fiber);
        }
    } else {
        w->waiting[w->arrived++] = fiber;
        suspend(w, fiber);
    }
    return w->barrier_result;
}

// Waits for all threads of the block's cluster that live.
extern "C" void autotune_cluster_barrier(int line) {
    Worker* const w = self_worker;
    const unsigned thread = w->current->thread;
    autotune_barrier(0, line);
    if (w->cluster && ++w->meetings_of[thread] > w->meetings) {  // the first that goes on: nobody else of the block can
        ++w->meetings;
        meet(w);
    }
}

// Where a block of the cluster has what lies at `mine` in this one's shared memory.
extern "C" void* autotune_cluster_smem(const void* mine, unsigned rank, int line) {
    Worker* const w = self_worker;
    const size_t offset = static_cast<size_t>(static_cast<const char*>(mine) - smem_base(w->launch));
    if (offset >= w->launch->tls_bytes || rank >= w->launch->cluster)
        autotune_stop("illegal_address", "no shared memory of a block of the cluster", __FILE__, line);
    if (!w->cluster) return const_cast<void*>(mine);
    char* const base = w->cluster->smem[rank];
    if (!base) autotune_stop("race", "shared memory of a block of the cluster that has not begun, or has ended", __FILE__, line);
    return base + offset;
}

extern "C" unsigned autotune_cluster_rank() {
    const Worker* const w = self_worker;
    return w->cluster ? w->cluster_rank : 0;
}

extern "C" void autotune_some_barrier(int id, int threads, int waits, int line) {
    Worker* const w = self_worker;
    SomeBarrier* const barrier = &w->some_barriers[id % BARRIERS];
    Fiber* const fiber = w->current;
    fiber->line = line;
    publish(w);
    if (++barrier->arrived < static_cast<unsigned>(threads)) {
        if (!waits) return;
        barrier->waiting[barrier->asleep++] = fiber;
        suspend(w, fiber);
        return publish(w);
    }
    for (unsigned i = 0; i < barrier->asleep; ++i) make_ready(w, barrier->waiting[i]);
    barrier->arrived = barrier->asleep = 0;
}

extern "C" unsigned long long autotune_warp(int kind, unsigned mask, unsigned long long value, unsigned source,
                                            unsigned width, int line) {
    Worker* const w = self_worker;
    Fiber* const fiber = w->current;
    const unsigned warp = fiber->thread / 32, lane = fiber->thread % 32;
    note_written(w);
    fiber->line = line;
    if (!(mask >> lane & 1)) {
        record(w->launch, "deadlock", "lane %u calls the warp primitive of line %d with mask 0x%x, which leaves it out", lane,
               line, mask);
        abandon(w);
    }
    fiber->warp.kind = kind;
    fiber->warp.mask = mask;
    fiber->warp.source = source;
    fiber->warp.width = width;
    fiber->warp.value = value;
    w->warps[warp].waiting |= 1u << lane;
    if (kind == ACTIVE) w->asks_active = true;
    else try_warp(w, warp, mask);
    if (w->warps[warp].waiting >> lane & 1) suspend(w, fiber);
    return fiber->warp.result;
}

// Puts off a copy of a barrier object, its owner, or with no owner of this thread's next group.
extern "C" void autotune_defer(const Copy* copy) {
    Worker* const w = self_worker;
    Copy* const kept = put_off(w, copy);
    const unsigned thread = w->current->thread;
    if (!kept->owner) kept->owner = &w->groups[thread], kept->group = w->groups[thread];
}

// The same of a barrier object of another block of the cluster, in its shared memory.
extern "C" void autotune_cluster_defer(const Copy* copy, unsigned rank) {
    Worker* const w = self_worker;
    put_off(w->cluster ? w->cluster->workers[rank] : w, copy);
}

extern "C" void* autotune_thread_state(unsigned thread) {
    Worker* const w = self_worker;
    if (w->state_of[thread] != w->block_count) {
        w->state_of[thread] = w->block_count;
        memset(w->states[thread], 0, 64);
    }
    return w->states[thread];
}

// Puts off a copy of this thread's next group. Whether its oldest must be done now, for want of room.
extern "C" int autotune_late(const LateCopy* copy, LateCopy* oldest) {
    Worker* const w = self_worker;
    LateCopies& late = w->late[w->current->thread];
    const bool full = late.count == LATE_COPIES;
    if (full) {
        *oldest = late.at[late.first];
        late.first = (late.first + 1) % LATE_COPIES;
        --late.count;
    }
    LateCopy& kept = late.at[(late.first + late.count++) % LATE_COPIES];
    kept = *copy;
    kept.group = late.group;
    return full;
}

extern "C" void autotune_late_commit() { ++self_worker->late[self_worker->current->thread].group; }

// Takes out this thread's oldest copy, unless it is of the latest `groups` groups or of none; or whatever it is of, where that is negative.
extern "C" int autotune_late_due(int groups, LateCopy* due) {
    Worker* const w = self_worker;
    LateCopies& late = w->late[w->current->thread];
    if (late.count == 0) return 0;
    const LateCopy& oldest = late.at[late.first];
    if (groups >= 0 && oldest.group + static_cast<unsigned>(groups) >= late.group) return 0;
    *due = oldest;
    late.first = (late.first + 1) % LATE_COPIES;
    --late.count;
    return 1;
}

extern "C" void autotune_commit() { ++self_worker->groups[self_worker->current->thread]; }

// Takes out a copy that must be done now: of `owner`, or with none of this thread, but of its latest `groups` groups.
extern "C" int autotune_due(const void* owner, unsigned groups, Copy* due) {
    Worker* const w = self_worker;
    const unsigned* const mine = &w->groups[w->current->thread];
    for (unsigned i = 0; i < w->copy_count; ++i) {
        const Copy copy = w->copies[i];
        if (copy.owner != (owner ? owner : mine) || (!owner && copy.group + groups >= *mine)) continue;
        --w->copy_count;
        memmove(&w->copies[i], &w->copies[i + 1], (w->copy_count - i) * sizeof copy);
        *due = copy;
        return 1;
    }
    return 0;
}

// Lets others run until some barrier object completes a phase.
extern "C" void autotune_sleep(int line) {
    Worker* const w = self_worker;
    Fiber* const fiber = w->current;
    note_written(w);
    fiber->line = line;
    w->asleep[w->asleep_count++] = fiber;
    suspend(w, fiber);
}

// Lets others run as far as they can.
extern "C" void autotune_linger() {
    Worker* const w = self_worker;
    if (!w->runnable) return;
    note_written(w);
    w->lingering[w->lingering_count++] = w->current;
    suspend(w, w->current);
}

// A barrier object completed a phase: whoever waits for one looks again. How many do.
extern "C" int autotune_wake() { return wake(self_worker); }

// The same in another block of the cluster, whose turn may come again.
extern "C" void autotune_cluster_wake(unsigned rank) {
    Cluster* const cluster = self_worker->cluster;
    if (!cluster) return static_cast<void>(wake(self_worker));
    if (wake(cluster->workers[rank]) && cluster->states[rank] == AWAITING) cluster->states[rank] = RUNNABLE;
}

extern "C" void autotune_stop(const char* reason, const char* what, const char* file, int line) {
    Worker* const w = self_worker;
    const Index t = w->current->index, b = autotune_block_idx;
    record(w->launch, reason, "%s:%d: %s in block (%u, %u, %u), thread (%u, %u, %u)", file, line, what, b.x, b.y, b.z, t.x,
           t.y, t.z);
    abandon(w);
}

extern "C" long autotune_clock() { return now_ns(); }

// ---- called by devices/host.py and autotune_host_driver.cpp ----

static void begin_watching(Launch* launch, const AutotuneLaunch* request) {
    launch->watches_smem = __asan_loadN && launch->tls_bytes;
    if (!__asan_loadN) return;
    launch->released = static_cast<uint64_t*>(calloc(ACCESSORS + 1, sizeof(uint64_t)));
    for (unsigned i = 0; i < request->array_count && launch->array_count < MAX_ARRAYS; ++i) {
        const AutotuneArray array = request->arrays[i];
        void* const accesses = mmap(nullptr, array.bytes * sizeof(Accesses), PROT_READ | PROT_WRITE,
                                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (accesses != MAP_FAILED) launch->arrays[launch->array_count++] = {array.address, array.bytes, array.poisoned != 0, static_cast<Accesses*>(accesses)};
    }
}

// 0, or 1 with a reason (32 bytes) and a message when the kernel failed.
extern "C" int autotune_launch(const AutotuneLaunch* request, char* reason, char* message, size_t message_bytes) {
    Launch launch = {};
    launch.kernel = request->kernel;
    launch.arguments = request->arguments;
    launch.grid = request->grid;
    launch.block = request->block;
    launch.threads = request->block.x * request->block.y * request->block.z;
    launch.blocks = uint64_t{request->grid.x} * request->grid.y * request->grid.z;
    launch.cluster = request->cluster > 1 ? request->cluster : 1;
    launch.runs = launch.blocks / launch.cluster;
    if (request->some_blocks > 1 && request->some_blocks < launch.runs) launch.runs = request->some_blocks;
    launch.chunk = launch.runs / (request->cores * uint64_t{64});
    launch.chunk = launch.chunk < 1 ? 1 : launch.chunk > 16 ? 16 : launch.chunk;
    launch.smem = request->smem;
    launch.smem_bytes = request->smem_bytes;
    launch.tls_module = request->tls_module;
    launch.tls_bytes = request->tls_bytes;
    launch.order = request->order;
    launch.order_seed = request->order_seed;
    launch.stride = stride_of(launch.blocks / launch.cluster);
    launch.smem_byte = request->smem_byte;
    launch.deadline_ns = now_ns(CLOCK_PROCESS_CPUTIME_ID) + static_cast<int64_t>(request->limit_ns * request->cores);
    launch.reason = reason;
    launch.message = message;
    launch.message_bytes = message_bytes;
    begin_watching(&launch, request);
    pthread_mutex_lock(&launching);
    const bool checked = __sanitizer_start_switch_fiber != nullptr;  // then the sanitizer reports faults
    if (!checked) catch_faults();
    run_launch(&launch, request->cores);
    if (!checked) leave_faults();
    pthread_mutex_unlock(&launching);
    for (unsigned i = 0; i < launch.array_count; ++i) munmap(launch.arrays[i].accesses, launch.arrays[i].bytes * sizeof(Accesses));
    free(launch.released);
    return launch.stopped;
}

// The module number and size of a library's thread-local block, which is its shared memory.
extern "C" void autotune_tls(void* library, uint64_t* module, uint64_t* size_bytes) {
    struct Search {
        size_t module, size_bytes;
    } search = {0, 0};
    dlinfo(library, RTLD_DI_TLS_MODID, &search.module);
    if (search.module)
        dl_iterate_phdr(
            [](dl_phdr_info* info, size_t, void* argument) {
                Search* const s = static_cast<Search*>(argument);
                if (info->dlpi_tls_modid != s->module) return 0;
                for (int i = 0; i < info->dlpi_phnum; ++i)
                    if (info->dlpi_phdr[i].p_type == PT_TLS) s->size_bytes = info->dlpi_phdr[i].p_memsz;
                return 1;
            },
            &search);
    *module = search.module;
    *size_bytes = search.size_bytes;
}
