# SPDX-License-Identifier: Apache-2.0
"""``bench`` against an OpenAI-compatible server with known times, and through a proxy that breaks things."""

from __future__ import annotations

import json
import signal
import subprocess
import time

import pytest
from series_support import CONSOLE_SCRIPT, clean_env, run_here


@pytest.fixture
def bench(tmp_path, tokenizer, request, monkeypatch):
    """Runs the verb; drawing takes longer than most of these measurements, and is tested once."""
    if "draws" not in request.keywords:
        monkeypatch.setattr("vllm_series.bench.plots.plot", lambda result, folder: [])

    def run(url, *args, into="run", **env):
        return run_here(
            "bench", "--url", url, "--tokenizer", tokenizer, "--into", tmp_path / into,
            "--timeout", "5", "--json", *args, cwd=tmp_path, env=env,
        )  # fmt: skip

    return run


SHORT = ("--context", "256", "--users", "2", "--tokens", "32", "--repeat", "1")


def rows(result) -> dict[str, list[dict]]:
    found: dict[str, list[dict]] = {}
    for row in result.document["result"]["measurements"]:
        found.setdefault(row["scenario"], []).append(row)
    return found


@pytest.mark.draws
def test_everything_is_measured_and_written(bench, server, behaviour, tmp_path):
    behaviour.capacity, behaviour.prefill = 1024, 0.0005
    result = bench(server, *SHORT, "--context", "512")
    assert result.code == 0, result
    found = rows(result)
    assert {name: len(made) for name, made in found.items()} == {
        "prefill": 2, "decode": 2, "behind": 1, "burst": 1, "needle": 10, "tier": 1, "check": 1,
    }  # fmt: skip
    assert all(made["values"]["found"] for made in found["needle"])
    folder = tmp_path / "run"
    written = {p.name for p in folder.iterdir()}
    assert written == {
        "result.json", "report.md", "rate-by-users.svg", "rate-by-users.png", "rate-by-context.svg",
        "rate-by-context.png", "prefill-by-context.svg", "prefill-by-context.png",
    }  # fmt: skip
    assert (folder / "rate-by-users.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (folder / "rate-by-users.svg").read_text()
    document = json.loads((folder / "result.json").read_text())
    assert document == result.document["result"]
    assert document["state"] == "complete"
    assert document["environment"]["server"] == "vLLM 0.33.0"
    assert document["environment"]["cache"] == {"block_size": "16", "num_gpu_blocks": "64"}
    assert document["settings"]["evict"] == round(1024 * 1.2)


def test_prompts_have_the_exact_length_and_differ(bench, server, behaviour):
    assert bench(server, *SHORT, "--only", "prefill", "--repeat", "3").code == 0
    _, *sent = [r["prompt"] for r in behaviour.requests]
    assert [len(p) for p in sent] == [256] * 3
    assert len({tuple(p[:16]) for p in sent}) == 3


def test_the_times_are_the_servers(bench, server, behaviour):
    behaviour.prefill, behaviour.decode = 0.001, 0.02
    result = bench(server, *SHORT, "--only", "prefill", "--only", "decode")
    [prefill], [decode] = rows(result)["prefill"], rows(result)["decode"]
    # 256 tokens at 1 ms each, and what HTTP adds.
    assert 0.25 < prefill["values"]["ttft"] < 0.5
    assert prefill["values"]["rate"] == pytest.approx(256 / prefill["values"]["ttft"])
    # 50 tokens per second; never more.
    assert 30 < decode["values"]["rate"] <= 51
    assert decode["values"]["cached"] == 1
    assert decode["values"]["ttft"] < 0.2
    assert [s["prompt_tokens"] for s in decode["samples"]] == [256] * 4
    assert [s["completion_tokens"] for s in decode["samples"]] == [1, 1, 32, 32]


def test_several_tokens_per_event_are_counted(bench, server, behaviour):
    """As with speculative decoding: the first event brings several tokens, and they are not rate."""
    behaviour.per_event, behaviour.decode = 4, 0.01
    [decode] = rows(bench(server, *SHORT, "--only", "decode"))["decode"]
    assert 50 < decode["values"]["rate"] <= 101


def test_an_answer_in_one_piece_is_not_timed(bench, server, behaviour):
    behaviour.per_event = 32
    result = bench(server, *SHORT, "--only", "decode")
    assert result.code == 1
    [decode] = rows(result)["decode"]
    assert decode["problem"] == "the tokens came in too few pieces to time"
    assert decode["values"] == {}


def test_the_short_prompt_waits_for_the_long_one(bench, server, behaviour):
    behaviour.prefill = 0.002
    [made] = rows(bench(server, *SHORT, "--context", "1024", "--only", "behind"))["behind"]
    values = made["values"]
    assert values["ttft_long"] > 2
    assert values["ttft"] > values["ttft_alone"] + 1


def test_a_long_prompt_that_is_not_long_enough(bench, server, monkeypatch):
    monkeypatch.setattr("vllm_series.bench.scenarios.HEAD_START", 2.0)
    result = bench(server, *SHORT, "--only", "behind")
    assert result.code == 1
    assert "name a longer --context" in result.err


def test_seven_at_once(bench, server, behaviour):
    behaviour.prefill = 0.0005
    [made] = rows(bench(server, *SHORT, "--only", "burst"))["burst"]
    assert len(made["samples"]) == 7
    assert made["values"]["ttft_max"] > made["values"]["ttft"] > 0.128
    starts = [s["start"] for s in made["samples"]]
    assert max(starts) - min(starts) < 0.128


def test_a_prompt_that_was_driven_out(bench, server, behaviour):
    behaviour.prefill, behaviour.capacity = 0.001, 1024
    [made] = rows(bench(server, *SHORT, "--only", "tier"))["tier"]
    values = made["values"]
    assert values["ttft_hot"] < 0.2 < values["ttft_cold"]
    assert values["ttft_back"] > 0.2
    assert values["same_hot"] is values["same_back"] is True


def test_another_answer_after_the_cache_is_found(bench, server, behaviour):
    behaviour.capacity = 1024
    seen = []

    def answer(text, count):
        seen.append(text)
        return [(n * 7 + (seen.count(text) == 3)) % 200 for n in range(count)]

    behaviour.answer = answer
    result = bench(server, *SHORT, "--only", "tier")
    assert result.code == 1
    assert "another answer after the prompt was driven out" in result.err


@pytest.mark.parametrize(
    ("answer", "probability", "finding"),
    [
        (lambda text, count: [33] * count, "-0.5", "repeating itself"),
        (None, "null", "not finite"),
        (None, "NaN", "not finite"),
    ],
)
def test_answers_of_a_broken_server(bench, server, behaviour, answer, probability, finding):
    behaviour.answer, behaviour.log_probability = answer, probability
    result = bench(
        server, "--context", "256", "--users", "2", "--tokens", "64", "--repeat", "1", "--only", "check"
    )
    assert result.code == 1
    assert finding in result.err


def test_a_missed_needle(bench, server, behaviour):
    behaviour.answer = lambda text, count: list(range(count))
    result = bench(server, *SHORT, "--only", "needle")
    assert result.code == 1
    assert len(result.document["bad_answers"]) == 5


def test_a_server_that_takes_text_alone(bench, server, behaviour):
    behaviour.token_ids, behaviour.usage, behaviour.capacity = False, False, 1024
    behaviour.prefill = 0.001
    result = bench(server, *SHORT)
    assert result.code == 0, result
    assert result.document["result"]["settings"]["form"] == "text"
    [decode] = rows(result)["decode"]
    # Counted by the tokenizer here.
    assert decode["samples"][0]["prompt_tokens"] == 256
    sent = behaviour.requests[-1]
    assert set(sent) <= {"model", "prompt", "max_tokens", "temperature", "seed", "stream"}


def test_a_token_that_is_no_text_is_timed_by_the_end_of_the_answer(bench, server, behaviour):
    behaviour.token_ids, behaviour.usage, behaviour.prefill = False, False, 0.001
    behaviour.answer = lambda text, count: []
    result = bench(server, *SHORT, "--only", "prefill")
    [made] = rows(result)["prefill"]
    assert 0.25 < made["values"]["ttft"] < 0.6


def test_a_server_that_lists_nothing_is_asked_for_the_named_model(bench, server, behaviour):
    behaviour.lists = False
    assert bench(server, *SHORT, "--only", "prefill").code == 2
    assert bench(server, *SHORT, "--only", "prefill", "--model", "tiny").code == 0


# -- faults -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fault", "text"),
    [
        ("500", "HTTP 500"),
        ("cut", "cut after"),
        ("stall", "no data for 1 s"),
        ("late", "no data for 1 s after 0 tokens"),
        ("junk", "an event that is no JSON"),
        ("error", "EngineDeadError"),
    ],
)
def test_a_fault_spoils_one_measurement_and_is_named(bench, proxy, faults, fault, text):
    # Request 1 finds out the form of the request; then come one prefill, two warm-ups, two answers.
    faults.plan = ["pass"] * 4 + [fault]
    result = bench(
        proxy, *SHORT, "--only", "prefill", "--only", "decode", "--only", "needle", "--timeout", "1"
    )
    assert result.code == 1, result
    found = rows(result)
    assert found["prefill"][0]["problem"] == ""
    assert text in found["decode"][0]["problem"]
    assert found["decode"][0]["values"] == {}
    assert [m["problem"] for m in found["needle"]] == [""] * 5
    assert text in result.err


