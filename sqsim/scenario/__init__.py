# SPDX-License-Identifier: Apache-2.0
"""The strict scenario of a run: its engine and load, its agents and tasks, and all that it resolves to."""
