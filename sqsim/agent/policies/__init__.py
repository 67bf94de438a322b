"""Eviction policies, one file each; `base.py` is the contract."""
