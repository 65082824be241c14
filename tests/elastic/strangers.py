"""What somebody without the job secret may send to a coordinator."""

import msgspec

from stallwise.elastic.wire import MAGIC, NONCE_BYTES, CloseJob, FrameCodec, Hello, Join, SetValue, proof


def greetings(key: bytes) -> list[bytes]:
    """What a client sends first, by somebody who guesses the key, with requests behind it."""
    own = bytes(NONCE_BYTES)
    greeting = MAGIC + own + proof(key, b"client", own, own)
    frames = FrameCodec(proof(key, b"session", own, own), b"c", b"s")
    requests = (Hello("job"), Join("x", 1, 1, 1, 0.0, 4.0, "train"), SetValue("k", b"v"), CloseJob("a", "done"))
    return [greeting, greeting + b"".join(frames.encode(msgspec.json.encode(request)) for request in requests)]
