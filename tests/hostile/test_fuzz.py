"""Every reader of files, on valid files with a few changed bytes: a record or one line of an error, quickly."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.errors import AutotuneError
from autotune.exporting.folder import write_folder
from autotune.expressions.expression import Expression
from autotune.family.render import render
from autotune.family.space import SearchSpace
from autotune.family.template_files import load_template
from autotune.operation.operation import FILE
from autotune.operation.registry import CONV2D, operation, read_operation
from autotune.store import dump, load
from autotune.study_reader import load_study
from tests.unit.tiny import STUDY, TINY, bind

from .attack import WITHIN_S

SOURCES = (
    *(
        b"-1",
        b"1e999",
        b"nan",
        b"null",
        b"true",
        b"[]",
        b"{}",
        b'"',
        b"'",
        b"\\",
        b"\0",
        b"\xff",
    ),
    *(
        b"\xed\xa0\x80",
        "\u202e".encode(),
        b"\n",
        b"\n\n",
        b"..",
        b"/",
        b"=",
        b":",
        b",",
        b"#",
        b"[[",
        b"]]",
        b"${",
        b"}",
    ),
    *(b"/*%", b"%*/", b"//% ", b"//% for i in range(9)\n", b"#include ", b"**", b"*", b"//", b"%", b" if ", b" else "),
    *(b"(", b")", b"threads", b"device.arch", b"n", b"0", b"18446744073709551616", b"../../x", b"base64", b"__class__"),
)
"""Replacements."""
EXPRESSIONS = (
    "ceil_div(n * k * p * q, threads * turns)",
    "not fast or order == 'rows'",
    "1 if c in (1, 2) else w // 0",
)


@st.composite
def changed(draw: st.DrawFn, valid: bytes) -> bytes:
    """A file with up to four slices of it replaced, doubled or moved."""
    content = valid
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(0, len(content)))
        end = min(len(content), begin + draw(st.sampled_from((0, 1, 3, 10, 100, 1000))))
        what = draw(st.sampled_from(SOURCES) | st.just(content[begin:end] * 2) | st.binary(max_size=4))
        content = content[:begin] + what + content[end:]
    return content


@contextmanager
def read(valid: str | bytes, content: bytes, name: str) -> Iterator[Path]:
    """Read a file with this content in time, in a folder in which no other file may be created."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "inside" / name
        path.parent.mkdir()
        path.write_bytes(content)
        began = time.process_time()
        try:
            yield path
        except AutotuneError as error:
            assert len(str(error)) < 2000, "a line that nobody reads"  # noqa: PT017 - also where none is raised
        assert time.process_time() - began < WITHIN_S, f"{len(valid)} bytes and a change"
        assert [each.name for each in Path(folder).iterdir()] == ["inside"]


def rendered(path: Path) -> None:
    """Load a family, list its space, and render its first config."""
    bound = bind(load_template(path))
    if bound.supported:
        config = SearchSpace(bound).default
        if config is not None:
            render(bound, config)


def evaluated(path: Path) -> None:
    """Bind and evaluate an expression, as text in a header."""
    expression = Expression(path.read_bytes().decode("utf-8", "replace"), "fuzz")
    values: dict[str, int | str | bool] = {
        "n": 3,
        "k": 4,
        "p": 7,
        "q": 6,
        "c": 2,
        "w": 8,
        "threads": 64,
        "turns": 1,
        "fast": True,
        "order": "rows",
    }
    expression.bind({"c": 2, "w": 8}).integer(values)


def loaded(path: Path) -> None:
    """Load a dump into a new database."""
    load(path.read_text(encoding="utf-8", errors="replace"), str(path), path.with_name("new.db"))


def exported(path: Path) -> None:
    """Export into a folder with this provenance and a user's file."""
    mine = path.with_name("notes.txt")
    mine.write_text("mine")
    try:
        write_folder(path.parent, {"a.cu": "// a\n"}, {"autotune": "0.1.0", "kernels": []})
    finally:
        assert mine.read_text() == "mine"


PROVENANCE = b'{"autotune": "0.1.0", "kernels": [], "sha256": {"notes.txt": "00", "a.cu": "11"}}'
OPERATION = (operation(CONV2D).folder / FILE).read_bytes()
READERS: dict[str, tuple[str, bytes, Callable[[Path], object]]] = {
    "study": ("small.toml", STUDY.encode(), load_study),
    "header": ("tiny.cu.j2", TINY[: TINY.index("#*/") + 4].encode(), rendered),
    "template": ("tiny.cu.j2", TINY.encode(), rendered),
    "operation": (FILE, OPERATION, lambda path: read_operation(path.parent)),
    "provenance": ("provenance.json", PROVENANCE, exported),
    **{text: ("expression", text.encode(), evaluated) for text in EXPRESSIONS},
}


def tried(name: str, examples: int, *, same: bool) -> None:
    """Read this many changed files, on request the same ones in every run."""
    file, valid, reader = READERS[name]

    @settings(
        max_examples=examples,
        derandomize=same,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(changed(valid))
    def attempt(content: bytes) -> None:
        with read(valid, content, file) as path:
            reader(path)

    attempt()


@pytest.mark.parametrize("name", READERS)
def test_a_file_is_read_or_refused(name: str) -> None:
    tried(name, 20, same=True)


@pytest.mark.long
@pytest.mark.parametrize("name", READERS)
def test_many_files_are_read_or_refused(name: str) -> None:
    tried(name, 3000, same=False)


def test_a_dump_is_loaded_or_refused(filled: Path) -> None:
    lines: list[str] = []
    dump(filled, lines.append)
    valid = "".join(lines).encode()

    @settings(max_examples=4, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(changed(valid))
    def attempt(content: bytes) -> None:
        with read(valid, content, "all.jsonl") as path:
            loaded(path)

    attempt()


@pytest.mark.parametrize("before", ["kinds = { ", "[sizes]\n", "[words]\n", "[derived]\n", "[rules]\n", "[cost]\n"])
def test_a_key_of_5000_characters_is_a_line_that_can_be_read(before: str, tmp_path: Path) -> None:
    """Found by the long run: an operation file's keys are expressions, and the error quoted them whole."""
    text = OPERATION.decode()
    assert before in text
    key = '"' + "x" * 5000 + '"'
    after = "\n" if before.endswith("\n") else ", "
    (tmp_path / FILE).write_text(text.replace(before, f"{before}{key} = 1.0{after}"))
    with pytest.raises(AutotuneError) as raised:
        read_operation(tmp_path)
    assert len(str(raised.value)) < 1000, str(raised.value)[:2000]
