"""Chunks replayed as CUDA graphs.

Promises: a replayed chunk gives what a launched one gives, for the same public number of rows; whether a chunk is
replayed depends on shapes, settings and the public state of the model. May import: all of the engine.
"""
