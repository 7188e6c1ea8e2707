"""What is asked of llama-server beside the prompt, and whether it took effect; pure."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from pytest_parity.engines.driver import Request
from pytest_parity.errors import ConfigurationError, MalformedReply, SettingsIgnored

__all__ = ["body_for", "effective_settings", "ignored"]

GREEDY: Mapping[str, object] = {
    "temperature": 0.0,
    "top_k": 1,
    "samplers": ["top_k"],
    "top_p": 1.0,
    "min_p": 0.0,
    "typical_p": 1.0,
    "xtc_probability": 0.0,
    "dynatemp_range": 0.0,
    "mirostat": 0,
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
    "logit_bias": [],
    "seed": 42,
}
"""Greedy in every way the dialect knows: a server's own defaults for any of these must not reach us."""

RESERVED = (
    "prompt",
    "n_predict",
    "stream",
    "return_tokens",
    "return_progress",
    "ignore_eos",
    "cache_prompt",
    "id_slot",
)


def body_for(request: Request, *, stream: bool = True) -> dict[str, object]:
    """The request's body. Raises ConfigurationError when ``extra`` takes a field that the driver sets."""
    reserved = {*RESERVED, *GREEDY}
    taken = sorted(set(request.extra) & reserved)
    if taken:
        raise ConfigurationError(
            "request fields of the lane",
            expected=f"none of {', '.join((*RESERVED, *GREEDY))}",
            found=", ".join(taken),
            mend="These are set from the claim; leave them out of the lane.",
        )
    return {
        "prompt": list(request.prompt_ids),
        "n_predict": request.output_tokens,
        "stream": stream,
        "return_tokens": True,
        "return_progress": stream,
        "timings_per_token": False,
        "cache_prompt": request.cache and stream,
        "id_slot": 0,
        "ignore_eos": request.ignore_eos,
        **GREEDY,
        **request.extra,
    }


def effective_settings(
    final: Mapping[str, object], body: Mapping[str, object], where: str
) -> dict[str, object]:
    """The asked settings that the closing event echoes, with the values that took effect.

    A field that the engine does not echo is left out: unknown is not equal. Raises SettingsIgnored.
    """
    echoed = final.get("generation_settings", {})
    if not isinstance(echoed, Mapping):
        raise MalformedReply(
            f"answer of {where}",
            expected="'generation_settings' to be an object",
            found=repr(echoed)[:80],
            mend="Nothing of this answer is measured; check the engine's dialect and log.",
        )
    effective: dict[str, object] = {}
    for name, asked in body.items():
        if name not in echoed or name == "prompt":
            continue
        found = echoed[name]
        if name == "logit_bias" and body["ignore_eos"] is True and _only_bans(found):
            pass  # this is how llama.cpp ignores end tokens
        elif not _same(asked, found):
            raise ignored(where, name, asked, repr(found))
        effective[name] = found
    return effective


def _only_bans(bias: object) -> bool:
    """Whether every entry bars a token (minus infinity, which JSON writes as null)."""
    return isinstance(bias, list) and all(
        isinstance(entry, Mapping) and "bias" in entry and entry["bias"] is None for entry in bias
    )


def _same(asked: Any, found: Any) -> bool:
    """Equal, numbers as 32-bit floats: engines keep them so and echo 0.1 as 0.10000000149."""
    if isinstance(asked, bool) or isinstance(found, bool):
        return asked is found
    if isinstance(asked, (int, float)) and isinstance(found, (int, float)):
        try:
            return asked == found or struct.pack("f", asked) == struct.pack("f", found)
        except OverflowError:
            return False
    return bool(asked == found)


def ignored(where: str, field: str, asked: object, effective: str) -> SettingsIgnored:
    """The error for a setting that did not take effect."""
    return SettingsIgnored(
        f"{where}, setting {field}",
        expected=f"{asked!r}, as asked",
        found=f"{effective}, as the engine says",
        mend="The engine or its command line overrides the request: remove what does.",
    )
