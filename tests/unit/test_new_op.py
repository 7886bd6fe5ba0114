"""`autotune new-op`: its files work unchanged, from an empty folder, and it keeps existing files."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.fork_server import ForkServer
from tests.long_run import every
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
    assert re.search(r"add_bias: 2 configs on 2 problems correct, \d+ runs\n$", checked.err), checked
    tuned = autotune(*second, "--device", "host", "--trials", "1", "--finals-seconds", "0.1", "--layer", "small")
    assert tuned.code == 0, tuned
    (best,) = json.loads(autotune("best", "add_bias.small", "--json").out)
    assert (best["layer"], best["template"]) == ("add_bias.small", "add_bias")
    assert "constexpr int COLUMNS = 1000;" in autotune("source", "add_bias.small").out


@pytest.mark.parametrize("name", every(5, ["from_float", "max", "T", "COLUMNS", "blockIdx"]))
def test_a_name_that_kernels_know_otherwise_compiles(autotune: Command, name: str) -> None:
    autotune("new-op", name)
    checked = autotune("check", f"{name}/{name}.cu.j2", "--device", "host", "--configs", "1")
    assert checked.code == 0, checked.err


def test_a_stored_study_and_a_family_are_found_by_name_beside_their_folder(autotune: Command) -> None:
    autotune("new-op", "add_bias")
    autotune("tune", "add_bias.toml", "--device", "null", "--trials", "2")
    assert len(json.loads(autotune("trials", "add_bias", "--json").out)) == 4
    Path("add_bias.toml").unlink()
    assert "threads" in autotune("templates", "add_bias").out
    told = autotune("dispatch", "add_bias").complaint
    assert told.endswith("is for conv2d only, and this is add_bias rows 64 columns 1000 f32"), told
    assert autotune("tune", "add_bias", "--device", "null").code == 0
    near = autotune("templates", "softmax_row").complaint
    assert near.startswith("softmax_row: no such family (did you mean 'softmax_rows'?); `autotune templates` "), near


def test_an_operation_beside_a_named_study_is_found_from_elsewhere(autotune: Command, tmp_path: Path) -> None:
    autotune("new-op", "mine")
    (tmp_path / "sub").mkdir()
    for name in ("mine", "mine.toml"):
        shutil.move(name, tmp_path / "sub")
    autotune("tune", "sub/mine.toml", "--device", "null", "--trials", "2")
    assert autotune("stale", "sub/mine.toml").err == "0 of 2 best results may be out of date\n"
    written = autotune("export", "sub/mine.toml", "--out", "lib", "--no-proof", "--arch", "90")
    assert written.code == 0, written
    shutil.move(tmp_path / "sub" / "mine.toml", tmp_path)
    apart = autotune("export", "mine.toml", "--family-dir", "sub", "--out", "again", "--no-proof", "--arch", "90")
    assert apart.code == 0, apart
    lost = autotune("export", "mine", "--out", "other", "--no-proof").complaint
    assert lost.endswith("mine: the operation's folder is not here; name its parent folder with --family-dir"), lost


@pytest.mark.long
def test_a_kernel_is_measured_again_where_its_folder_is_named(autotune: Command, tmp_path: Path) -> None:
    autotune("new-op", "moved")
    autotune("tune", "moved.toml", "--device", "host", "--trials", "1", "--finals-seconds", "0.1", "--layer", "small")
    (tmp_path / "there").mkdir()
    shutil.move("moved", "there")
    lost = autotune("retime", "moved.small", "--device", "host")
    assert (lost.code, lost.err.splitlines()[-1]) == (
        1,
        "autotune: moved: the operation's folder is not here; name its parent folder with --family-dir",
    )
    again = autotune("retime", "moved.small", "--device", "host", "--family-dir", "there", "--json")
    assert [row["layer"] for row in json.loads(again.out)] == ["moved.small"]


def test_a_reference_that_every_kernel_contradicts_is_doubted(autotune: Command) -> None:
    autotune("new-op", "doubted")
    path = Path("doubted/reference.py")
    path.write_text(path.read_text().replace("return x + bias", "return x - bias"))
    wrong = autotune("check", "doubted/doubted.cu.j2", "--device", "host", "--configs", "2")
    assert wrong.code == 1
    doubt = "All configs are wrong, even the simplest: check the reference in doubted"
    assert wrong.err.endswith(f"2 of 2 configs failed; each kind is shown above. {doubt}\n"), wrong.err
    tuned = autotune("tune", "doubted.toml", "--device", "host", "--trials", "2", "--layer", "small")
    assert (tuned.code, tuned.err.rstrip().endswith(f"x bound). {doubt}")) == (1, True), tuned


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("softmax", "softmax: autotune has an operation of this name; give another"),
        ("2d", "'2d': expected letters, digits and _, a letter first"),
        ("a/b", "'a/b': expected letters, digits and _"),
        ("class", "'class' is a word of C++ or Python; choose another name"),
        ("main", "'main' is a word of C++ or Python; choose another name"),
        ("a" * 101, f"{'a' * 97}...: has 101 characters: expected at most 100"),
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
    words = (
        "--baseline cudnn: is for conv2d, conv, conv_transpose, conv_filter_gradient, not for softmax; leave it out, "
        "or use your own kernel as a baseline, with "
    )
    assert (refused.code, refused.complaint) == (1, f"{words}baseline = true in its family's header")


OLD = """/*# kernel
summary  = "The kernel that was there before."
baseline = true
supports = { "dtype is f32" = "dtype == 'f32'" }
arch     = { "compute capability 5.0 or newer" = "device.arch >= 50" }
accuracy = "fp32"

[[stage]]
entry = "old"
args  = ["x", "bias", "y", "rows"]
block = ["32", "1", "1"]
grid  = ["rows", "1", "1"]
#*/
extern "C" __global__ void old(const float* x, const float* bias, float* y, int rows) {
    const long long row = static_cast<long long>(blockIdx.x) * ${columns};
    for (int i = threadIdx.x; i < ${columns}; i += 32) y[row + i] = x[row + i] + bias[i];
}
"""


def with_params(text: str, count: int) -> str:
    """The family with this many parameters, each of which makes it slower on the null device."""
    names = [f"param_{number}" for number in range(count)]
    declared = "".join(f"{name} = {{ values = [1], doc = 'one' }}\n" for name in names)
    return text.replace("[[stage]]", f"[params]\n{declared}\n[[stage]]").replace(
        '["32"', f'["{" * ".join(["32", *names])}"'
    )


def test_a_kernel_of_ones_own_is_what_the_others_are_held_against(autotune: Command) -> None:
    autotune("new-op", "kept")
    old = Path("kept/a_old.cu.j2")
    old.write_text(with_params(OLD, 9))
    given = ("kept.toml", "--layer", "small", "--device", "null", "--trials", "12")
    tuned = autotune("tune", *given)
    assert "WIN against baseline a_old: " in tuned.err, tuned.err
    assert "against the starting config" in tuned.err, "which is a kernel of the family that is tuned"
    best, _ = json.loads(autotune("best", "kept", "--json").out)
    assert (best["template"], best["rival"], best["verdict"]) == ("kept", "baseline a_old", "win")
    shown = autotune("best", "kept").out
    assert " a_old " in shown
    assert "WIN " in shown
    assert "win against baseline a_old" in autotune("history", "kept").out
    assert autotune("report", "kept", "--out", "report.html").code == 0
    assert "against baseline a_old, " in Path("report.html").read_text()
    assert "constexpr int COLUMNS = 1000;" in autotune("source", "kept.small").out
    assert json.loads(autotune("stale", "kept", "--json").out) == []
    old.write_text(OLD)
    again = autotune("tune", *given, "--db", "again.db")
    assert "  nothing is faster than the baseline a_old itself" in again.err, again.err
    assert autotune("report", "kept", "--db", "again.db", "--out", "again.html").code == 0, (
        "of a family without parameters"
    )


def test_a_baseline_that_is_wrong_is_said(autotune: Command) -> None:
    autotune("new-op", "beaten")
    Path("beaten/old.cu.j2").write_text(OLD.replace("x[row + i] + bias[i]", "x[row + i]"))
    given = ("--layer", "small", "--device", "host", "--trials", "3", "--finals-seconds", "0.1")
    tuned = autotune("tune", "beaten.toml", *given)
    assert "    baseline old: cannot run this layer: 64000 of 64000 outputs are wrong" in tuned.err, tuned.err


@pytest.fixture(scope="module")
def softmax(fork_server: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with trials of the shipped softmax study."""
    folder = tmp_path_factory.mktemp("softmax")
    done = fork_server.run(folder, "tune", "softmax", "--device", "null", "--trials", "2", "--db", "null.db")
    assert done.code == 0, done.err
    return folder / "null.db"


@pytest.mark.parametrize(
    "command",
    [
        ("dispatch", "softmax", "--device", "null"),
        ("dispatch", "softmax", "--explain"),
        ("export", "softmax", "--dispatcher", "--out", "lib"),
    ],
)
def test_what_is_conv2ds_refuses_others_in_one_line(
    autotune: Command, folder: Path, softmax: Path, command: tuple[str, ...]
) -> None:
    (folder / "null.db").write_bytes(softmax.read_bytes())
    refused = autotune(*command, "--db", "null.db")
    assert refused.code == 1
    assert "is for conv2d only, and this is softmax rows" in refused.complaint
