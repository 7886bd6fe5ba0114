"""Print the README's commands that need no GPU, one per line: the lines of its ```sh blocks, in order."""

import re
import sys
from pathlib import Path

text = Path(sys.argv[1]).read_text(encoding="utf-8")
for block in re.findall(r"^```sh\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
    print(block.replace("\\\n", " ").strip())
