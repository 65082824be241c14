"""`python -m stallwise.elastic`: a machine's agent, or the coordinator."""

import sys

from stallwise.elastic._host import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
