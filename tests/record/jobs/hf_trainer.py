"""A small causal language model under Hugging Face's Trainer, with evaluation and checkpoints on the way."""

import argparse

import torch
from material import WORDS, Accelerator, Sentences, Stopwatch, StreamedSentences
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments


class Clocked(TrainerCallback):
    def __init__(self, until: int | None) -> None:
        self.watch = Stopwatch(until)

    def on_step_end(self, args, state, control, **kwargs):
        self.watch.step()

    def on_evaluate(self, args, state, control, **kwargs):
        self.watch.pause()

    def on_save(self, args, state, control, **kwargs):
        self.watch.pause()

    def on_epoch_end(self, args, state, control, **kwargs):
        self.watch.pause()


def callbacks(name: str | None) -> list[TrainerCallback]:
    """Run with `--callback`, the script profiles itself."""
    if name is None:
        return []
    import stallwise

    return [stallwise.TrainerCallback("run", full=name == "full", max_time_s=1.0)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--epoch", type=int, default=400, help="batches in an epoch")
    parser.add_argument("--every", type=int, default=50, help="evaluate and save after so many steps")
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--blocked", type=float, default=0.0)
    parser.add_argument("--until", type=int, help="only the first so many batches are blocked")
    parser.add_argument("--compute", type=float, default=0.02)
    parser.add_argument("--streamed", action="store_true")
    parser.add_argument("--callback", choices=["light", "full"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=256, n_positions=WORDS, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    model = GPT2LMHeadModel(config)
    model.transformer.drop = Accelerator(options.compute)
    length = 8 * options.epoch
    data = StreamedSentences(length) if options.streamed else Sentences(length, options.blocked, options.until)
    clock = Clocked(options.until)
    arguments = TrainingArguments(
        "model",
        max_steps=options.steps,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=options.accumulate,
        dataloader_num_workers=options.workers,
        eval_strategy="steps",
        eval_steps=options.every,
        save_steps=options.every,
        save_total_limit=1,
        logging_steps=10,
        use_cpu=True,
        report_to=[],
    )
    trainer = Trainer(
        model,
        arguments,
        train_dataset=data,
        eval_dataset=Sentences(32),
        callbacks=[clock, *callbacks(options.callback)],
    )
    trainer.train()
    clock.watch.tell()
    trainer.save_model("final")


if __name__ == "__main__":
    main()
