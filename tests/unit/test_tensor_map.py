"""`[[tensor_map]]` of a header: its values, the messages about mistakes, and that it changes the kernel's identity."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.devices.device import DeviceInfo
from autotune.devices.host_runtime import encode
from autotune.devices.tensor_map import BoundTensorMap, TensorMap
from autotune.errors import Rejected, TemplateError
from autotune.family.render import render
from autotune.family.source import KernelSource
from autotune.family.space import BoundTemplate
from autotune.family.template_files import load_template
from autotune.family.tensor_map_template import NamedTensorMap
from autotune.problem import Conv2dProblem
from autotune.trial import Config
from tests.unit.tiny import TINY

H200 = DeviceInfo("cuda", "H200", arch=90, sm_count=132, memory_bytes=150_000_000_000)
PROBLEM = Conv2dProblem(2, 8, 6, 12, 16, 3, 3, pad_w=1, stride_w=2)
MAPS = """
[[tensor_map]]
name       = "x_map"
array      = "x"
when       = "turns == 1"
global_dim = ["w", "n * c * h"]
box_dim    = ["4", "threads"]

[[tensor_map]]
array           = "x"
global_dim      = ["c", "w", "h", "n"]
box_dim         = ["c", "threads"]
element_strides = ["1", "stride_w", "stride_h", "1"]
lower_corner    = ["0 - pad_w", "0 - pad_h"]
upper_corner    = ["pad_w - 2", "0 - 2"]
swizzle         = 32

