"""Read study files: TOML -> `Study`."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path

from autotune.errors import StudyError, TemplateError, shortened
from autotune.legacy_names import STUDY_KEYS, current_study
from autotune.operation.operation import Operation
from autotune.operation.registry import CONV2D, find_operation, operation
from autotune.problem import Layer, make_problem
from autotune.resources import shipped
from autotune.study import ADMITTED, SPILL_LIMIT_BYTES, EndToEnd, Measure, NamedRule, Study, Technique
from autotune.text_file import read_text
from autotune.toml_table import Table, did_you_mean, is_time, read_toml
from autotune.trial import END_TO_END, Value

FindOperation = Callable[[str], Operation]
"""Returns the operation with a given name. Raises TemplateError if there is none."""
NAME_CHARACTERS = 100
"""Maximum length of a study's or layer's name, because exported files are named after both."""
PAIRS = ("stride", "pad", "dilation")
"""Keys of conv2d's layers that set two sizes: `stride` sets stride_h and stride_w."""
_LAYER_KEYS = {"name", "op", "count"}
VALUES = (
    *("accuracy", "trials", "time_budget_s", "trials_total", "time_budget_total_s", "min_gain", "seed", "sampler"),
    *("warm_start", "templates", "prune", "workspace_limit_bytes", "spill_limit_bytes"),
)
"""Study keys that are also fields of `Study`, in the order that `study_writer` writes them."""
_STUDY_VALUES = {"name", "op", END_TO_END, *VALUES}
_STUDY_KEYS = {*_STUDY_VALUES, "measure", "space", "layer", "technique", "rule"}
_RULE_KEYS = {"name", "property", "threshold", "below", "above", "report"}
_TECHNIQUE_KEYS = {"name", "template", "space", "report", "reported_ms", "reported", "trials"}


def shipped_study(name: str) -> Study:
    """Load a bundled study, even if there is a file with the same name in the current folder."""
    return load_study(shipped("studies") / f"{name}.toml")


def study_names() -> tuple[str, ...]:
    """Return the names of the bundled studies."""
    return tuple(sorted(str(path.relative_to(shipped("studies")).with_suffix("")) for path in _shipped_files()))


def _shipped_files() -> list[Path]:
    return list(shipped("studies").rglob("*.toml"))


def find_study(name: str) -> Path:
    """Return the path of a study file, given as a path or as the name of a bundled study. Raises StudyError if there is
    none.
    """
    path = Path(name)
    if os.path.isfile(path):  # False, not an error, for a name that no file can have
        return path
    if name in study_names():
        return shipped("studies") / f"{name}.toml"
    if os.path.isdir(path):
        sibling = f"{path}.toml"  # as new-op writes it
        hint = sibling if os.path.isfile(sibling) else "a study file inside it"
        raise StudyError(f"{name}: is a directory; give {hint}")
    hint = did_you_mean(path.name.partition(".")[0], study_names())
    raise StudyError(f"{name}: no such study file or bundled study{hint}")


def load_study(path: str | Path, directories: Sequence[Path] = ()) -> Study:
    """Read a study file. Its operations may be bundled, in `directories`, or next to the file.

    Raises StudyError with the path, the line or dotted key, and the expected value.
    """
    file = Path(path)
    text = read_text(file, StudyError)
    find = partial(find_operation, directories=(*directories, file.parent))
    table = read_toml(text, StudyError, str(file))
    for old, new in STUDY_KEYS.items():
        if old in table:
            raise table.error(old, f"is now {new}")
    study = _study(file.stem, table, text, find)
    for family in study.space or {}:  # `parse_study` omits this check, because stored studies were accepted before
        if study.templates is not None and family not in study.templates:
            near = did_you_mean(family, study.templates)
            raise StudyError(f"{file}: space.{shortened(family)}: has no effect: templates does not name it{near}")
    return replace(study, path=file)


def parse_study(text: str, name: str, where: str = "", find: FindOperation = operation) -> Study:
    """Parse the text of a study file.

    `name` is the study's default name, `where` refers to the file in messages, and `find` looks up operations. Keys
    from earlier versions are accepted, because stored studies contain them. Raises StudyError like `load_study`.
    """
    where = where or f"study {name}"
    table = read_toml(text, StudyError, where)
    return _study(name, replace(table, content=current_study(table.content)), text, find)


