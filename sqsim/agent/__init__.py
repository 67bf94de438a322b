# SPDX-License-Identifier: Apache-2.0
"""The agent's side: task, turn loop, context, aux thread and the policy's gate. Pure: no clock, no I/O, no SimPy."""
