"""The place of a rendered line in its source file: for every family, and in a compiler's messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.devices.device import DeviceInfo
from autotune.family.render import render
from autotune.family.source import KernelSource
from autotune.family.source_map import origins, with_source_lines
from autotune.family.space import BoundTemplate, SearchSpace
from autotune.family.template import KernelTemplate
from autotune.family.template_files import load_template, load_templates
from tests.injected_faults import GOOD, RAGGED
from tests.long_run import every
from tests.problems import PROBLEMS

DEVICE = DeviceInfo("cuda", "any", arch=90, sm_count=132, memory_bytes=1 << 34)


def rendered(template: KernelTemplate) -> KernelSource:
    """The first config on the first problem that has one."""
    for problem in (RAGGED, *PROBLEMS.values()):
        bound = BoundTemplate(template, problem, DEVICE)
        if bound.supported:
            space = SearchSpace(bound, most_rows=100, sampled_rows=10)
            if space.default is not None:
                return render(bound, space.default)
    raise AssertionError(f"{template.name} has no config on any problem")


@pytest.mark.parametrize("name", every(2, load_templates()))
def test_every_line_is_one_of_the_familys_files(name: str) -> None:
    template = load_templates()[name]
    source = rendered(template)
    files = {Path(file).name: text.split("\n") for file, text in template.includes}
    files[template.path.name] = template.text.split("\n")
    lines = source.program.text.split("\n")
    found = origins(template, source, DEVICE)
    assert len(found) == len(lines)
    for line, origin in zip(lines, found, strict=True):
        assert bool(origin) == bool(line), line
        if origin:
            file, _, number = origin.rpartition(":")
            written = files[file][int(number) - 1]
            verbatim = "${" not in written and "/*" not in written
            assert not verbatim or written.rstrip() == line.rstrip(), (origin, written, line)


@pytest.mark.parametrize(
    ("said", "number"),
    [
        ("kernel.cu(8): error: identifier is undefined", 8),
        ("kernel.cu:8:12: error: expected ';'", 8),
        ("divergent barrier: thread is at the barrier of line 32, 5 wait", 32),
    ],
)
def test_a_message_names_the_template(said: str, number: int) -> None:
    template = load_template(GOOD)
    source = rendered(template)
    text = source.program.text.split("\n")[number - 1]
    told = with_source_lines(said, template, source, DEVICE)
    origin = told[told.index("(shared_tile.cu.j2:") :].partition(":")[2].partition(")")[0]
    written = template.text.split("\n")[int(origin) - 1]
    assert written.split("=")[0] == text.split("=")[0]
    assert told.replace(f" (shared_tile.cu.j2:{origin})", "") == said


def test_a_family_that_was_changed_since_says_nothing(tmp_path: Path) -> None:
    source = rendered(load_template(GOOD))
    changed = tmp_path / GOOD.name
    changed.write_text(GOOD.read_text().replace("float sum = 0.0f;", "float sum = 0;"))
    said = "kernel.cu(8): error"
    assert with_source_lines(said, load_template(changed), source, DEVICE) == said
