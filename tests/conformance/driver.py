# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Runs rdma-core's run_tests.py as it is, and also writes what happens to each test, line by line, to a file: a crash
in the middle then costs one test and not the report.

usage: driver.py DIRECTORY EVENTS [ARGUMENT…]   (DIRECTORY holds tests/)
"""

import json
import multiprocessing
import os
import runpy
import sys
import unittest

directory, events_path = sys.argv[1:3]
events = os.open(events_path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
main_process = os.getpid()


def tell(test, what, detail=""):
    # Tests fork; what a child of theirs does with the result is its own affair.
    if os.getpid() == main_process:
        line = json.dumps({"test": test.id(), "what": what, "detail": detail}) + "\n"
        os.write(events, line.encode())


class Result(unittest.TextTestResult):
    def startTest(self, test):
        tell(test, "start")
        super().startTest(test)

    def addSuccess(self, test):
        super().addSuccess(test)
        tell(test, "pass")

    def addSkip(self, test, reason):
        super().addSkip(test, reason)
        tell(test, "skip", reason)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        tell(test, "fail", self._exc_info_to_string(err, test))

    def addError(self, test, err):
        super().addError(test, err)
        tell(test, "fail", self._exc_info_to_string(err, test))

    def addSubTest(self, test, subtest, err):
        super().addSubTest(test, subtest, err)
        if err is not None:
            tell(test, "fail", self._exc_info_to_string(err, test))


load_from_module = unittest.TestLoader.loadTestsFromModule


def as_before(self, module, *_, pattern=None):
    """Until Python 3.12 a pattern in second place was ignored, where rdma-core 50's suite has it."""
    return load_from_module(self, module, pattern=pattern)


unittest.TestLoader.loadTestsFromModule = as_before
# As before Python 3.14, whose other way wants to pickle the test with its result.
multiprocessing.set_start_method("fork")
unittest.TextTestRunner.resultclass = Result
script = os.path.join(directory, "tests", "run_tests.py")
sys.path[0] = os.path.dirname(script)
sys.argv = [script] + sys.argv[3:]
runpy.run_path(script, run_name="__main__")
