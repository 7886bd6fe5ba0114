// Verification kernels of autotune, one source for GPU and host: test data and the comparison.
//
// What stands above (written by reference.py): for each storage type stored_NAME, with element, to_float, to_double, from_float,
// from_double, all_ones, and LEAST_ROUNDING (of one to its smallest numbers); Problem (words of a problem, and its sizes, as last arguments the macros PROBLEM_PARAMETERS and
// PROBLEM_ARGUMENTS), Inputs (its arrays, as arguments of `reference` REFERENCE_PARAMETERS and REFERENCE_ARGUMENTS), ERROR_UNIT (of an output) and the operation's reference_output, which
// `reference.cu` runs, and activation_error. Of a reference in numpy there is no more than an activation_error of 0.
//
// Images repeat with a prime period: x[image] == x[image % period]. The reference then covers `period` images only,
// and a kernel that confuses two images is caught unless they are a multiple of the period apart; the two data sets
// use two periods.

using bits64 = unsigned long long;

__device__ inline bits64 mixed(bits64 value) {  // splitmix64
    value += 0x9E3779B97F4A7C15ull;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ull;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBull;
    return value ^ (value >> 31);
}

// A factor near 1 that gives a double digits which no float has, so that a kernel that computes in float is found.
template <class Stored>
__device__ inline double below_float(bits64 random) {
    return sizeof(typename Stored::element) > sizeof(float) ? 1.0 - static_cast<double>(random & 0xFFFFFF) * 0x1p-50 : 1.0;
}

// to[i] ~ N(0, scale^2) by Box-Muller; elements `period` apart are equal.
template <class Stored>
__device__ inline void filled_normal(typename Stored::element* to, wide elements, wide period, bits64 seed, float scale) {
    for (wide i = blockIdx.x * static_cast<wide>(blockDim.x) + threadIdx.x; i < elements;
         i += static_cast<wide>(gridDim.x) * blockDim.x) {
        const bits64 random = mixed(seed + static_cast<bits64>(i % period));
        const float first = (static_cast<float>(random >> 40) + 0.5f) * (1.0f / 16777216.0f);
        const float second = static_cast<float>((random >> 8) & 0xFFFFFF) * (1.0f / 16777216.0f);
        const float value = scale * sqrtf(-2.0f * logf(first)) * cosf(6.2831853f * second);
        to[i] = Stored::from_double(value * below_float<Stored>(random));
    }
}

// to[i] uniform over low .. high; elements `period` apart are equal.
template <class Stored>
__device__ inline void filled_uniform(typename Stored::element* to, wide elements, wide period, bits64 seed, float low, float high) {
    for (wide i = blockIdx.x * static_cast<wide>(blockDim.x) + threadIdx.x; i < elements;
         i += static_cast<wide>(gridDim.x) * blockDim.x) {
        const bits64 random = mixed(seed + static_cast<bits64>(i % period));
        if constexpr (sizeof(typename Stored::element) > sizeof(float)) {
            to[i] = Stored::from_double(low + static_cast<double>(high - low) * (static_cast<double>(random >> 11) * 0x1p-53));
        } else {
            to[i] = Stored::from_float(low + (high - low) * (static_cast<float>(random >> 40) * (1.0f / 16777216.0f)));
        }
    }
}

// to[i] = (place * step + row * shift) % length, with rows of this length; elements `period` apart are equal.
template <class Stored>
__device__ inline void filled_indices(typename Stored::element* to, wide elements, wide period, wide length, wide step, wide shift) {
    for (wide i = blockIdx.x * static_cast<wide>(blockDim.x) + threadIdx.x; i < elements;
         i += static_cast<wide>(gridDim.x) * blockDim.x) {
        const wide at = i % period;
        to[i] = Stored::from_double(static_cast<double>((at % length * step + at / length % length * shift) % length));
    }
}

// to[i] uniform over the integers low .. low + span - 1; elements `period` apart are equal.
template <class Stored>
__device__ inline void filled_integers(typename Stored::element* to, wide elements, wide period, bits64 seed, wide low, wide span) {
    for (wide i = blockIdx.x * static_cast<wide>(blockDim.x) + threadIdx.x; i < elements;
         i += static_cast<wide>(gridDim.x) * blockDim.x) {
        const bits64 random = mixed(seed + static_cast<bits64>(i % period));
        to[i] = Stored::from_double(static_cast<double>(low + static_cast<wide>((random >> 11) % static_cast<bits64>(span))));
    }
}

