"""The command line, one file a command; ``main`` is the table of them.

Promises: a command prints declared and released values only, says what it will spend before it does, and ends with a
code that scripts can read. May import: everything but integrations; ``console`` alone imports the terminal library.
"""
