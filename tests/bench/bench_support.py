# SPDX-License-Identifier: Apache-2.0
"""A small tokenizer, an OpenAI-compatible server with a known behaviour, and a proxy that breaks things.

The server speaks HTTP on a port of its own. Its times are known, so that a measurement can be held
against them; its "model" answers needle questions from the prompt.
"""

from __future__ import annotations

import http.client
import http.server
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


def write_tokenizer(folder: Path) -> Path:
    """A tokenizer with one token per byte, as a checkpoint has it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: n for n, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


class _Quiet(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        return

    def send_text(self, code: int, text: str, kind: str = "application/json", **headers: str) -> None:
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", "0")))


@contextmanager
def _serving(handler: type[_Quiet]) -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


@dataclass
class Behaviour:
    """What the server does.

    ``prefill`` and ``decode`` are seconds per token; ``capacity`` is how many prompt tokens its cache holds.
    ``answer`` makes the answer's token ids from the prompt's text and the wanted number.
    """

    tokenizer: Any
    prefill: float = 0.0
    decode: float = 0.004
    per_event: int = 1
    capacity: int = 1_000_000
    token_ids: bool = True
    usage: bool = True
    lists: bool = True
    max_model_len: int | None = 4096
    log_probability: str = "-0.5"
    answer: Callable[[str, int], list[int]] | None = None
    requests: list[dict[str, Any]] = field(default_factory=list)
    cache: dict[tuple[int, ...], int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def reply(self, text: str, count: int) -> list[int]:
        if self.answer is not None:
            return self.answer(text, count)
        found = re.search(r"secret number of the \w+ is (\d+)\.", text)
        if found and "Question:" in text:
            return list(self.tokenizer.encode(f" {found[1]}").ids)
        # No repetition within what the loop check looks at.
        return [(n * n + n // 7) % 200 for n in range(count)]

    def cached(self, ids: tuple[int, ...]) -> int:
        """Prompt tokens that need not be read again; then the prompt is in the cache."""
        with self.lock:
            known = self.cache.pop(ids, 0)
            self.cache[ids] = len(ids)
            while sum(self.cache.values()) > self.capacity:
                self.cache.pop(next(iter(self.cache)))
            return known


@contextmanager
def openai_server(behaviour: Behaviour) -> Iterator[str]:
    """Run the server; gives its address."""
    one_at_a_time = threading.Lock()

    class Handler(_Quiet):
        def do_GET(self) -> None:
            if self.path == "/v1/models":
                row = {"id": "tiny", "object": "model", "max_model_len": behaviour.max_model_len}
                return self.send_text(200, json.dumps({"data": [row] if behaviour.lists else []}))
            if self.path == "/version":
                return self.send_text(200, '{"version": "0.33.0"}')
            if self.path == "/metrics":
                labels = f'block_size="16",num_gpu_blocks="{behaviour.capacity // 16}"'
                return self.send_text(200, f"vllm:cache_config_info{{{labels}}} 1.0\n", "text/plain")
            return self.send_text(404, "{}")

        def do_POST(self) -> None:
            body = json.loads(self.body())
            behaviour.requests.append(body)
            prompt = body["prompt"]
            if isinstance(prompt, list) and not behaviour.token_ids:
                return self.send_text(422, json.dumps({"detail": "prompt must be a string"}))
            ids = prompt if isinstance(prompt, list) else behaviour.tokenizer.encode(prompt).ids
            text = behaviour.tokenizer.decode(ids)
            known = behaviour.cached(tuple(ids))
            with one_at_a_time:  # As an engine reads one chunk after the other.
                time.sleep(behaviour.prefill * (len(ids) - known))
            answer = behaviour.reply(text, body["max_tokens"])[: body["max_tokens"]]
            if not body["stream"]:
                rows = ", ".join([behaviour.log_probability] * len(answer))
                return self.send_text(
                    200, f'{{"choices": [{{"text": "", "logprobs": {{"token_logprobs": [{rows}]}}}}]}}'
                )
            return self._stream(body, ids, known, answer)

        def _stream(self, body: dict, ids: list[int], known: int, answer: list[int]) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            step = behaviour.per_event
            for start in range(0, len(answer), step):
                if start:
                    time.sleep(behaviour.decode * step)
                piece = answer[start : start + step]
                choice: dict[str, Any] = {
                    "text": behaviour.tokenizer.decode(piece),
                    "finish_reason": "length" if start + step >= len(answer) else None,
                }
                if body.get("return_token_ids"):
                    choice["token_ids"] = piece
                self._event(json.dumps({"choices": [choice]}))
            if not answer:
                self._event(json.dumps({"choices": [{"text": "", "finish_reason": "length"}]}))
            if behaviour.usage and body.get("stream_options"):
                usage = {
                    "prompt_tokens": len(ids),
                    "completion_tokens": len(answer),
                    "prompt_tokens_details": {"cached_tokens": known},
                }
                self._event(json.dumps({"choices": [], "usage": usage}))
            self._event("[DONE]")
            self.wfile.write(b"0\r\n\r\n")

        def _event(self, data: str) -> None:
            raw = f"data: {data}\n\n".encode()
            self.wfile.write(b"%x\r\n%b\r\n" % (len(raw), raw))

    with _serving(Handler) as url:
        yield url


@dataclass
class Faults:
    """What the proxy does to completions, one entry per request; after the last one it only passes on.

    ``pass``, ``500``, ``429``, ``503`` (both ask to come again), ``cut`` (ends in the middle), ``stall``
    (stops in the middle), ``late`` (says nothing at all), ``junk`` (an event that is no JSON), ``error`` (an
    event that reports an error), ``gone`` (from now on nothing listens).
    """

    plan: list[str] = field(default_factory=list)
    retry_after: str = "0.05"
    gone: bool = False
    seen: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def next(self) -> str:
        with self.lock:
            self.seen += 1
            return self.plan[self.seen - 1] if self.seen <= len(self.plan) else "pass"


@contextmanager
def fault_proxy(upstream: str, faults: Faults) -> Iterator[str]:
    """Run a proxy before ``upstream``; gives its address."""
    host = upstream.removeprefix("http://")
    leave = threading.Event()

    class Handler(_Quiet):
        def do_GET(self) -> None:
            if faults.gone:
                return self._hang_up()
            return self._pass_on(b"", "pass")

        def do_POST(self) -> None:
            body = self.body()
            fault = faults.next()
            if fault == "gone":
                faults.gone = True
            if faults.gone:
                return self._hang_up()
            if fault in ("429", "503"):
                return self.send_text(int(fault), '{"error": "busy"}', Retry_After=faults.retry_after)
            if fault == "500":
                return self.send_text(500, '{"error": {"message": "CUDA error: out of memory"}}')
            return self._pass_on(body, fault)

        def _hang_up(self) -> None:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

        def _pass_on(self, body: bytes, fault: str) -> None:
            if fault == "late":
                leave.wait(30)
                return self._hang_up()
            connection = http.client.HTTPConnection(host, timeout=60)
            connection.request(self.command, self.path, body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            self.send_response(answer.status)
            self.send_header("Content-Type", answer.getheader("Content-Type", ""))
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            lines = 0
            for line in answer:
                lines += line.startswith(b"data")
                if lines == 4 and fault in ("cut", "stall"):
                    if fault == "stall":
                        leave.wait(30)
                    return self._hang_up()
                if lines == 3 and fault == "junk":
                    line = b"data: {broken\n"
                if lines == 3 and fault == "error":
                    line = b'data: {"error": {"message": "EngineDeadError"}}\n'
                self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
            self.wfile.write(b"0\r\n\r\n")
            connection.close()
            return None

    with _serving(Handler) as url:
        try:
            yield url
        finally:
            leave.set()
