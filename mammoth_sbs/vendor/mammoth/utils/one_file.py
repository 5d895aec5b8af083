"""The loops of a compiled graph in one C++ file instead of one each: most of what a file takes is torch's headers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch._inductor.async_compile import AsyncCompile
from torch._inductor.codecache import CppPythonBindingsCodeCache

INCLUDE = re.compile(r"^\s*#include .*$", re.MULTILINE)
NAME = re.compile(r"\bkernel\(")  # what torch calls every loop
Loop = Callable[..., None]


class Loops(CppPythonBindingsCodeCache):
    """A library with one function, which gives all loops of a graph as functions of Python."""

    cache: dict[str, Any] = {}
    entry_function = "kernels"
    call_entry_function = "return kernels();"

    @classmethod
    def load_all(cls, loops: list[tuple[list[str], str]]) -> list[Loop]:
        """From the types of each one's arguments and its code."""
        includes = dict.fromkeys(line.strip() for _, code in loops for line in INCLUDE.findall(code))
        bodies = [f"namespace loop_{i} {{\n{NAME.sub(f'kernel_{i}(', INCLUDE.sub('', code))}\n}}"
                  for i, (_, code) in enumerate(loops)]
        graph: Any = type("Loops", (cls,), {"extra_parse_arg": _bindings([types for types, _ in loops])})
        return graph.load_pybinding([], "\n".join([*includes, *bodies]))()


def _bindings(types: list[list[str]]) -> str:
    """C++ that makes a function of Python of each loop; torch formats it, so braces are doubled."""
    calls = []
    for i, of_loop in enumerate(types):
        given = ", ".join(f"parse_arg<{one.replace('const ', '')}>(args, {n})" for n, one in enumerate(of_loop))
        calls.append(f"""
static PyObject* call_{i}(PyObject*, PyObject* args) {{
    try {{
        if (PyTuple_GET_SIZE(args) != {len(of_loop)}) throw std::runtime_error("requires {len(of_loop)} arguments");
        loop_{i}::kernel_{i}({given});
        Py_RETURN_NONE;
    }} catch (std::exception const& e) {{
        PyErr_SetString(PyExc_RuntimeError, e.what());
        return nullptr;
    }}
}}""")
    methods = ", ".join(f'{{"kernel_{i}", call_{i}, METH_VARARGS, ""}}' for i in range(len(types)))
    return "\n".join([*calls, f"""
static PyMethodDef loops[] = {{ {methods} }};
static PyObject* kernels() {{
    PyObject* all = PyTuple_New({len(types)});
    for (Py_ssize_t i = 0; all && i < {len(types)}; ++i) PyTuple_SET_ITEM(all, i, PyCFunction_New(&loops[i], nullptr));
    return all;
}}"""]).replace("{", "{{").replace("}", "}}")


class _Wanted:
    """Stands in torch's module for a loop until all of them are known."""

    def __init__(self, types: list[str], code: str) -> None:
        self.types, self.code = types, code


@contextmanager
def one_file_per_graph() -> Iterator[None]:
    """torch asks for a graph's loops one by one, then waits for all: they are compiled then."""
    alone, wait = AsyncCompile.cpp_pybinding, AsyncCompile.wait

    def ask(self: AsyncCompile, argtypes: list[str], source_code: str) -> Any:
        wanted = _Wanted(argtypes, source_code)
        return wanted if len(NAME.findall(source_code)) == 1 else alone(self, argtypes, source_code)

    def compile_all(self: AsyncCompile, scope: dict[str, Any]) -> None:
        wanted = {name: value for name, value in scope.items() if isinstance(value, _Wanted)}
        try:
            loops = Loops.load_all([(one.types, one.code) for one in wanted.values()]) if wanted else ()
        except Exception:  # a torch that does it otherwise: as it does it
            loops = [alone(self, one.types, one.code) for one in wanted.values()]
        scope.update(zip(wanted, loops, strict=True))
        wait(self, scope)

    AsyncCompile.cpp_pybinding, AsyncCompile.wait = ask, compile_all  # type: ignore[method-assign]
    try:
        yield
    finally:
        AsyncCompile.cpp_pybinding, AsyncCompile.wait = alone, wait  # type: ignore[method-assign]
