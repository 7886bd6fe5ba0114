"""The device seam: a device's properties (`DeviceInfo`) and operations (`Device`, `Module`).

A device loads a compiled program, fills and reads memory, launches kernels and times them. `measurement` and `workers`
use only these protocols and never refer to a backend by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from autotune.compilation.compile import Binary
from autotune.devices.tensor_map import BoundTensorMap
from autotune.trial import Launching

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from autotune.problem import Problem


@dataclass(frozen=True, slots=True)
class Abilities:
    """The abilities of a kind of device. To add a kind of GPU, add an entry to ABILITIES and a folder to `devices/`."""

    gpu: bool = False
    """kernels run on multiprocessors with the limits of DeviceInfo"""
    gpu_times: bool = False
    """times are measured on a GPU, or were recorded on one"""
    cpu: bool = False
    """kernels run on the cores that compile them; the measured times say nothing about a GPU"""
    compile: bool = False
    """kernels are compiled and run; without this ability, times are computed or come from a recording"""
    graphs: bool = False
    """short kernels are timed in a graph, without launch gaps"""
    profile: bool = False
    """a profiler can read hardware counters"""


ABILITIES: Mapping[str, Abilities] = MappingProxyType(
    {
        "cuda": Abilities(gpu=True, gpu_times=True, compile=True, graphs=True, profile=True),
        "host": Abilities(cpu=True, compile=True),
        "replay": Abilities(gpu_times=True),
    }
)
"""The abilities of each kind of device. A kind that isn't listed has no abilities."""


def abilities_of(kind: str) -> Abilities:
    """Return the abilities of a kind of device."""
    return ABILITIES.get(kind, Abilities())


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device's identity (kind, name, arch, sm_count, memory_bytes) and limits, which default to those of sm_90."""

    kind: str
    """cuda | host | null | replay"""
    name: str
    """from the driver"""
    arch: int
    """compute capability times ten, 90 for 9.0; the limits that templates may rely on"""
    sm_count: int
    """multiprocessors"""
    memory_bytes: int
    """device memory, bytes"""
    max_threads_per_block: int = 1024
    """maximum threads of a block"""
    smem_per_block_bytes: int = 232448
    """maximum dynamic shared memory of a block after opt-in"""
    smem_per_sm_bytes: int = 233472
    """shared memory of a multiprocessor, bytes"""
    registers_per_sm: int = 65536
    """32-bit registers of a multiprocessor"""
    max_warps_per_sm: int = 64
    """maximum resident warps"""
    max_blocks_per_sm: int = 32
    """maximum resident blocks"""
    constant_bytes: int = 65536
    """constant memory, bytes"""
    l2_bytes: int = 0
    """L2 cache, bytes"""
    grid_limits: tuple[int, int, int] = (2147483647, 65535, 65535)
    """maximum blocks along x, y and z"""
    block_limits: tuple[int, int, int] = (1024, 1024, 64)
    """maximum threads along x, y and z"""

    @property
    def can(self) -> Abilities:
        """The abilities of this kind of device."""
        return abilities_of(self.kind)

    @property
    def identity(self) -> tuple[str, str, int, int, int]:
        """The fields that must be equal for results from two machines to be comparable."""
        return (self.kind, self.name, self.arch, self.sm_count, self.memory_bytes)

    def is_like(self, other: DeviceInfo) -> bool:
        """Return whether both devices are in the same class: equal kind, compute capability and SM count. Names may
        differ.
        """
        return (self.kind, self.arch, self.sm_count) == (other.kind, other.arch, other.sm_count)


def devices_named(word: str, devices: Sequence[DeviceInfo]) -> list[DeviceInfo]:
    """Return the devices with this name or, if there are none, those whose name contains it, ignoring case."""
    exact = [info for info in devices if info.name.casefold() == word.casefold()]
    return exact or [info for info in devices if word.casefold() in info.name.casefold()]


BUSY_PERCENT = "busy_percent"
"""Key in `Environment.attributes`: the percentage of the second before the GPU was opened in which kernels of other
programs ran on the GPU.
"""
SHARED_PERCENT = 10
"""Percentage of a second from which the GPU counts as shared with other programs. A desktop uses less."""


@dataclass(frozen=True, slots=True)
class Environment:
    """The conditions of a measurement apart from the device. If they change, results are doubtful but comparable."""

    driver: str
    """driver version"""
    toolkit: str
    """compiler name and version"""
    flags: str
    """compiler flags"""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """other properties, such as clocks, host name and library versions, which are recorded but not matched"""

    @property
    def identity(self) -> tuple[str, str, str]:
        """The fields that must be equal for two measurements to share an environment."""
        return (self.driver, self.toolkit, self.flags)


