# SPDX-License-Identifier: Apache-2.0
"""Checks of policies of any origin: their classes, keys, answers, proposals to plans, and the digest of their source."""
