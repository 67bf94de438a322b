# SPDX-License-Identifier: Apache-2.0
"""HTML pages from records and metrics. Nothing here computes a result."""
