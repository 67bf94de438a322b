# SPDX-License-Identifier: Apache-2.0
"""Runs on a real server: a scenario in, the same record as a simulation's out."""
