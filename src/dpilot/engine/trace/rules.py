"""The rules of aten operations: from the places of the inputs to those of the outputs, by meaning and never by sizes.

A rule returns one place for all outputs or a list, one each. It raises ``Mixes`` where records are combined and
``NotKnown`` where nothing can be said. An operation that is not listed, and is no pointwise operation by torch's own
tag, has no rule: its result is unknown. Every rule is compared with what really moves when one record is replaced
(tests/engine/test_places.py).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from dpilot.engine.trace.place import SHARED, Call, Mixes, NotKnown, Place, dims_of, on_axis

Places = Place | list[Place]
Rule = Callable[[Call], Places]

INNER = Place("unknown", why="an inner result of a kernel")
REDUCES = "reduces over the records"
SUMS = "sums products over the records"
PICKED = "rows are picked by an index"
DYNAMIC = "how many rows there are depends on the records"


def pointwise(c: Call) -> Places:
    """Entry by entry, with broadcasting."""
    held = [(t, c.memory.place(t)) for t in c.tensors()]
    return c.line_up(held, max(t.dim() for t, _ in held))


def copied(c: Call) -> Places:
    """What is copied into a tensor, or fills it, with broadcasting; the tensor itself is not read."""
    into, source = c["self"], c.first_of("src", "p", "value")
    place = c.memory.place(source)
    return place if place.kind != "axis" else on_axis(place.axis + into.dim() - source.dim(), place.block)


def pointwise_loss(c: Call) -> Places:
    require_unreduced(c)
    return pointwise(c)


def require_unreduced(c: Call) -> None:
    """A loss must keep its numbers apart."""
    if c.get("reduction", 1) != 0:
        raise Mixes("reduces a loss over the batch")


def reduction(c: Call) -> Places:
    x = c.first()
    p, dims = c.memory.place(x), dims_of(c.get("dim"), x.dim())
    if p.axis in dims:
        raise Mixes(REDUCES)
    kept = c.get("keepdim", False)
    return on_axis(p.axis if kept else p.axis - sum(d < p.axis for d in dims), p.block)


def prod(c: Call) -> Places:
    """A product: its backward pass takes another formula for all records if one of them has a zero."""
    if c.first().is_floating_point() or c.first().is_complex():
        raise NotKnown("its backward pass looks for zeros in all records")
    return reduction(c)


def whole_reduction(_: Call) -> Places:
    raise Mixes(REDUCES)


def _along(c: Call) -> tuple[Place, bool]:
    x = c.first()
    p = c.memory.place(x)
    dim = c.get("dim", c.get("dims", c.get("axis")))
    return p, p.axis in dims_of(dim, x.dim())


def along(c: Call) -> Places:
    """An operation along some axes, which combines what lies on them."""
    p, over = _along(c)
    if over:
        raise Mixes("works along the records")
    return p


def permuting(c: Call) -> Places:
    """An operation that changes the order along some axes."""
    p, over = _along(c)
    if over:
        raise NotKnown("the order of the records is changed")
    return p


def renorm(c: Call) -> Places:
    """Every slice along ``dim`` is scaled by its own norm."""
    p = c.place("self")
    if p.axis != c["dim"] % c["self"].dim():
        raise Mixes("normalises over the records")
    return p


def product(c: Call, left: str, right: str, batch: int) -> Place:
    """Matrices behind ``batch`` leading axes: the left one's last axis is summed with the right one's last but one."""
    a, b = c.place(left), c.place(right)
    if (a.kind == "axis" and a.axis == batch + 1) or (b.kind == "axis" and b.axis == batch):
        raise Mixes(SUMS)
    if a.kind == b.kind == "axis":
        if a[:3] != b[:3] or a.axis >= batch:
            raise Mixes("multiplies records with each other")
        return a
    mine, other = (a, c[right]) if a.kind == "axis" else (b, c[left])
    if mine.kind == "axis" and mine.axis < batch:
        c.require_repeats(other, mine.axis, mine.block)
    return mine


def with_bias(c: Call, made: Place, ndim: int) -> Place:
    """A product with a matrix added to it."""
    if made.kind != "axis":
        raise NotKnown("records are added to a product of shared tensors, which is not looked at alone")
    bias: Tensor = c["self"]
    like = c.outs[0]
    return c.line_up([(like, made), (bias, c.place("self"))], ndim)


def mm(c: Call) -> Places:
    return product(c, "self", "mat2", 0)


def bmm(c: Call) -> Places:
    return product(c, "self", "mat2", 1)


def addmm(c: Call) -> Places:
    return with_bias(c, product(c, "mat1", "mat2", 0), 2)


def baddbmm(c: Call) -> Places:
    return with_bias(c, product(c, "batch1", "batch2", 1), 3)


def addbmm(c: Call) -> Places:
    made = product(c, "batch1", "batch2", 1)
    if made.axis == 0:
        raise Mixes(SUMS)
    return with_bias(c, on_axis(made.axis - 1, made.block), 2)


def vector_product(c: Call, matrix: str) -> Place:
    a = c.place(matrix)
    if c.place("vec").kind == "axis" or (a.kind == "axis" and a.axis == 1):
        raise Mixes(SUMS)
    return a


def mv(c: Call) -> Places:
    return vector_product(c, "self")


def addmv(c: Call) -> Places:
    return with_bias(c, vector_product(c, "mat"), 1)


def linear(c: Call) -> Places:
    """x W^T + b of one kernel."""
    p, x = c.place("input"), c["input"]
    c.require_shared("weight", "bias")
    if p.axis == x.dim() - 1:
        raise Mixes(SUMS)
    return p


def leading(*names: str, inner: int, ndim: tuple[int, ...] = ()) -> Rule:
    """The records lie before the last ``inner`` axes of the named tensors, on the same axis; all others are shared.

    ``ndim`` are the numbers of axes for which this holds; with others the same kernel means something else.
    """

    def rule(c: Call) -> Places:
        held = {name: t for name, t in c.named_tensors().items() if name in names}
        found: Place | None = None
        for name, t in held.items():
            p = c.place(name)
            if p.kind != "axis":
                continue
            if p.axis >= t.dim() - inner:
                raise Mixes(f"works along an axis of {name} on which the records lie")
            if ndim and t.dim() not in ndim:
                raise NotKnown(f"{name} has no axis for the records")
            if found is not None and found[:3] != p[:3]:
                raise Mixes("combines tensors whose records lie on different axes")
            found = p
        c.require_shared(*(name for name in c.named_tensors() if name not in names))
        if found is None:
            return SHARED
        for t in held.values():
            if c.memory.place(t).kind == "shared":
                c.require_repeats(t, found.axis, found.block)
        return found

    return rule


def convolution(c: Call) -> Places:
    p = c.place("input")
    c.require_shared("weight", "bias")
    if p.axis and c.get("groups", 1) > 1:
        raise NotKnown("a grouped convolution has the records among its channels")
    if p.axis:
        raise Mixes("convolves over the records")
    return p


def class_loss(c: Call) -> Places:
    """nll_loss and relatives: classes on axis 1, so that one axis alone is one record's classes."""
    require_unreduced(c)
    if c["self"].dim() < 2:
        raise Mixes("takes the records for classes")
    c.require_shared("weight")
    places = [(c.place(v), v) for v in ("self", "target")]
    found = [p for p, _ in places if p.kind == "axis"]
    if any(p.axis for p in found) or len({p[:3] for p in found}) > 1:
        raise Mixes("takes the records for classes or positions")
    for p, v in places:
        if p.kind == "shared":
            c.require_repeats(c[v], 0, found[0].block)
    return [found[0], *[INNER] * (len(c.outs) - 1)]


