# SPDX-License-Identifier: Apache-2.0
"""Experiments of many runs: studies, sweeps, intervals, plans, regions."""
