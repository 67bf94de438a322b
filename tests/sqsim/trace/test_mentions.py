# SPDX-License-Identifier: Apache-2.0
"""References found in text: page numbers where the browser gives them, identifiers elsewhere (METHOD.md, "last use")."""

from __future__ import annotations

from sqsim.trace.evidence.identifiers import identifiers
from sqsim.trace.mentions import Mentions


def test_identifiers_are_urls_paths_ids_and_long_numbers():
    text = (
        'See https://example.org/a?b=1. File src/app/main.py:3, user mia_li_3668 (flight "HAT136"), '
        "ticket SDZQKO, phone 5551234, mail a.b@example.com; but not 2024, word, U2, I/O or NASA."
    )
    assert identifiers(text) == {
        "https://example.org/a?b=1",
        "src/app/main.py",
        "mia_li_3668",
        "HAT136",
        "SDZQKO",
        "5551234",
        "a.b@example.com",
    }


def derived(*steps: tuple[str, str, str]) -> list[list[int]]:
    """Each step: what the model calls, what it says, what the tool responds; responses take cursors 0, 1, ..."""
    mentions = Mentions()
    mentions.heard("You are at /home/agent/work. Ask about order 100200.")
    uses = []
    for cursor, (called, said, response) in enumerate(steps):
        uses.append(mentions.used([("get", called, None)] if called else [], said))
        mentions.opened(cursor, "get", response)
    assert not mentions.recorded
    return uses


def test_an_identifier_refers_to_the_newest_response_that_holds_it():
    uses = derived(
        ("find user", "", "user_77 lives in Rome"),
        ("orders of user_77", "", "user_77 has ORDER_5551"),
        ("details of ORDER_5551", "", "nothing"),
        ("", "user_77 ordered ORDER_5551", ""),
    )
    assert uses == [[], [0], [1], [1]], "to lose the first response loses nothing that the second does not show"


def test_what_stood_in_the_context_before_is_nobodys():
    uses = derived(
        ("look at item-42", "", "item-42 belongs to order 100200"),
        ("item-42 and 100200 in /home/agent/work", "", ""),
    )
    assert uses == [[], []], "the question, or the model itself, named them first"


def test_a_failed_call_and_a_user_own_nothing():
    mentions = Mentions()
    mentions.heard("Error: no such user_9")
    assert mentions.used([("get", "user_9", None)], "") == []


def pages() -> Mentions:
    """A gpt-oss browser after a search (page 0), a failed call, and an opened page (page 1)."""
    mentions = Mentions()
    mentions.opened(0, "browser.search", "[0] Results (web-search://q)\n**viewing lines [0 - 20] of 30**")
    mentions.heard("Error: no page")
    mentions.opened(1, "browser.open", "[1] Page (https://a.example/x)\n**viewing lines [0 - 50] of 90**")
    return mentions


def test_gpt_oss_pages_are_named_by_number():
    mentions = pages()
    assert mentions.recorded
    assert mentions.used([("browser.open", "", {"cursor": 0, "id": 3})], "") == [0]
    assert mentions.used([("browser.find", "", {"pattern": "x", "cursor": 1})], "") == [1]
    assert mentions.used([], "As the page says【1†L9-L11】 and 【0†L2】.") == [0, 1]


def test_the_latest_page_is_the_default():
    """gpt-oss's simple_browser: cursor defaults to -1, the latest page; a URL needs no page."""
    mentions = pages()
    assert mentions.used([("browser.open", "", {"id": 3})], "") == [1]
    assert mentions.used([("browser.find", "", {"pattern": "x", "cursor": -1})], "") == [1]
    assert mentions.used([("browser.open", "", {"id": "https://b.example"})], "") == []
    assert mentions.used([("browser.search", "", {"query": "y"})], "") == []


def test_pages_that_do_not_exist_and_arguments_that_are_no_object_refer_to_nothing():
    mentions = pages()
    assert mentions.used([("browser.open", "", {"cursor": 9})], "【7†L1】") == []
    assert mentions.used([("browser.open", "", None)], "") == []


def test_with_numbered_pages_identifiers_do_not_count():
    mentions = pages()
    assert mentions.used([], "https://a.example/x") == []


def test_a_compaction_closes_everything():
    mentions = pages()
    mentions.closed()
    assert mentions.used([], "【1†L9】") == []