def ctc(c: Call) -> Places:
    """log_probs (T, n, C), targets (n, S), lengths (n,)."""
    wanted = {"log_probs": on_axis(1), "targets": on_axis(0), "input_lengths": on_axis(0), "target_lengths": on_axis(0)}
    if c["log_probs"].dim() != 3 or c["targets"].dim() != 2:
        raise NotKnown("targets of several records lie behind one another")
    for name, place in wanted.items():
        value = c[name]
        if not isinstance(value, Tensor):
            if len(set(value)) > 1:
                raise NotKnown("lengths by position in the chunk")
        elif c.place(name).kind == "shared":
            c.require_repeats(value, place.axis, 1)
        elif c.place(name)[:3] != place[:3]:
            raise NotKnown("targets of several records lie behind one another")
    return [on_axis(0), *[INNER] * (len(c.outs) - 1)]


def cat(c: Call) -> Places:
    held = [(t, c.memory.place(t)) for t in c["tensors"] if t.shape != (0,)]
    ndim = held[0][0].dim()
    dim = c.get("dim", 0) % ndim
    records = [(t, p) for t, p in held if p.kind == "axis"]
    place = c.line_up(records, ndim)
    if place.axis == dim:
        if len(records) < len(held):
            raise NotKnown("rows that belong to no record are put among the records")
        return place
    return c.line_up(held, ndim)


