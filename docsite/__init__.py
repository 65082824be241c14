"""The documentation as a small site: `make site` turns README and docs/ into pages under build/site."""
