"""transformers.Trainer, private: its loop and files, our batches, price, steps and words."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")
peft = pytest.importorskip("peft")

from huggingface_hub import ModelCard  # noqa: E402

from dpilot import Budget, Ledger, Plan, PrivateStep, audit, poisson_loader  # noqa: E402
from dpilot.audit.verify import verify  # noqa: E402
from dpilot.errors import BudgetExceeded, InvalidInput  # noqa: E402
from dpilot.integrations import hf  # noqa: E402
from dpilot.integrations.hf import PrivateTrainer, default_loss, tokenize  # noqa: E402
from dpilot.records import PUBLISHED_SIZE, RunRecord  # noqa: E402
from dpilot.train.checkpoint.statement import claims  # noqa: E402
from dpilot.train.run import step_numbers  # noqa: E402
from dpilot.train.sequences import causal_loss  # noqa: E402
from tests.integrations import hf_ranks  # noqa: E402
from tests.integrations.test_trackers import is_frame, tracked  # noqa: E402

SIZE, LENGTH = 60, 8
BUDGET = Budget(8.0, 1e-4)


def gpt2(*, lora: bool = True) -> nn.Module:
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=20, n_positions=LENGTH, n_embd=8, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    model = transformers.GPT2LMHeadModel(config)
    if not lora:
        return model  # type: ignore[no-any-return]
    return peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))  # type: ignore[no-any-return]


def records(size: int = SIZE) -> list[dict[str, Tensor]]:
    ids = torch.randint(1, 20, (size, LENGTH), generator=torch.Generator().manual_seed(1))
    return [{"input_ids": each, "attention_mask": torch.ones(LENGTH, dtype=torch.long)} for each in ids]


def arguments(folder: Path, **more: Any) -> Any:
    common = {"report_to": [], "use_cpu": True, "disable_tqdm": True, "save_strategy": "no", "logging_steps": 1}
    how = {"per_device_train_batch_size": 20, "num_train_epochs": 1, "learning_rate": 1e-2}
    return transformers.TrainingArguments(str(folder), **{**common, **how, **more})


SCHEDULE = {"learning_rate", "epoch", "step", "total_flos"}


def trainer(folder: Path, model: Any = None, data: Any = None, **more: Any) -> PrivateTrainer:
    options = {
        name: more.pop(name) for name in tuple(more) if name in transformers.TrainingArguments.__dataclass_fields__
    }
    more = {"budget": BUDGET, **more}
    return PrivateTrainer(model or gpt2(), arguments(folder, **options), train_dataset=data or records(), **more)


def test_it_takes_every_planned_step_and_logs_what_was_released(tmp_path: Path) -> None:
    made = trainer(tmp_path, save_strategy="steps", save_steps=2, ledger=str(tmp_path / "a.ledger"))
    done = made.train()
    assert made.state.global_step == made.plan.steps == len(made.record.steps) == 3
    assert made.epsilon <= 8.0
    assert math.isnan(done.training_loss)
    state = json.loads((tmp_path / "checkpoint-3" / "trainer_state.json").read_text())
    released = [{"epsilon": made.epsilon, **step_numbers(each)} for each in made.record.steps]
    assert [{name: log[name] for name in log if name not in SCHEDULE} for log in state["log_history"]] == released
    assert {name for log in made.state.log_history for name in log} <= {*SCHEDULE, *released[0]}
    told = {name: each for name, each in tracked(made).items() if name not in ("epsilon", "delta")}
    assert is_frame(told, made.run.steps())
    assert not list(tmp_path.rglob("rng_state*"))
    assert [entry.state for entry in Ledger.read(tmp_path / "a.ledger").entries()] == ["committed"]


def test_its_weights_are_those_of_the_same_steps_in_a_loop_of_ones_own(tmp_path: Path) -> None:
    made = trainer(tmp_path, lr_scheduler_type="constant", optim="sgd", test_seed=3)
    made.train()
    model, plan = gpt2(), Plan.from_json(made.plan.to_json())
    optimizer = torch.optim.SGD([each for each in model.parameters() if each.requires_grad], lr=1e-2)
    loader = poisson_loader(records(), plan, collate_fn=made.data_collator)
    step = PrivateStep(model, causal_loss, optimizer, plan, per_batch=True, test_seed=3)
    model.train()
    for batch in loader:
        step(batch)
    mine, theirs = model.state_dict(), made.model.state_dict()
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert not all(torch.equal(each, theirs[name]) for name, each in gpt2().state_dict().items())


def test_nothing_is_read_before_it_is_paid(tmp_path: Path) -> None:
    class Watched(list[Any]):
        reads = 0

        def __getitem__(self, index: Any) -> Any:
            self.reads += 1
            return super().__getitem__(index)

    ledger = Ledger.open(tmp_path / "a.ledger", dataset="d", budget=Budget(1.0, 1e-4))
    data = Watched(records())
    made = trainer(tmp_path, data=data, ledger=ledger)
    with pytest.raises(BudgetExceeded):
        made.train()
    assert data.reads == 0


def test_a_record_more_changes_no_release_by_more_than_its_bound(tmp_path: Path, replay: Any) -> None:
    def run(rows: Any) -> None:
        ids = torch.from_numpy(np.array(rows)) % 20
        data = [{"input_ids": row, "attention_mask": torch.ones_like(row)} for row in ids]
        plan = Plan.calibrate(BUDGET, size=12, batch_size=6, steps=2)
        trainer(tmp_path, data=data, plan=plan).train()

    replay(run, pairs=audit.neighbours(np.random.default_rng(0).integers(1, 20, (12, LENGTH)))[:1])


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"gradient_accumulation_steps": 2}, "expected batch"),
    ({"auto_find_batch_size": True}, "part of the plan"),
    ({"label_smoothing_factor": 0.1}, "one loss a record"),
    ({"include_num_input_tokens_seen": "all"}, "secret"),
    ({"neftune_noise_alpha": 5.0}, "mechanism"),
    ({"skip_memory_metrics": False}, "batches' sizes"),
    ({"debug": "underflow_overflow"}, "activations"),
    ({"eval_dataset": records(2)}, "eval_public=True"),
    ({"compute_loss_func": lambda *_: None}, "one loss for a whole batch"),
    ({"budget": None}, "neither budget nor plan"),
]


@pytest.mark.parametrize(("option", "words"), REFUSALS, ids=[str(next(iter(each))) for each, _ in REFUSALS])
def test_what_breaks_the_promise_is_refused_with_the_remedy(tmp_path: Path, option: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        trainer(tmp_path, **option)


def test_records_that_were_not_called_public_are_not_evaluated(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    made.train()
    with pytest.raises(InvalidInput, match="eval_public=True"):
        made.evaluate(made.train_dataset)
    made.eval_dataset = records(2)
    with pytest.raises(InvalidInput, match="eval_public=True"):
        made.evaluate()
    assert not [name for log in made.state.log_history for name in log if name.startswith("eval")]
    with pytest.raises(InvalidInput, match="are train_dataset"):
        trainer(tmp_path, data=(same := records()), eval_dataset={"a": records(2), "b": same}, eval_public=True)
    with pytest.raises(InvalidInput, match="are train_dataset"):
        (public := trainer(tmp_path, eval_dataset=records(2), eval_public=True)).evaluate(public.train_dataset)
    with pytest.raises(InvalidInput, match="are train_dataset"):
        public.predict(public.train_dataset)
    with pytest.raises(InvalidInput, match="a PrivateTrainer for each"):
        public.hyperparameter_search(n_trials=2)
    with pytest.raises(InvalidInput, match="eval_public=True"):
        made.predict(records(2))
    assert public.predict(records(2)).predictions.shape == (2, LENGTH, 20)


def test_a_run_that_has_not_begun_and_a_folder_without_keys_are_refused(tmp_path: Path) -> None:
    made = trainer(tmp_path)
    with pytest.raises(InvalidInput, match="holds no checkpoint"):
        made.train(resume_from_checkpoint=True)
    with pytest.raises(InvalidInput, match="holds no private run"):
        made.train(resume_from_checkpoint=str(tmp_path))
    with pytest.raises(InvalidInput, match="has not begun"):
        _ = made.epsilon


def test_settings_of_trl_train_as_those_of_transformers_and_what_they_would_change_is_refused(tmp_path: Path) -> None:
    trl = pytest.importorskip("trl")
    common = {"per_device_train_batch_size": 20, "max_steps": 2, "learning_rate": 1e-2, "save_strategy": "no"}
    common |= {"report_to": [], "use_cpu": True, "disable_tqdm": True, "bf16": False}
    weights = []
    for kind in (trl.SFTConfig, transformers.TrainingArguments):  # the first with gradient checkpointing, by default
        torch.manual_seed(0)
        model = llama()
        PrivateTrainer(
            model, kind(str(tmp_path), **common), train_dataset=records(), budget=BUDGET, test_seed=3
        ).train()
        weights.append(model.state_dict())
    assert all(torch.allclose(weights[0][name], weights[1][name], atol=1e-6) for name in weights[0])
    for more in (
        {"packing": True},
        {"loss_type": "dft"},
        {"assistant_only_loss": True},
        {"completion_only_loss": False},
    ):
        with pytest.raises(InvalidInput, match=f"{next(iter(more))} is"):
            PrivateTrainer(
                gpt2(), trl.SFTConfig(str(tmp_path), **common, **more), train_dataset=records(), budget=BUDGET
            )


@pytest.mark.slow
def test_two_processes_train_as_one_does_and_rank_0_alone_pays_and_speaks(tmp_path: Path) -> None:
    both, one = tmp_path / "both", tmp_path / "one"
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    done = subprocess.run(
        [*command, "-m", "tests.integrations.hf_ranks", str(both)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    alone = hf_ranks.train(one)
    mine, (first, second) = alone.model.state_dict(), (torch.load(both / f"weights.{rank}") for rank in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert all(torch.allclose(mine[name], first[name], atol=1e-6) for name in mine)
    assert done.stdout.count("threshold") == len(alone.record.steps) == 4
    (entry,) = Ledger.read(both / "a.ledger").entries()
    assert entry.state == "committed"
    assert entry.cost.epsilon == alone.epsilon
    found = verify(both / "model", ledger=both / "a.ledger")
    assert [each.name for each in found.checks if not each.held] == ["signature", "noise"]  # unsigned; of a test's seed


def test_the_precision_is_that_of_accelerate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    class Watched(PrivateStep):
        def __init__(self, *args: Any, **how: Any) -> None:
            seen.update(how)
            super().__init__(*args, **how)

    monkeypatch.setattr(hf, "PrivateStep", Watched)
    for said, amp in (("no", False), ("bf16", True), ("fp16", None)):
        made = trainer(tmp_path, max_steps=1)
        monkeypatch.setattr(type(made.accelerator), "mixed_precision", said)
        if amp is not None:
            made.train()
            assert seen["amp"] is amp
    with pytest.raises(InvalidInput, match="use bf16"):
        trainer(tmp_path)


def test_processes_that_could_not_be_resumed_say_so_before_they_pay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformers.TrainingArguments, "world_size", 2)
    with pytest.raises(InvalidInput, match="save_only_model=True"):
        trainer(tmp_path, save_strategy="steps")
    assert trainer(tmp_path).plan.expected_batch_size == 40


class _Stop(transformers.TrainerCallback):
    """Ends the process, as far as a run can tell, after ``step`` steps."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        if state.global_step == self.step:
            raise KeyboardInterrupt


