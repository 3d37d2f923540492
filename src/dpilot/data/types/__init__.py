"""The types of columns, one file each kind; ``dpilot.data.column_types`` is their table."""
