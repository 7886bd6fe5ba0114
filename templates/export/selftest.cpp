// Tests the library on a device. Every kernel for the device runs on integers and on normal data, through all ways to
// call it. Its outputs are compared with golden values in double precision and, if the operation's reference is C++,
// with the reference. Wrong calls must be refused. If there is another device, both are used at once.
//
//     selftest [DEVICE [KERNEL...]]        exits with 0 if these kernels, or all kernels, are right
#include <algorithm>
#include <cmath>
#include <thread>

#include "device.h"
#include "golden.h"
#include "stored.h"

namespace autotune_runtime {
#ifdef CONV2D_REFERENCE
#define REFERENCE_FUNCTION inline
#include "reference.cuh"
#else
template <class Problem>
double activation_error(const Problem &, double, double) { return 0.0; }
#endif
}  // namespace autotune_runtime

using namespace autotune_runtime;

namespace {

constexpr int PASSES = 4;  // of each of two threads that run at once

// ---- data ----

uint64_t mixed(uint64_t value) {  // splitmix64
    value += 0x9E3779B97F4A7C15u;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
    return value ^ (value >> 31);
}

std::vector<double> integers(int64_t count, uint64_t seed, int64_t least, int64_t most, Stored dtype) {
    std::vector<double> values(static_cast<size_t>(count));
    const uint64_t span = static_cast<uint64_t>(most - least + 1);
    for (size_t i = 0; i < values.size(); ++i)
        values[i] =
            as_stored(static_cast<double>(least + static_cast<int64_t>((mixed((seed << 40) + i) >> 11) % span)), dtype);
    return values;
}

std::vector<double> uniform(int64_t count, uint64_t seed, double low, double high, Stored dtype) {
    std::vector<double> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) {
        const double random = static_cast<double>(mixed((seed << 40) + i) >> 40) / 16777216.0;
        values[i] = as_stored(low + (high - low) * random, dtype);
    }
    return values;
}

// Along rows of this length: from 0 on, or shuffled by a step that has no factor in common with the length.
std::vector<double> indices(int64_t count, int64_t length, bool shuffled, Stored dtype) {
    const auto common = [](int64_t one, int64_t other) {
        while (other) std::swap(one %= other, other);
        return one;
    };
    int64_t step = shuffled ? std::max<int64_t>(1, std::llrint(0.618 * static_cast<double>(length))) : 1;
    while (common(step, length) > 1) ++step;
    const int64_t shift = shuffled ? 7919 : 0;
    std::vector<double> values(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i)
        values[static_cast<size_t>(i)] =
            as_stored(static_cast<double>((i % length * step + i / length % length * shift) % length), dtype);
    return values;
}

// Sums of twelve uniform numbers: close to normal, and the same on every machine.
std::vector<double> normal(int64_t count, uint64_t seed, Stored dtype) {
    std::vector<double> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i) {
        int64_t sum = 0;
        for (uint64_t part = 0; part < 3; ++part) {
            const uint64_t random = mixed((seed << 40) + 3 * i + part);
            for (int shift = 0; shift < 64; shift += 16) sum += static_cast<int64_t>(random >> shift & 0xFFFF);
        }
        values[i] = as_stored(static_cast<double>(sum - 12 * 65535 / 2) / 65536.0, dtype);
    }
    return values;
}

struct Data {
    std::vector<double> of[ARRAYS];
};

std::vector<double> filled(const Declared &array, const Problem &layer, int64_t count, uint64_t seed, bool whole) {
    const Stored dtype = array.dtype(layer);
    const bool drawn = array.fill == Fill::normal || array.fill == Fill::uniform || array.fill == Fill::integers;
    if (whole && drawn) return integers(count, seed, array.least(layer).value(), array.most(layer).value(), dtype);
    const int64_t length = array.extent(layer, array.rank - 1).value();
    switch (array.fill) {
        case Fill::normal: return normal(count, seed, dtype);
        case Fill::uniform: return uniform(count, seed, array.low, array.high, dtype);
        case Fill::integers: return integers(count, seed, array.least(layer).value(), array.most(layer).value(), dtype);
        case Fill::range: return indices(count, length, false, dtype);
        case Fill::permutation: return indices(count, length, true, dtype);
        case Fill::ones: return integers(count, seed, 1, 1, dtype);
        case Fill::zeros: return integers(count, seed, 0, 0, dtype);
        case Fill::data: break;  // as in golden.h
    }
    return {};
}

