"""Where users already are: thin and optional, each a module that needs its package.

Promises: they show what records hold, declared and released values, and add no guarantee of their own. May import:
everything but cli.
"""
