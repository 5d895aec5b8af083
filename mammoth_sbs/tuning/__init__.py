"""Choosing q and s (paper, section 3.1): the rotation task, the search over a grid of pairs, and the rule.

An `_sbs` model whose flags leave q or s open calls `check` before it trains, and `choose` at the end of a task.
"""

from mammoth_sbs.tuning.pairs import check
from mammoth_sbs.tuning.rotation import choose

__all__ = ["check", "choose"]
