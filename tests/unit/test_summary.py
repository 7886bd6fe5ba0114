"""What `tune` says of a layer's failures: those that differ in numbers alone are one line."""

from __future__ import annotations

from autotune.cli.summary import summary
from autotune.problem import Conv2dProblem, Layer
from autotune.trial import Config, Outcome
from autotune.tuning.layer_result import LayerResult
from autotune.tuning.trial_log import Seen


def test_failures_that_differ_in_numbers_alone_are_one_line() -> None:
    said = (("shared memory: 240 exceeds 232", 2), ("too few products", 4), ("shared memory: 233 exceeds 232", 3))
    messages = {
        text: Seen(text, Outcome.INVALID_CONFIG, count, Config.of("direct", {"tile": count})) for text, count in said
    }
    layer = Layer("conv1", Conv2dProblem(1, 1, 8, 8, 1, 3, 3))
    found = LayerResult(layer, "study.conv1", None, 9, 9, {}, messages, "budget", (), None)
    assert list(summary(found))[1:] == [
        "  5 x shared memory: 233 exceeds 232 (such as direct tile=3)",
        "  4 x too few products (such as direct tile=4)",
    ]
