"""`autotune dispatch` on the null device: its output, stored rows and refusals; nothing is measured twice."""

from __future__ import annotations

import json
import re
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.compilation.compile import Binary, Program, Target
from autotune.dispatch.builder import Built, build, held_out
from autotune.dispatch.cells import Run
from autotune.dispatch.dispatcher import DEFAULT
from autotune.dispatch.plan import interpolated_layers
from autotune.errors import StudyError
from autotune.evaluation.null import NullEvaluator
from autotune.family.source import KernelSource
from autotune.family.template import KernelTemplate
from autotune.family.template_files import load_templates
from autotune.measurement.benchmark import summarise
from autotune.measurement.dispatcher_check import ChoicesRequest
from autotune.problem import Conv2dProblem, Layer
from autotune.store import Store
from autotune.study import Study
from autotune.study_reader import load_study
from autotune.trial import ErrorStats, Measured, Resources, Timing
from autotune.tuning.tune import tune
from autotune.workers.worker import FinalsRequest, FinalsTimings

from .tiny import Command, changed, write_family

LAYER = '[[layer]]\nname = "{name}"\nn = 3\nc = {c}\nh = {h}\nw = 8\nk = {k}\nr = 3\ns = 3\ncount = {count}\n'
SIZES = ((4, 2, 9, 1), (6, 2, 9, 3), (12, 3, 12, 2), (16, 4, 16, 1), (32, 8, 20, 1), (48, 8, 20, 5))
HEADER = 'name = "several"\ntrials = 14\nwarm_start = false\ntemplates = ["tiny"]\n'
STUDY = HEADER + "".join(LAYER.format(name=f"k{k}", c=c, h=h, k=k, count=count) for k, c, h, count in SIZES)
TURNS = 'turns   = { values = [1, 2, 3, 4, 6],    doc = "outputs a thread" }'
LATER = (
    (TURNS, f'{TURNS}\nlater = {{ values = [7, 8], doc = "came later" }}'),
    ("#*/", "#*/\nconstexpr int LATER = ${later};"),
)


class Device(NullEvaluator):
    """A null device on which layers of many output channels need many threads, and others few; it counts its runs."""

    def __init__(self) -> None:
        super().__init__("")
        self.ran: list[KernelSource] = []

    def evaluate(self, source: KernelSource, binary: Binary, *, cache: str, best_us: float | None) -> Measured:
        """Count, and time."""
        self.ran.append(source)
        return Measured(self.timing(source, cache), ErrorStats(0.0, 0.0))

    def finals(self, request: FinalsRequest) -> FinalsTimings:
        """The same times once more."""
        return FinalsTimings(tuple(self.timing(source, request.cache) for source, _ in request.kernels))

    def timing(self, source: KernelSource, cache: str) -> Timing:
        """The time of a kernel."""
        return _timing(source, cache)


def _timing(source: KernelSource, cache: str) -> Timing:
    wanted, has = int(source.problem.values["k"]), int(source.config.params.get("threads", 4096)) // 4
    turns = int(source.config.params.get("turns", 1))
    return summarise((source.problem.flops / 1e4 * max(wanted / has, has / wanted) * (10 + turns),) * 5, cache)


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> dict[str, KernelTemplate]:
    folder = tmp_path_factory.mktemp("families")
    write_family(folder)
    return {name: one for name, one in load_templates([folder]).items() if name in ("tiny", "implicit_gemm")}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    path = tmp_path_factory.mktemp("study") / "several.toml"
    path.write_text(STUDY)
    return load_study(path)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory, study: Study, families: dict[str, KernelTemplate]) -> bytes:
    """A database in which every layer is tuned."""
    path = tmp_path_factory.mktemp("tuned") / "tuned.db"
    with Store(path) as store:
        tune(study, families, Device(), store)
    return path.read_bytes()


def built(
    path: Path,
    study: Study,
    families: dict[str, KernelTemplate],
    device: NullEvaluator,
    *,
    holdout: int | None = None,
    explore: bool = True,
) -> Built:
    with Store(path) as store:
        run = Run(study, families, device, store)
        return build(run, kernels=4, explore=explore, holdout=holdout)


@pytest.fixture(scope="module")
def first(
    tmp_path_factory: pytest.TempPathFactory, tuned: bytes, study: Study, families: dict[str, KernelTemplate]
) -> tuple[Built, Device, bytes]:
    """A dispatcher, its device, and the database afterwards."""
    path = tmp_path_factory.mktemp("first") / "first.db"
    path.write_bytes(tuned)
    device = Device()
    return built(path, study, families, device), device, path.read_bytes()


