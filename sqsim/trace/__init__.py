# SPDX-License-Identifier: Apache-2.0
"""Agent traces: what was recorded, how it is stored, where it comes from."""
