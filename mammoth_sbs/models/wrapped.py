"""Any replay method of a user's Mammoth with its buffer filled by a sampler: `--model er_ace_sbs`, made when it is
asked for. It can be made of methods that fill a plain buffer in one of two ways: by `add_data` at every step, or at the
end of a task from its train loader."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mammoth_sbs.core.samplers import Task
from mammoth_sbs.errors import UserError, reason
from mammoth_sbs.models.base import SpeedSampled, content
from mammoth_sbs.models.chosen import Chosen, not_augmented
from mammoth_sbs.models.forward import ForwardIsCall, calls_forward
from mammoth_sbs.models.quota import ClassQuota
from mammoth_sbs.models.record import Recorded, keys
from mammoth_sbs.models.xder import Announced
from mammoth_sbs.watch import say

from models.utils.continual_model import ContinualModel
from utils.buffer import Buffer

CAN_BE_MADE = {"labels", "logits", "task_labels"}  # beside an image, by `to_store`
GIVEN = {"self", "inputs", "labels", "not_aug_inputs", "epoch"}  # to `observe`, always


class Way(NamedTuple):
    """How a method fills its buffer."""

    each_step: bool
    stores: tuple[str, ...]  # that it names, beside images

    def __str__(self) -> str:
        what = f", with {', '.join(self.stores)}" if self.stores else ""
        return f"yes: filled {'at every step' if self.each_step else 'at the end of a task'}{what}"


# ---- by reading its code

def sources(method: type) -> dict[str, ast.FunctionDef]:
    """The functions that a method and what it extends define, by name: the nearest of each."""
    found: dict[str, ast.FunctionDef] = {}
    for cls in reversed(lineage(method)):
        found |= {node.name: node for node in body(cls) if isinstance(node, ast.FunctionDef)}
    return found


def lineage(method: type) -> list[type]:
    """The method and what it extends, up to Mammoth's own base class."""
    return [cls for cls in method.__mro__ if cls not in ContinualModel.__mro__]


def body(cls: type) -> list[ast.stmt]:
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(cls))).body
    return tree.body if isinstance(tree, ast.ClassDef) else []


def steps(found: dict[str, ast.FunctionDef]) -> str:
    """The code of a training step: `observe`, and the functions of its own that it calls."""
    code, todo, done = "", ["observe"], set()
    while todo:
        name = todo.pop()
        if name in found and name not in done:
            done.add(name)
            code += ast.unparse(found[name])
            todo += re.findall(r"self\.(\w+)\(", code)
    return code


def buffers(method: type) -> list[ast.expr]:
    """What a method's constructors make its buffer of."""
    return [node.value for cls in lineage(method) for init in body(cls)
            if isinstance(init, ast.FunctionDef) and init.name == "__init__" for node in ast.walk(init)
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "self.buffer"]


def calls(function: ast.FunctionDef | None, wanted: str) -> list[ast.Call]:
    """The calls in a function of what is written so: `self.buffer.add_data`."""
    nodes = ast.walk(function) if function is not None else ()
    return [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == wanted]


def is_plain(made: ast.expr) -> bool:
    """Whether a buffer is a reservoir of the given size, on some device."""
    if not isinstance(made, ast.Call) or ast.unparse(made.func) != "Buffer" or len(made.args) > 2:
        return False
    return all(keyword.arg in ("buffer_size", "device") for keyword in made.keywords)


