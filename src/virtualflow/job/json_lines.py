"""Typed values as JSON and back: the one place where messages are encoded and decoded."""

from __future__ import annotations

import json
from typing import Any, TypeVar

import msgspec
from msgspec.json import Decoder

from virtualflow.errors import MessageError
from virtualflow.system.text import visible

Value = TypeVar("Value")
LONGEST_REASON = 200  # characters: it may quote what has come

_encoder = msgspec.json.Encoder()


def encoded(value: Any) -> bytes:
    """*value*, a message or another typed value, as JSON without a line break."""
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:  # the name of a file that is not UTF-8, which only json can write
        return json.dumps(msgspec.to_builtins(value)).encode()


def decoded(decoder: Decoder[Value], text: bytes) -> Value:
    """The value in *text*. Raises MessageError if it is none that *decoder* knows."""
    try:
        return _decoded(decoder, text)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise MessageError(f"not a message of VirtualFlow: {visible(str(error))[:LONGEST_REASON]}") from error


def _decoded(decoder: Decoder[Value], text: bytes) -> Value:
    try:
        return decoder.decode(text)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        if b"\\ud" not in text:
            raise
        return msgspec.convert(json.loads(text), decoder.type)
