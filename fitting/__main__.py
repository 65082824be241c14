"""`make fit`: cross-validate every model on the shared measurements, print the figures, write the coefficients.

`python -m fitting --only llm network` does some; `--dry` writes nothing.
"""

import argparse

from fitting.studies import STUDIES
from fitting.tables import ROOT, data_folder
from stallwise.hardware.coefficients import encode_fitted


def main() -> None:
    """One study after the other."""
    parser = argparse.ArgumentParser(prog="fitting", description=__doc__)
    parser.add_argument("--only", nargs="*", choices=sorted(STUDIES), default=list(STUDIES))
    parser.add_argument("--dry", action="store_true", help="print the figures, write nothing")
    asked = parser.parse_args()
    into = ROOT / "src/stallwise/hardware/fitted_data"
    for name in asked.only:
        study = STUDIES[name](data_folder())
        print("\n".join(study.lines), flush=True)
        for fitted in [] if asked.dry else study.fitted:
            (into / f"{fitted.name}.json").write_bytes(encode_fitted(fitted))


if __name__ == "__main__":
    main()