@pytest.mark.slow
def test_a_run_that_was_stopped_goes_on_from_its_checkpoint_and_ends_as_one_that_was_not(tmp_path: Path) -> None:
    how = {"num_train_epochs": 2, "save_strategy": "steps", "save_steps": 2, "test_seed": 3, "save_total_limit": 1}
    whole = trainer(tmp_path / "whole", **how)
    whole.train()
    cut = trainer(tmp_path / "cut", callbacks=[_Stop(4)], **how)  # the checkpoint after step 4 is not written any more
    with pytest.raises(KeyboardInterrupt):
        cut.train()
    assert (tmp_path / ".cut.secret").exists()
    again = trainer(tmp_path / "cut", **how)
    again.train(resume_from_checkpoint=True)
    one, other = whole.model.state_dict(), again.model.state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert again.state.log_history == whole.state.log_history
    assert [log["epoch"] for log in whole.state.log_history][:6] == pytest.approx([place / 3 for place in range(1, 7)])
    assert len(Ledger.read(tmp_path / "cut" / "ledger").entries()) == 1
    assert not list(tmp_path.glob(".cut.secret*"))
    with pytest.raises(InvalidInput, match="ledger of an earlier run"):
        trainer(tmp_path / "cut", **how).train()


@pytest.mark.slow
def test_nothing_goes_on_without_the_secret(tmp_path: Path) -> None:
    how = {"save_strategy": "steps", "save_steps": 1}
    with pytest.raises(KeyboardInterrupt):
        trainer(tmp_path / "cut", callbacks=[_Stop(2)], **how).train()
    (tmp_path / ".cut.secret").unlink()
    with pytest.raises(InvalidInput, match="without the run's secret"):
        trainer(tmp_path / "cut", **how).train(resume_from_checkpoint=True)