def stack(c: Call) -> Places:
    held = [(t, c.memory.place(t)) for t in c["tensors"]]
    ndim = held[0][0].dim()
    dim = c.get("dim", 0) % (ndim + 1)
    place = c.line_up(held, ndim)
    return on_axis(place.axis + (dim <= place.axis), place.block)


def layer_norm(c: Call) -> Places:
    p, x = c.place("input"), c["input"]
    if p.axis >= x.dim() - len(c["normalized_shape"]):
        raise Mixes("normalises over the records")
    c.require_shared("weight", "bias")
    return p


def batch_norm(c: Call) -> Places:
    """Per channel (axis 1): statistics of the batch, unless the records are the channels (as in instance_norm)."""
    p = c.place("input")
    state = [c[v] for v in ("weight", "bias", "running_mean", "running_var") if isinstance(c.get(v), Tensor)]
    c.require_shared("weight", "bias", "running_mean", "running_var")
    default = "update" in c.name and "no_update" not in c.name
    if c.get("training", c.get("train", default)) and p.axis != 1:
        raise Mixes("normalises by statistics of the batch")
    if p.axis == 1:
        for t in state:
            c.require_repeats(t, 0, p.block)
    return [p, *[on_axis(0, p.block) if p.axis == 1 else INNER] * (len(c.outs) - 1)]


def group_norm(c: Call) -> Places:
    p = c.place("input")
    c.require_shared("weight", "bias")
    if p.axis:
        raise Mixes("normalises over the records")
    return p


def embedding(c: Call) -> Places:
    c.require_shared("weight")
    return c.place("indices")


def bags(c: Call) -> Places:
    """Bags of as many ids each as the records have."""
    c.require_shared("weight")
    p, offsets, weights = c.place("indices"), c["offsets"], c.get("per_sample_weights")
    regular = c.place("offsets").kind == "shared" and c.memory.counts_up(offsets, p.block)
    regular = regular and offsets.numel() == c.n and c["indices"].numel() == p.block * c.n
    if not regular or p.axis or c.get("include_last_offset"):
        raise NotKnown(
            "bags of ids of several records; give ids as (n, length) rows, with padding_idx for shorter ones"
        )
    if isinstance(weights, Tensor):
        c.line_up([(c["indices"], p), (weights, c.memory.place(weights))], 1)
    return [on_axis(0), *[INNER] * (len(c.outs) - 1)]


def gather(c: Call) -> Places:
    """Reads along ``dim`` what the index says; the other axes of both line up."""
    x, i = c.place("self"), c.place("index")
    dim = c["dim"] % max(c["self"].dim(), 1)
    if x.kind == "axis" and x.axis == dim:
        raise NotKnown(PICKED)
    if i.kind == "axis" and i.axis == dim:
        if x.kind == "axis":
            raise Mixes("picks from each record what the others say")
        return i
    return same_rows(c, ("self", "index"))


def scatter(c: Call) -> Places:
    """Writes along ``dim`` where the index says; the other axes of all line up."""
    dim = c["dim"] % max(c["self"].dim(), 1)
    if any(c.place(v).kind == "axis" and c.place(v).axis == dim for v in ("self", "index", "src")):
        raise NotKnown("rows are written by an index")
    return same_rows(c, ("self", "index", "src"))


def same_rows(c: Call, names: tuple[str, ...]) -> Places:
    """Tensors that line up axis by axis, all of the records there in each."""
    held = [(c[v], c.place(v)) for v in names if isinstance(c.get(v), Tensor)]
    place = c.line_up(held, held[0][0].dim())
    if place.kind == "axis" and len({t.shape[place.axis] for t, _ in held}) > 1:
        raise NotKnown("only some of the records are read or written")
    return place


