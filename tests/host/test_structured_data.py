"""An operation on a sparse matrix whose data.py makes the test data, with two outputs of different tolerances."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from autotune.checking.dependence import doubtful_declarations
from autotune.errors import TemplateError
from autotune.evaluation.evaluator import DeviceEvaluator
from autotune.exporting import export_library
from autotune.exporting.build import self_test
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.family.template_files import load_template
from autotune.measurement.numpy_reference import given_data
from autotune.operation.registry import read_operation
from autotune.problem import Problem, make_problem
from autotune.trial import Value
from tests.compiled import built_for_host
from tests.exports import H200, chosen
from tests.operations import written

from .test_storage_types import first_row

pytestmark = pytest.mark.cxx

CSR = {
    "operation.toml": """runtime = "rows"
independent = false

[sizes]
rows = { doc = "rows of a sparse matrix" }
entries = { doc = "its nonzero elements" }

[words]
dtype = ["f32"]

[[array]]
name = "first"
role = "in"
shape = ["rows + 1"]
dtype = "i32"
fill = "data"

[[array]]
name = "x"
role = "in"
shape = ["entries"]
integers = [-8, 8]

[[array]]
name = "total"
role = "out"
shape = ["rows"]

[[array]]
name = "share"
role = "out"
shape = ["rows"]
rtol = 1e-3
atol = 1e-3

[errors]
model = "tolerance"
rtol = 1e-5
atol = 1e-4
nan = "propagates"

[cost]
flops = "rows + entries"
""",
    "data.py": '''import numpy as np


def data(p, random):
    """The first entry of each row; some rows are empty."""
    return {"first": np.sort(np.append(random.integers(0, p.entries + 1, p.rows - 1), [0, p.entries]))}
''',
    "reference.py": """import numpy as np


def reference(p, first, x):
    ends = first.astype(int)
    total = np.array([x[one:other].sum() for one, other in zip(ends[:-1], ends[1:])])
    return total, np.tanh(total)
""",
    "csr_sums.cu.j2": """/*# kernel
summary  = "A warp sums a row."
supports = { "an entry's index fits 31 bits" = "entries < 2147483648" }
arch     = { "compute capability 5.0 or newer" = "device.arch >= 50" }
accuracy = "fp32"

[params]
warps = { values = [1, 4], doc = "warps of a block, a row each" }

[[stage]]
entry = "csr_sums"
args  = ["first", "x", "total", "share", "rows"]
block = ["32 * warps", "1", "1"]
grid  = ["ceil_div(rows, warps)", "1", "1"]
#*/
extern "C" __global__ void csr_sums(const int* first, const float* x, float* total, float* share, int rows) {
    const int row = blockIdx.x * ${warps} + threadIdx.x / 32;
    if (row >= rows) return;
    float sum = 0.0f;
    for (int i = first[row] + threadIdx.x % 32; i < first[row + 1]; i += 32) sum += x[i];
    for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
    if (threadIdx.x % 32 == 0) total[row] = sum, share[row] = tanhf(sum);
}
""",
}
SIZES: dict[str, Value] = {"rows": 40, "entries": 1000}


def problem_of(folder: Path) -> Problem:
    """The problem of the operation in the folder."""
    return make_problem(read_operation(folder), SIZES)


def test_kernel_is_verified_on_what_data_py_gives(tmp_path: Path, host: DeviceEvaluator) -> None:
    row = first_row(written(tmp_path / "right", CSR), host, SIZES)
    assert row.outcome == "correct", row.message
    (first,) = given_data(problem_of(tmp_path / "right"), 0).values()
    assert (first[0], first[-1]) == (0, 1000)
    assert np.all(np.diff(first) >= 0)
    assert not doubtful_declarations([problem_of(tmp_path / "right")])


def test_data_that_are_the_same_in_every_run_are_warned_about(tmp_path: Path) -> None:
    even = "random.integers(0, p.entries + 1, p.rows - 1)", "np.arange(1, p.rows) * p.entries // p.rows"
    written(tmp_path / "even", {**CSR, "data.py": CSR["data.py"].replace(*even)})
    (warning,) = doubtful_declarations([problem_of(tmp_path / "even")])
    assert "data.py: first is the same in every run: a kernel that does not read it passes" in warning


@pytest.mark.parametrize(
    ("old", "new", "right"),
    [
        ("first[row + 1]", "first[row] + 64", False),
        ("share[row] = tanhf(sum)", "share[row] = 1.0005f * tanhf(sum)", True),
        ("share[row] = tanhf(sum)", "share[row] = 1.005f * tanhf(sum)", False),
        ("total[row] = sum", "total[row] = 1.0005f * sum", False),
    ],
)
def test_each_output_has_its_own_tolerance(
    old: str, new: str, right: bool, tmp_path: Path, host: DeviceEvaluator
) -> None:
    row = first_row(written(tmp_path / "changed", CSR, (old, new)), host, SIZES)
    assert (row.outcome == "correct") is right, row.message


def test_an_export_tests_itself_on_the_same_data(cxx: str, tmp_path: Path) -> None:
    template = load_template(written(tmp_path / "csr_sums", CSR))
    problem = make_problem(template.operation, SIZES)
    space = SearchSpace(BoundTemplate(template, problem, H200), {}, most_rows=0, sampled_rows=1)
    assert space.default is not None
    exported = export_library([chosen(template, problem, space.default, "own")], tmp_path / "exported", ())
    passed, said = self_test(built_for_host(exported, tmp_path / "built", cxx=cxx))
    assert passed, said


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("[0, p.entries]", "[0.5, p.entries]", "expected whole numbers in the range of i32"),
        ("p.rows - 1", "p.rows", "expected numbers of the shape (41,)"),
        ('{"first":', '{"last":', "expected a dict of first"),
        ("random.integers", "random.missing", "line 6: data(p, random) on"),
    ],
)
def test_data_that_do_not_fit_are_refused(old: str, new: str, told: str, tmp_path: Path) -> None:
    written(tmp_path / "wrong", CSR, (old, new))
    with pytest.raises(TemplateError) as caught:
        given_data(problem_of(tmp_path / "wrong"), 0)
    assert told in str(caught.value)
