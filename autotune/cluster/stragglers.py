"""Agents whose GPU differs from itself far more than others of its class do: throttled, shared, or about to fail."""

from __future__ import annotations

import statistics

LEAST = 0.03  # noise floor from which on a GPU can be one
FACTOR = 3.0  # times the median of the others


class Stragglers:
    """Judges agents by the noise floors of the finals that they held."""

    def __init__(self) -> None:
        self._noise: dict[str, dict[str, float]] = {}
        """by class and agent: that of the latest finals that count"""
        self._found: dict[str, set[str]] = {}

    def of(self, label: str) -> frozenset[str]:
        """The names of those of a class that hold no finals any more."""
        return frozenset(self._found.get(label, ()))

    def judge(self, label: str, agent: str, noise: float) -> str:
        """Whether finals are to be held again on another agent, and why; empty where they count.

        Nobody is a straggler where no other of the class has held finals.
        """
        known = self._noise.setdefault(label, {})
        others = [each for name, each in known.items() if name != agent]
        if others and noise > max(LEAST, FACTOR * statistics.median(others)):
            self._found.setdefault(label, set()).add(agent)
            return (
                f"{agent}: a kernel differs from itself by {noise:.1%} there, by {statistics.median(others):.1%} on "
                f"others: left out of finals, measures for others only; is it throttled, or used by somebody else?"
            )
        known[agent] = noise
        return ""
