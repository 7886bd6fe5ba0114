#!/usr/bin/env bash
# What runs none of the tests: linter, formatter, types, import rules; docs as a site, the package and its README as an
# index shows it. Leaves the package in WORK/dist.
# Usage: .ci/static.sh CHECKOUT WORK, with `environment` and uv from .ci/run
set -euo pipefail
checkout=$1 work=$2
cd "$checkout"

environment "$work/linter" -e '.[test]'
export PATH="$work/linter/bin:$PATH"
ruff check .
ruff format --check .
mypy
lint-imports

environment "$work/docs" -r pyproject.toml --extra docs twine 'readme-renderer[md]'
NO_MKDOCS_2_WARNING=1 "$work/docs/bin/mkdocs" build -q --site-dir "$work/site"
AUTOTUNE_DOCS=https://docs.example/0 uv build -q --out-dir "$work/dist" .
"$work/docs/bin/twine" check --strict "$work"/dist/*.whl "$work"/dist/*.tar.gz
python3 .ci/published_links.py "$work"/dist/*.whl https://docs.example/0 "$work/site"
