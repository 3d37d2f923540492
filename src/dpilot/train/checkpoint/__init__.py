"""A run on disk: its state between steps (``store``), its secret, its witness, and what is claimed (``statement``).

Promises: a file is whole or not there; a run that is resumed repeats itself exactly or stops, and no noise covers two
sums. Files are data: loading one runs no code. May import: train's plan, options and step, and what is below train.
"""
