"""`python -m stallwise.record train.py …`: one rank of a profiled job, under any launcher."""

import sys

from stallwise.record.rank.main import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
