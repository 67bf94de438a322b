"""Importers of recorded traces, one file a format; `base.py` is the contract."""
