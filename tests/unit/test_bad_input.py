"""Every mistake in a user's input: one line that says what, where and what to do; exit 1; nothing lost."""

from __future__ import annotations

import re
import resource
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from autotune.errors import StoreError
from autotune.exporting.folder import write_folder
from autotune.store import Store
from tests.exports import contents

from .permissions import read_only
from .tiny import SMALL, STUDY, Command, changed, write_family

SPACE = 'templates = ["tiny"]\n[space.tiny]\n'


def content(path: Path) -> list[str]:
    """The whole database as SQL."""
    with closing(sqlite3.connect(path)) as raw, raw:
        lines = list(raw.iterdump())
    raw.close()
    return lines


def study(folder: Path, *edits: tuple[str, str]) -> str:
    """The small study, edited, as a file of its own."""
    (folder / "bad.toml").write_text(changed(STUDY, *edits))
    return "bad.toml"


SECOND = '[[layer]]\nname = "one"\nn = 1\nc = 1\nh = 3\nw = 3\nk = 1\nr = 1\ns = 1\n'

STUDIES = {
    "not TOML": (("n = 3\n", "n = = 3\n"), "bad.toml: is not TOML: Invalid value (at line 5, column 5)"),
    "an unknown key": (("trials", "trails"), "bad.toml: trails: unknown key (did you mean 'trials'?); known keys are "),
    "an unknown key of a layer": (
        ("k = 4", "k = 4\nkernels = 4"),
        "bad.toml: layer[0] (one).kernels: unknown key; known",
    ),
    "a key of the study below a layer": (
        ("s = 3\n", "s = 3\nseed = 5\n"),
        "bad.toml: layer[0] (one).seed: seed is a key of the study: put it above the first [[layer]]",
    ),
    "a negative size": (("h = 9", "h = -9"), "bad.toml: layer[0] (one).h: -9 is too small: expected at least 1"),
    "a zero size": (("k = 4", "k = 0"), "bad.toml: layer[0] (one).k: 0 is too small: expected at least 1"),
    "a filter larger than the padded input": (
        ("r = 3", "r = 12\npad = 1"),
        "bad.toml: layer[0] (one): filter larger than the padded input in height (r against h): a filter of 12 with "
        "dilation 1 spans 12, the padded input 11; make the filter smaller or the padding larger",
    ),
    "a duplicate layer name": (
        ("s = 3\n", "s = 3\n" + SECOND),
        "bad.toml: layer[1].name: 'one' occurs twice; give each layer its own name",
    ),
    "an unknown template": (
        ("trials = 10", 'templates = ["tinny"]'),
        "bad.toml: no family named 'tinny' (did you mean 'tiny'?); there are depthwise, ",
    ),
    "an unknown template's space": (
        ("trials = 10", "[space.tinny]\nturns = 1"),
        "bad.toml: no family named 'tinny' (did you mean 'tiny'?); there are depthwise, ",
    ),
    "an unknown template's technique": (
        ("s = 3\n", 's = 3\n[[technique]]\nname = "t"\ntemplate = "tinny"\n'),
        "bad.toml: technique 't': no family named 'tinny' (did you mean 'tiny'?); there are depthwise, ",
    ),
    "a space of a template that is not searched": (
        ("trials = 10", 'templates = ["tiny"]\n[space.direct]\nthread_k = 1'),
        "bad.toml: space.direct: has no effect: templates does not name it",
    ),
    "an unknown parameter": (
        ("trials = 10", SPACE + "turn = [1]"),
        "bad.toml: space.tiny.turn: no such parameter; tiny has threads, turns, order, fast",
    ),
    "a value that the family does not have": (
        ("trials = 10", SPACE + "turns = [1, 5]"),
        "bad.toml: space.tiny.turns: 5 is not a value of the family; it has 1, 2, 3, 4, 6",
    ),
    "an unknown sampler": (
        ("trials = 10", 'sampler = "grid"'),
        "bad.toml: sampler = 'grid': expected one of default, random",
    ),
}


