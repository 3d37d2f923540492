"""Ways in which one record, or one altered file, once reached more than its own bounded part of a run."""

from __future__ import annotations

import json
import warnings
from queue import SimpleQueue

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import nn

from dpilot import Budget, Ledger, PrivateStep, Trainer, poisson_loader, private_sum
from dpilot.errors import InvalidInput, LedgerError
from dpilot.privacy.events import ApproxDP
from dpilot.train import payment
from dpilot.train.run import predict
from tests.train.helpers import LOSS, data, fit, model, plan, records, same

INPUTS, LABELS = records(40)
BASE = [(x, int(y)) for x, y in zip(INPUTS, LABELS, strict=True)]
EXAMPLE = (INPUTS[:2] * 0, LABELS[:2] * 0)
ROUNDING = 1e-4


class Lazy:
    """A data set whose records are made when they are read."""

    def __init__(self, made):
        self.made = made

    def __len__(self):
        return len(self.made)

    def __getitem__(self, i):
        found = self.made[i]
        return found() if callable(found) else found


@pytest.fixture
def sums(monkeypatch):
    """The exact sums that went to the release, in order."""
    seen, real = [], private_sum.release

    def release(total, **more):
        seen.append(torch.cat([part.flatten() for part in total[0].values()]).clone())
        return real(total, **more)

    monkeypatch.setattr(private_sum, "release", release)
    return seen


def trained(dataset, net=None, loss=LOSS, **more):
    options = {"chunk_size": 64, "example": EXAMPLE, "test_seed": 3, **more}
    Trainer(net or model(), loss, plan(rate=1.0, steps=1), **options).fit(dataset)


def looped(dataset, workers, net=None, loss=LOSS, collate=None, **more):
    chosen, net = plan(rate=1.0, steps=1), net or model()
    options = {"example": EXAMPLE, "test_seed": 3, **more}
    step = PrivateStep(net, loss, torch.optim.SGD(net.parameters(), lr=0.5), chosen, **options)
    for batch in poisson_loader(dataset, chosen, num_workers=workers, collate_fn=collate):
        step(batch)


ODD = {
    "float64": (INPUTS[0].double(), 1),
    "a label of 0.5": (INPUTS[0], 0.5),
    "a label in words": (INPUTS[0], "a"),
    "a true label": (INPUTS[0], True),
    "complex": (INPUTS[0] * 1j, 1),
    "complex and real": (INPUTS[0].to(torch.complex64), 1),
    "three parts": (INPUTS[0], 1, 1),
    "shorter": (INPUTS[0][:2], 1),
    "more dimensions": (INPUTS[0][None], 1),
    "meta": (INPUTS[0].to("meta"), 1),
    "sparse": (INPUTS[0].to_sparse(), 1),
}


@pytest.mark.parametrize("first", [True, False], ids=["first", "last"])
@pytest.mark.parametrize("odd", ODD.values(), ids=list(ODD))
def test_a_record_of_another_form_leaves_the_others_as_they_are(odd, first, sums):
    dataset = [odd, *BASE] if first else [*BASE, odd]
    trained(BASE)
    trained(dataset)
    looped(dataset, 0)
    assert float(sums[0].norm()) > 2
    assert all(float((found - sums[0]).norm()) <= 1 + ROUNDING for found in sums[1:])


def test_workers_look_at_the_form_too(sums):
    trained(BASE)
    looped([ODD["complex"], *BASE], 1)
    assert float((sums[1] - sums[0]).norm()) <= ROUNDING


def test_the_first_records_form_stands_in_for_an_example(sums):
    trained(BASE)
    for odd in ODD.values():
        trained([*BASE, odd], example=None)
        looped([*BASE, odd], 0, example=None)
    assert all(float((found - sums[0]).norm()) <= 1 + ROUNDING for found in sums[1:])


def test_whole_numbers_among_floats_do_not_round_the_others(sums):
    """torch.tensor([1, 0.1]) is float32, where 0.1 alone is float64."""
    net = nn.Linear(4, 1).double()
    base = [(x.double(), 0.1 + 1e-9 * i) for i, x in enumerate(INPUTS)]
    example = (INPUTS[:2].double(), torch.zeros(2, dtype=torch.float64))
    seen = SimpleQueue()  # a list would be restored
    loss = lambda out, y: seen.put(y.detach().clone()) or (out[:, 0] - y) ** 2  # noqa: E731
    trained([(INPUTS[0].double(), 1), *base], net, loss, example=example, engine="loop")
    found = torch.cat([seen.get().flatten() for _ in range(seen.qsize())])
    assert all((found == y).any() for _, y in base)


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.place, self.out = nn.Embedding(20, 4), nn.Embedding(8, 4), nn.Linear(4, 20)

    def forward(self, ids):
        return self.out(self.embed(ids) + self.place(torch.arange(ids.shape[1])))