@pytest.mark.slow
def test_what_is_saved_loads_and_generates(tmp_path: Path) -> None:
    made = trainer(tmp_path, model=gpt2(lora=False), gradient_checkpointing=True)
    made.train()
    made.save_model(str(tmp_path / "model"))
    again = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "model")
    assert again.generate(torch.tensor([[1, 2]]), max_new_tokens=3, do_sample=False).shape == (1, 5)
    saved = json.loads((tmp_path / "model" / hf.RECORD).read_text())
    assert saved["epsilon"] == made.epsilon
    folder = made.run.save(tmp_path / "run")
    assert verify(folder).held


def test_a_folder_to_push_has_a_card_that_says_the_promise_and_a_statement_of_all_files(tmp_path: Path) -> None:
    made = trainer(tmp_path / "out")
    made.train()
    made.save_model(str(tmp_path / "model"))
    card = ModelCard.load(tmp_path / "model" / "README.md")
    assert card.data.library_name == "peft"
    assert "differential-privacy" in card.data.tags
    assert "(epsilon 7.99" in card.text
    assert verify(tmp_path / "model").held
    made.create_model_card(model_name="letters")
    assert "# letters" in (tmp_path / "out" / "README.md").read_text()
    weights = tmp_path / "model" / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert not verify(tmp_path / "model").held


