"""The `cuda:N` device through PyCUDA: compile, load, launch, events, cold L2. The only importer of pycuda."""

from __future__ import annotations

import importlib.metadata
import platform
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

import numpy as np

from autotune.compilation.compile import (
    NVCC_FLAGS,
    Binary,
    Program,
    compile_cubin,
    compile_with_least,
    first_errors,
)
from autotune.compilation.toolchain import compiler_version, find_nvcc
from autotune.devices.device import (
    Baseline,
    DeviceInfo,
    Environment,
    Health,
    HostArray,
    Launch,
    Passes,
    Sample,
    Variation,
)
from autotune.devices.driver_api import DriverError
from autotune.devices.driver_launch import DriverModule
from autotune.devices.graphs import record
from autotune.devices.tensor_map import BoundTensorMap
from autotune.errors import DeviceError, Rejected
from autotune.problem import Problem
from autotune.trial import LONG_US, Outcome

try:
    import pycuda.compiler
    import pycuda.driver as driver
except ImportError as error:  # no libcuda, or PyCUDA not installed
    _WHY_NOT = str(error)
else:
    _WHY_NOT = ""

try:
    import pynvml
except ImportError:
    pynvml = None

_FLUSH_L2_SIZES = 4  # times the L2 size written before a cold sample; long enough to hide the launch that follows
_SPIN_CLOCKS = 200_000  # about 100 us, more than enqueueing a pass or a graph takes from Python
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: a stream that does not wait for the default one
_LEAST_CLOCKED_NS = 50_000  # the nanosecond timer of some GPUs ticks once a microsecond
_PROBE = Path(__file__).parent / "probe.ptx"
_STICKY = {
    "illegal memory access": "illegal_address",
    "misaligned address": "misaligned_address",
    "illegal instruction": "trap",
    "unspecified launch failure": "trap",
    "device-side assert": "assert",
    "too many resources requested": "launch_failure",
    "invalid argument": "launch_failure",
    "launch timed out": "hang",
    "out of memory": "out_of_memory",
}


def compile_cuda(program: Program, arch: int) -> Binary:
    """Compile with PyCUDA, or with the same nvcc command where libcuda is absent.

    Raises Rejected('compile', 'compile_error', nvcc's first errors) and ToolchainError without nvcc.
    """
    nvcc = find_nvcc()
    if _WHY_NOT:
        return compile_cubin(program, arch, nvcc)

    def run_nvcc(options: Sequence[str]) -> tuple[bytes, str]:
        *others, arch_option = options
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                image = pycuda.compiler.compile(
                    program.text,
                    nvcc=str(nvcc),
                    options=others,
                    arch=arch_option.removeprefix("-arch="),
                    no_extern_c=True,
                    cache_dir=False,
                    target="cubin",
                )
            except driver.CompileError as failure:
                words = first_errors(str(failure), "/tmp")  # noqa: S108
                raise Rejected(Outcome.COMPILE, "compile_error", words) from None
        return image, "\n".join(str(warning.message) for warning in said)

    return compile_with_least(run_nvcc, program, arch)


class Streams:
    """Streams by number, made when first used.

    0 is the default stream, or what stands for it while passes are recorded.
    """

    def __init__(self) -> None:
        self._made: dict[int, driver.Stream] = {}
        self._default: driver.Stream | None = None
        self._recording: driver.Stream | None = None

    @property
    def default_handle(self) -> int:
        """Address of the stream that 0 stands for."""
        return 0 if self._default is None else int(self._default.handle)

    @contextmanager
    def recording(self) -> Iterator[int]:
        """Have 0 stand for a stream that can be captured; its address."""
        if self._recording is None:
            self._recording = driver.Stream(_NON_BLOCKING)
        self._default = self._recording
        try:
            yield self.default_handle
        finally:
            self._default = None

    def __getitem__(self, number: int) -> driver.Stream | None:
        if number == 0:
            return self._default
        if number not in self._made:
            self._made[number] = driver.Stream()
        return self._made[number]

    def close(self) -> None:
        """Drop them, while their context is still there."""
        self._made.clear()
        self._recording = None


