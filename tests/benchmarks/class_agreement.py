"""Whether a LeNet-like network predicts the same classes on tuned kernels as in float64:

    python -m tests.benchmarks.class_agreement lenet-k5 --device cuda:0 --db results.db

conv, ReLU, 2x2 max pool, conv, ReLU, 2x2 max pool, two dense layers, ten classes. The images and the weights are random
with a fixed seed; the dense layers' offsets and scales make every class about equally frequent in float64.
The convolutions run on the device. Everything else is NumPy in float64 and the same for every kernel, so that all
differences come from the convolutions. The float64 network's convolutions are the verification program's, on doubles.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from autotune.api.device_names import evaluator_of
from autotune.api.study_names import study_named
from autotune.compilation.compile import Binary
from autotune.devices.backends import open_device
from autotune.devices.device import Device, Launch, Module
from autotune.devices.host_machine import usable_cores
from autotune.errors import Rejected, StudyError
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.source import KernelSource
from autotune.measurement.guard_bands import GuardedArray
from autotune.measurement.launcher import LoadedKernel, Tensors
from autotune.measurement.reference import check_program, reference_arguments
from autotune.measurement.storage import encoded, stored
from autotune.measurement.test_data import REFERENCE_BYTES
from autotune.problem import Conv2dProblem, as_conv2d
from autotune.store import BestRow, Store
from autotune.study import Study
from autotune.trial import ACCURACY_CLASSES

CLASSES = 10
_HIDDEN = 84  # units of the first dense layer: LeCun et al. 1998, layer F6
_SLICE_BYTES = 64 << 20  # float64 outputs in host memory at a time, so that ReLU and pooling stay in cache
_GRID, _BLOCK = 2048, 256  # most blocks and threads of the reference kernel, which strides over its outputs

Array = npt.NDArray[np.float64]
Convolve = Callable[[Array], Array]
"""Input [N, C, H, W] of one layer to its pooled output, ReLU applied."""


@dataclass(frozen=True, slots=True)
class NetworkSpec:
    """A network on two layers that follow each other, and how many images go through it."""

    first: Conv2dProblem
    second: Conv2dProblem
    images: int
    seed: int


@dataclass(frozen=True, slots=True)
class Agreement:
    """How a network's predictions agree with those in float64."""

    images: int
    agreeing: int
    """images whose predicted class is the same"""
    largest_difference: float | None
    """largest difference of a logit, whose standard deviation is 1; None if an output is not a number"""
    largest_share: float
    """of the images in one class, in float64"""

    @property
    def fraction(self) -> float:
        """The share of images that agree."""
        return self.agreeing / self.images


@dataclass(frozen=True, slots=True)
class _Weights:
    """The weights of one convolution, exactly as stored: w [K, C/groups, R, S], bias [K]."""

    w: Array
    bias: Array


