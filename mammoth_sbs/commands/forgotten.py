"""`mammoth-sbs forgotten RECORD...`: what a recorded run forgot, and whether that could be foreseen."""

from __future__ import annotations

from mammoth_sbs.commands import Parser
from mammoth_sbs.core.record import Record
from mammoth_sbs.errors import UserError
from mammoth_sbs.figures.forgotten import describe, rows
from mammoth_sbs.figures.output import write_csv
from mammoth_sbs.values import at_least, path


def parser() -> Parser:
    it = Parser(prog="mammoth-sbs forgotten",
                description="What a run forgot: examples and classes, how well learning speed had predicted it, and "
                            "how the buffer covered them. Records are made by --sbs-record.")
    it.add_argument("records", type=path, nargs="+", metavar="RECORD", help="files that --sbs-record has written")
    it.add_argument("--setting", choices=["task_il", "class_il"], default="task_il",
                    help="right among the task's classes, or among all classes seen")
    it.add_argument("--show", type=at_least(0), default=5, metavar="N", help="forgotten examples to list per task")
    it.add_argument("--csv", type=path, metavar="FILE", help="write every example there")
    return it


def main(argv: list[str]) -> None:
    """Print a table for each record."""
    args = parser().parse_args(argv)
    records = [Record(file) for file in args.records]
    for record in records:
        if record.tasks < 2:
            raise UserError(f"{record.path}: holds one task, and what is forgotten shows in a second one")
        print(f"{record.path}, {args.setting.replace('task_il', 'Task-IL').replace('class_il', 'Class-IL')}\n")
        print(describe(record, args.setting, args.show), end="\n\n")
    if args.csv:
        write_csv(args.csv, [row for record in records for row in rows(record, args.setting)])
        print(args.csv)