// The golden values of an output, or of an input that is not computed here, at a problem's run-time sizes; none where
// there are none.
const Samples *samples_of(const Golden &golden, int output, const conv2d_problem &problem, bool whole) {
    for (int i = 0; i < golden.sets; ++i) {
        const Samples &each = golden.samples[i];
        if (each.output == output && each.sizes == runtime_sizes(problem) && each.whole == whole) return &each;
    }
    return nullptr;
}

// Of the inputs that a problem has.
Data data_of(const conv2d_problem &problem, const Golden &golden, bool whole) {
    Data data;
    const Problem layer(problem);
    for (int i = 0; i < ARRAYS; ++i) {
        const Declared &array = DECLARED[i];
        if (!is_read(array) || !array.is_in(layer)) continue;
        const int64_t count = elements(array, layer).value();
        const uint64_t seed = static_cast<uint64_t>(i);
        data.of[i] = filled(array, layer, count, seed, whole);
        const Samples *const given = array.fill == Fill::data ? samples_of(golden, i, problem, whole) : nullptr;
        for (int at = 0; given && at < given->count; ++at) data.of[i].push_back(given->at[at].value);
    }
    return data;
}

// Outputs in double precision, all of them in their order or some by their index, what their errors are measured in, and
// the bounds of their errors but for the activation's and the stored type's.
struct Reference {
    std::vector<int64_t> index;
    std::vector<double> value, unit, bound;
};

#ifdef CONV2D_REFERENCE
template <class Exact>
auto products_of(const Exact &exact, double, int) -> decltype(static_cast<double>(exact.products)) {
    return static_cast<double>(exact.products);
}

template <class Exact>
double products_of(const Exact &, double reduction, long) { return reduction; }

// So many outputs, all or the first, the last and others evenly strewn between them.
std::vector<int64_t> strewn(int64_t outputs, int64_t most) {
    std::vector<int64_t> found(static_cast<size_t>(std::min(outputs, most)));
    const int64_t last = std::max<int64_t>(1, static_cast<int64_t>(found.size()) - 1);
    const int64_t step = (outputs - 1) / last, rest = (outputs - 1) % last;
    for (int64_t i = 0; i < static_cast<int64_t>(found.size()); ++i)
        found[static_cast<size_t>(i)] = step * i + rest * i / last;
    return found;
}

// As many outputs as are looked at, by the operation's own reference, which must agree with the golden values.
Reference reference(const conv2d_problem &problem, const Data &data, const Golden &golden, int output, bool whole) {
    const PlainProblem plain(problem);
    const double *addresses[ARRAYS];
    for (int i = 0; i < ARRAYS; ++i) addresses[i] = data.of[i].data();
    const Inputs inputs = inputs_of(addresses);
    Reference found;
    found.index = strewn(elements(DECLARED[output], Problem(problem)).value(), golden.most_outputs);
    for (const int64_t i : found.index) {
        const Output exact = reference_output(plain, inputs, static_cast<long long>(i));
        found.value.push_back(exact.value);
        found.unit.push_back(error_unit(exact));
        found.bound.push_back(golden.bound.of(found.unit.back(), products_of(exact, golden.reduction, 0)));
    }
    const Samples *const samples = samples_of(golden, output, problem, whole);
    for (int i = 0; samples && i < samples->count; ++i) {
        const Sample &sample = samples->at[i];
        const Output exact = reference_output(plain, inputs, static_cast<long long>(sample.index));
        if (!(std::fabs(exact.value - sample.value) <= 1e-12 * error_unit(exact)))
            stop(std::string(golden.kernel) + ": this machine's reference differs from the golden values");
    }
    return found;
}
#else
Reference reference(const conv2d_problem &problem, const Data &, const Golden &golden, int output, bool whole) {
    const Samples *const samples = samples_of(golden, output, problem, whole);
    if (!samples) stop(std::string(golden.kernel) + ": golden.h has no values of " + DECLARED[output].name);
    Reference found;
    for (int i = 0; i < samples->count; ++i) {
        found.index.push_back(samples->at[i].index);
        found.value.push_back(samples->at[i].value);
        found.unit.push_back(0.0);
        found.bound.push_back(samples->at[i].bound);
    }
    return found;
}
#endif

