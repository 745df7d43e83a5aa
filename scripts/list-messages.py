#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""usage: list-messages.py [KIND...]   List every string that a user or a support engineer can read.

One line for each: FILE:LINE, a tab, the kind, a tab, the text as the source has it. Adjacent literals are joined, conversion
specifiers and escapes stay, a macro between literals is {NAME}. FILE:LINE is where the text begins. The kinds:

    log-error, log-warn, log-info, log-debug   an argument of log_error() and so on
    explain       explanations, `softhca why` and `softhca ps`, and the code that prints them
    key           names of JSON members in explanations and in the output of the softhca command
    reason        why memory is not mapped (src/mapped/reason.c)
    tool          what else the softhca command prints, with its help and its environment
    shim          what the path shim presents as files and answers
    text          the other strings of src/: parts of log messages, names of states, texts that verbs return

KIND lists only these kinds; the first part of a name is enough (`log`). Exit code 2 for a KIND that is none of these.
A string that only the program reads is left out: paths, names of environment variables, what strcmp() and sscanf() take,
assertions, attributes, assembler code, and literals without a letter. Log calls are listed whatever their literals are. The
script reads tokens, not C: a string that a macro hands on is listed where it is written.
"""

import os
import re
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
LOGS = {"log_error": "log-error", "log_warn": "log-warn", "log_info": "log-info", "log_debug": "log-debug"}
KINDS = [*LOGS.values(), "explain", "key", "reason", "tool", "shim", "text"]
# Where a string outside a log call is read; the first that fits.
PLACES = [
    (re.compile(r"src/explain/|src/(.*/)?explain(er)?\.c$"), "explain"),
    (re.compile(r"src/mapped/(.*/)?reason\.c$"), "reason"),
    (re.compile(r"tools/softhca/"), "tool"),
    (re.compile(r"tools/shim/"), "shim"),
    (re.compile(r"src/"), "text"),
]
# Which argument of these is the name of a JSON member.
KEYS = {"out_number": 2, "out_signed": 2, "out_string": 2, "out_bool": 2, "out_begin": 2, "out_begin_array": 2,
        "listed_describe": 3, "object_describe": 3, "stack_describe": 3}
# Strings in calls of these are not for people.
UNREAD = {
    "__attribute__", "__asm__", "asm", "volatile", "_Static_assert", "static_assert", "getenv", "secure_getenv", "setenv",
    "unsetenv", "open", "openat", "fopen", "sys_open", "opendir", "access", "stat", "readlink", "dlopen", "dlsym", "dlvsym",
    "CALL_OR", "memfd_create", "sys_memfd_create", "strcmp", "strncmp", "strcasecmp", "strstr", "strchr", "strrchr", "strcspn",
    "memcmp", "sscanf", "fscanf", "hash_file", "number_in", "bounded",
}
PATH = re.compile(r"(?:%[\w.]*|\{\w+\}|\.\.)?/|(?:sys|dev)/")
SPECIFIER = re.compile(r"%[-+ #0]*[*\d]*(?:\.[*\d]*)?(?:hh|h|ll|l|z|j|t)?[a-zA-Z]|\\[a-zA-Z]")

TOKEN = re.compile(r"""
    (?P<comment>/\*.*?\*/|//[^\n]*)
  | (?P<directive>^[ \t]*\#[ \t]*(?:define[ \t]+\w+|(?:\\\n|[^\n])*))
  | (?P<string>(?:u8|[uUL])?"(?:[^"\\\n]|\\.)*")
  | (?P<char>[uUL]?'(?:[^'\\\n]|\\.)*')
  | (?P<word>[A-Za-z_]\w*)
  | (?P<splice>\\\n)
  | (?P<other>[^\s])
