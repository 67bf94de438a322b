# SPDX-License-Identifier: Apache-2.0
"""Eviction policies: one file each with its keys, behaviour and needs; base.py is the contract, registry.py finds them."""

from sqsim.base.part import AfterEviction, Count, CountOrZero, Positive, Share
from sqsim.policies.base import AuxOptions, Choice, CursorView, Decision, Decisions, Gate, Policy, Script, View
from sqsim.policies.registry import BUILT_IN, POLICIES

__all__ = [
    "BUILT_IN",
    "POLICIES",
    "AfterEviction",
    "AuxOptions",
    "Choice",
    "Count",
    "CountOrZero",
    "CursorView",
    "Decision",
    "Decisions",
    "Gate",
    "Policy",
    "Positive",
    "Script",
    "Share",
    "View",
]
