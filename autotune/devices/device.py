"""The device seam: a device's properties (`DeviceInfo`) and operations (`Device`, `Module`).

A device loads a compiled program, fills and reads memory, launches kernels and times them. `measurement` and `workers`
are written against these protocols and know no backend by name.
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
    """The abilities of a kind of device. A new kind of GPU is an entry in ABILITIES and a folder in `devices/`."""

    gpu: bool = False
    """kernels run on multiprocessors with the limits of DeviceInfo"""
    gpu_times: bool = False
    """its times are a GPU's, measured or recorded"""
    cpu: bool = False
    """kernels run on the cores that compile them; their times say nothing about a GPU"""
    compile: bool = False
    """kernels are compiled and run; otherwise times are computed or come from a recording"""
    graphs: bool = False
    """short kernels are timed in a graph, without launch gaps"""
    profile: bool = False
    """a profiler can read hardware counters"""
    sanitize: bool = False
    """a sanitizer can watch kernels"""


ABILITIES: Mapping[str, Abilities] = MappingProxyType(
    {
        "cuda": Abilities(gpu=True, gpu_times=True, compile=True, graphs=True, profile=True, sanitize=True),
        "host": Abilities(cpu=True, compile=True, sanitize=True),
        "replay": Abilities(gpu_times=True),
    }
)
"""By kind; other kinds can do nothing."""


def abilities(kind: str) -> Abilities:
    """The abilities of a kind of device."""
    return ABILITIES.get(kind, Abilities())


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A device's identity (kind, name, arch, sm_count, memory_bytes) and its limits. Limits default to sm_90's."""

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
        """Its abilities."""
        return abilities(self.kind)

    @property
    def identity(self) -> tuple[str, str, int, int, int]:
        """The fields that must be equal for results of two machines to be comparable."""
        return (self.kind, self.name, self.arch, self.sm_count, self.memory_bytes)

    def is_like(self, other: DeviceInfo) -> bool:
        """Whether both are of one class: kind, compute capability and SM count are equal; names may differ."""
        return (self.kind, self.arch, self.sm_count) == (other.kind, other.arch, other.sm_count)


def devices_named(word: str, devices: Sequence[DeviceInfo]) -> list[DeviceInfo]:
    """The devices with this name, ignoring case, or else all devices whose name contains the word."""
    exact = [info for info in devices if info.name.casefold() == word.casefold()]
    return exact or [info for info in devices if word.casefold() in info.name.casefold()]


BUSY_PERCENT = "busy_percent"
"""an environment's attribute: the share of the second before a GPU was opened in which other programs' kernels ran on
it
"""
SHARED_PERCENT = 10
"""of a second, from which on others are considered to use the GPU; a desktop uses less"""


@dataclass(frozen=True, slots=True)
class Environment:
    """Conditions of a measurement other than the device; after a change, results are doubtful but comparable."""

    driver: str
    """version of the driver"""
    toolkit: str
    """compiler name and version"""
    flags: str
    """flags of the compiler"""
    attributes: Mapping[str, str] = field(default_factory=dict)
    """uuid, clocks, host name, library versions: recorded, not matched"""

    @property
    def identity(self) -> tuple[str, str, str]:
        """The fields that are matched."""
        return (self.driver, self.toolkit, self.flags)


@dataclass(frozen=True, slots=True)
class Rate:
    """One measured rate."""

    unit: str
    """copy, read or fill of memory, fp32 for FFMA, tf32 or fp16 (any 16-bit type) for tensor cores"""
    method: str
    """how it was measured, such as `mma.sync m16n8k16`"""
    per_s: float
    """bytes of copy (read plus written), read and fill, else floating-point operations"""


def best_rates(rates: Iterable[Rate]) -> dict[str, float]:
    """The largest rate of each unit, by any method."""
    best: dict[str, float] = {}
    for rate in rates:
        best[rate.unit] = max(rate.per_s, best.get(rate.unit, 0.0))
    return best


@dataclass(frozen=True, slots=True)
class Launch:
    """One kernel launch with everything evaluated.

    Pointers are np.uint64, scalars np.int32/int64/float32/float64.
    """

    entry: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    smem_bytes: int
    args: tuple[np.generic | BoundTensorMap, ...]


CONVOLUTIONS = ("conv2d", "conv", "conv_transpose")
"""Operations that PyTorch has as convolutions."""
BASELINES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"cudnn": (*CONVOLUTIONS, "conv_filter_gradient"), "inductor": CONVOLUTIONS, "cublas": ("gemm",)}
)
"""Libraries that can be timed next to the kernels, each with its operations."""


@dataclass(frozen=True, slots=True)
class Baseline:
    """An alternative that a user would run instead of a kernel, timed next to it."""

    library: str
    """cudnn, cublas: PyTorch's operators; inductor: `torch.compile`"""
    layout: str
    """nchw or nhwc, of all its tensors, or a product's transposes; the timed part converts nothing"""
    tf32: bool = False
    """whether f32 data may be multiplied as TF32"""
    fused: bool = False
    """whether bias and activation are part of the library's operator, rather than pointwise kernels after it"""

    @property
    def name(self) -> str:
        """Its name in verdicts."""
        return f"{self.library} {self.layout}{' fused' if self.fused else ''}{' tf32' if self.tf32 else ''}"

    def accuracy(self, dtype: str) -> str:
        """Its accuracy class on data of a storage type."""
        return {"f32": "tf32" if self.tf32 else "fp32", "f16": "fp16", "bf16": "bf16"}[dtype]


