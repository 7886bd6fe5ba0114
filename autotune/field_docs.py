"""Show the documentation of a record's fields in `help()`, which looks for it in the record's docstring."""

from __future__ import annotations

import ast
import inspect
import textwrap
from dataclasses import fields, is_dataclass


class FieldDocs:
    """A docstring that gets a list of the record's fields when it is read: reading the source takes milliseconds."""

    def __init__(self, summary: str) -> None:
        self._summary = summary

    def __get__(self, _instance: object, record: type) -> str:
        """The docstring, a line for each field, and below it the text that follows the field in the source."""
        (declared,) = ast.parse(textwrap.dedent(inspect.getsource(record))).body
        body = declared.body if isinstance(declared, ast.ClassDef) else []
        lines = []
        for field, after in zip(body, [*body[1:], None], strict=True):
            if isinstance(field, ast.AnnAssign):
                lines.append(ast.unparse(field))
                if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                    lines.append(f"    {' '.join(str(after.value.value).split())}")
        return "\n".join([self._summary, "", "Fields:", *lines])


def document_fields(record: object) -> None:
    """Give a record with fields a docstring that lists them."""
    if isinstance(record, type) and is_dataclass(record) and fields(record):
        record.__doc__ = FieldDocs(inspect.getdoc(record) or "")  # type: ignore[assignment]  # read as a descriptor