@pytest.mark.parametrize("mistake", STUDIES)
def test_a_study_with(mistake: str, folder: Path, autotune: Command, filled: Path) -> None:
    edit, words = STUDIES[mistake]
    before = content(filled)
    command = ("tune", study(folder, edit), "--family-dir", "families", "--device", "null")
    assert autotune(*command, "--fresh").complaint.startswith(words)
    assert content(filled) == before


def test_a_bad_study_or_device_makes_no_database(folder: Path, autotune: Command) -> None:
    autotune("tune", "small.toml", "--family-dir", "families", "--device", "null:slow=1")
    for mistake in ("an unknown key", "a value that the family does not have", "an unknown sampler"):
        autotune("tune", study(folder, STUDIES[mistake][0]), "--family-dir", "families", "--device", "null")
    assert not (folder / "autotune.db").exists()


def test_a_layer_that_no_template_supports(folder: Path, autotune: Command, filled: Path) -> None:
    before = content(filled)
    path = study(folder, ("trials = 10", 'templates = ["tiny"]'), ("s = 3", 's = 3\nlayout = "nhwc"'))
    complaint = autotune("tune", path, "--family-dir", "families", "--device", "null", "--fresh").complaint
    assert complaint.startswith(
        "bad.toml: layer one (n3 c2 9x8 k4 3x3 f32 nhwc): no template supports it: tiny requires: layout is NCHW"
    )
    assert content(filled) == before


@pytest.mark.parametrize(
    ("accuracy", "dtype", "instead"), [("fp32", "f16", "fp16"), ("bf16", "f16", "fp16"), ("fp16", "bf16", "bf16")]
)
def test_an_accuracy_that_is_none_of_the_storage_type(
    accuracy: str, dtype: str, instead: str, folder: Path, autotune: Command, filled: Path
) -> None:
    before = content(filled)
    path = study(folder, ("trials = 10", f'accuracy = "{accuracy}"'), ("s = 3", f's = 3\ndtype = "{dtype}"'))
    assert autotune("tune", path, "--device", "null", "--fresh").complaint == (
        f"bad.toml: layer one: accuracy {accuracy} admits no kernel of {dtype} layers; "
        f"give {instead}, or leave accuracy out"
    )
    assert content(filled) == before


def test_why_no_template_supports_a_layer_names_few_families_and_the_broken_rule(
    folder: Path, autotune: Command
) -> None:
    nhwc = ("s = 3", 's = 3\nlayout = "nhwc"')
    families = ("direct", "tiled", "register_gemm", "windowed", "depthwise")
    complaint = autotune(
        "tune", study(folder, nhwc), "--device", "null", *(word for each in families for word in ("--family", each))
    ).complaint
    assert [name in complaint for name in families] == [True] * 3 + [False] * 2, complaint
    assert complaint.endswith("; and 2 more")
    tight = ("trials = 10", "[space.direct]\nblock_p = [8]\nblock_q = [128]\nthread_k = [12]")
    complaint = autotune("tune", study(folder, tight), "--family", "direct", "--device", "null").complaint
    assert "direct has no feasible config: thread_k divides the output channels of a group" in complaint


@pytest.mark.parametrize(
    ("edits", "words"),
    [
        ([("n = 3", "n = 2_000_000_000")], "4649 GiB of memory, null has 128; use n = 55063683"),
        (
            [("h = 9", "h = 900_000_000")],
            "804.7 GiB of memory, null has 128; no n is small enough; make the layer smaller",
        ),
    ],
)
def test_a_layer_that_no_memory_holds(
    edits: list[tuple[str, str]], words: str, folder: Path, autotune: Command, filled: Path
) -> None:
    before = content(filled)
    complaint = autotune("tune", study(folder, *edits), "--device", "null", "--fresh").complaint
    assert complaint.startswith("bad.toml: layer one (n")
    assert complaint.endswith(f"verifying it takes {words}")
    assert content(filled) == before


@pytest.mark.parametrize("word", ["--layer", "--family"])
def test_an_option_that_names_nothing(word: str, folder: Path, tune: Command, filled: Path) -> None:
    before = content(filled)
    complaint = tune(word, "none", "--fresh").complaint
    assert complaint.startswith(
        {
            "--layer": "--layer none: small has no such layer; it has one",
            "--family": "small.toml: no family named 'none'; there are depthwise, ",
        }[word]
    )
    assert content(filled) == before


