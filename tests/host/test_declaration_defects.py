"""Wrong declarations that no kernel contradicts: `check` finds each, by an error, a warning or a row."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune.api.starter import new_operation
from autotune.checking.cases import CasePlan
from autotune.checking.check import FamilyCheck
from autotune.checking.dependence import doubtful_declarations, lone_scratch, loose_tolerance
from autotune.errors import AutotuneError
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.family.template_files import load_template
from autotune.resources import shipped
from tests.long_run import every
from tests.operations import GATHERED
from tests.planted_defects import NEW_OP

pytestmark = pytest.mark.cxx

PAGE = Path(__file__).parents[2] / "docs" / "faults.md"
_CASES = 2
_FAMILIES = {
    NEW_OP: NEW_OP,
    "gathered": "gathered",
    "gemm": "gemm_tiled",
    "max_pool2d": "max_pool2d_rows",
    "softmax": "softmax_rows",
    "stencil": "stencil_rows",
}


@dataclass(frozen=True, slots=True)
class Defect:
    """Edits of an operation's files, and a part of the message of `check`."""

    edits: tuple[tuple[str, str], ...]
    told: str
    by: str = "error"
    """error: it ends `check`; warning; row: configs are rejected"""


def _factor(factor: int, *edits: tuple[str, str]) -> Defect:
    return Defect(
        (("[supports]", f'error_factor = "{factor}"\n\n[supports]'), *edits),
        f"error_factor = {factor} allows",
        "row",
    )


