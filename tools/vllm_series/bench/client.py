# SPDX-License-Identifier: Apache-2.0
"""The client: one streamed completion, timed, whatever goes wrong."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from vllm_series.bench.prompts import Prompt
from vllm_series.bench.result import Sample
from vllm_series.errors import EnvironmentFaultError, UsageError

#: How often a request is sent again when the server says that it is busy.
MOST_RETRIES = 5
#: Tokens that arrive within this many seconds of each other came in one piece.
PIECE = 0.0005
#: Fewer pieces than one for so many tokens, and the rate is that of the network or of a busy server process.
TOKENS_PER_PIECE = 8
LONGEST_WAIT = 30.0


class ServerGoneError(Exception):
    """The server does not answer any more."""


@dataclass
class Client:
    """Talks to one server.

    Attributes:
        url: Its address, without ``/v1``.
        model: The name that it serves the model under.
        http: The connections.
        count: Counts the tokens of a text, for servers that do not.
        extended: Whether it takes token ids and vLLM's own fields; else text alone is sent.

    """

    url: str
    model: str
    http: httpx.AsyncClient
    count: Callable[[str], int]
    extended: bool = True
    clock: float = field(default_factory=time.perf_counter)

    async def complete(self, prompt: Prompt, tokens: int, *, to_the_end: bool = True) -> Sample:
        """Send a prompt and time its answer; what goes wrong stands in the sample.

        Args:
            prompt: The prompt.
            tokens: How many tokens to ask for.
            to_the_end: Ask for all of them, even after an end-of-text token.

        """
        body = self._body(prompt, tokens, to_the_end)
        for retry in range(MOST_RETRIES + 1):
            stream = _Stream(len(prompt.ids), time.perf_counter() - self.clock)
            wait = await self._attempt(body, stream)
            if wait is None or retry == MOST_RETRIES:
                break
            await asyncio.sleep(min(wait, LONGEST_WAIT))
        return replace(stream.sample(self.count), retries=retry)

    def _body(self, prompt: Prompt, tokens: int, to_the_end: bool) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": prompt.text,
            "max_tokens": tokens,
            "temperature": 0,
            "seed": 0,
            "stream": True,
        }
        if self.extended:
            body |= {
                "prompt": list(prompt.ids),
                "stream_options": {"include_usage": True},
                "ignore_eos": to_the_end,
                "return_token_ids": True,
                "add_special_tokens": False,
            }
        return body

    async def _attempt(self, body: dict[str, Any], stream: _Stream) -> float | None:
        """Send once; returns how long to wait before it is sent again, None if it is done."""
        try:
            async with self.http.stream("POST", f"{self.url}/v1/completions", json=body) as response:
                if response.status_code != 200:
                    text = (await response.aread()).decode("utf-8", "replace")
                    stream.problem = f"HTTP {response.status_code}: {_shorten(text)}"
                    return _retry_after(response) if response.status_code in (429, 503) else None
                async for line in response.aiter_lines():
                    stream.line(line)
            stream.ended()
        except httpx.ConnectError as error:
            stream.problem = f"cannot connect: {_shorten(str(error))}"
        except httpx.TimeoutException:
            stream.problem = f"no data for {self.http.timeout.read:g} s after {stream.tokens} tokens"
        except httpx.HTTPError as error:
            stream.problem = (
                f"cut after {stream.tokens} tokens: {_shorten(str(error)) or type(error).__name__}"
            )
        return None

    async def log_probabilities(self, prompt: Prompt, tokens: int) -> list[object]:
        """The log probabilities of an answer as the server states them; a NaN comes as null or as text.

        Raises:
            httpx.HTTPError: No answer.
            ValueError: The answer is no JSON, as when a server writes NaN where JSON has none.

        """
        body = {**self._body(prompt, tokens, True), "stream": False, "logprobs": 1}
        body.pop("stream_options", None)
        answer = await self.http.post(f"{self.url}/v1/completions", json=body)
        answer.raise_for_status()
        found = answer.json()["choices"][0].get("logprobs") or {}
        return list(found.get("token_logprobs") or ())

    async def alive(self) -> bool:
        """Whether the server answers at all."""
        try:
            await self.http.get(f"{self.url}/v1/models")
        except httpx.HTTPError:
            return False
        return True

    async def find_form(self, prompt: Prompt) -> None:
        """Find out which form of request the server takes.

        Raises:
            EnvironmentFaultError: It takes none.

        """
        for extended in (True, False):
            self.extended = extended
            sample = await self.complete(prompt, 1)
            if not sample.problem.startswith(("HTTP 400", "HTTP 422")):
                break
        if sample.problem:
            raise EnvironmentFaultError(
                f"{self.url} does not answer a first request: {sample.problem}",
                hint="see the server's log",
            )


@dataclass
class _Stream:
    """An answer as it comes in."""

    prompt_tokens: int
    start: float
    begun: float = field(default_factory=time.perf_counter)
    text: str = ""
    ids: list[int] = field(default_factory=list)
    arrivals: list[tuple[float, int]] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    finished: bool = False
    problem: str = ""

    @property
    def tokens(self) -> int:
        """Tokens so far, as far as they are known."""
        return len(self.ids) or len(self.arrivals)

    def line(self, line: str) -> None:
        """Take a line of the event stream."""
        if not line.startswith("data:"):
            return
        data = line.removeprefix("data:").strip()
        if data == "[DONE]":
            self.finished = True
            return
        try:
            event = json.loads(data)
        except ValueError:
            self.problem = f"an event that is no JSON: {_shorten(data)}"
            return
        if event.get("error"):
            self.problem = f"the server reports: {_shorten(str(event['error']))}"
        self.usage = event.get("usage") or self.usage
        for choice in event.get("choices") or ():
            ids, text = choice.get("token_ids") or [], choice.get("text") or ""
            end = choice.get("finish_reason") is not None
            # A single token may be no text yet, or none at all: then the end tells when it came.
            if ids or text or (end and not self.arrivals):
                self.arrivals.append((time.perf_counter(), len(ids) or 1))
            self.ids += ids
            self.text += text
            self.finished = self.finished or end

    def ended(self) -> None:
        """The server has closed the stream."""
        if not self.finished and not self.problem:
            self.problem = f"cut after {self.tokens} tokens: the stream has no end"

    def sample(self, count: Callable[[str], int]) -> Sample:
        """What came of it."""
        stated = self.usage.get("completion_tokens")
        tokens = int(stated) if stated is not None else len(self.ids) or count(self.text)
        details = self.usage.get("prompt_tokens_details") or {}
        last = self.arrivals[-1][0] if self.arrivals else 0.0
        return Sample(
            prompt_tokens=int(self.usage.get("prompt_tokens") or self.prompt_tokens),
            completion_tokens=tokens,
            start=self.start,
            ttft=self.arrivals[0][0] - self.begun if self.arrivals else None,
            seconds=(last if self.finished and last else time.perf_counter()) - self.begun,
            rate=self._rate(tokens),
            cached=details.get("cached_tokens"),
            text=self.text,
            problem=self.problem or ("" if self.arrivals else "no token came"),
            ids=tuple(self.ids),
        )

    def _rate(self, tokens: int) -> float | None:
        """Tokens after the first piece per second; None if they came in too few pieces to tell."""
        pieces: list[tuple[float, int]] = []
        last = 0.0
        for when, count in self.arrivals:
            if pieces and when - last < PIECE:
                pieces[-1] = (pieces[-1][0], pieces[-1][1] + count)
            else:
                pieces.append((when, count))
            last = when
        if len(pieces) < 2 or len(pieces) * TOKENS_PER_PIECE < tokens:
            return None
        return (tokens - pieces[0][1]) / (last - pieces[0][0])


def _retry_after(response: httpx.Response) -> float:
    try:
        return max(0.0, float(response.headers.get("retry-after", "1")))
    except ValueError:
        return 1.0


def _shorten(text: str) -> str:
    return " ".join(text.split())[:200]


async def first_model(http: httpx.AsyncClient, url: str, wanted: str | None) -> dict[str, Any]:
    """What the server says of the model ``wanted``, or of its only one.

    Raises:
        EnvironmentFaultError: No server there, or none of this kind.
        UsageError: It has no such model, or several to choose from.

    """
    try:
        answer = await http.get(f"{url}/v1/models")
        answer.raise_for_status()
        rows = {row["id"]: row for row in answer.json()["data"]}
    except httpx.HTTPStatusError as error:
        code = error.response.status_code
        raise EnvironmentFaultError(
            f"{url}/v1/models answers {code}",
            hint="the server's key is taken from OPENAI_API_KEY" if code in (401, 403) else "see its log",
        ) from None
    except httpx.HTTPError as error:
        raise EnvironmentFaultError(
            f"no server at {url}: {_shorten(str(error)) or type(error).__name__}",
            hint="start it, or name it with --url",
        ) from None
    except (ValueError, KeyError, TypeError):
        raise EnvironmentFaultError(f"{url} is no OpenAI-compatible server") from None
    if wanted is None and len(rows) == 1:
        return dict(next(iter(rows.values())))
    if wanted is not None and not rows:
        return {"id": wanted}  # A server that loads what it is asked for lists nothing.
    if wanted not in rows:
        names = ", ".join(sorted(rows)) or "none"
        raise UsageError(
            f"{url} serves {names}" + (f", not {wanted}" if wanted else ""), hint="choose with --model"
        )
    return dict(rows[wanted])
