"""`python -m stallwise.tune train.py …`: one rank of a job under trial, otherwise as `python -m stallwise.record`."""

import sys

from stallwise.record.rank import main
from stallwise.tune.knobs import Trial

if __name__ == "__main__":
    trial = Trial.from_environment()
    if trial is not None:
        from stallwise.tune.hooks import install

        install(trial)
    sys.exit(main(sys.argv[1:]))
