"""Doors to other people's tools, each a module of its own: thin, and optional.

They log what records hold: declared and released values, and nothing else, so nothing sensitive can leave here.
"""