@pytest.fixture
def path(tmp_path: Path, first: tuple[Built, Device, bytes]) -> Path:
    """A database that has the dispatcher."""
    path = tmp_path / "autotune.db"
    path.write_bytes(first[2])
    return path


@pytest.fixture
def fresh(tmp_path: Path, tuned: bytes) -> Path:
    """A database in which the layers are tuned but there is no dispatcher."""
    path = tmp_path / "fresh.db"
    path.write_bytes(tuned)
    return path


def test_a_second_run_measures_and_tries_nothing(
    path: Path, study: Study, families: dict[str, KernelTemplate], first: tuple[Built, Device, bytes]
) -> None:
    made, device, _ = first
    assert made.measured == len(device.ran) > 0
    assert len({source.hash for source in device.ran}) == len(device.ran), "a kernel was measured twice"
    assert made.evaluated == len(made.tried) > 0
    again = Device()
    second = built(path, study, families, again)
    assert (second.measured, second.evaluated, again.ran) == (0, 0, [])
    assert (second.dispatcher, second.layers, second.text) == (made.dispatcher, made.layers, made.text)
    with Store(path, create=False) as store:
        (row,) = store.dispatchers.list("several")
    assert (row.document, row.layers) == (made.dispatcher.to_json(), made.layers)


def test_every_layer_gets_what_the_rule_says(path: Path, first: tuple[Built, Device, bytes]) -> None:
    made, device, _ = first
    timed = {(source.problem, source.config): _timing(source, "cold").median_us for source in device.ran}
    for row in made.layers:
        kernel = made.dispatcher.choose(row.layer.problem).kernel
        assert kernel is not None
        assert row.kernel == kernel.name
        assert row.time_us == timed.get((row.layer.problem, kernel.config), row.time_us)
    with Store(path, create=False) as store:
        (stored,) = store.dispatchers.list("several")
    assert stored.total_us == pytest.approx(sum(row.layer.count * (row.time_us or 0) for row in made.layers))
    (tried,) = (one for one in made.tried if one.rule == made.dispatcher.rule)
    assert made.tried[0].total_us <= stored.total_us == tried.total_us


BATCHES = HEADER.replace("several", "batches") + "".join(
    LAYER.format(name=f"k{k}n{n}", c=2, h=9, k=k, count=1).replace("n = 3", f"n = {n}")
    for k, n in ((4, 4), (4, 64), (6, 4), (6, 64), (48, 64))
)


def test_held_out_layers_are_judged_and_never_seen_and_shapes_are_interpolated_between_batches(
    tmp_path: Path, families: dict[str, KernelTemplate]
) -> None:
    (tmp_path / "batches.toml").write_text(BATCHES)
    study = load_study(tmp_path / "batches.toml")
    path = tmp_path / "autotune.db"
    with Store(path) as store:
        tune(study, families, Device(), store)
    *known, unknown = study.layers
    assert held_out(5, 5) == {4} != held_out(5, 0)
    alone, beside = Device(), Device()
    made = built(path, replace(study, layers=tuple(known)), families, alone)
    between = {layer.problem.with_runtime(16) for layer in known}
    assert {source.problem for source in alone.ran} >= between == {layer.problem for layer in made.interpolated}
    held = built(path, study, families, beside, holdout=5)
    assert held.dispatcher == made.dispatcher
    assert {source.problem for source in beside.ran} == {unknown.problem}
    assert [row.layer for row in held.layers if row.role == "held out"] == [unknown]


def test_what_is_interpolated_follows_from_the_layers_given() -> None:
    def layer(n: int, k: int, count: int) -> Layer:
        return Layer(f"n{n}k{k}", Conv2dProblem(n=n, c=4, h=20, w=20, k=k, r=3, s=3), count)

    few = layer(100, 4, 8), layer(1000, 4, 2), layer(1000, 8, 1)
    assert [(one.problem.runtime_size, one.problem.values["k"], one.count) for one in interpolated_layers(few)] == [
        (316, 4, 4),
        (316, 8, 1),
    ]
    assert interpolated_layers(few[1:]) == ()
    assert [one.problem.values["k"] for one in interpolated_layers(few, but=[layer(316, 4, 1)])] == [8]
    assert [one.problem.runtime_size for one in interpolated_layers([*few, layer(316, 4, 1)])] == [178, 562, 178, 562]


