"""One private run: plan, step, trainer, and the parts for a loop of your own.

``trainer`` runs a ``job`` (model, loss, plan, options), ``step`` is the private step, ``own_loop`` the same for a loop
of your own; rooms inside: ``batches`` (records read into chunks) and ``checkpoint`` (a run on disk).

Promises: each step is one release under one receipt, paid before the first record is read. May import: engine,
clipping, mechanism, private_sum, sampling, data, metrics and what is below; neither transfer nor linear.
"""
