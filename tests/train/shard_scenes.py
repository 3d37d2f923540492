"""What two ranks do with models in pieces, scene after scene: ``python -m tests.train.shard_scenes FOLDER``.

Each rank leaves ``FOLDER.<rank>``, what it saw in each scene; ``test_shards.py`` says what is expected of it.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import warnings
from datetime import timedelta
from itertools import count
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import TensorDataset

import dpilot
from dpilot import Ledger, PrivateStep, Trainer, audit, clipping, engine, poisson_loader
from dpilot.tape import current, tape
from dpilot.train.canaries import Canaries
from dpilot.train.ranks import Together, find_ranks, use_ranks
from dpilot.train.shards import Shards, whole_state
from tests.train import helpers
from tests.train import test_replay as replays
from tests.train.helpers import LOSS, data, plan

HALF = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.bfloat16)
TOKENS = TensorDataset(torch.randint(7, (60, 3), generator=torch.Generator().manual_seed(0)), torch.arange(60) % 7)


class Tied(nn.Module):
    """Embedding and output share one table."""

    def __init__(self):
        super().__init__()
        self.table, self.mix = nn.Embedding(7, 5), nn.Linear(5, 5)
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.table.weight

    def forward(self, tokens):
        return self.head(torch.tanh(self.mix(self.table(tokens).mean(1))))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.LSTM(4, 3, batch_first=True), nn.Linear(3, 2)

    def forward(self, x):
        return self.head(self.rnn(x[:, None, :])[0][:, -1])


def narrow():
    """One row in some parameters: rank 1 has none of these."""
    return nn.Sequential(nn.Linear(4, 1), nn.Tanh(), nn.Linear(1, 2))


def frozen():
    made = helpers.model()
    made[0].requires_grad_(False)
    return made


def adapted():
    from peft import LoraConfig, get_peft_model

    class Plain(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 2)

        def forward(self, x):
            return self.last(torch.tanh(self.first(x)))

    torch.manual_seed(0)
    made = get_peft_model(Plain(), LoraConfig(r=2, target_modules=["first"], modules_to_save=["last"]))
    for name, each in made.named_parameters():
        if "lora_B" in name:
            nn.init.ones_(each)
    return made


def seeded(make):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return make()


def shard(net, **options):
    """In groups of its own where it has layers, as one shards a transformer."""
    if isinstance(net, nn.Sequential):
        fully_shard(net[0], **options)
    return fully_shard(net, **options)


RUNS = {
    "plain": {},
    "adam": {"rule": "slack", "optimizer": "adam", "lr": 0.02, "average": "ema", "schedule": "cosine"},
    "momentum": {"optimizer": "momentum", "free_step": True, "average": "swa"},
    "layers": {"rule": clipping.get("slack", groups=2)},
    "measuring": {"rule": "one-shot"},
    "units": {"units": [row // 3 for row in range(60)], "rows_per_unit": 2},
    "validation": {"public_validation": data(20), "checkpoint_every": 2},
    "one record": {"dataset": data(1), "chunk_size": 1},
    "narrow": {"net": narrow},
    "tied": {"net": Tied, "dataset": TOKENS},
    "frozen": {"net": frozen},
    "recurrent": {"net": Recurrent},
    "adapted": {"net": adapted},
    "loop": {"engine": "loop"},
    "vmap": {"engine": "vmap"},
    "amp": {"amp": True},
}


def kinds(folder):
    """Every kind of run: in pieces, and whole on each rank."""
    found = {}
    for name, options in RUNS.items():
        make = options.pop("net", helpers.model)
        first, second = (helpers.fit(net=wrap(seeded(make)), **options) for wrap in (shard, lambda net: net))
        found[name] = [(whole_state(run.model), run.record, run.thresholds) for run in (first, second)]
    return found


def own_loop(folder):
    def weights(wrap):
        net, chosen = wrap(helpers.model()), plan("slack")
        loader = poisson_loader(data(), chosen)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        step = PrivateStep(net, LOSS, optimizer, chosen, test_seed=7, chunk_size=8)
        shown = []
        for batch in loader:
            step(batch)
            with torch.no_grad():  # torch's own pass, which leaves the weights whole
                shown.append(net(helpers.records(3)[0]))
        return whole_state(net), step.record, shown

    return [weights(shard), weights(lambda net: net)]


def sums(net, half=False):
    """Norms and clipped sums of some records, as the engine finds them."""
    inputs, labels = helpers.records(16)
    found = engine.per_sample(net, LOSS, (inputs.bfloat16() if half else inputs, labels))
    return found.norms, found.weighted_sum(torch.linspace(0, 1, 16))


def put_together(folder):
    """What is computed with a model that was put together, in two precisions, after a forward pass of torch's own."""
    found = {}
    for half in (False, True):
        net = shard(helpers.model(), **({"mp_policy": HALF} if half else {}))
        net(torch.zeros(2, 4))
        before = [(type(each), len(each._forward_pre_hooks)) for each in net.modules()]
        shards = Shards.find(net, find_ranks())
        with shards.whole():
            found[half] = sums(net)
        assert before == [(type(each), len(each._forward_pre_hooks)) for each in net.modules()]
        assert all(isinstance(each, DTensor) for each in net.parameters())
        assert not any(part.whole.untyped_storage().nbytes() > 8 for part in shards.parts)
    return found


