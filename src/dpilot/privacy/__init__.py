"""What it costs: budgets, events, accountants, calibration, selection, the batch rule, the ledger. No torch here."""
