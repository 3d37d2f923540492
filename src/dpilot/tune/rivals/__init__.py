"""Other people's ways to tune, under the same ledger: one paper a file.

Promises: their price is computed by the same accountants. May import: tune's tasks and outlays; tune imports no rival.
"""
