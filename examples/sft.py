"""Supervised fine-tuning as TRL's users know it, private: prompts and completions, LoRA, generation after.

Tiny and untrained, so that nothing is downloaded; with TRL installed, args may be its SFTConfig.
"""

import tempfile
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainingArguments

from dpilot import Budget
from dpilot.integrations.hf import PrivateTrainer
from dpilot.integrations.sft import SFTDataset

torch.manual_seed(0)
words = ["<end>", "<unknown>", "what", "is", "the", "colour", "of", "grass", "snow", "green", "white", "?"]
inner = Tokenizer(models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<unknown>"))
inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<end>", unk_token="<unknown>")

config = LlamaConfig(
    vocab_size=len(words), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
    max_position_embeddings=16, eos_token_id=0, bos_token_id=0, pad_token_id=0,
)  # fmt: skip
model = get_peft_model(
    LlamaForCausalLM(config), LoraConfig(r=4, target_modules="all-linear", modules_to_save=["lm_head"])
)

answers = {"grass": "green", "snow": "white"}
asked = "what is the colour of {} ?"
rows = [{"prompt": asked.format(thing), "completion": f" {answers[thing]} <end>"} for thing in answers] * 100
records = SFTDataset(rows, tokenizer, max_length=10)  # a row is tokenized by itself, as it is read

with tempfile.TemporaryDirectory() as folder:
    args = TrainingArguments(
        f"{folder}/out", per_device_train_batch_size=100, max_steps=30, learning_rate=0.1, logging_steps=10,
        save_strategy="no", report_to=[], use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    trainer = PrivateTrainer(
        model, args, train_dataset=records, processing_class=tokenizer, budget=Budget(8.0, 1e-4),
        ledger=f"{folder}/answers.ledger",
    )  # fmt: skip
    trainer.train()
    print(f"epsilon {trainer.epsilon:.2f}")
    trainer.save_model(f"{folder}/model")  # adapter, tokenizer, model card, privacy record and statement
    print(sorted(path.name for path in Path(folder, "model").iterdir()))

prompt = tokenizer(asked.format("snow"), return_tensors="pt", return_token_type_ids=False)
made = model.generate(**prompt, max_new_tokens=2)
print(tokenizer.decode(made[0]))
