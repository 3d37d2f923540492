"""From a table, an array or pictures to a private model: one pipeline for every learner.

    declare -> plan -> health -> commit -> buy -> train -> score -> record

``pipeline`` is that line; ``learners/`` says what is trained. ``fit_table``, ``AutoClassifier``, ``AutoRegressor`` and
the command line are doors to it. Promises: one record moves only what is released under a receipt. May import tune,
train, transfer, linear and what is below; nothing below imports it.
"""
