#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Prints, as a script for bash, what a file of packaging/ has a machine do, so that it can be done in a fresh root.

usage: steps.py action.yml [INPUT=VALUE…]     the steps of a GitHub Action; what is added to its output is a later step;
                                             github.NAME=VALUE is of the runner's context
       steps.py gitlab-ci.yml [VARIABLE=VALUE…]   the job, before_script and script
"""

import re
import shlex
import sys

import yaml

# What a later step sees of the earlier ones: https://docs.github.com, "Workflow commands", environment files.
RUNNER = '''set -euo pipefail
export RUNNER_TEMP=$(mktemp -d)
chmod 755 "$RUNNER_TEMP"
for file in GITHUB_PATH GITHUB_ENV GITHUB_OUTPUT; do
    export $file=$RUNNER_TEMP/$file
    : >"$RUNNER_TEMP/$file"
done
entered()
{
    while read -r line; do PATH=$line:$PATH; done <"$GITHUB_PATH"
    while IFS= read -r line; do export "${line?}"; done <"$GITHUB_ENV"
    : >"$GITHUB_ENV"
}
'''


def replaced(text, values):
    """`${{ inputs.NAME }}` and its like."""
    return re.sub(r'\$\{\{\s*([\w.-]+)\s*\}\}', lambda found: values[found[1]], str(text))


def holds(condition, values):
    """The one form of condition that the action has."""
    name, value = re.fullmatch(r"([\w.-]+) == '([^']*)'", condition).groups()
    return values[name] == value


def action(document, given):
    values = {f'inputs.{name}': str(what.get('default', '')) for name, what in document['inputs'].items()}
    values.update({'github.server_url': 'https://github.invalid', 'github.action_repository': 'softhca/softhca'})
    for name, value in given.items():
        name = name if '.' in name else f'inputs.{name}'
        if name not in values:
            raise SystemExit(f'steps.py: the action has no {name}')
        values[name] = value
    if document['runs']['using'] != 'composite':
        raise SystemExit('steps.py: only composite actions are known')
    print(RUNNER)
    for step in document['runs']['steps']:
        if 'if' in step and not holds(step['if'], values):
            continue
        env = ' '.join(f'{name}={shlex.quote(replaced(value, values))}' for name, value in step.get('env', {}).items())
        print(f'env {env} bash -e -c {shlex.quote(replaced(step["run"], values))}')
        print('entered')


def gitlab(document, given):
    base = document['.softhca']
    (job,) = [what for what in document.values() if isinstance(what, dict) and what.get('extends') == '.softhca']
    print('set -eo pipefail')
    for name, value in {**base['variables'], **given}.items():
        print(f'export {name}={shlex.quote(value)}')
    for line in base['before_script'] + job['script']:
        print(line)


def main():
    path, *rest = sys.argv[1:]
    with open(path, encoding='utf-8') as file:
        document = yaml.safe_load(file)
    (action if 'runs' in document else gitlab)(document, dict(pair.split('=', 1) for pair in rest))


if __name__ == '__main__':
    main()
