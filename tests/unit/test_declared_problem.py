"""Problems of an operation that is not bundled: created, used in studies, and stored next to conv2d's."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from autotune.distance import layer_distance
from autotune.errors import StudyError, TemplateError
from autotune.measurement.numpy_reference import numpy_reference
from autotune.operation.registry import find_operation, operations, read_operation
from autotune.problem import Layer, Problem, as_conv2d, make_problem
from autotune.store import Store, dump, load, merge
from autotune.study_reader import load_study
from autotune.study_writer import written
from tests.operations import DECLARATION, REFERENCE, declare
from tests.unit.store.builders import CONV1, correct, open_scope, run_trial, source_of

STUDY = """op = "scale"

[[layer]]
name = "wide"
rows = 8
columns = 100
halo = 3
dtype = "f16"
count = 2

[[layer]]
name = "conv"
op = "conv2d"
n = 2
c = 1
h = 9
w = 9
k = 4
r = 3
s = 3
"""


def scale(tmp_path: Path, **values: int | str) -> Problem:
    folder = tmp_path / "scale"
    return make_problem(read_operation(folder if folder.exists() else declare(tmp_path)), values)


def test_a_problem_is_its_declaration_with_values(tmp_path: Path) -> None:
    problem = scale(tmp_path, rows=8, columns=100, halo=3)
    assert {array.name: array.shape for array in problem.arrays} == {"x": (8, 100), "y": (8, 94)}
    assert [array.per_item for array in problem.arrays] == [True, True]
    assert (problem.dtype, problem.flops, problem.tensor_bytes, problem.runtime_size) == ("f32", 752, 6208, 8)
    assert str(problem) == "scale rows 8 columns 100 halo 3 f32"
    larger = problem.with_runtime(9)
    assert larger == scale(tmp_path, rows=9, columns=100, halo=3) != problem
    assert pickle.loads(pickle.dumps(larger)) == larger
    assert pickle.loads(pickle.dumps(larger)).output.shape == (9, 94)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"rows": 8}, "columns: missing; scale has no problem without it (columns)"),
        ({"rows": 8, "columns": 9, "colums": 9}, "colums: scale has no such size or word (did you mean 'columns'?)"),
        ({"rows": 0, "columns": 9}, "rows = 0: expected 1 to 2147483647"),
        ({"rows": 8, "columns": 9, "dtype": "bf16"}, "dtype = 'bf16': expected one of f32, f16"),
        ({"rows": 8, "columns": 6, "halo": 3}, "halo = 3 leaves nothing of 6 columns"),
    ],
)
def test_what_is_no_problem_is_said(tmp_path: Path, values: dict[str, int | str], words: str) -> None:
    with pytest.raises(StudyError) as caught:
        scale(tmp_path, **values)
    assert words in str(caught.value)


def test_operations_are_kept_apart(tmp_path: Path) -> None:
    one, other = scale(tmp_path, rows=8, columns=16), scale(tmp_path, rows=8, columns=32, halo=1)
    assert layer_distance(one, other) == 1.0
    assert layer_distance(one, CONV1.problem) == float("inf")
    with pytest.raises(StudyError, match=r"^a network's accuracy is for conv2d only, and this is scale rows 8"):
        as_conv2d(one, "a network's accuracy")


def test_a_study_names_operations(tmp_path: Path) -> None:
    declare(tmp_path)
    (tmp_path / "mixed.toml").write_text(STUDY)
    study = load_study(tmp_path / "mixed.toml")
    assert [layer.problem.operation.name for layer in study.layers] == ["scale", "conv2d"]
    assert study.layers[0] == Layer("wide", scale(tmp_path, rows=8, columns=100, halo=3, dtype="f16"), count=2)
    assert written(study).layers == study.layers


def test_a_problem_travels_with_its_operations_reference(tmp_path: Path) -> None:
    """To a cluster worker whose host does not have the operation's folder."""
    (declare(tmp_path, "scale") / "reference.py").write_text(REFERENCE)
    problem = make_problem(read_operation(tmp_path / "scale"), {"rows": 2, "columns": 3})
    content = pickle.dumps(problem)
    shutil.rmtree(tmp_path / "scale")
    (there,) = numpy_reference(pickle.loads(content), {"x": np.arange(6.0)})
    assert there.value.tolist() == [0, 2, 4, 6, 8, 10]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            'op = "scale"',
            'op = "scal"',
            "op: no operation 'scal' (did you mean 'scale'?); there are avg_pool2d, concat, ",
        ),
        ("halo = 3", "hallo = 3", "layer[0] (wide).hallo: unknown key (did you mean 'halo'?)"),
        ("columns = 100", "", "columns"),
        ("halo = 3", "halo = 50", "halo = 50 leaves nothing of 100 columns"),
    ],
)
def test_a_mistake_in_a_study_is_said(tmp_path: Path, old: str, new: str, words: str) -> None:
    declare(tmp_path)
    (tmp_path / "mixed.toml").write_text(STUDY.replace(old, new, 1))
    with pytest.raises(StudyError) as caught:
        load_study(tmp_path / "mixed.toml")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_operations_are_found_by_their_folders(tmp_path: Path) -> None:
    declare(tmp_path)
    assert set(operations([tmp_path])) == {*operations(), "scale"}
    assert find_operation("scale", [tmp_path]).runtime == ("rows",)
    (tmp_path / "again").mkdir()
    declare(tmp_path / "again")
    with pytest.raises(TemplateError, match=r"again/scale/operation.toml: scale is declared in .*; remove or rename"):
        operations([tmp_path, tmp_path / "again"])
    (tmp_path / "operation.toml").write_text(DECLARATION)
    with pytest.raises(TemplateError, match=r"an operation is a folder of its name below the directory"):
        operations([tmp_path])


