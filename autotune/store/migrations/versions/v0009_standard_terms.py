"""Configs under the names that parameters have now, and headers of families in which these names are declared.

Kernels' texts stay as they were compiled, and studies' files as they were read. Nothing else stores a parameter's name.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

from alembic import op
from sqlalchemy import Connection

from autotune.renamed import PARAMETERS, current
from autotune.store.sqlite.database import NOT_UNDERSTOOD

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_STRING = re.compile(r"('[^']*')")
_NAME = re.compile(r"[A-Za-z_]\w*")
_PARAM = re.compile(r"^(\w+)(\s*=\s*\{.*)$")
_KEYED = re.compile(r'^(\w+|"[^"]*")(\s*=\s*)(.*)$')
_HEADER_KEYS = {"room": "padded_outputs"}
_KERNEL_KEYS = {"room": "padded_outputs", "paces": "relative_times"}
_WORDS = ("summary", "entry", "args", "name", "array")
"""keys whose values are no expressions"""


def upgrade() -> None:
    """Rename what rows keep by a parameter's name."""
    connection = op.get_bind()
    for family in PARAMETERS:
        for (template_id,) in _rows(connection, "SELECT id FROM templates WHERE family = ?", family):
            rows = _rows(connection, "SELECT id, config FROM trials WHERE template_id = ?", template_id)
            configs = _understood(rows, partial(_values, family))
            _update(connection, "UPDATE trials SET config = ? WHERE id = ?", configs)
        spaces = _rows(connection, "SELECT id, params FROM subjects WHERE kind = 'space' AND name = ?", family)
        params = _understood(spaces, partial(_params, family))
        _update(connection, "UPDATE subjects SET params = ? WHERE id = ?", params)
    for row_id, family, header in _rows(connection, "SELECT id, family, header FROM templates"):
        headers = _understood([(row_id, header)], partial(header_of_today, family))
        changed = [(new, row) for new, row in headers if new != header]
        _update(connection, "UPDATE templates SET header = ? WHERE id = ?", changed)
    _dispatchers(connection)


def _understood(rows: Sequence[Sequence[str]], renamed: Callable[[str], str]) -> list[tuple[str, str]]:
    """New text and id of each row, id and text. One that cannot be understood stays as it is, for readers to find."""
    found = []
    for row_id, text in rows:
        with suppress(*NOT_UNDERSTOOD):
            text.encode()  # raises for what is not UTF-8
            found.append((renamed(text), row_id))
    return found


def _values(family: str, config: str) -> str:
    return _compact(current(family, json.loads(config)))


def _params(family: str, params: str) -> str:
    return json.dumps(current(family, json.loads(params)))


def _update(connection: Connection, sql: str, rows: list[tuple[str, str]]) -> None:
    if rows:
        connection.exec_driver_sql(sql, rows)


def _dispatchers(connection: Connection) -> None:
    """Rename in dispatchers' records, and in the configs of their trials: kernels in words and a hash of the record."""
    connection.exec_driver_sql("ALTER TABLE dispatched_layers RENAME COLUMN unsure TO default_first")
    rows = _rows(connection, "SELECT id, record FROM dispatchers")
    records, old = _understood(rows, _record), {row_id: record for row_id, record in rows}  # noqa: C416
    _update(connection, "UPDATE dispatchers SET record = ? WHERE id = ?", records)
    hashes = {_hash(old[row_id]): _hash(new) for new, row_id in records}
    of_sets = (
        "SELECT trials.id, config FROM trials JOIN templates ON templates.id = template_id WHERE family = 'dispatch'"
    )
    configs = _understood(_rows(connection, of_sets), lambda text: _config(text, hashes))
    _update(connection, "UPDATE trials SET config = ? WHERE id = ?", configs)


def _record(text: str) -> str:
    """A dispatcher's record with the names of today."""
    content = json.loads(text)
    for kernel in (*content["kernels"], content["default"]):
        kernel["params"] = current(kernel["family"], kernel["params"])
    content["kernels"] = [_kernel(kernel) for kernel in content["kernels"]]
    content["default"] = _kernel(content["default"])
    return _compact(content)


def _config(text: str, hashes: Mapping[str, str]) -> str:
    """The config of a set's trial, a dispatcher in words, with the names and hashes of today."""
    values = {name: _in_words(value) for name, value in json.loads(text).items()}
    hashed = values.get("hash")
    if isinstance(hashed, str):
        values["hash"] = hashes.get(hashed, hashed)
    return _compact(values)


def _kernel(kernel: Mapping[str, object]) -> dict[str, object]:
    """A dispatcher's kernel with the keys of today."""
    return {_KERNEL_KEYS.get(key, key): value for key, value in kernel.items()}


def _in_words(value: object) -> object:
    """A kernel as a config of a dispatcher names it, `FAMILY NAME=VALUE ...`, with the names of today."""
    family, *words = value.split(" ") if isinstance(value, str) else [""]
    if family not in PARAMETERS or not all("=" in word for word in words):
        return value
    pairs = dict(word.split("=", 1) for word in words)
    return " ".join([family, *(f"{name}={one}" for name, one in current(family, pairs).items())])


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _compact(value: object) -> str:
    """JSON as configs and dispatchers are stored."""
    return json.dumps(value, separators=(",", ":"))


def _rows(connection: Connection, sql: str, *parameters: str) -> list[tuple[str, ...]]:
    """Rows whose ids, too, are taken as text."""
    return [tuple(map(str, row)) for row in connection.exec_driver_sql(sql, parameters)]


def header_of_today(family: str, header: str) -> str:
    """A header with the names of today: its keys, and parameters where they are declared and used.

    A derived value that has a parameter's new name gets another one.
    """
    names = dict(PARAMETERS.get(family, {}))
    taken = set(_NAME.findall(header)) & set(names.values())
    names |= {name: f"{name}_" for name in taken}
    return "\n".join(_lines(header, names))


def _lines(header: str, names: Mapping[str, str]) -> Iterator[str]:
    for line in header.split("\n"):
        keyed = _KEYED.match(line)
        if keyed is None:
            yield line
            continue
        key, equals, value = keyed.groups()
        key = _HEADER_KEYS.get(key, names.get(key, key))
        if _PARAM.match(line) is None and key not in _WORDS:
            value = "".join(part if part.startswith("'") else _renamed(part, names) for part in _STRING.split(value))
        yield f"{key}{equals}{value}"


def _renamed(expression: str, names: Mapping[str, str]) -> str:
    return _NAME.sub(lambda found: names.get(found.group(), found.group()), expression)


def downgrade() -> None:
    """Results are never deleted."""
    raise NotImplementedError("an older autotune cannot keep what this schema holds")
