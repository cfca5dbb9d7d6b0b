"""LLM: prompts of every form in, outputs in order out."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kvist import LLM, RequestOutput, SamplingParams
from kvist.core.errors import CheckpointError, ConfigError, InvalidRequestError, RequestTooLongError

GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def model(tiny_model: Any) -> str:
    return str(tiny_model("llama", "f32"))


def make(model: str, **options: Any) -> LLM:
    small: dict[str, Any] = {
        "max_num_batched_tokens": 128,
        "num_blocks": 128,
        "max_model_len": 512,
        "check_invariants": True,
    }
    return LLM(model, **(small | options))


@pytest.fixture(scope="module")
def llm(model: str) -> Iterator[LLM]:
    with make(model) as llm:
        yield llm


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [sample.text for output in outputs for sample in output.outputs]


def test_outputs_come_in_the_order_of_the_prompts(llm: LLM) -> None:
    prompts = ["a", "some longer prompt", "hello", "x" * 100]
    params = [SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True) for count in (9, 2, 30, 4)]
    outputs = llm.generate(prompts, params)
    assert [output.prompt for output in outputs] == prompts
    assert [len(output.outputs[0].token_ids) for output in outputs] == [9, 2, 30, 4]
    assert all(output.finished for output in outputs)


@pytest.mark.parametrize("executor", ["native", "reference"])
def test_a_pool_taken_at_the_start_gives_the_same_tokens(
    llm: LLM, model: str, executor: str, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        caplog.at_level("INFO", "kvist.execution.preallocation"),
        make(model, executor=executor, preallocate_kv_cache=True) as other,
    ):
        assert texts(other.generate("hello", GREEDY)) == texts(llm.generate("hello", GREEDY))
    assert "KV pool preallocated" in caplog.text


def test_a_prompt_may_be_text_ids_or_a_dictionary(llm: LLM) -> None:
    ids = llm.get_tokenizer().encode("hello")
    expected = texts(llm.generate("hello", GREEDY))
    assert texts(llm.generate(["hello"], GREEDY)) == expected
    assert texts(llm.generate(ids, GREEDY)) == expected
    assert texts(llm.generate([ids, {"prompt_token_ids": ids}, {"prompt": "hello"}], GREEDY)) == expected * 3
    assert llm.generate(ids, GREEDY)[0].prompt is None
    assert llm.generate([], GREEDY) == []


def test_chat_renders_the_models_template(llm: LLM) -> None:
    messages = [{"role": "user", "content": "hi"}]
    one = llm.chat(messages, GREEDY)
    assert "hi" in (one[0].prompt or "")
    assert texts(llm.chat([messages, messages], GREEDY)) == texts(one) * 2
    assert one[0].prompt_token_ids == llm.get_tokenizer().encode(one[0].prompt or "", add_special_tokens=False)


def test_enqueued_prompts_are_answered_in_order(llm: LLM) -> None:
    llm.enqueue(["a", "b"], GREEDY)
    llm.enqueue("c", GREEDY)
    assert texts(llm.wait_for_completion()) == texts(llm.generate(["a", "b", "c"], GREEDY))
    assert llm.wait_for_completion() == []


def test_logprobs_name_the_sampled_token_and_the_best(llm: LLM) -> None:
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True, logprobs=3, prompt_logprobs=2)
    output = llm.generate("hello", params)[0]
    sample = output.outputs[0]
    assert sample.logprobs is not None
    assert [next(iter(position)) for position in sample.logprobs] == sample.token_ids
    assert all(position[token].rank == 1 for position, token in zip(sample.logprobs, sample.token_ids, strict=True))
    assert sample.cumulative_logprob == pytest.approx(
        sum(position[token].logprob for position, token in zip(sample.logprobs, sample.token_ids, strict=True))
    )
    assert output.prompt_logprobs is not None
    assert len(output.prompt_logprobs) == len(output.prompt_token_ids)
    assert output.prompt_logprobs[0] is None


def test_samples_of_one_prompt_differ_and_repeat_with_the_seed(llm: LLM) -> None:
    params = SamplingParams(temperature=1.0, max_tokens=12, n=4, seed=5, ignore_eos=True)
    first, second = llm.generate(["hello", "hello"], params)
    assert len({sample.text for sample in first.outputs}) > 1
    assert texts([first]) == texts([second])
    assert [sample.index for sample in first.outputs] == [0, 1, 2, 3]


def test_a_repeated_prompt_is_read_from_the_cache(llm: LLM) -> None:
    prompt = "the same words again and again, " * 5
    llm.generate(prompt, GREEDY)
    output = llm.generate(prompt, GREEDY)[0]
    assert output.num_cached_tokens >= len(output.prompt_token_ids) - 16
    assert llm.reset_prefix_cache()
    assert llm.generate(prompt, GREEDY)[0].num_cached_tokens == 0


def test_metrics_count_the_requests(llm: LLM) -> None:
    def finished() -> float:
        # By length only: requests that other tests aborted may end late.
        finished = [metric for metric in llm.get_metrics() if metric.name == "kvist:requests_finished_total"]
        return next(metric.value for metric in finished if metric.labels["finished_reason"] == "length")

    before = finished()
    llm.generate(["a", "b"], GREEDY)
    assert finished() == before + 2


def test_times_are_in_order(llm: LLM) -> None:
    metrics = llm.generate("hello", GREEDY)[0].metrics
    assert metrics.first_token_time_s is not None
    assert metrics.finished_time_s is not None
    assert metrics.arrival_time_s < metrics.first_token_time_s <= metrics.finished_time_s


@pytest.mark.parametrize(
    ("prompts", "params", "error"),
    [
        (["fine", [1, "x"]], GREEDY, InvalidRequestError),
        (3, GREEDY, InvalidRequestError),
        ({"text": "x"}, GREEDY, InvalidRequestError),
        (["a", "b"], [GREEDY], InvalidRequestError),
        ([[10**6]], GREEDY, InvalidRequestError),
        ("a", "greedy", InvalidRequestError),
        ("a", 0, InvalidRequestError),
        ("a", {}, InvalidRequestError),
        (["ok", [1] * 600], GREEDY, RequestTooLongError),
    ],
)
def test_bad_prompts_raise_and_leave_the_engine_serving(llm: LLM, prompts: Any, params: Any, error: type) -> None:
    with pytest.raises(error):
        llm.generate(prompts, params)
    assert llm.generate("hello", GREEDY)[0].finished


def test_stop_may_be_one_string_or_any_collection(llm: LLM) -> None:
    text = texts(llm.generate("hello", GREEDY))[0]
    piece = text[3:5]
    for stop in (piece, [piece], {piece}, (piece,)):
        params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True, stop=stop)  # type: ignore[arg-type]
        sample = llm.generate("hello", params)[0].outputs[0]
        assert (sample.text, sample.stop_reason) == (text[: text.index(piece)], piece)


@pytest.mark.parametrize(
    "bad",
    [
        {"temperature": "hot"},
        {"stop": 3},
        {"stop_token_ids": ["a"]},
        {"n": 1.5},
        {"logit_bias": {"x": 1}},
        {"logit_bias": {1: float("nan")}},
        {"logit_bias": {1: float("inf")}},
    ],
)
def test_sampling_options_of_a_wrong_kind_are_named(bad: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequestError, match=next(iter(bad))):
        SamplingParams(**bad)


@pytest.mark.parametrize("size", [{"kv_cache_bytes": 2**60}, {"num_blocks": 2**62}])
def test_a_kv_pool_beyond_all_memory_is_refused_naming_the_flag(model: str, size: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="--kv-cache-bytes"):
        LLM(model, **size)


def test_a_program_that_leaves_its_engine_open_ends_without_a_word(model: str) -> None:
    program = f"from kvist import LLM\nllm = LLM({model!r}, num_blocks=64, num_threads=2)\nkept = [llm]"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
    assert ended.stderr == ""


def test_unknown_options_name_the_nearest() -> None:
    with pytest.raises(ConfigError, match="max_num_seqs"):
        LLM("smollm2-135m-instruct", max_num_seq=4)


def test_a_missing_model_raises_and_leaves_no_thread(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    with pytest.raises(CheckpointError):
        LLM(str(tmp_path / "missing.gguf"))
    assert set(threading.enumerate()) <= before


def test_more_prompts_than_the_queue_holds_all_get_their_answer(model: str) -> None:
    with make(model, max_num_queued_reqs=3, max_num_seqs=2) as llm:
        outputs = llm.generate([f"prompt {i}" for i in range(12)], SamplingParams(temperature=0.0, max_tokens=3))
        assert len(outputs) == 12
        assert all(output.finished for output in outputs)


INTERRUPTED = """
import sys, threading, time
from kvist import LLM, SamplingParams

def say_when_it_runs(status):
    while status().num_running == 0:
        time.sleep(0.01)
    print("ready", flush=True)

with LLM(sys.argv[1], max_num_batched_tokens=64, num_blocks=256, max_model_len=4000) as llm:
    status = llm._llm.engine.client.status
    try:
        threading.Thread(target=say_when_it_runs, args=[status]).start()
        while True:  # however fast the machine is
            llm.generate(["a", "b"], SamplingParams(max_tokens=3900, ignore_eos=True))
    except KeyboardInterrupt:
        print(llm.generate("c", SamplingParams(max_tokens=2, ignore_eos=True))[0].finished, flush=True)
        print(status().num_running == 0 or status().num_running, flush=True)
"""


def test_ctrl_c_aborts_the_batch_and_the_engine_goes_on(model: str) -> None:
    with subprocess.Popen([sys.executable, "-c", INTERRUPTED, model], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        os.kill(child.pid, signal.SIGINT)
        output, _ = child.communicate(timeout=100)
    assert output.splitlines() == ["True", "True"]
    assert child.returncode == 0
