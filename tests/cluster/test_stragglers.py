"""Which agents hold no finals, by the noise floors of those that they held."""

from __future__ import annotations

from autotune.cluster.stragglers import FACTOR, LEAST, Stragglers


def test_a_gpu_far_noisier_than_others_of_its_class_holds_no_finals() -> None:
    stragglers = Stragglers()
    assert [stragglers.judge("h200", name, noise) for name, noise in (("a", 0.01), ("b", 0.012))] == ["", ""]
    why = stragglers.judge("h200", "hot", 0.09)
    assert why.startswith("hot: a kernel differs from itself by 9.0% there, by 1.1% on others: left out of finals")
    assert stragglers.of("h200") == {"hot"}
    assert stragglers.of("h100") == frozenset()


def test_nobody_is_a_straggler_without_others_to_compare_with() -> None:
    stragglers = Stragglers()
    assert [stragglers.judge("h200", "only", noise) for noise in (0.2, 0.3)] == ["", ""]
    assert stragglers.judge("h100", "another class", 0.2) == ""
    assert stragglers.of("h200") == frozenset()


def test_small_differences_and_a_noisy_class_are_none() -> None:
    stragglers = Stragglers()
    stragglers.judge("quiet", "a", 0.002)
    assert stragglers.judge("quiet", "b", LEAST) == "", "fifteen times as noisy, and still good"
    stragglers.judge("noisy", "a", 0.05)
    assert stragglers.judge("noisy", "b", 0.05 * FACTOR) == ""
    assert stragglers.judge("noisy", "b", 0.051 * FACTOR) != ""
