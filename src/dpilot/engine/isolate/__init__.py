"""Records computed apart: engines that need not know where the records lie in a tensor.

``vmap`` shows the model one record at a time and computes all of them at once, ``loop`` computes one after the other,
and ``copies`` computes a record as a whole chunk of itself.

Promises: a record's gradient is a function of that record, its own draws and the public state, or NoRule is raised.
May import: base, batch, generators, state, and the list in trace/ of what takes values out of torch; no layer.
"""
