"""Recorded loads are read as they were recorded, and bad files are refused by line."""

from __future__ import annotations

import gzip
import json

import pytest

from kvist.core.errors import ConfigError
from kvist.workload.load_file import frozen_loads
from kvist.workload.recorded_load import read_recorded_load
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


def json_line(index: int, **fields: object) -> bytes:
    text = {"type": "text", "text_id": "a", "start": 0, "num_tokens": 20}
    return json.dumps({"index": index, "arrival_s": 0.0, "prompt": [text], "num_output_tokens": 8, **fields}).encode()


def mooncake_line(**fields: object) -> bytes:
    line = {"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [1, 2], **fields}
    return json.dumps(line).encode() + b"\n"


def text(start: int, num_tokens: int) -> list[dict[str, object]]:
    return [{"type": "text", "text_id": "a", "start": start, "num_tokens": num_tokens}]


def burst(row: bytes) -> bytes:
    return b"Timestamp,Model,Request tokens,Response tokens\n" + row


@pytest.mark.parametrize(
    ("reader", "content", "message"),
    [
        (read_mooncake, b'{"timestamp": 0}\n', "line 1"),
        (read_mooncake, b"\xff\n", "line 1"),
        (read_mooncake, mooncake_line() + mooncake_line(input_length=-5), "line 2"),
        (read_mooncake, mooncake_line(input_length=0, hash_ids=[]), "line 1"),
        (read_mooncake, mooncake_line(output_length=-3), "line 1"),
        (read_mooncake, mooncake_line(output_length=10**12), "request 0 asks for"),
        (read_mooncake, mooncake_line(input_length=10**12, hash_ids=[]), "request 0 has 1000000000000 tokens"),
        (read_mooncake, mooncake_line() + mooncake_line(timestamp=1e300), "request 1 comes at"),
        (read_mooncake, mooncake_line(hash_ids=list(range(99))), "--trace-block-tokens"),
        (read_azure, b"a,b\n1,2\n", "no column TIMESTAMP"),
        (read_azure, b"TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,2\n", "row 2, column TIMESTAMP"),
        (read_burst_gpt, burst(b"nan,x,5,5\n"), "row 2, column Timestamp"),
        (read_burst_gpt, burst(b"0,x,5,5\ninf,x,5,5\n"), "row 3, column Timestamp"),
        (read_burst_gpt, burst(b"0,x,5.5,5\n"), "row 2, column Request tokens"),
        (read_burst_gpt, burst(b"0,x,-5,5\n"), "row 2, column Request tokens"),
        (read_burst_gpt, burst(b"0,x,1e999,5\n"), "row 2, column Request tokens"),
        (read_burst_gpt, burst(b"0,x\n"), "row 2 .*cut off"),
        (read_burst_gpt, burst(b"0," + b"x" * 200_000 + b",5,5\n"), "no CSV"),
        (read_jsonl, json_line(3), "request 0 has index 3"),
        (read_jsonl, json_line(0, after=0), "request 0 comes after request 0"),
        (read_jsonl, json_line(0, arrival_s=-5), "request 0 comes at -5 s"),
        (read_jsonl, json_line(0, num_output_tokens=0), "request 0 asks for 0 tokens"),
        (read_jsonl, json_line(0, n=0), "request 0 asks for 0 samples"),
        (read_jsonl, json_line(0, prompt=[]), "prompt of 0 tokens"),
        (read_jsonl, json_line(0, prompt=text(0, -5)), "-5 tokens"),
        (read_jsonl, json_line(0, prompt=text(-50, 5)), "from token -50"),
        (read_jsonl, json_line(0, prompt=text(10**25, 20)), "line 1|from token"),
        (read_jsonl, json_line(0, prompt=[{"type": "answer", "index": 0}]), "does not follow"),
        (read_jsonl, json_line(0, prompt=[{"type": "answer", "index": 7}]), "does not follow"),
        (
            read_jsonl,
            json_line(0)
            + b"\n"
            + json_line(1)
            + b"\n"
            + json_line(2, after=0, prompt=[{"type": "answer", "index": 1}]),
            "request 2 holds the answer of request 1",
        ),
    ],
)
def test_a_bad_file_is_refused_by_line(tmp_path, reader, content, message):
    path = tmp_path / "bad"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message):
        reader(path)


def test_lines_of_a_mooncake_trace_may_be_in_any_order(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(mooncake_line(timestamp=5000, output_length=3) + mooncake_line() + mooncake_line(timestamp=2000))
    records = read_mooncake(path)
    assert [record.arrival_s for record in records] == [0.0, 2.0, 5.0]
    assert [record.num_output_tokens for record in records] == [5, 5, 3]


def test_tokens_without_a_block_id_are_a_text_of_their_own(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(mooncake_line(input_length=1500, hash_ids=[1, 2]) * 2)
    first, second = read_mooncake(path)
    assert count_prompt_tokens([first, second]) == [1500, 1500]
    assert first.prompt[:2] == second.prompt[:2]
    assert first.prompt[2] != second.prompt[2]


def test_the_size_of_blocks_is_what_fits_all_prompts(tmp_path):
    path = tmp_path / "trace.jsonl"
    path.write_bytes(
        mooncake_line(input_length=40, hash_ids=[1, 2, 3]) + mooncake_line(input_length=70, hash_ids=[1, 2, 3, 4])
    )
    assert read_mooncake(path)[0].prompt[0].num_tokens == 16
    assert read_mooncake(path, block_tokens=20)[0].prompt[0].num_tokens == 20


def test_csvs_as_spreadsheets_and_newer_traces_write_them_are_read(tmp_path):
    path = tmp_path / "azure.csv"
    path.write_bytes(
        b"\xef\xbb\xbfTIMESTAMP, ContextTokens,GeneratedTokens\r\n"
        b"2024-05-10 00:00:00.009930+00:00,10.0,5\r\n2024-05-10 02:00:01+02:00,20,6\r\n"
    )
    records = read_recorded_load(path)
    assert [record.arrival_s for record in records] == pytest.approx([0.0, 0.99007], abs=1e-6)
    assert count_prompt_tokens(records) == [10, 20]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("empty.jsonl", b"", "no trace that kvist knows"),
        ("blank.jsonl", b"\n\n", "no trace that kvist knows"),
        ("deep.jsonl", b"[" * 100_000, "no trace that kvist knows"),
        ("deep_object.jsonl", b'{"a":' * 100_000, "line 1"),
        ("none.csv", b"num_prefill_tokens,num_decode_tokens\n", "holds no request"),
        ("cut.jsonl.gz", gzip.compress(mooncake_line() * 99, mtime=0)[:40], "cannot read the trace"),
        ("damaged.csv.gz", gzip.compress(b"", mtime=0)[:10] + b"\xff" * 40, "cannot read the trace"),
        ("plain.gz", b"{}", "cannot read the trace"),
    ],
)
def test_what_is_no_trace_is_refused_by_name(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=message) as raised:
        read_recorded_load(path)
    assert str(path) in str(raised.value)
