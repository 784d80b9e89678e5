"""The command line: add, ls, done, rm."""

import argparse
import sys

from todo.store import Store


def build_parser():
    parser = argparse.ArgumentParser(prog="todo")
    parser.add_argument("--file", default="todo.json", help="where the tasks are kept")
    commands = parser.add_subparsers(dest="command", required=True)
    add = commands.add_parser("add", help="a new task")
    add.add_argument("text", nargs="+")
    listing = commands.add_parser("ls", help="show the tasks")
    listing.add_argument("--all", action="store_true", help="the done ones as well")
    for name, about in (("done", "tick tasks off"), ("rm", "forget tasks")):
        command = commands.add_parser(name, help=about)
        command.add_argument("numbers", type=int, nargs="+")
    return parser


def main(arguments):
    """Run a command; the exit status."""
    options = build_parser().parse_args(arguments)
    store = Store(options.file)
    if options.command == "add":
        print(store.add(" ".join(options.text)))
    elif options.command == "ls":
        for task in store.tasks:
            if options.all or not task["done"]:
                print(f"{task['number']:3} [{'x' if task['done'] else ' '}] {task['text']}")
    else:
        return change(store.done if options.command == "done" else store.remove, options.numbers)
    return 0


def change(function, numbers):
    """Apply a change to each task; 1 where one of them isn't there."""
    for number in numbers:
        if not function(number):
            print(f"todo: no task {number}")
    return 0
