# SPDX-License-Identifier: Apache-2.0
"""Pages: one file for each kind of page."""