[[stage]]
"""
FAMILY = TINY.replace("\n[[stage]]\n", MAPS).replace('["x", "w"', '["x_map", "w"')


def mapped(folder: Path, text: str = FAMILY, **values: int | str | bool) -> KernelSource:
    """The kernel of a config of a family with tensor maps."""
    path = folder / "mapped.cu.j2"
    path.write_text(text)
    config = Config.of("mapped", {"threads": 64, "turns": 1, "order": "rows", "fast": False, **values})
    return render(BoundTemplate(load_template(path), PROBLEM, H200), config)


def test_a_config_has_the_first_map_of_a_name_whose_condition_holds(tmp_path: Path) -> None:
    tiled, im2col = mapped(tmp_path).tensor_maps, mapped(tmp_path, turns=2).tensor_maps
    assert tiled == (NamedTensorMap("x_map", "x", TensorMap("f32", (12, 96), (4, 64), (1, 1), 0)),)
    assert im2col == (
        NamedTensorMap("x_map", "x", TensorMap("f32", (8, 12, 6, 2), (8, 64), (1, 2, 1, 1), 32, (-1, 0), (-1, -2))),
    )


def test_arrays_of_one_layout_have_a_map_each(tmp_path: Path) -> None:
    one = 'name       = "x_map"\narray      = "x"'
    text = FAMILY.replace(one, 'array = ["x", "y"]').replace('["x_map"', '["x_map", "y_map"')
    x, y = mapped(tmp_path, text).tensor_maps
    assert (x.name, x.array, y.name, y.array) == ("x_map", "x", "y_map", "y")
    assert x.tensor == y.tensor


def test_floats_may_be_loaded_as_tf32_and_nothing_else(tmp_path: Path) -> None:
    def loaded_as(words: str) -> TensorMap:
        text = FAMILY.replace('name       = "x_map"', f'name = "x_map"\ndata_type = "{words}"')
        (named,) = mapped(tmp_path, text).tensor_maps
        return named.tensor

    assert loaded_as("'tf32' if c > 4 else dtype") == TensorMap("tf32", (12, 96), (4, 64), (1, 1), 0)
    assert loaded_as("'tf32' if c > 8 else dtype") == TensorMap("f32", (12, 96), (4, 64), (1, 1), 0)
    with pytest.raises(TemplateError, match=r"data_type: .* yields 'f16' for arrays of f32; only f32 may be loaded"):
        loaded_as("'f16'")


def test_a_config_has_its_own_swizzle(tmp_path: Path) -> None:
    text = FAMILY.replace("= 32\n", '= "threads // 2"\n')
    swizzled = [mapped(tmp_path, text, turns=2, threads=threads).tensor_maps[0].tensor for threads in (64, 128)]
    assert [tensor.swizzle_bytes for tensor in swizzled] == [32, 64]
    words = r"tensor_map\[1\].swizzle: expression 'threads // 2' yields 16; expected one of 0, 32, 64, 128 bytes"
    with pytest.raises(TemplateError, match=words):
        mapped(tmp_path, text, turns=2, threads=32)


def test_another_map_is_another_kernel_and_none_is_as_before(tmp_path: Path) -> None:
    source = mapped(tmp_path)
    (named,) = source.tensor_maps
    wider = replace(source, tensor_maps=(replace(named, tensor=replace(named.tensor, box_dim=(8, 64))),))
    assert len({source.hash, wider.hash, replace(source, tensor_maps=()).hash}) == 3


def test_a_map_that_a_driver_refuses_is_named_with_what_it_yields(tmp_path: Path) -> None:
    words = (
        r"mapped.cu.j2: tensor_map\[1\]: a tensor map takes boxes no wider than the swizzle; it yields box_dim "
        r"\[16, 64\] of global_dim \[8, 12, 6, 2\], f32, swizzle 32"
    )
    with pytest.raises(TemplateError, match=words):
        mapped(tmp_path, FAMILY.replace('["c", "threads"]', '["2 * c", "threads"]'), turns=2)


def test_a_stage_that_takes_a_map_which_a_config_has_not_is_refused(tmp_path: Path) -> None:
    text = FAMILY.replace("global_dim      =", 'when = "turns == 2"\nglobal_dim      =')
    assert mapped(tmp_path, text, turns=2).tensor_maps
    with pytest.raises(
        TemplateError, match=r"tensor_map: no x_map has a `when` that holds for mapped threads=64 turns=3"
    ):
        mapped(tmp_path, text, turns=3)


MISTAKES = {
    "an unknown key": ("swizzle  ", "swizzled  ", "tensor_map[1].swizzled: unknown key"),
    "an array without maps": (
        'array           = "x"',
        'array = "workspace"',
        "tensor_map[1].array: expected one of x, w, bias, y, z, packed_w",
    ),
    "a swizzle that there is none of": (
        "= 32",
        "= 48",
        "swizzle: expression '48' yields 48; expected one of 0, 32, 64",
    ),
    "a box of other dimensions": ('["4", "threads"]', '["4"]', "tensor_map[0].box_dim: expected 2 expressions"),
    "no extents": ('["c", "w", "h", "n"]', "[]", "tensor_map[1].global_dim: expected a list of expressions, one for"),
    "one corner of two": ('["pad_w - 2", "0 - 2"]', "[]", "tensor_map[1].upper_corner: expected 2 expressions"),
    "an undeclared name": ("n * c * h", "n * c * rows", "tensor_map[0].global_dim[1]: undeclared name 'rows'"),
    "an argument's name": ('name       = "x_map"', 'name = "y"', "tensor_map[0].name: y is an argument already"),
    "a name for two arrays": ('array      = "x"', 'array = ["x", "z"]', "tensor_map[0].name: expected a name, for one"),
    "no stage that takes it": ('["x_map", "w"', '["x", "w"', "tensor_map[0].name: no stage takes x_map"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_by_its_key(tmp_path: Path, mistake: str) -> None:
    old, new, words = MISTAKES[mistake]
    assert old in FAMILY
    with pytest.raises(TemplateError) as caught:
        mapped(tmp_path, FAMILY.replace(old, new))
    assert words in str(caught.value)


GOOD = TensorMap("f32", (12, 96), (4, 64), (1, 1), 0)
REFUSED = {
    "boxes of 1 to 256": replace(GOOD, box_dim=(4, 257)),
    "boxes whose rows are multiples of 16 bytes": replace(GOOD, box_dim=(3, 64)),
    "boxes no wider than the swizzle": replace(GOOD, box_dim=(16, 64), swizzle_bytes=32),
    "strides that are multiples of 16 bytes": replace(GOOD, global_dim=(11, 96)),
    "element strides of 1 to 8": replace(GOOD, element_strides=(1, 9)),
    "extents of 1 to 2^32": replace(GOOD, global_dim=(12, 2**32 + 1)),
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_a_driver_refuses_is_refused_on_the_host_device(words: str) -> None:
    assert len(encode(BoundTensorMap(GOOD, 256))) == 128
    with pytest.raises(Rejected, match=rf"a tensor map takes {words.replace('^', '.')}"):
        encode(BoundTensorMap(REFUSED[words], 256))


def test_an_address_that_is_none_is_refused() -> None:
    for address in (0, 264):
        with pytest.raises(Rejected, match="addresses that are multiples of 16"):
            encode(BoundTensorMap(GOOD, address))
