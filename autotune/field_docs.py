"""Documentation of a record's fields: for `help()`, which reads the docstring, and for comments in SQL."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import fields, is_dataclass


def documented(record: type) -> Iterator[tuple[ast.AnnAssign, str]]:
    """Yield each field that a record declares itself, and the text below the field in the source, on one line."""
    (declared,) = ast.parse(textwrap.dedent(inspect.getsource(record))).body
    body = declared.body if isinstance(declared, ast.ClassDef) else []
    for field, after in zip(body, [*body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign):
            text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            yield field, " ".join(str(text).split())


class FieldDocs:
    """A docstring that lists the record's fields when it is read, because reading the source takes milliseconds."""

    def __init__(self, summary: str) -> None:
        self._summary = summary

    def __get__(self, _instance: object, record: type) -> str:
        """Return the docstring with a line for each field, followed by the field's text in the source."""
        lines = []
        for field, text in documented(record):
            lines += [ast.unparse(field), *([f"    {text}"] if text else [])]
        return "\n".join([self._summary, "", "Fields:", *lines])


def document_fields(record: object) -> None:
    """Give a record with fields a docstring that lists them."""
    if isinstance(record, type) and is_dataclass(record) and fields(record):
        record.__doc__ = FieldDocs(inspect.getdoc(record) or "")  # type: ignore[assignment]  # read as a descriptor
