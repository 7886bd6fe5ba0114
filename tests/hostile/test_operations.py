"""Hostile folders of operations: names with another meaning in this project, and faulty references."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fork_server import ForkServer
from tests.long_run import every
from tests.unit.tiny import Finished

from .attack import attacked, refused

TUNE = ("tune", "own.toml", "--device", "null", "--trials", "2")


@pytest.fixture
def own(folder: Path, fork_server: ForkServer) -> Path:
    """A folder with an operation `own` and a study of it."""
    assert attacked(fork_server, folder, "new-op", "own").code == 0
    return folder


def test_names_that_conv2d_has_mean_what_the_operation_says(own: Path, fork_server: ForkServer) -> None:
    """`w` is an integer in conv2d, `layout` a word: trials of another operation with such names can still be read."""
    file = own / "own" / "operation.toml"
    text = file.read_text().replace("[words]", 'layout = { doc = "a size", default = 3 }\n[words]\nw = ["a", "b"]')
    file.write_text(text)
    done = attacked(fork_server, own, *TUNE, within_s=30)
    assert done.code == 0, done.err
    trials = attacked(fork_server, own, "trials", "--json")
    assert trials.code == 0, trials.err
    assert json.loads(trials.out)


def edited(own: Path, name: str, old: str, new: str) -> None:
    """Change a file of the operation."""
    text = (own / "own" / name).read_text()
    assert old in text
    (own / "own" / name).write_text(text.replace(old, new, 1))


FLOPS, INTEGERS = 'flops = "rows * columns"', "integers = [-8, 8]"
WINDOW = "windows.columns = {{ outputs = '{}', taps = '3', stride = '{}', dilation = '{}', pad = '0' }}"
DECLARED = {
    # the defect: the replaced text of operation.toml, the new text, and the message
    "flops: no number": (FLOPS, 'flops = "rows // 0"', "cost.flops: "),
    "a shape of 10^33 elements": ('"columns"]', '"columns * 10 ** 30"]', "x would have more than 2^62 elements"),
    "windows of 10^30": (INTEGERS, f"{INTEGERS}\n{WINDOW.format('10 ** 30', 1, 1)}", "outputs of a window is 1000"),
    "windows without a stride": (INTEGERS, f"{INTEGERS}\n{WINDOW.format('columns', 0, 0)}", "stride of a window is 0"),
}


@pytest.mark.parametrize("name", every(3, DECLARED))
def test_declarations_that_blow_up_are_one_line(own: Path, fork_server: ForkServer, name: str) -> None:
    old, new, words = DECLARED[name]
    edited(own, "operation.toml", old, new)
    refused(attacked(fork_server, own, *TUNE, within_s=20), words)


def checked(own: Path, fork_server: ForkServer) -> Finished:
    """Check one config on the CPU, where the reference runs."""
    words = ("check", "own/own.cu.j2", "--device", "host", "--configs", "1")
    return attacked(fork_server, own, *words, within_s=30, memory_bytes=1 << 34)


RETURNS = "return x + bias, abs(x) + abs(bias)"
REFERENCES = {
    # the line in place of the return statement, and the message
    "raises a line of escapes": ("raise ValueError('a\\x1b[2Jb\\nc')", "ValueError: a"),
    "ends its process": ("raise SystemExit(0)", "SystemExit: 0"),
    "raises what is no Exception": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "returns another shape": ("return x[:1], x", "returns an array of "),
    "returns words": ("return [['a']], x", "returns no array of numbers for y: "),
    "returns rows of several lengths": ("return [[1], [1, 2]], x", "returns no array of numbers for y: "),
    "returns nothing": ("return None", "returns NoneType"),
    "returns no numbers": ("return x * float('nan'), abs(x)", "reference returns nan for y at "),
    "returns rounded numbers": (
        "return (x + bias).astype('float32'), abs(x)",
        "returns float32 for y, which",
    ),
    "returns digits": ("return (x + bias).astype(str), abs(x)", "no array of numbers for y: TypeError: elements of <U"),
    "changes its inputs": ("x += bias; return x, abs(x) + abs(bias)", "ValueError: output array is read-only"),
    "reads standard input": ("return input()", "EOFError"),
    "needs 80 GB": ("return x.repeat(10 ** 12)", "MemoryError"),
}


@pytest.mark.cxx
@pytest.mark.parametrize("name", every(6, REFERENCES))
def test_references_that_are_none_are_one_line(own: Path, fork_server: ForkServer, name: str) -> None:
    line, words = REFERENCES[name]
    edited(own, "reference.py", RETURNS, line)
    done = checked(own, fork_server)
    assert done.code == 1
    assert words in done.err.splitlines()[-1], done.err


@pytest.mark.cxx
def test_what_a_reference_prints_reaches_no_terminal(own: Path, fork_server: ForkServer) -> None:
    printing = "import os, sys; os.write(1, b'\\x1b[2J'); os.write(2, b'\\x1b[2J'); print('\\x1b[2J'); "
    edited(own, "reference.py", RETURNS, printing + RETURNS)
    done = checked(own, fork_server)
    assert done.code == 0, done.err
    assert "\x1b" not in done.out + done.err


@pytest.mark.cxx
@pytest.mark.parametrize("takes", ["p, x", "p, bias, x"])
def test_a_reference_of_other_arrays_is_told_which_there_are(own: Path, fork_server: ForkServer, takes: str) -> None:
    edited(own, "reference.py", "reference(p, x, bias)", f"reference({takes})")
    done = checked(own, fork_server)
    assert done.code == 1
    assert "reference.py: expected a function reference(p, x, bias)" in done.err.splitlines()[-1]
    assert done.err.endswith(f"got reference({takes})\n")


IN_CUDA = """struct Output {
    double value, magnitude;
};
template <class Problem, class Inputs>
REFERENCE_FUNCTION Output reference_output(const Problem& problem, const Inputs& in, long long at) {
    const double x = in.x[at], bias = in.bias[at % problem.columns];
    return {x + bias, (x < 0.0 ? -x : x) + (bias < 0.0 ? -bias : bias)};
}
"""


@pytest.mark.cxx
def test_a_reference_in_cuda_is_named_where_it_is_wrong(own: Path, fork_server: ForkServer) -> None:
    (own / "own" / "reference.py").unlink()
    reference = own / "own" / "reference.cuh"
    reference.write_text(IN_CUDA)
    assert checked(own, fork_server).code == 0
    reference.write_text(IN_CUDA.replace("x + bias", "x + bia"))
    words = "own/reference.cuh cannot be compiled: reference.cuh:7:17: error: 'bia'"
    assert words in checked(own, fork_server).err.splitlines()[-1]
    reference.write_text(IN_CUDA.replace("in.x[at]", "in.x[at - 100000000000]"))
    assert "its data cannot be made: illegal address" in checked(own, fork_server).err.splitlines()[-1]