def index_along(c: Call) -> Places:
    """index_select, index_add, index_copy, index_fill along one axis."""
    x, i, s = c.place("self"), c.place("index"), c.place("source")
    dim = c["dim"] % max(c["self"].dim(), 1)
    if c.name == "index_select" and x.kind == "shared" and i.kind == "axis":
        return on_axis(dim, i.block)
    if i.kind == "axis" or any(p.kind == "axis" and p.axis == dim for p in (x, s)):
        raise NotKnown(PICKED)
    held = [(c[v], c.place(v)) for v in ("self", "source") if isinstance(c.get(v), Tensor) and c[v].dim()]
    return c.line_up(held, c["self"].dim())


def take(c: Call) -> Places:
    c.require_shared("self")
    return c.place("index")


class Subscripts:
    """x[i, :, j]: which axes are indexed, by what, and where the indexed axes go in the result."""

    def __init__(self, c: Call) -> None:
        self.c, self.given = c, dict[int, Tensor | None]()
        axis, x = 0, c.place("self")
        for i in c["indices"]:
            if i is None:
                axis += 1
            elif i.dtype in (torch.bool, torch.uint8):
                covered = x.kind == "axis" and axis <= x.axis < axis + i.dim()
                if c.memory.place(i).kind == "axis" or covered or not i.dim():
                    raise NotKnown("rows are picked by a mask")
                for _ in range(i.dim()):  # a mask of shared values: places it keeps, the same for all
                    self.given[axis] = None
                    axis += 1
            else:
                self.given[axis] = i
                axis += 1
        self.ndim = max((1 if i is None else i.dim() for i in self.given.values()), default=0)
        where = sorted(self.given)
        self.start = where[0] if where[-1] - where[0] + 1 == len(where) else 0

    def own_rows(self, place: Place) -> Place:
        """Where the records go if their axis is indexed by their own numbers, in order, and the rest goes along."""
        counter = self.given[place.axis]
        x: Tensor = self.c["self"]
        whole = x.shape[place.axis] == self.c.n * place.block
        if counter is None or not whole or self.c.memory.place(counter).kind != "shared":
            raise NotKnown(PICKED)
        if counter.numel() != x.shape[place.axis] or not self.c.memory.counts_up(counter, 1):
            raise NotKnown(PICKED)
        long = max(range(counter.dim()), key=lambda a: counter.shape[a])
        return self._with(long + self.ndim - counter.dim(), place.block, but=place.axis)

    def _with(self, axis: int, block: int, but: int) -> Place:
        """The other indices must have the same records on that axis, or hold the same for all."""
        for at, i in self.given.items():
            if at == but:
                continue
            if i is None:
                raise NotKnown("each record meets another entry of a mask")
            p, mine = self.c.memory.place(i), axis - self.ndim + i.dim()
            if p.kind == "axis" and (p.axis, p.block) != (mine, block):
                raise NotKnown("records are indexed by each other")
            if p.kind == "shared":
                self.c.require_repeats(i, mine, block)
        return on_axis(axis + self.start, block)

    def place(self, x: Place) -> Place:
        """Where the records lie in the result."""
        if x.kind == "axis" and x.axis in self.given:
            return self.own_rows(x)
        held = [(i, self.c.memory.place(i)) for i in self.given.values() if i is not None]
        if x.kind == "axis":
            if any(p.kind == "axis" for _, p in held):
                raise NotKnown("records are indexed by each other")
            rest = [a for a in range(self.c["self"].dim()) if a not in self.given]
            at = rest.index(x.axis)
            return on_axis(at + self.ndim if at >= self.start else at, x.block)
        if len(held) < len(self.given) and any(p.kind == "axis" for _, p in held):
            raise NotKnown("each record meets another entry of a mask")
        found = self.c.line_up(held, self.ndim)
        return on_axis(found.axis + self.start, found.block) if found.kind == "axis" else SHARED


def index(c: Call) -> Places:
    return Subscripts(c).place(c.place("self"))