def test_a_study_that_is_not_there(autotune: Command, folder: Path) -> None:
    words = "none.toml: no such study file or bundled study"
    assert autotune("tune", "none.toml", "--device", "null").complaint.startswith(words)
    assert autotune("tune", "families", "--device", "null").complaint == (
        "families: is a directory; give a study file inside it"
    )
    assert not (folder / "autotune.db").exists()


TEMPLATES = {
    "an undeclared name in its body": (("${turns}", "${turn}"), "line {${turn}}: undeclared name 'turn' (did you mean"),
    "an undeclared name in its header": (
        ('"threads * turns"', '"threads * turn"'),
        "derived.outputs: undeclared name 'turn' in 'threads * turn' (did you mean 'turns'?)",
    ),
    "an expression that raises": (
        ("outputs <= 512", "512 // (turns - 1) > 0"),
        "constraints.\"a block computes at most 512 outputs\": expression '512 // (turns - 1) > 0' raises "
        "ZeroDivisionError: ",
    ),
    "an expression that yields a string": (
        ("outputs <= 512", "'yes'"),
        "constraints.\"a block computes at most 512 outputs\": expression \"'yes'\" yields 'yes', expected a whole "
        "number or true/false",
    ),
    "a derived string": (
        ('"threads * turns"', '"order"'),
        "derived.outputs: expression 'order' yields 'rows', expected a whole number or true/false",
    ),
    "an unused parameter": (
        ("[derived]", 'idle = { values = [1, 2], doc = "nothing" }\n[derived]'),
        "params.idle: declared but not used by the body or the launch",
    ),
    "a minus at the edge of a value": (
        ("${turns}", "${-turns}"),
        "line {${-turns}}: a sign at the edge of ${...} is whitespace control to Jinja, which drops it; write",
    ),
    "a note behind a statement": (("//% if fast", "//% if fast // why"), "line {// why}: // after a line statement is"),
    "a header that is not TOML": (("[params]", "[params"), "header is not TOML: "),
    "a header with an unknown key": (("accuracy", "acuracy"), "acuracy: unknown key (did you mean 'accuracy'?); known"),
    "a header without a stage": (("[[stage]]\nentry", "[[prepare]]\nentry"), "stage: missing from the header"),
    "no header": (("/*# kernel", "/*# family"), "line 1: expected the header, a comment that starts with /*# kernel"),
    "a cycle": (('"threads * turns"', '"threads * outputs"'), "derived.outputs: a cycle through outputs"),
    "the batch size as a constant": (
        ("${turns}", "${n}"),
        "line {${n}}: n is not a constant: a kernel takes it at run",
    ),
    "a body that Jinja cannot read": (("//% endif", "//% end"), "line {//% end}: Encountered unknown tag 'end'"),
}


@pytest.mark.cxx
@pytest.mark.parametrize("mistake", TEMPLATES)
def test_a_template_with(mistake: str, folder: Path, tune: Command, autotune: Command, filled: Path) -> None:
    edit, words = TEMPLATES[mistake]
    before = content(filled)
    path = write_family(folder / "families", edit)
    if "line {" in words:
        mark = words[len("line {") : words.index("}: ")]
        number = next(n for n, line in enumerate(path.read_text().splitlines(), 1) if mark in line)
        words = f"line {number}{words[words.index('}: ') + 1 :]}"
    assert tune("--fresh").complaint.startswith(f"families/tiny.cu.j2: {words}")
    assert content(filled) == before
    assert autotune("check", path, "--device", "host").complaint.startswith(f"{path}: {words}")


