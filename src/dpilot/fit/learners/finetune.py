"""A sentence encoder fine-tuned on its texts: low-rank adapters on its attention, and a head, by private descent."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dpilot._arrays import Floats
from dpilot.data.encoder import Encoded
from dpilot.data.frames import Frame
from dpilot.data.schema import Schema
from dpilot.data.sentences import TextBackbone, pool, shared_encoder
from dpilot.data.sparse import is_usable
from dpilot.data.states import null_cells, read_column
from dpilot.engine.made_up import evaluation_mode
from dpilot.fit.declaration import Declaration
from dpilot.fit.figures import HeldOutFigures
from dpilot.fit.learners.base import PaidRun, Trained, kept_apart
from dpilot.fit.learners.networks import Network, NetworkPlan, clipping_from, cross_entropy, with_units
from dpilot.fit.population import Parts
from dpilot.fit.purchases import Purchases
from dpilot.fit.source import RowReader
from dpilot.privacy.budget import Budget
from dpilot.privacy.ledger import Stage
from dpilot.sampling import blocks
from dpilot.transfer.preparation import prepare
from dpilot.tune.recipe import Recipe

__all__ = ["FineTune", "FineTunedPredictor", "TokenReader"]

EPOCHS: Final = 5.0
_LR: Final = 1e-3
_LEAST_THRESHOLD: Final = 0.1
_ROWS: Final = 32  # texts in a chunk: what is kept of a pass grows with them
_NO_CLASS: Final = -100  # which CrossEntropyLoss ignores: the null record
_HEAD: Final = "head"


@dataclass(frozen=True, slots=True)
class TokenReader:
    """Reads the one text of a record as the numbers of its tokens, padded to the declared length; nan where it is null.

    Guarantee:
        A row is a function of its own text, the encoder's tokenizer and the schema.
    """

    schema: Schema

    def encode_features(self, frame: Any) -> NDArray[np.float32]:
        (column,) = self.schema.features
        reading = read_column(column, Frame.of(frame), self.schema)
        encoder = text_encoder(self.schema)
        rows = np.full((len(reading.states), encoder.length), encoder.padding, dtype=np.float32)
        texts = ["" if each is None else each for each in reading.values.tolist()]
        for place, ids in enumerate(encoder.tokens(texts)):
            rows[place, : len(ids)] = ids
        rows[null_cells(column, reading.states)] = np.nan
        return rows


def text_encoder(schema: Schema) -> TextBackbone:
    """The encoder of the one text, shared with whoever reads texts by it: copied before it is trained."""
    (column,) = schema.features
    return shared_encoder(column.encoder or "", column.length or 0, column.fingerprint)


class TextClassifier(nn.Module):
    """An encoder and a linear head on what it says of a text, from the numbers of its tokens."""

    def __init__(self, encoder: nn.Module, width: int, outputs: int, padding: int, *, first_token: bool) -> None:
        super().__init__()
        self.encoder, self.head = encoder, nn.Linear(width, outputs)
        self.padding, self.first_token = padding, first_token

    def forward(self, ids: Tensor) -> Tensor:
        there = ids != self.padding
        # as an additive mask: given one of truth values, the encoder would look whether any token is missing at all
        mask = torch.zeros(ids.shape, device=ids.device).masked_fill(~there, -1e9)[:, None, None, :]
        states = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        result: Tensor = self.head(pool(states, there, first_token=self.first_token))
        return result


def build(schema: Schema, outputs: int) -> nn.Module:
    """A fresh classifier with adapters: the encoder's own weights are frozen, the head starts from zero."""
    encoder = text_encoder(schema)
    whole = TextClassifier(
        copy.deepcopy(encoder.model), encoder.width, outputs, encoder.padding, first_token=encoder.first_token
    )
    return prepare(whole.eval(), "lora", head=_HEAD)


@dataclass(frozen=True, slots=True)
class FineTune:
    """Adapters and a head, by Adam with noisy gradients of Poisson batches, at a step size that no record chose."""

    gaussian: bool = False

    def purchases(self, declared: Declaration, budget: Budget) -> Purchases:
        return Purchases.plan(declared, budget)

    def plan(self, declared: Declaration, budget: Budget, purchases: Purchases) -> FineTunePlan:
        options = declared.options
        chosen = replace(options, epochs=EPOCHS if options.epochs is None else options.epochs)
        return FineTunePlan(Network().plan(replace(declared, options=chosen), budget, purchases))