def _study(default: str, table: Table, text: str, find: FindOperation) -> Study:
    declared = _operation(table, operation(CONV2D), find)
    for key in {*PAIRS, *(size.name for size in declared.sizes), *declared.words} - _STUDY_KEYS:
        if key in table:
            raise table.error(key, f"{key} is a key of a layer: put it below [[layer]]")
    table.allow(_STUDY_KEYS)
    name = _name(table, default, " (a layer is named study.layer)")
    accuracy = table.word("accuracy", "") or None
    if accuracy is not None and accuracy not in ADMITTED:
        raise table.error("accuracy", f"{accuracy!r}: expected one of {', '.join(ADMITTED)}")
    layers = _layers(table, declared, find)
    space = _space(table)
    techniques = _techniques(table, {layer.name for layer in layers})
    rules = _rules(table, {technique.name for technique in techniques})
    return Study(
        name=name,
        layers=layers,
        text=text,
        accuracy=accuracy,
        trials=table.whole("trials", 200, least=1),
        time_budget_s=table.seconds("time_budget_s"),
        trials_total=table.whole("trials_total", 0, least=1) if "trials_total" in table else None,
        time_budget_total_s=table.seconds("time_budget_total_s"),
        min_gain=table.fraction("min_gain"),
        seed=table.whole("seed", 0, least=0),
        sampler=table.word("sampler", "default"),
        warm_start=table.flag("warm_start", default=True),
        templates=_families(table),
        prune=table.flag("prune", default=True),
        workspace_limit_bytes=table.whole("workspace_limit_bytes", 1 << 30, least=0),
        spill_limit_bytes=table.whole("spill_limit_bytes", SPILL_LIMIT_BYTES, least=0),
        measure=_measure(table.table("measure", "expected a table [measure]")),
        space={family: kept for family, kept in space.items() if family != END_TO_END},
        end_to_end=_end_to_end(table, space.get(END_TO_END)),
        techniques=techniques,
        rules=rules,
    )


def _name(table: Table, default: str, note: str = "") -> str:
    """Read the name of a study or a layer."""
    name = table.word("name", default)
    if not name or any(not (letter.isalnum() or letter in "-_") for letter in name):
        raise table.error("name", f"{name!r}: expected letters, digits, - and _{note}")
    if len(name) > NAME_CHARACTERS:
        raise table.error("name", f"has {len(name)} characters: expected at most {NAME_CHARACTERS}")
    return name


def _families(table: Table) -> tuple[str, ...] | None:
    value = table.get("templates")
    if value is None:
        return None
    if not isinstance(value, list) or not value or not all(_is_a_name(item) for item in value):
        raise table.error("templates", f"expected a list of family names, got {value!r}")
    return tuple(dict.fromkeys(value))


def _is_a_name(value: object) -> bool:
    return isinstance(value, str) and len(value) <= NAME_CHARACTERS


def _measure(table: Table) -> Measure:
    table.allow({"cache"})
    cache = table.word("cache", "cold")
    if cache not in ("cold", "hot"):
        raise table.error("cache", f"{cache!r}: expected cold or hot")
    return Measure(cache)


def _space(table: Table) -> Mapping[str, Mapping[str, tuple[Value, ...]]]:
    expected = "expected tables [space.FAMILY]"
    families = table.table("space", expected)
    for params in families.content.values():
        if not isinstance(params, dict):
            raise table.error("space", expected)
    return {family: _kept(families.table(family, expected)) for family in families.content}


def _kept(params: Table) -> Mapping[str, tuple[Value, ...]]:
    """Read which values each parameter is restricted to."""
    narrowed: dict[str, tuple[Value, ...]] = {}
    for name, kept in params.content.items():
        items = kept if isinstance(kept, list) else [kept]
        values = [item for item in items if isinstance(item, (int, str))]
        if not values or len(values) < len(items):
            raise params.error(name, f"expected a value or a list of values, got {kept!r}")
        narrowed[name] = tuple(dict.fromkeys(values))
    return narrowed


def _end_to_end(table: Table, narrowed: Mapping[str, tuple[Value, ...]] | None) -> EndToEnd | None:
    where = f"space.{END_TO_END}"
    if not table.flag(END_TO_END, default=False):
        if narrowed is not None:
            raise table.error(where, f"has no effect without {END_TO_END} = true")
        return None
    kept = table.below(where, narrowed or {}, "expected a table")
    kept.allow({field.name for field in fields(EndToEnd)})
    values = {field.name: getattr(EndToEnd(), field.name) for field in fields(EndToEnd)} | dict(narrowed or {})
    for name in ("streams", "segments"):
        if any(type(value) is not int or value < 1 for value in values[name]):
            raise kept.error(name, f"expected whole numbers of at least 1, got {list(values[name])}")
    if not set(values["pinned"]) <= {"no", "yes"}:
        raise kept.error("pinned", f'expected "yes", "no" or both, got {list(values["pinned"])}')
    return EndToEnd(**values)


