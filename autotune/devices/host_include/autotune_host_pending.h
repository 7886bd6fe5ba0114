// What a thread of a block has under way on the CPU: products of its warpgroup that it did not wait for, and shared memory that it wrote and
// did not fence.
#pragma once

extern "C" void* autotune_thread_state(unsigned thread);  // 8192 bytes, the first 64 of them zeros when a block begins

namespace autotune_host {
struct Product {
    void (*multiply)(const Product& product, float* sums, int tiles, int thread);
    unsigned long long a, b;  // descriptors
    int sum;                  // which of the sums
    bool accumulate;
    unsigned group;
};

struct Sums {
    float* d;
    int tiles;
    float values[128];
};

struct ThreadState {
    unsigned product_count, sum_count, groups;
    const char* written_begin;
    const char* written_end;
    char spare[32];
    Product products[64];
    Sums sums[4];

    void wrote(const char* begin, int bytes) {
        if (!written_end || begin < written_begin) written_begin = begin;
        if (begin + bytes > written_end) written_end = begin + bytes;
    }
    void fence() { written_begin = written_end = nullptr; }

    // Starts a product: its sums are not numbers until a wait.
    void begin(Product product, float* d, int tiles, int line) {
        int which = 0;
        while (which < static_cast<int>(sum_count) && sums[which].d != d) ++which;
        if (product_count == 64 || which == 4) autotune_stop("out_of_memory", "too many products under way", __FILE__, line);
        if (which == static_cast<int>(sum_count)) {
            ++sum_count;
            sums[which].d = d;
            sums[which].tiles = tiles;
            memcpy(sums[which].values, d, sizeof(float) * 4 * tiles);
            memset(d, 0xff, sizeof(float) * 4 * tiles);
        }
        product.sum = which;
        product.group = groups;
        products[product_count++] = product;
    }

    // Computes what was begun before the latest `left` groups.
    void finish(unsigned left, int thread) {
        unsigned done = 0;
        for (; done < product_count && products[done].group + left < groups; ++done) {
            Sums& sum = sums[products[done].sum];
            products[done].multiply(products[done], sum.values, sum.tiles, thread);
        }
        product_count -= done;
        for (unsigned i = 0; i < product_count; ++i) products[i] = products[done + i];
        if (product_count) return;
        for (unsigned i = 0; i < sum_count; ++i) memcpy(sums[i].d, sums[i].values, sizeof(float) * 4 * sums[i].tiles);
        sum_count = 0;
    }
};
static_assert(sizeof(ThreadState) <= 8192, "as much as the runtime has");

inline ThreadState* thread_state(unsigned thread) { return static_cast<ThreadState*>(autotune_thread_state(thread)); }
inline ThreadState* thread_state() {
    return thread_state(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
}

// A lane that waits for products: those of a warp are computed when all its lanes do.
struct Waiting {
    void (*compute)(void* const* lanes);
    ThreadState* state;
    unsigned left;
    int thread;
};

inline void finish_warp(void* const* lanes) {
    const ThreadState& first = *static_cast<const Waiting*>(lanes[0])->state;
    const Product& product = first.products[0];
    for (int lane = 1; lane < 32; ++lane) {
        const Product& other = static_cast<const Waiting*>(lanes[lane])->state->products[0];
        if (other.a != product.a || other.b != product.b) {
            autotune_stop("trap", "lanes of a warp give a product different operands", __FILE__, __LINE__);
        }
    }
    for (int lane = 0; lane < 32; ++lane) {
        const Waiting& waiting = *static_cast<const Waiting*>(lanes[lane]);
        waiting.state->finish(waiting.left, waiting.thread);
    }
}

inline void wait_for_products(unsigned left, int line) {
    ThreadState* const state = thread_state();
    if (!state->product_count) return;
    Waiting mine = {&finish_warp, state, left, static_cast<int>(threadIdx.x % 128)};
    autotune_warp(TOGETHER, 0xffffffffu, reinterpret_cast<unsigned long long>(&mine), 0, 32, line);
}
}  // namespace autotune_host
