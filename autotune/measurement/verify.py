"""load -> verify: check that every output is right in every run, and that the kernel writes only to its own arrays.

A layer has several data sets on the device. On small integers, sums of products must be exact. On normal data, and on
integers if the outputs aren't sums of products, the error against a float64 reference must stay below a bound. Other
data sets contain larger, smaller and extreme numbers, NaN and infinities, provided that the operation defines what
happens to them.

Every array lies between two guard bands of NaN. Outputs, workspace and packed weights are poisoned before each run. The
first run uses NaN. Since fmaxf, fminf and atomicMax ignore NaN, the next two runs use large numbers of either sign, and
the run on integers uses ordinary numbers. In the last runs, memory keeps the values left by a run on other data. The
host device fills shared memory in the same way, and runs warps and blocks in a different order each time.
"""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from autotune.compilation.compile import Binary
from autotune.devices.device import LEFT, POISON, Device, Order, Passes, Sample, Variation
from autotune.errors import Rejected
from autotune.family.source import KernelSource
from autotune.measurement.bounds import (
    ROUNDED_OUTPUTS,
    ErrorBound,
    error_bound,
    most_error_on_integers,
    one_sided,
    too_loose,
)
from autotune.measurement.data_maker import DataMaker
from autotune.measurement.diagnosis import diagnosed
from autotune.measurement.guard_bands import OUTPUT_GUARD, GuardedArray, with_array
from autotune.measurement.launcher import LoadedKernel, Tensors
from autotune.measurement.reference import entry_of, size_arguments
from autotune.measurement.storage import decoded
from autotune.measurement.test_data import DataSet, edged, periods
from autotune.operation.declarations import Array
from autotune.operation.operation import FILE
from autotune.operation.storage_types import TYPES
from autotune.problem import Problem
from autotune.trial import ErrorStats, Outcome

_RESULTS = 6  # 64-bit words of the result of `compare`
_WORD_BYTES, _POISONED_WORDS = 8, 64  # size and number of the words that `still_right` poisons
_ANY_FINITE = ErrorBound(constant=1e30, most=1e30)  # multiplied by a tolerance
_UNWRITTEN = "outputs depend on memory that the kernel reads before anything is written there:"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The conditions of a verified run, which must not affect the kernel's outputs."""

    poison: int | None = POISON
    """byte that fills outputs, workspace and packed weights; None: memory keeps the values of the previous run"""
    order: Order | None = None
    """order of warps and blocks, if the device can choose the order; None: the device's usual order"""


FIRST = Surroundings()
REPEATS = (Surroundings(0x7B, "warps"), Surroundings(0xFB, "descending"), Surroundings(order="threads"))
"""Further runs on normal data. The bytes stand for 1.3e36 and -2.6e36 in f32 and bf16, and for 61280 and -65376 in f16.

The last run uses NaN again, to find kernels that read too early only in another order and multiply the value by 0.
"""
ON_INTEGERS = Surroundings(0x3F, "threads")
"""The run on integers. The bytes stand for 0.75 in f32 and bf16 and for 1.8 in f16 and e4m3: ordinary numbers that a
kernel can't filter out by comparing them with a limit.
"""
AFTERWARDS = Surroundings(None)
"""The last runs. Memory still contains the previous run's outputs, which are plausible but wrong for the new data."""


@dataclass(frozen=True, slots=True)
class Verified:
    """A correct kernel's errors, and its times with the device's usual order of warps and blocks."""

    error: ErrorStats
    runs: tuple[Sample, ...]
    """times of forward passes on normal data, each from a cold cache"""
    on_integers: tuple[Sample, ...]
    """time of the forward pass on integers, from a cold cache; empty if there was none"""


