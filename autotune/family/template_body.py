"""Check a family's body against its header: undeclared names, and spellings that Jinja silently misreads."""

from __future__ import annotations

import re
from collections.abc import Set

from jinja2 import meta, nodes

from autotune.errors import TemplateError, quoted
from autotune.expressions.functions import FUNCTIONS
from autotune.family.sandbox import RENDER_S, limited
from autotune.family.template import KernelTemplate
from autotune.family.text import parse
from autotune.toml_table import did_you_mean


def check_body(template: KernelTemplate) -> Set[str]:
    """Check for misread spellings, undeclared names, and the run-time n used as a constant. Returns the
    body's names.
    """
    body_starts = template.text.count("\n", 0, template.text.index("#*/")) + 2
    for number, line in enumerate(template.text.splitlines()[body_starts - 1 :], body_starts):
        if re.search(r"\$\{([-+]|[^}]*[-+]\})", line):
            raise TemplateError(
                f"{template.path}: line {number}: a sign at the edge of ${{...}} is whitespace control to Jinja, "
                f"which drops it; write ${{0 - name}} or put the sign outside"
            )
        if re.match(r"\s*//%.*//", line):
            raise TemplateError(
                f"{template.path}: line {number}: // after a line statement is floor division to Jinja; "
                f"put the note on a line of its own, or the division into [derived]"
            )
    tree = parse(template.path, template.text)
    runtime = template.operation.runtime
    of_runtime = {runtime}
    for name, expression in template.derived:
        if expression.names & of_runtime:
            of_runtime.add(name)
    allowed = {
        *template.operation.names,
        *(param.name for param in template.params),
        *(name for name, _ in template.derived),
        *FUNCTIONS,
        "range",
    } - of_runtime
    with limited(template.path, "reading its body", RENDER_S):  # by now Jinja has folded constants
        names = meta.find_undeclared_variables(tree)
    for name in sorted(names - allowed):
        at = next((node.lineno for node in tree.find_all(nodes.Name) if node.name == name), 0)
        not_constant = "is not a constant: a kernel takes it at run time, as an argument"
        if name == runtime:
            what = f"{name} {not_constant}"
        elif name in of_runtime:
            what = f"{name!r} follows from {runtime}, which {not_constant}"
        else:
            what = f"undeclared name {quoted(name)}{did_you_mean(name, allowed)}"
        raise TemplateError(f"{template.path}: line {at}: {what}")
    return names
