#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-2-Clause OR GPL-2.0-only
"""Prints, as a script for bash, what a file of packaging/ has a machine do, so that it can be done in a fresh root.

usage: steps.py action.yml [INPUT=VALUE…]     the steps of a GitHub Action,; what is added to its output is a later step
       steps.py gitlab-ci.yml [VARIABLE=VALUE…]   the job, before_script and script
       steps.py Containerfile FOLDER          the instructions but FROM; FOLDER is the build context
"""

import glob
import os
import re
import shlex
import sys

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
    for name, value in given.items():
        if f'inputs.{name}' not in values:
            raise SystemExit(f'steps.py: the action has no input {name}')
        values[f'inputs.{name}'] = value
    values.update({'github.server_url': 'https://github.invalid', 'github.action_repository': 'softhca/softhca'})
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


def containerfile(path, context):
    print('set -euo pipefail')
    entrypoint, command = [], []
    for line in re.sub(r'\\\n', '', open(path, encoding='utf-8').read()).splitlines():
        word, _, rest = line.partition(' ')
        if not line or word.startswith('#') or word == 'FROM':
            continue
        if word == 'ADD':
            *sources, target = rest.split()
            for pattern in sources:
                found = glob.glob(os.path.join(context, pattern))
                if len(found) != 1 or not found[0].endswith('.tar.gz'):
                    raise SystemExit(f'steps.py: {pattern} is {found}, and not one tarball')
                print(f'mkdir -p {target} && tar -xzf {shlex.quote(found[0])} -C {target}')
        elif word == 'RUN':
            print(f'sh -c {shlex.quote(rest)}')
        elif word in ('ENTRYPOINT', 'CMD'):
            (entrypoint if word == 'ENTRYPOINT' else command).extend(re.findall(r'"([^"]*)"', rest))
        else:
            raise SystemExit(f'steps.py: no instruction {word} is known')
    print('cd / && ' + shlex.join(entrypoint + command))


def main():
    path, *rest = sys.argv[1:]
    if path.endswith('Containerfile'):
        containerfile(path, *rest)
        return
    import yaml  # pylint: disable=import-outside-toplevel
    with open(path, encoding='utf-8') as file:
        document = yaml.safe_load(file)
    (action if 'runs' in document else gitlab)(document, dict(pair.split('=', 1) for pair in rest))


if __name__ == '__main__':
    main()
