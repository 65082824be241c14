"""Host time found by `profile` against bare runs of the same script: `python -m tests.scripts.host_truth [--out FILE]`.

Each case trains bare, with and without what is injected, and under `profile`; the truth is the difference of the bare
runs, or the eager step less the same step replayed from a CUDA graph.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
SMALL = ("--layers", "24", "--width", "256", "--batch", "32")
LARGE = ("--layers", "16", "--width", "8192", "--batch", "2048")
GPT = ("--batch", "12", "--length", "256", "--width", "384", "--layers", "6")
CASES: list[tuple[str, str, tuple[str, ...], tuple[str, ...], str]] = [
    # name, script, arguments, what the truth's baseline has instead, part
    ("small, eager against graph", "host_bound.py", SMALL, (*SMALL, "--graph"), "host"),
    ("small, 1 ms between steps", "host_bound.py", (*SMALL, "--delay-ms", "1"), SMALL, "python"),
    ("small, 5 ms between steps", "host_bound.py", (*SMALL, "--delay-ms", "5"), SMALL, "python"),
    ("small, 20 ms between steps", "host_bound.py", (*SMALL, "--delay-ms", "20"), SMALL, "python"),
    ("small, get_batch of 5 ms", "host_bound.py", (*SMALL, "--data-ms", "5"), SMALL, "prep"),
    ("large, 20 ms between steps, read", "host_bound.py", (*LARGE, "--delay-ms", "20", "--item", "1"), LARGE, "host"),
    ("GPT of tokens", "tokens.py", GPT, (), ""),
    ("GPT of tokens, 20 ms data", "tokens.py", (*GPT, "--data-ms", "20"), GPT, "prep"),
]


def bare_ms(script: str, arguments: tuple[str, ...], seconds: float) -> float:
    """Mean step of the script by itself."""
    command = [sys.executable, str(HERE / script), *arguments, "--bare", str(seconds)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250)
    match = re.search(r"bare ([\d.]+)", done.stdout)
    if match is None:
        raise SystemExit(f"{script} {arguments}: {done.stdout}{done.stderr}")
    return float(match[1])


def profiled(script: str, arguments: tuple[str, ...], seconds: float) -> dict:
    """The profile of the script as a document."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "stallwise", "profile", "--json", "--max-time", f"{seconds}s"]
        command += ["-o", f"{folder}/run", str(HERE / script), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=250, env={**os.environ})
        try:
            return json.loads(done.stdout)
        except ValueError:
            return {"error": f"exit {done.returncode}: {done.stdout[-1500:]} {done.stderr[-1500:]}"}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--bare", type=float, default=3.0)
    parser.add_argument("--profile", type=float, default=8.0)
    parser.add_argument("--cases", type=int, nargs="*")
    options = parser.parse_args()
    cache: dict[tuple[str, tuple[str, ...]], float] = {}
    rows = []
    for number in options.cases or range(len(CASES)):
        name, script, arguments, baseline, part = CASES[number]
        began = time.monotonic()
        for one in (arguments, *((baseline,) if baseline else ())):
            if (script, one) not in cache:
                cache[script, one] = bare_ms(script, one, options.bare)
        step, base = cache[script, arguments], cache.get((script, baseline))
        document = profiled(script, arguments, options.profile)
        if "error" in document:
            print(f"{name}: {document['error']}", flush=True)
            continue
        split = {k: round(1e3 * v["s"], 3) for k, v in document["split"].items() if v is not None}
        causes = {c["cause"]: [round(1e3 * c["s"], 3), round(c["calls"], 1), c["where"]] for c in document["observed"]}
        verdict = document["verdict"]
        value = causes[part][0] if part in causes else split.get(part)
        row = {
            "case": name, "bare_ms": step, "baseline_ms": base, "truth_ms": None if base is None else step - base,
            "step_ms": 1e3 * document["step_s"], "part": part, "value_ms": value, "split": split, "causes": causes,
            "verdict": [verdict["binds"], verdict["sentence"]["text"], verdict["next_step"]["text"]],
            "samples_per_s": document["samples_per_s"], "mfu": document["mfu"], "notes": document["notes"],
            "took_s": time.monotonic() - began,
        }  # fmt: skip
        rows.append(row)
        print(json.dumps(row), flush=True)
        if options.out:
            options.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
