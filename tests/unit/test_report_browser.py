"""The report in headless Chromium: no script error, no request, tooltips, keys, links, printing."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path

import pytest

from .test_cli import rows
from .tiny import Command

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium here: apt-get install chromium")

POLICY = r'<meta http-equiv="Content-Security-Policy"[^>]*>'
READER = """
const seen = {}, tip = document.getElementById("tip");
const chart = document.querySelector("svg.chart"), marks = [...chart.querySelectorAll("[data-t]")];
const across = (mark) => +(mark.getAttribute("cx") || mark.getAttribute("x"));
const first = marks.reduce((least, mark) => across(mark) < across(least) ? mark : least);
const press = (key) => chart.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
seen.label = chart.getAttribute("aria-label");
first.dispatchEvent(new PointerEvent("pointermove", { bubbles: true }));
seen.pointer = tip.textContent;
chart.dispatchEvent(new PointerEvent("pointerleave"));
seen.left = tip.textContent;
press("End"); press("ArrowLeft"); press("ArrowRight");
seen.key = tip.textContent;
press("Enter");
setTimeout(() => {
  seen.points = marks.length;
  seen.rows = [...document.querySelectorAll("table.trials tbody tr")].map((row) => row.cells[0].textContent);
  seen.row = document.getElementById(location.hash.slice(1)).cells[0].textContent;
  seen.winner = document.querySelector("table.trials tr.winner").id;
  seen.open = document.getElementById(location.hash.slice(1)).closest("details:not(.layer)").open;
  document.querySelector("details.layer").open = false;
  dispatchEvent(new Event("beforeprint"));
  seen.printed = document.querySelector("details.layer").open;
  seen.hidden = [...document.querySelectorAll(".wide")].filter(
    (box) => box.querySelector("table:not(.trials)") && box.scrollWidth > box.clientWidth + 1).length;
  seen.cut = [...document.querySelectorAll("svg.chart text")].filter((text) => {
    const own = text.getBoundingClientRect(), all = text.closest("svg").getBoundingClientRect();
    return own.width > 0 && (own.right > all.right + 1 || own.left < all.left - 1);
  }).map((text) => text.textContent);
  seen.wide = document.documentElement.scrollWidth <= innerWidth;
  document.title = JSON.stringify(seen);
}, 100);
"""
"""A reader's action, and the page's reaction."""


def browse(page: Path, *words: str) -> tuple[str, str]:
    """The page's elements after its script has run, and the browser's messages."""
    assert BROWSER is not None
    quiet = [f"--disable-{what}" for what in ("gpu", "background-networking", "component-update", "extensions", "sync")]
    quiet += ["--headless", "--no-sandbox", "--no-first-run", "--disable-features=NetworkTimeServiceQuerying"]
    profile = f"--user-data-dir={page.parent / 'profile'}"
    command = (BROWSER, *quiet, profile, "--enable-logging=stderr", "--virtual-time-budget=2000", *words, "--dump-dom")
    done = subprocess.run([*command, page.as_uri()], capture_output=True, text=True, timeout=60, check=True)
    return done.stdout, done.stderr


def test_as_it_is_it_has_no_error_and_asks_for_nothing(filled: Path, autotune: Command) -> None:
    assert autotune("report", "small").code == 0
    page = filled.parent / "report.html"
    text = page.read_text(encoding="utf-8")
    shown, said, asked = asked_for(page)
    assert "CONSOLE" not in said, said
    assert "aria-label=" in shown, "its script ran"
    assert not asked
    worse = "<script>console.log('ran')</script><img src='http://127.0.0.1:9/seen.png' alt=''></main>"
    page.write_text(text.replace("</main>", worse), encoding="utf-8")
    _, said, asked = asked_for(page)
    assert said.count("Content Security Policy") >= 2, said
    assert '"ran"' not in said
    assert not asked
    page.write_text(re.sub(POLICY, "", text).replace("</main>", worse), encoding="utf-8")
    _, said, asked = asked_for(page)
    assert ('"ran"' in said, asked) == (True, {"http://127.0.0.1:9/seen.png"}), "what this test would see"


def asked_for(page: Path) -> tuple[str, str, set[str]]:
    """The page's elements, the browser's messages, and the addresses that the page requested."""
    log = page.parent / "net.json"
    shown, said = browse(page, f"--log-net-log={log}")
    begun = [event.get("params", {}) for event in json.loads(log.read_text(encoding="utf-8"))["events"]]
    asked = [one for one in begun if re.match("(https?|wss?):", one.get("url", "")) and "initiator" in one]
    return shown, said, {one["url"] for one in asked if one["initiator"] != "not an origin"}  # as the browser's own


def test_a_reader_with_pointer_keys_and_paper(filled: Path, autotune: Command) -> None:
    assert autotune("report", "small.one").code == 0
    text = (filled.parent / "report.html").read_text(encoding="utf-8")
    page = filled.parent / "read.html"
    without = re.sub(POLICY, "", text)
    page.write_text(without.replace("</body>", f"<script>{READER}</script></body>"), encoding="utf-8")
    shown, said = browse(page, "--window-size=500,900")
    assert "CONSOLE" not in said, said
    title = re.search(r"<title>(.*?)</title>", shown)
    assert title is not None
    seen = json.loads(unescape(title[1]))
    assert seen["label"] == "Every trial and the best so far"
    assert re.match(r"trial 0: .*tiny .*threads=\d+ ", seen["pointer"]), seen
    assert seen["left"] == ""
    numbers = [str(trial["number"]) for trial in rows(autotune("trials", "small.one", "--json"))]
    assert (seen["points"], sorted(seen["rows"])) == (len(numbers), sorted(numbers))
    last = max(numbers, key=int)
    assert seen["key"].startswith(f"trial {last}: ")
    assert (seen["row"], seen["open"], seen["printed"], seen["wide"]) == (last, True, True, True)
    assert seen["hidden"] == 0, "tables on a narrow screen"
    assert seen["cut"] == [], "labels of charts on a narrow screen"
    assert f'href="#{seen["winner"]}"' in text
