# SPDX-License-Identifier: Apache-2.0
"""The page in a real browser: every figure is drawn, nothing is asked of the network, nothing is logged as an error."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import fixtures
import pages
import pytest

from sqsim.report.pages.runs_page import build_page
from tests.sqsim import real_records

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None
)

pytestmark = pytest.mark.skipif(
    CHROMIUM is None, reason="no chromium or chrome on the PATH: the page was not opened in a browser"
)

# Uses the page as a reader would, then writes down what was found.
VISIT = """
<script>
addEventListener('error', (event) => { document.body.dataset.failed = event.message; });
setTimeout(() => {
  const all = (query) => Array.from(document.querySelectorAll(query));
  const drawn = (div) => div.querySelector('svg.main-svg') !== null;
  const found = { shown: all('.plot').filter((div) => div.offsetParent).every(drawn) };
  all('details').forEach((one) => { one.open = true; });
  all('select[data-chooser]').forEach((select) => Array.from(select.options).forEach((option) => {
    select.value = option.value;
    select.dispatchEvent(new Event('change'));
  }));
  found.undrawn = all('.plot').filter((div) => !drawn(div)).length;
  found.figures = all('.plot').length;
  const filter = document.querySelector('[data-filter]');
  if (filter) {
    const rows = () => document.querySelectorAll('#' + filter.dataset.filter + ' tbody tr:not([hidden])').length;
    found.rows = rows();
    const wrong = document.querySelector('[data-wrong="' + filter.dataset.filter + '"]');
    wrong.click();
    found.wrong = rows();
    const table = document.querySelector('#' + filter.dataset.filter + ' table');
    table.querySelectorAll('thead button')[4].click();
    table.querySelectorAll('thead button')[4].click();
    found.sorted = Array.from(table.tBodies[0].rows).map((row) => JSON.parse(row.cells[4].querySelector('data').value));
  }
  const button = document.querySelector('[data-variant]');
  if (button) {
    const plot = all('.plot').find((div) => div.data && div.data.some((t) => t.legendgroup === button.dataset.variant));
    if (plot) {
      button.click();
      found.hidden = plot.data.filter((t) => t.legendgroup === button.dataset.variant).every((t) => t.visible === false);
      button.click();
    }
  }
  document.getElementById('digits').click();
  found.digits = all('data.number').every((data) => data.textContent === data.value);
  found.tables = Array.from(new Set(all('table').map((one) => getComputedStyle(one).display))).sort();
  found.wide = document.documentElement.scrollWidth <= document.documentElement.clientWidth;
  document.body.dataset.found = JSON.stringify(found);
}, 500);
</script>
"""


def visit(page: str, directory, width: int = 1400):
    """Open a page, use it, and return what the visit found, the browser's console and the final DOM."""
    file = directory / "page.html"
    file.write_text(page.replace("</body>", VISIT + "</body>"))
    command = [
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", "--enable-logging=stderr",
        "--virtual-time-budget=20000", f"--window-size={width},1200", f"--user-data-dir={directory / 'profile'}",
        "--disable-background-networking", "--no-first-run", file.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
    match = re.search(r'data-found="([^"]*)"', done.stdout)
    assert match, f"the visit did not end: {console}"
    return json.loads(match.group(1).replace("&quot;", '"')), console, done.stdout


@pytest.mark.parametrize("width", [1400, 480])
def test_study_is_drawn_and_usable(study, tmp_path, width):
    """No console line at all: a request would be refused by the page's own policy, aloud."""
    page = build_page([study])
    found, console, dom = visit(page, tmp_path, width)
    assert console == []
    assert "data-failed" not in dom
    assert found["figures"] == len(pages.specs(page))
    assert (found["undrawn"], found["shown"], found["hidden"]) == (0, True, True)
    assert found["digits"], "the switch shows the JSON's own digits"
    assert 0 < found["wrong"] < found["rows"]
    assert found["sorted"] == sorted(found["sorted"], reverse=True)
    assert found["wide"], "nothing makes the page itself scroll sideways"
    assert_run_times_equal_the_json(dom)


def assert_run_times_equal_the_json(dom):
    """What the tables show with every digit switched on."""
    (table,) = pages.tables(dom, "Throughput and task time against tasks at a time (FRAMES-like): every point")
    head, *rows = table["rows"]
    column = [cell["text"] for cell in head].index("Run time, all tasks (s)")
    shown = {(row[0]["text"], row[1]["text"]): row[column]["text"] for row in rows}
    points = fixtures.study_json()["panels"][0]["points"]
    assert len(shown) == len(points)
    for point in points:
        place = (point["labels"]["variant"], str(point["labels"]["concurrency"]))
        assert shown[place] == json.dumps(point["metrics"]["run_time_s"])


def test_single_run_is_drawn(study, tmp_path):
    found, console, _ = visit(build_page([study / "records" / "none-session"]), tmp_path)
    assert console == []
    assert (found["undrawn"], found["shown"]) == (0, True)


@pytest.mark.parametrize("width", [1400, 480])
def test_measured_against_simulated_is_drawn(tmp_path, width):
    paths = real_records.write(tmp_path, {"r1": 1.0, "r2": 1.2})
    found, console, _ = visit(build_page(paths), tmp_path, width)
    assert console == []
    assert (found["undrawn"], found["shown"], found["wide"], found["digits"]) == (0, True, True, True)


def test_a_request_would_be_seen(study, tmp_path):
    """The tests above rest on this: what asks the network is refused by the page's policy and logged."""
    page = build_page([study / "records" / "none-radix"])
    _, console, _ = visit(
        page.replace("<main>", '<main><img alt="" src="https://example.org/x.png">'), tmp_path
    )
    assert any("Content Security Policy" in line for line in console)


def test_page_of_a_study_without_points_logs_nothing(tmp_path):
    study = fixtures.study_json()
    for panel in study["panels"]:
        panel["points"] = []
    found, console, _ = visit(build_page([fixtures.write_study(tmp_path / "empty", study)]), tmp_path)
    assert console == []
    assert found["figures"] == 0
