"""A correct small family and the faults that tests plant in it, each with its expected result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from autotune.problem import Conv2dProblem

DATA = Path(__file__).parent / "data" / "templates"
GOOD = DATA / "shared_tile.cu.j2"
RAGGED = Conv2dProblem(3, 2, 19, 21, 3, 3, 3, pad_h=1, pad_w=1, epilogue="bias")
"""Images, rows and columns that no block of the family divides, and padding."""

INEXACT, WRONG, UNWRITTEN = "wrong_result/inexact", "wrong_result/wrong", "wrong_result/unwritten"
OOB_WRITE, ILLEGAL = "wrong_result/oob_write", "runtime/illegal_address"
# A sum that includes unwritten memory is NaN. Some processors keep a NaN's bits; then the output looks unwritten.
READ_POISON = (WRONG, UNWRITTEN)


@dataclass(frozen=True, slots=True)
class Fault:
    """Replacements in the correct family's text, and the acceptable results as `outcome/reason`."""

    name: str
    edits: tuple[tuple[str, str], ...]
    host: tuple[str, ...]
    """empty: the host device cannot detect this fault"""
    cuda: tuple[str, ...]
    """empty: a GPU may run it without an error"""
    checked: tuple[str, ...] = ()
    """on `host:check`, for a fault that the host device does not detect, or that has another result there"""

    @property
    def text(self) -> str:
        """The family's text with the fault in it."""
        text = GOOD.read_text(encoding="utf-8")
        for old, new in self.edits:
            if text.count(old) != 1:
                raise ValueError(f"{self.name}: {old!r} occurs {text.count(old)} times in {GOOD.name}")
            text = text.replace(old, new)
        return text


_STORE = "            if (p < P && q < Q) y["
_END = "    }\n}\n"
_X_ELEMENTS = "static_cast<long long>(n) * C * H * W"
_FIRST_THREAD = "threadIdx.x + threadIdx.y + blockIdx.x + blockIdx.y + blockIdx.z == 0"


_PREPARE = """[packed_w]
bytes = "4 * k"

[constant]
packed = { from = "packed_w" }

[[prepare]]
entry = "pack"
args  = ["w", "packed_w"]
block = ["k", "1", "1"]
grid  = ["1", "1", "1"]

[[stage]]"""
_PACK = """__constant__ float packed[K];

extern "C" __global__ void pack(const float* w, float* packed_w) {
    packed_w[threadIdx.x] = w[threadIdx.x];
    *reinterpret_cast<volatile int*>(8ll * blockDim.x) = 1;
}

extern "C" __global__ void __launch_bounds__(THREADS)"""


COMPILER_NEVER_ENDS = "PLANTED: the compiler never ends"
COMPILER_IS_KILLED = "PLANTED: the compiler is killed"
COMPILE_WORKER_IS_KILLED = "PLANTED: the compiler's parent is killed"
WORKER_IS_KILLED = "PLANTED: the worker is killed from outside"
PLANTED_COMPILER = f"""#!/bin/sh
# A compiler that treats some programs badly, and hands the others on.
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
text="$here/text"
program=
for word; do
    case "$word" in
        -) program=stdin; cat > "$text" ;;
        *.cu) program="$word"; cp "$word" "$text" ;;
    esac
done
if [ -n "$program" ]; then
    grep -q "{COMPILER_NEVER_ENDS}" "$text" && {{ rm -rf "$here"; sleep 1000; }}
    grep -q "{COMPILER_IS_KILLED}" "$text" && {{ rm -rf "$here"; kill -9 $$; }}
    grep -q "{COMPILE_WORKER_IS_KILLED}" "$text" && {{ rm -rf "$here"; kill -9 $PPID; sleep 1000; }}
fi
if [ "$program" = stdin ]; then "$PLANTED_COMPILER" "$@" < "$text"; else "$PLANTED_COMPILER" "$@"; fi
"""
"""It needs the real compiler's path in $PLANTED_COMPILER."""


def _noted(words: str) -> tuple[tuple[str, str], ...]:
    """A comment in the program."""
    kernel = 'extern "C" __global__ void __launch_bounds__(THREADS)'
    return ((kernel, f"// {words}\n{kernel}"),)


def _once(statement: str) -> tuple[tuple[str, str], ...]:
    """Let one thread of the launch run a statement at its end."""
    return ((_END, f"    }}\n    if ({_FIRST_THREAD}) {{ {statement} }}\n}}\n"),)


