"""A study as a user names it: a `Study` that was built in Python, a file, or the name of a shipped one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from autotune.errors import StudyError
from autotune.problem import Layer
from autotune.study import Study, find_study, load_study, parse_study
from autotune.study_toml import written


def as_study(study: Study | str | Path) -> Study:
    """A study as its file says it, or would say it: one that was built in Python is checked and gets its text.

    Raises StudyError.
    """
    if not isinstance(study, Study):
        return load_study(find_study(str(study)))
    as_file = study.text and parse_study(study.text, study.name)
    return study if as_file and (as_file.name, as_file.layers) == (study.name, study.layers) else written(study)


def layers_named(study: Study, names: Sequence[str]) -> tuple[Layer, ...]:
    """The study's layers of these names, all without names. Raises StudyError for an unknown one."""
    known = {layer.name: layer for layer in study.layers}
    wanted = [name.removeprefix(f"{study.name}.") for name in names]
    for name in wanted:
        if name not in known:
            raise StudyError(f"--layer {name}: {study.name} has no such layer; it has {', '.join(known)}")
    return tuple(known[name] for name in wanted) or study.layers


def name_of(what: Study | str | Path | None) -> str | None:
    """A study's or layer's name; a study file stands for the name in it. Asked for before a database is opened."""
    if isinstance(what, Study):
        return what.name
    if what is not None and str(what).endswith(".toml"):
        return load_study(find_study(str(what))).name
    return None if what is None else str(what)
