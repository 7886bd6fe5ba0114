"""docs/session.svg, README's recording: a real session of 80 x 24 on this machine's CPU, in an empty directory.

`python -m tests.recording > docs/session.svg` (a minute; `pip install -e '.[docs]'`). Time passes at most QUICKER times
as fast as it did. Every screen is kept as text, its lines once each, and CSS shows one after another.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory

import pyte

COLUMNS, ROWS = 80, 24
SESSION = (
    "autotune tune quickstart",
    "autotune best quickstart.conv2",
    "autotune export quickstart --out kernels",
    "ls kernels",
    "autotune best lenet-k5 --db recorded",
)
QUICKER = 3
LOOK_S = 0.5  # between two looks at the screen
LONGEST_S, TYPED_S, READ_S, END_S = 1.2, 0.6, 2.2, 5.0  # as shown: a look, a command, its answer, the last screen
CELL, LINE, MARGIN = 8.4, 17, 12  # pixels, of letters of 14
COLOURS = {  # by name: on dark, on light
    "black": ("#484f58", "#24292f"),
    "red": ("#ff7b72", "#cf222e"),
    "green": ("#3fb950", "#116329"),
    "brown": ("#d29922", "#7d4e00"),
    "blue": ("#58a6ff", "#0969da"),
    "magenta": ("#d2a8ff", "#8250df"),
    "cyan": ("#39c5cf", "#1b7c83"),
    "white": ("#b1bac4", "#57606a"),
}


@dataclass(frozen=True, slots=True)
class Run:
    """Letters of one look: the column of the first, and a CSS class."""

    column: int
    text: str
    style: str


Line = tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class Frame:
    """A screen, and for how long it is shown."""

    lines: tuple[Line, ...]
    shown_s: float


class Terminal:
    """A terminal whose screens are kept as they change."""

    def __init__(self) -> None:
        self._screen = pyte.Screen(COLUMNS, ROWS)
        self._stream = pyte.ByteStream(self._screen)
        self._lines: tuple[Line, ...] = ()
        self.frames: list[Frame] = []

    def write(self, data: bytes) -> None:
        """Take what a program printed."""
        self._stream.feed(data)

    def look(self, shown_s: float) -> None:
        """Keep the screen as it is; one that has not changed is shown for longer."""
        lines = tuple(_line(self._screen.buffer[row]) for row in range(ROWS))
        if self.frames and self.frames[-1].lines == lines:
            last = self.frames.pop()
            shown_s = max(last.shown_s, min(last.shown_s + shown_s, LONGEST_S), shown_s)
        self.frames.append(Frame(lines, shown_s))


def _line(cells: dict[int, pyte.screens.Char]) -> Line:
    runs: list[Run] = []
    looks = ((column, cells[column]) for column in range(COLUMNS))
    for (colour, bold), group in groupby(looks, lambda one: (one[1].fg, one[1].bold)):
        letters = list(group)
        text = "".join(cell.data for _, cell in letters)
        column, lead = letters[0][0], len(text) - len(text.lstrip())
        if text.strip():
            names = [colour.removeprefix("bright")] if colour != "default" else []
            runs.append(Run(column + lead, text.strip(), " ".join(names + (["bold"] if bold else []))))
    return tuple(runs)


def record(session: Sequence[str]) -> list[Frame]:
    """Run the commands one after another in an empty directory."""
    terminal = Terminal()
    with TemporaryDirectory() as folder:
        for command in session:
            terminal.write(b"\x1b[32m$\x1b[0m ")
            terminal.look(0.3)
            terminal.write(command.encode())
            terminal.look(TYPED_S)
            terminal.write(b"\r\n")
            for printed in output(command, Path(folder)):
                terminal.write(printed)
                terminal.look(LOOK_S / QUICKER)
            terminal.look(READ_S)
    terminal.write(b"\x1b[32m$\x1b[0m ")
    terminal.look(END_S)
    return terminal.frames


def output(command: str, folder: Path) -> Iterator[bytes]:
    """What a command prints on a terminal, piece by piece."""
    words = command.split()
    if words[0] == "autotune":
        words = [sys.executable, "-m", *words]
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.environ |= {"TERM": "xterm", "COLUMNS": str(COLUMNS), "LINES": str(ROWS), "PAGER": "cat"}
        os.environ.pop("COLORTERM", None)
        os.execvp(words[0], words)
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    try:
        while True:
            yield _read(terminal, time.monotonic() + LOOK_S)
    except OSError:  # the program has ended
        pass
    finally:
        os.close(terminal)
        _, status = os.waitpid(child, 0)
    if status:
        raise SystemExit(f"{command}: ended with {os.waitstatus_to_exitcode(status)}")


def _read(terminal: int, until: float) -> bytes:
    """What comes until then."""
    printed = b""
    while (left_s := until - time.monotonic()) > 0:
        if select.select([terminal], [], [], left_s)[0]:
            try:
                printed += os.read(terminal, 65536)
            except OSError:
                if not printed:
                    raise
                break
    return printed


def svg(frames: Sequence[Frame]) -> str:
    """The frames below each other, in a window that goes from one to the next."""
    known: dict[Line, str] = {}
    for frame in frames:
        for line in frame.lines:
            if line:
                known.setdefault(line, f"l{len(known)}")
    width, height = COLUMNS * CELL + 2 * MARGIN, ROWS * LINE + 2 * MARGIN
    whole_s = sum(frame.shown_s for frame in frames)
    steps, at_s = [], 0.0
    for number, frame in enumerate(frames):
        steps.append(f"{at_s / whole_s:.2%}{{transform:translateY({-number * ROWS * LINE}px)}}")
        at_s += frame.shown_s
    colours = [
        "".join(f".{name}{{fill:{both[at]}}}" for name, both in COLOURS.items())
        + f"#w{{fill:{paper}}}text{{fill:{letters}}}"
        for at, paper, letters in ((0, "#0d1117", "#e6edf3"), (1, "#f6f8fa", "#1f2328"))
    ]
    style = (
        "text{font:14px ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}"
        f".bold{{font-weight:bold}}{colours[1]}@media(prefers-color-scheme:dark){{{colours[0]}}}"
        f"#s{{animation:s {whole_s:.1f}s step-end infinite}}@keyframes s{{{''.join(steps)}}}"
        f"@media(prefers-reduced-motion){{#s{{animation:none;{steps[-1].partition('{')[2]}}}"
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}" '
            f'height="{height}">',
            f"<title>A terminal session: {escape('; '.join(SESSION))}</title><style>{style}</style>",
            f"<defs>{''.join(_defined(line, name) for line, name in known.items())}</defs>",
            '<rect id="w" width="100%" height="100%" rx="8"/>',
            f'<svg x="{MARGIN}" y="{MARGIN}" width="{COLUMNS * CELL:.0f}" height="{ROWS * LINE}"><g id="s">',
            *(_shown(frame, number, known) for number, frame in enumerate(frames)),
            "</g></svg></svg>\n",
        ]
    )


def _defined(line: Line, name: str) -> str:
    spans = (
        f'<text x="{run.column * CELL:g}" y="13" textLength="{len(run.text) * CELL:g}" class="{run.style}">'
        f"{escape(run.text, quote=False)}</text>"
        for run in line
    )
    return f'<g id="{name}">{"".join(spans)}</g>'


def _shown(frame: Frame, number: int, known: dict[Line, str]) -> str:
    top = number * ROWS * LINE
    return "".join(
        f'<use href="#{known[line]}" y="{top + row * LINE}"/>' for row, line in enumerate(frame.lines) if line
    )


if __name__ == "__main__":
    sys.stdout.write(svg(record(SESSION)))