@pytest.mark.parametrize("fault", ["429", "503"])
def test_a_busy_server_is_asked_again(bench, proxy, faults, fault):
    faults.plan = ["pass", fault, fault]
    result = bench(proxy, *SHORT, "--only", "prefill")
    assert result.code == 0, result
    [made] = rows(result)["prefill"]
    [sample] = made["samples"]
    assert sample["retries"] == 2
    assert sample["ttft"] < 1


def test_a_server_that_stays_busy(bench, proxy, faults):
    faults.plan, faults.retry_after = ["pass"] + ["429"] * 50, "0"
    result = bench(proxy, *SHORT, "--only", "prefill")
    assert result.code == 1
    assert "HTTP 429" in result.err


def test_a_server_that_goes_away_leaves_what_was_measured(bench, proxy, faults, tmp_path):
    faults.plan = ["pass"] * 3 + ["gone"]
    result = bench(proxy, *SHORT, "--repeat", "4", "--only", "prefill")
    assert result.code == 5
    assert result.document["state"] == "stopped"
    assert "3 of 4 measurements" in result.err
    kept = json.loads((tmp_path / "run/result.json").read_text())
    assert [bool(m["problem"]) for m in kept["measurements"]] == [False, False, True]
    assert "stopped after 3 of 4" in (tmp_path / "run/report.md").read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_run_keeps_what_it_has(server, behaviour, tokenizer, tmp_path, number):
    behaviour.prefill = 0.001
    into = tmp_path / "run"
    process = subprocess.Popen(
        [CONSOLE_SCRIPT, "bench", "--url", server, "--tokenizer", tokenizer, "--into", into, *SHORT,
         "--repeat", "500", "--only", "prefill"],
        env=clean_env(MPLCONFIGDIR=str(tmp_path)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        file = into / "result.json"
        if file.exists() and len(json.loads(file.read_text())["measurements"]) >= 2:
            break
        time.sleep(0.05)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    kept = json.loads((into / "result.json").read_text())
    assert len(kept["measurements"]) >= 2
    if number == signal.SIGKILL:
        assert kept["state"] == "running"
        # What a killed run has left can be compared, and is called what it is.
        result = run_here("bench", "compare", into, into)
        assert result.code == 0
        assert "the first run is not whole" in result.err
    else:
        assert process.returncode == 130
        assert kept["state"] == "interrupted"
        assert "of 500 measurements are kept" in err
        assert (into / "prefill-by-context.png").exists()


def test_no_server_a_wrong_one_and_wrong_words(bench, server, tokenizer, tmp_path):
    assert bench("http://127.0.0.1:9").code == 5
    assert bench("nonsense").code in (2, 5)
    assert bench(server, "--only", "speed").code == 2
    result = bench(server, "--model", "other")
    assert result.code == 2
    assert "serves tiny, not other" in result.err
    result = bench(server, "--context", "8000")
    assert result.code == 2
    assert "no context fits" in result.err
    assert not (tmp_path / "run").exists()
    (tmp_path / "run").mkdir()
    (tmp_path / "run/mine").write_text("")
    assert bench(server, *SHORT).code == 4
    result = run_here("bench", "--url", server, "--into", tmp_path / "x")
    assert result.code == 2
    assert "--tokenizer" in result.err


def test_what_does_not_fit_is_left_out_and_said(bench, server):
    result = bench(server, *SHORT, "--context", "8000", "--only", "prefill")
    assert result.code == 0
    assert result.document["result"]["skipped"] == ["context 8000: with 32 tokens more than the model's 4096"]


def test_a_context_too_short_for_a_needle(bench, server):
    result = bench(server, *SHORT, "--context", "64", "--only", "needle")
    assert result.code == 0, result
    assert len(rows(result)["needle"]) == 5
    assert result.document["result"]["skipped"] == ["needle: 64 tokens have no room for one"]


def test_a_key_is_sent_and_not_kept(bench, behaviour, server, tmp_path):
    result = bench(server, *SHORT, "--only", "prefill", OPENAI_API_KEY="sk-secret")
    assert result.code == 0
    for path in (tmp_path / "run").iterdir():
        assert b"sk-secret" not in path.read_bytes()


def test_two_runs_are_compared(bench, server, behaviour, tmp_path):
    behaviour.decode = 0.02
    bench(server, *SHORT, "--repeat", "2", "--only", "decode", into="a")
    behaviour.decode = 0.005
    bench(server, *SHORT, "--repeat", "2", "--only", "decode", into="b")
    result = run_here("bench", "compare", tmp_path / "a", tmp_path / "b", "--json")
    assert result.code == 0, result
    rates = [p for p in result.document["pairs"] if p["value"] == "rate"]
    assert rates[0]["ratio"] > 1.5
    assert rates[0]["apart"] is True
    assert run_here("bench", "compare", tmp_path / "a", tmp_path / "none").code == 2


@pytest.mark.parametrize(
    "args",
    [
        ("--url", "nonsense"),
        ("--url", ""),
        ("--url", "ftp://host"),
        ("--url", "http://"),
        ("--url", "http://127.0.0.1:99999"),
        ("--url", "http://[::1"),
        ("--timeout", "nan"),
    ],
)
def test_an_address_that_is_none(tokenizer, tmp_path, args):
    result = run_here("bench", "--tokenizer", tokenizer, "--into", tmp_path / "x", *args, "--json")
    assert result.code == 2, result
    assert args[0] in result.document["error"]["message"]
    assert not (tmp_path / "x").exists()


def test_json_before_compare(tmp_path):
    for args in (("--json", "compare", "a", "b"), ("compare", "a", "b", "--json")):
        result = run_here("bench", *args, cwd=tmp_path)
        assert result.code == 2
        assert result.document["verb"] == "bench compare"
