# SPDX-License-Identifier: Apache-2.0
"""Logs of Inspect: `.json`, and the zip-based `.eval`.

- `archive`: the values of an `.eval` file, sample by sample.
- `sample`: a sample's messages with the usage and times of its events.
- `format`: the importer.
"""

from sqsim.trace.formats.inspect_log.format import InspectLog

__all__ = ["InspectLog"]
