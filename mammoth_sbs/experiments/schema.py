"""What the result of a run is: a file that does not fit is named, and never averaged in."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from mammoth_sbs.metrics import METRICS
from mammoth_sbs.values import (
    PERCENT,
    POINT,
    SEED,
    Unfit,
    accuracies,
    at_least,
    each,
    is_plain,
    is_text,
    maybe,
    number,
    shown,
    table,
)

SPEED = number(0, 1).check
POINTS = number(-100, 100).check  # a difference of accuracies
SETTING = table(
    {"matrix": accuracies, "final": PERCENT.check, "forgetting": POINTS},
    {**{name: PERCENT.check if metric.accuracy else POINTS for name, metric in METRICS.items()},
     "before_learning": each(PERCENT.check), "untrained": each(PERCENT.check)})
TASK = table({}, {
    "task": at_least(1).check, "examples": at_least(1).check, "epochs": at_least(0).check, "speed_mean": SPEED,
    "speed_quartiles": each(SPEED, 3), "stored": at_least(0).check, "stored_speed_mean": maybe(SPEED),
    "left_out_quick": at_least(0).check, "left_out_slow": at_least(0).check, "band": each(number().check, 2),
    "choice": maybe(table({"q": number(0, below=1).check, "s": number(0, below=1).check, "points": each(POINT)}))})
RESULT = table(
    {"id": is_text, "version": is_text, "args": table({"model": is_text, "dataset": is_text, "seed": SEED.check},
                                                      {"buffer_size": maybe(at_least(1).check), "sampler": is_text}),
     "threads": at_least(1).check, "seed": SEED.check, "results": table({"class_il": SETTING, "task_il": SETTING}),
     "volatile": table({"command": is_text, "wall_time": number(0).check})},
    {"sbs": table({"tasks": each(TASK)}),
     "test": table({"class_il": each(PERCENT.check), "task_il": each(PERCENT.check)})})


def digest(value: Any) -> str:
    """A short name for something that JSON can hold."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def id_of(args: dict[str, Any], threads: int) -> str:
    """What a run is known by."""
    return digest({"args": args, "threads": threads})


def check(record: Any) -> None:
    """That a record is the result of a run, whole and true to itself; raises `Unfit`."""
    RESULT(record, "")
    args, results = record["args"], record["results"]
    for name, value in args.items():
        is_plain(value, f"args.{name}")
    if args["model"].replace("_", "-").endswith("-sbs"):
        table({"sampler": is_text, "sbs_q": is_plain, "sbs_s": is_plain})(args, "args")
    if record["seed"] != args["seed"]:
        raise Unfit(f"seed is {record['seed']}, and args.seed is {args['seed']}")
    if record["id"] != id_of(args, record["threads"]):
        raise Unfit(f"id is {shown(record['id'])}, which is not that of its arguments")
    lengths = {name: len(setting["matrix"]) for name, setting in results.items() if name in ("class_il", "task_il")}
    if len(set(lengths.values())) > 1:
        raise Unfit(f"results have {lengths['class_il']} and {lengths['task_il']} tasks")
    for name in lengths:
        for metric, found in METRICS.items():
            if found.of and metric in results[name]:
                follows = found.of(results[name]["matrix"])
                if abs(results[name][metric] - follows) > 1e-6:
                    raise Unfit(f"results.{name}.{metric} is {results[name][metric]}, and its matrix gives {follows}")
