"""Write study files (`Study` -> TOML) for studies built in Python or derived from others."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace

from autotune.operation.registry import CONV2D, operation
from autotune.problem import Layer, Problem
from autotune.study import EndToEnd, Measure, Study
from autotune.study_reader import PAIRS, VALUES, FindOperation, parse_study
from autotune.trial import END_TO_END, Value

_STUDY = {field.name: field.default for field in fields(Study)}
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def written(study: Study) -> Study:
    """Return the study as if it had been read from its file, text included. Raises StudyError like `load_study`."""
    text = study_toml(study)
    return replace(parse_study(text, study.name, str(study.path or ""), known_to(study)), path=study.path)


def known_to(study: Study) -> FindOperation:
    """Return a function that finds the operations used by the study's layers, and the bundled ones."""
    own = {layer.problem.operation.name: layer.problem.operation for layer in study.layers}
    return lambda name: own[name] if name in own else operation(name)


def study_toml(study: Study) -> str:
    """Return the text of a study file, leaving out keys that have their default values."""
    lines = [f"name = {_toml(study.name)}"]
    lines += [f"{key} = {_toml(getattr(study, key))}" for key in VALUES if getattr(study, key) != _STUDY[key]]
    if study.end_to_end is not None:
        lines.append(f"{END_TO_END} = true")
    if study.measure != Measure():
        lines += ["", "[measure]", f"cache = {_toml(study.measure.cache)}"]
    for layer in study.layers:
        lines += ["", *layer_toml(layer)]
    for family, kept in (study.space or {}).items():
        lines += ["", f"[space.{_key(family)}]", *_table(kept)]
    if study.end_to_end not in (None, EndToEnd()):
        kept = {field.name: getattr(study.end_to_end, field.name) for field in fields(EndToEnd)}
        lines += ["", f"[space.{END_TO_END}]", *_table(kept)]
    for technique in study.techniques:
        words = {key: getattr(technique, key) for key in ("name", "template", "report", "reported")}
        lines += ["", "[[technique]]", *_table({key: word for key, word in words.items() if word})]
        lines += [] if technique.trials is None else [f"trials = {technique.trials}"]
        lines += ["[technique.space]", *_table(technique.space)]
        lines += ["[technique.reported_ms]", *_table(technique.reported_ms)]
    for rule in study.rules:
        lines += ["", "[[rule]]", *_table({each.name: getattr(rule, each.name) for each in fields(rule)})]
    return "\n".join(lines) + "\n"


def layer_toml(layer: Layer) -> Iterator[str]:
    """Yield the lines of a layer's table."""
    yield "[[layer]]"
    yield f"name = {_toml(layer.name)}"
    yield from _given(layer.problem)
    if layer.count != 1:
        yield f"count = {layer.count}"


def _given(problem: Problem) -> Iterator[str]:
    """Yield a line for each key of a problem (its operation, sizes and words) that differs from the default."""
    values, declared = problem.values, problem.operation
    defaults = {
        **{size.name: size.default for size in declared.sizes},
        **{name: words[0] for name, words in declared.words.items()},
    }
    pairs: Mapping[str, str] = {}
    if declared.name == CONV2D:
        pairs = {f"{pair}_{axis}": pair for pair in PAIRS for axis in "hw"}
    else:
        yield f"op = {_toml(declared.name)}"
    for name, value in values.items():
        if name not in pairs:
            if value != defaults[name]:
                yield f"{_key(name)} = {_toml(value)}"
        elif name.endswith("_h"):
            both, usual = ([of[name], of[f"{pairs[name]}_w"]] for of in (values, defaults))
            if both != usual:
                yield f"{pairs[name]} = {_toml(value if both[0] == both[1] else both)}"


def _table(content: Mapping[str, Value | float | Sequence[Value]]) -> Iterator[str]:
    for key, value in content.items():
        yield f"{_key(key)} = {_toml(value)}"


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _toml(name)


def _toml(value: object) -> str:
    """Format a value as TOML. This is its JSON form, except for one control character that JSON leaves unescaped."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