def _nothing() -> None:
    """Nothing to release for ordinary passes."""


@dataclass(frozen=True, slots=True)
class Passes:
    """Forward passes that one call enqueues."""

    enqueue: Callable[[], None]
    count: int = 1
    """passes of one call"""
    launch: Launching = "stream"
    close: Callable[[], None] = _nothing
    """releases their resources; afterwards they must not be enqueued"""


MATRIX_TYPES = ("tf32", "f16", "bf16")
"""Element types of a library's matrix products; tf32 is float32 multiplied as TF32."""

Order = Literal["ascending", "descending", "warps", "threads"]
"""Which of a block's threads continues when one waits, and in which order blocks run.

All but `threads` run one warp until all its lanes wait for others. `warps` chooses warps, lanes and blocks at random.
`threads` chooses blocks at random, and a random thread of any warp whenever a thread waits.
"""

POISON = 0xFF
"""The byte that fills all memory that a kernel must not rely on: all ones is NaN in every storage type."""
LEFT = 256
"""Instead of a byte value: shared memory stays as the previous block left it."""


@dataclass(frozen=True, slots=True)
class Variation:
    """Another way to run the same launches."""

    order: Order | None = None
    """None: the device's own"""
    smem_byte: int | None = None
    """fills shared memory before a block starts; LEFT: nothing does; None: the device's own"""
    one_core: bool = False
    """blocks run one after another"""
    some_blocks: int = 0
    """number of blocks of a launch that run; new memory then takes no space until it is written. 0: all"""


HostArray: TypeAlias = "npt.NDArray[np.uint8]"
"""An array in the host's memory."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One timing of a forward pass."""

    us: float
    """microseconds of one pass"""
    sm_clock_mhz: float | None = None
    """mean clock of the multiprocessors during it; None if it is unknown"""


@dataclass(frozen=True, slots=True)
class Health:
    """The current values of a device's sensors; None for a sensor that does not exist."""

    power_w: float | None = None
    temperature_c: float | None = None


class Module(Protocol):
    """A loaded program."""

    def ready(self, launch: Launch) -> None:
        """Do the host's preparation for a launch in advance, so that it is not timed. Raises as `launch` does."""

    def launch(self, launch: Launch, *, stream: int = 0) -> None:
        """Enqueue one kernel on a numbered stream. Raises Rejected('runtime', ...) when the device refuses it."""

    def symbol(self, name: str) -> tuple[int, int]:
        """Address and size in bytes of a __constant__ or __device__ variable."""

    def variables(self) -> Mapping[str, bytes]:
        """The variables that kernels can write and that outlive a launch, with their content; none if the device
        cannot list them.
        """

    def unload(self) -> None:
        """Free the program; the module must not be used afterwards."""


