# SPDX-License-Identifier: Apache-2.0
"""The simulation's fidelity to a real server: recorded schedules, step times, fitted profiles, covered models and GPUs."""