def words_loss(net, batch):
    ids, mask = batch["ids"], batch["mask"].float()
    losses = nn.functional.cross_entropy(net(ids).transpose(1, 2), ids, reduction="none")
    return (losses * mask).sum(1) / mask.sum(1).clamp_min(1)


def padded(rows):
    longest = max(len(row["ids"]) for row in rows)
    pad = lambda t: nn.functional.pad(t, (0, longest - len(t)))  # noqa: E731
    return {"ids": torch.stack([pad(r["ids"]) for r in rows]), "mask": torch.stack([pad(r["mask"]) for r in rows])}


def sentence(length):
    ids = torch.arange(length) % 20
    return {"ids": ids, "mask": torch.ones_like(ids)}


SENTENCES = [sentence(2 + i % 6) for i in range(30)]
PUBLIC = {"ids": torch.zeros(2, 6).long(), "mask": torch.ones(2, 6).long()}
TEXTS = {
    "too long": sentence(9),
    "no mask": {"ids": torch.arange(5)},
    "half a mask": {"ids": torch.arange(5), "mask": torch.full((5,), 0.5)},
    "no words": "abc",
}


@pytest.mark.parametrize("odd", TEXTS.values(), ids=list(TEXTS))
@pytest.mark.parametrize("how", ["trainer", "loop"])
def test_a_sequence_that_does_not_fit_leaves_padded_ones_as_they_are(odd, how, sums):
    """One that is too long for the model pads its whole chunk to a length that the model refuses."""
    torch.manual_seed(0)
    start = Words().state_dict()
    for dataset in (SENTENCES, [odd, *SENTENCES]):
        net = Words()
        net.load_state_dict(start)
        more = {"net": net, "loss": words_loss, "example": PUBLIC, "per_batch": True}
        if how == "trainer":
            trained(dataset, collate_fn=padded, **more)
        else:
            looped(dataset, 0, collate=padded, **more)
    assert float(sums[0].norm()) > 2
    assert float((sums[1] - sums[0]).norm()) <= ROUNDING


def hungry():
    raise MemoryError


@pytest.mark.parametrize("workers", [None, 0, 1])
def test_a_record_that_asks_for_too_much_memory_is_null(workers, sums):
    trained(BASE)
    dataset = Lazy([*BASE, hungry])
    trained(dataset) if workers is None else looped(dataset, workers)
    assert float((sums[1] - sums[0]).norm()) <= ROUNDING


def test_the_persons_own_wish_to_stop_passes():
    def stop():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(Lazy([*BASE, stop]))


@pytest.mark.parametrize("ending", [SystemExit, GeneratorExit, BaseException])
def test_a_record_that_would_end_the_process_is_null(ending, sums):
    def end():
        raise ending

    trained(BASE)
    trained(Lazy([*BASE, end]))
    assert float((sums[1] - sums[0]).norm()) <= ROUNDING


def overflowing():
    return torch.from_numpy(np.array([1e300, 0, 0, 0]).astype(np.float32)), torch.zeros(1)


def broadcast():
    return INPUTS[0], torch.zeros(3)


@pytest.mark.parametrize("odd", [overflowing, broadcast])
@pytest.mark.parametrize("workers", [None, 0])
def test_no_warning_tells_of_a_record(odd, workers):
    loss = lambda out, y: nn.functional.mse_loss(out, y, reduction="none").mean(1)  # noqa: E731
    dataset = Lazy([*((x, torch.zeros(1)) for x in INPUTS), odd])
    example = (INPUTS[:2], torch.zeros(2, 1))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", message="no ledger was given")  # tells of the run, not of a record
        if workers is None:
            trained(dataset, nn.Linear(4, 1), loss, example=example)
        else:
            looped(dataset, workers, nn.Linear(4, 1), loss, example=example)
    assert [str(each.message) for each in seen] == []


class Stop(Exception):
    pass


def stopped(folder, at=3, **more):
    """A run that stops after step ``at``, with a checkpoint every 4 steps: by default just after one."""

    def stop(record):
        if record.step == at:
            raise Stop

    with pytest.raises(Stop):
        fit(checkpoint=folder, checkpoint_every=4, callback=stop, **more)


def resumed(folder, **more):
    return Trainer.resume(folder, model(seed=9), LOSS, data(), **more)


