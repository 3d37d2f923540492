"""``PrivateTrainer``: a ``transformers.Trainer`` whose steps are private.

Its loop, callbacks, schedules, logging and saving are those of transformers. What differs: batches are the
plan's, drawn by Poisson sampling, the price is paid before a record is read, the step is ``PrivateStep``, and only
released values are logged.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from huggingface_hub import ModelCard
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import SaveStrategy, TrainOutput, get_last_checkpoint

from dpilot.clipping import Clipping
from dpilot.errors import InvalidInput
from dpilot.privacy.budget import Budget
from dpilot.privacy.ledger import Committed, Ledger
from dpilot.records import RunRecord
from dpilot.report.about import About
from dpilot.report.card import model_card, to_yaml
from dpilot.train.checkpoint import files
from dpilot.train.checkpoint.statement import claims, write_statement
from dpilot.train.checkpoint.store import MANIFEST
from dpilot.train.own_loop import PrivateStep, poisson_loader
from dpilot.train.payment import LEDGER, Paying, own_ledger, use_of
from dpilot.train.plan import Plan
from dpilot.train.run import Run, step_numbers
from dpilot.train.sequences import IGNORED, causal_loss, token_mean
from dpilot.train.trainer import secret_path

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
    ("deepspeed", bool, "each process holds the whole model"),
    ("fsdp", bool, "each process holds the whole model"),
    ("torch_compile", bool, "the engine must see the operations"),
    ("use_liger_kernel", bool, "the engine must see the operations"),
    # of TRL's SFTConfig, whose trainer makes records and loss itself
    ("packing", bool, "a record is padded by itself: sft.SFTDataset makes records of one length"),
    ("padding_free", bool, "a record is padded by itself: sft.SFTDataset makes records of one length"),
    ("loss_type", lambda kind: kind not in ("nll", "chunked_nll"), "give loss_fn, one loss a record"),
    ("assistant_only_loss", bool, "sft.SFTDataset learns completions: give rows of prompt and completion"),
    ("completion_only_loss", lambda only: only is False, "sft.SFTDataset learns completions: give rows of text"),
    ("truncation_mode", lambda way: way != "keep_start", "sft.SFTDataset cuts a record at its end"),
    ("dataset_text_field", lambda name: name != "text", "sft.SFTDataset reads it from a row's \"text\""),
)  # fmt: skip


class PrivateTrainer(Trainer):
    """``transformers.Trainer`` under differential privacy.

    Args:
        model, args, data_collator, train_dataset, eval_dataset: those of ``transformers.Trainer``.
            ``args.per_device_train_batch_size``, times the processes, is the expected batch size. A collator is given
            one record at a time: pad records to one length (``padding="max_length"``), or each length is computed
            apart.
        budget, size: what the run may cost, and the declared number of records, by default ``len(train_dataset)``,
            which is then published. Steps follow from ``args``.
        plan: instead of both; its steps are those of the run.
        loss_fn: ``loss_fn(model, batch) -> (n,)``, one loss a record; by default that of the model's kind.
        eval_public: says that ``eval_dataset`` is public: what is computed on it is exact, and not protected.

    Guarantee:
        That of ``PrivateStep``: paid before the first record is read, in ``ledger`` or one of its own. Console,
        ``log_history`` and ``trainer_state.json`` hold released values only: no training loss, no norms of gradients.

    Edge cases:
        several processes (torchrun, accelerate launch)    train together: rank 0 pays, logs and saves; a run cannot be
                                                           resumed then, so ``save_only_model=True`` is asked for

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
            _check_others(eval_dataset, train_dataset)
        if options.get("compute_loss_func") is not None:
            raise InvalidInput("compute_loss_func is one loss for a whole batch: give loss_fn(model, batch) -> (n,).")
        super().__init__(model, args, data_collator, train_dataset, eval_dataset, **options)
        assert self.model is not None  # transformers refuses that
        _check_arguments(self.args)
        if self.accelerator.mixed_precision == "fp16":  # which the settings of accelerate launch may say
            raise InvalidInput("accelerate's mixed_precision is 'fp16': loss scaling looks at all gradients: use bf16.")
        if units is not None and plan is None and size is None:
            raise InvalidInput(
                "units are given without size: expected size=, the declared number of units, not of rows."
            )
        self.plan = plan or _plan(self.args, train_dataset, budget, size, clipping)
        self.loss_fn = loss_fn or default_loss(self.model)
        self.args.max_steps = self.plan.steps
        # what DistributedDataParallel would add up are gradients that nobody clipped: the step adds what ranks clipped
        self.accelerator.prepare_model = partial(self.accelerator.prepare_model, evaluation_mode=True)
        self.args.max_grad_norm = 0.0  # each record's gradient is clipped; there is none of a batch to clip
        if self.args.gradient_checkpointing and self.args.gradient_checkpointing_kwargs is None:
            self.args.gradient_checkpointing_kwargs = {"use_reentrant": False}  # the engine sees inside
        self.private_step: PrivateStep | None = None
        self._stored: Path | None = None  # the checkpoint to go on from
        self._units = {} if units is None else {"units": units, "rows_per_unit": rows_per_unit}
        self._paying: dict[str, Any] = {"ledger": ledger, "data_id": data_id, "chunk_size": chunk_size}
        self._paying["test_seed"] = test_seed
        if self.args.world_size > 1 and self._resumable:
            raise InvalidInput(
                f"{self.args.world_size} processes train together, and save_strategy is "
                f"{str(self.args.save_strategy)!r}: expected save_only_model=True, or save_strategy='no', as such a "
                "run cannot be resumed. dpilot.Trainer resumes on any number of ranks."
            )
        self.add_callback(_Payment(self))

    @property
    def record(self) -> RunRecord:
        """What the run released so far."""
        return self._require_step().record

    @property
    def epsilon(self) -> float:
        """What the run costs, all planned steps counted."""
        return self._require_step().epsilon

    @property
    def run(self) -> Run:
        """The run as ``dpilot.Trainer`` gives it: to save, to look at its steps, to buy figures of."""
        return self._require_step().run

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **options: Any) -> TrainOutput:
        """Train as transformers does; with ``resume_from_checkpoint`` go on with a run, exactly, and pay nothing again.

        A checkpoint is one of this trainer's, the newest that is whole: the run's keys, in a file beside
        ``output_dir``, are those of the steps after it.
        """
        self._stored = _find_checkpoint(resume_from_checkpoint, str(self.args.output_dir))
        self.args.ignore_data_skip = True  # the loader yields what is left
        try:
            done = super().train(None if self._stored is None else str(self._stored), *args, **options)
        except BaseException:
            if self.private_step is not None:
                self.private_step.__exit__(*sys.exc_info())
            raise
        metrics = {name: value for name, value in done.metrics.items() if name not in _SENSITIVE}
        return TrainOutput(done.global_step, math.nan, metrics)

    def evaluate(self, eval_dataset: Any = None, *args: Any, **options: Any) -> dict[str, float]:
        """Figures of public records: exact, and logged; other records have ``run.evaluate(data, epsilon=...)``."""
        self._check_public(eval_dataset)
        return super().evaluate(eval_dataset, *args, **options)

    def predict(self, test_dataset: Any, *args: Any, **options: Any) -> Any:
        """Outputs and figures of public records: exact, and not protected."""
        self._check_public(test_dataset)
        return super().predict(test_dataset, *args, **options)

    def hyperparameter_search(self, *args: Any, **options: Any) -> Any:
        """Refused: each trial would be a run of its own, and only the best one's price would be seen."""
        del args, options
        raise InvalidInput(
            "hyperparameter_search trains once a trial: expected a PrivateTrainer for each, of one ledger=, which adds "
            "their prices up."
        )

    def get_train_dataloader(self) -> DataLoader[Any]:
        data, collate = self.train_dataset, self.data_collator
        if hasattr(data, "column_names"):  # a data set of Hugging Face: columns the model does not take are left out
            data = self._remove_unused_columns(data, description="training")
        else:
            collate = self._get_collator_with_removed_columns(collate, description="training")
        workers = self.args.dataloader_num_workers
        how: dict[str, Any] = {"collate_fn": collate, "num_workers": workers, "epoch_steps": self._epoch_steps}
        return poisson_loader(data, self.plan, **how, **self._units)

    def num_examples(self, dataloader: DataLoader[Any]) -> int:
        """The declared number: how many there are is not ours to show."""
        if isinstance(dataloader.batch_sampler, torch.utils.data.Sampler):
            return int(super().num_examples(dataloader))
        return round(self.plan.size)

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """One private step. What transformers would call the loss is not computed for it."""
        del num_items_in_batch
        model.train()
        self._require_step()(inputs)
        return torch.zeros((), device=self.args.device)

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """Log epsilon and all that the last step released in place of loss and norms, and figures of public records."""
        del start_time  # by which transformers counts tokens
        shown = {name: value for name, value in logs.items() if name not in _SENSITIVE}
        step = self.private_step
        if step is not None and "learning_rate" in logs and step.record.steps:
            shown |= {"epsilon": step.epsilon, **step_numbers(step.record.steps[-1])}
        super().log(shown, None)

    def floating_point_ops(self, inputs: Any) -> int:
        """Not counted: it would count the records of a batch."""
        del inputs
        return 0

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save as transformers does, ready to be pushed: with the record of what was released, a model card, and the
        privacy statement of all files, which ``dpilot verify`` checks.
        """
        super().save_model(output_dir, _internal_call)
        folder = Path(output_dir or str(self.args.output_dir))
        if self.private_step is not None and self.args.should_save:
            files.write(folder / RECORD, self.record.to_json().encode())
            if not _internal_call:
                self._write_card(folder, folder.resolve().name)

    def create_model_card(self, *args: Any, model_name: str | None = None, **options: Any) -> None:
        """The card that says what is promised, with what transformers knows of the model, as ``push_to_hub`` asks."""
        super().create_model_card(*args, **{**options, "model_name": model_name})
        folder = Path(str(self.args.output_dir))
        if self.is_world_process_zero():
            self._write_card(folder, model_name or folder.resolve().name)

    def _write_card(self, folder: Path, title: str) -> None:
        run, path = self.run, folder / "README.md"
        known = _fields(ModelCard.load(path)) if path.exists() else {}  # what transformers or peft wrote
        card = ModelCard(model_card(run.fit_record(), title, About.of()))
        base = getattr(getattr(self.model, "config", None), "_name_or_path", "")
        data = {**_fields(card), **({"base_model": base} if base else {})}
        data |= {name: value for name, value in known.items() if name not in ("model-index", "tags")}
        data["library_name"] = "peft" if hasattr(self.model, "peft_config") else "transformers"
        data["tags"] = list(dict.fromkeys([*_fields(card)["tags"], *(known.get("tags") or ())]))
        files.write(path, f"---\n{to_yaml(data)}---\n{card.text}".encode())
        write_statement(folder, claims(run.record))

    def _get_num_items_in_batch(self, *args: Any) -> None:
        """Secret."""

    def _track_num_input_tokens(self, inputs: Any) -> None:
        """Secret."""

    def _save_rng_state(self, output_dir: str) -> None:
        """What a run goes on from, in place of the state of generators, which would tell how large batches were."""
        if self.private_step is not None and self._resumable:
            self.private_step.save_checkpoint(output_dir)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """None is stored: a step draws from the run's own keys."""

    @property
    def _epoch_steps(self) -> int:
        """The steps in which a record is read once, on average."""
        return min(self.plan.steps, round(1 / self.plan.sample_rate))

    @property
    def _resumable(self) -> bool:
        """Whether checkpoints are written from which a run can go on."""
        saved = self.args.save_strategy != SaveStrategy.NO and not self.args.save_only_model
        return saved and not isinstance(self._paying["ledger"], Committed)

    def _check_public(self, data: Any = None) -> None:
        if not self._eval_public:
            raise InvalidInput(
                "eval_dataset is given: what is computed on it would be exact, and not private. Say eval_public=True "
                "if its records are public; else buy figures of them: trainer.run.evaluate(data, epsilon=...)."
            )
        if data is not None:
            _check_others(data, self.train_dataset)

    def _require_step(self) -> PrivateStep:
        if self.private_step is None:
            raise InvalidInput("the run has not begun: expected train() before. Nothing was paid or released yet.")
        return self.private_step

    def _pay(self, optimizer: Any) -> None:
        """Make the private step, which pays: transformers calls this once model and optimizer are in their places."""
        model = self.accelerator.unwrap_model(self.model_wrapped, keep_fp32_wrapper=False)
        moved = getattr(optimizer, "optimizer", optimizer)
        folder = Path(str(self.args.output_dir))
        secret = secret_path(folder, None) if self._resumable else None
        ledger = self._paying["ledger"]
        if self._stored is not None:
            book = None if isinstance(ledger, Committed) else ledger
            place: dict[str, Any] = {"plan": self.plan, "ledger": book, "secret": secret}
            self.private_step = PrivateStep.resume(self._stored, model, self.loss_fn, moved, **place)
            return
        if secret is not None and ledger is None:
            ledger = _own_ledger(folder, replace(self.plan, unit=use_of(self.plan).unit), self._paying["data_id"])
        paying = {**self._paying, "ledger": ledger, "secret": secret}
        how: dict[str, Any] = {"per_batch": True, "amp": self.accelerator.mixed_precision == "bf16", **paying}
        self.private_step = PrivateStep(model, self.loss_fn, moved, self.plan, **how)