class Choosing(Device):
    """A device that compiles dispatchers, and always chooses the same kernel."""

    def __init__(self, place: int) -> None:
        super().__init__()
        self.built: list[Program] = []
        self._place = place

    def build(self, program: Program) -> Future[Binary]:
        """An empty binary."""
        self.built.append(program)
        future: Future[Binary] = Future()
        future.set_result(Binary(Target("null"), b"", Resources(), "", program.entries))
        return future

    def choices(self, request: ChoicesRequest) -> tuple[int, ...]:
        """The same for every layer."""
        return (self._place,) * len(request.table)


def test_a_compiled_dispatcher_that_chooses_otherwise_is_no_dispatcher(
    fresh: Path, study: Study, families: dict[str, KernelTemplate]
) -> None:
    device = Choosing(place=-1)
    with pytest.raises(StudyError) as caught:
        built(fresh, study, families, device)
    assert "no dispatcher is correct: wrong_result wrong_choice: chooses nothing for k4, its rule" in str(caught.value)
    assert device.built
    with Store(fresh, create=False) as store:
        assert store.dispatchers.list("several") == ()
        found = store.query("SELECT DISTINCT outcome, reason, median_us FROM results WHERE template = 'dispatch'").rows
    assert found == (("wrong_result", "wrong_choice", None),)


def test_kernels_of_before_a_family_had_a_parameter_are_measured_as_they_are_now(
    fresh: Path, study: Study, families: dict[str, KernelTemplate], tmp_path: Path
) -> None:
    write_family(tmp_path / "edited", *LATER)
    edited = {**families, "tiny": load_templates([tmp_path / "edited"])["tiny"]}
    device = Device()
    made = built(fresh, study, edited, device)
    ran = {source.config for source in device.ran if source.config.template == "tiny"}
    assert len(ran) > 4
    assert {config.params["later"] for config in ran} == {7}
    assert {one.config for one in made.dispatcher.kernels} <= ran


class Fickle(Device):
    """A layer's fastest kernels are slower than the default on the layers next to it."""

    def timing(self, source: KernelSource, cache: str) -> Timing:
        """By the threads per block."""
        place = [size[0] for size in SIZES].index(int(source.problem.values["k"]))
        liked = source.config.params.get("threads") == (32, 64, 128, 256)[place % 4]
        time_us = 300.0 if source.config.template == "implicit_gemm" else 100.0 if liked else 390.0
        return summarise((time_us,) * 5, cache)


def test_a_rule_that_is_worse_than_the_default_on_layers_left_out_gives_way_to_it(
    tmp_path: Path, study: Study, families: dict[str, KernelTemplate]
) -> None:
    path = tmp_path / "autotune.db"
    with Store(path) as store:
        tune(study, families, Fickle(), store)
    made = built(path, study, families, Fickle())
    assert made.dispatcher.rule == DEFAULT
    assert all(row.default_first and row.kernel == DEFAULT for row in made.layers)


def test_too_few_layers_are_refused(path: Path, study: Study, families: dict[str, KernelTemplate]) -> None:
    with pytest.raises(StudyError, match=r"1 layer\(s\) are too few for a dispatcher; name at least 2"):
        built(path, replace(study, layers=study.layers[:1]), families, Device())
    with pytest.raises(StudyError, match=r"3 layer.* are too few for a dispatcher with a quarter of them held out"):
        built(path, replace(study, layers=study.layers[:3]), families, Device(), holdout=0)


@pytest.fixture
def dispatch(autotune: Command, folder: Path, first: tuple[Built, Device, bytes]) -> Command:
    """Run `autotune dispatch` on the tuned study."""
    (folder / "several.toml").write_text(STUDY)
    (folder / "autotune.db").write_bytes(first[2])

    def run(*words: object) -> object:
        return autotune("dispatch", "several.toml", "--family-dir", "families", "--device", "null", *words)

    return run  # type: ignore[return-value]


def test_the_command_says_the_rule_in_words_and_writes_it_as_cpp(dispatch: Command) -> None:
    done = dispatch("--out", "dispatch.hpp")
    assert done.code == 0, done.err
    for words in ("The rule:", "always the default", "single best kernel", "nearest layer", "made without the layer"):
        assert words in done.out, words
    assert "the default comes first for: none" in done.out
    text = Path("dispatch.hpp").read_text()
    assert text.startswith("// Which kernel serves a layer.")
    assert "DISPATCH_FUNCTION int choose(const Layer& layer)" in text
    assert "dispatch_choices" not in text


