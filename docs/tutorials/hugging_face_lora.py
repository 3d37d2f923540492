# %% [markdown]
# # Hugging Face and LoRA
# `PrivateTrainer` is `transformers.Trainer` with private steps. The model here is tiny and untrained, so nothing is
# downloaded; put `AutoModelForCausalLM.from_pretrained(...)` in its place. Needs `pip install 'dpilot[hf]'`.
# %%
import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

from dpilot import Budget
from dpilot.integrations.hf import PrivateTrainer

torch.manual_seed(0)
config = GPT2Config(vocab_size=40, n_positions=16, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
model = get_peft_model(GPT2LMHeadModel(config), LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))
ids = torch.randint(1, 40, (80, 12))
records = [{"input_ids": row, "attention_mask": torch.ones_like(row), "labels": row} for row in ids]
# %% [markdown]
# `per_device_train_batch_size` is the expected size of a whole batch: large is good.
# %%
arguments = TrainingArguments(
    "out",
    per_device_train_batch_size=40,
    num_train_epochs=2,
    learning_rate=1e-3,
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
    save_strategy="no",
)
trainer = PrivateTrainer(model, arguments, train_dataset=records, budget=Budget(8.0, 1e-4))
trainer.train()
print(trainer.epsilon)
# %%
trainer.save_model("out/model")
