"""load -> verify: is a kernel's output right, everywhere, every time, and does it stay inside its buffers?

Two data sets are kept on the device for a layer. On small integers every accuracy class must be exact; on normal
data the error must stay under the class's bound against a float64 reference. Before each run the output and the
workspace are poisoned with NaN, and guard bands of NaN lie before and behind every array.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from autotune.compilation.compile import Binary
from autotune.declarations import Array
from autotune.devices.device import Device, Launch, Passes, Sample
from autotune.errors import DeviceError, Rejected
from autotune.family.source import KernelSource
from autotune.measurement.diagnosis import diagnosed
from autotune.measurement.forward import LoadedKernel, Tensors
from autotune.measurement.guarded import GUARD_BYTES, OUTPUT_GUARD, POISON, GuardedArray
from autotune.measurement.numpy_reference import in_numpy, numpy_reference, values_of
from autotune.measurement.reference import reference_arguments
from autotune.problem import Problem
from autotune.trial import ErrorStats, Outcome

REFERENCE_BYTES = 256 << 20  # the most that one reference may take
_UNIT_REFERENCE_BYTES = 1 << 30  # and that of a single unit of the run-time size, such as an image
_REFERENCE_ELEMENT_BYTES = 12  # a double and a float per output
_LEAST_UNITS = 3  # that differ; with fewer, units mixed up in pairs would be equal
_PERIODS = (61, 53)  # images after which the two data sets repeat; primes, so that no power of two is a multiple
ROUNDING = {"f32": 0.0, "f16": 2.0**-11, "bf16": 2.0**-8}  # unit roundoff of the stored output
REPEATS = 2  # further runs whose bits must equal the first's
_GRID, _BLOCK = 1024, 256  # most blocks and threads of the checking kernels, which stride over their elements
_RESULTS = 5  # 64-bit words that `compare` answers in
_BANDS, _BAND_BYTES = 32, 24  # guard bands of one launch; address, words and pattern of each, 64 bits


def error_factor(accuracy: str, reduction: int) -> float:
    """The factor c of the bound |y - ref| <= c * S + rounding * |ref| for one accuracy class.

    `reduction` is L, the products summed into one output; S = conv(|x|, |w|). The statistical bounds grow with
    sqrt(L) instead of L (Higham 2002, 2.8 and 3.1).
    """
    root = math.sqrt(reduction)
    match accuracy:
        case "fp32":
            return (4 + root) * 2.0**-24
        case "fp32-3xtf32":
            return (8 + root) * 2.0**-24
        case "tf32" | "fp16":
            return 2.0**-10 * min(1.0, 8 / root)
        case "bf16":
            return 2.0**-8 * min(1.0, 8 / root)
        case "fp16-acc16":
            return (4 + root) * 2.0**-11
    raise ValueError(f"accuracy class {accuracy!r} has no bound")


def bound_factor(accuracy: str, problem: Problem) -> float:
    """What the unit of an output's error is multiplied by to bound it, for one accuracy class."""
    return error_factor(accuracy, problem.reduction) if problem.operation.bounds.model == "multilinear" else 1.0


def exact_on_integers(accuracy: str, problem: Problem) -> bool:
    """Whether integer data must give the exact result: always for sums, but for half accumulation of long ones."""
    if problem.operation.bounds.model != "multilinear":
        return problem.operation.bounds.model == "exact"
    return accuracy != "fp16-acc16" or 2 * problem.reduction + 2 <= 2048


@dataclass(frozen=True, slots=True)
class DataSet:
    """Inputs on the device and the reference of their first images."""

    inputs: Mapping[str, GuardedArray]
    """by name, in the operation's order"""
    period: int
    """images after which inputs repeat"""
    ref: int
    magnitude: int


@dataclass(frozen=True, slots=True)
class Verified:
    """A kernel that is right, and how long it took meanwhile."""

    error: ErrorStats
    runs: tuple[Sample, ...]
    """forward passes on normal data, each from a cold cache"""
    on_integers: tuple[Sample, ...]
    """a forward pass on integers, from a cold cache, if there was one"""


