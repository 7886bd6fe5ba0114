"""A dispatcher's record: its choices, the records that it rejects, and that it can be stored and read."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import pytest

from autotune.dispatch.dispatcher import (
    DEFAULT,
    FASTEST,
    Dispatcher,
    PortfolioKernel,
    Property,
    Rule,
    Split,
    rule_of,
)
from autotune.dispatch.predicate import Predicate, Step
from autotune.errors import StudyError
from autotune.problem import Conv2dProblem
from autotune.trial import Config

ALL = Predicate(())
PROBLEM = Conv2dProblem(n=100, c=3, h=20, w=20, k=12, r=3, s=3)


def kernel(name: str, *conditions: str) -> PortfolioKernel:
    steps = tuple(Step(text, reason=f"{name} needs {text}") for text in conditions)
    return PortfolioKernel(name, Config.of("direct", {"for": name}), Predicate(steps))


def dispatcher(rule: Rule) -> Dispatcher:
    """`fours` supports multiples of four output channels, `few` at most 16, and the default any number but one."""
    return Dispatcher(
        (Property("k", "k", 2, 128, power=2), Property("pixels", "h * w", 100, 4000, power=1)),
        (kernel("fours", "k % 4 == 0"), kernel("few", "k <= 16")),
        kernel(DEFAULT, "k > 1"),
        rule,
    )


RULE = Split("k", 13, "few", "fours")


def timed(made: Dispatcher, times: Mapping[str, Sequence[int]], known: Sequence[tuple[int, ...]]) -> Dispatcher:
    """The kernels with their relative times on known layers with these output channels and pixels."""
    fours, few, default = (dataclasses.replace(one, relative_times=tuple(times[one.name])) for one in made.all_kernels)
    return dataclasses.replace(made, kernels=(fours, few), default=default, known=tuple(known))


def chosen(
    made: Dispatcher, k: int = PROBLEM.k, h: int = PROBLEM.h, w: int = PROBLEM.w
) -> tuple[str | None, bool, tuple[str, ...]]:
    choice = made.choose(dataclasses.replace(PROBLEM, k=k, h=h, w=w))
    return (choice.kernel.name if choice.kernel else None, choice.default_first, choice.passed_over)


def test_the_rule_names_the_kernel_and_what_does_not_fit_is_passed_over() -> None:
    made = dispatcher(RULE)
    assert chosen(made, k=12) == ("few", False, ())
    assert chosen(made, k=14) == ("few", False, ("fours",))
    assert chosen(made, k=20) == ("fours", False, ())
    assert chosen(made, k=22) == (DEFAULT, False, ("fours", "few"))


def test_each_end_names_a_kernel_of_its_own() -> None:
    made = dispatcher(Split("k", 13, DEFAULT, "few"))
    assert chosen(made, k=12) == (DEFAULT, True, ())
    assert chosen(made, k=14) == ("few", False, ())
    assert chosen(made, k=20) == ("fours", False, ("few",))


def test_an_end_with_relative_times_takes_what_is_fast_and_leaves_little_idle() -> None:
    """`fours` computes 64 output channels at a time: for 16, its padded outputs are four times the outputs."""
    made = timed(dispatcher(FASTEST), {"fours": [300], "few": [1000], DEFAULT: [9000]}, known=[(12, 400)])
    fours, few = made.kernels
    idle = dataclasses.replace(
        fours.predicate, padded_outputs=(Step("ceil_div(k, 64)", "tiles"), Step("64 * tiles * n * p * q"))
    )
    made = dataclasses.replace(made, kernels=(dataclasses.replace(fours, predicate=idle), few))
    assert chosen(made, k=16) == ("few", False, ())
    assert chosen(made, k=14) == ("few", False, ("fours",))
    assert chosen(made, k=20) == ("fours", False, ())
    assert chosen(made, k=22) == (DEFAULT, False, ("fours", "few"))
    enough = timed(made, {"fours": [249], "few": [1000], DEFAULT: [9000]}, known=made.known)
    assert chosen(enough, k=16) == ("fours", False, ())
    assert chosen(dataclasses.replace(made, rule="fours"), k=16) == ("fours", False, ())
    assert Dispatcher.from_json(made.to_json()) == made
    assert rule_of(made.config().params) == made.rule


def test_a_relative_time_is_the_mean_of_those_on_known_layers_the_more_similar_the_more() -> None:
    """On the layer of 4 output channels `few` is twice as fast as `fours`, on that of 64 half as fast."""
    times = {"fours": [2000, 1000], "few": [1000, 2000], DEFAULT: [9000, 9000]}
    made = timed(dispatcher(FASTEST), times, known=[(4, 400), (64, 400)])
    halved = dataclasses.replace(PROBLEM, k=8)  # similarities of a half and an eighth, squared: 16 to 1
    assert made.relative_times(halved) == {"fours": 33000 // 17, "few": 18000 // 17, DEFAULT: 9000}
    made = dataclasses.replace(made, kernels=tuple(dataclasses.replace(one, predicate=ALL) for one in made.kernels))
    assert [chosen(made, k=k)[0] for k in (4, 12, 20, 64)] == ["few", "few", "fours", "fours"]


def test_what_is_unlike_the_measured_layers_gets_the_default() -> None:
    made = dispatcher(RULE)
    assert chosen(made, k=128) == ("fours", False, ())
    assert chosen(made, k=132) == (DEFAULT, True, ())
    assert chosen(made, h=90, w=90) == (DEFAULT, True, ())
    assert chosen(made, k=1) == ("few", True, (DEFAULT, "fours"))


def test_an_end_of_the_default_gets_the_default() -> None:
    assert chosen(dispatcher(Split("k", 13, DEFAULT, "few")), k=12) == (DEFAULT, True, ())


def test_the_default_does_not_come_first_because_the_default_is_fast_there() -> None:
    made = timed(dispatcher(FASTEST), {"fours": [1000], "few": [1000], DEFAULT: [900]}, known=[(12, 400)])
    assert chosen(made, k=12) == (DEFAULT, False, ())
    assert made.words() == ("always: the smallest expected time",)


def test_a_kernel_without_a_pace_for_each_known_layer_is_refused() -> None:
    with pytest.raises(StudyError, match="fours has 0 relative times for 1 known layers; give one for each"):
        dataclasses.replace(dispatcher(FASTEST), known=((12, 400),))


def test_nothing_fits() -> None:
    made = dataclasses.replace(dispatcher("fours"), kernels=(kernel("fours", "k % 4 == 0"),))
    made = dataclasses.replace(made, properties=(Property("k", "k"),))
    assert chosen(made, k=1) == (None, False, ("fours", DEFAULT))
    assert [one.predicate.refusal(dataclasses.replace(PROBLEM, k=1)) for one in made.all_kernels] == [
        "fours needs k % 4 == 0",
        "default needs k > 1",
    ]


def test_another_predicate_or_range_is_another_dispatcher_to_try() -> None:
    made = dispatcher(RULE)
    properties = (dataclasses.replace(made.properties[0], most=64), *made.properties[1:])
    others = (
        dataclasses.replace(made, default=kernel(DEFAULT, "k > 2")),
        dataclasses.replace(made, properties=properties),
    )
    assert len({one.config() for one in (made, dispatcher(RULE), *others)}) == 3


def test_it_survives_being_written_down() -> None:
    made = dispatcher(RULE)
    again = Dispatcher.from_json(made.to_json())
    assert again == made
    assert again.to_json() == made.to_json()
    assert rule_of(made.config().params) == made.rule
    assert made.words() == (
        "k < 13: few",
        "k >= 13: fours",
    )


@pytest.mark.parametrize(
    ("rule", "complaint"),
    [
        ("many", "names the kernel 'many', which it does not have"),
        (Split("maps", 13, "few", "fours"), "uses the property 'maps'; there are k, pixels"),
    ],
)
def test_unknown_names_are_refused(rule: Rule, complaint: str) -> None:
    with pytest.raises(StudyError) as caught:
        dispatcher(rule)
    assert complaint in str(caught.value)


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"properties": [], "kernels": [], "default": {}, "rule": {}}'])
def test_a_record_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(StudyError, match="its record cannot be read"):
        Dispatcher.from_json(text)


def test_a_rule_without_an_end_is_refused() -> None:
    with pytest.raises(StudyError, match="has neither kernels nor a property"):
        rule_of({"property": "k", "threshold": 13, "below_kernels": "few"})
