# SPDX-License-Identifier: Apache-2.0
"""The measurements, each as a list of steps that can be run and kept one by one."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

import httpx

from vllm_series.bench.client import Client
from vllm_series.bench.prompts import Writer
from vllm_series.bench.quality import loop_period, not_finite
from vllm_series.bench.result import Measurement, Sample, Value

#: Tokens of the short prompt, and of an answer to a needle question.
SHORT = 64
ANSWER = 32
#: Seconds by which the long prompt is ahead of the short one.
HEAD_START = 0.05
#: Depths of the needle, from the beginning to the end of the context.
DEPTHS = (0.05, 0.25, 0.5, 0.75, 0.95)
#: How much more than the server's KV cache is sent to drive a prompt out of it.
EVICT_FACTOR = 1.2


@dataclass(frozen=True)
class Settings:
    """What to measure.

    Attributes:
        contexts: Prompt lengths in tokens.
        users: Numbers of sessions at once.
        tokens: Length of a generated answer.
        repeat: Runs of each measurement.
        burst: How many long prompts come at once.
        evict: Tokens to send to drive a prompt out of the KV cache; 0 if not known.
        seed: Decides every prompt.

    """

    contexts: tuple[int, ...] = (1024, 8192, 32768)
    users: tuple[int, ...] = (1, 2, 4)
    tokens: int = 128
    repeat: int = 3
    burst: int = 7
    evict: int = 0
    seed: int = 0


@dataclass(frozen=True)
class Step:
    """One measurement to come: what it is, and the coroutine that makes it."""

    scenario: str
    params: Mapping[str, Value]
    run: Callable[[], Awaitable[Measurement]]


@dataclass(frozen=True)
class Bench:
    """A server, prompts and settings: makes the steps of each scenario."""

    client: Client
    writer: Writer
    settings: Settings

    def prefill(self) -> list[Step]:
        """Prompt tokens over the time to the first token; every prompt is new to the server."""

        async def run(context: int, number: int) -> Measurement:
            sample = await self._send(f"prefill/{context}/{number}", context, 1)
            values = {"rate": sample.prompt_tokens / sample.ttft, "ttft": sample.ttft} if sample.ttft else {}
            return _made("prefill", {"context": context, "run": number}, values, [sample])

        return [
            Step("prefill", {"context": c, "run": n}, _bind(run, c, n))
            for c in self.settings.contexts
            for n in range(self.settings.repeat)
        ]

    def decode(self) -> list[Step]:
        """Sessions send their own long prefix again, which is cached by now, and generate at once."""

        async def run(context: int, users: int, number: int) -> Measurement:
            names = [f"decode/{context}/{user}" for user in range(users)]
            warm = [await self._send(name, context, 1) for name in names]
            samples, wall = await self._together(names, context, self.settings.tokens)
            params = {"context": context, "users": users, "run": number}
            rates = [s.rate for s in samples if s.rate is not None]
            if len(rates) < users:
                return _made("decode", params, {}, [*warm, *samples])
            values: dict[str, Value] = {
                "rate": statistics.median(rates),
                "rate_min": min(rates),
                "total": sum(s.completion_tokens for s in samples) / wall,
                "ttft": statistics.median(s.ttft or 0.0 for s in samples),
            }
            cached = [s.cached for s in samples if s.cached is not None]
            if len(cached) == users:
                values["cached"] = sum(cached) / sum(s.prompt_tokens for s in samples)
            return _made("decode", params, values, [*warm, *samples])

        return [
            Step("decode", {"context": c, "users": u, "run": n}, _bind(run, c, u, n))
            for c in self.settings.contexts
            for u in self.settings.users
            for n in range(self.settings.repeat)
        ]

    def behind(self) -> list[Step]:
        """How long a short prompt waits that comes while a long one is being read."""
        context = max(self.settings.contexts)

        async def run(number: int) -> Measurement:
            alone = await self._send(f"behind/alone/{number}", SHORT, 1)
            long = asyncio.create_task(self._send(f"behind/long/{number}", context, 1))
            await asyncio.sleep(HEAD_START)
            late = long.done()
            short = await self._send(f"behind/short/{number}", SHORT, 1)
            first = await long
            params: dict[str, Value] = {"context": context, "run": number}
            if late and not first.problem:
                problem = "the long prompt was read before the short one came: name a longer --context"
                return Measurement("behind", params, {}, (alone, first, short), problem)
            values: dict[str, Value] = {}
            if alone.ttft and short.ttft and first.ttft:
                values = {
                    "ttft_alone": alone.ttft,
                    "ttft": short.ttft,
                    "ttft_long": first.ttft,
                }
            return _made("behind", params, values, [alone, first, short])

        return [
            Step("behind", {"context": context, "run": n}, _bind(run, n)) for n in range(self.settings.repeat)
        ]

    def burst(self) -> list[Step]:
        """Several long prompts at once."""
        context, count = max(self.settings.contexts), self.settings.burst

        async def run(number: int) -> Measurement:
            names = [f"burst/{number}/{n}" for n in range(count)]
            samples, wall = await self._together(names, context, 1)
            times = [s.ttft for s in samples if s.ttft is not None]
            values: dict[str, Value] = {}
            if len(times) == count:
                values = {
                    "rate": sum(s.prompt_tokens for s in samples) / wall,
                    "ttft": statistics.median(times),
                    "ttft_max": max(times),
                }
            return _made("burst", {"context": context, "users": count, "run": number}, values, samples)

        return [
            Step("burst", {"context": context, "users": count, "run": n}, _bind(run, n))
            for n in range(self.settings.repeat)
        ]

    def needle(self) -> list[Step]:
        """Whether a fact is found at several depths of the context."""

        async def run(context: int, depth: float) -> Measurement:
            prompt, secret = self.writer.needle(f"needle/{context}/{depth}", context, depth)
            sample = await self.client.complete(prompt, ANSWER, to_the_end=False)
            values: dict[str, Value] = {"found": secret in sample.text, "secret": secret}
            return _made("needle", {"context": context, "depth": depth}, values, [sample])

        return [
            Step("needle", {"context": c, "depth": d}, _bind(run, c, d))
            for c in self.settings.contexts
            if self.writer.has_room_for_needle(c)
            for d in DEPTHS
        ]

    def tier(self) -> list[Step]:
        """A prompt cold, from the GPU's cache, and after others have driven it out: times and answers."""
        context = max(self.settings.contexts)

        async def run() -> Measurement:
            name, tokens = "tier/own", self.settings.tokens
            cold = await self._send(name, context, tokens)
            hot = await self._send(name, context, tokens)
            others = -(-self.settings.evict // context)
            evicting = [await self._send(f"tier/other/{n}", context, 1) for n in range(others)]
            back = await self._send(name, context, tokens)
            values: dict[str, Value] = {}
            if cold.ttft and hot.ttft and back.ttft:
                values = {
                    "ttft_cold": cold.ttft,
                    "ttft_hot": hot.ttft,
                    "ttft_back": back.ttft,
                    "same_hot": hot.text == cold.text,
                    "same_back": back.text == cold.text,
                }
            return _made("tier", {"context": context}, values, [cold, hot, *evicting, back])

        return [Step("tier", {"context": context}, run)]

    def check(self) -> list[Step]:
        """Answers that a broken server gives: repetition without end, and numbers that are none."""

        async def run(number: int) -> Measurement:
            names = [f"check/{number}/{n}" for n in range(max(self.settings.users))]
            samples, _ = await self._together(names, SHORT, self.settings.tokens)
            periods = [loop_period(s.ids or s.text) for s in samples]
            values: dict[str, Value] = {"answers": len(samples), "loops": sum(p is not None for p in periods)}
            params: dict[str, Value] = {"users": len(names), "run": number}
            if self.client.extended:
                prompt = self.writer.filler(f"check/{number}/numbers", SHORT)
                try:
                    values["not_finite"] = not_finite(await self.client.log_probabilities(prompt, 8))
                except httpx.HTTPError as error:
                    return Measurement("check", params, {}, tuple(samples), f"log probabilities: {error}")
                except ValueError:
                    values["not_finite"] = 1  # NaN, written as no JSON can hold it.
            return _made("check", params, values, samples)

        return [
            Step("check", {"users": max(self.settings.users), "run": n}, _bind(run, n))
            for n in range(self.settings.repeat)
        ]

    async def _send(self, name: str, context: int, tokens: int) -> Sample:
        return await self.client.complete(self.writer.filler(name, context), tokens)

    async def _together(self, names: Sequence[str], context: int, tokens: int) -> tuple[list[Sample], float]:
        """Send prompts at once; returns the answers, and the seconds until the last has ended."""
        prompts = [self.writer.filler(name, context) for name in names]
        begun = time.perf_counter()
        samples = await asyncio.gather(*(self.client.complete(prompt, tokens) for prompt in prompts))
        return samples, time.perf_counter() - begun


#: The scenarios in the order in which they are run.
SCENARIOS: dict[str, Callable[[Bench], list[Step]]] = {
    "prefill": Bench.prefill,
    "decode": Bench.decode,
    "behind": Bench.behind,
    "burst": Bench.burst,
    "needle": Bench.needle,
    "tier": Bench.tier,
    "check": Bench.check,
}


def _bind(
    function: Callable[..., Awaitable[Measurement]], *args: object
) -> Callable[[], Awaitable[Measurement]]:
    return lambda: function(*args)


def _made(
    scenario: str, params: Mapping[str, Value], values: Mapping[str, Value], samples: Sequence[Sample]
) -> Measurement:
    """A measurement; its values are only as good as its requests."""
    problem = next((s.problem for s in samples if s.problem), "")
    if not problem and not values:
        problem = "the tokens came in too few pieces to time"
    return Measurement(scenario, params, {} if problem else values, tuple(samples), problem)
