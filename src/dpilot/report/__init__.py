"""Pages, cards and comparisons of what was released: ``page`` is the report, ``card`` the model card.

Promises: a page is a pure function of a record (``records.py``) and of the files beside it in its run folder; it costs
nothing, and loads nothing from elsewhere. May import: records, privacy, metrics, clipping and train; not fit.
"""
