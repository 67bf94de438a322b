"""Runs held against each other: side by side, account against account, measured against simulated."""
