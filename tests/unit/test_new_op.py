"""`autotune new-op`: what it writes works as it is, from an empty folder, and leaves alone what is there."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.unit.tiny import Command

pytestmark = pytest.mark.cxx


def files_in(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if path.is_file()}


def test_a_new_operation_is_checked_tuned_and_asked(autotune: Command, tmp_path: Path) -> None:
    before = files_in(tmp_path)
    made = autotune("new-op", "add_bias")
    assert made.code == 0
    assert {path.name for path in files_in(tmp_path) - before} == {
        *("operation.toml", "reference.py", "add_bias.cu.j2", "add_bias.toml")
    }
    first, second = (line.split()[1:] for line in made.err.splitlines())
    checked = autotune(*first, "--device", "host", "--configs", "2")
    assert checked.err.endswith("add_bias: 2 configs on 2 problems correct, 6 runs\n"), checked
    tuned = autotune(*second, "--device", "host", "--trials", "1", "--finals-seconds", "0.1", "--layer", "small")
    assert tuned.code == 0, tuned
    (best,) = json.loads(autotune("best", "add_bias.small", "--json").out)
    assert (best["layer"], best["template"]) == ("add_bias.small", "add_bias")
    assert "constexpr int COLUMNS = 1000;" in autotune("source", "add_bias.small").out


@pytest.mark.long
def test_a_kernel_is_measured_again_where_its_folder_is_named(autotune: Command, tmp_path: Path) -> None:
    autotune("new-op", "moved")
    autotune("tune", "moved.toml", "--device", "host", "--trials", "1", "--finals-seconds", "0.1", "--layer", "small")
    (tmp_path / "there").mkdir()
    shutil.move("moved", "there")
    lost = autotune("retime", "moved.small", "--device", "host")
    assert (lost.code, lost.err.splitlines()[-1]) == (
        1,
        "autotune: moved: the operation's folder is not here; name the one it lies in by --templates",
    )
    again = autotune("retime", "moved.small", "--device", "host", "--templates", "there", "--json")
    assert [row["layer"] for row in json.loads(again.out)] == ["moved.small"]


def test_a_reference_that_every_kernel_contradicts_is_doubted(autotune: Command) -> None:
    autotune("new-op", "doubted")
    path = Path("doubted/reference.py")
    path.write_text(path.read_text().replace("return x + bias", "return x - bias"))
    wrong = autotune("check", "doubted/doubted.cu.j2", "--device", "host", "--configs", "2")
    assert wrong.code == 1
    doubt = "All are wrong, the plainest too: is the reference in doubted?"
    assert wrong.err.endswith(f"2 of 2 configs failed; each kind is shown above. {doubt}\n"), wrong.err
    tuned = autotune("tune", "doubted.toml", "--device", "host", "--trials", "2", "--layer", "small")
    assert (tuned.code, tuned.err.rstrip().endswith(f"x bound). {doubt}")) == (1, True), tuned


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("softmax", "softmax: an operation of this name comes along; give another"),
        ("2d", "'2d': expected letters, digits and _, a letter first"),
        ("a/b", "'a/b': expected letters, digits and _"),
        ("taken", "taken: exists already; remove it or give another name"),
    ],
)
def test_what_cannot_be_written_is_said(autotune: Command, tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "taken").mkdir()
    before = files_in(tmp_path)
    refused = autotune("new-op", name)
    assert (refused.code, refused.out) == (1, "")
    assert words in refused.complaint
    assert files_in(tmp_path) == before


def test_an_operation_without_a_rival_says_so(autotune: Command) -> None:
    refused = autotune("tune", "softmax", "--device", "null", "--trials", "2", "--baseline", "cudnn", "--db", "null.db")
    words = "--baseline cudnn: has nothing to compare softmax with, only conv2d; leave it out"
    assert (refused.code, refused.complaint) == (1, words)


@pytest.mark.parametrize("command", ["accuracy", "dispatch"])
def test_what_is_conv2ds_refuses_others_in_one_line(autotune: Command, command: str) -> None:
    autotune("tune", "softmax", "--device", "null", "--trials", "2", "--db", "null.db")
    words = {"dispatch": ("softmax", "--device", "null")}
    refused = autotune(command, *words.get(command, ("two.toml",)), "--db", "null.db")
    if command == "accuracy":
        layer = 'name = "{}"\nop = "softmax"\nrows = 8\ncolumns = 8\n'
        Path("two.toml").write_text("\n".join("[[layer]]\n" + layer.format(name) for name in "ab"))
        refused = autotune("accuracy", "two.toml", "--device", "host")
    assert refused.code == 1
    assert "is for conv2d only, and this is softmax rows" in refused.complaint
