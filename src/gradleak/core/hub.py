"""Whether the Hugging Face hub answers, asked once and quickly instead of waiting through long retries."""

from __future__ import annotations

import functools
import os
import urllib.error
import urllib.request


@functools.cache
def reachable(timeout: float = 5.0) -> bool:
    """True if the hub answers at all; respects the offline switches and proxy settings of its users."""
    if os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0"):
        return False
    from huggingface_hub.constants import ENDPOINT

    try:
        with urllib.request.urlopen(urllib.request.Request(ENDPOINT, method="HEAD"), timeout=timeout):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