@dataclass(frozen=True, slots=True)
class Rate:
    """One measured rate."""

    unit: str
    """`copy`, `read` or `fill` for memory, `fp32` for FFMA, `tf32` or `fp16` (any 16-bit type) for tensor cores"""
    method: str
    """how the rate was measured, such as `mma.sync m16n8k16`"""
    per_s: float
    """bytes per second for `copy` (read plus written), `read` and `fill`, otherwise floating-point operations"""


def best_rates(rates: Iterable[Rate]) -> dict[str, float]:
    """Return the largest rate of each unit, regardless of the method."""
    best: dict[str, float] = {}
    for rate in rates:
        best[rate.unit] = max(rate.per_s, best.get(rate.unit, 0.0))
    return best


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel launch with all expressions evaluated.

    Pointers are np.uint64, scalars np.int32/int64/float32/float64.
    """

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    smem_bytes: int
    args: tuple[np.generic | BoundTensorMap, ...]
    early: bool = False
    """whether it may start before the previous launch has ended; the kernel itself waits for that launch"""


CONVOLUTIONS = ("conv2d", "conv", "conv_transpose")
"""Operations that PyTorch computes as convolutions."""
BASELINES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"cudnn": (*CONVOLUTIONS, "conv_filter_gradient"), "inductor": CONVOLUTIONS, "cublas": ("gemm",)}
)
"""Libraries that can be timed next to the kernels, with the operations that each of them supports."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """An alternative that a user would run instead of a kernel, timed next to it."""

    library: str
    """cudnn or cublas for PyTorch's operators, inductor for `torch.compile`"""
    layout: str
    """nchw or nhwc for all tensors, or the transposes of a matrix product; the timed part converts no layouts"""
    tf32: bool = False
    """whether f32 data may be multiplied as TF32"""
    fused: bool = False
    """whether bias and activation are part of the library's operator, rather than pointwise kernels after it"""

    @property
    def name(self) -> str:
        """The baseline's name in results, such as `cudnn nhwc fused`."""
        return f"{self.library} {self.layout}{' fused' if self.fused else ''}{' tf32' if self.tf32 else ''}"

    def accuracy(self, dtype: str) -> str:
        """Return the baseline's accuracy class for data with this storage type."""
        return {"f32": "tf32" if self.tf32 else "fp32", "f16": "fp16", "bf16": "bf16"}[dtype]


def _nothing() -> None:
    """Do nothing: ordinary passes have no resources to release."""


@dataclass(frozen=True, slots=True)
class Passes:
    """Forward passes enqueued by a single call."""

    enqueue: Callable[[], None]
    count: int = 1
    """number of passes that one call enqueues"""
    launch: Launching = "stream"
    close: Callable[[], None] = _nothing
    """releases the resources of the passes, which must not be enqueued afterwards"""


MATRIX_TYPES = ("tf32", "f16", "bf16")
"""Element types for a library's matrix products; tf32 means float32 data multiplied as TF32."""

Order = Literal["ascending", "descending", "warps", "threads"]
"""The order in which blocks run, and which thread of a block continues when another one waits.

Except with `threads`, one warp runs until all of its lanes are waiting. `warps` chooses warps, lanes and blocks at
random. `threads` chooses blocks at random and, whenever a thread waits, continues with a random thread of any warp.
"""

POISON = 0xFF
"""Byte that fills memory whose contents a kernel must not rely on. All ones is NaN in every storage type."""
LEFT = 256
"""Value of `Variation.smem_byte` with which shared memory stays as the previous block left it."""


@dataclass(frozen=True, slots=True)
class Variation:
    """Another way to run the same launches."""

    order: Order | None = None
    """None: the device's usual order"""
    smem_byte: int | None = None
    """byte that fills shared memory before a block starts; LEFT: no fill; None: the device's usual byte"""
    one_core: bool = False
    """whether blocks run one after another on one core"""
    some_blocks: int = 0
    """number of blocks that run in each launch, 0 for all; if set, new memory takes no space until it is written"""


HostArray: TypeAlias = "npt.NDArray[np.uint8]"
"""An array in the host's memory."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One timing of a forward pass."""

    us: float
    """time of one pass, microseconds"""
    sm_clock_mhz: float | None = None
    """mean clock of the multiprocessors during the pass; None if unknown"""


@dataclass(frozen=True, slots=True)
class Health:
    """The current values of a device's sensors, with None for sensors that it lacks."""

    power_w: float | None = None
    temperature_c: float | None = None


