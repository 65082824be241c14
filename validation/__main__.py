"""`make validate`: judge every case, write the reports, print what is not reproduced."""

import argparse
import importlib
import pkgutil
from pathlib import Path

from validation import cases as fields
from validation.harness import ROOT, Case, data_folder, judge_all
from validation.report import as_json, as_markdown, forecasts


def all_cases() -> list[Case]:
    """The `CASES` of every module under `validation/cases`."""
    modules = (importlib.import_module(f"{fields.__name__}.{m.name}") for m in pkgutil.iter_modules(fields.__path__))
    return [case for module in modules for case in module.CASES]


def main() -> None:
    """Write the reports into `--into` (the repository by default)."""
    parser = argparse.ArgumentParser(prog="validation", description=__doc__)
    parser.add_argument("--into", type=Path, default=ROOT)
    into: Path = parser.parse_args().into
    cases = all_cases()
    rows = judge_all(cases, data_folder())
    for path, text in (
        (into / "evidence/validation.md", as_markdown(cases, rows)),
        (into / "evidence/forecasts.md", forecasts(cases, rows)),
        (into / "build/validation.json", as_json(cases, rows)),
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for row in rows:
        if not row.verdict.startswith(("reproduced", "forecast")):
            print(f"{row.id}: {row.case}: {row.verdict}")
    print(f"{len(rows)} figures computed; see evidence/validation.md")


if __name__ == "__main__":
    main()
