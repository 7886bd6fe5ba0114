"""Tune and convert a whole network on a GPU, and time it against PyTorch's alternatives in one process.

    python tests/benchmarks/networks.py FOLDER NETWORK... [--n 64...] [--dtype float16] [--trials 30] [--max-autotune 8]

NETWORK is one of torchvision's (resnet50) or of OWN (image_decoder), channels-last, random weights, batch norms
calibrated. `flux_decoder` and `wan_decoder` are the decoders of diffusers' AutoencoderKL and AutoencoderKLWan. Its
layers are tuned into FOLDER/NETWORK.db, exported and built. These contenders are timed interleaved: eager PyTorch in a
CUDA graph, `torch.compile` in mode reduce-overhead (with --max-autotune MINUTES also in that mode),
the converted network in a CUDA graph, and the converted network compiled. A sample is several passes over different
images from a cold L2, with host overhead, like a user's loop. Both networks are verified against float64. The table and
all figures, with clocks and the tuning budget, go to FOLDER.

`--untuned` tunes nothing: `convert` chooses the kernels, from an empty cache in FOLDER. The seconds until its first
call has returned stand in place of the tuning time. `--without CONTENDER` leaves one out, and `--profile` lists the
kernels of a pass of the converted network. `--device cpu` tests the script: it tunes, swaps and captures nothing.

Several networks or numbers of images run in a process each, with empty caches. All processes capture and compile at
once; those with the first number of images come first, so their seconds mean most. One process at a time races and
times kernels: it locks a file in FOLDER, and the seconds of waiting for it do not count.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import multiprocessing
import os
import random
import shlex
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from autotune.autotune_runtime import find_library
from autotune.autotune_runtime.torch_call import LAST
from autotune.autotune_runtime.torch_convert import convert
from autotune.autotune_runtime.torch_layers import read_network
from autotune.autotune_runtime.torch_swap import MARGIN, Report
from autotune.autotune_runtime.torch_untuned import DB, begun_build, expect, started_build, swap_untuned
from autotune.autotune_runtime.torch_verify import calibrated, verify
from autotune.study_reader import load_study

ROUNDS = 15
ROUNDS_MS = 30_000.0  # milliseconds of all samples, beyond which fewer rounds are made
VERIFIED_FRAMES = 3  # of latents
SAMPLE_MS = 30.0  # milliseconds of a sample, about
LEAST, MOST = 4, 64  # passes of a sample
IMAGES_BYTES = 1 << 30  # most bytes of the images of a sample
FLUSH_BYTES = 256 << 20  # written before a sample: four times an H200's L2
NOISE = 0.02  # fraction below which two times are called a tie
CLOCKS = "clocks.sm,clocks.mem,power.draw,temperature.gpu,clocks_event_reasons.active"
DTYPES = {"float16": "f16", "bfloat16": "bf16", "float32": "f32"}  # PyTorch's dtypes to a study's
OURS = ("converted, graph", "converted, compiled")

Network: TypeAlias = Callable[[Tensor], Tensor]


class VaeDecoder(nn.Module):
    """The decoder of an image autoencoder: 3x3 convolutions, SiLU, residuals, nearest upsampling; [N, 4, 32, 32]."""

    def __init__(self) -> None:
        super().__init__()
        self.begin = nn.Conv2d(4, 256, 3, padding=1)
        self.blocks = nn.ModuleList([Residual(256), Residual(256), Residual(128), Residual(64)])
        self.narrow = nn.ModuleList([nn.Conv2d(c, k, 3, padding=1) for c, k in ((256, 256), (256, 128), (128, 64))])
        self.end = nn.Conv2d(64, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[0](self.begin(x))
        for narrow, block in zip(self.narrow, [*self.blocks][1:], strict=True):
            x = block(functional.silu(narrow(functional.interpolate(x, scale_factor=2.0))))
        return self.end(x)


class Residual(nn.Module):
    """A residual block: two convolutions with batch norms."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c), nn.SiLU())
        self.second = nn.Sequential(nn.Conv2d(c, c, 3, padding=1, bias=False), nn.BatchNorm2d(c))

    def forward(self, x: Tensor) -> Tensor:
        return functional.silu(self.second(self.first(x)) + x)


