"""The frozen loads, and loads of a user's own."""

from __future__ import annotations

import hashlib
from statistics import fmean, median

import pytest

from kvist.core.errors import ConfigError
from kvist.workload.load_file import frozen_loads, parse_load_file
from kvist.workload.trace_files import write_jsonl
from kvist.workload.trace_record import AnswerPart, TextPart, count_prompt_tokens

ALL = tuple(frozen_loads().loads)


def records_of(name: str, capacity_per_s: float = 5.0):
    return frozen_loads().load(name).records(capacity_per_s=capacity_per_s)


@pytest.mark.parametrize("name", ALL)
def test_a_load_is_byte_equal_from_run_to_run(name):
    assert write_jsonl(records_of(name)) == write_jsonl(records_of(name))


def test_the_frozen_loads_have_not_changed():
    digest = hashlib.sha256()
    for name in ALL:
        for record, num_prompt in zip(records_of(name), count_prompt_tokens(records_of(name)), strict=True):
            rounded = f"{record.arrival_s:.6f} {num_prompt} {record.num_output_tokens} {record.after}"
            digest.update(rounded.encode())
    assert digest.hexdigest() == "87f58fe35d5c219b65dc35d54e955862fe3608b9fd24fabeaf527d697a571dca"


@pytest.mark.parametrize("name", ALL)
def test_records_are_numbered_and_follow_earlier_ones(name):
    records = records_of(name)
    assert [record.index for record in records] == list(range(len(records)))
    for record in records:
        assert record.after is None or record.after < record.index
        answers = [part.index for part in record.prompt if isinstance(part, AnswerPart)]
        assert not answers or answers[-1] == record.after


def test_another_seed_gives_other_lengths_and_other_texts():
    load = frozen_loads().load("chat")
    first, second = load.records(capacity_per_s=5.0), load.records(capacity_per_s=5.0, seed=1)
    assert count_prompt_tokens(first) != count_prompt_tokens(second)
    texts = [{part.text_id for record in records for part in record.prompt} for records in (first, second)]
    assert not texts[0] & texts[1]


def test_chat_has_the_lengths_and_the_rate_it_states():
    records = records_of("chat")
    lengths = count_prompt_tokens(records)
    assert min(lengths) >= 16
    assert max(lengths) <= 1500
    assert median(lengths) == pytest.approx(220, rel=0.15)
    assert fmean(lengths) == pytest.approx(300, rel=0.15)
    assert len(records) / records[-1].arrival_s == pytest.approx(0.7 * 5.0, rel=0.2)


def test_capacity_scales_arrivals_and_nothing_else():
    slow, fast = records_of("chat", 1.0), records_of("chat", 10.0)
    assert [r.arrival_s for r in slow] == pytest.approx([10 * r.arrival_s for r in fast])
    assert [r.prompt for r in slow] == [r.prompt for r in fast]


def test_conversations_send_their_whole_history_back():
    records = records_of("chat_multi_turn")
    last = [record for record in records if record.session_id == records[-1].session_id][-1]
    assert sum(isinstance(part, AnswerPart) for part in last.prompt) == 7
    parent = records[last.after]
    assert last.prompt[: len(parent.prompt)] == parent.prompt


def test_a_load_like_another_has_its_requests():
    assert write_jsonl(records_of("chat_multi_turn")) == write_jsonl(records_of("chat_multi_turn_tight"))
    assert frozen_loads().load("chat_multi_turn_tight").kv_cache_tokens_fraction == 0.5


def test_a_third_of_the_agents_fork_into_two_that_share_their_past():
    records = records_of("agent")
    children: dict[int, int] = {}
    for record in records:
        if record.after is not None:
            children[record.after] = children.get(record.after, 0) + 1
    num_forks = sum(count == 2 for count in children.values())
    assert set(children.values()) == {1, 2}
    assert 2 <= num_forks <= 9  # of 16 sessions


def test_a_tree_of_thought_has_every_node():
    assert len(records_of("tree_of_thought")) == 8 * (1 + 3 + 9 + 27)


def test_documents_are_different_and_in_canonical_order():
    for record in records_of("retrieval"):
        ranks = [int(part.text_id.rsplit("/", 1)[1]) for part in record.prompt if "/document/" in part.text_id]
        assert len(ranks) == 2
        assert ranks[0] < ranks[1]


def test_changing_keeps_each_segment_to_its_lengths():
    records = records_of("changing")
    lengths = count_prompt_tokens(records)
    for record, length in zip(records, lengths, strict=True):
        low, high = ((32, 128), (512, 2048), (64, 512), (256, 1024))[int(record.arrival_s // 20)]
        assert low <= length <= high


def test_all_frozen_requests_share_only_what_a_prefix_says():
    for name in ("fixed_32", "long_offline", "chat"):
        texts = [part.text_id for record in records_of(name) for part in record.prompt if isinstance(part, TextPart)]
        assert len(texts) == len(set(texts))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[loads.a]\nnum_requests = 0\narrival = 'all_at_once'\ninput={fixed=1}\noutput={fixed=1}", "num_requests"),
        ("[loads.a]\nnum_requests = 1\narrival = 'all_at_once'\ninput={fixed=1}", "'output' is missing"),
        ("[loads.a]\nnum_requests=1\narrival='all_at_once'\ninput={fixed=1}\noutput={fixed=1}\nouput=1", "ouput"),
        ("[loads.a]\nnum_requests=1\narrival={poisson=true}\ninput={fixed=1}\noutput={fixed=1}", "'rate' is missing"),
        ("[loads.a]\nnum_requests=1\narrival='all_at_once'\ninput={uniform=[9,3]}\noutput={fixed=1}", "no length"),
        ("[loads.a]\nlike = 'b'", "like 'b'"),
        ("loads = 3", "are tables"),
        ("loads = {a = 3}", "are tables"),
        ("[loads", "Expected"),
        ("slo = 5", "slo: 5 is not a table"),
        ("[slo]\nttft_multiple=5\ntpot_multiple='x'\nattainment=0.9", "tpot_multiple: 'x' is not a number"),
        ("[slo]\nttft_multiple=5\ntpot_multiple=3\nattainment=9", "is not a share"),
        ("defaults = [1]", "defaults: .* is not a table"),
        ("[defaults]\nseed = 'x'", "seed: 'x' is not a whole number"),
        ("[defaults]\nsede = 1", "unknown key 'sede' Did you mean seed"),
        ("[lods.a]\n", "unknown section 'lods'. Did you mean loads"),
        ("[loads.a]\nlike = ['a']", "no load of its own"),
        ("[loads.a]\nnum_requests=1\narrival={poisson=true,rate=-1}\ninput={fixed=1}\noutput={fixed=1}", "rate: -1"),
        ("[loads.a]\nnum_requests=1\narrival={poisson=true,rate=nan}\ninput={fixed=1}\noutput={fixed=1}", "rate: nan"),
        ("[loads.a]\nroots=9\ndepth=40\nbranching=40\ninput={fixed=1}\noutput={fixed=1}", "at most 10000000"),
        ("[loads.a]\nabout=3\nnum_requests=1\narrival='all_at_once'\ninput={fixed=1}\noutput={fixed=1}", "not a text"),
    ],
)
def test_a_load_that_makes_no_sense_is_refused_by_name(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_load_file(text, "mine.toml")


def test_an_unknown_load_suggests_the_nearest():
    with pytest.raises(ConfigError, match="chat_multi_turn"):
        frozen_loads().load("chat_multiturn")
