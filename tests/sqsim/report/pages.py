# SPDX-License-Identifier: Apache-2.0
"""Reading a page as a test needs it: its tables with the exact value of every cell, its figures, its text."""

from __future__ import annotations

import html.parser
import json
import re


class _Tables(html.parser.HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.tables, self._row, self._cell = [], None, None

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag == "table":
            self.tables.append({"class": attrs.get("class", ""), "caption": "", "rows": []})
        elif tag == "caption" and self.tables:
            self._cell = self.tables[-1]["caption_cell"] = {"text": "", "values": []}
        elif tag == "tr":
            self._row = []
            self.tables[-1]["rows"].append(self._row)
        elif tag in ("td", "th") and self._row is not None:
            self._cell = {"text": "", "values": []}
            self._row.append(self._cell)
        elif tag == "data" and self._cell is not None:
            self._cell["values"].append(json.loads(attrs["value"]))

    def handle_endtag(self, tag):
        if tag in ("td", "th", "caption"):
            self._cell = None

    def handle_data(self, data):
        if self._cell is not None:
            self._cell["text"] += data


def tables(page, caption=""):
    """Every table whose caption contains `caption`: rows of cells with `text` and exact `values`."""
    reader = _Tables()
    reader.feed(body(page))
    return [table for table in reader.tables if caption in table["caption_cell"]["text"]]


def body(page):
    """The page without its scripts' program text (figure data stays)."""
    return page[page.index("<header>") : page.index("<noscript>")]


def specs(page):
    """The figures' data and layouts."""
    found = re.findall(r'<script type="application/json" class="spec">(.*?)</script>', body(page), re.DOTALL)
    return [json.loads(text) for text in found]


def text(page):
    """What a reader reads, without markup."""
    shown = re.sub(r"<script.*?</script>", "", body(page), flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]+>", " ", shown)).replace("\u00a0", " ")
