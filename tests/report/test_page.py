"""The page in a real browser: what a reader does with it, and what it must never do."""

from __future__ import annotations

import csv
import io
import json
import re

import pytest
from browser import Browser, find_chromium
from sample import sample_results

from gradleak.audits.results import AttackInfo
from gradleak.report.build import write_pages, write_report
from gradleak.report.compare import write_comparison
from gradleak.report.rows import as_csv, named_rows
from gradleak.verdict.compare import compare
from gradleak.verdict.gather import Gathered

HOSTILE = (
    '<script>document.title="owned"</script><img src="https://evil.example/x" onerror="document.title=1">&amp;"\''
)
PROGRAM = find_chromium()

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="there is no Chromium on this machine")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(PROGRAM or "", tmp_path_factory.mktemp("profile"))
    browser.size(1200, 900)
    yield browser
    browser.close()


def several():
    """Four audits of two defences and two attacks; one recovery is hostile, one sentence is read whole."""
    found = []
    for number, (attack, defenses) in enumerate(
        (attack, defenses) for attack in ("auto", "dlg") for defenses in ([], ["sign"])
    ):
        base = sample_results()
        pairs = [trial.pairs[0] for trial in base.trials]
        if number == 3:
            pairs[0].reconstruction = HOSTILE
            pairs[0].scores.update(rougeL=0.0)
        pairs[1].reconstruction = f"=loan {number}"
        pairs[1].scores.update(rougeL=10.0 * number, exact_match=100.0 * (number == 2))
        found.append(
            base.model_copy(
                update={
                    "attack": AttackInfo(name=attack, options={}),
                    "scenario": base.scenario.model_copy(update={"defenses": defenses}),
                }
            )
        )
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return Gathered(tmp_path_factory.mktemp("page"), several())


@pytest.fixture
def page(browser, folder):
    browser.media()
    browser.open(write_pages(folder))
    browser.run("localStorage.clear()")
    yield browser
    assert browser.complaints == []
    assert all(address.startswith(("file:", "blob:")) for address in browser.requests), browser.requests


def column(page, name):
    place = page.run(f"[...document.querySelectorAll('#rows thead th')].findIndex(h => h.dataset.name === '{name}')")
    return page.run(f"[...document.querySelectorAll('#rows tbody tr')].map(r => r.cells[{place}].textContent)")


def choose(page, name, value):
    page.run(
        f"(() => {{ const e = document.querySelector('#filters [name={name}]'); e.value = {json.dumps(value)};"
        " e.dispatchEvent(new Event('input', {bubbles: true})); })()"
    )


def test_filters(page):
    assert len(column(page, "attack")) == 8
    choose(page, "attack", "dlg")
    assert set(column(page, "attack")) == {"dlg"}
    choose(page, "defense", "sign")
    assert len(column(page, "attack")) == 2
    assert page.run("document.querySelector('#count').textContent").startswith("2 of 8 sentences")
    hidden = "[...document.querySelectorAll('#scenarios tbody tr')].filter(r => r.hidden).length"
    assert page.run(hidden) == 1  # the table of scenarios follows
    choose(page, "words", "LOAN")
    assert len(column(page, "attack")) == 1
    page.run("document.querySelector('#filters button[type=reset]').click()")
    assert (
        page.run("new Promise(r => setTimeout(() => r(document.querySelectorAll('#rows tbody tr').length), 20))") == 8
    )
    choose(page, "kind", "whole")
    assert len(column(page, "attack")) == 1
    choose(page, "words", "no such words")
    assert column(page, "attack") == []


