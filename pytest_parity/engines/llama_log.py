"""What a llama-server says of itself in its log at ``-lv 4``: settings that no endpoint tells.

Flash attention, KV types, batch sizes and threads are asked for on the command line, and only the log says
what became of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["facts_from_log"]

_PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("log.flash_attn", re.compile(r"llama_context: flash_attn\s*= (\w+)")),
    ("log.n_batch", re.compile(r"llama_context: n_batch\s*= (\d+)")),
    ("log.n_ubatch", re.compile(r"llama_context: n_ubatch\s*= (\d+)")),
    ("log.n_threads", re.compile(r"system_info: n_threads = (\d+) ")),
    ("log.n_threads_batch", re.compile(r"\(n_threads_batch = (\d+)\)")),
    ("log.kv_k", re.compile(r"llama_kv_cache: size = .* K \((\w+)\):")),
    ("log.kv_v", re.compile(r"llama_kv_cache: size = .* V \((\w+)\):")),
)


def facts_from_log(lines: Iterable[str]) -> dict[str, str]:
    """Settings in effect by name; a setting that the log does not tell is not in there.

    The last line counts, since a context may be made anew.
    """
    found: dict[str, str] = {}
    for line in lines:
        for name, pattern in _PATTERNS:
            match = pattern.search(line)
            if match is not None:
                found[name] = match.group(1)
    return found