class _Payment(TrainerCallback):
    """Pays when training begins, before the loader is asked for a batch; books the end."""

    def __init__(self, trainer: PrivateTrainer) -> None:
        self._trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **more: Any) -> None:
        del args, state, control, more
        self._trainer._pay(optimizer)

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        del args, control, more
        state.epoch = (
            state.global_step / self._trainer._epoch_steps
        )  # which a resumed run would count from its resumption

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        del args, state, control, more
        self._trainer._require_step().finish()


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
    """Each text by itself as ids and labels of one length, padded and cut: records for a causal language model.

    The padding is masked, so it is neither attended to nor predicted.
    """
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    how = {"padding": "max_length", "truncation": True, "max_length": max_length, "return_tensors": "pt"}
    found = (tokenizer(text, **how) for text in texts)
    return [_labelled(each["input_ids"][0], each["attention_mask"][0]) for each in found]


def _labelled(ids: Tensor, mask: Tensor) -> dict[str, Tensor]:
    """A record with the labels that transformers asks for where it evaluates."""
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.where(mask.bool(), ids, IGNORED)}


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
    batch = args.per_device_train_batch_size * args.world_size
    how: dict[str, Any] = {"steps": args.max_steps} if args.max_steps > 0 else {"epochs": args.num_train_epochs}
    how |= {"clipping": clipping, "public_size": size is None}
    return Plan.calibrate(budget, size=declared, batch_size=min(batch, declared), **how)


