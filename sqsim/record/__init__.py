# SPDX-License-Identifier: Apache-2.0
"""A run's record, its files, and the metrics computed from it."""
