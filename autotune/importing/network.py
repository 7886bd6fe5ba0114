"""The request to import a network (source, input sizes), and safe printing of names that come from files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.autotune_runtime.convolution import Shape, sizes
from autotune.errors import ModelError

LONGEST_LABEL = 80
"""Maximum number of characters of a label; real networks have shorter labels."""


def plain(text: str, longest: int = LONGEST_LABEL) -> str:
    """Return a text from a file as one line of limited length, with `?` for unprintable characters."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text[: longest + 1])
    return shown if len(shown) <= longest else f"{shown[: longest - 3]}..."


@dataclass(frozen=True, slots=True)
class Request:
    """A network and how to read it."""

    source: str
    """path of a file, or PACKAGE.MODULE:NAME or FILE.py:NAME to run Python code"""
    inputs: tuple[tuple[int, ...], ...] = ()
    """sizes of the network's inputs, in order; sizes of further inputs come from the file"""
    batch: int | None = None
    """batch size, which replaces the first size of every input; None: keep the first sizes"""
    dtype: str | None = None
    """dtype of all layers; None: the network's own dtypes"""
    layout: str | None = None
    """layout of all layers; None: the layout of the network's stored filters"""

    def sizes(self, own: Mapping[str, Shape]) -> tuple[tuple[int, ...], ...]:
        """Return the sizes of all inputs. `own` contains the inputs' names and sizes in the file.

        Raises ModelError if a size is unknown or the requested inputs don't match the file's.
        """
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
