"""Fits of real tables through the one pipeline: exact test figures, and the time and memory of commands."""
