"""Tables and data sets that do not fit in memory."""
