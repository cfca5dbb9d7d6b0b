"""Different fields never give the same domain, however a caller chooses them."""

from __future__ import annotations

from dataclasses import fields

from hypothesis import given
from hypothesis import strategies as st

from kvist.core.request import PUBLIC_DOMAIN
from kvist.kvcache.key_domain import KeyDomainFields, narrow_domain

NAMES = [field.name for field in fields(KeyDomainFields)]
values = st.none() | st.text(alphabet="\x00\x01\x05a", max_size=8)
any_fields = st.builds(KeyDomainFields, **dict.fromkeys(NAMES, values))


@given(any_fields, any_fields)
def test_domains_are_equal_only_if_all_fields_are(ours: KeyDomainFields, theirs: KeyDomainFields) -> None:
    assert (ours.encode() == theirs.encode()) == (ours == theirs)


def test_no_field_is_the_domain_that_all_share() -> None:
    assert KeyDomainFields().encode() == PUBLIC_DOMAIN


@given(st.text(max_size=8), st.text(max_size=8))
def test_a_salt_narrows_a_tenant_and_never_leaves_it(tenant: str, salt: str) -> None:
    alone = KeyDomainFields(tenant=tenant).encode()
    assert narrow_domain(alone, salt) == KeyDomainFields(tenant=tenant, salt=salt).encode() != alone


def test_a_new_version_of_an_adapter_is_a_new_domain() -> None:
    old = KeyDomainFields(adapter="a", adapter_version="1")
    assert len({f.encode() for f in (old, KeyDomainFields(adapter="a", adapter_version="2"), KeyDomainFields())}) == 3


def test_moving_text_from_one_field_to_the_next_changes_the_domain() -> None:
    one = KeyDomainFields(tenant="team", salt="x").encode()
    other = KeyDomainFields(tenant="teamx", salt="").encode()
    assert one != other
