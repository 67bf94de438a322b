# SPDX-License-Identifier: Apache-2.0
"""Installation on this machine, the command that completes it, and tiny models for a CPU."""
