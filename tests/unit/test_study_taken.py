"""Two networks under one study name: the second is refused, and layers that a study no longer has are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from .test_cli import rows
from .tiny import Command

LAYER = '[[layer]]\nname = "{}"\nn = 3\nc = 4\nh = {}\nw = 8\nk = 4\nr = 3\ns = 3\n'


@pytest.fixture
def tune(autotune: Command, folder: Path) -> Command:
    """Write and tune a study `model` of layers with these names and heights."""

    def run(*words: object, **layers: int) -> object:
        text = 'name = "model"\ntrials = 2\ntemplates = ["tiny"]\n'
        Path("model.toml").write_text(text + "".join(LAYER.format(*one) for one in layers.items()))
        return autotune("tune", "model.toml", "--family-dir", "families", "--device", "null", *words)

    return run  # type: ignore[return-value]


def test_a_network_that_shares_no_layer_is_refused_and_the_first_stays(tune: Command, autotune: Command) -> None:
    assert tune(conv1=8, conv2=9).code == 0
    before = autotune("dump").out
    complaint = tune(stem=10, head=11).complaint
    assert "autotune.db has trials of another study with this name" in complaint
    assert "one of its layers (conv1, conv2); rename" in complaint
    assert tune(conv1=10, conv2=11).complaint == complaint, "equal names of layers do not make it the same study"
    assert autotune("dump").out == before
    assert [row["layer"] for row in rows(autotune("best", "model.conv1", "--json"))] == ["model.conv1"]
    assert tune("--fresh", stem=10, head=11).code == 0
    assert [row["layer"] for row in rows(autotune("best", "model", "--json"))] == ["model.stem", "model.head"]


def test_an_edited_study_is_the_same_study_and_names_what_it_no_longer_has(tune: Command, autotune: Command) -> None:
    tune(conv1=8, conv2=9)
    renamed = tune(first=8, conv2=12)
    assert renamed.code == 0, "a layer of the same shape makes it the same study"
    assert "no longer has" not in renamed.err, "a layer is the same by its name or by its shape"
    assert "model: autotune.db has trials of first, which this study no longer has" in tune(conv2=12).err
    assert "no longer has" not in tune(conv2=12).err


def test_a_layer_that_is_gone_is_an_error_that_lists_those_there_are(tune: Command, autotune: Command) -> None:
    tune(conv1=8, conv2=9)
    tune(conv2=9)
    assert autotune("best", "model.conv1").complaint == (
        "autotune.db: model no longer has a layer 'conv1'; it has model.conv2; "
        "`autotune trials model.conv1` lists the trials of the old layer"
    )
    assert rows(autotune("trials", "model.conv1", "--json"))
    assert autotune("best", "model.stem").complaint == "autotune.db: no study or layer 'model.stem'; it has model.conv2"
    assert autotune("best", "conv3").complaint == "autotune.db: no study or layer 'conv3'; it has conv2"
