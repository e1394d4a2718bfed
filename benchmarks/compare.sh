#!/usr/bin/env bash
# The comparisons in benchmarks/results: about four hours on two cores, with nothing else on the machine.
#
#     benchmarks/compare.sh DATA OUT
#
# DATA holds mnist/, svhn/, cifar10/ and fashion_mnist/, each with train.parquet and test.parquet.
#
# Each comparison leaves its own report.html; one page of all of them, as in benchmarks/results, is made by
#
#     selective-backprop report OUT/comparisons -o report.html
set -euo pipefail
data=$1 out=$2

# The stored results of 2026-11-16 were made by an earlier form of `compare`, whose baselines got the compute of one method
# (its commands are in each run's environment.json). These are the same methods and recipes, with baselines at the lengths
# of all runs.

run() {  # name, recipe, seeds, lengths, more
    selective-backprop compare --recipe "$2" --data-dir "$data" --seeds "$3" --epochs "$4" --out "$out/$1" \
        --method ledger --method sb:warmup_epochs=1 --method stale:every=3,warmup_epochs=1 --method kath18 \
        --method random --method infobatch "${@:5}"
}

run mnist mnist_small 5 2,3,4,6,8
run svhn svhn_small 5 2,3,4,6,8
run fashion_mnist fashion_mnist_small 5 2,3,4,6
run cifar10 cifar10_small 5 2,3,4,6
