"""Study files: valid ones are read, and mistakes get a clear message with path and key."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.errors import StudyError
from autotune.problem import Conv2dProblem
from autotune.study import ADMITTED, Measure
from autotune.study_reader import find_study, load_study, study_names
from autotune.trial import ACCURACY_CLASSES
from tests.unit.tiny import STUDY, changed


def write(folder: Path, *edits: tuple[str, str]) -> Path:
    """The small study, edited, as a file."""
    path = folder / "small.toml"
    path.write_text(changed(STUDY, *edits), encoding="utf-8")
    return path


def complaint(path: Path) -> str:
    """The error message of loading, without the path with which it must begin."""
    with pytest.raises(StudyError) as caught:
        load_study(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert message.count(str(path)) == 1
    assert len(message.splitlines()) == 1
    return message.removeprefix(f"{path}: ")


def test_the_least_that_a_study_says(tmp_path: Path) -> None:
    study = load_study(write(tmp_path, ('name = "small"\ntrials = 10\n', "")))
    assert study.name == "small", "after the file"
    assert (study.trials, study.seed, study.sampler, study.time_budget_s) == (200, 0, "default", None)
    assert study.templates is None
    assert study.workspace_limit_bytes == 1 << 30
    assert study.measure == Measure("cold")
    (layer,) = study.layers
    assert (layer.name, layer.count) == ("one", 1)
    assert layer.problem == Conv2dProblem(3, 2, 9, 8, 4, 3, 3)
    assert study.text == (tmp_path / "small.toml").read_text()


def test_everything_that_a_study_can_say(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        ("trials = 10", 'trials = 7\nseed = 5\nsampler = "random"\ntime_budget_s = 1.5\ntemplates = ["direct"]\n'
         'accuracy = "tf32"\nworkspace_limit_bytes = 0\n[measure]\ncache = "hot"\n[space.direct]\nthread_k = [1, 2]\n'
         'unroll = "none"'),
        ("s = 3", 's = 3\nstride = [2, 1]\npad = 1\ndilation = [1, 2]\ngroups = 2\ndtype = "f16"\nlayout = "nhwc"\n'
         'epilogue = "bias"\ncount = 4'),
    )  # fmt: skip
    study = load_study(path)
    assert (study.trials, study.seed, study.sampler, study.time_budget_s) == (7, 5, "random", 1.5)
    assert (study.templates, study.accuracy, study.workspace_limit_bytes) == (("direct",), "tf32", 0)
    assert study.measure.cache == "hot"
    assert study.space == {"direct": {"thread_k": (1, 2), "unroll": ("none",)}}
    (layer,) = study.layers
    assert layer.count == 4
    assert layer.problem == Conv2dProblem(
        n=3, c=2, h=9, w=8, k=4, r=3, s=3, stride_h=2, stride_w=1, pad_h=1, pad_w=1, dilation_h=1, dilation_w=2,
        groups=2, dtype="f16", layout="nhwc", epilogue="bias",
    )  # fmt: skip


SECOND = "[[layer]]\nname = {}\nn = 1\nc = 1\nh = 3\nw = 3\nk = 1\nr = 1\ns = 1\n"

MISTAKES = {
    "unknown key": (("trials", "trails"), "trails: unknown key (did you mean 'trials'?); known keys are accuracy, "),
    "unknown key of a layer": (("s = 3", "s = 3\nstrides = 1"), "layer[0] (one).strides: unknown key (did you mean"),
    "key of a layer above the layers": (
        ("trials = 10", 'epilogue = "bias"'),
        "epilogue: epilogue is a key of a layer: put it below [[layer]]",
    ),
    "unknown key of measure": (
        ("trials = 10", "[measure]\ncash = 1"),
        "measure.cash: unknown key (did you mean 'cache'",
    ),
    "name of letters that no file has": (('"small"', '"a/b"'), "name: 'a/b': expected letters, digits, - and _"),
    "empty name": (('"small"', '""'), "name: '': expected letters, digits"),
    "name that is a number": (('"small"', "3"), "name: expected a string, got 3"),
    "layer of a bad name": (('"one"', '"one.two"'), "layer[0] (one.two).name: 'one.two': expected letters"),
    "layer of no name": (('name = "one"\n', ""), "layer[0].name: missing"),
    "layer of a number for a name": (('"one"', "1"), "layer[0].name: expected a string, got 1"),
    "duplicate layer": (
        ("s = 3\n", "s = 3\n" + SECOND.format('"one"')),
        "layer[1].name: 'one' occurs twice; give each",
    ),
    "no layer": ((STUDY[STUDY.index("[[layer]]") :], ""), "layer: expected at least one [[layer]]"),
    "empty list of layers": ((STUDY[STUDY.index("[[layer]]") :], "layer = []"), "layer: expected at least one"),
    "layer is a table": (("[[layer]]", "[layer]"), "layer: expected at least one [[layer]]"),
    "layer is a list of numbers": ((STUDY[STUDY.index("[[layer]]") :], "layer = [1]"), "layer: expected at least one"),
    "missing size": (("k = 4\n", ""), "layer[0] (one).k: missing"),
    "zero size": (("k = 4", "k = 0"), "layer[0] (one).k: 0 is too small: expected at least 1"),
    "negative size": (("h = 9", "h = -9"), "layer[0] (one).h: -9 is too small: expected at least 1"),
    "huge size": (("h = 9", "h = 2147483648"), "layer[0] (one): h = 2147483648: expected 1 to 2147483647"),
    "size of words": (("h = 9", 'h = "9"'), "layer[0] (one).h: expected a whole number, got '9'"),
    "fraction": (("h = 9", "h = 9.0"), "layer[0] (one).h: expected a whole number, got 9.0"),
    "truth": (("h = 9", "h = true"), "layer[0] (one).h: expected a whole number, got True"),
    "filter larger than the input": (
        ("r = 3", "r = 10"),
        "layer[0] (one): filter larger than the padded input in height",
    ),
    "dilated filter larger": (
        ("s = 3", "s = 3\ndilation = 4"),
        "layer[0] (one): filter larger than the padded input in",
    ),
    "three strides": (
        ("s = 3", "s = 3\nstride = [1, 1, 1]"),
        "layer[0] (one).stride: expected a whole number, or two as",
    ),
    "stride of truth": (("s = 3", "s = 3\nstride = true"), "layer[0] (one).stride: expected a whole number, or two"),
    "zero stride": (("s = 3", "s = 3\nstride = 0"), "layer[0] (one): stride_h = 0: expected 1 to"),
    "negative pad": (("s = 3", "s = 3\npad = [0, -1]"), "layer[0] (one): pad_w = -1: expected 0 to"),
    "groups that do not divide": (("s = 3", "s = 3\ngroups = 3"), "layer[0] (one): groups = 3 does not divide c = 2"),
    "groups of words": (("s = 3", 's = 3\ngroups = "2"'), "layer[0] (one).groups: expected a whole number, got '2'"),
    "unknown dtype": (
        ("s = 3", 's = 3\ndtype = "f64"'),
        "layer[0] (one): dtype = 'f64': expected one of f32, f16, bf16",
    ),
    "dtype is a number": (("s = 3", "s = 3\ndtype = 32"), "layer[0] (one).dtype: expected a string, got 32"),
    "unknown layout": (
        ("s = 3", 's = 3\nlayout = "chwn"'),
        "layer[0] (one): layout = 'chwn': expected one of nchw, nhwc",
    ),
    "unknown epilogue": (
        ("s = 3", 's = 3\nepilogue = "relu"'),
        "layer[0] (one): epilogue = 'relu': expected one of none",
    ),
    "no count": (("s = 3", "s = 3\ncount = 0"), "layer[0] (one).count: 0 is too small"),
    "huge count": (
        ("s = 3", "s = 3\ncount = 9223372036854775808"),
        "layer[0] (one).count: 9223372036854775808 is too la",
    ),
    "no trials": (("trials = 10", "trials = 0"), "trials: 0 is too small: expected at least 1"),
    "trials of words": (("trials = 10", 'trials = "all"'), "trials: expected a whole number, got 'all'"),
    "negative seed": (("trials = 10", "seed = -1"), "seed: -1 is too small: expected at least 0"),
    "huge seed": (
        ("trials = 10", "seed = 9223372036854775808"),
        "seed: 9223372036854775808 is too large: expected at mo",
    ),
    "no time": (("trials = 10", "time_budget_s = 0"), "time_budget_s: expected seconds above 0, got 0"),
    "time that is none": (("trials = 10", "time_budget_s = nan"), "time_budget_s: expected seconds above 0, got nan"),
    "time beyond all": (("trials = 10", "time_budget_s = inf"), "time_budget_s: expected seconds above 0, got inf"),
    "time that no float is": (
        ("trials = 10", f"time_budget_s = 1{400 * '0'}"),
        "time_budget_s: expected seconds above 0, got 1000",
    ),
    "time of words": (("trials = 10", 'time_budget_s = "1h"'), "time_budget_s: expected seconds above 0, got '1h'"),
    "unknown accuracy": (
        ("trials = 10", 'accuracy = "fp63"'),
        "accuracy: 'fp63': expected one of fp32, fp32-class, tf32",
    ),
    "accuracy is a number": (("trials = 10", "accuracy = 32"), "accuracy: expected a string, got 32"),
    "templates is a word": (
        ("trials = 10", 'templates = "direct"'),
        "templates: expected a list of family names, got 'di",
    ),
    "no templates": (("trials = 10", "templates = []"), "templates: expected a list of family names, got []"),
    "sampler is a number": (("trials = 10", "sampler = 1"), "sampler: expected a string, got 1"),
    "unknown cache": (("trials = 10", '[measure]\ncache = "warm"'), "measure.cache: 'warm': expected cold or hot"),
    "measure is a word": (("trials = 10", 'measure = "cold"'), "measure: expected a table [measure]"),
    "space is a word": (("trials = 10", 'space = "all"'), "space: expected tables [space.FAMILY]"),
    "family is a list": (("trials = 10", "[space]\ndirect = [1]"), "space: expected tables [space.FAMILY]"),
    "no values": (
        ("trials = 10", "[space.direct]\nunroll = []"),
        "space.direct.unroll: expected a value or a list of val",
    ),
    "fraction as a value": (
        ("trials = 10", "[space.direct]\nunroll = 0.5"),
        "space.direct.unroll: expected a value or a",
    ),
    "streams without end to end": (
        ("trials = 10", "[space.end_to_end]\nstreams = 1"),
        "space.end_to_end: has no effect without",
    ),
    "no stream": (
        ("trials = 10", "end_to_end = true\n[space.end_to_end]\nstreams = 0"),
        "space.end_to_end.streams: expec",
    ),
    "technique without a template": (("trials = 10", '[[technique]]\nname = "a"'), "technique[0].template: missing"),
    "technique is a table": (("trials = 10", "[technique]\na = 1"), "technique: expected [[technique]] tables"),
    "technique twice": (
        ("trials = 10", '[[technique]]\nname = "a"\ntemplate = "b"\n[[technique]]\nname = "a"\ntemplate = "b"'),
        "technique[1].name: 'a' occurs twice",
    ),
    "rule is a table": (("trials = 10", "[rule]\na = 1"), "rule: expected [[rule]] tables"),
    "rule without a threshold": (
        ("trials = 10", '[[rule]]\nname = "a"\nproperty = "k"\nbelow = "b"\nabove = "b"'),
        "rule[0].threshold: missing",
    ),
    "rule of an unknown technique": (
        ("trials = 10", '[[rule]]\nname = "a"\nproperty = "k"\nthreshold = 13\nbelow = "b"\nabove = "b"'),
        "rule[0].below: no technique named 'b'; there are none",
    ),
    "technique of an unknown layer": (
        ("trials = 10", '[[technique]]\nname = "a"\ntemplate = "b"\nreported_ms = { two = 1.0 }'),
        "technique[0].reported_ms.two: no such layer; there are one",
    ),
    "negative workspace": (("trials = 10", "workspace_limit_bytes = -1"), "workspace_limit_bytes: -1 is too small"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named_by_its_key(tmp_path: Path, mistake: str) -> None:
    edit, words = MISTAKES[mistake]
    assert complaint(write(tmp_path, edit)).startswith(words)


def test_what_is_not_toml_is_named_by_its_line(tmp_path: Path) -> None:
    assert "line 5" in complaint(write(tmp_path, ("n = 3\n", "n := 3\n")))
    assert complaint(write(tmp_path, ("[[layer]]", "[[layer]"))).startswith("is not TOML: ")
    assert "Cannot overwrite" in complaint(write(tmp_path, ("n = 3\n", "n = 3\nn = 3\n")))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"\x00", "is not TOML"),
        (b"{}", "is not TOML"),
        (b"", "layer: expected at least one [[layer]]"),
    ],
)
def test_a_file_of_another_kind(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "small.toml"
    path.write_bytes(content)
    assert complaint(path).startswith(words)


def test_a_file_as_editors_on_windows_write_it(tmp_path: Path) -> None:
    path = tmp_path / "windows.toml"
    path.write_bytes(b"\xef\xbb\xbf" + STUDY.replace("\n", "\r\n").encode())
    found, plain = load_study(path), load_study(write(tmp_path))
    assert (found.layers, found.text) == (plain.layers, plain.text)


def test_a_file_without_a_usable_name_says_to_give_one(tmp_path: Path) -> None:
    path = tmp_path / "my study.toml"
    path.write_text(changed(STUDY, ('name = "small"\n', "")))
    assert complaint(path).startswith("name: 'my study': expected letters, digits, - and _")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    assert complaint(tmp_path / "none.toml") == "cannot be read: No such file or directory"


def test_a_study_is_found_by_path_or_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = write(tmp_path)
    assert find_study("small.toml") == Path("small.toml")
    assert find_study(str(path)) == path
    assert find_study("quickstart").name == "quickstart.toml"
    Path("quickstart").write_text("mine")
    assert find_study("quickstart") == Path("quickstart"), "a file of one's own comes first"


@pytest.mark.parametrize("name", ["small", "quickstart.toml", "lenet", "", "no/where", "x" * 5000, "a\0b"])
def test_a_study_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StudyError) as caught:
        find_study(name)
    if name:
        near = {"quickstart.toml": "quickstart", "lenet": "lenet-k7"}.get(name)
        hint = f" (did you mean {near!r}?)" if near else ""
        assert str(caught.value).startswith(f"{name}: no such study file or bundled study{hint}")


def test_a_folder_is_no_study(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=f"{tmp_path}: is a directory; give a study file inside it"):
        find_study(str(tmp_path))
    beside = tmp_path.with_name(f"{tmp_path.name}.toml")
    beside.write_text("")
    with pytest.raises(StudyError, match=f"{tmp_path}: is a directory; give {beside}"):
        find_study(str(tmp_path))


@pytest.mark.parametrize("name", study_names())
def test_every_shipped_study_can_be_read(name: str) -> None:
    study = load_study(find_study(name))
    assert study.layers
    assert study.path is not None
    assert str(study.path).endswith(f"{name}.toml")


def test_the_reports_layers_are_shipped() -> None:
    assert {"quickstart", "lenet-k5", "lenet-k7", "fashion-k7"} <= set(study_names())
    conv1, conv2 = load_study(find_study("lenet-k5")).layers
    assert conv1.problem == Conv2dProblem(10000, 1, 70, 70, 12, 5, 5)
    assert conv2.problem == Conv2dProblem(10000, 12, 33, 33, 24, 5, 5)


def test_what_may_win_follows_the_storage_type_or_the_study(tmp_path: Path) -> None:
    study = load_study(write(tmp_path))
    problems = {dtype: Conv2dProblem(1, 1, 3, 3, 1, 3, 3, dtype=dtype) for dtype in ("f32", "f16", "bf16")}
    assert study.admitted(problems["f32"]) == ("fp32",)
    assert "fp16" in study.admitted(problems["f16"])
    assert "fp16-acc16" not in study.admitted(problems["f16"]), "half accumulation must be asked for"
    assert "bf16" in study.admitted(problems["bf16"])
    assert study.informative(problems["f16"]) == study.informative(problems["bf16"]), "a reader can keep one result"
    loose = load_study(write(tmp_path, ("trials = 10", 'accuracy = "fp32-class"')))
    assert loose.admitted(problems["f32"]) == ("fp32", "fp32-3xtf32")


@pytest.mark.parametrize("accuracy", ADMITTED)
def test_an_admitted_class_is_one_that_kernels_can_promise(accuracy: str) -> None:
    assert set(ADMITTED[accuracy]) <= set(ACCURACY_CLASSES)
    assert ("fp32" in ADMITTED[accuracy]) == (accuracy != "fp64"), json.dumps(ADMITTED[accuracy])
