# SPDX-License-Identifier: Apache-2.0
"""What must hold of the results, one function per claim.

Each takes the results and a scenario's name, raises ``AssertionError`` if the claim does not hold, and
returns a short text with what was measured. The tests and the table are made of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from engine.bands import BAND, FP8_BAND, TIGHT, decoded, difference, equal_share, finite, loops
from engine.results import REFERENCE, Results, steps
from engine.scenarios import ACCEPTED, OFFLOAD, RATES, REFUSED, SCENARIOS, Scenario

#: What all engines are compared with: bf16, eager, one stage, the table on the device.
ANCHOR = "eager"


def tight(results: Results, _: str) -> str:
    """A lost quarter of the context is far outside of the band."""
    reference = results.of_series(REFERENCE)["reference"]
    ratios = [c / r for c, r in zip(reference["context"], reference["rounding"], strict=True)]
    assert min(ratios) > BAND * TIGHT, f"a lost context is only {min(ratios):.1f} times the rounding"
    return f"rounding {max(reference['rounding']):.3f}, context {min(ratios):.0f} x"


def like_reference(results: Results, name: str) -> str:
    """The prompts are as likely as Hugging Face's implementation says."""
    (own,) = steps(results.run(name), "score")
    reference = results.of_series(REFERENCE)["reference"]["logprobs"]
    found = difference(own["logprobs"], reference)
    return _within(found.means, results.rounding, BAND)


def like_anchor(results: Results, name: str) -> str:
    """Prompts and generated tokens are as likely as in the plainest engine."""
    own, anchor = results.run(name), results.of_series(ANCHOR)
    (mine,), (theirs,) = steps(own, "score"), steps(anchor, "score")
    prompt = _within(difference(mine["logprobs"], theirs["logprobs"]).means, results.rounding, _band(name))
    mine, theirs = steps(own, "generate")[0], steps(anchor, "generate")[0]
    decode = _within((decoded(mine, theirs),), [max(results.rounding)], _band(name))
    return f"prompt {prompt}, decode {decode}, tokens {equal_share(mine, theirs)}"


def decode_like_prefill(results: Results, name: str) -> str:
    """Tokens are as likely when they are generated one by one as when they are read at once."""
    run = results.run(name)
    said = []
    for prompts in ("standard", "short"):
        written, read = steps(run, "generate", prompts)[0], steps(run, "rescore", prompts)[0]
        found = difference(written["logprobs"], read["logprobs"])
        allowed = results.rounding if prompts == "standard" else [max(results.rounding)] * len(found.means)
        said.append(f"{prompts} {_within(found.means, allowed, _band(name))}")
    return ", ".join(said)


def hit_like_cold(results: Results, name: str) -> str:
    """What comes from the prefix cache is as likely as what was computed."""
    run = results.run(name)
    cold, hit = steps(run, "generate")[:2]
    assert sum(cold["cached"]) == 0, "the first generation found something in the cache"
    assert hit["counters"]["hits"] > 0, "the second generation found nothing in the cache"
    apart = _within((decoded(cold, hit),), [max(results.rounding)], _band(name))
    return f"{apart}, {hit['counters']['hits']:.0f} hits"


def sound(results: Results, name: str) -> str:
    """Every number is finite, every request got its tokens, and none loops that does not elsewhere."""
    run, anchor = results.run(name), results.of_series(ANCHOR)
    made = 0
    for step in run["steps"]:
        if step["do"] == "soak":
            assert step["finite"], "a log-probability of the soak is not finite"
            made += step["requests"]
            continue
        assert finite(step["logprobs"]), f"a log-probability of {step['do']} is not finite"
        if step["do"] == "generate":
            assert {len(row) for row in step["tokens_out"]} == {step["tokens"]}, "a request was cut short"
            made += len(step["tokens_out"])
            for other in steps(anchor, "generate", step["prompts"])[:1]:
                pairs = zip(step["tokens_out"], other["tokens_out"], strict=True)
                worse = [i for i, (own, plain) in enumerate(pairs) if loops(own) and not loops(plain)]
                assert not worse, f"request {worse[0]} of {step['prompts']} repeats itself"
    return f"{made} requests"


