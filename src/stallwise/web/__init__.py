"""The local page over a folder of runs: a small ASGI server on 127.0.0.1, behind a token, that only reads."""
