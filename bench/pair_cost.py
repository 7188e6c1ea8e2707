"""What a measured pair costs beyond its engines: our harness against a bare one, alternated, in one run.

Run it with ``python bench/pair_cost.py [--pairs N]`` while nothing else measures: the harness refuses to
run beside other engines. Both arms start the same two engine processes (the embedded one, plain and fused),
wait for the same real token, send the same warm-up and the same measured request, and end them.

* harness: ``Conductor``, without pytest: lease, scans, intent, supervisor, identity, exactness, receipt, log
* bare: ``subprocess``, ``http.client`` (``read1``, bytes kept and not read), ``kill``; nothing else

First table: wall time per pair of each arm, the difference within each couple, the ratio. Second table: where
the harness's time goes, in ms per pair, against what the bare arm spends in the same phase. Times of the
second table are exclusive (a phase inside another counts once) and medians, so they add up only roughly.
"""

from __future__ import annotations

import argparse
import functools
import http.client
import itertools
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pytest_parity.apparatus.identity import code_digest, machine_identity
from pytest_parity.apparatus.lease import Lease
from pytest_parity.core.claims import Claim, parse_claim
from pytest_parity.core.plan import PairPlan, declared_cells
from pytest_parity.core.prompts import synthetic_ids
from pytest_parity.engines import http_request, llama_server
from pytest_parity.engines.description import EngineDescription
from pytest_parity.engines.driver import Request
from pytest_parity.engines.environment import scrubbed_environment
from pytest_parity.engines.http_call import Caller, json_bytes
from pytest_parity.engines.llama_settings import body_for
from pytest_parity.engines.ports import free_port
from pytest_parity.engines.process import EngineProcess
from pytest_parity.evidence.ledger import Ledger
from pytest_parity.evidence.store import ReceiptStore
from pytest_parity.measurement import conduct, side
from pytest_parity.measurement.conduct import Conductor
from pytest_parity.measurement.installed import install
from pytest_parity.measurement.pair import ExactPair, MeasuredPair, Unfinished
from pytest_parity.measurement.workspace import Workspace, new_session_id

POLL_S = 0.05
"""Pause between two questions whether the bare arm's engine is ready; the driver's is the same."""
START, READY, WARM, ASKED, STOP = (
    "start of the process",
    "wait for the first token",
    "warm-up request",
    "measured request",
    "end of the process",
)
LEASE, SCANS, INTENT, RECEIPT, WRITES, EXACT, IDENTITY, OWNER, PORT, ADMIT, PARSE, STAMPING, CALLS, REST = (
    "lease",
    "scans",
    "intent: its body as bytes",
    "receipt: its body as bytes",
    "three durable writes",
    "exactness and timing",
    "identity and log facts",
    "proof of the port's owner",
    "free port",
    "admission",
    "answers: parsed and checked",
    "pause until stamping starts",
    "httpx calls",
    "everything else",
)


class Phases:
    """Exclusive nanoseconds and calls per phase; what runs inside another phase counts only for itself."""

    def __init__(self) -> None:
        self.ns: dict[str, int] = {}
        self.calls: dict[str, int] = {}
        self._stack: list[str] = []
        self._since = 0

    @contextmanager
    def of(self, phase: str) -> Iterator[None]:
        self._tick()
        self._stack.append(phase)
        self.calls[phase] = self.calls.get(phase, 0) + 1
        try:
            yield
        finally:
            self._tick()
            self._stack.pop()

    def _tick(self) -> None:
        now = time.perf_counter_ns()
        if self._stack:
            self.ns[self._stack[-1]] = self.ns.get(self._stack[-1], 0) + now - self._since
        self._since = now

    def take(self) -> tuple[dict[str, float], dict[str, int]]:
        """Milliseconds and calls since the last time this was asked."""
        taken = {phase: ns / 1e6 for phase, ns in self.ns.items()}, self.calls
        self.ns, self.calls = {}, {}
        return taken

    def wrap(self, owner: object, name: str, phase: str | Callable[[], str]) -> None:
        """Time ``owner.name`` as ``phase`` from now on; a class method stays one."""
        raw = vars(owner)[name]
        inner: Callable[..., Any] = raw.__func__ if isinstance(raw, classmethod) else raw

        @functools.wraps(inner)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.of(phase if isinstance(phase, str) else phase()):
                return inner(*args, **kwargs)

        setattr(owner, name, classmethod(timed) if isinstance(raw, classmethod) else timed)


