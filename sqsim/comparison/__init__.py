# SPDX-License-Identifier: Apache-2.0
"""Comparison of runs: side by side, by token accounting, measured with simulated."""
