"""The page: complete in itself, right in its figures, and a browser shows it."""

from __future__ import annotations

import dataclasses
import functools
import html.parser
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from railweave.bench.result import RailBytes, Result, Run
from railweave.lab import LabSpec
from railweave.report.exchange import page

_CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def make_run(nodes: int = 2, matrices: int = 4, wrong: str | None = None) -> Run:
    spec = LabSpec(nodes, 4)
    nics = [RailBytes(node, rail, 8_000_000 * (node == 0), 8_000_000 * (node == 1)) for node in range(nodes) for rail in range(4)]
    one = [RailBytes(nic.node, nic.rail, 4 * nic.tx_bytes * (nic.rail == 0), 4 * nic.rx_bytes * (nic.rail == 0)) for nic in nics]
    results = []
    for number in range(matrices):
        name = f"hot-pair:{number + 1}MiB"
        results.append(Result("single-path", name, [0.68, 0.69, 0.70], 32 << 20, 0.168, None, one))
        results.append(Result("railweave", name, [0.171, 0.172, 0.174], 32 << 20, 0.168, wrong, nics))
        results.append(Result("openmpi", name, [0.68, 0.70, 0.75], 32 << 20, 0.168, None, one))
    machine = {"cpu": "A <CPU> & more", "cores": 4, "memory_bytes": 1 << 34, "kernel": "6.1"}
    return Run("2026-01-02T03:04:05+00:00", "railweave bench --lab '2x4'", machine, {"railweave": "0"}, spec.to_json(), "lab", results)


@functools.cache
def a_page() -> str:
    """Drawing one takes a second."""
    return page(make_run())


class Balanced(html.parser.HTMLParser):
    """Fails on a tag that is not closed, or closed without having been opened."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_needs_nothing_else() -> None:
    text = a_page()
    # names of XML namespaces are no addresses to fetch
    assert not re.findall(r"https?://(?!www\.w3\.org/)", text)
    assert not re.findall(r"<(?:script|link|img|iframe)\b", text)
    assert not re.findall(r"url\((?!#)", text)
    assert "@import" not in text


def test_page_is_well_formed_with_unique_ids() -> None:
    text = a_page()
    parser = Balanced()
    parser.feed(text)
    assert parser.open == []
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', text)) <= set(ids)


def test_page_says_what_was_found() -> None:
    text = a_page()
    assert "4.01×" in text  # 0.69 s over 0.172 s
    assert "<b>98%</b>" in text  # least and most are equal
    assert "An exchange over rails</h1>" in text
    assert "or several links together over the routes that Railweave&#x27;s planner considers can pass" in text
    assert "no routing" not in text
    assert "times are medians of 3 repetitions" in text
    assert "A &lt;CPU&gt; &amp; more" in text
    assert '<code class="command"><span>railweave</span> <span>bench</span> <span>--lab</span> <span>&#x27;2x4&#x27;</span></code>' in text
    assert "2026-01-02T03:04:05+00:00" in text


def test_wrong_bytes_cannot_be_overlooked() -> None:
    text = page(make_run(wrong="rank 2 got a wrong byte"))
    assert 'class="bad">WRONG: rank 2' in text
    assert "Not every byte was right" in text


def changed(**changes: object) -> Run:
    """A run of one matrix, all of whose results have these values."""
    run = make_run(matrices=1)
    return dataclasses.replace(run, results=[dataclasses.replace(each, **changes) for each in run.results])  # type: ignore[arg-type]


def test_small_messages_have_figures() -> None:
    text = page(changed(seconds=[0.0021], bytes=56 << 10, bound_seconds=8.4e-5, rails=[RailBytes(0, 0, 900, 0)]))
    heads, cells = re.findall("<th [^>]*>([^<]*)<", text), re.findall("<td [^>]*>([^<]*)<", text)
    assert heads == [
        *("matrix", "policy", "median ms", "fastest", "slowest", "MB/s", "speed-up"),
        *("bound ms", "of bound", "payload KB", "bytes"),
    ]
    assert cells[2:11] == ["2.10", "2.10", "2.10", "27.3", "1.00", "0.0840", "0.0400", "57.3", "ok"]
    assert "<!-- MB/s -->" in text
    assert "<!-- B -->" in text
    assert "<b>4%</b>" in text
    assert "times are of one repetition." in text


def test_nothing_to_move_has_a_page() -> None:
    assert page(changed(bytes=0, bound_seconds=0.0, rails=[])).count("<svg") == 2


def test_any_name_is_text() -> None:
    """Formulas of dollar signs, quotes in attributes, and a policy of another version."""
    text = page(changed(matrix="a$\\frac$<b>.csv", policy='new"><b>'))
    assert "a$\\frac$&lt;b&gt;.csv" in text
    assert 'new"><b>' not in text
    assert 'aria-label="Effective rates of new&quot;&gt;&lt;b&gt;"' in text
    assert text.count("<svg") == 2


def test_equal_results_give_equal_pages() -> None:
    assert page(make_run()) == a_page()


@pytest.mark.parametrize(("nodes", "matrices"), [(2, 1), (1, 2), (16, 7)])
def test_other_sizes(nodes: int, matrices: int) -> None:
    assert page(make_run(nodes, matrices)).count("<svg") == 2


@pytest.mark.browser
@pytest.mark.skipif(_CHROMIUM is None, reason="no Chromium")
def test_browser_shows_it(tmp_path: Path) -> None:
    from matplotlib import image

    path, picture = tmp_path / "page.html", tmp_path / "page.png"
    path.write_text(a_page())
    assert _CHROMIUM is not None
    command = [_CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/profile", "--window-size=1280,1600"]
    shown = subprocess.run([*command, f"--screenshot={picture}", path.as_uri()], capture_output=True, text=True, timeout=500, check=False)
    assert picture.exists(), shown.stderr
    pixels = image.imread(picture)[:, :, :3]
    assert pixels.shape[:2] == (1600, 1280)
    # Bars in the colours of the policies are really there: railweave's blue and OpenMPI's orange.
    for colour in ((0x00, 0x72, 0xB2), (0xE6, 0x9F, 0x00)):
        near = abs(pixels * 255 - colour).max(axis=2) < 4
        assert near.sum() > 2000
    dom = subprocess.run([*command, "--dump-dom", path.as_uri()], capture_output=True, text=True, timeout=500, check=True).stdout
    assert dom.count("<svg") == 2
    assert "Which rails carried it" in dom
