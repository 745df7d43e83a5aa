#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Each section of a document that a comment, a test or a document cites is there.

`verbs.md §5.1` is section 5.1 of the document with that name; what follows it (`, §5.2`, ` and §6`, `-5.3`) is of the same. A section
alone (`§5.2`) is of the document that the file has named first, or, in a document, of the document itself. Documents that are named
without a section, and anchors of links, have to be there, too. Prints one line per offence; exit code 1 if there is one.
"""

import os
import re
import subprocess
import sys

TOP = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TEXTS = (".c", ".h", ".S", ".py", ".sh", ".md", ".map", ".txt", ".build", ".yml", ".1", ".3", "Makefile")
# This file names what must not be named.
FREE = {"scripts/check-references.py"}

NUMBER = r"\d+(?:\.\d+)*"
SECTIONS = rf"§{NUMBER}(?:(?:\s*,\s*|\s+and\s+|\s+to\s+|\s*,\s*and\s+)§{NUMBER}|\s*[-–]\s*§?{NUMBER})*"
# Not what a program calls a file of its own.
DOCUMENT = r"(?<![\w.%*{}'\"-])(?:[\w.-]+/|\.\./)*[A-Za-z][\w-]*\.md\b"
CITED = re.compile(rf"(?P<document>{DOCUMENT})(?P<anchor>#[\w-]+)?(?:\)?\s+(?P<of>{SECTIONS}))?|(?P<alone>{SECTIONS})")
# Texts that the project was made from and does not contain.
ABSENT = re.compile(r"verbs-contract|compat-surface|\bcompat\s+§|\bdesign\s+§|(?<![\w/.-])(?:\.\./)*shared/")


def tracked():
    files = subprocess.run(["git", "-C", TOP, "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                           capture_output=True, text=True)
    if files.returncode == 0:
        return [name for name in files.stdout.split("\0") if name]
    return [os.path.relpath(os.path.join(folder, name), TOP)
            for folder, _, entries in os.walk(TOP) for name in entries
            if "/build" not in folder and "/.git" not in folder]


def flat(text):
    """Of the same length: where a comment or a text goes on in the next line, there are spaces."""
    return re.sub(r"\\n|\n[ \t]*(?:\*(?!/)|#+|//)?(?=[ \t]|$)", lambda found: " " * len(found.group()), text)


class Documents:
    def __init__(self):
        self.known = {}

    def find(self, name, citing):
        """Where the document is: as a path from the citing file's folder or from the top, or by its bare name in docs."""
        places = [os.path.join(os.path.dirname(citing), name), name, os.path.join("docs", name)]
        for place in map(os.path.normpath, places):
            if os.path.isfile(os.path.join(TOP, place)):
                return place
        return None

    def parts(self, path):
        """Sections, and anchors as GitHub makes them of headings."""
        if path not in self.known:
            text = open(os.path.join(TOP, path), encoding="utf-8").read()
            headings = re.findall(r"^#+ +(.*?) *$", re.sub(r"^```.*?^```", "", text, flags=re.M | re.S), flags=re.M)
            numbers = {found.group(1) for found in (re.match(rf"({NUMBER})\.?(?: |$)", line) for line in headings) if found}
            anchors = {"#" + re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in headings}
            self.known[path] = numbers, anchors
        return self.known[path]


def offences(name, documents):
    text = open(os.path.join(TOP, name), encoding="utf-8", errors="replace").read()
    read = flat(text) if not name.endswith(".md") else re.sub(r"\n", " ", text)
    main = name if name.endswith(".md") else None
    for found in ABSENT.finditer(read):
        yield found.start(), f"'{' '.join(found.group().split())}' is not in the repository"
    for found in CITED.finditer(read):
        document, sections = main, found["of"] or found["alone"]
        if found["document"]:
            document = documents.find(found["document"], name)
            if not document:
                yield found.start(), f"there is no document {found['document']}"
                continue
            if found["anchor"] and found["anchor"] not in documents.parts(document)[1]:
                yield found.start(), f"{document} has no heading for {found['anchor']}"
            if sections and not main:
                main = document
        if not sections:
            continue
        if not document:
            yield found.start(), f"{sections}: the file has not said of which document"
            continue
        for number in re.findall(NUMBER, sections):
            if number not in documents.parts(document)[0]:
                yield found.start(), f"{document} has no section {number}"


def main():
    documents = Documents()
    bad = 0
    for name in sorted(tracked()):
        if not name.endswith(TEXTS) or name in FREE or not os.path.isfile(os.path.join(TOP, name)):
            continue
        text = open(os.path.join(TOP, name), encoding="utf-8", errors="replace").read()
        for at, what in offences(name, documents):
            print(f"{name}:{text.count(chr(10), 0, at) + 1}: {what}")
            bad += 1
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
