"""From a table and its schema to a private model: read, pay, train, score, record."""
