"""The mutants that `scripts/mutants` tries: each is one change, none is of what is only said or of types."""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from types import ModuleType

from tests.conftest import REPO


def load(name: str, file: str) -> ModuleType:
    script = SourceFileLoader(name, str(REPO / "scripts" / file))
    module = module_from_spec(spec_from_loader(script.name, script))
    script.exec_module(module)
    return module


mutation = load("mutation", "mutation.py")

SOURCE = '''"""A file."""
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import x
LIMIT: int = 3
Row = dict[str, int]

def keep(net, q: float = 0.2, s: float = 0.0) -> int | None:
    """What it does."""
    assert q < 1
    net.eval()
    with closed(net):
        band = Speed(q, s)
    if not q or s >= 1:
        raise ValueError(f"{q + 1}")
    net.train_mode = True
    net.swap(q, q)
    order = randperm(4, generator=net.g)[: -1]
    print(round(q, 2), flush=True)
    return min(order) if q is None else order
'''


def test_every_change_of_a_small_file() -> None:
    found = list(mutation.Source("few.py", SOURCE.encode()).mutants())
    changes = {mutant.key.partition(": ")[2] for mutant in found}
    assert changes == {
        "LIMIT: int = 3 -> LIMIT: int = 4",
        *(f"def keep(net, q: float = 0.2, s: float = 0.0) -> int | None: -> def keep(net, {new}) -> int | None:"
          for new in ("q: float = 0.4, s: float = 0.0", "q: float = 0.2, s: float = 1.0")),
        "net.swap(q, q) -> pass", "net.swap(q, q) -> net.swap(s, q)", "net.swap(q, q) -> net.swap(q, s)",
        "net.eval() -> pass", "net.eval() -> net.train()", "with closed(net): -> if True:",
        *(f"band = Speed(q, s) -> band = Speed({new})" for new in ("s, q", "s, s", "q, q")),
        *(f"if not q or s >= 1: -> if {new}:" for new in (
            "not (not q or s >= 1)", "not q and s >= 1", "q or s >= 1", "not s or s >= 1", "not q or s > 1",
            "not q or q >= 1", "not q or s >= 2")),
        'raise ValueError(f"{q + 1}") -> pass',
        "net.train_mode = True -> pass", "net.train_mode = True -> net.train_mode = False",
        *(f"order = randperm(4, generator=net.g)[: -1] -> order = randperm({new}" for new in (
            "4)[: -1]", "5, generator=net.g)[: -1]", "4, generator=net.g)[: ]", "4, generator=net.g)[: -2]")),
        "print(round(q, 2), flush=True) -> pass", "print(round(q, 2), flush=True) -> print(round(2, q), flush=True)",
        "print(round(q, 2), flush=True) -> print(round(s, 2), flush=True)",
        *(f"return min(order) if q is None else order -> return {new}" for new in (
            "None", "max(order) if q is None else order", "min(order) if q is not None else order",
            "min(order) if s is None else order"))}
    for mutant in found:
        source = SOURCE.encode()
        ast.parse(source[: mutant.start] + mutant.new.encode() + source[mutant.end :])


def test_a_mutant_knows_the_lines_whose_tests_may_notice_it() -> None:
    found = {mutant.key.rpartition(" -> ")[2]: mutant for mutant in
             mutation.Source("few.py", SOURCE.encode()).mutants()}
    assert found["LIMIT: int = 4"].lines == (5, 5) and not found["LIMIT: int = 4"].inside
    assert found["if True:"].lines == (12, 12) and found["if True:"].inside  # not the body
    assert found["int | None:"].lines == (8, 20) and found["int | None:"].inside  # a default: the whole function
    assert found["band = Speed(s, q)"].line == 13


def test_all_that_is_to_be_tested_has_mutants() -> None:
    found = mutation.mutants(["*"])
    assert len({mutant.key for mutant in found}) == len(found) > 3000
    rooms = {mutant.file.rpartition("/")[0] for mutant in found}
    assert rooms >= {"core", "core/samplers", "models", "tuning", "experiments", "experiments/executors", "figures",
                     "vendor/mammoth/models", "vendor/mammoth/models/utils", "vendor/mammoth/utils"}
    files = {mutant.file for mutant in found}
    assert not files & {file for file, what in mutation.NOT_MUTATED.items() if what == "*"}
    assert all(mutation.valid(mutant) for mutant in found[::40])


def test_a_test_that_fails_only_after_others_has_killed_nothing(monkeypatch, tmp_path) -> None:
    monkeypatch.setitem(sys.modules, "mutation", mutation)
    mutants = load("mutants", "mutants")

    class Tree(mutants.Tree):
        def __init__(self, together: dict[str, str], alone: dict[str, str]) -> None:
            self.home, self.together, self.alone = tmp_path, together, alone

        def run(self, tests, scratch, limit, **_) -> str:
            outcomes = self.alone if len(tests) == 1 else self.together
            return next((outcomes[test] for test in tests if test in outcomes), "")

    def notices(together: dict[str, str], alone: dict[str, str]) -> str:
        return Tree(together, alone).notices(["a", "b", "c", "d"], defaultdict(float))

    assert notices({}, {}) == ""
    assert notices({"b": "b"}, {"b": "b"}) == "b"
    assert notices({"b": "b"}, {}) == ""  # and c and d are asked as well
    assert notices({"b": "b", "c": "c (does not end)"}, {"c": "c (does not end)"}) == "c (does not end)"
    assert notices({"b": "b", "d": "d"}, {"d": "d"}) == "d"
    assert notices({"a": "import"}, {}) == "import"