def partitions(results: Results, name: str) -> str:
    """Partitions that can serve are accepted, and others refused."""
    said = {row["partition"]: row for row in results.run(name)["partitions"]}
    for partition in ACCEPTED:
        assert said[partition]["accepted"], f"{partition} is refused: {said[partition]['error'][:200]}"
    for partition in REFUSED:
        assert not said[partition]["accepted"], f"{partition} is accepted"
        error = said[partition]["error"].lower()
        assert "partition" in error or "stage" in error, f"{partition} is refused with: {error[:200]}"
    return f"{len(ACCEPTED)} accepted, {len(REFUSED)} refused"


def comes_back(results: Results, name: str) -> str:
    """A prompt that left the GPU comes back from the host, and its tokens are as likely as before."""
    run = results.run(name)
    first, again = steps(run, "generate", "returning")
    hits = again["counters"]["external_hits"]
    assert hits > 0, "nothing came from the host"
    unit = [max(results.rounding)]
    apart = _within((decoded(first, again),), unit, BAND)
    read = steps(run, "rescore", "returning")[-1]
    reread = _within(difference(again["logprobs"], read["logprobs"]).means, unit, BAND)
    tokens = equal_share(first, again)
    return f"{apart}, reread {reread}, {hits:.0f} tokens from the host, tokens {tokens}"


def tests_pass(results: Results, name: str) -> str:
    """The tree's own tests for the GPU pass."""
    tests = results.run(name)["tests"]
    bad = sorted(node for node, outcome in tests.items() if outcome != "passed")
    assert not bad, f"{bad[0]} {tests[bad[0]]}"
    assert tests, "no test was run"
    return f"{len(tests)} passed"


def drafts(results: Results, name: str) -> str:
    """The MTP head proposed tokens."""
    counters = [step["counters"] for step in results.run(name)["steps"]]
    proposed = sum(row["draft_tokens"] for row in counters)
    assert proposed > 0, "no token was proposed"
    return f"{proposed:.0f} proposed, {sum(row['accepted_tokens'] for row in counters):.0f} accepted"


def rates(results: Results, name: str) -> str:
    """Every number of users gets tokens; how many is measured, not judged."""
    (own,) = steps(results.run(name), "rate", "users")
    assert all(value > 0 for value in own["rates"].values()), own["rates"]
    return "tokens/s " + ", ".join(f"{users}: {value:.0f}" for users, value in own["rates"].items())


def _band(name: str) -> float:
    return FP8_BAND if "fp8" in name else BAND


def _within(means: tuple[float, ...], rounding: list[float], band: float) -> str:
    """The largest of some means in units of the rounding; it must lie in the band."""
    ratios = [mean / unit for mean, unit in zip(means, rounding, strict=True)]
    worst = max(ratios)
    assert worst <= band, f"{max(means):.3f} apart, {worst:.1f} times the rounding (band {band:g})"
    return f"{max(means):.3f} ({worst:.1f} x)"


@dataclass(frozen=True)
class Check:
    """A claim about a scenario.

    Attributes:
        claim: The function.
        scenario: Its name.
        tier: Where it counts.

    """

    claim: Callable[[Results, str], str]
    scenario: str
    tier: str

    @property
    def id(self) -> str:
        """The claim and the scenario, as pytest shows them."""
        return f"{self.claim.__name__}-{self.scenario}"


def _checks_of(scenario: Scenario) -> list[Check]:
    claims: list[Callable[[Results, str], str]] = []
    if scenario.partitions:
        claims = [partitions]
    elif scenario.tests:
        claims = [tests_pass]
    elif scenario.steps == RATES:
        claims = [rates]
    elif scenario.steps == OFFLOAD:
        claims = [comes_back]
    else:
        claims = [like_anchor, decode_like_prefill, hit_like_cold, sound]
        if scenario.name == ANCHOR:
            claims = [tight, like_reference, decode_like_prefill, hit_like_cold, sound]
        elif scenario.name in ("int8", "pp-eager", "pp-relay"):
            claims.append(like_reference)
        if "speculative_config" in scenario.engine:
            claims.append(drafts)
    tier = "gpu" if scenario.tests else "pp" if scenario.stages > 1 else "engine"
    return [Check(claim, scenario.name, tier) for claim in claims]


CHECKS = [check for s in SCENARIOS if not s.fails for check in _checks_of(s)]
