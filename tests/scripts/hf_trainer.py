"""A language model under the Trainer of transformers; a data set of dictionaries takes time."""

import os

os.environ |= {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import time

import torch
import transformers
from shape import Clock, options
from torch.utils.data import Dataset


class Lines(Dataset):
    def __init__(self, delay_ms: float) -> None:
        self.delay_s = delay_ms / 8e3

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        time.sleep(self.delay_s)
        ids = torch.arange(16) + index % 7
        return {"input_ids": ids, "labels": ids}


class Ticks(transformers.TrainerCallback):
    def __init__(self, clock: Clock) -> None:
        self.clock = clock

    def on_step_end(self, *arguments: object, **rest: object) -> None:
        self.clock.tick()


given = options()
shape = transformers.GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2)
transformers.Trainer(
    model=transformers.GPT2LMHeadModel(shape),
    args=transformers.TrainingArguments(
        output_dir="out", per_device_train_batch_size=8, max_steps=1_000_000, report_to=[], save_strategy="no",
        use_cpu=not torch.cuda.is_available(), disable_tqdm=True, logging_strategy="no",
    ),
    train_dataset=Lines(given.delay_ms),
    callbacks=[Ticks(Clock(given))],
).train()  # fmt: skip
