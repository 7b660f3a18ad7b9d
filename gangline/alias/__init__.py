"""Lets code written for Determined import Gangline under the names that it knows, where Determined is not installed.

`import determined as det`, `from determined import pytorch, core` and their kin find proxies of our modules. Ranks and
gangline.launch install it; a Determined that is installed always comes first. Importing this loads nothing else.
"""

from gangline.alias.finder import install

__all__ = ["install"]
