"""Make docs/report-*.webp, pictures of reports of the bundled results: light, dark, narrow and printed.

`python -m tests.screenshots` (half a minute; Chromium, and `pip install -e '.[docs]'`).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pypdfium2
from PIL import Image

from tests.unit.test_report_browser import BROWSER

DOCS = Path(__file__).parents[1] / "docs"
SHOTS = {  # report, database, width and height in pixels, arguments of the browser
    "light": ("lenet-k5.conv2", "recorded", 1180, 1330, ()),
    "dark": ("resnet50-fp16", "recorded-networks", 1180, 1330, ("--blink-settings=preferredColorScheme=0",)),
    "narrow": ("lenet-k5", "recorded", 500, 1300, ()),  # 500: the minimum of a headless window
}
PRINTED = ("lenet-k5", "recorded")
COLOURS = 192  # colours of a picture: enough for flat areas and letters
HEADLESS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars")


def report(what: str, db: str, page: Path) -> str:
    """Write the report; returns its address."""
    subprocess.run([sys.executable, "-m", "autotune", "report", what, "--db", db, "--out", page], check=True)
    return page.as_uri()


def browse(*words: str) -> None:
    """Run the browser headless."""
    assert BROWSER is not None, "no Chromium here: apt-get install chromium"
    subprocess.run([BROWSER, *HEADLESS, *words], check=True, capture_output=True, timeout=60)


def keep(picture: Image.Image, name: str) -> None:
    """Write a picture with few colours to docs/."""
    few = picture.convert("RGB").quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.convert("RGB").save(DOCS / f"report-{name}.webp", lossless=True, method=6)


def main() -> None:
    """Make all four pictures."""
    with TemporaryDirectory() as folder:
        page, shot, paper = (Path(folder, name) for name in ("report.html", "shot.png", "paper.pdf"))
        for name, (what, db, width, height, words) in SHOTS.items():
            address = report(what, db, page)
            browse(*words, f"--window-size={width},{height}", f"--screenshot={shot}", address)
            keep(Image.open(shot), name)
        browse("--no-pdf-header-footer", f"--print-to-pdf={paper}", report(*PRINTED, page))
        document = pypdfium2.PdfDocument(paper)
        pages = [document[number].render(scale=1.2).to_pil() for number in range(2)]
        both = Image.new("RGB", (sum(one.width for one in pages) + 12, pages[0].height), "#999")
        both.paste(pages[0], (0, 0))
        both.paste(pages[1], (pages[0].width + 12, 0))
        keep(both, "printed")


if __name__ == "__main__":
    main()
