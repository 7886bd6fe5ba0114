#pragma once

// The steps of mma_shift's MMAs, two chunks in depth each. Needs place_of and the family's constants.

// Where a step's operands lie, and how far its second chunk is from its first; chunks.
struct Step {
    int filters, filters_deeper, inputs, inputs_deeper;
};

// The output rows of a part of all MMAs, and the rows of inputs that they need.
template <int PART>
struct Part {
    static constexpr int FIRST_ROW = PARTS == 1 ? 0 : MMA_P - 1 - (64 * PART + 63) / K, LAST_ROW = MMA_P - 1 - 64 * PART / K;
    static constexpr int FIRST_TAP = FIRST_ROW, TAPS = PARTS == 1 ? TAPS_H : LAST_ROW - FIRST_ROW + R;
    static constexpr int FIRST_FILTER = PARTS == 1 ? 0 : ZEROS - (MMA_P - 1) * LAG + 64 * PART;
    static constexpr int STEPS = TAPS * (CHANNEL_BLOCKS * S / 2) + CHANNEL_BLOCKS * S % 2 * ((TAPS + 1) / 2);
    // Fewer where the last group has none of the part's rows.
    static constexpr int TILES = PARTS == 1 ? ::TILES : ((P - 1 - FIRST_ROW) / MMA_P * PITCH + Q + 7) / 8;
};

// Where chunks of taps lie, filters of the part's first row.
template <class Part>
__host__ __device__ constexpr Step step_from(int tap, int chunk, int second_tap, int second_chunk) {
    const auto filters_at = [](int tap, int chunk) { return chunk * FILTER + (Part::FIRST_TAP + tap) * FOLD * LAG + Part::FIRST_FILTER; };
    const auto inputs_at = [](int tap, int chunk) { return chunk / S * BLOCK + place_of(Part::FIRST_TAP + tap) * PITCH + chunk % S; };
    const int filters = filters_at(tap, chunk), inputs = inputs_at(tap, chunk);
    // A single last chunk is multiplied by zeros as well.
    const bool single = second_tap == Part::TAPS;
    return {filters, (single ? CHANNEL_BLOCKS * S * FILTER : filters_at(second_tap, second_chunk)) - filters, inputs,
            single ? 0 : inputs_at(second_tap, second_chunk) - inputs};
}

// Neither second chunk may be before the first one.
template <class Part>
__host__ __device__ constexpr Step step_of(int step) {
    constexpr int ROW_CHUNKS = CHANNEL_BLOCKS * S, PAIRS = ROW_CHUNKS / 2;
    // Of two rows, the one that lies first gives its first chunk to the other one's last.
    const auto before = [](int tap) {
        return (tap ^ 1) < Part::TAPS && place_of(Part::FIRST_TAP + tap) < place_of(Part::FIRST_TAP + (tap ^ 1));
    };
    if (step >= Part::TAPS * PAIRS) {
        const int tap = 2 * (step - Part::TAPS * PAIRS);
        if (tap + 1 == Part::TAPS) return step_from<Part>(tap, ROW_CHUNKS - 1, tap + 1, 0);
        return before(tap) ? step_from<Part>(tap, 0, tap + 1, ROW_CHUNKS - 1) : step_from<Part>(tap + 1, 0, tap, ROW_CHUNKS - 1);
    }
    const int tap = step / (PAIRS > 0 ? PAIRS : 1), chunk = step % (PAIRS > 0 ? PAIRS : 1) * 2 + (ROW_CHUNKS % 2 == 1 && before(tap));
    return step_from<Part>(tap, chunk, tap, chunk + 1);
}

template <class Part>
__host__ __device__ constexpr bool all_ahead() {
    for (int i = 0; i < Part::STEPS; ++i) {
        if (step_of<Part>(i).filters_deeper < 0 || step_of<Part>(i).inputs_deeper < 0) return false;
    }
    return true;
}
