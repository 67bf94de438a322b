# SPDX-License-Identifier: Apache-2.0
"""Parts that every page shares: head, first sentence, styles, plotly and the drawing script."""

from __future__ import annotations

import importlib.resources
import string
from collections.abc import Sequence

from plotly.offline import get_plotlyjs

from sqsim import __version__
from sqsim.report.html.markup import escape, unbroken

HELD = (
    "The recorded trajectory is held fixed: an agent that loses a response might act differently, "
    "and only the declared outcome model and live runs speak of that."
)
"""Every report's first sentence (SPEC.md, Words)."""


def _asset(name: str) -> str:
    return (importlib.resources.files("sqsim.report") / "templates" / name).read_text(encoding="utf-8")


def html_shell(title: str, body: str) -> str:
    """Write a self-contained page."""
    return string.Template(_asset("page.html")).substitute(
        title=escape(title),
        held=escape(HELD),
        css=_asset("page.css"),
        body=body,
        version=escape(__version__),
        plotly=get_plotlyjs(),
        script=_asset("page.js"),
    )


def contents(titles: Sequence[tuple[str, str]]) -> str:
    """Write links to the sections, and the switch that shows every digit."""
    items = "".join(f'<li><a href="#{ident}">{escape(title)}</a></li>' for ident, title in titles)
    digits = (
        '<p class="digits"><label><input type="checkbox" id="digits" autocomplete="off"> '
        "show every digit in the tables, as the JSON has it</label></p>"
    )
    return f'<nav aria-label="Contents"><ol>{items}</ol></nav>{digits}'


def listed(kind: str, lines: Sequence[str]) -> str:
    """Write a list of sentences, the head of each in bold."""
    items = "".join(f"<li>{_emphasised(line)}</li>" for line in lines)
    return f'<ul class="{kind}">{items}</ul>' if lines else ""


def _emphasised(line: str) -> str:
    """Set the head of a sentence, up to its colon or question mark, in bold."""
    ends = [line.index(mark) + 1 for mark in (": ", "? ") if mark in line]
    return (
        f"<strong>{unbroken(line[: min(ends)])}</strong>{unbroken(line[min(ends) :])}"
        if ends
        else unbroken(line)
    )
