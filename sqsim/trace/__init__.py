# SPDX-License-Identifier: Apache-2.0
"""Agent traces: their schema, their files, their import and their statistics."""
