#!/usr/bin/env bash
# The report of the committed comparisons, and the README's two pictures:
#
#     benchmarks/report.sh [RESULTS]
#
# RESULTS is a folder of benchmarks/results; default: the comparisons of 2026-11-16. Images of examples are left out:
# SVHN's may not be passed on.
set -euo pipefail
cd "$(dirname "$0")/.."
results=${1:-benchmarks/results/2026-11-16-comparisons}
selective-backprop report "$results" --no-images -o "$results/report.html"

figures=$(mktemp -d)
trap 'rm -rf "$figures"' EXIT
# A picture is small: the methods alone, without their baselines.
selective-backprop report "$results"/svhn/{traditional,sb,stale,ledger,infobatch,random} -o "$figures/report.html" \
    --export "$figures"
mkdir -p docs/images
cp "$figures/error-by-compute-c0.png" docs/images/error-by-compute.png
cp "$figures/phases-c0.png" docs/images/phases.png
