# SPDX-License-Identifier: Apache-2.0
"""Tools for every room: strict parts of a scenario, keyed random numbers, YAML and JSON, directories, workers."""
