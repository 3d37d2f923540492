"""The tables of five papers, each from one command; see README.md above."""
