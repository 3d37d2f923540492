"""The types of columns, one file each kind; ``dpilot.data.column_types`` is their table.

Promises: a cell becomes numbers by itself and its declared column; any cell at all is read, as itself or as missing.
May import: the rest of data but schema and encoder, which use the table.
"""
