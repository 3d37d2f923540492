"""Where values leave torch without an operation: seen at the level of functions, above the operations."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from dpilot.engine.record.call import tensors_in
from dpilot.engine.record.place import SHARED
from dpilot.engine.record.tracker import READ_DRAWS, Tracker
from dpilot.engine.writes import WriteGuard

READERS: Final = frozenset(
    [
        "tolist",
        "numpy",
        "__array__",
        "data_ptr",
        "const_data_ptr",
        "mutable_data_ptr",
        "__dlpack__",
        "untyped_storage",
        "storage",
        "_typed_storage",
        "__reduce_ex__",
        "__cuda_array_interface__",
        "apply_",
        "map_",
        "map2_",
        "share_memory_",
    ]
)
"""Methods that hand out a tensor's values or memory."""
HOOKS: Final = frozenset({"register_hook", "register_post_accumulate_grad_hook"})
"""Methods that put the user's code into the backward pass, which is not watched."""
MAKERS: Final = frozenset(
    [
        "tensor",
        "as_tensor",
        "new_tensor",
        "asarray",
        "tensor_split",
        "__repr__",
        "__format__",
        "sparse_coo_tensor",
        "tensordot",
    ]
)
"""Functions that read values in their arguments below the dispatcher, or make tensors from numbers of Python."""
CONSTRUCTORS: Final = MAKERS - {"tensordot", "tensor_split"}
SUBSCRIPTS: Final = frozenset({"__getitem__", "__setitem__"})
LEFT_ALIGNED: Final = "_nested_tensor_from_mask_left_aligned"
"""Asked by nn.TransformerEncoder in evaluation mode of the padding of all records: if not, it computes as in training,
which it does with gradients in any case."""
_SEEN: Final = READERS | HOOKS | MAKERS


class Exits(TorchFunctionMode):
    """Notes every value of a record that leaves torch, and saves memory that is handed out."""

    def __init__(self, tracker: Tracker, guard: WriteGuard) -> None:
        super().__init__()
        self.tracker, self.guard = tracker, guard

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.call(func, args, kwargs or {})

    def call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Call a torch function, or what stands for it without a look at all the records."""
        name = getattr(func, "__name__", "")
        if name == LEFT_ALIGNED:
            return False
        if name == "one_hot" and (replaced := one_hot(*args, **kwargs)) is not None:
            return replaced
        if name in SUBSCRIPTS:
            args = (args[0], self._without_lists(args[0], args[1]), *args[2:])
        elif name == "__get__":
            if getattr(func, "__self__", None) in (torch.Tensor.grad_fn, torch.Tensor._grad_fn):
                self._note(args, "takes a node of the backward graph")
        elif name in _SEEN:
            self._before_exit(name, args, kwargs)
            out = func(*args, **kwargs)
            if name in CONSTRUCTORS and isinstance(out, Tensor):
                self._declare(out)
            return out
        return func(*args, **kwargs)

    def _before_exit(self, name: str, args: Any, kwargs: Any) -> None:
        if name == "tensordot":
            self._note_read(args[2:] or kwargs.get("dims"), "reads axes from records")
        elif name in HOOKS:
            self._note(args[:1], f"{name}: the backward pass of records runs code that is not watched")
        elif name in MAKERS:
            self._note_read((args, kwargs), f"{name} reads values of records")
        else:
            self._note_read(args[:1], f"{name} takes values of records out of torch")
            for t in tensors_in(args[:1]):
                if not self.tracker.memory.tag(t).born:
                    self.guard.before_exit(t)

    def _note(self, values: Any, what: str) -> None:
        with torch._C.DisableTorchFunction():
            if any(self.tracker.holds_records(t) for t in tensors_in(values)):
                self.tracker.note("unknown", what)

    def _note_read(self, values: Any, what: str) -> None:
        """The same for values that Python then knows: draws of the chunk are no record's own."""
        self._note(values, what)
        with torch._C.DisableTorchFunction():
            if any(self.tracker.place(t).holds_draws for t in tensors_in(values)):
                self.tracker.note("unknown", READ_DRAWS)

    def _without_lists(self, t: Tensor, index: Any) -> Any:
        """A subscript with tensors for its lists of numbers: torch would make them where nobody sees it."""
        if isinstance(index, tuple):
            return tuple(self._without_lists(t, each) for each in index)
        if not isinstance(index, np.ndarray) and not (isinstance(index, list) and is_of_numbers(index)):
            return index
        with torch._C.DisableTorchFunction():
            made = torch.tensor(index, device=t.device)
            self._declare(made)
        return made

    def _declare(self, out: Tensor) -> None:
        """Numbers of Python made a tensor: no record was read, or that was noted."""
        if self.tracker.memory.tag(out).kind == "unknown":
            self.tracker.memory.put(out, SHARED)


def is_of_numbers(values: list[Any]) -> bool:
    """Whether a list holds whole numbers or truth values of Python, and nothing else."""
    return {type(value) for value in values} in ({int}, {bool})


def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor | None:
    """F.one_hot of a given number of classes; torch's own looks at the smallest and the largest label of the batch."""
    if num_classes < 0:
        return None
    zeros = torch.zeros((*tensor.shape, num_classes), dtype=tensor.dtype, device=tensor.device)
    return zeros.scatter(-1, tensor.unsqueeze(-1), 1)
