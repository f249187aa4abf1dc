"""Convert fields to Flower messages and back; bytes survive unchanged."""

from __future__ import annotations

from flwr.app import ConfigRecord, Message, RecordDict

from edgemerge.core.errors import FormatError
from edgemerge.flower.fields import Fields

RECORD = "edgemerge"  # the name of ours among a message's records
MESSAGE_TYPE = "query"  # of Flower's three, the one that says nothing about training


def request(node: int, task: str, fields: Fields, ttl_s: float) -> Message:
    """Ask a node to contribute or to adopt; after `ttl_s` it is not asked any more."""
    return Message(_to_records(fields), node, f"{MESSAGE_TYPE}.{task}", ttl=ttl_s)


def reply(message: Message, fields: Fields) -> Message:
    """Answer a message."""
    return Message(_to_records(fields), reply_to=message)


def fields_of(message: Message) -> Fields:
    """Return the fields of a message; they are not checked."""
    record = message.content.get(RECORD)
    if not isinstance(record, ConfigRecord):
        found = ", ".join(map(str, message.content)) or "none"
        raise FormatError(f"found the records {found:.80}, expected {RECORD!r}: is it another app?")
    return dict(record)


def _to_records(fields: Fields) -> RecordDict:
    full = {name: value for name, value in fields.items() if value != []}  # [] has no type there
    return RecordDict({RECORD: ConfigRecord(full)})
