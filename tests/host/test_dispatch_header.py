"""A dispatcher's C++ makes the same choice as its record, for any problem."""

from __future__ import annotations

import dataclasses

import pytest

from autotune.compilation.compile import compile_cubin
from autotune.compilation.toolchain import find_nvcc
from autotune.devices.device import DeviceInfo
from autotune.dispatch.dispatcher import FASTEST, PROPERTIES, Dispatcher, PortfolioKernel, Split
from autotune.dispatch.header import dispatch_program, table_row, template_text
from autotune.dispatch.predicate import predicate
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.family.template_files import load_templates
from autotune.measurement.dispatcher_check import ChoicesRequest, choices
from autotune.problem import Conv2dProblem
from tests.compiled import compiled, host_device
from tests.problems import problems

H200 = DeviceInfo("cuda", "H200", arch=90, sm_count=132, memory_bytes=150_000_000_000)
USUAL = Conv2dProblem(1000, 12, 33, 33, 24, 5, 5)
TEMPLATE = template_text()


ASKED = list(problems(120))


@pytest.fixture(scope="module")
def dispatcher() -> Dispatcher:
    """A kernel of every shipped family, families for few problems first, and a threshold."""
    kernels = []
    for name, template in load_templates().items():
        bounds = (BoundTemplate(template, problem, H200) for problem in ASKED)
        bound = next((bound for bound in bounds if bound.supported), None)
        config = None if bound is None else SearchSpace(bound, most_rows=0, sampled_rows=1).default
        if bound is not None and config is not None:
            kernels.append(PortfolioKernel(name, config, predicate(bound, config)))
    kernels.sort(key=lambda kernel: sum(map(kernel.predicate.holds, ASKED)))
    names = [kernel.name for kernel in kernels]
    rule = Split("intensity", 20, names[1], names[2])
    return Dispatcher(
        tuple(item.around([item.of(USUAL)]) if item.name == "c" else item for item in PROPERTIES),
        tuple(kernels),
        dataclasses.replace(next(one for one in kernels if one.name == "implicit_gemm"), name="default"),
        rule,
    )


def compiled_choices(made: Dispatcher, asked: list[Conv2dProblem], cxx: str, text: str) -> list[str | None]:
    """The choices of the compiled dispatcher."""
    binary = compiled(dispatch_program(made, text), cxx=cxx)
    device = host_device(cxx)
    found = choices(device, ChoicesRequest(binary, tuple(table_row(problem) for problem in asked)))
    device.close()
    names = [kernel.name for kernel in made.all_kernels]
    return [None if position < 0 else names[position] for position in found.positions]


def recorded_choices(made: Dispatcher, asked: list[Conv2dProblem]) -> list[str | None]:
    """The choices of the record."""
    chosen = [made.choose(problem).kernel for problem in asked]
    return [None if kernel is None else kernel.name for kernel in chosen]


def test_the_compiled_dispatcher_chooses_as_its_record_does(dispatcher: Dispatcher, cxx: str) -> None:
    expected = recorded_choices(dispatcher, ASKED)
    assert len(set(expected)) >= 6, "the problems hardly tell the kernels apart"
    assert compiled_choices(dispatcher, ASKED, cxx, TEMPLATE) == expected


def test_a_threshold_that_is_off_by_one_is_seen(dispatcher: Dispatcher, cxx: str) -> None:
    wrong = TEMPLATE.replace("_of(layer) < ${split", "_of(layer) <= ${split")
    assert wrong != TEMPLATE
    rule = Split("k", 12, "direct", "default")
    plain = dataclasses.replace(dispatcher, rule=rule, properties=PROPERTIES)
    expected = recorded_choices(plain, ASKED)
    assert compiled_choices(plain, ASKED, cxx, TEMPLATE) == expected
    assert compiled_choices(plain, ASKED, cxx, wrong) != expected


def timed(made: Dispatcher) -> Dispatcher:
    """The smallest expected time decides; `implicit_gemm` is faster on three known layers, `direct` on a fourth."""
    sizes = ((1, 1, 1), (24, 3, 1), (9, 7, 2))
    known = [dataclasses.replace(USUAL, k=k, c=c, stride_h=stride, stride_w=stride) for k, c, stride in sizes]
    values = [[item.of(problem) for item in PROPERTIES] for problem in (*known, USUAL)]
    product, direct, others = (10_000, 11_000, 9_001, 30_000), (30_000, 26_000, 20_003, 10_000), (400_000,) * 4
    times = {"implicit_gemm": product, "direct": direct}
    kernels = [dataclasses.replace(one, relative_times=times.get(one.name, others)) for one in made.all_kernels]
    return dataclasses.replace(
        made,
        properties=PROPERTIES,
        kernels=tuple(kernels[:-1]),
        default=kernels[-1],
        rule=FASTEST,
        known=tuple(map(tuple, values)),
    )


def test_the_compiled_dispatcher_compares_relative_time_times_padded_outputs(dispatcher: Dispatcher, cxx: str) -> None:
    """`direct` and `implicit_gemm` support most problems. They differ in the idle part of the device and in where they
    are fast.
    """
    made = timed(dispatcher)
    expected = recorded_choices(made, ASKED)
    assert min(expected.count("direct"), expected.count("implicit_gemm")) > 20, "the relative time alone decides"
    assert compiled_choices(made, ASKED, cxx, TEMPLATE) == expected
    once = TEMPLATE.replace("times < powers[item]", "times < 1")
    assert once != TEMPLATE
    assert compiled_choices(made, ASKED, cxx, once) != expected


@pytest.mark.nvcc
def test_nvcc_compiles_it_without_a_warning(dispatcher: Dispatcher) -> None:
    made = timed(dispatcher)
    few = made.kernels[:3]
    made = dataclasses.replace(made, kernels=few, rule=Split("k", 12, few[1].name, FASTEST))
    binary = compile_cubin(dispatch_program(made), 90, find_nvcc())
    assert "warning" not in binary.log, binary.log