@dataclass(frozen=True, slots=True)
class FineTunePlan:
    """The rate, steps and noise of a network's run, for adapters."""

    run_plan: NetworkPlan

    @property
    def held_out(self) -> float:
        return self.run_plan.held_out

    @property
    def figures(self) -> HeldOutFigures:
        return self.run_plan.figures

    def stages(self, split: str) -> list[Stage]:
        return self.run_plan.stages(split)

    def reader(self, schema: Schema) -> RowReader:
        return TokenReader(schema)

    def train(self, parts: Parts, run: PaidRun) -> Trained:
        declared, schema = self.run_plan.declared, parts.reader.schema
        outputs = declared.task.outputs
        plan = replace(self.run_plan.run_plan(run.size), clipping=clipping_from(_LEAST_THRESHOLD))
        recipe = Recipe(
            model_fn=lambda: build(schema, outputs),
            loss_fn=cross_entropy(run.class_weights, declared.options.device),
            dataset=with_units(_tensors(parts.train), parts),
            size=float(plan.size),
            sample_rate=plan.sample_rate,
            clipping=plan.clipping,
            optimizer="adam",
            options={"schedule": "cosine", "device": declared.options.device, "chunk_size": _ROWS},
        )
        started = self.run_plan.run(recipe, _LR, plan, run)
        model = started.state.context.model
        trained = sum(each.numel() for each in model.parameters() if each.requires_grad)
        (column,) = schema.features
        about = {"lr": _LR, "schedule": "cosine", "optimizer": "adam", "model": "finetune", "encoder": column.encoder}
        return Trained(
            predictor=FineTunedPredictor(model, outputs),
            figures=self.figures,
            plan={**plan.to_dict(), **about},
            decisions=(
                f"{self.run_plan.reason[0].upper()}{self.run_plan.reason[1:]}.",
                kept_apart(self.held_out),
                f"Noise of training {plan.noise_multiplier:.4g} in each of {plan.steps:,} steps: the least that the "
                "budget allows.",
                f"Model: the encoder {column.encoder} with low-rank adapters on its attention and a new head, "
                f"{trained:,} numbers in all; its own weights stay as they are.",
            ),
            steps=tuple(started.state.records),
        )

    def shorten(self, size: float, rows: int) -> tuple[FineTunePlan, float]:
        whole = self.run_plan
        short = replace(whole, steps=1, sample_rate=min(1.0, whole.sample_rate * size / rows))
        return FineTunePlan(short), whole.steps * whole.sample_rate * size / (short.sample_rate * rows)


@dataclass(frozen=True, slots=True, eq=False)
class FineTunedPredictor:
    """A fine-tuned classifier; what is saved of it are adapters and head."""

    module: nn.Module
    classes: int
    kind: str = "finetuned"

    def outputs(self, rows: Any) -> Floats:
        """Logits, nan in the row of a null record."""
        known = is_usable(rows)
        ids = torch.from_numpy(np.where(known[:, None], rows, 0.0).astype(np.int64))
        device = next(self.module.parameters()).device
        found = np.empty((len(ids), self.classes))
        with evaluation_mode(self.module), torch.no_grad():
            for start, size in blocks(len(ids), _ROWS, _ROWS):  # of one size, filled up
                block = torch.zeros(size, ids.shape[1], dtype=torch.int64)
                part = ids[start : start + size]
                block[: len(part)] = part
                found[start : start + size] = self.module(block.to(device))[: len(part)].double().cpu().numpy()
        return np.where(known[:, None], found, np.nan)

    def state(self) -> tuple[dict[str, Any], Mapping[str, Any]]:
        trained = {name: each for name, each in self.module.named_parameters() if each.requires_grad}
        return {"classes": self.classes}, {name: each.detach().cpu().contiguous() for name, each in trained.items()}

    @classmethod
    def load(cls, plain: Mapping[str, Any], tensors: Mapping[str, Tensor], reader: RowReader) -> FineTunedPredictor:
        """The predictor that ``state`` describes, on the encoder that the reader's schema names."""
        module = build(reader.schema, int(plain["classes"]))
        trained = {name: each for name, each in module.named_parameters() if each.requires_grad}
        if {name: each.shape for name, each in trained.items()} != {name: each.shape for name, each in tensors.items()}:
            raise ValueError("the adapters do not fit the encoder")
        with torch.no_grad():
            for name, each in trained.items():
                each.copy_(tensors[name])
        return cls(module, int(plain["classes"]))


def _tensors(records: Encoded) -> TensorDataset:
    """Tokens and classes, a null record before them: so that the part is never empty, whoever is in it."""
    known = is_usable(records.features)
    ids = np.where(known[:, None], records.features, 0.0).astype(np.int64)
    target = np.where(known, np.nan_to_num(np.asarray(records.target)), _NO_CLASS).astype(np.int64)
    first = np.zeros((1, ids.shape[1]), dtype=np.int64)
    return TensorDataset(
        torch.from_numpy(np.concatenate([first, ids])), torch.from_numpy(np.append([_NO_CLASS], target))
    )
