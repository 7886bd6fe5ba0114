"""The CPU as a device, which runs the unmodified CUDA text, compiled as C++ with the headers in `host_include`.

Each CUDA thread is a fiber, and blocks are distributed over the cores. The limits of compute capability 9.0 are
enforced. The measured times rank kernels on this CPU but say nothing about a GPU.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from autotune.compilation.compile import Binary
from autotune.compilation.toolchain import output_of
from autotune.devices.device import (
    POISON,
    Baseline,
    DeviceInfo,
    Environment,
    Health,
    HostArray,
    Launch,
    Order,
    Passes,
    Sample,
    Variation,
)
from autotune.devices.host_compile import CHECK_FLAGS, FLAGS, STORAGE, Symbol, symbols
from autotune.devices.host_machine import cpu_name, last_cache_bytes, usable_cores
from autotune.devices.host_runtime import ORDERS, HostLaunch, WatchedArray, encode, load_runtime, symbol_address
from autotune.devices.tensor_map import BoundTensorMap
from autotune.errors import DeviceError, Rejected
from autotune.problem import Problem
from autotune.trial import Outcome

LAUNCH_BUDGET_S = 10.0  # a layer is refused if a plain kernel would take longer
PLAIN_FLOPS_PER_CORE = 1e9  # FLOP per second with one thread per output, measured on one 2020s server core
_LEAST_SMS = 2  # multiprocessors of a single-core CPU: families divide this number by the blocks of a cluster
MOST_CLUSTER_BLOCKS = 8  # maximum blocks of a cluster on every GPU with clusters
ALIGNMENT = 256  # alignment of every allocation, bytes
FLUSH_BYTES_MAX = 64 << 20  # maximum bytes written before a cold sample; more would take longer than most kernels
_REASON_BYTES, _MESSAGE_BYTES = 32, 512
_GAP_BYTES = 1 << 35  # inaccessible addresses on each side, more than a negative 32-bit index reaches
_MAP_NORESERVE, _PROT_NONE = 0x4000, 0  # constants of Linux
_SOME_BLOCKS_S = 1.0  # limit of CPU time for a launch that runs only some of its blocks
_MANGLED = re.compile(r"^_Z\w*\d(?=[A-Za-z_]\w*$)")  # the part of a mangled name before the variable's own name
_SMEM_BYTE = re.compile(r"byte (\d+) of shared memory")
_OWN = re.compile("autotune|asan")  # variables that no kernel declares


@dataclass(frozen=True, slots=True)
class HostOptions:
    """How the device runs kernels."""

    cores: int
    """number of operating-system threads that run blocks"""
    order: Order = "ascending"
    """order of blocks, and of a block's threads when a thread waits"""
    order_seed: int = 0
    """seed of the random orders"""
    launch_limit_s: float = 60.0
    """CPU time on one core after which a launch is stopped between two blocks"""
    short_us: float = 0.0
    """passes shorter than this are timed several at once; 0: none, because a call from Python costs little here"""
    smem_byte: int = POISON
    """byte that fills the shared memory of a block before the block starts"""
    some_blocks: int = 0
    """number of blocks that run in each launch, 0 for all; if set, new memory takes no space until it is written"""
    checked: bool = False
    """whether kernels run under sanitizers, so that times cannot be compared with normal runs"""


@dataclass(frozen=True, slots=True)
class _Entry:
    address: int
    sizes_bytes: tuple[int, ...]
    cluster: int
    """number of blocks of a cluster"""
    most_threads: int
    """maximum threads of a block, from the kernel's launch bounds"""


