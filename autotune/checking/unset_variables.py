"""Change the contents of variables that a kernel may read before it sets them, to find out whether outputs change.

g++ warns about such variables. Some of its warnings are false, because it doesn't see that two conditions agree.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

from autotune.compilation.compile import Binary
from autotune.errors import Rejected
from autotune.family.source import KernelSource
from autotune.trial import Outcome

_DECLARED = re.compile(r"kernel\.cu:(\d+):(\d+): note: '(\w+)[^']*' (?:was )?declared here")
_CONTENTS = (0x7F, 0xFF)  # bytes that make 3.4e38 and NaN in f32, a large integer and -1; a maximum hides the NaN


def dependence_on_unset(
    source: KernelSource, binary: Binary, rejection: Callable[[KernelSource], Rejected | None]
) -> str:
    """Return a message if outputs of a correct kernel depend on variables that were never set, or an empty text.

    `rejection` compiles and verifies a kernel.
    """
    found = {(int(line), int(column)): name for line, column, name in _DECLARED.findall(binary.log)}
    named = ", ".join(f"{name} (kernel.cu:{line})" for (line, _), name in sorted(found.items()))
    for content in _CONTENTS if found else ():
        lines = source.program.text.split("\n")
        for (line, column), name in sorted(found.items(), reverse=True):
            text = lines[line - 1]
            end = text.find(";", column - 1) + 1 or len(text)
            lines[line - 1] = f"{text[:end]} __builtin_memset(&{name}, {content}, sizeof {name});{text[end:]}"
        rejected = rejection(replace(source, program=replace(source.program, text="\n".join(lines))))
        if rejected is not None and rejected.outcome != Outcome.COMPILE:
            return f"outputs depend on variables that were never set, {named}: {rejected.message}"
    return ""
