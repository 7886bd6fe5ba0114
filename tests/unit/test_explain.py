"""`dispatch --explain`: the kernels of a stored dispatcher for layers that were never tuned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .tiny import Command, Finished

LAYER = '[[layer]]\nname = "{name}"\nn = {n}\nc = 2\nh = 9\nw = 8\nk = {k}\nr = 3\ns = 3\ndtype = "{dtype}"\n'
TUNED = ("k4", 3, 4, "f32"), ("k32", 3, 32, "f32")
NEVER_TUNED = ("like", 5, 4, "f32"), ("half", 5, 4, "f16")
"""The second layer has an accuracy class for which the dispatcher has no kernel."""
ON_NULL = ("--device", "null", "--family-dir", "families")


def study(name: str, family: str, *layers: tuple[str, int, int, str]) -> None:
    """Write a study file."""
    text = "".join(LAYER.format(name=layer, n=n, k=k, dtype=dtype) for layer, n, k, dtype in layers)
    head = f'name = "{name}"\ntrials = 3\nwarm_start = false\ntemplates = ["{family}"]\n'
    Path(f"{name}.toml").write_text(head + text)


@pytest.fixture
def dispatched(autotune: Command) -> Command:
    """The command line in a folder with a dispatcher of two tuned layers, and a study of two others."""
    study("tuned", "tiny", *TUNED)
    study("new", "direct", *NEVER_TUNED)
    assert autotune("tune", "tuned.toml", *ON_NULL).code == 0
    done = autotune("dispatch", "tuned.toml", *ON_NULL, "--kernels", 1)
    assert done.code == 0, done.err
    return autotune


def kernels(finished: Finished) -> dict[str, str]:
    """Layer to the kernel that a `--json` answer names."""
    assert finished.code == 0, finished.err
    return {row["layer"]: row["kernel"] for row in json.loads(finished.out)}


def test_layers_that_were_never_tuned_are_served_or_to_be_tuned(dispatched: Command) -> None:
    asked = kernels(dispatched("dispatch", "new.toml", "--explain", "--json"))
    assert asked == {"new.like": "tiny_1", "new.half": "to be tuned"}
    assert kernels(dispatched("dispatch", "tuned.k32", "--explain", "--json", "--device", "null")) == {
        "tuned.k32": "tiny_1"
    }


def test_without_a_dispatcher_of_all_layers_nothing_is_chosen(autotune: Command) -> None:
    study("tuned", "tiny", *TUNED, ("n4", 4, 4, "f32"), ("n5", 5, 4, "f32"))
    assert autotune("tune", "tuned.toml", *ON_NULL).code == 0
    held_out = autotune("dispatch", "tuned.toml", *ON_NULL, "--holdout", 0)
    assert held_out.code == 0, held_out.err
    for words in (("dispatch", "tuned", "--explain"), ("export", "tuned", "--dispatcher", "--out", "exported")):
        assert "run `autotune dispatch STUDY` first" in autotune(*words).complaint
    assert not Path("exported").exists()