def test_a_classifier_of_sequences_with_public_validation(tmp_path: Path) -> None:
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, num_labels=3,
        max_position_embeddings=LENGTH,
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config)
    data = [{**each, "labels": torch.tensor(place % 3), "name": "x"} for place, each in enumerate(records())]
    made = trainer(
        tmp_path,
        model=model,
        data=data,
        eval_dataset=data[:8],
        eval_public=True,
        eval_strategy="epoch",
        units=range(SIZE),
        size=SIZE,
    )
    made.train()
    assert [log["eval_loss"] for log in made.state.log_history if "eval_loss" in log]
    assert made.record.plan["unit"]["name"] == "unit"


def test_the_number_of_persons_is_declared(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="expected size=, the declared number of units, not of rows"):
        trainer(tmp_path, units=range(SIZE), size=None)


def test_losses_are_one_a_record() -> None:
    class Outputs:
        def __init__(self, logits: Tensor) -> None:
            self.logits = logits

    class TinyForSequenceClassification(nn.Module):
        def forward(self, logits: Tensor) -> Outputs:
            return Outputs(logits)

    class TinyForTokenClassification(TinyForSequenceClassification):
        pass

    whole, model = torch.zeros(2, 4), TinyForSequenceClassification()
    loss = default_loss(model)
    assert loss(model, {"logits": whole, "labels": torch.tensor([0, 3])}).tolist() == pytest.approx([math.log(4)] * 2)
    assert loss(model, {"logits": torch.ones(2, 1), "labels": torch.tensor([1.0, 3.0])}).tolist() == [0.0, 4.0]
    assert loss(model, {"logits": whole, "labels": torch.ones(2, 4)}).shape == (2,)
    tokens = default_loss(TinyForTokenClassification())
    assert tokens(model, {"logits": torch.zeros(2, 3, 4), "labels": torch.zeros(2, 3).long()}).shape == (2,)
    with pytest.raises(InvalidInput, match="whose loss is not known"):
        default_loss(nn.Linear(1, 1))