def test_layers_of_operations_are_stored_side_by_side(tmp_path: Path) -> None:
    """They are read, dumped and merged without the operation's folder."""
    layer = Layer("wide", scale(tmp_path, rows=8, columns=100, halo=3))
    with Store(tmp_path / "a.db") as store:
        for each in (layer, CONV1):
            scope, source = open_scope(store, layer=each, study=each.name), source_of(correct(0, 9.0).config, each)
            run_trial(store, scope, correct(0, 9.0, source=source), source)
    shutil.rmtree(tmp_path / "scale")
    written: list[str] = []
    dump(tmp_path / "a.db", written.append)
    load("".join(written), "dump", tmp_path / "loaded.db")
    merge(tmp_path / "loaded.db", tmp_path / "merged.db")
    for name in ("a.db", "loaded.db", "merged.db"):
        with Store(tmp_path / name, create=False) as store:
            found = {row.layer.name: row.layer.problem for row in store.trials.list()}
            assert found == {"wide": layer.problem, "conv1": CONV1.problem}
            assert found["wide"].output.shape == (8, 94)
            rows = store.query("SELECT operation, n, dtype, p, problem FROM layers ORDER BY id LIMIT 2").rows
    assert [row[:4] for row in rows] == [("scale", None, "f32", None), ("conv2d", 100, "f32", 66)]
    assert rows[0][4] == '{"columns":100,"dtype":"f32","halo":3,"rows":8}'


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('role = "in"', 'role = "inn"', "array[0] (x).role: 'inn': expected one of in, weights, out, inout, scratch"),
        ('name = "y"', 'name = "x"', "array[1] (x).name: another argument has this name"),
        ('name = "x"', 'name = "rows"', "array[0] (rows).name: another argument has this name"),
        ('name = "x"', 'name = "size_bytes"', "array[0] (size_bytes).name: another argument has this name"),
        ('name = "y"', 'name = "stream"', "array[1] (stream).name: another argument has this name"),
        ("[-2, 2]", "[true, 2]", "integers: expected the minimum and the maximum of its test data, got [True, 2]"),
        ("${columns}", "${columns", "columns columns': a ${ has no }"),
        ('"inner"]', '"iner"]', "array[1] (y).shape: undeclared name 'iner' in 'iner' (did you mean 'inner'?)"),
        (
            '["rows", "inner"]',
            '["inner", "rows"]',
            "array[1] (y).shape: rows, the run-time size, is not its first axis",
        ),
        (
            'role = "out"',
            'role = "in"',
            "array[1] (y).integers: missing; expected the minimum and the maximum of its test data",
        ),
        ('role = "out"', 'role = "scratch"', "array: expected at least one array of the role out or inout"),
        (
            'role = "out"',
            'role = "out"\ninteger = [0, 1]',
            "array[1] (y).integer: unknown key (did you mean 'integers'?)",
        ),
        (
            'role = "out"',
            'role = "out"\nfill = "ones"',
            "array[1] (y).fill: leave it out: only arrays of the roles in, weights, inout, scalar have",
        ),
        ('role = "in"', 'role = "in"\nfill = "one"', "array[0] (x).fill: 'one': expected one of normal, uniform"),
        ('role = "in"', 'role = "in"\nfill = "ones"', "array[0] (x).integers: leave it out: its test data are ones"),
        ('role = "in"', 'role = "in"\nbetween = [0, 1]', 'array[0] (x).between: is for fill = "uniform"'),
        (
            'role = "in"',
            'role = "in"\nfill = "uniform"\nbetween = [1, 0]',
            "array[0] (x).between: expected two numbers, the lower first, got [1, 0]",
        ),
        (
            'role = "in"',
            'role = "in"\ndtype = "f31"',
            "array[0] (x).dtype: 'f31': expected one of f32, f16, bf16, i32",
        ),
        ('role = "in"', 'role = "in"\ndtype = { f64 = "f32" }', "array[0] (x).dtype.f64: unknown key"),
        (
            'role = "in"',
            'role = "in"\ndtype = "i32"\nfill = "normal"',
            "array[0] (x).fill: normal are not integers, and it is stored as i32",
        ),
        (
            "[-2, 2]",
            '[0, "colums"]',
            "array[0] (x).integers: undeclared name 'colums' in 'colums' (did you mean 'columns'?)",
        ),
        (
            "[-2, 2]",
            "[2, -2]",
            "array[0] (x).integers: expected the minimum and the maximum of its test data, got [2, -2]",
        ),
        ('name = "y"', 'name = "int"', "array[1] (int).name: 'int' is a word of C++ or Python"),
        ('"f16"]', '"f16"]\nmode = ["default"]', "words.mode: 'default' is a word of C++ or Python; choose"),
        ('runtime = "rows"', 'runtime = "row"', "runtime: 'row' is not a size"),
        ("halo = {", "min = {", "sizes.min: a function has this name; choose another one"),
        ("halo = {", '"ha-lo" = {', "sizes.ha-lo: 'ha-lo' is not a name; expected letters, digits"),
        ("dtype = [", "rows = [", "words.rows: another in [sizes] has this name"),
        ("dtype = [", "kind = [", "words.dtype: missing; expected some of f32, f16, bf16"),
        (
            "[cost]",
            '[errors]\nmodel = "sums"\n[cost]',
            "errors.model: 'sums': expected one of multilinear, tolerance, exact",
        ),
        ("[cost]", '[errors]\nmodel = "tolerance"\nrtol = 0.1\n[cost]', "errors.atol: missing"),
        ("[cost]", "[costs]", "costs: unknown key (did you mean 'cost'?)"),
        ("columns = 1.0", "colums = 1.0", "similarity.factors.colums: undeclared name 'colums'"),
        (
            "columns = 1.0",
            "dtype = 1.0",
            "similarity.factors.dtype: is a word, but factors take numbers; put it under",
        ),
        ("halo = {", "lambda = {", "sizes.lambda: 'lambda' is a word of C++ or Python"),
        ("halo = {", "device = {", "sizes.device: the device in headers has this name"),
        ('["f32", "f16"]', '"f32"', 'words.dtype: expected a list of strings, such as ["f32", "f16"], got'),
        ('["f32", "f16"]', '["float"]', "words.dtype: 'float': expected some of f32, f16, bf16"),
        ('role = "in"', 'role = "weight"', "scratch, scalar (did you mean 'weights'?)"),
        ('role = "out"', 'role = "out"\nwhen = "dtype == \'fp32\'"', "dtype is never 'fp32' (did you mean 'f32'?) in"),
        (
            'role = "in"',
            'role = "in"\nfill = "uniform"\nbetween = [0, inf]',
            "expected two numbers, the lower first, got",
        ),
        (
            "[rules]",
            '[rules]\n"" = "true"',
            "rules: '': expected a one-line message for problems that break the rule",
        ),
        ("[rules]", '[rules]\n"a\\nb" = "true"', "rules: 'a\\nb': expected a one-line message"),
        ('"inner > 0"', '"inner = 0"', "has unexpected text at '='; write == to compare"),
        ('"inner > 0"', '""', "expression '' is empty"),
        (
            "[derived]",
            '[derived]\nhalf = "inner // 2"',
            "undeclared name 'inner' in 'inner // 2'; sizes are derived from those",
        ),
        (
            "[cost]",
            '[parts.rows]\na = ["u"]\nb = ["v"]\n[cost]',
            "parts.rows: a size has this name; choose another one",
        ),
    ],
)
def test_a_mistake_in_a_declaration_is_named(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in DECLARATION
    folder = declare(tmp_path, text=DECLARATION.replace(old, new))
    with pytest.raises(TemplateError) as caught:
        read_operation(folder)
    assert str(caught.value).startswith(f"{folder}/operation.toml: ")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            'role = "out"',
            'role = "out"\nwhen = "rows > 8"',
            "every array of the roles out and inout is left out here by",
        ),
        ('reduction = "1"', "reduction = 0", "operation.toml: cost.reduction is 0: expected at least 1"),
        (
            '"rows * inner"',
            '"rows // 9"',
            "cost.flops is 0: expected at least 1; for an operation without arithmetic, such as a copy",
        ),
        ('reduction = "1"', 'reduction = "10 ** 400"', "cost.reduction is 1000000"),
        ('"rows * inner"', '"2 ** 63"', "cost.flops is 9223372036854775808: expected at most 2^62"),
        ('"rows", "inner"', '"rows", "2 ** 60"', "y would have more than 2^62 elements; make it smaller"),
        (
            "[-2, 2]",
            "[-3000000000, 2]",
            "x: test data from -3000000000 to 2; expected whole numbers from -1073741824 to 1073741824",
        ),
    ],
)
def test_a_mistake_that_a_problem_shows_is_named(tmp_path: Path, old: str, new: str, words: str) -> None:
    assert old in DECLARATION
    folder = declare(tmp_path, text=DECLARATION.replace(old, new))
    with pytest.raises(StudyError) as caught:
        make_problem(read_operation(folder), {"rows": 8, "columns": 6})
    assert words in str(caught.value)


def test_problems_with_a_factor_of_0_are_compared(tmp_path: Path) -> None:
    declared = read_operation(declare(tmp_path, text=DECLARATION.replace("rows = 0.1", "halo = 1.0")))
    none, two = (make_problem(declared, {"rows": 8, "columns": 6, "halo": halo}) for halo in (0, 2))
    assert layer_distance(none, two) == layer_distance(two, none) == 1.0


def test_an_empty_array_is_no_problem(tmp_path: Path) -> None:
    folder = declare(tmp_path, text=DECLARATION.replace('= "inner > 0"', '= "true"'))
    with pytest.raises(StudyError, match="y would have 8 x 0 elements"):
        make_problem(read_operation(folder), {"rows": 8, "columns": 6, "halo": 3})
