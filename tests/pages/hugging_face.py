import os
from pathlib import Path

from tests.pages import made_up

texts = ["the film was good", "a dull film of a word"] * 150
made_up.gpt2("gpt2")

# %% before "resume_from_checkpoint=True"
from transformers import TrainerCallback


class Stop(TrainerCallback):
    def on_step_end(self, args, state, control, **more):
        if state.global_step == 2:
            raise KeyboardInterrupt


def adapted():
    fresh = AutoModelForCausalLM.from_pretrained("./gpt2")
    return get_peft_model(fresh, LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True))


os.remove("letters.ledger")
args = TrainingArguments("again", per_device_train_batch_size=256, num_train_epochs=3, save_steps=1)
how = {"train_dataset": records, "budget": Budget(3.0, 1e-5), "ledger": "letters.ledger"}
try:
    PrivateTrainer(adapted(), args, callbacks=[Stop()], **how).train()
except KeyboardInterrupt:
    model = adapted()

# %% before "torchrun"
SCRIPT = """
import torch
from transformers import AutoModelForCausalLM, TrainingArguments
from dpilot import Budget
from dpilot.integrations.hf import PrivateTrainer

records = [{"input_ids": row, "attention_mask": torch.ones_like(row)} for row in torch.randint(16, (40, 8))]
args = TrainingArguments("ranks", per_device_train_batch_size=10, max_steps=2, save_strategy="no")
model = AutoModelForCausalLM.from_pretrained("./gpt2")
PrivateTrainer(model, args, train_dataset=records, budget=Budget(3.0, 1e-4)).train()
"""
Path("train.py").write_text(SCRIPT)

# %% before "SFTDataset"
model, args = adapted(), TrainingArguments("sft", per_device_train_batch_size=20, max_steps=2, save_strategy="no")
