"""Other people's ways to tune, under the same ledger: one paper a file."""
