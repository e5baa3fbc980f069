"""Where a client's own chance comes from: a secret that no seed, manifest or result gives away.

Noise that came from a number which others know would be no defence: they draw the same noise and subtract it.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import json
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

from gradleak.core.assets import cache_folder
from gradleak.core.errors import GradleakError
from gradleak.core.files import write_text
from gradleak.core.reading import read_text

SIZE = 32  # bytes
KEY_FILE = "client.key"


@dataclass(frozen=True)
class Secret:
    """A key from which every piece of a client's work draws for itself.

    >>> secret = Secret(bytes(32))
    >>> secret.child("trial", 1) == secret.child("trial", 1) != secret.child("trial", 2)
    True
    >>> Secret.parse(secret.hex) == secret, secret
    (True, Secret(...))
    """

    key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if len(self.key) != SIZE:
            raise GradleakError(f"a secret has {SIZE} bytes, not {len(self.key)}")

    @classmethod
    def draw(cls) -> Secret:
        """A fresh one, from the operating system."""
        return cls(secrets.token_bytes(SIZE))

    @classmethod
    def parse(cls, text: str) -> Secret:
        """The secret of hexadecimal digits."""
        try:
            return cls(bytes.fromhex(text.strip()))
        except ValueError as error:
            raise GradleakError(f"a secret is written as {2 * SIZE} hexadecimal digits") from error

    @property
    def hex(self) -> str:
        return self.key.hex()

    def child(self, *path: object) -> Secret:
        """The secret of one piece of the work. It tells nothing of this one, nor of that of any other path."""
        text = json.dumps([str(part) for part in path])
        return Secret(hmac.digest(self.key, text.encode(), "sha256"))

    def __repr__(self) -> str:
        return "Secret(...)"


def generator(secret: Secret) -> torch.Generator:
    """A generator of torch whose whole state comes from the secret.

    On the CPU `manual_seed` looks at 32 bits of a seed: few enough to try them all against an update. Its Mersenne
    Twister has a state of 624 words of 32 bits, which are filled here. It is no cipher: noise of the kind that a real
    client needs comes from one.
    """
    drawn = torch.Generator().manual_seed(_number(secret))
    state = drawn.get_state()
    words = hashlib.shake_256(secret.child("state").key).digest(4 * _WORDS)
    # Each word stands in eight bytes, behind the seed, two counters and the place of the next word.
    state[_FIRST : _FIRST + 8 * _WORDS].view(_WORDS, 8)[:, :4] = torch.frombuffer(
        bytearray(words), dtype=torch.uint8
    ).view(_WORDS, 4)
    drawn.set_state(state)
    return drawn


_FIRST, _WORDS = 24, 624


@contextmanager
def drawing_from(secret: Secret) -> Iterator[None]:
    """Let all that torch draws by itself inside, such as dropout, come from the secret."""
    devices = range(torch.cuda.device_count())
    with torch.random.fork_rng(devices=devices):
        torch.manual_seed(_number(secret))  # for other devices, whose generators take all 64 bits
        torch.set_rng_state(generator(secret).get_state())
        yield


def _number(secret: Secret) -> int:
    """64 bits that tell nothing of the state beside them."""
    return int.from_bytes(secret.child("seed").key[:8], "big")


def read_secret(path: str | Path) -> Secret:
    """The secret that a file holds: a truth file, `results.json`, or hexadecimal digits alone."""
    text = read_text(Path(path))
    try:
        return Secret.parse(_written(text))
    except (GradleakError, ValueError, RecursionError) as error:
        raise GradleakError(
            f"{path} holds no secret; give a truth file, results.json that are not redacted, or {2 * SIZE} "
            "hexadecimal digits"
        ) from error


def _written(text: str) -> str:
    if not text.lstrip().startswith("{"):
        return text
    return str(json.loads(text).get("secret"))


def user_secret() -> Secret:
    """The key of this user: drawn once, kept in the cache, readable by its owner only.

    What is derived from it and a seed repeats on this machine, and can be computed by nobody else. Where the cache
    cannot be written it lasts as long as the process.
    """
    return _kept(cache_folder() / KEY_FILE)


@functools.cache
def _kept(place: Path) -> Secret:
    if place.exists():
        return read_secret(place)
    try:
        return _made(place)
    except (OSError, GradleakError):
        return Secret.draw()


def _made(place: Path) -> Secret:
    """Whoever comes first draws it: of several processes only one can link a file to a name."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".key-") as folder:
        scratch = write_text(Path(folder) / KEY_FILE, Secret.draw().hex + "\n")
        try:
            os.link(scratch, place)
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            scratch.replace(place)
    return read_secret(place)