def half(folder):
    """bfloat16 in the model, float32 in what is kept, and in sums and noise."""
    run = helpers.fit("slack", net=shard(helpers.model(), mp_policy=HALF), chunk_size=4)
    assert all(each.dtype == torch.float32 for each in run.model.parameters())
    return whole_state(run.model), run.thresholds


class Noting:
    """A tape before another one, which keeps what went in."""

    def __init__(self, inner, inputs):
        self.inner, self.inputs = inner, inputs

    def release(self, entry, outputs):
        self.inputs.append((entry.inputs, entry.bound))
        return self.inner.release(entry, outputs)

    def key(self, purpose, fresh):
        return self.inner.key(purpose, fresh)


def neighbours(folder):
    """Each rank replays its part; together no record moves more than the bound."""
    found = {}
    for rule in ("slack", "histogram-e"):
        for number, pair in enumerate(replays.PAIRS):
            noted = []

            def run(arrays, rule=rule, noted=noted):
                net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
                with torch.no_grad():
                    for place, each in enumerate(net.parameters()):
                        each.copy_(torch.linspace(-1 - place, 1, each.numel()).reshape(each.shape))
                heard, inputs = [], []
                noted.append(inputs)
                options = {"lr": 0.1, "chunk_size": 2, "callback": heard.append, "test_seed": 3}
                trainer = Trainer(shard(net), LOSS, plan(rule, rate=0.5, steps=3), **options)
                with tape(Noting(current(), inputs)):
                    done = trainer.fit(replays.dataset(arrays))
                local = {name: each.to_local() for name, each in done.model.state_dict().items()}
                return local, done.record, done.thresholds, heard

            seen = audit.replay(run, pair.data, pair.neighbour, opaque=("*",))
            moved = [
                (sum(float(((a - b) ** 2).sum()) for a, b in zip(one, other, strict=True)), bound)
                for (one, bound), (other, _) in zip(*noted, strict=True)
            ]
            found[rule, number] = seen.differences, seen.releases, moved
    return found


class Once:
    """Fails at the call of this number."""

    def __init__(self, at, instead=LOSS):
        self.calls, self.at, self.instead = count(), at, instead

    def __call__(self, *arguments, **named):
        if next(self.calls) == self.at:
            raise MemoryError("none left")
        return self.instead(*arguments, **named)


def failures(folder):
    """One rank fails: at a loss, at a sum, at the room for the weights, at its noise, or as its optimizer moves."""
    from dpilot.engine.base import PerSample
    from dpilot.train import sums as sums_of_ranks

    places = {
        "sum": (PerSample, "weighted_sum", 12),
        "room": (Shards, "_room", 6),
        "noise": (sums_of_ranks, "SharedNoise", 2),
    }
    found = {}
    for where in ("loss", "sum", "room", "noise", "moving"):
        for failing in (0, 1):
            mine = dist.get_rank() == failing
            book = Path(folder).parent / f"{where} {failing}"
            loss = Once(40) if mine and where == "loss" else LOSS
            options = {"ledger": str(book), "chunk_size": 4, "engine": "loop"}
            trainer = Trainer(shard(helpers.model()), loss, plan(), **options)
            undo = lambda: None  # noqa: E731
            if mine and where == "moving":
                trainer._job.optimizer.register_step_post_hook(Once(3, lambda *_: None))
            elif mine and where != "loss":
                home, name, at = places[where]
                real = getattr(home, name)
                once = Once(at, real)
                setattr(home, name, once if home is sums_of_ranks else lambda *a, once=once, **k: once(*a, **k))
                undo = lambda home=home, name=name, real=real: setattr(home, name, real)  # noqa: E731
            try:
                trainer.fit(data())
                said = "nothing"
            except BaseException as problem:
                said = f"{type(problem).__name__}: {problem}"
            undo()
            dist.barrier()
            found[where, failing] = said, [entry.state for entry in Ledger.read(book).entries()]
    return found


