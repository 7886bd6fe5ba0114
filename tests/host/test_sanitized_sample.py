"""On a GPU, `check` runs some of its configs under compute-sanitizer; a fault there fails the config."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from autotune.checking.cases import CasePlan
from autotune.checking.check import FamilyCheck
from autotune.checking.sanitize import ALL_TOOLS, CLEAN, FAULT, NOT_RUN, Verdict, Winner
from autotune.checking.sanitized import sampled, sanitized, summary
from autotune.evaluation.evaluator import DeviceEvaluator
from tests.planted_defects import KERNELS

pytestmark = pytest.mark.cxx


class RacyThird:
    """A sanitizer that finds a race in the third kernel, and has no synccheck."""

    def check(self, winners: Sequence[Winner]) -> Iterator[Verdict]:
        for number, winner in enumerate(winners):
            for tool in ALL_TOOLS:
                word, message = (FAULT, "Race reported") if (number, tool) == (2, "racecheck") else (CLEAN, "")
                if tool == "synccheck":
                    word, message = NOT_RUN, "the tool failed"
                yield Verdict(winner.name, tool, () if word == NOT_RUN else (1, 9), word, message)

    def close(self) -> None:
        pass


def test_a_fault_of_a_sampled_config_fails_it(tmp_path: Path, host: DeviceEvaluator) -> None:
    template = KERNELS["new-op"].template(tmp_path)
    rows = list(FamilyCheck(CasePlan(template, host.info), host).rows(most=6))
    sample = sampled(rows, 3)
    assert sample == [rows[0], rows[2], rows[4]]
    found = list(sanitized(RacyThird(), template, host.info, sample))
    failed = [row for row, verdict in found if verdict.word == FAULT]
    assert [(row.source, row.sizes, row.outcome, row.message) for row in failed] == [
        (rows[4].source, ((1,), (9,)), "runtime", "racecheck: Race reported")
    ]
    assert all(row in sample for row, verdict in found if verdict.word != FAULT)
    assert summary([verdict for _, verdict in found]) == [
        "Ran under compute-sanitizer: 3 configs, memcheck, racecheck, initcheck",
        "  not under synccheck: the tool failed",
    ]


def test_wrong_configs_are_not_in_the_sample(tmp_path: Path, host: DeviceEvaluator) -> None:
    template = KERNELS["new-op"].template(tmp_path, (("if (at < elements)", "if (at < elements - 1)"),))
    rows = list(FamilyCheck(CasePlan(template, host.info), host).rows(most=2))
    assert sampled(rows) == []
