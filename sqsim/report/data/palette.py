# SPDX-License-Identifier: Apache-2.0
"""Assign each variant a fixed colour, marker and dash, so that colour is never the only sign.

Colours are Okabe and Ito's (2008), which readers with any common colour-vision deficiency can tell apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from sqsim.report.html.markup import escape


class Look(NamedTuple):
    """Look of one variant. `dash` and `marker` are plotly names; `strokes` is the same dash in SVG."""

    colour: str
    marker: str
    dash: str


_KNOWN = {
    "none / radix": Look("#3d3d3d", "circle", "solid"),
    "none / session": Look("#8a8a8a", "circle-open", "dash"),
    "keep_last / reprefill": Look("#b87700", "square", "solid"),
    "keep_last / in_place": Look("#b87700", "square-open", "dash"),
    "sidequest / reprefill": Look("#56b4e9", "diamond-open", "dash"),
    "sidequest / in_place": Look("#0072b2", "diamond", "solid"),
    "oracle / reprefill": Look("#009e73", "triangle-up-open", "dashdot"),
    "oracle / in_place": Look("#009e73", "triangle-up", "dot"),
}

_SPARE = (
    Look("#d55e00", "cross", "solid"),
    Look("#aa4499", "x", "dash"),
    Look("#c9a800", "triangle-down", "solid"),
    Look("#7f5539", "pentagon", "dashdot"),
    Look("#117733", "star", "dash"),
    Look("#882255", "hexagon", "dot"),
)

_STROKES = {"solid": "", "dash": "6 3", "dot": "2 3", "dashdot": "7 3 2 3"}

# Outlines in a 10 x 10 box around (0, 0).
_SHAPES = {
    "circle": "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0Z",
    "square": "M-4,-4H4V4H-4Z",
    "diamond": "M0,-5L5,0L0,5L-5,0Z",
    "triangle-up": "M0,-5L5,4H-5Z",
    "triangle-down": "M0,5L5,-4H-5Z",
    "cross": "M-5,-1.5H-1.5V-5H1.5V-1.5H5V1.5H1.5V5H-1.5V1.5H-5Z",
    "x": "M-4,-4L4,4M-4,4L4,-4",
    "pentagon": "M0,-5L5,-1L3,4H-3L-5,-1Z",
    "star": "M0,-5L1.5,-1.5H5L2,1L3,5L0,2.5L-3,5L-2,1L-5,-1.5H-1.5Z",
    "hexagon": "M-5,0L-2.5,-4H2.5L5,0L2.5,4H-2.5Z",
}


def _spare(number: int) -> Look:
    """Yield the spare looks in turn; from the second round on with the marker and the dash of another one."""
    turn, place = divmod(number, len(_SPARE))
    shape = _SPARE[(place + turn) % len(_SPARE)]
    return Look(_SPARE[place].colour, shape.marker, shape.dash)


class Palette:
    """Looks of all variants of a page, in order of first appearance.

    The project's own variants have a look of their own; others are given the spare ones in turn.
    """

    def __init__(self, variants: Iterable[str]) -> None:
        self._looks: dict[str, Look] = {}
        spare = 0
        for variant in variants:
            if variant in self._looks:
                continue
            if variant in _KNOWN:
                self._looks[variant] = _KNOWN[variant]
            else:
                self._looks[variant] = _spare(spare)
                spare += 1

    def look(self, variant: str) -> Look:
        """Return the look of a variant."""
        return self._looks[variant]

    def swatch(self, variant: str) -> str:
        """Draw a variant's line and marker; hidden from screen readers, which read the name next to it."""
        look = self._looks[variant]
        hollow = look.marker.endswith("-open")
        fill = "#fff" if hollow else look.colour
        return (
            '<svg class="swatch" viewBox="-17 -7 34 14" width="34" height="14" aria-hidden="true">'
            f'<path d="M-17,0H17" stroke="{look.colour}" stroke-width="2" stroke-dasharray="{_STROKES[look.dash]}"/>'
            f'<path d="{_SHAPES[look.marker.removesuffix("-open")]}" fill="{fill}" stroke="{look.colour}" '
            'stroke-width="1.5"/></svg>'
        )

    def key(self, variants: Iterable[str]) -> str:
        """Write the key of a group of figures. Each name is a button that hides or shows its variant everywhere."""
        buttons = "".join(
            f'<button type="button" aria-pressed="true" data-variant="{escape(variant)}">'
            f"{self.swatch(variant)}{escape(variant)}</button>"
            for variant in variants
        )
        return f'<div class="key" role="group" aria-label="Variants shown">{buttons}</div>'