def test_texts_become_records_of_one_length() -> None:
    class Tokenizer:
        pad_token, eos_token = None, "."

        def __call__(self, text: str, *, max_length: int, **how: Any) -> dict[str, Tensor]:
            ids = torch.tensor([[ord(each) for each in text[:max_length].ljust(max_length)]])
            return {"input_ids": ids, "attention_mask": (ids != ord(" ")).long()}

    found = tokenize(["ab", "abcdef"], Tokenizer(), 4)
    assert [each["attention_mask"].tolist() for each in found] == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert found[0]["labels"].tolist() == [*map(ord, "ab"), -100, -100]


def llama() -> nn.Module:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=20, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=LENGTH, bos_token_id=0, eos_token_id=0, pad_token_id=0,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)  # type: ignore[no-any-return]


def quantized(model: nn.Module) -> nn.Module:
    """The model with its linear layers in four bits, as QLoRA has them."""
    bnb = pytest.importorskip("bitsandbytes")
    for name, layer in [(n, m) for n, m in model.named_modules() if type(m) is nn.Linear and n != "lm_head"]:
        made = bnb.nn.Linear4bit(layer.in_features, layer.out_features, bias=False, quant_type="nf4")
        made.weight = bnb.nn.Params4bit(layer.weight.data, requires_grad=False, quant_type="nf4")
        model.set_submodule(name, made.to("cpu"))
    return model.requires_grad_(False)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of bitsandbytes, about its kernels
@pytest.mark.parametrize("kind", ["dora", "qlora"])
def test_adapters_of_weights_and_of_a_base_in_four_bits_train_and_generate(tmp_path: Path, kind: str) -> None:
    base = quantized(llama()) if kind == "qlora" else llama()
    how = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], use_dora=kind == "dora")
    model = peft.get_peft_model(base, how)
    before = {name: each.clone() for name, each in model.named_parameters()}
    made = trainer(tmp_path, model=model)
    made.train()
    moved = {name for name, each in model.named_parameters() if not torch.equal(each, before[name])}
    assert moved
    assert moved <= {name for name, each in model.named_parameters() if each.requires_grad}
    assert any("lora" in name for name in moved)
    if kind == "dora":
        assert any("magnitude" in name for name in moved)
    asked = {"input_ids": torch.tensor([[1, 2]]), "attention_mask": torch.ones(1, 2, dtype=torch.long)}
    assert model.generate(**asked, max_new_tokens=3, min_new_tokens=3, do_sample=False).shape == (1, 5)


def test_a_loop_of_accelerate_takes_private_steps() -> None:
    import accelerate
    from torch.utils.data import TensorDataset

    data = TensorDataset(torch.randn(64, 3), torch.arange(64) % 2)
    plan = Plan.calibrate(BUDGET, size=64, batch_size=8, steps=3)
    model = nn.Linear(3, 2)
    prepared = accelerate.Accelerator(cpu=True).prepare(
        model, torch.optim.SGD(model.parameters(), lr=0.1), poisson_loader(data, plan)
    )
    step = PrivateStep(model, nn.CrossEntropyLoss(reduction="none"), prepared[1], plan)
    for batch in prepared[2]:
        step(batch)
    assert len(step.record.steps) == 3


def test_a_size_that_is_not_declared_is_published_and_listed(tmp_path: Path) -> None:
    """Sums are divided by it, and neither record, report nor statement said that it was taken from the data."""
    for declared in (None, SIZE):
        plan = trainer(tmp_path, size=declared).plan
        record = RunRecord(plan.to_dict(), 8.0, 1e-4, (), ())
        assert Plan.from_json(plan.to_json()) == plan
        assert (PUBLISHED_SIZE in record.to_fit().unprotected) is (declared is None)
        for said in (record.to_fit().privacy["unit"], claims(record)["unit"], plan._repr_html_()):
            assert ("replaced by an empty one" in said) is (declared is None)
