# SPDX-License-Identifier: Apache-2.0
"""The server's side: scheduler and KV cache (serving), step times and capacity (cost). Pure: no clock, no SimPy."""
