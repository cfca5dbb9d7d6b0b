"""Who is asking: checks API keys in constant time and gives each key its own key domain."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path

from kvist.core.errors import AuthenticationError, ConfigError
from kvist.core.request import PUBLIC_DOMAIN, KeyDomain
from kvist.kvcache.key_domain import KeyDomainFields


class ApiKeys:
    """The keys that may ask. None at all: everyone may, and all share one key domain."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = tuple(_digest(key) for key in dict.fromkeys(keys))

    @property
    def are_required(self) -> bool:
        return bool(self._digests)

    def domain_of(self, authorization: str | None, api_key: str | None = None) -> KeyDomain:
        """The domain of the caller with these header values. Raises AuthenticationError."""
        if not self._digests:
            return PUBLIC_DOMAIN
        key = _key_in(authorization) if authorization else api_key
        if key is None:
            raise AuthenticationError("an API key is needed: send 'Authorization: Bearer KEY'")
        digest = _digest(key)
        is_known = False
        for known in self._digests:  # all of them, so that time does not tell which was near
            is_known |= hmac.compare_digest(digest, known)
        if not is_known:
            raise AuthenticationError("this API key is unknown")
        return KeyDomainFields(tenant=digest.hex()).encode()


def load_api_keys(keys: Sequence[str], key_file: str | None) -> ApiKeys:
    """Keys given directly and those of a file with one key a line. Raises ConfigError."""
    found = [key for key in keys if key]
    if key_file is not None:
        try:
            lines = Path(key_file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"api_key_file {key_file!r} cannot be read: {error}") from error
        found += [line.strip() for line in lines if line.strip() and not line.startswith("#")]
        if not found:
            raise ConfigError(f"api_key_file {key_file!r} holds no key; the server would be open to everyone")
    return ApiKeys(found)


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


def _key_in(authorization: str) -> str | None:
    """The key of a Bearer header, or the password of a Basic one (what a browser asks its user for)."""
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip() or None
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2] or None
        except ValueError:  # not base64, or no UTF-8 in it
            return None
    return None
