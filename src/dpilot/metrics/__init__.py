"""Figures of how good a model is, from one noisy release on held-out records, each with its intervals."""
