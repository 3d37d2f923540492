"""From the numbers of a Poisson batch to chunks of records, ready for the engine.

``reader`` reads records one by one and stacks those alike; ``unit_reader`` and ``unit_chunk`` do so for persons with
many rows, ``held_out`` for records that are scored.

Promises: what a record becomes depends on that record alone; one that cannot be read is a null record, and raises
nothing. May import: data, the form of a chunk in engine, and ``train.randomness``.
"""