def _techniques(study: Table, layers: set[str]) -> tuple[Technique, ...]:
    found: dict[str, Technique] = {}
    for table in study.tables("technique", "expected [[technique]] tables"):
        table.allow(_TECHNIQUE_KEYS)
        table.require(("name", "template"))
        space = table.table("space", "expected a table of parameters and values")
        expected = "expected a table of layer names and milliseconds above 0"
        reported = table.table("reported_ms", expected)
        reported_ms = {name: float(ms) for name, ms in reported.content.items() if is_time(ms)}
        if len(reported_ms) < len(reported.content):
            raise table.error("reported_ms", expected)
        for name in reported_ms:
            if name not in layers:
                raise reported.error(name, f"no such layer; there are {', '.join(layers)}")
        technique = Technique(
            name=table.word("name", ""),
            template=table.word("template", ""),
            space=_kept(space),
            report=table.word("report", ""),
            reported_ms=reported_ms,
            reported=table.word("reported", ""),
            trials=table.whole("trials", 0, least=1) if "trials" in table else None,
        )
        if technique.name in found:
            raise table.error("name", f"{technique.name!r} occurs twice")
        found[technique.name] = technique
    return tuple(found.values())


def _rules(study: Table, techniques: set[str]) -> tuple[NamedRule, ...]:
    found: dict[str, NamedRule] = {}
    for table in study.tables("rule", "expected [[rule]] tables"):
        table.allow(_RULE_KEYS)
        table.require(("name", "property", "threshold", "below", "above"))
        rule = NamedRule(
            name=table.word("name", ""),
            property=table.word("property", ""),
            threshold=table.whole("threshold", 0, least=0),
            below=table.word("below", ""),
            above=table.word("above", ""),
            report=table.word("report", ""),
        )
        for side in ("below", "above"):
            if getattr(rule, side) not in techniques:
                known = ", ".join(techniques) or "none"
                raise table.error(side, f"no technique named {getattr(rule, side)!r}; there are {known}")
        if rule.name in found:
            raise table.error("name", f"{rule.name!r} occurs twice")
        found[rule.name] = rule
    return tuple(found.values())


def _layers(study: Table, of_all: Operation, find: FindOperation) -> tuple[Layer, ...]:
    expected = "expected at least one [[layer]]"
    layers: dict[str, Layer] = {}
    for index, table in enumerate(study.tables("layer", expected, label="name")):
        layer = _layer(table, _operation(table, of_all, find))
        if layer.name in layers:
            raise study.error(f"layer[{index}].name", f"{layer.name!r} occurs twice; give each layer its own name")
        layers[layer.name] = layer
    if not layers:
        raise study.error("layer", expected)
    return tuple(layers.values())


def _operation(table: Table, otherwise: Operation, find: FindOperation) -> Operation:
    """Return the operation given by the table's `op`, or `otherwise` if there is no `op`."""
    if "op" not in table:
        return otherwise
    try:
        return find(table.word("op", ""))
    except TemplateError as error:
        raise table.error("op", str(error)) from None


def _layer(table: Table, declared: Operation) -> Layer:
    table.require(("name",))
    name = _name(table, "")
    given = _given(table, declared)
    try:
        problem = make_problem(declared, given)
    except StudyError as error:
        raise StudyError(f"{table.file}: {table.key}: {error}") from None
    return Layer(name, problem, table.whole("count", 1, least=1))


def _allow(layer: Table, keys: Collection[str]) -> None:
    """Reject keys that layers don't have. If it is a key of the study, the error says where it belongs."""
    for key in layer.content:
        if key in _STUDY_VALUES and key not in keys:
            raise layer.error(key, f"{key} is a key of the study: put it above the first [[layer]]")
    layer.allow(keys)


def _given(table: Table, declared: Operation) -> dict[str, Value]:
    """Read a layer's sizes and words by name. A pair such as `stride` is one number for both axes, or two numbers."""
    pairs = {pair: (f"{pair}_h", f"{pair}_w") for pair in PAIRS} if declared.name == CONV2D else {}
    of_pairs = {name for both in pairs.values() for name in both}
    sizes = {size.name: size for size in declared.sizes if size.name not in of_pairs}
    _allow(table, {*_LAYER_KEYS, *pairs, *sizes, *declared.words})
    table.require([name for name, size in sizes.items() if size.default is None])
    given: dict[str, Value] = {
        name: table.whole(name, 0, least=size.least) for name, size in sizes.items() if name in table
    }
    for pair, both in pairs.items():
        if pair in table:
            given |= zip(both, _pair(table, pair), strict=True)
    return {**given, **{name: table.word(name, "") for name in declared.words if name in table}}


def _pair(table: Table, key: str) -> tuple[int, int]:
    """Read a pair as height and width."""
    value = table.get(key)
    match value if isinstance(value, list) else [value, value]:
        case [int(height), int(width)] if not (isinstance(height, bool) or isinstance(width, bool)):
            return height, width
    raise table.error(key, f"expected a whole number, or two as [height, width], got {value!r}")
