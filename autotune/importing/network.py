"""Names and input sizes of a network, for messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autotune.autotune_runtime.convolution import Shape, sizes
from autotune.errors import ModelError

LONGEST_LABEL = 80
"""Characters of a label; real networks have shorter ones."""


def plain(text: str, longest: int = LONGEST_LABEL) -> str:
    """A text from a file as one line of bounded length, without control characters."""
    shown = "".join(letter if letter.isprintable() else "?" for letter in text[: longest + 1])
    return shown if len(shown) <= longest else f"{shown[: longest - 3]}..."


def asked(
    name: str, own: Mapping[str, Shape], inputs: Sequence[tuple[int, ...]], batch: int | None
) -> tuple[tuple[int, ...], ...]:
    """The sizes of a network's inputs: the given ones, else the file's own. Raises ModelError if one is unknown.

    `own` are the inputs in the file, by name; `inputs` are in the file's order; `batch` replaces every first size.
    """
    has = f"it has {', '.join(f'{plain(each)} {sizes(shape)}' for each, shape in own.items()) or 'no inputs'}"
    if len(inputs) > len(own):
        raise ModelError(f"{name}: --input is given for {len(inputs)} inputs; {has}")
    made = []
    for at, shape in enumerate(own.values()):
        given = inputs[at] if at < len(inputs) else shape
        if shape and len(given) != len(shape):
            raise ModelError(f"{name}: --input {sizes(given)} has {len(given)} sizes; {has}")
        first = given[:1] if batch is None or not given else (batch,)
        known = tuple(size for size in (*first, *given[1:]) if size is not None)
        if len(known) < len(given):
            raise ModelError(f"{name}: the sizes of its inputs are not all fixed; give them by --input; {has}")
        made.append(known)
    return tuple(made)
