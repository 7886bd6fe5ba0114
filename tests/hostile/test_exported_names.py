"""Names and words of a hostile database that could become code in an export: C++, CMake, Markdown or a path."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from autotune.dispatch.dispatcher import Dispatcher
from autotune.errors import StudyError
from autotune.escape import in_comment
from tests.exports import contents
from tests.long_run import every
from tests.unit.test_analysis_commands import change
from tests.unit.test_dispatcher import RULE, dispatcher, timed
from tests.unit.tiny import Command

from .attack import refused

EXPORT = ("export", "--out", "out", "--no-proof", "--")
INJECTED = "pwned"
BREAKS = (
    f"\n#error {INJECTED}\n",
    f"*/ #error {INJECTED} /*",
    f'"; int {INJECTED}; "',
    f"\r#error {INJECTED}",
    f")\nmessage(FATAL_ERROR {INJECTED})\n(",
    f"| [{INJECTED}](x) <b>`",
    "\\",
    "??/",
    "\\\n",
)


def literal(text: str) -> str:
    """Any text as an SQL string."""
    return f"CAST(x'{text.encode().hex()}' AS TEXT)"


def code(text: str) -> str:
    """A C++ file as its compiler sees it: lines joined, without comments and strings."""
    text = text.replace("\r", "\n").replace("??/", "\\").replace("\\\n", "")
    return re.sub(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', "", text, flags=re.DOTALL)


@pytest.mark.parametrize("text", every(3, BREAKS))
def test_words_stay_in_their_comment_string_or_cell(filled: Path, autotune: Command, text: str) -> None:
    """The names of a device and a driver, and a compiler's version and flags, may be any text."""
    folder = filled.parent
    assert autotune(*EXPORT, "small").code == 0
    plain = {
        name: code(content.decode()) for name, content in contents(folder / "out").items() if b"ELF" not in content
    }
    for what in ("devices SET name", "environments SET driver", "environments SET toolkit", "environments SET flags"):
        change(filled, f"UPDATE {what} = {literal(text)}")
    change(filled, f"UPDATE trials SET message = {literal(text)}")
    done = autotune(*EXPORT, "small")
    assert done.code == 0, done.err
    for name, content in contents(folder / "out").items():
        if name.endswith((".cu", ".h", ".cpp")):
            assert code(content.decode()) == plain[name], name
        elif name.endswith(".cmake"):
            assert INJECTED not in content.decode()
    readme = (folder / "out" / "README.md").read_text()
    assert "<b>" not in readme
    assert f"[{INJECTED}]" not in readme
    assert len([line for line in readme.splitlines() if line.startswith("| [")]) == 1
    source = autotune("source", "small.one").out
    assert INJECTED not in code(source)
    with closing(sqlite3.connect(filled)) as raw:
        (wrong,) = raw.execute("SELECT min(number) FROM trials WHERE outcome = 'wrong_result'").fetchone()
    failed = autotune("source", "small.one", "--trial", wrong).out
    assert failed.startswith("// ")
    assert INJECTED not in code(failed)


@pytest.mark.parametrize(
    "column", ["studies SET name", "study_layers SET name", "sources SET entries", "templates SET family"]
)
@pytest.mark.parametrize("text", every(2, ("../../outside", *BREAKS[:2], "/etc/x", "")))
def test_names_that_are_none_are_not_exported(filled: Path, autotune: Command, column: str, text: str) -> None:
    """They name files, and symbols of C++ and CMake."""
    where = " WHERE family = 'tiny'" if "family" in column else ""
    change(filled, f"UPDATE {column} = {literal(json.dumps([text]) if 'entries' in column else text)}{where}")
    study = text if column.startswith("studies") else "small"
    done = autotune(*EXPORT, study)
    refused(done)
    assert not (filled.parent / "out").exists()
    assert not (filled.parent.parent / "outside").exists()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("kernels", 0, "name"), f"a; int {INJECTED}"),
        (("properties", 0, "name"), f"a() {{}} int {INJECTED}"),
        (("properties", 0, "least"), f"0; int {INJECTED}"),
        (("known", 0, 0), f"0}}; int {INJECTED}"),
        (("kernels", 0, "relative_times", 0), f"0}}; int {INJECTED}"),
        (("kernels", 0, "predicate"), [["1", f"a; int {INJECTED}", ""]]),
        (("rule", "threshold"), f"0; int {INJECTED}"),
        (("rule", "below_kernels"), "a kernel that it does not have"),
        (("default", "name"), "a kernel that is not called default"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_dispatcher_of_code_is_refused(path: tuple[str | int, ...], value: object) -> None:
    times = {"fours": (3,), "few": (2,), "default": (1,)}
    record = json.loads(timed(dispatcher(RULE), times, [(12, 400)]).to_json())
    assert Dispatcher.from_json(json.dumps(record))
    inside = record
    for key in path[:-1]:
        inside = inside[key]
    inside[path[-1]] = value
    with pytest.raises(StudyError):
        Dispatcher.from_json(json.dumps(record))


def test_what_may_stand_in_a_comment() -> None:
    assert [in_comment(text) for text in ("a\nb", "a\x1b\v", "a\\  ", "a??/", "\u2028x", "plain, 1 \\ 2")] == [
        "a b",
        "a\\x1b",
        "a\\.",
        "a??/.",
        " x",
        "plain, 1 \\ 2",
    ]