def test_sorting_by_keyboard(page):
    """A heading is a button: focus and Enter sort, again turns round, and aria-sort tells it."""
    heading = "document.querySelector('#rows th[data-name=rougeL]')"
    page.run(f"{heading}.querySelector('button').focus()")
    page.press("Enter", 13, "\r")
    falling = [float(value) for value in column(page, "rougeL")]
    assert page.run(f"{heading}.getAttribute('aria-sort')") == "descending"
    assert falling == sorted(falling, reverse=True)
    page.press("Enter", 13, "\r")
    assert [float(value) for value in column(page, "rougeL")] == sorted(falling)
    assert page.run(f"{heading}.getAttribute('aria-sort')") == "ascending"
    page.run("document.querySelector('#rows th[data-name=attack] button').click()")
    assert column(page, "attack") == sorted(column(page, "attack"))
    assert page.run(f"{heading}.getAttribute('aria-sort')") == "none"
    page.run("document.querySelectorAll('#scenarios th button')[0].click()")
    defenses = "[...document.querySelectorAll('#scenarios tbody tr')].map(r => r.cells[0].textContent)"
    assert page.run(defenses) == ["none", "sign"]
    page.run("document.querySelectorAll('#scenarios th button')[0].click()")
    assert page.run(defenses) == ["sign", "none"]


def test_hostile_text_is_text(page):
    assert page.run("document.title").startswith("gradleak: ")
    assert page.run("document.querySelectorAll('img, #rows script, dialog script').length") == 0
    assert page.run(f"document.querySelector('#rows').textContent.includes({json.dumps(HOSTILE)})")
    page.run("[...document.querySelectorAll('#rows .open')].find(b => b.textContent.includes('ward six')).click()")
    assert page.run(f"document.querySelector('dialog').textContent.includes({json.dumps(HOSTILE)})")
    assert page.run("document.title").startswith("gradleak: ")


def test_a_script_that_got_in_could_not_run(page):
    page.run(
        "document.body.append(Object.assign(document.createElement('script'), {textContent: 'document.title = 1'}))"
    )
    assert page.run("document.title").startswith("gradleak: ")
    assert len(page.complaints) == 1  # the policy says so
    page.events.clear()


def test_one_sentence(page):
    """Every attempt on a sentence, the best first; Escape closes and gives the focus back."""
    page.run("document.querySelector('#rows .open').focus()")
    page.press("Enter", 13, "\r")
    assert page.run("document.querySelector('dialog').open")
    assert page.run("document.querySelectorAll('#one-body tbody tr').length") == 4
    assert page.run("document.querySelector('#one-body caption').textContent") == "4 attempts, the best first"
    page.press("Escape", 27)
    assert not page.run("document.querySelector('dialog').open")
    assert page.run("document.activeElement.className") == "open"


def test_theme(page):
    colour = "getComputedStyle(document.body).backgroundColor"
    light = page.run(colour)
    page.media(scheme="dark")
    dark = page.run(colour)
    assert light != dark
    pick = (
        "(() => {{ const e = document.querySelector('#theme'); e.value = '{}';"
        " e.dispatchEvent(new Event('change')); }})()"
    )
    page.run(pick.format("light"))
    assert page.run(colour) == light
    page.media()
    page.run(pick.format("dark"))
    assert page.run(colour) == dark
    page.run(pick.format(""))
    assert page.run(colour) == light


