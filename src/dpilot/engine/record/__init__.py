"""What ran in a forward pass, and where the records lie in every tensor of it.

``Pass`` watches one pass over a chunk and says whether records stay apart in it. Below it: ``tracker`` sees
operations, ``rules`` knows them, ``memory`` and ``place`` hold what is known, ``exits`` sees what leaves torch, and
``source`` finds the line of the model. May import the write guard and the state of the engine, no layer and no engine.
"""

from dpilot.engine.record.memory import Answers
from dpilot.engine.record.watch import Pass, Verdict, judge

__all__ = ["Answers", "Pass", "Verdict", "judge"]
