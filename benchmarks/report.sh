#!/usr/bin/env bash
# Write a report of the stored comparisons into OUT, and make two pictures of the docs from them:
#
#     benchmarks/report.sh OUT
#
# Images of examples are left out: SVHN's may not be passed on.
set -euo pipefail
mkdir -p "$1"
out=$(realpath "$1")
cd "$(dirname "$0")/results"
for results in 2026-11-16-comparisons 2026-11-16-hardest; do
    selective-backprop report "$results" --no-images -o "$out/$results.html"
done

figures=$(mktemp -d)
trap 'rm -rf "$figures"' EXIT
# A picture is small: the methods alone, without their baselines. Compute can be set side by side across comparisons,
# seconds cannot, as one had two threads.
selective-backprop report 2026-11-16-hardest/svhn/{traditional,ledger} \
    2026-11-16-comparisons/svhn/{sb,stale,infobatch,random} -o "$figures/report.html" --export "$figures/all"
selective-backprop report 2026-11-16-hardest/svhn/{traditional,ledger} -o "$figures/report.html" --export "$figures/ledger"
mkdir -p ../../docs/images
cp "$figures/all/error-by-compute-c0.png" ../../docs/images/error-by-compute.png
cp "$figures/ledger/phases-c0.png" ../../docs/images/phases.png
