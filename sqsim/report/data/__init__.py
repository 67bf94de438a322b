# SPDX-License-Identifier: Apache-2.0
"""What pages read: sources, groups of runs, and the name of each number."""