// ---- a kernel's test ----

// One data set of a kernel on the device, with what must come out.
struct Case {
    Case(const conv2d_problem &tested, const Golden &wanted, bool integers)
        : problem(tested),
          golden(wanted),
          whole(integers),
          data(data_of(problem, golden, whole)),
          read_only(problem, [](const Declared &array) { return !is_written(array); }) {
        for (int i = 0; i < ARRAYS; ++i) {
            if (read_only.at(i)) read_only.at(i)->write(encode(data.of[i], dtype_of(i)));
            else if (is_read(DECLARED[i])) before[i] = encode(data.of[i], dtype_of(i));
        }
    }

    const conv2d_problem problem;
    const Golden &golden;
    const bool whole;
    const Data data;
    const Arrays read_only;
    std::vector<unsigned char> before[ARRAYS];  // of those that are written as well, what is in them before a pass

    // Of an output, once somebody asks.
    const Reference &expected(int output) const {
        Reference &found = expected_[output];
        if (found.index.empty()) found = reference(problem, data, golden, output, whole);
        return found;
    }

    RuntimeSizes sizes() const { return runtime_sizes(problem); }
    Stored dtype_of(int array) const { return DECLARED[array].dtype(Problem(problem)); }
    conv2d_arguments prepared() const { return read_only.with(Array(0)); }

private:
    mutable Reference expected_[ARRAYS];
};

// What a pass on a case writes to, and its workspace.
class Pass {
public:
    Pass(const Case &on, uint64_t workspace_bytes)
        : on_(on), written_(on.problem, is_written), workspace_(static_cast<size_t>(workspace_bytes)) {
        restore();
    }

    // As before a pass: what was written is poisoned, and what was read before has its content again.
    void restore() const {
        for (int i = 0; i < ARRAYS; ++i) {
            if (!written_.at(i)) continue;
            written_.at(i)->poison();
            if (is_read(DECLARED[i])) written_.at(i)->write(on_.before[i]);
        }
    }

    conv2d_arguments arguments() const {
        conv2d_arguments made = on_.read_only.with(workspace_);
        written_.set(made);
        return made;
    }

    const Array *at(int array) const { return written_.at(array) ? written_.at(array) : on_.read_only.at(array); }