class CudaModule:
    """A cubin loaded into the current context."""

    def __init__(self, image: bytes, streams: Streams) -> None:
        self._image = image
        self._module = driver.module_from_buffer(image)
        self._mapped: DriverModule | None = None
        """the same once more, where kernels take tensor maps"""
        self._streams = streams
        self._functions: dict[str, driver.Function] = {}

    def ready(self, launch: Launch) -> None:
        """Find the function; encode tensor maps."""
        try:
            if any(isinstance(argument, BoundTensorMap) for argument in launch.args):
                self._with_maps().ready(launch)
            else:
                self._function(launch)
        except (driver.Error, DriverError) as error:
            raise _rejected(error) from None

    def launch(self, launch: Launch, *, stream: int = 0) -> None:
        """Enqueue one kernel on a stream."""
        try:
            plain = [argument for argument in launch.args if not isinstance(argument, BoundTensorMap)]
            if len(plain) < len(launch.args):
                on = self._streams[stream]
                self._with_maps().launch(launch, 0 if on is None else int(on.handle))
                return
            self._function(launch)(
                *plain,
                grid=launch.grid,
                block=launch.block,
                shared=launch.smem_bytes,
                stream=self._streams[stream],
            )
        except (driver.Error, DriverError) as error:
            raise _rejected(error) from None

    def symbol(self, name: str) -> tuple[int, int]:
        """Address and bytes of a __constant__ or __device__ variable."""
        try:
            address, size_bytes = self._module.get_global(name)
        except driver.Error as error:
            raise _rejected(error) from None
        return int(address), int(size_bytes)

    def unload(self) -> None:
        """Drop the module; PyCUDA unloads it when nothing refers to it."""
        self._functions.clear()
        if self._mapped is not None:
            self._mapped.unload()
        del self._module

    def _with_maps(self) -> DriverModule:
        if self._mapped is None:
            self._mapped = DriverModule(self._image)
        return self._mapped

    def _function(self, launch: Launch) -> driver.Function:
        function = self._functions.get(launch.entry)
        if function is None:
            function = self._module.get_function(launch.entry)
            if launch.smem_bytes:
                function.set_attribute(driver.function_attribute.MAX_DYNAMIC_SHARED_SIZE_BYTES, launch.smem_bytes)
            self._functions[launch.entry] = function
        return function


class _Clocks:
    """The multiprocessors' clock over a measurement: cycles and nanoseconds are noted before and after it."""

    def __init__(self, probe: CudaModule, sm_count: int) -> None:
        self._probe = probe
        self._notes = np.zeros((2, sm_count, 3), np.int64)
        self._memory = driver.mem_alloc(self._notes.nbytes)
        driver.memset_d8(int(self._memory), 0, self._notes.nbytes)
        self._serial = 0

    def begin(self) -> None:
        """Enqueue the first note of a measurement."""
        self._serial += 1
        self._note(0)

    def end(self) -> None:
        """Enqueue its second."""
        self._note(1)

    def _note(self, which: int) -> None:
        to = int(self._memory) + which * self._notes[0].nbytes
        blocks = (self._notes.shape[1], 1, 1)
        self._probe.launch(Launch("stamp", blocks, (1, 1, 1), 0, (np.uint64(to), np.uint64(self._serial))))

    def read_mhz(self) -> float | None:
        """The mean clock between the two notes; None when it was too short, or no multiprocessor made both."""
        driver.memcpy_dtoh(self._notes, int(self._memory))
        before, after = self._notes
        same = (before[:, 2] == self._serial) & (after[:, 2] == self._serial)
        cycles, nanoseconds = (after - before)[same, 0], (after - before)[same, 1]
        if not same.any() or nanoseconds.max() < _LEAST_CLOCKED_NS:
            return None
        return round(float(np.median(1000.0 * cycles / nanoseconds)), 1)  # the timer tells no more


class _Sensors:
    """Power and temperature of a GPU from NVML."""

    def __init__(self, pci_bus_id: str) -> None:
        self._handle: object = None
        if pynvml is not None:
            with suppress(pynvml.NVMLError):
                pynvml.nvmlInit()
                self._handle = pynvml.nvmlDeviceGetHandleByPciBusId(pci_bus_id.encode())

    def read(self) -> Health:
        """What the sensors say now; nothing where there are none."""
        if self._handle is None:
            return Health()
        try:
            return Health(
                power_w=pynvml.nvmlDeviceGetPowerUsage(self._handle) / 1000,
                temperature_c=float(pynvml.nvmlDeviceGetTemperature(self._handle, pynvml.NVML_TEMPERATURE_GPU)),
            )
        except pynvml.NVMLError:
            return Health()


