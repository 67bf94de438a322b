# SPDX-License-Identifier: Apache-2.0
"""Kinds of textual evidence that a model call refers to an earlier tool response, one file a kind (contract: `base.py`)."""
