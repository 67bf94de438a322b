# SPDX-License-Identifier: Apache-2.0
"""The simulation of a scenario in simulated time; the only room that imports SimPy."""
