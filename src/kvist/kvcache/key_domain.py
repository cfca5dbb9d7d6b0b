"""Key domains: who may share KV with whom, as bytes made of named fields.

Each present field is written as its number, its length and its bytes, in the order of the numbers: different fields
never give the same bytes. No field at all is the domain that everyone shares.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from kvist.core.request import KeyDomain

_LENGTH_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyDomainFields:
    """What a block's content depends on besides its tokens (the model and what it was computed with), and who may
    read it (tenant and salt). None is not the same as empty."""

    model: str | None = None
    quantization: str | None = None
    kv_dtype: str | None = None
    adapter: str | None = None
    adapter_version: str | None = None
    tenant: str | None = None
    salt: str | None = None

    def encode(self) -> KeyDomain:
        values = (getattr(self, field.name) for field in fields(self))
        return KeyDomain(b"".join(_encode(number, value) for number, value in enumerate(values) if value is not None))


_SALT_NUMBER = [field.name for field in fields(KeyDomainFields)].index("salt")


def narrow_domain(domain: KeyDomain, salt: str) -> KeyDomain:
    """Add a salt to a domain that has none. A salt, which callers choose, only ever narrows what they share."""
    return KeyDomain(domain + _encode(_SALT_NUMBER, salt))


def _encode(number: int, value: str) -> bytes:
    packed = value.encode("utf-8", "surrogatepass")
    return bytes((number,)) + len(packed).to_bytes(_LENGTH_BYTES, "little") + packed
