"""Batch normalisation's sums in a network that is compiled."""

from __future__ import annotations

import hashlib
import math
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx import Graph, Node

aten = torch.ops.aten
ALL_BUT_CHANNELS = [0, 2, 3]


class ByImage(CustomGraphPass):
    """Batch normalisation's sums: over the pixels of each image, then over images, and the variance after the mean.

    Inductor's own, a running mean and variance over all pixels one after the other, wait for themselves, and round a
    gradient two hundred times worse than torch does eagerly.
    """

    def __call__(self, graph: Graph) -> None:
        for node in graph.find_nodes(op="call_function", target=aten.var_mean.correction):
            x, axes = node.args[:2]
            if list(axes) != ALL_BUT_CHANNELS or node.kwargs != {"correction": 0, "keepdim": True}:
                continue
            with graph.inserting_before(node):
                pixels = math.prod(x.meta["val"].shape[2:])
                count = _call(graph, operator.mul, _call(graph, aten.sym_size.int, x, 0), pixels)
                mean = _call(graph, aten.div.Tensor, self.sum(graph, x, True), count)
                off = _call(graph, aten.sub.Tensor, x, mean)
                square = _call(graph, aten.mul.Tensor, off, off)
                variance = _call(graph, aten.div.Tensor, self.sum(graph, square, True), count)
            for part in list(node.users):
                part.replace_all_uses_with((variance, mean)[part.args[1]])
                graph.erase_node(part)
            graph.erase_node(node)
        for node in graph.find_nodes(op="call_function", target=aten.sum.dim_IntList):
            if list(node.args[1]) == ALL_BUT_CHANNELS and not node.kwargs:
                with graph.inserting_before(node):
                    node.replace_all_uses_with(self.sum(graph, node.args[0], *node.args[2:]))
                graph.erase_node(node)

    @staticmethod
    def sum(graph: Graph, x: Any, *keepdim: bool) -> Any:
        """Over all but channels, in two steps."""
        by_image = _call(graph, aten.sum.dim_IntList, x, [2, 3], *keepdim)
        return _call(graph, aten.sum.dim_IntList, by_image, [0], *keepdim)

    def uuid(self) -> str:
        """Code made with another version of it does not count."""
        return hashlib.sha256(Path(__file__).read_bytes()).hexdigest()


def _call(graph: Graph, function: Callable[..., Any], *args: Any) -> Any:
    """A new node of a graph that torch is compiling, with the shape that its value will have."""
    node = graph.call_function(function, args)
    node.meta["val"] = function(*(arg.meta["val"] if isinstance(arg, Node) else arg for arg in args))
    return node
