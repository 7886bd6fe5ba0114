"""Document a record's fields in its docstring, for `help()`, and in SQL comments."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass


def documented(record: type) -> Iterator[tuple[ast.AnnAssign, str]]:
    """Yield each field that a record declares itself, with the text below it in the source, on one line."""
    (declared,) = ast.parse(textwrap.dedent(inspect.getsource(record))).body
    body = declared.body if isinstance(declared, ast.ClassDef) else []
    for field, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign):
            text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            yield field, " ".join(str(text).split())


class FieldDocs:
    """A docstring that lists the record's fields. It is built when it is read, because reading the source takes
    milliseconds.
    """

    def __init__(self, summary: str) -> None:
        self._summary = summary

    def __get__(self, _instance: object, record: type) -> str:
        """Return the docstring, followed by a line for each field with its text from the source."""
        lines = []
        for field, text in documented(record):
            lines += [ast.unparse(field), *([f"    {text}"] if text else [])]
        return "\n".join([self._summary, "", "Fields:", *lines])


def document_fields(record: object) -> None:
    """Give a record a docstring that lists its fields."""
    if isinstance(record, type) and is_dataclass(record) and fields(record):
        record.__doc__ = FieldDocs(inspect.getdoc(record) or "")  # type: ignore[assignment]  # read as a descriptor
