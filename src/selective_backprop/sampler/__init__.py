"""Planned epochs: which ids an epoch loads, decided at its start from the ledger."""
