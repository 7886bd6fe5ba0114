"""autotune as a library: `import autotune` has these names, and they do the same as the command line."""

from __future__ import annotations

import ast
import inspect
import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

import autotune
from autotune.api.run import acquire_study_lock
from autotune.errors import DeviceError, StoreError, StudyError
from autotune.evaluation.null import NullEvaluator
from autotune.store import Store
from autotune.study import EndToEnd, Measure, NamedRule, Technique
from autotune.study_reader import find_study, load_study, parse_study, study_names
from autotune.study_writer import study_toml

from .tiny import SMALL, Command

SCRIPT = Path(__file__).parents[1] / "data" / "python" / "tune_and_export.py"
STUDY = autotune.Study("mine", (autotune.Layer("one", SMALL),), templates=("tiny",), trials=8)
FAMILIES = (Path("families"),)


def outcomes(path: str) -> dict[str, int]:
    """Number of stored trials by outcome, without those that break a rule."""
    with closing(sqlite3.connect(path)) as raw:
        return dict(raw.execute("SELECT outcome, count(*) FROM trials GROUP BY outcome"))


def test_importing_it_loads_nothing_until_a_name_is_used() -> None:
    listed = (
        "import sys, autotune; before = [name for name in sys.modules if name.startswith('autotune')];"
        "autotune.Layer; print(*before, *({'sqlalchemy', 'optuna', 'click'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", listed], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["autotune"]


def test_every_name_is_there_and_no_other() -> None:
    assert dir(autotune) == sorted(autotune.__all__)
    assert all(getattr(autotune, name) is not None for name in autotune.__all__)
    with pytest.raises(AttributeError, match="module 'autotune' has no attribute 'tuen'"):
        autotune.tuen  # type: ignore[attr-defined]  # noqa: B018
    assert (Path(autotune.__file__).parent / "py.typed").is_file()


def test_convert_without_pytorch_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "autotune.autotune_runtime.torch_convert", raising=False)
    monkeypatch.delitem(vars(autotune), "convert", raising=False)
    with pytest.raises(ImportError, match=r"^autotune\.convert needs PyTorch: pip install 'torch>=2\.9'$"):
        from autotune import convert  # noqa: F401


@pytest.mark.cxx
def test_a_script_without_a_guard_tunes_and_exports(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, SCRIPT, "host"], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[0] == "mine.conv1 global"
    assert (tmp_path / done.stdout.splitlines()[-1]).is_file()


def test_it_tries_what_the_command_line_tries(folder: Path, autotune: Command) -> None:
    import autotune as library

    Path("mine.toml").write_text(study_toml(STUDY))
    assert autotune("tune", "mine.toml", "--family-dir", "families", "--device", "null", "--db", "cli.db").code == 0
    seen: list[tuple[library.Trial, int]] = []
    result = library.tune(
        STUDY,
        device="null",
        db="api.db",
        templates=FAMILIES,
        on_trial=lambda trial, progress: seen.append((trial, progress.done)),
    )
    for path in ("cli.db", "api.db"):
        with library.Store(path, create=False) as store:
            assert [row.trial.config for row in store.trials.list(outcome="correct")] == [
                trial.config for trial, _ in seen
            ]
            assert store.studies.list()[0].text == study_toml(STUDY)
    assert [done for _, done in seen] == list(range(1, 9))
    assert result.layers[0].best == min((trial for trial, _ in seen), key=lambda trial: trial.median_us or 0)
    assert library.best(STUDY, db="api.db")[0].row.trial.config == result.best[0].row.trial.config
    again = library.tune(
        STUDY, device="null", db="api.db", templates=FAMILIES, trials=9, on_trial=lambda *_: seen.append
    )
    assert (again.layers[0].new, again.layers[0].evaluated) == (1, 9)


@pytest.mark.parametrize("create", [True, False])
def test_errors_of_a_store_speak_of_python(folder: Path, *, create: bool) -> None:
    with closing(sqlite3.connect("other.db")) as other:
        other.execute("CREATE TABLE notes (text)")
    Path("none.db").touch()
    path, words = (
        ("other.db", "name another database") if create else ("none.db", "autotune tune STUDY --db none.db` fills it")
    )
    with pytest.raises(StoreError, match=words) as caught:
        autotune.Store(path, create=create)
    assert str(caught.value).startswith(f"{path}: ")


