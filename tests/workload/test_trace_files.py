"""Recorded loads are read as they were recorded, and bad files are refused by line."""

from __future__ import annotations

import gzip

import pytest

from kvist.core.errors import ConfigError
from kvist.workload.load_file import frozen_loads
from kvist.workload.text_source import TextSource
from kvist.workload.trace_files import (
    read_azure,
    read_burst_gpt,
    read_jsonl,
    read_lengths,
    read_mooncake,
    write_jsonl,
)
from kvist.workload.trace_record import count_prompt_tokens

MOONCAKE = b"""{"timestamp": 0, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 0, "input_length": 1024, "output_length": 0, "hash_ids": [0, 1]}
{"timestamp": 3000, "input_length": 600, "output_length": 7, "hash_ids": [0, 9]}
"""


def test_mooncake_ids_become_prefixes_that_repeat(tmp_path):
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress(MOONCAKE))
    records = read_mooncake(path)
    source = TextSource(lambda text: list(text.encode()), ["One sentence.", "Another one."])
    prompts = [source.prompt(record, lambda index: []) for record in records]
    assert [len(prompt) for prompt in prompts] == count_prompt_tokens(records) == [1100, 1024, 600]
    assert prompts[0][:1024] == prompts[1]
    assert prompts[0][:512] == prompts[2][:512]
    assert prompts[0][512:528] != prompts[2][512:528]
    assert [record.arrival_s for record in records] == [0.0, 1.5, 3.0]
    assert records[1].num_output_tokens == 1


def test_csv_traces_are_read(tmp_path):
    azure = tmp_path / "azure.csv"
    azure.write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951690,396,109\n"
    )
    burst = tmp_path / "burst.csv"
    burst.write_text(
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,0,1087,API log\n118,ChatGPT,417,276,693,API log\n"
    )
    lengths = tmp_path / "lengths.csv"
    lengths.write_text("num_prefill_tokens,num_decode_tokens\n74,918\n290,905\n")
    assert [r.arrival_s for r in read_azure(azure)] == pytest.approx([0.0, 4.314579], abs=1e-6)
    assert [r.num_output_tokens for r in read_burst_gpt(burst)] == [18, 276]
    assert count_prompt_tokens(read_lengths(lengths)) == [74, 290]


def test_our_own_format_comes_back_as_it_was_written(tmp_path):
    records = frozen_loads().load("agent").records(capacity_per_s=2.0)
    path = tmp_path / "agent.jsonl"
    path.write_bytes(write_jsonl(records))
    assert read_jsonl(path) == records


@pytest.mark.parametrize(
    ("reader", "content", "message"),
    [
        (read_mooncake, b'{"timestamp": 0}\n', "line 1"),
        (read_mooncake, b"\xff\n", "line 1"),
        (read_azure, b"a,b\n1,2\n", "row 2.*ContextTokens"),
        (read_jsonl, b'{"index": 3, "arrival_s": 0, "prompt": [], "num_output_tokens": 1}\n', "record 0"),
    ],
)
def test_a_bad_file_is_refused_by_line(tmp_path, reader, content, message):
    path = tmp_path / "bad"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        reader(path)


def test_a_missing_or_half_file_is_refused(tmp_path):
    half = tmp_path / "half.jsonl.gz"
    half.write_bytes(gzip.compress(MOONCAKE)[:-20])
    for path in (tmp_path / "none.jsonl", half):
        with pytest.raises(ConfigError, match="cannot read"):
            read_mooncake(path)