    // Stop unless every output is right; the largest error as a fraction of the bound.
    double judge(const char *how) const {
        workspace_.read();  // stops when something was written behind it
        double worst = 0.0;
        for (int i = 0; i < ARRAYS; ++i) {
            if (!written_.at(i)) continue;
            const std::vector<unsigned char> content = written_.at(i)->read();
            if (is_output(DECLARED[i])) worst = std::max(worst, judge(i, content, how));
        }
        return worst;
    }

private:
    double judge(int output, const std::vector<unsigned char> &content, const char *how) const {
        const Stored dtype = on_.dtype_of(output);
        const Golden &golden = on_.golden;
        const Reference &expected = on_.expected(output);
        const size_t size = bytes_of(dtype);
        const auto found = [&](size_t index) { return decode(&content[size * index], dtype); };
        const auto wrong = [&](size_t index, const std::string &wanted) {
            stop(std::string(golden.kernel) + ": WRONG on " + (on_.whole ? "integers" : "normal data") + ", " + how +
                 ": output " + std::to_string(index) + " of " + DECLARED[output].name + " is " +
                 std::to_string(found(index)) + ", not " + wanted);
        };
        for (size_t i = 0; is_float(dtype) && size * i < content.size(); ++i)  // also of those that no golden value is of
            if (std::all_of(&content[size * i], &content[size * i] + size, [](unsigned char byte) { return byte == 0xFF; }))
                wrong(i, "written");
        const PlainProblem plain(on_.problem);
        double worst = 0.0;
        for (size_t i = 0; i < expected.index.size(); ++i) {
            const size_t at = static_cast<size_t>(expected.index[i]);
            const double exact = expected.value[i];
            const double own = activation_error(plain, exact, expected.unit[i]);
            const double of_class = on_.whole ? std::min(golden.most_error_on_integers, expected.bound[i]) : expected.bound[i];
            const bool equal = of_class == 0.0 && own == 0.0;
            const double wanted = equal ? as_stored(exact, dtype) : exact;
            const double rounded = own + std::max(rounding_of(dtype) * std::fabs(exact), least_rounding(dtype));
            const double bound = equal ? 0.0 : of_class + rounded;
            const double kept = as_stored(exact, dtype);  // infinite where the type cannot hold it
            if (!std::isfinite(kept) && found(at) == kept) continue;
            const double error = std::fabs(found(at) - wanted);
            if (!(error <= bound)) wrong(at, std::to_string(wanted));
            if (bound > 0.0) worst = std::max(worst, error / bound);
        }
        return worst;
    }

    const Case &on_;
    const Arrays written_;
    const Array workspace_;
};

class Handle {
public:
    // For the size that a kernel was tuned at, so that it is the one which serves.
    Handle(const Case &with, const conv2d_kernel &kernel) {
        const conv2d_arguments arguments = with.prepared();
        expect(conv2d_prepare(&kernel.problem, &arguments, nullptr, &handle_), "conv2d_prepare");
        expect(driver().cuCtxSynchronize(), "cuCtxSynchronize");
        if (std::strcmp(conv2d_handle_kernel_name(handle_), kernel.name) != 0)
            stop(std::string(kernel.name) + ": " + conv2d_handle_kernel_name(handle_) + " serves its problem");
    }
    ~Handle() { expect(conv2d_release(handle_), "conv2d_release"); }
    Handle(const Handle &) = delete;

    // Bytes of workspace of a pass.
    uint64_t workspace_bytes(const Case &on) const {
        uint64_t bytes = 0;
        expect(handle_workspace_size(handle_, on.sizes(), &bytes), "conv2d_handle_workspace_size");
        return bytes;
    }

    void run(const Case &on, const Pass &pass, conv2d_stream stream) const {
        const conv2d_arguments arguments = pass.arguments();
        expect(run_at(handle_, on.sizes(), arguments, stream), "conv2d_run");
    }

private:
    conv2d_handle *handle_ = nullptr;
};

// Bytes of workspace of a pass in one call.
uint64_t workspace_bytes(const conv2d_problem &problem) {
    uint64_t bytes = 0;
    expect(conv2d_workspace_size(&problem, &bytes), "conv2d_workspace_size");
    return bytes;
}

// Whether one call runs this kernel: for so small a size it may be that of a smaller one, and of another accuracy class.
bool serves(const conv2d_kernel &kernel, const conv2d_problem &problem) {
    const char *const name = conv2d_kernel_name(&problem);
    return name && std::strcmp(name, kernel.name) == 0;
}

// Enqueue a pass in one call.
void forward(const Case &on, const Pass &pass, CUstream stream) {
    const conv2d_arguments arguments = pass.arguments();
    expect(conv2d_forward(&on.problem, &arguments, stream), "conv2d_forward");
}