def _own_ledger(folder: Path, plan: Plan, data_id: str | None) -> Ledger:
    """A ledger of the run's own, which a resumed run comes back to."""
    if (folder / LEDGER).exists():
        raise InvalidInput(
            f"{folder} holds the ledger of an earlier run: expected a folder for each run, or ledger=, the path of one "
            "that counts all runs on these records."
        )
    return own_ledger(plan, folder, data_id)


def _fields(card: ModelCard) -> dict[str, Any]:
    """The front matter of a model card."""
    found: dict[str, Any] = card.data.to_dict()  # type: ignore[no-untyped-call]
    return found


def _find_checkpoint(asked: Any, folder: str) -> Path | None:
    """The checkpoint to go on from: the one that is named, or the last in ``folder``."""
    found: Any = get_last_checkpoint(folder) if asked is True else asked  # type: ignore[no-untyped-call]
    if not found:
        if asked:
            raise InvalidInput(f"resume_from_checkpoint is {asked!r}, and {folder} holds no checkpoint: train anew.")
        return None
    if not (Path(found) / MANIFEST).exists():
        raise InvalidInput(
            f"resume_from_checkpoint is {str(found)!r}, which holds no private run: without the keys of its noise and "
            "batches a step would be released twice. Name a checkpoint of this trainer, or train anew."
        )
    return Path(found)


def _check_others(data: Any, private: Any) -> None:
    """Refuse the private records themselves as those that are said to be public, one data set or several by name."""
    if private is not None and any(each is private for each in (data.values() if isinstance(data, dict) else [data])):
        raise InvalidInput("the records are train_dataset, which is not public: expected other records.")


def _check_arguments(args: TrainingArguments) -> None:
    for name, is_wrong, remedy in _REFUSED:
        value = getattr(args, name, None)
        if value is not None and is_wrong(value):
            raise InvalidInput(f"{name} is {value!r}, which a private run does not take: {remedy}.")
    if args.n_gpu > 1:
        raise InvalidInput(
            f"one process would train on {args.n_gpu} GPUs: expected one GPU for each process. Start one for each GPU, "
            "torchrun --nproc-per-node, or set CUDA_VISIBLE_DEVICES to one of them."
        )
