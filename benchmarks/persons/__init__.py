"""Persons with several rows: a unit, against what one would do by hand."""
