"""transformers and lightning in a folder of their own, beside this environment's torch, which they must not replace."""

from __future__ import annotations

import sys
from hashlib import sha256
from pathlib import Path

from tests.support.once import install_once

# What `pip install transformers accelerate lightning` brings beyond this environment, without what is never imported.
_PACKAGES = (
    *("transformers==5.24.0", "tokenizers==0.23.3", "safetensors==0.8.0", "regex==2026.11.19", "accelerate==1.15.0"),
    *("huggingface_hub==2.4.0", "httpx2==2.16.2", "httpcore2==2.16.2", "truststore==0.10.5"),
    *("lightning==2.6.6", "lightning-utilities==0.15.3", "torchmetrics==1.9.0"),
)

# The name tells Gangline that what is in there is no code of the user's own.
_SITE_PACKAGES = "site-packages"


def install_frameworks() -> Path:
    """Returns the folder, which belongs at the end of sys.path. The first caller fills it."""
    return _site_packages_of(
        install_once(
            f"frameworks-{sha256(' '.join((_SITE_PACKAGES, *_PACKAGES)).encode()).hexdigest()[:12]}",
            "transformers and lightning",
            lambda folder: [
                *(sys.executable, "--no-deps", "--no-compile", "--upgrade"),
                *("--target", str(_site_packages_of(folder)), *_PACKAGES),
            ],
        )
    )


def _site_packages_of(folder: Path) -> Path:
    return folder / _SITE_PACKAGES
