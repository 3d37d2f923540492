"""A Hugging Face causal language model with LoRA through peft, trained privately. Tiny and untrained: no download."""

import torch
from peft import LoraConfig, get_peft_model
from transformers import GPT2Config, GPT2LMHeadModel

from dpilot import Budget, Plan, Trainer
from dpilot.train.sequences import blocks, causal_loss

torch.manual_seed(0)
config = GPT2Config(vocab_size=40, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0)
model = get_peft_model(GPT2LMHeadModel(config), LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))

# Each record is one sequence: a dict of tensors, padded to one length, the padding masked.
ids = torch.randint(1, 40, (120, 12))
mask = (torch.arange(12) < torch.randint(4, 13, (120, 1))).long()
dataset = [{"input_ids": i * m, "attention_mask": m} for i, m in zip(ids, mask, strict=True)]

plan = Plan.calibrate(Budget(8.0, 1e-4), size=120, batch_size=40, epochs=2, clipping="bounded-slack")
run = Trainer(model, causal_loss, plan, optimizer="adamw", lr=1e-3, per_batch=True, chunk_size=16).fit(dataset)

print(f"trained {sum(blocks(model).values())} numbers, epsilon {run.epsilon:.2f}")
