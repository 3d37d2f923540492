"""Models, losses and data that try to break the promise of one bound a record, and honest ones that must run.

case.py, catalogue/    what: each attack is one function that builds a model, a loss and records
judge.py               how: a whole run on D and on D plus one extreme record, with every released value frozen
honest.py              products in every spelling and architectures that must not be refused
generator.py           random programs, honest and mixing, as source
oracle.py              the truth: a float64 loop over records, each alone
test_*.py              the three questions, a few lines each

Not here, as a replay cannot show them or the library cannot know them: a data set whose ``dataset[i]`` reads other
records, or keeps a state; models that write files, sockets or shared memory, or start processes; hooks registered for
all modules of the process; randomness whose amount depends on a record (other records then draw other coins, which are
as good: the law is the same, but no pair of runs is comparable); timing; rounding that differs with the size of a
chunk, below a thousandth of the bound.
"""
