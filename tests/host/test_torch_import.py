"""`autotune import-model` of PyTorch models, from code and from archives of torch.export; without a GPU."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.operation.registry import operation
from autotune.problem import Conv2dProblem, Layer, make_problem
from autotune.study_reader import load_study
from tests.unit.conftest import autotune, folder
from tests.unit.tiny import Command, Finished

__all__ = ["autotune", "folder"]

torch = pytest.importorskip("torch", exc_type=ImportError)

from tests import torch_concats as concats  # noqa: E402
from tests import torch_residuals as residuals  # noqa: E402

MODELS = '''
import torch
from torch import nn
from torch.nn import functional

print("imported")


class Block(nn.Module):
    """Two convolutions that meet in an addition, with batch norm, all in place."""

    def __init__(self, c, k):
        super().__init__()
        self.conv = nn.Conv2d(c, k, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(k)
        self.shortcut = nn.Sequential(nn.Conv2d(c, k, 1, bias=False), nn.BatchNorm2d(k))
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        y = self.norm(self.conv(x))
        y += self.shortcut(x)
        return self.relu(y)


class Net(nn.Module):
    """Layers of all kinds."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, 2, 1)
        self.blocks = nn.Sequential(Block(8, 16), Block(16, 16), Block(16, 16))
        self.depthwise = nn.Conv2d(16, 16, 3, padding="same", dilation=2, groups=16)
        self.up = nn.ConvTranspose2d(16, 4, 2, 2)
        self.head = nn.Linear(4, 10)

    def forward(self, x):
        x = functional.dropout(functional.silu(self.stem(x), inplace=True), training=self.training)
        x = self.blocks(x)
        x = x * torch.sigmoid(x)
        x = functional.relu6(self.depthwise(x))
        return self.head(self.up(x).mean((2, 3)))


class Conv(nn.Conv2d):
    """A convolution by itself."""


def build():
    return Net()


def last():
    return Net().to(memory_format=torch.channels_last)


def looking():
    """A model that looks at values while it is built."""
    net = Net()
    net.scale = float(torch.linspace(0, 1, 3)[1])
    return net


def weights(*, weights="IMAGENET"):
    assert weights is None, "would download weights"
    return Net()


def create_model(name):
    return {"small": nn.Conv2d(3, 4, 3)}[name]


def broken():
    raise RuntimeError("no such\\nlayer")


def number():
    return 3


class Asking(nn.Module):
    """A network whose course depends on its images, and all of its parts."""

    def forward(self, x):
        return x.relu() if x.sum() > 0 else x


class Detecting(nn.Module):
    """A network whose course depends on its images behind a part."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3))

    def forward(self, x):
        y = self.backbone(x)
        return y if y.sum() > 0 else x


class Volume(nn.Module):
    """A 3-d and a 1-d convolution."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, padding=(1, 0))
        self.deep = nn.Conv3d(2, 3, 1)
        self.thin = nn.Conv1d(3, 4, 1)

    def forward(self, x):
        return self.thin(self.deep(self.conv(x).unsqueeze(2)).flatten(2))