def test_a_template_that_fails_in_the_middle_of_a_run_loses_nothing(
    folder: Path, tune: Command, autotune: Command
) -> None:
    write_family(folder / "families", ("float sum = 0.0f", "float sum = ${0 * (1 // (threads - 128))}"))
    finished = tune("--trials", "100")
    assert finished.code == 1
    (complaint,) = [line for line in finished.err.splitlines() if line.startswith("autotune: ")]
    assert re.fullmatch(r"autotune: families/tiny\.cu\.j2: body raises ZeroDivisionError: .*by zero", complaint)
    assert "Traceback" not in finished.err
    with Store("autotune.db", create=False) as store:
        outcomes = {row.trial.outcome.value for row in store.trials.list("small")}
        done = [row for row in store.trials.list("small") if row.trial.outcome == "correct"]
    assert outcomes == {"correct"}, "what breaks a rule is recorded where a layer ends"
    assert done
    write_family(folder / "families")
    assert tune("--trials", "100").code == 0
    with Store("autotune.db", create=False) as store:
        assert {row.trial.config for row in done} < {row.trial.config for row in store.trials.list("small")}


def test_a_folder_of_templates_that_is_not_there(autotune: Command, folder: Path) -> None:
    for command in (
        ("templates",),
        ("check", "direct", "--device", "host"),
        ("tune", "small.toml", "--device", "null"),
    ):
        complaint = autotune(*command, "--family-dir", "none").complaint
        assert complaint == "none: no such directory of templates"


def test_a_family_that_is_not_there(autotune: Command) -> None:
    for command in (("templates", "none"), ("check", "none", "--device", "host")):
        assert autotune(*command).complaint.startswith("none: no such family; `autotune templates` lists them")


ASKING = (("best",), ("trials",), ("query", "SELECT 1"), ("export", "small", "--out", "out"))
"""Commands that read a database."""


@pytest.mark.parametrize("command", ASKING, ids=lambda command: str(command[0]))
def test_a_database_that_is_a_folder(command: tuple[str, ...], autotune: Command, folder: Path, tune: Command) -> None:
    words = "families: is a folder; give the path of a file in it, such as families/autotune.db"
    assert autotune(*command, "--db", "families").complaint == words
    assert tune("--db", "families").complaint == words
    assert [path.name for path in (folder / "families").iterdir()] == ["tiny.cu.j2"]


@pytest.mark.parametrize("command", ASKING, ids=lambda command: str(command[0]))
def test_a_database_that_is_none(command: tuple[str, ...], autotune: Command, folder: Path, tune: Command) -> None:
    before = (folder / "small.toml").read_bytes()
    for finished in (autotune(*command, "--db", "small.toml"), tune("--db", "small.toml")):
        assert finished.complaint.startswith("small.toml: not an SQLite file; give the path of a results")
    assert (folder / "small.toml").read_bytes() == before


@pytest.mark.parametrize("command", ASKING, ids=lambda command: str(command[0]))
def test_a_database_that_is_not_there(command: tuple[str, ...], autotune: Command, folder: Path) -> None:
    complaint = autotune(*command, "--db", "none.db").complaint
    assert complaint == "none.db: no such file; `autotune tune STUDY --db none.db` creates it"
    assert not (folder / "none.db").exists()
    assert not (folder / "out").exists()


BUILDING = (
    ("compare", "small.toml"),
    ("dispatch", "small.toml"),
    ("retime", "small.toml"),
)
"""Commands that write files from the stored results."""


@pytest.mark.parametrize("command", BUILDING, ids=lambda command: str(command[0]))
def test_a_database_that_must_have_results(command: tuple[str, ...], autotune: Command, folder: Path) -> None:
    command = (*command, "--family-dir", "families", "--device", "null")
    complaint = autotune(*command, "--db", "none.db").complaint
    assert complaint == "none.db: no such file; `autotune tune STUDY --db none.db` creates it"
    assert not (folder / "none.db").exists()


def test_nothing_to_compare_leaves_nothing(autotune: Command, folder: Path, filled: Path) -> None:
    (folder / "other.toml").write_text(changed(STUDY, ('name = "small"', 'name = "other"')))
    before = content(filled)
    assert autotune("compare", "other.toml", "--device", "null").complaint == (
        "autotune.db: no study or layer 'other'; it has small"
    )
    path = study(folder, ("trials = 10", 'trials = 10\n[measure]\ncache = "hot"'))
    assert autotune("compare", path, "--device", "null").complaint == (
        "autotune.db: no correct kernel of small on null to compare; run `autotune tune STUDY` first"
    )
    assert content(filled) == before