class HostModule:
    """A program loaded into this process."""

    def __init__(self, device: HostDevice, binary: Binary) -> None:
        self._device = device
        self._check = binary.target.check
        self._fd = os.memfd_create("autotune-kernel")
        try:
            with open(self._fd, "wb", closefd=False) as file:
                file.write(binary.image)
            self._library = ctypes.CDLL(f"/proc/self/fd/{self._fd}", mode=ctypes.RTLD_LOCAL | os.RTLD_NOW)
        except OSError as error:
            os.close(self._fd)
            raise Rejected(Outcome.RUNTIME, "load_failure", f"cannot load the compiled kernel: {error}") from error
        self._symbols = symbols(binary.image)
        self._static_smem_bytes = binary.resources.static_smem_bytes
        self._entries = {name: self._find_entry(name) for name in binary.entries}
        self._smem = symbol_address(self._library, "autotune_smem_address")
        module, size = ctypes.c_uint64(), ctypes.c_uint64()
        device.runtime.autotune_tls(ctypes.c_void_p(self._library._handle), ctypes.byref(module), ctypes.byref(size))
        self._tls_module, self._tls_bytes = module.value, size.value

    def _find_entry(self, name: str) -> _Entry:
        sizes = (ctypes.c_uint * 64)()
        count = getattr(self._library, f"autotune_sizes_{name}")(sizes)
        cluster = self._constant(f"autotune_cluster_{name}", 1)
        most_threads = self._constant(f"autotune_launch_bounds_{name}", self._device.info.max_threads_per_block)
        address = symbol_address(self._library, f"autotune_call_{name}")
        return _Entry(address, tuple(sizes[:count]), cluster, most_threads)

    def _constant(self, name: str, default: int) -> int:
        address = symbol_address(self._library, name)
        return ctypes.c_uint.from_address(address).value if address else default

    def ready(self, launch: Launch) -> None:
        """Do nothing, because launches on the host need no preparation."""

    def launch(self, launch: Launch, *, stream: int = 0) -> None:  # noqa: ARG002 - there is one stream
        """Run a kernel to its end. If it fails, the device's next `synchronize` raises the error."""
        entry = self._entries.get(launch.entry)
        if entry is None:
            raise Rejected(Outcome.RUNTIME, "launch_failure", f"no kernel {launch.entry} in the program")
        limits = replace(self._device.info, max_threads_per_block=entry.most_threads)
        check_limits(launch, limits, self._static_smem_bytes, cluster=entry.cluster)
        options = self._device.options
        content = [_content(argument) for argument in launch.args]
        sizes = tuple(array.nbytes for array in content)
        if sizes != entry.sizes_bytes:
            message = f"{launch.entry} takes arguments of {entry.sizes_bytes} bytes and was given {sizes}"
            raise Rejected(Outcome.RUNTIME, "launch_failure", message)
        arguments = (ctypes.c_void_p * max(1, len(content)))(*(array.ctypes.data for array in content))
        given = {each.address for each in launch.args if isinstance(each, BoundTensorMap)}
        given |= {int(each) for each in launch.args if isinstance(each, np.uint64)}
        watched = [each for each in self._device.watched if self._check and each.address in given]
        arrays = (WatchedArray * max(1, len(watched)))(*watched)
        request = HostLaunch(
            kernel=entry.address,
            arguments=ctypes.addressof(arguments),
            smem=self._smem,
            smem_bytes=launch.smem_bytes,
            tls_module=self._tls_module,
            tls_bytes=self._tls_bytes,
            order_seed=options.order_seed,
            limit_ns=int(options.launch_limit_s * 1e9),
            grid=launch.grid,
            block=launch.block,
            cluster=entry.cluster,
            some_blocks=options.some_blocks,
            cores=options.cores,
            order=ORDERS.index(options.order),
            smem_byte=options.smem_byte,
            array_count=len(watched),
            arrays=ctypes.addressof(arrays),
        )
        self._device.run(request, self._with_variable)

    def _with_variable(self, message: str) -> str:
        """Return the message with a position in shared memory replaced by the variable at that position."""

        def placed(found: re.Match[str]) -> str:
            byte = int(found[1])
            for name, symbol in self._symbols.items():
                if symbol.thread_local and symbol.offset <= byte < symbol.offset + symbol.size_bytes:
                    own = _MANGLED.sub("", name).removeprefix(STORAGE)
                    return f"byte {byte - symbol.offset} of {own} in shared memory"
            return found[0]

        return _SMEM_BYTE.sub(placed, message)

    def symbol(self, name: str) -> tuple[int, int]:
        """Return the address of a __constant__ or __device__ variable, and its size in bytes."""
        found: Symbol | None = self._symbols.get(name)
        address = symbol_address(self._library, name) if found and not found.thread_local else 0
        if not found or not address:
            raise Rejected(Outcome.RUNTIME, "launch_failure", f"no variable {name} in the program")
        return address, found.size_bytes

    def variables(self) -> Mapping[str, bytes]:
        """Return the contents of all of the program's writable variables, except for shared memory."""
        base = ctypes.c_uint64.from_address(self._library._handle).value  # the first field of glibc's link_map
        return {
            _MANGLED.sub("", name): ctypes.string_at(base + found.offset, found.size_bytes)
            for name, found in self._symbols.items()
            if found.writable and not _OWN.search(name)
        }

    def unload(self) -> None:
        """Free the program, after which the module must not be used."""
        if self._fd >= 0:
            self._device.unload(self._library._handle)
            # Close the descriptor only now: the loader identifies a library by its path, and the number would be
            # reused.
            os.close(self._fd)
            self._fd = -1


