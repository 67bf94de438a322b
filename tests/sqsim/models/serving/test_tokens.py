# SPDX-License-Identifier: Apache-2.0
"""Token runs behave like the token sequences they stand for."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from sqsim.models.serving.tokens import Run, common_prefix, concat, count, literal, split, whole

runs = st.tuples(st.integers(0, 3), st.integers(0, 6), st.integers(0, 6)).map(
    lambda t: (Run(t[0], min(t[1:]), max(t[1:])),) if t[1] != t[2] else ()
)
sequences = st.lists(runs, max_size=6).map(lambda parts: concat(*parts))


def spelled(tokens):
    return [(segment, index) for segment, start, stop in tokens for index in range(start, stop)]


@given(sequences, sequences)
def test_concat_is_concatenation_in_normal_form(a, b):
    joined = concat(a, b)
    assert spelled(joined) == spelled(a) + spelled(b)
    assert all(x.segment != y.segment or x.stop != y.start for x, y in pairwise(joined))
    assert count(joined) == count(a) + count(b)


@given(sequences, st.integers(-2, 40))
def test_split_is_slicing(tokens, at):
    head, tail = split(tokens, at)
    assert spelled(head) + spelled(tail) == spelled(tokens)
    assert count(head) == min(max(at, 0), count(tokens))
    assert concat(head, tail) == tokens


@given(sequences, sequences)
def test_common_prefix_counts_equal_tokens(a, b):
    shared = common_prefix(a, b)
    x, y = spelled(a), spelled(b)
    assert x[:shared] == y[:shared]
    assert shared in {len(x), len(y)} or x[shared] != y[shared]


def test_recorded_ids_are_segments_of_one_token():
    assert literal([7, 7, 9]) == (Run(7, 0, 1), Run(7, 0, 1), Run(9, 0, 1))
    assert common_prefix(literal([7, 8]), literal([7, 9])) == 1
    assert whole(3, 0) == ()