@pytest.mark.parametrize(
    "command",
    [
        ("dispatch", "--explain"),
        ("best",),
        ("trials",),
        ("why",),
        ("history",),
        ("export", "--out", "out"),
    ],
    ids=" ".join,
)
def test_a_study_file_is_read_before_the_database(command: tuple[str, ...], autotune: Command, folder: Path) -> None:
    (folder / "bad.toml").write_text("name = ")
    assert autotune(command[0], "bad.toml", *command[1:]).complaint.startswith("bad.toml: is not TOML: ")
    complaint = autotune(command[0], "none.toml", *command[1:]).complaint
    assert complaint.startswith("none.toml: no such study file or bundled study")


@pytest.mark.parametrize("command", ASKING, ids=lambda command: str(command[0]))
def test_a_database_of_a_newer_schema(command: tuple[str, ...], autotune: Command, tune: Command, filled: Path) -> None:
    with closing(sqlite3.connect(filled)) as raw, raw:
        raw.execute("INSERT INTO schema_versions VALUES (99, '9.1.0', '2030-01-01T00:00:00Z')")
    raw.close()
    before = content(filled)
    for finished in (autotune(*command), tune(), tune("--fresh")):
        assert finished.complaint.startswith("autotune.db: schema 99 is newer than this autotune's ")
        assert finished.complaint.endswith("; install autotune 9.1.0 or newer")
    assert content(filled) == before


def test_a_read_only_database(tmp_path: Path, database: bytes, autotune: Command, tune: Command) -> None:
    path = tmp_path / "autotune.db"
    path.write_bytes(database)
    with read_only(tmp_path, files_only=True):
        tuned, best = tune("--trials", "12"), autotune("best", "--json")
    assert tuned.complaint == "autotune.db: the file is read-only; make it writable or name another database"
    assert path.read_bytes() == database
    assert (best.code, best.err) == (0, "")
    assert "small.one" in best.out, "it can still be read"


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("no/such/folder/a.db", "no/such/folder/a.db: there is no folder no/such/folder; create it first"),
        ("postgresql://host/a", "postgresql://host/a: results are kept in an SQLite file; give its path"),
    ],
)
def test_a_database_that_cannot_be_made(url: str, words: str, tune: Command) -> None:
    assert tune("--db", url).complaint == words


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("tpu", "tpu: no such device; the devices are cuda:N, host, host:check, null and replay:FILE"),
        ("host:fast", "host:fast: no such device; the devices are cuda:N, host, host:check, null and replay:FILE"),
        ("cuda:first", "cuda:first: expected cuda:N with N a number, such as cuda:0"),
        ("cuda:999", "cuda:999: "),
        ("cuda:\N{SUPERSCRIPT TWO}", "cuda:\N{SUPERSCRIPT TWO}: expected cuda:N with N a number, such as cuda:0"),
        ("", "'': no such device; the devices are "),
        (
            "null:slow=1",
            "null:slow=1: expected NAME=SHARE with NAME one of compile, crash, illegal_address, hang, wrong",
        ),
    ],
)
def test_an_unknown_device(device: str, words: str, folder: Path, autotune: Command, filled: Path) -> None:
    before = content(filled)
    for command in (("tune", "small.toml", "--family-dir", "families", "--fresh"), ("check", "direct")):
        assert autotune(*command, "--device", device).complaint.startswith(words)
    assert content(filled) == before


def test_a_home_that_cannot_be_written(autotune: Command, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "small.toml"))
    complaint = autotune("tune", "small.toml", "--family-dir", "families", "--device", "null").complaint
    assert complaint == (
        f"{folder}/small.toml/autotune/locks: cannot be written: Not a directory; "
        f"set XDG_CACHE_HOME to a folder that can be"
    )