class CudaDevice:
    """One GPU, in its primary context (which other libraries of the process share)."""

    def __init__(self, number: int) -> None:
        if _WHY_NOT:
            raise DeviceError(
                f"cuda:{number}: PyCUDA cannot be used here ({_WHY_NOT}); on a machine with an NVIDIA driver install "
                f"it as the README's GPU section says, or take --device host"
            )
        try:
            driver.init()
            count = driver.Device.count()
        except driver.Error as error:
            raise DeviceError(f"cuda:{number}: the NVIDIA driver does not answer: {error}") from None
        if number >= count:
            raise DeviceError(f"cuda:{number}: this machine has {count} CUDA device(s), cuda:0 to cuda:{count - 1}")
        self._number = number
        self._device = driver.Device(number)
        self._context = self._device.retain_primary_context()
        self._context.push()
        self._info = _device_info(self._device)
        self._allocations: dict[int, driver.DeviceAllocation] = {}
        self._flush_bytes = max(_FLUSH_L2_SIZES * self._info.l2_bytes, 64 << 20)
        self._flush = driver.mem_alloc(self._flush_bytes)
        self._flushes = 0
        self._start, self._end = driver.Event(), driver.Event()
        self._streams = Streams()
        self._probe = CudaModule(_PROBE.read_bytes() + b"\0", self._streams)
        self._clocks = _Clocks(self._probe, self._info.sm_count)
        self._sensors = _Sensors(self._device.pci_bus_id())

    @property
    def info(self) -> DeviceInfo:
        """Identity and limits as the driver tells them."""
        return self._info

    @property
    def environment(self) -> Environment:
        """Driver, nvcc and flags."""
        version = driver.get_driver_version()
        return Environment(
            driver=_driver_name() or f"CUDA {version // 1000}.{version % 1000 // 10}",
            toolkit=compiler_version(find_nvcc()),
            flags=" ".join(NVCC_FLAGS),
            attributes={
                "pci_bus": self._device.pci_bus_id(),
                "sm_clock_mhz": str(self._device.clock_rate // 1000),
                "pycuda": importlib.metadata.version("pycuda"),
                "host": platform.node(),
            },
        )

    def admit(self, problem: Problem) -> None:
        """Any layer."""

    def allocate(self, size_bytes: int) -> int:
        """Device memory."""
        try:
            allocation = driver.mem_alloc(max(size_bytes, 1))
        except driver.Error as error:
            raise Rejected(Outcome.RUNTIME, "out_of_memory", f"{size_bytes} bytes: {error}") from None
        self._allocations[int(allocation)] = allocation
        return int(allocation)

    def free(self, address: int) -> None:
        """Give memory back."""
        self._allocations.pop(address).free()

    def write(self, address: int, content: bytes) -> None:
        """Copy to the device."""
        with _rejecting():
            driver.memcpy_htod(address, np.frombuffer(content, dtype=np.uint8))

    def read(self, address: int, size_bytes: int) -> bytes:
        """Copy from the device."""
        content = np.empty(size_bytes, dtype=np.uint8)
        try:
            driver.memcpy_dtoh(content, address)
        except driver.Error as error:
            raise _rejected(error) from None
        return content.tobytes()

    def fill(self, address: int, byte: int, size_bytes: int) -> None:
        """Set every byte."""
        with _rejecting():
            driver.memset_d8(address, byte, size_bytes)

    def copy(self, to: int, source: int, size_bytes: int) -> None:
        """Device-to-device copy."""
        with _rejecting():
            driver.memcpy_dtod(to, source, size_bytes)

    def allocate_host(self, size_bytes: int, *, pinned: bool) -> HostArray:
        """Page-locked memory through the driver, or ordinary memory."""
        if not pinned:
            return np.empty(size_bytes, np.uint8)
        try:
            return driver.pagelocked_empty((size_bytes,), np.uint8)
        except driver.Error as error:
            raise Rejected(Outcome.RUNTIME, "out_of_memory", f"{size_bytes} bytes of host memory: {error}") from None

    def copy_in(self, to: int, source: HostArray, *, stream: int) -> None:
        """Enqueue; from pageable memory the driver returns when it has staged the last of it."""
        try:
            driver.memcpy_htod_async(to, source, self._streams[stream])
        except driver.Error as error:
            raise _rejected(error) from None

    def copy_out(self, to: HostArray, source: int, *, stream: int) -> None:
        """Enqueue; into pageable memory the driver returns when all is there."""
        try:
            driver.memcpy_dtoh_async(to, source, self._streams[stream])
        except driver.Error as error:
            raise _rejected(error) from None

    def load(self, binary: Binary) -> CudaModule:
        """Load a cubin."""
        try:
            return CudaModule(binary.image, self._streams)
        except driver.Error as error:
            raise _rejected(error) from None

    def hide(self, address: int, size_bytes: int) -> bool:  # noqa: ARG002 - nothing watches them
        """Not here."""
        return False

    def varied(self, how: Variation) -> AbstractContextManager[bool]:  # noqa: ARG002 - the hardware decides
        """Not here."""
        return nullcontext(enter_result=False)

    def synchronize(self) -> None:
        """Wait; an error of any kernel before comes out here."""
        try:
            driver.Context.synchronize()
        except driver.Error as error:
            raise _rejected(error) from None

    @property
    def stream_handle(self) -> int:
        """0 is the default stream's own address."""
        return self._streams.default_handle

    @property
    def short_us(self) -> float:
        """What a graph saves, 1 to 3 us a launch, is noise from here on."""
        return LONG_US

    def record(self, passes: Sequence[Callable[[], None]]) -> Passes:
        """The passes as one CUDA graph."""
        each = tuple(passes)

        def enqueue() -> None:
            for run in each:
                run()

        enqueue()  # code comes to the device with a kernel's first launch, which a capture does not allow
        self.synchronize()
        try:
            with self._streams.recording() as stream:
                graph = record(stream, enqueue)
        except DriverError as error:
            raise _rejected(error) from None
        return Passes(graph.launch, len(each), launch="graph", close=graph.close)

    def time(self, passes: Passes, *, cold: bool) -> Sample:
        """Events around the passes, which are queued while the device is kept busy before the first event.

        Cold: writing over the L2 cache keeps it busy. Hot: the passes run once before. A kernel that spins gives the
        time to queue what follows.
        """
        try:
            if cold:
                self._flushes += 1
                driver.memset_d8_async(int(self._flush), self._flushes % 251, self._flush_bytes)
            else:
                passes.enqueue()
            if passes.count > 1 or not cold:
                self._spin(_SPIN_CLOCKS)
            self._clocks.begin()
            self._start.record()
            passes.enqueue()
            self._end.record()
            self._clocks.end()
            self._end.synchronize()
            us = 1000.0 * float(self._end.time_since(self._start)) / passes.count
            return Sample(us, self._clocks.read_mhz())
        except (driver.Error, DriverError) as error:
            raise _rejected(error) from None

    def _spin(self, clocks: int) -> None:
        self._probe.launch(Launch("spin", (1, 1, 1), (1, 1, 1), 0, (np.uint64(clocks),)))

    def health(self) -> Health:
        """From NVML, where it is installed."""
        return self._sensors.read()

    def baselines(
        self, baselines: Sequence[Baseline], problem: Problem, *, passes: int, cold: bool
    ) -> tuple[Passes | str, ...]:
        """PyTorch's operators in this device's primary context."""
        if not baselines:
            return ()
        from autotune.devices.torch_baseline import record_baselines

        return record_baselines(baselines, problem, self._number, passes, cold=cold)

    def matrix_product(self, dtype: str, size: int) -> Callable[[], None]:
        """PyTorch's (cuBLAS) in this device's primary context."""
        from autotune.devices.torch_baseline import cublas_runner

        return cublas_runner(dtype, size, self._number)

    def close(self) -> None:
        """Leave the primary context; PyCUDA aborts at exit when one is still on its stack."""
        self._streams.close()
        self._context.pop()


@contextmanager
def _rejecting() -> Iterator[None]:
    """Raise Rejected for what the driver reports, be it the fault of a kernel launched before."""
    try:
        yield
    except driver.Error as error:
        raise _rejected(error) from None


def _rejected(error: Exception) -> Rejected:
    words = str(error)
    reason = next((reason for phrase, reason in _STICKY.items() if phrase in words.lower()), "launch_failure")
    outcome = Outcome.TIMEOUT if reason == "hang" else Outcome.RUNTIME
    return Rejected(outcome, reason, words)


def _driver_name() -> str:
    """The driver's version as its own file tells it, e.g. 580.159.03; empty when there is none."""
    path = Path("/proc/driver/nvidia/version")
    words = path.read_text().split("Kernel Module")[-1].split() if path.is_file() else []
    return next((word for word in words if word[0].isdigit()), "")


def _device_info(device: driver.Device) -> DeviceInfo:
    major, minor = device.compute_capability()
    attribute = driver.device_attribute

    def of(name: str) -> int:
        return int(device.get_attribute(getattr(attribute, name)))

    return DeviceInfo(
        kind="cuda",
        name=device.name(),
        arch=10 * major + minor,
        sm_count=of("MULTIPROCESSOR_COUNT"),
        memory_bytes=int(device.total_memory()),
        max_threads_per_block=of("MAX_THREADS_PER_BLOCK"),
        smem_per_block_bytes=of("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        smem_per_sm_bytes=of("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        registers_per_sm=of("MAX_REGISTERS_PER_MULTIPROCESSOR"),
        max_warps_per_sm=of("MAX_THREADS_PER_MULTIPROCESSOR") // of("WARP_SIZE"),
        max_blocks_per_sm=of("MAX_BLOCKS_PER_MULTIPROCESSOR"),
        constant_bytes=of("TOTAL_CONSTANT_MEMORY"),
        l2_bytes=of("L2_CACHE_SIZE"),
        grid_limits=(of("MAX_GRID_DIM_X"), of("MAX_GRID_DIM_Y"), of("MAX_GRID_DIM_Z")),
        block_limits=(of("MAX_BLOCK_DIM_X"), of("MAX_BLOCK_DIM_Y"), of("MAX_BLOCK_DIM_Z")),
    )