def test_best_is_asked_by_study_layer_file_problem_and_device(folder: Path, filled: Path) -> None:
    (best,) = autotune.best("small")
    for what in ("small.one", "one", "small.toml", Path("small.toml"), SMALL, None, load_study(Path("small.toml"))):
        assert autotune.best(what) == (best,), what
    assert autotune.best("small", device="null")[0].match == "exact"
    assert autotune.best("small", device=best.row.device) == (best,)
    assert autotune.best(SMALL.with_runtime(77)) == ()
    assert autotune.best("small", accuracy="tf32") == ()


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"trials": 0}, StudyError, "trials: 0 is too small"),
        ({"time_budget_s": -1.0}, StudyError, "time_budget_s: expected seconds above 0"),
        ({"finals_s": 0.0}, StudyError, "finals_s = 0.0: expected seconds above 0"),
        ({"layers": ("two",)}, StudyError, "mine has no such layer; it has one"),
        ({"study": "nosuch"}, StudyError, "nosuch: no such study file or bundled study"),
        ({"study": replace(STUDY, name="a/b")}, StudyError, "expected letters, digits"),
        ({"study": replace(STUDY, layers=())}, StudyError, "expected at least one"),
        ({"study": replace(STUDY, layers=STUDY.layers * 2)}, StudyError, "'one' occurs twice"),
        ({"study": replace(STUDY, templates=("tine",))}, StudyError, "no family named 'tine'"),
        ({"study": replace(STUDY, space={"tiny": {"threads": (7,)}})}, StudyError, "threads"),
        ({"device": "gpu"}, DeviceError, "gpu: no such device; the devices are cuda:N, host"),
        ({"jobs": 0}, DeviceError, "expected at least 1 compiler"),
        ({"baselines": ("cudn",)}, DeviceError, "^--baseline cudn: expected one of cudnn, inductor"),
        (
            {"baselines": ("cudnn",)},
            DeviceError,
            "--baseline cudnn is for CUDA devices; .* give --device cuda",
        ),
        ({"db": "nosuch/autotune.db"}, StoreError, "there is no folder nosuch; create it first"),
    ],
)
def test_what_is_wrong_is_an_error_of_one_line_and_nothing_runs(
    given: dict[str, object], error: type[Exception], words: str, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(error, match=words) as raised:
        autotune.tune(**{"study": STUDY, "device": "null", "templates": FAMILIES, **given})  # type: ignore[arg-type]
    assert "\n" not in str(raised.value)
    assert capfd.readouterr() == ("", "")
    assert not Path("autotune.db").exists() or outcomes("autotune.db") == {}


def test_ctrl_c_ends_it_in_order(folder: Path) -> None:
    def on_trial(_: autotune.Trial, progress: autotune.Progress) -> None:
        if progress.done == 3:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        autotune.tune(STUDY, device="null", templates=FAMILIES, on_trial=on_trial)
    assert signal.getsignal(signal.SIGINT) is before
    assert outcomes("autotune.db") == {"correct": 3}
    assert autotune.tune(STUDY, device="null", templates=FAMILIES).layers[0].new == 5


def test_what_on_trial_raises_is_raised_and_loses_nothing(folder: Path) -> None:
    def on_trial(_: autotune.Trial, progress: autotune.Progress) -> None:
        if progress.done == 3:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        autotune.tune(STUDY, device="null", templates=FAMILIES, on_trial=on_trial)
    assert outcomes("autotune.db") == {"correct": 3}


def test_it_stops_when_asked_to_and_runs_in_any_thread(folder: Path) -> None:
    seen: list[int] = []
    results: list[autotune.TuneResult] = []

    def run() -> None:
        results.append(
            autotune.tune(
                STUDY,
                device="null",
                templates=FAMILIES,
                on_trial=lambda trial, _: seen.append(trial.number),
                stopping=lambda: len(seen) == 4,
            )
        )

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert (results[0].layers[0].stopped, results[0].layers[0].evaluated) == ("interrupted", 4)


def test_it_stops_waiting_for_another_process_when_asked_to(folder: Path) -> None:
    autotune.tune(STUDY, device="null", templates=FAMILIES)
    asked: list[bool] = []

    def stopping() -> bool:
        asked.append(True)
        return len(asked) == 2

    with (
        Store("autotune.db") as store,
        closing(NullEvaluator("")) as device,
        acquire_study_lock(store, STUDY, device.info, lambda: None),
        pytest.raises(StoreError, match="another process is tuning mine into it; stopped waiting"),
    ):
        autotune.tune(STUDY, device="null", templates=FAMILIES, stopping=stopping)
    assert len(asked) == 2


def test_a_study_file_that_was_changed_in_python_is_stored_as_changed(folder: Path) -> None:
    """After any change: of its layers as well as of its accuracy."""
    loaded = autotune.load_study("small.toml")
    autotune.tune(loaded, device="null", templates=["families"])
    strict = replace(loaded, accuracy="fp32", trials=3)
    autotune.tune(strict, device="null", templates=["families"])
    with Store("autotune.db") as store:
        (row,) = store.studies.list()
    stored = parse_study(row.text, "other")
    assert (stored.accuracy, stored.trials) == ("fp32", 3)
    autotune.tune(loaded, device="null", templates=["families"])
    with Store("autotune.db") as store:
        assert store.studies.list()[0].text == Path("small.toml").read_text(), "as its file says it"


def test_names_of_layers_are_checked_one_by_one(folder: Path, filled: Path) -> None:
    words = r"--layer two: autotune.db has no such layer of small; it has one"
    with pytest.raises(StoreError, match=words):
        autotune.export("small", "kernels", layers=["one", "two"])
    assert not Path("kernels").exists()
    with pytest.raises(StoreError, match=words):
        autotune.importance("small", layers=["small.one", "two"])
    with pytest.raises(StoreError, match="accuracy class 'fp31': expected one of fp64, fp32, "):
        autotune.best("small", accuracy="fp31")


def test_an_export_says_what_it_wrote_and_what_not(folder: Path, filled: Path) -> None:
    study = replace(load_study(Path("small.toml")), trials=1)
    both = replace(study, layers=(*study.layers, autotune.Layer("two", SMALL.with_runtime(5))))
    autotune.tune(both, device="null:compile=1", templates=FAMILIES, layers=["two"])
    exported = autotune.export(both, "kernels", proof=False)
    assert [path.name for path in exported.sources] == ["small.one.null.cu"]
    assert exported.left_out == {"small.two": "no such kernel in autotune.db"}
    assert exported.proof == ()
    with pytest.raises(StoreError, match="no study or layer 'nosuch'; it has small"):
        autotune.export("nosuch", "kernels")
    with pytest.raises(StoreError, match=r"^--out: is empty; name a folder"):
        autotune.export("small", "", proof=False)
    for wrong in ({"admit": "x"}, {"admit": "fp32", "accuracy": "fp32"}, {"dispatcher": True, "accuracy": "fp32"}):
        with pytest.raises(autotune.AutotuneError, match=r"admit|accuracy"):
            autotune.export("small", "kernels", **wrong)


def comparable(study: autotune.Study) -> autotune.Study:
    """A study without its file."""
    return replace(study, text="", path=None)


@pytest.mark.parametrize("name", study_names())
def test_a_study_is_the_same_when_written_and_read(name: str) -> None:
    study = load_study(find_study(name))
    assert comparable(parse_study(study_toml(study), "other")) == comparable(study)


def test_a_study_with_everything_is_the_same_when_written_and_read() -> None:
    problem = replace(SMALL, stride_h=2, pad_w=1, dilation_h=2, dtype="f16", layout="nhwc", epilogue="bias_relu")
    techniques = (
        Technique("a", "tiny", {"threads": (64,)}, 'r\x7f\n"', {"ünique": 1.5}, "said"),
        Technique("b", "tiny", {}),
    )
    study = autotune.Study(
        "all",
        (autotune.Layer("ünique", problem, 3),),
        accuracy="tf32",
        trials=3,
        time_budget_s=1e-5,
        trials_total=9,
        time_budget_total_s=60.0,
        min_gain=0.01,
        seed=5,
        sampler="random",
        warm_start=False,
        templates=("tiny",),
        workspace_limit_bytes=1,
        spill_limit_bytes=2,
        measure=Measure("hot"),
        space={"tiny": {"threads": (64, 32), "order": ("rows",), "fast": (True,)}},
        end_to_end=EndToEnd(streams=(1, 2), pinned=("no",)),
        techniques=techniques,
        rules=(NamedRule("given", "n", 5, "a", "b", report="000"), NamedRule("other", "k", 7, "b", "a")),
    )
    assert comparable(parse_study(study_toml(study), "other")) == study


def test_every_field_of_a_public_record_is_documented() -> None:
    undocumented = []
    for name in ("Config", "Conv2dProblem", "ExportResult", "FamilyImportance", "Layer", "Progress", "Study", "Trial"):
        found = getattr(autotune, name)
        body = ast.parse(textwrap.dedent(inspect.getsource(found))).body[0].body  # type: ignore[attr-defined]
        for field, following in itertools.pairwise([*body, None]):
            if isinstance(field, ast.AnnAssign) and not (
                isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            ):
                undocumented.append(f"{name}.{ast.unparse(field.target)}")
        assert all(f"\n{field}: " in (found.__doc__ or "") for field in found.__dataclass_fields__), f"help({name})"
    assert undocumented == []


def test_a_config_has_its_parameters_as_a_dict() -> None:
    config = autotune.Config.of("direct", {"block_q": 8, "unroll": "rs"})
    assert config.params == {"block_q": 8, "unroll": "rs"}
    assert config.pairs == (("block_q", 8), ("unroll", "rs"))