class Verifier:
    """Verifies one layer's kernels on one device. The data sets and references are made once for all of them."""

    def __init__(self, device: Device, problem: Problem, check: Binary) -> None:
        self.device = device
        self.problem = problem
        self._module = device.load(check)
        self._maker = maker = DataMaker(device, self._module, problem)
        self._launch = maker.launch
        self._result = maker.allocated(max(_RESULTS, (2 + len(edged(problem))) * len(problem.arrays)) * 8)
        self._copies: list[Tensors] = []
        kept = {array.name for array in problem.inputs}
        self.written = {
            array.name: maker.array(array, guard=OUTPUT_GUARD) for array in problem.arrays if array.name not in kept
        }
        self._outputs = tuple(self.written[array.name] for array in problem.outputs)
        for array in self.written.values():
            kind = TYPES[problem.array(array.name).dtype]
            poisoned = array in self._outputs and array.name not in kept and kind.is_float and kind.size_bytes > 1
            device.watch(array.address, array.size_bytes, poisoned=poisoned)
        of_normal, of_integers = periods(problem)
        self.integers = maker.data_set("integers", of_integers)
        self.normal = maker.data_set("normal", of_normal)
        self._edges = tuple(maker.data_set("edges", of_normal, edges) for edges in edged(problem))
        self._data = (self.integers, self.normal, *self._edges)
        self._inputs = self._input_hashes()

    @property
    def y(self) -> GuardedArray:
        """The first output."""
        return self._outputs[0]

    @property
    def changes_inputs(self) -> bool:
        """Whether a pass changes one of its inputs, so that the next pass computes something else."""
        return any(name in self.normal.inputs for name in self.written)

    def tensors(self, data: DataSet, packed_w: int = 0, workspace: int = 0) -> Tensors:
        """Return the addresses needed to run a kernel on a data set."""
        arrays = {name: array.address for name, array in {**data.inputs, **self.written}.items()}
        return Tensors(arrays, packed_w, workspace)

    def restore(self, data: DataSet, *, poison: int | None = POISON) -> None:
        """Restore the arrays to their state before a run.

        Arrays that the kernel changes are copied from the data set. Arrays that it only writes are poisoned, unless
        `poison` is None.
        """
        for name, array in self.written.items():
            if name in data.inputs:
                self.device.copy(array.address, data.inputs[name].address, array.size_bytes)
            elif array.size_bytes and poison is not None:
                self.device.fill(array.address, poison, array.size_bytes)

    def verify(
        self,
        kernel: LoadedKernel,
        workspace: GuardedArray,
        packed_w: GuardedArray,
        repeat: Callable[[float], bool] = lambda _: True,
        *,
        cold: bool = True,
    ) -> Verified:
        """Run the kernel and compare its outputs: on normal data, three times in other surroundings, on integers and on
        edges.

        `repeat` gets the first run's time in microseconds and returns whether to continue. A kernel that is too slow to
        be chosen needs no further verification, because all outputs of its first run were within the error bound.
        Without `cold`, the caches are not emptied, and the times are meaningless. Raises Rejected('wrong_result',
        oob_write | unwritten | wrong | inexact | nondeterministic | input_overwritten | keeps_state | too_loose).
        """
        if message := too_loose(kernel.source):
            raise Rejected(Outcome.WRONG_RESULT, "too_loose", message)

        def outputs() -> tuple[int, ...]:
            return self._outputs_of(kernel, workspace, packed_w, FIRST)

        try:
            return self._verify(kernel, workspace, packed_w, repeat, cold=cold)
        except Rejected as rejected:
            again = partial(self._verify, kernel, workspace, packed_w, lambda _: True, any_order=False)
            raise diagnosed(self.device, rejected, verify=again, outputs=outputs) from None

    def _verify(
        self,
        kernel: LoadedKernel,
        workspace: GuardedArray,
        packed_w: GuardedArray,
        repeat: Callable[[float], bool],
        *,
        cold: bool = False,
        any_order: bool = True,
    ) -> Verified:
        """Run the kernel and compare its outputs. With `any_order`, also run warps and blocks in unusual orders."""
        source = kernel.source
        run = partial(self._run, kernel, workspace=workspace, packed_w=packed_w, cold=cold)
        alone, _ = run(self.normal)
        runs = [(alone, False)]
        error = self.judge(self.normal, source, (workspace, packed_w))
        self._check_rounding(source)
        if not repeat(alone.us):
            return Verified(error, (alone,), ())
        first = self._hashes(*self._outputs)
        for surroundings in REPEATS if any_order else (replace(each, order=None) for each in REPEATS):
            runs.append(run(self.normal, surroundings))
            if not source.deterministic:
                self.judge(self.normal, source, (workspace, packed_w))
            elif self._hashes(*self._outputs) != first:
                raise self._dependence(kernel, workspace, packed_w, surroundings, first)
        own = tuple(sample for sample, varied in runs if not varied)
        last, varied = run(self.integers, ON_INTEGERS if any_order else replace(ON_INTEGERS, order=None))
        self.judge(self.integers, source, (workspace, packed_w))
        for data in self._edges or (self.normal,):
            run(data, AFTERWARDS)
            try:
                self.judge(data, source, (workspace, packed_w))
            except Rejected:
                run(data)
                self.judge(data, source, (workspace, packed_w))
                message = f"{_UNWRITTEN} they are wrong if a run on other data left its values there"
                raise Rejected(Outcome.WRONG_RESULT, "unwritten", message) from None
        return Verified(error, own, () if varied else (last,))

    def _outputs_of(
        self, kernel: LoadedKernel, workspace: GuardedArray, packed_w: GuardedArray, surroundings: Surroundings
    ) -> tuple[int, ...]:
        """Run the kernel on normal data and return a hash of each output."""
        self._run(kernel, self.normal, surroundings, workspace=workspace, packed_w=packed_w)
        return self._hashes(*self._outputs)

    def _dependence(
        self,
        kernel: LoadedKernel,
        workspace: GuardedArray,
        packed_w: GuardedArray,
        surroundings: Surroundings,
        first: tuple[int, ...],
    ) -> Rejected:
        """Find out why other surroundings change bits of the outputs, and return a rejection that says so."""
        outputs = partial(self._outputs_of, kernel, workspace, packed_w)
        if any(outputs(FIRST) != first for _ in range(2)):  # twice: the output may differ in every second run
            message = "two runs on the same data gave different bits, but the template says deterministic"
            return Rejected(Outcome.WRONG_RESULT, "nondeterministic", message)
        if outputs(replace(surroundings, order=None)) != first:
            sign = "positive" if surroundings.poison == REPEATS[0].poison else "negative"
            message = f"{_UNWRITTEN} they change when it holds large {sign} numbers instead of NaN"
            return Rejected(Outcome.WRONG_RESULT, "unwritten", message)
        message = "outputs depend on the order in which a block's warps, or blocks, run"
        return Rejected(Outcome.WRONG_RESULT, "nondeterministic", message)

    def copies(self, count: int) -> tuple[Tensors, ...]:
        """Return copies of the normal data with separate outputs, for passes that must not share cached data."""
        while len(self._copies) < count:
            addresses = {}
            for array in {**self.written, **self.normal.inputs}.values():
                addresses[array.name] = self._maker.allocated(array.size_bytes)
                self.device.copy(addresses[array.name], array.address, array.size_bytes)
            self._copies.append(Tensors(addresses))
        return tuple(self._copies[:count])

    def judge(self, data: DataSet, source: KernelSource, arrays: Sequence[GuardedArray] = ()) -> ErrorStats:
        """Check the guard bands, inputs and outputs after the caller has run a kernel on a data set.

        Raises Rejected('wrong_result', ...).
        """
        self._check_guards([*self._maker.arrays, *arrays])
        self._check_inputs()
        return self._compare(data, source, self.tensors(data))

    def still_right(self, source: KernelSource, tensors: Tensors, rerun: Callable[[], object]) -> None:
        """Check after timing a correct kernel that it is still correct, on the arrays in `tensors`.

        `rerun` runs the passes of a sample. Before that, a few outputs of the timed passes are poisoned, while the
        others are kept. If a kernel skips work because some outputs are already right, the poisoned ones stay wrong.
        Raises Rejected('wrong_result', 'wrong_after_timing').
        """
        for output in self._outputs:
            self._poison_some(tensors.address(output.name), output.size_bytes)
        rerun()
        try:
            self._compare(self.normal, source, tensors)
        except Rejected as rejected:
            message = f"right when verified, and wrong after it was timed: {rejected.message}"
            raise Rejected(Outcome.WRONG_RESULT, "wrong_after_timing", message) from None

    def _poison_some(self, address: int, size_bytes: int) -> None:
        words = -(-size_bytes // _WORD_BYTES)
        for word in np.random.default_rng(0).choice(words, min(words, _POISONED_WORDS), replace=False):
            begin = _WORD_BYTES * int(word)
            self.device.fill(address + begin, POISON, min(_WORD_BYTES, size_bytes - begin))

    def _check_inputs(self) -> None:
        hashes = self._input_hashes()
        if hashes != self._inputs:
            for data in self._data:
                self._maker.fill(data)
            names = (array.name for data in self._data for array in data.inputs.values())
            changed = [name for name, one, other in zip(names, hashes, self._inputs, strict=True) if one != other]
            message = f"the kernel changed {', '.join(dict.fromkeys(changed))}, which it must only read"
            raise Rejected(Outcome.WRONG_RESULT, "input_overwritten", message)

    def close(self) -> None:
        """Free the data sets and unload the verification program."""
        self._maker.close()
        self._module.unload()

    def _run(
        self,
        kernel: LoadedKernel,
        data: DataSet,
        surroundings: Surroundings = FIRST,
        *,
        workspace: GuardedArray,
        packed_w: GuardedArray,
        cold: bool = False,
    ) -> tuple[Sample, bool]:
        """Poison the memory, prepare the kernel and run it once.

        Returns the time, and whether the order of warps and blocks was unusual, in which case the time is meaningless.
        """
        tensors = self.tensors(data, packed_w.address, workspace.address)
        self.restore(data, poison=surroundings.poison)
        if surroundings.poison is not None:
            workspace.poison(surroundings.poison)
            packed_w.poison(surroundings.poison)
        smem_byte = None if surroundings == FIRST else LEFT if surroundings.poison is None else surroundings.poison
        with self.device.varied(Variation(surroundings.order, smem_byte)) as varied:
            kernel.prepare(tensors)
            launches = kernel.forward(tensors)
            variables = kernel.module.variables()
            try:
                sample = self.device.time(Passes(lambda: kernel.run(launches)), cold=cold and not varied)
                self.device.synchronize()
            except Rejected as rejected:
                arrays = (*self._maker.arrays, workspace, packed_w)
                raise Rejected(rejected.outcome, rejected.reason, with_array(rejected.message, arrays)) from None
        self._check_variables(variables, kernel.module.variables())
        return sample, varied

    def _check_variables(self, before: Mapping[str, bytes], after: Mapping[str, bytes]) -> None:
        changed = [name for name in before if before[name] != after[name]]
        if changed:
            message = (
                f"a launch changes {', '.join(changed)}, so that the next one begins with another value: "
                "a kernel must keep no state between launches; its stages pass data to each other in the workspace"
            )
            raise Rejected(Outcome.WRONG_RESULT, "keeps_state", message)

    def _compare(self, data: DataSet, source: KernelSource, tensors: Tensors) -> ErrorStats:
        """Compare all outputs at the addresses in `tensors` with the reference. Raises Rejected if one of them is
        wrong.
        """
        some = self.problem.with_runtime(data.period).outputs
        errors = [
            self._compare_one(data, source, output, period, tensors.address(output.name))
            for output, period in zip(self.problem.outputs, some, strict=True)
        ]
        return ErrorStats(
            max(error.over_bound for error in errors),
            max(error.max_abs for error in errors),
            {name: part for error in errors for name, part in error.of_tolerance.items()},
        )

    def _compare_one(self, data: DataSet, source: KernelSource, output: Array, period: Array, y: int) -> ErrorStats:
        problem = self.problem
        whole = data.kind == "integers" or problem.operation.bounds.model == "exact"
        most_error = most_error_on_integers(source) if whole else sys.float_info.max
        bound = error_bound(source.accuracy, problem).times(source.error_factor)
        if data.edges and data.edges.any_finite:
            bound = _ANY_FINITE
        self.device.write(self._result, struct.pack("<QQQQQQ", 0, 0, 2**64 - 1, 0, 0, 0))
        outputs = output.elements
        self._launch(
            entry_of("compare", output.dtype),
            period.elements,
            *map(np.uint64, (y, *data.references[output.name])),
            np.int64(outputs),
            np.int64(period.elements),
            np.float64(most_error),
            *map(np.float64, bound.numbers),
            np.float64(TYPES[output.dtype].rounding),
            np.uint64(self._result),
            *size_arguments(problem),
        )
        self.device.synchronize()
        found = self.device.read(self._result, _RESULTS * 8)
        wrong, unwritten, first = struct.unpack("<QQQ", found[:24])
        over_bound, max_abs, of_tolerance = struct.unpack("<ddd", found[24:])
        if unwritten:
            message = (
                f"{unwritten} of {outputs} outputs were never written, or were computed from unwritten memory, "
                f"the first {self._place(output, first)}"
            )
            raise Rejected(Outcome.WRONG_RESULT, "unwritten", message)
        if wrong:
            bounded = most_error == sys.float_info.max
            reason = "wrong" if bounded else "inexact"
            where = f"{self._words(data)}, the first {self._place(output, first)}"
            message = f"{wrong} of {outputs} outputs are wrong on {where}; "
            if over_bound <= 1:
                message += "there, either the kernel or the reference gives NaN, but not both"
            else:
                message += f"largest error {max_abs:.3g}" + (f", {over_bound:.3g} x bound" if bounded else "")
            if problem.operation.independent and first >= period.elements:
                leading = problem.operation.leading
                message += (
                    f"; all before {leading} = {data.period}, where the test data repeat, are right: if an output "
                    f"depends on its position along {leading} or on its neighbours, set independent = false in {FILE}"
                )
            raise Rejected(Outcome.WRONG_RESULT, reason, message)
        return ErrorStats(over_bound, max_abs, {output.name: of_tolerance})

    def _check_rounding(self, source: KernelSource) -> None:
        """Raise Rejected('wrong_result', 'wrong') if most outputs on normal data were rounded in the same direction."""
        for output in self.problem.with_runtime(self.normal.period).outputs:
            if not TYPES[output.dtype].rounding:
                continue
            some = min(output.elements, ROUNDED_OUTPUTS)
            reference, _ = self.normal.references[output.name]
            exact = decoded(self.device.read(reference, 8 * some), "f64")
            stored = self.device.read(self.written[output.name].address, some * TYPES[output.dtype].size_bytes)
            if side := one_sided(source, output, decoded(stored, output.dtype), exact):
                message = f"most {output.dtype} numbers in {output.name} are rounded {side}; expected the nearest ones"
                raise Rejected(Outcome.WRONG_RESULT, "wrong", message)

    def _words(self, data: DataSet) -> str:
        """Describe a data set: the kind of data, and any special properties."""
        if data.kind != "edges":
            return f"{'integer' if data.kind == 'integers' else 'normal'} data"
        return str(data.edges)

    def _place(self, output: Array, flat: int) -> str:
        """Describe where an output is, as in `at n = 0, k = 3`."""
        place = np.unravel_index(flat, output.shape)
        of = f" of {output.name}" if len(self.problem.outputs) > 1 else ""
        return "at " + ", ".join(f"{axis} = {int(at)}" for axis, at in zip(output.axes, place, strict=True)) + of

    def _check_guards(self, arrays: list[GuardedArray]) -> None:
        if where := "; ".join(words for array in arrays for words in array.overwritten()):
            for array in arrays:
                array.fill_guards()
            raise Rejected(Outcome.WRONG_RESULT, "oob_write", f"overwrites {where}")

    def _hashes(self, *arrays: GuardedArray) -> tuple[int, ...]:
        """Return a hash of each array. There must be no more arrays than in all data sets together."""
        self.device.fill(self._result, 0, 8 * len(arrays))
        for place, array in enumerate(arrays):
            words = -(-array.size_bytes // 4)  # the last word may reach into the guard, which was checked
            result = np.uint64(self._result + 8 * place)
            self._launch("hash_words", words, np.uint64(array.address), np.int64(words), result)
        self.device.synchronize()
        return struct.unpack(f"<{len(arrays)}Q", self.device.read(self._result, 8 * len(arrays)))

    def _input_hashes(self) -> tuple[int, ...]:
        return self._hashes(*(array for data in self._data for array in data.inputs.values()))