def test_print(page):
    """On paper: no controls, black on white in any theme, everything open."""
    page.media(scheme="dark")
    assert page.pdf().startswith(b"%PDF")
    page.media("print", scheme="dark")
    shown = "getComputedStyle(document.querySelector('{}')).display"
    assert page.run(shown.format("#filters")) == page.run(shown.format("nav")) == "none"
    assert page.run("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    page.run("window.dispatchEvent(new Event('beforeprint'))")
    assert page.run("[...document.querySelectorAll('details')].every(d => d.open)")
    assert page.run("document.querySelectorAll('#rows tbody tr').length") == 8


def test_exports_are_those_of_the_command(page, folder):
    page.run(
        "URL.createObjectURL = blob => { window.saved = blob.text(); return 'blob:none' };"
        " HTMLAnchorElement.prototype.click = function () { window.named = this.download }"
    )
    page.run("document.querySelector('[data-export=csv]').click()")
    rows = named_rows(folder.results)
    saved = page.run("window.saved")
    assert page.run("window.named") == "sentences.csv"
    ours = list(csv.reader(io.StringIO(as_csv(rows))))
    theirs = list(csv.reader(io.StringIO(saved)))
    assert theirs[0] == list(rows[0])
    assert [row[:8] for row in theirs] == [row[:8] for row in ours]
    assert any(row[7].startswith("'=loan") for row in theirs)  # no spreadsheet runs it
    choose(page, "attack", "dlg")
    page.run("document.querySelector('[data-export=json]').click()")
    assert json.loads(page.run("window.saved")) == [row for row in rows if row["attack"] == "dlg"]


def test_it_can_be_used_without_eyes_or_mouse(page):
    assert page.run("document.documentElement.lang") == "en"
    assert page.run("document.querySelectorAll('main, header, nav').length") == 3
    unnamed = (
        "[...document.querySelectorAll('button, input, select, dialog')].filter(e => !(e.textContent.trim() ||"
        " e.labels?.length || e.getAttribute('aria-label') || e.getAttribute('aria-labelledby'))).length"
    )
    assert page.run(unnamed) == 0
    assert page.run("[...document.querySelectorAll('table')].filter(t => !t.caption).length") == 0
    assert page.run("[...document.querySelectorAll('thead th')].filter(h => h.scope !== 'col').length") == 0
    assert page.run("[...document.querySelectorAll('svg')].every(s => s.getAttribute('aria-label'))")
    assert page.run("document.querySelector('#count').getAttribute('role')") == "status"
    assert page.run(  # links within the page lead somewhere
        "[...document.querySelectorAll('a[href^=\"#\"]')].every(a => document.querySelector(a.getAttribute('href')))"
    )
    page.run("document.activeElement.blur(); window.scrollTo(0, 0)")
    page.press("Tab", 9)
    assert page.run("document.activeElement.className") == "skip"


def luminance(colour):
    parts = [int(value) / 255 for value in re.findall(r"\d+", colour)[:3]]
    red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast(page, scheme):
    """WCAG AA: 4.5 to 1 for text on what lies behind it."""
    page.media(scheme=scheme)
    pairs = page.run("""(() => {
      const behind = e => { for (; e; e = e.parentElement) {
        const c = getComputedStyle(e).backgroundColor; if (/^rgb\\(/.test(c)) return c; } return "rgb(255,255,255)" };
      return [...document.querySelectorAll("h1, p, a, td, th, label, button, select, mark, .miss, .level, .range")]
        .filter(e => e.checkVisibility() && !e.closest(".heat"))
        .map(e => [getComputedStyle(e).color, behind(e), e.className || e.tagName]);
    })()""")
    assert len(pairs) > 50
    for text, ground, name in pairs:
        high, low = sorted((luminance(text), luminance(ground)), reverse=True)
        assert (high + 0.05) / (low + 0.05) >= 4.5, (name, text, ground)


def test_no_sideways_scrolling_on_a_phone(page):
    page.size(390, 800)
    assert page.run("document.documentElement.scrollWidth") <= 390
    page.size(1200, 900)


def test_many_sentences_are_drawn_as_they_are_asked_for(browser, tmp_path):
    base = sample_results()
    trials = [base.trials[i % 2].model_copy(update={"index": i, "seed": i}) for i in range(250)]
    browser.open(write_report(base.model_copy(update={"trials": trials}), tmp_path))
    drawn = "document.querySelectorAll('#rows tbody tr').length"
    assert browser.run(drawn) == 100
    browser.run("document.querySelector('#more').click()")
    assert browser.run(drawn) == 200
    assert browser.run("document.activeElement.closest('tr').rowIndex") == 101  # the focus goes to the first new one
    browser.run("document.querySelector('#more').click()")
    assert browser.run(drawn) == 250
    assert browser.run("document.querySelector('#more').hidden")
    assert browser.complaints == []


def test_a_comparison_needs_no_script(browser, tmp_path):
    first, second = several()[0], several()[3]
    browser.open(write_comparison(compare([first], [second], ("a", "b")), tmp_path))
    assert browser.run("document.querySelectorAll('script').length") == 0
    assert browser.run(f"document.body.textContent.includes({json.dumps(HOSTILE)})")
    assert browser.complaints == []
    assert len(browser.requests) == 1