// Enqueue passes of two cases, whose weights differ, at once: each on a thread and a stream of its own.
template <class Run>
void at_once(const Case (&cases)[2], uint64_t workspace_bytes, CUcontext context, const char *how, Run run) {
    const Pass passes[2] = {{cases[0], workspace_bytes}, {cases[1], workspace_bytes}};
    std::thread threads[2];
    for (int i = 0; i < 2; ++i)
        threads[i] = std::thread([&, i] {
            expect(driver().cuCtxSetCurrent(context), "cuCtxSetCurrent");
            CUstream stream = nullptr;
            expect(driver().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
            for (int count = 0; count < PASSES; ++count) {
                if (count > 0 && CHANGES_WHAT_IT_READS) {
                    expect(driver().cuStreamSynchronize(stream), "a kernel");
                    passes[i].restore();
                }
                run(i, passes[i], stream);
            }
            expect(driver().cuStreamSynchronize(stream), "a kernel");
            expect(driver().cuStreamDestroy(stream), "cuStreamDestroy");
        });
    for (std::thread &thread : threads) thread.join();
    for (const Pass &pass : passes) pass.judge(how);
}

void test_kernel(const Golden &golden, const conv2d_kernel &kernel, CUcontext context) {
    const conv2d_problem problem = with_runtime_sizes(kernel.problem, golden.sizes);
    const Case cases[2] = {{problem, golden, true}, {problem, golden, false}};
    const Handle handles[2] = {{cases[0], kernel}, {cases[1], kernel}};
    const bool in_one_call = serves(kernel, problem);
    const uint64_t most = in_one_call ? workspace_bytes(problem) : handles[0].workspace_bytes(cases[0]);
    double worst = 0.0;
    if (in_one_call)  // before any other call, so that both find the kernel not loaded yet
        at_once(cases, most, context, "two calls at once",
                [&](int i, const Pass &pass, CUstream stream) { forward(cases[i], pass, stream); });
    for (int i = 0; i < 2; ++i) {
        const Case &each = cases[i];
        const Handle &handle = handles[i];
        const auto right = [&](const Case &on, const char *how) {
            const Pass pass(on, handle.workspace_bytes(on));
            handle.run(on, pass, nullptr);
            worst = std::max(worst, pass.judge(how));
        };
        right(each, "with a handle");
        const auto right_at = [&](const RuntimeSizes &sizes) {
            right(Case(with_runtime_sizes(problem, sizes), golden, each.whole),
                  (std::string("at ") + RUNTIME_NAME + " = " + text_of(sizes)).c_str());
        };
        if (golden.least != golden.sizes) right_at(golden.least);
        for (int more = 0; more < golden.more; ++more) right_at(golden.more_sizes[more]);
        const Pass pass(each, most);
        if (in_one_call) {
            forward(each, pass, nullptr);
            pass.judge("in one call");
            pass.restore();
        }
        expect(driver().cuCtxSetCurrent(nullptr), "cuCtxSetCurrent");
        handle.run(each, pass, nullptr);
        expect(driver().cuCtxSetCurrent(context), "cuCtxSetCurrent");
        pass.judge("without a current context");
    }
    at_once(cases, most, context, "two handles at once",
            [&](int i, const Pass &pass, CUstream stream) { handles[i].run(cases[i], pass, stream); });
    const bool exact = activation_error(PlainProblem(problem), 1.0, 1.0) == 0.0;
    std::string more;
    for (int i = 0; i < golden.more; ++i) more += (i ? " and " : ", also at ") + text_of(golden.more_sizes[i]);
    std::printf("%s: right at %s = %s and %s%s; largest error %.3f of the bound%s\n", golden.kernel, RUNTIME_NAME,
                text_of(golden.sizes).c_str(), text_of(golden.least).c_str(), more.c_str(), worst,
                golden.most_error_on_integers != 0.0 ? "" : exact ? ", integers exact" : ", sums of integers exact");
}

// Whether a kernel is for the current device.
bool runs_here(const Golden &golden, const conv2d_kernel &kernel) {
    const Arrays arrays(with_runtime_sizes(kernel.problem, golden.least));
    const conv2d_arguments arguments = arrays.with(Array(0));
    conv2d_handle *handle = nullptr;
    const conv2d_status status = conv2d_prepare(&kernel.problem, &arguments, nullptr, &handle);
    if (status == CONV2D_WRONG_DEVICE) return false;
    expect(status, "conv2d_prepare");
    expect(conv2d_release(handle), "conv2d_release");
    return true;
}

// A handle runs on its own device, whichever is current.
void test_devices(const Golden &golden, const conv2d_kernel &kernel, CUcontext first, CUcontext second) {
    const auto enter = [](CUcontext context) { expect(driver().cuCtxSetCurrent(context), "cuCtxSetCurrent"); };
    const conv2d_problem problem = with_runtime_sizes(kernel.problem, golden.sizes);
    const Case here(problem, golden, true);
    const Handle handle(here, kernel);
    const Pass pass(here, handle.workspace_bytes(here));
    enter(second);
    {
        const Case there(problem, golden, false);
        const Handle other(there, kernel);
        const bool in_one_call = serves(kernel, problem);
        const Pass other_pass(there, in_one_call ? workspace_bytes(problem) : other.workspace_bytes(there));
        handle.run(here, pass, nullptr);
        other.run(there, other_pass, nullptr);
        other_pass.judge("on the second device");
        if (in_one_call) {
            other_pass.restore();
            forward(there, other_pass, nullptr);
            other_pass.judge("in one call on the second device");
        }
    }
    enter(first);
    pass.judge("while the second device is current");
    std::printf("two devices: right\n");
}

void test_refusal(conv2d_status found, conv2d_status wanted, const std::string &what) {
    if (found != wanted)
        stop("refusals: " + what + ": status " + std::to_string(found) + " (" + conv2d_status_text(found) + "), not " +
             std::to_string(wanted));
}

// A problem with a size that no kernel has, or that is no problem any more.
void test_other_shapes(const conv2d_problem &problem, const conv2d_arguments &arguments) {
    conv2d_problem wrong = with_runtime_sizes(problem, {});
    if (!is_problem(wrong)) test_refusal(conv2d_forward(&wrong, &arguments, nullptr), CONV2D_BAD_PROBLEM, "a size of 0");
    for (const auto size : SIZES) {
        if (std::count(std::begin(RUNTIME_SIZES), std::end(RUNTIME_SIZES), size)) continue;
        wrong = problem;
        wrong.*size += 1000003;
        const conv2d_status wanted = is_problem(wrong) ? CONV2D_UNSUPPORTED : CONV2D_BAD_PROBLEM;
        test_refusal(conv2d_forward(&wrong, &arguments, nullptr), wanted, "a shape without a kernel");
        if (conv2d_kernel_name(&wrong)) stop("refusals: a shape without a kernel has a kernel's name");
    }
}

void test_refusals(const Golden &golden, const conv2d_kernel &kernel, CUcontext context) {
    const conv2d_problem problem = with_runtime_sizes(kernel.problem, golden.sizes);
    const Case good(problem, golden, true);
    const uint64_t bytes = workspace_bytes(problem);
    const Pass pass(good, bytes);
    conv2d_arguments arguments = pass.arguments();
    const auto call = [&](const conv2d_problem *asked, const conv2d_arguments &given) {
        return conv2d_forward(asked, &given, nullptr);
    };
    test_refusal(call(nullptr, arguments), CONV2D_NULL_POINTER, "no problem");
    test_refusal(conv2d_forward(&problem, nullptr, nullptr), CONV2D_NULL_POINTER, "no arguments");
    for (int i = 0; i < ARRAYS; ++i) {
        if (!pass.at(i) || DECLARED[i].role == Role::scalar) continue;
        conv2d_arguments lacking = arguments;
        Arrays::set(lacking, i, nullptr);
        test_refusal(call(&problem, lacking), CONV2D_NULL_POINTER, std::string("no ") + DECLARED[i].name);
        Arrays::set(lacking, i, static_cast<char *>(pass.at(i)->pointer()) + 2);
        test_refusal(call(&problem, lacking), CONV2D_MISALIGNED, DECLARED[i].name + std::string(" off by 2"));
    }
    arguments.workspace_bytes = bytes - 1;
    if (bytes) test_refusal(call(&problem, arguments), CONV2D_SHORT_WORKSPACE, "short workspace");
    arguments.workspace_bytes = bytes;
    arguments.size_bytes = 0;
    test_refusal(call(&problem, arguments), CONV2D_BAD_ARGUMENTS, "arguments of no size");
    if (ARRAYS > 1) {
        arguments.size_bytes = FIRST_ARRAY + sizeof(void *);  // of a header that knows the first array alone
        test_refusal(call(&problem, arguments), CONV2D_NULL_POINTER, "arguments of an older header");
    }
    struct {
        conv2d_arguments known;
        const void *later;
    } newer = {pass.arguments(), &problem};
    newer.known.size_bytes = sizeof newer;
    test_refusal(call(&problem, newer.known), CONV2D_BAD_ARGUMENTS, "an array that the library does not know");
    arguments = pass.arguments();
    test_other_shapes(problem, arguments);
    test_refusal(run_at(nullptr, {}, arguments, nullptr), CONV2D_NULL_POINTER, "no handle");
    test_refusal(conv2d_prepare(&problem, &arguments, nullptr, nullptr), CONV2D_NULL_POINTER,
                 "nowhere to put the handle");
    conv2d_handle *handle = nullptr;
    expect(driver().cuCtxSetCurrent(nullptr), "cuCtxSetCurrent");
    test_refusal(conv2d_prepare(&problem, &arguments, nullptr, &handle), CONV2D_NO_CONTEXT, "no context");
    test_refusal(call(&problem, arguments), CONV2D_NO_CONTEXT, "no context");
    expect(driver().cuCtxSetCurrent(context), "cuCtxSetCurrent");
    conv2d_array array;
    for (int i = 0; i < ARRAYS; ++i) {
        expect(conv2d_array_at(&problem, i, &array), "conv2d_array_at");
        if (pass.at(i) && pass.at(i)->bytes() != array.size_bytes) stop(std::string(array.name) + ": has another size");
    }
    test_refusal(conv2d_array_at(&problem, ARRAYS, &array), CONV2D_UNSUPPORTED, "an index without an array");
    std::printf("invalid calls: all rejected\n");
}

}  // namespace

