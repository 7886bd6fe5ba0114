"""`autotune report`: one page that loads nothing and has every trial; the same database gives the same page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.html_page import Page

from .test_analysis_commands import change
from .test_cli import rows
from .tiny import Command

RECORDED = Path(__file__).parents[2] / "studies" / "recorded" / "h200.db"


def reported(autotune: Command, *words: object) -> Page:
    """The page that `autotune report WORDS...` writes."""
    done = autotune("report", *words)
    assert (done.code, done.err) == (0, "")
    return Page(Path(done.out.strip()).read_text(encoding="utf-8"))


@pytest.fixture
def small(filled: Path, autotune: Command) -> Page:
    """The report of the small study, some of whose trials failed."""
    return reported(autotune, "small")


def tables(page: Page) -> list[list[list[str]]]:
    """The cells of each family's trials, without the head."""
    lines = [
        [one for one in page.inside(table) if one.tag == "tr"][1:] for table in page.of("table", **{"class": "trials"})
    ]
    return [[[one.text for one in page.inside(line) if one.tag == "td"] for line in family] for family in lines]


def points(page: Page) -> list[str]:
    """The ids of the rows to which the points of trials lead."""
    return [one.attributes["data-t"] for one in page.having("data-t")]


def row_ids(page: Page) -> list[str]:
    """The ids of the rows of all trials."""
    return [
        one.attributes["id"]
        for table in page.of("table", **{"class": "trials"})
        for one in page.inside(table)
        if one.tag == "tr" and "id" in one.attributes
    ]


def test_every_trial_is_a_point_and_a_row(small: Page, autotune: Command) -> None:
    trials = rows(autotune("trials", "small", "--json"))
    assert {trial["outcome"] == "correct" for trial in trials} == {True, False}
    found = {line[0]: line for lines in tables(small) for line in lines}
    assert sorted(found) == sorted(str(trial["number"]) for trial in trials)
    assert sorted(points(small)) == sorted(row_ids(small))
    assert len(list(small.of("rect"))) == sum(line[1] == "" for line in found.values())
    for trial in trials:
        _number, time, _second, *values, remark = found[str(trial["number"])]
        config = trial["config"]
        assert isinstance(config, dict)
        assert set(values) <= {str(value) for value in config.values()}
        assert (time != "") == (trial["outcome"] == "correct")
        assert trial["outcome"] == "correct" or f"{trial['outcome']}, {trial['reason']}" in remark


def test_trials_of_two_environments_have_a_row_each(filled: Path, autotune: Command) -> None:
    """Their numbers start again with each driver."""
    change(filled, "INSERT INTO environments SELECT id + 1, 'newer', toolkit, flags, first_seen_at FROM environments")
    change(filled, "UPDATE trials SET environment_id = environment_id + 1, number = number - 5 WHERE number >= 5")
    page = reported(autotune, "small")
    lines = [line for lines in tables(page) for line in lines]
    numbers = [line[0] for line in lines]
    assert len(set(numbers)) < len(numbers) == len(rows(autotune("trials", "small", "--json")))
    assert len(set(points(page))) == len(lines)


def test_it_loads_nothing_and_every_link_leads_somewhere(small: Page) -> None:
    ids = [element.attributes["id"] for element in small.having("id")]
    assert len(ids) == len(set(ids))
    links = [element.attributes["href"] for element in small.having("href")]
    assert links
    assert {link[:1] for link in links} == {"#"}
    assert {link[1:] for link in links} <= set(ids)
    assert not small.having("src")
    labelled = " ".join(element.attributes["aria-labelledby"] for element in small.having("aria-labelledby"))
    assert set(labelled.split()) <= set(ids)
    (policy,) = (one for one in small.of("meta") if one.attributes.get("http-equiv") == "Content-Security-Policy")
    assert policy.attributes["content"].startswith("default-src 'none'; ")


def test_no_word_of_it_is_an_address(filled: Path, autotune: Command) -> None:
    autotune("report", "small", "--out", "page.html")
    text = Path("page.html").read_text(encoding="utf-8")
    assert not re.findall(r"(?:https?:)?//[a-z0-9.]+\.[a-z]", text)
    assert "url(" not in text
    assert "@import" not in text


def test_the_same_database_gives_the_same_bytes(filled: Path, autotune: Command) -> None:
    for name in ("one.html", "two.html"):
        autotune("report", "small.one", "--out", name)
    assert Path("one.html").read_bytes() == Path("two.html").read_bytes()


def test_a_dash_is_standard_output(filled: Path, autotune: Command) -> None:
    autotune("report", "small.one", "--out", "one.html")
    assert autotune("report", "small.one", "--out", "-").out == Path("one.html").read_text(encoding="utf-8")
    assert "this command cannot write to standard output" in autotune("source", "small.one", "--out", "-").complaint
    assert not Path("-").exists()


def test_every_picture_has_words_and_a_table(small: Page) -> None:
    charts = list(small.of("svg", role="img"))
    assert charts
    for chart in charts:
        inside = small.inside(chart)
        assert [one.text for one in inside if one.tag == "title" and one.within[-1] is chart]
        assert [one.text for one in inside if one.tag == "desc"]
        assert chart.attributes["tabindex"] == "0"
    assert any(one.text.startswith("Table: all ") for one in small.of("summary"))


def test_the_winner_is_the_best(small: Page, autotune: Command) -> None:
    (best,) = rows(autotune("best", "small.one", "--json"))
    (winner,) = (line for line in small.of("tr", **{"class": "winner"}) if line.attributes.get("id"))
    trials = {str(one["number"]): one for one in rows(autotune("trials", "small", "--json"))}
    assert trials[next(one.text for one in small.inside(winner))]["config"] == best["config"]


def test_a_study_of_several_layers_is_a_network_with_its_sum(folder: Path, autotune: Command) -> None:
    page = reported(autotune, "quickstart", "--db", RECORDED)
    answers = rows(autotune("best", "quickstart", "--db", RECORDED, "--json"))
    names = [next(one.text for one in page.inside(line) if one.tag == "th") for line in page.having("data-layer")]
    assert names == [str(answer["layer"]).partition(".")[2] for answer in answers]
    (total,) = page.of("tr", **{"class": "sum"})
    assert f"{answers[0]['network_us']:.4g} µs" in total.text
    assert len(list(page.of("svg", role="img"))) == 1 + 2 * 2, "the network's roofline, and two charts a layer"
    assert len(points(page)) == 40


def test_a_family_has_one_colour_in_every_layer(folder: Path, autotune: Command) -> None:
    page = reported(autotune, "lenet-k5", "--db", RECORDED)
    colours: dict[str, set[str]] = {}
    for entry in page.having("data-f"):
        colours.setdefault(entry.text.split()[0], set()).add(entry.attributes["data-f"])
    assert len(colours) > 7
    assert {family: kinds for family, kinds in colours.items() if len(kinds) > 1} == {}


def test_what_is_not_there_is_said_in_a_line(filled: Path, autotune: Command) -> None:
    assert "no study or layer 'large'" in autotune("report", "large").complaint
    assert (
        "no recorded device of this name; there are null" in autotune("report", "small", "--device", "h200").complaint
    )
    assert "there is no folder nowhere" in autotune("report", "small", "--out", "nowhere/report.html").complaint
    assert not Path("report.html").exists()
