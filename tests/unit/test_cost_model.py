"""The cost model: the factors of a prediction, the result of a fit, and a search on a new GPU that begins with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from autotune.devices.device import DeviceInfo
from autotune.errors import StudyError, TemplateError
from autotune.family.space import SearchSpace
from autotune.family.template_files import load_template, template_files
from autotune.problem import Conv2dProblem
from autotune.resources import cost_model_file
from autotune.search.cost_model import CostModel, Observed, fit, log_times, read_cost_model
from autotune.search.cost_terms import TERMS, Floats, config_columns
from autotune.search.warm_start import feasible_positions, positions_of, warm_start
from autotune.study_reader import find_study, load_study
from autotune.trial import Config
from tests.exports import H200
from tests.unit.tiny import SMALL, Command, bind, tiny

MODEL = read_cost_model(cost_model_file())
STAGE = '\n[[stage]]\nentry = "conv2d_tiny"'
COST = '\n[cost]\nloaded_bytes = "LOADED"\nwaves = "1"\nsteps = "turns"\n'


def predicted_us(folder: Path, *edits: tuple[str, str], name: str) -> Floats:
    """What the bundled model predicts for all configs of the tiny family on a calibrated H200."""
    space = SearchSpace(bind(tiny(folder, *edits, name=name), SMALL))
    columns = config_columns(space.bound, feasible_positions(space))
    return np.exp(MODEL.log_us(space.bound, columns, MODEL.rates["NVIDIA H200"]))


@pytest.mark.parametrize("key", ["loaded_bytes", "stored_bytes", "waits", "issues", "depth"])
def test_work_that_a_header_declares_is_predicted_to_take_time(key: str, tmp_path: Path) -> None:
    def of(work: str) -> Floats:
        cost = COST.replace("LOADED", "1")
        cost = cost.replace('"1"', f'"{work}"', 1) if key == "loaded_bytes" else f'{cost}{key} = "{work}"\n'
        return predicted_us(tmp_path, (STAGE, cost + STAGE), name=f"tiny_{work}")

    assert (of("1000000000") > 5 * of("1")).all()


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ('\n[cost]\nloaded_bytes = "1"\nwaves = "1"\n', "steps"),
        (COST.replace("LOADED", "1") + 'bytes = "1"\n', "bytes"),
        (COST.replace("LOADED", "no_such_size"), "no_such_size"),
    ],
)
def test_a_cost_that_is_incomplete_or_unknown_is_an_error(tmp_path: Path, table: str, said: str) -> None:
    with pytest.raises(TemplateError, match=rf"cost.*{said}|{said}.*cost"):
        tiny(tmp_path, (STAGE, table + STAGE))


def test_a_fit_finds_the_weights_that_made_the_times() -> None:
    rng = np.random.default_rng(1)
    true = np.exp(rng.normal(0, 0.4, len(TERMS)))
    true[:2] = 1.0, 1.5
    layers = [np.exp(rng.normal(1, 1.5, (20, len(TERMS)))) for _ in range(30)]
    observed = [Observed(number, "one", each, np.exp(log_times(each, true)[0])) for number, each in enumerate(layers)]
    weights = fit(observed)
    unseen = np.exp(rng.normal(1, 1.5, (200, len(TERMS))))
    assert np.abs(log_times(unseen, weights["one"])[0] - log_times(unseen, true)[0]).max() < 0.1
    with pytest.raises(StudyError, match="to fit a cost model to"):
        fit([])


def test_a_family_without_records_gets_the_weights_of_all_others(tmp_path: Path) -> None:
    bound = bind(tiny(tmp_path), SMALL)
    columns = config_columns(bound, feasible_positions(SearchSpace(bound)))
    common = CostModel("", {}, MODEL.rates, MODEL.devices, {"": MODEL.weights[""]})
    rates = MODEL.rates["NVIDIA H200"]
    assert (MODEL.log_us(bound, columns, rates) == common.log_us(bound, columns, rates)).all()


def test_a_family_of_conv_has_the_weights_of_the_file_that_it_reuses() -> None:
    files = template_files()
    bases = {name: load_template(files[name]).base for name in ("conv_mma_gemm", "conv_transpose_direct")}
    assert bases == {"conv_mma_gemm": "mma_gemm", "conv_transpose_direct": "conv_transpose_direct"}
    assert "mma_gemm" in MODEL.weights


def test_a_file_that_is_no_cost_model_is_one_clear_line(tmp_path: Path) -> None:
    for text in ("", "[]", '{"terms": []}', '{"terms": 3}'):
        (tmp_path / "model.json").write_text(text)
        with pytest.raises(StudyError, match=r"model.json: .*cost model"):
            read_cost_model(tmp_path / "model.json")


def test_a_search_on_a_gpu_without_any_results_begins_with_the_model() -> None:
    """A 3x3 convolution of ResNet-50 with n = 64: a small tile takes several times as long as the best."""
    gpu = DeviceInfo("cuda", "NVIDIA H20", 90, 78, 96 << 30)
    layer = Conv2dProblem(64, 256, 14, 14, 256, 3, 3, pad_h=1, pad_w=1, dtype="f16", layout="nhwc")
    space = SearchSpace(bind(load_template(template_files()["implicit_gemm_sm90"]), layer, gpu))
    start = warm_start(layer, gpu, (), [space], 10, MODEL, {})
    first = start.next({}, ())
    assert start.by == "cost_model"
    assert first is not None
    tile = first.params["tile_m"], first.params["tile_n"]
    assert int(tile[0]) * int(tile[1]) >= 128 * 128, first


def test_a_gpu_with_half_of_the_multiprocessors_is_predicted_to_take_nearly_twice_as_long() -> None:
    """A 3x3 convolution of ResNet-50 with n = 64, limited by arithmetic, on GPUs that nobody calibrated."""
    layer = Conv2dProblem(64, 256, 14, 14, 256, 3, 3, pad_h=1, pad_w=1, dtype="f16", layout="nhwc")

    def log_us(sm_count: int) -> float:
        gpu = DeviceInfo("cuda", "NVIDIA H20", 90, sm_count, 96 << 30)
        space = SearchSpace(bind(load_template(template_files()["implicit_gemm_sm90"]), layer, gpu))
        proposal = warm_start(layer, gpu, (), [space], 10, MODEL, {}).proposal()
        assert proposal is not None
        return proposal[0]

    assert 1.6 < np.exp(log_us(66) - log_us(132)) < 2.1


def test_a_device_that_is_no_gpu_begins_as_before(tmp_path: Path) -> None:
    space = SearchSpace(bind(tiny(tmp_path), SMALL))
    assert warm_start(SMALL, space.bound.device, (), [space], 10, MODEL, {}).next({}, ()) is None


def test_the_bundled_model_is_of_both_gpus_and_says_how_good_it_is() -> None:
    assert {device.name for device in MODEL.devices} == {"NVIDIA H200", "NVIDIA H100 80GB HBM3"}
    assert 1 <= MODEL.error["median"] <= 1.05
    assert MODEL.error["p95"] <= 1.5


@pytest.mark.parametrize(
    ("layer", "family", "values", "measured_us"),
    [
        (
            "kb54",
            "conv_few_channels_sm90",
            {"window_rows": 8, "stages": 4, "producers": 2},
            154,
        ),
        (
            "kb59",
            "conv_few_channels_sm90",
            {"window_rows": 24, "stages": 4, "producers": 2},
            354,
        ),
        ("kb79", "conv_transpose_phases_sm90", {"tile_n": 208, "joined": "columns", "window_rows": 1}, 194),
    ],
)
def test_the_bundled_model_predicts_kernels_of_an_h200(
    layer: str, family: str, values: dict[str, int | str], measured_us: float
) -> None:
    """Layers on which the steps of the fit once overshot: it predicted 303, 2760 and 326 us."""
    (problem,) = (each.problem for each in load_study(find_study("kernelbench-fp16")).layers if each.name == layer)
    template = load_template(template_files()[family])
    config = Config.of(family, {param.name: param.values[0] for param in template.params} | values)
    bound = bind(template, problem, H200)
    columns = config_columns(bound, positions_of(template, config)[None])
    predicted_us = np.exp(MODEL.log_us(bound, columns, MODEL.rates["NVIDIA H200"])).item()
    assert measured_us / 1.5 < predicted_us < measured_us * 1.5


def test_fitting_needs_results_of_a_calibrated_gpu(tune: Command, autotune: Command) -> None:
    assert tune("--db", "one.db").code == 0
    refused = autotune("fit-model", "one.db", "--out", "model.json")
    assert refused.code == 1
    assert "to fit a cost model to" in refused.complaint
