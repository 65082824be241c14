"""A language model under Hugging Face's Trainer, made from a configuration: nothing is downloaded.

python examples/trainer.py
torchrun --nproc-per-node 2 examples/trainer.py
"""

import argparse
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments


class Windows(Dataset):
    """A window of text at every offset, its bytes numbered as it is asked for."""

    def __init__(self, text: str, length: int) -> None:
        self.text = text
        self.length = length

    def __len__(self) -> int:
        return len(self.text) - self.length

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        data = self.text[index : index + self.length].encode()[: self.length]
        tokens = torch.tensor(list(data))
        return {"input_ids": tokens, "labels": tokens}


def main() -> None:
    """Train for a few epochs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--text", type=Path, nargs="*", default=sorted(Path(__file__).parent.glob("*.py")))
    parser.add_argument("--out", default="build/trainer")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    text = "\n".join(path.read_text() for path in options.text)
    config = GPT2Config(vocab_size=256, n_positions=64, n_embd=128, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0)
    arguments = TrainingArguments(
        options.out,
        num_train_epochs=options.epochs,
        per_device_train_batch_size=16,
        dataloader_num_workers=options.workers,
        logging_steps=100,
        save_strategy="epoch",
        report_to=[],
    )
    Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Windows(text, 64)).train()


if __name__ == "__main__":
    main()