DEFECTS: Mapping[tuple[str, str], Defect] = {
    ("softmax", "FLOPs of one row"): Defect(
        (('flops = "5 * rows * columns"', 'flops = "5 * columns"'),), "cost.flops does not grow with rows", "warning"
    ),
    ("stencil", "FLOPs of one plane"): Defect(
        (('flops = "10 * n * h * w"', 'flops = "10 * h * w"'),), "cost.flops does not grow with n", "warning"
    ),
    ("gemm", "FLOPs of one product"): Defect(
        (('flops = "2 * batch * m * n * k"', 'flops = "2 * m * n * k"'),),
        "cost.flops does not grow with batch",
        "warning",
    ),
    ("softmax", "FLOPs without columns"): Defect(
        (('flops = "5 * rows * columns"', 'flops = "5 * rows"'),), "cost.flops does not grow with columns", "warning"
    ),
    ("gemm", "FLOPs without the depth"): Defect(
        (('flops = "2 * batch * m * n * k"', 'flops = "2 * batch * m * n"'),),
        "cost.flops does not grow with k",
        "warning",
    ),
    ("gemm", "FLOPs without the factor 2"): Defect(
        (('flops = "2 * batch * m * n * k"', 'flops = "batch * m * n * k"'),),
        "cost.flops is 1 for each of the",
        "warning",
    ),
    ("stencil", "an input that nothing reads"): Defect(
        (
            (
                "five_points(x, *weights), five_points(abs(x), *abs(weights))",
                "five_points(x, 2, 1), five_points(abs(x), 2, 1)",
            ),
            ("weights[0]", "2"),
            ("weights[1]", "1"),
        ),
        "no output depends on weights",
        "warning",
    ),
    ("stencil", "a weight that nothing reads"): Defect(
        (
            ('shape = ["2"]', 'shape = ["3"]'),
            ("*weights), five_points(abs(x), *abs(weights))", "*weights[:2]), five_points(abs(x), *abs(weights[:2]))"),
        ),
        "no output depends on the end of weights along 3",
        "warning",
    ),
    ("softmax", "NaN in inputs is not declared"): Defect(
        (('nan = "propagates"\n', ""),), "kernels that lose a NaN pass", "warning"
    ),
    ("new-op", "an input that nothing reads"): Defect(
        (("x + bias, abs(x) + abs(bias)", "x, abs(x)"), (" + to_float(bias[at % COLUMNS])", "")),
        "no output depends on bias",
        "warning",
    ),
    ("softmax", "an output that no input changes"): Defect(
        (("    return powers /", "    return 0 * powers + 1 / p.columns\n    return powers /"), ("(_p,", "(p,")),
        "y is the same for all inputs",
        "warning",
    ),
    ("gathered", "one of two outputs that no input changes"): Defect(
        (
            ("return (x.sum(axis=1), abs(x).sum(axis=1))", "return (0 * x.sum(axis=1), 0 * x.sum(axis=1))"),
            ("total[row] = sum", "total[row] = 0.0f"),
        ),
        "total is the same for all inputs",
        "warning",
    ),
    ("gathered", "an output as scratch"): Defect(
        (('name = "ordered"\nrole = "out"', 'name = "ordered"\nrole = "scratch"'),),
        "reference returns",
    ),
    ("gathered", "a result that the reference lacks as scratch"): Defect(
        (
            ('name = "total"\nrole = "out"', 'name = "total"\nrole = "scratch"'),
            ("(x.sum(axis=1), abs(x).sum(axis=1)), (ordered, abs(ordered))", "ordered, abs(ordered)"),
        ),
        "only one stage takes the scratch array total",
        "warning",
    ),
    ("gathered", "scratch as an output"): Defect(
        (('name = "partial"\nrole = "scratch"', 'name = "partial"\nrole = "out"'),), "expected a tuple of"
    ),
    ("new-op", "an output as an input"): Defect(
        (('name = "y"\nrole = "out"', 'name = "y"\nrole = "inout"\nintegers = [-8, 8]'),), "expected a function"
    ),
    ("new-op", "an output of an input's role"): Defect(
        (('name = "y"\nrole = "out"', 'name = "y"\nrole = "in"\nintegers = [-8, 8]'),), "array: expected"
    ),
    ("softmax", "a wide error_factor"): _factor(100_000),
    ("gemm", "a wide error_factor"): _factor(10_000_000),
    ("softmax", "a tolerance as large as the outputs"): Defect((("rtol = 1e-5", "rtol = 0.9"),), "allow errors of"),
    ("softmax", "an absolute tolerance of small outputs"): Defect((("atol = 1e-12", "atol = 0.1"),), "allow errors of"),
    ("stencil", "magnitudes that are too large"): Defect(
        (("five_points(abs(x), *abs(weights))", "1e5 * five_points(abs(x), *abs(weights))"),), "magnitudes of y are"
    ),
    ("stencil", "an output of one row more"): Defect(
        (
            (
                'name = "y"\nrole = "out"\nshape = ["n", "h", "w"]',
                'name = "y"\nrole = "out"\nshape = ["n", "h + 1", "w"]',
            ),
        ),
        "expected an array of",
    ),
    ("max_pool2d", "outputs of a wider type"): Defect(
        (('name = "y"\nrole = "out"', 'name = "y"\nrole = "out"\ndtype = "f32"'),), "never written", "row"
    ),
    ("gathered", "indices that are all the same"): Defect(
        (
            ('fill = "permutation"', "integers = [0, 0]"),
            ("x[row * COLUMNS + order[row * COLUMNS + i]]", "x[row * COLUMNS]"),
        ),
        "test data of order are always 0:",
        "warning",
    ),
    ("gathered", "indices of two elements alone"): Defect(
        (('fill = "permutation"', 'integers = [0, "min(1, columns - 1)"]'),),
        "test data of order are 0 to 1: a kernel that is wrong for other numbers of i32 passes",
        "warning",
    ),
    ("gathered", "indices without the padding that the reference handles"): Defect(
        (("order.astype(int)", "(np.where(order < 0, 0, order) + 0 * order.mean(axis=0, keepdims=True)).astype(int)"),),
        "always has the same result; the test data lack a case",
        "warning",
    ),
    ("gathered", "indices in order"): Defect(
        (
            ('fill = "permutation"', 'fill = "range"'),
            ("x[row * COLUMNS + order[row * COLUMNS + i]]", "x[row * COLUMNS + i]"),
        ),
        "test data of order are always 0, 1, 2, ...",
        "warning",
    ),
    ("new-op", "test data of zeros"): Defect(
        (
            ('shape = ["columns"]\nintegers = [-8, 8]', 'shape = ["columns"]\nfill = "zeros"'),
            (" + to_float(bias[at % COLUMNS])", ""),
        ),
        "test data of bias are always 0",
        "warning",
    ),
    ("stencil", "whole numbers that are all zero"): Defect(
        (("integers = [-4, 4]", "integers = [0, 0]"),), "whole numbers of x are always 0", "warning"
    ),
    ("softmax", "test data near zero"): Defect(
        (
            ("integers = [-200, 200]", "integers = [-8, 8]"),
            ("largest = combined(largest, largest_of, Larger());", "largest = 0.0f;"),
        ),
        "numbers around 100",
        "row",
    ),
    ("softmax", "inputs of a narrow range near zero"): Defect(
        (("integers = [-200, 200]", 'fill = "uniform"\nbetween = [-1, 1]\nintegers = [-8, 8]'),),
        "y hardly changes if 100 is added to x",
        "warning",
    ),
    ("softmax", "a tolerance of 1 %"): Defect((("rtol = 1e-5", "rtol = 0.01"),), "so kernels that are", "warning"),
    ("softmax", "a tolerance of 20 %, and outputs that are 10 % too large"): Defect(
        (("rtol = 1e-5", "rtol = 0.2"), ("1.0f / sum", "1.1f / sum")),
        "kernels whose y is wrong by 20 % pass",
        "warning",
    ),
    ("gathered", "a tolerance of 0.3 % of one of two outputs"): Defect(
        (
            ("[cost]", '[errors]\nmodel = "tolerance"\nrtol = 1e-5\natol = 1e-5\n\n[cost]'),
            ("(x.sum(axis=1), abs(x).sum(axis=1)), (ordered, abs(ordered))", "x.sum(axis=1), ordered"),
            ('name = "total"\nrole = "out"', 'name = "total"\nrole = "out"\nrtol = 0.003'),
        ),
        "the largest error of total is",
        "warning",
    ),
    ("softmax", "an error_factor of 1000"): Defect(
        (("[supports]", 'error_factor = "1000"\n\n[supports]'), ("1.0f / sum", "1.001f / sum")),
        "error_factor = 1000: kernels whose outputs are wrong by 1 % pass",
        "warning",
    ),
    ("softmax", "an error_factor of 40"): Defect(
        (("[supports]", 'error_factor = "40"\n\n[supports]'), ("1.0f / sum", "1.0003f / sum")),
        "error_factor = 40: kernels whose outputs are wrong by 0.04 % pass",
        "warning",
    ),
    ("new-op", "an error_factor of 200000, and bf16 inputs"): Defect(
        (
            ("[supports]", 'error_factor = "200000"\n\n[supports]'),
            ("to_float(x[at])", "__uint_as_float(__float_as_uint(to_float(x[at])) & 0xffff0000)"),
        ),
        "error_factor = 200000: kernels whose outputs are wrong by 9.1 % pass",
        "warning",
    ),
    ("gemm", "a reduction that grows too fast"): Defect(
        (('reduction = "k"', 'reduction = "k * k"'),), "times as many products as cost.flops has FLOP", "warning"
    ),
    ("gemm", "a reduction that is another size"): Defect(
        (('reduction = "k"', 'reduction = "max(m, n, k)"'),), "times as many products as cost.flops has FLOP", "warning"
    ),
    ("gemm", "a reduction that is too large"): Defect(
        (
            ('reduction = "k"', 'reduction = "k * 268435456"'),
            ("? to_float(matrix[at])", "? __uint_as_float(__float_as_uint(to_float(matrix[at])) & 0xfffff800)"),
        ),
        "times as many products as cost.flops has FLOP",
        "warning",
    ),
    ("gathered", "indices that leave out elements"): Defect(
        (
            ('fill = "permutation"', 'integers = [0, "(columns - 1) // 2"]'),
            (
                "np.take_along_axis(x, order.astype(int), axis=1)",
                "np.zeros_like(x)\n    np.put_along_axis(ordered, order.astype(int), x, axis=1)",
            ),
        ),
        "elements of ordered are the same",
        "warning",
    ),
    ("new-op", "i8 test data that are never negative"): Defect(
        (
            ('shape = ["columns"]\nintegers = [-8, 8]', 'shape = ["columns"]\ndtype = "i8"\nintegers = [0, 127]'),
            ("const T* __restrict__ bias", "const unsigned char* __restrict__ bias"),
            ("to_float(bias[at % COLUMNS])", "static_cast<float>(bias[at % COLUMNS])"),
        ),
        "numbers of bias are 0 to 127",
        "warning",
    ),
    ("new-op", "rows that are not independent"): Defect(
        (
            (
                "return x + bias, abs(x) + abs(bias)",
                "y = abs(x) + abs(bias)\n    return (x + bias).cumsum(axis=0), y.cumsum(axis=0)",
            ),
            ("from_float<T>(to_float(x[at]) + to_float(bias[at % COLUMNS]))", "sum_of(x, bias, at)"),
            (
                "extern",
                "__device__ T sum_of(const T* x, const T* bias, long long at) {\n"
                "    float sum = 0.0f;\n"
                "    for (long long i = at % COLUMNS; i <= at; i += COLUMNS)\n"
                "        sum += to_float(x[i]) + to_float(bias[at % COLUMNS]);\n"
                "    return from_float<T>(sum);\n"
                "}\nextern",
            ),
        ),
        "set independent = false",
        "row",
    ),
}
"""The operation, and the defect of its declaration."""