class ImageDecoder(nn.Module):
    """The decoder of a latent image as in latent diffusion: group norm and SiLU before each 3x3 convolution, residual
    blocks, nearest upsampling; [N, 16, H, W] to [N, 3, 8 H, 8 W].
    """

    def __init__(self) -> None:
        super().__init__()
        widths = (512, 512, 256, 128)
        self.begin = nn.Conv2d(16, widths[0], 3, padding=1)
        self.blocks = nn.ModuleList(
            nn.Sequential(NormedResidual(c, k), NormedResidual(k, k))
            for c, k in zip((widths[0], *widths), widths, strict=False)
        )
        self.ups = nn.ModuleList(nn.Conv2d(c, c, 3, padding=1) for c in widths[:-1])
        self.norm = nn.GroupNorm(32, widths[-1], eps=1e-6)
        self.end = nn.Conv2d(widths[-1], 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks[0](self.begin(x))
        for up, block in zip(self.ups, [*self.blocks][1:], strict=True):
            x = block(up(functional.interpolate(x, scale_factor=2.0)))
        return self.end(functional.silu(self.norm(x)))


class NormedResidual(nn.Module):
    """A residual block of c to k channels: group norm, SiLU and convolution, twice."""

    def __init__(self, c: int, k: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, c, eps=1e-6), nn.Conv2d(c, k, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(32, k, eps=1e-6), nn.Conv2d(k, k, 3, padding=1)
        self.shortcut = nn.Identity() if c == k else nn.Conv2d(c, k, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(functional.silu(self.norm1(x)))
        return self.shortcut(x) + self.conv2(functional.silu(self.norm2(y)))


class UNet(nn.Module):
    """A U-Net: convolutions with batch norms and ReLUs, transposed convolutions, concatenations; [N, 3, H, W]."""

    def __init__(self) -> None:
        super().__init__()
        widths = (32, 64, 128, 256)
        self.down = nn.ModuleList(twice(c, k) for c, k in zip((3, *widths), widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * c, c, 2, stride=2) for c in widths[:-1])
        self.join = nn.ModuleList(twice(2 * c, c) for c in widths[:-1])
        self.end = nn.Conv2d(widths[0], 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        skipped: list[Tensor] = []
        for block in self.down:
            x = block(functional.max_pool2d(x, 2) if skipped else x)
            skipped.append(x)
        for up, join, skip in zip(reversed(self.up), reversed(self.join), skipped[-2::-1], strict=True):
            x = join(torch.cat([skip, up(x)], 1))
        return self.end(x)


class SuperResolution(nn.Module):
    """EDSR's baseline (Lim et al. 2017), which enlarges images by 4 with two pixel shuffles; [N, 3, H, W]."""

    def __init__(self) -> None:
        super().__init__()
        self.begin, self.narrow = (nn.Conv2d(c, 64, 3, padding=1) for c in (3, 64))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(64, 64, 3, padding=1), nn.ReLU(), nn.Conv2d(64, 64, 3, padding=1))
            for _ in range(16)
        )
        ups = ((nn.Conv2d(64, 256, 3, padding=1), nn.PixelShuffle(2)) for _ in range(2))
        self.ups = nn.Sequential(*(each for up in ups for each in up))
        self.end = nn.Conv2d(64, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = x = self.begin(x)
        for block in self.blocks:
            y = block(y) + y
        image: Tensor = self.end(self.ups(self.narrow(y) + x))
        return image


class PreResNet(nn.Module):
    """ResNet-50 with batch norm and ReLU before each convolution (He et al. 2016); [N, 3, H, W]."""

    def __init__(self) -> None:
        super().__init__()
        widths = tuple(width for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)) for _ in range(blocks))
        self.begin, self.pool = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.MaxPool2d(3, 2, 1)
        inputs = (64, *(4 * width for width in widths))
        strides = (1 if width == 64 or c == 4 * width else 2 for c, width in zip(inputs, widths, strict=False))
        blocks = zip(inputs, widths, strides, strict=False)
        self.blocks = nn.Sequential(*(PreBottleneck(c, width, stride) for c, width, stride in blocks))
        self.norm, self.end = nn.BatchNorm2d(2048), nn.Linear(2048, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.norm(self.blocks(self.pool(self.begin(x)))))
        y: Tensor = self.end(x.mean((2, 3)))
        return y


class PreBottleneck(nn.Module):
    """A residual block of PreResNet, from c to 4 * width channels."""

    def __init__(self, c: int, width: int, stride: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(each) for each in (c, width, width))
        self.reduce, self.expand = nn.Conv2d(c, width, 1, bias=False), nn.Conv2d(width, 4 * width, 1, bias=False)
        self.conv = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.shortcut = None if c == 4 * width else nn.Conv2d(c, 4 * width, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        normed = functional.relu(self.norms[0](x))
        y = self.conv(functional.relu(self.norms[1](self.reduce(normed))))
        y = self.expand(functional.relu(self.norms[2](y)))
        y += x if self.shortcut is None else self.shortcut(normed)
        return y


def twice(c: int, k: int) -> nn.Sequential:
    """Two convolutions with batch norms and ReLUs."""
    convolutions = (nn.Conv2d(c, k, 3, padding=1, bias=False), nn.Conv2d(k, k, 3, padding=1, bias=False))
    return nn.Sequential(*(each for conv in convolutions for each in (conv, nn.BatchNorm2d(k), nn.ReLU())))


class Decode(nn.Module):
    """The decoding of latents by an autoencoder of diffusers, without its encoder."""

    def __init__(self, autoencoder: nn.Module) -> None:
        super().__init__()
        self.autoencoder = autoencoder
        del autoencoder.encoder

    def forward(self, latents: Tensor) -> Tensor:
        decoded: tuple[Tensor] = self.autoencoder.decode(latents, return_dict=False)
        return decoded[0]


def flux_decoder() -> Decode:
    """The decoder of FLUX, from [N, 16, H, W] to [N, 3, 8 H, 8 W]."""
    from diffusers import AutoencoderKL

    kinds = {"down_block_types": ("DownEncoderBlock2D",) * 4, "up_block_types": ("UpDecoderBlock2D",) * 4}
    sizes = {"block_out_channels": (128, 256, 512, 512), "layers_per_block": 2, "latent_channels": 16}
    return Decode(AutoencoderKL(**kinds, **sizes, use_quant_conv=False, use_post_quant_conv=False))


def wan_decoder() -> Decode:
    """The decoder of Wan 2.1, from [N, 16, F, H, W] to [N, 3, 4 F - 3, 8 H, 8 W]."""
    from diffusers import AutoencoderKLWan

    return Decode(AutoencoderKLWan())


@dataclass(frozen=True, slots=True)
class Own:
    """A network that torchvision does not have."""

    build: Callable[[], nn.Module]
    sizes: tuple[int, ...]
    """of an image, for the height that is the default"""

    def sized(self, height: int | None) -> tuple[int, ...]:
        """The sizes of an image of this height."""
        *others, h, w = self.sizes
        return (*others, height or h, (height or h) * w // h)


OWN = {
    "vae_decoder": Own(VaeDecoder, (4, 32, 32)),
    "unet": Own(UNet, (3, 256, 256)),
    "edsr": Own(SuperResolution, (3, 256, 256)),
    "resnet50_v2": Own(PreResNet, (3, 224, 224)),
    "image_decoder": Own(ImageDecoder, (16, 64, 64)),
    "flux_decoder": Own(flux_decoder, (16, 128, 128)),
    "wan_decoder": Own(wan_decoder, (16, 21, 60, 104)),
}


@dataclass(frozen=True, slots=True)
class Measured:
    """A network's run: milliseconds per pass of each contender, and the conditions of the measurement."""

    network: str
    n: int
    dtype: str
    times_ms: dict[str, float]
    """medians"""
    spread: dict[str, float]
    """interquartile range as a fraction of the median"""
    swapped: int
    convolutions: int
    original_error: float
    converted_error: float
    top1: tuple[int | None, int | None]
    """images on whose class the original and the converted network agree with float64"""
    tuning: str
    tuning_s: float
    compile_s: dict[str, float]
    device: str
    versions: str
    clocks: tuple[str, ...]
    """before, between and after the samples"""

    @property
    def rival(self) -> str:
        """PyTorch's fastest contender."""
        return min((name for name in self.times_ms if name not in OURS), key=self.times_ms.__getitem__)

    @property
    def speedup(self) -> float:
        """How many times as fast ours is, relative to the fastest rival."""
        return self.times_ms[self.rival] / min(self.times_ms[name] for name in OURS if name in self.times_ms)

    @property
    def verdict(self) -> str:
        """win, tie or loss."""
        return "win" if self.speedup > 1 + NOISE else "loss" if self.speedup < 1 - NOISE else "tie"


def main() -> None:
    """Tune if needed, time interleaved, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("networks", nargs="+", help=f"models of torchvision's, {' or '.join(OWN)}")
    parser.add_argument("--n", type=int, nargs="+", default=[64], help="images")
    parser.add_argument("--size", type=int, help="height of an image; 224, or that of OWN")
    parser.add_argument("--dtype", default="float16", choices=tuple(DTYPES))
    parser.add_argument("--accuracy", default="", help="the study's, such as fp32-class; by the dtype if left out")
    parser.add_argument("--trials", type=int, default=30, help="evaluations a layer")
    parser.add_argument("--tune", default="", help="further options of autotune tune, in one word")
    parser.add_argument("--max-autotune", type=float, default=0.0, metavar="MINUTES", help="that it may compile for")
    parser.add_argument("--without", action="append", default=[], metavar="CONTENDER", help="such as compiled")
    parser.add_argument("--profile", action="store_true", help="list the kernels of the converted network")
    parser.add_argument("--untuned", action="store_true", help="tune nothing: kernels that convert chooses itself")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    cells = [
        argparse.Namespace(**{**vars(arguments), "network": network, "n": n})
        for n in arguments.n
        for network in arguments.networks
    ]
    if len(cells) == 1:
        measure(cells[0])
    else:
        fork = multiprocessing.get_context("fork")
        processes = [fork.Process(target=measure, args=(cell, 0 if cell.n == arguments.n[0] else 19)) for cell in cells]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    found = [file for cell in cells if (file := arguments.folder / f"{stem(cell)}.json").exists()]
    print("\n".join(lines([Measured(**json.loads(file.read_text())) for file in found])) if found else "no results")


def measure(arguments: argparse.Namespace, niceness: int = 0) -> None:
    """Run a network and write its figures."""
    os.nice(niceness)
    measured = run(arguments)
    (arguments.folder / f"{stem(arguments)}.json").write_text(json.dumps(asdict(measured), indent=1))
    (arguments.folder / f"{stem(arguments)}.md").write_text("\n".join((*lines([measured]), "")))


def stem(arguments: argparse.Namespace) -> str:
    """The name of a run's files."""
    return f"{arguments.network}-n{arguments.n}-{arguments.accuracy or arguments.dtype}"


@contextmanager
def alone(folder: Path) -> Iterator[float]:
    """Lock the GPU while no other process of this folder times kernels; returns the seconds of waiting."""
    started = time.monotonic()
    with (folder / "gpu.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield time.monotonic() - started


@torch.no_grad()
def run(arguments: argparse.Namespace) -> Measured:
    """Tune, convert, time and verify one network."""
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = arguments.accuracy == "tf32"
    cache = (arguments.folder / f"cache-{stem(arguments)}").resolve()
    places = {"XDG_CACHE_HOME": "autotune", "TORCHINDUCTOR_CACHE_DIR": "inductor", "TRITON_CACHE_DIR": "triton"}
    os.environ |= {variable: str(cache / name) for variable, name in places.items()}
    original, x = built(arguments)
    command, tuning_s = "nothing tuned", 0.0
    if arguments.untuned:
        command, started = "untuned", time.monotonic()
        building = started_build([x], DB)
        assert building is not None
        read = read_network(original, x, partial(expect, building))  # as convert does, but alone with the GPU after it
        build = begun_build(building, read)
        assert build is not None
        while not build.done():
            time.sleep(0.01)
        with alone(arguments.folder) as waited_s:
            converted, report = swap_untuned(read, build, MARGIN)
            converted(x)
            torch.cuda.synchronize()
            tuning_s = time.monotonic() - started - waited_s
        print(f"{stem(arguments)}: first call of the converted network after {tuning_s:.1f} s", file=sys.stderr)
    elif arguments.device == "cuda":
        with alone(arguments.folder):
            command, tuning_s, library = tuned(arguments, tuple(x.shape))
        converted, report = convert(original, x, library=find_library(library))
    else:
        found, report = read_network(original, x), Report(())
        converted = found.finish()
        print(f"{len(found.folded)} batch norms folded; nothing is tuned or swapped on a CPU", file=sys.stderr)
    (arguments.folder / f"{stem(arguments)}-convert.txt").write_text(f"{report}\n")
    if arguments.profile:
        (arguments.folder / f"{stem(arguments)}-profile.txt").write_text(profiled(converted, x))
    contenders, compile_s = ready(arguments, original, converted, x)
    with alone(arguments.folder):
        times, clocks = timed(contenders, x)
        print({name: statistics.median(each) for name, each in times.items()}, file=sys.stderr, flush=True)
        torch.backends.cudnn.benchmark = False  # which would try all of float64's algorithms
        verification = verify(original, converted, verified_part(x))
    print(verification, file=sys.stderr, flush=True)
    return Measured(
        arguments.network,
        arguments.n,
        arguments.accuracy or arguments.dtype,
        {name: statistics.median(each) for name, each in times.items()},
        {name: spread(each) for name, each in times.items()},
        sum(row.swapped and row.kind == "convolution" for row in report.rows),
        sum(row.kind == "convolution" for row in report.rows),
        verification.original.relative_error,
        verification.converted.relative_error,
        (verification.original.top1, verification.converted.top1),
        command,
        tuning_s,
        compile_s,
        torch.cuda.get_device_name() if x.is_cuda else "cpu",
        f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version() if x.is_cuda else '-'}",
        clocks,
    )


def built(arguments: argparse.Namespace) -> tuple[nn.Module, Tensor]:
    """The network and its images, channels-last, batch norms calibrated to them."""
    dtype = getattr(torch, arguments.dtype)
    network, x = uncalibrated(arguments.network, arguments.n, dtype, arguments.device, arguments.size)
    return calibrated(network, x), x


def uncalibrated(
    name: str, n: int, dtype: torch.dtype, device: str = "cuda", size: int | None = None
) -> tuple[nn.Module, Tensor]:
    """A network that has never run, and its images, channels-last."""
    with torch.device(device):  # where random weights take no time
        if name in OWN:
            own = OWN[name]
            network, sizes = own.build(), own.sized(size)
        else:
            import torchvision

            network, sizes = torchvision.models.get_model(name), (3, *(size or 224,) * 2)
    network = network.eval().to(device=device, dtype=dtype)
    for parameter in network.parameters():
        parameter.data = channels_last(parameter.data)
    return network, channels_last(torch.randn(n, *sizes, device=device, dtype=dtype))


def channels_last(tensor: Tensor) -> Tensor:
    """A tensor, channels-last if it has channels."""
    return tensor.contiguous(memory_format=LAST.get(tensor.dim(), torch.contiguous_format))


def verified_part(x: Tensor) -> Tensor:
    """The first frames of a video, which float64 can compute in seconds, or all images."""
    return x if x.dim() == 4 else x[:, :, :VERIFIED_FRAMES]


def profiled(network: Network, x: Tensor) -> str:
    """The kernels of a pass by name, with their number and their time."""
    network(x)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        network(x)
        torch.cuda.synchronize()
    kernels = sorted(profile.key_averages(), key=lambda kernel: -kernel.self_device_time_total)
    total_ms = sum(kernel.self_device_time_total for kernel in kernels) / 1000
    rows = (f"{kernel.self_device_time_total / 1000:10.3f} {kernel.count:5d}  {kernel.key[:200]}" for kernel in kernels)
    return "\n".join((f"{total_ms:10.3f} ms, count, kernel", *rows, ""))


def tuned(arguments: argparse.Namespace, shape: tuple[int, ...]) -> tuple[str, float, Path]:
    """Tune, export and build: the command, its seconds, the library. Layers in the database are not tuned again."""
    folder: Path = arguments.folder
    name = stem(arguments).replace("_", "-")
    autotune = [sys.executable, "-m", "autotune"]
    if not (folder / f"{name}.toml").exists():
        source = f"torchvision.models:{arguments.network}"
        if arguments.network in OWN:
            source = f"{Path(__file__).resolve()}:{OWN[arguments.network].build.__name__}"
        accuracy = ["--accuracy", arguments.accuracy] if arguments.accuracy else []
        words = ["--dtype", DTYPES[arguments.dtype], "--layout", "nhwc", *accuracy, "--out", f"{name}.toml"]
        sizes = "x".join(map(str, shape))
        subprocess.run([*autotune, "import-model", source, "--input", sizes, *words], cwd=folder, check=True)
    study = load_study(folder / f"{name}.toml").name
    limit = ["--trials", str(arguments.trials)]
    tune = ["tune", f"{name}.toml", *limit, *shlex.split(arguments.tune), "--db", f"{name}.db"]
    started = time.monotonic()
    subprocess.run([*autotune, *tune], cwd=folder, check=True)
    tuning_s = time.monotonic() - started
    export = [*autotune, "export", study, "--out", name, "--no-proof", "--db", f"{name}.db"]
    configure = ["cmake", "-S", name, "-B", f"{name}/build", "-DCMAKE_BUILD_TYPE=Release"]
    for command in (export, configure, ["cmake", "--build", f"{name}/build", "-j"]):
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return shlex.join(["autotune", *tune]), tuning_s, folder / name


def ready(
    arguments: argparse.Namespace, original: nn.Module, converted: nn.Module, x: Tensor
) -> tuple[dict[str, Network], dict[str, float]]:
    """All contenders after warming up, and the seconds that each took to warm up."""
    on_gpu = x.is_cuda
    compiling = {"mode": "reduce-overhead"} if on_gpu else {"backend": "eager"}
    makers: dict[str, Callable[[], Network]] = {
        "eager, graph": lambda: graphed(original, x) if on_gpu else original,
        "compiled": lambda: torch.compile(original, **compiling),
        OURS[0]: lambda: graphed(converted, x) if on_gpu else converted,
        OURS[1]: lambda: torch.compile(converted, **compiling),
    }
    if arguments.max_autotune:
        makers["max-autotune"] = lambda: torch.compile(original, mode="max-autotune")
    made: dict[str, Network] = {}
    seconds: dict[str, float] = {}
    for name in arguments.without:
        del makers[name]
    for name, maker in makers.items():
        started = time.monotonic()
        with at_most(60 * arguments.max_autotune if name == "max-autotune" else 0):
            network = maker()
            for _ in range(4):
                network(x)
            made[name] = network
        seconds[name] = time.monotonic() - started
        state = "warm" if name in made else "given up"
        print(f"{stem(arguments)}, {name}: {state} after {seconds[name]:.1f} s", file=sys.stderr, flush=True)
    return made, seconds


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Stop the block after this time; 0: no limit. PyTorch's compilers raise their own error when they are stopped."""
    late: list[int] = []

    def stop(number: int, __: object) -> None:
        late.append(number)
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    except Exception:
        if not late:
            raise
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def graphed(network: nn.Module, x: Tensor) -> Network:
    """A network in a CUDA graph; images are copied to the graph's input before each replay, as in a user's program."""
    given = x.clone(memory_format=torch.preserve_format)
    for _ in range(3):
        network(given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = network(given)

    def replay(images: Tensor) -> Tensor:
        given.copy_(images)
        graph.replay()
        return y

    return replay


def timed(contenders: dict[str, Network], x: Tensor) -> tuple[dict[str, list[float]], tuple[str, ...]]:
    """Milliseconds per pass by contender and round, in random order; clocks before, between and after the samples."""
    clocks = [clock(x)]
    slowest_ms = max(sample(network, [x]) for network in contenders.values())
    count = min(MOST, max(1 if slowest_ms > SAMPLE_MS else LEAST, int(SAMPLE_MS / slowest_ms)))
    images = [torch.randn_like(x) for _ in range(max(2, min(count, IMAGES_BYTES // x.nbytes)))]
    passes = [images[at % len(images)] for at in range(count)]
    times: dict[str, list[float]] = {name: [] for name in contenders}
    order = list(contenders)
    rounds = max(3, min(ROUNDS, int(ROUNDS_MS / (count * slowest_ms * len(contenders)))))
    for at in range(rounds):
        random.shuffle(order)
        for name in order:
            times[name].append(sample(contenders[name], passes))
        if at == rounds // 2:
            clocks.append(clock(x))
    return times, (*clocks, clock(x))


def sample(network: Network, passes: Sequence[Tensor]) -> float:
    """Milliseconds per pass of several consecutive passes from a cold L2, with host overhead."""
    device = passes[0].device
    torch.empty(FLUSH_BYTES, dtype=torch.uint8, device=device).zero_()
    wait = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    wait()
    started = time.perf_counter()
    for x in passes:
        network(x)
    wait()
    return 1000 * (time.perf_counter() - started) / len(passes)


def clock(x: Tensor) -> str:
    """The current clocks, power and temperature from nvidia-smi."""
    if not x.is_cuda:
        return "-"
    query = ["nvidia-smi", f"--query-gpu={CLOCKS}", "--format=csv,noheader", f"--id={x.device.index or 0}"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()


def spread(times: Sequence[float]) -> float:
    """The interquartile range as a fraction of the median."""
    low, middle, high = statistics.quantiles(times, n=4)
    return (high - low) / middle


def lines(networks: Sequence[Measured]) -> Iterator[str]:
    """The table in Markdown: a row for each run, then the geometric mean, the losses and the conditions."""
    names = list(dict.fromkeys(name for each in networks for name in each.times_ms))
    head = ["network", "n", "dtype", *(f"{name}, ms" for name in names), "ours / rival", "verdict", "swapped"]
    yield f"| {' | '.join([*head, 'error', 'top-1'])} |"
    yield f"|{'---|' * (len(head) + 2)}"
    for each in networks:
        times = ["-" if name not in each.times_ms else f"{each.times_ms[name]:.3f}" for name in names]
        cells = [each.network, str(each.n), each.dtype, *times, f"{each.speedup:.2f}", f"{each.verdict} ({each.rival})"]
        errors = f"{each.converted_error:.1e} ({each.original_error:.1e})"
        top1 = "-" if None in each.top1 else f"{each.top1[1]} ({each.top1[0]}) of {each.n}"
        yield f"| {' | '.join([*cells, f'{each.swapped} of {each.convolutions}', errors, top1])} |"
    mean = statistics.geometric_mean(each.speedup for each in networks)
    yield f"\ngeometric mean {mean:.2f} times as fast as the best rival"
    yield f"losses: {', '.join(f'{each.network} n={each.n}' for each in networks if each.verdict == 'loss') or 'none'}"
    for each in networks:
        widest = max(each.spread.values())
        took = ", ".join(f"{name} {seconds:.0f}" for name, seconds in each.compile_s.items())
        yield f"{each.network}, n = {each.n}: {each.device}, {each.versions}; {each.tuning}, {each.tuning_s:.0f} s"
        yield f"  spread at most {100 * widest:.1f} %; seconds until warm: {took}"
        yield f"  {CLOCKS}: {'; '.join(each.clocks)}"


if __name__ == "__main__":
    main()
