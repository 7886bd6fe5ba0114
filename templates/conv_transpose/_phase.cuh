#pragma once

// An output phase: the outputs whose position is `phase` modulo the stride, on each axis. The same taps meet all of them, so a
// phase is a convolution with stride 1 of part of the filter. Needs the family's constants.

// A phase on one axis. Its output i, at i * STRIDE + phase, is under tap first_tap + m * STEP with input i + first_input - m * INPUT_STEP,
// for m from 0 to taps - 1.
template <int IN, int TAPS, int STRIDE, int PADDING, int DILATION>
struct AxisPhase {
    static constexpr int common(int a, int b) { return b == 0 ? a : common(b, a % b); }
    static constexpr int STEP = STRIDE / common(STRIDE, DILATION), INPUT_STEP = DILATION / common(STRIDE, DILATION);

    int phase, first_tap, taps, first_input;

    __device__ __forceinline__ explicit AxisPhase(int phase) : phase(phase), first_tap(0) {
        while (first_tap < STEP && (phase + PADDING - first_tap * DILATION) % STRIDE != 0) ++first_tap;
        taps = first_tap < STEP && first_tap < TAPS ? (TAPS - first_tap + STEP - 1) / STEP : 0;
        first_input = (phase + PADDING - first_tap * DILATION) / STRIDE;
    }
    __device__ __forceinline__ int tap(int m) const { return first_tap + m * STEP; }
    // The tap under which an input meets output 0; -1 where none does.
    __device__ __forceinline__ int tap_at(int input) const {
        const int at = phase + PADDING - input * STRIDE;
        return at % DILATION == 0 ? at / DILATION : -1;
    }
    __device__ __forceinline__ int output(int i) const { return i * STRIDE + phase; }
    __device__ __forceinline__ static bool inside(int input) { return static_cast<unsigned>(input) < static_cast<unsigned>(IN); }
};

// A phase on all axes.
struct Phase {
    AxisPhase<D, FILTER_D, STRIDE_D, PADDING_D, DILATION_D> d;
    AxisPhase<H, R, STRIDE_H, PADDING_H, DILATION_H> h;
    AxisPhase<W, S, STRIDE_W, PADDING_W, DILATION_W> w;

    __device__ __forceinline__ explicit Phase(int phase)
        : d(phase / (STRIDE_H * STRIDE_W)), h(phase / STRIDE_W % STRIDE_H), w(phase % STRIDE_W) {}
    __device__ __forceinline__ int taps() const { return d.taps * h.taps * w.taps; }
    // Where the phase's i-th tap is in the filter. The last axis is the fastest.
    __device__ __forceinline__ int tap(int i) const {
        return (d.tap(i / (h.taps * w.taps)) * R + h.tap(i / w.taps % h.taps)) * S + w.tap(i % w.taps);
    }
};

// An output of a phase, counted through all images.
struct Output {
    int image, d, h, w;  // among the phase's
    bool there;

    __device__ __forceinline__ Output(int at, int pixels, const Phase& phase)
        : image(at / (PHASE_O * PHASE_P * PHASE_Q)),
          d(at / (PHASE_P * PHASE_Q) % PHASE_O),
          h(at / PHASE_Q % PHASE_P),
          w(at % PHASE_Q),
          there(at < pixels && phase.d.output(d) < O && phase.h.output(h) < P && phase.w.output(w) < Q) {}

    // Its pixel in y.
    __device__ __forceinline__ long long pixel(const Phase& phase) const {
        return ((image * static_cast<long long>(O) + phase.d.output(d)) * P + phase.h.output(h)) * Q + phase.w.output(w);
    }
};
