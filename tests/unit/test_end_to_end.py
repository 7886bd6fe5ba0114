"""The splits of a batch that are tried, the study keys for them, and the hidden part of the copies."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import StudyError
from autotune.measurement.end_to_end_timer import hidden_fraction
from autotune.study import EndToEnd, Study
from autotune.study_reader import load_study
from autotune.tuning.end_to_end import configs


def plans(choices: EndToEnd, n: int) -> list[tuple[object, ...]]:
    return [tuple(config.params.values()) for config in configs(choices, n)]


def test_the_reports_batch_is_cut_in_every_way_once() -> None:
    found = plans(EndToEnd(), 10000)
    assert found[0] == (1, 1, "no")
    assert len(found) == len(set(found)) == 2 * (1 + 2 + 3 + 4 + 5 + 5)
    assert (10, 20, "yes") in found


def test_a_cut_that_a_smaller_number_gives_is_left_out() -> None:
    assert plans(EndToEnd(streams=(1,), pinned=("no",)), 10) == [
        (1, 1, "no"),
        (1, 2, "no"),
        (1, 4, "no"),
        (1, 10, "no"),
    ]
    assert plans(EndToEnd(streams=(2,), segments=(1, 2)), 1) == []


ROUNDS = 9


@pytest.mark.parametrize(
    ("total", "parts", "expected"),
    [
        (100.0, (20.0, 50.0, 30.0), 0.0),  # one after another
        (50.0, (20.0, 50.0, 30.0), 1.0),  # only the kernels take time
        (75.0, (20.0, 50.0, 30.0), 0.5),
        (110.0, (20.0, 50.0, 30.0), -0.2),  # side by side they take longer
        (40.0, (20.0, 50.0, 30.0), 1.0),  # no more than all of it
    ],
)
def test_hidden_is_what_the_total_does_not_show(
    total: float, parts: tuple[float, float, float], expected: float
) -> None:
    samples = ([part] * ROUNDS for part in parts)
    assert hidden_fraction([total] * ROUNDS, *samples) == pytest.approx(expected)


def test_nothing_is_claimed_when_noise_exceeds_the_copies() -> None:
    total = [1000.0 + 90 * (i % 3 - 1) for i in range(ROUNDS)]
    assert hidden_fraction(total, [5.0] * ROUNDS, [900.0] * ROUNDS, [5.0] * ROUNDS) is None


LAYER = '[[layer]]\nname = "one"\nn = 4\nc = 1\nh = 4\nw = 4\nk = 1\nr = 2\ns = 2\n'


def study(folder: Path, text: str) -> Study:
    path = folder / "a.toml"
    path.write_text(text + LAYER)
    return load_study(path)


def test_a_study_times_kernels_unless_it_says_otherwise(tmp_path: Path) -> None:
    assert study(tmp_path, "").end_to_end is None
    assert study(tmp_path, "end_to_end = false\n").end_to_end is None
    assert study(tmp_path, "end_to_end = true\n").end_to_end == EndToEnd()
    narrowed = study(tmp_path, 'end_to_end = true\n[space.end_to_end]\nstreams = [1, 4]\npinned = "yes"\n')
    assert narrowed.end_to_end == EndToEnd(streams=(1, 4), pinned=("yes",))
    assert narrowed.space == {}


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('end_to_end = "whole"\n', "end_to_end: expected true or false"),
        ('span = "end_to_end"\n', "span: is now end_to_end = true or false"),
        ("stop_below = 0.01\n", "stop_below: is now min_gain"),
        ("[space.end_to_end]\nstreams = [1]\n", "space.end_to_end: has no effect without end_to_end = true"),
        ("end_to_end = true\n[space.end_to_end]\nstream = [1]\n", "did you mean 'streams'"),
        ("end_to_end = true\n[space.end_to_end]\nsegments = [0]\n", "space.end_to_end.segments: expected whole"),
        ("end_to_end = true\n[space.end_to_end]\nstreams = [true]\n", "space.end_to_end.streams: expected whole"),
        ('end_to_end = true\n[space.end_to_end]\npinned = "maybe"\n', "space.end_to_end.pinned: expected"),
    ],
)
def test_a_wrong_word_is_named(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(StudyError) as caught:
        study(tmp_path, text)
    assert complaint in str(caught.value)