def refusals(folder):
    """What is refused before anything is paid."""
    rank, found = dist.get_rank(), {}

    def attempt(name, make):
        book = Path(folder).parent / f"refused {name}"
        try:
            make(str(book)).fit(data())
            found[name] = "nothing"
        except Exception as problem:
            found[name] = f"{type(problem).__name__}: {problem}"
        dist.barrier()
        found[name, "paid"] = bool(Ledger.read(book).entries()) if book.exists() else False

    def whole_part(book):
        net = helpers.model()
        fully_shard(net[0])
        return Trainer(net, LOSS, plan(), ledger=book)

    def columns(book):
        from torch.distributed.tensor import Shard

        placed = fully_shard(
            nn.Sequential(nn.Linear(4, 4)), shard_placement_fn=lambda p: Shard(1) if p.dim() > 1 else None
        )
        return Trainer(placed, LOSS, plan(), ledger=book)

    def trainer(book, net=None, **options):
        return Trainer(net or shard(helpers.model()), LOSS, plan(), ledger=book, **options)

    norm = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16 if rank else torch.float32)
    attempt("a whole parameter", whole_part)
    attempt("columns", columns)
    attempt("batch norm", lambda book: trainer(book, fully_shard(norm)))
    attempt("another policy", lambda book: trainer(book, fully_shard(helpers.model(), mp_policy=policy)))
    attempt("another plan", lambda book: Trainer(shard(helpers.model()), LOSS, plan(epsilon=5.0 - rank), ledger=book))
    attempt("low memory", lambda book: trainer(book, low_memory=True))
    attempt("device", lambda book: trainer(book, device="cpu"))
    attempt("hardened", lambda book: trainer(book, noise="hardened"))
    attempt("audit", lambda book: trainer(book, audit=Canaries(10)))
    return found


def stored(folder):
    """A run that stops after a step that no checkpoint has; and the same whole, for others to go on with it."""
    home = Path(folder).parent
    options = {"lr": 0.02, "optimizer": "adam", "average": "ema", "checkpoint_every": 2, "chunk_size": 4}

    def stop(record):
        if record.step == 4:
            raise KeyboardInterrupt

    done = helpers.fit("slack", net=shard(helpers.model()), checkpoint=home / "done", **options)
    try:
        helpers.fit("slack", net=shard(helpers.model()), checkpoint=home / "stopped", callback=stop, **options)
    except (KeyboardInterrupt, dpilot.train.ranks.RankLost) as problem:
        said = type(problem).__name__
    local = {name: each.to_local().numel() for name, each in done.model.state_dict().items()}
    return whole_state(done.model), said, local


def resume(folder):
    """Go on with what two ranks stored, on however many these are."""
    home = Path(folder).parent
    found = {}
    for name in ("stopped", "altered"):
        net = shard(helpers.model(seed=1))
        try:
            run = Trainer.resume(home / name, net, LOSS, data(), secret=home / f".{name}.secret")
            found[name] = whole_state(run.model)
        except Exception as problem:
            found[name] = f"{type(problem).__name__}: {problem}"
        if dist.is_initialized():
            dist.barrier()
    return found


SCENES = (kinds, own_loop, put_together, half, neighbours, failures, refusals, stored)


def main(folder, *names):
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    os.chdir(tempfile.mkdtemp())
    chosen = [each for each in (*SCENES, resume) if each.__name__ in names] if names else SCENES
    found = {}
    for scene in chosen:
        if dist.get_world_size() > 1:
            with use_ranks(Together(dist.group.WORLD)):
                found[scene.__name__] = scene(folder)
        else:
            found[scene.__name__] = scene(folder)
    torch.save(found, f"{folder}.{dist.get_rank()}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