int main(int argc, char **argv) {
    const int ordinal = argc > 1 ? std::atoi(argv[1]) : 0;
    const CUcontext context = open_device(ordinal);
    conv2d_kernel kernel;
    int first = -1;  // of the kernels that are for this device
    const auto asked = [&](const char *name) {
        return argc <= 2 || std::any_of(argv + 2, argv + argc, [&](char *each) { return std::strcmp(each, name) == 0; });
    };
    for (int i = 0; conv2d_kernel_at(i, &kernel) == CONV2D_OK; ++i) {
        if (!asked(kernel.name)) continue;
        if (!runs_here(GOLDEN[i], kernel)) {
            std::printf("%s: not tested: %s (%s)\n", kernel.name, conv2d_status_text(CONV2D_WRONG_DEVICE),
                        conv2d_last_error());
            continue;
        }
        test_kernel(GOLDEN[i], kernel, context);
        if (first < 0) first = i;
    }
    if (first < 0) stop(argc > 2 ? "none of these kernels is for this device" : "no kernel of this library is for this device");
    expect(conv2d_kernel_at(first, &kernel), "conv2d_kernel_at");
    test_refusals(GOLDEN[first], kernel, context);
    int devices = 0;
    expect(driver().cuDeviceGetCount(&devices), "cuDeviceGetCount");
    if (devices > 1) {
        const CUcontext other = open_device((ordinal + 1) % devices);
        const bool runs = runs_here(GOLDEN[first], kernel);
        expect(driver().cuCtxSetCurrent(context), "cuCtxSetCurrent");
        if (runs)
            test_devices(GOLDEN[first], kernel, context, other);
        else
            std::printf("two devices: not tested, %s does not support the other one\n", kernel.name);
    }
    expect(conv2d_unload(), "conv2d_unload");
    std::printf("self-test passed\n");
    return 0;
}
