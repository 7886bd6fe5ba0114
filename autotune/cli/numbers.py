"""Numbers on the command line."""

from __future__ import annotations

import math

import click


class Number(click.FloatRange):
    """A number within a range, and none that is no number, which no range refuses."""

    def convert(self, value: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number. Fails for nan."""
        number: float = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail("nan is no number.", param, ctx)
        return number


SECONDS = Number(min=0, min_open=True)
