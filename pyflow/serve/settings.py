"""What a server is told at its start, and its limits."""

from __future__ import annotations

import hashlib
import ipaddress
import socket
from dataclasses import dataclass

from pyflow.batch.serving import ITL_S
from pyflow.engine.context import CacheType
from pyflow.errors import PyflowError

MAX_BODY = 8 << 20
MAX_HEADERS = 64 << 10
MAX_CHOICES = 16
MAX_STOPS, MAX_STOP_CHARS = 16, 256
MAX_BIASES = 1024
MAX_TOP_LOGPROBS = 20
MAX_PROMPTS = 64
MAX_QUEUE = 256
"""Requests that have no token yet."""
MAX_QUEUED_POOLS = 4
"""Tokens of those requests, in multiples of the cells that there are."""
DEFAULT_REQUEST = 8192
"""Tokens of a prompt and its answer."""
RETRY_S = 5
"""When clients of a server that ends may find the next one."""
MAX_RETRY_S = 120
"""Clients do not obey longer advice."""

_LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Where a server listens, who may come in, and how the model is shared."""

    host: str = "127.0.0.1"
    port: int = 8080
    """0: a free one."""
    keys: tuple[str, ...] = ()
    """A request needs one of these; none: no key is asked for."""
    allow_hosts: tuple[str, ...] = ()
    """Further names by which clients may call this machine."""
    allow_origins: tuple[str, ...] = ()
    """Pages of these origins may use the server from a browser, as in https://chat.example."""
    strict: bool = False
    """Refuse fields that are unknown."""
    n_parallel: int | None = None
    """Texts that are written at once; None: as many as pay, which is measured."""
    n_ctx: int | None = None
    """Tokens of a prompt and its answer, up to the model's limit; 0: that limit; None: 8192."""
    n_cells: int | None = None
    """Tokens of all texts together; None: as memory allows."""
    itl_s: float = ITL_S
    """Seconds between two tokens that reading the prompts of others should not exceed."""
    cache_type: CacheType = "f16"
    model_nbytes: int | None = None
    """Of the weights of all models that are loaded at once; None: as memory allows."""
    token_embeddings: bool = False
    """Take token ids on /v1/embeddings."""
    guardrail: bool = False
    """Conversations begin with the guardrail; see `pyflow.chat.guardrail`."""
    record: str | None = None
    """A file for requests and their answers; None: they are kept nowhere."""
    drain_s: float = 30.0
    """How long answers may go on after the server was told to end."""
    header_s: float = 10.0
    body_s: float = 60.0
    send_s: float = 60.0
    """How long a client may take to send headers or a body, and to read a part of an answer."""

    def check(self) -> None:
        """PyflowError: the host is none, or the server would be open to all on the network."""
        try:
            socket.getaddrinfo(self.host, self.port)
        except (OSError, UnicodeError):
            raise PyflowError(
                f"host {self.host!r:.60}: expected an address of this machine, such as 127.0.0.1 "
                "or 0.0.0.0, found a name that leads nowhere"
            ) from None
        if not self.keys and not self.is_local:
            raise PyflowError(
                f"host {self.host}: other machines could use the server without a key; "
                "add --api-key KEY, or listen on 127.0.0.1"
            )

    @property
    def is_local(self) -> bool:
        """Whether only this machine reaches the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host.strip("[]")).is_loopback
        except ValueError:
            return False

    @property
    def hosts(self) -> frozenset[str]:
        """Names in the header Host, in lower case and without a port."""
        own = f"[{self.host}]" if ":" in self.host else self.host
        return frozenset(name.lower() for name in (*_LOOPBACK, own, *self.allow_hosts))


def tenant(key: str) -> str:
    """Who asks, as a batch tells callers apart; it does not give the key away."""
    return hashlib.sha256(key.encode()).hexdigest()[:32] if key else ""