def data_bytes(problem: Problem) -> int:
    """What a Verifier takes at most, without copies: two sets of arrays, and their references."""
    reference = _REFERENCE_ELEMENT_BYTES * problem.output.elements
    most = max(REFERENCE_BYTES, _LEAST_UNITS * reference // problem.runtime_size)
    return 2 * (problem.tensor_bytes + min(most, reference))


class Verifier:
    """A layer's data sets and references on one device, made once and used for every kernel of the layer."""

    def __init__(self, device: Device, problem: Problem, check: Binary) -> None:
        self.device = device
        self.problem = problem
        self._module = device.load(check)
        self._result = device.allocate(max(_RESULTS, 2 * len(problem.inputs)) * 8)
        self._bands = device.allocate(_BANDS * _BAND_BYTES)
        self._owned: list[int] = [self._result, self._bands]
        self._arrays: list[GuardedArray] = []
        self._copies: list[Tensors] = []
        outputs = max(1, problem.output.elements // problem.runtime_size)
        most = REFERENCE_BYTES // (_REFERENCE_ELEMENT_BYTES * outputs)
        if _REFERENCE_ELEMENT_BYTES * outputs > _UNIT_REFERENCE_BYTES:
            what = f"the reference for {problem.operation.runtime} = 1 exceeds {_UNIT_REFERENCE_BYTES >> 20} MB"
            raise DeviceError(f"{problem}: {what}; make it smaller")
        most = max(most, _LEAST_UNITS)
        self.y = self._array(problem.output, guard=OUTPUT_GUARD)
        self.integers = self._data_set(_period(problem, most, _PERIODS[1]), integers=True)
        self.normal = self._data_set(_period(problem, most, _PERIODS[0]), integers=False)
        self._inputs = self._input_hashes()

    def tensors(self, data: DataSet, packed_w: int = 0, workspace: int = 0) -> Tensors:
        """Addresses to run a kernel on one data set."""
        arrays = {name: array.address for name, array in (*data.inputs.items(), (self.y.name, self.y))}
        return Tensors(arrays, packed_w, workspace)

    def verify(
        self,
        kernel: LoadedKernel,
        workspace: GuardedArray,
        packed_w: GuardedArray,
        repeat: Callable[[float], bool] = lambda _: True,
    ) -> Verified:
        """Run and compare the kernel on normal data, twice more for the same bits, then on integers.

        `repeat`, given the microseconds of the first run, says whether the rest is worth it: a kernel that will never
        be chosen is known to be right within its bound everywhere by then.
        Raises Rejected('correctness', oob_write | unwritten | wrong | inexact | nondeterministic | input_overwritten).
        """

        def outputs() -> tuple[int, ...]:
            self._run(kernel, self.normal, workspace, packed_w)
            return self._hashes(self.y)

        try:
            return self._verify(kernel, workspace, packed_w, repeat)
        except Rejected as rejected:
            again = partial(self._verify, kernel, workspace, packed_w, lambda _: True)
            raise diagnosed(self.device, rejected, verify=again, outputs=outputs) from None

    def _verify(
        self,
        kernel: LoadedKernel,
        workspace: GuardedArray,
        packed_w: GuardedArray,
        repeat: Callable[[float], bool],
    ) -> Verified:
        source = kernel.source
        runs = [self._run(kernel, self.normal, workspace, packed_w)]
        error = self.judge(self.normal, source, (workspace, packed_w))
        if not repeat(runs[0].us):
            return Verified(error, tuple(runs), ())
        if source.deterministic:
            first = self._hashes(self.y)
            for _ in range(REPEATS):
                runs.append(self._run(kernel, self.normal, workspace, packed_w, prepare=False))
                if self._hashes(self.y) != first:
                    message = "two runs on the same data gave different bits, but the template says deterministic"
                    raise Rejected(Outcome.CORRECTNESS, "nondeterministic", message)
        on_integers: list[Sample] = []
        if exact_on_integers(source.accuracy, self.problem):
            on_integers.append(self._run(kernel, self.integers, workspace, packed_w))
            self.judge(self.integers, source, (workspace, packed_w))
        return Verified(error, tuple(runs), tuple(on_integers))

    def copies(self, count: int) -> tuple[Tensors, ...]:
        """The normal data so many times, each with an output of its own, for passes that must not share a cache."""
        while len(self._copies) < count:
            addresses = {}
            for array in (*self.normal.inputs.values(), self.y):
                addresses[array.name] = self.device.allocate(array.size_bytes)
                self._owned.append(addresses[array.name])
                self.device.copy(addresses[array.name], array.address, array.size_bytes)
            self._copies.append(Tensors(addresses))
        return tuple(self._copies[:count])

    def judge(self, data: DataSet, source: KernelSource, arrays: Sequence[GuardedArray] = ()) -> ErrorStats:
        """Check all guards, the inputs, and every output in y, which the caller had made from one data set."""
        self._check_guards([*self._arrays, *arrays])
        self._check_inputs()
        return self._compare(data, source, self.y.address, exact=data is self.integers and source.error_factor == 1)

    def still_right(self, source: KernelSource, y: int, rerun: Callable[[], object]) -> None:
        """Whether a kernel that was right is so after its timing: run again on normal data, with its output at y.

        `rerun` makes the passes that a sample is made of, on arrays of which the one at y was poisoned before.
        Raises Rejected('correctness', 'wrong_after_timing').
        """
        self.device.fill(y, POISON, self.y.size_bytes)
        rerun()
        try:
            self._compare(self.normal, source, y, exact=False)
        except Rejected as rejected:
            message = f"right when verified, and wrong after it was timed: {rejected.message}"
            raise Rejected(Outcome.CORRECTNESS, "wrong_after_timing", message) from None

    def _check_inputs(self) -> None:
        hashes = self._input_hashes()
        if hashes != self._inputs:
            self._fill(self.integers, integers=True)
            self._fill(self.normal, integers=False)
            names = (array.name for data in (self.integers, self.normal) for array in data.inputs.values())
            changed = [name for name, one, other in zip(names, hashes, self._inputs, strict=True) if one != other]
            message = f"the kernel changed {', '.join(dict.fromkeys(changed))}, which it must only read"
            raise Rejected(Outcome.CORRECTNESS, "input_overwritten", message)

    def close(self) -> None:
        """Free everything."""
        for array in self._arrays:
            array.free()
        for address in self._owned:
            self.device.free(address)
        self._module.unload()

    def _array(self, declared: Array, *, guard: int = POISON) -> GuardedArray:
        array = GuardedArray(self.device, declared.name, declared.size_bytes, guard=guard)
        self._arrays.append(array)
        return array

    def _data_set(self, period: int, *, integers: bool) -> DataSet:
        problem = self.problem
        outputs = problem.with_runtime(period).output.elements
        ref, magnitude = self.device.allocate(8 * outputs), self.device.allocate(4 * outputs)
        self._owned += [ref, magnitude]
        inputs = {array.name: self._array(array) for array in problem.inputs}
        data = DataSet(inputs, period, ref, magnitude)
        self._fill(data, integers=integers)
        if in_numpy(problem.operation):
            self._compute(data)
            return data
        self._launch(
            "reference", outputs, *reference_arguments(problem.operation, self.tensors(data), ref, magnitude, outputs)
        )
        self.device.synchronize()
        return data

    def _compute(self, data: DataSet) -> None:
        """The reference of the first units on the host, where the operation has it in numpy."""
        some = self.problem.with_runtime(data.period)
        inputs = {
            array.name: values_of(self.device.read(data.inputs[array.name].address, array.size_bytes), array.dtype)
            for array in some.inputs
        }
        value, unit = numpy_reference(some, inputs)
        self.device.write(data.ref, value.tobytes())
        self.device.write(data.magnitude, unit.astype(np.float32).tobytes())

    def _fill(self, data: DataSet, *, integers: bool) -> None:
        problem = self.problem
        some = problem.with_runtime(data.period)
        for array in problem.inputs:
            elements, seed = array.elements, problem.operation.seed(array.name)
            period = some.array(array.name).elements
            address = np.uint64(data.inputs[array.name].address)
            counts = (address, np.int64(elements), np.int64(period), np.uint64(seed << 40))
            if integers:
                span = array.most - array.least + 1
                self._launch("fill_integers", elements, *counts, np.int32(array.least), np.int32(span))
            else:
                self._launch("fill_normal", elements, *counts, np.float32(1.0))

    def _run(
        self,
        kernel: LoadedKernel,
        data: DataSet,
        workspace: GuardedArray,
        packed_w: GuardedArray,
        *,
        prepare: bool = True,
    ) -> Sample:
        """Poison, prepare and run once, from a cold cache."""
        tensors = self.tensors(data, packed_w.address, workspace.address)
        self.y.poison()
        workspace.poison()
        if prepare:
            packed_w.poison()
            kernel.prepare(tensors)
        launches = kernel.forward(tensors)
        sample = self.device.time(Passes(lambda: kernel.run(launches)), cold=True)
        self.device.synchronize()
        return sample

    def _compare(self, data: DataSet, source: KernelSource, y: int, *, exact: bool) -> ErrorStats:
        problem = self.problem
        exact = exact or problem.operation.bounds.model == "exact"
        factor = -1.0 if exact else source.error_factor * bound_factor(source.accuracy, problem)
        self.device.write(self._result, struct.pack("<QQQQQ", 0, 0, 2**64 - 1, 0, 0))
        outputs = problem.output.elements
        period_outputs = problem.with_runtime(data.period).output.elements
        self._launch(
            "compare",
            period_outputs,
            *map(np.uint64, (y, data.ref, data.magnitude)),
            np.int64(outputs),
            np.int64(period_outputs),
            np.float64(factor),
            np.float64(ROUNDING[problem.dtype]),
            np.uint64(self._result),
        )
        self.device.synchronize()
        found = self.device.read(self._result, 5 * 8)
        wrong, unwritten, first = struct.unpack("<QQQ", found[:24])
        over_bound, max_abs = struct.unpack("<dd", found[24:])
        if unwritten:
            message = (
                f"{unwritten} of {outputs} outputs were never written, or come from memory that was not, "
                f"the first {self._place(first)}"
            )
            raise Rejected(Outcome.CORRECTNESS, "unwritten", message)
        if wrong:
            reason = "inexact" if exact else "wrong"
            kind = "integer" if exact else "normal"
            message = (
                f"{wrong} of {outputs} outputs are wrong on {kind} data, the first {self._place(first)}; "
                f"largest error {max_abs:.3g}"
            )
            raise Rejected(Outcome.CORRECTNESS, reason, message if exact else f"{message}, {over_bound:.3g} x bound")
        return ErrorStats(over_bound, max_abs)

    def _place(self, flat: int) -> str:
        """An output's index in words."""
        output = self.problem.output
        place = np.unravel_index(flat, output.shape)
        return "at " + ", ".join(f"{axis} = {int(at)}" for axis, at in zip(output.axes, place, strict=True))

    def _check_guards(self, arrays: list[GuardedArray]) -> None:
        self.device.fill(self._result, 0, 8)
        bands = [
            struct.pack("<QqQ", address, size_bytes // 4, array.guard * 0x01010101)
            for array in arrays
            for address, size_bytes in array.guards
        ]
        for start in range(0, len(bands), _BANDS):
            some = bands[start : start + _BANDS]
            self.device.write(self._bands, b"".join(some))
            words = (np.uint64(self._bands), np.uint64(self._result))
            self._launch("count_changed", GUARD_BYTES // 4, *words, rows=len(some))
        self.device.synchronize()
        (changed,) = struct.unpack("<Q", self.device.read(self._result, 8))
        changed += sum(array.tail_changed() for array in arrays)
        if changed:
            where = "; ".join(words for array in arrays for words in array.overwritten())
            for array in arrays:
                array.fill_guards()
            raise Rejected(Outcome.CORRECTNESS, "oob_write", f"overwrites {where}")

    def _hashes(self, *arrays: GuardedArray) -> tuple[int, ...]:
        """A hash of each array, no more than both data sets have."""
        self.device.fill(self._result, 0, 8 * len(arrays))
        for place, array in enumerate(arrays):
            words = -(-array.size_bytes // 4)  # the last may reach into the guard, which has been checked
            result = np.uint64(self._result + 8 * place)
            self._launch("hash_words", words, np.uint64(array.address), np.int64(words), result)
        self.device.synchronize()
        return struct.unpack(f"<{len(arrays)}Q", self.device.read(self._result, 8 * len(arrays)))

    def _input_hashes(self) -> tuple[int, ...]:
        return self._hashes(*(array for array in self._arrays if array is not self.y))

    def _launch(self, entry: str, elements: int, *args: np.generic, rows: int = 1) -> None:
        blocks = min(_GRID, max(1, -(-elements // _BLOCK)))
        self._module.launch(Launch(entry, (blocks, rows, 1), (_BLOCK, 1, 1), 0, args))


def _period(problem: Problem, most: int, prime: int) -> int:
    """Images that differ: all of them when that is few, else the largest prime that is at most `most` and `prime`.

    All of them, too, where each needs others. Raises DeviceError when that is too many.
    """
    n, limit = problem.runtime_size, min(most, prime)
    if not problem.operation.independent:
        if n > most:
            raise DeviceError(
                f"{problem}: its reference exceeds {REFERENCE_BYTES >> 20} MB; "
                f"make {problem.operation.runtime} at most {most}"
            )
        return n
    if n <= limit:
        return n
    return next((size for size in range(limit, 1, -1) if all(size % d for d in range(2, size))), 1)