def planted(operation: str, defect: Defect, folder: Path) -> Path:
    """The operation's family in a folder with the edits."""
    name = NEW_OP if operation == "new-op" else operation
    own = folder / name
    if operation == "new-op":
        new_operation(NEW_OP, folder)
    elif operation == "gathered":
        own.mkdir()
        for file, text in GATHERED.items():
            (own / file).write_text(text)
    else:
        shutil.copytree(shipped("templates") / operation, own)
    family = own / f"{_FAMILIES[name]}.cu.j2"
    paths = [own / "operation.toml", *own.glob("reference.*"), family]
    for old, new in defect.edits:
        having = [path for path in paths if old in path.read_text()]
        assert having, f"{operation}: {old!r} does not occur"
        for path in having:
            path.write_text(path.read_text().replace(old, new))
    return family


def said(family: Path, evaluator: DeviceEvaluator) -> Iterator[str]:
    """The output of `check` for a family: why each config failed, an error that ends it, warnings."""
    try:
        plan = CasePlan(load_template(family), evaluator.info)
        rows = list(FamilyCheck(plan, evaluator).rows(most=_CASES))
        yield from (f"row: {row.message}" for row in rows)
        yield from lone_scratch(plan.template)
        yield from loose_tolerance([row for row in rows if row.outcome == "correct"])
        yield from doubtful_declarations([subject.bound.problem for subject in plan.subjects])
    except AutotuneError as error:
        yield f"error: {error}"


