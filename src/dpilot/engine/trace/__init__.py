"""What ran in a forward pass, and where the records lie in every tensor of it.

``watch`` watches one pass over a chunk and says whether records stay apart in it. Below it: ``tracker`` sees every
operation and holds what is known of memory, ``rules`` knows operations, ``place`` says what can be known.

Promises: a tensor whose place is an axis holds, in the rows of record i, a function of record i, of what is shared and
of its own draws. May import: base, batch, generators, state and writes; no layer and no engine.
"""

from dpilot.engine.trace.tracker import Answers
from dpilot.engine.trace.watch import Pass, Verdict, judge

__all__ = ["Answers", "Pass", "Verdict", "judge"]
