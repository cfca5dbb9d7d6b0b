"""Every row of a file gets an answer in order: a number with an error bar, or a reason."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvist.bench.calibration.passes import passes
from kvist.bench.calibration.points import BadPoint, Point, parse_points, read_points
from kvist.bench.calibration.predict_points import predict_points
from kvist.cli.main import main
from kvist.core.errors import ConfigError
from kvist.costmodel.step_work import StepWork

HEADER = (
    "kind,model,gpu,tp,dtype,batch,input_len,context_len,output_len,chunk_len,rate_rps,prefix_len,num_prefixes,num_users,"
    "max_num_batched_tokens,metric,value,quality,framework,source,note"
)
DECODE = "decode,Llama-2-70B,A100-80GB-SXM,4,fp16,32,1,576,,,,,,,,decode_step_ms,52.35,measured,early-2024 stack,,"
PREFILL = "prefill,Llama-2-70B,H100-80GB-SXM,8,fp16,2,512,0,,,,,,,,prefill_ms,,,vLLM 0.15.1,,"
CHUNKED = "chunked-prefill,Yi-34B,A100-80GB-PCIe,2,fp16,1,2047,0,,512,,,,,,chunked_prefill_total_ms,435,,Sarathi,"
HYBRID = "hybrid,Yi-34B,A100-80GB-PCIe,2,fp16,1024,1021,0,,,,,,,,hybrid_step_ms,217,measured,Sarathi-Serve,,"
OPEN = "e2e-serving-open,Mixtral-8x7B,H100-80GB-SXM,2,bf16,,547,,248,,8,100,9,5,2048,itl_mean_ms,19.4,,vLLM 0.15,"


def points(*rows: str) -> list[Point | BadPoint]:
    return parse_points([HEADER, *rows], "a test")


def test_each_row_is_answered_in_order() -> None:
    unknown = DECODE.replace("Llama-2-70B", "Nonesuch-1B"), DECODE.replace("decode,", "spectacle,")
    broken = DECODE.replace(",32,", ",many,")
    answers = predict_points(points(DECODE, unknown[0], PREFILL, broken, unknown[1], OPEN, CHUNKED, HYBRID))
    assert [answer.predicted is None for answer in answers] == [False, True, False, True, True, False, False, False]
    for answer in answers:
        assert answer.why
        assert (answer.predicted is None) == (answer.error_bar is None)
        assert answer.predicted is None or 0.0 < answer.predicted < 1e5


def test_measured_rows_are_predicted_within_an_eighth() -> None:
    for row in (DECODE, CHUNKED, OPEN):
        point = points(row)[0]
        assert isinstance(point, Point)
        (answer,) = predict_points([point])
        assert answer.predicted == pytest.approx(point.value, rel=0.125)


def test_bars_widen_with_the_distance_from_what_was_measured() -> None:
    rows = [DECODE, DECODE.replace("Llama-2-70B", "Llama-3.1-405B"), DECODE.replace("A100-80GB-SXM", "L40S")]
    shares = [(answer.error_bar or 0.0) / (answer.predicted or 1.0) for answer in predict_points(points(*rows))]
    assert shares == sorted(shares)
    assert shares[0] < shares[2]


def test_a_chunked_prompt_is_the_sum_of_its_passes() -> None:
    (point,) = points(CHUNKED)
    assert isinstance(point, Point)
    works = list(passes(point))
    assert [work.num_tokens for work in works] == [512, 512, 512, 511]
    assert [work.num_sampled for work in works] == [0, 0, 0, 1]
    assert sum(work.prefill_pairs for work in works) == 2047 * 2048 // 2


def test_a_hybrid_pass_is_prompts_and_single_tokens() -> None:
    (point,) = points(HYBRID)
    assert isinstance(point, Point)
    (work,) = passes(point)
    assert work == StepWork.of([(1, 0)] * 3 + [(1021, 0)], num_sampled=4)


def test_the_points_that_kvist_brings_can_all_be_read() -> None:
    rows = read_points()
    assert len(rows) == 1076
    assert all(isinstance(row, Point) for row in rows)


def test_a_file_without_the_columns_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no file of points"):
        parse_points(["{", "}"], "a test")
    assert main(["predict", "--points", str(tmp_path / "absent.csv")]) == 2


def test_rows_of_a_file_that_lacks_columns_say_so() -> None:
    lines = [",".join(HEADER.split(",")[1:]), ",".join(DECODE.split(",")[1:])]
    (answer,) = predict_points(parse_points(lines, "a test"))
    assert answer.predicted is None
    assert answer.why == "the file lacks the columns kind"


def test_a_file_as_a_spreadsheet_writes_it_is_read(tmp_path: Path) -> None:
    source = tmp_path / "points.csv"
    latin = DECODE.encode() + "\u00e9".encode("latin-1")
    source.write_bytes(b"\xef\xbb\xbf" + HEADER.encode() + b"\r\n" + latin + b"\r\n\r\n" + DECODE.encode() + b"\r\n")
    assert [answer.predicted is not None for answer in predict_points(read_points(source))] == [True, True]


def test_both_metrics_of_a_run_are_held_out_together() -> None:
    first, second = points(OPEN, OPEN.replace("itl_mean_ms,19.4", "ttft_mean_ms,70"))
    assert isinstance(first, Point)
    assert isinstance(second, Point)
    assert first.row_hash == second.row_hash


def test_the_command_writes_one_answer_per_row(tmp_path: Path) -> None:
    source, target = tmp_path / "points.csv", tmp_path / "out.json"
    source.write_text("\n".join([HEADER, DECODE, "rubbish", PREFILL]) + "\n", encoding="utf-8")
    assert main(["predict", "--points", str(source), "--json", str(target)]) == 0
    rows = json.loads(target.read_text(encoding="utf-8"))["rows"]
    assert [set(row) for row in rows] == [{"predicted", "error_bar", "why"}] * 3
    assert rows[1]["predicted"] is None


def test_a_step_is_printed_with_its_parts(capsys: pytest.CaptureFixture[str]) -> None:
    words = "predict --model llama-3.1-70b --device h100 --tp 4 --batch 16 --context 900"
    assert main(words.split()) == 0
    out = capsys.readouterr().out
    assert out.startswith("step time")
    assert "decode attention" in out
    assert "all reduce" in out


def test_the_shape_is_read_from_a_config_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {
        "model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
        "rms_norm_eps": 1e-5, "quantization_config": {"quant_method": "fp8"},
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert main(["predict", "--model", str(tmp_path)]) == 0
    of_file = capsys.readouterr().out.splitlines()
    assert main(["predict", "--model", "llama-3.1-8b"]) == 0
    assert capsys.readouterr().out.splitlines()[1:] == of_file[1:]


@pytest.mark.parametrize(
    "words",
    ["--device h101", "--model none-7b", "--dtype fp7", "--tp 0", "--tp 3", "--tp 1024", "--batch x", "--pp 99",
     "--calibration none", "--context 0", "--engine foo", "--batch 9999999", "--context 9999999999"],
)  # fmt: skip
def test_bad_flags_end_with_a_message_and_no_traceback(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", *words.split()]) == 2
    assert capsys.readouterr().err.startswith("kvist: ")


def test_a_load_is_simulated_once_for_all_its_metrics() -> None:
    metrics = ("itl_mean_ms", "ttft_mean_ms", "e2e_mean_ms", "ttft_p99_ms")
    load = OPEN.replace(",8,100,", ",30,100,").replace(",248,", ",40,")
    rows = points(*(load.replace("itl_mean_ms", metric) for metric in metrics))
    itl, ttft, e2e, tail = (answer.predicted or 0.0 for answer in predict_points(rows))
    assert e2e == pytest.approx(ttft + 39 * itl, rel=0.01)
    assert ttft <= tail < e2e


def test_simulation_and_steady_state_agree_on_a_closed_load() -> None:
    closed = "e2e-serving,Llama-3.1-8B,H100-80GB-SXM,1,bf16,8,512,,64,,,,,,,closed_loop_tpot_ms,,,vllm,,"
    (simulated,), (steady,) = (predict_points(points(closed), simulates=simulates) for simulates in (True, False))
    assert simulated.predicted == pytest.approx(steady.predicted, rel=0.1)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (",32,1,576,", ",1000000000,1,576,"), (",32,1,576,", ",32,1,1e300,"), (",32,1,576,", ",-4,1,576,"),
        (",32,1,576,", ",nan,1,576,"), (",4,fp16,", ",4,weird8,"), ("A100-80GB-SXM", "abacus"),
        ("decode_step_ms", "decode_step_furlongs"), (",32,1,576,", ",1e308,1,576,"), (",4,fp16,", ",3,fp16,"),
        ("decode,Llama", "chunked-prefill,Llama"), (",32,1,576,", ",65536,10000000,10000000,"),
    ],
)  # fmt: skip
def test_no_row_breaks_the_command(old: str, new: str) -> None:
    (answer,) = predict_points(points(DECODE.replace(old, new)))
    assert answer.predicted is None or answer.predicted > 0.0
    assert answer.why


def test_a_model_that_does_not_fit_is_no_number_but_a_reason() -> None:
    (answer,) = predict_points(points(OPEN.replace("Mixtral-8x7B", "Llama-3.1-405B")))
    assert answer.predicted is None
    assert "no room for keys and values" in answer.why


def test_requests_all_at_once_take_as_long_as_the_longest_answer() -> None:
    row = (
        "throughput,Llama-3.1-8B,H100-80GB-SXM,1,bf16,200,0,0,,,,,,,,offline_req_s_sharegpt200,19.5,,vLLM (late 2024),,"
    )
    (answer,) = predict_points(points(row))
    assert answer.predicted == pytest.approx(19.5, rel=0.15)


def test_a_note_that_names_a_huge_pass_is_answered_with_a_reason() -> None:
    (answer,) = predict_points(points(HYBRID + "1 prefill tokens + 99999999999999 decode"))
    assert answer.predicted is None
    assert "out of range" in answer.why


@pytest.mark.parametrize(("old", "new"), [(",8,100,", ",1e11,100,"), (",,547,,248,", ",,9999999,,248,")])
def test_an_open_load_beyond_all_reason_is_not_played(old: str, new: str) -> None:
    (answer,) = predict_points(points(OPEN.replace(old, new)))
    assert answer.why
