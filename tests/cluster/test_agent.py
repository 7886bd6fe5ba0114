"""An agent and a ledger, without Dask between them: what is delivered, kept, quarantined and retired."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from autotune import __version__
from autotune.cluster.agent import FAILURES, Agent, CompilingAgent
from autotune.cluster.agents import KnownAgent, lent
from autotune.cluster.journal import Journals
from autotune.cluster.ledger import Ledger
from autotune.cluster.messages import (
    AgentInfo,
    Collected,
    Collecting,
    CompileFor,
    DeviceClass,
    Helper,
    Lease,
    MeasureFor,
)
from autotune.compilation.compile import Binary
from autotune.devices.device import DeviceInfo
from autotune.errors import AutotuneError, DeviceError, DeviceLost, StoreError, StoreWarning, StudyError
from autotune.evaluation.evaluator import Evaluator
from autotune.evaluation.null import NullEvaluator
from autotune.family.source import KernelSource
from autotune.family.template_files import load_templates
from autotune.store import LOST, Finals, Store
from autotune.study_reader import load_study
from autotune.trial import Measured, Outcome, Timing
from autotune.tuning.layer_finals import PLAIN_FINALS
from autotune.workers.worker import FinalsTimings
from tests.cluster.chaos import medians, study_of
from tests.unit.tiny import write_family

TRIALS = 8
MANY = 40
Open = Callable[..., Agent]


class GpuOfPaper(NullEvaluator):
    """A null device that passes for a GPU, whose kernels can take an agent down."""

    @property
    def info(self) -> DeviceInfo:
        return replace(super().info, kind="cuda", name="paper")


class Dying(GpuOfPaper):
    """It is lost as soon as a layer begins."""

    def begin_layer(self, problem: object) -> None:
        raise DeviceLost("cuda:0: does not come back")


@pytest.fixture
def begin(tmp_path: Path) -> Iterator[Callable[[int], Ledger]]:
    """Begins a study of one layer of so many trials in a new database."""
    write_family(tmp_path / "families")
    with Store(tmp_path / "all.db") as store:

        def begins(trials: int) -> Ledger:
            (tmp_path / "small.toml").write_text(study_of(1, trials))
            study, families = load_study(tmp_path / "small.toml"), load_templates([tmp_path / "families"])
            return Ledger(store, study, families, study.layers, PLAIN_FINALS)

        yield begins


@pytest.fixture
def ledger(begin: Callable[[int], Ledger]) -> Ledger:
    """A study of one layer in a new database."""
    return begin(TRIALS)


@pytest.fixture
def many(begin: Callable[[int], Ledger]) -> Ledger:
    """The same with so many trials that several are under way at once."""
    return begin(MANY)


@pytest.fixture
def open_agent(tmp_path: Path) -> Iterator[Open]:
    """Opens agents, each with a folder of its name."""
    opened = []

    def opens(make: Callable[[str], Evaluator] = GpuOfPaper, name: str = "one") -> Agent:
        opened.append(Agent(name, tmp_path / name, lambda: make(""), 1))
        return opened[-1]

    yield opens
    for agent in opened:
        agent.close()


def leased(ledger: Ledger, agent: Agent) -> Lease:
    return ledger.lease(agent.device_class, ledger.layers[0])


def deliver(ledger: Ledger, agent: Agent) -> int:
    """Visit an agent until it has nothing more, with no lease current; how many trials were new."""
    before = ledger.trials
    stored: dict[str, frozenset[int]] = {}
    seen = 0
    while (news := agent.collect(Collecting(ledger.owner, 1 << 63, frozenset(), stored, seen, 1.0))).collected:
        assert news.state != seen, "an answer that differs is told at once"
        stored, seen = {each.lease_id: keep(ledger, each) for each in news.collected}, news.state
    return ledger.trials - before


def keep(ledger: Ledger, collected: Collected) -> frozenset[int]:
    """Store what an agent has sent with its lease."""
    assert collected.lease is not None
    (stored,) = ledger.store([(collected.lease, collected)])
    return stored


def collected_of(ledger: Ledger, agent: Agent) -> Collected:
    """What an agent has of its one lease, with the lease."""
    (collected,) = agent.collect(Collecting(ledger.owner, 1 << 63, frozenset(), {}, 0, 1.0)).collected
    return collected


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"noise",
        pickle.dumps("a lease"),
        pickle.dumps(("0.0.1", b"")),
        pickle.dumps((__version__, pickle.dumps("a lease"))),
        pickle.dumps((__version__, pickle.dumps(7)[:3])),
    ],
)
def test_a_journal_that_cannot_be_read_costs_itself(
    tmp_path: Path, ledger: Ledger, open_agent: Open, content: bytes
) -> None:
    """The next agent of the name begins without it, and names it; nothing is removed."""
    agent = open_agent()
    agent.run(leased(ledger, agent))
    agent.close()
    (lease,) = (tmp_path / "one").glob("*/lease")
    lease.write_bytes(content)
    with pytest.warns(StoreWarning, match="what was not delivered of an earlier lease is kept there"):
        again = open_agent()
    assert deliver(ledger, again) == 0
    with Store(tmp_path / "one.left" / lease.parent.name / "trials.db", create=False) as kept:
        assert len(kept.trials.list()) >= TRIALS


def test_a_database_of_a_journal_that_is_damaged_costs_itself(tmp_path: Path, ledger: Ledger, open_agent: Open) -> None:
    agent = open_agent()
    agent.run(leased(ledger, agent))
    agent.close()
    (database,) = (tmp_path / "one").glob("*/trials.db")
    database.write_bytes(b"noise" * 1000)
    with pytest.warns(StoreWarning, match="not an SQLite file"):
        open_agent()


def test_folders_that_are_no_leases_stay(tmp_path: Path, open_agent: Open) -> None:
    begun = tmp_path / "one" / "0123456789abcdef"  # an agent was killed before its lease was written
    foreign = [tmp_path / "one" / name for name in ("other", "0123456789abcdeg", "0123456789abcdef0")]
    for folder in (begun, *foreign):
        folder.mkdir(parents=True)
    open_agent()
    assert [folder.exists() for folder in (begun, *foreign)] == [False, True, True, True]


def test_what_an_agent_could_not_deliver_the_next_of_its_name_delivers_once(
    tmp_path: Path, ledger: Ledger, open_agent: Open
) -> None:
    agent = open_agent()
    agent.run(leased(ledger, agent))
    agent.close()
    again = open_agent()
    assert deliver(ledger, again) >= TRIALS
    again.close()
    assert [path.name for path in (tmp_path / "one").glob("*/")] == [], "what is stored is kept no longer"


def test_a_lease_goes_on_from_what_is_stored(tmp_path: Path, ledger: Ledger, open_agent: Open) -> None:
    first, second = open_agent(), open_agent(name="two")
    lease = leased(ledger, first)
    ledger_end = first.run(lease)
    deliver(ledger, first)
    ledger.conclude(lease, ledger_end)
    end = second.run(leased(ledger, second))
    assert (end.result.evaluated, end.result.new, end.finals) == (TRIALS, 0, None)
    assert deliver(ledger, second) == 0
    assert end.result.best is not None
    assert end.result.best.median_us == min(filter(None, medians(tmp_path / "all.db").values()))


def test_two_agents_that_measured_the_same_layer_make_no_trial_twice(
    tmp_path: Path, ledger: Ledger, open_agent: Open
) -> None:
    first, second = open_agent(), open_agent(name="two")
    for agent in (first, second):
        agent.run(leased(ledger, agent))
    new = deliver(ledger, first), deliver(ledger, second)
    assert new[0] >= TRIALS
    assert new[1] == 0


def test_what_ran_on_a_lost_agent_is_kept_from_all_others(tmp_path: Path, ledger: Ledger, open_agent: Open) -> None:
    agent = open_agent()
    lease = leased(ledger, agent)
    agent.run(lease)
    collected = collected_of(ledger, agent)
    killer = next(each for each in collected.deliveries if each.trial["outcome"] == str(Outcome.CORRECT))
    nothing = dict.fromkeys(("median_us", "ranked_us", "error_over_bound", "error_max_abs", "ended_at"))
    running = replace(killer, trial={**killer.trial, **nothing, "outcome": str(Outcome.RUNNING)}, measurement=None)
    keep(ledger, replace(collected, deliveries=(running,)))
    other = open_agent(name="two")
    again = leased(ledger, other)
    assert [reason for _, reason, _ in again.quarantined] == [LOST]
    other.run(again)
    deliver(ledger, other)
    with Store(tmp_path / "all.db", create=False) as store:
        (row,) = [row for row in store.trials.list() if row.trial.config.to_json() == killer.trial["config"]]
        assert (row.trial.outcome, row.trial.reason, row.attempts) == (Outcome.RUNTIME, LOST, 1)
    keep(ledger, replace(collected, deliveries=(killer,)))
    assert medians(tmp_path / "all.db")[row.layer.name, str(row.trial.config)] == killer.trial["median_us"], (
        "it came late"
    )


def test_nothing_is_quarantined_that_runs_nothing(tmp_path: Path, ledger: Ledger, open_agent: Open) -> None:
    agent = open_agent(NullEvaluator)
    lease = leased(ledger, agent)
    agent.run(lease)
    collected = collected_of(ledger, agent)
    ledger.lost(lease, collected.deliveries)
    assert leased(ledger, agent).quarantined == ()


def test_a_gpu_that_fails_three_times_is_retired(tmp_path: Path, ledger: Ledger, open_agent: Open) -> None:
    agent = open_agent(Dying)
    for failure in range(FAILURES):
        assert agent.retired == ""
        with pytest.raises(DeviceLost, match="retired after 3" if failure == FAILURES - 1 else "come back$"):
            agent.run(leased(ledger, agent))
    assert "does not come back" in agent.retired


def test_a_lease_that_was_given_away_ends_its_line(tmp_path: Path, ledger: Ledger, open_agent: Open) -> None:
    agent = open_agent()
    lease = leased(ledger, agent)
    asked = Collecting(ledger.owner, lease.serial, frozenset(), {}, 0, 1.0)
    foreign = replace(asked, owner="another")
    newer = replace(asked, serial=lease.serial - 1)
    ended = {}
    for name, visit in (("away", asked), ("foreign", foreign), ("newer", newer)):

        class Visited(GpuOfPaper):
            def evaluate(self, *words: object, **named: object) -> object:  # type: ignore[override]
                one.collect(visit)  # noqa: B023 - used within this turn
                return super().evaluate(*words, **named)  # type: ignore[arg-type]

        one = open_agent(Visited, name)
        ended[name] = one.run(lease).result.cut_short
    assert ended == {"away": True, "foreign": False, "newer": False}


def test_the_end_of_a_line_is_told_whenever_it_is_asked(tmp_path: Path, ledger: Ledger, open_agent: Open) -> None:
    agent = open_agent()
    lease = leased(ledger, agent)
    journals = Journals(tmp_path / "two", "two")
    assert journals.open(lease).live, "nobody who asks in between finds that it has ended"
    journals.close()
    stored: dict[str, frozenset[int]] = {}
    asked = Collecting(ledger.owner, lease.serial, frozenset({lease.id}), stored, 0, 1.0)
    for _ in range(2):  # it comes again where its end did not reach the coordinator
        agent.run(lease)
        (collected,) = agent.collect(asked).collected
        stored[lease.id], *_ = ledger.store([(lease, collected)])
        news = agent.collect(asked)
        assert [(each.live, each.deliveries) for each in news.collected] == [(False, ())]
        asked = replace(asked, seen=news.state)


def test_other_families_and_another_class_are_refused(tmp_path: Path, ledger: Ledger, open_agent: Open) -> None:
    agent = open_agent()
    lease = leased(ledger, agent)
    with pytest.raises(StudyError, match="tiny is not this agent's; install the same version"):
        agent.run(replace(lease, families={"tiny": "0" * 64}))
    null = NullEvaluator("")
    with pytest.raises(Exception, match="in another environment"):
        agent.run(replace(lease, device_class=DeviceClass.of(null.info, null.environment)))


def test_a_lease_that_is_refused_leaves_nothing(tmp_path: Path, ledger: Ledger, open_agent: Open) -> None:
    agent = open_agent()
    timing = Timing((1.0,), 1.0, 1.0, 1.0, "cold")
    lease = replace(leased(ledger, agent), held=Finals(winner=7, timings=((7, timing),), verdicts=()))
    for refused, why in ((lease, "trial 7, which is not"), (replace(lease, families={"tiny": ""}), "not this agent's")):
        with pytest.raises(AutotuneError, match=why):
            agent.run(refused)
    assert list((tmp_path / "one").glob("*/")) == []
    assert not any("trials.db" in os.readlink(each) for each in Path("/proc/self/fd").iterdir() if each.is_symlink())


def test_finals_of_families_that_a_run_lacks_are_held_anew(tmp_path: Path, ledger: Ledger, open_agent: Open) -> None:
    agent = open_agent()
    lease = leased(ledger, agent)
    end = agent.run(lease)
    deliver(ledger, agent)
    ledger.conclude(lease, end)
    assert leased(ledger, agent).held is not None
    write_family(tmp_path / "others", name="other")
    study, families = load_study(tmp_path / "small.toml"), load_templates([tmp_path / "others"])
    study = replace(study, templates=("other",))
    with Store(tmp_path / "all.db") as store:
        others = Ledger(store, study, {"other": families["other"]}, study.layers, PLAIN_FINALS)
        end = agent.run(leased(others, agent))
    assert end.finals is not None


def test_two_agents_of_one_name_are_told(open_agent: Open) -> None:
    open_agent()
    with pytest.raises(StoreError, match="one: an agent of this name runs here already"):
        open_agent()


Reach = Callable[[str, CompileFor | MeasureFor], object]


class Slow(GpuOfPaper):
    """It takes a while for a kernel, and counts those that it measured, that it compiled, and the finals."""

    def __init__(self) -> None:
        super().__init__("delay_ms=20,compile_ms=20,compilers=1")
        self.measured, self.compiled, self.finals_held = 0, 0, 0

    def evaluate(self, *words: object, **named: object) -> Measured:
        self.measured += 1
        return super().evaluate(*words, **named)  # type: ignore[arg-type]

    def compile(self, source: KernelSource) -> Future[Binary]:
        self.compiled += 1
        return super().compile(source)

    def finals(self, *words: object, **named: object) -> FinalsTimings:
        self.finals_held += 1
        return super().finals(*words, **named)  # type: ignore[arg-type]


def helped(ledger: Ledger, open_agent: Open, others: Mapping[str, tuple[Evaluator, Helper]], reach: Reach) -> Slow:
    """Tune a layer on one agent that has helpers; its device."""
    device = Slow()
    one = open_agent(lambda _: device)
    one.ask = reach
    helpers = tuple(helper for _, helper in others.values())
    one.collect(Collecting(ledger.owner, 0, frozenset(), {}, 0, 1.0, helpers))
    one.run(leased(ledger, one))
    assert deliver(ledger, one) >= MANY
    return device


def test_a_layer_is_measured_on_two_gpus_and_its_finals_on_one(tmp_path: Path, many: Ledger, open_agent: Open) -> None:
    other = Slow()
    two = open_agent(lambda _: other, "two")
    own = helped(
        many, open_agent, {"two": (other, Helper("two", "at-two", 1, 1))}, lambda _, request: two.lend(request)
    )
    assert own.measured + other.measured == MANY
    assert other.measured >= MANY // 3
    assert (own.finals_held, other.finals_held) == (1, 0)
    assert len(set(medians(tmp_path / "all.db"))) == len(medians(tmp_path / "all.db")), "no config came twice"


def test_an_agent_with_a_lease_of_its_own_lends_nothing(ledger: Ledger, open_agent: Open) -> None:
    answers: list[object] = []

    class Asked(GpuOfPaper):
        def evaluate(self, source: KernelSource, binary: Binary, **named: object) -> Measured:
            answers.append(one.lend(MeasureFor(source, binary, "cold", None)))
            return super().evaluate(source, binary, **named)  # type: ignore[arg-type]

    one = open_agent(Asked)
    one.run(leased(ledger, one))
    assert answers == [None] * TRIALS


def test_a_kernel_under_which_a_helper_is_lost_is_tried_nowhere_else(
    tmp_path: Path, many: Ledger, open_agent: Open
) -> None:
    other, asked = Slow(), []

    def reach(_: str, request: CompileFor | MeasureFor) -> object:
        if isinstance(request, CompileFor):
            return None
        asked.append(request.source.config)
        raise OSError("the other host is down")

    own = helped(many, open_agent, {"two": (other, Helper("two", "at-two", 1, 0))}, reach)
    assert len(asked) == 1, "who was lost is asked no more"
    assert own.measured == MANY - 1
    with Store(tmp_path / "all.db", create=False) as store:
        (row,) = [row for row in store.trials.list() if row.trial.reason == LOST]
        assert row.trial.config == asked[0]
        assert [each.reason for each in store.quarantine.list()] == [LOST]


@pytest.mark.parametrize(("error", "retired"), [(DeviceLost, True), (DeviceError, False)])
def test_what_a_helpers_gpu_fails_at_is_its_own(
    many: Ledger, open_agent: Open, error: type[DeviceError], *, retired: bool
) -> None:
    """The line goes on; the helper counts what it lost, and is retired by it."""

    class Sick(Slow):
        def evaluate(self, *words: object, **named: object) -> Measured:
            asked.append(self)
            raise error("cuda:0: does not come back")

    asked: list[Sick] = []
    two = open_agent(lambda _: Sick(), "two")
    requests: list[CompileFor | MeasureFor] = []

    def reach(_: str, request: CompileFor | MeasureFor) -> object:
        requests.append(request)
        return two.lend(request)

    own = helped(many, open_agent, {"two": (Sick(), Helper("two", "at-two", 1, 0))}, reach)
    assert (own.measured, len(asked)) == (MANY, 1), "who failed is asked no more"
    for _ in range(FAILURES - 1):
        with suppress(DeviceError):
            assert two.lend(requests[0]) is None
    assert len(set(asked)) == (FAILURES if retired else 1), "what was lost is opened anew"
    assert ("retired after 3" in two.retired) == retired


def test_nodes_without_a_gpu_compile(many: Ledger, open_agent: Open) -> None:
    elsewhere = Slow()
    toolchain = (elsewhere.info.kind, "none", "")
    node = CompilingAgent("node", 4, toolchain, lambda source, _: elsewhere.compile(source), elsewhere.close)
    own = helped(
        many, open_agent, {"node": (elsewhere, Helper("node", "at-node", 0, 4))}, lambda _, asked: node.lend(asked)
    )
    assert elsewhere.compiled >= MANY // 3
    assert own.measured == MANY
    assert elsewhere.measured == 0


def test_who_is_idle_helps_a_line_of_its_class_and_compilers_help_all() -> None:
    null, paper = NullEvaluator(""), GpuOfPaper("")
    classes = [DeviceClass.of(each.info, each.environment) for each in (null, paper)]

    def known(name: str, device_class: DeviceClass | None, kind: str, compilers: int = 1) -> KnownAgent:
        return KnownAgent(AgentInfo(name, device_class, compilers, "", (kind, "none", ""), 1), f"at-{name}")

    line, other = known("line", classes[0], "null"), known("other", classes[1], "cuda")
    idle = [known(f"idle-{number}", classes[0], "null") for number in range(2)]
    node, foreign = known("node", None, "null", 6), known("foreign", None, "cuda")
    agents = [line, other, *idle, node]
    busy = [(classes[0].label, line), (classes[1].label, other)]
    found = lent(busy, agents)
    assert [each.name for each in found[line]] == ["idle-0", "idle-1", "node"]
    assert found[line][2].slots == 0
    assert found[other] == ()
    assert [each.name for each in lent(busy, [*agents, foreign])[other]] == ["foreign"]
    begun = [*busy, (classes[0].label, None)]
    assert [each.name for each in lent(begun, agents)[line]] == ["node"], "one of the idle has begun"