def index_put(c: Call) -> Places:
    """What is written must lie where it lands; into a tensor of all records, or one that is the same for all."""
    given = [(axis, i) for axis, i in enumerate(c["indices"]) if i is not None]
    if len(given) == 1 and given[0][1].dtype is torch.bool and given[0][1].dim() and c["values"].numel() == 1:
        return number_under_mask(c, *given[0])
    subscripts, x = Subscripts(c), c.place("self")
    if x.kind != "axis":
        x = numbered_axis(c, subscripts)
    land, values = subscripts.place(x), c["values"]
    ndim = subscripts.ndim + c["self"].dim() - len(subscripts.given)
    met = values.new_empty(()).expand([1] * ndim)
    c.line_up([(values, c.place("values")), (met, land)], ndim)
    if x.kind != "axis":
        raise NotKnown("records are written by an index into a tensor that all share")
    return x


def number_under_mask(c: Call, axis: int, mask: Tensor) -> Places:
    """x[:, mask] = 0.0 is a masked_fill: entry by entry."""
    x: Tensor = c["self"]
    behind = mask[(..., *[None] * (x.dim() - axis - mask.dim()))]
    return c.line_up([(x, c.place("self")), (behind, c.memory.place(behind))], x.dim())


def numbered_axis(c: Call, subscripts: Subscripts) -> Place:
    """The axis of a tensor equal for all records that is indexed by the records' own numbers, if there is one."""
    x: Tensor = c["self"]
    for axis, i in subscripts.given.items():
        numbers = i is not None and x.shape[axis] == i.numel() == c.n and c.memory.place(i).kind == "shared"
        if i is not None and numbers and c.memory.counts_up(i, 1) and c.memory.repeats(x, axis, 1):
            return on_axis(axis)
    return SHARED


def repeat(c: Call) -> Places:
    """Repeats of the record axis are its outer index: still record j // block % n."""
    p = c.place("self")
    return on_axis(p.axis + len(c["repeats"]) - c["self"].dim(), p.block)


def pad(c: Call) -> Places:
    x = c.first()
    p, widths = c.memory.place(x), c.get("pad", c.get("padding"))
    at = 2 * (x.dim() - 1 - p.axis)
    if at < len(widths) and (widths[at] or widths[at + 1]):
        raise NotKnown("rows that belong to no record are put among the records")
    return p


def rnn(c: Call) -> Places:
    """Recurrent layers of one kernel: input (T, n, d) or (n, T, d), states (layers, n, h) or (n, h)."""
    axis = 0 if c.get("batch_first") and "cudnn" in c.name else 1
    states = [c[v] for v in ("hx", "cx", "hx_", "cx_") if isinstance(c.get(v), Tensor)]
    if any(c.memory.place(t).kind == "axis" for t in c.tensors() if not any(t is s for s in (c["input"], *states))):
        raise NotKnown("weights differ from record to record")
    if c["input"].dim() != 3 or c.get("batch_sizes"):
        raise NotKnown("a packed or unbatched recurrent layer")
    held = [(t, c.memory.place(t), at) for t, at in [(c["input"], axis), *((t, t.dim() - 2) for t in states)]]
    block = next(p.block for _, p, _ in held if p.kind == "axis")
    for t, p, at in held:
        if p.kind == "axis" and (p.axis, p.block) != (at, block):
            raise NotKnown("a recurrent layer whose records do not lie side by side")
        if p.kind == "shared":
            c.require_repeats(t, at, block)
    ends = [on_axis(o.dim() - 2, block) if o.dim() >= 2 else INNER for o in c.outs[1:]]
    return [on_axis(axis, block), *ends]


def attention(c: Call) -> Places:
    """softmax(q k^T) v of (batch, heads, tokens, width): nothing meets over the first two axes."""
    names = [v for v in ("query", "key", "value", "attn_mask", "attn_bias") if isinstance(c.get(v), Tensor)]
    place = c.line_up([(c[v], c.place(v)) for v in names], 4)
    if place.axis >= 2:
        raise Mixes("attends over the records")
    if place.axis == 1 and len({c[v].shape[1] for v in ("query", "key", "value")}) > 1:
        raise NotKnown("heads of several records are shared")
    return [place, *[place if o.dim() > 2 else INNER for o in c.outs[1:]]]


