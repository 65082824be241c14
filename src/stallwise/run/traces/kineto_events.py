"""Kineto's Chrome-trace JSON, decoded piece by piece into typed events.

A file is read (and unpacked) in pieces of a megabyte; each is cut at the last comma between two events that leaves
valid JSON before it, and decoded into structs that hold only the fields used here. Nothing else of the document is ever
built, so memory does not grow with the file. A cut inside an event or a string leaves something unbalanced, which does
not decode: then the comma before it is tried.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from stallwise.errors import InputError
from stallwise.inputs import PIECE_BYTES, open_input, unpacked_blocks

# An event may carry a long stack; one longer than this is no event.
_EVENT_BYTES = 64 << 20
_REST_BYTES = 16 << 20
_CUTS = 20
_BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
_OPENING = re.compile(rb'"traceEvents"\s*:\s*\[')
_TRAILING = re.compile(r"trailing characters \(byte (\d+)\)")

Number = int | float


class Args(msgspec.Struct, frozen=True, gc=False):
    """What is used of an event's `args`. Tools differ in how they write numbers here: they are taken as they come."""

    stream: Any = None
    correlation: Any = None
    bytes: Any = None
    elements: Any = msgspec.field(default=None, name="In msg nelems")
    dtype: Any = None
    collective: Any = msgspec.field(default=None, name="Collective name")
    group_size: Any = msgspec.field(default=None, name="Group size")
    group: Any = msgspec.field(default=None, name="Process Group Name")
    group_ranks: Any = msgspec.field(default=None, name="Process Group Ranks")
    dims: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input Dims")
    types: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Input type")
    values: msgspec.Raw = msgspec.field(default=msgspec.Raw(), name="Concrete Inputs")


class Event(msgspec.Struct, frozen=True, gc=False):
    """What is used of an event; times in microseconds."""

    name: str = ""
    ph: str = ""
    cat: str | None = None
    tid: Number | str | None = None
    ts: Number | None = None
    dur: Number | None = None
    args: Args | None = None


class Distributed(msgspec.Struct, frozen=True):
    """The job, as torch wrote it."""

    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    groups: Any = msgspec.field(default=None, name="pg_config")


class DeviceProperties(msgspec.Struct, frozen=True):
    """A GPU of the machine."""

    name: str | None = None


class Header(msgspec.Struct, frozen=True):
    """What stands around the events."""

    job: Distributed | None = msgspec.field(default=None, name="distributedInfo")
    devices: list[DeviceProperties] | None = msgspec.field(default=None, name="deviceProperties")
    record_shapes: Any = None
    # Other tools' documents, to be told from a trace.
    nodes: msgspec.Raw = msgspec.Raw()
    schema: Any = None

    def joined(self, other: "Header") -> "Header":
        """Both halves of a document: before the events and after them."""
        return Header(
            self.job or other.job,
            self.devices if self.devices is not None else other.devices,
            self.record_shapes,
            self.nodes if bytes(self.nodes) else other.nodes,
            self.schema or other.schema,
        )


_EVENTS = msgspec.json.Decoder(list[Event])
_HEADER = msgspec.json.Decoder(Header)


class _CutError(Exception):
    """The piece cannot be decoded as it is cut; the reason is msgspec's."""


@dataclass(slots=True)
class EventReader:
    """One file; iterate over `pieces()`, then `header` is known."""

    path: Path
    header: Header = field(default_factory=Header)

    def pieces(self) -> Iterator[list[Event]]:
        """Events in the order of the file, some thousands at a time."""
        with open_input(self.path) as raw:
            blocks = unpacked_blocks(self.path, raw)
            text = self._head(blocks)
            for block in blocks:
                text += block
                if len(text) < PIECE_BYTES:
                    continue
                piece = self._cut(text)
                if piece is None:
                    continue
                events, text, ended = piece
                yield events
                if ended:
                    self._finish(self._rest(text, blocks))
                    return
            yield self._last(text)

    def _head(self, blocks: Iterator[bytes]) -> bytes:
        """Read up to the first event; what has been read of the events."""
        text = b""
        for block in blocks:
            text += block
            if text.lstrip()[:1] == b"[":
                return text.lstrip()[1:]
            for match in _OPENING.finditer(text):
                try:
                    self.header = _HEADER.decode(text[: match.start()] + b'"":0}')
                except msgspec.ValidationError as error:
                    raise self._wrong(error) from None
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    continue  # the words stood inside a string
                return text[match.end() :]
            if len(text) > _EVENT_BYTES:
                break
        if not text.strip():
            raise InputError(f"{self.path} is empty.")
        raise InputError(f"{self.path} holds no list of trace events, so it is no PyTorch profiler (Kineto) trace.")

    def _cut(self, text: bytes) -> tuple[list[Event], bytes, bool] | None:
        """Whole events from the front, what is left, and whether the list of events ended; None: more is needed."""
        cuts = [match.end() for match in _BETWEEN.finditer(text, max(0, len(text) - PIECE_BYTES // 4))]
        for cut in reversed(cuts[-_CUTS:]):
            comma = text.rfind(b",", 0, cut)
            try:
                return self._decoded(b"[" + text[:comma] + b"]"), text[cut:], False
            except _CutError as reason:
                if (end := _TRAILING.search(str(reason))) is not None:
                    at = int(end[1]) - 2  # msgspec counts the character it stumbles over, and there is our bracket
                    return self._decoded(b"[" + text[:at]), text[at:], True
        if len(text) > _EVENT_BYTES:
            raise InputError(
                f"{self.path} is no trace: nothing in {len(text) >> 20} MiB of it reads as whole events. Is it damaged?"
            )
        return None

    def _rest(self, text: bytes, blocks: Iterator[bytes]) -> bytes:
        """Read on to the end of the file, where a few facts stand."""
        parts, total = [text], len(text)
        for block in blocks:
            parts.append(block)
            total += len(block)
            if total > _REST_BYTES:
                raise InputError(f"{self.path} is no trace: {total >> 20} MiB stand behind its list of events.")
        return b"".join(parts)

    def _finish(self, text: bytes) -> None:
        """The end of the document, from behind the list."""
        stripped = text.strip()
        if not stripped:
            if self.header != Header():
                raise self._truncated()
            return
        try:
            self.header = self.header.joined(_HEADER.decode(b'{"":0' + stripped))
        except msgspec.ValidationError as error:
            raise self._wrong(error) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            raise self._truncated() from None

    def _last(self, text: bytes) -> list[Event]:
        """What is left at the end of the file: the last events and the end of the document."""
        whole = b"[" + text
        try:
            events = self._decoded(whole)
        except _CutError as reason:
            end = _TRAILING.search(str(reason))
            if end is None:
                raise self._truncated(str(reason)) from None
            at = int(end[1]) - 1
            events = self._decoded(whole[:at])
            self._finish(whole[at:])
            return events
        self._finish(b"")
        return events

    def _decoded(self, text: bytes) -> list[Event]:
        try:
            return _EVENTS.decode(text)
        except msgspec.ValidationError as error:
            raise self._wrong(error) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise _CutError(str(error)) from None
        except RecursionError:
            raise InputError(f"{self.path} is nested too deeply to be a trace.") from None

    def _wrong(self, error: Exception) -> InputError:
        return InputError(f"{self.path} is no usable trace: {error}. Is it another tool's file, or damaged?")

    def _truncated(self, reason: str = "") -> InputError:
        if reason and "truncated" not in reason:
            return InputError(f"{self.path} is damaged: {reason}. Record the trace again, or restore it from a copy.")
        return InputError(f"{self.path} ends in the middle; it is cut off. Record the trace again, or copy it again.")
