"""A small image classifier in a loop of its own, made parallel by Accelerate, with evaluation and saved states."""

import argparse
import contextlib

import torch
from accelerate import Accelerator as Accelerate
from material import Accelerator, Pictures, Stopwatch, StreamedSentences
from torch import nn
from torch.utils.data import DataLoader
from tqdm import tqdm


def classifier(compute_s: float) -> nn.Module:
    features = nn.Sequential(nn.Conv2d(3, 8, 5, stride=4), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    return nn.Sequential(features, nn.Flatten(), Accelerator(compute_s), nn.Linear(8, 10))


def reader(compute_s: float) -> nn.Module:
    return nn.Sequential(nn.Embedding(256, 8), nn.Flatten(), Accelerator(compute_s), nn.LazyLinear(10))


def profiled(name: str | None):
    """Run with `--callback`, the script profiles itself."""
    if name is None:
        return contextlib.nullcontext()
    import stallwise

    return stallwise.profiling("run", full=name == "full", max_time_s=1.0)


def train(accelerate: Accelerate, parts, options: argparse.Namespace) -> None:
    model, optimizer, scheduler, loader, held_out = parts
    watch, steps, bar = Stopwatch(options.until), 0, tqdm(total=options.steps, disable=not accelerate.is_main_process)
    while steps < options.steps:
        for batch in loader:
            images, classes = (batch["input_ids"], batch["labels"][:, 0] % 10) if options.streamed else batch
            with accelerate.accumulate(model):
                loss = nn.functional.cross_entropy(model(images), classes)
                accelerate.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if not accelerate.sync_gradients:
                continue
            steps += 1
            bar.update()
            watch.step()
            if steps >= options.steps:
                break
            if steps % options.every == 0:
                evaluate(accelerate, model, held_out)
                accelerate.save_state("state")
                watch.pause()
        watch.pause()
    watch.tell()
    torch.save(accelerate.unwrap_model(model).state_dict(), "final.pt")


def evaluate(accelerate: Accelerate, model: nn.Module, held_out: DataLoader) -> None:
    if held_out is None:
        return
    model.eval()
    seen = []
    for images, classes in held_out:
        with torch.no_grad():
            seen.append(accelerate.gather_for_metrics((model(images).argmax(1) == classes).float()))
    assert len(torch.cat(seen)) == 32, "evaluation gets its own batches, in every phase"
    model.train()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--epoch", type=int, default=120, help="batches in an epoch")
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
    accelerate = Accelerate(cpu=True, gradient_accumulation_steps=options.accumulate)
    length = 8 * options.epoch * accelerate.num_processes
    if options.streamed:
        model, data, held_out = reader(options.compute), StreamedSentences(length), None
        model(torch.zeros(8, 64, dtype=torch.int64))
    else:
        model, data = classifier(options.compute), Pictures(length, options.blocked, options.until)
        held_out = accelerate.prepare(DataLoader(Pictures(32), batch_size=8))
    loader = DataLoader(data, batch_size=8, shuffle=not options.streamed, num_workers=options.workers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 50)
    parts = accelerate.prepare(model, optimizer, scheduler, loader)
    with profiled(options.callback):
        train(accelerate, (*parts, held_out), options)
    accelerate.end_training()


if __name__ == "__main__":
    main()
