"""`python -m stallwise` is the same program as `stallwise`."""

from stallwise.cli.main import run

if __name__ == "__main__":
    run()