// Values that normal data do not have. The units of the first axis take turns: numbers around `mean` or -`mean` (unless it is 0); numbers
// times `large`, and times `small` (unless that is 0); nothing but 0 where `zeros`; below -`extreme`, above it, with the largest or the least number in the last place of each
// row, zeros of both signs, and numbers times `tiny`; where `special`, minus infinity alone, and a NaN, an infinity and minus
// infinity in one place of every second row, among whole numbers and zeros if it is 2.
template <class Stored>
__device__ inline void put_edges(typename Stored::element* to, wide elements, wide period, wide unit, wide row, double mean, double large, double small,
                                 int zeros, double extreme, double tiny, int special) {
    const wide of_mean = mean != 0.0, of_large = of_mean + (large != 0.0), of_small = of_large + (small != 0.0);
    const wide of_zeros = of_small + zeros, of_extreme = of_zeros + 6 * (extreme != 0.0), kinds = of_extreme + 4 * (special > 0);
    for (wide i = blockIdx.x * static_cast<wide>(blockDim.x) + threadIdx.x; i < elements;
         i += static_cast<wide>(gridDim.x) * blockDim.x) {
        const wide at = i % period, kind = (at / unit + period / unit) % kinds;
        const double infinity = __builtin_huge_val(), value = Stored::to_double(to[i]);
        double edge = value;
        if (kind < of_mean) {
            edge = value + (mixed(static_cast<bits64>(at / unit + period)) % 2 == 0 ? mean : -mean);
        } else if (kind < of_small) {
            edge = value * (kind < of_large ? large : small);
        } else if (kind < of_zeros) {
            edge = 0.0;
        } else if (kind < of_extreme) {
            const bool last = at % row == row - 1;
            switch (kind - of_zeros) {
                case 0: edge = -extreme * (1.0 + fabs(value)); break;
                case 1: edge = extreme * (1.0 + fabs(value)); break;
                case 2: edge = last ? 64.0 : value; break;
                case 3: edge = last ? -64.0 : value; break;
                case 4: edge = value * 0.0; break;
                default: edge = value * tiny;
            }
        } else {
            const bool chosen =
                at % unit / row % 2 == 0 && at % row == static_cast<wide>(mixed(static_cast<bits64>(at / row)) % static_cast<bits64>(row));
            const wide which = kind - of_extreme;
            if (special == 2) edge = rint(value);
            if (which == 0 || chosen) edge = which == 1 ? infinity - infinity : which == 2 ? infinity : -infinity;
        }
        to[i] = Stored::from_double(edge);
    }
}

// What a comparison found; result[] is zeroed (FIRST_WRONG to all ones) before the launch.
enum { WRONG, UNWRITTEN, FIRST_WRONG, OVER_BOUND, MAX_ABS, OVER_CLASS };  // the last three: bits of a double

__device__ inline void keep_largest(bits64* to, double value) {
    bits64 image;
    memcpy(&image, &value, sizeof image);  // non-negative doubles order like their bits
    if (image > *static_cast<volatile bits64*>(to)) atomicMax(to, image);  // most threads need not queue for it
}

// What an output's error is measured in (of a sum, the magnitudes of its terms), and how many products it sums.
struct ErrorUnit {
    float size, products;
};

// As in bounds.py, where the numbers of each accuracy class are.
struct ErrorBound {
    double constant, growing, shrinking, most, least_term;
    __device__ double of(double size, double products) const {
        const double root = sqrt(fmax(1.0, products));
        return fmin(most, constant + growing * root + shrinking / root) * (size + least_term * products);
    }
};

// Compare every output with ref[o % period_outputs]: y is a number within the bound of its unit + the activation's own error from
// ref, rounded to the nearest one that is stored. `most_error` limits the bound of the sums; where it is 0 and the activation has
// no error, y is exact, as stored. A NaN or an infinity must be the same. An element whose bytes are all ones was never written. A thread takes one place of the period and all outputs that share it, so that reference and bound are fetched
// and computed once.
template <class Stored>
__device__ inline void compared(const Problem& problem, const typename Stored::element* y, const double* ref, const ErrorUnit* units,
                                wide outputs, wide period_outputs, double most_error, const ErrorBound& allowed, double rounding,
                                bits64* result) {
    double worst_over = 0.0, worst_abs = 0.0, worst_of_class = 0.0;
    bits64 wrong = 0, unwritten = 0, first = ~0ull;
    for (wide at = blockIdx.x * static_cast<wide>(blockDim.x) + threadIdx.x; at < period_outputs;
         at += static_cast<wide>(gridDim.x) * blockDim.x) {
        const double exact = ref[at], size = static_cast<double>(units[at].size);
        const double own = activation_error(problem, exact, size);
        const bool equal = most_error == 0.0 && own == 0.0;
        const double expected = equal ? Stored::to_double(Stored::from_double(exact)) : exact;
        const double rounded = own + fmax(rounding * fabs(exact), Stored::LEAST_ROUNDING);
        const double of_class = isfinite(size) ? fmin(most_error, allowed.of(size, static_cast<double>(units[at].products))) : 0.0;
        const double bound = equal ? 0.0 : of_class + rounded, reach = equal ? 0.0 : of_class + own;
        const double least = Stored::to_double(Stored::from_double(exact - reach));
        const double most = Stored::to_double(Stored::from_double(exact + reach));
        const double kept = Stored::to_double(Stored::from_double(exact));  // infinite where the type cannot hold it
        double largest = 0.0, beyond = 0.0;
#pragma unroll 8
        for (wide o = at; o < outputs; o += period_outputs) {
            const typename Stored::element stored = y[o];
            const double value = Stored::to_double(stored), error = fabs(value - expected);
            if (Stored::all_ones(stored)) {
                ++unwritten;
                first = min(first, static_cast<bits64>(o));
            }
            if (!isfinite(kept) && (value == kept || (isnan(value) && isnan(kept)))) continue;
            if (!(isfinite(exact) && least <= value && value <= most)) {  // NaN is wrong too
                ++wrong;
                const double side = value > exact ? most - exact : exact - least;
                if (isfinite(error)) beyond = fmax(beyond, side > 0.0 ? error / side : 2.0);
                first = min(first, static_cast<bits64>(o));
            }
            if (error > largest) largest = error;
        }
        const double over = fmax(beyond, bound > 0.0 ? fmin(1.0, largest / bound) : 0.0);
        if (over > worst_over) worst_over = over;
        if (of_class > 0.0) worst_of_class = fmax(worst_of_class, (largest - rounded) / of_class);
        if (largest > worst_abs) worst_abs = largest;
    }
    if (wrong || unwritten) atomicMin(result + FIRST_WRONG, first);
    if (wrong) atomicAdd(result + WRONG, wrong);
    if (unwritten) atomicAdd(result + UNWRITTEN, unwritten);
    keep_largest(result + OVER_BOUND, worst_over);
    keep_largest(result + MAX_ABS, worst_abs);
    keep_largest(result + OVER_CLASS, worst_of_class);
}

