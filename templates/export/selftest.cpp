// Tests the library on a device: every kernel that is for it on integers and on normal data, through all ways to call
// it, against a reference in double precision that is itself checked against golden values; that wrong calls are
// refused; and where there is another device, that both may be used at once.
//
//     selftest [DEVICE]        exit status 0 when everything is right
#include <algorithm>
#include <cmath>
#include <thread>

#include "device.h"
#include "golden.h"

namespace autotune_conv2d {
#define REFERENCE_FUNCTION inline
#include "reference.cuh"
}  // namespace autotune_conv2d

using namespace autotune_conv2d;

namespace {

constexpr int PASSES = 4;  // of each of two threads that run at once

// ---- numbers as they are stored ----

double rounded(double value, int bits, int least_exponent) {  // to nearest, ties to even
    int exponent = 0;
    std::frexp(value, &exponent);
    const double unit = std::ldexp(1.0, std::max(exponent, least_exponent) - bits);
    return std::nearbyint(value / unit) * unit;
}

double as_stored(double value, int32_t dtype) {
    if (dtype == CONV2D_F32) return static_cast<double>(static_cast<float>(value));
    return dtype == CONV2D_F16 ? rounded(value, 11, -13) : rounded(value, 8, -125);
}

double least_rounding(int32_t dtype) {  // half of the smallest number above 0, where test data come near that
    return dtype == CONV2D_F16 ? std::ldexp(1.0, -25) : 0.0;
}

uint16_t half_bits(double value) {  // of a value that a half holds
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const double size = std::fabs(value);
    if (size < std::ldexp(1.0, -14)) return static_cast<uint16_t>(sign | static_cast<uint16_t>(std::ldexp(size, 24)));
    int exponent = 0;
    const double fraction = std::frexp(size, &exponent);
    return static_cast<uint16_t>(sign | (exponent + 14) << 10 | static_cast<uint16_t>((2.0 * fraction - 1.0) * 1024.0));
}

double half_value(uint16_t bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double size = exponent == 0    ? std::ldexp(fraction, -24)
                        : exponent == 31 ? (fraction ? NAN : INFINITY)
                                         : std::ldexp(1024 + fraction, exponent - 25);
    return bits & 0x8000 ? -size : size;
}

std::vector<unsigned char> encode(const std::vector<double> &values, int32_t dtype) {
    const size_t size = dtype == CONV2D_F32 ? 4 : 2;
    std::vector<unsigned char> bytes(size * values.size());
    for (size_t i = 0; i < values.size(); ++i) {
        const float value = static_cast<float>(values[i]);
        uint32_t image = 0;
        std::memcpy(&image, &value, sizeof image);
        const uint16_t narrow = dtype == CONV2D_F16 ? half_bits(values[i]) : static_cast<uint16_t>(image >> 16);
        std::memcpy(&bytes[size * i], dtype == CONV2D_F32 ? static_cast<void const *>(&image) : &narrow, size);
    }
    return bytes;
}

std::vector<double> decode(const std::vector<unsigned char> &bytes, int32_t dtype) {
    const size_t size = dtype == CONV2D_F32 ? 4 : 2;
    std::vector<double> values(bytes.size() / size);
    for (size_t i = 0; i < values.size(); ++i) {
        uint32_t image = 0;
        uint16_t narrow = 0;
        float value = 0.0f;
        if (dtype == CONV2D_F32) {
            std::memcpy(&value, &bytes[4 * i], 4);
        } else {
            std::memcpy(&narrow, &bytes[2 * i], 2);
            image = uint32_t{narrow} << 16;
            std::memcpy(&value, &image, 4);
        }
        values[i] = dtype == CONV2D_F16 ? half_value(narrow) : static_cast<double>(value);
    }
    return values;
}

// ---- data ----

uint64_t mixed(uint64_t value) {  // splitmix64
    value += 0x9E3779B97F4A7C15u;
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9u;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBu;
    return value ^ (value >> 31);
}

std::vector<double> integers(int64_t count, uint64_t seed, int least, int span) {
    std::vector<double> values(static_cast<size_t>(count));
    for (size_t i = 0; i < values.size(); ++i)
        values[i] = least + static_cast<int>((mixed((seed << 40) + i) >> 33) % static_cast<uint64_t>(span));
    return values;
}

// Sums of twelve uniform numbers: close to normal, and the same on every machine.
std::vector<double> normal(int64_t count, uint64_t seed, int32_t dtype) {
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

// Of the inputs that a problem has.
Data data_of(const conv2d_problem &problem, bool whole) {
    Data data;
    const Problem layer(problem);
    for (int i = 0; i < ARRAYS; ++i) {
        const Declared &array = DECLARED[i];
        if (i == OUTPUT || !array.is_in(layer)) continue;
        const int64_t count = array.elements(layer).value();
        const uint64_t seed = static_cast<uint64_t>(i);
        data.of[i] = whole ? integers(count, seed, array.least, array.span) : normal(count, seed, problem.dtype);
    }
    return data;
}

// Outputs in double precision, and the sums of their products' magnitudes.
struct Reference {
    std::vector<double> value, magnitude;
};

Reference reference(const conv2d_problem &problem, const Data &data) {
    const PlainProblem plain(problem);
    const double *addresses[ARRAYS];
    for (int i = 0; i < ARRAYS; ++i) addresses[i] = data.of[i].data();
    const Inputs inputs = inputs_of(addresses);
    const size_t outputs = static_cast<size_t>(DECLARED[OUTPUT].elements(Problem(problem)).value());
    Reference found;
    for (size_t i = 0; i < outputs; ++i) {
        const Output output = reference_output(plain, inputs, static_cast<long long>(i));
        found.value.push_back(output.value);
        found.magnitude.push_back(output.magnitude);
    }
    return found;
}

// ---- a kernel's test ----

// One data set of a kernel on the device, with what must come out.
struct Case {
    Case(const conv2d_problem &tested, const Golden &wanted, bool integers)
        : problem(tested),
          golden(wanted),
          whole(integers),
          data(data_of(problem, whole)),
          expected(reference(problem, data)),
          arrays(problem) {
        for (int i = 0; i < ARRAYS; ++i)
            if (i != OUTPUT && arrays.at(i)) arrays.at(i)->write(encode(data.of[i], problem.dtype));
        for (int i = 0; i < golden.samples; ++i) {
            const Sample &sample = (whole ? golden.integers : golden.normal)[i];
            const size_t at = static_cast<size_t>(sample.index);
            if (!(std::fabs(expected.value[at] - sample.value) <= 1e-12 * expected.magnitude[at]))
                stop(std::string(golden.kernel) + ": this machine's reference differs from the golden values");
        }
    }

    const conv2d_problem problem;
    const Golden &golden;
    const bool whole;
    const Data data;
    const Reference expected;
    const Arrays arrays;

    // Arguments of a pass into y, and of one that prepares.
    conv2d_arguments into(const Array &y, const Array &workspace) const {
        conv2d_arguments made = arrays.with(workspace);
        Arrays::set(made, OUTPUT, y.pointer());
        return made;
    }
    conv2d_arguments prepared() const { return arrays.with(Array(0)); }

    // Stop unless the first images of an output are right; the largest error as a fraction of the bound.
    double judge(const Array &y, const char *how) const {
        const std::vector<double> found = decode(y.read(), problem.dtype);
        const PlainProblem plain(problem);
        double worst = 0.0;
        for (size_t i = 0; i < found.size(); ++i) {
            const double exact = expected.value[i];
            const double own = activation_error(plain, exact, expected.magnitude[i]);
            const bool exact_sum = whole && golden.exact_on_integers, equal = exact_sum && own == 0.0;
            const double wanted = equal ? as_stored(exact, problem.dtype) : exact;
            const double rounded = own + std::max(golden.rounding * std::fabs(exact), least_rounding(problem.dtype));
            const double bound = equal ? 0.0 : (exact_sum ? 0.0 : golden.factor * expected.magnitude[i]) + rounded;
            const double error = std::fabs(found[i] - wanted);
            if (!(error <= bound))
                stop(std::string(golden.kernel) + ": WRONG on " + (whole ? "integers" : "normal data") + ", " + how +
                     ": output " + std::to_string(i) + " is " + std::to_string(found[i]) + ", not " +
                     std::to_string(wanted));
            if (bound > 0.0) worst = std::max(worst, error / bound);
        }
        return worst;
    }
};

class Handle {
public:
    // For the number of images that a kernel was tuned at, so that it is the one which serves.
    Handle(const Case &with, const conv2d_kernel &kernel) {
        const conv2d_arguments arguments = with.prepared();
        expect(conv2d_prepare(&kernel.problem, &arguments, nullptr, &handle_), "conv2d_prepare");
        expect(driver().cuCtxSynchronize(), "cuCtxSynchronize");
        if (std::strcmp(conv2d_handle_kernel_name(handle_), kernel.name) != 0)
            stop(std::string(kernel.name) + ": " + conv2d_handle_kernel_name(handle_) + " serves its problem");
    }
    ~Handle() { expect(conv2d_release(handle_), "conv2d_release"); }
    Handle(const Handle &) = delete;

    // Bytes of workspace of a pass over n images.
    uint64_t workspace_bytes(int32_t n) const {
        uint64_t bytes = 0;
        expect(conv2d_handle_workspace_size(handle_, n, &bytes), "conv2d_handle_workspace_size");
        return bytes;
    }

    // Enqueue a pass over the first n images.
    void run(const Case &on, int32_t n, const Array &y, const Array &workspace, conv2d_stream stream) const {
        const conv2d_arguments arguments = on.into(y, workspace);
        expect(conv2d_run(handle_, n, &arguments, stream), "conv2d_run");
    }

private:
    conv2d_handle *handle_ = nullptr;
};

size_t output_bytes(const conv2d_problem &p, int32_t n) {
    conv2d_problem of_n = p;
    of_n.n = n;
    return size_bytes(DECLARED[OUTPUT], Problem(of_n));
}

// Bytes of workspace of a pass in one call.
uint64_t workspace_bytes(const conv2d_problem &problem) {
    uint64_t bytes = 0;
    expect(conv2d_workspace_size(&problem, &bytes), "conv2d_workspace_size");
    return bytes;
}

// Whether one call runs this kernel: for so few images it may be that of a smaller n, and of another accuracy class.
bool serves(const conv2d_kernel &kernel, const conv2d_problem &problem) {
    const char *const name = conv2d_kernel_name(&problem);
    return name && std::strcmp(name, kernel.name) == 0;
}

// Enqueue a pass in one call.
void forward(const Case &on, const Array &y, const Array &workspace, CUstream stream) {
    const conv2d_arguments arguments = on.into(y, workspace);
    expect(conv2d_forward(&on.problem, &arguments, stream), "conv2d_forward");
}

// Enqueue passes of two cases, whose filters differ, at once: each on a thread and a stream of its own.
template <class Pass>
void at_once(const Case (&cases)[2], size_t workspace_bytes, CUcontext context, const char *how, Pass pass) {
    const conv2d_problem &problem = cases[0].problem;
    const Array ys[2] = {Array(output_bytes(problem, problem.n)), Array(output_bytes(problem, problem.n))};
    std::thread threads[2];
    for (int i = 0; i < 2; ++i)
        threads[i] = std::thread([&, i] {
            expect(driver().cuCtxSetCurrent(context), "cuCtxSetCurrent");
            CUstream stream = nullptr;
            expect(driver().cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
            const Array workspace(workspace_bytes);
            for (int count = 0; count < PASSES; ++count) pass(i, ys[i], workspace, stream);
            expect(driver().cuStreamSynchronize(stream), "a kernel");
            expect(driver().cuStreamDestroy(stream), "cuStreamDestroy");
        });
    for (std::thread &thread : threads) thread.join();
    for (int i = 0; i < 2; ++i) cases[i].judge(ys[i], how);
}

void test_kernel(const Golden &golden, const conv2d_kernel &kernel, CUcontext context) {
    conv2d_problem problem = kernel.problem;
    problem.n = golden.n;
    const Case cases[2] = {{problem, golden, true}, {problem, golden, false}};
    const Handle handles[2] = {Handle(cases[0], kernel), Handle(cases[1], kernel)};
    const bool in_one_call = serves(kernel, problem);
    const size_t most = handles[0].workspace_bytes(golden.n);
    double worst = 0.0;
    if (in_one_call)  // before any other call, so that both find the kernel not loaded yet
        at_once(cases, most, context, "two calls at once",
                [&](int i, const Array &y, const Array &workspace, CUstream stream) {
                    forward(cases[i], y, workspace, stream);
                });
    for (int i = 0; i < 2; ++i) {
        const Case &each = cases[i];
        const Handle &handle = handles[i];
        for (const int32_t n : {golden.n, 1}) {
            const Array y(output_bytes(problem, n)), workspace(handle.workspace_bytes(n));
            handle.run(each, n, y, workspace, nullptr);
            workspace.read();  // stops when something was written behind it
            worst = std::max(worst, each.judge(y, n == 1 ? "one image" : "with a handle"));
        }
        const Array y(output_bytes(problem, golden.n)), workspace(most);
        if (in_one_call) {
            forward(each, y, workspace, nullptr);
            each.judge(y, "in one call");
            y.poison();
        }
        expect(driver().cuCtxSetCurrent(nullptr), "cuCtxSetCurrent");
        handle.run(each, golden.n, y, workspace, nullptr);
        expect(driver().cuCtxSetCurrent(context), "cuCtxSetCurrent");
        each.judge(y, "without a current context");
    }
    at_once(cases, most, context, "two handles at once", [&](int i, const Array &y, const Array &workspace, CUstream stream) {
        handles[i].run(cases[i], golden.n, y, workspace, stream);
    });
    const bool exact = activation_error(PlainProblem(problem), 1.0, 1.0) == 0.0;
    std::printf("%s: right at n = %d and 1; largest error %.3f of the bound%s\n", golden.kernel, golden.n, worst,
                !golden.exact_on_integers ? "" : exact ? ", integers exact" : ", sums of integers exact");
}

// Whether a kernel is for the current device.
bool runs_here(const conv2d_kernel &kernel) {
    conv2d_problem problem = kernel.problem;
    problem.n = 1;
    const Arrays arrays(problem);
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
    conv2d_problem problem = kernel.problem;
    problem.n = golden.n;
    const Case here(problem, golden, true);
    const Handle handle(here, kernel);
    const Array y(output_bytes(problem, golden.n)), workspace(handle.workspace_bytes(golden.n));
    enter(second);
    {
        const Case there(problem, golden, false);
        const Handle other(there, kernel);
        const Array other_y(output_bytes(problem, golden.n)), other_workspace(other.workspace_bytes(golden.n));
        handle.run(here, golden.n, y, workspace, nullptr);
        other.run(there, golden.n, other_y, other_workspace, nullptr);
        there.judge(other_y, "on the second device");
        if (serves(kernel, problem)) {
            forward(there, other_y, other_workspace, nullptr);
            there.judge(other_y, "in one call on the second device");
        }
    }
    enter(first);
    here.judge(y, "while the second device is current");
    std::printf("two devices: right\n");
}

void test_refusal(conv2d_status found, conv2d_status wanted, const char *what) {
    if (found != wanted)
        stop(std::string("refusals: ") + what + ": status " + std::to_string(found) + " (" + conv2d_status_text(found) +
             "), not " + std::to_string(wanted));
}

void test_refusals(const Golden &golden, const conv2d_kernel &kernel, CUcontext context) {
    conv2d_problem problem = kernel.problem;
    problem.n = golden.n;
    const Case good(problem, golden, true);
    const Array y(output_bytes(problem, golden.n));
    const uint64_t bytes = workspace_bytes(problem);
    const Array workspace(bytes);
    conv2d_arguments arguments = good.into(y, workspace);
    const auto call = [&](const conv2d_problem *asked, const conv2d_arguments &given) {
        return conv2d_forward(asked, &given, nullptr);
    };
    test_refusal(call(nullptr, arguments), CONV2D_NULL_POINTER, "no problem");
    test_refusal(conv2d_forward(&problem, nullptr, nullptr), CONV2D_NULL_POINTER, "no arguments");
    for (int i = 0; i < ARRAYS; ++i) {
        if (!good.arrays.at(i)) continue;
        conv2d_arguments lacking = arguments;
        Arrays::set(lacking, i, nullptr);
        test_refusal(call(&problem, lacking), CONV2D_NULL_POINTER, (std::string("no ") + DECLARED[i].name).c_str());
        Arrays::set(lacking, i, static_cast<char *>(good.arrays.at(i)->pointer()) + 2);
        test_refusal(call(&problem, lacking), CONV2D_MISALIGNED, (DECLARED[i].name + std::string(" off by 2")).c_str());
    }
    arguments.workspace_bytes = bytes - 1;
    if (bytes) test_refusal(call(&problem, arguments), CONV2D_SHORT_WORKSPACE, "short workspace");
    arguments.workspace_bytes = bytes;
    arguments.size_bytes = 0;
    test_refusal(call(&problem, arguments), CONV2D_BAD_ARGUMENTS, "arguments of no size");
    arguments.size_bytes = FIRST_ARRAY + sizeof(void *);  // of a header that knows the first array alone
    test_refusal(call(&problem, arguments), CONV2D_NULL_POINTER, "arguments of an older header");
    struct {
        conv2d_arguments known;
        void *later;
    } newer = {good.into(y, workspace), y.pointer()};
    newer.known.size_bytes = sizeof newer;
    test_refusal(call(&problem, newer.known), CONV2D_BAD_ARGUMENTS, "an array that the library does not know");
    arguments = good.into(y, workspace);
    conv2d_problem wrong = problem;
    wrong.n = 0;
    test_refusal(call(&wrong, arguments), CONV2D_BAD_PROBLEM, "n = 0");
    wrong = problem;
    wrong.r = problem.h + 2 * problem.pad_h + 1;
    test_refusal(call(&wrong, arguments), CONV2D_BAD_PROBLEM, "filter larger than the input");
    wrong = problem;
    wrong.h += 1000003;
    test_refusal(call(&wrong, arguments), CONV2D_UNSUPPORTED, "a shape without a kernel");
    if (conv2d_kernel_name(&wrong)) stop("refusals: a shape without a kernel has a kernel's name");
    test_refusal(conv2d_run(nullptr, 1, &arguments, nullptr), CONV2D_NULL_POINTER, "no handle");
    test_refusal(conv2d_prepare(&problem, &arguments, nullptr, nullptr), CONV2D_NULL_POINTER,
                 "nowhere to put the handle");
    conv2d_handle *handle = nullptr;
    expect(driver().cuCtxSetCurrent(nullptr), "cuCtxSetCurrent");
    test_refusal(conv2d_prepare(&problem, &arguments, nullptr, &handle), CONV2D_NO_CONTEXT, "no context");
    test_refusal(call(&problem, arguments), CONV2D_NO_CONTEXT, "no context");
    expect(driver().cuCtxSetCurrent(context), "cuCtxSetCurrent");
    std::printf("refusals: right\n");
}

}  // namespace

int main(int argc, char **argv) {
    const int ordinal = argc > 1 ? std::atoi(argv[1]) : 0;
    const CUcontext context = open_device(ordinal);
    conv2d_kernel kernel;
    int first = -1;  // of the kernels that are for this device
    for (int i = 0; conv2d_kernel_at(i, &kernel) == CONV2D_OK; ++i) {
        if (!runs_here(kernel)) {
            std::printf("%s: not tested: %s (%s)\n", kernel.name, conv2d_status_text(CONV2D_WRONG_DEVICE),
                        conv2d_last_error());
            continue;
        }
        test_kernel(GOLDEN[i], kernel, context);
        if (first < 0) first = i;
    }
    if (first < 0) stop("no kernel of this library is for this device");
    expect(conv2d_kernel_at(first, &kernel), "conv2d_kernel_at");
    test_refusals(GOLDEN[first], kernel, context);
    int devices = 0;
    expect(driver().cuDeviceGetCount(&devices), "cuDeviceGetCount");
    if (devices > 1) {
        const CUcontext other = open_device((ordinal + 1) % devices);
        const bool runs = runs_here(kernel);
        expect(driver().cuCtxSetCurrent(context), "cuCtxSetCurrent");
        if (runs)
            test_devices(GOLDEN[first], kernel, context, other);
        else
            std::printf("two devices: not tested, the other is none that %s is for\n", kernel.name);
    }
    expect(conv2d_unload(), "conv2d_unload");
    std::printf("self-test passed\n");
    return 0;
}
