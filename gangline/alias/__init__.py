"""Lets code written for Determined import Gangline under Determined's names, where Determined is not installed.

`import determined as det`, `from determined import pytorch, core` and similar imports find proxies of Gangline's
modules. Ranks and gangline.launch install it. Off the cluster, an installed Determined has precedence. Importing this
module loads nothing else.

Start: finder.py
"""

from gangline.alias.finder import install

__all__ = ["install"]
