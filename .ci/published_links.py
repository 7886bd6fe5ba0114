"""Hold a wheel's README against the built site: links that begin with ADDRESS lead to files and headings of FOLDER.

python .ci/published_links.py WHEEL ADDRESS FOLDER
"""

from __future__ import annotations

import re
import sys
import zipfile
from pathlib import Path

wheel, address, folder = sys.argv[1:]
with zipfile.ZipFile(wheel) as files:
    (name,) = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
    text = files.read(name).decode()
lost, found = [], re.findall(re.escape(address) + r"/([^)#\s]*)#?([^)\s]*)", text)
for path, anchor in found:
    file = Path(folder) / (path or "index.html")
    if not file.is_file() or (anchor and f'id="{anchor}"' not in file.read_text(encoding="utf-8")):
        lost.append(f"{path}#{anchor}")
if lost or len(found) < 20:
    sys.exit(f"{wheel}: of {len(found)} links to the docs these lead nowhere: {' '.join(lost) or 'none'}")
print(f"{len(found)} links of the wheel's README lead to the docs")