class Module(Protocol):
    """A loaded program."""

    def ready(self, launch: Launch) -> None:
        """Prepare a launch on the host in advance, so that the preparation isn't timed.

        Raises the same errors as `launch`.
        """

    def launch(self, launch: Launch, *, stream: int = 0) -> None:
        """Enqueue a kernel on a numbered stream. Raises Rejected('runtime', ...) if the device rejects the launch."""

    def symbol(self, name: str) -> tuple[int, int]:
        """Return the address of a __constant__ or __device__ variable, and its size in bytes."""

    def variables(self) -> Mapping[str, bytes]:
        """Return the contents of each variable that kernels can write and that outlives a launch.

        If the device can't list variables, the mapping is empty.
        """

    def unload(self) -> None:
        """Free the program, after which the module must not be used."""


class Device(Protocol):
    """An open device.

    Addresses are plain integers in the device's address space. Stream 0 is the default stream, on which all calls
    without a stream number run. Work on other streams may overlap.
    """

    @property
    def info(self) -> DeviceInfo: ...

    @property
    def environment(self) -> Environment: ...

    def admit(self, problem: Problem) -> None:
        """Raise DeviceError if a forward pass would take far too long here, suggesting a smaller n."""

    def allocate(self, size_bytes: int) -> int:
        """Allocate memory aligned to 256 bytes and return its address.

        Raises Rejected('runtime', 'out_of_memory', ...).
        """

    def free(self, address: int) -> None: ...

    def write(self, address: int, content: bytes) -> None: ...

    def read(self, address: int, size_bytes: int) -> bytes: ...

    def fill(self, address: int, byte: int, size_bytes: int) -> None:
        """Set every byte of a range of memory."""

    def copy(self, to: int, source: int, size_bytes: int) -> None:
        """Copy from device memory to device memory. This is also used to fill constant symbols."""

    def allocate_host(self, size_bytes: int, *, pinned: bool) -> HostArray:
        """Allocate host memory for copies, page-locked if `pinned`. It is freed together with the array."""

    def copy_in(self, to: int, source: HostArray, *, stream: int) -> None:
        """Enqueue a copy to the device on a numbered stream. The array must not change until it is done."""

    def copy_out(self, to: HostArray, source: int, *, stream: int) -> None:
        """Enqueue a copy from the device on a numbered stream."""

    def load(self, binary: Binary) -> Module: ...

    def hide(self, address: int, size_bytes: int) -> bool:
        """End the process of any kernel that accesses these bytes. Returns False if the device can't watch memory."""

    def watch(self, address: int, size_bytes: int, *, poisoned: bool = False) -> None:
        """Reject kernels in which two blocks access the same word of these bytes and at least one of them writes.

        Accesses ordered by atomic functions are allowed. With `poisoned`, kernels that read a word that is still
        poisoned are rejected too. Devices that can't observe each access ignore this call.
        """

    def varied(self, how: Variation) -> AbstractContextManager[bool]:
        """Return a context manager in which launches run in a different way.

        It yields False if that is the normal way, or if the device doesn't support the variation.
        """

    def synchronize(self) -> None:
        """Wait for all enqueued work. Raises Rejected('runtime', 'illegal_address' | 'trap' | ..., ...)."""

    @property
    def stream_handle(self) -> int:
        """The address of stream 0, in the form that C interfaces expect. During a capture, stream 0 is a different
        stream.
        """

    @property
    def short_us(self) -> float:
        """Passes shorter than this many microseconds are timed several at once, in a graph.

        Otherwise, the time of a single short pass would include launch gaps.
        """

    def record(self, passes: Sequence[Callable[[], None]]) -> Passes:
        """Combine functions that each enqueue a pass on stream 0 into a single call, without gaps if the device has
        graphs.

        Each function first runs once. Raises Rejected if a launch fails.
        """

    def time(self, passes: Passes, *, cold: bool) -> Sample:
        """Measure the time per pass, from the start of the first launch to the end of the last one.

        `cold` empties the caches only before the first pass, so later passes are cold only if each has its own arrays.
        """

    def health(self) -> Health: ...

    def busy_percent(self) -> int | None:
        """Return the percentage of the last second in which kernels ran on the device, or None if unknown.

        Call this before this program runs a kernel, so that only other programs' kernels count.
        """

    def baselines(
        self, baselines: Sequence[Baseline], problem: Problem, *, passes: int, cold: bool
    ) -> tuple[Passes | str, ...]:
        """Record `passes` forward passes of each baseline, or return why it can't run the problem.

        With `cold`, each pass has its own arrays; otherwise, all passes share them, as a kernel's passes do. Raises
        DeviceError if the library isn't installed.
        """

    def matrix_product(self, dtype: str, size: int) -> Callable[[], None]:
        """Return a function that enqueues a library's product of two random `size` x `size` matrices.

        `dtype` is one of MATRIX_TYPES. Raises DeviceError if the library isn't installed.
        """

    def close(self) -> None: ...
