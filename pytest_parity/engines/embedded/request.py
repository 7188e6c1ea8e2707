"""What a completion request asks for, read and checked; and the errors, in llama.cpp's shape."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_parity.engines.embedded import vocabulary

Json = Mapping[str, object]

NEUTRAL = {
    "repeat_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "dry_multiplier": 0.0,
    "mirostat": 0,
    "dynatemp_range": 0.0,
    "xtc_probability": 0.0,
}
"""Settings that would change a greedy choice, with the one value that this engine takes."""

INDIFFERENT = {"top_k": 40, "top_p": 0.95, "min_p": 0.05, "typical_p": 1.0, "repeat_last_n": 64}
"""Settings that leave the first choice as it is: any number is taken and echoed."""

SAMPLERS = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
UNSUPPORTED = ("grammar", "json_schema", "stop", "logit_bias", "lora", "image_data")
"""Fields that must be absent or empty."""

RANDOM_SEED = 2**32 - 1


class RequestError(Exception):
    """A request that can't be served, with the status and the object that llama.cpp answers."""

    def __init__(
        self, message: str, status: int = 400, kind: str = "invalid_request_error", **more: object
    ) -> None:
        """Say ``message``; ``more`` are further fields of the error object."""
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.more = more

    def body(self) -> dict[str, object]:
        """Return the reply's JSON object."""
        return {"error": {"code": self.status, "message": str(self), "type": self.kind, **self.more}}


def loading() -> RequestError:
    """Return what every endpoint answers while the model is loading."""
    return RequestError("Loading model", 503, "unavailable_error")


@dataclass(frozen=True)
class Completion:
    """A checked request. ``n_predict`` is -1 for as many ids as the context holds."""

    prompt: tuple[int, ...]
    n_predict: int
    stream: bool
    return_tokens: bool
    n_probs: int
    cache_prompt: bool
    ignore_eos: bool
    timings_per_token: bool
    return_progress: bool
    settings: Json
    """Sampling settings in effect, in llama.cpp's names."""


def read_completion(body: object, context: int) -> Completion:
    """Check the JSON ``body`` of a completion request for a context of ``context`` ids."""
    if not isinstance(body, dict):
        message = f"body: expected a JSON object, found {_kind(body)}; send an object with a prompt"
        raise RequestError(message)
    prompt = _prompt(body, context)
    n_predict = _integer(body, "n_predict", _integer(body, "max_tokens", -1, least=-1), least=-1)
    slot = _integer(body, "id_slot", -1, least=-1)
    if slot > 0:
        message = f"id_slot: expected 0 (there is one slot) or -1, found {slot}; leave it out"
        raise RequestError(message)
    for name in UNSUPPORTED:
        if body.get(name):
            message = f"{name}: this engine does not have it, found {body[name]!r}; leave it out"
            raise RequestError(message)
    return Completion(
        prompt=prompt,
        n_predict=n_predict,
        stream=_flag(body, "stream", default=False),
        return_tokens=_flag(body, "return_tokens", default=False),
        n_probs=_integer(body, "n_probs", 0, least=0, most=vocabulary.SIZE),
        cache_prompt=_flag(body, "cache_prompt", default=True),
        ignore_eos=_flag(body, "ignore_eos", default=False),
        timings_per_token=_flag(body, "timings_per_token", default=False),
        return_progress=_flag(body, "return_progress", default=False),
        settings=_settings(body),
    )


def default_settings() -> dict[str, object]:
    """Return the sampling settings of a request that names none, as /props shows them."""
    return dict(_settings({}))


def read_ids(value: object, name: str) -> tuple[int, ...]:
    """Check a list of ids of this vocabulary; ``name`` is what an error calls it."""
    if not isinstance(value, list):
        message = f"{name}: expected a list of ids, found {_kind(value)}; send integers"
        raise RequestError(message)
    for index, token in enumerate(value):
        if type(token) is not int:
            message = (
                f"{name}[{index}]: expected an integer id, found {_kind(token)} {token!r}; send integers"
            )
            raise RequestError(message)
        if not 0 <= token < vocabulary.SIZE:
            last = vocabulary.SIZE - 1
            message = (
                f"{name}[{index}]: expected an id from 0 to {last}, found {token}; use ids of this model"
            )
            raise RequestError(message)
    return tuple(value)


def _prompt(body: Json, context: int) -> tuple[int, ...]:
    if "prompt" not in body:
        message = "prompt: expected a list of ids or a text, found none; send a prompt"
        raise RequestError(message)
    value = body["prompt"]
    if isinstance(value, str):
        try:
            prompt = tuple(vocabulary.tokenize(value, parse_special=True))
        except UnicodeEncodeError:
            message = "prompt: expected a text that UTF-8 can hold, found a lone surrogate; send ids instead"
            raise RequestError(message) from None
    else:
        prompt = read_ids(value, "prompt")
    if not prompt:
        message = "prompt: expected at least one id, found none; send a prompt"
        raise RequestError(message)
    if len(prompt) + 1 > context:
        message = (
            f"request ({len(prompt)} tokens) exceeds the available context size ({context} tokens), "
            "try increasing it: start the engine with a larger --ctx-size"
        )
        raise RequestError(
            message, 400, "exceed_context_size_error", n_prompt_tokens=len(prompt), n_ctx=context
        )
    return prompt


def _settings(body: Json) -> Json:
    temperature = _number(body, "temperature", 0.0)
    if temperature > 0.0:
        message = f"temperature: this engine is greedy only, expected 0, found {temperature}; send 0"
        raise RequestError(message)
    settings: dict[str, object] = {
        "seed": _integer(body, "seed", -1, least=-1, most=RANDOM_SEED) % 2**32,
        "temperature": temperature,
    }
    for name, neutral in NEUTRAL.items():
        found = _number(body, name, neutral)
        if found != neutral:
            message = f"{name}: this engine is greedy only, expected {neutral}, found {found}; send {neutral}"
            raise RequestError(message)
        settings[name] = neutral
    for name, default in INDIFFERENT.items():
        settings[name] = _number(body, name, default)
    settings["samplers"] = _samplers(body)
    return settings


def _samplers(body: Json) -> list[str]:
    value = body.get("samplers")
    if value is None:
        return list(SAMPLERS)
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        message = f"samplers: expected a list of names, found {value!r}; send some of {', '.join(SAMPLERS)}"
        raise RequestError(message)
    # llama.cpp leaves out names that it does not know, and the echo shows it.
    return [name for name in value if name in SAMPLERS]


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a truth value", int: "an integer"}
    return names.get(type(value), "a number" if isinstance(value, float) else "null")


def _flag(body: Json, name: str, *, default: bool) -> bool:
    value = body.get(name)
    if value is None:
        return default
    if not isinstance(value, bool):
        message = f"{name}: expected true or false, found {value!r}; send one of the two"
        raise RequestError(message)
    return value


def _integer(body: Json, name: str, default: int, *, least: int, most: int | None = None) -> int:
    value = body.get(name)
    if value is None:
        return default
    if type(value) is not int or value < least or (most is not None and value > most):
        until = f" to {most}" if most is not None else " on"
        message = f"{name}: expected an integer from {least}{until}, found {value!r}; change it"
        raise RequestError(message)
    return value


def _number(body: Json, name: str, default: float) -> float:
    value = body.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        message = f"{name}: expected a number, found {value!r}; change it"
        raise RequestError(message)
    return value
