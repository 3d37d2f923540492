"""Tuning inside one budget: what it reaches, what it costs, and where the defaults come from."""
