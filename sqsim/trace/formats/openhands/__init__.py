# SPDX-License-Identifier: Apache-2.0
"""Histories of OpenHands (`output.jsonl` of its evaluations).

- `events`: the older form, actions and observations.
- `kinds`: the form of its agent SDK, whose events have a `kind`.
- `history`: the reader that both write to.
- `format`: the importer.
"""

from sqsim.trace.formats.openhands.format import OpenHands

__all__ = ["OpenHands"]
