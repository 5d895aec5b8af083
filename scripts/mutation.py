"""The mutants of the code: each a change of one place that a test should notice. `scripts/mutants` tries them."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple

PACKAGE = Path(__file__).resolve().parent.parent / "mammoth_sbs"
FILES = ("core/*", "models/*", "tuning/*", "experiments/*", "figures/*", "few.py", "files.py", "metrics.py",
         "values.py", "vendor/mammoth/models/*", "vendor/mammoth/utils/*")
NOT_MUTATED = {  # looks, timing, what is for Mammoth alone, and Ray, whose nodes do not stand on the copy; *: all of it
    "figures/report.py": "*", "figures/output.py": "*", "vendor/mammoth/utils/progress.py": "*",
    "experiments/executors/cluster.py": "*", "experiments/executors/preload.py": "*", "models/agem.py": "*",
    "models/base.py": "load_buffer", "figures/table1.py": "figure write heading",
    "figures/bars.py": "figure places thickness bars points finish same_scale palette write",
    "figures/heatmap.py": "draw draw_errors _maps _panel write", "experiments/sweep.py": "Progress",
    "experiments/duration.py": "*", "figures/forgetting.py": "write draw draw_accuracy draw_groups",
    "figures/matrices.py": "write", "figures/memory.py": "write draw_sizes", "figures/gallery.py": "write draw",
    "figures/following.py": "draw", "figures/regret.py": "draw", "figures/recorded.py": "draw_matrix",
    "figures/glyphs.py": "*", "vendor/mammoth/utils/status.py": "*"}

OPERATORS: dict[type, tuple[str, str]] = {
    ast.Lt: ("<", "<="), ast.LtE: ("<=", "<"), ast.Gt: (">", ">="), ast.GtE: (">=", ">"), ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="), ast.Is: ("is", "is not"), ast.IsNot: ("is not", "is"), ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"), ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "/"), ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"), ast.Mod: ("%", "*"), ast.Pow: ("**", "*"), ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"), ast.BitXor: ("^", "|"), ast.And: ("and", "or"), ast.Or: ("or", "and")}
SAME_AS_NOT = ast.Eq | ast.NotEq | ast.Is | ast.IsNot | ast.In | ast.NotIn
PAIRS = {"min": "max", "any": "all", "argmax": "argmin", "floor": "ceil", "minimum": "maximum", "quick": "slow",
         "q": "s", "sbs_q": "sbs_s", "n_past_classes": "n_seen_classes", "inputs": "not_aug_inputs",
         "learned": "asked", "held_out": "rest", "first": "end"}
PAIRS |= {b: a for a, b in PAIRS.items()} | {"eval": "train"}
ALWAYS_THERE = {"min", "max", "any", "all", "argmax", "argmin", "floor", "ceil", "minimum", "maximum", "eval", "train"}
LEFT_OUT = {"generator", "key", "epoch", "weights_only", "sort_keys"}  # keyword arguments
NO_MATTER = {"flush", "parents", "exist_ok", "missing_ok", "indent", "help", "metavar", "daemon", "silent", "strict",
             "stable"}  # torch's sort on a CPU is stable anyway
ONLY_LOOKS = {"drawing": 0, "round": 1}  # calls, from which argument on: a figure's size, digits behind the point
EITHER_WAY = {"isinstance", "hasattr", "getattr", "setattr", "range", "equal", "dot", "zip", "print", "min", "max",
              "minimum", "maximum"}


class Mutant(NamedTuple):
    """`new` in place of the bytes `start` to `end` of a file."""

    file: str  # below the package
    start: int
    end: int
    new: str
    line: int
    lines: tuple[int, int]  # of its statement, without the body of a compound one
    inside: bool  # of a function
    key: str  # names it as long as its line stays as it is


class Source:
    """The changes that can be made in one file."""

    def __init__(self, file: str, source: bytes) -> None:
        self.file, self.source, self.tree = file, source, ast.parse(source)
        self.begin = [0]
        for text in source.splitlines(keepends=True):
            self.begin.append(self.begin[-1] + len(text))
        self.skipped = set(NOT_MUTATED.get(file, "").split())
        self.attributes = {node.attr for node in ast.walk(self.tree) if isinstance(node, ast.Attribute)} | ALWAYS_THERE
        self.names = ALWAYS_THERE

    def span(self, node: Any) -> tuple[int, int]:
        return self.begin[node.lineno - 1] + node.col_offset, self.begin[node.end_lineno - 1] + node.end_col_offset

    def text(self, start: int, end: int) -> str:
        return self.source[start:end].decode()

    def walk(self, node: ast.AST, statement: Any = None, inside: bool = False) -> Iterator[tuple[ast.AST, Any, bool]]:
        """All nodes but types, imports, assertions (they are for type checkers), what is said, and what is skipped."""
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Assert | ast.JoinedStr) or (
                isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING") or (
                isinstance(node, ast.Assign) and isinstance(node.value, ast.Subscript) and not inside):  # a type's name
            return
        statement = node if isinstance(node, ast.stmt) else statement
        parts: list[ast.AST] = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            if node.name in self.skipped:
                return
            if isinstance(node, ast.FunctionDef):
                for default in [*node.args.defaults, *filter(None, node.args.kw_defaults)]:
                    yield from self.walk(default, statement, inside)
                if not inside:  # what a name in it can be taken for
                    self.names = {name for part in ast.walk(node)
                                  if (name := getattr(part, "id", getattr(part, "arg", None)))} | ALWAYS_THERE
            parts, inside = list(node.body), inside or isinstance(node, ast.FunctionDef)
        elif isinstance(node, ast.ExceptHandler):  # which errors, in whatever order
            parts = list(node.body)
        elif isinstance(node, ast.AnnAssign):
            parts = [node.value] if node.value else []
        elif isinstance(node, ast.Call):
            kept = [keyword.value for keyword in node.keywords if keyword.arg not in NO_MATTER]
            first = ONLY_LOOKS.get(getattr(node.func, "attr", getattr(node.func, "id", "")), len(node.args))
            parts = [node.func, *node.args[:first], *kept]
        yield node, statement, inside
        for part in parts:
            yield from self.walk(part, statement, inside)

    def between(self, left: ast.AST, op: ast.AST, right: ast.AST) -> Iterator[tuple[int, int, str]]:
        old, new = OPERATORS.get(type(op), ("?", ""))
        at = self.source.find(old.encode(), self.span(left)[1], self.span(right)[0])
        if at >= 0:
            yield at, at + len(old), new

    def swap(self, a: ast.AST, b: ast.AST) -> Iterator[tuple[int, int, str]]:
        if not any(isinstance(part, ast.Starred) for part in (a, b)):
            (start, stop), (go_on, end) = self.span(a), self.span(b)
            yield start, end, self.text(go_on, end) + self.text(stop, go_on) + self.text(start, stop)

    def edits(self, node: Any, inside: bool) -> Iterator[tuple[int, int, str]]:
        """What can be wrong about one node."""
        start, end = self.span(node) if hasattr(node, "lineno") else (0, 0)
        match node:
            case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Raise() | ast.Delete() | ast.Break() \
                    | ast.Continue() | ast.Return(value=None):
                yield start, end, "pass"
            case ast.Assign() if inside and all(isinstance(t, ast.Attribute | ast.Subscript) for t in node.targets):
                yield start, end, "pass"
            case ast.Return():
                yield *self.span(node.value), "None"
            case ast.With() if all(item.optional_vars is None for item in node.items):
                yield start, self.span(node.items[-1].context_expr)[1], "if True"
            case ast.If() | ast.IfExp() if not (isinstance(node.test, ast.UnaryOp) or (  # else their own change does it
                    isinstance(node.test, ast.Compare) and isinstance(node.test.ops[0], SAME_AS_NOT))):
                yield *self.span(node.test), f"not ({self.text(*self.span(node.test))})"
            case ast.BinOp() if not any(isinstance(part, ast.JoinedStr | ast.Constant) and not isinstance(
                    getattr(part, "value", None), int | float) for part in (node.left, node.right)):  # not of texts
                yield from self.between(node.left, node.op, node.right)
            case ast.Compare():
                for left, op, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
                    yield from self.between(left, op, right)
            case ast.BoolOp():
                for left, right in zip(node.values, node.values[1:], strict=False):
                    yield from self.between(left, node.op, right)
            case ast.UnaryOp() if not isinstance(node.operand, ast.Constant):
                yield start, start + (3 if isinstance(node.op, ast.Not) else 1), " "
            case ast.Constant(value=bool()):
                yield start, end, str(not node.value)
            case ast.Constant(value=int()) if node.value != 256:  # images per forward pass: any number does
                yield start, end, str(node.value + 1)
            case ast.Constant(value=float()) if node.value == 0 or abs(node.value) > 1e-3:
                yield start, end, str(2 * node.value or 1.0)
            case ast.Name(id=name, ctx=ast.Load()) if PAIRS.get(name) in self.names:
                yield start, end, PAIRS[name]
            case ast.Attribute(attr=name, ctx=ast.Load()) if PAIRS.get(name) in self.attributes:
                yield end - len(name), end, PAIRS[name]
            case ast.Call():
                if len(node.args) > 1 and getattr(node.func, "attr", getattr(node.func, "id", "")) not in EITHER_WAY:
                    yield from self.swap(*node.args[:2])
                for keyword in node.keywords:
                    if keyword.arg in LEFT_OUT:
                        before = max([self.span(part)[1] for part in (*node.args, *node.keywords)
                                      if self.span(part)[1] < self.span(keyword)[0]], default=self.span(keyword)[0])
                        yield before, self.span(keyword)[1], ""
            case ast.Tuple(elts=[a, b], ctx=ast.Load()) if not isinstance(a, ast.Constant):
                yield from self.swap(a, b)
            case ast.Slice():
                for bound in filter(None, (node.lower, node.upper)):
                    yield *self.span(bound), ""

    def mutants(self) -> Iterator[Mutant]:
        """Each change."""
        keys = Counter[str]()
        for node, statement, inside in self.walk(self.tree):
            for start, end, new in self.edits(node, inside):
                if self.text(start, end) == new:  # two arguments that are the same, swapped
                    continue
                line = self.source[:start].count(b"\n") + 1
                begin, stop = self.begin[line - 1], self.source.find(b"\n", end)
                before, after = self.text(begin, stop), self.text(begin, start) + new + self.text(end, stop)
                key = f"{self.file}: {' '.join(before.split())} -> {' '.join(after.split())}"
                keys[key] += 1
                body = getattr(statement, "body", None)
                last = max(statement.lineno, body[0].lineno - 1 if body else statement.end_lineno)
                if isinstance(statement, ast.FunctionDef):  # a default: who calls the function may notice
                    inside, last = True, statement.end_lineno or last
                yield Mutant(self.file, start, end, new, line, (statement.lineno, last), inside,
                             key + (f" #{keys[key]}" if keys[key] > 1 else ""))


def mutants(patterns: list[str]) -> list[Mutant]:
    """All of them, file by file."""
    files = {path.relative_to(PACKAGE).as_posix(): path for path in sorted(PACKAGE.rglob("*.py"))}
    return [mutant for file, path in files.items() if NOT_MUTATED.get(file) != "*"
            if any(fnmatch(file, p) for p in FILES) and any(fnmatch(file, p) for p in patterns)
            for mutant in Source(file, path.read_bytes()).mutants()]


def valid(mutant: Mutant) -> bool:
    """Whether Python accepts it."""
    source = (PACKAGE / mutant.file).read_bytes()
    with suppress(SyntaxError):
        return bool(ast.parse(source[: mutant.start] + mutant.new.encode() + source[mutant.end :]))
    return False
