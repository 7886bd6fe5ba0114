"""Marks at the ends of a text's lines, which say where each is written, while somebody asks for that."""

import re

MARK = "\ue000%s\ue001"
"""Characters that no program has, around a line's origin."""
MARKS = re.compile("\ue000([^\ue001]*)\ue001")
