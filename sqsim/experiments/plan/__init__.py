# SPDX-License-Identifier: Apache-2.0
"""Plans and regions: searches over whole runs for the fewest GPUs under an SLO, and for the loads where SideQuest pays."""