""", re.VERBOSE | re.DOTALL | re.MULTILINE)


def tracked():
    files = subprocess.run(["git", "-C", TOP, "ls-files", "-z", "--cached", "--others", "--exclude-standard", "src", "tools"],
                           capture_output=True, text=True)
    if files.returncode == 0:
        return sorted({name for name in files.stdout.split("\0") if name})
    return sorted(os.path.relpath(os.path.join(folder, name), TOP)
                  for room in ("src", "tools") for folder, _, names in os.walk(os.path.join(TOP, room)) for name in names)


def tokens(text):
    """(class, text, line) of what the compiler sees."""
    line, at = 1, 0
    for match in TOKEN.finditer(text):
        line += text.count("\n", at, match.start())
        at = match.start()
        if match.lastgroup == "directive":
            yield "other", ";", line  # no literal goes on behind it
        elif match.lastgroup not in ("comment", "splice"):
            yield match.lastgroup, match.group(), line


def joined(found):
    """Adjacent literals, and macros in capitals among them, become one literal."""
    result = []
    i = 0
    while i < len(found):
        parts, first = [], i
        while i < len(found) and (found[i][0] == "string" or
                                  (found[i][0] == "word" and re.fullmatch(r"[A-Z][A-Z0-9_]+|(?:PRI|SCN)\w+", found[i][1]))):
            parts.append(found[i])
            i += 1
        # An identifier alone, or in front of a parenthesis, is no part of a literal.
        while parts and parts[-1][0] == "word" and (len(parts) == 1 or (i < len(found) and found[i][1] == "(")):
            parts.pop()
            i -= 1
        if any(part[0] == "string" for part in parts):
            text = "".join(part[1][part[1].index('"') + 1:-1] if part[0] == "string" else "{%s}" % part[1] for part in parts)
            result.append(("string", text, parts[0][2]))
        else:
            i = first + 1
            result.append(found[first])
    return result


def messages(name, text):
    place = next((kind for pattern, kind in PLACES if pattern.match(name)), None)
    calls = []  # the parentheses that are open: the name before, the argument that is being read, whether a literal was there
    previous, before = "", []
    for token, content, line in joined(list(tokens(text))):
        for call in calls:
            if call["name"] in LOGS:
                call["words"].append(content)
        if token == "other" and content == "(":
            calls.append({"name": previous, "line": line, "argument": 1, "literal": False, "words": []})
        elif token == "other" and content == ")" and calls:
            call = calls.pop()
            # A message without a literal: what it is made of.
            if call["name"] in LOGS and not call["literal"]:
                yield call["line"], LOGS[call["name"]], "(no literal) " + " ".join(call["words"][:-1])
        elif token == "other" and content == "," and calls:
            calls[-1]["argument"] += 1
        elif token == "string":
            names = [call["name"] for call in calls]
            log = next((LOGS[call] for call in names if call in LOGS), None)
            for call in calls:
                call["literal"] = True
            key = before[-3:] == [".", "key", "="] or calls and KEYS.get(calls[-1]["name"]) == calls[-1]["argument"]
            kind = log or ("key" if key else place)
            path = PATH.match(content) and " " not in content and (calls or kind == "text")
            if log or re.search("[A-Za-z]", SPECIFIER.sub("", content)) and not path and not UNREAD.intersection(names):
                yield line, kind, content
        before = before[-2:] + [content]
        previous = content if token == "word" else ""


def main():
    wanted = sys.argv[1:]
    if any(kind in ("-h", "--help") for kind in wanted):
        print(__doc__.strip())
        return 0
    for kind in wanted:
        if not any(known == kind or known.startswith(kind + "-") for known in KINDS):
            print(f"list-messages: no kind {kind}; one of {', '.join(KINDS)}", file=sys.stderr)
            return 2
    for name in tracked():
        path = os.path.join(TOP, name)
        if not name.endswith((".c", ".h")) or not os.path.exists(path):
            continue
        for line, kind, text in messages(name, open(path, encoding="utf-8").read()):
            if not wanted or any(kind == want or kind.startswith(want + "-") for want in wanted):
                print(f"{name}:{line}\t{kind}\t{text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
