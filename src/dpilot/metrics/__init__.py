"""Figures of how good a model is, from one noisy release on held-out records, each with its intervals.

Promises one Gaussian release a table, and that every figure is computed from it alone. Imports mechanism and below.
"""