model = Net()
'''


@pytest.fixture
def models(folder: Path) -> Path:
    (folder / "my_models.py").write_text(MODELS)
    return folder


def layers(autotune: Command, *words: object) -> tuple[Layer, ...]:
    """The layers of the study that import-model writes."""
    Path("study.toml").unlink(missing_ok=True)
    finished = autotune("import-model", *words, "--out", "study.toml")
    assert finished.code == 0, finished
    return load_study(Path("study.toml")).layers


def refused(finished: Finished, *parts: str) -> None:
    lines = [line for line in finished.err.splitlines() if line != "imported" and not line.endswith(" ...")]
    assert (finished.code, finished.out, len(lines)) == (1, "", 1), finished
    for part in parts:
        assert part in lines[0]


def expected(*, dtype: str = "f32", layout: str = "nchw") -> list[Layer]:
    """The layers of Net for two images of 16 x 16."""
    three, one = {"r": 3, "s": 3, "pad_h": 1, "pad_w": 1}, {"r": 1, "s": 1}

    def of(*, epilogue: str, **sizes: int) -> Conv2dProblem:
        return Conv2dProblem(n=2, h=8, w=8, **sizes, dtype=dtype, layout=layout, epilogue=epilogue)

    stem = replace(Conv2dProblem(2, 3, 16, 16, 8, 3, 3, 2, 2, 1, 1, epilogue="bias_silu"), dtype=dtype, layout=layout)
    up: dict[str, int | str] = {"n": 2, "c": 16, "h": 8, "w": 8, "k": 4, "r": 2, "s": 2, "stride_h": 2, "stride_w": 2}
    up["epilogue"] = "bias"
    wide = {"r": 3, "s": 3, "pad_h": 2, "pad_w": 2, "dilation_h": 2, "dilation_w": 2, "groups": 16}
    return [
        Layer("stem", stem),
        Layer("blocks-0-conv", of(c=8, k=16, epilogue="bias", **three)),
        Layer("blocks-0-shortcut-0", of(c=8, k=16, epilogue="bias_add_relu", **one)),
        Layer("blocks-1-conv", of(c=16, k=16, epilogue="bias", **three), 2),
        Layer("blocks-1-shortcut-0", of(c=16, k=16, epilogue="bias_add_relu", **one), 2),
        Layer("depthwise", of(c=16, k=16, epilogue="bias_relu6", **wide)),
        Layer("up", make_problem(operation("conv_transpose"), {**up, "dtype": dtype, "layout": layout})),
    ]


def test_a_model_becomes_a_study(models: Path, autotune: Command) -> None:
    found = layers(autotune, "my_models.py:build", "--input", "2x3x16x16")
    assert list(found) == expected()
    Path("my.models.py").write_text("from my_models import build\n")
    assert list(layers(autotune, "my.models.py:build", "--input", "2x3x16x16")) == expected()
    text = Path("study.toml").read_text()
    assert ": blocks.1.conv, blocks.2.conv\n" in text
    assert " %  head: matrix products, which --op gemm imports\n" in text
    assert autotune("tune", "study.toml", "--device", "null", "--trials", "1").code == 0


def test_linear_layers_are_layers_of_gemm(models: Path, autotune: Command) -> None:
    (layer,) = layers(autotune, "my_models.py:build", "--input", "2x3x16x16", "--op", "gemm")
    sizes = {"batch": 1, "m": 2, "n": 10, "k": 4}
    assert (layer.name, dict(layer.problem.values)) == (
        "head",
        {**sizes, "dtype": "f32", "transposes": "nt", "epilogue": "bias"},
    )


def test_the_study_is_what_conversion_looks_for(
    models: Path, autotune: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from autotune.autotune_runtime.torch_layers import read_network

    monkeypatch.syspath_prepend(models)
    monkeypatch.delitem(sys.modules, "my_models", raising=False)
    network = importlib.import_module("my_models").build().eval()
    problems = (layer.problems[0] for layer in read_network(network, (2, 3, 16, 16)).layers)
    converted = Counter(make_problem(operation(problem.operation), problem.values) for problem in problems)
    imported = layers(autotune, "my_models.py:build", "--input", "2x3x16x16")
    assert converted == Counter({layer.problem: layer.count for layer in imported})


@pytest.mark.parametrize("name", ["looking", "weights", "model"])
def test_models_are_built_in_other_ways_too(name: str, models: Path, autotune: Command) -> None:
    assert list(layers(autotune, f"my_models.py:{name}", "--input", "2x3x16x16")) == expected()


def test_dtype_layout_and_batches(models: Path, autotune: Command) -> None:
    words = ("--input", "64x3x16x16", "--dtype", "f16", "--layout", "nhwc", "--batch", "2")
    assert list(layers(autotune, "my_models.py:build", *words)) == expected(dtype="f16", layout="nhwc")
    found = layers(autotune, "my_models.py:last", "--input", "2x3x16x16", "--batch", "2,3")
    assert {layer.problem.values["layout"] for layer in found} == {"nhwc"}
    assert [layer.problem.runtime_size for layer in found] == [2] * 7 + [3] * 7


def test_a_module_of_the_current_folder_and_its_own_catalogue(
    models: Path, autotune: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "my_models", raising=False)
    paths = sys.path[:]
    (layer,) = layers(autotune, "my_models:small", "--input", "2x3x16x16")
    assert layer == Layer("conv2d", Conv2dProblem(2, 3, 16, 16, 4, 3, 3, epilogue="bias"))
    assert sys.path == paths


def test_resnet50_has_its_additions(models: Path, autotune: Command) -> None:
    words = (f"{residuals.__file__}:ResNet50", "--input", "2x3x64x64")
    found = layers(autotune, *words)
    counts = Counter[str]()
    for layer in found:
        counts[str(layer.problem.values["epilogue"])] += layer.count
    assert counts == {"bias_relu": 33, "bias_add_relu": 16, "bias": 4}
    assert {layer.name for layer in found if layer.problem.values["epilogue"] == "bias"} == {
        f"blocks-{first}-conv3" for first in (0, 3, 7, 13)
    }, "where a block has other sizes its last convolution, the downsampling one, takes the addition"
    alone = layers(autotune, *words, "--no-residuals")
    assert len(alone) == 23
    assert sum(layer.count for layer in alone) == 53
    assert not any("add" in str(layer.problem.values["epilogue"]) for layer in alone)


def test_other_dimensions_are_layers_of_conv(models: Path, autotune: Command) -> None:
    layer, *others = layers(autotune, "my_models.py:Volume", "--input", "2x1x8x8")
    assert layer == Layer("conv", Conv2dProblem(2, 1, 8, 8, 2, 3, 3, pad_h=1, epilogue="bias"))
    deep: dict[str, int | str] = {"n": 2, "c": 2, "d": 1, "h": 8, "w": 6, "k": 3, "t": 1, "s": 1, "epilogue": "bias"}
    thin: dict[str, int | str] = {"n": 2, "c": 3, "w": 48, "k": 4, "s": 1, "epilogue": "bias"}
    assert others == [
        Layer("deep", make_problem(operation("conv"), deep)),
        Layer("thin", make_problem(operation("conv"), thin)),
    ]


def test_what_a_model_prints_is_not_in_the_study(models: Path, autotune: Command) -> None:
    finished = autotune("import-model", "my_models.py:build", "--input", "2x3x16x16")
    said = finished.err.splitlines()
    assert said[:4] == [
        "my_models.py:build: importing PyTorch and the code ...",
        "imported",
        "my_models.py:build: building the model ...",
        "my_models.py:build: exporting it by torch.export ...",
    ]
    assert "imported" not in finished.out
    Path("again.toml").write_text(finished.out)
    assert len(load_study(Path("again.toml")).layers) == len(expected())


def test_a_network_that_depends_on_values_is_read_in_parts(models: Path, autotune: Command) -> None:
    finished = autotune("import-model", "my_models.py:Detecting", "--input", "2x3x16x16", "--layout", "nhwc")
    assert "my_models.py:Detecting, 2x3x16x16: 2 of 2 convolutions, 100.0 %" in finished.err
    Path("again.toml").write_text(finished.out)
    layers = load_study(Path("again.toml")).layers
    assert [(each.name, each.problem.values["epilogue"]) for each in layers] == [
        ("backbone-0", "bias_relu"),
        ("backbone-2", "bias"),
    ]


def test_code_that_will_not_do_is_one_line(models: Path, autotune: Command) -> None:
    given = ("--input", "2x3x16x16")
    refused(autotune("import-model", "my_models.py:build"), "--input 1x3x224x224")
    refused(autotune("import-model", "my_models.py:nothing", *given), "KeyError: 'nothing'")
    refused(autotune("import-model", "my_models.py:broken", *given), "RuntimeError: no such")
    refused(autotune("import-model", "my_models.py:number", *given), "it gives a int, not a torch.nn.Module")
    refused(autotune("import-model", "my_models.py:MODELS.x", *given), "my_models.py:MODELS.x")
    refused(autotune("import-model", "my_models.py:build", "--input", "2x4x16x16"), "channels")
    refused(autotune("import-model", "my_models.py:Asking", *given), "depend on computed values")
    refused(autotune("import-model", "missing.py:build", *given), "there is no file missing.py")
    refused(autotune("import-model", "no_such_package.models:build", *given), "no module named no_such_package")
    Path("wrong.py").write_text("x = (")
    refused(autotune("import-model", "wrong.py:build", *given), "SyntaxError")
    Path("right.py").write_text("def build(): ...")
    refused(autotune("import-model", "right.py:biuld", *given), "right.py has no biuld (did you mean 'build'?)")


def archive(path: Path, *, training: bool = False, dynamic: bool = False) -> Path:
    """An archive of a small network for two images of 8 x 8."""
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, 2, 1, bias=False),
        torch.nn.BatchNorm2d(4),
        torch.nn.GELU(approximate="tanh"),
        torch.nn.Conv2d(4, 5, 1),
    )
    free = torch.export.Dim.AUTO
    shapes = ({0: free, 2: free, 3: free},) if dynamic else None
    exported = torch.export.export(net.train(training), (torch.randn(2, 3, 8, 8),), dynamic_shapes=shapes)
    torch.export.save(exported, path)
    return path


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
def test_an_archive_becomes_a_study(folder: Path, autotune: Command) -> None:
    path = archive(folder / "net.pt2")
    assert [layer.problem for layer in layers(autotune, path)] == [
        Conv2dProblem(2, 3, 8, 8, 4, 3, 3, 2, 2, 1, 1, epilogue="bias_gelu_tanh"),
        Conv2dProblem(2, 4, 4, 4, 5, 1, 1, epilogue="bias"),
    ]
    refused(autotune("import-model", path, "--batch", "3"), "net.pt2: cannot be read for these sizes")


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
def test_norms_are_layers_of_norm(folder: Path, autotune: Command) -> None:
    net = torch.nn.Sequential(
        torch.nn.GroupNorm(2, 6, eps=1e-6),
        torch.nn.SiLU(),
        torch.nn.LayerNorm((5, 8)),
        torch.nn.ReLU(),
        torch.nn.RMSNorm(8, eps=1e-6),
        torch.nn.GELU(),
        torch.nn.LayerNorm(8, elementwise_affine=False),
        torch.nn.ReLU(),
        torch.nn.RMSNorm(8),
    )
    torch.export.save(torch.export.export(net.eval(), (torch.randn(3, 6, 5, 8),)), folder / "net.pt2")
    left_out = autotune("import-model", folder / "net.pt2", "--op", "norm").err
    assert (
        "left out: 20.0 %  0: its images are NCHW; kernels of group norms need channels-last ones (--layout nhwc)\n"
        in left_out
    )
    assert "left out: 20.0 %  8: its eps depends on PyTorch's version; pass eps explicitly\n" in left_out
    found = layers(autotune, folder / "net.pt2", "--op", "norm", "--layout", "nhwc")
    norm = operation("norm")
    assert [layer.problem for layer in found] == [
        make_problem(
            norm, {"n": 3, "pixels": 40, "c": 6, "groups": 2, "eps_e12": 10**6, "epilogue": "weight_bias_silu"}
        ),
        make_problem(norm, {"n": 18, "c": 40, "epilogue": "weight_bias_relu"}),
        make_problem(norm, {"n": 90, "c": 8, "eps_e12": 10**6, "kind": "rms", "epilogue": "weight_gelu"}),
        make_problem(norm, {"n": 90, "c": 8, "epilogue": "none"}),
    ]


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
def test_concatenations_along_the_channels_are_layers_of_concat(folder: Path, autotune: Command) -> None:
    torch.export.save(torch.export.export(concats.Channels().eval(), (torch.zeros(2, 4, 5, 6),)), folder / "net.pt2")
    left_out = autotune("import-model", folder / "net.pt2", "--op", "concat", "--layout", "nhwc").err
    assert "concatenates 9 tensors; kernels support at most 8\n" in left_out
    found = layers(autotune, folder / "net.pt2", "--op", "concat", "--layout", "nhwc")
    sizes: dict[str, int | str] = {"n": 60, "c0": 4, "c1": 4, "c2": 1, "epilogue": "weight_bias_relu"}
    assert [layer.problem for layer in found] == [make_problem(operation("concat"), sizes)]
    torch.export.save(torch.export.export(concats.Dense().eval(), (concats.images(2),)), folder / "dense.pt2")
    dense = layers(autotune, folder / "dense.pt2", "--op", "concat")
    channels = [[value for size, value in layer.problem.values.items() if size[0] == "c" and value] for layer in dense]
    long = [[4] * 8, [32, 4], [32, 4, 4]]  # which share that of their first eight
    assert channels == [*long, [8]], "a batch norm of a tensor that other operators read, too, comes last"


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
def test_an_archive_of_dynamic_sizes_is_read_for_those_asked_for(folder: Path, autotune: Command) -> None:
    path = archive(folder / "net.pt2", dynamic=True)
    refused(autotune("import-model", path), "are not all fixed; give them by --input; it has")
    found = layers(autotune, path, "--input", "7x3x20x9")
    assert [(layer.problem.runtime_size, layer.problem.values["h"], layer.problem.values["w"]) for layer in found] == [
        (7, 20, 9),
        (7, 10, 5),
    ]


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning", "ignore::DeprecationWarning")
def test_archives_that_will_not_do_are_one_line(folder: Path, autotune: Command) -> None:
    path = archive(folder / "net.pt2", training=True)
    refused(autotune("import-model", path), "net.pt2: ", "is in training mode; call eval()")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    refused(autotune("import-model", path), "net.pt2: is not a torch.export archive")
    path.write_text("an error page")
    refused(autotune("import-model", path), "net.pt2: is not a torch.export archive")
