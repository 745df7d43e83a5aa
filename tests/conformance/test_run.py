#!/usr/bin/python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""The runner of rdma-core's tests, on a suite made here that passes, fails, crashes and hangs.

usage: test_run.py SOFTHCA
"""

import os
import re
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(os.path.dirname(HERE), "tools"))
import tap  # noqa: E402

WORK = tempfile.TemporaryDirectory(prefix="softhca-runner-")
SUITE = os.path.join(WORK.name, "tests")

FILES = {
    "args_parser.py": """
import sys
class Parser:
    def parse_args(self):
        self.listing = "--list-tests" in sys.argv
        sys.argv[1:] = [word for word in sys.argv[1:] if word != "--list-tests"]
parser = Parser()
""",
    "__init__.py": """
import importlib
from args_parser import parser
modules = [importlib.import_module("." + name, __name__) for name in ("test_pd", "test_odp")]
tests = importlib.import_module(".", __name__)
def load_tests(loader, standard, pattern):
    for module in modules:
        for case in loader.loadTestsFromModule(module):
            for test in case:
                print(test.id())
    return standard
""",
    "run_tests.py": """
from args_parser import parser
import os, sys, unittest
from importlib.machinery import SourceFileLoader
tests = SourceFileLoader("tests", os.path.join(os.path.dirname(__file__), "__init__.py")).load_module()
parser.parse_args()
unittest.main(module=tests)
""",
    "test_pd.py": """
import os, time, unittest
class T(unittest.TestCase):
    def test_a_passes(self): pass
    def test_b_fails(self): self.fail("broken")
    def test_c_crashes(self): os.abort()
    def test_d_hangs(self): time.sleep(1000)
    def test_e_passes(self): pass
    def test_f_skips(self): self.skipTest("no raw packet here")
    def test_g_skips(self): self.skipTest("no time")
    def test_h_skips(self): self.skipTest("unlisted")
""",
    "test_odp.py": """
import unittest
class T(unittest.TestCase):
    def test_listed_but_passes(self): pass
    def test_machine_has(self): pass
    def test_other_reason(self): self.skipTest("because")
    def test_skips(self): self.skipTest("no ODP")
""",
}
LIST = """
| `tests.test_pd.T.test_f_skips` | all | raw packet | no raw packet |
| `tests.test_pd.T.test_g_skips` | all | flows | no time |
| `tests.test_odp.T.test_listed_but_passes` | all | ODP | no ODP |
| `tests.test_odp.T.test_other_reason` | all | ODP | no ODP |
| `tests.test_odp.T.test_skips` | all | ODP | no ODP |
| `tests.test_odp.T.test_machine_has` | all | huge pages | no huge pages |
| `tests.test_odp.T.test_gone` | all | ODP | no ODP |
"""


# As that of rdma-core 39: of what is known as faulty it has one test.
OLDER = os.path.join(WORK.name, "older")
OLDER_FILES = dict(FILES)
OLDER_FILES["__init__.py"] = FILES["__init__.py"].replace('("test_pd", "test_odp")', '("test_qpex",)')
OLDER_FILES["test_qpex.py"] = """
import unittest
class QpExTestCase(unittest.TestCase):
    def test_qp_ex_rc_bind_mw(self): self.fail("faulty")
    def test_qp_ex_rc_send(self): pass
"""


def make_suite():
    for folder, files in (SUITE, FILES), (OLDER, OLDER_FILES):
        os.mkdir(folder)
        for name, text in files.items():
            with open(os.path.join(folder, name), "w", encoding="ascii") as file:
                file.write(text)
    with open(os.path.join(WORK.name, "list.md"), "w", encoding="ascii") as file:
        file.write(LIST)


def run(suite=SUITE, *arguments):
    result = subprocess.run([os.path.join(HERE, "run.py"), "--softhca", sys.argv[1], "--user", "ordinary", "--tests", suite,
                             "--list", os.path.join(WORK.name, "list.md"), "--patience", "3", *arguments],
                            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=100)
    points = {}
    for line in result.stdout.splitlines():
        point = re.match(r"(not ok|ok) \d+ - tests\.\w+\.T\.test_(\w+)( # SKIP)?", line)
        if point:
            points[point.group(2)] = "skip" if point.group(3) else point.group(1)
    return result, points


def test_each_test_is_judged():
    result, points = run()
    tap.equal(points, {
        "a_passes": "ok", "b_fails": "not ok", "c_crashes": "not ok", "d_hangs": "not ok", "e_passes": "ok",
        "f_skips": "skip", "g_skips": "not ok", "h_skips": "not ok",
        "listed_but_passes": "not ok", "machine_has": "ok", "other_reason": "not ok", "skips": "skip", "gone": "not ok",
    }, result.stdout + result.stderr)
    tap.equal(result.returncode, 1)
    for words in "ends the process", "hangs", "every test of test_pd must pass", "has another reason", "no such test":
        assert words in result.stdout, words
    assert re.search(r"^1\.\.13$", result.stdout, re.M), result.stdout


def test_what_is_faulty_in_older_suites_is_skipped_where_they_have_it():
    result, _ = run(OLDER, "--older")
    tap.equal(result.returncode, 0)
    points = [line for line in result.stdout.splitlines() if "tests." in line]
    tap.equal([line.split(" - ")[1].split(" # ")[0].split(".")[-1] for line in points],
              ["test_qp_ex_rc_bind_mw", "test_qp_ex_rc_send"], result.stdout)
    assert "# SKIP" in points[0] and "mended in rdma-core 44" in points[0] and "# SKIP" not in points[1], points
    assert "not ok" in run(OLDER)[0].stdout


BORROWER = """
import importlib.util, signal, sys
spec = importlib.util.spec_from_file_location("run", sys.argv[1])
run = importlib.util.module_from_spec(spec)
spec.loader.exec_module(run)
run.HUGE_PAGES = sys.argv[2]
with run.HugePages():
    print(run.read_number(sys.argv[2] + "/nr_hugepages"), flush=True)
    if sys.argv[3] == "stay":
        signal.pause()
"""


def pages(configured, free, how):
    """Huge pages while the suite runs, and afterwards. how: it ends, or is killed while it would stay."""
    with tempfile.TemporaryDirectory(dir=WORK.name) as place:
        for name, number in ("nr_hugepages", configured), ("free_hugepages", free):
            with open(os.path.join(place, name), "w", encoding="ascii") as file:
                file.write(str(number))
        borrower = subprocess.Popen([sys.executable, "-c", BORROWER, os.path.join(HERE, "run.py"), place, how],
                                    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
        during = int(borrower.stdout.readline())
        if how == "stay":
            borrower.kill()
        borrower.wait()
        borrower.stdout.close()
        # Who gives them back is no child of ours: it is seen by what it does.
        path, deadline = os.path.join(place, "nr_hugepages"), time.monotonic() + 60
        after = None
        while after != str(configured) and time.monotonic() < deadline:
            time.sleep(0.01)
            with open(path, encoding="ascii") as file:
                after = file.read()
        return during, after


def test_huge_pages_are_given_back():
    tap.equal(pages(0, 0, "end"), (8, "0"))
    tap.equal(pages(5, 3, "end"), (10, "5"))
    tap.equal(pages(20, 9, "end"), (20, "20"))


def test_huge_pages_are_given_back_by_who_is_killed():
    tap.equal(pages(2, 0, "stay"), (10, "2"))


if __name__ == "__main__":
    make_suite()
    tap.main(sys.modules[__name__])