class Network:
    """A network's images, weights and float64 predictions."""

    def __init__(self, device: Device, spec: NetworkSpec, references: tuple[Binary, Binary]) -> None:
        self.device, self.spec = device, spec
        random = np.random.default_rng(spec.seed)
        first, second = spec.first, spec.second
        shape = (spec.images, first.c, first.h, first.w)
        self._x = stored(random.standard_normal(shape, dtype=np.float32), first.dtype)
        self._weights = (_weights(first, random), _weights(second, random))
        features = second.k * (second.p // 2) * (second.q // 2)
        self._dense = (
            random.standard_normal((features, _HIDDEN)) / math.sqrt(features),
            random.standard_normal((_HIDDEN, CLASSES)) / math.sqrt(_HIDDEN),
        )
        with ExitStack() as owned:
            convolve = [
                _reference(device, problem.with_runtime(spec.images), weights, binary, owned)
                for problem, weights, binary in zip((first, second), self._weights, references, strict=True)
            ]
            outputs = max(problem.output.elements // problem.runtime_size for problem in (first, second))
            hidden = self._hidden(convolve[0], convolve[1], _most_images(outputs))
        self._hidden_mean, self._hidden_deviation = hidden.mean(axis=0), _deviation(hidden)
        raw = self._activate(hidden) @ self._dense[1]
        self._logit_mean, self._logit_deviation = raw.mean(axis=0), _deviation(raw)
        self.logits = self._logits(hidden)

    def agreement(self, kernels: tuple[tuple[KernelSource, Binary], tuple[KernelSource, Binary]]) -> Agreement:
        """Run the network on kernels, at the batch size that they were tuned for."""
        with ExitStack() as owned:
            convolve = [
                _kernel(self.device, source, binary, weights, owned)
                for (source, binary), weights in zip(kernels, self._weights, strict=True)
            ]
            logits = self._logits(self._hidden(convolve[0], convolve[1], kernels[0][0].problem.runtime_size))
        expected = self.logits.argmax(axis=1)
        largest = float(np.abs(logits - self.logits).max())
        return Agreement(
            images=self.spec.images,
            agreeing=int((logits.argmax(axis=1) == expected).sum()),
            largest_difference=largest if math.isfinite(largest) else None,
            largest_share=float(np.bincount(expected, minlength=CLASSES).max() / self.spec.images),
        )

    def _hidden(self, first: Convolve, second: Convolve, chunk: int) -> Array:
        """The first dense layer's outputs of every image, `chunk` images at a time."""
        rows = [
            second(first(self._x[start : start + chunk].astype(np.float64))).reshape(-1, self._dense[0].shape[0])
            @ self._dense[0]
            for start in range(0, self.spec.images, chunk)
        ]
        return np.concatenate(rows)

    def _activate(self, hidden: Array) -> Array:
        active: Array = np.maximum((hidden - self._hidden_mean) / self._hidden_deviation, 0.0)
        return active

    def _logits(self, hidden: Array) -> Array:
        logits: Array = (self._activate(hidden) @ self._dense[1] - self._logit_mean) / self._logit_deviation
        return logits


def pooled(y: Array) -> Array:
    """ReLU, then the largest of each 2x2 square of y [N, K, P, Q]; an odd last row or column is dropped."""
    p, q = y.shape[2] // 2 * 2, y.shape[3] // 2 * 2
    rows = np.maximum(y[:, :, 0:p:2, :q], y[:, :, 1:p:2, :q])
    return np.maximum(np.maximum(rows[..., 0::2], rows[..., 1::2]), 0.0)


def decoded(content: bytes, dtype: str) -> Array:
    """Bytes of a storage type as float64."""
    if dtype == "bf16":
        return (np.frombuffer(content, np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    types = {"f64": np.float64, "f32": np.float32, "f16": np.float16}
    return np.frombuffer(content, types[dtype]).astype(np.float64)


def _weights(problem: Conv2dProblem, random: np.random.Generator) -> _Weights:
    shape = (problem.k, problem.c // problem.groups, problem.r, problem.s)
    w = random.standard_normal(shape) * math.sqrt(2 / problem.reduction)  # He et al. 2015: keeps the variance
    bias = 0.1 * random.standard_normal(problem.k)
    return _Weights(stored(w, problem.dtype).astype(np.float64), stored(bias, problem.dtype).astype(np.float64))


def _most_images(outputs: int) -> int:
    """The number of images whose reference fits its limit: a double and a float for each output."""
    return max(1, REFERENCE_BYTES // (12 * outputs))


def _deviation(values: Array) -> Array:
    """Standard deviation of each column; 1 if the column is constant."""
    deviation: Array = values.std(axis=0)
    return np.where(deviation > 0, deviation, 1.0)


class _Convolution:
    """One layer on the device, for a fixed number of images at a time."""

    def __init__(
        self,
        device: Device,
        problem: Conv2dProblem,
        weights: _Weights,
        owned: ExitStack,
        *,
        dtype: str,
        y_bytes_per_image: int,
    ) -> None:
        self.device, self.problem, self.dtype = device, problem, dtype
        self._element_bytes = 8 if dtype == "f64" else problem.element_bytes

        def array(size_bytes: int) -> GuardedArray:
            made = GuardedArray(device, "an array of the network", size_bytes)
            owned.callback(made.free)
            return made

        self.array = array
        arrays = {each.name: array(each.elements * self._element_bytes) for each in problem.inputs}
        self.x, self.y = arrays["x"], array(problem.runtime_size * y_bytes_per_image)
        nhwc = problem.layout == "nhwc"
        device.write(arrays["w"].address, encoded(weights.w.transpose(0, 2, 3, 1) if nhwc else weights.w, dtype))
        if "bias" in arrays:
            device.write(arrays["bias"].address, encoded(weights.bias, dtype))
        addresses = {name: each.address for name, each in arrays.items()}
        self.tensors = Tensors({**addresses, problem.output.name: self.y.address})

    def __call__(self, x: Array, run: Callable[[int], None]) -> Array:
        """Pooled output of at most n images; `run` gets their number and launches the kernels that compute y."""
        problem = self.problem
        nhwc = problem.layout == "nhwc"
        outputs = []
        for start in range(0, len(x), problem.runtime_size):
            batch = x[start : start + problem.runtime_size]
            self.device.fill(self.x.address, 0, self.x.size_bytes)
            self.device.write(self.x.address, encoded(batch.transpose(0, 2, 3, 1) if nhwc else batch, self.dtype))
            self.y.poison()
            run(len(batch))
            self.device.synchronize()
            outputs.append(self._read(len(batch)))
        return np.concatenate(outputs)

    def _read(self, images: int) -> Array:
        """ReLU and pooling, a slice of images at a time."""
        p = self.problem
        image = p.k * p.p * p.q
        step = max(1, _SLICE_BYTES // (8 * image))
        parts = []
        for first in range(0, images, step):
            count = min(step, images - first)
            address = self.y.address + first * image * self._element_bytes
            flat = decoded(self.device.read(address, count * image * self._element_bytes), self.dtype)
            if p.layout == "nhwc":
                parts.append(pooled(flat.reshape(count, p.p, p.q, p.k).transpose(0, 3, 1, 2)))
            else:
                parts.append(pooled(flat.reshape(count, p.k, p.p, p.q)))
        return np.concatenate(parts)


def _reference(device: Device, problem: Conv2dProblem, weights: _Weights, binary: Binary, owned: ExitStack) -> Convolve:
    """A layer in float64 through the verification program's reference kernel."""
    outputs = problem.output.elements // problem.runtime_size
    chunk = problem.with_runtime(min(problem.runtime_size, _most_images(outputs)))
    module: Module = device.load(binary)
    owned.callback(module.unload)
    layer = _Convolution(device, chunk, weights, owned, dtype="f64", y_bytes_per_image=8 * outputs)
    units = layer.array(8 * chunk.output.elements)

    def run(images: int) -> None:
        count = images * outputs
        args = reference_arguments(problem, layer.tensors, layer.y.address, units.address, count)
        blocks = min(_GRID, max(1, -(-count // _BLOCK)))
        module.launch(Launch("reference", (blocks, 1, 1), (_BLOCK, 1, 1), 0, args))

    return lambda x: layer(x, run)


def _kernel(device: Device, source: KernelSource, binary: Binary, weights: _Weights, owned: ExitStack) -> Convolve:
    """A layer through a tuned kernel, at the batch size that it was tuned for; the last batch is padded with 0."""
    problem = as_conv2d(source.problem, "a network's accuracy")
    device.admit(problem)
    module = device.load(binary)
    owned.callback(module.unload)
    image_bytes = problem.output.size_bytes // problem.runtime_size
    layer = _Convolution(device, problem, weights, owned, dtype=problem.dtype, y_bytes_per_image=image_bytes)
    kernel = LoadedKernel(device, module, source)
    tensors = replace(
        layer.tensors,
        packed_w=layer.array(source.packed_w_bytes).address,
        workspace=layer.array(source.workspace_bytes).address,
    )
    kernel.prepare(tensors)
    launches = kernel.forward(tensors)
    return lambda x: layer(x, lambda _: kernel.run(launches))


def chained(study: Study) -> tuple[Conv2dProblem, Conv2dProblem]:
    """The study's two convolutions. Raises StudyError when the second cannot follow the first's pooled output."""
    problems = [as_conv2d(layer.problem, "a network's accuracy") for layer in study.layers]
    if len(problems) != 2:
        raise StudyError(f"{study.name}: the network has two convolutions, the study has {len(problems)}")
    first, second = problems
    left = (first.k, first.p // 2, first.q // 2, first.dtype)
    if left != (second.c, second.h, second.w, second.dtype):
        raise StudyError(f"{study.name}: the first layer leaves {left}, which the second cannot take")
    return first, second


def kernels_of(study: Study, evaluator: DeviceEvaluator, store: Store) -> Mapping[str, tuple[BestRow, BestRow]]:
    """Accuracy class to the fastest kernels of both layers; fp32 kernels if the class has none for a layer."""
    best: list[dict[str, BestRow]] = []
    for layer in study.layers:
        rows = store.best.list(f"{study.name}.{layer.name}", kind=evaluator.info.kind)
        here = [row for row in rows if row.row.device.identity == evaluator.info.identity]
        best.append({row.row.trial.accuracy: row for row in sorted(here, key=lambda row: -row.median_us)})
    first, second = best
    pairs = {
        name: (first.get(name, first.get("fp32")), second.get(name, second.get("fp32"))) for name in ACCURACY_CLASSES
    }
    return {name: (one, two) for name, (one, two) in pairs.items() if one and two and (name in first or name in second)}


def main(words: list[str] | None = None) -> int:
    """Print a line for each accuracy class that the study was tuned for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--db", default="autotune.db")
    parser.add_argument("--images", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(words)
    study = study_named(asked.study, asked.db)
    first, second = chained(study)
    evaluator = evaluator_of(asked.device, usable_cores())
    assert isinstance(evaluator, DeviceEvaluator)
    with Store(asked.db, create=False) as store, closing(evaluator):
        compiled = [evaluator.build(check_program(problem, "f64")).result() for problem in (first, second)]
        device = open_device(asked.device)
        network = Network(device, NetworkSpec(first, second, asked.images, asked.seed), (compiled[0], compiled[1]))
        for accuracy, rows in kernels_of(study, evaluator, store).items():
            sources = [store.sources.get(row.row.trial.source_hash or "") for row in rows]
            one, two = ((source, evaluator.compile(source).result()) for source in sources if source is not None)
            try:
                found = network.agreement((one, two))
            except Rejected as rejected:
                print(f"{accuracy}: {rejected.reason}: {rejected.message}")
                continue
            print(
                f"{accuracy}: {found.agreeing} of {found.images} images agree; largest logit difference "
                f"{found.largest_difference}; largest class {found.largest_share:.0%}"
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
