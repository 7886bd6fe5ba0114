// What a thread of a block has under way on the CPU: products of its warpgroup that it did not wait for, and shared memory that it wrote and
// did not fence.
#pragma once

// Begins a function that only accesses the emulation's own arrays, which no kernel can misuse: no sanitizer looks at it.
#define AUTOTUNE_OWN __attribute__((no_sanitize("address", "undefined")))

extern "C" void* autotune_thread_state(unsigned thread);  // 12288 bytes, the first 64 of them zeros when a block begins

namespace autotune_host {
struct Product {
    // From the same product of all lanes of a warp, adding to the sums of each.
    void (*multiply)(const Product* const (&lanes)[32], float* const (&sums)[32], int tiles, int warp);
    void (*require)(const Product& product, int columns, int line);  // ends the kernel where an operand was not fenced
    // A hash of what a warp of the four reads of shared memory, which no sanitizer sees.
    unsigned long long (*hash)(const Product& product, int columns, int warp);
    unsigned long long begun_hash;  // of a warp's first lane: the hash when the product was begun
    unsigned long long a, b;    // descriptors
    const unsigned* registers;  // where a lies if not in shared memory
    unsigned words[4];          // and what it was
    int sum;                    // which of the sums
    bool accumulate;
    unsigned group;
};

struct Sums {
    float* d;
    int tiles;
    float values[128];
};

constexpr unsigned MOST_PRODUCTS = 96;  // under way of a warp: 11 x 11 taps of four channels in TF32 are 66

struct ThreadState {
    unsigned product_count, sum_count, groups;
    const char* written_begin;
    const char* written_end;
    char spare[32];
    Product products[MOST_PRODUCTS];
    Sums sums[4];

    AUTOTUNE_OWN void wrote(const char* begin, int bytes) {
        if (!written_end || begin < written_begin) written_begin = begin;
        if (begin + bytes > written_end) written_end = begin + bytes;
    }
    AUTOTUNE_OWN void fence() { written_begin = written_end = nullptr; }

    // Starts a product: its sums are not numbers until a wait.
    AUTOTUNE_OWN void begin(Product product, float* d, int tiles, int line) {
        int which = 0;
        while (which < static_cast<int>(sum_count) && sums[which].d != d) ++which;
        if (product_count == MOST_PRODUCTS || which == 4) autotune_stop("out_of_memory", "too many products under way", __FILE__, line);
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

    // How many products were begun before the latest `left` groups.
    AUTOTUNE_OWN unsigned due(unsigned left) const {
        unsigned count = 0;
        while (count < product_count && products[count].group + left < groups) ++count;
        return count;
    }

    // Forgets the first products, which are computed.
    AUTOTUNE_OWN void retire(unsigned count) {
        product_count -= count;
        for (unsigned i = 0; i < product_count; ++i) products[i] = products[count + i];
        if (product_count) return;
        for (unsigned i = 0; i < sum_count; ++i) memcpy(sums[i].d, sums[i].values, sizeof(float) * 4 * sums[i].tiles);
        sum_count = 0;
    }
};
static_assert(sizeof(ThreadState) <= 12288, "as much as the runtime has");

AUTOTUNE_OWN inline ThreadState* thread_state(unsigned thread) { return static_cast<ThreadState*>(autotune_thread_state(thread)); }
AUTOTUNE_OWN inline ThreadState* thread_state() {
    return thread_state(threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z));
}

// Ends the kernel where some thread wrote a part of these bytes and did not fence.
AUTOTUNE_OWN inline void require_fenced(const char* begin, size_t bytes, const char* what, int line) {
    for (unsigned thread = 0; thread < blockDim.x * blockDim.y * blockDim.z; ++thread) {
        const ThreadState& state = *thread_state(thread);
        if (state.written_begin < begin + bytes && state.written_end > begin) autotune_stop("race", what, __FILE__, line);
    }
}

// A lane that waits for products: those of a warp are computed when all its lanes do.
struct Waiting {
    void (*compute)(void* const* lanes);
    ThreadState* state;
    unsigned left;
    int thread, line;
};

AUTOTUNE_OWN inline void finish_warp(void* const* lanes) {
    const auto of = [&](int lane) AUTOTUNE_OWN { return static_cast<const Waiting*>(lanes[lane]); };
    const unsigned due = of(0)->state->due(of(0)->left);
    for (unsigned i = 0; i < due; ++i) {
        const Product& product = of(0)->state->products[i];
        for (int lane = 0; lane < 32; ++lane) {
            const Product& other = of(lane)->state->products[i];
            if (of(lane)->state->due(of(lane)->left) != due || other.a != product.a || other.b != product.b) {
                autotune_stop("trap", "lanes of a warp give a product different operands", __FILE__, of(lane)->line);
            }
            if (other.registers && __builtin_memcmp(other.registers, other.words, sizeof other.words)) {
                autotune_stop("race", "registers of a product changed before a wait", __FILE__, of(lane)->line);
            }
        }
        const int columns = 8 * of(0)->state->sums[product.sum].tiles;
        product.require(product, columns, of(0)->line);
        if (product.hash(product, columns, of(0)->thread / 32) != product.begun_hash) {
            autotune_stop("race", "an operand of a product changed between its begin and a wait", __FILE__, of(0)->line);
        }
        const Product* products[32];
        float* sums[32];
        for (int lane = 0; lane < 32; ++lane) {
            products[lane] = of(lane)->state->products + i;
            sums[lane] = of(lane)->state->sums[products[lane]->sum].values;
        }
        product.multiply(products, sums, columns / 8, of(0)->thread / 32);
    }
    for (int lane = 0; lane < 32; ++lane) of(lane)->state->retire(due);
}

inline void wait_for_products(unsigned left, int line) {
    ThreadState* const state = thread_state();
    if (!state->product_count) return;
    Waiting mine = {&finish_warp, state, left, static_cast<int>(threadIdx.x % 128), line};
    autotune_warp(TOGETHER, 0xffffffffu, reinterpret_cast<unsigned long long>(&mine), 0, 32, line);
}
}  // namespace autotune_host