@pytest.mark.usefixtures("dispatch")
def test_a_database_of_before_a_parameter_came_serves_the_matrix(autotune: Command) -> None:
    Path("autotune.db").rename("recorded.db")
    replay = ("--device", "replay:recorded.db", "--family-dir", "families")
    write_family(Path("families"), *LATER)
    assert autotune("tune", "several.toml", *replay).code == 0
    done = autotune("dispatch", "several.toml", *replay)
    (measured,) = re.findall(r"(\d+) cells measured now", done.out)
    assert int(measured) > 2 * len(SIZES), "more than the safe default of each layer"
    assert '"later": 7' in autotune("dispatch", "several.toml", *replay, "--json", "--table", "kernels").out


@pytest.mark.parametrize(
    ("table", "keys"),
    [
        ("layers", {"layer", "role", "kernel", "default_first", "regret_fraction", "left_out_regret_fraction"}),
        ("ways", {"way", "median_fraction", "worst_fraction", "worst_layer", "weighted_mean_fraction"}),
        ("rules", {"place", "rule", "total_us", "outcome"}),
        ("kernels", {"kernel", "config"}),
    ],
)
def test_tables_come_as_json(dispatch: Command, table: str, keys: set[str]) -> None:
    done = dispatch("--json", "--table", table)
    rows = json.loads(done.out)
    assert rows
    assert keys <= rows[0].keys()


def test_layers_of_several_storage_types_are_served(autotune: Command, folder: Path) -> None:
    layers = [LAYER.format(name=f"k{k}", c=c, h=h, k=k, count=count) for k, c, h, count in SIZES]
    mixed = "".join(layer + ('dtype = "f16"\n' if at % 2 else "") for at, layer in enumerate(layers))
    (folder / "mixed.toml").write_text(changed(HEADER, ('"several"', '"mixed"'), ('"tiny"', '"direct"')) + mixed)
    words = ("mixed.toml", "--device", "null")
    assert autotune("tune", *words, "--trials", 4).code == 0
    done = autotune("dispatch", *words, "--no-explore", "--json")
    assert done.code == 0, done.err
    assert all(row["kernel"] for row in json.loads(done.out))


def test_layers_of_one_shape_are_one_layer_that_counts_for_all(autotune: Command, folder: Path) -> None:
    layers = [LAYER.format(name=f"k{k}", c=c, h=h, k=k, count=count) for k, c, h, count in SIZES[:3]]
    k, c, h, _ = SIZES[0]
    layers.append(LAYER.format(name="again", c=c, h=h, k=k, count=5))
    header = changed(HEADER, ('"several"', '"twice"'), ('"tiny"', '"direct"'))
    (folder / "twice.toml").write_text(header + "".join(layers))
    words = ("twice.toml", "--device", "null")
    assert autotune("tune", *words, "--trials", 4).code == 0
    done = autotune("dispatch", *words, "--no-explore", "--json")
    assert done.code == 0, done.err
    assert [row["layer"] for row in json.loads(done.out)] == [f"k{k}" for k, *_ in SIZES[:3]]
    (first, *_) = json.loads(done.out)
    assert first["count"] == SIZES[0][3] + 5


def test_techniques_name_families_that_there_are(autotune: Command, folder: Path) -> None:
    technique = '[[technique]]\nname = "t"\ntemplate = "nosuch"\n[technique.space]\nunroll = ["none"]\n'
    (folder / "technique.toml").write_text(STUDY + technique)
    words = ("--device", "null", "--family-dir", "families")
    assert autotune("tune", "small.toml", *words, "--trials", 2).code == 0
    for command in ("tune", "dispatch"):
        said = autotune(command, "technique.toml", *words).complaint
        assert "technique 't': no family named 'nosuch'; there are " in said, command


def test_bad_input_is_one_line(dispatch: Command, autotune: Command) -> None:
    assert "no/where.hpp: there is no folder no; create it first" in dispatch("--out", "no/where.hpp").complaint
    assert autotune("dispatch", "several.toml", "--device", "null", "--kernels", 0).code == 2


def test_a_study_without_kernels_is_refused_before_anything_is_written(dispatch: Command, autotune: Command) -> None:
    Path("never.toml").write_text(changed(STUDY, ("n = 3", "n = 4")))
    before = autotune("dump").out
    never = autotune("dispatch", "never.toml", "--family-dir", "families", "--device", "null").complaint
    assert "several.k4 has no correct kernel on null; run `autotune tune" in never
    assert "several.k4 has no correct kernel on" in dispatch("--device", "host").complaint
    assert autotune("dump").out == before
