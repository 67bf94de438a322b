# SPDX-License-Identifier: Apache-2.0
"""Callbacks for proxies in front of model servers. They need nothing of this package, so one file may be copied."""
