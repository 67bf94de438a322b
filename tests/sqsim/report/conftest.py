# SPDX-License-Identifier: Apache-2.0
"""The fixture study on disk, and its page."""

from __future__ import annotations

import fixtures
import pytest

from sqsim.report.pages.runs_page import build_page


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return fixtures.write_study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def page(study):
    return build_page([study])
