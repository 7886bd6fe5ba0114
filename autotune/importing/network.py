"""What is asked of a network: its source and the sizes of its inputs; and names from files for messages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.autotune_runtime.convolution import Shape, sizes
from autotune.errors import ModelError

LONGEST_LABEL = 80
"""Characters of a label; real networks have shorter ones."""


def plain(text: str, longest: int = LONGEST_LABEL) -> str:
    """A text from a file as one line of bounded length, without control characters."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text[: longest + 1])
    return shown if len(shown) <= longest else f"{shown[: longest - 3]}..."


@dataclass(frozen=True, slots=True)
class Request:
    """A network and how it is to be read."""

    source: str
    """a file, or PACKAGE.MODULE:NAME or FILE.py:NAME, which is Python code that is run"""
    inputs: tuple[tuple[int, ...], ...] = ()
    """sizes of the network's inputs in order; missing ones are taken from the file"""
    batch: int | None = None
    """replaces the first size of every input; None: they stay"""
    dtype: str | None = None
    """None: the network's own type"""
    layout: str | None = None
    """None: how the network stores its filters"""

    def sizes(self, own: Mapping[str, Shape]) -> tuple[tuple[int, ...], ...]:
        """The sizes of all inputs, whose names and sizes in the file are given. Raises ModelError if one is unknown."""
        has = f"it has {', '.join(f'{plain(each)} {sizes(shape)}' for each, shape in own.items()) or 'no inputs'}"
        if len(self.inputs) > len(own):
            raise ModelError(f"{self.source}: --input is given for {len(self.inputs)} inputs; {has}")
        made = []
        for at, shape in enumerate(own.values()):
            given = self.inputs[at] if at < len(self.inputs) else shape
            if shape and len(given) != len(shape):
                raise ModelError(f"{self.source}: --input {sizes(given)} has {len(given)} sizes; {has}")
            first = given[:1] if self.batch is None or not given else (self.batch,)
            known = tuple(size for size in (*first, *given[1:]) if size is not None)
            if len(known) < len(given):
                raise ModelError(
                    f"{self.source}: the sizes of its inputs are not all fixed; give them by --input; {has}"
                )
            made.append(known)
        return tuple(made)
