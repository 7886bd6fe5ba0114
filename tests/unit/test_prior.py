"""The estimate orders configs of different families as an H200 does, and a search may begin with the smallest ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from autotune.evaluation.null import NullEvaluator
from autotune.family.space import Admission, BoundTemplate
from autotune.family.template import KernelTemplate
from autotune.family.template_files import load_template, load_templates, template_files
from autotune.interchange.recorded_space import Recording
from autotune.measurement.rates import Rate
from autotune.replay.recorded_trials import measured_rows, read_recordings
from autotune.search.prior import estimate_us
from autotune.store import Store
from autotune.trial import Config
from tests.benchmarks.record_space import LAYERS
from tests.unit.tiny import DEVICE, SMALL, Command, bind, write_family

DATA = Path(__file__).parents[1] / "data"
H200 = DATA / "databases" / "report-layers.db"
SPACE = DATA / "recorded-spaces" / "h200" / "implicit_gemm-resnet-3x3.t4.json.gz"
RATES = {"copy": 4e12, "fp32": 60e12}


def ranks(values: list[float]) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """The rank of each value."""
    return np.argsort(np.argsort(values))


def test_early_trials_of_all_families_are_ordered_as_they_were_measured() -> None:
    families = load_templates()
    with Store(H200, create=False) as store:
        groups = {rows[0].name: rows for rows in measured_rows(store).values()}
        rates = store.rates.best(next(iter(groups.values()))[0].device)

    def grown(config: Config) -> Config:
        """With first values for the parameters that the family has gained since."""
        first = {param.name: param.values[0] for param in families[config.template].params}
        return Config.of(config.template, first | config.params)

    for name, rows in groups.items():
        early = [row for row in rows if row.trial.number < 70]
        if len(early) < 70:
            continue  # the quickstart's layers
        info = early[0].device
        bound = {
            f: BoundTemplate(t, early[0].problem, info, Admission(("fp32",), prune=True)) for f, t in families.items()
        }
        configs = [grown(row.trial.config) for row in early]
        estimates = [estimate_us(bound[config.template], config, info, rates) for config in configs]
        pairs = [(e, row.median_us or 0.0) for e, row in zip(estimates, early, strict=True) if np.isfinite(e)]
        assert len(pairs) > 60, "families may change, and refuse what they once took"
        estimated, measured = ([pair[i] for pair in pairs] for i in range(2))
        assert np.corrcoef(ranks(estimated), ranks(measured))[0, 1] > 0.8, name


def test_what_costs_more_is_estimated_to(tmp_path: Path) -> None:
    def estimate(family: KernelTemplate, **changes: int) -> float:
        bound = bind(family, SMALL.with_runtime(4000))
        config = Config.of(family.name, {"threads": 256, "turns": 1, "order": "rows", "fast": False, **changes})
        return estimate_us(bound, config, bound.device, RATES)

    plain = load_template(write_family(tmp_path))
    begin = '\n[[stage]]\nentry = "conv2d_tiny"\nargs  = ["x", "w", "y", "n"'
    heavy = write_family(tmp_path, (begin, f'\n[workspace]\nbytes = "400000000"\n{begin}, "workspace"'), name="heavy")
    assert estimate(load_template(heavy)) > 2 * estimate(plain), "bytes that others do not move"
    assert estimate(plain, turns=6) == float("inf"), "not feasible"


def test_of_two_configs_that_differ_in_a_pad_the_one_with_conflicts_is_estimated_and_was_measured_slower() -> None:
    (recording,) = read_recordings(SPACE)
    assert isinstance(recording, Recording)
    times_us = {recording.config(row): float(time_us) for row, time_us in enumerate(recording.times_us)}
    bound = BoundTemplate(load_template(template_files()["implicit_gemm"]), LAYERS["resnet-3x3"], DEVICE)
    slower = []
    for config, time_us in times_us.items():
        padded = Config.of("implicit_gemm", {**config.params, "smem_pad": 4})
        if padded != config and padded in times_us:
            assert estimate_us(bound, config, DEVICE, RATES) > estimate_us(bound, padded, DEVICE, RATES), config
            slower.append(time_us / times_us[padded])
    assert len(slower) > 100
    assert np.median(slower) > 1.02


@pytest.mark.parametrize("words", [(), ("--no-prior",)])
def test_without_being_asked_there_is_no_prior(tune: Command, words: tuple[str, ...]) -> None:
    assert tune(*words).code == 0
    with Store("autotune.db", create=False) as store:
        assert {row.proposed_by for row in store.trials.list()} <= {"default", "search"}


def test_a_search_may_begin_with_it_once_the_device_is_calibrated(tune: Command) -> None:
    assert "null was never calibrated; run `autotune devices --calibrate`" in tune("--prior").complaint
    device = NullEvaluator("")
    with Store("autotune.db") as store:
        store.rates.add(device.info, device.environment, [Rate(unit, "", per_s) for unit, per_s in RATES.items()])
    finished = tune("--prior")
    assert finished.code == 0
    assert any(line.startswith("  prior: 3 configs; ") for line in finished.err.splitlines())
    with Store("autotune.db", create=False) as store:
        rows = [row for row in store.trials.list("small") if row.trial.compiled]
    assert [row.proposed_by for row in rows[:4]] == ["prior"] * 3 + [rows[3].proposed_by]
    assert "prior" not in {row.proposed_by for row in rows[3:]}