// What is launched, for a storage type.
#define AUTOTUNE_CHECKS(NAME)                                                                                               \
    extern "C" __global__ void fill_normal_##NAME(stored_##NAME::element* to, wide elements, wide period, bits64 seed,      \
                                                  float scale) {                                                           \
        filled_normal<stored_##NAME>(to, elements, period, seed, scale);                                                   \
    }                                                                                                                      \
    extern "C" __global__ void fill_uniform_##NAME(stored_##NAME::element* to, wide elements, wide period, bits64 seed,     \
                                                   float low, float high) {                                                \
        filled_uniform<stored_##NAME>(to, elements, period, seed, low, high);                                              \
    }                                                                                                                      \
    extern "C" __global__ void fill_integers_##NAME(stored_##NAME::element* to, wide elements, wide period, bits64 seed,    \
                                                    wide low, wide span) {                                                 \
        filled_integers<stored_##NAME>(to, elements, period, seed, low, span);                                             \
    }                                                                                                                      \
    extern "C" __global__ void put_edges_##NAME(stored_##NAME::element* to, wide elements, wide period, wide unit, wide row,\
                                                double mean, double large, double small, int zeros, double extreme,       \
                                                double tiny, int special) {                                                \
        put_edges<stored_##NAME>(to, elements, period, unit, row, mean, large, small, zeros, extreme, tiny, special);              \
    }                                                                                                                      \
    extern "C" __global__ void fill_indices_##NAME(stored_##NAME::element* to, wide elements, wide period, wide length,     \
                                                   wide step, wide shift) {                                                \
        filled_indices<stored_##NAME>(to, elements, period, length, step, shift);                                          \
    }                                                                                                                      \
    extern "C" __global__ void compare_##NAME(const stored_##NAME::element* y, const double* ref, const ErrorUnit* units,  \
                                              wide outputs, wide period_outputs, double most_error, double constant,       \
                                              double growing, double shrinking, double most, double least_term,            \
                                              double rounding, bits64* result PROBLEM_PARAMETERS) {                        \
        const Problem problem = {PROBLEM_ARGUMENTS};                                                                       \
        const ErrorBound allowed = {constant, growing, shrinking, most, least_term};                                       \
        compared<stored_##NAME>(problem, y, ref, units, outputs, period_outputs, most_error, allowed, rounding, result);\
    }

// sum += a hash of all words and their positions (the finaliser of MurmurHash3, whose multiplications are 32 bits
// wide); the order of threads does not matter.
extern "C" __global__ void hash_words(const unsigned* words, wide count, bits64* sum) {
    bits64 own = 0;
#pragma unroll 8
    for (wide i = blockIdx.x * static_cast<wide>(blockDim.x) + threadIdx.x; i < count;
         i += static_cast<wide>(gridDim.x) * blockDim.x) {
        unsigned hash = words[i] ^ (static_cast<unsigned>(i) * 0x9E3779B1u + static_cast<unsigned>(i >> 32));
        hash = (hash ^ (hash >> 16)) * 0x85EBCA6Bu;
        hash = (hash ^ (hash >> 13)) * 0xC2B2AE35u;
        own += hash ^ (hash >> 16);
    }
    atomicAdd(sum, own);
}