def instrument(phases: Phases) -> None:
    """Put a timer around every part of the harness that has a name in the table."""
    # A side asks twice: first the warm-up (one token), then what is measured.
    which = itertools.cycle((WARM, ASKED))
    phases.wrap(conduct, "admit", ADMIT)
    phases.wrap(Lease, "acquire", LEASE)
    phases.wrap(Lease, "verify", LEASE)
    phases.wrap(Conductor, "_scan", SCANS)
    phases.wrap(Conductor, "_intend", INTENT)
    phases.wrap(Conductor, "_write", RECEIPT)
    phases.wrap(ReceiptStore, "intend", WRITES)
    phases.wrap(ReceiptStore, "publish", WRITES)
    phases.wrap(Ledger, "append", WRITES)
    phases.wrap(MeasuredPair, "exact", EXACT)
    phases.wrap(ExactPair, "timing", EXACT)
    phases.wrap(side, "free_port", PORT)
    phases.wrap(side, "assert_owned", OWNER)
    phases.wrap(EngineProcess, "pids", OWNER)
    phases.wrap(EngineProcess, "start", START)
    phases.wrap(EngineProcess, "stop", STOP)
    phases.wrap(llama_server.LlamaServerDriver, "wait_ready", READY)
    phases.wrap(llama_server.LlamaServerDriver, "identify", IDENTITY)
    phases.wrap(side, "facts_from_log", IDENTITY)
    phases.wrap(EngineProcess, "log_tail", IDENTITY)
    phases.wrap(llama_server.LlamaServerDriver, "generate", PARSE)
    phases.wrap(http_request, "_set_up", STAMPING)
    phases.wrap(llama_server, "exchange", lambda: next(which))
    calls = Caller.__call__

    @functools.wraps(calls)
    def counted(*args: Any, **kwargs: Any) -> Any:
        phases.calls[CALLS] = phases.calls.get(CALLS, 0) + 1
        return calls(*args, **kwargs)

    Caller.__call__ = counted  # type: ignore[method-assign]


# --- the bare arm -----------------------------------------------------------------------------------


def ask(port: int, method: str, path: str, body: bytes | None, timeout_s: float = 60.0) -> bytes:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"} if body else {})
        response = connection.getresponse()
        pieces = []
        while data := response.read1(65536):
            pieces.append(data)
    finally:
        connection.close()
    if response.status != 200:
        raise OSError(f"status {response.status}")
    return b"".join(pieces)


def ready(port: int) -> bool:
    probe = json.dumps({"prompt": [1], "n_predict": 1, "cache_prompt": False, "return_tokens": True}).encode()
    try:
        ask(port, "GET", "/health", None)
        return bool(json.loads(ask(port, "POST", "/completion", probe)).get("tokens"))
    except OSError:
        return False


