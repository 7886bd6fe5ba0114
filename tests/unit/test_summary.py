"""The summary of a layer in `tune`: its failures, and how the winner of the finals compares."""

from __future__ import annotations

from autotune.cli.summary import summary
from autotune.problem import Conv2dProblem, Layer
from autotune.trial import Config, Outcome, Timing, Trial
from autotune.tuning.layer_finals import Compared, Comparison, FinalsResult
from autotune.tuning.layer_result import LayerResult
from autotune.tuning.trial_log import Seen


def test_failures_that_differ_in_numbers_alone_are_one_line() -> None:
    said = (("shared memory: 240 exceeds 232", 2), ("too few products", 4), ("shared memory: 233 exceeds 232", 3))
    messages = {
        text: Seen(text, Outcome.INVALID_CONFIG, count, Config.of("direct", {"tile": count})) for text, count in said
    }
    layer = Layer("conv1", Conv2dProblem(1, 1, 8, 8, 1, 3, 3))
    found = LayerResult(layer, "study.conv1", None, 9, 9, {}, messages, "budget", None, None)
    assert list(summary(found))[1:] == [
        "  5 x shared memory: 233 exceeds 232 (such as direct tile=3)",
        "  4 x too few products (such as direct tile=4)",
    ]


def test_a_tie_does_not_call_the_winner_faster() -> None:
    winner = Trial(0, Config.of("direct", {"tile": 1}), Outcome.CORRECT)
    tie = Comparison("tie", 0.349, 0.2, 1.6)
    finals = FinalsResult(
        winner,
        Timing((1.0, 1.0, 1.0), 1.0, 1.0, 1.0, "cold"),
        moved=False,
        noise=0.1,
        compared=(Compared("default", 2.864, winner.accuracy, tie),),
        admitted=(winner.accuracy,),
    )
    layer = Layer("conv1", Conv2dProblem(1, 1, 8, 8, 1, 3, 3))
    *_, last = summary(LayerResult(layer, "study.conv1", None, 9, 9, {}, {}, "budget", None, finals))
    assert last == ("  TIE against the starting config: within noise, 0.625 to 5.000 times as fast (95 % confidence)")