class HostDevice:
    """This machine's CPU. `cxx` is the C++ compiler. It also compiles the runtime (0.3 s), unless one is given."""

    kind = "host"
    """kind of the device; a subclass may use another kind that has entries in `backends` and `device.ABILITIES`"""

    def __init__(self, cxx: str, options: HostOptions | None = None, runtime: Binary | None = None) -> None:
        self.options = options or HostOptions(cores=usable_cores())
        self.runtime = load_runtime(cxx, runtime)
        self._libc = ctypes.CDLL(None)
        self._info = DeviceInfo(
            kind=self.kind,
            name=f"{cpu_name()}, checked" if self.options.checked else cpu_name(),
            arch=90,
            sm_count=max(_LEAST_SMS, self.options.cores),
            memory_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            l2_bytes=last_cache_bytes(),
        )
        self._environment = Environment(
            driver=f"{os.uname().sysname} {os.uname().machine}",
            toolkit=_version(cxx),
            flags=" ".join(CHECK_FLAGS if self.options.checked else FLAGS),
            attributes={"kernel": os.uname().release},
        )
        self._sizes: dict[int, int] = {}
        self._reserved: dict[int, mmap.mmap] = {}
        self.watched: list[WatchedArray] = []
        """arrays that are checked for conflicts between blocks in checked programs"""
        self._flush: np.ndarray[tuple[int], np.dtype[np.uint8]] | None = None
        self._failure: Rejected | None = None

    @property
    def info(self) -> DeviceInfo:
        """The device's identity and limits."""
        return self._info

    @property
    def environment(self) -> Environment:
        """The operating system, the compiler and the flags."""
        return self._environment

    def admit(self, problem: Problem) -> None:
        """Raise DeviceError if a forward pass would take more than LAUNCH_BUDGET_S, suggesting a smaller n."""
        size = problem.runtime_size
        item_s = problem.flops / size / (PLAIN_FLOPS_PER_CORE * self.options.cores)
        if item_s * size > LAUNCH_BUDGET_S:
            most = int(LAUNCH_BUDGET_S / item_s)
            runtime = problem.operation.leading
            advice = f"use {runtime} = {most}" if most else f"no {runtime} is small enough; tune it on a GPU"
            raise DeviceError(
                f"host: {problem}: its {problem.flops:.2g} FLOP would take a plain kernel about {item_s * size:.0f} s "
                f"on this CPU, more than {LAUNCH_BUDGET_S:.0f} s; {advice}"
            )

    def allocate(self, size_bytes: int) -> int:
        """Allocate memory and return its address. If AddressSanitizer is loaded, it watches both ends of the memory."""
        if self.options.some_blocks:
            return self._reserve(size_bytes)
        held = sum(self._sizes.values())
        address = ctypes.c_void_p()
        full = held + size_bytes > self._info.memory_bytes
        if full or self._libc.posix_memalign(
            ctypes.byref(address), ctypes.c_size_t(ALIGNMENT), ctypes.c_size_t(max(1, size_bytes))
        ):
            message = f"{size_bytes} bytes on top of {held} exceed the memory of this machine"
            raise Rejected(Outcome.RUNTIME, "out_of_memory", message)
        self._sizes[address.value or 0] = size_bytes
        return address.value or 0

    def _reserve(self, size_bytes: int) -> int:
        """Reserve zeros that take up no space until they are written, between inaccessible addresses."""
        inside = -(-max(1, size_bytes) // mmap.PAGESIZE) * mmap.PAGESIZE
        try:
            memory = mmap.mmap(
                -1, inside + 2 * _GAP_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE
            )
        except OSError as error:
            raise Rejected(Outcome.RUNTIME, "out_of_memory", f"no {size_bytes} bytes of addresses: {error}") from error
        base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for gap in (base, base + _GAP_BYTES + inside):
            self._libc.mprotect(ctypes.c_void_p(gap), ctypes.c_size_t(_GAP_BYTES), _PROT_NONE)
        self._reserved[base + _GAP_BYTES] = memory
        return base + _GAP_BYTES

    def free(self, address: int) -> None:
        """Free memory from `allocate`."""
        if self._reserved.pop(address, None) is not None:
            return
        size_bytes = self._sizes.pop(address, None)
        if size_bytes is None:
            raise DeviceError(f"address {address:#x} was not allocated on the {self.kind} device")
        self.watched = [each for each in self.watched if not address <= each.address < address + size_bytes]
        self._libc.free(ctypes.c_void_p(address))

    def write(self, address: int, content: bytes) -> None:
        """Copy bytes to the device."""
        ctypes.memmove(address, content, len(content))

    def read(self, address: int, size_bytes: int) -> bytes:
        """Copy bytes from the device."""
        self.synchronize()
        return ctypes.string_at(address, size_bytes)

    def fill(self, address: int, byte: int, size_bytes: int) -> None:
        """Set every byte of a range of memory."""
        ctypes.memset(address, byte, size_bytes)

    def copy(self, to: int, source: int, size_bytes: int) -> None:
        """Copy within the device."""
        ctypes.memmove(to, source, size_bytes)

    def allocate_host(self, size_bytes: int, *, pinned: bool) -> HostArray:  # noqa: ARG002 - there is one memory
        """Allocate ordinary memory. `pinned` has no effect."""
        return np.empty(size_bytes, np.uint8)

    def copy_in(self, to: int, source: HostArray, *, stream: int) -> None:  # noqa: ARG002 - there is one stream
        """Copy to the device immediately, because the host has only one stream."""
        ctypes.memmove(to, source.ctypes.data, source.nbytes)

    def copy_out(self, to: HostArray, source: int, *, stream: int) -> None:  # noqa: ARG002 - there is one stream
        """Copy from the device immediately, because the host has only one stream."""
        ctypes.memmove(to.ctypes.data, source, to.nbytes)

    def load(self, binary: Binary) -> HostModule:
        """Load a program from `compile_host` into this process.

        Raises DeviceError for a checked program if the process wasn't started with AddressSanitizer.
        """
        if binary.target.kind != self.kind:
            raise DeviceError(f"a program for {binary.target.kind} does not run on the {self.kind} device")
        if binary.target.check and not hasattr(self._libc, "__asan_init"):
            raise DeviceError(
                "a checked program needs a process started with the variables of host_compile.check_environment()"
            )
        return HostModule(self, binary)

    def hide(self, address: int, size_bytes: int) -> bool:
        """Make AddressSanitizer report any access to these bytes until they are freed.

        Returns False if AddressSanitizer isn't loaded.
        """
        poison = getattr(self._libc, "__asan_poison_memory_region", None)
        if poison is None:
            return False
        poison(ctypes.c_void_p(address), ctypes.c_size_t(size_bytes))
        return True

    def watch(self, address: int, size_bytes: int, *, poisoned: bool = False) -> None:
        """In checked programs, check accesses to these bytes until the memory is freed."""
        if size_bytes:
            self.watched.append(WatchedArray(address, size_bytes, poisoned))

    @contextmanager
    def varied(self, how: Variation) -> Iterator[bool]:
        """Run launches inside the `with` block with other options. Yields whether the options make a difference."""
        before = self.options
        order, cores = how.order or before.order, 1 if how.one_core else before.cores
        smem_byte = before.smem_byte if how.smem_byte is None else how.smem_byte
        self.options = replace(
            before, order=order, cores=cores, smem_byte=smem_byte, some_blocks=how.some_blocks or before.some_blocks
        )
        if how.some_blocks:
            self.options = replace(self.options, launch_limit_s=_SOME_BLOCKS_S)
        try:
            yield self.options != before
        finally:
            self.options = before

    def run(self, request: HostLaunch, rewrite: Callable[[str], str]) -> None:
        """Run a launch to its end. Any error is kept for `synchronize`, with the message returned by `rewrite`."""
        reason = ctypes.create_string_buffer(_REASON_BYTES)
        message = ctypes.create_string_buffer(_MESSAGE_BYTES)
        if self.runtime.autotune_launch(ctypes.byref(request), reason, message, ctypes.c_size_t(_MESSAGE_BYTES)):
            word, text = reason.value.decode(), message.value.decode(errors="replace")
            timed_out = word == "too_long"
            self._failure = Rejected(
                Outcome.TIMEOUT if timed_out else Outcome.RUNTIME, "hang" if timed_out else word, rewrite(text)
            )

    def unload(self, handle: int) -> None:
        """Close a library opened by `load`."""
        self._libc.dlclose(ctypes.c_void_p(handle))

    def synchronize(self) -> None:
        """Raise an earlier kernel's error: Rejected('runtime', illegal_address | trap | assert | deadlock, ...)."""
        failure, self._failure = self._failure, None
        if failure:
            raise failure

    @property
    def short_us(self) -> float:
        """The value from the options."""
        return self.options.short_us

    @property
    def stream_handle(self) -> int:
        """Always 0, because there is only one stream."""
        return 0

    def record(self, passes: Sequence[Callable[[], None]]) -> Passes:
        """Combine the passes into one call that runs them one after another."""
        each = tuple(passes)

        def run() -> None:
            for enqueue in each:
                enqueue()

        return Passes(run, len(each))

    def time(self, passes: Passes, *, cold: bool) -> Sample:
        """Measure the wall-clock time per pass. With `cold`, overwrite the last-level cache first."""
        if cold:
            if self._flush is None:
                size = min(FLUSH_BYTES_MAX, max(1 << 20, 2 * self._info.l2_bytes))
                self._flush = np.zeros(size, np.uint8)
            self._flush += np.uint8(1)
        start = time.perf_counter_ns()
        passes.enqueue()
        elapsed = time.perf_counter_ns() - start
        self.synchronize()
        return Sample(elapsed / 1000 / passes.count)

    def health(self) -> Health:
        """Return no values, because the CPU's sensors aren't read."""
        return Health()

    def busy_percent(self) -> int | None:
        """Return None, because the CPU's utilization isn't known."""
        return None

    def baselines(
        self, baselines: Sequence[Baseline], problem: Problem, *, passes: int, cold: bool
    ) -> tuple[Passes | str, ...]:
        """Raise DeviceError if there are baselines, because libraries aren't timed on the CPU."""
        if baselines:
            names = ", ".join(baseline.name for baseline in baselines)
            how = f"{passes} {'cold' if cold else 'hot'} passes"
            raise DeviceError(f"host: {names} for {problem}, {how}: libraries run on CUDA devices only")
        return ()

    def matrix_product(self, dtype: str, size: int) -> Callable[[], None]:
        """Raise DeviceError, because libraries aren't timed on the CPU."""
        raise DeviceError(f"host: a {dtype} product of {size} rows: libraries run on CUDA devices only")

    def close(self) -> None:
        """Free all memory. Modules must have been unloaded."""
        for address in tuple(self._sizes):
            self.free(address)
        self._flush = None


def check_limits(launch: Launch, info: DeviceInfo, static_smem_bytes: int, *, cluster: int = 1) -> None:
    """Raise Rejected('runtime', 'launch_failure', ...) for a launch that a GPU with these limits would reject."""
    threads = launch.block[0] * launch.block[1] * launch.block[2]
    smem_bytes = launch.smem_bytes + static_smem_bytes
    axes = "xyz"
    wrong = [
        f"{what}.{axes[i]} = {size} is not in 1 to {most}"
        for what, sizes, limits in (("grid", launch.grid, info.grid_limits), ("block", launch.block, info.block_limits))
        for i, (size, most) in enumerate(zip(sizes, limits, strict=True))
        if not 1 <= size <= most
    ]
    if not wrong and threads > info.max_threads_per_block:
        wrong.append(f"{threads} threads per block, at most {info.max_threads_per_block}")
    if cluster > MOST_CLUSTER_BLOCKS or launch.grid[0] % cluster:
        wrong.append(f"grid.x = {launch.grid[0]} in clusters of {cluster} blocks, at most {MOST_CLUSTER_BLOCKS}")
    if smem_bytes > info.smem_per_block_bytes or launch.smem_bytes < 0:
        wrong.append(f"{smem_bytes} bytes of shared memory per block, at most {info.smem_per_block_bytes}")
    if wrong:
        raise Rejected(Outcome.RUNTIME, "launch_failure", f"{launch.entry}: {'; '.join(wrong)}")


def _content(argument: np.generic | BoundTensorMap) -> npt.NDArray[np.generic]:
    """Return a kernel argument's bytes."""
    if isinstance(argument, BoundTensorMap):
        return np.frombuffer(encode(argument), np.uint8)
    return np.array(argument)


def _version(cxx: str) -> str:
    first = output_of(Path(cxx), "--version").partition("\n")[0]
    return f"{Path(cxx).name} {first.split()[-1] if first else '?'}"
