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

# ---- DATE-hardest: ledger_backprop as it is by default, and the baselines within its budget

hardest() {  # name, recipe, seeds, more
    selective-backprop compare --recipe "$2" --data-dir "$data" --seeds "$3" --out "$out/hardest/$1" \
        --method traditional --method ledger --budget ledger --budget-by compute "${@:4}"
}
# Twice the ledger's compute, too, where the goal is to need half as much as plain training.
hardest mnist mnist_small 4 --budget-times 1 --budget-times 2
hardest svhn svhn_small 3 --budget-times 1 --budget-times 2
hardest cifar10 cifar10_small 2
hardest fashion_mnist fashion_mnist_small 2

# ---- DATE-comparisons: all methods, and the ledger by chance

run() {  # name, recipe, share of the loss for the ledger, seeds, more
    selective-backprop compare --recipe "$2" --data-dir "$data" --seeds "$4" --out "$out/comparisons/$1" \
        --method traditional --method sb:warmup_epochs=1 --method stale:every=3,warmup_epochs=1 \
        --method "ledger:loss_share=$3,soft=true" --method kath18 --method random --method infobatch \
        --budget ledger --budget-by compute "${@:5}"
}

for seeds in 1 2; do  # the second time only the second seed is missing
    run mnist mnist_small 0.9 $seeds --budget-times 1 --budget-times 2
    run svhn svhn_small 0.8 $seeds --budget-times 1 --budget-times 2
    run cifar10 cifar10_small 0.9 $seeds
    run fashion_mnist fashion_mnist_small 0.9 $seeds
    run mnist_16_epochs mnist_small 0.9 $seeds --epochs 16 --budget-times 1 --budget-times 2
done
run mnist mnist_small 0.9 4 --budget-times 1 --budget-times 2
selective-backprop compare --recipe svhn_small --model resnet20 --epochs 12 --data-dir "$data" --seeds 1 \
    --out "$out/comparisons/svhn_resnet20" --method traditional --method ledger:loss_share=0.8,soft=true \
    --budget ledger --budget-by compute --budget-times 2