def way_of(method: Any) -> Way | str:
    """How a method fills its buffer, or why it cannot be wrapped."""
    if isinstance(method, Exception):
        return f"does not import ({reason(method)})"
    if issubclass(method, SpeedSampled):
        return "it is an _sbs model"
    found, made = sources(method), buffers(method)
    if not made:
        return "it has no buffer"
    observe = found["observe"]
    if any(getattr(sys.modules[cls.__module__], "Buffer", Buffer) is not Buffer for cls in lineage(method)):
        return "its buffer is of a kind of its own"
    if not all(map(is_plain, made)):
        return f"its buffer has rules of its own: {', '.join(ast.unparse(call) for call in made if not is_plain(call))}"
    if "cssl" in method.COMPATIBILITY:
        return "it learns from examples without labels too"
    arguments = observe.args
    optional = {arg.arg for arg in arguments.args[len(arguments.args) - len(arguments.defaults):]}
    needed = [arg.arg for arg in arguments.args if arg.arg not in GIVEN | optional]
    if needed:
        return f"its steps need {', '.join(needed)}"
    if not re.search(r"self\.net(\.forward)?\(|self\(|self\.forward\(", steps(found)):
        return "its steps make no forward pass, so that there is no learning speed"
    if calls(found.get("begin_task"), "icarl_replay"):
        return "it mixes its buffer into the data of a task, so that the stream is not the task's alone"
    inserts, end = calls(observe, "self.buffer.add_data"), found.get("end_task")
    if inserts and (calls(end, "self.buffer.add_data") or calls(end, "fill_buffer")):
        return "it fills its buffer both at every step and at the end of a task"
    if inserts:
        names = sorted({keyword.arg or "" for call in inserts for keyword in call.keywords} - {"examples"})
        unknown = [name for name in names if name not in CAN_BE_MADE]
        if unknown or any(call.args for call in inserts):
            return f"it stores {', '.join(unknown) or 'what it does not name'}, which only its own steps can make"
        return Way(True, tuple(names))
    if calls(end, "self.buffer.add_data"):
        names = sorted({keyword.arg or "" for call in calls(end, "self.buffer.add_data") for keyword in call.keywords})
        return Way(False, tuple(name for name in names if name != "examples")) if "labels" in names else \
            "its buffer holds no labels"
    if any(ast.unparse(call.args[0]) == "self.buffer" for call in calls(end, "fill_buffer") if call.args):
        return Way(False, ())
    return "it fills its buffer neither in observe nor in end_task"