class Device(Protocol):
    """An open device.

    Addresses are plain integers in the device's address space. Stream 0 is the default stream, in which everything runs
    without a stream number; work in other streams may overlap.
    """

    @property
    def info(self) -> DeviceInfo: ...

    @property
    def environment(self) -> Environment: ...

    def admit(self, problem: Problem) -> None:
        """Raise DeviceError if a forward pass would take far too long here, naming an n that would not."""

    def allocate(self, size_bytes: int) -> int:
        """Address of new memory, aligned to 256 bytes. Raises Rejected('runtime', 'out_of_memory', ...)."""

    def free(self, address: int) -> None: ...

    def write(self, address: int, content: bytes) -> None: ...

    def read(self, address: int, size_bytes: int) -> bytes: ...

    def fill(self, address: int, byte: int, size_bytes: int) -> None:
        """Set every byte."""

    def copy(self, to: int, source: int, size_bytes: int) -> None:
        """Device-to-device copy (constant symbols are filled with it)."""

    def allocate_host(self, size_bytes: int, *, pinned: bool) -> HostArray:
        """Memory of the host to copy from and to; page-locked when pinned. It is freed with the array."""

    def copy_in(self, to: int, source: HostArray, *, stream: int) -> None:
        """Enqueue a copy to the device on a numbered stream; the array must not change until it is done."""

    def copy_out(self, to: HostArray, source: int, *, stream: int) -> None:
        """Enqueue a copy from the device on a numbered stream."""

    def load(self, binary: Binary) -> Module: ...

    def hide(self, address: int, size_bytes: int) -> bool:
        """End the process of a kernel that accesses these bytes; return False if the device cannot watch them."""

    def watch(self, address: int, size_bytes: int, *, poisoned: bool = False) -> None:
        """Reject kernels in which one block writes a word of these bytes and another block writes or reads it, unless
        atomic functions order them. With `poisoned`, also reject kernels that read a word that still holds the poison.

        Devices that cannot observe each access ignore this.
        """

    def varied(self, how: Variation) -> AbstractContextManager[bool]:
        """Run the launches inside in another way. Yields False if that is the normal way, or if the device cannot do
        it.
        """

    def synchronize(self) -> None:
        """Wait for everything enqueued. Raises Rejected('runtime', 'illegal_address' | 'trap' | ..., ...)."""

    @property
    def stream_handle(self) -> int:
        """Address of the stream that 0 refers to, as C interfaces take it: another one during a capture."""

    @property
    def short_us(self) -> float:
        """Passes shorter than this are timed in a graph, several in a row, because alone they would include launch
        gaps.
        """

    def record(self, passes: Sequence[Callable[[], None]]) -> Passes:
        """Functions that each enqueue a pass on stream 0, in one call without gaps if the device has graphs.

        They are run once before. Raises Rejected for a failed launch.
        """

    def time(self, passes: Passes, *, cold: bool) -> Sample:
        """Time per pass, from the start of the first launch to the end of the last.

        `cold` empties the caches only before the first pass: several passes are all cold if each has its own arrays.
        """

    def health(self) -> Health: ...

    def busy_percent(self) -> int | None:
        """The share of the last second in which programs' kernels ran on the device, before any of this program.

        None if it is unknown.
        """

    def baselines(
        self, baselines: Sequence[Baseline], problem: Problem, *, passes: int, cold: bool
    ) -> tuple[Passes | str, ...]:
        """This many recorded forward passes of each baseline, or why it cannot run the problem.

        `cold`: each pass is on its own arrays, otherwise all are on the same, as for the kernels. Raises DeviceError if
        there is no such library.
        """

    def matrix_product(self, dtype: str, size: int) -> Callable[[], None]:
        """A function that enqueues a library's product of two random `size` x `size` matrices.

        `dtype` is one of MATRIX_TYPES. Raises DeviceError if there is no such library.
        """

    def close(self) -> None: ...
