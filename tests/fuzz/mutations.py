"""Samples changed at random, in the places where readers go wrong."""

import random
import re

TOKENS = (
    b"",
    b"\0",
    b"\n",
    b"\r",
    b"\r\n",
    b",",
    b",,,,",
    b'"',
    b"'",
    b"=",
    b"[",
    b"]",
    b"{",
    b"}",
    b"[" * 3000,
    b'{"a":' * 3000,
    b"(" * 3000,
    b"-",
    b"-1",
    b"0",
    b"1",
    b"1e999",
    b"-1e999",
    b"1e-320",
    b"nan",
    b"inf",
    b"Infinity",
    b"NaN",
    b"null",
    b"true",
    b"9" * 25,
    b"9" * 400,
    b"9" * 5000,
    b"0.1",
    b"1e18",
    b"2147483648",
    b"9223372036854775808",
    b"\xff",
    b"\xed\xa0\x80",
    b"\\ud800",
    b"\\u0000",
    b"\xe2\x80\xa8",
    b"\xef\xbb\xbf",
    b"\xd9\xa1",
    b"\xc2\xb2",
    b"\x1b]0;x\x07",
    b"n[0-99999]n[0-99999]",
    b"[1-]",
    b"[9-1]",
    b"0000-00-00",
    b"9999-12-31T23:59:59",
    b"2026-13-45",
    b"../../x",
    b"/dev/zero",
    b"x" * 200_000,
    b"\t",
    b" ",
    b"|",
    b"#",
)


def mutated(sample: bytes, other: bytes, draw: random.Random) -> bytes:
    """Return a sample changed in one to four places."""
    data = sample
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        at = draw.randrange(len(data) + 1)
        length = draw.choice((0, 1, 1, 2, 4, 8, 64, len(data)))
        match draw.randrange(8):
            case 0:  # bytes changed
                data = data[:at] + draw.randbytes(min(length, 64)) + data[at + length :]
            case 1:
                data = data[:at] + draw.choice(TOKENS) + data[at:]
            case 2:  # a number or a word replaced by something else
                words = list(re.finditer(rb"[A-Za-z0-9_.+-]+", data[:200_000]))
                if words:
                    word = draw.choice(words)
                    data = data[: word.start()] + draw.choice(TOKENS) + data[word.end() :]
            case 3:
                data = data[:at]
            case 4:
                data = data[:at] + data[at + length :]
            case 5:  # a line, or a stretch, again or elsewhere
                lines = data.split(b"\n")
                lines.insert(draw.randrange(len(lines) + 1), draw.choice(lines))
                data = b"\n".join(lines)
            case 6:
                data = data[:at] + other[draw.randrange(len(other) + 1) :]
            case 7 if data:
                place = draw.randrange(len(data))
                data = data[:place] + bytes([data[place] ^ (1 << draw.randrange(8))]) + data[place + 1 :]
        data = data[:1_000_000]
    return data