def test_a_run_whose_log_of_sums_is_gone_is_not_resumed(tmp_path):
    stopped(tmp_path / "run", 5)
    (tmp_path / ".run.secret.steps").unlink()
    with pytest.raises(InvalidInput, match=r"steps is not there.*new spend"):
        resumed(tmp_path / "run")
    assert not (tmp_path / ".run.secret.steps").exists()


CHANGES = {
    "less noise": lambda said: said["plan"].update(noise_multiplier=1e-6),
    "more steps": lambda said: said["plan"].update(steps=9),
    "another step size": lambda said: said["options"].update(lr=9.0),
    "another seal": lambda said: said.update(seal="00"),
    "no seal": lambda said: said.pop("seal"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=list(CHANGES))
def test_an_altered_manifest_is_refused(change, tmp_path):
    stopped(tmp_path / "run")
    where = tmp_path / "run" / "run.json"
    text = where.read_text()
    said = json.loads(text)
    change(said)
    where.write_text(json.dumps(said))
    with pytest.raises(InvalidInput, match=r"run\.json was altered since"):
        resumed(tmp_path / "run")
    where.write_text(text)
    assert same(resumed(tmp_path / "run").model, fit().model)


def forged(path, change):
    with safe_open(path, "pt") as file:
        header = json.loads(file.metadata()["dpilot"])
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    change(header, tensors)
    path.write_bytes(save(tensors, metadata={"dpilot": json.dumps(header)}))


FORGERIES = {
    "bound": lambda header, tensors: header["clipping"].update(threshold=1e-9),
    "weights": lambda header, tensors: tensors["model.0.bias"].add_(1),
    "seal": lambda header, tensors: header.pop("seal"),
}


@pytest.mark.parametrize("change", FORGERIES.values(), ids=list(FORGERIES))
def test_an_altered_checkpoint_is_refused(change, tmp_path):
    stopped(tmp_path / "run")
    path = tmp_path / "run" / "checkpoint.safetensors"
    forged(path, lambda *parts: None)
    before = path.read_bytes()
    forged(path, change)
    with pytest.raises(InvalidInput, match="safetensors was altered since"):
        resumed(tmp_path / "run")
    path.write_bytes(before)
    assert same(resumed(tmp_path / "run").model, fit().model)


def test_a_receipt_is_of_the_plan_that_was_paid(tmp_path):
    book = Ledger.open(tmp_path / "ledger", dataset="toy", budget=Budget(20.0, 1e-4))
    stopped(tmp_path / "run", ledger=book)
    (entry,) = book.entries()
    with (
        pytest.raises(LedgerError, match="expected the plan that was paid"),
        payment.resume_payment(plan(epsilon=9.0), book, entry.seq, entry.stage, 4),
    ):
        pass
    cheap = ApproxDP(0.1, 1e-9)
    with (
        pytest.raises(LedgerError, match="expected the plan that was paid"),
        payment.pay(plan(), book, cheap, payment.Purpose()),
    ):
        pass
    assert len(book.entries()) == 1


def test_the_example_is_asked_for_again(tmp_path):
    stopped(tmp_path / "run", example=EXAMPLE)
    with pytest.raises(InvalidInput, match="the run was given an example"):
        resumed(tmp_path / "run")
    assert same(resumed(tmp_path / "run", example=EXAMPLE).model, fit().model)


@pytest.mark.parametrize("net", [nn.Linear(240, 2), nn.Sequential(nn.Linear(240, 64), nn.Tanh(), nn.Linear(64, 3))])
def test_one_more_record_changes_no_bit_of_another_prediction(net):
    inputs = torch.randn(1100, 240, generator=torch.Generator().manual_seed(0))
    whole = predict(net, inputs)
    assert torch.allclose(whole, net(inputs).detach(), atol=1e-5)
    for count in (0, 1, 2, 3, 7, 8, 9, 16, 17, 100, 512, 513, 514, 1023, 1024, 1025, 1099):
        assert torch.equal(predict(net, inputs[:count]), whole[:count]), count


def test_predictions_of_several_inputs_are_filled_up_alike():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(3, 2)

        def forward(self, x, scale, shift):
            assert len(x) == len(scale)
            return self.layer(x * scale[:, None]) + shift

    inputs = {"x": torch.randn(21, 3), "scale": torch.arange(21.0), "shift": torch.ones(2)}
    net = Both()
    assert torch.allclose(predict(net, inputs), net(**inputs).detach(), atol=1e-6)
    assert predict(net, tuple(inputs.values())).shape == (21, 2)
