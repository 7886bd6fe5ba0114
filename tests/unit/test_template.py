"""Loading a family: every mistake in a header or body is reported with its line or dotted key."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autotune.errors import TemplateError
from autotune.family.template_files import load_template, load_templates, template_files
from autotune.resources import shipped
from tests.unit.tiny import TINY, tiny, write_family


def complaint(path: Path) -> str:
    """The error message of loading, without the path with which it must begin."""
    with pytest.raises(TemplateError) as caught:
        load_template(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert len(message.splitlines()) == 1
    return message.removeprefix(f"{path}: ")


def line_of(path: Path, text: str) -> int:
    """The line of a file that contains a text, from 1."""
    return next(n for n, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1) if text in line)


def test_a_family_is_read_as_it_is_written(tmp_path: Path) -> None:
    family = tiny(tmp_path)
    assert family.name == "tiny"
    assert family.summary.startswith("One output a thread")
    assert [param.name for param in family.params] == ["threads", "turns", "order", "fast"]
    assert family.params[0].values == (64, 32, 128, 256)
    assert family.params[0].doc == "threads a block"
    assert family.params[3].values == (False, True)
    assert [constraint.reason for constraint in family.constraints] == [
        "a block computes at most 512 outputs",
        "unrolling needs the taps inside",
    ]
    assert family.stages[0].args == ("x", "w", "y", "n")
    assert family.accuracy.bind({}).word({}) == "fp32"
    assert family.deterministic.bind({}).integer({}) == 1
    assert family.loop_count.bind({}).integer({}) == 1
    assert family.header.startswith("summary")
    assert "#*/" not in family.header


def test_the_hash_follows_the_text_and_the_included_files(tmp_path: Path) -> None:
    included = ("constexpr int C", '#include "_own.cuh"\nconstexpr int C')
    (tmp_path / "_own.cuh").write_text("// one\n")
    first = tiny(tmp_path, included).hash
    assert tiny(tmp_path, included).hash == first
    (tmp_path / "_own.cuh").write_text("// two\n")
    assert tiny(tmp_path, included).hash != first
    assert tiny(tmp_path, included, ("One output", "1 output")).hash != first


def test_the_hash_follows_imported_macros_of_the_shared_templates(tmp_path: Path) -> None:
    (tmp_path / "_wgmma.jinja").write_text("not what is imported\n")
    family = tiny(tmp_path, ("constexpr int C", '/*% from "_wgmma.jinja" import mma with context %*/\nconstexpr int C'))
    assert dict(family.includes)["_wgmma.jinja"] == (shipped("templates") / "_wgmma.jinja").read_text()


def test_an_expression_in_an_included_name_stands_for_every_file_that_it_may_come_to(tmp_path: Path) -> None:
    included = ("constexpr int C", '#include "_own_${dtype}.cuh"\nconstexpr int C')
    for dtype in ("f32", "f16"):
        (tmp_path / f"_own_{dtype}.cuh").write_text(f"// {dtype}\n")
    first = tiny(tmp_path, included)
    assert dict(first.includes) == {"_own_f16.cuh": "// f16\n", "_own_f32.cuh": "// f32\n"}
    (tmp_path / "_own_f16.cuh").write_text("// another\n")
    assert tiny(tmp_path, included).hash != first.hash


def test_derived_values_may_stand_in_any_order(tmp_path: Path) -> None:
    family = tiny(
        tmp_path, ('outputs = "threads * turns"', 'outputs = "half * 2"\nhalf = "quarter * 2"\nquarter = "threads"')
    )
    assert [name for name, _ in family.derived].index("quarter") < [name for name, _ in family.derived].index("half")
    assert [name for name, _ in family.derived][-1] == "outputs"


HEADER_MISTAKES = {
    "unknown key": (
        ("accuracy = ", "acuracy = "),
        r"acuracy: unknown key \(did you mean 'accuracy'\?\); known keys are accuracy, arch, bank_conflicts, ",
    ),
    "unknown key of a stage": (("args  =", "inputs ="), r"stage\[0\]\.inputs: unknown key; known keys are args, "),
    "unknown key of a parameter": (('doc = "threads', 'docs = "threads'), r"params\.threads\.docs: unknown key"),
    "no summary": (("summary ", "# summary "), "summary: missing from the header"),
    "empty summary": (
        ('"One output a thread and turn; a block of threads walks over the outputs."', '" "'),
        "summary: ",
    ),
    "no arch": (("arch ", "# arch "), "arch: missing from the header"),
    "no stage": ((TINY[TINY.index("[[stage]]") : TINY.index("#*/")], ""), "stage: missing from the header"),
    "stage is a table": (("[[stage]]", "[stage]"), r"stage: expected \[\[stage\]\]"),
    "stage without a grid": (("grid  =", "# grid  ="), r"stage\[0\]\.grid: missing"),
    "entry is no name": (('"conv2d_tiny"', '"conv2d tiny"'), r"stage\[0\]\.entry: expected the name of a kernel"),
    "unknown argument": (
        ('"x", "w"', '"x", "weights"'),
        r"stage\[0\]\.args: 'weights' is not an argument: expected a list of names out of x, w, bias",
    ),
    "nothing is computed": (('["x", "w", "y", "n"]', '["x", "w", "n"]'), "stage: none takes y, which is computed in"),
    "nothing is read": (('["x", "w", "y", "n"]', '["w", "y", "n"]'), "stage: none takes x, which is read in"),
    "arguments are a word": (('["x", "w", "y", "n"]', '"xwyn"'), r"stage\[0\]\.args: expected a list of names"),
    "argument is a table": (
        ('["x", "w", "y", "n"]', "[{ a = 1 }]"),
        r"stage\[0\]\.args: .* is not an argument: expected a list of names",
    ),
    "block of two": (('["threads", "1", "1"]', '["threads", "1"]'), r"stage\[0\]\.block: expected three expressions"),
    "params is a word": (("[params]", 'params = "none"\n[unused]'), "params: expected a table|unused: unknown key"),
    "parameter is a list": (
        ('threads = { values = [64, 32, 128, 256], doc = "threads a block" }', "threads = [64, 32]"),
        r"params\.threads: expected \{ values = \[\.\.\.\], doc = \.\.\. \}",
    ),
    "parameter without values": (("values = [64, 32, 128, 256], ", ""), r"params\.threads\.values: expected a list"),
    "parameter with no value": (
        ("[64, 32, 128, 256]", "[]"),
        r"params\.threads\.values: expected a list with at least",
    ),
    "value twice": (("[64, 32, 128, 256]", "[64, 64]"), r"params\.threads\.values: a value occurs twice"),
    "values of two kinds": (
        ("[64, 32, 128, 256]", '[64, "all"]'),
        r"params\.threads\.values: values are whole numbers,",
    ),
    "numbers and truth": (("[64, 32, 128, 256]", "[64, true]"), r"params\.threads\.values: values are whole numbers,"),
    "fraction": (("[64, 32, 128, 256]", "[64.0]"), r"params\.threads\.values: values are whole numbers,"),
    "no doc": ((', doc = "threads a block"', ""), r"params\.threads\.doc: say what the parameter does"),
    "parameter named like a size": (("turns   =", "stride_h ="), r"params\.stride_h: not a free name"),
    "parameter named like a function": (("turns   =", "min ="), r"params\.min: not a free name"),
    "parameter that is no name": (("turns   =", '"two turns" ='), r"params\.two turns: not a free name"),
    "derived named like a size": (("outputs = ", 'k = "1"\noutputs = '), r"derived\.k: already the name of a problem"),
    "derived named like a parameter": (("outputs = ", 'fast = "1"\noutputs = '), r"derived\.fast: already the name"),
    "cycle": (
        ('outputs = "threads * turns"', 'outputs = "a * turns"\na = "b + threads"\nb = "a + 1"'),
        r"derived\.a: a cycle through a, b",
    ),
    "cycle of one": (
        ('"threads * turns"', '"outputs * threads * turns"'),
        r"derived\.outputs: a cycle through outputs",
    ),
    "undeclared in derived": (
        ('"threads * turns"', '"threads * turn"'),
        r"derived\.outputs: undeclared name 'turn' in 'threads \* turn' \(did you mean 'turns'\?\)",
    ),
    "undeclared in a constraint": (
        ('"outputs <= 512"', '"output <= 512"'),
        r'constraints\."a block computes at most 512 outputs": undeclared name \'output\'',
    ),
    "undeclared in supports": (
        ('"groups == 1"', '"threads == 1"'),
        "supports.\"there is one group\": undeclared name 'threads'",
    ),
    "arch as one expression": (
        ('{ "compute capability 7.0 or newer" = "device.arch >= 70" }', '"device.arch >= 70"'),
        r'arch: expected a table \[arch\] with lines "reason" = "expression"',
    ),
    **{
        f"old key {old}": ((old_line, f"{line}{old_line}"), f"{old}: is now called {new}")
        for old, new, old_line, line in (
            ("tuned_for", "search_when", "arch     =", 'tuned_for = "true"\n'),
            ("padded_outputs", "padded_work", "arch     =", 'padded_outputs = "n"\n'),
            ("conflicts", "bank_conflicts", "[params]", "[conflicts]\n"),
        )
    },
    "cases without a last one": (
        ('"threads * turns"', '[{ when = "fast", value = "threads" }]'),
        r"derived\.outputs\[0\]: expected \{ when = \.\.\., value = \.\.\. \}, and \{ value = \.\.\. \} as the last",
    ),
    "cases after the last one": (
        ('"threads * turns"', '[{ value = "threads" }, { value = "turns" }]'),
        r"derived\.outputs\[0\]: expected \{ when",
    ),
    "undeclared in arch": (('"device.arch >= 70"', '"k > 1"'), r"arch\..*: undeclared name 'k'"),
    "undeclared of the device": (
        ('"device.arch >= 70"', '"device.archs > 1"'),
        r"arch\..*: undeclared name 'device.archs'",
    ),
    "undeclared in the grid": (('"ceil_div(n * k', '"ceil_div(m * k'), r"stage\[0\]\.grid\[0\]: undeclared name 'm'"),
    "accuracy": (
        ('accuracy = "fp32"', 'accuracy = "fp23"'),
        r"accuracy: 'fp23' is not an accuracy class \(did you mean 'fp32'\?\); there are fp64, fp32, fp32-3xtf32, ",
    ),
    "accuracy in an expression": (
        ('accuracy = "fp32"', "accuracy = \"'fp16' if dtype == 'f16' else 'fp23'\""),
        r"accuracy: 'fp23' is not an accuracy class \(did you mean 'fp32'\?\)",
    ),
    "undeclared in flops": (("[params]", 'flops = "2 * m"\n[params]'), "flops: undeclared name 'm'"),
    "a condition without a reason": (
        ('"a block computes at most 512 outputs"', '""'),
        "constraints: expected a table .* a reason is empty",
    ),
    "expression of another kind": (('"outputs <= 512"', "[512]"), "constraints.*expected an expression in quotes, got"),
    "fraction as an expression": (
        ('"outputs <= 512"', "0.5"),
        "constraints.*expected an expression in quotes, got 0.5",
    ),
    "expression that does not parse": (
        ('"outputs <= 512"', '"outputs <="'),
        r"constraints.*'outputs <=' does not parse",
    ),
    "unused parameter": (
        ("[derived]", 'idle = { values = [1, 2], doc = "nothing" }\n[derived]'),
        r"params\.idle: declared but not used by the body or the launch",
    ),
    "parameter used by a constraint only": (
        ("[constraints]", '[params.idle]\nvalues = [1]\ndoc = "nothing"\n[constraints]\n"idle is 1" = "idle == 1"'),
        r"params\.idle: declared but not used by the body or the launch",
    ),
    "parameter used by an unused derived": (
        ("[constraints]", 'idle_twice = "idle * 2"\n[params.idle]\nvalues = [1]\ndoc = "x"\n[constraints]'),
        r"params\.idle: declared but not used by the body or the launch",
    ),
    "workspace without its size": (('"y", "n"]', '"y", "n", "workspace"]'), r"workspace\.bytes: missing, but a stage"),
    "packed weights without their size": (('"y", "n"]', '"y", "n", "packed_w"]'), r"packed_w\.bytes: missing"),
    "loop index without a loop": (('"y", "n"]', '"y", "n", "i"]'), r"loop\.count: missing, but a stage takes i"),
    "workspace nobody takes": (
        ("[[stage]]", '[workspace]\nbytes = "4"\n[[stage]]'),
        r"workspace\.bytes: declared, but",
    ),
    "workspace without bytes": (("[[stage]]", "[workspace]\nbyte = 4\n[[stage]]"), r"workspace\.byte: unknown key"),
    "bank conflicts of nothing known": (
        ("[[stage]]", '[bank_conflicts]\n"inputs read" = "bank_conflicts(4, thread, [4, 32])"\n[[stage]]'),
        r'bank_conflicts\."inputs read": undeclared name \'thread\'',
    ),
    "constant from nowhere": (
        ("[[stage]]", '[constant]\nw_const = { from = "x" }\n[[stage]]'),
        r"constant\.w_const\.from: expected one of w, bias, packed_w, got 'x'",
    ),
    "constant from a list": (
        ("[[stage]]", '[constant]\nw_const = { from = ["w"] }\n[[stage]]'),
        r"constant\.w_const\.from: expected one of w, bias, packed_w",
    ),
    "constant is a word": (
        ("[[stage]]", '[constant]\nw_const = "w"\n[[stage]]'),
        r"constant\.w_const: expected \{ from",
    ),
    "prepare that reads the input": (
        (
            "[[stage]]",
            '[packed_w]\nbytes = "4"\n[[prepare]]\nentry = "pack"\nargs = ["x", "packed_w"]\nblock = ["1", "1", "1"]\n'
            'grid = ["1", "1", "1"]\n[[stage]]',
        ),
        "prepare: runs once per set of weights: it may take w, bias, packed_w, workspace only",
    ),
}


@pytest.mark.parametrize("mistake", HEADER_MISTAKES)
def test_a_mistake_in_the_header_is_named_by_its_key(tmp_path: Path, mistake: str) -> None:
    edit, words = HEADER_MISTAKES[mistake]
    assert re.match(words, complaint(write_family(tmp_path, edit)))


@pytest.mark.parametrize(
    ("edit", "words", "at"),
    [
        (("[derived]", "[derived"), "header is not TOML", "[derived"),
        (('summary  = "One', "summary  = One"), "header is not TOML", "summary"),
        (("[constraints]", "[derived]"), "header is not TOML: Cannot declare", ""),
    ],
)
def test_a_header_that_is_not_toml_is_named_by_its_line(
    tmp_path: Path, edit: tuple[str, str], words: str, at: str
) -> None:
    path = write_family(tmp_path, edit)
    message = complaint(path)
    assert message.startswith(words)
    if at:
        assert f"line {line_of(path, at)}" in message


BODY_MISTAKES = {
    "undeclared name": (("TURNS = ${turns}", "TURNS = ${turn}"), r"undeclared name 'turn' \(did you mean 'turns'\?\)"),
    "undeclared in a statement": (("//% if fast", "//% if fast and fats"), "undeclared name 'fats'"),
    "batch size as a constant": (("${turns}", "${n}"), "n is not a constant: a kernel takes it at run time"),
    "minus at the edge": (
        ("${turns}", "${-turns}"),
        r"a sign at the edge of \$\{\.\.\.\} is whitespace control to Jinja",
    ),
    "plus at the edge": (("${turns}", "${+turns}"), "a sign at the edge"),
    "minus at the other edge": (("${turns}", "${turns -}"), "a sign at the edge"),
    "note after a statement": (
        ("//% if fast", "//% if fast  // unroll"),
        "// after a line statement is floor division",
    ),
    "statement that does not parse": (("//% if fast", "//% if fast ="), ".*"),
    "unknown statement": (("//% if fast", "//% iff fast"), "Encountered unknown tag 'iff'"),
    "value that nothing ends": (("TURNS = ${turns};", "TURNS = ${turns;"), ".*"),
    "missing include": (
        ("constexpr int K", '#include "_none.cuh"\nconstexpr int K'),
        "included file '_none.cuh' is not",
    ),
    "no file of an expression": (
        ("constexpr int K", '#include "_none_${dtype}.cuh"\nconstexpr int K'),
        re.escape("included file '_none_${dtype}.cuh' is not"),
    ),
}


@pytest.mark.parametrize("mistake", BODY_MISTAKES)
def test_a_mistake_in_the_body_is_named_by_its_line(tmp_path: Path, mistake: str) -> None:
    edit, words = BODY_MISTAKES[mistake]
    path = write_family(tmp_path, edit)
    message = complaint(path)
    found = re.match(r"line (\d+): ", message)
    assert found, message
    new = edit[1].splitlines()[0]
    assert abs(int(found.group(1)) - line_of(path, new)) <= (1 if words == ".*" else 0)
    assert re.match(words, message[found.end() :])


@pytest.mark.parametrize("body", ["//% endif", "//% if fast"])
def test_a_statement_without_its_partner(tmp_path: Path, body: str) -> None:
    path = tmp_path / "tiny.cu.j2"
    path.write_text(f"{TINY}{body}\n", encoding="utf-8")
    assert re.match(r"line \d+: ", complaint(path))


def test_a_derived_value_of_the_batch_size_is_no_constant_either(tmp_path: Path) -> None:
    path = write_family(
        tmp_path, ("outputs = ", 'images = "n * 2"\nmore = "images"\noutputs = '), ("${turns}", "${more}")
    )
    message = complaint(path)
    assert message.startswith(f"line {line_of(path, '${more}')}: ")
    assert "'more'" in message
    assert "run time" in message


def test_the_launch_may_follow_the_batch_size(tmp_path: Path) -> None:
    tiny(tmp_path, ("outputs = ", 'images = "n * 2"\noutputs = '), ('"ceil_div(n * k', '"ceil_div(images * k'))


def test_an_included_file_that_misses_another_is_named(tmp_path: Path) -> None:
    (tmp_path / "_own.cuh").write_text('// first\n#include "_none.cuh"\n')
    with pytest.raises(TemplateError) as caught:
        tiny(tmp_path, ("constexpr int C", '#include "_own.cuh"\nconstexpr int C'))
    assert str(caught.value).startswith(f"{tmp_path / '_own.cuh'}: line 2: included file '_none.cuh'")


def test_included_files_that_include_each_other(tmp_path: Path) -> None:
    (tmp_path / "_a.cuh").write_text('#include "_b.cuh"\n')
    (tmp_path / "_b.cuh").write_text('#include "_a.cuh"\n')
    family = tiny(tmp_path, ("constexpr int C", '#include "_a.cuh"\nconstexpr int C'))
    assert {name for name, _ in family.includes} == {"_a.cuh", "_b.cuh"}


@pytest.mark.parametrize("content", ["", "int x;\n", "/*# kern\n#*/\n", "// note\n" + TINY])
def test_a_file_without_a_header(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tiny.cu.j2"
    path.write_text(content)
    assert complaint(path) == "line 1: expected the header, a comment that starts with /*# kernel"


@pytest.mark.parametrize(
    "content",
    ["/*# kernel\nsummary = ''\n", TINY.replace("#*/\n", "", 1), TINY.replace("#*/\n", "", 1) + "/*# note #*/\n"],
)
def test_a_header_that_is_not_closed(tmp_path: Path, content: str) -> None:
    path = tmp_path / "tiny.cu.j2"
    path.write_text(content)
    assert complaint(path) == "line 1: the header is not closed; put #*/ on a line between it and the body"


def test_a_file_as_editors_on_windows_write_it(tmp_path: Path) -> None:
    plain = tiny(tmp_path)
    plain.path.write_bytes(b"\xef\xbb\xbf" + TINY.replace("\n", "\r\n").encode())
    assert load_template(plain.path) == plain


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    path = tmp_path / "tiny.cu.j2"
    path.write_bytes(b"/*# kernel\xff#*/")
    assert complaint(path).startswith("is not UTF-8 text")


def test_an_included_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "_own.cuh").write_bytes(b"\xff")
    with pytest.raises(TemplateError, match=f"{re.escape(str(tmp_path / '_own.cuh'))}: is not UTF-8 text"):
        tiny(tmp_path, ("constexpr int C", '#include "_own.cuh"\nconstexpr int C'))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert complaint(tmp_path / "none.cu.j2") == "cannot be read: No such file or directory"
    (tmp_path / "folder.cu.j2").mkdir()
    assert complaint(tmp_path / "folder.cu.j2") == "cannot be read: Is a directory"


def test_a_folder_of_ones_own_is_added_to_the_shipped_families(tmp_path: Path) -> None:
    write_family(tmp_path)
    (tmp_path / "_shared.cuh").write_text("")
    (tmp_path / "README.md").write_text("")
    families = load_templates([tmp_path])
    assert {"direct", "implicit_gemm", "tiny"} <= families.keys()
    assert families["tiny"].path == tmp_path / "tiny.cu.j2"


def test_a_family_of_a_name_that_is_taken(tmp_path: Path) -> None:
    path = write_family(tmp_path, name="direct")
    with pytest.raises(TemplateError, match=f"{path}: a family named 'direct' exists already in .*; rename the file"):
        template_files([tmp_path])


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TemplateError, match=f"{tmp_path / 'none'}: no such directory of templates"):
        template_files([tmp_path / "none"])


def test_a_folder_named_like_no_operation(tmp_path: Path) -> None:
    write_family(tmp_path / "conv2d")
    (tmp_path / ".ipynb_checkpoints").mkdir()
    (tmp_path / ".ipynb_checkpoints" / "tiny-checkpoint.cu.j2").write_text("")
    (tmp_path / "notes").mkdir()
    assert "tiny" in template_files([tmp_path]), "what has no families is nobody's"
    write_family(tmp_path / "conv2D", name="other")
    with pytest.raises(TemplateError, match=r"/conv2D: no operation 'conv2D' \(did you mean 'conv2d'\?\)"):
        template_files([tmp_path])


@pytest.mark.parametrize(
    ("folder", "words"),
    [
        (".", "operation.toml: an operation is a folder of its name below the directory of templates"),
        ("conv2d", r"conv2d/operation.toml: conv2d is declared in .*/conv2d/operation.toml; remove or rename one"),
        ("pool", "pool/operation.toml: runtime: missing"),
    ],
)
def test_a_declaration_that_is_none_is_refused(tmp_path: Path, folder: str, words: str) -> None:
    path = tmp_path / folder / "operation.toml"
    path.parent.mkdir(exist_ok=True)
    path.write_text("")
    with pytest.raises(TemplateError, match=words):
        template_files([tmp_path])


def test_an_operation_of_ones_own_may_have_families_of_a_bundled_one(tmp_path: Path) -> None:
    declaration = (shipped("templates") / "softmax" / "operation.toml").read_text()
    path = tmp_path / "rows" / "operation.toml"
    path.parent.mkdir()
    path.write_text(f'families = "softmax/softmax_rows"\n{declaration}')
    family = load_templates([tmp_path])["rows_softmax_rows"]
    assert (family.operation.name, family.base) == ("rows", "softmax_rows")
    for wrong in ("softmax/softmax_row", "softmax_rows", "../softmax/softmax_rows"):
        path.write_text(f'families = "{wrong}"\n{declaration}')
        with pytest.raises(TemplateError, match=r"rows/operation\.toml: families: no bundled family"):
            template_files([tmp_path])


@pytest.mark.parametrize("name", list(template_files()))
def test_every_shipped_family_says_what_it_is(name: str) -> None:
    family = load_template(template_files()[name])
    assert family.summary.endswith(".")
    assert all(constraint.reason for constraint in family.constraints)
    assert all(len(param.doc) > 5 for param in family.params)


def test_the_edits_of_these_tests_are_all_that_is_wrong(tmp_path: Path) -> None:
    tiny(tmp_path)


def test_families_are_parsed_once_however_often_they_are_loaded() -> None:
    first, again = load_templates(), load_templates()
    assert [name for name, each in again.items() if each.params is not first[name].params] == []


def test_only_families_of_the_operations_that_are_asked_for_are_read(tmp_path: Path) -> None:
    (tmp_path / "gemm").mkdir()
    (tmp_path / "gemm" / "broken.cu.j2").write_text("no header")
    assert set(load_templates([tmp_path], of={"softmax"})) == {"softmax_rows"}
    with pytest.raises(TemplateError, match="broken"):
        load_templates([tmp_path], of={"gemm"})