def listing(known: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Every method with a buffer, and whether it can be wrapped; those that are wrapped already are not listed."""
    folder = Path(str(sys.modules["models"].__file__)).parent
    for name, method in sorted(known.items()):
        if f"{name}-sbs" in known or (isinstance(method, type) and issubclass(method, SpeedSampled)):
            continue
        file = folder / f"{name.replace('-', '_')}.py"  # of one that does not import, the text is all there is
        if buffers(method) if isinstance(method, type) else "buffer" in file.read_text(encoding="utf-8"):
            way = way_of(method)
            yield name, str(way) if isinstance(way, Way) else f"no: {way}"


# ---- by what it does

class Wrapped(SpeedSampled):
    """To be put before a method that was never seen: what it stores is found out while the first task is learned."""

    classify = Recorded.classify  # a fixed head, if it has one

    def observe(self, inputs: Tensor, labels: Tensor, not_aug_inputs: Tensor, epoch: int | None = None,
                sbs_index: Tensor | None = None, **kwargs: Any) -> float | Tensor:
        """The name `kwargs` makes Mammoth hand over every field; the method gets those that it takes."""
        taken = inspect.signature(super(SpeedSampled, self).observe).parameters
        more = {name: value for name, value in kwargs.items() if name in taken}
        assert self.hook is not None and sbs_index is not None
        self.hook.expect(inputs, labels, sbs_index, epoch or 0)
        with self.watched():
            loss = super(SpeedSampled, self).observe(inputs, labels, not_aug_inputs,
                                                     **({"epoch": epoch} if "epoch" in taken else {}), **more)
        if self.hook.waiting:
            raise UserError(f"--model {self.NAME}: a training step made no forward pass on its batch, so there is no "
                            "learning speed")
        return loss["loss"] if isinstance(loss, dict) else loss

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Around a step of the method."""
        yield

    def fault(self, what: str) -> UserError:
        return UserError(f"--model {self.NAME}: {what}, so {self.stock} cannot be wrapped; take the stock method")


class EachStep(Wrapped):
    """A method that inserts at every step: one sees what it would store, and stores that of the chosen examples."""

    inserts_each_step = True
    seen: dict[str, Tensor] | None = None  # what it stored, or would have, of its last batch

    @contextmanager
    def watched(self) -> Iterator[None]:
        add = self.buffer.add_data

        def note(examples: Tensor, **beside: Tensor) -> Any:
            self.seen = {"examples": examples, **{name: v for name, v in beside.items() if v is not None}}
            return add(examples=examples, **beside) if self.args.sbs_during == "stock" else None

        vars(self.buffer)["add_data"] = note
        try:
            yield
        finally:
            del vars(self.buffer)["add_data"]

    def end_task(self, dataset: Any) -> None:
        """Then the method's own, which finds the buffer filled, as it is used to."""
        has_learned = self.speed is not None and self.speed.epochs > 0
        super().end_task(dataset)
        if has_learned:
            super(SpeedSampled, self).end_task(dataset)

    def fill(self, dataset: Any, task: Task) -> Tensor:
        if self.seen is None:
            raise self.fault("it inserted nothing during a task")
        self.stores = tuple(name for name in self.seen if name != "examples")  # type: ignore[misc]
        if unknown := set(self.stores) - CAN_BE_MADE:
            raise self.fault(f"it stores {', '.join(sorted(unknown))}, which only its own steps can make")
        chosen = super().fill(dataset, task)
        self.check()
        return chosen

    def check(self) -> None:
        """That the buffer holds what the method itself would have put there: the same parts, of the same shapes."""
        assert self.seen is not None
        held = {name: tuple(value.shape[1:]) for name, value in content(self.buffer).items()}
        wanted = {name: tuple(value.shape[1:]) for name, value in self.seen.items()}
        if held != wanted:
            raise self.fault(f"it stores {wanted}, and {held} is what could be made")
        if self.current_task == 0:
            say(f"{self.NAME}: {self.stock} inserts at every step, and stores {', '.join(self.stores)} with an image")


class AtTheEnd(Wrapped, ClassQuota):
    """A method that fills at the end of a task: its own `end_task` is handed the chosen examples as the task."""

    handed: Tensor  # the examples that it was given last

    def loader(self, data: Any, chosen: Tensor) -> Chosen:
        self.handed = chosen
        loader = Announced(data, chosen, self.args.batch_size)
        loader.args = self.args
        return loader

    def old_quota(self) -> int:
        """What it keeps of an old class is its own affair: it may be as little as nothing."""
        return 0

    def fill(self, dataset: Any, task: Task) -> Tensor:
        super().fill(dataset, task)
        return self.found(dataset.train_loader.dataset, task, self.handed)

    def found(self, data: Any, task: Task, chosen: Tensor) -> Tensor:
        """Which of the chosen examples are in the buffer; that nothing else of the task is there is checked."""
        held = content(self.buffer)
        if "labels" not in held:
            raise self.fault("its buffer holds no labels")
        of_task = held["labels"].cpu() >= task.first_class
        there = set(keys(held["examples"][of_task.to(held["examples"].device)]))
        mine = list(keys(not_augmented(data, chosen)))
        stored = chosen[torch.tensor([key in there for key in mine], dtype=torch.bool)]
        if not of_task.any() or there - set(mine):
            raise self.fault("at the end of a task its buffer holds other examples than those it was handed"
                             if of_task.any() else "its buffer holds nothing of a task that has ended")
        if self.current_task == 0:
            names = ", ".join(name for name in held if name != "examples")
            say(f"{self.NAME}: {self.stock} fills at the end of a task, and stores {names} with an image")
        return stored


def wrap(name: str, method: Any) -> type[SpeedSampled]:
    """The `_sbs` model of a method of Mammoth's; `name` is the method's."""
    way = way_of(method)
    plain = name.replace("-", "_")
    if isinstance(way, str):
        raise UserError(f"--model {plain}_sbs: {plain} cannot be wrapped: {way}; mammoth-sbs doctor lists which can")
    first = (ForwardIsCall,) if calls_forward(method) else ()
    bases = (*first, EachStep if way.each_step else AtTheEnd, method)
    made = type(f"{method.__name__}Sbs", bases, {"NAME": f"{plain}_sbs", "stock": plain, "stores": way.stores})
    for spelled in (f"models.{name}-sbs", f"models.{plain}_sbs"):  # where Mammoth may look for the name `Buffer`
        sys.modules[spelled] = sys.modules[method.__module__]
    return made
