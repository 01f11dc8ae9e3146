"""Which kind of server an address belongs to, and which of its models is meant."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from vestige.errors import UserError
from vestige.servers.kinds import Server, ServerFacts, Vocabulary
from vestige.servers.openai import OpenAIServer
from vestige.servers.vllm import VllmServer
from vestige.servers.wire import Patience, ServerRefused, Wire


@dataclass(frozen=True)
class ServerArgs:
    """What a user says about servers: `--server` and the settings beside it."""

    urls: tuple[str, ...]
    key_env: str | None = None
    patience: Patience = field(default_factory=Patience)
    slots: int = 8  # requests under way at a time, per server
    by_name: bool = False  # several models: each is asked at those of the servers that list it

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> ServerArgs | None:
        """From a configuration's `server` block; None where no address is given."""
        said = settings.get("url")
        if not said:
            return None
        urls = [u.strip() for u in (said.split(",") if isinstance(said, str) else said) if str(u).strip()]
        known = {"url", "key_env", "timeout", "down", "slots", "by_name"}
        if unknown := sorted(set(settings) - known):
            raise UserError(f"Unknown settings of server: {', '.join(unknown)}. Known: {', '.join(sorted(known))}.")
        for name in ("timeout", "down", "slots"):
            value = settings.get(name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0):
                raise UserError(f"server.{name} must be a number above 0, it is {value!r}.")
        patience = Patience(float(settings.get("timeout") or 600.0), float(settings.get("down") or 120.0))
        slots, by_name = int(settings.get("slots") or 8), bool(settings.get("by_name"))
        return cls(tuple(dict.fromkeys(urls)), settings.get("key_env"), patience, slots, by_name)


def find_servers(args: ServerArgs, wanted: str, vocabulary: Vocabulary) -> list[Server]:
    """The servers of one model: all that were given, or with `by_name` those that list it."""
    wires = [Wire(url, args.key_env, args.patience) for url in args.urls]
    if not args.by_name:
        return [find_server(wire, wanted, vocabulary) for wire in wires]
    cards = {wire.url: _cards(wire) for wire in wires}
    mine = [w for w in wires if any(wanted in (c.get("id"), c.get("root")) for c in cards[w.url])]
    if not mine:
        served = ", ".join(f"{url} serves {', '.join(str(c['id']) for c in found)}" for url, found in cards.items())
        raise UserError(
            f"None of the servers serves '{wanted}' ({served}); with several models each is found by the name or the "
            "directory that its server lists."
        )
    return [find_server(wire, wanted, vocabulary) for wire in mine]


def find_server(wire: Wire, wanted: str, vocabulary: Vocabulary) -> Server:
    """The server behind an address, with the model that `wanted` (--model) names, or its only one."""
    cards = _cards(wire)
    name = _choose(wire, [str(c.get("id")) for c in cards], [str(c.get("root") or "") for c in cards], wanted)
    owner = next((str(c.get("owned_by") or "").lower() for c in cards if c.get("id") == name), "")
    # vLLM has fields of its own. Anything else is asked in OpenAI's form.
    client = VllmServer if owner == "vllm" else OpenAIServer
    server = client(wire, ServerFacts("", "", name), vocabulary)
    server.facts = server.identify()
    return server


def _cards(wire: Wire) -> list[Mapping[str, Any]]:
    try:
        body = wire.get("/v1/models")
    except ServerRefused as error:
        if error.status != 404:
            raise
        body = {}
    listed = body.get("data") if isinstance(body, Mapping) else None
    cards = [c for c in listed if isinstance(c, Mapping) and c.get("id")] if isinstance(listed, list) else []
    if not cards:
        raise UserError(f"{wire.url} does not list its models (/v1/models); is it a model server?")
    return cards


def _choose(wire: Wire, names: Sequence[str], roots: Sequence[str], wanted: str) -> str:
    """The served name: the one that was asked for, by name or by where it was read from; else the only one."""
    if wanted in names:
        return wanted
    by_root = [name for name, root in zip(names, roots, strict=True) if root == wanted]
    if len(by_root) == 1:
        return by_root[0]
    if len(names) == 1:
        return names[0]
    raise UserError(
        f"{wire.url} serves {', '.join(names)}, and not '{wanted}'; name one of them with --model (and its tokenizer "
        "with --tokenizer)."
    )
