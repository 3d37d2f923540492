"""``PrivateTrainer``: a ``transformers.Trainer`` whose steps are private.

Its loop, callbacks, schedules, logging and saving are those of transformers. What differs: batches are the
plan's, drawn by Poisson sampling, the price is paid before a record is read, the step is ``PrivateStep``, and only
released values are logged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import TrainOutput

from dpilot.clipping import Clipping
from dpilot.errors import InvalidInput
from dpilot.privacy.budget import Budget
from dpilot.records import RunRecord
from dpilot.train.checkpoint import files
from dpilot.train.own_loop import PrivateStep, poisson_loader
from dpilot.train.payment import Paying
from dpilot.train.plan import Plan
from dpilot.train.run import Run
from dpilot.train.sequences import causal_loss, token_mean

__all__ = ["PrivateTrainer", "default_loss", "tokenize"]

RECORD: Final = "privacy_record.json"
_TIMES: Final = ("train_runtime", "train_samples_per_second", "train_steps_per_second")  # tell of the batches' sizes
_SENSITIVE: Final = ("loss", "grad_norm", "train_loss", "num_input_tokens_seen", *_TIMES)

Loss = Callable[[nn.Module, Any], Tensor]

_REFUSED: Final[tuple[tuple[str, Callable[[Any], bool], str], ...]] = (
    ("gradient_accumulation_steps", lambda n: n != 1, "per_device_train_batch_size is the expected batch; chunk_size "
     "says how much of it is computed at a time"),
    ("group_by_length", bool, "batches are drawn record by record, whatever their length"),
    ("train_sampling_strategy", lambda way: way not in (None, "random"), "batches are drawn by the plan"),
    ("auto_find_batch_size", bool, "the batch size is part of the plan; chunk_size=None finds what fits memory"),
    ("fp16", bool, "loss scaling looks at all gradients: use bf16"),
    ("label_smoothing_factor", bool, "give loss_fn, one loss a record"),
    ("neftune_noise_alpha", bool, "the noise is the mechanism's"),
    ("include_num_input_tokens_seen", lambda way: way not in (False, "no"), "the number of tokens is secret"),
    ("skip_memory_metrics", lambda skipped: not skipped, "memory tells of the batches' sizes"),
    ("debug", bool, "what it prints of activations, and stops for, is the records'"),
    ("deepspeed", bool, "one process trains"),
    ("fsdp", bool, "one process trains"),
    ("torch_compile", bool, "the engine must see the operations"),
    ("use_liger_kernel", bool, "the engine must see the operations"),
)  # fmt: skip


class PrivateTrainer(Trainer):
    """``transformers.Trainer`` under differential privacy.

    Args:
        model, args, data_collator, train_dataset, eval_dataset: those of ``transformers.Trainer``.
            ``args.per_device_train_batch_size`` is the expected batch size. A collator is given one record at a time:
            pad records to one length (``padding="max_length"``), or each length is computed apart.
        budget, size: what the run may cost, and the declared number of records, by default ``len(train_dataset)``,
            which is then published. Steps follow from ``args``.
        plan: instead of both; its steps are those of the run.
        loss_fn: ``loss_fn(model, batch) -> (n,)``, one loss a record; by default that of the model's kind.
        eval_public: says that ``eval_dataset`` is public: what is computed on it is exact, and not protected.

    Guarantee:
        That of ``PrivateStep``: paid before the first record is read, in ``ledger`` or one of its own. Console,
        ``log_history`` and ``trainer_state.json`` hold released values only: no training loss, no norms of gradients.

    Raises:
        InvalidInput: for arguments that would break the promise or mean something else here, with the remedy.
    """

    def __init__(
        self,
        model: Any = None,
        args: TrainingArguments | None = None,
        data_collator: Any = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        *,
        budget: Budget | None = None,
        plan: Plan | None = None,
        size: int | None = None,
        clipping: str | Clipping = "bounded-slack",
        loss_fn: Loss | None = None,
        ledger: Paying = None,
        data_id: str | None = None,
        chunk_size: int | None = None,
        units: Any = None,
        rows_per_unit: int | None = None,
        eval_public: bool = False,
        test_seed: int | None = None,
        **options: Any,
    ) -> None:
        self._eval_public = eval_public
        if eval_dataset is not None:
            self._check_public()
        if options.get("compute_loss_func") is not None:
            raise InvalidInput("compute_loss_func is one loss for a whole batch: give loss_fn(model, batch) -> (n,).")
        super().__init__(model, args, data_collator, train_dataset, eval_dataset, **options)
        assert self.model is not None  # transformers refuses that
        _check_arguments(self.args)
        self.plan = plan or _plan(self.args, train_dataset, budget, size, clipping)
        self.loss_fn = loss_fn or default_loss(self.model)
        self.args.max_steps = self.plan.steps
        self.args.max_grad_norm = 0.0  # each record's gradient is clipped; there is none of a batch to clip
        if self.args.gradient_checkpointing and self.args.gradient_checkpointing_kwargs is None:
            self.args.gradient_checkpointing_kwargs = {"use_reentrant": False}  # the engine sees inside
        self.private_step: PrivateStep | None = None
        self._units = {} if units is None else {"units": units, "rows_per_unit": rows_per_unit}
        self._paying: dict[str, Any] = {"ledger": ledger, "data_id": data_id, "chunk_size": chunk_size}
        self._paying["test_seed"] = test_seed
        self.add_callback(_Payment(self))

    @property
    def record(self) -> RunRecord:
        """What the run released so far."""
        return self._paid_step().record

    @property
    def epsilon(self) -> float:
        """What the run costs, all planned steps counted."""
        return self._paid_step().epsilon

    @property
    def run(self) -> Run:
        """The run as ``dpilot.Trainer`` gives it: to save, to look at its steps, to buy figures of."""
        step = self._paid_step()
        return Run(self.accelerator.unwrap_model(self.model), step.record, step.ledger)

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **options: Any) -> TrainOutput:
        """Train as transformers does. A checkpoint of transformers holds no keys, so a run cannot go on from one."""
        if resume_from_checkpoint:
            raise InvalidInput(
                f"resume_from_checkpoint is {resume_from_checkpoint!r}: a checkpoint of transformers does not hold the "
                "keys of noise and batches, without which a step would be released twice. Train anew, or use "
                "dpilot.Trainer(checkpoint=folder), whose runs can be resumed exactly."
            )
        done = super().train(None, *args, **options)
        metrics = {name: value for name, value in done.metrics.items() if name not in _SENSITIVE}
        return TrainOutput(done.global_step, math.nan, metrics)

    def evaluate(self, eval_dataset: Any = None, *args: Any, **options: Any) -> dict[str, float]:
        """Figures of public records: exact, and logged; other records have ``run.evaluate(data, epsilon=...)``."""
        self._check_public()
        if eval_dataset is not None and eval_dataset is self.train_dataset:
            raise InvalidInput("eval_dataset is train_dataset, which is not public: expected other records.")
        return super().evaluate(eval_dataset, *args, **options)

    def get_train_dataloader(self) -> DataLoader[Any]:
        data, collate = self.train_dataset, self.data_collator
        if hasattr(data, "column_names"):  # a data set of Hugging Face: columns the model does not take are left out
            data = self._remove_unused_columns(data, description="training")
        else:
            collate = self._get_collator_with_removed_columns(collate, description="training")
        workers = self.args.dataloader_num_workers
        return poisson_loader(data, self.plan, collate_fn=collate, num_workers=workers, **self._units)

    def num_examples(self, dataloader: DataLoader[Any]) -> int:
        """The declared number: how many there are is not ours to show."""
        if isinstance(dataloader.batch_sampler, torch.utils.data.Sampler):
            return int(super().num_examples(dataloader))
        return round(self.plan.size)

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """One private step. What transformers would call the loss is not computed for it."""
        del num_items_in_batch
        model.train()
        self._paid_step()(inputs)
        return torch.zeros((), device=self.args.device)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log what was released: threshold and epsilon in place of loss and norms, and figures of public records."""
        del start_time  # by which transformers counts tokens
        shown = {name: value for name, value in logs.items() if name not in _SENSITIVE}
        step = self.private_step
        if step is not None and "learning_rate" in logs and step.record.steps:
            last = step.record.steps[-1]
            shown |= {"epsilon": step.epsilon, "threshold": last.threshold, "bound": last.bound}
        super().log(shown, None)

    def floating_point_ops(self, inputs: Any) -> int:
        """Not counted: it would count the records of a batch."""
        del inputs
        return 0

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save as transformers does, with the record of what was released beside it."""
        super().save_model(output_dir, _internal_call)
        if self.private_step is not None:
            files.write(Path(output_dir or str(self.args.output_dir)) / RECORD, self.record.to_json().encode())

    def _get_num_items_in_batch(self, *args: Any) -> None:
        """Secret."""

    def _track_num_input_tokens(self, inputs: Any) -> None:
        """Secret."""

    def _save_rng_state(self, output_dir: str) -> None:
        """Generators of a private run are not saved: nothing can go on from them."""

    def _check_public(self) -> None:
        if not self._eval_public:
            raise InvalidInput(
                "eval_dataset is given: what is computed on it would be exact, and not private. Say eval_public=True "
                "if its records are public; else buy figures of them: trainer.run.evaluate(data, epsilon=...)."
            )

    def _paid_step(self) -> PrivateStep:
        if self.private_step is None:
            raise InvalidInput("the run has not begun: expected train() before. Nothing was paid or released yet.")
        return self.private_step

    def _pay(self, optimizer: Any) -> None:
        """Make the private step, which pays: transformers calls this once model and optimizer are in their places."""
        self.private_step = PrivateStep(
            self.accelerator.unwrap_model(self.model_wrapped, keep_fp32_wrapper=False),
            self.loss_fn,
            getattr(optimizer, "optimizer", optimizer),
            self.plan,
            per_batch=True,
            amp=self.args.bf16,
            **self._paying,
        )


class _Payment(TrainerCallback):
    """Pays when training begins, before the loader is asked for a batch; books the end."""

    def __init__(self, trainer: PrivateTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **more: Any) -> None:
        del args, state, control, more
        self._trainer._pay(optimizer)

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        del args, state, control, more
        self._trainer._paid_step().finish()


def default_loss(model: nn.Module) -> Loss:
    """One loss a record, by the kind of the model: causal language model, classifier of sequences or tokens.

    Raises:
        InvalidInput: for other kinds: give ``loss_fn(model, batch) -> (n,)``.
    """
    unwrap: Any = getattr(model, "get_base_model", None)  # of peft
    base = model if unwrap is None else unwrap()
    kind = type(base).__name__
    if kind.endswith(("ForCausalLM", "LMHeadModel")):
        return causal_loss
    if kind.endswith(("ForSequenceClassification", "ForImageClassification")):
        return _classification_loss
    if kind.endswith("ForTokenClassification"):
        return _token_loss
    raise InvalidInput(
        f"the model is a {kind}, whose loss is not known: expected loss_fn(model, batch) -> (n,), one loss a record, "
        "each from its own outputs alone."
    )


def tokenize(texts: Sequence[str], tokenizer: Any, max_length: int) -> list[dict[str, Tensor]]:
    """Each text by itself as ids of one length, padded and cut: records for a causal language model.

    The padding is masked, so it is neither attended to nor predicted.
    """
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    how = {"padding": "max_length", "truncation": True, "max_length": max_length, "return_tensors": "pt"}
    found = (tokenizer(text, **how) for text in texts)
    return [{name: each[name][0] for name in ("input_ids", "attention_mask")} for each in found]


def _classification_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    logits, labels = _logits(model, batch)
    if logits.shape[-1] == 1:
        return (logits[:, 0] - labels.to(logits.dtype).reshape(-1)) ** 2
    if labels.dim() == 2:
        return functional.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="none").mean(1)
    return functional.cross_entropy(logits, labels, reduction="none")


def _token_loss(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    return token_mean(*_logits(model, batch))


def _logits(model: nn.Module, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    inputs = {name: value for name, value in batch.items() if name != "labels"}
    return model(**inputs).logits.float(), batch["labels"]


def _plan(
    args: TrainingArguments, data: Any, budget: Budget | None, size: int | None, clipping: str | Clipping
) -> Plan:
    if budget is None:
        raise InvalidInput("neither budget nor plan is given: expected budget=Budget(epsilon, delta), or a Plan.")
    declared = len(data) if size is None else size
    batch = args.per_device_train_batch_size
    how = {"steps": args.max_steps} if args.max_steps > 0 else {"epochs": args.num_train_epochs}
    return Plan.calibrate(budget, size=declared, batch_size=min(batch, declared), clipping=clipping, **how)


def _check_arguments(args: TrainingArguments) -> None:
    for name, is_wrong, remedy in _REFUSED:
        value = getattr(args, name, None)
        if value is not None and is_wrong(value):
            raise InvalidInput(f"{name} is {value!r}, which a private run does not take: {remedy}.")
    if args.world_size > 1 or args.n_gpu > 1:
        raise InvalidInput(
            f"{args.world_size} processes with {args.n_gpu} GPUs each would train: expected one process with one GPU "
            "at most. Set CUDA_VISIBLE_DEVICES to one of them."
        )