def test_a_baseline_that_cannot_run_is_told_before_anything_is_tuned(autotune: Command, filled: Path) -> None:
    before = content(filled)
    command = ("tune", "small.toml", "--family-dir", "families", "--device", "null", "--fresh", "--baseline", "cudnn")
    assert autotune(*command).complaint == (
        "null: --baseline cudnn is for CUDA devices; leave it out or give --device cuda:N"
    )
    assert content(filled) == before


def test_more_rows_than_a_database_counts(autotune: Command, filled: Path) -> None:
    finished = autotune("trials", "--limit", 10**20)
    assert finished.code == 2
    assert "is not in the range 0<=x<=9223372036854775807" in finished.err


@pytest.mark.parametrize(
    "command",
    [("check", "direct", "--seconds"), ("tune", "quickstart", "--time-budget"), ("query", "SELECT 1", "--timeout")],
)
def test_a_time_limit_that_is_not_a_number(autotune: Command, command: tuple[str, ...]) -> None:
    finished = autotune(*command, "nan")
    assert finished.code == 2
    assert f"Invalid value for '{command[-1]}': 'nan' is not a number." in finished.err


@pytest.mark.parametrize(
    "sql",
    [
        "DELETE FROM trials",
        "UPDATE trials SET outcome = 'correct'",
        "DROP TABLE trials",
        "INSERT INTO studies (name) VALUES ('x')",
        "CREATE TABLE x (y)",
        "VACUUM",
        "PRAGMA journal_mode = DELETE",
        "ATTACH 'other.db' AS other",
        "BEGIN IMMEDIATE",
        "WITH doomed AS (SELECT 1) DELETE FROM trials",
        "EXPLAIN DELETE FROM trials",
    ],
)
def test_sql_that_writes(sql: str, folder: Path, autotune: Command, filled: Path) -> None:
    before = content(filled)
    complaint = autotune("query", sql).complaint
    assert complaint.startswith("query: only reading is allowed, one SELECT statement: ")
    assert complaint.endswith(sql)
    assert content(filled) == before
    assert not (folder / "other.db").exists()


@pytest.mark.parametrize(
    ("sql", "words"),
    [
        ("", "query: nothing to answer; give one SELECT statement"),
        ("SELEC", 'query: near "SELEC": syntax error: SELEC'),
        (
            "SELECT * FROM nowhere",
            "query: no such table: nowhere; `SELECT sql FROM sqlite_master` has all tables, views and their columns: S",
        ),
        ("SELECT nonesuch", "query: no such column: nonesuch; `SELECT sql FROM sqlite_master` has all tables"),
        (".schema", 'query: near ".": syntax error; `SELECT sql FROM sqlite_master` has all tables'),
        (
            "SELECT 1; DROP TABLE trials",
            "query: You can only execute one statement at a time; give one SELECT statement: SELECT 1; DROP TABLE",
        ),
        ("SELECT\n'a", "query: "),
        ("SELECT '\0'", "query: "),
    ],
)
def test_sql_that_sqlite_does_not_understand(sql: str, words: str, autotune: Command, filled: Path) -> None:
    before = content(filled)
    assert autotune("query", sql).complaint.startswith(words)
    assert content(filled) == before


@pytest.mark.parametrize(
    "command", [("best",), ("trials",), ("export", "--out", "out")], ids=lambda command: command[0]
)
@pytest.mark.parametrize("what", ["large", "small.two", "one.small", "%", "small' OR 1 = 1 --"])
def test_a_study_or_layer_that_has_no_results(
    command: tuple[str, ...], what: str, folder: Path, autotune: Command, filled: Path
) -> None:
    complaint = autotune(command[0], what, *command[1:]).complaint
    assert complaint.startswith(f"autotune.db: no study or layer {what!r}; it has small")
    assert not (folder / "out").exists()


def test_a_study_with_nothing_to_export(folder: Path, autotune: Command) -> None:
    tuned = autotune("tune", "small.toml", "--family-dir", "families", "--device", "null:hang=1")
    assert tuned.code == 1
    complaint = autotune("export", "small", "--out", "out").complaint
    advice = "no trial of it was correct: `autotune trials small` shows each message"
    assert complaint == f"autotune.db: no kernel of small to export; {advice}"
    assert not (folder / "out").exists()