def bare_side(phases: Phases, argv: tuple[str, ...], port: int, bodies: tuple[bytes, bytes]) -> bytes:
    environment, _ = scrubbed_environment(os.environ, (), {})
    with phases.of(START):
        engine = subprocess.Popen(
            argv,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    try:
        with phases.of(READY):
            while not ready(port):
                if engine.poll() is not None:
                    raise SystemExit(f"the engine ended with {engine.returncode}; the bench is broken")
                time.sleep(POLL_S)
        with phases.of(WARM):
            ask(port, "POST", "/completion", bodies[0], 600)
        with phases.of(ASKED):
            return ask(port, "POST", "/completion", bodies[1], 600)
    finally:
        with phases.of(STOP):
            engine.send_signal(signal.SIGKILL)
            engine.wait()


class Arms:
    """Both arms on one engine description, and the same requests for both."""

    def __init__(self, folder: Path, depth: int, output_tokens: int, grace_s: float) -> None:
        self.claim = claim_at(depth, output_tokens)
        self.cell = declared_cells(self.claim)[0]
        self.engine = EngineDescription(
            name="embedded",
            argv=(
                "{python}", "-m", "pytest_parity.engines.embedded", "--port", "{port}", "--ctx-size", "{context}",
            ),
            context=depth + output_tokens + 64,
            vocabulary="bytes-260",
            lanes=lanes(),
            grace_s=grace_s,
        )  # fmt: skip
        self.conductor = Conductor(
            Workspace(
                session=new_session_id(),
                root=folder,
                receipts=folder / "receipts",
                prompts=folder / "prompts",
                logs=folder / "logs",
                engines={"embedded": self.engine},
                device="bench",
                lease=folder / "bench.lock",
                quiet_s=0.0,
                machine=asdict(machine_identity()),
                code={"digest": code_digest(Path(conduct.__file__).parents[1], (".py",))},
            ),
            {self.claim.name: self.claim},
        )
        ids = synthetic_ids(depth)
        warm = Request(
            ids[: self.engine.warmup_tokens], 1, ignore_eos=True, cache=False, silence_s=600, extra={}
        )
        asked = Request(ids, output_tokens, ignore_eos=True, cache=False, silence_s=600, extra={})
        self.bodies = json_bytes(body_for(warm)), json_bytes(body_for(asked))
        self.output_tokens = output_tokens

    def harness(self, rep: int, phases: Phases) -> None:
        try:
            with phases.of(REST):
                self.conductor.measure(self.plan(rep), "bench").exact().record()
        except Unfinished as error:
            raise SystemExit(f"pair {rep}: {error}") from None
        record = self.conductor.read(self.plan(rep))
        if record is None or record.outcome != "passed" or record.tokens != self.output_tokens:
            raise SystemExit(f"pair {rep}: its receipt does not say passed; the bench is broken")

    def bare(self, rep: int, phases: Phases) -> None:
        installed = install(self.engine, Path())
        sides = ("plain", "fused") if self.plan(rep).order == "RC" else ("fused", "plain")
        for position, lane in enumerate(sides, start=1):
            with phases.of(PORT):
                port = free_port()
            argv = installed.argv(lane, port=port, position=position)
            answer = bare_side(phases, argv, port, self.bodies)
            if f'"tokens_predicted":{self.output_tokens}'.encode() not in answer:
                raise SystemExit(f"bare pair {rep}: no {self.output_tokens} tokens; the bench is broken")

    def plan(self, rep: int) -> PairPlan:
        return PairPlan(self.cell, rep, "bench")


def lanes() -> Any:
    return {"plain": {}, "fused": {"argv": ("--kernels", "fused")}}


def claim_at(depth: int, output_tokens: int) -> Claim:
    row = {
        "wording": "The bench measured {candidate} at {depths}.",
        "candidate": "embedded",
        "reference": "embedded",
        "lane": "fused",
        "reference_lane": "plain",
        "kind": "reported",
        "metric": "decode_tps",
        "depths": [depth],
        "fixtures": ["synthetic"],
        "output_tokens": output_tokens,
        "pairs": "6",
    }
    return parse_claim("bench-pair", row)


# --- tables -----------------------------------------------------------------------------------------


def spread(values: list[float]) -> str:
    return f"{statistics.median(values):9.1f}{min(values):9.1f}{max(values):9.1f}"


def walls(ours: list[float], bare: list[float]) -> str:
    more = [a - b for a, b in zip(ours, bare, strict=True)]
    ratios = [a / b for a, b in zip(ours, bare, strict=True)]
    return "\n".join(
        (
            f"{'ms per pair':34}{'median':>9}{'least':>9}{'most':>9}",
            f"{'harness':34}{spread(ours)}",
            f"{'bare':34}{spread(bare)}",
            f"{'harness - bare, within a couple':34}{spread(more)}",
            f"harness / bare in a couple: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})",
        )
    )


def breakdown(ours: list[dict[str, float]], bare: list[dict[str, float]]) -> str:
    def median(among: list[dict[str, float]], phase: str) -> float:
        return statistics.median(row.get(phase, 0.0) for row in among)

    names = sorted(
        {name for row in ours for name in row}, key=lambda name: median(bare, name) - median(ours, name)
    )
    lines = [f"{'phase, ms per pair (two sides)':34}{'harness':>9}{'bare':>9}{'more':>9}"]
    for name in names:
        a, b = median(ours, name), median(bare, name)
        lines.append(f"{name:34}{a:9.1f}{b:9.1f}{a - b:9.1f}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="What a pair costs beyond its engines.")
    parser.add_argument(
        "--pairs", type=int, default=6, help="pairs of each arm (after one that is not counted)"
    )
    parser.add_argument("--depth", type=int, default=2048, help="prompt tokens")
    parser.add_argument("--output-tokens", type=int, default=256, help="tokens of the measured answer")
    parser.add_argument(
        "--grace-s", type=float, default=5.0, help="seconds between SIGTERM and SIGKILL; 0: at once"
    )
    parser.add_argument(
        "--folder", type=Path, help="where receipts are written (default: a temporary folder)"
    )
    options = parser.parse_args()
    phases = Phases()
    instrument(phases)
    # The engines must import this checkout wherever the bench is started.
    os.chdir(Path(__file__).resolve().parents[1])
    with tempfile.TemporaryDirectory(prefix="pair-cost-", dir=options.folder) as name:
        arms = Arms(Path(name), options.depth, options.output_tokens, options.grace_s)
        wall: dict[str, list[float]] = {"harness": [], "bare": []}
        split: dict[str, list[dict[str, float]]] = {"harness": [], "bare": []}
        calls: list[dict[str, int]] = []
        for rep in range(options.pairs + 1):  # the first of each arm pays for imports and caches: not counted
            order = (arms.harness, arms.bare) if rep % 2 else (arms.bare, arms.harness)
            for arm in order:
                began = time.perf_counter_ns()
                arm(rep + 1, phases)
                took = (time.perf_counter_ns() - began) / 1e6
                ms, counted = phases.take()
                if rep:
                    wall[arm.__name__].append(took)
                    split[arm.__name__].append(ms)
                    if arm.__name__ == "harness":
                        calls.append(counted)
    print(
        f"depth {options.depth}, {options.output_tokens} output tokens, {options.pairs} pairs an arm, alternated\n"
    )
    print(walls(wall["harness"], wall["bare"]), end="\n\n")
    print(breakdown(split["harness"], split["bare"]))
    asked = statistics.median(row.get(CALLS, 0) for row in calls)
    print(f"\nhttpx calls per pair (readiness and identity): {asked:g}; scans: {calls[0].get(SCANS, 0)}")


if __name__ == "__main__":
    main()