def _same(name: str, edits: tuple[tuple[str, str], ...], *endings: str) -> Fault:
    return Fault(name, edits, endings, endings)


FAULTS: Mapping[str, Fault] = {
    fault.name: fault
    for fault in (
        # Barriers
        Fault(
            "no_barrier_before_use",
            (("                __syncthreads();  // the tile is complete\n", ""),),
            READ_POISON,
            (WRONG, UNWRITTEN, "wrong_result/nondeterministic"),
        ),
        Fault(
            "no_barrier_before_overwrite",
            (("                __syncthreads();  // every thread has used the tile before\n", ""),),
            READ_POISON,
            (),
        ),
        Fault(
            "no_barrier_after_first_thread",  # which runs first if threads run in ascending order
            (
                ("    const int thread =", "    __shared__ float one;\n    const int thread ="),
                (
                    "    for (int i = 0; i < IMAGES",
                    "    if (thread == 0) one = n > 0 ? 1.0f : 2.0f;\n    for (int i = 0; i < IMAGES",
                ),
                ("float sum = 0.0f;", "float sum = 0.0f * one;"),
            ),
            (WRONG, UNWRITTEN, "wrong_result/nondeterministic"),
            (),
            checked=("runtime/race",),
        ),
        Fault(
            "divergent_barrier",
            (("__syncthreads();  // the tile is complete", "if (thread != 5) __syncthreads();"),),
            ("runtime/deadlock", *READ_POISON),
            (),
        ),
        # Edges
        _same("no_guard_on_store", (("if (p < P && q < Q) y[", "y["),), OOB_WRITE),
        Fault(
            "no_guard_on_load",
            (("row >= 0 && row < H && column >= 0 && column < W;", "row < 2 * H;"),),
            READ_POISON,
            (WRONG, UNWRITTEN),
        ),
        Fault(
            "read_only_load_of_an_output",
            (
                (_STORE, "            float* const at = p < P && q < Q ? &y["),
                (
                    "* P + p) * Q + q] = sum;",
                    "* P + p) * Q + q] : nullptr;\n if (at) *at = sum, *at = __ldg(at);",
                ),
            ),
            (),
            (),
            checked=("runtime/race",),
        ),
        Fault(
            "unused_load_behind_array",
            _once(f"static_cast<const volatile float*>(x)[{_X_ELEMENTS} + 5];"),
            (),
            (),
            checked=("runtime/oob_read",),
        ),
        Fault(
            "no_zero_in_padding",
            (("tile[at] = inside ? x[", "if (inside) tile[at] = x["), (" : 0.0f;", ";")),
            READ_POISON,
            (),
        ),
        _same("no_guard_on_images", (("        if (image >= n) break;\n", ""),), OOB_WRITE),
        _same("too_few_blocks_for_images", (("ceil_div(n, images)", "max(1, n // images)"),), UNWRITTEN),
        # Stores
        _same("store_before_array", _once("y[-1] = 1.0f;"), OOB_WRITE),
        _same("store_behind_array", _once("y[static_cast<long long>(n) * K * P * Q] = 1.0f;"), OOB_WRITE),
        _same("store_before_filters", _once("const_cast<float*>(w)[-3] = 1.0f;"), OOB_WRITE),
        _same("store_far_away", _once("y[1ll << 40] = 1.0f;"), ILLEGAL),
        _same("short_row", (("q < Q) y[", "q < Q - 1) y["),), UNWRITTEN),
        _same("forgotten_map", (("for (int k = 0; k < K; ++k)", "for (int k = 0; k < K - 1; ++k)"),), UNWRITTEN),
        # Indices
        _same("transposed_tap", (("* R + r) * S + s]", "* S + s) * R + r]"),), WRONG),
        _same("mirrored_taps", (("* R + r) * S + s]", "* R + R - 1 - r) * S + S - 1 - s]"),), WRONG),
        _same(
            "next_image",
            (("x[((static_cast<long long>(image)", "x[((static_cast<long long>((image + 1) % n)"),),
            WRONG,
        ),
        _same(
            "within_the_bound_only",
            (("+= w[((k * C + c) * R + r) * S + s] *", "+= (1.0f + 2.4e-7f) * w[((k * C + c) * R + r) * S + s] *"),),
            INEXACT,
        ),
        # State
        Fault(
            "reads_workspace",
            (
                ("[[stage]]", '[workspace]\nbytes = "4 * k"\n\n[[stage]]'),
                ('"bias", "y", "n"]', '"bias", "y", "workspace", "n"]'),
                ("float* y, int n)", "float* y, const float* workspace, int n)"),
                ("float sum = 0.0f;", "float sum = workspace[k];"),
            ),
            READ_POISON,
            (WRONG, UNWRITTEN),
        ),
        _same(
            "overwrites_input",
            (
                (
                    "float sum = 0.0f;",
                    "float sum = 0.0f;\n            if (i + k == 0) const_cast<float*>(x)[p * W + q] += 1.0f;",
                ),
            ),
            "wrong_result/input_overwritten",
        ),
        _same("overwrites_bias", _once("const_cast<float*>(bias)[0] = 1.0f;"), "wrong_result/input_overwritten"),
        Fault(
            "nondeterministic",
            (
                ('extern "C" __global__', '__device__ int launches;\n\nextern "C" __global__'),
                (_STORE, f"            if (launches & 1 && sum != rintf(sum)) sum += 6e-8f * sum;\n{_STORE}"),
                *_once("++launches;"),
            ),
            ("wrong_result/keeps_state",),
            ("wrong_result/nondeterministic",),
        ),
        # Ends of a process or a context
        _same("null_pointer", _once("*reinterpret_cast<volatile int*>(8ll * n) = 1;"), ILLEGAL),
        _same(
            "null_pointer_in_prepare",
            (
                ("[[stage]]", _PREPARE),
                ('extern "C" __global__ void __launch_bounds__(THREADS)', _PACK),
                ("float sum = 0.0f;", "float sum = 0.0f * packed[k];"),
            ),
            ILLEGAL,
        ),
        _same("endless_loop", _once("for (const volatile float* at = x; *at == *at;) {}"), "timeout/hang"),
        _same("trap", _once("__trap();"), "runtime/trap"),
        _same(
            "assert",
            (("constexpr int C =", "#include <cassert>\nconstexpr int C ="), *_once("assert(n < 0);")),
            "runtime/assert",
        ),
        Fault(
            "exit",
            (("constexpr int C", 'extern "C" void exit(int);\nconstexpr int C'), *_once("exit(0);")),
            ("runtime/crash",),
            (),
        ),
        Fault(
            "abort",
            (("constexpr int C", 'extern "C" void abort();\nconstexpr int C'), *_once("abort();")),
            ("runtime/crash",),
            (),
        ),
        Fault("misaligned", _once("*reinterpret_cast<double*>(y + 1) = 0.0;"), (), ("runtime/misaligned_address",)),
        Fault(
            "smem_declared_too_small",
            (("4 * tile_h * tile_w", "4"), ("TILE_W + column];", "TILE_W + column] + 0.0f * tile[50000];")),
            ("runtime/oob_write",),
            (ILLEGAL, "runtime/trap", "runtime/launch_failure"),
            checked=("runtime/oob_write",),
        ),
        # Resources
        _same(
            "static_smem",
            (
                ("    const int thread =", "    __shared__ float more[20000];\n    const int thread ="),
                (
                    "            float sum = 0.0f;",
                    "            more[n * thread] = 0.0f;\n            float sum = more[n];",
                ),
            ),
            "compile/compile_error",
        ),
        _same(
            "syntax_error",
            (("float sum = 0.0f;", "float sum = 0.0f"),),
            "compile/compile_error",
        ),
        Fault(
            "launch_beyond_bounds",
            (("__launch_bounds__(THREADS)", "__launch_bounds__(32)"),),
            ("runtime/launch_failure",),
            ("runtime/launch_failure",),
        ),
        # The compiler and the worker, from outside
        _same("compiler_never_ends", _noted(COMPILER_NEVER_ENDS), "compile/compiler_hang"),
        _same("compiler_is_killed", _noted(COMPILER_IS_KILLED), "compile/compile_error"),
        _same("compile_worker_is_killed", _noted(COMPILE_WORKER_IS_KILLED), "compile/compiler_crash"),
        _same(
            "worker_is_killed",
            (*_once("for (const volatile float* at = x; *at == *at;) {}"), *_noted(WORKER_IS_KILLED)),
            "runtime/crash",
        ),
        # A request for more memory than any device has
        _same(
            "workspace_of_terabytes",
            (
                ("[[stage]]", '[workspace]\nbytes = "1000000000000000"\n\n[[stage]]'),
                ('"bias", "y", "n"]', '"bias", "y", "workspace", "n"]'),
                ("float* y, int n)", "float* y, const float*, int n)"),
            ),
            "runtime/out_of_memory",
        ),
    )
}