def distances(c: Call) -> Places:
    """(.., a, d) and (.., b, d) -> (.., a, b)."""
    one, two = c["x1"], c["x2"]
    p, q = c.place("x1"), c.place("x2")
    for place, t in ((p, one), (q, two)):
        if place.kind == "axis" and place.axis == t.dim() - 1:
            raise Mixes(SUMS)
    ndim = max(one.dim(), two.dim())
    if q.kind == "axis" and q.axis == two.dim() - 2:
        if p.kind == "axis":
            raise Mixes("compares records with each other")
        return on_axis(ndim - 1, q.block)
    if p.kind == "axis" and p.axis == one.dim() - 2:
        if q.kind == "axis":
            raise Mixes("compares records with each other")
        return on_axis(ndim - 2, p.block)
    return c.line_up([(one, p), (two, q)], ndim)


def trilinear(c: Call) -> Places:
    """The product of three tensors with axes put in, summed over some."""
    found: tuple[int, int] | None = None
    lifted = []
    for i in "123":
        axes = sorted(c["expand" + i])
        own = [a for a in range(c["i" + i].dim() + len(axes)) if a not in axes]
        p = c.place("i" + i)
        lifted.append((c["i" + i], p, own))
        if p.kind == "axis":
            mine = (own[p.axis], p.block)
            if found not in (None, mine):
                raise Mixes("combines tensors whose records lie on different axes")
            found = mine
    if found is None:
        return SHARED
    for t, p, own in lifted:
        if p.kind == "shared" and found[0] in own:
            c.require_repeats(t, own.index(found[0]), found[1])
    if found[0] in c["sumdim"]:
        raise Mixes(SUMS)
    return on_axis(found[0] - sum(d < found[0] for d in c["sumdim"]), found[1])


def cross(c: Call) -> Places:
    place = pointwise(c)
    assert isinstance(place, Place)
    if place.axis == c.get("dim", -1) % c.outs[0].dim():
        raise Mixes("works along the records")
    return place


def among(c: Call, values: str, fixed: str) -> Places:
    """Where values fall in a fixed list."""
    c.require_shared(fixed, "sorter")
    if c[fixed].dim() != 1:
        raise NotKnown("a list for each record")
    return c.place(values)


def searchsorted(c: Call) -> Places:
    return among(c, "self", "sorted_sequence")


def bucketize(c: Call) -> Places:
    return among(c, "self", "boundaries")


def isin(c: Call) -> Places:
    c.require_shared("test_elements")
    return c.place("elements")


def no_values(_: Call) -> Places:
    """Looks at the form of its inputs only."""
    return SHARED


def fresh_draws(c: Call) -> Places:
    """Draws that look at the form of ``self`` only: each record has its own, as it has its entries of ``self``."""
    c.require_shared("high")
    return c.place("self")


def dynamic(_: Call) -> Places:
    raise NotKnown(DYNAMIC)


