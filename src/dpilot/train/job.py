"""What a run is made of: model, loss, plan and options, checked and ready, before anything is spent."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Final

import torch
from torch import Tensor, nn

from dpilot import engine
from dpilot.engine import batch as batches
from dpilot.mechanism import Draws, Noise
from dpilot.train import checks, optimizers, rehearsal
from dpilot.train.clips import Clips
from dpilot.train.collating import check_one_row, first
from dpilot.train.course import Course, even_rows, per_sample_of, replays, two_passes
from dpilot.train.groups import groups_for
from dpilot.train.labels import null_outside_classes
from dpilot.train.nulls import guarded
from dpilot.train.optimizers import MakeOptimizer
from dpilot.train.options import Options
from dpilot.train.plan import Plan
from dpilot.train.progress import Watch
from dpilot.train.reading import Collate, Reader, known_form, on
from dpilot.train.step import Setting, initial_state

_log: Final = logging.getLogger("dpilot.train")


@dataclass(frozen=True, slots=True)
class Job:
    """A run that could begin."""

    model: nn.Module
    loss_fn: Callable[..., Tensor]
    plan: Plan
    options: Options
    optimizer: torch.optim.Optimizer
    device: torch.device
    collate: Collate | None = None
    example: Any = None
    watch: Watch = field(default_factory=Watch)

    @classmethod
    def checked(
        cls,
        model: nn.Module,
        loss_fn: Callable[..., Tensor],
        plan: Plan,
        options: Options,
        own: MakeOptimizer | torch.optim.Optimizer | None = None,
        **more: Any,
    ) -> Job:
        """The job, or the first thing that is wrong with it; ``own`` is an optimizer of the caller's, or makes one."""
        checks.check_plan(plan)
        checks.check_model(model)
        checks.check_loss(loss_fn)
        device = checks.placed(model, options.device)
        if isinstance(own, torch.optim.Optimizer):
            optimizer = optimizers.check_own(own, model)
        else:
            optimizer = optimizers.build(own or options.optimizer, model, options.lr, options.optimizer_options)
        checks.check_together(options, optimizer, two_passes=two_passes(options, device))
        options = replace(options, groups=groups_for(plan.clipping, model, options.groups))
        loss_fn = null_outside_classes(loss_fn, device)
        return cls(model, loss_fn, plan, options, optimizer, device, **more)._in_chunks(options.chunk_size)

    def reader(self, dataset: Any, form: Any = None) -> Reader:
        """How this run reads its records; those of another form than those of ``form``, a public chunk, are null."""
        one = None if form is None else first(form, batches.size(form, self.options.per_batch))
        return Reader(dataset, self.collate, one, self.device)

    def first_form(self, dataset: Any) -> Any:
        """The form of the first record that can be read, where no example shows it; None where there is none."""
        form = self.reader(dataset).one()
        if form is not None:
            check_one_row(form, self.options.per_batch)
        return form

    def form(self, dataset: Any) -> Any:
        """A chunk in the form of the records, where it is known before one is read; None where it is not."""
        form = known_form(dataset, self.collate) if self.example is None else self.example
        return None if form is None else on(self.device, form)

    def rehearsed(self, form: Any) -> Job:
        """The same job after a try on made-up records, with the size of its chunks settled.

        Edge cases:
            no form    there are no records to try: nothing is run, and chunks are of one
        """
        if form is None:
            return self if self.options.chunk_size is not None else self._in_chunks(1)
        per_sample, per_batch = per_sample_of(self.model, self.loss_fn, self.options), self.options.per_batch
        with rehearsal.aside():
            tried = rehearsal.rehearse(per_sample, form, per_batch=per_batch, public=self.example is not None)
            if self.options.engine == "auto" and tried.engine != "single-backward":
                _log.warning(
                    "gradients are computed one record at a time (%s), which takes several times as long: %s. "
                    "`dpilot doctor` measures it.", tried.engine, tried.reason,
                )  # fmt: skip
            settled = self
            if self.options.chunk_size is None:
                size = rehearsal.chunk_size(per_sample, form, self.plan.expected_batch_size, per_batch=per_batch)
                halved = self.options.low_memory and replays(self.options, self.device)
                settled = self._in_chunks(-(-size // 2) if halved else size)
            settled.refuse_mixing(form)
        return settled

    def refuse_mixing(self, form: Any) -> None:
        """Refuse a model that combines records in chunks of the size that will be used."""
        if self.options.engine in ("auto", "single-backward"):
            size, per_batch = self.options.chunk_size or 2, self.options.per_batch
            chunk = rehearsal.made_up(form, size, per_batch=per_batch)
            engine.refuse_mixing(self.model, self.loss_fn, chunk, per_batch=per_batch)

    def _in_chunks(self, most: int | None) -> Job:
        """The same job in chunks of at most so many records, of a size that most batches fill well."""
        if most is not None:
            expected, low = self.plan.expected_batch_size, self.options.low_memory
            most = even_rows(expected, self.plan.sample_rate, most, low_memory=low)
        return replace(self, options=replace(self.options, chunk_size=most))

    def course(self, noise: Noise, receipt: Draws, form: Any = None) -> Course:
        """The course of the run before its first step; ``form`` is a public chunk of the records' shapes."""
        rows, replayed = self.options.chunk_size, replays(self.options, self.device)
        launched = per_sample_of(self.model, self.loss_fn, self.options, rows, form)
        per_sample = launched
        if replayed:
            per_sample = per_sample_of(self.model, self.loss_fn, self.options, rows, form, replayed=True)
        setting = Setting(
            plan=self.plan,
            model=self.model,
            per_sample=guarded(per_sample, self.model, launched),
            optimizer=self.optimizer,
            noise=noise,
            receipt=receipt,
            groups=self.options.groups,
            clip=Clips(self.plan.clipping, rows) if replayed and rows is not None else None,
        )
        rates = [group["lr"] for group in self.optimizer.param_groups]
        return Course(setting, self.options, initial_state(self.plan, self.model, self.device), rates)