def test_the_page_has_the_table() -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    first = lines.index("| operation | what is wrong | `check` prints |")
    found = list(itertools.takewhile(lambda line: line.startswith("| "), lines[first + 2 :]))
    assert found == [f"| {operation} | {name} | {_printed(each)} |" for (operation, name), each in DEFECTS.items()]


def _printed(defect: Defect) -> str:
    return f"{'wrong_result' if defect.by == 'row' else defect.by}: {defect.told}"


@pytest.mark.parametrize("defect", every(4, DEFECTS))
def test_a_wrong_declaration_is_told(defect: tuple[str, str], tmp_path: Path, host: DeviceEvaluator) -> None:
    operation, _ = defect
    lines = list(said(planted(operation, DEFECTS[defect], tmp_path), host))
    wanted = DEFECTS[defect]
    assert any(line.startswith(wanted.by) and wanted.told in line for line in lines), lines


def test_counters_in_scratch_memory_are_not_told(tmp_path: Path) -> None:
    defect = DEFECTS["gathered", "a result that the reference lacks as scratch"]
    family = planted("gathered", defect, tmp_path)
    family.write_text(family.read_text() + "// atomicAdd would be slower\n")
    assert lone_scratch(load_template(family))
    family.write_text(family.read_text().replace("total[row] =", "atomicExch(total + row, 0.0f); total[row] ="))
    assert not lone_scratch(load_template(family))
