"""Make a layer's data sets on a device: inputs and their float64 reference."""

from __future__ import annotations

from functools import partial

import numpy as np

from autotune.devices.device import POISON, Device, Launch, Module
from autotune.measurement.bounds import check_units
from autotune.measurement.guard_bands import GuardedArray
from autotune.measurement.launcher import Tensors
from autotune.measurement.numpy_reference import given_data, in_numpy, numpy_reference
from autotune.measurement.reference import entry_of, reference_arguments
from autotune.measurement.storage import decoded, encoded
from autotune.measurement.test_data import DataSet, Edges, Kind
from autotune.operation.declarations import DRAWN, Array, Fill
from autotune.problem import Problem

_LOOKED_AT = 1 << 20  # maximum number of a reference's outputs whose error units are checked
_GRID, _BLOCK = 1024, 256  # maximum number of blocks and threads of the checking kernels, which loop over elements


class DataMaker:
    """Allocates arrays, makes and refills data sets, and finally frees everything."""

    def __init__(self, device: Device, module: Module, problem: Problem) -> None:
        self.device = device
        self.problem = problem
        self.arrays: list[GuardedArray] = []
        self._module = module
        self._owned: list[int] = []

    def launch(self, entry: str, elements: int, *args: np.generic) -> None:
        """Run one of the verification program's kernels over elements. On a CPU, each core runs one block as a loop."""
        info = self.device.info
        most, block = (info.sm_count, 1) if info.can.cpu else (_GRID, _BLOCK)
        blocks = min(most, max(1, -(-elements // _BLOCK)))
        self._module.launch(Launch(entry, (blocks, 1, 1), (block, 1, 1), 0, args))

    def allocated(self, size_bytes: int) -> int:
        """Allocate memory that `close` frees, and return its address."""
        address = self.device.allocate(size_bytes)
        self._owned.append(address)
        return address

    def array(self, declared: Array, *, guard: int = POISON) -> GuardedArray:
        """Allocate memory for an array between guard bands."""
        array = GuardedArray(self.device, declared.name, declared.size_bytes, guard=guard)
        self.arrays.append(array)
        return array

    def close(self) -> None:
        """Free all memory that was allocated here."""
        for array in self.arrays:
            array.free()
        for address in self._owned:
            self.device.free(address)

    def data_set(self, kind: Kind, period: int, edges: Edges | None = None) -> DataSet:
        """Make inputs and their reference. Raises TemplateError if the reference fails."""
        problem = self.problem
        references = {
            output.name: (self.allocated(8 * output.elements), self.allocated(8 * output.elements))
            for output in problem.with_runtime(period).outputs
        }
        inputs = {array.name: self.array(array) for array in problem.filled}
        data = DataSet(kind, inputs, period, references, edges)
        self.fill(data)
        if in_numpy(problem.operation):
            self._compute(data)
        else:
            (output,) = problem.with_runtime(period).outputs
            before = Tensors({name: array.address for name, array in inputs.items()})
            arguments = reference_arguments(problem, before, *references[output.name], output.elements)
            self.launch("reference", output.elements, *arguments)
            self.device.synchronize()
        if kind == "normal":
            self._check_units(data)
        return data

    def _check_units(self, data: DataSet) -> None:
        """Check the error units of the reference's first outputs."""
        for output in self.problem.with_runtime(data.period).outputs:
            some = min(output.elements, _LOOKED_AT)
            values, units = map(self.device.read, data.references[output.name], (8 * some, 8 * some))
            found = np.frombuffer(values, np.float64), np.frombuffer(units, np.float32)[::2]
            check_units(self.problem, output.name, *found)

    def _compute(self, data: DataSet) -> None:
        """Compute the reference for the first units on the host, if the operation has a NumPy reference."""
        some = self.problem.with_runtime(data.period)
        inputs = {
            array.name: decoded(self.device.read(data.inputs[array.name].address, array.size_bytes), array.dtype)
            for array in some.filled
        }
        for expected in numpy_reference(some, inputs, finite=data.kind != "edges"):
            ref, units = data.references[expected.output.name]
            self.device.write(ref, expected.value.tobytes())
            pairs = np.stack((expected.unit, expected.products), axis=1)
            self.device.write(units, pairs.astype(np.float32).tobytes())

    def fill(self, data: DataSet) -> None:
        """Write a data set's inputs. Every call writes the same values."""
        some = self.problem.with_runtime(data.period)
        given = given_data(some, int(data.kind == "integers"))
        for array in self.problem.filled:
            if array.fill == "data":
                content = encoded(np.resize(given[array.name], array.elements), array.dtype)
                self.device.write(data.inputs[array.name].address, content)
            else:
                self._fill_one(data, array, some.array(array.name))
        if data.edges:
            self._put_edges(data, data.edges, some)

    def _fill_one(self, data: DataSet, array: Array, repeated: Array) -> None:
        address = np.uint64(data.inputs[array.name].address)
        counts = (address, np.int64(array.elements), np.int64(repeated.elements))
        seeded = (*counts, np.uint64(self.problem.operation.seed(array.name) << 40))
        entry = partial(entry_of, dtype=array.dtype)
        zeros = data.edges is not None and data.edges.special and array.name not in data.edges.names
        fill: Fill = "integers" if (data.kind == "integers" or zeros) and array.fill in DRAWN else array.fill
        match fill:
            case "normal":
                self.launch(entry("fill_normal"), array.elements, *seeded, np.float32(1.0))
            case "uniform":
                bounds = np.float32(array.low), np.float32(array.high)
                self.launch(entry("fill_uniform"), array.elements, *seeded, *bounds)
            case "range" | "permutation":
                self.launch(entry("fill_indices"), array.elements, *counts, *map(np.int64, repeated.steps))
            case "integers" | "ones" | "zeros":
                least, most = array.whole_bounds
                bounds_of = np.int64(least), np.int64(most - least + 1)
                self.launch(entry("fill_integers"), array.elements, *seeded, *bounds_of)

    def _put_edges(self, data: DataSet, edges: Edges, repeated: Problem) -> None:
        for array in (repeated.array(each.name) for each in edges.arrays):
            elements = self.problem.array(array.name).elements
            counts = elements, array.elements, array.elements // array.shape[0], array.shape[-1]
            place = np.uint64(data.inputs[array.name].address), *map(np.int64, counts)
            self.launch(entry_of("put_edges", array.dtype), elements, *place, *edges.numbers(array))
