"""`python -m stallwise.tune train.py …`: one rank of a job under trial, otherwise like `python -m stallwise.record`."""

import sys

from stallwise.record.rank.main import main
from stallwise.tune.knobs import TrialSpec

if __name__ == "__main__":
    trial = TrialSpec.from_environment()
    if trial is not None:
        from stallwise.tune._hooks import install

        install(trial)
    sys.exit(main(sys.argv[1:]))
