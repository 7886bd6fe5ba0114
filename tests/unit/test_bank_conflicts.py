"""The bank conflicts in a family's header equal those of its threads' addresses, which are written out here."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pytest

from autotune.expressions.functions import bank_conflicts
from autotune.family.space import Admission, BoundTemplate, SearchSpace
from autotune.family.template_files import load_templates
from autotune.problem import Conv2dProblem
from autotune.trial import Config, Value
from tests.long_run import every
from tests.unit.tiny import DEVICE

Address = int | None
"""in bytes; None if a thread takes no part"""


@dataclass(frozen=True, slots=True)
class Access:
    """An access by every thread of a block, in order; `times` per launch."""

    width: int
    addresses: list[Address]
    times: int = 1


def passes(lanes: list[Address], width: int) -> int:
    """The passes of one warp's access beyond the minimum."""
    together, words = min(32, 128 // width), range(max(1, width // 4))
    further = 0
    for first in range(0, 32, together):
        touched = {at // 4 + word for at in lanes[first : first + together] if at is not None for word in words}
        further += max(Counter(word % 32 for word in touched).values(), default=1) - 1
    return further


def a_block(accesses: Iterable[Access]) -> int:
    """Additional passes of a block's accesses in a launch."""
    return sum(
        access.times * passes(access.addresses[first : first + 32], access.width)
        for access in accesses
        for first in range(0, len(access.addresses), 32)
    )


class Names:
    """A config's names, its problem's sizes and its device's, as attributes."""

    def __init__(self, bound: BoundTemplate, names: dict[str, Value]) -> None:
        self._names = {**bound.known, **names}

    def __getattr__(self, name: str) -> int:
        return self._names[name]  # type: ignore[return-value]

    def __getitem__(self, name: str) -> Value:
        return self._names[name]


def tile_load(threads: int, fast: int, slow: int, at: Callable[[int, int], int]) -> Iterator[Access]:
    """The writes of a block in TileLoad of _tile.cuh."""
    wide = threads < fast
    rows = 1 if wide else threads // fast
    for load in range(-(-slow // rows)):
        for across in range(-(-fast // threads) if wide else 1):
            lanes: list[Address] = []
            for thread in range(threads):
                x = thread + across * threads if wide else thread % fast
                y = load if wide else thread // fast + load * rows
                there = x < fast if wide else thread < rows * fast and y < slow
                lanes.append(4 * at(x, y) if there else None)
            yield Access(4, lanes)


def copied(threads: int, elements: int, width: int, at: Callable[[int], int]) -> Iterator[Access]:
    """A block's loop over elements, `threads` at a time."""
    for first in range(0, elements, threads):
        yield Access(width, [width * at(i) if i < elements else None for i in range(first, first + threads)])


def repeated(accesses: Iterable[Access], times: int) -> Iterator[Access]:
    """The same accesses this many times."""
    return (Access(access.width, access.addresses, access.times * times) for access in accesses)


def implicit_gemm(v: Names) -> dict[str, Iterable[Access]]:
    nhwc = v["layout"] == "nhwc"
    steps = -(-v.taps // v.bk)
    pixel_row, filter_row = v.bn + v.smem_pad, v.bm + v.smem_pad
    thread_m = [t % v.threads_m if nhwc else t // v.threads_n for t in range(v.threads)]
    thread_n = [t // v.threads_m if nhwc else t % v.threads_n for t in range(v.threads)]

    def spread(threads: int, width: int, thread: int, i: int) -> int:
        return (i // width * threads + thread) * width + i % width

    global_ = v["filters"] == "global"
    reads = [
        Access(4 * v.vec, [4 * spread(v.threads_n, v.vec, t, i) for t in thread_n], steps * v.bk)
        for i in range(0, v.tn, v.vec)
    ]
    if global_:
        reads += [
            Access(4 * v.vec, [4 * spread(v.threads_m, v.vec, t, i) for t in thread_m], steps * v.bk)
            for i in range(0, v.tm, v.vec)
        ]
    return {
        "filters written": repeated(
            tile_load(v.threads, v.bk, v.bm, lambda x, y: x * filter_row + y), steps if global_ else 0
        ),
        "pixels written": repeated(
            tile_load(v.threads, v.bk, v.bn, lambda x, y: x * pixel_row + y)
            if nhwc
            else tile_load(v.threads, v.bn, v.bk, lambda x, y: y * pixel_row + x),
            steps,
        ),
        "pixels read": reads,
    }


def register_gemm(v: Names) -> dict[str, Iterable[Access]]:
    wide = v.block_n + 1
    where = [(thread % v.tile_m, thread // v.tile_m) for thread in range(v.threads)]
    written = [Access(4, [4 * (m * wide + tile * v.tile_n + j) for m, tile in where]) for j in range(v.tile_n)]
    read = copied(v.threads, v.tile_m * v.block_n, 4, lambda j: j // v.block_n * wide + j % v.block_n)
    inner = [
        Access(16, [4 * (tile * v.tile_m + j * v.tile_n) for _, tile in where], v.taps) for j in range(v.tile_n // 4)
    ]
    assert a_block(inner) == 0
    return {
        "filters written": copied(v.threads, v.tile_m * v.taps, 4, lambda j: j % v.taps * v.tile_m + j // v.taps)
        if v["filters"] == "shared"
        else (),
        "staged outputs": [*written, *read] if v["stores"] == "staged" else (),
    }


def block_of(x: int, y: int, z: int) -> list[tuple[int, int, int]]:
    """The threads of a block, x fastest."""
    return [(i, j, k) for k in range(z) for j in range(y) for i in range(x)]


def tiled(v: Names) -> dict[str, Iterable[Access]]:
    block = block_of(v.threads_q, v.threads_p, v.block_k)
    interior, width = v["tiling"] == "interior", v.scalar_bytes
    skipped_h, skipped_w = ((v.input_h - v.staged_h) // 2, (v.input_w - v.staged_w) // 2) if interior else (0, 0)
    reads = []
    for r in range(v.r):
        for s in range(v.s):
            for i in range(v.thread_p):
                lanes: list[Address] = []
                for q, p, _ in block:
                    row = (p + i * v.threads_p) * v.stride_h + r * v.dilation_h - skipped_h
                    column = q * v.stride_w + s * v.dilation_w - skipped_w
                    computes = p < min(v.tile_p, v.p) and q < min(v.tile_q, v.q)
                    staged_there = 0 <= row < v.staged_h and 0 <= column < v.staged_w
                    lanes.append(width * (row * v.pitch + column) if computes and staged_there else None)
                reads.append(Access(width, lanes, v.block_images * v.c))
    chunks, maps = v.c // v.staged_c, v.thread_k * v.block_k
    plane, taps = v.staged_h * v.staged_w, v.staged_c * v.r * v.s

    def staged(i: int) -> int:
        return (i // plane * v.staged_h + i // v.staged_w % v.staged_h) * v.pitch + i % v.staged_w

    again = v.block_images * chunks if v.staged_c < v.c else 1
    return {
        "inputs read": reads,
        "inputs staged": repeated(copied(v.threads, v.staged_c * plane, width, staged), v.block_images * chunks)
        if v["tiling"] != "input_block"
        else (),
        "filters staged": repeated(copied(v.threads, taps * maps, width, lambda i: i % taps * maps + i // taps), again)
        if v["filters"] == "shared"
        else (),
    }


def windowed(v: Names) -> dict[str, Iterable[Access]]:
    image = v.staged_c * v.tile_h * v.pitch
    corners: list[Address] = [
        4 * (z * image + y * v.thread_p * v.stride_h * v.pitch + x * v.thread_q * v.stride_w)
        for x, y, z in block_of(v.threads_q, v.threads_p, v.images)
    ]
    loads = -(-v.window_w // v.load_vec) * v.window_h * v.c
    plane = v.tile_h * v.tile_w
    staged = []
    of_image = v.threads_q * v.threads_p
    for first in range(0, v.staged_c * plane, of_image):
        lanes: list[Address] = []
        for z in range(v.images):
            for i in range(first, first + of_image):
                at = (i // plane * v.tile_h + i // v.tile_w % v.tile_h) * v.pitch + i % v.tile_w
                lanes.append(4 * (z * image + at) if i < v.staged_c * plane else None)
        staged.append(Access(4, lanes, v.c // v.staged_c))
    return {"windows read": [Access(4 * v.load_vec, corners, loads)], "tiles staged": staged}


def image_direct(v: Names) -> dict[str, Iterable[Access]]:
    iterations = -(-v.work_tiles // v.work_tiles_at_once) * v.iterations
    rows = v.h if v.row_tiles == 1 and not v.padded else v.window_h
    loads = v.c * ((v.rows - 1) * v.stride_h + (v.r - 1) * v.dilation_h + 1) * -(-v.row_inputs // v.load_floats)
    read, staged = [], []
    for index in range(v.tiles_per_thread):
        inputs: list[Address] = []
        outputs: list[Address] = []
        for thread in range(v.threads):
            tile = thread + index * v.threads
            column = min(tile % v.tiles_q * v.thread_q, v.q - v.thread_q)
            row = min(tile // v.tiles_q % v.tiles_p * v.rows, v.tile_p - v.rows)
            group = tile // (v.tiles_q * v.tiles_p) % v.block_k
            image = tile // (v.tiles_q * v.tiles_p * v.block_k)
            first_k = image * v.channels_at_once + group * v.thread_k
            there = tile < v.tiles
            inputs.append(
                4 * ((image * v.c * rows + row * v.stride_h) * v.pitch + column * v.stride_w) if there else None
            )
            outputs.append(4 * (first_k * v.tile_p * v.q + row * v.q + column) if there else None)
        read.append(Access(4 * v.load_floats, inputs, iterations * loads))
        staged.append(Access(4 * v.store_floats, outputs, iterations * v.outputs // v.store_floats))
    taps = v.c * v.r * v.s
    return {
        "inputs read": read,
        "outputs staged": staged if v["store"] != "direct" else (),
        "filters staged": copied(v.threads, taps * v.k, 4, lambda i: i % taps * v.k + i // taps),
    }


def input_stationary(v: Names) -> dict[str, Iterable[Access]]:
    turns = -(-v.work_tiles // (v["device.sm_count"] * v.min_blocks))  # type: ignore[operator]
    inputs: list[Address] = []
    outputs: list[Address] = []
    for thread in range(32 * v.warps):
        tile_row, tile_column = thread // v.tiles_q, thread % v.tiles_q
        first_row = max(tile_row % v.tiles_p * v.thread_p - (v.p - v.thread_p), 0) if v.p % v.thread_p else 0
        column = min(tile_column * v.thread_q, v.q - v.thread_q)
        loaded = min(tile_row, v.tile_rows - 1)
        row = loaded // v.tiles_p * v.h + loaded % v.tiles_p * v.thread_p - first_row
        inputs.append(4 * (row * v.w + column))
        row = tile_row // v.tiles_p * v.p + tile_row % v.tiles_p * v.thread_p - first_row
        outputs.append(4 * (row * v.q + column) if tile_row < v.tile_rows else None)
    shared, rows, columns = v["window"] == "shared", v.thread_p + v.r - 1, v.thread_q + v.s - 1
    vectors = sum((columns - row * v.w % 4) // 4 for row in range(rows)) if shared and v.aligned else 0
    loads = rows * -(-columns // v.load_floats) - vectors * (4 // v.load_floats)
    times = turns * (v.k if shared else 1)
    return {
        "inputs read": [Access(4 * v.load_floats, inputs, times * loads), Access(16, inputs, times * vectors)],
        "outputs staged": [Access(4 * v.store_floats, outputs, turns * v.k * v.outputs // v.store_floats)]
        if v["stores"] == "staged"
        else [],
    }


def direct_strip(v: Names) -> dict[str, Iterable[Access]]:
    columns = (v.q - 1) * v.stride_w + (v.s - 1) * v.dilation_w + 1
    times = -(-v.work_tiles // v.work_tiles_at_once) * v.c * v.s * -(-v.window // 4)
    lanes: list[Address] = []
    for at in range(32 * v.q):  # after this many, a warp begins at the first column of an image again
        first = at // 32 * 32
        images, column = (first % v.q + at - first) // v.q, (first % v.q + at - first) % v.q
        lanes.append(4 * (images * columns + (column - first % v.q) * v.stride_w) * v.pitch)
    return {"inputs read": [Access(16, lanes, times * v.warps)]}  # of v.q warps


def direct(v: Names) -> dict[str, Iterable[Access]]:
    maps = v.thread_k * v.block_k
    width = 4 if v["arithmetic"] == "f32" else 2
    return {
        "filters staged": copied(v.threads, v.taps * maps, width, lambda i: i // v.taps + i % v.taps * maps)
        if v["filters"] == "shared"
        else ()
    }


def depthwise(v: Names) -> dict[str, Iterable[Access]]:
    width: int = v.element_bytes
    loads = (v.window_h if v["unroll"] == "window" else v.rows * v.r) * v.row_loads
    read, staged = [], []
    for first in range(0, v.tiles, v.threads):
        inputs: list[Address] = []
        outputs: list[Address] = []
        for tile in range(first, first + v.threads):
            plane = tile // (v.tiles_p * v.tiles_q)
            row = min(tile // v.tiles_q % v.tiles_p * v.rows, v.tile_p - v.rows)
            column = min(tile % v.tiles_q * v.thread_q, v.q - v.thread_q)
            there = tile < v.tiles
            at = (plane // v.multiplier * v.h + row * v.stride_h) * v.w + column * v.stride_w
            inputs.append(width * at if there else None)
            outputs.append(width * ((plane * v.tile_p + row) * v.q + column) if there else None)
        read.append(Access(width * v.load, inputs, loads))
        staged.append(Access(width * v.store, outputs, v.rows * v.thread_q // v.store))
    return {
        "inputs read": read if v["inputs"] != "global" else [],
        "outputs staged": staged if v["stores"] == "staged" else [],
    }


ENUMERATED: dict[str, Callable[[Names], dict[str, Iterable[Access]]]] = {
    function.__name__: function
    for function in (
        *(
            depthwise,
            direct,
            direct_strip,
            image_direct,
            implicit_gemm,
            input_stationary,
            register_gemm,
            tiled,
            windowed,
        ),
    )
}
PROBLEMS = (
    Conv2dProblem(64, 1, 32, 34, 6, 5, 5),
    Conv2dProblem(64, 4, 40, 40, 16, 3, 3),
    Conv2dProblem(64, 6, 33, 31, 12, 3, 3, pad_h=1, pad_w=1, stride_h=2, stride_w=2),
    Conv2dProblem(64, 16, 20, 20, 24, 3, 3, layout="nhwc"),
    Conv2dProblem(64, 24, 14, 28, 24, 3, 3, pad_h=1, pad_w=1, groups=24),
    Conv2dProblem(64, 6, 23, 28, 12, 5, 5, pad_h=2, pad_w=2, stride_h=2, stride_w=2, groups=6, dtype="f16"),
)


def exact(family: str, v: Names) -> bool:
    """Whether a header is exact: not for idle threads, nor for images that share a warp."""
    if family == "tiled":
        return v["tiling"] == "output_block"
    if family == "windowed":
        whole = v.staged_c * v.tile_h * v.tile_w % (v.threads_q * v.threads_p) == 0
        return v.images == 1 or (whole and v.pitch == v.tile_w)
    if family == "input_stationary":
        return v.tiles == 32 * v.warps and v.p % v.thread_p == 0 and v.tile_rows <= v.tiles_p
    return True


@pytest.mark.parametrize("family", every(5, ENUMERATED))
def test_headers_say_what_the_addresses_of_a_block_come_to(family: str) -> None:
    template = load_templates()[family]
    rng = random.Random(family)
    declared_at_all, said, counted = 0, 0, 0
    for problem in PROBLEMS:
        bound = BoundTemplate(template, problem, DEVICE, Admission(prune=True))
        if not bound.supported:
            continue
        space = SearchSpace(bound, most_rows=200, sampled_rows=200)
        for row in rng.sample(range(len(space.rows)), min(5, len(space.rows))):
            config = space.config(row)
            names = bound.check(config)
            v = Names(bound, names)
            accesses = ENUMERATED[family](v)
            for (access, expression), (kind, addresses) in zip(template.bank_conflicts, accesses.items(), strict=True):
                assert access.startswith(kind)
                declared, enumerated = bound.bind(expression).integer(names), a_block(addresses)
                enumerated //= v.q if family == "direct_strip" else 1
                declared_at_all += declared > 0
                said, counted = said + declared, counted + enumerated
                if exact(family, v):
                    assert declared == enumerated, f"{access} of {config} on {problem}"
    assert declared_at_all
    assert abs(said - counted) <= 0.3 * counted


@pytest.mark.parametrize("columns", [68, 70], ids=["vectors", "vectors and pairs"])
def test_windows_in_shared_memory_are_read_in_vectors_again_for_each_map(columns: int) -> None:
    bound = BoundTemplate(
        load_templates()["input_stationary"], Conv2dProblem(64, 1, 70, columns, 6, 7, columns - 63), DEVICE
    )
    config = Config.of(
        "input_stationary",
        {
            "thread_p": 8,
            "thread_q": 4,
            "warps": 4,
            "thread_k": 1,
            "epilogue_stages": 4,
            "prefetch_tiles": 0,
            "min_blocks": 2,
            "producer": "last",
            "filters": "constant",
            "window": "shared",
            "stores": "direct",
        },
    )
    names = bound.check(config)
    for (_, expression), addresses in zip(
        bound.template.bank_conflicts, input_stationary(Names(bound, names)).values(), strict=True
    ):
        assert bound.bind(expression).integer(names) == a_block(addresses)


def test_families_that_say_nothing_choose_pitches_without_conflicts_or_share_nothing_across_rows() -> None:
    conv2d = {f"{of}_{name}" for name in load_templates() for of in ("conv", "conv_transpose")}  # of the same files
    silent = {name for name, template in load_templates().items() if not template.bank_conflicts} - conv2d
    assert silent == {
        "conv_transpose_depthwise_phases",  # filters, once for each block
        "conv_transpose_phases",  # swizzled chunks of 16 bytes; rows of sums lie 32 bytes apart
        "conv_transpose_phases_sm90",  # as implicit_gemm_sm90; a warp stores rows of 128 bytes
        "conv_filter_gradient_depthwise",  # sums of threads, once for each block
        "conv_filter_gradient_few_channels_sm90",  # a warp's words of four pixels, of two filter rows at most
        "conv_filter_gradient_mma",  # as gemm_mma; words of f32 lie eight banks apart
        "conv_filter_gradient_sm90",  # as implicit_gemm_sm90
        "softmax_rows",  # a word for each warp
        "norm_rows",  # as softmax_rows
        "norm_groups",  # sums of threads, once for each block
        "norm_apply_norm_groups",  # the same text
        "conv_statistics_implicit_gemm_sm90",  # as implicit_gemm_sm90; a warp reads all banks of its outputs
        "pixel_mean_blocks",  # sums of warps, once for each block
        "concat_rows",  # no shared memory
        "gate_rows",  # none either
        "stencil_rows",  # none either
        "max_pool2d_rows",  # none either
        "avg_pool2d_max_pool2d_rows",  # the same text
        "gemm_tiled",  # odd pitches
        "gemm_mma",  # rows of 16 bytes, and 16 more than a power of two apart
        "gemm_sm90",  # as implicit_gemm_sm90
        "gemm_split_k_sm90",
        "depthwise_nhwc",
        "depthwise_strips",  # its chunks of 16 bytes are exchanged; a warp reads half of each, in two goes
        "depthwise_toeplitz_sm90",  # TMA swizzles its pixels, images lie half of the banks apart
        "few_channels_sm90",  # wgmma reads eight chunks of 16 bytes that follow each other
        "grouped_sm90",  # as implicit_gemm_sm90
        "im2col_gemm",
        "implicit_gemm_fp32_sm90",  # as implicit_gemm_sm90; half a warp reads eight rows
        "implicit_gemm_rs_sm90",  # as implicit_gemm_sm90; lanes of a warp read eight rows
        "implicit_gemm_sm90",  # TMA swizzles its rows of 128 bytes
        "input_scatter",
        "mma_gemm",
        "mma_pair",
        "mma_strip",
        "mma_sweep",
        "mma_toeplitz",
        "split_k_sm90",  # as implicit_gemm_sm90; 16 bytes a thread
    }


@pytest.mark.parametrize(
    ("arguments", "further"),
    [
        ((4, 32, (4, 32)), 0),
        ((4, 32, (8, 32)), 1),
        ((4, 32, (128, 32)), 31),
        ((4, 256, (128, 256)), 8 * 31),
        ((4, 16, (128, 32)), 2 * 15),
        ((4, 32, (132, 32)), 0),
        ((4, 32, (0, 32)), 0),
        ((2, 32, (2, 32)), 0),
        ((2, 32, (64, 32)), 15),
        ((8, 32, (8, 32)), 0),
        ((8, 32, (16, 32)), 2),
        ((16, 32, (16, 32)), 0),
        ((16, 32, (32, 32)), 4),
        ((16, 32, (128, 32)), 4 * 7),
        ((4, 32, (4, 16), (64, 2)), 0),
        ((4, 32, (4, 16), (80, 2)), 1),
        ((4, 32, (128, 32, 0)), 0),
        ((4, 32, (128, 32, 256)), 2),
        ((4, 32, (128, 0)), 0),
        ((4, 32, (128, 1 << 20)), 31 << 15),
    ],
)
def test_conflicts_of_a_block(arguments: tuple[int, int, tuple[int, ...]], further: int) -> None:
    assert bank_conflicts(*arguments) == further