def test_nothing_to_export_of_what_was_asked_for(folder: Path, autotune: Command, filled: Path) -> None:
    complaint = autotune("export", "small", "--out", "out", "--device", "host", "--accuracy", "bf16").complaint
    assert complaint == (
        "autotune.db: no kernel of small to export with --device host --accuracy bf16; leave that out, or "
        "run `autotune tune STUDY` first"
    )
    assert not (folder / "out").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("export", "small", "--no-proof", "--out"),
        ("doctor", "--build-pycuda", "--wheels"),
    ],
)
def test_an_empty_word_is_not_the_current_folder(
    words: tuple[str, ...], folder: Path, autotune: Command, filled: Path
) -> None:
    before = contents(folder)
    complaint = autotune(*words, "").complaint
    assert complaint == f"{words[-1]}: is empty; name a folder, or give . for the current one"
    assert contents(folder) == before


def test_a_folder_that_cannot_be_written(folder: Path, autotune: Command, filled: Path) -> None:
    complaint = autotune("export", "small", "--out", "small.toml").complaint
    assert complaint.startswith("small.toml: cannot be written: ")
    assert complaint.endswith("; give another --out")


def test_an_export_stays_one_when_another_finds_the_disk_full(tmp_path: Path) -> None:
    def export(*layers: str) -> None:
        texts = {f"{layer}.cu": f"// {layer}\n" for layer in layers}
        write_folder(tmp_path, texts, {"autotune": "0.1.0", "kernels": list(layers)})

    export("one")
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, limit[1]))
    try:
        with pytest.raises(StoreError, match=r"provenance.json: cannot be written: File too large"):
            export("one", "two", "three")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.cu", "provenance.json"]
    export("one", "two")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one.cu", "provenance.json", "two.cu"]


@pytest.mark.parametrize("name", ["README.md", "small.one.null.cu", "python", "provenance.json", "proof.txt"])
def test_a_folder_with_files_that_are_no_exports(name: str, folder: Path, autotune: Command, filled: Path) -> None:
    (folder / "mine").mkdir()
    (folder / "mine" / "notes.txt").write_text("in nobody's way")
    if name == "python":
        (folder / "mine" / "python" / "autotune_runtime").mkdir(parents=True)
        name = "python/autotune_runtime/__init__.py"
    (folder / "mine" / name).write_text("{}")
    complaint = autotune("export", "small", "--out", "mine", "--no-proof").complaint
    assert complaint == f"mine/{name}: is not a file of an export, and would be lost; give another --out"
    assert (folder / "mine" / name).read_text() == "{}"
    assert len([path for path in (folder / "mine").rglob("*") if path.is_file()]) == 2


def renamed(database: Path, study: str) -> None:
    """Rename the database's study."""
    with closing(sqlite3.connect(database)) as raw, raw:
        raw.execute("UPDATE studies SET name = ?", (study,))
    raw.close()


def test_a_file_beside_an_earlier_export_that_is_no_exports(folder: Path, autotune: Command, filled: Path) -> None:
    assert autotune("export", "one", "--out", "out", "--no-proof").code == 0
    (folder / "out" / "other.one.null.cu").write_text("// mine")
    before = contents(folder / "out")
    renamed(filled, "other")
    complaint = autotune("export", "one", "--out", "out", "--no-proof").complaint
    assert complaint == "out/other.one.null.cu: is not a file of an export, and would be lost; give another --out"
    assert contents(folder / "out") == before


def test_a_study_whose_name_leads_out_of_the_folder(folder: Path, autotune: Command, filled: Path) -> None:
    renamed(filled, "../elsewhere/small")
    complaint = autotune("export", "one", "--out", "out", "--no-proof").complaint
    assert complaint == "'../elsewhere/small': cannot be exported: expected a name of letters, digits, - and _"
    assert not (folder / "out").exists()
    assert not (folder / "elsewhere").exists()


def test_the_small_study_is_what_these_tests_break(folder: Path, tune: Command) -> None:
    assert tune().code == 0
    assert str(SMALL) in tune("--json").out
