"""Tables as they are declared (schema), read (files, frames, cells), encoded and split.

Promises that what becomes of a record depends on that record and the schema alone, and that no value raises. Imports
statistics (to buy bounds) and what is below.
"""