BY_NAME: dict[Rule, str] = {
    pointwise: """_to_copy clone native_dropout _fused_dropout masked_fill where lerp complex polar nan_to_num
        _conj_physical rsub floor_divide hardswish rrelu_with_noise _prelu_kernel log_sigmoid_forward
        bernoulli poisson normal _standard_gamma binomial view_as_real_copy view_as_complex_copy""",
    copied: "copy_ bernoulli_ fill_",
    reduction: """sum mean amax amin max min argmax argmin var std var_mean std_mean logsumexp any all norm
        linalg_vector_norm median nanmedian mode kthvalue aminmax count_nonzero nansum""",
    whole_reduction: "trace dot vdot bincount histc _pdist_forward",
    along: """_softmax _log_softmax _safe_softmax softmax log_softmax cumsum cumprod logcumsumexp _logcumsumexp cummax
        cummin topk glu _fft_r2c _fft_c2r _fft_c2c""",
    prod: "prod",
    permuting: "sort argsort flip roll",
    renorm: "renorm",
    mm: "mm",
    bmm: "bmm",
    addmm: "addmm _addmm_activation",
    baddbmm: "baddbmm",
    addbmm: "addbmm",
    mv: "mv",
    addmv: "addmv",
    linear: "linear",
    convolution: "convolution _convolution mkldnn_convolution convolution_overrideable cudnn_convolution",
    batch_norm: """native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training cudnn_batch_norm
        _batch_norm_with_update _batch_norm_no_update""",
    layer_norm: "native_layer_norm _fused_rms_norm",
    group_norm: "native_group_norm",
    leading("self", "input", inner=1): """avg_pool1d adaptive_avg_pool1d max_pool1d upsample_linear1d upsample_nearest1d
        _upsample_nearest_exact1d""",
    leading(
        "self", "input", inner=2
    ): """avg_pool2d max_pool2d_with_indices _adaptive_avg_pool2d adaptive_max_pool2d tril triu
        upsample_nearest2d upsample_bilinear2d upsample_bicubic2d _upsample_nearest_exact2d _upsample_bilinear2d_aa
        _upsample_bicubic2d_aa""",
    leading("self", "input", inner=3): """avg_pool3d max_pool3d_with_indices _adaptive_avg_pool3d adaptive_max_pool3d
        upsample_nearest3d _upsample_nearest_exact3d upsample_trilinear3d pixel_shuffle pixel_unshuffle""",
    leading(
        "A", "self", inner=2
    ): """linalg_inv_ex linalg_cholesky_ex _linalg_det _linalg_slogdet linalg_qr _linalg_eigh
        _linalg_svd linalg_matrix_exp""",
    leading("self", "indices", inner=2): "max_unpool2d",
    leading("self", "input", inner=3, ndim=(4,)): "im2col channel_shuffle",
    leading("self", inner=2, ndim=(3,)): "col2im",
    leading("input", "grid", inner=3, ndim=(4,)): "grid_sampler_2d cudnn_grid_sampler",
    leading("input", "grid", inner=4, ndim=(5,)): "grid_sampler_3d",
    leading("theta", inner=2, ndim=(3,)): "affine_grid_generator",
    leading("self", inner=1, ndim=(2,)): "multinomial",
    leading(
        "input_gates", "hidden_gates", "cx", "hx", inner=1, ndim=(2,)
    ): "_thnn_fused_lstm_cell _thnn_fused_gru_cell",
    pad: """constant_pad_nd reflection_pad1d reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d
        replication_pad3d""",
    class_loss: "nll_loss_forward nll_loss2d_forward multi_margin_loss multilabel_margin_loss_forward",
    pointwise_loss: """mse_loss binary_cross_entropy binary_cross_entropy_with_logits smooth_l1_loss huber_loss
        soft_margin_loss""",
    ctc: "_ctc_loss _cudnn_ctc_loss",
    cat: "cat",
    stack: "stack",
    embedding: "embedding",
    bags: "_embedding_bag _embedding_bag_forward_only",
    gather: "gather",
    scatter: "scatter scatter_add scatter_reduce",
    index_along: "index_select index_add index_copy index_fill",
    take: "take",
    index: "index _unsafe_index",
    index_put: "index_put _unsafe_index_put _index_put_impl",
    repeat: "repeat",
    rnn: "mkldnn_rnn_layer _cudnn_rnn",
    attention: """_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention
        _scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention
        _scaled_dot_product_fused_attention_overrideable""",
    distances: "_cdist_forward _euclidean_dist",
    trilinear: "_trilinear",
    cross: "linalg_cross",
    searchsorted: "searchsorted",
    bucketize: "bucketize",
    isin: "isin",
    no_values: """zeros_like ones_like full_like new_zeros new_ones new_full empty_like new_empty new_empty_strided
        is_same_size zero""",
    fresh_draws: "rand_like randn_like randint_like uniform normal_ random exponential cauchy log_normal geometric",
    dynamic: """nonzero masked_select unique_dim unique_dim_consecutive _unique _unique2 unique_consecutive
        repeat_interleave _pack_padded_sequence nonzero_static""",
}
RULES: dict[str, Rule] = {name: rule for rule, names in BY_NAME.items() for name in names.split()}
EMPTY = frozenset({"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"})
"""Factories of memory that nobody has written."""
_DRAWN_INTO = frozenset({
    "uniform_", "normal_", "random_", "exponential_", "cauchy_", "log_normal_", "geometric_", "bernoulli_",
})  # fmt: skip
DRAWS = _DRAWN_INTO | {
    "rand", "randn", "randint", "rand_like", "randn_like", "randint_like", "uniform", "bernoulli", "normal",
    "native_dropout", "_fused_dropout",
}  # fmt: skip
"""Operations that draw each entry by itself."""
OVERWRITES = _DRAWN_INTO | {"copy_", "fill_", "zero_"}
"""Operations that write their first argument without reading it."""
SIZED_BY_VALUES = frozenset([*BY_NAME[dynamic].split(), "bincount", "linalg_lstsq"])
"""Operations whose result has as many rows as values say."""
